"""Turn known labels into unresolved ones after retrieval, to show what missing labels cost (protocol, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.scoring.pairs import PairLabels, anchors_of, encode
from companion.scoring.routes import Recall, score_routes
from companion.tables import Records


def stable_uniform(*ids: pd.Series, seed: int, salt: str) -> np.ndarray:
    """Draw a number in [0, 1) for every row from its ids alone.

    Parameters
    ----------
    *ids : Series of str, each of shape (n,)
    seed : int
    salt : str
        Names the use, so that two uses with one seed are independent.

    Returns
    -------
    ndarray of float64, shape (n,)
        The same for the same ids, whatever the order of rows and whatever other rows there are. A threshold on
        these numbers is nested: what falls below a rate falls below every higher one.
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
    if records.rankings is None:
        raise InputError("no rankings: hiding concerns the labels of ranked memories")
    pairs = records.rankings[["query_id", "memory_id"]].drop_duplicates(ignore_index=True)
    known = PairLabels.from_records(records)
    labels = known.lookup(
        encode(pairs["query_id"], known.queries, "rankings", "query_id"),
        encode(pairs["memory_id"], known.memories, "rankings", "memory_id"),
    )
    hidden = stable_uniform(pairs["query_id"], pairs["memory_id"], seed=seed, salt="hide") < rate
    labels.loc[hidden, ["relevant", *logic.AXES]] = pd.NA
    table = pd.concat([pairs, labels], axis=1)
    table["anchor_id"] = pd.Series(pd.NA, index=table.index, dtype="str")
    return replace(records, labels=table)


def hiding_sweep(
    records: Records,
    rates: Sequence[float],
    seed: int = 0,
    *,
    target_recall: Recall = 0.8,
    top_k: int | None = None,
    infeasibility_cost: float = 1.0,
) -> pd.DataFrame:
    """Score the same rankings while more and more labels are hidden.

    Parameters
    ----------
    records : Records
    rates : sequence of float
    seed : int
    target_recall, top_k, infeasibility_cost
        As in ``score_routes``.

    Returns
    -------
    DataFrame
        Per-query scores as from ``score_routes`` with a leading column ``rate``. Recall, feasibility and matched
        prefix do not depend on the rate; coverage falls and bounds widen.
    """
    anchors = anchors_of(records)
    parts = [
        score_routes(
            hide_labels(records, rate, seed),
            anchors=anchors,
            target_recall=target_recall,
            top_k=top_k,
            infeasibility_cost=infeasibility_cost,
        ).assign(rate=rate)
        for rate in rates
    ]
    table = pd.concat(parts, ignore_index=True)
    return table[["rate", *(c for c in table.columns if c != "rate")]]
