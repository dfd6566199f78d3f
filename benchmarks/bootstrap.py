"""Time and memory of 40 paired contrasts over 87 groups with 10,000 replicates, beside scipy.stats.bootstrap.

Both do the same work on the same data in the same run: percentile intervals of the mean paired difference over queries
when whole groups are resampled (a ratio of sums). Each runs in its own process, so that peak memory is its own.
SciPy is measured as it comes and with ``batch``, which trades speed for memory.

Run it with ``python benchmarks/bootstrap.py``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

GROUPS, QUERIES, CONTRASTS, REPLICATES = 87, 3767, 40, 10_000
REPEATS = 3


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Paired differences, shape (queries, contrasts), and the group of every query."""
    rng = np.random.default_rng(0)
    groups = np.concatenate([np.arange(GROUPS), rng.integers(0, GROUPS, QUERIES - GROUPS)])
    return rng.normal(0, 0.05, (GROUPS, CONTRASTS))[groups] + rng.normal(0, 0.4, (QUERIES, CONTRASTS)), groups


def run_companion() -> np.ndarray:
    import pandas as pd

    from companion.bootstrap import Resampling, ratio_means

    values, groups = make_data()
    table = ratio_means(pd.DataFrame(values), clusters=groups, resampling=Resampling(REPLICATES)).table
    return table.loc[table["source"] == "macro", ["low", "high"]].to_numpy()


def run_scipy(batch: int | None = None) -> np.ndarray:
    from scipy import stats

    values, groups = make_data()
    sums = np.stack([np.bincount(groups, weights=column, minlength=GROUPS) for column in values.T])
    counts = np.broadcast_to(np.bincount(groups, minlength=GROUPS).astype(float), sums.shape)
    interval = stats.bootstrap(
        (sums, counts),
        lambda total, number, axis: total.sum(axis=axis) / number.sum(axis=axis),
        paired=True,
        axis=-1,
        n_resamples=REPLICATES,
        batch=batch,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return np.column_stack([interval.low, interval.high])


RUNS = {
    "companion.bootstrap.ratio_means": run_companion,
    "scipy.stats.bootstrap": run_scipy,
    "scipy.stats.bootstrap, batch=250": lambda: run_scipy(250),
}


def measure(name: str) -> None:
    """Print seconds (best of some), peak memory above what the libraries take, and the interval ends, as JSON."""
    import pandas as pd
    from scipy import stats

    from companion.bootstrap import Resampling, ratio_means

    # pandas and SciPy load parts of themselves at their first call: that is not the work being compared.
    ratio_means(pd.DataFrame({"v": np.arange(4.0)}), clusters=range(4), resampling=Resampling(10))
    stats.bootstrap((np.arange(4.0),), np.mean, n_resamples=10, method="percentile")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        ends = RUNS[name]()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB on Linux
    grown, whole = (peak - before) * unit / 2**20, peak * unit / 2**20
    print(json.dumps({"seconds": min(seconds), "grown": grown, "peak": whole, "ends": ends.tolist()}))


def main() -> None:
    found = {}
    for name in RUNS:
        ran = subprocess.run([sys.executable, __file__, name], check=True, capture_output=True, text=True)
        found[name] = json.loads(ran.stdout)
    ours, *theirs = found.values()
    print(f"{CONTRASTS} contrasts, {GROUPS} groups, {QUERIES} queries, {REPLICATES:,} replicates; best of {REPEATS}\n")
    print("| implementation | seconds | times ours | peak memory, MiB | of it for the work, MiB | times ours |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, run in found.items():
        slower, larger = run["seconds"] / ours["seconds"], run["grown"] / ours["grown"]
        print(
            f"| {name} | {run['seconds']:.3f} | {slower:.1f} | {run['peak']:.0f} | {run['grown']:.0f} | {larger:.1f} |"
        )
    ends = np.array(ours["ends"])
    width = (ends[:, 1] - ends[:, 0])[:, None]
    apart = max(float((np.abs(np.array(run["ends"]) - ends) / width).max()) for run in theirs)
    print(f"\nLargest distance between ends: {apart:.1%} of the interval's width (different resamples).")


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
