"""StochasticVolatility, ThetaLogistic: densities against SciPy, both shapes, bad parameters."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from pfkit.models.population import ThetaLogistic
from pfkit.models.volatility import StochasticVolatility

SV = dict(mu=-0.9, rho=0.97, sigma=0.17)
THETA = dict(tau0=0.15, tau1=0.12, tau2=0.1, sigma_x=0.47, sigma_y=0.39)
BOTH = [pytest.param(StochasticVolatility, SV, id="sv"), pytest.param(ThetaLogistic, THETA, id="theta")]


def rng():
    return np.random.default_rng(5)


def observation_logpdf(model, y, x):
    if isinstance(model, StochasticVolatility):
        return stats.norm.logpdf(y, 0, np.exp(x / 2))
    return stats.norm.logpdf(y, x, model.sigma_y)


def transition_law(model, x_prev):
    if isinstance(model, StochasticVolatility):
        return stats.norm(model.mu + model.rho * (x_prev - model.mu), model.sigma)
    return stats.norm(x_prev + model.tau0 - model.tau1 * np.exp(model.tau2 * x_prev), model.sigma_x)


@pytest.mark.parametrize("cls, parameters", BOTH)
def test_n_and_n_by_1_give_the_same_numbers(cls, parameters):
    flat, column = cls(**parameters), cls(**parameters, state_dim=1)
    x, xc = flat.initial(50, rng()), column.initial(50, rng())
    assert x.shape == (50,) and xc.shape == (50, 1)
    np.testing.assert_array_equal(x, xc[:, 0])
    x1, x1c = flat.transition(x, 1, rng()), column.transition(xc, 1, rng())
    np.testing.assert_array_equal(x1, x1c[:, 0])
    np.testing.assert_array_equal(flat.log_likelihood(0.7, x1, 1), column.log_likelihood(0.7, x1c, 1))
    np.testing.assert_array_equal(flat.log_transition(x1, x, 1), column.log_transition(x1c, xc, 1))
    np.testing.assert_array_equal(flat.log_predictive(0.7, x, 1), column.log_predictive(0.7, xc, 1))
    p, r = flat.proposal(0.7, x, 1, rng())
    pc, rc = column.proposal(0.7, xc, 1, rng())
    assert pc.shape == (50, 1) and rc.shape == (50,)
    np.testing.assert_array_equal(p, pc[:, 0])
    np.testing.assert_array_equal(r, rc)


@pytest.mark.parametrize("cls, parameters", BOTH)
def test_densities_are_those_of_scipy(cls, parameters):
    model = cls(**parameters)
    x_prev, x = np.linspace(-3, 3, 13), np.linspace(2, -2, 13)
    np.testing.assert_allclose(model.log_likelihood(0.7, x, 0), observation_logpdf(model, 0.7, x), rtol=1e-13)
    expected = transition_law(model, x_prev).logpdf(x)
    np.testing.assert_allclose(model.log_transition(x, x_prev, 1), expected, rtol=1e-12)


@pytest.mark.parametrize("cls, parameters", BOTH)
def test_log_transition_broadcasts_over_all_pairs(cls, parameters):
    flat, column = cls(**parameters), cls(**parameters, state_dim=1)
    x, x_prev = np.linspace(-1, 1, 4), np.linspace(-2, 2, 5)
    pairs = flat.log_transition(x[:, None], x_prev[None, :], 1)
    assert pairs.shape == (4, 5)
    np.testing.assert_array_equal(pairs, column.log_transition(x[:, None, None], x_prev[None, :, None], 1))


@pytest.mark.parametrize("cls, parameters", BOTH)
def test_draws_have_the_moments_of_the_law(cls, parameters):
    model, n = cls(**parameters), 200_000
    law = transition_law(model, 1.0)
    draws = model.transition(np.full(n, 1.0), 1, rng())
    assert abs(draws.mean() - law.mean()) < 5 * law.std() / np.sqrt(n)
    assert abs(draws.var() / law.var() - 1) < 5 * np.sqrt(2 / n)


@pytest.mark.parametrize("cls, parameters", BOTH)
@pytest.mark.parametrize("y", [0.0, 0.7, -2.5])
def test_proposal_weights_average_to_the_predictive_density(cls, parameters, y):
    """E_q[g f / q] = p(y | x_prev), whatever the proposal."""
    model, n, x_prev = cls(**parameters), 100_000, -0.4
    law = transition_law(model, x_prev)
    exact, _ = quad(
        lambda x: np.exp(observation_logpdf(model, y, x)) * law.pdf(x),
        law.mean() - 9 * law.std(),
        law.mean() + 9 * law.std(),
        epsabs=1e-13,
    )
    x, log_ratio = model.proposal(y, np.full(n, x_prev), 1, rng())
    w = np.exp(model.log_likelihood(y, x, 1) + log_ratio)
    standard_error = w.std() / np.sqrt(n)
    assert abs(w.mean() - exact) < 4.5 * standard_error + 1e-11
    # and the proposal is worth having: the bootstrap weights spread more
    plain = np.exp(model.log_likelihood(y, model.transition(np.full(n, x_prev), 1, rng()), 1))
    assert w.std() < plain.std()


def test_theta_logistic_predictive_is_exact():
    model, x_prev, y = ThetaLogistic(**THETA), np.array([-1.0, 0.5, 2.0]), 1.3
    for xp, got in zip(x_prev, model.log_predictive(y, x_prev, 1), strict=True):
        law = transition_law(model, xp)
        exact, _ = quad(lambda x, law=law: stats.norm.pdf(y, x, 0.39) * law.pdf(x), -8, 8, epsabs=1e-13)
        assert got == pytest.approx(np.log(exact), rel=1e-9)


def test_volatility_proposal_weights_are_bounded_by_the_tangent():
    model = StochasticVolatility(**SV)
    x_prev = np.full(20_000, -0.4)
    for y in (0.0, 0.3, 4.0):
        x, log_ratio = model.proposal(y, x_prev, 1, rng())
        assert (model.log_likelihood(y, x, 1) + log_ratio <= model.log_predictive(y, x_prev, 1) + 1e-12).all()


def test_volatility_start_is_stationary():
    model, n = StochasticVolatility(**SV), 400_000
    x0 = model.initial(n, rng())
    x1 = model.transition(x0, 1, np.random.default_rng(6))
    sd = 0.17 / np.sqrt(1 - 0.97**2)
    for x in (x0, x1):
        assert abs(x.mean() + 0.9) < 5 * sd / np.sqrt(n)
        assert abs(x.std() / sd - 1) < 5 / np.sqrt(2 * n)


def test_volatility_never_gives_nan_or_plus_inf():
    model = StochasticVolatility(**SV)
    x = np.array([-1e308, -2000.0, -745.0, 0.0, 745.0, 2000.0, 1e308])
    for y in (0.0, 1e-300, 1.0, 1e200):
        g = model.log_likelihood(y, x, 0)
        assert not np.isnan(g).any()
        assert not (g[1:] == np.inf).any()


def test_theta_logistic_without_process_noise_is_deterministic():
    model = ThetaLogistic(**{**THETA, "sigma_x": 0.0})
    x = np.array([0.0, 1.0])
    moved = model.transition(x, 1, rng())
    np.testing.assert_allclose(moved, x + 0.15 - 0.12 * np.exp(0.1 * x), rtol=1e-15)
    guided, log_ratio = model.proposal(2.0, x, 1, rng())
    np.testing.assert_array_equal(guided, moved)
    np.testing.assert_allclose(log_ratio, 0.0, atol=1e-14)
    with pytest.raises(ValueError, match="sigma_x"):
        model.log_transition(x, x, 1)


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: StochasticVolatility(0.0, 1.0, 0.1), "rho"),
        (lambda: StochasticVolatility(0.0, -1.5, 0.1), "rho"),
        (lambda: StochasticVolatility(0.0, 0.9, 0.0), "sigma"),
        (lambda: StochasticVolatility(np.nan, 0.9, 0.1), "mu"),
        (lambda: StochasticVolatility(0.0, 0.9, 0.1, state_dim=2), "state_dim"),
        (lambda: ThetaLogistic(sigma_y=0.0), "sigma_y"),
        (lambda: ThetaLogistic(sigma_x=-1.0), "sigma_x"),
        (lambda: ThetaLogistic(tau1=np.inf), "tau1"),
        (lambda: ThetaLogistic(state_dim=0), "state_dim"),
    ],
)
def test_bad_parameters_are_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()


def test_a_parameter_that_is_not_a_number_is_a_type_error():
    with pytest.raises(TypeError, match="mu"):
        StochasticVolatility("zero", 0.9, 0.1)


@pytest.mark.parametrize("cls, parameters", BOTH)
def test_an_observation_of_two_numbers_is_refused(cls, parameters):
    model = cls(**parameters)
    with pytest.raises(ValueError, match="one number"):
        model.log_likelihood(np.zeros(2), model.initial(3, rng()), 0)
    np.testing.assert_array_equal(
        model.log_likelihood(np.array([0.5]), np.zeros(3), 0), model.log_likelihood(0.5, np.zeros(3), 0)
    )
