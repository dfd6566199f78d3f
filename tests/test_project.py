"""The project around the code: floors of the package, pins in step, files that tools and people rely on."""

from __future__ import annotations

import ast
import graphlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from companion.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "companion"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: The floors of the package, lowest first. A module may import from its own floor and from lower ones.
FLOORS = [
    {"", "errors", "extras", "paths", "plain_yaml"},
    {"logic", "tables", "cluster"},
    {"labels", "scoring", "bootstrap", "exposure", "disclosure", "fixed_depth", "resamples", "summary"},
    {"retrieval", "corpora", "ledger", "importers"},
    {"stages"},
    {"audit"},
    {"book"},
    {"cli", "__main__"},
]
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names}
CORE = ("logic", "labels", "scoring", "bootstrap", "exposure")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    return {_normal(name): version for name, version in pairs}


def _modules() -> dict[str, Path]:
    """Return every module of the package by its name within it: "" for the package itself, "tables.files", ..."""
    paths = {path.relative_to(PACKAGE).with_suffix(""): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(name.parts).removesuffix("__init__").removesuffix("."): path for name, path in paths.items()}


class _Imports(ast.NodeVisitor):
    """The modules of the package that a module imports, also inside functions; what only types need is left out."""

    def __init__(self, known: set[str]) -> None:
        self.known, self.found, self.outside = known, set(), set()

    def visit_If(self, node):
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Import(self, node):
        for alias in node.names:
            self._add(alias.name)

    def visit_ImportFrom(self, node):
        assert node.level == 0, "relative import"
        below = [f"{node.module}.{alias.name}" for alias in node.names]
        modules = [name for name in below if name.removeprefix("companion.") in self.known]
        for name in modules if len(modules) == len(below) else [node.module, *modules]:
            self._add(name)

    def _add(self, name: str) -> None:
        top, _, rest = name.partition(".")
        if top != "companion":
            self.outside.add(top)
            return
        while rest and rest not in self.known:
            rest = rest.rpartition(".")[0]
        self.found.add(rest)


def _graph() -> dict[str, _Imports]:
    modules = _modules()
    graph = {}
    for name, path in modules.items():
        graph[name] = _Imports(set(modules))
        graph[name].visit(ast.parse(path.read_text(encoding="utf-8")))
    return graph


def _floor(name: str) -> int:
    assert name.partition(".")[0] in FLOOR, f"{name}: on no floor"
    return FLOOR[name.partition(".")[0]]


def test_no_module_imports_from_a_higher_floor():
    wrong = [
        f"{name} imports {other}"
        for name, imports in _graph().items()
        for other in imports.found
        if _floor(other) > _floor(name) and (name, other) != ("", "ledger")  # loaded when first named
    ]
    assert wrong == []


def test_no_two_modules_need_each_other():
    graph = {name: imports.found - {"", name} for name, imports in _graph().items() if name}
    graphlib.TopologicalSorter(graph).prepare()


LINES = {name: path.read_text(encoding="utf-8").count("\n") for name, path in _modules().items()}


def test_the_core_stays_small():
    assert sum(LINES[name] for name in CORE) <= 1_500


def test_the_house_does_not_grow():
    # 16,500 is the aim. What stands here is what has been reached: it may only be made smaller.
    assert sum(LINES.values()) <= 27_400
    assert {name: count for name, count in LINES.items() if count > 400} == {}


def test_the_core_reads_and_writes_nothing():
    for name in CORE:
        imports = _graph()[name]
        assert not imports.outside & {"os", "pathlib", "io", "sys", "subprocess", "pyarrow"}, name
        calls = [node.func for node in ast.walk(ast.parse(_modules()[name].read_text())) if isinstance(node, ast.Call)]
        assert not [call.id for call in calls if isinstance(call, ast.Name) and call.id in ("open", "print")], name


def test_every_import_is_declared():
    """What a module imports comes from the standard library, the base installation, or an extra that is named."""
    named = {
        "PIL": "pillow",
        "bs4": "beautifulsoup4",
        "faiss": "faiss-cpu",
        "yaml": "pyyaml",
        "sklearn": "scikit-learn",
    }
    named |= {"vl_convert": "vl-convert-python", "IPython": "ipython", "markdown_it": "markdown-it-py"}
    extras = PROJECT["optional-dependencies"]
    base = {_normal(Requirement(item).name) for item in PROJECT["dependencies"]}
    brought = {
        _normal(Requirement(item).name): extra
        for extra, items in extras.items()
        if extra not in ("dev", "all")
        for item in items
    }
    wrong = []
    for name, imports in _graph().items():
        for module in sorted(imports.outside - sys.stdlib_module_names - {"__future__"}):
            package = _normal(named.get(module, module))
            if package not in base and (brought.get(package) is None or EXTRAS.get(module) != brought[package]):
                wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_every_dependency_is_pinned_within_its_range():
    pins = _pins()
    listed = [
        *PROJECT["dependencies"],
        *(item for extra in PROJECT["optional-dependencies"].values() for item in extra),
    ]
    wrong = []
    for text in listed:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:  # its own extras
            continue
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
    assert pip == ["--constraint constraints.txt", "--editable .[all]"]


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
