"""Words chosen by the data: counts, lists, sentences and what alternative texts read out."""

from __future__ import annotations

import pandas as pd
import pytest

from companion.book import words
from companion.errors import InputError


@pytest.mark.parametrize(("count", "text"), [(0, "none"), (1, "one"), (12, "twelve"), (13, "13"), (1305, "1,305")])
def test_counts_are_written_as_prose_does(count, text):
    assert words.in_words(count) == text


def test_a_negative_count_is_refused():
    with pytest.raises(InputError, match="-1"):
        words.in_words(-1)


@pytest.mark.parametrize(
    ("items", "text"), [([], "none"), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_items_are_listed_with_one_and(items, text):
    assert words.listing(items) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.01, 0.2, "up"), (-0.2, -0.01, "down"), (-0.1, 0.1, "open"), (0.0, 0.2, "open"), (-0.2, 0.0, "open"),
     (None, 0.2, "open"), (float("nan"), float("nan"), "open")],
)  # fmt: skip
def test_a_sentence_is_chosen_by_the_side_of_the_interval(low, high, text):
    assert words.chosen(low, high, up="up", down="down", unsettled="open") == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(5.34, 6.8, "rises by 5.3 to 6.8"), (-0.3, -0.1, "falls by 0.1 to 0.3"), (-0.1, 0.2, "changes by −0.1 to +0.2"),
     (0.0, 15.6, "changes by +0.0 to +15.6"), (0.04, 15.6, "changes by +0.0 to +15.6"),
     (float("nan"), None, "changes by – to –")],
)  # fmt: skip
def test_changes_are_told_with_their_direction_where_it_is_one(low, high, text):
    assert words.moves(low, high, ".1f") == text


def test_intervals_are_counted_by_side_and_missing_ones_apart():
    table = pd.DataFrame({"low": [0.1, -0.2, -0.1, 0.0, None], "high": [0.2, -0.1, 0.1, 0.3, None]})
    assert words.sides(table) == "1 interval above zero, 1 below, 2 with zero inside, 1 without an interval"


def test_a_forest_is_read_out_line_by_line():
    table = pd.DataFrame(
        {
            "metric": ["recall", "recall", "loss"],
            "series": ["published", "ours", "ours"],
            "estimate": [0.1021, 0.1, -0.12],
            "low": [0.0661, float("nan"), -0.15],
            "high": [0.1371, float("nan"), -0.08],
        }
    )
    text = words.estimates(table, "metric", "series", "+.3f")
    assert text == "recall: published +0.102 [+0.066, +0.137], ours +0.100; loss: ours −0.120 [−0.150, −0.080]"
    assert words.estimates(table.iloc[:1], "metric") == "recall 0.102 [0.066, 0.137]"


def test_stacked_bars_are_read_out_and_undefined_ones_say_so():
    parts = pd.DataFrame(
        {
            "arm": ["wide"] * 3 + ["narrow"] * 3,
            "status": ["inadmissible", "unresolved", "admissible"] * 2,
            "share": [0.52, 0.01, 0.47, None, None, None],
        }
    )
    assert words.statuses(parts) == (
        "wide: 52% known inadmissible, 1% unresolved, 47% known admissible; "
        "narrow: nothing to show, no query of some source is feasible"
    )


def test_reasons_name_what_forbids_an_item_and_otherwise_what_is_open():
    axes = {
        "memory_id": ["a", "b", "c", "d", "e"],
        "scope": [False, True, True, True, True],
        "policy": [None, False, None, True, False],
        "lifecycle": [False, True, True, None, True],
    }
    route = pd.DataFrame(axes).astype({axis: "boolean" for axis in ("scope", "policy", "lifecycle")})
    memories = pd.DataFrame(
        {
            "memory_id": ["a", "b", "c", "d", "e"],
            "namespace": ["other", "own", "own", "own", "own"],
            "tenant": ["Ms Quist", None, None, None, None],
            "state": ["superseded", "current", "current", "unknown", "current"],
            "restriction": [None, "board", "hr?", None, None],
        }
    )
    assert words.reasons(route, memories, {"c": "nobody asked"}) == [
        "belongs to Ms Quist; superseded",
        "restricted (board)",
        "policy open: nobody asked",
        "lifecycle open: nothing on record settles it",
        "not for this purpose",
    ]
    bare = memories[["memory_id", "namespace"]]
    assert words.reasons(route.iloc[:2], bare) == ["belongs to other; no longer holds", "not for this purpose"]
