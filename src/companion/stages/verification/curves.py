"""Operating curves: what every threshold detects and what it denies, and whether any clears the bar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.errors import InputError
from companion.stages import published
from companion.stages.verification.measures import RATES, measure

THRESHOLDS = tuple(round(0.05 * i, 2) for i in range(21))
"""The published grid: 0, .05, ... 1."""

FALSE_DENIAL_LIMIT = 0.01
KEEP_ALL = float("inf")

NONE_QUALIFIES = "no threshold qualifies"
DETECTS_NOTHING = "only thresholds that detect nothing qualify"
DETECTS = "detects violations within the limit"


def operating_curve(
    candidates: pd.DataFrame, thresholds: Sequence[float] = THRESHOLDS, verifier: str = "verifier"
) -> pd.DataFrame:
    """Sweep the threshold.

    Parameters
    ----------
    candidates : DataFrame
        What ``verification.candidates`` returns, plus ``probability``.
    thresholds : sequence of float
        ``inf`` is the point that keeps everything.
    verifier : str
        Its name, for the first column.

    Returns
    -------
    DataFrame
        verifier, threshold, retained_fraction, violation_precision, violation_recall,
        required_anchor_false_denial: the columns of the published curve file that need no route.
    """
    rows = pd.concat([measure(candidates, t).assign(threshold=float(t)) for t in thresholds], ignore_index=True)
    return rows.assign(verifier=verifier)[["verifier", "threshold", *sorted(RATES)]]


def select(curve: pd.DataFrame, limit: float = FALSE_DENIAL_LIMIT) -> pd.Series | None:
    """Pick the best threshold of one verifier whose required-anchor false denial is within the limit.

    Parameters
    ----------
    curve : DataFrame
        Rows of one verifier: threshold, violation_recall, required_anchor_false_denial.
    limit : float
        Largest accepted share of denied anchors, .01 in the paper.

    Returns
    -------
    Series or None
        The qualifying row with the highest violation recall; among equals, the fewest denied anchors, then the
        highest threshold (which drops least). None when no threshold qualifies.

    Raises
    ------
    InputError
        A limit outside [0, 1] or rows of several verifiers.
    """
    if not 0 <= limit <= 1:
        raise InputError(f"false denial limit {limit}: expected a share from 0 to 1")
    verifiers = set(curve.get("verifier", ()))
    if len(verifiers) > 1:
        raise InputError(f"select: rows of {len(verifiers)} verifiers; expected those of one")
    within = curve[curve["required_anchor_false_denial"] <= limit]
    if within.empty:
        return None
    keys = within.assign(_drop=-within["required_anchor_false_denial"])
    return within.loc[keys.sort_values(["violation_recall", "_drop", "threshold"]).index[-1]]


def bar(curves: pd.DataFrame, limit: float = FALSE_DENIAL_LIMIT) -> pd.DataFrame:
    """Hold every verifier's curve against the limit.

    Parameters
    ----------
    curves : DataFrame
        As for :func:`select`, several verifiers.
    limit : float
        As there.

    Returns
    -------
    DataFrame
        One row per verifier: verifier, thresholds, qualifying (int64), threshold, violation_recall,
        required_anchor_false_denial (of the best qualifying one; NaN if none), lowest_false_denial, verdict.
    """
    rows = []
    denied = "required_anchor_false_denial"
    for name, curve in curves.groupby("verifier", sort=False):
        best = select(curve, limit)
        denial = curve[denied]
        rows.append(
            {
                "verifier": name,
                "thresholds": len(curve),
                "qualifying": int((denial <= limit).sum()),
                "threshold": np.nan if best is None else float(best["threshold"]),
                "violation_recall": np.nan if best is None else float(best["violation_recall"]),
                denied: np.nan if best is None else float(best[denied]),
                "lowest_false_denial": float(denial.min()),
                "verdict": _verdict(best),
            }
        )
    return pd.DataFrame(rows)


def _verdict(best: pd.Series | None) -> str:
    if best is None:
        return NONE_QUALIFIES
    return DETECTS if best["violation_recall"] > 0 else DETECTS_NOTHING


def published_curves() -> pd.DataFrame:
    """Return the paper's curves of both models over its 72 analysis cases.

    Returns
    -------
    DataFrame
        The columns of :func:`operating_curve`, then evidence_recall, feasible_rate and loss of the filtered route.
    """
    table = published.table("verifier_operating_curve")
    return table.rename(columns={"penalized_admissibility_upper_risk": "loss"})


_COLUMNS = ["claim", "subject", "contrast", "metric", "value", "low", "high", "how"]
_ROUTE = ("evidence_recall", "feasible_rate", "loss")


def matching_thresholds() -> pd.DataFrame:
    """Find the point of each published curve whose route change is the published one.

    The paper's filtered routes are compared with the unfiltered one; its curve file holds both. The unfiltered
    route is the point that keeps every candidate (threshold 1 of GPT-5.6 Sol); the same route for both models.

    Returns
    -------
    DataFrame
        verifier, thresholds (list of float that give the published change in recall, feasibility and loss to
        1e-12), and the three changes.
    """
    curves = published_curves()
    keep = curves[curves["retained_fraction"] == 1].iloc[0]
    rows = []
    for name, curve in curves.groupby("verifier", sort=False):
        change = curve[list(_ROUTE)] - keep[list(_ROUTE)].astype(float)
        target = np.array([_published_change(str(name), m) for m in _ROUTE])
        fits: NDArray[np.bool_] = np.isclose(change.to_numpy(), target, rtol=0, atol=1e-12).all(axis=1)
        if not fits.any():
            raise InputError(f"published curve of {name}: no threshold gives the published route change")
        rows.append({"verifier": name, "thresholds": curve.loc[fits, "threshold"].tolist(), **change[fits].iloc[0]})
    return pd.DataFrame(rows)


def _published_change(verifier: str, metric: str) -> float:
    name = "penalized_admissibility_upper_risk" if metric == "loss" else metric
    return float(published.figure("C11", verifier, "minus_namespace_dense_top_20", name)["published"])


def recomputable() -> pd.DataFrame:
    """Recompute the published verification figures that the published tables settle.

    The route changes of both models (C11) come from the curve file. Their measures at the selected point do not:
    the file pools the candidates (113 anchors, 220 of 1,411 known violations), and no threshold in it has the
    published values. The metadata reference and the controlled pairs are in no
    file. The break-even brackets (C10-corruption) come from the corruption file.

    Returns
    -------
    DataFrame
        claim, subject, contrast, metric (keys of ``figures.csv``), value, low, high (NaN: the tables hold no
        cases to resample), how.
    """
    from companion.stages.corruption import recomputable as brackets

    rows = []
    for row in matching_thresholds().to_dict("records"):
        points = row["thresholds"]
        at = f"threshold {points[0]:g}" if len(points) == 1 else f"thresholds {points[0]:g} to {points[-1]:g}"
        for metric in _ROUTE:
            name = "penalized_admissibility_upper_risk" if metric == "loss" else metric
            how = f"published curve at {at} minus the point that keeps every candidate"
            key = ("C11", row["verifier"], "minus_namespace_dense_top_20", name)
            rows.append((*key, row[metric], np.nan, np.nan, how))
    return pd.concat([pd.DataFrame(rows, columns=_COLUMNS), brackets()], ignore_index=True)
