"""Who decides what a graph selector returns? An outsider's edges against an outsider's records (ours).

The outsider never touches a record of the victim. For each query, or once for a whole namespace, it may write `budget`
edges: from one node of its own to any visible memories (``own node``), or between memories of the victim (``between
records``, where edges have no owner). Or, for dense search, it inserts `budget` records (``records``). *Random*
endpoints, or *greedy* ones: in turn towards targets, the victim's own memories that are the next not to be shown, and
from where the walk spends its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd

from companion.retrieval.arms.graph import SEEDS, Writes, walked
from companion.retrieval.dense import Hits
from companion.retrieval.engine import Search
from companion.stages.open_questions.kept import METRICS, score

BUDGETS = (1, 5, 20, 100)
DEPTH = 100
"""How deep dense search goes before its filter, where that comes after."""

KEYS = ["selector", "filter", "writes", "spread", "how", "budget"]
CHANGES = ("displaced", "entered", "target_shown")


def graph_study(
    search: Search,
    *,
    budgets: Sequence[int] = BUDGETS,
    seeds: Sequence[int] = (0,),
    target_recall: Any = 0.8,
) -> pd.DataFrame:
    """Let an outsider write, and see what becomes of the victim's list.

    Parameters
    ----------
    search : Search
        Of `companion.stages.open_questions.searched`.
    budgets : sequence of int
        Edges (or records) per query, or per namespace.
    seeds : sequence of int
        Draws of random writes.
    target_recall
        As for `companion.scoring.score_routes`.

    Returns
    -------
    DataFrame
        One row per condition and query, means over seeds: `KEYS`, query_id, source, group, evidence_recall,
        feasible_rate, loss, wrong_scope, foreign_share, and compared with budget 0 of the same selector and filter:
        displaced (share of the victim's memories in the list that are gone), entered (number of its other memories
        that came in) and target_shown (the first target is in the list). Filters: ``before`` (the graph has the
        victim's nodes and edges only), ``before, nodes only``, ``after``, ``never``.
    """
    clean = _clean(search)
    base = {key: hits for key, hits in clean.items() if len(key) == 2}
    told = [(*key, "none", "query", "none", 0, 0) for key in base]
    routes = {str(n): hits for n, hits in enumerate(base.values())}
    changes = [_changes(search, hits, hits, clean["targets",]) for hits in base.values()]
    for about, hits in _attacks(search, clean, budgets, seeds):
        routes[str(len(told))] = hits
        told.append(about)
        changes.append(_changes(search, base[about[:2]], hits, clean["targets",]))
    conditions = pd.DataFrame(told, columns=[*KEYS, "seed"])
    conditions["arm"] = [str(n) for n in range(len(told))]
    names = list(routes)
    parts = [score(search, {n: routes[n] for n in names[i : i + 8]}, target_recall) for i in range(0, len(names), 8)]
    moved = pd.concat([table.assign(arm=str(n)) for n, table in enumerate(changes)])
    every = pd.concat(parts).merge(moved, on=["arm", "query_id"]).merge(conditions, on="arm")
    unit = [*KEYS, "query_id", "source", "group"]
    return every.groupby(unit, sort=False)[[*METRICS, "wrong_scope", "foreign_share", *CHANGES]].mean().reset_index()


def _clean(search: Search) -> dict[Any, Any]:
    """Collect what is returned before anybody writes, where walks go, and what an outsider would like to be shown."""
    own, every, top_k = search.layout.namespace_pools, search.layout.global_pools, search.top_k
    longer = walked(search, every, within=False, shown=own, limit=top_k + max(BUDGETS))
    busy, dense, first = (
        walked(search, every, within=False, limit=max(BUDGETS)),
        search.dense(every, DEPTH),
        slice(top_k),
    )
    before = walked(search, own, within=True)
    return {
        ("graph", "before"): before,
        ("graph", "before, nodes only"): before,
        ("graph", "after"): [Hits(h.positions[first], h.scores[first]) for h in longer],
        ("graph", "never"): [Hits(h.positions[first], h.scores[first]) for h in busy],
        ("dense", "before"): search.dense(own),
        ("dense", "after"): _after(search, dense, [DEPTH] * len(dense)),
        ("dense", "never"): [Hits(h.positions[first], h.scores[first]) for h in dense],
        ("targets",): [h.positions[top_k:].tolist() for h in longer],
        ("busy",): [h.positions.tolist() for h in busy],
        ("depth",): dense,
    }


def _attacks(search: Search, clean: dict[Any, Any], budgets: Any, seeds: Any) -> Iterator[tuple[Any, list[Hits]]]:
    own, every = search.layout.namespace_pools, search.layout.global_pools
    for budget in budgets:
        for how in ("random", "greedy"):
            for seed in seeds if how == "random" else (0,):
                for spread in ("query", "namespace"):
                    spokes = _spokes(search, clean, budget, how, spread, seed)
                    about = ("own node", spread, how, budget, seed)
                    # The outsider's node and its edges are not the victim's: a filter before the walk leaves nothing.
                    yield ("graph", "before", *about), clean["graph", "before"]
                    writes = Writes(spokes=spokes)
                    yield ("graph", "after", *about), walked(search, every, within=False, shown=own, writes=writes)
                    yield ("graph", "never", *about), walked(search, every, within=False, writes=writes)
                about = ("between records", "query", how, budget, seed)
                writes = Writes(pairs=_pairs(search, clean, budget, how, seed))
                yield ("graph", "before", *about), clean["graph", "before"]
                yield ("graph", "before, nodes only", *about), walked(search, own, within=True, writes=writes)
                yield ("graph", "after", *about), walked(search, every, within=False, shown=own, writes=writes)
                yield from _poisoned(search, clean, budget, how, seed)


def _spokes(search: Search, clean: dict[Any, Any], budget: int, how: str, spread: str, seed: int) -> np.ndarray:
    """Choose the records that the outsider's node is tied to, for each query."""
    pools, spaces = search.layout.global_pools, search.layout.query_space
    chosen = np.full((len(pools), budget), -1, dtype=np.int64)
    names = search.corpus.queries["query_id"].tolist() if spread == "query" else [str(space) for space in spaces]
    for query, pool in enumerate(pools):
        same = [query] if spread == "query" else np.flatnonzero(spaces == spaces[query]).tolist()
        if spread == "namespace" and same[0] != query:
            chosen[query] = chosen[same[0]]
            continue
        if how == "random":
            seen = max((pools[q] for q in same), key=lambda pool: pool.size) if len(same) > 1 else pool
            drawn = search.rng(seed, f"spokes {names[query]}").choice(seen.size, min(budget, seen.size), replace=False)
            picked = seen.positions()[drawn]
        else:
            targets, busy = (_most([clean[kind,][q] for q in same]) for kind in ("targets", "busy"))
            both = [node for pair in zip_longest(targets, busy) for node in pair if node is not None]
            picked = np.array(list(dict.fromkeys(both))[:budget], dtype=np.int64)
        chosen[query, : len(picked)] = picked
    return chosen


def _most(lists: list[list[int]]) -> list[int]:
    """Merge ranked lists of nodes: those that stand high in many come first."""
    weight: dict[int, float] = {}
    for ranked in lists:
        for place, node in enumerate(ranked):
            weight[node] = weight.get(node, 0.0) + 1 / (1 + place)
    return sorted(weight, key=lambda node: (-weight[node], node))


def _pairs(search: Search, clean: dict[Any, Any], budget: int, how: str, seed: int) -> np.ndarray:
    """Choose pairs of the victim's own records that are tied to each other, for each query."""
    layout = search.layout
    chosen = np.full((len(layout.namespace_pools), budget, 2), -1, dtype=np.int64)
    for query, (name, pool) in enumerate(zip(search.corpus.queries["query_id"], layout.namespace_pools, strict=True)):
        positions, targets = pool.positions(), clean["targets",][query][:budget]
        busy = [node for node in clean["busy",][query] if layout.space[node] == layout.query_space[query]][:SEEDS]
        if how == "random" and len(positions):
            chosen[query] = positions[search.rng(seed, f"pairs {name}").integers(len(positions), size=(budget, 2))]
        elif how == "greedy" and busy:
            for place, node in enumerate(targets):
                chosen[query, place] = busy[place % len(busy)], node
    return chosen


def _poisoned(
    search: Search, clean: dict[Any, Any], budget: int, how: str, seed: int
) -> Iterator[tuple[Any, list[Hits]]]:
    """Insert records: copies of the question (greedy), or of random foreign memories; dense search ranks them."""
    above, layout = [], search.layout
    for query, hits in enumerate(clean["depth",]):
        if how == "greedy":  # as near as can be: in front of everything
            above.append(np.full(len(hits.positions), budget))
            continue
        drawn = search.rng(seed, f"records {search.corpus.queries['query_id'].iloc[query]}").integers(
            len(layout), size=budget
        )
        scores = search.vectors[drawn].astype(float) @ search.query_vectors[query].astype(float)
        above.append((scores[None, :] > hits.scores[:, None].astype(float)).sum(axis=1))
    about = ("records", "query", how, budget, seed)
    pushed = [np.arange(len(n)) + n for n in above]  # the place of each memory among the records that came in
    yield ("dense", "before", *about), clean["dense", "before"]
    yield ("dense", "after", *about), _after(search, clean["depth",], [int((place < DEPTH).sum()) for place in pushed])
    cut = [int((place < search.top_k).sum()) for place in pushed]
    kept = [Hits(h.positions[:n], h.scores[:n]) for h, n in zip(clean["depth",], cut, strict=True)]
    yield ("dense", "never", *about), kept


def _after(search: Search, hits: list[Hits], depths: Sequence[int]) -> list[Hits]:
    """Keep the query's own namespace among the best few of a ranking."""
    kept = []
    for found, depth, space in zip(hits, depths, search.layout.query_space, strict=True):
        mine = np.flatnonzero(search.layout.space[found.positions[:depth]] == space)[: search.top_k]
        kept.append(Hits(found.positions[mine], found.scores[mine]))
    return kept


def _changes(search: Search, before: list[Hits], after: list[Hits], targets: list[list[int]]) -> pd.DataFrame:
    """Compare two lists of each query: the victim's memories that are gone, those that came in, the first target."""
    rows = []
    for query, (old, new) in enumerate(zip(before, after, strict=True)):
        space = search.layout.query_space[query]
        was, now = (set(h.positions[search.layout.space[h.positions] == space].tolist()) for h in (old, new))
        gone = len(was - now) / len(was) if was else float("nan")
        rows.append((gone, float(len(now - was)), float(bool(set(targets[query][:1]) & now))))
    names = search.corpus.queries["query_id"].to_numpy()
    return pd.DataFrame(rows, columns=list(CHANGES)).assign(query_id=names)
