"""Score 33,903 routes of depth 100 at once, beside loops over routes in the same run.

The number of routes is that of the paper's evaluation split (3,767 queries) under nine arms. Labels, namespaces and
anchors are random but of realistic density. Each way of scoring runs in a process of its own, so that its peak
memory can be read from the operating system. The loops run on a sample of routes and are scaled up linearly; on
that sample their results must equal ours.

Run: python benchmarks/scoring.py
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd

QUERIES, ARMS, DEPTH, MEMORIES, NAMESPACES = 3_767, 9, 100, 20_000, 87
SAMPLE = 1_500
CHECKED = ["evidence_recall", "feasible", "matched_prefix", "lower_bound", "upper_bound", "violation_count", "loss"]


def make_tables(seed: int = 0) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    memory = np.array([f"memory-{i:06d}" for i in range(MEMORIES)])
    query = np.array([f"query-{i:05d}" for i in range(QUERIES)])
    space = np.array([f"namespace-{i:03d}" for i in range(NAMESPACES)])
    memories = pd.DataFrame({"memory_id": memory, "namespace": space[rng.integers(0, NAMESPACES, MEMORIES)]})
    queries = pd.DataFrame({"query_id": query, "namespace": space[rng.integers(0, NAMESPACES, QUERIES)]})
    pool = np.stack([rng.choice(MEMORIES, 2 * DEPTH, replace=False) for _ in range(QUERIES)])
    routes = [pool[q, rng.permutation(2 * DEPTH)[:DEPTH]] for _ in range(ARMS) for q in range(QUERIES)]
    rankings = pd.DataFrame(
        {
            "arm": np.repeat([f"arm-{i}" for i in range(ARMS)], QUERIES * DEPTH),
            "query_id": np.tile(np.repeat(query, DEPTH), ARMS),
            "rank": np.tile(np.arange(1, DEPTH + 1), QUERIES * ARMS),
            "memory_id": memory[np.concatenate(routes)],
        }
    )
    listed = pool[:, : DEPTH // 2]
    n = listed.size
    # The first three of a query are its anchors; the rest are random on every axis.
    anchor = np.tile(np.arange(DEPTH // 2) < 3, QUERIES)
    draw = {a: np.where(anchor, 1.0, rng.choice([1.0, 0.0, np.nan], n, p=[0.7, 0.2, 0.1])) for a in ("scope", "policy")}
    draw["lifecycle"] = np.where(anchor, 1.0, rng.choice([1.0, 0.0, np.nan], n, p=[0.7, 0.2, 0.1]))
    labels = pd.DataFrame(
        {
            "query_id": np.repeat(query, DEPTH // 2),
            "memory_id": memory[listed.ravel()],
            "relevant": pd.array(np.where(anchor, 1.0, np.nan), dtype="Float64").astype("boolean"),
            **{axis: pd.array(values, dtype="Float64").astype("boolean") for axis, values in draw.items()},
        }
    )
    for axis in ("scope", "policy", "lifecycle"):
        labels[axis] = pd.Series(draw[axis]).map({1.0: True, 0.0: False}).astype("boolean")
    return {"memories": memories, "queries": queries, "labels": labels, "rankings": rankings}


def vectorised(tables: dict[str, pd.DataFrame]) -> tuple[float, pd.DataFrame]:
    from companion.scoring import score_routes
    from companion.tables import Records, validate

    records = Records(**{name: validate(table, name) for name, table in tables.items()})
    start = time.perf_counter()
    result = score_routes(records)
    return time.perf_counter() - start, result


def pandas_loop(tables: dict[str, pd.DataFrame]) -> tuple[float, pd.DataFrame]:
    """Merge each route with the labels and walk down its ranks: what one writes first."""
    memories, queries = tables["memories"], tables["queries"].set_index("query_id")
    labels = {query: part for query, part in tables["labels"].groupby("query_id")}
    routes = list(sample_routes(tables["rankings"]))
    rows = []
    start = time.perf_counter()
    for (arm, query), route in routes:
        own = labels[query]
        merged = route.merge(memories, on="memory_id").merge(
            own, on=["query_id", "memory_id"], how="left", indicator=True
        )
        unlisted = merged["_merge"] == "left_only"
        same = (merged["namespace"] == queries.loc[query, "namespace"]).astype("boolean")
        scope = merged["scope"].where(~unlisted, same)
        status = scope & merged["policy"] & merged["lifecycle"]
        usable = (own["relevant"] & own["scope"] & own["policy"] & own["lifecycle"]).fillna(False)
        anchors = set(own.loc[usable, "memory_id"])
        rows.append({"arm": arm, "query_id": query, **walk(list(merged["memory_id"]), list(status), anchors)})
    return time.perf_counter() - start, pd.DataFrame(rows)


def dict_loop(tables: dict[str, pd.DataFrame]) -> tuple[float, pd.DataFrame]:
    """Loop over routes with labels and namespaces in dictionaries made beforehand (their making is not timed)."""
    memory_space = dict(zip(tables["memories"]["memory_id"], tables["memories"]["namespace"], strict=True))
    query_space = dict(zip(tables["queries"]["query_id"], tables["queries"]["namespace"], strict=True))
    label: dict[str, dict[str, tuple]] = {}
    for query, memory, *axes in tables["labels"].itertuples(index=False, name=None):
        label.setdefault(query, {})[memory] = tuple(None if value is pd.NA else bool(value) for value in axes)
    routes = [(key, list(part["memory_id"])) for key, part in sample_routes(tables["rankings"])]
    rows = []
    start = time.perf_counter()
    for (arm, query), route in routes:
        own = label[query]
        anchors = {memory for memory, axes in own.items() if all(axes)}
        statuses = []
        for memory in route:
            axes = own.get(memory, (None, memory_space[memory] == query_space[query], None, None))[1:]
            statuses.append(False if False in axes else pd.NA if None in axes else True)
        rows.append({"arm": arm, "query_id": query, **walk(route, statuses, anchors)})
    return time.perf_counter() - start, pd.DataFrame(rows)


def walk(route: list[str], status: list, anchors: set[str], target: float = 0.8) -> dict[str, float | None]:
    need = math.ceil(round(target * len(anchors), 9))
    found = sum(memory in anchors for memory in route)
    out: dict[str, float | None] = {"evidence_recall": found / len(anchors), "feasible": int(found >= need)}
    if found < need:
        return out | {"loss": 1.0}
    hits = size = 0
    while hits < need:
        hits += route[size] in anchors
        size += 1
    unresolved = sum(value is pd.NA for value in status[:size])
    bad = sum(value is not pd.NA and not value for value in status[:size])
    upper = (bad + unresolved) / size
    return out | {
        "matched_prefix": size, "lower_bound": bad / size, "upper_bound": upper, "violation_count": bad, "loss": upper
    }  # fmt: skip


def sample_routes(rankings: pd.DataFrame):
    grouped = rankings.groupby(["arm", "query_id"], sort=False)
    keys = list(grouped.indices)
    for place in sorted(np.random.default_rng(1).choice(len(keys), SAMPLE, replace=False)):
        yield keys[place], rankings.iloc[grouped.indices[keys[place]]]


WAYS = {"companion.scoring": vectorised, "loop, pandas merge per route": pandas_loop, "loop, dictionaries": dict_loop}


def child(name: str, out: str) -> None:
    tables = make_tables()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, result = WAYS[name](tables)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result.to_pickle(out)
    print(json.dumps({"seconds": seconds, "peak_mib": peak / 1024, "tables_mib": before / 1024}))


def check(ours: pd.DataFrame, loop: pd.DataFrame) -> None:
    merged = loop.merge(ours, on=["arm", "query_id"], suffixes=("_loop", ""), validate="1:1")
    assert len(merged) == SAMPLE
    for name in CHECKED:
        left, right = merged[f"{name}_loop"].astype(float), merged[name].astype(float)
        assert np.allclose(left, right, equal_nan=True), name


def main() -> None:
    import tempfile
    from pathlib import Path

    measured, results = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in WAYS:
            out = str(Path(folder) / "result.pkl")
            done = subprocess.run(
                [sys.executable, __file__, "--child", name, out], check=True, capture_output=True, text=True
            )
            measured[name] = json.loads(done.stdout)
            results[name] = pd.read_pickle(out)
    ours = measured["companion.scoring"]
    routes = QUERIES * ARMS
    print(
        f"{routes:,} routes of depth {DEPTH}; loops on {SAMPLE:,} sampled routes, scaled up; results equal on those.\n"
    )
    print("| way | seconds for all routes | ratio to ours | peak memory, MiB | of which tables, MiB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, row in measured.items():
        if name != "companion.scoring":
            check(results["companion.scoring"], results[name])
            row["seconds"] *= routes / SAMPLE
        print(
            f"| {name} | {row['seconds']:.2f} | {row['seconds'] / ours['seconds']:.0f} "
            f"| {row['peak_mib']:,.0f} | {row['tables_mib']:,.0f} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
    else:
        main()
