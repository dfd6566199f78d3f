"""The audit: planted failures found once each, bounds narrowed exactly, hostile text harmless, gaps said."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from _made_up import made_up
from _site import Visit, open_browser
from bs4 import BeautifulSoup
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import ROUTE, demo_records, plant
from typer.testing import CliRunner

from companion import scoring
from companion.audit import Context, FaultsError, Options, audit, findings, guard, read_csv, report, take_in, unguard
from companion.audit.cells import shown, write_csv
from companion.audit.narrowing import macro_width, narrowing, over_arms, remaining
from companion.cli import app
from companion.errors import InputError
from companion.labels import PairLabels, encode
from companion.paths import data_dir
from companion.tables import Records, validate
from companion.tables.problems import CONTROL

QUICK = Options(replicates=200)
AXES = ["scope", "policy", "lifecycle"]


def records(memories, queries, routes, labels=(), **tables):
    """Build records from short rows: routes maps (arm, query) to ids."""
    rankings = [(arm, query, n, m) for (arm, query), ids in routes.items() for n, m in enumerate(ids, start=1)]
    columns = ["query_id", "memory_id", "relevant", "scope", "policy", "lifecycle"]
    return Records(
        pd.DataFrame(memories),
        pd.DataFrame(queries),
        pd.DataFrame(list(labels), columns=columns),
        pd.DataFrame(rankings, columns=["arm", "query_id", "rank", "memory_id"]) if routes else None,
        **tables,
    )


def check(kind, own, **kwargs):
    return getattr(findings, kind)(Context(take_in(own), **kwargs))


def people(*spaces, **columns):
    return [{"query_id": f"q{n}", "namespace": s, "group": "g", **columns} for n, s in enumerate(spaces)]


def store(**spaces):
    return [{"memory_id": m, "namespace": s or None} for m, s in spaces.items()]


# --- planted failures ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def garden():
    return demo_records(top_k=10)


@pytest.fixture(scope="module")
def planted(garden):
    return plant(garden, 10)


@pytest.fixture(scope="module")
def found(planted, tmp_path_factory):
    return audit(planted.write(tmp_path_factory.mktemp("planted")), QUICK)


def test_nothing_is_found_before_planting(garden):
    clean = garden.rankings[garden.rankings["arm"] == ROUTE]
    clean = clean[clean["rank"] <= 10].reset_index(drop=True)
    assert audit(replace(garden, rankings=clean, ledger=None), QUICK).found == []


def test_each_planted_failure_is_found_once_and_where_it_was_planted(found, planted):
    assert {c.kind: c.outcome for c in found.checks} == dict.fromkeys(planted.truth, "found")
    for c in found.checks:
        truth, evidence = planted.truth[c.kind], c.evidence
        assert len(evidence) == 1, c.kind
        for column in {"query_id", "memory_id", "twin", "correction"} & set(truth) & set(evidence):
            assert evidence[column].item() == truth[column], (c.kind, column)
        assert c.says and c.advice
        assert any(name in c.says for name in truth.values()) or c.kind in ("late_filter", "superseded")


def test_scoring_refuses_what_the_audit_reports(planted):
    with pytest.raises(InputError, match=planted.truth["ghosts"]["memory_id"]):
        planted.records.check()


def test_a_ghosts_lifecycle_is_unresolved(found, planted):
    ghost = planted.truth["ghosts"]["memory_id"]
    rows = scoring.label_ranked(found.records)
    mine = rows[rows["memory_id"] == ghost]
    assert len(mine) and mine["lifecycle"].isna().sum() > 0 and not mine["lifecycle"].fillna(False).any()
    given = planted.records.labels
    assert (
        given.loc[given["memory_id"] == ghost, "lifecycle"].fillna(False).any()
    )  # labels once said that it was current


def test_numbers_are_those_of_scoring(garden):
    """Without ghosts the audit's estimates are exactly what companion score computes."""
    own = replace(garden, rankings=garden.rankings[garden.rankings["rank"] <= 10].reset_index(drop=True))
    options = Options(replicates=300, seed=3, target_recall="0.7", reference=ROUTE)
    got = audit(own, options).summary
    table = scoring.score_routes(own, target_recall="0.7")
    want = scoring.summarise(table, reference=ROUTE, replicates=300, seed=3)
    pd.testing.assert_frame_equal(got.intervals, want.intervals)
    pd.testing.assert_frame_equal(got.contrasts, want.contrasts)


def test_the_committed_example_holds_every_failure():
    got = audit(data_dir() / "example", QUICK)
    assert [c.outcome for c in got.checks] == ["found"] * 6
    readme = (data_dir() / "example" / "README.md").read_text()
    for c in got.checks:
        ids = set(c.evidence.filter(["query_id", "memory_id", "twin"]).to_numpy().ravel())
        assert any(one in readme for one in ids), c.kind


# --- single checks -------------------------------------------------------------------------------------------------


def test_wildcard_needs_an_empty_name_and_foreign_memories():
    memories = store(a1="a", a2="a", b1="b")
    quiet = records(
        memories, people("a", "b", None), {("r", "q0"): ["a1"], ("r", "q1"): ["b1"], ("r", "q2"): ["a1", "a2"]}
    )
    assert check("wildcard", quiet).outcome == "clear"
    loud = records(
        memories, people("a", "b", None), {("r", "q0"): ["a1"], ("r", "q1"): ["b1"], ("r", "q2"): ["a1", "b1"]}
    )
    got = check("wildcard", loud)
    assert got.evidence[["query_id", "empty", "namespaces"]].to_numpy().tolist() == [["q2", "namespace", 2]]
    assert got.evidence["named_askers_that_cross"].item() == 0 and "switches it off" in got.says
    assert check("wildcard", records(memories, people("a"), {("r", "q0"): ["b1"]})).outcome == "clear"


def test_wildcard_sees_words_for_nothing_and_empty_principals():
    memories = store(a1="a", b1="b")
    queries = [{"query_id": "q0", "namespace": "undefined", "group": "g", "principal": "x"}]
    assert check("wildcard", records(memories, queries, {("r", "q0"): ["a1", "b1"]})).outcome == "found"
    queries = [
        {"query_id": "q0", "namespace": "a", "principal": " "},
        {"query_id": "q1", "namespace": "a", "principal": "ann"},
    ]
    got = check("wildcard", records(memories, queries, {("r", "q0"): ["a1", "b1"], ("r", "q1"): ["a1"]}))
    assert got.evidence["empty"].tolist() == ["principal"]


def test_wildcard_says_when_there_is_no_filter_at_all():
    memories = store(a1="a", b1="b")
    routes = {("r", "q0"): ["a1", "b1"], ("r", "q1"): ["b1", "a1"]}
    assert "no scope filter at all" in check("wildcard", records(memories, people("a", None), routes)).says


def test_ownerless_rows_count_only_when_returned():
    memories = store(a1="a", free="", b1="b")
    routes = {("r", "q0"): ["a1"], ("r", "q1"): ["b1"]}
    assert check("ownerless", records(memories, people("a", "b"), routes)).outcome == "clear"
    seen = {("r", "q0"): ["a1", "free"], ("r", "q1"): ["free", "b1"]}
    got = check("ownerless", records(memories, people("a", "b"), seen))
    assert got.evidence[["memory_id", "namespaces", "queries", "best_rank"]].to_numpy().tolist() == [["free", 2, 2, 1]]


def test_late_filter_counts_only_what_could_have_been_returned():
    memories = [
        {"memory_id": f"a{n}", "namespace": "a", "time": "2025-01-01" if n < 5 else "2025-12-01"} for n in range(7)
    ]
    queries = [{"query_id": q, "namespace": "a", "time": "2025-06-01T00:00:00Z"} for q in ("q0", "q1")]
    routes = {("r", "q0"): ["a0", "a1", "a2", "a3"], ("r", "q1"): ["a0"]}
    got = check("late_filter", records(memories, queries, routes))
    assert got.evidence[["query_id", "k", "items", "left_behind"]].to_numpy().tolist() == [["q1", 4, 1, 4]]
    forbidden = [("q1", f"a{n}", None, 1, 1, 0) for n in range(1, 5)]
    assert check("late_filter", records(memories, queries, routes, forbidden)).outcome == "clear"
    # A route that is empty although the namespace holds something is the same failure; --top-k states k.
    routes = {("r", "q0"): ["a0", "a1"]}
    got = check("late_filter", records(memories, queries, routes), top_k=2)
    assert got.evidence[["query_id", "items"]].to_numpy().tolist() == [["q1", 0]]


def test_late_filter_ignores_routes_that_cross():
    memories = store(a1="a", a2="a", a3="a", b1="b")
    routes = {("r", "q0"): ["a1", "b1"], ("r", "q1"): ["a1", "a2", "a3"]}
    assert check("late_filter", records(memories, people("a", "a"), routes)).outcome == "clear"


def test_an_arm_that_crosses_has_no_filter_that_could_run_late():
    """The arm gave q0 a stranger, so q1's short route was not cut by a filter; the arm beside it never crosses."""
    memories = store(a1="a", a2="a", a3="a", b1="b")
    crossing = {("open", "q0"): ["a1", "b1", "a2"], ("open", "q1"): ["a1"]}
    got = check("late_filter", records(memories, people("a", "a"), crossing))
    assert got.outcome == "clear" and "Not counted are routes of open:" in got.says
    both = crossing | {("shut", "q0"): ["a1", "a2", "a3"], ("shut", "q1"): ["a2"]}
    got = check("late_filter", records(memories, people("a", "a"), both))
    assert (
        got.evidence.to_numpy().tolist() == [["shut", "q1", 3, 1, 2]] and "Not counted are routes of open:" in got.says
    )


@pytest.mark.parametrize(
    ("reason", "found"),
    [("nothing", False), ("shared", True), ("no_namespace", True), ("no_principal", True), ("ghost", True)],
)
def test_what_a_stranger_must_be_to_show_that_there_is_no_filter(reason, found):
    """A memory that a label shares, an asker without a name, or an id that is gone says nothing against the filter."""
    memories = store(a1="a", a2="a", a3="a", b1="b")
    queries = people("a", "a", "a", principal="ann")
    if reason == "no_namespace":
        queries[2]["namespace"] = None
    if reason == "no_principal":
        queries[2]["principal"] = None
    routes = {
        ("r", "q0"): ["a1", "a2", "a3"],
        ("r", "q1"): ["a1"],
        ("r", "q2"): ["a1", "gone" if reason == "ghost" else "b1", "a3"],
    }
    labels = [("q2", "b1", None, 1, None, None)] if reason == "shared" else []
    got = check("late_filter", records(memories, queries, routes, labels))
    assert (got.outcome == "found") is found
    if found:
        assert got.evidence[["query_id", "k", "items", "left_behind"]].to_numpy().tolist() == [["q1", 3, 1, 2]]


def test_routes_all_of_one_length_show_no_cut():
    memories = store(a1="a", a2="a", a3="a", b1="b", b2="b")
    routes = {("one", "q0"): ["a1"], ("one", "q1"): ["b1"], ("two", "q0"): ["a1", "a2"], ("two", "q1"): ["b1"]}
    own = records(memories, people("a", "b"), routes)
    got = check("late_filter", own)
    assert got.evidence.to_numpy().tolist() == [["two", "q1", 2, 1, 1]] and "longest route" in got.limits
    got = check("late_filter", own, top_k=3)  # a stated depth does not accuse an arm that never reaches it
    assert got.evidence.to_numpy().tolist() == [["two", "q0", 3, 2, 1], ["two", "q1", 3, 1, 1]]
    assert "held to that length" in got.limits
    got = check("late_filter", own, top_k=1)
    assert got.outcome == "clear"


def test_what_is_out_of_force_is_left_behind_only_where_nothing_says_so():
    """q1 misses a current, a superseded, a forgotten and an unknown memory; states count where they may be read."""
    states = {"a0": "current", "a1": "current", "a2": "superseded", "a3": "forgotten", "a4": "unknown"}
    memories = [{"memory_id": m, "namespace": "a", "state": s} for m, s in states.items()]
    routes = {("r", "q0"): ["a0", "a1", "a2", "a3", "a4"], ("r", "q1"): ["a0"]}

    def left(intent, derived, labels=()):
        queries = people("a", "a", intent=intent)
        context = Context(take_in(records(memories, queries, routes, labels), lifecycle_from_state=derived))
        got = findings.late_filter(context)
        assert ("--lifecycle-from-state" in got.limits) is not derived
        assert got.evidence["query_id"].tolist() == ["q1"]
        return got.evidence["left_behind"].item()

    assert left("current", False) == 4
    assert left("current", True) == 2  # a1 and a4
    assert left("history", True) == 3  # a superseded fact may answer a question about the past
    assert left("unknown", True) == 4
    assert left("current", False, [("q1", "a3", None, 1, 1, 0)]) == 3
    assert left("current", True, [("q1", "a3", None, 1, 1, 1)]) == 3  # a label that is given outweighs the state


def test_nothing_left_in_force_is_no_late_filter():
    memories = [{"memory_id": "a0", "namespace": "a", "state": "current"}]
    memories += [{"memory_id": "a1", "namespace": "a", "state": "forgotten"}]
    routes = {("r", "q0"): ["a0", "a1"], ("r", "q1"): ["a0"]}
    own = records(memories, people("a", "a", intent="current"), routes)
    assert findings.late_filter(Context(take_in(own))).outcome == "found"
    assert findings.late_filter(Context(take_in(own, lifecycle_from_state=True))).outcome == "clear"


def test_without_any_namespace_nothing_is_said_of_owners_and_askers():
    """What a TREC import gives: nobody owns anything and nobody asks by name."""
    routes = {("r", "q0"): ["d1", "d2"], ("r", "q1"): ["d1"]}
    bare = records(store(d1="", d2=""), people(None, None), routes)
    for kind in ("wildcard", "ownerless", "late_filter"):
        got = check(kind, bare)
        assert got.outcome == "unknown" and got.evidence.empty, kind
    assert audit(bare, QUICK).found == []
    # Askers are named and no memory has an owner: everyone sees what is nobody's.
    named = records(store(d1="", d2=""), people("a", "b"), routes)
    got = check("ownerless", named)
    assert got.evidence[["memory_id", "namespaces"]].to_numpy().tolist() == [["d1", 2], ["d2", 1]]
    assert check("late_filter", named).outcome == "unknown"
    # Memories have owners and no query has a namespace: an empty name cannot be told from one that was never kept.
    nameless = records(store(d1="a", d2="b"), people(None, None), routes)
    assert check("wildcard", nameless).outcome == "unknown"
    assert check("wildcard", records(store(d1="a", d2="a"), people("null", "null"), routes)).outcome == "unknown"


def test_an_empty_name_is_compared_with_named_askers_only_where_there_are_some():
    got = check("wildcard", records(store(a1="a", b1="b"), people("null"), {("r", "q0"): ["a1", "b1"]}))
    assert got.outcome == "found" and "No named asker" in got.says and "filter works" not in got.says


def test_the_owners_finding_says_what_a_scope_column_takes():
    own = records(store(a1="a", free=""), people("a"), {("r", "q0"): ["a1", "free"]})
    assert "must state it for every pair they list" in check("ownerless", own).says
    own = records(store(a1="a", free=""), people(None), {("r", "q0"): ["a1", "free"]})
    assert "to askers without a namespace" in check("ownerless", own).says


def chain(state=None, link="supersedes"):
    rows = [{"memory_id": m, "namespace": "a"} for m in ("v1", "v2", "v3", "x")]
    if link == "supersedes":
        rows[1]["supersedes"], rows[2]["supersedes"] = "v1", "v2"
    elif link == "superseded_by":
        rows[0]["superseded_by"], rows[1]["superseded_by"] = "v2", "v3"
    for row, value in zip(rows, state or [], strict=False):
        row["state"] = value
    return rows


@pytest.mark.parametrize("link", ["supersedes", "superseded_by"])
@pytest.mark.parametrize("given_states", [False, True])
def test_superseded_stands_above_beside_or_alone(link, given_states):
    states = ["superseded", "superseded", "current", "current"] if given_states else None
    queries = people("a", "a", "a", "a")
    queries[3]["intent"] = "history"
    for row, intent in zip(queries, ["current", "current", "unknown", "history"], strict=True):
        row["intent"] = intent
    routes = {
        ("r", "q0"): ["v1", "v3"],
        ("r", "q1"): ["v3", "x", "v2"],
        ("r", "q2"): ["x", "v2"],
        ("r", "q3"): ["v1", "v2"],
    }
    got = check("superseded", records(chain(states, link), queries, routes))
    assert got.evidence[["query_id", "memory_id", "stands"]].to_numpy().tolist() == [
        ["q0", "v1", "above"],
        ["q1", "v2", "beside"],
        ["q2", "v2", "alone"],
    ]
    assert got.evidence["correction"].tolist() == ["v3", "v3", "v3"]
    assert ("derived" in got.says) is not given_states


def test_states_derived_from_links_leave_the_rest_unknown():
    intake = take_in(records(chain(), people("a"), {("r", "q0"): ["v1"]}))
    assert intake.states_from == "links"
    state = intake.records.memories.set_index("memory_id")["state"]
    assert state[["v1", "v2", "v3"]].tolist() == ["superseded", "superseded", "current"] and pd.isna(state["x"])


def test_superseded_without_links_or_states_is_not_guessed():
    routes = {("r", "q0"): ["v1", "v3"]}
    assert check("superseded", records(chain(link=""), people("a"), routes)).outcome == "unknown"
    states = ["superseded", "current", "current", "current"]
    got = check("superseded", records(chain(states, ""), people("a"), routes))
    assert got.outcome == "unknown" and "returned 1 times" in got.says


def test_circular_and_dangling_links_do_no_harm():
    rows = chain(link="")
    rows[0]["supersedes"], rows[1]["supersedes"], rows[2]["supersedes"] = "v2", "v1", '["gone", "v3"]'
    assert check("superseded", records(rows, people("a"), {("r", "q0"): ["v1", "v2"]})).outcome == "found"


OLD = "The monthly retainer for Abernathy and Daughters is 550 pounds, VAT included."


@pytest.mark.parametrize(
    ("text", "twin"),
    [
        (OLD.upper(), True),
        (f"Fwd: {OLD}", True),
        (OLD.replace("550", "610"), False),  # another number is a correction, not a copy
        ("Lunch with Abernathy on Thursday.", False),
        ("", False),
    ],
)
def test_twins_are_near_duplicates_with_the_same_numbers(text, twin):
    memories = [
        {"memory_id": "old", "namespace": "a", "state": "superseded", "text": OLD},
        {"memory_id": "copy", "namespace": "a", "state": "current", "text": text},
        {"memory_id": "other", "namespace": "b", "state": "current", "text": OLD},  # another owner's
        {"memory_id": "marked", "namespace": "a", "state": "stale", "text": OLD},
    ]
    got = check("stale_twins", records(memories, people("a"), {("r", "q0"): ["copy"]}))
    assert (got.outcome == "found") is twin
    if twin:
        assert got.evidence["twin"].unique().tolist() == ["copy"] and (got.evidence["routes"] == 1).all()


def test_a_linked_correction_is_no_twin():
    memories = [
        {"memory_id": "old", "namespace": "a", "state": "superseded", "text": OLD},
        {"memory_id": "new", "namespace": "a", "state": "current", "text": f"{OLD}!", "supersedes": "old"},
    ]
    assert check("stale_twins", records(memories, people("a"), {})).outcome == "clear"


def test_ghosts_in_routes_and_prompts():
    own = records(
        store(a1="a"),
        people("a"),
        {("r", "q0"): ["a1", "ghost"]},
        [("q0", "ghost", 1, 1, 1, 1), ("q0", "a1", 1, 1, 1, 1)],
        ledger=pd.DataFrame(
            {"query_id": "q0", "arm": "r", "memory_id": ["a1", "ghost"], "retrieved": 1, "exposed": [1, 1]}
        ),
    )
    got = audit(own, QUICK)
    ghosts = next(c for c in got.checks if c.kind == "ghosts")
    assert ghosts.evidence[["memory_id", "queries", "prompts", "lifecycle"]].to_numpy().tolist() == [
        ["ghost", 1, 1, "unresolved"]
    ]
    assert scoring.anchors_of(got.records)["memory_id"].tolist() == ["a1"]
    own.labels.loc[0, "lifecycle"] = 0
    assert scoring.label_ranked(take_in(own).records)["lifecycle"].tolist() == [True, False]  # an established no stands


# --- what settling a label does ------------------------------------------------------------------------------------


def slow_width(own, options):
    """Compute every arm's macro bound width with plain loops."""
    table = scoring.score_routes(own, **options)
    widths = {}
    for arm in table["arm"].unique():
        sources = []
        for source in table["source"].unique():
            rows = [r for r in table.itertuples() if r.arm == arm and r.source == source and r.anchors > 0]
            if rows:
                spans = [r.upper_bound - r.lower_bound for r in rows if r.feasible == 1]
                sources.append(sum(spans) / len(spans) if spans else float("nan"))
        widths[arm] = sum(sources) / len(sources)
    return widths


def settled(own, query, memory, axis, value):
    """Return the records with one label settled and every other axis of every pair as it was."""
    known = PairLabels.from_records(own)

    def implied(table):
        return known.lookup(
            encode(table["query_id"], known.queries, "", ""), encode(table["memory_id"], known.memories, "", "")
        )

    pairs = own.labels[["query_id", "memory_id", "anchor_id"]]
    if not ((pairs["query_id"] == query) & (pairs["memory_id"] == memory)).any():
        pairs = pd.concat([pairs, pd.DataFrame({"query_id": [query], "memory_id": [memory]})], ignore_index=True)
    table = pd.concat([pairs, implied(pairs)], axis=1)
    table.loc[(table["query_id"] == query) & (table["memory_id"] == memory), axis] = value
    return replace(own, labels=validate(table, "labels"))


@pytest.mark.parametrize(("seed", "target", "top_k"), [(3, 0.4, 30), (0, 0.5, None), (6, "1/3", 20)])
def test_settling_a_label_narrows_the_macro_width_by_exactly_what_is_said(seed, target, top_k):
    own, full = made_up(seed, namespaces=4, per_namespace=8, queries=16)
    short = full[full["rank"] <= 24].assign(arm="short")
    own = replace(own, rankings=pd.concat([full, short], ignore_index=True)).check()
    options = {"target_recall": target, "top_k": top_k}
    per_query = scoring.score_routes(own, **options)
    before = slow_width(own, options)
    assert macro_width(per_query).to_dict() == pytest.approx(before, nan_ok=True)
    assert all(np.isfinite(list(before.values())))
    table = narrowing(own, per_query, **options)
    said = {(r.arm, r.query_id, r.memory_id, r.axis): r for r in table.itertuples()}
    rows = scoring.label_ranked(own)
    rows = rows[rows["admissible"].isna()].drop_duplicates(["query_id", "memory_id"])
    labels = [(r.query_id, r.memory_id, axis) for r in rows.itertuples() for axis in AXES if pd.isna(getattr(r, axis))]
    chosen = [label for label in labels if any((arm, *label) in said for arm in before)]
    idle = [label for label in labels if label not in set(chosen)]
    rng = np.random.default_rng(seed)
    idle = [idle[i] for i in rng.permutation(len(idle))[:8]]
    for label in [*chosen, *idle]:
        for value, column in ((True, "narrows_if_yes"), (False, "narrows_if_no")):
            after = slow_width(settled(own, *label, value), options)
            for arm in before:
                expected = getattr(said[arm, *label], column) if (arm, *label) in said else 0.0
                change = before[arm] - after[arm]
                assert change == pytest.approx(expected, abs=1e-12, nan_ok=True), (label, value, arm)
    assert len(chosen) >= 3


def test_the_ranking_over_arms_adds_up():
    own, _ = made_up(3, namespaces=4, per_namespace=8, queries=16)
    table = narrowing(own, scoring.score_routes(own, target_recall=0.4), target_recall=0.4)
    summed = over_arms(table)
    assert summed["sure"].is_monotonic_decreasing and (summed["sure"] <= summed["most"]).all()
    assert over_arms(table.head(0)).empty
    single = table[(table["open_axes"] == 1) & ~table["changes_anchors"]]
    assert np.allclose(single["narrows_if_no"], single["narrows_if_yes"])


def test_the_width_that_remains_is_what_scoring_gives(found):
    """Settle the first labels of the order one way or the other, and score again."""
    left = remaining(found.narrowing, found.widths)
    moving = found.narrowing.groupby(["query_id", "memory_id", "axis"])["changes_anchors"].transform("any")
    order = over_arms(found.narrowing[~moving.astype(bool)])
    rng = np.random.default_rng(0)
    for number in (1, 5, int(left["labels"].max())):
        labels = found.records.labels.copy()
        for row in order.head(number).itertuples():
            here = (labels["query_id"] == row.query_id) & (labels["memory_id"] == row.memory_id)
            assert here.any()
            labels.loc[here, row.axis] = bool(rng.integers(2))
        after = macro_width(scoring.score_routes(replace(found.records, labels=labels)))
        said = left[left["labels"] == number].set_index("arm")["width"]
        assert (after <= said + 1e-12).all(), number
        assert after.to_dict() == pytest.approx(said.to_dict(), abs=1e-12)


def test_settling_every_sole_label_leaves_the_width_that_is_said(found):
    """On the demo: settle all sure labels at once, and the widths fall by the sum."""
    table = found.narrowing[~found.narrowing["changes_anchors"]]
    single = table[table["open_axes"] == 1]
    kept = single.drop_duplicates(["query_id", "memory_id", "axis"])
    touched = found.narrowing.merge(kept[["query_id", "memory_id", "axis"]])
    if touched["changes_anchors"].any():
        kept = kept.merge(touched[~touched["changes_anchors"]][["query_id", "memory_id", "axis"]].drop_duplicates())
    labels = found.records.labels.copy()
    for axis in AXES:
        place = pd.MultiIndex.from_frame(kept.loc[kept["axis"] == axis, ["query_id", "memory_id"]])
        labels[axis] = labels[axis].mask(pd.MultiIndex.from_frame(labels[["query_id", "memory_id"]]).isin(place), False)
    after = macro_width(scoring.score_routes(replace(found.records, labels=labels)))
    drop = single.merge(kept[["query_id", "memory_id", "axis"]]).groupby("arm")["narrows_if_no"].sum()
    for arm in found.widths.index:
        assert found.widths[arm] - after[arm] == pytest.approx(drop.get(arm, 0.0), abs=1e-12)


# --- worst queries, and what reached the prompt --------------------------------------------------------------------


def test_worst_queries_name_ids_and_reasons():
    memories = store(a1="a", a2="a", a3="a", b1="b")
    labels = [("q0", "a1", 1, 1, 1, 1), ("q0", "a2", 0, 1, 0, 1), ("q1", "a3", 1, 1, 1, 1), ("q0", "a3", 0, 1, None, 1)]
    routes = {("r", "q0"): ["b1", "a2", "a3", "a1"], ("r", "q1"): ["b1", "a2"]}
    own = records(memories, people("a", "a", "a"), routes, labels)
    worst = audit(own, QUICK).worst
    assert worst[["query_id", "loss", "looked_at", "violations", "unresolved"]].to_numpy().tolist() == [
        ["q1", 1.0, 2, 1, 1],
        ["q0", 0.75, 4, 2, 1],
    ]
    assert worst["reasons"].tolist() == [
        "misses the evidence: a3; 1 of 2 may not be used: b1 (scope); 1 unresolved",
        "2 of 4 may not be used: b1 (scope), a2 (policy); 1 unresolved",
    ]


def test_the_ledger_decides_what_reached_the_prompt():
    memories = store(a1="a", b1="b")
    book = pd.DataFrame(
        {"query_id": "q0", "arm": "r", "memory_id": ["a1", "b1"], "retrieved": [1, 1], "exposed": ["1", "?"]}
    )
    labels = [("q0", "a1", 1, 1, 1, 1)]
    routes = {("r", "q0"): ["a1", "b1"]}
    got = audit(records(memories, people("a"), routes, labels, ledger=book), QUICK)
    share = got.crossing.set_index("metric")["estimate"]
    assert got.crossing_from == "ledger" and share["admissible"] == 1 and share["wrong_scope"] == 0
    assert got.steps[["retrieved", "exposed", "exposure_not_recorded"]].to_numpy().tolist() == [[2, 1, 1]]
    without = audit(records(memories, people("a"), routes, labels), QUICK)
    assert without.crossing_from == "rankings"
    assert without.crossing.set_index("metric")["estimate"]["wrong_scope"] == 0.5
    first = audit(records(memories, people("a"), routes, labels), replace(QUICK, items=1))
    assert first.crossing.set_index("metric")["estimate"]["wrong_scope"] == 0


# --- what cannot be known ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drop", "said"),
    [
        (["labels"], "There are no labels"),
        (["rankings"], "There are no rankings"),
        (["labels", "rankings"], "There are no rankings"),
        (["labels", "rankings", "ledger"], "No ledger says which memories reached the prompt."),
        (["ledger"], "No ledger says"),
    ],
)
def test_missing_tables_are_said_and_the_rest_is_reported(planted, tmp_path, drop, said):
    folder = planted.write(tmp_path / "r")
    for name in drop:
        next(folder.glob(f"{name}.*")).unlink()
    got = audit(folder, QUICK)
    assert any(said in sentence for sentence in got.unknown), got.unknown
    written = report.write(got, tmp_path / "out.html")
    text = BeautifulSoup(written["report"].read_text(), "html.parser").get_text(" ")
    assert said in text
    if "labels" in drop:
        assert got.summary is None and "cannot be known" in text.lower()
        assert next(c for c in got.checks if c.kind == "wildcard").outcome in ("found", "unknown")
    if drop == ["labels"]:
        scope = got.crossing[got.crossing["metric"] == "wrong_scope"]
        assert scope["estimate"].notna().all() and {c.kind for c in got.found} >= {"wildcard", "ghosts", "ownerless"}


@pytest.mark.parametrize("axis", ["relevant", "policy", "lifecycle"])
def test_an_axis_without_labels_is_said(planted, axis):
    own = replace(planted.records, labels=planted.records.labels.drop(columns=axis))
    got = audit(own, QUICK)
    assert any(f"known value of {axis}" in sentence for sentence in got.unknown)
    assert any("No query has an anchor" in sentence for sentence in got.unknown)
    assert got.summary is None and got.crossing is not None and len(got.worst)


def test_lifecycle_can_be_derived_from_states_when_asked(planted):
    own = replace(planted.records, labels=planted.records.labels.drop(columns="lifecycle"))
    plain, derived = audit(own, QUICK), audit(own, replace(QUICK, lifecycle_from_state=True))
    assert plain.summary is None and derived.summary is not None
    rows = scoring.label_ranked(derived.records)
    ghosts = rows["memory_id"].isin(derived.intake.ghosts)
    assert rows.loc[ghosts, "lifecycle"].isna().all()
    before = scoring.label_ranked(plain.records)
    pd.testing.assert_frame_equal(rows[["relevant", "scope", "policy"]], before[["relevant", "scope", "policy"]])


def test_malformed_records_are_refused_with_every_fault(planted, tmp_path):
    folder = planted.write(tmp_path / "r")
    text = (folder / "queries.jsonl").read_text().replace('"intent": "current"', '"intent": "now"')
    (folder / "queries.jsonl").write_text(text)
    with pytest.raises(FaultsError) as refused:
        audit(folder, QUICK)
    assert len(refused.value.faults) == text.count('"intent": "now"') > 100


def test_options_that_do_not_fit_are_refused():
    own = records(store(a1="a"), people("a"), {("r", "q0"): ["a1"]})
    with pytest.raises(InputError, match="reference 'x'"):
        audit(own, Options(reference="x"))


def fuzzed(rng):
    """Return small records in which any table, column or value may be missing."""

    def some(values, size):
        return rng.choice(np.array(values, dtype=object), size)

    count, asked = int(rng.integers(0, 7)), int(rng.integers(1, 4))
    memories = pd.DataFrame({"memory_id": [f"m{n}" for n in range(count)], "namespace": some(["a", "b", None], count)})
    extras = {
        "state": some(["current", "superseded", "forgotten", None], count),
        "text": some(["a fact", "a fact.", None, "", " "], count),
        "supersedes": some(["m0", "m1", "gone", None], count),
        "time": some(["2025-01-01", "soon", None], count),
        "source": some(["s"], count),
    }
    queries = pd.DataFrame({"query_id": [f"q{n}" for n in range(asked)], "namespace": some(["a", "b", None], asked)})
    more = {
        "intent": some(["current", "history", "unknown", None], asked),
        "principal": some(["ann", None], asked),
        "time": some(["2025-06-01T10:00", None], asked),
        "source": some(["s", "t"], asked),
    }
    memories = memories.assign(**{k: v for k, v in extras.items() if rng.random() < 0.6})
    queries = queries.assign(**{k: v for k, v in more.items() if rng.random() < 0.6})
    ids = [f"m{n}" for n in range(count + 1)]  # the last one is a ghost
    rows = []
    for query in queries["query_id"]:
        for arm in ("x", "y"):
            picked = rng.permutation(ids)[: rng.integers(0, 5)]
            rows += [(arm, query, n, m) for n, m in enumerate(picked, start=1)]
    rankings = pd.DataFrame(rows, columns=["arm", "query_id", "rank", "memory_id"])
    pairs = queries[["query_id"]].merge(pd.DataFrame({"memory_id": ids}), how="cross").sample(frac=0.7, random_state=1)
    for axis in ("relevant", "scope", "policy", "lifecycle"):
        if rng.random() < 0.7:
            pairs[axis] = some([True, True, False, None], len(pairs))
    book = rankings[["query_id", "arm", "memory_id"]].assign(retrieved=1, exposed=some([1, 0, None], len(rankings)))
    return Records(
        memories,
        queries,
        pairs if rng.random() < 0.8 else pairs[["query_id", "memory_id"]].head(0),
        rankings if rng.random() < 0.9 else None,
        None,
        book if rng.random() < 0.5 else None,
    )


@pytest.mark.parametrize("seed", range(12))
def test_any_records_are_audited(seed, tmp_path):
    own = fuzzed(np.random.default_rng(seed))
    got = audit(own, Options(replicates=50, target_recall="0.5"))
    written = report.write(got, tmp_path / "r.html")
    assert len(got.checks) == 6 and written["report"].stat().st_size > 1000
    body = BeautifulSoup(written["report"].read_text(), "html.parser").find("main").get_text(" ")
    assert "nan" not in body.lower().split() and "<NA>" not in body


def test_states_that_could_settle_the_lifecycle_are_pointed_out():
    memories = [{"memory_id": "m1", "namespace": "n", "state": "current"}]
    queries = [{"query_id": "q", "namespace": "n", "intent": "current"}]
    for lifecycle, state, derived, hint in [(None, "current", False, True), (None, None, False, False),
                                            (1, "current", False, False), (None, "current", True, False)]:  # fmt: skip
        own = records(
            [{**memories[0], "state": state}], queries, {("a", "q"): ["m1"]}, [("q", "m1", 1, 1, 1, lifecycle)]
        )
        found = audit(own, replace(QUICK, lifecycle_from_state=derived))
        assert any("--lifecycle-from-state" in text for text in found.unknown) is hint


def test_oddities_of_the_tables_are_in_the_report_and_an_old_report_leaves_nothing(tmp_path):
    routes = {("a", "q"): ["m1", "m2", "gone"]}
    queries = [{"query_id": "q", "namespace": "n"}]
    memories = [{"memory_id": f"m{n}", "namespace": "n"} for n in (1, 2)]
    odd = records(memories, queries, routes, [("q", "m1", 1, 1, 1, 1)])
    odd = replace(odd, rankings=odd.rankings.assign(score=[0.1, 0.3, 0.2]))
    written = report.write(audit(odd, QUICK), tmp_path / "r.html")
    body = BeautifulSoup(written["report"].read_text(), "html.parser")
    assert body.select_one("#oddities") is not None
    assert "rank 1 has score 0.1 and rank 2 has 0.3" in body.select_one("main").get_text(" ")
    assert read_csv(written["table_warnings"])["what"].item().startswith("in the route of arm 'a', query_id 'q'")
    assert {"table_warnings.csv", "check_ghosts.csv"} <= {path.name for path in written["checks"].parent.iterdir()}
    (written["checks"].parent / "mine.csv").write_text("x")
    good = records(memories, queries, {("a", "q"): ["m1", "m2"]}, [("q", "m1", 1, 1, 1, 1)])
    again = report.write(audit(good, QUICK), tmp_path / "r.html")
    assert BeautifulSoup(again["report"].read_text(), "html.parser").select_one("#oddities") is None
    there = {path.name for path in again["checks"].parent.iterdir()}
    assert there == {path.name for name, path in again.items() if name != "report"} | {"mine.csv"}


# --- hostile text --------------------------------------------------------------------------------------------------

HOSTILE = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "=HYPERLINK(\"http://evil.example\",\"x\")",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1+1",
    "'=1",
    "back\\slash\\n",
    "bell\x07 and \x1b[31m",
    "right\u202eleft",
    "line\nbreak\r\n=2",
    "</style></script><b>x",
    "[click](javascript:alert(1)) **bold** `code`",
    "x" * 10_000_000,
]  # fmt: skip


# Names hold no control characters but tabs and line ends; such records are refused. Texts may.
NAMES = [CONTROL.sub("", text) for text in HOSTILE]


def hostile():
    ids = [f"{text}#{n}" if n < 14 else text for n, text in enumerate(NAMES)]
    memories = [{"memory_id": one, "namespace": NAMES[n % 3], "text": HOSTILE[n]} for n, one in enumerate(ids)]
    # Two twins whose texts the report shows.
    memories += [
        {"memory_id": f"twin-{n}", "namespace": "n", "state": state, "text": f"{HOSTILE[9]} {HOSTILE[11]} {HOSTILE[0]}"}
        for n, state in enumerate(["superseded", "current"])
    ]
    queries = [
        {"query_id": f"{name}|q", "namespace": name, "principal": name, "text": HOSTILE[n]}
        for n, name in enumerate(NAMES[:14])
    ]
    queries[5]["namespace"], queries[5]["group"] = None, "=g"
    routes = {}
    for arm in ("<b>arm</b>", "=cmd|' /C calc'!A0"):
        for n, query in enumerate(queries):
            routes[arm, query["query_id"]] = [ids[(n + k) % 15] for k in range(5)] + ["=ghost()"]
    labels = [(q["query_id"], ids[(n + 2) % 15], 1, 1, 1, 1) for n, q in enumerate(queries)]
    own = records(memories, queries, routes, labels)
    return replace(own, name="<script>document.title='owned'</script>"), ids


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    own, ids = hostile()
    folder = tmp_path_factory.mktemp("hostile")
    return report.write(audit(own, replace(QUICK, target_recall="0.5")), folder / "report.html"), ids


def test_hostile_text_is_escaped_in_the_report(attacked):
    text = attacked[0]["report"].read_text(encoding="utf-8")
    assert len(text) < 3_000_000
    body = BeautifulSoup(text, "html.parser")
    assert not body.select("img[onerror]") and not body.select("main b")
    assert all(
        "owned" not in script.get_text() or script.get("type") == "application/json" for script in body.select("script")
    )
    assert body.title.get_text().startswith("Audit of <script>")
    assert not set(text) & {"\x07", "\x1b", "\u202e"}
    assert not [link["href"] for link in body.select("a[href]") if link["href"].startswith(("javascript", "http"))]


def test_no_csv_cell_starts_a_formula_and_ids_come_back(attacked):
    written, ids = attacked
    seen = set()
    for name, path in written.items():
        if name == "report":
            continue
        raw = path.read_text(encoding="utf-8")
        csv.field_size_limit(2**31 - 1)
        for row in csv.reader(io.StringIO(raw)):
            for cell in row:
                assert cell.isprintable(), (name, cell[:50])
                if cell[:1] in "=+-@\t\r" and cell:
                    float(cell)  # a negative number is a number
        table = read_csv(path)
        for column in {"memory_id", "query_id"} & set(table):
            seen |= set(table[column].dropna())
    asked = {f"{text}|q" for text in NAMES[:14]}
    assert asked | {"=ghost()"} <= seen <= asked | {"=ghost()", "twin-0"} | set(ids)
    assert any(one in seen for one in ids)


@given(st.text(max_size=30))
@settings(max_examples=300, deadline=None)
def test_guarding_can_be_undone(text):
    assert unguard(guard(text)) == text
    assert guard(text).isprintable() and guard(text)[:1] not in tuple("=+-@") if text else True


def test_written_tables_read_back(tmp_path):
    table = pd.DataFrame({"memory_id": [*HOSTILE[:14], "plain", "007"], "score": np.arange(16) - 8.5})
    table["flag"] = pd.array([True, False, pd.NA, True] * 4, dtype="boolean")
    back = read_csv(write_csv(table, tmp_path / "t.csv"))
    assert back["memory_id"].tolist() == table["memory_id"].tolist()
    assert back["score"].tolist() == table["score"].tolist() and back["flag"].isna().sum() == 4


def test_long_texts_are_cut_and_stay_apart():
    a, b = shown("x" * 10_000), shown("x" * 9_999 + "y")
    assert a != b and len(a) < 130 and "10,000 characters" in a
    assert shown("1\u00a0000") == "1 000"


def test_broken_utf8_is_refused(planted, tmp_path):
    folder = planted.write(tmp_path / "r")
    raw = (folder / "memories.jsonl").read_bytes()
    (folder / "memories.jsonl").write_bytes(raw[:200] + b"\xff\xfe" + raw[200:])
    with pytest.raises(FaultsError, match="not UTF-8"):
        audit(folder, QUICK)


# --- the report and the command ------------------------------------------------------------------------------------


@pytest.mark.browser
def test_the_report_in_a_browser(found, attacked, tmp_path):
    from axe_playwright_python.sync_playwright import Axe

    path = report.write(found, tmp_path / "report.html")["report"]
    wrong = []
    with open_browser() as browser:
        for page, widths in ((path, (390, 1440)), (attacked[0]["report"], (390,))):
            for width in widths:
                for mode in ("light", "dark"):
                    with Visit(browser, page, width=width, mode=mode) as visit:
                        where = f"{page.parent.name} {mode} {width}"
                        wrong += [f"{where}: console {error}" for error in visit.errors]
                        wrong += [f"{where}: request to {url}" for url in visit.requests]
                        wide = visit.page.evaluate("document.documentElement.scrollWidth")
                        wrong += [f"{where}: scrolls sideways to {wide}"] if wide > width else []
                        drawn = visit.page.locator("figure.companion-drawn").count()
                        wrong += [] if drawn == 2 else [f"{where}: {drawn} figures drawn"]
                        title = visit.page.title()
                        wrong += [f"{where}: title {title}"] if title == "owned" else []
                        rules = Axe().run(visit.page).response["violations"]
                        wrong += [f"{where}: axe {rule['id']} {rule['nodes'][0]['html'][:150]}" for rule in rules]
    assert wrong == []


def test_the_report_names_every_finding_and_holds_intervals(found, tmp_path):
    written = report.write(found, tmp_path / "report.html")
    body = BeautifulSoup(written["report"].read_text(), "html.parser")
    text = body.get_text(" ")
    for c in found.checks:
        assert body.find(id=f"check-{c.kind}") is not None and c.title in text
    row = found.summary.value(ROUTE, "evidence_recall")
    assert f"{row['estimate']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" in text.replace("\u00a0", " ")
    assert (tmp_path / "report-tables" / "worst_queries.csv").is_file()
    ids = [tag["id"] for tag in body.select("[id]")]
    assert len(ids) == len(set(ids))
    for link in body.select("a[href^='#']"):
        assert link["href"][1:] in ids


def test_the_command(planted, tmp_path):
    folder = planted.write(tmp_path / "records")
    runner = CliRunner()
    arguments = ["audit", str(folder), "--out", str(tmp_path / "r.html"), "--replicates", "100"]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "Ghosts" in done.stdout and (tmp_path / "r.html").is_file()
    told = json.loads(runner.invoke(app, [*arguments, "--json", "--reference", ROUTE]).stdout)
    assert {c["kind"]: c["outcome"] for c in told["checks"]} == dict.fromkeys(planted.truth, "found")
    assert told["checks"][5]["evidence"][0]["memory_id"] == planted.truth["ghosts"]["memory_id"]
    assert len(told["arms"]) and told["settings"]["seed"] == 0
    again = (tmp_path / "r.html").read_bytes()
    runner.invoke(app, [*arguments, "--reference", ROUTE])
    assert (tmp_path / "r.html").read_bytes() == again  # the same inputs give the same bytes


@pytest.mark.parametrize("name", ["z.pdf", "z", "z.html.gz", "z.csv"])
def test_a_report_under_the_name_of_something_else_is_refused(tmp_path, monkeypatch, capsys, name):
    out = tmp_path / name
    arguments = ["companion", "audit", str(data_dir() / "example"), "--out", str(out), "--replicates", "20"]
    monkeypatch.setattr("sys.argv", arguments)
    from companion.cli import main

    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == "" and said.err.count("\n") == 1
    assert f"{name}: the report is an HTML page; expected a name that ends in .html or .htm" in said.err
    assert list(tmp_path.iterdir()) == []
    own = audit(records(store(a1="a"), people("a"), {("r", "q0"): ["a1"]}), QUICK)
    with pytest.raises(InputError, match="HTML page"):
        report.write(own, out)
    assert report.write(own, tmp_path / "z.HTM")["report"].is_file()
