"""Namespaces that are guessed from text and time instead of being known (ours; chapter 08).

A share of the memories carries its true namespace, at least one memory of each; the rest is guessed. Features are the
text's unit vector and, times `TIME`, when the memory came into being, scaled to [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from companion.errors import InputError
from companion.retrieval.engine import Search, sizes
from companion.retrieval.pools import Pool, listed
from companion.retrieval.registry import Route, arm

METHODS = ("neighbours", "classifier", "clusters")
TIME = 0.1
NEIGHBOURS = 5
CLUSTERS = 3
"""Clusters for each namespace there is."""

ABSTAINS = 0.25
"""Share of the guesses, the least sure ones, that an abstaining method leaves unresolved."""


@dataclass(frozen=True, eq=False)
class Inferred:
    """Namespace codes of memories (layout positions) and queries, and which of them are known or unsure."""

    space: np.ndarray
    query_space: np.ndarray
    labelled: np.ndarray
    unsure: np.ndarray


def infer(search: Search, method: str, share: float, seed: int) -> Inferred:
    """Guess the namespace of every memory that does not carry its own, and of every query.

    Parameters
    ----------
    search : Search
        Needs an encoder.
    method : {"neighbours", "classifier", "clusters"}
        The `NEIGHBOURS` nearest labelled memories vote, weighted by nearness; a ridge classifier; k-means clusters of
        everything, each named by most of its labelled members (the nearest named cluster where it has none).
    share : float
        Share of the memories whose namespace is known. The labelled ones of a share are labelled in every larger one.
    seed : int
        Decides which memories are labelled, and where clusters start.
    """
    if method not in METHODS:
        raise InputError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    if not 0 < share <= 1:
        raise InputError(f"share is {share}; expected above 0 and at most 1")
    true, known = search.layout.space, _labelled(search, share, seed)
    memories, queries = _features(search)
    if method == "clusters":
        guess, sure, asked = _by_clusters(search, memories, queries, known, seed)
    else:
        maker = _by_neighbours if method == "neighbours" else _by_classifier
        guess, sure, asked = maker(memories, queries, true, known)
    unsure = np.zeros(len(true), dtype=bool)
    guessed = np.flatnonzero(~known)
    unsure[guessed[np.argsort(sure[guessed], kind="stable")[: round(ABSTAINS * len(guessed))]]] = True
    return Inferred(np.where(known, true, guess), asked, known, unsure)


def _labelled(search: Search, share: float, seed: int) -> np.ndarray:
    layout = search.layout
    draw = search.rng(seed, "labelled").random(len(layout))[layout.tie]
    known = draw < share
    for members in layout.members[:-1]:  # the last holds those of no namespace
        known[members[np.argmin(draw[members])]] = True
    known[layout.space == layout.groups - 1] = False
    return known


def _features(search: Search) -> tuple[np.ndarray, np.ndarray]:
    keys = search.layout.keys.astype(float)
    low, span = keys.min(), max(float(np.ptp(keys)), 1.0)
    now = np.clip((search.layout.own_limit.astype(float) - low) / span, 0, 1)
    times = (TIME * (keys - low) / span, TIME * now)
    vectors = (search.vectors, search.query_vectors)
    memories, queries = (np.column_stack([v, t]).astype(np.float32) for v, t in zip(vectors, times, strict=True))
    return memories, queries


def _by_neighbours(memories: Any, queries: Any, true: Any, known: Any) -> tuple[Any, Any, Any]:
    from sklearn.neighbors import KNeighborsClassifier

    model = KNeighborsClassifier(min(NEIGHBOURS, int(known.sum())), weights="distance", algorithm="brute")
    model.fit(memories[known], true[known])
    shares = model.predict_proba(memories)
    return model.classes_[shares.argmax(axis=1)], shares.max(axis=1), model.predict(queries)


def _by_classifier(memories: Any, queries: Any, true: Any, known: Any) -> tuple[Any, Any, Any]:
    from sklearn.linear_model import RidgeClassifier

    model = RidgeClassifier().fit(memories[known], true[known])
    values = model.decision_function(memories)
    if values.ndim == 1:  # two namespaces: one column, signed
        values = np.column_stack([-values, values])
    best = np.sort(values, axis=1)
    return model.classes_[values.argmax(axis=1)], best[:, -1] - best[:, -2], model.predict(queries)


def _by_clusters(search: Search, memories: Any, queries: Any, known: Any, seed: int) -> tuple[Any, Any, Any]:
    from sklearn.cluster import MiniBatchKMeans

    true = search.layout.space
    kept = search.__dict__.setdefault("_clusters", {})  # the same for every share
    if seed not in kept:
        count = min(CLUSTERS * len(np.unique(true)), len(memories))
        kept[seed] = MiniBatchKMeans(count, n_init=1, random_state=seed, batch_size=2048).fit(memories)
    model = kept[seed]
    centres = model.cluster_centers_
    votes = np.zeros((len(centres), int(true.max()) + 1))
    np.add.at(votes, (model.labels_[known], true[known]), 1)
    named = np.flatnonzero(votes.sum(axis=1))
    to_named = ((centres[:, None] - centres[named][None]) ** 2).sum(axis=2).argmin(axis=1)
    name = votes.argmax(axis=1)[named[to_named]]
    sure = votes.max(axis=1) / np.maximum(votes.sum(axis=1), 1)
    return name[model.labels_], sure[model.labels_], name[model.predict(queries)]


def inferred_pools(search: Search, found: Inferred, asker: str = "trusted", abstain: str = "guess") -> list[Pool]:
    """Visible memories whose namespace, known or guessed, is that of the query (``trusted`` or ``inferred``).

    `abstain` says what happens to unsure guesses: they count (``guess``), are ``admitted`` to every search, or
    ``excluded`` from all.
    """
    asked = search.layout.query_space if asker == "trusted" else found.query_space
    pools = []
    for space, pool in zip(asked, search.layout.global_pools, strict=True):
        positions = pool.positions()
        inside, unsure = found.space[positions] == space, found.unsure[positions]
        if abstain != "guess":
            inside = inside | unsure if abstain == "admitted" else inside & ~unsure
        pools.append(listed(positions[inside]))
    return pools


for _asker in ("trusted", "inferred"):
    _name = "inferred_namespace" if _asker == "trusted" else "inferred_namespace_and_asker"

    @arm(
        _name,
        description=f"dense within guessed namespaces: a fifth of the memories carries its own; {_asker} asker",
        candidates="visible, own namespace by guess",
        params={"method": "neighbours", "share": 0.2, "asker": _asker},
        seeds=3,
        extra=True,
    )
    def inferred_namespace(search: Search, *, method: str, share: float, asker: str, seed: int) -> Route:
        """Search the visible memories whose known or guessed namespace is the query's."""
        pools = inferred_pools(search, infer(search, method, share, seed), asker)
        return Route(search.dense(pools), sizes(pools))
