"""Records with every failure planted once: the demo corpus as if it were a reader's own system.

The routes are real searches of the demo corpus. Then six things go wrong, each in one place, and `Planted.truth` says
where. The example in ``data/example`` and chapter 06 come from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from companion import ledger
from companion.errors import InputError
from companion.ledger import PromptBudget
from companion.stages import support
from companion.tables import Records, write_table

ROUTE = "memory_search"
"""The planted system's arm; ``strict_search`` beside it filters by policy and lifecycle as well."""

STRICT = "strict_search"
_ARMS = {"namespace_dense": ROUTE, "policy_and_lifecycle": STRICT}
_HELPERS = ("global_dense", "global_post_filter_20")


@dataclass(frozen=True)
class Planted:
    """Tables with failures in them."""

    records: Records
    truth: Mapping[str, Mapping[str, str]]

    def write(self, folder: str | PathLike[str]) -> Path:
        """Write the tables as a reader would have them: JSON Lines for text, CSV for the rest."""
        folder = Path(folder)
        for name, table, _ in self.records.tables():
            write_table(table, folder / f"{name}.{'jsonl' if name in ('memories', 'queries') else 'csv'}")
        return folder


def demo_records(source: str | None = None, top_k: int = 10, prompt_items: int = 5) -> Records:
    """Search the demo corpus for one system under audit, with a ledger of its prompts."""
    # Deeper than shown, so that a route from which one memory is taken still has its length.
    found = support.live("demo", [*_ARMS, *_HELPERS], top_k=2 * top_k)
    if source is not None:
        queries = found.queries[found.queries["source"] == source]
        if queries.empty:
            raise InputError(f"source {source!r}: the demo corpus has {', '.join(found.queries['source'].unique())}")
        found = _only(found, set(queries["query_id"]), source)
    rankings = found.rankings
    assert rankings is not None  # support.live ranks
    found = replace(found, rankings=rankings.assign(arm=rankings["arm"].replace(_ARMS)), work=None).check()
    shown = found.rankings
    assert shown is not None
    kept = shown[shown["arm"].isin(_ARMS.values()) & (shown["rank"] <= top_k)].reset_index(drop=True)
    own = replace(found, rankings=kept)
    book = ledger.build(own, PromptBudget(items=prompt_items))
    return replace(found, ledger=book[["query_id", "arm", "memory_id", "retrieved", "exposed"]])


def plant(records: Records, top_k: int = 10) -> Planted:
    """Plant each failure once."""
    garden = _Garden(records, top_k)
    truth = {
        "superseded": garden.superseded(),
        "stale_twins": garden.stale_twin(),
        "ownerless": garden.ownerless(),
        "late_filter": garden.late_filter(),
        "wildcard": garden.wildcard(),
        "ghosts": garden.ghost(),
    }
    frozen = {kind: MappingProxyType(ids) for kind, ids in truth.items()}
    return Planted(garden.records(), MappingProxyType(frozen))


class _Garden:
    """The tables while failures are planted; every victim is the first fit one that no other failure uses."""

    def __init__(self, records: Records, top_k: int) -> None:
        assert records.rankings is not None and records.ledger is not None
        self.before = records
        self.memories = records.memories.assign(supersedes=pd.Series(np.nan, index=records.memories.index, dtype="str"))
        self.queries = records.queries.copy()
        rankings = records.rankings
        self.routes = {
            (arm, query): list(part["memory_id"])
            for (arm, query), part in rankings.sort_values("rank").groupby(["arm", "query_id"], sort=False)
        }
        self.items = int(records.ledger.groupby(["arm", "query_id"])["exposed"].sum().max())
        self.top_k = top_k
        self.used: set[str] = set()

    def superseded(self) -> dict[str, str]:
        """Link an outdated memory to its correction, and rank it above that correction for one question."""
        state = self.memories.set_index("memory_id")["state"]
        topic = self.memories.set_index("memory_id")["topic"]
        for query in self._current():
            route = self.routes[ROUTE, query][: self.top_k]
            for correction in route[:4]:
                if state[correction] != "current":
                    continue
                same = [m for m in route if state[m] == "superseded" and topic[m] == topic[correction]]
                if same:
                    return self._link(query, same[0], correction)
        raise InputError("plant: no route holds a superseded memory and its correction")

    def _link(self, query: str, old: str, new: str) -> dict[str, str]:
        self.memories.loc[self.memories["memory_id"] == new, "supersedes"] = old
        route = self.routes[ROUTE, query]
        route.remove(old)
        route.insert(route.index(new), old)
        # Elsewhere the old one is not returned beside its correction: the failure is planted once.
        for key, other in self.routes.items():
            if key != (ROUTE, query) and key[1] in set(self._current(every=True)) and old in other:
                other.remove(old)
        self.used |= {query, old, new}
        return {"query_id": query, "memory_id": old, "correction": new}

    def stale_twin(self) -> dict[str, str]:
        """Store an outdated memory a second time, filed as current, and return it to one question."""
        for query in self._current():
            for memory in self._held(query, "superseded"):
                row = self.memories[self.memories["memory_id"] == memory].iloc[0]
                twin = f"{memory}-copy"
                copy = row.to_frame().T.assign(memory_id=twin, state="current", text=f"Fwd: {row['text']}")
                self.memories = pd.concat([self.memories, copy.astype(self.memories.dtypes)], ignore_index=True)
                self._insert(query, twin, 2)
                self.used |= {query, memory, twin}
                return {"query_id": query, "memory_id": memory, "twin": twin}
        raise InputError("plant: no superseded memory is returned to a question about the present")

    def ownerless(self) -> dict[str, str]:
        """Take a memory's owner away, and return it to an asker of another namespace too."""
        space = self.queries.set_index("query_id")["namespace"]
        for query in self._current():
            for memory in self._held(query, "current"):
                other = next((q for q in self._current() if space[q] != space[query]), None)
                if other is None:
                    continue
                self.memories.loc[self.memories["memory_id"] == memory, "namespace"] = np.nan
                self._insert(other, memory, 3)
                self.used |= {query, other, memory}
                return {"memory_id": memory, "query_id": query, "other_query": other}
        raise InputError("plant: no two namespaces to return one memory to")

    def late_filter(self) -> dict[str, str]:
        """Give one question the route that a filter after the cut leaves."""
        for query in self._current():
            short = self.routes.get(("global_post_filter_20", query), [])
            if 0 < len(short) < self.top_k - 2 and not set(short) & self.used:
                self.routes[ROUTE, query] = list(short)
                self.used.add(query)
                return {"query_id": query}
        raise InputError("plant: no filtered route is short")

    def wildcard(self) -> dict[str, str]:
        """Forget who asks one question, and search everything for it."""
        for query in self._current():
            if not set(self.routes["global_dense", query]) & self.used:
                here = self.queries["query_id"] == query
                self.queries.loc[here, ["namespace", "principal"]] = np.nan
                self.routes[ROUTE, query] = list(self.routes["global_dense", query])
                self.used.add(query)
                return {"query_id": query}
        raise InputError("plant: no question is left to take the asker from")

    def ghost(self) -> dict[str, str]:
        """Delete from the store one memory that the index still returns."""
        for query in self._current():
            for memory in self._held(query, "current"):
                self.memories = self.memories[self.memories["memory_id"] != memory].reset_index(drop=True)
                return {"query_id": query, "memory_id": memory}
        raise InputError("plant: no memory is left to delete")

    def records(self) -> Records:
        """Put the tables together again."""
        rows = [
            (arm, query, place, memory)
            for (arm, query), route in sorted(self.routes.items(), key=lambda item: (item[0][0] != ROUTE, item[0]))
            if arm not in _HELPERS
            for place, memory in enumerate(route[: self.top_k], start=1)
        ]
        rankings = pd.DataFrame(rows, columns=["arm", "query_id", "rank", "memory_id"])
        book = rankings[["query_id", "arm", "memory_id"]].assign(
            retrieved=1, exposed=(rankings["rank"] <= self.items).astype(int)
        )
        return replace(
            self.before,
            memories=self.memories[[c for c in _MEMORY_COLUMNS if c in self.memories]],
            queries=self.queries[[c for c in _QUERY_COLUMNS if c in self.queries]],
            rankings=rankings,
            ledger=book,
            work=None,
        )

    def _current(self, every: bool = False) -> list[str]:
        """Questions about the present, those that no failure uses yet unless all are wanted."""
        asked = self.queries.loc[self.queries["intent"] == "current", "query_id"]
        return [q for q in asked if (every or q not in self.used) and self.routes.get((ROUTE, q))]

    def _held(self, query: str, state: str) -> list[str]:
        states = self.memories.set_index("memory_id")["state"]
        return [m for m in self.routes[ROUTE, query][: self.top_k] if m not in self.used and states.get(m) == state]

    def _insert(self, query: str, memory: str, place: int) -> None:
        self.routes[ROUTE, query].insert(place, memory)


_MEMORY_COLUMNS = ("memory_id", "namespace", "source", "time", "state", "supersedes", "text")
_QUERY_COLUMNS = ("query_id", "namespace", "group", "source", "intent", "principal", "time", "text")


def _only(records: Records, queries: set[str], source: str) -> Records:
    """Keep one setting; routes keep only its memories, in order."""
    rankings = records.rankings
    assert rankings is not None
    memories = records.memories[records.memories["source"] == source].reset_index(drop=True)
    kept = rankings[rankings["query_id"].isin(queries) & rankings["memory_id"].isin(memories["memory_id"])]
    kept = kept.sort_values(["arm", "query_id", "rank"], kind="stable", ignore_index=True)
    kept = kept.assign(rank=kept.groupby(["arm", "query_id"], sort=False).cumcount() + 1)
    labels = records.labels
    labels = labels[labels["query_id"].isin(queries) & labels["memory_id"].isin(memories["memory_id"])]
    return replace(
        records,
        memories=memories,
        queries=records.queries[records.queries["query_id"].isin(queries)].reset_index(drop=True),
        labels=labels.reset_index(drop=True),
        rankings=kept,
        work=None,
    )


def write_example(folder: str | PathLike[str]) -> Planted:
    """Write the example record set of the README: the company setting of the demo, with every failure planted once."""
    made = plant(demo_records("company"))
    made.write(folder)
    return made


if __name__ == "__main__":
    import json
    import sys

    print(json.dumps({kind: dict(ids) for kind, ids in write_example(sys.argv[1]).truth.items()}, indent=1))
