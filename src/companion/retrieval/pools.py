"""Which memories a query may be compared with, as ranges of a sorted array; the one home of visibility.

The rule: a memory is visible when ``visible_key < visible_own`` (the query's own namespace) or ``< visible_foreign``
(any other). Memories are laid out once, sorted, so that what a query may see is a handful of half-open ranges found by
binary search: nothing scores a memory first and masks it afterwards, and the number of candidates is the sum of their
lengths.

Two layouts exist. When time limits are the same for a query's own and for foreign namespaces, memories are sorted by
time: a global pool is a prefix, and a namespace's pool is a prefix of the list of its members. Otherwise they are
sorted by namespace and then time: a namespace is one range, and a global pool is its neighbours' ranges around its
own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pandas as pd

EVERYTHING: int = int(np.iinfo(np.int64).max)
"""A visibility limit that hides nothing."""


def visible(key: Any, own: Any, visible_own: Any, visible_foreign: Any) -> Any:
    """Tell of pairs of a query and a memory whether the memory existed for the query; `own`: of one namespace."""
    return np.asarray(key) < np.where(own, visible_own, visible_foreign)


class CorpusLike(Protocol):
    """What a search needs of a corpus; `companion.corpora.Corpus` has it."""

    @property
    def name(self) -> Any: ...  # noqa: D102
    @property
    def memories(self) -> Any: ...  # noqa: D102
    @property
    def queries(self) -> Any: ...  # noqa: D102
    @property
    def labels(self) -> Any: ...  # noqa: D102
    @property
    def defaults(self) -> Any: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Pool:
    """Candidates of one query: ranges of the layout, or of a list of layout positions."""

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

    def only(self, keep: np.ndarray) -> Pool:
        """Keep some candidates."""
        return self if keep.all() else listed(self.positions()[keep])


def listed(positions: np.ndarray) -> Pool:
    """Make a pool of listed positions."""
    return Pool(_kept([(0, len(positions))]), positions)


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
        within = np.zeros(len(ids))
        if "order" in memories:  # missing values come last
            within = memories["order"].to_numpy(dtype=np.float64, na_value=np.inf)
        self.order = np.lexsort((rank, within, keys) if self.by_time else (rank, within, keys, space))
        self.tie, self.keys, self.space, self.ids = (a[self.order] for a in (rank, keys, space, ids))
        # Queries of a namespace that has no memory get code -1 and an empty pool.
        self.query_space = pd.Index(self.names).get_indexer(pd.Index(queries["namespace"]))
        self.groups = len(self.names) + 1

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def members(self) -> list[np.ndarray]:
        """Positions of each namespace's memories, ascending, in the order of `names`; then those of none."""
        return self.grouped(self.space)

    def grouped(self, codes: np.ndarray) -> list[np.ndarray]:
        """Positions of the memories of each group, ascending, for codes below `groups`."""
        ends = np.cumsum(np.bincount(codes, minlength=self.groups))
        return np.split(np.argsort(codes, kind="stable"), ends[:-1])

    def position_of(self, memory_ids: pd.Series) -> np.ndarray:
        """Positions of memories by id; -1 for those that are not laid out."""
        return self._ids.get_indexer(pd.Index(memory_ids))

    @cached_property
    def _ids(self) -> pd.Index:
        return pd.Index(self.ids)

    @cached_property
    def namespace_pools(self) -> list[Pool]:
        """Visible memories of each query's own namespace."""
        return [
            self.members_pool(int(space), limit) if space >= 0 else Pool(())
            for space, limit in zip(self.query_space, self.own_limit, strict=True)
        ]

    def members_pool(self, space: int, limit: int) -> Pool:
        """Memories of one namespace below a limit; keys ascend within a namespace in both layouts."""
        members = self.members[space]
        seen = int(np.searchsorted(self._member_keys[space], limit))
        if self.by_time:
            return Pool(_kept([(0, seen)]), members)
        return Pool(_kept([(int(members[0]), int(members[0]) + seen)]))

    @cached_property
    def _member_keys(self) -> list[np.ndarray]:
        return [self.keys[members] for members in self.members]

    @cached_property
    def global_pools(self) -> list[Pool]:
        """Visible memories of all namespaces, per query."""
        if self.by_time:
            return [Pool(_kept([(0, int(stop))])) for stop in np.searchsorted(self.keys, self.own_limit)]
        limits = zip(self.query_space, self.own_limit, self.foreign_limit, strict=True)
        return [Pool(self._around(int(space), int(own), int(foreign))) for space, own, foreign in limits]

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
        return _kept([*joined, (begin, len(self))])

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
            known[limit] = self._starts + [np.searchsorted(keys, limit) for keys in self._member_keys]
        return known[limit]

    def within(self, base: np.ndarray, pool: Pool) -> Pool:
        """Cut a list of positions to what a pool over the layout contains."""
        cuts = [(int(np.searchsorted(base, a)), int(np.searchsorted(base, z))) for a, z in pool.ranges]
        return Pool(_kept(cuts), base)


def _kept(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((start, stop) for start, stop in ranges if stop > start)
