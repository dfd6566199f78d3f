"""Routers: group the memories of a namespace as they arrive, and search the groups nearest to the query.

Both are online: a memory joins a group, or starts one, in order of time, and is never moved. So the groups that
existed when a query was asked are the groups of the visible prefix, and one pass over a namespace serves all its
queries. Like the published work figures, ``candidates_scored`` counts memories; the centroids a query is compared
with are counted beside it. Grouping is done when a memory is written and is nobody's query work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from companion.retrieval.engine import Search, sizes
from companion.retrieval.pools import Pool, listed
from companion.retrieval.registry import Route, arm

Choice = Callable[[np.ndarray, np.ndarray], int]
"""``choose(similarities to centroids, member counts) -> group``, or -1 for a new one."""


@arm(
    "threshold_router",
    description="groups of cosine at least .8 to their centroid; the best 3 of cosine at least .8 are searched",
    candidates="visible, own namespace, nearest groups",
    params={"threshold": 0.8, "groups": 3},
)
def threshold_router(search: Search, *, threshold: float, groups: int) -> Route:
    """Search the up to `groups` nearest centroids that reach `threshold`; the whole namespace when none does."""

    def choose(similarity: np.ndarray, _counts: np.ndarray) -> int:
        nearest = int(np.argmax(similarity))
        return nearest if similarity[nearest] >= threshold else -1

    return _routed(search, choose, groups, threshold)


@arm(
    "cluster_router",
    description="groups by a trade of size against similarity; the nearest one is searched",
    candidates="visible, own namespace, nearest group",
    params={"size_weight": 0.5, "temperature": 0.1, "concentration": 1.0, "new_temperature": 0.4, "groups": 1},
)
def cluster_router(
    search: Search,
    *,
    size_weight: float,
    temperature: float,
    concentration: float,
    new_temperature: float,
    groups: int,
) -> Route:
    """Join by the larger of ``size_weight log(n + 1) + cos / temperature`` and the score of a new group.

    A new group scores ``log(concentration) + (1 - max cos) / new_temperature``; a draw joins.
    """

    def choose(similarity: np.ndarray, counts: np.ndarray) -> int:
        join = size_weight * np.log(counts + 1) + similarity / temperature
        best = int(np.argmax(join))
        new = np.log(concentration) + (1 - similarity.max()) / new_temperature
        return best if join[best] >= new else -1

    return _routed(search, choose, groups, -np.inf)


@dataclass(eq=False)
class Groups:
    """Groups of one namespace while memories arrive; centroids are means scaled to length 1."""

    vectors: np.ndarray
    choose: Choice

    def __post_init__(self) -> None:
        n, dimensions = self.vectors.shape
        self.member_of = np.full(n, -1, dtype=np.int64)
        self.arrived = 0
        self.count = 0
        self._sums = np.zeros((n, dimensions))
        self._centroids = np.zeros((n, dimensions))
        self._sizes = np.zeros(n, dtype=np.int64)

    def advance(self, arrived: int) -> None:
        """Let memories arrive until there are `arrived` of them."""
        while self.arrived < arrived:
            vector = self.vectors[self.arrived].astype(np.float64)
            group = self.choose(self.similarity(vector), self._sizes[: self.count]) if self.count else -1
            if group < 0:
                group = self.count
                self.count += 1
            self._sums[group] += vector
            self._sizes[group] += 1
            length = np.linalg.norm(self._sums[group])
            # Opposite vectors may cancel; such a group has no direction and attracts nothing.
            self._centroids[group] = self._sums[group] / length if length > 0 else 0.0
            self.member_of[self.arrived] = group
            self.arrived += 1

    def similarity(self, vector: np.ndarray) -> np.ndarray:
        """Cosines of a vector to the present centroids, shape (count,)."""
        return self._centroids[: self.count] @ vector

    def nearest(self, vector: np.ndarray, groups: int, threshold: float) -> np.ndarray:
        """Up to `groups` nearest centroids of at least `threshold`, ties to the older group."""
        similarity = self.similarity(vector)
        order = np.argsort(-similarity, kind="stable")[:groups]
        return order[similarity[order] >= threshold]


def _routed(search: Search, choose: Choice, groups: int, threshold: float) -> Route:
    """Route every query to its nearest groups, walking each namespace once in order of arrival."""
    pools = search.layout.namespace_pools
    routed: list[Pool] = list(pools)
    centroids = np.zeros(len(pools), dtype=np.int64)
    fell_back = np.zeros(len(pools), dtype=bool)
    for space in np.unique(search.layout.query_space):
        if space < 0:
            continue
        members = search.layout.members[space]
        state = Groups(search.vectors[members], choose)
        asked = np.flatnonzero(search.layout.query_space == space)
        for query in sorted(asked, key=lambda number: pools[number].size):
            seen = pools[query].size
            state.advance(seen)
            if not seen:
                continue
            chosen = state.nearest(search.query_vectors[query].astype(np.float64), groups, threshold)
            centroids[query] = state.count
            fell_back[query] = not len(chosen)
            if len(chosen):
                routed[query] = listed(members[:seen][np.isin(state.member_of[:seen], chosen)])
    return Route(search.dense(routed), sizes(routed), fell_back=fell_back, centroids=centroids)
