"""Labels of (query, memory) pairs, looked up by integer code so that millions of rows stay cheap.

A pair that the labels do not list is not thereby admissible or inadmissible: scope follows from the namespaces
when both are known, every other axis is what the corpus states as its default, and unresolved where it states none.
The same holds for an axis whose column the labels do not have. An empty cell in a column they have is unresolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.tables import Records

LABEL_COLUMNS = ("relevant", *logic.AXES)


def encode(values: pd.Series, index: pd.Index, table: str, column: str) -> np.ndarray:
    """Replace the ids of a column by their place in an index.

    Parameters
    ----------
    values : Series of str, shape (n,)
    index : Index of str, shape (m,), unique
    table, column : str
        Named in the error.

    Returns
    -------
    ndarray of int64, shape (n,)

    Raises
    ------
    InputError
        If an id is not in the index; names the first such row.
    """
    # Numbering the distinct values first keeps string hashing proportional to ids, not to rows.
    codes, distinct = pd.factorize(values)
    lookup = index.get_indexer(pd.Index(distinct))
    known = np.append(lookup, -1)  # a missing value has code -1 and must stay unknown
    result = known[codes]
    if (result < 0).any():
        row = int(np.argmax(result < 0))
        raise InputError(f"{table}: row {row + 1}, column {column}: unknown id {values.iloc[row]!r}")
    return result.astype(np.int64)


@dataclass(frozen=True)
class PairLabels:
    """The label columns of any (query, memory) pair of one set of records.

    Attributes
    ----------
    queries, memories : Index of str
        Ids in table order; codes are places in them.
    keys : Index of int64
        Sorted distinct ``query_code * len(memories) + memory_code`` of the listed pairs.
    listed : DataFrame of dtype boolean, shape (len(keys), columns stated by the labels)
    query_namespace, memory_namespace : ndarray of int64
        Namespace codes, -1 where unknown.
    defaults : mapping of axis to bool
        What the corpus states for pairs it does not list.
    """

    queries: pd.Index
    memories: pd.Index
    keys: pd.Index
    listed: pd.DataFrame
    query_namespace: np.ndarray
    memory_namespace: np.ndarray
    defaults: Mapping[str, bool]

    @classmethod
    def from_records(cls, records: Records) -> PairLabels:
        """Index the labels of validated records.

        Raises
        ------
        InputError
            If a label names an unknown query or memory.
        """
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
        return cls(
            queries=queries,
            memories=memories,
            keys=pd.Index(keys),
            listed=labels[stated].iloc[first].reset_index(drop=True).astype("boolean"),
            query_namespace=namespace[: len(queries)],
            memory_namespace=namespace[len(queries) :],
            defaults=dict(records.defaults),
        )

    def lookup(self, query: np.ndarray, memory: np.ndarray) -> pd.DataFrame:
        """Return the label columns of pairs given by code.

        Parameters
        ----------
        query, memory : ndarray of int64, shape (n,)

        Returns
        -------
        DataFrame of dtype boolean, shape (n, 4)
            Columns ``relevant``, ``scope``, ``policy``, ``lifecycle``.
        """
        place = self.keys.get_indexer(pd.Index(query * len(self.memories) + memory))
        return pd.DataFrame({column: self._column(column, query, memory, place) for column in LABEL_COLUMNS})

    def _column(self, column: str, query: np.ndarray, memory: np.ndarray, place: np.ndarray) -> pd.arrays.BooleanArray:
        if column == "scope":
            left, right = self.query_namespace[query], self.memory_namespace[memory]
            value, missing = left == right, (left < 0) | (right < 0)
        else:
            value = np.full(len(query), bool(self.defaults.get(column, False)))
            missing = np.full(len(query), self.defaults.get(column) is None)
        if column in self.listed:
            stated = self.listed[column].array
            is_listed = place >= 0
            unresolved = stated.isna()
            value[is_listed] = stated.to_numpy(bool, na_value=False)[place[is_listed]]
            missing[is_listed] = unresolved[place[is_listed]]
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
        share an ``anchor_id`` within a query are interchangeable: recall counts distinct ids.

    Notes
    -----
    Protocol, section 2. An unresolved axis leaves a memory outside the anchors, and so does an ``anchor_id`` on a
    memory that is not known to be usable.
    """
    pairs = PairLabels.from_records(records) if pairs is None else pairs
    labels = records.labels
    query = encode(labels["query_id"], pairs.queries, "labels", "query_id")
    memory = encode(labels["memory_id"], pairs.memories, "labels", "memory_id")
    usable = logic.status(pairs.lookup(query, memory), family="non_usable")
    known = usable.fillna(False).to_numpy(bool)  # only for choosing rows: unresolved is not an anchor
    return labels.loc[known, ["query_id", "memory_id", "anchor_id"]].reset_index(drop=True)


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
        If a row names an unknown query or memory.
    """
    rows = records.rankings if rankings is None else rankings
    if rows is None:
        raise InputError("no rankings to label")
    pairs = PairLabels.from_records(records)
    labels = pairs.lookup(
        encode(rows["query_id"], pairs.queries, "rankings", "query_id"),
        encode(rows["memory_id"], pairs.memories, "rankings", "memory_id"),
    )
    labels["admissible"] = logic.status(labels)
    labels["usable"] = logic.status(labels, family="non_usable")
    return pd.concat([rows.reset_index(drop=True), labels], axis=1)
