"""Graph selectors: memories are nodes, a walk from the query's nearest memories ranks them (ours; chapter 08).

Edges, as graph memories build them: the `NEIGHBOURS` nearest by cosine (weight: the cosine), the `NEIGHBOURS` that
share most names and numbers (cosine of tf-idf over capitalised words and numerals), and the next memory of the same
namespace in time (weight `NEXT`). Personalised PageRank with damping `DAMPING` starts at the `SEEDS` memories nearest
to the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from companion.retrieval.dense import Hits
from companion.retrieval.engine import Search, sizes
from companion.retrieval.pools import Pool
from companion.retrieval.registry import Route, arm

NEIGHBOURS, SEEDS, NEXT = 10, 10, 0.5
DAMPING, STEPS = 0.5, 30
_TOGETHER = 128
"""Queries walked at a time."""


@dataclass(frozen=True, eq=False)
class Writes:
    """Edges of weight 1 that an outsider writes, for each query (or -1): from a node of its own, or between records."""

    spokes: np.ndarray | None = None
    """int64, shape (queries, budget): records that the outsider's one node is tied to."""
    pairs: np.ndarray | None = None
    """int64, shape (queries, budget, 2): records that are tied to each other."""


def build(search: Search, *, within: bool) -> Any:
    """Make the symmetric weights of a graph over all memories, or of one graph per namespace (`within`)."""
    from scipy import sparse

    kept = search.__dict__.setdefault("_graphs", {})
    if within not in kept:
        count, texts = len(search.layout), np.array(search.texts, dtype=object)
        whole = sparse.csr_array((count, count))
        for rows in search.layout.members if within else [np.arange(count)]:
            if len(rows) > 1:
                local = _nearest(search.vectors[rows]) + _sharing(texts[rows])
                inside = sparse.coo_array(local)
                whole = whole + sparse.csr_array(
                    (inside.data, (rows[inside.coords[0]], rows[inside.coords[1]])), shape=(count, count)
                )
        for rows in search.layout.members[:-1]:
            following = np.full(max(len(rows) - 1, 0), NEXT)
            whole = whole + sparse.csr_array((following, (rows[:-1], rows[1:])), shape=(count, count))
        kept[within] = sparse.csr_array(whole.maximum(whole.T))
    return kept[within]


def _nearest(vectors: np.ndarray) -> Any:
    """Each memory's nearest others by cosine."""
    import faiss
    from scipy import sparse

    k = min(NEIGHBOURS + 1, len(vectors))
    near, rows = faiss.knn(np.ascontiguousarray(vectors), vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
    start = np.repeat(np.arange(len(vectors)), k)
    use = (rows.ravel() != start) & (near.ravel() > 0)
    weights = np.round(near.ravel()[use].astype(float), 6)
    return sparse.csr_array((weights, (start[use], rows.ravel()[use])), shape=(len(vectors),) * 2)


def _sharing(texts: np.ndarray) -> Any:
    """Each memory's strongest others by the rarer names and numbers they share."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    empty = sparse.csr_array((len(texts),) * 2)
    names = TfidfVectorizer(token_pattern=r"\b[A-Z][\w'-]+|\d[\d.,:-]*", lowercase=False, max_df=20, min_df=2)
    try:
        terms = sparse.csr_array(names.fit_transform(texts))
    except ValueError:  # nothing is shared
        return empty
    shared = sparse.csr_array(terms @ terms.T)
    shared.setdiag(0)
    shared.eliminate_zeros()
    kept = []
    for row in range(len(texts)):
        columns, values = (part[shared.indptr[row] : shared.indptr[row + 1]] for part in (shared.indices, shared.data))
        best = np.lexsort((columns, -values))[:NEIGHBOURS]
        kept += [(row, columns[n], values[n]) for n in best]
    if not kept:
        return empty
    start, stop, weights = map(np.array, zip(*kept, strict=True))
    return sparse.csr_array((np.round(weights.astype(float), 6), (start, stop)), shape=(len(texts),) * 2)


def walk(weights: Any, restart: np.ndarray, inside: np.ndarray, writes: Writes | None = None) -> np.ndarray:
    """Personalised PageRank of several queries at once, each on the nodes that it may use.

    Parameters
    ----------
    weights : sparse array, shape (nodes, nodes)
        Symmetric, without negative entries.
    restart : ndarray of float, shape (nodes, queries)
        Where each walk starts and restarts; columns sum to 1, or are all 0.
    inside : ndarray of bool, shape (nodes, queries)
        Nodes of each query's subgraph; edges to others do not exist for it.
    writes : Writes, optional
        An outsider's edges on top, as many queries as columns.

    Returns
    -------
    ndarray of float, shape (nodes, queries)
        The share of time that a walk spends at each node.
    """
    columns = np.arange(restart.shape[1])[:, None]
    degree = inside * (weights @ inside.astype(float))
    ties, spokes = _own_edges(writes, inside, columns)
    for a, b, use in ties:
        np.add.at(degree, (a, columns), use)
        np.add.at(degree, (b, columns), use)
    np.add.at(degree, (spokes[0], columns), spokes[1])
    hub_degree = np.maximum(spokes[1].sum(axis=1), 1)
    with np.errstate(divide="ignore"):
        out = np.where(degree > 0, 1 / degree, 0)
    x, hub = restart.copy(), np.zeros(restart.shape[1])
    for _ in range(STEPS):
        leaving = x * out
        arriving = inside * (weights @ leaving)
        for a, b, use in ties:
            np.add.at(arriving, (b, columns), use * leaving[a, columns])
            np.add.at(arriving, (a, columns), use * leaving[b, columns])
        caught = (spokes[1] * leaving[spokes[0], columns]).sum(axis=1)
        np.add.at(arriving, (spokes[0], columns), spokes[1] * (hub / hub_degree)[:, None])
        stuck = (x * (degree == 0)).sum(axis=0)
        x = (1 - DAMPING + DAMPING * stuck) * restart + DAMPING * arriving
        hub = DAMPING * caught
    return x


def _own_edges(writes: Writes | None, inside: np.ndarray, columns: np.ndarray) -> tuple[list[Any], tuple[Any, Any]]:
    """Spell out an outsider's edges as node numbers and 0 or 1 for each query; edges to nodes outside are none."""
    nothing = np.zeros((len(columns), 0), dtype=np.int64)
    spokes = nothing if writes is None or writes.spokes is None else writes.spokes
    use = (spokes >= 0) & inside[spokes, columns]
    ties = []
    if writes is not None and writes.pairs is not None:
        a, b = writes.pairs[:, :, 0], writes.pairs[:, :, 1]
        ties = [(a, b, ((a >= 0) & (b >= 0) & (a != b) & inside[a, columns] & inside[b, columns]).astype(float))]
    return ties, (spokes, use.astype(float))


def walked(
    search: Search,
    pools: list[Pool],
    *,
    within: bool,
    writes: Writes | None = None,
    shown: list[Pool] | None = None,
    limit: int | None = None,
) -> list[Hits]:
    """Rank each query's pool by a walk on its subgraph; only memories of `shown` are returned, those reached at all."""
    weights, hits = build(search, within=within), []
    near = search.dense(pools, SEEDS)
    for start in range(0, len(pools), _TOGETHER):
        block = range(start, min(start + _TOGETHER, len(pools)))
        restart = np.zeros((len(search.layout), len(block)))
        inside = np.zeros(restart.shape, dtype=bool)
        for column, query in enumerate(block):
            inside[pools[query].positions(), column] = True
            mass = np.maximum(near[query].scores.astype(float), 0)
            restart[near[query].positions, column] = mass / mass.sum() if mass.sum() > 0 else 0
        part = None
        if writes is not None:
            rows = slice(block.start, block.stop)
            part = Writes(*(None if edges is None else edges[rows] for edges in (writes.spokes, writes.pairs)))
        # Rounded, so that equal shares are equal whatever the order of sums.
        scores = np.round(walk(weights, restart, inside, part), 12)
        for column, query in enumerate(block):
            positions = (shown or pools)[query].positions()
            reached = positions[scores[positions, column] > 0]
            values = scores[reached, column]
            order = np.lexsort((search.layout.tie[reached], -values))[: limit or search.top_k]
            hits.append(Hits(reached[order], values[order]))
    return hits


@arm(
    "graph_prefilter",
    description="walk on the graph of the query's own namespace, built from its memories alone",
    candidates="visible, own namespace",
    extra=True,
)
def graph_prefilter(search: Search) -> Route:
    """Filter first: nothing outside the namespace is a node, a neighbour, or a statistic."""
    pools = search.layout.namespace_pools
    return Route(walked(search, pools, within=True), sizes(pools))


@arm(
    "graph_postfilter",
    description="walk on the graph of everything, then own namespace",
    candidates="all visible; own namespace kept afterwards",
    extra=True,
)
def graph_postfilter(search: Search) -> Route:
    """Filter the whole ranking last: what is shown is the namespace's, what decided it is everybody's."""
    pools = search.layout.global_pools
    return Route(walked(search, pools, within=False, shown=search.layout.namespace_pools), sizes(pools))


@arm(
    "graph_global",
    description="walk on the graph of everything",
    candidates="all visible",
    role="baseline",
    extra=True,
)
def graph_global(search: Search) -> Route:
    """Never filter."""
    pools = search.layout.global_pools
    return Route(walked(search, pools, within=False), sizes(pools))
