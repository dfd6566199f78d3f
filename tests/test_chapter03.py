"""Chapter 03 with a verifier of one's own, and with data that its text does not hold for."""

from __future__ import annotations

import shutil

import pandas as pd
import pytest
from test_chapter04 import table_of, text_of
from typer.testing import CliRunner

from companion.book import runs
from companion.cli import app
from companion.paths import data_dir

FAST = {"replicates": 200, "seeds": 1, "rates": [0.0, 0.5], "kept": ["rhelm"]}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page with a file of probabilities: half of them 0.9, by a rule that a test can count."""
    folder = tmp_path_factory.mktemp("03")
    path = folder / "mine.csv"
    assert CliRunner().invoke(app, ["candidates", "demo", "--out", str(path)]).exit_code == 0
    table = pd.read_csv(path)
    table["probability"] = table["memory_id"].str[-1].isin(list("13579")) * 0.8 + 0.1
    table.to_csv(path, index=False)
    return table, runs.execute("03", {**FAST, "verifier": str(path)}, folder / "03.ipynb", progress=False)


@pytest.mark.notebook
def test_a_file_of_probabilities_is_judged_by_plain_counting(page):
    given, run = page
    labels = pd.read_csv(data_dir() / "demo" / "labels.csv", dtype={"anchor_id": "str"})
    known = labels.set_index(["query_id", "memory_id"])[["policy", "lifecycle"]].astype("boolean")
    own = given[given["split"] == "analysis"].join(known, on=["query_id", "memory_id"])
    bad = own["policy"].eq(False).fillna(False) | own["lifecycle"].eq(False).fillna(False)
    curve = table_of(run, "fig-threshold").set_index("threshold")
    assert curve.loc[0.5, "violation_recall"] == pytest.approx((own.loc[bad, "probability"] > 0.5).mean())
    assert curve.loc[0.95, "violation_recall"] == 0 and curve.loc[0.05, "retained_fraction"] == 0
    assert set(table_of(run, "fig-curves")["verifier"]) == {
        "mine",
        "gpt-5.6-sol (the paper)",
        "gemini-3.6-flash (the paper)",
    }
    assert "The text of this page describes the defaults" in text_of(run)


@pytest.mark.notebook
def test_published_parts_of_the_page_are_those_of_the_files(page):
    _, run = page
    steps = table_of(run, "fig-controlled").set_index(["verifier", "axis", "measure"])["estimate"]
    pairs = pd.read_csv(data_dir() / "published" / "controlled_verification_pairs.csv")
    part = pairs[(pairs["verifier"] == "gemini-3.6-flash") & (pairs["axis"] == "as_of_time")]
    assert steps["gemini-3.6-flash", "date", "flips without reason"] == pytest.approx(
        100 * part["overflips"].sum() / 16
    )
    told = table_of(run, "fig-corruption")
    paper = told[(told["population"] == "the paper") & (told["channel"] == "policy_false_deny") & (told["from"] == 50)]
    assert len(paper) == 1 and paper["low"].isna().all() and paper["estimate"].item() > 0


@pytest.mark.notebook
def test_a_changed_figure_fails_the_verdicts(tmp_path, monkeypatch):
    data = tmp_path / "data"
    shutil.copytree(data_dir(), data)
    path = data / "published" / "verification_strata.csv"
    table = pd.read_csv(path)
    table.loc[table["roc_auc"] < 0.5, "roc_auc"] = 0.6  # no stratum is below chance now
    table.to_csv(path, index=False)
    monkeypatch.setenv("COMPANION_DATA", str(data))
    with pytest.raises(runs.RunError, match="one stratum below chance"):
        runs.execute("03", {}, tmp_path / "03.ipynb", progress=False)
