"""Records as people have them: without labels, with ids that the store no longer holds, with askers nobody named.

Scoring refuses what it cannot score. An audit reports it, so two faults are let in here and become findings: ids
that no stored memory has (*ghosts*), and queries with neither namespace nor group.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion import logic
from companion.audit.faults import (
    NO_GROUP,
    NO_ROWS,
    UNKNOWN_MEMORY,
    Fault,
    FaultsError,
    Folder,
    examine_folder,
    examine_rows,
    scope_left_empty,
)
from companion.labels import encode
from companion.scoring import PairLabels
from companion.tables import OWN_RECORDS, Records, validate

NO_ONE = "(no namespace)"
"""Group of the queries that have none: nothing is known of how they depend on each other."""


@dataclass(frozen=True)
class Intake:
    """Checked records, and what had to be set aside to check them."""

    records: Records
    given: frozenset[str]
    ghosts: frozenset[str]
    nameless: frozenset[str]
    links: pd.DataFrame
    states_from: str
    lifecycle_from_state: bool = False
    warnings: tuple[Fault, ...] = ()


def take_in(source: str | Path | Records, lifecycle_from_state: bool = False) -> Intake:
    """Read and check the records to audit."""
    raw, warnings = _raw(source)
    given = frozenset(name for name, table, _ in raw.tables() if len(table.columns))
    memories = validate(raw.memories, "memories", raw.origins.get("memories", "memories"))
    queries, nameless = _grouped(raw.queries)
    ghosts = _ghosts(raw, memories)
    links = supersedes_links(memories)
    memories, states_from = _with_states(memories, links)
    records = replace(raw, memories=_with_ghosts(memories, ghosts), queries=queries).check()
    records = replace(records, labels=_doubt_ghosts(records.labels, ghosts))
    if lifecycle_from_state:
        records = replace(records, labels=_derived_lifecycle(records, ghosts))
    return Intake(
        records, given - {"labels"} if _says_nothing(records.labels) else given, ghosts, nameless, links, states_from,
        lifecycle_from_state, warnings,
    )  # fmt: skip


def supersedes_links(memories: pd.DataFrame) -> pd.DataFrame:
    """Collect who supersedes whom from a column ``supersedes`` or ``superseded_by`` of the memories."""
    known = set(memories["memory_id"])
    pairs: list[tuple[str, str]] = []
    for column, forward in (("supersedes", True), ("superseded_by", False)):
        if column not in memories:
            continue
        for own, cell in zip(memories["memory_id"], memories[column], strict=True):
            for other in _ids(cell, known):
                pairs.append((own, other) if forward else (other, own))
    links = pd.DataFrame(pairs, columns=["new", "old"], dtype="str").drop_duplicates(ignore_index=True)
    return links[links["new"] != links["old"]].reset_index(drop=True)


def _ids(cell: Any, known: set[str]) -> list[str]:
    if isinstance(cell, list | tuple):
        return [str(item) for item in cell if item is not None and str(item)]
    if isinstance(cell, np.ndarray) and cell.ndim:
        return [str(item) for item in cell.tolist()]
    if not pd.api.types.is_scalar(cell) or pd.isna(cell) or str(cell) == "":
        return []
    text = str(cell)
    if text in known:
        return [text]
    if text.lstrip().startswith("["):
        try:
            return [str(item) for item in json.loads(text)]
        except ValueError:
            pass
    return [part.strip() for part in text.split(";") if part.strip()]


def _raw(source: str | Path | Records) -> tuple[Records, tuple[Fault, ...]]:
    """Read the tables, and list what looks odd in them."""
    if isinstance(source, Records):
        given = {name: table for name, table, _ in source.tables()}
        origins = {name: origin for name, _, origin in source.tables()}
        examined = {name: examine_rows(table, name, origins[name]) for name, table in given.items()}
        faults = [fault for _, found in examined.values() for fault in found]
        faults += scope_left_empty(given, {name: table for name, (table, _) in examined.items()}, origins)
        return source, tuple(fault for fault in faults if not fault.is_error)
    folder = examine_folder(source, ("memories", "queries"))
    return _from_folder(folder), tuple(fault for fault in folder.faults if not fault.is_error)


def _from_folder(folder: Folder) -> Records:
    tolerated = {
        ("rankings", NO_ROWS),
        ("labels", UNKNOWN_MEMORY),
        ("rankings", UNKNOWN_MEMORY),
        ("ledger", UNKNOWN_MEMORY),
        ("queries", NO_GROUP),
    }
    errors = [fault for fault in folder.errors if (fault.table, fault.code) not in tolerated]
    if errors:
        count = f"{len(errors):,} faults" if len(errors) > 1 else "a fault"
        raise FaultsError(f"{folder.path}: {count}; the first: {errors[0].problem.message}", errors)
    tables: dict[str, Any] = dict(folder.frames)
    labels = tables.pop(
        "labels", pd.DataFrame({"query_id": pd.Series(dtype="str"), "memory_id": pd.Series(dtype="str")})
    )
    return Records(**tables, labels=labels, name=folder.path.resolve().name, origins=folder.origins)


def _says_nothing(labels: pd.DataFrame) -> bool:
    axes = [axis for axis in ("relevant", *logic.AXES) if axis in labels]
    return not len(labels) or not axes or bool(labels[axes].isna().all(axis=None))


def _grouped(queries: pd.DataFrame) -> tuple[pd.DataFrame, frozenset[str]]:
    """Give queries without namespace and group a group of their own, so that intervals can be made."""
    given = queries.reset_index(drop=True)
    nothing = pd.Series(True, index=given.index)
    for column in ("namespace", "group"):
        if column in given:
            nothing &= given[column].isna() | given[column].astype("str").eq("")
    if not nothing.any() or "query_id" not in given:
        return given, frozenset()
    group = given["group"].astype(object) if "group" in given else pd.Series(None, index=given.index, dtype=object)
    group[nothing] = NO_ONE
    return given.assign(group=group), frozenset(given.loc[nothing, "query_id"].astype("str"))


def _ghosts(raw: Records, memories: pd.DataFrame) -> frozenset[str]:
    known = set(memories["memory_id"])
    found: set[str] = set()
    for name in ("labels", "rankings", "ledger"):
        table = getattr(raw, name)
        if table is not None and "memory_id" in table:
            ids = table["memory_id"].dropna().astype("str")
            found |= set(ids[ids != ""]) - known
    return frozenset(found)


def _with_ghosts(memories: pd.DataFrame, ghosts: frozenset[str]) -> pd.DataFrame:
    if not ghosts:
        return memories
    rows = pd.DataFrame({"memory_id": pd.Series(sorted(ghosts), dtype="str")})
    rows["state"] = pd.Series("unknown", index=rows.index, dtype="str")
    # A source must be given in every row or in none.
    rows["source"] = pd.Series(memories["source"].iloc[0] if len(memories) else "all", index=rows.index, dtype="str")
    rows = rows.reindex(columns=memories.columns)
    return pd.concat(
        [memories, rows.astype({c: memories[c].dtype for c in ("memory_id", "state", "source")})], ignore_index=True
    )


def _with_states(memories: pd.DataFrame, links: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Take states from the links where the owner gave none: superseded, or current at the head of a chain."""
    if memories["state"].notna().any():
        return memories, "state"
    if links.empty:
        return memories, "none"
    old = memories["memory_id"].isin(links["old"])
    new = memories["memory_id"].isin(links["new"])
    # A memory outside every chain stays unknown: no link says that it is still in force.
    state = memories["state"].mask(new, "current").mask(old, "superseded")
    return memories.assign(state=state.astype("str")), "links"


def _doubt_ghosts(labels: pd.DataFrame, ghosts: frozenset[str]) -> pd.DataFrame:
    """Leave a ghost's lifecycle unresolved: a label that it is in force was given before it left the store."""
    if "lifecycle" not in labels or not ghosts:
        return labels
    gone = labels["memory_id"].isin(ghosts) & labels["lifecycle"].fillna(False)
    return labels.assign(lifecycle=labels["lifecycle"].mask(gone.astype(bool), pd.NA))


def _derived_lifecycle(records: Records, ghosts: frozenset[str]) -> pd.DataFrame:
    """Fill in what labels leave open about pairs that a route or a prompt holds; the other axes stay as they were."""
    labels = records.labels.reset_index(drop=True)
    pairs = [labels[["query_id", "memory_id"]]]
    pairs += [t[["query_id", "memory_id"]] for t in (records.rankings, records.ledger) if t is not None]
    every = pd.concat(pairs).drop_duplicates(ignore_index=True)
    new = every.merge(labels[["query_id", "memory_id"]].drop_duplicates(), how="left", indicator="listed")
    new = new.loc[new["listed"] == "left_only", ["query_id", "memory_id"]].reset_index(drop=True)
    known = PairLabels.from_records(records)
    values = known.lookup(
        encode(new["query_id"], known.queries, "labels", "query_id"),
        encode(new["memory_id"], known.memories, "labels", "memory_id"),
    )
    stated = [axis for axis in ("relevant", *logic.AXES) if axis in labels or axis == "scope"]
    if "scope" not in labels:  # a new column must not turn what followed from the namespaces into unresolved
        own = known.lookup(
            encode(labels["query_id"], known.queries, "labels", "query_id"),
            encode(labels["memory_id"], known.memories, "labels", "memory_id"),
        )
        labels = labels.assign(scope=own["scope"])
    table = pd.concat([labels, pd.concat([new, values[stated]], axis=1)], ignore_index=True)
    state = records.memories.set_index("memory_id")["state"].reindex(table["memory_id"]).reset_index(drop=True)
    intent = records.queries.set_index("query_id")["intent"].reindex(table["query_id"]).reset_index(drop=True)
    derived = logic.lifecycle(state, intent)
    told = table["lifecycle"] if "lifecycle" in table else pd.Series(pd.NA, index=table.index, dtype="boolean")
    table["lifecycle"] = (
        told.astype("boolean").fillna(derived).mask(table["memory_id"].isin(ghosts) & told.isna(), pd.NA)
    )
    return validate(table, "labels")


__all__ = ["NO_ONE", "OWN_RECORDS", "Intake", "supersedes_links", "take_in"]
