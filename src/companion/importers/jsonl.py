"""Plain JSON Lines: one request a line, with what was retrieved, what was exposed, and the answer.

A complete example, ``log.jsonl``::

    {"query": "Which dose now?", "namespace": "patient-1", "principal": "dr-lee",
     "retrieved": [{"id": "m2", "text": "40 mg since May", "score": 0.81, "namespace": "patient-1"},
                   {"id": "m1", "text": "20 mg", "score": 0.77, "namespace": "patient-1", "state": "superseded"}],
     "exposed": ["m2"], "answer": "40 mg."}
    {"query": "Any allergies?", "namespace": "patient-2", "retrieved": ["m9"], "exposed": []}

(each request on one line) becomes two queries, three memories, a ranking of arm ``retrieval``, a ledger, and an
answer:

>>> from companion.importers import jsonl                              # doctest: +SKIP
>>> made = jsonl.read("log.jsonl")                                     # doctest: +SKIP
>>> made.records.ledger[["memory_id", "exposed"]].values.tolist()      # doctest: +SKIP
[['m2', True], ['m1', False], ['m9', False]]

``query`` is text, or an object with ``id``, ``text``, ``namespace``, ``principal``, ``intent``, ``time``; the same
fields may stand beside it. ``retrieved`` lists ids or objects in rank order. ``exposed`` lists ids; without it,
exposure is unresolved. ``query_id`` (or the query's ``id``) names the request, by default its line; ``arm`` names the
route.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.importers.common import Imported, agree, as_id, cell_text, counted, load_json, readable, text_lines
from companion.tables import Records
from companion.tables.problems import show

QUERY_FIELDS = ("namespace", "group", "source", "intent", "principal", "time", "text")
MEMORY_FIELDS = ("namespace", "source", "time", "state", "text", "supersedes")
ARM = "retrieval"


def read(path: str | PathLike[str]) -> Imported:
    """Read a log of requests."""
    requests = [
        _request(load_json(text, f"{path}, line {line}"), f"{path}, line {line}", line)
        for line, text in text_lines(path)
    ]
    if not requests:
        raise InputError(f"{path}: the file is empty; expected one JSON object a line")
    queries, differing_queries = agree((r["query"] for r in requests), "query_id", "query")
    memories, differing = agree((m for r in requests for m in r["memories"]), "memory_id", "memory")
    if differing_queries:
        raise InputError(
            f"{path}: {differing_queries:,} query ids stand for different queries; expected one query for each id"
        )
    _refuse_repeats(requests, path)
    records = Records(
        _table(memories, ("memory_id", "namespace")),
        _grouped(_table(queries, ("query_id", "namespace"))),
        pd.DataFrame({"query_id": pd.Series(dtype="str"), "memory_id": pd.Series(dtype="str")}),
        _rankings(requests),
        None,
        _ledger(requests),
        name="log",
    ).check()
    answers = pd.DataFrame(
        [(r["query"]["query_id"], r["arm"], r["answer"]) for r in requests if r["answer"] is not None],
        columns=["query_id", "arm", "answer"],
    )
    return Imported(records, _notes(requests, differing, records), answers if len(answers) else None)


def _request(row: Any, where: str, line: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InputError(f'{where}: {show(row)} is not an object; expected {{"query": ..., "retrieved": [...]}}')
    query = _query(row, where, line)
    memories, scores = _memories(row, where)
    ids = [memory["memory_id"] for memory in memories]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        raise InputError(f"{where}, retrieved: {show(twice)} stands twice; expected every memory once in a route")
    answer = row.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise InputError(f"{where}, answer: {show(answer)} is not text; expected text or null")
    if answer is not None:
        readable(answer, "text", f"{where}, answer")
    arm = as_id(row.get("arm", ARM), f"{where}, arm")
    return {
        "query": query,
        "arm": arm,
        "memories": memories,
        "scores": scores,
        "exposed": _exposed(row, ids, where),
        "answer": answer,
        "where": where,
    }


def _query(row: dict[str, Any], where: str, line: int) -> dict[str, Any]:
    given = row.get("query")
    own = dict(given) if isinstance(given, dict) else {"text": given}
    if not isinstance(given, dict | str):
        raise InputError(f"{where}, query: {show(given)}; expected the question as text, or an object")
    identity = row.get("query_id", own.get("id", own.get("query_id", f"line-{line}")))
    fields = {name: cell_text(own.get(name, row.get(name)), name, where) for name in QUERY_FIELDS}
    return {"query_id": as_id(identity, f"{where}, query_id"), **fields}


def _memories(row: dict[str, Any], where: str) -> tuple[list[dict[str, Any]], list[float | None]]:
    given = row.get("retrieved")
    if not isinstance(given, list):
        raise InputError(
            f"{where}, retrieved: {show(given)}; expected a list of ids or objects in rank order ([] for none)"
        )
    memories, scores = [], []
    for place, item in enumerate(given, start=1):
        here = f"{where}, retrieved[{place}]"
        own = item if isinstance(item, dict) else {"id": item}
        identity = as_id(own.get("id", own.get("memory_id")), here)
        fields = {name: cell_text(own.get(name), name, here) for name in MEMORY_FIELDS}
        memories.append({"memory_id": identity, **fields})
        scores.append(_score(own.get("score"), here))
    return memories, scores


def _exposed(row: dict[str, Any], ids: list[str], where: str) -> list[str] | None:
    given = row.get("exposed")
    if given is None:
        return None
    if not isinstance(given, list):
        raise InputError(f"{where}, exposed: {show(given)}; expected a list of ids, or null where it is not known")
    own = [
        as_id(item.get("id", item.get("memory_id")) if isinstance(item, dict) else item, f"{where}, exposed")
        for item in given
    ]
    strange = next((one for one in own if one not in set(ids)), None)
    if strange is not None:
        raise InputError(f"{where}, exposed: {show(strange)} was not retrieved; expected ids from retrieved")
    return own


def _score(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise InputError(f"{where}, score: {show(value)}; expected a finite number or null")
    return float(value)


def _refuse_repeats(requests: list[dict[str, Any]], path: str | PathLike[str]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for request in requests:
        key = (request["arm"], request["query"]["query_id"])
        if key in seen:
            raise InputError(
                f"{request['where']}: query_id {show(key[1])} of arm {show(key[0])} stands in {seen[key]} too; "
                f"expected one "
                "request for each"
            )
        seen[key] = request["where"].removeprefix(f"{path}, ")


def _rankings(requests: list[dict[str, Any]]) -> pd.DataFrame:
    rows = [
        (r["arm"], r["query"]["query_id"], rank, memory["memory_id"], score)
        for r in requests
        for rank, (memory, score) in enumerate(zip(r["memories"], r["scores"], strict=True), start=1)
    ]
    table = pd.DataFrame(rows, columns=["arm", "query_id", "rank", "memory_id", "score"])
    return table if table["score"].notna().all() else table.drop(columns="score")


def _ledger(requests: list[dict[str, Any]]) -> pd.DataFrame:
    rows = [
        (
            r["query"]["query_id"],
            r["arm"],
            memory["memory_id"],
            True,
            None if r["exposed"] is None else memory["memory_id"] in r["exposed"],
        )
        for r in requests
        for memory in r["memories"]
    ]
    return pd.DataFrame(rows, columns=["query_id", "arm", "memory_id", "retrieved", "exposed"])


def _table(table: pd.DataFrame, required: tuple[str, ...]) -> pd.DataFrame:
    for name in required:
        if name not in table:
            table[name] = pd.Series(None, index=table.index, dtype=object)
    return _whole_source(table)


def _whole_source(table: pd.DataFrame) -> pd.DataFrame:
    """Drop a source that only some rows give: it must be stated in every row or in none."""
    return table.drop(columns="source") if "source" in table and table["source"].isna().any() else table


def _grouped(queries: pd.DataFrame) -> pd.DataFrame:
    """Let a query without namespace and group move on its own."""
    group = queries["group"] if "group" in queries else pd.Series(None, index=queries.index, dtype=object)
    alone = group.isna() & queries["namespace"].isna()
    return queries.assign(group=group.where(~alone, queries["query_id"])) if alone.any() else queries


def _notes(requests: list[dict[str, Any]], differing: int, records: Records) -> list[str]:
    silent = sum(r["exposed"] is None for r in requests)
    empty = sum(not r["memories"] for r in requests)
    scores = [score for r in requests for score in r["scores"]]
    facts = {
        f"{silent:,} of {counted(len(requests), 'request')} {'does' if silent == 1 else 'do'} not say what was "
        f"exposed: unresolved in the ledger.": silent,
        f"{counted(empty, 'request')} retrieved nothing: {'an empty route' if empty == 1 else 'empty routes'}.": empty,
        f"{counted(differing, 'memory is', 'memories are')} described differently by different requests; the first "
        f"description was kept.": differing,
        "Only some memories have a score; scores were left "
        "out.": any(s is None for s in scores) and any(s is not None for s in scores),
        "No query names a namespace: scope is unresolved.": records.queries["namespace"].isna().all(),
    }  # fmt: skip
    return [
        *(text for text, holds in facts.items() if holds),
        "There are no labels; add a table labels to score the routes.",
    ]
