"""What every check of an audit looks at, what it returns, and the words it says it in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Literal

import numpy as np
import pandas as pd

from companion.audit.intake import Intake, moments, nobody, question, states
from companion.scoring import label_ranked
from companion.tables import Records

Outcome = Literal["found", "clear", "unknown"]
ROUTE = ["arm", "query_id"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes
    ----------
    kind, title : str
        The check.
    outcome : {"found", "clear", "unknown"}
    says : str
        What the records show, with counts per route; or what they lack.
    advice, limits : str
        What to do, and what the check cannot see.
    evidence : DataFrame
        One row for each instance.
    """

    kind: str
    title: str
    outcome: Outcome
    says: str
    advice: str = ""
    limits: str = ""
    evidence: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def instances(self) -> int:
        """Number of instances found."""
        return len(self.evidence) if self.outcome == "found" else 0


Look = Callable[["Context"], Finding]


def unknown(says: str, advice: str = "", limits: str = "") -> Finding:
    """Say that a failure cannot be looked for, and why."""
    return Finding("", "", "unknown", says, advice, limits)


def clear(says: str, advice: str = "", limits: str = "") -> Finding:
    """Say that a failure was looked for and not found."""
    return Finding("", "", "clear", says, advice, limits)


def found(says: str, advice: str, limits: str, evidence: pd.DataFrame) -> Finding:
    """Say that a failure was found, what to do, and where."""
    return Finding("", "", "found", says, advice, limits, evidence.reset_index(drop=True))


def check(title: str, routes: bool = True) -> Callable[[Look], Look]:
    """Make a check of a function: its name is the kind, and without rankings it need not look."""

    def named(look: Look) -> Look:
        @wraps(look)
        def run(context: Context) -> Finding:
            seen = look(context) if context.has_routes or not routes else unknown("There are no rankings.")
            return replace(seen, kind=look.__name__, title=title)

        return run

    return named


@dataclass(frozen=True)
class Context:
    """Records and the tables that several checks need, each made once."""

    intake: Intake
    top_k: int | None = None
    per_query: pd.DataFrame | None = None

    @property
    def records(self) -> Records:
        """The checked records."""
        return self.intake.records

    @property
    def has_routes(self) -> bool:
        """Whether there are rankings with at least one row."""
        return self.records.rankings is not None and len(self.records.rankings) > 0

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Ranked rows up to ``top_k``, labelled, with what checks compare.

        ``asker`` and ``owner`` (namespaces), ``principal``, ``asks`` (now, past, unknown), ``state`` (when it was
        asked), ``valid_until``, ``asked`` (times), ``ghost`` and ``exposed`` (bool).
        """
        rankings = self.records.rankings
        assert rankings is not None  # checks that need routes ask has_routes first
        kept = rankings if self.top_k is None else rankings[rankings["rank"] <= self.top_k]
        return self.described(kept.reset_index(drop=True)).sort_values([*ROUTE, "rank"], ignore_index=True)

    def described(self, kept: pd.DataFrame) -> pd.DataFrame:
        """Label rows of (arm, query, memory), and add what checks compare."""
        rows = label_ranked(self.records, kept)
        asked = self.records.queries.set_index("query_id")
        stored = self.records.memories.set_index("memory_id")
        query, memory = (
            index.get_indexer(pd.Index(rows[name]))
            for index, name in ((asked.index, "query_id"), (stored.index, "memory_id"))
        )
        rows["asker"], rows["principal"] = (asked[name].array.take(query) for name in ("namespace", "principal"))
        rows["owner"] = stored["namespace"].array.take(memory)
        rows["asks"] = question(asked["intent"]).array.take(query)
        rows["asked"] = moments(asked["time"]).array.take(query)
        until = stored["valid_until"] if "valid_until" in stored else pd.Series(np.nan, index=stored.index)
        rows["valid_until"] = moments(until, late=True).array.take(memory)
        rows["state"] = states(self.records, self.intake.links, rows).array
        rows["ghost"] = rows["memory_id"].isin(self.intake.ghosts)
        return rows.merge(self.exposures, on=[*ROUTE, "memory_id"], how="left").fillna({"exposed": False})

    @cached_property
    def exposures(self) -> pd.DataFrame:
        """Pairs that the ledger knows to have reached the prompt."""
        ledger = self.records.ledger
        if ledger is None:
            return pd.DataFrame(columns=[*ROUTE, "memory_id", "exposed"]).astype({"exposed": "bool"})
        held = ledger.loc[ledger["exposed"].fillna(False), [*ROUTE, "memory_id"]]
        return held.assign(exposed=True)

    @cached_property
    def store(self) -> pd.DataFrame:
        """The memories without ghosts."""
        memories = self.records.memories
        return memories[~memories["memory_id"].isin(self.intake.ghosts)].reset_index(drop=True)

    @cached_property
    def unnamed(self) -> pd.Series:
        """Ids of the queries without a namespace, or without a principal where principals are recorded."""
        queries = self.records.queries
        blank = nobody(queries["principal"]) & bool(queries["principal"].notna().any())
        return queries.loc[queries["namespace"].isna() | blank, "query_id"]


def known(values: pd.Series, what: bool) -> np.ndarray:
    """Mark what is known to be so; an unresolved value is in neither group."""
    return values.eq(what).fillna(False).to_numpy(bool)


def per_route(rows: pd.DataFrame, bad: np.ndarray, most: int = 6) -> str:
    """Say route by route how many returned items are meant, worst first."""
    table = pd.DataFrame({"arm": rows["arm"].array, "bad": bad}).groupby("arm", sort=False)["bad"].agg(["sum", "size"])
    table = table.assign(share=table["sum"] / table["size"]).sort_values("share", ascending=False, kind="stable")
    parts = [
        f"{arm} {share(bad, size)} ({ratio:.1%})" if bad else f"{arm} none of {size:,}"
        for arm, bad, size, ratio in table.head(most).itertuples()
    ]
    more = [count(len(table) - most, "more route")] if len(table) > most else []
    return "; ".join([*parts, *more])


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
