"""``companion rerun`` and ``companion book``: chapters with other parameters, and the site made from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from companion.cli._common import print_json, refuse_overwriting
from companion.errors import InputError

# Between name and value of one pair; no argument of a process can hold it.
_BETWEEN = "\0"


class _PairsCommand(TyperCommand):
    """A command whose ``-p`` takes a name and a value, as papermill's does; Typer has no such option type."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join each ``-p NAME VALUE`` into one argument before the options are read."""
        joined: list[str] = []
        rest = iter(args)
        for word in rest:
            joined.append(word)
            if word in {"-p", "--parameter"}:
                pair = [part for part in (next(rest, None), next(rest, None)) if part is not None]
                if len(pair) != 2:
                    raise InputError(f"{' '.join([word, *pair])}: expected a name and a value after {word}")
                joined.append(_BETWEEN.join(pair))
        return super().parse_args(ctx, joined)


Pairs = Annotated[
    list[str],
    typer.Option("-p", "--parameter", metavar="NAME VALUE", help="A parameter and its value (YAML); repeatable."),
]


def register(app: typer.Typer) -> None:
    """Add this module's commands to the app."""
    app.command("rerun", cls=_PairsCommand)(rerun)
    app.command("book", cls=_PairsCommand)(book)


def rerun(
    notebook: Annotated[str, typer.Argument(help="Chapter name (02-support), number (02), or path to a notebook.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for notebook, page and record.")],
    pairs: Pairs = [],  # noqa: B006 - Typer reads the default, nobody mutates it
    html: Annotated[bool, typer.Option("--html/--no-html", help="Also write a standalone HTML page.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the run record as JSON.")] = False,
) -> None:
    """Run one chapter with other parameters: executed notebook, HTML page, run record.

    Unknown parameters and values of the wrong type are refused before anything runs.

    Example: `companion rerun 02-support -p top_k 10 -p target_recall 0.9 --out runs/`
    """
    from companion.book import runs

    source = runs.find_notebook(notebook)
    values = runs.parse_pairs(_pairs(pairs))
    folder = _folder(out)
    files = [Path(value) for value in values.values() if isinstance(value, str) and value and Path(value).is_file()]
    refuse_overwriting([folder / f"{source.stem}{end}" for end in (".ipynb", ".html", ".json")], [source, *files])
    try:
        run = runs.execute(source, values, folder / f"{source.stem}.ipynb", html=html, progress=not json)
    except runs.RunError as error:
        typer.echo(f"companion: {error}", err=True)
        raise typer.Exit(1) from error
    if json:
        print_json(run.record)
        return
    _print_headline(run.record)
    for path in (run.notebook, run.html, run.notebook.with_suffix(".json")):
        if path is not None:
            typer.echo(path)


def book(
    pairs: Pairs = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where the site goes.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Chapters run at the same time.")] = 2,
) -> None:
    """Run every chapter, then build the site; by default into `_build/html`.

    A parameter applies to every chapter that declares it. Chapters whose text, parameters, code and data are
    unchanged are not run again.

    Example: `companion book -p replicates 2000 --out site/`
    """
    from companion.book import runs
    from companion.book import site as building

    values = runs.parse_pairs(_pairs(pairs))
    try:
        index = building.build(values, None if out is None else _folder(out), jobs=jobs, say=_say)
    except runs.RunError as error:
        typer.echo(f"companion: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(index)


def _pairs(given: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in given:
        name, found, value = text.partition(_BETWEEN)
        if not found:
            raise InputError(f"-p {text}: expected a name and a value, as in -p top_k 10")
        pairs.append((name, value))
    return pairs


def _folder(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: expected a folder, found a file")
    return path


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print_headline(record: dict[str, Any]) -> None:
    import pandas as pd

    from companion.cli._common import print_table

    if record["headline"]:
        print_table(pd.DataFrame(record["headline"]), title="Headline numbers")
