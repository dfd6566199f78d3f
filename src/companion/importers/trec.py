"""TREC run and qrels files.

A complete example. ``run.txt`` (query, ``Q0``, document, rank, score, tag)::

    301 Q0 doc-a 1 9.5 bm25
    301 Q0 doc-b 2 9.5 bm25
    302 Q0 doc-a 1 4.0 bm25

and ``qrels.txt`` (query, iteration, document, relevance)::

    301 0 doc-b 1
    301 0 doc-c 0
    303 0 doc-a 2

become three memories, queries 301 to 303, three ranked rows of arm ``bm25``, and three labels:

>>> from companion.importers import trec                                                    # doctest: +SKIP
>>> made = trec.read("run.txt", "qrels.txt", holds=("scope", "policy", "lifecycle"))        # doctest: +SKIP
>>> made.notes                                                                              # doctest: +SKIP
['bm25: the ranks of the file agree with its scores and were kept; ...',
 '1 query is in the run but not in the qrels: recall cannot be judged for it (302).',
 '1 query is in the qrels but not in the run: it counts as an empty route (303).', ...]

Qrels judge relevance only. Whether a document is in scope, allowed and in force is unresolved unless you state it
(``holds``), and without that no document is known to be usable, so recall cannot be judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.importers.common import Imported, refuse, some, text_lines
from companion.tables import Records, read_table
from companion.tables.problems import CONTROL

_SPACE = re.compile(r"[ \t\v\f\r]+")
_WHOLE = re.compile(r"[+-]?[0-9]+")
Order = Literal["auto", "file", "trec_eval", "id_ascending"]
ORDERS: tuple[Order, ...] = ("auto", "file", "trec_eval", "id_ascending")
_ORDER_WORDS = {
    "file": "documents are in the order of the file's rank column; scores were not used",
    "trec_eval": "as trec_eval does, the rank column was ignored: documents are sorted by score (single precision), "
    "equal "
    "scores by document id, descending",
    "id_ascending": "the rank column was ignored: documents are sorted by score, equal scores by document id, "
    "ascending",
}


def read(
    runs: str | PathLike[str] | Sequence[str | PathLike[str]],
    qrels: str | PathLike[str] | None = None,
    *,
    order: Order = "auto",
    relevance_level: int = 1,
    holds: Sequence[str] = (),
    memories: str | PathLike[str] | None = None,
    queries: str | PathLike[str] | None = None,
) -> Imported:
    """Read TREC runs, and qrels if there are any."""
    if order not in ORDERS:
        raise InputError(f"order {order!r}: expected one of {', '.join(ORDERS)}")
    holds = logic.check_axes(holds) if holds else ()
    paths = [runs] if isinstance(runs, str | PathLike) else list(runs)
    rows = pd.concat([read_run(path) for path in paths], ignore_index=True)
    _refuse_twice(rows)
    rankings, notes = _ordered(rows, order)
    judged = read_qrels(qrels) if qrels is not None else pd.DataFrame(columns=["query_id", "memory_id", "relevance"])
    labels = judged[["query_id", "memory_id"]].astype("str")
    labels["relevant"] = pd.array((judged["relevance"].astype("int64") >= relevance_level).to_numpy(), dtype="boolean")
    for axis in holds:
        labels[axis] = pd.array(np.ones(len(labels), dtype=bool), dtype="boolean")
    sides, lists = _sides(rankings, judged, qrels is not None)
    records = Records(
        _extended(memories, "memories", "memory_id", rankings["memory_id"], labels["memory_id"]),
        _extended(queries, "queries", "query_id", rankings["query_id"], labels["query_id"], group=True),
        labels,
        rankings,
        name="trec",
    ).check()
    notes += [*sides, *_label_notes(records, holds, qrels is not None, relevance_level)]
    return Imported(records, notes, lists=lists)


def read_run(path: str | PathLike[str]) -> pd.DataFrame:
    """Read one run file."""
    rows: list[tuple[Any, ...]] = []
    faults: list[tuple[int, str]] = []
    for line, text in text_lines(path):
        fields = _fields(text)
        if CONTROL.search("".join(fields)):
            faults.append((line, "a control character"))
            continue
        if len(fields) != 6:
            faults.append((line, f"{len(fields)} fields"))
            continue
        query, _, document, rank, score, tag = fields
        try:
            value = float(score)
            if not np.isfinite(value) or "_" in score or not _WHOLE.fullmatch(rank):  # Python would read 1_000
                raise ValueError
            rows.append((tag, query, document, int(rank), value, line))
        except ValueError:
            faults.append((line, f"rank {rank!r} and score {score!r} are not a whole and a finite number"))
    refuse(path, faults, "query Q0 document rank score tag")
    if not rows:
        raise InputError(f"{path}: the file is empty; expected lines of query Q0 document rank score tag")
    columns = ["arm", "query_id", "memory_id", "given_rank", "score", "line"]
    table = pd.DataFrame(rows, columns=columns)
    return table.astype({name: "str" for name in columns[:3]}).assign(file=str(path))


def read_qrels(path: str | PathLike[str]) -> pd.DataFrame:
    """Read relevance judgements."""
    rows: list[tuple[str, str, int]] = []
    faults: list[tuple[int, str]] = []
    seen: set[tuple[str, str]] = set()
    for line, text in text_lines(path):
        fields = _fields(text)
        if CONTROL.search("".join(fields)):
            faults.append((line, "a control character"))
        elif len(fields) != 4 or not _WHOLE.fullmatch(fields[3]):
            faults.append((line, f"{text.strip()[:60]!r}"))
        elif (fields[0], fields[2]) in seen:
            faults.append((line, f"document {fields[2]!r} is judged twice for query {fields[0]!r}"))
        else:
            seen.add((fields[0], fields[2]))
            rows.append((fields[0], fields[2], int(fields[3])))
    refuse(path, faults, "query iteration document relevance, each pair once")
    return pd.DataFrame(rows, columns=["query_id", "memory_id", "relevance"]).astype(
        {"query_id": "str", "memory_id": "str", "relevance": "int64"}
    )


def _fields(text: str) -> list[str]:
    """Split at white space as C programs know it: an id may hold a no-break space."""
    return _SPACE.split(text.strip(" \t\v\f\r"))


def _refuse_twice(rows: pd.DataFrame) -> None:
    again = rows.duplicated(["arm", "query_id", "memory_id"])
    if again.any():
        row = rows[again].iloc[0]
        raise InputError(
            f"{row['file']}, line {row['line']}: document {row['memory_id']!r} stands twice in the route of arm "
            f"{row['arm']!r}, query {row['query_id']!r}; expected every document once ({int(again.sum()):,} such lines)"
        )


def _ordered(rows: pd.DataFrame, order: Order) -> tuple[pd.DataFrame, list[str]]:
    """Order every arm by the rule, number the ranks from 1, and say what was done."""
    parts, notes = [], []
    for arm, part in rows.groupby("arm", sort=False):
        wrong = _disagreeing(part)
        rule: str = order
        if order == "auto":
            rule = "trec_eval" if wrong else "file"
        if rule == "file":
            _refuse_repeated_ranks(part)
        parts.append(_sorted(part, rule))
        notes.append(f"{arm}: {_said(part, order, rule, wrong)}.")
    table = pd.concat(parts, ignore_index=True)
    table["rank"] = table.groupby(["arm", "query_id"], sort=False).cumcount() + 1
    return table[["arm", "query_id", "rank", "memory_id", "score"]], notes


def _disagreeing(part: pd.DataFrame) -> list[str]:
    """Return the queries of an arm whose ranks repeat, or in whose rank order a score rises."""
    rows = part.sort_values(["query_id", "given_rank"], kind="stable")
    same = rows["query_id"].eq(rows["query_id"].shift())
    rises = same & (rows["score"] > rows["score"].shift())
    repeats = same & (rows["given_rank"] == rows["given_rank"].shift())
    return list(dict.fromkeys(rows.loc[rises | repeats, "query_id"]))


def _sorted(part: pd.DataFrame, rule: str) -> pd.DataFrame:
    if rule == "file":
        return part.sort_values(["query_id", "given_rank"], kind="stable")
    if rule == "trec_eval":
        # trec_eval holds scores in single precision: what is equal there is a tie.
        keyed = part.assign(key=part["score"].to_numpy(np.float32))
        return keyed.sort_values(["query_id", "key", "memory_id"], ascending=[True, False, False], kind="stable")
    return part.sort_values(["query_id", "score", "memory_id"], ascending=[True, False, True], kind="stable")


def _said(part: pd.DataFrame, order: Order, rule: str, wrong: list[str]) -> str:
    if order != "auto":
        return _ORDER_WORDS[rule]
    if wrong:
        queries = "query" if len(wrong) == 1 else "queries"
        return (
            f"the ranks of the file disagree with its scores in {len(wrong):,} {queries} ({some(wrong)}); "
            f"{_ORDER_WORDS['trec_eval']}"
        )
    keys = part.assign(key=part["score"].to_numpy(np.float32))
    ties = int(keys.duplicated(["query_id", "key"]).sum())
    start = int(part["given_rank"].min())
    counted = "" if start == 1 else f" and counted from 1 instead of {start}"
    tied = f"; {ties:,} rows tie with another, and stay in the file's order (trec_eval may differ)" if ties else ""
    return f"the ranks of the file agree with its scores and were kept{counted}{tied}"


def _refuse_repeated_ranks(part: pd.DataFrame) -> None:
    again = part.duplicated(["query_id", "given_rank"])
    if again.any():
        row = part[again].iloc[0]
        raise InputError(
            f"{row['file']}, line {row['line']}: rank {row['given_rank']} stands twice in the route of arm "
            f"{row['arm']!r}, "
            f"query {row['query_id']!r}; expected every rank once, or another order than file"
        )


def _sides(rankings: pd.DataFrame, judged: pd.DataFrame, given: bool) -> tuple[list[str], dict[str, list[str]]]:
    """List the queries that only one of the two files knows."""
    if not given:
        return [], {}
    ran, known = set(rankings["query_id"]), set(judged["query_id"])
    only_run = [query for query in dict.fromkeys(rankings["query_id"]) if query not in known]
    only_qrels = [query for query in dict.fromkeys(judged["query_id"]) if query not in ran]
    notes = []
    if only_run:
        be, them = ("is", "it") if len(only_run) == 1 else ("are", "them")
        notes.append(
            f"{_queries(only_run)} {be} in the run but not in the qrels: recall cannot be judged for {them} "
            f"({some(only_run)})."
        )
    if only_qrels:
        be, count = (
            ("is", "it counts as an empty route") if len(only_qrels) == 1 else ("are", "they count as empty routes")
        )
        notes.append(f"{_queries(only_qrels)} {be} in the qrels but not in the run: {count} ({some(only_qrels)}).")
    return notes, {"queries_only_in_run": only_run, "queries_only_in_qrels": only_qrels}


def _queries(ids: list[str]) -> str:
    return f"{len(ids):,} {'query' if len(ids) == 1 else 'queries'}"


def _extended(
    path: str | PathLike[str] | None, name: str, key: str, *ids: pd.Series, group: bool = False
) -> pd.DataFrame:
    """Return the given table with every id, or a table of ids whose namespace is unknown."""
    known = read_table(path, name) if path is not None else pd.DataFrame({key: pd.Series(dtype="str")})
    new = pd.concat([part.astype("str") for part in ids]).drop_duplicates()
    new = new[~new.isin(known[key])]
    table = pd.DataFrame({key: new.to_numpy()}, dtype="str")
    if group:
        table["group"] = table[key]  # without a namespace every query moves on its own
    if "source" in known and len(known):
        table["source"] = known["source"].iloc[0]
    joined = pd.concat([known, table], ignore_index=True)
    return (
        joined if "namespace" in joined else joined.assign(namespace=pd.Series(np.nan, index=joined.index, dtype="str"))
    )


def _label_notes(records: Records, holds: Sequence[str], judged: bool, level: int) -> list[str]:
    if not judged:
        return ["There are no qrels: no label is known, so recall cannot be judged."]
    notes = [f"A judgement of {level} or more counts as relevant; a pair that was not judged is unresolved."]
    if holds:
        notes.append(
            f"You state that {', '.join(holds)} {'holds' if len(holds) == 1 else 'hold'} for every judged document."
        )
    open_axes = [axis for axis in logic.AXES if axis not in holds]
    if (
        "scope" in open_axes
        and records.memories["namespace"].notna().any()
        and records.queries["namespace"].notna().any()
    ):
        open_axes.remove("scope")
        notes.append("Scope follows from the namespaces of the tables given.")
    if open_axes:
        notes.append(
            f"Nothing says whether {', '.join(open_axes)} {'holds' if len(open_axes) == 1 else 'hold'}: unresolved, "
            f"so no "
            "document is known to be usable and recall cannot be judged. State it if you know it (--holds)."
        )
    return notes
