"""Weighted means and variances against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from pfkit.filters import weighted_mean, weighted_quantile, weighted_variance
from pfkit.filters.moments import mean_and_variance


def exact(x, w):
    x, w = [Fraction(float(v)) for v in x], [Fraction(float(v)) for v in w]
    total = sum(w)
    mean = sum(a * b for a, b in zip(x, w, strict=True)) / total
    return float(mean), float(sum(b * (a - mean) ** 2 for a, b in zip(x, w, strict=True)) / total)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 4095, 4096, 4097, 9000])
def test_against_rational_arithmetic(n, dtype):
    rng = np.random.default_rng(n)
    x = (rng.normal(size=(n, 3)) + [0, 1e3, -1e6]).astype(dtype)
    w = rng.random(n).astype(dtype)
    mean, variance = mean_and_variance(x, w)
    for k in range(3):
        m, v = exact(x[:, k], w)
        assert mean[k] == pytest.approx(m, rel=1e-13, abs=1e-13)
        # about a mean that is right to its last bits: no cancellation, even at 1e6 standard deviations
        assert variance[k] == pytest.approx(v, rel=1e-9, abs=1e-20)
    assert mean.dtype == variance.dtype == np.float64
    m, v = mean_and_variance(x[:, 0], w)
    assert (m, v) == (mean[0], variance[0]) and isinstance(m, float)


def test_weights_need_not_sum_to_one_and_layout_does_not_matter():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(500, 2)), rng.random(500)
    mean, variance = mean_and_variance(x, w)
    np.testing.assert_allclose(weighted_mean(x, 1e200 * w), mean, rtol=1e-13)
    np.testing.assert_allclose(weighted_variance(x, 1e-200 * w), variance, rtol=1e-13)
    assert np.array_equal(weighted_mean(np.asfortranarray(x), w), mean)
    assert np.array_equal(weighted_mean(np.repeat(x, 2, axis=0)[::2], w), mean)
    assert weighted_mean([1, 2, 3], [1, 1, 2]) == 2.25


def test_angles():
    x = np.array([[0.0, 3.1], [1.0, -3.1], [2.0, 3.0], [3.0, -3.05]])
    mean, variance = mean_and_variance(x, np.full(4, 0.25), (1,))
    np.testing.assert_allclose(mean, [1.5, 3.1291298251347266], rtol=1e-14)
    assert variance[1] < 0.01
    scalar, spread = mean_and_variance(x[:, 1], np.full(4, 0.25), (0,))
    assert scalar == mean[1] and spread == variance[1]


def test_bad_shapes():
    for x, w in ((np.zeros((2, 2, 2)), np.ones(2)), (np.zeros(3), np.ones(2)), (np.zeros(0), np.ones(0))):
        with pytest.raises(ValueError, match="particles"):
            weighted_mean(x, w)


@pytest.mark.parametrize(
    "summary", [weighted_mean, weighted_variance, lambda x, w: weighted_quantile(x, w, 0.5)]
)
@pytest.mark.parametrize(
    "weights, words",
    [
        ([-0.5, 1.0], r"weights\[0\] is -0.5"),
        ([1.0, np.nan], r"weights\[1\] is nan"),
        ([np.inf, 1.0], r"weights\[0\] is inf"),
        ([0.0, 0.0], "at least one weight must be > 0"),
    ],
)
def test_weights_that_are_none(summary, weights, words):
    with pytest.raises(ValueError, match=words):
        summary([1.0, 2.0], weights)
