"""Fixed-depth exposure against plain loops over random routes with all three label values."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from companion import fixed_depth
from companion.bootstrap import Resampling
from companion.errors import InputError
from companion.tables import Records

ARMS = ("global", "own | namespace", "nothing found")


def build(seed: int = 0) -> Records:
    """Three groups in two sources; privacy, safety and utility queries; every axis 0, 1 or unresolved."""
    rng = np.random.default_rng(seed)
    spaces = {"a": "s1", "b": "s1", "c": "s2"}
    memories = [(f"{space}{number}", space, spaces[space]) for space in spaces for number in range(6)]
    queries = [
        (f"q-{space}-{kind}-{number}", space, spaces[space], kind)
        for space in spaces
        for kind in ("privacy", "safety", "utility")
        for number in range(1 + (space == "a"))
    ]
    values = np.array([True, False, None], dtype=object)
    labels = [
        (query[0], memory[0], *rng.choice(values, 3))
        for query in queries
        for memory in memories
        if query[1] == memory[1] and rng.random() < 0.7
    ]
    rankings = []
    for query in queries:
        order = rng.permutation(len(memories))
        routes = {
            ARMS[0]: [memories[i][0] for i in order[:8]],
            ARMS[1]: [memories[i][0] for i in order if memories[i][1] == query[1]],
            ARMS[2]: [memories[order[0]][0]] if query[0] == "q-a-privacy-0" else [],
        }
        rankings += [(arm, query[0], rank, m) for arm, route in routes.items() for rank, m in enumerate(route, 1)]
    label_table = pd.DataFrame(labels, columns=["query_id", "memory_id", "scope", "policy", "lifecycle"])
    query_table = pd.DataFrame(queries, columns=["query_id", "namespace", "source", "query_type"])
    return Records(
        memories=pd.DataFrame(memories, columns=["memory_id", "namespace", "source"]),
        queries=query_table.assign(stratum=query_table["source"] + ":" + query_table["query_type"]),
        labels=label_table.astype({axis: "boolean" for axis in ("scope", "policy", "lifecycle")}),
        rankings=pd.DataFrame(rankings, columns=["arm", "query_id", "rank", "memory_id"]),
        work=pd.DataFrame(
            [(arm, q[0], 1) for arm in ARMS for q in queries], columns=["arm", "query_id", "candidates_scored"]
        ),
    ).check()


def brute(records: Records, arm: str, query: str, depth: int) -> dict[str, float]:
    space = dict(zip(records.queries["query_id"], records.queries["namespace"], strict=True))[query]
    home = dict(zip(records.memories["memory_id"], records.memories["namespace"], strict=True))
    listed = {(r.query_id, r.memory_id): r for r in records.labels.itertuples()}
    rows = records.rankings
    route = rows[(rows["arm"] == arm) & (rows["query_id"] == query) & (rows["rank"] <= depth)]
    bad = unknown = protected = wrong = 0
    for memory in route["memory_id"]:
        label = listed.get((query, memory))
        axes = [home[memory] == space, None, None]
        if label is not None:
            axes = [None if pd.isna(v) else bool(v) for v in (label.scope, label.policy, label.lifecycle)]
        bad += False in axes
        unknown += False not in axes and None in axes
        protected += False in axes[1:]
        wrong += axes[0] is False
    width = len(route)
    return {
        "width": width,
        "known_violations": bad,
        "protected_count": protected,
        "wrong_scope_count": wrong,
        "unresolved": unknown,
        "known_violation": bad > 0,
        "protected": protected > 0,
        "wrong_scope": wrong > 0,
        "lower_bound": bad / width if width else 0.0,
        "upper_bound": (bad + unknown) / width if width else 0.0,
    }


@pytest.mark.parametrize("seed", range(4))
def test_counts_equal_plain_loops(seed):
    records = build(seed)
    table = fixed_depth.fixed_depth_exposure(records, depths=(1, 3, 8)).set_index(["arm", "query_id", "depth"])
    wanted = [q for q in records.queries["query_id"] if "utility" not in q]
    assert list(table.index) == list(itertools.product(ARMS, wanted, (1, 3, 8)))
    for arm, query, depth in table.index:
        row = table.loc[(arm, query, depth)]
        for name, expected in brute(records, arm, query, depth).items():
            assert row[name] == pytest.approx(expected), (arm, query, depth, name)


def test_protected_known_says_whether_labels_name_a_protected_memory():
    records = build(1)
    table = fixed_depth.fixed_depth_exposure(records, depths=(1,), arms=[ARMS[0]]).set_index("query_id")
    for query in table.index:
        own = records.labels[records.labels["query_id"] == query]
        expected = any(v is not pd.NA and not v for v in [*own["policy"], *own["lifecycle"]])
        assert table.loc[query, "protected_known"] == expected


def test_means_and_differences_weigh_sources_equally():
    per_query = fixed_depth.fixed_depth_exposure(build(2), depths=(1, 5))
    table = fixed_depth.summarise_fixed_depth(per_query, reference=ARMS[0], resampling=Resampling(replicates=50))
    keyed = (
        table.fillna({"reference": ""})
        .set_index(["arm", "reference", "kind", "depth", "metric", "source"])["estimate"]
        .sort_index()
    )
    for (arm, kind, depth), rows in per_query.groupby(["arm", "kind", "depth"]):
        base = per_query[(per_query["arm"] == ARMS[0]) & (per_query["kind"] == kind) & (per_query["depth"] == depth)]
        for metric in fixed_depth.METRICS:
            means = rows.groupby("source")[metric].mean()
            plain = keyed[arm, "", kind, depth, metric]
            assert plain["macro"] == pytest.approx(means.mean())
            assert plain["s2"] == pytest.approx(means["s2"])
            if arm != ARMS[0]:
                difference = means.mean() - base.groupby("source")[metric].mean().mean()
                assert keyed[arm, ARMS[0], kind, depth, metric, "macro"] == pytest.approx(difference)
    assert set(table["kind"]) == {"privacy", "safety"}
    one = table[(table["source"] == "macro") & (table["kind"] == "privacy")]
    assert (one["n"] == 4).all()


def test_a_source_with_one_group_has_no_interval():
    per_query = fixed_depth.fixed_depth_exposure(build(3), depths=(5,))
    table = fixed_depth.summarise_fixed_depth(per_query, resampling=Resampling(replicates=200))
    assert table.loc[table["source"] == "s2", ["low", "high"]].isna().all(axis=None)
    assert table.loc[table["source"] == "s1", ["low", "high"]].notna().all(axis=None)


def test_kinds_survive_a_frozen_copy_without_the_extra_column():
    records = build()
    frozen = replace(records, queries=records.queries.drop(columns="query_type")).check()
    pd.testing.assert_frame_equal(
        fixed_depth.fixed_depth_exposure(frozen, depths=(3,)),
        fixed_depth.fixed_depth_exposure(records, depths=(3,)),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (0,)}, "at least 1"),
        ({"depths": (9,)}, "depth 9 is deeper than any route; the deepest rank is 8"),
        ({"depths": (8,), "arms": [ARMS[1]]}, "depth 8 is deeper than any route; the deepest rank is 6"),
        ({"kinds": ("fairness",)}, "no query is of kind fairness; found privacy, safety, utility"),
        ({"arms": ["gone"]}, "unknown arm 'gone'"),
    ],
)
def test_what_cannot_be_counted_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        fixed_depth.fixed_depth_exposure(build(), **{"depths": (3,), **options})


def test_unknown_references_and_metrics_are_refused():
    per_query = fixed_depth.fixed_depth_exposure(build(), depths=(3,))
    with pytest.raises(InputError, match="unknown reference arm 'gone'"):
        fixed_depth.summarise_fixed_depth(per_query, reference="gone")
    with pytest.raises(InputError, match="unknown metric 'loss'"):
        fixed_depth.summarise_fixed_depth(per_query, metrics=["loss"])
