"""Downstream readers: paired deltas between arms, recomputed from case scores (Protocol section 7, claim C13).

Every case is answered by every reader under every arm, so a delta is the mean of paired differences of one reader;
readers are never pooled. Namespace groups are resampled within their source and sources weigh the same. The
case-weighted mean, in which a source weighs by its cases, is given beside it as a sensitivity.

A delta is an association: between arms the answers differ, and so does what was retrieved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from companion.bootstrap import DEFAULT_CONFIDENCE, DEFAULT_REPLICATES, MACRO, ratio_means
from companion.errors import InputError

CASE_WEIGHTED = "case-weighted"
"""Label of the row in which every case weighs the same, whatever its source."""

POPULATION = "natural-closure-1523"

CONTRASTS: dict[str, tuple[str, str]] = {
    "namespace_dense-global_dense": ("namespace_dense", "global_dense"),
    "policy_gate-namespace_dense": ("namespace_policy_gate", "namespace_dense"),
    "text_verifier-namespace_dense": ("namespace_text_verifier", "namespace_dense"),
    "field_oracle-namespace_dense": ("released_field_oracle", "namespace_dense"),
}
"""Published names of the contrasts, with the arm and the arm it is compared with."""

ANSWER_METRICS = ("answer_correct", "answer_quality", "non_answer", "protected_disclosure", "stale_disclosure")
ROUTE_METRICS = (
    "evidence_recall",
    "feasible",
    "penalized_admissibility_upper_risk",
    "wrong_namespace_exposure",
    "policy_disallowed_exposure",
    "lifecycle_incompatible_exposure",
)
ROUTE = "route"
"""Subject of the rows that describe the route, which no reader changes."""


def readers(cases: pd.DataFrame) -> list[str]:
    """List the readers of a case table, sorted."""
    return sorted(cases["reader_model"].unique())


def route_scores(cases: pd.DataFrame, metrics: Sequence[str] = ROUTE_METRICS) -> pd.DataFrame:
    """Take what describes the route, which must be the same whoever reads."""
    keys = ["case_token", "arm"]
    for metric in metrics:
        distinct = cases.groupby(keys, sort=True)[metric].nunique(dropna=False)
        distinct = distinct[distinct > 1]
        if len(distinct):
            case, arm = distinct.index[0]
            raise InputError(
                f"case '{case}', arm '{arm}': readers disagree on '{metric}'; expected one value, since a reader "
                "does not change its route"
            )
    first = cases.drop_duplicates(keys)
    return first[["case_token", "group_token", "source", "arm", *metrics]].reset_index(drop=True)


def paired_deltas(scores: pd.DataFrame, arm: str, reference: str, metrics: Sequence[str]) -> pd.DataFrame:
    """Subtract one arm from another case by case."""
    sides = []
    for name in (arm, reference):
        side = scores[scores["arm"] == name].set_index("case_token").sort_index()
        if side.index.has_duplicates:
            twice = side.index[side.index.duplicated()][0]
            raise InputError(f"case '{twice}', arm '{name}': several rows; expected rows of exactly one reader")
        sides.append(side)
    unpaired = sides[0].index.symmetric_difference(sides[1].index)
    if len(unpaired):
        raise InputError(
            f"case '{unpaired[0]}': only one of the arms '{arm}' and '{reference}' is there "
            f"({len(unpaired)} such cases); expected both"
        )
    deltas = sides[0][["group_token", "source"]].copy()
    for metric in metrics:
        upper, lower = (side[metric].astype("Float64").to_numpy(dtype=float, na_value=np.nan) for side in sides)
        deltas[metric] = upper - lower
    return deltas.reset_index()


def contrast(
    scores: pd.DataFrame,
    arm: str,
    reference: str,
    metrics: Sequence[str],
    *,
    replicates: int = DEFAULT_REPLICATES,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Estimate paired deltas with namespace-group intervals: by source, macro, and case-weighted."""
    deltas = paired_deltas(scores, arm, reference, metrics)
    settings = {"replicates": replicates, "confidence": confidence, "seed": seed}
    parts = [_one_metric(deltas, metric, settings) for metric in metrics]
    return pd.concat(parts, ignore_index=True)


def _one_metric(deltas: pd.DataFrame, metric: str, settings: dict[str, float]) -> pd.DataFrame:
    """Bootstrap one metric over its evaluable pairs: which sources take part depends on the metric."""
    used = deltas[deltas[metric].notna()]
    columns = ["metric", "source", "estimate", "low", "high", "n", "undefined_replicates"]
    if used.empty:
        row = [metric, MACRO, np.nan, np.nan, np.nan, 0, int(settings["replicates"])]
        return pd.DataFrame([row], columns=columns)
    values, source, group = used[[metric]], used["source"], used["group_token"]
    by_source = ratio_means(values, clusters=group, sources=source, **settings).table  # type: ignore[arg-type]
    # The same group token may occur in two sources; those are two groups.
    pooled = ratio_means(values, clusters=source + "\x1f" + group, strata=source, **settings).table  # type: ignore[arg-type]
    pooled = pooled[pooled["source"] == MACRO].assign(source=CASE_WEIGHTED)
    table = pd.concat([by_source, pooled], ignore_index=True).assign(metric=metric)
    counts = used["source"].value_counts()
    table["n"] = [int(counts.get(name, len(used))) for name in table["source"]]
    return table[columns]


def reader_contrasts(
    cases: pd.DataFrame,
    metrics: Sequence[str] = ANSWER_METRICS,
    *,
    contrasts: dict[str, tuple[str, str]] | None = None,
    replicates: int = DEFAULT_REPLICATES,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Estimate every contrast for every reader on its own, and for the route."""
    subjects = [(name, cases[cases["reader_model"] == name], tuple(metrics)) for name in readers(cases)]
    subjects.append((ROUTE, route_scores(cases), ROUTE_METRICS))
    parts = []
    for name, (arm, reference) in (CONTRASTS if contrasts is None else contrasts).items():
        for subject, scores, columns in subjects:
            if scores["arm"].isin([arm]).any() and scores["arm"].isin([reference]).any():
                part = contrast(
                    scores, arm, reference, columns, replicates=replicates, confidence=confidence, seed=seed
                )
                parts.append(part.assign(subject=subject, contrast=name))
    if not parts:
        raise InputError("case scores: no reader has both arms of any contrast; expected at least one pair of arms")
    leading = ["subject", "contrast"]
    table = pd.concat(parts, ignore_index=True)
    return table[[*leading, *(column for column in table if column not in leading)]]


def recomputable(
    cases: pd.DataFrame,
    *,
    replicates: int = DEFAULT_REPLICATES,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Recompute the C13 rows of the published figures from case scores."""
    table = reader_contrasts(cases, replicates=replicates, confidence=confidence, seed=seed)
    table = table[table["source"] == MACRO].rename(columns={"estimate": "value"})
    how = "macro mean of paired differences of the released case scores; namespace groups resampled within source"
    keyed = table.assign(claim="C13", stage="readers", population=POPULATION, how=how)
    order = ["claim", "stage", "population", "subject", "contrast", "metric", "value", "low", "high", "n", "how"]
    return keyed[order].reset_index(drop=True)
