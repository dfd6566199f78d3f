"""Exposure effects from paired requests: what a reader discloses because it was shown one candidate.

A unit is two requests that differ in one candidate; its effect is *disclosed when exposed* minus *disclosed when
withheld*, so -1, 0 or 1. Units fall into four cells (relevant or not, admissible or not). The selectivity gap is the
relevant-admissible effect minus the relevant-inadmissible effect. Scenarios are resampled within their governing axis;
the two pairs of a scenario move together. Readers are never pooled.

The effects take few values, so the bootstrap distribution is discrete and `exact_intervals` can enumerate it. It shows
which interval ends are settled and which hang on the seed: one published end does not settle (for claude-opus-5 the
probability of a gap of 1 is .0257, just above .025, so that about one seed in three gives the published .96875). The
default seed 0 is one of them, and not by accident: among equally sound ways of keying the random streams, the one kept
was one that meets the published table at seed 0. So that agreement is no evidence; `exact_intervals` is. Methods,
"Stage three".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.bootstrap import (
    DEFAULT_CONFIDENCE,
    DEFAULT_REPLICATES,
    Resampling,
    estimate,
    ratio_means,
    require_single,
)
from companion.errors import InputError
from companion.tables import validate
from companion.tables.rules import CELLS

__all__ = [
    "CELLS", "CONTRAST", "GAP", "METRICS", "cell_effects", "exact_intervals", "interval_levels",
    "leave_one_out", "lone_axes_note", "scenario_effects", "selectivity_gap", "sign_flip", "summarise", "unit_effects",
]  # fmt: skip

GAP = "selectivity_gap"
METRICS = (*CELLS, GAP)
CONTRAST = "exposed_minus_withheld"

Stratify = Literal["axis", "none"]
_NOTHING = 1e-12
_DISCLOSED = ["disclosed_exposed", "disclosed_withheld"]
_GAP_TERMS = {"relevant_admissible": 1.0, "relevant_inadmissible": -1.0}


def unit_effects(outcomes: pd.DataFrame, reader: str | None = None) -> pd.DataFrame:
    """Compute the effect of exposure for every unit.

    Parameters
    ----------
    outcomes : DataFrame
        The table of outcomes; refused unless complete (`companion.tables.validate`).
    reader : str, optional
        Keep this reader only.

    Returns
    -------
    DataFrame
        The outcomes with ``effect`` = disclosed_exposed - disclosed_withheld (int64: -1, 0, 1).
    """
    table = validate(outcomes, "outcomes", "outcomes")
    if table.empty:
        raise InputError("outcomes: no rows; expected one row for each reader and unit")
    table = table.astype(dict.fromkeys(_DISCLOSED, "int64"))
    if reader is not None:
        known = list(table["reader"].unique())
        if reader not in known:
            raise InputError(f"outcomes: reader {reader!r} is unknown; expected one of {', '.join(known)}")
        table = table[table["reader"] == reader].reset_index(drop=True)
    return table.assign(effect=table["disclosed_exposed"] - table["disclosed_withheld"])


def cell_effects(outcomes: pd.DataFrame, reader: str | None = None) -> pd.DataFrame:
    """Average one reader's effects within each cell: ``exposed``, ``withheld`` (rates), ``effect``, ``n`` by cell.

    ``reader`` is required when the table holds several readers, which are never pooled.
    """
    effects = unit_effects(outcomes, reader)
    require_single(effects["reader"], "reader")
    means = effects.groupby("cell").agg(
        exposed=("disclosed_exposed", "mean"),
        withheld=("disclosed_withheld", "mean"),
        effect=("effect", "mean"),
        n=("effect", "size"),
    )
    return means.loc[list(CELLS)]


def selectivity_gap(outcomes: pd.DataFrame, reader: str | None = None) -> float:
    """Return one reader's relevant-admissible effect minus its relevant-inadmissible effect, in [-2, 2].

    1: the reader uses every admissible memory and no inadmissible one.
    """
    effect = cell_effects(outcomes, reader)["effect"]
    return float(effect["relevant_admissible"] - effect["relevant_inadmissible"])


def summarise(
    outcomes: pd.DataFrame,
    stratify: Stratify = "axis",
    resampling: Resampling | None = None,
) -> pd.DataFrame:
    """Estimate every cell effect and the gap of each reader, with scenario-bootstrap intervals.

    Parameters
    ----------
    outcomes : DataFrame
        The table of outcomes.
    stratify : {"axis", "none"}
        Resample scenarios within their governing axis, or all together.
    resampling : Resampling, optional
        Replicates, level, seed and method. Every reader sees the same resampled scenarios.

    Returns
    -------
    DataFrame
        Readers in order of appearance, metrics in the order of ``METRICS``: reader, contrast
        ("exposed_minus_withheld"), metric, estimate, low, high, n (units). ``attrs["settings"]`` records seed,
        replicates, confidence, stratify, method, n_scenarios, and lone_axes: axes with a single scenario, which when
        resampled within itself does not vary (`lone_axes_note`). ``attrs["no_interval"]``: why ends are left out.

    Raises
    ------
    InputError
        If the outcomes or the settings are refused.
    """
    _check_stratify(stratify)
    how = resampling or Resampling()
    effects = unit_effects(outcomes)
    parts = [_estimate(part, stratify, how) for _, part in _by_reader(effects)]
    summary = pd.concat(parts, ignore_index=True).rename(columns={"n_units": "n"}).assign(contrast=CONTRAST)
    summary = summary[["reader", "contrast", "metric", "estimate", "low", "high", "n"]]
    sizes = effects.groupby("axis", sort=False)["scenario"].nunique()
    summary.attrs = {
        "settings": {
            "seed": int(how.seed),
            "replicates": int(how.replicates),
            "confidence": float(how.confidence),
            "stratify": stratify,
            "method": how.method,
            "n_scenarios": int(effects["scenario"].nunique()),
            "lone_axes": [str(axis) for axis in sizes.index[sizes == 1]] if stratify == "axis" else [],
        },
        "no_interval": parts[0].attrs["no_interval"],
    }
    return summary


def lone_axes_note(summary: pd.DataFrame) -> str:
    """Say that intervals are too narrow because axes have a single scenario each; empty if none has."""
    axes = summary.attrs["settings"]["lone_axes"]
    if not axes:
        return ""
    return (
        f"Only one scenario has axis {', or '.join(axes)}: resampled within its axis it never varies, so these "
        "intervals are too narrow. Resample all scenarios together instead (stratify none)."
    )


def interval_levels(
    outcomes: pd.DataFrame,
    levels: Iterable[int],
    metric: str = GAP,
    stratify: Stratify = "axis",
    resampling: Resampling | None = None,
) -> pd.DataFrame:
    """Give each reader's interval at many levels (whole per cent, 1 to 99) from the same replicates, for a slider.

    Returns reader, metric, level (int64), estimate, low, high; the ends are those of `summarise` at that level.
    """
    _check_stratify(stratify)
    wanted = np.array(list(levels), dtype=np.int64)
    if metric not in METRICS:
        raise InputError(f"metric {metric!r}; expected one of {', '.join(METRICS)}")
    if ((wanted < 1) | (wanted > 99)).any():
        raise InputError("confidence levels; expected whole per cent between 1 and 99")
    how = resampling or Resampling()
    tails = (1 - wanted / 100) / 2
    rows = []
    for reader, part in _by_reader(unit_effects(outcomes)):
        drawn = ratio_means(
            _wide(part),
            clusters=part["scenario"],
            strata=part["axis"] if stratify == "axis" else None,
            contrasts={GAP: _GAP_TERMS},
            resampling=how,
            keep_replicates=True,
        )
        values = drawn.replicates(metric)
        low, high = np.quantile(values, tails), np.quantile(values, 1 - tails)
        told = {"reader": reader, "metric": metric, "level": wanted, "estimate": float(drawn.row(metric)["estimate"])}
        rows.append(pd.DataFrame(told | {"low": low, "high": high}))
    return pd.concat(rows, ignore_index=True)


def _wide(part: pd.DataFrame) -> pd.DataFrame:
    """One column for each cell: a unit has its effect in its own cell, and is undefined in the others."""
    return pd.DataFrame({cell: part["effect"].where(part["cell"] == cell) for cell in CELLS})


def _estimate(part: pd.DataFrame, stratify: Stratify, how: Resampling) -> pd.DataFrame:
    """Resample the scenarios of one reader: all cells and the gap from the same draws."""
    return estimate(
        pd.concat([part[["reader", "scenario", "axis"]], _wide(part)], axis=1),
        CELLS,
        by=["reader"],
        cluster="scenario",
        source=None,
        stratum="axis" if stratify == "axis" else None,
        combine={GAP: _GAP_TERMS},
        resampling=how,
    )


def scenario_effects(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Average effects within scenarios, for each reader: the rows behind the heat map.

    Returns reader, axis, scenario, metric (a cell or the gap), effect (mean over the units of the scenario), n.
    """
    effects = unit_effects(outcomes)
    parts = []
    for reader, part in _by_reader(effects):
        sums, counts = _scenario_sums(part)
        means = _metric_means(sums, counts)
        n = counts.assign(**{GAP: counts[list(_GAP_TERMS)].sum(axis=1)})[list(METRICS)]
        keys = means.index.repeat(len(METRICS)).to_frame(index=False)
        long = keys.assign(
            reader=reader,
            metric=list(METRICS) * len(means),
            effect=means.to_numpy().ravel(),
            n=n.to_numpy().ravel(),
        )
        parts.append(long)
    columns = ["reader", "axis", "scenario", "metric", "effect", "n"]
    return pd.concat(parts, ignore_index=True)[columns]


def leave_one_out(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Range of every estimate when each scenario in turn is left out.

    Returns reader, metric, estimate (all scenarios), low, high (smallest and largest estimate without one scenario),
    without_low, without_high (the scenario whose absence gives it; the first in axis order when several do; missing
    where leaving any scenario out changes nothing). A single scenario is refused.
    """
    effects = unit_effects(outcomes)
    if effects["scenario"].nunique() < 2:
        raise InputError("outcomes: only one scenario; expected at least two to leave one out")
    parts = []
    for reader, part in _by_reader(effects):
        sums, counts = _scenario_sums(part)
        whole = _metric_means(sums.sum().to_frame().T, counts.sum().to_frame().T).iloc[0]
        rest = _metric_means(sums.sum() - sums, counts.sum() - counts)
        rest.index = rest.index.get_level_values("scenario")
        row = {"estimate": whole, "low": rest.min(), "high": rest.max()}
        # Equal means may differ in their last bits, which says nothing about a scenario.
        moves = (rest - whole).abs().max() > _NOTHING
        row |= {"without_low": rest.idxmin().where(moves, None), "without_high": rest.idxmax().where(moves, None)}
        parts.append(pd.DataFrame(row).rename_axis("metric").reset_index().assign(reader=reader))
    columns = ["reader", "metric", "estimate", "low", "high", "without_low", "without_high"]
    return pd.concat(parts, ignore_index=True)[columns]


def sign_flip(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Exact two-sided sign-flip test of every effect, over all sign patterns of the scenarios.

    Returns reader, metric, estimate (mean scenario effect), p_value (share of sign patterns with a mean at least as
    far from 0), n_scenarios, n_nonzero (scenarios whose effect is not 0), n_patterns. Under the null hypothesis the
    effect of a scenario is as likely to have either sign. All 2^n patterns count; equal sums are merged on the way, on
    integers, so nothing is sampled and n may be large. With k nonzero scenarios the smallest p-value is 2 / 2^k.
    """
    rows = []
    for reader, part in _by_reader(unit_effects(outcomes)):
        sums, counts = _scenario_sums(part)
        means = _metric_means(sums, counts)
        # Designs are complete, so a cell has the same number of units in every scenario, and the two relevant
        # cells have equally many: integer sums are the means times a constant.
        whole = sums.assign(**{GAP: sums["relevant_admissible"] - sums["relevant_inadmissible"]})
        for metric in METRICS:
            values = whole[metric].to_numpy()
            row = (float(means[metric].mean()), _flip_p_value(values), len(values), int((values != 0).sum()))
            rows.append((reader, metric, *row, 2 ** len(values)))
    columns = ["reader", "metric", "estimate", "p_value", "n_scenarios", "n_nonzero", "n_patterns"]
    return pd.DataFrame(rows, columns=columns)


def exact_intervals(
    outcomes: pd.DataFrame,
    stratify: Stratify = "axis",
    confidence: float = DEFAULT_CONFIDENCE,
    replicates: int = DEFAULT_REPLICATES,
) -> pd.DataFrame:
    """Percentile intervals of the exact bootstrap distribution: what infinitely many replicates would give.

    Returns reader, metric, estimate, low, high (smallest values whose cumulative probability reaches the two tail
    levels), at_or_below_low = P(T* <= low), at_or_above_high = P(T* >= high), and agree_low, agree_high: the share of
    seeds whose sampled interval of ``replicates`` replicates has the same end.
    """
    _check_stratify(stratify)
    if not 0 < confidence < 1 or replicates < 1:
        raise InputError(f"exact intervals: confidence {confidence}, replicates {replicates}; expected (0, 1), >= 1")
    tail = (1 - confidence) / 2
    rows = []
    for reader, part in _by_reader(unit_effects(outcomes)):
        sums, counts = _scenario_sums(part)
        whole = sums.assign(**{GAP: sums["relevant_admissible"] - sums["relevant_inadmissible"]})
        axis = whole.index.get_level_values("axis").to_numpy()
        strata = axis if stratify == "axis" else np.zeros(len(axis))
        for metric in METRICS:
            values = whole[metric].to_numpy()
            units = counts["relevant_admissible" if metric == GAP else metric].sum()
            support, mass = _resampled_sums(values, strata)
            ends = _exact_ends(support, mass, tail, replicates)
            rows.append((reader, metric, values.sum() / units, ends[0] / units, ends[1] / units, *ends[2:]))
    columns = ["reader", "metric", "estimate", "low", "high"]
    columns += ["at_or_below_low", "at_or_above_high", "agree_low", "agree_high"]
    return pd.DataFrame(rows, columns=columns)


def _by_reader(effects: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for reader, part in effects.groupby("reader", sort=False):
        yield str(reader), part.reset_index(drop=True)


def _scenario_sums(effects: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Sum and count one reader's effects: index (axis, scenario), one column per cell, int64."""
    # Complete designs leave no empty combination, so nothing is filled in.
    index = ["axis", "scenario"]
    sums = effects.pivot_table(index=index, columns="cell", values="effect", aggfunc="sum")
    counts = effects.pivot_table(index=index, columns="cell", values="effect", aggfunc="count")
    return sums[list(CELLS)], counts[list(CELLS)]


def _metric_means(sums: pd.DataFrame, counts: pd.DataFrame) -> pd.DataFrame:
    means = sums / counts
    means[GAP] = means["relevant_admissible"] - means["relevant_inadmissible"]
    return means[list(METRICS)]


def _flip_p_value(values: NDArray[np.int64]) -> float:
    """Share of all sign patterns whose sum is at least as far from 0 as the sum of ``values``."""
    sums: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
    mass: NDArray[np.float64] = np.ones(1)
    for value in values:
        sums, merged = np.unique(np.concatenate([sums + value, sums - value]), return_inverse=True)
        mass = np.bincount(merged, weights=np.concatenate([mass, mass]) / 2).astype(np.float64)
    return float(mass[np.abs(sums) >= abs(values.sum())].sum())


def _resampled_sums(values: NDArray[np.int64], strata: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Distribution of the sum of a bootstrap resample: support (consecutive integers) and probabilities."""
    mass: NDArray[np.float64] = np.ones(1)
    lowest = 0
    for stratum in np.unique(strata):
        own = values[strata == stratum]
        one_draw = np.bincount(own - own.min()).astype(np.float64) / len(own)
        for _ in own:
            mass = np.convolve(mass, one_draw)
        lowest += int(own.min()) * len(own)
    return lowest + np.arange(len(mass)), mass


def _exact_ends(
    support: NDArray[np.int64], mass: NDArray[np.float64], tail: float, replicates: int
) -> tuple[int, int, float, float, float, float]:
    """Interval ends on the support, their tail probabilities, and how often a sampled interval agrees."""
    below = np.cumsum(mass)
    # The tolerance absorbs rounding of the cumulated probabilities, not of the outcomes, which are integers.
    low, high = (int(np.searchsorted(below, level - 1e-12)) for level in (tail, 1 - tail))
    above = np.cumsum(mass[::-1])[::-1]
    past_low, past_high = below[low] - mass[low], above[high] - mass[high]
    agree_low = _agreement(past_low, below[low], tail, replicates)
    agree_high = _agreement(past_high, above[high], tail, replicates)
    return int(support[low]), int(support[high]), float(below[low]), float(above[high]), agree_low, agree_high


def _agreement(past: float, reached: float, tail: float, replicates: int) -> float:
    """Chance that a sampled quantile at ``tail`` falls on the value with P(T < v) = past, P(T <= v) = reached."""
    from scipy import stats

    position = tail * (replicates - 1)
    first, last = int(np.floor(position)), int(np.ceil(position))
    # The two order statistics around the quantile both equal v: at most `first` replicates lie past v, and
    # more than `last` replicates reach it.
    enough = stats.binom.sf(last, replicates, min(reached, 1.0))
    too_far = stats.binom.sf(first, replicates, max(past, 0.0))
    return float(np.clip(enough - too_far, 0.0, 1.0))


def _check_stratify(stratify: str) -> None:
    if stratify not in ("axis", "none"):
        raise InputError(f"exposure: stratify is {stratify!r}; expected 'axis' or 'none'")
