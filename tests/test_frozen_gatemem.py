"""The frozen GateMem run: what must hold of it without the corpus, and its agreement with the corpus where it is."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from companion import scoring
from companion.corpora import get, load
from companion.corpora.frozen import TABLES, complete_arms, frozen_anchor_ranks, frozen_meta, frozen_work, load_frozen
from companion.paths import data_dir
from companion.retrieval import Encoder, base_arm, known_arms, rank

here = pytest.mark.skipif(
    not get("gatemem").is_present(), reason="corpus gatemem is not here; COMPANION_CORPORA names where corpora live"
)


@pytest.fixture(scope="module")
def records():
    return load_frozen("gatemem")


def test_counts_sizes_and_arms(records):
    assert (len(records.memories), len(records.queries)) == (20_293, 2_218)
    assert set(frozen_meta("gatemem")["arms"]) == {name for name, spec in known_arms().items() if not spec.extra}
    sizes = [(data_dir() / "frozen" / "gatemem" / f"{name}.parquet").stat().st_size for name in TABLES]
    assert max(sizes) < 5_000_000
    assert records.memories["text"].isna().all()
    assert records.queries["text"].isna().all()


def test_namespace_arms_keep_their_scope_and_post_filters_rise_with_depth(records):
    arms = [f"global_post_filter_{depth}" for depth in (20, 100, 500)] + ["namespace_dense", "cluster_router"]
    scores = scoring.score_routes(load_frozen("gatemem", arms=arms), top_k=20)
    assert (scores["wrong_scope"].dropna() == 0).all()
    recall = scores.groupby("arm")["evidence_recall"].mean()[arms[:4]].tolist()
    assert recall == sorted(recall)


def test_filters_and_routers_report_what_they_left_undecided():
    work = frozen_work("gatemem")
    means = work.assign(arm=work["arm"].map(base_arm)).groupby("arm").mean(numeric_only=True)
    assert means["passed_unresolved"]["policy_only"] > 100  # almost nothing of an episode is settled
    assert pd.isna(means["passed_unresolved"]["namespace_dense"])
    assert 0 < means["fell_back"]["threshold_router"] < 1
    assert means["fell_back"]["cluster_router"] == 0


@here
@pytest.mark.slow
def test_a_part_is_remade():
    """One short episode from texts to ranks, BM25 of a few checkpoints over everything."""
    whole = load("gatemem")
    small = whole.memories["namespace"].value_counts().idxmin()
    mine = whole.queries[whole.queries["namespace"] == small].reset_index(drop=True)
    memories = whole.memories[whole.memories["namespace"] == small].reset_index(drop=True)
    dense, _ = rank(replace(whole, memories=memories, queries=mine), ["namespace_dense"], 100, Encoder(threads=1))
    lexical, _ = rank(replace(whole, queries=mine), ["global_bm25"], 20)
    kept = load_frozen("gatemem", arms=["namespace_dense", "global_bm25"]).rankings
    for rankings in (dense, lexical):
        both = rankings.merge(kept, on=["arm", "query_id", "rank"], how="left")
        assert (both["memory_id_x"] == both["memory_id_y"]).mean() > 0.99


@pytest.mark.parametrize("name", ["gatemem", "rhelm"])
def test_loading_by_digest_gives_what_full_validation_gives(name):
    quick, checked = load_frozen(name), load_frozen(name, verify=False)
    for table in ("memories", "queries", "labels", "rankings", "work"):
        pd.testing.assert_frame_equal(getattr(quick, table), getattr(checked, table))
    assert quick.population == checked.population


def test_arms_frozen_to_a_smaller_depth_are_not_offered_for_a_larger_one():
    assert "size_matched_random_partition" in complete_arms("rhelm", 20)
    deep = complete_arms("rhelm", 50)
    assert "size_matched_random_partition" not in deep
    assert {"global_dense", "namespace_dense", "global_post_filter_20"} <= set(deep)
    assert set(complete_arms("gatemem", 100)) == {"global_dense", "namespace_dense", "global_post_filter_20"}


@pytest.mark.parametrize("name", ["rhelm", "gatemem"])
def test_no_anchor_ranks_worse_in_its_namespace_at_any_depth(name):
    """The paper's proposition, for every query and anchor, to the full depth of the candidates."""
    ranks, records = frozen_anchor_ranks(name), load_frozen(name, arms=["global_dense", "namespace_dense"])
    anchors = scoring.anchors_of(records)[["query_id", "memory_id"]].drop_duplicates()
    assert len(ranks) == len(anchors) == len(ranks.merge(anchors, on=["query_id", "memory_id"]))
    assert (ranks["namespace_dense"] <= ranks["global_dense"]).all()
    for arm in ("namespace_dense", "global_dense"):
        routes = records.rankings[records.rankings["arm"] == arm]
        met = ranks.merge(routes, on=["query_id", "memory_id"])
        assert (met["rank"] == met[arm]).all()
        assert len(met) == (ranks[arm] <= 100).sum()
