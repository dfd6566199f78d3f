"""MemOps: memories that are updated, forgotten and reflected on (Protocol section 4).

The data are not part of this project, and nothing here has been run on them: the loader follows the release's own
description of its format, and `self_check` sets what it loaded beside the published counts for whoever has them.

Every turn of a conversation is one memory, and a profile is a namespace. Each instance comes twice, once as the
evidence conversation alone and once with distractors around it; both belong to the pool, as in the paper. The release
gives no times, so order is release order and every memory of a split is visible to every query of it.

How labels come about:

*State.* Confirmed operations are replayed per target in release order. An update supersedes what earlier operations on
the target rest on, a forget makes it forgotten; what an operation itself rests on is current. A turn that only
tentative or retracted operations cite has an unknown state, and so has one that is current for one target and
superseded for another. A turn no operation cites holds no managed memory: nothing supersedes or forgets it, so it is
current and, like every unlisted pair, has policy and lifecycle 1 by default.

*Policy by purpose.* What was forgotten is closed to questions about its content and open to questions about the
operation itself. Where the wording of a question's category does not tell its purpose, policy is unresolved.

*Anchors.* The turns of ``gold_provenance`` are usable, because the release names them as what answers the question;
only the rule for forgotten content comes before that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion import logic
from companion.corpora import _read
from companion.corpora._counts import compare
from companion.corpora.base import Corpus, CorpusSpec, register
from companion.corpora.upstreams import UPSTREAMS, is_whole, origin
from companion.errors import InputError

UPSTREAM = UPSTREAMS["memops"]
POPULATION = "memops"

SETTINGS = {
    "evidence": "generated_result/2-evidence_conversation",
    "distractors": "generated_result/4-inject_evidence_with_distractors",
}
"""The two settings of every instance, and their folders."""

FAMILIES = ("Remember", "Forget", "Update", "Reflect", "TrajectoryOps")
VALIDITIES = ("confirmed", "tentative", "retracted")
DEVELOPMENT_SHARE = 5
"""One profile in five belongs to the development split."""

PUBLISHED = {
    "profiles": 100,
    "instances": 403,
    "Remember instances": 68,
    "Forget instances": 80,
    "Update instances": 77,
    "Reflect instances": 96,
    "TrajectoryOps instances": 82,
    "operations": 2_558,
    "probes, evidence": 2_006,
    "probes, distractors": 2_006,
    "queries": 4_012,
    # The paper's split is by a hash of its own: ours agrees in the number of profiles, not in which they are.
    "evaluation profiles": 80,
    "evaluation queries": 3_244,
    "evaluation memories": 175_144,
}

_HISTORY = re.compile(r"histor|previous|prior|past|former|earlier|trajector|evolution|timeline|chronolog", re.I)
_OPERATION = re.compile(r"operation|audit|process|provenance|request|trace", re.I)
_CONTENT = re.compile(r"content|value|fact|recall|state|current|knowledge|leak|histor|direct", re.I)

Wording = Callable[[str, str], str]
"""From a question's ``evaluation_type`` and ``evaluation_category`` to an intent or a purpose."""


def intent_of(evaluation_type: str, evaluation_category: str) -> str:
    """Read a question's intent off the wording of its type and category."""
    return "history" if _HISTORY.search(f"{evaluation_type} {evaluation_category}") else "current"


def purpose_of(evaluation_type: str, evaluation_category: str) -> str:
    """Read a question's purpose off the wording of its type and category."""
    wording = f"{evaluation_type} {evaluation_category}"
    if _OPERATION.search(wording):
        return "operation"
    return "content" if _CONTENT.search(wording) else "unknown"


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


@dataclass(frozen=True)
class Operation:
    """One memory operation and the evidence it rests on."""

    operation_id: str
    kind: str
    validity: str
    target: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Probe:
    """One question with the evidence that answers it."""

    query_id: str
    pair_id: str
    text: str
    evaluation_setting: str
    evaluation_type: str
    evaluation_category: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Instance:
    """One released file."""

    path: Path
    name: str
    profile: str
    family: str
    setting: str
    turns: tuple[Turn, ...]
    operations: tuple[Operation, ...]
    probes: tuple[Probe, ...]


class Locator:
    """Finds the turns that spans mean; the words decide, and what is certain otherwise settles repetitions."""

    def __init__(self, turns: Sequence[Turn], twin: Mapping[Span, str] | None = None) -> None:
        self.turns = turns
        self.texts = [_squeeze(turn.text) for turn in turns]
        self.twin = twin
        self.resolved: dict[Span, str] = {}

    def find(self, span: Span) -> list[Turn]:
        """List the turns a span can mean."""
        quote = _squeeze(span.quote)
        found = [at for at, text in enumerate(self.texts) if quote in text]
        if len(found) > 1 and self.twin is None:
            stated = [
                at for at in found if (self.turns[at].segment, self.turns[at].position) == (span.segment, span.turn)
            ]
            found = stated or found
        elif len(found) > 1:
            found = [at for at in found if self.turns[at].evidence_segment == span.segment] or found
            if len(found) > 1:
                found = [at for at in found if self.texts[at] == (self.twin or {}).get(span)] or found
        if len(found) == 1:
            self.resolved[span] = self.texts[found[0]]
        return [self.turns[at] for at in found]


def replay(operations: Iterable[tuple[str, str, str, Sequence[str]]]) -> dict[str, str]:
    """Replay operations in release order and tell the state each cited turn ends in."""
    by_target: dict[str, dict[str, str]] = {}
    unconfirmed: set[str] = set()
    for kind, validity, target, memories in operations:
        if validity != "confirmed":
            unconfirmed.update(memories)
            continue
        states = by_target.setdefault(target, {})
        # An update or a forget may cite what it acts on beside its own words; only turns not cited before are its own.
        # An update that cites nothing new corrects a turn within that turn, which then holds the current value too.
        fresh = [memory for memory in memories if memory not in states]
        if kind == "update" and not fresh:
            fresh = [memory for memory in memories if states[memory] != "forgotten"]
        if kind in ("update", "forget"):
            outcome = "superseded" if kind == "update" else "forgotten"
            # What was forgotten stays forgotten: a later update does not make it merely outdated.
            states |= {memory: outcome for memory, state in states.items() if state != "forgotten"}
        states |= {memory: "current" for memory in fresh}
    merged: dict[str, set[str]] = {}
    for states in by_target.values():
        for memory, state in states.items():
            merged.setdefault(memory, set()).add(state)
    final = {memory: _merge(states) for memory, states in merged.items()}
    return {**dict.fromkeys(unconfirmed, "unknown"), **final}


def _merge(states: set[str]) -> str:
    if "forgotten" in states:
        # Whoever sees the turn sees the forgotten part, whatever else it holds.
        return "forgotten"
    return next(iter(states)) if len(states) == 1 else "unknown"


def development_profiles(profiles: Iterable[str]) -> set[str]:
    """Choose the development profiles: the first fifth by SHA-256 of their names."""
    ordered = sorted(set(profiles), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return set(ordered[: len(ordered) // DEVELOPMENT_SHARE])


# Reading files


def read_instances(root: Path) -> list[Instance]:
    """Read every instance in both settings."""
    found = {setting: sorted((root / folder).glob("*.json")) for setting, folder in SETTINGS.items()}
    for setting, paths in found.items():
        if not paths:
            raise InputError(f"{root / SETTINGS[setting]}: no .json files; run `companion fetch memops`")
    names = {setting: {path.stem for path in paths} for setting, paths in found.items()}
    for setting, other in (("evidence", "distractors"), ("distractors", "evidence")):
        lone = sorted(names[setting] - names[other])
        if lone:
            twin = root / SETTINGS[other] / f"{lone[0]}.json"
            more = f" (and {len(lone) - 1} more)" if len(lone) > 1 else ""
            raise InputError(f"{twin}: no such file{more}; expected every instance in both settings")
    return [_instance(path, setting) for setting, paths in found.items() for path in paths]


def _instance(path: Path, setting: str) -> Instance:
    record = _read.read_json(path)
    where = str(path)
    if not isinstance(record, dict):
        raise InputError(f"{where}: found {type(record).__name__}; expected a JSON object")
    profile, separator, _ = path.stem.partition("_")
    if not separator or not profile:
        raise InputError(f"{where}: expected a name of the form <profile>_<operation>.json")
    base = f"{setting}/{path.stem}"
    return Instance(
        path=path,
        name=path.stem,
        profile=profile,
        family=_family(_read.field(record, "operation_type", str, where), where),
        setting=setting,
        turns=tuple(_turns(_read.field(record, "conversations", list, where), base, where)),
        operations=tuple(
            _operation(entry, f"{where}, operation {number}")
            for number, entry in enumerate(_read.field(record, "operations", list, where), start=1)
        ),
        probes=tuple(_probes(_read.field(record, "answer", list, where), base, where)),
    )


def _family(operation_type: str, where: str) -> str:
    plain = re.sub(r"[^a-z]", "", operation_type.lower())
    for family in FAMILIES:
        if plain in (family.lower(), family.lower().removesuffix("ops")):
            return family
    raise InputError(f"{where}: operation_type is '{operation_type}'; expected one of {', '.join(FAMILIES)}")


def _turns(conversations: list[Any], base: str, where: str) -> Iterable[Turn]:
    seen: set[int] = set()
    for number, segment in enumerate(conversations, start=1):
        place = f"{where}, conversation {number}"
        _require_object(segment, place)
        index = _read.field(segment, "segment_index", int, place)
        if index in seen:
            raise InputError(f"{place}: segment_index {index} appears twice; expected each one once")
        seen.add(index)
        inserted = segment.get("evidence_segment_index") if segment.get("evidence_inserted", True) else None
        for position, entry in enumerate(_read.field(segment, "dialogue", list, place), start=1):
            _require_object(entry, f"{place}, turn {position}")
            text = entry.get("content")
            if not isinstance(text, str):
                raise InputError(f"{place}, turn {position}: field 'content' is {text!r}; expected text")
            yield Turn(
                memory_id=f"{base}/{index:04d}:{position:03d}",
                segment=index,
                position=position,
                role=_read.field(entry, "role", str, f"{place}, turn {position}"),
                text=text,
                evidence_segment=inserted if isinstance(inserted, int) else None,
            )


def _operation(entry: Any, where: str) -> Operation:
    _require_object(entry, where)
    name = _read.field(entry, "operation_id", str, where)
    where = f"{where} (operation_id '{name}')"
    kind = _read.field(entry, "type", str, where).lower()
    target = _read.field(entry, "target", dict, where)
    return Operation(
        operation_id=name,
        kind=_read.one_of(kind, ("remember", "update", "forget", "reflect"), "type", where),
        validity=_read.one_of(_read.field(entry, "validity", str, where).lower(), VALIDITIES, "validity", where),
        target=_read.field(target, "target_id", str, where),
        spans=_spans(entry.get("evidence_spans"), "evidence_spans", where),
    )


def _probes(answers: list[Any], base: str, where: str) -> Iterable[Probe]:
    seen: set[str] = set()
    for number, entry in enumerate(answers, start=1):
        place = f"{where}, answer {number}"
        _require_object(entry, place)
        pair = _read.field(entry, "question_pair_id", str, place)
        place = f"{place} (question_pair_id '{pair}')"
        setting = str(entry.get("evaluation_setting") or "")
        # One pair id may stand for the same question under several evaluation settings.
        name = f"{base}/{pair}" if f"{base}/{pair}" not in seen else f"{base}/{pair}/{setting}"
        if name in seen:
            raise InputError(f"{place}: appears twice with evaluation_setting '{setting}'; expected each one once")
        seen.add(name)
        yield Probe(
            query_id=name,
            pair_id=pair,
            text=_read.field(entry, "question", str, place),
            evaluation_setting=setting,
            evaluation_type=str(entry.get("evaluation_type") or ""),
            evaluation_category=str(entry.get("evaluation_category") or ""),
            spans=_spans(entry.get("gold_provenance"), "gold_provenance", place),
        )


def _spans(entries: Any, name: str, where: str) -> tuple[Span, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise InputError(f"{where}: field '{name}' is {type(entries).__name__}; expected a list of spans")
    spans = []
    for number, entry in enumerate(entries, start=1):
        place = f"{where}, {name} {number}"
        _require_object(entry, place)
        turn = _read.field(entry, "turn_index", int, place)
        if turn < 1:
            raise InputError(f"{place}: turn_index is {turn}; expected a number from 1 up")
        segment = _read.field(entry, "segment_index", int, place)
        spans.append(Span(segment=segment, turn=turn, quote=_read.field(entry, "quote", str, place)))
    return tuple(spans)


def _require_object(entry: Any, where: str) -> None:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: found {type(entry).__name__}; expected an object")


def _squeeze(text: str) -> str:
    return " ".join(text.split()).casefold()


# Tables


@dataclass
class _Mapping:
    """What the spans of all files were found to mean, and what could not be told."""

    states: dict[str, str] = field(default_factory=dict)
    gold: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, instance: Instance, twin: Mapping[Span, str] | None) -> dict[Span, str]:
        """Map the spans of one file; returns the whole texts of the turns found."""
        locator = Locator(instance.turns, twin)
        operations = [
            (
                one.kind,
                one.validity,
                one.target,
                self._place(instance, locator, one.spans, "operation_id", one.operation_id),
            )
            for one in instance.operations
        ]
        self.states |= replay(operations)
        for probe in instance.probes:
            memories = self._place(instance, locator, probe.spans, "question_pair_id", probe.pair_id)
            self.gold += [(probe.query_id, memory) for memory in dict.fromkeys(memories)]
        return locator.resolved

    def _place(self, instance: Instance, locator: Locator, spans: Sequence[Span], what: str, name: str) -> list[str]:
        placed = []
        for span in spans:
            turns = locator.find(span)
            if len(turns) == 1:
                placed.append(turns[0].memory_id)
            else:
                self.problems.append(_mapping_problem(instance, f"{what} '{name}'", span, turns))
        return placed


def _map_spans(instances: Sequence[Instance]) -> _Mapping:
    """Map every span to its turn, or refuse; evidence files come first, since they settle what their twins repeat."""
    mapping = _Mapping()
    texts: dict[str, dict[Span, str]] = {}
    for instance in instances:
        found = mapping.add(instance, texts.get(instance.name) if instance.setting == "distractors" else None)
        if instance.setting == "evidence":
            texts[instance.name] = found
    if mapping.problems:
        more = f" (and {len(mapping.problems) - 1} more such quotes)" if len(mapping.problems) > 1 else ""
        raise InputError(mapping.problems[0] + more)
    return mapping


def _mapping_problem(instance: Instance, owner: str, span: Span, turns: Sequence[Turn]) -> str:
    stated = f"stated at segment {span.segment}, turn {span.turn}"
    if not turns:
        return f"{instance.path}: {owner}: no turn holds the quote {span.quote!r} ({stated})"
    places = "; ".join(f"segment {turn.segment}, turn {turn.position}" for turn in turns[:4])
    return (
        f"{instance.path}: {owner}: the quote {span.quote!r} ({stated}) is ambiguous: "
        f"{len(turns)} turns hold it ({places}{'; …' if len(turns) > 4 else ''}); expected one"
    )


def _memories(instances: Sequence[Instance], states: dict[str, str], development: set[str]) -> pd.DataFrame:
    rows = [(turn, instance) for instance in instances for turn in instance.turns]
    profile = pd.Series([instance.profile for _, instance in rows], dtype="str")
    ids = pd.Series([turn.memory_id for turn, _ in rows], dtype="str")
    return pd.DataFrame(
        {
            "memory_id": ids,
            "namespace": profile,
            "group": profile,
            "source": UPSTREAM.name,
            "order": np.arange(1, len(rows) + 1),
            "time": pd.Series([None] * len(rows), dtype="str"),
            "state": ids.map(states).fillna("current").astype("str"),
            "text": pd.Series([turn.text for turn, _ in rows], dtype="str"),
            "split": _split(profile, development),
            "role": pd.Series([turn.role for turn, _ in rows], dtype="str"),
            "setting": pd.Series([instance.setting for _, instance in rows], dtype="str"),
            "instance": pd.Series([instance.name for _, instance in rows], dtype="str"),
        }
    )


def _queries(instances: Sequence[Instance], development: set[str], intents: Wording, purposes: Wording) -> pd.DataFrame:
    rows = [(probe, instance) for instance in instances for probe in instance.probes]
    profile = pd.Series([instance.profile for _, instance in rows], dtype="str")
    wordings = [(probe.evaluation_type, probe.evaluation_category) for probe, _ in rows]
    intent = pd.Series([intents(*wording) for wording in wordings], dtype="str")
    return pd.DataFrame(
        {
            "query_id": pd.Series([probe.query_id for probe, _ in rows], dtype="str"),
            "namespace": profile,
            "group": profile,
            "source": UPSTREAM.name,
            "split": _split(profile, development),
            "stratum": UPSTREAM.name + ":" + intent,
            "intent": intent,
            "principal": profile,
            "time": pd.Series([None] * len(rows), dtype="str"),
            "text": pd.Series([probe.text for probe, _ in rows], dtype="str"),
            "purpose": pd.Series([purposes(*wording) for wording in wordings], dtype="str"),
            "setting": pd.Series([instance.setting for _, instance in rows], dtype="str"),
            "instance": pd.Series([instance.name for _, instance in rows], dtype="str"),
            "family": pd.Series([instance.family for _, instance in rows], dtype="str"),
            "evaluation_setting": pd.Series([probe.evaluation_setting for probe, _ in rows], dtype="str"),
            "evaluation_type": pd.Series([wording[0] for wording in wordings], dtype="str"),
            "evaluation_category": pd.Series([wording[1] for wording in wordings], dtype="str"),
        }
    )


def _split(profile: pd.Series, development: set[str]) -> pd.Series:
    return profile.isin(development).map({True: "development", False: "evaluation"}).astype("str")


def _labels(memories: pd.DataFrame, queries: pd.DataFrame, gold: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """List the pairs that differ from the defaults: gold provenance, and what is no longer simply current."""
    changed = memories.loc[memories["state"].ne("current"), ["memory_id", "namespace"]]
    touched = queries[["query_id", "namespace"]].merge(changed, on="namespace")[["query_id", "memory_id"]]
    stated = pd.DataFrame(list(gold), columns=["query_id", "memory_id"], dtype="str").assign(gold=True)
    pairs = stated.merge(touched, on=["query_id", "memory_id"], how="outer")
    pairs = pairs.merge(queries[["query_id", "intent", "purpose"]], on="query_id", how="left")
    pairs = pairs.merge(memories[["memory_id", "state"]], on="memory_id", how="left")
    is_gold = pairs["gold"].eq(True).fillna(False).to_numpy(dtype=bool)
    forgotten = pairs["state"].eq("forgotten").to_numpy(dtype=bool)
    operation = pairs["purpose"].eq("operation").to_numpy(dtype=bool)
    undecided = ~operation & pairs["purpose"].ne("content").to_numpy(dtype=bool)
    # Policy by purpose: only what was forgotten is ever closed.
    policy = pd.arrays.BooleanArray(~forgotten | operation, forgotten & undecided)
    lifecycle = logic.lifecycle(pairs["state"], pairs["intent"]).array.copy()
    lifecycle[is_gold & (~forgotten | operation)] = True
    lifecycle[is_gold & forgotten & undecided] = pd.NA
    return pd.DataFrame(
        {
            "query_id": pairs["query_id"].astype("str"),
            "memory_id": pairs["memory_id"].astype("str"),
            "relevant": pd.arrays.BooleanArray(is_gold, ~is_gold),
            "scope": pd.array(np.ones(len(pairs), dtype=bool), dtype="boolean"),
            "policy": policy,
            "lifecycle": lifecycle,
            "anchor_id": pd.Series([None] * len(pairs), dtype="str"),
        }
    )


def _counts(
    instances: Sequence[Instance], memories: pd.DataFrame, queries: pd.DataFrame, labels: pd.DataFrame
) -> dict[str, int]:
    single = [instance for instance in instances if instance.setting == "evidence"]
    per_setting = queries["setting"].value_counts()
    evaluation = queries["split"].eq("evaluation")
    anchored = labels[logic.usable(*(labels[axis] for axis in ("relevant", *logic.AXES))).eq(True).fillna(False)]
    gold = int(labels["relevant"].eq(True).sum())
    return {
        "profiles": len({instance.profile for instance in instances}),
        "instances": len(single),
        **{f"{family} instances": sum(one.family == family for one in single) for family in FAMILIES},
        "operations": sum(len(instance.operations) for instance in single),
        **{f"probes, {setting}": int(per_setting.get(setting, 0)) for setting in SETTINGS},
        "queries": len(queries),
        "evaluation profiles": int(queries.loc[evaluation, "namespace"].nunique()),
        "evaluation queries": int(evaluation.sum()),
        "evaluation memories": int(memories["split"].eq("evaluation").sum()),
        "queries that recall can evaluate": int(anchored["query_id"].nunique()),
        "gold turns": gold,
        "gold turns that are no anchor (forgotten content)": gold - len(anchored),
        "superseded turns": int(memories["state"].eq("superseded").sum()),
        "forgotten turns": int(memories["state"].eq("forgotten").sum()),
        "turns of unknown state": int(memories["state"].eq("unknown").sum()),
        "history queries": int(queries["intent"].eq("history").sum()),
        "queries about the operation": int(queries["purpose"].eq("operation").sum()),
        "queries of unknown purpose": int(queries["purpose"].eq("unknown").sum()),
    }


def load(root: Path, intents: Wording = intent_of, purposes: Wording = purpose_of) -> Corpus:
    """Load MemOps as a corpus."""
    instances = read_instances(root)
    mapping = _map_spans(instances)
    development = development_profiles(instance.profile for instance in instances)
    memories = _memories(instances, mapping.states, development)
    queries = _queries(instances, development, intents, purposes)
    labels = _labels(memories, queries, mapping.gold)
    return Corpus(
        name=UPSTREAM.name,
        population=POPULATION,
        memories=memories,
        queries=queries,
        labels=labels,
        defaults={"policy": True, "lifecycle": True},
        licence=UPSTREAM.licence,
        origin=origin(root, UPSTREAM.name),
        notes=_counts(instances, memories, queries, labels),
    )


def compare_counts(counts: dict[str, int]) -> pd.DataFrame:
    """Set what was loaded beside the published counts."""
    return compare(counts, PUBLISHED)


def vocabulary(queries: pd.DataFrame) -> pd.DataFrame:
    """List how the wording of question types and categories was read."""
    keys = ["evaluation_type", "evaluation_category", "intent", "purpose"]
    table = queries.groupby(keys, dropna=False).size().rename("queries").reset_index()
    return table.sort_values(["queries", *keys], ascending=[False, *[True] * len(keys)], ignore_index=True)


SPEC = register(
    CorpusSpec(
        name=UPSTREAM.name,
        title=UPSTREAM.title,
        population=POPULATION,
        licence=UPSTREAM.licence,
        url=UPSTREAM.url,
        revision=UPSTREAM.revision,
        load=load,
        present=lambda root: is_whole(root, UPSTREAM.name),
        tree=UPSTREAM.tree,
        paths=UPSTREAM.paths,
    )
)
