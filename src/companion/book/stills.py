"""Still figures, drawn with seaborn: those whose point is one glance, and what print and social cards show."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pandas as pd

from companion.book.charts import colours_of
from companion.book.palette import OURS, STATUS, UNRESOLVED
from companion.book.theme import INK, still_style

_RULE = INK["light"]["--companion-rule"]


@contextmanager
def canvas(
    title: str, *, x: str = "", y: str = "", width: float = 5.4, height: float = 3.2, panels: int = 1
) -> Iterator[Any]:
    """Give axes (or ``panels`` of them, side by side) to draw on with seaborn; the title says the finding.

    Examples
    --------
    >>> with canvas("Own memories find more", x="recall") as ax:  # doctest: +SKIP
    ...     sns.barplot(table, x="recall", y="arm", ax=ax)
    >>> show(ax, name="recall", caption="...", alt="...")  # doctest: +SKIP
    """
    import matplotlib.pyplot as plt

    with still_style():
        fig, axes = plt.subplots(1, panels, figsize=(width, height), sharey=panels > 1)
        yield axes
        fig.suptitle(textwrap.fill(title, int(12 * width)), x=0.01, ha="left", fontsize=12.5, fontweight=600)
        for ax in fig.axes:
            ax.set(xlabel=x, ylabel=y if ax is fig.axes[0] else "")


def forest(
    data: pd.DataFrame,
    *,
    y: str,
    title: str,
    x: str,
    series: str | None = None,
    colours: Mapping[str, str] | None = None,
    zero: bool = True,
    height: float | None = None,
) -> Any:
    """Draw estimates with intervals (columns estimate, low, high); return the axes for ``show``."""
    import seaborn as sns

    items = list(dict.fromkeys(data[y]))
    names = list(dict.fromkeys(data[series])) if series else [""]
    inks = colours_of(names, colours) if series else [next(iter((colours or {"": OURS}).values()))]
    with canvas(title, x=x, height=height or 0.9 + 0.24 * len(items) * (len(names) + 0.6)) as ax:
        if zero:
            ax.axvline(0, color=_RULE, linestyle=(0, (4, 4)), linewidth=1)
        for place, (name, ink) in enumerate(zip(names, inks, strict=True)):
            rows = data[data[series] == name] if series else data
            at = [items.index(item) + (place - (len(names) - 1) / 2) * 0.26 for item in rows[y]]
            ax.hlines(at, rows["low"].astype(float), rows["high"].astype(float), color=ink, linewidth=2.2, alpha=0.75)
            sns.scatterplot(
                x=rows["estimate"].astype(float),
                y=at,
                color=ink,
                s=55,
                linewidth=0,
                ax=ax,
                label=name or None,
                zorder=3,
            )
        ax.set_yticks(range(len(items)), items)
        ax.set_ylim(len(items) - 0.5, -0.5)
        ax.grid(visible=False, axis="y")
        if series:
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names), borderaxespad=0.2)
    return ax


def status_bars(data: pd.DataFrame, *, y: str, title: str, x: str, value: str = "share", part: str = "status") -> Any:
    """Draw stacked shares of known inadmissible, unresolved (hatched) and known admissible; return the axes."""
    import seaborn as sns

    names = [name for name in STATUS if name in set(data[part])]
    inks = {name: UNRESOLVED if name == "unresolved" else ink for name, ink in STATUS.items()}
    stacked = {"multiple": "stack", "hue_order": names[::-1], "discrete": True, "shrink": 0.6, "linewidth": 0}
    with canvas(title, x=x, height=1.3 + 0.45 * data[y].nunique()) as ax:
        sns.histplot(data, y=y, weights=value, hue=part, palette=inks, alpha=1, ax=ax, **stacked)
        for bars, name in zip(ax.containers, names[::-1], strict=True):
            for bar in bars if name == "unresolved" else ():
                bar.set(facecolor="none", hatch="////", edgecolor=UNRESOLVED)
        ax.set_xlim(0, 1)
        ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        ax.grid(visible=False, axis="y")
        for swatch, name in zip(ax.get_legend().get_patches(), names[::-1], strict=True):
            if name == "unresolved":
                swatch.set(facecolor="none", hatch="////", edgecolor=UNRESOLVED)
        sns.move_legend(ax, "lower left", bbox_to_anchor=(-0.3, 1), ncols=3, title=None, reverse=True)
    return ax
