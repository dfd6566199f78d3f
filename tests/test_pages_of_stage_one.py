"""Chapters 02, 05 and 07 as a reader gets them: changed data fail what the text says, reruns count nothing twice."""

from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest
from test_chapter04 import table_of, text_of
from test_evidence import made_up, write

from companion.book import runs
from companion.corpora import evidence
from companion.paths import data_dir

FAST = {"replicates": 200}


def changed(folder, monkeypatch, name, change):
    """Let the project read a copy of its data in which one published table was altered."""
    data = folder / "data"
    data.mkdir()
    for entry in data_dir().iterdir():
        if entry.name != "published":
            (data / entry.name).symlink_to(entry)
    shutil.copytree(data_dir() / "published", data / "published")
    path = data / "published" / f"{name}.csv"
    change(pd.read_csv(path)).to_csv(path, index=False)
    monkeypatch.setenv("COMPANION_DATA", str(data))


def flipped_prefix(table):
    """MemOps gets cleaner in what is read, too."""
    loss = table["loss"].where(table["source"] == "rhelm", -table["feasible_rate"] - 0.02)
    return table.assign(loss=loss)


def nothing_recomputed(table):
    rows = table["claim"].eq("C9") & table["contrast"].eq("top_20")
    return table.assign(estimate=table["estimate"].where(~rows, table["estimate"] + 0.0137))


def worse_answers(table):
    rows = table["metric"].eq("answer_correct") & table["contrast"].eq("namespace_dense-global_dense")
    return table.assign(ci_low=table["ci_low"].where(~rows, -0.05))


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("chapter", "name", "change"),
    [
        ("02", "support_group_deltas", flipped_prefix),
        ("05", "figures", worse_answers),
        ("07", "figures", nothing_recomputed),
    ],
)
def test_other_data_fail_what_the_text_says(chapter, name, change, tmp_path, monkeypatch):
    changed(tmp_path, monkeypatch, name, change)
    with pytest.raises(runs.RunError, match="AssertionError"):
        runs.execute(chapter, {}, tmp_path / "page.ipynb", progress=False)


@pytest.mark.notebook
def test_another_corpus_runs_as_it_stands_and_is_not_counted_twice(tmp_path):
    run = runs.execute("02", {**FAST, "frozen": "gatemem"}, tmp_path / "02.ipynb", progress=False)
    shown = text_of(run)
    assert "the numbers are yours" in shown
    assert shown.count("<td>gatemem</td>") == 3  # recall, feasible, loss: one population
    headline = {entry["name"]: entry for entry in run.record["headline"]}
    assert headline["here_recall"]["estimate"] == headline["last_recall"]["estimate"]
    assert set(table_of(run, "fig-sweep")["top_k"]) == {5, 10, 20, 50, 100}


@pytest.mark.notebook
def test_another_seed_is_no_failed_reproduction_on_the_page(tmp_path):
    run = runs.execute("07", {**FAST, "seed": 9, "simulations": 20}, tmp_path / "07.ipynb", progress=False)
    headline = {entry["name"]: entry["estimate"] for entry in run.record["headline"]}
    assert headline["ok_recomputed"] == headline["n_recomputed"] >= 60


@pytest.mark.notebook
def test_with_the_evidence_the_page_recomputes_and_without_it_quotes(tmp_path, monkeypatch):
    path = tmp_path / evidence.CASE_SCORES
    path.parent.mkdir(parents=True)
    write(path, made_up(cases=60))
    run = runs.execute("05", {**FAST, "evidence": str(tmp_path)}, tmp_path / "05.ipynb", progress=False)
    mine = table_of(run, "table-recomputed")
    cases = evidence.load_evidence(tmp_path)
    wide = cases[cases["arm"].isin(["namespace_dense", "global_dense"])].pivot_table(
        index=["reader_model", "source", "case_token"], columns="arm", values="answer_correct", aggfunc="first"
    )
    delta = wide["namespace_dense"].astype(float) - wide["global_dense"].astype(float)
    macro = delta.groupby(["reader_model", "source"]).mean().groupby("reader_model").mean()
    rows = mine.query("metric == 'answer_correct' and source == 'macro' and contrast == 'namespace_dense-global_dense'")
    assert rows.set_index("subject")["estimate"].to_dict() == pytest.approx(macro.to_dict())
    cells = json.loads(run.notebook.read_text(encoding="utf-8"))["cells"]
    assert not any(output["output_type"] == "error" for cell in cells for output in cell.get("outputs", []))
