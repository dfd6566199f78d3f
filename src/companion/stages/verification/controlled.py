"""Controlled pairs: one field of the context changes, so one decision should (Methods, "Stage two: verification")."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion import logic
from companion.bootstrap import Resampling, estimate
from companion.errors import InputError
from companion.stages import published
from companion.stages.readers import ScenarioSet, load_scenarios
from companion.stages.verification.measures import dropped

CONDITIONS = ("allow", "block")
FOCAL, ADMISSIBLE, INADMISSIBLE = "focal", "irrelevant_admissible", "irrelevant_inadmissible"
VERDICTS = ("admissible", "inadmissible", "unknown")
CONTROLLED = (
    "focal_consistency",
    "stable_overflip",
    "stable_admissible_false_denial",
    "stable_inadmissible_false_admission",
)
_KEY = ["axis", "scenario", "pair", "candidate_role"]
# metric: (column of the pairs, decisions of that kind in one pair)
_SHARES = {
    "focal_consistency": ("focal_right", 1),
    "stable_overflip": ("overflips", 2),
    "stable_admissible_false_denial": ("admissible_denied", 2),
    "stable_inadmissible_false_admission": ("inadmissible_admitted", 2),
    "control_accuracy": ("stable_correct", 4),
    "candidate_accuracy": ("candidates_correct", 6),
}


def published_pairs() -> pd.DataFrame:
    """Return the paper's 3 x 16 x 2 pairs: what was right in each, with ``focal_right`` under both contexts."""
    pairs = published.table("controlled_verification_pairs")
    return pairs.assign(focal_right=pairs["allow_correct"] * pairs["block_correct"])


def pair_measures(
    pairs: pd.DataFrame, by: tuple[str, ...] = ("verifier",), resampling: Resampling | None = None
) -> pd.DataFrame:
    """Estimate what verifiers do on controlled pairs; scenarios are resampled within their governing axis.

    Parameters
    ----------
    pairs : DataFrame
        One row per pair: ``scenario``, ``axis``, the columns of ``by`` and counts of what was right, as from
        :func:`published_pairs` or :func:`pairs_of`. Measures whose counts are absent are left out.
    by : tuple of str
        Columns to tell apart: ``("verifier",)``, ``("verifier", "axis")``.
    resampling : Resampling, optional
        Replicates, level and seed.

    Returns
    -------
    DataFrame
        Columns of ``by``, metric, estimate, low, high, n (decisions). Metrics: focal_consistency (the focal candidate
        is admitted under *allow* and denied under *block*), stable_overflip (controls whose verdict changes although
        their status does not), false denial and false admission of controls, control_accuracy, candidate_accuracy.

    See Also
    --------
    Methods, "Stage two: verification".
    """
    known = {metric: share for metric, share in _SHARES.items() if share[0] in pairs}
    shares = pairs.assign(**{metric: pairs[column] / size for metric, (column, size) in known.items()})
    table = estimate(shares, list(known), by=by, cluster="scenario", source=None, stratum="axis", resampling=resampling)
    n = table["n_units"] * table["metric"].map({metric: size for metric, (_, size) in known.items()})
    return table[[*by, "metric", "estimate", "low", "high"]].assign(n=n.astype("int64"))


def transitions(controls: pd.DataFrame | None = None) -> pd.DataFrame:
    """Count verdicts on controls under *allow* against those under *block*: verifier, control, both verdicts, pairs.

    A control's status is the same under both, so everything off the diagonal is an overflip.
    """
    table = published.table("controlled_verification_controls") if controls is None else controls
    cells = pd.MultiIndex.from_product(
        [table["verifier"].unique(), table["control"].unique(), VERDICTS, VERDICTS],
        names=["verifier", "control", "allow_verdict", "block_verdict"],
    )
    return table.groupby(list(cells.names))["pairs"].sum().reindex(cells, fill_value=0).reset_index()


def control_measures(controls: pd.DataFrame | None = None) -> pd.DataFrame:
    """Compute the controls' measures from their verdicts: verifier, metric, estimate, n. *Unknown* denies nothing."""
    table = transitions(controls)
    allow, block = table["allow_verdict"], table["block_verdict"]
    admissible = table["control"] == "stable_admissible"
    wrong = {
        "stable_overflip": (table["control"] != "", (allow != block).astype(int), 1),
        "stable_admissible_false_denial": (admissible, allow.eq("inadmissible") + block.eq("inadmissible") * 1, 2),
        "stable_inadmissible_false_admission": (~admissible, allow.eq("admissible") + block.eq("admissible") * 1, 2),
    }
    parts = []
    for metric, (rows, errors, decisions) in wrong.items():
        part = table[rows].assign(errors=errors * table["pairs"], n=decisions * table["pairs"])
        sums = part.groupby("verifier", sort=False)[["errors", "n"]].sum()
        parts.append(sums.assign(metric=metric, estimate=sums["errors"] / sums["n"]).reset_index())
    return pd.concat(parts, ignore_index=True)[["verifier", "metric", "estimate", "n"]]


def published_strata(axis: str = "admissibility") -> pd.DataFrame:
    """Return the paper's measures of its 72 cases by stratum, for one axis; rhelm holds no violation."""
    table = published.table("verification_strata")
    if axis not in set(table["axis"]):
        raise InputError(f"axis {axis!r}: expected one of {', '.join(table['axis'].unique())}")
    return table[table["axis"] == axis].reset_index(drop=True)


def stratum_means(metric: str = "roc_auc", axis: str = "admissibility") -> pd.Series:
    """Average a measure over the strata in which it is defined, for each verifier: the paper's ROC-AUC."""
    return published_strata(axis).groupby("verifier", sort=False)[metric].mean()


def controlled_measures(units: pd.DataFrame, threshold: float, resampling: Resampling | None = None) -> pd.DataFrame:
    """Measure a verifier of one's own on judged controlled pairs: the first four metrics of :func:`pair_measures`.

    ``units`` has one row per scenario, pair, condition (``allow``, ``block``) and candidate_role (``focal``,
    ``irrelevant_admissible``, ``irrelevant_inadmissible``), with axis and probability; at or above the threshold a
    candidate is dropped, an abstention drops nothing.
    """
    return pair_measures(pairs_of(units, threshold), by=(), resampling=resampling)


def pairs_of(units: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Turn judged units into one row per pair, with the counts that :func:`pair_measures` reads."""
    drops = _decisions(units, threshold).reset_index()
    allow, block, role = drops["allow"], drops["block"], drops["candidate_role"]
    counts = drops.assign(
        focal_right=(role == FOCAL) & ~allow & block,
        overflips=(role != FOCAL) & (allow != block),
        admissible_denied=np.where(role == ADMISSIBLE, allow.astype(int) + block, 0),
        inadmissible_admitted=np.where(role == INADMISSIBLE, 2 - allow.astype(int) - block, 0),
    )
    columns = ["focal_right", "overflips", "admissible_denied", "inadmissible_admitted"]
    return counts.groupby(["scenario", "axis", "pair"], sort=False)[columns].sum().reset_index()


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
    twice = rows.duplicated([*_KEY, "condition"])
    if twice.any():
        raise InputError(f"controlled pairs: {_name(rows[twice].iloc[0])} occurs twice")
    wide = rows.pivot(index=_KEY, columns="condition", values="_drop").reindex(columns=list(CONDITIONS))
    roles = wide.groupby(level=_KEY[:3]).size()
    if (roles != 3).any():
        _, scenario, pair = roles.index[int((roles != 3).argmax())]
        raise InputError(f"controlled pairs: scenario {scenario!r}, pair {pair} lacks a candidate; expected three")
    lacking = wide.isna().any(axis=1)
    if lacking.any():
        first = dict(zip(_KEY, wide.index[int(lacking.to_numpy(bool).argmax())], strict=True))
        raise InputError(f"controlled pairs: {_name(pd.Series(first))} lacks a condition; expected allow and block")
    return wide.astype(bool)


def _name(row: pd.Series) -> str:
    return f"scenario {row['scenario']!r}, pair {row['pair']}, candidate {row['candidate_role']!r}"


def scenario_units(scenario_set: ScenarioSet | None = None) -> pd.DataFrame:
    """List our scenario pairs as a verifier sees them.

    A verifier can only react to what it is shown, so the context stands in front of the question and the memory's own
    metadata in front of its text, in words.
    """
    chosen = load_scenarios() if scenario_set is None else scenario_set
    units = chosen.units()
    pair = units["scenario"] + "/" + units["pair"].astype("str")
    lines = {
        (p.scenario, p.pair, role): candidate.line() for p in chosen.pairs for role, candidate in p.candidates.items()
    }
    keys = zip(units["scenario"], units["pair"], units["candidate_role"], strict=True)
    asked = "{principal} asks on {as_of}, for {purpose}, with {intent} intent: {query}"
    return units[["scenario", "axis", "pair", "condition", "candidate_role", *logic.AXES]].assign(
        query_id=pair + "/" + units["condition"],
        memory_id=pair + "/" + units["candidate_role"],
        query_text=[asked.format_map(row) for row in units.to_dict("records")],
        memory_text=[lines[key] for key in keys],
        violation=~units["admissible"],
    )
