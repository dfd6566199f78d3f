"""Percentile bootstrap over clusters within strata: every statistic and contrast from the same resamples.

A *unit* is one row (a query, a case, a reader's paired unit). Units that share a *cluster* (a namespace group, a
scenario) move together; clusters are resampled with replacement within their *stratum*; a *source* mean is a ratio of
sums over the resampled clusters, and sources then weigh the same ("macro"). Resampling G clusters with replacement is
the same as giving each cluster a multinomial count, so a replicate is a row of integer weights, and all replicates of
all statistics are one matrix product. Methods, "Intervals".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from companion.errors import InputError
from companion.resamples import (
    DEFAULT_CONFIDENCE,
    DEFAULT_REPLICATES,
    MACRO,
    BootstrapResult,
    Method,
    Resamples,
    Resampling,
    ratio_means,
)

__all__ = [
    "DEFAULT_CONFIDENCE",
    "DEFAULT_REPLICATES",
    "LEAST_REPLICATES",
    "MACRO",
    "Method",
    "Resamples",
    "Resampling",
    "estimate",
    "ratio_means",
    "require_single",
]

MOST_REPLICATES = 1_000_000
LEAST_REPLICATES = 200
"""Fewer replicates do not settle the ends of a 95% interval: none is given."""


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
        replicates), else "". Methods, "Intervals".

    Raises
    ------
    InputError
        For unknown columns or references, a unit twice in one combination, values that are infinite or no numbers,
        missing labels, no rows, or a cluster that lies in two strata.

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
