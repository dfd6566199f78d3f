"""Read the files that people hold: JSON and JSON Lines, CSV and TSV, Parquet, gzipped or not, UTF-8 or UTF-16."""

from __future__ import annotations

import ast
import codecs
import csv
import gzip
import io
import json
import stat
import zlib
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from companion.errors import InputError
from companion.tables import strict_json
from companion.tables.problems import is_missing, show

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_MOST = 2**31
_LONGEST_LITERAL = 10**6


class Row(NamedTuple):
    """One record of a file: where it stands, its number there, and what it is."""

    where: str
    number: int
    value: Any


def read_bytes(path: str | PathLike[str]) -> bytes:
    """Read a regular file, unpacked if it is gzipped."""
    file = Path(path)
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would wait for ever
            raise InputError(f"{path}: is not a regular file; expected a file")
        if file.suffix != ".gz":
            return file.read_bytes()
        with gzip.open(file) as packed:
            data = packed.read(_MOST)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: {said}; expected a file that can be read") from error
    if len(data) >= _MOST:
        raise InputError(f"{path}: unpacks to more than {_MOST:,} bytes; expected less")
    return data


def lines(path: str | PathLike[str], blank: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file, numbered from 1, blank ones where asked for; only line feeds end a line."""
    raw = read_bytes(path)
    mark, encoding = next(((mark, name) for mark, name in _BOMS if raw.startswith(mark)), (b"", "utf-8"))
    raw = raw.removeprefix(mark)
    if encoding != "utf-8":
        raw = raw.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    for number, line in enumerate(raw.split(b"\n"), start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            byte = f"byte {error.start + 1} (0x{line[error.start]:02x})"
            raise InputError(f"{path}, line {number}: {byte} is not UTF-8; expected UTF-8 text") from error
        if blank or text.strip():
            yield number, text.removesuffix("\r")


def rows(path: str | PathLike[str], envelopes: Iterable[str] = ()) -> Iterator[Row]:
    """Yield the records of a file, taken out of the envelopes that exporters put around them."""
    kind = next((s for s in reversed(Path(path).suffixes) if s != ".gz"), "").lower()
    if kind == ".parquet":
        found: Iterable[Row] = _parquet(path)
    elif kind in (".csv", ".tsv"):
        found = _delimited(path, "\t" if kind == ".tsv" else ",")
    else:
        found = _json(path)
    empty = True
    for row in found:
        for place, value in enumerate(_unwrapped(row.value, tuple(envelopes)), start=1):
            empty = False
            whole = value is row.value
            yield Row(row.where if whole else f"{row.where}, record {place}", row.number if whole else place, value)
    if empty:
        raise InputError(f"{path}: the file is empty; expected records, as JSON, JSON Lines, CSV or Parquet")


def _parquet(path: str | PathLike[str]) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(io.BytesIO(read_bytes(path))).read().to_pylist()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(f"{path}: is not a whole Parquet file ({str(error).splitlines()[0]})") from error
    for number, cells in enumerate(table, start=1):
        # In a table an absent attribute and a missing one look alike: neither is an explicit null.
        yield Row(f"{path}, row {number}", number, {k: v for k, v in cells.items() if not is_missing(v)})


def _delimited(path: str | PathLike[str], mark: str) -> Iterator[Row]:
    text = [f"{line}\n" for _, line in lines(path, blank=True)]
    if text and text[0].lower().startswith("sep=") and len(text[0].strip()) == 5:  # spreadsheets write that
        mark, text = text[0][4], text[1:]
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(text, delimiter=mark, strict=True)
    try:
        names = next(reader, [])
        for number, cells in enumerate(reader, start=1):
            if not cells:
                continue
            if len(cells) != len(names):
                raise InputError(f"{path}, row {number}: {len(cells)} fields; expected {len(names)}, as the header")
            yield Row(f"{path}, row {number}", number, {k: v for k, v in zip(names, cells, strict=True) if v != ""})
    except csv.Error as error:
        raise InputError(f"{path}: {error}; expected CSV with balanced quotes") from error


def _json(path: str | PathLike[str]) -> Iterator[Row]:
    """Read one JSON document, or one a line."""
    text = list(lines(path))
    if len(text) == 1 or (text and not _closed(text[0][1])):
        try:
            whole = load_json("\n".join(line for _, line in text), str(path))
            yield Row(f"{path}, line 1" if len(text) == 1 and isinstance(whole, dict) else str(path), 1, whole)
            return
        except InputError:
            if not _closed(text[0][1]) and len(text) > 1 and not text[0][1].lstrip().startswith('{"'):
                raise
    for number, line in text:
        yield Row(f"{path}, line {number}", number, load_json(line, f"{path}, line {number}"))


def _closed(line: str) -> bool:
    return line.lstrip().startswith("{") and line.rstrip().endswith("}")


def _unwrapped(value: Any, envelopes: tuple[str, ...]) -> Iterator[Any]:
    """Descend into lists and envelopes; spans keep the resource that stands on the envelope."""
    if isinstance(value, list):
        for item in value:
            yield from _unwrapped(item, envelopes)
        return
    inner = next((value[name] for name in envelopes if isinstance(value.get(name), list)), None) if isinstance(
        value, dict
    ) else None  # fmt: skip
    if inner is None:
        yield value
        return
    kept = {"resource": value["resource"]} if "resource" in value else {}
    for item in inner:
        yield from _unwrapped({**kept, **item} if isinstance(item, dict) else item, envelopes)


def load_json(text: str, where: str) -> Any:
    """Read JSON text, refusing NaN, infinities, and a name given twice in one object."""
    try:
        return strict_json.decode(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: {error.msg} at character {error.pos + 1}; expected JSON") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: {error}; expected JSON") from error


def unpacked(value: Any, where: str) -> Any:
    """Read what an exporter packed into text: JSON, or what Python prints, as a table of spans saved as CSV has it."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return load_json(value, f"{where}: the JSON text cannot be read")
    except InputError as error:
        if "'" in value and len(value) <= _LONGEST_LITERAL:
            try:
                return ast.literal_eval(value.strip())
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                pass
        raise InputError(str(error).partition("; expected")[0] + f" ({show(value)}); expected documents") from error
