"""Ranges of parameters: declared once, asked before a kernel starts, and asked again by every chapter."""

from __future__ import annotations

import re

import papermill
import pytest
from typer.testing import CliRunner

from companion.book import parameters, runs, sweep
from companion.cli import app
from companion.errors import InputError

CHAPTERS = runs.chapter_paths()


@pytest.fixture
def no_kernel(monkeypatch):
    def started(*args, **kwargs):
        raise AssertionError("a kernel was started")

    monkeypatch.setattr(papermill, "execute_notebook", started)


def test_the_table_knows_every_parameter_of_every_chapter_and_no_other():
    declared = {path.stem: {item.name for item in runs.declared_parameters(path)} for path in CHAPTERS}
    assert set().union(*declared.values()) <= set(parameters.NAMES)
    for stem, names in parameters.CHAPTERS.items():
        assert set(names) <= declared[stem]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_every_chapter_asks_the_table_first_and_its_defaults_pass(chapter):
    cells = [cell for cell in runs.read_notebook(chapter).cells if cell.cell_type == "code"]
    place = next(n for n, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", []))
    assert f'chapter("{chapter.stem}", globals())' in cells[place + 1].source
    assert runs.checked_parameters(chapter, {}) == {}


BAD = [
    ("00-front", "top_k", 101, "at most 100, the depth to which these arms of rhelm are kept"),
    ("01-admissibility", "top_k", 0, "a whole number from 1"),
    ("01-admissibility", "arms", ["global_dense"], "a list of at least 2"),
    ("01-admissibility", "arms", ["global_dense", "global_dense"], "every item once"),
    ("01-admissibility", "hidden_rates", [0.1, 1.5], "at least 0 and at most 1, which 1.5 is not"),
    ("01-admissibility", "hidden_rates", [], "a list of at least 1"),
    ("01-admissibility", "query", "nope", "the query_id of an evaluation query of demo"),
    ("01-admissibility", "corpus", "nope", "one of demo, gatemem, memops, rhelm"),
    ("02-support", "target_recall", 2.0, "a number above 0 and at most 1"),
    ("02-support", "target_recall", 0.0, "a number above 0 and at most 1"),
    ("02-support", "infeasibility_cost", -0.5, "a number of at least 0"),
    ("02-support", "replicates", 0, "a whole number from 1 to 1,000,000"),
    ("02-support", "confidence", 1.0, "a number above 0 and below 1"),
    ("02-support", "seed", -1, "a whole number from 0"),
    ("02-support", "arms", ["nope", "namespace_dense"], "which 'nope' is not"),
    ("02-support", "arms", ["global_dense", "global_bm25"], "namespace_dense among them"),
    ("02-support", "reference", "nope", "one of global_dense"),
    ("02-support", "reference", "namespace_dense", "one of global_dense"),
    ("02-support", "frozen", "nope", "one of gatemem, rhelm"),
    ("02-support", "others", ["nope"], "which 'nope' is not"),
    ("02-support", "depths", [5, 101], "which 101 is not"),
    ("02-support", "targets", [0.0], "which 0.0 is not"),
    ("03-verification", "verifier", "nope", "keep_all, deny_all, released_metadata, text_pairs or a file"),
    ("03-verification", "verifier", "no/such/file.csv", "expected a file that can be read"),
    ("03-verification", "rates", [1.1], "which 1.1 is not"),
    ("03-verification", "seeds", 0, "a whole number from 1"),
    ("03-verification", "kept", ["nope"], "which 'nope' is not"),
    ("04-exposure", "stratify", "nope", "one of axis, none"),
    ("04-exposure", "outcomes", "no/such/file.csv", "expected a file that can be read"),
    ("04-exposure", "top_k", 21, "at most 20, the depth to which these arms of rhelm, gatemem are kept"),
    ("05-readers", "evidence", "no/such/folder", "a folder that holds"),
    ("05-readers", "gates", ["nope"], "one of scope, policy, lifecycle, which 'nope' is not"),
    ("06-audit", "records", "nope", "a folder of tables that exists, or empty for the example"),
    ("06-audit", "labels_shown", 0, "a whole number from 1"),
    ("07-claims", "simulations", 0, "a whole number from 1"),
]


@pytest.mark.parametrize(("stem", "name", "value", "expected"), BAD, ids=lambda item: str(item)[:30])
def test_values_out_of_range_are_refused_before_a_kernel_starts(stem, name, value, expected, tmp_path, no_kernel):
    with pytest.raises(InputError) as caught:
        runs.execute(stem, {name: value}, tmp_path / "out" / "x.ipynb", progress=False)
    said = str(caught.value)
    assert said.startswith(f"{stem}, parameter {name}: ")
    assert expected in said
    assert not (tmp_path / "out").exists()


def test_depth_depends_on_the_arms_and_an_arm_that_is_whole_has_none():
    chapter = runs.find_notebook("02")
    assert runs.checked_parameters(chapter, {"top_k": 100})["top_k"] == 100
    two = ["global_dense", "namespace_dense"]
    shallow = {"frozen": "gatemem", "top_k": 50, "depths": [20], "arms": [*two, "global_bm25"]}
    with pytest.raises(InputError, match="at most 20"):  # global_bm25 is kept to 20 there
        runs.checked_parameters(chapter, shallow)
    assert runs.checked_parameters(chapter, {**shallow, "arms": two})["top_k"] == 50
    beside = {"arms": ["global_bm25", "namespace_dense"], "reference": "global_bm25", "top_k": 50}
    with pytest.raises(InputError, match="at most 20, the depth to which these arms of gatemem are kept"):
        runs.checked_parameters(chapter, beside)
    assert runs.checked_parameters(chapter, {**beside, "others": []})["top_k"] == 50
    # After a filter at 20 no route is longer, so a larger depth cuts nothing off.
    assert runs.checked_parameters(chapter, {"top_k": 50, "arms": [*two, "global_post_filter_20"]})["top_k"] == 50


def test_the_command_refuses_in_one_line_without_a_progress_bar(tmp_path, no_kernel):
    for pair in [("top_k", "0"), ("target_recall", "2"), ("confidence", "2"), ("reference", "nope")]:
        done = CliRunner().invoke(app, ["rerun", "02-support", "-p", *pair, "--out", str(tmp_path / "out")])
        assert isinstance(done.exception, InputError)
        assert "\n" not in str(done.exception)
        assert done.output == ""
    assert not (tmp_path / "out").exists()


def test_a_chapter_asks_again_where_nobody_asked_before():
    everything = {item.name: item.default for item in runs.declared_parameters(runs.find_notebook("02"))}
    parameters.check("02-support", {**everything, "unrelated": object()})
    with pytest.raises(InputError, match=r"02-support, parameter top_k: '5'; expected a whole number"):
        parameters.check("02-support", {**everything, "top_k": "5"})  # plain papermill passes text on


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grid: {top_k: [5, 0]}", "grid.yaml, grid: 02-support, parameter top_k: 0; expected a whole number"),
        ("runs: [{top_k: 5}, {target_recall: 1.5}]", "grid.yaml, run 2: 02-support, parameter target_recall: 1.5"),
        ("parameters: {reference: nope}", "parameter reference: 'nope'"),
        # Each value is possible, the combination is not.
        ("parameters: {depths: [20], arms: [global_dense, namespace_dense, global_bm25]}\n"
         "grid: {frozen: [rhelm, gatemem], top_k: [20, 50]}", "parameter top_k: 50; expected at most 20"),
    ],
)  # fmt: skip
def test_a_sweep_refuses_a_bad_point_before_it_starts_anything(tmp_path, no_kernel, text, said):
    plan = tmp_path / "grid.yaml"
    plan.write_text(f"notebook: 02-support\n{text}\n")
    done = CliRunner().invoke(app, ["sweep", str(plan), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_files_that_a_sweep_names_are_looked_up_beside_the_plan_and_then_here(tmp_path, monkeypatch):
    (tmp_path / "plans").mkdir()
    (tmp_path / "demo").mkdir()
    outcomes = runs.project_root() / "data" / "published" / "exposure_outcomes.csv"
    for place in (tmp_path / "plans" / "beside.csv", tmp_path / "here.csv"):
        place.write_bytes(outcomes.read_bytes())
    plan = tmp_path / "plans" / "grid.yaml"
    plan.write_text("notebook: 04-exposure\ngrid: {outcomes: [beside.csv, here.csv]}\n")
    monkeypatch.chdir(tmp_path)
    found = [run.values["outcomes"] for run in sweep.read_plan(plan).runs]
    assert found == [str(tmp_path / "plans" / "beside.csv"), str(tmp_path / "here.csv")]


def test_only_a_parameter_that_may_be_a_folder_becomes_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "axis").write_text("")
    assert runs.parse_pairs([("corpus", "demo"), ("evidence", "demo"), ("stratify", "axis")]) == {
        "corpus": "demo",
        "evidence": str(tmp_path / "demo"),
        "stratify": "axis",
    }


def test_a_notebook_of_ones_own_checks_its_own_values(tmp_path):
    copy = tmp_path / "02-support.md"
    copy.write_text(re.sub(r"^top_k = 20$", "top_k = 0", runs.find_notebook("02").read_text(), flags=re.M))
    assert runs.checked_parameters(copy, {"target_recall": 7.0}) == {"target_recall": 7.0}
