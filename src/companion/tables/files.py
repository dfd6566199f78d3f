"""Reading and writing tables: Parquet, CSV, TSV, JSON and JSON Lines, plain or .gz, told by extension.

Text files are read without interpretation: every CSV field is text until its column says otherwise, so ``007`` and
``NA`` stay as they are. The one reading that a format forces: CSV cannot tell an empty text from a missing one, so the
empty text is a missing value in every format. A text file that cannot be read fast and whole is read line by line, so
that its good rows are there and its bad lines are named. One guard stands around all reading.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import stat
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa

from companion.errors import InputError
from companion.tables import text
from companion.tables.checks import schema_of, validate
from companion.tables.problems import Origin
from companion.tables.text import Raw

FORMATS: dict[str, str] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
}
EXTENSIONS: dict[str, str] = FORMATS | {f"{end}.gz": form for end, form in FORMATS.items() if form != "parquet"}
"""Extension -> format."""


def read_table(path: str | os.PathLike[str], name: str) -> pd.DataFrame:
    """Read and validate one table.

    Parameters
    ----------
    path : path-like
        A file ending in one of `EXTENSIONS`.
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
    """Read a file as the named table; one without rows, which cannot name its columns, gets the required ones."""
    schema = schema_of(name)
    frame, origin = read_raw(path)
    if frame.shape == (0, 0):
        frame = pd.DataFrame(columns=list(schema.required), dtype=object)
    return frame, name, origin


def read_raw(path: str | os.PathLike[str]) -> tuple[pd.DataFrame, Origin]:
    """Read a file as it is, without knowing which table it holds; the first bad line is refused.

    CSV columns are text; JSON Lines columns hold text, numbers or Python objects; Parquet columns keep their Arrow
    types. The origin finds the line of a row in a text file.
    """
    raw = scan(path)
    for problem in raw.problems:
        raise problem.error()
    return raw.frame, raw.origin


def scan(path: str | os.PathLike[str], name: str = "") -> Raw:
    """Read a file as far as it can be read; refuse one that is no table at all."""
    path = Path(path)
    with guard(path):
        form = format_of(path)
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):  # a pipe would wait for ever, a device never end
            found = "is a folder" if stat.S_ISDIR(state.st_mode) else "is not a regular file"
            raise InputError(f"{path}: {found}; expected a file")
        if state.st_size > _memory():
            raise InputError(f"{path}: {state.st_size:,} bytes do not fit in memory; expected a smaller file")
        if form == "parquet":
            return _read_parquet(path)
        data = text.utf8(_bytes(path))
        if not data:
            needs = "a header line" if form in ("csv", "tsv") else "one JSON object a line (a lone newline is no rows)"
            raise InputError(f"{path}: the file is empty; expected {needs}")
        if form in ("csv", "tsv"):
            return text.read_csv(data, path, "\t" if form == "tsv" else ",", name)
        return text.read_json(data, path) if form == "json" else text.read_jsonl(data, path, name)


@contextmanager
def guard(path: str | os.PathLike[str], wanted: str = "a file that can be read") -> Iterator[None]:
    """Turn whatever a hostile file or name can make of reading it into one line."""
    label = _label(path)
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{label}: {error.strerror or _line(error)}; expected {wanted}") from error
    except MemoryError as error:
        raise InputError(f"{label}: does not fit in memory; expected a smaller file") from error
    except (
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        RecursionError,
        EOFError,
        zlib.error,
        pa.ArrowException,
    ) as e:
        raise InputError(f"{label}: {_line(e)}; expected {wanted}") from e


def _label(path: str | os.PathLike[str]) -> str:
    """Write a path so that it can be printed."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _memory() -> int:
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return 2**36


def format_of(path: str | os.PathLike[str]) -> str:
    """Tell the format of a file, which need not exist, from its extension."""
    ends = [end.lower() for end in Path(path).suffixes[-2:]]
    suffix = "".join(ends) if ends[-1:] == [".gz"] else "".join(ends[-1:])
    if suffix not in EXTENSIONS:
        found = f"the extension {suffix!r} is unknown" if suffix else "the name has no extension"
        raise InputError(f"{_label(path)}: {found}; expected one of {', '.join(FORMATS)}, or .gz after it")
    return EXTENSIONS[suffix]


def _bytes(path: Path) -> bytes:
    """Return the bytes of a file, unpacked, but never more than fit in memory."""
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    most = _memory() // 4
    with gzip.open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path}: unpacks to more than {most:,} bytes; expected a smaller file")
    return data


# --- Parquet -----------------------------------------------------------------------------------------------------


def _read_parquet(path: Path) -> Raw:
    import pyarrow.parquet as pq

    try:
        # Opened here, so that a folder of fragments or a URL is never read by accident.
        with path.open("rb") as file:
            table = pq.ParquetFile(file).read()  # a name that is there twice is reported later, with the other faults
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"{path}: is not a whole Parquet file ({_line(error)}); expected Parquet") from error
    columns = [_decoded(column) for column in table.columns]
    # Arrow types keep null and NaN apart; saved pandas indexes stay columns.
    frame = pd.DataFrame({n: column.to_pandas(types_mapper=pd.ArrowDtype) for n, column in enumerate(columns)})
    frame.columns = pd.Index(table.column_names, dtype=object)
    return Raw(frame, Origin(str(path)))


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Undo encodings that only save space, and that few Arrow functions know."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.large_string()) if str(column.type) == "string_view" else column


# --- writing -----------------------------------------------------------------------------------------------------


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
        Ends in one of `EXTENSIONS`. Missing parent folders are made.
    name : str, optional
        A key of `TABLES`: validate first, and write the canonical copy.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    InputError
        For an unknown extension, a table that is refused, a cell that the format cannot hold, or a place that
        cannot be written. The file is then as it was before.
    """
    path, form = Path(path), format_of(path)
    df = df if name is None else validate(df, name, str(path))
    with atomic_path(path) as temporary:
        try:
            if form == "parquet":
                import pyarrow.parquet as pq

                pq.write_table(pa.Table.from_pandas(df, preserve_index=False), temporary, compression="zstd")
                return path
            packed = path.suffix.lower() == ".gz"
            # No name and no time in the header: the same table gives the same bytes.
            with temporary.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, 0) if packed else raw as file:
                file.write(
                    _csv_bytes(df, "\t" if form == "tsv" else ",") if form in ("csv", "tsv") else _json_bytes(df, form)
                )
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path}: a cell cannot be written to this format ({_line(error)})") from error
    return path


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary name in the same folder, and move it into place when the block ends well.

    The temporary name is unique and keeps the extension; an older file is replaced only at the end, in one step. A
    place that cannot be written is refused, and nothing is left behind.
    """
    path = Path(path)
    with guard(path, "a place that can be written"):
        temporary = path.with_name(f".{path.name[:80]}.{uuid.uuid4().hex[:8]}.tmp{path.suffix}")
        try:
            if path.is_dir():
                raise InputError(f"{path}: is a folder; expected the name of a file to write")
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            temporary.replace(path)
        finally:
            if temporary.is_file():
                temporary.unlink()


def _csv_bytes(df: pd.DataFrame, mark: str) -> bytes:
    texts = df.select_dtypes(include=["object", "str"])
    for name, column in texts.items():
        if column.map(pd.api.types.is_scalar, na_action="ignore").eq(False).any():
            raise TypeError(f"column {name} holds lists or objects; CSV holds text and numbers")
    # The csv module of Python 3.11 and 3.12 leaves a lone carriage return unquoted.
    returns = any(column.astype("str").str.contains("\r", regex=False).any() for _, column in texts.items())
    flags = {name: df[name].astype("Int8") for name in df.columns if pd.api.types.is_bool_dtype(df[name].dtype)}
    quoting: Literal[0, 1] = csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    return df.assign(**flags).to_csv(index=False, lineterminator="\n", quoting=quoting, sep=mark).encode()


def _json_bytes(df: pd.DataFrame, form: str) -> bytes:
    names = [str(name) for name in df.columns]
    columns = [column.astype(object).where(column.notna(), None).tolist() for _, column in df.items()]
    rows = (dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True))
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False, default=_json_default) for row in rows]
    return (
        "[" + ",\n".join(lines) + "]\n" if form == "json" else "".join(f"{line}\n" for line in lines) or "\n"
    ).encode()


def _json_default(cell: Any) -> Any:
    """Turn what pandas leaves in an object column into JSON."""
    if isinstance(cell, np.generic | np.ndarray):
        return cell.tolist()
    if hasattr(cell, "isoformat"):
        return cell.isoformat()
    raise TypeError(f"{type(cell).__name__} cannot be written as JSON")
