"""Small random records for the tests of stage two."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion import logic
from companion.tables import Records

STATES = ["current", "current", "current", "stale", "superseded", "forgotten", "unknown"]


def made_up(
    seed: int = 0, namespaces: int = 4, per_namespace: int = 25, queries: int = 24
) -> tuple[Records, pd.DataFrame]:
    """Return records with every axis in all three values, and the complete global ranking with ties."""
    rng = np.random.default_rng(seed)
    names = [f"n{i}" for i in range(namespaces)]
    memories = pd.DataFrame(
        {
            "memory_id": [f"m{i:03d}" for i in range(namespaces * per_namespace)],
            "namespace": np.repeat(names, per_namespace),
            "source": np.repeat(["s0", "s1"], namespaces * per_namespace // 2),
            "state": rng.choice(STATES, namespaces * per_namespace),
        }
    )
    home = np.arange(queries) % namespaces
    asked = pd.DataFrame(
        {
            "query_id": [f"q{i:02d}" for i in range(queries)],
            "namespace": np.array(names)[home],
            "source": np.where(home < namespaces // 2, "s0", "s1"),
            "intent": rng.choice(["current", "current", "history", "unknown"], queries),
        }
    )
    asked["stratum"] = asked["source"] + ":" + asked["intent"].where(asked["intent"] != "unknown", "current")
    pairs = asked.merge(memories[["memory_id", "namespace", "state"]], on="namespace")
    n = len(pairs)
    labels = pairs[["query_id", "memory_id"]].assign(
        relevant=pd.array(rng.choice([True, False, None], n, p=[0.25, 0.55, 0.2]), dtype="boolean"),
        policy=pd.array(rng.choice([True, False, None], n, p=[0.7, 0.2, 0.1]), dtype="boolean"),
        lifecycle=logic.lifecycle(pairs["state"], pairs["intent"]),
    )
    labels = labels.drop(index=rng.choice(n, n // 20, replace=False))
    every = asked[["query_id"]].merge(memories[["memory_id"]], how="cross")
    every["score"] = np.round(rng.normal(size=len(every)), 1)  # many ties
    every = every.sort_values(["query_id", "score", "memory_id"], ascending=[True, False, True])
    rankings = every.assign(arm="global_dense", rank=every.groupby("query_id").cumcount() + 1)
    work = pd.DataFrame({"arm": "global_dense", "query_id": asked["query_id"], "candidates_scored": len(memories)})
    records = Records(memories, asked, labels, rankings.drop(columns="score"), work).check()
    assert records.rankings is not None
    return records, records.rankings
