"""What filtering does to a route: recall, feasibility and loss against keeping everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
    records: Records, candidates: pd.DataFrame, drops: Mapping[str, NDArray[np.bool_]], **scored_by: Any
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
    # A filter may leave nothing of a route: it was asked all the same, and its route is empty.
    asked = pd.MultiIndex.from_product([every, cases["query_id"]], names=["arm", "query_id"]).to_frame(index=False)
    asked = asked.assign(candidates_scored=pd.array([pd.NA] * len(asked), dtype="Int64"))
    part = replace(records, queries=cases, labels=labels, rankings=rankings, work=asked, ledger=None)
    return scoring.score_routes(part, arms=list(every), **scored_by)


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
    wanted = (effects["arm"] == arm) & (effects["metric"] == metric) & (effects["stratum"] == stratum)
    if wanted.sum() != 1:
        raise InputError(f"route effects: no row for arm {arm!r}, metric {metric!r}, stratum {stratum!r}")
    return effects[wanted].iloc[0]
