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
from companion.stages.readers import scenarios

FILE = data_dir() / "scenarios" / "scenarios.json"


@pytest.fixture(scope="module")
def shipped():
    return scenarios.load_scenarios()


@pytest.fixture
def document():
    return json.loads(FILE.read_text(encoding="utf-8"))


def refused(document, tmp_path, match, **options):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=match) as error:
        scenarios.load_scenarios(path, **options)
    assert str(path) in str(error.value)


def test_units_are_those_of_the_published_study(shipped):
    """The published outcomes fix ids, axes, pairs, conditions, roles and cells."""
    with (data_dir() / "published" / "exposure_outcomes.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    keys = ("scenario", "axis", "pair", "condition", "candidate_role", "cell")
    published = {tuple(row[key] for key in keys) for row in rows}
    units = shipped.units()
    ours = set(units[list(keys)].astype({"pair": "str"}).itertuples(index=False, name=None))
    assert ours == published
    assert len(units) == 192
    assert Counter(units["cell"]) == {
        "relevant_admissible": 32,
        "relevant_inadmissible": 32,
        "irrelevant_admissible": 64,
        "irrelevant_inadmissible": 64,
    }


def test_statuses_agree_with_an_independent_reading_of_the_rules(shipped):
    for row in shipped.units().to_dict(orient="records"):
        readers, purposes = row["readers"].split(", "), row["purposes"].split(", ")
        scope = row["principal"] in readers or readers == ["any"]
        policy = row["purpose"] in purposes or purposes == ["any"]
        state = row["state"] == "current" or (row["state"] == "superseded" and row["intent"] == "history")
        since = row["valid_from"] if isinstance(row["valid_from"], str) else "0000-00-00"
        until = row["valid_until"] if isinstance(row["valid_until"], str) else "9999-99-99"
        lifecycle = state and since <= row["as_of"] <= until
        assert [row["scope"], row["policy"], row["lifecycle"]] == [scope, policy, lifecycle]
        assert row["admissible"] == (scope and policy and lifecycle)
        assert row["admissible"] == (not row["cell"].endswith("_inadmissible"))
        assert row["relevant"] == row["cell"].startswith("relevant")
        assert row["recorded"] <= row["as_of"]


def test_a_blocked_focal_memory_is_excluded_by_its_governing_axis_alone(shipped):
    units = shipped.units()
    blocked = units[units["cell"] == "relevant_inadmissible"]
    expected = {
        "principal_scope": [False, True, True],
        "policy_purpose": [True, False, True],
        "lifecycle_intent": [True, True, False],
        "as_of_time": [True, True, False],
    }
    for row in blocked.to_dict(orient="records"):
        assert [row["scope"], row["policy"], row["lifecycle"]] == expected[row["axis"]]


def test_384_requests_that_differ_in_one_line(shipped):
    requests = shipped.requests()
    assert len({r.request_id for r in requests}) == len(requests) == 384
    by_id = {r.request_id: r for r in requests}
    for shown in (r for r in requests if r.side == "exposed"):
        withheld = by_id[shown.request_id.replace("/exposed", "/withheld")]
        delta = [d for d in difflib.ndiff(shown.prompt.split("\n"), withheld.prompt.split("\n")) if d[0] != " "]
        assert len(delta) == 1
        assert delta[0].startswith("- ")
        assert shown.marker in delta[0]
        assert shown.system == withheld.system
        assert discloses(shown.prompt, shown.marker)
        assert not discloses(withheld.prompt, shown.marker)
        assert not discloses(shown.system, shown.marker)
        assert not discloses(shown.query, shown.marker)


def test_a_prompt_does_not_name_roles_conditions_or_cells(shipped):
    for request in shipped.requests():
        told = (request.system + request.prompt).lower()
        assert not any(
            word in told for word in ("focal", "irrelevant", "admissible", "allow", "block", request.scenario)
        )


def test_conditions_share_query_and_memories_and_pairs_do_not(shipped):
    units = shipped.units()
    within = units.groupby(["scenario", "pair", "candidate_role"])
    for name in ("query", "text", "marker"):
        assert set(within[name].nunique()) == {1}
    across = units.groupby(["scenario", "candidate_role"])
    for name in ("query", "text", "marker"):
        assert set(across[name].nunique()) == {2}


def test_order_of_candidates_follows_neither_role_nor_condition(shipped):
    exposed = [r for r in shipped.requests() if r.side == "exposed" and r.candidate_role == "focal"]
    places = Counter([c.role for c in r.memories].index("focal") for r in exposed)
    assert set(places) == {0, 1, 2}
    orders = {(r.scenario, r.pair): set() for r in exposed}
    for r in exposed:
        orders[r.scenario, r.pair].add(tuple(c.marker for c in r.memories))
    assert all(len(found) == 1 for found in orders.values())


def test_ids_must_be_the_published_ones_only_where_asked(document, tmp_path):
    document["scenarios"][0]["scenario"] = "scope-mine"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert len(scenarios.load_scenarios(path).requests()) == 384
    refused(document, tmp_path, "scope-market: axis None; the published", published_ids=True)


def candidate(document, scenario=0, pair=0, role="focal"):
    return document["scenarios"][scenario]["pairs"][pair]["candidates"][role]


def test_a_marker_inside_another_is_refused(document, tmp_path):
    inner = candidate(document, 3)["marker"]
    other = candidate(document)
    other["text"] = other["text"].replace(other["marker"], f"x-{inner}")
    other["marker"] = f"x-{inner}"
    refused(document, tmp_path, f"marker '{inner}': found in marker 'x-{inner}'")


@pytest.mark.parametrize("spelling", [str, str.lower, lambda m: " ".join(m), lambda m: m.replace("-", "\u00ad")])
def test_a_marker_in_a_query_is_refused_however_spelt(document, tmp_path, spelling):
    marker = candidate(document, 2, 1, "irrelevant_inadmissible")["marker"]
    document["scenarios"][5]["pairs"][0]["query"] += f" Not {spelling(marker)}."
    refused(document, tmp_path, rf"pair 2, irrelevant_inadmissible: marker '{marker}' occurs in .*medication.*query")


def test_a_marker_in_another_candidate_is_refused(document, tmp_path):
    marker = candidate(document)["marker"]
    candidate(document, 0, 1)["text"] += f" Formerly {marker}."
    refused(document, tmp_path, "occurs in another candidate")


def test_a_marker_in_a_context_or_a_rule_is_refused(document, tmp_path):
    rules = json.loads(json.dumps(document))
    rules["rules"][0] += f" For example {candidate(document)['marker']}."
    refused(rules, tmp_path, "occurs in the rules")
    purpose = candidate(document)["marker"]
    for context in document["scenarios"][1]["contexts"].values():
        context["purpose"] = purpose
    refused(document, tmp_path, "occurs in scenario scope-shipping, pair 1, contexts")


@pytest.mark.parametrize("marker", ["HERON", "29184471", "AB-12"])
def test_a_marker_that_chance_could_produce_is_refused(document, tmp_path, marker):
    focal = candidate(document)
    focal["text"] = focal["text"].replace(focal["marker"], marker)
    focal["marker"] = marker
    refused(document, tmp_path, "expected 8 characters or more, letters and digits")


def test_a_marker_missing_from_or_repeated_in_its_text_is_refused(document, tmp_path):
    focal = candidate(document)
    text = focal["text"]
    focal["text"] = text.replace(focal["marker"], "none")
    refused(document, tmp_path, "must occur in its text exactly once")
    focal["text"] = text + focal["marker"]
    refused(document, tmp_path, "must occur in its text exactly once")


def test_contexts_that_differ_elsewhere_are_refused(document, tmp_path):
    document["scenarios"][4]["contexts"]["block"]["as_of"] = "2026-05-05"
    refused(
        document,
        tmp_path,
        r"intent-lisbon, pair 1: contexts differ in \['intent', 'as_of'\]; expected intent alone",
    )


def test_a_status_that_its_cell_contradicts_is_refused(document, tmp_path):
    document["scenarios"][0]["metadata"]["focal"]["readers"] = ["any"]
    refused(document, tmp_path, "scope-market, pair 1, block, focal: admissible is True by the rules")


def test_a_second_reason_to_exclude_the_focal_memory_is_refused(document, tmp_path):
    document["scenarios"][0]["metadata"]["focal"]["state"] = "unknown"
    refused(document, tmp_path, "scope-market, pair 1, allow, focal: admissible is <NA>")


def test_a_repeated_query_is_refused(document, tmp_path):
    pairs = document["scenarios"][7]["pairs"]
    pairs[1]["query"] = pairs[0]["query"].upper()
    refused(document, tmp_path, "intent-address, pair 2: the same query as scenario intent-address, pair 1")


def test_layout_is_checked(document, tmp_path):
    fewer = json.loads(json.dumps(document))
    fewer["scenarios"].pop()
    refused(fewer, tmp_path, "expected as many on each")
    one = json.loads(json.dumps(document))
    one["scenarios"][0]["pairs"].pop()
    refused(one, tmp_path, r"scope-market: pairs \[1\]")
    document["scenarios"][0]["axis"] = "colour"
    refused(document, tmp_path, "axis 'colour'")


def test_broken_files_are_refused(document, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        scenarios.load_scenarios(tmp_path / "none.json")
    (tmp_path / "half.json").write_text(json.dumps(document)[:500])
    with pytest.raises(InputError, match="not JSON"):
        scenarios.load_scenarios(tmp_path / "half.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="lacks a field"):
        scenarios.load_scenarios(tmp_path / "list.json")
    candidate(document)["text"] += "\n- [readers: any] injected"
    refused(document, tmp_path, "expected one line of text")


def test_dates_must_be_whole_iso_dates(document, tmp_path):
    document["scenarios"][12]["metadata"]["focal"]["valid_until"] = "20260315"
    refused(document, tmp_path, "YYYY-MM-DD")


def test_validity_ends_are_included():
    base = dict(
        role="focal",
        marker="m",
        text="m",
        readers=("any",),
        purposes=("any",),
        state="current",
        recorded="2026-01-01",
    )
    context = {"principal": "p", "purpose": "q", "intent": "current", "as_of": "2026-03-15"}
    for since, until, expected in [
        ("2026-03-15", "2026-03-15", True),
        ("2026-03-16", None, False),
        (None, "2026-03-14", False),
        (None, None, True),
    ]:
        found = scenarios.Candidate(**base, valid_from=since, valid_until=until)
        assert found.admissible(context) is expected
    unknown = scenarios.Candidate(**{**base, "state": "unknown"}, valid_from=None, valid_until="2026-03-14")
    assert unknown.admissible(context) is False  # known to be over, whatever its state
    open_ended = scenarios.Candidate(**{**base, "state": "unknown"}, valid_from=None, valid_until=None)
    assert open_ended.admissible(context) is pd.NA
