"""Percentile bootstrap over clusters within strata: every statistic and contrast from the same resamples.

A *unit* is one row (a query, a case, a reader's paired unit). Units that share a *cluster* (a namespace group, a
scenario) move together; clusters are resampled with replacement within their *stratum*; a *source* mean is a ratio of
sums over the resampled clusters, and sources then weigh the same ("macro"). Resampling G clusters with replacement is
the same as giving each cluster a multinomial count, so a replicate is a row of integer weights, and all replicates of
all statistics are one matrix product. Methods, "Intervals".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from companion.errors import InputError

__all__ = ["MACRO", "BootstrapResult", "Resamples", "Resampling", "estimate", "ratio_means", "require_single"]

MOST_REPLICATES = 1_000_000
DEFAULT_REPLICATES = 10_000
DEFAULT_CONFIDENCE = 0.95
LEAST_REPLICATES = 200
"""Fewer replicates do not settle the ends of a 95% interval: none is given."""
MACRO = "macro"
"""Label of the row that weighs every source the same."""
MOST_REPLICATES = 1_000_000
"""More would take memory without moving an end."""

Method = Literal["percentile", "t"]
Array = NDArray[np.float64]

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
        if self.replicates > MOST_REPLICATES:
            raise InputError(f"bootstrap: replicates is {self.replicates}; expected at most {MOST_REPLICATES:,}")
        numeric = isinstance(self.confidence, (int, float, np.integer, np.floating))
        if not numeric or not 0 < self.confidence < 1:
            found = repr(self.confidence)
            raise InputError(f"bootstrap: confidence is {found}; expected a number between 0 and 1, exclusive")
        if self.method not in ("percentile", "t"):
            raise InputError(f"bootstrap: method is {self.method!r}; expected 'percentile' or 't'")


def estimate(
    frame: pd.DataFrame,
    metrics: Sequence[str],
    *,
    by: Sequence[str] = (),
    unit: str | None = None,
    cluster: str = "group",
    source: str | None = "source",
    stratum: str | None = None,
    weight: str | None = None,
    combine: Mapping[str, Mapping[str, float]] | None = None,
    versus: Mapping[str, Any] | None = None,
    both: bool = False,
    resampling: Resampling | None = None,
) -> pd.DataFrame:
    """Estimate means with intervals: one tidy row for each combination of ``by``, source and metric.

    Parameters
    ----------
    frame : DataFrame
        Long table: one row per unit (a query, a case, a group) and combination of ``by``. NaN or ``<NA>`` in a metric
        is undefined and counts neither as a value nor as a unit.
    metrics : sequence of str
        Columns to average.
    by : sequence of str
        Columns whose combinations are estimated side by side (arms, readers, depths), all from the same resamples.
    unit : str, optional
        Column that identifies a unit over the combinations. Results do not depend on it; with it many arms are cheap.
    cluster, source, stratum : str
        Columns that say what is resampled, which sources weigh the same in the row "macro", and within what clusters
        are resampled. ``source=None``: there are no sources, and no such column in the result.
    weight : str, optional
        Column with the number of queries that a row stands for, where rows are already means.
    combine : mapping of name to {metric: coefficient}, optional
        Linear combinations of metrics, from the same resamples.
    versus : mapping of one column of ``by`` to its reference value, optional
        Estimate every other combination minus the reference instead of the combinations themselves.
    both : bool
        With ``versus``: the combinations first, then the differences; the column ``versus`` is missing in the former.
    resampling : Resampling, optional
        Replicates, level, seed and method.

    Returns
    -------
    DataFrame
        Columns ``*by``, ``source``, ``metric``, ``estimate``, ``low``, ``high`` (float64, NaN where undefined or where
        no interval can be given), ``undefined_replicates``, ``n_units``, ``n_clusters``. ``attrs["settings"]`` has the
        settings, ``attrs["no_interval"]`` the reason where ends are left out (fewer than two clusters, fewer than 200
        replicates), else "".

    Raises
    ------
    InputError
        On unknown columns or references, a unit twice in one combination, and everything that ``ratio_means`` refuses.

    See Also
    --------
    Methods, "Intervals".

    Examples
    --------
    >>> rows = pd.DataFrame({"arm": ["a", "a", "b", "b"], "group": ["x", "y"] * 2, "loss": [0.0, 1.0, 0.0, 0.5]})
    >>> estimate(rows, ["loss"], by=["arm"], source=None, versus={"arm": "a"})["estimate"].item()
    -0.25
    """
    how, by = resampling or Resampling(), list(by)
    wide, keys, names = _widen(frame, list(metrics), by, unit, [c for c in (cluster, source, stratum, weight) if c])
    terms = _terms(names, by, combine, versus)
    result = ratio_means(
        wide,
        clusters=keys[cluster],
        strata=keys[stratum] if stratum else None,
        sources=keys[source] if source else None,
        weights=keys[weight] if weight else None,
        contrasts={name: parts for name, (_, parts) in terms.items()},
        resampling=how,
    )
    labels = names | {name: label for name, (label, _) in terms.items()}
    table = result.table if source else result.table[result.table["source"] == MACRO]
    told = pd.DataFrame([labels[name] for name in table["statistic"]], columns=[*by, "metric", "versus"])
    tidy = pd.concat([told, table.drop(columns="statistic").reset_index(drop=True)], axis=1)
    if versus and not both:
        tidy = tidy[tidy["versus"].notna()]
    ends = ["estimate", "low", "high", "undefined_replicates", "n_units", "n_clusters"]
    columns = [*by, *(["versus"] if both else []), *(["source"] if source else []), "metric", *ends]
    return _withhold(tidy[columns].reset_index(drop=True), how, result)


def _widen(
    frame: pd.DataFrame, metrics: list[str], by: list[str], unit: str | None, keys: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, tuple[Any, ...]]]:
    """One column for each combination and metric, one row per unit; and what the columns stand for."""
    absent = [name for name in [*metrics, *by, *keys, *([unit] if unit else [])] if name not in frame.columns]
    if absent:
        raise InputError(f"estimate: no column {absent[0]!r}; the columns are {', '.join(map(str, frame.columns))}")
    rows = frame.reset_index(drop=True) if unit is None else frame.set_index(unit)
    units = rows.loc[~rows.index.duplicated(), keys]
    parts = rows.groupby(by, sort=False, dropna=False) if by else [((), rows)]
    names: dict[str, tuple[Any, ...]] = {}
    blocks = []
    for number, (combination, part) in enumerate(parts):
        if part.index.has_duplicates:
            twice = part.index[part.index.duplicated()][0]
            raise InputError(f"estimate: {unit} {twice!r} stands twice in one combination; expected one row for each")
        values = part[metrics].astype("float64").reindex(units.index)
        values.columns = [f"{number}:{metric}" for metric in metrics]
        names |= {f"{number}:{metric}": (*combination, metric, None) for metric in metrics}
        blocks.append(values)
    if not blocks:
        raise InputError("estimate: no rows; expected at least one unit")
    return pd.concat(blocks, axis=1).reset_index(drop=True), units.reset_index(drop=True), names


def _terms(
    names: Mapping[str, tuple[Any, ...]],
    by: list[str],
    combine: Mapping[str, Mapping[str, float]] | None,
    versus: Mapping[str, Any] | None,
) -> dict[str, tuple[tuple[Any, ...], dict[str, float]]]:
    """Linear combinations over the wide columns: first those of metrics, then those against the reference."""
    place = {label[:-1]: name for name, label in names.items()}
    terms: dict[str, tuple[tuple[Any, ...], dict[str, float]]] = {}
    for combination in dict.fromkeys(label[:-2] for label in names.values()):
        for new, parts in (combine or {}).items():
            own = {place[*combination, name]: value for name, value in parts.items() if (*combination, name) in place}
            if len(own) < len(parts):
                raise InputError(f"estimate: {new!r} combines {', '.join(parts)}; expected some of the metrics")
            terms[f"{len(terms)}+{new}"] = ((*combination, new, None), own)
    if not versus:
        return terms
    ((column, reference),) = versus.items()
    at = by.index(column) if column in by else -1
    if at < 0 or not any(label[at] == reference for label in names.values()):
        raise InputError(f"estimate: reference {reference!r} is not among the values of {column!r}")
    single = {name: (label, {name: 1.0}) for name, label in names.items()} | terms
    base = {label: parts for label, parts in single.values() if label[at] == reference}
    for label, parts in single.values():
        other = base.get((*label[:at], reference, *label[at + 1 :]))
        if label[at] != reference and other is not None:
            minus = parts | {name: -value for name, value in other.items()}
            terms[f"{len(terms)}-{label[-2]}"] = ((*label[:-1], reference), minus)
    return terms


def _withhold(tidy: pd.DataFrame, how: Resampling, result: BootstrapResult) -> pd.DataFrame:
    """Leave out ends that would not mean anything, and say why."""
    # Where no stratum has two clusters, nothing ever varies, however many strata there are.
    still = result.settings["n_clusters"] == result.settings["n_strata"]
    lone = (tidy["n_clusters"] < 2) | still
    few = how.method == "percentile" and how.replicates < LEAST_REPLICATES
    reasons = ["fewer than two groups to resample"] * bool(lone.any())
    reasons += [f"{how.replicates} replicates, fewer than {LEAST_REPLICATES}"] * few
    tidy.loc[lone | few, ["low", "high"]] = np.nan
    tidy.attrs = {"settings": result.settings, "no_interval": "; ".join(reasons)}
    return tidy


def require_single(values: Iterable[Any], what: str) -> Any:
    """Return the one value that all rows share (their population, their reader); refuse to average over several."""
    series = pd.Series(list(values), dtype=object)
    if series.isna().any():
        raise InputError(f"{what}: row {int(series.isna().argmax())} states none; expected one {what} for all rows")
    found = list(pd.unique(series))
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(f"{what}: no rows; expected rows of exactly one {what}")
    shown = ", ".join(repr(value) for value in found[:5]) + (", ..." if len(found) > 5 else "")
    raise InputError(f"{what}: found {len(found)} ({shown}); expected exactly one, because they are never pooled")


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
    """Units reduced to clusters: all that a replicate needs."""

    names: tuple[str, ...]
    contrasts: dict[str, dict[str, float]]
    sums: Array
    counts: Array
    units: Array
    strata: NDArray[np.int64]
    sources: dict[str, slice]
    pattern: Array
    pattern_of: NDArray[np.intp]

    @property
    def labels(self) -> list[str]:
        return [*self.names, *self.contrasts]

    @property
    def places(self) -> dict[str, int]:
        """Row of every source and of "macro"; with one source they share it."""
        rows = {source: row for row, source in enumerate(self.sources)}
        return rows | {MACRO: len(rows) if len(rows) > 1 else 0}

    @property
    def n_rows(self) -> int:
        return self.places[MACRO] + 1

    def means(self, weights: NDArray[Any]) -> Array:
        """Source means, macro means and their contrasts; shape (rows, labels, rows of weights)."""
        out = np.empty((self.n_rows, len(self.labels), len(weights)))
        dense = np.asarray(weights, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            for row, part in enumerate(self.sources.values()):
                total = (dense[:, part] @ self.sums[part]).T
                number = (dense[:, part] @ self.pattern[part]).T[self.pattern_of]
                np.divide(total, number, out=out[row, : len(self.names)])  # 0 / 0 is NaN: undefined, never 0
        self._finish(out)
        return out

    def influences(self, estimates: Array) -> Array:
        """Linearised cluster contributions; shape (rows, labels, clusters), 0 outside a source."""
        out = np.zeros((self.n_rows, len(self.labels), len(self.sums)))
        with np.errstate(invalid="ignore", divide="ignore"):
            for row, part in enumerate(self.sources.values()):
                mean = estimates[row, : len(self.names)]
                residual = self.sums[part] - self.counts[part] * mean
                out[row, : len(self.names), part] = (residual / self.counts[part].sum(axis=0)).T
        self._finish(out)
        return out

    def _finish(self, out: Array) -> None:
        """Fill in the macro row and the contrasts."""
        if len(self.sources) > 1:
            out[-1, : len(self.names)] = out[:-1, : len(self.names)].mean(axis=0)
        # Term by term rather than a matrix product: 0 * NaN would spread a statistic the contrast does not use.
        at = {name: i for i, name in enumerate(self.names)}
        for row, terms in enumerate(self.contrasts.values(), start=len(self.names)):
            out[:, row] = sum(coefficient * out[:, at[name]] for name, coefficient in terms.items())


@dataclass(frozen=True, eq=False)
class BootstrapResult:
    """Estimates with intervals, and the replicates where they were kept.

    ``table`` has one row per statistic or contrast and source, then one with source "macro": ``statistic``, ``source``,
    ``estimate``, ``low``, ``high`` (NaN = undefined), ``undefined_replicates``, ``n_units`` (units with a defined
    value; for a contrast, with any of its parts defined), ``n_clusters`` (clusters that hold such units).
    """

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
    values: pd.DataFrame | ArrayLike,
    *,
    clusters: ArrayLike | pd.Series,
    strata: ArrayLike | pd.Series | None = None,
    sources: ArrayLike | pd.Series | None = None,
    contrasts: Mapping[str, Mapping[str, float]] | None = None,
    weights: ArrayLike | pd.Series | None = None,
    resampling: Resampling | None = None,
    keep_replicates: bool = False,
    split_clusters: bool = False,
    **settings: Any,
) -> BootstrapResult:
    """Estimate the mean of every column with clustered, stratified intervals: the engine of `estimate`.

    A column is a statistic, a row a unit. A cluster is identified by source, stratum and its label together; one found
    in several strata of a source is refused, unless ``split_clusters`` takes it as one cluster in each. A unit with
    every statistic undefined is left out before clusters are formed. Within a replicate a source mean is the sum of
    the defined values over the resampled clusters divided by their number, and undefined when there are none; the
    macro mean is undefined whenever any source with evaluable units is: a mean over fewer sources is another quantity.
    Percentile intervals are over the defined replicates; the t interval has clusters - strata degrees of freedom.
    """
    how = resampling or Resampling(**settings)
    data = _as_values(values)
    terms = _as_contrasts(contrasts, list(data.columns))
    keys = _as_keys(len(data), clusters, strata, sources, split_clusters)
    evaluable = data.notna().any(axis=1).to_numpy()
    # With nothing evaluable keep the (empty) units, so that every row is there and undefined.
    used = evaluable if evaluable.any() else ~evaluable
    sums, sizes = _reduce(data[used], keys[used], terms, _as_weights(len(data), weights)[used])
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
    drawn = np.empty((sums.n_rows, len(sums.labels), resamples.replicates))
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


def _as_values(values: pd.DataFrame | ArrayLike) -> pd.DataFrame:
    """Return the statistics as float64 columns with unique string names."""
    data = values if isinstance(values, pd.DataFrame) else pd.DataFrame(np.atleast_1d(np.asarray(values)))
    data = data.set_axis([str(name) for name in data.columns], axis=1).reset_index(drop=True)
    if not data.shape[0] or not data.shape[1]:
        raise InputError(f"bootstrap: values have shape {data.shape}; expected at least one unit and one statistic")
    repeated = data.columns[data.columns.duplicated()]
    if len(repeated):
        raise InputError(f"bootstrap: statistic {repeated[0]!r} appears twice; expected different names")
    columns = {}
    for name in data.columns:
        try:
            columns[name] = data[name].to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            raise InputError(f"bootstrap: statistic {name!r} has type {data[name].dtype}; expected numbers") from None
        if np.isinf(columns[name]).any():
            row = int(np.isinf(columns[name]).argmax())
            raise InputError(f"bootstrap: statistic {name!r}, row {row}: infinite; expected a finite number or missing")
    return pd.DataFrame(columns)


def _as_contrasts(
    contrasts: Mapping[str, Mapping[str, float]] | None, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    terms: dict[str, dict[str, float]] = {}
    for name, parts in (contrasts or {}).items():
        if name in names:
            raise InputError(f"bootstrap: contrast {name!r} has the name of a statistic; expected another name")
        unknown = [part for part in parts if part not in names]
        if unknown or not parts:
            what = f"unknown statistic {unknown[0]!r}" if unknown else "no statistics"
            raise InputError(f"bootstrap: contrast {name!r} has {what}; expected some of {', '.join(names)}")
        terms[name] = {part: float(coefficient) for part, coefficient in parts.items()}
        if not np.isfinite(list(terms[name].values())).all():
            raise InputError(f"bootstrap: contrast {name!r} has coefficients {terms[name]}; expected finite numbers")
    return terms


def _as_keys(
    n: int,
    clusters: ArrayLike | pd.Series,
    strata: ArrayLike | pd.Series | None,
    sources: ArrayLike | pd.Series | None,
    split_clusters: bool,
) -> pd.DataFrame:
    """Return string labels source, stratum, cluster of every unit."""
    keys = pd.DataFrame(
        {
            "source": _as_labels(n, sources, "source"),
            "stratum": _as_labels(n, strata, "stratum"),
            "cluster": _as_labels(n, clusters, "cluster"),
        }
    )
    if (keys["source"] == MACRO).any():
        raise InputError(f"bootstrap: a source is named {MACRO!r}; expected another name, since that row is the mean")
    if not split_clusters:
        homes = keys.drop_duplicates().sort_values(["source", "cluster", "stratum"])
        torn = homes[homes.duplicated(["source", "cluster"])]
        if len(torn):
            source, stratum, cluster = torn.iloc[0]
            raise InputError(
                f"bootstrap: cluster {cluster!r} of source {source!r} lies in stratum {stratum!r} and in another; "
                "expected one stratum per cluster (or split_clusters=True)"
            )
    return keys


def _as_labels(n: int, labels: ArrayLike | pd.Series | None, what: str) -> pd.Series:
    if labels is None:
        return pd.Series([_ONE_SOURCE] * n, dtype=object)
    series = pd.Series(np.asarray(labels, dtype=object))
    if len(series) != n:
        raise InputError(f"bootstrap: {len(series)} {what} labels for {n} units; expected one for each")
    if series.isna().any():
        raise InputError(f"bootstrap: {what} of row {int(series.isna().argmax())} is missing; expected a label")
    # Labels sort as text, so the order of clusters never depends on the order of rows.
    return series.map(str)


def _as_weights(n: int, weights: ArrayLike | pd.Series | None) -> Array:
    if weights is None:
        return np.ones(n)
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (n,) or not np.isfinite(given).all() or (given <= 0).any():
        raise InputError(f"bootstrap: weights have shape {given.shape}; expected {n} finite numbers above 0")
    return given


def _reduce(
    data: pd.DataFrame, keys: pd.DataFrame, contrasts: dict[str, dict[str, float]], weights: Array
) -> tuple[_Sums, dict[str, int]]:
    """Sum units within clusters; return the sums and the number of clusters of each named stratum."""
    by = [keys["source"], keys["stratum"], keys["cluster"]]
    defined = data.notna()
    sums = data.fillna(0.0).mul(weights, axis=0).groupby(by, sort=True).sum()
    counts = defined.astype(np.float64).mul(weights, axis=0).groupby(by, sort=True).sum()
    units = _any_part(defined, contrasts).astype(np.float64).groupby(by, sort=True).sum()
    index = sums.index.to_frame(index=False)
    strata, names = (index["source"] + "\x1f" + index["stratum"]).factorize()
    sizes = index.groupby("source", sort=True).size()
    stops = sizes.cumsum()
    sources = {
        str(name): slice(int(stop - size), int(stop)) for (name, size), stop in zip(sizes.items(), stops, strict=True)
    }
    # Statistics defined for the same units share their denominators: compute each pattern once.
    pattern, pattern_of = np.unique(counts.to_numpy(), axis=1, return_inverse=True)
    reduced = _Sums(
        names=tuple(data.columns),
        contrasts=contrasts,
        sums=sums.to_numpy(),
        counts=counts.to_numpy(),
        units=units.to_numpy(),
        strata=strata.astype(np.int64),
        sources=sources,
        pattern=pattern,
        pattern_of=pattern_of.ravel(),
    )
    return reduced, dict(zip(map(str, names), np.bincount(strata).tolist(), strict=True))


def _any_part(defined: pd.DataFrame, contrasts: dict[str, dict[str, float]]) -> pd.DataFrame:
    """Append, for each contrast, whether any of its parts is defined for the unit."""
    known = defined.to_numpy(dtype=bool)
    place = {name: number for number, name in enumerate(defined.columns)}
    extra = {name: known[:, [place[part] for part in parts]].any(axis=1) for name, parts in contrasts.items()}
    return pd.concat([defined, pd.DataFrame(extra, index=defined.index)], axis=1)


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
    slices = [*sums.sources.values(), slice(None)][: sums.n_rows]
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
