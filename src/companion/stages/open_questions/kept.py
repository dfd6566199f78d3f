"""Searches of the two studies: made ready, scored query by query, kept as numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from companion import scoring
from companion.errors import InputError
from companion.paths import data_dir
from companion.retrieval.dense import Hits
from companion.retrieval.engine import Search
from companion.tables import atomic_path

METRICS = ("evidence_recall", "feasible_rate", "loss")
_FOLDER = "open_questions"
_VERSIONS = ("numpy", "pandas", "scipy", "scikit-learn", "faiss-cpu", "sentence-transformers", "torch")


def searched(
    corpus: str, *, encoder: Any = None, top_k: int = 20, every: int = 1, split: str | None = "evaluation"
) -> Search:
    """Make a corpus ready: the queries that recall can evaluate (each `every`-th of them), all memories."""
    from companion import corpora, retrieval

    whole = corpora.load(corpus, split)
    with_anchors = set(scoring.anchors_of(whole.records().check())["query_id"])
    asked = whole.queries[whole.queries["query_id"].isin(with_anchors)].iloc[::every].reset_index(drop=True)
    labels = whole.labels[whole.labels["query_id"].isin(asked["query_id"])].reset_index(drop=True)
    part = replace(whole, queries=asked, labels=labels)
    return Search(part, retrieval.Encoder() if encoder is None else encoder, top_k)


def score(search: Search, routes: Mapping[str, list[Hits]], target_recall: Any = 0.8) -> pd.DataFrame:
    """Score rankings of all queries: arm, query_id, source, group, the `METRICS`, wrong_scope and foreign_share.

    ``foreign_share`` is the share of what is returned that belongs to another namespace, reached target or not.
    """
    from companion.retrieval.engine import ranking_table

    rankings = pd.concat([ranking_table(name, hits, search) for name, hits in routes.items()], ignore_index=True)
    queries, names = search.corpus.queries, list(routes)
    asked = pd.MultiIndex.from_product([names, queries["query_id"]], names=["arm", "query_id"]).to_frame(False)
    # Stated, so that a list that a filter has emptied is scored as one that found nothing.
    records = search.corpus.records(rankings=rankings, work=asked.assign(candidates_scored=0))  # type: ignore[attr-defined]
    table = scoring.score_routes(records, target_recall=target_recall, top_k=search.top_k, arms=names)
    table = table.rename(columns={"feasible": "feasible_rate"}).astype(dict.fromkeys(("feasible_rate",), "float64"))
    table = table[["arm", "query_id", "source", "group", *METRICS, "wrong_scope"]]
    foreign = [
        (name, query, (search.layout.space[found.positions] != space).mean() if len(found.positions) else float("nan"))
        for name, hits in routes.items()
        for query, found, space in zip(queries["query_id"], hits, search.layout.query_space, strict=True)
    ]
    shares = pd.DataFrame(foreign, columns=["arm", "query_id", "foreign_share"])
    return table.merge(shares, on=["arm", "query_id"], how="left", validate="1:1")


def keep(folder: Path, tables: Mapping[str, pd.DataFrame], about: Mapping[str, Any]) -> None:
    """Write tables as Parquet with float32 numbers, and ``meta.json`` with their digests last."""
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    for name, table in tables.items():
        numbers = table.select_dtypes("float64").columns.difference(["share"])  # a condition, not a result
        small = table.astype(dict.fromkeys(numbers, "float32"))
        with atomic_path(folder / f"{name}.parquet") as path:
            small.to_parquet(path, index=False, compression="zstd", compression_level=19)
        digests[name] = hashlib.sha256((folder / f"{name}.parquet").read_bytes()).hexdigest()
    known = kept_meta(folder.name, folder) if (folder / "meta.json").is_file() else {}
    meta = {
        **about,
        "versions": {name: version(name) for name in _VERSIONS},
        "sha256": {**known.get("sha256", {}), **digests},
    }
    with atomic_path(folder / "meta.json") as path:
        path.write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def kept_meta(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Read what is recorded of a corpus's kept studies: revision, encoder, settings, the command that makes them."""
    path = (folder or data_dir() / _FOLDER / name) / "meta.json"
    if not path.is_file():
        there = sorted(p.parent.name for p in path.parent.parent.glob("*/meta.json"))
        raise InputError(f"no study of open questions {name!r}; there are: {', '.join(there) or 'none'}")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def load_kept(name: str, table: str) -> pd.DataFrame:
    """Load a kept table of a corpus (``inferred``, ``accuracy`` or ``graph``), checked against its digest."""
    meta, path = kept_meta(name), data_dir() / _FOLDER / name / f"{table}.parquet"
    if table not in meta["sha256"]:
        raise InputError(f"no table {table!r} of {name}; there are: {', '.join(meta['sha256'])}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != meta["sha256"][table]:
        raise InputError(f"{path}: differs from what was kept (SHA-256 {meta['sha256'][table]} expected)")
    found = pd.read_parquet(path)
    return found.astype({column: "float64" for column in found.select_dtypes("float32")})
