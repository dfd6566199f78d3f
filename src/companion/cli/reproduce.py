"""``companion reproduce``: every published figure beside what is computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records
from companion.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_HELP = """Compare every published figure with what can be computed here.

Example: `companion reproduce --stage exposure`
Example: `companion reproduce --status replicated --status recomputed`
"""

_SHOWN = {
    "claim": "claim",
    "population": "population",
    "subject": "subject",
    "contrast": "contrast",
    "metric": "metric",
    "published": "published",
    "published_interval": "interval",
    "value": "here",
    "interval": "interval",
    "status": "status",
    "agrees": "agrees",
}


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("reproduce", help=_HELP)(reproduce)


def reproduce(
    stage: Annotated[str | None, typer.Option(help="support, verification, exposure or readers.")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Keep recomputed, consistent, replicated, needs-data or quoted; repeat for more."),
    ] = None,
    replicates: Annotated[int, typer.Option(help="Bootstrap replicates.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: bool = JSON_OPTION,
) -> None:
    """Print one row per published figure."""
    from companion.bootstrap import Resampling
    from companion.stages import reproduce as module

    for name in status or []:
        if name not in module.STATUSES:
            raise InputError(f"--status {name}: expected one of {', '.join(module.STATUSES)}")
    table = module.reproduce(stage, Resampling(replicates=replicates, seed=seed))
    if status:
        table = table[table["status"].isin(status)].reset_index(drop=True)
    if as_json:
        print_json(records(table))
        return
    shown = table.assign(
        published_interval=[_interval(*ends) for ends in table[["published_low", "published_high"]].to_numpy()],
        interval=[_interval(*ends) for ends in table[["low", "high"]].to_numpy()],
    )
    print_table(shown, "Published figures and ours", _SHOWN)
    for name in ("needs-data", "quoted"):
        notes = table.loc[table["status"] == name, "note"]
        if len(notes):
            typer.echo(f"{name}, most often because: {notes.value_counts().index[0]}.")
    typer.echo(_counts(table))


def _interval(low: float, high: float) -> str:
    return "–" if low != low or high != high else f"[{low:.4f}, {high:.4f}]"


def _counts(table: pd.DataFrame) -> str:
    """Say in one line how many figures have each status, and how many of those agree."""
    from companion.stages.reproduce import STATUSES

    said = {"recomputed": "equal", "consistent": "hold", "replicated": "in our interval"}
    parts = []
    for status in STATUSES:
        rows = table[table["status"] == status]
        if len(rows):
            agree = f" ({int(rows['agrees'].sum())} {said[status]})" if status in said else ""
            parts.append(f"{len(rows)} {status}{agree}")
    return f"{len(table)} published figures{': ' if parts else ''}{', '.join(parts)}."
