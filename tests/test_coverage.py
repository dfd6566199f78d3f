"""The coverage study: its intervals are those of the bootstrap, its truth is the truth, and its verdicts hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from companion.bootstrap import Resamples, Resampling, ratio_means
from companion.errors import InputError
from companion.stages import coverage
from companion.stages.coverage import ExposureModel, exposure_coverage, exposure_model

OUTCOMES = Path(__file__).parents[1] / "data" / "published" / "exposure_outcomes.csv"


def model(scenarios: int = 4, **change) -> ExposureModel:
    settings = {
        "admissible": {"a": 0.9, "b": 0.4, "c": 0.7, "d": 1.0},
        "inadmissible": {"a": 0.2, "b": 0.0, "c": 0.3, "d": 0.1},
        "scenarios": scenarios,
    }
    return ExposureModel(**(settings | change))


@pytest.mark.parametrize("method", ["percentile", "t"])
def test_intervals_are_those_of_the_bootstrap(method):
    strata = np.array([0, 0, 0, 1, 1, 1])
    for row in np.random.default_rng(3).integers(-4, 5, (5, 6)).astype(float):
        how = Resampling(300, method=method)
        result = ratio_means(pd.DataFrame({"0": row}), clusters=np.arange(6), strata=strata, resampling=how)
        assert result.resamples.sizes == (3, 3)
        if method == "t":
            low, high = coverage._student(row[None], strata, 0.95)
        else:
            low, high = coverage._percentile(row[None], result.resamples)
        expected = result.row("0")
        assert [low[0], high[0]] == pytest.approx([expected.low, expected.high], abs=1e-12)


def test_draws_average_to_the_truth():
    drawn = model(withheld=0.1).draw(np.random.default_rng(0), 20_000)
    truth = model(withheld=0.1).truth
    assert truth["relevant_admissible"] == pytest.approx(0.75 - 0.1)
    assert truth["relevant_inadmissible"] == pytest.approx(0.15 - 0.1)
    assert truth["selectivity_gap"] == pytest.approx(0.6)
    for statistic, values in drawn.items():
        means = values.mean(axis=1)
        assert values.shape == (20_000, 16)
        assert means.mean() == pytest.approx(truth[statistic], abs=4 * means.std() / np.sqrt(20_000))
    # Axis a, scenarios 0 to 3: variance of a Beta-binomial share plus that of the withheld share.
    m, c, n, q = 0.9, 1.0, 2, 0.1
    variance = m * (1 - m) / n * (1 + (n - 1) / (c + 1)) + q * (1 - q) / n
    assert drawn["relevant_admissible"][:, 0].var() == pytest.approx(variance, rel=0.05)
    assert (drawn["relevant_admissible"][:, 12:] >= 0).all()  # axis d always discloses: never below 1 - 1


def test_small_studies_are_covered_too_rarely_and_large_ones_as_promised():
    small = exposure_coverage(model(4), simulations=1500, replicates=1000).set_index(["statistic", "method"])
    large = exposure_coverage(model(60), simulations=1000, replicates=1000).set_index(["statistic", "method"])
    key = ("selectivity_gap", "percentile, within strata")
    assert small.coverage[key] < 0.95 - 4 * small.coverage_se[key]
    assert small.coverage["selectivity_gap", "t, within strata"] > small.coverage[key] + 0.02
    for method in ("percentile, within strata", "t, within strata"):
        row = large.loc[("selectivity_gap", method)]
        assert row.coverage == pytest.approx(0.95, abs=0.01 + 3 * row.coverage_se)
    assert (small.below + small.above + small.coverage).to_numpy() == pytest.approx(np.ones(9))
    assert (large.zero_width == 0).all()


def test_same_seed_same_table_and_settings_travel():
    one, again, other = (exposure_coverage(model(), simulations=300, replicates=100, seed=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(one, again)
    assert not one["mean_width"].equals(other["mean_width"])
    kept = one.attrs["settings"]
    assert [kept[k] for k in ("seed", "simulations", "replicates", "confidence")] == [1, 300, 100, 0.95]
    assert (one["simulations"] == 300).all()


def test_model_of_a_published_reader():
    outcomes = pd.read_csv(OUTCOMES)
    made = exposure_model(outcomes, "deepseek-v4-pro")
    assert made.scenarios == 4
    assert made.pairs == 2
    assert made.inadmissible == {
        "as_of_time": 0.375,
        "lifecycle_intent": 0.0,
        "policy_purpose": 0.0,
        "principal_scope": 0.375,
    }
    assert made.truth["selectivity_gap"] == pytest.approx(0.65625)


@pytest.mark.parametrize(
    "call",
    [
        lambda: model(admissible={"a": 1.2}, inadmissible={"a": 0.1}),
        lambda: model(inadmissible={"a": 0.1}),
        lambda: model(concentration=0.0),
        lambda: model(scenarios=1),
        lambda: exposure_coverage(model(), simulations=0),
        lambda: exposure_coverage(model(), replicates=0),
        lambda: exposure_coverage(model(), confidence=1.0),
    ],
)
def test_refusals(call):
    with pytest.raises(InputError):
        call()


def test_blocks_use_different_resamples():
    seeds = [sub for _, _, sub in coverage._blocks(1000, 0)]
    assert len(set(seeds)) == 4
    first, second = (Resamples(seed, 10, 0.95, (4, 4)).weights() for seed in seeds[:2])
    assert not np.array_equal(first, second)
