"""The tables of one study together, checked against one another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.tables.checks import across, examine, is_canonical, scope_left_empty, validate
from companion.tables.files import EXTENSIONS, FORMATS, guard, read_unchecked, scan
from companion.tables.problems import Origin, Problem, show
from companion.tables.rules import AXIS_COLUMNS
from companion.tables.schema import TABLES

OWN_RECORDS = "own-records"
REQUIRED = ("memories", "queries", "labels")
OPTIONAL = ("rankings", "work", "ledger")
_NEED_ROWS = ("memories", "queries", "rankings")


@dataclass(frozen=True, repr=False)
class Records:
    """The tables of one population.

    Functions that score or label take records as they are built, ``Records(memories=..., queries=..., ...)``, and check
    what is not canonical; `check` does so once and for all.

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
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        sizes = [f"{len(table):,} {name}" for name, table, _ in self.tables()]
        if self.rankings is not None and "arm" in self.rankings:
            sizes.append(f"arms {', '.join(map(str, pd.unique(self.rankings['arm'])))}")
        return f"<Records {self.name or self.population}: {', '.join(sizes)}>"

    def tables(self) -> Iterator[tuple[str, pd.DataFrame, Origin]]:
        """Yield name, table and origin of every table that is present, in the order of the contract."""
        for name in (*REQUIRED, *OPTIONAL):
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
        for axis, value in self.defaults.items():
            if axis not in AXIS_COLUMNS:
                raise InputError(f"defaults: {axis!r} is not an axis; expected one of {', '.join(AXIS_COLUMNS)}")
            if not isinstance(value, bool | np.bool_):
                raise InputError(f"defaults, {axis}: {show(value)}; expected true or false (unresolved: leave it out)")
        valid: dict[str, Any] = {name: validate(table, name, origin) for name, table, origin in self.tables()}
        origins = {name: origin for name, _, origin in self.tables()}
        for problem in across(valid, origins, self._stated(), every=False):
            raise problem.error()
        stated = [table["population"].dropna() for table in valid.values() if "population" in table]
        population = next((str(column.iloc[0]) for column in stated if len(column)), self.population)
        # Lines are no longer needed, and finding them would keep every text file in memory.
        plain = {name: Origin(origin.label) for name, origin in self.origins.items()}
        return replace(self, **valid, population=population, origins=plain)

    def _stated(self) -> str:
        return "" if self.population == OWN_RECORDS else self.population

    def find_problems(self) -> list[Problem]:
        """List everything that is wrong within the tables and across them, errors first.

        An id that is not among those of a table whose own ids could not all be read is only a warning.
        """
        return _examined({name: (table, origin, None) for name, table, origin in self.tables()}, self._stated())[1]


def _examined(
    given: Mapping[str, tuple[pd.DataFrame, Origin, list[int] | None]], stated: str = "", unread: Sequence[str] = ()
) -> tuple[dict[str, pd.DataFrame], list[Problem]]:
    """Examine tables by themselves and together; rows that could not be read are counted in the numbers of rows."""
    canonical: dict[str, pd.DataFrame] = {}
    problems: list[Problem] = []
    origins = {name: origin for name, (_, origin, _) in given.items()}
    for name, (frame, origin, _) in given.items():
        canonical[name], found = examine(frame, name, origin)
        if not len(frame) and name in _NEED_ROWS and name not in unread and not found:
            what, fix = "the table has no rows", f"export {name} again; a header alone says nothing"
            found = [Problem(name, None, None, None, what, "at least one row", fix, None, origin.label, "no_rows")]
        problems += found
    own = {"memories": "memory_id", "queries": "query_id"}
    holed = {
        problem.table for problem in problems if problem.code == "cell" and problem.column == own.get(problem.table)
    }
    problems += across(canonical, origins, stated, holed=holed | set(unread))
    numbers = {name: numbers for name, (_, _, numbers) in given.items() if numbers is not None}
    problems = [
        replace(p, row=numbers[p.table][p.row - 1]) if p.table in numbers and p.row is not None else p for p in problems
    ]
    frames = {name: frame for name, (frame, _, _) in given.items()}
    problems += scope_left_empty(frames, canonical, origins, numbers.get("labels"))
    return canonical, sorted(problems, key=lambda problem: not problem.is_error)


@dataclass
class Folder:
    """The tables of a folder as far as they could be read, and everything that is wrong with them."""

    path: Path
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def faults(self) -> list[Problem]:
        """The problems, as the audit calls them."""
        return self.problems

    @property
    def errors(self) -> list[Problem]:
        """The problems that are not mere warnings."""
        return [problem for problem in self.problems if problem.is_error]

    def records(self) -> Records:
        """Put the tables together as they are, not yet checked; labels that are not there are without rows."""
        tables: dict[str, Any] = dict(self.frames)
        tables.setdefault("labels", pd.DataFrame(columns=["query_id", "memory_id"], dtype="str"))
        return Records(**tables, name=self.path.resolve().name, origins=self.origins)


def examine_folder(path: str | os.PathLike[str], required: Sequence[str] = REQUIRED) -> Folder:
    """Read every table of a folder and list everything that is wrong with it, row by row."""
    folder = Folder(Path(path))
    _refuse_no_folder(folder.path)
    given: dict[str, tuple[pd.DataFrame, Origin, list[int] | None]] = {}
    unread = []
    for name in (*REQUIRED, *OPTIONAL):
        files = _in_folder(folder.path, name)
        if len(files) > 1:
            what = f"{' and '.join(file.name for file in files)} are both there"
            fix = "keep the one that is right and move the others away"
            folder.problems.append(_file_problem(folder.path, name, what, "one file for each table", fix))
        if not files and name in required:
            fix = f"write the table {name}; `companion schema {name}` lists its columns"
            what, expected = f"table {name} is missing", f"one of {', '.join(name + end for end in FORMATS)}"
            folder.problems.append(_file_problem(folder.path, name, what, expected, fix))
        for file in files[:1]:
            try:
                raw = scan(file, name)
            except InputError as error:
                what, _, expected = str(error).removeprefix(f"{file}: ").partition("; expected ")
                fix = "repair the file, or write it again"
                folder.problems.append(_file_problem(file, name, what, expected or "a table", fix))
                continue
            unread += [name] * bool(raw.problems)
            folder.problems += raw.problems
            frame = raw.frame
            if frame.shape == (0, 0):
                frame = pd.DataFrame(columns=list(TABLES[name].required), dtype=object)
            given[name] = frame, raw.origin, raw.numbers
            folder.frames[name], folder.origins[name] = frame, raw.origin
    folder.problems += _examined(given, unread=unread)[1]
    folder.problems += _strangers(folder.path, set(folder.frames))
    return folder


def _file_problem(path: Path, table: str, what: str, expected: str, fix: str, warning: bool = False) -> Problem:
    level: Any = "warning" if warning else "error"
    return Problem(table, None, None, None, what, expected, fix, None, str(path), "file", 0, level)


def _strangers(path: Path, known: set[str]) -> Iterator[Problem]:
    """Warn of files that look like a table with another name."""
    absent = [name for name in (*REQUIRED, *OPTIONAL) if name not in known]
    for file in sorted(path.iterdir()):
        stem = file.name.partition(".")[0]
        if file.suffix.lower() not in (*FORMATS, ".gz") or stem in (*REQUIRED, *OPTIONAL):
            continue
        for near in get_close_matches(stem.lower(), absent, 1, 0.7):
            right = near + file.name.removeprefix(stem)
            what, expected = f"the file is not used; its name looks like {near}", f"{right}, or a name not so close"
            yield _file_problem(file, near, what, expected, f"rename it to {right} if that is what it holds", True)


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
        each in one of the formats of `EXTENSIONS`; or a mapping from table name to file.
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
    files = {"memories": memories, "queries": queries, "labels": labels}
    files |= {"rankings": rankings, "work": work, "ledger": ledger}
    paths = _paths(source, {table: path for table, path in files.items() if path is not None})
    loaded = {table: read_unchecked(path, table) for table, path in paths.items()}
    tables: dict[str, Any] = {table: frame for table, (frame, _, _) in loaded.items()}
    return Records(
        **tables,
        defaults=dict(defaults or {}),
        population=population,
        name=name or ("" if source is None or isinstance(source, Mapping) else Path(source).resolve().name),
        origins={table: origin for table, (_, _, origin) in loaded.items()},
    ).check()


def _paths(
    source: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None,
    files: Mapping[str, str | os.PathLike[str]],
) -> dict[str, Path]:
    """Return the file of each table, in the order of the contract."""
    known = (*REQUIRED, *OPTIONAL)
    given = {**(source if isinstance(source, Mapping) else {}), **files}
    for table in given:
        if table not in known:
            raise InputError(f"no table is called {table!r}; expected {', '.join(known)}")
    folder = None if source is None or isinstance(source, Mapping) else Path(source)
    if folder is not None:
        _refuse_no_folder(folder)
    paths = {}
    for table in known:
        found = [Path(given[table])] if table in given else [] if folder is None else _in_folder(folder, table)
        if len(found) > 1:
            names = " and ".join(path.name for path in found)
            raise InputError(f"{folder}: {names} are both there; expected one of them")
        if not found and table in REQUIRED:
            place = "records" if folder is None else str(folder)
            names = ", ".join(table + end for end in FORMATS)
            raise InputError(f"{place}: table {table} is missing; expected {names}")
        if found:
            paths[table] = found[0]
    return paths


def _refuse_no_folder(path: Path) -> None:
    with guard(path, "a folder of tables"):
        if not path.is_dir():
            found = "is not a folder" if path.exists() else "does not exist"
            raise InputError(f"{path}: {found}; expected a folder of tables")


def _in_folder(folder: Path, table: str) -> list[Path]:
    return [folder / (table + end) for end in EXTENSIONS if os.path.lexists(folder / (table + end))]
