"""From whatever a cell holds to the canonical type of its column, without guessing.

Every parser takes a column as it was given and returns ``(values, bad)``: the canonical column, and a mask of the cells
that cannot be read, which are missing in ``values``. Parsers work on whole columns; only columns of Python objects are
walked cell by cell.
"""

from __future__ import annotations

import datetime as dt
import math
import numbers
import re
import unicodedata
import weakref
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from companion.tables.problems import is_missing

Mask = npt.NDArray[np.bool_]
Parsed = tuple[pd.Series, Mask]

_TRUTH: dict[str, bool | None] = {
    **dict.fromkeys(("1", "1.0", "true"), True),
    **dict.fromkeys(("0", "0.0", "false"), False),
    **dict.fromkeys(("", "?")),
}
_WHOLE = r"-?[0-9]{1,18}(\.0+)?"
_DECIMAL = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_CONTROL = r"[\x{00}-\x{08}\x{0b}\x{0c}\x{0e}-\x{1f}\x{7f}-\x{9f}]"  # as problems.CONTROL, for Arrow
_BAD = object()


def parse_text(column: pd.Series) -> Parsed:
    """Read a column of text."""
    dtype = column.dtype
    if isinstance(dtype, pd.StringDtype) or _is_arrow(dtype, pa.types.is_string, pa.types.is_large_string):
        text = column.astype("str")
        return text.mask(text == ""), np.zeros(len(text), dtype=bool)
    if pd.api.types.is_integer_dtype(dtype):
        return column.astype("str"), np.zeros(len(column), dtype=bool)
    return _cellwise(column, _text_of, "str")


def parse_name(column: pd.Series) -> Parsed:
    """Read a column of names: text without control characters."""
    values, bad = parse_text(column)
    arrow = pc.cast(_arrow(values), pa.large_string())
    if not _may_hold_control(arrow):
        return values, bad
    held = pc.fill_null(pc.match_substring_regex(arrow, _CONTROL), False).to_numpy(zero_copy_only=False)
    return values.mask(held), bad | held


def _may_hold_control(arrow: pa.Array) -> bool:
    """Look at all bytes at once, which takes a fraction of the time of a look at every cell."""
    data = arrow.buffers()[2]
    if data is None:
        return False
    raw = np.frombuffer(data, dtype=np.uint8)
    return bool((raw < 0x20).any() or (raw == 0x7F).any() or (raw == 0xC2).any())  # C1 begins with C2 in UTF-8


NO_NAME = ("NULL", "null", "None", "nan", "NaN")
"""What programs write where an id or a namespace should have been: missing, wherever it stands."""


def parse_id(column: pd.Series) -> Parsed:
    """Read a column of ids or namespaces: names, but for the words that stand for none."""
    values, bad = parse_name(column)
    nothing = values.isin(NO_NAME)
    return values.mask(nothing) if nothing.any() else values, bad


def parse_boolean(column: pd.Series) -> Parsed:
    """Read a column of {1, 0, ?} as nullable booleans."""
    if pd.api.types.is_bool_dtype(column.dtype) and column.dtype != object:
        return column.astype("boolean"), np.zeros(len(column), dtype=bool)
    try:
        codes, levels = pd.factorize(column)
    except TypeError:  # a list or another unhashable value is among the cells
        return _cellwise(column, _truth_of, "boolean")
    # One look per distinct value; the extra last level serves code -1, a missing cell.
    truths = [None if is_missing(level) else _truth_of(level) for level in levels] + [None]
    bad = np.array([truth is _BAD for truth in truths])[codes]
    known = pd.array([None if truth is _BAD else truth for truth in truths], dtype="boolean")
    return pd.Series(known.take(codes % len(truths)), index=column.index), bad


def parse_whole(column: pd.Series) -> Parsed:
    """Read a column of whole numbers."""
    if isinstance(column.dtype, pd.StringDtype):
        matches = column.str.fullmatch(_WHOLE).to_numpy(dtype=bool, na_value=False)
        digits = column.where(matches).str.replace(r"\.0+$", "", regex=True)
        whole = pc.cast(pa.array(digits, type=pa.large_string(), from_pandas=True), pa.int64())
        values = pd.Series(pd.array(whole.to_pandas(integer_object_nulls=True), dtype="Int64"), index=column.index)
        return values, ~matches & ~_missing_text(column)
    if pd.api.types.is_integer_dtype(column.dtype) and "uint64" not in str(column.dtype).lower():
        return column.astype("Int64"), np.zeros(len(column), dtype=bool)
    return _cellwise(column, _whole_of, "Int64")


def parse_number(column: pd.Series) -> Parsed:
    """Read a column of finite numbers."""
    dtype = column.dtype
    if isinstance(dtype, pd.StringDtype):
        matches = column.str.fullmatch(_DECIMAL).to_numpy(dtype=bool, na_value=False)
        arrow = pa.array(column.where(matches), type=pa.large_string(), from_pandas=True)
        return _finite(pc.cast(arrow, pa.float64()), column.index, also=~matches & ~_missing_text(column))
    if isinstance(dtype, pd.ArrowDtype) and pd.api.types.is_numeric_dtype(dtype) and dtype.kind in "iuf":
        return _finite(pc.cast(_arrow(column), pa.float64(), safe=False), column.index)
    if isinstance(dtype, np.dtype) and dtype.kind in "iuf":
        return _finite(pa.array(column.to_numpy(dtype="float64"), from_pandas=True), column.index)
    return _cellwise(column, _number_of, "Float64")


def settle(column: pd.Series) -> pd.Series:
    """Give a column of Python objects that are all alike the pandas type for them; leave any other as it is."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.astype(column.cat.categories.dtype)
    if column.dtype != object:
        return column
    alike = {"string": "str", "integer": "Int64", "floating": "float64"}.get(pd.api.types.infer_dtype(column))
    try:
        return column if alike is None else column.astype(pd.api.types.pandas_dtype(alike))
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError):
        return column  # half a surrogate pair, or an integer beyond 64 bits: found and named cell by cell


def plain(column: pd.Series) -> pd.Series:
    """Turn a column read through Arrow into the pandas type a user would expect; leave any other as it is."""
    if not isinstance(column.dtype, pd.ArrowDtype):
        return column
    kinds = {pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype(na_value=np.nan)}
    arrow = _arrow(column)
    if pa.types.is_integer(arrow.type) and arrow.null_count:
        return column.astype("Int64")
    target = kinds.get(arrow.type) or (kinds[pa.string()] if pa.types.is_large_string(arrow.type) else None)
    return column.astype(target) if target is not None else pd.Series(arrow.to_pandas(), index=column.index)


def _is_arrow(dtype: Any, *tests: Callable[[pa.DataType], bool]) -> bool:
    return isinstance(dtype, pd.ArrowDtype) and any(test(dtype.pyarrow_dtype) for test in tests)


def _arrow(column: pd.Series) -> pa.Array:
    chunks = pa.array(column)
    return chunks.combine_chunks() if isinstance(chunks, pa.ChunkedArray) else chunks


def _missing_text(column: pd.Series) -> Mask:
    return (column.isna() | (column == "")).to_numpy(dtype=bool, na_value=True)


def _finite(arrow: pa.Array, index: pd.Index, also: Mask | None = None) -> Parsed:
    """Split an Arrow float array into finite values and bad ones; nulls are missing, NaN is not."""
    bad = ~pc.fill_null(pc.is_finite(arrow), True).to_numpy(zero_copy_only=False)
    missing = arrow.is_null().to_numpy(zero_copy_only=False)
    values = arrow.to_numpy(zero_copy_only=False).astype("float64")
    masked = pd.arrays.FloatingArray(np.where(bad | missing, 0.0, values), bad | missing)
    return pd.Series(masked, index=index), bad if also is None else bad | also


def _cellwise(column: pd.Series, read: Callable[[Any], Any], dtype: str) -> Parsed:
    """Read a column one cell at a time, with ``read`` returning ``_BAD`` for what it cannot accept."""
    cells: Iterable[Any] = column.astype(object)
    read_cells = [None if is_missing(cell) else read(cell) for cell in cells]
    bad = np.fromiter((cell is _BAD for cell in read_cells), dtype=bool, count=len(read_cells))
    kept = [None if cell is _BAD else cell for cell in read_cells]
    return pd.Series(kept, index=column.index, dtype=dtype), bad


def _text_of(cell: Any) -> Any:
    if isinstance(cell, str):
        return cell if _encodable(cell) else _BAD
    if isinstance(cell, dt.date):  # datetime and Timestamp are dates too
        return cell.isoformat()
    whole = isinstance(cell, numbers.Integral) and not isinstance(cell, bool | np.bool_)
    return str(int(cell)) if whole else _BAD


def _encodable(text: str) -> bool:
    """Tell whether text is Unicode: JSON can smuggle in half a surrogate pair, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _truth_of(cell: Any) -> Any:
    if isinstance(cell, str):
        return _TRUTH.get(cell.lower(), _BAD)
    if isinstance(cell, bool | np.bool_):
        return bool(cell)
    if isinstance(cell, numbers.Real):
        return bool(cell) if cell in (0, 1) else _BAD
    return _BAD


def _whole_of(cell: Any) -> Any:
    if isinstance(cell, str):
        return int(cell.partition(".")[0]) if re.fullmatch(_WHOLE, cell) else _BAD
    number = _number_of(cell)
    if number is _BAD or not number.is_integer() or abs(number) >= 2**63:
        return _BAD
    return int(cell)  # from the cell itself: a float would lose the last digits of a large integer


def _number_of(cell: Any) -> Any:
    if isinstance(cell, bool | np.bool_) or not isinstance(cell, str | numbers.Real | Decimal):
        return _BAD
    if isinstance(cell, str) and not re.fullmatch(_DECIMAL, cell):
        return _BAD
    try:
        number = float(cell)
    except OverflowError:
        return _BAD
    return number if math.isfinite(number) else _BAD


_NUMBERED: dict[int, tuple[Any, npt.NDArray[np.int32], pd.Index]] = {}


def numbered(column: pd.Series) -> tuple[npt.NDArray[np.int32], pd.Index]:
    """Give every distinct value of a column a number, in order of appearance, -1 where missing.

    Hashing text is what validation and scoring spend their time on; a column of text is hashed once while it lives.
    """
    data = getattr(column.array, "_pa_array", None)
    key = id(data)
    if data is not None and key in _NUMBERED and _NUMBERED[key][0]() is data:
        return _NUMBERED[key][1:]
    found, levels = pd.factorize(column)
    result = found.astype(np.int32), pd.Index(levels)
    if data is not None:
        _NUMBERED[key] = (weakref.ref(data, lambda _: _NUMBERED.pop(key, None)), *result)
    return result


def _one_form(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip().casefold()


def folded(values: pd.Index) -> npt.NDArray[Any]:
    """Write ids so that those which differ only in form are alike: case, spaces, Unicode form, 7.0, 007."""
    text = pd.Series(values, dtype="str").str.strip().str.lower()
    odd = ~text.str.isascii()
    if odd.any():
        text = text.where(~odd, text[odd].map(_one_form))
    return (
        text.str.replace(r"^([0-9]+)\.0+$", r"\1", regex=True).str.replace(r"^0+(?=[0-9])", "", regex=True).to_numpy()
    )


PARSERS: dict[str, Callable[[pd.Series], Parsed]] = {
    "text": parse_text,
    "name": parse_name,
    "id": parse_id,
    "boolean": parse_boolean,
    "whole": parse_whole,
    "count": parse_whole,
    "score": parse_number,
    "number": parse_number,
}
