"""Controls that ask whether the identity of the namespace or the size of the pool helps."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion.retrieval.engine import Search, sizes
from companion.retrieval.pools import Pool, listed
from companion.retrieval.registry import Route, arm


@arm(
    "size_matched_random_partition",
    description="namespaces shuffled among memories within each source: pools of the same size, without meaning",
    candidates="visible, shuffled namespace",
    role="control",
    seeds=10,
)
def size_matched_random_partition(search: Search, *, seed: int) -> Route:
    """Search the visible memories that carry the query's namespace after a shuffle that keeps label counts."""
    layout = search.layout
    members = layout.grouped(_shuffled(search, seed))
    pools = [
        layout.within(members[space], pool) if space >= 0 else Pool(())
        for space, pool in zip(layout.query_space, layout.global_pools, strict=True)
    ]
    return Route(search.dense(pools), sizes(pools))


def _shuffled(search: Search, seed: int) -> np.ndarray:
    """Namespace codes by layout position, permuted within source."""
    layout = search.layout
    by_id = np.argsort(layout.tie)
    codes = layout.space[by_id]
    memories = search.corpus.memories
    if "source" in memories:
        source, names = pd.factorize(memories["source"], sort=True)
        source = source[layout.order][by_id]
    else:
        source, names = np.zeros(len(codes), dtype=np.int64), pd.Index(["all"])
    for number in np.unique(source):
        rows = np.flatnonzero(source == number)
        name = str(names[number]) if number >= 0 else ""
        codes[rows] = search.rng(seed, f"partition of {name}").permutation(codes[rows])
    out = np.empty_like(codes)
    out[by_id] = codes
    return out


@arm(
    "anchor_preserving_same_size",
    description="every anchor, and random others up to the namespace's size: a bound that knows the answers",
    candidates="visible anchors plus random visible memories",
    role="diagnostic",
    seeds=10,
)
def anchor_preserving_same_size(search: Search, *, seed: int) -> Route:
    """Search all visible anchors and as many random others as make the pool as large as the namespace's."""
    layout = search.layout
    pools = []
    names = search.corpus.queries["query_id"].tolist()
    anchors = _anchors(search)
    for query, (everything, own) in enumerate(zip(layout.global_pools, layout.namespace_pools, strict=True)):
        kept = _inside(anchors[query], everything)
        wanted = min(max(own.size - len(kept), 0), everything.size - len(kept))
        drawn = search.rng(seed, names[query]).choice(everything.size - len(kept), wanted, replace=False)
        pools.append(listed(np.sort(np.concatenate([kept, _others(everything, kept, drawn)]))))
    return Route(search.dense(pools), sizes(pools))


def _anchors(search: Search) -> list[np.ndarray]:
    """Positions of each query's known usable memories: relevant, in scope, allowed, of the right time."""
    labels = search.corpus.labels
    usable = np.ones(len(labels), dtype=bool)
    for axis in ("relevant", "scope", "policy", "lifecycle"):
        if axis in labels:
            usable &= labels[axis].astype("boolean").fillna(False).to_numpy(dtype=bool)
        else:
            usable &= bool(search.corpus.defaults.get(axis)) or axis == "scope"
    _, position, cuts = search.by_query(labels[usable])
    anchors = [np.unique(part) for part in np.split(position, cuts)]
    if "scope" in labels:
        return anchors
    space = search.layout.space
    return [part[space[part] == mine] for part, mine in zip(anchors, search.layout.query_space, strict=True)]


def _inside(positions: np.ndarray, pool: Pool) -> np.ndarray:
    """Keep the positions that a pool over the layout contains."""
    keep = np.zeros(len(positions), dtype=bool)
    for start, stop in pool.ranges:
        keep |= (positions >= start) & (positions < stop)
    return positions[keep]


def _others(pool: Pool, kept: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Map numbers drawn among a pool's candidates without `kept` to layout positions, listing neither."""
    starts = np.array([start for start, _ in pool.ranges], dtype=np.int64)
    lengths = np.array([stop - start for start, stop in pool.ranges], dtype=np.int64)
    before = np.cumsum(lengths) - lengths
    if not len(drawn):
        return np.empty(0, dtype=np.int64)
    # Place of each kept memory in the pool, less the kept ones before it: draws from there on move up by one.
    part = np.searchsorted(starts, kept, side="right") - 1
    places = before[part] + kept - starts[part]
    index = drawn + np.searchsorted(places - np.arange(len(places)), drawn, side="right")
    part = np.searchsorted(before, index, side="right") - 1
    return starts[part] + index - before[part]
