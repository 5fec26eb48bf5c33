"""LinearGaussian: densities against SciPy at d = 1 and 4, missing parts, singular noise, bad arguments."""

import numpy as np
import pytest
from scipy import stats

from pfkit.models.linear_gaussian import LinearGaussian

F4 = np.eye(4) * 0.9 + 0.1 * np.eye(4, k=1)
Q4 = 0.3 * np.eye(4) + 0.1
H4 = np.array([[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, -0.5]])
R4 = np.array([[0.5, 0.1], [0.1, 0.4]])
M4 = np.array([1.0, -1.0, 0.0, 2.0])
P4 = 2.0 * np.eye(4) - 0.2


def rng():
    return np.random.default_rng(3)


def four():
    return LinearGaussian(F4, Q4, H4, R4, M4, P4)


def test_shapes_of_scalar_and_one_dimensional_models_agree():
    flat = LinearGaussian(0.9, 1.0, 1.0, 0.04, 0.5, 2.0)
    column = LinearGaussian([[0.9]], [[1.0]], [[1.0]], [[0.04]], [0.5], [[2.0]])
    assert flat.state_dim is None and column.state_dim == 1
    x, xc = flat.initial(20, rng()), column.initial(20, rng())
    assert x.shape == (20,) and xc.shape == (20, 1)
    np.testing.assert_array_equal(x, xc[:, 0])
    x1, x1c = flat.transition(x, 1, rng()), column.transition(xc, 1, rng())
    np.testing.assert_array_equal(x1, x1c[:, 0])
    np.testing.assert_array_equal(flat.log_likelihood(0.3, x, 0), column.log_likelihood([0.3], xc, 0))
    np.testing.assert_array_equal(flat.log_transition(x1, x, 1), column.log_transition(x1c, xc, 1))
    np.testing.assert_array_equal(flat.log_predictive(0.3, x, 1), column.log_predictive([0.3], xc, 1))
    p, r = flat.proposal(0.3, x, 1, rng())
    pc, rc = column.proposal([0.3], xc, 1, rng())
    np.testing.assert_array_equal(p, pc[:, 0])
    np.testing.assert_array_equal(r, rc)


def test_densities_are_those_of_scipy():
    model = four()
    x_prev, x = model.initial(30, rng()), model.initial(30, np.random.default_rng(4))
    y = np.array([0.3, -0.7])
    for i in range(30):
        expected = stats.multivariate_normal(H4 @ x[i], R4).logpdf(y)
        assert model.log_likelihood(y, x, 1)[i] == pytest.approx(expected, rel=1e-12)
        expected = stats.multivariate_normal(F4 @ x_prev[i], Q4).logpdf(x[i])
        assert model.log_transition(x, x_prev, 1)[i] == pytest.approx(expected, rel=1e-12)
        expected = stats.multivariate_normal(H4 @ F4 @ x_prev[i], H4 @ Q4 @ H4.T + R4).logpdf(y)
        assert model.log_predictive(y, x_prev, 1)[i] == pytest.approx(expected, rel=1e-12)


def test_densities_of_one_state_are_those_of_an_array_of_one():
    model, (x_prev, x) = four(), four().initial(2, rng())
    y = np.array([0.3, -0.7])
    assert model.log_likelihood(y, x, 1) == model.log_likelihood(y, x[None], 1)[0]
    assert model.log_transition(x, x_prev, 1) == model.log_transition(x[None], x_prev[None], 1)[0]
    assert model.log_transition(x[None], x_prev, 1).shape == (1,)
    assert model.log_predictive(y, x_prev, 1) == model.log_predictive(y, x_prev[None], 1)[0]


def test_draws_have_the_moments_of_the_law():
    model, n = four(), 200_000
    x0 = model.initial(n, rng())
    x1 = model.transition(np.broadcast_to(M4, (n, 4)), 1, rng())
    for x, mean, cov in ((x0, M4, P4), (x1, F4 @ M4, Q4)):
        sd = np.sqrt(np.diag(cov))
        assert (np.abs(x.mean(0) - mean) < 5 * sd / np.sqrt(n)).all()
        error = np.cov(x.T) - cov
        assert (np.abs(error) < 5 * np.sqrt(2 / n) * np.outer(sd, sd)).all()


def test_proposal_is_the_exact_conditional():
    model, n = four(), 100_000
    x_prev = np.broadcast_to(np.array([0.5, 0.1, -1.0, 1.0]), (n, 4))
    y = np.array([0.3, -0.7])
    x, log_ratio = model.proposal(y, x_prev, 1, rng())
    # weights are constant: p(y | x_prev)
    np.testing.assert_allclose(
        model.log_likelihood(y, x, 1) + log_ratio, model.log_predictive(y, x_prev, 1), rtol=1e-11
    )
    precision = np.linalg.inv(Q4) + H4.T @ np.linalg.inv(R4) @ H4
    cov = np.linalg.inv(precision)
    mean = cov @ (np.linalg.solve(Q4, F4 @ x_prev[0]) + H4.T @ np.linalg.solve(R4, y))
    sd = np.sqrt(np.diag(cov))
    assert (np.abs(x.mean(0) - mean) < 5 * sd / np.sqrt(n)).all()
    assert (np.abs(np.cov(x.T) - cov) < 5 * np.sqrt(2 / n) * np.outer(sd, sd)).all()


def test_missing_components_use_the_rest():
    model = four()
    x = model.initial(10, rng())
    got = model.log_likelihood(np.array([np.nan, -0.7]), x, 0)
    np.testing.assert_allclose(got, stats.norm.logpdf(-0.7, x @ H4[1], np.sqrt(R4[1, 1])), rtol=1e-12)
    np.testing.assert_array_equal(model.log_likelihood(np.full(2, np.nan), x, 0), 0.0)
    moved, log_ratio = model.proposal(np.full(2, np.nan), x, 1, rng())
    np.testing.assert_array_equal(log_ratio, 0.0)
    assert np.isfinite(moved).all()


def test_zero_noise_draws_nothing_and_moves_exactly():
    static = LinearGaussian(np.eye(4), np.zeros((4, 4)), H4, R4, M4, np.zeros((4, 4)))
    x = static.initial(5, rng())
    np.testing.assert_array_equal(x, np.tile(M4, (5, 1)))
    np.testing.assert_array_equal(static.transition(x, 1, rng()), x)
    guided, log_ratio = static.proposal(np.zeros(2), x, 1, rng())
    np.testing.assert_allclose(guided, x, atol=1e-15)
    np.testing.assert_allclose(log_ratio, 0.0, atol=1e-13)
    with pytest.raises(ValueError, match="singular"):
        static.log_transition(x, x, 1)


def test_rank_deficient_noise_is_drawn_on_its_range():
    direction = np.array([1.0, 2.0, 0.0, -1.0])
    model = LinearGaussian(np.eye(4), np.outer(direction, direction), H4, R4, M4, P4)
    steps = model.transition(np.zeros((1000, 4)), 1, rng())
    along = steps @ direction / (direction @ direction)
    np.testing.assert_allclose(steps, np.outer(along, direction), atol=1e-12)
    assert 0.85 < along.std() < 1.15


def test_a_particle_has_the_same_bits_alone_and_in_a_block():
    model = four()
    x = model.initial(1000, rng())
    y = np.array([0.3, -0.7])
    whole = model.log_likelihood(y, x, 0)
    for cut in (1, 7, 500):
        parts = np.concatenate([model.log_likelihood(y, x[:cut], 0), model.log_likelihood(y, x[cut:], 0)])
        np.testing.assert_array_equal(parts, whole)


def test_inputs_are_not_written_to():
    model = four()
    x = model.initial(10, rng())
    x.flags.writeable = False
    y = np.array([0.3, np.nan])
    y.flags.writeable = False
    model.transition(x, 1, rng())
    model.log_likelihood(y, x, 1)
    model.proposal(y, x, 1, rng())
    matrices = [F4.copy(), Q4.copy(), H4.copy(), R4.copy(), M4.copy(), P4.copy()]
    kept = [a.copy() for a in matrices]
    model = LinearGaussian(*matrices)
    matrices[0][:] = 0
    np.testing.assert_array_equal(model.transition_matrix, kept[0])


@pytest.mark.parametrize(
    "change, name",
    [
        (dict(transition_matrix=np.ones((4, 3))), "transition_matrix"),
        (dict(transition_cov=np.eye(3)), "transition_cov"),
        (dict(transition_cov=-np.eye(4)), "transition_cov"),
        (dict(transition_cov=np.eye(4) + 0.1 * np.eye(4, k=1)), "transition_cov"),
        (dict(observation_matrix=np.ones((2, 3))), "observation_matrix"),
        (dict(observation_cov=np.zeros((2, 2))), "observation_cov"),
        (dict(observation_cov=np.full((2, 2), np.nan)), "observation_cov"),
        (dict(prior_mean=np.ones(3)), "prior_mean"),
        (dict(prior_cov=np.eye(5)), "prior_cov"),
    ],
)
def test_bad_parameters_are_named(change, name):
    good = dict(
        transition_matrix=F4,
        transition_cov=Q4,
        observation_matrix=H4,
        observation_cov=R4,
        prior_mean=M4,
        prior_cov=P4,
    )
    with pytest.raises(ValueError, match=name):
        LinearGaussian(**{**good, **change})


def test_an_observation_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="shape"):
        four().log_likelihood(np.zeros(3), np.zeros((5, 4)), 0)


def test_a_state_of_no_dimensions_is_refused():
    none = np.zeros((0, 0))
    with pytest.raises(ValueError, match=r"transition_matrix must have shape \(any, any\), got \(0, 0\)"):
        LinearGaussian(none, none, none, none, [], none)
