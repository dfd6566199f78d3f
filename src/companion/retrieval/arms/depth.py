"""Post-filtering: search everything to some depth, then keep the query's own namespace.

The filter comes too late for whatever the foreign memories pushed below the depth. That is what these arms show:
recall rises with depth and never passes that of a search within the namespace.
"""

from __future__ import annotations

from companion.retrieval.dense import Hits
from companion.retrieval.engine import Search, sizes
from companion.retrieval.registry import Route, arm

_CANDIDATES = "all visible; own namespace kept afterwards"


# Nearest the function registers first.
@arm(
    "global_post_filter_500",
    description="global top 500, then own namespace",
    candidates=_CANDIDATES,
    params={"depth": 500},
)
@arm(
    "global_post_filter_100",
    description="global top 100, then own namespace",
    candidates=_CANDIDATES,
    params={"depth": 100},
)
@arm(
    "global_post_filter_20",
    description="global top 20, then own namespace",
    candidates=_CANDIDATES,
    params={"depth": 20},
)
def global_post_filter(search: Search, *, depth: int) -> Route:
    """Keep the query's own namespace among the `depth` best of all visible memories, and cut to ``top_k``."""
    layout, pools = search.layout, search.layout.global_pools
    hits = []
    for space, found in zip(layout.query_space, search.dense(pools, depth), strict=True):
        own = layout.space[found.positions] == space
        hits.append(Hits(found.positions[own][: search.top_k], found.scores[own][: search.top_k]))
    return Route(hits, sizes(pools))
