"""The self-check of a fetched source: load it, and set what was loaded beside what is published."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from companion.corpora import evidence, gatemem, memops, rhelm
from companion.corpora._counts import compare
from companion.corpora.base import get

_EVIDENCE = {"cases": 1_523, "readers": 3, "arms": 5, "sources": 2}


def self_check(name: str, root: Path) -> pd.DataFrame:
    """Load a source and compare its counts with the published ones."""
    if name == evidence.UPSTREAM.name:
        cases = evidence.load(root)
        columns = {"cases": "case_token", "readers": "reader_model", "arms": "arm", "sources": "source"}
        counts = {quantity: int(cases[column].nunique()) for quantity, column in columns.items()}
        return compare({**counts, "rows": len(cases)}, _EVIDENCE)
    published = {"gatemem": gatemem.PUBLISHED, "memops": memops.PUBLISHED, "rhelm": rhelm.EXPECTED}.get(name, {})
    return compare(get(name).load(root).notes, published)
