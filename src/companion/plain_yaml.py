"""YAML that cannot hurt: plain values only, no aliases, bounded size and depth, every mistake one readable error."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from companion.errors import InputError

_MOST_CHARACTERS = 1_000_000
_MOST_NODES = 100_000
_DEEPEST = 50


@lru_cache(maxsize=1)
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """A key stands once, ``1e-3`` is a number, nothing refers to anything else."""

        nodes = depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("aliases (*name) are not accepted")
            self.nodes, self.depth = self.nodes + 1, self.depth + 1
            if self.nodes > _MOST_NODES or self.depth > _DEEPEST:
                raise yaml.YAMLError(f"more than {_MOST_NODES:,} values, or {_DEEPEST} levels")
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for place, key in enumerate(keys):
                if key in keys[:place]:
                    raise yaml.YAMLError(f"{key!r} is given twice")
            made: dict[Any, Any] = super().construct_mapping(node, deep)
            return made

    number = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return Loader


def load(text: str, where: str) -> Any:
    """Read YAML that a user wrote; ``where`` begins the message of what cannot be read."""
    import yaml

    if len(text) > _MOST_CHARACTERS:
        raise InputError(f"{where}: more than {_MOST_CHARACTERS:,} characters")
    try:
        return yaml.load(text, Loader=_loader())  # a SafeLoader
    # The constructors of PyYAML raise whatever Python raises: for "!!bool maybe" a KeyError.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{where}: not valid YAML ({' '.join(str(error).split())[:200]})") from error
