"""Controlled pairs: one field of the context changes, so one decision should (Protocol section 6)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion import bootstrap
from companion.errors import InputError
from companion.stages.verification.measures import dropped

CONDITIONS = ("allow", "block")
FOCAL, ADMISSIBLE, INADMISSIBLE = "focal", "irrelevant_admissible", "irrelevant_inadmissible"
CONTROLLED = (
    "focal_consistency",
    "stable_overflip",
    "stable_admissible_false_denial",
    "stable_inadmissible_false_admission",
)
_KEY = ["scenario", "pair", "candidate_role"]


def controlled_measures(
    units: pd.DataFrame,
    threshold: float,
    *,
    replicates: int = bootstrap.DEFAULT_REPLICATES,
    confidence: float = bootstrap.DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure a verifier on pairs of contexts that differ in the governing field only.

    Parameters
    ----------
    units : DataFrame
        One row per scenario, pair, condition (``allow``, ``block``) and candidate_role (``focal``,
        ``irrelevant_admissible``, ``irrelevant_inadmissible``), with axis and probability.
    threshold : float
        Candidates at or above it are dropped. An abstention drops nothing.
    replicates, confidence, seed
        Bootstrap over scenarios within governing axes (Protocol section 3).

    Returns
    -------
    DataFrame
        metric, estimate, low, high, n (int64):

        focal_consistency
            Pairs whose focal candidate is kept under ``allow`` and dropped under ``block``.
        stable_overflip
            Controls whose decision changes between the conditions although their status does not.
        stable_admissible_false_denial, stable_inadmissible_false_admission
            Admissible controls dropped, inadmissible controls kept, both conditions counted.

    Raises
    ------
    InputError
        An incomplete, duplicate or unknown unit.
    """
    decisions = _decisions(units, threshold)
    rows = decisions.reset_index()
    focal = rows["candidate_role"] == FOCAL
    allow, block = rows["allow"].to_numpy(), rows["block"].to_numpy()
    admissible = (rows["candidate_role"] == ADMISSIBLE).to_numpy()
    inadmissible = (rows["candidate_role"] == INADMISSIBLE).to_numpy()
    # two conditions per control are averaged within the row: every row holds both, so means are those over units
    dropped_share, kept_share = (allow.astype(float) + block) / 2, 1 - (allow.astype(float) + block) / 2
    values = pd.DataFrame(
        {
            "focal_consistency": np.where(focal, ~allow & block, np.nan),
            "stable_overflip": np.where(focal, np.nan, allow != block),
            "stable_admissible_false_denial": np.where(admissible, dropped_share, np.nan),
            "stable_inadmissible_false_admission": np.where(inadmissible, kept_share, np.nan),
        }
    )
    result = bootstrap.ratio_means(
        values,
        clusters=rows["scenario"],
        strata=rows["axis"],
        replicates=replicates,
        confidence=confidence,
        seed=seed,
    )
    table = result.table[result.table["source"] == bootstrap.MACRO].set_index("statistic").loc[list(CONTROLLED)]
    counts = [int(focal.sum()), int((~focal).sum()), 2 * int(admissible.sum()), 2 * int(inadmissible.sum())]
    out = table[["estimate", "low", "high"]].rename_axis("metric").reset_index()
    return out.assign(n=counts)


def _decisions(units: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Return the decision (dropped or not) of every candidate under both conditions, side by side."""
    rows = units.assign(_drop=dropped(units["probability"], threshold))
    for column, known in (("condition", CONDITIONS), ("candidate_role", (FOCAL, ADMISSIBLE, INADMISSIBLE))):
        strange = ~rows[column].isin(known)
        if strange.any():
            raise InputError(
                f"controlled pairs, column {column}: {rows.loc[strange, column].iloc[0]!r}; "
                f"expected one of {', '.join(known)}"
            )
    key = ["axis", *_KEY]
    twice = rows.duplicated([*key, "condition"])
    if twice.any():
        raise InputError(f"controlled pairs: {_name(rows[twice].iloc[0])} occurs twice")
    by_condition = rows.set_index([*key, "condition"])["_drop"]
    sides = {name: by_condition.xs(name, level="condition") for name in CONDITIONS}
    wide = pd.concat(sides, axis=1)
    lacking = wide.isna().any(axis=1)
    if lacking.any():
        first = dict(zip(key, wide.index[int(lacking.to_numpy(bool).argmax())], strict=True))
        raise InputError(f"controlled pairs: {_name(pd.Series(first))} lacks a condition; expected allow and block")
    return wide.astype(bool)


def _name(row: pd.Series) -> str:
    return f"scenario {row['scenario']!r}, pair {row['pair']}, candidate {row['candidate_role']!r}"
