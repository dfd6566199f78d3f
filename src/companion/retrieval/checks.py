"""Facts that must hold between routes, whatever the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from companion.retrieval import dense
from companion.retrieval.engine import EncoderLike, Search

if TYPE_CHECKING:
    from companion.retrieval.pools import CorpusLike, Pool


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


def anchor_ranks(corpus: CorpusLike, encoder: EncoderLike, anchors: pd.DataFrame) -> pd.DataFrame:
    """Rank every anchor among all candidates, in its namespace and everywhere, to whatever depth it takes."""
    search = Search(corpus, encoder)
    own, everywhere = search.layout.namespace_pools, search.layout.global_pools
    pairs = anchors[["query_id", "memory_id"]].drop_duplicates(ignore_index=True)
    query = pd.Index(corpus.queries["query_id"]).get_indexer(pd.Index(pairs["query_id"]))
    position = search.layout.position_of(pairs["memory_id"])
    ranks = np.empty((len(pairs), 2), dtype=np.int64)
    for number in np.unique(query):
        rows = np.flatnonzero(query == number)
        for column, pools in enumerate((own, everywhere)):
            ranks[rows, column] = _ranks(search, int(number), pools[number], position[rows])
    return pairs.assign(namespace_dense=ranks[:, 0], global_dense=ranks[:, 1])


def _ranks(search: Search, number: int, pool: Pool, wanted: np.ndarray) -> np.ndarray:
    """Count, for some candidates of a pool, those that rank before them."""
    scores, places = dense.scores(search.vectors, search.query_vectors[number], pool), pool.positions()
    tie = search.layout.tie
    of = dict(zip(places.tolist(), scores, strict=True))
    mine = [(of[int(place)], tie[place]) for place in wanted]
    ties = tie[places]
    return np.array([1 + ((scores > s) | ((scores == s) & (ties < t))).sum() for s, t in mine], dtype=np.int64)
