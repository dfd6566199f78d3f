"""Tables of stage one: seeds averaged, what arms report about themselves, populations side by side."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from reference_retrieval import random_corpus

from companion.retrieval import rank
from companion.stages import support


@dataclass
class Summary:
    """Only what ``by_family`` reads."""

    intervals: pd.DataFrame


def intervals(values):
    """Rows of a summary from {route: (estimate, low, high)}, the same for every metric."""
    rows = [
        {"arm": arm, "source": source, "metric": metric, "estimate": v + shift, "low": low, "high": high}
        for arm, (v, low, high) in values.items()
        for source, shift in (("macro", 0.0), ("elsewhere", 9.0))
        for metric in (*support.FAMILY_METRICS, "another_metric")
    ]
    return pd.DataFrame(rows)


VALUES = {
    "plain": (0.5, 0.4, 0.7),
    "control:0": (0.1, 0.0, 0.9),
    "control:1": (0.4, 0.0, 0.9),
    "control:2": (0.4, 0, 1),
}


def test_controls_have_mean_range_and_spread_over_their_seeds_and_other_arms_their_interval():
    families = support.by_family(Summary(intervals(VALUES))).set_index(["arm", "metric"])
    assert set(families.index.get_level_values("metric")) == set(support.FAMILY_METRICS)
    plain, control = families.loc[("plain", "loss")], families.loc[("control", "loss")]
    assert (plain["seeds"], plain["estimate"], plain["low"], plain["high"]) == (1, 0.5, 0.4, 0.7)
    assert np.isnan(plain["sd"])
    assert (control["seeds"], control["low"], control["high"]) == (3, 0.1, 0.4)
    assert control["estimate"] == pytest.approx(0.3)
    assert control["sd"] == pytest.approx(np.sqrt((0.04 + 0.01 + 0.01) / 2))
    assert (plain["spread"], control["spread"]) == ("over groups", "over seeds")


def test_a_seed_without_a_value_leaves_the_mean_undefined():
    spoiled = VALUES | {"control:1": (np.nan, np.nan, np.nan)}
    families = support.by_family(Summary(intervals(spoiled))).set_index(["arm", "metric"])
    assert np.isnan(families.loc[("control", "loss"), "estimate"])


def test_the_table_of_arms_has_both_ends_of_every_metric_in_the_order_of_the_arms():
    table = support.arm_table(support.by_family(Summary(intervals(VALUES))))
    assert table["arm"].tolist() == ["plain", "control"]
    assert table["seeds"].tolist() == [1, 3]
    for metric in support.FAMILY_METRICS:
        assert table[f"{metric}_low"].tolist() == [0.4, 0.1]
        assert table[f"{metric}_high"].tolist() == [0.7, 0.4]
        assert table[metric].tolist() == pytest.approx([0.5, 0.3])


def test_what_arms_report_is_averaged_like_everything_else():
    corpus, encoder = random_corpus(2)
    _, work = rank(corpus, ["all"], 5, encoder)
    ids = corpus.queries["query_id"].tolist()
    # The first two cannot be evaluated; the next belong to a small source, the rest to a large one.
    source = {query: "small" if number < 5 else "large" for number, query in enumerate(ids)}
    anchors = [0, 0] + [1] * (len(ids) - 2)
    per_query = pd.DataFrame({"arm": "any", "query_id": ids, "source": list(source.values()), "anchors": anchors})
    table = support.reported(work, pd.concat([per_query, per_query.assign(arm="other")])).set_index("arm")
    assert len(table) == 17
    for arm, row in table.iterrows():
        for column in ("passed_unresolved", "fell_back"):
            by_source = {"small": [], "large": []}
            for did in work.to_dict("records"):
                if did["arm"].split(":")[0] == arm and did["query_id"] in ids[2:] and not pd.isna(did[column]):
                    by_source[source[did["query_id"]]].append(float(did[column]))
            values = [sum(part) / len(part) for part in by_source.values() if part]
            assert pd.isna(row[column]) if not values else row[column] == pytest.approx(sum(values) / 2)
    assert set(table.index[table["fell_back"].notna()]) == {"threshold_router", "cluster_router"}
    assert table.loc["policy_only", "passed_unresolved"] > 0


def test_populations_stand_side_by_side_in_their_order():
    def study(name, shift):
        def contrast(arm, metric):
            return {"estimate": shift + len(metric), "low": shift, "high": shift + len(arm)}

        arms = pd.DataFrame({"evaluable": [3, 8]})
        return SimpleNamespace(
            population=name, summary=SimpleNamespace(contrast=contrast, arms=arms, settings={"n_clusters": 4})
        )

    table = support.side_by_side([study("b", 10), study("a", 20)], "xy", ["loss", "recall"])
    assert table["population"].tolist() == ["b", "b", "a", "a"]
    assert table["estimate"].tolist() == [14, 16, 24, 26]
    assert table["high"].tolist() == [12, 12, 22, 22]
    assert (table["evaluable"] == 8).all()
    assert (table["groups"] == 4).all()
