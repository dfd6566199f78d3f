"""``companion import``: tables from TREC files, OpenInference spans, and plain JSON Lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from companion.cli._common import JSON_OPTION, print_json, printable, refuse_overwriting

if TYPE_CHECKING:
    from companion.importers import Imported

_HELP = """Make tables from files you already have, for `companion audit`, `validate` and `score`.

Example: `companion import jsonl log.jsonl --out my-records`
"""
_TREC_HELP = """Import TREC runs and qrels.

Qrels judge relevance only; --holds states the axes that you know to hold for every judged document.

Example: `companion import trec run.txt --qrels qrels.txt --holds scope,policy,lifecycle --out my-records`
"""
_SPANS_HELP = """Import OpenInference retriever spans: JSON or JSON Lines, flattened, nested, or as one JSON string.

The mapping file says where your spans keep namespace, principal and policy.

Example: `companion import openinference spans.jsonl --mapping mapping.yaml --out my-records`
"""
_JSONL_HELP = """Import plain JSON Lines with query, retrieved, and perhaps exposed and answer.

Example: `companion import jsonl log.jsonl --out my-records`
"""

_OUT = typer.Option(help="New folder for the tables.")
_REPLACE = typer.Option("--replace", help="Remove the tables that the folder holds, labels included.")
_FORMAT = typer.Option("--format", help="jsonl, csv or parquet.")


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    group = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode="markdown")
    group.command("trec", help=_TREC_HELP)(trec)
    group.command("openinference", help=_SPANS_HELP)(openinference)
    group.command("jsonl", help=_JSONL_HELP)(jsonl)
    app.add_typer(group, name="import")


def trec(
    runs: Annotated[list[Path], typer.Argument(help="Run files; the tag names the arm.")],
    out: Annotated[Path, _OUT],
    qrels: Annotated[Path | None, typer.Option(help="Relevance judgements.")] = None,
    order: Annotated[
        str,
        typer.Option(
            help="auto: keep the file's ranks where they agree with its scores, otherwise do as trec_eval does. file: "
            "the "
            "rank column. trec_eval: by score, ties by id descending. id_ascending: by score, ties by id ascending."
        ),
    ] = "auto",
    relevance_level: Annotated[int, typer.Option(help="Least judgement that counts as relevant.")] = 1,
    holds: Annotated[str, typer.Option(help="Axes that hold for every judged document, comma-separated.")] = "",
    memories: Annotated[Path | None, typer.Option(help="Table of memories with namespaces and more.")] = None,
    queries: Annotated[Path | None, typer.Option(help="Table of queries with namespaces and more.")] = None,
    fmt: Annotated[str, _FORMAT] = "jsonl",
    replace: Annotated[bool, _REPLACE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Read the files and write the tables."""
    from companion.importers import check_folder
    from companion.importers import trec as importer

    check_folder(out, fmt, replace=replace)
    axes = [axis.strip() for axis in holds.split(",") if axis.strip()]
    made = importer.read(
        list(runs),
        qrels,
        order=order,  # type: ignore[arg-type]  # checked by the importer, which names the choices
        relevance_level=relevance_level,
        holds=axes,
        memories=memories,
        queries=queries,
    )
    _write(made, out, fmt, replace, as_json, [*runs, qrels, memories, queries])


def openinference(
    spans: Annotated[Path, typer.Argument(help="File of spans.")],
    out: Annotated[Path, _OUT],
    mapping: Annotated[Path | None, typer.Option(help="YAML or JSON file that maps fields to columns.")] = None,
    fmt: Annotated[str, _FORMAT] = "jsonl",
    replace: Annotated[bool, _REPLACE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Read the file and write the tables."""
    from companion.importers import check_folder
    from companion.importers import openinference as importer

    check_folder(out, fmt, replace=replace)
    _write(importer.read(spans, mapping), out, fmt, replace, as_json, [spans, mapping])


def jsonl(
    log: Annotated[Path, typer.Argument(help="File of requests, one JSON object a line.")],
    out: Annotated[Path, _OUT],
    fmt: Annotated[str, _FORMAT] = "jsonl",
    replace: Annotated[bool, _REPLACE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Read the file and write the tables."""
    from companion.importers import check_folder
    from companion.importers import jsonl as importer

    check_folder(out, fmt, replace=replace)
    _write(importer.read(log), out, fmt, replace, as_json, [log])


def _write(made: Imported, out: Path, fmt: str, replace: bool, as_json: bool, inputs: Sequence[Path | None]) -> None:
    from companion.importers import tables_in

    # Old tables are removed, so one of them must not be what was just read.
    refuse_overwriting({*tables_in(out), out / "import-notes.json"}, inputs)
    old = [path.name for path in tables_in(out)]
    written = made.write(out, fmt, replace=replace)
    rows = {name: len(table) for name, table, _ in made.records.tables()}
    if as_json:
        print_json({"files": written, "rows": rows, "replaced": old, "notes": made.notes, **made.lists})
        return
    for note in made.notes:
        typer.echo(printable(note))
    if old:
        typer.echo(f"Replaced: {', '.join(old)}.")
    typer.echo(f"{out}: " + ", ".join(f"{name} {count:,}" for name, count in rows.items()))
    typer.echo(f"Next: companion audit {out} --out report.html")
