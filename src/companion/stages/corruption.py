"""Metadata corruption: what a filter does when the metadata it reads are wrong (Methods, "Verification").

Only what the method sees is changed. Labels, and with them anchors, recall and risk, stay what they are.

Every unit that can be corrupted (a query-memory pair, or a query for the intent channel) has one uniform number, a
keyed hash of its ids, the channel and the seed. It is corrupted at a rate when its number lies below the rate. So
what is corrupted at a rate stays corrupted at every higher one, and neither the order of rows nor the presence of
other units plays a part. A :class:`Pool` holds every query's candidates in exact order of similarity; an error only
changes which entries of that list the method keeps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion import logic, scoring
from companion.bootstrap import MACRO, Resampling, estimate
from companion.errors import InputError
from companion.paths import data_dir
from companion.scoring.pairs import PairLabels, anchors_of, encode
from companion.stages import published
from companion.tables import Records, atomic_path

RATES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
SEEDS = tuple(range(10))
METRICS = ("evidence_recall", "feasible_rate", "loss", "candidates_scored")
_TABLES = ("per_seed", "per_query", "references")

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


def rank_pool(
    corpus: str, channels: Sequence[str] = tuple(CHANNELS), split: str | None = "evaluation", encoder: str = "minilm"
) -> Pool:
    """Rank a corpus whose texts are here to full depth, as far as the channels need it."""
    from companion.stages import studies

    arm = "global_dense" if any(channel(name).field == "namespace" for name in channels) else "namespace_dense"
    records = studies.live(corpus, [arm], top_k=2**31 - 1, split=split, encoder=encoder).check()
    assert records.rankings is not None
    return Pool.from_rankings(records, records.rankings)


class _Draw:
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
            self.turn[order] = _places(pool.query[order])

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
    return _Draw(pool, name, seed, (rate,)).wrong(rate)


def kept(pool: Pool, name: str, rate: float, seed: int) -> Bools:
    """Say which rows a filter keeps when it reads metadata corrupted at a rate.

    Namespace channels corrupt ``namespace_dense``; the others ``policy_and_lifecycle`` within the true namespace.
    """
    return _Draw(pool, name, seed, (rate,)).kept(rate)


@dataclass(frozen=True)
class CorruptionStudy:
    """What corruption does to a route: means of every channel, rate and seed; by query over seeds; clean references."""

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

    def contrasts(self, resampling: Resampling | None = None) -> pd.DataFrame:
        """Difference from the reference at every rate (channel, rate, reference, metric), intervals over groups."""
        names = list(METRICS[:3])
        base = self.references[["arm", "query_id", *names]].rename(columns={"arm": "reference"})
        rows = self.per_query.assign(reference=[CHANNELS[c].reference for c in self.per_query["channel"]])
        both = rows.merge(base, on=["reference", "query_id"], suffixes=("", "_clean"), how="left")
        gaps = both.assign(**{name: both[name] - both[f"{name}_clean"] for name in names})
        table = estimate(gaps, names, by=["channel", "rate", "reference"], unit="query_id", resampling=resampling)
        columns = ["channel", "rate", "reference", "metric", "estimate", "low", "high"]
        return table.loc[table["source"] == MACRO, columns].reset_index(drop=True)

    def keep(self, folder: Path, about: dict[str, Any]) -> None:
        """Write the study as numbers: three Parquet tables and ``meta.json``, each replaced at once."""
        from importlib.metadata import version

        folder.mkdir(parents=True, exist_ok=True)
        for name in _TABLES:
            with atomic_path(folder / f"{name}.parquet") as path:
                getattr(self, name).to_parquet(path, index=False, compression="zstd")
        versions = {name: version(name) for name in ("numpy", "pandas", "faiss-cpu", "sentence-transformers", "torch")}
        meta = {**about, "settings": self.settings, "versions": versions}
        with atomic_path(folder / "meta.json") as path:
            path.write_text(json.dumps(meta, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def load_kept(name: str) -> tuple[CorruptionStudy, dict[str, Any]]:
    """Load a study of a public corpus that was run earlier (``data/corruption``), and what is recorded of it."""
    root = data_dir() / "corruption"
    folder = root / name
    if not (folder / "meta.json").is_file():
        there = sorted(p.parent.name for p in root.glob("*/meta.json"))
        raise InputError(f"no corruption study {name!r} in {root}; there are: {', '.join(there) or 'none'}")
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    tables = {part: pd.read_parquet(folder / f"{part}.parquet") for part in _TABLES}
    return CorruptionStudy(**tables, settings=meta["settings"]), meta


def study(
    pool: Pool,
    *,
    channels: Sequence[str] = tuple(CHANNELS),
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = SEEDS,
    top_k: int = 20,
    target_recall: Any = 0.8,
    infeasibility_cost: float = 1.0,
    progress: Callable[[str], None] | None = None,
) -> CorruptionStudy:
    """Corrupt every channel at every rate with every seed, and score the routes.

    Parameters
    ----------
    pool : Pool
        From :func:`rank_pool` or ``Pool.from_rankings``.
    channels, rates, seeds : sequences
        Each value once.
    top_k, target_recall, infeasibility_cost
        As in ``scoring.score_routes``.
    progress : callable, optional
        Told each channel that is done.

    Returns
    -------
    CorruptionStudy
    """
    for what, values in (("channels", channels), ("rates", rates), ("seeds", seeds)):
        if not len(values) or len(set(values)) != len(values):
            raise InputError(f"{what} {list(values)}: expected one or more, each once")
    options = {"top_k": top_k, "target_recall": target_recall, "infeasibility_cost": infeasibility_cost}
    keys, cells, per_query = ["channel", "rate", "seed"], [], []
    for name in channels:
        cell = pd.DataFrame([(name, float(r), int(s)) for s in seeds for r in rates], columns=keys)
        draws = [_Draw(pool, name, seed, rates) for seed in seeds]
        arms = {str(i): keep for i, keep in enumerate(draw.kept(r) for draw in draws for r in rates)}
        scored = score_arms(pool, arms, **options)
        about = cell.iloc[scored["arm"].astype("int64")].reset_index(drop=True)
        table = pd.concat([about, scored.drop(columns="arm")], axis=1)
        cells.append(_macro(table, keys).reset_index())
        unit = ["channel", "rate", "query_id", "source", "group"]
        per_query.append(table.groupby(unit, sort=False)[list(METRICS[:3])].mean().reset_index())
        if progress:
            progress(name)
    clean = _references(pool, {channel(n).reference for n in channels}, options)
    settings = {**options, "rates": list(rates), "seeds": list(seeds)}
    by_seed, by_query = (pd.concat(parts, ignore_index=True) for parts in (cells, per_query))
    return CorruptionStudy(by_seed, by_query, clean, settings)


def score_arms(pool: Pool, arms: dict[str, Bools], *, top_k: int, **scored_by: Any) -> pd.DataFrame:
    """Score several selections from one pool: arm, query_id, source, group and ``METRICS``."""
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
    scored = scoring.score_routes(replace(pool.records, rankings=rankings, work=None, ledger=None), **scored_by)
    scored = scored.rename(columns={"feasible": "feasible_rate"}).astype({"feasible_rate": "float64", "arm": "str"})
    about = pool.records.queries[["query_id", "source", "group"]]
    nothing = {"evidence_recall": 0.0, "feasible_rate": 0.0, "loss": float(scored_by.get("infeasibility_cost", 1.0))}
    lost = [about.assign(arm=name, **nothing) for name, size in zip(arms, sizes, strict=True) if size == 0]
    counts = np.concatenate([np.where(pool.truncated, np.nan, p[2]) for p in parts])
    work = pd.DataFrame(
        {"arm": np.repeat(list(arms), len(queries)), "query_id": np.tile(queries, len(arms)), "n": counts}
    )
    scored = pd.concat([scored, *lost], ignore_index=True)
    scored = scored.merge(work.astype({"arm": "str"}), on=["arm", "query_id"])
    return scored.assign(candidates_scored=scored["n"])[["arm", "query_id", "source", "group", *METRICS]]


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


def _references(pool: Pool, names: set[str], options: dict[str, Any]) -> pd.DataFrame:
    """Score the clean reference arms."""
    if "global_dense" in names and pool.own.all():
        raise InputError("corruption: the reference of namespace channels needs a pool with foreign candidates")
    whole = {"global_dense": np.ones(len(pool.query), dtype=bool), "namespace_dense": pool.own}
    parts = [score_arms(pool, {name: keep}, **options) for name, keep in whole.items() if name in names]
    return pd.concat(parts, ignore_index=True)


def _macro(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean over queries within source, then over sources."""
    within = table.groupby([*keys, "source"], sort=False)[list(METRICS)].mean()
    return within.groupby(keys, sort=False).mean()


def break_even(curves: pd.DataFrame, references: pd.DataFrame) -> pd.DataFrame:
    """Bracket the rate at which a corrupted filter stops being worth having, on the grid, never interpolated.

    Returns
    -------
    DataFrame
        channel, reference, last_dominating_rate (counted up from the lowest rate without a gap: no worse in feasibility
        and in loss; NaN if none), first_non_dominating_rate (NaN if it never turns).
    """
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
    return published.table("metadata_corruption").rename(columns={"penalized_admissibility_upper_risk": "loss"})


def published_references() -> pd.DataFrame:
    """Return the paper's clean references at top-100: index ``arm``; evidence_recall, feasible_rate, loss."""
    names = {"evidence_recall": "evidence_recall", "feasible_rate": "feasible_rate"}
    names["loss"] = "penalized_admissibility_upper_risk"
    arms = ("global_dense", "namespace_dense")
    values = {
        arm: {new: float(published.figure("C9", arm, "top_100", old)["published"]) for new, old in names.items()}
        for arm in arms
    }
    return pd.DataFrame.from_dict(values, orient="index").rename_axis("arm")


def recomputable() -> pd.DataFrame:
    """Recompute the published break-even brackets from the published curves and the unfiltered arms at top-100."""
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
