"""The bootstrap against exact enumeration, SciPy, a plain loop, and properties it must have."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from companion import bootstrap
from companion.bootstrap import MACRO, Resamples, Resampling, estimate, require_single
from companion.errors import InputError


def ratio_means(
    values, *, contrasts=None, keep_replicates=False, weights=None, clusters, strata=None, sources=None, **how
):
    """Call the engine on an array of statistics "0", "1", ..."""
    frame = values if isinstance(values, pd.DataFrame) else pd.DataFrame(np.atleast_1d(np.asarray(values)))
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    return bootstrap.ratio_means(
        frame, clusters=clusters, strata=strata, sources=sources, contrasts=contrasts, weights=weights,
        keep_replicates=keep_replicates, resampling=Resampling(**how),
    )  # fmt: skip


def design(seed: int = 0, units: int = 60) -> dict[str, np.ndarray]:
    """Two sources of unequal size, two strata each, values on a grid of 1/8 so that sums are exact."""
    rng = np.random.default_rng(seed)
    sources = np.where(np.arange(units) < units // 4, "a", "b")
    strata = np.where(rng.random(units) < 0.5, "x", "y")
    clusters = np.char.add(strata, rng.integers(0, 4, units).astype(str))
    values = rng.integers(-8, 9, (units, 3)) / 8
    values[rng.random((units, 3)) < 0.2] = np.nan
    return {"values": values, "clusters": clusters, "strata": strata, "sources": sources}


def plain_loop(d: dict[str, np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Macro means of column 0 and of column 0 - column 2, one replicate and one unit at a time."""
    keys = sorted(set(zip(d["sources"], d["strata"], d["clusters"], strict=True)))
    out = []
    for row in weights:
        times = dict(zip(keys, row, strict=True))
        means = {}
        for source in ("a", "b"):
            for column in (0, 2):
                top = bottom = 0.0
                for value, *key in zip(d["values"][:, column], d["sources"], d["strata"], d["clusters"], strict=True):
                    if key[0] == source and not np.isnan(value):
                        top += times[tuple(key)] * value
                        bottom += times[tuple(key)]
                means[source, column] = top / bottom if bottom else np.nan
        macro = [(means["a", c] + means["b", c]) / 2 for c in (0, 2)]
        out.append((macro[0], macro[0] - macro[1]))
    return np.array(out)


def test_equals_a_plain_loop_with_the_same_weights():
    d = design()
    result = ratio_means(**d, contrasts={"diff": {"0": 1, "2": -1}}, replicates=200, keep_replicates=True, seed=3)
    truth = plain_loop(d, result.resamples.weights())
    np.testing.assert_array_equal(result.replicates("0"), truth[:, 0])
    np.testing.assert_array_equal(result.replicates("diff"), truth[:, 1])
    low, high = np.quantile(truth[:, 1], [0.025, 0.975])
    assert result.row("diff")[["low", "high"]].tolist() == pytest.approx([low, high], abs=1e-15)
    ones = plain_loop(d, np.ones((1, result.resamples.n_clusters)))[0]
    assert result.row("0").estimate == ones[0]
    assert result.row("diff").estimate == ones[1]


def test_replicates_are_those_behind_the_ends_and_must_be_kept():
    kept = ratio_means(**design(), replicates=50, keep_replicates=True)
    row = kept.row("1")
    np.testing.assert_allclose(np.quantile(kept.replicates("1"), [0.025, 0.975]), [row.low, row.high], atol=1e-14)
    with pytest.raises(InputError, match="not kept"):
        ratio_means(**design(), replicates=50).replicates("1")


def test_quantiles_of_the_exact_distribution_of_all_resamples():
    # 5 clusters of unequal size: all 5^5 resamples, each as likely as any other.
    sums = np.array([3.0, 0.0, 5.0, -2.0, 4.0])
    sizes = np.array([4, 1, 6, 2, 3])
    every = np.array(list(itertools.product(range(5), repeat=5)))
    exact = sums[every].sum(axis=1) / sizes[every].sum(axis=1)
    clusters = np.repeat(np.arange(5), sizes)
    values = np.repeat(sums / sizes, sizes)
    result = ratio_means(values[:, None], clusters=clusters, replicates=200_000, keep_replicates=True)
    drawn = result.replicates("0")
    assert result.row("0").estimate == pytest.approx(sums.sum() / sizes.sum())
    # The sampled quantile must lie between exact quantiles a little to either side: 4 Monte Carlo errors.
    for p in (0.025, 0.25, 0.5, 0.75, 0.975):
        error = 4 * np.sqrt(p * (1 - p) / len(drawn))
        least, most = np.quantile(exact, [p - error, p + error])
        assert least - 1e-12 <= np.quantile(drawn, p) <= most + 1e-12
    assert drawn.mean() == pytest.approx(exact.mean(), abs=4 * exact.std() / np.sqrt(len(drawn)))
    assert drawn.std() == pytest.approx(exact.std(), rel=0.01)


def test_agrees_with_scipy_for_equal_clusters_in_one_stratum():
    rng = np.random.default_rng(1)
    groups = rng.normal(size=(40, 1)) + rng.normal(size=(40, 5))
    theirs = stats.bootstrap((groups.mean(axis=1),), np.mean, n_resamples=20_000, method="percentile", random_state=5)
    ours = ratio_means(groups.reshape(-1, 1), clusters=np.repeat(np.arange(40), 5), replicates=20_000).row("0")
    width = ours.high - ours.low
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.03 * width)
    assert ours.estimate == pytest.approx(groups.mean())


def test_t_interval_equals_scipy_for_single_units():
    x = np.random.default_rng(2).normal(size=(12, 1))
    row = ratio_means(x, clusters=np.arange(12), method="t", confidence=0.9, replicates=1).row("0")
    low, high = stats.t.interval(0.9, 11, loc=x.mean(), scale=stats.sem(x[:, 0]))
    assert [row.low, row.high] == pytest.approx([low, high], abs=1e-12)


def test_t_interval_of_strata_and_sources_equals_the_textbook_formula():
    # Equal clusters of one unit: stratified mean over 2 strata of a source, then the mean of 2 sources.
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 2, 6))
    frame = pd.DataFrame({"v": x.ravel()})
    labels = np.array(list(itertools.product("ab", "xy", range(6))))
    result = ratio_means(
        frame,
        clusters=np.arange(24),
        strata=labels[:, 1],
        sources=labels[:, 0],
        method="t",
        replicates=1,
    )
    variance = (x.var(axis=2, ddof=1) / 6 / 4).sum(axis=1)  # strata weigh 1/2
    for source, mean, var, df in (
        ("a", x[0].mean(), variance[0], 10),
        ("b", x[1].mean(), variance[1], 10),
        (MACRO, x.mean(), variance.sum() / 4, 20),
    ):
        row = result.row("v", source)
        reach = stats.t.ppf(0.975, df) * np.sqrt(var)
        assert [row.low, row.high] == pytest.approx([mean - reach, mean + reach], abs=1e-12)


def test_t_error_is_close_to_the_bootstrap_error_for_many_clusters():
    d = design(units=4000)
    d["clusters"] = np.char.add(d["strata"], np.random.default_rng(0).integers(0, 200, 4000).astype(str))
    contrasts = {"diff": {"0": 1, "1": -1}}
    t = ratio_means(**d, contrasts=contrasts, method="t", replicates=1)
    p = ratio_means(**d, contrasts=contrasts, replicates=4000, keep_replicates=True)
    for name in ("0", "diff"):
        width = t.row(name).high - t.row(name).low
        assert width / 2 / 1.96 == pytest.approx(p.replicates(name).std(), rel=0.06)


def test_sources_weigh_the_same_whatever_their_size():
    values = np.r_[np.ones(2), np.zeros(98)][:, None]
    sources = ["small"] * 2 + ["large"] * 98
    result = ratio_means(values, clusters=np.arange(100), sources=sources, replicates=10)
    assert result.row("0", "small").estimate == 1
    assert result.row("0", "large").estimate == 0
    assert result.row("0").estimate == 0.5
    assert result.settings["n_sources"] == 2


def test_clusters_move_together():
    # Two clusters of constant value: a resample mean can only be 0, 1/2 or 1, in proportion 1:2:1.
    result = ratio_means(
        np.repeat([0.0, 1.0], 50)[:, None], clusters=np.repeat([0, 1], 50), replicates=4000, keep_replicates=True
    )
    found, times = np.unique(result.replicates("0"), return_counts=True)
    assert found.tolist() == [0, 0.5, 1]
    np.testing.assert_allclose(times / 4000, [0.25, 0.5, 0.25], atol=0.04)


def test_one_cluster_strata_have_zero_width_and_no_t_interval():
    kwargs = {"clusters": [0, 0, 1, 1], "strata": ["x", "x", "y", "y"], "replicates": 100}
    values = np.array([[0.0], [1.0], [4.0], [7.0]])
    row = ratio_means(values, **kwargs).row("0")
    assert row.low == row.estimate == row.high == 3
    row = ratio_means(values, **kwargs, method="t").row("0")
    assert np.isnan([row.low, row.high]).all()


def test_row_of_a_source_does_not_change_when_another_joins():
    d = design()
    own = d["sources"] == "b"
    alone = ratio_means(**{k: v[own] for k, v in d.items()}, replicates=300).table
    both = ratio_means(**d, replicates=300).table
    for statistic in "012":
        pick = lambda table, s=statistic: table[(table.statistic == s) & (table.source == "b")].iloc[0]
        pd.testing.assert_series_equal(pick(alone), pick(both), check_names=False)


def test_weights_do_not_depend_on_chunks_and_sum_to_stratum_sizes():
    resamples = Resamples(7, 101, 0.95, (3, 1, 5))
    whole = resamples.weights()
    pieces = np.vstack([part for _, part in resamples.chunks(rows=7)])
    np.testing.assert_array_equal(whole, pieces)
    assert whole.shape == (101, 9)
    assert (whole[:, :3].sum(axis=1) == 3).all()
    assert (whole[:, 3] == 1).all()
    assert (whole[:, 4:].sum(axis=1) == 5).all()
    assert not (Resamples(8, 101, 0.95, (3, 1, 5)).weights() == whole).all()


def test_strata_of_the_same_size_are_resampled_independently():
    weights = Resamples(0, 20_000, 0.95, (4, 4), ("x", "y")).weights().astype(float)
    between = np.corrcoef(weights.T)[:4, 4:]
    assert np.abs(between).max() < 5 / np.sqrt(20_000)
    # Within a stratum the multinomial counts have mean 1, variance 1 - 1/4 and covariance -1/4.
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.03)
    np.testing.assert_allclose(np.cov(weights[:, :4].T), np.eye(4) - 1 / 4, atol=0.04)


def test_resamples_refuse_repeated_names_and_empty_strata():
    with pytest.raises(InputError, match="expected 2 different names"):
        Resamples(0, 10, 0.95, (4, 4), ("x", "x"))
    with pytest.raises(InputError, match="expected at least 1"):
        Resamples(0, 10, 0.95, (4, 0))


def test_undefined_replicates_are_counted_and_left_out():
    # One of two clusters has no defined value: a quarter of the resamples draw it twice.
    values = np.array([[1.0, 1.0], [np.nan, 1.0]])
    result = ratio_means(values, clusters=[0, 1], replicates=8000, keep_replicates=True)
    row = result.row("0")
    assert row.undefined_replicates == np.isnan(result.replicates("0")).sum()
    assert row.undefined_replicates / 8000 == pytest.approx(0.25, abs=0.02)
    assert row.low == row.high == row.estimate == 1
    assert result.row("1").undefined_replicates == 0
    assert [row.n_units, row.n_clusters] == [1, 1]


def test_source_without_a_value_is_undefined_and_so_is_macro():
    frame = pd.DataFrame({"bound": [0.5, 0.5, np.nan, np.nan], "loss": [0.5, 0.5, 1.0, 1.0]})
    result = ratio_means(frame, clusters=[0, 1, 0, 1], sources=["a", "a", "b", "b"], replicates=20)
    assert result.row("bound", "a").estimate == 0.5
    for source in ("b", MACRO):
        assert result.row("bound", source)[["estimate", "low", "high"]].isna().all()
        assert result.row("bound", source).undefined_replicates == 20
    assert result.row("loss").estimate == 0.75


def test_source_without_evaluable_units_is_shown_but_left_out_of_macro():
    frame = pd.DataFrame({"v": [0.25, 0.75, np.nan]})
    result = ratio_means(frame, clusters=[0, 1, 0], sources=["a", "a", "b"], replicates=20, keep_replicates=True)
    assert np.isnan(result.row("v", "b").estimate)
    assert result.row("v", "b").undefined_replicates == 20
    assert np.isnan(result.replicates("v", "b")).all()
    assert result.row("v").estimate == 0.5
    assert result.settings["n_unevaluable"] == 1
    assert result.settings["n_sources"] == 1


def test_nothing_evaluable_gives_undefined_rows():
    frame = pd.DataFrame({"v": [np.nan, np.nan]})
    result = ratio_means(frame, clusters=[0, 1], replicates=20, contrasts={"c": {"v": 1}})
    assert result.table[["estimate", "low", "high"]].isna().all().all()
    assert (result.table["undefined_replicates"] == 20).all()
    assert result.settings["n_unevaluable"] == 2


def test_contrast_ignores_undefined_statistics_it_does_not_use():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [0.0, 1.0], "c": [np.nan, np.nan]})
    row = ratio_means(frame, clusters=[0, 1], replicates=20, contrasts={"d": {"a": 1, "b": -1}}).row("d")
    assert row.low == row.estimate == row.high == 1
    assert row.undefined_replicates == 0


def test_nullable_columns_are_read_and_unresolved_is_undefined():
    frame = pd.DataFrame({"v": pd.array([True, False, pd.NA, True], dtype="boolean")})
    row = ratio_means(frame, clusters=range(4), replicates=20).row("v")
    assert row.estimate == pytest.approx(2 / 3)
    assert row.n_units == 3


def test_settings_travel_with_the_result():
    result = ratio_means(**design(), replicates=12, confidence=0.8, seed=5)
    assert result.settings == {
        "seed": 5,
        "replicates": 12,
        "confidence": 0.8,
        "method": "percentile",
        "n_units": 60 - result.settings["n_unevaluable"],
        "n_unevaluable": int(np.isnan(design()["values"]).all(axis=1).sum()),
        "n_clusters": result.resamples.n_clusters,
        "n_strata": 4,
        "n_sources": 2,
    }


def test_same_label_in_two_sources_is_two_clusters():
    result = ratio_means(np.arange(4.0)[:, None], clusters=[0, 1, 0, 1], sources=list("aabb"), replicates=5)
    assert result.settings["n_clusters"] == 4


def test_a_cluster_that_lies_in_two_strata_is_refused():
    with pytest.raises(InputError, match=r"cluster 'p' of source 'all' lies in stratum 'then' and in another"):
        ratio_means(np.arange(3.0)[:, None], clusters=["p", "p", "q"], strata=["now", "then", "now"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"confidence": 0.0}, "confidence is 0.0"),
        ({"confidence": float("nan")}, "confidence is nan"),
        ({"replicates": 0}, "replicates is 0"),
        ({"replicates": 10.5}, "replicates is 10.5"),
        ({"seed": -1}, "seed is -1"),
        ({"method": "bca"}, "method is 'bca'"),
        ({"values": [[1.0], [np.inf]]}, "statistic '0', row 1: infinite"),
        ({"values": pd.DataFrame({"v": ["a", "b"]})}, "statistic 'v' has type"),
        ({"clusters": [1, None]}, "cluster of row 1 is missing"),
        ({"sources": ["a", np.nan]}, "source of row 1 is missing"),
        ({"replicates": 10**9}, "replicates is 1000000000; expected at most"),
        ({"weights": [1, 0]}, "weights"),
        ({"weights": [1, np.nan]}, "weights"),
        ({"seed": True}, "seed is True"),
        ({"sources": ["a", "macro"]}, "a source is named 'macro'"),
    ],
)
def test_refusals_say_what_is_wrong(change, message):
    kwargs = {"values": [[1.0], [2.0]], "clusters": [0, 1], "replicates": 5} | change
    with pytest.raises(InputError, match=message):
        ratio_means(kwargs.pop("values"), **kwargs)


def test_unknown_names_are_refused():
    result = ratio_means([[1.0], [2.0]], clusters=[0, 1], replicates=5)
    for call in (
        lambda: result.replicates("x"),
        lambda: result.replicates("0", "x"),
        lambda: result.row("x"),
    ):
        with pytest.raises(InputError):
            call()


def test_averaging_over_populations_is_refused():
    assert require_single(["natural-support"] * 3, "population") == "natural-support"
    with pytest.raises(InputError, match="never pooled"):
        require_single(["natural-support", "own-records"], "population")
    with pytest.raises(InputError, match="row 1 states none"):
        require_single(["gpt", None], "reader")
    with pytest.raises(InputError, match="no rows"):
        require_single([], "reader")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(seed, order):
    d = design(seed, 30)
    index = list(range(30))
    order.shuffle(index)
    one = ratio_means(**d, replicates=50).table
    two = ratio_means(**{k: v[index] for k, v in d.items()}, replicates=50).table
    pd.testing.assert_frame_equal(one, two, atol=1e-13, rtol=0)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.5, 2.0, 4.0]),
    shift=st.integers(-3, 3),
)
def test_estimates_and_ends_follow_a_change_of_units(seed, scale, shift):
    d = design(seed, 30)
    one = ratio_means(**d, replicates=50).table
    two = ratio_means(**(d | {"values": d["values"] * scale + shift}), replicates=50).table
    columns = ["estimate", "low", "high"]
    np.testing.assert_allclose(one[columns] * scale + shift, two[columns], atol=1e-12)
    assert (two["low"].fillna(0) <= two["high"].fillna(0)).all()
    lowest, highest = np.nanmin(d["values"]), np.nanmax(d["values"])
    inside = one[columns].apply(lambda c: c.isna() | c.between(lowest - 1e-12, highest + 1e-12))
    assert inside.all().all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), extra=st.integers(1, 20))
def test_units_that_are_not_evaluable_change_nothing(seed, extra):
    d = design(seed, 30)
    more = {
        "values": np.vstack([d["values"], np.full((extra, 3), np.nan)]),
        "clusters": np.append(d["clusters"], [f"new{i}" for i in range(extra)]),
        "strata": np.append(d["strata"], ["x"] * extra),
        "sources": np.append(d["sources"], ["a"] * extra),
    }
    pd.testing.assert_frame_equal(ratio_means(**d, replicates=50).table, ratio_means(**more, replicates=50).table)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_paired_contrast_is_the_mean_of_paired_differences(seed):
    d = design(seed, 30)
    full = np.nan_to_num(d["values"])
    frame = pd.DataFrame({"a": full[:, 0], "b": full[:, 1], "a-b": full[:, 0] - full[:, 1]})
    result = ratio_means(frame, **{k: d[k] for k in ("clusters", "strata", "sources")},
                         contrasts={"c": {"a": 1, "b": -1}}, replicates=80)  # fmt: skip
    columns = ["estimate", "low", "high"]
    for source in ("a", "b", MACRO):
        np.testing.assert_allclose(
            result.row("c", source)[columns].astype(float),
            result.row("a-b", source)[columns].astype(float),
            atol=1e-13,
        )


# --- estimate ----------------------------------------------------------------------------------------------------


def long_table(seed=0):
    """Three arms over the same twelve queries in two sources; one metric undefined here and there."""
    rng = np.random.default_rng(seed)
    rows = [
        {"arm": arm, "query": f"q{n}", "source": "ab"[n % 3 == 0], "group": f"g{n % 5}", "loss": rng.integers(0, 9) / 8,
         "bound": np.nan if rng.random() < 0.3 else rng.integers(0, 9) / 8, "queries": n + 1}
        for arm in ("x", "y", "z")
        for n in range(12)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def macro_mean(rows, metric, weight=None):
    rows = rows.dropna(subset=[metric])
    heavy = rows[weight] if weight else pd.Series(1, index=rows.index)
    sums = (rows[metric] * heavy).groupby(rows["source"]).sum() / heavy.groupby(rows["source"]).sum()
    return sums.mean()


@pytest.mark.parametrize("unit", [None, "query"])
@pytest.mark.parametrize("weight", [None, "queries"])
def test_estimate_is_the_mean_within_sources_then_over_them(unit, weight):
    frame = long_table()
    table = estimate(frame, ["loss", "bound"], by=["arm"], unit=unit, weight=weight)
    assert list(table.columns[:3]) == ["arm", "source", "metric"] and len(table) == 3 * 3 * 2
    for row in table[table["source"] == MACRO].itertuples():
        rows = frame[frame["arm"] == row.arm]
        assert row.estimate == pytest.approx(macro_mean(rows, row.metric, weight), abs=1e-14)
        assert row.n_units == rows[row.metric].notna().sum()
        assert row.low <= row.estimate <= row.high
    one = table.set_index(["arm", "source", "metric"]).loc[("y", "b", "loss")]
    rows = frame[(frame["arm"] == "y") & (frame["source"] == "b")]
    assert one["n_units"] == len(rows) == 4 and one["n_clusters"] == rows["group"].nunique() == 4


def test_differences_and_combinations_come_from_the_same_resamples():
    frame = long_table()
    frame["gap"] = frame["loss"] - frame["bound"].fillna(0.5)
    frame["bound"] = frame["bound"].fillna(0.5)
    options = {"by": ["arm"], "unit": "query", "resampling": Resampling(400)}
    gap = estimate(frame, ["gap"], **options)
    combined = estimate(frame, ["loss", "bound"], combine={"gap": {"loss": 1, "bound": -1}}, **options)
    combined = combined[combined["metric"] == "gap"].reset_index(drop=True)
    pd.testing.assert_frame_equal(combined, gap, atol=1e-13)
    wide = frame.pivot(index=["query", "source", "group"], columns="arm", values="gap")
    paired = pd.DataFrame({"d": (wide["z"] - wide["x"])}).reset_index()
    expected = estimate(paired, ["d"], resampling=Resampling(400))
    found = estimate(frame, ["gap"], versus={"arm": "x"}, **options)
    assert list(found["arm"].unique()) == ["y", "z"] and "versus" not in found
    ends = ["source", "estimate", "low", "high", "n_units"]
    pd.testing.assert_frame_equal(
        found.loc[found["arm"] == "z", ends].reset_index(drop=True), expected[ends], atol=1e-13
    )
    both = estimate(frame, ["gap"], versus={"arm": "x"}, both=True, **options)
    pd.testing.assert_frame_equal(both[both["versus"].isna()].drop(columns="versus").reset_index(drop=True), gap)
    assert both.loc[both["versus"].notna(), "versus"].unique().tolist() == ["x"]


@pytest.mark.parametrize(
    ("groups", "resampling", "reason"),
    [
        (["a"] * 4, Resampling(), "fewer than two groups to resample"),
        (["a", "a", "b", "b"], Resampling(199), "199 replicates, fewer than 200"),
        (["a"] * 4, Resampling(1), "fewer than two groups to resample; 1 replicates, fewer than 200"),
        (["a", "a", "b", "b"], Resampling(200), ""),
        (["a", "a", "b", "b"], Resampling(1, method="t"), ""),
        (["a"] * 4, Resampling(1, method="t"), "fewer than two groups to resample"),
    ],
)
def test_no_interval_without_two_groups_or_two_hundred_replicates(groups, resampling, reason):
    frame = pd.DataFrame({"group": groups, "v": [0.0, 1.0, 0.5, 0.25]})
    table = estimate(frame, ["v"], source=None, resampling=resampling)
    assert table.attrs["no_interval"] == reason and table["estimate"].item() == 0.4375
    assert table[["low", "high"]].isna().all(axis=None) == bool(reason)


def test_sources_of_one_group_each_have_no_interval_together():
    frame = pd.DataFrame({"group": ["a", "b"], "source": ["s", "t"], "v": [0.0, 1.0]})
    assert estimate(frame, ["v"])[["low", "high"]].isna().all(axis=None)
    frame = pd.DataFrame({"group": ["a", "b", "c"], "source": ["s", "t", "t"], "v": [0.0, 1.0, 0.5]})
    assert estimate(frame, ["v"])["low"].isna().tolist() == [True, False, False]


@pytest.mark.parametrize("lone", [1, 2])
def test_the_t_interval_of_a_stratum_with_one_cluster_uses_the_others(lone):
    """The lone stratum adds neither variance nor degrees of freedom."""
    x = np.array([1.0, 4.0, 2.0, 7.0])
    frame = pd.DataFrame({"v": [*x, *[5.0] * lone], "g": range(4 + lone), "s": ["p"] * 4 + ["q", "r"][:lone]})
    row = estimate(frame, ["v"], cluster="g", source=None, stratum="s", resampling=Resampling(1, 0.9, method="t")).iloc[
        0
    ]
    share = 4 / (4 + lone)
    reach = stats.t.ppf(0.95, 3) * share * x.std(ddof=1) / 2
    mean = (x.sum() + 5 * lone) / (4 + lone)
    assert [row.low, row.high] == pytest.approx([mean - reach, mean + reach], abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["x"]}, "no column 'x'"),
        ({"by": ["x"]}, "no column 'x'"),
        ({"cluster": "x"}, "no column 'x'"),
        ({"by": ["arm"], "versus": {"arm": "w"}}, "reference 'w' is not among the values of 'arm'"),
        ({"by": ["arm"], "versus": {"source": "a"}}, "reference 'a' is not among the values of 'source'"),
        ({"combine": {"new": {"loss": 1, "x": 1}}}, "'new' combines loss, x"),
        ({"unit": "query"}, "query 'q0' stands twice in one combination"),
        ({"frame": long_table().iloc[:0], "by": ["arm"]}, "no rows"),
    ],
)
def test_what_cannot_be_estimated_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        estimate(**({"frame": long_table(), "metrics": ["loss"]} | options))
