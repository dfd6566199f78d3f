"""RHELM: the loader against the published counts and made-up faults, the frozen run against a remade part of it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from companion.corpora import get, load
from companion.corpora.frozen import explicit_labels, freeze, frozen, frozen_meta, load_frozen
from companion.corpora.rhelm import PUBLISHED, load_rhelm
from companion.errors import InputError
from companion.retrieval import Encoder, base_arm, known_arms, rank

here = pytest.mark.skipif(
    not get("rhelm").is_present(), reason="corpus rhelm is not here; COMPANION_CORPORA names where corpora live"
)

ALL = {name for name, spec in known_arms().items() if not spec.extra}

# --- The loader ---------------------------------------------------------------------------------------------------


@here
def test_the_published_facts_hold_exactly():
    corpus = load("rhelm")
    assert corpus.notes == PUBLISHED == {"questions": 1305, "eligible": 859, "evaluation": 523}
    part = corpus.restrict("evaluation")
    anchors = part.labels.groupby("query_id")["anchor_id"].nunique()
    assert anchors.mean() == 2.478011472275335
    assert (anchors.median(), anchors.min(), anchors.max()) == (2, 1, 14)
    assert part.visible_counts()["everywhere"].mean() == 5099.403441682601


@here
def test_labels_visibility_and_splits_follow_the_protocol():
    corpus = load("rhelm", "evaluation")
    memories, queries = corpus.memories.set_index("memory_id"), corpus.queries.set_index("query_id")
    pairs = corpus.labels
    memory, query = memories.loc[pairs["memory_id"]], queries.loc[pairs["query_id"]]
    assert (memory["namespace"].to_numpy() == query["namespace"].to_numpy()).all()
    assert (memory["time"].str[:10].to_numpy() < query["time"].to_numpy()).all()
    assert pairs[["relevant", "scope", "policy", "lifecycle"]].all(axis=None)
    assert memories["namespace"].nunique() == 7
    assert len(memories) == 7764  # 182,908 memories of the paper's evaluation less MemOps' 175,144
    assert corpus.defaults == {"policy": True, "lifecycle": True}
    assert set(queries["intent"]) == {"current"}


PERSONA = "Ann_Lee"


@pytest.fixture
def made(tmp_path):
    """Make a format-true corpus of one persona with two days and four questions."""
    root = tmp_path / "rhelm"
    for date, turns in (("2024-01-05", 2), ("2024-02-01", 3)):
        _conversation(root, date, turns)
    _questions(
        root,
        [
            _question("good", ["2024-01-05:2", "2024-01-05:2", "2024-01-05:1"]),
            _question("no_evidence", []),
            _question("not_a_turn", ["2024-01-05:2", "Emails_2024-01-05:Email 1"]),
            _question("same_day", ["2024-02-01:1"]),
        ],
    )
    return root


def _conversation(root, day, turns, **changes):
    folder = root / "data" / "conversations" / PERSONA
    folder.mkdir(parents=True, exist_ok=True)
    listed = [
        {"turn": n, "timestamp": f"{day}T0{n}:00:00", "user": f"said {n}", "assistant": f"heard {n}"}
        for n in range(1, turns + 1)
    ]
    document = {"character": PERSONA, "date": day, "conversation": listed, **changes}
    (folder / f"conversation_{day}.json").write_text(json.dumps(document))


def _question(name, evidence, **changes):
    return {
        "id": name, "question": f"{name}?", "question_date": "2024-02-01", "question_type": "fact",
        "supporting_evidence": evidence, **changes,
    }  # fmt: skip


def _questions(root, rows):
    folder = root / "data" / "QA_final"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / f"low_score_qa_{PERSONA}_all_validated.jsonl").write_text("\n".join(lines) + "\n")


def test_only_eligible_questions_are_kept_and_repeated_evidence_counts_once(made):
    corpus = load_rhelm(made)
    assert corpus.queries["query_id"].tolist() == ["good"]
    assert corpus.labels["memory_id"].tolist() == [f"{PERSONA}/2024-01-05:2", f"{PERSONA}/2024-01-05:1"]
    assert corpus.notes == {"questions": 4, "eligible": 1, "evaluation": 1}
    assert corpus.memories["text"].iloc[0] == "said 1\nheard 1"
    assert corpus.visible_counts()["everywhere"].tolist() == [2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["{broken"], r"validated.jsonl, line 1: not JSON"),
        ([_question("a", []), "[1]"], r"line 2: found list; expected a JSON object"),
        ([{"id": "a"}], r"line 1: field 'question_date' is missing; expected text"),
        ([_question("a", "2024-01-05:1")], r"field 'supporting_evidence' is '2024-01-05:1'; expected a list"),
        ([_question("a", [3])], r"'supporting_evidence', entry 1 is 3; expected text"),
        ([_question("a", [], question_date="1 May")], r"field 'question_date': '1 May' is not a date"),
        ([_question("a", []), _question("a", [])], r"line 2: question id 'a' appears twice"),
        ([_question("a", []), _question("b", ["2024-02-01:1"])], r"none of the 2 questions is eligible"),
        ([" "], r"none of the 0 questions is eligible"),
    ],
)
def test_malformed_questions_name_file_line_and_field(made, rows, message):
    _questions(made, rows)
    with pytest.raises(InputError, match=message):
        load_rhelm(made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"character": "Bob"}, r"field 'character' is 'Bob'; the folder says 'Ann_Lee'"),
        ({"conversation": [{"turn": 1}]}, r"turn 1: field 'timestamp' is missing; expected text"),
        ({"conversation": {}}, r"field 'conversation' is {}; expected a list"),
        ({"date": "2024-13-01"}, r"field 'date': '2024-13-01' is not a date"),
        (
            {"conversation": [{"turn": True, "timestamp": "", "user": "", "assistant": ""}]},
            r"field 'turn' is True; expected a whole number",
        ),
        (
            {"conversation": [{"turn": 1, "timestamp": "x", "user": "y", "assistant": "z"}] * 2},
            r"turn 'Ann_Lee/2024-01-05:1' appears twice",
        ),
    ],
)
def test_malformed_conversations_name_file_and_field(made, changes, message):
    _conversation(made, "2024-01-05", 2, **changes)
    with pytest.raises(InputError, match=message):
        load_rhelm(made)


def test_a_corpus_that_is_not_here_says_how_to_fetch_it(monkeypatch, tmp_path):
    monkeypatch.setenv("COMPANION_CORPORA", str(tmp_path))
    with pytest.raises(InputError, match="fetch it with: companion fetch rhelm"):
        load("rhelm")


# --- The frozen run -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records():
    return load_frozen("rhelm")


def test_frozen_meta_names_the_pinned_encoder_and_every_arm(records):
    meta = frozen_meta("rhelm")
    assert meta["encoder"]["model_hash"].startswith("53aa5117")
    assert set(meta["arms"]) == ALL
    assert {base_arm(route) for route in records.rankings["arm"].unique()} == ALL
    assert "rhelm" in frozen()


def test_some_arms_can_be_loaded_alone(records):
    some = load_frozen("rhelm", arms=["namespace_dense", "size_matched_random_partition"])
    routes = ["namespace_dense", *(f"size_matched_random_partition:{seed}" for seed in range(10))]
    assert set(some.rankings["arm"]) == set(some.work["arm"]) == set(routes)
    whole = records.rankings[records.rankings["arm"].isin(routes)].reset_index(drop=True)
    pd.testing.assert_frame_equal(some.rankings, whole)
    with pytest.raises(InputError, match="no arm 'other'; it has: global_bm25"):
        load_frozen("rhelm", arms=["other"])


def test_frozen_labels_spell_out_every_ranked_pair(records):
    listed = pd.MultiIndex.from_frame(records.labels[["query_id", "memory_id"]])
    ranked = pd.MultiIndex.from_frame(records.rankings[["query_id", "memory_id"]].drop_duplicates())
    assert ranked.isin(listed).all()
    assert records.labels[["scope", "policy", "lifecycle"]].notna().all(axis=None)
    own = records.memories.set_index("memory_id")["namespace"].loc[records.labels["memory_id"]].to_numpy()
    asked = records.queries.set_index("query_id")["namespace"].loc[records.labels["query_id"]].to_numpy()
    assert (records.labels["scope"].to_numpy(dtype=bool) == (own == asked)).all()


@here
@pytest.mark.slow
def test_a_part_of_the_frozen_run_is_remade(records):
    """One small persona's namespace queries, and ten global queries, from texts to ranks."""
    whole = load("rhelm", "evaluation")
    small = whole.memories["namespace"].value_counts().idxmin()
    ask = pd.concat([whole.queries[whole.queries["namespace"] == small].head(12), whole.queries.head(10)])
    ask = ask.drop_duplicates("query_id").reset_index(drop=True)
    # Only the persona's texts are encoded, unless the vectors of all are cached already.
    memories = whole.memories[whole.memories["namespace"] == small].reset_index(drop=True)
    mine = ask[ask["namespace"] == small].reset_index(drop=True)
    rankings, _ = rank(_cut(whole, memories, mine), ["namespace_dense"], 100, Encoder(threads=1))
    _same(rankings, records.rankings, mine["query_id"])
    lexical, _ = rank(_cut(whole, whole.memories, ask), ["global_bm25"], 100)
    _same(lexical, records.rankings, ask["query_id"])


def _cut(corpus, memories, queries):
    from dataclasses import replace

    return replace(corpus, memories=memories, queries=queries)


def _same(rankings, frozen_rankings, query_ids):
    arm = rankings["arm"].iloc[0]
    kept = frozen_rankings[(frozen_rankings["arm"] == arm) & frozen_rankings["query_id"].isin(query_ids)]
    both = rankings.merge(kept, on=["arm", "query_id", "memory_id"], how="outer", indicator=True)
    # Another processor's vectors differ in the last bits: a pair may swap only where the scores are that close.
    swapped = both[(both["_merge"] != "both") | (both["rank_x"] != both["rank_y"])]
    assert len(swapped) <= 0.01 * len(kept)
    joined = both[both["_merge"] == "both"]
    np.testing.assert_allclose(joined["score_x"], joined["score_y"], atol=2e-6)


def test_freezing_writes_what_was_ranked_and_a_changed_table_is_refused(tmp_path, monkeypatch):
    from reference_retrieval import random_corpus

    corpus, encoder = random_corpus(2)
    rankings, work = rank(corpus, ["global_dense", "size_matched_random_partition"], 25, encoder)
    folder = tmp_path / "frozen" / "mine"
    freeze(corpus, rankings, work, folder, {"command": "none"}, seeded_depth=5)
    monkeypatch.setenv("COMPANION_DATA", str(tmp_path))
    loaded = load_frozen("mine")
    plain = loaded.rankings[loaded.rankings["arm"] == "global_dense"].reset_index(drop=True)
    pd.testing.assert_frame_equal(plain, rankings[rankings["arm"] == "global_dense"].reset_index(drop=True))
    assert loaded.rankings.loc[loaded.rankings["arm"] != "global_dense", "rank"].max() == 5
    table = pd.read_parquet(folder / "rankings.parquet")
    table.assign(score=table["score"] + 1).to_parquet(folder / "rankings.parquet")
    with pytest.raises(InputError, match=r"rankings.parquet: differs from the frozen run"):
        load_frozen("mine")
    with pytest.raises(InputError, match=r"no frozen run 'other'.*mine"):
        load_frozen("other")


def test_a_large_run_can_be_frozen_to_a_depth_without_scores(tmp_path, monkeypatch):
    from reference_retrieval import random_corpus

    corpus, encoder = random_corpus(2)
    chosen = ["global_dense", "policy_only", "anchor_preserving_same_size"]
    rankings, work = rank(corpus, chosen, 25, encoder)
    meta = freeze(corpus, rankings, work, tmp_path / "frozen" / "mine", {}, depth=10, seeded_depth=5, scores=False)
    assert meta["depths"] == {"global_dense": 25, "policy_only": 10, "anchor_preserving_same_size": 5}
    monkeypatch.setenv("COMPANION_DATA", str(tmp_path))
    loaded = load_frozen("mine")
    assert loaded.rankings["score"].isna().all()
    plain = rankings.loc[rankings["arm"] == "global_dense", "memory_id"]
    assert loaded.rankings.loc[loaded.rankings["arm"] == "global_dense", "memory_id"].tolist() == plain.tolist()


def test_explicit_labels_keep_unresolved_unresolved():
    from reference_retrieval import random_corpus

    corpus, encoder = random_corpus(4)
    rankings, _ = rank(corpus, ["global_dense"], 40, encoder)
    labels = explicit_labels(corpus, rankings).set_index(["query_id", "memory_id"])
    given = corpus.labels.set_index(["query_id", "memory_id"])
    both = labels.index.intersection(given.index)
    pd.testing.assert_frame_equal(labels.loc[both, list(given)], given.loc[both], check_like=True)
    new = labels.loc[labels.index.difference(given.index)]
    assert new["policy"].isna().all()  # no default
    assert new["lifecycle"].all()  # the made-up corpus states one
    space = corpus.memories.set_index("memory_id")["namespace"]
    asked = corpus.queries.set_index("query_id")["namespace"]
    for (query, memory), scope in new["scope"].items():
        if pd.isna(space[memory]):
            assert pd.isna(scope)
        else:
            assert scope == (space[memory] == asked[query])
