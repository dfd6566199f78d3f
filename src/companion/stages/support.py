"""Stage one: from a corpus or frozen rankings to scores with intervals, controls, sweeps, and the price in depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from companion import scoring
from companion.bootstrap import LEAST_REPLICATES, MACRO, Resamples, Resampling, estimate
from companion.errors import InputError
from companion.retrieval.registry import base_arm
from companion.stages import published
from companion.tables import Records


@dataclass(frozen=True)
class Study:
    """One population, ranked and scored."""

    records: Records
    per_query: pd.DataFrame
    summary: scoring.Summary

    @property
    def population(self) -> str:
        """Name of the population; estimates of different ones are never averaged."""
        return self.records.population


def study(
    records: Records,
    *,
    reference: str | None = None,
    top_k: int | None = 20,
    resampling: Resampling | None = None,
    **options: Any,
) -> Study:
    """Score the rankings of one population and summarise them.

    Parameters
    ----------
    records : Records
        With rankings.
    reference : str, optional
        The arm that the others are compared with.
    top_k : int, optional
        Depth at which routes are cut; None scores whole routes.
    resampling : Resampling, optional
        Replicates, level and seed of the intervals.
    **options
        ``arms``, ``target_recall``, ``infeasibility_cost``, ``axes``, ``family``, ``anchors``: as for
        :func:`companion.scoring.score_routes`.

    Returns
    -------
    Study
        ``per_query`` from ``score_routes``, ``summary`` from ``summarise``.

    See Also
    --------
    Methods, "Scoring one route".
    """
    per_query = scoring.score_routes(records, top_k=top_k, **options)
    return Study(records, per_query, scoring.summarise(per_query, reference=reference, resampling=resampling))


def live(
    corpus_name: str, arms: Sequence[str], top_k: int, split: str | None = "evaluation", encoder: str = "minilm"
) -> Records:
    """Load a corpus and rank it now."""
    from companion import corpora, retrieval

    corpus = corpora.load(corpus_name).restrict(split)
    rankings, work = retrieval.rank(corpus, list(arms), top_k=top_k, encoder=retrieval.Encoder(model=encoder))
    return corpus.records(rankings=rankings, work=work)


def together(parts: Sequence[Records]) -> Records:
    """Put the frozen runs of the paper's two sources together: the population ``natural-support``."""
    sources = [tuple(part.queries["source"].unique()) for part in parts]
    if any(len(names) != 1 for names in sources) or len(set(sources)) != len(sources):
        raise InputError(f"natural support needs runs of one source each, all different; found {sources}")
    names = ("memories", "queries", "labels", "rankings", "work")
    joined = {name: pd.concat([getattr(part, name) for part in parts], ignore_index=True) for name in names}
    return Records(**joined, population="natural-support", name="natural-support").check()


def beside_published(study: Study, source: str, contrast: str) -> pd.DataFrame:
    """Put our estimates of one source beside the published ones of the same arms, metrics and depth."""
    rows = published.figures().query("contrast == @contrast").reset_index(drop=True)
    pair = rows["subject"].str.partition("-")
    metric = rows["metric"].replace("matched_query_count", "feasible_rate").replace(published.PUBLISHED_METRICS)
    wanted = pd.DataFrame({"arm": pair[0], "reference": pair[2], "metric": metric, "row": rows.index})
    ours = pd.concat([study.summary.intervals.assign(reference=""), study.summary.contrasts])
    ours = ours[ours["source"] == source].astype({"reference": "str"})
    found = wanted.merge(ours, on=["arm", "reference", "metric"]).set_index("row")
    kept = rows.loc[found.index].assign(value=found["estimate"], low=found["low"], high=found["high"])
    counts = study.summary.arms.query("source == @source").set_index("arm")["evaluable"]
    whole = kept["metric"] == "matched_query_count"
    for end in ("value", "low", "high"):
        kept.loc[whole, end] = (kept[end] * kept["subject"].map(counts)).round(6)[whole]
    return kept.sort_index().reset_index(drop=True)


def by_family(summary: scoring.Summary, source: str = MACRO) -> pd.DataFrame:
    """Summarise arms, random controls (ranked once per seed, as ``name:seed``) by the mean and range of their seeds."""
    rows = summary.intervals[summary.intervals["source"] == source]
    rows = rows.assign(family=rows["arm"].map(base_arm))
    groups = rows.groupby(["family", "metric"], sort=False)
    table = groups.agg(
        seeds=("arm", "size"), mean=("estimate", lambda v: v.mean(skipna=False)), smallest=("estimate", "min"),
        largest=("estimate", "max"), sd=("estimate", "std"), low=("low", "first"), high=("high", "first"),
    ).reset_index()  # fmt: skip
    seeded = table["seeds"] > 1
    ends = {
        "low": table["low"].where(~seeded, table["smallest"]),
        "high": table["high"].where(~seeded, table["largest"]),
    }
    spread = np.where(seeded, "over seeds", "over groups")
    table = table.rename(columns={"family": "arm", "mean": "estimate"}).assign(**ends, spread=spread)
    return table[["arm", "seeds", "metric", "estimate", "low", "high", "sd", "spread"]]


def sweep(records: Records, arms: Sequence[str], *, targets: Sequence[float], depths: Sequence[int]) -> pd.DataFrame:
    """Score one frozen ranking under every target recall and depth; nothing is searched again."""
    parts = []
    for target in targets:
        for depth in depths:
            table = scoring.score_routes(records, arms=arms, target_recall=target, top_k=depth)
            means = macro_means(table, ["evidence_recall", "feasible", "prefix_component"])
            parts.append(means.assign(target_recall=target, top_k=depth))
    return pd.concat(parts, ignore_index=True).rename(columns={"feasible": "feasible_rate"})


def macro_means(per_query: pd.DataFrame, columns: Sequence[str], by: Sequence[str] = ("arm",)) -> pd.DataFrame:
    """Average scored routes by the rule, without intervals."""
    table = per_query[per_query["anchors"] > 0].reset_index(drop=True)
    wide = estimate(table, columns, by=by, resampling=Resampling(replicates=1)).query("source == @MACRO")
    return wide.pivot_table(index=list(by), columns="metric", values="estimate", sort=False, dropna=False).reset_index()


def side_by_side(studies: Sequence[Study], arm: str, metrics: Sequence[str]) -> pd.DataFrame:
    """List the same contrast of several populations, each once, without ever averaging over them."""
    rows = []
    for one in {study.population: study for study in studies}.values():
        counts = {"evaluable": int(one.summary.arms["evaluable"].max()), "groups": one.summary.settings["n_clusters"]}
        for metric in metrics:
            row = one.summary.contrast(arm, metric)[["estimate", "low", "high"]]
            rows.append({"population": one.population, "metric": metric, **row.astype(float), **counts})
    return pd.DataFrame(rows)


# --- price in depth: what a search over everything must read to find as much ----

_DEPTHS = np.r_[1:101, 105:1001:5]


@dataclass(frozen=True)
class Price:
    """What it costs to find, without the namespace, as much evidence as its top ``depth`` holds.

    Attributes
    ----------
    curves : DataFrame
        depth, own, everything (macro recall), foreign (share of the first *depth* of everything that is somebody
        else's; NaN below the frozen rankings).
    needed, foreign : Series
        estimate, low, high: the smallest depth of the search over everything whose recall reaches that of the
        namespace at ``depth`` (1,000 where none does), and the foreign share of a prompt that long, or as long as the
        rankings go.
    """

    depth: int
    curves: pd.DataFrame
    needed: pd.Series
    foreign: pd.Series


def price_in_depth(
    records: Records, ranks: pd.DataFrame, depth: int = 20, resampling: Resampling | None = None
) -> Price:
    """Find how deep a search over everything must go to find as much as the namespace does in its top ``depth``.

    Parameters
    ----------
    records : Records
        With rankings of ``global_dense``.
    ranks : DataFrame
        query_id, memory_id, global_dense, namespace_dense: the rank of every anchor in both searches, as from
        ``frozen_anchor_ranks``.
    depth : int
        Depth of the namespace, at most 100.
    resampling : Resampling, optional
        Groups are resampled within their source.
    """
    how = resampling or Resampling()
    own, everything = (_recall_curve(records, ranks, arm) for arm in ("namespace_dense", "global_dense"))
    foreign = _foreign_curve(records).reindex(own.index)
    blocks = [everything.to_numpy(), own[[depth]].to_numpy(), foreign.to_numpy()]
    found, target, share = _macro_replicates(records, own.index, blocks, how)
    reached = found >= target - 1e-12
    place = np.where(reached.any(axis=0), reached.argmax(axis=0), len(_DEPTHS) - 1)
    there = np.take_along_axis(share, np.minimum(_DEPTHS[place], len(share))[None] - 1, axis=0)[0]
    curves = pd.DataFrame({"depth": _DEPTHS, "everything": found[:, 0]})
    curves["own"] = _macro_replicates(records, own.index, [own.to_numpy()], Resampling(replicates=1))[0][:, 0]
    curves["foreign"] = pd.Series(share[:, 0]).reindex(curves.index)
    return Price(depth, curves, _ends(_DEPTHS[place].astype(float), how), _ends(there, how))


def _ends(values: np.ndarray, how: Resampling) -> pd.Series:
    """Estimate first, replicates after it: estimate with percentile ends."""
    tail = (1 - how.confidence) / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail]) if how.replicates >= LEAST_REPLICATES else (np.nan, np.nan)
    return pd.Series({"estimate": values[0], "low": low, "high": high})


def _recall_curve(records: Records, ranks: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Recall of every query at each depth, from the rank of each required item (that of its best memory)."""
    anchors = scoring.anchors_of(records)[["query_id", "memory_id", "anchor_id"]]
    best = anchors.merge(ranks, on=["query_id", "memory_id"]).groupby(["query_id", "anchor_id"])[arm].min()
    found = pd.DataFrame(best.to_numpy()[:, None] <= _DEPTHS, index=best.index, columns=_DEPTHS)
    return found.groupby("query_id").mean()


def _foreign_curve(records: Records) -> pd.DataFrame:
    """Share of the first d memories of the search over everything that belong to another namespace, query by query."""
    rankings = records.rankings
    assert rankings is not None
    rows = rankings[(rankings["arm"] == "global_dense") & (rankings["rank"] <= 100)]
    owner = records.memories.set_index("memory_id")["namespace"]
    asker = records.queries.set_index("query_id")["namespace"]
    foreign = rows["memory_id"].map(owner).to_numpy() != rows["query_id"].map(asker).to_numpy()
    wide = rows.assign(foreign=foreign).pivot(index="query_id", columns="rank", values="foreign").astype(float)
    return wide.cumsum(axis=1) / wide.notna().cumsum(axis=1)


def _macro_replicates(
    records: Records, queries: pd.Index, blocks: Sequence[np.ndarray], how: Resampling
) -> list[np.ndarray]:
    """Macro mean (first column) and its replicates over groups within sources, for each column of each block."""
    about = records.queries.set_index("query_id").loc[queries]
    parts = []
    for source, rows in about.groupby("source", sort=True):
        inside, group = queries.isin(rows.index), rows["group"].to_numpy()
        counts = rows.groupby("group").size().to_numpy(dtype=float)
        weights = Resamples(how.seed, how.replicates, how.confidence, (len(counts),), (str(source),)).weights()
        every = np.vstack([np.ones_like(counts), weights])
        sums = [pd.DataFrame(block[inside]).groupby(group).sum().to_numpy() for block in blocks]
        parts.append([(every @ one / (every @ counts)[:, None]).T for one in sums])
    return [np.mean(block, axis=0) for block in zip(*parts, strict=True)]
