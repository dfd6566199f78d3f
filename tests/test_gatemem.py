"""GateMem: made-up episodes against a brute-force reading of the rules, and the real release where present."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from companion.corpora import base, gatemem
from companion.errors import InputError


def turn(number: int, text: str, **more: str) -> dict:
    return {"turn_id": f"t{number:03d}", "text": text, "speaker": {"principal_id": "p", "role": "r"}, **more}


EPISODES = {
    "office": [
        {
            "episode_id": "office_a",
            "domain": "office",
            "turns": [
                turn(1, "The budget is 221,000 USD (approved).", timestamp="2026-05-01T09:00"),
                turn(2, "Alarm code is 4471, keep it from contractors."),
                turn(3, "THE BUDGET IS 221,000 usd, no auto renewal, c++ build green"),
                turn(4, "Budget is 250,000 USD now; code 4471 deleted."),
            ],
        },
        {"episode_id": "office_b", "domain": "office", "turns": [turn(1, "221,000 USD"), turn(2, "4471")]},
    ],
    "medical": [{"episode_id": "med_a", "domain": "medical", "turns": [turn(1, "dose 5 mg"), turn(2, "dose 10 mg")]}],
}


def checkpoint(name: str, kind: str, as_of: str, include=(), forbid=(), leak=(), episode="office_a") -> dict:
    return {
        "checkpoint_id": name,
        "episode_id": episode,
        "as_of_turn_id": as_of,
        "asker": {"principal_id": "asker", "role": "r"},
        "query_type": kind,
        "query_text": f"question {name}",
        "expected_action": "answer",
        "judge_spec": {"include": list(include), "not_include": list(forbid), "notes": ""},
        "leak_targets": list(leak),
    }


CHECKPOINTS = {
    "office": [
        checkpoint("u1", "utility", "t003", include=["221,000 usd", "no[- ]auto[- ]renewal", "c++"]),
        checkpoint("u2", "utility", "t002", include=["221,000 USD (approved)", "nowhere(", "221,000 USD (approved)"]),
        checkpoint("p1", "privacy", "t003", include=["budget"], forbid=["code is \\d+"], leak=["4471"]),
        checkpoint("s1", "safety", "t004", forbid=["budget"], leak=["4471"]),
        checkpoint("s2", "safety", "t001", leak=["4471"]),
    ],
    "medical": [checkpoint("m1", "utility", "t001", include=["dose"], episode="med_a")],
}


def lay(root: Path, episodes=EPISODES, checkpoints=CHECKPOINTS) -> Path:
    for domain in gatemem.DOMAINS:
        folder = root / "bench" / "data" / domain
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("episodes", episodes), ("checkpoints", checkpoints)):
            rows = content.get(domain, [])
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return root


def matches(pattern: str, text: str) -> bool:
    try:
        found = re.search(pattern, text, re.I) is not None
    except re.error:
        found = False
    return found or pattern.lower() in text.lower()


def brute_force(episodes=EPISODES, checkpoints=CHECKPOINTS) -> set[tuple]:
    """Label rows by reading the protocol turn by turn and pattern by pattern, without any shared code."""

    turns = {e["episode_id"]: e["turns"] for domain in episodes.values() for e in domain}
    rows = set()
    for check in (c for domain in checkpoints.values() for c in domain):
        for item in turns[check["episode_id"]]:
            if item["turn_id"] > check["as_of_turn_id"]:
                continue
            pair = (check["checkpoint_id"], f"{check['episode_id']}/{item['turn_id']}")
            forbid, leak = check["judge_spec"]["not_include"], check["leak_targets"]
            if check["query_type"] == "utility":
                for number, pattern in enumerate(dict.fromkeys(check["judge_spec"]["include"]), start=1):
                    if matches(pattern, item["text"]):
                        rows.add((*pair, True, True, True, True, f"item-{number:02d}"))
            elif check["query_type"] == "privacy" and any(matches(p, item["text"]) for p in forbid + leak):
                rows.add((*pair, None, True, False, None, None))
            elif check["query_type"] == "safety" and any(matches(p, item["text"]) for p in leak):
                rows.add((*pair, None, True, None, False, None))
    return rows


def as_rows(labels: pd.DataFrame) -> set[tuple]:
    plain = labels.astype(object).where(labels.notna(), None)
    return set(plain.itertuples(index=False, name=None))


def test_labels_equal_a_brute_force_reading(tmp_path):
    tables = gatemem.load_gatemem(lay(tmp_path))
    assert as_rows(tables.labels) == brute_force()
    assert len(tables.labels) == len(brute_force())


def test_interchangeable_turns_share_an_anchor_and_repeated_patterns_are_one_item(tmp_path):
    tables = gatemem.load_gatemem(lay(tmp_path))
    of_u1 = tables.labels[tables.labels["query_id"] == "u1"]
    assert set(of_u1.loc[of_u1["anchor_id"] == "item-01", "memory_id"]) == {"office_a/t001", "office_a/t003"}
    # A literal that is also a valid but different regular expression ("c++", "(approved)") still matches as text.
    assert set(of_u1["anchor_id"]) == {"item-01", "item-02", "item-03"}
    of_u2 = tables.labels[tables.labels["query_id"] == "u2"]
    assert set(of_u2["anchor_id"]) == {"item-01"}
    assert tables.notes["required items no visible turn meets"] == 1
    assert tables.notes["patterns that are no regular expression"] == 1
    assert tables.notes["utility checkpoints with every required item met by a visible turn"] == 2
    assert tables.notes["utility checkpoints that recall can evaluate"] == 3


def test_a_safety_checkpoint_before_the_secret_protects_nothing(tmp_path):
    tables = gatemem.load_gatemem(lay(tmp_path))
    assert "s2" not in set(tables.labels["query_id"])
    assert tables.notes["safety checkpoints with a protected turn visible"] == 1


def test_visibility_ends_with_the_checkpoints_own_turn(tmp_path):
    corpus = gatemem.load_gatemem(lay(tmp_path))
    counts = corpus.visible_counts().set_index("query_id")
    assert counts["own"].to_dict() == {"u1": 3, "u2": 2, "p1": 3, "s1": 4, "s2": 1, "m1": 1}
    assert counts.loc["s2", "everywhere"] == 1 + 2 + 2
    assert set(corpus.queries["source"]) == {"office", "medical"}
    assert (corpus.memories["group"] == corpus.memories["namespace"]).all()
    assert corpus.defaults == {}


@pytest.mark.parametrize(
    ("domain", "line", "change", "expected"),
    [
        ("office", 1, {"as_of_turn_id": "t099"}, "as_of_turn_id 't099'"),
        ("office", 1, {"episode_id": "gone"}, "episode_id 'gone'"),
        ("office", 1, {"query_type": "maybe"}, "query_type"),
        ("office", 1, {"query_text": "  "}, "query_text"),
        ("office", 1, {"leak_targets": "4471"}, "leak_targets"),
        ("office", 1, {"judge_spec": {"include": [7]}}, "entry 1 is 7"),
        ("office", 1, {"judge_spec": {}}, "'include' is empty"),
        ("office", 2, {"checkpoint_id": "u1"}, "checkpoint_id 'u1' appears twice"),
    ],
)
def test_malformed_checkpoints_are_refused_with_their_place(tmp_path, domain, line, change, expected):
    changed = [dict(row) for row in CHECKPOINTS[domain]]
    changed[line - 1] |= change
    lay(tmp_path, checkpoints={**CHECKPOINTS, domain: changed})
    with pytest.raises(InputError) as refusal:
        gatemem.load_gatemem(tmp_path)
    assert expected in str(refusal.value)
    assert f"{domain}/checkpoints.jsonl, line {line}" in str(refusal.value)


def test_a_truncated_file_is_refused(tmp_path):
    path = lay(tmp_path) / "bench/data/office/episodes.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"office/episodes\.jsonl, line 2: not JSON"):
        gatemem.load_gatemem(tmp_path)


def test_missing_files_name_the_command(tmp_path):
    with pytest.raises(InputError, match="companion fetch gatemem"):
        gatemem.load_gatemem(tmp_path)


# The real release


@pytest.fixture(scope="module")
def real() -> base.Corpus:
    spec = base.get("gatemem")
    if not spec.is_present():
        pytest.skip(f"GateMem is not in {spec.where()}; fetch it with: companion fetch gatemem")
    return spec.load(spec.where())


def test_the_release_has_the_published_counts(real):
    table = base.compare(real.notes, gatemem.PUBLISHED)
    assert table["agrees"].dropna().all()
    assert table["agrees"].notna().sum() == len(gatemem.PUBLISHED)
    assert real.notes["required items no visible turn meets"] == 0
    assert real.notes["utility checkpoints that recall can evaluate"] == 728
    assert real.notes["privacy checkpoints with a protected turn visible"] == 727
    assert real.notes["safety checkpoints with a protected turn visible"] == 762


def test_no_label_points_at_a_turn_the_checkpoint_cannot_see(real):
    labels = real.labels.merge(real.memories[["memory_id", "namespace", "visible_key"]], on="memory_id")
    labels = labels.merge(real.queries[["query_id", "namespace", "visible_own"]], on="query_id", suffixes=("", "_q"))
    assert len(labels) == len(real.labels)
    assert (labels["visible_key"] < labels["visible_own"]).all()
    assert (labels["namespace"] == labels["namespace_q"]).all()
