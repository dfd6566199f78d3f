"""Matched-recall scoring of ranked routes with bounds for what is unresolved.

One function says what stands in a cut of a route (`profile`): its first k items, its matched prefix, or the rows that
reached a reader. `score_routes` finds the matched prefix of every route and scores it; `companion.summary` averages.
Methods, "Scoring one route".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.labels import PairLabels, anchors_of, encode, hide_labels, label_ranked, stable_uniform
from companion.summary import CONDITIONAL_METRICS, METRICS, TYPED, Summary, summarise

if TYPE_CHECKING:
    from companion.tables import Records

__all__ = [
    "CONDITIONAL_METRICS", "METRICS", "PairLabels", "Summary", "anchors_of", "evidence_needed", "hide_labels",
    "hiding_sweep", "label_ranked", "profile", "score_routes", "stable_uniform", "summarise",
]  # fmt: skip

Recall = float | str | Fraction


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
    """Score each route of each arm at its matched prefix: the smallest that reaches the target recall.

    Parameters
    ----------
    records : Records
        Memories, queries, labels and rankings; ``work`` is joined when present. An arm is scored on the queries that it
        served: those that its rankings hold, and those that ``work`` says it was asked (there its route may be empty,
        which is infeasible), but for requests whose ``status`` in ``work`` is ``failed``.
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
        Arms to score, by default all of the rankings in order of appearance.
    anchors : DataFrame, optional
        As from `anchors_of`, which is the default; given when labels were hidden, so that recall stays what it was.

    Returns
    -------
    DataFrame, one row per arm and query served
        ``arm``, ``query_id``, ``source``, ``group``, ``stratum``; then

        - ``anchors``: required items (distinct anchor ids among the known usable memories);
        - ``evidence_recall``: share of them in the route; ``feasible``: 1 where it reaches the target;
        - ``matched_prefix``: items up to the target; in it ``lower_bound`` and ``upper_bound`` of the share of
          violations, ``known_rate`` (violations among settled items), ``label_coverage`` (share of settled items),
          ``any_violation`` (0/1), ``violation_count``;
        - ``wrong_scope``, ``policy_disallowed``, ``lifecycle_incompatible``: share of the prefix where that axis is 0;
        - ``loss`` (upper bound, or the cost where infeasible) = ``infeasibility_component`` + ``prefix_component``;
        - ``candidates_scored``: exact similarity evaluations, from ``work``.

        Shares are in [0, 1]. Undefined is missing: everything for a query without anchors, prefix quantities for an
        infeasible one. With target recall 0 the matched prefix is empty and exposes nothing.

    Raises
    ------
    InputError
        For unknown ids, arms, axes or families, gaps or repetitions in a route, and options out of range.

    Examples
    --------
    >>> from companion.tables import Records
    >>> records = Records(
    ...     memories=pd.DataFrame({"memory_id": ["a", "b"], "namespace": ["ann", "bob"]}),
    ...     queries=pd.DataFrame({"query_id": ["q"], "namespace": ["ann"]}),
    ...     labels=pd.DataFrame({"query_id": "q", "memory_id": ["a"], "relevant": 1, "policy": 1, "lifecycle": 1}),
    ...     rankings=pd.DataFrame({"arm": "s", "query_id": "q", "rank": [1, 2], "memory_id": ["b", "a"]}),
    ... )
    >>> score_routes(records)[["evidence_recall", "matched_prefix", "lower_bound", "upper_bound"]].values.tolist()
    [[1.0, 2.0, 0.5, 0.5]]
    """
    conjuncts = logic.conjuncts(axes, family)
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k {top_k}: expected a depth of at least 1")
    cost = float(infeasibility_cost)
    if not np.isfinite(cost) or cost < 0:
        raise InputError(f"infeasibility cost {infeasibility_cost}: expected a finite number of at least 0")
    records = records.checked()
    pairs = PairLabels.from_records(records)
    routes = _Routes.ranked(records, pairs, arms)
    inside = slice(None) if top_k is None else routes.rank <= top_k
    total, hits = _anchor_hits(routes, inside, anchors_of(records, pairs) if anchors is None else anchors)
    evaluable = total > 0
    found = np.bincount(hits["route"], minlength=len(total))
    prefix = _matched_prefix(hits, evidence_needed(target_recall, total), len(total))
    feasible = evaluable & (prefix >= 0)
    size = np.where(feasible, prefix, 0)
    result = routes.frame(records)
    result["anchors"] = total
    result["evidence_recall"] = np.where(evaluable, found / np.where(evaluable, total, 1), np.nan)
    result["feasible"] = _integers(feasible, evaluable)
    result["matched_prefix"] = _integers(size, feasible)
    for name, values in routes.quantities(routes.rank <= size[routes.place], conjuncts).items():
        if name in CONDITIONAL_METRICS:
            whole = values.dtype.kind in "bi"
            result[name] = _integers(values, feasible) if whole else np.where(feasible, values, np.nan)
    upper = result["upper_bound"].to_numpy()
    result["loss"] = np.where(evaluable, np.where(feasible, upper, cost), np.nan)
    result["infeasibility_component"] = np.where(evaluable, np.where(feasible, 0.0, cost), np.nan)
    result["prefix_component"] = np.where(evaluable, np.where(feasible, upper, 0.0), np.nan)
    result["candidates_scored"] = routes.work
    result.attrs["queries"] = len(records.queries)
    return result


def profile(
    records: Records,
    cut: int | pd.DataFrame | None = None,
    *,
    rows: pd.DataFrame | None = None,
    axes: Sequence[str] = logic.AXES,
    arms: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Say what stands in a cut of every route.

    Parameters
    ----------
    records : Records
    cut : int, DataFrame or None
        The first k items of every route; or the first ``matched_prefix`` items, where a table as from `score_routes`
        has ``arm``, ``query_id``, ``matched_prefix``; or everything.
    rows : DataFrame, optional
        ``arm``, ``query_id``, ``memory_id`` of what is looked at instead of the rankings, e.g. the exposed rows of a
        ledger. Then every row is inside, unless there are ranks to cut by.
    axes : sequence of str
        What a violation violates: any of ``relevant``, ``scope``, ``policy``, ``lifecycle``.
    arms, queries : sequence of str, optional
        Arms and queries to look at, by default all.

    Returns
    -------
    DataFrame, one row per arm and query served
        ``arm``, ``query_id``, ``source``, ``group``, ``stratum``, ``items``, ``unresolved_count`` (int64), and as in
        `score_routes` bounds, rate, coverage, counts and typed shares of the cut. An empty cut exposes nothing: its
        bounds are 0. A depth below 1, unknown ids, arms or axes are refused.
    """
    unknown = [axis for axis in axes if axis not in ("relevant", *logic.AXES)]
    if unknown or not len(axes):
        raise InputError(f"axes {', '.join(unknown) or '(none)'}: expected some of relevant, {', '.join(logic.AXES)}")
    if isinstance(cut, int | np.integer) and cut < 1:
        raise InputError(f"top_k {cut}: expected a depth of at least 1")
    records = records.checked()
    pairs = PairLabels.from_records(records)
    if rows is None:
        routes = _Routes.ranked(records, pairs, arms, queries)
    else:
        routes = _Routes.build(rows, pairs, _choose_arms(list(pd.unique(rows["arm"])), arms), queries)
    if isinstance(cut, pd.DataFrame):
        key = ["arm", "query_id"]
        lengths = routes.frame(records)[key].merge(cut[[*key, "matched_prefix"]], on=key, how="left")["matched_prefix"]
        inside = routes.rank <= lengths.to_numpy(float, na_value=0)[routes.place]
    else:
        inside = np.ones(len(routes.rank), bool) if cut is None else routes.rank <= cut
    return routes.frame(records).assign(**routes.quantities(inside, axes))


@dataclass(frozen=True)
class _Routes:
    """Ranked rows in order of (arm, query, rank), each with its place among the routes that were served.

    ``codes``: the served routes, arm code x number of queries + query code, ascending.
    """

    arms: list[str]
    pairs: PairLabels
    codes: np.ndarray
    place: np.ndarray
    memory: np.ndarray
    rank: np.ndarray
    work: np.ndarray

    @classmethod
    def ranked(
        cls, records: Records, pairs: PairLabels, arms: Sequence[str] | None, queries: Sequence[str] | None = None
    ) -> _Routes:
        """Take the rankings, and from ``work`` which queries an arm was asked."""
        rankings, work = records.rankings, records.work
        if rankings is None or (rankings.empty and (arms is None or work is None)):
            raise InputError("rankings: no rows; expected at least one ranked memory to score")
        present = list(pd.unique(rankings["arm"]))
        # An arm that returned nothing at all is known from work, and scored only when it is asked for by name.
        asked = [] if arms is None or work is None else list(pd.unique(work["arm"]))
        names = _choose_arms(list(dict.fromkeys([*present, *asked])), arms)
        routes = cls.build(rankings, pairs, names, queries, work)
        routes._check()
        return routes

    @classmethod
    def build(
        cls,
        rows: pd.DataFrame,
        pairs: PairLabels,
        arms: list[str],
        queries: Sequence[str] | None = None,
        work: pd.DataFrame | None = None,
    ) -> _Routes:
        rows = _chosen(rows, arms, queries)
        count = len(pairs.queries)
        route, memory = _route_codes(rows, arms, pairs, "rankings"), pairs.encode(rows, "rankings")[1]
        rank = rows["rank"].to_numpy(np.int64) if "rank" in rows else np.ones(len(rows), np.int64)
        step = np.diff(route)
        if ((step < 0) | ((step == 0) & (np.diff(rank) < 0))).any():  # rows usually stand in order already
            order = np.lexsort((rank, route))
            route, memory, rank = route[order], memory[order], rank[order]
        codes = route[np.flatnonzero(np.diff(route, prepend=-1))]
        scored = np.full(len(arms) * count, np.nan)
        if work is not None:
            asked = _chosen(work, arms, queries)
            own = _route_codes(asked, arms, pairs, "work")
            scored[own] = asked["candidates_scored"].to_numpy(float, na_value=np.nan)
            failed = asked["status"].eq("failed").to_numpy(bool) if "status" in asked else np.zeros(len(asked), bool)
            codes = np.setdiff1d(np.union1d(codes, own), own[failed])
            kept = np.isin(route, own[failed], invert=True)
            route, memory, rank = route[kept], memory[kept], rank[kept]
        return cls(arms, pairs, codes, np.searchsorted(codes, route), memory, rank, scored[codes])

    @property
    def query(self) -> np.ndarray:
        """Query code of every served route."""
        return self.codes % len(self.pairs.queries)

    def _check(self) -> None:
        """Refuse gaps and repetitions: a prefix of such a route has no defined content."""
        starts = np.flatnonzero(np.diff(self.place, prepend=-1))
        expected = np.arange(len(self.place)) - np.repeat(starts, np.diff(np.append(starts, len(self.place)))) + 1
        wrong = self.rank != expected
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"rankings: {self._name(row)}: rank {self.rank[row]} where {expected[row]} was expected; "
                "ranks of a route are 1, 2, ... without gaps or repetitions"
            )
        keys = self.place * len(self.pairs.memories) + self.memory
        # Sorting finds that a repetition exists several times faster than hashing finds where.
        if (np.diff(np.sort(keys)) == 0).any():
            row = int(np.argmax(pd.Series(keys).duplicated().to_numpy()))
            memory = self.pairs.memories[self.memory[row]]
            raise InputError(f"rankings: {self._name(row)}: memory {memory!r} stands twice")

    def _name(self, row: int) -> str:
        arm, query = divmod(int(self.codes[self.place[row]]), len(self.pairs.queries))
        return f"arm {self.arms[arm]!r}, query {self.pairs.queries[query]!r}"

    def frame(self, records: Records) -> pd.DataFrame:
        """Start a result: one row per served route."""
        names = np.array(self.arms, dtype=object)[self.codes // len(self.pairs.queries)]
        result = pd.DataFrame({"arm": pd.Series(names, dtype="str")})
        for column in ("query_id", "source", "group", "stratum"):
            result[column] = records.queries[column].array.take(self.query)
        return result

    def quantities(self, inside: np.ndarray, conjuncts: Sequence[str]) -> dict[str, np.ndarray]:
        """Count the rows inside the cut of every route, and turn the counts into bounds and shares."""
        place = self.place[inside]
        labels = self.pairs.lookup(self.query[place], self.memory[inside])
        status = logic.conjunction([labels[name] for name in conjuncts])

        def count(mask: pd.Series) -> np.ndarray:
            # na_value=False counts only what is known.
            return np.bincount(place[mask.to_numpy(bool, na_value=False)], minlength=len(self.codes))

        size, bad, unresolved = np.bincount(place, minlength=len(self.codes)), count(~status), count(status.isna())
        known = size - unresolved
        items = np.maximum(size, 1)  # an empty cut exposes nothing: shares of 0
        return {
            "items": size,
            "unresolved_count": unresolved,
            "lower_bound": bad / items,
            "upper_bound": (bad + unresolved) / items,
            "known_rate": np.where(known > 0, bad / np.maximum(known, 1), np.nan),
            "label_coverage": np.where(size > 0, known / items, 1.0),
            "any_violation": (bad > 0).astype(np.int64),
            "violation_count": bad,
            **{name: count(~labels[axis]) / items for name, axis in TYPED.items()},
        }


def _choose_arms(present: list[str], arms: Sequence[str] | None) -> list[str]:
    names = present if arms is None else list(dict.fromkeys(arms))
    unknown = [arm for arm in names if arm not in present]
    if unknown or not names:
        what = f"arm {unknown[0]!r} is not in the rankings" if unknown else "no arm"
        raise InputError(f"{what}; they hold {', '.join(map(str, present))}")
    return names


def _chosen(rows: pd.DataFrame, arms: list[str], queries: Sequence[str] | None) -> pd.DataFrame:
    rows = rows[rows["arm"].isin(arms)]
    return rows if queries is None else rows[rows["query_id"].isin(list(queries))]


def _route_codes(rows: pd.DataFrame, arms: list[str], pairs: PairLabels, table: str) -> np.ndarray:
    arm = encode(rows["arm"], pd.Index(arms, dtype="str"), table, "arm")
    return arm * len(pairs.queries) + encode(rows["query_id"], pairs.queries, table, "query_id")


def _anchor_hits(routes: _Routes, inside: np.ndarray | slice, anchors: pd.DataFrame) -> tuple[np.ndarray, pd.DataFrame]:
    """Count the anchors of every route's query, and find the rank at which each distinct anchor is first hit."""
    query, memory = routes.pairs.encode(anchors, "anchors")
    stored = len(routes.pairs.memories)
    own = anchors["anchor_id"].isna().to_numpy()
    # A memory without an anchor id stands for itself.
    name = np.where(own, memory, pd.factorize(anchors["anchor_id"])[0])
    table = pd.DataFrame({"key": query * stored + memory, "query": query, "own": own, "name": name})
    table["anchor"] = table.groupby(["query", "own", "name"]).ngroup()
    total = np.bincount(table.drop_duplicates("anchor")["query"], minlength=len(routes.pairs.queries))
    place, rank = routes.place[inside], routes.rank[inside]
    keys = routes.query[place] * stored + routes.memory[inside]
    hit = pd.Index(table["key"].unique()).get_indexer(pd.Index(keys)) >= 0
    found = pd.DataFrame({"key": keys[hit], "route": place[hit], "rank": rank[hit]})
    found = found.merge(table[["key", "anchor"]], on="key")
    # Interchangeable memories share an anchor: only the first of them counts.
    return total[routes.query], found.groupby(["route", "anchor"])["rank"].min().reset_index()


def _matched_prefix(hits: pd.DataFrame, needed: np.ndarray, routes: int) -> np.ndarray:
    """Return the length of each route's smallest prefix that reaches the target, -1 where none does."""
    prefix = np.where(needed == 0, 0, -1)
    ordered = hits.sort_values(["route", "rank"], kind="stable")
    nth = ordered.groupby("route").cumcount().to_numpy() + 1
    route = ordered["route"].to_numpy()
    last = nth == needed[route]
    prefix[route[last]] = ordered["rank"].to_numpy()[last]
    return prefix


def _integers(values: np.ndarray, defined: np.ndarray) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(values.astype(np.int64), ~defined)


def evidence_needed(target_recall: Recall, anchors: np.ndarray) -> np.ndarray:
    """Count the anchors a route must hit: ceil(target recall x anchors), in exact arithmetic.

    A float stands for the decimal number it prints as: .7 of 10 anchors is 7 and not 8. ``"2/3"`` and Fractions work.
    """
    target = _fraction(target_recall)
    counts, place = np.unique(np.asarray(anchors, dtype=np.int64), return_inverse=True)
    # Python integers cannot overflow; there are only as many of them as there are distinct counts.
    needed = [-((-int(count) * target.numerator) // target.denominator) for count in counts]
    return np.array(needed, dtype=np.int64)[place]


def _fraction(target_recall: Recall) -> Fraction:
    refusal = InputError(f"target recall {target_recall!r}: expected a number between 0 and 1")
    try:
        if isinstance(target_recall, Fraction) or (isinstance(target_recall, str) and "/" in target_recall):
            target = Fraction(target_recall)
        else:
            decimal = Decimal(str(target_recall))
            # Looked at before it is expanded: 1e-99999999 as a fraction has a denominator of 100 million digits.
            if not 0 <= decimal <= 1 or (decimal and decimal.adjusted() < -1000):
                raise refusal
            target = Fraction(decimal)
    except (ValueError, InvalidOperation, ZeroDivisionError, OverflowError) as error:
        raise refusal from error
    if not 0 <= target <= 1:
        raise refusal
    return target


def hiding_sweep(records: Records, rates: Sequence[float], seed: int = 0, **options: Any) -> pd.DataFrame:
    """Score the same rankings while more and more labels are hidden: scores as from `score_routes`, with ``rate``.

    Recall, feasibility and matched prefix do not depend on the rate.
    """
    anchors = anchors_of(records)
    parts = [score_routes(hide_labels(records, rate, seed), anchors=anchors, **options) for rate in rates]
    return pd.concat(parts, keys=list(rates), names=["rate"]).reset_index("rate").reset_index(drop=True)
