"""A notebook's parameters: what its `parameters` cell declares, and what is in force in the running kernel."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from companion.errors import InputError


@dataclass(frozen=True)
class Parameter:
    """One parameter of a notebook."""

    name: str
    default: Any
    help: str = ""


def read_parameters(source: str, origin: str = "parameters cell") -> list[Parameter]:
    """Read the parameters that a cell declares."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise InputError(f"{origin}, line {error.lineno}: not valid Python ({error.msg})") from error
    comments = _comments(source)
    found = []
    for node in tree.body:
        target, value = _assignment(node)
        if target is None:
            raise InputError(f"{origin}, line {node.lineno}: expected an assignment such as top_k = 20")
        try:
            default = ast.literal_eval(value) if value is not None else None
        except ValueError as error:
            raise InputError(f"{origin}, line {node.lineno}: {target} is not a literal value") from error
        found.append(Parameter(target, default, _help(node, comments)))
    return found


def _assignment(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return node.target.id, node.value
    return None, None


def _help(node: ast.stmt, comments: dict[int, str]) -> str:
    """Return the comment behind an assignment, or else the comment lines directly above it."""
    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    behind = [comments[line] for line in lines if line in comments]
    if behind:
        return " ".join(behind)
    above: list[str] = []
    line = node.lineno - 1
    while -line in comments:
        above.insert(0, comments[-line])
        line -= 1
    return " ".join(above)


def _comments(source: str) -> dict[int, str]:
    """Return comments by line; a line that holds nothing else counts negative."""
    lines = source.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {}
    for token in tokens:
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            alone = lines[line - 1].lstrip().startswith("#")
            found[-line if alone else line] = token.string.lstrip("# ").strip()
    return found


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
    rows = []
    for item in parameters:
        value = namespace.get(item.name, item.default)
        # 1 == 1.0 == True in Python: compare what is written, or a changed type would hide.
        rows.append((item.name, repr(value), repr(item.default), repr(value) != repr(item.default), item.help))
    return pd.DataFrame(rows, columns=["parameter", "value", "default", "changed", "meaning"])
