"""Labels of (query, memory) pairs, looked up by integer code so that millions of rows stay cheap.

A pair that the labels do not list is not thereby admissible or inadmissible: scope follows from the namespaces when
both are known (and is 1 for a memory that is said to be shared), every other axis is what the corpus states as its
default, and unresolved where it states none. The same holds for an axis whose column the labels do not have. An empty
cell in a column they have is unresolved. Methods, "Labels".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.tables.values import numbered

if TYPE_CHECKING:
    from companion.tables import Records

LABEL_COLUMNS = ("relevant", *logic.AXES)


def encode(values: pd.Series, index: pd.Index, table: str, column: str) -> np.ndarray:
    """Replace the ids of a column by their place in an index; an id that is not there is refused with its row."""
    codes, distinct = numbered(values)  # validation has numbered them already
    known = np.append(index.get_indexer(distinct), -1)  # a missing value has code -1 and must stay unknown
    result = known[codes]
    if (result < 0).any():
        row = int(np.argmax(result < 0))
        raise InputError(f"{table}: row {row + 1}, column {column}: unknown id {values.iloc[row]!r}")
    return result.astype(np.int64)


@dataclass(frozen=True)
class PairLabels:
    """The label columns of any (query, memory) pair of one set of records.

    ``queries`` and ``memories`` hold the ids in table order; codes are places in them. ``keys`` are the sorted distinct
    ``query_code * len(memories) + memory_code`` of the listed pairs, ``listed`` their label columns, the namespaces are
    codes with -1 where unknown, ``shared`` says which memories belong to everybody.
    """

    queries: pd.Index
    memories: pd.Index
    keys: pd.Index
    listed: pd.DataFrame
    query_namespace: np.ndarray
    memory_namespace: np.ndarray
    defaults: Mapping[str, bool]
    shared: np.ndarray | None = None

    @classmethod
    def from_records(cls, records: Records) -> PairLabels:
        """Index the labels of validated records; a label of an unknown query or memory is refused."""
        queries = pd.Index(records.queries["query_id"])
        memories = pd.Index(records.memories["memory_id"])
        labels = records.labels
        rows = encode(labels["query_id"], queries, "labels", "query_id") * len(memories)
        rows += encode(labels["memory_id"], memories, "labels", "memory_id")
        # Rows of one pair differ only in anchor_id (validated), so any one of them holds its axes.
        keys, first = np.unique(rows, return_index=True)
        stated = [column for column in LABEL_COLUMNS if column in labels]
        both = pd.concat([records.queries["namespace"], records.memories["namespace"]], ignore_index=True)
        namespace = pd.factorize(both)[0].astype(np.int64)
        memories_shared = records.memories.get("shared")
        shared = None if memories_shared is None else memories_shared.astype("boolean").to_numpy(bool, na_value=False)
        return cls(
            queries=queries,
            memories=memories,
            keys=pd.Index(keys),
            listed=labels[stated].iloc[first].reset_index(drop=True).astype("boolean"),
            query_namespace=namespace[: len(queries)],
            memory_namespace=namespace[len(queries) :],
            defaults=dict(records.defaults),
            shared=shared,
        )

    def encode(self, rows: pd.DataFrame, table: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the codes of the queries and memories that rows name."""
        query = encode(rows["query_id"], self.queries, table, "query_id")
        return query, encode(rows["memory_id"], self.memories, table, "memory_id")

    def lookup(self, query: np.ndarray, memory: np.ndarray) -> pd.DataFrame:
        """Return relevant, scope, policy and lifecycle (dtype boolean) of pairs given by code."""
        place = self.keys.get_indexer(pd.Index(query * len(self.memories) + memory))
        return pd.DataFrame({column: self._column(column, query, memory, place) for column in LABEL_COLUMNS})

    def _column(self, column: str, query: np.ndarray, memory: np.ndarray, place: np.ndarray) -> pd.arrays.BooleanArray:
        if column == "scope":
            left, right = self.query_namespace[query], self.memory_namespace[memory]
            value, missing = left == right, (left < 0) | (right < 0)
            if self.shared is not None:
                value, missing = value | self.shared[memory], missing & ~self.shared[memory]
        else:
            value = np.full(len(query), bool(self.defaults.get(column, False)))
            missing = np.full(len(query), self.defaults.get(column) is None)
        if column in self.listed:
            stated = self.listed[column].array
            is_listed = place >= 0
            value[is_listed] = stated.to_numpy(bool, na_value=False)[place[is_listed]]
            missing[is_listed] = stated.isna()[place[is_listed]]
        return pd.arrays.BooleanArray(value & ~missing, missing)


def anchors_of(records: Records, pairs: PairLabels | None = None) -> pd.DataFrame:
    """List the anchors: the known usable memories of every query.

    Parameters
    ----------
    records : Records
    pairs : PairLabels, optional
        The index of the records' labels, when it has been made already.

    Returns
    -------
    DataFrame
        Columns ``query_id``, ``memory_id``, ``anchor_id`` (missing where a memory stands for itself). Memories that
        share an ``anchor_id`` within a query are interchangeable: recall counts distinct ids. An unresolved axis leaves
        a memory outside the anchors, and so does an ``anchor_id`` on a memory that is not known to be usable.

    See Also
    --------
    Methods, "Matched recall".
    """
    records = records.checked()
    pairs = PairLabels.from_records(records) if pairs is None else pairs
    usable = logic.status(pairs.lookup(*pairs.encode(records.labels, "labels")), family="non_usable")
    known = usable.fillna(False).to_numpy(bool)  # only for choosing rows: unresolved is not an anchor
    return records.labels.loc[known, ["query_id", "memory_id", "anchor_id"]].reset_index(drop=True)


def label_ranked(records: Records, rankings: pd.DataFrame | None = None) -> pd.DataFrame:
    """Join the label columns, admissibility and usability to every ranked row.

    Parameters
    ----------
    records : Records
    rankings : DataFrame, optional
        Rows to label, by default those of the records.

    Returns
    -------
    DataFrame
        The rows given, with boolean columns ``relevant``, ``scope``, ``policy``, ``lifecycle``, ``admissible`` and
        ``usable``.

    Raises
    ------
    InputError
        If a row names an unknown query or memory, or there are no rankings.
    """
    records = records.checked()
    rows = records.rankings if rankings is None else rankings
    if rows is None:
        raise InputError("no rankings to label")
    pairs = PairLabels.from_records(records)
    labels = pairs.lookup(*pairs.encode(rows, "rankings"))
    labels["admissible"] = logic.status(labels)
    labels["usable"] = logic.status(labels, family="non_usable")
    return pd.concat([rows.reset_index(drop=True), labels], axis=1)


def stable_uniform(*ids: pd.Series, seed: int, salt: str) -> np.ndarray:
    """Draw a number in [0, 1) for every row from its ids alone.

    The same for the same ids, whatever the order of rows and whatever other rows there are; ``salt`` names the use, so
    that two uses with one seed are independent. A threshold on these numbers is nested: what falls below a rate falls
    below every higher one.
    """
    key = f"{seed}:{salt}"[-16:].rjust(16, "\0")
    mixed = pd.util.hash_pandas_object(
        pd.DataFrame({str(number): column.astype(object).to_numpy() for number, column in enumerate(ids)}),
        index=False,
        hash_key=key,
        categorize=False,
    )
    # 53 bits are what a float64 holds exactly.
    return (mixed.to_numpy(np.uint64) >> np.uint64(11)) / float(2**53)


def hide_labels(records: Records, rate: float, seed: int = 0) -> Records:
    """Make the labels of a share of ranked pairs unresolved, scope included.

    Parameters
    ----------
    records : Records
        With rankings, which stay as they are.
    rate : float
        Probability with which a pair loses all its labels, in [0, 1].
    seed : int
        Pairs hidden at one rate stay hidden at every higher rate with the same seed.

    Returns
    -------
    Records
        Score it with ``anchors=anchors_of(records)``, so that recall and the matched prefix stay what they were.

    Raises
    ------
    InputError
        If the rate is outside [0, 1] or there are no rankings.
    """
    if not 0 <= rate <= 1:
        raise InputError(f"rate {rate}: expected a number between 0 and 1")
    records = records.checked()
    if records.rankings is None:
        raise InputError("no rankings: hiding concerns the labels of ranked memories")
    pairs = records.rankings[["query_id", "memory_id"]].drop_duplicates(ignore_index=True)
    known = PairLabels.from_records(records)
    labels = known.lookup(*known.encode(pairs, "rankings"))
    hidden = stable_uniform(pairs["query_id"], pairs["memory_id"], seed=seed, salt="hide") < rate
    labels.loc[hidden, ["relevant", *logic.AXES]] = pd.NA
    table = pd.concat([pairs, labels], axis=1)
    table["anchor_id"] = pd.Series(pd.NA, index=table.index, dtype="str")
    return replace(records, labels=table)
