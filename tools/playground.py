"""Write the data of the book's playground: ``python tools/playground.py``.

One script file per corpus, loaded when it is chosen, also from disk. Compact columns: memories as ids (the demo's with
text), and per question the union of what the arms return, with labels, and the arms' lists as places in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from companion import corpora, retrieval, scoring
from companion.book import arm_name
from companion.corpora.frozen import load_frozen
from companion.paths import project_root

ARMS = ("global_dense", "namespace_dense", "global_bm25", "global_post_filter_20")
DEPTH = 20
AXES = ("relevant", "scope", "policy", "lifecycle")


def records_of(name: str) -> Any:
    """Take the frozen run of a corpus, or search the demo."""
    if name != "demo":
        return load_frozen(name, arms=ARMS)
    held = corpora.load("demo", "evaluation")
    rankings, work = retrieval.rank(held, ARMS, DEPTH, retrieval.Encoder())
    return held.records(rankings=rankings, work=work).check()


def columns(name: str) -> dict[str, Any]:
    """Lay out one corpus: owners, memories [id, owner, text], questions [id, owner, text, members, items, lists]."""
    records = records_of(name)
    anchors = scoring.anchors_of(records)
    anchors["item"] = anchors["anchor_id"].fillna(anchors["memory_id"])
    rows = records.rankings[records.rankings["rank"] <= DEPTH]
    rows = rows[rows["query_id"].isin(anchors["query_id"])].sort_values(["query_id", "arm", "rank"])
    labels = scoring.label_ranked(records, rows[["query_id", "memory_id"]].drop_duplicates())
    code = sum(labels[axis].astype("Int8").fillna(2).astype(int) * 3**n for n, axis in enumerate(AXES))
    codes = dict(zip(zip(labels["query_id"], labels["memory_id"], strict=True), code, strict=True))
    stated = records.labels[records.labels["relevant"].fillna(False).astype(bool)]
    groups: dict[tuple[str, str], list[str]] = {}
    for query, memory, anchor in stated[["query_id", "memory_id", "anchor_id"]].itertuples(index=False):
        groups.setdefault((query, memory), []).append(memory if pd.isna(anchor) else anchor)
    owners = sorted(records.memories["namespace"].dropna().unique())
    memories = records.memories.set_index("memory_id")
    place: dict[str, int] = {}
    questions = []
    by_query, lists = dict(list(anchors.groupby("query_id"))), dict(list(rows.groupby("query_id")))
    for query in records.queries.to_dict("records"):
        if query["query_id"] not in by_query or query["query_id"] not in lists:
            continue
        own, mine = by_query[query["query_id"]], lists[query["query_id"]]
        found = list(dict.fromkeys(mine["memory_id"]))
        counts = own.groupby("item")["memory_id"].nunique().to_dict()
        for memory in found:
            for item in groups.get((query["query_id"], memory), []):
                counts.setdefault(item, 0)
        number = {item: n for n, item in enumerate(counts)}
        items = [
            [place.setdefault(memory, len(place)), int(codes[query["query_id"], memory]),
             *(number[item] for item in groups.get((query["query_id"], memory), []))]
            for memory in found
        ]  # fmt: skip
        ranked = [[found.index(m) for m in mine.loc[mine["arm"] == arm, "memory_id"]] for arm in ARMS]
        text = query["text"] if isinstance(query.get("text"), str) else 0
        questions.append(
            [query["query_id"], owners.index(query["namespace"]), text, list(counts.values()), items, ranked]
        )
    stored = []
    for memory in place:
        owner, text = memories.loc[memory, ["namespace", "text"]]
        short = memory.removeprefix(f"{owner}/") if isinstance(owner, str) else memory
        stored.append([short, owners.index(owner), text] if isinstance(text, str) else [short, owners.index(owner)])
    arms = [[arm, arm_name(arm)] for arm in ARMS]
    return {"arms": arms, "owners": owners, "prefixed": name != "demo", "memories": stored, "questions": questions}


def write(folder: Path) -> None:
    """Write every corpus."""
    for name in ("demo", "rhelm", "gatemem"):
        data = json.dumps(columns(name), separators=(",", ":"), ensure_ascii=False)
        (folder / f"{name}.js").write_text(f"companionPlayground.data({name!r},{data});\n", encoding="utf-8")


if __name__ == "__main__":
    write(project_root() / "book" / "_static" / "playground")
