"""Time sweeps of chapter 02 on frozen RHELM, and kill them.

1. One rerun (no page) in a process that has run one before, as in a sweep, beside what it takes in the same run to
   start a kernel and import pandas, altair and seaborn. The two alternate; medians of wall time are compared.
   Processor time is printed too: on a busy machine it is the steadier of the two.
2. A sweep of 12 reruns: wall time, and how many cores it kept busy.
3. A sweep of 12 runs of a small notebook, killed with SIGKILL at random moments and resumed: its final table must
   equal the undisturbed one.

The live part of the chapter (an embedded corpus) is switched off: it measures the encoder, not reruns.

Run: python benchmarks/sweep.py [--repeats 3] [--kills 10] [--jobs 2]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CHAPTER = "02-support"
LIGHT = {"corpus": "", "others": [], "targets": [0.8], "depths": [20]}
GRID = {"top_k": [5, 10, 20, 50], "target_recall": [0.5, 0.8, 1.0]}
SMALL = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

```{code-cell} ipython3
:tags: [parameters]

# Seed.
seed = 0
# Draws.
draws = 10
```

```{code-cell} ipython3
import numpy as np
from companion.book import glue

values = np.random.default_rng(seed).normal(size=draws)
low, high = np.quantile(values, [0.025, 0.975])
glue(mean={"estimate": values.mean(), "low": low, "high": high}, headline=True)
```
"""
SMALL_GRID = {"seed": [1, 2, 3, 4], "draws": [10, 100, 1000]}
COMMAND = [sys.executable, "-c", "from companion.cli import main; main()"]


def processor_time() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in usage)


def timed(action: Callable[[], object]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), processor_time()
    action()
    return time.perf_counter() - wall, processor_time() - processor


def bare_kernel() -> None:
    from jupyter_client.manager import start_new_kernel

    from companion.book import runs

    with runs.own_kernel():
        manager, client = start_new_kernel(kernel_name="python3")
        client.execute_interactive("import pandas, altair, seaborn", timeout=600)
        client.stop_channels()
        manager.shutdown_kernel()


def light_parameters() -> dict[str, object]:
    """Return what switches the live part off and leaves one point of the chapter's own sweeps."""
    from companion.book import runs

    declared = {item.name for item in runs.declared_parameters(runs.find_notebook(CHAPTER))}
    return {name: value for name, value in LIGHT.items() if name in declared}


def rerun_ratio(repeats: int) -> float:
    from companion.book import runs

    # As in the workers of a sweep, for both: idle threads of numerical libraries spin and would be counted.
    os.environ["OMP_NUM_THREADS"] = "1"

    with tempfile.TemporaryDirectory() as folder:

        def rerun() -> None:
            out = Path(folder) / "run.ipynb"
            runs.execute(CHAPTER, light_parameters(), out, progress=False, html=False, stills=False)

        rerun()
        bare_kernel()
        pairs = [(timed(bare_kernel), timed(rerun)) for _ in range(repeats)]
    print("| | wall, s | processor, s |\n| --- | ---: | ---: |")
    middle = []
    for place, name in enumerate(("kernel with pandas, altair, seaborn", f"rerun of {CHAPTER}")):
        wall, processor = (statistics.median(pair[place][kind] for pair in pairs) for kind in (0, 1))
        middle.append((wall, processor))
        print(f"| {name} | {wall:.2f} | {processor:.2f} |")
    ratios = [middle[1][kind] / middle[0][kind] for kind in (0, 1)]
    print(f"| ratio | {ratios[0]:.2f} | {ratios[1]:.2f} |\n", flush=True)
    return ratios[0]


def write_plan(folder: Path, notebook: str, parameters: dict[str, object], grid: dict[str, list]) -> Path:
    import yaml

    plan = folder / f"{Path(notebook).stem}.yaml"
    plan.write_text(yaml.safe_dump({"notebook": notebook, "parameters": parameters, "grid": grid}))
    return plan


def start(plan: Path, out: Path, jobs: int) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "sweep", str(plan), "--out", str(out), "--jobs", str(jobs), "--no-html"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def whole_sweep(plan: Path, out: Path, jobs: int) -> float:
    codes: list[int] = []
    wall, processor = timed(lambda: codes.append(start(plan, out, jobs).wait()))
    if codes != [0]:
        sys.exit(f"FAILED: the sweep {plan.name} ended with code {codes[0]}")
    print(f"{plan.stem}, 12 runs with {jobs} jobs: {wall:.1f} s, {processor / wall:.2f} cores busy.\n", flush=True)
    return wall


def kills(plan: Path, folder: Path, want: bytes, jobs: int, count: int, lasts: float) -> int:
    """Kill sweeps at random moments until each is done; return how many kills happened."""
    rng, happened, round_number = random.Random(0), 0, 0
    while happened < count:
        out = folder / f"killed-{round_number}"
        round_number += 1
        while True:
            leader = start(plan, out, jobs)
            try:
                leader.wait(lasts * rng.uniform(0.1, 0.7) if happened < count else None)
            except subprocess.TimeoutExpired:
                leader.send_signal(signal.SIGKILL)
                leader.wait()
                happened += 1
                continue
            break
        equal = (out / "headline.csv").read_bytes() == want
        print(
            f"after {happened} kills: the table {'equals' if equal else 'DIFFERS FROM'} the undisturbed one", flush=True
        )
        if not equal:
            sys.exit(1)
    return happened


def main(repeats: int, count: int, jobs: int) -> None:
    ratio = rerun_ratio(repeats)
    with tempfile.TemporaryDirectory(prefix="companion-sweep-") as name:
        folder = Path(name)
        whole_sweep(write_plan(folder, CHAPTER, light_parameters(), GRID), folder / "chapter", jobs)
        (folder / "small.md").write_text(SMALL)
        plan = write_plan(folder, "small.md", {}, SMALL_GRID)
        lasts = whole_sweep(plan, folder / "undisturbed", jobs)
        want = (folder / "undisturbed" / "headline.csv").read_bytes()
        kills(plan, folder, want, jobs, count, lasts)
    if ratio > 2:
        sys.exit(f"FAILED: a rerun takes {ratio:.2f} times the start of a kernel with its imports; at most 2 expected")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    main(options.repeats, options.kills, options.jobs)
