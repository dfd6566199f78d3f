"""Which unresolved labels, if settled, would narrow the bounds most.

The macro width of an arm's bounds is the mean, over sources, of the mean, over feasible queries, of the unresolved
share of the matched prefix. An unresolved item of a prefix of N items therefore adds exactly
``1 / (N x feasible queries of the source x sources)``, and settling it takes exactly that away. Settling one *axis*
settles the item at once if the answer is no; if it is yes, only when no other axis is open. One effect reaches
further: a relevant memory whose last open axis turns out yes becomes an anchor, which changes what the routes must
find. Those queries are scored again, so that every number here is what scoring would give.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from companion import logic
from companion.labels import PairLabels, label_ranked
from companion.scoring import score_routes
from companion.tables import Records

_KEY = ["query_id", "memory_id", "axis"]
_EFFECTS = ["narrows_if_no", "narrows_if_yes"]
_CLONES = 400


def macro_width(per_query: pd.DataFrame) -> pd.Series:
    """Return each arm's macro bound width: upper minus lower, feasible queries within source, then sources."""
    means = _sums(per_query)["mean"].groupby(level="arm", sort=False).agg(lambda part: part.mean(skipna=False))
    return means.reindex(pd.Index(dict.fromkeys(per_query["arm"]), name="arm"))


def narrowing(records: Records, per_query: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Say for every unresolved label how much the macro bounds would narrow if it were settled.

    Parameters
    ----------
    records : Records
        With rankings.
    per_query : DataFrame
        As from ``score_routes`` with the same options.

    Returns
    -------
    DataFrame
        ``arm``, ``query_id``, ``memory_id``, ``axis``, ``rank``, ``prefix``, ``open_axes``, ``narrows_if_no``,
        ``narrows_if_yes``, ``changes_anchors``; the surest effect first.
    """
    rows = _inside(records, per_query).merge(_weights(per_query), on=["arm", "query_id"])
    weight = rows["weight"] / rows["prefix"]
    rows = rows.assign(narrows_if_no=weight, narrows_if_yes=weight.where(rows["open_axes"] == 1, 0.0))
    open_ = rows[list(logic.AXES)].isna().to_numpy()
    at, axis = np.nonzero(open_)
    table = rows.iloc[at].reset_index(drop=True).assign(axis=np.array(logic.AXES)[axis])
    table = _with_new_anchors(table.drop(columns=[*logic.AXES, "weight"]), records, per_query, options)
    sure, most = table[_EFFECTS].min(axis=1), table[_EFFECTS].max(axis=1)
    order = ["sure", "most", "arm", *_KEY]
    table = table.assign(sure=sure, most=most).sort_values(order, ascending=[False, False, True, True, True, True])
    columns = ["arm", *_KEY, "rank", "prefix", "open_axes", *_EFFECTS, "changes_anchors"]
    return table[columns].reset_index(drop=True)


def over_arms(table: pd.DataFrame) -> pd.DataFrame:
    """Add the effects of one label over all arms."""
    if table.empty:
        return pd.DataFrame(columns=[*_KEY, "arms", "sure", "most"])
    grouped = table.groupby(_KEY, sort=False)
    sums = grouped[_EFFECTS].sum().assign(arms=grouped["arm"].nunique()).reset_index()
    sums["sure"], sums["most"] = sums[_EFFECTS].min(axis=1), sums[_EFFECTS].max(axis=1)
    order = [False, False, True, True, True]
    sums = sums.sort_values(["sure", "most", *_KEY], ascending=order, ignore_index=True)
    return sums[[*_KEY, "arms", "sure", "most"]]


def remaining(table: pd.DataFrame, widths: pd.Series) -> pd.DataFrame:
    """Say how wide the bounds still are after settling the labels that matter most, one after the other."""
    sure = table.assign(sure=table[_EFFECTS].min(axis=1))
    moving = sure.groupby(_KEY)["changes_anchors"].transform("any").astype(bool)
    sure = sure[~moving & (sure["sure"] > 0)]
    order = over_arms(sure)[_KEY].assign(place=lambda frame: np.arange(1, len(frame) + 1))
    taken = sure.merge(order, on=_KEY).pivot_table(index="place", columns="arm", values="sure", aggfunc="sum")
    taken = taken.reindex(index=np.arange(len(order) + 1), columns=widths.index).fillna(0.0).cumsum()
    left = (widths - taken).rename_axis(index="labels").reset_index().melt("labels", var_name="arm", value_name="width")
    return left[["arm", "labels", "width"]].sort_values(["arm", "labels"], ignore_index=True)


def _sums(per_query: pd.DataFrame) -> pd.DataFrame:
    """Return summed widths, feasible queries and mean width of each arm and source that recall can be judged of."""
    parts = pd.concat([per_query[["arm", "source"]].reset_index(drop=True), _shares(per_query)], axis=1)
    table = parts.groupby(["arm", "source"], sort=False).sum()
    return table[table["evaluable"] > 0].assign(mean=lambda t: t["width"] / t["feasible"].where(t["feasible"] > 0))


def _shares(per_query: pd.DataFrame) -> pd.DataFrame:
    """Return what each query adds to its source's sums: width, feasible and evaluable."""
    evaluable = (per_query["anchors"] > 0).to_numpy(float)
    feasible = per_query["feasible"].fillna(0).to_numpy(float) * evaluable
    width = (per_query["upper_bound"] - per_query["lower_bound"]).where(feasible > 0, 0.0).to_numpy(float)
    return pd.DataFrame({"width": width, "feasible": feasible, "evaluable": evaluable})


def _inside(records: Records, per_query: pd.DataFrame) -> pd.DataFrame:
    """Return the unresolved items of feasible matched prefixes, with their axes."""
    assert records.rankings is not None  # they have been scored
    feasible = per_query.loc[per_query["feasible"].fillna(0) == 1, ["arm", "query_id", "matched_prefix"]]
    rows = records.rankings.merge(feasible, on=["arm", "query_id"])
    rows = label_ranked(records, rows[rows["rank"] <= rows["matched_prefix"]])
    rows = rows[rows["admissible"].isna()].reset_index(drop=True)
    rows["open_axes"] = rows[list(logic.AXES)].isna().sum(axis=1)
    rows["prefix"] = rows["matched_prefix"].astype("int64")
    return rows[["arm", "query_id", "memory_id", "rank", "prefix", "open_axes", *logic.AXES]]


def _weights(per_query: pd.DataFrame) -> pd.DataFrame:
    """Return what one query's width weighs in its arm's macro width."""
    feasible = per_query[per_query["feasible"].fillna(0) == 1]
    within = feasible.groupby(["arm", "source"])["query_id"].transform("size")
    sources = feasible.groupby("arm")["source"].transform("nunique")
    return feasible[["arm", "query_id"]].assign(weight=1.0 / (within * sources))


# --- labels that make an anchor ------------------------------------------------------------------------------------


def _with_new_anchors(table: pd.DataFrame, records: Records, per_query: pd.DataFrame, options: Any) -> pd.DataFrame:
    """Replace the effect of a yes that makes an anchor by that of scoring its query again."""
    candidates = _candidates(records)
    if candidates.empty:
        return table.assign(changes_anchors=False)
    table = table.merge(_rescored(candidates, records, per_query, options), on=["arm", *_KEY], how="outer")
    changed = table["changes_anchors"].fillna(False).astype(bool)
    table["narrows_if_yes"] = table["exact"].where(changed, table["narrows_if_yes"])
    table["narrows_if_no"] = table["narrows_if_no"].astype(float).fillna(0.0)
    table["open_axes"] = table["open_axes"].fillna(1)
    table = table.assign(changes_anchors=changed).astype({"rank": "Int64", "prefix": "Int64", "open_axes": "int64"})
    idle = (table["narrows_if_no"] == 0) & (table["narrows_if_yes"].fillna(1) == 0)
    return table[~idle].reset_index(drop=True)


def _candidates(records: Records) -> pd.DataFrame:
    """Find labelled pairs that are relevant and lack exactly one axis, all others being yes."""
    pairs = records.labels[["query_id", "memory_id"]].drop_duplicates(ignore_index=True)
    index = PairLabels.from_records(records)
    values = index.lookup(*index.encode(pairs, "labels"))
    missing = values[list(logic.AXES)].isna()
    last = values["relevant"].fillna(False) & (missing.sum(axis=1) == 1) & logic.status(values).isna()
    axis = np.array(logic.AXES)[missing.to_numpy().argmax(axis=1)] if len(pairs) else np.array([], dtype=str)
    return pairs.assign(axis=axis)[last.to_numpy(bool)].reset_index(drop=True)


def _rescored(candidates: pd.DataFrame, records: Records, per_query: pd.DataFrame, options: Any) -> pd.DataFrame:
    """Score each candidate's query as a query of its own in which the label is settled as yes."""
    index, step = PairLabels.from_records(records), max(_CLONES, len(candidates) // 20)  # every part reads all tables
    parts = [candidates.iloc[first : first + step] for first in range(0, len(candidates), step)]
    after = pd.concat([score_routes(_clones(records, index, part), **options) for part in parts], ignore_index=True)
    keys = candidates.iloc[after["query_id"].astype("int64").to_numpy()].reset_index(drop=True)
    rows = pd.concat([after[["arm", "source"]], keys, _shares(after)], axis=1)
    old = pd.concat([per_query[["arm", "query_id"]], _shares(per_query)], axis=1)
    rows = rows.merge(old, on=["arm", "query_id"], suffixes=("_new", "_old"))
    return rows[["arm", *_KEY]].assign(exact=_change(rows, per_query), changes_anchors=True)


def _change(rows: pd.DataFrame, per_query: pd.DataFrame) -> pd.Series:
    """Return the macro width before minus after, when one query's share in its source's sums is exchanged."""
    sums = _sums(per_query)
    means = sums["mean"].groupby(level="arm")
    arms = (means.sum(min_count=0).where(means.count() == means.size()), means.size())
    total, sources = (rows["arm"].map(values).fillna(0) for values in arms)
    base = sums.reindex(pd.MultiIndex.from_frame(rows[["arm", "source"]]))
    was = base["evaluable"].notna().to_numpy()
    new = {
        n: base[n].fillna(0).to_numpy() - rows[f"{n}_old"] + rows[f"{n}_new"]
        for n in ("width", "feasible", "evaluable")
    }
    counted = new["evaluable"] > 0
    mean = (new["width"] / new["feasible"].where(new["feasible"] > 0)).where(counted, 0.0)
    after = (total - np.where(was, base["mean"], 0.0) + mean) / (sources - was + counted)
    return total / sources - after


def _clones(records: Records, index: PairLabels, candidates: pd.DataFrame) -> Records:
    """Repeat each candidate's query under the candidate's number, with its label settled."""
    own = candidates.assign(clone=candidates.index.astype("str")).rename(columns={"memory_id": "settled"})

    def cloned(table: pd.DataFrame) -> pd.DataFrame:
        made = own[["query_id", "clone"]].merge(table, on="query_id")
        return made.drop(columns="query_id").rename(columns={"clone": "query_id"})

    pairs = own.merge(records.labels[["query_id", "memory_id", "anchor_id"]], on="query_id")
    values = index.lookup(*index.encode(pairs, "labels"))
    for axis in logic.AXES:
        values[axis] = values[axis].mask(pairs["memory_id"].eq(pairs["settled"]) & pairs["axis"].eq(axis), True)
    labels = pd.concat([pairs[["clone", "memory_id", "anchor_id"]], values], axis=1).rename(
        columns={"clone": "query_id"}
    )
    assert records.rankings is not None
    queries, rankings = cloned(records.queries), cloned(records.rankings)
    return replace(records, queries=queries, labels=labels, rankings=rankings, work=None)
