"""The seven record tables: their columns, and the rules that a table must obey as a whole.

A rule looks at a whole canonical table and marks the rows that break it. Rules run as `pandera` checks, so that the
schemas can also be used, printed and tested with that library's own tools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from companion.tables.problems import show

if TYPE_CHECKING:
    import pandera.pandas as pa

Kind = Literal["text", "name", "boolean", "whole", "count", "score", "number"]
Mask = npt.NDArray[np.bool_]

DTYPES: dict[str, str] = {
    "text": "str",
    "name": "str",
    "boolean": "boolean",
    "whole": "int64",
    "count": "Int64",
    "score": "float64",
    "number": "Float64",
}
EXPECTED: dict[str, str] = {
    "text": "text",
    "name": "text without control characters",
    "boolean": "1, 0, true, false, or unresolved (?, an empty field or null)",
    "whole": "a whole number",
    "count": "a whole number or an empty field",
    "score": "a finite number",
    "number": "a finite number or an empty field",
}
AXIS_COLUMNS = ("relevant", "scope", "policy", "lifecycle")
STATES = ("current", "stale", "superseded", "forgotten", "unknown")
INTENTS = ("current", "history", "unknown")
ONE_SOURCE = "all"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    kind: Kind
    required: bool = False
    meaning: str = ""
    add: bool = True

    @property
    def dtype(self) -> str:
        """Canonical pandas dtype."""
        return DTYPES[self.kind]


@dataclass(frozen=True)
class Rule:
    """Something that must hold for every row of a canonical table."""

    name: str
    columns: tuple[str, ...]
    broken: Callable[[pd.DataFrame], Mask]
    what: Callable[[pd.DataFrame, int], str]
    expected: str
    fix: str
    level: Literal["error", "warning"] = "error"


@dataclass(frozen=True)
class Schema:
    """Columns and rules of one table."""

    name: str
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...] = field(default=(), repr=False)
    keeps_extra: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names in canonical order."""
        return tuple(column.name for column in self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns without which a table is refused."""
        return tuple(column.name for column in self.columns if column.required)

    def pandera(self, *, partial: bool = False, warnings: bool = True) -> pa.DataFrameSchema:
        """Return the schema in `pandera`'s terms, for canonical tables."""
        import pandera.pandas as pa

        columns = {
            column.name: pa.Column(column.dtype, nullable=True, required=column.required and not partial)
            for column in self.columns
        }
        rules = [rule for rule in self.rules if warnings or rule.level == "error"]
        return pa.DataFrameSchema(columns, checks=[_as_check(rule) for rule in rules], name=self.name)


def _as_check(rule: Rule) -> pa.Check:
    import pandera.pandas as pa

    def holds(table: pd.DataFrame) -> pd.Series:
        readable = set(rule.columns) <= set(table.columns)
        broken = rule.broken(table) if readable else np.zeros(len(table), dtype=bool)
        return pd.Series(~np.asarray(broken, dtype=bool), index=table.index)

    return pa.Check(holds, name=rule.name, error=rule.expected, ignore_na=False)


def codes(table: pd.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """Count off the distinct combinations of some columns; a missing value is a value like any other."""
    key = np.zeros(len(table), dtype=np.int64)
    for column in columns:
        part, levels = pd.factorize(table[column], use_na_sentinel=False)
        # Renumbering after each column keeps the product of the counts within 64 bits.
        key = pd.factorize(key * max(len(levels), 1) + part)[0]
    return key


# --- rules -------------------------------------------------------------------------------------------------------


def _given(column: str, role: str = "an id") -> Rule:
    return Rule(
        f"{column}_given",
        (column,),
        lambda table: table[column].isna().to_numpy(),
        lambda table, row: "the field is empty",
        f"{role} that is not empty",
        f"give every row {role} in {column}, or remove the row",
    )


def _within(column: str, vocabulary: tuple[str, ...]) -> Rule:
    words = ", ".join(vocabulary)
    return Rule(
        f"{column}_known_word",
        (column,),
        lambda table: (table[column].notna() & ~table[column].isin(vocabulary)).to_numpy(),
        lambda table, row: f"{_said(table, column, row)} is not a known {column}",
        f"one of {words}, or an empty field (unknown)",
        f"map your own words for {column} to: {words}",
    )


def _at_least(column: str, least: int) -> Rule:
    return Rule(
        f"{column}_at_least_{least}",
        (column,),
        lambda table: (table[column] < least).to_numpy(bool, na_value=False),
        lambda table, row: f"{table[column].iloc[row]} is too small",
        f"a whole number, {least} or more",
        "ranks count from 1" if least == 1 else "give the number of exact similarity evaluations",
    )


def _unique(*columns: str, complete: bool = False) -> Rule:
    """Refuse a second row with the same key; with ``complete``, compare only rows whose whole key is given."""

    def broken(table: pd.DataFrame) -> Mask:
        key = pd.Series(codes(table, columns))
        again = key.duplicated().to_numpy()
        return again & table[list(columns)].notna().all(axis=1).to_numpy() if complete else again

    def what(table: pd.DataFrame, row: int) -> str:
        key = ", ".join(f"{column} {_said(table, column, row)}" for column in columns)
        return f"{key} is listed twice, first in row {_first_twin(table, columns, row)}"

    names = ", ".join(columns)
    return Rule(
        "unique_" + "_".join(columns),
        columns,
        broken,
        what,
        f"one row for each {names}",
        f"keep one row for each {names}; if two records really differ, give them different ids",
    )


def _first_twin(table: pd.DataFrame, columns: Sequence[str], row: int) -> int:
    """Return the 1-based row that first carries the key of a 0-based row."""
    key = codes(table, columns)
    return int(np.flatnonzero(key == key[row])[0]) + 1


def _partly_empty(column: str, expected: str, fix: str) -> Rule:
    def broken(table: pd.DataFrame) -> Mask:
        missing = table[column].isna().to_numpy()
        return missing if not missing.all() else np.zeros(len(table), dtype=bool)

    return Rule(
        f"{column}_all_or_none",
        (column,),
        broken,
        lambda table, row: f"the field is empty although other rows give a {column}",
        expected,
        fix,
    )


def _one_population() -> Rule:
    def broken(table: pd.DataFrame) -> Mask:
        known = table["population"].dropna()
        differs = known.index[known != known.iloc[0]] if len(known) else known.index
        return table.index.isin(differs)

    def what(table: pd.DataFrame, row: int) -> str:
        population = table["population"]
        return f"population {show(population.iloc[row])} is mixed with {show(population.dropna().iloc[0])}"

    return Rule(
        "one_population",
        ("population",),
        broken,
        what,
        "one population in a table",
        "populations are never pooled: put each one in files of its own",
    )


def _group_given() -> Rule:
    return Rule(
        "group_given",
        ("namespace", "group"),
        lambda table: table["group"].isna().to_numpy(),
        lambda table, row: "both namespace and group are empty",
        "a namespace, or a group",
        "name the group whose queries move together when intervals are resampled",
    )


def _label_duplicates() -> Rule:
    """Refuse a row that says again what another one says; one that says otherwise contradicts it, and is named so."""
    key = ("query_id", "memory_id", "anchor_id")

    def broken(table: pd.DataFrame) -> Mask:
        again = pd.Series(codes(table, key)).duplicated().to_numpy()
        return again & ~_contradicting(table)

    def what(table: pd.DataFrame, row: int) -> str:
        pair = _pair(table, row)
        return f"the label of {pair} is listed twice, first in row {_first_twin(table, key, row)}"

    return Rule(
        "unique_label",
        key,
        broken,
        what,
        "one row for each query_id, memory_id, anchor_id",
        "remove the repeated row",
    )


def _contradicting(table: pd.DataFrame) -> Mask:
    """Mark the labels that differ from the first one of their pair on an axis."""
    pair = codes(table, ("query_id", "memory_id"))
    first = pd.Series(np.arange(len(table))).groupby(pair).transform("first").to_numpy()
    differs = np.zeros(len(table), dtype=bool)
    for axis in (axis for axis in AXIS_COLUMNS if axis in table.columns):
        value = table[axis].astype("Int8").fillna(-1).to_numpy(dtype=np.int8)
        differs |= value != value[first]
    return differs


def _contradictions() -> Rule:
    pair = ("query_id", "memory_id")

    def what(table: pd.DataFrame, row: int) -> str:
        first = _first_twin(table, pair, row) - 1
        axes = [axis for axis in AXIS_COLUMNS if axis in table.columns]
        axis = next(axis for axis in axes if _cell(table, axis, row) != _cell(table, axis, first))
        said = f"{axis} = {_cell(table, axis, row)} here and {_cell(table, axis, first)} in row {first + 1}"
        return f"the label of {_pair(table, row)} contradicts itself: {said}"

    return Rule(
        "consistent_label",
        pair,
        _contradicting,
        what,
        "the same axis values in every row of a pair (rows of a pair may differ only in anchor_id)",
        "decide which value holds, or leave the axis unresolved in every row of the pair",
    )


def _said(table: pd.DataFrame, column: str, row: int) -> str:
    """Return a canonical cell in words; NaN there is a missing text, not a number."""
    value = table[column].iloc[row]
    return show(None if pd.isna(value) else value)


def _pair(table: pd.DataFrame, row: int) -> str:
    return f"query_id {_said(table, 'query_id', row)}, memory_id {_said(table, 'memory_id', row)}"


def _cell(table: pd.DataFrame, axis: str, row: int) -> str:
    value = table[axis].iloc[row]
    return "?" if pd.isna(value) else str(int(value))


def _gaps() -> Rule:
    route = ("arm", "query_id")

    def broken(table: pd.DataFrame) -> Mask:
        key = codes(table, route)
        return table["rank"].to_numpy() > np.bincount(key)[key] if len(table) else np.zeros(0, dtype=bool)

    def what(table: pd.DataFrame, row: int) -> str:
        key = codes(table, route)
        ranks = set(table["rank"].to_numpy()[key == key[row]].tolist())
        missing = next(rank for rank in range(1, len(ranks) + 2) if rank not in ranks)
        place = f"arm {_said(table, 'arm', row)}, query_id {_said(table, 'query_id', row)}"
        return f"{place} has rank {table['rank'].iloc[row]} but no rank {missing}"

    return Rule(
        "no_gap_in_ranks",
        (*route, "rank"),
        broken,
        what,
        "ranks 1, 2, ... without a gap for each arm and query_id",
        "keep every row of a route down to its last rank, or number the ranks again",
    )


def _rises(table: pd.DataFrame) -> tuple[Mask, npt.NDArray[np.int64]]:
    """Mark the rows whose score is greater than that of the row ranked before them, and return that row's number."""
    key = codes(table, ("arm", "query_id"))
    order = np.lexsort((table["rank"].to_numpy(), key))
    score = table["score"].to_numpy()[order]
    before = np.arange(len(table), dtype=np.int64)
    before[order[1:]] = order[:-1]
    rises = np.zeros(len(table), dtype=bool)
    rises[order[1:]] = (np.diff(key[order]) == 0) & (score[1:] > score[:-1])
    return rises, before


def _scores_follow_ranks() -> Rule:
    """Warn of routes that their scores would order differently; an arm that always rises is named once."""

    def broken(table: pd.DataFrame) -> Mask:
        if not len(table) or table["score"].isna().all():
            return np.zeros(len(table), dtype=bool)
        rises, _ = _rises(table)
        at = np.flatnonzero(rises)
        route = codes(table, ("arm", "query_id"))[at]
        arm = codes(table, ("arm",))
        upside_down = np.flatnonzero(~_falls_somewhere(table, arm))
        once = np.where(np.isin(arm[at], upside_down), -1 - arm[at], route)
        marked = np.zeros(len(table), dtype=bool)
        # The first rise of a route by rank, not by the order of the file.
        ranked = at[np.lexsort((table["rank"].to_numpy()[at],))]
        key = once[np.lexsort((table["rank"].to_numpy()[at],))]
        marked[ranked[~pd.Series(key).duplicated().to_numpy()]] = True
        return marked

    def what(table: pd.DataFrame, row: int) -> str:
        arm = codes(table, ("arm",))
        before = int(_rises(table)[1][row])
        rank, score = table["rank"], table["score"]
        pair = (
            f"rank {rank.iloc[before]} has score {score.iloc[before]:g} and rank {rank.iloc[row]} has "
            f"{score.iloc[row]:g}"
        )
        place = f"arm {_said(table, 'arm', row)}"
        if not _falls_somewhere(table, arm)[arm[row]]:
            return f"in every route of {place} scores rise with the rank: {pair}"
        return f"in the route of {place}, query_id {_said(table, 'query_id', row)}, {pair}"

    return Rule(
        "scores_follow_ranks",
        ("arm", "query_id", "rank", "score"),
        broken,
        what,
        "scores that do not rise from one rank to the next",
        "the ranks are used and the scores are not: correct the ranks if the scores are right; if the column holds "
        "distances, name it distance",
        "warning",
    )


def _falls_somewhere(table: pd.DataFrame, arm: npt.NDArray[np.int64]) -> Mask:
    """Tell for each arm whether the score of any of its rows is smaller than that of the row ranked before it."""
    falls = _rises(table.assign(score=-table["score"]))[0]
    return np.bincount(arm[falls], minlength=int(arm.max()) + 1) > 0


def _exposed_without_retrieved() -> Rule:
    def broken(table: pd.DataFrame) -> Mask:
        return (table["exposed"].fillna(False) & ~table["retrieved"].fillna(False)).to_numpy(dtype=bool)

    return Rule(
        "exposed_is_retrieved",
        ("retrieved", "exposed"),
        broken,
        lambda table, row: f"exposed = 1 but retrieved = {_cell(table, 'retrieved', row)} for {_pair(table, row)}",
        "retrieved = 1 wherever exposed = 1",
        "correct one of the two columns, unless it came from elsewhere, such as a cache: the audit reports it",
        "warning",
    )


# --- tables ------------------------------------------------------------------------------------------------------


def _axis(name: str, meaning: str) -> Column:
    return Column(name, "boolean", meaning=meaning, add=False)


_GROUP = Column("group", "name", meaning="whose records move together when resampled; the namespace by default")
_SOURCE = Column("source", "name", meaning="benchmark or system a record comes from; one source by default")
_WHOLE_SOURCE = _partly_empty(
    "source", "a source in every row, or in none", "name the source of every row, or leave the whole column empty"
)

_MEMORIES = Schema(
    "memories",
    (
        Column("memory_id", "name", True, "unique id"),
        Column("namespace", "name", True, "who the memory belongs to; may be empty where unknown"),
        _GROUP,
        _SOURCE,
        Column("order", "number", meaning="position in time within the corpus"),
        Column("time", "text", meaning="date or time as the corpus gives it"),
        Column("state", "name", meaning="current, stale, superseded, forgotten or unknown"),
        Column(
            "shared", "boolean", meaning="1: it belongs to everybody, so that scope is 1 for whoever asks", add=False
        ),
        Column("text", "text", meaning="what the memory says"),
    ),
    (_given("memory_id"), _unique("memory_id"), _WHOLE_SOURCE, _within("state", STATES)),
    keeps_extra=True,
)
_QUERIES = Schema(
    "queries",
    (
        Column("query_id", "name", True, "unique id"),
        Column("namespace", "name", True, "trusted namespace of who asks; may be empty where unknown"),
        _GROUP,
        _SOURCE,
        Column("split", "name", meaning="development, evaluation, ..."),
        Column("stratum", "name", meaning="what intervals are stratified within, besides source"),
        Column("intent", "name", meaning="current, history or unknown"),
        Column("principal", "name", meaning="who asks, as authenticated"),
        Column("time", "text", meaning="when the question is asked"),
        Column("text", "text", meaning="the question"),
    ),
    (_given("query_id"), _unique("query_id"), _group_given(), _WHOLE_SOURCE, _within("intent", INTENTS)),
    keeps_extra=True,
)
_LABELS = Schema(
    "labels",
    (
        Column("query_id", "name", True, "query of the pair"),
        Column("memory_id", "name", True, "memory of the pair"),
        _axis("relevant", "does the memory help to answer the query"),
        _axis("scope", "does it belong to who asks"),
        _axis("policy", "may it be used for this purpose"),
        _axis("lifecycle", "is it in force for this intent"),
        Column("anchor_id", "name", meaning="required item; interchangeable memories share one"),
    ),
    (_given("query_id"), _given("memory_id"), _contradictions(), _label_duplicates()),
)
_RANKINGS = Schema(
    "rankings",
    (
        Column("arm", "name", True, "name of the route"),
        Column("query_id", "name", True, "query"),
        Column("rank", "whole", True, "1, 2, ..."),
        Column("memory_id", "name", True, "memory at that rank"),
        Column("score", "score", meaning="what it was ranked by"),
    ),
    (
        _given("arm", "a name"),
        _given("query_id"),
        _given("memory_id"),
        _at_least("rank", 1),
        _unique("arm", "query_id", "rank"),
        _unique("arm", "query_id", "memory_id"),
        _gaps(),
        _partly_empty(
            "score", "a finite number in every row, or in none", "give every row its score, or drop the column"
        ),
        _scores_follow_ranks(),
    ),
)
_WORK = Schema(
    "work",
    (
        Column("arm", "name", True, "name of the route"),
        Column("query_id", "name", True, "query"),
        Column("candidates_scored", "count", True, "exact similarity evaluations; may be empty where not counted"),
        Column("status", "name", meaning="done or failed: what became of the request; done by default", add=False),
    ),
    (
        _within("status", ("done", "failed")),
        _given("arm", "a name"),
        _given("query_id"),
        _at_least("candidates_scored", 0),
        _unique("arm", "query_id"),
    ),
)
_LEDGER = Schema(
    "ledger",
    (
        Column("query_id", "name", True, "query"),
        Column("arm", "name", True, "name of the route"),
        Column("memory_id", "name", True, "stored memory"),
        Column("retrieved", "boolean", meaning="the route returned it"),
        Column("exposed", "boolean", meaning="it was placed in front of the reader"),
        Column("rank", "count", meaning="place in the route", add=False),
        Column("score", "number", meaning="what it was ranked by", add=False),
        Column("disclosed", "boolean", meaning="the answer gave it away", add=False),
    ),
    (
        _given("query_id"),
        _given("arm", "a name"),
        _given("memory_id"),
        _unique("query_id", "arm", "memory_id"),
        _exposed_without_retrieved(),
    ),
    keeps_extra=True,
)
_OUTCOMES = Schema(
    "outcomes",
    (
        Column("reader", "name", True, "model that answers"),
        Column("scenario", "name", True, "unit that is resampled"),
        Column("axis", "name", meaning="axis that governs the scenario"),
        Column("pair", "name", meaning="paraphrase within the scenario"),
        Column("condition", "name", meaning="allow or block"),
        Column("candidate_role", "name", meaning="which of the three candidates is exposed or withheld"),
        Column("cell", "name", True, "relevant or irrelevant, admissible or inadmissible"),
        Column("disclosed_exposed", "boolean", True, "disclosed when exposed"),
        Column("disclosed_withheld", "boolean", True, "disclosed when withheld"),
    ),
    (
        _given("reader", "a name"),
        _given("scenario"),
        _given("cell", "a cell"),
        _unique("reader", "scenario", "pair", "condition", "candidate_role", complete=True),
    ),
)

POPULATION = Column("population", "name", meaning="population the records come from; one in a table", add=False)


def _with_population(schema: Schema) -> Schema:
    return Schema(schema.name, (*schema.columns, POPULATION), (*schema.rules, _one_population()), schema.keeps_extra)


TABLES: dict[str, Schema] = {
    schema.name: _with_population(schema)
    for schema in (_MEMORIES, _QUERIES, _LABELS, _RANKINGS, _WORK, _LEDGER, _OUTCOMES)
}


def missing_column(column: Column, rows: int) -> pd.Series:
    """Return an all-missing column of the canonical dtype."""
    value: Any = np.nan if column.kind in ("text", "name", "score") else pd.NA
    return pd.Series([value] * rows, dtype=column.dtype)
