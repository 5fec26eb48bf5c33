"""The oracles against published values, and against each other where two ways exist."""

import numpy as np
import pytest

from . import anchors as A
from . import oracles


def nile(m0, p0, y=A.NILE):
    return oracles.kalman(y, 1.0, A.NILE_Q, 1.0, A.NILE_R, m0, p0)


def close(value, digits):
    """Equal to the last printed digit."""
    return pytest.approx(value, abs=0.6 * 10.0**-digits)


def test_nile():
    assert A.NILE.sum() == 91935 and len(A.NILE) == 100
    exact = nile(1000.0, 1e6)
    assert exact["log_likelihood"] == close(A.NILE_EXACT, 6)
    assert exact["log_likelihood"] == close(-640.3805408207314, 11)
    assert exact["means"][-1, 0] == close(798.370293, 6) and exact["covs"][-1, 0, 0] == close(4032.157942, 6)
    np.testing.assert_allclose(exact["means"][:2, 0], [1118.2150706482817, 1139.9344701516404], rtol=1e-13)
    np.testing.assert_allclose(
        exact["smoothed_means"][[0, 28, 99], 0], [1111.219863, 950.930012, 798.370293], atol=6e-7
    )
    np.testing.assert_allclose(
        exact["smoothed_covs"][[0, 28, 99], 0, 0], [4015.964937, 2326.756917, 4032.157942], atol=6e-7
    )


def test_nile_under_other_priors_and_conventions():
    vague = nile(0.0, 1e7)
    assert vague["log_likelihood"] == close(-641.585578, 6)
    assert vague["increments"][1:].sum() == close(-632.544212, 6)
    assert nile(0.0, 1e6)["increments"][1:].sum() == close(-632.537695, 6)
    assert nile(1120.0, 1e7)["log_likelihood"] == close(-641.5238165110662, 11)
    diffuse = nile(0.0, 1e13)["increments"][1:].sum()
    assert diffuse == close(-632.545625, 6)
    assert diffuse - 0.5 * np.log(2 * np.pi) == close(-633.464564, 6)


def test_nile_with_gaps():
    exact = nile(1000.0, 1e6, A.NILE_GAPS)
    assert exact["log_likelihood"] == close(A.NILE_GAPS_EXACT, 6)
    assert exact["means"][-1, 0] == close(798.315115, 6)


def test_lg100():
    exact = oracles.kalman(A.LG100, 0.9, 1.0, 1.0, 0.04, 0.0, A.LG100_PRIOR_VAR)
    assert exact["log_likelihood"] == close(A.LG100_EXACT, 12)
    # mpmath at 40 digits: 2.11527297621195, 0.0385063342593722
    assert exact["means"][-1, 0] == close(2.115272976212, 12)
    assert exact["covs"][-1, 0, 0] == close(0.038506334259, 12)
    narrow = oracles.kalman(A.LG100, 0.9, 1.0, 1.0, 0.04, 0.0, 1.0)
    assert narrow["log_likelihood"] == close(-149.115905108763, 12)
    wide = oracles.kalman(A.LG100, 0.9, 1.0, 1.0, 1.0, 0.0, A.LG100_PRIOR_VAR)
    assert wide["log_likelihood"] == close(A.LG100_WIDE_EXACT, 10)
    assert wide["increments"][:20].sum() == close(A.LG20_WIDE_EXACT, 10)


def test_random_walk_of_two_steps():
    exact = oracles.kalman([-1.3, 0.7], 1.0, 1.0, 1.0, 1.0, 0.0, 1.0)
    np.testing.assert_allclose(exact["increments"], [-1.688012123, -1.741583899], atol=6e-10)


@pytest.mark.parametrize("n", [501, pytest.param(1001, marks=pytest.mark.slow)])
def test_stochastic_volatility(n):
    exact = oracles.stochastic_volatility_grid(A.GBPUSD, A.GBPUSD_PHI, A.GBPUSD_S, A.GBPUSD_BETA, n)
    assert len(A.GBPUSD) == 945
    assert exact["log_likelihood"] == close(A.GBPUSD_EXACT, 6)
    assert exact["log_likelihood"] == pytest.approx(-1000.9853172929643, abs=1e-10)
    np.testing.assert_allclose(
        exact["means"][[0, 99, 499, 944]], [-0.155326, -0.247199, -0.356586, 0.707066], atol=6e-5
    )
    np.testing.assert_allclose(
        exact["means"][[0, 99, 499, 944]],
        [-0.15532598585475077, -0.2471986322791362, -0.3565858224524422, 0.7070358462653111],
        atol=1e-9,
    )


@pytest.mark.parametrize("n", [401, 801])
def test_theta_logistic(n):
    exact = oracles.theta_logistic_grid(A.NUTRIA, A.NUTRIA_TAU, A.NUTRIA_SIGMA_X, A.NUTRIA_SIGMA_Y, n)
    assert exact["log_likelihood"] == close(A.NUTRIA_EXACT, 6)
    assert exact["means"][-1] == close(2.676147, 6) and exact["variances"][-1] == close(0.103186, 6)


def test_hmm():
    log_likelihood, filtered = oracles.hmm(A.HMM_Y, A.HMM_START, A.HMM_TRANSITION, A.HMM_EMISSION)
    assert log_likelihood == close(A.HMM_EXACT, 12)
    np.testing.assert_allclose(filtered[-1], [0.067464, 0.709128, 0.223407], atol=6e-7)


def test_kalman_recursion_equals_the_joint_gaussian():
    """Three states, two observations with holes: the recursion and one big Gaussian agree."""
    g = np.random.default_rng(0)
    F = np.array([[0.9, 0.1, 0.0], [0.0, 0.8, 0.2], [0.1, 0.0, 0.7]])
    Q, P0 = 0.2 * np.eye(3) + 0.1, np.diag([1.0, 2.0, 0.5])
    H, R = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), np.array([[0.3, 0.1], [0.1, 0.5]])
    y = g.normal(size=(12, 2))
    y[3] = np.nan
    y[5, 0] = np.nan
    a = oracles.kalman(y, F, Q, H, R, [1.0, 0.0, -1.0], P0)
    log_likelihood, means, cov = oracles.kalman_joint(y, F, Q, H, R, [1.0, 0.0, -1.0], P0)
    assert a["log_likelihood"] == pytest.approx(log_likelihood, rel=1e-12)
    np.testing.assert_allclose(a["smoothed_means"], means, atol=1e-11)
    for t in range(12):
        block = slice(3 * t, 3 * t + 3)
        np.testing.assert_allclose(a["smoothed_covs"][t], cov[block, block], atol=1e-11)
