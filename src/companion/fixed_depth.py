"""Exposure at fixed depths, for queries that have no anchors and so no matched prefix (Protocol section 4).

A privacy or safety checkpoint asks for what must not be found, so nothing can be recalled and no matched-recall
prefix exists. What can be said is how much of the first k memories is known to violate, and whether a protected
turn (one the asker may not see, or one that was deleted) is among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from companion.bootstrap import DEFAULT_CONFIDENCE, DEFAULT_REPLICATES, MACRO, ratio_means
from companion.errors import InputError
from companion.scoring import PairLabels, label_ranked
from companion.tables import Records

KINDS = ("privacy", "safety")
DEPTHS = (5, 10, 20)

METRICS = ("known_violation", "protected", "wrong_scope", "lower_bound", "upper_bound")
"""Summarised quantities: three shares of queries, and the mean bounds on the violating share of the top k."""

_COUNTED = ("known_violations", "protected_count", "wrong_scope_count", "unresolved")


def kinds_of(queries: pd.DataFrame) -> pd.Series:
    """Tell the kind of each query: its ``query_type``, else what follows the last colon of its ``stratum``."""
    if "query_type" in queries:
        return queries["query_type"].astype("str")
    if "stratum" in queries:
        return queries["stratum"].astype("str").str.rsplit(":", n=1).str[-1].astype("str")
    return pd.Series(np.nan, index=queries.index, dtype="str")


def fixed_depth_exposure(
    records: Records,
    *,
    depths: Sequence[int] = DEPTHS,
    kinds: Sequence[str] = KINDS,
    arms: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Count known violations and protected memories among the first k, query by query."""
    rankings = records.rankings
    if rankings is None or rankings.empty:
        raise InputError("fixed depth: no rankings; expected at least one ranked route")
    names = _check_arms(list(pd.unique(rankings["arm"])), arms)
    wanted = _check_depths(depths, int(rankings["rank"][rankings["arm"].isin(names)].max()))
    kind = kinds_of(records.queries)
    chosen = records.queries[kind.isin(list(kinds)).to_numpy(dtype=bool)]
    if chosen.empty:
        raise InputError(f"fixed depth: no query is of kind {' or '.join(kinds)}; found {_listed(kind)}")
    rows = rankings[rankings["query_id"].isin(chosen["query_id"]) & rankings["arm"].isin(names)]
    counted = _count(label_ranked(records, rows[rows["rank"] <= max(wanted)]))
    keys = [names, list(chosen["query_id"])]
    parts = [_at_depth(counted, depth, keys) for depth in wanted]
    table = pd.concat(parts).reset_index().merge(_described(records, chosen, kind), on="query_id", how="left")
    order = pd.MultiIndex.from_product([*keys, wanted], names=["arm", "query_id", "depth"])
    table = table.set_index(["arm", "query_id", "depth"]).loc[order].reset_index()
    leading = ["arm", "query_id", "source", "group", "kind", "depth"]
    return table[[*leading, *(column for column in table if column not in leading)]]


def summarise_fixed_depth(
    per_query: pd.DataFrame,
    *,
    reference: str | None = None,
    metrics: Sequence[str] = METRICS,
    replicates: int = DEFAULT_REPLICATES,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Average fixed-depth exposure by route and source, with intervals from resampled groups."""
    arms = list(pd.unique(per_query["arm"]))
    if reference is not None and reference not in arms:
        raise InputError(f"fixed depth: unknown reference arm {reference!r}; expected one of {', '.join(arms)}")
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown:
        raise InputError(f"fixed depth: unknown metric {unknown[0]!r}; expected some of {', '.join(METRICS)}")
    settings: dict[str, Any] = {"replicates": replicates, "confidence": confidence, "seed": seed}
    parts = [
        _one_mean(rows, str(kind), metric, reference, settings)
        for kind, rows in per_query.groupby("kind", sort=False)
        for metric in metrics
    ]
    table = pd.concat(parts, ignore_index=True)
    ranks = {name: place for place, name in enumerate(arms)}
    return table.sort_values(
        ["kind", "metric", "reference", "arm", "depth"],
        key=lambda column: column.map(ranks) if column.name == "arm" else column,
        kind="stable",
        na_position="first",
        ignore_index=True,
    )


def _check_depths(depths: Sequence[int], deepest: int) -> list[int]:
    wanted = sorted({int(depth) for depth in depths})
    if not wanted or wanted[0] < 1:
        raise InputError(f"fixed depth: depths are {list(depths)}; expected whole numbers of at least 1")
    if wanted[-1] > deepest:
        raise InputError(f"fixed depth: depth {wanted[-1]} is deeper than any route; the deepest rank is {deepest}")
    return wanted


def _check_arms(present: list[str], arms: Sequence[str] | None) -> list[str]:
    names = present if arms is None else list(arms)
    unknown = [name for name in names if name not in present]
    if unknown or not names:
        found = f"unknown arm {unknown[0]!r}" if unknown else "no arm"
        raise InputError(f"fixed depth: {found}; expected some of {', '.join(present)}")
    return names


def _listed(kind: pd.Series) -> str:
    return ", ".join(sorted(kind.dropna().unique())) or "no kinds"


def _count(labelled: pd.DataFrame) -> pd.DataFrame:
    """Reduce labelled rows to what is counted, one flag per row."""

    def known_zero(column: str) -> pd.Series:
        # A missing value is unresolved, which is not a known 0: that is what this fill says.
        return labelled[column].eq(False).fillna(False).astype(bool)

    return pd.DataFrame(
        {
            "arm": labelled["arm"],
            "query_id": labelled["query_id"],
            "rank": labelled["rank"],
            "width": 1,
            "known_violations": known_zero("admissible"),
            "protected_count": known_zero("policy") | known_zero("lifecycle"),
            "wrong_scope_count": known_zero("scope"),
            "unresolved": labelled["admissible"].isna(),
        }
    )


def _at_depth(counted: pd.DataFrame, depth: int, keys: list[list[str]]) -> pd.DataFrame:
    columns = ["width", *_COUNTED]
    sums = counted[counted["rank"] <= depth].groupby(["arm", "query_id"])[columns].sum()
    every = pd.MultiIndex.from_product(keys, names=["arm", "query_id"])
    table = sums.reindex(every, fill_value=0).astype("int64")
    for flag, count in (
        ("known_violation", "known_violations"),
        ("protected", "protected_count"),
        ("wrong_scope", "wrong_scope_count"),
    ):
        table[flag] = table[count] > 0
    width = np.maximum(table["width"], 1)
    table["lower_bound"] = table["known_violations"] / width
    table["upper_bound"] = (table["known_violations"] + table["unresolved"]) / width
    return table.assign(depth=depth)


def _described(records: Records, chosen: pd.DataFrame, kind: pd.Series) -> pd.DataFrame:
    described = pd.DataFrame({"query_id": chosen["query_id"], "kind": kind[chosen.index]})
    described["source"] = chosen.get("source", "all")
    described["group"] = chosen["group"] if "group" in chosen else chosen["namespace"]
    pairs = PairLabels.from_records(records)
    protected = np.zeros(len(pairs.listed), dtype=bool)
    for axis in ("policy", "lifecycle"):
        if axis in pairs.listed:
            protected |= pairs.listed[axis].eq(False).fillna(False).to_numpy(dtype=bool)
    known = pairs.queries[np.unique(pairs.keys[protected] // max(1, len(pairs.memories)))]
    return described.assign(protected_known=described["query_id"].isin(known))


def _one_mean(
    rows: pd.DataFrame, kind: str, metric: str, reference: str | None, settings: dict[str, Any]
) -> pd.DataFrame:
    # pivot, not pivot_table: two rows for one key must fail, not be averaged.
    wide = rows.pivot(index="query_id", columns=["arm", "depth"], values=metric).astype("float64")
    columns = list(wide.columns.to_frame(index=False).itertuples(index=False, name=None))
    of_query = rows.drop_duplicates("query_id").set_index("query_id").loc[wide.index]
    # Statistics are numbered: an arm's name may hold any character, a separator included.
    wide.columns = pd.Index([str(place) for place in range(len(columns))])
    differences = {}
    if reference is not None:
        base = {depth: str(columns.index((reference, depth))) for depth in rows["depth"].unique()}
        differences = {
            f"-{place}": {str(place): 1.0, base[depth]: -1.0}
            for place, (arm, depth) in enumerate(columns)
            if arm != reference
        }
    result = ratio_means(
        wide, clusters=of_query["group"], sources=of_query["source"], contrasts=differences, **settings
    ).table
    place = result["statistic"].str.lstrip("-").astype(int)
    counts = of_query["source"].value_counts()
    return pd.DataFrame(
        {
            "arm": pd.Series([columns[at][0] for at in place], dtype="str"),
            "reference": pd.Series([reference] * len(result), dtype="str").where(
                result["statistic"].str.startswith("-")
            ),
            "kind": kind,
            "depth": [int(columns[at][1]) for at in place],
            "metric": metric,
            "source": result["source"],
            "estimate": result["estimate"],
            "low": result["low"],
            "high": result["high"],
            "n": [len(of_query) if source == MACRO else int(counts[source]) for source in result["source"]],
            "undefined_replicates": result["undefined_replicates"],
        }
    )
