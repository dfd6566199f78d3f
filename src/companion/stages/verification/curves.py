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


def operating_curve(
    candidates: pd.DataFrame, thresholds: Sequence[float] = THRESHOLDS, verifier: str = "verifier"
) -> pd.DataFrame:
    """Sweep the threshold: verifier, threshold and the four ``RATES``; ``inf`` is the point that keeps everything."""
    rows = pd.concat([measure(candidates, t).assign(threshold=float(t)) for t in thresholds], ignore_index=True)
    return rows.assign(verifier=verifier)[["verifier", "threshold", *sorted(RATES)]]


def select(curve: pd.DataFrame, limit: float = FALSE_DENIAL_LIMIT) -> pd.Series | None:
    """Pick the best threshold of one verifier whose required-anchor false denial is within the limit, or None.

    The highest violation recall wins; among equals, the fewest denied anchors, then the highest threshold.
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
    """Hold every verifier's curve against the limit: its best qualifying threshold (NaN if none) and a verdict.

    Columns: verifier, thresholds, qualifying, threshold, violation_recall, required_anchor_false_denial,
    lowest_false_denial, verdict.
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
    return published.table("verifier_operating_curve").rename(columns={"penalized_admissibility_upper_risk": "loss"})
