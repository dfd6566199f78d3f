"""Tables of stage one: seeds averaged, what arms report about themselves, populations side by side."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from companion import scoring
from companion.bootstrap import Resampling
from companion.corpora.frozen import frozen_anchor_ranks, load_frozen
from companion.stages import published, support


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
        for metric in METRICS
    ]
    return pd.DataFrame(rows)


METRICS = ("loss", "evidence_recall", "another_metric")
VALUES = {
    "plain": (0.5, 0.4, 0.7),
    "control:0": (0.1, 0.0, 0.9),
    "control:1": (0.4, 0.0, 0.9),
    "control:2": (0.4, 0, 1),
}


def test_controls_have_mean_range_and_spread_over_their_seeds_and_other_arms_their_interval():
    families = support.by_family(Summary(intervals(VALUES))).set_index(["arm", "metric"])
    assert set(families.index.get_level_values("metric")) == set(METRICS)
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


def test_each_population_stands_once_and_in_its_order():
    def study(name, shift):
        def contrast(arm, metric):
            return pd.Series({"estimate": shift + len(metric), "low": shift, "high": shift + len(arm)})

        arms = pd.DataFrame({"evaluable": [3, 8]})
        return SimpleNamespace(
            population=name, summary=SimpleNamespace(contrast=contrast, arms=arms, settings={"n_clusters": 4})
        )

    table = support.side_by_side([study("b", 10), study("a", 20), study("b", 10)], "xy", ["loss", "recall"])
    assert table["population"].tolist() == ["b", "b", "a", "a"]
    assert table["estimate"].tolist() == [14, 16, 24, 26]
    assert table["high"].tolist() == [12, 12, 22, 22]
    assert table[["evaluable", "groups"]].to_numpy().tolist() == [[8, 4]] * 4


@pytest.fixture(scope="module")
def rhelm():
    return load_frozen("rhelm", arms=["global_dense", "namespace_dense"])


def test_a_sweep_is_scored_setting_by_setting(rhelm):
    table = support.sweep(rhelm, ["namespace_dense"], targets=[0.5, 1.0], depths=[5, 20])
    assert len(table) == 4
    for row in table.itertuples():
        scored = scoring.score_routes(rhelm, arms=[row.arm], target_recall=row.target_recall, top_k=row.top_k)
        scored = scored[scored["anchors"] > 0]
        for mine, theirs in (
            (row.evidence_recall, "evidence_recall"),
            (row.feasible_rate, "feasible"),
            (row.prefix_component, "prefix_component"),
        ):
            assert mine == pytest.approx(scored[theirs].astype(float).mean(), abs=1e-12)


def test_macro_means_weigh_sources_alike_and_skip_what_cannot_be_evaluated():
    rows = [("x", "A", "g", 1, 0.2), ("x", "A", "h", 1, 0.6), ("x", "B", "g", 2, 1.0), ("x", "B", "g", 0, 9.0)]
    table = pd.DataFrame(rows, columns=["arm", "source", "group", "anchors", "loss"])
    assert support.macro_means(table, ["loss"])["loss"].tolist() == pytest.approx([0.7])


def test_the_price_in_depth_is_found_by_looking(rhelm):
    ranks = frozen_anchor_ranks("rhelm")
    price = support.price_in_depth(rhelm, ranks, 20, Resampling(replicates=400))

    def recall(arm, depth):
        return (ranks[arm] <= depth).groupby(ranks["query_id"]).mean().mean()

    wanted = recall("namespace_dense", 20)
    needed = next(depth for depth in range(1, 200) if recall("global_dense", depth) >= wanted)
    assert price.needed["estimate"] == needed == 45
    assert price.needed["low"] < needed < price.needed["high"]
    owner = rhelm.memories.set_index("memory_id")["namespace"]
    asker = rhelm.queries.set_index("query_id")["namespace"]
    top = rhelm.rankings[(rhelm.rankings["arm"] == "global_dense") & (rhelm.rankings["rank"] <= needed)]
    foreign = owner[top["memory_id"]].to_numpy() != asker[top["query_id"]].to_numpy()
    assert price.foreign["estimate"] == pytest.approx(foreign.mean(), abs=1e-12)  # about half of what is read
    assert price.foreign["estimate"] == pytest.approx(0.5, abs=0.01)
    at = price.curves.set_index("depth")
    for depth in (5, 20, 100):
        assert at.loc[depth, "own"] == pytest.approx(recall("namespace_dense", depth))
        assert at.loc[depth, "everything"] == pytest.approx(recall("global_dense", depth))


def test_the_price_resamples_groups(rhelm):
    """Replicates by drawing personas one by one, from another stream."""
    ranks = frozen_anchor_ranks("rhelm")
    price = support.price_in_depth(rhelm, ranks, 20)
    group = rhelm.queries.set_index("query_id")["group"]
    hits = {a: pd.DataFrame(ranks[[a]].to_numpy() <= np.arange(1, 101)).groupby(ranks["query_id"]).mean() for a in ARMS}
    sums = {arm: table.groupby(group).sum().to_numpy() for arm, table in hits.items()}
    rng = np.random.default_rng(5)
    found = []
    for _ in range(4000):
        drawn = rng.integers(0, 7, 7)
        wide, own = (sums[arm][drawn].sum(axis=0) for arm in ARMS)
        found.append(int((wide >= own[19] - 1e-9).argmax()) + 1)
    assert np.quantile(found, [0.025, 0.975]).tolist() == pytest.approx(price.needed[["low", "high"]].tolist(), abs=1.5)


ARMS = ("global_dense", "namespace_dense")


def test_published_figures_stand_beside_ours(rhelm):
    study = support.study(rhelm, reference="global_dense", resampling=Resampling(replicates=300))
    table = support.beside_published(study, "rhelm", "rhelm_top_20").set_index(["claim", "subject", "metric"])
    assert len(table) == 23
    for (_, subject, metric), row in table.iterrows():
        arm, _, reference = subject.partition("-")
        name = published.PUBLISHED_METRICS.get(metric, "feasible_rate")
        ours = (study.summary.contrast if reference else study.summary.value)(arm, name, "rhelm")
        times = 523 if metric == "matched_query_count" else 1
        for mine, theirs in (("value", "estimate"), ("low", "low"), ("high", "high")):
            assert row[mine] == pytest.approx(times * ours[theirs], abs=1e-6)
    assert table.loc[("C9-source", "global_dense", "matched_query_count"), "published"] == 179
