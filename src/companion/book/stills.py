"""Still images, written small: what nobody sees in an image is left out of the SVG that Vega draws.

Vega writes for scripts and for screen readers inside the page: classes, roles, defaults spelled out, a list of fonts
with every word, coordinates to sixteen digits. In an ``<img>`` nothing reads any of that (its ``alt`` speaks), and it
makes three quarters of the bytes.
"""

from __future__ import annotations

import re
from urllib.parse import quote
from xml.etree import ElementTree as ET

_SVG = "http://www.w3.org/2000/svg"
# What children take from their parent, so that a group can say it once. `opacity` and `transform` are not like that.
_FONT = ("font-family", "font-size", "font-weight", "font-style", "text-anchor")
_INHERITED = (
    *("fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-dashoffset"),
    *("stroke-linecap", "stroke-linejoin", "stroke-miterlimit"),
    *_FONT,
)
_GEOMETRY = {"d", "transform", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "points"}
# A hundredth of a pixel: cannot be seen on a screen, nor in print.
_LONG_NUMBER = re.compile(r"-?\d*\.\d{3,}(?:e-?\d+)?")
_NOTHING = re.compile(r"(M0,0h0v0h0Z)?")
_DEFINITIONS = {"defs", "clipPath", "pattern", "linearGradient", "radialGradient", "mask", "style"}


def compact(svg: str) -> str:
    """Return an SVG that looks the same and takes about a quarter of the room."""
    root = ET.fromstring(svg)
    for element in root.iter():
        _tidy(element, geometry=element is not root)
    _drop_unseen(root)
    _say_fonts_once(root)
    _hoist(root)
    _unwrap(root)
    return _written(root)


def data_url(svg: str) -> str:
    """Return an SVG as the address of an image, for use between single quotes in HTML.

    Only what would end an address or the attribute is escaped: ``#``, ``%``, ``'``, ``&`` and what is not ASCII. An
    SVG has hundreds of double quotes and next to no single ones.
    """
    return "data:image/svg+xml," + quote(svg, safe=' =:/,;!$()*@~?[]{}|^<>"+')


def _name(element: ET.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _tidy(element: ET.Element, geometry: bool) -> None:
    """Drop attributes for scripts and screen readers and what says nothing; shorten numbers."""
    for key, value in list(element.attrib.items()):
        unread = key in {"class", "role", "pointer-events"} or key.startswith("aria-")
        if unread or (key, value) in {("opacity", "1"), ("transform", "translate(0,0)")}:
            del element.attrib[key]
        elif geometry and key in _GEOMETRY:
            element.set(key, _LONG_NUMBER.sub(_rounded, value))


def _rounded(match: re.Match[str]) -> str:
    text = f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _drop_unseen(element: ET.Element) -> None:
    for child in list(element):
        if _name(child) in _DEFINITIONS:
            continue
        _drop_unseen(child)
        empty = _name(child) == "path" and _NOTHING.fullmatch(child.get("d", ""))
        if empty or child.get("display") == "none" or (_name(child) == "g" and not len(child)):
            element.remove(child)


def _say_fonts_once(root: ET.Element) -> None:
    """Let the image as a whole carry the commonest font, where every word states its own anyway."""
    words = [element for element in root.iter() if _name(element) == "text"]
    for key in _FONT[:2]:
        said = [word.get(key) for word in words]
        if not said or None in said:
            continue
        # The first of the commonest, in the order of drawing: the same image gives the same bytes.
        common = max(dict.fromkeys(said), key=said.count)
        root.set(key, str(common))
        for word in words:
            if word.get(key) == common:
                del word.attrib[key]


def _hoist(element: ET.Element) -> None:
    """Move what all children of a group say into the group."""
    children = [child for child in element if _name(child) not in _DEFINITIONS]
    for child in children:
        _hoist(child)
    if _name(element) not in {"g", "svg"} or not children:
        return
    for key in _INHERITED:
        said = {child.get(key) for child in children}
        if len(said) == 1 and None not in said:
            element.set(key, str(said.pop()))
            for child in children:
                del child.attrib[key]


def _unwrap(element: ET.Element) -> None:
    """Put the children of groups that say nothing in their place."""
    flat: list[ET.Element] = []
    for child in list(element):
        element.remove(child)
        _unwrap(child)
        flat += list(child) if _name(child) == "g" and not child.attrib else [child]
    element.extend(flat)


def _written(root: ET.Element) -> str:
    # Named so, the SVG namespace is written without a prefix.
    ET.register_namespace("", _SVG)
    text: str = ET.tostring(root, encoding="unicode")
    return text.replace(" />", "/>")
