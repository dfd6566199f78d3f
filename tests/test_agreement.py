"""Agreement: alpha against its definition, the rebuilt tables against the published figures."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.bootstrap import Resampling
from companion.errors import InputError
from companion.paths import data_dir
from companion.stages import agreement
from companion.stages.agreement import PairTable, alpha, alpha_interval, rebuild_table

PUBLISHED_TABLES = {"prohibited": (2, 24, 181), "scope": (30, 1, 176), "usable_evidence": (83, 6, 118)}


def by_definition(rows: list[tuple[object, ...]]) -> Fraction | None:
    """Alpha from the textbook: observed over expected disagreement of all ordered pairs of answers."""
    units = [[v for v in row if v is not None] for row in rows]
    units = [u for u in units if len(u) >= 2]
    every = [v for u in units for v in u]
    n = len(every)
    if n == 0 or len(set(every)) == 1:
        return None
    observed = sum(Fraction(sum(a != b for a, b in itertools.permutations(u, 2)), len(u) - 1) for u in units)
    expected = Fraction(sum(a != b for a, b in itertools.permutations(every, 2)), n - 1)
    return 1 - observed / expected


@given(
    st.lists(
        st.tuples(*[st.sampled_from([None, "a", "b", "c"])] * 3),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=150, deadline=None)
def test_alpha_is_the_textbook_alpha(rows: list[tuple[object, ...]]) -> None:
    ratings = pd.DataFrame(rows, columns=["x", "y", "z"], dtype=object)
    truth = by_definition(rows)
    got = alpha(ratings)
    assert np.isnan(got) if truth is None else got == pytest.approx(float(truth), abs=1e-12)


@pytest.mark.parametrize("axis", sorted(PUBLISHED_TABLES))
def test_rebuilt_tables_give_the_published_figures(axis: str) -> None:
    row = agreement.published().loc[axis]
    assert (row["both_yes"], row["split"], row["both_no"]) == PUBLISHED_TABLES[axis]
    ratings = PairTable(*PUBLISHED_TABLES[axis]).ratings()
    assert round(alpha(ratings), 6) == round(row["alpha"], 6)
    assert ratings["annotator_1"].eq(ratings["annotator_2"]).mean() == pytest.approx(row["exact_agreement"], abs=1e-12)


@pytest.mark.parametrize("axis", ["relevance", "lifecycle"])
def test_axes_with_more_answers_have_no_two_answer_table(axis: str) -> None:
    row = agreement.published().loc[axis]
    assert pd.isna(row["split"])
    nearest = min(abs(PairTable(y, s, 207 - s - y).alpha - row["alpha"]) for s in (22, 29) for y in range(178))
    assert nearest > 1e-4


@given(st.integers(2, 120), st.data())
@settings(max_examples=60, deadline=None)
def test_rebuilding_inverts_the_figures(n: int, data: st.DataObject) -> None:
    yes = data.draw(st.integers(0, n))
    split = data.draw(st.integers(0, n - yes))
    table = PairTable(yes, split, n - yes - split)
    if split == 0:  # full agreement: alpha is 1 (or undefined) whatever the prevalence, nothing can be rebuilt
        return
    back = rebuild_table(table.exact_agreement, table.alpha, n)
    assert back is not None
    assert {back.both_yes, back.both_no} == {yes, n - yes - split} and back.split == split


def test_one_record_is_enough_for_a_table() -> None:
    assert rebuild_table(0.0, 0.0, 1) == PairTable(0, 1, 0)
    assert rebuild_table(1.0, 0.5, 1) is None
    assert PairTable(0, 1, 0).prevalence == 0.5
    with pytest.raises(InputError, match="0 records"):
        rebuild_table(0.0, 0.0, 0)


def test_full_agreement_does_not_determine_the_table() -> None:
    with pytest.raises(InputError, match="tables fit"):
        rebuild_table(1.0, 1.0, 50)


def test_interval_matches_a_plain_loop_over_resampled_records() -> None:
    table = PairTable(2, 24, 181)
    got = alpha_interval(table.ratings(), replicates=4000, seed=1)
    rng = np.random.default_rng(99)  # another stream: agreement up to Monte Carlo error
    rows = table.ratings()
    loop = [alpha(rows.iloc[rng.integers(0, 207, 207)]) for _ in range(1500)]
    low, high = np.quantile(loop, [0.025, 0.975])
    assert got.low == pytest.approx(low, abs=0.02) and got.high == pytest.approx(high, abs=0.03)
    assert got.low < 0 < got.alpha < got.high < 0.4
    assert got.undefined == 0


def test_interval_is_deterministic_and_indifferent_to_row_order() -> None:
    ratings = PairTable(30, 1, 176).ratings()
    one = alpha_interval(ratings, replicates=500, seed=3)
    assert one == alpha_interval(ratings, replicates=500, seed=3)
    assert one != alpha_interval(ratings, replicates=500, seed=4)
    swapped = ratings[["annotator_2", "annotator_1"]]
    assert alpha_interval(swapped, replicates=500, seed=3) == one


def test_undefined_replicates_are_counted_not_hidden() -> None:
    got = alpha_interval(PairTable(1, 0, 9).ratings(), replicates=2000, seed=0)
    assert got.undefined == pytest.approx(2000 * 0.9**10, rel=0.15)
    assert got.low == got.high == 1.0


def test_one_answer_throughout_is_undefined() -> None:
    got = alpha_interval(PairTable(0, 0, 9).ratings(), replicates=50)
    assert np.isnan([got.alpha, got.low, got.high]).all() and got.undefined == 50


def test_alpha_falls_with_the_rarer_answer_while_agreement_stays() -> None:
    tables = [PairTable(yes, 24, 183 - yes) for yes in range(184)]
    assert {table.exact_agreement for table in tables} == {183 / 207}
    alphas = [table.alpha for table in tables]
    assert alphas[2] == pytest.approx(0.082901554, abs=1e-8)
    assert np.argmax(alphas) in (91, 92) and max(alphas) > 0.76  # the same 88.4% with balanced answers
    assert alphas[0] < 0  # nobody ever agrees on the rare answer
    assert PairTable(1, 2, 3).prevalence == pytest.approx(4 / 12)


def test_specific_agreement_separates_the_two_answers() -> None:
    table = agreement.published_tables()["prohibited"]
    assert table.yes_agreement == pytest.approx(4 / 28) and table.no_agreement == pytest.approx(362 / 386)


def test_published_tables_are_the_known_ones_and_their_alphas_lie_inside_their_intervals() -> None:
    tables = agreement.published_tables()
    assert {axis: (t.both_yes, t.split, t.both_no) for axis, t in tables.items()} == PUBLISHED_TABLES
    for table in tables.values():
        interval = alpha_interval(table.ratings(), replicates=200)
        assert interval.low <= interval.estimate <= interval.high


def test_other_answers_than_yes_and_no_can_give_the_same_figures() -> None:
    table = PairTable(*PUBLISHED_TABLES["usable_evidence"])
    margins = agreement.other_margins(table)
    assert margins, "so it is one table, not the table"
    for counts in margins:
        assert sum(counts) == 414
        expected = 1 - sum(c * (c - 1) for c in counts) / (414 * 413)
        assert 1 - (table.split / 207) / expected == pytest.approx(table.alpha, abs=1e-12)
    slow = [
        (a, b, 414 - a - b)
        for a in range(1, 139)
        for b in range(a, (414 - a) // 2 + 1)
        if a * a + b * b + (414 - a - b) ** 2 == sum(c * c for c in (172, 242))
    ]
    assert sorted(margins) == sorted(slow)


def test_the_alpha_of_lifecycle_is_possible_on_184_records_only() -> None:
    figures = agreement.published()
    assert list(agreement.sizes_that_fit(figures.loc["lifecycle", "alpha"])) == [184]
    assert 207 in agreement.sizes_that_fit(figures.loc["relevance", "alpha"])
    assert agreement.sizes_that_fit(PairTable(5, 1, 4).alpha, largest=12)[10] == [1, 2]
    assert 2 in agreement.sizes_that_fit(alpha(pd.DataFrame([("a", "a"), ("a", "b")])), largest=2)
    # A made-up record set of three answers fits at its own size.
    rows = [("a", "a")] * 20 + [("b", "b")] * 9 + [("c", "c")] * 4 + [("a", "b")] * 3 + [("b", "c")] * 2
    assert 5 in agreement.sizes_that_fit(alpha(pd.DataFrame(rows)))[38]


def test_judges_agree_as_a_plain_count_says() -> None:
    from sklearn.metrics import cohen_kappa_score

    table = agreement.judge_agreement(Resampling(replicates=2000)).set_index(["by", "value", "metric"])
    for row in pd.read_csv(data_dir() / "published" / "judge_agreement.csv").itertuples():
        counts = [row.both_correct, row.only_first_correct, row.only_second_correct, row.both_incorrect]
        first, second = np.repeat([1, 1, 0, 0], counts), np.repeat([1, 0, 1, 0], counts)
        mine = table.loc[(row.by, row.value)]["estimate"]
        assert mine["exact_agreement"] == (first == second).mean()
        assert mine["kappa"] == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)
        assert mine["alpha"] == pytest.approx(alpha(pd.DataFrame({"x": first, "y": second})), abs=1e-12)
    few = agreement.judge_agreement(Resampling(replicates=100))
    assert few[["low", "high"]].isna().all(axis=None), "too few replicates give no ends"
    overall = table.loc[("overall", "all", "exact_agreement")]
    assert overall["estimate"] == 0.865
    assert (round(overall["low"], 2), round(overall["high"], 2)) == (0.82, 0.91)  # 1.96 sqrt(.865 * .135 / 200) = .047


@pytest.mark.parametrize(
    "call",
    [
        lambda: alpha(pd.DataFrame({"x": [1]})),
        lambda: PairTable(-1, 0, 3),
        lambda: PairTable(0, 0, 0),
        lambda: rebuild_table(1.2, 0.5, 10),
        lambda: alpha_interval(pd.DataFrame({"x": [], "y": []})),
    ],
)
def test_bad_input_is_refused(call: object) -> None:
    with pytest.raises(InputError):
        call()  # type: ignore[operator]
