"""What is wrong with a table, where, and what would put it right."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from companion.errors import InputError

_LONGEST_VALUE = 60
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""A control character, which no id or other name may hold; tabs and line ends are text, which CSV can quote."""


@dataclass(frozen=True)
class Origin:
    """Where a table came from, so that a message can point at it.

    Parameters
    ----------
    label : str
        What the reader calls it: a file name, or ``"table"`` for a frame built in memory.
    line_of : callable, optional
        Maps a 0-based row to the 1-based line of the file on which that row starts. Called only when there is
        something to report, so it may be slow.
    """

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
    """One thing wrong with a table; rows that share the fault are counted, not repeated.

    Attributes
    ----------
    origin : str
        File or table the problem is in.
    what : str
        The fault, as the end of a sentence that starts with the place.
    expected : str
        What would have been accepted.
    fix : str
        What the owner of the table can do about it.
    column : str or None
        Column at fault, if one is.
    row, line : int or None
        First row at fault (1-based, the header not counted), and its line in a text file.
    value : object
        The value at fault, as given.
    more : int
        Number of further rows with the same fault.
    level : {"error", "warning"}
        An error stops ``validate``; a warning is only listed.
    """

    origin: str
    what: str
    expected: str
    fix: str = ""
    column: str | None = None
    row: int | None = None
    line: int | None = None
    value: Any = None
    more: int = 0
    level: Literal["error", "warning"] = "error"

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


def show(value: Any) -> str:
    """Return a value as a reader should see it: quoted, on one line, and never long.

    Parameters
    ----------
    value : object
        A cell. A missing one is shown as ``an empty field``, except a floating-point NaN, which is shown as ``nan``.

    Returns
    -------
    str
        At most about 60 characters.
    """
    if is_missing(value):
        return "nan" if isinstance(value, float | np.floating) else "an empty field"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 4]}...{text[-1]}"


def not_accepted(value: Any, kind: str) -> str:
    """Say what is wrong with a cell that its column cannot hold.

    Parameters
    ----------
    value : object
    kind : str
        Of the column.
    """
    if kind == "name" and isinstance(value, str) and CONTROL.search(value):
        return f"{show(value)} holds a control character"
    return f"{show(value)} is not {'text' if kind in ('text', 'name') else 'accepted'}"


def is_missing(value: Any) -> bool:
    """Tell whether one cell is None, NaN, NaT, <NA> or the empty text; containers never are."""
    return (
        value is None or (isinstance(value, str) and value == "") or (pd.api.types.is_scalar(value) and pd.isna(value))
    )
