"""Letta: searches of archival memory, from a log or from an agent's messages, and an export of passages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from companion.importers.fields import Format
from companion.importers.files import Row, unpacked

_SEARCH = "archival_memory_search"


def _searches(rows: Iterable[Row]) -> Iterator[Row]:
    """Put what a tool call asked beside what the tool returned; other messages are no searches."""
    asked: dict[Any, dict[str, Any]] = {}
    for row in rows:
        message = row.value if isinstance(row.value, dict) else {}
        kind = message.get("message_type")
        if kind == "tool_call_message" and isinstance(message.get("tool_call"), dict):
            call = message["tool_call"]
            if call.get("name") == _SEARCH:
                arguments = unpacked(call.get("arguments"), f"{row.where}, arguments")
                asked[call.get("tool_call_id")] = arguments if isinstance(arguments, dict) else {}
                continue
        if kind == "tool_return_message" and message.get("tool_call_id") in asked:
            arguments = asked.pop(message["tool_call_id"])
            given = unpacked(message.get("tool_return"), f"{row.where}, tool_return")
            results = given.get("results", given) if isinstance(given, dict) else given
            rest = {k: v for k, v in message.items() if k not in ("tool_return", "message_type")}
            yield row._replace(value={**rest, "query": arguments.get("query"), "results": results})
            continue
        if not isinstance(row.value, dict) or kind is None:
            listed = isinstance(row.value, dict) and isinstance(row.value.get("response"), list)
            yield row._replace(value={**row.value, "results": row.value["response"]}) if listed else row
        else:
            yield row


FORMAT = Format(
    "letta",
    "Letta searches of archival memory, one a line or an agent's messages, and an export of passages.",
    documents=("results", "passages"),
    query={
        "query_id": ("query_id", "request_id", "id"),
        "text": "query",
        "time": ("date", "timestamp", "time"),
        "principal": ("user_id", "agent_id"),
        "answer": "answer",
        "arm": "arm",
    },
    memory={
        "memory_id": ("passage.id", "id"),
        "text": ("passage.text", "text", "content"),
        "time": ("passage.created_at", "created_at", "timestamp"),
        "score": "score",
        "state": ("passage.state", "state"),
    },
    owners=tuple(
        (name, f"{place}{name}") for name in ("archive_id", "agent_id", "source_id") for place in ("", "passage.")
    ),
    envelopes=("messages", "data"),
    prepare=_searches,
    retrieval=lambda record: record.get("message_type") is None,
)
