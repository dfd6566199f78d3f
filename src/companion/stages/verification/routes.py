"""What filtering does to a route: recall, feasibility and loss against keeping everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion import bootstrap, scoring
from companion.errors import InputError
from companion.stages.verification.measures import dropped
from companion.tables import Records

UNFILTERED = "unfiltered"


def filter_route(candidates: pd.DataFrame, drop: NDArray[np.bool_], arm: str) -> pd.DataFrame:
    """Remove candidates from their routes and close the gaps in the ranks.

    Parameters
    ----------
    candidates : DataFrame
        query_id, memory_id, rank of one route per query.
    drop : ndarray of bool, shape (n,)
        Which rows to remove.
    arm : str
        Name of the filtered route.

    Returns
    -------
    DataFrame
        Contract rankings: arm, query_id, rank (1, 2, ...), memory_id.
    """
    kept = candidates.loc[~drop, ["query_id", "rank", "memory_id"]].sort_values(["query_id", "rank"])
    rank = kept.groupby("query_id").cumcount() + 1
    return kept.assign(arm=arm, rank=rank.astype("int64"))[["arm", "query_id", "rank", "memory_id"]].astype(
        {"arm": "str"}
    )


def score_filtered(
    records: Records,
    candidates: pd.DataFrame,
    drops: Mapping[str, NDArray[np.bool_]],
    *,
    target_recall: scoring.routes.Recall = 0.8,
    infeasibility_cost: float = 1.0,
) -> pd.DataFrame:
    """Score the route that keeps everything and every filtered one, on the candidates' queries only.

    Parameters
    ----------
    records : Records
        Tables the candidates come from.
    candidates : DataFrame
        Of one arm; its queries are the cases.
    drops : mapping of name to ndarray of bool
        Rows that each filter removes.
    target_recall, infeasibility_cost
        As in ``scoring.score_routes``.

    Returns
    -------
    DataFrame
        What ``score_routes`` gives, with arm ``unfiltered`` first.

    Raises
    ------
    InputError
        A filter called ``unfiltered``.
    """
    if UNFILTERED in drops:
        raise InputError(f"filter {UNFILTERED!r}: the name is taken by the route that keeps everything")
    nothing = np.zeros(len(candidates), dtype=bool)
    every = {UNFILTERED: nothing, **drops}
    rankings = pd.concat([filter_route(candidates, d, name) for name, d in every.items()], ignore_index=True)
    cases = records.queries[records.queries["query_id"].isin(candidates["query_id"])].reset_index(drop=True)
    labels = records.labels[records.labels["query_id"].isin(cases["query_id"])].reset_index(drop=True)
    part = replace(records, queries=cases, labels=labels, rankings=rankings, work=None, ledger=None)
    scored = scoring.score_routes(part, target_recall=target_recall, infeasibility_cost=infeasibility_cost)
    absent = [name for name in every if name not in set(scored["arm"])]
    return pd.concat([scored, *(_empty(scored, name, infeasibility_cost) for name in absent)], ignore_index=True)


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


def route_effects(
    per_case: pd.DataFrame,
    *,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> scoring.Summary:
    """Summarise filtered routes against keeping everything.

    Parameters
    ----------
    per_case : DataFrame
        What :func:`score_filtered` returns.
    replicates, confidence, seed
        Bootstrap over namespace groups within strata; strata weigh the same (Protocol section 3).

    Returns
    -------
    scoring.Summary
        Sources are the strata; ``contrasts`` are against ``unfiltered``.

    Raises
    ------
    InputError
        Cases without a stratum.
    """
    if per_case["stratum"].isna().any():
        raise InputError("route effects: a case has no stratum; expected one for every case")
    rows = per_case.assign(source=per_case["stratum"])
    return scoring.summarise(rows, reference=UNFILTERED, replicates=replicates, confidence=confidence, seed=seed)


def curve_routes(
    records: Records,
    candidates: pd.DataFrame,
    thresholds: Sequence[float],
    *,
    target_recall: scoring.routes.Recall = 0.8,
    infeasibility_cost: float = 1.0,
) -> pd.DataFrame:
    """Recall, feasibility and loss of the filtered route at every threshold, strata weighing the same.

    Parameters
    ----------
    records : Records
        Tables the candidates come from.
    candidates : DataFrame
        Of one arm, with ``probability``.
    thresholds : sequence of float
        As for ``operating_curve``.
    target_recall, infeasibility_cost
        As in ``scoring.score_routes``.

    Returns
    -------
    DataFrame
        threshold, evidence_recall, feasible_rate, loss: the remaining columns of the published curve file.
    """
    drops = {f"{i}": dropped(candidates["probability"], t) for i, t in enumerate(thresholds)}
    scored = score_filtered(
        records, candidates, drops, target_recall=target_recall, infeasibility_cost=infeasibility_cost
    )
    scored = scored[scored["anchors"] > 0].rename(columns={"feasible": "feasible_rate"})
    names = ["evidence_recall", "feasible_rate", "loss"]
    values = scored[["arm", "stratum", *names]].astype(dict.fromkeys(names, "float64"))
    means = values.groupby(["arm", "stratum"])[names].mean().groupby("arm").mean()
    return means.loc[list(drops)].reset_index(drop=True).assign(threshold=list(thresholds))[["threshold", *names]]
