"""Facts that must hold between routes, whatever the data."""

from __future__ import annotations

import pandas as pd


def namespace_never_worse(
    rankings: pd.DataFrame,
    labels: pd.DataFrame,
    *,
    narrow: str = "namespace_dense",
    wide: str = "global_dense",
) -> pd.DataFrame:
    """List anchors that the narrower of two searches ranks worse; the list must be empty.

    Removing competitors cannot push a memory down: where both routes score a memory alike and the narrow pool is
    part of the wide one, the rank in the narrow route is at most the rank in the wide one. An anchor that the
    wide route holds and the narrow one lacks is a violation as well.

    Parameters
    ----------
    rankings : DataFrame
        arm, query_id, rank, memory_id; both routes, cut at one depth.
    labels : DataFrame
        query_id, memory_id, relevant; anchors are the pairs with ``relevant`` true.
    narrow, wide : str
        Names of the routes.

    Returns
    -------
    DataFrame
        query_id, memory_id, narrow (Int64 rank, missing when not ranked), wide (int64 rank): the violations.
    """
    anchors = labels.loc[labels["relevant"].fillna(False).astype(bool), ["query_id", "memory_id"]].drop_duplicates()
    ranks = {name: rankings.loc[rankings["arm"] == name] for name in (narrow, wide)}
    seen = anchors
    for column, name in (("narrow", narrow), ("wide", wide)):
        part = ranks[name][["query_id", "memory_id", "rank"]].rename(columns={"rank": column})
        seen = seen.merge(part, on=["query_id", "memory_id"], how="left")
    held = seen[seen["wide"].notna()].astype({"narrow": "Int64", "wide": "int64"})
    worse = held["narrow"].isna() | (held["narrow"] > held["wide"]).fillna(False)
    return held[worse.astype(bool)].reset_index(drop=True)
