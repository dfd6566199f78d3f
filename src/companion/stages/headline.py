"""The paper's headline from its 87 namespace groups: each is one row of differences, namespace minus global."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion.bootstrap import MACRO, Resampling, estimate
from companion.stages import published

METRICS = ("evidence_recall", "feasible_rate", "loss", "loss_without_scope")
PARTS = {
    "infeasibility_component": {"feasible_rate": -1.0},
    "prefix_component": {"loss": 1.0, "feasible_rate": 1.0},
}
"""What a difference in loss splits into, at a cost of 1 for each query that misses the target."""


def group_deltas() -> pd.DataFrame:
    """Return the released differences: source, group, queries, and ``METRICS`` (top-20, target .8, cost 1)."""
    return published.table("support_group_deltas")


def differences(deltas: pd.DataFrame | None = None, resampling: Resampling | None = None) -> pd.DataFrame:
    """Estimate the headline differences and the two parts of the loss, by source and macro.

    Parameters
    ----------
    deltas : DataFrame, optional
        One row per group as from :func:`group_deltas`, which is the default.
    resampling : Resampling, optional
        Replicates, level, seed and method; groups are resampled within their source.

    Returns
    -------
    DataFrame
        As :func:`companion.bootstrap.estimate`: source, metric, estimate, low, high, ... A source mean weighs each
        group by its queries; sources then weigh the same.

    See Also
    --------
    Methods, "Intervals".
    """
    table = group_deltas() if deltas is None else deltas
    return estimate(table, METRICS, weight="queries", combine=PARTS, resampling=resampling)


def split(differences: pd.DataFrame) -> pd.DataFrame:
    """Give each part of the loss with its share of the difference, by source: the 87% and 13% of the paper."""
    wide = differences.set_index(["source", "metric"])["estimate"]
    parts = differences[differences["metric"].isin(list(PARTS))]
    return parts.assign(share=parts["estimate"].to_numpy() / wide[:, "loss"].loc[parts["source"]].to_numpy())


def group_signs(deltas: pd.DataFrame) -> pd.DataFrame:
    """Count the groups above, at and below zero, for each metric."""
    rows = [(m, int((deltas[m] > 0).sum()), int((deltas[m] == 0).sum()), int((deltas[m] < 0).sum())) for m in METRICS]
    return pd.DataFrame(rows, columns=["metric", "above", "zero", "below"])


def macro_mean(deltas: pd.DataFrame, metric: str) -> float:
    """Average one metric by the rule, without an interval."""
    table = estimate(deltas, [metric], weight="queries", resampling=Resampling(replicates=1))
    return float(table.loc[table["source"] == MACRO, "estimate"].iloc[0])


def leave_one_group_out(deltas: pd.DataFrame, metric: str = "loss") -> pd.DataFrame:
    """Recompute the macro mean without each group in turn: source, group, estimate."""
    rows = deltas.reset_index(drop=True)
    without = [rows.assign(left=at, **{metric: rows[metric].mask(rows.index == at)}) for at in rows.index]
    table = estimate(pd.concat(without), [metric], by=["left"], weight="queries", resampling=Resampling(replicates=1))
    macro = table[table["source"] == MACRO].set_index("left")["estimate"]
    return rows[["source", "group"]].assign(estimate=macro)


def sign_flip(deltas: pd.DataFrame, metric: str, source: str = "rhelm") -> float:
    """Test exactly, over all sign patterns of one source's groups, whether the mean could be 0 by symmetry.

    Returns the share of patterns whose weighted mean is at least as far from 0 as the one observed (two-sided).
    """
    part = deltas[deltas["source"] == source]
    sums = (part[metric] * part["queries"]).to_numpy()
    patterns = 1 - 2 * ((np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1)
    flipped = np.abs(patterns @ sums)
    return float((flipped >= np.abs(sums.sum()) - 1e-9 * np.abs(sums).sum()).mean())


def typed_exposure() -> pd.DataFrame:
    """Return the published share of the matched prefix that each axis forbids: arm, axis, share (macro, top-20)."""
    rows = published.figures("C9-typed").rename(columns={"subject": "arm", "metric": "axis", "published": "share"})
    return rows[["arm", "axis", "share"]].reset_index(drop=True)


def control_seeds(metrics: tuple[str, ...] = ("evidence_recall", "feasible_rate", "loss")) -> pd.DataFrame:
    """Summarise the ten seeds of the anchor-preserving control: metric, estimate, smallest, largest, sd."""
    seeds = published.table("control_seeds")[list(metrics)]
    table = pd.DataFrame({"estimate": seeds.mean(), "smallest": seeds.min(), "largest": seeds.max(), "sd": seeds.std()})
    return table.rename_axis("metric").reset_index()


__all__ = [
    "MACRO",
    "METRICS",
    "PARTS",
    "control_seeds",
    "differences",
    "group_deltas",
    "group_signs",
    "leave_one_group_out",
    "macro_mean",
    "sign_flip",
    "split",
    "typed_exposure",
]
