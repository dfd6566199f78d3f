"""Score every route at its matched prefix, all arms and queries at once (protocol, section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.scoring.pairs import PairLabels, anchors_of, encode
from companion.tables import Records

Recall = float | str | Fraction

_TYPED = {"wrong_scope": "scope", "policy_disallowed": "policy", "lifecycle_incompatible": "lifecycle"}


def evidence_needed(target_recall: Recall, anchors: np.ndarray) -> np.ndarray:
    """Count the anchors a route must hit: ceil(target recall x anchors), in exact arithmetic.

    Parameters
    ----------
    target_recall : float, str or Fraction
        Between 0 and 1. A float stands for the decimal number it prints as, so .7 of 10 anchors is 7 and not 8;
        ``"2/3"`` and Fractions are exact.
    anchors : ndarray of int64, shape (n,)

    Returns
    -------
    ndarray of int64, shape (n,)

    Raises
    ------
    InputError
        If the target is not a number between 0 and 1.
    """
    target = _fraction(target_recall)
    counts, place = np.unique(np.asarray(anchors, dtype=np.int64), return_inverse=True)
    # Python integers cannot overflow; there are only as many of them as there are distinct counts.
    needed = [-((-int(count) * target.numerator) // target.denominator) for count in counts]
    return np.array(needed, dtype=np.int64)[place]


def score_routes(
    records: Records,
    *,
    axes: Sequence[str] = logic.AXES,
    family: str = "admissibility",
    target_recall: Recall = 0.8,
    top_k: int | None = None,
    infeasibility_cost: float = 1.0,
    arms: Sequence[str] | None = None,
    anchors: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Score each route of each arm on every query of the records.

    Parameters
    ----------
    records : Records
        Memories, queries, labels and rankings; ``work`` is joined when present.
    axes : sequence of str, default all three
        The axes whose conjunction is the status of a memory. Anchors and typed exposure always use all of them.
    family : {"admissibility", "non_usable"}
        ``non_usable`` adds relevance to the status (the paper's older score).
    target_recall : float, str or Fraction, default .8
        The share of anchors that the matched prefix must reach.
    top_k : int, optional
        Routes are cut to this depth first; by default they are scored as long as they are.
    infeasibility_cost : float, default 1.0
        Loss of a query whose route does not reach the target.
    arms : sequence of str, optional
        Arms to score, by default all of them in order of appearance. An arm is scored on every query: where it
        returned nothing its route is empty.
    anchors : DataFrame, optional
        Columns ``query_id``, ``memory_id``, ``anchor_id``. By default the known usable memories of the labels. Given
        when labels were hidden after retrieval, so that recall stays what it was.

    Returns
    -------
    DataFrame, one row per arm and query
        ``arm``, ``query_id``, ``source``, ``group``, ``stratum``, ``anchors``, ``evidence_recall``, ``feasible``,
        ``matched_prefix``, ``lower_bound``, ``upper_bound``, ``known_rate``, ``label_coverage``, ``any_violation``,
        ``violation_count``, ``wrong_scope``, ``policy_disallowed``, ``lifecycle_incompatible``, ``loss``,
        ``infeasibility_component``, ``prefix_component``, ``candidates_scored``. Shares are in [0, 1]. Undefined is
        missing: everything for a query without anchors, prefix quantities for an infeasible one.

    Raises
    ------
    InputError
        For unknown ids, arms, axes or families, gaps or repetitions in ranks, a memory twice in a route, a target
        outside [0, 1], a depth below 1 or a negative or infinite cost.

    Notes
    -----
    Protocol, section 2. With target recall 0 the matched prefix is empty: it exposes nothing, so both bounds are 0,
    coverage is 1 and the known rate is undefined.
    """
    axes = logic.check_axes(axes)
    logic.check_family(family)
    _check_options(top_k, infeasibility_cost)
    pairs = PairLabels.from_records(records)
    rows = _RouteRows.build(records, pairs, arms, top_k)
    need, hits = _anchor_hits(rows, pairs, anchors_of(records, pairs) if anchors is None else anchors, target_recall)
    total = np.tile(need.total, len(rows.arms))
    needed = np.tile(need.needed, len(rows.arms))
    result = rows.frame(records)
    result["anchors"] = total
    evaluable = total > 0
    found = np.bincount(hits["route"], minlength=len(total))
    result["evidence_recall"] = np.where(evaluable, found / np.where(evaluable, total, 1), np.nan)
    prefix = _matched_prefix(hits, needed, len(total))
    feasible = evaluable & (prefix >= 0)
    result["feasible"] = _integers(feasible, evaluable)
    counts = _prefix_counts(rows, pairs, np.where(feasible, prefix, 0), axes, family)
    _add_prefix_quantities(result, counts, np.where(feasible, prefix, 0), feasible)
    upper = result["upper_bound"].to_numpy()
    cost = float(infeasibility_cost)
    result["loss"] = np.where(evaluable, np.where(feasible, upper, cost), np.nan)
    result["infeasibility_component"] = np.where(evaluable, np.where(feasible, 0.0, cost), np.nan)
    result["prefix_component"] = np.where(evaluable, np.where(feasible, upper, 0.0), np.nan)
    result["candidates_scored"] = _work(records, rows)
    return result


@dataclass(frozen=True)
class _RouteRows:
    """Ranked rows in order of (arm, query, rank); a route's code is arm code x queries + query code."""

    arms: list[str]
    queries: pd.Index
    route: np.ndarray
    memory: np.ndarray
    rank: np.ndarray

    @classmethod
    def build(cls, records: Records, pairs: PairLabels, arms: Sequence[str] | None, top_k: int | None) -> _RouteRows:
        rankings = records.rankings
        if rankings is None or rankings.empty:
            raise InputError("rankings: no rows; expected at least one ranked memory to score")
        codes, present = pd.factorize(rankings["arm"])
        names = _choose_arms(list(present), arms)
        if arms is not None:
            chosen = np.isin(codes, [list(present).index(name) for name in names])
            rankings = rankings[chosen]
        arm = encode(rankings["arm"], pd.Index(names, dtype="str"), "rankings", "arm")
        query = encode(rankings["query_id"], pairs.queries, "rankings", "query_id")
        memory = encode(rankings["memory_id"], pairs.memories, "rankings", "memory_id")
        rank = rankings["rank"].to_numpy(np.int64)
        route = arm * len(pairs.queries) + query
        order = _route_order(route, rank)
        if order is not None:
            route, memory, rank = route[order], memory[order], rank[order]
        rows = cls(names, pairs.queries, route, memory, rank)
        rows._check(pairs)
        if top_k is None:
            return rows
        kept = rank <= top_k
        return cls(names, pairs.queries, route[kept], memory[kept], rank[kept])

    def _check(self, pairs: PairLabels) -> None:
        """Refuse gaps and repetitions: a prefix of such a route has no defined content."""
        starts = np.flatnonzero(np.diff(self.route, prepend=-1))
        expected = np.arange(len(self.route)) - np.repeat(starts, np.diff(np.append(starts, len(self.route)))) + 1
        wrong = self.rank != expected
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"rankings: {self._name(row)}: rank {self.rank[row]} where {expected[row]} was expected; "
                "ranks of a route are 1, 2, ... without gaps or repetitions"
            )
        keys = self.route * len(pairs.memories) + self.memory
        # Sorting finds that a repetition exists several times faster than hashing finds where.
        if (np.diff(np.sort(keys)) == 0).any():
            row = int(np.argmax(pd.Series(keys).duplicated().to_numpy()))
            raise InputError(f"rankings: {self._name(row)}: memory {pairs.memories[self.memory[row]]!r} stands twice")

    def _name(self, row: int) -> str:
        arm, query = divmod(int(self.route[row]), len(self.queries))
        return f"arm {self.arms[arm]!r}, query {self.queries[query]!r}"

    def frame(self, records: Records) -> pd.DataFrame:
        """Start the result: one row per arm and query, in the order of route codes."""
        count = len(self.queries)
        place = np.tile(np.arange(count), len(self.arms))
        result = pd.DataFrame({"arm": pd.Series(np.repeat(self.arms, count), dtype="str")})
        for column in ("query_id", "source", "group", "stratum"):
            result[column] = records.queries[column].array.take(place)
        return result


@dataclass(frozen=True)
class _Need:
    total: np.ndarray
    needed: np.ndarray


def _choose_arms(present: list[str], arms: Sequence[str] | None) -> list[str]:
    if arms is None:
        return present
    unknown = [arm for arm in arms if arm not in present]
    if unknown:
        raise InputError(f"arm {unknown[0]!r} is not in the rankings; they hold {', '.join(map(str, present))}")
    return list(dict.fromkeys(arms))


def _route_order(route: np.ndarray, rank: np.ndarray) -> np.ndarray | None:
    """Return the sorting permutation, or None when rows already stand in order (the usual case)."""
    step = np.diff(route)
    if not ((step < 0) | ((step == 0) & (np.diff(rank) < 0))).any():
        return None
    return np.lexsort((rank, route))


def _anchor_hits(
    rows: _RouteRows, pairs: PairLabels, anchors: pd.DataFrame, target_recall: Recall
) -> tuple[_Need, pd.DataFrame]:
    """Count anchors per query and find, for every route, the rank at which each distinct anchor is first hit."""
    query = encode(anchors["query_id"], pairs.queries, "anchors", "query_id")
    memory = encode(anchors["memory_id"], pairs.memories, "anchors", "memory_id")
    table = pd.DataFrame({"key": query * len(pairs.memories) + memory, "query": query})
    table["anchor"] = _anchor_codes(query, memory, anchors["anchor_id"])
    total = np.bincount(table.drop_duplicates("anchor")["query"], minlength=len(pairs.queries))
    need = _Need(total, evidence_needed(target_recall, total))
    keys = (rows.route % len(pairs.queries)) * len(pairs.memories) + rows.memory
    hit = pd.Index(table["key"].unique()).get_indexer(pd.Index(keys)) >= 0
    found = pd.DataFrame({"key": keys[hit], "route": rows.route[hit], "rank": rows.rank[hit]})
    found = found.merge(table[["key", "anchor"]], on="key")
    # Interchangeable memories share an anchor: only the first of them counts.
    return need, found.groupby(["route", "anchor"])["rank"].min().reset_index()


def _anchor_codes(query: np.ndarray, memory: np.ndarray, anchor_id: pd.Series) -> np.ndarray:
    """Give every distinct anchor a number; a memory without an anchor id stands for itself."""
    own = anchor_id.isna().to_numpy()
    named = pd.factorize(anchor_id)[0]
    return (
        pd.DataFrame({"query": query, "own": own, "name": np.where(own, memory, named)})
        .groupby(["query", "own", "name"])
        .ngroup()
        .to_numpy()
    )


def _matched_prefix(hits: pd.DataFrame, needed: np.ndarray, routes: int) -> np.ndarray:
    """Return the length of each route's smallest prefix that reaches the target, -1 where none does."""
    prefix = np.where(needed == 0, 0, -1)
    ordered = hits.sort_values(["route", "rank"], kind="stable")
    nth = ordered.groupby("route").cumcount().to_numpy() + 1
    route = ordered["route"].to_numpy()
    last = nth == needed[route]
    prefix[route[last]] = ordered["rank"].to_numpy()[last]
    return prefix


def _prefix_counts(
    rows: _RouteRows, pairs: PairLabels, prefix: np.ndarray, axes: Sequence[str], family: str
) -> dict[str, np.ndarray]:
    """Count, in every matched prefix, known violations, unresolved items and known zeros of each axis."""
    inside = rows.rank <= prefix[rows.route]
    route = rows.route[inside]
    labels = pairs.lookup(route % len(pairs.queries), rows.memory[inside])
    status = logic.status(labels, axes, family)

    def count(mask: pd.Series) -> np.ndarray:
        return np.bincount(route[mask.to_numpy(bool, na_value=False)], minlength=len(prefix))

    counts = {name: count(~labels[axis]) for name, axis in _TYPED.items()}
    return {"bad": count(~status), "unresolved": count(status.isna()), **counts}


def _add_prefix_quantities(
    result: pd.DataFrame, counts: dict[str, np.ndarray], size: np.ndarray, feasible: np.ndarray
) -> None:
    bad, unresolved = counts["bad"], counts["unresolved"]
    known = size - unresolved
    # An empty prefix exposes nothing: dividing by 1 instead of 0 gives it shares of 0.
    items = np.maximum(size, 1)

    def defined(values: np.ndarray, where: np.ndarray = feasible) -> np.ndarray:
        return np.where(where, values, np.nan)

    result["matched_prefix"] = _integers(size, feasible)
    result["lower_bound"] = defined(bad / items)
    result["upper_bound"] = defined((bad + unresolved) / items)
    result["known_rate"] = defined(bad / np.maximum(known, 1), feasible & (known > 0))
    result["label_coverage"] = defined(np.where(size > 0, known / items, 1.0))
    result["any_violation"] = _integers(bad > 0, feasible)
    result["violation_count"] = _integers(bad, feasible)
    for name in _TYPED:
        result[name] = defined(counts[name] / items)


def _integers(values: np.ndarray, defined: np.ndarray) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(values.astype(np.int64), ~defined)


def _work(records: Records, rows: _RouteRows) -> np.ndarray:
    scored = np.full(len(rows.arms) * len(rows.queries), np.nan)
    if records.work is None:
        return scored
    work = records.work[records.work["arm"].isin(rows.arms)]
    arm = encode(work["arm"], pd.Index(rows.arms, dtype="str"), "work", "arm")
    query = encode(work["query_id"], rows.queries, "work", "query_id")
    scored[arm * len(rows.queries) + query] = work["candidates_scored"].to_numpy(float)
    return scored


def _fraction(target_recall: Recall) -> Fraction:
    try:
        if isinstance(target_recall, Fraction):
            target = target_recall
        elif isinstance(target_recall, str) and "/" in target_recall:
            target = Fraction(target_recall)
        else:
            target = Fraction(Decimal(str(target_recall)))
    except (ValueError, InvalidOperation, ZeroDivisionError, OverflowError) as error:
        raise InputError(f"target recall {target_recall!r}: expected a number between 0 and 1") from error
    if not 0 <= target <= 1:
        raise InputError(f"target recall {target_recall}: expected a number between 0 and 1")
    return target


def _check_options(top_k: int | None, infeasibility_cost: float) -> None:
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k {top_k}: expected a depth of at least 1")
    if not np.isfinite(infeasibility_cost) or infeasibility_cost < 0:
        raise InputError(f"infeasibility cost {infeasibility_cost}: expected a finite number of at least 0")
