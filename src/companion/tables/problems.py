"""What is wrong with a table, where, and what would put it right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from companion.errors import InputError

_LONGEST_VALUE = 60
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""A control character, which no id or other name may hold; tabs and line ends are text, which CSV can quote."""


@dataclass(frozen=True)
class Origin:
    """Where a table came from: what the reader calls it, and how to find the line of a 0-based row, if it has lines."""

    label: str = "table"
    line_of: Callable[[int], int | None] | None = None

    @classmethod
    def of(cls, origin: str | Origin) -> Origin:
        """Accept a plain name wherever an origin is expected."""
        return origin if isinstance(origin, Origin) else cls(str(origin))

    def line(self, row: int) -> int | None:
        """Return the line of a 0-based row, or None when the origin has no lines."""
        return None if self.line_of is None else self.line_of(row)


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a table.

    Attributes
    ----------
    table : str
        Name of the table, such as ``rankings``.
    row, line : int or None
        Row at fault (1-based, the header not counted), and its line in a text file.
    column : str or None
        Column at fault, if one is.
    what, expected, fix : str
        The fault, as the end of a sentence that starts with the place; what would have been accepted; and what the
        owner of the table can do about it.
    value : object
        The value at fault, as given.
    origin : str
        File or table the problem is in.
    code : str
        Kind of problem: the name of a rule, or ``cell``, ``header``, ``line``, ``file``, ``unknown_memory_id``, ...
    more : int
        Number of further rows with the same fault, where they are counted instead of listed.
    level : {"error", "warning"}
        An error stops `validate`; a warning is only listed.
    """

    table: str
    row: int | None
    line: int | None
    column: str | None
    what: str
    expected: str
    fix: str = ""
    value: Any = None
    origin: str = "table"
    code: str = ""
    more: int = 0
    level: Literal["error", "warning"] = "error"

    @property
    def is_error(self) -> bool:
        """Whether the table cannot be used before this is put right."""
        return self.level == "error"

    @property
    def problem(self) -> Problem:
        """Itself: what a fault of the audit holds."""
        return self

    @property
    def where(self) -> str:
        """File, row, line and column, as far as they are known."""
        place = self.origin
        if self.row is not None:
            place += f", row {self.row}" + (f" (line {self.line})" if self.line is not None else "")
        elif self.line is not None:  # a line that could not be read is no row
            place += f", line {self.line}"
        return place + (f", column {self.column}" if self.column else "")

    @property
    def message(self) -> str:
        """The whole problem in one line."""
        tail = f"; and {self.more} more" if self.more else ""
        return f"{self.where}: {self.what}; expected {self.expected}{tail}"

    def error(self) -> InputError:
        """Return the exception that reports this problem."""
        return InputError(self.message)


def listing(problems: Iterable[Problem]) -> pd.DataFrame:
    """Put problems into a table: level, table, file, row, line, column, what, expected, fix."""
    rows = [
        (p.level, p.table, Path(p.origin).name, p.row, p.line, p.column, p.what, p.expected, p.fix) for p in problems
    ]
    columns = ["level", "table", "file", "row", "line", "column", "what", "expected", "fix"]
    return pd.DataFrame(rows, columns=columns).astype({"row": "Int64", "line": "Int64"})


def show(value: Any) -> str:
    """Return a value as a reader should see it: quoted, on one line, at most about 60 characters.

    A missing one is shown as ``an empty field``, except a floating-point NaN, which is shown as ``nan``.
    """
    if is_missing(value):
        return "nan" if isinstance(value, float | np.floating) else "an empty field"
    if isinstance(value, int) and value.bit_length() > 200:  # beyond 4,300 digits Python refuses to write it
        return f"a whole number of {value.bit_length():,} bits"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 4]}...{text[-1]}"


def not_accepted(value: Any, kind: str) -> str:
    """Say what is wrong with a cell that a column of some kind cannot hold."""
    if kind in ("name", "id") and isinstance(value, str) and CONTROL.search(value):
        return f"{show(value)} holds a control character"
    return f"{show(value)} is not {'text' if kind in ('text', 'name', 'id') else 'accepted'}"


def is_missing(value: Any) -> bool:
    """Tell whether one cell is None, NaN, NaT, <NA> or the empty text; containers never are."""
    return (
        value is None or (isinstance(value, str) and value == "") or (pd.api.types.is_scalar(value) and pd.isna(value))
    )
