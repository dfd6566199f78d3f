"""Hostile text made harmless: in the report by showing what it is, in CSV files so that it can be undone.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-``, ``@`` or a tab as a formula, even from a CSV file.
Ids must survive, so CSV text is changed by two rules that `read_csv` undoes exactly: a backslash is doubled and a
character that does not print is written as its escape; then a cell that begins with a formula character or an
apostrophe gets one leading apostrophe.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import re
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from companion.tables import atomic_path

# The full-width forms are formula characters to spreadsheets in some locales.
_FORMULA = tuple("=+-@'＝＋－＠")
_ESCAPE = re.compile(r"\\(?:\\|n|r|t|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
LONGEST = 90
"""Characters of a cell that the report shows."""


def guard(text: Any) -> Any:
    """Make a text cell safe for a spreadsheet; anything else is returned as it is."""
    if not isinstance(text, str):
        return text
    text = _visible(text.replace("\\", "\\\\"))
    return "'" + text if text.startswith(_FORMULA) else text


def unguard(cell: Any) -> Any:
    """Undo `guard`."""
    if not isinstance(cell, str):
        return cell
    return _ESCAPE.sub(lambda found: ast.literal_eval(f"'{found[0]}'"), cell.removeprefix("'"))


def write_csv(table: pd.DataFrame, path: str | PathLike[str]) -> Path:
    """Write a table for people who open it in a spreadsheet."""
    safe = table.copy()
    safe.columns = [guard(str(name)) for name in safe.columns]
    for name in safe.columns:
        if pd.api.types.is_bool_dtype(safe[name].dtype):
            safe[name] = safe[name].astype("Int8")
        elif not pd.api.types.is_numeric_dtype(safe[name]):
            safe[name] = safe[name].astype(object).map(guard, na_action="ignore")
    with atomic_path(path) as temporary:
        safe.to_csv(temporary, index=False, encoding="utf-8", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    return Path(path)


def read_csv(path: str | PathLike[str]) -> pd.DataFrame:
    """Read a CSV file of an audit back, with every id as it was in the records."""
    table = pd.read_csv(path, keep_default_na=False, na_values=[""])
    for name in table.columns:
        if not pd.api.types.is_numeric_dtype(table[name]):
            table[name] = table[name].map(unguard, na_action="ignore")
    return table


def shown(value: Any, longest: int = LONGEST) -> Any:
    """Return text as the report shows it: on one line, printable, and never long."""
    if not isinstance(value, str):
        return value
    if len(value) <= longest:
        return _visible(_plain_spaces(value))
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{_visible(_plain_spaces(value[: longest - 30]))}… ({len(value):,} characters, {digest})"


def shown_table(table: pd.DataFrame, longest: int = LONGEST) -> pd.DataFrame:
    """Apply `shown` to every text cell of a table."""
    result = table.copy()
    for name in result.columns:
        kind = result[name].dtype
        if not pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
            result[name] = result[name].astype(object).map(lambda cell: shown(cell, longest), na_action="ignore")
    return result


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _plain_spaces(text: str) -> str:
    return _SPACE.sub(" ", text)
