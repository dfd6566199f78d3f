"""How well a verifier tells violations apart, and what it costs in evidence (Methods, "Stage two: verification").

A verifier gives a candidate a probability of violation, or abstains (missing). It is dropped when the probability
is at least the threshold; an abstention drops nothing. What is unresolved is no target: measures of
discrimination look at candidates whose status is known, and the share of those is reported as coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.bootstrap import MACRO, Resampling, estimate
from companion.errors import InputError

CALIBRATION_BINS = 10
RATES = ("violation_precision", "violation_recall", "required_anchor_false_denial", "retained_fraction")
MEASURES = (
    "roc_auc",
    "average_precision",
    "balanced_accuracy",
    "brier",
    "calibration_error",
    *RATES,
    "coverage",
    "answered",
)
_COUNTS = ("candidates", "known", "violations", "anchors")


def dropped(probability: pd.Series, threshold: float) -> NDArray[np.bool_]:
    """Say which candidates a threshold drops: p >= threshold; an abstention never drops, ``inf`` keeps everything."""
    values = as_floats(probability)
    return ~np.isnan(values) & (values >= threshold)


def as_floats(probability: pd.Series) -> NDArray[np.float64]:
    """Return probabilities as float64, NaN for an abstention; a value outside [0, 1] is refused by its row."""
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
        (int64) and the columns of ``MEASURES`` (float64, NaN where undefined): roc_auc, average_precision,
        balanced_accuracy and brier are scikit-learn's, over candidates with a known status and a probability;
        calibration_error is over ten equal-width bins; violation_precision and violation_recall count dropped known
        violations over dropped with a known status, and over known violations; required_anchor_false_denial counts
        anchors in the route all of whose memories there are dropped; retained_fraction, coverage and answered are
        shares of candidates not dropped, with a known status, with a probability.

    Raises
    ------
    InputError
        No ``probability`` column or values outside [0, 1].
    """
    if "probability" not in candidates:
        raise InputError("measure: candidates have no column 'probability'; run a verifier first")
    parts = {"pooled": candidates}
    if by is not None:
        parts |= {str(name): part for name, part in candidates.groupby(by, sort=True)}
    table = pd.DataFrame([{"part": name, **_measure(part, threshold)} for name, part in parts.items()])
    if by is None:
        return table
    inner = table.iloc[1:]
    sums = inner[list(_COUNTS)].sum().to_dict()
    means = inner[list(MEASURES)].mean(skipna=False).to_dict()
    return pd.concat([table, pd.DataFrame([{"part": MACRO, **sums, **means}])], ignore_index=True)


def _measure(part: pd.DataFrame, threshold: float) -> dict[str, float]:
    p, drop = as_floats(part["probability"]), dropped(part["probability"], threshold)
    known = part["violation"].notna().to_numpy()
    bad = part["violation"].fillna(False).to_numpy(bool)  # only read where `known`
    lost = anchors_lost(part, drop)
    seen = known & ~np.isnan(p)
    return {
        "candidates": len(part),
        "known": int(known.sum()),
        "violations": int((known & bad).sum()),
        "anchors": len(lost),
        **_discrimination(bad[seen], p[seen], drop[seen]),
        "violation_precision": _share(bad[drop & known]),
        "violation_recall": _share(drop[known & bad]),
        "required_anchor_false_denial": _share(lost.to_numpy(bool)),
        "retained_fraction": _share(~drop),
        "coverage": _share(known),
        "answered": _share(~np.isnan(p)),
    }


def _discrimination(bad: NDArray[np.bool_], p: NDArray[np.float64], drop: NDArray[np.bool_]) -> dict[str, float]:
    from sklearn import metrics

    nan = float("nan")
    out = dict.fromkeys(MEASURES[:4], nan) | {"calibration_error": calibration_error(bad, p)}
    if len(p):
        out["brier"] = float(metrics.brier_score_loss(bad, p, pos_label=True))
    if bad.any() and not bad.all():
        out["roc_auc"] = float(metrics.roc_auc_score(bad, p))
        out["average_precision"] = float(metrics.average_precision_score(bad, p))
        out["balanced_accuracy"] = float(metrics.balanced_accuracy_score(bad, drop))
    return out


def calibration_error(outcome: NDArray[np.bool_], p: NDArray[np.float64], bins: int = CALIBRATION_BINS) -> float:
    """Mean absolute gap between stated probability and what happened, over equal-width bins weighted by their sizes."""
    if not len(p):
        return float("nan")
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], p)  # the bins of scikit-learn's calibration_curve
    return float(np.abs(np.bincount(place, weights=p - outcome, minlength=bins)).sum() / len(p))


def anchors_lost(part: pd.DataFrame, drop: NDArray[np.bool_]) -> pd.Series:
    """For every anchor in the route (index query_id, anchor): whether all memories that stand for it are dropped."""
    rows = part.assign(_drop=drop).dropna(subset=["anchor"])
    return rows.groupby(["query_id", "anchor"])["_drop"].all()


def _share(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def rate_intervals(
    candidates: pd.DataFrame,
    thresholds: Sequence[float],
    *,
    by: str | None = None,
    resampling: Resampling | None = None,
) -> pd.DataFrame:
    """Give the four ``RATES`` at each threshold an interval: namespace groups are resampled within strata.

    ``by="stratum"`` weighs strata equally (part ``macro``); None pools candidates. Columns: threshold, metric, part,
    estimate, low, high, undefined_replicates.
    """
    units = pd.concat([_rate_units(candidates, t) for t in thresholds], ignore_index=True)
    # pooled rates keep the strata of the design in the resampling; a group found in two strata is a cluster in each
    units["cluster"] = units["stratum"] + "\x1f" + units["group"].astype("str")
    design: dict[str, Any] = {"source": by, "stratum": "stratum" if by is None else None}
    table = estimate(
        units, list(RATES), by=["threshold"], unit="unit", cluster="cluster", resampling=resampling, **design
    )
    table["part"] = "pooled" if by is None else table["source"]
    return table[["threshold", "metric", "part", "estimate", "low", "high", "undefined_replicates"]]


def _rate_units(candidates: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Lay candidates and anchors out as rows whose means are the rates."""
    known = candidates["violation"].notna().to_numpy()
    bad = candidates["violation"].fillna(False).to_numpy(bool)
    drop = dropped(candidates["probability"], threshold)
    rows = candidates[["group", "stratum"]].assign(
        violation_precision=np.where(drop & known, bad, np.nan),
        violation_recall=np.where(known & bad, drop, np.nan),
        retained_fraction=(~drop).astype(float),
    )
    first = candidates.dropna(subset=["anchor"]).groupby(["query_id", "anchor"])[["group", "stratum"]].first()
    anchors = first.assign(required_anchor_false_denial=anchors_lost(candidates, drop).astype(float))
    both = pd.concat([rows, anchors], ignore_index=True)
    return both.assign(threshold=float(threshold), unit=np.arange(len(both)), stratum=both["stratum"].fillna("all"))
