"""The scenario set: its design, and that each check can fail."""

from __future__ import annotations

import csv
import difflib
import json
from collections import Counter

import pandas as pd
import pytest

from companion.disclosure import discloses
from companion.errors import InputError
from companion.paths import data_dir
from companion.stages.readers import Candidate, load_scenarios

FILE = data_dir() / "scenarios" / "scenarios.json"


@pytest.fixture(scope="module")
def shipped():
    return load_scenarios()


def test_units_are_those_of_the_published_study(shipped):
    """The published outcomes fix ids, axes, pairs, conditions, roles and cells."""
    with (data_dir() / "published" / "exposure_outcomes.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    keys = ("scenario", "axis", "pair", "condition", "candidate_role", "cell")
    published = {tuple(row[key] for key in keys) for row in rows}
    units = shipped.units()
    assert set(units[list(keys)].astype({"pair": "str"}).itertuples(index=False, name=None)) == published
    counts = {"relevant_admissible": 32, "relevant_inadmissible": 32}
    assert Counter(units["cell"]) == {**counts, "irrelevant_admissible": 64, "irrelevant_inadmissible": 64}


def test_statuses_agree_with_an_independent_reading_of_the_rules(shipped):
    alone = {"principal_scope": "scope", "policy_purpose": "policy"}
    for row in shipped.units().to_dict(orient="records"):
        readers, purposes = row["readers"].split(", "), row["purposes"].split(", ")
        scope = row["principal"] in readers or readers == ["any"]
        policy = row["purpose"] in purposes or purposes == ["any"]
        state = row["state"] == "current" or (row["state"] == "superseded" and row["intent"] == "history")
        since = row["valid_from"] if isinstance(row["valid_from"], str) else "0000-00-00"
        until = row["valid_until"] if isinstance(row["valid_until"], str) else "9999-99-99"
        lifecycle = state and since <= row["as_of"] <= until
        axes = {"scope": scope, "policy": policy, "lifecycle": lifecycle}
        assert {name: row[name] for name in axes} == axes
        assert row["admissible"] == all(axes.values()) == (not row["cell"].endswith("_inadmissible"))
        assert row["relevant"] == row["cell"].startswith("relevant")
        assert row["recorded"] <= row["as_of"]
        if row["cell"] == "relevant_inadmissible":  # excluded by its governing axis alone
            assert [n for n, ok in axes.items() if not ok] == [alone.get(row["axis"], "lifecycle")]


def test_384_requests_that_differ_in_one_line(shipped):
    by_id = {r.request_id: r for r in shipped.requests()}
    assert len(by_id) == len(shipped.requests()) == 384
    for shown in (r for r in by_id.values() if r.side == "exposed"):
        withheld = by_id[shown.request_id.replace("/exposed", "/withheld")]
        delta = [d for d in difflib.ndiff(shown.prompt.split("\n"), withheld.prompt.split("\n")) if d[0] != " "]
        assert len(delta) == 1 and delta[0].startswith("- ") and shown.marker in delta[0]
        assert shown.system == withheld.system
        assert discloses(shown.prompt, shown.marker)
        assert not any(discloses(text, shown.marker) for text in (withheld.prompt, shown.system, shown.query))
        told = (shown.system + shown.prompt).lower()
        assert not any(w in told for w in ("focal", "irrelevant", "admissible", "allow", "block", shown.scenario))


def test_pairs_are_paraphrases_and_the_order_of_candidates_says_nothing(shipped):
    units = shipped.units()
    within, across = (units.groupby(["scenario", *more, "candidate_role"]) for more in (["pair"], []))
    for name in ("query", "text", "marker"):
        assert set(within[name].nunique()) == {1} and set(across[name].nunique()) == {2}
    exposed = [r for r in shipped.requests() if r.side == "exposed" and r.candidate_role == "focal"]
    assert {[c.role for c in r.memories].index("focal") for r in exposed} == {0, 1, 2}
    orders = {(r.scenario, r.pair, tuple(c.marker for c in r.memories)) for r in exposed}
    assert len(orders) == 32  # the same under both conditions


def candidate(document, scenario=0, pair=0, role="focal"):
    return document["scenarios"][scenario]["pairs"][pair]["candidates"][role]


def remark(document, marker):
    focal = candidate(document)
    focal["text"] = focal["text"].replace(focal["marker"], marker)
    focal["marker"] = marker


def in_query(spell):
    def change(document):
        marker = candidate(document, 2, 1, "irrelevant_inadmissible")["marker"]
        document["scenarios"][5]["pairs"][0]["query"] += f" Not {spell(marker)}."

    return change


def set_in(*path):
    *way, last, value = path

    def change(document):
        for key in way:
            document = document[key]
        document[last] = value(document[last]) if callable(value) else value

    return change


def in_contexts(document):
    for context in document["scenarios"][1]["contexts"].values():
        context["purpose"] = candidate(document)["marker"]


FIRST, FOCAL = ("scenarios", 0), ("scenarios", 0, "pairs", 0, "candidates", "focal")
IN_QUERY = r"pair 2, irrelevant_inadmissible: marker '.*' occurs in .*medication.*query"
BROKEN = [
    (lambda d: remark(d, f"x-{candidate(d, 3)['marker']}"), r"marker '(.*)': found in marker 'x-\1'"),
    *((in_query(spell), IN_QUERY) for spell in (str, str.lower, " ".join, lambda m: m.replace("-", "\u00ad"))),
    (lambda d: set_in(*FIRST, "pairs", 1, "candidates", "focal", "text", lambda t: f"{t} {candidate(d)['marker']}.")(d),
     "occurs in another candidate"),
    (lambda d: set_in("rules", 0, lambda t: f"{t} {candidate(d)['marker']}")(d), "occurs in the rules"),
    (in_contexts, "occurs in scenario scope-shipping, pair 1, contexts"),
    *((lambda d, m=m: remark(d, m), "expected 8 characters or more, letters and digits")
      for m in ("HERON", "29184471", "AB-12")),
    (set_in(*FOCAL, "text", "none at all"), "must occur in its text exactly once"),
    (lambda d: set_in(*FOCAL, "text", lambda t: t + candidate(d)["marker"])(d), "must occur in its text exactly once"),
    (set_in("scenarios", 4, "contexts", "block", "as_of", "2026-05-05"),
     r"intent-lisbon, pair 1: contexts differ in \['intent', 'as_of'\]; expected intent alone"),
    (set_in(*FIRST, "metadata", "focal", "readers", ["any"]),
     "scope-market, pair 1, block, focal: admissible is True by the rules"),
    (set_in(*FIRST, "metadata", "focal", "state", "unknown"), "scope-market, pair 1, allow, focal: admissible is <NA>"),
    (lambda d: set_in("scenarios", 7, "pairs", 1, "query", d["scenarios"][7]["pairs"][0]["query"].upper())(d),
     "intent-address, pair 2: the same query as scenario intent-address, pair 1"),
    (lambda d: d["scenarios"].pop(), "expected as many on each"),
    (lambda d: d["scenarios"][0]["pairs"].pop(), r"scope-market: pairs \[1\]"),
    (set_in(*FIRST, "axis", "colour"), "axis 'colour'"),
    (set_in(*FOCAL, "text", lambda t: t + "\n- [readers: any] injected"), "expected one line of text"),
    (set_in("scenarios", 12, "metadata", "focal", "valid_until", "20260315"), "YYYY-MM-DD"),
    (set_in(*FIRST, "metadata", "focal", "state", "fresh"), "state 'fresh'; expected one of"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "match"), BROKEN)
def test_a_broken_set_is_refused(tmp_path, change, match):
    document = json.loads(FILE.read_text(encoding="utf-8"))
    change(document)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=match) as error:
        load_scenarios(path)
    assert str(path) in str(error.value)


def test_ids_must_be_the_published_ones_only_where_asked(tmp_path):
    document = json.loads(FILE.read_text(encoding="utf-8"))
    document["scenarios"][0]["scenario"] = "scope-mine"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert len(load_scenarios(path).requests()) == 384
    with pytest.raises(InputError, match="scope-market: axis None; the published"):
        load_scenarios(path, published_ids=True)


@pytest.mark.parametrize(
    ("text", "match"), [(None, "cannot be read"), ('{"name": ', "not JSON"), ("[]", "lacks a field")]
)
def test_broken_files_are_refused(tmp_path, text, match):
    if text is not None:
        (tmp_path / "mine.json").write_text(text)
    with pytest.raises(InputError, match=match):
        load_scenarios(tmp_path / "mine.json")


@pytest.mark.parametrize(
    ("state", "since", "until", "expected"),
    [
        ("current", "2026-03-15", "2026-03-15", True),  # both ends included
        ("current", "2026-03-16", None, False),
        ("current", None, "2026-03-14", False),
        ("current", None, None, True),
        ("unknown", None, "2026-03-14", False),  # known to be over, whatever its state
        ("unknown", None, None, pd.NA),
    ],
)
def test_validity_and_state_settle_a_memory(state, since, until, expected):
    facts = {"role": "focal", "marker": "m", "text": "m", "readers": ("any",), "purposes": ("any",)}
    memory = Candidate(**facts, state=state, recorded="2026-01-01", valid_from=since, valid_until=until)
    context = {"principal": "p", "purpose": "q", "intent": "current", "as_of": "2026-03-15"}
    assert memory.admissible(context) is expected
