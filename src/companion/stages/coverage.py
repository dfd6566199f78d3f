"""How often the intervals of this design contain the truth, by simulation with a known truth.

A 95% percentile interval covers the truth 95% of the time only in the limit of many clusters. The exposure
study has 16 scenarios in 4 strata, the RHELM replication 7 groups. Resampling n clusters understates the variance by
the factor (n - 1) / n in each stratum (3/4 with 4 scenarios), and a percentile interval has no wider tails for few
clusters. So the real coverage is worth knowing. A t interval from the same clusters, which mends both, stands
beside it (Protocol section 3; `companion.bootstrap`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    sizes = tuple(np.bincount(strata).tolist())
    methods: dict[str, Callable[[Array, Resamples, Resamples], Interval]] = {
        "percentile, within strata": lambda x, within, _: _percentile(x, np.ones_like(x[0]), within),
        "percentile, all together": lambda x, _, together: _percentile(x, np.ones_like(x[0]), together),
        "t, within strata": lambda x, within, _: _student(x, np.ones_like(x[0]), strata, within.confidence),
    }
    found: dict[tuple[str, str], list[Interval]] = {}
    for rng, count, sub_seed in _blocks(simulations, seed):
        within = Resamples(sub_seed, replicates, confidence, sizes)
        together = Resamples(sub_seed, replicates, confidence, (len(strata),))
        for statistic, means in model.draw(rng, count).items():
            for name, method in methods.items():
                found.setdefault((statistic, name), []).append(method(means, within, together))
    rows = [_row(*key, model.truth[key[0]], ends) for key, ends in found.items()]
    return _table(rows, simulations, replicates, confidence, seed)


def _blocks(simulations: int, seed: int) -> Iterator[tuple[np.random.Generator, int, int]]:
    """Split the simulations into blocks with independent data and independent resamples."""
    if simulations < 1 or seed < 0:
        raise InputError(f"coverage: simulations {simulations}, seed {seed}; expected at least 1 and at least 0")
    blocks = -(-simulations // _BLOCK)
    for index, child in enumerate(np.random.SeedSequence(seed).spawn(blocks)):
        count = min(_BLOCK, simulations - index * _BLOCK)
        yield np.random.default_rng(child), count, int(child.generate_state(1)[0])


def _percentile(sums: Array, counts: Array, resamples: Resamples) -> Interval:
    """Percentile intervals of ratio means; ``sums`` has shape (studies, clusters), ``counts`` (clusters,)."""
    weights = resamples.weights().astype(np.float64)
    drawn = (sums @ weights.T) / (weights @ counts)
    tail = (1 - resamples.confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=1)
    return low, high


def _student(sums: Array, counts: Array, strata: NDArray[np.integer[Any]], confidence: float) -> Interval:
    """T intervals of ratio means, as ``companion.bootstrap.ratio_means(method="t")`` computes them."""
    from scipy import stats

    total = counts.sum()
    mean = sums.sum(axis=1) / total
    parts = (sums - counts * mean[:, None]) / total
    sizes = np.bincount(strata).astype(np.float64)
    member = np.equal.outer(strata, np.arange(len(sizes))).astype(np.float64)
    centred = parts - ((parts @ member) / sizes) @ member.T
    error = np.sqrt((centred**2 * (sizes / (sizes - 1))[strata]).sum(axis=1))
    reach = stats.t.ppf((1 + confidence) / 2, len(strata) - len(sizes)) * error
    return mean - reach, mean + reach


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


def _table(rows: list[dict[str, Any]], simulations: int, replicates: int, confidence: float, seed: int) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    table.attrs["settings"] = {
        "simulations": int(simulations),
        "replicates": int(replicates),
        "confidence": float(confidence),
        "seed": int(seed),
    }
    return table
