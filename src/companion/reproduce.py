"""Every published figure, with what the companion can say about it today.

Each row ends in one of four states. *recomputed*: the same data gave the number again here, and it must agree.
*replicated*: the same population under another encoder; levels may differ, and ``agrees`` says whether the published
estimate lies in our interval. *needs-data*: public data would settle it, and the note names the command that fetches
them. *quoted*: nothing public settles it, and the note says why.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from companion import agreement, bootstrap, exposure, published, studies, verification
from companion.errors import InputError

STATUSES = ("recomputed", "replicated", "needs-data", "quoted")
_MATCH = ["claim", "subject", "contrast", "metric"]
_VALUES = ["value", "low", "high"]
_TOLERANCE = 1e-9

_NEEDS_MEMOPS = (
    "needs MemOps beside RHELM, and the paper's encoder for equal levels: companion fetch memops; "
    "the RHELM part is replicated under claim C9-source"
)
_NEEDS_EVIDENCE = "needs the released case scores: companion fetch evidence"
_NOTES: dict[str, tuple[str, str]] = {
    "C9": ("needs-data", _NEEDS_MEMOPS),
    "C9-controls": ("needs-data", _NEEDS_MEMOPS),
    "C9-bounds": ("needs-data", _NEEDS_MEMOPS),
    "C9-source": ("needs-data", "needs MemOps and the paper's encoder for equal levels: companion fetch memops"),
    "C5": ("needs-data", _NEEDS_MEMOPS),
    "C10": ("needs-data", _NEEDS_MEMOPS),
    "C10-corruption": (
        "quoted",
        "the published curve has one rate of this channel only, so its bracket cannot be derived from it; "
        "with MemOps it could be computed: companion fetch memops",
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
        "support": [_rhelm],
        "verification": [_agreement, _verification],
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


def _rhelm(**settings: float) -> pd.DataFrame:
    """Replicate the per-source rows of RHELM from the frozen rankings under the packaged encoder."""
    from companion.corpora.frozen import load_frozen

    records = load_frozen("rhelm")
    study = studies.support(
        records,
        arms=["global_dense", "namespace_dense"],
        reference="global_dense",
        top_k=20,
        **settings,  # type: ignore[arg-type]
    )
    rows = studies.beside_published(study, "rhelm", "rhelm_top_20")
    return rows[[*_MATCH, *_VALUES]].assign(
        status="replicated", note="same queries and rule, all-MiniLM-L6-v2 instead of Qwen3-Embedding-8B"
    )


def _readers(**settings: float) -> pd.DataFrame:
    from companion import downstream
    from companion.corpora import evidence

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
