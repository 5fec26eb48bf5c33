"""Bootstrap filters against exact likelihoods and filtered moments, both kernels of the weighting.

The rule, fixed beforehand: R = 50 runs with seeds 0..49, N such that sd(log L) < 0.5, every estimate within
4.5 standard errors. The slow test repeats it with 200 other seeds.
"""

import numpy as np
import pytest

from . import anchors as A
from .estimates import log_mean_exp, pooled_moments
from .exact_models import BUILDERS, exact, runs

SEEDS = range(50)
KERNELS = ("fuse", "int")
LIMIT = 4.5


@pytest.fixture(params=[(name, lse) for name in BUILDERS for lse in KERNELS], ids="-".join, scope="module")
def case(request):
    name, lse = request.param
    return exact(name), runs(name, lse, SEEDS)


def check_log_likelihood(model, increments):
    total = increments.sum(axis=1)
    assert total.std(ddof=1) < 0.5, "N is too small for the delta method"
    estimate = log_mean_exp(total)
    assert abs(estimate.z(model.log_likelihood)) < LIMIT, (estimate, model.log_likelihood)


def check_moments(model, increments, means, variances):
    steps = len(model.y)
    for t in sorted({0, 1, steps // 3, steps // 2, steps - 1}):
        so_far = increments[:, : t + 1].sum(axis=1)
        mean, variance = pooled_moments(so_far, means[:, t], variances[:, t])
        assert (np.abs(mean.z(model.means[t])) < LIMIT).all(), (t, mean, model.means[t])
        assert (np.abs(variance.z(model.variances[t])) < LIMIT).all(), (t, variance, model.variances[t])


def test_log_likelihood(case):
    model, (increments, _, _) = case
    check_log_likelihood(model, increments)


def test_filtered_moments(case):
    model, (increments, means, variances) = case
    check_moments(model, increments, means, variances)


@pytest.mark.parametrize(
    "name", ["nile", "lg4", "theta-logistic", pytest.param("volatility", marks=pytest.mark.slow)]
)
def test_the_python_form_of_the_models(name):
    """Models that also come compiled, run without."""
    increments, means, variances = runs(name, "int", SEEDS, compiled=False)
    check_log_likelihood(exact(name), increments)
    check_moments(exact(name), increments, means, variances)


@pytest.mark.slow
@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize("name", BUILDERS)
def test_again_with_200_other_seeds(name, lse):
    increments, means, variances = runs(name, lse, range(1000, 1200))
    check_log_likelihood(exact(name), increments)
    check_moments(exact(name), increments, means, variances)


def test_the_oracles_used_here_have_the_published_values():
    for name, value in (
        ("nile", A.NILE_EXACT),
        ("nile-gaps", A.NILE_GAPS_EXACT),
        ("lg100", A.LG100_EXACT),
        ("volatility", A.GBPUSD_EXACT),
        ("theta-logistic", A.NUTRIA_EXACT),
        ("hmm", A.HMM_EXACT),
    ):
        assert exact(name).log_likelihood == pytest.approx(value, abs=6e-7)
