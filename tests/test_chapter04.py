"""Chapter 04 with the published outcomes and with a reader's own: what a reader of the page would see."""

from __future__ import annotations

import ast
import io
import json
from urllib.parse import unquote

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from test_chapter05 import text_of

from companion import exposure, fixed_depth
from companion.book import runs
from companion.corpora.frozen import load_frozen
from companion.errors import InputError
from companion.stages import published, readers, studies

FAST = {"replicates": 200, "simulations": 50, "top_k": 5}
ARMS = ["global_dense", "namespace_dense", "global_bm25"]


def told(run):
    """Return what the page glues into its prose, by name."""
    notebook = json.loads(run.notebook.read_text(encoding="utf-8"))
    found = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            if name:
                text = output["data"]["application/papermill.record/text/plain"]
                found[name] = ast.literal_eval(text if isinstance(text, str) else "".join(text))
    return found


def table_of(run, anchor):
    """Return the table behind a figure, or a table of the page, as its download holds it."""
    for part in BeautifulSoup(text_of(run), "html.parser").select("figure, .companion-block"):
        if part.get("id") == anchor or part.select_one(f"#{anchor}"):
            link = part.select_one("a.companion-csv")["href"]
            return pd.read_csv(io.StringIO(unquote(link.partition(",")[2])))
    raise AssertionError(f"the page has no {anchor}")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return runs.execute("04", FAST, tmp_path_factory.mktemp("04") / "04.ipynb", progress=False)


@pytest.mark.notebook
def test_natural_exposure_stands_by_type_for_both_corpora_and_is_never_pooled(page):
    shown = table_of(page, "fig-crossing").set_index(["corpus", "arm", "metric"])
    assert set(shown.index.get_level_values("corpus")) == {"rhelm", "gatemem"}
    for name in ("rhelm", "gatemem"):
        run = load_frozen(name, arms=ARMS)
        expected = studies.crossing(run, top_k=5, arms=ARMS, replicates=200)
        for row in expected.itertuples():
            found = shown.loc[name, row.arm, row.metric]
            assert found[["estimate", "low", "high"]].tolist() == pytest.approx([row.estimate, row.low, row.high])
    types = table_of(page, "fig-crossing-types")
    assert set(types["type"]) == {"wrong scope", "policy disallowed", "lifecycle incompatible", "unresolved"}
    assert len(types) == 2 * 3 * 4


@pytest.mark.notebook
def test_a_type_that_no_label_of_a_kind_states_is_undefined_there(page):
    kinds = table_of(page, "table-kinds").set_index(["kind", "arm"])
    assert sorted({kind for kind, _ in kinds.index}) == ["privacy", "safety", "utility"]
    known = {"privacy": "policy_disallowed", "safety": "lifecycle_incompatible", "utility": None}
    for kind, reason in known.items():
        for other in ("policy_disallowed", "lifecycle_incompatible"):
            assert kinds.loc[kind, other].notna().all() == (other == reason)
    run = load_frozen("gatemem", arms=ARMS)
    privacy = run.queries[fixed_depth.kinds_of(run.queries) == "privacy"]["query_id"]
    expected = studies.crossing(run, top_k=5, arms=ARMS, queries=list(privacy), replicates=200)
    expected = expected[expected["metric"] == "policy_disallowed"].set_index("arm")["estimate"]
    assert kinds.loc["privacy", "policy_disallowed"].to_dict() == pytest.approx(expected.to_dict())
    said = told(page)
    assert "rhelm: nothing is unresolved" in said["why_open"]
    assert "gatemem: what is open is policy and lifecycle in 100%" in said["why_open"]
    assert said["by_design"] == "policy and lifecycle in rhelm"


@pytest.mark.notebook
def test_counts_of_the_design_and_verdicts_come_from_the_outcomes(page):
    said = told(page)
    assert [said[name] for name in ("axes", "per_axis", "pairs", "conditions", "candidates")] == [
        "four", "four", "two", "two", "three",
    ]  # fmt: skip
    assert (said["units"], said["scenarios"], said["n_published"]) == ("192", "16", "18")
    assert said["other_settings"] == ""
    assert "No outcomes of your own were given" in text_of(page)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return readers.run(readers.erring({"as_of_time": 0.5}, 3), folder / "run")


@pytest.mark.notebook
def test_a_readers_own_outcomes_are_shown_beside_and_not_pooled(own, page, tmp_path):
    path = own.folder / "outcomes.parquet"
    values = {**FAST, "outcomes": str(path), "stratify": "none", "confidence": 0.4}
    run = runs.execute("04", values, tmp_path / "own.ipynb", progress=False)
    shown = text_of(run)
    assert "Simulated: decides wrongly at a set rate" in shown
    assert "No answer ran out of length." in shown
    mine = table_of(run, "fig-own").set_index("metric")
    expected = exposure.summarise(own.outcomes, "none", 200, 0.4).set_index("metric")
    assert set(mine["reader"]) == {"simulated-erring"}
    for name in ("estimate", "low", "high"):
        assert mine[name].to_dict() == pytest.approx(expected[name].to_dict())
    flips = exposure.sign_flip(own.outcomes).set_index("metric")["p_value"]
    assert mine["p_value"].to_dict() == pytest.approx(flips.to_dict())
    # The run record holds the reader's own numbers too, under names that say so.
    headline = {number["name"]: number for number in run.record["headline"]}
    for name, metric in (("own_gap", "selectivity_gap"), ("own_inadmissible_effect", "relevant_inadmissible")):
        got = [headline[name][end] for end in ("estimate", "low", "high")]
        assert got == pytest.approx(expected.loc[metric, ["estimate", "low", "high"]].tolist())
    assert not [number for number in page.record["headline"] if number["name"].startswith("own_")]
    theirs = table_of(run, "fig-effects")
    assert set(theirs["reader"]) == set(published.table("exposure_outcomes")["reader"])
    # Another level and rule than the paper's must not pass for a difference in the numbers.
    assert "does not use the paper's settings: level 40% instead of 95%" in told(run)["other_settings"]


def test_bad_outcomes_are_refused_before_the_page_runs(own, tmp_path):
    good = pd.read_csv(own.folder / "outcomes.csv")
    cases = {
        "short": (good.iloc[1:], "no outcome \\(1 of 192 units missing\\)"),
        "twice": (pd.concat([good, good.iloc[:1]]), "twice"),
        "empty": (good.iloc[:0], "no rows"),
        "word": (good.replace({"condition": {"allow": "maybe"}}), "condition is 'maybe'"),
        "cell": (good.assign(cell="relevant_admissible"), "cell is 'relevant_admissible'; expected"),
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
