"""The released case scores and the downstream deltas, on made-up rows in the released format."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from companion.bootstrap import Resampling
from companion.corpora import evidence
from companion.errors import InputError
from companion.paths import data_dir
from companion.stages import downstream

READERS = ("reader-a", "reader-b")
GROUPS = {"rhelm": ("r1", "r2", "r3"), "memops": ("m1", "m2", "m3", "m4")}


def made_up(seed: int = 5, cases: int = 40) -> list[dict[str, str]]:
    """Rows in the released format: two sources of unequal size; only memops can disclose; some fields empty."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(cases):
        source = "rhelm" if number % 3 == 0 else "memops"
        group = GROUPS[source][int(rng.integers(len(GROUPS[source])))]
        evaluable = source == "memops" and number % 4 != 1
        for arm in evidence.ARMS:
            route = {
                "case_token": f"case-{number:03d}",
                "group_token": group,
                "source": source,
                "arm": arm,
                "case_order": str(number),
                "anchor_total": str(1 + number % 3),
                "evidence_recall": repr(float(rng.random())),
                "feasible": str(int(rng.integers(2))),
                "penalized_admissibility_upper_risk": repr(float(rng.random())),
                "route_width": repr(float(rng.random())),
                "wrong_namespace_exposure": repr(float(rng.random())) if number % 5 else "",
                "policy_disallowed_exposure": repr(float(rng.random())),
                "lifecycle_incompatible_exposure": "0.0",
                "unresolved_exposure": "0.25",
            }
            for reader in READERS:
                answer = {
                    "reader_provider": "provider",
                    "reader_model": reader,
                    "answer_correct": str(int(rng.integers(2))),
                    "answer_quality": repr(round(float(rng.random()), 3)),
                    "contains_reference_answer": "true",
                    "protected_disclosure_evaluable": str(int(evaluable)),
                    "protected_disclosure": str(int(rng.integers(2))) if evaluable else "",
                    "literal_protected_disclosure": str(int(rng.integers(2))) if evaluable else "",
                    "stale_disclosure": str(int(rng.integers(2))) if source == "memops" else "",
                    "non_answer": "False",
                    "reader_record_sha256": "ab" * 32,
                    "judge_record_sha256": "",
                }
                rows.append(route | answer)
    return rows


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, evidence.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return made_up()


@pytest.fixture(scope="module")
def cases(rows, tmp_path_factory) -> pd.DataFrame:
    return evidence.read_case_scores(write(tmp_path_factory.mktemp("evidence") / "case_scores.csv", rows))


# Reading


def test_types_and_missing_fields(cases, rows):
    assert list(cases.columns) == list(evidence.COLUMNS)
    assert cases["answer_correct"].dtype == "boolean"
    assert cases["anchor_total"].dtype == "Int64"
    assert cases["evidence_recall"].dtype == "float64"
    assert cases["non_answer"].eq(False).all()
    assert cases["contains_reference_answer"].all()
    assert cases["judge_record_sha256"].isna().all()
    for column in ("protected_disclosure", "stale_disclosure", "wrong_namespace_exposure"):
        assert cases[column].isna().tolist() == [row[column] == "" for row in rows]


def test_numbers_survive_exactly(cases, rows):
    assert cases["evidence_recall"].tolist() == [float(row["evidence_recall"]) for row in rows]


def test_a_disclosure_that_is_not_evaluable_is_missing_even_when_a_value_is_written(tmp_path, rows):
    changed = [dict(row) for row in rows]
    index = next(i for i, row in enumerate(rows) if row["protected_disclosure_evaluable"] == "0")
    changed[index] |= {"protected_disclosure": "0", "literal_protected_disclosure": "1"}
    table = evidence.read_case_scores(write(tmp_path / "c.csv", changed))
    assert table.loc[index, ["protected_disclosure", "literal_protected_disclosure"]].isna().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer_correct": "maybe"}, "row 8, column 'answer_correct' is 'maybe'"),
        ({"evidence_recall": "inf"}, "row 8, column 'evidence_recall' is 'inf'"),
        ({"evidence_recall": "n/a"}, "row 8, column 'evidence_recall' is 'n/a'"),
        ({"anchor_total": "1.5"}, "row 8, column 'anchor_total' is '1.5'"),
        ({"group_token": ""}, "row 8, column 'group_token'"),
        ({"source": "elsewhere"}, "different values of 'source'"),
        ({"group_token": "other"}, "different values of 'group_token'"),
    ],
)
def test_bad_values_are_refused_with_row_column_and_value(tmp_path, rows, change, message):
    changed = [dict(row) for row in rows]
    changed[7] |= change
    with pytest.raises(InputError) as refusal:
        evidence.read_case_scores(write(tmp_path / "case_scores.csv", changed))
    assert message in str(refusal.value)
    assert "case_scores.csv" in str(refusal.value)


def test_repeated_keys_missing_columns_and_ragged_rows_are_refused(tmp_path, rows):
    path = write(tmp_path / "twice.csv", [*rows, rows[3]])
    with pytest.raises(InputError, match=rf"row {len(rows) + 1} repeats case_token"):
        evidence.read_case_scores(path)
    lines = write(tmp_path / "c.csv", rows).read_text(encoding="utf-8").splitlines(keepends=True)
    path = tmp_path / "cut.csv"
    path.write_text("".join(lines[:5]) + lines[5][:40], encoding="utf-8")
    with pytest.raises(InputError, match="row 5 has"):
        evidence.read_case_scores(path)
    path.write_text(lines[0].replace("non_answer", "nonanswer"), encoding="utf-8")
    with pytest.raises(InputError, match="no column 'non_answer'"):
        evidence.read_case_scores(path)
    path.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="empty"):
        evidence.read_case_scores(path)


def test_absent_evidence_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_CORPORA", str(tmp_path))
    assert not evidence.is_present()
    with pytest.raises(InputError, match="companion fetch evidence"):
        evidence.load_evidence()


def test_hand_laid_evidence_is_present(tmp_path, monkeypatch, rows):
    monkeypatch.setenv("COMPANION_CORPORA", str(tmp_path))
    target = tmp_path / "evidence" / evidence.CASE_SCORES
    target.parent.mkdir(parents=True)
    write(target, rows)
    assert evidence.is_present()
    assert len(evidence.load_evidence()) == len(rows)


# Deltas against plain loops over the made-up rows


def value(row: dict[str, str], metric: str) -> float:
    if metric == "protected_disclosure" and row["protected_disclosure_evaluable"] == "0":
        return math.nan
    text = row[metric]
    return {"": math.nan, "true": 1.0, "True": 1.0, "False": 0.0}[text] if not text[:1].isdigit() else float(text)


def brute_pairs(rows, reader, arm, reference, metric) -> list[tuple[str, str, float]]:
    """(source, group, difference) of every evaluable pair, by looking each row up."""
    by_key = {(row["case_token"], row["reader_model"], row["arm"]): row for row in rows}
    pairs = []
    for case in sorted({row["case_token"] for row in rows}):
        upper, lower = by_key[case, reader, arm], by_key[case, reader, reference]
        difference = value(upper, metric) - value(lower, metric)
        if not math.isnan(difference):
            pairs.append((upper["source"], upper["group_token"], difference))
    return pairs


def macro(pairs) -> float:
    sources = sorted({source for source, _, _ in pairs})
    means = [np.mean([d for s, _, d in pairs if s == source]) for source in sources]
    return float(np.mean(means))


METRICS = [*downstream.ANSWER_METRICS, "literal_protected_disclosure"]


def contrast(scores, arm, reference, metrics, replicates):
    """Every metric of one paired contrast."""
    deltas = downstream.paired_deltas(scores, arm, reference, metrics)
    made = [downstream.contrast(deltas, m, Resampling(replicates=replicates)).assign(metric=m) for m in metrics]
    return pd.concat(made, ignore_index=True)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", list(downstream.CONTRASTS))
def test_estimates_equal_plain_loops(cases, rows, reader, name):
    arm, reference = downstream.CONTRASTS[name]
    own = cases[cases["reader_model"] == reader]
    table = contrast(own, arm, reference, METRICS, replicates=20).set_index(["metric", "source"])
    for metric in METRICS:
        pairs = brute_pairs(rows, reader, arm, reference, metric)
        assert table.loc[(metric, "macro"), "estimate"] == pytest.approx(macro(pairs), abs=1e-12)
        weighted = table.loc[(metric, downstream.CASE_WEIGHTED)]
        assert weighted["estimate"] == pytest.approx(np.mean([d for _, _, d in pairs]), abs=1e-12)
        assert weighted["n"] == len(pairs) == table.loc[(metric, "macro"), "n"]
        for source in {s for s, _, _ in pairs}:
            only = [d for s, _, d in pairs if s == source]
            assert table.loc[(metric, source), "estimate"] == pytest.approx(np.mean(only), abs=1e-12)
            assert table.loc[(metric, source), "n"] == len(only)


def test_a_source_that_cannot_be_evaluated_is_no_part_of_the_macro_mean(cases):
    own = cases[cases["reader_model"] == READERS[0]]
    table = contrast(own, "namespace_dense", "global_dense", ["stale_disclosure"], replicates=200)
    by_source = table.set_index("source")
    assert "rhelm" not in by_source.index
    assert by_source.loc["macro", "estimate"] == by_source.loc["memops", "estimate"]
    assert by_source.loc["macro", "low"] == by_source.loc["memops", "low"]


def quantiles_by_enumeration(pairs, weight_by_source: bool) -> tuple[float, float]:
    """Exact 2.5% and 97.5% quantiles over every way to resample groups within sources."""
    groups = {}
    for source, group, difference in pairs:
        groups.setdefault(source, {}).setdefault(group, []).append(difference)
    per_source = []
    for members in groups.values():
        names = list(members)
        draws = itertools.product(names, repeat=len(names))
        per_source.append([[d for name in draw for d in members[name]] for draw in draws])
    values = []
    for parts in itertools.product(*per_source):
        means = [np.mean(part) for part in parts]
        values.append(np.mean(means) if weight_by_source else np.mean(np.concatenate(parts)))
    return float(np.quantile(values, 0.025)), float(np.quantile(values, 0.975))


@pytest.mark.parametrize(("label", "by_source"), [("macro", True), (downstream.CASE_WEIGHTED, False)])
def test_intervals_resample_groups_within_sources(cases, rows, label, by_source):
    # 3 groups in one source, 4 in the other: 27 * 256 resamples can be enumerated. 40,000 random ones come close.
    own = cases[cases["reader_model"] == READERS[1]]
    table = contrast(own, "namespace_dense", "global_dense", ["answer_quality"], replicates=40_000)
    row = table.set_index("source").loc[label]
    low, high = quantiles_by_enumeration(
        brute_pairs(rows, READERS[1], "namespace_dense", "global_dense", "answer_quality"), by_source
    )
    assert row["low"] == pytest.approx(low, abs=0.004)
    assert row["high"] == pytest.approx(high, abs=0.004)


def test_the_same_group_token_in_two_sources_is_two_groups(rows, tmp_path):
    renamed = [dict(row, group_token=row["group_token"].replace("r", "m")) for row in rows]
    renamed_cases = evidence.read_case_scores(write(tmp_path / "c.csv", renamed))
    original_cases = evidence.read_case_scores(write(tmp_path / "d.csv", rows))
    results = [
        contrast(
            table[table["reader_model"] == READERS[0]],
            "namespace_dense",
            "global_dense",
            ["answer_correct"],
            replicates=500,
        )
        for table in (renamed_cases, original_cases)
    ]
    pd.testing.assert_frame_equal(*results)


def test_route_rows_do_not_depend_on_the_reader(cases, rows):
    table = downstream.reader_contrasts(cases, resampling=Resampling(replicates=20))
    route = table[table["subject"] == "route"].set_index(["contrast", "metric", "source"])["estimate"]
    for metric in downstream.ROUTE_METRICS:
        pairs = brute_pairs(rows, READERS[0], "namespace_dense", "global_dense", metric)
        assert route["namespace_dense-global_dense", metric, "macro"] == pytest.approx(macro(pairs), abs=1e-12)
    assert set(table["subject"]) == {*READERS, "route"}


def test_readers_that_disagree_about_a_route_are_refused(cases):
    changed = cases.copy()
    changed.loc[0, "evidence_recall"] += 1e-9
    with pytest.raises(InputError, match="readers disagree on 'evidence_recall'"):
        downstream.reader_contrasts(changed, resampling=Resampling(replicates=5))
    changed = cases.copy()
    changed.loc[changed.index[changed["wrong_namespace_exposure"].notna()][0], "wrong_namespace_exposure"] = np.nan
    with pytest.raises(InputError, match="readers disagree on 'wrong_namespace_exposure'"):
        downstream.route_scores(changed)


def test_half_a_pair_is_refused_and_readers_are_never_pooled(cases):
    own = cases[cases["reader_model"] == READERS[0]]
    with pytest.raises(InputError, match="case 'case-000': only one of the arms"):
        downstream.paired_deltas(own.drop(index=own.index[0]), "namespace_dense", "global_dense", ["answer_correct"])
    with pytest.raises(InputError, match="exactly one reader"):
        downstream.paired_deltas(cases, "namespace_dense", "global_dense", ["answer_correct"])


def test_a_reader_without_an_arm_is_left_out_of_its_contrasts(cases):
    keep = ~((cases["reader_model"] == READERS[1]) & (cases["arm"] == "namespace_text_verifier"))
    table = downstream.reader_contrasts(cases[keep], resampling=Resampling(replicates=5))
    subjects = table.groupby("contrast")["subject"].unique().map(set)
    assert subjects["text_verifier-namespace_dense"] == {READERS[0], "route"}
    assert subjects["policy_gate-namespace_dense"] == {*READERS, "route"}


def test_row_order_does_not_matter(cases):
    shuffled = cases.sample(frac=1, random_state=3)
    first = downstream.published_rows(cases, Resampling(replicates=200))
    second = downstream.published_rows(shuffled, Resampling(replicates=200))
    pd.testing.assert_frame_equal(first, second)


def test_every_published_row_of_the_claim_is_recomputed(rows, tmp_path):
    published = pd.read_csv(data_dir() / "published" / "figures.csv")
    published = published[published["claim"].isin(["C13", "C13-by-source"])]
    models = sorted(set(published["subject"]) - {"route"})
    names = dict(zip(READERS, models, strict=False))
    renamed = [dict(row, reader_model=names[row["reader_model"]]) for row in rows]
    renamed += [dict(row, reader_model=models[2]) for row in rows if row["reader_model"] == READERS[0]]
    table = downstream.published_rows(
        evidence.read_case_scores(write(tmp_path / "c.csv", renamed)), Resampling(replicates=10)
    )
    keys = ["claim", "subject", "contrast", "metric"]
    joined = published.merge(table, on=keys, how="left", validate="one_to_one")
    assert joined["value"].notna().all()
    assert len(joined) == len(published) == 46


# How much of a difference sits where recall moved


def test_the_split_by_recall_equals_plain_means(cases):
    table = downstream.by_recall_change(cases, "namespace_dense", "global_dense", resampling=Resampling(replicates=300))
    assert list(table["change"].unique()) == list(downstream.CHANGES.values())
    for row in table.to_dict(orient="records"):
        mine = cases[cases["reader_model"] == row["subject"]]
        sides = {
            arm: mine[mine["arm"] == arm].set_index("case_token").sort_index()
            for arm in ("namespace_dense", "global_dense")
        }
        one, two = sides["namespace_dense"], sides["global_dense"]
        move = np.sign(one["evidence_recall"] - two["evidence_recall"])
        wanted = move == {"recall fell": -1, "recall unchanged": 0, "recall rose": 1}[row["change"]]
        delta = (one["answer_correct"].astype(float) - two["answer_correct"].astype(float))[wanted]
        assert row["n"] == len(delta)
        means = delta.groupby(one.loc[wanted, "source"]).mean()
        assert np.isnan(row["estimate"]) if means.empty else row["estimate"] == pytest.approx(means.mean())
        if len(delta):
            assert row["low"] <= row["estimate"] <= row["high"]
    assert table.groupby("subject")["n"].sum().eq(40).all()


def test_the_split_leaves_out_what_is_not_evaluable(cases):
    changed = cases.copy()
    gone = changed["case_token"] == "case-000"
    changed.loc[gone, "evidence_recall"] = np.nan
    changed.loc[changed["case_token"] == "case-001", "answer_correct"] = pd.NA
    table = downstream.by_recall_change(
        changed, "namespace_dense", "global_dense", resampling=Resampling(replicates=50)
    )
    assert table.groupby("subject")["n"].sum().eq(38).all()
    assert downstream.by_recall_change(changed[changed["arm"] == "global_dense"], "a", "b").empty


def test_a_source_without_such_cases_has_no_say(cases):
    changed = cases.copy()
    even = changed["source"].eq("rhelm") & changed["case_order"].mod(2).eq(0)
    changed.loc[even, "evidence_recall"] = 0.5
    table = downstream.by_recall_change(
        changed, "namespace_dense", "global_dense", resampling=Resampling(replicates=400)
    )
    same = table[table["change"] == "recall unchanged"].set_index("subject")
    for subject, row in same.iterrows():
        mine = (
            changed[even & changed["reader_model"].eq(subject)].set_index("case_token")["answer_correct"].astype(float)
        )
        arms = changed[even & changed["reader_model"].eq(subject)].set_index("case_token")["arm"]
        delta = mine[arms == "namespace_dense"] - mine[arms == "global_dense"]
        assert row["n"] == len(delta) > 0
        assert row["estimate"] == pytest.approx(delta.mean())


# The real evidence, for whoever has fetched it


def test_the_released_evidence_gives_the_published_figures():
    if not evidence.is_present():
        pytest.skip("the evidence is not here; fetch it with: companion fetch evidence")
    published = pd.read_csv(data_dir() / "published" / "figures.csv")
    published = published[published["claim"].isin(["C13", "C13-by-source"])]
    keys = ["claim", "subject", "contrast", "metric"]
    joined = published.merge(
        downstream.published_rows(evidence.load_evidence()), on=keys, how="left", suffixes=("_published", "")
    )
    assert np.abs(joined["value"] - joined["estimate"]).max() < 1e-12
    assert (joined["n"] == joined["n_published"]).all()
    # Percentile ends are Monte Carlo: another generator moves them by a few per cent of the width.
    width = joined["ci_high"] - joined["ci_low"]
    assert (np.abs(joined["low"] - joined["ci_low"]) < 0.1 * width).all()
    assert (np.abs(joined["high"] - joined["ci_high"]) < 0.1 * width).all()
