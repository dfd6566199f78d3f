"""How many memories of each status reach each step of a route."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.scoring import PairLabels, profile
from companion.tables import Records

STEPS = ("stored", "retrieved", "passed", "exposed", "disclosed")
"""Steps in order; ``passed`` means past the gates, and the last is observed, not implied by the one before."""

STATUSES = ("admissible", "inadmissible", "unresolved")


def flow(records: Records, ledger: pd.DataFrame, status: str = "admissible") -> pd.DataFrame:
    """Count the (query, memory) pairs of each status that reach each step, per route.

    A route's stored memories are those of the queries it has rows for; where ``memories`` has ``visible_key`` and
    ``queries`` has ``visible_own`` and ``visible_foreign`` (a corpus limited in time), those that were visible.

    Parameters
    ----------
    records : Records
        Checked.
    ledger : DataFrame
        As `build`, `check` or `link` return it.
    status : str
        ``admissible``, ``usable``, ``relevant`` or one axis.

    Returns
    -------
    DataFrame
        ``arm``, ``step``, ``status`` (``admissible``, ``inadmissible``, ``unresolved``, whatever the axis), ``pairs``,
        ``share`` (of the step's pairs; NaN for an empty step), ``queries``. Steps that the ledger does not record are
        left out. In ``disclosed``, a pair counts if its disclosure is known to be 1.
    """
    asked = ledger[["arm", "query_id"]].drop_duplicates()
    stored = asked.join(stored_counts(records, status), on="query_id").groupby("arm", sort=False)[list(STATUSES)].sum()
    counts = {"stored": stored.to_numpy()}
    for step in STEPS[1:]:
        if step in ledger:
            reached = ledger[ledger[step].astype("boolean").fillna(False).astype(bool)]
            counts[step] = _counted(records, reached, status).reindex(stored.index, fill_value=0).to_numpy()
    names = pd.MultiIndex.from_product([counts, stored.index, STATUSES], names=["step", "arm", "status"])
    pairs = pd.Series(np.concatenate(list(counts.values())).ravel().astype("int64"), names, name="pairs")
    order = pd.MultiIndex.from_product([stored.index, counts, STATUSES], names=["arm", "step", "status"])
    flowed = pairs.reset_index().set_index(["arm", "step", "status"])["pairs"].reindex(order).reset_index()
    totals = flowed.groupby(["arm", "step"])["pairs"].transform("sum")
    flowed["share"] = flowed["pairs"] / totals.where(totals > 0)
    flowed["queries"] = flowed["arm"].map(asked.groupby("arm").size()).astype("int64")
    return flowed


def _counted(records: Records, reached: pd.DataFrame, status: str) -> pd.DataFrame:
    if reached.empty:
        return pd.DataFrame(columns=list(STATUSES), dtype="int64")
    found = profile(records, rows=reached[["arm", "query_id", "memory_id"]], axes=_axes(status)).groupby("arm")
    sums = found[["items", "violation_count", "unresolved_count"]].sum()
    settled = sums["items"] - sums["violation_count"] - sums["unresolved_count"]
    columns = (settled, sums["violation_count"], sums["unresolved_count"])
    return pd.DataFrame(dict(zip(STATUSES, columns, strict=True)))


def stored_counts(records: Records, status: str = "admissible") -> pd.DataFrame:
    """Count, for every query, the stored memories of each status (see `flow`), in columns of that name."""
    pairs = PairLabels.from_records(records)
    everyone = np.arange(len(pairs.memories))
    # Pairs that labels do not list differ only by how the namespaces relate: own, foreign, unknown.
    known = {axis: pairs.defaults.get(axis, pd.NA) for axis in ("relevant", "policy", "lifecycle")}
    unlisted = _codes(pd.DataFrame({"scope": [True, False, pd.NA], **known}, dtype="boolean"), status)
    listed_query, listed_memory = np.divmod(pairs.keys.to_numpy(), max(len(everyone), 1))
    listed = _codes(pairs.lookup(listed_query, listed_memory), status)
    bounds = np.searchsorted(listed_query, np.arange(len(pairs.queries) + 1))
    counts = np.zeros((len(pairs.queries), 3), dtype="int64")
    for query in range(len(pairs.queries)):
        mine, theirs = pairs.query_namespace[query], pairs.memory_namespace
        relation = np.where((theirs < 0) | (mine < 0), 2, theirs != mine)
        codes = unlisted[relation]
        here = slice(bounds[query], bounds[query + 1])
        codes[listed_memory[here]] = listed[here]
        counts[query] = np.bincount(codes[visible(records, query, everyone, relation == 0)], minlength=3)
    return pd.DataFrame(counts, index=pairs.queries, columns=list(STATUSES))


def visible(records: Records, query: int | np.ndarray, memory: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Tell whether memories existed for a query, by their places in the tables; ``own``: of the query's namespace."""
    memories, queries = records.memories, records.queries
    if "visible_key" not in memories or "visible_own" not in queries:
        return np.ones(len(memory), dtype=bool)
    limits = (queries[name].to_numpy("int64")[query] for name in ("visible_own", "visible_foreign"))
    return memories["visible_key"].to_numpy("int64")[memory] < np.where(own, *limits)


def _axes(status: str) -> tuple[str, ...]:
    several = {"admissible": logic.AXES, "usable": ("relevant", *logic.AXES)}
    if status not in (*several, "relevant", *logic.AXES):
        choices = ("relevant", *logic.AXES, *several)
        raise InputError(f"status {status!r}: expected one of {', '.join(choices)}")
    return several.get(status, (status,))


def _codes(labels: pd.DataFrame, status: str) -> np.ndarray:
    """Return 0 for known 1, 1 for known 0, 2 for unresolved: places in ``STATUSES``."""
    values = logic.conjunction([labels[name] for name in _axes(status)])
    return np.where(values.isna(), 2, np.where(values.fillna(False).astype(bool), 0, 1))
