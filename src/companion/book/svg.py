"""Drawings for the page itself: what nobody sees or hears in a still image is left out of its SVG.

Vega writes for scripts and for screen readers inside the page: classes, roles, defaults spelled out, coordinates to
sixteen digits; matplotlib writes metadata, and a style sheet that would rule the whole page. Around the image stands
an element that speaks for it, so nothing reads any of that.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

_SVG, _HREF = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
_GEOMETRY = {"d", "transform", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "points"}
_LONG_NUMBER = re.compile(r"-?\d*\.\d{3,}(?:e-?\d+)?")
_NOTHING = re.compile(r"(M0,0h0v0h0Z)?")
_DEFINITIONS = {"clipPath", "pattern", "linearGradient", "radialGradient", "mask"}


def inline(svg: str, name: str) -> str:
    """Return an SVG that looks the same in a page, takes less than half of the room, and has ids of its own."""
    text = svg[svg.index("<svg") :]
    wanted = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    root = ET.fromstring(text)
    if any(_name(element) == "style" for element in root.iter()):  # matplotlib's, for all that it draws
        root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    for element in root.iter():
        _tidy(element, geometry=element is not root, wanted=wanted, prefix=f"{name}-")
    _drop_unseen(root)
    root.attrib |= {"aria-hidden": "true", "focusable": "false"}
    ET.register_namespace("", _SVG)  # named so, it is written without a prefix
    return str(ET.tostring(root, encoding="unicode")).replace(" />", "/>")


def _name(element: ET.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _tidy(element: ET.Element, geometry: bool, wanted: set[str], prefix: str) -> None:
    """Drop attributes for scripts and screen readers and what says nothing; shorten numbers; give ids a prefix."""
    for key, value in list(element.attrib.items()):
        unread = key in {"class", "role", "pointer-events"} or key.startswith("aria-")
        if unread or (key, value) in {("opacity", "1"), ("transform", "translate(0,0)")}:
            del element.attrib[key]
        elif key == "id":
            del element.attrib[key]
            if value in wanted:
                element.set(key, prefix + value)
        elif key in {_HREF, "href"}:
            del element.attrib[key]
            element.set("href", f"#{prefix}{value[1:]}")
        elif "url(#" in value:
            element.set(key, value.replace("url(#", f"url(#{prefix}"))
        elif geometry and key in _GEOMETRY:
            element.set(key, _LONG_NUMBER.sub(_rounded, value))


def _rounded(match: re.Match[str]) -> str:
    """Round to a hundredth of a pixel, which cannot be seen; what is below a fifth may be a scale, and keeps more."""
    value = float(match[0])
    text = f"{value:.4f}" if abs(value) < 0.2 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".-") or "0"


def _drop_unseen(element: ET.Element) -> None:
    for child in list(element):
        if _name(child) in _DEFINITIONS:
            continue
        _drop_unseen(child)
        empty = _name(child) == "path" and "id" not in child.attrib and _NOTHING.fullmatch(child.get("d", ""))
        hollow = _name(child) == "g" and not len(child)
        if empty or hollow or _name(child) in {"metadata", "style"} or child.get("display") == "none":
            element.remove(child)
