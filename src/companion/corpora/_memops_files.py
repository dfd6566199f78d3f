"""The files of a MemOps release: one instance each, as its documentation describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from companion.corpora import _read
from companion.corpora.upstreams import UPSTREAMS
from companion.errors import InputError

SETTINGS = dict(zip(("evidence", "distractors"), UPSTREAMS["memops"].folders, strict=True))
"""The two settings of every instance, and their folders."""

FAMILIES = ("Remember", "Forget", "Update", "Reflect", "TrajectoryOps")
KINDS = ("remember", "update", "forget", "reflect")
VALIDITIES = ("confirmed", "tentative", "retracted")


@dataclass(frozen=True)
class Span:
    """Where a piece of evidence is said to be: a segment, a one-based turn, and the words themselves."""

    segment: int
    turn: int
    quote: str


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation, with its place and, in injected files, the evidence segment it came from."""

    memory_id: str
    segment: int
    position: int
    role: str
    text: str
    evidence_segment: int | None


@dataclass
class Instance:
    """One released file: its turns; its operations (name, kind, validity, target, spans); its questions as columns."""

    path: Path
    profile: str
    setting: str
    family: str
    turns: list[Turn]
    operations: list[tuple[str, str, str, str, list[Span]]]
    probes: list[tuple[dict[str, str], list[Span]]]


def read_instances(root: Path) -> list[Instance]:
    """Read every instance in both settings."""
    found = {setting: sorted((root / folder).glob("*.json")) for setting, folder in SETTINGS.items()}
    for setting, other in (("evidence", "distractors"), ("distractors", "evidence")):
        if not found[setting]:
            raise InputError(f"{root / SETTINGS[setting]}: no .json files; run `companion fetch memops`")
        lone = sorted({path.stem for path in found[setting]} - {path.stem for path in found[other]})
        if lone:
            more = f" (and {len(lone) - 1} more)" if len(lone) > 1 else ""
            twin = root / SETTINGS[other] / f"{lone[0]}.json"
            raise InputError(f"{twin}: no such file{more}; expected every instance in both settings")
    return [_instance(path, setting) for setting, paths in found.items() for path in paths]


def _instance(path: Path, setting: str) -> Instance:
    record, where, base = _read.read_json(path), str(path), f"{setting}/{path.stem}"
    profile, separator, _ = path.stem.partition("_")
    if not separator or not profile:
        raise InputError(f"{where}: expected a name of the form <profile>_<operation>.json")
    stated = _read.field(record, "operation_type", str, where)
    plain = re.sub(r"[^a-z]", "", stated.lower())
    family = next((name for name in FAMILIES if plain in (name.lower(), name.lower().removesuffix("ops"))), None)
    if family is None:
        raise InputError(f"{where}: operation_type is '{stated}'; expected one of {', '.join(FAMILIES)}")
    operations = [_operation(entry, place) for place, entry in _entries(record, "operations", where, "operation")]
    return Instance(
        path,
        profile,
        setting,
        family,
        list(_turns(record, base, where)),
        operations,
        list(_probes(record, base, where)),
    )


def _entries(record: dict[str, Any], name: str, where: str, one: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, entry in enumerate(_read.field(record, name, list, where), start=1):
        place = f"{where}, {one} {number}"
        yield place, _read.an_object(entry, place)


def _turns(record: dict[str, Any], base: str, where: str) -> Iterator[Turn]:
    seen: set[str] = set()
    for place, segment in _entries(record, "conversations", where, "conversation"):
        index = _read.field(segment, "segment_index", int, place)
        if str(index) in seen:
            raise InputError(f"{place}: segment_index {index} appears twice; expected each one once")
        seen.add(str(index))
        inserted = segment.get("evidence_segment_index") if segment.get("evidence_inserted", True) else None
        for position, (spot, entry) in enumerate(_entries(segment, "dialogue", place, "turn"), start=1):
            text = entry.get("content")
            if not isinstance(text, str):
                raise InputError(f"{spot}: field 'content' is {text!r}; expected text")
            role = _read.field(entry, "role", str, spot)
            source = inserted if isinstance(inserted, int) else None
            yield Turn(f"{base}/{index:04d}:{position:03d}", index, position, role, text, source)


def _operation(entry: dict[str, Any], where: str) -> tuple[str, str, str, str, list[Span]]:
    name = _read.field(entry, "operation_id", str, where)
    where = f"{where} (operation_id '{name}')"
    kind, validity = (_read.field(entry, column, str, where).lower() for column in ("type", "validity"))
    target = _read.field(_read.field(entry, "target", dict, where), "target_id", str, where)
    _read.one_of(kind, KINDS, "type", where)
    _read.one_of(validity, VALIDITIES, "validity", where)
    return name, kind, validity, target, _spans(entry, "evidence_spans", where)


def _probes(record: dict[str, Any], base: str, where: str) -> Iterator[tuple[dict[str, str], list[Span]]]:
    seen: set[str] = set()
    for place, entry in _entries(record, "answer", where, "answer"):
        pair = _read.field(entry, "question_pair_id", str, place)
        place = f"{place} (question_pair_id '{pair}')"
        worded = {name: str(entry.get(f"evaluation_{name}") or "") for name in ("setting", "type", "category")}
        # One pair id may stand for the same question under several evaluation settings.
        name = f"{base}/{pair}" if f"{base}/{pair}" not in seen else f"{base}/{pair}/{worded['setting']}"
        if name in seen:
            raise InputError(f"{place}: appears twice with evaluation_setting '{worded['setting']}'; expected once")
        seen.add(name)
        columns = {"query_id": name, "pair": pair, "text": _read.field(entry, "question", str, place)}
        columns |= {f"evaluation_{key}": value for key, value in worded.items()}
        yield columns, _spans(entry, "gold_provenance", place)


def _spans(record: dict[str, Any], name: str, where: str) -> list[Span]:
    if record.get(name) is None:
        return []
    spans = []
    for place, entry in _entries(record, name, where, name):
        turn = _read.field(entry, "turn_index", int, place)
        if turn < 1:
            raise InputError(f"{place}: turn_index is {turn}; expected a number from 1 up")
        segment = _read.field(entry, "segment_index", int, place)
        spans.append(Span(segment, turn, _read.field(entry, "quote", str, place)))
    return spans
