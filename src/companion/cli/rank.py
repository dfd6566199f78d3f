"""``companion rank``: search a corpus with one or more arms."""

from __future__ import annotations

import shlex
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from companion.cli._common import JSON_OPTION, print_json, print_table, records, refuse_overwriting
from companion.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from companion.corpora.base import Corpus

_HELP = """Rank memories for every query of a corpus, by exact search.

Example: `companion rank rhelm --arm global_dense --arm namespace_dense --top-k 20 --out rankings.parquet`

Arms are listed by `companion rank demo --list-arms`. Vectors are cached, so a second run starts at once.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("rank", help=_HELP)(rank)


def rank(
    corpus: Annotated[str, typer.Argument(help="Name of a corpus; see: companion corpora.", metavar="CORPUS")],
    arm: Annotated[list[str] | None, typer.Option(help="Arm to run; repeat for more, or all.")] = None,
    top_k: Annotated[int, typer.Option(help="Length of each ranking.")] = 20,
    encoder: Annotated[str, typer.Option(help="minilm, a folder, or a Hugging Face name.")] = "minilm",
    out: Annotated[Path | None, typer.Option(help="Rankings file: .parquet, .csv or .jsonl.")] = None,
    work_out: Annotated[Path | None, typer.Option(help="File for candidates scored per query.")] = None,
    split: Annotated[str, typer.Option(help="Split to search; all takes every query.")] = "evaluation",
    freeze: Annotated[Path | None, typer.Option(help="Folder for the run as ids and numbers.")] = None,
    freeze_depth: Annotated[
        int | None, typer.Option(help="Keep frozen routes to this depth, apart from global and namespace dense.")
    ] = None,
    freeze_scores: Annotated[bool, typer.Option(help="Keep scores in the frozen run.")] = True,
    query_prompt: Annotated[str | None, typer.Option(help="Text before each query.")] = None,
    document_prompt: Annotated[str | None, typer.Option(help="Text before each memory.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens after which a text is cut.")] = None,
    batch_size: Annotated[int, typer.Option(help="Texts per forward pass.")] = 32,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps, ...")] = None,
    dtype: Annotated[str, typer.Option(help="Number format of the forward pass.")] = "float32",
    revision: Annotated[str | None, typer.Option(help="Commit or tag of a Hugging Face model.")] = None,
    list_arms: Annotated[bool, typer.Option("--list-arms", help="List the arms and stop.")] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Search, write what was asked for, and print one line per route."""
    from companion import retrieval, tables
    from companion.corpora import get, load
    from companion.retrieval.encoders import make_encoder

    if list_arms:
        _print(_arm_table(), as_json, "Arms")
        return
    if out is None and freeze is None:
        raise InputError("nothing to write: name a file with --out, or a folder with --freeze")
    if freeze_depth is not None and freeze_depth < 1:
        raise InputError(f"freeze_depth is {freeze_depth}; expected at least 1")
    names = arm or []
    for path in (out, work_out):
        if path is not None:
            tables.format_of(path)  # refuse a wrong extension before the long part
    refuse_overwriting([out, work_out, freeze], [get(corpus).where()])
    part = load(corpus, None if split == "all" else split)
    model = make_encoder(
        encoder,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        max_length=max_length,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        revision=revision,
        progress=True,
    )
    started = time.perf_counter()
    rankings, work = retrieval.rank(part, names, top_k, model)
    seconds = time.perf_counter() - started
    if out is not None:
        tables.write_table(rankings, out, "rankings")
    if work_out is not None:
        tables.write_table(work, work_out)
    if freeze is not None:
        from companion.corpora.frozen import freeze as write_frozen

        settings = {
            "revision": get(corpus).revision,
            "command": _command(corpus, names, top_k, model, encoder, split, freeze, freeze_depth, freeze_scores),
            "split": split,
            "top_k": top_k,
            "arms": _described(rankings["arm"].unique().tolist()),
            "encoder": getattr(model, "settings", {"model": encoder}),
        }
        write_frozen(
            part,
            rankings,
            work,
            freeze,
            settings,
            depth=freeze_depth,
            scores=freeze_scores,
            anchor_ranks=_anchor_ranks(part, model, rankings),
        )
    _print(_route_table(rankings, work), as_json, f"{corpus}: {len(part.queries)} queries in {seconds:.1f} s")


def _anchor_ranks(part: Corpus, model: Any, rankings: pd.DataFrame) -> pd.DataFrame | None:
    """Rank every anchor to its full depth, where both dense arms were run."""
    from companion.corpora.frozen import PLAIN
    from companion.retrieval import checks
    from companion.scoring import anchors_of

    if not set(PLAIN) <= set(rankings["arm"].unique()):
        return None
    return checks.anchor_ranks(part, model, anchors_of(part.records().check()))


def _command(
    corpus: str,
    names: list[str],
    top_k: int,
    model: Any,
    encoder: str,
    split: str,
    folder: Path,
    depth: int | None,
    scores: bool,
) -> str:
    """Spell the command that remakes a frozen run, without anything particular to this machine."""
    words = ["companion", "rank", corpus]
    words += [word for name in names for word in ("--arm", name)]
    words += ["--top-k", str(top_k), "--encoder", encoder, "--split", split]
    words += _encoder_options(model)
    words += [] if depth is None else ["--freeze-depth", str(depth)]
    words += [] if scores else ["--no-freeze-scores"]
    return shlex.join([*words, "--freeze", f"data/frozen/{folder.resolve().name}"])


def _encoder_options(model: Any) -> list[str]:
    """Spell the encoder's settings that decide a vector and differ from the defaults."""
    from companion.retrieval import Encoder

    usual = {field.name: field.default for field in fields(Encoder)}
    deciding = ("query_prompt", "document_prompt", "max_length", "dtype", "revision")
    chosen = {name: getattr(model, name, usual[name]) for name in deciding}
    return [
        word
        for name, value in chosen.items()
        if value != usual[name]
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def _described(routes: list[str]) -> dict[str, dict[str, Any]]:
    from companion.retrieval import base_arm, get_arm

    specs = [get_arm(name) for name in dict.fromkeys(base_arm(route) for route in routes)]
    return {
        spec.name: {"role": spec.role, "candidates": spec.candidates, "params": spec.params, "seeds": spec.seeds}
        for spec in specs
    }


def _arm_table() -> pd.DataFrame:
    import pandas as pd

    from companion.retrieval import known_arms

    return pd.DataFrame(
        {
            "arm": spec.name,
            "role": spec.role,
            "candidates": spec.candidates,
            "what it does": spec.description,
            "parameters": ", ".join(f"{name}={value}" for name, value in spec.params.items()),
            "seeds": spec.seeds,
        }
        for spec in known_arms().values()
    )


def _route_table(rankings: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """Sum up each route: queries, ranking length, work, what passed filters, how often routers fell back."""
    import pandas as pd

    per_route = work.groupby("arm", sort=False)
    lengths = rankings.groupby("arm", sort=False).size()
    queries = per_route.size()
    return pd.DataFrame(
        {
            "arm": queries.index,
            "queries": queries.to_numpy(),
            "mean_ranked": (lengths.reindex(queries.index).fillna(0) / queries).to_numpy(),
            "mean_candidates_scored": per_route["candidates_scored"].mean().to_numpy(),
            "mean_passed_unresolved": per_route["passed_unresolved"].mean().to_numpy(),
            "fell_back_rate": per_route["fell_back"].mean().to_numpy(),
        }
    )


def _print(table: pd.DataFrame, as_json: bool, title: str) -> None:
    if as_json:
        print_json(records(table))
    else:
        print_table(table, title=title)
