"""Average scored routes within sources, then equally over sources, with clustered intervals (sections 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from companion import bootstrap
from companion.errors import InputError

CONDITIONAL_METRICS = (
    "lower_bound",
    "upper_bound",
    "known_rate",
    "label_coverage",
    "any_violation",
    "violation_count",
    "wrong_scope",
    "policy_disallowed",
    "lifecycle_incompatible",
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

MACRO = bootstrap.MACRO


@dataclass(frozen=True)
class Summary:
    """Estimates of every arm and source, contrasts against a reference, and how the intervals were made.

    Attributes
    ----------
    arms : DataFrame
        One row per arm and source and one with source ``macro``: ``arm``, ``source``, ``queries``, ``evaluable``
        (numbers of queries) and the columns of ``METRICS``.
    intervals : DataFrame
        ``arm``, ``source``, ``metric``, ``estimate``, ``low``, ``high``, ``undefined_replicates``.
    contrasts : DataFrame
        ``arm``, ``reference``, ``source``, ``metric``, ``estimate``, ``low``, ``high``, ``undefined_replicates``:
        arm minus reference, from the same resamples. Empty without a reference.
    settings : dict
        Seed, replicates, confidence, numbers of clusters and strata, evaluable share.
    """

    arms: pd.DataFrame
    intervals: pd.DataFrame
    contrasts: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)

    def value(self, arm: str, metric: str, source: str = MACRO) -> pd.Series:
        """Return the row of ``intervals`` for one arm, metric and source."""
        return _only(self.intervals, arm=arm, metric=metric, source=source)

    def contrast(self, arm: str, metric: str, source: str = MACRO) -> pd.Series:
        """Return the row of ``contrasts`` for one arm, metric and source."""
        return _only(self.contrasts, arm=arm, metric=metric, source=source)


def summarise(
    per_query: pd.DataFrame,
    *,
    reference: str | None = None,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
    stratify: bool = False,
) -> Summary:
    """Summarise the table that ``score_routes`` returns.

    Parameters
    ----------
    per_query : DataFrame
        One row per arm and query.
    reference : str, optional
        The arm that every other one is compared with.
    replicates, confidence, seed
        Of the percentile bootstrap over groups within sources.
    stratify : bool, default False
        Resample groups within the queries' ``stratum`` too (the verification study).

    Returns
    -------
    Summary

    Raises
    ------
    InputError
        If the reference is not among the arms, or no query has an anchor.

    Notes
    -----
    Queries without anchors are left out, never scored 0; ``evaluable`` counts the others. A source mean is a sum over
    a number of queries, both resampled; ``macro`` weighs sources equally. A conditional quantity of a source in which
    an arm is feasible for no query is undefined, and so is its macro value.
    """
    arms = list(dict.fromkeys(per_query["arm"]))
    if reference is not None and reference not in arms:
        raise InputError(f"reference {reference!r} is not among the arms; they are {', '.join(arms)}")
    evaluable = per_query[per_query["anchors"] > 0]
    if evaluable.empty:
        raise InputError("no query has an anchor (a known usable memory): recall cannot be evaluated")
    wide, names = _wide(evaluable, arms)
    result = bootstrap.ratio_means(
        wide.drop(columns=["group", "source", "stratum"]),
        clusters=wide["group"],
        strata=wide["stratum"] if stratify else None,
        sources=wide["source"],
        contrasts=_contrasts(names, arms, reference),
        replicates=replicates,
        confidence=confidence,
        seed=seed,
    )
    intervals, contrasts = _split(result.table, names, reference)
    counts = _counts(per_query, arms)
    settings = {
        **result.settings,
        "queries": int(counts["queries"].max()),
        "evaluable_share": float(counts["evaluable"].max() / counts["queries"].max()),
    }
    return Summary(_arm_rows(intervals, counts), intervals, contrasts, settings)


def _wide(evaluable: pd.DataFrame, arms: list[str]) -> tuple[pd.DataFrame, dict[str, tuple[str, str]]]:
    """Put the queries in rows and every (arm, metric) in a column, so that one pass serves all."""
    table = evaluable.rename(columns={"feasible": "feasible_rate"})
    first = table[table["arm"] == arms[0]].set_index("query_id")
    wide = first[["group", "source", "stratum"]].copy()
    names = {}
    blocks = [wide]
    for number, arm in enumerate(arms):
        values = table[table["arm"] == arm].set_index("query_id")[list(METRICS)].astype("float64")
        values.columns = [f"{number}:{metric}" for metric in METRICS]
        names.update({f"{number}:{metric}": (arm, metric) for metric in METRICS})
        blocks.append(values.reindex(wide.index))
    return pd.concat(blocks, axis=1).reset_index(drop=True), names


def _contrasts(
    names: dict[str, tuple[str, str]], arms: list[str], reference: str | None
) -> dict[str, dict[str, float]]:
    if reference is None:
        return {}
    base = arms.index(reference)
    return {
        f"{column} - {base}:{metric}": {column: 1.0, f"{base}:{metric}": -1.0}
        for column, (arm, metric) in names.items()
        if arm != reference
    }


def _split(
    table: pd.DataFrame, names: dict[str, tuple[str, str]], reference: str | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Separate arm estimates from contrasts and give both their proper names back."""
    left = table["statistic"].str.partition(" - ")[0]
    table = table.assign(arm=left.map(lambda n: names[n][0]), metric=left.map(lambda n: names[n][1]))
    is_contrast = table["statistic"].str.contains(" - ", regex=False)
    shared = ["metric", "estimate", "low", "high", "undefined_replicates"]
    intervals = table.loc[~is_contrast, ["arm", "source", *shared]].reset_index(drop=True)
    contrasts = table[is_contrast].assign(reference=reference)[["arm", "reference", "source", *shared]]
    return intervals, contrasts.reset_index(drop=True)


def _counts(per_query: pd.DataFrame, arms: list[str]) -> pd.DataFrame:
    first = per_query[per_query["arm"] == arms[0]]
    by_source = first["anchors"].groupby(first["source"], sort=False)
    evaluable = (first["anchors"] > 0).groupby(first["source"], sort=False)
    counts = pd.DataFrame({"queries": by_source.size(), "evaluable": evaluable.sum()})
    counts.loc[MACRO] = counts.sum()
    return counts.astype(int)


def _arm_rows(intervals: pd.DataFrame, counts: pd.DataFrame) -> pd.DataFrame:
    values = intervals.pivot(index=["arm", "source"], columns="metric", values="estimate")
    order = pd.MultiIndex.from_product([intervals["arm"].unique(), counts.index], names=["arm", "source"])
    rows = values.reindex(index=order, columns=list(METRICS)).reset_index()
    rows.columns.name = None
    rows.insert(2, "queries", rows["source"].map(counts["queries"]))
    rows.insert(3, "evaluable", rows["source"].map(counts["evaluable"]))
    return rows


def _only(table: pd.DataFrame, **keys: str) -> pd.Series:
    found = table
    for column, value in keys.items():
        found = found[found[column] == value]
    if len(found) != 1:
        wanted = ", ".join(f"{column} {value!r}" for column, value in keys.items())
        raise InputError(f"no single row for {wanted}: {len(found)} found")
    return found.iloc[0]
