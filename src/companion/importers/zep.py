"""Zep and Graphiti: searches of a graph as logged, one a line, and an export of its edges, with their validity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from companion.importers.fields import Format
from companion.importers.files import Row


def _searches(rows: Iterable[Row]) -> Iterator[Row]:
    """Read a search in one group as a search of that group."""
    for row in rows:
        groups = row.value.get("group_ids") if isinstance(row.value, dict) else None
        if isinstance(groups, list) and len(groups) == 1:
            yield row._replace(value={**row.value, "group_id": groups[0]})
        else:
            yield row


FORMAT = Format(
    "zep",
    "Zep or Graphiti searches, one a line with the request's fields beside edges, and an export of edges.",
    documents=("edges", "facts", "results"),
    query={
        "query_id": ("query_id", "request_id", "id"),
        "text": "query",
        "time": ("timestamp", "time", "created_at"),
        "principal": "user_id",
        "arm": ("arm", "reranker"),
        "answer": "answer",
    },
    memory={
        "memory_id": ("uuid", "uuid_"),
        "text": ("fact", "content", "summary"),
        "time": "created_at",
        "valid_from": "valid_at",
        "valid_until": ("invalid_at", "expired_at"),
        "score": ("score", "relevance"),
    },
    owners=tuple((name, name) for name in ("user_id", "group_id", "graph_id", "graph_uuid")),
    prepare=_searches,
    reads=("group_ids",),
)
