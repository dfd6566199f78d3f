"""``companion trace``: follow memories of one query from the store to the answer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from companion.cli._common import print_json, print_table, printable, records
from companion.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from companion.tables import Records

_ARMS = ("global_dense", "namespace_dense")

_HELP = """Follow the memories of one query: status of every axis, rank, gates, exposure, disclosure.

By default the demo corpus is searched now, for this query alone. Give --rankings for routes you have, or --records for
a folder of your own tables; its ledger says what reached the prompt, its rankings give ranks and further routes.

Example: `companion trace --query company-0001-q01`

Example: `companion trace --records data/example --query company-0001-q01 --arm memory_search`
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

    _refuse_both("two stores", corpus=corpus, records=own)
    _refuse_both("two sets of routes", rankings=rankings, ledger=ledger)
    _refuse_both("two observations of answers", disclosures=disclosures, answers=answers)
    case = _case(own, corpus, rankings, ledger)
    ledgers.refuse_unknown(case.records.queries["query_id"], query, "query", case.where)
    if case.ledger is None and case.records.rankings is None:
        case = _searched(case, query, arm, top_k, encoder)
    elif top_k is not None or encoder is not None:
        raise InputError(f"--top-k and --encoder set a search; the routes of {case.origin} are taken as they are")
    if memory is not None:
        ledgers.refuse_unknown(case.records.memories["memory_id"], memory, "memory", case.where)
    built = case.ledger is None
    book, routes = _book(case, query, gate, ledgers.PromptBudget(items, tokens))
    book = _observed(book, case.records, routes, disclosures, answers, targets)
    here = set(book.loc[book["query_id"] == query, "arm"])
    # A route that retrieved nothing for the query has nothing to list, but one memory can be looked for in it.
    known = [name for name in routes if name in set(book["arm"]) or built]
    chosen: list[Any] = [*dict.fromkeys(arm or [name for name in known if memory is not None or name in here])]
    parts = [ledgers.trace(case.records, book, query, memory, name, routes, case.origin) for name in chosen or [None]]
    path = pd.concat(parts, ignore_index=True)
    path["stored"] = path["stored"].mask(path["memory_id"].isin(case.ghosts), False)
    cut = (
        "as --gate, --items and --tokens cut it" if gate or (items, tokens) != (None, None) else "all that it retrieved"
    )
    stands = f"the top of each route stands in for it, {cut}" if built else ""
    _print(path, case.records, query, memory, stands, as_json)


@dataclass(frozen=True)
class _Case:
    """What was stored and asked, and what is known of the routes; ``where`` and ``origin`` name them in messages."""

    records: Records
    where: str
    origin: str
    ledger: pd.DataFrame | None = None
    ghosts: frozenset[str] = frozenset()


def _refuse_both(what: str, **given: Any) -> None:
    """Refuse two sources of one thing: one of them would be ignored in silence."""
    if None not in given.values():
        options = " and ".join(f"--{name} {value}" for name, value in given.items())
        raise InputError(f"{options}: {what}; expected one of them")


def _case(own: Path | None, corpus: str | None, rankings: Path | None, ledger: Path | None) -> _Case:
    """Load what was stored and asked; a folder may hold what scoring refuses, such as ghosts."""
    from companion import corpora, tables
    from companion.audit import take_in

    ghosts: frozenset[str] = frozenset()
    if own is not None:
        taken = take_in(own)
        found, where, ghosts = taken.records, str(own), taken.ghosts
    else:
        name = corpus or "demo"
        found, where = corpora.load(name).records(), f"corpus {name}"
    if rankings is not None:
        given = tables.read_table(rankings, "rankings")
        origins = {**found.origins, "rankings": tables.Origin(str(rankings))}
        # The records' own ledger belongs to other routes.
        found = replace(found, rankings=given, ledger=None, work=None, origins=origins).check()
    book = found.ledger if ledger is None else tables.read_table(ledger, "ledger")
    return _Case(found, where, str(ledger or rankings or where), book, ghosts)


def _searched(case: _Case, query: str, arms: list[str] | None, top_k: int | None, encoder: str | None) -> _Case:
    """Search the corpus for this query alone, among the memories of its split."""
    where = case.where
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
    model = retrieval.Encoder(model="minilm" if encoder is None else encoder)
    rankings, work = retrieval.rank(one, list(arms or _ARMS), 20 if top_k is None else top_k, model)
    return _Case(one.records(rankings=rankings, work=work).check(), where, case.origin)


def _book(case: _Case, query: str, gate: list[str] | None, budget: Any) -> tuple[pd.DataFrame, list[str]]:
    """Take the ledger, or build one from rankings for this query alone; also name the routes there are."""
    from companion import ledger as ledgers

    ranked = case.records.rankings
    names = [] if ranked is None else list(ranked["arm"])
    if case.ledger is None:
        assert ranked is not None
        mine = ranked[ranked["query_id"] == query].reset_index(drop=True)
        return ledgers.build(replace(case.records, rankings=mine), budget, gate or ()), list(dict.fromkeys(names))
    if gate or budget.items is not None or budget.tokens is not None:
        told = f"the ledger of {case.origin} is taken as it is"
        raise InputError(f"--gate, --items and --tokens build a ledger from rankings; {told}")
    book = ledgers.check(case.ledger, case.records.memories, case.records.queries, case.origin)
    return book, list(dict.fromkeys([*book["arm"], *names]))


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

    if (answers is None) != (targets is None):
        told = "--answers and --targets belong together; answers are searched for the targets' markers"
        raise InputError(f"{answers or targets}: {told}")
    if disclosures is not None:
        observed, origin = _table(disclosures, ("query_id", "arm", "memory_id", "disclosed")), disclosures
    elif answers is not None and targets is not None:
        said, wanted = (
            _table(answers, ("query_id", "arm", "answer")),
            _table(targets, ("query_id", "memory_id", "marker")),
        )
        _refuse_strangers(said, answers, found, routes)
        _refuse_strangers(wanted, targets, found, routes)
        observed, origin = ledgers.disclosures(said, wanted, (str(answers), str(targets))), targets
    else:
        return book
    _refuse_strangers(observed, origin, found, routes)
    return ledgers.link(book, observed, found.memories, str(origin))


def _refuse_strangers(table: pd.DataFrame, path: Path, found: Records, routes: list[str]) -> None:
    """Refuse a query that was never asked, a route that was never run, and a target that was never stored."""
    known = {
        "query_id": ("query", found.queries["query_id"], "belongs to a query that was never asked"),
        "arm": ("route", routes, f"belongs to a route that was not run; expected {', '.join(routes)}"),
        "memory_id": ("memory", found.memories["memory_id"], "is a target that was never stored"),
    }
    for column, (_, ids, what) in known.items():
        strange: Any = ~table[column].isin(cast("Any", ids)).to_numpy() if column in table else []
        if any(strange):
            row = int(strange.argmax())
            names = ", ".join(f"{known[name][0]} {table[name].iloc[row]!r}" for name in known if name in table)
            raise InputError(f"{path}: row {row + 1}: {names} {what}")


def _table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    from companion import tables
    from companion.tables.values import parse_boolean

    frame, _ = tables.read_raw(path)
    for name in columns:
        if name not in frame:
            raise InputError(f"{path}: no column {name!r}; expected {', '.join(columns)}")
        if name != "disclosed":
            frame[name] = frame[name].astype("str")
            continue
        values, bad = parse_boolean(frame[name])
        if bad.any():
            row = int(bad.argmax())
            expected = "expected 1, 0, true, false or an empty field"
            raise InputError(f"{path}: row {row + 1}, column {name}: {frame[name].iloc[row]!r}; {expected}")
        frame[name] = values
    return frame[list(columns)]


# --- printing ------------------------------------------------------------------------------------------------------


def _print(path: pd.DataFrame, found: Records, query: str, memory: str | None, stands: str, as_json: bool) -> None:
    asked = found.queries[found.queries["query_id"] == query].iloc[0]
    facts = ("query_id", "namespace", "intent", "principal", "time", "text")
    about = {name: asked[name] for name in facts if name in asked}
    if as_json:
        print_json({"query": about, "exposure_from": "rankings" if stands else "ledger", "paths": records(path)})
        return
    _print_facts(about)
    if memory is not None:
        held = found.memories[found.memories["memory_id"] == memory].iloc[0]
        _print_facts({f: held[f] for f in ("memory_id", "namespace", "state", "time", "text") if f in held})
    for route, rows in path.groupby("arm", sort=False):
        print_table(_compact(rows), f"Route {route}")
    if stands:
        typer.echo(f"No ledger says what reached the prompt: {stands}.")


def _print_facts(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        if isinstance(value, str):
            typer.echo(printable(f"{name}: {value}"))  # what a memory says must not steer the terminal
    typer.echo("")


def _compact(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what fits a terminal: the status as one word, the path as one phrase."""
    import pandas as pd

    from companion.logic import AXES

    table = pd.DataFrame(
        {
            "rank": rows["rank"],
            "memory": rows["memory_id"],
            "status": rows[["relevant", *AXES]].apply(_mark).agg(" ".join, axis=1),
            "admissible": _mark(rows["admissible"]),
            "reasons": rows["reasons"],
            "path": [_phrase(row) for row in rows.to_dict(orient="records")],
        }
    )
    return table.assign(disclosed=_mark(rows["disclosed"])) if rows["disclosed"].notna().any() else table


def _phrase(row: dict[Hashable, Any]) -> str:
    """Say how far a memory came, and what ended it; gates that could not decide are named."""
    import pandas as pd

    reached = [name for name in ("stored", "retrieved", "exposed") if row[name] is True]
    if row["stored"] is False and row["retrieved"] is True:
        reached.insert(0, "no longer stored")
    gates = [str(name) for name in row if str(name).startswith("gate_")]
    undecided = [name.removeprefix("gate_") for name in gates if pd.isna(row[name])]
    if undecided and row["retrieved"] is True:
        reached.insert(2, f"gate undecided: {', '.join(undecided)}")
    if row["exposed"] is True and row["retrieved"] is not True:
        reached.insert(1, "not retrieved")
    ended = row["stopped_by"]
    if not isinstance(ended, str):
        return " > ".join([*reached, *(["exposure not recorded"] if pd.isna(row["exposed"]) else [])])
    word = _ENDED.get(ended, ended.replace("gate_", "stopped by gate "))
    return f"{' > '.join(reached)}; {word}" if reached else word


_ENDED = {"budget": "over the budget", "not retrieved": "not retrieved", "not stored yet": "not stored yet"}


def _mark(column: pd.Series) -> pd.Series:
    return column.map({True: "1", False: "0"}).fillna("?").astype("str")
