"""The ledger against plain loops; the recorder under threads, forks and kill -9; companion trace."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from companion import ledger as ledgers
from companion import logic
from companion.errors import InputError
from companion.ledger import Ledger, PromptBudget
from companion.tables import Records, load_records, read_table, write_table

NA = pd.NA
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # the input is a seed: there is nothing to shrink


def some_records(seed, queries=6, memories=15, depth=9, timed=False):
    """Make small random records: partial labels with unresolved axes, unknown namespaces, two routes."""
    rng = np.random.default_rng(seed)
    spaces = np.array(["a", "b", "c", None], dtype=object)
    stored = pd.DataFrame(
        {
            "memory_id": [f"m{i}" for i in range(memories)],
            "namespace": rng.choice(spaces, memories, p=[0.35, 0.3, 0.25, 0.1]),
            "text": [" ".join(["word"] * int(n)) + "." for n in rng.integers(0, 7, memories)],
        }
    )
    asked = pd.DataFrame(
        {
            "query_id": [f"q{i}" for i in range(queries)],
            "namespace": rng.choice(spaces, queries, p=[0.35, 0.3, 0.25, 0.1]),
            "group": "g",
            "intent": "current",
        }
    )
    if timed:
        stored["visible_key"] = rng.integers(0, 10, memories)
        asked["visible_own"] = rng.integers(0, 12, queries)
        asked["visible_foreign"] = rng.integers(0, 12, queries)
    pairs = [(q, m) for q in asked["query_id"] for m in stored["memory_id"] if rng.random() < 0.5]
    labels = pd.DataFrame(pairs, columns=["query_id", "memory_id"])
    for axis in ("relevant", *logic.AXES):
        labels[axis] = pd.array(rng.choice(np.array([True, False, None], dtype=object), len(labels)), dtype="boolean")
    rankings = []
    for arm in ("one", "two"):
        for row in asked.to_dict(orient="records"):
            seen = [m for m in stored["memory_id"] if not timed or visible(stored, row, m)]
            chosen = rng.permutation(seen)[: rng.integers(0, depth + 1)]
            rankings += [(arm, row["query_id"], r, m, -float(r)) for r, m in enumerate(chosen, 1)]
    routes = pd.DataFrame(rankings, columns=["arm", "query_id", "rank", "memory_id", "score"])
    return Records(stored, asked, labels, routes, defaults={"policy": True}).check()


def visible(memories, query, memory_id):
    row = memories.set_index("memory_id").loc[memory_id]
    own = isinstance(row["namespace"], str) and row["namespace"] == query["namespace"]
    return row["visible_key"] < (query["visible_own"] if own else query["visible_foreign"])


@functools.lru_cache(maxsize=2)
def facts_of(records):
    """Index the tables as plain dicts, once per set of records."""
    listed = {(r["query_id"], r["memory_id"]): r for r in records.labels.to_dict(orient="records")}
    spaces = {r["memory_id"]: r["namespace"] for r in records.memories.to_dict(orient="records")}
    asking = {r["query_id"]: r["namespace"] for r in records.queries.to_dict(orient="records")}
    return listed, spaces, asking


def brute_labels(records, query_id, memory_id):
    """Look one pair up, by the words of the contract."""
    listed, spaces, asking = facts_of(Handle(records))
    if (query_id, memory_id) in listed:
        row = listed[query_id, memory_id]
        return {axis: NA if row[axis] is None else row[axis] for axis in ("relevant", *logic.AXES)}
    left, right = asking[query_id], spaces[memory_id]
    scope = left == right if isinstance(left, str) and isinstance(right, str) else NA
    return {"relevant": NA, "scope": scope, "policy": True, "lifecycle": NA}


class Handle:
    """Records by identity, for a cache."""

    def __init__(self, records):
        self.records, self.labels, self.memories, self.queries = (
            records,
            records.labels,
            records.memories,
            records.queries,
        )

    def __hash__(self):
        return id(self.records)

    def __eq__(self, other):
        return self.records is other.records


def word(values):
    values = list(values)
    if any(v is not NA and not v for v in values):
        return "inadmissible"
    return "unresolved" if any(v is NA for v in values) else "admissible"


# --- build ----


def test_a_route_by_hand():
    memories = pd.DataFrame({"memory_id": list("abcde"), "namespace": list("xxxyy"), "text": ["t " * 3] * 5})
    queries = pd.DataFrame({"query_id": ["q"], "namespace": ["x"], "group": ["x"]})
    labels = pd.DataFrame(
        {
            "query_id": ["q"] * 3,
            "memory_id": list("abd"),
            "scope": [True, True, False],
            "policy": [True, False, True],
            "lifecycle": [True, True, True],
        }
    ).astype(dict.fromkeys(logic.AXES, "boolean"))
    rankings = pd.DataFrame({"arm": "r", "query_id": "q", "rank": [1, 2, 3, 4, 5], "memory_id": list("dbcae")})
    records = Records(memories, queries, labels, rankings).check()
    book = ledgers.build(records, PromptBudget(items=1), ["scope", "policy"])
    assert book["memory_id"].tolist() == list("dbcae")
    assert book["gate_scope"].tolist() == [False, True, True, True, False]
    assert book["gate_policy"].tolist() == [True, False, NA, True, NA]  # c is not listed: unresolved, passes
    assert book["passed"].tolist() == [False, False, True, True, False]
    assert book["exposed"].tolist() == [False, False, True, False, False]
    assert book["stopped_by"].fillna("").tolist() == ["gate_scope", "gate_policy", "", "budget", "gate_scope"]
    assert book["tokens"].tolist() == [3] * 5
    assert book["retrieved"].all()
    assert book["stored"].all()


@given(
    st.integers(0, 10_000),
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 14),
    st.sampled_from(["stop", "skip"]),
    st.lists(st.sampled_from(logic.AXES), unique=True),
)
@settings(deadline=None, max_examples=25, phases=NO_SHRINKING)
def test_build_equals_a_walk_down_each_route(seed, items, tokens, overflow, gates):
    records = some_records(seed)
    book = ledgers.build(records, PromptBudget(items, tokens, overflow), gates)
    lengths = {m: len(t.replace(".", " .").split()) for m, t in records.memories[["memory_id", "text"]].to_numpy()}
    expected = {}
    for (arm, query), route in records.rankings.groupby(["arm", "query_id"]):
        used = shown = 0
        closed = False
        for memory in route.sort_values("rank")["memory_id"]:
            axes = brute_labels(records, query, memory)
            stop = next((f"gate_{g}" for g in gates if axes[g] is not NA and not axes[g]), None)
            exposed = False
            if stop is None:
                fits = tokens is None or used + lengths[memory] <= tokens
                if closed or (items is not None and shown >= items) or not fits:
                    stop = "budget"
                    closed |= overflow == "stop" and not fits and (items is None or shown < items)
                else:
                    exposed, used, shown = True, used + lengths[memory], shown + 1
            expected[arm, query, memory] = (exposed, stop)
    found = {
        (r["arm"], r["query_id"], r["memory_id"]): (
            bool(r["exposed"]),
            r["stopped_by"] if isinstance(r["stopped_by"], str) else None,
        )
        for r in book.to_dict(orient="records")
    }
    assert found == expected


def test_a_gate_of_ones_own_decides_by_pair_and_route():
    records = some_records(3)
    rows = records.rankings
    first = rows.iloc[0]
    decided = pd.DataFrame({"query_id": [first["query_id"]], "memory_id": [first["memory_id"]], "allowed": [False]})
    book = ledgers.build(records, gates={"mine": decided})
    pair = (rows["query_id"] == first["query_id"]) & (rows["memory_id"] == first["memory_id"])
    assert (~book["exposed"]).sum() == pair.sum()
    assert book["gate_mine"].notna().sum() == pair.sum()
    routed = ledgers.build(records, gates={"mine": decided.assign(arm=first["arm"])})
    assert (~routed["exposed"]).sum() == 1
    with pytest.raises(InputError, match=r"gate mine.*given twice"):
        ledgers.build(records, gates={"mine": pd.concat([decided, decided])})
    with pytest.raises(InputError, match="no column 'allowed'"):
        ledgers.build(records, gates={"mine": decided.drop(columns="allowed")})
    with pytest.raises(InputError, match="not a truth value"):
        ledgers.build(records, gates={"mine": decided.assign(allowed="maybe")})


def test_build_refuses():
    records = some_records(4)
    with pytest.raises(InputError, match="gate 'colour'"):
        ledgers.build(records, gates=["colour"])
    with pytest.raises(InputError, match="one word"):
        ledgers.build(records, gates="scope")
    with pytest.raises(InputError, match="items is -1"):
        PromptBudget(items=-1)
    with pytest.raises(InputError, match="overflow is 'wrap'"):
        PromptBudget(overflow="wrap")
    with pytest.raises(InputError, match="no rankings"):
        ledgers.build(Records(records.memories, records.queries, records.labels))
    counts = dict.fromkeys(records.memories["memory_id"], 1)
    missing = records.rankings["memory_id"].iloc[0]
    del counts[missing]
    with pytest.raises(InputError, match=f"memory '{missing}' has none"):
        ledgers.build(records, token_counts=counts)


def test_ranked_but_never_stored_is_refused_with_names():
    records = some_records(5)
    gone = records.rankings["memory_id"].iloc[0]
    fewer = records.memories[records.memories["memory_id"] != gone]
    with pytest.raises(InputError, match=rf"rankings: row 1: query 'q\d', route 'one', memory '{gone}' is retrieved"):
        ledgers.build(Records(fewer, records.queries, records.labels, records.rankings))


def test_an_empty_route_and_no_routes():
    records = some_records(6)
    none = Records(records.memories, records.queries, records.labels, records.rankings.iloc[:0]).check()
    book = ledgers.build(none, PromptBudget(items=3, tokens=5), ["scope"])
    assert len(book) == 0
    assert book["exposed"].dtype == "boolean"


# --- check and link ----


def book_of(*rows):
    table = pd.DataFrame(rows, columns=["query_id", "arm", "memory_id", "retrieved", "exposed"])
    return table.astype({"retrieved": "boolean", "exposed": "boolean"})


STORE = pd.DataFrame({"memory_id": ["m1", "m2"]})


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([("q", "r", "m9", True, False)], "query 'q', route 'r', memory 'm9' is retrieved without stored"),
        ([("q", "r", "m9", False, False)], "memory 'm9' was never stored"),
        ([("q", "r", "m1", True, True), ("q", "r", "m1", True, False)], "m1"),
        ([("z", "r", "m1", True, True)], "query 'z', route 'r', memory 'm1' belongs to a query that was never asked"),
    ],
)
def test_nestedness_is_enforced(rows, match):
    with pytest.raises(InputError, match=match):
        ledgers.check(book_of(*rows), STORE, pd.DataFrame({"query_id": ["q"]}))


def test_what_a_cache_exposed_without_retrieval_is_kept_and_counted(tmp_path):
    """A ledger of 0, 1 is a finding, not a malformed table; what a recorder knows beside it survives a file."""
    memories = pd.DataFrame({"memory_id": ["m1", "m2"], "namespace": ["a", "b"]})
    queries = pd.DataFrame({"query_id": ["q"], "namespace": ["a"]})
    for table, name in ((memories, "memories"), (queries, "queries")):
        write_table(table, tmp_path / f"{name}.csv", name)
    (tmp_path / "labels.csv").write_text("query_id,memory_id\n")
    with Ledger(tmp_path / "log") as recorder:
        recorder.route("q", "r", ["m1"], [0.5])
        recorder.exposed("q", "r", "m2")
        recorder.gated("q", "r", "m2", "policy", None)
        recorder.gated("q", "r", "m1", "policy", False)
        recorder.disclosed("q", "r", "m2", True)
    for suffix in (".csv", ".jsonl", ".parquet"):
        saved = recorder.save(tmp_path / f"ledger{suffix}")
        records = load_records(tmp_path)
        saved.unlink()
        book = ledgers.check(records.ledger).set_index("memory_id")
        assert book.loc["m1", ["retrieved", "exposed", "rank", "score"]].tolist() == [True, False, 1, 0.5]
        assert book.loc["m2", ["retrieved", "exposed", "disclosed"]].tolist() == [False, True, True]
        assert book["rank"].isna().tolist() == book["score"].isna().tolist() == [False, True]
        assert book["gate_policy"].tolist() == [False, NA]
        steps = ledgers.flow(records, records.ledger, "scope").set_index(["step", "status"])["pairs"]
        assert steps["exposed"].tolist() == [0, 1, 0] and steps["retrieved"].tolist() == [1, 0, 0]
        path = ledgers.trace(records, ledgers.check(records.ledger), "q").set_index("memory_id")
        assert path["rank"].fillna(0).to_dict() == {"m1": 1, "m2": 0} and path["stopped_by"].isna()["m2"]
        assert path.loc["m2", "reasons"] == "scope"


def test_ranks_come_from_rankings_beside_a_ledger_and_so_do_other_routes():
    records = some_records(21)
    book = ledgers.build(records, PromptBudget(items=2))
    query = book["query_id"].iloc[0]
    bare = book.loc[book["arm"] == "one", [*ledgers.build(records).columns[:3], "retrieved", "exposed"]]
    path = ledgers.trace(records, bare, query, routes=["one", "two"])
    expected = ledgers.trace(records, book, query)
    assert path[["arm", "memory_id", "rank", "score"]].equals(expected[["arm", "memory_id", "rank", "score"]])
    assert path.loc[path["arm"] == "two", "exposed"].isna().all() and (path["arm"] == "two").any()
    assert path.loc[path["arm"] == "one", "exposed"].equals(expected.loc[expected["arm"] == "one", "exposed"])


def test_a_ledger_that_says_itself_what_was_stored():
    book = book_of(("q", "r", "m1", True, True), ("q", "r", "m2", False, False))
    kept = ledgers.check(book.assign(stored=pd.array([True, False], dtype="boolean"), mine=["a", "b"]))
    assert kept["mine"].tolist() == ["a", "b"]
    with pytest.raises(InputError, match="memory 'm1' is retrieved without stored"):
        ledgers.check(book.assign(stored=pd.array([False, False], dtype="boolean")))
    unresolved = ledgers.check(book.assign(stored=pd.array([NA, NA], dtype="boolean")))
    assert unresolved["stored"].isna().all()


def test_disclosure_is_linked_and_never_assumed():
    book = book_of(("q", "r", "m1", True, True), ("q", "s", "m1", True, False))
    seen = pd.DataFrame(
        {"query_id": "q", "arm": ["r", "s", "s"], "memory_id": ["m1", "m1", "m2"], "disclosed": [False, True, True]}
    )
    linked = ledgers.link(book, seen, STORE).set_index(["arm", "memory_id"])
    assert linked.loc[("r", "m1"), ["exposed", "disclosed"]].tolist() == [True, False]
    assert linked.loc[("s", "m1"), ["exposed", "disclosed"]].tolist() == [False, True]
    assert linked.loc[("s", "m2"), ["retrieved", "exposed", "disclosed"]].tolist() == [False, False, True]
    assert ledgers.link(book, seen.iloc[:0], STORE)["disclosed"].isna().all()
    with pytest.raises(InputError, match="memory 'm9' is a target that was never stored"):
        ledgers.link(book, seen.assign(memory_id=["m1", "m1", "m9"]), STORE)
    with pytest.raises(InputError, match="given twice"):
        ledgers.link(book, pd.concat([seen, seen]), STORE)


def test_linking_a_built_ledger_keeps_every_row():
    records = some_records(8)
    book = ledgers.build(records, PromptBudget(items=2), ["scope"])
    seen = pd.DataFrame({"query_id": ["q0"], "arm": ["one"], "memory_id": ["m0"], "disclosed": [True]})
    linked = ledgers.link(book, seen, records.memories)
    known = ((book["query_id"] == "q0") & (book["arm"] == "one") & (book["memory_id"] == "m0")).any()
    assert len(linked) == len(book) + (not known)
    assert linked["disclosed"].sum() == 1
    assert linked[["retrieved", "exposed", "passed", "stored"]].notna().all(axis=None)


def test_answers_are_searched_for_each_target_of_their_query():
    answers = pd.DataFrame({"query_id": ["q", "q", "p"], "arm": ["r", "s", "r"], "answer": ["X-11 and y 22", None, ""]})
    targets = pd.DataFrame(
        {"query_id": ["q", "q", "p"], "memory_id": ["a", "b", "a"], "marker": ["x11", "Y22!", "x11"]}
    )
    found = ledgers.disclosures(answers, targets).set_index(["query_id", "arm", "memory_id"])["disclosed"]
    assert found.to_dict() == {
        ("q", "r", "a"): True,
        ("q", "r", "b"): True,
        ("q", "s", "a"): None,  # to_dict's word for <NA>
        ("q", "s", "b"): None,
        ("p", "r", "a"): False,
    }
    with pytest.raises(InputError, match="targets: row 2"):
        ledgers.disclosures(answers, pd.concat([targets.iloc[:1], targets]))


# --- flow ----


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from(["admissible", "usable", "relevant", *logic.AXES]))
@settings(deadline=None, max_examples=25, phases=NO_SHRINKING)
def test_flow_equals_counting_every_pair(seed, timed, status):
    records = some_records(seed, timed=timed)
    book = ledgers.build(records, PromptBudget(items=3), ["policy"])
    seen = book[["query_id", "arm", "memory_id"]].iloc[::3].assign(disclosed=True)
    book = ledgers.link(book, seen, records.memories)
    axes = {"admissible": logic.AXES, "usable": ("relevant", *logic.AXES)}.get(status, (status,))
    expected = Counter()
    asked = {(a, q) for a, q in book[["arm", "query_id"]].itertuples(index=False)}
    facts = records.queries.set_index("query_id").to_dict(orient="index")
    for arm, query in asked:
        for memory in records.memories["memory_id"]:
            if not timed or visible(records.memories, facts[query], memory):
                axis = brute_labels(records, query, memory)
                expected[arm, "stored", word(axis[a] for a in axes)] += 1
    for row in book.to_dict(orient="records"):
        axis = brute_labels(records, row["query_id"], row["memory_id"])
        for step in ("retrieved", "passed", "exposed", "disclosed"):
            if row[step] is not NA and row[step]:
                expected[row["arm"], step, word(axis[a] for a in axes)] += 1
    table = ledgers.flow(records, book, status)
    found = Counter({(r.arm, r.step, r.status): r.pairs for r in table.itertuples() if r.pairs})
    assert found == expected
    sums = table.groupby(["arm", "step"])["share"].sum(min_count=1).dropna()
    assert np.allclose(sums, 1)
    assert table["queries"].tolist() == [len({q for a, q in asked if a == arm}) for arm in table["arm"]]


def test_flow_narrows_and_leaves_out_steps_that_were_not_recorded():
    records = some_records(11)
    book = ledgers.build(records, PromptBudget(items=2), ["scope", "lifecycle"])
    table = ledgers.flow(records, book)
    assert list(dict.fromkeys(table["step"])) == ["stored", "retrieved", "passed", "exposed"]
    totals = table.groupby(["arm", "step"], sort=False)["pairs"].sum().unstack()
    assert (totals.diff(axis=1).iloc[:, 1:] <= 0).all(axis=None)
    assert table[table["step"] == "passed"].groupby("status")["pairs"].sum()["admissible"] > 0
    plain = book[["query_id", "arm", "memory_id", "retrieved", "exposed"]]
    assert set(ledgers.flow(records, plain)["step"]) == {"stored", "retrieved", "exposed"}
    with pytest.raises(InputError, match="status 'colour'"):
        ledgers.flow(records, book, "colour")


def test_stored_counts_on_rhelm_are_the_published_numbers_of_visible_candidates():
    frozen = pytest.importorskip("companion.corpora.frozen")
    counts = ledgers.stored_counts(frozen.load_frozen("rhelm"))
    assert len(counts) == 523
    assert counts.sum(axis=1).mean() == 5099.403441682601
    assert counts["unresolved"].sum() == 0


# --- trace ----


def test_trace_shows_every_route_and_why_a_memory_ended():
    records = some_records(21)
    book = ledgers.build(records, PromptBudget(items=2), ["scope"])
    query = book["query_id"].iloc[0]
    path = ledgers.trace(records, book, query)
    mine = book[book["query_id"] == query]
    assert sorted(path["memory_id"]) == sorted(mine["memory_id"])
    for row in path.to_dict(orient="records"):
        axes = brute_labels(records, query, row["memory_id"])
        assert [row[a] for a in axes] == [None if value is NA else value for value in axes.values()]
        reasons = [a for a in logic.AXES if axes[a] is not NA and not axes[a]]
        assert row["reasons"] == ", ".join(reasons)
        if "scope" in reasons:
            assert row["stopped_by"] == "gate_scope"


def test_trace_of_a_memory_that_no_route_retrieved():
    records = some_records(21)
    book = ledgers.build(records)
    query = book["query_id"].iloc[0]
    absent = (set(records.memories["memory_id"]) - set(book.loc[book["query_id"] == query, "memory_id"])).pop()
    path = ledgers.trace(records, book, query, absent)
    assert path["arm"].tolist() == ["one", "two"]
    assert path["stopped_by"].tolist() == ["not retrieved"] * 2
    assert path["rank"].isna().all()
    assert not path["exposed"].any()
    only = ledgers.trace(records, book, query, absent, "two")
    assert only["arm"].tolist() == ["two"]


def test_trace_tells_not_yet_stored_from_not_retrieved():
    records = some_records(2, timed=True)
    book = ledgers.build(records)
    facts = records.queries.set_index("query_id").to_dict(orient="index")
    checked = Counter()
    for query in book["query_id"].unique():
        for memory in records.memories["memory_id"]:
            path = ledgers.trace(records, book, query, memory)
            seen = bool(visible(records.memories, facts[query], memory))
            assert path["stored"].eq(seen).all()
            ends = set(path["stopped_by"].dropna())
            assert ends <= ({"not retrieved"} if seen else {"not stored yet"})
            checked.update(ends)
    assert set(checked) == {"not retrieved", "not stored yet"}


def test_trace_refuses_a_memory_retrieved_before_it_existed():
    records = some_records(2, timed=True)
    book = ledgers.build(records)
    row = book.iloc[0]
    late = records.memories.copy()
    late.loc[late["memory_id"] == row["memory_id"], "visible_key"] = 99
    with pytest.raises(InputError, match=r"retrieved without stored \(the memory is later"):
        ledgers.trace(Records(late, records.queries, records.labels, records.rankings), book, row["query_id"])


def test_trace_refuses_unknown_names_and_offers_the_near_one():
    records = some_records(21)
    book = ledgers.build(records)
    query = book["query_id"].iloc[0]
    with pytest.raises(InputError, match="query 'q11': not in the records; did you mean 'q1'"):
        ledgers.trace(records, book, "q11")
    with pytest.raises(InputError, match="memory 'nothing': not in the records; expected an id like 'm0'"):
        ledgers.trace(records, book, query, "nothing")
    with pytest.raises(InputError, match="route 'on': not among those of the records; expected one of one, two"):
        ledgers.trace(records, book, query, None, "on")
    rest = book[book["query_id"] != query]
    with pytest.raises(InputError, match=f"query '{query}': one and two retrieved nothing for it in led.csv; expected"):
        ledgers.trace(records, rest, query, origin="led.csv")
    # A route that was run and retrieved nothing still answers where one memory stands.
    empty = ledgers.trace(records, rest, query, "m1", "three", routes=["three"])
    assert empty[["arm", "retrieved", "stopped_by"]].values.tolist() == [["three", False, "not retrieved"]]


# --- recorder ----


def test_recorder_gives_the_ledger_of_what_happened(tmp_path):
    with Ledger(tmp_path, memories=["a", "b"]) as ledger:
        ledger.stored("c")
        ledger.route("q", "r", ["a", "c"], [0.9, 0.2])
        ledger.retrieved("q", "r", "b", score=0.1)
        ledger.gated("q", "r", "c", "policy", False)
        ledger.gated("q", "r", "a", "policy", None)
        ledger.exposed("q", "r", "a")
        ledger.disclosed("q", "r", "a", False)
        ledger.disclosed("q", "s", "b", True)  # disclosed without any exposure
    table = ledger.table().set_index(["arm", "memory_id"])
    assert table.loc["r", "rank"].to_dict() == {"a": 1, "c": 2, "b": 3}
    assert table["retrieved"].tolist() == [True, True, True, False]
    assert table["exposed"].tolist() == [True, False, False, False]
    assert table["disclosed"].tolist() == [False, NA, NA, True]
    assert table["gate_policy"].tolist() == [NA, False, NA, NA]
    saved = read_table(ledger.save(tmp_path / "ledger.parquet"), "ledger")
    assert saved["exposed"].tolist() == [True, False, False, False]
    assert ledgers.to_ledger(ledgers.read_events(tmp_path)).equals(ledger.table())


def test_recorder_refuses_where_it_happens_and_records_nothing(tmp_path):
    ledger = Ledger(tmp_path, memories=["a", "b", "c"])
    ledger.route("q", "r", ["a"])
    ledger.exposed("q", "r", "a")
    ledger.disclosed("q", "r", "a", True)
    for call, match in [
        (lambda: ledger.exposed("q", "r", "z"), "query 'q', route 'r', memory 'z' is exposed without stored"),
        (lambda: ledger.exposed("q", "r", ""), "memory id ''"),
        (lambda: ledger.exposed("q", "r", "a"), "is exposed twice"),
        (lambda: ledger.retrieved("q", "r", "a"), "is retrieved twice"),
        (lambda: ledger.route("q", "r", ["b", "b"]), "memory 'b' is retrieved twice"),
        (lambda: ledger.route("q", "r", ["b", "z"]), "memory 'z' is retrieved without stored"),
        (lambda: ledger.gated("q", "r", "a", "g", "maybe"), "decision 'maybe'"),
        (lambda: ledger.disclosed("q", "r", "z", True), "memory 'z' is a target that was never stored"),
        (lambda: ledger.disclosed("q", "r", "a", True), "was observed before"),
        (lambda: ledger.disclosed("q", "r", "a", 1), "expected True, False or None"),
        (lambda: ledger.route("q", "r", ["b"], [float("nan")]), "finite"),
        (lambda: ledger.route("q", "r", ["b", "c"], [1.0]), "one per memory"),
        (lambda: ledger.route("q", "r", "bc"), "one id"),
        (lambda: ledger.retrieved("q", "r", "b", rank=0), "rank 0; expected a whole number of at least 1"),
        (lambda: ledger.retrieved("q", "r", "b", rank=True), "rank True"),
        (lambda: ledger.retrieved("q", "r", "b", rank=1.5), "rank 1.5"),
        (lambda: ledger.retrieved("q", "r", 7), "memory id 7"),
        (lambda: ledger.retrieved("", "r", "b"), "query id ''"),
        (lambda: ledger.stored("\ud800"), "memory id"),
    ]:
        with pytest.raises(InputError, match=match):
            call()
    assert len(ledger.table()) == 1
    assert len(ledgers.read_events(tmp_path)) == 3
    ledger.close()
    ledger.close()
    with pytest.raises(InputError, match="closed"):
        ledger.retrieved("q", "r", "b")


def test_a_target_that_was_not_retrieved_is_observed_once_and_may_be_retrieved_later(tmp_path):
    with Ledger(tmp_path, memories=["a", "b"]) as ledger:
        ledger.disclosed("q", "r", "b", True)
        with pytest.raises(InputError, match="memory 'b' was observed before"):
            ledger.disclosed("q", "r", "b", False)
        ledger.disclosed("q", "other", "b", False)
        ledger.retrieved("q", "r", "a", rank=np.int64(1))
        ledger.retrieved("q", "r", "b")
    table = ledger.table().set_index(["arm", "memory_id"])
    order = [("r", "a"), ("r", "b"), ("other", "b")]
    assert table["rank"].fillna(-1).loc[order].tolist() == [1, 2, -1]
    assert table["disclosed"].isna().loc[order].tolist() == [True, False, False]
    assert table["disclosed"].loc[order[1:]].tolist() == [True, False]
    assert table["retrieved"].to_dict() == {("r", "a"): True, ("r", "b"): True, ("other", "b"): False}


def test_ids_of_any_text_survive(tmp_path):
    ids = ["007", "NA", "", 'a,b\n"c"', "é\u2028x", "🗝", " lead", "\u202eb"]
    with Ledger(tmp_path) as ledger:
        for name in ids:
            if name:
                ledger.retrieved("q\r1", "r", name)
        for name in ("q\x0b1", "a\x00", "a\x1bb", "\x7f", "\x85"):  # the table that is made of it would be refused
            with pytest.raises(InputError, match="expected text without control characters"):
                ledger.retrieved(name, "r", "m")
    assert ledger.table()["memory_id"].tolist() == [name for name in ids if name]
    assert set(ledger.table()["query_id"]) == {"q\r1"}


def test_a_finished_route_is_forgotten_but_still_checked_when_read(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.retrieved("q", "r", "a")
    ledger.finish("q", "r")
    assert not ledger._routes
    ledger.retrieved("q", "r", "a")
    with pytest.raises(InputError, match="memory 'a' is retrieved twice"):
        ledger.table()


def test_100_000_events_from_8_threads(tmp_path):
    threads, each = 8, 12_500
    ledger = Ledger(tmp_path, flush_every=1000, sync=False)

    def work(number):
        for i in range(each // 5):
            query = f"q{number}-{i}"
            ledger.route(query, "r", ["m0", "m1", "m2"])
            ledger.exposed(query, "r", "m1")
            ledger.disclosed(query, "r", "m1", i % 2 == 0)
            if i % 100 == 0:
                ledger.flush()

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    ledger.close()
    events = ledgers.read_events(tmp_path)
    assert len(events) == threads * each == 100_000
    assert events["seq"].tolist() == list(range(100_000))  # none lost, none twice, in the order they happened
    counts = events.groupby(["query_id", "event"]).size()
    assert (counts.xs("retrieved", level="event") == 3).all()
    assert (counts.xs("exposed", level="event") == 1).all()
    by_query = events.groupby("query_id")["event"].agg(tuple)
    assert set(by_query) == {("retrieved",) * 3 + ("exposed", "disclosed")}
    table = ledger.table()
    assert len(table) == 60_000
    assert table["exposed"].sum() == 20_000
    assert table["disclosed"].sum() == 10_000
    assert table["disclosed"].isna().sum() == 40_000


CHILD = """
import sys, threading
from companion.ledger import Ledger
ledger = Ledger(sys.argv[1], flush_every=10**9)
lock = threading.Lock()
def work(number):
    i = 0
    while True:
        ledger.retrieved(f"q{number}", "r", f"m{i}")
        i += 1
        if i % 200 == 0:
            with lock:
                print(ledger.flush(), flush=True)
for n in range(8):
    threading.Thread(target=work, args=(n,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.parametrize("flushes", [1, 7, 40])
def test_after_kill_9_the_folder_holds_every_flushed_event(tmp_path, flushes):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    promised = 0
    for _ in range(flushes):
        promised = max(promised, int(child.stdout.readline()))
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = child.communicate()
    promised = max([promised, *(int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n"))])
    events = ledgers.read_events(tmp_path)
    assert len(events) >= promised > 0
    assert events["seq"].tolist() == list(range(len(events)))
    for _, part in events.groupby("query_id"):
        assert part["memory_id"].tolist() == [f"m{i}" for i in range(len(part))]
    assert len(ledgers.to_ledger(events)) == len(events)


def test_a_line_cut_short_is_dropped_and_damage_elsewhere_is_refused(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.route("q", "r", ["a", "b", "c"])
    ledger.flush()
    whole = ledger.segment.read_bytes()
    for cut in range(1, len(whole)):
        ledger.segment.write_bytes(whole[:cut])
        assert len(ledgers.read_events(tmp_path)) == max(0, whole[:cut].count(b"\n") - 1)
    ledger.segment.write_bytes(whole.replace(b'"b"', b'"b'))
    with pytest.raises(InputError, match="line 3 is damaged"):
        ledgers.read_events(tmp_path)
    ledger.segment.write_bytes(whole.replace(b"[1,", b"[[1],").replace(b"[[1]", b"[1]\n["))
    with pytest.raises(InputError, match="line 3 holds no event"):
        ledgers.read_events(tmp_path)


def test_several_processes_share_a_folder(tmp_path):
    parent = Ledger(tmp_path, flush_every=10**9)
    parent.route("q", "r", ["a", "b"])  # not flushed when the child is forked: only the parent may write it
    pid = os.fork()
    if pid == 0:
        try:
            parent.exposed("q", "r", "a")  # the child knows what its parent retrieved
            parent.retrieved("q2", "r", "a")
            parent.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    parent.close()
    events = ledgers.read_events(tmp_path)
    assert sorted(events["event"]) == ["exposed", "retrieved", "retrieved", "retrieved"]
    assert events["segment"].nunique() == 2
    assert parent.table()["exposed"].sum() == 1


def test_processes_that_contradict_each_other_are_refused(tmp_path):
    for _ in range(2):
        with Ledger(tmp_path) as ledger:
            ledger.retrieved("q", "r", "a")
    with pytest.raises(InputError, match="query 'q', route 'r', memory 'a' is retrieved twice"):
        ledgers.to_ledger(ledgers.read_events(tmp_path))


def test_a_failed_write_loses_nothing_and_is_not_written_twice(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path)
    ledger.route("q", "r", ["a"])
    ledger.flush()
    ledger.route("q", "r", ["b", "c"])
    real, calls = os.write, []

    def full(handle, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real(handle, data[:10])  # a short write first, then no space
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\); nothing was lost"):
        ledger.flush()
    monkeypatch.undo()
    assert len(ledgers.read_events(tmp_path)) == 1
    assert ledger.flush() == 3
    assert ledgers.read_events(tmp_path)["memory_id"].tolist() == ["a", "b", "c"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        Ledger(tmp_path / "file" / "x")
    with pytest.raises(InputError, match="no such folder"):
        ledgers.read_events(tmp_path / "nowhere")
    with pytest.raises(InputError, match="flush_every"):
        Ledger(tmp_path, flush_every=0)
    assert ledgers.read_events(tmp_path).empty
    assert ledgers.to_ledger(ledgers.read_events(tmp_path)).empty


# --- the command ----


@pytest.fixture(scope="module")
def app():
    import typer

    from companion.cli import trace as command

    made = typer.Typer()
    command.register(made)
    made.command("other")(lambda: None)  # with one command only, Typer would drop its name
    return made


@pytest.fixture
def folder(tmp_path):
    records = some_records(21)
    for name in ("memories", "queries", "labels", "rankings"):
        write_table(getattr(records, name), tmp_path / f"{name}.csv", name)
    return tmp_path


def invoke(app, *words):
    return CliRunner().invoke(app, ["trace", *map(str, words)])


def test_the_command_follows_own_records(app, folder):
    result = invoke(app, "--records", folder, "--query", "q1", "--gate", "scope", "--items", 2, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["query"]["query_id"] == "q1"
    records = some_records(21)
    book = ledgers.build(records, PromptBudget(items=2), ["scope"])
    mine = book[book["query_id"] == "q1"]
    assert [(p["arm"], p["memory_id"], p["exposed"]) for p in told["paths"]] == list(
        mine[["arm", "memory_id", "exposed"]].itertuples(index=False, name=None)
    )
    text = invoke(app, "--records", folder, "--query", "q1", "--memory", "m3", "--gate", "scope")
    assert "memory_id: m3" in text.stdout
    assert "Route one" in text.stdout


def test_the_command_tells_what_answers_disclosed(app, folder):
    pd.DataFrame({"query_id": "q1", "arm": ["one", "two"], "answer": ["It is AB-1234", ""]}).to_csv(
        folder / "answers.csv", index=False
    )
    pd.DataFrame({"query_id": ["q1"], "memory_id": ["m3"], "marker": ["ab1234"]}).to_csv(
        folder / "targets.csv", index=False
    )
    options = ["--records", folder, "--query", "q1", "--memory", "m3", "--json"]
    result = invoke(app, *options, "--answers", folder / "answers.csv", "--targets", folder / "targets.csv")
    assert result.exit_code == 0, result.output
    assert [p["disclosed"] for p in json.loads(result.stdout)["paths"]] == [True, False]
    given = pd.DataFrame({"query_id": "q1", "arm": ["one", "two"], "memory_id": "m3", "disclosed": ["?", "1"]})
    given.to_csv(folder / "disclosures.csv", index=False)
    result = invoke(app, *options, "--disclosures", folder / "disclosures.csv")
    assert [p["disclosed"] for p in json.loads(result.stdout)["paths"]] == [None, True]


def test_the_command_takes_a_ledger_as_it_is(app, folder):
    book = book_of(("q1", "mine", "m3", True, True), ("q1", "mine", "m4", True, False))
    write_table(book, folder / "ledger.csv", "ledger")
    result = invoke(app, "--records", folder, "--query", "q1", "--json")
    assert result.exit_code == 0, result.output
    assert [(p["arm"], p["memory_id"], p["exposed"]) for p in json.loads(result.stdout)["paths"]] == [
        ("mine", "m3", True),
        ("mine", "m4", False),
    ]
    refused = invoke(app, "--records", folder, "--query", "q1", "--items", 3)
    assert isinstance(refused.exception, InputError)
    assert "taken as it is" in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--query", "q99"], "query 'q99'"),
        (["--query", "q99"], "; expected an id like 'q0'"),
        (["--query", "q1", "--memory", "m99"], "did you mean 'm9'?"),
        (["--query", "q1", "--arm", "three"], "; expected one of one, two"),
        (["--query", "q1", "--corpus", "demo"], "two stores; expected one of them"),
        (["--query", "q1", "--rankings", "a.csv", "--ledger", "b.csv"], "--rankings a.csv and --ledger b.csv"),
        (["--query", "q1", "--top-k", "0"], "set a search; the routes of"),
        (["--query", "q1", "--encoder", "minilm"], "set a search; the routes of"),
        (["--query", "q1", "--targets", "x.csv"], "x.csv: --answers and --targets belong together"),
        (
            ["--query", "q1", "--disclosures", "d.csv", "--answers", "x.csv", "--targets", "y.csv"],
            "d.csv and --answers",
        ),
        (["--query", "q1", "--gate", "colour"], "gate 'colour'"),
        (["--query", "q1", "--items", "-2"], "items is -2"),
        (["--query", "q1", "--answers", "x.csv"], "belong together"),
        (["--query", "q1", "--disclosures", "missing.csv"], "missing.csv"),
    ],
)
def test_the_command_refuses_bad_input(app, folder, words, match):
    result = invoke(app, "--records", folder, *words)
    assert isinstance(result.exception, InputError), result.output
    assert match in str(result.exception)


def refused(app, folder, *words):
    result = invoke(app, "--records", folder, *words)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def test_every_refusal_names_the_file_that_is_wrong(app, folder):
    """Also where the same kind of table lies in the records' own folder."""
    path = folder / "x.csv"
    heads = {
        "--rankings": "arm,query_id,rank,memory_id",
        "--ledger": "query_id,arm,memory_id,retrieved,exposed",
        "--disclosures": "query_id,arm,memory_id,disclosed",
    }
    for option, lines, match in [
        ("--rankings", "one,q1,1,m77", r"x\.csv, row 1.*'m77' is unknown"),
        ("--rankings", "one,q2,1,m1", r"'q1': one retrieved nothing for it in .*x\.csv"),
        ("--ledger", "q1,one,m77,1,1", r"x\.csv: row 1: .*'m77' is retrieved"),
        ("--disclosures", "q2,one,m1,1\nq1,one,m99,1", r"x\.csv: row 2: .*never stored"),
        ("--disclosures", "q9,one,m1,1", r"x\.csv: row 1: query 'q9'.*never asked"),
        ("--disclosures", "q1,onee,m1,1", r"x\.csv: row 1: .*'onee'.*expected one, two"),
        ("--disclosures", "q1,one,m1,1\nq1,one,m1,0", r"x\.csv: row 2: .*given twice"),
        ("--disclosures", "q1,one,m1,maybe", r"x\.csv: row 1, column disclosed: 'maybe'"),
    ]:
        path.write_text(f"{heads[option]}\n{lines}\n")
        assert re.search(match, refused(app, folder, "--query", "q1", option, path)), (option, lines)
    path.write_text("query_id,memory_id,disclosed\nq1,m1,1\n")
    told = refused(app, folder, "--query", "q1", "--disclosures", path)
    assert re.search(r"x\.csv: no column 'arm'; expected query_id, arm", told)
    (folder / "rankings.csv").unlink()
    assert f"{folder}: holds neither rankings nor a ledger" in refused(app, folder, "--query", "q1")


def test_refusals_of_answers_and_targets_name_their_file(app, folder):
    said, wanted = folder / "said.csv", folder / "wanted.csv"
    good = ("query_id,arm,answer\nq1,one,hi", "query_id,memory_id,marker\nq1,m1,abc")
    for answers, targets, match in [
        (good[0] + "\nq1,one,ho", good[1], r"said\.csv: row 2: query 'q1', route 'one' is given twice"),
        (good[0] + "\nq1,three,ho", good[1], r"said\.csv: row 2: .*route 'three' .*expected one, two"),
        (good[0], good[1] + "\nq2,m1,--", r"wanted\.csv: row 2: query 'q2', memory 'm1' has a marker without any"),
        (good[0], good[1] + "\nq2,m1,", r"wanted\.csv: row 2: .*has a marker without any letter or digit"),
        (good[0], good[1] + "\nq1,m1,xyz", r"wanted\.csv: row 2: .*given twice"),
        (good[0], good[1] + "\nq1,m99,xyz", r"wanted\.csv: row 2: .*'m99' is a target that was never stored"),
    ]:
        said.write_text(answers + "\n")
        wanted.write_text(targets + "\n")
        told = refused(app, folder, "--query", "q1", "--answers", said, "--targets", wanted)
        assert re.search(match, told), (told, match)


def test_a_route_that_retrieved_nothing_for_the_query_is_no_error_beside_others(app, folder):
    path = folder / "x.csv"
    path.write_text("arm,query_id,rank,memory_id\none,q1,1,m1\ntwo,q2,1,m1\n")
    options = ["--records", folder, "--rankings", path, "--query", "q1", "--json"]
    assert [p["arm"] for p in json.loads(invoke(app, *options).stdout)["paths"]] == ["one"]
    both = json.loads(invoke(app, *options, "--memory", "m1").stdout)["paths"]
    assert [(p["arm"], p["retrieved"], p["stopped_by"]) for p in both] == [
        ("one", True, None),
        ("two", False, "not retrieved"),
    ]
    assert "two retrieved nothing" in refused(app, folder, "--rankings", path, "--query", "q1", "--arm", "two")
    twice = json.loads(invoke(app, *options, "--arm", "one", "--arm", "one").stdout)["paths"]
    assert [p["arm"] for p in twice] == ["one"]


def test_control_characters_in_a_memory_do_not_reach_the_terminal(app, folder):
    memories = some_records(21).memories
    memories["text"] = "\x1b[2Jgone\r\n"
    write_table(memories, folder / "memories.csv", "memories")
    result = invoke(app, "--records", folder, "--query", "q1", "--memory", "m3")
    assert "\x1b" not in result.stdout
    assert "\\x1b[2Jgone" in result.stdout
