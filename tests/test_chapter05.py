"""Chapter 05 in both states, and the split that it draws: made-up evidence in the released format, or none."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from test_evidence import made_up, write

from companion.book import runs
from companion.corpora import evidence
from companion.stages import confounding, published

FAST = {"replicates": 200, "seeds": 2, "top_k": 5, "items": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("evidence")
    path = root / evidence.CASE_SCORES
    path.parent.mkdir(parents=True)
    write(path, made_up(cases=60))
    return root


@pytest.fixture(scope="module")
def cases(folder):
    return evidence.load_evidence(folder)


def text_of(run):
    """Everything a reader of the executed page would see."""
    notebook = json.loads(run.notebook.read_text(encoding="utf-8"))
    shown = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            for kind in ("text/markdown", "text/html"):
                value = data.get(kind, "")
                shown.append(value if isinstance(value, str) else "".join(value))
    return "\n".join(shown)


@pytest.mark.notebook
def test_the_chapter_builds_without_the_evidence_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_CORPORA", str(tmp_path / "nothing"))
    run = runs.execute("05", FAST, tmp_path / "absent.ipynb", progress=False)
    shown = text_of(run)
    assert "The released evidence is not present." in shown
    assert "companion fetch evidence" in shown
    assert "published (quoted)" in shown
    assert "recomputed</th>" not in shown
    # The headline numbers are the published ones, to the last digit.
    c13 = published.figures("C13").query("contrast == 'namespace_dense-global_dense' and metric == 'answer_correct'")
    headline = {entry["name"]: entry["estimate"] for entry in run.record["headline"]}
    assert headline == {"correct_low": c13["published"].min(), "correct_high": c13["published"].max()}


@pytest.mark.notebook
def test_the_chapter_builds_with_the_evidence_and_says_so(tmp_path, folder, cases):
    run = runs.execute("05", {**FAST, "evidence": str(folder)}, tmp_path / "present.ipynb", progress=False)
    shown = text_of(run)
    assert "The released evidence is present" in shown
    assert f"{len(cases):,} case scores" in shown
    assert "case-weighted" in shown
    assert "recall rose" in shown
    assert "is not present" not in shown
    wide = cases[cases["arm"].isin(["namespace_dense", "global_dense"])].pivot_table(
        index=["reader_model", "source", "case_token"], columns="arm", values="answer_correct", aggfunc="first"
    )
    delta = wide["namespace_dense"].astype(float) - wide["global_dense"].astype(float)
    macro = delta.groupby(["reader_model", "source"]).mean().groupby("reader_model").mean()
    headline = {entry["name"]: entry["estimate"] for entry in run.record["headline"]}
    assert headline["correct_low"] == pytest.approx(macro.min())
    assert headline["correct_high"] == pytest.approx(macro.max())


@pytest.mark.notebook
def test_the_chapter_takes_another_contrast_and_refuses_an_unknown_one(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_CORPORA", str(tmp_path / "nothing"))
    other = {**FAST, "contrast": "policy_gate-namespace_dense", "gates": []}
    shown = text_of(runs.execute("05", other, tmp_path / "other.ipynb", progress=False, html=False))
    assert "Answers do not clearly get better" in shown
    assert "no published difference" in shown
    # One reader's published interval lies below zero here: "not better" would hide it.
    worse = {**FAST, "contrast": "text_verifier-namespace_dense", "arms": ["global_bm25"], "seeds": 1}
    shown = text_of(runs.execute("05", worse, tmp_path / "worse.ipynb", progress=False, html=False))
    assert "For some readers, answers get worse" in shown
    with pytest.raises(ValueError, match="expected one of namespace_dense-global_dense"):
        runs.execute("05", {**FAST, "contrast": "colour"}, tmp_path / "bad.ipynb", progress=False, html=False)


def test_the_split_by_recall_equals_plain_means(cases):
    table = confounding.by_recall_change(cases, "namespace_dense", "global_dense", replicates=300)
    assert list(table["change"].unique()) == list(confounding.CHANGES)
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
    assert table.groupby("subject")["n"].sum().eq(60).all()


def test_the_split_leaves_out_what_is_not_evaluable(cases):
    changed = cases.copy()
    gone = changed["case_token"] == "case-000"
    changed.loc[gone, "evidence_recall"] = np.nan
    changed.loc[changed["case_token"] == "case-001", "answer_correct"] = pd.NA
    table = confounding.by_recall_change(changed, "namespace_dense", "global_dense", replicates=50)
    assert table.groupby("subject")["n"].sum().eq(58).all()
    assert confounding.by_recall_change(changed[changed["arm"] == "global_dense"], "a", "b").empty


def test_a_source_without_such_cases_has_no_say(cases):
    changed = cases.copy()
    even = changed["source"].eq("rhelm") & changed["case_order"].mod(2).eq(0)
    changed.loc[even, "evidence_recall"] = 0.5
    table = confounding.by_recall_change(changed, "namespace_dense", "global_dense", replicates=400)
    same = table[table["change"] == "recall unchanged"].set_index("subject")
    for subject, row in same.iterrows():
        mine = (
            changed[even & changed["reader_model"].eq(subject)].set_index("case_token")["answer_correct"].astype(float)
        )
        arms = changed[even & changed["reader_model"].eq(subject)].set_index("case_token")["arm"]
        delta = mine[arms == "namespace_dense"] - mine[arms == "global_dense"]
        assert row["n"] == len(delta) > 0
        assert row["estimate"] == pytest.approx(delta.mean())
