"""Spans of traces: OpenInference (Phoenix, in JSON, Parquet or CSV), OpenTelemetry ``gen_ai`` and Traceloop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from companion.importers.fields import Format, Paths, flat
from companion.importers.files import Row, unpacked
from companion.tables.problems import is_missing

_KIND = "openinference.span.kind"
_KINDS = {"RETRIEVER", "LLM", "CHAIN", "TOOL", "AGENT", "EMBEDDING", "RERANKER", "GUARDRAIL", "EVALUATOR", "PROMPT"}
_GEN_AI = ("gen_ai.retrieval.documents", "gen_ai.memory.records")
_EVENTS = "db.query.result"
_ENVELOPES = ("resourceSpans", "scopeSpans", "spans", "data")
_QUERY: dict[str, Paths] = {
    "query_id": ("context.span_id", "span_id", "spanId", "id"),
    "time": ("start_time", "startTime"),
    "arm": "name",
    "principal": ("user.id", "enduser.id", "traceloop.association.properties.user_id"),
}
_MEMORY: dict[str, Paths] = {
    "memory_id": ("id", "document_id", "metadata.memory_id", "metadata.id"),
    "text": ("content", "document", "page_content", "text"),
    "time": ("metadata.created_at", "metadata.timestamp"),
    "score": "score",
}
_OWNERS = tuple(
    (f"{place}{asked}", f"metadata.{held}")
    for asked, held in (("namespace", "namespace"), ("tenant_id", "tenant_id"), ("tenant.id", "tenant_id"),
                        ("tenant", "tenant"), ("user.id", "user_id"), ("enduser.id", "user_id"), ("user_id", "user_id"))
    for place in ("metadata.", "", "resource.", "traceloop.association.properties.")
)  # fmt: skip


def _spans(rows: Iterable[Row]) -> Iterator[Row]:
    """Read times of OTLP, and documents that stand in events or in a packed output."""
    for row in rows:
        if not isinstance(row.value, dict):
            yield row
            continue
        span = dict(row.value)
        nano = span.get("startTimeUnixNano")
        if is_missing(span.get("start_time")) and str(nano).isdecimal() and len(str(nano)) < 20:
            span["start_time"] = datetime.fromtimestamp(int(str(nano)) / 1e9, UTC).isoformat()
        events = unpacked(span.get("events"), f"{row.where}, events")
        found = [event for event in events if isinstance(event, dict) and event.get("name") == _EVENTS] if isinstance(
            events, list
        ) else []  # fmt: skip
        if found:
            span["events"] = [event for event in events if event not in found]
            span["events.results"] = [_result(event) for event in found]
        bare = flat({"attributes": span.get("attributes") or {}})
        output = _output(bare, f"{row.where}, traceloop.entity.output")
        if output is not None:
            span["events.results"] = output
        yield row._replace(value=span)


def _result(event: dict[str, Any]) -> dict[str, Any]:
    """Read a result of a vector store; a distance is smaller where a document is nearer."""
    fields = {name.removeprefix(f"{_EVENTS}."): value for name, value in flat(event).items()}
    fields.pop("name", None)
    if "score" not in fields and isinstance(fields.get("distance"), int | float):
        fields["score"] = -fields.pop("distance")
    return fields


def _output(span: Mapping[str, Any], where: str) -> list[Any] | None:
    """Find the documents that a traced retriever returned, as Traceloop packs them."""
    if "retriev" not in str(span.get("traceloop.entity.name")).lower():
        return None
    output = unpacked(span.get("traceloop.entity.output"), where)
    if isinstance(output, dict):
        output = next((output[n] for n in ("outputs", "documents", "output") if isinstance(output.get(n), list)), None)
    if not isinstance(output, list):
        return None
    return [
        item["kwargs"] if isinstance(item, dict) and isinstance(item.get("kwargs"), dict) else item for item in output
    ]


def _is_openinference(span: Mapping[str, Any]) -> bool:
    kind = span.get(_KIND, span.get("span_kind"))
    if isinstance(kind, str) and kind.upper() in _KINDS:
        return kind.upper() == "RETRIEVER"
    return any(name.startswith("retrieval.documents") for name in span)


def _is_gen_ai(span: Mapping[str, Any]) -> bool:
    asked = span.get("gen_ai.operation.name") in ("retrieval", "search_memory")
    return asked or any(name in span for name in (*_GEN_AI, "events.results"))


OPENINFERENCE = Format(
    "openinference",
    "OpenInference retriever spans, such as Phoenix exports in JSON, Parquet or CSV.",
    documents=("retrieval.documents", "output.value"),
    query={**_QUERY, "text": "input.value"},
    memory=_MEMORY,
    owners=_OWNERS,
    envelopes=_ENVELOPES,
    prepare=_spans,
    retrieval=_is_openinference,
    arm="retriever",
    reads=(_KIND, "span_kind", "startTimeUnixNano"),
)
OTEL = Format(
    "otel",
    "OpenTelemetry gen_ai retrieval and memory spans, and vector store spans of Traceloop; OTLP as JSON.",
    documents=(*_GEN_AI, "events.results"),
    query={
        **_QUERY,
        "text": ("gen_ai.retrieval.query.text", "gen_ai.memory.query.text", "db.query.text", "traceloop.entity.input"),
    },
    memory=_MEMORY,
    owners=(*_OWNERS, ("gen_ai.memory.store.id", "metadata.store_id")),
    envelopes=_ENVELOPES,
    prepare=_spans,
    retrieval=_is_gen_ai,
    reads=("gen_ai.operation.name", "startTimeUnixNano"),
)
