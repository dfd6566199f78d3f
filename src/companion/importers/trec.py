"""Runs and judgements of evaluations: TREC files, and the layouts of BEIR and MS MARCO.

| | run | judgements | memories | queries |
| --- | --- | --- | --- | --- |
| TREC | query Q0 document rank score tag | query iteration document relevance | a table | a table |
| BEIR | JSON of query: document: score | TSV with a header | corpus.jsonl | queries.jsonl |
| MS MARCO | query document rank, by tabs | as TREC | collection.tsv | queries.tsv |

Judgements are of relevance only. Whether a document is in scope, allowed and in force is unresolved unless you state it
(``holds``), and without that no document is known to be usable, so recall cannot be judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.importers.common import Imported, checked, counted, some
from companion.importers.files import lines, load_json, rows
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
    ran = pd.concat([read_run(path) for path in paths], ignore_index=True)
    rankings, notes = _ordered(ran, order)
    judged = read_qrels(qrels) if qrels is not None else pd.DataFrame(columns=["query_id", "memory_id", "relevance"])
    labels = judged[["query_id", "memory_id"]].astype("str")
    labels["relevant"] = pd.array((judged["relevance"].astype("int64") >= relevance_level).to_numpy(), dtype="boolean")
    for axis in holds:
        labels[axis] = pd.array(np.ones(len(labels), dtype=bool), dtype="boolean")
    sides, lists = _sides(rankings, judged, qrels is not None)
    stored = _extended(memories, "memories", "memory_id", rankings["memory_id"], labels["memory_id"])
    asked = _extended(queries, "queries", "query_id", rankings["query_id"], labels["query_id"])
    silent = sorted(set(labels["query_id"]) - set(rankings["query_id"]))
    work = [(arm, query, pd.NA) for arm in rankings["arm"].unique() for query in silent]
    records = checked(
        Records(
            stored,
            asked.assign(group=asked["group"].fillna(asked["namespace"]).fillna(asked["query_id"])),
            labels,
            rankings,
            pd.DataFrame(work, columns=["arm", "query_id", "candidates_scored"]) if work else None,
            name="trec",
        )
    )
    notes += [*sides, *_label_notes(records, holds, qrels is not None, relevance_level)]
    if memories is None:
        notes.append("The store was made out of these files: what is missing from it cannot be known. Give --memories.")
    return Imported(records, notes, lists=lists, store="log" if memories is None else "given")


def read_run(path: str | PathLike[str]) -> pd.DataFrame:
    """Read one run: TREC, MS MARCO (its arm is the file's name) or the JSON of BEIR."""
    numbered = list(lines(path))
    if not numbered:
        raise InputError(f"{path}: the file is empty; expected lines of query Q0 document rank score tag")
    found: list[tuple[Any, ...]] = []
    faults: list[tuple[int, str]] = []
    name = Path(path).name.split(".")[0]
    if numbered[0][1].lstrip().startswith("{"):
        found = _beir_run(load_json("\n".join(text for _, text in numbered), str(path)), str(path), name)
    three = not found and all(text.count("\t") == 2 and len(_fields(text)) == 3 for _, text in numbered)
    for line, text in [] if found else numbered:
        fields = _fields(text)
        if three:
            fields = [
                fields[0],
                "Q0",
                fields[1],
                fields[2],
                f"{-float(fields[2])}" if _WHOLE.fullmatch(fields[2]) else "",
                name,
            ]
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
            found.append((tag, query, document, int(rank), value, line))
        except ValueError:
            faults.append((line, f"rank {rank!r} and score {score!r} are not a whole and a finite number"))
    refuse(path, faults, "query Q0 document rank score tag")
    columns = ["arm", "query_id", "memory_id", "given_rank", "score", "line"]
    table = pd.DataFrame(found, columns=columns)
    return table.astype({name: "str" for name in columns[:3]}).assign(file=str(path))


def _beir_run(given: Any, path: str, arm: str) -> list[tuple[Any, ...]]:
    """Read a run as BEIR keeps it, which states no ranks: greater scores first, ties as trec_eval has them."""
    found = []
    for query, scores in given.items() if isinstance(given, dict) else ():
        if not isinstance(scores, dict) or not all(
            isinstance(score, int | float) and np.isfinite(score) for score in scores.values()
        ):
            raise InputError(f"{path}, query {query!r}: expected an object of document: finite score")
        best = sorted(scores, key=lambda document: (np.float32(scores[document]), document), reverse=True)
        found += [(arm, query, document, rank, float(scores[document]), 1) for rank, document in enumerate(best, 1)]
    if not found:
        raise InputError(f"{path}: no query in it; expected JSON of query: document: score")
    return found


def read_qrels(path: str | PathLike[str]) -> pd.DataFrame:
    """Read relevance judgements."""
    rows: list[tuple[str, str, int]] = []
    faults: list[tuple[int, str]] = []
    seen: set[tuple[str, str]] = set()
    for line, text in lines(path):
        fields = _fields(text)
        if line == 1 and fields == ["query-id", "corpus-id", "score"]:
            continue  # BEIR
        fields = [fields[0], "0", *fields[1:]] if len(fields) == 3 else fields
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


def refuse(path: str | PathLike[str], faults: Sequence[tuple[int, str]], expected: str) -> None:
    """Raise for the first of several faulty lines, and say how many there are and where the next few stand."""
    if not faults:
        return
    line, what = faults[0]
    others = [str(number) for number, _ in faults[1:11]]
    tail = ""
    if others:
        more = f" and {len(faults) - 1 - len(others):,} more" if len(faults) - 1 > len(others) else ""
        tail = f"; also wrong: {'lines' if len(others) > 1 else 'line'} {', '.join(others)}{more}"
    raise InputError(f"{path}, line {line}: {what}; expected {expected}{tail}")


def _fields(text: str) -> list[str]:
    """Split at white space as C programs know it: an id may hold a no-break space."""
    return _SPACE.split(text.strip(" \t\v\f\r"))


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
    again = table.duplicated(["arm", "query_id", "memory_id"])
    if again.any():
        notes.append(
            f"{counted(int(again.sum()), 'document stands', 'documents stand')} again in a route: kept once, at the "
            "best rank."
        )
        table = table[~again]
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
    shift = "" if start == 1 else f" and counted from 1 instead of {start}"
    tie = f"{counted(ties, 'row ties', 'rows tie')} with another and kept in the file's order (trec_eval may differ)"
    tied = f"; {tie}" if ties else ""
    return f"the ranks of the file agree with its scores and were kept{shift}{tied}"


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


def _extended(path: str | PathLike[str] | None, name: str, key: str, *ids: pd.Series) -> pd.DataFrame:
    """Return the given table, of queries with every id; or a table of ids whose namespace is unknown."""
    new = pd.concat([part.astype("str") for part in ids]).drop_duplicates()
    given = pd.DataFrame({key: new.iloc[:0]}) if path is None else _table(path, name, key)
    if path is None or name == "queries":
        given = pd.concat([given, pd.DataFrame({key: new[~new.isin(given[key])]})], ignore_index=True)
        if "source" in given and given["source"].notna().any():
            given["source"] = given["source"].fillna(given["source"].dropna().iloc[0])
    for column in ("namespace", "group"):
        given[column] = given[column] if column in given else pd.Series(np.nan, index=given.index, dtype="str")
    return given


def _table(path: str | PathLike[str], name: str, key: str) -> pd.DataFrame:
    """Read a table of ours, BEIR's corpus or queries (``_id``, ``text``), or MS MARCO's two columns."""
    kind = Path(path).name.removesuffix(".gz").rpartition(".")[2]
    first = next(lines(path), (1, ""))[1] if kind in ("tsv", "txt", "jsonl") else ""
    if kind in ("tsv", "txt") and key not in first.split("\t"):
        found = [text.partition("\t")[::2] for _, text in lines(path)]
        return pd.DataFrame(found, columns=[key, "text"], dtype="str")
    if kind == "jsonl" and '"_id"' in first:
        held = [row.value for row in rows(path)]
        text = [" ".join(filter(None, (str(item.get("title") or ""), str(item.get("text") or "")))) for item in held]
        return pd.DataFrame({key: [str(item.get("_id")) for item in held], "text": text}, dtype="str")
    return read_table(path, name)


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
