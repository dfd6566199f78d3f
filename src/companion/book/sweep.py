"""Many runs of one notebook: a grid or a list of parameters, on local processes or a Dask cluster.

A sweep may be killed at any moment. The folder holds one folder per run, named after its parameters; a run counts as
finished when the marker in its folder names the same notebook, parameters, code and data, and every file has the
hash that the marker states. Workers hand their files back and only the process that leads the sweep writes into the
folder, so a worker that outlives a killed leader can spoil nothing.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import hashlib
import itertools
import json
import logging
import multiprocessing
import os
import queue
import re
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from companion import tables
from companion.book import runs
from companion.errors import InputError

Say = Callable[[str], None]

PLAN_FILE = "sweep.json"
LOCK_FILE = ".lock"
HEADLINE_FILE = "headline.csv"
RUNS_FOLDER = "runs"
FINISHED_FILE = "finished.json"
FAILED_FILE = "failed.json"
TRACEBACK_FILE = "traceback.txt"
_MOST_RUNS = 10_000
_SECTIONS = ("notebook", "parameters", "grid", "runs")


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


# --- the plan ----------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML where a key stands once and ``1e-3`` is a number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is given twice: YAML would silently keep the last one."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read and check a sweep file before anything runs."""
    path = Path(path)
    content = _read_yaml(path)
    unknown = [key for key in content if key not in _SECTIONS]
    if unknown:
        raise InputError(f"{path}: section {unknown[0]!r} is unknown; expected {', '.join(_SECTIONS)}")
    notebook = _notebook(path, content.get("notebook"))
    if "grid" in content and content["grid"] in (None, {}):
        raise InputError(f"{path}, grid: nothing is there; expected lines such as 'top_k: [5, 10]'")
    return make_plan(
        notebook,
        parameters=_mapping(content.get("parameters"), f"{path}, parameters"),
        grid=_mapping(content["grid"], f"{path}, grid") if "grid" in content else None,
        runs_list=_entries(content["runs"], f"{path}, runs") if "runs" in content else None,
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
    fixed = _located(parameters or {}, folders)
    fixed = runs.check_parameters(declared, fixed, f"{origin}, parameters ({source.stem})")
    entries = _combinations(grid, origin) if grid is not None else list(enumerate(runs_list or [{}], 1))
    planned: dict[str, Planned] = {}
    for number, entry in entries:
        where = f"{origin}, {'grid' if grid is not None else f'run {number}'}"
        both = [name for name in entry if name in fixed]
        if both:
            raise InputError(f"{where}: parameter {both[0]!r} is fixed in parameters; expected it in one place")
        values = {**fixed, **runs.check_parameters(declared, _located(entry, folders), f"{where} ({source.stem})")}
        run = _planned(declared, values)
        runs.check_ranges(source, run.parameters, where)
        if run.name in planned:
            raise InputError(f"{where}: {_described(entry)} is there twice; expected every run once")
        planned[run.name] = run
    every = [run.parameters for run in planned.values()]
    varied = tuple(item.name for item in declared if len({_text(values[item.name]) for values in every}) > 1)
    return Plan(source, tuple(planned.values()), varied)


def _located(values: Mapping[str, Any], folders: Sequence[str | os.PathLike[str]]) -> dict[str, Any]:
    return {name: runs.located(name, value, *folders) for name, value in values.items()}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # a SafeLoader
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError, TypeError) as error:
        raise InputError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        found = "the file is empty" if content is None else f"{content!r} is not a mapping"
        raise InputError(f"{path}: {found}; expected lines such as 'notebook: 02-support', and grid or runs")
    return _mapping(content, str(path))


def _notebook(path: Path, name: Any) -> Path:
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise InputError(f"{path}: notebook is {name!r}; expected a chapter or a path, such as notebook: 02-support")
    beside = path.parent / str(name)
    if beside.suffix in {".md", ".ipynb"} and beside.is_file():
        return beside.resolve()
    return runs.find_notebook(str(name))


def _mapping(content: Any, where: str) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{where}: {content!r} is not a mapping; expected lines such as 'top_k: 20'")
    odd = [key for key in content if not isinstance(key, str)]
    if odd:
        raise InputError(f"{where}: key {odd[0]!r} is not text; expected the name of a parameter")
    return content


def _entries(content: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not content:
        raise InputError(f"{where}: {content!r}; expected a list with one mapping of parameters per run")
    return [_mapping(entry, f"{where}, entry {number}") for number, entry in enumerate(content, 1)]


def _combinations(grid: Mapping[str, Sequence[Any]], origin: str) -> list[tuple[int, dict[str, Any]]]:
    count = 1
    for name, values in grid.items():
        if not isinstance(values, list | tuple) or not values:
            raise InputError(f"{origin}, grid, {name}: {values!r}; expected a list of one value or more")
        count *= len(values)
        if count > _MOST_RUNS:
            raise InputError(f"{origin}, grid: more than {_MOST_RUNS:,} combinations; expected fewer")
    product = itertools.product(*grid.values())
    return [(number, dict(zip(grid, values, strict=True))) for number, values in enumerate(product, 1)]


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


# --- running it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """What a worker must know; everything in it can be sent to another machine."""

    name: str
    notebook: str
    text: bytes
    values: dict[str, Any]
    html: bool
    timeout: int
    fingerprint: str | None = None


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
    folder = Path(out)
    _check_folder(folder)
    with _only_sweep(folder):
        (folder / RUNS_FOLDER).mkdir(exist_ok=True)
        _sweep_up(folder)
        _write_plan(plan, folder)
        keys = _keys(plan)
        waiting = [run for run in plan.runs if not is_finished(folder / RUNS_FOLDER / run.name, keys[run.name])]
        reused = len(plan.runs) - len(waiting)
        if reused:
            say(f"{reused} of {len(plan.runs)} runs were finished before")
        tasks = _tasks(plan, waiting, html, timeout, remote=scheduler is not None)
        width = min(jobs or _cores(), max(1, len(tasks)))
        results = _on_cluster(tasks, scheduler, say) if scheduler else _on_processes(tasks, width, folder)
        failed = {}
        with contextlib.closing(results):
            for done, (name, outcome) in enumerate(results, reused + 1):
                _keep(folder / RUNS_FOLDER / name, outcome, keys[name])
                if outcome.error:
                    failed[name] = outcome.error
                say(f"[{done}/{len(plan.runs)}] {name}" + (f": FAILED, {outcome.error}" if outcome.error else ""))
        headline = headline_table(plan, folder)
        tables.write_table(headline, folder / HEADLINE_FILE)
    return SweepResult(headline, {run.name: failed[run.name] for run in plan.runs if run.name in failed}, reused)


def headline_table(plan: Plan, out: str | os.PathLike[str]) -> pd.DataFrame:
    """Gather the headline numbers of the finished runs of a plan, in the order of the plan."""
    rows = []
    for run in plan.runs:
        for number in read_headline(Path(out) / RUNS_FOLDER / run.name):
            shown = {name: _flat(run.parameters[name]) for name in plan.varied}
            rows.append({"run": run.name, **shown, **number})
    columns = ["run", *plan.varied, "number", "estimate", "low", "high"]
    # Objects: estimates may be text, and whole numbers must not turn into fractions.
    return pd.DataFrame(rows, columns=columns, dtype=object)


def read_headline(folder: Path) -> list[dict[str, Any]]:
    """Return the headline numbers of one finished run (number, estimate, low, high), or none."""
    marker = folder / FINISHED_FILE
    if not marker.is_file():
        return []
    record = next(name for name in json.loads(marker.read_text(encoding="utf-8"))["files"] if name.endswith(".json"))
    found = json.loads((folder / record).read_text(encoding="utf-8"))["headline"]
    return [{"number": item["name"], **{end: item[end] for end in ("estimate", "low", "high")}} for item in found]


def is_finished(folder: Path, key: str | None = None) -> bool:
    """Tell whether a run's folder is complete and undamaged, and (with a key) answers the present plan."""
    try:
        marker = json.loads((folder / FINISHED_FILE).read_text(encoding="utf-8"))
        whole = all(runs.sha256(folder / name) == digest for name, digest in marker["files"].items())
        return whole and (key is None or marker["key"] == key)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _flat(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else _text(value)


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _keys(plan: Plan) -> dict[str, str]:
    """Hash what decides the outputs of each run: notebook, parameters, code, data, versions."""
    shared = [runs.sha256(plan.notebook), runs.fingerprint()]
    return {run.name: hashlib.sha256(_text([*shared, run.parameters]).encode()).hexdigest() for run in plan.runs}


def _tasks(plan: Plan, waiting: Sequence[Planned], html: bool, timeout: int, remote: bool) -> list[_Task]:
    text = plan.notebook.read_bytes()
    stamp = runs.fingerprint() if remote else None
    return [_Task(run.name, str(plan.notebook), text, run.values, html, timeout, stamp) for run in waiting]


@contextlib.contextmanager
def _only_sweep(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system frees it when this process ends, however it ends."""
    with (folder / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"{folder}: another sweep is at work here; wait for it, or choose another folder"
            ) from error
        yield


def _check_folder(folder: Path) -> None:
    """Make the folder, or refuse one that is not a sweep's: what looks like leftovers in it will be removed."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder, found a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own = any((folder / name).exists() for name in (PLAN_FILE, LOCK_FILE))
        if not own and any(folder.iterdir()):
            raise InputError(f"{folder}: holds other files; expected a new folder, or that of an earlier sweep")
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}; expected a folder that can be written") from error


def _sweep_up(folder: Path) -> None:
    """Remove what a killed sweep left half done; its names begin with a dot."""
    for path in [folder / ".scratch", *(folder / RUNS_FOLDER).glob(".*")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _write_plan(plan: Plan, folder: Path) -> None:
    content = {
        "notebook": plan.notebook.name,
        "varied": list(plan.varied),
        "runs": [{"run": run.name, "parameters": run.parameters} for run in plan.runs],
    }
    with tables.atomic_path(folder / PLAN_FILE) as path:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _keep(target: Path, outcome: _Outcome, key: str) -> None:
    try:
        _put(target, outcome, key)
    except OSError as error:
        raise InputError(f"{target}: {error.strerror or error}; expected a place that can be written") from error


def _put(target: Path, outcome: _Outcome, key: str) -> None:
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


# --- workers -----------------------------------------------------------------------------------------------------

# Kernel settings and Sphinx belong to the whole process: a worker with several threads runs one notebook at a time.
_ONE_AT_A_TIME = threading.Lock()
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _perform(task: _Task) -> _Outcome:
    """Run one notebook in this process's care and return its files, or why there are none."""
    with _ONE_AT_A_TIME, tempfile.TemporaryDirectory(prefix="companion-sweep-") as folder:
        source = _source(task, Path(folder))
        target = Path(folder) / "made" / f"{source.stem}.ipynb"
        target.parent.mkdir()
        try:
            _check_worker(task)
            runs.execute(
                source, task.values, target, progress=False, html=task.html, stills=task.html, timeout=task.timeout
            )
        except Exception as error:  # whatever goes wrong in one run must not stop the others
            return _Outcome(_contents(target.parent), _reason(error), _trace(error))
        return _Outcome(_contents(target.parent))


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _source(task: _Task, folder: Path) -> Path:
    """Return the notebook as it was planned: the file itself, so that paths relative to it work, or a copy."""
    path = Path(task.notebook)
    if path.is_file() and path.read_bytes() == task.text:
        return path
    copy = folder / path.name
    copy.write_bytes(task.text)
    return copy


def _check_worker(task: _Task) -> None:
    if task.fingerprint is not None and runs.fingerprint() != task.fingerprint:
        raise runs.RunError(
            "this worker has other code, data or package versions than the process that leads the sweep"
        )


def _reason(error: BaseException) -> str:
    """Say in one line what went wrong; for a cell, the exception it raised."""
    cause = error.__cause__
    name, value = getattr(cause, "ename", ""), getattr(cause, "evalue", "")
    if name and not isinstance(error, InputError):
        where = str(error).partition(":")[0]
        return " ".join(_COLOUR.sub("", f"{where}: {name}: {value}").split())[:500]
    return " ".join(_COLOUR.sub("", str(error) or type(error).__name__).split())[:500]


def _trace(error: BaseException) -> str:
    lines = getattr(error.__cause__, "traceback", None)
    text = "\n".join(lines) if lines else "".join(traceback.format_exception(error))
    return _COLOUR.sub("", text).rstrip() + "\n"


class _Slot:
    """One local worker process at a time, replaced when it dies, so that a death costs the run in it and no other."""

    def __init__(self, threads: int, scratch: Path) -> None:
        self._settings = (threads, str(scratch))
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._pid = 0
        self._closed = False

    def perform(self, task: _Task) -> _Outcome:
        if self._closed:
            return _Outcome(error="the sweep was stopped")
        try:
            return self._ready().submit(_perform, task).result()
        except BrokenProcessPool as error:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown(wait=True)
            return _Outcome(error="the process that ran it was killed", trace=_trace(error))
        except Exception as error:  # such as a full disk where the worker keeps its scratch
            return _Outcome(error=_reason(error), trace=_trace(error))

    def _ready(self) -> concurrent.futures.ProcessPoolExecutor:
        if self._pool is None:
            self._pid = 0
            # Spawned, not forked: a fork would copy locks that threads of this process hold.
            self._pool = concurrent.futures.ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), _begin_worker, self._settings
            )
            self._pid = self._pool.submit(os.getpid).result()
        return self._pool

    def close(self) -> None:
        """Take no more runs, and end the one at work; its kernel ends when it sees its parent gone."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            if self._pid:  # 0 would mean this process and its whole group
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGTERM)
            pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(threads: int, scratch: str) -> None:
    # Interrupting the sweep is the leader's business; a worker that also took the signal would report failed runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What goes wrong in a run is kept with the run; log lines would only break into the leader's progress.
    logging.disable(logging.CRITICAL)
    # Processes share the cores; without this every kernel would start a thread for each of them.
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    Path(scratch).mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = scratch  # what a killed worker leaves is then found and removed
    threading.Thread(target=_end_with_leader, daemon=True).start()


def _end_with_leader() -> None:
    """End this process when the one that leads the sweep is gone: nobody would take the results."""
    leader = multiprocessing.parent_process()
    if leader is not None:
        leader.join()
        os._exit(1)


def _on_processes(tasks: Sequence[_Task], jobs: int, folder: Path) -> Generator[tuple[str, _Outcome], None, None]:
    """Yield outcomes as they come from local processes."""
    scratch = folder.resolve() / ".scratch"
    slots = [_Slot(max(1, _cores() // jobs), scratch / str(number)) for number in range(jobs)]
    free: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
    for slot in slots:
        free.put(slot)

    def work(task: _Task) -> _Outcome:
        slot = free.get()
        try:
            return slot.perform(task)
        finally:
            free.put(slot)

    with concurrent.futures.ThreadPoolExecutor(jobs) as threads:
        names = {threads.submit(work, task): task.name for task in tasks}
        try:
            for future in concurrent.futures.as_completed(names):
                yield names[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for slot in slots:
                slot.close()
            shutil.rmtree(scratch, ignore_errors=True)


def _on_cluster(tasks: Sequence[_Task], address: str, say: Say) -> Generator[tuple[str, _Outcome], None, None]:
    """Yield outcomes as they come from the workers of a Dask cluster."""
    from companion.cluster import connect

    with connect(address, say) as client:
        from distributed import as_completed

        futures = {client.submit(_perform, task, pure=False): task.name for task in tasks}
        for future in as_completed(list(futures), loop=client.loop):
            if future.status == "finished":
                yield futures[future], future.result()
            else:
                error = future.exception()
                reason = f"the cluster gave it up: {' '.join(str(error).split())}"[:500]
                yield futures[future], _Outcome(error=reason, trace="".join(traceback.format_exception(error)))
            future.release()
