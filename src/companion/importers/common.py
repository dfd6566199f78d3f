"""What every importer returns: tables, and what was done to make them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from companion.errors import InputError
from companion.tables import EXTENSIONS, Records, strict_json, write_table
from companion.tables.problems import CONTROL, is_missing, show
from companion.tables.schema import INTENTS, STATES

FORMATS = ("jsonl", "csv", "parquet")
TABLES = ("memories", "queries", "labels", "rankings", "work", "ledger", "answers", "outcomes")
NOTES = "import-notes.json"


@dataclass(frozen=True)
class Imported:
    """Tables made from somebody else's files."""

    records: Records
    notes: list[str]
    answers: pd.DataFrame | None = None
    lists: dict[str, list[str]] = field(default_factory=dict)

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
            text = json.dumps({"notes": self.notes, **self.lists}, ensure_ascii=False, indent=1)
            written["notes"].write_text(text + "\n", encoding="utf-8")
            check_folder(folder, fmt, replace=replace)  # another import may have come first
        return {name: folder / path.name for name, path in written.items()}


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


def text_lines(path: str | PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file that are not blank, numbered from 1; only line feeds end a line."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a file that can be read") from error
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {number}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; expected "
                f"UTF-8 text"
            ) from error
        if text.strip():
            yield number, text.removesuffix("\r")


def refuse(path: str | PathLike[str], faults: Sequence[tuple[int, str]], expected: str) -> None:
    """Raise for the first of several faulty lines, and say how many there are and where the next few stand."""
    if not faults:
        return
    line, what = faults[0]
    others = [str(number) for number, _ in faults[1:11]]
    tail = ""
    if others:
        more = f" and {len(faults) - 1 - len(others):,} more" if len(faults) - 1 > len(others) else ""
        tail = f"; also wrong: {'lines' if len(others) > 1 else 'line'} {', '.join(others)}{more}"
    raise InputError(f"{path}, line {line}: {what}; expected {expected}{tail}")


def load_json(text: str, where: str) -> Any:
    """Read JSON text, refusing NaN, infinities, and a name given twice in one object."""
    try:
        return strict_json.decode(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: {error.msg} at character {error.pos + 1}; expected JSON") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: {error}; expected JSON") from error


def as_id(value: Any, where: str) -> str:
    """Read an id: text or a whole number."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InputError(f"{where}: {show(value)} is not an id; expected text or a whole number")
    return readable(str(value), "memory_id", where)


VOCABULARY = {"state": STATES, "intent": INTENTS}


def cell_text(value: Any, column: str, where: str) -> str | None:
    """Read a field of a memory or a query, or nothing: the empty text is nothing."""
    if is_missing(value):
        return None
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


_PROSE = ("text", "time", "supersedes")


def counted(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def agree(rows: Iterable[dict[str, Any]], key: str, what: str) -> tuple[pd.DataFrame, int]:
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
