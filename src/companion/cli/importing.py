"""``companion import``: tables from logs of memories and retrievers, spans of traces, and runs of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from companion.cli._common import JSON_OPTION, print_json, printable, refuse_overwriting

if TYPE_CHECKING:
    from companion.importers import Imported

_HELP = """Make tables from files you already have, for `companion audit`, `validate` and `score`.

Example: `companion import jsonl log.jsonl --out my-records`
"""
_RUNS_HELP = """Import {what}.

Judgements are of relevance only; --holds states the axes that you know to hold for every judged document.

Example: `companion import {name} {run} --qrels {qrels} --holds scope,policy,lifecycle --out my-records`
"""
_FORMAT_HELP = """Import {what}.

Example: `companion import {name} {file} --out my-records`
"""
# Said here, so that help needs none of the importers.
_FORMATS = {
    "jsonl": ("plain JSON Lines with query, retrieved, and perhaps exposed and answer", "log.jsonl"),
    "mem0": ("mem0 searches, one a line with the request's fields beside results", "searches.jsonl"),
    "langchain": ("LangSmith or LangChain runs, as JSON, JSON Lines or a bulk export in Parquet", "runs.jsonl"),
    "llamaindex": ("LlamaIndex retrieval events, or responses with source nodes", "events.jsonl"),
    "zep": ("Zep or Graphiti searches, one a line with the request's fields beside edges", "searches.jsonl"),
    "letta": ("Letta searches of archival memory, one a line or an agent's messages", "messages.json"),
    "openinference": (
        "OpenInference retriever spans, such as Phoenix exports in JSON, Parquet or CSV",
        "spans.parquet",
    ),
    "otel": ("OpenTelemetry gen_ai spans and vector store spans of Traceloop, such as OTLP in JSON", "traces.json"),
}
_RUNS = {
    "trec": ("TREC runs and qrels", "run.txt", "qrels.txt"),
    "beir": ("BEIR runs (JSON of query: document: score), qrels, corpus and queries", "run.json", "qrels/test.tsv"),
    "msmarco": ("MS MARCO runs (query, document, rank), qrels, collection and queries", "run.tsv", "qrels.tsv"),
}

_OUT = typer.Option(help="New folder for the tables.")
_MEMORIES = typer.Option(help="Export of the store, in its own format or as a table.")
_MAPPING = typer.Option(help="YAML or JSON file that says where fields stand.")
_REPLACE = typer.Option("--replace", help="Remove the tables that the folder holds, labels included.")
_FORMAT = typer.Option("--format", help="jsonl, csv or parquet.")


class _Importers(TyperGroup):
    """Importers of this package, and those that others offer as entry points ``companion.importers``."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(set(_offered()) - set(self.commands))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in _offered():
            holder = typer.Typer(rich_markup_mode=None, add_completion=False)
            holder.command(cmd_name, help=_FORMAT_HELP.format(what=cmd_name, name=cmd_name, file="FILE"))(
                _importer(cmd_name)
            )
            return typer.main.get_command(holder)
        return super().get_command(ctx, cmd_name)


def _offered() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="companion.importers")}


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    group = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None, cls=_Importers)
    for name, (what, run, qrels) in _RUNS.items():
        group.command(name, help=_RUNS_HELP.format(what=what, name=name, run=run, qrels=qrels))(runs)
    for name, (what, file) in _FORMATS.items():
        group.command(name, help=_FORMAT_HELP.format(what=what, name=name, file=file))(_importer(name))
    app.add_typer(group, name="import")


def runs(
    files: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Runs; the tag, or the file, names the arm.")],
    out: Annotated[Path, _OUT],
    qrels: Annotated[Path | None, typer.Option(help="Relevance judgements.")] = None,
    order: Annotated[
        str,
        typer.Option(
            help="auto: keep the file's ranks where they agree with its scores, otherwise do as trec_eval does. file: "
            "the rank column. trec_eval: by score, ties by id descending. id_ascending: by score, ties by id ascending."
        ),
    ] = "auto",
    relevance_level: Annotated[int, typer.Option(help="Least judgement that counts as relevant.")] = 1,
    holds: Annotated[str, typer.Option(help="Axes that hold for every judged document, comma-separated.")] = "",
    memories: Annotated[Path | None, typer.Option(help="Memories: a table, a corpus or a collection.")] = None,
    queries: Annotated[Path | None, typer.Option(help="Queries: a table, or a file of ids and texts.")] = None,
    fmt: Annotated[str, _FORMAT] = "jsonl",
    replace: Annotated[bool, _REPLACE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Read the files and write the tables."""
    from companion.importers import check_folder, trec

    check_folder(out, fmt, replace=replace)
    axes = [axis.strip() for axis in holds.split(",") if axis.strip()]
    made = trec.read(
        files,
        qrels,
        order=order,  # type: ignore[arg-type]  # checked by the importer, which names the choices
        relevance_level=relevance_level,
        holds=axes,
        memories=memories,
        queries=queries,
    )
    _write(made, out, fmt, replace, as_json, [*files, qrels, memories, queries])


def _importer(name: str) -> Callable[..., None]:
    def command(
        files: Annotated[list[Path], typer.Argument(metavar="FILES", help="The log; several files are one log.")],
        out: Annotated[Path, _OUT],
        memories: Annotated[Path | None, _MEMORIES] = None,
        mapping: Annotated[Path | None, _MAPPING] = None,
        fmt: Annotated[str, _FORMAT] = "jsonl",
        replace: Annotated[bool, _REPLACE] = False,
        as_json: bool = JSON_OPTION,
    ) -> None:
        from companion.importers import FORMATS, check_folder, read

        check_folder(out, fmt, replace=replace)
        form = FORMATS[name] if name in FORMATS else _offered()[name].load()
        made = read(form, files, memories=memories, mapping=mapping)
        _write(made, out, fmt, replace, as_json, [*files, memories, mapping])

    return command


def _write(made: Imported, out: Path, fmt: str, replace: bool, as_json: bool, inputs: Sequence[Path | None]) -> None:
    from companion.importers import tables_in

    # Old tables are removed, so one of them must not be what was just read.
    refuse_overwriting({*tables_in(out), out / "import-notes.json"}, inputs)
    old = [path.name for path in tables_in(out)]
    written = made.write(out, fmt, replace=replace)
    rows = {name: len(table) for name, table, _ in made.records.tables()}
    if as_json:
        told = {"files": written, "rows": rows, "replaced": old, "store": made.store, "notes": made.notes}
        print_json({**told, **made.lists})
        return
    for note in made.notes:
        typer.echo(printable(note))
    if old:
        typer.echo(f"Replaced: {', '.join(old)}.")
    typer.echo(f"{out}: " + ", ".join(f"{name} {count:,}" for name, count in rows.items()))
    typer.echo(f"Next: companion audit {out} --out report.html")
