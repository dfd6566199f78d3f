"""Everything that is wrong with a folder of tables, row by row, with a fix for each.

`companion.tables.validate` stops at the first fault; the owner of a log with a thousand bad rows wants all thousand.
A file that cannot be parsed is read line by line, so that its good rows are still examined.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.tables import (
    EXTENSIONS,
    TABLES,
    Column,
    Origin,
    Problem,
    Rule,
    find_problems,
    format_of,
    read_raw,
    strict_json,
)
from companion.tables.problems import is_missing, not_accepted, show
from companion.tables.schema import EXPECTED, ONE_SOURCE, missing_column
from companion.tables.values import Parsed, parse_boolean, parse_name, parse_number, parse_text, parse_whole, settle

REQUIRED = ("memories", "queries", "labels")
OPTIONAL = ("rankings", "work", "ledger")

UNKNOWN_MEMORY = "unknown_memory_id"
NO_GROUP = "group_given"
NO_ROWS = "no_rows"
SCOPE_LEFT_EMPTY = "scope_left_empty"
_NEED_ROWS = ("memories", "queries", "rankings")

_PARSERS: dict[str, Callable[[pd.Series], Parsed]] = {
    "text": parse_text,
    "name": parse_name,
    "boolean": parse_boolean,
    "whole": parse_whole,
    "count": parse_whole,
    "score": parse_number,
    "number": parse_number,
}
# Rules that compare rows with each other on a column that may hold unreadable cells: without those cells they
# would complain of rows that are right.
_NEEDS_EVERY_CELL = {"consistent_label", "no_gap_in_ranks", "scores_follow_ranks"}
_SENTENCES, _FIRST = 50_000_000, 20
_NAMED = 5
_BORROWED = {
    "labels": {"query_id": "queries", "memory_id": "memories"},
    "rankings": {"query_id": "queries", "memory_id": "memories"},
    "work": {"query_id": "queries"},
    "ledger": {"query_id": "queries", "memory_id": "memories"},
}


@dataclass(frozen=True)
class Fault:
    """One thing wrong in one row of one table, or with a table as a whole."""

    table: str
    code: str
    problem: Problem

    @property
    def is_error(self) -> bool:
        """Whether the records cannot be scored before this is put right."""
        return self.problem.level == "error"


class FaultsError(InputError):
    """Records that cannot be audited, with every fault that was found."""

    def __init__(self, message: str, faults: Sequence[Fault]) -> None:
        super().__init__(message)
        self.faults = list(faults)


@dataclass
class Folder:
    """The tables of a folder as far as they could be read."""

    path: Path
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    numbers: dict[str, list[int]] = field(default_factory=dict, repr=False)

    @property
    def errors(self) -> list[Fault]:
        """The faults that are not mere warnings."""
        return [fault for fault in self.faults if fault.is_error]


def examine_folder(path: str | Path, required: Sequence[str] = REQUIRED) -> Folder:
    """Read every table of a folder and list everything that is wrong with it."""
    folder = Folder(Path(path))
    if not folder.path.is_dir():
        found = "is not a folder" if folder.path.exists() else "does not exist"
        raise InputError(f"{folder.path}: {found}; expected a folder of tables")
    canonical: dict[str, pd.DataFrame] = {}
    for name in (*REQUIRED, *OPTIONAL):
        file = _file_of(folder, name, name in required)
        if file is not None:
            _read(folder, name, file)
        if name in folder.frames:
            canonical[name], faults = examine_rows(folder.frames[name], name, folder.origins[name])
            folder.faults += faults
    unread = {fault.table for fault in folder.faults if fault.code == "line"}
    folder.faults = [fault for fault in folder.faults if fault.code != NO_ROWS or fault.table not in unread]
    folder.faults += _across(canonical, folder.origins, unread | _unnamed(folder.faults))
    folder.faults = [_renumbered(fault, folder.numbers.get(fault.table)) for fault in folder.faults]
    folder.faults += scope_left_empty(folder.frames, canonical, folder.origins, folder.numbers.get("labels"))
    folder.faults += _strangers(folder.path, set(folder.frames))
    return folder


def examine_rows(frame: pd.DataFrame, name: str, origin: Origin) -> tuple[pd.DataFrame, list[Fault]]:
    """List the faults of one table row by row."""
    whole = [Fault(name, "header", problem) for problem in find_problems(frame, name, origin) if problem.row is None]
    if not frame.columns.is_unique:
        return pd.DataFrame(), whole
    frame = frame.reset_index(drop=True)
    canonical, bad, cells = _cells(frame, name, origin)
    faults = [*whole, *cells]
    if not len(frame) and name in _NEED_ROWS and not whole:
        faults.append(_rowless(name, origin))
    for rule in TABLES[name].rules:
        faults += _broken(rule, canonical, bad, name, origin)
    return canonical, faults


def _rowless(name: str, origin: Origin) -> Fault:
    problem = Problem(
        origin.label, "the table has no rows", "at least one row", f"export {name} again; a header alone says nothing"
    )
    return Fault(name, NO_ROWS, problem)


def listing(faults: Iterable[Fault]) -> pd.DataFrame:
    """Put faults into a table."""
    rows = [
        {
            "level": fault.problem.level,
            "table": fault.table,
            "file": Path(fault.problem.origin).name,
            "row": fault.problem.row,
            "line": fault.problem.line,
            "column": fault.problem.column,
            "what": fault.problem.what,
            "expected": fault.problem.expected,
            "fix": fault.problem.fix,
        }
        for fault in faults
    ]
    columns = ["level", "table", "file", "row", "line", "column", "what", "expected", "fix"]
    return pd.DataFrame(rows, columns=columns).astype({"row": "Int64", "line": "Int64"})


def _renumbered(fault: Fault, numbers: list[int] | None) -> Fault:
    """Count the rows that could not be read, too."""
    row = fault.problem.row
    if numbers is None or row is None or fault.code == "line":
        return fault
    return replace(fault, problem=replace(fault.problem, row=numbers[row - 1]))


# --- files ---------------------------------------------------------------------------------------------------------


def _file_of(folder: Folder, name: str, required: bool) -> Path | None:
    found = [folder.path / (name + suffix) for suffix in EXTENSIONS if (folder.path / (name + suffix)).exists()]
    names = ", ".join(name + suffix for suffix in EXTENSIONS)
    label = str(folder.path)
    if len(found) > 1:
        problem = Problem(
            label,
            f"{' and '.join(path.name for path in found)} are both there",
            "one file for each table",
            "keep the one that is right and move the others away",
        )
        folder.faults.append(Fault(name, "file", problem))
    if not found and required:
        problem = Problem(
            label,
            f"table {name} is missing",
            f"one of {names}",
            f"write the table {name}; see the README for its columns",
        )
        folder.faults.append(Fault(name, "file", problem))
    return found[0] if found else None


def _read(folder: Folder, name: str, file: Path) -> None:
    """Read one file; where that fails, read its lines one by one and list those that cannot be read."""
    try:
        frame, origin = read_raw(file)
    except InputError as error:
        scan = {"csv": _scan_csv, "jsonl": _scan_jsonl}.get(format_of(file))
        scanned = None if scan is None or not file.is_file() or not file.stat().st_size else scan(file)
        if scanned is None or not scanned[-1]:  # where no line is at fault, the file is
            what, _, expected = str(error).removeprefix(f"{file}: ").partition("; expected ")
            problem = Problem(str(file), what, expected or "a table", "repair the file, or write it again")
            folder.faults.append(Fault(name, "file", problem))
            return
        frame, lines, numbers, problems = scanned
        folder.faults += [Fault(name, "line", problem) for problem in problems]
        origin = Origin(str(file), lambda row: lines[row])
        folder.numbers[name] = numbers
    else:
        origin = _with_quick_lines(origin, file)
    if frame.shape == (0, 0):
        frame = pd.DataFrame(columns=list(TABLES[name].required), dtype=object)
    folder.frames[name] = frame
    folder.origins[name] = origin


# Rows that could be read, their lines, their numbers among all rows, and what was wrong with the others.
_Scan = tuple[pd.DataFrame, list[int], list[int], list[Problem]]


def _scan_jsonl(file: Path) -> _Scan:
    records: list[dict[str, Any]] = []
    lines: list[int] = []
    numbers: list[int] = []
    problems: list[Problem] = []
    for number, text in _lines(file, problems):
        try:
            record = strict_json.decode(text)
            if not isinstance(record, dict):
                raise ValueError(f"{show(record)} is not a JSON object")
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            problems.append(
                Problem(
                    str(file),
                    f"the line cannot be read: {reason}",
                    "one JSON object a line",
                    "write the row again as one JSON object on one line, every name once, numbers finite",
                    line=number,
                    value=text,
                )
            )
            continue
        records.append(record)
        lines.append(number)
        numbers.append(len(records) + len(problems))
    names = list(dict.fromkeys(key for record in records for key in record))
    columns = {name: pd.Series([record.get(name) for record in records], dtype=object) for name in names}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(records))), lines, numbers, problems


def _scan_csv(file: Path) -> _Scan:
    problems: list[Problem] = []
    kept = list(_lines(file, problems))
    rows = _csv_rows([text for _, text in kept], [number for number, _ in kept], file, problems)
    header = next(rows, None)
    if header is None:
        return pd.DataFrame(), [], [], problems
    good, lines, numbers = [], [], []
    for row, (line, fields) in enumerate(rows, start=1):
        if len(fields) == len(header[1]):
            good.append(fields)
            lines.append(line)
            numbers.append(row)
        elif fields:
            problems.append(
                Problem(
                    str(file),
                    f"the row has {len(fields)} fields",
                    f"{len(header[1])} fields, as the header",
                    "quote fields that hold commas, quotes or line breaks; leave unknown fields empty",
                    row=row,
                    line=line,
                )
            )
    frame = pd.DataFrame(good, columns=pd.RangeIndex(len(header[1])), dtype="str")
    frame.columns = pd.Index(header[1], dtype=object)
    return frame, lines, numbers, problems


def _lines(file: Path, problems: list[Problem]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are UTF-8 text, numbered from 1; note the others."""
    raw = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    for number, line in enumerate(raw.split(b"\n"), start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            problems.append(
                Problem(
                    str(file),
                    f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8 text",
                    "UTF-8",
                    "save the file as UTF-8, or take the damaged bytes out",
                    line=number,
                )
            )
            continue
        if text.strip():
            yield number, text


def _csv_rows(
    texts: list[str], numbers: list[int], file: Path, problems: list[Problem]
) -> Iterator[tuple[int, list[str]]]:
    limit = csv.field_size_limit(2**31 - 1)
    reader = csv.reader((text + "\n" for text in texts), strict=True)
    start = 0
    try:
        for fields in reader:
            yield numbers[start], fields
            start = reader.line_num
    except csv.Error as error:
        problems.append(
            Problem(
                str(file),
                f"the row cannot be read ({error}); nothing after it was examined",
                "balanced quotes",
                "close the quote, and double a quote that belongs to the text",
                line=numbers[min(start, len(numbers) - 1)],
            )
        )
    finally:
        csv.field_size_limit(limit)


def _with_quick_lines(origin: Origin, file: Path) -> Origin:
    """Make a look-up that numbers the lines of a CSV file once, and not again for every row asked."""
    if format_of(file) != "csv" or origin.line_of is None:
        return origin
    numbers: list[int] = []

    def line(row: int) -> int | None:
        if not numbers:
            limit = csv.field_size_limit(2**31 - 1)
            try:
                reader = csv.reader(io.StringIO(file.read_bytes().removeprefix(b"\xef\xbb\xbf").decode(), newline=""))
                last = 0
                for fields in reader:
                    if fields:
                        numbers.append(last + 1)
                    last = reader.line_num
            except (csv.Error, UnicodeDecodeError):
                numbers.extend([0])
            finally:
                csv.field_size_limit(limit)
        return numbers[row + 1] if row + 1 < len(numbers) else origin.line(row)

    return replace(origin, line_of=line)


def _strangers(path: Path, known: set[str]) -> list[Fault]:
    """Warn of files that look like a table with another name."""
    faults = []
    for file in sorted(path.iterdir()):
        if file.suffix.lower() not in EXTENSIONS or file.stem in (*REQUIRED, *OPTIONAL):
            continue
        near = get_close_matches(
            file.stem.lower(), [name for name in (*REQUIRED, *OPTIONAL) if name not in known], 1, 0.7
        )
        if near:
            problem = Problem(
                str(file),
                f"the file is not used; its name looks like {near[0]}",
                f"{near[0]}{file.suffix}, or a name that is not so close",
                f"rename it to {near[0]}{file.suffix} if that is what it holds",
                level="warning",
            )
            faults.append(Fault(near[0], "file", problem))
    return faults


# --- rows ----------------------------------------------------------------------------------------------------------


def _cells(frame: pd.DataFrame, name: str, origin: Origin) -> tuple[pd.DataFrame, dict[str, np.ndarray], list[Fault]]:
    """Read every column that the table knows; unreadable cells become missing and are listed."""
    table: dict[str, pd.Series] = {}
    unreadable: dict[str, np.ndarray] = {}
    faults: list[Fault] = []
    for column in TABLES[name].columns:
        if column.name not in frame:
            if column.add and not column.required:
                table[column.name] = missing_column(column, len(frame))
            continue
        values, bad = _PARSERS[column.kind](settle(frame[column.name]))
        if column.kind == "whole":
            bad = bad | values.isna().to_numpy()
        if bad.any():
            unreadable[column.name] = bad
            faults += [_cell(frame[column.name], column, int(row), name, origin) for row in np.flatnonzero(bad)]
            if column.kind == "whole":
                continue  # there is no missing whole number to put in its place
            values = values.mask(pd.Series(bad, index=values.index))
        table[column.name] = values.astype(pd.api.types.pandas_dtype(column.dtype))
    if "group" in table and "namespace" in table:
        table["group"] = table["group"].fillna(table["namespace"])
    if "source" in table and table["source"].isna().all():
        table["source"] = table["source"].fillna(ONE_SOURCE)
    return pd.DataFrame(table, index=frame.index), unreadable, faults


def _cell(given: pd.Series, column: Column, row: int, name: str, origin: Origin) -> Fault:
    value = given.iloc[row]
    expected = EXPECTED[column.kind]
    problem = Problem(
        origin.label,
        not_accepted(value, column.kind),
        expected,
        f"write {expected} in {column.name}",
        column.name,
        row + 1,
        origin.line(row),
        value,
    )
    return Fault(name, "cell", problem)


def _broken(
    rule: Rule, table: pd.DataFrame, unreadable: dict[str, np.ndarray], name: str, origin: Origin
) -> list[Fault]:
    if any(column not in table for column in rule.columns) or (unreadable and rule.name in _NEEDS_EVERY_CELL):
        return []
    mask = np.asarray(rule.broken(table), dtype=bool)
    for column in rule.columns:
        if column in unreadable:  # listed already, as a cell
            mask = mask & ~unreadable[column]
    rows = [int(row) for row in np.flatnonzero(mask)]
    # Some rules search the table for every sentence; in a large table with many faults the first few must do.
    told = len(rows) if len(rows) * len(table) <= _SENTENCES else _FIRST
    return [
        _rule_fault(rule, table, row, name, origin, rule.what(table, row) if place < told else None)
        for place, row in enumerate(rows)
    ]


def _rule_fault(rule: Rule, table: pd.DataFrame, row: int, name: str, origin: Origin, what: str | None) -> Fault:
    column = rule.columns[-1]
    value = table[column].iloc[row]
    said = what or f"{column} {show(None if pd.isna(value) else value)} has the same fault as the rows above"
    problem = Problem(
        origin.label,
        said,
        rule.expected,
        rule.fix,
        column,
        row + 1,
        origin.line(row),
        value,
        level=rule.level,
    )
    return Fault(name, rule.name, problem)


def _unnamed(faults: Sequence[Fault]) -> set[str]:
    """Name the tables in which an id of their own could not be read."""
    keys = {"memories": "memory_id", "queries": "query_id"}
    return {f.table for f in faults if f.code == "cell" and f.problem.column == keys.get(f.table)}


def _across(tables: dict[str, pd.DataFrame], origins: dict[str, Origin], holed: set[str]) -> list[Fault]:
    """Compare tables; an id that a table with holes does not list may be one that could not be read there."""
    faults: list[Fault] = []
    for name, borrowed in _BORROWED.items():
        for column, lender in borrowed.items():
            if name in tables and lender in tables and column in tables[name] and column in tables[lender]:
                found = _unknown(tables[name][column], name, origins[name], tables[lender][column], origins[lender])
                if found and lender in holed:
                    found = [_not_compared(name, column, origins[name], Path(origins[lender].label).name, len(found))]
                faults += found
    return faults + _populations(tables, origins)


def _not_compared(name: str, column: str, origin: Origin, lender: str, count: int) -> Fault:
    problem = Problem(
        origin.label,
        f"{count:,} {'ids are' if count > 1 else 'id is'} not among those of {lender} that could be read",
        f"a {column} listed in {lender}",
        f"repair {lender} first, and check again",
        column,
        level="warning",
    )
    return Fault(name, f"unknown_{column}", problem)


def _unknown(ids: pd.Series, name: str, origin: Origin, known: pd.Series, lender: Origin) -> list[Fault]:
    column = str(ids.name)
    return [
        Fault(
            name,
            f"unknown_{column}",
            Problem(
                origin.label,
                f"{show(ids.iloc[row])} is unknown",
                f"a {column} listed in {Path(lender.label).name}",
                f"add the missing {column} to {Path(lender.label).name}, or remove the rows that name it",
                column,
                row + 1,
                origin.line(row),
                ids.iloc[row],
            ),
        )
        for row in map(int, np.flatnonzero((ids.notna() & ~ids.isin(known)).to_numpy()))
    ]


def scope_left_empty(
    given: Mapping[str, pd.DataFrame],
    canonical: Mapping[str, pd.DataFrame],
    origins: Mapping[str, Origin],
    numbers: Sequence[int] | None = None,
) -> list[Fault]:
    """Warn of labels that state scope for a few pairs and thereby leave it unresolved for the rest.

    A column that is absent falls back to the namespaces; an empty cell is unresolved. Labels that state scope in most
    rows use the empty cell for what is in doubt, and so does a ``?``: neither draws a warning.
    """
    labels = canonical.get("labels", pd.DataFrame())
    if not {"query_id", "memory_id", "scope"} <= set(labels):
        return []
    settled = labels["scope"].isna().to_numpy()
    for name, key in (("queries", "query_id"), ("memories", "memory_id")):
        table = canonical.get(name, pd.DataFrame())
        if not {key, "namespace"} <= set(table):
            return []
        settled = settled & labels[key].isin(table.loc[table["namespace"].notna(), key]).to_numpy(bool)
    cells = given["labels"]["scope"].array
    rows = [int(row) for row in np.flatnonzero(settled) if is_missing(cells[row])]
    if 2 * len(rows) <= len(labels):
        return []
    places = [row + 1 if numbers is None else numbers[row] for row in rows[:_NAMED]]
    more = f" and {len(rows) - len(places):,} more" if len(rows) > len(places) else ""
    problem = Problem(
        origins["labels"].label,
        f"{len(rows):,} of {len(labels):,} rows leave scope empty although both namespaces are known and would settle "
        f"it (rows {', '.join(map(str, places))}{more}); an empty cell is unresolved",
        "scope in every row, or no column scope, which leaves it to the namespaces",
        "state scope in these rows (write ? where it is in doubt), or drop the column",
        "scope",
        places[0],
        origins["labels"].line(rows[0]),
        level="warning",
    )
    return [Fault("labels", SCOPE_LEFT_EMPTY, problem)]


def _populations(tables: dict[str, pd.DataFrame], origins: dict[str, Origin]) -> list[Fault]:
    stated: dict[str, str] = {}
    for name, table in tables.items():
        for population in table["population"].dropna().unique() if "population" in table else ():
            stated.setdefault(str(population), name)
    if len(stated) < 2:
        return []
    (first, place), (second, other) = list(stated.items())[:2]
    problem = Problem(
        origins[other].label,
        f"population {show(second)} is mixed with {show(first)} of {place}",
        "one population in a set of records",
        "populations are never pooled: keep each one in a folder of its own",
        "population",
        value=second,
    )
    return [Fault(other, "population", problem)]
