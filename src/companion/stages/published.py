"""The paper's published figures and released outcomes: facts to compare with and to compute from."""

from __future__ import annotations

import functools

import pandas as pd

from companion.errors import InputError
from companion.paths import data_dir

KEYS = ["claim", "stage", "population", "subject", "contrast", "metric"]

PUBLISHED_METRICS = {
    "evidence_recall": "evidence_recall",
    "feasible_rate": "feasible_rate",
    "penalized_admissibility_upper_risk": "loss",
    "infeasibility_component": "infeasibility_component",
    "feasible_prefix_component": "prefix_component",
    "conditional_lower_bound": "lower_bound",
    "conditional_upper_bound": "upper_bound",
    "conditional_upper_risk": "upper_bound",
    "known_rate": "known_rate",
    "label_coverage": "label_coverage",
    "any_known_violation": "any_violation",
    "known_violation_count": "violation_count",
    "candidates_scored": "candidates_scored",
}
"""Published metric names and the names that this package gives the same quantities."""


@functools.lru_cache(maxsize=1)
def _figures() -> pd.DataFrame:
    table = pd.read_csv(data_dir() / "published" / "figures.csv", dtype=dict.fromkeys(KEYS, "str"))
    return table.rename(columns={"estimate": "published", "ci_low": "published_low", "ci_high": "published_high"})


def figures(claim: str | None = None) -> pd.DataFrame:
    """Return the published estimates in the order of the file: keys, published, published_low, published_high, n."""
    table = _figures()
    return (table if claim is None else table[table["claim"] == claim]).copy()


def figure(claim: str, subject: str, contrast: str, metric: str) -> pd.Series:
    """Return one published row; refuse where there is not exactly one."""
    wanted = {"claim": claim, "subject": subject, "contrast": contrast, "metric": metric}
    found = _figures()
    for column, value in wanted.items():
        found = found[found[column] == value]
    if len(found) != 1:
        raise InputError(f"no single published figure for {wanted}: {len(found)} found")
    return found.iloc[0]


def table(name: str) -> pd.DataFrame:
    """Read another published table: a CSV file of ``data/published`` by its stem."""
    path = data_dir() / "published" / f"{name}.csv"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.csv")))
        raise InputError(f"{path}: no such published table; known: {known}")
    return pd.read_csv(path)
