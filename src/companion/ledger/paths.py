"""Follow single memories through a route, from the store to the answer."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.ledger.build import KEY, check
from companion.ledger.flow import visible
from companion.scoring import label_ranked
from companion.tables import Records

_TRUTHS = ["relevant", *logic.AXES, "admissible", "usable"]


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
        Checked. Rankings beside the ledger give the ranks that it lacks, and the routes that it does not hold: of those
        nothing is known to have been exposed.
    ledger : DataFrame
        As `build`, `check` or `link` return it.
    query_id, memory_id, arm : str
        The query to follow; one memory, also where a route did not retrieve it; one route. By default everything.
    routes : sequence of str, optional
        The routes that were run, where the ledger is of a few queries only; by default those of the ledger.
    origin : str
        What messages call the records.

    Returns
    -------
    DataFrame, by route and rank
        ``arm``, ``memory_id``, ``namespace``, ``rank`` (Int64), ``score``; boolean ``relevant``, ``scope``, ``policy``,
        ``lifecycle``, ``admissible``, ``usable``; ``reasons`` (the axes known to be 0), boolean ``stored`` (False if
        the memory came into being after the query), ``retrieved``, ``gate_<name>``, ``exposed``; ``stopped_by`` (``not
        stored yet``, ``not retrieved``, ``gate_<name>``, ``budget``, or missing), and boolean ``disclosed``.

    Raises
    ------
    InputError
        An unknown query, memory or route, or no route retrieved anything and no memory is named.
    """
    refuse_unknown(records.queries["query_id"], query_id, "query", origin)
    run = list(dict.fromkeys(ledger["arm"] if routes is None else routes))
    if arm is not None and arm not in run:
        raise InputError(f"route {arm!r}: not among those of {origin}; expected one of {', '.join(run) or 'none'}")
    arms = run if arm is None else [arm]
    rows = _with_rankings(records, ledger, query_id)
    rows = rows[(rows["query_id"] == query_id) & rows["arm"].isin(arms)]
    if memory_id is not None:
        refuse_unknown(records.memories["memory_id"], memory_id, "memory", origin)
        rows = _with_absent(rows[rows["memory_id"] == memory_id], query_id, memory_id, arms)
    elif rows.empty:
        raise InputError(
            f"query {query_id!r}: {' and '.join(arms) or 'no route'} retrieved nothing for it in {origin}; "
            "expected another route or query, or a memory to look for"
        )
    path = rows.reset_index(drop=True)
    labels = label_ranked(records, path[KEY])
    path = path.assign(stored=_stored(records, path), **{name: labels[name] for name in _TRUTHS})
    reasons = logic.exclusion_reasons(path["scope"], path["policy"], path["lifecycle"])
    path["reasons"] = pd.Series([", ".join(found) for found in reasons], index=path.index, dtype="str")
    path["namespace"] = path["memory_id"].map(records.memories.set_index("memory_id")["namespace"])
    return _arranged(path.assign(stopped_by=_ended(path)), arms)


def _with_rankings(records: Records, ledger: pd.DataFrame, query_id: str) -> pd.DataFrame:
    """Take ranks and scores that the ledger lacks from the rankings, and routes that it does not hold."""
    rows = ledger[ledger["query_id"] == query_id]
    ranked = records.rankings
    if ranked is None:
        return rows
    ranked = ranked[ranked["query_id"] == query_id]
    if "rank" not in rows or rows["rank"].isna().all():
        rows = rows.drop(columns=["rank", "score"], errors="ignore")
        rows = rows.merge(ranked[[*KEY, "rank", "score"]], on=KEY, how="left")
    more = ranked.loc[~ranked["arm"].isin(ledger["arm"]), [*KEY, "rank", "score"]]
    return check(pd.concat([rows, more.assign(retrieved=True)])) if len(more) else rows


def _with_absent(rows: pd.DataFrame, query_id: str, memory_id: str, arms: list[str]) -> pd.DataFrame:
    """Add a row for every route that did not retrieve the memory."""
    absent = [arm for arm in arms if arm not in set(rows["arm"])]
    added = pd.DataFrame({"query_id": query_id, "arm": absent, "memory_id": memory_id}, dtype="str")
    added = added.assign(retrieved=False, exposed=False)
    return check(pd.concat([rows, added]) if len(rows) else added)


def _stored(records: Records, path: pd.DataFrame) -> pd.Series:
    """Tell whether each memory existed for the query, where the corpus is limited in time."""
    queries, memories = records.queries, records.memories
    query = pd.Index(queries["query_id"]).get_indexer(path["query_id"])
    memory = pd.Index(memories["memory_id"]).get_indexer(path["memory_id"])
    own = queries["namespace"].to_numpy()[query] == memories["namespace"].to_numpy()[memory]
    return pd.Series(visible(records, query, memory, own), index=path.index, dtype="boolean")


def _ended(path: pd.DataFrame) -> pd.Series:
    """Say what ended each path; the ledger's own word stands where it has one."""
    retrieved, stored = (path[name].fillna(False).to_numpy(bool) for name in ("retrieved", "stored"))
    early = retrieved & ~stored
    if early.any():
        row = path.iloc[int(early.argmax())]
        raise InputError(
            f"ledger: query {row['query_id']!r}, route {row['arm']!r}, memory {row['memory_id']!r} is retrieved "
            "without stored (the memory is later than the query)"
        )
    given = path["stopped_by"] if "stopped_by" in path else pd.Series(np.nan, path.index)
    exposed = path["exposed"].fillna(False).to_numpy(bool)
    ended = given.astype("str").mask(given.isna() & ~retrieved & ~exposed, "not retrieved")
    return ended.mask(~stored, "not stored yet")


def _arranged(path: pd.DataFrame, arms: list[str]) -> pd.DataFrame:
    dtypes: dict[str, Any] = {"rank": "Int64", "score": "Float64", "disclosed": "boolean"}
    path = path.assign(**dict.fromkeys([name for name in dtypes if name not in path], np.nan)).astype(dtypes)
    gates = [name for name in path if str(name).startswith("gate_")]
    columns = ["arm", "memory_id", "namespace", "rank", "score", *_TRUTHS, "reasons", "stored", "retrieved"]
    order = path["arm"].map({name: place for place, name in enumerate(arms)})
    ordered = path.assign(_order=order).sort_values(["_order", "rank"], ignore_index=True)
    return ordered[[*columns, *gates, "exposed", "stopped_by", "disclosed"]]


def refuse_unknown(ids: pd.Series, wanted: str, what: str, origin: str) -> None:
    """Refuse an id that is not there, and name one that is: the nearest, else the first."""
    if ids.eq(wanted).any():
        return
    names = list(dict.fromkeys(ids.dropna()))
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected an id like {names[0]!r}" if names else "it holds none"
    raise InputError(f"{what} {wanted!r}: not in {origin}; {hint}")
