"""The filter's contract, step by step. Exact likelihoods are in test_nile.py and tests/accuracy."""

import importlib.util
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import pfkit
from pfkit import ParticleFilter, from_functions
from pfkit.models import LocalLevel, StateSpaceModel

KERNELS = ("fuse", "int", "numpy", "scipy")
SCHEMES = ("systematic", "stratified", "multinomial", "residual")
BOUND = {"fuse": 1e-12, "numpy": 1e-12, "scipy": 1e-12, "int": 2.2e-5}


def log_normal(z):
    return -0.5 * z * z - 0.5 * math.log(2 * math.pi)


def walk(shape=(), scale=1.0):
    """A Gaussian random walk observed with unit noise in every coordinate; states (n,) + shape."""

    def log_likelihood(y, x, t):
        g = log_normal(np.asarray(y) - x)
        return g if g.ndim == 1 else g.sum(axis=1)

    return from_functions(
        lambda n, rng: rng.standard_normal((n, *shape)),
        lambda x, t, rng: x + scale * rng.standard_normal(x.shape),
        log_likelihood,
    )


def table(rows, initial=None):
    """A still model whose log-likelihood at time t is rows[t], whatever the observation."""
    rows = [np.asarray(r, float) for r in rows]
    first = np.arange(float(rows[0].size)) if initial is None else initial
    return from_functions(lambda n, rng: first, lambda x, t, rng: x, lambda y, x, t: rows[t])


def logsumexp(a):
    m = max(a)
    return m + math.log(math.fsum(math.exp(v - m) for v in a))


# ---- increments and weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("lse", KERNELS)
def test_increments_without_resampling_carry_the_weights(lse):
    g = [[-1.0, -2.0, -3.0], [-2.0, -1.0, -0.5]]
    pf = ParticleFilter(table(g), 3, lse=lse, ess_threshold=0)
    result = pf.run([0, 0])
    total = logsumexp([a + b for a, b in zip(*g, strict=True)]) - math.log(3)
    assert result.log_likelihood == pytest.approx(-3.140592200721076, abs=2 * BOUND[lse])
    assert result.log_likelihood == pytest.approx(total, abs=2 * BOUND[lse])
    assert result.increment[1] == pytest.approx(-1.4495858764973466, abs=2 * BOUND[lse])
    expected = [a + b - total - math.log(3) for a, b in zip(*g, strict=True)]
    np.testing.assert_allclose(pf.log_weights, expected, atol=2 * BOUND[lse])
    np.testing.assert_allclose(pf.weights, np.exp(expected), atol=2 * BOUND[lse])
    assert not result.resampled.any() and result.n_unique.tolist() == [3, 3]


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_after_resampling_weights_are_equal_and_particles_are_the_ancestors(lse, scheme):
    pf = ParticleFilter(
        table([np.log([0.7, 0.1, 0.1, 0.1]), np.zeros(4)]),
        4,
        lse=lse,
        resampling=scheme,
        rng=2,
        ess_threshold=1,
    )
    pf.predict()
    pf.update(0)
    pf.predict()
    assert np.all(pf.log_weights == -math.log(4)) and np.all(pf.weights == 0.25) and pf.ess == 4
    kept = set(pf.particles.tolist())
    assert kept <= {0.0, 1.0, 2.0, 3.0} and 0.0 in kept
    step = pf.update(0)
    assert step.resampled and step.n_unique == len(kept)
    assert step.increment == pytest.approx(0, abs=BOUND[lse])


def test_resampling_obeys_the_threshold():
    y = np.random.default_rng(0).normal(size=60)
    for threshold in (0.0, 0.2, 0.5, 0.9, 1.0, 2.0):
        result = ParticleFilter(walk(), 100, rng=1, ess_threshold=threshold).run(y)
        expected = result.ess[:-1] < threshold * 100 if threshold < 1 else np.ones(59, bool)
        assert result.resampled[1:].tolist() == expected.tolist() and not result.resampled[0]
        assert np.all(result.n_unique[~result.resampled] == 100)
        assert np.all(result.n_unique[result.resampled] < 100)


def test_no_resampling_after_a_missing_observation_even_if_always():
    pf = ParticleFilter(walk(), 50, ess_threshold=1, resampling="multinomial", rng=0)
    result = pf.run([0.1, None, None, 0.2, 0.3])
    assert result.resampled.tolist() == [False, True, False, False, True]


@pytest.mark.parametrize("lse", [*KERNELS, "int-pairwise"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_are_normalised_and_the_parts_agree(lse, dtype):
    pf = ParticleFilter(walk(), 300, lse=lse, rng=3, dtype=dtype)
    result = pf.run(np.random.default_rng(0).normal(size=20), store=("log_weights", "particles", "mean"))
    eps = float(np.finfo(dtype).eps)
    coarse = {"int": 4e-5, "int-pairwise": 2e-2}.get(lse, 0)
    assert pf.weights.dtype == pf.log_weights.dtype == pf.particles.dtype == np.dtype(dtype)
    assert pf.weights.sum(dtype=float) == pytest.approx(1, abs=300 * eps)
    assert logsumexp(pf.log_weights.astype(float).tolist()) == pytest.approx(0, abs=20 * eps + coarse)
    resolution = float(pf.weights.max()) * 2.0**-32 if lse == "int" else 0  # of 31-bit weights, rounded
    np.testing.assert_allclose(pf.weights, np.exp(pf.log_weights), rtol=1e-3 + coarse, atol=resolution)
    assert 1 <= pf.ess <= 300
    assert pf.ess == pytest.approx(1 / np.sum(pf.weights.astype(float) ** 2), rel=100 * eps + 1e-5)
    assert pf.log_likelihood == result.log_likelihood == sum(result.increment.tolist())
    assert result.mean[-1] == pytest.approx(pf.mean, rel=1e-13)


def test_one_observation_against_the_exact_evidence():
    """N(0, 4) prior, unit noise, y = 3: the evidence is that of the prediction, not of the update."""
    model = LocalLevel(1.0, 1.0, 0.0, 2.0)
    runs = [ParticleFilter(model, 4000, rng=s).run([3.0]) for s in range(20)]
    z = np.exp([r.log_likelihood + 2.623657489421723 for r in runs])
    assert abs(z.mean() - 1) < 4.5 * z.std(ddof=1) / math.sqrt(20)


# ---- run, predict, update, step ------------------------------------------------------------------------


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_run_equals_the_online_pair(lse):
    y = [0.3, None, 1.0, -0.5, float("nan"), 2.0]
    a, b, c = (ParticleFilter(walk((2,)), 64, rng=5, lse=lse) for _ in range(3))
    result = a.run(np.array([[v] * 2 if v is not None else [np.nan] * 2 for v in y]))
    steps = []
    for v in y:
        b.predict()
        steps.append(b.update(None if v is None else [v, v]))
    again = [c.step(None if v is None else np.array([v, v])) for v in y]
    assert steps == again
    assert [s.increment for s in steps] == result.increment.tolist()
    assert [s.ess for s in steps] == result.ess.tolist()
    assert np.array_equal(a.particles, b.particles) and np.array_equal(a.log_weights, c.log_weights)


def test_run_continues_where_the_filter_is():
    y = np.random.default_rng(1).normal(size=30)
    whole, parts = ParticleFilter(walk(), 100, rng=1), ParticleFilter(walk(), 100, rng=1)
    r = whole.run(y)
    first, second = parts.run(y[:11]), parts.run(iter(y[11:]))
    assert np.concatenate([first.increment, second.increment]).tolist() == r.increment.tolist()
    assert np.concatenate([first.mean, second.mean]).tolist() == r.mean.tolist()
    assert parts.log_likelihood == whole.log_likelihood and parts.time == whole.time == 29


def test_predictions_alone_forecast_and_change_no_weight():
    pf = ParticleFilter(walk(), 500, rng=1)
    pf.run(np.zeros(3))
    pf.predict()
    w, ess, spread = pf.weights.copy(), pf.ess, pf.variance
    for _ in range(5):
        pf.predict()
    assert np.array_equal(w, pf.weights) and pf.ess == ess and pf.time == 8
    assert pf.variance > spread + 2


def test_two_observations_at_one_time_multiply():
    one = ParticleFilter(table([[-1.0, -2.0]]), 2, lse="fuse")
    one.predict()
    a, b = one.update(0), one.update(0)
    total = logsumexp([-2.0, -4.0]) - math.log(2)
    assert a.increment + b.increment == pytest.approx(total, abs=1e-14)


def test_particles_and_time_reach_the_model():
    seen = []

    def transition(x, t, rng, u):
        seen.append(("move", t, u))
        return x + u

    def log_likelihood(y, x, t):
        seen.append(("weigh", t, y))
        return np.zeros(x.shape[0])

    model = from_functions(lambda n, rng: np.zeros(n), transition, log_likelihood, input_dim=1)
    ParticleFilter(model, 2).run([10, 11, 12], inputs=[5, 6, 7])
    assert seen == [("weigh", 0, 10), ("move", 1, 6), ("weigh", 1, 11), ("move", 2, 7), ("weigh", 2, 12)]


# ---- shapes and dtypes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("lse", ["fuse", "int"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scalar_column_and_vector_states(dtype, lse, scheme):
    y = np.random.default_rng(0).normal(size=(15, 1))
    options = dict(rng=4, dtype=dtype, lse=lse, resampling=scheme)
    flat = ParticleFilter(walk(), 200, **options)
    column = ParticleFilter(walk((1,)), 200, **options)
    store = ("mean", "variance", "particles", "log_weights", "ancestors")
    a, b = flat.run(y[:, 0], store=store), column.run(y, store=store)
    assert flat.particles.shape == (200,) and column.particles.shape == (200, 1)
    assert flat.state_dim is None and column.state_dim == 1
    assert np.array_equal(a.increment, b.increment) and np.array_equal(a.ancestors, b.ancestors)
    assert np.array_equal(a.mean, b.mean[:, 0]) and np.array_equal(a.variance, b.variance[:, 0])
    assert np.array_equal(a.particles, b.particles[..., 0])
    four = ParticleFilter(walk((4,)), 200, **options)
    c = four.run(np.repeat(y, 4, axis=1), store=store)
    assert four.particles.shape == (200, 4) and c.mean.shape == (15, 4) and c.particles.shape == (15, 200, 4)
    assert np.isfinite(c.log_likelihood) and c.resampled.any()


def test_particles_are_stored_by_coordinate():
    pf = ParticleFilter(walk((3,)), 50, rng=0)
    pf.run(np.zeros((4, 3)))
    assert all(pf.particles[:, k].flags.c_contiguous for k in range(3))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_integer_states_and_observations_are_promoted(dtype):
    model = from_functions(
        lambda n, rng: np.arange(n),
        lambda x, t, rng: x + 0.4,
        lambda y, x, t: log_normal((y - x) / 0.5) - math.log(0.5),
    )
    pf = ParticleFilter(model, 3, dtype=dtype, ess_threshold=0)
    pf.predict()
    pf.predict()
    np.testing.assert_allclose(pf.particles, [0.4, 1.4, 2.4], rtol=1e-6)
    assert pf.particles.dtype == np.dtype(dtype)
    assert pf.update(1).increment == pytest.approx(
        -1.1151623702022737, rel=1e-12 if dtype == "float64" else 1e-6
    )


def test_transitions_that_return_integers_lists_or_the_array_itself():
    for move in (
        lambda x, t, rng: np.full(x.shape, 3),
        lambda x, t, rng: [3.0] * len(x),
        lambda x, t, rng: x.__setitem__(Ellipsis, 3.0) or x,
        lambda x, t, rng: x[::-1] * 0 + 3,
        lambda x, t, rng: np.full(x.shape, 3, np.float32),
    ):
        pf = ParticleFilter(
            from_functions(lambda n, rng: np.zeros(n), move, lambda y, x, t: np.zeros(len(x))), 5
        )
        pf.run([0, 0])
        assert np.all(pf.particles == 3)


def test_a_reversing_transition_is_copied_correctly():
    model = from_functions(
        lambda n, rng: np.arange(2.0 * n).reshape(n, 2),
        lambda x, t, rng: x[::-1],
        lambda y, x, t: np.zeros(len(x)),
    )
    pf = ParticleFilter(model, 100)
    pf.run([0, 0])
    assert np.array_equal(pf.particles, np.arange(200.0).reshape(100, 2)[::-1])


def test_one_particle():
    for lse in KERNELS:
        for scheme in SCHEMES:
            pf = ParticleFilter(walk(), 1, rng=0, lse=lse, resampling=scheme, ess_threshold=1)
            result = pf.run([0.0, 1.0, 2.0])
            assert (
                np.all(result.ess == 1)
                and np.all(result.variance == 0)
                and np.isfinite(result.log_likelihood)
            )


def test_zero_process_noise():
    start = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    model = from_functions(
        lambda n, rng: start,
        lambda x, t, rng: x + rng.normal(0.0, 0.0, x.shape),
        lambda y, x, t: log_normal((y - x) / 0.5) - math.log(0.5),
    )
    pf = ParticleFilter(model, 5, ess_threshold=0)
    result = pf.run([0.3, 0.1, 0.2])
    assert result.log_likelihood == pytest.approx(-1.9594556447419855, rel=1e-12)
    w = [
        0.00012250529240258773,
        0.03661283834507115,
        0.5447892122607957,
        0.4035897748736374,
        0.014885669228093135,
    ]
    np.testing.assert_allclose(pf.weights, w, rtol=1e-12)
    assert np.array_equal(pf.particles, start)


# ---- missing observations ------------------------------------------------------------------------------

MISSING = [
    None,
    float("nan"),
    np.float32("nan"),
    np.array(np.nan),
    [np.nan, np.nan],
    np.full((2, 2), np.nan),
    [],
    np.ma.masked,
    np.ma.masked_array([1.0, 2.0], mask=True),
    np.ma.masked_array([1.0, np.nan], mask=[True, False]),
    np.array(complex(np.nan, 0)),
]
PRESENT = [
    0,
    0.0,
    [0.0, np.nan],
    np.array([np.nan, 1.0]),
    "nan",
    {"range": np.nan},
]


@pytest.mark.parametrize("y", MISSING, ids=repr)
@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_missing_observations_change_nothing(y, lse):
    pf = ParticleFilter(walk((2,)), 40, rng=0, lse=lse, ess_threshold=0.1)
    pf.run([[0.1, 0.2], [0.3, 0.1]])
    pf.predict()
    before = pf.weights.copy(), pf.log_weights.copy(), pf.ess, pf.log_likelihood, pf.particles.copy()
    step = pf.update(y)
    assert step.increment == 0.0 and step.ess == before[2]
    after = pf.weights, pf.log_weights, pf.ess, pf.log_likelihood, pf.particles
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("y", PRESENT, ids=repr)
def test_what_is_not_missing_reaches_the_model(y):
    seen = []
    model = from_functions(
        lambda n, rng: np.zeros(n), lambda x, t, rng: x, lambda y, x, t: seen.append(y) or x
    )
    ParticleFilter(model, 2).step(y)
    assert seen[0] is y


def test_partly_missing_observations_are_the_models():
    x, sd = np.array([[1.0, 5.0], [2.0, 6.0]]), np.array([0.5, 0.7])

    def log_likelihood(y, x, t):
        g = log_normal((y - x) / sd) - np.log(sd)
        return np.where(np.isnan(y), 0.0, g).sum(axis=1)

    pf = ParticleFilter(from_functions(lambda n, rng: x, lambda x, t, rng: x, log_likelihood), 2)
    assert pf.step(np.array([1.2, np.nan])).increment == pytest.approx(-0.7356560658666416, rel=1e-12)
    np.testing.assert_allclose(pf.weights, [0.7685247834990176, 0.23147521650098232], rtol=1e-12)


def test_a_series_of_nothing():
    result = ParticleFilter(walk(), 10, rng=0).run([None] * 5)
    assert result.log_likelihood == 0.0 and np.all(result.increment == 0) and np.all(result.ess == 10)
    empty = ParticleFilter(walk(), 10, rng=0).run([])
    assert len(empty) == 0 and empty.log_likelihood == 0.0 and empty.mean.shape[0] == 0


# ---- failure -------------------------------------------------------------------------------------------


def uniform_window(start):
    """y | x uniform on x - 1 .. x + 1."""
    return from_functions(
        lambda n, rng: np.asarray(start, float),
        lambda x, t, rng: x,
        lambda y, x, t: np.where(np.abs(y - x) <= 1, -math.log(2), -np.inf),
    )


@pytest.mark.parametrize("lse", [*KERNELS, "int-pairwise"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_collapse_raises_by_default_and_leaves_the_prediction(lse, dtype):
    pf = ParticleFilter(uniform_window([0, 1, 2, 3]), 4, lse=lse, dtype=dtype)
    pf.step(1.5)
    pf.predict()
    w, x = pf.weights.copy(), pf.particles.copy()
    before = pf.log_likelihood
    with pytest.raises(pfkit.FilterCollapse, match=r"step 1.*4 particles.*10\.5") as caught:
        pf.update(10.5)
    error = caught.value
    assert (error.step, error.observation, error.n_dead) == (1, 10.5, 4)
    assert isinstance(error, ArithmeticError)
    assert np.array_equal(pf.weights, w) and np.array_equal(pf.particles, x) and pf.log_likelihood == before
    assert np.isfinite(pf.update(1.0).increment)


@pytest.mark.parametrize("lse", [*KERNELS, "int-pairwise"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("policy", ["keep", "warn"])
def test_collapse_can_be_recorded(policy, lse, dtype):
    pf = ParticleFilter(uniform_window([0, 1, 2, 3]), 4, lse=lse, dtype=dtype, on_collapse=policy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = pf.run([1.5, 10.5, 1.0])
    assert [w.category for w in caught] == ([pfkit.CollapseWarning] if policy == "warn" else [])
    assert result.increment[1] == -np.inf and result.log_likelihood == -np.inf
    assert result.ess[1] == 0 and result.ess[2] >= 1 and np.isfinite(result.increment[[0, 2]]).all()
    assert np.isfinite(result.mean).all() and np.isfinite(result.variance).all()
    assert pf.log_likelihood == -np.inf and pf.ess >= 1 and np.isfinite(pf.weights).all()


def test_the_warning_points_at_the_callers_line():
    def by_run(pf):
        pf.run([1e200])

    def by_step(pf):
        pf.step(1e200)

    def by_update(pf):
        pf.predict()
        pf.update(1e200)

    for call in (by_run, by_step, by_update):
        for model in (LocalLevel(1.0, 1.0), uniform_window([0, 1, 2])):  # compiled and not
            with pytest.warns(pfkit.CollapseWarning) as caught:
                call(ParticleFilter(model, 3, on_collapse="warn"))
            assert [w.filename for w in caught] == [__file__]


def test_right_after_a_kept_collapse():
    pf = ParticleFilter(uniform_window([0, 1, 2, 3]), 4, on_collapse="keep")
    pf.step(99)
    assert pf.ess == 0 and np.isfinite(pf.mean) and pf.weights.tolist() == [0.25] * 4
    pf.predict()
    assert pf.ess == 4


def test_a_collapse_in_a_run_leaves_the_record_so_far():
    with pytest.raises(pfkit.FilterCollapse) as caught:
        ParticleFilter(uniform_window([0, 1]), 2).run([0.5, 0.5, 7.0, 0.5])
    assert len(caught.value.result) == 2 and caught.value.result.mean.shape == (2,)


@pytest.mark.parametrize("lse", [*KERNELS, "int-pairwise"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_invalid_weights_are_named(bad, lse, shape):
    def log_likelihood(y, x, t):
        g = np.zeros(x.shape[0])
        if y == "bad":
            g[[3, 5]] = bad
            g[0] = -np.inf
        return g

    model = from_functions(
        lambda n, rng: np.arange(float(n * math.prod(shape))).reshape(n, *shape),
        lambda x, t, rng: x,
        log_likelihood,
    )
    pf = ParticleFilter(model, 8, lse=lse, on_collapse="keep")
    pf.step("good")
    pf.predict()
    w = pf.weights.copy()
    with pytest.raises(pfkit.InvalidWeight, match="step 1.*particle 3") as caught:
        pf.update("bad")
    error = caught.value
    assert (error.step, error.observation, error.particle) == (1, "bad", 3)
    assert error.value == bad or (math.isnan(error.value) and math.isnan(bad))
    assert np.array_equal(error.state, pf.particles[3]) and isinstance(error, ArithmeticError)
    assert np.array_equal(pf.weights, w) and pf.update("good").increment == pytest.approx(0, abs=1e-2)


def test_plus_inf_on_a_particle_of_weight_zero_is_invalid_too():
    pf = ParticleFilter(table([[-np.inf, 0.0]]), 2, ess_threshold=0)
    pf.step(0)
    pf.model.log_likelihood = lambda y, x, t: np.array([np.inf, 0.0])
    with pytest.raises(pfkit.InvalidWeight, match="particle 0 is inf"):
        pf.step(0)


def test_no_warning_escapes_and_the_callers_error_state_is_left_alone():
    pf = ParticleFilter(table([[-1e300, -5.0], [-5.0, -np.inf]]), 2, dtype="float32", ess_threshold=0)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.step(0)
        assert pf.weights.tolist() == [0, 1] and np.geterr()["over"] == "raise"
        with pytest.raises(pfkit.FilterCollapse):
            pf.step(0)


def test_a_particle_sixty_nats_down_comes_back():
    for lse in ("fuse", "int"):
        pf = ParticleFilter(table([[0.0, -60.0], [-200.0, 0.0]]), 2, lse=lse, ess_threshold=0)
        pf.run([0, 0])
        assert pf.weights[1] == pytest.approx(1, abs=1e-12) and pf.weights[0] < 1e-50


def test_a_step_whose_model_failed_can_be_repeated_with_the_same_numbers():
    state = SimpleNamespace(fail=False)

    def transition(x, t, rng):
        moved = x + rng.standard_normal(x.shape)
        if state.fail:
            raise OSError("sensor")
        return moved

    model = from_functions(lambda n, rng: rng.normal(size=n), transition, lambda y, x, t: log_normal(y - x))
    a, b = (
        ParticleFilter(model, 100, rng=1, ess_threshold=1),
        ParticleFilter(model, 100, rng=1, ess_threshold=1),
    )
    for k in range(6):
        a.step(0.1 * k)
        if k:
            state.fail = True
            with pytest.raises(OSError):
                b.predict()
            state.fail = False
        assert b.step(0.1 * k).resampled == (k > 0)
    assert np.array_equal(a.particles, b.particles) and a.log_likelihood == b.log_likelihood


# ---- seeds, inputs untouched, views --------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_seeds_decide_everything_and_global_state_nothing(scheme):
    y = np.random.default_rng(3).normal(size=30)
    results = []
    for seed, noise in ((7, 0), (7, 1), (8, 0)):
        np.random.seed(noise)
        before = np.random.get_state()[1].copy()
        results.append(
            ParticleFilter(walk(), 100, rng=seed, resampling=scheme).run(y, store=("mean", "ancestors"))
        )
        assert np.array_equal(before, np.random.get_state()[1])
    a, b, c = results
    assert a.increment.tobytes() == b.increment.tobytes() and a.ancestors.tobytes() == b.ancestors.tobytes()
    assert a.mean.tobytes() == b.mean.tobytes() and a.log_likelihood != c.log_likelihood


def test_kinds_of_rng():
    y = [0.1, 0.2]
    same = [
        ParticleFilter(walk(), 10, rng=r).run(y).log_likelihood
        for r in (3, np.int64(3), np.random.SeedSequence(3))
    ]
    assert len(set(same)) == 1
    seeds = np.random.SeedSequence(3)
    assert (
        ParticleFilter(walk(), 10, rng=seeds).run(y).log_likelihood == same[0]
        and seeds.n_children_spawned == 0
    )
    rng = np.random.default_rng(3)
    a, b = (ParticleFilter(walk(), 10, rng=rng).run(y).log_likelihood for _ in range(2))
    assert a != b and a == ParticleFilter(walk(), 10, rng=np.random.default_rng(3)).run(y).log_likelihood
    assert (
        ParticleFilter(walk(), 10).run(y).log_likelihood != ParticleFilter(walk(), 10).run(y).log_likelihood
    )


def test_nothing_of_the_callers_is_written_to():
    first, g = np.arange(6.0), -np.arange(6.0)
    y, u = np.zeros((4, 1)), np.ones((4, 1))
    kept = [a.copy() for a in (first, g, y, u)]
    for a in (first, g, y, u):
        a.flags.writeable = False
    model = from_functions(lambda n, rng: first, lambda x, t, rng, u: x + u, lambda y, x, t: g, input_dim=1)
    for lse in KERNELS:
        ParticleFilter(model, 6, lse=lse, ess_threshold=1).run(y, u)
    assert all(np.array_equal(a, b) for a, b in zip(kept, (first, g, y, u), strict=True))


def test_the_model_may_not_write_to_particles_while_weighing():
    def log_likelihood(y, x, t):
        x += 1
        return x

    with pytest.raises(ValueError, match="read-only"):
        ParticleFilter(
            from_functions(lambda n, rng: np.zeros(n), lambda x, t, rng: x, log_likelihood), 3
        ).step(0)


def test_what_the_filter_shows_is_read_only():
    pf = ParticleFilter(walk((2,)), 5)
    with pytest.raises(RuntimeError, match="predict"):
        pf.particles  # noqa: B018
    pf.step([0.0, 0.0])
    for shown in (pf.particles, pf.weights, pf.log_weights):
        with pytest.raises(ValueError, match="read-only"):
            shown[0] = 1


def test_callable_resampling():
    calls = []

    def best(weights, n, rng):
        calls.append((weights.sum(), n))
        with pytest.raises(ValueError, match="read-only"):
            weights[0] = 1
        return np.full(n, np.argmax(weights))

    pf = ParticleFilter(walk(), 20, resampling=best, ess_threshold=1, rng=0)
    pf.step(0.0)
    winner = pf.particles[np.argmax(pf.weights)]
    pf.model.transition = lambda x, t, rng: x
    pf.predict()
    assert np.all(pf.particles == winner) and calls[0] == (pytest.approx(1), 20)
    assert pf.update(0.0).n_unique == 1
    broken = ParticleFilter(walk(), 20, resampling=lambda w, n, rng: np.arange(n) + 1, ess_threshold=1)
    with pytest.raises(ValueError, match="index 20"):
        broken.run([0.0, 0.0])


def test_angles_are_averaged_on_the_circle():
    class Compass(StateSpaceModel):
        state_dim, angle_dims = 2, (1,)
        start = np.array([[0.0, 3.1], [1.0, -3.1], [2.0, 3.0], [3.0, -3.05]])

        def initial(self, n, rng):
            return self.start

        def transition(self, x, t, rng):
            return x

        def log_likelihood(self, y, x, t):
            return np.zeros(len(x))

    pf = ParticleFilter(Compass(), 4)
    result = pf.run([0.0])
    np.testing.assert_allclose(result.mean[0], [1.5, 3.1291298251347266], rtol=1e-12)
    assert result.variance[0, 1] < 0.01 and np.array_equal(pf.mean, result.mean[0])


# ---- arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    [
        ({"n_particles": 0}, ValueError, "n_particles must be >= 1, not 0"),
        ({"n_particles": -5}, ValueError, "-5"),
        ({"n_particles": 10.0}, TypeError, "10.0"),
        ({"n_particles": True}, TypeError, "True"),
        ({"lse": "sum"}, ValueError, "'sum'.*'fuse', 'int', 'int-pairwise'"),
        ({"lse": 3}, TypeError, "3"),
        ({"resampling": "nope"}, ValueError, "'nope'.*'systematic'"),
        ({"resampling": 3}, TypeError, "callable"),
        ({"ess_threshold": -0.1}, ValueError, "-0.1"),
        ({"ess_threshold": float("nan")}, ValueError, "nan"),
        ({"ess_threshold": "half"}, TypeError, "'half'"),
        ({"rng": -1}, ValueError, "-1"),
        ({"rng": 1.5}, TypeError, "1.5"),
        ({"rng": np.random.RandomState(0)}, TypeError, "Generator"),
        ({"dtype": "float16"}, ValueError, "float16"),
        ({"dtype": "nonsense"}, ValueError, "nonsense"),
        ({"dtype": None}, ValueError, "None"),
        ({"n_threads": 0}, ValueError, "n_threads"),
        ({"on_collapse": "ignore"}, ValueError, "'ignore'.*'raise'|'raise'.*'ignore'"),
        ({"timers": 3}, TypeError, "Timers"),
        ({"model": object()}, TypeError, "initial"),
    ],
    ids=repr,
)
def test_invalid_options(options, kind, word):
    with pytest.raises(kind, match=word):
        ParticleFilter(**{"model": walk(), **options})


def test_invalid_calls():
    pf = ParticleFilter(walk(), 5)
    with pytest.raises(RuntimeError, match="predict"):
        pf.update(0.0)
    with pytest.raises(ValueError, match="time axis"):
        pf.run(np.array(3.0))
    for nothing in (3.0, None, "abc", {"y": [1.0]}):
        with pytest.raises(TypeError, match="observations must be an array"):
            pf.run(nothing)
    with pytest.raises(ValueError, match="input_dim 0"):
        pf.run([0.0], inputs=[1.0])
    with pytest.raises(ValueError, match="'mode'.*|.*'mean'"):
        pf.run([0.0], store=("mode",))
    with pytest.raises(TypeError, match="3"):
        pf.run([0.0], store=(3,))
    pf.step(0.0)
    with pytest.raises(ValueError, match="takes none"):
        pf.predict(1.0)

    driven = from_functions(
        lambda n, rng: np.zeros(n), lambda x, t, rng, u: x, lambda y, x, t: np.zeros(len(x)), input_dim=2
    )
    pf = ParticleFilter(driven, 5)
    with pytest.raises(ValueError, match="input_dim 2"):
        pf.run([0.0])
    with pytest.raises(ValueError, match="3 inputs for 2"):
        pf.run([0.0, 0.0], np.zeros((3, 2)))
    with pytest.raises(ValueError, match="ended at step 1"):
        pf.run(iter([0.0, 0.0]), iter([np.zeros(2)]))
    with pytest.raises(ValueError, match="none was given"):
        pf.step(0.0)
    with pytest.raises(ValueError, match=r"shape \(2,\), not \(3,\)"):
        pf.step(0.0, np.zeros(3))


@pytest.mark.parametrize(
    ("part", "value", "kind"),
    [
        ("initial", lambda n: np.zeros((n, 1, 1)), ValueError),
        ("initial", lambda n: np.zeros(n + 1), ValueError),
        ("initial", lambda n: np.zeros(n, complex), TypeError),
        ("initial", lambda n: np.array([None] * n), TypeError),
        ("transition", lambda n: np.zeros((n, 1)), ValueError),
        ("transition", lambda n: None, TypeError),
        ("transition", lambda n: 0.0, ValueError),
        ("log_likelihood", lambda n: np.zeros((n, 1)), ValueError),
        ("log_likelihood", lambda n: 0.0, ValueError),
        ("log_likelihood", lambda n: np.zeros(n, complex), TypeError),
        ("log_likelihood", lambda n: None, TypeError),
    ],
)
def test_models_that_return_the_wrong_thing_are_named(part, value, kind):
    parts = {
        "initial": lambda n, rng: np.zeros(n),
        "transition": lambda x, t, rng: x,
        "log_likelihood": lambda y, x, t: np.zeros(len(x)),
    }
    parts[part] = lambda a, *rest: value(5)
    with pytest.raises(kind, match=part):
        ParticleFilter(from_functions(**parts), 5).run([0.0, 0.0])


def test_a_declared_state_dim_is_enforced():
    model = SimpleNamespace(
        state_dim=2, initial=lambda n, rng: np.zeros((n, 3)), transition=None, log_likelihood=lambda *a: None
    )
    model.transition = lambda x, t, rng: x
    with pytest.raises(ValueError, match=r"state_dim 2.*\(4, 3\).*\(4, 2\)"):
        ParticleFilter(model, 4).predict()


def test_the_array_given_to_run_is_shown_read_only_to_the_model():
    y = np.zeros((3, 2))

    def log_likelihood(y, x, t):
        y[0] = 1
        return np.zeros(len(x))

    model = from_functions(lambda n, rng: np.zeros(n), lambda x, t, rng: x, log_likelihood)
    with pytest.raises(ValueError, match="read-only"):
        ParticleFilter(model, 2).run(y)
    assert np.all(y == 0) and y.flags.writeable


def test_series_of_other_kinds():
    y = np.random.default_rng(0).normal(size=(6, 2))
    y[3] = np.nan
    expected = ParticleFilter(walk((2,)), 20, rng=0).run(y).increment.tolist()
    masked = np.ma.masked_invalid(y)
    same = [list(y), tuple(map(tuple, y)), iter(y), y.tolist(), masked, np.asfortranarray(y), y[::1]]
    if importlib.util.find_spec("pandas"):
        import pandas

        same.append(pandas.DataFrame(y, columns=["a", "b"]))
        flat = ParticleFilter(walk(), 20, rng=0).run(pandas.Series(y[:, 0]))
        assert flat.increment.tolist() == ParticleFilter(walk(), 20, rng=0).run(y[:, 0]).increment.tolist()
    for series in same:
        assert ParticleFilter(walk((2,)), 20, rng=0).run(series).increment.tolist() == expected


def test_progress(capsys):
    seen = []
    ParticleFilter(walk(), 5).run([0.0] * 3, progress=lambda done, total: seen.append((done, total)))
    ParticleFilter(walk(), 5).run(iter([0.0] * 2), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3), (1, None), (2, None)]
    ParticleFilter(walk(), 5).run([0.0] * 3, progress=True)
    assert "step 3 of 3" in capsys.readouterr().err


def test_repr_says_what_it_is():
    pf = ParticleFilter(LocalLevel(1.0, 2.0), 7, lse="int")
    assert "LocalLevel" in repr(pf) and "N=7" in repr(pf) and "'int'" in repr(pf)
