"""The exceptions travel: pickled, as between processes, they keep what they say."""

import pickle

import numpy as np
import pytest

from pfkit import FilterBank, FilterCollapse, InvalidWeight, LocalLevel, ParticleFilter, StateSpaceModel


def test_collapse():
    error = pickle.loads(pickle.dumps(FilterCollapse(44, np.array([1.0, 2.0]), 2000)))
    assert (error.step, error.n_dead) == (44, 2000) and error.observation.tolist() == [1.0, 2.0]
    assert "step 44" in str(error) and "2000 particles" in str(error) and error.result is None


def test_invalid_weight():
    error = pickle.loads(pickle.dumps(InvalidWeight(3, 1.5, 17, float("nan"), np.array([0.5, 2.0]))))
    assert (error.step, error.observation, error.particle) == (3, 1.5, 17) and np.isnan(error.value)
    assert error.state.tolist() == [0.5, 2.0]
    assert all(word in str(error) for word in ("step 3", "particle 17", "nan", "0.5", "1.5"))


def test_what_a_run_and_a_bank_add_travels_too():
    bank = FilterBank([LocalLevel(1.0, 1.0), LocalLevel(1.0, 1e-9)], 20, rng=0)
    with pytest.raises(FilterCollapse) as caught:
        bank.run([0.0, 1e160])
    assert pickle.loads(pickle.dumps(caught.value)).filter == caught.value.filter in (0, 1)
    with pytest.raises(FilterCollapse) as caught:
        ParticleFilter(LocalLevel(1.0, 1.0), 20, rng=0).run([0.0, 0.1, 1e160])
    again = pickle.loads(pickle.dumps(caught.value))
    assert np.array_equal(again.result.increment, caught.value.result.increment) and again.filter is None


def test_initial_of_two_axes_names_the_missing_state_dim():
    class Model(StateSpaceModel):
        def initial(self, n, rng):
            return rng.normal(size=(n, 4))

    with pytest.raises(ValueError, match=r"shape \(20, 4\); .*; set `state_dim = 4` in the model class$"):
        ParticleFilter(Model(), 20).predict()


@pytest.mark.parametrize("dim", [None, 2])
def test_a_transition_in_place_that_fails_half_way_can_be_repeated(dim):
    fail = [False]

    class Model(StateSpaceModel):
        state_dim = dim

        def initial(self, n, rng):
            return rng.normal(size=n if dim is None else (n, dim))

        def transition(self, x, t, rng):
            x += rng.normal(size=x.shape)
            if fail[0]:
                raise OSError
            x *= 0.9
            return x

        def log_likelihood(self, y, x, t):
            return -0.5 * (x if dim is None else x[:, 0]) ** 2

    whole, broken = (ParticleFilter(Model(), 40, rng=1, ess_threshold=1) for _ in range(2))
    for k in range(6):
        if k in (1, 4):
            fail[0], time = True, broken.time
            for _ in range(2):
                with pytest.raises(OSError):
                    broken.predict()
            fail[0] = False
            assert broken.time == time
        assert whole.step(0.0) == broken.step(0.0)
        assert np.array_equal(whole.particles, broken.particles)
