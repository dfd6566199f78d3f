"""Validation: the canonical copy of a table, or everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.tables.problems import Origin, Problem, not_accepted, show
from companion.tables.schema import EXPECTED, ONE_SOURCE, TABLES, Column, Rule, Schema, missing_column
from companion.tables.values import (
    Mask,
    Parsed,
    parse_boolean,
    parse_name,
    parse_number,
    parse_text,
    parse_whole,
    plain,
    settle,
)

_PARSERS: dict[str, Callable[[pd.Series], Parsed]] = {
    "text": parse_text,
    "name": parse_name,
    "boolean": parse_boolean,
    "whole": parse_whole,
    "count": parse_whole,
    "score": parse_number,
    "number": parse_number,
}


def schema_of(name: str) -> Schema:
    """Return the schema of a table by name.

    Parameters
    ----------
    name : str
        A key of `TABLES`.

    Raises
    ------
    InputError
        If there is no such table.
    """
    if name not in TABLES:
        raise InputError(f"no table is called {name!r}; expected one of {', '.join(TABLES)}")
    return TABLES[name]


def validate(df: pd.DataFrame, name: str, origin: str | Origin = "table") -> pd.DataFrame:
    """Return the canonical copy of a table, or refuse it.

    Columns come in the order of the contract with their canonical dtypes: text ``str`` (missing = NaN, the empty
    text is missing), truth values ``boolean``, ranks and counts ``int64``, score ``float64``, order ``Float64``.
    Optional columns that are absent are added, all missing, except label axes, which stay absent. In memories and
    queries an empty group becomes the namespace, an absent source becomes ``"all"``, and extra columns are carried
    along; other tables drop extra columns. Rows keep their order; the index counts from 0.

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
    table, problems = examine(df, name, origin, warnings=False)
    for problem in problems:
        if problem.level == "error":
            raise problem.error()
    return table


def is_canonical(df: pd.DataFrame, name: str) -> bool:
    """Tell from names and dtypes whether a table has the form that `validate` gives it."""
    columns = [column for column in schema_of(name).columns if column.required or column.add or column.name in df]
    return all(column.name in df and str(df[column.name].dtype) in _forms(column) for column in columns)


def _forms(column: Column) -> tuple[str, ...]:
    # A count is Int64 only where one is missing; categories are names that were numbered already.
    return {"count": ("Int64", "int64"), "name": ("str", "category")}.get(column.kind, (column.dtype,))


def find_problems(df: pd.DataFrame, name: str, origin: str | Origin = "table") -> list[Problem]:
    """List everything that is wrong with a table, and what looks odd.

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
    list of Problem
        Errors first, in the order in which `validate` looks for them; then warnings. Empty for a good table.
    """
    return examine(df, name, origin)[1]


def examine(
    df: pd.DataFrame, name: str, origin: str | Origin = "table", *, warnings: bool = True
) -> tuple[pd.DataFrame, list[Problem]]:
    """Return the canonical table, complete only when no problem is an error, and the problems.

    Parameters
    ----------
    df : DataFrame
        The table as read or built.
    name : str
        A key of `TABLES`.
    origin : str or Origin
        What messages call the table.
    warnings : bool
        List what is merely odd, too, which can take as long as the rest.

    Returns
    -------
    table : DataFrame
    problems : list of Problem
    """
    schema, origin = schema_of(name), Origin.of(origin)
    problems = _header_problems(df, schema, origin)
    if problems and not df.columns.is_unique:
        return pd.DataFrame(), problems
    df = df.reset_index(drop=True)
    table: dict[str, pd.Series] = {}
    for column in schema.columns:
        if column.name in df.columns:
            values, problem = _parse(df[column.name], column, origin)
            if problem is None:
                table[column.name] = values
            else:
                problems.append(problem)
        elif column.add and not column.required:
            table[column.name] = missing_column(column, len(df))
    _fill_defaults(table, schema)
    canonical = pd.DataFrame(table, index=df.index)
    problems += _rule_problems(canonical, schema, origin, warnings)
    problems += _lookalikes(df, schema, origin) if warnings else []
    if schema.keeps_extra:
        for extra in _extras(df, schema):
            canonical[extra] = plain(settle(df[extra]))
    return canonical, sorted(problems, key=lambda problem: problem.level == "warning")


def _extras(df: pd.DataFrame, schema: Schema) -> list[Any]:
    return [name for name in df.columns if name not in schema.names]


def _header_problems(df: pd.DataFrame, schema: Schema, origin: Origin) -> list[Problem]:
    """Find repeated column names and missing required columns."""
    problems = [
        Problem(
            origin.label,
            f"column {show(name)} appears more than once",
            "every column once",
            "rename or remove one of them",
            column=str(name),
        )
        for name in df.columns[df.columns.duplicated()].unique()
    ]
    absent = [name for name in schema.required if name not in df.columns]
    return problems + [_absent_problem(df, name, schema, origin) for name in absent]


def _absent_problem(df: pd.DataFrame, name: str, schema: Schema, origin: Origin) -> Problem:
    near = _nearest(name, _extras(df, schema))
    columns = ", ".join(map(str, df.columns)) or "none"
    found = f"the columns are {columns}" if near is None else f"{show(near)} is there"
    return Problem(
        origin.label,
        f"the column is missing ({found})",
        f"the columns {', '.join(schema.required)}",
        _absent_fix(df, name, near),
        column=name,
    )


def _absent_fix(df: pd.DataFrame, name: str, near: Any) -> str:
    if near is not None:
        return f"rename column {show(near)} to {name}"
    header = str(df.columns[0]) if len(df.columns) == 1 else ""
    separator = next((mark for mark in (";", "\t", "|") if mark in header), None)
    return f"add a column {name}" if separator is None else f"fields are separated by {separator!r}: use commas"


def _nearest(name: str, candidates: list[Any]) -> Any:
    """Return the candidate that looks like a misspelling of a name, or None."""
    folded = {str(candidate).strip().lower().replace(" ", "_").replace("-", "_"): candidate for candidate in candidates}
    close = get_close_matches(name, list(folded), n=1, cutoff=0.75)
    return folded[close[0]] if close else None


def _lookalikes(df: pd.DataFrame, schema: Schema, origin: Origin) -> list[Problem]:
    """Warn of an unknown column that looks like an optional one that is absent: it is not used."""
    problems = []
    for column in schema.columns:
        near = None if column.required or column.name in df.columns else _nearest(column.name, _extras(df, schema))
        if near is not None:
            problems.append(
                Problem(
                    origin.label,
                    f"the column is not used; it looks like {column.name}",
                    f"{column.name}, or a name of your own that is not so close",
                    f"rename it to {column.name} if that is what it holds",
                    column=str(near),
                    level="warning",
                )
            )
    return problems


def _parse(given: pd.Series, column: Column, origin: Origin) -> tuple[pd.Series, Problem | None]:
    """Read one column; whole numbers may not be missing, scores lose the distinction of null and NaN."""
    values, bad = _PARSERS[column.kind](settle(given))
    if column.kind == "whole":
        bad = bad | values.isna().to_numpy()
    if bad.any():
        return values, _cell_problem(given, column, bad, origin)
    dtype = "int64" if column.kind == "count" and values.notna().all() else column.dtype
    return values.astype(pd.api.types.pandas_dtype(dtype)), None


def _cell_problem(given: pd.Series, column: Column, bad: Mask, origin: Origin) -> Problem:
    row = int(np.flatnonzero(bad)[0])
    value = given.iloc[row]
    return Problem(
        origin.label,
        not_accepted(value, column.kind),
        EXPECTED[column.kind],
        f"write {EXPECTED[column.kind]} in {column.name}",
        column.name,
        row + 1,
        origin.line(row),
        value,
        int(bad.sum()) - 1,
    )


def _fill_defaults(table: dict[str, pd.Series], schema: Schema) -> None:
    """Fill group from namespace row by row, and source when no row gives one."""
    if "group" in schema.names and {"group", "namespace"} <= table.keys():
        table["group"] = table["group"].fillna(table["namespace"])
    if "source" in schema.names and "source" in table and table["source"].isna().all():
        table["source"] = table["source"].fillna(ONE_SOURCE)


def _rule_problems(table: pd.DataFrame, schema: Schema, origin: Origin, warnings: bool) -> list[Problem]:
    """Run the rules whose columns could be read, and say where each is first broken."""
    from pandera.errors import SchemaErrors

    try:
        schema.pandera(partial=True, warnings=warnings).validate(table, lazy=True)
    except SchemaErrors as failed:
        rules = {rule.name: rule for rule in schema.rules}
        return [_rule_problem(table, rules, error, origin) for error in failed.schema_errors]
    return []


def _rule_problem(table: pd.DataFrame, rules: dict[str, Rule], error: Any, origin: Origin) -> Problem:
    rule = rules.get(getattr(error.check, "name", ""))
    if rule is None or error.check_output is None:  # a fault of this package, not of the table
        raise error
    broken = ~np.asarray(error.check_output, dtype=bool)
    row = int(np.flatnonzero(broken)[0])
    column = rule.columns[-1]
    return Problem(
        origin.label,
        rule.what(table, row),
        rule.expected,
        rule.fix,
        column,
        row + 1,
        origin.line(row),
        table[column].iloc[row],
        int(broken.sum()) - 1,
        rule.level,
    )
