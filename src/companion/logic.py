"""Three-valued admissibility on pandas' nullable booleans. Methods, "Three-valued logic".

``<NA>`` is *unresolved*: nothing released settles the question. pandas' ``&``, ``|`` and ``~`` on nullable
booleans follow strong Kleene logic, so this module adds only names, checks and the lifecycle rule. Every function
takes scalars, sequences, arrays or Series, mixed as broadcasting allows, and returns the same kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_scalar

from companion.errors import InputError

AXES = ("scope", "policy", "lifecycle")
"""The three conjuncts of admissibility, in the order in which they are always shown."""

FAMILIES = ("admissibility", "non_usable")
"""Status families: ``admissibility`` is primary, ``non_usable`` adds relevance (the paper's older score)."""

STATES = ("current", "stale", "superseded", "forgotten", "unknown")
INTENTS = ("current", "history", "unknown")

Ternary = Any  # a bool, pd.NA, BooleanArray or boolean Series: what the functions take and return


def as_boolean(value: Any) -> Ternary:
    """Read truth values without ever guessing an unresolved one.

    Parameters
    ----------
    value : bool, int, None, pd.NA, sequence, ndarray or Series of shape (n,)
        1, 0, True and False are settled; None, NaN and ``<NA>`` are unresolved.

    Returns
    -------
    bool, pd.NA, BooleanArray or Series of dtype boolean
        Same shape and, for a Series, same index.

    Raises
    ------
    InputError
        For anything else, such as ``"maybe"`` or 0.5.
    """
    try:
        if is_scalar(value) or (isinstance(value, np.ndarray) and value.ndim == 0):
            item = value.item() if isinstance(value, np.ndarray) else value
            settled = pd.array([item], dtype="boolean")[0]
            return settled if settled is pd.NA else bool(settled)
        if isinstance(value, pd.Series):
            return value.astype("boolean")
        return pd.array(value, dtype="boolean")
    except (TypeError, ValueError) as error:
        raise InputError(f"not a truth value: {value!r}; expected 1, 0, True, False or missing") from error


def conjunction(values: Sequence[Any]) -> Ternary:
    """Strong Kleene AND: 0 if any conjunct is 0, 1 if all are 1, unresolved otherwise.

    Parameters
    ----------
    values : sequence of scalars, arrays or Series
        At least one conjunct; arrays must agree in length and Series in index.

    Returns
    -------
    bool, pd.NA, BooleanArray or Series of dtype boolean

    Raises
    ------
    InputError
        If there is no conjunct, or lengths or indexes differ.
    """
    if not len(values):
        raise InputError("a conjunction needs at least one conjunct")
    settled = [as_boolean(value) for value in values]
    _check_alignment(settled)
    result = settled[0]
    for value in settled[1:]:
        result = _and(result, value)
    return result


def admissible(scope: Any, policy: Any, lifecycle: Any) -> Ternary:
    """Return whether a memory may be used: scope AND policy AND lifecycle."""
    return conjunction([scope, policy, lifecycle])


def usable(relevant: Any, scope: Any, policy: Any, lifecycle: Any) -> Ternary:
    """Return whether a memory is relevant and may be used: relevant AND admissible."""
    return conjunction([relevant, scope, policy, lifecycle])


def lifecycle(state: Any, intent: Any) -> Ternary:
    """Derive the lifecycle axis from a memory's state and the query's intent.

    A current memory fits. A stale or superseded one fits a question about history and not one about the present.
    A forgotten one never fits. An unknown state or an unknown intent leaves the axis unresolved, whatever the
    other one is.

    Parameters
    ----------
    state : str or array of str, shape (n,)
        One of ``STATES``; missing means unknown.
    intent : str or array of str, shape (n,)
        One of ``INTENTS``; missing means unknown.

    Returns
    -------
    bool, pd.NA, BooleanArray or Series of dtype boolean

    Raises
    ------
    InputError
        For a word outside the vocabularies, or lengths or indexes that differ.
    """
    _check_alignment([state, intent])
    states, intents = np.broadcast_arrays(_codes(state, STATES, "state"), _codes(intent, INTENTS, "intent"))
    outdated = np.isin(states, [STATES.index("stale"), STATES.index("superseded")])
    fits = (states == STATES.index("current")) | (outdated & (intents == INTENTS.index("history")))
    unknown = (states == STATES.index("unknown")) | (intents == INTENTS.index("unknown"))
    settled = pd.arrays.BooleanArray(np.atleast_1d(fits), np.atleast_1d(unknown))
    index = next((value.index for value in (state, intent) if isinstance(value, pd.Series)), None)
    if index is not None:
        return pd.Series(settled, index=index, dtype="boolean")
    return as_boolean(settled[0]) if is_scalar(state) and is_scalar(intent) else settled


def exclusion_reasons(scope: Any, policy: Any, lifecycle: Any) -> Any:
    """Name the axes that are known to be 0; several may be, and unresolved axes are never named.

    Returns
    -------
    tuple of str, or object Series of such tuples
        Empty where nothing is known to forbid the memory.
    """
    values = [as_boolean(value) for value in (scope, policy, lifecycle)]
    _check_alignment(values)
    if all(is_scalar(value) for value in values):
        return tuple(axis for axis, value in zip(AXES, values, strict=True) if value is False)
    length = max(len(value) for value in values if not is_scalar(value))
    columns = [[value] * length if is_scalar(value) else list(value) for value in values]
    index = next((value.index for value in values if isinstance(value, pd.Series)), pd.RangeIndex(length))
    rows = [
        tuple(axis for axis, value in zip(AXES, row, strict=True) if value is not pd.NA and not value)
        for row in zip(*columns, strict=True)
    ]
    reasons = pd.Series(index=index, dtype=object)
    reasons[:] = rows
    return reasons


def conjuncts(axes: Sequence[str] = AXES, family: str = "admissibility") -> tuple[str, ...]:
    """Name the label columns whose conjunction is the status of a family; unknown axes and families are refused."""
    return (*(("relevant",) if check_family(family) == "non_usable" else ()), *check_axes(axes))


def status(labels: pd.DataFrame, axes: Sequence[str] = AXES, family: str = "admissibility") -> pd.Series:
    """Combine label columns into the status of a family: boolean, <NA> where unresolved."""
    return conjunction([labels[name] for name in conjuncts(axes, family)])


def check_axes(axes: Sequence[str]) -> tuple[str, ...]:
    """Return the axes in their standard order; none, or one that does not exist, is refused."""
    unknown = [axis for axis in axes if axis not in AXES]
    if unknown or not len(axes):
        raise InputError(
            f"axes {','.join(axes) or '(none)'}: expected one or more of {', '.join(AXES)}, comma-separated"
        )
    return tuple(axis for axis in AXES if axis in axes)


def check_family(family: str) -> str:
    """Return the family's name; another one than those in ``FAMILIES`` is refused."""
    if family not in FAMILIES:
        raise InputError(f"family {family}: expected {' or '.join(FAMILIES)}")
    return family


def truth_table() -> pd.DataFrame:
    """List all 27 combinations of the three axes with their status and exclusion reasons.

    Returns
    -------
    DataFrame, shape (27, 5)
        Boolean columns ``scope``, ``policy``, ``lifecycle``, ``admissible``; ``reasons`` holds tuples of axes.
    """
    rows = list(itertools.product([True, False, pd.NA], repeat=len(AXES)))
    table = pd.DataFrame(rows, columns=list(AXES)).astype("boolean")
    table["admissible"] = admissible(table["scope"], table["policy"], table["lifecycle"])
    table["reasons"] = exclusion_reasons(table["scope"], table["policy"], table["lifecycle"])
    return table


def _and(left: Any, right: Any) -> Any:
    # NA & array is not defined for every pandas container on the left; the operation is symmetric.
    return right & left if is_scalar(left) and not is_scalar(right) else left & right


def _check_alignment(values: Sequence[Any]) -> None:
    """Refuse lengths or indexes that differ: aligning them would invent unresolved rows."""
    arrays = [value for value in values if not is_scalar(value)]
    if len({len(value) for value in arrays}) > 1:
        raise InputError(f"arrays of different length: {', '.join(str(len(value)) for value in arrays)}")
    series = [value for value in arrays if isinstance(value, pd.Series)]
    if any(not value.index.equals(series[0].index) for value in series[1:]):
        raise InputError("Series with different indexes cannot be combined")


def _codes(value: Any, vocabulary: Sequence[str], what: str) -> np.ndarray:
    """Replace words by their places in a vocabulary; missing means ``unknown``, anything else is refused."""
    words = pd.Series([value] if is_scalar(value) else list(value), dtype=object)
    codes = pd.Index(list(vocabulary), dtype=object).get_indexer(pd.Index(words.fillna("unknown")))
    if (codes < 0).any():
        strange = words[codes < 0].iloc[0]
        raise InputError(f"{what} {strange!r}: expected one of {', '.join(vocabulary)}")
    return codes[0] if is_scalar(value) else codes
