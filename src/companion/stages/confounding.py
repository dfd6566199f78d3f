"""Whether answers changed because less was forbidden, or because more evidence was found.

Between two arms the route changes in several ways at once. Splitting the cases by what happened to evidence recall
shows how much of a downstream delta sits where recall moved, and how much is left where it did not. It is still an
association: cases are not assigned to the strata at random (Protocol section 7).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion.bootstrap import DEFAULT_CONFIDENCE, DEFAULT_REPLICATES, MACRO, ratio_means
from companion.stages.downstream import paired_deltas, readers

CHANGES = ("recall fell", "recall unchanged", "recall rose")
"""What happened to evidence recall between the two arms; cases whose recall is not evaluable are left out."""


def by_recall_change(
    cases: pd.DataFrame,
    arm: str,
    reference: str,
    metric: str = "answer_correct",
    *,
    replicates: int = DEFAULT_REPLICATES,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Estimate a downstream delta separately where recall fell, stayed, and rose (Protocol sections 3 and 7)."""
    parts = []
    for subject in readers(cases):
        scores = cases[cases["reader_model"] == subject]
        if {arm, reference} <= set(scores["arm"]):
            deltas = paired_deltas(scores, arm, reference, [metric, "evidence_recall"])
            settings = {"replicates": replicates, "confidence": confidence, "seed": seed}
            parts.append(_split(deltas, metric, settings).assign(subject=subject))
    columns = ["subject", "change", "estimate", "low", "high", "n", "undefined_replicates"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _split(deltas: pd.DataFrame, metric: str, settings: dict[str, float]) -> pd.DataFrame:
    move = np.sign(deltas["evidence_recall"])
    rows = []
    for sign, change in zip((-1, 0, 1), CHANGES, strict=True):
        here = (move == sign) & deltas[metric].notna()
        # Sources without such a case have no say. All groups of the others are resampled, also those without one:
        # how many cases fall into a stratum is itself uncertain.
        used = deltas[deltas["source"].isin(deltas.loc[here, "source"])]
        row = {"change": change, "estimate": np.nan, "low": np.nan, "high": np.nan, "n": int(here.sum())}
        row["undefined_replicates"] = int(settings["replicates"])
        if len(used):
            table = ratio_means(
                used[[metric]].where(here),
                clusters=used["group_token"],
                sources=used["source"],
                **settings,  # type: ignore[arg-type]
            ).table
            macro = table[table["source"] == MACRO].iloc[0]
            row |= {name: macro[name] for name in ("estimate", "low", "high", "undefined_replicates")}
        rows.append(row)
    return pd.DataFrame(rows)
