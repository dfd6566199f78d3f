"""What a corpus is, which corpora are known, and where their files live.

A corpus is memories, queries and labels in the contract's table form plus one thing the tables do not
carry: which memories a query may see. Time-limited visibility is three integer columns, so that a search can
cut a sorted array instead of testing every memory:

``memories.visible_key``
    the moment a memory comes into being (a day number, a turn number; any integer that grows).
``queries.visible_own``
    memories of the query's own namespace are visible when ``visible_key < visible_own``.
``queries.visible_foreign``
    memories of every other namespace are visible when ``visible_key < visible_foreign``.

`EVERYTHING` as a limit means that time hides nothing. RHELM sets both limits to the question's day, GateMem
sets the own limit to the turn after ``as_of_turn_id`` and the foreign limit to `EVERYTHING`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import platformdirs

from companion.errors import InputError

if TYPE_CHECKING:
    from companion.tables import Records

EVERYTHING: int = int(np.iinfo(np.int64).max)
"""A visibility limit that hides nothing."""

_VISIBILITY: dict[str, tuple[str, ...]] = {
    "memories": ("visible_key",),
    "queries": ("visible_own", "visible_foreign"),
}
_REQUIRED: dict[str, tuple[str, ...]] = {
    "memories": ("memory_id", "namespace"),
    "queries": ("query_id", "namespace"),
    "labels": ("query_id", "memory_id"),
}


@dataclass(frozen=True)
class Corpus:
    """Memories, queries and labels of one population, with the rule of what each query may see.

    Parameters
    ----------
    name : str
        Registry name, e.g. ``"rhelm"``.
    population : str
        Name of the population in the sense of Protocol section 3; populations are never pooled.
    memories : DataFrame
        Table ``memories`` of the contract with ``text``; plus int64 ``visible_key`` (0 for all when absent),
        and ``split`` when memories belong to splits.
    queries : DataFrame
        Table ``queries`` of the contract with ``text`` and ``split``; plus int64 ``visible_own`` and
        ``visible_foreign`` (`EVERYTHING` when absent).
    labels : DataFrame
        Table ``labels`` of the contract. Pairs that are not listed take scope from the namespaces and every
        other axis from `defaults`, or stay unresolved.
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
            frame: pd.DataFrame = getattr(self, table)
            missing = [column for column in columns if column not in frame]
            if missing:
                raise InputError(f"corpus {self.name}: table {table} has no column {missing[0]!r}")
        for table, key in (("memories", "memory_id"), ("queries", "query_id")):
            ids = getattr(self, table)[key]
            if ids.duplicated().any():
                twice = ids[ids.duplicated()].iloc[0]
                raise InputError(f"corpus {self.name}: {key} {twice!r} appears twice in {table}; ids are unique")
        for table, columns in _VISIBILITY.items():
            filled = _with_limits(getattr(self, table), columns, self.name, table)
            object.__setattr__(self, table, filled)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the query splits, sorted; empty when the corpus has none."""
        if "split" not in self.queries:
            return ()
        return tuple(sorted(self.queries["split"].dropna().unique()))

    def restrict(self, split: str | None) -> Corpus:
        """Keep the queries of one split, and the memories that its searches run over.

        Parameters
        ----------
        split : str or None
            Split name; None keeps everything.

        Returns
        -------
        Corpus
            Queries of the split. Memories are cut only when they carry a ``split`` column of their own
            (Protocol section 4: RHELM searches all personas *of the split*). Labels follow the queries.

        Raises
        ------
        InputError
            When the corpus has no such split.
        """
        if split is None:
            return self
        if split not in self.splits:
            known = ", ".join(self.splits) or "none"
            raise InputError(f"corpus {self.name} has no split {split!r}; it has: {known}")
        queries = self.queries[self.queries["split"] == split].reset_index(drop=True)
        memories = self.memories
        if "split" in memories:
            memories = memories[memories["split"] == split].reset_index(drop=True)
        labels = self.labels[self.labels["query_id"].isin(queries["query_id"])].reset_index(drop=True)
        return replace(self, memories=memories, queries=queries, labels=labels)

    def visible_counts(self) -> pd.DataFrame:
        """Count the memories each query may see, without listing them.

        Returns
        -------
        DataFrame
            query_id, own (int64, visible memories of its namespace), everywhere (int64, of all namespaces).
        """
        key = self.memories["visible_key"].to_numpy()
        every = np.sort(key)
        own_keys = {space: np.sort(part) for space, part in _by_namespace(self.memories, key)}
        nothing = np.empty(0, dtype=np.int64)
        own, everywhere = [], []
        for space, limit, foreign in zip(
            self.queries["namespace"], self.queries["visible_own"], self.queries["visible_foreign"], strict=True
        ):
            keys = own_keys.get(space, nothing)
            mine = int(np.searchsorted(keys, limit))
            own.append(mine)
            everywhere.append(int(np.searchsorted(every, foreign) - np.searchsorted(keys, foreign)) + mine)
        return pd.DataFrame({"query_id": self.queries["query_id"], "own": own, "everywhere": everywhere})

    def counts(self) -> dict[str, int]:
        """Sizes of the tables, plus what the loader noted.

        Returns
        -------
        dict of str to int
            memories, queries, labels, namespaces, and the entries of `notes`.
        """
        return {
            "memories": len(self.memories),
            "queries": len(self.queries),
            "labels": len(self.labels),
            "namespaces": int(self.memories["namespace"].nunique()),
            **self.notes,
        }

    def records(self, **tables: pd.DataFrame | None) -> Records:
        """Hand the corpus over as contract tables, e.g. to score rankings of it.

        Parameters
        ----------
        **tables : DataFrame
            Further tables to attach: ``rankings``, ``work``, ``ledger``.

        Returns
        -------
        companion.tables.Records
            With this corpus's defaults, population and name.
        """
        from companion.tables import Records

        extra: dict[str, Any] = dict(tables)
        return Records(
            memories=self.memories,
            queries=self.queries,
            labels=self.labels,
            defaults=dict(self.defaults),
            population=self.population,
            name=self.name,
            **extra,
        )


def _by_namespace(memories: pd.DataFrame, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Split `values` by the namespace of their memory."""
    groups = memories.groupby("namespace", sort=False).indices
    return [(str(space), values[rows]) for space, rows in groups.items()]


def _with_limits(frame: pd.DataFrame, columns: tuple[str, ...], name: str, table: str) -> pd.DataFrame:
    """Fill absent visibility columns and make sure that the present ones are int64."""
    added: dict[str, Any] = {}
    for column in columns:
        if column not in frame:
            added[column] = np.full(len(frame), 0 if column == "visible_key" else EVERYTHING, dtype=np.int64)
        elif frame[column].dtype != np.int64:
            if not pd.api.types.is_integer_dtype(frame[column]) or frame[column].isna().any():
                raise InputError(f"corpus {name}: column {column!r} of {table} must hold integers in every row")
            added[column] = frame[column].to_numpy(dtype=np.int64)
    return frame.assign(**added) if added else frame


@dataclass(frozen=True)
class CorpusSpec:
    """A corpus that the companion knows by name, whether or not its files are here.

    Parameters
    ----------
    name, title : str
        Short name for the command line, and one line that says what it is.
    population : str
        Population name (Protocol section 3).
    licence, url, revision : str
        Licence, upstream address, and pinned upstream revision; empty when the corpus ships with the project.
    load : callable
        ``load(root: Path) -> Corpus``; raises `InputError` when files are missing or malformed.
    present : callable
        ``present(root: Path) -> bool``; cheap test that the files are there and whole.
    root : callable, optional
        Where the files live; default is the folder `name` under `corpora_dir`.
    tree : str
        Git tree id of the pinned revision, when known.
    paths : tuple of str
        Upstream folders that are needed (for a sparse fetch); empty means all.
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
    tree: str = ""
    paths: tuple[str, ...] = ()

    def where(self) -> Path:
        """Folder in which this corpus lives or would live."""
        return self.root() if self.root is not None else corpora_dir() / self.name

    def is_present(self) -> bool:
        """Whether the files are here and whole."""
        return self.present(self.where())


_REGISTRY: dict[str, CorpusSpec] = {}


def corpora_dir() -> Path:
    """Folder that holds fetched corpora: ``$COMPANION_CORPORA``, or the user's data directory.

    Returns
    -------
    Path
        Not necessarily existing.
    """
    named = os.environ.get("COMPANION_CORPORA")
    if named:
        return Path(named).expanduser()
    return Path(platformdirs.user_data_dir("companion")) / "corpora"


def register(spec: CorpusSpec) -> CorpusSpec:
    """Make a corpus known by its name.

    Parameters
    ----------
    spec : CorpusSpec
        What to register.

    Returns
    -------
    CorpusSpec
        The same object, so that a module can keep it as ``SPEC``.

    Raises
    ------
    ValueError
        When another corpus already has the name.
    """
    known = _REGISTRY.get(spec.name)
    if known is not None and known.load.__module__ != spec.load.__module__:
        raise ValueError(f"two corpora are called {spec.name!r}")
    _REGISTRY[spec.name] = spec
    return spec


def known() -> Mapping[str, CorpusSpec]:
    """All registered corpora by name, in alphabetical order."""
    return dict(sorted(_REGISTRY.items()))


def get(name: str) -> CorpusSpec:
    """Look a corpus up by name.

    Raises
    ------
    InputError
        When no corpus has that name; the message lists those that exist.
    """
    try:
        return _REGISTRY[name]
    except KeyError:
        raise InputError(f"unknown corpus {name!r}; known: {', '.join(sorted(_REGISTRY))}") from None


def load(name: str, split: str | None = None) -> Corpus:
    """Load a corpus by name.

    Parameters
    ----------
    name : str
        Registry name.
    split : str, optional
        Keep only this split (`Corpus.restrict`).

    Returns
    -------
    Corpus

    Raises
    ------
    InputError
        When the name is unknown, or the files are not here: the message says which command fetches them.
    """
    spec = get(name)
    where = spec.where()
    if not spec.present(where):
        raise InputError(f"corpus {name} is not in {where}; fetch it with: companion fetch {name}")
    return spec.load(where).restrict(split)
