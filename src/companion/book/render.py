"""Show charts, still figures and tables in a notebook, the book, and standalone pages.

Every figure is one HTML fragment that needs no network: the chart's specification, a drawing for print and for readers
without scripts, the table behind it, and a caption. One shared script (figures.js with Vega inside, see
:func:`bundle`) turns the specifications into live charts. Ink is a CSS variable, so drawings follow the page's mode.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import html
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

import pandas as pd

from companion.book import svg as drawings
from companion.book import theme
from companion.book.tables import check_name, csv_link, inline_markdown, table_html
from companion.errors import InputError

#: Set in the environment of runs whose figures nobody looks at, such as those of a sweep without pages.
NO_STILLS = "COMPANION_NO_STILLS"
#: Width in pixels of the text column on a wide screen; still images are drawn for it.
WIDTH = 720
VEGA_MIME = "application/vnd.vegalite.v6+json"
HEADLINE_MIME = "application/vnd.companion.headline+json"
_TABLE_ROWS = 60


@dataclass(frozen=True)
class Bundle:
    """Something IPython can display: a MIME bundle with its metadata."""

    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.data, self.metadata


def show(chart: Any, **words: Any) -> None:
    """Display a figure: an Altair chart (live on the page, still in print), or a seaborn or matplotlib figure.

    Parameters
    ----------
    chart : Altair chart, matplotlib Figure or Axes, seaborn grid
        A still figure is drawn under :func:`companion.book.still_style`.
    name : str
        Id of the figure on its page, ``fig-NAME``.
    caption, alt : str
        What the figure shows (Markdown), and what somebody who does not see it should know.
    table : DataFrame, optional
        The numbers behind it, folded below; a chart's own data if not given.
    formats, intervals : mapping, optional
        As for :func:`show_table`.
    """
    display_bundle(figure(chart, **words))


def figure(chart: Any, *, name: str, caption: str, alt: str, table: pd.DataFrame | None = None, **kinds: Any) -> Bundle:
    """Build a figure without displaying it; see :func:`show`."""
    check_name(name)
    for text, what in ((alt, "alt text"), (caption, "caption")):
        if not text.strip():
            raise InputError(f"figure {name}: {what} is empty")
    data, kind, inside = _chart(chart, name, alt) if hasattr(chart, "to_dict") else _still(chart, name, alt)
    if table is None and isinstance(getattr(chart, "data", None), pd.DataFrame):
        table = chart.data
    words = f"<figcaption>{inline_markdown(caption)}</figcaption>"
    if table is not None and not table.empty:
        told = f"Data of the figure: {caption}"
        body = table_html(table, name=f"{name}-data", caption=told, max_rows=_TABLE_ROWS, **kinds)
        fold = '<details class="companion-behind"><summary>Table behind this figure</summary>'
        words += f"{fold}{body}{csv_link(table, name)}</details>"
    page = f'<figure class="companion-figure" id="fig-{name}" data-companion="{kind}">{inside}{words}</figure>'
    return Bundle({**data, "text/html": page, "text/plain": f"[Figure: {alt}]"})


def _chart(chart: Any, name: str, alt: str) -> tuple[dict[str, Any], str, str]:
    spec = _spec(chart, alt)
    drawing, height = ("", 300) if os.environ.get(NO_STILLS) else _drawn(spec, name)
    said = f'role="img" aria-label="{html.escape(alt, quote=True)}"'
    inside = (
        f'<div class="companion-canvas" style="--companion-height:{height}px">'
        f'<div class="companion-live" {said}></div>'
        f'{f"""<div class="companion-still" {said}>{drawing}</div>""" if drawing else ""}</div>'
        f'<div class="companion-controls"{_room_for_inputs(spec)}></div>'
        f'<script type="application/json" class="companion-spec">{_script_json(_in_columns(spec))}</script>'
    )
    return {VEGA_MIME: _for_lab(spec)}, "chart", inside


def _still(made: Any, name: str, alt: str) -> tuple[dict[str, Any], str, str]:
    """Draw a matplotlib figure into the page; the bitmap is for viewers that show no HTML which they do not trust."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    fig = getattr(made, "figure", made)
    text, bitmap = io.StringIO(), io.BytesIO()
    # Fixed salt and no date: the same figure gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        fig.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    fig.savefig(bitmap, format="png", dpi=80, facecolor="white", metadata={"Software": None})
    plt.close(fig)
    drawing = theme.as_variables(drawings.inline(text.getvalue(), name))
    said = html.escape(alt, quote=True)
    inside = f'<div class="companion-still" role="img" aria-label="{said}">{drawing}</div>'
    return {"image/png": base64.b64encode(bitmap.getvalue()).decode()}, "still", inside


def table(
    data: pd.DataFrame, *, name: str, caption: str, fold: str = "", max_rows: int | None = None, **kinds: Any
) -> Bundle:
    """Build a table without displaying it; see :func:`show_table`."""
    if not caption.strip():
        raise InputError(f"table {name}: caption is empty")
    page = table_html(data, name=name, caption=caption, max_rows=max_rows, **kinds) + csv_link(data, name)
    if fold:
        page = f'<details class="companion-behind"><summary>{html.escape(fold)}</summary>{page}</details>'
    plain = data.to_string(index=False, max_rows=max_rows or _TABLE_ROWS)
    return Bundle({"text/html": f'<div class="companion-block">{page}</div>', "text/plain": plain})


def show_table(data: pd.DataFrame, **words: Any) -> None:
    """Display a table with caption, headings and a CSV download.

    Parameters
    ----------
    data : DataFrame
        One row of the table for each of its rows; missing numbers are undefined, missing truth values unresolved.
    name, caption : str
        Id on the page, ``table-NAME``, and what the table holds (Markdown).
    formats : mapping of column to format specification or function, optional
    intervals : mapping of column to the columns of its two ends, optional
        Written behind the number, as in ``0.533 [0.510, 0.553]``.
    labels : mapping of column to heading, optional
    row_header : str, optional
        The column that names its row; the first by default.
    max_rows : int, optional
        Cut, and say so; the CSV holds all.
    fold : str, optional
        Fold the table under this line: for checks that most readers skip.
    """
    display_bundle(table(data, **words))


_SINKS: list[Callable[[Bundle], None]] = []


@contextlib.contextmanager
def displayed_to(sink: Callable[[Bundle], None]) -> Iterator[None]:
    """Hand what is displayed to a function while the context lasts, so that a page needs no notebook."""
    _SINKS.append(sink)
    try:
        yield
    finally:
        _SINKS.pop()


def display_bundle(made: Bundle) -> None:
    """Hand something to IPython as it is."""
    if _SINKS:
        _SINKS[-1](made)
        return
    from IPython.display import display

    display(made.data, raw=True, metadata=made.metadata)


def _spec(chart: Any, alt: str) -> dict[str, Any]:
    import altair

    # No row limit: figures embed what they need, and the page's weight has a test of its own.
    with altair.data_transformers.enable("default", max_rows=None):
        spec: dict[str, Any] = chart.to_dict()
    spec["description"] = alt
    spec.pop("$schema", None)
    config = spec.get("config", {})
    if config.get("view") == {"continuousWidth": 300, "continuousHeight": 300}:  # Altair's own default
        del config["view"]
    if not config:
        spec.pop("config", None)
    facets = {"row", "column", "facet"} & spec.get("encoding", {}).keys()
    single = not ({"hconcat", "vconcat", "concat", "facet", "repeat"} & spec.keys()) and not facets
    if single and "width" not in spec:
        spec |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return spec


def _room_for_inputs(spec: Mapping[str, Any]) -> str:
    """Return the style that keeps the place of the sliders until the script puts them there."""
    inputs = sum("bind" in param and "select" not in param for param in spec.get("params", []))
    return f' style="--companion-inputs:{inputs}"' if inputs else ""


def _themed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification with the theme below the chart's own configuration."""
    result, config = copy.deepcopy(dict(spec)), theme.vega_config()
    own = result.get("config", {})
    both = {key: config[key] | value for key, value in own.items() if isinstance(config.get(key), dict)}
    result["config"] = {**config, **own, **both}
    return result


def _drawn(spec: Mapping[str, Any], name: str) -> tuple[str, int]:
    """Draw the still image that follows the page's mode; return SVG and height in pixels."""
    import vl_convert

    theme.fonts()
    themed = _themed(spec)
    if themed.get("width") == "container":
        themed["width"] = WIDTH
    made: str = vl_convert.vegalite_to_svg(json.dumps(themed), allowed_base_urls=[])
    if theme.HATCH in made:
        made = re.sub(r"(<svg[^>]*>)", lambda match: match[1] + theme.HATCH_DEFS, made, count=1)
    height = re.search(r'\bheight="([\d.]+)"', made)
    return drawings.inline(made, name), round(float(height[1]) if height else 300)


def _for_lab(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with theme and literal colours, for viewers outside the book."""
    import altair

    result = theme.flat(theme.literal(_themed(spec)))
    result["config"]["background"] = theme.INK["light"]["--companion-paper"]
    return {"$schema": altair.SCHEMA_URL, **result}


def _in_columns(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Write each data set as its column names, once, and rows of values; figures.js puts it back."""
    written: dict[str, Any] = {}
    for name, rows in spec.get("datasets", {}).items():
        same = (
            isinstance(rows, list) and rows and all(isinstance(row, dict) and list(row) == [*rows[0]] for row in rows)
        )
        columns = {"columns": [*rows[0]], "rows": [list(row.values()) for row in rows]} if same else rows
        written[name] = columns
    return {**spec, "datasets": written} if written else dict(spec)


def _script_json(spec: Mapping[str, Any]) -> str:
    # A "<" inside a string could close the script element; its escape means the same in JSON.
    return json.dumps(spec, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def asset(name: str) -> str:
    """Return the text of a file of the book's own assets."""
    return (resources.files("companion.book") / "assets" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def bundle() -> str:
    """Return the one script that draws every chart: Vega-Embed, Vega-Lite, Vega and figures.js in a single file."""
    import vl_convert

    script = asset("figures.js").replace("/*CONFIG*/ {}", json.dumps(theme.vega_config()))
    return "(function(){" + vl_convert.javascript_bundle(script) + "})();\n"


def style_sheet() -> str:
    """Return the style sheet of figures and tables, with the ink of both modes filled in."""
    text = asset("figures.css")
    for mode, ink in theme.INK.items():
        text = text.replace(f"/*INK {mode}*/", "".join(f"{name}:{colour};" for name, colour in ink.items()))
    return text


@lru_cache(maxsize=1)
def _fonts() -> list[tuple[str, str, str]]:
    """Return family, style and bytes (base64) of the fonts of a page."""
    held = {
        "sans": (theme.FAMILY, "normal"),
        "sans-italic": (theme.FAMILY, "italic"),
        "code": ("Companion Code", "normal"),
    }
    folder = resources.files("companion.book") / "assets" / "fonts"
    return [
        (family, style, base64.b64encode((folder / f"{name}.woff2").read_bytes()).decode())
        for name, (family, style) in held.items()
    ]


def font_faces() -> str:
    """Return a style sheet that holds the fonts themselves: a page opened from disk may not load another file."""
    return "".join(
        f'@font-face{{font-family:"{family}";font-style:{style};font-weight:400 700;'
        f'src:url(data:font/woff2;base64,{held}) format("woff2")}}\n'
        for family, style, held in _fonts()
    )


def font_script() -> str:
    """Return a script that gives the page its fonts at once; a style sheet's arrive after the first line is set."""
    return "".join(
        f'document.fonts.add(new FontFace("{family}",Uint8Array.from(atob("{held}"),(c)=>c.charCodeAt(0)),'
        f'{{style:"{style}",weight:"400 700"}}));\n'
        for family, style, held in _fonts()
    )
