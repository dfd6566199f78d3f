"""Sweeps: checked plans, failures that stay alone, resuming after a kill, and what comparisons say."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from _cluster import tcp_cluster
from typer.testing import CliRunner

from companion.book import compare, runs, sweep
from companion.errors import InputError
from companion.paths import only_writer

TINY = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# Tiny

```{code-cell} ipython3
:tags: [parameters]

# A whole number.
a = 1
# A share.
b = 0.5
# What happens.
mode = "plain"
# Things.
names = ["x"]
# Anything.
free = None
```

```{code-cell} ipython3
import os, signal, time
from companion.book import glue

with open("ran.log", "a") as log:
    log.write(f"{a} {b} {mode}\\n")
if mode == "fail":
    raise ValueError("told to fail")
if mode == "kernel":
    os._exit(3)
if mode == "worker":
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(0.2)
glue(total={"estimate": a + b / 3, "low": a, "high": a + b}, headline=True)
glue(product=a * b, words=mode + "," + ",".join(names), headline=True)
```
"""


@pytest.fixture
def tiny(tmp_path) -> Path:
    path = tmp_path / "tiny.md"
    path.write_text(TINY)
    return path


def ran(tiny: Path) -> list[str]:
    log = tiny.parent / "ran.log"
    return sorted(log.read_text().splitlines()) if log.exists() else []


def write_plan(tiny: Path, text: str) -> Path:
    path = tiny.parent / "grid.yaml"
    path.write_text(f"notebook: tiny.md\n{text}")
    return path


# --- plans -------------------------------------------------------------------------------------------------------


def test_grid_is_the_product_in_order(tiny):
    plan = sweep.read_plan(write_plan(tiny, "parameters: {mode: quiet}\ngrid: {a: [1, 2, 3], b: [1e-1, 2]}\n"))
    got = [(run.values["a"], run.values["b"]) for run in plan.runs]
    assert got == list(itertools.product([1, 2, 3], [0.1, 2.0]))
    assert all(type(run.values["b"]) is float for run in plan.runs)
    assert plan.varied == ("a", "b")
    assert {run.parameters["mode"] for run in plan.runs} == {"quiet"}
    assert len({run.name for run in plan.runs}) == 6
    assert all(re.fullmatch(r"[\w.=,+-]+", run.name) for run in plan.runs)


def test_a_run_keeps_its_name_when_the_plan_grows(tiny):
    small = sweep.make_plan(tiny, grid={"a": [1, 2]})
    large = sweep.make_plan(tiny, grid={"a": [4, 2, 1], "b": [0.5, 0.7]})
    assert {run.name for run in small.runs} < {run.name for run in large.runs}


def test_list_of_runs_and_the_default_run(tiny):
    plan = sweep.read_plan(write_plan(tiny, 'runs:\n  - {a: 2}\n  - {names: [x, "../y"], b: 1}\n'))
    assert [run.values for run in plan.runs] == [{"a": 2}, {"names": ["x", "../y"], "b": 1.0}]
    assert plan.varied == ("a", "b", "names")
    assert all("/" not in run.name for run in plan.runs)
    assert len(sweep.make_plan(tiny).runs) == 1


def test_chapters_are_found_by_name():
    assert sweep.make_plan("02", grid={"top_k": [5]}).notebook.name == "02-support.md"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grid: {c: [1]}", "no parameter 'c'"),
        ("grid: {a: [1.5]}", "grid.yaml, grid.*parameter a: 1.5 is float, expected int"),
        ("grid: {a: 1}", "grid, a: 1; expected a list"),
        ("grid: {a: []}", "expected a list"),
        ("grid:", "grid: nothing is there; expected"),
        ("grid: {a: [1, 2, 1]}", "a=1 is there twice"),
        ("runs: [{a: 1}, {}]", "run 2: .*is there twice"),
        ("runs: {a: 1}", "expected a list with one mapping"),
        ("runs: [3]", "entry 1: 3 is not a mapping"),
        ("runs: []", "expected a list"),
        ("runs: [{a: 2}]\ngrid: {a: [1]}", "both grid and runs"),
        ("parameters: {a: 2}\ngrid: {a: [1]}", "parameter 'a' is fixed"),
        ("parameters: {a: 2, a: 3}", "'a' is given twice"),
        ("grids: {a: [1]}", "section 'grids' is unknown"),
        ("grid: {1: [1]}", "key 1 is not text"),
        ("grid: [a", "not valid YAML"),
        ("grid: {a: [.nan]}", "not a finite number|is float"),
        ("grid: {b: [.inf]}", "not a finite number"),
        ("grid: {a: !!python/object/apply:os.getcwd []}", "not valid YAML"),
        ("grid: {a: [2024-01-01]}", "is date"),
        ("grid:\n" + "".join(f"  {n}: {list(range(1, 30))}\n" for n in ("a", "free", "b")), "more than 10,000"),
    ],
)
def test_bad_plans_are_refused_before_anything_runs(tiny, text, said):
    path = write_plan(tiny, text + "\n")
    with pytest.raises(InputError, match=said) as caught:
        sweep.read_plan(path)
    assert "\n" not in str(caught.value)
    done = CliRunner().invoke(__import__("companion.cli", fromlist=["app"]).app, ["sweep", str(path), "--out", "x"])
    assert isinstance(done.exception, InputError)
    assert not ran(tiny)
    assert not Path("x").exists()


def test_missing_files_and_notebooks_are_refused(tiny, tmp_path):
    with pytest.raises(InputError, match=r"none.yaml"):
        sweep.read_plan(tmp_path / "none.yaml")
    path = tmp_path / "bare.yaml"
    for text, said in [
        ("", "bare.yaml: the file is empty; expected lines such as 'notebook: 02-support', and grid or runs"),
        ("# nothing yet\n", "the file is empty"),
        ("[1]", r"\[1\] is not a mapping; expected lines such as 'notebook"),
        ("grid: {a: [1]}", "notebook is None"),
        ("notebook: [1]", "notebook is"),
    ]:
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            sweep.read_plan(path)
    path.write_text("notebook: none.md")
    with pytest.raises(InputError, match="no such notebook"):
        sweep.read_plan(path)


def test_bad_destinations_are_refused(tiny, tmp_path):
    plan = sweep.make_plan(tiny)
    with pytest.raises(InputError, match="found a file"):
        sweep.run_sweep(plan, tiny)
    with pytest.raises(InputError, match="jobs 0"):
        sweep.run_sweep(plan, tmp_path / "out", jobs=0)
    (tmp_path / "mine" / "runs" / ".kept").mkdir(parents=True)
    with pytest.raises(InputError, match="holds other files"):
        sweep.run_sweep(plan, tmp_path / "mine")
    assert (tmp_path / "mine" / "runs" / ".kept").is_dir()
    with only_writer(tmp_path / "out"), pytest.raises(InputError, match="another process writes here"):
        sweep.run_sweep(plan, tmp_path / "out")
    assert not ran(tiny)


# --- running -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A sweep with good runs, a failing one, a dead kernel and a dead worker, run twice."""
    tiny = tmp_path_factory.mktemp("mixed") / "tiny.md"
    tiny.write_text(TINY)
    entries = [{"a": 2}, {"mode": "fail"}, {"mode": "kernel"}, {"a": 3, "b": 0.25}, {"mode": "worker"}, {"a": 4}]
    plan = sweep.make_plan(tiny, runs_list=entries)
    out, said = tiny.parent / "out", []
    first = sweep.run_sweep(plan, out, jobs=2, say=said.append)
    log = ran(tiny)
    again = sweep.run_sweep(plan, out, jobs=2, say=said.append)
    return {"plan": plan, "out": out, "first": first, "again": again, "log": log, "tiny": tiny, "said": said}


def test_failures_stop_no_other_run_and_keep_their_traceback(mixed):
    names = [run.name for run in mixed["plan"].runs]
    failed = mixed["first"].failed
    assert list(failed) == [names[1], names[2], names[4]]
    assert failed[names[1]] == "tiny, cell 3: ValueError: told to fail"
    assert "Kernel died" in failed[names[2]]
    assert "killed" in failed[names[4]]
    folder = mixed["out"] / "runs" / names[1]
    trace = (folder / "traceback.txt").read_text()
    assert 'raise ValueError("told to fail")' in trace
    assert "\x1b" not in trace
    assert (folder / "tiny.failed.ipynb").is_file()
    finished = mixed["out"] / "runs" / names[0]
    assert {path.name for path in finished.iterdir()} == {"tiny.ipynb", "tiny.json", "tiny.html", "finished.json"}
    assert sum("FAILED" in line for line in mixed["said"]) == 6
    assert not list((mixed["out"] / "runs").glob(".*"))
    assert not (mixed["out"] / ".scratch").exists()


def test_only_failed_runs_are_tried_again(mixed):
    assert mixed["again"].reused == 3
    assert mixed["log"] == sorted(["2 0.5 plain", "3 0.25 plain", "4 0.5 plain", *(f"1 0.5 {m}" for m in MODES)])
    assert ran(mixed["tiny"]) == sorted([*mixed["log"], *(f"1 0.5 {mode}" for mode in MODES)])
    pd.testing.assert_frame_equal(mixed["again"].headline, mixed["first"].headline)


MODES = ("fail", "kernel", "worker")


def test_headline_table_holds_the_numbers_of_the_finished_runs(mixed):
    table = pd.read_csv(mixed["out"] / "headline.csv")
    assert list(table.columns) == ["run", "a", "b", "mode", "number", "estimate", "low", "high"]
    total = table[table["number"] == "total"]
    assert total["a"].tolist() == [2, 3, 4]
    # Written so that the same bits come back.
    assert total["estimate"].astype(float).tolist() == [2 + 0.5 / 3, 3 + 0.25 / 3, 4 + 0.5 / 3]
    assert total["high"].tolist() == [2.5, 3.25, 4.5]
    assert table.loc[table["number"] == "product", "low"].isna().all()
    assert (table.loc[table["number"] == "words", "estimate"] == "plain,x").all()


def test_a_damaged_or_outdated_run_is_run_again(tiny, tmp_path):
    plan = sweep.make_plan(tiny, grid={"a": [1, 2]})
    out = tmp_path / "out"
    sweep.run_sweep(plan, out, jobs=2, html=False, say=lambda line: None)
    record = out / "runs" / plan.runs[0].name / "tiny.json"
    whole = (out / "headline.csv").read_bytes()
    record.write_text(record.read_text()[:-40])  # as a full disk leaves it
    assert sweep.run_sweep(plan, out, html=False, say=lambda line: None).reused == 1
    assert len(ran(tiny)) == 3
    assert (out / "headline.csv").read_bytes() == whole
    tiny.write_text(TINY.replace("a + b / 3", "a - b / 3"))
    assert sweep.run_sweep(plan, out, jobs=2, html=False, say=lambda line: None).reused == 0
    assert (out / "headline.csv").read_bytes() != whole


def test_a_sweep_equals_single_reruns(tiny, tmp_path):
    plan = sweep.make_plan(tiny, runs_list=[{"a": 7}])
    sweep.run_sweep(plan, tmp_path / "out", say=lambda line: None)
    alone = runs.execute(tiny, {"a": 7}, tmp_path / "alone" / "tiny.ipynb", progress=False)
    folder = tmp_path / "out" / "runs" / plan.runs[0].name
    for name in ("tiny.ipynb", "tiny.html"):
        assert (folder / name).read_bytes() == (alone.notebook.parent / name).read_bytes()
    assert json.loads((folder / "tiny.json").read_text())["headline"] == alone.record["headline"]


def start(plan: Path, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", "from companion.cli import main; main()", "sweep", str(plan), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--jobs", "2", "--no-html"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A suite that a shell put in the background inherits that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.slow
def test_killed_at_random_moments_then_resumed(tiny, tmp_path):
    plan = write_plan(tiny, "grid: {a: [1, 2, 3], b: [0.25, 0.5]}\n")
    undisturbed = tmp_path / "undisturbed"
    assert start(plan, undisturbed).wait(240) == 0
    want = (undisturbed / "headline.csv").read_bytes()
    assert want.count(b"\n") == 1 + 6 * 3
    out, rng = tmp_path / "out", random.Random(5)
    # So early after so many starts that the sweep cannot be over, whatever else the machine does.
    for starts, longest in ((2, 1.5), (1, 0.2)):
        already = len(ran(tiny))
        leader = start(plan, out)
        while len(ran(tiny)) < already + starts:
            assert leader.poll() is None
            time.sleep(0.01)
        time.sleep(rng.uniform(0, longest))
        family = psutil.Process(leader.pid).children(recursive=True)
        leader.send_signal(signal.SIGKILL)
        leader.wait()
        assert not (out / "headline.csv").exists()
        done = finished(out)
        before = ran(tiny)
        _, alive = psutil.wait_procs(family, timeout=30)
        assert not alive, "workers and kernels end with the leader"
    assert start(plan, out).wait(240) == 0
    assert (out / "headline.csv").read_bytes() == want
    # What was finished at the last kill has not run again since.
    keys = [json.loads((out / "runs" / name / "tiny.json").read_text())["parameters"] for name in done]
    for values in keys:
        line = f"{values['a']} {values['b']} plain"
        assert ran(tiny).count(line) == before.count(line)


@pytest.mark.slow
def test_an_interrupted_sweep_ends_at_once_and_leaves_nobody_behind(tiny, tmp_path):
    leader = start(write_plan(tiny, "grid: {a: [1, 2, 3, 4, 5, 6, 7, 8]}\n"), tmp_path / "out")
    deadline = time.monotonic() + 120
    while not ran(tiny) and time.monotonic() < deadline:
        time.sleep(0.05)
    family = psutil.Process(leader.pid).children(recursive=True)
    leader.send_signal(signal.SIGINT)
    assert leader.wait(30) == 130
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    assert not (tmp_path / "out" / "headline.csv").exists()
    assert not (tmp_path / "out" / ".scratch").exists()


def finished(out: Path) -> list[str]:
    folder = out / "runs"
    return [path.name for path in folder.iterdir() if sweep.is_finished(path)] if folder.is_dir() else []


def test_a_kill_between_any_two_steps_of_keeping_a_run(tiny, tmp_path, monkeypatch):
    """Stop at every file operation in turn: the run is then either absent, as before, or whole."""
    target = tmp_path / "runs" / "one"
    old = sweep._Outcome({"tiny.json": b'{"headline": []}'})
    new = sweep._Outcome({"tiny.json": b'{"headline": [1]}', "tiny.ipynb": b"{}"})
    for name in ("write_bytes", "write_text", "rename"):
        for stop_at in range(1, 4):
            target.parent.mkdir(exist_ok=True)
            sweep._keep(target, old, "k")
            calls, real = itertools.count(1), getattr(Path, name)

            def stopping(self, *args, calls=calls, real=real, stop_at=stop_at, **more):
                if next(calls) == stop_at:
                    raise KeyboardInterrupt
                return real(self, *args, **more)

            with monkeypatch.context() as patch:
                patch.setattr(Path, name, stopping)
                with contextlib.suppress(KeyboardInterrupt):
                    sweep._keep(target, new, "k")
            sweep._sweep_up(tmp_path)
            assert [path.name for path in target.parent.iterdir()] in ([], ["one"])
            assert not target.exists() or sweep.is_finished(target, "k")


@pytest.mark.slow
def test_a_cluster_gives_what_local_processes_give(tiny, tmp_path):
    entries = [{"a": 2}, {"mode": "fail"}, {"a": 3}, {"a": 4}]
    plan = sweep.make_plan(tiny, runs_list=entries)
    here = sweep.run_sweep(plan, tmp_path / "here", jobs=2, html=False, say=lambda line: None)
    with tcp_cluster(tmp_path) as address:
        there = sweep.run_sweep(plan, tmp_path / "there", scheduler=address, html=False, say=lambda line: None)
    assert here.failed == there.failed != {}
    assert (tmp_path / "here/headline.csv").read_bytes() == (tmp_path / "there/headline.csv").read_bytes()
    assert here.failed == there.failed != {}


def test_a_worker_with_other_code_refuses(tiny):
    task = sweep._Task("one", str(tiny), tiny.read_bytes(), {}, False, 60, fingerprint="another")
    outcome = sweep._perform(task)
    assert "other code, data or package versions" in outcome.error
    assert not ran(tiny)


@pytest.mark.slow
@pytest.mark.notebook
def test_same_inputs_same_numbers_bit_for_bit(tmp_path):
    """Two reruns of a chapter, one with other thread settings: equal notebooks and headline numbers."""
    first = runs.execute("04", {"replicates": 500}, tmp_path / "a" / "04.ipynb", progress=False, html=False)
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1" if before != "1" else "2"
    try:
        second = runs.execute("04", {"replicates": 500}, tmp_path / "b" / "04.ipynb", progress=False, html=False)
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        os.environ |= {} if before is None else {"OMP_NUM_THREADS": before}
    assert first.record["headline"] == second.record["headline"] != []
    assert first.notebook.read_bytes() == second.notebook.read_bytes()


# --- comparing ---------------------------------------------------------------------------------------------------


def brute_effects(numbers: pd.DataFrame, varied: list[str], name: str, number: str) -> list[float]:
    """Largest difference in every group of runs that are alike in all parameters but one, by plain loops."""
    rows = [row for row in numbers.to_dict("records") if row["number"] == number and row["estimate"] is not None]
    groups: dict[tuple, list] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[other]) for other in varied if other != name), []).append(row)
    spreads = []
    for group in groups.values():
        if len({str(row[name]) for row in group}) > 1:
            values = [row["estimate"] for row in group]
            spreads.append(max(values) - min(values))
    return spreads


@pytest.mark.parametrize("seed", range(5))
def test_effects_against_plain_loops(seed):
    rng = np.random.default_rng(seed)
    grid = list(itertools.product([5, 10, 20], [0.5, 0.8], ["x", "y", "z"]))
    kept = [grid[i] for i in sorted(rng.choice(len(grid), 13, replace=False))]
    rows = [
        {"run": str(i), "notebook": "n", "k": k, "t": t, "m": m, "number": number, "estimate": estimate}
        | {"low": estimate - 0.1, "high": estimate + 0.1}
        for i, (k, t, m) in enumerate(kept)
        for number, estimate in (("one", float(rng.normal())), ("two", float(rng.normal())))
    ]
    numbers, varied = pd.DataFrame(rows), ["k", "t", "m"]
    table = compare.effects(numbers, varied)
    seen = 0
    for number, name in itertools.product(("one", "two"), varied):
        spreads = brute_effects(numbers, varied, name, number)
        row = table[(table["number"] == number) & (table["parameter"] == name)]
        assert len(row) == (1 if spreads else 0)
        if spreads:
            found = row.iloc[0]
            seen += 1
            assert abs(found["change"]) == pytest.approx(max(spreads), abs=0)
            assert found["typical_change"] == pytest.approx(float(np.median(spreads)), abs=1e-15)
            assert found["sets"] == len(spreads)
            assert found["change"] == found["to_estimate"] - found["from_estimate"]
            apart = found["from_high"] < found["to_low"] or found["to_high"] < found["from_low"]
            assert bool(found["intervals_apart"]) == apart
            order = {"k": [5, 10, 20], "t": [0.5, 0.8]}.get(name)
            assert order is None or order.index(found["from_value"]) < order.index(found["to_value"])
    assert seen >= 4


def test_a_parameter_that_never_varies_alone_moves_nothing():
    rows = [
        {"run": str(a), "notebook": "n", "a": a, "b": b, "number": "x", "estimate": a, "low": None, "high": None}
        for a, b in ((1, 1), (2, 2))
    ]
    assert compare.effects(pd.DataFrame(rows), ["a", "b"]).empty


def test_comparison_of_a_sweep(mixed):
    found = compare.compare(mixed["out"])
    assert found.varied == ("a", "b", "mode")
    assert found.runs["status"].tolist() == ["finished", "failed", "failed", "finished", "failed", "finished"]
    assert found.runs["error"].iloc[1] == "tiny, cell 3: ValueError: told to fail"
    total = found.effects[found.effects["number"] == "total"]
    assert total["parameter"].tolist() == ["a"]  # b never varies alone
    row = total.iloc[0]
    assert (row["from_value"], row["to_value"], row["sets"]) == (2, 4, 1)
    assert row["change"] == (4 + 0.5 / 3) - (2 + 0.5 / 3)
    assert row["intervals_apart"]  # [2, 2.5] and [4, 4.5]
    assert "words" not in set(found.effects["number"])
    product = found.effects[found.effects["number"] == "product"].iloc[0]
    assert product["intervals_apart"] is pd.NA


def test_a_sweep_stopped_half_way_lists_what_is_waiting(mixed, tmp_path):
    import shutil

    shutil.copytree(mixed["out"], tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "runs" / mixed["plan"].runs[3].name)
    assert compare.compare(tmp_path / "out").runs["status"].iloc[3] == "waiting"


def test_runs_command(mixed, tmp_path):
    from companion.cli import app

    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["runs", str(mixed["out"]), "--json", "--html", str(page)])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert len(printed["runs"]) == 6
    assert printed["effects"][0]["change"] == (4 + 0.5 / 3) - (2 + 0.5 / 3)
    text = page.read_text()
    assert "told to fail" in text
    assert not re.search(r"""(?:src|href)=["']https?://""", text)
    shown = CliRunner().invoke(app, ["runs", str(mixed["out"])])
    assert "Largest change" in shown.stdout
    missing = CliRunner().invoke(app, ["runs", str(tmp_path / "none")])
    assert isinstance(missing.exception, InputError)


def test_records_of_single_reruns_are_compared_too(tmp_path):
    for name, k, estimate in (("a", 5, 0.2), ("b/c", 10, 0.4)):
        record = {"notebook": "02.md", "parameters": {"top_k": k, "seed": 0}, "seconds": 1.0}
        record["headline"] = [{"name": "<script>alert(1)</script>", "estimate": estimate, "low": None, "high": None}]
        path = tmp_path / name / "02.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "broken.json").write_text("{")
    found = compare.compare(tmp_path)
    assert found.runs["run"].tolist() == ["a/02", "b/c/02"]
    assert found.varied == ("top_k",)
    assert found.effects["change"].tolist() == [0.2]
    text = compare.page(found, "<b>mine</b>")
    assert "<script>alert" not in text
    assert "<b>mine" not in text
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no runs"):
        compare.compare(tmp_path / "empty")
