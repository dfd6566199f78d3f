"""The audit itself: the protocol's numbers for records as they are, and what they cannot show."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion import bootstrap, logic, scoring
from companion.audit.context import Context, listed
from companion.audit.findings import Check, run_checks
from companion.audit.intake import Intake, take_in
from companion.audit.narrowing import macro_width, narrowing, over_arms
from companion.errors import InputError
from companion.stages import studies
from companion.tables import Records

_AXIS_WORDS = {
    "relevant": "whether a memory helps to answer",
    "scope": "whether it belongs to who asks",
    "policy": "whether it may be used for this purpose",
    "lifecycle": "whether it is still in force",
}
_NAMED = 4


@dataclass(frozen=True)
class Options:
    """How records are audited.

    Attributes
    ----------
    target_recall : float or str
        Share of the anchors that a matched prefix must hold.
    top_k : int or None
        Depth at which routes are cut; None leaves them as long as they are.
    items : int or None
        Memories of a route that reach the prompt, where no ledger says; None means all that are retrieved.
    infeasibility_cost : float
        Loss of a query whose route misses the target.
    reference : str or None
        Arm that the others are compared with.
    replicates, confidence, seed
        Of the percentile bootstrap.
    lifecycle_from_state : bool
        Derive lifecycle labels that are not given from state and intent.
    """

    target_recall: float | str = 0.8
    top_k: int | None = None
    items: int | None = None
    infeasibility_cost: float = 1.0
    reference: str | None = None
    replicates: int = bootstrap.DEFAULT_REPLICATES
    confidence: float = bootstrap.DEFAULT_CONFIDENCE
    seed: int = 0
    lifecycle_from_state: bool = False

    def scoring(self) -> dict[str, Any]:
        """Return what ``scoring.score_routes`` takes."""
        return {
            "target_recall": self.target_recall,
            "top_k": self.top_k,
            "infeasibility_cost": self.infeasibility_cost,
        }

    def resampling(self) -> dict[str, Any]:
        """Return what the bootstrap takes."""
        return {"replicates": self.replicates, "confidence": self.confidence, "seed": self.seed}


@dataclass(frozen=True)
class Audit:
    """Everything an audit found.

    Attributes
    ----------
    intake : Intake
        The records, checked.
    options : Options
    checks : list of Check
        Failures looked for: found, clear or unknown.
    unknown : list of str
        What these records cannot show, one sentence each.
    axes : DataFrame
        ``axis``, ``yes``, ``no``, ``unresolved`` (int64): distinct ranked pairs by what is known of them.
    per_query : DataFrame or None
        Scores, as from ``scoring.score_routes``; None without rankings.
    summary : scoring.Summary or None
        Estimates and intervals; None without anchors.
    crossing : DataFrame or None
        What reached the prompt, as from ``studies.crossing``; None where nothing did.
    crossing_from : {"ledger", "rankings", ""}
        Where ``crossing`` comes from.
    steps : DataFrame or None
        Counts per arm from the ledger: retrieved, exposed, and exposed by status.
    worst : DataFrame
        Every arm and query with something wrong, worst first: loss, violations, ids and reasons.
    narrowing : DataFrame
        Effect of settling each unresolved label, as from ``narrowing.narrowing``.
    widths : Series or None
        Macro bound width of each arm.
    """

    intake: Intake
    options: Options
    checks: list[Check]
    unknown: list[str]
    axes: pd.DataFrame
    per_query: pd.DataFrame | None = None
    summary: scoring.Summary | None = None
    crossing: pd.DataFrame | None = None
    crossing_from: str = ""
    steps: pd.DataFrame | None = None
    worst: pd.DataFrame = field(default_factory=pd.DataFrame)
    narrowing: pd.DataFrame = field(default_factory=pd.DataFrame)
    widths: pd.Series | None = None

    @property
    def records(self) -> Records:
        """The records, checked."""
        return self.intake.records

    @property
    def found(self) -> list[Check]:
        """The checks that found their failure."""
        return [check for check in self.checks if check.outcome == "found"]

    def unresolved(self) -> pd.DataFrame:
        """Return the unresolved labels with their effects added over arms."""
        return over_arms(self.narrowing)


def audit(source: str | Path | Records, options: Options | None = None) -> Audit:
    """Run the protocol and the checks on somebody's own records.

    Parameters
    ----------
    source : path-like or Records
        A folder with memories and queries, and as many of labels, rankings, work and ledger as there are.
    options : Options, optional

    Returns
    -------
    Audit

    Raises
    ------
    FaultsError
        If a table is malformed; holds every fault.
    InputError
        If an option does not fit the records.
    """
    options = options or Options()
    intake = take_in(source, options.lifecycle_from_state)
    context = Context(intake, options.top_k)
    records = intake.records
    arms = [] if records.rankings is None else list(dict.fromkeys(records.rankings["arm"]))
    if options.reference is not None and options.reference not in arms:
        raise InputError(f"reference {options.reference!r} is not among the arms; they are {', '.join(arms) or 'none'}")
    per_query = scoring.score_routes(records, **options.scoring()) if context.has_routes else None
    anchored = per_query is not None and bool((per_query["anchors"] > 0).any())
    summary = None
    if per_query is not None and anchored:
        summary = scoring.summarise(per_query, reference=options.reference, **options.resampling())
    crossing, origin = _crossing(records, options)
    open_labels = narrowing(records, per_query, **options.scoring()) if per_query is not None else pd.DataFrame()
    axes = _axes(context)
    return Audit(
        intake,
        options,
        run_checks(context),
        _unknown(context, per_query, axes),
        axes,
        per_query,
        summary,
        crossing,
        origin,
        _steps(records),
        worst_queries(context, per_query) if per_query is not None else pd.DataFrame(),
        open_labels,
        macro_width(per_query) if per_query is not None and anchored else None,
    )


def _crossing(records: Records, options: Options) -> tuple[pd.DataFrame | None, str]:
    """Say what reached the prompt: from the ledger where it knows, otherwise from the top of the routes."""
    exposed = _exposed(records)
    if exposed is not None and len(exposed):
        ranks = exposed.groupby(["arm", "query_id"], sort=False).cumcount() + 1
        own = replace(records, rankings=exposed.assign(rank=ranks, score=np.nan))
        return studies.crossing(own, top_k=int(ranks.max()), **options.resampling()), "ledger"
    if exposed is not None or records.rankings is None or not len(records.rankings):
        return None, "ledger" if exposed is not None else ""
    depth = options.items or options.top_k or int(records.rankings["rank"].max())
    return studies.crossing(records, top_k=depth, **options.resampling()), "rankings"


def _exposed(records: Records) -> pd.DataFrame | None:
    """Return the rows known to have reached the prompt; None where no ledger says anything about it."""
    ledger = records.ledger
    if ledger is None or ledger["exposed"].isna().all():
        return None
    return ledger.loc[ledger["exposed"].fillna(False), ["arm", "query_id", "memory_id"]].reset_index(drop=True)


def _steps(records: Records) -> pd.DataFrame | None:
    """Count the ledger's steps per arm; unresolved is counted on its own."""
    if records.ledger is None or records.ledger.empty:
        return None
    rows = scoring.label_ranked(records, records.ledger)
    exposed, status = rows["exposed"].fillna(False), rows["admissible"]
    flags = pd.DataFrame(
        {
            "arm": rows["arm"],
            "retrieved": rows["retrieved"].fillna(False),
            "exposed": exposed,
            "exposed_admissible": exposed & status.fillna(False),
            "exposed_unresolved": exposed & status.isna(),
            "exposed_inadmissible": exposed & status.eq(False).fillna(False),
            "exposure_not_recorded": rows["exposed"].isna(),
        }
    )
    return flags.groupby("arm", sort=False).sum().astype("int64").reset_index()


def _axes(context: Context) -> pd.DataFrame:
    names = ("relevant", *logic.AXES)
    if not context.has_routes:
        return pd.DataFrame({"axis": names, "yes": 0, "no": 0, "unresolved": 0})
    pairs = context.rows.drop_duplicates(["query_id", "memory_id"])
    counts = [
        (
            axis,
            int(pairs[axis].fillna(False).sum()),
            int(pairs[axis].eq(False).fillna(False).sum()),
            int(pairs[axis].isna().sum()),
        )
        for axis in names
    ]
    return pd.DataFrame(counts, columns=["axis", "yes", "no", "unresolved"])


def worst_queries(context: Context, per_query: pd.DataFrame) -> pd.DataFrame:
    """List every route with something wrong, worst first, with ids and reasons.

    Parameters
    ----------
    context : Context
    per_query : DataFrame
        Scores of the same records.

    Returns
    -------
    DataFrame
        ``arm``, ``query_id``, ``loss`` (NaN without anchors), ``feasible`` (Int64), ``evidence_recall``, ``looked_at``
        (items: the matched prefix, or the whole route where there is none), ``violations`` (known), ``unresolved``,
        ``reasons``. Sorted by loss, then violations, then unresolved items.
    """
    depth = per_query.set_index(["arm", "query_id"])["matched_prefix"]
    rows = context.rows.join(depth, on=["arm", "query_id"])
    inside = rows[rows["matched_prefix"].isna() | (rows["rank"] <= rows["matched_prefix"]).fillna(False)]
    bad = inside["admissible"].eq(False).fillna(False)
    open_ = inside["admissible"].isna()
    counts = inside.assign(violations=bad.astype(int), unresolved=open_.astype(int)).groupby(["arm", "query_id"])
    table = per_query[["arm", "query_id", "loss", "feasible", "evidence_recall", "anchors"]].join(
        counts.agg(looked_at=("rank", "size"), violations=("violations", "sum"), unresolved=("unresolved", "sum")),
        on=["arm", "query_id"],
    )
    count = ["looked_at", "violations", "unresolved"]
    table[count] = table[count].fillna(0).astype("int64")
    table["reasons"] = _reasons(table, inside[bad], context)
    wrong = (table["violations"] > 0) | (table["unresolved"] > 0) | (table["feasible"] == 0).fillna(False)
    table = table[wrong].sort_values(
        ["loss", "violations", "unresolved", "arm", "query_id"],
        ascending=[False, False, False, True, True],
        kind="stable",
        ignore_index=True,
    )
    return table.drop(columns="anchors")


def _reasons(table: pd.DataFrame, bad: pd.DataFrame, context: Context) -> pd.Series:
    missed = _missed(context)
    named = _violations(bad)
    place = pd.MultiIndex.from_frame(table[["arm", "query_id"]])
    texts = []
    rows: Any = table.itertuples()
    for row, miss, names in zip(rows, missed.reindex(place), named.reindex(place), strict=True):
        parts = []
        if not pd.isna(row.feasible) and row.feasible == 0:
            parts.append(f"misses the evidence: {miss}" if isinstance(miss, str) else "misses the target")
        if isinstance(names, str):
            parts.append(f"{row.violations} of {row.looked_at} may not be used: {names}")
        if row.unresolved:
            parts.append(f"{row.unresolved} unresolved")
        if row.anchors == 0:
            parts.append("no known usable memory, so recall cannot be judged")
        texts.append("; ".join(parts))
    return pd.Series(texts, index=table.index, dtype="str")


def _missed(context: Context) -> pd.Series:
    """Name the anchors that each route lacks; interchangeable memories count as one, under their anchor id."""
    rankings = context.records.rankings
    assert rankings is not None  # routes were scored
    anchors = scoring.anchors_of(context.records)
    anchors["anchor"] = anchors["anchor_id"].fillna(anchors["memory_id"])
    arms = pd.DataFrame({"arm": pd.Series(list(dict.fromkeys(rankings["arm"])), dtype="str")})
    wanted = anchors.merge(arms, how="cross")
    hit = wanted.merge(
        context.rows[["arm", "query_id", "memory_id", "rank"]], how="left", on=["arm", "query_id", "memory_id"]
    )
    best = hit.groupby(["arm", "query_id", "anchor"], sort=False)["rank"].min()
    lost = best[best.isna()].reset_index()
    return lost.groupby(["arm", "query_id"], sort=False)["anchor"].agg(lambda names: listed(names, _NAMED))


def _violations(bad: pd.DataFrame) -> pd.Series:
    """Name the violating items of each route with the axes that forbid them."""
    if bad.empty:
        return pd.Series(dtype="str", index=pd.MultiIndex.from_arrays([[], []], names=["arm", "query_id"]))
    axes = logic.exclusion_reasons(bad["scope"], bad["policy"], bad["lifecycle"]).map(", ".join)
    named = bad.assign(name=bad["memory_id"] + " (" + axes.astype("str") + ")")
    return named.groupby(["arm", "query_id"], sort=False)["name"].agg(lambda names: listed(names, _NAMED))


def _unknown(context: Context, per_query: pd.DataFrame | None, axes: pd.DataFrame) -> list[str]:
    """Say in sentences what the records lack and what follows from that."""
    said = []
    records, given = context.records, context.intake.given
    if per_query is None:
        said.append(
            "There are no rankings: recall, feasibility, loss and typed violations of routes cannot be computed."
        )
    if "labels" not in given:
        said.append(
            "There are no labels: only scope is known, from the namespaces. Whether a memory is relevant, allowed and "
            "in force is unresolved for every pair."
        )
    said += _unknown_axes(axes, per_query is not None, "labels" in given)
    said += _could_be_derived(context, axes)
    said += _unknown_recall(records, per_query)
    if _exposed(records) is None:
        said.append(
            "No ledger says which memories reached the prompt; below, the top of each route stands in for it."
            if per_query is not None
            else "No ledger says which memories reached the prompt."
        )
    for table, column, what in _COLUMNS:
        frame = getattr(records, table)
        if column not in frame or frame[column].isna().all():
            said.append(what)
    return said


_COLUMNS = (
    ("queries", "principal", "Queries carry no principal: whether an empty one acts as a wildcard cannot be seen."),
    ("queries", "intent", "Queries carry no intent: every question counts as not about the past."),
    ("memories", "text", "Memories carry no text: near duplicates of outdated facts cannot be recognised."),
    ("memories", "time", "Memories carry no time: memories written after a question may be counted as left behind."),
)


def _could_be_derived(context: Context, axes: pd.DataFrame) -> list[str]:
    """Name the option that reads the lifecycle from states, where that would settle what no label does."""
    lifecycle = axes.set_index("axis").loc["lifecycle"]
    asked = context.intake.lifecycle_from_state or not lifecycle["unresolved"] or lifecycle["yes"] + lifecycle["no"]
    if asked or context.store["state"].isin(("current", "superseded", "stale")).sum() == 0:
        return []
    return [
        "Memories have states, though: with --lifecycle-from-state, a lifecycle that no label gives follows from the "
        "state of the memory and the intent of the query."
    ]


def _unknown_axes(axes: pd.DataFrame, ranked: bool, labelled: bool) -> list[str]:
    if not ranked:
        return []
    said = []
    rows: Any = axes.itertuples()
    for row in rows:
        total = row.yes + row.no + row.unresolved
        if total and row.unresolved == total and (labelled or row.axis == "scope"):
            said.append(
                f"No ranked pair has a known value of {row.axis} ({_AXIS_WORDS[row.axis]}): "
                + (
                    "no memory can be known to be usable, so there are no anchors."
                    if row.axis == "relevant"
                    else "no item can be known to be admissible, so upper bounds stay high and there are no anchors."
                )
            )
    return said


def _unknown_recall(records: Records, per_query: pd.DataFrame | None) -> list[str]:
    if per_query is None:
        return []
    anchors = per_query.drop_duplicates("query_id")["anchors"]
    without = int((anchors == 0).sum())
    if without == len(anchors):
        return [
            "No query has an anchor (a memory known to be relevant and admissible), so recall, feasibility, loss and "
            "matched-recall bounds cannot be known. What routes hold is reported at a fixed depth instead."
        ]
    if without:
        return [
            f"{without:,} of {len(anchors):,} queries have no anchor: they are left out of recall, not scored as 0."
        ]
    return []
