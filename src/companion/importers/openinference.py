r"""OpenInference retriever spans.

A complete example. ``spans.jsonl``, one span a line, attributes flattened as exporters write them (here broken for
reading)::

    {"name": "vector_search", "context": {"trace_id": "t1", "span_id": "s1"}, "start_time": "2025-06-01T09:00:00Z",
     "attributes": {"openinference.span.kind": "RETRIEVER", "input.value": "Which dose now?", "user.id": "dr-lee",
                    "metadata": "{\"tenant\": \"patient-1\"}",
                    "retrieval.documents.0.document.id": "m2",
                    "retrieval.documents.0.document.content": "40 mg since May",
                    "retrieval.documents.0.document.score": 0.81,
                    "retrieval.documents.0.document.metadata":
                        "{\"tenant\": \"patient-1\", \"visibility\": \"care\"}"}}

and a mapping, ``mapping.yaml``, that says where your application keeps what the protocol needs::

    query:
      namespace: metadata.tenant          # a path in the span's attributes
      principal: user.id
    memory:
      namespace: metadata.tenant          # a path in the document
    labels:
      policy:                             # an axis may be read from a field of the document
        field: metadata.visibility
        values: {care: true, billing: false}

become one query, one memory, one ranked row of arm ``vector_search``, and one label with policy = 1:

>>> from companion.importers import openinference                              # doctest: +SKIP
>>> made = openinference.read("spans.jsonl", mapping="mapping.yaml")           # doctest: +SKIP

Documents may be flattened as above, nested (``{"retrieval": {"documents": [{"document": {"id": ...}}]}}``), or one JSON
string (``"retrieval.documents": "[{...}]"``). A file is one span a line, a JSON list of spans, an object with a list
under ``spans`` or ``data``, or an OTLP export (``resourceSpans``). Spans of other kinds are left out and counted; a
retriever span without documents is an empty route.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.importers.common import Imported, agree, as_id, cell_text, counted, load_json, readable, some, text_lines
from companion.importers.jsonl import MEMORY_FIELDS, QUERY_FIELDS, _grouped, _table
from companion.tables import Records
from companion.tables.problems import is_missing, show
from companion.tables.values import parse_boolean

AXES = ("relevant", "scope", "policy", "lifecycle")
_SECTIONS: dict[str, tuple[str, ...]] = {
    "query": ("query_id", "arm", *QUERY_FIELDS),
    "memory": ("memory_id", *MEMORY_FIELDS),
    "labels": AXES,
}
_DOCUMENT = re.compile(r"retrieval\.documents\.(\d+)\.(?:document\.)?(.+)")
# What is left under these names once lists and packed JSON are taken apart was neither.
_NO_DOCUMENTS = re.compile(r"retrieval|retrieval\.documents|retrieval\.documents\.\d+(?:\.document)?")
_KIND = "openinference.span.kind"
# Attributes that exporters write as one JSON string.
_PACKED = re.compile(r"(?:attributes|retrieval|retrieval\.documents|retrieval\.documents\.\d+|.*metadata)")
_DEFAULTS = {"query": {"text": "input.value", "time": "start_time"}, "memory": {"text": "content"}, "labels": {}}


def read(path: str | PathLike[str], mapping: str | PathLike[str] | Mapping[str, Any] | None = None) -> Imported:
    """Read retriever spans."""
    plan = _plan(mapping)
    read_spans = [(where, _flat(span)) for where, span in spans(path)]
    kept = [(where, span) for where, span in read_spans if _is_retriever(span)]
    if not kept:
        raise InputError(f"{path}: no retriever span among {len(read_spans):,} spans; expected {_KIND} = RETRIEVER")
    routes = [_route(span, where, plan) for where, span in kept]
    _refuse_repeats(routes)
    queries, differing_queries = agree((r["query"] for r in routes), "query_id", "query")
    if differing_queries:
        raise InputError(
            f"{path}: {differing_queries:,} query ids stand for queries with different fields; map query.query_id to "
            f"what "
            "names one request"
        )
    memories, differing = agree((m for r in routes for m in r["memories"]), "memory_id", "memory")
    records = Records(
        _table(memories, ("memory_id", "namespace")),
        _grouped(_table(queries, ("query_id", "namespace"))),
        _labels(routes, plan),
        _rankings(routes),
        name=Path(path).stem,
    ).check()
    return Imported(records, _notes(routes, len(read_spans) - len(kept), differing, records))


def spans(path: str | PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the spans of a file with where they stand."""
    lines = list(text_lines(path))
    if not lines:
        raise InputError(f"{path}: the file is empty; expected spans as JSON or JSON Lines")
    whole = _try_whole(lines)
    documents = [(str(path), whole)] if whole is not None else [
        (f"{path}, line {number}", load_json(text, f"{path}, line {number}")) for number, text in lines
    ]  # fmt: skip
    for where, document in documents:
        for place, span in enumerate(_unwrapped(document), start=1):
            here = where if whole is None else f"{where}, span {place}"
            if not isinstance(span, dict):
                raise InputError(f"{here}: {show(span)} is not a span; expected an object")
            yield here, span


def _try_whole(lines: list[tuple[int, str]]) -> Any:
    """Read the file as one JSON document, unless every line is one by itself."""
    if len(lines) > 1 and lines[0][1].lstrip().startswith("{") and lines[0][1].rstrip().endswith("}"):
        return None
    try:
        return load_json("\n".join(text for _, text in lines), "file")
    except InputError:
        return None


def _unwrapped(document: Any) -> Iterator[Any]:
    """Descend into the envelopes that exporters put around spans."""
    if isinstance(document, list):
        for item in document:
            yield from _unwrapped(item)
        return
    if isinstance(document, dict):
        for name in ("resourceSpans", "scopeSpans", "spans", "data"):
            if isinstance(document.get(name), list):
                yield from _unwrapped(document[name])
                return
    yield document


def _flat(span: dict[str, Any]) -> dict[str, Any]:
    """Return a span as one level of dotted names; attributes lose their prefix, packed JSON is unpacked."""
    flat: dict[str, Any] = {}
    _flatten(span, "", flat)
    bare = {name.removeprefix("attributes."): value for name, value in flat.items()}
    nano = bare.get("startTimeUnixNano")
    if is_missing(bare.get("start_time")) and str(nano).isdecimal():  # OTLP counts nanoseconds
        bare["start_time"] = pd.Timestamp(int(str(nano)), unit="ns", tz="UTC").isoformat()
    return bare


def _flatten(value: Any, name: str, flat: dict[str, Any]) -> None:
    bare = name.removeprefix("attributes.")
    if isinstance(value, str) and _PACKED.fullmatch(bare) and value.lstrip()[:1] in ("{", "["):
        try:
            value = load_json(value, name)
        except InputError:
            flat[name] = value  # not JSON after all: keep the text
            return
    if isinstance(value, list) and _is_otlp(value):
        value = {item["key"]: _otlp(item["value"]) for item in value}
    items: Any = None
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and bare == "retrieval.documents":
        items = ((str(place), item) for place, item in enumerate(value))
    if items is None:
        flat[name] = value
        return
    for key, item in items:
        _flatten(item, f"{name}.{key}" if name else str(key), flat)


def _is_otlp(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(item, dict) and set(item) >= {"key", "value"} for item in value)


def _otlp(value: Any) -> Any:
    """Unwrap an OTLP value such as ``{"stringValue": "x"}``."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    (kind, inner), = value.items()  # fmt: skip
    if kind == "arrayValue":
        return [_otlp(item) for item in (inner or {}).get("values", [])]
    if kind == "kvlistValue":
        return {item["key"]: _otlp(item["value"]) for item in (inner or {}).get("values", [])}
    return int(inner) if kind == "intValue" else inner


def _is_retriever(span: dict[str, Any]) -> bool:
    kind = span.get(_KIND, span.get("span_kind"))
    if isinstance(kind, str) and kind.upper() in _KINDS:
        return kind.upper() == "RETRIEVER"
    return any(name.startswith("retrieval.documents") for name in span)


_KINDS = {"RETRIEVER", "LLM", "CHAIN", "TOOL", "AGENT", "EMBEDDING", "RERANKER", "GUARDRAIL", "EVALUATOR", "PROMPT"}


# --- mapping -------------------------------------------------------------------------------------------------------

_Plan = dict[str, dict[str, dict[str, Any]]]


def _plan(mapping: str | PathLike[str] | Mapping[str, Any] | None) -> _Plan:
    """Read and check a mapping; every entry becomes an object with field, values and constant."""
    given, where = _given(mapping)
    plan: _Plan = {section: {name: {"field": path} for name, path in own.items()} for section, own in _DEFAULTS.items()}
    for section, entries in given.items():
        if section not in _SECTIONS:
            raise InputError(f"{where}: no section {section!r}; expected {', '.join(_SECTIONS)}")
        if not isinstance(entries, Mapping):
            raise InputError(f"{where}, {section}: {show(entries)}; expected column: path")
        for name, entry in entries.items():
            if name not in _SECTIONS[section]:
                raise InputError(f"{where}, {section}: no column {name!r}; expected {', '.join(_SECTIONS[section])}")
            plan[section][name] = _entry(entry, f"{where}, {section}.{name}")
    return plan


def _given(mapping: str | PathLike[str] | Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    if mapping is None:
        return {}, "mapping"
    if isinstance(mapping, Mapping):
        return mapping, "mapping"
    import yaml

    text = "\n".join(line for _, line in text_lines(mapping))
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{mapping}: {error}; expected YAML or JSON") from error
    if given is None:
        return {}, str(mapping)
    if not isinstance(given, Mapping):
        raise InputError(f"{mapping}: {show(given)}; expected sections {', '.join(_SECTIONS)}")
    return given, str(mapping)


def _entry(entry: Any, where: str) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"field": entry}
    known = {"field", "values", "constant"}
    if not isinstance(entry, Mapping) or not set(entry) <= known or not ({"field", "constant"} & set(entry)):
        raise InputError(f"{where}: {show(entry)}; expected a path, or field with values, or constant")
    if "values" in entry and not isinstance(entry["values"], Mapping):
        raise InputError(f"{where}, values: {show(entry['values'])}; expected word: value")
    return dict(entry)


def _value(entry: dict[str, Any], fields: Mapping[str, Any], span: Mapping[str, Any]) -> Any:
    """Look a mapped value up; what the words of ``values`` do not name stays as it is."""
    if "constant" in entry:
        return entry["constant"]
    path = entry["field"]
    own, path = (span, path.removeprefix("span:")) if path.startswith("span:") else (fields, path)
    value = own.get(path.removeprefix("attributes."))
    words = entry.get("values")
    if words is None or is_missing(value):
        return value
    return words.get(value, words.get(str(value), value))


# --- routes --------------------------------------------------------------------------------------------------------


def _route(span: dict[str, Any], where: str, plan: _Plan) -> dict[str, Any]:
    own = {name: _value(entry, span, span) for name, entry in plan["query"].items()}
    identity = own.pop("query_id", None) or _first(span, "context.span_id", "span_id", "spanId", "id")
    arm = own.pop("arm", None) or span.get("name") or "retriever"
    if identity is None:
        raise InputError(f"{where}: the span has no id; expected context.span_id, or a mapping of query.query_id")
    query = {
        "query_id": as_id(identity, f"{where}, query_id"),
        **{name: cell_text(value, name, where) for name, value in own.items()},
    }
    route: dict[str, Any] = {"query": query, "arm": as_id(arm, f"{where}, arm"), "where": where}
    route |= {"memories": [], "scores": [], "labels": [], "repeats": 0, "hashed": 0}
    seen: set[str] = set()
    for place, document in sorted(_documents(span, where).items()):
        here = f"{where}, document {place}"
        memory, hashed = _memory(document, span, plan, here)
        if memory["memory_id"] in seen:
            route["repeats"] += 1
            continue
        seen.add(memory["memory_id"])
        route["hashed"] += hashed
        route["memories"].append(memory)
        route["scores"].append(_score(document.get("score"), here))
        route["labels"].append(
            {axis: _truth(_value(entry, document, span), f"{here}, {axis}") for axis, entry in plan["labels"].items()}
        )
    return route


def _documents(span: Mapping[str, Any], where: str) -> dict[int, dict[str, Any]]:
    """Collect the documents of a span by their place; what stands where documents should be is refused."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in span.items():
        hit = _DOCUMENT.fullmatch(name)
        if hit is not None:
            found.setdefault(int(hit[1]), {})[hit[2]] = value
        elif _NO_DOCUMENTS.fullmatch(name) and not is_missing(value):
            raise InputError(f"{where}, {name}: {_why_not(value)}; expected documents, as objects or as JSON text")
    return found


def _why_not(value: Any) -> str:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            load_json(value, "the JSON text cannot be read")
        except InputError as error:
            return str(error).partition("; expected")[0]
    return show(value)


def _memory(document: dict[str, Any], span: dict[str, Any], plan: _Plan, where: str) -> tuple[dict[str, Any], bool]:
    own = {name: _value(entry, document, span) for name, entry in plan["memory"].items()}
    identity = own.pop("memory_id", None)
    identity = document.get("id") if is_missing(identity) else identity
    hashed = is_missing(identity)
    if hashed:
        content = document.get("content")
        if not isinstance(content, str) or not content:
            raise InputError(f"{where}: neither an id nor content; expected document.id or document.content")
        readable(content, "text", f"{where}, content")
        identity = "content-" + hashlib.sha256(content.encode()).hexdigest()[:16]
    return {
        "memory_id": as_id(identity, f"{where}, id"),
        **{name: cell_text(value, name, where) for name, value in own.items()},
    }, hashed


def _first(span: Mapping[str, Any], *names: str) -> Any:
    return next((span[name] for name in names if not is_missing(span.get(name))), None)


def _score(value: Any, where: str) -> float | None:
    if is_missing(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if isinstance(value, bool) or not np.isfinite(number):
        raise InputError(f"{where}, score: {show(value)}; expected a finite number")
    return number


def _truth(value: Any, where: str) -> Any:
    values, bad = parse_boolean(pd.Series([value], dtype=object))
    if bad.any():
        raise InputError(f"{where}: {show(value)}; expected true, false or nothing (give the words under values)")
    return values.iloc[0]


def _refuse_repeats(routes: list[dict[str, Any]]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for route in routes:
        key = (route["arm"], route["query"]["query_id"])
        if key in seen:
            raise InputError(
                f"{route['where']}: query {show(key[1])} of arm {show(key[0])} was retrieved for before, in "
                f"{seen[key]}; "
                "expected one span for each, so map query.query_id or query.arm to what tells them apart"
            )
        seen[key] = route["where"]


def _rankings(routes: list[dict[str, Any]]) -> pd.DataFrame:
    rows = [
        (r["arm"], r["query"]["query_id"], rank, memory["memory_id"], score)
        for r in routes
        for rank, (memory, score) in enumerate(zip(r["memories"], r["scores"], strict=True), start=1)
    ]
    table = pd.DataFrame(rows, columns=["arm", "query_id", "rank", "memory_id", "score"])
    return table if table["score"].notna().all() else table.drop(columns="score")


def _labels(routes: list[dict[str, Any]], plan: _Plan) -> pd.DataFrame:
    """Collect mapped labels; where spans of several arms differ about a pair, the axis is unresolved."""
    rows = [
        {"query_id": r["query"]["query_id"], "memory_id": memory["memory_id"], **labels}
        for r in routes
        for memory, labels in zip(r["memories"], r["labels"], strict=True)
    ]
    axes = list(plan["labels"])
    if not axes or not rows:
        return pd.DataFrame({"query_id": pd.Series(dtype="str"), "memory_id": pd.Series(dtype="str")})
    table = pd.DataFrame(rows).astype({axis: "boolean" for axis in axes})
    grouped = table.groupby(["query_id", "memory_id"], sort=False)[axes]
    # The least and the greatest of what spans say are the same where they agree; first() skips the unresolved.
    agreed = grouped.min().eq(grouped.max()).fillna(False).astype(bool)
    return grouped.first().mask(~agreed).reset_index()


def _notes(routes: list[dict[str, Any]], others: int, differing: int, records: Records) -> list[str]:
    empty = [r["query"]["query_id"] for r in routes if not r["memories"]]
    hashed, repeats = sum(r["hashed"] for r in routes), sum(r["repeats"] for r in routes)
    scores = [score for r in routes for score in r["scores"]]
    some_scored = 0 < sum(score is not None for score in scores) < len(scores)
    queries, memories = records.queries, records.memories
    facts: list[tuple[str, Any]] = [
        (
            f"{counted(len(routes), 'retriever span was', 'retriever spans were')} read; "
            f"{counted(others, 'span of another kind was', 'spans of other kinds were')} left out.",
            True,
        ),
        (
            f"{counted(len(empty), 'retriever span holds', 'retriever spans hold')} no documents: empty routes "
            f"({some(empty)}).",
            empty,
        ),
        (f"{counted(hashed, 'document has', 'documents have')} no id; a hash of the content stands for it.", hashed),
        (
            f"{counted(repeats, 'document stands', 'documents stand')} twice in a span; the first place was kept.",
            repeats,
        ),
        (
            f"{counted(differing, 'memory is', 'memories are')} described differently by different spans; the first "
            f"description was kept.",
            differing,
        ),
        ("Only some documents have a score; scores were left out.", some_scored),
        ("No query has a namespace: map query.namespace, or scope stays unresolved.", _empty(queries["namespace"])),
        ("No memory has a namespace: map memory.namespace, or scope stays unresolved.", _empty(memories["namespace"])),
        ("No query has a principal: map query.principal to audit empty ones.", _empty(queries["principal"])),
    ]
    return [text for text, holds in facts if holds]


def _empty(column: pd.Series) -> bool:
    return bool(column.isna().all())
