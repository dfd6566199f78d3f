"""Plain search: everything visible, or the query's trusted namespace."""

from __future__ import annotations

import numpy as np

from companion.errors import InputError
from companion.retrieval import dense
from companion.retrieval.engine import Search, sizes
from companion.retrieval.registry import Route, arm


@arm(
    "global_bm25",
    description="BM25 over every visible memory",
    candidates="all visible",
    params={"k1": 1.5, "b": 0.75},
    role="baseline",
)
def global_bm25(search: Search, *, k1: float, b: float) -> Route:
    """Rank all visible memories by BM25; statistics come from all memories of the split."""
    index = search.lexical(k1, b)
    pools = search.layout.global_pools
    hits = [
        search.by_score(pool, index.scores(text, pool)) for text, pool in zip(search.query_texts, pools, strict=True)
    ]
    return Route(hits, sizes(pools))


@arm(
    "global_dense",
    description="inner product of unit vectors over every visible memory",
    candidates="all visible",
    role="baseline",
)
def global_dense(search: Search) -> Route:
    """Rank all visible memories by inner product."""
    pools = search.layout.global_pools
    return Route(search.dense(pools), sizes(pools))


@arm(
    "global_bm25_dense_rrf",
    description="reciprocal rank fusion of BM25 and dense over every visible memory",
    candidates="all visible",
    params={"k1": 0.9, "b": 0.75, "constant": 60},
    role="baseline",
)
def global_bm25_dense_rrf(search: Search, *, k1: float, b: float, constant: int) -> Route:
    """Fuse full rankings: ``1 / (constant + rank_bm25) + 1 / (constant + rank_dense)``."""
    index = search.lexical(k1, b)
    pools = search.layout.global_pools
    hits = []
    for text, vector, pool in zip(search.query_texts, search.query_vectors, pools, strict=True):
        tie = search.layout.tie[pool.positions()]
        lexical = _ranks(index.scores(text, pool), tie)
        semantic = _ranks(dense.scores(search.vectors, vector, pool), tie)
        hits.append(search.by_score(pool, 1 / (constant + lexical) + 1 / (constant + semantic)))
    return Route(hits, sizes(pools))


def _ranks(values: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Rank from 1, best first; equal values by ascending `tie`, so that ranks are distinct."""
    out = np.empty(len(values), dtype=np.int64)
    out[np.lexsort((tie, -values))] = np.arange(1, len(values) + 1)
    return out


@arm(
    "global_recency_dense",
    description="dense plus a tenth of how late the memory is",
    candidates="all visible",
    params={"weight": 0.1},
    role="baseline",
)
def global_recency_dense(search: Search, *, weight: float) -> Route:
    """Add `weight` times the memory's order, scaled to [0, 1] over all memories of the split."""
    late = _scaled_order(search)
    pools = search.layout.global_pools
    hits = []
    for vector, pool in zip(search.query_vectors, pools, strict=True):
        similarity = dense.scores(search.vectors, vector, pool).astype(np.float64)
        hits.append(search.by_score(pool, similarity + weight * late[pool.positions()]))
    return Route(hits, sizes(pools))


def _scaled_order(search: Search) -> np.ndarray:
    memories = search.corpus.memories
    if "order" not in memories or memories["order"].isna().any():
        raise InputError(f"corpus {search.corpus.name}: arm global_recency_dense needs 'order' for every memory")
    order = memories["order"].to_numpy(dtype=np.float64)[search.layout.order]
    span = np.ptp(order) if len(order) else 0.0
    return (order - order.min()) / span if span > 0 else np.zeros(len(order))


@arm(
    "namespace_dense",
    description="dense within the query's trusted namespace",
    candidates="visible, own namespace",
)
def namespace_dense(search: Search) -> Route:
    """Rank the visible memories of the query's own namespace by inner product; no other vector is read."""
    pools = search.layout.namespace_pools
    return Route(search.dense(pools), sizes(pools))
