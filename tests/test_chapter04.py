"""Chapter 04 with the published outcomes and with a reader's own: what a reader of the page would see."""

from __future__ import annotations

import io
import json
import shutil
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from companion import exposure
from companion.book import runs
from companion.bootstrap import Resampling
from companion.corpora.frozen import load_frozen
from companion.errors import InputError
from companion.paths import data_dir
from companion.stages import published, readers

FAST = {"replicates": 200, "simulations": 50, "top_k": 5}


def text_of(run):
    """Everything that a reader of the executed page would see."""
    notebook = json.loads(run.notebook.read_text(encoding="utf-8"))
    data = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return "\n".join("".join(d.get(kind, "")) for d in data for kind in ("text/markdown", "text/html"))


def table_of(run, anchor):
    """Return the table behind a figure, or a table of the page, as its download holds it."""
    for part in BeautifulSoup(text_of(run), "html.parser").select("figure, .companion-block"):
        if part.get("id") == anchor or part.select_one(f"#{anchor}"):
            link = part.select_one("a.companion-csv")["href"]
            return pd.read_csv(io.StringIO(unquote(link.partition(",")[2])))
    raise AssertionError(f"the page has no {anchor}")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return runs.execute("04", {}, tmp_path_factory.mktemp("04") / "04.ipynb", progress=False)


@pytest.mark.notebook
def test_four_rules_and_protected_turns_come_from_the_data(page):
    """Finding 2 of the protocol's list, and GateMem beside random turns: by plain counting, not by the package."""
    choices = table_of(page, "fig-choices").set_index(["drawn", "reader"])
    without = choices.loc["within their axis (the paper), without time-consent"]
    expected = {"claude-opus-5": [5 / 30, 2 / 30, 9 / 30], "deepseek-v4-pro": [5 / 30, 1 / 30, 10 / 30]}
    expected |= {"gpt-5.6-sol": [2 / 30, 0, 4 / 30], "gemini-3.6-flash": [1 / 30, 0, 3 / 30]}
    for reader, ends in expected.items():
        got = without.loc[reader, ["estimate", "low", "high"]].astype(float)
        assert got.tolist() == pytest.approx([100 * end for end in ends])
    assert not choices.loc["all together", "excludes_zero"].any()
    leaks = table_of(page, "fig-protected").set_index(["kind", "route"])["estimate"]
    run = load_frozen("gatemem", arms=["namespace_dense"])
    bad = run.labels[run.labels["policy"].eq(False).fillna(False)].groupby("query_id")["memory_id"].apply(set)
    asked = run.queries[run.queries["query_type"] == "privacy"].set_index("query_id")
    top = run.rankings[run.rankings["rank"] <= 20].groupby("query_id")["memory_id"].apply(set)
    hit = pd.Series({q: bool(top[q] & bad.get(q, set())) for q in asked.index})
    assert leaks["privacy", "own memories only"] == pytest.approx(hit.groupby(asked["source"]).mean().mean())
    rng = np.random.default_rng(1)  # random turns of one's own, drawn
    sizes, marked = asked["visible_own"].to_numpy(), np.array([len(bad.get(q, ())) for q in asked.index])
    drawn = rng.hypergeometric(marked, sizes - marked, np.minimum(20, sizes), size=(400, len(sizes))) > 0
    chance = pd.Series(drawn.mean(axis=0), asked.index).groupby(asked["source"]).mean().mean()
    assert leaks["privacy", "random turns"] == pytest.approx(chance, abs=0.01)


@pytest.mark.notebook
def test_a_changed_outcome_fails_the_verdicts(tmp_path, monkeypatch):
    """The page's text is asserted: with other data it does not run to its end."""
    data = tmp_path / "data"
    shutil.copytree(data_dir(), data)
    path = data / "published" / "exposure_outcomes.csv"
    table = pd.read_csv(path)
    table.loc[table["scenario"] == "time-consent", "disclosed_withheld"] = 0
    table.to_csv(path, index=False)
    monkeypatch.setenv("COMPANION_DATA", str(data))
    with pytest.raises(runs.RunError, match="AssertionError"):
        runs.execute("04", {}, tmp_path / "04.ipynb", progress=False)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return readers.run(readers.erring({"as_of_time": 0.5}, 3), folder / "run")


@pytest.mark.notebook
def test_a_readers_own_outcomes_are_shown_beside_and_not_pooled(own, tmp_path):
    path = own.folder / "outcomes.parquet"
    values = {**FAST, "outcomes": str(path), "stratify": "none", "confidence": 0.4}
    run = runs.execute("04", values, tmp_path / "own.ipynb", progress=False)
    shown = text_of(run)
    assert "Simulated: decides wrongly at a set rate" in shown and "No answer ran out of length." in shown
    mine = table_of(run, "fig-own").set_index("metric")
    expected = exposure.summarise(own.outcomes, "none", Resampling(200, 0.4)).set_index("metric")
    assert set(mine["reader"]) == {"simulated-erring"}
    for name in ("estimate", "low", "high"):
        assert mine[name].to_dict() == pytest.approx(expected[name].to_dict())
    # The run record holds the reader's own numbers too, under names that say so.
    headline = {number["name"]: number for number in run.record["headline"]}
    for name in ("selectivity_gap", "relevant_inadmissible"):
        got = [headline[f"own_{name}"][end] for end in ("estimate", "low", "high")]
        assert got == pytest.approx(expected.loc[name, ["estimate", "low", "high"]].tolist())
    assert set(table_of(run, "fig-effects")["reader"]) == set(published.table("exposure_outcomes")["reader"])


def test_bad_outcomes_are_refused_before_the_page_runs(own, tmp_path):
    good = pd.read_csv(own.folder / "outcomes.csv")
    cases = {
        "short": (good.iloc[1:], "no outcome \\(1 of 192 units missing\\)"),
        "twice": (pd.concat([good, good.iloc[:1]]), "twice"),
        "empty": (good.iloc[:0], "no rows"),
        "word": (good.replace({"condition": {"allow": "maybe"}}), "column condition: 'maybe'"),
        "cell": (good.assign(cell="relevant_admissible"), "cell is 'relevant_admissible'"),
        "value": (good.assign(disclosed_exposed=2), "disclosed_exposed"),
        "hole": (good.assign(disclosed_withheld=""), "disclosed_withheld"),
    }
    for name, (table, match) in cases.items():
        path = tmp_path / f"{name}.csv"
        table.to_csv(path, index=False)
        with pytest.raises(InputError, match=f"(?s){name}\\.csv.*{match}"):
            runs.execute("04", {**FAST, "outcomes": str(path)}, tmp_path / "never.ipynb", progress=False)
    assert not (tmp_path / "never.ipynb").exists()


def test_provenance_tells_who_answered_and_what_was_cut_short(own, tmp_path):
    text = readers.provenance(own.folder / "outcomes.csv")
    assert text.startswith("Simulated: decides wrongly")
    assert readers.load_scenarios().digest[:12] in text
    lines = (own.folder / "transcripts.jsonl").read_text().splitlines()
    for name in ("run.json", "outcomes.csv"):
        (tmp_path / name).write_bytes((own.folder / name).read_bytes())
    cut = [json.dumps({**json.loads(line), "truncated": number < 7}) for number, line in enumerate(lines)]
    (tmp_path / "transcripts.jsonl").write_text("\n".join(cut) + "\n")
    assert "7 of 384 answers ran out of length" in readers.provenance(tmp_path / "outcomes.csv")
    for other in (tmp_path / "mine.csv", tmp_path / "nowhere" / "outcomes.csv"):
        assert readers.provenance(other) == "Where they came from is not recorded beside the file."
    (tmp_path / "run.json").write_text("[]")
    assert "not recorded" in readers.provenance(tmp_path / "outcomes.csv")
