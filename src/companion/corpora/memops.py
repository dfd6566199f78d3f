"""MemOps: memories that are updated, forgotten and reflected on.

The data are not part of this project, and nothing here has been run on them: the loader follows the release's own
description of its format, and ``fetch memops --check`` sets what it loaded beside the published counts for whoever has
them.

Every turn of a conversation is one memory, and a profile is a namespace. Each instance comes twice, once as the
evidence conversation alone and once with distractors around it; both belong to the pool, as in the paper. The release
gives no times, so order is release order and every memory of a split is visible to every query of it.

*State.* Confirmed operations are replayed per target in release order. An update supersedes what earlier operations on
the target rest on, a forget makes it forgotten; what an operation itself rests on is current. A turn that only
tentative or retracted operations cite has an unknown state, and so has one that is current for one target and
superseded for another. A turn no operation cites holds no managed memory: it is current and, like every unlisted pair,
has policy and lifecycle 1.

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

import numpy as np
import pandas as pd

from companion import logic
from companion.corpora._memops_files import FAMILIES, SETTINGS, Instance, Span, Turn, read_instances
from companion.corpora.base import Corpus, CorpusSpec, register
from companion.corpora.upstreams import UPSTREAMS, is_whole, origin
from companion.errors import InputError

_UPSTREAM = UPSTREAMS["memops"]
PUBLISHED = {
    "profiles": 100,
    "instances": 403,
    **{f"{family} instances": n for family, n in zip(FAMILIES, (68, 80, 77, 96, 82), strict=True)},
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


def replay(operations: Iterable[tuple[str, str, str, Sequence[str]]]) -> dict[str, str]:
    """Replay operations (kind, validity, target, memories) in order; tell the state each cited turn ends in."""
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
        states |= dict.fromkeys(fresh, "current")
    merged: dict[str, set[str]] = {}
    for states in by_target.values():
        for memory, state in states.items():
            merged.setdefault(memory, set()).add(state)
    return {**dict.fromkeys(unconfirmed, "unknown"), **{memory: _merge(states) for memory, states in merged.items()}}


def _merge(states: set[str]) -> str:
    if "forgotten" in states:  # whoever sees the turn sees the forgotten part, whatever else it holds
        return "forgotten"
    return next(iter(states)) if len(states) == 1 else "unknown"


def development_profiles(profiles: Iterable[str]) -> set[str]:
    """Choose the development profiles: the first fifth by SHA-256 of their names."""
    ordered = sorted(set(profiles), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return set(ordered[: len(ordered) // 5])


# Quotes decide which turn is meant


@dataclass
class _Mapping:
    """What the spans of all files were found to mean, and what could not be told."""

    states: dict[str, str] = field(default_factory=dict)
    gold: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, one: Instance, twin: Mapping[Span, str] | None) -> dict[Span, str]:
        """Map the spans of one file; returns the whole texts of the turns found."""
        texts = [_squeeze(turn.text) for turn in one.turns]
        resolved: dict[Span, str] = {}

        def place(spans: Sequence[Span], owner: str) -> list[str]:
            placed = []
            for span in spans:
                found = _meant(span, one.turns, texts, twin)
                if len(found) == 1:
                    resolved[span] = texts[found[0]]
                    placed.append(one.turns[found[0]].memory_id)
                else:
                    self.problems.append(_problem(one, owner, span, [one.turns[at] for at in found]))
            return placed

        self.states |= replay(
            [(kind, valid, target, place(spans, f"operation_id '{name}'"))
             for name, kind, valid, target, spans in one.operations]
        )  # fmt: skip
        for columns, spans in one.probes:
            memories = place(spans, f"question_pair_id '{columns['pair']}'")
            self.gold += [(columns["query_id"], memory) for memory in dict.fromkeys(memories)]
        return resolved


def _meant(span: Span, turns: Sequence[Turn], texts: Sequence[str], twin: Mapping[Span, str] | None) -> list[int]:
    """List the turns a span can mean; the words decide, and what is certain otherwise settles repetitions."""
    quote = _squeeze(span.quote)
    found = [at for at, text in enumerate(texts) if quote in text]
    if len(found) > 1 and twin is None:
        stated = (span.segment, span.turn)
        return [at for at in found if (turns[at].segment, turns[at].position) == stated] or found
    if len(found) > 1:
        found = [at for at in found if turns[at].evidence_segment == span.segment] or found
    if len(found) > 1 and twin is not None:
        found = [at for at in found if texts[at] == twin.get(span)] or found
    return found


def _squeeze(text: str) -> str:
    return " ".join(text.split()).casefold()


def _problem(one: Instance, owner: str, span: Span, turns: Sequence[Turn]) -> str:
    stated = f"stated at segment {span.segment}, turn {span.turn}"
    if not turns:
        return f"{one.path}: {owner}: no turn holds the quote {span.quote!r} ({stated})"
    places = "; ".join(f"segment {turn.segment}, turn {turn.position}" for turn in turns[:4])
    return (
        f"{one.path}: {owner}: the quote {span.quote!r} ({stated}) is ambiguous: "
        f"{len(turns)} turns hold it ({places}{'; …' if len(turns) > 4 else ''}); expected one"
    )


def _map_spans(instances: Sequence[Instance]) -> _Mapping:
    """Map every span to its turn, or refuse; evidence files come first, since they settle what their twins repeat."""
    mapping, texts = _Mapping(), dict[str, dict[Span, str]]()
    for one in instances:
        found = mapping.add(one, texts.get(one.path.stem) if one.setting == "distractors" else None)
        texts.setdefault(one.path.stem, found)
    if mapping.problems:
        more = f" (and {len(mapping.problems) - 1} more such quotes)" if len(mapping.problems) > 1 else ""
        raise InputError(mapping.problems[0] + more)
    return mapping


# Tables


def load_memops(root: Path, intents: Wording = intent_of, purposes: Wording = purpose_of) -> Corpus:
    """Load MemOps as a corpus; `intents` and `purposes` may read the questions' categories otherwise."""
    instances = read_instances(root)
    mapping = _map_spans(instances)
    development = development_profiles(one.profile for one in instances)
    turns = [
        {"memory_id": turn.memory_id, **_of(one, development), "text": turn.text, "role": turn.role}
        for one in instances
        for turn in one.turns
    ]
    asked = [
        {**columns, **_of(one, development), "family": one.family} for one in instances for columns, _ in one.probes
    ]
    memories = pd.DataFrame(turns, dtype="str").assign(order=np.arange(1, len(turns) + 1))
    memories["state"] = memories["memory_id"].map(mapping.states).fillna("current").astype("str")
    queries = pd.DataFrame(asked, dtype="str").drop(columns="pair")
    wordings = list(zip(queries["evaluation_type"], queries["evaluation_category"], strict=True))
    for column, reading in (("intent", intents), ("purpose", purposes)):
        queries[column] = pd.Series([reading(*wording) for wording in wordings], dtype="str")
    queries = queries.assign(stratum="memops:" + queries["intent"], principal=queries["namespace"])
    labels = _labels(memories, queries, mapping.gold)
    return Corpus(
        name="memops",
        population="memops",
        memories=memories,
        queries=queries,
        labels=labels,
        defaults={"policy": True, "lifecycle": True},
        licence=_UPSTREAM.licence,
        origin=origin(root, "memops"),
        notes=_notes(instances, memories, queries, labels),
    )


def _of(one: Instance, development: set[str]) -> dict[str, str]:
    split = "development" if one.profile in development else "evaluation"
    common = {"namespace": one.profile, "group": one.profile, "source": "memops", "split": split}
    return {**common, "setting": one.setting, "instance": one.path.stem}


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
    return pairs[["query_id", "memory_id"]].astype("str").assign(
        relevant=pd.arrays.BooleanArray(is_gold, ~is_gold),
        scope=pd.array(np.ones(len(pairs), dtype=bool), dtype="boolean"),
        policy=policy,
        lifecycle=lifecycle,
    )  # fmt: skip


def _notes(
    instances: Sequence[Instance], memories: pd.DataFrame, queries: pd.DataFrame, labels: pd.DataFrame
) -> dict[str, int]:
    single = [one for one in instances if one.setting == "evidence"]
    asked = queries[queries["split"].eq("evaluation")]
    usable = logic.usable(*(labels[axis] for axis in ("relevant", *logic.AXES))).eq(True).fillna(False)
    gold = int(labels["relevant"].eq(True).sum())
    return {
        "profiles": len({one.profile for one in instances}),
        "instances": len(single),
        **{f"{family} instances": sum(one.family == family for one in single) for family in FAMILIES},
        "operations": sum(len(one.operations) for one in single),
        **{f"probes, {setting}": int(queries["setting"].eq(setting).sum()) for setting in SETTINGS},
        "queries": len(queries),
        "evaluation profiles": int(asked["namespace"].nunique()),
        "evaluation queries": len(asked),
        "evaluation memories": int(memories["split"].eq("evaluation").sum()),
        "queries that recall can evaluate": int(labels.loc[usable, "query_id"].nunique()),
        "gold turns": gold,
        "gold turns that are no anchor (forgotten content)": gold - int(usable.sum()),
        **{f"{state} turns": int(memories["state"].eq(state).sum()) for state in ("superseded", "forgotten")},
        "turns of unknown state": int(memories["state"].eq("unknown").sum()),
        "history queries": int(queries["intent"].eq("history").sum()),
        "queries about the operation": int(queries["purpose"].eq("operation").sum()),
        "queries of unknown purpose": int(queries["purpose"].eq("unknown").sum()),
    }


def vocabulary(queries: pd.DataFrame) -> pd.DataFrame:
    """List how the wording of question types and categories was read."""
    keys = ["evaluation_type", "evaluation_category", "intent", "purpose"]
    table = queries.groupby(keys, dropna=False).size().rename("queries").reset_index()
    return table.sort_values(["queries", *keys], ascending=[False, *[True] * len(keys)], ignore_index=True)


register(
    CorpusSpec(
        name="memops",
        title=_UPSTREAM.title,
        population="memops",
        licence=_UPSTREAM.licence,
        url=_UPSTREAM.url,
        revision=_UPSTREAM.revision,
        load=load_memops,
        present=lambda root: is_whole(root, "memops"),
        published=PUBLISHED,
    )
)
