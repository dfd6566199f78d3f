"""Frozen runs: rankings and labels of our own runs on public corpora, as identifiers and numbers.

A frozen folder lets every chapter recompute its figures without the corpus, the encoder, or a network. It holds
five tables of the contract without any text, and ``meta.json``, which says what was run and gives the SHA-256 of
each table. Labels list every anchor and every ranked pair with all axes, so that the tables can be scored
without knowing the corpus's defaults.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.corpora.base import Corpus
from companion.errors import InputError
from companion.logic import AXES
from companion.paths import data_dir
from companion.retrieval.registry import base_arm
from companion.scoring import label_ranked
from companion.tables import TABLES as TABLE_SCHEMAS
from companion.tables import Records, atomic_path

TABLES = ("memories", "queries", "labels", "rankings", "work")
ANCHOR_RANKS = "anchor_ranks"
PLAIN = ("global_dense", "namespace_dense")
"""Arms whose routes a frozen run keeps to their full depth, for sweeps over depth."""
_VERSIONS = ("numpy", "pandas", "pyarrow", "faiss-cpu", "bm25s", "sentence-transformers", "torch")
# The words of a corpus stay out of the project; when something was said is said by `order`.
_TEXT = ["text", "time"]


def freeze(
    corpus: Corpus,
    rankings: pd.DataFrame,
    work: pd.DataFrame,
    folder: Path,
    settings: Mapping[str, Any],
    *,
    depth: int | None = None,
    seeded_depth: int = 20,
    scores: bool = True,
    anchor_ranks: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Write a run as a frozen folder, and return what its ``meta.json`` holds.

    Parameters
    ----------
    corpus : Corpus
        Restricted to the split that was searched.
    rankings, work : DataFrame
        As `companion.retrieval.rank` returns them.
    folder : Path
        Created if needed; existing tables are replaced one by one, ``meta.json`` last.
    settings : mapping
        What was run: command, encoder settings, top_k, arms. Must be JSON.
    depth : int, optional
        Depth to which routes are kept, apart from `PLAIN` ones, which are always kept whole; None keeps all whole.
    seeded_depth : int
        Depth to which the routes of random controls are kept.
    scores : bool
        Whether to keep scores; they are more than half of a large run's size.
    anchor_ranks : DataFrame, optional
        What `companion.retrieval.checks.anchor_ranks` returns: kept beside the routes, which end at their depth.

    Raises
    ------
    InputError
        When the folder cannot be written.
    """
    kept = _cut(rankings, depth, seeded_depth)
    ranked = kept.assign(score=kept["score"].astype(np.float32)) if scores else kept.drop(columns="score")
    tables = {
        "memories": corpus.memories.drop(columns=_TEXT, errors="ignore"),
        "queries": corpus.queries.drop(columns=_TEXT, errors="ignore"),
        "labels": explicit_labels(corpus, kept),
        "rankings": ranked,
        "work": work,
    }
    for name, table in tables.items():
        with atomic_path(folder / f"{name}.parquet") as path:
            _write(table, path)
    kept_files = list(TABLES)
    if anchor_ranks is not None:
        with atomic_path(folder / f"{ANCHOR_RANKS}.parquet") as path:
            _write(anchor_ranks, path)
        kept_files.append(ANCHOR_RANKS)
    meta = {
        "name": corpus.name,
        "population": corpus.population,
        "licence": corpus.licence,
        "origin": corpus.origin,
        "defaults": corpus.defaults,
        "counts": corpus.counts(),
        "rows": {name: len(table) for name, table in tables.items()},
        "depths": kept.groupby("arm", sort=False)["rank"].max().groupby(base_arm, sort=False).max().to_dict(),
        **settings,
        "versions": {name: version(name) for name in _VERSIONS},
        "sha256": {name: _sha256(folder / f"{name}.parquet") for name in kept_files},
    }
    with atomic_path(folder / "meta.json") as path:
        path.write_text(json.dumps(meta, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return meta


def _cut(rankings: pd.DataFrame, depth: int | None, seeded_depth: int) -> pd.DataFrame:
    """Keep each route to its depth."""
    whole = int(rankings["rank"].max()) if len(rankings) else 0
    limits = {}
    for route in rankings["arm"].unique():
        limit = whole if depth is None or route in PLAIN else depth
        limits[route] = limit if base_arm(route) == route else min(limit, seeded_depth)
    return rankings[rankings["rank"] <= rankings["arm"].map(limits)]


def explicit_labels(corpus: Corpus, rankings: pd.DataFrame) -> pd.DataFrame:
    """Spell out the labels of every anchor and every ranked pair, by the rule for unlisted pairs (`label_ranked`)."""
    pairs = rankings[["query_id", "memory_id"]].drop_duplicates()
    keys = pd.MultiIndex.from_frame(pairs)
    listed = pd.MultiIndex.from_frame(corpus.labels[["query_id", "memory_id"]])
    anchor = corpus.labels["relevant"].fillna(False).to_numpy(dtype=bool)
    columns = ["query_id", "memory_id", "relevant", *AXES, "anchor_id"]
    added = label_ranked(corpus.records().check(), pairs[~keys.isin(listed)])
    kept = corpus.labels[anchor | listed.isin(keys)]
    both = pd.concat([kept.reindex(columns=columns), added.reindex(columns=columns)], ignore_index=True)
    both = both.astype(dict.fromkeys(("relevant", *AXES), "boolean"))
    return both.sort_values(["query_id", "memory_id", "anchor_id"], ignore_index=True)


def load_frozen(name: str, *, arms: Sequence[str] | None = None, verify: bool = True) -> Records:
    """Load a frozen run of the project.

    Parameters
    ----------
    name : str
        Folder in ``data/frozen``.
    arms : sequence of str, optional
        Keep the routes of these arms only (an arm with seeds has one route per seed). Few arms load faster.
    verify : bool
        Compare each table with its SHA-256 first. Otherwise the tables are validated row by row.

    Returns
    -------
    Records
        Checked tables with rankings and work. `Records.defaults` are the corpus's own; the labels do not need them.

    Raises
    ------
    InputError
        When there is no such run, it lacks an arm, or a table differs from what ``meta.json`` says.
    """
    folder = _folder(name)
    meta = frozen_meta(name)
    kept = None if arms is None else [("arm", "in", _routes(name, meta, arms))]
    tables: dict[str, Any] = {}
    for table in TABLES:
        path = folder / f"{table}.parquet"
        if not path.is_file():
            raise InputError(f"{path}: is missing from the frozen run {name!r}")
        if verify and _sha256(path) != meta["sha256"][table]:
            raise InputError(f"{path}: differs from the frozen run (SHA-256 {meta['sha256'][table]} expected)")
        tables[table] = pd.read_parquet(path, filters=kept if table in ("rankings", "work") else None)
    if verify:
        # The digest says that the bytes are those that a test has checked; checking them again costs seconds a rerun.
        tables = {table: _canonical(table, frame) for table, frame in tables.items()}
    elif "score" in tables["rankings"]:
        tables["rankings"]["score"] = tables["rankings"]["score"].astype("float64")
    records = Records(**tables, defaults=meta["defaults"], population=meta["population"], name=name)
    return records if verify else records.check()


def _canonical(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """Give a stored table the columns and dtypes that `Records.check` gives it."""
    columns = TABLE_SCHEMAS[name].names
    never_added = {column.name for column in TABLE_SCHEMAS[name].columns if not column.add}
    optional = [column for column in columns if column not in never_added]
    full = table.assign(**{column: np.nan for column in optional if column not in table})
    types = {"order": "Float64", "score": "float64", "relevant": "boolean", **dict.fromkeys(AXES, "boolean")}
    full = full.astype({column: kind for column, kind in types.items() if column in full})
    full = full.astype({column: "str" for column in optional if column not in table and column not in types})
    extra = [column for column in full if column not in columns] if name in ("memories", "queries") else []
    return full[[*(column for column in columns if column in full), *extra]]


def _routes(name: str, meta: Mapping[str, Any], arms: Sequence[str]) -> list[str]:
    """Route names of some arms of a frozen run."""
    unknown = [arm for arm in arms if arm not in meta["arms"]]
    if unknown:
        raise InputError(f"frozen run {name!r} has no arm {unknown[0]!r}; it has: {', '.join(meta['arms'])}")
    seeds = {arm: meta["arms"][arm]["seeds"] for arm in arms}
    return [route for arm in arms for route in ([f"{arm}:{s}" for s in range(seeds[arm])] or [arm])]


def frozen_meta(name: str) -> dict[str, Any]:
    """Read what a frozen run says about itself: corpus, revision, encoder, command, versions, counts and digests."""
    path = _folder(name) / "meta.json"
    if not path.is_file():
        raise InputError(f"no frozen run {name!r} in {path.parent.parent}; there are: {', '.join(frozen()) or 'none'}")
    return json.loads(path.read_text(encoding="utf-8"))


def frozen_anchor_ranks(name: str) -> pd.DataFrame:
    """Read the rank of every anchor of a frozen run, in its namespace and everywhere, to its full depth."""
    path, digest = _folder(name) / f"{ANCHOR_RANKS}.parquet", frozen_meta(name)["sha256"].get(ANCHOR_RANKS)
    if digest is None or not path.is_file():
        raise InputError(f"frozen run {name!r} holds no anchor ranks; it was frozen without the two dense arms")
    if _sha256(path) != digest:
        raise InputError(f"{path}: differs from the frozen run (SHA-256 {digest} expected)")
    return pd.read_parquet(path)


def complete_arms(name: str, top_k: int) -> list[str]:
    """List the arms of a frozen run whose stored routes can be scored at a depth.

    Those stored to that depth, and those that never return more than they are stored with. The random controls are
    stored to a smaller depth than the others: scored deeper, they would seem to find less than they did.
    """
    meta = frozen_meta(name)
    own_depth = {arm: spec["params"].get("depth") for arm, spec in meta["arms"].items()}
    return [arm for arm, depth in meta["depths"].items() if depth >= top_k or depth == own_depth[arm]]


def frozen_work(name: str) -> pd.DataFrame:
    """Read the work of a frozen run as `companion.retrieval.rank` returns it, with what filters and routers report."""
    frozen_meta(name)
    work = pd.read_parquet(_folder(name) / "work.parquet")
    return work.astype({"passed_unresolved": "Int64", "fell_back": "boolean", "centroids_scored": "Int64"})


def frozen() -> list[str]:
    """Names of the frozen runs that the project holds."""
    return sorted(path.parent.name for path in (data_dir() / "frozen").glob("*/meta.json"))


def _folder(name: str) -> Path:
    return data_dir() / "frozen" / name


def _write(table: pd.DataFrame, path: Path) -> None:
    """Write Parquet as small as it gets: dictionaries for ids, split bytes for scores, strong compression."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata()
    floats = [field.name for field in arrow.schema if pa.types.is_float32(field.type)]
    pq.write_table(
        arrow,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in arrow.column_names if name not in floats],
        use_byte_stream_split=floats or False,
        row_group_size=1 << 22,
        data_page_version="2.0",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
