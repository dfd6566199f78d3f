"""RHELM: ten personas talk to an assistant for a year; questions ask what was said.

A memory is one conversation turn, user and assistant text together. Its id is ``<persona>/<date>:<turn>``, because
``<date>:<turn>`` alone repeats between personas. A question is eligible when it has supporting evidence, every piece of
evidence is a turn that exists for its persona, and every piece is dated strictly before it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from companion.corpora import _read
from companion.corpora.base import Corpus, CorpusSpec, register
from companion.corpora.upstreams import UPSTREAMS, is_whole, origin
from companion.errors import InputError

DEVELOPMENT = frozenset({"David_Reyes", "Justice_Arvind_Prakash_Mehra", "Martin_Keller"})
"""Personas of the development split; the other seven are for evaluation."""

PUBLISHED = {"questions": 1305, "eligible": 859, "evaluation": 523}
_UPSTREAM = UPSTREAMS["rhelm"]
_CONVERSATIONS, _QUESTIONS = "data/conversations", "data/QA_final"
_PREFIX, _SUFFIX = "low_score_qa_", "_all_validated.jsonl"


def load_rhelm(root: Path) -> Corpus:
    """Read RHELM from an upstream checkout, as the Methods page's "Populations" states it."""
    memories = _read_memories(root)
    questions = list(_questions(root, set(memories["namespace"])))
    known = set(memories["memory_id"])
    rows: list[dict[str, Any]] = []
    labels: list[tuple[str, str]] = []
    for where, persona, asked, day in questions:
        evidence = _evidence(asked, persona, day, known, where)
        if evidence:
            rows.append(_query(asked, persona, day, where))
            labels += [(rows[-1]["query_id"], memory_id) for memory_id in evidence]
    if not rows:
        raise InputError(
            f"{root / _QUESTIONS}: none of the {len(questions)} questions is eligible; expected some whose evidence "
            "exists and is dated before them"
        )
    queries = pd.DataFrame(rows)
    pairs = pd.DataFrame(labels, columns=["query_id", "memory_id"])
    for axis in ("relevant", "scope", "policy", "lifecycle"):
        pairs[axis] = pd.array([True] * len(pairs), dtype="boolean")
    evaluation = int(queries["split"].eq("evaluation").sum())
    return Corpus(
        name="rhelm",
        population="rhelm",
        memories=memories,
        queries=queries.assign(visible_foreign=queries["visible_own"]),
        labels=pairs.assign(anchor_id=pairs["memory_id"]),
        defaults={"policy": True, "lifecycle": True},
        licence=_UPSTREAM.licence,
        origin=origin(root, "rhelm"),
        notes={"questions": len(questions), "eligible": len(queries), "evaluation": evaluation},
    )


def is_present(root: Path) -> bool:
    """Whether `root` is a whole copy: conversations and questions of ten personas, and intact if it was fetched."""
    if not is_whole(root, "rhelm"):
        return False
    personas = {path.name for path in (root / _CONVERSATIONS).glob("*") if path.is_dir()}
    return len(personas) == 10 and personas == {_persona(path) for path in (root / _QUESTIONS).glob(f"*{_SUFFIX}")}


def _split(persona: str) -> str:
    return "development" if persona in DEVELOPMENT else "evaluation"


def _persona(path: Path) -> str:
    return path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)


def _read_memories(root: Path) -> pd.DataFrame:
    """Read every turn; one row each, in the order persona, date, turn."""
    files = sorted((root / _CONVERSATIONS).glob("*/*.json"))
    if not files:
        raise InputError(f"{root / _CONVERSATIONS}: no conversation files; expected <persona>/<name>.json")
    seen: set[str] = set()
    memories = pd.DataFrame([row for path in files for row in _turns(path, seen)])
    return memories.sort_values(["namespace", "visible_key", "order"], ignore_index=True)


def _turns(path: Path, seen: set[str]) -> Iterator[dict[str, Any]]:
    """Rows of one conversation file."""
    document, persona = _read.read_json(path), path.parent.name
    if _read.field(document, "character", str, str(path)) != persona:
        raise InputError(f"{path}: field 'character' is {document['character']!r}; the folder says {persona!r}")
    date = _read.field(document, "date", str, str(path))
    day = _day(date, f"{path}: field 'date'")
    for number, turn in enumerate(_read.field(document, "conversation", list, str(path)), start=1):
        where = f"{path}: turn {number}"
        name = _read.field(_read.an_object(turn, where), "turn", int, where)
        memory_id = f"{persona}/{date}:{name}"
        _read.once(seen, memory_id, "turn", where)
        yield {
            "memory_id": memory_id,
            "namespace": persona,
            "group": persona,
            "source": "rhelm",
            # Days, with the turn as a fraction: later turns of a day are younger, days never overlap.
            "order": day + name / 1000,
            "time": _read.field(turn, "timestamp", str, where),
            "state": "current",
            "split": _split(persona),
            "text": "\n".join(_read.field(turn, who, str, where) for who in ("user", "assistant")),
            "visible_key": day,
        }


def _questions(root: Path, personas: set[str]) -> Iterator[tuple[str, str, dict[str, Any], int]]:
    """Yield every question of every persona, eligible or not: its place, persona, fields and day."""
    files = sorted((root / _QUESTIONS).glob(f"*{_SUFFIX}"))
    if not files:
        raise InputError(f"{root / _QUESTIONS}: no question files; expected *{_SUFFIX}")
    seen: set[str] = set()
    for path in files:
        persona = _persona(path)
        if persona not in personas:
            raise InputError(f"{path}: persona {persona!r} has no conversations")
        for where, asked in _read.read_json_lines(path):
            _read.once(seen, _read.field(asked, "id", str, where), "question id", where)
            day = _day(_read.field(asked, "question_date", str, where), f"{where}: field 'question_date'")
            yield where, persona, asked, day


def _evidence(asked: dict[str, Any], persona: str, day: int, known: set[str], where: str) -> list[str]:
    """Memory ids of the evidence, each once, in file order; empty when the question is not eligible."""
    _read.field(asked, "supporting_evidence", list, where)
    references = _read.texts(asked, "supporting_evidence", where)
    ids = [f"{persona}/{reference}" for reference in references]
    if not set(ids) <= known:
        return []
    return ids if all(_day(reference.partition(":")[0], where) < day for reference in references) else []


def _query(asked: dict[str, Any], persona: str, day: int, where: str) -> dict[str, Any]:
    return {
        "query_id": asked["id"],
        "namespace": persona,
        "group": persona,
        "source": "rhelm",
        "split": _split(persona),
        "stratum": "rhelm:current",
        "intent": "current",
        "principal": persona,
        "time": asked["question_date"],
        "question_type": _read.field(asked, "question_type", str, where),
        "text": _read.field(asked, "question", str, where),
        "visible_own": day,
    }


def _day(date: str, where: str) -> int:
    try:
        return dt.date.fromisoformat(date).toordinal()
    except ValueError:
        raise InputError(f"{where}: {date!r} is not a date; expected YYYY-MM-DD") from None


register(
    CorpusSpec(
        name="rhelm",
        title=_UPSTREAM.title,
        population="rhelm",
        licence=_UPSTREAM.licence,
        url=_UPSTREAM.url,
        revision=_UPSTREAM.revision,
        load=load_rhelm,
        present=is_present,
        published=PUBLISHED,
    )
)
