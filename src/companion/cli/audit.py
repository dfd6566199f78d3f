"""``companion audit``: somebody's own records become a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, printable, records
from companion.errors import InputError

if TYPE_CHECKING:
    from companion.audit import Audit

_HELP = """Audit a folder of your own tables: the worst failure first, an HTML report, CSV files beside it.

The folder holds memories and queries, and as many of labels, rankings, work and ledger as you have, each as .parquet,
.csv, .jsonl or .ndjson. What the records cannot show is said, not guessed. Ids that the store no longer holds and
queries without a namespace, which scoring refuses, are findings here; anything malformed is listed in full and ends
with exit code 2. With --fail-on, exit code 1 says that such a failure was found.

Example: `companion audit data/example --out report.html`

Example: `companion audit nightly --fail-on wrong_scope,policy,new --baseline last/report-tables/checks.csv`
"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("audit", help=_HELP)(audit)


def audit(
    folder: Annotated[Path, typer.Argument(metavar="RECORDS_DIR", help="Folder with your tables.")],
    out: Annotated[Path, typer.Option(help="The report to write, .html or .htm.")] = Path("report.html"),
    tables: Annotated[Path | None, typer.Option(help="Folder for the CSV files; default: beside the report.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Kinds that end with exit code 1, comma-separated; any, or new (see --baseline).")
    ] = None,
    baseline: Annotated[Path | None, typer.Option(help="checks.csv of another audit: says what is new since.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a summary for a pull request.")] = False,
    shared: Annotated[list[str] | None, typer.Option(help="Namespace meant for everybody; repeat for more.")] = None,
    reference: Annotated[str | None, typer.Option(help="Route that every other one is compared with.")] = None,
    target_recall: Annotated[str, typer.Option(help="Share of anchors a prefix must reach.")] = "0.8",
    top_k: Annotated[int | None, typer.Option(help="Depth at which your routes are cut; default: as they are.")] = None,
    items: Annotated[
        int | None, typer.Option(min=1, help="Memories of a route that reach the prompt, where no ledger says.")
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
    from companion.audit import output

    output.check_out(out)
    wanted = _kinds(fail_on, baseline)
    options = auditing.Options(
        target_recall, top_k, items, infeasibility_cost, reference,
        auditing.Resampling(replicates, confidence, seed), lifecycle_from_state, shared or (),
    )  # fmt: skip
    found = _audited(folder, options, as_json)
    new = output.newly(found, baseline) if baseline else {}
    told = output.since(found, baseline) if baseline else ""
    written = output.write(found, _page(found, told), out, tables, told)
    if as_json:
        print_json(_summary(found, written) | ({"baseline": told, "new": new} if baseline else {}))
    elif markdown:
        typer.echo(output.markdown(found, told))
    else:
        _print(found, folder, told, written)
    hit = [c.kind for c in found.found if c.kind in wanted or "any" in wanted or ("new" in wanted and c.kind in new)]
    if hit:
        typer.echo(f"companion: --fail-on: found {', '.join(hit)}", err=True)
        raise typer.Exit(1)


def _kinds(fail_on: str | None, baseline: Path | None) -> set[str]:
    from companion.audit import KINDS

    wanted = {kind.strip() for kind in (fail_on or "").split(",") if kind.strip()}
    strange = sorted(wanted - {*KINDS, "any", "new"})
    if strange or (fail_on is not None and not wanted):
        raise InputError(f"--fail-on {fail_on!r}: expected any, new, or some of {', '.join(KINDS)}")
    if "new" in wanted and baseline is None:
        raise InputError("--fail-on new: expected --baseline, the checks.csv of another audit")
    return wanted


def _audited(folder: Path, options: Any, as_json: bool) -> Audit:
    from companion import audit as auditing
    from companion.cli.validate import print_faults, refusal
    from companion.tables import listing

    try:
        return auditing.audit(folder, options)
    except auditing.FaultsError as error:
        if as_json:
            print_json({"faults": records(listing(error.faults))})
        else:
            print_faults(error.faults)
        raise InputError(refusal(folder, error.faults)) from error


def _page(found: Audit, baseline: str) -> str:
    from companion.book import report, runs

    return report.page(found, runs.notebooks_dir() / "06-audit.md", baseline)


def _print(found: Audit, folder: Path, told: str, written: dict[str, Path]) -> None:
    import pandas as pd

    typer.echo(printable(found.headline) + "\n")
    rows = [(check.kind, check.title, _OUTCOMES[check.outcome], check.instances) for check in found.checks]
    columns = ["kind", "failure looked for", "outcome", "instances"]
    print_table(pd.DataFrame(rows, columns=columns), f"Audit of {folder}")
    for sentence in [*([told] if told else []), *found.unknown]:
        typer.echo(printable(f"- {sentence}"))
    odd = found.intake.warnings
    if odd:
        typer.echo(f"- {len(odd):,} {'oddities' if len(odd) > 1 else 'oddity'} in the tables, listed in the report.")
    for fault in odd:
        if fault.code == "scope_left_empty":  # it decides what every number says, so it is told here too
            typer.echo(printable(f"  {fault.message}\n  fix: {fault.fix}"))
    typer.echo(f"\nReport: {written['report']}\nTables: {written['checks'].parent}")


_OUTCOMES = {"found": "found", "clear": "not found", "unknown": "cannot be known"}


def _summary(found: Audit, written: dict[str, Path]) -> dict[str, Any]:
    from companion.tables import listing

    fields = ("kind", "title", "outcome", "instances", "says", "advice")
    return {
        "headline": found.headline,
        "report": written["report"],
        "tables": {name: path for name, path in written.items() if name != "report"},
        "checks": [
            {name: getattr(check, name) for name in fields}
            | {"evidence": records(check.evidence.drop(columns=["text", "twin_text"], errors="ignore"))}
            for check in found.checks
        ],
        "cannot_be_known": found.unknown,
        "table_warnings": records(listing(found.intake.warnings)),
        "arms": [] if found.summary is None else records(found.summary.arms),
        "crossing": [] if found.crossing is None else records(found.crossing),
        "unresolved": records(found.unresolved().head(100)),
        "settings": {} if found.summary is None else found.summary.settings,
    }
