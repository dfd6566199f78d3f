"""Stage one in tables: arms with their seeds, sweeps from one frozen ranking, populations side by side (section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from companion import bootstrap, scoring
from companion.retrieval.registry import base_arm
from companion.stages import studies

if TYPE_CHECKING:
    from companion.tables import Records

TARGETS = (0.5, 0.7, 0.8, 0.9, 1.0)
COSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
DEPTHS = (5, 10, 20, 50, 100)

FAMILY_METRICS = (
    "evidence_recall",
    "feasible_rate",
    "loss",
    "upper_bound",
    "any_violation",
    "violation_count",
    "wrong_scope",
    "policy_disallowed",
    "lifecycle_incompatible",
    "candidates_scored",
)


family_of = base_arm
"""An arm's name without its seed: random controls are ranked once per seed, as ``name:seed``."""


def by_family(summary: scoring.Summary, source: str = bootstrap.MACRO) -> pd.DataFrame:
    """Summarise arms, random controls over their seeds."""
    rows = summary.intervals[summary.intervals["source"] == source]
    rows = rows[rows["metric"].isin(FAMILY_METRICS)].assign(family=rows["arm"].map(family_of))
    parts = []
    for (family, metric), part in rows.groupby(["family", "metric"], sort=False):
        seeded = len(part) > 1
        values = part["estimate"]
        parts.append(
            {
                "arm": family,
                "seeds": len(part),
                "metric": metric,
                "estimate": values.mean(skipna=False),
                "low": values.min() if seeded else part["low"].iloc[0],
                "high": values.max() if seeded else part["high"].iloc[0],
                "sd": values.std(),
                "spread": "over seeds" if seeded else "over groups",
            }
        )
    return pd.DataFrame(parts)


def arm_table(families: pd.DataFrame) -> pd.DataFrame:
    """Lay ``by_family`` out with one row per arm."""
    rows = pd.MultiIndex.from_frame(families[["arm", "seeds"]].drop_duplicates())
    wide = families.pivot(index=["arm", "seeds"], columns="metric", values=["estimate", "low", "high"]).reindex(rows)
    suffixes = {"estimate": "", "low": "_low", "high": "_high"}
    columns = {f"{m}{suffix}": wide[part, m] for m in FAMILY_METRICS for part, suffix in suffixes.items()}
    return pd.DataFrame(columns).reset_index()


def reported(work: pd.DataFrame, per_query: pd.DataFrame) -> pd.DataFrame:
    """Average what filters and routers report about themselves, as every other measure is averaged."""
    columns = ["passed_unresolved", "fell_back"]
    sources = per_query.loc[per_query["anchors"] > 0, ["query_id", "source"]].drop_duplicates()
    rows = work.astype(dict.fromkeys(columns, "Float64")).assign(arm=work["arm"].map(family_of))
    by_source = rows.merge(sources, on="query_id").groupby(["arm", "source"], sort=False)[columns].mean()
    return by_source.groupby("arm", sort=False).mean().reset_index()


def sweep(
    records: Records,
    arms: Sequence[str],
    *,
    targets: Sequence[float] = TARGETS,
    depths: Sequence[int] = DEPTHS,
) -> pd.DataFrame:
    """Score one frozen ranking under every target recall and depth; nothing is searched again."""
    parts = []
    for target in targets:
        for depth in depths:
            table = scoring.score_routes(records, arms=arms, target_recall=target, top_k=depth)
            means = _macro_means(table, ["evidence_recall", "feasible", "prefix_component"])
            parts.append(means.assign(target_recall=target, top_k=depth))
    result = pd.concat(parts, ignore_index=True).rename(columns={"feasible": "feasible_rate"})
    return result[["arm", "target_recall", "top_k", "evidence_recall", "feasible_rate", "prefix_component"]]


def set_scope_aside(
    records: Records, arms: Sequence[str], *, target_recall: scoring.Recall = 0.8, top_k: int | None = 20
) -> pd.DataFrame:
    """Score the same matched prefixes with all axes, and with policy and lifecycle only."""
    kinds = {"all three axes": ("scope", "policy", "lifecycle"), "policy and lifecycle only": ("policy", "lifecycle")}
    parts = [
        _macro_means(
            scoring.score_routes(records, arms=arms, axes=axes, target_recall=target_recall, top_k=top_k),
            ["lower_bound", "upper_bound"],
        ).assign(axes=name)
        for name, axes in kinds.items()
    ]
    return pd.concat(parts, ignore_index=True)[["arm", "axes", "lower_bound", "upper_bound"]]


def side_by_side(studies_: Sequence[studies.Study], arm: str, metrics: Sequence[str]) -> pd.DataFrame:
    """List the same contrast of several populations, without ever averaging over them."""
    rows = []
    for study in studies_:
        for metric in metrics:
            row = study.summary.contrast(arm, metric)
            rows.append(
                {
                    "population": study.population,
                    "metric": metric,
                    **{end: float(row[end]) for end in ("estimate", "low", "high")},
                    "evaluable": int(study.summary.arms["evaluable"].max()),
                    "groups": int(study.summary.settings["n_clusters"]),
                }
            )
    return pd.DataFrame(rows)


def _macro_means(per_query: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Average over evaluable queries within source, then over sources; undefined in one source is undefined."""
    evaluable = per_query[per_query["anchors"] > 0].astype(dict.fromkeys(columns, "float64"))
    by_source = evaluable.groupby(["arm", "source"], sort=False)[columns].mean()
    return by_source.groupby("arm", sort=False).mean(skipna=False).reset_index()
