"""Plain JSON Lines: one request a line, with what was retrieved, what was exposed, and the answer.

``query`` is text, or an object with ``id``, ``text``, ``namespace``, ``principal``, ``intent``, ``time``; the same
fields may stand beside it. ``retrieved`` lists ids or objects in rank order; null means that the request failed.
``exposed`` lists ids; without it, exposure is unresolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from companion.errors import InputError
from companion.importers.fields import MEMORY_FIELDS, QUERY_FIELDS, Format
from companion.importers.files import Row
from companion.tables.problems import show


def _requests(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        value = row.value
        if not isinstance(value, dict):
            raise InputError(f'{row.where}: {show(value)} is not an object; expected {{"query": ..., "retrieved": []}}')
        query = value.get("query")
        if not isinstance(query, dict | str):
            raise InputError(f"{row.where}, query: {show(query)}; expected the question as text, or an object")
        if "retrieved" not in value:
            said = "an empty field; expected a list of ids or objects in rank order ([] for none, null for a failure)"
            raise InputError(f"{row.where}, retrieved: {said}")
        own = {"text": query} if isinstance(query, str) else query
        yield row._replace(value={**value, "query": own})


def _paths(*names: str) -> tuple[str, ...]:
    return tuple(path for name in names for path in (f"query.{name}", name))


FORMAT = Format(
    "jsonl",
    "Plain JSON Lines with query, retrieved, and perhaps exposed and answer.",
    documents=("retrieved",),
    query={
        "query_id": ("query_id", "query.id", "query.query_id"),
        "arm": "arm",
        "answer": "answer",
        **{name: _paths(name) for name in QUERY_FIELDS},
    },
    memory={"memory_id": ("id", "memory_id"), "score": "score", **{name: name for name in MEMORY_FIELDS}},
    prepare=_requests,
    exposed="exposed",
)
