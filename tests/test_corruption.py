"""Corruption: nested, order-free, harmless to labels; filters and scores against plain loops; published brackets."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from _made_up import made_up
from scipy import stats

from companion import logic, scoring
from companion.bootstrap import Resampling
from companion.corpora.frozen import frozen, load_frozen
from companion.errors import InputError
from companion.stages import corruption, published
from companion.stages.corruption import CHANNELS, Pool, corrupted, kept, score_arms, study
from companion.tables import Records

RATES = (0.0, 0.1, 0.3, 0.5, 1.0)


@pytest.fixture(scope="module")
def world() -> tuple[Records, pd.DataFrame]:
    return made_up()


@pytest.fixture(scope="module")
def pool(world: tuple[Records, pd.DataFrame]) -> Pool:
    return Pool.from_rankings(*world)


def route(pool: Pool, keep: np.ndarray, top_k: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The kept candidates as rankings and work, by plain pandas."""
    rows = pd.DataFrame({"query": pool.query[keep], "memory": pool.memory[keep]})
    ids = pool.records.queries["query_id"]
    named = pd.DataFrame({"arm": "a", "query_id": ids.to_numpy()[rows["query"]]})
    named["rank"] = rows.groupby("query").cumcount() + 1
    named["memory_id"] = pool.records.memories["memory_id"].to_numpy()[rows["memory"]]
    counts = named["query_id"].value_counts().reindex(ids, fill_value=0)
    work = pd.DataFrame({"arm": "a", "query_id": ids, "candidates_scored": counts.to_numpy()})
    return named[named["rank"] <= top_k].reset_index(drop=True), work


def ids(pool: Pool, rows: np.ndarray) -> set[tuple[str, str]]:
    query = pool.records.queries["query_id"].to_numpy()[pool.query[rows]]
    memory = pool.records.memories["memory_id"].to_numpy()[pool.memory[rows]]
    return set(zip(query, memory, strict=True))


@pytest.mark.parametrize("name", CHANNELS)
def test_nested_in_the_rate_for_every_seed(pool: Pool, name: str) -> None:
    for seed in range(10):
        hits = [corrupted(pool, name, rate, seed) for rate in (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1)]
        assert not hits[0].any()
        for low, high in itertools.pairwise(hits):
            assert not (low & ~high).any()
        if name != "namespace_swap":
            assert (hits[-1] == CHANNELS[name].touched(pool)).all()


@pytest.mark.parametrize("name", CHANNELS)
def test_seeds_and_channels_differ_and_rates_are_met(pool: Pool, name: str) -> None:
    touched = CHANNELS[name].touched(pool)
    first = corrupted(pool, name, 0.3, 0)
    assert any((first != corrupted(pool, name, 0.3, s)).any() for s in range(1, 4))
    if name == "query_intent_flip":
        per_query = pd.Series(first & touched).groupby(pool.query).agg(["sum", "count"])
        assert set(per_query["sum"]) <= {0} | set(pd.Series(touched).groupby(pool.query).sum())
        return
    shares = [corrupted(pool, name, 0.3, s)[touched].mean() for s in range(40)]
    assert np.mean(shares) == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / (40 * touched.sum())))


def test_the_keyed_numbers_are_uniform_and_independent(pool: Pool) -> None:
    draws = np.concatenate([pool.uniform("x", s) for s in range(20)])
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    a, b = pool.uniform("x", 0), pool.uniform("x", 1)
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(len(a))
    grid = a[np.lexsort((pool.memory, pool.query))].reshape(-1, len(pool.records.memories))
    assert stats.kstest(grid.mean(axis=0) * 1.0, "norm", (0.5, np.sqrt(1 / 12 / len(grid)))).pvalue > 1e-3
    assert stats.kstest(grid.mean(axis=1) * 1.0, "norm", (0.5, np.sqrt(1 / 12 / grid.shape[1]))).pvalue > 1e-3


@pytest.mark.parametrize("name", CHANNELS)
def test_row_order_and_other_queries_play_no_part(world: tuple[Records, pd.DataFrame], pool: Pool, name: str) -> None:
    records, rankings = world
    shuffled = replace(
        records,
        memories=records.memories.sample(frac=1, random_state=1).reset_index(drop=True),
        queries=records.queries.sample(frac=0.6, random_state=2).reset_index(drop=True),
    )
    part = set(shuffled.queries["query_id"])
    assert records.work is not None
    shuffled = replace(
        shuffled,
        labels=records.labels[records.labels["query_id"].isin(part)].sample(frac=1, random_state=3),
        work=records.work[records.work["query_id"].isin(part)],
    )
    other = Pool.from_rankings(shuffled, rankings[rankings["query_id"].isin(part)].sample(frac=1, random_state=4))
    mine = {p for p in ids(pool, kept(pool, name, 0.3, 5)) if p[0] in part}
    assert mine == ids(other, kept(other, name, 0.3, 5))


@pytest.mark.parametrize("name", CHANNELS)
def test_filters_do_what_a_plain_loop_does(pool: Pool, name: str) -> None:
    """Read each row's metadata as the channel says, then filter by hand."""
    records = pool.records
    states = dict(zip(records.memories["memory_id"], records.memories["state"], strict=True))
    intents = dict(zip(records.queries["query_id"], records.queries["intent"], strict=True))
    labelled = scoring.label_ranked(
        records,
        pd.DataFrame(
            {
                "query_id": records.queries["query_id"].array.take(pool.query),
                "memory_id": records.memories["memory_id"].array.take(pool.memory),
            }
        ),
    )
    wrong = corrupted(pool, name, 0.3, 2)
    keep = kept(pool, name, 0.3, 2)
    for row, w, k in zip(labelled.to_dict("records"), wrong, keep, strict=True):
        scope, policy, life = row["scope"], row["policy"], row["lifecycle"]
        intent = intents[row["query_id"]]
        if name.startswith("namespace"):
            assert k == (bool(scope) != w)
            continue
        if w and name == "policy_false_deny":
            policy = False
        elif w and name.startswith("policy"):
            policy = True if name == "policy_false_allow" else pd.NA
        elif w and name == "lifecycle_false_stale":
            life = logic.lifecycle("stale", intent)
        elif w and name in {"lifecycle_false_current", "lifecycle_missing"}:
            life = logic.lifecycle("current" if name == "lifecycle_false_current" else "unknown", intent)
        elif w and intent != "unknown" and states[row["memory_id"]] not in {"forgotten", "unknown"}:
            life = logic.lifecycle(states[row["memory_id"]], {"current": "history", "history": "current"}[intent])
        assert k == (scope is True and policy is not False and life is not False), (row, w)


def test_swap_brings_in_as_many_as_it_takes_out(pool: Pool) -> None:
    keep = kept(pool, "namespace_swap", 0.5, 1)
    own = np.bincount(pool.query[pool.own], minlength=len(pool.truncated))
    assert (np.bincount(pool.query[keep], minlength=len(own)) == own).all()
    assert (keep & ~pool.own).any()


@pytest.mark.parametrize("name", CHANNELS)
def test_rate_zero_is_the_clean_run_exactly(pool: Pool, name: str) -> None:
    filtered = pool.own & (pool.policy != 0) & (pool.lifecycle != 0)
    assert (kept(pool, name, 0.0, 7) == (pool.own if name.startswith("namespace") else filtered)).all()


def test_labels_stay_bit_identical(pool: Pool) -> None:
    before = {n: pd.util.hash_pandas_object(t).sum() for n, t, _ in pool.records.tables()}
    copies = [getattr(pool, n).copy() for n in ("own", "policy", "lifecycle", "flipped")]
    study(pool, rates=(0.0, 0.5), seeds=(0, 1))
    assert before == {n: pd.util.hash_pandas_object(t).sum() for n, t, _ in pool.records.tables()}
    for n, c in zip(("own", "policy", "lifecycle", "flipped"), copies, strict=True):
        assert (getattr(pool, n) == c).all()


def test_study_equals_scoring_each_route_by_itself(pool: Pool) -> None:
    got = study(pool, rates=RATES, seeds=(0, 3), top_k=10)
    assert len(got.per_seed) == len(CHANNELS) * len(RATES) * 2
    table = got.per_seed.set_index(["channel", "rate", "seed"])
    for name in CHANNELS:
        for rate, seed in ((0.3, 3), (1.0, 0)):
            keep = kept(pool, name, rate, seed)
            rankings, work = route(pool, keep, 10)
            cell = table.loc[(name, rate, seed)]
            if rankings.empty:
                assert cell["feasible_rate"] == 0 and cell["loss"] == 1
                continue
            scored = scoring.score_routes(replace(pool.records, rankings=rankings, work=work))
            means = scored.assign(feasible_rate=scored["feasible"].astype(float)).groupby("source")
            for metric in corruption.METRICS:
                assert cell[metric] == pytest.approx(means[metric].mean().mean(), abs=1e-12)


def test_contrasts_are_curves_less_references(pool: Pool) -> None:
    got = study(pool, rates=(0.0, 0.3), seeds=(0, 1), channels=["namespace_swap", "policy_missing"])
    contrasts = got.contrasts(Resampling(200)).set_index(["channel", "rate", "metric"])
    curves, base = got.curves().set_index(["channel", "rate"]), got.reference_values()
    for (name, rate, metric), row in contrasts.iterrows():
        expected = curves.loc[(name, rate), metric] - base.loc[row["reference"], metric]
        assert row["estimate"] == pytest.approx(expected, abs=1e-12)
        assert row["low"] <= row["estimate"] + 1e-12 and row["estimate"] <= row["high"] + 1e-12
    assert set(contrasts["reference"]) == {"global_dense", "namespace_dense"}


def test_a_cut_ranking_gives_the_same_or_is_refused(world: tuple[Records, pd.DataFrame], pool: Pool) -> None:
    records, rankings = world
    labelled = scoring.label_ranked(records, rankings)
    own = labelled[labelled["scope"].fillna(False)].copy()
    own["rank"] = own.groupby("query_id").cumcount() + 1
    own = own.assign(arm="namespace_dense")[["arm", "query_id", "rank", "memory_id"]]
    assert records.work is not None
    work = records.work.assign(arm="namespace_dense", candidates_scored=25)
    cut = replace(records, work=work)
    deep = Pool.from_rankings(cut, own[own["rank"] <= 15])
    assert deep.truncated.all()
    whole, short = (score_arms(p, {"a": kept(p, "namespace_false_deny", 0.2, 0)}, top_k=5) for p in (pool, deep))
    pd.testing.assert_frame_equal(whole.drop(columns="candidates_scored"), short.drop(columns="candidates_scored"))
    assert whole["candidates_scored"].notna().all() and short["candidates_scored"].isna().all()
    with pytest.raises(InputError, match="cut short"):
        score_arms(deep, {"a": kept(deep, "namespace_false_deny", 0.9, 0)}, top_k=5)
    with pytest.raises(InputError, match="whole global ranking"):
        kept(deep, "namespace_swap", 0.1, 0)
    assert not Pool.from_rankings(cut, own).truncated.any()


def test_break_even_takes_the_first_run_only() -> None:
    curve = pd.DataFrame(
        {
            "channel": "policy_missing",
            "rate": [0.5, 0.0, 0.1, 0.2, 0.3],
            "feasible_rate": [0.9, 0.6, 0.5, 0.4, 0.9],
            "loss": [0.1, 0.3, 0.4, 0.1, 0.1],
        }
    )
    base = pd.DataFrame({"feasible_rate": [0.5], "loss": [0.4]}, index=["namespace_dense"])
    (row,) = corruption.break_even(curve, base).to_dict("records")
    assert (row["last_dominating_rate"], row["first_non_dominating_rate"]) == (0.1, 0.2)
    (row,) = corruption.break_even(curve.assign(loss=1.0), base).to_dict("records")
    assert np.isnan(row["last_dominating_rate"]) and row["first_non_dominating_rate"] == 0
    (row,) = corruption.break_even(curve.assign(loss=0.0, feasible_rate=1.0), base).to_dict("records")
    assert row["last_dominating_rate"] == 0.5 and np.isnan(row["first_non_dominating_rate"])


def test_published_brackets_come_out_of_the_published_curves() -> None:
    ours = corruption.break_even(corruption.published_curves(), corruption.published_references()).set_index("channel")
    rows = published.figures("C10-corruption")
    assert len(rows) == 18
    for row in rows.itertuples():
        value = ours.loc[row.subject, row.metric]
        if (row.subject, row.metric) == ("namespace_swap", "last_dominating_rate"):
            assert np.isnan(value)  # the file holds this channel at one rate only
        else:
            assert value == row.published


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": ["typo"]}, "channel 'typo'"),
        ({"rates": (0.0, 1.5)}, "rate 1.5"),
        ({"seeds": (1, 1)}, "each once"),
        ({"rates": ()}, "one or more"),
    ],
)
def test_bad_options_are_refused(pool: Pool, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        study(pool, **options)  # type: ignore[arg-type]


def test_several_arms_or_no_anchors_are_refused(world: tuple[Records, pd.DataFrame]) -> None:
    records, rankings = world
    two = rankings.copy()
    two.loc[two["rank"] == 1, "arm"] = "other"
    with pytest.raises(InputError, match="2 arms"):
        Pool.from_rankings(records, two)
    bare = replace(records, labels=records.labels.assign(relevant=pd.NA).astype({"relevant": "boolean"}))
    with pytest.raises(InputError, match="anchor"):
        Pool.from_rankings(bare, rankings)


def test_a_kept_study_comes_back_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = corruption.Pool.from_rankings(*made_up())
    run = corruption.study(pool, rates=(0.0, 0.2), seeds=(0, 1), channels=["policy_missing", "namespace_swap"])
    monkeypatch.setenv("COMPANION_DATA", str(tmp_path))
    run.keep(tmp_path / "corruption" / "mine", {"name": "mine"})
    back, meta = corruption.load_kept("mine")
    for name in ("per_seed", "per_query", "references"):
        pd.testing.assert_frame_equal(getattr(back, name), getattr(run, name), check_dtype=False)
    pd.testing.assert_frame_equal(back.brackets(), run.brackets())
    assert meta["name"] == "mine" and meta["settings"]["rates"] == [0.0, 0.2]
    with pytest.raises(InputError, match="there are: mine"):
        corruption.load_kept("other")


@pytest.mark.parametrize("name", ["rhelm", "gatemem"])
def test_committed_studies_hold_the_scores_of_the_frozen_runs(name: str) -> None:
    """The clean references of a kept study, and its rate 0, are what scoring gives on the frozen rankings."""
    kept, meta = corruption.load_kept(name)
    if name not in frozen():
        pytest.skip(f"no frozen run of {name}")
    arms = sorted({"namespace_dense", *kept.references["arm"]})
    scored = scoring.score_routes(load_frozen(name), top_k=meta["settings"]["top_k"], arms=arms)
    scored = scored[scored["anchors"] > 0]
    means = scored.groupby(["arm", "source"])[["evidence_recall", "loss"]].mean().groupby("arm").mean()
    for arm, row in kept.reference_values().iterrows():
        assert row["evidence_recall"] == pytest.approx(means.loc[arm, "evidence_recall"], abs=1e-9)
        assert row["loss"] == pytest.approx(means.loc[arm, "loss"], abs=1e-9)
    # without errors no filter removes anything here: RHELM has no other axis, GateMem no known zero of its own
    clean = kept.curves().query("rate == 0")
    assert np.allclose(clean["loss"], means.loc["namespace_dense", "loss"], atol=1e-9)
