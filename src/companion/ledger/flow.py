"""How many memories of each status reach each step of a route (Protocol section 7)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.scoring import PairLabels, label_ranked
from companion.tables import Records

STEPS = ("stored", "retrieved", "passed", "exposed", "disclosed")
"""Steps in order; ``passed`` means past the gates, and the last is observed, not implied by the one before."""

STATUSES = {"admissible": True, "inadmissible": False, "unresolved": pd.NA}

_EVERYTHING = int(np.iinfo(np.int64).max)


def flow(records: Records, ledger: pd.DataFrame, status: str = "admissible") -> pd.DataFrame:
    """Count the (query, memory) pairs of each status that reach each step, per route (Protocol section 7).

    Parameters
    ----------
    records : Records
        Checked. Where ``memories`` has ``visible_key`` and ``queries`` has ``visible_own`` and ``visible_foreign``
        (a corpus limited in time), a memory counts as stored for a query only if it was visible to it.
    ledger : DataFrame
        As ``build``, ``check`` or ``link`` return it. A route's stored memories are those of the queries it
        has rows for.
    status : str
        ``admissible``, ``usable``, ``relevant`` or one axis.

    Returns
    -------
    DataFrame
        ``arm``, ``step``, ``status`` (``admissible``, ``inadmissible``, ``unresolved``, whatever the axis: 1, 0 and
        ?), ``pairs`` (int64), ``share`` (of the step's pairs; NaN for an empty step), ``queries`` (int64). Steps that
        the ledger does not record are left out. In ``disclosed``, a pair counts if its disclosure is known to be 1.

    Raises
    ------
    InputError
        An unknown status, or ids that the records do not hold.
    """
    choices = ("relevant", *logic.AXES, "admissible", "usable")
    if status not in choices:
        raise InputError(f"status {status!r}: expected one of {', '.join(choices)}")
    rows = label_ranked(records, ledger[["query_id", "arm", "memory_id"]])
    parts = [_stored(records, rows, status)]
    for step in STEPS[1:]:
        if step in ledger:
            reached = ledger[step].astype("boolean").fillna(False).to_numpy(bool)
            parts.append(_counted(rows[reached], step, status))
    queries = rows.groupby("arm")["query_id"].nunique()
    arms = list(dict.fromkeys(ledger["arm"]))
    steps = [part["step"].iloc[0] for part in parts if len(part)]
    wanted = pd.MultiIndex.from_product([arms, steps, list(STATUSES)], names=["arm", "step", "status"])
    counts = pd.concat(parts).set_index(["arm", "step", "status"])["pairs"].reindex(wanted, fill_value=0)
    table = counts.astype("int64").reset_index()
    totals = table.groupby(["arm", "step"])["pairs"].transform("sum")
    table["share"] = table["pairs"].to_numpy() / totals.where(totals > 0).to_numpy("float64", na_value=np.nan)
    table["queries"] = table["arm"].map(queries).astype("int64")
    return table


def stored_counts(records: Records, status: str = "admissible") -> pd.DataFrame:
    """Count, for every query, the stored memories of each status without listing the pairs.

    Parameters
    ----------
    records : Records
        Checked; time limits as in :func:`flow`.
    status : str
        As in :func:`flow`.

    Returns
    -------
    DataFrame
        Indexed by ``query_id``: ``admissible``, ``inadmissible``, ``unresolved`` (int64). A pair that the labels do
        not list takes scope from the namespaces and the other axes from the corpus's defaults.
    """
    pairs = PairLabels.from_records(records)
    own, foreign, unknown = _visible(records, pairs)
    query, memory = np.divmod(pairs.keys.to_numpy(), max(len(pairs.memories), 1))
    seen = _listed_visible(records, pairs, query, memory)
    listed = _status_codes(pairs.lookup(query[seen], memory[seen]), status)
    group = _kinship(pairs, query[seen], memory[seen])
    counts = np.zeros((len(pairs.queries), len(STATUSES)), dtype="int64")
    np.add.at(counts, (query[seen], listed), 1)
    for code, total in enumerate((own, foreign, unknown)):
        taken = np.bincount(query[seen][group == code], minlength=len(pairs.queries))
        counts[:, _unlisted_code(pairs, code, status)] += total - taken
    return pd.DataFrame(counts, index=pairs.queries, columns=list(STATUSES))


def _stored(records: Records, rows: pd.DataFrame, status: str) -> pd.DataFrame:
    asked = rows[["arm", "query_id"]].drop_duplicates()
    sums = asked.join(stored_counts(records, status), on="query_id").groupby("arm", sort=False)[list(STATUSES)].sum()
    long = sums.reset_index().melt(id_vars="arm", var_name="status", value_name="pairs")
    return long.assign(step="stored")


def _counted(rows: pd.DataFrame, step: str, status: str) -> pd.DataFrame:
    names = np.array(list(STATUSES))[_status_codes(rows, status)]
    counts = pd.DataFrame({"arm": rows["arm"].to_numpy(), "status": names}).value_counts().rename("pairs")
    table = counts.reset_index().assign(step=step)
    return table if len(table) else pd.DataFrame({"arm": [""], "status": ["admissible"], "pairs": [0], "step": [step]})


def _status_codes(labels: pd.DataFrame, status: str) -> np.ndarray:
    """Return 0 for known 1, 1 for known 0, 2 for unresolved: places in ``STATUSES``."""
    if status == "usable":
        values = logic.status(labels, family="non_usable")
    else:
        values = logic.status(labels) if status == "admissible" else labels[status]
    missing = values.isna().to_numpy()
    return np.where(missing, 2, np.where(values.fillna(False).to_numpy(bool), 0, 1))


def _kinship(pairs: PairLabels, query: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Return 0 for the query's own namespace, 1 for another one, 2 where either is unknown."""
    mine, theirs = pairs.query_namespace[query], pairs.memory_namespace[memory]
    return np.where((mine < 0) | (theirs < 0), 2, np.where(mine == theirs, 0, 1))


def _unlisted_code(pairs: PairLabels, kinship: int, status: str) -> int:
    """Return the status of a pair that labels do not list, given how its namespaces relate."""
    scope = (True, False, pd.NA)[kinship]
    stated = {name: pairs.defaults.get(name, pd.NA) for name in ("relevant", "policy", "lifecycle")}
    labels = pd.DataFrame({"scope": [scope], **{name: [value] for name, value in stated.items()}}).astype("boolean")
    return int(_status_codes(labels, status)[0])


def _limits(records: Records) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    def column(table: pd.DataFrame, name: str, default: int) -> np.ndarray:
        return table[name].to_numpy("int64") if name in table else np.full(len(table), default, dtype="int64")

    return (
        column(records.memories, "visible_key", 0),
        column(records.queries, "visible_own", _EVERYTHING),
        column(records.queries, "visible_foreign", _EVERYTHING),
    )


def _listed_visible(records: Records, pairs: PairLabels, query: np.ndarray, memory: np.ndarray) -> np.ndarray:
    key, own, foreign = _limits(records)
    limit = np.where(_kinship(pairs, query, memory) == 0, own[query], foreign[query])
    return key[memory] < limit


def _visible(records: Records, pairs: PairLabels) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count visible memories per query: of its own namespace, of others, and where the relation is unknown."""
    key, own_limit, foreign_limit = _limits(records)
    named = pairs.memory_namespace >= 0
    everywhere = np.searchsorted(np.sort(key[named]), foreign_limit)
    nameless = np.searchsorted(np.sort(key[~named]), foreign_limit)
    own = np.zeros(len(pairs.queries), dtype="int64")
    own_below_foreign = np.zeros(len(pairs.queries), dtype="int64")
    for space in np.unique(pairs.query_namespace[pairs.query_namespace >= 0]):
        asking = pairs.query_namespace == space
        keys = np.sort(key[pairs.memory_namespace == space])
        own[asking] = np.searchsorted(keys, own_limit[asking])
        own_below_foreign[asking] = np.searchsorted(keys, foreign_limit[asking])
    anonymous = pairs.query_namespace < 0
    foreign = np.where(anonymous, 0, everywhere - own_below_foreign)
    return own, foreign, np.where(anonymous, everywhere + nameless, nameless)
