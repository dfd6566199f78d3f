"""The registry of search arms, ours and those of other packages.

An arm is a function that takes a `companion.retrieval.Search` and its own parameters, and returns a `Route`. A module
in ``companion/retrieval/arms`` that decorates one with `arm` adds it everywhere: to the command, to the tables, and to
the chapters. Another package adds its own by an entry point of the group ``companion.arms`` that names such a module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Literal, get_args

import numpy as np

from companion.errors import InputError
from companion.retrieval.dense import Hits

Role = Literal["baseline", "method", "control", "diagnostic"]


@dataclass(frozen=True, eq=False)
class Route:
    """What an arm returns for all queries of a corpus.

    Parameters
    ----------
    hits : list of Hits
        Ranked memories, one entry per query.
    scored : ndarray of int64, shape (queries,)
        Memories whose similarity was computed, each once however many scores it gets.
    passed_unresolved : ndarray of int64, shape (queries,), optional
        Filters only: candidates that stayed in because nothing settles one of the filtered axes.
    fell_back : ndarray of bool, shape (queries,), optional
        Routers only: queries that found no group and searched the whole namespace.
    centroids : ndarray of int64, shape (queries,), optional
        Routers only: group centroids that the query was compared with, besides the memories.
    """

    hits: list[Hits]
    scored: np.ndarray
    passed_unresolved: np.ndarray | None = None
    fell_back: np.ndarray | None = None
    centroids: np.ndarray | None = None


@dataclass(frozen=True)
class ArmSpec:
    """An arm by name.

    Parameters
    ----------
    name, description : str
        Name in tables and on the command line; one line for readers.
    function : callable
        ``function(search, **params) -> Route``; with `seeds` also ``seed=``.
    params : dict
        Parameters with their values.
    role : {"baseline", "method", "control", "diagnostic"}
        What the arm is for. A diagnostic uses labels that no deployed system has.
    seeds : int
        Repetitions of a random arm; 0 for an arm without chance. Repetition s is the route ``<name>:<s>``.
    candidates : str
        What the arm searches, for the table of arms.
    extra : bool
        Left out of ``all``: arms of chapter 08 and of other packages.
    """

    name: str
    description: str
    function: Callable[..., Route]
    params: dict[str, Any] = field(default_factory=dict)
    role: Role = "method"
    seeds: int = 0
    candidates: str = ""
    extra: bool = False

    def routes(self) -> list[str]:
        """Names of this arm's routes in a rankings table: the arm's name, or one name per seed."""
        return [f"{self.name}:{seed}" for seed in range(self.seeds)] if self.seeds else [self.name]


_ARMS: dict[str, ArmSpec] = {}
_OURS = "companion."


def arm(
    name: str,
    *,
    description: str,
    candidates: str = "",
    params: Mapping[str, Any] | None = None,
    role: Role = "method",
    seeds: int = 0,
    extra: bool = False,
) -> Callable[[Callable[..., Route]], Callable[..., Route]]:
    """Register the decorated function as an arm (see `ArmSpec`); one function may be several arms.

    Raises
    ------
    ValueError
        When another function already has the name.
    """

    def decorate(function: Callable[..., Route]) -> Callable[..., Route]:
        known = _ARMS.get(name)
        if known is not None and known.function.__module__ != function.__module__:
            raise ValueError(f"two arms are called {name!r}")
        foreign = not function.__module__.startswith(_OURS)
        _ARMS[name] = ArmSpec(
            name, description, function, dict(params or {}), role, seeds, candidates, extra or foreign
        )
        return function

    return decorate


def load_entry_points(group: str) -> dict[str, Any]:
    """Import what other packages offer under a group; one that cannot be imported is named, not passed over."""
    found = {}
    for entry in entry_points(group=group):
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # another package's code raises whatever it likes
            raise InputError(f"entry point {entry.name!r} of {group} ({entry.value}) fails: {error}") from error
    return found


def known_arms() -> Mapping[str, ArmSpec]:
    """All arms by name: baselines, methods, controls, diagnostics; each in the order of definition."""
    package = importlib.import_module("companion.retrieval.arms")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    load_entry_points("companion.arms")
    roles = list(get_args(Role))
    return dict(sorted(_ARMS.items(), key=lambda item: roles.index(item[1].role)))


def get_arm(name: str) -> ArmSpec:
    """Look an arm up by name; the refusal of an unknown one lists those that exist."""
    known = known_arms()
    if name not in known:
        raise InputError(f"unknown arm {name!r}; known: {', '.join(known)}, or all")
    return known[name]


def base_arm(route: str) -> str:
    """Name of the arm a route belongs to: the route's name without its seed."""
    name, _, seed = route.rpartition(":")
    return name if name and seed.isdigit() else route
