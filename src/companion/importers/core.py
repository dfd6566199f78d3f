"""From the records of any `Format` to requests and memories."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.importers.assemble import Item, Request, imported
from companion.importers.common import Imported, as_id, cell_text, counted, some
from companion.importers.fields import MEMORY_FIELDS, QUERY_FIELDS, Format, Plan, failed, flat, listed
from companion.importers.files import Row, rows
from companion.tables.problems import is_missing, show
from companion.tables.values import parse_boolean

_STATUS = {"status", "status_code", "status.code", "error", "error.type"}


def read(
    form: Format,
    paths: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    memories: str | PathLike[str] | None = None,
    mapping: str | PathLike[str] | Mapping[str, Any] | None = None,
) -> Imported:
    """Read logs of one format.

    Parameters
    ----------
    form : Format
    paths : path or several
        The log; ``.gz``, UTF-16, JSON, JSON Lines, CSV, TSV or Parquet.
    memories : path, optional
        The store's export, in the format's own shape or as a table. Without it the store is made of what the log
        returned, so that nothing can be missing from it, and says so (`store_is_from_log`).
    mapping : path or mapping, optional
        YAML or JSON with sections ``query``, ``memory``, ``labels`` (column: path, ``{field:, values:}`` or
        ``{constant:}``) and ``documents`` (a path); goes before what the format does by itself.

    Raises
    ------
    InputError
        A file or a record that cannot be read, with its place; no retrieval in it; an unknown section or column.
    """
    plan, tally = Plan.of(form, mapping), Counter[str]()
    files = [paths] if isinstance(paths, str | PathLike) else list(paths)
    records = [
        (row.where, flat(_object(row)))
        for file in files
        for row in form.prepare(rows(file, form.envelopes))
    ]  # fmt: skip
    kept = [(where, record) for where, record in records if form.retrieval(record)]
    if not kept:
        raise InputError(f"{files[0]}: no retrieval among {counted(len(records), 'record')} of {form.name}")
    found = [(*row, *_documents(row[1], plan, form, row[0])) for row in kept]
    stored = None
    if memories is not None:
        envelopes = (*form.envelopes, *form.documents, "memories", "results", "items", "data")
        stored = [(row.where, flat(_object(row))) for row in form.store(rows(memories, envelopes))]
    own = [document for _, _, documents, _ in found for document in documents or []]
    _choose_owners(form, plan, [record for _, record in kept], own + [document for _, document in stored or []])
    requests = [_request(plan, form, tally, *row) for row in found]
    store = None
    if stored is not None:
        store = [_item(plan, {**document, **_plain(document)}, {}, where, tally) for where, document in stored]
    _number_turns(requests, tally)
    _key_by_namespace(requests, store, tally)
    for request in requests:
        _once(request, tally)
    unused = _unused(plan, form, found)
    return imported(Path(files[0]), plan, requests, store, tally, unused, len(records) - len(kept))


def _object(row: Row) -> dict[str, Any]:
    if not isinstance(row.value, dict):
        raise InputError(f"{row.where}: {show(row.value)} is not a record; expected an object")
    value = dict(row.value)
    for name in ("request", "response"):  # what a wrapper logged beside each other
        inner = value.get(name)
        if isinstance(inner, dict):
            value = {**{k: v for k, v in value.items() if k != name}, **inner}
    return value


def _documents(record: dict[str, Any], plan: Plan, form: Format, where: str) -> tuple[list[dict[str, Any]] | None, str]:
    given, name = listed(record, plan.documents, where)
    if given is None:
        return None, name
    first = form.memory["memory_id"]
    first = first if isinstance(first, str) else first[0]
    found = []
    for place, item in enumerate(given):
        if isinstance(item, str | int | float) and not isinstance(item, bool):
            item = {first: item}
        if not isinstance(item, dict):
            raise InputError(f"{where}, {name}.{place}: {show(item)}; expected documents: ids or objects")
        found.append({key.removeprefix("document."): value for key, value in flat(item).items()})
    return found, name


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Give a store that is a table of ours the names that paths look for: they are looked up beside the paths."""
    return {f"table:{name}": document[name] for name in ("memory_id", *MEMORY_FIELDS) if name in document}


def _choose_owners(form: Format, plan: Plan, queries: list[dict[str, Any]], items: list[dict[str, Any]]) -> None:
    """Take the first pair of paths that both sides have, so that names of two kinds are never compared."""
    query, memory = plan.entries["query"], plan.entries["memory"]
    if "namespace" in query or "namespace" in memory:
        return

    def has(records: list[dict[str, Any]], path: str) -> bool:
        return any(not is_missing(record.get(path)) for record in records)

    both = [(q, m) for q, m in form.owners if has(queries, q) and has(items, m)]
    one = both or [pair for pair in form.owners if has(queries, pair[0])] or list(form.owners)
    if one:
        query["namespace"], memory["namespace"] = {"field": one[0][0]}, {"field": one[0][1]}


def _request(
    plan: Plan,
    form: Format,
    tally: Counter[str],
    where: str,
    record: dict[str, Any],
    documents: list[dict[str, Any]] | None,
    name: str,
) -> Request:
    def value(column: str) -> Any:
        return plan.value("query", column, record, record)

    identity, arm, answer = value("query_id"), value("arm"), value("answer")
    if is_missing(identity):
        identity = f"line-{re.sub('[^0-9]+', '-', where.rpartition(', ')[2]).strip('-') or 1}"
    query = {column: cell_text(value(column), column, where) for column in QUERY_FIELDS}
    if answer is not None:
        answer = cell_text(answer, "answer", where) if isinstance(answer, str) else _no_text(answer, where)
    broken = failed(record) or documents is None
    items = []
    for place, document in enumerate(documents or []):
        items.append(_item(plan, document, record, f"{where}, {name}[{place + 1}]", tally))
    return Request(
        {"query_id": as_id(identity, f"{where}, query_id", tally), **query},
        as_id(form.arm if is_missing(arm) else arm, f"{where}, arm"),
        where,
        [] if broken else items,
        broken,
        None if broken else answer,
        _shown(record, form, where, tally),
    )


def _no_text(answer: Any, where: str) -> str:
    raise InputError(f"{where}, answer: {show(answer)} is not text; expected text or null")


def _shown(record: Mapping[str, Any], form: Format, where: str, tally: Counter[str]) -> list[str] | None:
    given = record.get(form.exposed) if form.exposed else None
    if given is None:
        return None
    if not isinstance(given, list):
        raise InputError(f"{where}, exposed: {show(given)}; expected a list of ids, or null where it is not known")
    ids = (item.get("id", item.get("memory_id")) if isinstance(item, dict) else item for item in given)
    return [as_id(one, f"{where}, exposed", tally) for one in ids]


def _item(plan: Plan, document: Mapping[str, Any], record: Mapping[str, Any], where: str, tally: Counter[str]) -> Item:
    def value(column: str) -> Any:
        found = plan.value("memory", column, document, record)
        return document.get(f"table:{column}") if is_missing(found) else found

    identity = value("memory_id")
    row = {column: cell_text(value(column), column, where) for column in MEMORY_FIELDS}
    if is_missing(identity):
        if not row["text"]:
            raise InputError(f"{where}: neither an id nor text; expected one of them")
        identity = "content-" + hashlib.sha256(row["text"].encode()).hexdigest()[:16]
        tally["hashed"] += 1
    labels = {
        axis: _truth(plan.value("labels", axis, document, record), f"{where}, {axis}")
        for axis in plan.entries["labels"]
    }
    shown = _truth(value("exposed"), f"{where}, exposed")
    return Item({"memory_id": as_id(identity, where, tally), **row}, _score(value("score"), where), shown, labels)


def _score(value: Any, where: str) -> float | None:
    if is_missing(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = np.nan
    if isinstance(value, bool) or not np.isfinite(number):
        raise InputError(f"{where}, score: {show(value)}; expected a finite number")
    return number


def _truth(value: Any, where: str) -> Any:
    value = {"1.0": 1, "0.0": 0}.get(value, value) if isinstance(value, str) else value
    values, bad = parse_boolean(pd.Series([value], dtype=object))
    if bad.any():
        raise InputError(f"{where}: {show(value)}; expected true, false or nothing (give the words under values)")
    return values.iloc[0]


def _number_turns(requests: list[Request], tally: Counter[str]) -> None:
    """Give the turns of a conversation numbers: one id stands for one query."""
    turns: dict[str, list[tuple[dict[str, Any], set[str], list[Request]]]] = defaultdict(list)
    for request in requests:
        query = {name: value for name, value in request.query.items() if name != "time"}
        own = turns[query["query_id"]]
        same = [turn for turn in own if turn[0] == query and request.arm not in turn[1]]
        if not same:
            same = [(query, set(), [])]
            own += same
        same[-1][1].add(request.arm)
        same[-1][2].append(request)
    for name, own in turns.items():
        if len(own) > 1:
            tally["conversations"] += 1
            for number, (_, _, members) in enumerate(own, start=1):
                for request in members:
                    request.query["query_id"] = f"{name}#{number}"


def _key_by_namespace(requests: list[Request], store: list[Item] | None, tally: Counter[str]) -> None:
    """Where one id belongs to several namespaces, make it one id for each: tenants count by themselves."""
    logged = [item for request in requests for item in request.items]
    owners: dict[str, set[str | None]] = defaultdict(set)
    for item in logged if store is None else store:
        owners[item.key[0]].add(item.key[1])
    several = {name for name, spaces in owners.items() if len(spaces - {None}) > 1}
    for request in requests:
        if request.shown is not None and several & set(request.shown):
            own = {item.key[0]: item.key[1] for item in request.items}
            request.shown = [f"{own.get(one)}/{one}" if one in several else one for one in request.shown]
    for item in [*logged, *(store or [])]:
        name, space = item.key
        if name in several:
            if space is None:
                spaces = some(sorted(map(str, owners[name] - {None})), 3)
                raise InputError(
                    f"memory id {show(name)} belongs to several namespaces ({spaces}) and stands once without one; "
                    "expected a namespace wherever it stands: map memory.namespace, or give --memories"
                )
            item.row["memory_id"] = f"{space}/{name}"
            tally[f"keyed {name}"] += 1


def _once(request: Request, tally: Counter[str]) -> None:
    """Keep a memory that stands twice in a route, as chunks of one document do, at its best rank."""
    kept: dict[str, Item] = {}
    for item in request.items:
        name = item.row["memory_id"]
        if name in kept:
            tally["repeats"] += 1
            kept[name].exposed = True if item.exposed is True else kept[name].exposed
        else:
            kept[name] = item
    request.items = list(kept.values())


def _unused(plan: Plan, form: Format, found: list[Any]) -> dict[str, int]:
    """Count the fields that nothing was read from."""
    count: Counter[str] = Counter()
    for _, record, documents, name in found:
        here = name + "." if name else "\0"
        names = {key for key in record if key != name and not key.startswith(here)}
        count.update(
            {re.sub(r"\.\d+(?=\.|$)", ".N", key) for key in names - plan.used - _STATUS - {form.exposed, *form.reads}}
        )
        fields = Counter(f"document: {key}" for document in documents or [] for key in document)
        count.update({key: number for key, number in fields.items() if key not in plan.used})
    return dict(sorted(count.items(), key=lambda pair: (-pair[1], pair[0])))
