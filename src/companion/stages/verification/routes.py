"""What filtering does to a route: recall, feasibility and loss against keeping everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion import scoring
from companion.bootstrap import MACRO, Resampling, estimate
from companion.errors import InputError
from companion.tables import Records

UNFILTERED = "unfiltered"
ROUTE_METRICS = ("evidence_recall", "feasible_rate", "loss", "infeasibility_component", "prefix_component")


def filter_route(candidates: pd.DataFrame, drop: NDArray[np.bool_], arm: str) -> pd.DataFrame:
    """Remove candidates from their routes and close the gaps in the ranks: rankings of the new arm."""
    kept = candidates.loc[~drop, ["query_id", "rank", "memory_id"]].sort_values(["query_id", "rank"])
    rank = (kept.groupby("query_id").cumcount() + 1).astype("int64")
    return kept.assign(arm=pd.Series(arm, kept.index, dtype="str"), rank=rank)[["arm", "query_id", "rank", "memory_id"]]


def score_filtered(
    records: Records, candidates: pd.DataFrame, drops: Mapping[str, NDArray[np.bool_]], **scored_by: float
) -> pd.DataFrame:
    """Score the route that keeps everything and every filtered one, on the candidates' queries only.

    ``drops`` says by name which candidates each filter removes; ``scored_by`` takes ``target_recall`` and
    ``infeasibility_cost``. Returns what ``score_routes`` gives, with arm ``unfiltered`` first.
    """
    if UNFILTERED in drops:
        raise InputError(f"filter {UNFILTERED!r}: the name is taken by the route that keeps everything")
    every = {UNFILTERED: np.zeros(len(candidates), dtype=bool), **drops}
    rankings = pd.concat([filter_route(candidates, d, name) for name, d in every.items()], ignore_index=True)
    cases = records.queries[records.queries["query_id"].isin(candidates["query_id"])].reset_index(drop=True)
    labels = records.labels[records.labels["query_id"].isin(cases["query_id"])].reset_index(drop=True)
    part = replace(records, queries=cases, labels=labels, rankings=rankings, work=None, ledger=None)
    scored = scoring.score_routes(part, **scored_by)
    cost = scored_by.get("infeasibility_cost", 1.0)
    absent = [name for name in every if name not in set(scored["arm"])]
    return pd.concat([scored, *(_empty(scored, name, cost) for name in absent)], ignore_index=True)


def _empty(scored: pd.DataFrame, arm: str, cost: float) -> pd.DataFrame:
    """Rows of a filter that leaves nothing of any route: no recall, nowhere feasible, the full cost."""
    rows = scored[scored["arm"] == UNFILTERED].assign(arm=arm)
    evaluable = rows["anchors"] > 0
    values = {"evidence_recall": 0.0, "loss": cost, "infeasibility_component": cost, "prefix_component": 0.0}
    for name, value in values.items():
        rows[name] = np.where(evaluable, value, np.nan)
    rows["feasible"] = rows["feasible"].mask(evaluable, 0)
    for name in ("matched_prefix", *scoring.CONDITIONAL_METRICS):
        rows[name] = rows[name].mask(np.ones(len(rows), dtype=bool))  # undefined, in the column's own type
    return rows


def route_effects(per_case: pd.DataFrame, resampling: Resampling | None = None) -> pd.DataFrame:
    """Estimate filtered routes minus keeping everything; groups are resampled within strata, which weigh the same.

    Columns: arm, stratum (and ``macro``), metric (one of ``ROUTE_METRICS``), estimate, low, high.
    """
    if per_case["stratum"].isna().any():
        raise InputError("route effects: a case has no stratum; expected one for every case")
    rows = per_case[per_case["anchors"] > 0].rename(columns={"feasible": "feasible_rate"})
    table = estimate(
        rows, ROUTE_METRICS, by=["arm"], unit="query_id", source="stratum", versus={"arm": UNFILTERED},
        resampling=resampling,
    )  # fmt: skip
    return table.rename(columns={"source": "stratum"})[["arm", "stratum", "metric", "estimate", "low", "high"]]


def route_effect(effects: pd.DataFrame, arm: str, metric: str, stratum: str = MACRO) -> pd.Series:
    """Return the one row of :func:`route_effects` for an arm and a metric."""
    keys = effects.set_index(["arm", "metric", "stratum"]).sort_index()
    if (arm, metric, stratum) not in keys.index:
        raise InputError(f"route effects: no row for arm {arm!r}, metric {metric!r}, stratum {stratum!r}")
    return keys.loc[(arm, metric, stratum)]
