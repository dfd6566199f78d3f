"""RHELM: ten personas talk to an assistant for a year; questions ask what was said (Protocol section 4).

A memory is one conversation turn, user and assistant text together. Its id is ``<persona>/<date>:<turn>``,
because ``<date>:<turn>`` alone repeats between personas. A question is eligible when it has supporting evidence,
every piece of evidence is a turn that exists for its persona, and every piece is dated strictly before it.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.corpora.base import Corpus, CorpusSpec, register
from companion.corpora.upstreams import UPSTREAMS, is_whole, origin
from companion.errors import InputError

DEVELOPMENT = frozenset({"David_Reyes", "Justice_Arvind_Prakash_Mehra", "Martin_Keller"})
"""Personas of the development split; the other seven are for evaluation."""

EXPECTED = {"questions": 1305, "eligible": 859, "evaluation": 523}
"""Counts at the pinned revision (Protocol section 4)."""

_UPSTREAM = UPSTREAMS["rhelm"]
_CONVERSATIONS = Path("data/conversations")
_QUESTIONS = Path("data/QA_final")
_QUESTIONS_PREFIX, _QUESTIONS_SUFFIX = "low_score_qa_", "_all_validated.jsonl"
_TURN_FIELDS: dict[str, type] = {"turn": int, "timestamp": str, "user": str, "assistant": str}
_QUESTION_FIELDS: dict[str, type] = {
    "id": str,
    "question": str,
    "question_date": str,
    "question_type": str,
    "supporting_evidence": list,
}


@dataclass(frozen=True)
class _Question:
    """One line of a question file that has been read but not yet judged eligible."""

    where: str
    persona: str
    fields: dict[str, Any]
    day: int


def load_rhelm(root: Path) -> Corpus:
    """Read RHELM from an upstream checkout (Protocol section 4)."""
    memories = _read_memories(root)
    questions = _read_questions(root, personas=set(memories["namespace"]))
    known = set(memories["memory_id"])
    rows: list[dict[str, Any]] = []
    labels: list[tuple[str, str]] = []
    for question in questions:
        evidence = _evidence(question, known)
        if not evidence:
            continue
        rows.append(_query_row(question))
        labels.extend((rows[-1]["query_id"], memory_id) for memory_id in evidence)
    if not rows:
        raise InputError(
            f"{root / _QUESTIONS}: none of the {len(questions)} questions is eligible; expected some whose evidence "
            "exists and is dated before them"
        )
    queries = pd.DataFrame(rows)
    queries["visible_foreign"] = queries["visible_own"]
    pairs = pd.DataFrame(labels, columns=["query_id", "memory_id"])
    for axis in ("relevant", "scope", "policy", "lifecycle"):
        pairs[axis] = pd.array([True] * len(pairs), dtype="boolean")
    pairs["anchor_id"] = pairs["memory_id"]
    return Corpus(
        name="rhelm",
        population="rhelm",
        memories=memories,
        queries=queries,
        labels=pairs,
        defaults={"policy": True, "lifecycle": True},
        licence=_UPSTREAM.licence,
        origin=origin(root, "rhelm"),
        notes={
            "questions": len(questions),
            "eligible": len(queries),
            "evaluation": int((queries["split"] == "evaluation").sum()),
        },
    )


def is_present(root: Path) -> bool:
    """Whether `root` is a whole copy: conversations and questions of ten personas, and intact if it was fetched."""
    if not is_whole(root, "rhelm"):
        return False
    personas = {path.name for path in (root / _CONVERSATIONS).glob("*") if path.is_dir()}
    asked = {_persona_of(path) for path in (root / _QUESTIONS).glob(f"*{_QUESTIONS_SUFFIX}")}
    return len(personas) == 10 and personas == asked


def _split(persona: str) -> str:
    return "development" if persona in DEVELOPMENT else "evaluation"


def _persona_of(path: Path) -> str:
    return path.name.removeprefix(_QUESTIONS_PREFIX).removesuffix(_QUESTIONS_SUFFIX)


def _read_memories(root: Path) -> pd.DataFrame:
    """Read every turn; one row each, in the order persona, date, turn."""
    files = sorted((root / _CONVERSATIONS).glob("*/*.json"))
    if not files:
        raise InputError(f"{root / _CONVERSATIONS}: no conversation files; expected <persona>/<name>.json")
    rows: list[dict[str, Any]] = []
    for path in files:
        rows.extend(_turns(path))
    memories = pd.DataFrame(rows)
    twice = memories["memory_id"].duplicated()
    if twice.any():
        raise InputError(f"{root / _CONVERSATIONS}: turn {memories['memory_id'][twice].iloc[0]!r} appears twice")
    return memories.sort_values(["namespace", "visible_key", "order"], ignore_index=True)


def _turns(path: Path) -> list[dict[str, Any]]:
    """Rows of one conversation file."""
    document = _parse(path.read_bytes(), str(path))
    _require(document, {"character": str, "date": str, "conversation": list}, str(path))
    persona, date = path.parent.name, document["date"]
    if document["character"] != persona:
        raise InputError(f"{path}: field 'character' is {document['character']!r}; the folder says {persona!r}")
    day = _day(date, f"{path}: field 'date'")
    rows = []
    for number, turn in enumerate(document["conversation"], start=1):
        _require(turn, _TURN_FIELDS, f"{path}: turn {number}")
        rows.append(
            {
                "memory_id": f"{persona}/{date}:{turn['turn']}",
                "namespace": persona,
                "group": persona,
                "source": "rhelm",
                # Days, with the turn as a fraction: later turns of a day are younger, days never overlap.
                "order": day + turn["turn"] / 1000,
                "time": turn["timestamp"],
                "state": "current",
                "split": _split(persona),
                "text": f"{turn['user']}\n{turn['assistant']}",
                "visible_key": day,
            }
        )
    return rows


def _read_questions(root: Path, personas: set[str]) -> list[_Question]:
    """Read every question of every persona, eligible or not."""
    files = sorted((root / _QUESTIONS).glob(f"*{_QUESTIONS_SUFFIX}"))
    if not files:
        raise InputError(f"{root / _QUESTIONS}: no question files; expected *{_QUESTIONS_SUFFIX}")
    questions: list[_Question] = []
    seen: set[str] = set()
    for path in files:
        persona = _persona_of(path)
        if persona not in personas:
            raise InputError(f"{path}: persona {persona!r} has no conversations")
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            where = f"{path}: line {number}"
            fields = _parse(line, where)
            _require(fields, _QUESTION_FIELDS, where)
            if fields["id"] in seen:
                raise InputError(f"{where}: question id {fields['id']!r} appears twice")
            seen.add(fields["id"])
            day = _day(fields["question_date"], f"{where}: field 'question_date'")
            questions.append(_Question(where, persona, fields, day))
    return questions


def _evidence(question: _Question, known: set[str]) -> list[str]:
    """Memory ids of the evidence, each once, in file order; empty when the question is not eligible."""
    references = list(dict.fromkeys(question.fields["supporting_evidence"]))
    if not all(isinstance(reference, str) for reference in references):
        raise InputError(f"{question.where}: field 'supporting_evidence' must hold text references only")
    ids = [f"{question.persona}/{reference}" for reference in references]
    if not all(memory_id in known for memory_id in ids):
        return []
    days = [_day(reference.partition(":")[0], question.where) for reference in references]
    return ids if all(day < question.day for day in days) else []


def _query_row(question: _Question) -> dict[str, Any]:
    fields = question.fields
    return {
        "query_id": fields["id"],
        "namespace": question.persona,
        "group": question.persona,
        "source": "rhelm",
        "split": _split(question.persona),
        "stratum": "rhelm:current",
        "intent": "current",
        "principal": question.persona,
        "time": fields["question_date"],
        "question_type": fields["question_type"],
        "text": fields["question"],
        "visible_own": question.day,
    }


def _parse(raw: bytes, where: str) -> Any:
    try:
        return json.loads(raw)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{where}: not valid JSON ({error})") from None


def _require(record: Any, fields: dict[str, type], where: str) -> None:
    """Refuse a record that lacks a field, or has it with another type."""
    if not isinstance(record, dict):
        raise InputError(f"{where}: expected an object, found {type(record).__name__}")
    for name, kind in fields.items():
        if name not in record:
            raise InputError(f"{where}: field {name!r} is missing")
        if not isinstance(record[name], kind) or isinstance(record[name], bool):
            found = type(record[name]).__name__
            raise InputError(f"{where}: field {name!r} must be {kind.__name__}, found {found}")


def _day(date: str, where: str) -> int:
    try:
        return dt.date.fromisoformat(date).toordinal()
    except ValueError:
        raise InputError(f"{where}: {date!r} is not a date; expected YYYY-MM-DD") from None


def check(corpus: Corpus) -> dict[str, tuple[float, float]]:
    """Compare what was loaded with the published facts about RHELM (Protocol section 4)."""
    part = corpus.restrict("evaluation")
    anchors = part.labels.groupby("query_id")["anchor_id"].nunique().to_numpy()
    found = {
        **{name: float(corpus.notes[name]) for name in EXPECTED},
        "anchors_mean": float(np.mean(anchors)),
        "anchors_median": float(np.median(anchors)),
        "anchors_min": float(anchors.min()),
        "anchors_max": float(anchors.max()),
        "visible_mean": float(part.visible_counts()["everywhere"].mean()),
    }
    expected = {
        **{name: float(count) for name, count in EXPECTED.items()},
        "anchors_mean": 2.478011472275335,
        "anchors_median": 2.0,
        "anchors_min": 1.0,
        "anchors_max": 14.0,
        "visible_mean": 5099.403441682601,
    }
    return {name: (found[name], expected[name]) for name in expected}


SPEC = register(
    CorpusSpec(
        name="rhelm",
        title="RHELM: a year of conversations of ten personas, one namespace each",
        population="rhelm",
        licence=_UPSTREAM.licence,
        url=_UPSTREAM.url,
        revision=_UPSTREAM.revision,
        tree=_UPSTREAM.tree,
        paths=_UPSTREAM.paths,
        load=load_rhelm,
        present=is_present,
    )
)
