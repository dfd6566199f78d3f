"""Reruns: parameters are checked first, numbers repeat bit for bit, pages stand alone, failures leave no output."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from _site import ROOT, Visit, open_browser
from bs4 import BeautifulSoup

import companion
from companion.book import runs
from companion.book.kernel import Parameter
from companion.errors import InputError
from companion.paths import only_writer

SPECIMEN = ROOT / "tests" / "specimens" / "01-specimen.md"
DECLARED = [
    Parameter("top_k", 20),
    Parameter("target_recall", 0.8),
    Parameter("corpus", "demo"),
    Parameter("arms", ["a", "b"]),
    Parameter("live", False),
    Parameter("query", None),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return runs.execute(SPECIMEN, {"upper": 1, "feasible": [0.5, 0.5]}, folder / "out.ipynb", progress=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 30),
        ("0.9", 0.9),
        ("1e-3", 0.001),
        ("true", True),
        ("null", None),
        ("[a, b]", ["a", "b"]),
        ("demo", "demo"),
        ("'07'", "07"),
        ("'1e3'", "1e3"),
        ("nan", "nan"),
        ("-1E+2", -100.0),
        ("1.5e3", 1500.0),
        ("a: 1", {"a": 1}),
        ("", ""),
    ],
)
def test_values_are_read_as_yaml(text, value):
    read = runs.parse_value(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("top_k", 5, 5),
        ("target_recall", 1, 1.0),
        ("corpus", "rhelm", "rhelm"),
        ("arms", ["c"], ["c"]),
        ("arms", [], []),
        ("live", True, True),
        ("query", "q1", "q1"),
    ],
)
def test_values_of_the_right_type_are_kept(name, given, kept):
    checked = runs.check_parameters(DECLARED, {name: given})
    assert checked == {name: kept}
    assert type(checked[name]) is type(kept)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("nope", 1, "no parameter 'nope': expected one of top_k, target_recall"),
        ("top_k", 1.5, "1.5 is float, expected int"),
        ("top_k", True, "True is bool, expected int"),
        ("live", 1, "1 is int, expected bool"),
        ("corpus", 7, "write \"'7'\" for text"),
        ("arms", "a", "expected list"),
        ("arms", ["a", 3], "item 2: 3 is int, expected str"),
        ("target_recall", float("nan"), "not a finite number"),
        ("top_k", None, "expected int"),
    ],
)
def test_wrong_names_and_types_are_refused(name, given, said):
    with pytest.raises(InputError) as caught:
        runs.check_parameters(DECLARED, {name: given}, "02-support")
    assert said in str(caught.value)
    assert "02-support" in str(caught.value)


# Each of these once ended in a traceback, in a hang or in half of the memory.
HOSTILE = {
    "no such day": "2026-13-45",
    "no number": "!!int abc",
    "no truth": "!!bool maybe",
    "no time": "!!timestamp x",
    "no float": "!!float x",
    "no object": "!!python/object/apply:os.getcwd []",
    "digits": "9" * 5000,
    "depth": "[" * 600,
    "closed depth": "[" * 60 + "]" * 60,
    "aliases": "[&a [x, x], *a]",
    "bomb": "{a: &a [x, x], b: &b [*a, *a], c: [*b, *b]}",
    "nodes": f"[{','.join('1' * 60_000)}, {','.join('1' * 60_000)}]",
    "length": "x" * 1_000_001,
    "twice": "{a: 1, a: 2}",
    "unhashable": "{[a]: 1}",
    "control": "a\x07",
    "merge": "{<<: 1}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_values_that_are_no_values_are_refused_in_one_line(text):
    with pytest.raises(InputError, match="parameter value") as caught:
        runs.parse_value(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_impossible_file_names_are_only_text():
    for name in ("x" * 300, "a\x00b", "~" * 5000):
        assert runs.located("corpus", name) == name
        assert runs.located("outcomes", name) == name
        with pytest.raises(InputError):
            runs.find_notebook(name)
        with pytest.raises(InputError):
            runs.find_notebook(f"{name}.md")


def test_pairs_refuse_a_name_given_twice():
    assert runs.parse_pairs([("a", "1"), ("b", "x")]) == {"a": 1, "b": "x"}
    with pytest.raises(InputError, match="'a' is given twice"):
        runs.parse_pairs([("a", "1"), ("a", "2")])


def test_chapters_are_found_by_name_number_and_path():
    chapters = runs.chapter_paths()
    for chapter in chapters:
        number = chapter.stem.split("-")[0]
        assert runs.find_notebook(chapter.stem) == chapter
        assert runs.find_notebook(number) == chapter
        assert runs.find_notebook(str(int(number))) == chapter
    assert runs.find_notebook(SPECIMEN) == SPECIMEN
    for name in ("99", "support", "nowhere.md", "../x"):
        with pytest.raises(InputError):
            runs.find_notebook(name)


def test_every_chapter_declares_parameters_as_literals():
    for chapter in runs.chapter_paths():
        assert runs.declared_parameters(chapter), chapter.name


@pytest.mark.notebook
def test_a_run_writes_notebook_page_and_record(run):
    record = json.loads(run.notebook.with_suffix(".json").read_text())
    assert record == run.record
    assert record["parameters"]["upper"] == 1.0
    assert record["changed"] == ["feasible", "upper"]
    assert record["seed"] == 0
    assert record["data"] == runs.data_hashes()
    number = {"name": "recall", "estimate": 0.5, "low": 0.5, "high": 0.75, "text": "0.500 [0.500, 0.750]"}
    assert record["headline"][0] == number
    assert set(record["modules"]) >= {"book/notebook.py", "errors.py"}
    assert not [name for name in record["modules"] if name.startswith(("cli/", "audit/"))]
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {path.name for path in run.notebook.parent.iterdir()} == {"out.ipynb", "out.json", "out.html"}
    node = nbformat.read(run.notebook, as_version=4)
    nbformat.validate(node)
    prose = [cell.source for cell in node.cells if cell.cell_type == "markdown"]
    assert "Recall is 0.500 [0.500, 0.750], as" in prose[-1]  # for Jupyter, which knows no glue
    assert "companion" not in node.cells[-1].get("source", "") and "_sys" not in str(node.cells)


@pytest.mark.notebook
def test_the_chapter_ran_in_this_interpreter_whatever_the_users_kernel_is(run, tmp_path, monkeypatch):
    names = {item["name"]: item["estimate"] for item in run.record["headline"]}
    assert names["interpreter"] == sys.executable
    # A kernel called python3 in the user's own folder would win without our care.
    kernel = tmp_path / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "x", "language": "python"}))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    again = runs.execute(SPECIMEN, {}, tmp_path / "o" / "x.ipynb", progress=False, html=False)
    assert {item["name"]: item["estimate"] for item in again.record["headline"]}["interpreter"] == sys.executable


@pytest.mark.notebook
def test_the_same_inputs_give_the_same_bytes(run, tmp_path):
    again = runs.execute(SPECIMEN, {"upper": 1, "feasible": [0.5, 0.5]}, tmp_path / "out.ipynb", progress=False)
    assert again.notebook.read_bytes() == run.notebook.read_bytes()
    assert again.html.read_bytes() == run.html.read_bytes()


@pytest.mark.notebook
def test_the_page_says_what_was_changed_and_reads_like_the_book(run):
    page = BeautifulSoup(run.html.read_text(encoding="utf-8"), "html.parser")
    banner = page.select_one(".companion-banner")
    assert "upper = 1.0 (default 0.5)" in " ".join(banner.text.split())
    # Its numbers, beside the defaults: the specimen is no chapter of the book and has none on file.
    assert [cell.text for cell in banner.select("tbody tr:first-child > *")] == ["recall", "–", "0.500 [0.500, 0.750]"]
    assert page.h1.text.startswith("Specimen")
    assert "Recall is 0.500 [0.500, 0.750]" in page.text  # glued numbers are there
    assert "arXiv:2610.07309" in page.text  # and so is the citation
    outside = [tag for tag in page.select("script[src], link[href], img[src]") if "data:" not in str(tag.get("src"))]
    assert outside == []
    # Other pages of the book are not here: what linked to them is text. What is here is linked.
    assert "the data and the start" in " ".join(page.text.split())
    ids = {tag["id"] for tag in page.select("[id]")}
    links = [link["href"] for link in page.select("a[href]")]
    assert "#specimen" in links
    assert [link for link in links if not link.startswith(("http", "data:")) and link.lstrip("#") not in ids] == []


@pytest.mark.notebook
def test_a_run_with_the_defaults_has_no_banner_and_its_numbers_stand_beside_those_of_other_runs(tmp_path, monkeypatch):
    plain = runs.execute(SPECIMEN, {}, tmp_path / "plain.ipynb", progress=False, html=False)
    assert "companion-banner" not in plain.notebook.read_text()
    monkeypatch.setattr(runs, "default_headlines", lambda: {"01-specimen": plain.record["headline"]})
    other = runs.execute(SPECIMEN, {"upper": 0.25}, tmp_path / "other.ipynb", progress=False, html=False)
    cells = nbformat.read(other.notebook, as_version=4).cells
    shown, cell = next(
        (out.data["text/html"], c) for c in cells for out in c.get("outputs", []) if "banner" in str(out)
    )
    first = BeautifulSoup(shown, "html.parser").select("tbody tr:first-child > *")
    assert [part.text for part in first] == ["recall", "0.500 [0.250, 0.750]", "0.500 [0.125, 0.750]"]
    assert not {"remove-cell", "remove-output"} & set(cell.metadata.tags)  # nothing hides it


@pytest.mark.skipif(not runs.default_headlines(), reason="no book was built with the defaults yet")
def test_default_numbers_are_on_file_for_every_chapter_that_has_headlines():
    """What the last build of the book found; the build itself keeps the file up to date."""
    kept = runs.default_headlines()
    for chapter in runs.chapter_paths():
        numbers = kept.get(chapter.stem, [])
        assert numbers or "headline=True" not in chapter.read_text(encoding="utf-8"), f"{chapter.stem}: companion book"
        assert all(item["name"] and item["text"] for item in numbers)


@pytest.mark.browser
@pytest.mark.notebook
def test_the_page_stands_alone_in_a_browser(run, tmp_path):
    alone = tmp_path / "page.html"
    alone.write_bytes(run.html.read_bytes())
    with open_browser() as browser:
        for width in (390, 1440):
            with Visit(browser, alone, width=width, mode="dark") as visit:
                assert visit.errors == []
                assert visit.requests == []
                assert visit.page.locator("figure.companion-drawn svg").count() >= 2
                assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
                assert visit.page.locator("mjx-container svg").count() >= 1


@pytest.mark.notebook
@pytest.mark.parametrize(("fail", "error"), [("input", InputError), ("bug", runs.RunError)])
def test_a_failing_chapter_leaves_no_output_but_is_kept_for_reading(tmp_path, fail, error):
    with pytest.raises(error, match="fail: expected something else" if fail == "input" else "a bug in the chapter"):
        runs.execute(SPECIMEN, {"fail": fail}, tmp_path / "out.ipynb", progress=False)
    kept = ["out.failed.ipynb"] if fail == "bug" else []  # a value that cannot be used needs no notebook to see why
    assert [path.name for path in tmp_path.iterdir()] == kept
    runs.execute(SPECIMEN, {}, tmp_path / "out.ipynb", progress=False, html=False)
    # What is left of the failure would seem to belong to the run that succeeded.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.ipynb", "out.json"]


def test_of_two_writers_one_wins(tmp_path):
    with only_writer(tmp_path / "out.ipynb"), pytest.raises(InputError, match="another process writes here"):
        runs.execute(SPECIMEN, {}, tmp_path / "out.ipynb", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_new_files_never_stand_beside_old_ones(tmp_path, monkeypatch):
    """Stop at every step of putting a run in place: what is there is all old, all new, or part of the new."""
    for name in ("write_text", "unlink", "replace"):
        for stop_at in range(1, 5):
            folder = tmp_path / f"{name}{stop_at}"
            (folder / "stage").mkdir(parents=True)
            for suffix in (".ipynb", ".html", ".json"):
                (folder / f"x{suffix}").write_text("old")
            calls, real = itertools.count(1), getattr(Path, name)

            def stopping(self, *args, calls=calls, real=real, stop_at=stop_at, **more):
                if next(calls) == stop_at:
                    raise KeyboardInterrupt
                return real(self, *args, **more)

            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(Path, name, stopping)
                made = dict.fromkeys((".ipynb", ".json", ".html"), "new")
                runs._place(made, folder / "x.ipynb", folder / "stage")
            assert len({path.read_text() for path in folder.glob("x.*")}) <= 1


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from companion.cli import main; main()", *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("-p", "nope", "1"),
        ("-p", "upper", "x"),
        ("-p", "upper"),
        ("-p", "upper", "1", "-p", "upper", "2"),
        ("-p", "feasible", "[1, a"),
        ("-p", "uper", "0.25"),
        ("-p", "upper", "9" * 5000),
        ("-p", "upper", "2026-13-45"),
    ],
)
def test_the_command_refuses_bad_parameters_in_one_line(tmp_path, words):
    done = command("rerun", str(SPECIMEN), "--out", str(tmp_path / "out"), *words)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("companion: ")
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_a_file_for_a_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    done = command("rerun", str(SPECIMEN), "--out", str(file))
    assert (done.returncode, file.read_text()) == (2, "x")
    assert "expected a folder" in done.stderr


@pytest.mark.notebook
def test_the_command_runs_a_chapter(tmp_path):
    done = command("rerun", str(SPECIMEN), "-p", "upper", "0.25", "--no-html", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"]["upper"] == 0.25
    assert {path.name for path in tmp_path.iterdir()} == {"01-specimen.ipynb", "01-specimen.json"}


@pytest.mark.notebook
def test_plain_papermill_runs_a_chapter_as_documented(tmp_path):
    out = tmp_path / "out.ipynb"
    text = subprocess.run(
        [sys.executable, "-m", "jupytext", "--to", "ipynb", "-o", "-", str(SPECIMEN)],
        capture_output=True,
        check=True,
    ).stdout
    done = subprocess.run(
        [sys.executable, "-m", "papermill", "-", str(out), "-p", "upper", "0.25", "--cwd", str(SPECIMEN.parent)],
        input=text,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    node = nbformat.read(out, as_version=4)
    outputs = [output for cell in node.cells for output in cell.get("outputs", [])]
    html = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    assert "1 changed from the default" in html
    # A misspelt name, too: papermill itself only warns.
    done = subprocess.run(
        [sys.executable, "-m", "papermill", "-", str(out), "-p", "uper", "0.25", "--cwd", str(SPECIMEN.parent)],
        input=text,
        capture_output=True,
        check=False,
    )
    assert "no parameter 'uper'" in done.stderr.decode()


def test_the_fingerprint_covers_code_and_data(tmp_path, monkeypatch):
    assert "published/figures.csv" in runs.data_hashes()
    assert {"logic.py", "book/runs.py"} <= set(runs.source_hashes())
    monkeypatch.setattr(companion, "__file__", str(tmp_path / "__init__.py"))
    seen = set()
    for text, data in (("x = 1", "1"), ("x = 2", "1"), ("x = 2", "2")):
        (tmp_path / "module.py").write_text(text)
        monkeypatch.setattr(runs, "data_hashes", lambda data=data: {"a.csv": data, "README.md": str(len(seen))})
        for _ in range(2):
            runs.source_hashes.cache_clear()
            runs.surroundings.cache_clear()
            seen.add(runs.fingerprint())
    assert len(seen) == 3
    monkeypatch.undo()
    runs.source_hashes.cache_clear()
    runs.surroundings.cache_clear()


def test_a_file_named_on_the_command_line_is_found_from_where_it_was_named(tmp_path, monkeypatch):
    (tmp_path / "mine.csv").write_text("x")
    monkeypatch.chdir(tmp_path)
    values = runs.parse_pairs([("outcomes", "mine.csv"), ("corpus", "demo"), ("query", ""), ("top_k", "5")])
    assert values == {"outcomes": str(tmp_path / "mine.csv"), "corpus": "demo", "query": "", "top_k": 5}
