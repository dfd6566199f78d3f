"""Exposure effects against the published figures, SciPy and full enumeration."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from companion import exposure
from companion.bootstrap import Resampling
from companion.errors import InputError
from companion.tables.rules import CONDITIONS, ROLES

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
READERS = ["gpt-5.6-sol", "gemini-3.6-flash", "deepseek-v4-pro", "claude-opus-5"]
GAPS = {
    "gpt-5.6-sol": (0.90625, 0.8125, 0.96875),
    "gemini-3.6-flash": (0.8125, 0.6875, 0.9375),
    "deepseek-v4-pro": (0.65625, 0.5, 0.8125),
    "claude-opus-5": (0.84375, 0.6875, 0.96875),
}


@pytest.fixture(scope="module")
def outcomes() -> pd.DataFrame:
    return pd.read_csv(PUBLISHED / "exposure_outcomes.csv")


@pytest.fixture(scope="module")
def figures() -> pd.DataFrame:
    table = pd.read_csv(PUBLISHED / "figures.csv")
    return table[table["claim"].isin(["C8", "C12"])]


def at(table: pd.DataFrame, reader: str, metric: str) -> pd.Series:
    return table[(table["reader"] == reader) & (table["metric"] == metric)].iloc[0]


def made_up(scenarios: int = 3, pairs: int = 2, seed: int = 0, readers: tuple[str, ...] = ("r",)) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = itertools.product(readers, range(scenarios), range(1, pairs + 1), CONDITIONS, ROLES)
    table = pd.DataFrame(rows, columns=["reader", "scenario", "pair", "condition", "candidate_role"])
    focal = table["condition"].map({"allow": "relevant_admissible", "block": "relevant_inadmissible"})
    table["cell"] = table["candidate_role"].where(table["candidate_role"] != "focal", focal)
    table["axis"] = "axis" + (table["scenario"] % 2).astype(str)
    table["disclosed_exposed"] = rng.integers(0, 2, len(table))
    table["disclosed_withheld"] = rng.integers(0, 2, len(table))
    return table


def by_scenario(outcomes: pd.DataFrame, reader: str | None = None) -> pd.DataFrame:
    """Mean effect of each cell in each scenario, and the gap, by plain pandas."""
    rows = outcomes if reader is None else outcomes[outcomes["reader"] == reader]
    effect = rows["disclosed_exposed"].astype(int) - rows["disclosed_withheld"].astype(int)
    wide = rows.assign(effect=effect).pivot_table(index=["axis", "scenario"], columns="cell", values="effect")
    wide["selectivity_gap"] = wide["relevant_admissible"] - wide["relevant_inadmissible"]
    return wide[list(exposure.METRICS)]


def test_every_published_row_with_the_default_seed(outcomes, figures):
    summary = exposure.summarise(outcomes)
    assert len(figures) == 18
    for row in figures.itertuples():
        ours = at(summary, row.subject, row.metric)
        assert [ours.estimate, ours.low, ours.high] == pytest.approx([row.estimate, row.ci_low, row.ci_high], abs=1e-12)
        assert ours.n == row.n
        assert ours.contrast == row.contrast
    assert summary["reader"].unique().tolist() == READERS
    assert summary["metric"].tolist() == list(exposure.METRICS) * 4
    for reader, gap in GAPS.items():
        assert tuple(at(summary, reader, "selectivity_gap")[["estimate", "low", "high"]]) == gap


def test_published_ends_are_the_exact_ones_but_for_one(outcomes, figures):
    """Enumeration leaves no seed: all 36 published ends follow, save one whose tail probability is .0257."""
    exact = exposure.exact_intervals(outcomes)
    differ = []
    for row in figures.itertuples():
        ours = at(exact, row.subject, row.metric)
        ends = (("low", ours.low, row.ci_low), ("high", ours.high, row.ci_high))
        differ += [(row.subject, row.metric, side) for side, value, published in ends if value != published]
    assert differ == [("claude-opus-5", "selectivity_gap", "high")]
    odd = at(exact, "claude-opus-5", "selectivity_gap")
    assert odd.high == 1
    assert odd.at_or_above_high == pytest.approx(0.02567, abs=5e-6)
    assert odd.agree_high == pytest.approx(0.65, abs=0.01)


def test_sampled_ends_agree_with_enumeration_as_often_as_it_predicts(outcomes):
    exact = exposure.exact_intervals(outcomes)
    n = 20
    hits = np.zeros((len(exact), 2))
    for seed in range(100, 100 + n):
        sampled = exposure.summarise(outcomes, resampling=Resampling(seed=seed))
        assert (sampled["metric"] == exact["metric"]).all()
        hits += np.isclose(sampled[["low", "high"]], exact[["low", "high"]], atol=1e-12)
    expected = exact[["agree_low", "agree_high"]].to_numpy()
    error = np.sqrt(expected * (1 - expected) / n)
    assert (np.abs(hits / n - expected) <= 4 * error + 0.03).all()


def test_without_strata_the_interval_of_deepseek_reaches_zero(outcomes):
    ours = at(exposure.summarise(outcomes, "none"), "deepseek-v4-pro", "relevant_inadmissible")
    assert (ours.estimate, ours.low, ours.high) == (0.15625, 0.0, 0.34375)
    for seed in range(1, 5):
        again = at(
            exposure.summarise(outcomes, "none", resampling=Resampling(seed=seed)),
            "deepseek-v4-pro",
            "relevant_inadmissible",
        )
        assert (again.low, again.high) == (0.0, 0.34375)
    exact = at(exposure.exact_intervals(outcomes, "none"), "deepseek-v4-pro", "relevant_inadmissible")
    assert (exact.low, exact.high) == (0.0, 0.34375)


@pytest.mark.parametrize("stratify", ["axis", "none"])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_intervals_equal_brute_force_over_all_resamples(stratify, seed):
    table = made_up(scenarios=5, seed=seed)
    wide = by_scenario(table)
    axis = wide.index.get_level_values("axis").to_numpy() if stratify == "axis" else np.zeros(5)
    blocks = [np.flatnonzero(axis == a) for a in np.unique(axis)]
    draws = [itertools.product(block, repeat=len(block)) for block in blocks]
    every = np.array([list(itertools.chain(*parts)) for parts in itertools.product(*draws)])
    for confidence in (0.7, 0.8, 0.9, 0.95, 0.99):
        tail = (1 - confidence) / 2
        exact = exposure.exact_intervals(table, stratify, confidence).set_index("metric")
        for metric in exposure.METRICS:
            means = np.round(wide[metric].to_numpy()[every].mean(axis=1), 9)
            low, high = np.quantile(means, [tail, 1 - tail], method="inverted_cdf")
            assert [exact.low[metric], exact.high[metric]] == pytest.approx([low, high], abs=1e-8)
            assert exact.at_or_below_low[metric] == pytest.approx((means <= low).mean())
            assert exact.at_or_above_high[metric] == pytest.approx((means >= high).mean())


def test_sign_flip_equals_scipy_over_all_patterns(outcomes):
    ours = exposure.sign_flip(outcomes)
    assert (ours["n_patterns"] == 2**16).all()
    for reader in READERS:
        wide = by_scenario(outcomes, reader)
        for metric in exposure.METRICS:
            row = at(ours, reader, metric)
            theirs = stats.permutation_test(
                (wide[metric].to_numpy(),),
                lambda x, axis: x.mean(axis=axis),
                permutation_type="samples",
                vectorized=True,
                n_resamples=np.inf,
            )
            assert row.p_value == pytest.approx(theirs.pvalue, abs=1e-15)
            assert row.estimate == pytest.approx(theirs.statistic, abs=1e-15)
            assert row.n_nonzero == (wide[metric] != 0).sum()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), scenarios=st.integers(1, 8), pairs=st.integers(1, 3))
def test_sign_flip_equals_plain_enumeration(seed, scenarios, pairs):
    table = made_up(scenarios, pairs, seed)
    ours = exposure.sign_flip(table).set_index("metric")
    wide = by_scenario(table)
    signs = np.array(list(itertools.product([1, -1], repeat=scenarios)))
    for metric in exposure.METRICS:
        sums = np.round(signs @ (wide[metric].to_numpy() * 12))
        truth = (np.abs(sums) >= abs(round(12 * wide[metric].sum()))).mean()
        assert ours.p_value[metric] == pytest.approx(truth, abs=1e-15)


def test_sign_flip_handles_many_scenarios():
    table = made_up(80)
    row = exposure.sign_flip(table).set_index("metric").loc["selectivity_gap"]
    assert 0 < row.p_value <= 1
    assert row.n_patterns == 2**80


def test_leave_one_out_equals_dropping_each_scenario(outcomes):
    ours = exposure.leave_one_out(outcomes)
    truth = []
    for scenario in outcomes["scenario"].unique():
        rest = exposure.summarise(outcomes[outcomes["scenario"] != scenario], resampling=Resampling(replicates=1))
        truth.append(rest.assign(without=scenario))
    every = pd.concat(truth)
    for row in ours.itertuples():
        same = every[(every["reader"] == row.reader) & (every["metric"] == row.metric)].set_index("without")
        assert row.low == pytest.approx(same["estimate"].min(), abs=1e-15)
        assert row.high == pytest.approx(same["estimate"].max(), abs=1e-15)
        named = [name for name in (row.without_low, row.without_high) if pd.notna(name)]
        changes = (same["estimate"] - row.estimate).abs().max() > 1e-12
        assert len(named) == (2 if changes else 0), (row.reader, row.metric)
        if named:
            assert same["estimate"][row.without_low] == pytest.approx(row.low, abs=1e-15)
            assert same["estimate"][row.without_high] == pytest.approx(row.high, abs=1e-15)
        assert row.low <= row.estimate <= row.high


def test_cells_effects_and_gap_by_hand(outcomes):
    cells = exposure.cell_effects(outcomes, "deepseek-v4-pro")
    mine = outcomes[outcomes["reader"] == "deepseek-v4-pro"]
    for cell, n in zip(exposure.CELLS, (32, 32, 64, 64), strict=True):
        rows = mine[mine["cell"] == cell]
        assert cells.loc[cell, "n"] == n == len(rows)
        assert cells.loc[cell, "exposed"] == rows["disclosed_exposed"].sum() / n
        assert cells.loc[cell, "withheld"] == rows["disclosed_withheld"].sum() / n
        assert cells.loc[cell, "effect"] == cells.loc[cell, "exposed"] - cells.loc[cell, "withheld"]
    assert exposure.selectivity_gap(outcomes, "deepseek-v4-pro") == 0.65625


def test_heat_map_rows_average_to_the_cell_effects(outcomes):
    long = exposure.scenario_effects(outcomes)
    assert len(long) == 4 * 16 * 5
    summary = exposure.summarise(outcomes, resampling=Resampling(replicates=1))
    for row in summary.itertuples():
        same = long[(long["reader"] == row.reader) & (long["metric"] == row.metric)]
        assert same["effect"].mean() == pytest.approx(row.estimate, abs=1e-15)
        assert same["n"].sum() == row.n
        wide = by_scenario(outcomes, row.reader)[row.metric]
        assert wide.tolist() == same["effect"].tolist()
    assert long.groupby("axis")["scenario"].nunique().tolist() == [4, 4, 4, 4]


def test_readers_are_never_pooled(outcomes):
    for call in (exposure.cell_effects, exposure.selectivity_gap):
        with pytest.raises(InputError, match="reader: found 4"):
            call(outcomes)
        with pytest.raises(InputError, match="reader 'gpt' is unknown"):
            call(outcomes, "gpt")


def test_order_of_rows_and_other_readers_do_not_matter(outcomes):
    whole = exposure.summarise(outcomes)
    shuffled = exposure.summarise(outcomes.sample(frac=1, random_state=0))
    key = ["reader", "metric"]
    pd.testing.assert_frame_equal(
        whole.sort_values(key, ignore_index=True), shuffled.sort_values(key, ignore_index=True)
    )
    alone = exposure.summarise(outcomes[outcomes["reader"] == "claude-opus-5"])
    pd.testing.assert_frame_equal(alone, whole[whole["reader"] == "claude-opus-5"].reset_index(drop=True))


def test_boolean_outcomes_give_the_same(outcomes):
    as_bool = outcomes.astype({"disclosed_exposed": "boolean", "disclosed_withheld": "boolean"})
    pd.testing.assert_frame_equal(
        exposure.summarise(as_bool, resampling=Resampling(replicates=50)),
        exposure.summarise(outcomes, resampling=Resampling(replicates=50)),
    )


def test_settings_travel_with_the_summary(outcomes):
    summary = exposure.summarise(outcomes, "none", resampling=Resampling(replicates=20, confidence=0.9, seed=3))
    assert summary.attrs["settings"] == {
        "seed": 3,
        "replicates": 20,
        "confidence": 0.9,
        "stratify": "none",
        "method": "percentile",
        "n_scenarios": 16,
        "lone_axes": [],
    }


def test_an_axis_with_one_scenario_is_named_wherever_intervals_are_shown(outcomes, tmp_path):
    from typer.testing import CliRunner

    from companion.cli import app

    few = outcomes[outcomes["scenario"].isin(["scope-market", "time-promo", "time-oncall", "policy-medical"])]
    summary = exposure.summarise(few, resampling=Resampling(replicates=20))
    assert summary.attrs["settings"]["lone_axes"] == ["principal_scope", "policy_purpose"]
    note = exposure.lone_axes_note(summary)
    assert "axis principal_scope, or policy_purpose" in note and "too narrow" in note
    assert exposure.lone_axes_note(exposure.summarise(few, "none", resampling=Resampling(replicates=20))) == ""
    assert exposure.lone_axes_note(exposure.summarise(outcomes, resampling=Resampling(replicates=20))) == ""
    few.to_csv(tmp_path / "few.csv", index=False)
    ran = CliRunner().invoke(app, ["exposure", str(tmp_path / "few.csv"), "--replicates", "20"])
    assert note in ran.stdout
    told = json.loads(CliRunner().invoke(app, ["exposure", str(tmp_path / "few.csv"), "--json"]).stdout)
    assert told["settings"]["lone_axes"] == ["principal_scope", "policy_purpose"]
    few[few["scenario"] == "time-promo"].to_csv(tmp_path / "one.csv", index=False)
    refused = CliRunner().invoke(app, ["exposure", str(tmp_path / "one.csv")])
    assert "one.csv: only one scenario" in str(refused.exception) + refused.output


def test_t_intervals_are_those_of_a_stratified_cluster_sample(outcomes):
    from scipy import stats

    table = exposure.summarise(outcomes, resampling=Resampling(method="t", confidence=0.9)).set_index(
        ["reader", "metric"]
    )
    assert set(table["n"]) == {32, 64}
    for (reader, metric), row in table.iterrows():
        effects = by_scenario(outcomes, reader)[metric]
        by_axis = effects.groupby("axis")
        error = np.sqrt((by_axis.var(ddof=1) * by_axis.size()).sum()) / len(effects)
        reach = stats.t.ppf(0.95, len(effects) - by_axis.ngroups) * error
        assert row["low"] == pytest.approx(effects.mean() - reach)
        assert row["high"] == pytest.approx(effects.mean() + reach)


def drop(table: pd.DataFrame, row: int) -> pd.DataFrame:
    return table.drop(index=row)


def put(column: str, value: object):
    def change(table: pd.DataFrame) -> pd.DataFrame:
        changed = table.astype({column: object})
        changed.loc[1, column] = value
        return changed

    return change


def test_incomplete_sets_are_refused_before_anything_is_averaged(outcomes):
    """What else is refused is tested with the tables."""
    for change, message in (
        (lambda t: t.drop(t.index[1]), r"no outcome \(1 of 768 units missing\)"),
        (lambda t: t.iloc[:0], "no rows"),
        (lambda t: t.assign(population=["a"] + ["b"] * 767), "row 2, column population"),
    ):
        with pytest.raises(InputError, match=message):
            exposure.summarise(change(outcomes))


def test_unknown_settings_are_refused(outcomes):
    for call in (
        exposure.summarise,
        exposure.exact_intervals,
        lambda outcomes, rule: exposure.interval_levels(outcomes, [95], stratify=rule),
    ):
        with pytest.raises(InputError, match="stratify is 'pair'"):
            call(outcomes, "pair")
    for options in ({"confidence": 1.0}, {"confidence": 0.0}, {"replicates": 0}):
        with pytest.raises(InputError, match="exact intervals"):
            exposure.exact_intervals(outcomes, **options)
    with pytest.raises(InputError, match="only one scenario"):
        exposure.leave_one_out(made_up(1))


def test_command_prints_what_the_functions_return(outcomes, tmp_path):
    from typer.testing import CliRunner

    from companion.cli import app

    path = str(PUBLISHED / "exposure_outcomes.csv")
    ran = CliRunner().invoke(app, ["exposure", path, "--json", "--replicates", "500", "--seed", "2"])
    assert ran.exit_code == 0, ran.output
    printed = json.loads(ran.stdout)
    assert printed["settings"] == {
        "seed": 2,
        "replicates": 500,
        "confidence": 0.95,
        "stratify": "axis",
        "method": "percentile",
        "n_scenarios": 16,
        "lone_axes": [],
        "without": [],
    }
    expected = exposure.summarise(outcomes, resampling=Resampling(replicates=500, seed=2))
    assert printed["effects"] == expected.to_dict(orient="records")
    assert [len(printed[name]) for name in ("exact", "leave_one_out", "sign_flip")] == [20, 20, 20]

    shown = CliRunner().invoke(app, ["exposure", path, "--stratify", "none", "--replicates", "500"])
    assert shown.exit_code == 0
    assert "resampled together" in shown.stdout
    # All 16 scenarios agree for one reader: 2 of 2^16 patterns, which four decimals would print as 0.
    flips = shown.stdout.partition("Exact two-sided")[2]
    assert [line.split()[3] for line in flips.splitlines() if "gpt-5.6-sol" in line and "gap" in line] == ["3.1e-05"]
    assert "at or below low" not in shown.stdout
    assert "Seeds that agree: the share of seeds" in shown.stdout
    # Nothing moves where every scenario is 0, so no scenario is named.
    without = shown.stdout.partition("when one scenario is left out")[2].partition("Exact two-sided")[0]
    still = [line.split()[5:] for line in without.splitlines() if "claude-opus-5" in line and "irrelevant_in" in line]
    assert still == [["–", "–"]]
    (row,) = [r for r in printed["leave_one_out"] if (r["reader"], r["metric"]) == ("claude-opus-5", exposure.CELLS[3])]
    assert (row["low"], row["high"], row["without_low"], row["without_high"]) == (0, 0, None, None)
    assert {"at_or_below_low", "at_or_above_high"} <= set(printed["exact"][0])

    broken = tmp_path / "broken.csv"
    outcomes.drop(index=1).to_csv(broken, index=False)
    refused = CliRunner().invoke(app, ["exposure", str(broken)])
    assert isinstance(refused.exception, InputError)
    assert "broken.csv" in str(refused.exception)
    assert "\n" not in str(refused.exception)


def test_interval_levels_meet_summarise_at_its_own_level(outcomes):
    levels = exposure.interval_levels(
        outcomes, [50, 90, 95], metric="relevant_inadmissible", resampling=Resampling(replicates=800, seed=4)
    )
    for confidence in (0.5, 0.95):
        whole = exposure.summarise(outcomes, resampling=Resampling(replicates=800, confidence=confidence, seed=4))
        expected = whole[whole["metric"] == "relevant_inadmissible"].set_index("reader")[["estimate", "low", "high"]]
        got = levels[levels["level"] == 100 * confidence].set_index("reader")[["estimate", "low", "high"]]
        pd.testing.assert_frame_equal(got, expected)
    wide = levels.assign(width=levels["high"] - levels["low"]).pivot(index="reader", columns="level", values="width")
    assert (wide.diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    with pytest.raises(InputError, match="whole per cent"):
        exposure.interval_levels(outcomes, [0])
    with pytest.raises(InputError, match="metric 'x'"):
        exposure.interval_levels(outcomes, [95], metric="x")
