"""What every group of commands shares: printing tables for people and for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import typer

from companion.errors import InputError

JSON_OPTION = typer.Option(False, "--json", help="Print JSON on standard output instead of a table.")


def to_jsonable(value: Any) -> Any:
    """Turn a table cell into what JSON can hold; undefined and unresolved become null.

    Parameters
    ----------
    value : Any
        A scalar from a data frame, or a container of such scalars.

    Returns
    -------
    Any
        ``None`` for NaN, ``<NA>`` and infinities, otherwise a plain Python object.
    """
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """List the rows of a table as JSON objects, with null for what is undefined."""
    return [to_jsonable(row) for row in table.to_dict(orient="records")]


def print_json(value: Any) -> None:
    """Print a value as JSON that any parser reads (no NaN)."""
    typer.echo(json.dumps(to_jsonable(value), ensure_ascii=False, allow_nan=False, indent=1))


def refuse_overwriting(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse to write where a command reads, or two things into one file, before anything is written.

    Parameters
    ----------
    outputs : iterable of Path or None
        Files to write; those not asked for are None.
    inputs : iterable of Path or None
        Files and folders that are read. A folder stands for all that is, or could be, in it.

    Raises
    ------
    InputError
        If an output is an input, lies in a folder that is one, or is another output, once links are followed.
    """
    read = [path for path in inputs if path is not None]
    seen: list[Path] = []
    for out in outputs:
        if out is None:
            continue
        for path in read:
            if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
                raise InputError(f"{out}: lies in {path}, which this command reads; expected a place elsewhere")
            if _same(out, path):
                raise InputError(f"{out}: would overwrite an input of this command; expected another file")
        if any(_same(out, other) for other in seen):
            raise InputError(f"{out}: is named for two outputs; expected a file for each")
        seen.append(out)


def _same(one: Path, other: Path) -> bool:
    # Two names of one file, such as hard links or another case, resolve differently.
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


def print_table(
    table: pd.DataFrame,
    title: str = "",
    columns: Sequence[str] | Mapping[str, str] | None = None,
    formats: Mapping[str, str] | None = None,
) -> None:
    """Print a table for people; undefined shows as an en dash.

    Cell text is printed literally: square brackets in an id are not markup, control characters are escaped. Numbers
    are never broken over lines; into a file or a pipe a table is as wide as it needs.

    Parameters
    ----------
    table : DataFrame
    title : str
    columns : sequence of str, or mapping of column to heading, optional
        Columns to show; headings are the names with spaces unless given.
    formats : mapping of column to str, optional
        Format specifications of numbers; default: four decimals, or one from 1,000 on.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = table if columns is None else table[list(columns)]
    headings = columns if isinstance(columns, Mapping) else {}
    view = Table(title=title or None, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in shown.columns:
        numeric = pd.api.types.is_numeric_dtype(shown[name]) and not pd.api.types.is_bool_dtype(shown[name])
        heading = headings.get(name, str(name).replace("_", " "))
        view.add_column(heading, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for row in shown.itertuples(index=False):
        cells = zip(shown.columns, row, strict=True)
        view.add_row(*(Text(_cell(value, (formats or {}).get(name))) for name, value in cells))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 40 * len(shown.columns)))
    console.print(view)


def _cell(value: Any, spec: str | None = None) -> str:
    plain = to_jsonable(value)
    if plain is None:
        return "–"
    if isinstance(plain, float) and spec is not None:
        return format(plain, spec)
    if isinstance(plain, float):
        return f"{plain:,.1f}" if abs(plain) >= 1000 else f"{plain:.4f}"
    return printable(str(plain))


def printable(text: str) -> str:
    """Escape what would steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
