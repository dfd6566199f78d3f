"""``companion corpora``: which corpora are known, and which are here."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records
from companion.errors import InputError

_HELP = """List the corpora: what is known, what is present, where, under which licence, and how large.

With `--check`, every byte of each copy is compared with what was fetched, or with the pinned revision; exit code 1 if
one differs.

Example: `companion corpora --check --json`
"""
_COUNTS = ["memories", "queries", "labels", "namespaces"]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("corpora", help=_HELP)(corpora)


def corpora(
    check: Annotated[bool, typer.Option("--check", help="Hash every file, too.")] = False, as_json: bool = JSON_OPTION
) -> None:
    """Print one row per known corpus; a present one is loaded to count it."""
    import pandas as pd

    from companion.corpora import known

    table = pd.DataFrame([_row(spec, check) for spec in known().values()])
    table[_COUNTS] = table[_COUNTS].astype("Int64")
    if as_json:
        print_json(records(table))
    else:
        shown = ["name", "present", "state", *(["contents"] if check else []), *_COUNTS, "licence", "title"]
        print_table(table, columns=shown, title="Corpora")
        print_table(table, columns=["name", "where", "url", "revision"], title="Where they are and come from")
        absent = table.loc[~table["present"] & table["url"].ne(""), "name"].tolist()
        if absent:
            typer.echo(f"Not here: {', '.join(absent)}. Fetch one with: companion fetch {absent[0]}")
    if check and table["contents"].str.startswith("differ").any():
        raise typer.Exit(1)


def _row(spec: Any, check: bool) -> dict[str, Any]:
    from companion.corpora import upstreams

    where, present, fetched = spec.where(), spec.is_present(), spec.name in upstreams.UPSTREAMS
    state = upstreams.state(where, spec.name) if fetched else "included" if present else "absent"
    row: dict[str, Any] = {
        **{name: getattr(spec, name) for name in ("name", "title", "population", "licence", "url", "revision")},
        "present": present,
        "state": state,
        "where": str(where),
        **dict.fromkeys(_COUNTS),
    }
    if check:
        other = upstreams.altered(where, spec.name) if fetched and where.is_dir() else []
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        row["contents"] = f"differ: {other[0]}{more}" if other else "as pinned" if present and fetched else ""
    if present:
        try:
            counts = spec.load(where).counts()
        except InputError as error:
            # A corpus that is here but cannot be read must not hide the others.
            return {**row, "present": False, "state": f"unreadable: {error}"}
        row.update({name: counts[name] for name in _COUNTS})
    return row
