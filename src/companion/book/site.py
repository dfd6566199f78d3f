"""Build the site from chapters that papermill ran: two at a time, and only those that something changed."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from companion.book import runs
from companion.errors import InputError
from companion.paths import project_root

Say = Callable[[str], None]
# Kept in a finished site: a hash over everything it was built from.
_MARK = ".companion-site"


def build(
    parameters: Mapping[str, Any] | None = None,
    out: Path | None = None,
    *,
    jobs: int = 2,
    say: Say = print,
) -> Path:
    """Run the chapters and build the site."""
    root = project_root()
    site = (out if out is not None else root / "_build" / "html").resolve()
    if site.is_dir() and any(site.iterdir()) and not (site / "genindex.html").exists():
        raise InputError(f"{site}: not empty and not a site built before; choose another folder")
    began = time.perf_counter()
    plan = _plan(parameters or {})
    _run_chapters(plan, root / "_build" / "runs", jobs, say)
    stage = root / "_build" / "stage" / _stage_name(parameters or {})
    state = _fill_stage(root, stage, plan)
    mark = site / _MARK
    if mark.is_file() and mark.read_text(encoding="utf-8") == state and (site / "index.html").is_file():
        say("nothing changed since the site was built")
        return site / "index.html"
    _sphinx(stage, say)
    _publish(stage / "_build" / "html", site, state)
    say(f"site ready in {time.perf_counter() - began:.0f} s")
    return site / "index.html"


class _Chapter:
    """One chapter of the plan: its source, its checked parameters, and the run that answers them."""

    def __init__(self, source: Path, values: dict[str, Any]) -> None:
        self.source = source
        self.values = values
        key = json.dumps([runs.sha256(source), values, runs.fingerprint()], sort_keys=True)
        self.name = f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        self.executed = Path()


def _plan(parameters: Mapping[str, Any]) -> list[_Chapter]:
    plan = []
    unused = set(parameters)
    declared_names: set[str] = set()
    for source in runs.chapter_paths():
        declared = runs.declared_parameters(source)
        names = {item.name for item in declared}
        given = {name: value for name, value in parameters.items() if name in names}
        plan.append(_Chapter(source, runs.checked_parameters(source, given)))
        unused -= names
        declared_names |= names
    if unused:
        expected = ", ".join(sorted(declared_names))
        raise InputError(f"no chapter has a parameter {sorted(unused)[0]!r}: expected one of {expected}")
    return plan


def _stage_name(parameters: Mapping[str, Any]) -> str:
    if not parameters:
        return "default"
    text = json.dumps(dict(parameters), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _run_chapters(plan: Sequence[_Chapter], folder: Path, jobs: int, say: Say) -> None:
    """Run what has no cached run; the cache holds one run for each state of text, parameters, code and data."""
    waiting = []
    for chapter in plan:
        chapter.executed = folder / f"{chapter.name}.ipynb"
        if chapter.executed.exists() and chapter.executed.with_suffix(".json").exists():
            say(f"{chapter.source.stem}: unchanged")
        else:
            waiting.append(chapter)
    if not waiting:
        return
    began = time.perf_counter()
    pool = concurrent.futures.ThreadPoolExecutor(min(jobs, len(waiting)))
    try:
        running = {
            pool.submit(_run_one, chapter, position if sys.stderr.isatty() else None): chapter
            for position, chapter in enumerate(waiting)
        }
        for task in concurrent.futures.as_completed(running):
            task.result()
            say(f"{running[task].source.stem}: run, {time.perf_counter() - began:.0f} s since the start")
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    _forget_old_runs(folder, plan)


# One chapter in a process of its own. Its outcome goes to standard output; standard error is the progress bar's.
_CHILD = """
import json, sys
from companion.book import runs
from companion.errors import InputError
source, values, target, progress = json.loads(sys.argv[1])
try:
    runs.execute(source, values, target, progress=progress, html=False)
except (InputError, runs.RunError) as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def _run_one(chapter: _Chapter, position: int | None) -> None:
    progress: bool | dict[str, Any] = False
    if position is not None:
        progress = {"position": position, "desc": chapter.source.stem, "leave": True}
    order = json.dumps([str(chapter.source), chapter.values, str(chapter.executed), progress])
    # One thread for numerical libraries in each process: the chapters share the cores among themselves.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, order], stdout=subprocess.PIPE, text=True, check=False, env=environment
    )
    if done.stdout.strip():
        kind, message = json.loads(done.stdout.strip().splitlines()[-1])
        raise InputError(message) if kind == "InputError" else runs.RunError(message)
    if done.returncode:
        raise runs.RunError(f"{chapter.source.stem}: its process ended with code {done.returncode}")


def _forget_old_runs(folder: Path, plan: Sequence[_Chapter], keep: int = 5) -> None:
    """Keep the newest few runs of each chapter, so that switching parameters back and forth stays cheap."""
    for chapter in plan:
        old = sorted(folder.glob(f"{chapter.source.stem}-*.ipynb"), key=lambda path: path.stat().st_mtime)
        for path in old[:-keep]:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)


_CHAPTER_LINK = re.compile(r"(\]\((?:\.\./notebooks/|notebooks/)?\d\d-[\w-]+)\.md(?=[)#])")


def _as_staged(text: str) -> str:
    """Point links between chapters at the executed notebooks: on the stage, `02-support.md` is an `.ipynb`."""
    return _CHAPTER_LINK.sub(r"\1.ipynb", text)


def _stage_sources(root: Path, plan: Sequence[_Chapter]) -> dict[str, bytes]:
    """Return what Sphinx reads: prose as it is, chapters as executed notebooks, execution switched off."""
    import yaml

    wanted: dict[str, bytes] = {"_toc.yml": (root / "_toc.yml").read_bytes()}
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    config["execute"] = {"execute_notebooks": "off", "stderr_output": "remove"}
    wanted["_config.yml"] = yaml.safe_dump(config, sort_keys=False).encode()
    for path in sorted((root / "book").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = path.read_bytes()
            if path.suffix == ".md":
                content = _as_staged(content.decode()).encode()
            wanted[path.relative_to(root).as_posix()] = content
    for path in sorted(root.glob("*.md")):
        wanted[path.name] = path.read_bytes()
    for chapter in plan:
        wanted[f"notebooks/{chapter.source.stem}.ipynb"] = _staged_chapter(chapter.executed)
    return wanted


def _fill_stage(root: Path, stage: Path, plan: Sequence[_Chapter]) -> str:
    """Lay out the sources for Sphinx; return a hash over them and over the code and data behind generated pages."""
    wanted = _stage_sources(root, plan)
    for name, content in wanted.items():
        target = stage / name
        # Sphinx reads again what is newer than its last look: untouched files must keep their times.
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in sorted(stage.rglob("*")):
        name = path.relative_to(stage).as_posix()
        if path.is_file() and name not in wanted and not name.startswith("_build/") and "__pycache__" not in name:
            path.unlink()
    digest = hashlib.sha256(runs.fingerprint().encode())
    for name in sorted(wanted):
        digest.update(name.encode() + b"\0" + hashlib.sha256(wanted[name]).digest())
    return digest.hexdigest()


def _staged_chapter(executed: Path) -> bytes:
    node = json.loads(executed.read_text(encoding="utf-8"))
    for cell in node["cells"]:
        if cell["cell_type"] == "markdown":
            source = cell["source"]
            cell["source"] = _as_staged("".join(source) if isinstance(source, list) else source)
    return json.dumps(node, ensure_ascii=False, indent=1).encode()


# Its command, run by this interpreter: the module has no way to be run by name.
_JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"


def _sphinx(stage: Path, say: Say) -> None:
    """Run Jupyter Book on the stage; warnings are errors."""
    say("building the pages")
    command = [sys.executable, "-c", _JUPYTER_BOOK, "build", str(stage), "-W", "--keep-going", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        # A failed build must not be taken up again half way.
        shutil.rmtree(stage / "_build", ignore_errors=True)
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise runs.RunError("the book does not build:\n" + "\n".join(lines[-40:]))


def _publish(made: Path, site: Path, state: str) -> None:
    """Replace the site by the new one in two renames."""
    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".companion-site-", dir=site.parent) as folder:
        fresh, old = Path(folder) / "new", Path(folder) / "old"
        shutil.copytree(made, fresh, ignore=shutil.ignore_patterns(".buildinfo", "*.map"))
        (fresh / _MARK).write_text(state, encoding="utf-8")
        if site.exists():
            site.rename(old)
        fresh.rename(site)
