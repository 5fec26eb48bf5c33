"""The exceptions travel: pickled, as between processes, they keep what they say."""

import pickle

import numpy as np

from pfkit import FilterCollapse, InvalidWeight


def test_collapse():
    error = pickle.loads(pickle.dumps(FilterCollapse(44, np.array([1.0, 2.0]), 2000)))
    assert (error.step, error.n_dead) == (44, 2000) and error.observation.tolist() == [1.0, 2.0]
    assert "step 44" in str(error) and "2000 particles" in str(error) and error.result is None


def test_invalid_weight():
    error = pickle.loads(pickle.dumps(InvalidWeight(3, 1.5, 17, float("nan"), np.array([0.5, 2.0]))))
    assert (error.step, error.observation, error.particle) == (3, 1.5, 17) and np.isnan(error.value)
    assert error.state.tolist() == [0.5, 2.0]
    assert all(word in str(error) for word in ("step 3", "particle 17", "nan", "0.5", "1.5"))
