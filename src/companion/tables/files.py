"""Reading and writing tables: Parquet, CSV and JSON Lines, told by extension.

Text files are read without interpretation: every CSV field is text until its column says otherwise, so ``007``,
``NA`` and ``null`` stay as they are. The one reading that a format forces: CSV cannot tell an empty text from a
missing one, so the empty text is a missing value in every format.
"""

from __future__ import annotations

import csv
import io
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa

from companion.errors import InputError
from companion.tables import strict_json
from companion.tables.checks import examine, schema_of, validate
from companion.tables.problems import Origin, Problem, show

EXTENSIONS: dict[str, str] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_BOM = b"\xef\xbb\xbf"
_LARGEST_BLOCK = 2**31 - 1


def read_table(path: str | os.PathLike[str], name: str) -> pd.DataFrame:
    """Read and validate one table.

    Parameters
    ----------
    path : path-like
        A file ending in .parquet, .csv, .jsonl or .ndjson.
    name : str
        A key of `TABLES`.

    Returns
    -------
    DataFrame
        The canonical table, as from `validate`.

    Raises
    ------
    InputError
        If the file cannot be read or the table is refused; the message names the file and, where they
        apply, the row (1-based, the header not counted), the line, the column, the value and what was expected.
    """
    return validate(*read_unchecked(path, name))


def read_unchecked(path: str | os.PathLike[str], name: str) -> tuple[pd.DataFrame, str, Origin]:
    """Read a file as the named table without validating it.

    Parameters
    ----------
    path : path-like
        A file ending in .parquet, .csv, .jsonl or .ndjson.
    name : str
        A key of `TABLES`.

    Returns
    -------
    frame : DataFrame
        As from `read_raw`; a JSON Lines file without rows, which cannot name its columns, gets the required ones.
    name : str
    origin : Origin

    Raises
    ------
    InputError
        If the file cannot be read or there is no such table.
    """
    schema = schema_of(name)
    frame, origin = read_raw(path)
    if frame.shape == (0, 0):
        frame = pd.DataFrame(columns=list(schema.required), dtype=object)
    return frame, name, origin


def find_file_problems(path: str | os.PathLike[str], name: str) -> list[Problem]:
    """List everything that is wrong with the table in a file.

    Parameters
    ----------
    path : path-like
        A file ending in .parquet, .csv, .jsonl or .ndjson.
    name : str
        A key of `TABLES`.

    Returns
    -------
    list of Problem
        A file that cannot be read at all gives one problem.
    """
    schema_of(name)
    try:
        raw = read_unchecked(path, name)
    except InputError as error:
        where, _, what = str(error).partition(": ")
        what, _, expected = what.partition("; expected ")
        return [Problem(where, what, expected or "a readable table", "repair the file, or write it again")]
    return examine(*raw)[1]


def read_raw(path: str | os.PathLike[str]) -> tuple[pd.DataFrame, Origin]:
    """Read a file as it is, without knowing which table it holds.

    Parameters
    ----------
    path : path-like
        A file ending in .parquet, .csv, .jsonl or .ndjson.

    Returns
    -------
    frame : DataFrame
        CSV columns are text; JSON Lines columns hold Python objects; Parquet columns keep their Arrow types.
    origin : Origin
        Finds the line of a row in a text file.

    Raises
    ------
    InputError
        If the file is absent, unreadable, damaged, or of an unknown kind.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], tuple[pd.DataFrame, Origin]]] = {
        "parquet": _read_parquet,
        "csv": _read_csv,
        "jsonl": _read_jsonl,
    }
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; expected a file")
        return readers[format_of(path)](path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a file that can be read") from error


def format_of(path: str | os.PathLike[str]) -> str:
    """Tell the format of a file from its extension.

    Parameters
    ----------
    path : path-like
        Need not exist.

    Returns
    -------
    {"parquet", "csv", "jsonl"}

    Raises
    ------
    InputError
        If the extension is not one of `EXTENSIONS`.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in EXTENSIONS:
        found = f"the extension {suffix!r} is unknown" if suffix else "the name has no extension"
        raise InputError(f"{path}: {found}; expected one of {', '.join(EXTENSIONS)}")
    return EXTENSIONS[suffix]


def write_table(df: pd.DataFrame, path: str | os.PathLike[str], name: str | None = None) -> Path:
    """Write a table, all or nothing.

    Unresolved and missing values become an empty field in CSV, null in JSON Lines, an Arrow null in Parquet. Truth
    values are 1 and 0 in CSV; floats are written so that reading gives the same bits. The empty text becomes a
    missing value on reading. A table without rows is typed in Parquet, a header in CSV, and one empty line in JSON
    Lines.

    Parameters
    ----------
    df : DataFrame
        The table. The index is not written.
    path : path-like
        Ends in .parquet, .csv, .jsonl or .ndjson. Missing parent folders are made.
    name : str, optional
        A key of `TABLES`: validate first, and write the canonical copy.

    Returns
    -------
    Path
        Where the table is.

    Raises
    ------
    InputError
        If the extension is unknown, the table is refused, a cell cannot be held by the format, or the disk refuses.
    """
    path = Path(path)
    writers = {"parquet": _write_parquet, "csv": _write_csv, "jsonl": _write_jsonl}
    write = writers[format_of(path)]
    if name is not None:
        df = validate(df, name)
    with atomic_path(path) as temporary:
        try:
            write(df, temporary)
        except (pa.ArrowException, UnicodeEncodeError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{path}: a cell cannot be written to this format ({reason})") from error
    return path


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary name in the same folder, and move it into place when the block ends well.

    Parameters
    ----------
    path : path-like
        Where the file shall be. An older file there is replaced only at the end, in one step.

    Yields
    ------
    Path
        The temporary file to write. It keeps the extension of ``path``.

    Raises
    ------
    InputError
        If the folder cannot be written or ``path`` is a folder.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}.tmp{path.suffix}")
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; expected the name of a file to write")
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a place that can be written") from error
    finally:
        if temporary.is_file():
            temporary.unlink()


# --- Parquet -----------------------------------------------------------------------------------------------------


def _read_parquet(path: Path) -> tuple[pd.DataFrame, Origin]:
    import pyarrow.parquet as pq

    try:
        # Opened here, so that a folder of fragments or a URL is never read by accident.
        with path.open("rb") as file:
            table = pq.ParquetFile(file).read()  # a name that is there twice is reported later, with the other faults
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is not a whole Parquet file ({reason}); expected Parquet") from error
    columns = [_decoded(column) for column in table.columns]
    # Arrow types keep null and NaN apart; saved pandas indexes stay columns.
    frame = pd.DataFrame({n: column.to_pandas(types_mapper=pd.ArrowDtype) for n, column in enumerate(columns)})
    frame.columns = pd.Index(table.column_names, dtype=object)
    return frame, Origin(str(path))


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Undo encodings that only save space, and that few Arrow functions know."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.large_string()) if str(column.type) == "string_view" else column


def _write_parquet(df: pd.DataFrame, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pandas(df, preserve_index=False), path, compression="zstd")


# --- CSV ---------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> tuple[pd.DataFrame, Origin]:
    import pyarrow.csv as arrow_csv

    raw = _read_text(path)
    header = next(_csv_rows(raw, path), None)
    if header is None:
        raise InputError(f"{path}: the file is empty; expected a header line")
    names = header[1]
    if b'"' in raw:  # Arrow accepts a quote that never closes, and swallows the rest of the file
        _check_csv(raw, path)
    numbered = [str(n) for n in range(len(names))]  # names may repeat; that is reported later
    block = min(max(len(raw) + 1, 2**16), _LARGEST_BLOCK)  # one block: no cell is too long for it
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(raw if raw.endswith((b"\n", b"\r")) else raw + b"\n"),
            arrow_csv.ReadOptions(use_threads=False, block_size=block, column_names=numbered),
            arrow_csv.ParseOptions(newlines_in_values=True),
            arrow_csv.ConvertOptions(
                strings_can_be_null=False, column_types={number: pa.large_string() for number in numbered}
            ),
        )
    except pa.ArrowInvalid as error:
        _check_csv(raw, path)
        raise InputError(f"{path}: {str(error).splitlines()[0]}; expected CSV") from error
    text = pd.StringDtype(na_value=np.nan)
    frame = table.slice(1).to_pandas(types_mapper={pa.large_string(): text}.get)
    frame.columns = pd.Index(names, dtype=object)
    return frame, Origin(str(path), lambda row: _csv_line(raw, path, row))


def _read_text(path: Path) -> bytes:
    """Return the bytes of a UTF-8 file without its byte order mark."""
    raw = path.read_bytes().removeprefix(_BOM)
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = f"0x{raw[error.start]:02x}"
        raise InputError(f"{path}, line {line}: byte {byte} is not UTF-8; expected UTF-8 text") from error
    return raw


def _csv_rows(raw: bytes, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each row starts, and its fields; blank lines are no rows."""
    with _long_fields():
        reader = csv.reader(io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8", newline=""), strict=True)
        line = 1
        try:
            for fields in reader:
                if fields:
                    yield line, fields
                line = reader.line_num + 1
        except csv.Error as error:
            raise InputError(f"{path}, line {line}: {error}; expected CSV with balanced quotes") from error


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let the standard reader take a text of any length; its limit is global, so put it back."""
    limit = csv.field_size_limit(_LARGEST_BLOCK)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _check_csv(raw: bytes, path: Path) -> None:
    """Refuse an unbalanced quote, and a row that has more or fewer fields than the header."""
    rows = _csv_rows(raw, path)
    width = len(next(rows)[1])
    for row, (line, fields) in enumerate(rows, start=1):
        if len(fields) != width:
            raise InputError(f"{path}, row {row} (line {line}): {len(fields)} fields; expected {width}, as the header")


def _csv_line(raw: bytes, path: Path, row: int) -> int | None:
    """Return the line of a 0-based data row."""
    for number, (line, _) in enumerate(_csv_rows(raw, path), start=-1):
        if number == row:
            return line
    return None


def _write_csv(df: pd.DataFrame, path: Path) -> None:
    texts = df.select_dtypes(include=["object", "str"])
    for name, column in texts.items():
        if column.map(pd.api.types.is_scalar, na_action="ignore").eq(False).any():
            raise TypeError(f"column {name} holds lists or objects; CSV holds text and numbers")
    # The csv module of Python 3.11 and 3.12 leaves a lone carriage return unquoted.
    returns = any(column.astype("str").str.contains("\r", regex=False).any() for _, column in texts.items())
    flags = {name: df[name].astype("Int8") for name in df.columns if pd.api.types.is_bool_dtype(df[name].dtype)}
    quoting: Literal[0, 1] = csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    df.assign(**flags).to_csv(path, index=False, lineterminator="\n", encoding="utf-8", quoting=quoting)


# --- JSON Lines --------------------------------------------------------------------------------------------------


def _read_jsonl(path: Path) -> tuple[pd.DataFrame, Origin]:
    raw = _read_text(path)
    if not raw:
        raise InputError(f"{path}: the file is empty; expected one JSON object a line (a lone newline is no rows)")
    records, lines = [], []
    # Only a line feed ends a line: text may hold the other Unicode line separators.
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            records.append(_json_object(line, path, number))
            lines.append(number)
    names = list(dict.fromkeys(key for record in records for key in record))
    columns = {name: pd.Series([record.get(name) for record in records], dtype=object) for name in names}
    frame = pd.DataFrame(columns, index=pd.RangeIndex(len(records)))
    return frame, Origin(str(path), lambda row: lines[row])


def _json_object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    where = f"{path}, line {number}"
    try:
        record = strict_json.decode(line.decode())
    except strict_json.JsonFaultError as error:
        if error.name is not None:
            fault = f", column {error.name}: the name appears more than once; expected every name once"
        else:
            fault = f": {error}; expected a finite number or null"
        raise InputError(f"{where}{fault}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: {error.msg} at character {error.pos + 1}; expected one JSON object") from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise InputError(f"{where}: {error}; expected one flat JSON object") from error
    if not isinstance(record, dict):
        raise InputError(f"{where}: {show(record)} is not a JSON object; expected {{...}} with one name per column")
    return record


def _write_jsonl(df: pd.DataFrame, path: Path) -> None:
    names = [str(name) for name in df.columns]
    columns = [column.astype(object).where(column.notna(), None).tolist() for _, column in df.items()]
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for cells in zip(*columns, strict=True):
            record = dict(zip(names, cells, strict=True))
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False, default=_json_default) + "\n")
        if df.empty:
            file.write("\n")


def _json_default(cell: Any) -> Any:
    """Turn what pandas leaves in an object column into JSON."""
    if isinstance(cell, np.generic | np.ndarray):
        return cell.tolist()
    if hasattr(cell, "isoformat"):
        return cell.isoformat()
    raise TypeError(f"{type(cell).__name__} cannot be written as JSON")
