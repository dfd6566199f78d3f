"""Verifiers: implementations behind one interface.

A verifier of your own is any object with ``name``, ``description``, ``needs``, ``fit`` and ``probability`` (see
:class:`Verifier`), or a file of probabilities (:class:`Replay`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from companion.errors import InputError
from companion.stages.verifiers.base import (
    METADATA_COLUMNS,
    TEXT_COLUMNS,
    Untrained,
    Verifier,
    calibrate,
    describe,
    judge,
)
from companion.stages.verifiers.chat import ChatVerifier
from companion.stages.verifiers.controlled import controlled_units
from companion.stages.verifiers.simple import DenyAll, KeepAll, ReleasedMetadata, Replay
from companion.stages.verifiers.text import TextPairs

LOCAL: dict[str, type[Any]] = {c.name: c for c in (KeepAll, DenyAll, ReleasedMetadata, TextPairs)}
"""Verifiers that run here, by name."""


def get(name: str) -> Verifier:
    """Make a verifier from a word or a file."""
    if name in LOCAL:
        made: Verifier = LOCAL[name]()
        return made
    if Path(name).suffix in {".csv", ".parquet", ".jsonl", ".ndjson"}:
        return Replay(name)
    raise InputError(f"verifier {name!r}: expected {', '.join(LOCAL)} or a file .csv, .parquet, .jsonl or .ndjson")


__all__ = [
    "LOCAL",
    "METADATA_COLUMNS",
    "TEXT_COLUMNS",
    "ChatVerifier",
    "DenyAll",
    "KeepAll",
    "ReleasedMetadata",
    "Replay",
    "TextPairs",
    "Untrained",
    "Verifier",
    "calibrate",
    "controlled_units",
    "describe",
    "get",
    "judge",
]
