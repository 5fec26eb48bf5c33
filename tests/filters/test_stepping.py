"""The compiled loop: the bits of the filter stepped from Python, at any number of threads and SIMD level."""

import copy
import hashlib
import math
import os
import pickle
import re
import threading
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from pfkit import (
    BearingsOnly,
    CollapseWarning,
    CompiledModel,
    FilterBank,
    FilterCollapse,
    InvalidWeight,
    LinearGaussian,
    LocalLevel,
    ParticleFilter,
    RangeRobot,
    RangeRobotNoise,
    StochasticVolatility,
    ThetaLogistic,
)
from pfkit.filters.stepping import compiled_model, table, vector
from pfkit_ext import _cpu

T = 24
RNG = np.random.default_rng(11)


def linear_model():
    a = np.array([[0.9, 0.2, 0.0], [-0.1, 0.7, 0.1], [0.0, 0.0, 1.0]])
    q = np.array([[0.5, 0.1, 0.0], [0.1, 0.3, 0.05], [0.0, 0.05, 0.2]])
    h = np.array([[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]])
    return LinearGaussian(a, q, h, [[0.4, 0.1], [0.1, 0.3]], np.zeros(3), np.eye(3))


def robot(**noise):
    anchors = [[0.0, 0.0, 2.0], [8.0, 0.0, 1.5], [4.0, 6.0, 2.5]]
    return RangeRobot(
        anchors, tag_offset=(0.1, -0.05, 0.4), start=(3, 2, 0.2), noise=RangeRobotNoise(**noise)
    )


LINEAR_Y = RNG.normal(size=(T, 2))
LINEAR_Y[3, 0] = LINEAR_Y[9, 1] = np.nan
LINEAR_Y[5] = np.nan
RANGES = np.abs(RNG.normal(4, 1, size=(T, 3)))
RANGES[2, 1] = RANGES[7] = np.nan
WALK = np.cumsum(RNG.normal(size=T))
WALK[6] = WALK[15:17] = np.nan
PATH = np.cumsum(RNG.normal(size=(T, 2)), axis=0)
ODOMETRY = RNG.normal(size=(T, 3)) * 0.1

CASES = {
    "local level": (LocalLevel(1.0, 0.8), WALK, None),
    "local level without process noise": (LocalLevel(0.0, 0.8), WALK, None),
    "volatility": (StochasticVolatility(-0.5, 0.95, 0.3), RNG.normal(size=T), None),
    "volatility (n, 1), zeros": (StochasticVolatility(-0.5, 0.95, 0.3, state_dim=1), np.zeros(T), None),
    "theta-logistic": (ThetaLogistic(), RNG.normal(size=T), None),
    "linear scalar": (LinearGaussian(0.9, 1.0, 1.0, 0.5, 0.0, 1.0), WALK, None),
    "linear, partly missing": (linear_model(), LINEAR_Y, None),
    "bearings": (
        BearingsOnly((0.5, -1.0), (3, 4, 0.1, -0.2), np.eye(4), 0.1, 0.05),
        RNG.uniform(-9, 9, T),
        None,
    ),
    "bearings from a path": (
        BearingsOnly(PATH, (3, 4, 0, 0), np.eye(4), 0.1, 0.3, 0.5),
        RNG.uniform(0, 2, T),
        None,
    ),
    "bearings, no process noise": (BearingsOnly((0, 0), (3, 4, 0, 0), np.eye(4), 0.0, 0.3), np.ones(T), None),
    "robot": (robot(range_sd=[0.3, 0.4, 0.5], range_bias=0.1), RANGES, ODOMETRY),
    "robot without outliers": (robot(outlier_probability=0.0, range_sd=1.5), RANGES, ODOMETRY),
}
FIELDS = ("increment", "ess", "resampled", "n_unique", "mean", "variance")
STATE = ("particles", "weights", "log_weights", "log_likelihood", "time", "ess")


def filters(case, n, how, **options):
    """Two equal filters, the second stepped from Python."""
    model, y, u = CASES[case]
    a, b = (ParticleFilter(model, n, rng=3, **options) for _ in range(2))
    assert a._engine is not None and a._engine.whole
    b._engine.whole = False
    store = () if model.__class__ is RangeRobot else ("mean", "variance")
    return a, b, y, u, store


def assert_same(first, second, names):
    for name in names:
        if hasattr(first, name) or hasattr(second, name):
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("lse", ["fuse", "int"])
@pytest.mark.parametrize("case", CASES)
def test_loop_has_the_bits_of_the_steps(case, lse, dtype):
    for n, threshold in ((1, 0.5), (700, 0.5), (1100, 1.0)):
        a, b, y, u, store = filters(case, n, None, lse=lse, dtype=dtype, ess_threshold=threshold)
        for part in (slice(0, 9), slice(9, T)):
            inputs = None if u is None else u[part]
            first, second = (pf.run(y[part], inputs, store=store) for pf in (a, b))
            assert_same(first, second, FIELDS)
            assert first.log_likelihood == second.log_likelihood
            np.testing.assert_equal(first.lse_error_bound, second.lse_error_bound)
            assert_same(a, b, STATE)


@pytest.mark.parametrize("scheme", ["systematic", "stratified", "multinomial", "residual"])
@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_the_loop_over_several_blocks_has_the_bits_of_the_steps(lse, scheme):
    """Blocks are of 512 particles when they move and of 4096 when they are weighed."""
    for dtype, n, threshold in (("float64", 9001, 1.0), ("float32", 8192, 0.9), ("float64", 4097, 0.0)):
        for case in ("local level", "linear, partly missing"):
            options = {"lse": lse, "dtype": dtype, "resampling": scheme, "ess_threshold": threshold}
            a, b, y, u, store = filters(case, n, None, n_threads=2, **options)
            first, second = (pf.run(y, u, store=store) for pf in (a, b))
            assert_same(first, second, FIELDS)
            assert_same(a, b, STATE)


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_one_particle_may_tower_over_the_rest(lse):
    """A nearly certain particle whose log-weight is about 0: its sum is taken another way; and it has most of
    the offspring, across blocks.
    """
    model = LocalLevel(1e-9, 1 / math.sqrt(2 * math.pi))
    for threshold in (1.0, 0.5):
        a, b = (ParticleFilter(model, 5000, lse=lse, rng=3, ess_threshold=threshold) for _ in range(2))
        b._engine.whole = False
        for pf in (a, b):
            pf.predict()
            pf._x[:] = 60.0
            pf._x[0, 1000] = 0.0
            pf._log_w[:] = -800.0
            pf._log_w[1000] = 0.0
            pf._w[:] = 0.0
            pf._w[1000] = 1.0
        y = np.array([0.0, 0.01, 0.02, -0.5])
        first, second = a.run(y), b.run(y)
        assert_same(first, second, FIELDS)
        assert_same(a, b, STATE)
        assert first.n_unique.min() == 1


@pytest.mark.parametrize("scheme", ["systematic", "residual"])
@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_the_loop_beyond_32_bit_weights_has_the_bits_of_the_steps(lse, scheme):
    options = {"lse": lse, "resampling": scheme, "ess_threshold": 1.0, "dtype": "float32"}
    a, b, y, u, store = filters("local level", 2**20 + 5, None, **options)
    first, second = (pf.run(y[:4], u, store=store) for pf in (a, b))
    assert_same(first, second, FIELDS)
    assert_same(a, b, STATE)


@pytest.mark.parametrize("case", ["local level", "linear, partly missing", "robot"])
@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_any_number_of_threads_gives_the_same_bits(case, lse):
    model, y, u = CASES[case]
    for dtype in ("float64", "float32"):
        runs = []
        for threads in (1, 2, 3, 8):
            pf = ParticleFilter(model, 33_000, lse=lse, rng=5, dtype=dtype, n_threads=threads)
            runs.append((pf.run(y, u, store=()), pf))
        for result, pf in runs[1:]:
            assert_same(runs[0][0], result, FIELDS[:4])
            assert_same(runs[0][1], pf, STATE)


DIGEST = """
import hashlib, sys
sys.path.insert(0, {folder!r})
import test_stepping as t
h = hashlib.sha256()
for case in t.CASES:
    for lse in ("fuse", "int"):
        for dtype in ("float64", "float32"):
            model, y, u = t.CASES[case]
            pf = t.ParticleFilter(model, 600, lse=lse, rng=2, dtype=dtype)
            h.update(pf.run(y, u, store=()).increment.tobytes())
            h.update(pf.particles.tobytes() + pf.weights.tobytes())
print(h.hexdigest())
"""


def test_whole_filters_have_the_same_bits_at_every_simd_level(at_every_level):
    digests = at_every_level(DIGEST.format(folder=os.path.dirname(__file__)))
    assert len(set(digests.values())) == 1, digests


# ---- the compiled models are the Python models ---------------------------------------------------------


class Fixed:
    """Hands out the noise that a compiled transition of one block is given."""

    def __init__(self, noise):
        self.noise = noise

    def standard_normal(self, size=None, dtype=np.float64):
        return self.noise.reshape(size if isinstance(size, tuple) else (size,)).astype(dtype)


@pytest.mark.parametrize("case", CASES)
def test_compiled_functions_agree_with_the_python_model(case):
    model, observations, inputs = CASES[case]
    n, t = 512, 3
    pf = ParticleFilter(model, n, rng=1)
    pf.predict()
    engine, stepper = pf._engine, pf._engine.stepper(pf)
    x = pf._x + RNG.normal(size=pf._x.shape)
    shown = x[0] if pf._scalar else x.T
    stream = (int(pf._streams.key[1]) >> 1) ^ (4 << 48 | t)
    noise = np.empty((engine.compiled.noise_dim, n))
    for i, row in enumerate(noise):
        _cpu.random_fill(row, "normal", int(pf._streams.key[0]), stream, 8 * i)
    moved = np.empty_like(x)
    u = () if inputs is None else (inputs[t],)
    stepper.move(0, x, moved, t, *u)
    expected = model.transition(
        shown.copy(), t, Fixed(noise if len(noise) > 1 else noise[0][:, None][:, 0]), *u
    )
    expected = np.asarray(expected)[None] if pf._scalar else np.asarray(expected).T
    np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-13)
    for k in (t, 2, 9):
        y = observations[k]
        if np.all(np.isnan(y)):
            continue
        g = np.empty(n)
        stepper.weigh(0, x, g, k, vector(y, engine.compiled.observation_dim))
        np.testing.assert_allclose(g, model.log_likelihood(y, shown, k), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_float32_functions_agree_with_the_float64_ones(case):
    model, observations, inputs = CASES[case]
    a, b = (ParticleFilter(model, 500, rng=1, dtype=d) for d in ("float64", "float32"))
    a.predict(), b.predict()
    a._x[:] = b._x
    y = vector(observations[0], a._engine.compiled.observation_dim)
    g, h = a._engine.weigh(a, y), b._engine.weigh(b, y)
    scale = 1 + np.abs(g).max()
    np.testing.assert_allclose(h, g, rtol=3e-5, atol=3e-6 * scale)


def test_volatility_of_an_extreme_return():
    pf = ParticleFilter(StochasticVolatility(0.0, 0.5, 1.0), 4, rng=1)
    pf.predict()
    pf._x[0] = [-1500.0, 1500.0, 0.0, -5.0]
    for y in (0.0, 1e-160, 1e160, -3.0):
        g = pf._engine.weigh(pf, y)
        np.testing.assert_allclose(g, pf.model.log_likelihood(y, pf.particles, 0), rtol=1e-12)


# ---- contract -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["keep", "warn"])
@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_collapse_in_the_loop_is_that_of_the_steps(lse, policy):
    model = LocalLevel(1.0, 1e-3)
    y = np.array([0.0, 0.1, 1e170, 0.2, np.nan, 1e170])
    a, b = (ParticleFilter(model, 800, lse=lse, rng=3, on_collapse=policy) for _ in range(2))
    b._engine.whole = False
    if policy == "warn":
        with pytest.warns(CollapseWarning, match="step 2"):
            first = a.run(y)
        with pytest.warns(CollapseWarning):
            second = b.run(y)
    else:
        first, second = a.run(y), b.run(y)
    assert first.increment[2] == -math.inf and first.ess[2] == 0
    assert_same(first, second, FIELDS)
    assert_same(a, b, STATE)


@pytest.mark.parametrize("whole", [True, False])
def test_collapse_raises_with_what_came_before(whole):
    pf = ParticleFilter(LocalLevel(1.0, 1e-3), 800, rng=3)
    pf._engine.whole = whole
    with pytest.raises(FilterCollapse) as caught:
        pf.run([0.0, 0.1, 1e170, 0.2])
    assert caught.value.step == 2 and len(caught.value.result) == 2 and pf.time == 2
    assert len(caught.value.result.mean) == 2


def test_invalid_weights_are_named_by_the_loop():
    pf = ParticleFilter(LocalLevel(1.0, 1.0), 100, rng=3)
    pf.run([0.0])
    pf._x[0, 17] = np.nan
    pf._resample_next = False
    with pytest.raises(InvalidWeight) as caught:
        pf.run([0.0, 1.0])
    assert caught.value.particle == 17 and caught.value.step == 1


def test_an_overridden_method_takes_the_python_path():
    class Heavier(LocalLevel):
        def log_likelihood(self, y, x, t):
            return super().log_likelihood(y, x, t) - 1.0

    class Renamed(LocalLevel):
        pass

    instance = LocalLevel(1.0, 1.0)
    instance.transition = lambda x, t, rng: x
    assert compiled_model(Heavier(1.0, 1.0), np.dtype("f8")) is None
    assert compiled_model(instance, np.dtype("f8")) is None
    assert compiled_model(Renamed(1.0, 1.0), np.dtype("f8")) is not None
    plain = ParticleFilter(LocalLevel(1.0, 1.0), 200, rng=1, ess_threshold=1).run(WALK)
    heavier = ParticleFilter(Heavier(1.0, 1.0), 200, rng=1, ess_threshold=1).run(WALK)
    assert abs(heavier.log_likelihood - plain.log_likelihood + 21) < 5


def test_a_path_that_ends_is_an_error_of_the_model():
    model, y, _ = CASES["bearings from a path"]
    pf = ParticleFilter(model, 50, rng=1)
    with pytest.raises(ValueError, match="no sensor position for step 24"):
        pf.run(np.append(y, 1.0))
    assert pf.time == 24


def test_observations_of_other_kinds_fall_back():
    model = LocalLevel(1.0, 1.0)
    expected = ParticleFilter(model, 50, rng=1).run([0.5, None, 1.0]).increment
    for series in (
        iter([0.5, None, 1.0]),
        [0.5, float("nan"), np.float32(1.0)],
        np.array([0.5, np.nan, 1.0])[:, None],
    ):
        np.testing.assert_array_equal(ParticleFilter(model, 50, rng=1).run(series).increment, expected)
    masked = np.ma.masked_invalid([0.5, np.nan, 1.0])
    np.testing.assert_array_equal(ParticleFilter(model, 50, rng=1).run(masked).increment, expected)
    np.testing.assert_array_equal(table(masked, 1), [[0.5], [np.nan], [1.0]])
    assert table([[1, 2], [3]], 2) is None and table(["a"], 1) is None
    assert vector([1, 2], 3) is None and vector({"a": 1}, 1) is None and vector([[1, 2], [3]], 2) is None


def test_a_copy_goes_its_own_way():
    pf = ParticleFilter(LocalLevel(1.0, 1.0), 300, lse="int", rng=1, ess_threshold=0.3)
    pf.run(WALK[:5])
    twin = copy.deepcopy(pf)
    digest = hashlib.sha256(pf.particles.tobytes()).hexdigest()
    first = twin.run(WALK[5:])
    assert hashlib.sha256(pf.particles.tobytes()).hexdigest() == digest
    assert_same(first, pf.run(WALK[5:]), FIELDS)


def test_the_caller_s_arrays_are_untouched_and_read_only_ones_accepted():
    y = WALK.copy()
    y.flags.writeable = False
    before = y.tobytes()
    ParticleFilter(LocalLevel(1.0, 1.0), 100, rng=1).run(y)
    assert y.tobytes() == before


def test_progress_is_reported_step_by_step():
    seen = []
    ParticleFilter(LocalLevel(1.0, 1.0), 100, rng=1).run(
        WALK, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(k + 1, T) for k in range(T)]


@pytest.mark.parametrize("every", [None, 1, 3])
def test_timers_change_nothing_and_see_every_phase(every):
    from pfkit import Timers

    y = np.tile(WALK, 6)
    timers = Timers(every)
    timed = ParticleFilter(LocalLevel(1.0, 1.0), 700, rng=1, ess_threshold=1, timers=timers)
    plain = ParticleFilter(LocalLevel(1.0, 1.0), 700, rng=1, ess_threshold=1)
    assert_same(timed.run(y), plain.run(y), FIELDS)
    assert_same(timed, plain, STATE)
    assert timers.steps == len(y) and 1 <= timers.steps_timed <= len(y)
    if every == 1:
        phases = {row.phase for row in timers.rows()}
        assert {"propagate", "likelihood", "lse", "resample", "gather"} <= phases


def plain(model):
    """The same model without its compiled functions."""
    model = copy.copy(model)
    model.compiled = lambda: None
    return model


@pytest.mark.parametrize(
    "bad", [np.nan, np.inf, -np.inf, np.ma.masked], ids=["nan", "inf", "minus inf", "masked"]
)
@pytest.mark.parametrize("as_list", [False, True])
def test_inputs_must_be_finite(bad, as_list):
    model, k = robot(), 6
    u = np.ma.array(ODOMETRY) if bad is np.ma.masked else ODOMETRY.copy()
    u[k, 1] = bad
    u = list(u) if as_list else u
    states = []
    for m in (model, plain(model)):
        pf = ParticleFilter(m, 100, rng=1)
        with pytest.raises(ValueError, match="step 6: the input must be finite, not "):
            pf.run(RANGES, u)
        states.append((pf.time, np.isfinite(pf.particles).all()))
        bank = FilterBank(m, 100, n_filters=2, rng=1)
        with pytest.raises(ValueError, match="step 6: the input must be finite, not "):
            bank.run(RANGES, u)
        pf = ParticleFilter(m, 100, rng=1)
        pf.step(RANGES[0], ODOMETRY[0])
        with pytest.raises(ValueError, match="step 1: the input must be finite, not "):
            pf.predict(u[k])
        assert pf.time == 0 and pf.predict(ODOMETRY[1]) is None
    assert states == [(5, True)] * 2


def test_the_first_input_of_a_new_filter_is_not_looked_at():
    u = ODOMETRY.copy()
    u[0] = np.nan
    results = [
        ParticleFilter(robot(), 100, rng=1).run(RANGES, u).log_likelihood,
        ParticleFilter(robot(), 100, rng=1).run(RANGES, ODOMETRY).log_likelihood,
        FilterBank(robot(), 100, rng=1).run(RANGES, u).log_likelihood[0],
    ]
    assert len(set(results)) == 1 and math.isfinite(results[0])
    pf = ParticleFilter(robot(), 100, rng=1)
    pf.run(RANGES[:5], u[:5])
    with pytest.raises(ValueError, match="step 5: the input must be finite"):
        pf.run(RANGES[:5], u[:5])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("coordinate, bad", [(0, np.nan), (1, np.nan), (2, np.nan), (2, np.inf)])
def test_a_robot_that_stands_nowhere_is_invalid_not_an_outlier(dtype, coordinate, bad):
    model = robot(outlier_probability=0.1)
    for n, at in ((100, 0), (100, 99), (7, 3)):
        pf = ParticleFilter(model, n, rng=1, dtype=dtype)
        pf.step(RANGES[0], ODOMETRY[0])
        pf._x[coordinate, at] = bad
        with pytest.raises(InvalidWeight) as caught:
            pf.update(RANGES[1])
        assert caught.value.particle == at


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("bad", [0.0, np.nan, -1.0])
def test_the_loop_refuses_weights_that_cannot_be_resampled(bad, dtype):
    pf = ParticleFilter(LocalLevel(1.0, 0.8), 64, rng=1, dtype=dtype, ess_threshold=1)
    pf.run(WALK[:3])
    pf._w[:] = bad
    with pytest.raises(ValueError, match="no ancestors can be drawn"):
        pf.run(WALK[3:6])
    pf = ParticleFilter(LocalLevel(1.0, 0.8), 64, rng=1, lse="int", dtype=dtype, ess_threshold=1)
    pf.run(WALK[:3])
    pf._ints[:] = 0
    with pytest.raises(ValueError, match="no ancestors can be drawn"):
        pf.run(WALK[3:6])


@pytest.mark.parametrize(
    "y",
    [1 + 0j, "0.5", b"0.5", np.datetime64("2020-01-01"), np.timedelta64(3, "s"), np.ma.array([1j])],
    ids=lambda y: type(y).__name__,
)
def test_observations_that_are_no_real_numbers_are_refused(y):
    pf = ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=1)
    pf.predict()
    with pytest.raises(TypeError, match="dtype " + re.escape(str(np.asarray(y).dtype))):
        pf.update(y)
    for series in ([0.1, y], np.array([y, y]).reshape(2)):
        with pytest.raises(TypeError, match="dtype"):
            ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=1).run(series)
        with pytest.raises(TypeError, match="dtype"):
            FilterBank(LocalLevel(1.0, 1.0), 50, rng=1).run(series)


def test_observations_that_are_real_numbers_of_any_kind():
    expected = ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=1).run([1.0, None, 0.0]).increment
    for series in (
        [Fraction(1), None, Decimal(0)],
        [True, None, False],
        np.array([1, None, 0], object),
        [np.float32(1), np.nan, np.int8(0)],
    ):
        result = ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=1).run(series)
        np.testing.assert_array_equal(result.increment, expected)
    flags = np.array([True, False])
    first = ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=1).run(flags).increment
    assert_equal = np.testing.assert_array_equal
    assert_equal(first, ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=1).run(flags * 1.0).increment)


@pytest.mark.parametrize("compiled", [True, False])
def test_one_filter_in_two_threads_is_refused(compiled):
    entered, leave = threading.Event(), threading.Event()

    class Slow(LocalLevel):
        def initial(self, n, rng):
            entered.set()
            assert leave.wait(20)
            return super().initial(n, rng)

    model = Slow(1.0, 1.0) if compiled else plain(Slow(1.0, 1.0))
    pf = ParticleFilter(model, 50, rng=1)
    bank = FilterBank(model, 50, rng=1)
    bank.filters[0] = pf
    results = []
    worker = threading.Thread(target=lambda: results.append(pf.run(WALK)))
    worker.start()
    try:
        assert entered.wait(20)
        for call in (
            lambda: pf.run(WALK),
            lambda: pf.step(0.0),
            pf.predict,
            lambda: pf.update(0.0),
            lambda: bank.run(WALK),
        ):
            with pytest.raises(RuntimeError, match="^this filter is in use by another thread$"):
                call()
    finally:
        leave.set()
        worker.join()
    alone = LocalLevel(1.0, 1.0)
    again = ParticleFilter(alone if compiled else plain(alone), 50, rng=1).run(WALK)
    assert results[0].log_likelihood == again.log_likelihood
    pf.step(0.0)
    twin = pickle.loads(pickle.dumps(ParticleFilter(alone, 50, rng=1)))
    assert twin.run(WALK).log_likelihood == ParticleFilter(alone, 50, rng=1).run(WALK).log_likelihood


def test_a_filter_is_free_again_after_an_error():
    pf = ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=1)
    for call in (lambda: pf.update(0.0), lambda: pf.run(3), lambda: pf.predict(1.0) or pf.predict(1.0)):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            call()
    answers = []
    worker = threading.Thread(target=lambda: answers.append(pf.run(WALK)))
    worker.start()
    worker.join()
    assert len(answers) == 1


@pytest.mark.parametrize("model", [LocalLevel(1.0, 1.0), plain(LocalLevel(1.0, 1.0))])
def test_a_missing_observation_after_a_kept_collapse_has_no_ess(model):
    pf = ParticleFilter(model, 16, rng=1, on_collapse="keep")
    pf.step(1e200)
    assert pf.update(None).ess == pf.ess == 0.0


def test_dimensions_that_disagree_say_what_to_change():
    class Flat(LinearGaussian):
        def compiled(self):
            return CompiledModel.ready("local_level", [1.0, 1.0, 0.0], state_dim=None)

    model = Flat(np.eye(3), np.eye(3), np.eye(3), np.eye(3), np.zeros(3), np.eye(3))
    expected = (
        "Flat.compiled() returned state_dim None, input_dim 0; the model has state_dim 3, input_dim 0: "
        "pass CompiledModel(..., state_dim=3)"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        ParticleFilter(model, 10)


@pytest.mark.parametrize("lse", ["int", "fuse"])
@pytest.mark.parametrize("ess_threshold", [0, 0.5, 1])
def test_weights_after_a_kept_collapse_are_those_of_the_log_weights(lse, ess_threshold):
    pf = ParticleFilter(
        LocalLevel(1.0, 1.0), 64, lse=lse, rng=1, ess_threshold=ess_threshold, on_collapse="keep"
    )
    pf.run([0.1, 0.5, -0.3, 0.2, 1e170], store=())
    np.testing.assert_allclose(pf.weights, np.exp(pf.log_weights), rtol=5e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("y", [2.0, -3e5, 1e9, -1e12, 3e30])
def test_a_bearing_of_any_size_is_wrapped(y, dtype):
    """The residual is what whole turns of float64's 2 pi leave, between -pi and pi."""
    model = BearingsOnly((0.5, -1.0), (3, 4, 0.1, -0.2), np.eye(4), 0.1, 0.5)
    pf = ParticleFilter(model, 600, rng=1, dtype=dtype)
    pf.predict()
    x = pf.particles
    bearing = np.arctan2(x[:, 1] - x.dtype.type(-1.0), x[:, 0] - x.dtype.type(0.5))
    away = [math.remainder(float(v), 2 * math.pi) for v in x.dtype.type(y) - bearing]
    expected = -0.5 * (np.array(away) / 0.5) ** 2 - math.log(0.5) - 0.5 * math.log(2 * math.pi)
    # whole turns of the exact 2 pi are taken from the smaller ones
    np.testing.assert_allclose(
        pf._engine.weigh(pf, y), expected, rtol=0, atol=1e-6 if dtype == "float64" else 1e-4
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("y", [0.0, 0.7, -2.3, math.pi, -3.1, 31.0, -33.0])
def test_bearings_all_around_the_sensor(y, dtype):
    """In every direction, near, far and on the sensor; each particle's weight is its own affair."""
    sensor, n = (0.5, -1.0), 601
    pf = ParticleFilter(BearingsOnly(sensor, (3, 4, 0.1, -0.2), np.eye(4), 0.1, 0.5), n, rng=1, dtype=dtype)
    pf.predict()
    rng = np.random.default_rng(3)
    angle, distance = y + np.linspace(-np.pi, np.pi, n), 10.0 ** rng.uniform(-2, 6, n)
    order = rng.permutation(n)
    pf._x[0], pf._x[1] = (sensor[0] + distance * np.cos(angle)), (sensor[1] + distance * np.sin(angle))
    pf._x[:2, 7] = sensor
    east, north = pf._x[0].astype(float) - sensor[0], pf._x[1].astype(float) - sensor[1]
    away = np.array([math.remainder(y - v, 2 * math.pi) for v in np.arctan2(north, east)])
    expected = -0.5 * (away / 0.5) ** 2 - math.log(0.5) - 0.5 * math.log(2 * math.pi)
    got = pf._engine.weigh(pf, y)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-13 if dtype == "float64" else 1e-4)
    pf._x[:] = pf._x[:, order]
    np.testing.assert_array_equal(pf._engine.weigh(pf, y), got[order])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_particle_that_stands_nowhere_has_no_bearing(dtype):
    pf = ParticleFilter(BearingsOnly((0, 0), (3, 4, 0, 0), np.eye(4), 0.1, 0.5), 70, rng=1, dtype=dtype)
    pf.predict()
    pf._x[1, 40] = np.nan
    got = pf._engine.weigh(pf, 0.9)
    assert np.flatnonzero(np.isnan(got)).tolist() == [40]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("turn", [-1e6, 1e9, 1e20])
def test_a_heading_stays_between_minus_pi_and_pi(turn, dtype):
    pf = ParticleFilter(robot(), 600, rng=1, dtype=dtype)
    pf.predict()
    pf.predict([0.1, 0.0, turn])
    heading = pf.particles[:, 2]
    assert np.abs(heading).max() <= np.nextafter(heading.dtype.type(np.pi), heading.dtype.type(4))
    assert np.ptp(heading) > 1  # noise grows with the turn


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_scales_beyond_float32_take_the_python_model(scale):
    """The standard deviation 1e-150 has no inverse in float32, and 1e300 is no float32 at all."""
    model = LinearGaussian(1.0, 1.0, 1.0, scale, 0.0, 1.0)
    assert compiled_model(model, np.dtype("float64")) is not None
    pf = ParticleFilter(model, 50, rng=1, dtype="float32", on_collapse="keep")
    pf.predict()
    g = model.log_likelihood(0.5, pf.particles, 0)
    step = pf.update(0.5)
    with np.errstate(over="ignore"):
        expected = np.logaddexp.reduce((g - math.log(50)).astype(np.float32).astype(float))
    assert (
        step.increment == pytest.approx(expected, rel=1e-6)
        if np.isfinite(expected)
        else step.increment == -np.inf
    )
