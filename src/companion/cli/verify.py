"""``companion corrupt`` and ``companion candidates``: stage two from the command line."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records, refuse_overwriting
from companion.errors import InputError

_CORRUPT = """Corrupt the metadata a filter reads, at rising rates, and bracket where the filter breaks even.

Example: `companion corrupt demo --channel policy_false_deny --channel policy_false_allow`
"""

_CANDIDATES = """List the candidates of the verification study, to be judged by a verifier of your own.

Example: `companion candidates demo --out candidates.csv`

Add a column `probability` (of a violation, 0 to 1, empty to abstain) and hand the file to chapter 03:
`companion rerun 03-verification -p verifier candidates.csv --out DIR`.
"""


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command("corrupt", help=_CORRUPT)(corrupt)
    app.command("candidates", help=_CANDIDATES)(candidates)


def corrupt(
    corpus: Annotated[str, typer.Argument(help="Name of a corpus; see: companion corpora.", metavar="CORPUS")],
    channel: Annotated[
        list[str] | None, typer.Option(help="Channel to corrupt; repeat for more. Default: all.")
    ] = None,
    rate: Annotated[list[float] | None, typer.Option(help="Rate, 0 to 1; repeat for more.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 10,
    top_k: Annotated[int, typer.Option(help="Depth of the routes.")] = 20,
    encoder: Annotated[str, typer.Option(help="minilm, a folder, or a Hugging Face name.")] = "minilm",
    keep: Annotated[Path | None, typer.Option(help="Folder to keep the study in, as numbers.")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Run the study, keep it if asked, and print the brackets."""
    from companion import corpora
    from companion.stages import corruption

    refuse_overwriting([keep], [corpora.get(corpus).where()])
    names = channel or list(corruption.CHANNELS)
    for name in names:
        corruption.channel(name)  # refuse a wrong name before the long part
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: expected at least 1")
    study = corruption.study(
        corruption.rank_pool(corpus, names, encoder=encoder),
        channels=names,
        rates=rate or corruption.RATES,
        seeds=range(seeds),
        top_k=top_k,
        progress=lambda done: typer.echo(f"corrupted {done}", err=True),
    )
    if keep is not None:
        command = ["companion", "corrupt", corpus]
        command += [word for name in names for word in ("--channel", name)]
        command += ["--top-k", str(top_k), "--encoder", encoder, "--keep", f"data/corruption/{corpus}"]
        spec = corpora.get(corpus)
        about = {name: str(getattr(spec, name)) for name in ("name", "population", "licence", "url", "revision")}
        study.keep(keep, {**about, "encoder": encoder, "command": shlex.join(command)})
    brackets = study.brackets()
    if as_json:
        print_json({"settings": study.settings, "brackets": records(brackets), "curves": records(study.curves())})
    else:
        print_table(brackets, f"Break-even on {corpus}, top {top_k}")


def candidates(
    corpus: Annotated[str, typer.Argument(help="Name of a corpus; see: companion corpora.", metavar="CORPUS")],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .parquet or .jsonl.")],
    arm: Annotated[str, typer.Option(help="Route whose candidates are judged.")] = "namespace_dense",
    top_k: Annotated[int, typer.Option(help="Candidates per case.")] = 20,
    encoder: Annotated[str, typer.Option(help="minilm, a folder, or a Hugging Face name.")] = "minilm",
    as_json: bool = JSON_OPTION,
) -> None:
    """Rank, draw the cases, and write their candidates with both texts and the split, without any label."""
    from companion import corpora, tables
    from companion.stages import support, verification

    tables.format_of(out)
    refuse_overwriting([out], [corpora.get(corpus).where()])
    ranked = support.live(corpus, [arm], top_k=top_k, encoder=encoder).check()
    _, table = verification.judged_candidates(ranked, arm=arm, top_k=top_k)
    columns = ["query_id", "memory_id", "split", "query_text", "memory_text"]
    tables.write_table(table[columns], out)
    counts = table.groupby("split").agg(cases=("query_id", "nunique"), candidates=("query_id", "size")).reset_index()
    if as_json:
        print_json(records(counts))
    else:
        print_table(counts, str(out))
