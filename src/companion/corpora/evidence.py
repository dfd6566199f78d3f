"""The paper's released evidence: what each downstream reader answered, case by case.

The release states no licence, so nothing of it ships here: whoever wants it fetches it with ``companion fetch
evidence``. An empty field means *not evaluable* and is kept as missing.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd

from companion.corpora import _read
from companion.corpora.upstreams import UPSTREAMS, is_whole
from companion.errors import InputError
from companion.paths import corpora_dir

UPSTREAM = UPSTREAMS["evidence"]
CASE_SCORES = "results/natural_end_to_end_case_audit/case_scores.csv"
PUBLISHED = {"cases": 1_523, "readers": 3, "arms": 5, "sources": 2}
ARMS = ("global_dense", "namespace_dense", "namespace_policy_gate", "namespace_text_verifier", "released_field_oracle")

_REQUIRED_TEXT = ("case_token", "group_token", "source", "reader_model", "arm")
_KIND = {  # in the released order
    "case_token": "text",
    "group_token": "text",
    "source": "text",
    "reader_provider": "text",
    "reader_model": "text",
    "arm": "text",
    "case_order": "count",
    "anchor_total": "count",
    "evidence_recall": "number",
    "feasible": "flag",
    "penalized_admissibility_upper_risk": "number",
    "route_width": "number",
    "wrong_namespace_exposure": "number",
    "policy_disallowed_exposure": "number",
    "lifecycle_incompatible_exposure": "number",
    "unresolved_exposure": "number",
    "answer_correct": "flag",
    "answer_quality": "number",
    "contains_reference_answer": "flag",
    "protected_disclosure_evaluable": "flag",
    "protected_disclosure": "flag",
    "literal_protected_disclosure": "flag",
    "stale_disclosure": "flag",
    "non_answer": "flag",
    "reader_record_sha256": "text",
    "judge_record_sha256": "text",
}
COLUMNS = tuple(_KIND)
"""Columns of ``case_scores.csv`` in the released order."""


def is_present() -> bool:
    """Whether the evidence has been fetched, or laid down by hand, and is whole."""
    return is_whole(corpora_dir() / "evidence", "evidence")


def load_evidence(root: Path | None = None) -> pd.DataFrame:
    """Load the released case scores."""
    folder = corpora_dir() / "evidence" if root is None else root
    _read.require_files(folder, [CASE_SCORES], "companion fetch evidence")
    if root is None and not is_present():
        raise InputError(f"{folder}: not a whole copy of the evidence; run `companion fetch evidence --replace`")
    return read_case_scores(folder / CASE_SCORES)


def counts(root: Path) -> dict[str, int]:
    """Count cases, readers, arms, sources and rows."""
    cases = load_evidence(root)
    columns = {"cases": "case_token", "readers": "reader_model", "arms": "arm", "sources": "source"}
    return {**{name: int(cases[column].nunique()) for name, column in columns.items()}, "rows": len(cases)}


def read_case_scores(path: Path) -> pd.DataFrame:
    """Read a ``case_scores.csv`` with types."""
    raw = _read_fields(path)
    table = pd.DataFrame({name: _typed(raw[name], kind, path) for name, kind in _KIND.items()}, index=raw.index)
    for name in _REQUIRED_TEXT:
        _refuse(table[name], table[name].isna(), path, "a value")
    keys = ["case_token", "reader_model", "arm"]
    repeated = np.flatnonzero(table.duplicated(keys).to_numpy())
    if len(repeated):
        shown = ", ".join(f"{name} '{table[name].iloc[repeated[0]]}'" for name in keys)
        raise InputError(f"{path}: row {repeated[0] + 1} repeats {shown}; expected one row per case, reader and arm")
    for name in ("source", "group_token"):
        several = table.groupby("case_token")[name].nunique()
        several = several[several > 1]
        if len(several):
            shown = f"case '{several.index[0]}' has {several.iloc[0]} different values of '{name}'"
            raise InputError(f"{path}: {shown}; expected one")
    evaluable = table["protected_disclosure_evaluable"].fillna(False).astype(bool)
    for name in ("protected_disclosure", "literal_protected_disclosure"):
        table[name] = table[name].where(evaluable)
    return table


def _read_fields(path: Path) -> pd.DataFrame:
    # The csv module rather than pandas: a row with a field too many or too few must be refused, not shifted.
    try:
        rows = [row for row in csv.reader(io.StringIO(_read.read_text(path), newline=""), strict=True) if row]
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV table ({error})") from error
    if not rows:
        raise InputError(f"{path}: empty; expected a header with {', '.join(COLUMNS)}")
    header, body = [name.strip() for name in rows[0]], rows[1:]
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise InputError(f"{path}: column '{twice[0]}' appears twice in the header; expected different names")
    for number, row in enumerate(body, start=1):
        if len(row) != len(header):
            raise InputError(f"{path}: row {number} has {len(row)} fields; expected {len(header)} as in the header")
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InputError(f"{path}: no column '{missing[0]}'; expected {', '.join(COLUMNS)}")
    return pd.DataFrame(body, columns=header, dtype="str").apply(lambda column: column.str.strip())


def _typed(column: pd.Series, kind: str, path: Path) -> pd.Series:
    empty = column.eq("")
    if kind == "text":
        return column.mask(empty)
    if kind == "flag":
        lowered = column.str.lower()
        true = lowered.isin(["1", "1.0", "true"])
        _refuse(column, ~(true | empty | lowered.isin(["0", "0.0", "false"])), path, "1, 0, true, false, or empty")
        flags = pd.arrays.BooleanArray(true.to_numpy(dtype=bool), empty.to_numpy(dtype=bool))
        return pd.Series(flags, column.index)
    numbers = pd.to_numeric(column.mask(empty), errors="coerce").astype("float64")
    bad = ~empty & ~np.isfinite(numbers)
    if kind == "number":
        _refuse(column, bad, path, "a finite number, or empty")
        return numbers
    bad |= numbers.notna() & ((numbers % 1 != 0) | (numbers < 0))
    _refuse(column, bad, path, "a whole number, or empty")
    return numbers.astype("Int64")


def _refuse(column: pd.Series, bad: pd.Series, path: Path, expected: str) -> None:
    rows = np.flatnonzero(bad.to_numpy(dtype=bool))
    if len(rows):
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        shown = f"row {rows[0] + 1}, column '{column.name}' is {column.iloc[rows[0]]!r}"
        raise InputError(f"{path}: {shown}{more}; expected {expected}")
