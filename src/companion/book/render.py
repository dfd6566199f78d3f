"""Show charts, still figures, tables and numbers in a notebook, the book, and standalone pages.

Every figure is one HTML fragment that needs no network: the chart's specification, a still image for print and
for readers without scripts, the table behind it, and a caption. One shared script (figures.js with Vega inside,
see :func:`bundle`) turns the specifications into live charts.
"""

from __future__ import annotations

import copy
import html
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import pandas as pd

from companion.book import stills, theme
from companion.book.kernel import find_parameters, parameters_frame, read_parameters
from companion.book.tables import Format, check_name, csv_link, inline_markdown, table_html
from companion.book.text import interval, number
from companion.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def figure(
    chart: Any,
    *,
    name: str,
    caption: str,
    alt: str,
    table: pd.DataFrame | None = None,
    formats: Mapping[str, Format] | None = None,
    intervals: Mapping[str, tuple[str, str]] | None = None,
) -> Bundle:
    """Build a figure from an Altair chart without displaying it; see :func:`show` for the parameters."""
    check_name(name)
    _need(alt, f"figure {name}: alt text")
    _need(caption, f"figure {name}: caption")
    spec = _spec(chart, alt)
    behind = table if table is not None else _own_data(chart)
    svg, width, height = ("", WIDTH, 300) if os.environ.get(NO_STILLS) else _still(spec)
    parts = [
        f'<figure class="companion-figure" id="fig-{name}" data-companion="chart">',
        f'<div class="companion-canvas" style="--companion-height:{height}px">',
        '<div class="companion-live" role="img" aria-label="' + html.escape(alt, quote=True) + '"></div>',
        _image(svg, alt, width, height, "companion-still") if svg else "",
        "</div>",
        f'<div class="companion-controls"{_room_for_inputs(spec)}></div>',
        f'<script type="application/json" class="companion-spec">{_script_json(_in_columns(spec))}</script>',
        f"<figcaption>{inline_markdown(caption)}</figcaption>",
        _behind(behind, name, caption, formats, intervals),
        "</figure>",
    ]
    data = {
        VEGA_MIME: _for_lab(spec),
        "text/html": "".join(parts),
        "text/plain": f"[Figure: {alt}]",
    }
    return Bundle(data)


def show(
    chart: Any,
    *,
    name: str,
    caption: str,
    alt: str,
    table: pd.DataFrame | None = None,
    formats: Mapping[str, Format] | None = None,
    intervals: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """Display a figure: an Altair chart (live on the page, still in print), or a seaborn or matplotlib figure.

    Parameters
    ----------
    chart : altair chart, matplotlib Figure, Axes, or seaborn grid
        A still figure is drawn under :func:`still_style`.
    name : str
        Id of the figure on its page, ``fig-NAME``.
    caption, alt : str
        What the figure shows; what somebody who does not see it should know. Markdown in captions.
    table : DataFrame, optional
        The numbers behind it, folded below; a chart's own data if not given.
    formats, intervals : mapping, optional
        As for :func:`show_table`.
    """
    drawn = getattr(chart, "figure", None) if not hasattr(chart, "to_dict") else None
    make: Any = figure if drawn is None and not hasattr(chart, "savefig") else still
    made = chart if make is figure or drawn is None else drawn
    _display(make(made, name=name, caption=caption, alt=alt, table=table, formats=formats, intervals=intervals))


def still(
    fig: Figure,
    *,
    name: str,
    caption: str,
    alt: str,
    table: pd.DataFrame | None = None,
    formats: Mapping[str, Format] | None = None,
    intervals: Mapping[str, tuple[str, str]] | None = None,
) -> Bundle:
    """Build a still figure without displaying it; see :func:`show_still` for the parameters."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    check_name(name)
    _need(alt, f"figure {name}: alt text")
    _need(caption, f"figure {name}: caption")
    buffer = io.StringIO()
    # Fixed salt and no date: the same figure gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        fig.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(fig)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    width, height = (round(float(size) * 96 / 72) for size in fig.get_size_inches() * 72)
    parts = [
        f'<figure class="companion-figure" id="fig-{name}" data-companion="still">',
        # A box of their own: the theme hides every later sibling caption together with an image.
        '<div class="companion-images">',
        _image(svg, alt, width, height, "companion-image only-light"),
        _image(_dark(svg), alt, width, height, "companion-image only-dark"),
        "</div>",
        f"<figcaption>{inline_markdown(caption)}</figcaption>",
        _behind(table, name, caption, formats, intervals),
        "</figure>",
    ]
    return Bundle({"text/html": "".join(parts), "text/plain": f"[Figure: {alt}]"})


def show_still(
    fig: Figure,
    *,
    name: str,
    caption: str,
    alt: str,
    table: pd.DataFrame | None = None,
    formats: Mapping[str, Format] | None = None,
    intervals: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """Display a matplotlib or seaborn figure, drawn under :func:`still_style`, for light and dark pages."""
    _display(still(fig, name=name, caption=caption, alt=alt, table=table, formats=formats, intervals=intervals))


def table(
    data: pd.DataFrame,
    *,
    name: str,
    caption: str,
    formats: Mapping[str, Format] | None = None,
    intervals: Mapping[str, tuple[str, str]] | None = None,
    labels: Mapping[str, str] | None = None,
    row_header: str | None = None,
    max_rows: int | None = None,
) -> Bundle:
    """Build a table without displaying it; see :func:`show_table` for the parameters."""
    _need(caption, f"table {name}: caption")
    body = table_html(
        data,
        name=name,
        caption=caption,
        formats=formats,
        intervals=intervals,
        labels=labels,
        row_header=row_header,
        max_rows=max_rows,
    )
    page = f'<div class="companion-block">{body}{csv_link(data, name)}</div>'
    return Bundle({"text/html": page, "text/plain": data.to_string(index=False, max_rows=max_rows or 60)})


def show_table(
    data: pd.DataFrame,
    *,
    name: str,
    caption: str,
    formats: Mapping[str, Format] | None = None,
    intervals: Mapping[str, tuple[str, str]] | None = None,
    labels: Mapping[str, str] | None = None,
    row_header: str | None = None,
    max_rows: int | None = None,
) -> None:
    """Display a table with caption, headings and a CSV download."""
    _display(
        table(
            data,
            name=name,
            caption=caption,
            formats=formats,
            intervals=intervals,
            labels=labels,
            row_header=row_header,
            max_rows=max_rows,
        )
    )


def parameters_table(namespace: Mapping[str, Any] | None = None, source: str | None = None) -> None:
    """Display this page's parameters, folded unless one was changed: value in force, default, meaning."""
    if namespace is None or source is None:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        known: Mapping[str, Any] = {} if shell is None else shell.user_ns
        namespace = known if namespace is None else namespace
        cells = [str(cell) for cell in known.get("In", [])]
    parameters = find_parameters(cells) if source is None else read_parameters(source)
    if not parameters:
        raise InputError("parameters_table: no executed cell assigns literals only; pass source=")
    frame = parameters_frame(parameters, namespace)
    changed = int(frame["changed"].sum())
    said = "all at their defaults" if not changed else f"{changed} changed from the default"
    caption = "Value in force, default and meaning. `companion rerun` gives any of them another value."
    body = table_html(frame.drop(columns="changed"), name="parameters", caption=caption)
    for name in frame.loc[frame["changed"], "parameter"]:
        # The cell heads its row; the mark is text, so that it does not depend on colour.
        plain = f'<th scope="row">{html.escape(name)}</th>'
        marked = f'<th scope="row" class="companion-changed">{html.escape(name)} <strong>changed</strong></th>'
        body = body.replace(plain, marked, 1)
    state = "" if changed else " companion-unchanged"
    # Folded while everything is at its default: names that the text has not explained yet need not stand in its way.
    fold = f"<details{' open' if changed else ''}><summary>Parameters of this page: {said}</summary>{body}</details>"
    page = f'<div class="companion-block companion-parameters{state}">{fold}</div>'
    _display(Bundle({"text/html": page, "text/plain": frame.to_string(index=False)}))


def say(
    name: str,
    estimate: Any,
    low: Any = None,
    high: Any = None,
    *,
    fmt: str = ".3f",
    headline: bool = False,
    display: bool = False,
) -> None:
    """Make a number available to the prose as ``{glue:text}`name``` and, if wanted, to the run record."""
    text = estimate if isinstance(estimate, str) else interval(estimate, low, high, fmt)
    prefix = "" if display else "application/papermill.record/"
    # The glue role evaluates plain text as a Python literal: bare "1,296" would turn into a pair of numbers and
    # "0.000" into "0.0", so the text travels quoted.
    data: dict[str, Any] = {f"{prefix}text/plain": repr(text), f"{prefix}text/html": html.escape(text)}
    if headline:
        # Under the same prefix, so that no viewer tries to show it.
        data[f"{prefix}{HEADLINE_MIME}"] = {
            "name": name,
            **{key: _plain(value) for key, value in (("estimate", estimate), ("low", low), ("high", high))},
        }
    _display(Bundle(data, {"scrapbook": {"name": name, "mime_prefix": prefix}}))


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if value is None or (not isinstance(value, str) and pd.isna(value)) else value


def _display(made: Bundle) -> None:
    from IPython.display import display

    display(made.data, raw=True, metadata=made.metadata)


def _need(text: str, what: str) -> None:
    if not text.strip():
        raise InputError(f"{what} is empty")


def _spec(chart: Any, alt: str) -> dict[str, Any]:
    import altair as alt_module

    # No row limit: figures embed what they need, and the page's weight has a test of its own.
    with alt_module.data_transformers.enable("default", max_rows=None):
        spec: dict[str, Any] = chart.to_dict()
    spec["description"] = alt
    spec.pop("$schema", None)
    config = spec.get("config", {})
    if config.get("view") == {"continuousWidth": 300, "continuousHeight": 300}:  # Altair's own default
        del config["view"]
    if not config:
        spec.pop("config", None)
    single = not ({"hconcat", "vconcat", "concat", "facet", "repeat"} & spec.keys()) and not _has_facet(spec)
    if single and "width" not in spec:
        spec["width"] = "container"
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def _has_facet(spec: Mapping[str, Any]) -> bool:
    return bool({"row", "column", "facet"} & spec.get("encoding", {}).keys())


def _room_for_inputs(spec: Mapping[str, Any]) -> str:
    """Return the style that keeps the place of the sliders until the script puts them there."""
    inputs = sum("bind" in param and "select" not in param for param in spec.get("params", []))
    return f' style="--companion-inputs:{inputs}"' if inputs else ""


def _merged(spec: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification with the theme below the chart's own configuration."""
    result = copy.deepcopy(dict(spec))
    own = result.get("config", {})
    result["config"] = {**config, **own}
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            result["config"][key] = {**config[key], **value}
    return result


def _still(spec: Mapping[str, Any]) -> tuple[str, int, int]:
    """Draw the still image for the light page; return SVG, width and height in pixels."""
    import vl_convert

    fixed = theme.literal(_merged(spec, theme.vega_config()))
    if fixed.get("width") == "container":
        fixed["width"] = WIDTH
    svg: str = vl_convert.vegalite_to_svg(json.dumps(fixed), allowed_base_urls=[])
    if theme.HATCH in svg:
        svg = re.sub(r"(<svg[^>]*>)", lambda match: match[1] + theme.HATCH_DEFS, svg, count=1)
    head = svg[: svg.index(">")]
    width, height = (float(re.search(rf'\b{side}="([\d.]+)"', head)[1]) for side in ("width", "height"))  # type: ignore[index]
    return stills.compact(svg), round(width), round(height)


def _image(svg: str, alt: str, width: int, height: int, classes: str) -> str:
    words = html.escape(alt, quote=True)
    return f'<img class="{classes}" width="{width}" height="{height}" alt="{words}" src=\'{stills.data_url(svg)}\'>'


def _dark(svg: str) -> str:
    for name, colour in theme.INK["light"].items():
        if name != "--companion-paper":
            svg = svg.replace(colour, theme.INK["dark"][name])
    return svg


def _for_lab(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with theme and literal colours, for viewers outside the book."""
    import altair as alt_module

    result = theme.flat(theme.literal(_merged(spec, theme.vega_config())))
    result["config"]["background"] = theme.INK["light"]["--companion-paper"]
    return {"$schema": alt_module.SCHEMA_URL, **result}


def _in_columns(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Write each data set as its column names, once, and rows of values; figures.js puts it back."""
    if "datasets" not in spec:
        return dict(spec)
    written: dict[str, Any] = {}
    for name, rows in spec["datasets"].items():
        table = isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) for row in rows)
        if table and all(list(row) == list(rows[0]) for row in rows):
            written[name] = {"columns": list(rows[0]), "rows": [list(row.values()) for row in rows]}
        else:
            written[name] = rows
    return {**spec, "datasets": written}


def _script_json(spec: Mapping[str, Any]) -> str:
    # A "<" inside a string could close the script element; its escape means the same in JSON.
    return json.dumps(spec, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _own_data(chart: Any) -> pd.DataFrame | None:
    data = getattr(chart, "data", None)
    return data if isinstance(data, pd.DataFrame) else None


def _behind(
    table: pd.DataFrame | None,
    name: str,
    caption: str,
    formats: Mapping[str, Format] | None,
    intervals: Mapping[str, tuple[str, str]] | None,
) -> str:
    if table is None or table.empty:
        return ""
    body = table_html(
        table,
        name=f"{name}-data",
        caption=f"Data of the figure: {caption}",
        formats=formats,
        intervals=intervals,
        max_rows=_TABLE_ROWS,
    )
    return (
        '<details class="companion-behind"><summary>Table behind this figure</summary>'
        f"{body}{csv_link(table, name)}</details>"
    )


@lru_cache(maxsize=1)
def bundle() -> str:
    """Return the one script that draws every chart: Vega-Embed, Vega-Lite, Vega and figures.js in a single file."""
    import vl_convert

    assets = resources.files("companion.book") / "assets"
    script = (assets / "figures.js").read_text(encoding="utf-8")
    script = script.replace("/*CONFIG*/ {}", json.dumps(theme.vega_config()))
    return "(function(){" + vl_convert.javascript_bundle(script) + "})();\n"


def style_sheet() -> str:
    """Return the style sheet of figures and tables, with the ink of both modes filled in."""
    text = (resources.files("companion.book") / "assets" / "figures.css").read_text(encoding="utf-8")
    for mode, ink in theme.INK.items():
        text = text.replace(f"/*INK {mode}*/", "".join(f"{name}:{colour};" for name, colour in ink.items()))
    return text


__all__ = [
    "HEADLINE_MIME",
    "WIDTH",
    "Bundle",
    "bundle",
    "figure",
    "number",
    "parameters_table",
    "say",
    "show",
    "show_still",
    "show_table",
    "still",
    "style_sheet",
    "table",
]
