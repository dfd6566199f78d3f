"""Which memories a query may be compared with, as ranges of a sorted array.

Memories are laid out once, sorted, so that "what this query may see" is a handful of half-open ranges found by
binary search. Nothing scores a memory first and masks it afterwards: a search reads the ranges and no more, and
the number of candidates is the sum of their lengths.

Two layouts exist. When time limits are the same for a query's own and for foreign namespaces, memories are
sorted by time: a global pool is a prefix, and a namespace's pool is a prefix of the list of its members.
Otherwise they are sorted by namespace and then time: a namespace is one range, and a global pool is its
neighbours' ranges around its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd


class CorpusLike(Protocol):
    """What a search needs of a corpus; `companion.corpora.Corpus` has it."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def memories(self) -> pd.DataFrame:
        """Memories with memory_id, namespace, visible_key, and text."""

    @property
    def queries(self) -> pd.DataFrame:
        """Queries with query_id, namespace, visible_own, visible_foreign, and text."""

    @property
    def labels(self) -> pd.DataFrame:
        """Labels of the contract."""

    @property
    def defaults(self) -> dict[str, bool]:
        """Axis values of pairs that labels do not list."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Candidates of one query."""

    ranges: tuple[tuple[int, int], ...]
    base: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Number of candidates."""
        return sum(stop - start for start, stop in self.ranges)

    def positions(self) -> np.ndarray:
        """Layout positions of the candidates, ascending."""
        if not self.ranges:
            return np.empty(0, dtype=np.int64)
        flat = np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in self.ranges])
        return flat if self.base is None else self.base[flat]


class Layout:
    """Memories of a corpus in search order, and each query's pools."""

    def __init__(self, corpus: CorpusLike) -> None:
        memories, queries = corpus.memories, corpus.queries
        ids = memories["memory_id"].to_numpy(dtype=object)
        rank = np.empty(len(ids), dtype=np.int64)
        rank[np.argsort(ids, kind="stable")] = np.arange(len(ids))
        self.own_limit = queries["visible_own"].to_numpy(dtype=np.int64)
        self.foreign_limit = queries["visible_foreign"].to_numpy(dtype=np.int64)
        self.by_time = bool((self.own_limit == self.foreign_limit).all())
        keys = memories["visible_key"].to_numpy(dtype=np.int64)
        space, self.names = pd.factorize(memories["namespace"], sort=True)
        # Memories of unknown namespace are nobody's own: a group of their own, which no query belongs to.
        space = np.where(space < 0, len(self.names), space)
        within = _order_column(memories)
        sort_keys = (rank, within, keys) if self.by_time else (rank, within, keys, space)
        self.order = np.lexsort(sort_keys)
        self.tie = rank[self.order]
        self.keys = keys[self.order]
        self.space = space[self.order]
        self.ids = ids[self.order]
        # Queries of a namespace that has no memory get code -1 and an empty pool.
        self.query_space = pd.Index(self.names).get_indexer(pd.Index(queries["namespace"]))
        self.groups = len(self.names) + 1

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def members(self) -> list[np.ndarray]:
        """Positions of each namespace's memories, ascending, in the order of `names`; then those of none."""
        grouped = np.argsort(self.space, kind="stable")
        ends = np.cumsum(np.bincount(self.space, minlength=self.groups))
        return np.split(grouped, ends[:-1])

    def position_of(self, memory_ids: pd.Series) -> np.ndarray:
        """Positions of memories by id; -1 for those that are not laid out."""
        return self._ids.get_indexer(pd.Index(memory_ids))

    @cached_property
    def _ids(self) -> pd.Index:
        return pd.Index(self.ids)

    @cached_property
    def namespace_pools(self) -> list[Pool]:
        """Visible memories of each query's own namespace."""
        pools = []
        for space, limit in zip(self.query_space, self.own_limit, strict=True):
            if space < 0:
                pools.append(Pool(()))
                continue
            members = self.members[space]
            # Keys ascend within a namespace in both layouts.
            seen = int(np.searchsorted(self._member_keys[space], limit))
            if self.by_time:
                pools.append(Pool(_kept([(0, seen)]), members))
            else:
                first = int(members[0])
                pools.append(Pool(_kept([(first, first + seen)])))
        return pools

    @cached_property
    def _member_keys(self) -> list[np.ndarray]:
        return [self.keys[members] for members in self.members]

    @cached_property
    def global_pools(self) -> list[Pool]:
        """Visible memories of all namespaces, per query."""
        if self.by_time:
            stops = np.searchsorted(self.keys, self.own_limit)
            return [Pool(_kept([(0, int(stop))])) for stop in stops]
        return [
            Pool(self._around(int(space), int(own), int(foreign)))
            for space, own, foreign in zip(self.query_space, self.own_limit, self.foreign_limit, strict=True)
        ]

    def _around(self, space: int, own: int, foreign: int) -> tuple[tuple[int, int], ...]:
        """Ranges of the namespace-sorted layout; neighbours that touch are joined."""
        stops = self._stops(foreign).copy()
        if space >= 0:
            stops[space] = self._starts[space] + np.searchsorted(self._member_keys[space], own)
        joined: list[tuple[int, int]] = []
        # Only the namespaces that time cuts short break the run of ranges.
        begin = 0
        for cut in np.flatnonzero(stops < self._ends):
            joined.append((begin, int(stops[cut])))
            begin = int(self._ends[cut])
        joined.append((begin, len(self)))
        return _kept(joined)

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(members) for members in self.members], dtype=np.int64)

    @cached_property
    def _starts(self) -> np.ndarray:
        return self._ends - np.array([len(members) for members in self.members], dtype=np.int64)

    def _stops(self, limit: int) -> np.ndarray:
        """End of the visible part of every namespace under one limit; kept, because limits repeat."""
        known = self.__dict__.setdefault("_stops_by_limit", {})
        if limit not in known:
            seen = [np.searchsorted(keys, limit) for keys in self._member_keys]
            known[limit] = self._starts + np.array(seen, dtype=np.int64)
        return known[limit]

    def within(self, base: np.ndarray, pool: Pool) -> Pool:
        """Cut a list of positions to what a pool over the layout contains."""
        cuts = [(int(np.searchsorted(base, a)), int(np.searchsorted(base, z))) for a, z in pool.ranges]
        return Pool(_kept(cuts), base)


def only(pool: Pool, keep: np.ndarray) -> Pool:
    """Keep some candidates of a pool."""
    if keep.all():
        return pool
    return listed(pool.positions()[keep])


def listed(positions: np.ndarray) -> Pool:
    """Make a pool of listed positions."""
    return replace(Pool(_kept([(0, len(positions))])), base=positions)


def _kept(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((start, stop) for start, stop in ranges if stop > start)


def _order_column(memories: pd.DataFrame) -> np.ndarray:
    """Read the column ``order`` as float64, or zeros when absent; missing values come last."""
    if "order" not in memories:
        return np.zeros(len(memories))
    return memories["order"].to_numpy(dtype=np.float64, na_value=np.inf)
