"""Corrupt every channel at every rate, score the routes, and bracket where a filter breaks even."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion import scoring
from companion.bootstrap import MACRO, Resampling, estimate
from companion.errors import InputError
from companion.paths import data_dir
from companion.stages import published
from companion.stages.corruption.channels import CHANNELS, Bools, Draw, Pool, channel, places
from companion.tables import atomic_path

RATES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
SEEDS = tuple(range(10))
METRICS = ("evidence_recall", "feasible_rate", "loss", "candidates_scored")
_TABLES = ("per_seed", "per_query", "references")


def rank_pool(
    corpus: str, channels: Sequence[str] = tuple(CHANNELS), split: str | None = "evaluation", encoder: str = "minilm"
) -> Pool:
    """Rank a corpus whose texts are here to full depth, as far as the channels need it."""
    from companion.stages import support

    arm = "global_dense" if any(channel(name).field == "namespace" for name in channels) else "namespace_dense"
    records = support.live(corpus, [arm], top_k=2**31 - 1, split=split, encoder=encoder).check()
    assert records.rankings is not None
    return Pool.from_rankings(records, records.rankings)


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
    """Corrupt every channel at every rate with every seed, each value once, and score the routes.

    ``top_k``, ``target_recall`` and ``infeasibility_cost`` are those of ``scoring.score_routes``; ``progress`` is told
    each channel that is done.
    """
    for what, values in (("channels", channels), ("rates", rates), ("seeds", seeds)):
        if not len(values) or len(set(values)) != len(values):
            raise InputError(f"{what} {list(values)}: expected one or more, each once")
    options = {"top_k": top_k, "target_recall": target_recall, "infeasibility_cost": infeasibility_cost}
    keys, cells, per_query = ["channel", "rate", "seed"], [], []
    for name in channels:
        cell = pd.DataFrame([(name, float(r), int(s)) for s in seeds for r in rates], columns=keys)
        draws = [Draw(pool, name, seed, rates) for seed in seeds]
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
    counts = pd.array(np.concatenate([np.where(pool.truncated, np.nan, p[2]) for p in parts]), dtype="Int64")
    asked = {"arm": np.repeat(list(arms), len(queries)), "query_id": np.tile(queries, len(arms))}
    work = pd.DataFrame(asked | {"candidates_scored": counts}).astype({"arm": "str", "query_id": "str"})
    records = replace(pool.records, rankings=rankings, work=work, ledger=None)
    scored = scoring.score_routes(records, arms=list(arms), **scored_by)
    scored = scored.rename(columns={"feasible": "feasible_rate"}).astype({"feasible_rate": "float64"})
    return scored[["arm", "query_id", "source", "group", *METRICS]]


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
    place = places(pool.query[rows])
    inside = place < top_k
    return rows[inside], place[inside], counts


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

    last_dominating_rate counts up from the lowest rate without a gap (no worse in feasibility and in loss; NaN if
    none); first_non_dominating_rate is NaN if it never turns.
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
