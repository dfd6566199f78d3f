"""Run chapters with other parameters.

A chapter is a Jupytext notebook with a cell tagged ``parameters``. Running one gives an executed notebook, a
standalone page, and a run record: what was asked, on what code and data, and the headline numbers that came out.
Outputs carry no time stamps, so the same inputs give the same notebook byte for byte; the record holds the times.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import companion
from companion import extras
from companion.book.chapters import (  # noqa: F401 - what is asked and what is run are one thing to callers
    chapter_paths,
    check_parameters,
    check_ranges,
    checked_parameters,
    declared_parameters,
    find_notebook,
    located,
    notebooks_dir,
    parse_pairs,
    parse_value,
    read_notebook,
)
from companion.book.render import HEADLINE_MIME, NO_STILLS
from companion.errors import InputError
from companion.paths import data_dir, only_writer, project_root

HEADLINES_FILE = "headlines.json"
_RECORD = "application/papermill.record/"
#: Packages whose version can move a number or a picture.
_VERSIONED = (
    "altair bm25s faiss-cpu numpy pandas papermill pyarrow scikit-learn scipy seaborn sentence-transformers torch "
    "vl-convert-python"
)


class RunError(RuntimeError):
    """A chapter failed while it ran; the message holds the chapter, the cell and the traceback."""


@dataclass(frozen=True)
class Run:
    """One finished run of a chapter."""

    notebook: Path
    record: dict[str, Any]
    html: Path | None = None


# --- what a run depends on ---------------------------------------------------------------------------------------


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_of(content: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digest(value: Any) -> str:
    """Return one hash over a value that JSON can hold."""
    return hash_of(json.dumps(value, sort_keys=True, default=str).encode())


def data_hashes() -> dict[str, str]:
    """Return the SHA-256 of every committed data file, by its path under ``data/``."""
    return dict(_hashes_below(data_dir()))


@lru_cache(maxsize=4)
def _hashes_below(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix(): sha256(path) for path in files}


@lru_cache(maxsize=1)
def source_hashes() -> dict[str, str]:
    """Return the SHA-256 of every file of the package."""
    package = Path(companion.__file__).parent
    files = [path for path in sorted(package.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    names = {path: path.relative_to(package).as_posix() for path in files}
    return {name: sha256(path) for path, name in names.items() if not name.startswith("_project/")}


@lru_cache(maxsize=1)
def surroundings() -> str:
    """Return one hash over the data, versions and corpora that are present: what any chapter may depend on."""
    stated, present = os.environ.get("COMPANION_CORPORA", ""), []
    if os.path.isdir(stated):  # noqa: PTH112
        present = sorted(f"{path.name} {path.stat().st_mtime_ns}" for path in Path(stated).iterdir())
    data = {name: made for name, made in data_hashes().items() if not name.endswith(".md")}
    return digest([data, versions(), present])


def fingerprint() -> str:
    """Return one hash over everything but parameters that can change some chapter's outputs."""
    return digest([source_hashes(), surroundings()])


def versions() -> dict[str, str]:
    """Return the versions of Python, the companion, and the packages that compute or draw."""
    found = {"python": platform.python_version(), "companion": companion.__version__}
    for name in _VERSIONED.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def git_commit() -> dict[str, Any] | None:
    """Return the checkout's commit and whether tracked files differ from it, or None outside a repository."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(project_root()), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = bool(git("status", "--porcelain", "--untracked-files=no", "--", "."))
        return {"commit": git("rev-parse", "HEAD"), "changed": changed}
    except (InputError, OSError, subprocess.CalledProcessError):
        return None


# --- a run -------------------------------------------------------------------------------------------------------


def execute(
    notebook: str | os.PathLike[str],
    parameters: Mapping[str, Any],
    out_ipynb: str | os.PathLike[str],
    *,
    progress: bool | Mapping[str, Any] = True,
    html: bool = True,
    stills: bool = True,
    timeout: int = 1800,
) -> Run:
    """Run one chapter with papermill; notebook, page and record appear together at the end, or not at all."""
    source = find_notebook(notebook)
    declared = declared_parameters(source)
    values = checked_parameters(source, parameters)
    target = Path(out_ipynb).absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target.parent}: cannot be made ({error.strerror}); expected a folder to write") from error
    with only_writer(target), tempfile.TemporaryDirectory(prefix=".companion-run-", dir=target.parent) as folder:
        began, started = time.perf_counter(), datetime.datetime.now(datetime.UTC)
        node, modules = _run_papermill(source, values, target, Path(folder), progress, timeout, stills)
        record = {
            "notebook": source.name,
            "notebook_sha256": sha256(source),
            "parameters": {item.name: values.get(item.name, item.default) for item in declared},
            "changed": sorted(item.name for item in declared if values.get(item.name, item.default) != item.default),
            "seed": values.get("seed", next((item.default for item in declared if item.name == "seed"), None)),
            "headline": headlines(node),
            "versions": versions(),
            "data": data_hashes(),
            "modules": {name: source_hashes()[name] for name in modules if name in source_hashes()},
            "git": git_commit(),
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - began, 2),
        }
        _add_headlines(node, source.stem, cast("list[dict[str, Any]]", record["headline"]))
        _resolve(node)
        made = {".ipynb": _notebook_text(node), ".json": json.dumps(record, indent=1, ensure_ascii=False) + "\n"}
        if html:
            made[".html"] = _standalone(node)
        _place(made, target, Path(folder))
    return Run(Path(out_ipynb), record, Path(out_ipynb).with_suffix(".html") if html else None)


def _place(made: Mapping[str, str], target: Path, folder: Path) -> None:
    """Write all files under other names, then move them: a reader never sees new ones beside old ones."""
    for suffix, text in made.items():
        (folder / f"made{suffix}").write_text(text, encoding="utf-8")
    for suffix in (".failed.ipynb", ".html", ".json", ".ipynb"):  # of an earlier attempt
        target.with_suffix(suffix).unlink(missing_ok=True)
    for suffix in made:
        (folder / f"made{suffix}").replace(target.with_suffix(suffix))


# Runs last in every chapter and is then taken away.
_LOADED = """import sys as _sys
from IPython.display import display as _display
_display({"text/plain": repr([m.__file__ for m in list(_sys.modules.values()) if getattr(m, "__file__", None)
                              and m.__name__.partition(".")[0] == "companion"])}, raw=True)
"""


def _run_papermill(
    source: Path,
    values: Mapping[str, Any],
    target: Path,
    folder: Path,
    progress: bool | Mapping[str, Any],
    timeout: int,
    stills: bool,
) -> tuple[Any, list[str]]:
    """Return the executed notebook, and the modules of the package that its kernel had loaded at the end."""
    import jupytext
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError

    before, after = folder / f"{source.stem}.ipynb", folder / "out.ipynb"
    asked = read_notebook(source)
    asked.cells.append(nbformat.v4.new_code_cell(_LOADED, id="loaded"))
    jupytext.write(asked, before)
    try:
        with own_kernel(stills):
            papermill.execute_notebook(
                str(before),
                str(after),
                parameters=dict(values),
                progress_bar=dict(progress) if isinstance(progress, Mapping) else progress,
                execution_timeout=timeout,
                cwd=str(source.parent),
                log_output=False,
            )
    except PapermillExecutionError as error:
        if error.ename == "InputError":
            raise InputError(f"{source.stem}: {error.evalue}") from error
        absent = re.search(r"No module named '([\w.]+)'", str(error.evalue))
        if absent and extras.advice(absent[1]):
            raise InputError(f"{source.stem}: {extras.advice(absent[1])}") from error
        failed = target.with_suffix(".failed.ipynb")
        after.replace(failed)
        raise RunError(f"{source.stem}, cell {error.cell_index}: {error} (notebook kept: {failed})") from error
    node = nbformat.read(after, as_version=4)
    loaded = node.cells.pop()["outputs"][0]["data"]["text/plain"]
    package = Path(companion.__file__).parent
    modules = [Path(path) for path in ast.literal_eval(loaded)]
    return _settled(node), sorted(path.relative_to(package).as_posix() for path in modules if package in path.parents)


def _settled(node: Any) -> Any:
    """Drop what differs between two equal runs (times, paths, random ids); show or hide parameters as a whole."""
    node.metadata.pop("papermill", None)
    hidden: list[str] = []
    for position, cell in enumerate(node.cells):
        cell["id"] = f"cell-{position:03d}"
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        tags = cell.metadata.get("tags", [])
        if "parameters" in tags:
            hidden = [tag for tag in tags if tag.startswith(("remove-", "hide-"))]
        elif "injected-parameters" in tags:
            cell.metadata["tags"] = [*tags, *hidden]
    return node


def _outputs(node: Any) -> Iterable[dict[str, Any]]:
    return (output for cell in node.cells for output in cell.get("outputs", []) if "data" in output)


def headlines(node: Any) -> list[dict[str, Any]]:
    """Return the numbers that a notebook marked with ``glue(..., headline=True)``."""
    keys = (HEADLINE_MIME, _RECORD + HEADLINE_MIME)
    found = [output["data"][key] for output in _outputs(node) for key in keys if key in output["data"]]
    return [{key: item.get(key) for key in ("name", "estimate", "low", "high", "text")} for item in found]


def default_headlines() -> dict[str, Any]:
    """Return the headline numbers of the chapters at their defaults, which a build of the book keeps up to date."""
    path = notebooks_dir() / HEADLINES_FILE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _add_headlines(node: Any, stem: str, yours: list[dict[str, Any]]) -> None:
    """Complete the banner of a run with other parameters, and see that no tag hides it."""
    from companion.book.notebook import HEADLINES_MARK, headlines_html

    for cell in node.cells:
        for output in cell.get("outputs", []):
            page = str(output.get("data", {}).get("text/html", ""))
            if HEADLINES_MARK in page:
                table = headlines_html(yours, default_headlines().get(stem, []))
                output["data"]["text/html"] = page.replace(HEADLINES_MARK, table)
                tags = cell.metadata.get("tags", [])
                cell.metadata["tags"] = [*(tag for tag in tags if tag not in ("remove-cell", "remove-output"))]
                if len(tags) != len(cell.metadata["tags"]):
                    cell.metadata["tags"].append("remove-input")


_GLUED = re.compile(r"\{glue:text\}`([^`]+)`")
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s]*)\)")


def _resolve(node: Any) -> None:
    """Write the numbers into the prose: Jupyter and VS Code know nothing of the role that the book reads."""
    said = {
        output["metadata"]["scrapbook"]["name"]: str(
            output["data"].get("text/plain") or output["data"].get(f"{_RECORD}text/plain", "")
        )
        for output in _outputs(node)
        if "scrapbook" in output.get("metadata", {})
    }
    for cell in node.cells:
        if cell.cell_type == "markdown":
            cell.source = _GLUED.sub(lambda match: _number(said, match), cell.source)


def _number(said: Mapping[str, str], match: re.Match[str]) -> str:
    text = said.get(match[1])
    if text is None:
        return match[0]
    with contextlib.suppress(ValueError, SyntaxError):
        text = str(ast.literal_eval(text))
    return re.sub(r"([*`<\\])", r"\\\1", text)


def _notebook_text(node: Any) -> str:
    import nbformat

    return str(nbformat.writes(node)).rstrip("\n") + "\n"


def _standalone(node: Any) -> str:
    """Render one page; a link to another page of the book, which does not come along, reads as its text."""
    import copy

    from companion.book.page import standalone_page

    alone = copy.deepcopy(node)
    for cell in alone.cells:
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub(lambda match: match[1], cell.source)
    return standalone_page(alone, project_root() / "book" / "references.bib")


@contextlib.contextmanager
def own_kernel(stills: bool = True) -> Iterator[None]:
    """Make ``python3`` mean this interpreter to Jupyter while the context lasts."""
    with tempfile.TemporaryDirectory(prefix="companion-kernel-") as folder:
        spec = Path(folder) / "kernels" / "python3"
        spec.mkdir(parents=True)
        # The kernel warns at every start that it talks to its own machine unencrypted, and reports its own end.
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=CRITICAL"]
        env = {} if stills else {NO_STILLS: "1"}
        text = json.dumps({"argv": argv, "display_name": "Python 3", "language": "python", "env": env})
        (spec / "kernel.json").write_text(text, encoding="utf-8")
        before = os.environ.get("JUPYTER_PATH")
        os.environ["JUPYTER_PATH"] = folder + (os.pathsep + before if before else "")
        try:
            yield
        finally:
            if before is None:
                os.environ.pop("JUPYTER_PATH", None)
            else:
                os.environ["JUPYTER_PATH"] = before
