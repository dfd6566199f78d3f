"""Average scored routes within sources, then equally over sources, with a clustered interval for each number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from companion.bootstrap import MACRO, Resampling, estimate
from companion.errors import InputError

TYPED = {"wrong_scope": "scope", "policy_disallowed": "policy", "lifecycle_incompatible": "lifecycle"}
"""Typed exposure: the share of items whose axis is known to be 0."""

CONDITIONAL_METRICS = (
    "lower_bound",
    "upper_bound",
    "known_rate",
    "label_coverage",
    "any_violation",
    "violation_count",
    *TYPED,
)
"""Averaged over feasible queries only: two arms may average over different queries."""

METRICS = (
    "evidence_recall",
    "feasible_rate",
    "loss",
    "infeasibility_component",
    "prefix_component",
    *CONDITIONAL_METRICS,
    "candidates_scored",
)


@dataclass(frozen=True)
class Summary:
    """Estimates of every arm and source, contrasts against a reference, and how the intervals were made.

    Attributes
    ----------
    arms : DataFrame
        One row per arm and source and one with source ``macro``: ``arm``, ``source``, ``queries`` (served),
        ``evaluable`` and the columns of ``METRICS``.
    intervals : DataFrame
        ``arm``, ``source``, ``metric``, ``estimate``, ``low``, ``high``, ``undefined_replicates``.
    contrasts : DataFrame
        ``arm``, ``reference``, ``source``, ``metric``, ``estimate``, ``low``, ``high``, ``undefined_replicates``:
        arm minus reference, from the same resamples. Empty without a reference.
    settings : dict
        Seed, replicates, confidence, numbers of clusters and strata, evaluable share, ``no_interval`` (why ends are
        left out, or ""), ``not_served`` (arm to number of queries it was not asked, where there are any).
    """

    arms: pd.DataFrame
    intervals: pd.DataFrame
    contrasts: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)

    def value(self, arm: str, metric: str, source: str = MACRO) -> pd.Series:
        """Return the estimate and interval of one metric of one arm."""
        return _only(self.intervals, arm=arm, metric=metric, source=source)

    def contrast(self, arm: str, metric: str, source: str = MACRO) -> pd.Series:
        """Return the difference of one arm from the reference."""
        return _only(self.contrasts, arm=arm, metric=metric, source=source)


def summarise(
    per_query: pd.DataFrame,
    *,
    reference: str | None = None,
    resampling: Resampling | None = None,
    stratify: bool = False,
) -> Summary:
    """Average scored routes within sources, then equally over sources, with an interval for each number.

    Parameters
    ----------
    per_query : DataFrame
        As from ``score_routes``.
    reference : str, optional
        An arm that every other one is compared with.
    resampling : Resampling, optional
        Replicates, level and seed of the bootstrap over groups within sources.
    stratify : bool, default False
        Resample groups within the queries' ``stratum`` too (the verification study).

    Returns
    -------
    Summary
        Queries without anchors are left out, never scored 0; ``evaluable`` counts the others. A source mean is a sum
        over a number of queries, both resampled. A conditional quantity of a source in which an arm is feasible for no
        query is undefined, and so is its macro value.

    Raises
    ------
    InputError
        If the reference is not among the arms, or no query has an anchor.

    See Also
    --------
    Methods, "Intervals".
    """
    arms = list(dict.fromkeys(per_query["arm"]))
    if reference is not None and reference not in arms:
        raise InputError(f"reference {reference!r} is not among the arms; they are {', '.join(arms)}")
    evaluable = per_query[per_query["anchors"] > 0].rename(columns={"feasible": "feasible_rate"})
    if evaluable.empty:
        raise InputError("no query has an anchor (a known usable memory): recall cannot be evaluated")
    tidy = estimate(
        evaluable,
        METRICS,
        by=["arm"],
        unit="query_id",
        stratum="stratum" if stratify else None,
        versus={"arm": reference} if reference is not None else None,
        both=True,
        resampling=resampling,
    )
    own, shared = tidy["versus"].isna(), ["metric", "estimate", "low", "high", "undefined_replicates"]
    intervals = tidy.loc[own, ["arm", "source", *shared]].reset_index(drop=True)
    contrasts = tidy[~own].rename(columns={"versus": "reference"})[["arm", "reference", "source", *shared]]
    counts = _counts(per_query)
    served = per_query["query_id"].nunique()
    everyone = per_query.attrs.get("queries", served)
    unserved = everyone - counts[counts["source"] == MACRO].set_index("arm")["queries"]
    settings = {
        **tidy.attrs["settings"],
        "queries": everyone,
        "evaluable_share": evaluable["query_id"].nunique() / served,
        "no_interval": tidy.attrs["no_interval"],
        "not_served": {str(arm): int(number) for arm, number in unserved[unserved > 0].items()},
    }
    values = intervals.pivot(index=["arm", "source"], columns="metric", values="estimate")[list(METRICS)]
    rows = counts.merge(values.reset_index(), on=["arm", "source"], how="left")
    return Summary(rows, intervals, contrasts.reset_index(drop=True), settings)


def _counts(per_query: pd.DataFrame) -> pd.DataFrame:
    """Count, for every arm and source and over all sources, the queries served and those that can be evaluated."""
    rows = per_query.assign(evaluable=per_query["anchors"] > 0)
    counts = rows.groupby(["arm", "source"], sort=False)["evaluable"].agg(["size", "sum"])
    every = pd.MultiIndex.from_product([pd.unique(rows["arm"]), pd.unique(rows["source"])], names=["arm", "source"])
    counts = counts.reindex(every, fill_value=0).reset_index()
    total = counts.groupby("arm", sort=False)[["size", "sum"]].sum().reset_index().assign(source=MACRO)
    order = {arm: place for place, arm in enumerate(pd.unique(rows["arm"]))}
    table = pd.concat([counts, total]).sort_values("arm", key=lambda arm: arm.map(order), kind="stable")
    table = table.rename(columns={"size": "queries", "sum": "evaluable"}).reset_index(drop=True)
    return table.astype({"queries": "int64", "evaluable": "int64"})


def _only(table: pd.DataFrame, **keys: str) -> pd.Series:
    found = table
    for column, value in keys.items():
        found = found[found[column] == value]
    if len(found) != 1:
        wanted = ", ".join(f"{column} {value!r}" for column, value in keys.items())
        raise InputError(f"no single row for {wanted}: {len(found)} found")
    return found.iloc[0]
