"""The paper's released evidence: what each downstream reader answered, case by case (Protocol section 4).

The release states no licence, so nothing of it ships here: whoever wants it fetches it with
``companion fetch evidence``. An empty field means *not evaluable* and is kept as missing.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd

from companion.corpora import _read
from companion.corpora.base import corpora_dir
from companion.corpora.upstreams import UPSTREAMS, is_whole
from companion.errors import InputError

UPSTREAM = UPSTREAMS["evidence"]
CASE_SCORES = "results/natural_end_to_end_case_audit/case_scores.csv"

_REQUIRED_TEXT = ("case_token", "group_token", "source", "reader_model", "arm")
_TEXT = (*_REQUIRED_TEXT, "reader_provider", "reader_record_sha256", "judge_record_sha256")
_COUNTS = ("case_order", "anchor_total")
_NUMBERS = (
    "evidence_recall",
    "penalized_admissibility_upper_risk",
    "route_width",
    "wrong_namespace_exposure",
    "policy_disallowed_exposure",
    "lifecycle_incompatible_exposure",
    "unresolved_exposure",
    "answer_quality",
)
_FLAGS = (
    "feasible",
    "answer_correct",
    "contains_reference_answer",
    "protected_disclosure_evaluable",
    "protected_disclosure",
    "literal_protected_disclosure",
    "stale_disclosure",
    "non_answer",
)
_TRUE, _FALSE = ("1", "1.0", "true"), ("0", "0.0", "false")

COLUMNS = (
    "case_token",
    "group_token",
    "source",
    "reader_provider",
    "reader_model",
    "arm",
    "case_order",
    "anchor_total",
    "evidence_recall",
    "feasible",
    "penalized_admissibility_upper_risk",
    "route_width",
    "wrong_namespace_exposure",
    "policy_disallowed_exposure",
    "lifecycle_incompatible_exposure",
    "unresolved_exposure",
    "answer_correct",
    "answer_quality",
    "contains_reference_answer",
    "protected_disclosure_evaluable",
    "protected_disclosure",
    "literal_protected_disclosure",
    "stale_disclosure",
    "non_answer",
    "reader_record_sha256",
    "judge_record_sha256",
)
"""Columns of ``case_scores.csv`` in the released order."""

ARMS = (
    "global_dense",
    "namespace_dense",
    "namespace_policy_gate",
    "namespace_text_verifier",
    "released_field_oracle",
)


def where() -> Path:
    """Folder in which the evidence lives or would live."""
    return corpora_dir() / UPSTREAM.name


def is_present() -> bool:
    """Whether the evidence has been fetched, or laid down by hand, and is whole."""
    return is_whole(where(), UPSTREAM.name)


def load(root: Path | None = None) -> pd.DataFrame:
    """Load the released case scores."""
    folder = where() if root is None else root
    _read.require_files(folder, [CASE_SCORES], "companion fetch evidence")
    if root is None and not is_present():
        raise InputError(f"{folder}: not a whole copy of the evidence; run `companion fetch evidence --replace`")
    return read_case_scores(folder / CASE_SCORES)


def read_case_scores(path: Path) -> pd.DataFrame:
    """Read a ``case_scores.csv`` with types."""
    raw = _read_text_table(path)
    missing = [name for name in COLUMNS if name not in raw]
    if missing:
        raise InputError(f"{path}: no column '{missing[0]}'; expected {', '.join(COLUMNS)}")
    table = pd.DataFrame(index=raw.index)
    for name in COLUMNS:
        table[name] = _typed(raw[name], name, path)
    _refuse_bad_keys(table, path)
    evaluable = table["protected_disclosure_evaluable"].fillna(False).astype(bool)
    for name in ("protected_disclosure", "literal_protected_disclosure"):
        table[name] = table[name].where(evaluable)
    return table


def _read_text_table(path: Path) -> pd.DataFrame:
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
    table = pd.DataFrame(body, columns=header, dtype="str")
    return table.apply(lambda column: column.str.strip())


def _typed(column: pd.Series, name: str, path: Path) -> pd.Series:
    if name in _TEXT:
        return column.mask(column.eq(""))
    if name in _FLAGS:
        return _flags(column, path)
    numbers = pd.to_numeric(column.mask(column.eq("")), errors="coerce").astype("float64")
    bad = column.ne("") & ~np.isfinite(numbers)
    if name in _COUNTS:
        bad |= numbers.notna() & ((numbers % 1 != 0) | (numbers < 0))
    expected = "a whole number, or empty" if name in _COUNTS else "a finite number, or empty"
    _refuse(column, bad, path, expected)
    return numbers.astype("Int64") if name in _COUNTS else numbers


def _flags(column: pd.Series, path: Path) -> pd.Series:
    lowered = column.str.lower()
    true, empty = lowered.isin(_TRUE), lowered.eq("")
    _refuse(column, ~(true | empty | lowered.isin(_FALSE)), path, "1, 0, true, false, or empty")
    return pd.Series(pd.arrays.BooleanArray(true.to_numpy(dtype=bool), empty.to_numpy(dtype=bool)), column.index)


def _refuse(column: pd.Series, bad: pd.Series, path: Path, expected: str) -> None:
    rows = np.flatnonzero(bad.to_numpy(dtype=bool))
    if len(rows):
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        shown = f"row {rows[0] + 1}, column '{column.name}' is {column.iloc[rows[0]]!r}"
        raise InputError(f"{path}: {shown}{more}; expected {expected}")


def _refuse_bad_keys(table: pd.DataFrame, path: Path) -> None:
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
