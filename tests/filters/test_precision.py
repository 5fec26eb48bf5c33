"""The standard error of a log-likelihood."""

import math

import numpy as np
import pytest

from pfkit import LocalLevel, ParticleFilter, StochasticVolatility, from_functions
from pfkit.filters.precision import Lineages

Y = np.cumsum(np.random.default_rng(0).normal(size=40))


@pytest.mark.parametrize("options", [{}, {"lse": "int", "dtype": "float32"}])
def test_mean_error_is_the_deviation_over_runs(options):
    results = [
        ParticleFilter(LocalLevel(1.0, 1.0), 100, rng=s, **options).run(Y, store=()) for s in range(200)
    ]
    true = np.std([r.log_likelihood for r in results], ddof=1)
    assert 0.7 < np.mean([r.log_likelihood_se for r in results[:60]]) / true < 1.4


@pytest.mark.parametrize("threshold", [0.5, 1.0])
@pytest.mark.parametrize(
    "model, y, n",
    [
        (LocalLevel(1.0, 1.0), Y, 300),
        (LocalLevel(0.1, 1.0), 0.1 * Y + np.random.default_rng(4).normal(size=40), 300),
        (StochasticVolatility(-0.9, 0.9731, 0.1726), 0.7 * np.random.default_rng(5).normal(size=100), 500),
    ],
)
def test_the_genealogy_of_one_run_tells_the_deviation_over_runs(model, y, n, threshold):
    results = [
        ParticleFilter(model, n, rng=s, resampling="multinomial", ess_threshold=threshold).run(y, store=())
        for s in range(200)
    ]
    true = np.std([r.log_likelihood for r in results], ddof=1)
    assert 0.7 < np.mean([r.log_likelihood_se for r in results]) / true < 1.4


def test_one_generation_has_the_variance_of_a_mean_of_weights():
    """Without resampling Z is a mean of independent weights w: its relative variance is s^2 / (n mean^2)."""
    w = np.random.default_rng(1).random(1000) ** 3
    exact = w.var(ddof=1) / 1000 / w.mean() ** 2
    assert Lineages(1000).deviation(w / w.sum()) == pytest.approx(math.sqrt(exact), rel=1e-9)


def test_within_the_lag_the_lineages_telescope_to_the_whole_genealogy():
    rng, n = np.random.default_rng(2), 50
    lines, first = Lineages(n, (10,)), np.arange(n)
    for _ in range(6):
        w = rng.random(n)
        a = rng.choice(n, n, p=w / w.sum())
        lines.resampled(w / w.sum(), a)
        first = first[a]
    w = rng.random(n)
    shares = np.bincount(first, w / w.sum(), n)
    whole = 1 - (n / (n - 1)) ** 7 * (1 - shares @ shares)
    assert lines.variances(w)[10] == pytest.approx(whole, rel=1e-12)


def test_a_genealogy_with_one_ancestor_says_nothing():
    lines = Lineages(8, (1, 3))
    lines.resampled(np.full(8, 1 / 8), np.zeros(8, np.int64))
    assert math.isnan(lines.deviation(np.full(8, 1 / 8)))
    pf = ParticleFilter(LocalLevel(1.0, 0.01), 4, rng=3, resampling="multinomial", ess_threshold=1)
    assert math.isnan(pf.run(Y).log_likelihood_se)
    assert math.isnan(
        ParticleFilter(LocalLevel(1.0, 1.0), 1, rng=3, resampling="multinomial").run(Y).log_likelihood_se
    )


def test_a_large_error_is_not_read_off_the_genealogy():
    """Without resampling the scheme is never used: both must say the same, and what runs show."""
    model, y = LocalLevel(0.5, 0.3), Y[:12]
    given = dict(n_particles=100, ess_threshold=0)
    runs = [ParticleFilter(model, rng=s, **given).run(y, store=()) for s in range(200)]
    true = np.std([r.log_likelihood for r in runs], ddof=1)
    assert true > 2  # far beyond what one generation's shares can show
    one = [ParticleFilter(model, rng=s, resampling="multinomial", **given).run(y) for s in range(30)]
    assert 0.7 < np.mean([r.log_likelihood_se for r in one]) / true < 1.4
    assert one[0].log_likelihood_se == runs[0].log_likelihood_se


def test_it_is_reproducible_and_leaves_the_filter_alone():
    a, b = (ParticleFilter(LocalLevel(1.0, 1.0), 100, rng=3) for _ in range(2))
    first, second = a.run(Y[:20]), b.run(Y[:20])
    assert first.log_likelihood_se == second.log_likelihood_se == first.log_likelihood_se > 0
    np.testing.assert_array_equal(a.run(Y[20:]).increment, b.run(Y[20:]).increment)


@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
def test_it_is_that_of_the_series_that_was_run(resampling):
    def run(y):
        return ParticleFilter(LocalLevel(1.0, 1.0), 60, rng=3, resampling=resampling).run(y)

    want = run(Y[:15]).log_likelihood_se
    for y in (Y[:15].copy(), list(Y[:15]), [v.reshape(()).copy() for v in Y[:15]]):
        result = run(y)
        for k in range(len(y)):
            y[k] = 100.0
        assert result.log_likelihood_se == want


@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
def test_nothing_observed_has_no_error(resampling):
    pf = ParticleFilter(LocalLevel(1.0, 1.0), 60, rng=3, resampling=resampling, ess_threshold=1)
    assert pf.run([None, math.nan, None]).log_likelihood_se == 0.0


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
