"""The audit: the first line tells the worst, failures are found where they are only, hostile text is inert."""

from __future__ import annotations

import csv
import errno
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

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
from companion.audit import (
    KINDS,
    FaultsError,
    Options,
    Resampling,
    audit,
    guard,
    macro_width,
    markdown,
    narrowing,
    over_arms,
    read_csv,
    remaining,
    shown,
    take_in,
    unguard,
    write,
    write_csv,
)  # fmt: skip
from companion.book import report
from companion.book.render import displayed_to
from companion.book.runs import notebooks_dir
from companion.cli import app
from companion.errors import InputError
from companion.labels import PairLabels, encode
from companion.paths import data_dir
from companion.tables import Records, validate
from companion.tables.problems import CONTROL

QUICK = Options(resampling=Resampling(replicates=200))
DERIVED = replace(QUICK, lifecycle_from_state=True)
AXES = ["scope", "policy", "lifecycle"]
CHAPTER = notebooks_dir() / "06-audit.md"
HEADERS = {
    "memories": "memory_id,namespace",
    "queries": "query_id,namespace",
    "rankings": "arm,query_id,rank,memory_id",
    "labels": "query_id,memory_id,relevant,scope,policy,lifecycle",
    "ledger": "query_id,arm,memory_id,retrieved,exposed",
}


def folder(place, **tables):
    """Write tables given as rows apart by spaces; a first row that begins with a column's name is the header."""
    place.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        rows = text.split(" ") if isinstance(text, str) else list(text)
        header = [] if rows[0].split(",")[0] in HEADERS[name].split(",") else [HEADERS[name]]
        (place / f"{name}.csv").write_text("\n".join([*header, *rows, ""]), encoding="utf-8")
    return place


def audited(place, memories, queries, rankings=None, options=QUICK, **tables):
    tables = {"memories": memories, "queries": queries, **({"rankings": rankings} if rankings else {}), **tables}
    return audit(folder(place, **tables), options)


def told(found, kind):
    return found[kind].outcome, found[kind].instances


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


def check(kind, own, options=QUICK, **changes):
    return audit(own, replace(options, **changes))[kind]


def people(*spaces, **columns):
    return [{"query_id": f"q{n}", "namespace": s, "group": "g", **columns} for n, s in enumerate(spaces)]


def store(**spaces):
    return [{"memory_id": m, "namespace": s or None} for m, s in spaces.items()]


# --- known, and returned all the same ------------------------------------------------------------------------------


def test_the_first_line_names_the_leak(tmp_path):
    found = audited(tmp_path, "a1,alice b1,bob", "q1,alice", "s,q1,1,b1")
    assert told(found, "wrong_scope") == ("found", 1)
    assert found.headline.startswith("1 of 1 returned items belongs to another owner (s 1 of 1 (100.0%))")
    assert found.found[0].kind == "wrong_scope" == found.checks[0].kind
    assert found["wrong_scope"].evidence[["asker", "owner"]].to_numpy().tolist() == [["alice", "bob"]]


@pytest.mark.parametrize(
    ("memories", "queries", "rankings", "labels", "told_as"),
    [
        ("a1,alice b1,bob", "q1,alice", "s,q1,1,a1 s,q1,2,b1", None, ("found", 1)),
        ("a1,alice b1,bob", "q1,alice", "s,q1,1,a1", None, ("clear", 0)),
        ("a1,alice b1,bob", "q1,alice", "s,q1,1,b1", "q1,b1,,1,,", ("clear", 0)),  # a label shares it
        ("a1,alice b1,alice", "q1,alice", "s,q1,1,b1", "q1,b1,,0,,", ("found", 1)),  # a label takes it away
        ("a1,alice b1,", "q1,alice", "s,q1,1,b1", None, ("unknown", 0)),
        ("a1,alice b1,bob", "q1,", "s,q1,1,b1", None, ("unknown", 0)),
        ("memory_id,namespace,shared a1,alice,0 b1,bob,1", "q1,alice", "s,q1,1,b1", None, ("clear", 0)),
        ("a1,alice b1,NULL", "q1,alice", "s,q1,1,b1 s,q1,2,a1", None, ("clear", 0)),  # nobody is not another owner
    ],
)
def test_wrong_scope(tmp_path, memories, queries, rankings, labels, told_as):
    found = audited(tmp_path, memories, queries, rankings, **({"labels": labels} if labels else {}))
    assert told(found, "wrong_scope") == told_as
    wrong = found.crossing.set_index("metric")["estimate"]["wrong_scope"]
    assert bool(wrong > 0) is (told_as[0] == "found")  # the shares say the same as the check


def test_each_route_is_named_with_its_share(tmp_path):
    rankings = "one,q1,1,b1 one,q1,2,a1 two,q1,1,a1 two,q1,2,a2"
    found = audited(tmp_path, "a1,alice a2,alice b1,bob", "q1,alice", rankings)
    assert "(one 1 of 2 (50.0%); two none of 2)" in found.headline


@pytest.mark.parametrize(
    ("label", "told_as"),
    [("q1,a1,1,1,0,1", ("found", 1)), ("q1,a1,,,0,", ("found", 1)), ("q1,a1,0,1,0,0", ("found", 1)),
     ("q1,a1,1,1,1,1", ("clear", 0)), ("q1,a1,1,1,?,1", ("unknown", 0)), ("q1,a2,1,1,0,1", ("unknown", 0))],
)  # fmt: skip
def test_policy(tmp_path, label, told_as):
    found = audited(tmp_path, "a1,alice a2,alice", "q1,alice", "s,q1,1,a1", labels=label)
    assert told(found, "policy") == told_as
    assert ("forbidden by policy" in found.headline) is (told_as[0] == "found")


@pytest.mark.parametrize(
    ("state", "intent", "label", "told_as"),
    [
        ("forgotten", "current", None, ("found", 1)),
        ("forgotten", "", None, ("found", 1)),
        ("forgotten", "unknown", None, ("found", 1)),
        ("forgotten", "history", None, ("found", 1)),  # not known to be about the forgetting itself
        ("forgotten", "history", "q1,a1,1,1,1,1", ("clear", 0)),  # known to be
        ("forgotten", "current", "q1,a1,1,1,0,0", ("found", 1)),
        ("current", "current", None, ("clear", 0)),
        ("", "current", None, ("unknown", 0)),
    ],
)
def test_forgotten(tmp_path, state, intent, label, told_as):
    found = audited(
        tmp_path, f"memory_id,namespace,state a1,alice,{state}", f"query_id,namespace,intent q1,alice,{intent}",
        "s,q1,1,a1", **({"labels": label} if label else {}),
    )  # fmt: skip
    assert told(found, "forgotten") == told_as
    assert told(found, "policy")[0] != "found"  # one failure is told once
    share = found.crossing.set_index("metric")["estimate"]
    if told_as[0] == "found":
        assert share["policy_disallowed"] == 1 and share["unresolved"] == 0


@pytest.mark.parametrize(
    ("until", "asked", "intent", "told_as"),
    [
        ("2025-01-31", "2025-02-01", "current", ("found", 1)),
        ("2025-01-31", "2025-01-31T23:00", "current", ("clear", 0)),  # a bare date holds until its end
        ("2025-01-31T12:00Z", "2025-01-31T14:00+01:00", "", ("found", 1)),
        ("2025-01-31T12:00Z", "2025-01-31T13:00+01:00", "", ("clear", 0)),
        ("2025-01-31", "2025-02-01", "history", ("clear", 0)),
        ("soon", "2025-02-01", "current", ("unknown", 0)),
        ("2025-01-31", "", "current", ("unknown", 0)),
    ],
)
def test_expired(tmp_path, until, asked, intent, told_as):
    found = audited(
        tmp_path, f"memory_id,namespace,valid_until a1,alice,{until}",
        f"query_id,namespace,time,intent q1,alice,{asked},{intent}", "s,q1,1,a1", DERIVED,
    )  # fmt: skip
    assert told(found, "expired") == told_as
    share = found.crossing.set_index("metric")["estimate"]["lifecycle_incompatible"]
    assert share == (told_as[0] == "found")  # the same rule in the shares


@pytest.mark.parametrize(
    ("ledger", "told_as", "says"),
    [
        ("q1,s,b1,0,1", ("found", 1), "1 of another owner"),
        ("q1,s,a1,0,1", ("found", 1), "all of the asker"),
        ("q1,s,a1,1,1 q1,s,b1,0,1", ("found", 1), "1 of 2 memories in prompts was not retrieved"),
        ("q1,s,a1,0,1 q1,s,b1,0,1", ("found", 2), "2 of 2 memories in prompts were not retrieved"),
        ("q1,s,a1,1,1", ("clear", 0), ""),
        ("q1,s,a1,0,0", ("clear", 0), ""),
        ("q1,s,a1,1,", ("unknown", 0), ""),
    ],
)
def test_exposed_without_having_been_retrieved(tmp_path, ledger, told_as, says):
    found = audited(tmp_path, "a1,alice b1,bob", "q1,alice", "s,q1,1,a1", ledger=ledger)
    assert told(found, "exposed_unretrieved") == told_as and says in found["exposed_unretrieved"].says
    if "b1,0,1" in ledger:  # what it was is counted with the rest of the prompt
        assert found.crossing.set_index("metric")["estimate"]["wrong_scope"] == 1 / len(ledger.split())


# --- what is still in force ----------------------------------------------------------------------------------------

LINKED = "memory_id,namespace,state,superseded_by,time old,u,{old},new,2025-01-01 new,u,{new},,{time}"


@pytest.mark.parametrize("old", ["current", "", "superseded", "unknown"])
@pytest.mark.parametrize("new", ["current", ""])
def test_a_link_outranks_a_state(tmp_path, old, new):
    found = audited(
        tmp_path, LINKED.format(old=old, new=new, time="2025-02-01"), "query_id,namespace q,u", "s,q,1,old s,q,2,new",
        DERIVED, labels="q,new,1,1,1, q,old,1,1,1,",
    )  # fmt: skip
    assert told(found, "superseded") == ("found", 1)
    row = found["superseded"].evidence.iloc[0]
    assert (row["memory_id"], row["correction"], row["stands"]) == ("old", "new", "above")
    assert found.crossing.set_index("metric")["estimate"]["admissible"] == 0.5
    assert found.per_query["loss"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("written", "asked", "told_as"),
    [("2025-02-01", "2025-03-01", ("found", 1)), ("2025-02-01", "2025-01-15", ("clear", 0)),
     ("", "2025-01-15", ("found", 1)), ("2025-02-01", "", ("found", 1)), ("2025-02-01", "2025-02-01", ("found", 1))],
)  # fmt: skip
def test_the_state_is_the_one_before_the_question(tmp_path, written, asked, told_as):
    """A correction that came after the question did not hold yet; without times it holds for every question."""
    found = audited(
        tmp_path, LINKED.format(old="superseded", new="current", time=written), f"query_id,namespace,time q,u,{asked}",
        "s,q,1,old", DERIVED, labels="q,old,1,1,1,",
    )  # fmt: skip
    assert told(found, "superseded") == told_as
    assert found.crossing.set_index("metric")["estimate"]["admissible"] == (told_as[0] == "clear")


@pytest.mark.parametrize(
    ("state", "intent", "label", "told_as"),
    [
        ("superseded", "current", None, ("found", 1)),
        ("superseded", "", None, ("found", 1)),  # a question without an intent is about the present, here and in shares
        ("stale", "current", None, ("found", 1)),
        ("superseded", "history", None, ("clear", 0)),
        ("superseded", "unknown", None, ("unknown", 0)),
        ("current", "current", "q,m,1,1,1,0", ("found", 1)),  # a label says that it is not in force
        ("", "current", None, ("unknown", 0)),
    ],
)
def test_superseded_and_the_shares_follow_one_rule(tmp_path, state, intent, label, told_as):
    found = audited(
        tmp_path, f"memory_id,namespace,state m,u,{state} other,u,current", f"query_id,namespace,intent q,u,{intent}",
        "s,q,1,m", DERIVED, **({"labels": label} if label else {}),
    )  # fmt: skip
    assert told(found, "superseded") == (("clear", 0) if not state else told_as)
    assert found.crossing.set_index("metric")["estimate"]["lifecycle_incompatible"] == (told_as[0] == "found")
    if told_as[0] == "found":
        assert "1 of 1 returned items is outdated" in found["superseded"].says


def chain(link="supersedes", state=()):
    rows = [{"memory_id": m, "namespace": "a"} for m in ("v1", "v2", "v3", "x")]
    if link == "supersedes":
        rows[1]["supersedes"], rows[2]["supersedes"] = "v1", "v2"
    elif link == "superseded_by":
        rows[0]["superseded_by"], rows[1]["superseded_by"] = "v2", "v3"
    for row, value in zip(rows, state, strict=False):
        row["state"] = value
    return rows


@pytest.mark.parametrize("link", ["supersedes", "superseded_by"])
@pytest.mark.parametrize("states", [(), ("superseded", "superseded", "current", "current")])
def test_superseded_stands_above_beside_or_alone(link, states):
    queries = people("a", "a", "a", "a")
    for row, intent in zip(queries, ["current", "current", None, "history"], strict=True):
        row["intent"] = intent
    routes = {("r", "q0"): ["v1", "v3"], ("r", "q1"): ["v3", "x", "v2"], ("r", "q2"): ["x", "v2"],
              ("r", "q3"): ["v1", "v2"]}  # fmt: skip
    got = check("superseded", records(chain(link, states), queries, routes))
    assert got.evidence[["query_id", "memory_id", "stands"]].to_numpy().tolist() == [
        ["q0", "v1", "above"], ["q1", "v2", "beside"], ["q2", "v2", "alone"],
    ]  # fmt: skip
    assert got.evidence["correction"].tolist() == ["v3", "v3", "v3"]
    assert ("follow from supersedes links" in got.says) is not states


def test_circular_and_dangling_links_do_no_harm():
    rows = chain("")
    rows[0]["supersedes"], rows[1]["supersedes"], rows[2]["supersedes"] = "v2", "v1", '["gone", "v3"]'
    found = audit(records(rows, people("a"), {("r", "q0"): ["v1", "v2"]}), QUICK)
    assert found["superseded"].outcome == "found" and found["contradictory_current"].outcome == "found"
    bare = records(chain(""), people("a"), {("r", "q0"): ["v1", "v3"]})
    assert check("superseded", bare).outcome == "unknown"


OLD = "The monthly retainer for Abernathy and Daughters is 550 pounds, VAT included."


@pytest.mark.parametrize(
    ("text", "twin"),
    [
        (OLD.upper(), True),
        (f"Fwd: {OLD}", True),
        (OLD.replace("Daughters", "Daugters"), True),
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
        assert "1 memory repeats one of 2 outdated memories" in got.says and "1 was returned" in got.says


def test_a_linked_correction_is_no_twin():
    memories = [
        {"memory_id": "old", "namespace": "a", "state": "superseded", "text": OLD},
        {"memory_id": "new", "namespace": "a", "state": "current", "text": f"{OLD}!", "supersedes": "old"},
    ]
    assert check("stale_twins", records(memories, people("a"), {("r", "q0"): ["new"]})).outcome == "clear"


def test_twins_are_those_of_a_comparison_of_all_pairs():
    """Blocking by owner, numbers and words loses no pair that comparing everything with everything finds."""
    from sklearn.feature_extraction.text import CountVectorizer

    rng = np.random.default_rng(5)
    words = [f"{a}{b}" for a in ("ba", "ce", "di", "fo", "gu") for b in ("ran", "sel", "tim", "vok", "wun")]
    base = [" ".join(rng.choice(words, 9)) + f" {rng.integers(3)}" for _ in range(30)]
    texts = [*base, *(t.replace("ran", "ram", 1) for t in base), *(f"re {t}" for t in base), *(t.upper() for t in base)]
    memories = pd.DataFrame({"memory_id": [f"m{n}" for n in range(len(texts))], "text": texts})
    memories["namespace"] = rng.choice(["a", "b"], len(texts))
    memories["state"] = rng.choice(["superseded", "current"], len(texts))
    got = check("stale_twins", records(memories, people("a"), {("r", "q0"): ["m0"]}))
    said = set(map(tuple, got.evidence[["memory_id", "twin"]].to_numpy()))
    plain = memories["text"].str.casefold()
    grams = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5), binary=True).fit_transform(plain).toarray()
    unit = grams / np.linalg.norm(grams, axis=1, keepdims=True)
    near, rows = unit @ unit.T, memories.assign(number=plain.str.split().str[-1])
    wanted = {
        (rows["memory_id"][i], rows["memory_id"][j])
        for i in np.flatnonzero(rows["state"] == "superseded") for j in np.flatnonzero(rows["state"] == "current")
        if near[i, j] >= 0.8 and rows["namespace"][i] == rows["namespace"][j] and rows["number"][i] == rows["number"][j]
    }  # fmt: skip
    assert said == wanted and len(wanted) > 20


@pytest.mark.parametrize(
    ("rows", "route", "told_as"),
    [
        (["a,u,current,,The retainer is 550 pounds", "b,u,current,,The retainer is 650 pounds"], "ab", ("found", 1)),
        (["a,u,current,,The plan is gold now", "b,u,current,,The plan is silver now."], "a", ("found", 1)),
        (["a,u,current,,The plan is gold now", "b,u,current,,The plan is gold now"], "ab", ("clear", 0)),  # a repeat
        (["a,u,current,,The plan is gold now", "b,u,superseded,,The plan is silver now"], "ab", ("clear", 0)),
        (["a,u,current,,The plan is gold now", "b,w,current,,The plan is silver now"], "ab", ("clear", 0)),
        (["a,u,current,,The plan is gold now", "b,u,current,,Plans change and people forget"], "ab", ("clear", 0)),
        (
            ["a,u,current,,The plan is gold now", "b,u,current,,The plan is silver now", "c,u,current,,x"],
            "c",
            ("clear", 0),
        ),
        (["a,u,current,o,x", "b,u,current,o,y", "o,u,superseded,,z"], "a", ("found", 1)),  # two heads of one chain
        (["a,u,current,o,x", "b,u,current,a,y", "o,u,superseded,,z"], "b", ("clear", 0)),  # one after the other
    ],
)
def test_two_current_facts(tmp_path, rows, route, told_as):
    ranked = " ".join(f"s,q,{n},{m}" for n, m in enumerate(route, start=1))
    header = "memory_id,namespace,state,supersedes,text"
    found = audited(tmp_path, [header, *rows], "q,u", ranked)
    assert told(found, "contradictory_current") == told_as
    if told_as[0] == "found":
        assert found["contradictory_current"].evidence[["memory_id", "other"]].to_numpy().tolist() == [["a", "b"]]
        assert found["contradictory_current"].evidence["together"].item() == (route == "ab")


def test_a_key_makes_two_facts_one_matter(tmp_path):
    rows = ["memory_id,namespace,state,key,text", "a,u,current,city,Oslo", "b,u,current,city,Bergen in the west",
            "c,u,current,plan,gold", "d,w,current,city,Rome"]  # fmt: skip
    found = audited(tmp_path, rows, "q,u", "s,q,1,a s,q,2,b s,q,3,c")
    assert found["contradictory_current"].evidence[["memory_id", "other", "by"]].to_numpy().tolist() == [
        ["a", "b", "one key"]
    ]


# --- who asks, who owns --------------------------------------------------------------------------------------------


def test_wildcard_needs_an_empty_name_and_foreign_memories():
    memories = store(a1="a", a2="a", b1="b")
    routes = {("r", "q0"): ["a1"], ("r", "q1"): ["b1"], ("r", "q2"): ["a1", "a2"]}
    assert check("wildcard", records(memories, people("a", "b", None), routes)).outcome == "clear"
    loud = routes | {("r", "q2"): ["a1", "b1"]}
    got = check("wildcard", records(memories, people("a", "b", None), loud))
    assert got.evidence[["query_id", "empty", "namespaces"]].to_numpy().tolist() == [["q2", "namespace", 2]]
    assert got.evidence["named_askers_that_cross"].item() == 0 and "switches it off" in got.says
    assert "1 query has no namespace or no principal; 1 was answered from up to 2 namespaces" in got.says
    assert check("wildcard", records(memories, people("a"), {("r", "q0"): ["b1"]})).outcome == "clear"
    crossing = {("r", "q0"): ["a1", "b1"], ("r", "q1"): ["b1", "a1"]}
    assert "no scope filter at all" in check("wildcard", records(memories, people("a", None), crossing)).says
    alone = records(memories, people("null"), {("r", "q0"): ["a1", "b1"]})
    assert check("wildcard", alone).outcome == "unknown"


@pytest.mark.parametrize("word", ["undefined", "None", "NULL", "nan", "*", " ", "-"])
def test_words_for_nothing_are_nobody_in_checks_and_shares(tmp_path, word):
    """A program's word for nothing is no namespace: not another owner, not a shared one, not a single group."""
    found = audited(tmp_path, ["a1,alice", "b1,bob", f"c1,{word}"], [f"q0,{word}", "q1,alice", "q2,bob"],
                    "r,q0,1,a1 r,q0,2,b1 r,q1,1,a1 r,q1,2,c1 r,q2,1,b1 r,q2,2,c1")  # fmt: skip
    assert told(found, "wildcard") == ("found", 1) and told(found, "ownerless") == ("found", 1)
    assert told(found, "wrong_scope") == ("clear", 0)
    scope = scoring.label_ranked(found.records).set_index(["query_id", "memory_id"])["scope"]
    assert scope.loc["q0"].isna().all() and pd.isna(scope["q1", "c1"]) and scope["q1", "a1"]


def test_an_empty_principal_is_an_empty_name():
    memories = store(a1="a", b1="b")
    queries = [
        {"query_id": "q0", "namespace": "a", "principal": " "},
        {"query_id": "q1", "namespace": "a", "principal": "x"},
    ]
    got = check("wildcard", records(memories, queries, {("r", "q0"): ["a1", "b1"], ("r", "q1"): ["a1"]}))
    assert got.evidence["empty"].tolist() == ["principal"]


def test_ownerless_rows_count_only_when_returned():
    memories = store(a1="a", free="", b1="b", spare="b")
    routes = {("r", "q0"): ["a1"], ("r", "q1"): ["b1"]}
    assert check("ownerless", records(memories, people("a", "b"), routes)).outcome == "clear"
    seen = {("r", "q0"): ["a1", "free"], ("r", "q1"): ["free", "b1"]}
    got = check("ownerless", records(memories, people("a", "b"), seen))
    assert got.evidence[["memory_id", "namespaces", "queries", "best_rank"]].to_numpy().tolist() == [["free", 2, 2, 1]]
    assert "1 of 4 memories has no owner; 1 was returned" in got.says
    assert "a column shared in memories" in got.advice and "a namespace of their own" not in got.advice + got.limits
    assert "must state it for every pair they list" in got.limits


def test_shared_memories_are_said_once(tmp_path):
    """A namespace or a column makes scope 1 for everybody; nothing is found, and nothing is open."""
    rows, queries, ranked = "a1,alice h1,handbook", "q1,alice q2,bob", "s,q1,1,h1 s,q2,1,h1 s,q1,2,a1"
    assert audited(tmp_path / "0", rows, queries, ranked)["wrong_scope"].instances == 2
    said = audited(tmp_path / "1", rows, queries, ranked, replace(QUICK, shared=("handbook",)))
    column = audited(tmp_path / "2", "memory_id,namespace,shared a1,alice,0 h1,,1", queries, ranked)
    for found in (said, column):
        assert told(found, "wrong_scope") == ("clear", 0) and told(found, "ownerless")[0] == "clear"
        assert scoring.label_ranked(found.records)["scope"].all()


# --- filters that run late -----------------------------------------------------------------------------------------


def test_late_filter_counts_only_what_could_have_been_returned():
    memories = [
        {"memory_id": f"a{n}", "namespace": "a", "time": "2025-01-01" if n < 5 else "2025-12-01"} for n in range(7)
    ]
    memories += store(b1="b")
    queries = [{"query_id": q, "namespace": "a", "time": "2025-06-01T00:00:00Z"} for q in ("q0", "q1")]
    routes = {("r", "q0"): ["a0", "a1", "a2", "a3"], ("r", "q1"): ["a0"]}
    got = check("late_filter", records(memories, queries, routes))
    assert got.evidence[["query_id", "k", "items", "left_behind"]].to_numpy().tolist() == [["q1", 4, 1, 4]]
    assert "1 of 2 routes holds only the asker's memories and ends before k" in got.says
    forbidden = [("q1", f"a{n}", None, 1, 1, 0) for n in range(1, 5)]
    assert check("late_filter", records(memories, queries, routes, forbidden)).outcome == "clear"
    assert check("late_filter", records(memories, queries, {("r", "q0"): ["a0", "a1"], ("r", "q1"): ["a0"]}),
                 top_k=1).outcome == "clear"  # fmt: skip


@pytest.mark.parametrize(
    ("memories", "queries", "rankings"),
    [
        ("a1,a a2,a a3,a", "q1,a q2,a", "s,q1,1,a1 s,q1,2,a2 s,q2,1,a3"),  # a single namespace
        ("a1,a b1,b b2,b", "q1,a q2,b", "s,q1,1,a1 s,q2,1,b1 s,q2,2,b2"),  # stores as small as the routes
        ("a1,a b1,b", "q1, q2,", "s,q1,1,a1 s,q2,1,b1"),  # nobody asks by name
        ("a1, b1,", "q1,a q2,b", "s,q1,1,a1 s,q2,1,b1"),  # nobody owns anything
    ],
)
def test_a_late_filter_cannot_be_known(tmp_path, memories, queries, rankings):
    assert told(audited(tmp_path, memories, queries, rankings), "late_filter") == ("unknown", 0)


def test_an_arm_that_crosses_has_no_filter_that_could_run_late():
    """The arm gave q0 a stranger, so q1's short route was not cut by a filter; the arm beside it never crosses."""
    memories = store(a1="a", a2="a", a3="a", b1="b")
    crossing = {("open", "q0"): ["a1", "b1", "a2"], ("open", "q1"): ["a1"]}
    got = check("late_filter", records(memories, people("a", "a"), crossing))
    assert got.outcome != "found"
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
    memories, queries = store(a1="a", a2="a", a3="a", b1="b"), people("a", "a", "a", principal="ann")
    if reason.startswith("no_n"):
        queries[2]["namespace"] = None
    if reason == "no_principal":
        queries[2]["principal"] = None
    stranger = "gone" if reason == "ghost" else "b1"
    routes = {("r", "q0"): ["a1", "a2", "a3"], ("r", "q1"): ["a1"], ("r", "q2"): ["a1", stranger, "a3"]}
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
    assert check("late_filter", own, top_k=1).outcome == "clear"


@pytest.mark.parametrize(
    ("intent", "derived", "label", "left"),
    [
        ("current", False, None, 3),  # forgotten memories are forbidden in any case
        ("current", True, None, 2),
        ("history", True, None, 3),  # a superseded fact may answer a question about the past
        ("unknown", True, None, 3),
        ("current", False, ("q1", "a1", None, 1, 1, 0), 2),
        ("current", True, ("q1", "a2", None, 1, 1, 1), 3),  # a label that is given outweighs the state
    ],
)
def test_what_is_out_of_force_is_left_behind_only_where_nothing_says_so(intent, derived, label, left):
    """q1 misses a current, a superseded, a forgotten and an unknown memory; states count where they may be read."""
    states = {"a0": "current", "a1": "current", "a2": "superseded", "a3": "forgotten", "a4": "unknown", "b": "current"}
    memories = [{"memory_id": m, "namespace": m[0], "state": s} for m, s in states.items()]
    routes = {("r", "q0"): ["a0", "a1", "a2", "a3", "a4"], ("r", "q1"): ["a0"]}
    own = records(memories, people("a", "a", intent=intent), routes, [label] if label else [])
    got = check("late_filter", own, lifecycle_from_state=derived)
    assert got.evidence["query_id"].tolist() == ["q1"] and got.evidence["left_behind"].item() == left
    assert ("--lifecycle-from-state" in got.limits) is not derived


# --- logs shaped like production's ---------------------------------------------------------------------------------


def test_a_request_served_by_one_arm_is_no_empty_route_of_the_other(tmp_path):
    """v1 answers a, v2 answers b, both right: recall 1, loss 0, and no late filter."""
    found = audited(
        tmp_path, "m1,x m2,x m3,x n1,y", "a,x b,x", "v1,a,1,m1 v2,b,1,m2", labels="a,m1,1,1,1,1 b,m2,1,1,1,1",
    )  # fmt: skip
    assert (
        found.summary.arms.query("source == 'macro'")[["evidence_recall", "loss"]].to_numpy().tolist() == [[1, 0]] * 2
    )
    assert found["late_filter"].outcome != "found" and len(found.worst) == 0


@pytest.mark.parametrize(
    ("stored", "returned", "gone"),
    [("m1 m2 m3", "m1 m2", []), ("m1 m2", "m1 gone", ["gone"]), ("m1", "x y x2", ["x", "x2", "y"])],
)
def test_ghosts(tmp_path, stored, returned, gone):
    memories = " ".join(f"{m},a" for m in stored.split())
    ranked = " ".join(f"s,q,{n},{m}" for n, m in enumerate(returned.split(), start=1))
    found = audited(tmp_path, memories, "q,a", ranked)
    assert sorted(found["ghosts"].evidence.get("memory_id", [])) == gone and told(found, "ghosts")[1] == len(gone)


def test_ghosts_in_routes_and_prompts():
    book = pd.DataFrame({"query_id": "q0", "arm": "r", "memory_id": ["a1", "ghost"], "retrieved": 1, "exposed": [1, 1]})
    labels = [("q0", "ghost", 1, 1, 1, 1), ("q0", "a1", 1, 1, 1, 1)]
    own = records(store(a1="a"), people("a"), {("r", "q0"): ["a1", "ghost"]}, labels, ledger=book)
    got = audit(own, QUICK)
    assert got["ghosts"].evidence[["memory_id", "queries", "prompts", "lifecycle"]].to_numpy().tolist() == [
        ["ghost", 1, 1, "unresolved"]
    ]
    assert "1 id is in routes or prompts of 1 query though the store does not hold it: ghost" in got["ghosts"].says
    assert scoring.anchors_of(got.records)["memory_id"].tolist() == ["a1"]
    own.labels.loc[0, "lifecycle"] = 0
    assert scoring.label_ranked(take_in(own).records)["lifecycle"].tolist() == [True, False]  # an established no stands


def test_a_store_made_of_the_log_hides_ghosts_and_owners(tmp_path):
    """Nothing is known of what the log does not name; a store that holds more than was returned is a real one."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "import-notes.json").write_text('{"store": "log"}')
    found = audited(tmp_path / "log", "m1,alice m2,", "q,alice", "s,q,1,m1 s,q,2,m2")
    assert told(found, "ghosts")[0] == told(found, "ownerless")[0] == "unknown"
    (tmp_path / "log" / "import-notes.json").write_text('{"store": "given"}')
    assert told(audit(tmp_path / "log", QUICK), "ghosts") == ("clear", 0)
    assert told(audited(tmp_path / "seems", "m1,alice m2,", "q,alice", "s,q,1,m1 s,q,2,m2"), "ghosts")[0] == "unknown"
    assert any("exactly what was returned" in said for said in found.unknown)
    alone = audited(tmp_path / "one", "m1,", "q,alice", "s,q,1,m1")
    assert told(alone, "ownerless")[0] == "unknown" and alone.found == []
    real = audited(tmp_path / "real", "m1,alice m2, m3,bob", "q,alice", "s,q,1,m1 s,q,2,m2")
    assert told(real, "ghosts") == ("clear", 0) and told(real, "ownerless") == ("found", 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [("7", "7.0"), ("7", "007"), ("ns", "ns "), ("Ann", "ann"), ("caf\u00e9", "cafe\u0301"), ("a\u200bb", "ab"),
     ("\uff41", "a"), ("10", "0010.00")],
)  # fmt: skip
def test_ids_that_differ_only_in_form(tmp_path, one, other):
    found = audited(tmp_path, [f"{one},n", "spare,n"], "q,n", [f"s,q,1,{other}"])
    assert told(found, "id_forms") == ("found", 1) and told(found, "ghosts") == ("found", 1)
    assert set(found["id_forms"].evidence[["one", "other"]].iloc[0]) == {one, other}
    spaces = audited(tmp_path / "spaces", [f"m1,{one}", "m2,else"], [f"q,{other}"], "s,q,1,m1")
    assert told(spaces, "id_forms") == ("found", 1) and told(spaces, "wrong_scope") == ("found", 1)


@pytest.mark.parametrize("pair", [("7", "70"), ("1.5", "15"), ("m-1", "m1"), ("1e3", "1000"), ("a", "b"), ("0", "00x")])
def test_ids_that_differ_in_more_than_form(tmp_path, pair):
    assert told(audited(tmp_path, [f"{pair[0]},n", f"{pair[1]},n"], "q,n", [f"s,q,1,{pair[0]}"]), "id_forms") == (
        "clear",
        0,
    )


def test_no_number_disagrees_with_its_noun(tmp_path):
    """One of anything, in everything that is said: never "1 memories", "1 times" or "1 routes"."""
    found = audited(
        tmp_path, "memory_id,namespace,state,superseded_by a1,alice,superseded,a2 a2,alice,current, f1,,, b1,bob,,",
        "query_id,namespace,principal q1,alice,ann q2,,bob", "s,q1,1,a1 s,q1,2,f1 s,q1,3,gone s,q2,1,a1 s,q2,2,b1",
        ledger="q1,s,b1,0,1 q1,s,a1,1,1",
    )  # fmt: skip
    text = " ".join([*(f"{c.says} {c.advice} {c.limits}" for c in found.checks), *found.unknown, markdown(found)])
    assert len(found.found) >= 5
    assert (
        re.findall(r"\b1 (?:more )?(?:memories|rows|times|items|queries|routes|ids|places|pairs|checks|spaces)\b", text)
        == []
    )


@pytest.mark.parametrize(("groups", "replicates", "given"), [(1, 1000, False), (3, 199, False), (3, 200, True)])
def test_no_interval_without_groups_or_replicates(tmp_path, groups, replicates, given):
    memories = " ".join(f"m{n},n{n}" for n in range(groups)) + " spare,x"
    ranked = " ".join(f"s,q{n},1,m{n}" for n in range(groups))
    labels = " ".join(f"q{n},m{n},1,1,1,1" for n in range(groups))
    options = replace(QUICK, resampling=Resampling(replicates=replicates))
    found = audited(tmp_path, memories, " ".join(f"q{n},n{n}" for n in range(groups)), ranked, options, labels=labels)
    assert found.crossing["low"].notna().any() == given
    assert found.summary.intervals["low"].notna().any() == given
    assert any("No intervals" in line for line in report.method(found)) is not given


# --- nothing found, and what could not be looked for ---------------------------------------------------------------


def test_nothing_found_says_what_could_not_be_looked_for(tmp_path):
    found = audited(tmp_path, "a1,alice a2,alice b1,bob", "q1,alice", "s,q1,1,a1")
    assert found.found == [] and found.headline.startswith("Nothing was found")
    for kind in ("policy", "superseded", "expired", "exposed unretrieved", "forgotten"):
        assert kind in found.headline
    assert "**Nothing was found" in markdown(found)


@pytest.mark.parametrize("axis", AXES)
def test_a_known_violation_of_any_axis_is_found(tmp_path, axis):
    values = ["0" if name == axis else "1" for name in AXES]
    found = audited(tmp_path, "a1,alice a2,alice b1,bob", "q1,alice", "s,q1,1,a1", labels=f"q1,a1,1,{','.join(values)}")
    kinds = {"scope": "wrong_scope", "policy": "policy", "lifecycle": "superseded"}
    assert [c.kind for c in found.found] == [kinds[axis]] and not found.headline.startswith("Nothing")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_known_to_be_inadmissible_is_found(seed):
    own, _ = made_up(seed)
    found = audit(replace(own, rankings=own.rankings[own.rankings["rank"] <= 5]), QUICK)
    bad = scoring.label_ranked(found.records)
    bad = bad[bad["admissible"].eq(False).fillna(False)]
    kinds = ("wrong_scope", "policy", "forgotten", "superseded", "expired")
    evidence = [found[kind].evidence for kind in kinds if len(found[kind].evidence)]
    told_of = pd.concat(evidence)[["arm", "query_id", "memory_id"]].drop_duplicates()
    assert len(bad.merge(told_of)) == len(bad) > 0
    assert [c.kind for c in found.checks] == sorted((c.kind for c in found.checks), key=lambda kind: (
        ("found", "unknown", "clear").index(found[kind].outcome), KINDS.index(kind)))  # fmt: skip


# --- planted failures ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def garden():
    return demo_records("company")


@pytest.fixture(scope="module")
def planted(garden):
    return plant(garden)


@pytest.fixture(scope="module")
def found():
    return audit(data_dir() / "example", QUICK)


def test_nothing_but_what_labels_know_is_found_before_planting(garden):
    clean = garden.rankings[garden.rankings["arm"].eq(ROUTE) & (garden.rankings["rank"] <= 10)].reset_index(drop=True)
    got = audit(replace(garden, rankings=clean, ledger=None), replace(QUICK, reference=ROUTE))
    assert {c.kind for c in got.found} <= {"policy", "forgotten", "superseded"}
    assert set(got["superseded"].evidence["stands"]) <= {"unlinked", "labelled"}
    # Without ghosts the estimates are exactly what companion score computes.
    want = scoring.summarise(scoring.score_routes(got.records), reference=ROUTE, resampling=Resampling(replicates=200))
    pd.testing.assert_frame_equal(got.summary.intervals, want.intervals)


def test_each_planted_failure_is_found_where_it_was_planted(found, planted, tmp_path):
    for path in planted.write(tmp_path).iterdir():
        assert path.read_bytes() == (data_dir() / "example" / path.name).read_bytes()  # the example is what is planted
    for kind, truth in planted.truth.items():
        evidence, c = found[kind].evidence, found[kind]
        assert len(evidence) == 1 or kind == "superseded", kind
        for column in {"query_id", "memory_id", "twin", "correction"} & set(truth) & set(evidence):
            assert evidence[column].iloc[0] == truth[column], (kind, column)
        assert c.instances and c.says and c.advice


def test_a_ghosts_lifecycle_is_unresolved(found, planted):
    ghost = planted.truth["ghosts"]["memory_id"]
    with pytest.raises(InputError, match=ghost):
        planted.records.check()  # scoring refuses what the audit reports
    rows = scoring.label_ranked(found.records)
    mine = rows[rows["memory_id"] == ghost]
    assert len(mine) and mine["lifecycle"].isna().sum() > 0 and not mine["lifecycle"].fillna(False).any()
    given = planted.records.labels  # labels once said that it was current
    assert given.loc[given["memory_id"] == ghost, "lifecycle"].fillna(False).any()


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


# --- worst queries, and what reached the prompt --------------------------------------------------------------------


def test_worst_queries_count_everything_returned_and_name_reasons():
    memories = store(a1="a", a2="a", a3="a", b1="b")
    labels = [("q0", "a1", 1, 1, 1, 1), ("q0", "a2", 0, 1, 0, 1), ("q1", "a3", 1, 1, 1, 1), ("q0", "a3", 0, 1, None, 1)]
    routes = {("r", "q0"): ["a1", "b1", "a2", "a3"], ("r", "q1"): ["b1", "a2"]}
    worst = audit(records(memories, people("a", "a", "a"), routes, labels), QUICK).worst
    assert worst[["query_id", "loss", "looked_at", "violations", "unresolved"]].to_numpy().tolist() == [
        ["q0", 0.0, 4, 2, 1],
        ["q1", 1.0, 2, 1, 1],
    ]
    assert worst["reasons"].tolist() == [
        "2 of 4 may not be used: b1 (scope), a2 (policy); 1 unresolved",
        "misses the evidence: a3; 1 of 2 may not be used: b1 (scope); 1 unresolved",
    ]


def test_the_ledger_decides_what_reached_the_prompt():
    memories, labels, routes = store(a1="a", b1="b"), [("q0", "a1", 1, 1, 1, 1)], {("r", "q0"): ["a1", "b1"]}
    book = pd.DataFrame(
        {"query_id": "q0", "arm": "r", "memory_id": ["a1", "b1"], "retrieved": [1, 1], "exposed": ["1", "?"]}
    )
    got = audit(records(memories, people("a"), routes, labels, ledger=book), QUICK)
    share = got.crossing.set_index("metric")["estimate"]
    assert got.crossing_from == "ledger" and share["admissible"] == 1 and share["wrong_scope"] == 0
    assert got.steps[["retrieved", "exposed", "exposure_not_recorded"]].to_numpy().tolist() == [[2, 1, 1]]
    assert report.held(got) == "by the ledger, one memory for each question"
    own = records(memories, people("a"), routes, labels)
    assert audit(own, QUICK).crossing.set_index("metric")["estimate"]["wrong_scope"] == 0.5
    first = audit(own, replace(QUICK, items=1))
    assert first.crossing.set_index("metric")["estimate"]["wrong_scope"] == 0 and first.crossing_from == "rankings"


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
    assert said in BeautifulSoup(report.page(got, CHAPTER), "html.parser").get_text(" ")
    if "labels" in drop:
        assert got.summary is None and got["policy"].outcome != "found"
    if drop == ["labels"]:
        scope = got.crossing[got.crossing["metric"] == "wrong_scope"]
        assert scope["estimate"].notna().all() and {c.kind for c in got.found} >= {"wildcard", "ghosts", "ownerless"}


@pytest.mark.parametrize("axis", ["relevant", "policy", "lifecycle"])
def test_an_axis_without_labels_is_said(planted, axis):
    memories = planted.records.memories.replace({"state": {"forgotten": "unknown"}})  # forbidden without any label
    got = audit(replace(planted.records, memories=memories, labels=planted.records.labels.drop(columns=axis)), QUICK)
    assert any(f"known value of {axis}" in sentence for sentence in got.unknown)
    assert any("No query has an anchor" in sentence for sentence in got.unknown)
    assert got.summary is None and got.crossing is not None and len(got.worst)


def test_lifecycle_can_be_derived_from_states_when_asked(planted):
    own = replace(planted.records, labels=planted.records.labels.drop(columns="lifecycle"))
    plain, derived = audit(own, QUICK), audit(own, DERIVED)
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
    assert len(refused.value.faults) == text.count('"intent": "now"') > 30


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


@pytest.mark.parametrize("seed", range(8))
def test_any_records_are_audited(seed):
    own = fuzzed(np.random.default_rng(seed))
    got = audit(own, replace(QUICK, target_recall="0.5", lifecycle_from_state=bool(seed % 2)))
    assert sorted(c.kind for c in got.checks) == sorted(KINDS)
    body = BeautifulSoup(report.page(got, CHAPTER), "html.parser").find("main").get_text(" ")
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


def reported(found, out):
    return write(found, report.page(found, CHAPTER), out)


def test_oddities_of_the_tables_are_in_the_report_and_an_old_report_leaves_nothing(tmp_path):
    memories, queries = store(m1="n", m2="n"), [{"query_id": "q", "namespace": "n"}]
    odd = records(memories, queries, {("a", "q"): ["m1", "m2", "gone"]}, [("q", "m1", 1, 1, 1, 1)])
    odd = replace(odd, rankings=odd.rankings.assign(score=[0.1, 0.3, 0.2]))
    written = reported(audit(odd, QUICK), tmp_path / "r.html")
    text = BeautifulSoup(written["report"].read_text(), "html.parser").select_one("#table-oddities").get_text(" ")
    assert "rank 1 has score 0.1 and rank 2 has 0.3" in text
    assert read_csv(written["table_warnings"])["what"].item().startswith("in the route of arm 'a', query_id 'q'")
    assert {"table_warnings.csv", "check_ghosts.csv"} <= {path.name for path in written["checks"].parent.iterdir()}
    (written["checks"].parent / "mine.csv").write_text("x")
    good = records(memories, queries, {("a", "q"): ["m1", "m2"]}, [("q", "m1", 1, 1, 1, 1)])
    again = reported(audit(good, QUICK), tmp_path / "r.html")
    assert "table-oddities" not in again["report"].read_text()
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
    return reported(audit(own, replace(QUICK, target_recall="0.5")), folder / "report.html"), ids


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
        if name in ("report", "summary"):
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

    path = reported(found, tmp_path / "report.html")["report"]
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
                        wrong += [] if drawn == 1 else [f"{where}: {drawn} figures drawn"]
                        title = visit.page.title()
                        wrong += [f"{where}: title {title}"] if title == "owned" else []
                        rules = Axe().run(visit.page).response["violations"]
                        wrong += [f"{where}: axe {rule['id']} {rule['nodes'][0]['html'][:150]}" for rule in rules]
    assert wrong == []


def test_the_report_begins_with_the_worst_and_names_every_check(found, tmp_path):
    written = reported(found, tmp_path / "report.html")
    body = BeautifulSoup(written["report"].read_text(), "html.parser")
    assert body.find("main").find("strong").get_text() == found.headline
    assert [tag["id"] for tag in body.select(".audit-check")] == [f"check-{c.kind}" for c in found.checks]
    row = found.summary.value(ROUTE, "evidence_recall")
    text = body.get_text(" ").replace("\u00a0", " ")
    assert f"{row['estimate']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" in " ".join(text.split())
    assert "Exercise" not in text and "company-0002-q07" not in body.find("h1").get_text()
    ids = [tag["id"] for tag in body.select("[id]")]
    assert len(ids) == len(set(ids))
    for link in body.select("a[href^='#']"):
        assert link["href"][1:] in ids


def chapter(**parameters):
    """Run chapter 06 in this process; return what it defines and what it displayed."""
    space, shown_here = {"__name__": "chapter"}, []
    with displayed_to(shown_here.append):
        for tags, code, text in report.cells(CHAPTER.read_text(encoding="utf-8")):
            if code:
                exec(compile(text, "06-audit", "exec"), space)
            if "parameters" in tags:
                space.update({"replicates": 200, **parameters})
    return space, [bundle.data.get("text/html", "") for bundle in shown_here]


def test_the_chapter_says_what_the_ledger_holds_whatever_is_asked():
    space, pages = chapter(top_k=5, items=10)
    assert not space["this"].defaults and space["found"].per_query["matched_prefix"].max() <= 5
    (figure,) = [page for page in pages if 'id="fig-prompt"' in page]
    assert "up to 5 memories for each question" in figure and "10 memories" not in figure
    assert space["by_hand"].round(9).to_dict() == {"memory_search": 0.417391304, "strict_search": 0.0}
    assert set(space["bare"].found[0].evidence) and space["bare"].found[0].kind != "policy"
    before, after = (space[name]["wrong_scope"].instances for name in ("found", "again"))
    assert after == before + 1


def test_the_chapters_verdicts_fail_when_the_data_are_changed(tmp_path, monkeypatch):
    place = shutil.copytree(data_dir() / "example", tmp_path / "example")
    table = pd.read_csv(place / "labels.csv", dtype=str)
    table.assign(policy="1", lifecycle="1").to_csv(place / "labels.csv", index=False)
    monkeypatch.setenv("COMPANION_DATA", str(tmp_path))
    source = CHAPTER.read_text().replace("replicates = 10000", "replicates = 200")
    monkeypatch.setattr(report, "cells", lambda text, whole=report.cells: whole(source))
    monkeypatch.setattr("companion.book.notebook.Chapter.defaults", True)
    with pytest.raises(AssertionError, match="strict_search holds less"):
        chapter()


def test_chapter_and_report_are_one_notebook():
    """The report takes the cells that are not about the example, in the order of the chapter."""
    made = list(report.cells(CHAPTER.read_text()))
    kept = [text for tags, _, text in made if not tags & {"example", "given"}]
    assert 8 <= len(kept) < len(made) / 2 and any("show_worst" in text for text in kept)
    assert all("company-" not in text for text in kept)


def run(*words):
    done = CliRunner().invoke(app, ["audit", *map(str, words), "--replicates", "200"])
    refused = isinstance(done.exception, InputError)  # companion.cli.main makes it one line and exit code 2
    assert refused or done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def code_of(done):
    return 2 if isinstance(done.exception, InputError) else done.exit_code


def test_the_command(planted, tmp_path):
    place, out = planted.write(tmp_path / "records"), tmp_path / "r.html"
    done = run(place, "--out", out)
    assert done.exit_code == 0 and "Ghosts" in done.stdout and out.is_file()
    said = json.loads(run(place, "--out", out, "--json", "--reference", ROUTE).stdout)
    keys = {"kind", "title", "outcome", "instances", "says", "advice", "evidence"}
    assert all(keys == set(c) for c in said["checks"]) and {c["kind"] for c in said["checks"]} == set(KINDS)
    by_kind = {c["kind"]: c for c in said["checks"]}
    assert by_kind["ghosts"]["evidence"][0]["memory_id"] == planted.truth["ghosts"]["memory_id"]
    assert all(len(c["evidence"]) == c["instances"] for c in said["checks"] if c["outcome"] == "found")
    assert done.stdout.splitlines()[0] == said["headline"] and len(said["arms"]) and said["settings"]["seed"] == 0
    again = out.read_bytes()
    run(place, "--out", out, "--reference", ROUTE)
    assert out.read_bytes() == again  # the same inputs give the same bytes


def test_every_kind_at_once(tmp_path):
    """All thirteen failures in one folder: the gravest first, evidence as JSON and as CSV, all in the report."""
    header = "memory_id,namespace,state,superseded_by,valid_until,text"
    memories = [
        header, "a1,alice,superseded,a2,,the plan costs 5 pounds a month", "a2,alice,current,,,the plan is gold now",
        "a3,alice,current,,,the plan is silver now", "a4,alice,current,,,Fwd: the plan costs 5 pounds a month",
        "f,alice,forgotten,,,x", "e,alice,current,,2025-01-01,y", "o,,current,,,z", "b1,bob,current,,,w",
        "c1,alice,current,,,v", "c2,alice,current,,,u", "C2,alice,current,,,t",
    ]  # fmt: skip
    queries = "query_id,namespace,principal,time q1,alice,ann,2025-06-01 q2,alice,ann,2025-06-01 q3,,,2025-06-01"
    route = ["a1", "a2", "a3", "f", "e", "o", "c1", "gone"]
    ranked = " ".join([*(f"s,q1,{n},{m}" for n, m in enumerate(route, 1)), "s,q2,1,a2 s,q3,1,b1 s,q3,2,a2 t,q2,1,b1"])
    place = folder(tmp_path / "in", memories=memories, queries=queries, rankings=ranked, labels="q1,c1,1,1,0,1",
                   ledger="q1,s,c2,0,1 q1,s,a1,1,1")  # fmt: skip
    said = json.loads(run(place, "--out", tmp_path / "r.html", "--json").stdout)
    assert [c["kind"] for c in said["checks"]] == list(KINDS) and all(c["outcome"] == "found" for c in said["checks"])
    assert said["headline"].startswith(
        "1 of 12 returned items belongs to another owner (t 1 of 1 (100.0%); s none of 11)"
    )
    expired = next(c for c in said["checks"] if c["kind"] == "expired")["evidence"][0]
    assert (expired["valid_until"], expired["asked"]) == ("2025-01-01T23:59:59Z", "2025-06-01T00:00:00Z")
    assert {f"check_{kind}" for kind in KINDS} < set(said["tables"])


@pytest.mark.parametrize(
    ("kinds", "code"),
    [("any", 1), ("wrong_scope", 1), ("policy,wrong_scope", 1), ("policy", 0), ("ghosts, expired", 0), ("leak", 2),
     ("", 2), ("new", 2)],
)  # fmt: skip
def test_fail_on(tmp_path, kinds, code):
    place = folder(tmp_path / "in", memories="a1,alice b1,bob b2,bob", queries="q1,alice", rankings="s,q1,1,b1")
    done = run(place, "--out", tmp_path / "r.html", "--fail-on", kinds)
    assert code_of(done) == code
    assert (tmp_path / "r.html").exists() is (code != 2)  # a check that failed leaves its report
    assert ("--fail-on: found wrong_scope" in done.stderr) is (code == 1)


def test_what_is_new_since_a_baseline(tmp_path):
    clean = folder(tmp_path / "0", memories="a1,alice b1,bob b2,bob", queries="q1,alice", rankings="s,q1,1,b1")
    worse = folder(
        tmp_path / "1", memories="a1,alice b1,bob b2,bob", queries="q1,alice", rankings="s,q1,1,b1 s,q1,2,b2"
    )
    run(clean, "--out", tmp_path / "0.html")
    baseline = tmp_path / "0-tables" / "checks.csv"
    same = run(clean, "--out", tmp_path / "2.html", "--baseline", baseline, "--fail-on", "new")
    assert same.exit_code == 0 and "Nothing is new" in same.stdout
    more = run(worse, "--out", tmp_path / "1.html", "--baseline", baseline, "--fail-on", "new", "--markdown")
    assert more.exit_code == 1 and "New since the baseline: wrong\\_scope 1 (of 2)." in more.stdout
    assert more.stdout.startswith("## Audit of 1") and (tmp_path / "1-tables" / "summary.md").read_text() in more.stdout
    said = json.loads(run(worse, "--out", tmp_path / "1.html", "--baseline", baseline, "--json").stdout)
    assert said["new"] == {"wrong_scope": 1}
    assert "New since the baseline" in (tmp_path / "1.html").read_text()
    assert code_of(run(clean, "--out", tmp_path / "3.html", "--baseline", clean / "memories.csv")) == 2
    assert not (tmp_path / "3.html").exists()


def test_a_summary_is_inert(tmp_path):
    own = records(store(**{"a1": "<b>x</b>", "[c](http://d)": "b|c"}), people("b|c"), {("*r*|`", "q0"): ["a1"]})
    text = markdown(audit(own, QUICK))
    assert "<b>" not in text and "[c](" not in text and "| wrong_scope | 1 |" in text
    assert all(line.count("|") - line.count("\\|") == 4 for line in text.splitlines() if line.startswith("| w"))


@pytest.mark.parametrize("name", ["z.pdf", "z", "z.html.gz", "z.csv"])
def test_a_report_under_the_name_of_something_else_is_refused(tmp_path, name):
    done = run(data_dir() / "example", "--out", tmp_path / name)
    assert code_of(done) == 2 and list(tmp_path.iterdir()) == []
    own = audit(records(store(a1="a"), people("a"), {("r", "q0"): ["a1"]}), QUICK)
    with pytest.raises(InputError, match="the report is an HTML page; expected a name that ends in"):
        write(own, "", tmp_path / name)
    assert write(own, "x", tmp_path / "z.HTM")["report"].is_file()


@pytest.mark.parametrize("fails", ["write_text", "rename", "replace"])
def test_a_full_disk_leaves_the_old_report_and_its_tables(tmp_path, monkeypatch, fails):
    first = audit(records(store(a1="a", b1="b"), people("a"), {("r", "q0"): ["b1"]}), QUICK)
    second = audit(records(store(a1="a", b1="b"), people("a"), {("r", "q0"): ["a1"]}), QUICK)
    write(first, "first", tmp_path / "r.html")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    real, calls = getattr(Path, fails), []

    def full(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == 2 or (fails == "replace" and self.name.startswith(".r.html")):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, fails, full)
    with pytest.raises((OSError, InputError), match="No space"):
        write(second, "second", tmp_path / "r.html")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    write(second, "second", tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "second" and not list(tmp_path.glob(".*"))


# --- one query, followed -------------------------------------------------------------------------------------------


def traced(*words):
    done = CliRunner().invoke(app, ["trace", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stdout


def test_trace_follows_records_with_ghosts_and_a_ledger_beside_rankings(tmp_path):
    example = data_dir() / "example"
    text = traced("--records", example, "--query", "company-0001-q01", "--arm", "memory_search")
    assert "no longer stored > retrieved" in text and "company-0001-m38" in text and "stands in" not in text
    said = json.loads(traced("--records", example, "--query", "company-0001-q01", "--json"))
    assert said["exposure_from"] == "ledger" and [p["rank"] for p in said["paths"]] == [*range(1, 11)] * 2
    place = folder(
        tmp_path, memories="a1,alice b1,bob", queries="q,alice", rankings="s,q,1,a1 other,q,1,b1",
        ledger="q,s,a1,1,1 q,s,b1,0,1",
    )  # fmt: skip
    rows = json.loads(traced("--records", place, "--query", "q", "--json"))["paths"]
    assert [(p["memory_id"], p["rank"], p["retrieved"]) for p in rows] == [("a1", 1, True), ("b1", None, False)]
    assert "stored > not retrieved > exposed" in traced("--records", place, "--query", "q")
    outside = traced("--records", place, "--query", "q", "--arm", "other")
    assert "exposure not recorded" in outside and "Route other" in outside
    (place / "ledger.csv").unlink()
    text = traced("--records", place, "--query", "q")
    assert (
        "No ledger says what reached the prompt: the top of each route stands in for it, all that it retrieved" in text
    )
    assert "as --gate, --items and --tokens cut it" in traced("--records", place, "--query", "q", "--items", 1)
