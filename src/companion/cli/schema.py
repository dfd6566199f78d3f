"""``companion schema``: the columns of the tables, for people and as JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table

_HELP = """List the columns of a table: what each holds, and which are required.

With --json: a JSON Schema of one row (of every table, if none is named), for editors and validators.

Example: `companion schema rankings --json`
"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("schema", help=_HELP)(schema)


def schema(
    table: Annotated[str | None, typer.Argument(help="memories, queries, labels, rankings, ...; default: all.")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Print the columns of one table or of all."""
    import pandas as pd

    from companion.tables import TABLES, json_schema, schema_of

    names = list(TABLES) if table is None else [schema_of(table).name]
    if as_json:
        print_json(json_schema(names[0]) if table else {name: json_schema(name) for name in names})
        return
    for name in names:
        rows = [(c.name, c.kind, "yes" if c.required else "", c.meaning) for c in TABLES[name].columns]
        print_table(pd.DataFrame(rows, columns=["column", "kind", "required", "meaning"]), name)
