"""What a verifier is: candidates in, a probability of violation for each out."""

from __future__ import annotations

import abc
from typing import Any, Protocol, runtime_checkable

import pandas as pd

from companion.errors import InputError
from companion.stages.verification.measures import as_floats
from companion.tables import Records

TEXT_COLUMNS = ("query_id", "memory_id", "query_text", "memory_text")
"""What every verifier is shown."""

METADATA_COLUMNS = (
    "scope",
    "policy",
    "lifecycle",
    "query_namespace",
    "memory_namespace",
    "state",
    "intent",
    "principal",
)
"""What a verifier may ask for by name; the first three are the released values of the axes."""


@runtime_checkable
class Verifier(Protocol):
    """Judges candidates."""

    name: str
    description: str
    needs: tuple[str, ...]

    def fit(self, calibration: pd.DataFrame) -> pd.Series:
        """Learn from calibration cases; return probabilities for them that were not learnt from their own case."""
        ...

    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Judge candidates."""
        ...


class Untrained(abc.ABC):
    """Base of verifiers that learn nothing from calibration cases."""

    name = "untrained"
    description = ""
    needs: tuple[str, ...] = ()

    def fit(self, calibration: pd.DataFrame) -> pd.Series:
        """Learn nothing; judge the calibration cases like any others."""
        return self.probability(calibration)

    @abc.abstractmethod
    def probability(self, candidates: pd.DataFrame) -> pd.Series:
        """Judge candidates."""


def describe(records: Records, candidates: pd.DataFrame) -> pd.DataFrame:
    """Put the texts and metadata of candidates beside them."""
    queries = records.queries[["query_id", "text", "namespace", "intent", "principal"]].rename(
        columns={"text": "query_text", "namespace": "query_namespace"}
    )
    memories = records.memories[["memory_id", "text", "namespace", "state"]].rename(
        columns={"text": "memory_text", "namespace": "memory_namespace"}
    )
    out = candidates.merge(queries, on="query_id", how="left", validate="many_to_one")
    out = out.merge(memories, on="memory_id", how="left", validate="many_to_one")
    for column, key in (("query_text", "query_id"), ("memory_text", "memory_id")):
        if out[column].isna().any():
            bare = out.loc[out[column].isna(), key].iloc[0]
            raise InputError(f"{key} {bare!r} has no text; a verifier reads texts (frozen rankings carry none)")
    return out.set_axis(candidates.index, axis=0)


def judge(verifier: Verifier, table: pd.DataFrame) -> pd.DataFrame:
    """Run a verifier and hold it to its contract."""
    return table.assign(probability=_checked(verifier, verifier.probability(shown(verifier, table)), table))


def calibrate(verifier: Verifier, table: pd.DataFrame) -> pd.DataFrame:
    """Let a verifier learn from calibration cases."""
    view = shown(verifier, table).assign(violation=table["violation"])
    return table.assign(probability=_checked(verifier, verifier.fit(view), table))


def shown(verifier: Verifier, table: pd.DataFrame) -> pd.DataFrame:
    """Cut a table to what a verifier is entitled to see."""
    unknown = [n for n in verifier.needs if n not in METADATA_COLUMNS]
    if unknown:
        raise InputError(
            f"verifier {verifier.name}: asks for {unknown[0]!r}; expected some of {', '.join(METADATA_COLUMNS)}"
        )
    wanted = [*TEXT_COLUMNS, *verifier.needs]
    missing = [c for c in wanted if c not in table]
    if missing:
        raise InputError(f"verifier {verifier.name}: candidates have no column {missing[0]!r}")
    return table[wanted]


def _checked(verifier: Verifier, values: Any, table: pd.DataFrame) -> pd.Series:
    if not isinstance(values, pd.Series) or not values.index.equals(table.index):
        raise InputError(f"verifier {verifier.name}: expected one probability per candidate, on the same index")
    as_floats(values)
    return values.astype("Float64")
