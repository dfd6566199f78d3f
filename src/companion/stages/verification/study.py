"""The verification study from end to end: verifiers calibrated, thresholds chosen blind, judged on unseen cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from companion import scoring
from companion.bootstrap import Resampling
from companion.errors import InputError
from companion.stages.verification.cases import candidates, split_cases, with_texts
from companion.stages.verification.controlled import controlled_measures, scenario_units
from companion.stages.verification.curves import FALSE_DENIAL_LIMIT, KEEP_ALL, THRESHOLDS, bar, operating_curve, select
from companion.stages.verification.measures import dropped, measure, rate_intervals
from companion.stages.verification.routes import UNFILTERED, route_effects, score_filtered
from companion.stages.verification.verifiers import Replay, Verifier, calibrate, judge
from companion.tables import Records

ROUTE = "namespace_dense"


@dataclass(frozen=True)
class Judged:
    """One verifier's judgement: calibration and analysis candidates with ``probability``, curves, chosen threshold."""

    verifier: Verifier
    calibration: pd.DataFrame
    analysis: pd.DataFrame
    calibration_curve: pd.DataFrame
    analysis_curve: pd.DataFrame
    threshold: float
    qualifies: bool


@dataclass(frozen=True)
class VerificationStudy:
    """Verifiers side by side on the same cases."""

    records: Records
    cases: pd.DataFrame
    judged: dict[str, Judged]
    per_case: pd.DataFrame
    effects: pd.DataFrame
    settings: dict[str, Any]
    resampling: Resampling

    def measures(self, by: str | None = None) -> pd.DataFrame:
        """Return every measure on analysis cases at the chosen threshold: verifier, threshold, then ``measure``."""
        parts = []
        for name, j in self.judged.items():
            part = measure(j.analysis, j.threshold, by=by)
            part.insert(0, "verifier", name)
            part.insert(1, "threshold", j.threshold)
            parts.append(part)
        return pd.concat(parts, ignore_index=True)

    def curves(self, split: str = "analysis") -> pd.DataFrame:
        """Return the operating curves of all verifiers on one split, without the keep-all point."""
        both = pd.concat([getattr(j, f"{split}_curve") for j in self.judged.values()], ignore_index=True)
        return both[np.isfinite(both["threshold"])].reset_index(drop=True)

    def verdicts(self) -> pd.DataFrame:
        """Hold every calibration curve against the limit; see ``verification.bar``."""
        return bar(self.curves("calibration"), self.settings["false_denial_limit"])

    def rates(self) -> pd.DataFrame:
        """Give the rates at the chosen thresholds, on analysis cases, their intervals."""
        parts = [
            rate_intervals(j.analysis, [j.threshold], resampling=self.resampling).assign(verifier=name)
            for name, j in self.judged.items()
        ]
        return pd.concat(parts, ignore_index=True)


def verify(
    records: Records,
    chosen: Sequence[Verifier],
    *,
    arm: str = ROUTE,
    top_k: int = 20,
    false_denial_limit: float = FALSE_DENIAL_LIMIT,
    thresholds: Sequence[float] = THRESHOLDS,
    untuned: float = 0.5,
    target_recall: Any = 0.8,
    infeasibility_cost: float = 1.0,
    resampling: Resampling | None = None,
) -> VerificationStudy:
    """Calibrate verifiers, choose their thresholds, and judge them on cases they have not seen.

    Parameters
    ----------
    records : Records
        With texts and rankings of ``arm``.
    chosen : sequence of Verifier
        Of different names.
    arm, top_k : str, int
        The route whose first candidates are judged.
    false_denial_limit, thresholds : float, sequence of float
        The threshold is the best one within the limit on calibration cases; none keeps everything.
    untuned : float
        A second threshold, chosen by nobody, whose routes are scored too, as ``"<name> at <untuned>"``.
    target_recall, infeasibility_cost
        As in ``scoring.score_routes``.
    resampling : Resampling, optional
        Of the intervals.

    Returns
    -------
    VerificationStudy
        ``cases``, ``judged`` by name, ``per_case`` scores of filtered routes, ``effects`` against the unfiltered one.
    """
    names = [c.name for c in chosen]
    if len(set(names)) != len(names) or UNFILTERED in names:
        raise InputError(f"verifiers {', '.join(names)}: expected different names, none of them unfiltered")
    how = resampling or Resampling()
    cases, table = judged_candidates(records, arm=arm, top_k=top_k)
    judged = {c.name: judge_split(c, table, thresholds, false_denial_limit) for c in chosen}
    analysis = table[table["split"] == "analysis"].reset_index(drop=True)
    drops = {n: dropped(j.analysis["probability"], j.threshold) for n, j in judged.items()}
    drops |= {f"{n} at {untuned:g}": dropped(j.analysis["probability"], untuned) for n, j in judged.items()}
    per_case = score_filtered(
        records, analysis, drops, target_recall=target_recall, infeasibility_cost=infeasibility_cost
    )
    settings = {"arm": arm, "top_k": top_k, "false_denial_limit": false_denial_limit}
    return VerificationStudy(records, cases, judged, per_case, route_effects(per_case, how), settings, how)


def judged_candidates(records: Records, *, arm: str = ROUTE, top_k: int = 20) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw the cases and list their candidates with texts and metadata."""
    if records.rankings is None or arm not in set(records.rankings["arm"]):
        raise InputError(f"verification: no rankings of {arm}; rank it first")
    anchored = records.queries["query_id"].isin(scoring.anchors_of(records)["query_id"])
    cases = split_cases(records.queries[anchored])
    rows = records.rankings
    rows = rows[(rows["arm"] == arm) & rows["query_id"].isin(cases["query_id"])]
    table = with_texts(records, candidates(records, rows, top_k=top_k))
    return cases, table.merge(cases[["query_id", "split"]], on="query_id", validate="many_to_one")


def judge_split(verifier: Verifier, table: pd.DataFrame, thresholds: Sequence[float], limit: float) -> Judged:
    """Calibrate on one split, choose the threshold there, and judge the other."""
    parts = {split: table[table["split"] == split].reset_index(drop=True) for split in ("calibration", "analysis")}
    fitted = calibrate(verifier, parts["calibration"])
    judged = judge(verifier, parts["analysis"])
    curves = [operating_curve(part, [*thresholds, KEEP_ALL], verifier.name) for part in (fitted, judged)]
    best = select(curves[0][np.isfinite(curves[0]["threshold"])], limit)
    threshold = KEEP_ALL if best is None else float(best["threshold"])
    return Judged(verifier, fitted, judged, curves[0], curves[1], threshold, best is not None)


def ask_controlled(
    judged: Sequence[Judged], threshold: float = 0.5, resampling: Resampling | None = None
) -> pd.DataFrame:
    """Put calibrated verifiers to our controlled pairs; files of probabilities do not list them and are left out."""
    units = scenario_units()
    parts = [
        controlled_measures(judge(j.verifier, units), threshold, resampling).assign(verifier=j.verifier.name)
        for j in judged
        if not isinstance(j.verifier, Replay) and set(j.verifier.needs) <= set(units)
    ]
    columns = ["verifier", "metric", "estimate", "low", "high", "n"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
