"""Records as people have them: without labels, with ids that the store no longer holds, with askers nobody named.

Scoring refuses what it cannot score. An audit reports it, so two faults are let in here and become findings: ids that
no stored memory has (*ghosts*), and queries with neither namespace nor group.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.labels import PairLabels
from companion.tables import Problem, Records, examine_folder, validate

NO_ONE = "(no namespace)"
"""Group of the queries that have none: nothing is known of how they depend on each other."""

OUTDATED = ("superseded", "stale", "forgotten")
# What programs write where a name should have been.
_NOBODY = {"", "none", "null", "nil", "nan", "n/a", "na", "undefined", "unknown", "*", "-"}
_KEY = ["query_id", "memory_id"]
_TOLERATED = {
    ("rankings", "no_rows"), ("queries", "group_given"),
    *((table, "unknown_memory_id") for table in ("labels", "rankings", "ledger")),
}  # fmt: skip


class FaultsError(InputError):
    """Records that cannot be audited, with every problem that was found."""

    def __init__(self, message: str, faults: Sequence[Problem]) -> None:
        super().__init__(message)
        self.faults = list(faults)


@dataclass(frozen=True)
class Intake:
    """Checked records, and what had to be set aside to check them.

    ``links`` holds who supersedes whom (``new``, ``old``), ``states_from`` says where states come from (state, links or
    none), ``from_log`` whether the store was made out of the log.
    """

    records: Records
    given: frozenset[str]
    ghosts: frozenset[str]
    nameless: frozenset[str]
    links: pd.DataFrame
    states_from: str
    lifecycle_from_state: bool = False
    warnings: tuple[Problem, ...] = ()
    from_log: str = ""


def take_in(source: str | Path | Records, lifecycle_from_state: bool = False, shared: Sequence[str] = ()) -> Intake:
    """Read and check the records to audit."""
    raw, warnings = _raw(source)
    given = frozenset(name for name, table, _ in raw.tables() if len(table.columns))
    memories = validate(raw.memories, "memories", raw.origins.get("memories", "memories"))
    queries, nameless = _grouped(raw.queries)
    ghosts = _ghosts(raw, memories)
    links = supersedes_links(memories)
    memories, states_from = _with_states(memories.assign(namespace=_named(memories["namespace"])), links)
    records = replace(raw, memories=_with_ghosts(memories, ghosts), queries=queries).check()
    records = replace(records, labels=_doubt_ghosts(records.labels, ghosts))
    silent = _says_nothing(records.labels)
    if shared or lifecycle_from_state or records.memories["state"].eq("forgotten").any():
        records = replace(records, labels=_settled(records, links, ghosts, lifecycle_from_state, shared))
    return Intake(
        records, given - {"labels"} if silent else given, ghosts, nameless, links, states_from, lifecycle_from_state,
        warnings, _made_of_log(source, records, ghosts),
    )  # fmt: skip


def among(ids: pd.Series | pd.Index, known: pd.Series | pd.Index) -> np.ndarray:
    """Tell which ids are known; many times faster than ``isin`` where both are many."""
    return pd.Index(pd.Series(known).unique()).get_indexer(pd.Index(ids)) >= 0


# --- words and times -----------------------------------------------------------------------------------------------


def nobody(names: pd.Series) -> pd.Series:
    """Tell which names are missing, blank, or a program's word for nothing (``None``, ``undefined``, ``*``)."""
    return names.isna() | names.astype("str").str.strip().str.lower().isin(_NOBODY)


def _named(names: pd.Series) -> pd.Series:
    return names.astype("str").mask(nobody(names))


def question(intent: pd.Series) -> pd.Series:
    """Say what queries ask about: now, the past, or unknown. Where no intent is recorded, a question is about now."""
    return intent.map({"current": "now", "history": "past", "unknown": "unknown"}).fillna("now").astype("str")


def moments(times: pd.Series, late: bool = False) -> pd.Series:
    """Read dates and times as far as they can be read, NaT elsewhere; ``late`` reads a bare date as its last moment."""
    text = times.astype(object)
    read = pd.to_datetime(text, errors="coerce", utc=True, format="ISO8601").astype("datetime64[ns, UTC]")
    if not late:
        return read
    bare = times.astype("str").str.fullmatch(r"\s*\d{4}-\d{2}-\d{2}\s*").fillna(False).to_numpy(bool)
    return read.mask(bare, read + pd.Timedelta(days=1) - pd.Timedelta(1, "ns"))


def states(records: Records, links: pd.DataFrame, pairs: pd.DataFrame) -> pd.Series:
    """Return the state of each pair's memory when the query was asked: a later correction does not count yet."""
    memories = records.memories.set_index("memory_id")
    place = memories.index.get_indexer(pd.Index(pairs["memory_id"]))
    state = pd.Series(memories["state"].array.take(place), index=pairs.index)
    if links.empty:
        return state
    # A correction without a readable time holds for every question.
    written = moments(memories["time"]).reindex(links["new"]).fillna(pd.Timestamp.min.tz_localize("UTC"))
    first = pd.Series(written.array, index=links["old"].array).groupby(level=0).min()
    asked = moments(records.queries.set_index("query_id")["time"]).reindex(pairs["query_id"]).array
    early = pd.Series(first.reindex(pairs["memory_id"]).array > asked, index=pairs.index)
    return state.mask(early & state.eq("superseded"), "current")


# --- links and states ----------------------------------------------------------------------------------------------


def supersedes_links(memories: pd.DataFrame) -> pd.DataFrame:
    """Collect who supersedes whom from a column ``supersedes`` or ``superseded_by`` of the memories."""
    known = set(memories["memory_id"])
    pairs: list[tuple[str, str]] = []
    for column, forward in (("supersedes", True), ("superseded_by", False)):
        cells = memories[column].dropna() if column in memories else pd.Series(dtype=object)
        for own, cell in zip(memories.loc[cells.index, "memory_id"], cells, strict=True):
            pairs += [(own, other) if forward else (other, own) for other in _ids(cell, known)]
    links = pd.DataFrame(pairs, columns=["new", "old"], dtype="str").drop_duplicates(ignore_index=True)
    return links[links["new"] != links["old"]].reset_index(drop=True)


def _ids(cell: Any, known: set[str]) -> list[str]:
    if isinstance(cell, list | tuple | np.ndarray):
        return [str(item) for item in cell if item is not None and str(item)]
    text = str(cell)
    if text in known:
        return [text]
    if text.lstrip().startswith("["):
        try:
            return [str(item) for item in json.loads(text)]
        except ValueError:
            pass
    return [part.strip() for part in text.split(";") if part.strip()]


def _with_states(memories: pd.DataFrame, links: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Let links outrank states: what a link names is superseded, and the head of a chain current if nobody said so."""
    source = "state" if memories["state"].notna().any() else "links" if len(links) else "none"
    old, new = (among(memories["memory_id"], links[side]) for side in ("old", "new"))
    # A memory outside every chain stays unknown: no link says that it is still in force.
    state = memories["state"].mask(new & memories["state"].isna(), "current")
    state = state.mask(old & ~memories["state"].isin(["forgotten", "stale"]), "superseded")
    return memories.assign(state=state.astype("str")), source


# --- reading -------------------------------------------------------------------------------------------------------


def _raw(source: str | Path | Records) -> tuple[Records, tuple[Problem, ...]]:
    """Read the tables, and list what looks odd in them."""
    if isinstance(source, Records):
        return source, tuple(problem for problem in source.find_problems() if not problem.is_error)
    folder = examine_folder(source, ("memories", "queries"))
    errors = [problem for problem in folder.errors if (problem.table, problem.code) not in _TOLERATED]
    if errors:
        number = f"{len(errors):,} faults" if len(errors) > 1 else "a fault"
        raise FaultsError(f"{folder.path}: {number}; the first: {errors[0].message}", errors)
    return folder.records(), tuple(problem for problem in folder.problems if not problem.is_error)


def _says_nothing(labels: pd.DataFrame) -> bool:
    axes = [axis for axis in ("relevant", *logic.AXES) if axis in labels]
    return not len(labels) or not axes or bool(labels[axes].isna().all(axis=None))


def _grouped(queries: pd.DataFrame) -> tuple[pd.DataFrame, frozenset[str]]:
    """Take words for nothing out of the namespaces; queries without namespace and group share a group."""
    given = queries.reset_index(drop=True)
    if "namespace" in given:
        given = given.assign(namespace=_named(given["namespace"]))
    nothing = pd.Series(True, index=given.index)
    for column in {"namespace", "group"} & set(given):
        nothing &= given[column].isna() | given[column].astype("str").eq("")
    if not nothing.any() or "query_id" not in given:
        return given, frozenset()
    group = given["group"].astype(object) if "group" in given else pd.Series(None, index=given.index, dtype=object)
    group[nothing] = NO_ONE
    return given.assign(group=group), frozenset(given.loc[nothing, "query_id"].astype("str"))


def _ghosts(raw: Records, memories: pd.DataFrame) -> frozenset[str]:
    found = pd.Index([])
    for name in ("labels", "rankings", "ledger"):
        table = getattr(raw, name)
        if table is not None and "memory_id" in table:
            ids = pd.Index(table["memory_id"].dropna().astype("str").unique())
            found = found.union(ids[(ids != "") & ~among(ids, memories["memory_id"])])
    return frozenset(map(str, found))


def _with_ghosts(memories: pd.DataFrame, ghosts: frozenset[str]) -> pd.DataFrame:
    if not ghosts:
        return memories
    # A source must be given in every row or in none.
    source = memories["source"].iloc[0] if len(memories) else "all"
    rows = pd.DataFrame({"memory_id": sorted(ghosts), "state": "unknown", "source": source}, dtype="str")
    rows = rows.reindex(columns=memories.columns)
    kinds = {name: memories[name].dtype for name in ("memory_id", "state", "source")}
    return pd.concat([memories, rows.astype(kinds)], ignore_index=True)


def _made_of_log(source: str | Path | Records, records: Records, ghosts: frozenset[str]) -> str:
    """Tell whether the store was made out of the log: an import ``said`` so, or it ``seems`` so.

    A store made out of the log holds exactly what was returned.
    """
    try:
        told = json.loads((Path(source) / "import-notes.json").read_text("utf-8"))["store"]  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError, KeyError):  # records in memory, or a folder that no import made
        told = None
    if told is not None:
        return "said" if told == "log" else ""
    tables = [t["memory_id"] for t in (records.rankings, records.ledger) if t is not None and len(t)]
    same = bool(not ghosts and tables) and among(records.memories["memory_id"], pd.concat(tables)).all()
    return "seems" if same else ""


# --- labels that follow from the tables ----------------------------------------------------------------------------


def _doubt_ghosts(labels: pd.DataFrame, ghosts: frozenset[str]) -> pd.DataFrame:
    """Leave a ghost's lifecycle unresolved: a label that it is in force was given before it left the store."""
    if "lifecycle" not in labels or not ghosts:
        return labels
    gone = labels["memory_id"].isin(ghosts) & labels["lifecycle"].fillna(False)
    return labels.assign(lifecycle=labels["lifecycle"].mask(gone.astype(bool), pd.NA))


def _settled(
    records: Records, links: pd.DataFrame, ghosts: frozenset[str], derive: bool, shared: Sequence[str]
) -> pd.DataFrame:
    """Fill in what labels leave open about pairs that a route or a prompt holds; what is stated stays as it is."""
    labels = _every_pair(records)
    state = states(records, links, labels)
    if shared:
        owner = records.memories.set_index("memory_id")["namespace"].reindex(labels["memory_id"]).array
        labels["scope"] = labels["scope"].mask(pd.Series(owner, index=labels.index).isin(list(shared)), True)
    if state.eq("forgotten").any():
        told = labels.get("policy", pd.Series(pd.NA, index=labels.index, dtype="boolean"))
        labels["policy"] = told.mask(state.eq("forgotten") & told.isna(), False)
    if derive:
        told = labels.get("lifecycle", pd.Series(pd.NA, index=labels.index, dtype="boolean"))
        derived = lifecycle(records, state, labels)
        labels["lifecycle"] = told.fillna(derived.mask(labels["memory_id"].isin(ghosts), pd.NA))
    return validate(labels, "labels")


def lifecycle(records: Records, state: pd.Series, pairs: pd.DataFrame) -> pd.Series:
    """Derive the lifecycle of pairs from the state of the memory, its end, and what the question is about."""
    asks = question(records.queries.set_index("query_id")["intent"]).reindex(pairs["query_id"]).array
    intent = pd.Series(asks, index=pairs.index).map({"now": "current", "past": "history"})
    derived: pd.Series = logic.lifecycle(state, intent)
    return derived.mask(expired(records, pairs), False)


def expired(records: Records, pairs: pd.DataFrame) -> np.ndarray:
    """Mark the pairs whose memory had ended before the question, which is not known to be about the past."""
    memories, queries = records.memories.set_index("memory_id"), records.queries.set_index("query_id")
    if "valid_until" not in memories:
        return np.zeros(len(pairs), dtype=bool)
    ended = moments(memories["valid_until"], late=True).reindex(pairs["memory_id"]).array
    asked = moments(queries["time"]).reindex(pairs["query_id"]).array
    now = question(queries["intent"]).reindex(pairs["query_id"]).eq("now").to_numpy(bool)
    return np.asarray(ended < asked, dtype=bool) & now


def _every_pair(records: Records) -> pd.DataFrame:
    """List every pair that labels, routes or prompts hold, with what is known of it."""
    labels = records.labels.reset_index(drop=True)
    pairs = [t[_KEY] for t in (labels, records.rankings, records.ledger) if t is not None]
    every = pd.concat(pairs).drop_duplicates(ignore_index=True)
    place = pd.MultiIndex.from_frame(every).isin(pd.MultiIndex.from_frame(labels[_KEY]))
    new = every[~place].reset_index(drop=True)
    index = PairLabels.from_records(records)

    def lookup(table: pd.DataFrame) -> pd.DataFrame:
        return index.lookup(*index.encode(table, "labels"))

    # A new column must not turn what followed from the namespaces, or from the corpus, into unresolved.
    implied = [axis for axis in {"scope", *records.defaults} if axis not in labels]
    labels = labels.assign(**lookup(labels)[implied]) if implied else labels
    stated = [axis for axis in ("relevant", *logic.AXES) if axis in labels]
    return pd.concat([labels, pd.concat([new, lookup(new)[stated]], axis=1)], ignore_index=True)
