"""Time and memory of an audit as the store grows, in one run, by CPU time.

Every size is a process of its own: owners of 100 memories, some superseded with links, copies and contradictions among
them, and 1.1 returned items for each memory. Prints CPU seconds, peak memory, and the exponent between sizes.

    python benchmarks/audit.py                     # 10,000 and 100,000 memories
    python benchmarks/audit.py 100000 1000000      # the target: an exponent of at most 1.1, at most 2 GiB
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd

FIRST = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu"]
LAST = ["ran", "sel", "tim", "vok", "wun", "xar", "yel"]
WORDS = [f"{a}{b}" for a in FIRST for b in LAST]
OWNED, ROUTE = 100, 11


def made(memories: int, labels: bool = True, seed: int = 0):
    """Make up records: owners, texts with numbers, states, links, one route of eleven items for every ten memories."""
    from companion.tables import Records

    rng = np.random.default_rng(seed)
    owner = np.arange(memories) // OWNED
    ids = np.char.add("m", np.arange(memories).astype(str))
    drawn = rng.integers(len(WORDS), size=(memories, 12))
    value = rng.integers(50, size=memories)
    text = [" ".join(WORDS[n] for n in row) + f" {value[at]}" for at, row in enumerate(drawn)]
    state = np.where(rng.random(memories) < 0.1, "superseded", "current")
    link = pd.Series(ids).shift(-1).where(pd.Series(state == "superseded") & (pd.Series(owner).shift(-1) == owner))
    copied = rng.choice(memories - 1, memories // 200, replace=False)
    for place in copied:
        text[place + 1] = f"Fwd: {text[place]}"
    store = pd.DataFrame(
        {"memory_id": ids, "namespace": np.char.add("n", owner.astype(str)), "state": state, "superseded_by": link,
         "time": "2025-01-01", "text": text}
    )  # fmt: skip
    asked = memories // 10
    whose = rng.integers(memories // OWNED, size=asked)
    queries = pd.DataFrame(
        {"query_id": np.char.add("q", np.arange(asked).astype(str)), "namespace": np.char.add("n", whose.astype(str)),
         "intent": "current", "time": "2025-06-01"}
    )  # fmt: skip
    places = np.argsort(rng.random((asked, OWNED)), axis=1)[:, :ROUTE] + whose[:, None] * OWNED
    leak = rng.random(asked) < 0.01
    places[leak, 0] = rng.integers(memories, size=int(leak.sum()))
    rows = pd.DataFrame(
        {"arm": np.where(np.arange(asked) % 2, "one", "two").repeat(ROUTE),
         "query_id": queries["query_id"].to_numpy().repeat(ROUTE), "rank": np.tile(np.arange(1, ROUTE + 1), asked),
         "memory_id": ids[places].ravel()}
    )  # fmt: skip
    rows = rows.drop_duplicates(["query_id", "memory_id"])
    rows["rank"] = rows.groupby("query_id").cumcount() + 1
    known = rows.loc[rows["rank"] <= 3, ["query_id", "memory_id"]].assign(relevant=True, policy=True, lifecycle=True)
    return Records(store, queries, known if labels else known.head(0), rows)


def one(memories: int) -> None:
    """Audit one size and print what it took."""
    from companion.audit import Options, Resampling, audit

    records = made(memories)
    began = time.process_time()
    found = audit(records, Options(resampling=Resampling(replicates=1000)))
    took = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    kinds = {check.kind: check.instances for check in found.found}
    print(json.dumps({"memories": memories, "cpu": took, "gib": peak, "ranks": len(records.rankings), "found": kinds}))


def main(sizes: list[int]) -> None:
    """Run every size in a process of its own and compare."""
    rows = []
    for size in sizes:
        command = [sys.executable, __file__, "--one", str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{size:>9,} memories  {rows[-1]['cpu']:7.1f} s CPU  {rows[-1]['gib']:.2f} GiB  {rows[-1]['found']}")
    for before, after in itertools.pairwise(rows):
        exponent = math.log(after["cpu"] / before["cpu"]) / math.log(after["memories"] / before["memories"])
        print(f"exponent from {before['memories']:,} to {after['memories']:,}: {exponent:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(int(sys.argv[2]))
    else:
        main([int(size) for size in sys.argv[1:]] or [10_000, 100_000])
