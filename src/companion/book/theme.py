"""One chart theme for the live charts of the book, their still images, JupyterLab, and seaborn.

Live charts are drawn as SVG inside the page, so their ink and grid are CSS variables: a reader who switches
between light and dark, or prints, gets the right colours without anything being drawn again. Everything that
leaves the page (still images, JupyterLab) gets the literal colours instead.
"""

from __future__ import annotations

import contextlib
import json
import re
from contextlib import AbstractContextManager
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from companion.book.palette import CATEGORICAL, HATCH, SLATE

#: Ink of the charts in both modes; figures.css declares the same names for the page.
INK: dict[str, dict[str, str]] = {
    "light": {
        "--companion-ink": "#24292f",
        "--companion-muted": "#57606a",
        "--companion-rule": "#8c959f",
        "--companion-grid": "#e4e8ec",
        "--companion-paper": "#ffffff",
    },
    "dark": {
        "--companion-ink": "#e6e9ed",
        "--companion-muted": "#aab2bd",
        "--companion-rule": "#77818d",
        "--companion-grid": "#333a44",
        "--companion-paper": "#14181e",
    },
}

#: The book's own family, so that every machine sets and measures the same; the rest is for viewers without it.
FAMILY = "Companion Sans"
FONT = f"'{FAMILY}', system-ui, sans-serif"

HATCH_DEFS = (
    '<defs><pattern id="companion-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#7c8591" fill-opacity="0.25"/>'
    '<rect width="2" height="6" fill="#7c8591"/></pattern></defs>'
)


@lru_cache(maxsize=1)
def _config() -> str:
    text = (resources.files("companion.book") / "assets" / "vega.json").read_text(encoding="utf-8")
    for name, colour in INK["light"].items():  # as pages know it, with the light one for viewers that do not
        text = text.replace(f'"${name.removeprefix("--companion-")}"', f'"var({name},{colour})"')
    text = text.replace('"$colours"', json.dumps(CATEGORICAL)).replace('"$colour"', json.dumps(CATEGORICAL[0]))
    return text.replace("$font", FONT)


def vega_config() -> dict[str, Any]:
    """Return the Vega-Lite ``config`` of every chart (vega.json), with ink as CSS variables."""
    config: dict[str, Any] = json.loads(_config())
    return config


def literal(value: Any, mode: str = "light") -> Any:
    """Replace every CSS variable in a JSON-like object by its colour in one mode."""
    ink = re.compile(r"var\((--companion-[a-z]+)[^)]*\)")
    return json.loads(ink.sub(lambda match: INK[mode][match[1]], json.dumps(value)))


def as_variables(svg: str) -> str:
    """Replace the inks of a drawing made in light colours by the page's, so that it follows the page's mode."""
    for name, colour in INK["light"].items():
        if name != "--companion-paper":
            svg = svg.replace(colour, f"var({name},{colour})")
    return svg


def flat(spec: dict[str, Any]) -> dict[str, Any]:
    """Replace the hatch by flat grey, for viewers that draw on a canvas and know no SVG pattern."""
    result: dict[str, Any] = json.loads(json.dumps(spec).replace(HATCH, SLATE))
    return result


@lru_cache(maxsize=1)
def fonts() -> Path:
    """Return the folder of the book's fonts, after telling everything that draws about them."""
    import vl_convert

    folder = Path(str(resources.files("companion.book") / "assets" / "fonts"))
    vl_convert.register_font_directory(str(folder))
    with contextlib.suppress(ImportError):  # an installation that only audits has none
        from matplotlib import font_manager

        for path in sorted(folder.glob("*.ttf")):
            font_manager.fontManager.addfont(str(path))
    return folder


def still_style() -> AbstractContextManager[None]:
    """Return a context in which seaborn and matplotlib draw in the book's style."""
    import matplotlib as mpl
    import seaborn as sns
    from cycler import cycler

    fonts()
    ink = {name.removeprefix("--companion-"): colour for name, colour in INK["light"].items()}
    rc = sns.axes_style("whitegrid") | {
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
        **dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "text.color"), ink["ink"]),
        **dict.fromkeys(("xtick.color", "ytick.color"), ink["muted"]),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
        "axes.edgecolor": ink["rule"],
        "grid.color": ink["grid"],
        "font.family": FAMILY,
        "font.size": 10.5,
        "axes.titlelocation": "left",
        "axes.titleweight": 600,
        "axes.titlesize": 12,
        "legend.columnspacing": 1.2,
        "axes.labelsize": 10.5,
        "figure.constrained_layout.use": True,
        "axes.prop_cycle": cycler(color=CATEGORICAL),
        "hatch.linewidth": 1.6,
    }
    return mpl.rc_context(rc)
