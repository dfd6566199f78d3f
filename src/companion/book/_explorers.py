"""Charts that a reader plays with, each with a Python twin that computes the same and that tests compare it with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from companion import scoring
from companion.book.charts import SHARES
from companion.book.palette import HATCH, STATUS
from companion.errors import InputError

if TYPE_CHECKING:
    import altair as alt

    from companion.tables import Records

#: Positions of the slider: whole per cent.
STEPS = 100
_NAMES = ("inadmissible", "unresolved", "admissible")


def hidden_label_weights(
    records: Records,
    *,
    seed: int = 0,
    target_recall: scoring.routes.Recall = 0.8,
    top_k: int | None = None,
) -> pd.DataFrame:
    """Say how much every item of a matched prefix weighs in its arm's bounds, and when hiding reaches it.

    Labels are hidden as ``scoring.hide_labels`` does it: each ranked pair has a number drawn from its ids, and is
    hidden at every rate above it. So a pair turns unresolved at one position of the slider and stays so, and the
    bounds at any position are sums of weights.
    """
    if records.rankings is None:
        raise InputError("no rankings: hiding concerns the labels of ranked memories")
    scored = scoring.score_routes(records, target_recall=target_recall, top_k=top_k)
    evaluable = scored[scored["anchors"] > 0]
    feasible = evaluable[evaluable["feasible"] == 1]
    sources = evaluable.groupby("arm", sort=False)["source"].nunique()
    per_source = feasible.groupby(["arm", "source"], sort=False)["query_id"].transform("size")
    routes = feasible[["arm", "query_id", "matched_prefix"]].assign(
        share=1 / (feasible["matched_prefix"].astype("float64") * per_source * feasible["arm"].map(sources))
    )
    items = scoring.label_ranked(records).merge(routes, on=["arm", "query_id"])
    items = items[items["rank"] <= items["matched_prefix"].astype("int64")]
    draw = scoring.stable_uniform(items["query_id"], items["memory_id"], seed=seed, salt="hide")
    words = items["admissible"].map({True: "admissible", False: "inadmissible"}).astype("object")
    table = items.assign(
        status=words.where(items["admissible"].notna(), "unresolved"),
        step=np.searchsorted(np.arange(STEPS + 1) / STEPS, draw, side="right"),
    )
    weights = table.groupby(["arm", "status", "step"], sort=False)["share"].sum().rename("weight").reset_index()
    complete = weights.groupby("arm")["weight"].sum().sub(1).abs() < 1e-9
    kept = weights[weights["arm"].map(complete)]
    order = {arm: place for place, arm in enumerate(sources.index)}
    ranked = kept.assign(place=kept["arm"].map(order)).sort_values(["place", "status", "step"], ignore_index=True)
    return ranked.drop(columns="place")


def hidden_label_bounds(weights: pd.DataFrame, share: int) -> pd.DataFrame:
    """Compute what the explorer shows at one position of its slider."""
    if not 0 <= share <= STEPS:
        raise InputError(f"share {share}: expected whole per cent from 0 to {STEPS}")
    state = weights["status"].where(weights["step"] > share, "unresolved")
    sums = weights.assign(state=state).pivot_table(
        index="arm", columns="state", values="weight", aggfunc="sum", fill_value=0.0, sort=False
    )
    sums = sums.reindex(columns=list(_NAMES), fill_value=0.0)
    table = pd.DataFrame(
        {
            "lower_bound": sums["inadmissible"],
            "upper_bound": sums["inadmissible"] + sums["unresolved"],
            "label_coverage": 1 - sums["unresolved"],
        }
    )
    return table.rename_axis(columns=None).reset_index()


def hidden_label_explorer(weights: pd.DataFrame, *, share: int = 30) -> alt.TopLevelMixin:
    """Draw what matched prefixes consist of, with a slider for the share of labels that are hidden."""
    import altair as alt

    hidden = alt.param(
        name="hidden", value=share, bind=alt.binding_range(min=0, max=STEPS, step=1, name="Labels hidden, % ")
    )
    states = (
        alt.Chart(weights)
        .transform_calculate(state="datum.step <= hidden ? 'unresolved' : datum.status")
        .transform_calculate(place=f"indexof({list(_NAMES)}, datum.state)")
    )
    y = alt.Y("arm:N", sort=list(dict.fromkeys(weights["arm"])), title=None, axis=alt.Axis(labelLimit=260))
    x = alt.X(
        "share:Q",
        title="share of the matched prefix",
        stack="zero",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(**SHARES),
    )
    colours = [STATUS["inadmissible"], HATCH, STATUS["admissible"]]
    bars = (
        states.transform_aggregate(share="sum(weight)", groupby=["arm", "state", "place"])
        .mark_bar(height={"band": 0.5})
        .encode(
            y=y,
            x=x,
            color=alt.Color(
                "state:N",
                scale=alt.Scale(domain=list(_NAMES), range=colours),
                legend=alt.Legend(title=None, orient="top"),
            ),
            order=alt.Order("place:Q"),
            tooltip=["arm:N", "state:N", alt.Tooltip("share:Q", format=".3f")],
        )
    )
    ends: Any = (
        states.transform_calculate(
            bad="datum.state == 'inadmissible' ? datum.weight : 0",
            open="datum.state == 'unresolved' ? datum.weight : 0",
        )
        .transform_aggregate(lower="sum(bad)", open="sum(open)", groupby=["arm"])
        .transform_calculate(upper="datum.lower + datum.open")
        .transform_calculate(text="'between ' + format(datum.lower, '.3f') + ' and ' + format(datum.upper, '.3f')")
    )
    note = ends.mark_text(align="left", baseline="bottom", dy=-17, fontSize=11.5, color="var(--companion-ink)").encode(
        y=y, x=alt.value(0), text="text:N"
    )
    return alt.layer(bars, note).add_params(hidden).properties(height=alt.Step(58))
