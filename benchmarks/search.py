# ruff: noqa: E402  (threads are fixed before numpy is imported)
"""How fast, and how large, exact search is: ratios within one run, so that they mean the same on any machine.

Run: ``python benchmarks/search.py`` (about two minutes), or with ``--full`` to add the 182,908 x 4,096 memory-mapped
case (3 GB of disk in ``--folder``). Prints one line per case; ``--json`` prints the same as JSON.

Times are processor time of one thread, so that neither other programs nor waiting threads enter the ratios.

Cases
    product   exact search (faiss, then float64 for what may be among the best) against a plain matrix product plus a
              partial sort on the same candidates, query by query (target 1.3). "batched" is one product for all
              queries: possible only where every query sees the same candidates, which time limits rule out
    spaces    time per query of a namespace search against a global one as namespaces multiply: falls like the pool,
              down to the time that scoring the best few again in float64 takes whatever the pool
    large     182,908 vectors: time per query, and peak memory against the vectors' size (target 1.25)
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # must be said before numpy is imported

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from companion.retrieval import dense
from companion.retrieval.pools import Pool

MEMORIES = 182_908
"""Memories of the paper's evaluation split."""
TOP_K = 100


def _unit(rows: int, dimensions: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, dimensions), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def _best_of(run: Callable[[], object], times: int = 5) -> float:
    """Shortest of several runs: the one that other processes disturbed least."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def _plain(vectors: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """Score everything in one product, then sort the k largest of each query."""
    scores = queries @ vectors.T
    rows = np.argpartition(-scores, k, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, rows, axis=1), axis=1)
    return np.take_along_axis(rows, order, axis=1)


def product(memories: int, dimensions: int, count: int) -> dict[str, object]:
    """Time our search and the plain one alternately, on all of the vectors."""
    vectors, queries = _unit(memories, dimensions, 0), _unit(count, dimensions, 1)
    tie, pools = np.arange(memories), [Pool(((0, memories),))] * count
    ours = _best_of(lambda: dense.search(vectors, queries, pools, tie, TOP_K))
    plain = _best_of(lambda: [_plain(vectors, queries[n : n + 1], TOP_K) for n in range(count)])
    batched = _best_of(lambda: _plain(vectors, queries, TOP_K))
    found = dense.search(vectors, queries, pools, tie, TOP_K)
    expected = _plain(vectors, queries, TOP_K)
    same = float(np.mean([(hits.positions == rows).mean() for hits, rows in zip(found, expected, strict=True)]))
    return {
        "case": "product", "memories": memories, "dimensions": dimensions, "queries": count,
        "ms_per_query": 1000 * ours / count, "plain_ms_per_query": 1000 * plain / count,
        "batched_ms_per_query": 1000 * batched / count, "ratio": ours / plain, "target": 1.3, "same_places": same,
    }  # fmt: skip


def spaces(memories: int, dimensions: int, each: int, namespaces: int) -> dict[str, object]:
    """Time namespace pools against global ones, with equally many queries in every namespace."""
    vectors = _unit(memories, dimensions, 0)
    queries, few = _unit(each * namespaces, dimensions, 1), _unit(256, dimensions, 2)
    tie = np.arange(memories)
    members = np.array_split(np.arange(memories), namespaces)
    own = [Pool(((int(m[0]), int(m[-1]) + 1),)) for m in members for _ in range(each)]
    everything = [Pool(((0, memories),))] * len(few)
    narrow = _best_of(lambda: dense.search(vectors, queries, own, tie, 20), 3) / len(queries)
    wide = _best_of(lambda: dense.search(vectors, few, everything, tie, 20), 3) / len(few)
    return {
        "case": "spaces", "memories": memories, "dimensions": dimensions, "queries": len(queries),
        "namespaces": namespaces, "ms_per_query": 1000 * narrow, "global_ms_per_query": 1000 * wide,
        "ratio": narrow / wide, "pool_ratio": 1 / namespaces,
    }  # fmt: skip


def large(memories: int, dimensions: int, count: int, folder: Path | None) -> dict[str, object]:
    """Search in a process of its own, so that its peak memory is the search's; memory-mapped if a folder is given."""
    words = [sys.executable, __file__, "--child", str(memories), str(dimensions), str(count), str(folder or "")]
    ran = subprocess.run(words, check=True, capture_output=True, text=True)
    return json.loads(ran.stdout)


def _child(memories: int, dimensions: int, count: int, folder: str) -> dict[str, object]:
    queries = _unit(count, dimensions, 1)
    vectors = _mapped(Path(folder), memories, dimensions) if folder else _filled(memories, dimensions)
    before = _peak() if not folder else _resident()
    pools, tie = [Pool(((0, memories),))] * count, np.arange(memories)
    start = time.process_time()
    dense.search(vectors, queries, pools, tie, TOP_K)
    seconds = time.process_time() - start
    size = memories * dimensions * 4
    held = size if not folder else 0
    return {
        "case": "large", "memories": memories, "dimensions": dimensions, "queries": count, "mapped": bool(folder),
        "ms_per_query": 1000 * seconds / count, "vectors_mb": size / 1e6,
        "peak_over_vectors": (held + _peak() - before) / size, "target": 1.25,
    }  # fmt: skip


def _filled(memories: int, dimensions: int) -> np.ndarray:
    vectors = np.empty((memories, dimensions), dtype=np.float32)
    _fill(vectors)
    return vectors


def _mapped(folder: Path, memories: int, dimensions: int) -> np.ndarray:
    path = folder / f"vectors-{memories}-{dimensions}.npy"
    if not path.exists():
        writing = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(memories, dimensions))
        _fill(writing)
        writing.flush()
    return np.load(path, mmap_mode="r")


def _fill(vectors: np.ndarray) -> None:
    """Fill in blocks, so that filling does not set the peak."""
    for start in range(0, len(vectors), 4096):
        part = vectors[start : start + 4096]
        part[:] = _unit(len(part), vectors.shape[1], start)


def _peak() -> int:
    """Peak resident memory of this process in bytes."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def _resident() -> int:
    """Resident memory now, in bytes, without pages mapped from files (Linux)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


def main() -> None:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="add the 4,096-dimensional memory-mapped case")
    parser.add_argument("--folder", type=Path, help="folder of the memory-mapped vectors; kept when given")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        memories, dimensions, count, folder = options.child
        print(json.dumps(_child(int(memories), int(dimensions), int(count), folder)))
        return
    rows = [product(5_000, 384, 512), product(50_000, 384, 256), product(MEMORIES, 384, 256)]
    rows += [spaces(100_000, 384, 64, namespaces) for namespaces in (1, 4, 16, 64, 256)]
    rows.append(large(MEMORIES, 384, 256, None))
    if options.full:
        with tempfile.TemporaryDirectory() as temporary:
            rows.append(large(MEMORIES, 4096, 128, options.folder or Path(temporary)))
    for row in rows:
        numbers = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
        print(json.dumps(row) if options.json else "  ".join(numbers))


if __name__ == "__main__":
    main()
