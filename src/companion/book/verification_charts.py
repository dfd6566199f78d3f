"""The charts of the verification chapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from companion.book.palette import ADMISSIBLE, CATEGORICAL, HATCH, INADMISSIBLE, UNRESOLVED

if TYPE_CHECKING:
    import altair as alt

_INK = "var(--companion-ink)"
_RULE = "var(--companion-rule)"
DIRECTIONS = {"removes": INADMISSIBLE, "admits": ADMISSIBLE, "both": UNRESOLVED}
"""Colour of an error by what it does to the candidates."""

ERRORS = ("false deny", "missing", "swap", "false allow", "false stale", "false current", "flip")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right")
_DASHES = ([1, 0], [6, 3], [2, 2], [1, 0], [1, 0], [1, 0], [8, 3, 2, 3])


def operating_curves(curves: pd.DataFrame, *, limit: float) -> alt.TopLevelMixin:
    """Draw what each threshold detects against what it denies; a slider moves the limit."""
    import altair as alt

    names = list(dict.fromkeys(curves["verifier"]))
    chosen = alt.param(
        name="denial_limit",
        value=round(100 * limit, 1),
        bind=alt.binding_range(min=0, max=30, step=0.5, name="False denial limit, % of required anchors "),
    )
    # rings of different size, so that verifiers whose best points coincide can all be seen
    rings = curves["verifier"].map({name: 120 + 170 * place for place, name in enumerate(names)})
    base = alt.Chart(curves.assign(ring=rings)).encode(
        color=alt.Color(
            "verifier:N",
            scale=alt.Scale(domain=names, range=list(CATEGORICAL[: len(names)])),
            legend=alt.Legend(title=None, orient="top", columns=1, symbolOpacity=1),
        ),
        tooltip=[
            "verifier:N",
            alt.Tooltip("threshold:Q", format=".2f"),
            alt.Tooltip("required_anchor_false_denial:Q", title="required anchors denied", format=".1%"),
            alt.Tooltip("violation_recall:Q", title="violations detected", format=".1%"),
            alt.Tooltip("violation_precision:Q", title="of those dropped, violations", format=".1%"),
            alt.Tooltip("retained_fraction:Q", title="candidates kept", format=".1%"),
        ],
    )
    x = alt.X(
        "required_anchor_false_denial:Q",
        title="required anchors denied (square-root scale)",
        axis=alt.Axis(format="%", values=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]),
        scale=alt.Scale(type="sqrt", domain=[0, 1]),
    )
    y = alt.Y(
        "violation_recall:Q",
        title="known violations detected",
        axis=alt.Axis(format="%"),
        scale=alt.Scale(domain=[0, 1]),
    )
    line = base.mark_line(strokeWidth=1.5, opacity=0.7).encode(x=x, y=y, order="threshold:Q")
    point = base.mark_point(filled=True, size=32, opacity=1).encode(x=x, y=y)
    best = (
        base.transform_filter("datum.required_anchor_false_denial <= denial_limit / 100 + 1e-12")
        .transform_joinaggregate(best="max(violation_recall)", groupby=["verifier"])
        .transform_filter("datum.violation_recall == datum.best")
        .mark_point(filled=False, strokeWidth=2.5, opacity=1)
        .encode(x=x, y=y, size=alt.Size("ring:Q", scale=None))
    )
    rule = (
        alt.Chart(pd.DataFrame({"at": [0]}))
        .transform_calculate(at="denial_limit / 100")
        .mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=_INK)
        .encode(x=alt.X("at:Q", scale=alt.Scale(type="sqrt", domain=[0, 1])))
    )
    return alt.layer(line, point, best, rule).add_params(chosen).properties(height=340)


def corruption_curves(data: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw what metadata errors do to a filter, against the reference that it must not fall behind."""
    import altair as alt

    titles = {"feasible_rate": "feasible rate, change", "loss": "loss, change"}
    panels = []
    for metric, title in titles.items():
        part = data[data["metric"] == metric]
        for name in dict.fromkeys(data["field"]):
            panels.append(_corruption_panel(part[part["field"] == name], part, title, str(name)))
    return alt.concat(*panels, columns=data["field"].nunique())


def _corruption_panel(rows: pd.DataFrame, every: pd.DataFrame, title: str, name: str) -> Any:
    import altair as alt

    used = [e for e in ERRORS if e in set(every["error"])]
    places = [ERRORS.index(e) for e in used]
    ends = every[["change", "low", "high"]]
    scale = alt.Scale(domain=[float(ends.min().min()), float(ends.max().max())], nice=True)
    base = alt.Chart(rows).encode(
        x=alt.X("rate:Q", title="share of metadata in error", axis=alt.Axis(format="%", values=[0, 0.1, 0.3, 0.5])),
        color=alt.Color(
            "direction:N",
            scale=alt.Scale(domain=list(DIRECTIONS), range=list(DIRECTIONS.values())),
            legend=alt.Legend(title="the error ... candidates", orient="bottom", symbolOpacity=1, symbolType="square"),
        ),
        detail="channel:N",
        tooltip=[
            "channel:N",
            "direction:N",
            alt.Tooltip("rate:Q", format=".0%"),
            alt.Tooltip("change:Q", format="+.4f"),
            alt.Tooltip("low:Q", format="+.4f"),
            alt.Tooltip("high:Q", format="+.4f"),
        ],
    )
    zero = alt.Chart(rows).mark_rule(strokeDash=[4, 4], strokeWidth=1.2, color=_INK).encode(y=alt.datum(0.0))
    band = base.mark_area(opacity=0.16, line=False).encode(y=alt.Y("low:Q", scale=scale, title=title), y2="high:Q")
    legend = alt.Legend(title="error", orient="bottom", columns=2, symbolFillColor=_INK, symbolStrokeColor=_INK)
    # dashes are keyed by channel, not by error, so that they do not enter the legend of the shapes
    by_channel = every.drop_duplicates("channel")
    dashes = alt.Scale(
        domain=by_channel["channel"].tolist(), range=[_DASHES[ERRORS.index(e)] for e in by_channel["error"]]
    )
    shapes = alt.Scale(domain=used, range=[_SHAPES[i] for i in places])
    line = base.mark_line(strokeWidth=2).encode(
        y=alt.Y("change:Q", scale=scale, title=title), strokeDash=alt.StrokeDash("channel:N", scale=dashes, legend=None)
    )
    point = base.mark_point(filled=True, size=42, opacity=1).encode(
        y=alt.Y("change:Q", scale=scale), shape=alt.Shape("error:N", scale=shapes, legend=legend)
    )
    return alt.layer(zero, band, line, point).properties(width=195, height=190, title=name)


def break_even_bars(brackets: pd.DataFrame, *, highest: float, series: Sequence[str]) -> alt.TopLevelMixin:
    """Draw up to which error rate a filter is no worse than its reference."""
    import altair as alt

    names = {"no worse than the reference": ADMISSIBLE, "turns in here": HATCH, "worse": INADMISSIBLE}
    rows = []
    for row in brackets.to_dict("records"):
        last, first = row["last_dominating_rate"], row["first_non_dominating_rate"]
        last = 0.0 if pd.isna(last) else float(last)
        first = highest if pd.isna(first) else float(first)
        for part, start, stop in zip(names, (0.0, last, first), (last, first, highest), strict=True):
            if stop > start:
                rows.append({**row, "part": part, "start": start, "stop": stop})
    table = pd.DataFrame(rows)
    panels = []
    for title in series:
        shown = table[table["series"] == title]
        order = list(dict.fromkeys(shown["channel"]))
        base = alt.Chart(shown).encode(y=alt.Y("channel:N", scale=alt.Scale(domain=order), title=None, axis=None))
        bar = base.mark_bar(height={"band": 0.36}, yOffset=8).encode(
            x=alt.X(
                "start:Q",
                title="share of metadata in error",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, highest]),
            ),
            x2="stop:Q",
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=list(names), range=list(names.values())),
                legend=alt.Legend(title=None, orient="bottom"),
            ),
            tooltip=[
                "channel:N",
                "part:N",
                alt.Tooltip("last_dominating_rate:Q", format=".0%"),
                alt.Tooltip("first_non_dominating_rate:Q", format=".0%"),
            ],
        )
        # names stand over the bars and not on an axis: each panel can be read by itself when a phone stacks them
        text = (
            base.transform_filter("datum.start == 0")
            .mark_text(align="left", dy=-7, fontSize=11, color=_INK)
            .encode(x=alt.value(0), text="channel:N")
        )
        height = 32 * len(order)
        panels.append(alt.layer(bar, text).properties(width=155, height=height, title=title))
    return alt.hconcat(*panels)


def agreement_explorer(
    grid: pd.DataFrame, marks: pd.DataFrame, *, split: int, labels: Mapping[str, str] | None = None
) -> alt.TopLevelMixin:
    """Draw alpha against the prevalence of yes; a slider sets how many records the annotators split."""
    import altair as alt

    values = sorted(grid["split"].unique())
    step = int(values[1] - values[0]) if len(values) > 1 else 1
    chosen = alt.param(
        name="split_records",
        value=int(split),
        bind=alt.binding_range(min=int(values[0]), max=int(values[-1]), step=step, name="Records the two split "),
    )
    rows = grid.dropna(subset=["alpha"]).round(4)
    x = alt.X("prevalence:Q", title="share of yes among all answers", axis=alt.Axis(format="%"))
    y = alt.Y("alpha:Q", title="Krippendorff's alpha", scale=alt.Scale(domain=[-0.2, 1.0]))
    base = alt.Chart(rows).transform_filter("datum.split == split_records").transform_filter("datum.alpha >= -0.2")
    line = base.mark_line(strokeWidth=2.5, color=CATEGORICAL[0], point=alt.OverlayMarkDef(size=22)).encode(
        x=x,
        y=y,
        tooltip=[
            alt.Tooltip("agreement:Q", title="exact agreement", format=".1%"),
            alt.Tooltip("prevalence:Q", format=".1%"),
            alt.Tooltip("alpha:Q", format=".3f"),
            alt.Tooltip("yes_agreement:Q", title="agreement on yes", format=".1%"),
            alt.Tooltip("no_agreement:Q", title="agreement on no", format=".1%"),
            "both_yes:Q",
            "split:Q",
            "both_no:Q",
        ],
    )
    told = marks.assign(label=marks["axis"].map(lambda a: (labels or {}).get(a, a)))
    points = alt.Chart(told).encode(x=x, y=y, tooltip=["axis:N", alt.Tooltip("agreement:Q", format=".1%"), "alpha:Q"])
    dot = points.mark_point(filled=True, size=95, opacity=1, shape="diamond", color=INADMISSIBLE)
    text = points.mark_text(align="left", dx=9, dy=-7, fontSize=12, color=_INK).encode(text="label:N")
    zero = alt.Chart(told).mark_rule(strokeDash=[4, 4], color=_RULE).encode(y=alt.datum(0.0))
    headline = (
        base.transform_filter("datum.both_yes == 0")
        .transform_calculate(text="'exact agreement ' + format(datum.agreement, '.1%') + ' all along the curve'")
        .mark_text(align="right", fontSize=13, color=_INK)
        .encode(x=alt.value("width"), y=alt.value(306), text="text:N")
    )
    return alt.layer(zero, line, dot, text, headline).add_params(chosen).properties(height=320)
