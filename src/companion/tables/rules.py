"""The rules that a table must obey as a whole.

A rule looks at a canonical table (through a `View`, which numbers combinations of columns once) and marks the rows that
break it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from companion.logic import AXES
from companion.tables.problems import show
from companion.tables.values import numbered

Mask = npt.NDArray[np.bool_]

AXIS_COLUMNS = ("relevant", *AXES)
CONDITIONS = ("allow", "block")
ROLES = ("focal", "irrelevant_admissible", "irrelevant_inadmissible")
CELLS = ("relevant_admissible", "relevant_inadmissible", "irrelevant_admissible", "irrelevant_inadmissible")


class View:
    """A canonical table, and the numbers of its distinct combinations of columns, each made once."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        self._codes: dict[tuple[str, ...], npt.NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, column: str) -> pd.Series:
        return self.table[column]

    def codes(self, *columns: str) -> npt.NDArray[np.int64]:
        """Give every distinct combination of some columns a number; a missing value is a value like any other."""
        if columns not in self._codes:
            own, levels = numbered(self.table[columns[-1]])
            key = own.astype(np.int64) + 1
            if len(columns) > 1:
                # Renumbering after each column keeps the product of the counts within 64 bits.
                key = pd.factorize(self.codes(*columns[:-1]) * (len(levels) + 1) + key)[0]
            self._codes[columns] = key
        return self._codes[columns]

    def first(self, columns: Sequence[str], row: int) -> int:
        """Return the 1-based row that first carries the key of a 0-based row."""
        key = self.codes(*columns)
        return int(np.argmax(key == key[row])) + 1

    def said(self, column: str, row: int) -> str:
        """Return a cell in words; NaN there is a missing text, not a number."""
        value = self.table[column].iloc[row]
        if column in AXIS_COLUMNS or column in ("retrieved", "exposed"):
            return "?" if pd.isna(value) else str(int(value))
        return show(None if pd.isna(value) else value)

    def key(self, columns: Sequence[str], row: int) -> str:
        """Return the cells of a key in words."""
        return ", ".join(f"{column} {self.said(column, row)}" for column in columns)


@dataclass(frozen=True)
class Rule:
    """Something that must hold for every row of a canonical table.

    ``alone``: the rule looks at each row by itself, so that unreadable cells elsewhere cannot mislead it.
    """

    name: str
    columns: tuple[str, ...]
    broken: Callable[[View], Mask]
    what: Callable[[View, int], str]
    expected: str
    fix: str
    level: Literal["error", "warning"] = "error"
    alone: bool = True


def none(view: View) -> Mask:
    """Mark no row."""
    return np.zeros(len(view), dtype=bool)


def given(column: str, role: str = "an id") -> Rule:
    """Refuse an empty field."""
    return Rule(
        f"{column}_given",
        (column,),
        lambda view: view[column].isna().to_numpy(),
        lambda view, row: "the field is empty",
        f"{role} that is not empty",
        f"give every row {role} in {column} (NULL, None and nan count as none), or remove the row",
    )


def within(column: str, vocabulary: tuple[str, ...], empty: str = "an empty field (unknown)") -> Rule:
    """Refuse words that are not in a vocabulary."""
    words = ", ".join(vocabulary)
    return Rule(
        f"{column}_known_word",
        (column,),
        lambda view: (view[column].notna() & ~view[column].isin(vocabulary)).to_numpy(),
        lambda view, row: f"{view.said(column, row)} is not a known {column}",
        f"one of {words}" + (f", or {empty}" if empty else ""),
        f"map your own words for {column} to: {words}",
    )


def at_least(column: str, least: int) -> Rule:
    """Refuse smaller numbers."""
    return Rule(
        f"{column}_at_least_{least}",
        (column,),
        lambda view: (view[column] < least).to_numpy(bool, na_value=False),
        lambda view, row: f"{view[column].iloc[row]} is too small",
        f"a whole number, {least} or more",
        "ranks count from 1" if least == 1 else "give the number of exact similarity evaluations",
    )


def unique(*columns: str, fix: str = "") -> Rule:
    """Refuse a second row with the same key."""
    names = ", ".join(columns)
    return Rule(
        "unique_" + "_".join(columns),
        columns,
        lambda view: pd.Series(view.codes(*columns)).duplicated().to_numpy(),
        lambda view, row: f"{view.key(columns, row)} is listed twice, first in row {view.first(columns, row)}",
        f"one row for each {names}",
        fix or f"keep one row for each {names}; if two records really differ, give them different ids",
    )


def all_or_none(column: str, expected: str, fix: str) -> Rule:
    """Refuse an empty field where other rows have one."""

    def broken(view: View) -> Mask:
        missing = view[column].isna().to_numpy()
        return none(view) if missing.all() else missing

    what = f"the field is empty although other rows give a {column}"
    return Rule(f"{column}_all_or_none", (column,), broken, lambda view, row: what, expected, fix)


def one_value(name: str, column: str, what: Callable[[View, int], str], expected: str, fix: str) -> Rule:
    """Refuse rows whose value differs from the first one that is given."""

    def broken(view: View) -> Mask:
        known = view[column].dropna()
        return view.table.index.isin(known.index[known != known.iloc[0]]) if len(known) else none(view)

    return Rule(name, (column,), broken, what, expected, fix)


POPULATION = one_value(
    "one_population",
    "population",
    lambda view, row: (
        f"population {view.said('population', row)} is mixed with {show(view['population'].dropna().iloc[0])}"
    ),
    "one population in a table",
    "populations are never pooled: put each one in files of its own",
)
GROUP_GIVEN = Rule(
    "group_given",
    ("namespace", "group"),
    lambda view: view["group"].isna().to_numpy(),
    lambda view, row: "both namespace and group are empty",
    "a namespace, or a group",
    "name the group whose queries move together when intervals are resampled",
)
_PAIR = ("query_id", "memory_id")
_LABEL = (*_PAIR, "anchor_id")


def _contradicting(view: View) -> Mask:
    """Mark the labels that differ from the first one of their pair on an axis."""
    pair = view.codes(*_PAIR)
    first = pd.Series(np.arange(len(view))).groupby(pair).transform("first").to_numpy()
    differs = none(view)
    for axis in (axis for axis in AXIS_COLUMNS if axis in view.table):
        value = view[axis].astype("Int8").fillna(-1).to_numpy(dtype=np.int8)
        differs |= value != value[first]
    return differs


def _contradiction(view: View, row: int) -> str:
    first = view.first(_PAIR, row)
    axes = [axis for axis in AXIS_COLUMNS if axis in view.table]
    axis = next(axis for axis in axes if view.said(axis, row) != view.said(axis, first - 1))
    said = f"{axis} = {view.said(axis, row)} here and {view.said(axis, first - 1)} in row {first}"
    return f"the label of {view.key(_PAIR, row)} contradicts itself: {said}"


CONSISTENT = Rule(
    "consistent_label",
    _PAIR,
    _contradicting,
    _contradiction,
    "the same axis values in every row of a pair (rows of a pair may differ only in anchor_id)",
    "decide which value holds, or leave the axis unresolved in every row of the pair",
    alone=False,
)
LABELLED_ONCE = Rule(
    "unique_label",
    _LABEL,
    # A row that says otherwise than the first contradicts it, and is named so.
    lambda view: pd.Series(view.codes(*_LABEL)).duplicated().to_numpy() & ~_contradicting(view),
    lambda view, row: f"the label of {view.key(_PAIR, row)} is listed twice, first in row {view.first(_LABEL, row)}",
    "one row for each query_id, memory_id, anchor_id",
    "remove the repeated row",
)
ROUTE = ("arm", "query_id")


def _past_the_end(view: View) -> Mask:
    key = view.codes(*ROUTE)
    return view["rank"].to_numpy() > np.bincount(key)[key] if len(view) else none(view)


def _gap(view: View, row: int) -> str:
    key = view.codes(*ROUTE)
    ranks = set(view["rank"].to_numpy()[key == key[row]].tolist())
    missing = next(rank for rank in range(1, len(ranks) + 2) if rank not in ranks)
    return f"{view.key(ROUTE, row)} has rank {view['rank'].iloc[row]} but no rank {missing}"


NO_GAP = Rule(
    "no_gap_in_ranks",
    (*ROUTE, "rank"),
    _past_the_end,
    _gap,
    "ranks 1, 2, ... without a gap for each arm and query_id",
    "keep every row of a route down to its last rank, or number the ranks again",
    alone=False,
)


def _steps(view: View, sign: float) -> tuple[Mask, npt.NDArray[np.int64]]:
    """Mark the rows whose signed score exceeds that of the row ranked before them, and return that row's number."""
    key = view.codes(*ROUTE)
    order = np.lexsort((view["rank"].to_numpy(), key))
    score = sign * view["score"].to_numpy()[order]
    before = np.arange(len(view), dtype=np.int64)
    before[order[1:]] = order[:-1]
    rises = none(view)
    rises[order[1:]] = (np.diff(key[order]) == 0) & (score[1:] > score[:-1])
    return rises, before


def _never_falls(view: View) -> Mask:
    """Mark the rows of arms in which no score is smaller than that of the row ranked before it."""
    arm = view.codes("arm")
    return (np.bincount(arm[_steps(view, -1.0)[0]], minlength=int(arm.max()) + 1) == 0)[arm]


def _rising(view: View) -> Mask:
    """Mark the first rise of every route, and one of an arm whose scores always rise."""
    if not len(view) or view["score"].isna().all():
        return none(view)
    at = np.flatnonzero(_steps(view, 1.0)[0])
    at = at[np.argsort(view["rank"].to_numpy()[at], kind="stable")]  # by rank, not by the order of the file
    once = np.where(_never_falls(view)[at], -1 - view.codes("arm")[at], view.codes(*ROUTE)[at])
    marked = none(view)
    marked[at[~pd.Series(once).duplicated().to_numpy()]] = True
    return marked


def _rise(view: View, row: int) -> str:
    before = int(_steps(view, 1.0)[1][row])
    one, two = (f"rank {view['rank'].iloc[at]} has" for at in (before, row))
    pair = f"{one} score {view['score'].iloc[before]:g} and {two} {view['score'].iloc[row]:g}"
    if _never_falls(view)[row]:
        return f"in every route of arm {view.said('arm', row)} scores rise with the rank: {pair}"
    return f"in the route of {view.key(ROUTE, row)}, {pair}"


SCORES_FOLLOW = Rule(
    "scores_follow_ranks",
    (*ROUTE, "rank", "score"),
    _rising,
    _rise,
    "scores that do not rise from one rank to the next",
    "the ranks are used and the scores are not: correct the ranks if the scores are right; if the column holds "
    "distances, name it distance",
    "warning",
    alone=False,
)


EXPOSED_IS_RETRIEVED = Rule(
    "exposed_is_retrieved",
    ("retrieved", "exposed"),
    lambda view: (view["exposed"].fillna(False) & ~view["retrieved"].fillna(False)).to_numpy(dtype=bool),
    lambda view, row: f"exposed = 1 but retrieved = {view.said('retrieved', row)} for {view.key(_PAIR, row)}",
    "retrieved = 1 wherever exposed = 1",
    "correct one of the two columns, unless it came from elsewhere, such as a cache: the audit reports it",
    "warning",
)

# --- outcomes ----------------------------------------------------------------------------------------------------

UNIT = ("reader", "scenario", "pair", "condition", "candidate_role")


def _cell_of(view: View) -> pd.Series:
    """Return the cell that condition and role imply."""
    focal = view["condition"].map({"allow": "relevant_admissible", "block": "relevant_inadmissible"})
    return view["candidate_role"].where(view["candidate_role"] != "focal", focal)


CELL_FITS = Rule(
    "cell_fits_role",
    ("condition", "candidate_role", "cell"),
    lambda view: (view["cell"] != _cell_of(view)).to_numpy(bool, na_value=False),
    lambda view, row: f"{view.key(UNIT, row)}: cell is {view.said('cell', row)}, not {show(_cell_of(view).iloc[row])}",
    "the cell that condition and candidate_role imply",
    "focal is relevant_admissible under allow and relevant_inadmissible under block; other roles name their cell",
    alone=False,
)


def _second_axis(view: View) -> Mask:
    first = view["axis"].groupby(view.codes("scenario")).transform("first")
    return (view["axis"] != first).to_numpy(bool, na_value=False)


ONE_AXIS = Rule(
    "one_axis",
    ("scenario", "axis"),
    _second_axis,
    lambda view, row: f"scenario {view.said('scenario', row)} has axis {view.said('axis', row)} and another",
    "one governing axis for each scenario",
    "give all rows of a scenario the same axis",
    alone=False,
)


def settled(column: str) -> Rule:
    """Refuse an outcome that is not known."""
    return Rule(
        f"{column}_settled",
        (*UNIT, column),
        lambda view: view[column].isna().to_numpy(),
        lambda view, row: f"{view.key(UNIT, row)}: no outcome",
        "0 or 1 for every unit",
        "incomplete response sets are refused, never scored in part: ask the reader again",
    )


def complete_sets(view: View) -> Iterator[tuple[str | None, str, str, str]]:
    """Tell scenarios with fewer pairs than others, and units that one reader lacks."""
    fix = "incomplete response sets are refused, never scored in part: run what is missing"
    table = view.table
    pairs = table[["scenario", "pair"]].drop_duplicates()
    sizes = pairs.groupby("scenario").size()
    for scenario in sizes.index[sizes < sizes.max()]:
        found = ", ".join(map(str, pairs.loc[pairs["scenario"] == scenario, "pair"]))
        yield "pair", f"scenario {scenario}: pair {found} only", f"{sizes.max()} pairs as in other scenarios", fix
    units = pd.MultiIndex.from_frame(table[list(UNIT)])
    parts: list[Any] = [table["reader"].unique(), pd.MultiIndex.from_frame(pairs), CONDITIONS, ROLES]
    wanted = [(r, *p, c, role) for r in parts[0] for p in parts[1] for c in parts[2] for role in parts[3]]
    missing = pd.MultiIndex.from_tuples(wanted, names=list(UNIT)).difference(units, sort=False)
    if len(missing):
        where = ", ".join(f"{name} {value}" for name, value in zip(UNIT, missing[0], strict=True))
        what = f"{where}: no outcome ({len(missing)} of {len(wanted)} units missing)"
        yield None, what, "complete response sets, both conditions of every pair for every reader", fix
