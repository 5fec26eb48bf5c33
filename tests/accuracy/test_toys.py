"""Small problems whose answers are known by hand: random walk, oscillator, genealogy, scaling with N."""

import numpy as np
import pytest

from pfkit.filters import ParticleFilter
from pfkit.models import LinearGaussian, from_functions

from . import anchors as A
from . import oracles
from .exact_models import exact

KERNELS = ["fuse", "int"]


def flat(y, x, t):
    return np.zeros(len(x))


@pytest.mark.parametrize("lse", KERNELS)
def test_random_walk_under_a_flat_likelihood(lse):
    """Eight Bernoulli(3/4) steps: mean 6, variance 1.5."""
    n = 100_000
    walk = from_functions(lambda n, rng: np.zeros(n), lambda x, t, rng: x + (rng.random(len(x)) < 0.75), flat)
    pf = ParticleFilter(walk, n, rng=0, lse=lse)
    result = pf.run(np.zeros(9))
    assert result.log_likelihood == pytest.approx(0.0, abs=9 * 2.1e-5 if lse == "int" else 1e-11)
    assert not result.resampled.any()
    assert abs(result.mean[-1] - 6.0) < 4.5 * np.sqrt(1.5 / n)
    assert abs(result.variance[-1] - 1.5) < 4.5 * 1.5 * np.sqrt(2 / n)
    np.testing.assert_allclose(result.mean, 0.75 * np.arange(9), atol=0.02)


@pytest.mark.parametrize("lse", KERNELS)
def test_oscillator_with_a_hundred_transitions_between_observations(lse):
    """x'' = -x in steps of 0.01, seen every 100 steps: the mean follows cos(t)."""
    dt = 0.01
    c, s = np.cos(dt), np.sin(dt)
    model = from_functions(
        lambda n, rng: np.stack([1 + 0.1 * rng.normal(size=n), 0.1 * rng.normal(size=n)], axis=1),
        lambda x, t, rng: (
            np.stack([c * x[:, 0] + s * x[:, 1], c * x[:, 1] - s * x[:, 0]], axis=1)
            + 1e-4 * rng.normal(size=x.shape)
        ),
        lambda y, x, t: -0.5 * ((y - x[:, 0]) / 0.05) ** 2,
    )
    online = ParticleFilter(model, 1000, rng=3, lse=lse)
    online.predict()
    online.update(1.0)
    errors = []
    for second in range(1, 11):
        for _ in range(100):
            online.predict()
        online.update(np.cos(second))
        errors.append(online.mean[0] - np.cos(second))
    assert np.abs(errors).max() < 0.04
    # the same as one run with the observations in between missing, to the bit
    y = [np.cos(k // 100) if k % 100 == 0 else None for k in range(1001)]
    run = ParticleFilter(model, 1000, rng=3, lse=lse).run(y)
    assert run.log_likelihood == online.log_likelihood
    np.testing.assert_array_equal(run.mean[-1], online.mean)


def test_genealogy():
    """Particles 123, 456, 789 with parents (0 2 1) and (0 2 2): the paths end in 7, 8, 9."""
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    parents = iter([np.array([0, 2, 1]), np.array([0, 2, 2])])
    model = from_functions(lambda n, rng: values[0], lambda x, t, rng: values[t], flat)
    pf = ParticleFilter(model, 3, resampling=lambda w, n, rng: next(parents), ess_threshold=1.0, rng=0)
    result = pf.run(np.zeros(3), store=("particles", "ancestors"))
    np.testing.assert_array_equal(result.particles, values)
    np.testing.assert_array_equal(result.ancestors, [[0, 1, 2], [0, 2, 1], [0, 2, 2]])
    np.testing.assert_array_equal(result.n_unique, [3, 3, 2])
    paths, at = [], np.arange(3)
    for t in (2, 1, 0):
        paths.append(result.particles[t][at])
        at = result.ancestors[t][at]
    np.testing.assert_array_equal(paths[::-1], [[1, 2, 2], [4, 6, 6], [7, 8, 9]])


def test_two_steps_of_a_random_walk():
    exact_walk = oracles.kalman([-1.3, 0.7], 1.0, 1.0, 1.0, 1.0, 0.0, 1.0)
    model = LinearGaussian(1.0, 1.0, 1.0, 1.0, 0.0, 1.0)
    increments = np.array(
        [ParticleFilter(model, 20_000, rng=s).run([-1.3, 0.7]).increment for s in range(20)]
    )
    standard_error = increments.std(axis=0, ddof=1) / np.sqrt(20)
    assert (np.abs(increments.mean(axis=0) - exact_walk["increments"]) < 4.5 * standard_error).all()


@pytest.mark.parametrize("lse", KERNELS)
def test_error_falls_as_one_over_root_n(lse):
    """RMSE of the filtered mean times sqrt(N) is bounded over a ladder of N."""
    case = exact("lg100")
    model, y, means = LinearGaussian(0.9, 1.0, 1.0, 1.0, 0.0, A.LG100_PRIOR_VAR), case.y[:20], None
    means = oracles.kalman(y, 0.9, 1.0, 1.0, 1.0, 0.0, A.LG100_PRIOR_VAR)["means"][:, 0]
    scaled = []
    for n in (64, 256, 1024, 4096, 16384):
        squares = [
            (ParticleFilter(model, n, rng=seed, lse=lse).run(y, store="mean").mean - means) ** 2
            for seed in range(12)
        ]
        scaled.append(np.sqrt(n * np.mean(squares)))
    # the asymptotic value is about 1 here; a bias of order 1 would make the last one 100
    assert max(scaled) < 2.0 and min(scaled) > 0.4, scaled
