"""How well a verifier tells violations apart, and what it costs in evidence (Protocol section 6).

A verifier gives a candidate a probability of violation, or abstains (missing). It is dropped when the probability
is at least the threshold; an abstention drops nothing. What is unresolved is no target: measures of
discrimination look at candidates whose status is known, and the share of those is reported as coverage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn import metrics

from companion import bootstrap
from companion.errors import InputError

CALIBRATION_BINS = 10
MEASURES = (
    "roc_auc",
    "average_precision",
    "balanced_accuracy",
    "brier",
    "calibration_error",
    "violation_precision",
    "violation_recall",
    "required_anchor_false_denial",
    "retained_fraction",
    "coverage",
    "answered",
)
RATES = ("violation_precision", "violation_recall", "required_anchor_false_denial", "retained_fraction")


def dropped(probability: pd.Series, threshold: float) -> NDArray[np.bool_]:
    """Say which candidates a threshold drops: p >= threshold; an abstention never drops.

    Parameters
    ----------
    probability : Series of float or Float64, shape (n,)
        Violation probabilities, missing where the verifier abstains.
    threshold : float
        ``inf`` keeps everything.

    Returns
    -------
    ndarray of bool, shape (n,)
    """
    values = as_floats(probability)
    return ~np.isnan(values) & (values >= threshold)


def as_floats(probability: pd.Series) -> NDArray[np.float64]:
    """Return probabilities as float64 with NaN for an abstention.

    Raises
    ------
    InputError
        A value outside [0, 1]; names its row.
    """
    numbers = pd.to_numeric(probability, errors="coerce").astype("Float64")
    values = np.asarray(numbers.to_numpy(np.float64, na_value=np.nan), dtype=np.float64)
    wrong = (np.isnan(values) & probability.notna().to_numpy()) | (values < 0) | (values > 1)
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"probability, row {row + 1}: {probability.iloc[row]!r}; expected a number from 0 to 1, or missing"
        )
    return values


def measure(candidates: pd.DataFrame, threshold: float, by: str | None = None) -> pd.DataFrame:
    """Compute every per-candidate measure, pooled, per stratum and macro.

    Parameters
    ----------
    candidates : DataFrame
        What ``verification.candidates`` returns, plus ``probability``.
    threshold : float
        Candidates at or above it are dropped; balanced accuracy is taken there too.
    by : str, optional
        A column, such as ``stratum``: adds one row per value and the row ``macro``, their unweighted mean
        (undefined as soon as one of them is).

    Returns
    -------
    DataFrame
        ``part`` (``pooled``, values of `by`, ``macro``), ``candidates``, ``known``, ``violations``, ``anchors``
        (int64) and the columns of ``MEASURES`` (float64, NaN where undefined):

        roc_auc, average_precision, balanced_accuracy, brier
            scikit-learn's, over candidates with a known status and a probability; undefined unless both
            statuses occur (Brier: unless any does).
        calibration_error
            Mean absolute gap between mean probability and violation share over ten equal-width bins, weighted
            by the bins' sizes.
        violation_precision, violation_recall
            Dropped known violations over all dropped with a known status, and over all known violations.
        required_anchor_false_denial
            Anchors in the route all of whose memories there are dropped, over anchors in the route.
        retained_fraction, coverage, answered
            Shares of candidates not dropped, with a known status, with a probability.

    Raises
    ------
    InputError
        No ``probability`` column or values outside [0, 1].
    """
    if "probability" not in candidates:
        raise InputError("measure: candidates have no column 'probability'; run a verifier first")
    if by is None:
        return _rows({"pooled": candidates}, threshold)
    groups = {str(k): part for k, part in candidates.groupby(by, sort=True)}
    table = _rows({"pooled": candidates, **groups}, threshold)
    inner = table.iloc[1:]
    macro = {"part": "macro", **{c: inner[c].sum() for c in _COUNTS}}
    macro |= {c: inner[c].mean(skipna=False) for c in MEASURES}
    return pd.concat([table, pd.DataFrame([macro])], ignore_index=True)


_COUNTS = ("candidates", "known", "violations", "anchors")


def _rows(parts: dict[str, pd.DataFrame], threshold: float) -> pd.DataFrame:
    return pd.DataFrame([{"part": name, **_measure(part, threshold)} for name, part in parts.items()])


def _measure(part: pd.DataFrame, threshold: float) -> dict[str, float]:
    drop = dropped(part["probability"], threshold)
    known = part["violation"].notna().to_numpy()
    bad = part["violation"].fillna(False).to_numpy(bool)  # only read where `known`
    lost = _anchor_lost(part, drop)
    p = as_floats(part["probability"])
    seen = known & ~np.isnan(p)
    n = len(part)
    return {
        "candidates": n,
        "known": int(known.sum()),
        "violations": int((known & bad).sum()),
        "anchors": len(lost),
        **_discrimination(bad[seen], p[seen], drop[seen]),
        "violation_precision": _share(bad[drop & known]),
        "violation_recall": _share(drop[known & bad]),
        "required_anchor_false_denial": _share(lost),
        "retained_fraction": _share(~drop),
        "coverage": _share(known),
        "answered": _share(~np.isnan(p)),
    }


def _discrimination(bad: NDArray[np.bool_], p: NDArray[np.float64], drop: NDArray[np.bool_]) -> dict[str, float]:
    both = bad.any() and not bad.all()
    nan = float("nan")
    return {
        "roc_auc": float(metrics.roc_auc_score(bad, p)) if both else nan,
        "average_precision": float(metrics.average_precision_score(bad, p)) if both else nan,
        "balanced_accuracy": float(metrics.balanced_accuracy_score(bad, drop)) if both else nan,
        "brier": float(metrics.brier_score_loss(bad, p, pos_label=True)) if len(p) else nan,
        "calibration_error": calibration_error(bad, p),
    }


def calibration_error(outcome: NDArray[np.bool_], p: NDArray[np.float64], bins: int = CALIBRATION_BINS) -> float:
    """Compute the expected calibration error over equal-width bins (those of scikit-learn's ``calibration_curve``).

    Parameters
    ----------
    outcome : ndarray of bool, shape (n,)
        Whether the event happened.
    p : ndarray of float64, shape (n,)
        Its stated probability.
    bins : int
        Number of bins over [0, 1].

    Returns
    -------
    float
        Weighted by bin sizes; NaN for no rows.
    """
    if not len(p):
        return float("nan")
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], p)
    gaps = np.bincount(place, weights=p - outcome, minlength=bins)
    return float(np.abs(gaps).sum() / len(p))


def _anchor_lost(part: pd.DataFrame, drop: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For every anchor in the route: whether all memories that stand for it there are dropped."""
    rows = part.assign(_drop=drop).dropna(subset=["anchor"])
    return rows.groupby(["query_id", "anchor"])["_drop"].all().to_numpy(bool)


def _share(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def rate_intervals(
    candidates: pd.DataFrame,
    thresholds: Sequence[float],
    *,
    by: str | None = None,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Give the four rates of a threshold an interval: namespace groups are resampled within strata.

    Parameters
    ----------
    candidates : DataFrame
        As for :func:`measure`.
    thresholds : sequence of float
        All of them share the resamples.
    by : str, optional
        ``stratum`` weighs strata equally (``macro``); None pools candidates.
    replicates, confidence, seed
        Bootstrap settings (Protocol section 3).

    Returns
    -------
    DataFrame
        threshold, metric (one of ``RATES``), part, estimate, low, high, undefined_replicates.

    Raises
    ------
    InputError
        As for :func:`measure`, or settings out of range.
    """
    units, columns = _rate_units(candidates, thresholds)
    pooled = by is None
    result = bootstrap.ratio_means(
        columns,
        clusters=units["group"],
        # pooled rates keep the strata of the design in the resampling and only pool in the mean
        strata=units["stratum"] if pooled else None,
        sources=None if pooled else units[by],
        replicates=replicates,
        confidence=confidence,
        seed=seed,
        split_clusters=True,
    )
    table = result.table
    if pooled:
        table = table[table["source"] == bootstrap.MACRO].assign(source="pooled")
    place, metric = table["statistic"].str.split(":", expand=True).to_numpy().T
    ends = table[["estimate", "low", "high", "undefined_replicates"]].reset_index(drop=True)
    head = pd.DataFrame(
        {
            "threshold": [float(thresholds[int(i)]) for i in place],
            "metric": metric,
            "part": table["source"].to_numpy(),
        }
    )
    return pd.concat([head, ends], axis=1)


def _rate_units(candidates: pd.DataFrame, thresholds: Sequence[float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Lay candidates and anchors out as rows whose means are the rates; return their keys and the values."""
    known = candidates["violation"].notna().to_numpy()
    bad = candidates["violation"].fillna(False).to_numpy(bool)
    stands = candidates["anchor"].notna().to_numpy()
    first = candidates[stands].groupby(["query_id", "anchor"])[["group", "stratum"]].first()
    keys = pd.concat([candidates[["group", "stratum"]], first], ignore_index=True)
    keys = keys.assign(stratum=keys["stratum"].fillna("all"))
    columns: dict[str, NDArray[np.float64]] = {}
    none, blank = np.full(len(candidates), np.nan), np.full(len(first), np.nan)
    for i, threshold in enumerate(thresholds):
        drop = dropped(candidates["probability"], threshold)
        lost = _anchor_lost(candidates, drop)
        columns[f"{i}:violation_precision"] = np.r_[np.where(drop & known, bad, np.nan), blank]
        columns[f"{i}:violation_recall"] = np.r_[np.where(known & bad, drop, np.nan), blank]
        columns[f"{i}:required_anchor_false_denial"] = np.r_[none, lost]
        columns[f"{i}:retained_fraction"] = np.r_[(~drop).astype(float), blank]
    return keys, pd.DataFrame(columns)
