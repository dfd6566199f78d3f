"""Numbers as a reader sees them: intervals, signs, undefined and unresolved."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

UNDEFINED = "–"
UNRESOLVED_MARK = "?"
MINUS = "−"


def is_missing(value: Any) -> bool:
    """Tell whether a scalar is undefined or unresolved (``None``, NaN, ``<NA>``, ``NaT``)."""
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def number(value: Any, fmt: str = ".3f") -> str:
    """Write one number."""
    if is_missing(value) or (isinstance(value, float) and not math.isfinite(value)):
        return UNDEFINED
    text = format(int(value) if fmt.endswith("d") else value, fmt)
    if text.startswith("-") and not any(digit in text for digit in "123456789"):
        text = ("+" if "+" in fmt else "") + text[1:]
    return text.replace("-", MINUS)


def interval(estimate: Any, low: Any, high: Any, fmt: str = ".3f") -> str:
    """Write an estimate with its interval, as in ``0.533 [0.510, 0.553]``."""
    text = number(estimate, fmt)
    if is_missing(low) or is_missing(high):
        return text
    return f"{text} [{number(low, fmt)}, {number(high, fmt)}]"
