"""From a corpus or frozen rankings to scores, summaries with intervals, and a comparison with the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from companion import bootstrap, logic, published, scoring
from companion.errors import InputError

if TYPE_CHECKING:
    from companion.tables import Records


@dataclass(frozen=True)
class Study:
    """One population, ranked and scored.

    Attributes
    ----------
    records : Records
        Tables, rankings and work.
    per_query : DataFrame
        What ``scoring.score_routes`` gives.
    summary : scoring.Summary
        What ``scoring.summarise`` gives.
    options : dict
        How routes were scored.
    """

    records: Records
    per_query: pd.DataFrame
    summary: scoring.Summary
    options: dict[str, Any]

    @property
    def population(self) -> str:
        """Name of the population; estimates of different ones are never averaged."""
        return self.records.population


def support(
    records: Records,
    *,
    reference: str | None = None,
    axes: Sequence[str] = logic.AXES,
    family: str = "admissibility",
    target_recall: scoring.routes.Recall = 0.8,
    top_k: int | None = 20,
    infeasibility_cost: float = 1.0,
    arms: Sequence[str] | None = None,
    anchors: pd.DataFrame | None = None,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> Study:
    """Score the rankings of one population and summarise them (protocol, sections 2, 3 and 5).

    Parameters
    ----------
    records : Records
        With rankings.
    reference : str, optional
        Arm that the others are compared with.
    axes, family, target_recall, top_k, infeasibility_cost, arms, anchors
        As in ``scoring.score_routes``.
    replicates, confidence, seed
        As in ``scoring.summarise``.

    Returns
    -------
    Study
    """
    options = {
        "axes": tuple(axes),
        "family": family,
        "target_recall": target_recall,
        "top_k": top_k,
        "infeasibility_cost": infeasibility_cost,
        "arms": arms,
    }
    per_query = scoring.score_routes(records, anchors=anchors, **options)  # type: ignore[arg-type]
    summary = scoring.summarise(
        per_query, reference=reference, replicates=replicates, confidence=confidence, seed=seed
    )
    return Study(records, per_query, summary, options)


def live(corpus_name: str, arms: Sequence[str], top_k: int, split: str | None = "evaluation") -> Records:
    """Load a corpus and rank it now.

    Parameters
    ----------
    corpus_name : str
        A name that ``companion corpora`` lists.
    arms : sequence of str
        Names in the registry of retrieval arms.
    top_k : int
        Depth of the routes.
    split : str, optional
        Queries to rank.

    Returns
    -------
    Records
        The corpus with its rankings and the work counted while making them.
    """
    from companion import corpora, retrieval

    corpus = corpora.load(corpus_name).restrict(split)
    rankings, work = retrieval.rank(corpus, list(arms), top_k=top_k)
    return corpus.records(rankings=rankings, work=work)


def decomposition(summary: scoring.Summary, source: str = "macro") -> pd.DataFrame:
    """Split every difference in loss into its infeasibility part and its prefix part.

    Parameters
    ----------
    summary : Summary
        With contrasts.
    source : str, default "macro"

    Returns
    -------
    DataFrame
        ``arm``, ``reference``, ``part`` (``infeasibility`` or ``prefix``), ``estimate``, ``low``, ``high``, ``share``
        of the difference in loss (undefined where that is 0).
    """
    parts = {"infeasibility_component": "infeasibility", "prefix_component": "prefix"}
    rows = summary.contrasts[summary.contrasts["source"] == source]
    if rows.empty:
        raise InputError(f"no contrasts for source {source!r}: name a reference arm and a source of the records")
    total = rows[rows["metric"] == "loss"].set_index("arm")["estimate"]
    table = rows[rows["metric"].isin(parts)].copy()
    table["part"] = table["metric"].map(parts)
    table["share"] = table["estimate"] / table["arm"].map(total.where(total != 0))
    return table[["arm", "reference", "part", "estimate", "low", "high", "share"]].reset_index(drop=True)


def beside_published(study: Study, source: str, contrast: str) -> pd.DataFrame:
    """Put our estimates of one source beside the published ones of the same arms, metrics and depth.

    Parameters
    ----------
    study : Study
    source : str
        Source of our records, such as ``"rhelm"``.
    contrast : str
        The published column ``contrast``, such as ``"rhelm_top_20"``.

    Returns
    -------
    DataFrame
        Published rows with ``value``, ``low`` and ``high`` of ours; rows that we do not compute are left out.
    """
    rows = published.figures()
    rows = rows[rows["contrast"] == contrast]
    found = [_ours(study.summary, row, source) for row in rows.itertuples()]
    table = rows.assign(
        value=[None if hit is None else hit["estimate"] for hit in found],
        low=[None if hit is None else hit["low"] for hit in found],
        high=[None if hit is None else hit["high"] for hit in found],
    )
    kept = table[[hit is not None for hit in found]]
    return kept.astype({"value": float, "low": float, "high": float}).reset_index(drop=True)


def _ours(summary: scoring.Summary, row: Any, source: str) -> pd.Series | dict[str, float] | None:
    """Find our counterpart of a published row, or None where there is none."""
    arm, _, reference = str(row.subject).partition("-")
    if row.metric == "matched_query_count" and not reference:
        return _feasible_count(summary, arm, source)
    metric = published.PUBLISHED_METRICS.get(row.metric)
    if metric is None:
        return None
    table = summary.contrasts if reference else summary.intervals
    found = table[(table["arm"] == arm) & (table["metric"] == metric) & (table["source"] == source)]
    if reference:
        found = found[found["reference"] == reference]
    return None if found.empty else found.iloc[0]


def _feasible_count(summary: scoring.Summary, arm: str, source: str) -> dict[str, float] | None:
    rows = summary.arms[(summary.arms["arm"] == arm) & (summary.arms["source"] == source)]
    if rows.empty:
        return None
    rate, queries = summary.value(arm, "feasible_rate", source), int(rows["evaluable"].iloc[0])
    return {end: round(float(rate[end]) * queries, 6) for end in ("estimate", "low", "high")}
