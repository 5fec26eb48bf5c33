"""Stone-Soup 1.9: `ParticleUpdater` with its resamplers. It reports no likelihood of the data."""

import datetime

import harness as H
import numpy as np
from stonesoup.resampler.particle import ESSResampler, ResidualResampler, SystematicResampler
from stonesoup.types.array import StateVectors
from stonesoup.types.detection import Detection
from stonesoup.types.hypothesis import SingleHypothesis
from stonesoup.types.prediction import ParticleStatePrediction
from stonesoup.types.state import ParticleState
from stonesoup.updater.particle import ParticleUpdater

NOW = datetime.datetime(2020, 1, 1)


class Measurement:
    """The one method of a measurement model that the updater calls."""

    def __init__(self, log_g):
        self.log_g = log_g

    def logpdf(self, detection, state, **kwargs):
        return self.log_g(float(detection.state_vector[0, 0]), np.asarray(state.state_vector[0, :]).ravel())


def run(start, observations, log_g, resampler=None):
    """Weights and particles after an update at each observation, the state standing still between them."""
    x = np.asarray(start)
    lw = np.full(len(x), -np.log(len(x)))
    for y in observations:
        prediction = ParticleStatePrediction(StateVectors(x[None, :]), log_weight=lw, timestamp=NOW)
        detection = Detection([[y]], timestamp=NOW, measurement_model=Measurement(log_g))
        updater = ParticleUpdater(None, resampler=resampler)
        posterior = updater.update(SingleHypothesis(prediction, detection))
        x, lw = np.asarray(posterior.state_vector[0, :]).ravel(), posterior.log_weight
    return {
        "weights": np.exp(lw),
        "particles": x,
        "mean": float(np.sum(np.exp(lw) * x)),
    }


def indices(resampler, weights):
    """Ancestors: the state of particle j is j."""
    weights = np.asarray(weights)
    # exact in float64 up to 2^53, so an index survives the trip
    with np.errstate(all="ignore"):
        state = ParticleState(StateVectors(np.arange(len(weights))[None, :]), log_weight=np.log(weights))
    return np.asarray(resampler.resample(state).state_vector[0, :]).ravel().astype(int)


def systematic(weights):
    return indices(SystematicResampler(), weights)


def with_u(weights, u):
    np.random.uniform = lambda low, high: low + u * (high - low)
    return systematic(weights)


def threshold_follows_n():
    resampler, out = ESSResampler(), []
    for n in (100, 1000):
        w = np.zeros(n)
        w[: 3 * n // 10] = 1.0 / (3 * n // 10)
        with np.errstate(divide="ignore"):
            state = ParticleState(StateVectors(np.zeros((1, n))), log_weight=np.log(w))
        out.append(resampler.resample(state) is not state)
    return out


def reset():
    state = ParticleState(StateVectors(np.zeros((1, 4))), log_weight=np.log([0.7, 0.1, 0.1, 0.1]))
    return np.exp(SystematicResampler().resample(state).log_weight)


def unchanged():
    lw = np.log([0.1, 0.2, 0.7])
    kept = lw.copy()
    SystematicResampler().resample(ParticleState(StateVectors(np.zeros((1, 3))), log_weight=lw))
    return bool(np.array_equal(lw, kept))


CASES = {
    "collapse": lambda: run([0.0, 1, 2, 3], [10.5], H.uniform, SystematicResampler()),
    "collapse_then_good": lambda: run([0.0, 1, 2, 3], [10.5, 1.0], H.uniform, SystematicResampler()),
    "reset_weights": reset,
    "nan_weight": lambda: run(np.arange(4.0), [1.0], H.nan_at_two),
    "outlier": lambda: run(np.linspace(-2, 2, 100), [100.0], lambda y, x: H.normal(y, x, 0.1)),
    "far_tail": lambda: run(np.zeros(3), [0.0], lambda y, x: np.array([-1000.0, -1001.0, -1002.0]))[
        "weights"
    ],
    "ess_threshold": threshold_follows_n,
    "missing": lambda: run(H.GRID, [np.nan, 0.3], lambda y, x: H.normal(y, x, 0.5)),
    "zero_noise": lambda: run(H.GRID, [0.3, 0.1, 0.2], lambda y, x: H.normal(y, x, 0.5)),
    **H.resampling_cases(systematic, lambda w: indices(ResidualResampler(), w)),
    "last_u": lambda: with_u(H.TENTHS, H.LAST_U),
    "u_zero": lambda: with_u(np.array([0.0, 0.5, 0.5, 0.0]), 0.0),
    "global_rng": lambda: H.global_state_untouched(lambda: systematic(H.TENTHS)),
    "inputs_kept": unchanged,
}

if __name__ == "__main__":
    H.main("stonesoup", CASES)
