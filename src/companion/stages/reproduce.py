"""Every published figure, with what the companion can say about it today.

Each row ends in one of four states. *recomputed*: the same data gave the number again here, and it must agree.
*replicated*: the same population under another encoder; levels may differ, and ``agrees`` says whether the published
estimate lies in our interval. *needs-data*: public data would settle it, and the note names the command that fetches
them. *quoted*: nothing public settles it, and the note says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from companion import bootstrap, exposure
from companion.errors import InputError
from companion.stages import agreement, published, studies, support, verification

if TYPE_CHECKING:
    from companion.tables import Records

STATUSES = ("recomputed", "replicated", "needs-data", "quoted")
_MATCH = ["claim", "subject", "contrast", "metric"]
_VALUES = ["value", "low", "high"]
_TOLERANCE = 1e-9
_TWO = ("global_dense", "namespace_dense")

NATURAL_SOURCES = ("rhelm", "memops")
"""The frozen runs that together are the population ``natural-support``."""

_NEEDS_MEMOPS = (
    "needs MemOps beside RHELM: companion fetch memops, then "
    "companion rank memops --arm all --top-k 100 --freeze data/frozen/memops"
)
_NEEDS_EVIDENCE = "needs the released case scores: companion fetch evidence"
_NOTES: dict[str, tuple[str, str]] = {
    "C9": ("needs-data", _NEEDS_MEMOPS),
    "C9-controls": ("needs-data", _NEEDS_MEMOPS),
    "C9-bounds": ("needs-data", _NEEDS_MEMOPS),
    "C9-source": ("needs-data", _NEEDS_MEMOPS),
    "C5": ("needs-data", _NEEDS_MEMOPS),
    "C10": ("needs-data", _NEEDS_MEMOPS),
    "C10-corruption": (
        "quoted",
        "the published curve has one rate of this channel only, so the last rate before it that still dominates "
        "cannot be derived; this table runs no corruption of its own",
    ),
    "C11": ("quoted", "the models' answers on the 72 analysis cases are not in the released figures"),
    "C11-controlled": (
        "quoted",
        "the models' answers on the 16 controlled scenarios are not in the released figures",
    ),
    "C13": ("needs-data", _NEEDS_EVIDENCE),
    "C13-source": ("needs-data", "needs the corpus and an encoder: companion fetch rhelm"),
    "agreement": ("quoted", "the two annotators' records are not public; only the rebuilt two-category tables are"),
}


def reproduce(
    stage: str | None = None,
    *,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Return every published figure with our value, interval, status and whether the two agree.

    Parameters
    ----------
    stage : {"support", "verification", "exposure", "readers"}, optional
        Keep one stage.
    replicates, confidence, seed
        Of the intervals.

    Returns
    -------
    DataFrame
        ``claim``, ``stage``, ``population``, ``subject``, ``contrast``, ``metric``, ``published``,
        ``published_low``, ``published_high``, ``value``, ``low``, ``high``, ``status``, ``agrees`` (boolean, missing
        where nothing was computed), ``note``.

    Raises
    ------
    InputError
        For an unknown stage.
    """
    table = published.figures().drop(columns="n")
    stages = list(dict.fromkeys(table["stage"]))
    if stage is not None and stage not in stages:
        raise InputError(f"stage {stage!r}: expected one of {', '.join(stages)}")
    if stage is not None:
        table = table[table["stage"] == stage]
    ours = _computed(set(table["stage"]), replicates, confidence, seed)
    result = table.merge(ours, on=_MATCH, how="left", validate="1:1")
    default = result["claim"].map(_NOTES)
    missing = result["status"].isna()
    result.loc[missing, "note"] = [entry[1] for entry in default[missing]]
    result.loc[missing, "status"] = [entry[0] for entry in default[missing]]
    result["agrees"] = _agrees(result)
    return result[[*table.columns, *_VALUES, "status", "agrees", "note"]].reset_index(drop=True)


def _computed(stages: set[str], replicates: int, confidence: float, seed: int) -> pd.DataFrame:
    settings = {"replicates": replicates, "confidence": confidence, "seed": seed}
    makers: dict[str, list[Callable[..., pd.DataFrame]]] = {
        "support": [_rhelm, _natural],
        "verification": [_agreement, _verification, _natural],
        "exposure": [_exposure],
        "readers": [_rhelm, _readers],
    }
    chosen = dict.fromkeys(maker for stage in stages for maker in makers[stage])
    parts = [maker(**settings) for maker in chosen]
    empty = pd.DataFrame({**dict.fromkeys(_MATCH, pd.Series(dtype="str")), "status": pd.Series(dtype="str")})
    parts = [part for part in parts if len(part)] or [empty]
    columns = [*_MATCH, *_VALUES, "status", "note"]
    return pd.concat([part.reindex(columns=columns) for part in parts], ignore_index=True)


def _exposure(**settings: float) -> pd.DataFrame:
    outcomes = published.table("exposure_outcomes")
    effects = exposure.summarise(outcomes, **settings)  # type: ignore[arg-type]
    rows = effects.rename(columns={"reader": "subject", "estimate": "value"})
    claims = published.figures()[["claim", *_MATCH[1:]]]
    rows = rows.merge(claims[claims["claim"].isin(["C8", "C12"])], on=_MATCH[1:])
    return rows.assign(status="recomputed", note="from the published outcomes of each paired unit")


def _agreement(**settings: float) -> pd.DataFrame:
    rows = agreement.recomputable()
    return rows.assign(status="recomputed", note=rows["how"])


def _verification(**settings: float) -> pd.DataFrame:
    rows = verification.recomputable()
    return rows.assign(status="recomputed", note=rows["how"])


def _natural(**settings: float) -> pd.DataFrame:
    """Replicate the two-source rows where rankings of MemOps were frozen too."""
    from companion.corpora.frozen import frozen, load_frozen

    if not set(NATURAL_SOURCES) <= set(frozen()):
        return pd.DataFrame()
    records = studies.natural_support([load_frozen(name) for name in NATURAL_SOURCES])
    parts = [_natural_depth(records, depth, settings) for depth in (10, 20, 50, 100)]
    parts += [_natural_arms(records, settings), _natural_filters(records, settings)]
    rows = pd.concat(parts, ignore_index=True).drop_duplicates(_MATCH)
    return rows.assign(status="replicated", note="both sources ranked here, under the encoder named in their meta.json")


def _natural_depth(records: Records, depth: int, settings: dict[str, float]) -> pd.DataFrame:
    study = studies.support(
        records, arms=list(_TWO), reference=_TWO[0], top_k=depth, **settings  # type: ignore[arg-type]
    )  # fmt: skip
    found = [studies.beside_published(study, "macro", f"top_{depth}")]
    if depth == 20:
        found.append(studies.beside_published(study, "memops", "memops_top_20"))
    rows = pd.concat(found, ignore_index=True)
    return rows[rows["claim"].isin(["C9", "C9-bounds", "C9-source"])][[*_MATCH, *_VALUES]]


def _natural_arms(records: Records, settings: dict[str, float]) -> pd.DataFrame:
    """Replicate controls at depth 20 and every arm at depth 100; random controls average over their seeds."""
    parts = []
    for claim, depth in (("C9-controls", 20), ("C5", 100)):
        wanted = published.figures(claim)
        for family in ("admissibility", "non_usable"):
            study = studies.support(records, family=family, top_k=depth, **settings)  # type: ignore[arg-type]
            means = support.by_family(study.summary).rename(columns={"estimate": "value"})
            names = {**published.PUBLISHED_METRICS, "penalized_non_usable_upper_risk": "loss"}
            rows = wanted[wanted["metric"].str.contains("non_usable") == (family == "non_usable")]
            rows = rows.assign(ours=rows["metric"].map(names))
            parts.append(
                rows.merge(means, left_on=["subject", "ours"], right_on=["arm", "metric"], suffixes=("", "_ours"))
            )
    return pd.concat(parts, ignore_index=True)[[*_MATCH, *_VALUES]]


def _natural_filters(records: Records, settings: dict[str, float]) -> pd.DataFrame:
    arms = ["policy_only", "lifecycle_only", "policy_and_lifecycle", "namespace_dense"]
    study = studies.support(records, arms=arms, reference=arms[-1], top_k=100, **settings)  # type: ignore[arg-type]
    rows = studies.beside_published(study, "macro", "top_100")
    return rows[rows["claim"] == "C10"][[*_MATCH, *_VALUES]]


def _rhelm(**settings: float) -> pd.DataFrame:
    """Replicate the per-source rows of RHELM from the frozen rankings under the packaged encoder."""
    from companion.corpora.frozen import load_frozen

    records = load_frozen("rhelm", arms=_TWO)
    study = studies.support(
        records,
        arms=list(_TWO),
        reference=_TWO[0],
        top_k=20,
        **settings,  # type: ignore[arg-type]
    )
    rows = studies.beside_published(study, "rhelm", "rhelm_top_20")
    return rows[[*_MATCH, *_VALUES]].assign(
        status="replicated", note="same queries and rule, all-MiniLM-L6-v2 instead of Qwen3-Embedding-8B"
    )


def _readers(**settings: float) -> pd.DataFrame:
    from companion.corpora import evidence
    from companion.stages import downstream

    if not evidence.is_present():
        return pd.DataFrame()
    rows = downstream.recomputable(evidence.load(), **settings)  # type: ignore[arg-type]
    return rows.assign(status="recomputed", note="from the released case scores")


def _agrees(table: pd.DataFrame) -> pd.Series:
    """Recomputed: equal, interval ends included where both exist. Replicated: published estimate in our interval."""
    same = np.isclose(table["value"], table["published"], rtol=0, atol=_TOLERANCE)
    for end in ("low", "high"):
        both = table[end].notna() & table[f"published_{end}"].notna()
        same &= ~both | np.isclose(table[end], table[f"published_{end}"], rtol=0, atol=_TOLERANCE)
    inside = (table["low"] <= table["published"]) & (table["published"] <= table["high"])
    agrees = pd.Series(pd.NA, index=table.index, dtype="boolean")
    agrees[table["status"] == "recomputed"] = same[table["status"] == "recomputed"]
    agrees[table["status"] == "replicated"] = inside[table["status"] == "replicated"]
    return agrees
