"""Agreement between annotators: alpha, the tables behind published figures, and what prevalence does to alpha.

Protocol section 6. Krippendorff's alpha itself comes from the ``krippendorff`` package, always nominal. This module
adds what the paper's two numbers per axis leave open:

* For a question with two answers, exact agreement and alpha over *n* records determine how many records both
  annotators answered yes, how many split them, and how many both answered no (:func:`rebuild_table`): two numbers,
  two unknowns. Where no such table exists, the question had more than two answers.
* An interval for alpha by resampling records (:func:`alpha_interval`).
* How alpha falls with the rarer answer's prevalence while agreement stays put (:func:`prevalence_grid`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import krippendorff
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.bootstrap import DEFAULT_CONFIDENCE, DEFAULT_REPLICATES, Resamples
from companion.errors import InputError
from companion.stages.published import figures

CLAIM = "agreement"
TWO_ANSWERS = ("scope", "prohibited", "usable_evidence")
"""Axes that the annotators answered with yes or no."""
_COLUMNS = ["claim", "subject", "contrast", "metric", "value", "low", "high", "how"]


@dataclass(frozen=True)
class PairTable:
    """Two annotators, two answers: how the records fall.

    Attributes
    ----------
    both_yes, split, both_no : int
        Records on which both say yes, they differ, both say no. Who said what on a split record is not kept:
        neither agreement nor alpha depends on it.
    """

    both_yes: int
    split: int
    both_no: int

    def __post_init__(self) -> None:
        if min(self.both_yes, self.split, self.both_no) < 0 or self.n == 0:
            raise InputError(f"{self}: expected counts of at least 0 and one record or more")

    @property
    def n(self) -> int:
        """Number of records."""
        return self.both_yes + self.split + self.both_no

    @property
    def prevalence(self) -> float:
        """Share of yes among all 2n answers."""
        return (2 * self.both_yes + self.split) / (2 * self.n)

    @property
    def exact_agreement(self) -> float:
        """Share of records on which both give the same answer."""
        return (self.both_yes + self.both_no) / self.n

    @property
    def alpha(self) -> float:
        """Krippendorff's alpha; NaN when only one answer was ever given (nothing to disagree about)."""
        counts = np.repeat([[2, 0], [1, 1], [0, 2]], [self.both_yes, self.split, self.both_no], axis=0)
        return _alpha_of_counts(counts)

    @property
    def yes_agreement(self) -> float:
        """Specific agreement on yes: of the yes answers, the share that the other annotator gave too."""
        return _ratio(2 * self.both_yes, 2 * self.both_yes + self.split)

    @property
    def no_agreement(self) -> float:
        """Specific agreement on no."""
        return _ratio(2 * self.both_no, 2 * self.both_no + self.split)

    def ratings(self) -> pd.DataFrame:
        """Return one row per record: boolean columns ``annotator_1`` and ``annotator_2``.

        Split records alternate between the annotators, since the counts do not say who answered yes.
        """
        first = np.repeat([True, True, False], [self.both_yes, self.split, self.both_no])
        second = np.repeat([True, False, False], [self.both_yes, self.split, self.both_no])
        odd = np.arange(self.n) % 2 == 1
        swapped = np.where(odd, second, first), np.where(odd, first, second)
        return pd.DataFrame({"annotator_1": swapped[0], "annotator_2": swapped[1]}).astype("boolean")


def alpha(ratings: pd.DataFrame) -> float:
    """Compute Krippendorff's alpha for nominal answers.

    Parameters
    ----------
    ratings : DataFrame, shape (n records, m annotators)
        Answers of any hashable kind; missing means that the annotator did not answer.

    Returns
    -------
    float
        NaN where alpha is undefined: a single answer throughout, or no record with two answers.

    Raises
    ------
    InputError
        Fewer than two annotators.
    """
    return _alpha_of_counts(answer_counts(ratings))


def exact_agreement(ratings: pd.DataFrame) -> float:
    """Share of fully answered records on which all annotators agree.

    Parameters
    ----------
    ratings : DataFrame, shape (n records, m annotators)
        As for :func:`alpha`.

    Returns
    -------
    float
        NaN when no record was answered by everybody.

    Raises
    ------
    InputError
        Fewer than two annotators.
    """
    counts = answer_counts(ratings)
    full = counts.sum(axis=1) == ratings.shape[1]
    return float((counts[full].max(axis=1) == ratings.shape[1]).mean()) if full.any() else float("nan")


def answer_counts(ratings: pd.DataFrame) -> NDArray[np.int64]:
    """Count the answers of every record.

    Parameters
    ----------
    ratings : DataFrame, shape (n records, m annotators)
        As for :func:`alpha`.

    Returns
    -------
    ndarray of int64, shape (n records, v distinct answers)
        How many annotators gave each answer.

    Raises
    ------
    InputError
        Fewer than two annotators.
    """
    if ratings.shape[1] < 2:
        raise InputError(f"agreement: {ratings.shape[1]} column(s) of answers; expected one per annotator, two or more")
    codes, answers = pd.factorize(ratings.astype(object).to_numpy().ravel())
    given = codes >= 0
    record = np.repeat(np.arange(len(ratings)), ratings.shape[1])[given]
    size = len(ratings) * len(answers)
    flat = np.bincount(record * len(answers) + codes[given], minlength=size)
    return flat.reshape(len(ratings), len(answers)).astype(np.int64)


def rebuild_table(agreement: float, alpha: float, n: int, tolerance: float = 5e-7) -> PairTable | None:
    """Find the two-answer table that gives a published agreement and alpha.

    Parameters
    ----------
    agreement, alpha : float
        Exact agreement (0 to 1) and nominal alpha of two annotators.
    n : int
        Number of records, all answered by both.
    tolerance : float
        Largest accepted distance in either figure; the default keeps six decimals.

    Returns
    -------
    PairTable or None
        None when no whole-number table fits: then the question had more than two answers, or a figure is off.
        Swapping yes and no changes neither figure, so of the two mirror images the one with the rarer yes is
        returned, the convention of the paper's axes.

    Raises
    ------
    InputError
        An agreement outside 0 to 1, no records, or a tolerance too wide to tell two tables apart.
    """
    if not 0 <= agreement <= 1 or n < 1:
        raise InputError(f"agreement {agreement} over {n} records; expected a share from 0 to 1 and a record or more")
    split = round(n * (1 - agreement))
    if abs((n - split) / n - agreement) > tolerance:
        return None
    found = [t for t in _tables_with(split, n) if abs(t.alpha - alpha) <= tolerance]
    if len(found) > 1:
        raise InputError(f"tolerance {tolerance}: {len(found)} tables fit, such as {found[0]} and {found[1]}")
    return found[0] if found else None


def _tables_with(split: int, n: int) -> Iterator[PairTable]:
    """Yield every table with so many split records, the rarer answer as yes."""
    return (PairTable(yes, split, n - split - yes) for yes in range((n - split) // 2 + 1))


@dataclass(frozen=True)
class AlphaInterval:
    """Alpha with its percentile interval over records; ``undefined`` replicates had a single answer throughout."""

    alpha: float
    low: float
    high: float
    undefined: int
    settings: Resamples


def alpha_interval(
    ratings: pd.DataFrame,
    *,
    replicates: int = DEFAULT_REPLICATES,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> AlphaInterval:
    """Percentile bootstrap interval for alpha: records are resampled with replacement (Protocol section 3).

    Parameters
    ----------
    ratings : DataFrame, shape (n records, m annotators)
        As for :func:`alpha`.
    replicates, confidence, seed
        Bootstrap settings, carried in the result.

    Returns
    -------
    AlphaInterval
        Undefined replicates are left out of the quantiles and counted; with none left the ends are NaN.

    Raises
    ------
    InputError
        No records, fewer than two annotators, or settings out of range.
    """
    counts = answer_counts(ratings)
    if not len(counts):
        raise InputError("agreement: no records; expected one row per record")
    # Records with the same answers are interchangeable, so a resample is a count per pattern of answers, and
    # the few distinct resamples are each given to the library once.
    patterns, which = np.unique(counts, axis=0, return_inverse=True)
    member = np.equal.outer(which.ravel(), np.arange(len(patterns))).astype(np.int64)
    draws = Resamples(seed, replicates, confidence, (len(counts),))
    resampled = np.vstack([weights @ member for _, weights in draws.chunks()])
    distinct, place = np.unique(resampled, axis=0, return_inverse=True)
    values = np.array([_alpha_of_counts(np.repeat(patterns, row, axis=0)) for row in distinct])[place.ravel()]
    defined = values[~np.isnan(values)]
    ends = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2]) if len(defined) else [np.nan] * 2
    undefined = int(np.isnan(values).sum())
    return AlphaInterval(_alpha_of_counts(counts), float(ends[0]), float(ends[1]), undefined, draws)


def prevalence_grid(n: int = 207, splits: NDArray[np.int64] | None = None, step: int = 1) -> pd.DataFrame:
    """Alpha at every prevalence for given numbers of split records: the data of the chapter's explorer.

    Parameters
    ----------
    n : int
        Records.
    splits : ndarray of int, optional
        Numbers of split records to show; all up to 30% of the records by default.
    step : int
        Thin the grid: every ``step``-th number of records with a yes from both.

    Returns
    -------
    DataFrame
        split, both_yes, both_no (int64); agreement, prevalence (share of yes answers), alpha, yes_agreement,
        no_agreement (float64, NaN where undefined). Prevalence runs over 0 to 1.

    Raises
    ------
    InputError
        No records, or a number of splits outside 0 to n.
    """
    chosen = np.arange(int(0.3 * n) + 1) if splits is None else np.asarray(splits, dtype=np.int64)
    if n < 1 or step < 1 or (len(chosen) and not (chosen.min() >= 0 and chosen.max() <= n)):
        raise InputError(f"prevalence grid: n {n}, step {step}, splits {chosen}; expected 1 <= n, 0 <= split <= n")
    rows = [_describe(PairTable(yes, int(s), n - int(s) - yes)) for s in chosen for yes in range(0, n - s + 1, step)]
    return pd.DataFrame(rows)


def _describe(table: PairTable) -> dict[str, Any]:
    names = ("split", "both_yes", "both_no", "prevalence", "alpha", "yes_agreement", "no_agreement")
    return {**{name: getattr(table, name) for name in names}, "agreement": table.exact_agreement}


def published() -> pd.DataFrame:
    """Read the published agreement of the 207 records, with the table behind it where there is one.

    Returns
    -------
    DataFrame
        One row per axis, index ``axis``: n, exact_agreement, alpha as published; both_yes, split, both_no (Int64,
        ``<NA>`` where no two-answer table gives the figures).
    """
    rows = figures(CLAIM)
    wide = rows.pivot_table(index="subject", columns="metric", values="published", sort=False)
    out = pd.DataFrame(
        {
            "n": rows.groupby("subject", sort=False)["n"].first().astype("int64"),
            "exact_agreement": wide["exact_agreement"],
            "alpha": wide["krippendorff_alpha"],
        }
    )
    pairs = zip(out["exact_agreement"], out["alpha"], out["n"], strict=True)
    tables = [rebuild_table(float(share), float(value), int(n)) if share <= 1 else None for share, value, n in pairs]
    for name in ("both_yes", "split", "both_no"):
        out[name] = pd.array([None if t is None else getattr(t, name) for t in tables], dtype="Int64")
    return out.rename_axis("axis")


def published_tables() -> dict[str, PairTable]:
    """Return the rebuilt tables by axis; axes with more than two answers are absent."""
    known = published().dropna(subset=["split"])
    counts = known[["both_yes", "split", "both_no"]].astype("int64")
    return {str(axis): PairTable(*map(int, row)) for axis, row in zip(counts.index, counts.to_numpy(), strict=True)}


def recomputable(
    *, replicates: int = DEFAULT_REPLICATES, confidence: float = DEFAULT_CONFIDENCE, seed: int = 0
) -> pd.DataFrame:
    """Recompute the published agreement figures that a whole-number table settles, with intervals for alpha.

    Parameters
    ----------
    replicates, confidence, seed
        Bootstrap settings of the intervals, which the paper does not give.

    Returns
    -------
    DataFrame
        claim, subject, contrast, metric (keys of ``figures.csv``), value, low, high (NaN where not computed), how.
        The check is one of consistency: that whole numbers exist which give both figures at once.
    """
    rows = []
    for axis, table in published_tables().items():
        interval = alpha_interval(table.ratings(), replicates=replicates, confidence=confidence, seed=seed)
        how = (
            f"the only table of {table.n} records that gives both figures: {table.both_yes} both yes, "
            f"{table.split} split, {table.both_no} both no"
        )
        key = (CLAIM, axis, "two_annotators")
        rows.append((*key, "exact_agreement", table.exact_agreement, np.nan, np.nan, how))
        rows.append((*key, "krippendorff_alpha", interval.alpha, interval.low, interval.high, how))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _alpha_of_counts(counts: NDArray[np.int64]) -> float:
    """Nominal alpha from answer counts, NaN where it is undefined (the library raises there)."""
    paired = counts[counts.sum(axis=1) >= 2]
    if (paired.sum(axis=0) > 0).sum() < 2:
        return float("nan")
    return float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))


def _ratio(top: int, bottom: int) -> float:
    return top / bottom if bottom else float("nan")
