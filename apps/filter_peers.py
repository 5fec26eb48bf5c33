"""The filters of other packages on the three models of `bench_filter`, one call a series.

    particles    `SMC` of a Feynman-Kac model written with the NumPy functions of filter_loops
    filterpy     its `systematic_resample` in the NumPy loop: it has no filter of its own
    pfilter      `ParticleFilter.update`, observation by observation
    stonesoup    `ParticlePredictor` and `ParticleUpdater` with the systematic resampler; local level and
                 bearings only, for it has no model with a state in the variance

A package that is not installed is left out. pfilter and Stone-Soup report no likelihood: they return NaN.
"""

from __future__ import annotations

import datetime
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import filter_loops as loops

PACKAGES = ("particles", "filterpy", "pfilter", "stonesoup")


def installed() -> list[str]:
    """The packages that can be imported here."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is not None]


def peer(package: str, model: str, n: int, threshold: float, y: np.ndarray) -> Callable[[], float] | None:
    """A call that filters `y` and returns the log-likelihood; None if the package cannot."""
    return _BUILD[package](model, n, threshold, y)


def _particles(model: str, n: int, threshold: float, y: np.ndarray) -> Callable[[], float]:
    import particles

    initial, move, weigh = loops.numpy_models()[model]
    rng = np.random.default_rng(11)

    class Bootstrap(particles.FeynmanKac):
        def M0(self, N):
            return initial(N, rng, np.float64)

        def M(self, t, xp):
            return move(xp, rng)

        def logG(self, t, xp, x):
            return weigh(y[t], x)

    def call() -> float:
        smc = particles.SMC(fk=Bootstrap(len(y)), N=n, resampling="systematic", ESSrmin=threshold)
        smc.run()
        return float(smc.logLt)

    return call


def _filterpy(model: str, n: int, threshold: float, y: np.ndarray) -> Callable[[], float]:
    from filterpy.monte_carlo import systematic_resample

    initial, move, weigh = loops.numpy_models()[model]
    rng = np.random.default_rng(11)

    def call() -> float:
        x, w, total = initial(n, rng, np.float64), np.full(n, 1 / n), 0.0
        for t, observation in enumerate(y):
            if t:
                if threshold >= 1 or 1 / (w @ w) < threshold * n:
                    x, w = x[systematic_resample(w)], np.full(n, 1 / n)
                x = move(x, rng)
            g = weigh(observation, x)
            top = g.max()
            w = w * np.exp(g - top)
            s = w.sum()
            total += float(top) + math.log(s)
            w /= s
        return total

    return call


def _pfilter(model: str, n: int, threshold: float, y: np.ndarray) -> Callable[[], float]:
    import pfilter

    initial, move, weigh = loops.numpy_models()[model]
    rng = np.random.default_rng(11)
    d = 4 if model == "bearings-only" else 1
    flat = (lambda x: x) if d == 4 else (lambda x: x[:, 0])

    def transition(x: np.ndarray, **kwargs: Any) -> np.ndarray:
        return move(flat(x), rng).reshape(n, d)

    def call() -> float:
        pf = pfilter.ParticleFilter(
            prior_fn=lambda n: initial(n, rng, np.float64).reshape(n, d),
            dynamics_fn=transition,
            observe_fn=lambda x, **kwargs: x,
            weight_fn=lambda x, seen, **kwargs: np.exp(weigh(seen.item(), flat(x))),
            n_particles=n,
            resample_fn=pfilter.systematic_resample,
            n_eff_threshold=threshold,
        )
        for observation in y:
            pf.update(np.array(observation))
        return math.nan

    return call


def _stonesoup(model: str, n: int, threshold: float, y: np.ndarray) -> Callable[[], float] | None:
    from stonesoup.models.measurement.linear import LinearGaussian
    from stonesoup.models.measurement.nonlinear import Cartesian2DToBearing
    from stonesoup.models.transition.linear import (
        CombinedLinearGaussianTransitionModel,
        ConstantVelocity,
        RandomWalk,
    )
    from stonesoup.predictor.particle import ParticlePredictor
    from stonesoup.resampler.particle import ESSResampler, SystematicResampler
    from stonesoup.types.array import StateVectors
    from stonesoup.types.detection import Detection
    from stonesoup.types.hypothesis import SingleHypothesis
    from stonesoup.types.state import ParticleState
    from stonesoup.updater.particle import ParticleUpdater

    if model == "local level":
        moves: Any = RandomWalk(1.0)
        sees: Any = LinearGaussian(1, (0,), np.array([[1.0]]))
        columns = [0]
    elif model == "bearings-only":
        moves = CombinedLinearGaussianTransitionModel([ConstantVelocity(0.001), ConstantVelocity(0.001)])
        sees = Cartesian2DToBearing(4, (0, 2), np.array([[0.05**2]]))
        columns = [0, 2, 1, 3]
    else:
        return None
    initial = loops.numpy_models()[model][0]
    rng, begin = np.random.default_rng(11), datetime.datetime(2020, 1, 1)
    resampler = SystematicResampler() if threshold >= 1 else ESSResampler(threshold * n)
    predictor, updater = ParticlePredictor(moves), ParticleUpdater(sees, resampler)

    def call() -> float:
        x = initial(n, rng, np.float64).reshape(n, -1)[:, columns].T
        state: Any = ParticleState(
            StateVectors(x),
            log_weight=np.full(n, -math.log(n)),
            timestamp=begin - datetime.timedelta(seconds=1),
        )
        for t, observation in enumerate(y):
            now = begin + datetime.timedelta(seconds=t)
            prediction = predictor.predict(state, timestamp=now)
            seen = Detection(np.array([[observation]]), timestamp=now, measurement_model=sees)
            state = updater.update(SingleHypothesis(prediction, seen))
        return math.nan

    return call


_BUILD: dict[str, Callable[[str, int, float, np.ndarray], Callable[[], float] | None]] = {
    "particles": _particles,
    "filterpy": _filterpy,
    "pfilter": _pfilter,
    "stonesoup": _stonesoup,
}
