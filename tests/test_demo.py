"""The demo corpus keeps its promises: rules, distributions, difficulty, determinism, files."""

import json
import re
from pathlib import Path

import demo as generator
import pandas as pd
import pytest
from demo import READERS, SUBJECTS, structure

from companion.corpora import demo
from companion.corpora import load as load_corpus
from companion.errors import InputError
from companion.tables import read_table

AXES = ["scope", "policy", "lifecycle"]
UNKNOWN = None


@pytest.fixture(scope="module")
def corpus():
    return load_corpus("demo")


@pytest.fixture(scope="module")
def raw():
    """The committed files, read without the package's own readers."""
    folder = demo.demo_dir()
    tables = {}
    for name in ("memories", "queries"):
        lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        tables[name] = [json.loads(line) for line in lines]
    tables["labels"] = pd.read_csv(folder / "labels.csv", dtype=str, keep_default_na=False).to_dict("records")
    return tables


def digit(value):
    return {"1": True, "0": False, "": UNKNOWN}[value]


def kleene_and(values):
    if any(value is False for value in values):
        return False
    return UNKNOWN if any(value is UNKNOWN for value in values) else True


# --- size and spread ----------------------------------------------------------------------------------------------


def test_every_axis_takes_every_value_in_every_setting(corpus):
    source = corpus.labels["query_id"].map(corpus.queries.set_index("query_id")["source"])
    for axis in AXES:
        for _, column in corpus.labels[axis].groupby(source):
            assert column.eq(True).any() and column.eq(False).any() and column.isna().any()
    share = corpus.labels[AXES].isna().to_numpy().mean()
    assert 0.08 <= share <= 0.12


def test_anchors(corpus):
    labels = corpus.labels
    usable = labels["relevant"] & labels["scope"] & labels["policy"] & labels["lifecycle"]
    item = labels["anchor_id"].fillna(labels["memory_id"])
    anchors = item[usable.fillna(False)].groupby(labels["query_id"]).nunique()
    anchors = anchors.reindex(corpus.queries["query_id"], fill_value=0)
    assert 3 <= anchors.eq(0).sum() <= 6
    assert anchors.max() == 4 and anchors.eq(3).any() and anchors.eq(2).any()
    shared = labels.dropna(subset=["anchor_id"]).groupby("anchor_id").size()
    assert len(shared) >= 5 and shared.ge(2).all()


def test_anchors_are_exactly_what_the_author_named():
    whole = structure()
    labels = whole.labels
    usable = (labels["relevant"] & labels["scope"] & labels["policy"] & labels["lifecycle"]).fillna(False)
    found = {
        (row, whole.memories["key"][memory])
        for row, memory in labels.loc[usable, ["query", "memory"]].itertuples(index=False)
    }
    named = {
        (row, key)
        for row, query in enumerate(whole.queries.to_dict("records"))
        if query["intent"] != "unknown"
        for key in re.split("[ /]+", query["needs"])
        if key
    }
    assert found == named


# --- the rules, said once more in plain Python ----------------------------------------------------------------------


def expected_axes(memory, query, by_id):
    own = memory["namespace"] == query["namespace"]
    doubtful = memory["ownership"] == "doubtful"
    original = by_id.get(memory["copy_of"])
    perhaps = original is not None and not memory["copy_certain"]
    state = memory["state"]
    if original is not None:
        state = original["state"] if memory["copy_certain"] else "unknown"
    scope = UNKNOWN if doubtful else own

    restriction = memory["restriction"] or ""
    readers = READERS[query["source"]].get(restriction.rstrip("?"), set())
    open_ = not restriction or (own and query["purpose"] in readers)
    if not open_ and restriction.endswith("?"):
        open_ = UNKNOWN
    subjects = SUBJECTS[query["source"]].get(query["purpose"])
    within = subjects is None or memory["topic"] in subjects
    forgotten = (original or memory)["state"] == "forgotten" and query["purpose"] != "erasure"
    kept = (UNKNOWN if perhaps else False) if forgotten else True
    policy = kleene_and([open_, within, kept, UNKNOWN if doubtful else True])

    if state == "unknown" or query["intent"] == "unknown":
        lifecycle = UNKNOWN
    else:
        lifecycle = state == "current" or (state in ("stale", "superseded") and query["intent"] == "history")
    return scope, policy, lifecycle


def test_labels_follow_the_written_rules(raw):
    by_id = {memory["memory_id"]: memory for memory in raw["memories"]}
    queries = {query["query_id"]: query for query in raw["queries"]}
    for label in raw["labels"]:
        given = tuple(digit(label[axis]) for axis in AXES)
        memory, query = by_id[label["memory_id"]], queries[label["query_id"]]
        assert given == expected_axes(memory, query, by_id), (label, memory, query)
        assert memory["order"] < query["order"] and memory["source"] == query["source"]
        if memory["namespace"] != query["namespace"]:
            assert label["relevant"] == ""
        if UNKNOWN in given:
            assert len(label["note"]) > 15


def test_every_older_memory_of_the_namespace_is_listed(raw):
    listed = {(label["query_id"], label["memory_id"]) for label in raw["labels"]}
    assert len(listed) == len(raw["labels"])
    for query in raw["queries"]:
        for memory in raw["memories"]:
            if memory["namespace"] == query["namespace"] and memory["order"] < query["order"]:
                assert (query["query_id"], memory["memory_id"]) in listed


# --- difficulty -----------------------------------------------------------------------------------------------------


# --- texts ------------------------------------------------------------------------------------------------------------


# --- making it again, and larger ---


def test_the_committed_files_are_what_the_generator_makes(tmp_path):
    for name, path in generator.write_committed(tmp_path).items():
        assert path.read_bytes() == (demo.demo_dir() / demo.FILES[name]).read_bytes(), f"run the generator: {name}"


def test_write_committed_updates_a_readme(tmp_path):
    (tmp_path / "README.md").write_text("before\n<!-- sums -->\nold\n<!-- /sums -->\nafter\n", encoding="utf-8")
    generator.write_committed(tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert all(total in text for total in generator.checksums(tmp_path).values())


def test_larger_corpora_begin_with_the_committed_one():
    small, large = generator.generate(1), generator.generate(3)
    for one, three in zip(small, large, strict=True):
        assert len(three) == 3 * len(one)
        pd.testing.assert_frame_equal(three.iloc[: len(one)], one)
    memories, queries, labels = large
    assert memories["memory_id"].is_unique and queries["query_id"].is_unique
    assert memories["namespace"].nunique() == 36
    assert not labels.duplicated(["query_id", "memory_id"]).any()
    assert labels["memory_id"].isin(memories["memory_id"]).all()
    moments = pd.concat([memories.set_index("memory_id"), queries.set_index("query_id")])["order"]
    assert (moments[labels["memory_id"]].to_numpy() < moments[labels["query_id"]].to_numpy()).all()
    later = labels.iloc[len(small[2]) : 2 * len(small[2])].reset_index(drop=True)
    pd.testing.assert_frame_equal(later[["relevant", *AXES]], small[2][["relevant", *AXES]])
    assert memories["text"].duplicated().mean() < 0.2


def test_the_seed_changes_the_surface_only():
    first, again, other = generator.generate(1, 5), generator.generate(1, 5), generator.generate(1, 6)
    for one, same in zip(first, again, strict=True):
        pd.testing.assert_frame_equal(one, same)
    assert (first[0]["text"] != other[0]["text"]).mean() > 0.7
    pd.testing.assert_series_equal(first[0]["state"], other[0]["state"])
    pd.testing.assert_frame_equal(first[2], other[2])


def test_scaled_files_hold_the_generated_rows(tmp_path):
    paths = generator.write_scaled(tmp_path, 22, 1)  # more than one block of twenty
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.parquet", "memories.parquet", "queries.parquet"]
    for (name, path), frame in zip(paths.items(), generator.generate(22, 1), strict=True):
        table = read_table(path, name)
        assert len(table) == len(frame)
        for column in ("memory_id", "query_id", "text", "time", "policy", "anchor_id"):
            if column in frame:
                assert table[column].fillna("?" if column != "policy" else True).tolist() == (
                    frame[column].fillna("?" if column != "policy" else True).tolist()
                )
    again = demo.load_demo(tmp_path)
    assert again.counts()["namespaces"] == 12 * 22
    again.records().check()


@pytest.mark.parametrize(("scale", "seed"), [(0, 0), (1001, 0), (1.5, 0), (True, 0), (1, -1), (1, "a")])
def test_bad_sizes_are_refused(scale, seed, tmp_path):
    with pytest.raises(InputError, match="expected a whole number"):
        generator.generate(scale, seed)
    with pytest.raises(InputError, match="expected a whole number"):
        generator.write_scaled(tmp_path, scale, seed)
    assert not list(tmp_path.iterdir())


# --- loading ---


def test_records_pass_the_contract(corpus):
    records = corpus.records().check()
    assert records.population == "demo" and not corpus.defaults
    counts = corpus.visible_counts()
    assert counts["own"].lt(counts["everywhere"]).all()
    assert counts["everywhere"].min() < len(corpus.memories)  # time hides something


def test_missing_or_broken_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match="expected the demo corpus"):
        demo.load_demo(tmp_path)
    generator.write_committed(tmp_path)
    path = Path(tmp_path) / "memories.jsonl"
    first, rest = path.read_text(encoding="utf-8").split("\n", 1)
    broken = json.loads(first) | {"order": None}
    path.write_text(json.dumps(broken) + "\n" + rest, encoding="utf-8")
    with pytest.raises(InputError, match="row 1, column order"):
        demo.load_demo(tmp_path)
