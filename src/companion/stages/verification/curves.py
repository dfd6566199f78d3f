"""Operating curves: what every threshold detects and what it denies, and whether any clears the bar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

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

_DENIED = "required_anchor_false_denial"
_ROUTE = {
    "evidence_recall": "evidence_recall",
    "feasible_rate": "feasible_rate",
    "loss": "penalized_admissibility_upper_risk",
}


def operating_curve(
    candidates: pd.DataFrame, thresholds: Sequence[float] = THRESHOLDS, verifier: str = "verifier"
) -> pd.DataFrame:
    """Sweep the threshold: verifier, threshold and the four ``RATES``; ``inf`` is the point that keeps everything."""
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
    within = curve[curve[_DENIED] <= limit].assign(_drop=lambda t: -t[_DENIED])
    if within.empty:
        return None
    return curve.loc[within.sort_values(["violation_recall", "_drop", "threshold"]).index[-1]]


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
    for name, curve in curves.groupby("verifier", sort=False):
        best = select(curve, limit)
        verdict = DETECTS if best is not None and best["violation_recall"] > 0 else DETECTS_NOTHING
        chosen = {c: np.nan if best is None else float(best[c]) for c in ("threshold", "violation_recall", _DENIED)}
        rows.append(
            {
                "verifier": name,
                "thresholds": len(curve),
                "qualifying": int((curve[_DENIED] <= limit).sum()),
                **chosen,
                "lowest_false_denial": float(curve[_DENIED].min()),
                "verdict": NONE_QUALIFIES if best is None else verdict,
            }
        )
    return pd.DataFrame(rows)


def published_curves() -> pd.DataFrame:
    """Return the paper's curves of both models over its 72 cases: ``operating_curve`` and the route's three means."""
    return published.table("verifier_operating_curve").rename(columns={_ROUTE["loss"]: "loss"})


def matching_thresholds() -> pd.DataFrame:
    """Find the points of each published curve whose route change is the published one in all three measures.

    The unfiltered route is the point that keeps every candidate (threshold 1 of gpt-5.6-sol); it is the same for both.

    Returns
    -------
    DataFrame
        verifier, thresholds (list of float, empty where none fits to 1e-12), and the three changes at the first of
        them (NaN where none fits).
    """
    curves = published_curves()
    keep = curves[curves["retained_fraction"] == 1].iloc[0][list(_ROUTE)].astype(float)
    rows = []
    for name, curve in curves.groupby("verifier", sort=False):
        change = curve[list(_ROUTE)] - keep
        target = [
            float(published.figure("C11", str(name), "minus_namespace_dense_top_20", told)["published"])
            for told in _ROUTE.values()
        ]
        fits = np.isclose(change.to_numpy(), target, rtol=0, atol=1e-12).all(axis=1)
        first = change[fits].iloc[0].to_dict() if fits.any() else dict.fromkeys(_ROUTE, np.nan)
        rows.append({"verifier": name, "thresholds": curve.loc[fits, "threshold"].tolist(), **first})
    return pd.DataFrame(rows)


def recomputable() -> pd.DataFrame:
    """List the route changes that a point of the published curves gives (C11), and the break-even brackets."""
    from companion.stages.corruption import recomputable as brackets

    rows = []
    for row in matching_thresholds().to_dict("records"):
        if points := row["thresholds"]:
            at = f"threshold {points[0]:g}" if len(points) == 1 else f"thresholds {points[0]:g} to {points[-1]:g}"
            how = f"published curve at {at} minus the point that keeps every candidate"
            key = ("C11", row["verifier"], "minus_namespace_dense_top_20")
            rows += [(*key, told, row[ours], np.nan, np.nan, how) for ours, told in _ROUTE.items()]
    columns = ["claim", "subject", "contrast", "metric", "value", "low", "high", "how"]
    return pd.concat([pd.DataFrame(rows, columns=columns), brackets()], ignore_index=True)
