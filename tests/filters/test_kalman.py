"""Kalman filter and smoother: shapes, errors, singular cases. Values are in tests/accuracy."""

import numpy as np
import pytest

from pfkit.filters.kalman import kalman_filter, kalman_smoother
from pfkit.models.linear_gaussian import LinearGaussian, LocalLevel
from pfkit.models.population import ThetaLogistic


def test_scalar_and_one_by_one_models_agree():
    y = [0.3, None, -0.2, 1.0]
    flat = LinearGaussian(0.9, 1.0, 1.0, 0.04, 0.5, 2.0)
    column = LinearGaussian([[0.9]], [[1.0]], [[1.0]], [[0.04]], [0.5], [[2.0]])
    for run in (kalman_filter, kalman_smoother):
        a, b = run(flat, y), run(column, y)
        assert a.mean.shape == (4,) and b.mean.shape == (4, 1) and b.covariance.shape == (4, 1, 1)
        assert a.log_likelihood == b.log_likelihood
        np.testing.assert_array_equal(a.mean, b.mean[:, 0])
        np.testing.assert_array_equal(a.variance, b.variance[:, 0])


def test_local_level_is_the_same_model_as_its_matrices():
    y = np.array([1.0, 2.0, np.nan, 0.5])
    level = kalman_smoother(LocalLevel(0.7, 1.3, 0.2, 3.0), y)
    matrices = kalman_smoother(LinearGaussian(1.0, 0.7**2, 1.0, 1.3**2, 0.2, 9.0), y)
    assert level.log_likelihood == pytest.approx(matrices.log_likelihood, rel=1e-14)
    np.testing.assert_allclose(level.mean, matrices.mean, rtol=1e-13)


def test_missing_observations_add_exactly_nothing():
    result = kalman_filter(LocalLevel(1.0, 1.0), [None, np.nan, [np.nan]])
    assert result.log_likelihood == 0.0 and not result.increment.any()
    np.testing.assert_allclose(result.variance, [1.0, 2.0, 3.0], rtol=1e-15)


def test_no_observations_at_all():
    result = kalman_smoother(LocalLevel(1.0, 1.0), [])
    assert result.log_likelihood == 0.0 and result.mean.shape == (0,)


def test_static_state_smooths_to_one_answer():
    """Zero process noise, and a coordinate known from the start: every prediction covariance is singular."""
    H = np.array([[1.0, 1.0, 0.0]])
    model = LinearGaussian(np.eye(3), np.zeros((3, 3)), H, [[0.5]], [0.0, 1.0, 2.0], np.diag([1.0, 2.0, 0.0]))
    y = np.array([[1.0], [2.0], [0.5]])
    smoothed, filtered = kalman_smoother(model, y), kalman_filter(model, y)
    for t in range(3):
        np.testing.assert_allclose(smoothed.mean[t], filtered.mean[-1], atol=1e-12)
        np.testing.assert_allclose(smoothed.covariance[t], filtered.covariance[-1], atol=1e-12)


def test_vague_prior_keeps_variances_positive():
    result = kalman_smoother(LocalLevel(1.0, 1.0, 0.0, 1e8), np.arange(20.0))
    assert (result.variance > 0).all() and (result.variance < 1.0).all()
    F, H = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])
    trend = LinearGaussian(F, np.eye(2), H, [[1.0]], np.zeros(2), 1e14 * np.eye(2))
    for cov in kalman_filter(trend, np.arange(20.0)[:, None]).covariance:
        np.testing.assert_array_equal(cov, cov.T)
        assert np.linalg.eigvalsh(cov)[0] > 0


def test_the_model_must_be_linear():
    with pytest.raises(TypeError, match="ThetaLogistic"):
        kalman_filter(ThetaLogistic(), [1.0])


@pytest.mark.parametrize("y, text", [([[1.0, 2.0]], "observation 0"), ([1.0, np.inf], "observation 1")])
def test_bad_observations_are_named(y, text):
    with pytest.raises(ValueError, match=text):
        kalman_filter(LocalLevel(1.0, 1.0), y)
