"""Words chosen by the data.

Prose and alternative texts that are written with these stay true when a page runs with other parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from companion.errors import InputError
from companion.figures.text import interval, is_missing, number

_COUNTS = (
    *("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
)


def in_words(count: int) -> str:
    """Write a count as prose does: in letters up to twelve, in digits beyond.

    Parameters
    ----------
    count : int
        At least 0.

    Returns
    -------
    str
        Such as ``"none"``, ``"three"`` or ``"1,305"``.

    Raises
    ------
    InputError
        If the count is negative.
    """
    if count < 0:
        raise InputError(f"count {count}: expected at least 0")
    return _COUNTS[count] if count < len(_COUNTS) else f"{count:,d}"


def listing(items: Iterable[Any], nothing: str = "none") -> str:
    """Join items as prose does: ``"a, b and c"``.

    Parameters
    ----------
    items : iterable
        Written with ``str``.
    nothing : str
        What to write when there is no item.

    Returns
    -------
    str
    """
    words = [str(item) for item in items]
    if len(words) < 2:
        return words[0] if words else nothing
    return f"{', '.join(words[:-1])} and {words[-1]}"


def chosen(low: Any, high: Any, *, up: str, down: str, unsettled: str) -> str:
    """Choose a sentence by where an interval lies against zero.

    Parameters
    ----------
    low, high : float or None
        Ends of the interval; without both of them nothing is settled.
    up, down, unsettled : str
        The sentence for an interval above zero, below zero, and one that holds zero or touches it.

    Returns
    -------
    str
        One of the three.
    """
    if is_missing(low) or is_missing(high):
        return unsettled
    return up if low > 0 else down if high < 0 else unsettled


def moves(low: Any, high: Any, fmt: str = ".3f") -> str:
    """Say by how much something changes, with the direction in words where there is only one.

    Parameters
    ----------
    low, high : float or None
        The smallest and the largest of several differences, in the unit that is to be written.
    fmt : str
        Format of their sizes, without a sign.

    Returns
    -------
    str
        Such as ``"rises by 5.3 to 6.8"``, ``"falls by 0.1 to 0.3"``, or ``"changes by −0.1 to +0.2"`` when they do not
        all go one way as written.
    """
    sizes = [number(value if is_missing(value) else abs(value), fmt) for value in (low, high)]
    nothing = number(0.0, fmt)
    if not (is_missing(low) or is_missing(high)) and nothing not in sizes:
        if low > 0:
            return f"rises by {sizes[0]} to {sizes[1]}"
        if high < 0:
            return f"falls by {sizes[1]} to {sizes[0]}"
    return f"changes by {number(low, '+' + fmt)} to {number(high, '+' + fmt)}"


def sides(table: pd.DataFrame) -> str:
    """Count intervals by the side of zero on which they lie.

    Parameters
    ----------
    table : DataFrame
        Columns ``low`` and ``high``; rows that lack an end are counted apart.

    Returns
    -------
    str
        Such as ``"5 intervals above zero, 2 below, 4 with zero inside"``; touching zero is inside.
    """
    known = table[table["low"].notna() & table["high"].notna()]
    above, below = int((known["low"] > 0).sum()), int((known["high"] < 0).sum())
    noun = "interval" if above == 1 else "intervals"
    text = f"{above} {noun} above zero, {below} below, {len(known) - above - below} with zero inside"
    return text + (f", {len(table) - len(known)} without an interval" if len(known) < len(table) else "")


def estimates(table: pd.DataFrame, item: str, series: str | None = None, fmt: str = ".3f") -> str:
    """Read a forest plot out: every line with its estimates and intervals.

    Parameters
    ----------
    table : DataFrame
        Columns `item`, `series` if one is named, ``estimate``, and ``low`` and ``high`` if there are intervals.
    item, series : str
        Columns that name the line and, where a line has several estimates, each of them.
    fmt : str
        Format of the numbers.

    Returns
    -------
    str
        Such as ``"loss: published −0.121 [−0.162, −0.080], ours −0.120 [−0.153, −0.079]"``, lines joined by ``"; "``.
    """
    lines = []
    for name, rows in table.groupby(item, sort=False):
        told = [
            (f"{row[series]} " if series else "") + interval(row["estimate"], row.get("low"), row.get("high"), fmt)
            for row in rows.to_dict("records")
        ]
        lines.append(f"{name}{':' if series else ''} {', '.join(told)}")
    return "; ".join(lines)


def statuses(parts: pd.DataFrame, item: str = "arm", fmt: str = ".0%") -> str:
    """Read stacked bars of known inadmissible, unresolved and known admissible shares out.

    Parameters
    ----------
    parts : DataFrame
        Columns `item`, ``status`` and ``share``, as ``studies.status_shares`` gives them.
    item : str
        Column that names the bar.
    fmt : str
        Format of the shares.

    Returns
    -------
    str
        Such as ``"global_dense: 52% known inadmissible, 1% unresolved, 47% known admissible"``, bars joined by
        ``"; "``. A bar without shares, since no query is feasible, says so.
    """
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
    """Say in words why each item of a route may not be used, or why nobody can tell.

    Parameters
    ----------
    route : DataFrame
        What ``studies.walk_through`` returns: ``memory_id`` and the boolean axes.
    memories : DataFrame
        Of the same records, with ``memory_id`` and ``namespace``; ``state``, ``tenant`` (the owner's name) and
        ``restriction`` are used where they exist.
    notes : mapping of memory id to str, optional
        Why an axis is unresolved, in the annotator's words.

    Returns
    -------
    list of str, one per row
        Axes that are 0 come first; if there are none, the open ones. Empty where all axes are 1. Protocol section 1.
    """
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
