"""``companion partition`` and ``companion score-parts``: record tables that are larger than memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from companion.cli._common import JSON_OPTION, refuse_overwriting
from companion.cli.score import report

_PARTITION_HELP = """Write record tables as Parquet partitioned by query; Parquet input is streamed.

Example: `companion partition records/ --out parts/`
"""

_SCORE_HELP = """Score partitioned records; the numbers are those of `companion score` on the whole tables, bit for bit.

Example: `companion score-parts parts/ --jobs 4 --reference global_dense`
"""


def register(app: typer.Typer) -> None:
    """Add this module's commands to the app."""
    app.command("partition", help=_PARTITION_HELP)(partition)
    app.command("score-parts", help=_SCORE_HELP)(score_parts)


def partition(
    source: Annotated[
        Path,
        typer.Argument(metavar="RECORDS", help="Folder with memories, queries, labels, rankings and perhaps work."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the parts.")],
    rows_per_part: Annotated[int, typer.Option(min=1, help="Ranking rows of one part.")] = 250_000,
) -> None:
    """Partition a folder of tables."""
    from companion.stages import partitioned as scale

    scale.partition(source, out, rows_per_part=rows_per_part)
    typer.echo(f"{out}: {len(scale.list_parts(out))} parts")


def score_parts(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Partitioned records.")],
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Dask cluster, such as tcp://host:8786.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Local processes; 1 needs no cluster package.")] = 1,
    target_recall: Annotated[str, typer.Option(help="Share of anchors a prefix must reach.")] = "0.8",
    top_k: Annotated[int | None, typer.Option(help="Cut routes to this depth first.")] = None,
    infeasibility_cost: Annotated[float, typer.Option(help="Loss of a query whose route misses the target.")] = 1.0,
    axes: Annotated[str, typer.Option(help="Axes that make up the status.")] = "scope,policy,lifecycle",
    family: Annotated[str, typer.Option(help="admissibility, or non_usable (relevance included).")] = "admissibility",
    replicates: Annotated[int, typer.Option(help="Bootstrap replicates.")] = 10_000,
    confidence: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    reference: Annotated[str | None, typer.Option(help="Arm that every other one is compared with.")] = None,
    per_query: Annotated[Path | None, typer.Option(help="Also write one row per arm and query to this file.")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Score every part, then print estimates and contrasts."""
    from companion import scoring, tables
    from companion.bootstrap import Resampling
    from companion.stages import partitioned as scale

    options: dict[str, Any] = {
        "target_recall": target_recall,
        "top_k": top_k,
        "infeasibility_cost": infeasibility_cost,
        "axes": [axis.strip() for axis in axes.split(",") if axis.strip()],
        "family": family,
    }
    how = Resampling(replicates, confidence, seed)  # refused now, not when all parts have been scored
    _check_first(folder, reference, per_query)
    where = scheduler or ("processes" if jobs > 1 else None)
    try:
        table = scale.score_partitions(folder, scheduler=where, jobs=jobs, say=_say, **options)
    except scale.PartLostError as error:
        typer.echo(f"companion: {error}", err=True)
        raise typer.Exit(1) from error
    summary = scoring.summarise(table, reference=reference, resampling=how)
    if per_query is not None:
        tables.write_table(table, per_query)
    report(summary, {**summary.settings, **options, "axes": axes, "reference": reference}, as_json)


def _check_first(folder: Path, reference: str | None, per_query: Path | None) -> None:
    """Refuse now what would otherwise be refused when all parts have been scored, which can take hours."""
    from companion import tables
    from companion.errors import InputError
    from companion.stages import partitioned as scale

    refuse_overwriting([per_query], [folder])
    arms = scale.list_arms(folder)
    if reference is not None and reference not in arms:
        raise InputError(f"reference {reference!r} is not among the arms; they are {', '.join(arms)}")
    if per_query is not None:
        tables.format_of(per_query)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
