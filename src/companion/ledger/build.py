"""Build the ledger of ranked routes, and check one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.scoring import label_ranked
from companion.tables import Records, validate
from companion.tables.values import parse_boolean

KEY = ["query_id", "arm", "memory_id"]
_WORDS = {"query_id": "query", "arm": "route", "memory_id": "memory"}
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class PromptBudget:
    """How much of a route reaches the prompt: at most so many memories, and tokens of their text.

    At a memory that no longer fits the tokens the prompt ends (``overflow="stop"``), or that memory is left out and
    later ones may still fit (``"skip"``).
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
    """Make the ledger that rankings, gates and a prompt budget imply.

    Parameters
    ----------
    records : Records
        Checked, with rankings.
    budget : PromptBudget, optional
        No limit by default: everything that passes the gates is exposed.
    gates : sequence of axis names, or mapping of name to DataFrame
        Applied in order. An axis name is the released-metadata gate of that axis: it stops what the labels say is 0. A
        table holds a gate's own decisions: ``query_id``, ``memory_id``, boolean ``allowed``, and ``arm`` where they
        depend on it. Only a known 0 stops; an unresolved or absent decision lets pass and stays visible as ``<NA>``.
    token_counts : mapping of memory_id to int, optional
        Lengths in a model's own tokens; by default `count_tokens` of the text.

    Returns
    -------
    DataFrame, one row per retrieved memory, in route order
        ``query_id``, ``arm``, ``memory_id``, ``rank``, ``score``, boolean ``stored``, ``retrieved``, ``gate_<name>``,
        ``passed``, ``exposed``; ``tokens`` (int64), ``stopped_by`` (``gate_<name>``, ``budget``, or missing).
    """
    if records.rankings is None:
        raise InputError("ledger: the records hold no rankings; expected routes to build it from")
    _refuse_unstored(records.rankings.assign(retrieved=True), records.memories, "rankings")
    rows = label_ranked(records).sort_values(["arm", "query_id", "rank"], kind="stable", ignore_index=True)
    ledger = rows[[*KEY, "rank", "score"]].copy()
    ledger["stored"] = ledger["retrieved"] = pd.array(np.ones(len(rows), dtype=bool), dtype="boolean")
    stopped: pd.Series = pd.Series(np.nan, index=ledger.index, dtype="str")
    for name, decision in _decisions(rows, gates).items():
        ledger[f"gate_{name}"] = decision
        refused = decision.eq(False).fillna(False).astype(bool)  # compared with False, so <NA> passes
        stopped = stopped.where(~refused | stopped.notna(), pd.Series(f"gate_{name}", stopped.index))
    passed = stopped.isna().to_numpy()
    ledger["passed"] = pd.array(passed, dtype="boolean")
    ledger["tokens"] = _tokens(rows["memory_id"], records.memories, token_counts)
    shown = _fits(ledger, passed, budget or PromptBudget())
    ledger["exposed"] = pd.array(shown, dtype="boolean")
    ledger["stopped_by"] = stopped.mask(passed & ~shown, "budget")
    return check(ledger, records.memories, records.queries)


def check(
    ledger: pd.DataFrame,
    memories: pd.DataFrame | None = None,
    queries: pd.DataFrame | None = None,
    origin: str = "ledger",
) -> pd.DataFrame:
    """Return a ledger with canonical columns, or refuse what was never stored or asked, and a memory given twice."""
    checked = validate(ledger, "ledger", origin)
    for name in checked.columns:
        if str(name).startswith("gate_") or name in ("stored", "passed"):
            checked[name], bad = parse_boolean(checked[name])
            refuse_first(pd.Series(bad), checked, origin, f"has no truth value in {name}")
    if memories is not None:
        _refuse_unstored(checked, memories, origin)
    if "stored" in checked:
        refuse_first(checked["retrieved"] & ~checked["stored"], checked, origin, "is retrieved without stored")
    if queries is not None:
        unknown = ~checked["query_id"].isin(queries["query_id"])
        refuse_first(unknown, checked, origin, "belongs to a query that was never asked")
    return checked


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
    refuse_repeats(table, key, f"gate {name}")
    given = table[key].assign(allowed=logic.as_boolean(table["allowed"]))
    return rows[KEY].merge(given, on=key, how="left", validate="many_to_one")["allowed"].astype("boolean")


def _tokens(ids: pd.Series, memories: pd.DataFrame, counts: Mapping[str, int] | None) -> np.ndarray:
    if counts is None:
        text = memories["text"] if "text" in memories else [None] * len(memories)
        counts = dict(zip(memories["memory_id"], map(count_tokens, text), strict=True))
    found = pd.Series(counts, dtype="int64").reindex(ids)
    wrong = found.isna() | (found < 0)
    if wrong.any():
        name = found[wrong].index[0]
        raise InputError(f"token counts: memory {name!r} has none; expected a whole number of 0 or more for each")
    return found.to_numpy("int64")


def _fits(ledger: pd.DataFrame, passed: np.ndarray, budget: PromptBudget) -> np.ndarray:
    """Walk down all routes at once, one rank at a time, and mark what fits."""
    routes = ledger.groupby(["arm", "query_id"], sort=False)
    route, place = routes.ngroup().to_numpy(), routes.cumcount().to_numpy()
    tokens = ledger["tokens"].to_numpy()
    used, shown = (np.zeros(routes.ngroups, dtype="int64") for _ in range(2))
    closed, result = np.zeros(routes.ngroups, dtype=bool), np.zeros(len(ledger), dtype=bool)
    most = np.iinfo("int64").max
    items, limit = (most if value is None else value for value in (budget.items, budget.tokens))
    by_place = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[by_place], np.arange(int(place.max(initial=-1)) + 2))
    for first, last in itertools.pairwise(starts):
        here = by_place[first:last][passed[by_place[first:last]]]
        of = route[here]
        room = ~closed[of] & (shown[of] < items)
        fits = room & (used[of] + tokens[here] <= limit)
        result[here[fits]] = True
        used[of[fits]] += tokens[here[fits]]
        shown[of[fits]] += 1
        if budget.overflow == "stop":
            closed[of[room & ~fits]] = True
    return result


def _refuse_unstored(table: pd.DataFrame, memories: pd.DataFrame, origin: str) -> None:
    unstored = ~table["memory_id"].isin(memories["memory_id"])
    if unstored.any():
        retrieved = table.loc[unstored, "retrieved"].iloc[0]
        what = "is retrieved without stored" if retrieved is not pd.NA and retrieved else "was never stored"
        refuse_first(unstored, table, origin, f"{what} (no such memory)")


def refuse_first(wrong: pd.Series, table: pd.DataFrame, origin: str, what: str) -> None:
    """Raise for the first row where `wrong` is known to hold; say how many there are."""
    known = wrong.astype("boolean").fillna(False).to_numpy(bool)
    if known.any():
        place = int(known.argmax())
        more = f" (and {int(known.sum()) - 1} more)" if known.sum() > 1 else ""
        row = table.iloc[place]
        names = ", ".join(f"{word} {row[column]!r}" for column, word in _WORDS.items() if column in row)
        raise InputError(f"{origin}: row {place + 1}: {names} {what}{more}")


def refuse_repeats(table: pd.DataFrame, key: list[str], origin: str) -> None:
    """Raise for a key given twice, or a column of it that is absent."""
    for column in key:
        if column not in table:
            raise InputError(f"{origin}: no column {column!r}; expected {', '.join(key)}")
    refuse_first(table.duplicated(key), table, origin, "is given twice; expected once")
