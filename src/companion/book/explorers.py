"""Routes whose labels a reader settles: each ranked memory is a square, and the bounds follow every click."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from companion import scoring
from companion.book.palette import arm_name
from companion.book.render import Bundle, asset
from companion.book.tables import check_name, inline_markdown
from companion.book.text import number
from companion.errors import InputError

if TYPE_CHECKING:
    from companion.tables import Records

_CODES = {True: "1", False: "0"}
_MARKS = {"1": "✓", "0": "✕", "?": "?"}
_WORDS = {"1": "admissible", "0": "inadmissible", "?": "unresolved"}


def settle(
    records: Records,
    per_query: pd.DataFrame,
    *,
    queries: Sequence[str],
    name: str,
    caption: str,
    depth: int = 20,
    notes: Mapping[tuple[str, str], str] | None = None,
) -> Bundle:
    """Build routes of several queries, one to be chosen, whose labels can be settled to 1, 0 or left open.

    Parameters
    ----------
    records : Records
        With rankings of the arms to compare.
    per_query : DataFrame
        What ``score_routes`` made of them: it says where each matched prefix ends.
    queries : sequence of str
        The queries on offer; the first is shown at the start, and where no script runs.
    depth : int
        Ranks shown.
    notes : mapping of (query_id, memory_id) to str, optional
        Why a label is open.
    """
    check_name(name)
    items = scoring.label_ranked(records)
    items = items[items["query_id"].isin(queries) & (items["rank"] <= depth)]
    texts = records.memories.set_index("memory_id")
    order = {memory: place for place, memory in enumerate(dict.fromkeys(items["memory_id"]))}
    prefix = per_query.set_index(["query_id", "arm"])["matched_prefix"]
    asked = records.queries.set_index("query_id")
    cases = []
    for query in queries:
        if query not in asked.index:
            raise InputError(f"query {query!r}: no routes, because the records do not hold it")
        routes = []
        for arm, rows in items[items["query_id"] == query].groupby("arm", sort=False):
            read = prefix.get((query, arm))
            routes.append(
                {
                    "arm": arm_name(str(arm)),
                    "prefix": 0 if pd.isna(read) else int(read),
                    "labels": "".join(_CODES.get(value, "?") for value in rows["admissible"].astype(object)),
                    "needed": "".join("1" if value is True else "0" for value in rows["usable"].astype(object)),
                    "memories": [order[memory] for memory in rows["memory_id"]],
                    "why": [_why(row, (notes or {}).get((query, str(row.memory_id)), "")) for row in rows.itertuples()],
                }
            )
        cases.append({"question": _text(asked.loc[query].get("text"), query), "routes": routes})
    if not cases or not cases[0]["routes"]:
        raise InputError("no routes to show: expected queries that the rankings hold")
    memories = [_text(texts["text"].get(memory), memory) if "text" in texts else memory for memory in order]
    data = json.dumps({"cases": cases, "memories": memories}, ensure_ascii=False, separators=(",", ":"))
    held = data.replace("<", "\\u003c")
    page = (
        f'<figure class="companion-figure companion-settle" id="fig-{name}" data-companion="settle">'
        f'<div class="companion-controls" hidden></div><div class="companion-routes">{_drawn(cases[0], memories)}</div>'
        f'<p class="companion-read" hidden></p><figcaption>{inline_markdown(caption)}</figcaption>'
        f'<script type="application/json" class="companion-spec">{held}</script>'
        f"<script>{asset('settle.js')}</script></figure>"
    )
    return Bundle({"text/html": page, "text/plain": f"[Figure: {caption}]"})


def _text(value: Any, otherwise: str) -> str:
    return otherwise if value is None or pd.isna(value) else str(value)


def _why(row: Any, note: str) -> str:
    """Say which axes are against an item, or leave it open."""
    values = {axis: getattr(row, axis) for axis in ("scope", "policy", "lifecycle")}
    opened = [axis for axis, value in values.items() if pd.isna(value)]
    against = [axis for axis, value in values.items() if axis not in opened and not value]
    if against:
        return f"{' and '.join(against)}: no"
    return f"{' and '.join(opened)}: open{f' ({note})' if note else ''}" if opened else ""


def bounds_in_words(labels: str) -> str:
    """Say what the labels of a matched prefix allow, as settle.js does: bounds, known rate, coverage."""
    size, bad, unknown = len(labels), labels.count("0"), labels.count("?")
    if not size:
        return "not enough found: no matched prefix"
    known = number(bad / (size - unknown)) if size > unknown else "undefined"
    return (
        f"{bad} of {size} violate, {unknown} open: share between {number(bad / size)} and "
        f"{number((bad + unknown) / size)}; known rate {known}, coverage {number(1 - unknown / size)}"
    )


def _drawn(case: Mapping[str, Any], memories: Sequence[str]) -> str:
    """Return one query's routes as they stand without a script."""
    parts = [f'<p class="companion-asked">{html.escape(case["question"])}</p>']
    for route in case["routes"]:
        squares = "".join(
            f'<li><span class="companion-square" data-label="{label}"{" data-needed" if needed == "1" else ""}'
            f'{" data-past" if rank > route["prefix"] else ""} title="{html.escape(memories[memory], quote=True)}">'
            f'{_MARKS[label]}<span class="companion-sr"> {_WORDS[label]}</span></span></li>'
            for rank, (label, needed, memory) in enumerate(
                zip(route["labels"], route["needed"], route["memories"], strict=True), 1
            )
        )
        words = bounds_in_words(route["labels"][: route["prefix"]])
        parts.append(f'<p class="companion-arm">{html.escape(route["arm"])}</p><ol>{squares}</ol><p>{words}</p>')
    return "".join(parts)
