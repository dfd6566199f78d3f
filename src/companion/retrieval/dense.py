"""Exact inner-product search whose ties do not depend on where a vector happens to lie.

faiss finds the candidates in float32. Its sums, like any fast matrix product's, differ in the last bit with the
position of a row, so two memories with one and the same text could come out with two scores. Everything that
could belong to the top k within the rounding error is therefore scored again in float64, one row at a time in one
fixed order, rounded to float32, and ranked by descending score and ascending memory id. Equal vectors get equal
scores, and the ranking is the one that a plain sort over all candidates gives.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from companion.retrieval.pools import Pool

_BLOCK = 64
"""Queries per call of faiss: enough for its blocked matrix product."""

_SLACK = 8
"""Neighbours asked for beyond k, so that ordinary ties at the cut need no second search."""

_TOGETHER = 12
"""From so many queries on, one matrix product for all beats one pass over the vectors for each."""

_switch = threading.Lock()


@dataclass(frozen=True, eq=False)
class Hits:
    """Ranked memories of one query."""

    positions: np.ndarray
    scores: np.ndarray


def search(vectors: np.ndarray, queries: np.ndarray, pools: list[Pool], tie: np.ndarray, k: int) -> list[Hits]:
    """Find the k best candidates of each query, reading the pools and nothing else."""
    groups: dict[int, list[int]] = defaultdict(list)
    for number, pool in enumerate(pools):
        groups[id(pool.base)].append(number)
    found = [Hits(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))] * len(pools)
    for numbers in groups.values():
        base = pools[numbers[0]].base
        matrix, local_tie = (vectors, tie) if base is None else (_taken(vectors, base, pools, numbers), tie[base])
        for block in _blocks(numbers, pools):
            ranges = np.array([pools[number].ranges for number in block], dtype=np.int64)
            near = _candidates(matrix, queries[block], ranges, k)
            for number, (rows, approximate) in zip(block, near, strict=True):
                hits = _exact(matrix, queries[number], rows, approximate, local_tie, k)
                found[number] = hits if base is None else Hits(base[hits.positions], hits.scores)
    return found


def scores(vectors: np.ndarray, query: np.ndarray, pool: Pool) -> np.ndarray:
    """Score every candidate of a pool, in the order of `Pool.positions`."""
    if pool.base is not None:
        return _dot(vectors[pool.positions()], query)
    parts = [_dot(vectors[start:stop], query) for start, stop in pool.ranges]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)


def best(values: np.ndarray, tie: np.ndarray, k: int) -> np.ndarray:
    """Find the indices of the k largest values, best first; equal values by ascending `tie`."""
    rows = np.arange(len(values))
    if k < len(values):
        # Everything tied with the k-th value competes for the last places.
        rows = np.flatnonzero(values >= np.partition(values, len(values) - k)[len(values) - k])
    return rows[np.lexsort((tie[rows], -values[rows]))][:k]


def _taken(vectors: np.ndarray, base: np.ndarray, pools: list[Pool], numbers: list[int]) -> np.ndarray:
    """Copy the listed vectors up to the last one that any query of the group may see."""
    last = max((pools[number].ranges[-1][1] for number in numbers if pools[number].ranges), default=0)
    return np.ascontiguousarray(vectors[base[:last]])


def _blocks(numbers: list[int], pools: list[Pool]) -> list[list[int]]:
    """Put queries of one base in blocks with equally many ranges that share rows; empty pools are left out."""
    blocks: list[list[int]] = []
    shared: list[tuple[int, int]] = []
    for number in sorted(numbers, key=lambda number: (len(pools[number].ranges), pools[number].ranges)):
        ranges = pools[number].ranges
        if not ranges:
            continue
        if blocks and len(ranges) == len(shared) and len(blocks[-1]) < _BLOCK:
            both = [(max(a, c), min(z, y)) for (a, z), (c, y) in zip(shared, ranges, strict=True)]
            if any(start < stop for start, stop in both):
                blocks[-1].append(number)
                shared = both
                continue
        blocks.append([number])
        shared = list(ranges)
    return blocks


def _candidates(
    matrix: np.ndarray, queries: np.ndarray, ranges: np.ndarray, k: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and float32 scores of all that may be among the k best of each query of a block."""
    parts: list[list[_Part]] = [[] for _ in range(len(queries))]
    for column in range(ranges.shape[1]):
        starts, stops = ranges[:, column, 0], ranges[:, column, 1]
        low, high = int(starts.max()), int(stops.min())
        if low < high:
            rows, near, whole = _nearest(matrix, queries, low, high, k + _SLACK)
            for number in range(len(queries)):
                parts[number].append(_Part(low, high, rows[number], near[number], whole))
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            edges = ((start, low), (high, stop)) if low < high else ((start, stop),)
            parts[number].extend(_part(matrix, queries[number], int(a), int(z), k + _SLACK) for a, z in edges if a < z)
    return [_deepened(matrix, query, own, k) for query, own in zip(queries, parts, strict=True)]


@dataclass(frozen=True, eq=False)
class _Part:
    """Best rows of one range of one query; `whole` when the range has no others."""

    start: int
    stop: int
    rows: np.ndarray
    near: np.ndarray
    whole: bool


def _part(matrix: np.ndarray, query: np.ndarray, start: int, stop: int, m: int) -> _Part:
    rows, near, whole = _nearest(matrix, query[None], start, stop, m)
    return _Part(start, stop, rows[0], near[0], whole)


def _nearest(
    matrix: np.ndarray, queries: np.ndarray, start: int, stop: int, m: int
) -> tuple[np.ndarray, np.ndarray, bool]:
    import faiss

    m = min(m, stop - start)
    with _blas(len(queries) >= _TOGETHER):
        near, rows = faiss.knn(queries, matrix[start:stop], m, metric=faiss.METRIC_INNER_PRODUCT)
    if (rows < 0).any():  # faiss fills up with -1 where a product is not a number
        raise ValueError("a vector is not finite")
    return rows + start, near, m == stop - start


@contextmanager
def _blas(wanted: bool) -> Iterator[None]:
    """Let faiss use its matrix product; by itself it does so only for blocks of some hundred queries."""
    import faiss

    if not wanted:
        yield
        return
    with _switch:
        usual = faiss.cvar.distance_compute_blas_threshold
        faiss.cvar.distance_compute_blas_threshold = 0
        try:
            yield
        finally:
            faiss.cvar.distance_compute_blas_threshold = usual


def _deepened(matrix: np.ndarray, query: np.ndarray, parts: list[_Part], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Ask for more until nothing left out can reach the k-th score, then merge the parts."""
    # Worst case of a float32 sum of `dimensions` products of vectors of length at most 1, on both sides.
    margin = 2 * (matrix.shape[1] + 2) * np.finfo(np.float32).eps
    while True:
        near = np.concatenate([part.near for part in parts])
        cut = -np.inf if len(near) < k else np.partition(near, len(near) - k)[len(near) - k] - margin
        short = [n for n, part in enumerate(parts) if not part.whole and part.near[-1] >= cut]
        if not short:
            rows = np.concatenate([part.rows for part in parts])
            return rows[near >= cut], near[near >= cut]
        for n in short:
            part = parts[n]
            parts[n] = _part(matrix, query, part.start, part.stop, 4 * len(part.rows))


def _exact(matrix: np.ndarray, query: np.ndarray, rows: np.ndarray, near: np.ndarray, tie: np.ndarray, k: int) -> Hits:
    """Rank candidates by their float64 scores, rounded to float32."""
    order = np.argsort(rows)  # read the matrix forwards
    rows = rows[order]
    exact = _dot(matrix[rows], query)
    chosen = best(exact, tie[rows], k)
    return Hits(rows[chosen], exact[chosen])


def _dot(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Inner products in float64, every row summed in the same order, rounded to float32."""
    # A BLAS product would be faster and would depend on the row's place; einsum without optimize does not.
    wide = query.astype(np.float64)
    out = np.empty(len(rows), dtype=np.float64)
    for start in range(0, len(rows), 4096):
        part = rows[start : start + 4096].astype(np.float64)
        np.einsum("ij,j->i", part, wide, out=out[start : start + 4096])
    return out.astype(np.float32)
