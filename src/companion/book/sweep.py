"""Many runs of one notebook: a grid or a list of parameters, on local processes or a Dask cluster.

A sweep may be killed at any moment. The folder holds one folder per run, named after its parameters; a run counts as
finished when the marker in its folder names the same notebook, parameters, code and data, and every file has the
hash that the marker states. Workers hand their files back and only the process that leads the sweep writes into the
folder, so a worker that outlives a killed leader can spoil nothing. Processes are Dask's, on this machine or any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import math
import os
import re
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from companion import cluster, plain_yaml, tables
from companion.book import runs
from companion.errors import InputError
from companion.paths import only_writer, read_text

Say = Callable[[str], None]

PLAN_FILE = "sweep.json"
HEADLINE_FILE = "headline.csv"
RUNS_FOLDER = "runs"
FINISHED_FILE = "finished.json"
FAILED_FILE = "failed.json"
TRACEBACK_FILE = "traceback.txt"
_MOST_RUNS = 10_000


@dataclass(frozen=True)
class Planned:
    """One run of a plan."""

    name: str
    values: dict[str, Any]
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """A notebook and the runs wanted of it, all checked."""

    notebook: Path
    runs: tuple[Planned, ...]
    varied: tuple[str, ...]


@dataclass(frozen=True)
class SweepResult:
    """What a sweep left behind."""

    headline: pd.DataFrame
    failed: dict[str, str] = field(default_factory=dict)
    reused: int = 0


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read and check a sweep file before anything runs."""
    path = Path(path)
    content = plain_yaml.load(read_text(path), str(path))
    if not isinstance(content, dict):
        found = "the file is empty" if content is None else f"{content!r} is not a mapping"
        raise InputError(f"{path}: {found}; expected lines such as 'notebook: 02-support', and grid or runs")
    unknown = [key for key in _mapping(content, str(path)) if key not in ("notebook", "parameters", "grid", "runs")]
    if unknown:
        raise InputError(f"{path}: section {unknown[0]!r} is unknown; expected notebook, parameters, grid, runs")
    name, grid, entries = content.get("notebook"), content.get("grid", ...), content.get("runs", ...)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise InputError(f"{path}: notebook is {name!r}; expected a chapter or a path, such as notebook: 02-support")
    if grid is None or grid == {}:
        raise InputError(f"{path}, grid: nothing is there; expected lines such as 'top_k: [5, 10]'")
    if entries is not ... and (not isinstance(entries, list) or not entries):
        raise InputError(f"{path}, runs: {entries!r}; expected a list with one mapping of parameters per run")
    beside = path.parent / str(name)
    return make_plan(
        beside if beside.suffix in {".md", ".ipynb"} and beside.is_file() else str(name),
        parameters=_mapping(content.get("parameters") or {}, f"{path}, parameters"),
        grid=None if grid is ... else _mapping(grid, f"{path}, grid"),
        runs_list=None
        if entries is ...
        else [_mapping(entry, f"{path}, runs, entry {number}") for number, entry in enumerate(entries, 1)],
        origin=str(path),
        folders=(path.parent, Path.cwd()),
    )


def make_plan(
    notebook: str | os.PathLike[str],
    *,
    parameters: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    runs_list: Sequence[Mapping[str, Any]] | None = None,
    origin: str = "sweep",
    folders: Sequence[str | os.PathLike[str]] = (),
) -> Plan:
    """Plan a sweep from Python."""
    source = runs.find_notebook(notebook)
    declared = runs.declared_parameters(source)
    if grid is not None and runs_list is not None:
        raise InputError(f"{origin}: both grid and runs are given; expected one of them")

    def checked(values: Mapping[str, Any], where: str) -> dict[str, Any]:
        found = {name: runs.located(name, value, *folders) for name, value in values.items()}
        return runs.check_parameters(declared, found, f"{where} ({source.stem})")

    fixed = checked(parameters or {}, f"{origin}, parameters")
    planned: dict[str, Planned] = {}
    for number, entry in enumerate(_combinations(grid, origin) if grid is not None else runs_list or [{}], 1):
        where = f"{origin}, {'grid' if grid is not None else f'run {number}'}"
        both = [name for name in entry if name in fixed]
        if both:
            raise InputError(f"{where}: parameter {both[0]!r} is fixed in parameters; expected it in one place")
        run = _planned(declared, {**fixed, **checked(entry, where)})
        runs.check_ranges(source, run.parameters, where)
        if run.name in planned:
            raise InputError(f"{where}: {_described(entry)} is there twice; expected every run once")
        planned[run.name] = run
    every = [run.parameters for run in planned.values()]
    varied = tuple(item.name for item in declared if len({_text(values[item.name]) for values in every}) > 1)
    return Plan(source, tuple(planned.values()), varied)


def _mapping(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise InputError(f"{where}: {content!r} is not a mapping; expected lines such as 'top_k: 20'")
    odd = [key for key in content if not isinstance(key, str)]
    if odd:
        raise InputError(f"{where}: key {odd[0]!r} is not text; expected the name of a parameter")
    return content


def _combinations(grid: Mapping[str, Sequence[Any]], origin: str) -> list[dict[str, Any]]:
    for name, values in grid.items():
        if not isinstance(values, list | tuple) or not values:
            raise InputError(f"{origin}, grid, {name}: {values!r}; expected a list of one value or more")
    if math.prod(map(len, grid.values())) > _MOST_RUNS:
        raise InputError(f"{origin}, grid: more than {_MOST_RUNS:,} combinations; expected fewer")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _planned(declared: Sequence[Any], values: dict[str, Any]) -> Planned:
    parameters = {item.name: values.get(item.name, item.default) for item in declared}
    changed = {item.name: parameters[item.name] for item in declared if parameters[item.name] != item.default}
    label = re.sub(r"[^\w.=,+-]+", "_", _described(changed), flags=re.ASCII).strip("_.,")[:60]
    digest = hashlib.sha256(_text(parameters).encode()).hexdigest()[:10]
    return Planned(f"{label or 'defaults'}-{digest}", values, parameters)


def _described(values: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value if isinstance(value, str) else _text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class _Task:
    """What a worker must know; everything in it can be sent to another machine."""

    name: str
    notebook: str
    text: bytes
    values: dict[str, Any]
    html: bool
    timeout: int
    fingerprint: str
    scratch: str | None = None


@dataclass(frozen=True)
class _Outcome:
    files: dict[str, bytes] = field(default_factory=dict)
    error: str = ""
    trace: str = ""


def run_sweep(
    plan: Plan,
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    html: bool = True,
    timeout: int = 1800,
    say: Say = print,
) -> SweepResult:
    """Run what is not finished yet, and write the table of headline numbers."""
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs {jobs}: expected at least 1")
    folder = Path(out).absolute()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder, found a file")
    # What looks like leftovers in it will be removed.
    if folder.is_dir() and not (folder / PLAN_FILE).exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: holds other files; expected a new folder, or that of an earlier sweep")
    try:
        with only_writer(folder):
            return _run_all(plan, folder, jobs, scheduler, html, timeout, say)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}; expected a folder that can be written") from error


def _run_all(
    plan: Plan, folder: Path, jobs: int | None, scheduler: str | None, html: bool, timeout: int, say: Say
) -> SweepResult:
    folder.mkdir(exist_ok=True)
    planned = [{"run": run.name, "parameters": run.parameters} for run in plan.runs]
    content = {"notebook": plan.notebook.name, "varied": list(plan.varied), "runs": planned}
    with tables.atomic_path(folder / PLAN_FILE) as path:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / RUNS_FOLDER).mkdir(exist_ok=True)
    _sweep_up(folder)
    shared = [runs.sha256(plan.notebook), runs.fingerprint()]
    keys = {run.name: runs.digest([*shared, run.parameters]) for run in plan.runs}
    waiting = [run for run in plan.runs if not is_finished(folder / RUNS_FOLDER / run.name, keys[run.name])]
    reused = len(plan.runs) - len(waiting)
    if reused:
        say(f"{reused} of {len(plan.runs)} runs were finished before")
    scratch = None if scheduler else str(folder / ".scratch")
    text = plan.notebook.read_bytes()
    tasks = [
        _Task(run.name, str(plan.notebook), text, run.values, html, timeout, shared[1], scratch) for run in waiting
    ]
    failed = {}
    with _workers(scheduler, min(jobs or cluster.cores(), max(1, len(tasks))), scratch, say) as client:
        for done, (name, outcome) in enumerate(_mapped(client, tasks), reused + 1):
            _keep(folder / RUNS_FOLDER / name, outcome, keys[name])
            if outcome.error:
                failed[name] = outcome.error
            say(f"[{done}/{len(plan.runs)}] {name}" + (f": FAILED, {outcome.error}" if outcome.error else ""))
    headline = headline_table(plan, folder)
    tables.write_table(headline, folder / HEADLINE_FILE)
    return SweepResult(headline, {run.name: failed[run.name] for run in plan.runs if run.name in failed}, reused)


@contextlib.contextmanager
def _workers(scheduler: str | None, jobs: int, scratch: str | None, say: Say) -> Iterator[Any]:
    """Connect to a cluster, or start one here whose temporary files are found and removed whatever happens."""
    if scheduler:
        with cluster.connect(scheduler, say) as client:
            yield client
        return
    assert scratch is not None
    Path(scratch).mkdir(exist_ok=True)
    # Processes share the cores; without this every kernel would start a thread for each of them.
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cluster.cores() // jobs)))}
    try:
        with cluster.local_cluster(jobs, environment, deaths=0, scratch=scratch) as client:
            yield client
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _mapped(client: Any, tasks: Sequence[_Task]) -> Iterator[tuple[str, _Outcome]]:
    """Yield outcomes as they come. No worker holds a second run: a death costs the run in it and no other."""
    from distributed import as_completed

    def submit(count: int) -> list[Any]:
        made = {client.submit(_perform, task, pure=False): task.name for task in itertools.islice(waiting, count)}
        names.update(made)
        return list(made)

    waiting = iter(tasks)
    names: dict[Any, str] = {}
    done = as_completed(submit(len(client.scheduler_info(n_workers=-1)["workers"])), loop=client.loop)
    for future in done:
        if future.status == "finished":
            outcome = future.result()
        else:
            error = future.exception()
            said = "the process that ran it was killed" if type(error).__name__ == "KilledWorker" else _reason(error)
            outcome = _Outcome(error=said, trace=_trace(error))
        yield names.pop(future), outcome
        done.update(submit(1))


def headline_table(plan: Plan, out: str | os.PathLike[str]) -> pd.DataFrame:
    """Gather the headline numbers of the finished runs of a plan, in the order of the plan."""
    rows = []
    for run in plan.runs:
        for item in (read_record(Path(out) / RUNS_FOLDER / run.name) or {"headline": []})["headline"]:
            values = {name: run.parameters[name] for name in plan.varied}
            shown = {
                name: _text(v) if isinstance(v, list | tuple | dict) or v is None else v for name, v in values.items()
            }
            ends = {end: item[end] for end in ("estimate", "low", "high")}
            rows.append({"run": run.name, **shown, "number": item["name"], **ends})
    columns = ["run", *plan.varied, "number", "estimate", "low", "high"]
    # Objects: estimates may be text, and whole numbers must not turn into fractions.
    return pd.DataFrame(rows, columns=columns, dtype=object)


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of one finished run of a sweep, or None."""
    if not is_finished(folder):
        return None
    files = json.loads((folder / FINISHED_FILE).read_text(encoding="utf-8"))["files"]
    record = next(name for name in files if name.endswith(".json"))
    return dict(json.loads((folder / record).read_text(encoding="utf-8")))


def is_finished(folder: Path, key: str | None = None) -> bool:
    """Tell whether a run's folder is complete and undamaged, and (with a key) answers the present plan."""
    try:
        marker = json.loads((folder / FINISHED_FILE).read_text(encoding="utf-8"))
        whole = all(runs.sha256(folder / name) == digest for name, digest in marker["files"].items())
        return whole and (key is None or marker["key"] == key)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _sweep_up(folder: Path) -> None:
    """Remove what a killed sweep left half done; its names begin with a dot."""
    for path in [folder / ".scratch", *(folder / RUNS_FOLDER).glob(".*")]:
        shutil.rmtree(path, ignore_errors=True)


def _keep(target: Path, outcome: _Outcome, key: str) -> None:
    """Put the files of a run in place as a whole: the folder appears by one rename, with its marker in it."""
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    staging.chmod(0o755)
    for name, content in outcome.files.items():
        (staging / name).write_bytes(content)
    marker: dict[str, Any] = {"key": key}
    if outcome.error:
        (staging / TRACEBACK_FILE).write_text(outcome.trace, encoding="utf-8")
        marker["error"] = outcome.error
    else:
        marker["files"] = {n: hashlib.sha256(data).hexdigest() for n, data in sorted(outcome.files.items())}
    name = FAILED_FILE if outcome.error else FINISHED_FILE
    (staging / name).write_text(json.dumps(marker, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if target.exists():
        target.rename(staging.with_name(f"{staging.name}.old"))
    staging.rename(target)
    shutil.rmtree(staging.with_name(f"{staging.name}.old"), ignore_errors=True)


# Kernel settings and Sphinx belong to the whole process: a worker with several threads runs one notebook at a time.
_ONE_AT_A_TIME = threading.Lock()
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _perform(task: _Task) -> _Outcome:
    """Run one notebook in this process's care and return its files, or why there are none."""
    logging.disable(logging.CRITICAL)  # what goes wrong is kept with the run; the leader's lines are progress
    if task.scratch is not None:
        os.environ["TMPDIR"] = tempfile.tempdir = task.scratch
    with _ONE_AT_A_TIME, tempfile.TemporaryDirectory(prefix="companion-sweep-") as folder:
        source = Path(task.notebook)
        # The file itself, so that paths relative to it work, or a copy of what was planned.
        if not (source.is_file() and source.read_bytes() == task.text):
            source = Path(folder) / source.name
            source.write_bytes(task.text)
        target = Path(folder) / "made" / f"{source.stem}.ipynb"
        target.parent.mkdir()
        error = trace = ""
        try:
            if runs.fingerprint() != task.fingerprint:
                raise runs.RunError("this worker has other code, data or package versions than the sweep")
            runs.execute(
                source, task.values, target, progress=False, html=task.html, stills=task.html, timeout=task.timeout
            )
        except Exception as problem:  # whatever goes wrong in one run must not stop the others
            error, trace = _reason(problem), _trace(problem)
        made = {path.name: path.read_bytes() for path in sorted(target.parent.iterdir()) if path.is_file()}
        return _Outcome(made, error, trace)


def _reason(error: BaseException) -> str:
    """Say in one line what went wrong; for a cell, the exception it raised."""
    cause = error.__cause__
    name, value = getattr(cause, "ename", ""), getattr(cause, "evalue", "")
    said = str(error) or type(error).__name__
    if name and not isinstance(error, InputError):
        said = f"{said.partition(':')[0]}: {name}: {value}"
    return " ".join(_COLOUR.sub("", said).split())[:500]


def _trace(error: BaseException) -> str:
    lines = getattr(error.__cause__, "traceback", None)
    text = "\n".join(lines) if lines else "".join(traceback.format_exception(error))
    return _COLOUR.sub("", text).rstrip() + "\n"
