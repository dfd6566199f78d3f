"""What records cannot show, in sentences: which table or column is missing, and what follows from that."""

from __future__ import annotations

from typing import Any

import pandas as pd

from companion.audit.context import Context, count

_AXIS_WORDS = {
    "relevant": "whether a memory helps to answer",
    "scope": "whether it belongs to who asks",
    "policy": "whether it may be used for this purpose",
    "lifecycle": "whether it is still in force",
}
_COLUMNS = (
    ("queries", "principal", "Queries carry no principal: whether an empty one acts as a wildcard cannot be seen."),
    ("queries", "intent", "Queries carry no intent: every question counts as about the present."),
    ("memories", "text", "Memories carry no text: near duplicates of outdated facts cannot be recognised."),
    ("memories", "time", "Memories carry no time: memories written after a question may be counted as left behind."),
)


def unknown(context: Context, axes: pd.DataFrame) -> list[str]:
    """Say in sentences what the records lack and what follows from that."""
    records, given, ranked = context.records, context.intake.given, context.has_routes
    said = []
    if not ranked:
        said.append(
            "There are no rankings: recall, feasibility, loss and typed violations of routes cannot be computed."
        )
    if "labels" not in given:
        said.append(
            "There are no labels: only scope is known, from the namespaces. Whether a memory is relevant, allowed and "
            "in force is unresolved for every pair."
        )
    if context.intake.from_log:
        said.append("The store holds exactly what was returned: what else there was to find cannot be known.")
    said += _axes(axes, "labels" in given) if ranked else []
    said += _derivable(context, axes) + _recall(context)
    if records.ledger is None or records.ledger["exposed"].isna().all():
        tail = "; below, the top of each route stands in for it." if ranked else "."
        said.append(f"No ledger says which memories reached the prompt{tail}")
    for table, column, what in _COLUMNS:
        frame = getattr(records, table)
        if column not in frame or frame[column].isna().all():
            said.append(what)
    return said


def _derivable(context: Context, axes: pd.DataFrame) -> list[str]:
    """Name the option that reads the lifecycle from states, where that would settle what no label does."""
    lifecycle = axes.set_index("axis").loc["lifecycle"]
    asked = context.intake.lifecycle_from_state or not lifecycle["unresolved"] or lifecycle["yes"] + lifecycle["no"]
    if asked or not context.store["state"].isin(("current", "superseded", "stale")).any():
        return []
    return [
        "Memories have states, though: with --lifecycle-from-state, a lifecycle that no label gives follows from the "
        "state of the memory and the intent of the query."
    ]


def _axes(axes: pd.DataFrame, labelled: bool) -> list[str]:
    said = []
    rows: Any = axes.itertuples()
    for row in rows:
        total = row.yes + row.no + row.unresolved
        if total and row.unresolved == total and (labelled or row.axis == "scope"):
            tail = (
                "no memory can be known to be usable, so there are no anchors."
                if row.axis == "relevant"
                else "no item can be known to be admissible, so upper bounds stay high and there are no anchors."
            )
            said.append(f"No ranked pair has a known value of {row.axis} ({_AXIS_WORDS[row.axis]}): {tail}")
    return said


def _recall(context: Context) -> list[str]:
    if context.per_query is None:
        return []
    anchors = context.per_query.drop_duplicates("query_id")["anchors"]
    without = int((anchors == 0).sum())
    if without == len(anchors):
        return [
            "No query has an anchor (a memory known to be relevant and admissible), so recall, feasibility, loss and "
            "matched-recall bounds cannot be known. What routes hold is reported at a fixed depth instead."
        ]
    if without:
        verb = "has no anchor: it is" if without == 1 else "have no anchor: they are"
        return [f"{without:,} of {count(len(anchors), 'query', 'queries')} {verb} left out of recall, not scored as 0."]
    return []
