"""Summaries against plain loops: means within source, equal weight over sources, paired contrasts."""

import numpy as np
import pandas as pd
import pytest

from companion import scoring
from companion.bootstrap import Resampling
from companion.errors import InputError


def per_query(rows):
    """Make a per-query table: rows of (arm, query, source, group, anchors, feasible, upper, loss)."""
    table = pd.DataFrame(rows, columns=["arm", "query_id", "source", "group", "anchors", "feasible", "upper", "loss"])
    table["stratum"] = pd.Series(np.nan, index=table.index, dtype="str")
    for name in scoring.METRICS:
        if name not in ("loss", "feasible_rate"):
            table[name] = table["upper"]
    table["feasible"] = table["feasible"].astype("Int64")
    table["loss"] = table["loss"].astype(float)
    return table


ROWS = [
    ("x", "q1", "A", "g1", 1, 1, 0.2, 0.2),
    ("x", "q2", "A", "g1", 2, 0, np.nan, 1.0),
    ("x", "q3", "A", "g2", 1, 1, 0.4, 0.4),
    ("x", "q4", "B", "g3", 1, 1, 0.6, 0.6),
    ("x", "q5", "B", "g3", 0, None, np.nan, np.nan),
    ("y", "q1", "A", "g1", 1, 1, 0.0, 0.0),
    ("y", "q2", "A", "g1", 2, 1, 0.5, 0.5),
    ("y", "q3", "A", "g2", 1, 1, 0.1, 0.1),
    ("y", "q4", "B", "g3", 1, 0, np.nan, 1.0),
    ("y", "q5", "B", "g3", 0, None, np.nan, np.nan),
]


@pytest.fixture(scope="module")
def summary():
    return scoring.summarise(per_query(ROWS), reference="x", resampling=Resampling(replicates=400, seed=3))


def test_source_means_and_equal_weight_over_sources(summary):
    assert summary.value("x", "loss", "A")["estimate"] == pytest.approx((0.2 + 1.0 + 0.4) / 3)
    assert summary.value("x", "loss")["estimate"] == pytest.approx(((0.2 + 1.0 + 0.4) / 3 + 0.6) / 2)
    assert summary.value("x", "feasible_rate")["estimate"] == pytest.approx((2 / 3 + 1) / 2)


def test_conditional_quantities_average_over_feasible_queries_only(summary):
    assert summary.value("x", "upper_bound", "A")["estimate"] == pytest.approx((0.2 + 0.4) / 2)


def test_a_source_without_a_feasible_query_makes_the_macro_value_undefined(summary):
    assert np.isnan(summary.value("y", "upper_bound", "B")["estimate"])
    assert np.isnan(summary.value("y", "upper_bound")["estimate"])
    assert np.isnan(summary.arms.query("arm == 'y' and source == 'macro'")["upper_bound"].iloc[0])


def test_unevaluable_queries_are_counted_and_left_out(summary):
    rows = summary.arms.set_index(["arm", "source"])
    assert rows.loc[("x", "B"), ["queries", "evaluable"]].tolist() == [2, 1]
    assert rows.loc[("x", "macro"), ["queries", "evaluable"]].tolist() == [5, 4]
    assert summary.settings["evaluable_share"] == 4 / 5


def test_contrast_is_the_mean_paired_difference(summary):
    expected = ((0.0 - 0.2 + 0.5 - 1.0 + 0.1 - 0.4) / 3 + (1.0 - 0.6)) / 2
    assert summary.contrast("y", "loss")["estimate"] == pytest.approx(expected)
    assert set(summary.contrasts["arm"]) == {"y"}


def test_intervals_enumerate_what_resampling_can_give(summary):
    """Two clusters in A, one in B: three distinct draws, so the ends must be among their exact values."""
    a = {("g1", "g1"): (0.2 + 1) / 2, ("g1", "g2"): (0.2 + 1 + 0.4) / 3, ("g2", "g2"): 0.4}
    values = sorted((value + 0.6) / 2 for value in a.values())
    row = summary.value("x", "loss")
    assert (row["low"], row["high"]) == (pytest.approx(values[0]), pytest.approx(values[-1]))


def test_seed_and_replicates_are_carried(summary):
    assert summary.settings["seed"] == 3
    assert summary.settings["replicates"] == 400
    assert summary.settings["confidence"] == 0.95
    assert summary.settings["n_clusters"] == 3


def test_the_same_seed_gives_the_same_table_whatever_the_row_order(summary):
    again = scoring.summarise(
        per_query(ROWS).sample(frac=1, random_state=1), reference="x", resampling=Resampling(replicates=400, seed=3)
    )
    left = summary.intervals.sort_values(["arm", "source", "metric"], ignore_index=True)
    right = again.intervals.sort_values(["arm", "source", "metric"], ignore_index=True)
    pd.testing.assert_frame_equal(left, right)


def test_unknown_reference_and_no_anchor_at_all_are_refused():
    with pytest.raises(InputError, match="reference 'z' is not among the arms"):
        scoring.summarise(per_query(ROWS), reference="z")
    with pytest.raises(InputError, match="no query has an anchor"):
        scoring.summarise(per_query([("x", "q", "A", "g", 0, None, np.nan, np.nan)]))
    with pytest.raises(InputError, match="no single row"):
        scoring.summarise(per_query(ROWS), resampling=Resampling(replicates=10)).value("x", "nothing")


def test_one_source_only_and_a_group_with_one_query():
    rows = [row for row in ROWS if row[2] == "A"]
    summary = scoring.summarise(per_query(rows), reference="x", resampling=Resampling(replicates=50))
    for metric in ("loss", "feasible_rate", "evidence_recall"):
        assert summary.value("x", metric)["estimate"] == summary.value("x", metric, "A")["estimate"]
