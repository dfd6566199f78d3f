"""The seven record tables: their columns, and which rules each must obey."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from companion.logic import INTENTS, STATES
from companion.tables import rules
from companion.tables.rules import CELLS, CONDITIONS, ROLES, Rule, View

Kind = Literal["text", "name", "id", "boolean", "whole", "count", "score", "number"]

DTYPES: dict[str, str] = {
    "text": "str",
    "name": "str",
    "id": "str",
    "boolean": "boolean",
    "whole": "int64",
    "count": "Int64",
    "score": "float64",
    "number": "Float64",
}
EXPECTED: dict[str, str] = {
    "text": "text",
    "name": "text without control characters",
    "id": "text without control characters",
    "boolean": "1, 0, true, false, or unresolved (?, an empty field or null)",
    "whole": "a whole number",
    "count": "a whole number or an empty field",
    "score": "a finite number",
    "number": "a finite number or an empty field",
}
ONE_SOURCE = "all"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    kind: Kind
    required: bool = False
    meaning: str = ""
    add: bool = True

    @property
    def dtype(self) -> str:
        """Canonical pandas dtype."""
        return DTYPES[self.kind]


@dataclass(frozen=True)
class Schema:
    """Columns and rules of one table; ``whole`` yields (column, what, expected, fix) of faults that lie in no row."""

    name: str
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...] = field(default=(), repr=False)
    keeps_extra: bool = False
    whole: Callable[[View], Iterator[tuple[str | None, str, str, str]]] | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names in canonical order."""
        return tuple(column.name for column in self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns without which a table is refused."""
        return tuple(column.name for column in self.columns if column.required)


def json_schema(name: str) -> dict[str, Any]:
    """Describe one row of a table as JSON Schema (draft 2020-12), as JSON Lines would hold it."""
    truth = {"enum": [0, 1, True, False, "0", "1", "0.0", "1.0", "true", "false", "?", "", None]}
    kinds: dict[str, dict[str, Any]] = {
        "text": {"type": ["string", "null"]},
        "name": {"type": ["string", "integer", "null"]},
        "id": {"type": ["string", "integer", "null"]},
        "boolean": truth,
        "whole": {"type": "integer"},
        "count": {"type": ["integer", "null"]},
        "score": {"type": ["number", "null"]},
        "number": {"type": ["number", "null"]},
    }
    schema = TABLES[name]
    known = (rule for rule in schema.rules if rule.name.endswith("_known_word"))
    words = {rule.columns[0]: rule.expected.removeprefix("one of ").partition(", or")[0].split(", ") for rule in known}
    given = {rule.columns[0] for rule in schema.rules if rule.name == f"{rule.columns[0]}_given"}
    properties = {}
    for column in schema.columns:
        told = dict(kinds[column.kind])
        if column.name in given and "type" in told:
            told["type"] = [kind for kind in told["type"] if kind != "null"]
        if column.name in words:
            told = {"enum": words[column.name] if column.name in given else [*words[column.name], None]}
        properties[column.name] = told | {"description": column.meaning}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "type": "object",
        "properties": properties,
        "required": list(schema.required),
        "additionalProperties": True,
    }


def _axis(name: str, meaning: str) -> Column:
    return Column(name, "boolean", meaning=meaning, add=False)


_GROUP = Column("group", "id", meaning="whose records move together when resampled; the namespace by default")
_SOURCE = Column("source", "name", meaning="benchmark or system a record comes from; one source by default")
_WHOLE_SOURCE = rules.all_or_none(
    "source", "a source in every row, or in none", "name the source of every row, or leave the whole column empty"
)

_MEMORIES = Schema(
    "memories",
    (
        Column("memory_id", "id", True, "unique id"),
        Column("namespace", "id", True, "who the memory belongs to; may be empty where unknown"),
        _GROUP,
        _SOURCE,
        Column("order", "number", meaning="position in time within the corpus"),
        Column("time", "text", meaning="date or time as the corpus gives it"),
        Column("state", "name", meaning="current, stale, superseded, forgotten or unknown"),
        Column(
            "shared", "boolean", meaning="1: it belongs to everybody, so that scope is 1 for whoever asks", add=False
        ),
        Column("text", "text", meaning="what the memory says"),
    ),
    (rules.given("memory_id"), rules.unique("memory_id"), _WHOLE_SOURCE, rules.within("state", STATES)),
    keeps_extra=True,
)
_QUERIES = Schema(
    "queries",
    (
        Column("query_id", "id", True, "unique id"),
        Column("namespace", "id", True, "trusted namespace of who asks; may be empty where unknown"),
        _GROUP,
        _SOURCE,
        Column("split", "name", meaning="development, evaluation, ..."),
        Column("stratum", "name", meaning="what intervals are stratified within, besides source"),
        Column("intent", "name", meaning="current, history or unknown"),
        Column("principal", "name", meaning="who asks, as authenticated"),
        Column("time", "text", meaning="when the question is asked"),
        Column("text", "text", meaning="the question"),
    ),
    (
        rules.given("query_id"),
        rules.unique("query_id"),
        rules.GROUP_GIVEN,
        _WHOLE_SOURCE,
        rules.within("intent", INTENTS),
    ),
    keeps_extra=True,
)
_LABELS = Schema(
    "labels",
    (
        Column("query_id", "id", True, "query of the pair"),
        Column("memory_id", "id", True, "memory of the pair"),
        _axis("relevant", "does the memory help to answer the query"),
        _axis("scope", "does it belong to who asks"),
        _axis("policy", "may it be used for this purpose"),
        _axis("lifecycle", "is it in force for this intent"),
        Column("anchor_id", "id", meaning="required item; interchangeable memories share one"),
    ),
    (rules.given("query_id"), rules.given("memory_id"), rules.CONSISTENT, rules.LABELLED_ONCE),
)
_RANKINGS = Schema(
    "rankings",
    (
        Column("arm", "name", True, "name of the route"),
        Column("query_id", "id", True, "query"),
        Column("rank", "whole", True, "1, 2, ..."),
        Column("memory_id", "id", True, "memory at that rank"),
        Column("score", "score", meaning="what it was ranked by"),
    ),
    (
        rules.given("arm", "a name"),
        rules.given("query_id"),
        rules.given("memory_id"),
        rules.at_least("rank", 1),
        rules.unique("arm", "query_id", "rank"),
        rules.unique(
            *(*rules.ROUTE, "memory_id"),
            fix="keep a memory that a route returned more than once at its best rank, and number the ranks again, as "
            "the importers do",
        ),
        rules.NO_GAP,
        rules.all_or_none(
            "score", "a finite number in every row, or in none", "give every row its score, or drop the column"
        ),
        rules.SCORES_FOLLOW,
    ),
)
_WORK = Schema(
    "work",
    (
        Column("arm", "name", True, "name of the route"),
        Column("query_id", "id", True, "query"),
        Column("candidates_scored", "count", True, "exact similarity evaluations; may be empty where not counted"),
        Column("status", "name", meaning="done or failed: what became of the request; done by default", add=False),
    ),
    (
        rules.within("status", ("done", "failed")),
        rules.given("arm", "a name"),
        rules.given("query_id"),
        rules.at_least("candidates_scored", 0),
        rules.unique("arm", "query_id"),
    ),
)
_LEDGER = Schema(
    "ledger",
    (
        Column("query_id", "id", True, "query"),
        Column("arm", "name", True, "name of the route"),
        Column("memory_id", "id", True, "stored memory"),
        Column("retrieved", "boolean", meaning="the route returned it"),
        Column("exposed", "boolean", meaning="it was placed in front of the reader"),
        Column("rank", "count", meaning="place in the route", add=False),
        Column("score", "number", meaning="what it was ranked by", add=False),
        Column("disclosed", "boolean", meaning="the answer gave it away", add=False),
    ),
    (
        rules.given("query_id"),
        rules.given("arm", "a name"),
        rules.given("memory_id"),
        rules.unique("query_id", "arm", "memory_id"),
        rules.EXPOSED_IS_RETRIEVED,
    ),
    keeps_extra=True,
)
_OUTCOMES = Schema(
    "outcomes",
    (
        Column("reader", "name", True, "model that answers"),
        Column("scenario", "name", True, "unit that is resampled"),
        Column("axis", "name", True, "axis that governs the scenario"),
        Column("pair", "name", True, "paraphrase within the scenario"),
        Column("condition", "name", True, "allow or block"),
        Column("candidate_role", "name", True, "which of the three candidates is exposed or withheld"),
        Column("cell", "name", True, "relevant or irrelevant, admissible or inadmissible"),
        Column("disclosed_exposed", "boolean", True, "disclosed when exposed"),
        Column("disclosed_withheld", "boolean", True, "disclosed when withheld"),
    ),
    (
        *(rules.given(column, "a value") for column in ("reader", "scenario", "axis", *rules.UNIT[2:], "cell")),
        rules.within("condition", CONDITIONS, ""),
        rules.within("candidate_role", ROLES, ""),
        rules.within("cell", CELLS, ""),
        rules.CELL_FITS,
        rules.ONE_AXIS,
        rules.settled("disclosed_exposed"),
        rules.settled("disclosed_withheld"),
        rules.unique(*rules.UNIT),
    ),
    whole=rules.complete_sets,
)

POPULATION = Column("population", "name", meaning="population the records come from; one in a table", add=False)


TABLES: dict[str, Schema] = {
    schema.name: replace(schema, columns=(*schema.columns, POPULATION), rules=(*schema.rules, rules.POPULATION))
    for schema in (_MEMORIES, _QUERIES, _LABELS, _RANKINGS, _WORK, _LEDGER, _OUTCOMES)
}
