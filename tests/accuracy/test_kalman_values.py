"""pfkit's Kalman filter and smoother against the oracles outside the package."""

import numpy as np
import pytest

from pfkit.filters.kalman import kalman_filter, kalman_smoother
from pfkit.models.linear_gaussian import LinearGaussian, LocalLevel

from . import anchors as A
from . import oracles

NILE_MODEL = LocalLevel(np.sqrt(A.NILE_Q), np.sqrt(A.NILE_R), 1000.0, 1000.0)


def test_nile():
    filtered, smoothed = kalman_filter(NILE_MODEL, A.NILE), kalman_smoother(NILE_MODEL, A.NILE)
    assert filtered.log_likelihood == pytest.approx(-640.3805408207314, rel=1e-13)
    assert filtered.log_likelihood == pytest.approx(filtered.increment.sum(), rel=1e-13)
    assert filtered.mean[-1] == pytest.approx(798.3702926083641, rel=1e-13)
    assert filtered.variance[-1] == pytest.approx(4032.157941808476, rel=1e-12)
    np.testing.assert_allclose(smoothed.mean[[0, 28, 99]], [1111.219863, 950.930012, 798.370293], atol=6e-7)
    variance = smoothed.variance[[0, 28, 99]]
    np.testing.assert_allclose(variance, [4015.964937, 2326.756917, 4032.157942], atol=6e-7)


@pytest.mark.parametrize("missing", [np.nan, None])
def test_nile_with_gaps(missing):
    y = [missing if np.isnan(v) else v for v in A.NILE_GAPS]
    result = kalman_filter(NILE_MODEL, y)
    assert result.log_likelihood == pytest.approx(-388.4219399199177, rel=1e-13)
    assert result.mean[-1] == pytest.approx(798.315115, abs=6e-7)


def test_lg100():
    model = LinearGaussian(0.9, 1.0, 1.0, 0.04, 0.0, A.LG100_PRIOR_VAR)
    result = kalman_filter(model, A.LG100)
    assert result.log_likelihood == pytest.approx(A.LG100_EXACT, abs=6e-13 + 1e-13 * 149)
    wide = kalman_filter(LinearGaussian(0.9, 1.0, 1.0, 1.0, 0.0, A.LG100_PRIOR_VAR), A.LG100)
    assert wide.increment[:20].sum() == pytest.approx(A.LG20_WIDE_EXACT, abs=6e-11)


@pytest.mark.parametrize("d, p", [(1, 1), (2, 1), (4, 2), (4, 4), (7, 3)])
def test_random_models_with_holes(d, p):
    g = np.random.default_rng(100 * d + p)

    def spd(k):
        a = g.normal(size=(k, k + 2))
        return a @ a.T / k

    F, H = g.normal(size=(d, d)) * 0.6 / np.sqrt(d), g.normal(size=(p, d))
    Q, R = spd(d), spd(p) + 0.1 * np.eye(p)
    m0, p0, y = g.normal(size=d), spd(d), g.normal(size=(25, p))
    y[g.random(y.shape) < 0.2] = np.nan
    y[7] = np.nan
    model = LinearGaussian(F, Q, H, R, m0, p0)
    expected = oracles.kalman(y, F, Q, H, R, m0, p0)
    filtered, smoothed = kalman_filter(model, y), kalman_smoother(model, y)
    assert filtered.log_likelihood == pytest.approx(expected["log_likelihood"], rel=1e-12)
    np.testing.assert_allclose(filtered.increment, expected["increments"], atol=1e-11)
    assert filtered.increment[7] == 0.0
    np.testing.assert_allclose(filtered.mean, expected["means"], atol=1e-11)
    np.testing.assert_allclose(filtered.covariance, expected["covs"], atol=1e-11)
    np.testing.assert_allclose(smoothed.mean, expected["smoothed_means"], atol=1e-10)
    np.testing.assert_allclose(smoothed.covariance, expected["smoothed_covs"], atol=1e-10)
    variance = np.array([np.diag(c) for c in expected["covs"]])
    np.testing.assert_allclose(filtered.variance, variance, atol=1e-11)
