"""The wheel works without a checkout; help starts at once; a missing extra is one line that names it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from _site import ROOT, once, shared_folder

from companion.extras import EXTRAS

sys.path.insert(0, str(ROOT / "benchmarks"))
from fuzz import TABLES


def command(
    *words: str, cwd: Path, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMPANION_", "PYTHONPATH"))}
    return subprocess.run(
        [python, *words], cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> str:
    """An interpreter that has the wheel, beside everything that this environment has but the checkout."""

    def make(folder: Path) -> None:
        folder.mkdir()
        build = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            str(ROOT),
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(folder),
        ]
        subprocess.run(build, check=True, capture_output=True)
        venv.create(folder / "venv", with_pip=False)
        packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(packages)
        # Behind the wheel: the first place that holds a package wins.
        (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))

    folder = once(shared_folder(tmp_path_factory), "wheel", make)
    return str(folder / "venv" / "bin" / "python")


def test_the_wheel_holds_what_commands_need(installed):
    with zipfile.ZipFile(next(Path(installed).parents[2].glob("*.whl"))) as wheel:
        names = wheel.namelist()
        size = sum(item.compress_size for item in wheel.infolist())
    for name in ("data/published/figures.csv", "notebooks/02-support.md", "book/methods.md", "_toc.yml"):
        assert f"companion/_project/{name}" in names
    assert "companion/py.typed" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests", "tools"))]
    assert size < 20_000_000


EXAMPLE = "from companion.paths import data_dir; print(data_dir() / 'example')"
CALLS = {
    "--version": "companion 0.1.0",
    "corpora": "demo",
    "validate EXAMPLE": "",
    "exposure EXAMPLE/../published/exposure_outcomes.csv --replicates 200": "selectivity",
    "reproduce --stage verification --replicates 200": "recomputed",
    "audit EXAMPLE --out report.html --replicates 200": "report.html",
    "trace --records EXAMPLE --query q1": "",
    "rank demo --list-arms": "namespace_dense",
    "partition EXAMPLE --out parts": "parts",
    "expose --reader simulated-perfect --requests-only --out run": "",
    "rerun 02-support -p top_k 0 --out runs": "",
    "book -p nope 1": "",
}


@pytest.mark.slow
def test_every_command_works_from_an_empty_folder(installed, tmp_path):
    where = command("-c", EXAMPLE, cwd=tmp_path, python=installed).stdout.strip()
    assert Path(where).is_relative_to(Path(installed).parents[1]), "the checkout was used"
    for call, said in CALLS.items():
        words = call.replace("EXAMPLE", where).split()
        done = command("-m", "companion", *words, cwd=tmp_path, python=installed)
        expected = {2} if "nope" in call or "top_k 0" in call else {1} if words[0] == "trace" else {0}
        assert done.returncode in expected | ({0, 1, 2} if words[0] in ("trace", "validate") else set()), (call, done)
        assert said in done.stdout, (call, done)
        assert "not a checkout" not in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.notebook
def test_a_chapter_runs_from_the_wheel(installed, tmp_path):
    words = ["-m", "companion", "rerun", "10-limits", "-p", "replicates", "200", "--out", "runs", "--no-html"]
    done = command(*words, cwd=tmp_path, python=installed)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "10-limits.ipynb").is_file()


def test_help_loads_nothing_heavy_and_starts_as_typer_does(tmp_path):
    code = "import sys; sys.argv = ['companion', '--help']\nfrom companion.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    print(*sorted(sys.modules), file=sys.stderr)"
    done = command("-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT / "src"))
    assert "score-parts" in done.stdout
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    heavy = {"pandas", "numpy", "pyarrow", "scipy", "sklearn", "torch", "yaml", "altair", "papermill", "dask", "sphinx"}
    assert loaded & (heavy | set(EXTRAS) | {"rich"}) == set()
    assert len(loaded - sys.stdlib_module_names) < 12


# A module that the finder hides is as absent as one that was never installed.
HIDE = """import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
from companion.cli import main
main()"""


def hidden(words: str, names: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return command("-c", HIDE.format(names=names), *words.split(), cwd=cwd, PYTHONPATH=str(ROOT / "src"))


def test_the_base_installation_is_enough_for_ones_own_records(tmp_path):
    for name, text in TABLES.items():
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.csv").write_text(text)
    for words in (
        "validate in",
        f"audit {ROOT}/data/example --out report.html --replicates 200",
        f"score {' '.join(f'--{name} in/{name}.csv' for name in TABLES)} --replicates 200",
        f"exposure {ROOT}/data/published/exposure_outcomes.csv --replicates 200",
        "partition in --out parts",
        "score-parts parts --replicates 200",
        "trace --records in --query q1",
        "reproduce --replicates 200",
        "corpora",
    ):
        done = hidden(words, list(EXTRAS), tmp_path)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("papermill", "rerun 02-support --out runs", "book"),
        ("jupytext", "rerun 02-support --out runs", "book"),
        ("bm25s", "rank demo --arm global_bm25 --out r.csv", "encode"),
        ("faiss", "rank demo --arm global_dense --out r.csv", "encode"),
        ("openai", "expose --reader openai:x --out run", "llm"),
        ("distributed", "score-parts PARTS --jobs 2", "cluster"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(tmp_path, monkeypatch, module, words, extra):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    if "PARTS" in words:
        assert hidden(f"partition {ROOT}/data/example --out PARTS", [], tmp_path).returncode == 0
    done = hidden(words, [module], tmp_path)
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert f"admissibility-companion[{extra}]" in done.stderr
