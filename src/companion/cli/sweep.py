"""``companion sweep`` and ``companion runs``: many runs of one notebook, and what they show side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records, refuse_overwriting

if TYPE_CHECKING:
    from companion.book.compare import Comparison


def register(app: typer.Typer) -> None:
    """Add this module's commands to the app."""
    app.command("sweep", help=_SWEEP_HELP)(sweep)
    app.command("runs", help=_RUNS_HELP)(list_runs)


_SWEEP_HELP = """Run a notebook for every combination, or every entry, of a YAML file.

\b
    notebook: 02-support
    parameters: {replicates: 2000}
    grid:
      top_k: [5, 10, 20]
      target_recall: [0.5, 0.8]

In place of `grid`, `runs` lists the parameters of each run. Names and types of parameters are checked before
anything runs. A sweep that was stopped goes on where it was: finished runs are kept, half-written and failed ones
are run again.

Example: `companion sweep grid.yaml --out sweeps/depth`
"""

_RUNS_HELP = """List the runs of a folder and show which parameter moved which headline number.

Example: `companion runs sweeps/depth --html depth.html`
"""


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID.yaml", help="What to run.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the sweep.")],
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Dask cluster, such as tcp://host:8786.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Local processes; default: one per core.")
    ] = None,
    html: Annotated[bool, typer.Option("--html/--no-html", help="Also write a standalone page of every run.")] = True,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds that one cell may take.")] = 1800,
) -> None:
    """Run what the file asks for and is not finished yet."""
    from companion.book import sweep as sweeps

    plan = sweeps.read_plan(grid)
    result = sweeps.run_sweep(plan, out, jobs=jobs, scheduler=scheduler, html=html, timeout=timeout, say=_say)
    typer.echo(out / sweeps.HEADLINE_FILE)
    for name, error in result.failed.items():
        trace = out / sweeps.RUNS_FOLDER / name / sweeps.TRACEBACK_FILE
        typer.echo(f"companion: {name} failed: {error} (traceback: {trace})", err=True)
    if result.failed:
        raise typer.Exit(1)


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep, or of reruns.")],
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with charts.")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Compare the runs of a folder."""
    from companion import tables
    from companion.book import compare

    if html is not None:
        refuse_overwriting([html], [path for path in folder.rglob("*") if path.suffix in (".json", ".csv", ".ipynb")])
    found = compare.compare(folder)
    if html is not None:
        text = compare.page(found, f"Runs of {', '.join(dict.fromkeys(found.runs['notebook']))}")
        with tables.atomic_path(html) as path:
            path.write_text(text, encoding="utf-8")
    if as_json:
        print_json({name: records(getattr(found, name)) for name in ("runs", "numbers", "effects")})
        return
    _print(found)
    if html is not None:
        typer.echo(html)


def _print(found: Comparison) -> None:
    runs = found.runs
    failed = runs["status"] == "failed"
    print_table(runs[["run", "status", *found.varied, "seconds", *(["error"] if failed.any() else [])]], "Runs")
    moved = found.effects
    if moved.empty:
        typer.echo("No parameter varies alone between finished runs: nothing to compare.")
        return
    for side in ("from", "to"):
        ends = moved[[f"{side}_{end}" for end in ("estimate", "low", "high")]]
        moved = moved.assign(**{f"at_{side}": [_interval(*row) for row in ends.itertuples(index=False, name=None)]})
    columns = ["number", "parameter", "from_value", "to_value", "at_from", "at_to", "change", "intervals_apart", "sets"]
    headings = {name: name.replace("_", " ") for name in columns} | {"from_value": "from", "to_value": "to"}
    print_table(moved, "Largest change with one parameter, all others the same", headings)
    typer.echo("Intervals belong to each run by itself, not to the change: runs share data and resamples.")


def _interval(estimate: float, low: float, high: float) -> str:
    return f"{estimate:.4f}" if low != low or high != high else f"{estimate:.4f} [{low:.4f}, {high:.4f}]"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
