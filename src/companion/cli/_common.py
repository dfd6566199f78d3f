"""What every group of commands shares: printing tables for people and for programs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from companion.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

JSON_OPTION = typer.Option(False, "--json", help="Print JSON on standard output instead of a table.")

_FORMATS = ("text", "markdown", "latex")
_chosen = {"format": "text"}


def _choose(value: str) -> str:
    if value not in _FORMATS:
        raise InputError(f"--format {value}: expected one of {', '.join(_FORMATS)}")
    _chosen["format"] = value
    return value


def _with_format(
    format: Annotated[
        str, typer.Option(metavar="FORMAT", callback=_choose, help="Print tables as text, markdown or latex.")
    ] = "text",
) -> None:
    """Carry the option to `add_format`: Typer makes options out of the signatures of functions only."""


def add_format(command: Any) -> None:
    """Add ``--format`` to a command that prints a table."""
    holder = typer.Typer(add_completion=False)
    holder.command()(_with_format)
    option = typer.main.get_command(holder).params[0]
    option.expose_value = False
    command.params.append(option)


def to_jsonable(value: Any) -> Any:
    """Turn a table cell, or a container of cells, into what JSON can hold; undefined and unresolved become null."""
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        value = value.item()
    # Without pandas here no value can be one of its two missing ones.
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
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

    Outputs that nobody asked for are None. An input folder stands for all that is, or could be, in it. Links are
    followed first.
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
    try:
        # Two names of one file, such as hard links or another case, resolve differently.
        return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle, before Python 3.13
        raise InputError(f"{one}: {getattr(error, 'strerror', None) or error}; expected the name of a file") from error


def print_table(
    table: pd.DataFrame,
    title: str = "",
    columns: Sequence[str] | Mapping[str, str] | None = None,
    formats: Mapping[str, str] | None = None,
) -> None:
    """Print a table for people, in the form that ``--format`` asks for; undefined shows as an en dash.

    ``columns`` are those to show, or a mapping of them to headings; ``formats`` the format specifications of numbers.
    Cell text is printed literally: square brackets in an id are not markup, control characters are escaped. Into a
    file or a pipe a table is as wide as it needs, or as COLUMNS says.
    """
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    shown = table if columns is None else table[list(columns)]
    headings = columns if isinstance(columns, Mapping) else {}
    names = [printable(headings.get(name, str(name).replace("_", " "))) for name in shown.columns]
    numeric = [is_numeric_dtype(shown[name]) and not is_bool_dtype(shown[name]) for name in shown.columns]
    specs = [(formats or {}).get(name) for name in shown.columns]
    rows = [
        [_cell(value, spec) for value, spec in zip(row, specs, strict=True)]
        for row in shown.itertuples(index=False, name=None)
    ]
    write = {"markdown": _markdown, "latex": _latex, "text": _text}[_chosen["format"]]
    write(printable(title), names, numeric, rows)


def _markdown(title: str, names: list[str], numeric: list[bool], rows: list[list[str]]) -> None:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rule = line("---:" if number else "---" for number in numeric)
    typer.echo("\n".join([*([f"**{title}**", ""] if title else []), line(names), rule, *map(line, rows), ""]))


def _latex(title: str, names: list[str], numeric: list[bool], rows: list[list[str]]) -> None:
    special = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": "\\textbackslash{}", "~": "\\~{}", "^": "\\^{}", "–": "--"}

    def line(cells: Iterable[str]) -> str:
        return " & ".join("".join(special.get(c, c) for c in cell) for cell in cells) + r" \\"

    body = [rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}", r"\toprule", line(names)]
    body += [r"\midrule", *map(line, rows), r"\bottomrule", r"\end{tabular}"]
    typer.echo("\n".join([*([f"% {title}"] if title else []), *body, ""]))


def _text(title: str, names: list[str], numeric: list[bool], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(
        title=Text(title) if title else None,
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name, number in zip(names, numeric, strict=True):
        view.add_column(Text(name), justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        view.add_row(*map(Text, row))
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=max(console.width, 40 * len(names)))
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
