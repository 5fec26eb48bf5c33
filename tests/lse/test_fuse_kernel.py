"""The compiled float log-sum-exp: its blocks, its state, its running form, its weights, its special values.

Accuracy against exact values over many inputs is in tests/accuracy/test_lse_accuracy.py.
"""

import mpmath
import numpy as np
import pytest

from pfkit.lse.kernels import fuse_bound
from pfkit_ext import _cpu

DTYPES = [np.float32, np.float64]
BLOCK = 4096
SIZES = [1, 2, 15, 16, 17, 255, 256, 257, 271, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5, 3 * BLOCK]
TAILS = [[-40.0], [-45.0, -50.0], [-20.0] * 5000, [-85.0], [-3.6], [-100.0, -np.inf]]


def eps_of(dtype):
    return float(np.finfo(dtype).eps)


def exact(x):
    """log sum exp(x) at 60 digits."""
    with mpmath.workdps(60):
        values = [mpmath.mpf(v) for v in np.asarray(x, float).tolist() if v > -np.inf]
        m = max(values)
        return m + mpmath.log(mpmath.fsum(mpmath.exp(v - m) for v in values))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_every_element_counts_once(dtype, n):
    """Raising any one element by log 2 adds exactly its share again, wherever it lies."""
    base = np.full(n, -3.0, dtype)
    whole = float(_cpu.lse_1d(base, "fuse"))
    assert whole == pytest.approx(-3.0 + np.log(n), abs=4 * float(np.spacing(dtype(max(3.0, np.log(n))))))
    for at in {0, n // 2, n - 1, min(n - 1, BLOCK), (n // 16) * 16 - 1} - {-1}:
        x = base.astype(np.float64)
        x[at] = np.log(n) - 3.0  # as much again as all the others together
        x = x.astype(dtype)
        gain = float(_cpu.lse_1d(x, "fuse")) - float(exact(x))
        assert abs(gain) <= fuse_bound(n, np.dtype(dtype)) + float(np.spacing(dtype(max(3.0, np.log(n)))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_special_values_are_found_in_every_block(dtype, value):
    """The maximum of a block is found while the one before it is summed: nothing may slip through between."""
    n = 3 * BLOCK + 100
    places = (0, 15, 16, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK + 7, 3 * BLOCK - 1, 3 * BLOCK, n - 1)
    for fill in (-1.0, -np.inf):
        for at in places:
            x = np.full(n, fill, dtype)
            x[at] = value
            got = _cpu.lse_1d(x, "fuse")
            assert np.isnan(got) if np.isnan(value) else got == np.inf
            weights, log_norm, ess, ints = _cpu.normalize(x, "fuse")
            assert np.isnan(weights).all() and np.isnan(ess) and ints is None
            assert np.isnan(log_norm) if np.isnan(value) else log_norm == np.inf
            running = _cpu.logcumsumexp_rows(x[None])[0]
            assert (running[:at] <= np.log(n)).all()
            assert np.isnan(running[at:]).all() if np.isnan(value) else (running[at:] == np.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_wins_over_infinity_in_any_order(dtype):
    for order in ([np.inf, np.nan], [np.nan, np.inf]):
        x = np.zeros(2 * BLOCK + 9, dtype)
        x[3], x[BLOCK + 20] = order
        assert np.isnan(_cpu.lse_1d(x, "fuse"))
        maximum, total = _cpu.fuse_state_rows(x[None])
        assert np.isnan(maximum[0]) and np.isnan(total[0])
        assert np.isnan(_cpu.logcumsumexp_rows(x[None])[0, -1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_infinity_is_no_element(dtype):
    rng = np.random.default_rng(5)
    x = rng.normal(size=2 * BLOCK + 77).astype(dtype)
    x[: BLOCK + 10] = -np.inf  # a whole block of nothing, then a partial one
    assert _cpu.lse_1d(x, "fuse") == pytest.approx(float(exact(x)), rel=2 * eps_of(dtype))
    weights, _, _, _ = _cpu.normalize(x, "fuse", np.full_like(x, np.nan))
    assert (weights[: BLOCK + 10] == 0).all() and (weights[BLOCK + 10 :] > 0).all()
    running = _cpu.logcumsumexp_rows(x[None])[0]
    assert (running[: BLOCK + 10] == -np.inf).all() and np.isfinite(running[BLOCK + 10 :]).all()
    nothing = np.full(BLOCK + 3, -np.inf, dtype)
    assert _cpu.lse_1d(nothing, "fuse") == -np.inf
    weights, log_norm, ess, _ = _cpu.normalize(nothing, "fuse", np.full_like(nothing, np.nan))
    assert (weights == 0).all() and log_norm == -np.inf and ess == 0.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_values(dtype):
    big = np.finfo(dtype).max
    for x in ([big, big], [-big, big], [-big, -big], [-big, 0.0], [big, -np.inf]):
        x = np.array(x, dtype)
        assert _cpu.lse_1d(x, "fuse") == x.max()
    tiny = np.finfo(dtype).smallest_subnormal
    assert _cpu.lse_1d(np.array([tiny], dtype), "fuse") == tiny


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rest", TAILS)
def test_the_tail_beside_a_maximum_of_zero(dtype, rest):
    """log(1 + tiny) keeps all its digits, as in SciPy."""
    x = np.random.default_rng(1).permutation(np.array([0.0, *rest], dtype))
    tolerance = 3e-7 if dtype is np.float32 else 5e-15
    assert float(_cpu.lse_1d(x, "fuse")) == pytest.approx(float(exact(x)), rel=tolerance)
    assert _cpu.normalize(x, "fuse")[1] == pytest.approx(float(exact(x)), rel=tolerance)
    assert _cpu.logcumsumexp_rows(np.sort(x)[None, ::-1].copy())[0, -1] == pytest.approx(
        float(exact(x)), rel=max(tolerance, 3e-14)
    )


def test_exponential_of_one_pair_over_its_range():
    """log(1 + e^-d) against mpmath shows the relative error of one exponential at every distance d."""
    rng = np.random.default_rng(3)
    for dtype, far, worst in ((np.float32, 86.0, 1.5e-7), (np.float64, 700.0, 3.4e-16)):
        eps = eps_of(dtype) / 2
        for d in rng.uniform(3.5, far, size=400).astype(dtype):
            got = float(_cpu.lse_1d(np.array([0, -d], dtype), "fuse"))
            with mpmath.workdps(40):
                truth = mpmath.log1p(mpmath.exp(-mpmath.mpf(float(d))))
                error = abs(mpmath.mpf(got) / truth - 1)
            assert error <= worst + 0.25 * eps * float(d) + eps, (dtype, d)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 15, 16, 17, 40, 300])
def test_rows_give_the_bits_of_single_rows(dtype, n):
    """Sixteen rows share one vector of logarithms; the values must not notice."""
    rng = np.random.default_rng(n)
    a = (rng.normal(size=(53, n)) * 10 ** rng.uniform(-3, 2, size=(53, 1))).astype(dtype)
    a[5], a[6, 0], a[7, -1], a[8, 0] = -np.inf, np.nan, np.inf, 0.0
    rows = _cpu.lse_rows(a, "fuse")
    single = np.array([_cpu.lse_1d(row.copy(), "fuse") for row in a])
    np.testing.assert_array_equal(rows, single)
    into = np.empty(53, dtype)
    assert _cpu.lse_rows(a, "fuse", into) is into
    np.testing.assert_array_equal(into, rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 16, 100, BLOCK, 70_001, 300_001])
def test_equal_weights_count_fully(dtype, n):
    weights, log_norm, ess, _ = _cpu.normalize(np.full(n, -7.25, dtype), "fuse")
    assert ess == n
    assert (weights == weights[0]).all() and weights[0] == pytest.approx(1 / n, rel=eps_of(dtype))
    assert log_norm == pytest.approx(-7.25 + np.log(n), rel=eps_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [0.01, 1.0, 10.0, 1000.0])
def test_normalised_weights_across_blocks(dtype, spread):
    """Blocks whose maxima lie far apart: each is scaled from its own maximum to the common one."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=3 * BLOCK + 50) * spread
    x[:BLOCK] -= 75.0  # in float32 the factor of this block is below what a float32 times float32 keeps
    x = x.astype(dtype)
    weights, log_norm, ess, _ = _cpu.normalize(x, "fuse")
    assert log_norm == pytest.approx(float(_cpu.lse_1d(x, "fuse")), rel=2 * eps_of(dtype))
    eps = eps_of(dtype)
    total = mpmath.fsum(weights.astype(float).tolist())
    assert abs(float(total) - 1) <= 2 * eps
    shifted = x.astype(np.longdouble) - x.max()
    terms = np.exp(shifted)
    expected = (terms / terms.sum()).astype(float)
    normal = expected > float(np.finfo(dtype).tiny)
    allowed = eps * (4 - 0.6 * shifted[normal].astype(float))
    assert (np.abs(weights[normal] / expected[normal] - 1) <= allowed).all()
    faint = ~normal
    step = 2 * float(np.finfo(dtype).smallest_subnormal)
    assert (np.abs(weights[faint] - expected[faint]) <= step + 1e-3 * expected[faint]).all()
    assert 1 <= ess <= x.size
    assert ess == pytest.approx(float(terms.sum() ** 2 / (terms * terms).sum()), rel=8 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_particle_carries_everything(dtype):
    x = np.full(9000, -1e4, dtype)
    x[8999] = 0.0
    weights, log_norm, ess, _ = _cpu.normalize(x, "fuse")
    assert ess == 1.0 and log_norm == 0.0
    assert weights[8999] == 1.0 and weights.sum() == 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_state_of_rows(dtype):
    rng = np.random.default_rng(2)
    a = (rng.normal(size=(5, 2 * BLOCK + 3)) * 4).astype(dtype)
    a[3], a[4, 7] = -np.inf, np.inf
    maximum, total = _cpu.fuse_state_rows(a)
    assert maximum.dtype == dtype and total.dtype == np.float64
    np.testing.assert_array_equal(maximum, a.max(axis=1))
    expected = np.exp(a[:3].astype(np.longdouble) - a[:3].max(axis=1, keepdims=True)).sum(axis=1)
    np.testing.assert_allclose(total[:3], expected.astype(float), rtol=4 * eps_of(dtype))
    assert total[3] == 0.0 and maximum[4] == np.inf
    empty_max, empty_total = _cpu.fuse_state_rows(np.empty((2, 0), dtype))
    assert (empty_max == -np.inf).all() and (empty_total == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["noise", "rising", "falling", "steps", "wide", "dead start"])
def test_running_form_against_mpmath(dtype, shape):
    rng = np.random.default_rng(7)
    n = 700
    x = {
        "noise": rng.normal(size=n) * 3,
        "rising": np.arange(n) * 0.013 - 4,
        "falling": np.arange(n) * -0.9,
        "steps": np.repeat(rng.normal(size=n // 50) * 200, 50),
        "wide": rng.normal(size=n) * 400,
        "dead start": np.where(np.arange(n) < 37, -np.inf, rng.normal(size=n)),
    }[shape].astype(dtype)
    got = _cpu.logcumsumexp_rows(x[None])[0]
    with mpmath.workdps(40):
        total = mpmath.mpf(0)
        for k in range(n):
            if x[k] > -np.inf:
                total += mpmath.exp(mpmath.mpf(float(x[k])))
            if total == 0:
                assert got[k] == -np.inf
                continue
            truth = mpmath.log(total)
            top = float(x[: k + 1].max())
            ulp = float(np.spacing(dtype(max(abs(top), abs(float(truth)), 1.0))))
            assert abs(mpmath.mpf(float(got[k])) - truth) <= 1.5 * ulp, (k, got[k])


@pytest.mark.parametrize("dtype", DTYPES)
def test_stated_bound_at_its_hardest(dtype):
    """Equal terms far below one maximum: every rounding of their exponential points the same way."""
    worst = 0.0
    for n in (3, 17, 257, 1000, BLOCK + 1):
        for d in np.linspace(max(0.1, np.log(n) - 2), np.log(n) + 2, 40):
            x = np.full(n, -d, dtype)
            x[n // 3] = 0.0
            maximum, total = _cpu.fuse_state_rows(x[None])
            assert maximum[0] == 0
            with mpmath.workdps(40):
                error = abs(float(mpmath.mpf(float(total[0])) / mpmath.exp(exact(x)) - 1))
            worst = max(worst, error / fuse_bound(n, np.dtype(dtype)))
    assert worst <= 1
    assert worst > 1e-2  # a bound far from anything seen would say nothing


DIGEST = """
import hashlib
import numpy as np
from pfkit_ext import _cpu
h = hashlib.sha256()
rng = np.random.default_rng(0)
for dtype in (np.float32, np.float64):
    for n in (1, 5, 16, 31, 100, 1000, 4096, 9001):
        for spread in (1e-3, 1.0, 30.0, 1e3):
            x = (rng.normal(size=n) * spread).astype(dtype)
            x[rng.random(n) < 0.1] = -np.inf
            h.update(_cpu.lse_1d(x, "fuse").tobytes())
            weights, log_norm, ess, _ = _cpu.normalize(x, "fuse")
            h.update(weights.tobytes() + np.array([log_norm, ess]).tobytes())
            h.update(_cpu.logcumsumexp_rows(x[None]).tobytes())
            for part in _cpu.fuse_state_rows(x[None]):
                h.update(part.tobytes())
    h.update(_cpu.lse_rows((rng.normal(size=(100, 9)) * 5).astype(dtype), "fuse").tobytes())
print(h.hexdigest())
"""


def test_every_simd_level_gives_the_same_bits(at_every_level):
    found = at_every_level(DIGEST)
    assert len(set(found.values())) == 1, found


def test_bad_arrays_are_refused():
    with pytest.raises(TypeError, match="2-D float32 or float64.*int64"):
        _cpu.logcumsumexp_rows(np.zeros((2, 2), np.int64))
    with pytest.raises(TypeError, match="2-D float32 or float64.*1-D"):
        _cpu.fuse_state_rows(np.zeros(3))
    with pytest.raises(ValueError, match="no compiled kernel 'float'"):
        _cpu.lse_rows(np.zeros((1, 2)), "float")
