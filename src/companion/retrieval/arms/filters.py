"""Filters within the trusted namespace: they remove what is known to be 0, and nothing else.

What nothing settles passes, and is counted per query: a filter that hides behind unresolved labels shows in
``passed_unresolved``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from companion.retrieval.engine import UNRESOLVED, Search, sizes
from companion.retrieval.registry import Route, arm

Status = Callable[[int, np.ndarray], list[np.ndarray]]
_NAMESPACE = "visible, own namespace, minus known violations"


def axis_filter(search: Search, *, axes: list[str], intents: list[str] | None = None) -> Route:
    """Search the namespace without what is known to be 0 on `axes`, for queries of the given intents (or all)."""

    def status(query: int, positions: np.ndarray) -> list[np.ndarray]:
        return [search.status(query, axis, positions) for axis in axes]

    queries = search.corpus.queries
    applies = np.ones(len(queries), dtype=bool)
    if intents is not None:
        applies &= queries["intent"].isin(intents).to_numpy(dtype=bool) if "intent" in queries else False
    return _filtered(search, status, applies)


for _name, _axes in (
    ("policy_only", ["policy"]),
    ("lifecycle_only", ["lifecycle"]),
    ("policy_and_lifecycle", ["policy", "lifecycle"]),
):
    arm(
        _name,
        description=f"drops memories whose {' or '.join(_axes)} is known to be 0",
        candidates=_NAMESPACE,
        params={"axes": _axes},
    )(axis_filter)
arm(
    "released_intent_lifecycle_v1",
    description="both filters, on queries of current intent only",
    candidates=_NAMESPACE,
    params={"axes": ["policy", "lifecycle"], "intents": ["current"]},
)(axis_filter)


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
    return _filtered(search, lambda _query, positions: [laid_out[positions]], np.ones(len(search.corpus.queries), bool))


def _filtered(search: Search, status: Status, applies: np.ndarray) -> Route:
    """Search each namespace pool after dropping what is 0; count what stays in although an axis is ?."""
    pools = list(search.layout.namespace_pools)
    unresolved = np.zeros(len(applies), dtype=np.int64)
    for query in np.flatnonzero(applies):
        if pools[query].ranges:
            codes = np.stack(status(int(query), pools[query].positions()))
            keep = (codes != 0).all(axis=0)
            unresolved[query] = np.count_nonzero(keep & (codes == UNRESOLVED).any(axis=0))
            pools[query] = pools[query].only(keep)
    return Route(search.dense(pools), sizes(pools), passed_unresolved=unresolved)
