"""Angles: wrapping, circular mean and variance."""

import numpy as np
import pytest

from pfkit.models.angles import circular_mean, circular_variance, wrap


def test_mean_of_headings_about_pi():
    headings = np.array([3.1, -3.1, 3.0, -3.05])
    expected = 3.1291298251347266  # the arithmetic mean, -0.0125, points backwards
    assert circular_mean(headings, np.full(4, 0.25)) == pytest.approx(expected, rel=1e-12)


def test_bearing_residual_and_density_about_pi():
    residual = wrap(3.1 - -3.1)
    assert residual == pytest.approx(-0.0831853071795863, rel=1e-12)
    sd = 0.1
    log_density = -0.5 * (residual / sd) ** 2 - np.log(sd) - 0.5 * np.log(2.0 * np.pi)
    assert log_density == pytest.approx(1.0376567932612664, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wrap_is_congruent_and_in_range(dtype):
    a = np.linspace(-50.0, 50.0, 10001, dtype=dtype)
    w = wrap(a)
    assert w.dtype == dtype
    assert np.all(np.abs(w) <= dtype(np.pi))
    turns = (a.astype(np.float64) - w) / (2.0 * np.pi)
    assert np.abs(turns - np.round(turns)).max() < 50.0 * np.finfo(dtype).eps


def test_wrap_of_integers_and_of_values_that_are_no_angle():
    assert wrap(7) == pytest.approx(7 - 2.0 * np.pi)
    assert np.isnan(wrap(np.array([np.nan, np.inf]))).all()


def test_narrow_spread_has_the_ordinary_moments_wherever_it_lies():
    rng = np.random.default_rng(5)
    spread, w = rng.normal(0.0, 0.1, 500), rng.random(500)
    linear_mean = np.average(spread, weights=w)
    linear_variance = np.average((spread - linear_mean) ** 2, weights=w)
    for centre in (0.0, 1.0, np.pi, -2.5):
        a = wrap(spread + centre)
        mean = circular_mean(a, w)
        assert abs(wrap(mean - centre - linear_mean)) < 1e-3  # cos and sin bend by the cube of the spread
        assert circular_variance(a, w) == pytest.approx(linear_variance, rel=1e-3)
        assert circular_variance(a, w, mean) == circular_variance(a, w)


def test_rows_are_reduced_one_by_one():
    a = np.array([[3.1, -3.1], [0.2, 0.4]])
    w = np.array([1.0, 1.0])
    assert circular_mean(a, w) == pytest.approx([np.pi, 0.3])
    assert circular_variance(a, w) == pytest.approx([(np.pi - 3.1) ** 2, 0.01])
