"""What was loaded beside what is published."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd


def compare(loaded: Mapping[str, int], published: Mapping[str, int]) -> pd.DataFrame:
    """Set loaded counts beside published ones."""
    table = pd.DataFrame(
        {
            "quantity": list(loaded),
            "published": pd.array([published.get(name) for name in loaded], dtype="Int64"),
            "loaded": pd.array(list(loaded.values()), dtype="Int64"),
        }
    )
    table["agrees"] = table["published"] == table["loaded"]
    return table
