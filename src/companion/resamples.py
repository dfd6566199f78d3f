"""Resampled ratio means: weights of clusters, replicates, interval ends. What to call is `companion.bootstrap`.

Resampling G clusters with replacement within their stratum is the same as giving each a multinomial count, so a
replicate is a row of integer weights, and all replicates of all statistics are one matrix product: ``weights @ sums``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from companion.errors import InputError

DEFAULT_REPLICATES = 10_000
DEFAULT_CONFIDENCE = 0.95
MACRO = "macro"
"""Label of the row that weighs every source the same."""
MOST_CELLS = 250_000_000
"""Replicates times numbers that are held at once: 2 GB."""

Method = Literal["percentile", "t"]
Array = NDArray[np.float64]
Labels = ArrayLike | pd.Series

_CHUNK_CELLS = 250_000  # weights held at once: 2 MB as float64, which stays in the processor's cache
_ONE_SOURCE = "all"


@dataclass(frozen=True)
class Resampling:
    """How intervals are made: the one place where these settings and their defaults stand.

    Parameters
    ----------
    replicates : int
        Bootstrap replicates (>= 1); below 200 no percentile interval is given.
    confidence : float
        Level of the interval, in (0, 1).
    seed : int
        Seed of the random streams, not negative.
    method : {"percentile", "t"}
        Percentile interval of the replicates, or Student's t with a linearised standard error.
    """

    replicates: int = DEFAULT_REPLICATES
    confidence: float = DEFAULT_CONFIDENCE
    seed: int = 0
    method: Method = "percentile"

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("replicates", 1)):
            value = getattr(self, name)
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
            if not whole or value < least:
                raise InputError(f"bootstrap: {name} is {value!r}; expected a whole number of at least {least}")
        if self.replicates > MOST_CELLS:
            raise InputError(f"bootstrap: replicates is {self.replicates}; expected at most {MOST_CELLS:,}")
        numeric = isinstance(self.confidence, (int, float, np.integer, np.floating))
        if not numeric or not 0 < self.confidence < 1:
            found = repr(self.confidence)
            raise InputError(f"bootstrap: confidence is {found}; expected a number between 0 and 1, exclusive")
        if self.method not in ("percentile", "t"):
            raise InputError(f"bootstrap: method is {self.method!r}; expected 'percentile' or 't'")


@dataclass(frozen=True)
class Resamples:
    """Cluster weights of every replicate, generated on demand and always the same for the same settings.

    ``sizes`` has the number of clusters of each stratum in the order of the weight columns, ``names`` their names (by
    default positions). Each stratum draws from its own stream, keyed by the checksum of its name and the seed: its
    weights depend neither on the size of the chunks, nor on how many statistics are computed, nor on other strata.
    """

    seed: int
    replicates: int = DEFAULT_REPLICATES
    confidence: float = DEFAULT_CONFIDENCE
    sizes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Resampling(self.replicates, self.confidence, self.seed)
        if not self.sizes or min(self.sizes) < 1:
            raise InputError(f"bootstrap: cluster counts per stratum are {self.sizes}; expected at least 1 in each")
        if not self.names:
            object.__setattr__(self, "names", tuple(str(position) for position in range(len(self.sizes))))
        if len(self.names) != len(self.sizes) or len(set(self.names)) != len(self.names):
            raise InputError(f"bootstrap: stratum names are {self.names}; expected {len(self.sizes)} different names")

    @property
    def n_clusters(self) -> int:
        """Number of clusters over all strata: the number of weight columns."""
        return int(sum(self.sizes))

    def chunks(self, rows: int | None = None) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield ``(first replicate, weights)``: how often each cluster is drawn, int64, shape (rows, n_clusters)."""
        rows = max(1, _CHUNK_CELLS // self.n_clusters) if rows is None else rows
        generators = [np.random.default_rng([zlib.crc32(name.encode()), self.seed]) for name in self.names]
        for start in range(0, self.replicates, rows):
            count = min(rows, self.replicates - start)
            parts = [_draw(rng, size, count) for rng, size in zip(generators, self.sizes, strict=True)]
            yield start, np.hstack(parts)

    def weights(self) -> NDArray[np.int64]:
        """Return all weights at once: int64, shape (replicates, n_clusters)."""
        return np.vstack([part for _, part in self.chunks()])


def _draw(rng: np.random.Generator, size: int, count: int) -> NDArray[np.int64]:
    """Count how often each of ``size`` clusters is drawn in ``size`` draws, ``count`` times over."""
    picked = rng.integers(0, size, size=(count, size))
    picked += np.arange(count)[:, None] * size
    return np.bincount(picked.ravel(), minlength=count * size).reshape(count, size)


@dataclass(frozen=True)
class _Sums:
    """Units reduced to clusters: all that a replicate needs. ``labels`` are statistics, then contrasts."""

    labels: list[str]
    terms: list[list[tuple[int, float]]]  # of each contrast: (statistic, coefficient)
    sums: Array
    counts: Array
    units: Array
    strata: NDArray[np.int64]
    sources: dict[str, slice]
    pattern: Array
    pattern_of: NDArray[np.intp]

    @property
    def places(self) -> dict[str, int]:
        """Row of every source and of "macro"; with one source they share it."""
        rows = {source: row for row, source in enumerate(self.sources)}
        return rows | {MACRO: len(rows) if len(rows) > 1 else 0}

    def means(self, weights: NDArray[Any]) -> Array:
        """Source means, macro means and their contrasts; shape (rows, labels, rows of weights)."""
        out = np.empty((self.places[MACRO] + 1, len(self.labels), len(weights)))
        dense, own = np.asarray(weights, dtype=np.float64), self.sums.shape[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            for row, part in enumerate(self.sources.values()):
                total = (dense[:, part] @ self.sums[part]).T
                number = (dense[:, part] @ self.pattern[part]).T[self.pattern_of]
                np.divide(total, number, out=out[row, :own])  # 0 / 0 is NaN: undefined, never 0
        return self._finish(out)

    def influences(self, estimates: Array) -> Array:
        """Linearised cluster contributions; shape (rows, labels, clusters), 0 outside a source."""
        out, own = np.zeros((self.places[MACRO] + 1, len(self.labels), len(self.sums))), self.sums.shape[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            for row, part in enumerate(self.sources.values()):
                residual = self.sums[part] - self.counts[part] * estimates[row, :own]
                out[row, :own, part] = (residual / self.counts[part].sum(axis=0)).T
        return self._finish(out)

    def _finish(self, out: Array) -> Array:
        """Fill in the macro row and the contrasts."""
        own = self.sums.shape[1]
        if len(self.sources) > 1:
            out[-1, :own] = out[:-1, :own].mean(axis=0)
        # Term by term rather than a matrix product: 0 * NaN would spread a statistic the contrast does not use.
        for row, terms in enumerate(self.terms, start=own):
            out[:, row] = sum(coefficient * out[:, place] for place, coefficient in terms)
        return out


@dataclass(frozen=True, eq=False)
class BootstrapResult:
    """Estimates with intervals (``table``, see `estimate`), settings, the resamples, and the replicates if kept."""

    table: pd.DataFrame
    settings: dict[str, Any]
    resamples: Resamples
    _sums: _Sums = field(repr=False)
    _kept: Array | None = field(default=None, repr=False)

    def replicates(self, statistic: str, source: str = MACRO) -> Array:
        """Return the replicates of one statistic or contrast in order, NaN where undefined."""
        self.row(statistic, source)
        if self._kept is None:
            raise InputError("bootstrap: the replicates were not kept (keep_replicates=True)")
        if source not in self._sums.places:
            return np.full(self.resamples.replicates, np.nan)  # a source without a single evaluable unit
        return self._kept[self._sums.places[source], self._sums.labels.index(statistic)].copy()

    def row(self, statistic: str, source: str = MACRO) -> pd.Series:
        """Return the row of ``table`` for one statistic and source; `InputError` if there is none."""
        match = (self.table["statistic"] == statistic) & (self.table["source"] == source)
        if not match.any():
            raise InputError(f"bootstrap: no row for statistic {statistic!r} and source {source!r}")
        return self.table.loc[match].iloc[0]


def ratio_means(
    values: pd.DataFrame,
    *,
    clusters: Labels,
    strata: Labels | None = None,
    sources: Labels | None = None,
    contrasts: Mapping[str, Mapping[str, float]] | None = None,
    weights: Labels | None = None,
    resampling: Resampling | None = None,
    keep_replicates: bool = False,
) -> BootstrapResult:
    """Estimate the mean of every column with clustered, stratified intervals: the engine of `estimate`.

    A column is a statistic, a row a unit. A cluster is identified by source, stratum and its label together. A unit
    with every statistic undefined is left out before clusters are formed. Within a replicate a source mean is the sum
    of the defined values over the resampled clusters divided by their number, and undefined when there are none; the
    macro mean is undefined whenever any source with evaluable units is: a mean over fewer sources is another quantity.
    Percentile intervals are over the defined replicates; the t interval has clusters - strata degrees of freedom.
    """
    how = resampling or Resampling()
    data = pd.DataFrame({name: _numbers(values[name]) for name in values.columns})
    keys = _as_keys(len(data), clusters, strata, sources)
    evaluable = data.notna().any(axis=1).to_numpy()
    # With nothing evaluable keep the (empty) units, so that every row is there and undefined.
    used = evaluable if evaluable.any() else ~evaluable
    heavy = np.ones(len(data)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not np.isfinite(heavy).all() or (heavy <= 0).any():
        raise InputError("bootstrap: weights; expected finite numbers above 0")
    sums, sizes = _reduce(data[used], keys[used], contrasts or {}, heavy[used])
    settings = {
        "seed": int(how.seed),
        "replicates": int(how.replicates),
        "confidence": float(how.confidence),
        "method": how.method,
        "n_units": int(evaluable.sum()),
        "n_unevaluable": int((~evaluable).sum()),
        "n_clusters": sum(sizes.values()),
        "n_strata": len(sizes),
        "n_sources": len(sums.sources),
    }
    resamples = Resamples(int(how.seed), int(how.replicates), how.confidence, tuple(sizes.values()), tuple(sizes))
    cells = (sums.places[MACRO] + 1) * len(sums.labels) * resamples.replicates
    if cells > MOST_CELLS:
        raise InputError(f"bootstrap: {how.replicates:,} replicates of {len(sums.labels):,} numbers; expected fewer")
    drawn = np.empty((sums.places[MACRO] + 1, len(sums.labels), resamples.replicates))
    for start, part in resamples.chunks():
        drawn[:, :, start : start + len(part)] = sums.means(part)
    undefined = np.isnan(drawn).sum(axis=-1)
    estimates = sums.means(np.ones((1, len(sums.sums))))[:, :, 0]
    if how.method == "percentile":
        ends = _percentile(drawn.copy() if keep_replicates else drawn, how.confidence)
    else:
        ends = _student(sums, estimates, how.confidence)
    table = _tabulate(sums, estimates, ends, undefined, sorted(keys["source"].unique()), how.replicates)
    return BootstrapResult(table, settings, resamples, sums, drawn if keep_replicates else None)


def _numbers(column: pd.Series) -> Array:
    try:
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        raise InputError(f"bootstrap: statistic {column.name!r} has type {column.dtype}; expected numbers") from None
    if np.isinf(numbers).any():
        where = f"statistic {column.name!r}, row {int(np.isinf(numbers).argmax())}"
        raise InputError(f"bootstrap: {where}: infinite; expected a finite number or missing")
    return numbers


def _as_keys(n: int, clusters: Labels, strata: Labels | None, sources: Labels | None) -> pd.DataFrame:
    """Return the labels source, stratum, cluster of every unit; as text, so that row order never orders clusters."""
    keys = pd.DataFrame(index=pd.RangeIndex(n))
    for what, labels in (("source", sources), ("stratum", strata), ("cluster", clusters)):
        given = pd.Series(_ONE_SOURCE if labels is None else np.asarray(labels, dtype=object), index=keys.index)
        if given.isna().any():
            raise InputError(f"bootstrap: {what} of row {int(given.isna().argmax())} is missing; expected a label")
        keys[what] = given.map(str)
    if (keys["source"] == MACRO).any():
        raise InputError(f"bootstrap: a source is named {MACRO!r}; expected another name, since that row is the mean")
    homes = keys.drop_duplicates().sort_values(["source", "cluster", "stratum"])
    torn = homes[homes.duplicated(["source", "cluster"])]
    if len(torn):
        source, stratum, cluster = torn.iloc[0]
        where = f"cluster {cluster!r} of source {source!r} lies in stratum {stratum!r} and in another"
        raise InputError(f"bootstrap: {where}; expected one stratum per cluster")
    return keys


def _reduce(
    data: pd.DataFrame, keys: pd.DataFrame, contrasts: Mapping[str, Mapping[str, float]], weights: Array
) -> tuple[_Sums, dict[str, int]]:
    """Sum units within clusters; return the sums and the number of clusters of each named stratum."""
    by, defined = [keys["source"], keys["stratum"], keys["cluster"]], data.notna()
    at = {name: place for place, name in enumerate(data.columns)}
    terms = [[(at[part], float(value)) for part, value in parts.items()] for parts in contrasts.values()]
    known = defined.to_numpy(dtype=bool)
    # A contrast has the units for which any of its parts is defined.
    known = np.column_stack([known, *(known[:, [place for place, _ in parts]].any(axis=1) for parts in terms)])
    sums = data.fillna(0.0).mul(weights, axis=0).groupby(by, sort=True).sum()
    counts = defined.astype(np.float64).mul(weights, axis=0).groupby(by, sort=True).sum()
    units = pd.DataFrame(known, index=data.index).astype(np.float64).groupby(by, sort=True).sum()
    index = sums.index.to_frame(index=False)
    strata, names = (index["source"] + "\x1f" + index["stratum"]).factorize()
    sizes = index.groupby("source", sort=True).size()
    ends = zip(sizes.index, sizes.cumsum(), sizes, strict=True)
    sources = {str(name): slice(int(stop - size), int(stop)) for name, stop, size in ends}
    # Statistics defined for the same units share their denominators: compute each pattern once.
    pattern, pattern_of = np.unique(counts.to_numpy(), axis=1, return_inverse=True)
    reduced = _Sums(
        [*data.columns, *contrasts], terms, sums.to_numpy(), counts.to_numpy(), units.to_numpy(),
        strata.astype(np.int64), sources, pattern, pattern_of.ravel(),
    )  # fmt: skip
    return reduced, dict(zip(map(str, names), np.bincount(strata).tolist(), strict=True))


def _percentile(drawn: Array, confidence: float) -> Array:
    """Take the ends of the percentile interval over defined replicates; shape (2, rows, labels)."""
    tail = (1 - confidence) / 2
    probs = (tail, 1 - tail)
    ends = np.quantile(drawn, probs, axis=-1, overwrite_input=True)
    # NaN wherever a replicate is undefined: there the interval is over the defined ones.
    for row, label in np.argwhere(np.isnan(ends[0])):
        values = drawn[row, label]
        values = values[~np.isnan(values)]
        if values.size:
            ends[:, row, label] = np.quantile(values, probs)
    return ends


def _student(sums: _Sums, estimates: Array, confidence: float) -> Array:
    """Take the ends of the t interval of a stratified cluster sample; shape (2, rows, labels)."""
    from scipy import stats

    parts = sums.influences(estimates)
    sizes = np.bincount(sums.strata).astype(np.float64)
    member = np.equal.outer(sums.strata, np.arange(len(sizes))).astype(np.float64)
    centred = parts - ((parts @ member) / sizes) @ member.T
    # A stratum with one cluster has no spread to estimate from: it adds neither variance nor degrees of freedom.
    factor = np.divide(sizes, sizes - 1, out=np.zeros_like(sizes), where=sizes > 1)
    error = np.sqrt((centred**2 * factor[sums.strata]).sum(axis=-1))
    slices = [*sums.sources.values(), slice(None)][: (sums.places[MACRO] + 1)]
    freedom = np.array([len(sums.strata[s]) - len(np.unique(sums.strata[s])) for s in slices], dtype=np.float64)
    reach = stats.t.ppf((1 + confidence) / 2, np.where(freedom > 0, freedom, np.nan))
    return np.stack([estimates - reach[:, None] * error, estimates + reach[:, None] * error])


def _tabulate(
    sums: _Sums,
    estimates: Array,
    ends: Array,
    undefined: NDArray[np.intp],
    names: list[str],
    replicates: int,
) -> pd.DataFrame:
    """Lay the results out as one row per label and source, sources in sorted order and "macro" last."""
    at = sums.places
    rows = []
    for label, statistic in enumerate(sums.labels):
        for source in [*names, MACRO]:
            if source not in at:  # every unit of this source is unevaluable
                rows.append((statistic, source, np.nan, np.nan, np.nan, replicates, 0, 0))
                continue
            row = at[source]
            part = slice(None) if source == MACRO else sums.sources[source]
            estimate, (low, high) = estimates[row, label], ends[:, row, label]
            if np.isnan(estimate):
                low = high = np.nan
            units = sums.units[part, label]
            counts = (int(undefined[row, label]), int(units.sum()), int((units > 0).sum()))
            rows.append((statistic, source, estimate, low, high, *counts))
    columns = ["statistic", "source", "estimate", "low", "high", "undefined_replicates", "n_units", "n_clusters"]
    return pd.DataFrame(rows, columns=columns)
