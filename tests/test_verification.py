"""Verification: measures against scikit-learn and plain counting, curves against the paper, routes against scoring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from _made_up import made_up
from sklearn.calibration import calibration_curve

from companion import scoring
from companion.bootstrap import Resampling
from companion.errors import InputError
from companion.stages import published
from companion.stages import verification as v
from companion.tables import Records

NAN = float("nan")


@pytest.fixture(scope="module")
def world() -> tuple[Records, pd.DataFrame]:
    return made_up(3, queries=40)


@pytest.fixture(scope="module")
def judged(world: tuple[Records, pd.DataFrame]) -> pd.DataFrame:
    """Candidates of a top-20 route with a middling verifier that abstains now and then."""
    rng = np.random.default_rng(8)
    table = v.candidates(world[0], world[1], top_k=20)
    signal = table["violation"].astype("Float64").fillna(0.5).to_numpy(float)
    p = np.clip(0.5 * signal + rng.uniform(0, 0.5, len(table)), 0, 1).round(2)
    p[rng.random(len(table)) < 0.1] = NAN
    return table.assign(probability=p)


def counted(table: pd.DataFrame, threshold: float) -> dict[str, float]:
    """The rates by plain counting."""
    anchors: dict[tuple[str, str], list[bool]] = {}
    dropped_known = caught = known = bad = kept = 0
    for r in table.to_dict("records"):
        drop = pd.notna(r["probability"]) and r["probability"] >= threshold
        kept += not drop
        if pd.notna(r["violation"]):
            known += 1
            bad += r["violation"]
            dropped_known += drop
            caught += drop and r["violation"]
        if pd.notna(r["anchor"]):
            anchors.setdefault((r["query_id"], r["anchor"]), []).append(drop)
    lost = [all(drops) for drops in anchors.values()]
    return {
        "violation_precision": caught / dropped_known if dropped_known else NAN,
        "violation_recall": caught / bad if bad else NAN,
        "required_anchor_false_denial": sum(lost) / len(lost) if lost else NAN,
        "retained_fraction": kept / len(table),
        "coverage": known / len(table),
    }


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.99, v.KEEP_ALL])
def test_rates_are_plain_counts_pooled_and_by_stratum(judged: pd.DataFrame, threshold: float) -> None:
    table = v.measure(judged, threshold, by="stratum").set_index("part")
    parts = {"pooled": judged, **dict(iter(judged.groupby("stratum")))}
    for name, part in parts.items():
        for metric, value in counted(part, threshold).items():
            assert table.loc[name, metric] == pytest.approx(value, abs=1e-12, nan_ok=True)
    inner = table.drop(index=["pooled", "macro"])
    assert table.loc["macro", "violation_recall"] == pytest.approx(inner["violation_recall"].mean())


def test_discrimination_is_over_known_and_answered(judged: pd.DataFrame) -> None:
    seen = judged.dropna(subset=["probability", "violation"])
    y, p = seen["violation"].to_numpy(bool), seen["probability"].to_numpy(float)
    (row,) = v.measure(judged, 0.4).to_dict("records")
    wins = (p[y][:, None] > p[~y]).mean() + 0.5 * (p[y][:, None] == p[~y]).mean()  # Mann-Whitney
    assert row["roc_auc"] == pytest.approx(wins, abs=1e-12)
    assert row["brier"] == pytest.approx(((p - y) ** 2).mean(), abs=1e-12)
    sensitivity, specificity = (p[y] >= 0.4).mean(), (p[~y] < 0.4).mean()
    assert row["balanced_accuracy"] == pytest.approx((sensitivity + specificity) / 2, abs=1e-12)


def test_constants_and_what_is_undefined(judged: pd.DataFrame) -> None:
    (row,) = v.measure(judged.assign(probability=0.5), 0.5).to_dict("records")
    assert row["roc_auc"] == row["balanced_accuracy"] == 0.5 and row["retained_fraction"] == 0
    assert row["violation_recall"] == row["required_anchor_false_denial"] == 1
    assert (v.dropped(judged["probability"], 0.0) == judged["probability"].notna().to_numpy()).all()
    assert not v.dropped(judged["probability"], v.KEEP_ALL).any()
    fine = judged[judged["violation"].fillna(True).eq(False)]
    (row,) = v.measure(fine, 0.3).to_dict("records")
    assert np.isnan([row["roc_auc"], row["average_precision"], row["balanced_accuracy"]]).all()
    assert np.isnan(row["violation_recall"]) and row["violation_precision"] == 0
    (row,) = v.measure(fine, v.KEEP_ALL).to_dict("records")
    assert np.isnan(row["violation_precision"])
    nobody = judged.assign(probability=NAN)
    (row,) = v.measure(nobody, 0.5).to_dict("records")
    assert np.isnan(row["roc_auc"]) and row["answered"] == 0 and row["violation_recall"] == 0
    one = judged.assign(stratum=np.where(judged["query_id"].isin(fine["query_id"].head(1)), "a", "b"))
    one = one[(one["stratum"] == "b") | one.index.isin(fine.index)]
    table = v.measure(one, 0.5, by="stratum").set_index("part")
    assert np.isnan(table.loc["a", "roc_auc"]) and np.isnan(table.loc["macro", "roc_auc"])


def test_an_anchor_is_denied_only_when_all_its_memories_are(judged: pd.DataFrame) -> None:
    rows = judged.head(4).assign(
        query_id="q", anchor=["a", "a", "b", None], probability=[0.9, 0.1, 0.9, 0.9], violation=pd.NA
    )
    rows = rows.astype({"anchor": "str", "violation": "boolean"})
    (row,) = v.measure(rows, 0.5).to_dict("records")
    assert row["anchors"] == 2 and row["required_anchor_false_denial"] == 0.5


@pytest.mark.parametrize("bad", [1.2, -0.1, "often"])
def test_a_value_that_is_no_probability_is_refused(judged: pd.DataFrame, bad: object) -> None:
    p = judged["probability"].astype(object)
    p.iloc[6] = bad
    with pytest.raises(InputError, match="row 7"):
        v.measure(judged.assign(probability=p), 0.5)


def test_rate_intervals_hold_the_rates(judged: pd.DataFrame) -> None:
    got = v.rate_intervals(judged, [0.3, 0.6], resampling=Resampling(300))
    for (threshold, metric), row in got.set_index(["threshold", "metric"]).iterrows():
        expected = counted(judged, threshold)[metric]
        assert row["estimate"] == pytest.approx(expected, abs=1e-12)
        assert row["low"] <= expected <= row["high"]
    by = v.rate_intervals(judged, [0.3], by="stratum").set_index(["metric", "part"])["estimate"]
    table = v.measure(judged, 0.3, by="stratum").set_index("part")
    for metric in v.RATES:
        assert by[(metric, "macro")] == pytest.approx(table.loc["macro", metric], abs=1e-12)


def test_candidates_carry_what_is_known(world: tuple[Records, pd.DataFrame]) -> None:
    records, rankings = world
    table = v.candidates(records, rankings, top_k=20)
    assert len(table) == 20 * len(records.queries)
    truth = scoring.label_ranked(records, rankings[rankings["rank"] <= 20])
    assert (table["violation"].isna() == truth["admissible"].isna()).all()
    anchors = scoring.anchors_of(records)[["query_id", "memory_id"]].apply(tuple, axis=1)
    inside = table[["query_id", "memory_id"]].apply(tuple, axis=1).isin(set(anchors))
    assert (table["anchor"].notna() == inside).all()
    mixed = rankings.copy()
    mixed.loc[0, "arm"] = "x"
    with pytest.raises(InputError, match="2 arms"):
        v.candidates(records, mixed)


def test_split_is_stable_sized_and_order_free() -> None:
    queries = pd.DataFrame({"query_id": [f"q{i}" for i in range(120)], "stratum": np.repeat(["a", "b", "c"], 40)})
    split = v.split_cases(queries)
    assert split.groupby(["stratum", "split"]).size().tolist() == [24, 8] * 3
    again = v.split_cases(queries.sample(frac=1, random_state=1))
    pd.testing.assert_frame_equal(split, again)
    without = v.split_cases(queries[queries["stratum"] != "b"])
    pd.testing.assert_frame_equal(without, split[split["stratum"] != "b"].reset_index(drop=True))
    assert not v.split_cases(queries, salt="x").equals(split)
    small = v.split_cases(queries.groupby("stratum").head(9))
    assert small.groupby(["stratum", "split"]).size().tolist() == [7, 2] * 3
    tiny = v.split_cases(queries.groupby("stratum").head(2))
    assert tiny.groupby(["stratum", "split"]).size().tolist() == [1, 1] * 3
    lopsided = v.split_cases(queries.groupby("stratum").head(3), calibration=30, analysis=1)
    assert lopsided.groupby(["stratum", "split"]).size().tolist() == [1, 2] * 3
    with pytest.raises(InputError, match="no stratum"):
        v.split_cases(queries.assign(stratum=None))
    with pytest.raises(InputError, match="expected 2 or more"):
        v.split_cases(queries.iloc[:1])


def test_filtered_routes_score_as_built_by_hand(world: tuple[Records, pd.DataFrame], judged: pd.DataFrame) -> None:
    records, _ = world
    drop = v.dropped(judged["probability"], 0.6)
    scored = v.score_filtered(records, judged, {"filter": drop})
    rows = []
    for query, part in judged[~drop].groupby("query_id"):
        ordered = part.sort_values("rank")["memory_id"]
        rows += [("filter", query, i, m) for i, m in enumerate(ordered, start=1)]
    by_hand = pd.DataFrame(rows, columns=["arm", "query_id", "rank", "memory_id"])
    expected = scoring.score_routes(replace(records, rankings=by_hand, work=None))
    got = scored[scored["arm"] == "filter"].reset_index(drop=True)
    columns = ["query_id", "evidence_recall", "feasible", "loss", "upper_bound"]
    pd.testing.assert_frame_equal(got[columns], expected[columns])
    effects = v.route_effects(scored, Resampling(200))
    values = scored[scored["anchors"] > 0].groupby(["arm", "stratum"])["loss"].mean().groupby("arm").mean()
    effect = v.route_effect(effects, "filter", "loss")
    assert effect["estimate"] == pytest.approx(values["filter"] - values["unfiltered"])
    assert effect["low"] <= effect["estimate"] <= effect["high"]
    summary = scoring.summarise(
        scored.assign(source=scored["stratum"]), reference="unfiltered", resampling=Resampling(replicates=200)
    )
    told = summary.contrast("filter", "loss")
    assert effect[["low", "high"]].tolist() == pytest.approx(told[["low", "high"]].tolist(), abs=1e-12)


def test_dropping_everything_costs_everything(world: tuple[Records, pd.DataFrame], judged: pd.DataFrame) -> None:
    records, _ = world
    all_gone = judged.assign(probability=1.0)
    curve = v.operating_curve(all_gone, [1.0])
    assert curve["violation_recall"].item() == 1 and curve["required_anchor_false_denial"].item() == 1
    scored = v.score_filtered(records, all_gone, {"ones": np.ones(len(judged), bool)})
    gone = scored[(scored["arm"] == "ones") & (scored["anchors"] > 0)]
    assert gone["evidence_recall"].eq(0).all() and gone["feasible"].eq(0).all() and gone["loss"].eq(1).all()
    assert gone["upper_bound"].isna().all() and gone["violation_count"].isna().all()
    assert v.route_effect(v.route_effects(scored), "ones", "evidence_recall")["estimate"] < 0


def test_selection_prefers_detection_then_anchors_then_keeping() -> None:
    curve = pd.DataFrame(
        {
            "threshold": [0.1, 0.5, 0.6, 0.7, 0.9, 1.0],
            "violation_recall": [0.9, 0.4, 0.4, 0.4, 0.4, 0.0],
            "required_anchor_false_denial": [0.2, 0.01, 0.005, 0.005, 0.008, 0.0],
        }
    )
    best = v.select(curve)
    assert best is not None and best["threshold"] == 0.7
    assert v.select(curve.iloc[:1]) is None
    with pytest.raises(InputError):
        v.select(curve, limit=2)
    with pytest.raises(InputError, match="2 verifiers"):
        v.select(curve.assign(verifier=list("aabbbb")))


def test_published_curves_fail_the_bar() -> None:
    table = v.bar(v.published_curves()).set_index("verifier")
    gpt, gemini = table.loc["gpt-5.6-sol"], table.loc["gemini-3.6-flash"]
    assert (gpt["qualifying"], gpt["threshold"], gpt["violation_recall"]) == (1, 1.0, 0.0)
    assert gemini["qualifying"] == 0 and np.isnan(gemini["threshold"])
    assert v.bar(v.published_curves(), limit=0.12)["violation_recall"].min() > 0.2


def controlled_units(decide: object) -> pd.DataFrame:
    rows = [
        (f"s{s}", f"axis{s % 4}", pair, condition, role)
        for s in range(16)
        for pair in (1, 2)
        for condition in ("allow", "block")
        for role in ("focal", "irrelevant_admissible", "irrelevant_inadmissible")
    ]
    table = pd.DataFrame(rows, columns=["scenario", "axis", "pair", "condition", "candidate_role"])
    return table.assign(probability=[decide(*r) for r in table.itertuples(index=False)])  # type: ignore[operator]


def test_controlled_measures_of_known_verifiers() -> None:
    def truth(scenario: str, axis: str, pair: int, condition: str, role: str) -> float:
        return float(role == "irrelevant_inadmissible" or (role == "focal" and condition == "block"))

    def value(units: pd.DataFrame) -> list[float]:
        return v.controlled_measures(units, 0.5)["estimate"].tolist()

    perfect = v.controlled_measures(controlled_units(truth), 0.5)
    assert perfect["n"].tolist() == [32, 64, 64, 64] and perfect["metric"].tolist() == list(v.CONTROLLED)
    assert value(controlled_units(truth)) == [1, 0, 0, 0]
    assert value(controlled_units(lambda *_: 1.0)) == [0, 0, 1, 0]
    assert value(controlled_units(lambda *_: None)) == [0, 0, 0, 1]
    # flips everything with the condition: focal right, every control wrong once
    assert value(controlled_units(lambda s, a, p, condition, r: float(condition == "block"))) == [1, 1, 0.5, 0.5]
    # one scenario's admissible control is dropped in one condition of one pair
    odd = controlled_units(truth)
    odd.loc[odd["candidate_role"].eq("irrelevant_admissible").idxmax(), "probability"] = 1.0
    assert value(odd) == [1, 1 / 64, 1 / 64, 0]


def test_incomplete_controlled_pairs_are_refused() -> None:
    units = controlled_units(lambda *_: 0.0)
    with pytest.raises(InputError, match="lacks a condition"):
        v.controlled_measures(units.iloc[1:], 0.5)
    with pytest.raises(InputError, match="occurs twice"):
        v.controlled_measures(pd.concat([units, units.iloc[:1]]), 0.5)
    with pytest.raises(InputError, match="'perhaps'"):
        v.controlled_measures(units.replace({"condition": {"allow": "perhaps"}}), 0.5)


def test_the_papers_controlled_pairs_give_its_figures() -> None:
    """Estimates exact; the file of verdicts gives overflip again by another path."""
    told = published.figures("C11-controlled").set_index(["subject", "metric"])["published"]
    ours = v.pair_measures(v.published_pairs()).set_index(["verifier", "metric"])
    verdicts = v.control_measures().set_index(["verifier", "metric"])["estimate"]
    for (verifier, metric), value in told.items():
        for table in (ours["estimate"], verdicts):
            assert table.get((verifier, metric), value) == pytest.approx(value, abs=1e-12)
        assert (verifier, metric) in ours.index or (verifier, metric) in verdicts.index
    row = ours.loc[("gpt-5.6-sol", "stable_overflip")]
    assert (row["low"], row["high"], row["n"]) == (0.109375, 0.3125, 64)
    assert ours.loc[("deepseek-v4-pro", "focal_consistency"), ["low", "high"]].tolist() == [0.59375, 0.84375]
    axes = v.pair_measures(v.published_pairs(), by=("verifier", "axis"))
    focal = axes[axes["metric"] == "focal_consistency"].groupby("verifier")["estimate"].mean()
    assert focal["deepseek-v4-pro"] == pytest.approx(23 / 32)
    assert set(axes["n"][axes["metric"] == "focal_consistency"]) == {8}


def test_transitions_count_every_control_once() -> None:
    table = v.transitions()
    assert len(table) == 3 * 2 * 9 and (table.groupby(["verifier", "control"])["pairs"].sum() == 32).all()
    cell = table.set_index(["verifier", "control", "allow_verdict", "block_verdict"])["pairs"]
    assert cell["gpt-5.6-sol", "stable_admissible", "inadmissible", "admissible"] == 7
    assert cell["gpt-5.6-sol", "stable_inadmissible", "inadmissible", "admissible"] == 2


def test_the_papers_auc_is_the_mean_over_strata_with_a_violation() -> None:
    for name, value in v.stratum_means("roc_auc").items():
        told = published.figure("C11", str(name), "selected_operating_point", "roc_auc")["published"]
        assert value == pytest.approx(told, abs=1e-12)
    strata = v.published_strata().set_index(["verifier", "stratum"])
    assert strata.loc[("gemini-3.6-flash", "memops/history"), "roc_auc"] < 0.5
    assert set(strata[strata["violations"] == 0].index.get_level_values("stratum")) == {"rhelm/current"}
    assert v.stratum_means("accuracy", "query_intent")["gpt-5.6-sol"] == pytest.approx((17 + 23 + 3) / 72)
    with pytest.raises(InputError, match="axis 'colour'"):
        v.published_strata("colour")


def test_calibration_error_uses_the_bins_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    p = np.r_[rng.random(500), np.linspace(0, 1, 11)]
    y = rng.random(len(p)) < p**2
    true, mean = calibration_curve(y, p, n_bins=10)
    sizes = np.bincount(np.searchsorted(np.linspace(0, 1, 11)[1:-1], p), minlength=10)
    assert v.calibration_error(y, p) == pytest.approx((np.abs(true - mean) * sizes / len(p)).sum(), abs=1e-12)
    assert np.isnan(v.calibration_error(np.array([], bool), np.array([])))


def test_calibration_error_by_hand_where_gaps_of_both_signs_meet() -> None:
    """Over-confident in one bin, under-confident in the next: bins that merge would let the gaps cancel."""
    p = np.array([0.12] * 4 + [0.18] * 4 + [0.32] * 5 + [0.48] * 5 + [0.95] * 2)
    y = np.array([1] * 4 + [1] * 4 + [0] * 5 + [0] * 5 + [1, 0], dtype=bool)
    by_hand = 8 * (1 - 0.15) + 5 * 0.32 + 5 * 0.48 + 2 * (0.95 - 0.5)
    assert v.calibration_error(y, p) == pytest.approx(by_hand / 20, abs=1e-12)
    edges = np.array([0.1, 0.100001])  # one on each side of a bin's edge
    assert v.calibration_error(np.array([True, False]), edges) == pytest.approx((0.9 + 0.100001) / 2, abs=1e-12)


def test_counts_are_sums(judged: pd.DataFrame) -> None:
    table = v.measure(judged, 0.5, by="stratum").set_index("part")
    inner = table.drop(index=["pooled", "macro"])
    for column in ("candidates", "known", "violations", "anchors"):
        assert table.loc["macro", column] == table.loc["pooled", column] == inner[column].sum() > 1
    assert table.loc["pooled", "violations"] == sum(x is True for x in judged["violation"].tolist())


def test_a_verifier_must_have_run(judged: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="no column 'probability'; run a verifier first"):
        v.measure(judged.drop(columns="probability"), 0.5)


@pytest.mark.parametrize(
    ("denied", "recall", "verdict"),
    [
        ([0.2, 0.0101], [0.9, 0.4], "no threshold qualifies"),
        ([0.2, 0.01], [0.9, 0.0], "only thresholds that detect nothing qualify"),
        ([0.2, 0.01], [0.9, 0.004], "detects violations within the limit"),
    ],
)
def test_the_bar_is_one_per_cent_and_detecting_nothing_does_not_pass_it(
    denied: list[float], recall: list[float], verdict: str
) -> None:
    curve = pd.DataFrame({"verifier": "x", "threshold": [0.1, 0.5], "violation_recall": recall})
    (row,) = v.bar(curve.assign(required_anchor_false_denial=denied)).to_dict("records")
    assert row["verdict"] == verdict and row["lowest_false_denial"] == denied[1]
    if verdict.startswith("no"):
        assert np.isnan([row["threshold"], row["violation_recall"], row["required_anchor_false_denial"]]).all()
    else:
        assert (row["threshold"], row["violation_recall"], row["qualifying"]) == (0.5, recall[1], 1)
