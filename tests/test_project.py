"""The project around the code: floors of the package, pins in step, files that tools and people rely on."""

from __future__ import annotations

import ast
import graphlib
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "companion"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: The floors of the package, lowest first. A module may import from its own floor and from lower ones.
FLOORS = [
    {"errors"},
    {"logic", "bootstrap", "paths"},
    {"tables"},
    {"scoring", "exposure", "verification", "corruption", "agreement", "ledger", "disclosure"},
    {"retrieval"},
    {"corpora"},
    {"studies"},
    {"figures", "parameters"},
    {"runs", "book"},
    {"cli"},
]
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    return {_normal(name): version for name, version in pairs}


def _imports(path: Path) -> set[str]:
    """Return the top-level parts of the package that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            parts = node.module.split(".")
            if parts == ["companion"]:
                found |= {alias.name for alias in node.names}
            elif parts[0] == "companion":
                found.add(parts[1])
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("companion.") and alias.name.count(".")
            }
    return found


def _graph() -> dict[str, set[str]]:
    modules = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir() if path.name[0] not in "_."}
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if top != "__init__":
            graph.setdefault(top, set()).update((_imports(path) & modules) - {top})
    return graph


def test_lower_floors_never_import_higher_ones():
    graph = _graph()
    assert FLOOR.keys() <= graph.keys(), "the map of floors names a module that is gone"
    wrong = [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if module in FLOOR and other in FLOOR and FLOOR[other] > FLOOR[module]
    ]
    assert wrong == []


def test_no_two_parts_of_the_package_need_each_other():
    # Whatever is not on the map of floors must at least find a place between them.
    graphlib.TopologicalSorter(_graph()).prepare()


def test_every_dependency_is_pinned_within_its_range():
    pins = _pins()
    listed = [
        *PROJECT["dependencies"],
        *(item for extra in PROJECT["optional-dependencies"].values() for item in extra),
    ]
    wrong = []
    for text in listed:
        requirement = Requirement(text)
        version = pins.get(_normal(requirement.name))
        if version is None:
            wrong.append(f"{requirement.name} has no pin")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is pinned to {version}, outside {requirement.specifier}")
    assert wrong == []


def test_the_conda_environment_is_in_step_with_the_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    pins, wrong = _pins(), []
    assert environment["channels"] == ["conda-forge"]
    packages = [item for item in environment["dependencies"] if isinstance(item, str)]
    for item in packages:
        name, _, version = item.partition("=")
        pin = pins.get({"pytorch-cpu": "torch"}.get(name, name))
        if pin and version != pin:
            wrong.append(f"{name}: {version} in environment.yml, {pin} in constraints.txt")
    assert wrong == []
    assert any(item.startswith("pytorch-cpu=") for item in packages)
    python = next(item for item in packages if item.startswith("python=")).partition("=")[2]
    assert python in PROJECT["requires-python"] or python == "3.11"
    pip = next(item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    assert pip == ["--constraint constraints.txt", "--editable ."]


def test_the_citation_names_companion_and_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["title"]
    assert "2610.07309" in str(citation)


@pytest.mark.parametrize("path", [".github/workflows/book.yml", ".pre-commit-config.yaml", "_config.yml", "_toc.yml"])
def test_settings_are_valid_yaml(path):
    assert isinstance(yaml.safe_load((ROOT / path).read_text(encoding="utf-8")), dict)


def test_the_workflow_runs_the_same_commands_as_the_readme():
    workflow = yaml.safe_load((ROOT / ".github/workflows/book.yml").read_text(encoding="utf-8"))
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    uses = [step.get("uses", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert "make test" in steps
    assert "make book" in steps
    assert any(name.startswith("actions/deploy-pages@") for name in uses)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_every_target():
    # The suite itself may run under make, whose flags would make the inner one talk about directories.
    command = ["make", "--no-print-directory", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)[0].split()
    assert [line.split()[1] for line in done.stdout.splitlines()] == targets


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_refuses_an_unsupported_python_in_words(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(["make", "setup", "PYTHON="], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "make PYTHON=/path/to/python" in done.stdout + done.stderr
    assert not (tmp_path / ".venv").exists()


def test_scripts_are_executable_and_valid():
    for name in (".ci/run", "postBuild"):
        path = ROOT / name
        assert path.stat().st_mode & 0o111, name
        subprocess.run(["bash", "-n", str(path)], check=True)


def test_the_repository_address_is_set_in_one_place():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert set(config["repository"]) == {"url", "branch"}
    options = config["sphinx"]["config"]["html_theme_options"]
    assert not {"repository_url", "launch_buttons", "use_repository_button"} & set(options)
