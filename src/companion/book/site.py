"""Build the site from chapters that papermill ran: two at a time, and only those that something changed."""

from __future__ import annotations

import concurrent.futures
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

from companion import tables
from companion.book import runs
from companion.errors import InputError
from companion.paths import build_dir, only_writer, project_root

Say = Callable[[str], None]
# Kept in a finished site: a hash over everything it was built from.
_MARK = ".companion-site"


def build(
    parameters: Mapping[str, Any] | None = None, out: Path | None = None, *, jobs: int = 2, say: Say = print
) -> Path:
    """Run the chapters and build the site; return its first page."""
    root, work = project_root(), build_dir()
    site = (out or (work if work.parent == root else Path("_build")) / "html").resolve()
    if site.is_dir() and any(site.iterdir()) and not (site / "genindex.html").exists():
        raise InputError(f"{site}: not empty and not a site built before; choose another folder")
    began = time.perf_counter()
    parameters = dict(parameters or {})
    plan = _plan(parameters)
    stage = work / "stage" / (runs.digest(parameters)[:12] if parameters else "default")
    with only_writer(stage), only_writer(site):
        _run_chapters(plan, work / "runs", jobs, say)
        if not parameters and work.parent == root:
            _keep_headlines(plan)
        state = _fill_stage(root, stage, plan)
        mark = site / _MARK
        if mark.is_file() and mark.read_text(encoding="utf-8") == state and (site / "index.html").is_file():
            say("nothing changed since the site was built")
            return site / "index.html"
        _sphinx(stage, say)
        _publish(stage / "_build" / "html", site, state)
    say(f"site ready in {time.perf_counter() - began:.0f} s")
    return site / "index.html"


# --- chapters ----------------------------------------------------------------------------------------------------


class _Chapter:
    """One chapter of the plan: its source, its checked parameters, and the file of the run that answers them."""

    def __init__(self, source: Path, values: dict[str, Any]) -> None:
        self.source, self.values = source, values
        others = {name: made for name, made in runs.source_hashes().items() if not name.endswith(".py")}
        key = runs.digest([runs.sha256(source), values, runs.surroundings(), others])
        self.name = f"{source.stem}-{key[:16]}"
        self.executed = Path()

    def is_run(self) -> bool:
        """Tell whether its run is there and every module that it loaded is still what it was."""
        record = self.executed.with_suffix(".json")
        if not (self.executed.is_file() and record.is_file()):
            return False
        modules = json.loads(record.read_text(encoding="utf-8")).get("modules", {"": ""})
        return all(runs.source_hashes().get(name) == made for name, made in modules.items())


def _plan(parameters: Mapping[str, Any]) -> list[_Chapter]:
    declared = {source: [item.name for item in runs.declared_parameters(source)] for source in runs.chapter_paths()}
    known = {name: None for names in declared.values() for name in names}
    for name in parameters:
        if name not in known:
            raise InputError(f"no chapter has a parameter {name!r}: expected one of {', '.join(sorted(known))}")
    given = {source: {n: v for n, v in parameters.items() if n in names} for source, names in declared.items()}
    return [_Chapter(source, runs.checked_parameters(source, values)) for source, values in given.items()]


def _run_chapters(plan: Sequence[_Chapter], folder: Path, jobs: int, say: Say) -> None:
    """Run what has no cached run; the cache holds one run for each state of text, parameters, data and surroundings."""
    waiting = []
    for chapter in plan:
        chapter.executed = folder / f"{chapter.name}.ipynb"
        if chapter.is_run():
            say(f"{chapter.source.stem}: unchanged")
        else:
            waiting.append(chapter)
    if not waiting:
        return
    began = time.perf_counter()
    bars = [place if sys.stderr.isatty() else None for place in range(len(waiting))]
    with concurrent.futures.ThreadPoolExecutor(min(jobs, len(waiting))) as pool:
        running = {pool.submit(_run_one, *both): both[0] for both in zip(waiting, bars, strict=True)}
        try:
            for task in concurrent.futures.as_completed(running):
                task.result()
                say(f"{running[task].source.stem}: run, {time.perf_counter() - began:.0f} s since the start")
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for chapter in plan:  # switching parameters back and forth stays cheap
        old = sorted(folder.glob(f"{chapter.source.stem}-*.ipynb"), key=lambda path: path.stat().st_mtime)
        for path in old[:-5]:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)


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
    bar = {"position": position, "desc": chapter.source.stem, "leave": True}
    order = json.dumps([str(chapter.source), chapter.values, str(chapter.executed), position is not None and bar])
    # One thread for numerical libraries in each process: the chapters share the cores among themselves.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-c", _CHILD, order]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if done.stdout.strip():
        kind, message = json.loads(done.stdout.strip().splitlines()[-1])
        raise InputError(message) if kind == "InputError" else runs.RunError(message)
    if done.returncode:
        raise runs.RunError(f"{chapter.source.stem}: its process ended with code {done.returncode}")


def _keep_headlines(plan: Sequence[_Chapter]) -> None:
    """Write down the default headline numbers, which runs with other parameters show beside their own."""
    records = {
        chapter.source.stem: json.loads(chapter.executed.with_suffix(".json").read_text(encoding="utf-8"))
        for chapter in plan
    }
    found = {stem: record["headline"] for stem, record in records.items() if record["headline"]}
    if found != runs.default_headlines():
        with tables.atomic_path(runs.notebooks_dir() / runs.HEADLINES_FILE) as path:
            path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# --- pages -------------------------------------------------------------------------------------------------------

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
        node = json.loads(chapter.executed.read_text(encoding="utf-8"))
        for cell in node["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = _as_staged("".join(cell["source"]))
        wanted[f"notebooks/{chapter.source.stem}.ipynb"] = json.dumps(node, ensure_ascii=False, indent=1).encode()
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
    return runs.digest([runs.fingerprint(), {name: runs.hash_of(content) for name, content in wanted.items()}])


# Its command, run by this interpreter: the module has no way to be run by name.
_JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"


def _sphinx(stage: Path, say: Say) -> None:
    """Run Jupyter Book on the stage; warnings are errors. A build that did not end well is not taken up half way."""
    say("building the pages")
    begun = stage.with_name(f"{stage.name}.begun")
    if begun.exists():  # a killed one
        shutil.rmtree(stage / "_build", ignore_errors=True)
    begun.touch()
    command = [sys.executable, "-c", _JUPYTER_BOOK, "build", str(stage), "-W", "--keep-going", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        shutil.rmtree(stage / "_build", ignore_errors=True)
    begun.unlink()
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise runs.RunError("the book does not build:\n" + "\n".join(lines[-40:]))


def _publish(made: Path, site: Path, state: str) -> None:
    """Replace the site by the new one in two renames."""
    with tempfile.TemporaryDirectory(prefix=".companion-site-", dir=site.parent) as folder:
        fresh, old = Path(folder) / "new", Path(folder) / "old"
        shutil.copytree(made, fresh, ignore=shutil.ignore_patterns(".buildinfo", "*.map"))
        (fresh / _MARK).write_text(state, encoding="utf-8")
        if site.exists():
            site.rename(old)
        fresh.rename(site)
