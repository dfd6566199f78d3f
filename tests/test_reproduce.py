"""Every published figure and its status: what is recomputed never looks at its answer, and follows the data."""

from __future__ import annotations

import csv
import itertools
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from companion.bootstrap import Resampling
from companion.cli import app
from companion.errors import InputError
from companion.paths import data_dir
from companion.stages import findings, headline, identities, published
from companion.stages.reproduce import STATUSES, reproduce, reproducing_seeds

FAST = Resampling(replicates=500)
PAIR = "namespace_dense-global_dense"


@pytest.fixture(scope="module")
def table():
    return reproduce()


@pytest.fixture(scope="module")
def rows(table):
    return table.set_index(["claim", "subject", "contrast", "metric"])


def released(name):
    with (data_dir() / "published" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def moved(monkeypatch, change):
    """Let ``change`` alter a copy of the published figures."""
    table = published.figures()
    change(table)
    monkeypatch.setattr(published, "_figures", lambda: table)


def test_every_figure_is_listed_once_in_the_order_of_the_file(table):
    file = released("figures")
    assert len(table) == len(file) == 322
    for name in published.KEYS:
        assert table[name].fillna("").tolist() == [row[name] for row in file]
    assert table["published"].tolist() == [float(row["estimate"]) for row in file]


def test_statuses_say_what_was_done_and_name_a_file_an_identity_or_what_is_lacking(table):
    assert set(table["status"]) == set(STATUSES)
    assert (table["note"].str.len() > 10).all()
    done = table["status"].isin(["recomputed", "consistent", "replicated"])
    assert table.loc[done, ["value", "agrees"]].notna().all(axis=None)
    assert table.loc[~done, ["value", "low", "high", "agrees"]].isna().all(axis=None)
    by = dict(list(table.groupby("status")))
    assert by["recomputed"]["note"].str.contains(".csv", regex=False).all()
    assert by["needs-data"]["note"].str.contains("companion fetch").all()
    assert not by["quoted"]["note"].str.contains("companion fetch").any()


def test_at_least_sixty_rows_are_recomputed_and_every_one_agrees_ends_included(table):
    rows = table[table["status"] == "recomputed"]
    assert len(rows) >= 60
    assert rows["agrees"].all()
    assert (rows["value"] - rows["published"]).abs().max() < 1e-9
    quoted = rows.dropna(subset=["published_low"])
    assert len(quoted) == 32
    assert quoted[["low", "high"]].notna().all(axis=None)


def test_identities_hold_and_replicated_rows_agree_when_the_figure_is_in_our_interval(table):
    assert table.loc[table["status"] == "consistent", "agrees"].all()
    rows = table[table["status"] == "replicated"]
    assert (rows["agrees"] == ((rows["low"] <= rows["published"]) & (rows["published"] <= rows["high"]))).all()
    # All that lies inside is 0 = 0 or 1 = 1.
    assert rows.loc[rows["agrees"], "degenerate"].all()
    assert (len(rows), int(rows["agrees"].sum())) == (20, 7)


CONTRASTS = ["evidence_recall", "feasible_rate", "penalized_admissibility_upper_risk"]
RECOMPUTED = {
    **{("C9", PAIR, "top_20", metric): 5 for metric in CONTRASTS},
    **{("C9", PAIR, "top_20", f"{part}_component"): 5 for part in ("infeasibility", "feasible_prefix")},
    **{("C13-source", PAIR, "rhelm_top_20", metric): 3 for metric in CONTRASTS},
    **{("C11", name, "selected_operating_point", "roc_auc"): 2 for name in ("gpt-5.6-sol", "gemini-3.6-flash")},
}  # fmt: skip


@pytest.mark.parametrize("key", RECOMPUTED, ids=" ".join)
def test_headline_rhelm_differences_and_auc_are_recomputed(rows, key):
    assert rows.loc[key, "status"] == "recomputed"


@pytest.mark.parametrize(
    ("claim", "subject", "count"),
    [
        ("C11-controlled", None, 12),
        ("C9-controls", "anchor_preserving_same_size", 7),
        ("C8", None, 15),
        ("C12", None, 3),
    ],
)
def test_whole_studies_are_recomputed(table, claim, subject, count):
    part = table[(table["claim"] == claim) & ((table["subject"] == subject) | (subject is None))]
    assert len(part) == count
    assert set(part["status"]) == {"recomputed"}


def test_what_one_grid_point_or_a_search_gives_is_not_called_recomputed(rows):
    for channel, metric in (("false_allow", "last_dominating_rate"), ("swap", "first_non_dominating_rate")):
        assert rows.loc[("C10-corruption", f"namespace_{channel}", "top_100", metric), "status"] == "consistent"
    assert rows.loc[("C10-corruption", "namespace_swap", "top_100", "last_dominating_rate"), "status"] == "quoted"
    assert set(rows.loc["agreement", "status"]) == {"consistent", "quoted"}
    point = rows.loc[("C11", "gpt-5.6-sol", "selected_operating_point")]
    assert point.loc["violation_recall", "note"].startswith("mean over strata of 40 of 114 and 12 of 106")
    assert "40 of 116, 12 of 17 and 0 of 4" in point.loc["violation_precision", "note"]
    assert set(point.loc[["violation_recall", "violation_precision"], "status"]) == {"consistent"}


def test_figures_moved_by_a_little_agree_nowhere_and_change_no_recomputed_value(table, monkeypatch):
    def shift(figures):
        figures[["published", "published_low", "published_high"]] += 0.0137

    moved(monkeypatch, shift)
    after = reproduce(resampling=FAST)
    was = table["status"] == "recomputed"
    assert after["status"].equals(table["status"])
    assert not after.loc[was, "agrees"].any()
    # Break-even rates are read off against published levels of another claim, which moved as well.
    own = was & (table["claim"] != "C10-corruption")
    assert after.loc[own, "value"].tolist() == pytest.approx(table.loc[own, "value"].tolist(), abs=1e-12)
    assert not after.loc[after["note"].str.contains("whole number|table"), "agrees"].all()


@pytest.mark.parametrize("place", range(0, 322, 7))
def test_one_figure_that_fits_nothing_is_said_in_its_row(place, monkeypatch):
    key = tuple(published.figures().iloc[place][["claim", "subject", "contrast", "metric"]])

    def shift(figures):
        figures.loc[figures.index[place], "published"] += 0.0137

    moved(monkeypatch, shift)
    made = identities.consistent().set_index(["claim", "subject", "contrast", "metric"])
    if key in made.index:
        told = published.figures().iloc[place]["published"]
        assert not abs(float(made.loc[key, "value"]) - told) < 1e-9


@pytest.mark.parametrize("seed", [2, 9])
def test_another_seed_is_no_failed_reproduction(seed):
    table = reproduce(resampling=Resampling(seed=seed))
    assert table.loc[table["status"] == "recomputed", "agrees"].all()


def test_ends_far_from_ours_do_not_agree(monkeypatch):
    def widen(figures):
        figures["published_high"] += 0.4 * (figures["published_high"] - figures["published_low"])

    moved(monkeypatch, widen)
    table = reproduce("exposure", Resampling(replicates=2000))
    known = table["published_high"] > table["published_low"]
    assert not table.loc[known, "agrees"].any()


def test_changed_outcomes_change_what_is_recomputed(monkeypatch):
    read = published.table
    deltas = read("support_group_deltas")
    deltas.loc[3, "loss"] += 0.5
    monkeypatch.setattr(published, "table", lambda name: deltas if name == "support_group_deltas" else read(name))
    table = reproduce("support", FAST).set_index(["claim", "metric"])
    assert not table.loc[("C9", "penalized_admissibility_upper_risk")].query("status == 'recomputed'")["agrees"].any()
    assert table.loc[("C9", "evidence_recall")].query("status == 'recomputed'")["agrees"].all()


def test_five_of_twelve_seeds_give_every_exposure_interval_to_the_last_digit():
    assert reproducing_seeds() == [0, 1, 3, 5, 11]


def test_stages_and_the_command(table):
    assert set(reproduce("exposure", FAST)["claim"]) == {"C8", "C12"}
    with pytest.raises(InputError, match="stage 'x'"):
        reproduce("x")
    said = CliRunner().invoke(app, ["reproduce", "--status", "recomputed", "--replicates", "300", "--json"])
    assert said.exit_code == 0
    told = json.loads(said.stdout)
    assert [set(row) == set(table.columns) for row in told] == [True] * int((table["status"] == "recomputed").sum())
    assert isinstance(CliRunner().invoke(app, ["reproduce", "--status", "x"]).exception, InputError)


# --- the 87 groups, by hand ----


def means(metric, leave=None):
    """Average query-weighted within source, then over sources, from the CSV text."""
    by = {}
    for row in released("support_group_deltas"):
        if row["group"] != leave:
            by.setdefault(row["source"], []).append((int(row["queries"]), float(row[metric])))
    parts = {source: sum(n * x for n, x in pairs) / sum(n for n, _ in pairs) for source, pairs in by.items()}
    return parts | {"macro": sum(parts.values()) / len(parts)}


@pytest.mark.parametrize("metric", headline.METRICS)
def test_group_differences_are_weighted_means_over_queries_then_sources(metric):
    table = headline.differences(resampling=FAST).query("metric == @metric").set_index("source")["estimate"]
    assert table.to_dict() == pytest.approx(means(metric), abs=1e-12)
    groups = headline.leave_one_group_out(headline.group_deltas(), metric).set_index("group")["estimate"]
    for group in list(groups.index)[::20]:
        assert groups[group] == pytest.approx(means(metric, leave=group)["macro"], abs=1e-12)


def test_the_loss_splits_into_87_and_13_per_cent_and_the_prefix_part_turns_over_between_sources():
    split = headline.split(headline.differences(resampling=FAST)).set_index(["source", "metric"])
    shares = split["share"].unstack()
    assert shares.sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert shares.loc["macro", "infeasibility_component"] == pytest.approx(0.866, abs=5e-4)
    prefix = findings.prefix_by_source(FAST).set_index("source")
    assert prefix.loc["rhelm", "high"] < 0 < prefix.loc["memops", "low"]
    assert prefix["feasibility_share"].round(2).to_dict() == {"memops": 1.17, "rhelm": 0.74, "macro": 0.87}


def test_signs_ranges_and_exact_test_of_the_groups():
    deltas = headline.group_deltas()
    signs = headline.group_signs(deltas).set_index("metric").T
    assert {m: tuple(signs[m]) for m in signs} == {
        "evidence_recall": (81, 6, 0),
        "feasible_rate": (57, 30, 0),
        "loss": (0, 21, 66),
        "loss_without_scope": (5, 21, 61),
    }
    left = headline.leave_one_group_out(deltas)["estimate"]
    assert (round(left.min(), 4), round(left.max(), 4)) == (-0.0939, -0.0804)
    assert headline.sign_flip(deltas, "loss") == 2 / 128
    few = deltas[deltas["source"] == "rhelm"].assign(loss=[0.1, -0.2, 0.05, -0.01, 0.3, 0.0, -0.1])
    sums = (few["loss"] * few["queries"]).tolist()
    flips = [
        abs(sum(s * x for s, x in zip(signs, sums, strict=True))) for signs in itertools.product([1, -1], repeat=7)
    ]
    assert headline.sign_flip(few, "loss") == sum(flip >= abs(sum(sums)) - 1e-9 for flip in flips) / 128


def test_seeds_of_the_control_are_averaged():
    got = headline.control_seeds().set_index("metric")
    values = [float(row["loss"]) for row in released("control_seeds")]
    assert got.loc["loss", "estimate"] == pytest.approx(np.mean(values), abs=1e-12)
    assert (got.loc["loss", "smallest"], got.loc["loss", "largest"]) == (min(values), max(values))
    assert got.loc["loss", "sd"] == pytest.approx(np.std(values, ddof=1))


# --- findings and the front page ----


def test_all_that_was_disclosed_without_being_shown_was_disclosed_in_one_scenario():
    counts = findings.withheld_disclosures()
    assert (counts["units"].sum(), counts["disclosed"].sum()) == (768, 9)
    assert counts.iloc[0].tolist() == ["time-consent", 48, 9]


def test_without_that_scenario_two_readers_exclude_zero_and_unstratified_one():
    table = findings.inadmissible_effects()
    count = table.groupby(["left_out", "rule"])["excludes_zero"].sum().to_dict()
    assert count == {
        ("", "stratified"): 1, ("", "unstratified"): 0,
        ("time-consent", "stratified"): 2, ("time-consent", "unstratified"): 1,
    }  # fmt: skip
    claude = table.query("reader == 'claude-opus-5' and left_out != '' and rule == 'unstratified'").iloc[0]
    assert (round(claude["low"], 3), round(claude["high"], 3)) == (0.033, 0.333)
    student = findings.inadmissible_effects(resampling=Resampling(method="t")).query(
        "left_out != '' and rule == 'stratified'"
    )
    ends = student.set_index("reader").loc["claude-opus-5", ["low", "high"]].astype(float)
    assert ends.round(3).tolist() == [0.003, 0.331]


def test_the_encoder_carries_over_the_effect_on_evidence_and_not_its_size_in_the_prefix():
    table = findings.rhelm_beside().set_index("metric")
    first = ["evidence_recall", "feasible_rate", "loss"]
    assert table.loc[first, "inside"].all()
    assert (np.sign(table["estimate"]) == np.sign(table["published"])).all()
    further = table.drop(index=first)
    assert (len(further), int((~further["inside"]).sum())) == (6, 5)


def test_the_front_page_gives_each_sentence_its_figures_and_an_honest_verdict(table, monkeypatch):
    front = findings.front_page(table, FAST)
    assert list(dict.fromkeys(front["sentence"])) == list(findings.SENTENCES)
    known = {findings.SAME, findings.HOLDS, findings.SIGN, findings.UNCHECKED}
    assert set(front["verdict"]) == known
    assert (front["value"].isna() == (front["verdict"] == findings.UNCHECKED)).all()
    same = front[front["verdict"].isin([findings.SAME, findings.HOLDS])]
    assert (same["value"] - same["published"]).abs().max() < 1e-9
    spoiled = table.assign(agrees=table["agrees"].where(table["claim"] != "C9", False))
    verdicts = set(findings.front_page(spoiled, FAST).query("sentence == 'support'")["verdict"])
    assert verdicts == {"same data: differs", "identity fails"}


def test_every_figure_belongs_to_a_sentence(table):
    keys = zip(table["claim"], table["subject"], table["metric"], strict=True)
    assert {findings.sentence_of(*key) for key in keys} == set(findings.SENTENCES)
