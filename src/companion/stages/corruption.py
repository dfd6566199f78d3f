"""Metadata corruption: what a filter does when the metadata it reads are wrong (Protocol section 6).

Only what the method sees is changed. Labels, and with them anchors, recall and risk, stay what they are.

Every unit that can be corrupted (a query-memory pair, or a query for the intent channel) has one uniform number, a
keyed hash of its ids, the channel and the seed. It is corrupted at a rate when its number lies below the rate. So
what is corrupted at a rate stays corrupted at every higher one, and neither the order of rows nor the presence of
other units plays a part.

A :class:`Pool` holds, for every query, its candidates in exact order of similarity. Errors that take candidates
away and errors that add some are then the same operation: which entries of that list the method keeps. Adding
candidates needs the whole list (every visible memory, scored); taking away needs a list deep enough, and one that
turns out too short is refused rather than scored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion import bootstrap, logic, scoring
from companion.errors import InputError
from companion.scoring.pairs import PairLabels, anchors_of, encode
from companion.stages import published
from companion.tables import Records

RATES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
SEEDS = tuple(range(10))
METRICS = ("evidence_recall", "feasible_rate", "loss", "candidates_scored")

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pool:
    """Candidates of every query in order of similarity, with the metadata that a method reads.

    Rows are sorted by query, then by similarity (equal scores by ascending memory id, as ranked).
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
    def from_rankings(cls, records: Records, rankings: pd.DataFrame, *, complete: bool | None = None) -> Pool:
        """Take the candidates from the ranking of one arm."""
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
        flipped = _flipped_lifecycle(part.memories["state"].to_numpy(object)[memory], intent, labels["lifecycle"])
        return cls(
            records=part,
            query=query,
            memory=memory,
            own=pairs.query_namespace[query] == pairs.memory_namespace[memory],
            policy=_codes(labels["policy"]),
            lifecycle=_codes(labels["lifecycle"]),
            flipped=flipped,
            answers_present=intent == "current",
            truncated=_truncated(part, str(arms[0]), query, complete),
            query_key=_hashes(part.queries["query_id"])[query],
            memory_key=_hashes(part.memories["memory_id"])[memory],
        )

    def uniform(self, channel: str, seed: int, part: str = "pair") -> Floats:
        """Return the unit's number in [0, 1) that decides from which rate on it is corrupted."""
        salt = np.uint64(_digest(f"{channel}\x1f{seed}\x1f{part}"))
        mixed = _mix(self.query_key ^ salt)
        if part != "query":
            mixed = _mix(mixed + self.memory_key)
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Channel:
    """One way in which metadata can be wrong."""

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


def _policy_passes(pool: Pool) -> Bools:
    return pool.own & (pool.policy != 0)


def _policy_bars(pool: Pool) -> Bools:
    return pool.own & (pool.policy == 0)


CHANNELS: dict[str, Channel] = {
    c.name: c
    for c in (
        Channel("namespace_false_deny", "namespace", "own memory taken for another's", "removes", lambda p: p.own),
        Channel("namespace_missing", "namespace", "namespace lost, memory excluded", "removes", lambda p: p.own),
        Channel("namespace_swap", "namespace", "own and foreign memory swapped", "both", lambda p: p.own, True),
        Channel("namespace_false_allow", "namespace", "foreign memory taken for own", "admits", lambda p: ~p.own, True),
        Channel("policy_false_deny", "policy", "allowed taken for forbidden", "removes", _policy_passes),
        Channel("policy_false_allow", "policy", "forbidden taken for allowed", "admits", _policy_bars),
        Channel("policy_missing", "policy", "policy lost, memory passes", "admits", lambda p: p.own),
        Channel(
            "lifecycle_false_stale",
            "lifecycle",
            "current taken for outdated",
            "removes",
            lambda p: p.own & (p.lifecycle != 0),
        ),
        Channel(
            "lifecycle_false_current",
            "lifecycle",
            "outdated taken for current",
            "admits",
            lambda p: p.own & (p.lifecycle == 0),
        ),
        Channel("lifecycle_missing", "lifecycle", "state lost, memory passes", "admits", lambda p: p.own),
        Channel("query_intent_flip", "intent", "question about now taken for history", "both", lambda p: p.own),
    )
}
"""The eleven channels, in published order."""


def channel(name: str) -> Channel:
    """Look a channel up."""
    if name not in CHANNELS:
        raise InputError(f"channel {name!r}: expected one of {', '.join(CHANNELS)}")
    return CHANNELS[name]


def corrupted(pool: Pool, name: str, rate: float, seed: int) -> Bools:
    """Say which rows of the pool carry wrong metadata."""
    kind = _checked(pool, name, (rate,))
    return _Draw(pool, kind, seed).at(rate)


def kept(pool: Pool, name: str, rate: float, seed: int) -> Bools:
    """Say which rows a filter keeps when it reads metadata corrupted at a rate.

    Namespace channels corrupt ``namespace_dense``; the others ``policy_and_lifecycle``, which drops what is seen
    as 0 within the true namespace. What is seen as unresolved passes.
    """
    kind = _checked(pool, name, (rate,))
    return _seen(pool, kind, _Draw(pool, kind, seed).at(rate))


class _Draw:
    """The numbers of one channel and seed, drawn once for all rates."""

    def __init__(self, pool: Pool, kind: Channel, seed: int) -> None:
        self.pool, self.kind = pool, kind
        self.touched = kind.touched(pool)
        self.number = pool.uniform(kind.name, seed, "query" if kind.field == "intent" else "pair")
        self.turn = self._turns(seed) if kind.name == "namespace_swap" else None

    def _turns(self, seed: int) -> NDArray[np.int64]:
        """Return the places of each query's foreign rows in the order in which they are swapped in."""
        foreign = np.flatnonzero(~self.pool.own)
        key = self.pool.uniform(self.kind.name, seed, "partner")[foreign]
        order = foreign[np.lexsort((key, self.pool.query[foreign]))]
        turn = np.full(len(self.pool.query), np.iinfo(np.int64).max)
        turn[order] = _places(self.pool.query[order])
        return turn

    def at(self, rate: float) -> Bools:
        hit = self.touched & (self.number < rate)
        if self.turn is None:
            return hit
        left = np.bincount(self.pool.query[hit], minlength=len(self.pool.truncated))
        return hit | (self.turn < left[self.pool.query])


def _seen(pool: Pool, kind: Channel, wrong: Bools) -> Bools:
    """Apply the filter to the metadata as they are seen."""
    if kind.field == "namespace":
        return pool.own ^ wrong  # every namespace error turns own into foreign or foreign into own
    denied_policy = pool.policy == 0
    denied_lifecycle = pool.lifecycle == 0
    if kind.field == "policy":
        denied_policy = np.where(wrong, kind.direction == "removes", denied_policy)
    elif kind.field == "intent":
        denied_lifecycle = np.where(wrong, pool.flipped == 0, denied_lifecycle)
    else:
        # an outdated memory is only in the way of a question about the present
        denied_lifecycle = np.where(wrong, pool.answers_present & (kind.direction == "removes"), denied_lifecycle)
    return pool.own & ~denied_policy & ~denied_lifecycle


def _checked(pool: Pool, name: str, rates: Sequence[float]) -> Channel:
    kind = channel(name)
    for rate in rates:
        if not 0 <= rate <= 1:
            raise InputError(f"rate {rate}: expected a share from 0 to 1")
    if kind.expands and (pool.own.all() or pool.truncated.any()):
        raise InputError(
            f"channel {name}: adds foreign candidates, so it needs the whole global ranking; "
            "rank global_dense to a depth of all memories"
        )
    return kind


def route(pool: Pool, keep: Bools, top_k: int, arm: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Cut the kept candidates to a route."""
    rows, place, counts = _top(pool, keep, top_k)
    ids = pool.records.queries["query_id"]
    rankings = pd.DataFrame(
        {
            "arm": pd.Series([arm] * len(rows), dtype="str"),
            "query_id": ids.array.take(pool.query[rows]),
            "rank": place + 1,
            "memory_id": pool.records.memories["memory_id"].array.take(pool.memory[rows]),
        }
    )
    work = pd.DataFrame({"arm": arm, "query_id": ids, "candidates_scored": counts}).astype({"arm": "str"})
    return rankings, work[~pool.truncated].reset_index(drop=True)


def _top(pool: Pool, keep: Bools, top_k: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return kept rows within the depth, their places from 0, and how many rows each query keeps."""
    rows = np.flatnonzero(keep)
    counts = np.bincount(pool.query[rows], minlength=len(pool.truncated))
    short = pool.truncated & (counts < top_k)
    if short.any():
        at = int(short.argmax())
        raise InputError(
            f"query {pool.records.queries['query_id'].iloc[at]!r}: {counts[at]} candidates are left of a ranking "
            f"that was cut short, {top_k} are needed; rank deeper or lower top_k"
        )
    place = _places(pool.query[rows])
    inside = place < top_k
    return rows[inside], place[inside], counts


def _places(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each row's place, from 0, in its run of equal values."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    return np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))


@dataclass(frozen=True)
class CorruptionStudy:
    """What corruption does to a route."""

    per_seed: pd.DataFrame
    per_query: pd.DataFrame
    references: pd.DataFrame
    settings: dict[str, Any]

    def curves(self) -> pd.DataFrame:
        """Average over seeds and give their spread."""
        grouped = self.per_seed.groupby(["channel", "rate"], sort=False)[list(METRICS)]
        spread = [grouped.min().add_suffix("_min"), grouped.max().add_suffix("_max")]
        return pd.concat([grouped.mean(), *spread], axis=1).reset_index()

    def reference_values(self) -> pd.DataFrame:
        """Return the clean references: index ``arm``, columns ``METRICS``."""
        return _macro(self.references, ["arm"])

    def brackets(self) -> pd.DataFrame:
        """Find where each channel breaks even with its reference; see :func:`break_even`."""
        return break_even(self.curves(), self.reference_values())

    def contrasts(
        self,
        *,
        replicates: int = bootstrap.DEFAULT_REPLICATES,
        confidence: float = bootstrap.DEFAULT_CONFIDENCE,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Difference from the reference at every rate, with intervals over namespace groups."""
        names = list(METRICS[:3])
        base = self.references.set_index(["arm", "query_id"])[names]
        keys = self.per_query.drop_duplicates("query_id").set_index("query_id")[["source", "group"]]
        columns: dict[str, Floats] = {}
        meaning: dict[str, tuple[Any, ...]] = {}
        for (name, rate), rows in self.per_query.groupby(["channel", "rate"], sort=False):
            arm = CHANNELS[str(name)].reference
            gap = rows.set_index("query_id")[names] - base.loc[arm]
            for metric in names:
                label = f"{len(columns)}"
                columns[label] = gap[metric].reindex(keys.index).to_numpy()
                meaning[label] = (name, rate, arm, metric)
        result = bootstrap.ratio_means(
            pd.DataFrame(columns),
            clusters=keys["group"],
            sources=keys["source"],
            replicates=replicates,
            confidence=confidence,
            seed=seed,
        )
        table = result.table[result.table["source"] == bootstrap.MACRO]
        head = pd.DataFrame(
            [meaning[s] for s in table["statistic"]], columns=["channel", "rate", "reference", "metric"]
        )
        return pd.concat([head, table[["estimate", "low", "high"]].reset_index(drop=True)], axis=1)


def study(
    pool: Pool,
    reference: Pool | None = None,
    *,
    channels: Sequence[str] = tuple(CHANNELS),
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = SEEDS,
    top_k: int = 20,
    target_recall: scoring.routes.Recall = 0.8,
    infeasibility_cost: float = 1.0,
    progress: Callable[[str], None] | None = None,
) -> CorruptionStudy:
    """Corrupt every channel at every rate with every seed, and score the routes."""
    for what, values in (("channels", channels), ("rates", rates), ("seeds", seeds)):
        if not len(values) or len(set(values)) != len(values):
            raise InputError(f"{what} {list(values)}: expected one or more, each once")
    options: dict[str, Any] = {
        "top_k": top_k,
        "target_recall": target_recall,
        "infeasibility_cost": infeasibility_cost,
    }
    cells, per_query = [], []
    for name in channels:
        table = _run_channel(pool, _checked(pool, name, rates), rates, seeds, options)
        keys = ["channel", "rate"]
        cells.append(_macro(table, [*keys, "seed"]).reset_index())
        unit = [*keys, "query_id", "source", "group"]
        per_query.append(table.groupby(unit, sort=False)[list(METRICS[:3])].mean().reset_index())
        if progress:
            progress(name)
    clean = _references(pool, reference or pool, {channel(n).reference for n in channels}, options)
    settings = {**options, "rates": list(rates), "seeds": list(seeds)}
    by_seed, by_query = (pd.concat(parts, ignore_index=True) for parts in (cells, per_query))
    return CorruptionStudy(by_seed, by_query, clean, settings)


def _run_channel(
    pool: Pool, kind: Channel, rates: Sequence[float], seeds: Sequence[int], options: dict[str, Any]
) -> pd.DataFrame:
    """Score one channel: one row per rate, seed and query."""
    arms: dict[str, Bools] = {}
    cells = []
    for seed in seeds:
        draw = _Draw(pool, kind, seed)
        for rate in rates:
            arms[str(len(arms))] = _seen(pool, kind, draw.at(rate))
            cells.append((kind.name, float(rate), int(seed)))
    scored = score_arms(pool, arms, **options)
    about = pd.DataFrame(cells, columns=["channel", "rate", "seed"])
    place = scored["arm"].astype("int64").to_numpy()
    return pd.concat([about.iloc[place].reset_index(drop=True), scored.drop(columns="arm")], axis=1)


def score_arms(
    pool: Pool,
    arms: dict[str, Bools],
    *,
    top_k: int,
    target_recall: scoring.routes.Recall = 0.8,
    infeasibility_cost: float = 1.0,
) -> pd.DataFrame:
    """Score several selections from one pool."""
    parts = [_top(pool, keep, top_k) for keep in arms.values()]
    rows = np.concatenate([p[0] for p in parts])
    sizes = [len(p[0]) for p in parts]
    # categories keep a million rows of ids as small integers
    queries, memories = pool.records.queries["query_id"], pool.records.memories["memory_id"]
    rankings = pd.DataFrame(
        {
            "arm": pd.Categorical.from_codes(np.repeat(np.arange(len(arms)), sizes), pd.Index(list(arms))),
            "query_id": pd.Categorical.from_codes(pool.query[rows], categories=pd.Index(queries)),
            "rank": np.concatenate([p[1] for p in parts]) + 1,
            "memory_id": pd.Categorical.from_codes(pool.memory[rows], categories=pd.Index(memories)),
        }
    )
    records = replace(pool.records, rankings=rankings, work=None, ledger=None)
    scored = scoring.score_routes(records, target_recall=target_recall, infeasibility_cost=infeasibility_cost)
    scored = scored.rename(columns={"feasible": "feasible_rate"}).astype({"feasible_rate": "float64"})
    counts = np.concatenate([np.where(pool.truncated, np.nan, p[2]) for p in parts])
    work = pd.DataFrame(
        {"arm": np.repeat(list(arms), len(queries)), "query_id": np.tile(queries, len(arms)), "n": counts}
    )
    lost = [name for name, size in zip(arms, sizes, strict=True) if size == 0]
    scored = pd.concat([scored, *(_nothing(pool, name, infeasibility_cost) for name in lost)], ignore_index=True)
    scored = scored.astype({"arm": "str"}).merge(work.astype({"arm": "str"}), on=["arm", "query_id"])
    scored["candidates_scored"] = scored["n"]
    return scored[["arm", "query_id", "source", "group", *METRICS]]


def _nothing(pool: Pool, arm: str, cost: float) -> pd.DataFrame:
    """Rows of an arm that keeps no candidate of any query."""
    rows = pool.records.queries[["query_id", "source", "group"]].assign(arm=arm)
    return rows.assign(evidence_recall=0.0, feasible_rate=0.0, loss=float(cost))


def _references(pool: Pool, world: Pool, names: set[str], options: dict[str, Any]) -> pd.DataFrame:
    """Score the clean reference arms."""
    parts = []
    if "global_dense" in names:
        if world.own.all():
            raise InputError("corruption: the reference of namespace channels needs a pool with foreign candidates")
        parts.append(score_arms(world, {"global_dense": np.ones(len(world.query), dtype=bool)}, **options))
    if "namespace_dense" in names:
        parts.append(score_arms(pool, {"namespace_dense": pool.own}, **options))
    return pd.concat(parts, ignore_index=True)


def _macro(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean over queries within source, then over sources."""
    within = table.groupby([*keys, "source"], sort=False)[list(METRICS)].mean()
    return within.groupby(keys, sort=False).mean()


def break_even(curves: pd.DataFrame, references: pd.DataFrame) -> pd.DataFrame:
    """Bracket the rate at which a corrupted filter stops being worth having."""
    rows = []
    for name, curve in curves.groupby("channel", sort=False):
        arm = channel(str(name)).reference
        if arm not in references.index:
            raise InputError(f"break-even of {name}: no reference {arm}")
        ordered = curve.sort_values("rate")
        feasible = ordered["feasible_rate"] >= references.loc[arm, "feasible_rate"]
        good = (feasible & (ordered["loss"] <= references.loc[arm, "loss"])).to_numpy()
        run = int(np.argmin(np.append(good, False)))
        rate = np.append(ordered["rate"].to_numpy(np.float64), np.nan)
        rows.append((name, arm, rate[run - 1] if run else np.nan, rate[run]))
    columns = ["channel", "reference", "last_dominating_rate", "first_non_dominating_rate"]
    return pd.DataFrame(rows, columns=columns)


def published_curves() -> pd.DataFrame:
    """Return the paper's corruption curves (top-100, ten seeds averaged): channel, rate and ``METRICS``."""
    table = published.table("metadata_corruption")
    return table.rename(columns={"penalized_admissibility_upper_risk": "loss"})


def published_references() -> pd.DataFrame:
    """Return the paper's clean references at top-100: index ``arm``; evidence_recall, feasible_rate, loss."""
    names = {"evidence_recall": "evidence_recall", "feasible_rate": "feasible_rate"}
    names["penalized_admissibility_upper_risk"] = "loss"
    values = {
        arm: {new: float(published.figure("C9", arm, "top_100", old)["published"]) for old, new in names.items()}
        for arm in ("global_dense", "namespace_dense")
    }
    return pd.DataFrame.from_dict(values, orient="index").rename_axis("arm")


def recomputable() -> pd.DataFrame:
    """Recompute the published break-even brackets from the published curves.

    They come out with the unfiltered ``global_dense`` as the reference of namespace channels and the unfiltered
    ``namespace_dense`` as that of policy, lifecycle and intent channels, both at top-100.
    """
    curves = published_curves()
    rates = curves.groupby("channel")["rate"].apply(list)
    rows = []
    for bracket in break_even(curves, published_references()).to_dict("records"):
        name = bracket["channel"]
        grid = "" if len(rates[name]) == len(RATES) else f" (the file holds this channel at {rates[name][0]:g} only)"
        how = f"published curve against {bracket['reference']} at top-100{grid}"
        for metric in ("last_dominating_rate", "first_non_dominating_rate"):
            if not np.isnan(bracket[metric]):
                rows.append(("C10-corruption", name, "top_100", metric, bracket[metric], np.nan, np.nan, how))
    return pd.DataFrame(rows, columns=["claim", "subject", "contrast", "metric", "value", "low", "high", "how"])


def _evaluable(records: Records) -> Records:
    """Keep the queries with anchors: no other one has recall to lose."""
    anchored = records.queries["query_id"].isin(anchors_of(records)["query_id"])
    if not anchored.any():
        raise InputError("corruption: no query has an anchor (a known usable memory): recall cannot be evaluated")
    queries = records.queries[anchored].reset_index(drop=True)
    labels = records.labels[records.labels["query_id"].isin(queries["query_id"])].reset_index(drop=True)
    work = records.work
    if work is not None:
        work = work[work["query_id"].isin(queries["query_id"])].reset_index(drop=True)
    return replace(records, queries=queries, labels=labels, rankings=None, work=work, ledger=None)


def _truncated(records: Records, arm: str, query: NDArray[np.int64], complete: bool | None) -> Bools:
    listed = np.bincount(query, minlength=len(records.queries))
    if complete is not None or records.work is None:
        return np.full(len(listed), not complete)
    work = records.work[records.work["arm"] == arm].set_index("query_id")["candidates_scored"]
    scored = work.reindex(records.queries["query_id"]).to_numpy(np.float64, na_value=np.inf)
    return listed < scored


def _codes(values: pd.Series) -> NDArray[np.int8]:
    return np.asarray(values.astype("Int8").to_numpy(np.int8, na_value=-1), dtype=np.int8)


def _flipped_lifecycle(state: NDArray[Any], intent: NDArray[Any], released: pd.Series) -> NDArray[np.int8]:
    """Lifecycle as read under the opposite intent; what state and intent do not decide stays as released."""
    opposite = {"current": "history", "history": "current"}
    turned = pd.Series(intent, dtype=object).map(opposite)
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
