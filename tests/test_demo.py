"""The demo corpus keeps its promises: rules, distributions, difficulty, determinism, files."""

import hashlib
import json
import re
from pathlib import Path

import demo as generator
import numpy as np
import pandas as pd
import pytest
from demo import READERS, SUBJECTS, structure
from sklearn.feature_extraction.text import TfidfVectorizer

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


def test_size_and_shape(corpus):
    memories, queries = corpus.memories, corpus.queries
    assert 550 <= len(memories) <= 700 and 150 <= len(queries) <= 200
    assert memories["namespace"].nunique() == 12
    assert set(memories["source"]) == {"company", "medication", "legal", "personal"}
    assert memories.groupby("source")["namespace"].nunique().eq(3).all()
    assert memories["skeleton"].groupby(memories["source"]).nunique().sum() >= 250
    for table in (memories, queries):
        assert table["group"].equals(table["namespace"])
        assert not table[["namespace", "source", "time", "text"]].isna().any().any()
    assert set(queries["split"]) == {"evaluation"}
    assert (queries["stratum"] == queries["source"] + ":" + queries["intent"]).all()
    assert memories["memory_id"].is_unique and queries["query_id"].is_unique
    assert memories["text"].is_unique
    assert set(memories["state"]) == {"current", "stale", "superseded", "forgotten", "unknown"}


def test_every_axis_takes_every_value_in_every_setting(corpus):
    source = corpus.labels["query_id"].map(corpus.queries.set_index("query_id")["source"])
    for axis in AXES:
        for _, column in corpus.labels[axis].groupby(source):
            assert column.eq(True).any() and column.eq(False).any() and column.isna().any()
    share = corpus.labels[AXES].isna().to_numpy().mean()
    assert 0.08 <= share <= 0.12


def test_intents(corpus):
    share = corpus.queries["intent"].value_counts(normalize=True)
    assert share["history"] > 0.2 and 0 < share["unknown"] < 0.05
    assert corpus.queries.groupby("source")["intent"].agg(lambda column: {"current", "history"} <= set(column)).all()


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


def test_restricted_and_forgotten_answers_are_the_reason_for_missing_anchors(corpus):
    labels = corpus.labels
    usable = (labels["relevant"] & labels["scope"] & labels["policy"] & labels["lifecycle"]).fillna(False)
    without = set(corpus.queries["query_id"]) - set(labels.loc[usable, "query_id"])
    for query in without:
        relevant = labels[labels["query_id"].eq(query) & labels["relevant"].fillna(False)]
        blocked = relevant["policy"].eq(False).fillna(False) | relevant["lifecycle"].isna()
        assert len(relevant) and blocked.all()


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


def test_who_may_read_what():
    """The policy decisions a reader of the book would look up first."""
    assert READERS["medication"]["psy"] == {"therapy"}
    assert READERS["medication"]["study"] == set()  # consent was withdrawn, for every purpose
    assert "family" not in READERS["medication"]["teen"]
    assert READERS["legal"]["eyes"] == {"counsel"}  # outside counsel only: not even the client
    assert READERS["company"]["hr"] == {"hr"} and "content" not in READERS["company"]["audit"]
    assert READERS["personal"]["surprise"] == {"owner"}
    assert not any("erasure" in purposes for tags in READERS.values() for purposes in tags.values())


def test_forgotten_content_answers_nothing(raw):
    by_id = {memory["memory_id"]: memory for memory in raw["memories"]}
    queries = {query["query_id"]: query for query in raw["queries"]}
    seen = {"erasure": 0, "other": 0}
    for label in raw["labels"]:
        memory, query = by_id[label["memory_id"]], queries[label["query_id"]]
        if memory["state"] != "forgotten" or memory["namespace"] != query["namespace"]:
            continue
        kind = "erasure" if query["purpose"] == "erasure" else "other"
        seen[kind] += 1
        assert label["policy"] == ("1" if kind == "erasure" else "0")
        assert label["lifecycle"] == ("" if query["intent"] == "unknown" else "0")
    assert min(seen.values()) > 0


def test_the_state_is_settled_before_anybody_asks(raw):
    """No question falls between a memory and the one that replaces it, so one state column is enough."""
    heir = {f"{stem}-{n}": f"{stem}-{n + 1}" for stem in ("fee", "dose") for n in (1, 2)}
    heir |= {"dose-3": "dose-4", "hiv": "hiv-forget", "pin": "pin-forget", "safe-addr": "safe-forget"}
    heir["wit-addr"] = "wit-forget"
    place = {(memory["namespace"], memory["skeleton"]): memory for memory in raw["memories"]}
    for (space, key), memory in place.items():
        successor = heir.get(key) or re.sub("-old$", "-new", key)
        if successor == key or (space, successor) not in place:
            continue
        changed = place[space, successor]["order"]
        assert memory["order"] < changed
        assert all(query["order"] > changed for query in raw["queries"] if query["namespace"] == space)


# --- difficulty -----------------------------------------------------------------------------------------------------


def tokens(text):
    return set(re.findall(r"[a-z0-9£]+", text.lower()))


def test_twins_are_near_duplicates(corpus):
    overlaps = []
    for _, twins in corpus.memories.groupby(["source", "skeleton"])["text"]:
        sets = [tokens(text) for text in twins]
        overlaps += [len(a & b) / len(a | b) for n, a in enumerate(sets) for b in sets[n + 1 :]]
    assert len(overlaps) > 300
    assert np.median(overlaps) > 0.6
    everything = [tokens(text) for text in corpus.memories["text"].sample(200, random_state=0)]
    strangers = [len(a & b) / len(a | b) for a, b in zip(everything[::2], everything[1::2], strict=True)]
    assert np.median(overlaps) > 4 * np.median(strangers)


def test_copies_repeat_what_the_original_gives_away(corpus):
    memories = corpus.memories.set_index("memory_id")
    copies = memories[memories["copy_certain"].fillna(False)]
    assert len(copies) >= 20
    for _, copy in copies.iterrows():
        original = memories.loc[copy["copy_of"]]
        assert copy["state"] == "current" and original["state"] in ("superseded", "forgotten")
        frequency = (
            memories.loc[memories["namespace"].eq(copy["namespace"]), "text"].map(tokens).explode().value_counts()
        )
        shared = tokens(copy["text"]) & tokens(original["text"])
        assert any(frequency[word] <= 6 and (word.isdigit() or len(word) > 4) for word in shared)


def test_the_most_similar_memory_is_often_wrong(corpus):
    memories, queries, labels = corpus.memories, corpus.queries, corpus.labels
    vectoriser = TfidfVectorizer(sublinear_tf=True)
    documents = vectoriser.fit_transform(memories["text"])
    similarity = (vectoriser.transform(queries["text"]) @ documents.T).toarray()
    hidden = memories["visible_key"].to_numpy()[None, :] >= queries["visible_own"].to_numpy()[:, None]
    nearest = memories["memory_id"].to_numpy()[np.where(hidden, -1.0, similarity).argmax(axis=1)]
    top = pd.DataFrame({"query_id": queries["query_id"], "memory_id": nearest})
    top = top.merge(labels, how="left", on=["query_id", "memory_id"])
    space = memories.set_index("memory_id")["namespace"]
    foreign = space[top["memory_id"]].to_numpy() != queries["namespace"].to_numpy()
    known_bad = (top[AXES] == False).any(axis=1).to_numpy(dtype=bool)  # noqa: E712
    assert (foreign | known_bad).mean() >= 0.4
    assert (known_bad & ~foreign).mean() >= 0.1  # not only a matter of scope


# --- texts ------------------------------------------------------------------------------------------------------------


def test_nothing_of_the_template_shows(corpus):
    for text in [
        *corpus.memories["text"],
        *corpus.queries["text"],
        *corpus.queries["principal"],
        *demo.notes()["note"],
    ]:
        assert not re.search(r"[\[\]{}~|@]|  |^\s|\s$", text), text
    for text in corpus.memories["text"]:
        assert text[0].isupper() or text[0] in '"0123456789', text
        assert len(text.split()) >= 4


def test_every_choice_has_two_or_three_ways():
    """`_PHRASINGS` covers residues of two and three only."""
    whole = structure()
    for text in [*whole.memories["text"], *whole.queries["text"]]:
        for choice in re.findall(r"\[([^\]]*)\]", text):
            assert choice.count("~") in (1, 2), text


# --- making it again, and larger ---


def test_the_committed_files_are_what_the_generator_makes(tmp_path):
    for name, path in generator.write_committed(tmp_path).items():
        assert path.read_bytes() == (demo.demo_dir() / demo.FILES[name]).read_bytes(), f"run the generator: {name}"


def test_readme_states_the_sums():
    readme = (demo.demo_dir() / "README.md").read_text(encoding="utf-8")
    for name in demo.FILES.values():
        assert hashlib.sha256((demo.demo_dir() / name).read_bytes()).hexdigest() in readme


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


def test_notes_explain_the_unresolved(corpus):
    explained = demo.notes().merge(corpus.labels, on=["query_id", "memory_id"], validate="one_to_one")
    open_ = corpus.labels[AXES].isna().any(axis=1)
    assert explained[AXES].isna().any(axis=1).sum() == open_.sum()


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
