"""Metadata corruption: what a filter does when the metadata it reads are wrong (Methods, "Stage two: verification").

Only what the method sees is changed. Labels, and with them anchors, recall and risk, stay what they are.

Every unit that can be corrupted (a query-memory pair, or a query for the intent channel) has one uniform number, a
keyed hash of its ids, the channel and the seed. It is corrupted at a rate when its number lies below the rate. So
what is corrupted at a rate stays corrupted at every higher one, and neither the order of rows nor the presence of
other units plays a part. A :class:`Pool` holds every query's candidates in exact order of similarity; an error only
changes which entries of that list the method keeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion import logic
from companion.errors import InputError
from companion.labels import PairLabels, anchors_of, encode
from companion.tables import Records

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Channel:
    """One way in which metadata can be wrong: what the error does, whom it can hit, what the filter is held against."""

    name: str
    field: str
    error: str
    direction: str
    touched: Callable[[Pool], Bools]
    expands: bool = False

    @property
    def reference(self) -> str:
        """The arm a filter must not fall behind: for the namespace no filter at all, else the namespace alone."""
        return "global_dense" if self.field == "namespace" else "namespace_dense"


_LISTED = (
    Channel("namespace_false_deny", "namespace", "own memory taken for another's", "removes", lambda p: p.own),
    Channel("namespace_missing", "namespace", "namespace lost, memory excluded", "removes", lambda p: p.own),
    Channel("namespace_swap", "namespace", "own and foreign memory swapped", "both", lambda p: p.own, True),
    Channel("namespace_false_allow", "namespace", "foreign memory taken for own", "admits", lambda p: ~p.own, True),
    Channel("policy_false_deny", "policy", "allowed taken for forbidden", "removes", lambda p: p.own & (p.policy != 0)),
    Channel("policy_false_allow", "policy", "forbidden taken for allowed", "admits", lambda p: p.own & (p.policy == 0)),
    Channel("policy_missing", "policy", "policy lost, memory passes", "admits", lambda p: p.own),
    Channel(
        "lifecycle_false_stale", "lifecycle", "current taken for outdated", "removes",
        lambda p: p.own & (p.lifecycle != 0),
    ),
    Channel(
        "lifecycle_false_current", "lifecycle", "outdated taken for current", "admits",
        lambda p: p.own & (p.lifecycle == 0),
    ),
    Channel("lifecycle_missing", "lifecycle", "state lost, memory passes", "admits", lambda p: p.own),
    Channel("query_intent_flip", "intent", "question about now taken for history", "both", lambda p: p.own),
)  # fmt: skip
CHANNELS = {c.name: c for c in _LISTED}
"""The eleven channels, in published order."""


def channel(name: str) -> Channel:
    """Look a channel up."""
    if name not in CHANNELS:
        raise InputError(f"channel {name!r}: expected one of {', '.join(CHANNELS)}")
    return CHANNELS[name]


@dataclass(frozen=True)
class Pool:
    """Candidates of every evaluable query, sorted by query and rank, with the metadata that a method reads.

    ``query`` and ``memory`` are row numbers of ``records``; ``policy``, ``lifecycle`` and ``flipped`` (lifecycle under
    the opposite intent) are 1, 0 or -1 for unresolved; ``truncated`` says by query whether its list was cut short.
    """

    records: Records
    query: NDArray[np.int64]
    memory: NDArray[np.int64]
    own: Bools
    policy: NDArray[np.int8]
    lifecycle: NDArray[np.int8]
    flipped: NDArray[np.int8]
    answers_present: Bools
    truncated: Bools
    query_key: NDArray[np.uint64] = field(repr=False)
    memory_key: NDArray[np.uint64] = field(repr=False)

    @classmethod
    def from_rankings(cls, records: Records, rankings: pd.DataFrame) -> Pool:
        """Take the candidates from the ranking of one arm; a list shorter than the arm's work was cut."""
        arms = rankings["arm"].unique()
        if len(arms) != 1:
            raise InputError(f"corruption: rankings hold {len(arms)} arms; expected one, the route to be corrupted")
        part = _evaluable(records)
        rows = rankings[rankings["query_id"].isin(part.queries["query_id"])]
        pairs = PairLabels.from_records(part)
        query = encode(rows["query_id"], pairs.queries, "rankings", "query_id")
        memory = encode(rows["memory_id"], pairs.memories, "rankings", "memory_id")
        order = np.lexsort((rows["rank"].to_numpy(np.int64), query))
        query, memory = query[order], memory[order]
        labels = pairs.lookup(query, memory)
        intent = part.queries["intent"].to_numpy(object)[query]
        state = part.memories["state"].to_numpy(object)[memory]
        return cls(
            records=part,
            query=query,
            memory=memory,
            own=pairs.query_namespace[query] == pairs.memory_namespace[memory],
            policy=_codes(labels["policy"]),
            lifecycle=_codes(labels["lifecycle"]),
            flipped=_flipped_lifecycle(state, intent, labels["lifecycle"]),
            answers_present=intent == "current",
            truncated=_truncated(part, str(arms[0]), query),
            query_key=_hashes(part.queries["query_id"])[query],
            memory_key=_hashes(part.memories["memory_id"])[memory],
        )

    def uniform(self, name: str, seed: int, part: str = "pair") -> NDArray[np.float64]:
        """Return the unit's number in [0, 1) that decides from which rate on it is corrupted."""
        mixed = _mix(self.query_key ^ np.uint64(_digest(f"{name}\x1f{seed}\x1f{part}")))
        if part != "query":
            mixed = _mix(mixed + self.memory_key)
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Draw:
    """The numbers of one channel and seed, drawn once for all rates."""

    def __init__(self, pool: Pool, name: str, seed: int, rates: Sequence[float] = ()) -> None:
        self.pool, self.kind = pool, channel(name)
        for rate in rates:
            if not 0 <= rate <= 1:
                raise InputError(f"rate {rate}: expected a share from 0 to 1")
        if self.kind.expands and (pool.own.all() or pool.truncated.any()):
            raise InputError(
                f"channel {name}: adds foreign candidates, so it needs the whole global ranking; "
                "rank global_dense to a depth of all memories"
            )
        self.touched = self.kind.touched(pool)
        self.number = pool.uniform(name, seed, "query" if self.kind.field == "intent" else "pair")
        self.turn: NDArray[np.int64] | None = None
        if name == "namespace_swap":  # the order in which each query's foreign rows are swapped in
            foreign = np.flatnonzero(~pool.own)
            order = foreign[np.lexsort((pool.uniform(name, seed, "partner")[foreign], pool.query[foreign]))]
            self.turn = np.full(len(pool.query), np.iinfo(np.int64).max)
            self.turn[order] = places(pool.query[order])

    def wrong(self, rate: float) -> Bools:
        """Say which rows carry wrong metadata."""
        hit = self.touched & (self.number < rate)
        if self.turn is None:
            return hit
        left = np.bincount(self.pool.query[hit], minlength=len(self.pool.truncated))
        return hit | (self.turn < left[self.pool.query])

    def kept(self, rate: float) -> Bools:
        """Apply the filter to the metadata as they are seen; what is seen as unresolved passes."""
        pool, kind, wrong = self.pool, self.kind, self.wrong(rate)
        if kind.field == "namespace":
            return pool.own ^ wrong  # every namespace error turns own into foreign or foreign into own
        denied = {"policy": pool.policy == 0, "lifecycle": pool.lifecycle == 0}
        if kind.field == "policy":
            denied["policy"] = np.where(wrong, kind.direction == "removes", denied["policy"])
        elif kind.field == "intent":
            denied["lifecycle"] = np.where(wrong, pool.flipped == 0, denied["lifecycle"])
        else:  # an outdated memory is only in the way of a question about the present
            seen = pool.answers_present & (kind.direction == "removes")
            denied["lifecycle"] = np.where(wrong, seen, denied["lifecycle"])
        return pool.own & ~denied["policy"] & ~denied["lifecycle"]


def corrupted(pool: Pool, name: str, rate: float, seed: int) -> Bools:
    """Say which rows of the pool carry wrong metadata."""
    return Draw(pool, name, seed, (rate,)).wrong(rate)


def kept(pool: Pool, name: str, rate: float, seed: int) -> Bools:
    """Say which rows a filter keeps when it reads metadata corrupted at a rate.

    Namespace channels corrupt ``namespace_dense``; the others ``policy_and_lifecycle`` within the true namespace.
    """
    return Draw(pool, name, seed, (rate,)).kept(rate)


def places(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each row's place, from 0, in its run of equal values."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    return np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))


def _evaluable(records: Records) -> Records:
    """Keep the queries with anchors: no other one has recall to lose."""
    anchored = set(anchors_of(records)["query_id"])
    if not anchored:
        raise InputError("corruption: no query has an anchor (a known usable memory): recall cannot be evaluated")
    kept = {
        name: table[table["query_id"].isin(anchored)].reset_index(drop=True)
        for name in ("queries", "labels", "work")
        if (table := getattr(records, name)) is not None
    }
    return replace(records, **kept, rankings=None, ledger=None)


def _truncated(records: Records, arm: str, query: NDArray[np.int64]) -> Bools:
    listed = np.bincount(query, minlength=len(records.queries))
    if records.work is None:
        return np.full(len(listed), True)
    work = records.work[records.work["arm"] == arm].set_index("query_id")["candidates_scored"]
    return listed < work.reindex(records.queries["query_id"]).to_numpy(np.float64, na_value=np.inf)


def _codes(values: pd.Series) -> NDArray[np.int8]:
    return np.asarray(values.astype("Int8").to_numpy(np.int8, na_value=-1), dtype=np.int8)


def _flipped_lifecycle(state: NDArray[Any], intent: NDArray[Any], released: pd.Series) -> NDArray[np.int8]:
    """Lifecycle as read under the opposite intent; what state and intent do not decide stays as released."""
    turned = pd.Series(intent, dtype=object).map({"current": "history", "history": "current"})
    states = pd.Series(state, dtype=object)
    read: NDArray[np.int8] = _codes(released).copy()
    # a released value that state and intent do not explain (an unmarked copy, a deletion) has another reason
    explained = _codes(logic.lifecycle(states, pd.Series(intent, dtype=object))) == read
    decided = states.isin(["current", "stale", "superseded"]) & turned.notna() & explained
    read[decided] = _codes(logic.lifecycle(states, turned))[decided]
    return read


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _hashes(ids: pd.Series) -> NDArray[np.uint64]:
    return np.array([_digest(str(name)) for name in ids], dtype=np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of SplitMix64: a bijection that spreads every input bit over all output bits."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
