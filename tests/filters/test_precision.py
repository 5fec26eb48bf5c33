"""The standard error of a log-likelihood."""

import math

import numpy as np
import pytest

from pfkit import LocalLevel, ParticleFilter, from_functions

Y = np.cumsum(np.random.default_rng(0).normal(size=40))


@pytest.mark.parametrize(
    "options", [{}, {"resampling": "multinomial", "ess_threshold": 1}, {"lse": "int", "dtype": "float32"}]
)
def test_mean_error_is_the_deviation_over_runs(options):
    results = [
        ParticleFilter(LocalLevel(1.0, 1.0), 100, rng=s, **options).run(Y, store=()) for s in range(200)
    ]
    true = np.std([r.log_likelihood for r in results], ddof=1)
    assert 0.7 < np.mean([r.log_likelihood_se for r in results[:60]]) / true < 1.4


def test_it_is_reproducible_and_leaves_the_filter_alone():
    a, b = (ParticleFilter(LocalLevel(1.0, 1.0), 100, rng=3) for _ in range(2))
    first, second = a.run(Y[:20]), b.run(Y[:20])
    assert first.log_likelihood_se == second.log_likelihood_se == first.log_likelihood_se > 0
    np.testing.assert_array_equal(a.run(Y[20:]).increment, b.run(Y[20:]).increment)


def test_where_it_cannot_be_had():
    pf = ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=3)
    assert math.isnan(pf.run(iter(Y)).log_likelihood_se)
    assert math.isnan(pf.run(Y).log_likelihood_se)
    collapsing = from_functions(
        lambda n, rng: rng.random(n),
        lambda x, t, rng: rng.random(x.size),
        lambda y, x, t: np.where(x < y, 0.0, -np.inf),
    )
    for seed in range(50):
        pf = ParticleFilter(collapsing, 1, rng=seed, on_collapse="keep")
        result = pf.run([0.9])
        if np.isfinite(result.log_likelihood):
            assert math.isnan(result.log_likelihood_se)
            break
    else:
        raise AssertionError("no run survived")
    assert ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=3).run([]).log_likelihood_se == 0.0
