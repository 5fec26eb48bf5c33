"""Masked observations, states that run away, log-likelihoods beyond the float: named or read, never NaN."""

import warnings

import numpy as np
import pytest

from pfkit.filters import (
    FilterBank,
    FilterCollapse,
    InvalidWeight,
    ParticleFilter,
    kalman_filter,
    kalman_smoother,
    weighted_mean,
    weighted_variance,
)
from pfkit.models import LinearGaussian, LocalLevel, ThetaLogistic, from_functions

KERNELS = ("fuse", "int", "int-pairwise", "numpy", "scipy")
every_kernel = pytest.mark.parametrize("lse", KERNELS)
every_dtype = pytest.mark.parametrize("dtype", ["float64", "float32"])


def fixed(particles, log_likelihood):
    start = np.asarray(particles)
    return from_functions(lambda n, rng: start, lambda x, t, rng: x, log_likelihood)


@pytest.mark.parametrize("kind", ["float64", "float32", "int64"])
def test_masked_observations_are_nan_observations(kind):
    """The mask hides all of y, a part of it, or nothing; the data under it is never read."""
    data = np.array([[1, 99], [99, 99], [2, 3]], kind)
    mask = np.array([[0, 1], [1, 1], [0, 0]], bool)
    plain = np.where(mask, np.nan, data)
    model = LinearGaussian(np.eye(2), np.eye(2), np.eye(2), np.eye(2), np.zeros(2), np.eye(2))
    a = ParticleFilter(model, 50, rng=0).run(np.ma.array(data, mask=mask))
    b = ParticleFilter(model, 50, rng=0).run(plain)
    np.testing.assert_array_equal(a.increment, b.increment)
    assert a.increment[1] == 0.0
    for run in (kalman_filter, kalman_smoother):
        np.testing.assert_array_equal(run(model, np.ma.array(data, mask=mask)).mean, run(model, plain).mean)
    rows = list(np.ma.array(data, mask=mask))
    assert kalman_filter(model, rows).log_likelihood == kalman_filter(model, plain).log_likelihood


def test_masked_scalars():
    y = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    level = LocalLevel(1.0, 1.0)
    exact = kalman_filter(level, [1.0, None, 3.0])
    assert kalman_filter(level, y).log_likelihood == exact.log_likelihood
    assert kalman_filter(level, list(y)).log_likelihood == exact.log_likelihood
    a, b = ParticleFilter(level, 50, rng=0).run(y), ParticleFilter(level, 50, rng=0).run([1.0, None, 3.0])
    np.testing.assert_array_equal(a.increment, b.increment)


@every_kernel
@every_dtype
def test_a_log_likelihood_beyond_the_filters_float(lse, dtype):
    """+1e39 is infinite in float32: an invalid weight, named as such, not a collapse. -1e39 is a death."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        high = ParticleFilter(
            fixed(np.zeros(3), lambda y, x, t: np.array([0.0, 1e39, 0.0])), 3, lse=lse, dtype=dtype
        )
        if dtype == "float32":
            with pytest.raises(InvalidWeight, match="particle 1"):
                high.step(0.0)
        else:
            assert high.step(0.0).increment == 1e39
        low = ParticleFilter(
            fixed(np.zeros(3), lambda y, x, t: np.array([0.0, -1e39, 0.0])), 3, lse=lse, dtype=dtype
        )
        assert low.step(0.0).increment == pytest.approx(np.log(2 / 3), abs=0.01)
        np.testing.assert_allclose(low.weights, [0.5, 0.0, 0.5], rtol=1e-6)
        gone = ParticleFilter(fixed(np.zeros(3), lambda y, x, t: np.full(3, -1e39)), 3, lse=lse, dtype=dtype)
        if dtype == "float32":
            with pytest.raises(FilterCollapse):
                gone.step(0.0)
        else:
            assert gone.step(0.0).increment == -1e39


@every_kernel
@every_dtype
@pytest.mark.parametrize("away", [np.inf, -np.inf, np.nan])
def test_a_dead_particle_far_away_leaves_the_moments_alone(away, lse, dtype):
    """A state that ran to infinity has likelihood 0; its 0 * inf must not reach the mean."""

    def alive_only(y, x, t):
        first = x[:, 0] if x.ndim == 2 else x
        return np.where(np.isfinite(first), -0.5 * first**2, -np.inf)

    for particles in ([away, 1.0, 2.0], [[away, 0.0], [1.0, 1.0], [2.0, 5.0]]):
        model = fixed(particles, alive_only)
        with np.errstate(all="ignore"):
            result = ParticleFilter(model, 3, lse=lse, dtype=dtype, ess_threshold=0).run([0.0, 0.0])
        x = np.asarray(particles)[1:].reshape(2, -1)
        w = np.exp(-(x[:, 0] ** 2))
        mean = w @ x / w.sum()
        variance = w @ (x - mean) ** 2 / w.sum()
        tolerance = 0.02 if lse == "int-pairwise" else 2e-4
        np.testing.assert_allclose(np.ravel(result.mean[-1]), mean, atol=tolerance)
        np.testing.assert_allclose(np.ravel(result.variance[-1]), variance, atol=tolerance)


def test_moments_of_living_particles_only():
    x, w = np.array([np.inf, 1.0, 3.0, -np.inf]), np.array([0.0, 1.0, 1.0, 0.0])
    assert weighted_mean(x, w) == 2.0 and weighted_variance(x, w) == 1.0
    assert np.isinf(weighted_mean(x, np.array([1.0, 1.0, 0.0, 0.0])))  # a living one counts
    assert weighted_mean(np.array([np.nan, 3.1, -3.1]), np.array([0.0, 1.0, 1.0]), (0,)) == pytest.approx(
        np.pi
    )


def test_a_population_that_runs_away():
    """exp(tau2 x) overflows: no warning, no NaN; the runaways die."""
    model = ThetaLogistic(tau2=30.0, prior_sd=40.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ParticleFilter(model, 500, rng=0).run([0.0, 0.1, 0.2])
    assert np.isfinite(result.mean).all() and np.isfinite(result.increment).all()


def test_as_many_numbers_as_particles_are_not_one_observation():
    for y in (np.zeros(10), np.zeros(2)):
        with pytest.raises(ValueError, match="one number"):
            ParticleFilter(LocalLevel(1.0, 1.0), 10, rng=0).step(y)
    one = ParticleFilter(LocalLevel(1.0, 1.0), 10, rng=0).step(np.array([0.5]))
    assert one == ParticleFilter(LocalLevel(1.0, 1.0), 10, rng=0).step(0.5)


def test_more_threads_than_anybody_has():
    """No scratch memory for threads that are never started, and the same bits."""
    y = [0.3, -0.1, 0.4]
    one = ParticleFilter(LocalLevel(1.0, 1.0), 700, rng=0).run(y)
    many = ParticleFilter(LocalLevel(1.0, 1.0), 700, rng=0, n_threads=10**12).run(y)
    np.testing.assert_array_equal(one.increment, many.increment)
    level = LocalLevel(1.0, 1.0)
    banks = [FilterBank(level, 50, n_filters=3, rng=0, n_threads=k).run(y) for k in (1, 10**12)]
    np.testing.assert_array_equal(banks[0].increment, banks[1].increment)


class Wide(LocalLevel):
    input_dim = -1


def turned(dims):
    return ParticleFilter(type("Turned", (LocalLevel,), {"angle_dims": dims})(1.0, 1.0), 10)


@pytest.mark.parametrize(
    "make, kind, words",
    [
        (lambda: ParticleFilter(LocalLevel, 10), TypeError, r"instance, LocalLevel\(\.\.\.\)"),
        (lambda: FilterBank([LocalLevel(1.0, 1.0), LocalLevel], 10), TypeError, r"instance, LocalLevel\("),
        (lambda: ParticleFilter("level", 10), TypeError, "'level' has no initial"),
        (lambda: ParticleFilter(Wide(1.0, 1.0), 10), ValueError, "input_dim must be >= 0, not -1"),
        (lambda: turned((1,)).run([0.0]), ValueError, r"angle_dims \(1,\) of a state of 1 coordinates"),
        (lambda: turned("x"), TypeError, "sequence of ints, not 'x'"),
        (lambda: turned((0.5,)), TypeError, "angle_dims must be an int >= 0, not 0.5"),
        (lambda: FilterBank(LocalLevel(1.0, 1.0), 5).run(iter("a"), each=True), TypeError, "a sequence, one"),
        (lambda: FilterBank(LocalLevel(1.0, 1.0), 5).run(None, each=True), TypeError, "known length .* None"),
        (lambda: ParticleFilter(LocalLevel(1.0, 1.0), 10, ess_threshold="0.5"), TypeError, "not '0.5'"),
        (lambda: ParticleFilter(LocalLevel(1.0, 1.0), 10).run([0.0], store=5), TypeError, "store .* not 5"),
        (lambda: ParticleFilter(LocalLevel(1.0, 1.0), 10).run([0.0], store=[None]), TypeError, "not None"),
    ],
)
def test_arguments_of_another_kind(make, kind, words):
    with pytest.raises(kind, match=words):
        make()
