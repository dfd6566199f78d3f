"""The one validator: the canonical copy of a table, and everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.tables.forms import form_problems
from companion.tables.problems import Origin, Problem, is_missing, not_accepted, show
from companion.tables.rules import Mask, Rule, View
from companion.tables.schema import EXPECTED, ONE_SOURCE, TABLES, Column, Schema
from companion.tables.values import PARSERS, folded, numbered, plain, settle

_SENTENCES, _FIRST, _NAMED = 50_000_000, 20, 5
BORROWED: dict[str, dict[str, str]] = {
    "labels": {"query_id": "queries", "memory_id": "memories"},
    "rankings": {"query_id": "queries", "memory_id": "memories"},
    "work": {"query_id": "queries"},
    "ledger": {"query_id": "queries", "memory_id": "memories"},
}
"""Which ids a table borrows, and from where."""
Tables = Mapping[str, pd.DataFrame]
Origins = Mapping[str, Origin]


def schema_of(name: str) -> Schema:
    """Return the schema of a table by name."""
    if name not in TABLES:
        raise InputError(f"no table is called {name!r}; expected one of {', '.join(TABLES)}")
    return TABLES[name]


def validate(df: pd.DataFrame, name: str, origin: str | Origin = "table") -> pd.DataFrame:
    """Return the canonical copy of a table, or refuse it.

    Columns come in the order of the contract with their canonical dtypes: text ``str`` (missing = NaN, the empty
    text is missing), truth values ``boolean``, ranks and counts ``int64``, score ``float64``, order ``Float64``.
    Optional columns that are absent are added, all missing, except label axes, which stay absent. In memories and
    queries an empty group becomes the namespace, an absent source becomes ``"all"``, and extra columns are carried
    along, as in a ledger; other tables drop extra columns. Rows keep their order; the index counts from 0.

    Parameters
    ----------
    df : DataFrame
        The table as read or built.
    name : str
        A key of `TABLES`.
    origin : str or Origin
        What messages call the table.

    Returns
    -------
    DataFrame

    Raises
    ------
    InputError
        With the first problem found: file, row, column, value and what was expected.
    """
    table, problems = examine(df, name, origin, warnings=False, every=False)
    for problem in problems:
        if problem.is_error:
            raise problem.error()
    return table


def find_problems(df: pd.DataFrame, name: str, origin: str | Origin = "table") -> list[Problem]:
    """List everything that is wrong with a table and what looks odd, row by row.

    Errors come first, in the order in which `validate` looks for them; then warnings. Empty for a good table.
    """
    return examine(df, name, origin)[1]


def is_canonical(df: pd.DataFrame, name: str) -> bool:
    """Tell from names and dtypes whether a table has the form that `validate` gives it."""
    # A count is Int64 only where one is missing; categories are names that were numbered already.
    forms = {"count": ("Int64", "int64"), "name": ("str", "category"), "id": ("str", "category")}
    columns = [column for column in schema_of(name).columns if column.required or column.add or column.name in df]
    return all(c.name in df and str(df[c.name].dtype) in forms.get(c.kind, (c.dtype,)) for c in columns)


def examine(
    df: pd.DataFrame, name: str, origin: str | Origin = "table", *, warnings: bool = True, every: bool = True
) -> tuple[pd.DataFrame, list[Problem]]:
    """Return the canonical table, usable only when no problem is an error, and the problems.

    ``warnings``: list what is merely odd, too, which can take as long as the rest. ``every``: one problem for each
    row at fault; otherwise one for each fault, with the number of further rows.
    """
    schema, origin = schema_of(name), Origin.of(origin)
    problems = _header_problems(df, schema, origin)
    if not df.columns.is_unique:
        return pd.DataFrame(), problems
    df = df.reset_index(drop=True)
    canonical, unreadable = _canonical(df, schema)
    for column in (column for column in schema.columns if column.name in unreadable):
        problems += _cell_problems(df[column.name], column, unreadable[column.name], schema, origin, every)
    view = View(canonical)
    for rule in schema.rules:
        if warnings or rule.level == "error":
            problems += _broken(rule, view, unreadable, schema, origin, every)
    if schema.whole and len(df) and not any(problem.is_error for problem in problems):
        for where, what, expected, fix in schema.whole(view):
            problems.append(Problem(name, None, None, where, what, expected, fix, origin=origin.label, code="whole"))
    if warnings:
        problems += [*_lookalikes(df, schema, origin), *_like_forms(canonical, schema, origin)]
    if schema.keeps_extra:
        for extra in _extras(df, schema):
            canonical[extra] = plain(settle(df[extra]))
    return canonical, sorted(problems, key=lambda problem: not problem.is_error)


def _canonical(df: pd.DataFrame, schema: Schema) -> tuple[pd.DataFrame, dict[str, Mask]]:
    """Read every column that the table knows, add what may be absent, and mark the cells that cannot be read."""
    table: dict[str, pd.Series] = {}
    unreadable: dict[str, Mask] = {}
    for column in schema.columns:
        if column.name in df.columns:
            values, bad = _parse(df[column.name], column)
            if bad.any():
                unreadable[column.name] = bad
            if values is not None:
                table[column.name] = values
        elif column.add and not column.required:
            missing = np.nan if column.dtype in ("str", "float64") else pd.NA
            table[column.name] = pd.Series([missing] * len(df), dtype=column.dtype)
    _fill_defaults(table)
    return pd.DataFrame(table, index=df.index), unreadable


def _extras(df: pd.DataFrame, schema: Schema) -> list[Any]:
    return [name for name in df.columns if name not in schema.names]


def _header_problems(df: pd.DataFrame, schema: Schema, origin: Origin) -> list[Problem]:
    """Find repeated column names and missing required columns."""

    def problem(column: str, what: str, expected: str, fix: str) -> Problem:
        return Problem(schema.name, None, None, column, what, expected, fix, origin=origin.label, code="header")

    twice = df.columns[df.columns.duplicated()].unique()
    problems = [
        problem(str(n), f"column {show(n)} appears more than once", "every column once", "rename or remove one of them")
        for n in twice
    ]
    columns = ", ".join(show(name)[1:-1] if isinstance(name, str) else str(name) for name in df.columns) or "none"
    header = str(df.columns[0]) if len(df.columns) == 1 else ""
    separator = next((mark for mark in (";", "\t", "|") if mark in header), None)
    for name in (name for name in schema.required if name not in df.columns):
        near = _nearest(name, _extras(df, schema))
        found = f"the columns are {columns}" if near is None else f"{show(near)} is there"
        fix = f"add a column {name}" if separator is None else f"fields are separated by {separator!r}: use commas"
        fix = fix if near is None else f"rename column {show(near)} to {name}"
        expected = f"the columns {', '.join(schema.required)}"
        problems.append(problem(name, f"the column is missing ({found})", expected, fix))
    return problems


def _nearest(name: str, candidates: list[Any]) -> Any:
    """Return the candidate that looks like a misspelling of a name, or None; ``memory`` is what it says, not an id."""
    names = [str(candidate).strip().lower().replace(" ", "_").replace("-", "_") for candidate in candidates]
    folds = {
        fold: given
        for fold, given in zip(names, candidates, strict=True)
        if not (name.endswith("_id") and fold == name.removesuffix("_id"))
    }
    close = get_close_matches(name, list(folds), n=1, cutoff=0.75)
    return folds[close[0]] if close else None


def _lookalikes(df: pd.DataFrame, schema: Schema, origin: Origin) -> Iterator[Problem]:
    """Warn of an unknown column that looks like an optional one that is absent: it is not used."""
    for column in schema.columns:
        near = None if column.required or column.name in df.columns else _nearest(column.name, _extras(df, schema))
        if near is not None:
            yield Problem(
                *(schema.name, None, None, str(near)),
                f"the column is not used; it looks like {column.name}",
                f"{column.name}, or a name of your own that is not so close",
                f"rename it to {column.name} if that is what it holds",
                origin=origin.label,
                code="lookalike",
                level="warning",
            )


def _like_forms(table: pd.DataFrame, schema: Schema, origin: Origin) -> Iterator[Problem]:
    """Warn of ids within one column that differ only in form."""
    for column in schema.columns:
        if column.kind == "id" and column.name not in ("group", "namespace") and column.name in table:
            yield from form_problems(numbered(table[column.name])[1], schema.name, column.name, origin)


def _parse(given: pd.Series, column: Column) -> tuple[pd.Series | None, Mask]:
    """Read one column; None where it cannot be canonical, since a whole number may not be missing."""
    values, bad = PARSERS[column.kind](settle(given))
    if column.kind == "whole":
        bad = bad | values.isna().to_numpy()
        if bad.any():
            return None, bad
    dtype = "int64" if column.kind == "count" and values.notna().all() else column.dtype
    return values.astype(pd.api.types.pandas_dtype(dtype)), bad


def _cell_problems(
    given: pd.Series, column: Column, bad: Mask, schema: Schema, origin: Origin, every: bool
) -> Iterator[Problem]:
    expected, rows = EXPECTED[column.kind], np.flatnonzero(bad).tolist()
    for row in rows if every else rows[:1]:
        value = given.iloc[row]
        yield Problem(
            *(schema.name, row + 1, origin.line(row), column.name),
            not_accepted(value, column.kind),
            expected,
            f"write {expected} in {column.name}",
            value=value,
            origin=origin.label,
            code="cell",
            more=0 if every else len(rows) - 1,
        )


def _fill_defaults(table: dict[str, pd.Series]) -> None:
    """Fill group from namespace row by row, and source when no row gives one."""
    if {"group", "namespace"} <= table.keys():
        table["group"] = table["group"].fillna(table["namespace"])
    if "source" in table and table["source"].isna().all():
        table["source"] = table["source"].fillna(ONE_SOURCE)


def _broken(
    rule: Rule, view: View, unreadable: dict[str, Mask], schema: Schema, origin: Origin, every: bool
) -> Iterator[Problem]:
    """Run a rule whose columns could be read, and say where it is broken."""
    if any(column not in view.table for column in rule.columns) or (unreadable and not rule.alone):
        return
    mask = np.asarray(rule.broken(view), dtype=bool)
    for column in rule.columns:
        if column in unreadable:  # listed already, as a cell
            mask = mask & ~unreadable[column]
    rows = np.flatnonzero(mask).tolist()
    # Some rules search the table for every sentence; in a large table with many faults the first few must do.
    told = len(rows) if len(rows) * len(view) <= _SENTENCES else _FIRST
    column = rule.columns[-1]
    for place, row in enumerate(rows if every else rows[:1]):
        value = view[column].iloc[row]
        same = f"{column} {show(None if pd.isna(value) else value)} has the same fault as the rows above"
        yield Problem(
            *(schema.name, row + 1, origin.line(row), column),
            rule.what(view, row) if place < told else same,
            rule.expected,
            rule.fix,
            value=value,
            origin=origin.label,
            code=rule.name,
            more=0 if every else len(rows) - 1,
            level=rule.level,
        )


def across(
    tables: Tables, origins: Origins, stated: str = "", *, every: bool = True, holed: Collection[str] = ()
) -> list[Problem]:
    """Compare canonical tables: unknown ids, namespaces that differ only in form, and populations.

    ``stated`` is the population that the caller names. An id that a table with holes (``holed``: some of its ids could
    not be read) does not list is only a warning.
    """
    problems: list[Problem] = []
    for name, borrowed in BORROWED.items():
        for column, lender in borrowed.items():
            if name in tables and lender in tables and column in tables[name] and column in tables[lender]:
                found = _unknown_ids(tables[name][column], tables[lender][column], name, lender, origins, every)
                if found and lender in holed:
                    found = [_not_compared(found, lender, origins)]
                problems += found
    problems += _populations(tables, origins, stated)
    if every and {"memories", "queries"} <= set(tables):
        both = [tables[name]["namespace"] for name in ("queries", "memories") if "namespace" in tables[name]]
        known = pd.concat([pd.Series(numbered(values)[1], dtype="str") for values in both])
        found = form_problems(pd.Index(pd.unique(known)), "queries", "namespace", origins["queries"])
        problems += [replace(p, origin=f"{p.origin} and {origins['memories'].label}") for p in found]
    return problems


def _unknown_ids(
    ids: pd.Series, known: pd.Series, name: str, lender: str, origins: Origins, every: bool
) -> list[Problem]:
    codes, levels = numbered(ids)
    strange = pd.Index(numbered(known)[1]).get_indexer(levels) < 0
    if not strange.any():
        return []
    rows = np.flatnonzero(np.append(strange, False)[codes]).tolist()
    forms = pd.Series(numbered(known)[1], index=folded(numbered(known)[1]))
    forms = forms[~forms.index.duplicated()]
    column, label, origin = str(ids.name), origins[lender].label, origins[name]
    problems = []
    for row in rows if every else rows[:1]:
        like = forms.get(folded(pd.Index([ids.iloc[row]]))[0])
        fix = f"add the missing {column} to {label}, or remove the rows that name it"
        problems.append(
            Problem(
                *(name, row + 1, origin.line(row), column),
                f"{show(ids.iloc[row])} is unknown" + ("" if like is None else f" ({show(like)} differs only in form)"),
                f"a {column} listed in {label}",
                fix if like is None else f"write {show(like)} here, or the other form there: ids are compared as text",
                *(ids.iloc[row], origin.label, f"unknown_{column}", 0 if every else len(rows) - 1),
            )
        )
    return problems


def _not_compared(found: list[Problem], lender: str, origins: Origins) -> Problem:
    count, label = len(found), Path(origins[lender].label).name
    return replace(
        found[0],
        row=None,
        line=None,
        value=None,
        level="warning",
        what=f"{count:,} {'ids are' if count > 1 else 'id is'} not among those of {label} that could be read",
        fix=f"repair {label} first, and check again",
    )


def _populations(tables: Tables, origins: Origins, named: str) -> list[Problem]:
    stated = {named: ""} if named else {}
    for name, table in tables.items():
        for population in table["population"].dropna().unique() if "population" in table else ():
            stated.setdefault(str(population), name)
    if len(stated) < 2:
        return []
    (first, place), (second, other) = list(stated.items())[:2]
    where = origins[place].label if place in origins else "the call"
    return [
        Problem(
            *(other, None, None, "population"),
            f"population {show(second)} is mixed with {show(first)} of {where}",
            "one population in a set of records",
            "populations are never pooled: keep each one in a folder of its own",
            *(second, origins[other].label, "population"),
        )
    ]


def scope_left_empty(
    given: Tables, canonical: Tables, origins: Origins, numbers: list[int] | None = None
) -> list[Problem]:
    """Warn of labels that state scope for a few pairs and thereby leave it unresolved for the rest.

    A column that is absent falls back to the namespaces; an empty cell is unresolved. Labels that state scope in most
    rows use the empty cell for what is in doubt, and so does a ``?``: neither draws a warning.
    """
    labels = canonical.get("labels", pd.DataFrame())
    if not {"query_id", "memory_id", "scope"} <= set(labels):
        return []
    settled = labels["scope"].isna().to_numpy()
    for name, key in (("queries", "query_id"), ("memories", "memory_id")):
        table = canonical.get(name, pd.DataFrame())
        if not {key, "namespace"} <= set(table):
            return []
        settled = settled & labels[key].isin(table.loc[table["namespace"].notna(), key]).to_numpy(bool)
    cells = given["labels"]["scope"].array
    rows = [int(row) for row in np.flatnonzero(settled) if is_missing(cells[row])]
    if 2 * len(rows) <= len(labels):
        return []
    places = [row + 1 if numbers is None else numbers[row] for row in rows[:_NAMED]]
    more = f" and {len(rows) - len(places):,} more" if len(rows) > len(places) else ""
    return [
        Problem(
            *("labels", places[0], origins["labels"].line(rows[0]), "scope"),
            f"{len(rows):,} of {len(labels):,} rows leave scope empty although both namespaces are known and would "
            f"settle it (rows {', '.join(map(str, places))}{more}); an empty cell is unresolved",
            "scope in every row, or no column scope, which leaves it to the namespaces",
            "state scope in these rows (write ? where it is in doubt), or drop the column",
            origin=origins["labels"].label,
            code="scope_left_empty",
            level="warning",
        )
    ]
