"""Any sequence of predict, update, missing, collapse, invalid weight, save and load keeps the invariants.

A second filter with the same seed, never saved nor loaded, shadows the first one bit for bit.
"""

import math
import os
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pfkit.filters import FilterCollapse, InvalidWeight, ParticleFilter
from pfkit.models import LinearGaussian, LocalLevel, StateSpaceModel, StochasticVolatility

SCHEMES = ("systematic", "stratified", "multinomial", "residual")


class Fragile(StateSpaceModel):
    """A model around another: "impossible" as y kills every particle, "nan" and "inf" one of them."""

    def __init__(self, model):
        self.model = model
        self.state_dim = model.state_dim

    def initial(self, n, rng):
        return self.model.initial(n, rng)

    def transition(self, x, t, rng):
        return self.model.transition(x, t, rng)

    def log_likelihood(self, y, x, t):
        if isinstance(y, str):
            g = np.zeros(len(x))
            if y == "impossible":
                g[:] = -np.inf
            else:
                g[len(x) // 2] = float(y)
            return g
        return self.model.log_likelihood(y, x, t)


F4 = 0.9 * np.eye(4) + 0.1 * np.eye(4, k=1)
MODELS = {
    "level": (LocalLevel(0.5, 1.0), lambda v: v),
    "column": (LinearGaussian([[0.9]], [[1.0]], [[1.0]], [[0.5]], [0.0], [[1.0]]), lambda v: np.array([v])),
    "four": (
        LinearGaussian(F4, 0.1 * np.eye(4), np.eye(2, 4), np.eye(2), np.zeros(4), np.eye(4)),
        lambda v: np.array([v, np.nan if v > 2 else -v]),
    ),
    "volatility": (StochasticVolatility(-0.5, 0.9, 0.3), lambda v: v),
    "static": (LocalLevel(0.0, 1.0), lambda v: v),
}


class FilterMachine(RuleBasedStateMachine):
    @initialize(
        name=st.sampled_from(sorted(MODELS)),
        n=st.sampled_from([1, 2, 7, 50]),
        lse=st.sampled_from(["fuse", "int", "int-pairwise", "numpy"]),
        dtype=st.sampled_from(["float64", "float32"]),
        scheme=st.sampled_from(SCHEMES),
        threshold=st.sampled_from([0.0, 0.5, 1.0]),
        policy=st.sampled_from(["raise", "keep"]),
        seed=st.integers(0, 2**32),
    )
    def start(self, name, n, lse, dtype, scheme, threshold, policy, seed):
        model, self.shape = MODELS[name]
        self.model = Fragile(model)
        self.options = dict(
            lse=lse, dtype=dtype, resampling=scheme, ess_threshold=threshold, on_collapse=policy, rng=seed
        )
        self.pf = ParticleFilter(self.model, n, **self.options)
        self.shadow = ParticleFilter(self.model, n, **self.options)
        self.total, self.predicted, self.collapsed = 0.0, False, False
        self.files = tempfile.TemporaryDirectory()

    def teardown(self):
        if hasattr(self, "files"):
            self.files.cleanup()

    def both(self, verb, *arguments):
        answers = []
        for pf in (self.pf, self.shadow):
            try:
                answers.append(getattr(pf, verb)(*arguments))
            except (FilterCollapse, InvalidWeight) as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]
        return answers[0]

    @rule()
    def predict(self):
        self.both("predict")
        self.predicted, self.collapsed = True, False

    @precondition(lambda self: self.predicted)
    @rule(v=st.integers(-40, 40))
    def update(self, v):
        step = self.both("update", self.shape(v / 8.0))
        if isinstance(step[0], type):  # float32 and an observation far out may kill them all
            assert step[0] is FilterCollapse
            return
        self.total += step.increment
        self.collapsed = step.increment == -math.inf
        assert not math.isnan(step.increment) and step.increment < math.inf

    @precondition(lambda self: self.predicted)
    @rule(y=st.sampled_from([None, float("nan")]))
    def missing(self, y):
        kept = self.pf.log_weights.copy(), self.pf.weights.copy(), self.pf.particles.copy()
        step = self.both("update", y)
        assert step.increment == 0.0
        for before, after in zip(
            kept, (self.pf.log_weights, self.pf.weights, self.pf.particles), strict=True
        ):
            np.testing.assert_array_equal(before, after)

    @precondition(lambda self: self.predicted)
    @rule()
    def collapse(self):
        kept = self.pf.weights.copy(), self.pf.particles.copy()
        answer = self.both("update", "impossible")
        if self.options["on_collapse"] == "raise":
            assert answer[0] is FilterCollapse
        else:
            assert answer.increment == -math.inf and answer.ess == 0.0
            self.total, self.collapsed = -math.inf, True
        np.testing.assert_array_equal(kept[0], self.pf.weights)
        np.testing.assert_array_equal(kept[1], self.pf.particles)

    @precondition(lambda self: self.predicted)
    @rule(value=st.sampled_from(["nan", "inf"]))
    def invalid(self, value):
        kept = self.pf.weights.copy(), self.pf.particles.copy(), self.pf.log_likelihood
        answer = self.both("update", value)
        assert answer[0] is InvalidWeight and f"particle {self.pf.n_particles // 2}" in answer[1]
        np.testing.assert_array_equal(kept[0], self.pf.weights)
        np.testing.assert_array_equal(kept[1], self.pf.particles)
        assert self.pf.log_likelihood == kept[2]

    @rule()
    def save_and_load(self):
        path = os.path.join(self.files.name, "filter.npz")
        self.pf.save(path)
        self.pf = ParticleFilter.load(path, self.model)

    @invariant()
    def sound(self):
        if not hasattr(self, "pf"):
            return
        pf, shadow = self.pf, self.shadow
        n, dtype = pf.n_particles, np.dtype(self.options["dtype"])
        rounding = 1e-12 if dtype == np.float64 else 2e-5
        bound = {"int": 2.1e-5, "int-pairwise": 0.02}.get(pf.lse, 0.0)
        assert pf.weights.shape == pf.log_weights.shape == (n,)
        assert pf.weights.dtype == pf.log_weights.dtype == dtype
        assert (pf.weights >= 0).all() and not np.isnan(pf.log_weights).any()
        assert pf.weights.sum(dtype=np.float64) == pytest.approx(1.0, abs=rounding)
        norm = np.logaddexp.reduce(pf.log_weights.astype(np.float64))
        assert norm == pytest.approx(0.0, abs=2 * bound + 10 * rounding)
        if pf.lse != "int-pairwise":
            np.testing.assert_allclose(
                pf.weights, np.exp(pf.log_weights), rtol=4 * bound + 20 * rounding, atol=n * 2.0**-31 + 1e-30
            )
        assert pf.ess == 0.0 if self.collapsed else 1.0 <= pf.ess <= n
        assert pf.log_likelihood == pytest.approx(self.total, rel=1e-12, abs=1e-12)
        assert pf.log_likelihood == shadow.log_likelihood and pf.ess == shadow.ess
        np.testing.assert_array_equal(pf.log_weights, shadow.log_weights)
        np.testing.assert_array_equal(pf.weights, shadow.weights)
        if self.predicted:
            assert pf.particles.dtype == dtype and np.isfinite(pf.particles).all()
            np.testing.assert_array_equal(pf.particles, shadow.particles)
            assert np.isfinite(pf.mean).all() and np.all(pf.variance >= 0)


TestFilterMachine = FilterMachine.TestCase
TestFilterMachine.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
