"""How far off a log-likelihood estimate is likely to be: its standard error over random seeds.

The estimate Z of a likelihood is unbiased, log Z is not: it lies about half its variance low. Two ways lead
to the deviation of log Z.

Multinomial resampling: from the genealogy of the run itself. Draw by draw, particles that descend from one
ancestor vary together; Lee and Whiteley (2018) estimate the relative variance of Z without bias from the
weight that each ancestor's descendants hold at the end. With G generations, whose ancestors are those of the
first, and D_k the share of the weight that descends from ancestor k,

    V = 1 - (N / (N - 1))^G (1 - sum_k D_k^2).

On a long run all particles descend from one and V is useless. But what a generation's draws contribute is
seen within a few generations, so the contribution of generation g, V(g, h) - V(g + 1, h) with V(g, h) for
generations g .. h, is read off at h = g + lag and not at the end: the fixed lag of Olsson and Douc (2019).
The longest of ``LAGS`` is used by which all generations keep more than one ancestor and the sum is above 0.
The run is made once more for it, with its own random numbers, when ``FilterResult.log_likelihood_se`` is
first read. Generations are stretches between resamplings: within one, weights multiply up and no ancestor is
drawn. A genealogy shows no more than about 1 of relative variance a generation, so where the estimate passes
``LARGEST`` it would understate, and replicates are run instead.

Any other scheme: from replicates, filters like the one asked about with random streams of their own. This
costs ``REPLICATES`` runs and assumes nothing.

Sources: Lee and Whiteley, Variance estimation in the particle filter, Biometrika 105 (2018); Olsson and Douc,
Numerically stable online estimation of variance in particle filters, Bernoulli 25 (2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .random import PhiloxGenerator, Streams

__all__ = ["LAGS", "LARGEST", "REPLICATES", "standard_error"]

#: Filters run for one standard error. The sample deviation of 20 is itself right to 16 %.
REPLICATES = 20

#: Generations after which what one contributes may be read off. A model that remembers longer has its error
#: understated; the noise of the estimate grows with the lag.
LAGS = (5, 10, 20)

#: The largest variance that is taken from a genealogy: a deviation of 0.32 nats.
LARGEST = 0.1

_SEEDS = 6  # purpose of the stream that seeds replicates
_TOGETHER = 4_000_000  # particles that are held at once


def standard_error(pf: Any, observations: Any, inputs: Any) -> Callable[[], float] | None:
    """A call that returns the standard error of a run about to be made; None where it cannot be repeated.

    That is a run that does not start with the filter's first step, or of a series that can be read only once.
    """
    if pf._time >= 0 or not hasattr(observations, "__len__"):
        return None
    if inputs is not None and not hasattr(inputs, "__len__"):
        return None
    keywords = {
        "lse": pf.lse,
        "resampling": pf.resampling,
        "ess_threshold": pf.ess_threshold,
        "dtype": pf.dtype,
        "n_threads": pf.n_threads,
        "on_collapse": "keep",
    }
    how = _from_lineages if pf.resampling == "multinomial" else _from_replicates
    series = (_held(observations), None if inputs is None else _held(inputs))
    return partial(how, pf.model, pf.n_particles, keywords, pf._streams.key, *series)


def _held(series: Any) -> Any:
    """A copy, so that what the caller does with the series after the run does not change the answer."""
    if isinstance(series, np.ndarray):
        return series.copy()
    return [y.copy() if isinstance(y, np.ndarray) else y for y in series]


def _from_replicates(model, n, keywords, key, observations, inputs) -> float:
    from .bank import FilterBank

    rng = PhiloxGenerator(key, 0, _SEEDS)
    if len(observations) == 0:
        return 0.0
    together = max(1, min(REPLICATES, _TOGETHER // n))
    values: list[float] = []
    while len(values) < REPLICATES:
        bank = FilterBank(model, n, n_filters=min(together, REPLICATES - len(values)), rng=rng, **keywords)
        values += bank.run(observations, inputs, store=()).log_likelihood.tolist()
    return float(np.std(values, ddof=1)) if np.all(np.isfinite(values)) else math.nan


class Lineages:
    """The variance of log Z, generation by generation, at several lags.

    Parameters
    ----------
    n : int
        Particles.
    lags : sequence of int
        Generations after which a contribution is read off.
    """

    def __init__(self, n: int, lags: Sequence[int] = LAGS):
        self.n, self.lags = n, tuple(lags)
        self._totals = dict.fromkeys(self.lags, 0.0)
        # ancestors of every particle in this generation, in the one before, ...: back to the longest lag
        self._lines = [np.arange(n)]

    def resampled(self, weights: np.ndarray, ancestors: np.ndarray) -> None:
        """A generation ends with these weights, and the next one descends from these of its particles."""
        for lag in self.lags:
            if lag < len(self._lines):
                self._totals[lag] += self._variance(weights, lag) - self._variance(weights, lag - 1)
        kept = [line[ancestors] for line in self._lines[: max(self.lags)]]
        self._lines = [np.arange(self.n), *kept]

    def variances(self, weights: np.ndarray) -> dict[int, float]:
        """For each lag the variance of log Z, the last generation having these weights; it may come out below
        0. NaN where all particles of a generation descend from one within the lag.
        """
        last = len(self._lines) - 1
        return {lag: total + self._variance(weights, min(lag, last)) for lag, total in self._totals.items()}

    def deviation(self, weights: np.ndarray) -> float:
        """The standard deviation of log Z by the longest lag that gives one; NaN if none does."""
        good = {lag: v for lag, v in self.variances(weights).items() if v > 0}
        return math.sqrt(good[max(good)]) if good else math.nan

    def _variance(self, weights: np.ndarray, back: int) -> float:
        """V over the generations from `back` ago to this one."""
        shares = np.bincount(self._lines[back], weights, self.n)
        squares = float(shares @ shares) / float(shares.sum()) ** 2
        if self.n < 2 or squares > 1 - 1e-9:
            return math.nan
        return 1.0 - (self.n / (self.n - 1.0)) ** (back + 1) * (1.0 - squares)


def _from_lineages(model, n, keywords, key, observations, inputs) -> float:
    from .particle_filter import ParticleFilter

    if len(observations) == 0:
        return 0.0
    pf = ParticleFilter(model, n, rng=0, **keywords)
    pf._streams = Streams(key)
    lines = Lineages(n)
    for k in range(len(observations)):
        weights = pf._w.copy() if pf._resample_next else None
        pf.predict(None if inputs is None else inputs[k])
        if weights is not None:
            lines.resampled(weights, pf._ancestors)
        pf.update(observations[k])
        if not math.isfinite(pf.log_likelihood):
            return math.nan
    if (pf._w == pf._w[0]).all() and pf.log_likelihood == 0.0:  # nothing was observed
        return 0.0
    deviation = lines.deviation(pf._w)
    if deviation**2 > LARGEST:
        return _from_replicates(model, n, keywords, key, observations, inputs)
    return deviation
