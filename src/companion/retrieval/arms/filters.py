"""Filters within the trusted namespace: they remove what is known to be 0, and nothing else.

What nothing settles passes, and is counted per query: a filter that hides behind unresolved labels shows in
``passed_unresolved``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from companion.retrieval.engine import UNRESOLVED, Search, sizes
from companion.retrieval.pools import Pool, only
from companion.retrieval.registry import Route, arm

Status = Callable[[int, np.ndarray], list[np.ndarray]]
_NAMESPACE = "visible, own namespace, minus known violations"


# Nearest the function registers first.
@arm(
    "released_intent_lifecycle_v1",
    description="both filters, on queries of current intent only",
    candidates=_NAMESPACE,
    params={"axes": ["policy", "lifecycle"], "intents": ["current"]},
)
@arm(
    "policy_and_lifecycle",
    description="drops memories whose policy or lifecycle is known to be 0",
    candidates=_NAMESPACE,
    params={"axes": ["policy", "lifecycle"]},
)
@arm(
    "lifecycle_only",
    description="drops memories whose lifecycle is known to be 0",
    candidates=_NAMESPACE,
    params={"axes": ["lifecycle"]},
)
@arm(
    "policy_only",
    description="drops memories whose policy is known to be 0",
    candidates=_NAMESPACE,
    params={"axes": ["policy"]},
)
def axis_filter(search: Search, *, axes: list[str], intents: list[str] | None = None) -> Route:
    """Search the namespace without what is known to be 0 on `axes`, for queries of the given intents (or all)."""

    def status(query: int, positions: np.ndarray) -> list[np.ndarray]:
        return [search.status(query, axis, positions) for axis in axes]

    return _filtered(search, status, _has_intent(search, intents))


@arm(
    "namespace_current_only",
    description="drops stale and superseded memories for every query, history questions too: a deliberate mistake",
    candidates=_NAMESPACE,
    params={"dropped": ["stale", "superseded"]},
    role="control",
)
def namespace_current_only(search: Search, *, dropped: list[str]) -> Route:
    """Search the namespace without memories in the dropped states; an unknown state passes as unresolved."""
    memories = search.corpus.memories
    code = np.full(len(memories), UNRESOLVED, dtype=np.int8)
    if "state" in memories:
        state = memories["state"]
        code[(state.notna() & (state != "unknown")).to_numpy(dtype=bool)] = 1
        code[state.isin(dropped).to_numpy(dtype=bool)] = 0
    laid_out = code[search.layout.order]

    def status(_query: int, positions: np.ndarray) -> list[np.ndarray]:
        return [laid_out[positions]]

    return _filtered(search, status, np.ones(len(search.corpus.queries), dtype=bool))


def _has_intent(search: Search, intents: list[str] | None) -> np.ndarray:
    queries = search.corpus.queries
    if intents is None:
        return np.ones(len(queries), dtype=bool)
    if "intent" not in queries:
        return np.zeros(len(queries), dtype=bool)
    return queries["intent"].isin(intents).to_numpy(dtype=bool)


def _filtered(search: Search, status: Status, applies: np.ndarray) -> Route:
    """Search each namespace pool after dropping what is 0; count what stays in although an axis is ?."""
    pools: list[Pool] = []
    unresolved = np.zeros(len(applies), dtype=np.int64)
    for query, pool in enumerate(search.layout.namespace_pools):
        if not applies[query] or not pool.ranges:
            pools.append(pool)
            continue
        codes = np.stack(status(query, pool.positions()))
        keep = (codes != 0).all(axis=0)
        unresolved[query] = np.count_nonzero(keep & (codes == UNRESOLVED).any(axis=0))
        pools.append(only(pool, keep))
    return Route(search.dense(pools), sizes(pools), passed_unresolved=unresolved)
