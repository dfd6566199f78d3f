"""What every check of an audit looks at: ranked rows with who asked, who owns, and what is known of each axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from companion.audit.intake import Intake
from companion.scoring import label_ranked
from companion.tables import Records

# What programs write where a name should have been.
_NOBODY = {"", "none", "null", "nil", "nan", "n/a", "na", "undefined", "unknown", "*", "-"}


def nobody(names: pd.Series) -> pd.Series:
    """Tell which names are missing, blank, or a program's word for nothing (``None``, ``undefined``, ``*``)."""
    return names.isna() | names.astype("str").str.strip().str.lower().isin(_NOBODY)


@dataclass(frozen=True)
class Context:
    """Records and the tables that several checks need, each made once."""

    intake: Intake
    top_k: int | None = None

    @property
    def records(self) -> Records:
        """The checked records."""
        return self.intake.records

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Ranked rows up to ``top_k``: labels, and of query and memory what checks compare.

        Columns of the rankings and of ``label_ranked``, and ``asker`` and ``owner`` (namespaces, missing where there is
        none or only a word for nothing), ``principal``, ``intent``, ``state``, ``ghost`` (bool).
        """
        rankings = self.records.rankings
        assert rankings is not None  # checks that need routes ask has_routes first
        kept = rankings if self.top_k is None else rankings[rankings["rank"] <= self.top_k]
        rows = label_ranked(self.records, kept.reset_index(drop=True))
        rows = rows.sort_values(["arm", "query_id", "rank"], kind="stable", ignore_index=True)
        queries = self.records.queries.set_index("query_id").reindex(rows["query_id"])
        memories = self.records.memories.set_index("memory_id").reindex(rows["memory_id"])
        rows["asker"] = named(queries["namespace"]).array
        rows["owner"] = named(memories["namespace"]).array
        rows["principal"], rows["intent"] = queries["principal"].array, queries["intent"].array
        rows["state"] = memories["state"].array
        rows["ghost"] = rows["memory_id"].isin(self.intake.ghosts)
        return rows

    @property
    def has_routes(self) -> bool:
        """Whether there are rankings with at least one row."""
        return self.records.rankings is not None and len(self.records.rankings) > 0

    @cached_property
    def store(self) -> pd.DataFrame:
        """The memories without ghosts."""
        memories = self.records.memories
        return memories[~memories["memory_id"].isin(self.intake.ghosts)].reset_index(drop=True)


def named(names: pd.Series) -> pd.Series:
    """Return the names with every word for nothing made missing."""
    return names.astype("str").mask(nobody(names))


def moments(times: pd.Series) -> pd.Series:
    """Read dates and times as far as they can be read; NaT elsewhere."""
    return pd.to_datetime(times.astype(object), errors="coerce", utc=True, format="ISO8601")


def listed(ids: pd.Series, most: int = 5) -> str:
    """Name the first few ids of a column, and how many more there are."""
    names = list(dict.fromkeys(map(str, ids)))
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def share(part: int | np.integer, whole: int | np.integer) -> str:
    """Write a share as a count of a count."""
    return f"{int(part):,} of {int(whole):,}"


def count(number: int | np.integer, one: str, many: str = "") -> str:
    """Write a number with its noun, ``1 query`` or ``2 queries``."""
    return f"{int(number):,} {one if number == 1 else many or one + 's'}"
