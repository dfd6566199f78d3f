"""The audit itself: known failures, the protocol's numbers for records as they are, and what they cannot show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from companion import logic, scoring
from companion.audit.checks import headline, run_checks
from companion.audit.context import ROUTE, Context, Finding, known, listed
from companion.audit.intake import Intake, take_in
from companion.audit.narrowing import macro_width, narrowing, over_arms
from companion.audit.unknown import unknown
from companion.bootstrap import MACRO, Resampling, estimate
from companion.errors import InputError
from companion.tables import Records

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
    resampling : Resampling
        Of the intervals.
    lifecycle_from_state : bool
        Derive lifecycle labels that are not given from state, intent and ``valid_until``.
    shared : sequence of str
        Namespaces whose memories are meant for everybody.
    """

    target_recall: float | str = 0.8
    top_k: int | None = None
    items: int | None = None
    infeasibility_cost: float = 1.0
    reference: str | None = None
    resampling: Resampling = field(default_factory=Resampling)
    lifecycle_from_state: bool = False
    shared: Sequence[str] = ()

    def scoring(self) -> dict[str, Any]:
        """Return what ``scoring.score_routes`` takes."""
        names = ("target_recall", "top_k", "infeasibility_cost")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Audit:
    """Everything an audit found.

    Attributes
    ----------
    intake : Intake
        The records, checked.
    options : Options
    checks : list of Finding
        Failures looked for: found (by severity), unknown, clear.
    unknown : list of str
        What these records cannot show, one sentence each.
    axes : DataFrame
        ``axis``, ``yes``, ``no``, ``unresolved`` (int64): distinct ranked pairs by what is known of them.
    per_query : DataFrame or None
        Scores, as from ``scoring.score_routes``; None without rankings.
    summary : scoring.Summary or None
        Estimates and intervals; None without anchors.
    crossing : DataFrame or None
        What reached the prompt, as ``arm``, ``metric``, ``estimate``, ``low``, ``high``; None where nothing did.
    crossing_from : {"ledger", "rankings", ""}
        Where ``crossing`` comes from.
    steps : DataFrame or None
        Counts per arm from the ledger: retrieved, exposed, and exposed by status.
    worst : DataFrame
        Every arm and query with something wrong, worst first: violations, loss, ids and reasons.
    narrowing : DataFrame
        Effect of settling each unresolved label, as from ``narrowing.narrowing``.
    widths : Series or None
        Macro bound width of each arm.
    """

    intake: Intake
    options: Options
    checks: list[Finding]
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
    def store(self) -> pd.DataFrame:
        """The memories without ghosts."""
        return self.records.memories[~self.records.memories["memory_id"].isin(self.intake.ghosts)]

    @property
    def found(self) -> list[Finding]:
        """The checks that found their failure, by severity."""
        return [check for check in self.checks if check.outcome == "found"]

    @property
    def headline(self) -> str:
        """The first line: the worst finding with its shares, or that nothing was found."""
        return headline(self.checks)

    def __getitem__(self, kind: str) -> Finding:
        """Return the check of one kind."""
        return next(check for check in self.checks if check.kind == kind)

    def unresolved(self) -> pd.DataFrame:
        """Return the unresolved labels with their effects added over arms."""
        return over_arms(self.narrowing)

    def with_texts(self, evidence: pd.DataFrame) -> pd.DataFrame:
        """Put texts in the place of a table's ids, each followed by its id, where there are texts."""
        table = evidence.copy()
        for frame, key, name in ((self.records.queries, "query_id", "question"),
                                 (self.records.memories, "memory_id", "memory")):  # fmt: skip
            if key in table and frame["text"].notna().any():
                text = table[key].map(frame.set_index(key)["text"].str.slice(0, 1000)).astype("str")
                table[key] = (text + " (" + table[key] + ")").where(text.notna(), table[key])
                table = table.rename(columns={key: name})
        return table


def audit(source: str | Path | Records, options: Options | None = None) -> Audit:
    """Run the checks and the protocol on somebody's own records.

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
    intake = take_in(source, options.lifecycle_from_state, options.shared)
    records = intake.records
    arms = [] if records.rankings is None else list(dict.fromkeys(records.rankings["arm"]))
    if options.reference is not None and options.reference not in arms:
        raise InputError(f"reference {options.reference!r} is not among the arms; they are {', '.join(arms) or 'none'}")
    per_query = scoring.score_routes(records, **options.scoring()) if arms else None
    context = Context(intake, options.top_k, per_query)
    anchored = per_query is not None and bool((per_query["anchors"] > 0).any())
    summary = None
    if per_query is not None and anchored:
        summary = scoring.summarise(per_query, reference=options.reference, resampling=options.resampling)
    crossing, origin = _crossing(context, options)
    axes = _axes(context)
    made = Audit(
        intake, options, run_checks(context), unknown(context, axes), axes, per_query, summary, crossing, origin,
        _steps(records),
    )  # fmt: skip
    if per_query is None:
        return made
    open_ = narrowing(records, per_query, **options.scoring())
    widths = macro_width(per_query) if anchored else None
    return replace(made, worst=worst_queries(context), narrowing=open_, widths=widths)


# --- what reached the prompt ---------------------------------------------------------------------------------------

SHARES = ("admissible", "unresolved", "inadmissible", "wrong_scope", "policy_disallowed", "lifecycle_incompatible")


def _crossing(context: Context, options: Options) -> tuple[pd.DataFrame | None, str]:
    """Say what reached the prompt: from the ledger where it knows, otherwise from the top of the routes."""
    ledger, records = context.records.ledger, context.records
    if ledger is not None and not ledger["exposed"].isna().all():
        held = context.exposures.drop(columns="exposed").reset_index(drop=True)
        return (_prompt_shares(records, held, options.resampling), "ledger") if len(held) else (None, "ledger")
    if not context.has_routes:
        return None, ""
    depth = options.items or options.top_k or int(context.rows["rank"].max())
    assert records.rankings is not None
    top = records.rankings[records.rankings["rank"] <= depth].reset_index(drop=True)
    return _prompt_shares(records, top, options.resampling), "rankings"


def _prompt_shares(records: Records, rows: pd.DataFrame, resampling: Resampling) -> pd.DataFrame:
    """Average what prompts hold over queries, then over sources; every share has all items below the line."""
    held = scoring.profile(records, rows=rows)
    held = held.assign(
        admissible=1 - held["upper_bound"], unresolved=held["upper_bound"] - held["lower_bound"],
        inadmissible=held["lower_bound"],
    )  # fmt: skip
    tidy = estimate(held, list(SHARES), by=["arm"], unit="query_id", resampling=resampling)
    macro = tidy[tidy["source"] == MACRO]
    order = {arm: place for place, arm in enumerate(dict.fromkeys(rows["arm"]))}
    macro = macro.sort_values("arm", key=lambda names: names.map(order), kind="stable", ignore_index=True)
    made = macro[["arm", "metric", "estimate", "low", "high"]]
    made.attrs.update(tidy.attrs)
    return made


def _steps(records: Records) -> pd.DataFrame | None:
    """Count the ledger's steps per arm; unresolved is counted on its own."""
    if records.ledger is None or records.ledger.empty:
        return None
    rows = scoring.label_ranked(records, records.ledger)
    exposed, status = known(rows["exposed"], True), rows["admissible"]
    flags = {
        "retrieved": known(rows["retrieved"], True),
        "exposed": exposed,
        "exposed_admissible": exposed & known(status, True),
        "exposed_unresolved": exposed & status.isna(),
        "exposed_inadmissible": exposed & known(status, False),
        "exposure_not_recorded": rows["exposed"].isna(),
    }
    return pd.DataFrame(flags).groupby(rows["arm"], sort=False).sum().astype("int64").reset_index()


def _axes(context: Context) -> pd.DataFrame:
    names = ("relevant", *logic.AXES)
    if not context.has_routes:
        return pd.DataFrame({"axis": names, "yes": 0, "no": 0, "unresolved": 0})
    pairs = context.rows.drop_duplicates(["query_id", "memory_id"])
    counts = [(a, known(pairs[a], True).sum(), known(pairs[a], False).sum(), pairs[a].isna().sum()) for a in names]
    return pd.DataFrame(counts, columns=["axis", "yes", "no", "unresolved"])


# --- the worst queries ---------------------------------------------------------------------------------------------


def worst_queries(context: Context) -> pd.DataFrame:
    """List every route with something wrong, worst first, counting everything that was returned.

    ``arm``, ``query_id``, ``loss`` (NaN without anchors), ``feasible`` (Int64), ``evidence_recall``, ``looked_at``
    (items returned), ``violations`` (known), ``unresolved``, ``reasons``.
    """
    assert context.per_query is not None
    rows = context.rows
    bad, open_ = known(rows["admissible"], False), rows["admissible"].isna()
    counts = rows.assign(violations=bad, unresolved=open_).groupby(ROUTE)
    table = context.per_query[[*ROUTE, "loss", "feasible", "evidence_recall", "anchors"]].join(
        counts.agg(looked_at=("rank", "size"), violations=("violations", "sum"), unresolved=("unresolved", "sum")),
        on=ROUTE,
    )
    numbers = ["looked_at", "violations", "unresolved"]
    table[numbers] = table[numbers].fillna(0).astype("int64")
    table = table[(table["violations"] > 0) | (table["unresolved"] > 0) | (table["feasible"] == 0).fillna(False)]
    table = table.sort_values(
        ["violations", "loss", "unresolved", *ROUTE], ascending=[False, False, False, True, True], ignore_index=True
    )
    table["reasons"] = _reasons(table, rows[bad], context)
    return table.drop(columns="anchors")


def _reasons(table: pd.DataFrame, bad: pd.DataFrame, context: Context) -> pd.Series:
    place = pd.MultiIndex.from_frame(table[ROUTE])
    missed, named = (names.reindex(place) for names in (_missed(context), _violations(bad)))
    texts: list[str] = []
    rows: Any = zip(table.itertuples(), missed, named, strict=True)
    for row, miss, names in rows:
        infeasible = pd.notna(row.feasible) and row.feasible == 0
        parts = (
            (f"misses the evidence: {miss}" if isinstance(miss, str) else "misses the target") if infeasible else "",
            f"{row.violations} of {row.looked_at} may not be used: {names}" if isinstance(names, str) else "",
            f"{row.unresolved} unresolved" if row.unresolved else "",
            "no known usable memory, so recall cannot be judged" if row.anchors == 0 else "",
        )
        texts.append("; ".join(part for part in parts if part))
    return pd.Series(texts, index=table.index, dtype="str")


def _missed(context: Context) -> pd.Series:
    """Name the anchors that each route lacks; interchangeable memories count as one, under their anchor id."""
    anchors = scoring.anchors_of(context.records)
    anchors["anchor"] = anchors["anchor_id"].fillna(anchors["memory_id"])
    assert context.per_query is not None
    wanted = anchors.merge(context.per_query[ROUTE], on="query_id")
    hit = wanted.merge(context.rows[[*ROUTE, "memory_id", "rank"]], how="left", on=[*ROUTE, "memory_id"])
    best = hit.groupby([*ROUTE, "anchor"], sort=False)["rank"].min()
    lost = best[best.isna()].reset_index()
    return lost.groupby(ROUTE, sort=False)["anchor"].agg(lambda names: listed(names, _NAMED))


def _violations(bad: pd.DataFrame) -> pd.Series:
    """Name the violating items of each route with the axes that forbid them."""
    if bad.empty:
        return pd.Series(dtype="str", index=pd.MultiIndex.from_arrays([[], []], names=ROUTE))
    axes = logic.exclusion_reasons(bad["scope"], bad["policy"], bad["lifecycle"]).map(", ".join)
    named = bad.assign(name=bad["memory_id"] + " (" + axes.astype("str") + ")")
    return named.groupby(ROUTE, sort=False)["name"].agg(lambda names: listed(names, _NAMED))
