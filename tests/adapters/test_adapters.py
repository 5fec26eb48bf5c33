"""Models and resamplers of others on pfkit: themselves where they are installed, stand-ins elsewhere."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
from scipy import stats

from pfkit import ParticleFilter, StochasticVolatility
from pfkit.adapters import from_particles, resample_indices, stonesoup_resampler
from pfkit.lse import override_scipy


class Law:
    """A distribution in the form of `particles`: frozen SciPy law, global random state."""

    def __init__(self, law):
        self.law = law

    def rvs(self, size):
        return self.law.rvs(size=size)

    def logpdf(self, x):
        return self.law.logpdf(x)


class Volatility:
    """Stochastic volatility in the form of a `particles` model."""

    def PX0(self):  # noqa: N802
        return Law(stats.norm(0.0, 0.3 / math.sqrt(1 - 0.81)))

    def PX(self, t, xp):  # noqa: N802
        return Law(stats.norm(0.9 * xp, 0.3))

    def PY(self, t, xp, x):  # noqa: N802
        return Law(stats.norm(0.0, np.exp(0.5 * x)))


Y = np.random.default_rng(3).normal(size=30)


def test_a_model_in_the_form_of_particles_has_the_right_likelihood():
    ours = [
        ParticleFilter(from_particles(Volatility()), 1000, rng=s).run(Y).log_likelihood for s in range(20)
    ]
    ready = [
        ParticleFilter(StochasticVolatility(0.0, 0.9, 0.3), 1000, rng=s).run(Y).log_likelihood
        for s in range(20)
    ]
    se = math.hypot(np.std(ours, ddof=1), np.std(ready, ddof=1)) / math.sqrt(20)
    assert abs(np.mean(ours) - np.mean(ready)) < 4.5 * se


def test_draws_follow_the_seed_and_leave_the_global_state():
    before = np.random.get_state()[1].copy(), np.random.get_state()[2]
    runs = [ParticleFilter(from_particles(Volatility()), 100, rng=s).run(Y).log_likelihood for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])
    assert np.random.get_state()[2] == before[1]


def test_against_particles_itself():
    pytest.importorskip("joblib")
    particles = pytest.importorskip("particles")
    from particles import state_space_models

    model = state_space_models.StochVol(mu=-1.0, rho=0.9, sigma=0.3)
    theirs = []
    for seed in range(15):
        np.random.seed(seed)
        smc = particles.SMC(fk=state_space_models.Bootstrap(ssm=model, data=Y), N=1000)
        smc.run()
        theirs.append(smc.logLt)
    ours = [ParticleFilter(from_particles(model), 1000, rng=s).run(Y).log_likelihood for s in range(15)]
    se = math.hypot(np.std(ours, ddof=1), np.std(theirs, ddof=1)) / math.sqrt(15)
    assert abs(np.mean(ours) - np.mean(theirs)) < 4.5 * se


def test_not_a_model():
    with pytest.raises(TypeError, match="PX0"):
        from_particles(SimpleNamespace(PX=len, PY=len))


def test_indices_in_the_form_of_filterpy():
    w = np.array([0.1, 0.2, 0.0, 0.7])
    counts = np.mean([np.bincount(resample_indices(w, rng=s), minlength=4) for s in range(2000)], axis=0)
    np.testing.assert_allclose(counts, 4 * w, atol=0.06)
    with pytest.raises(ValueError):
        resample_indices([0.5, -0.1])


def test_stonesoup():
    pytest.importorskip("stonesoup")
    from stonesoup.types.array import StateVectors
    from stonesoup.types.state import ParticleState

    vectors = StateVectors(np.tile(np.arange(4.0), (2, 1)))
    state = ParticleState(vectors, weight=np.array([0.1, 0.2, 0.0, 0.7]))
    chosen = stonesoup_resampler("systematic", rng=1).resample(state)
    assert len(chosen) == 4 and 2.0 not in np.asarray(chosen.state_vector)
    assert set(np.asarray(chosen.state_vector, float).ravel().tolist()) <= {0.0, 1.0, 3.0}
    np.testing.assert_allclose(np.exp(chosen.log_weight), 0.25)
    assert len(stonesoup_resampler("multinomial", rng=1).resample(state, 9)) == 9


def test_stonesoup_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "stonesoup.resampler.base", None)
    with pytest.raises(ImportError, match="pip install stonesoup"):
        stonesoup_resampler()
    with pytest.raises(ValueError, match="scheme"):
        stonesoup_resampler("best")


def test_override_scipy():
    original = scipy.special.logsumexp
    a = np.random.default_rng(0).normal(size=1000) * 3
    with override_scipy("int"):
        assert scipy.special.logsumexp is not original
        changed = scipy.special.logsumexp(a)
        with override_scipy():
            assert scipy.special.logsumexp(a, keepdims=True).shape == (1,)
        assert scipy.special.logsumexp(a) == changed
    assert scipy.special.logsumexp is original
    assert 0 < abs(changed - original(a)) < 2.1e-5
    with pytest.raises(ZeroDivisionError), override_scipy():
        raise ZeroDivisionError
    assert scipy.special.logsumexp is original
    for bad in ("scipy", "nothing"):
        with pytest.raises(ValueError, match="lse must be"), override_scipy(bad):
            pass
