"""Post-filtering: search everything to some depth, then keep the query's own namespace.

The filter comes too late for whatever the foreign memories pushed below the depth. That is what these arms show: recall
rises with depth and never passes that of a search within the namespace.
"""

from __future__ import annotations

from companion.retrieval.dense import Hits
from companion.retrieval.engine import Search, sizes
from companion.retrieval.registry import Route, arm


def global_post_filter(search: Search, *, depth: int) -> Route:
    """Keep the query's own namespace among the `depth` best of all visible memories, and cut to ``top_k``."""
    layout, pools = search.layout, search.layout.global_pools
    hits = []
    for space, found in zip(layout.query_space, search.dense(pools, depth), strict=True):
        own = layout.space[found.positions] == space
        hits.append(Hits(found.positions[own][: search.top_k], found.scores[own][: search.top_k]))
    return Route(hits, sizes(pools))


for _depth in (20, 100, 500):
    arm(
        f"global_post_filter_{_depth}",
        description=f"global top {_depth}, then own namespace",
        candidates="all visible; own namespace kept afterwards",
        params={"depth": _depth},
    )(global_post_filter)
