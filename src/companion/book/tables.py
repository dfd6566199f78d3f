"""Tables for reading: accessible HTML made by great-tables, numbers with intervals, and a CSV to take away."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import pandas as pd

from companion.book.text import UNDEFINED, UNRESOLVED_MARK, interval, is_missing, number
from companion.errors import InputError

Format = str | Callable[[Any], str]

_NAME = re.compile(r"[a-z][a-z0-9-]*")

# Layout, estimated from the text alone: pixels of a letter, of the space between columns, of a phone and of paper.
_LETTER, _GAP, _PHONE, _PAPER = 8, 13, 330, 720
# Letters to which a column of words can be squeezed and still be read.
_SQUEEZED = 18
# Letters of a cell that may share its line with others where rows are stacked.
_SHORT = 12


def check_name(name: str) -> str:
    """Return a figure's or table's name, or refuse one that cannot be an HTML id and a file name."""
    if not _NAME.fullmatch(name):
        raise InputError(f"figure name {name!r}: expected lower-case letters, digits and hyphens")
    return name


def inline_markdown(text: str) -> str:
    """Render one line of Markdown (emphasis, code, links) as HTML; raw HTML in it is shown, not run."""
    from markdown_it import MarkdownIt

    rendered: str = MarkdownIt("js-default").renderInline(text)
    return rendered


def csv_link(table: pd.DataFrame, name: str, label: str = "Download CSV") -> str:
    """Return a link that downloads a table as CSV without a server; unresolved is an empty field.

    Cells that a spreadsheet would run as a formula are written with a leading apostrophe.
    """
    safe = table.copy()
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]):
            safe[column] = safe[column].map(_no_formula)
    # Plain text with a few escapes is a quarter shorter than base64, and numbers need no escape.
    data = quote(safe.to_csv(index=False, lineterminator="\n"), safe=" ,:;/()[]{}=+*!?@$|~^'")
    return (
        f'<a class="companion-csv" download="{html.escape(name)}.csv" '
        f'href="data:text/csv;charset=utf-8,{data}">{html.escape(label)}</a>'
    )


def _no_formula(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return "'" + value
    return value


def _cell(value: Any, fmt: Format | None, unresolved: bool) -> str:
    if is_missing(value):
        return UNRESOLVED_MARK if unresolved else UNDEFINED
    if callable(fmt):
        return fmt(value)
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "yes" if value else "no"
    if fmt is not None:
        return number(value, fmt)
    if isinstance(value, float):
        return number(value, ".3f")
    if isinstance(value, int) or (hasattr(value, "dtype") and value.dtype.kind in "iu"):
        return number(value, ",d")
    return str(value)


def _is_number(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column))


def _text_table(
    table: pd.DataFrame, formats: Mapping[str, Format], intervals: Mapping[str, tuple[str, str]]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the table as text and the names of its right-aligned columns."""
    ends = {end for pair in intervals.values() for end in pair}
    missing = [name for name in (*formats, *intervals, *ends) if name not in table.columns]
    if missing:
        raise InputError(f"table has no column {missing[0]!r}: expected one of {list(table.columns)}")
    text: dict[str, list[str]] = {}
    right: list[str] = []
    for name in table.columns:
        if name in ends:
            continue
        column = table[name]
        if name in intervals:
            low, high = (table[end] for end in intervals[name])
            fmt = formats.get(name, ".3f")
            if not isinstance(fmt, str):
                raise InputError(f"column {name!r}: an interval needs a format specification, not a function")
            text[name] = [interval(*cells, fmt) for cells in zip(column, low, high, strict=True)]
        else:
            unresolved = pd.api.types.is_bool_dtype(column)
            text[name] = [_cell(value, formats.get(name), unresolved) for value in column]
        if _is_number(column):
            right.append(str(name))
    return pd.DataFrame(text, dtype=object), right


def table_html(
    table: pd.DataFrame,
    *,
    name: str,
    caption: str = "",
    formats: Mapping[str, Format] | None = None,
    intervals: Mapping[str, tuple[str, str]] | None = None,
    labels: Mapping[str, str] | None = None,
    row_header: str | None = None,
    max_rows: int | None = None,
) -> str:
    """Return an accessible HTML table: caption, header cells with scope, its own scrolling region."""
    check_name(name)
    shown = table if max_rows is None else table.head(max_rows)
    text, right = _text_table(shown, formats or {}, intervals or {})
    heads = {column: (labels or {}).get(column, str(column).replace("_", " ")) for column in text.columns}
    first = row_header if row_header is not None else text.columns[0]
    if first not in text.columns:
        raise InputError(f"table has no column {first!r}: expected one of {list(text.columns)}")
    body = _great_table(text, heads, right, first, name)
    hidden = len(table) - len(shown)
    note = f'<p class="companion-more">{hidden:,} more rows are in the CSV file.</p>' if hidden else ""
    region = html.escape(re.sub(r"[*_`]", "", caption) or "Table", quote=True)
    heading = f"<caption><span>{inline_markdown(caption)}</span></caption>" if caption else ""
    classes, style = _stacked(text, heads, right, first)
    opening = f'<table class="companion-table" id="table-{name}">'
    body = body.replace(opening, f'<table class="companion-table{classes}" id="table-{name}"{style}>{heading}', 1)
    return f'<div class="companion-scroll" role="region" tabindex="0" aria-label="{region}">{body}</div>{note}'


def _great_table(text: pd.DataFrame, heads: Mapping[str, str], right: list[str], first: str, name: str) -> str:
    import great_tables as gt

    # Internal column names, because great-tables builds ids and `headers` attributes from them.
    inner = {column: f"c{position}" for position, column in enumerate(text.columns)}
    others = [column for column in text.columns if column != first]
    short = [c for c in others if c not in right and max((len(cell) for cell in text[c]), default=0) <= _SHORT]
    made = gt.GT(text.rename(columns=inner), rowname_col=inner[first], id=f"table-{name}")
    made = made.cols_label({inner[column]: str(heads[column]) for column in others}).tab_stubhead(heads[first])
    made = made.cols_align("left").cols_align("right", columns=[inner[c] for c in right if c != first])
    raw = made.cols_align("center", columns=[inner[column] for column in short]).as_raw_html()
    # The page's own style sheet covers every table; great-tables would repeat eight kilobytes for each. What is left
    # is what that sheet uses: scope ties cells to their headings, so ids and most classes can go.
    body = raw[raw.index("<table") : raw.index("</table>") + len("</table>")]
    body = re.sub(r' (?:data-quarto-[a-z-]+|headers|id|rowspan|colspan)="[^"]*"', "", body)
    body = re.sub(r' class="([^"]*)"', _class, body)
    body = body.replace("<table", f'<table class="companion-table" id="table-{name}"', 1)
    for mark, words in ((UNDEFINED, "undefined"), (UNRESOLVED_MARK, "unresolved")):
        body = body.replace(f">{mark}</td>", f'><abbr title="{words}">{mark}</abbr></td>')
    # An interval may stand under its estimate where room is short, but never breaks itself.
    body = re.sub(r" (\[[^\]<>]*\])</td>", r" <span>\1</span></td>", body)
    return re.sub(r"\n\s*", "\n", body)


def _class(match: re.Match[str]) -> str:
    kept = "gt_right" if "gt_right" in match[1] else "companion-short" if "gt_center" in match[1] else ""
    return f' class="{kept}"' if kept else ""


def _stacked(text: pd.DataFrame, heads: Mapping[str, str], right: list[str], first: str) -> tuple[str, str]:
    """Return classes and style of a table that is too wide for a phone, or even for paper."""
    need = 0.0
    for column in text.columns:
        whole = max((len(cell) for cell in text[column]), default=0)
        words = f"{heads[column]} {' '.join(text[column])}".split()
        longest = max(map(len, words), default=0)
        need += _GAP + _LETTER * (max(whole, longest) if column in right else max(longest, min(whole, _SQUEEZED)))
    if need <= _PHONE:
        return "", ""
    order = [column for column in text.columns if column != first]
    names = "".join(f"--n{place}:{_css_string(heads[column])};" for place, column in enumerate(order, 1))
    wide = " companion-wide" if need > _PAPER else ""
    return f" companion-stack{wide}", f' style="{html.escape(names, quote=True)}"'


def _css_string(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return "'" + re.sub(r"\s+", " ", escaped) + "'"
