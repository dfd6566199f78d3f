"""``companion fetch``: bring a public corpus here, verified."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records

_HELP = """Fetch a public corpus with git, at the pinned revision, and verify every file.

The corpus lands in `$COMPANION_CORPORA` (default: your data directory) under its name; `companion corpora` lists
what is there. An interrupted fetch goes on where it stopped. A folder under its final name is always whole.

Example: `companion fetch gatemem`

Example, with the counts it loads to beside the published ones: `companion fetch memops --check`

Example, from a clone you already have: `companion fetch rhelm --from ~/src/RHELM`
"""


def register(app: typer.Typer) -> None:
    """Add the command ``fetch``."""

    @app.command(help=_HELP)
    def fetch(
        name: str = typer.Argument(..., help="rhelm, gatemem, memops or evidence."),
        source: str | None = typer.Option(
            None, "--from", metavar="URL|DIR", help="Another git address, a clone, or a folder of plain files."
        ),
        unverified: bool = typer.Option(
            False, "--unverified", help="Accept plain files that git ids cannot confirm; they stay marked as such."
        ),
        replace: bool = typer.Option(False, "--replace", help="Replace what is already there."),
        no_wait: bool = typer.Option(False, "--no-wait", help="Fail at once if the same fetch is already running."),
        check: bool = typer.Option(
            False, "--check", help="Load it afterwards, and print what was loaded beside what is published."
        ),
        quiet: bool = typer.Option(False, "--quiet", help="Show no progress."),
        as_json: bool = JSON_OPTION,
    ) -> None:
        from companion.corpora import base

        options = {"unverified": unverified, "replace": replace, "wait": 0 if no_wait else None}
        done = _run(name, source, quiet, options)
        table = base.self_check(done.name, done.where) if check else None
        if as_json:
            stamp = None if done.stamp is None else {k: v for k, v in asdict(done.stamp).items() if k != "ids"}
            plain = {"name": done.name, "where": done.where, "action": done.action, "state": done.state, "stamp": stamp}
            print_json(plain | ({} if table is None else {"check": records(table)}))
            return
        typer.echo(_sentence(done))
        if table is not None:
            print_table(table, title=f"{done.name}: loaded beside published")


def _run(name: str, source: str | None, quiet: bool, options: dict[str, Any]) -> Any:
    from companion.corpora import fetch as fetching

    if quiet:
        return fetching.fetch(name, source, **options)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("files"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("files", total=None, visible=False)
        return fetching.fetch(
            name,
            source,
            say=lambda line: typer.echo(line, err=True),
            report=lambda count, total: bar.update(task, completed=count, total=total, visible=True),
            # Git's own progress redraws one line: useful on a terminal, noise in a log.
            progress=sys.stderr if console.is_terminal else None,
            **options,
        )


def _sentence(done: Any) -> str:
    if done.stamp is None:
        return (
            f"{done.name} is already in {done.where}, laid down by hand: no revision is confirmed "
            "(companion corpora --check compares it; --replace fetches a verified copy)"
        )
    size = f"{done.stamp.files:,} files, {done.stamp.bytes / 1e6:,.1f} MB"
    confirmed = (
        f"verified as commit {done.stamp.commit[:12]}, tree {done.stamp.tree[:12]}"
        if done.stamp.verified
        else "unverified: no revision is confirmed"
    )
    return f"{done.name} {done.action}: {done.where} ({size}; {confirmed})"
