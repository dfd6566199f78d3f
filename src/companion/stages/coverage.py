"""How often the intervals of this design contain the truth, by simulation with a known truth.

A 95% percentile interval covers the truth 95% of the time only in the limit of many clusters. Resampling n clusters
understates the variance by the factor (n - 1) / n in each stratum (3/4 with 4 scenarios), and a percentile interval has
no wider tails for few clusters. A t interval from the same clusters, which mends both, stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.bootstrap import DEFAULT_CONFIDENCE, Resamples
from companion.errors import InputError
from companion.exposure import CELLS, GAP, unit_effects

__all__ = ["ExposureModel", "exposure_coverage", "exposure_model"]

_BLOCK = 250  # simulated studies that share one set of resamples
_SLACK = 1e-9  # estimates are discrete and may equal the truth or an end exactly

Interval = tuple[NDArray[np.float64], NDArray[np.float64]]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class ExposureModel:
    """A made-up reader whose effects are known."""

    admissible: Mapping[str, float]
    inadmissible: Mapping[str, float]
    withheld: float = 0.03
    concentration: float = 1.0
    scenarios: int = 4
    pairs: int = 2

    def __post_init__(self) -> None:
        if not self.admissible or list(self.admissible) != list(self.inadmissible):
            raise InputError(
                f"model: axes are {list(self.admissible)} and {list(self.inadmissible)}; expected the same axes"
            )
        chances = [*self.admissible.values(), *self.inadmissible.values(), self.withheld]
        if not all(0 <= chance <= 1 for chance in chances):
            raise InputError(f"model: chances are {chances}; expected numbers between 0 and 1")
        if not 0 < self.concentration < np.inf or self.scenarios < 2 or self.pairs < 1:
            raise InputError(
                f"model: concentration {self.concentration}, scenarios {self.scenarios}, pairs {self.pairs}; "
                "expected a positive number, at least 2 and at least 1"
            )

    @property
    def truth(self) -> dict[str, float]:
        """The true effect of the two relevant cells and the true gap."""
        admissible = float(np.mean(list(self.admissible.values()))) - self.withheld
        inadmissible = float(np.mean(list(self.inadmissible.values()))) - self.withheld
        return {CELLS[0]: admissible, CELLS[1]: inadmissible, GAP: admissible - inadmissible}

    def draw(self, rng: np.random.Generator, studies: int) -> dict[str, Array]:
        """Simulate studies."""
        first = self._cell(rng, studies, self.admissible)
        second = self._cell(rng, studies, self.inadmissible)
        return {CELLS[0]: first, CELLS[1]: second, GAP: first - second}

    def _cell(self, rng: np.random.Generator, studies: int, means: Mapping[str, float]) -> Array:
        mean = np.repeat(list(means.values()), self.scenarios)
        # Beta is not defined at 0 and 1: there every scenario has the mean itself.
        inner = np.clip(mean, 1e-12, 1 - 1e-12) * self.concentration
        chance = rng.beta(inner, self.concentration - inner, size=(studies, len(mean)))
        chance = np.where((mean == 0) | (mean == 1), mean, chance)
        exposed = rng.binomial(self.pairs, chance)
        return (exposed - rng.binomial(self.pairs, self.withheld, size=exposed.shape)) / self.pairs


def exposure_model(outcomes: pd.DataFrame, reader: str, concentration: float = 1.0) -> ExposureModel:
    """Give a made-up reader the axis means that one reader showed."""
    effects = unit_effects(outcomes, reader)
    sizes = effects.groupby("axis")["scenario"].nunique()
    if sizes.min() < sizes.max():
        raise InputError(f"model: scenarios per axis are {sizes.to_dict()}; expected the same number in each")
    relevant = effects[effects["cell"].isin(CELLS[:2])]
    means = relevant.pivot_table(index="axis", columns="cell", values="disclosed_exposed", aggfunc="mean")
    pairs = int(effects.groupby("scenario")["pair"].nunique().iloc[0])
    admissible, inadmissible = ({str(axis): float(mean) for axis, mean in means[cell].items()} for cell in CELLS[:2])
    return ExposureModel(
        admissible=admissible,
        inadmissible=inadmissible,
        withheld=float(relevant["disclosed_withheld"].mean()),
        concentration=concentration,
        scenarios=int(sizes.iloc[0]),
        pairs=pairs,
    )


def exposure_coverage(
    model: ExposureModel,
    *,
    simulations: int = 4000,
    replicates: int = 2000,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
) -> pd.DataFrame:
    """Estimate the real coverage of scenario-bootstrap intervals in small studies like the published one."""
    strata = np.repeat(np.arange(len(model.admissible)), model.scenarios)
    found: dict[tuple[str, str], list[Interval]] = {}
    for rng, count, sub_seed in _blocks(simulations, seed):
        within = Resamples(sub_seed, replicates, confidence, tuple(np.bincount(strata).tolist()))
        together = Resamples(sub_seed, replicates, confidence, (len(strata),))
        for statistic, means in model.draw(rng, count).items():
            ends = {
                "percentile, within strata": _percentile(means, within),
                "percentile, all together": _percentile(means, together),
                "t, within strata": _student(means, strata, confidence),
            }
            for name, pair in ends.items():
                found.setdefault((statistic, name), []).append(pair)
    table = pd.DataFrame([_row(*key, model.truth[key[0]], ends) for key, ends in found.items()])
    settings = {"simulations": simulations, "replicates": replicates, "confidence": confidence, "seed": seed}
    table.attrs["settings"] = settings
    return table


def _blocks(simulations: int, seed: int) -> Iterator[tuple[np.random.Generator, int, int]]:
    """Split the simulations into blocks with independent data and independent resamples."""
    if simulations < 1 or seed < 0:
        raise InputError(f"coverage: simulations {simulations}, seed {seed}; expected at least 1 and at least 0")
    blocks = -(-simulations // _BLOCK)
    for index, child in enumerate(np.random.SeedSequence(seed).spawn(blocks)):
        count = min(_BLOCK, simulations - index * _BLOCK)
        yield np.random.default_rng(child), count, int(child.generate_state(1)[0])


def _percentile(means: Array, resamples: Resamples) -> Interval:
    """Percentile intervals of many studies at once; ``means`` has shape (studies, scenarios)."""
    drawn = means @ resamples.weights().T / means.shape[1]
    tail = (1 - resamples.confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=1)
    return low, high


def _student(means: Array, strata: NDArray[np.integer[Any]], confidence: float) -> Interval:
    """T intervals of a stratified sample with equally many scenarios in each stratum."""
    from scipy import stats

    groups = [means[:, strata == name] for name in np.unique(strata)]
    squares = sum(part.var(axis=1, ddof=1) * part.shape[1] for part in groups)
    error = np.sqrt(squares) / means.shape[1]
    reach = stats.t.ppf((1 + confidence) / 2, len(strata) - len(groups)) * error
    centre = means.mean(axis=1)
    return centre - reach, centre + reach


def _row(statistic: str, method: str, truth: float, ends: list[Interval]) -> dict[str, Any]:
    low, high = (np.concatenate(side) for side in zip(*ends, strict=True))
    below, above = high < truth - _SLACK, low > truth + _SLACK
    coverage = float((~below & ~above).mean())
    width = high - low
    return {
        "statistic": statistic,
        "method": method,
        "truth": truth,
        "coverage": coverage,
        "coverage_se": float(np.sqrt(coverage * (1 - coverage) / len(low))),
        "below": float(below.mean()),
        "above": float(above.mean()),
        "mean_width": float(width.mean()),
        "width_se": float(width.std() / np.sqrt(len(low))),
        "zero_width": float((width <= _SLACK).mean()),
        "simulations": len(low),
    }
