"""From requests and memories to checked tables, and to notes on what was decided or left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from companion.importers.common import Imported, agree, checked, counted, some
from companion.importers.fields import MEMORY_FIELDS, Plan
from companion.tables import Records
from companion.tables.problems import is_missing


@dataclass
class Item:
    """One memory that a request returned, or that the store holds."""

    row: dict[str, Any]
    score: float | None = None
    exposed: Any = None
    labels: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str | None]:
        """Id and namespace."""
        return self.row["memory_id"], self.row["namespace"]


@dataclass
class Request:
    """One retrieval; ``shown`` are the ids said to be exposed, None where nothing is said."""

    query: dict[str, Any]
    arm: str
    where: str
    items: list[Item]
    failed: bool
    answer: str | None
    shown: list[str] | None


def imported(
    path: Path,
    plan: Plan,
    requests: list[Request],
    store: list[Item] | None,
    tally: Counter[str],
    unused: dict[str, int],
    others: int,
) -> Imported:
    """Make the tables of what was read, and say what was done."""
    queries, _ = agree((request.query for request in requests), "query_id")
    logged = [item.row for request in requests for item in request.items]
    known = {row["memory_id"] for row in logged}
    if store is None:
        cached = {one for request in requests for one in request.shown or []} - known
        logged += [{"memory_id": one, **dict.fromkeys(MEMORY_FIELDS)} for one in sorted(cached)]
        memories, differing = agree(logged, "memory_id")
    else:
        memories, differing = agree((item.row for item in store), "memory_id")
    told = plan.ledger or any(item.exposed is not pd.NA for request in requests for item in request.items)
    records = checked(
        Records(
            _with(memories, "memory_id", "namespace"),
            _grouped(_with(queries, "query_id", "namespace", "group", "principal")),
            _labels(requests, plan),
            _rankings(requests),
            _work(requests),
            _ledger(requests) if told else None,
            name=path.stem,
        )
    )
    said = [(r.query["query_id"], r.arm, r.answer) for r in requests if r.answer is not None]
    answers = pd.DataFrame(said, columns=["query_id", "arm", "answer"]) if said else None
    notes = _notes(requests, plan, tally, unused, others, differing, records, store)
    keyed = sorted(name.removeprefix("keyed ") for name in tally if name.startswith("keyed "))
    lists: dict[str, Any] = {
        "unused_fields": unused,
        "mapped_paths_without_a_match": plan.unmatched(),
        "ids_of_several_namespaces": keyed,
    }
    return Imported(records, notes, answers, {k: v for k, v in lists.items() if v}, "log" if store is None else "given")


def _rankings(requests: list[Request]) -> pd.DataFrame:
    ranked = [
        (r.arm, r.query["query_id"], rank, item.row["memory_id"], item.score)
        for r in requests
        for rank, item in enumerate(r.items, start=1)
    ]
    table = pd.DataFrame(ranked, columns=["arm", "query_id", "rank", "memory_id", "score"])
    return table if table["score"].notna().all() else table.drop(columns="score")


def _work(requests: list[Request]) -> pd.DataFrame | None:
    """State the requests that rankings cannot show: empty ones and failed ones."""
    bare = [(r.arm, r.query["query_id"], pd.NA, "failed" if r.failed else "done") for r in requests if not r.items]
    columns = ["arm", "query_id", "candidates_scored", "status"]
    return pd.DataFrame(bare, columns=columns) if bare else None


def _ledger(requests: list[Request]) -> pd.DataFrame:
    table = []
    for r in requests:
        shown = None if r.shown is None else set(r.shown)
        for item in r.items:
            name = item.row["memory_id"]
            exposed = item.exposed if shown is None else name in shown
            table.append((r.query["query_id"], r.arm, name, True, None if is_missing(exposed) else exposed))
        cached = sorted((shown or set()) - {item.row["memory_id"] for item in r.items})
        table += [(r.query["query_id"], r.arm, name, False, True) for name in cached]
    return pd.DataFrame(table, columns=["query_id", "arm", "memory_id", "retrieved", "exposed"])


def _labels(requests: list[Request], plan: Plan) -> pd.DataFrame:
    """Collect mapped labels; where requests of several arms differ about a pair, the axis is unresolved."""
    axes = list(plan.entries["labels"])
    listed = [
        {"query_id": r.query["query_id"], "memory_id": item.row["memory_id"], **item.labels}
        for r in requests
        for item in r.items
    ]
    if not axes or not listed:
        return pd.DataFrame({"query_id": pd.Series(dtype="str"), "memory_id": pd.Series(dtype="str")})
    grouped = pd.DataFrame(listed).astype(dict.fromkeys(axes, "boolean")).groupby(["query_id", "memory_id"], sort=False)
    # The least and the greatest of what is said are the same where all agree; first() skips the unresolved.
    agreed = grouped[axes].min().eq(grouped[axes].max()).fillna(False).astype(bool)
    return grouped[axes].first().mask(~agreed).reset_index()


def _with(table: pd.DataFrame, *needed: str) -> pd.DataFrame:
    """Add what a table needs, and drop a source that only some rows give: it must be stated in every row or in none."""
    given = table.drop(columns="source") if "source" in table and table["source"].isna().any() else table
    return given.reindex(columns=[*given.columns, *(name for name in needed if name not in given)])


def _grouped(queries: pd.DataFrame) -> pd.DataFrame:
    """Let a query without namespace and group move on its own."""
    alone = queries["group"].isna() & queries["namespace"].isna()
    return queries.assign(group=queries["group"].where(~alone, queries["query_id"])) if alone.any() else queries


def _notes(
    requests: list[Request],
    plan: Plan,
    tally: Counter[str],
    unused: dict[str, int],
    others: int,
    differing: int,
    records: Records,
    store: list[Item] | None,
) -> list[str]:
    broken = sum(r.failed for r in requests)
    empty = [r.query["query_id"] for r in requests if not r.items and not r.failed]
    silent = sum(r.shown is None for r in requests) if records.ledger is not None else 0
    cached = 0 if records.ledger is None else int((~records.ledger["retrieved"]).sum())
    scores = [item.score is None for r in requests for item in r.items]
    fields = {side: plan.entries[side].get("namespace", {}).get("field", "") for side in ("query", "memory")}
    spaces = {side: path if isinstance(path, str) else " or ".join(path) for side, path in fields.items()}
    keyed = [name.removeprefix("keyed ") for name in tally if name.startswith("keyed ")]
    namespaces = [table["namespace"].isna().all() for table in (records.queries, records.memories)]
    once = [f"{name} ({number:,})" for name, number in unused.items()]
    facts: list[tuple[str, Any]] = [
        (f"{counted(len(requests), 'request was', 'requests were')} read; "
         f"{counted(others, 'record', 'records')} of another kind left out.", True),
        (f"{counted(broken, 'request', 'requests')} failed, by status or an explicit null: neither an empty route nor "
         "an answer.", broken),
        (f"{counted(len(empty), 'request', 'requests')} retrieved nothing: empty routes ({some(empty)}).", empty),
        (f"{silent:,} of {counted(len(requests), 'request')} {'does' if silent == 1 else 'do'} not say what was "
         "exposed: unresolved in the ledger.", silent),
        (f"{counted(cached, 'exposed memory was', 'exposed memories were')} not retrieved: kept in the ledger.",
         cached),
        (f"{counted(tally['hashed'], 'document has', 'documents have')} no id; a hash of the text stands for it.",
         tally["hashed"]),
        (f"{counted(tally['repeats'], 'document stands', 'documents stand')} again in a route: kept once, at the best "
         "rank.", tally["repeats"]),
        (f"{counted(tally['conversations'], 'query id names', 'query ids name')} several requests: numbered in the "
         "order of the file, as id#1, id#2.", tally["conversations"]),
        (f"{counted(tally['numbers'], 'id', 'ids')} given as numbers: read as text, 7 and 7.0 alike as 7.",
         tally["numbers"]),
        (f"{counted(len(keyed), 'memory id belongs', 'memory ids belong')} to several namespaces: kept apart as "
         f"namespace/id ({some(sorted(keyed))}).", keyed),
        (f"{counted(differing, 'memory is', 'memories are')} described differently in several places; the first "
         "description was kept.", differing),
        ("Only some documents have a score; scores were left out.", any(scores) and not all(scores)),
        (f"Namespaces: {spaces['query']} of requests, {spaces['memory']} of memories.", not any(namespaces)),
        ("No query names a namespace: scope is unresolved. Map query.namespace.", namespaces[0]),
        ("No memory names a namespace: scope is unresolved. Map memory.namespace, or give --memories.", namespaces[1]),
        ("The namespace of memories is read from the request: no memory can belong to anybody else.",
         str(spaces["memory"]).startswith("span:")),
        ("No query has a principal: map query.principal to audit empty ones.",
         records.queries["principal"].isna().all()),
        ("The store was made out of this log: what is missing from it cannot be known. Give --memories.",
         store is None),
        (f"{counted(len(plan.unmatched()), 'mapped path', 'mapped paths')} matched nothing: "
         f"{some(plan.unmatched())}.", plan.unmatched()),
        (f"Not used: {some(once)}.", once),
        ("There are no labels; add a table labels to score the routes.", records.labels.empty),
    ]  # fmt: skip
    return [text for text, holds in facts if holds]
