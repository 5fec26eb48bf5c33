"""Models from classes, from functions and from anything with the three methods."""

import math

import numpy as np
import pytest

from pfkit import LocalLevel, ParticleFilter, StateSpaceModel, from_functions


def test_a_subclass_must_define_the_three_methods():
    class Half(StateSpaceModel):
        def initial(self, n, rng):
            return np.zeros(n)

    model = Half()
    for call in (
        lambda: model.transition(np.zeros(1), 0, None),
        lambda: model.log_likelihood(0, np.zeros(1), 0),
    ):
        with pytest.raises(NotImplementedError, match="Half must define"):
            call()
    with pytest.raises(NotImplementedError, match="initial"):
        StateSpaceModel().initial(1, None)


def test_from_functions_reads_the_shape_off_initial():
    for shape, dim in (((), None), ((1,), 1), ((4,), 4)):
        model = from_functions(
            lambda n, rng, shape=shape: np.zeros((n, *shape)),
            lambda x, t, rng: x,
            lambda y, x, t: np.zeros(len(x)),
        )
        pf = ParticleFilter(model, 7)
        pf.step(0.0)
        assert model.state_dim == dim and pf.particles.shape == (7, *shape) and pf.state_dim == dim


def test_from_functions_with_inputs():
    model = from_functions(
        lambda n, rng: np.zeros((n, 2)),
        lambda x, t, rng, u: x + u,
        lambda y, x, t: np.zeros(len(x)),
        input_dim=2,
    )
    pf = ParticleFilter(model, 3)
    pf.run([0, 0, 0], inputs=[[9, 9], [1, 2], [10, 20]])
    assert pf.particles.tolist() == [[11, 22]] * 3 and "from_functions" in repr(model)


def test_from_functions_refuses():
    ok = lambda *a: None  # noqa: E731
    with pytest.raises(TypeError, match="transition must be callable, not 3"):
        from_functions(ok, 3, ok)
    with pytest.raises(ValueError, match="input_dim must be >= 0"):
        from_functions(ok, ok, ok, input_dim=-1)
    with pytest.raises(TypeError, match="input_dim must be an int"):
        from_functions(ok, ok, ok, input_dim=1.5)


def test_any_object_with_the_three_methods_will_do():
    class Duck:
        state_dim = None

        def initial(self, n, rng):
            return rng.normal(size=n)

        def transition(self, x, t, rng):
            return x

        def log_likelihood(self, y, x, t):
            return -np.abs(x - y)

    assert np.isfinite(ParticleFilter(Duck(), 10).run([0.0, 1.0]).log_likelihood)


def test_local_level_densities_and_moments():
    model = LocalLevel(0.5, 2.0, 3.0, 4.0)
    rng = np.random.default_rng(0)
    x = model.initial(200_000, rng)
    assert abs(x.mean() - 3) < 5 * 4 / math.sqrt(x.size) and abs(x.std() - 4) < 0.05
    step = model.transition(x, 1, rng) - x
    assert abs(step.mean()) < 5 * 0.5 / math.sqrt(x.size) and abs(step.std() - 0.5) < 0.006
    for dtype, rel in ((np.float64, 1e-14), (np.float32, 1e-6)):
        g = model.log_likelihood(1.0, np.array([1.0, 3.0, -5.0], dtype), 0)
        constant = -math.log(2.0) - 0.5 * math.log(2 * math.pi)
        assert g.dtype == dtype
        np.testing.assert_allclose(g, [constant, constant - 0.5, constant - 4.5], rtol=rel)


def test_local_level_takes_any_observation_and_keeps_its_particles():
    model, x = LocalLevel(1.0, 1.0), np.zeros(3)
    x.flags.writeable = False
    for y in (1, 1.0, np.float32(1), np.array([1.0]), [1.0]):
        assert model.log_likelihood(y, x, 0)[0] == pytest.approx(-0.5 - 0.5 * math.log(2 * math.pi))
    with np.errstate(over="ignore"):
        assert np.all(model.log_likelihood(1e300, x, 0) == -np.inf)
    assert np.array_equal(LocalLevel(0.0, 1.0, 2.0, 0.0).initial(3, np.random.default_rng(0)), [2, 2, 2])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [((-1, 1), "sigma_level"), ((1, 0), "sigma_obs must be .* > 0"), ((1, float("nan")), "sigma_obs"),
     ((1, 1, float("inf")), "prior_mean"), ((1, 1, 0, -1), "prior_sd"), ((float("inf"), 1), "sigma_level")],
)  # fmt: skip
def test_local_level_refuses(arguments, word):
    with pytest.raises(ValueError, match=word):
        LocalLevel(*arguments)


@pytest.mark.parametrize("sigma", ["1", None, [1.0, 2.0]])
def test_local_level_takes_numbers(sigma):
    with pytest.raises(TypeError, match="sigma_level must be a finite number >= 0, got"):
        LocalLevel(sigma, 1.0)
