"""Verifiers that need no model: keep or deny everything, read the released metadata, replay a file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from companion import logic
from companion.errors import InputError
from companion.stages.verification.measures import as_floats
from companion.stages.verifiers.base import Untrained
from companion.tables.files import read_raw

_KEY = ["query_id", "memory_id"]


class KeepAll(Untrained):
    """Holds nothing for a violation: the route as it was."""

    name = "keep_all"
    description = "Gives every candidate probability 0."

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Return 0 throughout."""
        return pd.Series(0.0, index=candidates.index, dtype="Float64")


class DenyAll(Untrained):
    """Holds everything for a violation: what perfect detection costs when it is bought with the evidence."""

    name = "deny_all"
    description = "Gives every candidate probability 1."

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Return 1 throughout."""
        return pd.Series(1.0, index=candidates.index, dtype="Float64")


class ReleasedMetadata(Untrained):
    """Reads the released axes: the reference that no text-only verifier can be expected to pass."""

    name = "released_metadata"
    description = "Probability 1 where a released axis is 0, 0 where all are 1; abstains on what is unresolved."
    needs: tuple[str, ...] = logic.AXES

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Return 1 for a known violation, 0 for known admissibility, ``<NA>`` otherwise."""
        status: pd.Series = logic.admissible(candidates["scope"], candidates["policy"], candidates["lifecycle"])
        return (~status).astype("Float64")


class Replay(Untrained):
    """Takes probabilities from a file, such as your own verifier's."""

    description = "Probabilities read from a file."

    def __init__(self, path: Path | str, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem
        frame, _ = read_raw(self.path)
        missing = [c for c in (*_KEY, "probability") if c not in frame]
        if missing:
            raise InputError(f"{self.path}: no column {missing[0]!r}; expected query_id, memory_id, probability")
        ids = frame[_KEY].astype("str")
        twice = ids.duplicated()
        if twice.any():
            row = int(twice.to_numpy().argmax())
            raise InputError(f"{self.path}, row {row + 1}: {tuple(ids.iloc[row])} is listed twice")
        stated = frame["probability"]
        stated = stated.mask(stated.astype("str") == "")  # an empty field of a text file is an abstention
        try:
            values = as_floats(stated)
        except InputError as error:
            raise InputError(f"{self.path}, {error}") from None
        self._values = ids.assign(probability=pd.Series(values, index=ids.index).astype("Float64"), _listed=True)

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Look every candidate up."""
        found = candidates[_KEY].merge(self._values, on=_KEY, how="left")
        absent = found["_listed"].isna()
        if absent.any():
            first = found.loc[absent, _KEY].iloc[0]
            raise InputError(
                f"{self.path}: {int(absent.sum())} of {len(found)} candidates are not listed, the first is query "
                f"{first['query_id']!r}, memory {first['memory_id']!r}; leave probability empty to abstain"
            )
        return found["probability"].set_axis(candidates.index)
