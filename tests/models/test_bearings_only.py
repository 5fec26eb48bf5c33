"""BearingsOnly: wrapped residuals, the noise covariance, moving sensors, bad arguments."""

import numpy as np
import pytest
from scipy import stats

from pfkit.models.tracking import BearingsOnly

PRIOR = dict(prior_mean=[-10.0, 0.0, 1.0, 0.5], prior_cov=np.diag([4.0, 4.0, 0.1, 0.1]))


def model(sensor=(0.0, 0.0), psd=0.01, sd=0.1, dt=1.0):
    return BearingsOnly(sensor, acceleration_psd=psd, bearing_sd=sd, dt=dt, **PRIOR)


def rng():
    return np.random.default_rng(8)


def test_residual_wraps_at_the_cut():
    behind = np.array([[np.cos(-3.1), np.sin(-3.1), 0.0, 0.0]])
    got = model().log_likelihood(3.1, behind, 0)
    assert got[0] == pytest.approx(1.0376567932612664, rel=1e-12)


def test_any_number_of_turns_is_the_same_bearing():
    x = model().initial(100, rng())
    one = model().log_likelihood(1.0, x, 0)
    for turns in (-2, 1, 3):
        np.testing.assert_allclose(model().log_likelihood(1.0 + 2 * np.pi * turns, x, 0), one, atol=1e-11)


def test_transition_noise_is_the_integral_of_white_acceleration():
    dt, psd, pieces, n = 0.7, 0.3, 200, 40_000
    noise = model(psd=psd, dt=dt).transition(np.zeros((n, 4)), 1, rng())
    # the same by brute force: velocity is Brownian motion, position its integral
    small = dt / pieces
    kicks = np.random.default_rng(9).normal(0, np.sqrt(psd * small), (pieces, n))
    velocity = np.cumsum(kicks, axis=0)
    position = (velocity * small).sum(axis=0)
    brute = np.cov(position, velocity[-1])
    got = np.cov(noise[:, 0], noise[:, 2])
    np.testing.assert_allclose(got, brute, rtol=0.05)
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 5 / np.sqrt(n)


def test_log_transition_is_that_of_scipy():
    m = model(psd=0.3, dt=0.7)
    x_prev, x = m.initial(10, rng()), m.initial(10, np.random.default_rng(1))
    cov = 0.3 * np.kron([[0.7**3 / 3, 0.7**2 / 2], [0.7**2 / 2, 0.7]], np.eye(2))
    for i in range(10):
        mean = np.array([*(x_prev[i, :2] + 0.7 * x_prev[i, 2:]), *x_prev[i, 2:]])
        expected = stats.multivariate_normal(mean, cov).logpdf(x[i])
        assert m.log_transition(x, x_prev, 1)[i] == pytest.approx(expected, rel=1e-10)


def test_without_noise_targets_move_in_straight_lines():
    m = model(psd=0.0, dt=2.0)
    x = m.initial(10, rng())
    moved = m.transition(x, 1, rng())
    np.testing.assert_allclose(moved[:, :2], x[:, :2] + 2 * x[:, 2:], rtol=1e-15)
    np.testing.assert_array_equal(moved[:, 2:], x[:, 2:])
    with pytest.raises(ValueError, match="acceleration_psd"):
        m.log_transition(moved, x, 1)


def test_a_moving_sensor_is_read_at_its_step():
    path = np.array([[0.0, 0.0], [5.0, 1.0]])
    x = np.array([[6.0, 2.0, 0.0, 0.0]])
    moving = model(sensor=path)
    at_one = moving.log_likelihood(np.pi / 4, x, 1)
    np.testing.assert_allclose(at_one, stats.norm.logpdf(0, 0, 0.1), rtol=1e-12)
    assert moving.log_likelihood(np.pi / 4, x, 0) < at_one
    with pytest.raises(ValueError, match="step 2"):
        moving.log_likelihood(0.0, x, 2)


@pytest.mark.parametrize(
    "change, name",
    [
        (dict(bearing_sd=0.0), "bearing_sd"),
        (dict(acceleration_psd=-1.0), "acceleration_psd"),
        (dict(dt=0.0), "dt"),
        (dict(prior_mean=[0.0, 0.0]), "prior_mean"),
        (dict(prior_cov=np.eye(3)), "prior_cov"),
        (dict(sensor=[0.0, 0.0, 0.0]), "sensor"),
    ],
)
def test_bad_parameters_are_named(change, name):
    good = dict(sensor=(0.0, 0.0), acceleration_psd=0.1, bearing_sd=0.1, **PRIOR)
    with pytest.raises(ValueError, match=name):
        BearingsOnly(**{**good, **change})
