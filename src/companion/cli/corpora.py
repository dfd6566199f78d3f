"""``companion corpora``: which corpora are known, and which are here."""

from __future__ import annotations

from typing import Any

import pandas as pd
import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records
from companion.errors import InputError

_HELP = """List the corpora: what is known, what is present, where, under which licence, and how large.

Example: `companion corpora --json`
"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("corpora", help=_HELP)(corpora)


def corpora(as_json: bool = JSON_OPTION) -> None:
    """Print one row per known corpus; a present one is loaded to count it."""
    from companion.corpora import known

    table = pd.DataFrame([_row(spec) for spec in known().values()])
    for column in _COUNTS:
        table[column] = table[column].astype("Int64")
    if as_json:
        print_json(records(table))
        return
    print_table(table, columns=["name", "present", "state", *_COUNTS, "licence", "title"], title="Corpora")
    print_table(table, columns=["name", "where", "url", "revision"], title="Where they are, and where they come from")
    absent = table.loc[~table["present"] & table["url"].ne(""), "name"].tolist()
    if absent:
        typer.echo(f"Not here: {', '.join(absent)}. Fetch one with: companion fetch {absent[0]}")


_COUNTS = ["memories", "queries", "labels", "namespaces"]


def _row(spec: Any) -> dict[str, Any]:
    from companion.corpora import upstreams

    where = spec.where()
    present = spec.is_present()
    state = upstreams.state(where, spec.name) if spec.name in upstreams.UPSTREAMS else "included"
    row: dict[str, Any] = {
        "name": spec.name,
        "title": spec.title,
        "population": spec.population,
        "present": present,
        "state": state if present or state != "included" else "absent",
        "where": str(where),
        "licence": spec.licence,
        "url": spec.url,
        "revision": spec.revision,
        **dict.fromkeys(_COUNTS),
    }
    if present:
        try:
            counts = spec.load(where).counts()
        except InputError as error:
            # A corpus that is here but cannot be read must not hide the others.
            return {**row, "present": False, "state": f"unreadable: {error}"}
        row.update({name: counts[name] for name in _COUNTS})
    return row
