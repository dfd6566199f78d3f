"""Score 1, 3 and 10 million ranking rows from partitioned Parquet: time and peak memory.

Five arms of depth 100 over 2,000 to 20,000 queries, 50,000 memories, ten labels with random axes and two anchors for
each query. Every step (writing the tables, partitioning, scoring with intervals) runs in a process of its own, so
that its peak memory can be read from the operating system; the tables are made piece by piece and never exist as a
whole in memory. With --jobs N, scoring is repeated on N local processes of a Dask cluster; peaks of all processes are
then added up, which counts shared pages several times.

Run: python benchmarks/scale.py [--millions 1 3 10] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ARMS, DEPTH, MEMORIES, NAMESPACES, LABELS = 5, 100, 50_000, 90, 10
LIMIT_MIB = 2048


def make(folder: Path, rows: int) -> None:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rng = np.random.default_rng(0)
    memory = np.array([f"memory-{i:06d}" for i in range(MEMORIES)])
    space = np.array([f"namespace-{i:03d}" for i in range(NAMESPACES)])
    queries = rows // (ARMS * DEPTH)
    query = np.array([f"query-{i:06d}" for i in range(queries)])
    pd.DataFrame({"memory_id": memory, "namespace": space[rng.integers(0, NAMESPACES, MEMORIES)]}).to_parquet(
        folder / "memories.parquet", index=False
    )
    pd.DataFrame({"query_id": query, "namespace": space[rng.integers(0, NAMESPACES, queries)]}).to_parquet(
        folder / "queries.parquet", index=False
    )
    # A route is a stretch of a walk through all memories, so it holds none twice; labels lie on its beginning.
    start = rng.integers(0, MEMORIES, queries)
    listed = (start[:, None] + rng.permuted(np.tile(np.arange(40), (queries, 1)), axis=1)[:, :LABELS]) % MEMORIES
    axes = {axis: rng.choice([True, False, None], listed.size, p=[0.7, 0.2, 0.1]) for axis in ("policy", "lifecycle")}
    anchor = np.tile(np.arange(LABELS) < 2, queries)
    labels = {
        "query_id": np.repeat(query, LABELS),
        "memory_id": memory[listed.ravel()],
        "relevant": np.where(anchor, True, None),
        "scope": np.where(anchor, True, rng.choice([True, False], listed.size)),
        **{axis: np.where(anchor, True, values) for axis, values in axes.items()},
    }
    pq.write_table(pa.table({name: pa.array(values) for name, values in labels.items()}), folder / "labels.parquet")
    writer = None
    for arm in range(ARMS):
        for block in np.array_split(np.arange(queries), max(1, queries // 2000)):
            shift = rng.integers(0, 20, len(block))
            order = rng.permuted(np.tile(np.arange(DEPTH), (len(block), 1)), axis=1)
            places = (start[block, None] + shift[:, None] + order) % MEMORIES
            table = pa.table(
                {
                    "arm": [f"arm-{arm}"] * places.size,
                    "query_id": np.repeat(query[block], DEPTH),
                    "rank": np.tile(np.arange(1, DEPTH + 1), len(block)),
                    "memory_id": memory[places.ravel()],
                }
            )
            writer = writer or pq.ParquetWriter(folder / "rankings.parquet", table.schema)
            writer.write_table(table)
    assert writer is not None
    writer.close()


def partition(folder: Path, out: Path) -> None:
    from companion.stages import partitioned as scale

    scale.partition(folder, out)


def score(folder: Path, jobs: int) -> dict[str, float]:
    from companion import scoring
    from companion.stages import partitioned as scale

    start = time.perf_counter()
    table = scale.score_partitions(folder, scheduler="processes" if jobs > 1 else None, jobs=max(1, jobs))
    scored = time.perf_counter() - start
    summary = scoring.summarise(table, reference="arm-0")
    return {"score_s": scored, "loss": float(summary.value("arm-1", "loss")["estimate"]), "queries": len(table) / ARMS}


def family_peak(stop: threading.Event, peak: list[float]) -> None:
    """Watch the summed resident memory of this process and its descendants."""
    import psutil

    me = psutil.Process()
    while not stop.wait(0.1):
        total = 0
        for process in [me, *me.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        peak[0] = max(peak[0], total / 2**20)


def child(step: str, arguments: list[str]) -> None:
    begun, found = time.perf_counter(), {}
    peak, stop = [0.0], threading.Event()
    if step == "score" and int(arguments[1]) > 1:
        threading.Thread(target=family_peak, args=(stop, peak), daemon=True).start()
    if step == "make":
        make(Path(arguments[0]), int(arguments[1]))
    elif step == "partition":
        partition(Path(arguments[0]), Path(arguments[1]))
    else:
        found = score(Path(arguments[0]), int(arguments[1]))
    stop.set()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found["wall_s"] = time.perf_counter() - begun
    found["cpu_s"] = sum(use.ru_utime + use.ru_stime for use in usage)
    found["peak_mib"] = peak[0] or usage[0].ru_maxrss / 1024
    print(json.dumps(found))


def run(step: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", step, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(millions: list[float], jobs: int) -> None:
    print("| rows | step | wall, s | CPU, s | CPU per million rows, s | peak memory, MiB |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    rates, peaks = {}, []
    for million in millions:
        rows = int(million * 1e6)
        with tempfile.TemporaryDirectory(prefix="companion-scale-") as folder:
            whole, parts = f"{folder}/whole", f"{folder}/parts"
            run("make", whole, str(rows))
            steps = {"partition": run("partition", whole, parts), "score": run("score", parts, "1")}
            if jobs > 1:
                steps[f"score, {jobs} processes"] = run("score", parts, str(jobs))
        losses = {step["loss"] for step in steps.values() if "loss" in step}
        assert len(losses) == 1, losses
        for name, step in steps.items():
            print(
                f"| {rows:,} | {name} | {step['wall_s']:.1f} | {step['cpu_s']:.1f} | {step['cpu_s'] / million:.2f} "
                f"| {step['peak_mib']:,.0f} |",
                flush=True,
            )
            peaks.append(step["peak_mib"])
        rates[million] = sum(steps[name]["cpu_s"] for name in ("partition", "score")) / million
    first, last = rates[millions[0]], rates[millions[-1]]
    print(f"\nCPU per row at {millions[-1]:g} million is {last / first:.2f} times that at {millions[0]:g} million.")
    print(f"Largest peak {max(peaks):,.0f} MiB (limit {LIMIT_MIB:,}).")
    if max(peaks) > LIMIT_MIB or last > 1.2 * first:
        sys.exit("FAILED: memory or time grows too fast")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 3, 10])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--child", nargs="+")
    options = parser.parse_args()
    if options.child:
        child(options.child[0], options.child[1:])
    else:
        main(options.millions, options.jobs)
