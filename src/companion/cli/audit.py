"""``companion audit``: somebody's own records become a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records
from companion.cli.validate import print_faults, printable, refusal
from companion.errors import InputError

if TYPE_CHECKING:
    from companion.audit import Audit

_HELP = """Audit a folder of your own tables: a standalone HTML report, and CSV files beside it.

The folder holds memories and queries, and as many of labels, rankings, work and ledger as you have, each as .parquet,
.csv, .jsonl or .ndjson. What the records cannot show is said, not guessed. Ids that the store no longer holds and
queries without a namespace, which scoring refuses, are findings here; anything malformed is listed in full and ends
with exit code 2.

Example: `companion audit data/example --out report.html`
"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("audit", help=_HELP)(audit)


def audit(
    folder: Annotated[Path, typer.Argument(metavar="RECORDS_DIR", help="Folder with your tables.")],
    out: Annotated[Path, typer.Option(help="The report to write, .html or .htm.")] = Path("report.html"),
    tables: Annotated[Path | None, typer.Option(help="Folder for the CSV files; default: beside the report.")] = None,
    reference: Annotated[str | None, typer.Option(help="Route that every other one is compared with.")] = None,
    target_recall: Annotated[str, typer.Option(help="Share of anchors a prefix must reach.")] = "0.8",
    top_k: Annotated[int | None, typer.Option(help="Depth at which your routes are cut; default: as they are.")] = None,
    items: Annotated[
        int | None, typer.Option(help="Memories of a route that reach the prompt, where no ledger says.")
    ] = None,
    infeasibility_cost: Annotated[float, typer.Option(help="Loss of a query whose route misses the target.")] = 1.0,
    lifecycle_from_state: Annotated[
        bool,
        typer.Option("--lifecycle-from-state", help="Derive lifecycle labels you do not give from state and intent."),
    ] = False,
    replicates: Annotated[int, typer.Option(help="Bootstrap replicates.")] = 10_000,
    confidence: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: bool = JSON_OPTION,
) -> None:
    """Read, check and audit the records, write the report, and say what was found."""
    from companion import audit as auditing
    from companion.audit import report

    report.check_out(out)
    if items is not None and items < 1:
        raise InputError(f"items {items}: expected at least 1")
    options = auditing.Options(
        target_recall, top_k, items, infeasibility_cost, reference, replicates, confidence, seed, lifecycle_from_state
    )
    try:
        found = auditing.audit(folder, options)
    except auditing.FaultsError as error:
        if as_json:
            print_json({"faults": records(auditing.listing(error.faults))})
        else:
            print_faults(error.faults)
        raise InputError(refusal(folder, error.faults)) from error
    written = report.write(found, out, tables)
    if as_json:
        print_json(_summary(found, written))
        return
    rows = [(check.title, _OUTCOMES[check.outcome], len(check.evidence)) for check in found.checks]
    print_table(pd.DataFrame(rows, columns=["failure looked for", "outcome", "instances"]), f"Audit of {folder}")
    for sentence in found.unknown:
        typer.echo(f"- {sentence}")
    odd = len(found.intake.warnings)
    if odd:
        typer.echo(f"- {odd:,} {'oddities' if odd > 1 else 'oddity'} in the tables, listed in the report.")
        for fault in found.intake.warnings:
            if fault.code == auditing.SCOPE_LEFT_EMPTY:  # it decides what every number says, so it is told here too
                typer.echo(printable(f"  {fault.problem.message}\n  fix: {fault.problem.fix}"))
    typer.echo(f"\nReport: {written['report']}\nTables: {next(p for n, p in written.items() if n != 'report').parent}")


_OUTCOMES = {"found": "found", "clear": "not found", "unknown": "cannot be known"}


def _summary(found: Audit, written: dict[str, Path]) -> dict[str, Any]:
    from companion.audit import listing

    return {
        "report": written["report"],
        "tables": {name: path for name, path in written.items() if name != "report"},
        "checks": [
            {
                "kind": check.kind,
                "title": check.title,
                "outcome": check.outcome,
                "says": check.says,
                "advice": check.advice,
                "evidence": records(check.evidence.drop(columns=["text", "twin_text"], errors="ignore")),
            }
            for check in found.checks
        ],
        "cannot_be_known": found.unknown,
        "table_warnings": records(listing(found.intake.warnings)),
        "arms": [] if found.summary is None else records(found.summary.arms),
        "crossing": [] if found.crossing is None else records(found.crossing),
        "unresolved": records(found.unresolved().head(100)),
        "settings": {} if found.summary is None else found.summary.settings,
    }
