"""The live charts that chapters share: each function takes a tidy table and returns an Altair chart.

``forest`` (estimates with intervals), ``dots`` (every case one), ``lines`` (sweeps), ``heatmap``, ``bars`` (stacked),
and ``explorer``, which gives any of them sliders and menus. Hovering reads out the numbers as the page writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from companion.book.palette import ARM_NAMES, CATEGORICAL, HATCH, OURS, PUBLISHED, STATUS, arm_colour
from companion.book.text import interval, number

if TYPE_CHECKING:
    import altair as alt

INK, MUTED, RULE, PAPER = (f"var(--companion-{name})" for name in ("ink", "muted", "rule", "paper"))
#: Axis from 0% to 100%: with quarters both ends keep their label on a phone, where every second label gives way.
SHARES: dict[str, Any] = {"format": "%", "values": [0, 0.25, 0.5, 0.75, 1]}
_SHAPES = ("circle", "diamond", "square", "triangle-up", "triangle-down", "cross")


def colours_of(names: Sequence[str], colours: Mapping[str, str] | None = None) -> list[str]:
    """Return a colour for each name: its own meaning (published, ours, an arm, a status), else the next free one."""
    codes = {name: arm for arm, name in ARM_NAMES.items()}
    meanings = {"published": PUBLISHED, "ours": OURS, **STATUS, **(colours or {})}
    meanings |= {n: arm_colour(codes.get(n, n)) for n in names if n not in meanings and (n in ARM_NAMES or n in codes)}
    free = iter([colour for colour in CATEGORICAL if colour not in meanings.values()] + list(CATEGORICAL) * 9)
    return [meanings[name] if name in meanings else next(free) for name in names]


def _colour(data: pd.DataFrame, column: str | None, colours: Mapping[str, str] | None, legend: bool = True) -> Any:
    import altair as alt

    if column is None:
        return alt.value(next(iter((colours or {}).values()), OURS))
    names = list(dict.fromkeys(data[column]))
    scale = alt.Scale(domain=names, range=colours_of(names, colours))
    shown = alt.Legend(title=None, orient="top", symbolOpacity=1) if legend and len(names) > 1 else None
    return alt.Color(f"{column}:N", scale=scale, legend=shown)


def _tips(data: pd.DataFrame, columns: Sequence[str | None]) -> list[Any]:
    import altair as alt

    kept = [name for name in dict.fromkeys(columns) if name in data.columns]
    kinds = {name: "Q" if pd.api.types.is_numeric_dtype(data[name]) else "N" for name in kept}
    return [
        alt.Tooltip(f"{name}:{kind}", format=".3~f") if kind == "Q" else alt.Tooltip(f"{name}:{kind}", title=name)
        for name, kind in kinds.items()
    ]


def _names(data: pd.DataFrame, y: str, order: Sequence[str] | None = None) -> Any:
    import altair as alt

    return alt.Y(f"{y}:N", sort=list(order or dict.fromkeys(data[y])), title=None, axis=alt.Axis(labelLimit=260))


def forest(
    data: pd.DataFrame,
    *,
    y: str,
    title: str,
    series: str | None = None,
    colours: Mapping[str, str] | None = None,
    order: Sequence[str] | None = None,
    zero: bool = True,
    row: str | None = None,
    fmt: str = ".3f",
) -> alt.TopLevelMixin:
    """Draw estimates with intervals (columns estimate, low, high): a line per item, side by side for each series.

    ``title`` names the axis, ``row`` a column whose values get a panel each, ``zero=False`` leaves out the line at 0.
    """
    import altair as alt

    ends = data[["estimate", "low", "high"]].to_numpy(dtype=object)
    told = [interval(estimate, low, high, fmt) for estimate, low, high in ends]
    data = data.assign(shown=told)
    names = list(dict.fromkeys(data[series])) if series else []
    base = alt.Chart(data).encode(
        y=_names(data, y, order),
        color=_colour(data, series, colours),
        tooltip=[*_tips(data, [y, series]), alt.Tooltip("shown:N", title=title)],
    )
    point = {}
    if len(names) > 1:
        base = base.encode(yOffset=alt.YOffset(f"{series}:N", sort=names))
        scale = alt.Scale(domain=names, range=[_SHAPES[place % len(_SHAPES)] for place in range(len(names))])
        point["shape"] = alt.Shape(f"{series}:N", scale=scale, legend=alt.Legend(title=None, orient="top"))
    x = alt.X("low:Q", title=title, scale=alt.Scale(zero=False, nice=True))
    layers: list[Any] = [
        base.mark_rule(strokeWidth=2.5, opacity=0.75).encode(x=x, x2="high:Q"),
        base.mark_point(filled=True, size=75, opacity=1).encode(x="estimate:Q", **point),
    ]
    if zero:
        line = alt.Chart(data).mark_rule(strokeDash=[4, 4], strokeWidth=1, color=RULE)
        layers.insert(0, line.encode(x=alt.datum(0.0)))
    height = alt.Step(17 if len(names) > 1 else 26)
    return _panels(data, row, lambda: alt.layer(*layers).properties(height=height), stacked=True)


def _panels(data: pd.DataFrame, panel: str | None, make: Any, *, stacked: bool = False, width: int = 300) -> Any:
    """Return one chart, or one for each value of a column, beside one another or stacked."""
    import altair as alt

    if panel is None:
        return make()
    parts = [
        make().transform_filter(alt.datum[panel] == name).properties(title=str(name), width=520 if stacked else width)
        for name in dict.fromkeys(data[panel])
    ]
    return alt.vconcat(*parts) if stacked else alt.hconcat(*parts)


def dots(
    data: pd.DataFrame,
    *,
    x: str,
    y: str,
    x_title: str,
    y_title: str | None = None,
    colour: str | None = None,
    colours: Mapping[str, str] | None = None,
    tips: Sequence[str] = (),
    size: int = 45,
    zero: bool = False,
    height: int = 300,
) -> alt.TopLevelMixin:
    """Draw every case as one dot: over numbers, or, where ``y`` is a name, piled up beside its line.

    ``tips`` are columns to read out when a dot is hovered, ``zero`` draws lines at 0.
    """
    import altair as alt

    numeric = pd.api.types.is_numeric_dtype(data[y])
    base = alt.Chart(data if numeric else data.assign(pile=_pile(data, x, y)))
    point = base.mark_point(filled=True, size=size, opacity=0.85).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=alt.Scale(zero=False, nice=True)),
        y=alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=False, nice=True)) if numeric else _names(data, y),
        color=_colour(data, colour, colours),
        tooltip=_tips(data, [*tips, x, y, colour]),
    )
    if not numeric:
        point = point.encode(yOffset=alt.YOffset("pile:Q", scale=alt.Scale(domain=[-1.1, 1.1])))
    lines = [alt.Chart(data).mark_rule(strokeDash=[4, 4], color=RULE).encode(x=alt.datum(0.0))] if zero else []
    if zero and numeric:
        lines.append(alt.Chart(data).mark_rule(strokeDash=[4, 4], color=RULE).encode(y=alt.datum(0.0)))
    return alt.layer(*lines, point).properties(height=height if numeric else alt.Step(90))


def _pile(data: pd.DataFrame, x: str, y: str, bins: int = 60) -> Any:
    """Say how far from its line each dot stands, in -1 to 1, so that dots with like values stand beside each other."""
    values = data[x].astype("float64")
    width = max(float(values.max() - values.min()), 1e-12) / bins
    place = data.assign(bin=(values / width).round()).groupby([y, "bin"]).cumcount()
    offset = np.where(place % 2 == 0, place / 2, -(place + 1) / 2)
    return offset / max(1.0, float(np.abs(offset).max()))


def lines(
    data: pd.DataFrame,
    *,
    x: str,
    y: str,
    series: str,
    x_title: str,
    y_title: str,
    ends: tuple[str, str] | None = None,
    colours: Mapping[str, str] | None = None,
    panel: str | None = None,
    x_format: str = "",
    zero: bool = False,
    height: int = 260,
) -> alt.TopLevelMixin:
    """Draw a sweep: one line per series, with a band between ``ends`` (two columns), in a panel for each ``panel``."""
    import altair as alt

    low, high = ends or (y, y)
    across = alt.X(f"{x}:Q", title=x_title, axis=alt.Axis(format=x_format) if x_format else alt.Undefined)
    least, most = float(data[[y, low]].min().min()), float(data[[y, high]].max().max())
    scale = alt.Scale(domain=[min(least, 0.0) if zero else least, most], nice=True)
    told = [interval(*parts) for parts in data[[y, low, high]].to_numpy(dtype=object)] if ends else data[y].map(number)
    data = data.assign(shown=told)

    def make() -> Any:
        base = alt.Chart(data).encode(
            x=across,
            color=_colour(data, series, colours),
            tooltip=[*_tips(data, [series, x]), alt.Tooltip("shown:N", title=y_title)],
        )
        down = alt.Y(f"{y}:Q", title=y_title, scale=scale)
        layers = [base.mark_line().encode(y=down), base.mark_point(filled=True, size=45).encode(y=down)]
        if ends:
            band = base.mark_area(opacity=0.16).encode(y=alt.Y(f"{low}:Q", title=y_title, scale=scale), y2=f"{high}:Q")
            layers.insert(0, band)
        if zero:
            layers.insert(0, alt.Chart(data).mark_rule(strokeDash=[4, 4], color=RULE).encode(y=alt.datum(0.0)))
        return alt.layer(*layers).properties(height=height)

    return _panels(data, panel, make)


def heatmap(
    data: pd.DataFrame,
    *,
    x: str,
    y: str,
    value: str,
    title: str,
    fmt: str = "+.2g",
    domain: tuple[float, float, float] = (-1, 0, 1),
    panel: str | None = None,
    tips: Sequence[str] = (),
) -> alt.TopLevelMixin:
    """Draw a number for each pair of names, written into a cell whose colour goes from blue over grey to orange."""
    import altair as alt

    data = data.assign(shown=[number(n, fmt) if n else "0" for n in data[value]])
    scale = alt.Scale(domain=list(domain), range=["#4a9ecb", "#d4d9df", "#e8853d"], interpolate="rgb", clamp=True)

    def make() -> Any:
        base = alt.Chart(data).encode(
            x=alt.X(
                f"{x}:N", sort=[*dict.fromkeys(data[x])], title=None, axis=alt.Axis(labelAngle=-35, labelOverlap=False)
            ),
            y=_names(data, y),
            tooltip=[*_tips(data, [y, x, *tips]), alt.Tooltip("shown:N", title=title)],
        )
        legend = alt.Legend(title=title, orient="bottom", gradientLength=220)
        cell = base.mark_rect(stroke=PAPER, strokeWidth=2).encode(
            color=alt.Color(f"{value}:Q", scale=scale, legend=legend)
        )
        # Dark ink on every cell colour has the contrast that small text needs.
        text = base.mark_text(fontSize=12, color="#14181e").encode(text="shown:N")
        return alt.layer(cell, text).properties(height=alt.Step(24))

    return _panels(data, panel, make, width=280)


def bars(
    data: pd.DataFrame,
    *,
    y: str,
    value: str,
    part: str,
    title: str,
    colours: Mapping[str, str] | None = None,
    order: Sequence[str] | None = None,
    share: bool = True,
) -> alt.TopLevelMixin:
    """Draw stacked bars, one per item; the parts follow the order of ``colours``, by default that of the statuses.

    With ``share`` the axis goes from 0% to 100%. Unresolved is hatched, so that it never reads as one of the answers.
    """
    import altair as alt

    wanted = dict(colours or STATUS)
    names = list(wanted)
    axis, scale = (alt.Axis(**SHARES), alt.Scale(domain=[0, 1])) if share else (alt.Axis(), alt.Scale())
    return (
        alt.Chart(data.assign(place=data[part].map({name: place for place, name in enumerate(names)})))
        .mark_bar(height={"band": 0.62})
        .encode(
            y=_names(data, y, order),
            x=alt.X(f"{value}:Q", title=title, axis=axis, scale=scale),
            color=alt.Color(
                f"{part}:N",
                scale=alt.Scale(
                    domain=names, range=[HATCH if name == "unresolved" else c for name, c in wanted.items()]
                ),
                legend=alt.Legend(title=None, orient="top"),
            ),
            order=alt.Order("place:Q"),
            tooltip=[
                *_tips(data, [y, part]),
                alt.Tooltip(f"{value}:Q", title=title, format=".1%" if share else ",.4~g"),
            ],
        )
        .properties(height=alt.Step(40))
    )


def slider(label: str, low: float, high: float, *, value: float, step: float = 1) -> tuple[Any, Any]:
    """Return a slider for :func:`explorer`."""
    import altair as alt

    return alt.binding_range(min=low, max=high, step=step, name=f"{label} "), value


def picker(label: str, options: Sequence[Any], *, value: Any = None) -> tuple[Any, Any]:
    """Return a menu for :func:`explorer`."""
    import altair as alt

    plain = [option.item() if hasattr(option, "item") else option for option in options]
    return alt.binding_select(options=plain, name=f"{label} "), plain[0] if value is None else value


def explorer(chart: Any, **controls: tuple[Any, Any]) -> Any:
    """Give a chart sliders and menus: each is named after the column whose value it chooses.

    A chart drawn from a table with one block of rows for each setting shows the rows of the settings chosen. The same
    numbers are in the table behind it, so that nothing is computed in the page that the package has not computed.

    Examples
    --------
    >>> chart = forest(table, y="arm", title="recall")  # doctest: +SKIP
    >>> explorer(chart, depth=slider("Depth", 5, 50, value=20, step=5))  # doctest: +SKIP
    """
    import altair as alt

    def narrowed(part: Any) -> Any:
        for attribute in ("hconcat", "vconcat", "concat"):
            inner: Any = getattr(part, attribute, alt.Undefined)
            if inner is not alt.Undefined:
                setattr(part, attribute, [narrowed(one) for one in inner])
                return part
        for name, (_, value) in controls.items():
            test = f"datum['{name}'] == {name}_"
            if isinstance(value, float):
                test = f"abs(datum['{name}'] - {name}_) < 1e-9"
            part = part.transform_filter(test)
        return part

    params = [alt.param(name=f"{name}_", value=value, bind=bind) for name, (bind, value) in controls.items()]
    return narrowed(chart.copy(deep=True)).add_params(*params)
