"""Text tables, from bytes to columns: CSV, TSV, JSON and JSON Lines.

Each is read at once where that is safe, and line by line where it is not: then the good rows are there, and the lines
that cannot be read are problems with their places.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from companion.errors import InputError
from companion.tables import strict_json
from companion.tables.problems import Origin, Problem, show

_LARGEST_BLOCK = 2**31 - 1
_TEXT = pd.StringDtype(na_value=np.nan)


@dataclass
class Raw:
    """What a file holds as it is: rows that could be read, their numbers among all rows, and lines that could not."""

    frame: pd.DataFrame
    origin: Origin
    problems: list[Problem] = field(default_factory=list)
    numbers: list[int] | None = None


def utf8(data: bytes) -> bytes:
    """Return text as UTF-8 without its byte order mark; UTF-16 is told by its own."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16").encode()
    return data.removeprefix(b"\xef\xbb\xbf")


def _lines(data: bytes, path: Path, name: str, problems: list[Problem]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are UTF-8 text, numbered from 1; note the others."""
    # Only a line feed ends a line: text may hold the other Unicode line separators.
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            what = f"byte 0x{line[error.start]:02x} at place {error.start + 1} of the line is not UTF-8"
            fix = "save the file as UTF-8, or take the damaged bytes out"
            problems.append(_bad_line(path, name, number, what, "UTF-8 text", fix))


def _bad_line(path: Path, name: str, line: int, what: str, expected: str, fix: str, row: int | None = None) -> Problem:
    return Problem(name, row, line, None, what, expected, fix, origin=str(path), code="line")


# --- CSV ---------------------------------------------------------------------------------------------------------


def read_csv(data: bytes, path: Path, mark: str, name: str) -> Raw:
    """Read separated values; ``mark`` separates fields unless the file's first line names another (``sep=;``)."""
    first, _, rest = data.partition(b"\n")
    if first.strip()[:4].lower() == b"sep=" and len(first.strip()) == 5:  # what spreadsheets write
        return read_csv(b"\n" + rest, path, first.strip()[4:].decode("latin-1"), name)
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    problems: list[Problem] = []
    # Arrow accepts a quote that never closes, and swallows the rest of the file.
    frame = None if b'"' in data else _arrow_csv(data, path, mark)
    if frame is not None:
        lines: list[int] = []

        def line_of(row: int) -> int | None:
            if not lines:
                lines.extend(line for line, _ in _csv_rows(data, path, mark, name, []))
            return lines[row + 1] if row + 1 < len(lines) else None

        return Raw(frame, Origin(str(path), line_of))
    rows = _csv_rows(data, path, mark, name, problems)
    header = next(rows, None)
    if header is None and not problems:
        raise InputError(f"{path}: the file is empty; expected a header line")
    width = 0 if header is None else len(header[1])
    good: list[tuple[int, int, list[str]]] = []
    for number, (line, fields) in enumerate(rows, start=1):
        if len(fields) == width:
            good.append((number, line, fields))
        else:
            expected = f"{width} fields, as the header"
            fix = "quote fields that hold commas, quotes or line breaks; leave unknown fields empty"
            problems.append(_bad_line(path, name, line, f"the row has {len(fields)} fields", expected, fix, number))
    frame = pd.DataFrame([fields for _, _, fields in good], columns=pd.RangeIndex(width), dtype=_TEXT)
    frame.columns = pd.Index(header[1] if header else [], dtype=object)
    return Raw(
        frame,
        Origin(str(path), lambda row: good[row][1] if row < len(good) else None),
        problems,
        [number for number, _, _ in good],
    )


def _arrow_csv(data: bytes, path: Path, mark: str) -> pd.DataFrame | None:
    """Read a CSV file at once; None where it takes a closer look."""
    import pyarrow.csv as arrow_csv

    header = next(_csv_rows(data.lstrip(b"\r\n").partition(b"\n")[0], path, mark, "", []), None)
    if header is None:
        return None
    numbered = [str(n) for n in range(len(header[1]))]  # names may repeat; that is reported later
    block = min(max(len(data) + 1, 2**16), _LARGEST_BLOCK)  # one block: no cell is too long for it
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data if data.endswith((b"\n", b"\r")) else data + b"\n"),
            arrow_csv.ReadOptions(use_threads=False, block_size=block, column_names=numbered),
            arrow_csv.ParseOptions(delimiter=mark),
            arrow_csv.ConvertOptions(
                strings_can_be_null=False, column_types=dict.fromkeys(numbered, pa.large_string())
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    frame = table.slice(1).to_pandas(types_mapper={pa.large_string(): _TEXT}.get)
    frame.columns = pd.Index(header[1], dtype=object)
    return frame


def _csv_rows(
    data: bytes, path: Path, mark: str, name: str, problems: list[Problem]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each row starts, and its fields; blank lines are no rows."""
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for number, text in _lines(data, path, name, problems):
            numbers.append(number)
            yield text + "\n"

    limit = csv.field_size_limit(_LARGEST_BLOCK)  # the limit is global, so it is put back
    reader = csv.reader(texts(), delimiter=mark, strict=True)
    start = 0
    try:
        for fields in reader:
            if fields:
                yield numbers[start], fields
            start = reader.line_num
    except csv.Error as error:
        what = f"the row cannot be read ({error}); nothing after it was examined"
        fix = "close the quote, and double a quote that belongs to the text"
        problems.append(_bad_line(path, name, numbers[min(start, len(numbers) - 1)], what, "balanced quotes", fix))
    finally:
        csv.field_size_limit(limit)


# --- JSON --------------------------------------------------------------------------------------------------------


def read_json(data: bytes, path: Path) -> Raw:
    """Read a JSON list of objects."""
    try:
        found = strict_json.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error!s}; expected JSON") from error
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise InputError(f"{path}: {show(found)} is not a list of objects; expected [{{...}}, ...], one for each row")
    return Raw(_framed(found), Origin(str(path)))


def read_jsonl(data: bytes, path: Path, name: str) -> Raw:
    """Read one JSON object a line."""
    frame = _arrow_jsonl(data)
    if frame is not None:
        filled: list[int] = []

        def line_of(row: int) -> int:
            if not filled:
                filled.extend(number for number, line in enumerate(data.split(b"\n"), start=1) if line.strip())
            return filled[row]

        return Raw(frame, Origin(str(path), line_of))
    records: list[dict[str, Any]] = []
    lines: list[int] = []
    numbers: list[int] = []
    problems: list[Problem] = []
    for number, text in _lines(data, path, name, problems):
        if text.strip():
            try:
                records.append(_object(text))
                lines.append(number)
                numbers.append(len(records) + len(problems))
            except (ValueError, RecursionError) as error:
                what = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
                fix = "write the row again as one JSON object on one line, every name once, numbers finite"
                problems.append(_bad_line(path, name, number, str(what), "one JSON object a line", fix))
    return Raw(_framed(records), Origin(str(path), lambda row: lines[row]), problems, numbers)


def _object(text: str) -> dict[str, Any]:
    record = strict_json.decode(text)
    if not isinstance(record, dict):
        raise ValueError(f"{show(record)} is not a JSON object")
    return record


def _framed(records: list[dict[str, Any]]) -> pd.DataFrame:
    names = list(dict.fromkeys(key for record in records for key in record))
    columns = {name: pd.Series([record.get(name) for record in records], dtype=object) for name in names}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(records)))


def _arrow_jsonl(data: bytes) -> pd.DataFrame | None:
    """Read flat JSON Lines at once; None where a line takes a closer look (Arrow refuses repeated names itself)."""
    import pyarrow.json as arrow_json

    lines = [line for line in data.split(b"\n") if line.strip()]
    try:
        sample = [_object(line.decode()) for line in (*lines[:200], *lines[-200:])]
        kinds: dict[str, set[type]] = {}
        for record in sample:
            for key, value in record.items():
                kinds.setdefault(key, set()).add(type(value))
        types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
        fields = []
        for key, found in kinds.items():
            (kind,) = (found - {type(None)}) or {str}
            fields.append((key, types[kind]))
        if len(data) > _LARGEST_BLOCK // 2:
            return None
        table = arrow_json.read_json(
            pa.BufferReader(data),
            arrow_json.ReadOptions(use_threads=False, block_size=max(len(data) + 1, 2**16)),
            arrow_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="error"),
        )
    except (ValueError, KeyError, RecursionError, pa.ArrowException):
        return None
    # Arrow takes two objects on one line, one on two lines, and numbers that are not finite.
    if table.num_rows != len(lines) or not all(
        line.strip()[:1] == b"{" and line.rstrip()[-1:] == b"}" for line in lines
    ):
        return None
    whole = {pa.string(): _TEXT, pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame = pd.DataFrame({n: c.to_pandas(types_mapper=whole.get) for n, c in enumerate(table.columns)})
    for number, column in enumerate(table.columns):
        if pa.types.is_floating(column.type):
            missing = column.is_null().to_numpy()
            if not np.isfinite(frame[number].to_numpy()[~missing]).all():
                return None
    frame.columns = pd.Index(table.column_names, dtype=object)
    return frame
