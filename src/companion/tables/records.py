"""The tables of one study together, checked against one another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.tables.checks import examine, is_canonical, validate
from companion.tables.files import EXTENSIONS, read_unchecked
from companion.tables.problems import Origin, Problem, show
from companion.tables.schema import AXIS_COLUMNS

OWN_RECORDS = "own-records"
_REQUIRED = ("memories", "queries", "labels")
_OPTIONAL = ("rankings", "work", "ledger")
# Which ids a table borrows, and from where.
_BORROWED: dict[str, dict[str, str]] = {
    "labels": {"query_id": "queries", "memory_id": "memories"},
    "rankings": {"query_id": "queries", "memory_id": "memories"},
    "work": {"query_id": "queries"},
    "ledger": {"query_id": "queries", "memory_id": "memories"},
}


@dataclass(frozen=True)
class Records:
    """The tables of one population.

    Attributes
    ----------
    memories, queries, labels : DataFrame
        As in the contract; canonical after `check`.
    rankings, work, ledger : DataFrame or None
        Likewise, where there are any.
    defaults : mapping of str to bool
        Axis values that the corpus states for pairs that labels does not list. An axis not named here stays
        unresolved for them (scope follows from the namespaces when both are known).
    population : str
        Population the records come from; populations are never pooled.
    name : str
        What reports call the records.
    origins : mapping of str to Origin
        Where each table came from, for messages.
    """

    memories: pd.DataFrame
    queries: pd.DataFrame
    labels: pd.DataFrame
    rankings: pd.DataFrame | None = None
    work: pd.DataFrame | None = None
    ledger: pd.DataFrame | None = None
    defaults: Mapping[str, bool] = field(default_factory=dict)
    population: str = OWN_RECORDS
    name: str = ""
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False, compare=False)

    def tables(self) -> Iterator[tuple[str, pd.DataFrame, Origin]]:
        """Yield name, table and origin of every table that is present, in the order of the contract."""
        for name in (*_REQUIRED, *_OPTIONAL):
            table = getattr(self, name)
            if table is not None:
                yield name, table, self.origins.get(name, Origin(name))

    def checked(self) -> Records:
        """Return the records with canonical tables; they are checked only where a table is not canonical."""
        return self if all(is_canonical(table, name) for name, table, _ in self.tables()) else self.check()

    def check(self) -> Records:
        """Return the records with canonical tables, or refuse them.

        Returns
        -------
        Records
            A population stated by the tables' own ``population`` column replaces the default one.

        Raises
        ------
        InputError
            With the first problem found, within a table (see `validate`) or across tables: an id that no memory or
            query has, or more than one population.
        """
        _check_defaults(self.defaults)
        valid: dict[str, Any] = {name: validate(table, name, origin) for name, table, origin in self.tables()}
        checked = replace(self, **valid)
        for problem in _across(checked):
            raise problem.error()
        # Lines are no longer needed, and finding them would keep every text file in memory.
        origins = {name: Origin(origin.label) for name, origin in self.origins.items()}
        return replace(checked, population=_population(checked), origins=origins)

    def find_problems(self) -> list[Problem]:
        """List everything that is wrong within the tables and across them.

        Returns
        -------
        list of Problem
            Tables whose own problems hide an id column are left out of the comparison across tables.
        """
        problems: list[Problem] = []
        readable: dict[str, Any] = {}
        for name, table, origin in self.tables():
            readable[name], found = examine(table, name, origin)
            problems += found
        problems += _across(replace(self, **readable))
        return sorted(problems, key=lambda problem: problem.level == "warning")


def load_records(
    source: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None,
    *,
    memories: str | os.PathLike[str] | None = None,
    queries: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    rankings: str | os.PathLike[str] | None = None,
    work: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    defaults: Mapping[str, bool] | None = None,
    population: str = OWN_RECORDS,
    name: str = "",
) -> Records:
    """Read and check the tables of one study.

    Parameters
    ----------
    source : path-like or mapping, optional
        A folder that holds ``memories``, ``queries``, ``labels`` and perhaps ``rankings``, ``work``, ``ledger``,
        each as .parquet, .csv, .jsonl or .ndjson; or a mapping from table name to file.
    memories, queries, labels, rankings, work, ledger : path-like, optional
        Files; each takes the place of what ``source`` has.
    defaults : mapping of str to bool, optional
        See `Records`.
    population, name : str
        See `Records`; ``name`` defaults to the name of the folder.

    Returns
    -------
    Records
        Checked, with canonical tables.

    Raises
    ------
    InputError
        If a required table is missing, a table is there twice, a file cannot be read, or a check fails.
    """
    records = open_records(
        source,
        memories=memories,
        queries=queries,
        labels=labels,
        rankings=rankings,
        work=work,
        ledger=ledger,
    )
    return replace(records, defaults=dict(defaults or {}), population=population, name=name or records.name).check()


def open_records(
    source: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None,
    **files: str | os.PathLike[str] | None,
) -> Records:
    """Read the tables of one study without checking them, so that `Records.find_problems` can list every fault.

    Parameters
    ----------
    source : path-like or mapping, optional
        As in `load_records`.
    **files : path-like
        Table name to file, as in `load_records`.

    Returns
    -------
    Records
        Tables as in the files, not yet canonical.

    Raises
    ------
    InputError
        If a required table is missing, a table is there twice, or a file cannot be read.
    """
    paths = _paths(source, {name: path for name, path in files.items() if path is not None})
    loaded = {name: read_unchecked(path, name) for name, path in paths.items()}
    tables: dict[str, Any] = {name: frame for name, (frame, _, _) in loaded.items()}
    return Records(
        **tables,
        name="" if source is None or isinstance(source, Mapping) else Path(source).resolve().name,
        origins={name: origin for name, (_, _, origin) in loaded.items()},
    )


def _paths(
    source: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None,
    files: Mapping[str, str | os.PathLike[str]],
) -> dict[str, Path]:
    """Return the file of each table, in the order of the contract."""
    known = (*_REQUIRED, *_OPTIONAL)
    given = dict(source) if isinstance(source, Mapping) else {}
    given = {**given, **files}
    for table in given:
        if table not in known:
            raise InputError(f"no table is called {table!r}; expected {', '.join(known)}")
    folder = None if source is None or isinstance(source, Mapping) else Path(source)
    if folder is not None and not folder.is_dir():
        found = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(f"{folder}: {found}; expected a folder of tables")
    paths = {}
    for table in known:
        path = given.get(table) or (None if folder is None else _in_folder(folder, table))
        if path is not None:
            paths[table] = Path(path)
        elif table in _REQUIRED:
            place = "records" if folder is None else str(folder)
            raise InputError(f"{place}: table {table} is missing; expected {', '.join(_one_of(table))}")
    return paths


def _one_of(table: str) -> list[str]:
    return [table + suffix for suffix in EXTENSIONS]


def _in_folder(folder: Path, table: str) -> Path | None:
    found = [folder / name for name in _one_of(table) if (folder / name).exists()]
    if len(found) > 1:
        raise InputError(f"{folder}: {' and '.join(path.name for path in found)} are both there; expected one of them")
    return found[0] if found else None


def _check_defaults(defaults: Mapping[str, bool]) -> None:
    for axis, value in defaults.items():
        if axis not in AXIS_COLUMNS:
            raise InputError(f"defaults: {axis!r} is not an axis; expected one of {', '.join(AXIS_COLUMNS)}")
        if not isinstance(value, bool | np.bool_):
            raise InputError(f"defaults, {axis}: {show(value)}; expected true or false (unresolved: leave it out)")


def _across(records: Records) -> list[Problem]:
    """Compare the tables: unknown ids, and populations that differ."""
    tables = {name: (table, origin) for name, table, origin in records.tables()}
    problems = []
    for name, borrowed in _BORROWED.items():
        for column, lender in borrowed.items():
            if name in tables and column in tables[name][0] and column in tables[lender][0]:
                problems += _unknown_ids(*tables[name], column, *tables[lender])
    return problems + _mixed_populations(records)


def _unknown_ids(
    table: pd.DataFrame, origin: Origin, column: str, lender: pd.DataFrame, lender_origin: Origin
) -> list[Problem]:
    ids = table[column]
    unknown = (ids.notna() & ~ids.isin(lender[column])).to_numpy()
    if not unknown.any():
        return []
    row = int(np.flatnonzero(unknown)[0])
    return [
        Problem(
            origin.label,
            f"{show(ids.iloc[row])} is unknown",
            f"a {column} listed in {lender_origin.label}",
            f"add the missing {column} to {lender_origin.label}, or remove the rows that name it",
            column,
            row + 1,
            origin.line(row),
            ids.iloc[row],
            int(unknown.sum()) - 1,
        )
    ]


def _populations(records: Records) -> dict[str, str]:
    """Map each population that a table states to the first table that states it."""
    stated: dict[str, str] = {} if records.population == OWN_RECORDS else {records.population: "the call"}
    for _, table, origin in records.tables():
        if "population" in table:
            for population in table["population"].dropna().unique():
                stated.setdefault(population, origin.label)
    return stated


def _mixed_populations(records: Records) -> list[Problem]:
    stated = _populations(records)
    if len(stated) < 2:
        return []
    (first, place), (second, other) = list(stated.items())[:2]
    return [
        Problem(
            other,
            f"population {show(second)} is mixed with {show(first)} of {place}",
            "one population in a set of records",
            "populations are never pooled: keep each one in a folder of its own",
            "population",
            value=second,
        )
    ]


def _population(records: Records) -> str:
    return next(iter(_populations(records)), records.population)
