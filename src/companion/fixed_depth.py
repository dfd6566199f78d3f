"""Exposure at fixed depths, for queries that have no anchors and so no matched prefix (Protocol section 4).

A privacy or safety checkpoint asks for what must not be found, so nothing can be recalled and no matched-recall
prefix exists. What can be said is how much of the first k memories is known to violate, and whether a protected
turn (one the asker may not see, or one that was deleted) is among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from companion.bootstrap import Resampling, estimate
from companion.errors import InputError
from companion.labels import PairLabels
from companion.scoring import profile
from companion.tables import Records

KINDS = ("privacy", "safety")
DEPTHS = (5, 10, 20)

METRICS = ("known_violation", "protected", "wrong_scope", "lower_bound", "upper_bound")
"""Summarised quantities: three shares of queries, and the mean bounds on the violating share of the top k."""


_COLUMNS = (
    *("arm", "query_id", "source", "group", "kind", "depth", "width"),
    *("known_violations", "protected_count", "wrong_scope_count", "unresolved"),
    *METRICS,
    "protected_known",
)


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
    asked = list(chosen["query_id"])
    parts = [_at_depth(records, depth, names, asked) for depth in wanted]
    table = pd.concat(parts).merge(_described(records, chosen, kind), on="query_id", how="left")
    place = {name: number for number, name in enumerate(asked)}
    table = table.sort_values(
        ["arm", "query_id", "depth"],
        key=lambda column: (
            column.map({"arm": {n: i for i, n in enumerate(names)}, "query_id": place}[str(column.name)])
            if column.name != "depth"
            else column
        ),
        ignore_index=True,
    )
    return table[list(_COLUMNS)]


def summarise_fixed_depth(
    per_query: pd.DataFrame,
    *,
    reference: str | None = None,
    metrics: Sequence[str] = METRICS,
    resampling: Resampling | None = None,
) -> pd.DataFrame:
    """Average fixed-depth exposure by route and source, with intervals from resampled groups."""
    arms = list(pd.unique(per_query["arm"]))
    if reference is not None and reference not in arms:
        raise InputError(f"fixed depth: unknown reference arm {reference!r}; expected one of {', '.join(arms)}")
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown:
        raise InputError(f"fixed depth: unknown metric {unknown[0]!r}; expected some of {', '.join(METRICS)}")
    parts = []
    for kind, rows in per_query.groupby("kind", sort=False):
        versus = None if reference is None else {"arm": reference}
        part = estimate(
            rows, metrics, by=["arm", "depth"], unit="query_id", versus=versus, both=True,
            resampling=resampling,
        )  # fmt: skip
        parts.append(part.assign(kind=kind).rename(columns={"versus": "reference", "n_units": "n"}))
    ends = ["estimate", "low", "high", "n", "undefined_replicates"]
    columns = ["arm", "reference", "kind", "depth", "metric", "source", *ends]
    table = pd.concat(parts, ignore_index=True)[columns].astype({"reference": "str"})
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


def _at_depth(records: Records, depth: int, names: list[str], queries: list[str]) -> pd.DataFrame:
    every = profile(records, depth, arms=names, queries=queries)
    protected = profile(records, depth, arms=names, queries=queries, axes=("policy", "lifecycle"))["violation_count"]
    table = every[["arm", "query_id", "lower_bound", "upper_bound"]].assign(
        depth=depth,
        width=every["items"],
        known_violations=every["violation_count"],
        protected_count=protected,
        wrong_scope_count=(every["wrong_scope"] * every["items"]).round().astype("int64"),
        unresolved=every["unresolved_count"],
    )
    flags = {"known_violation": "known_violations", "protected": "protected_count", "wrong_scope": "wrong_scope_count"}
    return table.assign(**{flag: table[count] > 0 for flag, count in flags.items()})


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
