"""``companion trace``: follow memories of one query from the store to the answer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import typer

from companion.cli._common import print_json, print_table, records
from companion.errors import InputError
from companion.logic import AXES

if TYPE_CHECKING:
    from companion.tables import Records

_ARMS = ("global_dense", "namespace_dense")

_HELP = """Follow the memories of one query: status of every axis, rank, gates, exposure, disclosure.

By default the demo corpus is searched now, for this query alone. Give --rankings for routes you have, or --records for
a folder of your own tables (its ledger, if it has one, is taken as it is).

Example: `companion trace --query company-0001-q01`

Example: `companion trace --query company-0001-q01 --memory company-0001-m01 --gate lifecycle --items 5`
"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("trace", help=_HELP)(trace)


def trace(
    query: Annotated[str, typer.Option(help="Id of the query.")],
    memory: Annotated[str | None, typer.Option(help="Id of one memory; default: all that a route retrieved.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Route to follow; repeat for more.")] = None,
    corpus: Annotated[str, typer.Option(help="Name of a corpus; see: companion corpora.")] = "demo",
    own: Annotated[Path | None, typer.Option("--records", help="Folder with memories, queries, labels, ...")] = None,
    rankings: Annotated[Path | None, typer.Option(help="Table of rankings, instead of searching now.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Ledger table, instead of building one from rankings.")] = None,
    gate: Annotated[
        list[str] | None, typer.Option(help="Released-metadata gate: scope, policy or lifecycle; repeat for more.")
    ] = None,
    items: Annotated[int | None, typer.Option(help="Prompt budget: memories.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Prompt budget: words and punctuation marks.")] = None,
    top_k: Annotated[int, typer.Option(help="Length of the routes when searching now.")] = 20,
    encoder: Annotated[str, typer.Option(help="Encoder when searching now.")] = "minilm",
    disclosures: Annotated[
        Path | None, typer.Option(help="What answers disclosed: query_id, arm, memory_id, disclosed.")
    ] = None,
    answers: Annotated[Path | None, typer.Option(help="Answers: query_id, arm, answer; needs --targets.")] = None,
    targets: Annotated[Path | None, typer.Option(help="Markers: query_id, memory_id, marker.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Load the tables, build or read the ledger, and print the paths."""
    from companion import ledger as ledgers
    from companion import tables

    found = tables.load_records(own) if own is not None else _from_corpus(corpus, query)
    if rankings is not None:
        found = replace(found, rankings=tables.read_table(rankings, "rankings")).check()
    given = found.ledger if ledger is None else tables.read_table(ledger, "ledger")
    if given is not None and rankings is None:
        _refuse_settings(gate, items, tokens)
        book = ledgers.check(given, found.memories, found.queries)
    else:
        found = found if found.rankings is not None else _ranked(corpus, query, own, arm, top_k, encoder)
        book = ledgers.build(_one_query(found, query), ledgers.PromptBudget(items, tokens), gate or ())
    observed = _observed(disclosures, answers, targets)
    if observed is not None:
        mine = observed[observed["query_id"] == query]
        book = ledgers.link(book, mine, found.memories)
    routes = arm or list(dict.fromkeys(book["arm"]))
    path = pd.concat([ledgers.trace(found, book, query, memory, route) for route in routes], ignore_index=True)
    _print(path, found, query, memory, as_json)


def _from_corpus(name: str, query: str) -> Records:
    from companion import corpora

    corpus = corpora.load(name)
    if not corpus.queries["query_id"].eq(query).any():
        raise InputError(
            f"query {query!r}: not in corpus {name}, whose first is {corpus.queries['query_id'].iloc[0]!r}"
        )
    return corpus.records()


def _ranked(name: str, query: str, own: Path | None, arms: list[str] | None, top_k: int, encoder: str) -> Records:
    """Search the corpus for this query alone."""
    if own is not None:
        raise InputError(f"{own}: holds neither rankings nor a ledger; expected one of them, or give --rankings")
    from companion import corpora, retrieval

    corpus = corpora.load(name)
    asked = corpus.queries[corpus.queries["query_id"] == query].reset_index(drop=True)
    if "split" in corpus.memories and asked["split"].notna().all():
        corpus = corpus.restrict(str(asked["split"].iloc[0]))
    labels = corpus.labels[corpus.labels["query_id"] == query].reset_index(drop=True)
    one = replace(corpus, queries=asked, labels=labels)
    rankings, work = retrieval.rank(one, list(arms or _ARMS), top_k, retrieval.Encoder(model=encoder))
    return one.records(rankings=rankings, work=work).check()


def _one_query(found: Records, query: str) -> Records:
    if not found.queries["query_id"].eq(query).any():
        raise InputError(f"query {query!r}: not among the queries given")
    kept = found.rankings
    return found if kept is None else replace(found, rankings=kept[kept["query_id"] == query].reset_index(drop=True))


def _refuse_settings(gate: list[str] | None, items: int | None, tokens: int | None) -> None:
    if gate or items is not None or tokens is not None:
        raise InputError(
            "--gate, --items and --tokens build a ledger from rankings; the ledger given is taken as it is"
        )


def _observed(disclosures: Path | None, answers: Path | None, targets: Path | None) -> pd.DataFrame | None:
    from companion import ledger as ledgers

    if (answers is None) != (targets is None):
        raise InputError("--answers and --targets belong together: answers are searched for the targets' markers")
    if disclosures is not None and answers is not None:
        raise InputError("give --disclosures, or --answers with --targets, not both")
    if disclosures is not None:
        return _table(disclosures, ("query_id", "arm", "memory_id", "disclosed"), "disclosed")
    if answers is None or targets is None:
        return None
    return ledgers.disclosures(
        _table(answers, ("query_id", "arm", "answer")), _table(targets, ("query_id", "memory_id", "marker"))
    )


def _table(path: Path, columns: tuple[str, ...], boolean: str | None = None) -> pd.DataFrame:
    from companion import tables
    from companion.tables.values import parse_boolean

    frame, _ = tables.read_raw(path)
    for name in columns:
        if name not in frame:
            raise InputError(f"{path}: no column {name!r}; expected {', '.join(columns)}")
        if name != boolean:
            frame[name] = frame[name].astype("str")
    if boolean is not None:
        values, bad = parse_boolean(frame[boolean])
        if bad.any():
            row = int(bad.argmax())
            cell = frame[boolean].iloc[row]
            expected = "expected 1, 0, true, false or an empty field"
            raise InputError(f"{path}: row {row + 1}, column {boolean}: {cell!r}; {expected}")
        frame[boolean] = values
    return frame[list(columns)]


def _print(path: pd.DataFrame, found: Records, query: str, memory: str | None, as_json: bool) -> None:
    asked = found.queries[found.queries["query_id"] == query].iloc[0]
    facts = ("query_id", "namespace", "intent", "principal", "time", "text")
    about = {name: asked[name] for name in facts if name in asked}
    if as_json:
        print_json({"query": about, "paths": records(path)})
        return
    _print_facts(about)
    if memory is not None:
        held = found.memories[found.memories["memory_id"] == memory].iloc[0]
        _print_facts({f: held[f] for f in ("memory_id", "namespace", "state", "time", "text") if f in held})
    for route, rows in path.groupby("arm", sort=False):
        print_table(_compact(rows), f"Route {route}")
    typer.echo(
        "Status: relevant, scope, policy, lifecycle; 1 yes, 0 no, ? unresolved. Reasons are the axes known to be 0."
    )


def _print_facts(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        if isinstance(value, str):
            # What a memory says must not steer the terminal it is shown on.
            shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
            typer.echo(f"{name}: {shown}")
    typer.echo("")


def _compact(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what fits a terminal: the status as one word, the path as one phrase."""
    marks = rows[["relevant", *AXES]].apply(_mark)
    table = pd.DataFrame(
        {
            "rank": rows["rank"],
            "memory": rows["memory_id"],
            "status": marks.agg(" ".join, axis=1),
            "admissible": _mark(rows["admissible"]),
            "reasons": rows["reasons"],
            "path": [_phrase(row) for row in rows.to_dict(orient="records")],
        }
    )
    if rows["disclosed"].notna().any():
        table["disclosed"] = _mark(rows["disclosed"])
    return table


def _phrase(row: dict[Hashable, Any]) -> str:
    """Say how far a memory came, and what ended it; gates that could not decide are named."""
    reached = [name for name in ("stored", "retrieved", "exposed") if row[name] is True]
    undecided = [
        str(name).removeprefix("gate_") for name in row if str(name).startswith("gate_") and pd.isna(row[name])
    ]
    if undecided and row["retrieved"] is True:
        reached.insert(2, f"gate undecided: {', '.join(undecided)}")
    ended = row["stopped_by"]
    if not isinstance(ended, str):
        return " > ".join(reached)
    return (
        " > ".join(reached) + ("; " if reached else "") + _ENDED.get(ended, ended.replace("gate_", "stopped by gate "))
    )


_ENDED = {"budget": "over the budget", "not retrieved": "not retrieved", "not stored yet": "not stored yet"}


def _mark(column: pd.Series) -> pd.Series:
    return column.map({True: "1", False: "0"}).fillna("?").astype("str")
