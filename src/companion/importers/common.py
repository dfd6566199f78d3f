"""What every importer returns: tables, and what was done to make them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from companion.errors import InputError
from companion.tables import EXTENSIONS, Records, validate, write_table
from companion.tables.problems import CONTROL, is_missing, show
from companion.tables.schema import INTENTS, STATES

FORMATS = ("jsonl", "csv", "parquet")
TABLES = ("memories", "queries", "labels", "rankings", "work", "ledger", "answers", "outcomes")
NOTES = "import-notes.json"


@dataclass(frozen=True)
class Imported:
    """Tables made from somebody else's files; ``store`` says whether memories were given or made out of the log."""

    records: Records
    notes: list[str]
    answers: pd.DataFrame | None = None
    lists: dict[str, Any] = field(default_factory=dict)
    store: Literal["given", "log"] = "log"

    def write(self, folder: str | PathLike[str], fmt: str = "jsonl", *, replace: bool = False) -> dict[str, Path]:
        """Write the tables into a folder that ``companion audit`` and ``companion validate`` read."""
        folder = Path(folder)
        check_folder(folder, fmt, replace=replace)
        tables = {name: table for name, table, _ in self.records.tables()}
        if self.answers is not None:
            tables["answers"] = self.answers
        with _swapped(folder) as staging:
            written = {name: write_table(table, staging / f"{name}.{fmt}") for name, table in tables.items()}
            written["notes"] = staging / NOTES
            text = json.dumps({"store": self.store, "notes": self.notes, **self.lists}, ensure_ascii=False, indent=1)
            written["notes"].write_text(text + "\n", encoding="utf-8")
            check_folder(folder, fmt, replace=replace)  # another import may have come first
        return {name: folder / path.name for name, path in written.items()}


def store_is_from_log(folder: str | PathLike[str]) -> bool | None:
    """Tell whether an import made the memories of a folder out of the log itself; None where no import says.

    Such a store holds whatever was returned: what has been deleted, and who owns what the log does not say, cannot be
    known from it.
    """
    try:
        told = json.loads((Path(folder) / NOTES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    store = told.get("store") if isinstance(told, dict) else None
    return None if store is None else store == "log"


def checked(records: Records) -> Records:
    """Check the tables; a returned memory that the store does not hold is a finding for the audit, not a fault."""
    held = records.memories["memory_id"]
    tables = {name: table for name, table, _ in records.tables() if name in ("labels", "rankings", "ledger")}
    if all(table["memory_id"].isin(held).all() for table in tables.values()):
        return records.check()
    known: dict[str, Any] = {name: table[table["memory_id"].isin(held)] for name, table in tables.items()}
    if "rankings" in known:
        place = known["rankings"].groupby(["arm", "query_id"]).cumcount() + 1
        known["rankings"] = known["rankings"].assign(rank=place)
    whole: dict[str, Any] = {name: validate(table, name) for name, table, _ in records.tables()}
    replace(records, **known).check()
    return replace(records, **whole)


def tables_in(folder: str | PathLike[str]) -> list[Path]:
    """List what an import would mix its tables with: files that are called as a table, parts of one, and old notes."""
    folder = Path(folder)
    files = [folder / (table + suffix) for table in TABLES for suffix in EXTENSIONS] + [folder / NOTES]
    parts = [folder / table for table in TABLES if any((folder / table).glob("part=*"))]
    return [path for path in files if os.path.lexists(path)] + parts  # a link that leads nowhere is in the way too


def check_folder(folder: str | PathLike[str], fmt: str = "jsonl", *, replace: bool = False) -> None:
    """Refuse a folder in which an import would empty labels, or leave tables of another import beside its own."""
    if fmt not in FORMATS:
        raise InputError(f"format {fmt!r}: expected one of {', '.join(FORMATS)}")
    folder = Path(folder)
    if os.path.lexists(folder) and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder, found a file")
    old = tables_in(folder)
    if old and not replace:
        names = ", ".join(path.name for path in old)
        raise InputError(
            f"{folder}: already holds {names}; choose a new folder, or --replace, which removes the old tables, "
            f"labels included"
        )
    for path in old:
        if path.is_dir() and not path.is_symlink():
            raise InputError(f"{path}: is a folder, which --replace does not remove; choose a new folder")


@contextlib.contextmanager
def _swapped(folder: Path) -> Iterator[Path]:
    """Give a hidden folder inside ``folder``; when the block ends well, its files take the place of the old tables."""
    made = not folder.exists()
    new = old = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".import-new-", dir=folder))
        yield new
        old = Path(tempfile.mkdtemp(prefix=".import-old-", dir=folder))
        _swap(folder, new, old)
        shutil.rmtree(old)
    except InputError as error:
        raise InputError(str(error).replace(str(new), str(folder))) from error
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}; expected a folder that can be written") from error
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)
        # What could not be moved back stays where it is: labels cannot be made again.
        for path in (old, folder if made else None):
            if path is not None and path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def _swap(folder: Path, new: Path, old: Path) -> None:
    """Move the old tables out and the new ones in; undo it all if one step fails."""
    # Without its queries a folder is refused, so they go first and come last: nobody reads a mixture.
    out = sorted(tables_in(folder), key=lambda path: path.stem != "queries")
    into = sorted(new.iterdir(), key=lambda path: path.stem == "queries")
    steps = [(path, old / path.name) for path in out] + [(path, folder / path.name) for path in into]
    done: list[tuple[Path, Path]] = []
    try:
        for before, after in steps:
            before.rename(after)
            done.append((before, after))
    except BaseException:
        for before, after in reversed(done):
            after.rename(before)
        raise


def as_id(value: Any, where: str, tally: Counter[str] | None = None) -> str:
    """Read an id: text or a whole number, which is counted."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InputError(f"{where}: {show(value)} is not an id; expected text or a whole number")
    if tally is not None and isinstance(value, int):
        tally["numbers"] += 1
    return readable(str(value), "memory_id", where)


VOCABULARY = {"state": STATES, "intent": INTENTS}


def cell_text(value: Any, column: str, where: str) -> str | None:
    """Read a field of a memory or a query, or nothing: the empty text is nothing."""
    if is_missing(value):
        return None
    if column in _LISTS and isinstance(value, list) and all(isinstance(one, str | int) for one in value):
        value = ";".join(map(str, value))
    if hasattr(value, "isoformat"):
        value = value.isoformat()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{where}, {column}: {show(value)} is not text; expected text, a number or null")
    if column in VOCABULARY and value not in VOCABULARY[column]:
        known = ", ".join(VOCABULARY[column])
        raise InputError(f"{where}, {column}: {show(value)} is not a known {column}; expected one of {known}, or null")
    return readable(str(value), column, f"{where}, {column}")


def readable(text: str, column: str, where: str) -> str:
    """Return text that the tables can hold in a column; only prose may hold control characters."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{where}: {show(text)} is not Unicode text; expected whole characters") from error
    if column not in _PROSE and CONTROL.search(text):
        raise InputError(f"{where}: {show(text)} holds a control character; expected text without")
    return text


_PROSE = ("text", "answer", "time", "supersedes")
_LISTS = ("supersedes",)


def counted(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def agree(rows: Iterable[dict[str, Any]], key: str) -> tuple[pd.DataFrame, int]:
    """Keep one row for each id, filling empty fields from later rows."""
    kept: dict[str, dict[str, Any]] = {}
    differing: set[str] = set()
    for row in rows:
        own = kept.setdefault(row[key], {})
        for name, value in row.items():
            if value is None:
                continue
            if own.get(name) is None:
                own[name] = value
            elif own[name] != value:
                differing.add(row[key])
    names = list(dict.fromkeys(name for row in kept.values() for name in row)) or [key]
    table = pd.DataFrame(list(kept.values()), columns=names, dtype=object)
    return table, len(differing)


def some(ids: Sequence[str], most: int = 5) -> str:
    """Name a few ids and how many more there are."""
    more = f" and {len(ids) - most:,} more" if len(ids) > most else ""
    return ", ".join(ids[:most]) + more
