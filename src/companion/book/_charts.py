"""The charts that several chapters share: each function takes a tidy table and returns an Altair chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from companion.book.palette import HATCH, INADMISSIBLE, OURS, PUBLISHED, STATUS, arm_scale

if TYPE_CHECKING:
    import altair as alt

_INK = "var(--companion-ink)"
_RULE = "var(--companion-rule)"

#: Axis from 0% to 100%: with quarters both ends keep their label on a phone, where every second label gives way.
SHARES: dict[str, Any] = {"format": "%", "values": [0, 0.25, 0.5, 0.75, 1]}


def forest(
    data: pd.DataFrame,
    *,
    y: str,
    series: str,
    title: str,
    colours: Mapping[str, str] | None = None,
    order: Sequence[str] | None = None,
    zero: bool = True,
    row: str | None = None,
) -> alt.TopLevelMixin:
    """Draw estimates with intervals, one line per item and series."""
    import altair as alt

    palette = dict(colours or {"published": PUBLISHED, "ours": OURS})
    names = list(dict.fromkeys(data[series]))
    scale = alt.Scale(domain=names, range=[palette.get(name, PUBLISHED) for name in names])
    several = len(names) > 1
    legend = alt.Legend(title=None, orient="top") if several else None
    base = alt.Chart(data).encode(
        y=alt.Y(f"{y}:N", sort=list(order or dict.fromkeys(data[y])), title=None, axis=alt.Axis(labelLimit=260)),
        color=alt.Color(f"{series}:N", scale=scale, legend=legend),
        tooltip=[
            alt.Tooltip(f"{y}:N"),
            alt.Tooltip(f"{series}:N"),
            alt.Tooltip("estimate:Q", format=".4f"),
            alt.Tooltip("low:Q", format=".4f"),
            alt.Tooltip("high:Q", format=".4f"),
        ],
    )
    if several:
        base = base.encode(yOffset=alt.YOffset(f"{series}:N", sort=names))
    interval = base.mark_rule(strokeWidth=2.5, opacity=0.75).encode(
        x=alt.X("low:Q", title=title, scale=alt.Scale(zero=False, nice=True)), x2="high:Q"
    )
    shapes = ["diamond", "circle", "square", "triangle-up"]
    shape = alt.Shape(f"{series}:N", scale=alt.Scale(domain=names, range=shapes[: len(names)]), legend=legend)
    point = base.mark_point(filled=True, size=75, opacity=1).encode(x="estimate:Q", shape=shape)
    layers: list[Any] = [interval, point]
    if zero:
        line = alt.Chart(data).mark_rule(strokeDash=[4, 4], strokeWidth=1, color=_RULE).encode(x=alt.datum(0.0))
        layers.insert(0, line)
    height = alt.Step(17 if several else 26)
    chart = alt.layer(*layers)
    if row is None:
        return chart.properties(height=height)
    panels = [
        alt.layer(*layers)
        .transform_filter(alt.datum[row] == name)
        .properties(width=520, height=height, title=alt.Title(str(name), anchor="start", fontSize=12))
        for name in dict.fromkeys(data[row])
    ]
    return alt.vconcat(*panels)


def status_bars(data: pd.DataFrame, *, y: str, order: Sequence[str] | None = None, x_title: str) -> alt.TopLevelMixin:
    """Draw shares of known admissible, unresolved and known inadmissible items as one bar per line."""
    import altair as alt

    names = ["inadmissible", "unresolved", "admissible"]
    ranks = {name: place for place, name in enumerate(names)}
    return (
        alt.Chart(data.assign(place=data["status"].map(ranks)))
        .mark_bar(height={"band": 0.62})
        .encode(
            y=alt.Y(f"{y}:N", sort=list(order or dict.fromkeys(data[y])), title=None, axis=alt.Axis(labelLimit=260)),
            x=alt.X("share:Q", title=x_title, axis=alt.Axis(**SHARES), scale=alt.Scale(domain=[0, 1])),
            color=alt.Color(
                "status:N",
                scale=alt.Scale(domain=names, range=[STATUS[name] for name in names]),
                legend=alt.Legend(title=None, orient="top"),
            ),
            order=alt.Order("place:Q"),
            tooltip=[alt.Tooltip(f"{y}:N"), alt.Tooltip("status:N"), alt.Tooltip("share:Q", format=".3f")],
        )
        .properties(height=alt.Step(40))
    )


def truth_cube(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw all 27 combinations of the three axes: one panel per lifecycle value, scope by policy inside."""
    import altair as alt

    words = {True: "1", False: "0"}
    cells = pd.DataFrame(
        {axis: [words.get(value, "?") for value in table[axis]] for axis in ("scope", "policy", "lifecycle")}
    )
    cells["value"] = [words.get(value, "?") for value in table["admissible"]]
    cells["status"] = cells["value"].map({"1": "admissible", "0": "inadmissible", "?": "unresolved"})
    cells["excluded by"] = [", ".join(reasons) or "nothing known" for reasons in table["reasons"]]
    names = list(STATUS)
    panels = []
    for value in ("1", "?", "0"):
        part = cells[cells["lifecycle"] == value]
        base = alt.Chart(part).encode(
            x=alt.X("policy:N", sort=["1", "?", "0"], axis=alt.Axis(labelAngle=0, orient="top"), title="policy"),
            y=alt.Y("scope:N", sort=["1", "?", "0"], title="scope"),
            tooltip=["scope:N", "policy:N", "lifecycle:N", "status:N", "excluded by:N"],
        )
        colour = alt.Color(
            "status:N",
            scale=alt.Scale(domain=names, range=[STATUS[name] for name in names]),
            legend=alt.Legend(title=None, orient="bottom"),
        )
        square = base.mark_rect(stroke="var(--companion-paper)", strokeWidth=3).encode(color=colour)
        plate = base.mark_point(filled=True, size=420, opacity=1, shape="circle", color="var(--companion-paper)")
        text = base.mark_text(fontSize=15, fontWeight="bold", color=_INK).encode(text="value:N")
        panels.append(
            alt.layer(square, plate, text).properties(
                width=190, height=170, title=alt.Title(f"lifecycle = {value}", anchor="middle")
            )
        )
    return alt.hconcat(*panels)


def bounds_explorer(items: int = 20) -> alt.TopLevelMixin:
    """Draw the bounds of one matched prefix with sliders for its counts, computed in the page."""
    import altair as alt

    def slider(name: str, label: str, value: int, low: int) -> Any:
        return alt.param(name=name, value=value, bind=alt.binding_range(min=low, max=items, step=1, name=label))

    size = slider("items", "Prefix length ", 10, 1)
    bad = slider("violations", "Known violations ", 2, 0)
    unknown = slider("unresolved", "Unresolved ", 3, 0)
    rows = pd.DataFrame({"status": ["inadmissible", "unresolved", "admissible"], "place": [0, 1, 2]})
    base = (
        alt.Chart(rows)
        .transform_calculate(bad="min(violations, items)")
        .transform_calculate(open="min(unresolved, items - datum.bad)")
        .transform_calculate(
            count="datum.place == 0 ? datum.bad : datum.place == 1 ? datum.open : items - datum.bad - datum.open",
            lower="datum.bad / items",
            upper="(datum.bad + datum.open) / items",
            rate="items > datum.open ? format(datum.bad / (items - datum.open), '.3f') : 'undefined'",
            start="(datum.place == 0 ? 0 : datum.place == 1 ? datum.bad : datum.bad + datum.open) / items",
        )
        .transform_calculate(
            stop="datum.start + datum.count / items",
            text=(
                "datum.bad + ' of ' + items + ' violate, ' + datum.open + ' unresolved'"
                " + '   share of violations lies in [' + format(datum.lower, '.3f') + ', ' + format(datum.upper, '.3f')"
                " + ']   known rate ' + datum.rate + '   coverage ' + format(1 - datum.open / items, '.3f')"
            ),
        )
    )
    names = ["inadmissible", "unresolved", "admissible"]
    middle = alt.value(96)
    bar = base.mark_bar(height=54).encode(
        y=middle,
        x=alt.X(
            "start:Q",
            title="share of the matched prefix",
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(**SHARES),
        ),
        x2="stop:Q",
        color=alt.Color(
            "status:N",
            scale=alt.Scale(domain=names, range=[STATUS["inadmissible"], HATCH, STATUS["admissible"]]),
            legend=alt.Legend(title=None, orient="top"),
        ),
        tooltip=[alt.Tooltip("status:N"), alt.Tooltip("count:Q", title="items")],
    )
    first = base.transform_filter("datum.place == 0")
    ends = first.mark_tick(thickness=3, size=76, color=_INK).encode(y=middle)
    text = first.mark_text(align="left", baseline="top", fontSize=13, color=_INK, lineBreak="   ").encode(
        x=alt.value(0), y=alt.value(0), text="text:N"
    )
    layers = [bar, ends.encode(x="lower:Q"), ends.encode(x="upper:Q"), text]
    return alt.layer(*layers).add_params(size, bad, unknown).properties(height=140)


def confidence_explorer(data: pd.DataFrame, *, y: str, level: float, title: str) -> alt.TopLevelMixin:
    """Draw intervals whose confidence level a slider sets, from quantiles embedded in the chart."""
    import altair as alt

    levels = sorted(data["level"].unique())
    chosen = alt.param(
        name="confidence",
        value=int(min(levels, key=lambda known: abs(known - 100 * level))),
        bind=alt.binding_range(min=int(levels[0]), max=int(levels[-1]), step=1, name="Confidence level, % "),
    )
    base = (
        alt.Chart(data)
        .transform_filter("datum.level == confidence")
        .transform_calculate(excludes="datum.low > 0 || datum.high < 0 ? 'excludes zero' : 'contains zero'")
        .encode(
            y=alt.Y(f"{y}:N", sort=list(dict.fromkeys(data[y])), title=None, axis=alt.Axis(labelLimit=260)),
            color=alt.Color(
                "excludes:N",
                scale=alt.Scale(domain=["excludes zero", "contains zero"], range=[INADMISSIBLE, PUBLISHED]),
                legend=alt.Legend(title=None, orient="top"),
            ),
            tooltip=[
                alt.Tooltip(f"{y}:N"),
                alt.Tooltip("level:Q", title="level, %"),
                alt.Tooltip("estimate:Q", format=".4f"),
                alt.Tooltip("low:Q", format=".4f"),
                alt.Tooltip("high:Q", format=".4f"),
            ],
        )
    )
    domain = [float(data["low"].min()), float(data["high"].max())]
    scale = alt.Scale(domain=domain, nice=True)
    rule = base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", title=title, scale=scale), x2="high:Q")
    point = base.mark_point(filled=True, size=80, opacity=1).encode(x="estimate:Q")
    zero = alt.Chart(data).mark_rule(strokeDash=[4, 4], color=_RULE).encode(x=alt.datum(0.0))
    return alt.layer(zero, rule, point).add_params(chosen).properties(height=alt.Step(28))


def scenario_heatmap(effects: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the mean effect of every scenario and reader in the two relevant cells."""
    import altair as alt

    cells = {"relevant_admissible": "relevant and admissible", "relevant_inadmissible": "relevant, inadmissible"}
    data = effects[effects["metric"].isin(cells)].copy()
    data["shown"] = [f"{value:+.2g}" if value else "0" for value in data["effect"]]
    order = list(dict.fromkeys(data.sort_values(["axis", "scenario"])["scenario"]))
    panels = []
    for metric, title in cells.items():
        base = alt.Chart(data[data["metric"] == metric]).encode(
            x=alt.X(
                "reader:N",
                sort=list(dict.fromkeys(data["reader"])),
                title=None,
                axis=alt.Axis(labelAngle=-35, labelOverlap=False),
            ),
            y=alt.Y("scenario:N", sort=order, title=None),
            tooltip=["reader:N", "axis:N", "scenario:N", alt.Tooltip("effect:Q", format="+.2f"), "n:Q"],
        )
        colour = alt.Color(
            "effect:Q",
            scale=alt.Scale(domain=[-1, 0, 1], range=["#4a9ecb", "#d4d9df", "#e8853d"], interpolate="rgb"),
            legend=alt.Legend(title="effect", orient="bottom", gradientLength=220),
        )
        square = base.mark_rect(stroke="var(--companion-paper)", strokeWidth=2).encode(color=colour)
        # Dark ink on every cell colour has the contrast that small text needs.
        text = base.mark_text(fontSize=11, color="#14181e").encode(text="shown:N")
        panels.append(alt.layer(square, text).properties(width=280, height=alt.Step(22), title=title))
    return alt.hconcat(*panels)


def route_strip(route: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw one route rank by rank: status as colour, anchors as stars, the end of the matched prefix as a line."""
    import altair as alt

    names = list(STATUS)
    arms = list(dict.fromkeys(route["arm"]))
    base = alt.Chart(route).encode(
        x=alt.X("rank:O", title="rank", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("arm:N", sort=arms, title=None, axis=alt.Axis(labelLimit=260)),
        tooltip=["arm:N", "rank:O", "memory_id:N", "status:N", "why:N", "anchor:N", "text:N"],
    )
    square = base.mark_rect(stroke="var(--companion-paper)", strokeWidth=2).encode(
        color=alt.Color(
            "status:N",
            scale=alt.Scale(domain=names, range=[STATUS[name] for name in names]),
            legend=alt.Legend(title=None, orient="top"),
        ),
        opacity=alt.condition("datum.rank <= datum.prefix", alt.value(1.0), alt.value(0.35)),
    )
    star = base.transform_filter("datum.anchor").mark_text(text="★", fontSize=15, color=_INK)
    return alt.layer(square, star).properties(height=alt.Step(40))


def hiding_curves(data: pd.DataFrame, *, arms: Sequence[str]) -> alt.TopLevelMixin:
    """Draw how bounds widen while labels are hidden."""
    import altair as alt

    panels = []
    # Not as pale as the bands.
    legend = alt.Legend(title=None, orient="bottom", symbolOpacity=1, symbolStrokeWidth=0)
    for series in dict.fromkeys(data["series"]):
        base = alt.Chart(data[data["series"] == series]).encode(
            x=alt.X("rate:Q", title="share of labels hidden", axis=alt.Axis(format="%")),
            color=alt.Color("arm:N", scale=arm_scale(arms), legend=legend),
            tooltip=[
                "arm:N",
                alt.Tooltip("rate:Q", format=".0%"),
                alt.Tooltip("lower_bound:Q", format=".3f"),
                alt.Tooltip("upper_bound:Q", format=".3f"),
            ],
        )
        scale = alt.Scale(domain=[0, 1])
        band = base.mark_area(opacity=0.18).encode(
            y=alt.Y("lower_bound:Q", title="bounds on the share of violations", scale=scale), y2="upper_bound:Q"
        )
        edges = [
            base.mark_line(point={"shape": shape, "size": 55}).encode(y=alt.Y(f"{end}:Q", scale=scale))
            for end, shape in _BOUNDS.items()
        ]
        panels.append(alt.layer(band, *edges).properties(width=300, height=240, title=series))
    return alt.hconcat(*panels)


_BOUNDS = {"lower_bound": "triangle-down", "upper_bound": "triangle-up"}


def route_plane(data: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw recall against loss: better routes lie further right and further down."""
    import altair as alt

    tips: list[Any] = ["arm:N", "series:N"]
    tips += [alt.Tooltip(f"{name}:Q", format=".3f") for name in ("recall", "recall_low", "recall_high")]
    tips += [alt.Tooltip(f"{name}:Q", format=".3f") for name in ("loss", "loss_low", "loss_high")]
    names = list(dict.fromkeys(data["series"]))
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=names, range=[{"published": PUBLISHED}.get(name, OURS) for name in names]),
        legend=alt.Legend(title=None, orient="top") if len(names) > 1 else None,
    )
    base = alt.Chart(data).encode(color=colour, tooltip=tips)
    # Room on the right for the last label.
    reach = float(data["recall"].max()) * 1.25
    across = alt.X("recall:Q", title="evidence recall", scale=alt.Scale(domain=[0, reach], nice=True))
    down = alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False, nice=True))
    layers = [
        base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(x=alt.X("recall_low:Q"), x2="recall_high:Q", y=down),
        base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(x=across, y=alt.Y("loss_low:Q"), y2="loss_high:Q"),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=across, y=down),
        base.mark_text(align="left", dx=7, dy=-6, fontSize=10.5, color="var(--companion-muted)").encode(
            x=across, y=down, text="label:N"
        ),
    ]
    return alt.layer(*layers).properties(height=360)


def pool_identity(data: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw recall by pool, one panel per population, with the candidates scored beside."""
    import altair as alt

    order = list(dict.fromkeys(data["pool"]))
    panels = []
    for population in dict.fromkeys(data["population"]):
        base = alt.Chart(data[data["population"] == population]).encode(
            y=alt.Y("pool:N", sort=order, title=None, axis=alt.Axis(labelLimit=230)),
            tooltip=[
                "pool:N",
                *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("recall", "low", "high")),
                alt.Tooltip("work:Q", format=",.0f", title="candidates scored per query"),
            ],
        )
        x = alt.X("recall:Q", title="evidence recall", scale=alt.Scale(domain=[0, 1]))
        rule = base.mark_rule(strokeWidth=2.5, color=OURS, opacity=0.6).encode(x=alt.X("low:Q"), x2="high:Q")
        point = base.mark_point(filled=True, size=75, color=OURS, opacity=1).encode(x=x)
        text = base.mark_text(align="left", dx=9, fontSize=10.5, color="var(--companion-muted)").encode(
            x=x, text=alt.Text("note:N")
        )
        panels.append(alt.layer(rule, point, text).properties(width=300, height=alt.Step(26), title=population))
    return alt.hconcat(*panels)


def loss_explorer(data: pd.DataFrame, *, target: float, depth: int, cost: float) -> alt.TopLevelMixin:
    """Draw the loss of each arm, split in two, with controls for target recall, depth and infeasibility cost."""
    import altair as alt

    targets, depths = sorted(data["target_recall"].unique()), sorted(data["top_k"].unique())
    choose_target = alt.param(
        name="target", value=target, bind=alt.binding_select(options=[float(t) for t in targets], name="Target recall ")
    )
    choose_depth = alt.param(
        name="depth", value=depth, bind=alt.binding_select(options=[int(d) for d in depths], name="Depth ")
    )
    choose_cost = alt.param(
        name="cost", value=cost, bind=alt.binding_range(min=0, max=1, step=0.05, name="Infeasibility cost ")
    )
    base = (
        alt.Chart(data)
        .transform_filter("datum.target_recall == target && datum.top_k == depth")
        .transform_calculate(infeasible="cost * (1 - datum.feasible_rate)", prefix="datum.prefix_component")
        .transform_calculate(loss="datum.infeasible + datum.prefix")
    )
    y = alt.Y("arm:N", sort=list(dict.fromkeys(data["arm"])), title=None, axis=alt.Axis(labelLimit=260))
    names: list[Any] = ["infeasible queries", "feasible prefixes"]
    bars = (
        base.transform_calculate(**{names[0]: "datum.infeasible", names[1]: "datum.prefix"})
        .transform_fold(names, as_=["part", "value"])
        .transform_calculate(place=f"datum.part == '{names[0]}' ? 0 : 1")
        .mark_bar(height={"band": 0.62})
        .encode(
            y=y,
            x=alt.X("value:Q", title="loss", stack="zero", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=names, range=["#0072b2", "#b87f00"]),
                legend=alt.Legend(title=None, orient="top"),
            ),
            order=alt.Order("place:Q"),
            tooltip=["arm:N", "part:N", alt.Tooltip("value:Q", format=".3f"), alt.Tooltip("loss:Q", format=".3f")],
        )
    )
    text = base.mark_text(align="left", dx=5, fontSize=11.5, color=_INK).encode(
        y=y, x=alt.X("loss:Q"), text=alt.Text("loss:Q", format=".3f")
    )
    chart = alt.layer(bars, text).add_params(choose_target, choose_depth, choose_cost)
    return chart.properties(height=alt.Step(30))


def typed_exposure(data: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the share of matched-prefix items that each axis forbids, per arm."""
    import altair as alt

    panels = []
    arms = list(dict.fromkeys(data["arm"]))
    for place, axis in enumerate(dict.fromkeys(data["axis"])):
        labels = alt.Axis(labelLimit=200) if place == 0 else None
        base = alt.Chart(data[data["axis"] == axis]).encode(
            y=alt.Y("arm:N", sort=arms, title=None, axis=labels),
            tooltip=["arm:N", "axis:N", *(alt.Tooltip(f"{n}:Q", format=".3f") for n in ("estimate", "low", "high"))],
        )
        top = float(data["high"].max())
        bar = base.mark_bar(color=INADMISSIBLE, opacity=0.8, height={"band": 0.55}).encode(
            x=alt.X("estimate:Q", title="share of the matched prefix", scale=alt.Scale(domain=[0, top], nice=True))
        )
        rule = base.mark_rule(strokeWidth=1.5, color=_INK).encode(x=alt.X("low:Q"), x2="high:Q")
        panels.append(alt.layer(bar, rule).properties(width=170, height=alt.Step(24), title=axis))
    return alt.hconcat(*panels)
