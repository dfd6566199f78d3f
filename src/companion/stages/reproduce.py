"""Every published figure, with what the companion can say about it today (How to read this book).

*recomputed*: from unit-level outcomes, seeds or strata, by a path that does not read the published value, so that it
can disagree. *consistent*: an identity with other published figures gives it. *replicated*: the same questions and
rule under another encoder. *needs-data*: a fetch would help, and the note says how far. *quoted*: not public.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from companion import bootstrap, exposure
from companion.bootstrap import MACRO, Resampling
from companion.errors import InputError
from companion.stages import headline, identities, published

if TYPE_CHECKING:
    from companion.tables import Records

STATUSES = ("recomputed", "consistent", "replicated", "needs-data", "quoted")
_MATCH = ["claim", "subject", "contrast", "metric"]
_VALUES = ["value", "low", "high"]
_TOLERANCE = 1e-9
_ROUNDED = {("C9-controls", "evidence_recall"): 5e-6, ("C9-typed", "policy_disallowed"): 5e-4}
"""Figures that were released with fewer digits than the rest."""
_TWO = ("global_dense", "namespace_dense")
_FILTERS = ("policy_only", "lifecycle_only", "policy_and_lifecycle")
_LOSS = "penalized_admissibility_upper_risk"

NATURAL_SOURCES = ("rhelm", "memops")
"""The frozen runs that together are the population ``natural-support``."""

_MEMOPS = (
    "companion fetch memops, then companion rank memops --arm all --top-k 100, would replicate it (another encoder)"
)
_EVIDENCE = "companion fetch evidence would make it recomputed, from the released case scores"
_NOTES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("C5", "C9", "C9-controls", "C9-bounds", "C9-source"), ("needs-data", _MEMOPS)),
    **dict.fromkeys(("C9-scope", "C9-typed", "C10"), ("needs-data", _MEMOPS)),
    "C10-corruption": ("quoted", "the released curve has one rate of this channel only, and this rate is not it"),
    "C11": ("quoted", "the models' answers on the 72 cases are not released, only means by stratum and pooled curves"),
    "C13": ("needs-data", _EVIDENCE),
    "C13-by-source": ("needs-data", _EVIDENCE),
    "C13-source": ("needs-data", "needs the corpus and an encoder: companion fetch rhelm"),
    "agreement": ("quoted", "the annotators' records are not public, and more than two answers leave the table open"),
}  # fmt: skip
_CONSTRUCTED = {
    ("C9-typed", "namespace_dense", "wrong_scope"),
    ("C11", "released_metadata_reference", "evidence_recall"),
    ("C11", "released_metadata_reference", "feasible_rate"),
}
"""Figures that could not be anything else, whatever the data."""


def reproduce(stage: str | None = None, resampling: Resampling | None = None) -> pd.DataFrame:
    """Return every published figure with our value, interval, status and whether the two agree.

    Parameters
    ----------
    stage : {"support", "verification", "exposure", "readers"}, optional
        Keep one stage.
    resampling : Resampling, optional
        Of the intervals.

    Returns
    -------
    DataFrame
        ``claim``, ``stage``, ``population``, ``subject``, ``contrast``, ``metric``, ``published``, ``published_low``,
        ``published_high``, ``value``, ``low``, ``high``, ``status``, ``agrees`` (boolean, missing where nothing was
        computed), ``degenerate`` (bool: 0 or 1 by construction), ``note`` (the file, the identity, or what is lacking).
        *agrees* is: recomputed, equal to 1e-9, with interval ends where another draw of as many replicates may put
        them; consistent, equal to 1e-9; replicated, published estimate inside our interval.

    Raises
    ------
    InputError
        For an unknown stage.

    See Also
    --------
    How to read this book, "What is computed and what is quoted".

    Examples
    --------
    >>> table = reproduce("exposure", Resampling(replicates=500))
    >>> table["status"].unique().tolist(), bool(table["agrees"].all())
    (['recomputed'], True)
    """
    table = published.figures().drop(columns="n")
    stages = list(dict.fromkeys(table["stage"]))
    if stage is not None and stage not in stages:
        raise InputError(f"stage {stage!r}: expected one of {', '.join(stages)}")
    table = table if stage is None else table[table["stage"] == stage]
    how = resampling or Resampling()
    ours = _computed(how).drop_duplicates(_MATCH)
    result = table.merge(ours, on=_MATCH, how="left", validate="1:1")
    missing = result["status"].isna()
    for position, name in enumerate(("status", "note")):
        result.loc[missing, name] = [_NOTES[claim][position] for claim in result.loc[missing, "claim"]]
    result["agrees"] = _agrees(result, how)
    result["degenerate"] = _degenerate(result)
    columns = [*table.columns, *_VALUES, "status", "agrees", "degenerate", "note"]
    return result[columns].reset_index(drop=True)


def recomputed(resampling: Resampling | None = None) -> pd.DataFrame:
    """Compute every figure that released outcomes give, without looking at what was published."""
    how = resampling or Resampling()
    makers = [_headline, _seeds, _brackets, _strata, _controlled, _exposure, _readers]
    columns = [*_MATCH, *_VALUES, "note"]
    return pd.concat([part for make in makers if len(part := make(how))], ignore_index=True)[columns]


def _computed(how: Resampling) -> pd.DataFrame:
    first = _with_draws(recomputed, how).assign(status="recomputed")
    parts = [first, _rhelm(how), _natural(how), identities.consistent().assign(status="consistent")]
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def _with_draws(make: Callable[[Resampling], pd.DataFrame], how: Resampling) -> pd.DataFrame:
    """Add how far an interval end moves between two draws of as many replicates: four standard errors of its level."""
    tail = (1 - how.confidence) / 2
    slack = 8 * math.sqrt(2 * tail * (1 - tail) / how.replicates)
    table = make(how)
    for side, level in (("outer", min(how.confidence + slack, 1 - 1e-6)), ("inner", max(how.confidence - slack, 1e-6))):
        other = make(dataclasses.replace(how, confidence=level))
        table = table.assign(**{f"{end}_{side}": other[end] for end in ("low", "high")})
    return table


def _keyed(table: pd.DataFrame, note: str, **keys: Any) -> pd.DataFrame:
    return table.rename(columns={"estimate": "value"}).reindex(columns=[*_MATCH, *_VALUES]).assign(note=note, **keys)


def _headline(how: Resampling) -> pd.DataFrame:
    """C9 at top-20 and C13-source from the 87 groups."""
    names = {"loss": _LOSS, "prefix_component": "feasible_prefix_component"}
    table = headline.differences(resampling=how).query("metric != 'loss_without_scope'")
    table = table.assign(metric=table["metric"].replace(names))
    note = "mean over the namespace groups of support_group_deltas.csv, groups resampled within source"
    pair = "-".join(reversed(_TWO))
    parts = [("C9", MACRO, "top_20"), ("C13-source", "rhelm", "rhelm_top_20")]
    rows = [_keyed(table[table["source"] == s], note, claim=c, subject=pair, contrast=d) for c, s, d in parts]
    return pd.concat(rows)


def _seeds(how: Resampling) -> pd.DataFrame:
    names = {"loss": _LOSS, "upper_bound": "conditional_upper_risk"}
    names |= {"any_violation": "any_known_violation", "violation_count": "known_violation_count"}
    seeds = published.table("control_seeds").drop(columns="seed").groupby("arm").mean()
    table = seeds.rename(columns=names).melt(ignore_index=False, var_name="metric", value_name="value").reset_index()
    table = table.rename(columns={"arm": "subject"})
    return _keyed(table, "mean of the ten seeds of control_seeds.csv", claim="C9-controls", contrast="top_20")


def _brackets(how: Resampling) -> pd.DataFrame:
    """C10-corruption: the last rate in a row that is no worse, and the first that is; whole grids only."""
    from companion.stages import corruption

    curves = corruption.published_curves()
    whole = curves.groupby("channel")["rate"].transform("nunique") == len(corruption.RATES)
    table = corruption.break_even(curves[whole], corruption.published_references()).drop(columns="reference")
    table = table.melt("channel", var_name="metric", value_name="value").rename(columns={"channel": "subject"})
    note = "along the curve of metadata_corruption.csv (ten seeds averaged), against the unfiltered route"
    return _keyed(table.dropna(subset="value"), note, claim="C10-corruption", contrast="top_100")


def _strata(how: Resampling) -> pd.DataFrame:
    from companion.stages import verification

    means = verification.stratum_means("roc_auc").rename_axis("subject").reset_index(name="value")
    note = "mean over the strata of verification_strata.csv in which a violation exists"
    return _keyed(means, note, claim="C11", contrast="selected_operating_point", metric="roc_auc")


def _controlled(how: Resampling) -> pd.DataFrame:
    from companion.stages import verification

    pairs = verification.pair_measures(verification.published_pairs(), resampling=how)
    controls = verification.control_measures()
    controls = controls[~controls["metric"].isin(pairs["metric"])]
    notes = "controlled_verification_{}.csv, decision by decision"
    keys = {"claim": "C11-controlled", "contrast": "pairs"}
    return pd.concat(
        [
            _keyed(part.rename(columns={"verifier": "subject"}), notes.format(name), **keys)
            for part, name in ((pairs, "pairs"), (controls, "controls"))
        ]
    )


def _exposure(how: Resampling) -> pd.DataFrame:
    table = exposure.summarise(published.table("exposure_outcomes"), resampling=how)
    table = table.rename(columns={"reader": "subject"})
    rows = _keyed(table, "768 paired units of exposure_outcomes.csv, scenarios resampled within their axis")
    return rows.drop(columns="claim").merge(published.figures()[_MATCH].query("claim in ['C8', 'C12']"), on=_MATCH[1:])


def _readers(how: Resampling) -> pd.DataFrame:
    from companion.corpora import evidence
    from companion.stages import downstream

    if not evidence.is_present():
        return pd.DataFrame()
    rows = downstream.published_rows(evidence.load_evidence(), how)
    return rows[[*_MATCH, *_VALUES]].assign(note="from the released case scores, groups resampled within source")


def reproducing_seeds(seeds: range = range(12), replicates: int = bootstrap.DEFAULT_REPLICATES) -> list[int]:
    """List the seeds under which every published exposure interval comes out to the last digit.

    The ends are discrete, and some hang on the draw: agreement at seed 0 alone would be no evidence.
    """
    rows = published.figures().query("claim in ['C8', 'C12']")
    kept = []
    for seed in seeds:
        ours = _exposure(Resampling(replicates=replicates, seed=seed)).merge(rows, on=_MATCH)
        pairs = (("value", "published"), ("low", "published_low"), ("high", "published_high"))
        if all(np.allclose(ours[a], ours[b], rtol=0, atol=_TOLERANCE) for a, b in pairs):
            kept.append(seed)
    return kept


def _rhelm(how: Resampling) -> pd.DataFrame:
    """Replicate the per-source rows of RHELM from the frozen rankings under the packaged encoder."""
    from companion.corpora.frozen import load_frozen
    from companion.stages import support

    study = support.study(load_frozen("rhelm", arms=_TWO), arms=_TWO, reference=_TWO[0], resampling=how)
    rows = support.beside_published(study, "rhelm", "rhelm_top_20")
    note = "same questions and rule, all-MiniLM-L6-v2 instead of Qwen3-Embedding-8B"
    return rows[[*_MATCH, *_VALUES]].assign(status="replicated", note=note)


def _natural(how: Resampling) -> pd.DataFrame:
    """Replicate the two-source rows where rankings of MemOps were frozen too."""
    from companion.corpora.frozen import frozen, load_frozen
    from companion.stages import support

    if not set(NATURAL_SOURCES) <= set(frozen()):
        return pd.DataFrame()
    records = support.together([load_frozen(name) for name in NATURAL_SOURCES])

    def beside(arms: tuple[str, ...], depth: int, source: str, contrast: str, claims: tuple[str, ...]) -> pd.DataFrame:
        study = support.study(records, arms=arms, reference=arms[0], top_k=depth, resampling=how)
        rows = support.beside_published(study, source, contrast)
        return rows[rows["claim"].isin(claims)]

    parts = [beside(_TWO, depth, MACRO, f"top_{depth}", ("C9", "C9-bounds")) for depth in (10, 20, 50, 100)]
    parts.append(beside(_TWO, 20, "memops", "memops_top_20", ("C9-source",)))
    parts.append(beside((_TWO[1], *_FILTERS), 100, MACRO, "top_100", ("C10",)))
    rows = pd.concat([*parts, _natural_arms(records, how)], ignore_index=True)[[*_MATCH, *_VALUES]]
    return rows.assign(status="replicated", note="both sources ranked here, under the encoder named in their meta.json")


def _natural_arms(records: Records, how: Resampling) -> pd.DataFrame:
    """Replicate controls at depth 20 and every arm at depth 100; random controls average over their seeds."""
    from companion.stages import support

    names = {**published.PUBLISHED_METRICS, "penalized_non_usable_upper_risk": "loss"}
    parts = []
    for claim, depth in (("C9-controls", 20), ("C5", 100)):
        wanted = published.figures(claim)
        for family in ("admissibility", "non_usable"):
            study = support.study(records, family=family, top_k=depth, resampling=how)
            means = support.by_family(study.summary).rename(columns={"estimate": "value", "metric": "ours"})
            rows = wanted[wanted["metric"].str.contains("non_usable") == (family == "non_usable")]
            rows = rows.assign(ours=rows["metric"].map(names), arm=rows["subject"])
            parts.append(rows.merge(means, on=["arm", "ours"]))
    return pd.concat(parts, ignore_index=True)


def _agrees(table: pd.DataFrame, how: Resampling) -> pd.Series:
    """Say for each row whether it agrees, by the rule of its status."""
    near = pd.Series([_ROUNDED.get(key, _TOLERANCE) for key in zip(table["claim"], table["metric"], strict=True)])
    same = ((table["value"] - table["published"]).abs() <= near).to_numpy()
    ends = np.ones(len(table), dtype=bool)
    for end in ("low", "high"):
        quoted, sides = table[f"published_{end}"], table[[f"{end}_outer", f"{end}_inner"]]
        inside = quoted.between(sides.min(axis=1) - _TOLERANCE, sides.max(axis=1) + _TOLERANCE)
        # Intervals of another level, or none, are not compared.
        ends &= (inside | quoted.isna() | sides.isna().any(axis=1) | (how.confidence != 0.95)).to_numpy()
    held = ((table["low"] <= table["published"]) & (table["published"] <= table["high"])).to_numpy()
    rules = {"recomputed": same & ends, "consistent": same, "replicated": held}
    agrees = pd.Series(pd.NA, index=table.index, dtype="boolean")
    for status, holds in rules.items():
        rows = (table["status"] == status).to_numpy()
        agrees[rows] = holds[rows]
    return agrees


def _degenerate(table: pd.DataFrame) -> pd.Series:
    """Mark what is 0 = 0 or 1 = 1 by construction: replicated shares of a source in which the axis cannot fail."""
    keys = pd.Series(list(zip(table["claim"], table["subject"], table["metric"], strict=True)), index=table.index)
    trivial = (table["value"] == table["published"]) & table["published"].isin([0.0, 1.0])
    return (trivial & (table["status"] == "replicated")) | keys.isin(list(_CONSTRUCTED))
