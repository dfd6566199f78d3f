"""What records cannot show, in sentences: which table or column is missing, and what follows from that."""

from __future__ import annotations

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
_NO_RANKINGS = "There are no rankings: recall, feasibility, loss and typed violations of routes cannot be computed."
_NO_LABELS = (
    "There are no labels: only scope is known, from the namespaces. Whether a memory is relevant, allowed and in force "
    "is unresolved for every pair."
)
_OF_LOG = "The store holds exactly what was returned: what else there was to find cannot be known."
_DERIVABLE = (
    "Memories have states, though: with --lifecycle-from-state, a lifecycle that no label gives follows from the state "
    "of the memory and the intent of the query."
)
_NO_ANCHORS = (
    "No query has an anchor (a memory known to be relevant and admissible), so recall, feasibility, loss and "
    "matched-recall bounds cannot be known. What routes hold is reported at a fixed depth instead."
)


def unknown(context: Context, axes: pd.DataFrame) -> list[str]:
    """Say in sentences what the records lack and what follows from that."""
    records, labelled, ranked = context.records, "labels" in context.intake.given, context.has_routes
    told = [(not ranked, _NO_RANKINGS), (not labelled, _NO_LABELS), (context.intake.from_log, _OF_LOG)]
    told += [(ranked, said) for said in _axes(axes, labelled)]
    told += [(_derivable(context, axes), _DERIVABLE), *_recall(context)]
    silent = records.ledger is None or records.ledger["exposed"].isna().all()
    tail = "; below, the top of each route stands in for it." if ranked else "."
    told.append((silent, f"No ledger says which memories reached the prompt{tail}"))
    told += [(getattr(records, table)[column].isna().all(), said) for table, column, said in _COLUMNS]
    return [said for holds, said in told if holds]


def _derivable(context: Context, axes: pd.DataFrame) -> bool:
    """Tell whether states would settle a lifecycle that no label does."""
    lifecycle = axes.set_index("axis").loc["lifecycle"]
    known = context.intake.lifecycle_from_state or not lifecycle["unresolved"] or lifecycle["yes"] + lifecycle["no"]
    return not known and bool(context.store["state"].isin(("current", "superseded", "stale")).any())


def _axes(axes: pd.DataFrame, labelled: bool) -> list[str]:
    said = []
    for axis, yes, no, unresolved in axes.itertuples(index=False):
        if unresolved and not yes + no and (labelled or axis == "scope"):
            what = "memory can be known to be usable, so" if axis == "relevant" else (
                "item can be known to be admissible, so upper bounds stay high and")  # fmt: skip
            said.append(f"No ranked pair has a known value of {axis} ({_AXIS_WORDS[axis]}): no {what} there are no "
                        "anchors.")  # fmt: skip
    return said


def _recall(context: Context) -> list[tuple[bool, str]]:
    if context.per_query is None:
        return []
    anchors = context.per_query.drop_duplicates("query_id")["anchors"]
    without = int((anchors == 0).sum())
    verb = "has no anchor: it is" if without == 1 else "have no anchor: they are"
    some = f"{without:,} of {count(len(anchors), 'query', 'queries')} {verb} left out of recall, not scored as 0."
    return [(without == len(anchors), _NO_ANCHORS), (0 < without < len(anchors), some)]
