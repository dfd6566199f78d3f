"""What a chapter says first, and the numbers that its prose shows.

``chapter`` checks the page's parameters and, where one was changed, says so at its top; ``glue`` makes numbers
available to the prose as ``{glue:text}`name```.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from companion.book import parameters as ranges
from companion.book.kernel import Parameter, find_parameters, parameters_frame, read_parameters
from companion.book.render import HEADLINE_MIME, Bundle, display_bundle
from companion.book.tables import table_html
from companion.book.text import interval
from companion.errors import InputError

#: Where a finished run writes its headline numbers beside those of the defaults.
HEADLINES_MARK = "<!-- companion-headlines -->"


@dataclass(frozen=True)
class Chapter:
    """The page that runs: its name, and which of its parameters differ from the defaults."""

    name: str
    changed: tuple[str, ...] = ()

    @property
    def defaults(self) -> bool:
        """Whether the page runs with its defaults, for which its prose is written."""
        return not self.changed


def chapter(name: str, namespace: Mapping[str, Any]) -> Chapter:
    """Check a page's parameters and say at its top if they are not the defaults.

    Parameters
    ----------
    name : str
        The chapter, such as ``"02-support"``.
    namespace : mapping
        ``globals()`` of the notebook, after its parameters.

    Returns
    -------
    Chapter
        ``defaults`` tells whether what the prose states may be asserted: ``if page.defaults: assert ...``.

    Raises
    ------
    InputError
        On a parameter that the page does not have, or a value that it cannot use.
    """
    cells = [str(cell) for cell in namespace.get("In", [])]
    declared = find_parameters(cells) or _declared(name)
    _refuse_unknown(name, cells, declared)
    ranges.check(name, {item.name: namespace.get(item.name, item.default) for item in declared})
    frame = parameters_frame(declared, namespace)
    changed = frame[frame["changed"]]
    if len(changed):
        display_bundle(_banner(changed))
    return Chapter(name, tuple(changed["parameter"]))


def _declared(name: str) -> list[Parameter]:
    from companion.book import chapters

    try:
        return chapters.declared_parameters(chapters.find_notebook(name))
    except InputError:
        return []


def _refuse_unknown(name: str, cells: list[str], declared: list[Parameter]) -> None:
    """Refuse names that papermill put into its own cell and that the page does not have."""
    known = [item.name for item in declared]
    for cell in cells:
        if not cell.startswith("# Parameters\n"):
            continue
        for item in read_parameters(cell, f"{name}, given parameters"):
            if item.name not in known:
                raise InputError(f"{name} has no parameter {item.name!r}: expected one of {', '.join(known)}")


def _banner(changed: pd.DataFrame) -> Bundle:
    told = ", ".join(
        f"<code>{html.escape(name)}</code> = {html.escape(value)} (default {html.escape(default)})"
        for name, value, default in changed[["parameter", "value", "default"]].astype(str).to_numpy()
    )
    page = (
        '<div class="companion-block companion-banner" role="note"><p><strong>The text of this page describes the '
        f"defaults; the numbers are yours.</strong> It was run with {told}.</p>{HEADLINES_MARK}</div>"
    )
    plain = ", ".join(f"{row.parameter} = {row.value} (default {row.default})" for row in changed.itertuples())
    return Bundle({"text/html": page, "text/plain": f"The text describes the defaults; this page ran with {plain}."})


def headlines_html(yours: list[dict[str, Any]], defaults: list[dict[str, Any]]) -> str:
    """Return the banner's table of headline numbers: default beside yours.

    Both are lists as in a run record (``name``, ``estimate``, ``low``, ``high``, ``text``).
    """
    before = {str(item["name"]): _shown(item) for item in defaults}
    rows = [
        {"number": str(item["name"]).replace("_", " "), "default": before.get(str(item["name"]), "–"), "yours": shown}
        for item, shown in ((item, _shown(item)) for item in yours)
    ]
    if not rows:
        return ""
    return table_html(pd.DataFrame(rows), name="headlines", caption="Headline numbers: default beside yours.")


def _shown(item: Mapping[str, Any]) -> str:
    text = item.get("text")
    estimate = item.get("estimate")
    return (
        str(text)
        if text
        else estimate
        if isinstance(estimate, str)
        else interval(estimate, item.get("low"), item.get("high"))
    )


def glue(*, fmt: str | None = None, headline: bool = False, **values: Any) -> None:
    """Make numbers available to the prose as ``{glue:text}`name```, several at once.

    Parameters
    ----------
    fmt : str, optional
        A format specification (``"+.3f"``, ``",d"``); ``"pp"`` for percentage points of a difference between shares
        (``+10.1 points [8.2, 12.0]``); ``"%"`` for per cent. A digit behind the last two sets the decimals (``"%0"``).
        By default whole numbers are shown with thousands separated, others with three decimals.
    headline : bool
        Put the numbers into the run record and the banner of a run with other parameters, too.
    **values
        Numbers, texts, or estimates: anything with ``estimate``, ``low`` and ``high`` (a row of ``estimate``, a table
        of one row, a mapping).

    Examples
    --------
    >>> glue(n_queries=523, recall={"estimate": 0.101, "low": 0.082, "high": 0.12})  # doctest: +SKIP
    """
    for name, value in values.items():
        if not re.fullmatch(r"[a-z]\w*", name):
            raise InputError(f"glue {name!r}: expected lower-case letters, digits and underscores")
        numbers = _parts(value)
        text = numbers[0] if isinstance(numbers[0], str) else shown(*numbers, fmt)
        data: dict[str, Any] = {f"{_PREFIX}text/plain": repr(text), f"{_PREFIX}text/html": html.escape(text)}
        if headline:
            keys = ("estimate", "low", "high")
            data[_PREFIX + HEADLINE_MIME] = {"name": name, **dict(zip(keys, numbers, strict=True)), "text": text}
        # The role reads plain text as a Python literal, so that it travels quoted.
        display_bundle(Bundle(data, {"scrapbook": {"name": name, "mime_prefix": _PREFIX}}))


_PREFIX = "application/papermill.record/"


def shown(estimate: Any, low: Any = None, high: Any = None, fmt: str | None = None) -> str:
    """Write a number or an estimate with its interval as :func:`glue` shows it."""
    if fmt is None:
        fmt = ",d" if isinstance(estimate, int) and not isinstance(estimate, bool) else ".3f"
    share = re.fullmatch(r"(pp|%)(\d?)", fmt)
    if not share or pd.isna(estimate):
        return interval(estimate, low, high, fmt if not share else ".3f")
    plain = f".{share[2] or 1}f"
    estimate, low, high = (None if pd.isna(value) else 100 * value for value in (estimate, low, high))
    sign, unit = ("+", " points") if share[1] == "pp" else ("", "%")
    first = interval(estimate, None, None, sign + plain) + unit
    ends = interval(0, low, high, plain).partition(" ")[2]
    return f"{first} {ends}".rstrip()


def _parts(value: Any) -> tuple[Any, Any, Any]:
    """Return estimate, low and high of whatever a chapter wants to show, as plain Python values."""
    if isinstance(value, pd.DataFrame):
        if len(value) != 1:
            raise InputError(f"glue: a table of {len(value)} rows; expected one row, the estimate to show")
        value = value.iloc[0]
    if isinstance(value, Mapping | pd.Series):
        parts = [value["estimate"], value.get("low"), value.get("high")]
    elif hasattr(value, "estimate"):
        parts = [value.estimate, getattr(value, "low", None), getattr(value, "high", None)]
    else:
        parts = [value, None, None]
    estimate, low, high = (part.item() if hasattr(part, "item") else part for part in parts)
    return _known(estimate), _known(low), _known(high)


def parameters_table(namespace: Mapping[str, Any] | None = None, source: str | None = None) -> None:
    """Display this page's parameters, folded unless one was changed: value in force, default, meaning."""
    known: Mapping[str, Any] = {}
    if namespace is None or source is None:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        known = {} if shell is None else shell.user_ns
    cells = [str(cell) for cell in known.get("In", [])]
    declared = find_parameters(cells) if source is None else read_parameters(source)
    if not declared:
        raise InputError("parameters_table: no executed cell assigns literals only; pass source=")
    frame = parameters_frame(declared, known if namespace is None else namespace)
    changed = int(frame["changed"].sum())
    # The mark is text, so that it does not depend on colour.
    marked = frame["value"].where(~frame["changed"], frame["value"] + " (changed)")
    caption = "Value in force, default and meaning. `companion rerun` gives any of them another value."
    body = table_html(frame.assign(value=marked).drop(columns="changed"), name="parameters", caption=caption)
    said = f"{changed} changed from the default" if changed else "all at their defaults"
    fold = f"<details{' open' if changed else ''}><summary>Parameters of this page: {said}</summary>{body}</details>"
    page = f'<div class="companion-block companion-parameters">{fold}</div>'
    display_bundle(Bundle({"text/html": page, "text/plain": frame.to_string(index=False)}))


def _known(value: Any) -> Any:
    return None if not isinstance(value, str) and pd.isna(value) else value
