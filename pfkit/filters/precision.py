"""How far off a log-likelihood estimate is likely to be: its standard error over random seeds.

The estimate Z of a likelihood is unbiased, log Z is not: it lies about half its variance low. The deviation
of log Z is read off replicates, filters like the one asked about with random streams of their own. This costs
``REPLICATES`` runs, made when ``FilterResult.log_likelihood_se`` is first read, and assumes nothing about the
resampling scheme; estimates from the genealogy of a single run (Lee and Whiteley 2018, Olsson and Douc 2019)
hold for multinomial resampling only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .random import PhiloxGenerator

__all__ = ["REPLICATES", "replicates"]

#: Filters run for one standard error. The sample deviation of 20 is itself right to 16 %.
REPLICATES = 20

_SEEDS = 6  # purpose of the stream that seeds replicates
_TOGETHER = 4_000_000  # particles that are held at once


def replicates(pf: Any, observations: Any, inputs: Any) -> Callable[[], float] | None:
    """A call that runs the replicates and returns the standard error; None where the run cannot be repeated.

    That is a run that did not start with the filter's first step, or of a series that can be read only once.
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
    rng = PhiloxGenerator(pf._streams.key, 0, _SEEDS)
    return partial(_standard_error, pf.model, pf.n_particles, keywords, rng, observations, inputs)


def _standard_error(model, n, keywords, rng, observations, inputs) -> float:
    from .bank import FilterBank

    if len(observations) == 0:
        return 0.0
    together = max(1, min(REPLICATES, _TOGETHER // n))
    values: list[float] = []
    while len(values) < REPLICATES:
        bank = FilterBank(model, n, n_filters=min(together, REPLICATES - len(values)), rng=rng, **keywords)
        values += bank.run(observations, inputs, store=()).log_likelihood.tolist()
    return float(np.std(values, ddof=1)) if np.all(np.isfinite(values)) else math.nan
