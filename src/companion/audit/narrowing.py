"""Which unresolved labels, if settled, would narrow the bounds most.

The macro width of an arm's bounds is the mean, over sources, of the mean, over feasible queries, of the unresolved
share of the matched prefix. An unresolved item of a prefix of N items therefore adds exactly
``1 / (N x feasible queries of the source x sources)``, and settling it takes exactly that away. Settling one *axis*
settles the item at once if the answer is no; if it is yes, only when no other axis is open. One effect reaches
further: a relevant memory whose last open axis turns out yes becomes an anchor, which changes what the routes must
find. Those queries are scored again, so that every number here is what scoring would give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from companion import logic
from companion.labels import encode
from companion.scoring import PairLabels, label_ranked, score_routes
from companion.tables import Records

COLUMNS = (
    "arm", "query_id", "memory_id", "axis", "rank", "prefix", "open_axes", "narrows_if_no", "narrows_if_yes",
    "changes_anchors",
)  # fmt: skip
_CLONES = 400


def macro_width(per_query: pd.DataFrame) -> pd.Series:
    """Return each arm's macro bound width: upper minus lower, feasible queries within source, then sources."""
    arms = pd.Index(dict.fromkeys(per_query["arm"]), name="arm")
    return _Sums.of(per_query, strict=True).width().reindex(arms)


def narrowing(records: Records, per_query: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Say for every unresolved label how much the macro bounds would narrow if it were settled."""
    inside = _inside(records, per_query, options.get("top_k"))
    rows = inside.merge(_weights(per_query), on=["arm", "query_id"])
    rows["weight"] = rows["weight"] / rows["prefix"]
    long = rows.loc[rows.index.repeat(rows["open_axes"])].reset_index(drop=True)
    long["axis"] = np.concatenate([row for row in rows["axes"]]) if len(rows) else pd.Series(dtype="str")
    long["narrows_if_no"] = long["weight"]
    long["narrows_if_yes"] = long["weight"].where(long["open_axes"] == 1, 0.0)
    table = _with_new_anchors(long, records, per_query, options)
    table["sure"] = table[["narrows_if_no", "narrows_if_yes"]].min(axis=1)
    table["most"] = table[["narrows_if_no", "narrows_if_yes"]].max(axis=1)
    table = table.sort_values(
        ["sure", "most", "arm", "query_id", "memory_id", "axis"], ascending=[False, False, True, True, True, True]
    )
    return table[list(COLUMNS)].reset_index(drop=True)


def over_arms(table: pd.DataFrame) -> pd.DataFrame:
    """Add the effects of one label over all arms."""
    if table.empty:
        return pd.DataFrame(columns=["query_id", "memory_id", "axis", "arms", "sure", "most"])
    grouped = table.groupby(["query_id", "memory_id", "axis"], sort=False)
    sums = grouped.agg(
        arms=("arm", "nunique"), no=("narrows_if_no", "sum"), yes=("narrows_if_yes", "sum")
    ).reset_index()
    sums["sure"], sums["most"] = sums[["no", "yes"]].min(axis=1), sums[["no", "yes"]].max(axis=1)
    order = ["sure", "most", "query_id", "memory_id", "axis"]
    sums = sums.sort_values(order, ascending=[False, False, True, True, True], ignore_index=True)
    return sums[["query_id", "memory_id", "axis", "arms", "sure", "most"]]


@dataclass(frozen=True)
class _Sums:
    """Per arm and source: summed widths and number of feasible queries, and number of evaluable ones."""

    table: pd.DataFrame
    strict: bool

    @classmethod
    def of(cls, per_query: pd.DataFrame, strict: bool) -> _Sums:
        parts = pd.concat([per_query[["arm", "source"]].reset_index(drop=True), _shares(per_query)], axis=1)
        return cls(parts.groupby(["arm", "source"], sort=False).sum(), strict)

    def width(self) -> pd.Series:
        table = self.table[self.table["evaluable" if self.strict else "feasible"] > 0]
        mean = (table["width"] / table["feasible"].where(table["feasible"] > 0)).rename("width")
        grouped = mean.groupby(level="arm", sort=False)
        return grouped.mean().where(grouped.count() == grouped.size())


def _inside(records: Records, per_query: pd.DataFrame, top_k: int | None) -> pd.DataFrame:
    """Return the unresolved items of feasible matched prefixes with their open axes."""
    assert records.rankings is not None  # they have been scored
    feasible = per_query.loc[per_query["feasible"].fillna(0) == 1, ["arm", "query_id", "matched_prefix"]]
    rows = records.rankings.merge(feasible, on=["arm", "query_id"])
    rows = rows[rows["rank"] <= rows["matched_prefix"]]
    if top_k is not None:
        rows = rows[rows["rank"] <= top_k]
    rows = label_ranked(records, rows)
    rows = rows[rows["admissible"].isna()].reset_index(drop=True)
    missing = rows[list(logic.AXES)].isna().to_numpy()
    rows["axes"] = [list(np.array(logic.AXES)[row]) for row in missing]
    rows["open_axes"] = missing.sum(axis=1)
    rows["prefix"] = rows["matched_prefix"].astype("int64")
    return rows[["arm", "query_id", "memory_id", "rank", "prefix", "axes", "open_axes"]]


def _weights(per_query: pd.DataFrame) -> pd.DataFrame:
    """Return what one query's width weighs in its arm's macro width."""
    feasible = per_query[per_query["feasible"].fillna(0) == 1]
    within = feasible.groupby(["arm", "source"])["query_id"].transform("size")
    sources = feasible.groupby("arm")["source"].transform("nunique")
    return feasible[["arm", "query_id"]].assign(weight=1.0 / (within * sources))


def _with_new_anchors(
    long: pd.DataFrame, records: Records, per_query: pd.DataFrame, options: dict[str, Any]
) -> pd.DataFrame:
    """Replace the effect of a yes that makes an anchor by that of scoring its query again."""
    columns = [c for c in COLUMNS if c != "changes_anchors"]
    table = long.reindex(columns=columns).assign(changes_anchors=False)
    candidates = _candidates(records)
    if candidates.empty:
        return table
    exact = _rescored(candidates, records, per_query, options)
    key = ["arm", "query_id", "memory_id", "axis"]
    table = table.merge(exact, on=key, how="outer")
    changed = table["exact"].notna() | table["anchors_change"].fillna(False).astype(bool)
    table["narrows_if_yes"] = table["exact"].where(changed, table["narrows_if_yes"])
    table["narrows_if_no"] = table["narrows_if_no"].astype(float).fillna(0.0)
    table["changes_anchors"] = changed
    table["open_axes"] = table["open_axes"].fillna(1).astype("int64")
    table["rank"], table["prefix"] = table["rank"].astype("Int64"), table["prefix"].astype("Int64")
    idle = (table["narrows_if_no"] == 0) & (table["narrows_if_yes"].fillna(1) == 0)
    return table[~idle].reset_index(drop=True)


def _candidates(records: Records) -> pd.DataFrame:
    """Find labelled pairs that are relevant and lack exactly one axis, all others being yes."""
    pairs = records.labels[["query_id", "memory_id"]].drop_duplicates(ignore_index=True)
    if pairs.empty:
        return pairs.assign(axis=pd.Series(dtype="str"))
    known = PairLabels.from_records(records)
    values = known.lookup(
        encode(pairs["query_id"], known.queries, "labels", "query_id"),
        encode(pairs["memory_id"], known.memories, "labels", "memory_id"),
    )
    missing = values[list(logic.AXES)].isna()
    last = values["relevant"].fillna(False) & (missing.sum(axis=1) == 1) & logic.status(values).isna()
    axis = missing.to_numpy().argmax(axis=1)
    found = pairs.assign(axis=np.array(logic.AXES)[axis])[last.to_numpy(bool)]
    return found.reset_index(drop=True)


def _rescored(
    candidates: pd.DataFrame, records: Records, per_query: pd.DataFrame, options: dict[str, Any]
) -> pd.DataFrame:
    """Score each candidate's query as a query of its own in which the label is settled as yes."""
    parts = [
        score_routes(_clones(records, candidates.iloc[first : first + _CLONES]), **options)
        for first in range(0, len(candidates), _CLONES)
    ]
    after = pd.concat(parts, ignore_index=True)
    clone = after["query_id"].astype("int64").to_numpy()
    keys = candidates.iloc[clone].reset_index(drop=True)
    rows = pd.concat([after[["arm", "source"]], keys, _shares(after)], axis=1)
    old = pd.concat([per_query[["arm", "query_id"]], _shares(per_query)], axis=1)
    rows = rows.merge(old, on=["arm", "query_id"], suffixes=("_new", "_old"))
    rows["exact"] = _change(rows, per_query)
    return rows[["arm", "query_id", "memory_id", "axis", "exact"]].assign(anchors_change=True)


def _shares(per_query: pd.DataFrame) -> pd.DataFrame:
    """Return what each query adds to its source's sums: width, feasible and evaluable."""
    evaluable = (per_query["anchors"] > 0).to_numpy(float)
    feasible = per_query["feasible"].fillna(0).to_numpy(float) * evaluable
    width = (per_query["upper_bound"] - per_query["lower_bound"]).where(feasible > 0, 0.0).to_numpy(float)
    return pd.DataFrame({"width": width, "feasible": feasible, "evaluable": evaluable})


def _change(rows: pd.DataFrame, per_query: pd.DataFrame) -> pd.Series:
    """Return the macro width before minus after, when one query's share in its source's sums is exchanged."""
    macro = _Sums.of(per_query, strict=True).width()
    loose = _Sums.of(per_query, strict=False).width()
    base = _Sums.of(per_query, strict=True).table.reset_index()
    base["strict"] = base["arm"].map(macro).notna()
    base["counted"] = np.where(base["strict"], base["evaluable"] > 0, base["feasible"] > 0)
    base["mean"] = (base["width"] / base["feasible"].where(base["feasible"] > 0)).where(base["counted"])
    base["hole"] = base["counted"] & base["mean"].isna()
    arms = base.groupby("arm")[["mean", "counted", "hole"]].sum().add_suffix("_arm").reset_index()
    table = rows.merge(base, on=["arm", "source"], how="left").merge(arms, on="arm", how="left")
    new = {
        name: table[name] - table[f"{name}_old"] + table[f"{name}_new"] for name in ("width", "feasible", "evaluable")
    }
    counted = np.where(table["strict"], new["evaluable"] > 0, new["feasible"] > 0)
    mean = (new["width"] / new["feasible"].where(new["feasible"] > 0)).where(counted)
    holes = table["hole_arm"] - table["hole"] + (counted & mean.isna())
    total = table["mean_arm"] - table["mean"].fillna(0.0) + mean.fillna(0.0)
    sources = table["counted_arm"] - table["counted"] + counted
    before = table["arm"].map(macro).fillna(table["arm"].map(loose))
    after = (total / sources.where(sources > 0)).where(holes == 0)
    return before - after


def _clones(records: Records, candidates: pd.DataFrame) -> Records:
    """Repeat each candidate's query under the candidate's number, with its label settled."""
    own = candidates[["query_id"]].assign(clone=candidates.index.astype("str"))

    def cloned(table: pd.DataFrame) -> pd.DataFrame:
        return own.merge(table, on="query_id").drop(columns="query_id").rename(columns={"clone": "query_id"})

    labels = cloned(records.labels)
    for axis in logic.AXES:
        hits = candidates[candidates["axis"] == axis]
        place = pd.MultiIndex.from_arrays([hits.index.astype("str"), hits["memory_id"]])
        settled = pd.MultiIndex.from_frame(labels[["query_id", "memory_id"]]).isin(place)
        if settled.any() and axis in labels:
            labels[axis] = labels[axis].mask(pd.Series(settled, index=labels.index), True)
        elif settled.any():
            labels[axis] = _implied(records, own, labels, axis).mask(pd.Series(settled, index=labels.index), True)
    assert records.rankings is not None
    return replace(
        records, queries=cloned(records.queries), labels=labels, rankings=cloned(records.rankings), work=None
    )


def _implied(records: Records, own: pd.DataFrame, labels: pd.DataFrame, axis: str) -> pd.Series:
    """Return what a column that labels do not have says of their pairs (namespaces or defaults)."""
    known = PairLabels.from_records(records)
    names = labels["query_id"].map(own.set_index("clone")["query_id"])
    values = known.lookup(
        encode(names, known.queries, "labels", "query_id"),
        encode(labels["memory_id"], known.memories, "labels", "memory_id"),
    )
    return values[axis]


def remaining(table: pd.DataFrame, widths: pd.Series) -> pd.DataFrame:
    """Say how wide the bounds still are after settling the labels that matter most, one after the other."""
    sure = table.assign(sure=table[["narrows_if_no", "narrows_if_yes"]].min(axis=1))
    key = ["query_id", "memory_id", "axis"]
    moving = sure.groupby(key)["changes_anchors"].transform("any").astype(bool)
    sure = sure[~moving & (sure["sure"] > 0)]
    order = over_arms(sure)[key].assign(place=lambda frame: np.arange(1, len(frame) + 1))
    taken = sure.merge(order, on=key).pivot_table(index="place", columns="arm", values="sure", aggfunc="sum")
    taken = taken.reindex(index=np.arange(len(order) + 1), columns=widths.index).fillna(0.0).cumsum()
    left = (widths - taken).rename_axis(index="labels").reset_index().melt("labels", var_name="arm", value_name="width")
    return left[["arm", "labels", "width"]].sort_values(["arm", "labels"], ignore_index=True)
