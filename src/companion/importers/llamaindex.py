"""LlamaIndex: retrieval events of its instrumentation, or logged responses with source nodes, and a docstore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from companion.errors import InputError
from companion.importers.fields import Format
from companion.importers.files import Row, unpacked
from companion.tables.problems import show


def _is_retrieval(record: Mapping[str, Any]) -> bool:
    kind = record.get("class_name")
    return kind in (None, "RetrievalEndEvent", "Response") or (kind != "RetrievalStartEvent" and "nodes" in record)


def _docstore(rows: Iterable[Row]) -> Iterator[Row]:
    """Take the nodes out of a persisted docstore; a list of nodes is taken as it is."""
    for row in rows:
        nodes = row.value.get("docstore/data") if isinstance(row.value, dict) else None
        if not isinstance(nodes, dict):
            yield (
                row
                if not isinstance(row.value, dict) or "node" in row.value
                else row._replace(value={**row.value, "node": row.value})
            )
            continue
        for number, (name, node) in enumerate(nodes.items(), start=1):
            where = f"{row.where}, {name}"
            data = unpacked(node.get("__data__", node), where) if isinstance(node, dict) else node
            if not isinstance(data, dict):
                raise InputError(f"{where}: {show(data)} is not a node; expected an object")
            yield Row(where, number, {"node": {"id_": name, **data}})


FORMAT = Format(
    "llamaindex",
    "LlamaIndex retrieval events or responses with source nodes, and a persisted docstore.",
    documents=("nodes", "source_nodes"),
    query={
        "query_id": ("query_id", "span_id", "id_"),
        "text": ("str_or_query_bundle.query_str", "str_or_query_bundle", "query.query_str", "query", "query_str"),
        "time": "timestamp",
        "answer": ("response", "answer"),
        "principal": ("tags.user_id", "user_id"),
        "arm": ("tags.retriever", "retriever", "arm"),
    },
    memory={
        "memory_id": ("node.id_", "node.node_id", "id_", "node_id"),
        "text": ("node.text", "node.text_resource.text", "text"),
        "time": ("node.metadata.created_at", "metadata.created_at"),
        "score": "score",
    },
    owners=tuple(
        (f"{place}{name}", f"node.metadata.{name}")
        for name in ("namespace", "tenant_id", "tenant", "user_id")
        for place in ("tags.", "")
    ),
    envelopes=("events", "data"),
    retrieval=_is_retrieval,
    store=_docstore,
    reads=("class_name",),
)
