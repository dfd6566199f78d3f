"""The demo corpus: four assistants, twelve principals, and memories that are easily confused.

All of it was written for this project, so that every chapter runs without a download and shows text. The files are in
``data/demo``; `companion.corpora.demo_generator` makes them, and larger ones of the same kind. After a change of
the authored sentences, ``python -m companion.corpora._demo_content`` writes the files anew.
"""

from __future__ import annotations

import hashlib
import re
from os import PathLike
from pathlib import Path

import pandas as pd

from companion.corpora.base import Corpus, CorpusSpec, register
from companion.corpora.demo_generator import generate, write_scaled
from companion.errors import InputError
from companion.paths import data_dir
from companion.tables import read_raw, read_table, write_table

__all__ = ["FILES", "checksums", "demo_dir", "generate", "load", "notes", "write_committed", "write_scaled"]

FILES = {"memories": "memories.jsonl", "queries": "queries.jsonl", "labels": "labels.csv"}
"""Table name -> file name in ``data/demo``."""

LICENCE = "MIT"
POPULATION = "demo"


def demo_dir() -> Path:
    """Folder of the committed files: ``demo`` in `companion.paths.data_dir`."""
    return data_dir() / "demo"


def load(root: str | PathLike[str] | None = None) -> Corpus:
    """Load the demo corpus."""
    folder = Path(root) if root is not None else demo_dir()
    tables = {name: read_table(_find(folder, name), name) for name in FILES}
    moment = _moments(tables["queries"], folder)
    memories = tables["memories"].assign(visible_key=_moments(tables["memories"], folder))
    queries = tables["queries"].assign(visible_own=moment, visible_foreign=moment)
    return Corpus(
        name="demo",
        population=POPULATION,
        memories=memories,
        queries=queries,
        labels=tables["labels"],
        licence=LICENCE,
        origin="written for this project (data/demo)" if root is None or folder == demo_dir() else str(folder),
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


def checksums(root: str | PathLike[str] | None = None) -> dict[str, str]:
    """Sha256 of the three files."""
    folder = Path(root) if root is not None else demo_dir()
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES.values()}


def write_committed(folder: str | PathLike[str]) -> dict[str, Path]:
    """Write the three files of scale 1 and seed 0, and bring the sums and counts in the folder's README up to date."""
    tables = dict(zip(FILES, generate(1, 0), strict=True))
    paths = {name: write_table(frame, Path(folder) / FILES[name]) for name, frame in tables.items()}
    readme = Path(folder) / "README.md"
    if readme.is_file():
        sums = checksums(folder)
        lines = ["| file | rows | sha256 |", "| --- | ---: | --- |"]
        lines += [f"| {FILES[name]} | {len(frame):,} | `{sums[FILES[name]]}` |" for name, frame in tables.items()]
        block = "<!-- sums -->\n" + "\n".join(lines) + "\n<!-- /sums -->"
        old = readme.read_text(encoding="utf-8")
        new = re.sub(r"<!-- sums -->.*<!-- /sums -->", block, old, flags=re.DOTALL)
        temporary = readme.with_name(".README.md.tmp")
        temporary.write_text(new, encoding="utf-8")
        temporary.replace(readme)
    return paths


SPEC = register(
    CorpusSpec(
        name="demo",
        title="Demo: twelve principals of four assistants (company, medication, legal, personal), text included",
        population=POPULATION,
        licence=LICENCE,
        url="",
        revision="",
        load=load,
        present=is_present,
        root=demo_dir,
    )
)
