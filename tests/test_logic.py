"""Kleene logic against an independent definition: enumerate what the unresolved could be."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion import logic
from companion.errors import InputError

TERNARY = [True, False, None]


def completions(values):
    """All ways in which unresolved values could turn out."""
    return itertools.product(*([v] if v is not None else [True, False] for v in values))


def expected_and(values):
    outcomes = {all(c) for c in completions(values)}
    return outcomes.pop() if len(outcomes) == 1 else None


def plain(value):
    return None if value is pd.NA else value


@pytest.mark.parametrize("values", list(itertools.product(TERNARY, repeat=3)))
def test_admissible_is_settled_exactly_when_every_completion_agrees(values):
    assert plain(logic.admissible(*values)) == expected_and(values)


@pytest.mark.parametrize("values", list(itertools.product(TERNARY, repeat=4)))
def test_usable_is_settled_exactly_when_every_completion_agrees(values):
    assert plain(logic.usable(*values)) == expected_and(values)


def test_truth_table_lists_27_distinct_combinations():
    table = logic.truth_table()
    assert len(table) == 27
    assert len(table[list(logic.AXES)].astype(object).fillna("?").drop_duplicates()) == 27
    assert table["admissible"].sum() == 1
    assert table["admissible"].isna().sum() == 7  # no zero among 2^3 - 1 combinations with at least one unresolved
    for row in table.itertuples():
        assert row.reasons == tuple(a for a in logic.AXES if getattr(row, a) is not pd.NA and not getattr(row, a))


@given(st.lists(st.tuples(*[st.sampled_from(TERNARY)] * 3), max_size=60))
def test_arrays_series_and_scalars_agree(rows):
    columns = [pd.Series([r[i] for r in rows], dtype="boolean") for i in range(3)]
    series = logic.admissible(*columns)
    arrays = logic.admissible(*(c.array for c in columns))
    assert series.dtype == "boolean"
    assert [plain(v) for v in series] == [plain(v) for v in arrays] == [expected_and(r) for r in rows]
    reasons = logic.exclusion_reasons(*columns)
    assert list(reasons) == [logic.exclusion_reasons(*r) for r in rows]


def test_scalars_broadcast_over_arrays():
    column = pd.Series([True, False, None], dtype="boolean", index=[7, 8, 9])
    result = logic.admissible(None, True, column)
    assert list(result.index) == [7, 8, 9]
    assert [plain(v) for v in result] == [None, False, None]


@pytest.mark.parametrize(
    ("state", "intent", "expected"),
    [
        ("current", "current", True),
        ("current", "history", True),
        ("stale", "current", False),
        ("stale", "history", True),
        ("superseded", "current", False),
        ("superseded", "history", True),
        ("forgotten", "current", False),
        ("forgotten", "history", False),
        *((state, "unknown", None) for state in logic.STATES),
        *(("unknown", intent, None) for intent in logic.INTENTS),
        (None, "history", None),
        ("current", None, None),
    ],
)
def test_lifecycle_rule(state, intent, expected):
    assert plain(logic.lifecycle(state, intent)) == expected
    frame = pd.DataFrame({"state": [state] * 3, "intent": [intent] * 3}, index=[3, 1, 2])
    column = logic.lifecycle(frame["state"], frame["intent"])
    assert list(column.index) == [3, 1, 2]
    assert [plain(v) for v in column] == [expected] * 3


@pytest.mark.parametrize("bad", ["maybe", 0.5, 2, "yes", ["yes"], [0.3], [2]])
def test_what_is_not_a_truth_value_is_refused(bad):
    with pytest.raises(InputError, match="truth value"):
        logic.as_boolean(bad)


@pytest.mark.parametrize("unresolved", [None, pd.NA, np.nan, float("nan")])
def test_every_spelling_of_missing_is_unresolved(unresolved):
    assert logic.as_boolean(unresolved) is pd.NA
    assert logic.as_boolean([unresolved, True])[0] is pd.NA


@pytest.mark.parametrize("value", [1, 1.0, True, np.True_, np.int8(1), np.array(True)])
def test_every_spelling_of_one_is_true(value):
    assert logic.as_boolean(value) is True


def test_misaligned_input_is_refused_instead_of_invented():
    left = pd.Series([True, True], dtype="boolean")
    with pytest.raises(InputError, match="different index"):
        logic.admissible(left, left, left.set_axis([5, 6]))
    with pytest.raises(InputError, match="different length"):
        logic.admissible(left.array, left.array, left.array[:1])
    with pytest.raises(InputError, match="different length"):
        logic.lifecycle(["current"], ["current", "history"])


def test_a_scalar_goes_with_a_column_on_either_side():
    assert [plain(v) for v in logic.lifecycle("stale", ["current", "history", None])] == [False, True, None]
    assert [plain(v) for v in logic.lifecycle(np.array(["current", "stale"], dtype=object), "current")] == [True, False]
    column = logic.lifecycle(pd.Series(["stale"], index=[7]), "history")
    assert list(column.index) == [7] and [plain(v) for v in column] == [True]


def test_unknown_words_are_refused_by_name():
    with pytest.raises(InputError, match="state 'old': expected one of current"):
        logic.lifecycle(["current", "old"], "current")
    with pytest.raises(InputError, match="axes colour"):
        logic.check_axes(["colour"])
    with pytest.raises(InputError, match="axes"):
        logic.check_axes([])
    with pytest.raises(InputError, match="family usable"):
        logic.check_family("usable")


def test_status_families_are_not_confused():
    labels = pd.DataFrame(
        {"relevant": [False, None, True], "scope": [True] * 3, "policy": [True] * 3, "lifecycle": [True, True, None]}
    ).astype("boolean")
    assert [plain(v) for v in logic.status(labels)] == [True, True, None]
    assert [plain(v) for v in logic.status(labels, family="non_usable")] == [False, None, None]
    assert [plain(v) for v in logic.status(labels, axes=["policy"])] == [True, True, True]


def test_a_million_rows_are_handled_without_a_python_loop_over_them():
    n = 1_000_000
    rng = np.random.default_rng(1)
    columns = [pd.arrays.BooleanArray(rng.random(n) < 0.5, rng.random(n) < 0.2) for _ in range(3)]
    result = logic.admissible(*columns)
    zeros = np.any([(~c).to_numpy(bool, na_value=False) for c in columns], axis=0)
    ones = np.all([c.to_numpy(bool, na_value=False) for c in columns], axis=0)
    assert (np.asarray(result.isna()) == ~(zeros | ones)).all()
    assert (result.to_numpy(bool, na_value=False) == ones).all()
