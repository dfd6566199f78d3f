"""Exact inner-product search whose ties do not depend on where a vector happens to lie.

Candidates are found by float32 matrix products, a block of queries against a chunk of vectors at a time. Such sums
differ in the last bit with the place of a row, so two memories with one and the same text could come out with two
scores. Everything that could belong to the top k within the rounding error is therefore scored again in float64, one
row at a time in one fixed order, rounded to float32, and ranked by descending score and ascending memory id. Equal
vectors get equal scores, and the ranking is the one that a plain sort over all candidates gives.

numpy's matrix product does the work: on the same candidates it is several times faster than the search of the
faiss wheel, whose BLAS is older (``benchmarks/search.py`` shows both). The tests compare the two.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from companion.retrieval.pools import Pool

_BLOCK = 256
"""Queries per matrix product."""

_CHUNK = 16_384
"""Vectors per matrix product; bounds the scores held at a time (16 MB) whatever the size of the corpus."""

_ROWS = 256
"""Vectors scored again in float64 at a time."""


@dataclass(frozen=True, eq=False)
class Hits:
    """Ranked memories of one query.

    Parameters
    ----------
    positions : ndarray of int64
        Layout positions, best first.
    scores : ndarray of float32
        In the same order.
    """

    positions: np.ndarray
    scores: np.ndarray


def search(vectors: np.ndarray, queries: np.ndarray, pools: list[Pool], tie: np.ndarray, k: int) -> list[Hits]:
    """Find the k best candidates of each query, reading the pools and nothing else.

    Parameters
    ----------
    vectors : ndarray of float32, shape (memories, dimensions)
        Vectors in layout order, of length at most 1; may be memory-mapped.
    queries : ndarray of float32, shape (queries, dimensions)
        Of length at most 1.
    pools : list of Pool
        One per query. Pools that share a `Pool.base` are searched together.
    tie : ndarray of int64, shape (memories,)
        Equal scores are ranked by ascending `tie`.
    k : int
        At least 1. A pool with fewer candidates is returned whole.

    Returns
    -------
    list of Hits
        One per query.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    for number, pool in enumerate(pools):
        groups[id(pool.base)].append(number)
    found = [Hits(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))] * len(pools)
    for numbers in groups.values():
        base = pools[numbers[0]].base
        matrix, local_tie = (vectors, tie) if base is None else (_taken(vectors, base, pools, numbers), tie[base])
        for block in _blocks(numbers, pools):
            ranges = np.array([pools[number].ranges for number in block], dtype=np.int64)
            who, rows = _candidates(matrix, queries[block], ranges, k)
            ranked = _exact(matrix, queries[block], who, rows, local_tie, k)
            for number, (positions, exact) in zip(block, ranked, strict=True):
                found[number] = Hits(positions if base is None else base[positions], exact)
    return found


def scores(vectors: np.ndarray, query: np.ndarray, pool: Pool) -> np.ndarray:
    """Score every candidate of a pool, in the order of `Pool.positions`.

    Parameters
    ----------
    vectors : ndarray of float32, shape (memories, dimensions)
    query : ndarray of float32, shape (dimensions,)
    pool : Pool

    Returns
    -------
    ndarray of float32, shape (pool.size,)
        The same numbers `search` ranks by.
    """
    if pool.base is not None:
        return _dot(vectors[pool.positions()], query)
    parts = [_dot(vectors[start:stop], query) for start, stop in pool.ranges]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)


def best(values: np.ndarray, tie: np.ndarray, k: int) -> np.ndarray:
    """Find the indices of the k largest values, best first; equal values by ascending `tie`.

    Parameters
    ----------
    values : ndarray of float, shape (n,)
    tie : ndarray of int64, shape (n,)
        Distinct.
    k : int

    Returns
    -------
    ndarray of int64, shape (min(k, n),)
    """
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
    """Put queries of one base in blocks with equally many, similar ranges; empty pools are left out."""
    ordered = sorted(numbers, key=lambda number: (len(pools[number].ranges), pools[number].ranges))
    by_count: dict[int, list[int]] = defaultdict(list)
    for number in ordered:
        by_count[len(pools[number].ranges)].append(number)
    by_count.pop(0, None)
    return [same[start : start + _BLOCK] for same in by_count.values() for start in range(0, len(same), _BLOCK)]


def _candidates(matrix: np.ndarray, queries: np.ndarray, ranges: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Find all that may be among the k best of each query of a block: query numbers, ascending, and rows."""
    # Worst case of a float32 sum of `dimensions` products of vectors of length at most 1, on both sides.
    margin = np.float32(2 * (matrix.shape[1] + 2) * np.finfo(np.float32).eps)
    floor = np.full(len(queries), -np.inf, dtype=np.float32)  # the k-th best of each query is at least this
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for column in range(ranges.shape[1]):
        starts, stops = ranges[:, column, 0], ranges[:, column, 1]
        for low in range(int(starts.min()), int(stops.max()), _CHUNK):
            for who, start, stop in _readers(starts, stops, low, min(low + _CHUNK, int(stops.max()))):
                near = queries[who] @ matrix[start:stop].T
                if near.shape[1] >= k:
                    place = near.shape[1] - k
                    floor[who] = np.maximum(floor[who], np.partition(near, place, axis=1)[:, place])
                flat = np.flatnonzero(near >= (floor[who] - margin)[:, None])
                number, row = np.divmod(flat, stop - start)
                found.append((who[number], row + start, near.ravel()[flat]))
    return _merged(found, floor, k, margin)


def _readers(starts: np.ndarray, stops: np.ndarray, low: int, high: int) -> list[tuple[np.ndarray, int, int]]:
    """Group the queries that see the same part of a chunk; those share a matrix product."""
    first, last = np.maximum(starts, low), np.minimum(stops, high)
    seeing = np.flatnonzero(first < last)
    spans = (first[seeing] - low) * (high - low + 1) + last[seeing] - low
    _, one, group = np.unique(spans, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    members = np.split(seeing[order], np.searchsorted(group[order], np.arange(1, len(one))))
    return [(who, int(first[who[0]]), int(last[who[0]])) for who in members if len(who)]


def _merged(
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]], floor: np.ndarray, k: int, margin: np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Join what the chunks gave, and drop what the k-th best of all chunks rules out."""
    who, rows, near = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if len(found) > 1:
        order = np.lexsort((-near, who))
        ends = np.searchsorted(who[order], np.arange(len(floor)), side="left") + k - 1
        owns = np.minimum(ends, len(who) - 1)
        enough = (ends < len(who)) & (who[order][owns] == np.arange(len(floor)))
        floor = np.where(enough, near[order][owns], floor)
    keep = np.flatnonzero(near >= (floor - margin)[who])
    keep = keep[np.lexsort((rows[keep], who[keep]))]  # the matrix is read forwards, query by query
    return who[keep], rows[keep]


def _exact(
    matrix: np.ndarray, queries: np.ndarray, who: np.ndarray, rows: np.ndarray, tie: np.ndarray, k: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rank each query's candidates by their float64 scores, rounded to float32, and cut to k."""
    exact = np.empty(len(rows), dtype=np.float32)
    wide = queries.astype(np.float64)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        exact[part] = np.einsum("ij,ij->i", matrix[rows[part]].astype(np.float64), wide[who[part]])
    order = np.lexsort((tie[rows], -exact, who))
    rows, exact = rows[order], exact[order]
    starts = np.searchsorted(who, np.arange(len(queries) + 1))  # `who` ascends, and sorting kept it so
    return [(rows[a : min(a + k, z)], exact[a : min(a + k, z)]) for a, z in itertools.pairwise(starts)]


def _dot(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Inner products in float64, every row summed in the same order, rounded to float32."""
    # A BLAS product would be faster and would depend on the row's place; einsum without optimize does not.
    wide = query.astype(np.float64)
    out = np.empty(len(rows), dtype=np.float64)
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS].astype(np.float64)
        np.einsum("ij,j->i", part, wide, out=out[start : start + _ROWS])
    return out.astype(np.float32)
