"""``companion validate``: everything that is wrong with a folder of tables, at once, with a fix for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from companion.cli._common import JSON_OPTION, print_json, printable, records
from companion.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from companion.tables import Folder, Problem

_HELP = """Check a folder of tables and list everything that is wrong, row by row, with a fix for each fault.

The folder holds memories and queries, and as many of labels, rankings, work and ledger as you have, each as .parquet,
.csv, .tsv, .jsonl, .ndjson or .json, the text formats also packed (.gz). Exit code 0: no table is malformed (warnings
may be listed), and the last line says whether the records can be scored or what that would need, such as a table that
is not there. Exit code 2: something is wrong.

Example: `companion validate data/demo`
"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("validate", help=_HELP)(validate)


def validate(
    folder: Annotated[Path, typer.Argument(help="Folder with the tables.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Examine the folder, print its faults, and refuse it if there is an error among them."""
    from companion.tables import examine_folder, listing

    found = examine_folder(folder, ("memories", "queries"))
    needs = "" if found.errors else _needs(found)
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "tables": {name: len(frame) for name, frame in found.frames.items()},
                "errors": len(found.errors),
                "warnings": len(found.problems) - len(found.errors),
                "scoring_needs": needs or None,
                "faults": records(listing(found.problems)),
            }
        )
    else:
        rows = ", ".join(f"{name} {len(frame):,}" for name, frame in found.frames.items())
        print_faults(found.problems)
        typer.echo(f"Rows read: {rows or 'none'}.")
    if found.errors:
        raise InputError(refusal(folder, found.errors))
    if not as_json:
        verdict = f"To be scored, these records need {needs}." if needs else "These records can be scored."
        typer.echo(verdict if found.problems else f"Nothing is wrong. {verdict}")


def _needs(found: Folder) -> str:
    """Say what scoring would refuse well-formed tables for, or nothing."""
    from companion.labels import anchors_of

    absent = [name for name in ("labels", "rankings") if name not in found.frames]
    if absent:
        return f"a table {' and a table '.join(absent)}"
    if anchors_of(found.records().check()).empty:
        return (
            "a query with an anchor (a memory whose labels relevant, scope, policy and lifecycle are all 1, scope by "
            "label or by the namespaces); companion audit reports on them as they are"
        )
    return ""


def print_faults(faults: Sequence[Problem]) -> None:
    """Print every fault on a line of its own, grouped under its file and followed by its fix."""
    groups: dict[tuple[str, str, str], list[Problem]] = {}
    for fault in faults:
        groups.setdefault((fault.origin, fault.level, fault.fix), []).append(fault)
    for (origin, level, fix), members in groups.items():
        typer.echo(printable(f"{origin}: {len(members):,} {level}{'s' if len(members) > 1 else ''}"))
        for fault in members:
            place = fault.where.removeprefix(origin).lstrip(", ")
            typer.echo("  " + printable(f"{place + ': ' if place else ''}{fault.what}; expected {fault.expected}"))
        typer.echo(f"  fix: {printable(fix)}\n")


def refusal(folder: Path, errors: Sequence[Problem]) -> str:
    """Return the one line that ends a command which lists faults."""
    tables = ", ".join(dict.fromkeys(fault.table for fault in errors))
    return f"{folder}: {len(errors):,} {'faults' if len(errors) > 1 else 'fault'} in {tables}, listed above"
