"""A notebook's parameters: what its `parameters` cell declares, and what is in force in the running kernel.

papermill's own reader knows neither comments above a parameter nor the values of the defaults, only their text.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from companion.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Parameter:
    """One parameter of a notebook."""

    name: str
    default: Any
    help: str = ""


def read_parameters(source: str, origin: str = "parameters cell") -> list[Parameter]:
    """Read the parameters that a cell declares; their help is the comment behind them, or else above them."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{origin}: not valid Python ({error})") from error
    lines = source.splitlines()
    found = []
    for node in tree.body:
        single = isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Assign) and len(node.targets) == 1)
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not single or not isinstance(target, ast.Name) or getattr(node, "value", None) is None:
            raise InputError(f"{origin}, line {node.lineno}: expected an assignment such as top_k = 20")
        try:
            default = ast.literal_eval(node.value)  # type: ignore[attr-defined]
        except ValueError as error:
            raise InputError(f"{origin}, line {node.lineno}: {target.id} is not a literal value") from error
        found.append(Parameter(target.id, default, _help(node, lines)))
    return found


def _help(node: ast.stmt, lines: Sequence[str]) -> str:
    last = node.end_lineno or node.lineno
    behind = lines[last - 1].encode()[node.end_col_offset :].decode().strip()
    if behind.startswith("#"):
        return behind.lstrip("# ")
    first = node.lineno - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(line.strip().lstrip("# ") for line in lines[first : node.lineno - 1])


def find_parameters(cells: Sequence[str]) -> list[Parameter]:
    """Return the parameters of the first cell that only assigns literals.

    A running kernel knows the source of the cells it has executed but not their tags. The `parameters` cell is the
    first one made of literal assignments alone; papermill's injected cell always comes after it.
    """
    for source in cells:
        try:
            found = read_parameters(source)
        except InputError:
            continue
        if found:
            return found
    return []


def parameters_frame(parameters: Sequence[Parameter], namespace: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row per parameter: name, value in force, default, whether it was changed, meaning."""
    import pandas as pd

    rows = []
    for item in parameters:
        value = namespace.get(item.name, item.default)
        # 1 == 1.0 == True in Python: compare what is written, or a changed type would hide.
        rows.append((item.name, repr(value), repr(item.default), repr(value) != repr(item.default), item.help))
    return pd.DataFrame(rows, columns=["parameter", "value", "default", "changed", "meaning"])
