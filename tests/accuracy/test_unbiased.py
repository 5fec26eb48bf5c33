"""The likelihood estimate is unbiased: E exp(log L) = L for every scheme, threshold and kernel.

LG100[:20] with sigma_y = 1, N = 100. Forgetting the carried weights gives a mean ratio of 0.063 here, a
residual scheme that draws from w - floor(N w) instead of N w - floor(N w) gives 1.87.
"""

import numpy as np
import pytest

from pfkit.filters import ParticleFilter
from pfkit.models import LinearGaussian

from . import anchors as A

MODEL = LinearGaussian(0.9, 1.0, 1.0, 1.0, 0.0, A.LG100_PRIOR_VAR)
Y = A.LG100[:20]
SCHEMES = ("systematic", "stratified", "multinomial", "residual")


def ratios(seeds, **keywords):
    """exp(log L - exact), one a seed."""
    return np.exp(
        [
            ParticleFilter(MODEL, 100, rng=seed, **keywords).run(Y, store=()).log_likelihood
            - A.LG20_WIDE_EXACT
            for seed in seeds
        ]
    )


def check(values):
    standard_error = values.std(ddof=1) / np.sqrt(len(values))
    assert standard_error < 0.07
    assert abs(values.mean() - 1.0) < 4.5 * standard_error, (values.mean(), standard_error)


@pytest.mark.parametrize("lse", ["fuse", "int"])
@pytest.mark.parametrize("threshold", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_mean_ratio_is_one(scheme, threshold, lse):
    check(ratios(range(120), resampling=scheme, ess_threshold=threshold, lse=lse))


@pytest.mark.slow
@pytest.mark.parametrize("lse", ["fuse", "int"])
@pytest.mark.parametrize("threshold", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_mean_ratio_is_one_with_1500_runs(scheme, threshold, lse):
    values = ratios(range(1500), resampling=scheme, ess_threshold=threshold, lse=lse)
    print(f"\n{scheme} {threshold} {lse}: {values.mean():.4f} +- {values.std() / np.sqrt(1500):.4f}")
    check(values)


def test_float32_and_other_kernels_are_unbiased_too():
    for keywords in (dict(dtype="float32"), dict(lse="int-pairwise"), dict(dtype="float32", lse="int")):
        check(ratios(range(120), **keywords))


def test_the_check_sees_the_classical_fault():
    """Adding up the fresh weights alone, as if the last step had resampled, fails by far."""

    def naive(seed):
        pf = ParticleFilter(MODEL, 100, rng=seed, ess_threshold=0.5)
        total = 0.0
        for t, y in enumerate(Y):
            pf.predict()
            total += np.log(np.mean(np.exp(MODEL.log_likelihood(y, pf.particles, t))))
            pf.update(y)
        return np.exp(total - A.LG20_WIDE_EXACT)

    values = np.array([naive(seed) for seed in range(100)])
    assert abs(values.mean() - 1.0) > 10 * values.std(ddof=1) / 10


def test_int_and_fuse_agree_on_average():
    """Where the two paths part the differences average out; where they do not, the stated bound holds."""
    difference = np.log(ratios(range(100), lse="int")) - np.log(ratios(range(100), lse="fuse"))
    two_per_step = 2 * len(Y) * 2.1e-5
    assert abs(difference.mean()) <= 3 * difference.std(ddof=1) / 10 + two_per_step
    together = np.abs(difference) < 1e-2
    assert together.any() and np.abs(difference[together]).max() <= two_per_step
