"""How good must provenance be? Namespaces guessed from text and time, against trusted ones and none (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from companion.bootstrap import Resampling, estimate
from companion.retrieval.arms.inferred import METHODS, Inferred, infer, inferred_pools
from companion.retrieval.engine import Search
from companion.stages.open_questions.kept import METRICS, score

SHARES = (0.01, 0.05, 0.2, 0.5, 1.0)
ASKERS = ("trusted", "inferred")
ABSTAINS = ("guess", "admitted", "excluded")
KEYS = ["method", "share", "asker", "abstain", "errors"]
RATES = ("false_deny", "false_allow")


def inference_study(
    search: Search,
    *,
    shares: Sequence[float] = SHARES,
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = (0, 1, 2),
    target_recall: Any = 0.8,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Search within guessed namespaces.

    Parameters
    ----------
    search : Search
        Of `companion.stages.open_questions.searched`.
    shares : sequence of float
        Shares of the memories that carry their true namespace.
    methods : sequence of str
        ``neighbours``, ``classifier``, ``clusters`` (`companion.retrieval.arms.inferred.infer`).
    seeds : sequence of int
        Draws of which memories are labelled.
    target_recall
        As for `companion.scoring.score_routes`.

    Returns
    -------
    per_query : DataFrame
        One row per condition and query, means over seeds: `KEYS` (``errors`` is ``inferred``, or ``scattered``: as
        many memories wrong, the same wrong names, but of memories drawn at random), query_id, source, group,
        evidence_recall, feasible_rate, loss, wrong_scope, foreign_share, false_deny (own visible memories shut out),
        false_allow (foreign ones let in). Methods ``trusted`` and ``global`` are the two references.
    accuracy : DataFrame
        method, share, seed, accuracy (of all memories), of_guesses, of_sure_guesses, of_askers.
    """
    layout = search.layout
    references = {"trusted": search.dense(layout.namespace_pools), "global": search.dense(layout.global_pools)}
    scored = score(search, references, target_recall)
    plain: dict[str, Any] = {"share": 1.0, "asker": "trusted", "abstain": "guess", "errors": "inferred"}
    rates = {"trusted": (0.0, 0.0), "global": (0.0, 1.0)}
    parts = [scored.rename(columns={"arm": "method"}).assign(**plain)]
    parts[0] = parts[0].assign(
        **{name: parts[0]["method"].map(lambda m, n=n: rates[m][n]) for n, name in enumerate(RATES)}
    )
    told = []
    for method in methods:
        for share in shares:
            for seed in seeds:
                found = infer(search, method, share, seed)
                told.append({"method": method, "share": share, "seed": seed, **_accuracy(search, found)})
                parts.append(_one(search, found, seed, target_recall).assign(method=method, share=share))
    every = pd.concat(parts, ignore_index=True)
    unit = [*KEYS, "query_id", "source", "group"]
    numbers = [*METRICS, "wrong_scope", "foreign_share", *RATES]
    return every.groupby(unit, sort=False)[numbers].mean().reset_index(), pd.DataFrame(told)


def _one(search: Search, found: Inferred, seed: int, target_recall: Any) -> pd.DataFrame:
    """Every way of using one inference, scored."""
    whole = bool(found.labelled.all())
    ways = [(asker, abstain, "inferred") for asker in ASKERS for abstain in (ABSTAINS[:1] if whole else ABSTAINS)]
    ways += [] if whole else [("trusted", "guess", "scattered")]
    routes, errors = {}, []
    for asker, abstain, kind in ways:
        used = scattered(search, found, seed) if kind == "scattered" else found
        pools = inferred_pools(search, used, asker, abstain)
        name = f"{asker} {abstain} {kind}"
        routes[name] = search.dense(pools)
        errors.append(_rates(search, pools).assign(arm=name, asker=asker, abstain=abstain, errors=kind))
    return score(search, routes, target_recall).merge(pd.concat(errors), on=["arm", "query_id"]).drop(columns="arm")


def scattered(search: Search, found: Inferred, seed: int) -> Inferred:
    """Make as many memories wrong, with the same wrong names, but memories drawn at random among the guessed ones."""
    true = search.layout.space
    wrong, guessed = np.flatnonzero(found.space != true), np.flatnonzero(~found.labelled)
    rng = search.rng(seed, "scattered")
    victims = rng.choice(guessed, len(wrong), replace=False) if len(guessed) else wrong
    space = true.copy()
    names = rng.permutation(found.space[wrong])
    for at in np.flatnonzero(names == true[victims]):  # a wrong name that would be right changes places
        fits = np.flatnonzero((names != true[victims[at]]) & (names[at] != true[victims]))
        if len(fits):
            other = rng.choice(fits)
            names[at], names[other] = names[other], names[at]
    space[victims] = names
    return replace(found, space=space)


def _rates(search: Search, pools: list[Any]) -> pd.DataFrame:
    """Share of the own visible memories that a search leaves out, and of the foreign ones that it lets in."""
    layout = search.layout
    rows = []
    for pool, own, every, space in zip(
        pools, layout.namespace_pools, layout.global_pools, layout.query_space, strict=True
    ):
        mine = int((layout.space[pool.positions()] == space).sum())
        foreign = every.size - own.size
        rows.append((1 - mine / own.size if own.size else np.nan, (pool.size - mine) / foreign if foreign else np.nan))
    return pd.DataFrame(rows, columns=list(RATES)).assign(query_id=search.corpus.queries["query_id"].to_numpy())


def _accuracy(search: Search, found: Inferred) -> dict[str, float]:
    right, guessed = found.space == search.layout.space, ~found.labelled
    sure = guessed & ~found.unsure

    def mean(of: np.ndarray) -> float:
        return float(right[of].mean()) if of.any() else float("nan")

    return {
        "accuracy": float(right.mean()),
        "of_guesses": mean(guessed),
        "of_sure_guesses": mean(sure),
        "of_askers": float((found.query_space == search.layout.query_space).mean()),
    }


def scattered_gap(per_query: pd.DataFrame, resampling: Resampling | None = None) -> pd.DataFrame:
    """Estimate what it costs that errors fall where they fall: inferred minus scattered, with group intervals.

    Returns method, share, source, metric, estimate, low, high; intervals resample groups within sources.
    """
    some = per_query[per_query["asker"].eq("trusted") & per_query["abstain"].eq("guess") & per_query["share"].lt(1)]
    pairs = some[some["method"].isin(METHODS)]
    return estimate(
        pairs, METRICS, by=["method", "share", "errors"], unit="query_id", versus={"errors": "scattered"},
        resampling=resampling,
    ).drop(columns="errors")  # fmt: skip
