"""mem0: searches as logged, one a line (the request's fields beside ``results``), and an export of the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from companion.importers.fields import Format
from companion.importers.files import Row


def _searches(rows: Iterable[Row]) -> Iterator[Row]:
    """Take ids of users out of filters, however they are nested; a result of version 1 is a bare list."""
    for row in rows:
        value = row.value
        if isinstance(value, dict):
            asked = value["request"] if isinstance(value.get("request"), dict) else value
            inner = dict(_filters(asked.get("filters")))
            value = {**inner, **{k: v for k, v in value.items() if v is not None or k not in inner}}
            if isinstance(value.get("response"), list):
                value["results"] = value.pop("response")
        yield row._replace(value=value)


def _filters(value: Any) -> Iterator[tuple[str, Any]]:
    for item in value if isinstance(value, list) else [value]:
        for name, inner in item.items() if isinstance(item, dict) else ():
            if name.upper() == "AND":
                yield from _filters(inner)
            elif name in ("user_id", "agent_id", "app_id", "run_id") and isinstance(inner, str) and inner != "*":
                yield name, inner


FORMAT = Format(
    "mem0",
    "mem0 searches, one a line with the request's fields beside results, and an export of the store.",
    documents=("results", "memories"),
    query={
        "query_id": ("query_id", "request_id", "search_id", "id"),
        "text": "query",
        "principal": "user_id",
        "time": ("timestamp", "reference_date", "time"),
        "answer": "answer",
        "arm": "arm",
    },
    memory={
        "memory_id": ("id", "memory_id"),
        "text": ("memory", "data", "text"),
        "time": ("created_at", "updated_at"),
        "valid_until": "expiration_date",
        "score": "score",
    },
    owners=(("user_id", "user_id"), ("user_id", "metadata.user_id"), ("agent_id", "agent_id"), ("run_id", "run_id")),
    prepare=_searches,
    reads=("filters.AND", "filters.user_id", "filters.agent_id", "filters.app_id", "filters.run_id"),
)
