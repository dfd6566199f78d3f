"""Where a format keeps what the tables need: paths, tried in order, in records of one level of dotted names."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from companion import plain_yaml
from companion.errors import InputError
from companion.importers.files import Row, lines, unpacked
from companion.tables.problems import is_missing, show

QUERY_FIELDS = ("namespace", "group", "source", "intent", "principal", "time", "text")
MEMORY_FIELDS = ("namespace", "source", "time", "valid_from", "valid_until", "state", "text", "supersedes")
AXES = ("relevant", "scope", "policy", "lifecycle")
SECTIONS: dict[str, tuple[str, ...]] = {
    "query": ("query_id", "arm", "answer", *QUERY_FIELDS),
    "memory": ("memory_id", "score", "exposed", *MEMORY_FIELDS),
    "labels": AXES,
}
_PACKED = re.compile(r"(?:.*\.)?(?:attributes|metadata|inputs|outputs|extra|retrieval|filters|arguments)")
_LISTS = ("documents", "results", "nodes", "source_nodes", "memories", "output")
_FAILED = {"error", "failed", "failure", "status_code_error", "2", "timeout", "cancelled"}

Paths = str | tuple[str, ...]


@dataclass(frozen=True)
class Format:
    """What a format is called and where it keeps things: the whole of most importers.

    Attributes
    ----------
    name, summary : str
        The word of the command, and its help.
    documents : tuple of str
        Where the list of what was retrieved may stand, best first.
    query, memory : mapping of column to path or paths
        Columns of the tables, and ``query_id``, ``arm``, ``answer``; ``memory_id``, ``score``, ``exposed``.
    owners : tuple of pairs of paths
        Where a request and a memory name whose they are; the first pair that both sides have is taken.
    envelopes : tuple of str
        Names of lists that hold the records.
    prepare : callable, optional
        Turns the rows of the file into records, one a retrieval or not.
    retrieval : callable
        Tells from the flat record whether it is a retrieval.
    store : callable, optional
        Turns the rows of a store export into memories.
    arm, exposed : str
        Name of the route where the record gives none; name of a list of exposed ids.
    reads : tuple of str
        Further names that `retrieval` reads, so that they do not count as unused.
    """

    name: str
    summary: str
    documents: tuple[str, ...]
    query: Mapping[str, Paths]
    memory: Mapping[str, Paths]
    owners: tuple[tuple[str, str], ...] = ()
    envelopes: tuple[str, ...] = ("data",)
    prepare: Callable[[Iterable[Row]], Iterable[Row]] = iter
    retrieval: Callable[[Mapping[str, Any]], bool] = lambda record: True
    store: Callable[[Iterable[Row]], Iterable[Row]] = iter
    arm: str = "retrieval"
    exposed: str = ""
    reads: tuple[str, ...] = ()


def flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as one level of dotted names; attributes lose their prefix, packed JSON is unpacked."""
    found: dict[str, Any] = {}
    _flatten(value, "", found)
    return {re.sub(r"^(resource\.)?attributes\.", r"\1", name): cell for name, cell in found.items()}


def _flatten(value: Any, name: str, found: dict[str, Any]) -> None:
    if isinstance(value, str) and _PACKED.fullmatch(name):
        with contextlib.suppress(InputError):  # not JSON after all: keep the text
            value = unpacked(value, name)
    if isinstance(value, list) and value and all(isinstance(x, dict) and set(x) >= {"key", "value"} for x in value):
        value = {item["key"]: _otlp(item["value"]) for item in value}
    if isinstance(value, dict) and value:
        for key, item in value.items():
            _flatten(item, f"{name}.{key}" if name else str(key), found)
    elif name:
        found[name] = value


def _otlp(value: Any) -> Any:
    """Unwrap an OTLP value such as ``{"stringValue": "x"}``."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    (kind, inner), = value.items()  # fmt: skip
    if kind in ("arrayValue", "kvlistValue"):
        values = (inner or {}).get("values", [])
        if kind == "arrayValue":
            return [_otlp(item) for item in values]
        return {item["key"]: _otlp(item["value"]) for item in values}
    return int(inner) if kind == "intValue" else inner


def failed(record: Mapping[str, Any]) -> bool:
    """Tell whether a record says of itself that it failed."""
    words = [record.get(name) for name in ("status", "status_code", "status.code", "status.status_code")]
    if any(isinstance(word, int) and not isinstance(word, bool) and word >= 400 for word in words):
        return True
    named = any(str(word).rpartition(".")[2].lower() in _FAILED for word in words if not is_missing(word))
    return named or not is_missing(record.get("error")) or not is_missing(record.get("error.type"))


def listed(record: Mapping[str, Any], names: Iterable[str], where: str) -> tuple[list[Any] | None, str]:
    """Find the documents of a record and the name they stand under; None for an explicit null, no name for nothing."""
    null = ""
    for name in names:
        if name in record:
            value = unpacked(record[name], f"{where}, {name}")
            if isinstance(value, dict):
                value = next((value[one] for one in _LISTS if isinstance(value.get(one), list)), value or [])
            if isinstance(value, list):
                return value, name
            null = name if value is None else null
            if value is not None and name != "output.value":  # which may as well hold the answer
                raise InputError(f"{where}, {name}: {show(value)}; expected documents: a list in rank order")
        above = name.rpartition(".")[0]
        if isinstance(record.get(above), str):
            unpacked(record[above], f"{where}, {above}")  # what could not be read is no empty route
        numbered = _numbered(record, name, where)
        if numbered:
            return numbered, name
    return (None, null) if null else ([], "")


def _numbered(record: Mapping[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    """Collect documents that are flattened to names with numbers."""
    found: dict[int, dict[str, Any]] = {}
    for key, value in record.items():
        hit = re.fullmatch(re.escape(name) + r"\.(\d+)(?:\.(.+))?", key)
        if hit:
            item = unpacked(value, f"{where}, {key}") if hit[2] is None else {hit[2]: value}
            if not isinstance(item, dict):
                raise InputError(f"{where}, {key}: {show(item)}; expected documents: objects")
            found.setdefault(int(hit[1]), {}).update(item)
    return [found[place] for place in sorted(found)]


@dataclass
class Plan:
    """The paths to try for every column, and how often each gave something."""

    entries: dict[str, dict[str, dict[str, Any]]]
    documents: tuple[str, ...]
    ledger: bool
    mapped: dict[tuple[str, str], int] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, form: Format, mapping: str | PathLike[str] | Mapping[str, Any] | None) -> Plan:
        """Put a mapping over the paths of a format."""
        given, where = _given(mapping)
        entries: dict[str, dict[str, dict[str, Any]]] = {"labels": {}}
        for section, own in (("query", form.query), ("memory", form.memory)):
            entries[section] = {name: {"field": path} for name, path in own.items()}
        plan = cls(entries, form.documents, bool(form.exposed))
        for section, content in given.items():
            if section == "documents" and isinstance(content, str):
                plan.documents = (content,)
                continue
            if section not in SECTIONS:
                raise InputError(f"{where}: no section {section!r}; expected {', '.join(SECTIONS)}, documents")
            if not isinstance(content, Mapping):
                raise InputError(f"{where}, {section}: {show(content)}; expected column: path")
            for name, entry in content.items():
                if name not in SECTIONS[section]:
                    known = ", ".join(SECTIONS[section])
                    raise InputError(f"{where}, {section}: no column {name!r}; expected {known}")
                entries[section][name] = _entry(entry, f"{where}, {section}.{name}")
                plan.mapped[section, name] = 0
        return plan

    def value(self, section: str, name: str, fields: Mapping[str, Any], span: Mapping[str, Any]) -> Any:
        """Look a column up; what the words of ``values`` do not name stays as it is."""
        entry = self.entries[section].get(name)
        if entry is None:
            return None
        if "constant" in entry:
            return entry["constant"]
        paths = (entry["field"],) if isinstance(entry["field"], str) else entry["field"]
        value = None
        for path in paths:
            own, bare = (span, path.removeprefix("span:")) if path.startswith("span:") else (fields, path)
            value = own.get(bare.removeprefix("attributes."))
            if not is_missing(value):
                self.used.add(("document: " if own is not span else "") + bare.removeprefix("attributes."))
                break
        if (section, name) in self.mapped:
            self.tried[f"{section}.{name}"] += 1
            self.hit[f"{section}.{name}"] += not is_missing(value)
        words = entry.get("values")
        if words is None or is_missing(value) or isinstance(value, list | dict):
            return value
        return words.get(value, words.get(str(value), value))

    def unmatched(self) -> list[str]:
        """Name each mapped path that matched nothing, and how often it was tried."""
        silent = [name for name in self.tried if not self.hit[name]]
        paths = {f"{s}.{n}": self.entries[s][n].get("field") for s, n in self.mapped}
        return [f"{name} ({paths[name]}, tried {self.tried[name]:,} times)" for name in silent]


def _given(mapping: str | PathLike[str] | Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    if mapping is None or isinstance(mapping, Mapping):
        return mapping or {}, "mapping"
    given = plain_yaml.load("\n".join(line for _, line in lines(Path(mapping))), str(mapping))
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"{mapping}: {show(given)}; expected sections {', '.join(SECTIONS)}")
    return given or {}, str(mapping)


def _entry(entry: Any, where: str) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"field": entry}
    known = {"field", "values", "constant"}
    if not isinstance(entry, Mapping) or not set(entry) <= known or not ({"field", "constant"} & set(entry)):
        raise InputError(f"{where}: {show(entry)}; expected a path, or field with values, or constant")
    if not isinstance(entry.get("field", ""), str):
        raise InputError(f"{where}, field: {show(entry['field'])}; expected a path")
    if not isinstance(entry.get("values", {}), Mapping):
        raise InputError(f"{where}, values: {show(entry['values'])}; expected word: value")
    return dict(entry)
