"""Agreement between annotators and between judges: alpha, the tables behind published figures, and prevalence.

For a question with two answers, exact agreement and alpha over n records determine how many records both annotators
answered yes, how many they split, and how many both answered no: two figures, two unknowns. That two answers were
possible is an assumption: more answers can give the same figures (:func:`other_margins`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.bootstrap import LEAST_REPLICATES, Resamples, Resampling
from companion.errors import InputError
from companion.stages import published as paper

TWO_ANSWERS = ("scope", "prohibited", "usable_evidence")
"""Axes that the annotators answered with yes or no."""
_COUNTS = ["both_yes", "split", "both_no"]


@dataclass(frozen=True)
class PairTable:
    """Two annotators, two answers: the numbers of records with two yes, one yes and no yes.

    Who said yes on a split record is not kept: neither agreement nor alpha depends on it.
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
        return _alpha_of_counts(np.repeat([[2, 0], [1, 1], [0, 2]], [self.both_yes, self.split, self.both_no], axis=0))

    @property
    def yes_agreement(self) -> float:
        """Of the yes answers, the share that the other annotator gave too."""
        return _ratio(2 * self.both_yes, 2 * self.both_yes + self.split)

    @property
    def no_agreement(self) -> float:
        """Of the no answers, the share that the other annotator gave too."""
        return _ratio(2 * self.both_no, 2 * self.both_no + self.split)

    def ratings(self) -> pd.DataFrame:
        """Return one row per record, boolean ``annotator_1`` and ``annotator_2``; split records alternate."""
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


def answer_counts(ratings: pd.DataFrame) -> NDArray[np.int64]:
    """Count how many annotators gave each answer: shape (n records, v distinct answers)."""
    if ratings.shape[1] < 2:
        raise InputError(f"agreement: {ratings.shape[1]} column(s) of answers; expected one per annotator, two or more")
    codes, answers = pd.factorize(ratings.astype(object).to_numpy().ravel())
    given = codes >= 0
    record = np.repeat(np.arange(len(ratings)), ratings.shape[1])[given]
    flat = np.bincount(record * len(answers) + codes[given], minlength=len(ratings) * len(answers))
    return flat.reshape(len(ratings), len(answers)).astype(np.int64)


def rebuild_table(agreement: float, alpha: float, n: int, tolerance: float = 5e-7) -> PairTable | None:
    """Find the two-answer table that gives a published agreement and alpha.

    Both figures are over ``n`` records answered by both, to a ``tolerance`` of six decimals. None where no whole-number
    table fits: then the question had more than two answers, or a figure is off. Of a table and its mirror image, which
    have the same figures, the one with the rarer yes is returned, the convention of the paper's axes. Refused: a share
    outside 0 to 1, no records, a tolerance too wide to tell two tables apart.
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


def other_margins(table: PairTable) -> list[tuple[int, int, int]]:
    """List how often each of three answers may have been given where agreement and alpha are those of ``table``.

    Both depend only on the number of split records and on the sum of squares of these 2n answers.
    """
    total = 2 * table.n
    yes = 2 * table.both_yes + table.split
    square = yes**2 + (total - yes) ** 2
    found = []
    for a in range(1, total // 3 + 1):
        # b + c and b^2 + c^2 are given: b and c are the roots of a quadratic.
        rest, squares = total - a, square - a * a
        root = 2 * squares - rest * rest
        side = int(np.sqrt(max(root, 0)))
        if root >= 0 and side * side == root and (rest - side) % 2 == 0 and (rest - side) // 2 >= a:
            found.append((a, (rest - side) // 2, (rest + side) // 2))
    return found


def sizes_that_fit(alpha: float, largest: int = 207, tolerance: float = 1e-6) -> dict[int, list[int]]:
    """Find on how many records a published alpha is possible at all: number of records to numbers of split records.

    With s split records of n, alpha = 1 - (2n - 1) 2s / M, where M is 4n^2 minus the sum of squares of the counts of
    the answers: a whole number, however many answers there are.
    """
    found: dict[int, list[int]] = {}
    for n in range(2, largest + 1):
        for s in range(1, n + 1):
            m = (2 * n - 1) * 2 * s / (1 - alpha)
            if abs(m - round(m)) < tolerance and m <= 4 * n * n:
                found.setdefault(n, []).append(s)
    return found


@dataclass(frozen=True)
class AlphaInterval:
    """Alpha with its percentile interval over records; ``undefined`` replicates had a single answer throughout."""

    alpha: float
    low: float
    high: float
    undefined: int
    settings: Resamples

    @property
    def estimate(self) -> float:
        """Alpha, under the name that other estimates have."""
        return self.alpha


def alpha_interval(ratings: pd.DataFrame, resampling: Resampling | None = None, **settings: Any) -> AlphaInterval:
    """Percentile bootstrap interval for alpha: records are resampled with replacement.

    Parameters
    ----------
    ratings : DataFrame, shape (n records, m annotators)
        As for :func:`alpha`.
    resampling : Resampling, optional
        Replicates, level and seed, which may be given by name as well.

    Returns
    -------
    AlphaInterval
        Undefined replicates are left out of the quantiles and counted; with none left the ends are NaN.

    Raises
    ------
    InputError
        No records, fewer than two annotators, or settings out of range.
    """
    how = resampling or Resampling(**settings)
    counts = answer_counts(ratings)
    if not len(counts):
        raise InputError("agreement: no records; expected one row per record")
    # Records with the same answers are interchangeable: a resample is a count per pattern of answers, and the few
    # distinct resamples are each given to the library once.
    patterns, which = np.unique(counts, axis=0, return_inverse=True)
    draws, resampled = _resampled(which.ravel(), len(patterns), how)
    distinct, place = np.unique(resampled, axis=0, return_inverse=True)
    values = np.array([_alpha_of_counts(np.repeat(patterns, row, axis=0)) for row in distinct])[place.ravel()]
    low, high = _ends(values, how)
    return AlphaInterval(_alpha_of_counts(counts), low, high, int(np.isnan(values).sum()), draws)


def _resampled(pattern: NDArray[Any], kinds: int, how: Resampling) -> tuple[Resamples, NDArray[np.int64]]:
    """Draw records with replacement; return how often each pattern was drawn, replicate by replicate."""
    member = np.equal.outer(pattern, np.arange(kinds)).astype(np.int64)
    draws = Resamples(how.seed, how.replicates, how.confidence, (len(pattern),))
    return draws, np.vstack([weights @ member for _, weights in draws.chunks()])


def _ends(values: NDArray[np.float64], how: Resampling) -> tuple[float, float]:
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - how.confidence) / 2, (1 + how.confidence) / 2])
    return float(low), float(high)


def judge_agreement(resampling: Resampling | None = None) -> pd.DataFrame:
    """Measure how far two judges of the same 200 answers agree, over all and by reader, source and arm.

    Returns
    -------
    DataFrame
        by, value, outputs, metric ("exact_agreement", "kappa", "alpha"), estimate, low, high; outputs are resampled.
    """
    how = resampling or Resampling()
    rows = []
    for row in paper.table("judge_agreement").itertuples():
        counts = np.array([row.both_correct, row.only_first_correct, row.only_second_correct, row.both_incorrect])
        _, drawn = _resampled(np.repeat(np.arange(4), counts), 4, how)
        for metric, values in _measures(np.vstack([counts, drawn])).items():
            low, high = _ends(values[1:], how) if how.replicates >= LEAST_REPLICATES else (np.nan, np.nan)
            rows.append((row.by, row.value, row.outputs, metric, values[0], low, high))
    return pd.DataFrame(rows, columns=["by", "value", "outputs", "metric", "estimate", "low", "high"])


def _measures(counts: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Exact agreement, Cohen's kappa and alpha of 2 x 2 tables given as yes-yes, yes-no, no-yes, no-no."""
    a, b, c, d = counts.T.astype(float)
    n = a + b + c + d
    same, first, second = (a + d) / n, (a + b) / n, (a + c) / n
    chance = first * second + (1 - first) * (1 - second)
    yes = 2 * a + b + c
    with np.errstate(invalid="ignore", divide="ignore"):
        nominal = 1 - (2 * n - 1) * (b + c) / (yes * (2 * n - yes))
        return {"exact_agreement": same, "kappa": (same - chance) / (1 - chance), "alpha": nominal}


def published() -> pd.DataFrame:
    """Read the published agreement of the 207 records, with a two-answer table behind it where there is one.

    One row per axis, index ``axis``: n, exact_agreement, alpha as published; both_yes, split, both_no (Int64, ``<NA>``
    where no two-answer table gives the figures).
    """
    rows = paper.figures("agreement")
    wide = rows.pivot_table(index="subject", columns="metric", values="published", sort=False)
    out = pd.DataFrame({"n": rows.groupby("subject", sort=False)["n"].first().astype("int64")})
    out = out.assign(exact_agreement=wide["exact_agreement"], alpha=wide["krippendorff_alpha"])
    tables = [
        rebuild_table(float(exact), float(alpha), int(n)) if exact <= 1 else None
        for n, exact, alpha in out[["n", "exact_agreement", "alpha"]].to_numpy().tolist()
    ]
    for name in _COUNTS:
        out[name] = pd.array([None if t is None else getattr(t, name) for t in tables], dtype="Int64")
    return out.rename_axis("axis")


def published_tables() -> dict[str, PairTable]:
    """Return the rebuilt tables by axis; axes whose figures no two-answer table gives are absent."""
    known = published().dropna(subset=["split"])[_COUNTS].astype("int64")
    return {str(axis): PairTable(*map(int, row)) for axis, row in zip(known.index, known.to_numpy(), strict=True)}


def _alpha_of_counts(counts: NDArray[np.int64]) -> float:
    """Nominal alpha from answer counts, NaN where it is undefined (the library raises there)."""
    import krippendorff

    paired = counts[counts.sum(axis=1) >= 2]
    if (paired.sum(axis=0) > 0).sum() < 2:
        return float("nan")
    return float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))


def _ratio(top: int, bottom: int) -> float:
    return top / bottom if bottom else float("nan")
