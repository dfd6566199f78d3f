"""``companion trace``: follow memories of one query from the store to the answer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from companion.cli._common import print_json, print_table, records
from companion.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

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
    corpus: Annotated[str | None, typer.Option(help="Name of a corpus; see: companion corpora. Default: demo.")] = None,
    own: Annotated[Path | None, typer.Option("--records", help="Folder with memories, queries, labels, ...")] = None,
    rankings: Annotated[Path | None, typer.Option(help="Table of rankings, instead of searching now.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Ledger table, instead of building one from rankings.")] = None,
    gate: Annotated[
        list[str] | None, typer.Option(help="Released-metadata gate: scope, policy or lifecycle; repeat for more.")
    ] = None,
    items: Annotated[int | None, typer.Option(help="Prompt budget: memories.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Prompt budget: words and punctuation marks.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Length of the routes when searching now. Default: 20.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Encoder when searching now. Default: minilm.")] = None,
    disclosures: Annotated[
        Path | None, typer.Option(help="What answers disclosed: query_id, arm, memory_id, disclosed.")
    ] = None,
    answers: Annotated[Path | None, typer.Option(help="Answers: query_id, arm, answer; needs --targets.")] = None,
    targets: Annotated[Path | None, typer.Option(help="Markers: query_id, memory_id, marker.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Load the tables, build or read the ledger, and print the paths."""
    import pandas as pd

    from companion import ledger as ledgers

    _refuse_both(own, corpus, rankings, ledger)
    found, where = _records(own, corpus, rankings)
    ledgers.refuse_unknown(found.queries["query_id"], query, "query", where)
    origin = str(ledger or rankings or where)
    if found.rankings is None and found.ledger is None and ledger is None:
        found, where = _ranked(found, where, query, arm, top_k, encoder)
    elif top_k is not None or encoder is not None:
        raise InputError(f"--top-k and --encoder set a search; the routes of {origin} are taken as they are")
    if memory is not None:
        ledgers.refuse_unknown(found.memories["memory_id"], memory, "memory", where)
    routes, book = _ledger(found, origin, query, ledger, gate, items, tokens)
    book = _observed(book, found, routes, disclosures, answers, targets)
    here = set(book.loc[book["query_id"] == query, "arm"])
    # A route that retrieved nothing for the query has nothing to list, but one memory can be looked for in it.
    listed = arm or [name for name in routes if memory is not None or name in here]
    shown: list[str | None] = [*dict.fromkeys(listed)] or [None]
    parts = [ledgers.trace(found, book, query, memory, name, routes, origin) for name in shown]
    _print(pd.concat(parts, ignore_index=True), found, query, memory, as_json)


def _refuse_both(own: Path | None, corpus: str | None, rankings: Path | None, ledger: Path | None) -> None:
    """Refuse two sources of one thing: one of them would be ignored in silence."""
    if own is not None and corpus is not None:
        raise InputError(f"--corpus {corpus} and --records {own}: two stores; expected one of them")
    if rankings is not None and ledger is not None:
        raise InputError(f"--rankings {rankings} and --ledger {ledger}: two sets of routes; expected one of them")


def _records(own: Path | None, corpus: str | None, rankings: Path | None) -> tuple[Records, str]:
    """Load what was stored and asked, and say what messages call it."""
    from companion import corpora, tables

    if own is not None:
        found, where = tables.load_records(own), str(own)
    else:
        name = corpus or "demo"
        found, where = corpora.load(name).records(), f"corpus {name}"
    if rankings is not None:
        given = tables.read_table(rankings, "rankings")
        origins = {**found.origins, "rankings": tables.Origin(str(rankings))}
        # The records' own ledger belongs to other routes.
        found = replace(found, rankings=given, ledger=None, work=None, origins=origins).check()
    return found, where


def _ranked(
    found: Records, where: str, query: str, arms: list[str] | None, top_k: int | None, encoder: str | None
) -> tuple[Records, str]:
    """Search the corpus for this query alone, among the memories of its split."""
    if not where.startswith("corpus "):
        raise InputError(f"{where}: holds neither rankings nor a ledger; expected one of them, or give --rankings")
    from companion import corpora, retrieval

    corpus = corpora.load(where.removeprefix("corpus "))
    asked = corpus.queries[corpus.queries["query_id"] == query].reset_index(drop=True)
    if "split" in corpus.memories and asked["split"].notna().all():
        split = str(asked["split"].iloc[0])
        corpus, where = corpus.restrict(split), f"the {split} split of {where}"
    labels = corpus.labels[corpus.labels["query_id"] == query].reset_index(drop=True)
    one = replace(corpus, queries=asked, labels=labels)
    depth = 20 if top_k is None else top_k
    model = retrieval.Encoder(model="minilm" if encoder is None else encoder)
    rankings, work = retrieval.rank(one, list(arms or _ARMS), depth, model)
    return one.records(rankings=rankings, work=work).check(), where


def _ledger(
    found: Records,
    origin: str,
    query: str,
    ledger: Path | None,
    gate: list[str] | None,
    items: int | None,
    tokens: int | None,
) -> tuple[list[str], pd.DataFrame]:
    """Read the ledger, or build it from rankings for this query alone; also name the routes there are."""
    from companion import ledger as ledgers
    from companion import tables

    given = found.ledger if ledger is None else tables.read_table(ledger, "ledger")
    if given is None:
        assert found.rankings is not None
        mine = found.rankings[found.rankings["query_id"] == query].reset_index(drop=True)
        book = ledgers.build(replace(found, rankings=mine), ledgers.PromptBudget(items, tokens), gate or ())
        return list(dict.fromkeys(found.rankings["arm"])), book
    if gate or items is not None or tokens is not None:
        raise InputError(
            f"--gate, --items and --tokens build a ledger from rankings; the ledger of {origin} is taken as it is"
        )
    book = ledgers.check(given, found.memories, found.queries, origin)
    return list(dict.fromkeys(book["arm"])), book


def _observed(
    book: pd.DataFrame,
    found: Records,
    routes: list[str],
    disclosures: Path | None,
    answers: Path | None,
    targets: Path | None,
) -> pd.DataFrame:
    """Link what answers disclosed, if that was given, to the ledger."""
    from companion import ledger as ledgers

    if answers is None and targets is None and disclosures is None:
        return book
    if (answers is None) != (targets is None):
        raise InputError(
            f"{answers or targets}: --answers and --targets belong together; answers are searched for the targets' "
            "markers"
        )
    if disclosures is not None and answers is not None:
        raise InputError(f"--disclosures {disclosures} and --answers {answers}: expected one of them")
    if disclosures is not None:
        observed, origin = _table(disclosures, ("query_id", "arm", "memory_id", "disclosed"), "disclosed"), disclosures
    else:
        assert answers is not None and targets is not None
        said = _table(answers, ("query_id", "arm", "answer"))
        wanted = _table(targets, ("query_id", "memory_id", "marker"))
        _refuse_strangers(said, answers, found, routes)
        _refuse_strangers(wanted, targets, found, routes)
        observed, origin = ledgers.disclosures(said, wanted, (str(answers), str(targets))), targets
    _refuse_strangers(observed, origin, found, routes)
    return ledgers.link(book, observed, found.memories, str(origin))


def _refuse_strangers(table: pd.DataFrame, path: Path, found: Records, routes: list[str]) -> None:
    """Refuse a query that was never asked, a route that was never run, and a target that was never stored."""
    import pandas as pd

    known = {
        "query_id": (found.queries["query_id"], "belongs to a query that was never asked"),
        "arm": (pd.Series(routes, dtype="str"), f"belongs to a route that was not run; expected {', '.join(routes)}"),
        "memory_id": (found.memories["memory_id"], "is a target that was never stored"),
    }
    words = {"query_id": "query", "arm": "route", "memory_id": "memory"}
    for column, (ids, what) in known.items():
        if column not in table:
            continue
        strange = ~table[column].isin(ids).to_numpy()
        if strange.any():
            row = table.iloc[int(strange.argmax())]
            names = ", ".join(f"{word} {row[name]!r}" for name, word in words.items() if name in table)
            raise InputError(f"{path}: row {int(strange.argmax()) + 1}: {names} {what}")


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
    import pandas as pd

    from companion.logic import AXES

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
    import pandas as pd

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
