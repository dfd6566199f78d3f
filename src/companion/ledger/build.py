"""Build, check and link the ledger of ranked routes (Protocol section 7)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from companion import logic
from companion.disclosure import disclosed, normalise
from companion.errors import InputError
from companion.scoring import label_ranked
from companion.tables import Records, validate

KEY = ["query_id", "arm", "memory_id"]
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class PromptBudget:
    """How much of a route reaches the prompt.

    Parameters
    ----------
    items : int, optional
        At most so many memories; no limit by default.
    tokens : int, optional
        At most so many tokens of memory text in all; no limit by default.
    overflow : {"stop", "skip"}
        What happens at a memory that no longer fits the token limit: the prompt ends there, or that memory is left
        out and later ones may still fit.

    Raises
    ------
    InputError
        A negative limit or an unknown word.
    """

    items: int | None = None
    tokens: int | None = None
    overflow: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        for name in ("items", "tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"prompt budget: {name} is {value}; expected 0 or more")
        if self.overflow not in ("stop", "skip"):
            raise InputError(f"prompt budget: overflow is {self.overflow!r}; expected stop or skip")


def count_tokens(text: Any) -> int:
    """Count words and punctuation marks: a stand-in for a model's own tokeniser, usually a little lower."""
    return len(_TOKEN.findall(text)) if isinstance(text, str) else 0


def build(
    records: Records,
    budget: PromptBudget | None = None,
    gates: Sequence[str] | Mapping[str, pd.DataFrame] = (),
    token_counts: Mapping[str, int] | None = None,
) -> pd.DataFrame:
    """Make the ledger that rankings, gates and a prompt budget imply (Protocol section 7).

    Parameters
    ----------
    records : Records
        Checked, with rankings.
    budget : PromptBudget, optional
        No limit by default: everything that passes the gates is exposed.
    gates : sequence of axis names, or mapping of name to DataFrame
        Applied in order. An axis name (``scope``, ``policy``, ``lifecycle``) is the released-metadata gate of that
        axis: it stops what the labels say is 0. A table holds a gate's own decisions: ``query_id``, ``memory_id``,
        ``allowed`` (boolean), and ``arm`` where they depend on it. Only a known 0 stops a memory; an unresolved or
        absent decision lets it pass and stays visible as ``<NA>``.
    token_counts : mapping of memory_id to int, optional
        Lengths in a model's own tokens; by default :func:`count_tokens` of the text.

    Returns
    -------
    DataFrame
        One row per retrieved memory, in route order: ``query_id``, ``arm``, ``memory_id``, ``rank`` (int64),
        ``score``, boolean ``stored`` and ``retrieved``, one boolean ``gate_<name>`` per gate, boolean ``passed``
        and ``exposed``, ``tokens`` (int64), and ``stopped_by`` (``gate_<name>``, ``budget``, or missing).

    Raises
    ------
    InputError
        There are no rankings, a ranked memory was never stored, a gate is unknown or repeats a decision, or a
        memory has no token count.
    """
    if records.rankings is None:
        raise InputError("ledger: the records hold no rankings; expected routes to build it from")
    _refuse_unstored(records.rankings, records.memories, "rankings", "retrieved")
    rows = label_ranked(records).sort_values(["arm", "query_id", "rank"], kind="stable", ignore_index=True)
    ledger = rows[[*KEY, "rank", "score"]].copy()
    ledger["stored"] = pd.array([True] * len(rows), dtype="boolean")
    ledger["retrieved"] = ledger["stored"]
    stopped = np.full(len(rows), None, dtype=object)
    for name, decision in _decisions(rows, gates).items():
        ledger[f"gate_{name}"] = decision
        # Only a known 0 stops; the comparison is with False, so <NA> passes.
        refuses = decision.eq(False).fillna(False).to_numpy(bool)
        stopped[refuses & (stopped == None)] = f"gate_{name}"  # noqa: E711 - element-wise
    passed = stopped == None  # noqa: E711
    ledger["passed"] = pd.array(passed, dtype="boolean")
    ledger["tokens"] = _tokens(rows["memory_id"], records.memories, token_counts)
    shown = _fits(ledger, passed, budget or PromptBudget())
    ledger["exposed"] = pd.array(shown, dtype="boolean")
    stopped[passed & ~shown] = "budget"
    ledger["stopped_by"] = pd.Series(stopped, index=ledger.index).astype("str")
    return check(ledger, records.memories, records.queries)


def check(
    ledger: pd.DataFrame,
    memories: pd.DataFrame | None = None,
    queries: pd.DataFrame | None = None,
    origin: str = "ledger",
) -> pd.DataFrame:
    """Check a ledger's nestedness, ``stored >= retrieved >= exposed``, and keep its further columns.

    Parameters
    ----------
    ledger : DataFrame
        ``query_id``, ``arm``, ``memory_id``, ``retrieved``, ``exposed``; perhaps ``stored`` and others.
    memories, queries : DataFrame, optional
        What was stored and what was asked.
    origin : str
        What messages call the table.

    Returns
    -------
    DataFrame
        The rows given, with canonical dtypes in the contract's columns.

    Raises
    ------
    InputError
        Exposed without retrieved, retrieved without stored, the same memory twice in a route, an unknown query:
        each with its names.
    """
    canonical = validate(ledger, "ledger", origin)
    checked = ledger.reset_index(drop=True).copy()
    for name in canonical.columns:
        checked[name] = canonical[name].array
    if memories is not None:
        _refuse_unstored(checked, memories, origin)
    if "stored" in checked:
        _refuse_first(
            checked["retrieved"] & ~checked["stored"].astype("boolean"), checked, origin, "is retrieved without stored"
        )
    if queries is not None:
        unknown = ~checked["query_id"].isin(queries["query_id"])
        _refuse_first(unknown.astype("boolean"), checked, origin, "belongs to a query that was never asked")
    return checked


def disclosures(
    answers: pd.DataFrame, targets: pd.DataFrame, origins: tuple[str, str] = ("answers", "targets")
) -> pd.DataFrame:
    """Test every answer for the marker of every target of its query (Protocol section 7).

    Parameters
    ----------
    answers : DataFrame
        ``query_id``, ``arm``, ``answer`` (text; missing where there is none).
    targets : DataFrame
        ``query_id``, ``memory_id``, ``marker``: what to look for, per query and memory.
    origins : pair of str
        What messages call the two tables.

    Returns
    -------
    DataFrame
        ``query_id``, ``arm``, ``memory_id``, boolean ``disclosed``; ``<NA>`` where there is no answer.

    Raises
    ------
    InputError
        A repeated answer or target, or an unusable marker.
    """
    for table, key, name in ((answers, KEY[:2], origins[0]), (targets, ["query_id", "memory_id"], origins[1])):
        _refuse_repeats(table, key, name)
    _refuse_first(_unusable(targets["marker"]), targets, origins[1], "has a marker without any letter or digit")
    pairs = answers[["query_id", "arm", "answer"]].merge(targets[["query_id", "memory_id", "marker"]], on="query_id")
    pairs["disclosed"] = disclosed(pairs["answer"], pairs["marker"])
    return pairs[[*KEY, "disclosed"]]


def _unusable(markers: pd.Series) -> pd.Series:
    return pd.Series([not (isinstance(m, str) and normalise(m)) for m in markers], dtype="boolean")


def link(
    ledger: pd.DataFrame, observed: pd.DataFrame, memories: pd.DataFrame, origin: str = "disclosures"
) -> pd.DataFrame:
    """Put what answers disclosed beside the ledger, assuming nothing from it (Protocol section 7).

    Parameters
    ----------
    ledger : DataFrame
        As :func:`build` or :func:`check` return it.
    observed : DataFrame
        ``query_id``, ``arm``, ``memory_id``, boolean ``disclosed``; one row per answer and target.
    memories : DataFrame
        What was stored.
    origin : str
        What messages call the observations.

    Returns
    -------
    DataFrame
        The ledger with boolean ``disclosed``: ``<NA>`` where nothing was observed. A target that its route did not
        retrieve gets a row of its own with ``retrieved`` and ``exposed`` False, so that a disclosure without exposure
        stays visible.

    Raises
    ------
    InputError
        A disclosure for a target that was never stored, or given twice.
    """
    seen = observed[[*KEY, "disclosed"]].copy()
    seen["disclosed"] = logic.as_boolean(seen["disclosed"])
    _refuse_repeats(seen, KEY, origin)
    unstored = ~seen["memory_id"].isin(memories["memory_id"])
    _refuse_first(unstored.astype("boolean"), seen, origin, "is a target that was never stored")
    linked = ledger.drop(columns="disclosed", errors="ignore").merge(seen, on=KEY, how="outer", indicator=True)
    new = (linked["_merge"] == "right_only").to_numpy()
    for name in ("retrieved", "exposed", *(column for column in ("passed",) if column in linked)):
        linked.loc[new, name] = False
    if "stored" in linked:
        linked.loc[new, "stored"] = True
    order = ["arm", "query_id", *(["rank"] if "rank" in linked else []), "memory_id"]
    linked = linked.drop(columns="_merge").sort_values(order, ignore_index=True)
    if "rank" in linked:
        linked["rank"] = linked["rank"].astype("Int64")
    return check(linked, memories)


def _decisions(rows: pd.DataFrame, gates: Sequence[str] | Mapping[str, pd.DataFrame]) -> dict[str, pd.Series]:
    """Return each gate's decision on every ranked row, in the order of the gates."""
    if isinstance(gates, str):
        raise InputError(f"gates: {gates!r} is one word; expected a list of axes or a mapping of tables")
    if isinstance(gates, Mapping):
        return {name: _looked_up(rows, table, name) for name, table in gates.items()}
    for name in gates:
        if name not in logic.AXES:
            raise InputError(f"gate {name!r}: expected one of {', '.join(logic.AXES)}, or a table of decisions")
    return {name: rows[name] for name in gates}


def _looked_up(rows: pd.DataFrame, table: pd.DataFrame, name: str) -> pd.Series:
    key = [column for column in KEY if column != "arm" or "arm" in table]
    absent = [column for column in (*key, "allowed") if column not in table]
    if absent:
        raise InputError(f"gate {name}: no column {absent[0]!r}; expected query_id, memory_id, allowed and perhaps arm")
    _refuse_repeats(table, key, f"gate {name}")
    given = table[[*key, "allowed"]].copy()
    given["allowed"] = logic.as_boolean(given["allowed"])
    found = rows[KEY].merge(given, on=key, how="left", validate="many_to_one")
    return found["allowed"].astype("boolean")


def _tokens(ids: pd.Series, memories: pd.DataFrame, counts: Mapping[str, int] | None) -> np.ndarray:
    if counts is None:
        text = memories["text"] if "text" in memories else pd.Series([None] * len(memories))
        lengths = pd.Series([count_tokens(item) for item in text], index=memories["memory_id"], dtype="int64")
    else:
        lengths = pd.Series(dict(counts), dtype="int64")
    found = lengths.reindex(ids)
    if found.isna().any() or (found < 0).any():
        wrong = found[found.isna() | (found < 0)].index[0]
        raise InputError(f"token counts: memory {wrong!r} has none; expected a whole number of 0 or more for each")
    return found.to_numpy("int64")


def _fits(ledger: pd.DataFrame, passed: np.ndarray, budget: PromptBudget) -> np.ndarray:
    """Walk down all routes at once, one rank at a time, and mark what fits."""
    route = ledger.groupby(["arm", "query_id"], sort=False).ngroup().to_numpy()
    tokens = ledger["tokens"].to_numpy()
    place = ledger.groupby(["arm", "query_id"], sort=False).cumcount().to_numpy()
    routes = int(route.max(initial=-1)) + 1
    used, shown = np.zeros(routes, dtype="int64"), np.zeros(routes, dtype="int64")
    closed = np.zeros(routes, dtype=bool)
    result = np.zeros(len(ledger), dtype=bool)
    limit_items = np.iinfo("int64").max if budget.items is None else budget.items
    limit_tokens = np.iinfo("int64").max if budget.tokens is None else budget.tokens
    by_place = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[by_place], np.arange(int(place.max(initial=-1)) + 2))
    for first, last in itertools.pairwise(starts):
        here = by_place[first:last][passed[by_place[first:last]]]
        of = route[here]
        room = ~closed[of] & (shown[of] < limit_items)
        fits = room & (used[of] + tokens[here] <= limit_tokens)
        result[here[fits]] = True
        used[of[fits]] += tokens[here[fits]]
        shown[of[fits]] += 1
        if budget.overflow == "stop":
            closed[of[room & ~fits]] = True
    return result


def _refuse_unstored(table: pd.DataFrame, memories: pd.DataFrame, origin: str, step: str | None = None) -> None:
    unstored = ~table["memory_id"].isin(memories["memory_id"])
    if not unstored.any():
        return
    row = int(unstored.to_numpy().argmax())
    retrieved = step is not None or (table["retrieved"].iloc[row] is not pd.NA and bool(table["retrieved"].iloc[row]))
    what = "is retrieved without stored" if retrieved else "was never stored"
    _refuse_first(unstored.astype("boolean"), table, origin, f"{what} (no such memory)")


def _refuse_first(wrong: pd.Series, table: pd.DataFrame, origin: str, what: str) -> None:
    """Raise for the first row where `wrong` is known to hold; say how many there are."""
    known = wrong.fillna(False).to_numpy(bool)
    if known.any():
        row = table.iloc[int(known.argmax())]
        more = f" (and {int(known.sum()) - 1} more)" if known.sum() > 1 else ""
        names = ", ".join(
            f"{label} {row[column]!r}" for column, label in zip(KEY, _LABELS, strict=True) if column in row
        )
        raise InputError(f"{origin}: row {int(known.argmax()) + 1}: {names} {what}{more}")


_LABELS = ("query", "route", "memory")


def _refuse_repeats(table: pd.DataFrame, key: list[str], origin: str) -> None:
    for column in key:
        if column not in table:
            raise InputError(f"{origin}: no column {column!r}; expected {', '.join(key)}")
    repeated = table.duplicated(key)
    _refuse_first(repeated.astype("boolean"), table, origin, "is given twice; expected once")
