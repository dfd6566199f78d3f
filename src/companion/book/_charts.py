"""What chapters of the first version still call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from companion.book.palette import STATUS

if TYPE_CHECKING:
    import altair as alt

SHARES: dict[str, Any] = {"format": "%", "values": [0, 0.25, 0.5, 0.75, 1]}


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
