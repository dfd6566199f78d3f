"""Run chapters with other parameters, and build the book from chapters that were run.

A chapter is a Jupytext notebook with a cell tagged ``parameters``. Running one gives an executed notebook, a
standalone page, and a run record: what was asked, on what code and data, and the headline numbers that came out.
Outputs carry no time stamps, so the same inputs give the same notebook byte for byte; the record holds the times.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

import companion
from companion.book import parameters as ranges
from companion.book.kernel import Parameter, read_parameters
from companion.book.render import HEADLINE_MIME, NO_STILLS
from companion.errors import InputError
from companion.paths import data_dir, project_root

_RECORD_MIME = f"application/papermill.record/{HEADLINE_MIME}"
#: Packages whose version can move a number or a picture.
_VERSIONED = (
    "altair",
    "bm25s",
    "faiss-cpu",
    "numpy",
    "pandas",
    "papermill",
    "pyarrow",
    "scikit-learn",
    "scipy",
    "seaborn",
    "sentence-transformers",
    "torch",
    "vl-convert-python",
)


class RunError(RuntimeError):
    """A chapter failed while it ran; the message holds the chapter, the cell and the traceback."""


@dataclass(frozen=True)
class Run:
    """One finished run of a chapter."""

    notebook: Path
    record: dict[str, Any]
    html: Path | None = None


def notebooks_dir() -> Path:
    """Return the folder of the chapters."""
    return project_root() / "notebooks"


def find_notebook(name: str | os.PathLike[str]) -> Path:
    """Return the chapter that a reader means by a path, a name such as ``02-support``, or a number such as ``02``."""
    path = Path(name)
    if path.suffix in {".md", ".ipynb"}:
        if path.is_file():
            return path.resolve()
        raise InputError(f"{path}: no such notebook")
    chapters = chapter_paths()
    text = str(name)
    number = f"{int(text):02d}-" if text.isascii() and text.isdigit() else None
    for chapter in chapters:
        if chapter.stem == text or (number and chapter.stem.startswith(number)):
            return chapter
    raise InputError(
        f"no chapter {text!r}: expected a path or one of {', '.join(chapter.stem for chapter in chapters)}"
    )


def chapter_paths() -> list[Path]:
    """Return the chapters in the order of the book."""
    return sorted(notebooks_dir().glob("[0-9][0-9]-*.md"))


def read_notebook(path: Path) -> Any:
    """Read a Jupytext or Jupyter notebook; cell ids depend on position only."""
    import jupytext
    from nbformat import ValidationError

    try:
        notebook = jupytext.read(path)
    except (OSError, ValueError, ValidationError) as error:
        raise InputError(f"{path}: not a readable notebook ({str(error).splitlines()[0]})") from error
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for position, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{position:03d}"
    return notebook


def declared_parameters(path: Path) -> list[Parameter]:
    """Return the parameters that a notebook declares in its cell tagged ``parameters``."""
    for cell in read_notebook(path).cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
            return read_parameters(cell.source, f"{path.name}, parameters cell")
    raise InputError(f"{path.name}: no cell is tagged 'parameters'")


def parse_value(text: str) -> Any:
    """Read one ``-p NAME VALUE`` as YAML: ``30``, ``0.9``, ``true``, ``[a, b]``, ``null``, or text."""
    if not text.strip():
        return text  # YAML reads nothing as null; on a command line nothing is empty text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"parameter value {text!r}: not valid YAML") from error
    # Text to YAML 1.1; a number to everybody else. In quotes it stays text.
    if isinstance(value, str) and value == text and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", text):
        return float(text)
    return value


def parse_pairs(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Read the ``-p NAME VALUE`` options of a command; a name given twice is refused."""
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name in values:
            raise InputError(f"parameter {name!r} is given twice")
        values[name] = located(name, parse_value(text))
    return values


def located(name: str, value: Any, *folders: str | os.PathLike[str]) -> Any:
    """Spell out where a file is that a parameter names: the chapter runs in another folder than its caller."""
    if not isinstance(value, str) or not value:
        return value
    for folder in folders or (Path.cwd(),):
        path = (Path(folder) / value).absolute()
        # A word such as demo may by chance be the name of a file here.
        if (path.is_file() and path.suffix) or (name in ranges.PATHS and path.exists()):
            return str(path)
    return value


def check_parameters(
    declared: Sequence[Parameter], given: Mapping[str, Any], origin: str = "notebook"
) -> dict[str, Any]:
    """Check parameters against a notebook's own before anything runs."""
    known = {item.name: item for item in declared}
    checked = {}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"{origin} has no parameter {name!r}: expected one of {', '.join(known)}")
        checked[name] = _conform(value, known[name].default, f"{origin}, parameter {name}")
    return checked


def checked_parameters(source: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the parameters given to a notebook: names, types and, for a chapter of the book, ranges and choices."""
    declared = declared_parameters(source)
    values = check_parameters(declared, given, source.stem)
    check_ranges(source, {item.name: values.get(item.name, item.default) for item in declared})
    return values


def check_ranges(source: Path, values: Mapping[str, Any], origin: str = "") -> None:
    """Refuse values that a chapter of the book cannot use; any other notebook checks its own."""
    if source.stem not in ranges.CHAPTERS or source.parent != notebooks_dir().resolve():
        return
    try:
        ranges.check(source.stem, values)
    except InputError as error:
        raise InputError(f"{origin}: {error}" if origin else str(error)) from error


def _conform(value: Any, default: Any, where: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: {value} is not a finite number")
    if default is None:
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        value = tuple(value)
    if type(value) is not type(default):
        hint = f"; write \"'{value}'\" for text" if isinstance(default, str) else ""
        raise InputError(
            f"{where}: {value!r} is {type(value).__name__}, expected {type(default).__name__} "
            f"(default {default!r}){hint}"
        )
    if isinstance(default, (list, tuple)) and default:
        kinds = {type(item) for item in default}
        if len(kinds) == 1:
            return type(default)(_conform(item, default[0], f"{where}, item {i}") for i, item in enumerate(value, 1))
    return value


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


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=1)
def data_hashes() -> dict[str, str]:
    """Return the SHA-256 of every committed data file, by its path under ``data/``."""
    root = data_dir()
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix(): sha256(path) for path in files}


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """Return one hash over everything but parameters that can change a chapter's outputs.

    Package source, committed data, interpreter, versions of the packages that compute, and which corpora are
    present.
    """
    package = Path(companion.__file__).parent
    source = {
        path.relative_to(package).as_posix(): sha256(path)
        for path in sorted(package.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    state = [source, data_hashes(), versions(), _corpora_present()]
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _corpora_present() -> list[str]:
    stated = os.environ.get("COMPANION_CORPORA")
    if not stated or not Path(stated).is_dir():
        return []
    return sorted(f"{path.name} {path.stat().st_mtime_ns}" for path in Path(stated).iterdir())


def versions() -> dict[str, str]:
    """Return the versions of Python, the companion, and the packages that compute or draw."""
    found = {"python": platform.python_version(), "companion": companion.__version__}
    for name in _VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def git_commit() -> dict[str, Any] | None:
    """Return the checkout's commit and whether tracked files differ from it, or None outside a repository."""
    try:
        root = project_root()
        commit = _git(root, "rev-parse", "HEAD")
        changed = bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (InputError, OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "changed": changed}


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


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
    """Run one chapter with papermill and write notebook, page and record."""
    source = find_notebook(notebook)
    declared = declared_parameters(source)
    values = checked_parameters(source, parameters)
    target = Path(out_ipynb)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{target.parent}: cannot be made ({error.strerror}); expected a folder to write to"
        ) from error
    began, started = time.perf_counter(), datetime.datetime.now(datetime.UTC)
    node = _run_papermill(source, values, target, progress, timeout, stills)
    record = {
        "notebook": source.name,
        "notebook_sha256": sha256(source),
        "parameters": {item.name: values.get(item.name, item.default) for item in declared},
        "changed": sorted(item.name for item in declared if values.get(item.name, item.default) != item.default),
        "seed": values.get("seed", next((item.default for item in declared if item.name == "seed"), None)),
        "headline": headlines(node),
        "versions": versions(),
        "data": data_hashes(),
        "git": git_commit(),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - began, 2),
    }
    _replace(target, _notebook_text(node))
    page = _standalone(node, target) if html else None
    _replace(target.with_suffix(".json"), json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    _failed(target).unlink(missing_ok=True)  # of an earlier attempt: it would seem to belong to this one
    return Run(target, record, page)


def _run_papermill(
    source: Path,
    values: Mapping[str, Any],
    target: Path,
    progress: bool | Mapping[str, Any],
    timeout: int,
    stills: bool,
) -> Any:
    import jupytext
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError

    with tempfile.TemporaryDirectory(prefix="companion-run-") as folder, own_kernel(stills):
        before, after = Path(folder) / f"{source.stem}.ipynb", Path(folder) / "out.ipynb"
        jupytext.write(read_notebook(source), before)
        try:
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
            failed = _failed(target)
            _replace(failed, after.read_text(encoding="utf-8"))
            if error.ename == "InputError":
                raise InputError(f"{source.stem}: {error.evalue}") from error
            raise RunError(f"{source.stem}, cell {error.cell_index}: {error} (notebook kept: {failed})") from error
        node = nbformat.read(after, as_version=4)
    return _settled(node)


def _failed(target: Path) -> Path:
    return target.with_suffix(".failed.ipynb")


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


def _notebook_text(node: Any) -> str:
    import nbformat

    text: str = nbformat.writes(node)
    return text if text.endswith("\n") else text + "\n"


def headlines(node: Any) -> list[dict[str, Any]]:
    """Return the numbers that a notebook marked as headlines with ``say(..., headline=True)``."""
    outputs = (output for cell in node.cells for output in cell.get("outputs", []))
    bundles = (output.get("data", {}) for output in outputs)
    found = [data[key] for data in bundles for key in (HEADLINE_MIME, _RECORD_MIME) if key in data]
    return [{key: item.get(key) for key in ("name", "estimate", "low", "high")} for item in found]


def _replace(path: Path, text: str) -> None:
    """Write a file under a temporary name in its folder, then move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _standalone(node: Any, target: Path) -> Path:
    from companion.book.page import standalone_page

    page = target.with_suffix(".html")
    _replace(page, standalone_page(node, project_root() / "book" / "references.bib"))
    return page
