"""What a corpus is, which corpora are known, and where their files live.

A corpus is memories, queries and labels in the contract's table form plus one thing the tables do not carry: which
memories a query may see. Time-limited visibility is three integer columns, so that a search can cut a sorted array
instead of testing every memory (`companion.retrieval.pools` holds the rule):

``memories.visible_key``
    the moment a memory comes into being (a day number, a turn number; any integer that grows).
``queries.visible_own``
    memories of the query's own namespace are visible when ``visible_key < visible_own``.
``queries.visible_foreign``
    memories of every other namespace are visible when ``visible_key < visible_foreign``.

`EVERYTHING` as a limit means that time hides nothing. RHELM sets both limits to the question's day, GateMem sets the
own limit to the turn after ``as_of_turn_id`` and the foreign limit to `EVERYTHING`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.paths import corpora_dir
from companion.retrieval.pools import EVERYTHING, Layout

if TYPE_CHECKING:
    from companion.tables import Records

_REQUIRED = {
    "memories": ("memory_id", "namespace"),
    "queries": ("query_id", "namespace"),
    "labels": ("query_id", "memory_id"),
}
_LIMITS = {"memories": {"visible_key": 0}, "queries": {"visible_own": EVERYTHING, "visible_foreign": EVERYTHING}}


@dataclass(frozen=True)
class Corpus:
    """Memories, queries and labels of one population, with the rule of what each query may see.

    Parameters
    ----------
    name, population : str
        Registry name, and the name of the population; populations are never pooled.
    memories : DataFrame
        Table ``memories`` with ``text``; plus int64 ``visible_key`` (0 for all when absent), and ``split`` when
        memories belong to splits.
    queries : DataFrame
        Table ``queries`` with ``text`` and ``split``; plus int64 ``visible_own`` and ``visible_foreign`` (`EVERYTHING`
        when absent).
    labels : DataFrame
        Table ``labels``. Pairs that are not listed take scope from the namespaces and every other axis from `defaults`,
        or stay unresolved.
    defaults : dict of str to bool
        Axis values that the corpus states for every pair its labels do not list.
    licence, origin : str
        Licence of the data, and where this copy came from (address and revision, or a folder).
    notes : dict of str to int
        Counts that the loader reports (questions read, questions eligible, ...).

    Raises
    ------
    InputError
        When a required column is missing, ids repeat, or limits are not integers.
    """

    name: str
    population: str
    memories: pd.DataFrame
    queries: pd.DataFrame
    labels: pd.DataFrame
    defaults: dict[str, bool] = field(default_factory=dict)
    licence: str = ""
    origin: str = ""
    notes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table, columns in _REQUIRED.items():
            missing = [column for column in columns if column not in getattr(self, table)]
            if missing:
                raise InputError(f"corpus {self.name}: table {table} has no column {missing[0]!r}")
        for table, key in (("memories", "memory_id"), ("queries", "query_id")):
            ids = getattr(self, table)[key]
            if ids.duplicated().any():
                twice = ids[ids.duplicated()].iloc[0]
                raise InputError(f"corpus {self.name}: {key} {twice!r} appears twice in {table}; ids are unique")
        for table, limits in _LIMITS.items():
            frame = getattr(self, table)
            given = {column: frame.get(column, default) for column, default in limits.items()}
            for column, values in given.items():
                integer = isinstance(values, int) or pd.api.types.is_integer_dtype(values)
                if not integer or np.any(pd.isna(values)):
                    raise InputError(f"corpus {self.name}: {column!r} of {table} must hold integers in every row")
            if any(isinstance(v, int) or v.dtype != np.int64 for v in given.values()):
                typed = {c: np.broadcast_to(np.asarray(v, np.int64), len(frame)).copy() for c, v in given.items()}
                object.__setattr__(self, table, frame.assign(**typed))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the query splits, sorted; empty when the corpus has none."""
        return tuple(sorted(self.queries["split"].dropna().unique())) if "split" in self.queries else ()

    def restrict(self, split: str | None) -> Corpus:
        """Keep the queries of one split (None: all), and the memories that its searches run over.

        Memories are cut only when they carry a ``split`` column of their own: RHELM searches all personas *of the
        split*.
        """
        if split is None:
            return self
        if split not in self.splits:
            raise InputError(f"corpus {self.name} has no split {split!r}; it has: {', '.join(self.splits) or 'none'}")
        queries = self.queries[self.queries["split"] == split].reset_index(drop=True)
        memories = self.memories
        if "split" in memories:
            memories = memories[memories["split"] == split].reset_index(drop=True)
        labels = self.labels[self.labels["query_id"].isin(queries["query_id"])].reset_index(drop=True)
        return replace(self, memories=memories, queries=queries, labels=labels)

    def visible_counts(self) -> pd.DataFrame:
        """Count the memories each query may see: query_id, own (of its namespace), everywhere (of all namespaces)."""
        layout = Layout(self)
        pools = {"own": layout.namespace_pools, "everywhere": layout.global_pools}
        sizes = {name: [pool.size for pool in found] for name, found in pools.items()}
        return pd.DataFrame({"query_id": self.queries["query_id"], **sizes})

    def counts(self) -> dict[str, int]:
        """Sizes of the tables, the number of namespaces, and what the loader noted."""
        sizes = {table: len(getattr(self, table)) for table in _REQUIRED}
        return {**sizes, "namespaces": int(self.memories["namespace"].nunique()), **self.notes}

    def records(self, **tables: pd.DataFrame | None) -> Records:
        """Hand the corpus over as `companion.tables.Records`, with further tables such as ``rankings`` and ``work``."""
        from companion.tables import Records

        extra: dict[str, Any] = dict(tables)
        own = {table: getattr(self, table) for table in _REQUIRED}
        return Records(**own, defaults=dict(self.defaults), population=self.population, name=self.name, **extra)


@dataclass(frozen=True)
class CorpusSpec:
    """A corpus that the companion knows by name, whether or not its files are here.

    Parameters
    ----------
    name, title, population : str
        Short name for the command line, one line that says what it is, and the name of its population.
    licence, url, revision : str
        Licence, upstream address, and pinned upstream revision; empty when the corpus ships with the project.
    load : callable
        ``load(root: Path) -> Corpus``; raises `InputError` when files are missing or malformed.
    present : callable
        ``present(root: Path) -> bool``; cheap test that the files are there and whole.
    root : callable, optional
        Where the files live; default is the folder `name` under `corpora_dir`.
    published : mapping of str to int
        Published counts, set beside the loader's notes by `self_check`.
    """

    name: str
    title: str
    population: str
    licence: str
    url: str
    revision: str
    load: Callable[[Path], Corpus]
    present: Callable[[Path], bool]
    root: Callable[[], Path] | None = None
    published: Mapping[str, int] = field(default_factory=dict)

    def where(self) -> Path:
        """Folder in which this corpus lives or would live."""
        return self.root() if self.root is not None else corpora_dir() / self.name

    def is_present(self) -> bool:
        """Whether the files are here and whole."""
        return self.present(self.where())


_REGISTRY: dict[str, CorpusSpec] = {}


def register(spec: CorpusSpec) -> CorpusSpec:
    """Make a corpus known by its name; another loader's corpus of that name is a ValueError."""
    known = _REGISTRY.get(spec.name)
    if known is not None and known.load.__module__ != spec.load.__module__:
        raise ValueError(f"two corpora are called {spec.name!r}")
    _REGISTRY[spec.name] = spec
    return spec


def known() -> Mapping[str, CorpusSpec]:
    """All registered corpora by name, in alphabetical order."""
    return dict(sorted(_REGISTRY.items()))


def get(name: str) -> CorpusSpec:
    """Look a corpus up by name; the refusal of an unknown one lists those that exist."""
    if name not in _REGISTRY:
        raise InputError(f"unknown corpus {name!r}; known: {', '.join(sorted(_REGISTRY))}")
    return _REGISTRY[name]


def load(name: str, split: str | None = None) -> Corpus:
    """Load a corpus by name.

    Parameters
    ----------
    name : str
        Registry name: ``demo``, ``rhelm``, ``gatemem`` or ``memops``.
    split : str, optional
        Keep only this split (`Corpus.restrict`).

    Returns
    -------
    Corpus

    Raises
    ------
    InputError
        When the name is unknown, or the files are not here: the message says which command fetches them.

    Examples
    --------
    >>> from companion import corpora
    >>> corpora.load("demo").counts()["namespaces"]
    12
    """
    spec = get(name)
    where = spec.where()
    if not spec.present(where):
        raise InputError(f"corpus {name} is not in {where}; fetch it with: companion fetch {name}")
    return spec.load(where).restrict(split)


def compare(loaded: Mapping[str, int], published: Mapping[str, int]) -> pd.DataFrame:
    """Set loaded counts beside published ones; there is no verdict where nothing is published."""
    table = pd.DataFrame(
        {
            "quantity": list(loaded),
            "published": pd.array([published.get(name) for name in loaded], dtype="Int64"),
            "loaded": pd.array(list(loaded.values()), dtype="Int64"),
        }
    )
    return table.assign(agrees=table["published"] == table["loaded"])


def self_check(name: str, root: Path) -> pd.DataFrame:
    """Load a fetched source and set what was loaded beside what is published."""
    if name == "evidence":
        from companion.corpora import evidence

        return compare(evidence.counts(root), evidence.PUBLISHED)
    return compare(get(name).load(root).notes, get(name).published)
