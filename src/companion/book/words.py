"""Words chosen by the data.

Prose and alternative texts that are written with these stay true when a page runs with other parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from companion.book.text import interval, is_missing, number
from companion.errors import InputError

_COUNTS = (
    *("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
)


def in_words(count: int) -> str:
    """Write a count as prose does: in letters up to twelve, in digits beyond."""
    if count < 0:
        raise InputError(f"count {count}: expected at least 0")
    return _COUNTS[count] if count < len(_COUNTS) else f"{count:,d}"


def listing(items: Iterable[Any], nothing: str = "none") -> str:
    """Join items as prose does: ``"a, b and c"``."""
    words = [str(item) for item in items]
    if len(words) < 2:
        return words[0] if words else nothing
    return f"{', '.join(words[:-1])} and {words[-1]}"


def chosen(low: Any, high: Any, *, up: str, down: str, unsettled: str) -> str:
    """Choose a sentence by where an interval lies against zero."""
    if is_missing(low) or is_missing(high):
        return unsettled
    return up if low > 0 else down if high < 0 else unsettled


def moves(low: Any, high: Any, fmt: str = ".3f") -> str:
    """Say by how much something changes, with the direction in words where there is only one."""
    sizes = [number(value if is_missing(value) else abs(value), fmt) for value in (low, high)]
    nothing = number(0.0, fmt)
    if not (is_missing(low) or is_missing(high)) and nothing not in sizes:
        if low > 0:
            return f"rises by {sizes[0]} to {sizes[1]}"
        if high < 0:
            return f"falls by {sizes[1]} to {sizes[0]}"
    return f"changes by {number(low, '+' + fmt)} to {number(high, '+' + fmt)}"


def sides(table: pd.DataFrame) -> str:
    """Count intervals by the side of zero on which they lie."""
    known = table[table["low"].notna() & table["high"].notna()]
    above, below = int((known["low"] > 0).sum()), int((known["high"] < 0).sum())
    noun = "interval" if above == 1 else "intervals"
    text = f"{above} {noun} above zero, {below} below, {len(known) - above - below} with zero inside"
    return text + (f", {len(table) - len(known)} without an interval" if len(known) < len(table) else "")


def estimates(table: pd.DataFrame, item: str, series: str | None = None, fmt: str = ".3f") -> str:
    """Read a forest plot out: every line with its estimates and intervals."""
    lines = []
    for name, rows in table.groupby(item, sort=False):
        told = [
            (f"{row[series]} " if series else "") + interval(row["estimate"], row.get("low"), row.get("high"), fmt)
            for row in rows.to_dict("records")
        ]
        lines.append(f"{name}{':' if series else ''} {', '.join(told)}")
    return "; ".join(lines)


def statuses(parts: pd.DataFrame, item: str = "arm", fmt: str = ".0%") -> str:
    """Read stacked bars of known inadmissible, unresolved and known admissible shares out."""
    lines = []
    for name, rows in parts.groupby(item, sort=False):
        share: Mapping[str, Any] = dict(zip(rows["status"], rows["share"], strict=True))
        if all(is_missing(value) for value in share.values()):
            lines.append(f"{name}: nothing to show, no query of some source is feasible")
            continue
        told = [f"{number(share[status], fmt)} {words}" for status, words in _STATUS_WORDS.items() if status in share]
        lines.append(f"{name}: {', '.join(told)}")
    return "; ".join(lines)


_STATUS_WORDS = {"inadmissible": "known inadmissible", "unresolved": "unresolved", "admissible": "known admissible"}


def reasons(route: pd.DataFrame, memories: pd.DataFrame, notes: Mapping[str, str] | None = None) -> list[str]:
    """Say in words why each item of a route may not be used, or why nobody can tell."""
    known = memories.drop_duplicates("memory_id").set_index("memory_id")
    return [
        _reason(row, known.loc[row["memory_id"]].to_dict(), notes or {})
        for row in route.astype("object").to_dict("records")
    ]


def _reason(row: Mapping[Any, Any], memory: pd.Series, notes: Mapping[str, str]) -> str:
    def told(name: str) -> str:
        return "" if is_missing(memory.get(name)) else str(memory[name])

    restriction = told("restriction").rstrip("?")
    barred = {
        "scope": f"belongs to {told('tenant') or told('namespace')}",
        "policy": f"restricted ({restriction})" if restriction else "not for this purpose",
        "lifecycle": told("state") if told("state") not in {"", "current", "unknown"} else "no longer holds",
    }
    zero = [words for axis, words in barred.items() if not is_missing(row[axis]) and not row[axis]]
    if zero:
        return "; ".join(zero)
    opened = [axis for axis in barred if is_missing(row[axis])]
    return f"{listing(opened)} open: {notes.get(row['memory_id'], 'nothing on record settles it')}" if opened else ""
