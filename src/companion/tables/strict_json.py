"""JSON as its standard has it: no NaN, no infinities, every name of an object once."""

from __future__ import annotations

import json
from typing import Any

from companion.tables.problems import show


class JsonFaultError(ValueError):
    """A fault that the standard library's decoder lets pass; ``name`` is the name that is there twice, if one is."""

    def __init__(self, what: str, name: str | None = None) -> None:
        super().__init__(what)
        self.name = name


def decode(text: str) -> Any:
    """Read one JSON value."""
    return _DECODER.decode(text)


def _refuse_constant(word: str) -> Any:
    raise JsonFaultError(f"{word} is not a JSON value")


def _unique_names(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) < len(items):
        names = [name for name, _ in items]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonFaultError(f"the name {show(twice)} appears more than once", twice)
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique_names)
