"""The demo corpus: four assistants, twelve principals, and memories that are easily confused.

All of it was written for this project, so that every chapter runs without a download and shows text.
``tools/demo.py`` in the repository makes the files, and larger ones of the same kind.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import pandas as pd

from companion.corpora.base import Corpus, CorpusSpec, register
from companion.errors import InputError
from companion.paths import data_dir
from companion.tables import read_raw, read_table

FILES = {"memories": "memories.jsonl", "queries": "queries.jsonl", "labels": "labels.csv"}
"""Table name -> file name in ``data/demo``; a scaled corpus has ``.parquet`` files instead."""


def demo_dir() -> Path:
    """Folder of the committed files: ``demo`` in `companion.paths.data_dir`."""
    return data_dir() / "demo"


def load_demo(root: str | PathLike[str] | None = None) -> Corpus:
    """Load the demo corpus, or a larger one of its kind from a folder."""
    folder = Path(root) if root is not None else demo_dir()
    tables = {name: read_table(_find(folder, name), name) for name in FILES}
    moment = _moments(tables["queries"], folder)
    return Corpus(
        name="demo",
        population="demo",
        memories=tables["memories"].assign(visible_key=_moments(tables["memories"], folder)),
        queries=tables["queries"].assign(visible_own=moment, visible_foreign=moment),
        labels=tables["labels"],
        licence="MIT",
        origin="written for this project (data/demo)" if folder == demo_dir() else str(folder),
    )


def _find(folder: Path, table: str) -> Path:
    for name in (FILES[table], f"{table}.parquet"):
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{folder}: holds neither {FILES[table]} nor {table}.parquet; expected the demo corpus")


def _moments(table: pd.DataFrame, folder: Path) -> pd.Series:
    """Return the order column as whole minutes."""
    if "order" not in table:
        raise InputError(f"{folder}: a table has no column order; expected minutes in every row")
    moments = pd.to_numeric(table["order"], errors="coerce")
    if moments.isna().any():
        row = int(moments.isna().to_numpy().argmax())
        raise InputError(f"{folder}, row {row + 1}, column order: empty or not a number; expected minutes")
    return moments.astype("int64")


def is_present(root: Path) -> bool:
    """Whether all three files are in a folder."""
    return all((root / name).is_file() or (root / f"{table}.parquet").is_file() for table, name in FILES.items())


def notes(root: str | PathLike[str] | None = None) -> pd.DataFrame:
    """Why an axis of a labelled pair is unresolved, in the annotator's words."""
    frame, _ = read_raw(_find(Path(root) if root is not None else demo_dir(), "labels"))
    frame = frame[["query_id", "memory_id", "note"]].astype("str")
    return frame[frame["note"].notna() & frame["note"].ne("")].reset_index(drop=True)


register(
    CorpusSpec(
        name="demo",
        title="Demo: twelve principals of four assistants (company, medication, legal, personal), text included",
        population="demo",
        licence="MIT",
        url="",
        revision="",
        load=load_demo,
        present=is_present,
        root=demo_dir,
    )
)
