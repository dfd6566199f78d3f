"""Follow single memories through a route, from the store to the answer (Protocol section 7)."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.ledger.build import KEY, check
from companion.scoring import label_ranked
from companion.tables import Records


def trace(
    records: Records,
    ledger: pd.DataFrame,
    query_id: str,
    memory_id: str | None = None,
    arm: str | None = None,
    routes: Sequence[str] | None = None,
    origin: str = "the records",
) -> pd.DataFrame:
    """List where memories went for one query, and why.

    Parameters
    ----------
    records : Records
        Checked.
    ledger : DataFrame
        As ``build``, ``check`` or ``link`` return it.
    query_id : str
        The query to follow.
    memory_id : str, optional
        One memory; also followed where a route did not retrieve it. By default every memory of the ledger's rows.
    arm : str, optional
        One route; by default all of them.
    routes : sequence of str, optional
        The routes that were run, where the ledger is of a few queries only; by default those of the ledger.
    origin : str
        What messages call the records.

    Returns
    -------
    DataFrame
        ``arm``, ``memory_id``, ``namespace``, ``rank`` (Int64), ``score``; boolean ``relevant``, ``scope``, ``policy``,
        ``lifecycle``, ``admissible``, ``usable``; ``reasons`` (the axes known to be 0, comma-separated), boolean
        ``stored`` (False if the memory came into being after the query), ``retrieved``, ``gate_<name>`` per gate,
        ``exposed``, ``stopped_by`` (``not stored yet``, ``not retrieved``, ``gate_<name>``, ``budget``, or missing),
        and boolean ``disclosed``. By route and rank.

    Raises
    ------
    InputError
        The query, memory or route does not exist, or none of the routes retrieved anything for the query and no
        memory is named; the message says what there is.
    """
    refuse_unknown(records.queries["query_id"], query_id, "query", origin)
    run = list(dict.fromkeys(ledger["arm"] if routes is None else routes))
    if arm is not None and arm not in run:
        raise InputError(f"route {arm!r}: not among those of {origin}; expected one of {', '.join(run) or 'none'}")
    arms = run if arm is None else [arm]
    rows = ledger[(ledger["query_id"] == query_id) & ledger["arm"].isin(arms)]
    if memory_id is not None:
        refuse_unknown(records.memories["memory_id"], memory_id, "memory", origin)
        rows = _with_absent(rows[rows["memory_id"] == memory_id], query_id, memory_id, arms)
    elif rows.empty:
        raise InputError(
            f"query {query_id!r}: {' and '.join(arms) or 'no route'} retrieved nothing for it in {origin}; "
            "expected another route or query, or a memory to look for"
        )
    labels = label_ranked(records, rows[KEY].reset_index(drop=True))
    path = rows.reset_index(drop=True).copy()
    path["stored"] = _stored(records, path)
    for name in ("retrieved", "exposed"):
        path[name] = path[name].astype("boolean")
    for name in ("relevant", *logic.AXES, "admissible", "usable"):
        path[name] = labels[name]
    reasons = logic.exclusion_reasons(path["scope"], path["policy"], path["lifecycle"])
    path["reasons"] = pd.Series([", ".join(found) for found in reasons], index=path.index, dtype="str")
    path["namespace"] = path["memory_id"].map(records.memories.set_index("memory_id")["namespace"])
    return _arranged(_with_reason(path), arms)


def _with_absent(rows: pd.DataFrame, query_id: str, memory_id: str, arms: list[str]) -> pd.DataFrame:
    """Add a row for every route that did not retrieve the memory."""
    absent = [arm for arm in arms if arm not in set(rows["arm"])]
    if not absent:
        return rows
    # Whole numbers (rank, tokens) have no value for a memory that was not retrieved.
    kept = rows.astype({name: "Int64" for name in rows.select_dtypes("int64")})
    added = pd.DataFrame({"query_id": query_id, "arm": absent, "memory_id": memory_id}).reindex(columns=kept.columns)
    added = added.assign(retrieved=False, exposed=False).astype(kept.dtypes.to_dict())
    return check(pd.concat([kept, added], ignore_index=True) if len(kept) else added)


def _stored(records: Records, path: pd.DataFrame) -> pd.Series:
    """Tell whether each memory existed for the query, where the corpus is limited in time."""
    asked, memories = records.queries, records.memories
    if "visible_key" not in memories or "visible_own" not in asked:
        return pd.Series(True, index=path.index, dtype="boolean")
    query = asked.set_index("query_id").loc[path["query_id"]]
    memory = memories.set_index("memory_id").loc[path["memory_id"]]
    own = query["namespace"].to_numpy() == memory["namespace"].to_numpy()
    limit = np.where(own, query["visible_own"].to_numpy(), query["visible_foreign"].to_numpy())
    return pd.Series(memory["visible_key"].to_numpy() < limit, index=path.index, dtype="boolean")


def _with_reason(path: pd.DataFrame) -> pd.DataFrame:
    """Say what ended each path; the ledger's own word stands where it has one."""
    retrieved = path["retrieved"].fillna(False).to_numpy(bool)
    stored = path["stored"].fillna(False).to_numpy(bool)
    if (retrieved & ~stored).any():
        row = path.iloc[int((retrieved & ~stored).argmax())]
        raise InputError(
            f"ledger: query {row['query_id']!r}, route {row['arm']!r}, memory {row['memory_id']!r} is retrieved "
            "without stored (the memory is later than the query)"
        )
    given = path["stopped_by"].astype(object) if "stopped_by" in path else pd.Series(None, path.index, dtype=object)
    given[given.isna().to_numpy() & ~retrieved] = "not retrieved"
    given[~stored] = "not stored yet"
    path["stopped_by"] = given.astype("str")
    return path


def _arranged(path: pd.DataFrame, arms: list[str]) -> pd.DataFrame:
    dtypes: dict[str, Any] = {"rank": "Int64", "score": "Float64", "disclosed": "boolean"}
    for name in dtypes:
        if name not in path:
            path[name] = pd.NA
    path = path.astype(dtypes)
    gates = [name for name in path if str(name).startswith("gate_")]
    truths = ["relevant", *logic.AXES, "admissible", "usable"]
    columns = ["arm", "memory_id", "namespace", "rank", "score", *truths, "reasons", "stored", "retrieved"]
    order = path["arm"].map({name: place for place, name in enumerate(arms)})
    ordered = path.assign(_order=order).sort_values(["_order", "rank"], ignore_index=True)
    return ordered[[*columns, *gates, "exposed", "stopped_by", "disclosed"]]


def refuse_unknown(ids: pd.Series, wanted: str, what: str, origin: str) -> None:
    """Refuse an id that is not there, and name one that is: the nearest, else the first.

    Parameters
    ----------
    ids : Series of str
        The ids there are.
    wanted : str
    what, origin : str
        What messages call the id (``query``, ``memory``) and the place it should be in.

    Raises
    ------
    InputError
        The id is not among them.
    """
    if ids.eq(wanted).any():
        return
    names = list(dict.fromkeys(ids.dropna()))
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected an id like {names[0]!r}" if names else "it holds none"
    raise InputError(f"{what} {wanted!r}: not in {origin}; {hint}")
