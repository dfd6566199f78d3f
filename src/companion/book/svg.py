"""Drawings written small, for the page itself: what nobody sees or hears in a still image is left out of its SVG.

Vega writes for scripts and for screen readers inside the page: classes, roles, defaults spelled out, a list of fonts
with every word, coordinates to sixteen digits; matplotlib writes metadata, and a style sheet that would rule the whole
page. Around the image stands an element that speaks for it, so nothing reads any of that.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

_SVG, _HREF = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
# What children take from their parent, so that a group can say it once. `opacity` and `transform` are not like that.
_FONT = ("font-family", "font-size", "font-weight", "font-style", "text-anchor")
_STROKE = ("width", "opacity", "dasharray", "dashoffset", "linecap", "linejoin", "miterlimit")
_INHERITED = ("fill", "fill-opacity", "stroke", *(f"stroke-{part}" for part in _STROKE), *_FONT)
_GEOMETRY = {"d", "transform", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "points"}
# A hundredth of a pixel cannot be seen on a screen, nor in print; below one, what is left may be a scale.
_LONG_NUMBER = re.compile(r"-?\d*\.\d{3,}(?:e-?\d+)?")
_NOTHING = re.compile(r"(M0,0h0v0h0Z)?")
_DEFINITIONS = {"defs", "clipPath", "pattern", "linearGradient", "radialGradient", "mask"}


def inline(svg: str, name: str) -> str:
    """Return an SVG that looks the same in a page, takes about a quarter of the room, and has ids of its own."""
    text = svg[svg.index("<svg") :]
    wanted = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    root = ET.fromstring(text)
    if any(_name(element) == "style" for element in root.iter()):  # matplotlib's, for all that it draws
        root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    for element in root.iter():
        _tidy(element, geometry=element is not root, wanted=wanted, prefix=f"{name}-")
    _drop_unseen(root)
    _say_fonts_once(root)
    _hoist(root)
    _unwrap(root)
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
    value = float(match[0])
    if abs(value) < 0.2:
        return f"{value:.4f}".rstrip("0").rstrip(".-") or "0"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _drop_unseen(element: ET.Element) -> None:
    for child in list(element):
        if _name(child) in _DEFINITIONS - {"defs"}:
            continue
        _drop_unseen(child)
        empty = _name(child) in {"metadata", "style"} or (
            _name(child) == "path" and "id" not in child.attrib and _NOTHING.fullmatch(child.get("d", ""))
        )
        if empty or child.get("display") == "none" or (_name(child) == "g" and not len(child)):
            element.remove(child)


def _say_fonts_once(root: ET.Element) -> None:
    """Let the image as a whole carry the commonest font, where every word states its own anyway."""
    words = [element for element in root.iter() if _name(element) == "text"]
    for key in _FONT[:2]:
        said = [word.get(key) for word in words]
        if not said or None in said:
            continue
        common = max(dict.fromkeys(said), key=said.count)  # the first of them: the same image gives the same bytes
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
