"""``companion expose``: run the paired exposure study on a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from companion.cli._common import print_json, print_table, records, refuse_overwriting
from companion.errors import InputError

if TYPE_CHECKING:
    from companion.stages.readers import Reader

_HELP = """Ask a reader the 384 paired requests of the exposure study, and score what it discloses.

READER is simulated-perfect, simulated-quoting, simulated-erring, openai:MODEL (any OpenAI-compatible server), or
replay:FILE (answers from elsewhere: JSON Lines of request_id and answer). The folder keeps requests, transcripts
and, once every request has an answer, outcomes.parquet for chapter 04. Run the same command again to resume.

Example: `companion expose --reader simulated-erring --rate as_of_time=.3 --out my-run`

Example: `companion expose --reader openai:my-model --base-url http://127.0.0.1:8000/v1 --out my-run`
"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("expose", help=_HELP)(expose)


def expose(
    reader: Annotated[str, typer.Option(help="Who answers.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; made if absent.")],
    scenarios: Annotated[Path | None, typer.Option(help="Your own scenario set; default: the project's.")] = None,
    name: Annotated[str, typer.Option(help="Name of the reader in the outcomes table.")] = "",
    requests_only: Annotated[bool, typer.Option("--requests-only", help="Write the requests, ask nothing.")] = False,
    rate: Annotated[
        list[str] | None, typer.Option(help="Error rate of simulated-erring: .2, or axis=.2 (repeatable).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of simulated-erring.")] = 0,
    base_url: Annotated[str | None, typer.Option(help="Root of the model's API.")] = None,
    key_env: Annotated[str, typer.Option(help="Environment variable that holds the key.")] = "OPENAI_API_KEY",
    price_input: Annotated[float, typer.Option(help="Price of a million input tokens.")] = 0.0,
    price_output: Annotated[float, typer.Option(help="Price of a million output tokens.")] = 0.0,
    price_cap: Annotated[float | None, typer.Option(help="The most to spend on this folder.")] = None,
    requests_per_minute: Annotated[float | None, typer.Option(help="Rate limit.")] = None,
    concurrency: Annotated[int, typer.Option(help="Requests in flight at once.")] = 4,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 512,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Make the requests, ask them, score the answers and write the run's folder."""
    from companion.stages import readers as study

    replayed = Path(reader.removeprefix("replay:")) if reader.startswith("replay:") else None
    written = (study.RUN, study.REQUESTS, study.TRANSCRIPTS, *study.OUTCOMES)
    refuse_overwriting([out / name for name in written], [scenarios, replayed])
    used = study.load_scenarios(scenarios)
    chat = {
        "base_url": base_url,
        "key_env": key_env,
        "price_input": price_input,
        "price_output": price_output,
        "price_cap": price_cap,
        "requests_per_minute": requests_per_minute,
        "concurrency": concurrency,
        "max_tokens": max_tokens,
        "temperature": temperature,
    }
    who = _reader(reader, name, rate, seed, chat)
    if requests_only:
        where = study.prepare(who, out, used)
        typer.echo(f"{len(used.requests())} requests in {where / study.REQUESTS}")
        return
    with _progress(len(used.requests())) as advance:
        done = study.run(who, out, used, progress=advance)
    _report(done, who, as_json)


def _reader(text: str, name: str, rate: list[str] | None, seed: int, chat: dict[str, Any]) -> Reader:
    from companion.stages import readers
    from companion.stages.chat import ChatSettings

    kind, colon, rest = text.partition(":")
    if rate and text != "simulated-erring":
        raise InputError(f"--rate belongs to simulated-erring; the reader is {text}")
    if name and text in readers.SIMULATED:
        raise InputError(f"--name {name}: a simulated reader keeps its name, so that nobody takes it for a model")
    if text == "simulated-erring":
        return readers.erring(readers.rates_from(rate or [".1"]), seed)
    if text in readers.SIMULATED:
        return readers.SIMULATED[text]()
    if kind == "openai" and colon:
        return readers.ChatReader(ChatSettings(model=rest, **chat), name)
    if kind == "replay" and rest:
        return readers.ReplayReader(Path(rest), name)
    raise InputError(f"reader {text!r}: expected {', '.join(readers.SIMULATED)}, openai:MODEL or replay:FILE")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error, silent where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("Asking", total=total)
        yield lambda settled, whole: bar.update(task, completed=settled, total=whole)


def _report(done: Any, reader: Reader, as_json: bool) -> None:
    from companion import exposure
    from companion.stages import readers as study

    effects = exposure.summarise(done.outcomes)
    where = done.folder / study.OUTCOMES[0]
    if as_json:
        print_json(
            {
                "reader": reader.name,
                "simulated": reader.simulated,
                "outcomes": where,
                "units": len(done.outcomes),
                "truncated": done.truncated,
                "settings": effects.attrs["settings"],
                "effects": records(effects),
            }
        )
        return
    seed = effects.attrs["settings"]["seed"]
    print_table(effects, f"{reader.description} Exposed minus withheld; scenarios resampled within axes, seed {seed}")
    if note := exposure.lone_axes_note(effects):
        typer.echo(note)
    if done.truncated:
        typer.echo(f"{done.truncated} answers ran out of length (--max-tokens): a disclosure may be missed in them.")
    typer.echo(f"Outcomes: {where}. Chapter 04 takes them: companion rerun 04 -p outcomes {where} --out DIR")
