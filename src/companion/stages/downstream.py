"""Downstream readers: paired differences between arms from case scores, reader by reader, never pooled (claim C13).

Namespace groups are resampled within their source and sources weigh the same; the case-weighted mean, in which a
source weighs by its cases, stands beside it. A difference is an association: what was retrieved changed, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from companion.bootstrap import MACRO, Resampling, estimate
from companion.errors import InputError

CASE_WEIGHTED = "case-weighted"
"""Label of the row in which every case weighs the same, whatever its source."""

CONTRASTS: dict[str, tuple[str, str]] = {
    "namespace_dense-global_dense": ("namespace_dense", "global_dense"),
    "policy_gate-namespace_dense": ("namespace_policy_gate", "namespace_dense"),
    "text_verifier-namespace_dense": ("namespace_text_verifier", "namespace_dense"),
    "released_field_oracle-namespace_dense": ("released_field_oracle", "namespace_dense"),
}
"""Published names of the contrasts, with the arm and the arm it is compared with."""

ANSWER_METRICS = ("answer_correct", "answer_quality", "non_answer", "protected_disclosure", "stale_disclosure")
ROUTE_METRICS = (
    "evidence_recall",
    "feasible",
    "penalized_admissibility_upper_risk",
    "wrong_namespace_exposure",
    "policy_disallowed_exposure",
    "lifecycle_incompatible_exposure",
)
ROUTE = "route"
"""Subject of the rows that describe the route, which no reader changes."""

CHANGES = {-1: "recall fell", 0: "recall unchanged", 1: "recall rose"}
"""What happened to evidence recall between two arms; cases whose recall is not evaluable are left out."""


def readers(cases: pd.DataFrame) -> list[str]:
    """List the readers of a case table, sorted."""
    return sorted(cases["reader_model"].unique())


def route_scores(cases: pd.DataFrame, metrics: Sequence[str] = ROUTE_METRICS) -> pd.DataFrame:
    """Take what describes the route, which must be the same whoever reads."""
    keys = ["case_token", "arm"]
    for metric in metrics:
        distinct = cases.groupby(keys, sort=True)[metric].nunique(dropna=False)
        if (distinct > 1).any():
            case, arm = distinct.index[int((distinct > 1).argmax())]
            raise InputError(
                f"case '{case}', arm '{arm}': readers disagree on '{metric}'; expected one value, since a reader "
                "does not change its route"
            )
    return cases.drop_duplicates(keys)[["case_token", "group_token", "source", "arm", *metrics]].reset_index(drop=True)


def paired_deltas(scores: pd.DataFrame, arm: str, reference: str, metrics: Sequence[str]) -> pd.DataFrame:
    """Subtract one arm from another, case by case, for one reader: case_token, group_token, source and the metrics."""
    sides = []
    for name in (arm, reference):
        side = scores[scores["arm"] == name].set_index("case_token").sort_index()
        if side.index.has_duplicates:
            twice = side.index[side.index.duplicated()][0]
            raise InputError(f"case '{twice}', arm '{name}': several rows; expected rows of exactly one reader")
        sides.append(side)
    unpaired = sides[0].index.symmetric_difference(sides[1].index)
    if len(unpaired):
        raise InputError(
            f"case '{unpaired[0]}': only one of the arms '{arm}' and '{reference}' is there "
            f"({len(unpaired)} such cases); expected both"
        )
    deltas = sides[0][["group_token", "source"]].copy()
    for metric in metrics:
        upper, lower = (side[metric].astype("Float64").to_numpy(dtype=float, na_value=np.nan) for side in sides)
        deltas[metric] = upper - lower
    return deltas.reset_index()


def contrast(deltas: pd.DataFrame, metric: str, resampling: Resampling | None = None) -> pd.DataFrame:
    """Estimate one paired difference by source, macro, and case-weighted: source, estimate, low, high, n.

    Which sources take part depends on the metric: those with evaluable pairs.
    """
    used = deltas[deltas[metric].notna()]
    columns = ["source", "estimate", "low", "high", "n", "undefined_replicates"]
    if used.empty:
        replicates = (resampling or Resampling()).replicates
        return pd.DataFrame([[MACRO, np.nan, np.nan, np.nan, 0, replicates]], columns=columns)
    by_source = estimate(used, [metric], cluster="group_token", resampling=resampling)
    # The same group token may occur in two sources; those are two groups.
    cases = used.assign(group=used["source"] + "\x1f" + used["group_token"])
    pooled = estimate(cases, [metric], source=None, stratum="source", resampling=resampling)
    table = pd.concat([by_source, pooled.assign(source=CASE_WEIGHTED)], ignore_index=True)
    return table.rename(columns={"n_units": "n"})[columns]


def reader_contrasts(
    cases: pd.DataFrame,
    metrics: Sequence[str] = ANSWER_METRICS,
    *,
    contrasts: Mapping[str, tuple[str, str]] = CONTRASTS,
    resampling: Resampling | None = None,
) -> pd.DataFrame:
    """Estimate every contrast for every reader on its own, and for the route.

    Parameters
    ----------
    cases : DataFrame
        As from ``corpora.evidence.load_evidence``: one row per case, reader and arm.
    metrics : sequence of str
        Of the answers; the route has ``ROUTE_METRICS``.
    contrasts : mapping of name to (arm, reference)
        Those whose arms are there are estimated.
    resampling : Resampling, optional
        Groups are resampled within their source.

    Returns
    -------
    DataFrame
        subject (reader or "route"), contrast, metric, source, estimate, low, high, n, undefined_replicates.

    Raises
    ------
    InputError
        Where no reader has both arms of any contrast, or pairs are incomplete.
    """
    subjects = {name: (cases[cases["reader_model"] == name], tuple(metrics)) for name in readers(cases)}
    subjects[ROUTE] = (route_scores(cases), ROUTE_METRICS)
    parts = []
    for name, (arm, reference) in contrasts.items():
        for subject, (scores, columns) in subjects.items():
            if {arm, reference} <= set(scores["arm"]):
                deltas = paired_deltas(scores, arm, reference, columns)
                for metric in columns:
                    told = {"subject": subject, "contrast": name, "metric": metric}
                    parts.append(contrast(deltas, metric, resampling).assign(**told))
    if not parts:
        raise InputError("case scores: no reader has both arms of any contrast; expected at least one pair of arms")
    table = pd.concat(parts, ignore_index=True)
    leading = ["subject", "contrast", "metric"]
    return table[[*leading, *(column for column in table if column not in leading)]]


def published_rows(cases: pd.DataFrame, resampling: Resampling | None = None) -> pd.DataFrame:
    """Recompute the published C13 rows, macro and by source: claim, subject, contrast, metric, value, low, high, n."""
    table = reader_contrasts(cases, resampling=resampling).rename(columns={"estimate": "value"})
    macro = table[table["source"] == MACRO].assign(claim="C13")
    parts = table[~table["source"].isin([MACRO, CASE_WEIGHTED])].assign(claim="C13-by-source")
    parts["contrast"] = parts["contrast"] + ":" + parts["source"]
    columns = ["claim", "subject", "contrast", "metric", "value", "low", "high", "n"]
    return pd.concat([macro, parts], ignore_index=True)[columns]


def by_recall_change(
    cases: pd.DataFrame, arm: str, reference: str, metric: str = "answer_correct", resampling: Resampling | None = None
) -> pd.DataFrame:
    """Estimate a downstream difference separately where recall fell, stayed, and rose: how much of it sits where.

    Still an association: cases are not assigned to these strata at random.

    Returns
    -------
    DataFrame
        subject, change (one of ``CHANGES``), estimate, low, high, n, undefined_replicates.
    """
    rows: list[dict[str, Any]] = []
    for subject in readers(cases):
        scores = cases[cases["reader_model"] == subject]
        if {arm, reference} <= set(scores["arm"]):
            deltas = paired_deltas(scores, arm, reference, [metric, "evidence_recall"])
            rows += [{"subject": subject, **row} for row in _by_change(deltas, metric, resampling or Resampling())]
    return pd.DataFrame(rows, columns=["subject", "change", "estimate", "low", "high", "n", "undefined_replicates"])


def _by_change(deltas: pd.DataFrame, metric: str, how: Resampling) -> Iterator[dict[str, Any]]:
    move = np.sign(deltas["evidence_recall"])
    for sign, change in CHANGES.items():
        here = (move == sign) & deltas[metric].notna()
        row = {
            "change": change,
            "estimate": np.nan,
            "low": np.nan,
            "high": np.nan,
            "undefined_replicates": how.replicates,
        }
        # Sources without such a case have no say. All groups of the others are resampled, also those without one:
        # how many cases fall into a stratum is itself uncertain.
        used = deltas[deltas["source"].isin(deltas.loc[here, "source"])]
        if len(used):
            shown = used.assign(**{metric: used[metric].where(here)})
            table = estimate(shown, [metric], cluster="group_token", resampling=how).query("source == @MACRO").iloc[0]
            row |= {name: table[name] for name in row if name != "change"}
        yield row | {"n": int(here.sum())}
