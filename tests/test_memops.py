"""MemOps on made-up files in the released format: nothing here is, or is taken from, the real data."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.corpora import base, memops
from companion.corpora._memops_files import VALIDITIES
from companion.errors import InputError
from companion.scoring import anchors_of

# A small language to write instances in: evidence segments are lists of turns; spans name segment, turn and quote.


def span(segment: int, turn: int, quote: str) -> dict:
    return {"segment_index": segment, "turn_index": turn, "quote": quote}


def operation(name: str, kind: str, target: str, spans: list[dict], validity: str = "confirmed", step: int = 1) -> dict:
    return {
        "operation_id": name,
        "type": kind,
        "chain_id": "chain-1",
        "chain_step": step,
        "validity": validity,
        "target": {"target_id": target, "target_name": target.title()},
        "old_value": None,
        "new_value": "value",
        "trigger_span": None,
        "evidence_spans": spans,
    }


def probe(name: str, spans: list[dict], kind: str = "direct_content", category: str = "") -> dict:
    return {
        "question_pair_id": name,
        "evaluation_setting": "standard",
        "evaluation_type": kind,
        "evaluation_category": category,
        "difficulty": "easy",
        "question": f"What about {name}?",
        "expected_answer": "an answer",
        "gold_memory_state": {"state": "active"},
        "judge_rubric": {"must_include": [], "must_not_include": []},
        "gold_provenance": spans,
    }


def instance(family: str, segments: list[list[str]], operations: list[dict], probes: list[dict]) -> dict:
    return {
        "operation_type": family,
        "target_fact": "a fact",
        "difficulty_knobs": {},
        "conversations": [
            {
                "segment_index": number,
                "dialogue": [
                    {"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(turns)
                ],
            }
            for number, turns in enumerate(segments)
        ],
        "operations": operations,
        "answer": probes,
    }


def inject(evidence: dict, before: int = 2, distractors: int = 3) -> dict:
    """Put each evidence segment into a longer one, after some chatter, and unrelated segments between them."""
    injected = copy.deepcopy(evidence)
    segments, number = [], 0
    for segment in evidence["conversations"]:
        for _ in range(distractors):
            chatter = [{"role": "user", "content": f"Chatter {number}-{at}"} for at in range(4)]
            segments.append({"segment_index": number, "dialogue": chatter, "evidence_inserted": False})
            number += 1
        lead = [{"role": "user", "content": f"Lead {number}-{at}"} for at in range(before)]
        segments.append(
            {
                "segment_index": number,
                "dialogue": lead + copy.deepcopy(segment["dialogue"]),
                "evidence_inserted": True,
                "evidence_segment_index": segment["segment_index"],
                "insertion_index": before,
            }
        )
        number += 1
    injected["conversations"] = segments
    return injected


UPDATE = instance(
    "Update",
    [
        ["I live in Oslo, near the harbour.", "Noted: Oslo."],
        ["We moved, I live in Bergen now.", "Noted: Bergen."],
        ["The weather is fine.", "Indeed."],
    ],
    [
        operation("op1", "remember", "home", [span(0, 1, "I live in Oslo")]),
        operation("op2", "update", "home", [span(1, 1, "i live in  BERGEN now")], step=2),
    ],
    [
        probe("now", [span(1, 1, "Bergen now")], "current_state"),
        probe("then", [span(0, 1, "live in Oslo")], "historical_state"),
    ],
)
FORGET = instance(
    "Forget",
    [
        ["My badge number is 7731.", "Saved."],
        ["Please forget my badge number.", "Gone."],
        ["Maybe I like tea.", "Maybe."],
        ["My car is red. No, scrap that.", "Scrapped."],
    ],
    [
        operation("op1", "remember", "badge", [span(0, 1, "7731")]),
        operation("op2", "forget", "badge", [span(0, 1, "7731"), span(1, 1, "forget my badge")]),
        operation("op3", "remember", "tea", [span(2, 1, "like tea")], validity="tentative"),
        operation("op4", "remember", "car", [span(3, 1, "car is red")], validity="retracted"),
    ],
    [
        probe("badge", [span(0, 1, "7731"), span(1, 1, "forget my badge")], "direct_content"),
        probe("done", [span(1, 1, "forget my badge"), span(0, 1, "7731")], "operation_audit"),
        probe("vague", [span(0, 1, "7731")], "miscellaneous"),
    ],
)
OTHER = instance(
    "Remember",
    [["I play the viola.", "Lovely."]],
    [operation("op1", "remember", "viola", [span(0, 1, "viola")])],
    [probe("viola", [span(0, 1, "play the viola")])],
)
FILES = {"A01_update": UPDATE, "A01_forget": FORGET, "A02_remember": OTHER}


def lay(root: Path, files: dict[str, dict] = FILES, injected: dict[str, dict] | None = None) -> Path:
    for setting, folder in memops.SETTINGS.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            made = content if setting == "evidence" else (injected or {}).get(name) or inject(content)
            (root / folder / f"{name}.json").write_text(json.dumps(made), encoding="utf-8")
    return root


@pytest.fixture
def corpus(tmp_path):
    return memops.load_memops(lay(tmp_path))


def memory(setting: str, name: str, text: str, corpus) -> str:
    rows = corpus.memories
    found = rows[(rows["setting"] == setting) & (rows["instance"] == name) & rows["text"].str.contains(text)]
    assert len(found) == 1
    return found["memory_id"].iloc[0]


def label(corpus, query: str, memory_id: str) -> tuple:
    """(relevant, scope, policy, lifecycle) of a pair, with the corpus defaults where it is not listed."""
    rows = corpus.labels[(corpus.labels["query_id"] == query) & (corpus.labels["memory_id"] == memory_id)]
    assert len(rows) <= 1
    if rows.empty:
        return (None, None, corpus.defaults["policy"], corpus.defaults["lifecycle"])
    values = rows[["relevant", "scope", "policy", "lifecycle"]].iloc[0]
    return tuple(None if value is pd.NA else bool(value) for value in values)


# Structure


def test_every_memory_is_visible_to_every_query(corpus):
    counts = corpus.visible_counts()
    assert (counts["everywhere"] == len(corpus.memories)).all()
    sizes = corpus.memories["namespace"].value_counts()
    assert counts["own"].tolist() == [sizes[space] for space in corpus.queries["namespace"]]


@pytest.mark.parametrize("setting", list(memops.SETTINGS))
def test_anchors_are_the_gold_provenance(corpus, setting):
    anchors = anchors_of(corpus.records().check())
    found = {
        query.removeprefix(f"{setting}/"): set(rows["memory_id"])
        for query, rows in anchors.groupby("query_id")
        if query.startswith(setting)
    }
    expected = {
        "A01_update/now": {memory(setting, "A01_update", "We moved", corpus)},
        # The question asks for the past, and the superseded turn is what answers it.
        "A01_update/then": {memory(setting, "A01_update", "near the harbour", corpus)},
        # Forgotten content answers no question about its content, even where the release lists it.
        "A01_forget/badge": {memory(setting, "A01_forget", "Please forget", corpus)},
        "A01_forget/done": {
            memory(setting, "A01_forget", "Please forget", corpus),
            memory(setting, "A01_forget", "7731", corpus),
        },
        "A02_remember/viola": {memory(setting, "A02_remember", "viola", corpus)},
    }
    assert found == expected


def test_update_supersedes_by_intent(corpus):
    old = memory("evidence", "A01_update", "near the harbour", corpus)
    assert label(corpus, "evidence/A01_update/now", old) == (None, True, True, False)
    assert label(corpus, "evidence/A01_update/then", old) == (True, True, True, True)
    # The same profile's other questions see it too, in either setting.
    assert label(corpus, "distractors/A01_forget/badge", old) == (None, True, True, False)
    # Another profile's do not get a label: their scope follows from the namespaces.
    assert label(corpus, "evidence/A02_remember/viola", old) == (None, None, True, True)


def test_forgotten_content_is_closed_by_purpose(corpus):
    badge = memory("evidence", "A01_forget", "7731", corpus)
    assert label(corpus, "evidence/A01_forget/badge", badge) == (True, True, False, False)
    assert label(corpus, "evidence/A01_forget/done", badge) == (True, True, True, True)
    assert label(corpus, "evidence/A01_forget/vague", badge) == (True, True, None, None)
    assert label(corpus, "evidence/A01_update/now", badge) == (None, True, False, False)
    request = memory("evidence", "A01_forget", "Please forget", corpus)
    assert label(corpus, "evidence/A01_forget/badge", request) == (True, True, True, True)


def test_tentative_and_retracted_operations_settle_nothing(corpus):
    states = corpus.memories.set_index("memory_id")["state"]
    for text in ("like tea", "car is red"):
        turn = memory("evidence", "A01_forget", text, corpus)
        assert states[turn] == "unknown"
        assert label(corpus, "evidence/A01_update/now", turn) == (None, True, True, None)


# Replay


def test_replay_by_hand():
    ops = [
        ("remember", "confirmed", "t", ["m1"]),
        ("update", "tentative", "t", ["m2"]),
        ("update", "confirmed", "t", ["m1", "m3"]),
        ("forget", "confirmed", "t", ["m4"]),
        ("remember", "confirmed", "t", ["m5"]),
        ("update", "confirmed", "t", ["m6"]),
        ("remember", "confirmed", "u", ["m6", "m7"]),
        ("update", "confirmed", "u", ["m7"]),
    ]
    assert memops.replay(ops) == {
        "m1": "forgotten",
        "m2": "unknown",
        "m3": "forgotten",
        # The request itself is superseded by the later update, like what was said after it.
        "m4": "superseded",
        "m5": "superseded",
        # Current for one target, superseded for the other.
        "m6": "unknown",
        "m7": "current",
    }


KINDS = ("remember", "update", "forget", "reflect")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.sampled_from(VALIDITIES), st.sampled_from("tu")),
        max_size=9,
    )
)
def test_replay_with_a_turn_per_operation_equals_looking_ahead(ops):
    """With a turn of its own for every operation, a turn's state follows from the confirmed ones after it."""
    states = memops.replay((kind, validity, target, [f"m{n}"]) for n, (kind, validity, target) in enumerate(ops))
    for number, (_, validity, target) in enumerate(ops):
        later = [kind for kind, valid, other in ops[number + 1 :] if valid == "confirmed" and other == target]
        expected = "forgotten" if "forget" in later else "superseded" if "update" in later else "current"
        assert states[f"m{number}"] == (expected if validity == "confirmed" else "unknown")


# Quotes


def with_turn(content: dict, segment: int, text: str) -> dict:
    changed = copy.deepcopy(content)
    changed["conversations"][segment]["dialogue"].append({"role": "assistant", "content": text})
    return changed


def test_turn_numbers_may_be_wrong_where_the_quote_is_unique(tmp_path):
    changed = copy.deepcopy(OTHER)
    changed["answer"][0]["gold_provenance"] = [span(7, 9, "play  THE viola")]
    corpus = memops.load_memops(lay(tmp_path, {"A02_remember": changed}))
    assert len(anchors_of(corpus.records().check())) == 2


def test_the_stated_place_settles_a_repetition_in_the_evidence_file(tmp_path):
    # The assistant echoes the quote; in the injected file the twin's whole turn tells which one is meant.
    changed = with_turn(OTHER, 0, "So you say: I play the viola.")
    corpus = memops.load_memops(lay(tmp_path, {"A02_remember": changed}))
    anchors = anchors_of(corpus.records().check()).merge(corpus.memories)
    assert anchors["text"].tolist() == ["I play the viola.", "I play the viola."]
    assert set(anchors["setting"]) == {"evidence", "distractors"}


def test_a_repetition_at_no_stated_place_is_refused(tmp_path):
    changed = with_turn(OTHER, 0, "So you say: I play the viola.")
    changed["answer"][0]["gold_provenance"] = [span(0, 2, "play the viola")]
    with pytest.raises(InputError) as refusal:
        memops.load_memops(lay(tmp_path, {"A02_remember": changed}))
    message = str(refusal.value)
    assert "2-evidence_conversation/A02_remember.json: question_pair_id 'viola'" in message
    assert "'play the viola'" in message
    assert "2 turns hold it (segment 0, turn 1; segment 0, turn 3)" in message


def test_a_distractor_that_copies_the_evidence_elsewhere_does_not_confuse(tmp_path):
    injected = inject(OTHER)
    injected["conversations"][0]["dialogue"][1]["content"] = "I play the viola."
    corpus = memops.load_memops(lay(tmp_path, {"A02_remember": OTHER}, {"A02_remember": injected}))
    anchors = anchors_of(corpus.records().check())
    assert set(anchors["memory_id"]) == {"evidence/A02_remember/0000:001", "distractors/A02_remember/0003:003"}


def test_a_copy_inside_the_evidence_segment_is_refused(tmp_path):
    injected = inject(OTHER)
    injected["conversations"][3]["dialogue"][0]["content"] = "I play the viola."
    with pytest.raises(InputError) as refusal:
        memops.load_memops(lay(tmp_path, {"A02_remember": OTHER}, {"A02_remember": injected}))
    message = str(refusal.value)
    assert "4-inject_evidence_with_distractors/A02_remember.json: operation_id 'op1'" in message
    assert "the quote 'viola'" in message
    assert "ambiguous" in message
    assert "(and 1 more such quotes)" in message


def test_a_quote_that_nothing_holds_is_refused(tmp_path):
    changed = copy.deepcopy(UPDATE)
    changed["operations"][1]["evidence_spans"] = [span(1, 1, "live in Trondheim")]
    with pytest.raises(InputError, match=r"operation_id 'op2': no turn holds the quote 'live in Trondheim'"):
        memops.load_memops(lay(tmp_path, {"A01_update": changed}))


# Malformed files


def broken(change) -> dict:
    changed = copy.deepcopy(UPDATE)
    change(changed)
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(operation_type="Sing"), "operation_type is 'Sing'"),
        (lambda d: d.pop("conversations"), "field 'conversations' is missing"),
        (lambda d: d["operations"][0].update(validity="perhaps"), "operation 1 .*'validity' is 'perhaps'"),
        (lambda d: d["operations"][0].update(type="sing"), "operation 1 .*'type' is 'sing'"),
        (lambda d: d["operations"][1].pop("target"), "operation_id 'op2'.*field 'target' is missing"),
        (lambda d: d["answer"][0]["gold_provenance"][0].update(turn_index=0), "'now'.*turn_index is 0"),
        (lambda d: d["answer"][0]["gold_provenance"][0].update(quote=" "), "'now'.*field 'quote'"),
        (lambda d: d["answer"][1].update(question_pair_id="now"), None),
        (lambda d: d["answer"].append(d["answer"][0] | {}) or d["answer"].append(d["answer"][0]), "appears twice"),
        (lambda d: d["conversations"][1].update(segment_index=0), "segment_index 0 appears twice"),
        (lambda d: d["conversations"][0]["dialogue"][0].update(content=None), "conversation 1, turn 1.*'content'"),
        (lambda d: d["conversations"].__setitem__(0, "text"), "conversation 1: found str"),
    ],
)
def test_malformed_files_are_refused_with_their_place(tmp_path, change, message):
    lay(tmp_path, {"A01_update": broken(change)}, {"A01_update": inject(UPDATE)})
    if message is None:
        assert len(memops.load_memops(tmp_path).queries) == 4
        return
    with pytest.raises(InputError, match=message) as refusal:
        memops.load_memops(tmp_path)
    assert "A01_update.json" in str(refusal.value)


# Splits and counts


def test_the_split_is_a_fifth_of_the_profiles_whatever_their_order():
    profiles = [f"A{number:02d}" for number in range(100)]
    chosen = memops.development_profiles(profiles)
    assert len(chosen) == 20
    assert chosen == memops.development_profiles(np.random.default_rng(0).permutation(profiles).tolist() * 2)
    # Pinned: a changed hash would silently move queries between the splits.
    assert sorted(chosen)[:4] == ["A11", "A16", "A20", "A22"]


def test_memories_and_queries_of_a_profile_share_its_split(tmp_path):
    files = {f"A{number:02d}_remember": OTHER for number in range(10)}
    corpus = memops.load_memops(lay(tmp_path, files))
    assert corpus.splits == ("development", "evaluation")
    for split, size in (("development", 2), ("evaluation", 8)):
        part = corpus.restrict(split)
        assert set(part.memories["namespace"]) == set(part.queries["namespace"])
        assert part.memories["namespace"].nunique() == size


def test_the_self_check_sets_loaded_beside_published(corpus):
    table = base.compare(corpus.notes, memops.PUBLISHED).set_index("quantity")
    assert set(memops.PUBLISHED) <= set(table.index)
    assert table.loc["instances", ["published", "loaded"]].tolist() == [403, 3]
    assert table.loc["operations", ["published", "loaded"]].tolist() == [2558, 7]
    assert table.loc["queries", ["published", "loaded"]].tolist() == [4012, 12]
    assert not table["agrees"].fillna(False).any()
    assert corpus.notes["gold turns that are no anchor (forgotten content)"] == 4
    assert corpus.notes["queries of unknown purpose"] == 2
    assert corpus.notes["forgotten turns"] == 2
    assert corpus.notes["superseded turns"] == 2
    assert corpus.notes["turns of unknown state"] == 4


def test_a_hand_laid_copy_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_CORPORA", str(tmp_path))
    assert not base.get("memops").is_present()
    lay(tmp_path / "memops")
    assert base.get("memops").is_present()
    corpus = base.load("memops", "evaluation")
    assert corpus.population == "memops"
    assert "hand-laid" in corpus.origin
