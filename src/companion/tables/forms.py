"""Ids that are the same but for their form."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion.tables.problems import Origin, Problem, show
from companion.tables.values import folded

_NAMED = 5


def form_problems(values: pd.Index, table: str, column: str, origin: Origin) -> list[Problem]:
    """Warn of distinct ids that are the same but for case, spaces, Unicode form, leading zeros or a final .0."""
    forms, _ = pd.factorize(folded(values))
    alike = np.flatnonzero(np.bincount(forms, minlength=len(values))[forms] > 1)
    if not len(alike):
        return []
    groups = pd.Series(values[alike]).groupby(forms[alike], sort=False).agg(list)
    pairs = [f"{show(group[0])} and {show(other)}" for group in groups for other in group[1:]]
    more = f", and {len(pairs) - _NAMED:,} more" if len(pairs) > _NAMED else ""
    return [
        Problem(
            *(table, None, None, column),
            f"{'ids differ' if len(pairs) > 1 else 'two ids differ'} only in form: {'; '.join(pairs[:_NAMED])}{more}",
            "one form for each id",
            "ids are compared letter by letter: write each id in one form everywhere",
            value=tuple(tuple(group) for group in groups),
            origin=origin.label,
            code="id_forms",
            level="warning",
        )
    ]
