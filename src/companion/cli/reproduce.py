"""``companion reproduce``: every published figure beside what is computed here."""

from __future__ import annotations

from typing import Annotated

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records

_HELP = """Compare every published figure with what can be computed here.

Example: `companion reproduce --stage exposure`
"""

_SHOWN = ("claim", "subject", "contrast", "metric", "published", "value", "low", "high", "status", "agrees")


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("reproduce", help=_HELP)(reproduce)


def reproduce(
    stage: Annotated[str | None, typer.Option(help="support, verification, exposure or readers.")] = None,
    replicates: Annotated[int, typer.Option(help="Bootstrap replicates.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: bool = JSON_OPTION,
) -> None:
    """Print one row per published figure."""
    from companion import reproduce as module

    table = module.reproduce(stage, replicates=replicates, seed=seed)
    if as_json:
        print_json(records(table))
        return
    print_table(table, "Published figures and ours", _SHOWN)
    for status, rows in table.groupby("status", sort=False):
        typer.echo(_line(str(status), len(rows), int(rows["agrees"].sum()), rows["note"].value_counts().index[0]))


def _line(status: str, rows: int, agree: int, note: str) -> str:
    if status == "recomputed":
        return f"recomputed: {rows} from the same data, {agree} agree."
    if status == "replicated":
        return f"replicated: {rows} under another encoder; {agree} published estimates lie in our interval."
    return f"{status}: {rows}, most often because: {note}."
