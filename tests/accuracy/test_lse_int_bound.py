"""The stated bound of lse="int", over every fraction of the exponent and over inputs made to reach it."""

import numpy as np
import pytest

import pfkit

if np.finfo(np.longdouble).eps > 1e-18:
    pytest.skip("the exact values need an 80-bit long double", allow_module_level=True)


def bound(n, dtype):
    return next(k for k in pfkit.kernels() if k.name == "int" and k.device == "cpu").error_bound(n, dtype)


def rounding(value, dtype):
    """Half an ulp of the result."""
    return 0.5 * np.spacing(np.abs(value).astype(dtype)).astype(np.longdouble)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_fraction(dtype):
    """Two equal terms at each of the 65536 fractions below a maximum of 0: log(1 + 2 * 2**-f)."""
    f = np.arange(65536) / 65536
    d = (-f * np.log(2.0)).astype(dtype)
    rows = np.stack([np.zeros_like(d), d, d], axis=1)
    found = pfkit.logsumexp(rows, axis=1, lse="int")
    expected = np.log1p(2 * np.exp(d.astype(np.longdouble)))
    error = np.abs(found - expected)
    assert (error <= bound(3, dtype) + rounding(found, dtype)).all()
    assert error.max() > 1e-6  # it is an approximation: exactness here would mean another kernel ran


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("octaves", [0, 1, 5])
def test_worst_fractions_dominating_the_sum(dtype, octaves):
    """Rows of equal terms at many fractions, and half a step of the exponent away: one weight's error."""
    steps = np.arange(0, 65536 * 2, 97) / 2.0  # every second one between two exponents: the worst rounding
    d = (-(steps / 65536 + octaves) * np.log(2.0)).astype(dtype)
    copies = 2048 << octaves
    worst = 0.0
    for value in d:
        row = np.full(copies + 1, value, dtype)
        row[0] = 0
        found = pfkit.logsumexp(row, lse="int")
        expected = np.log1p(copies * np.exp(np.longdouble(value)))
        error = abs(found - expected)
        assert error <= bound(row.size, dtype) + rounding(found, dtype)
        worst = max(worst, float(error))
    if dtype == "float64":
        assert worst > 0.9 * 1.3e-5  # the bound is not generous: its mantissa part is reached


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [1e-4, 0.1, 1.0, 10.0, 100.0, 1e4])
def test_random_rows_at_any_spread(dtype, spread):
    rng = np.random.default_rng(4)
    for n in (1, 2, 10, 100, 1000, 100_000):
        x = (rng.normal(size=n) * spread + rng.normal() * 100).astype(dtype)
        found = pfkit.logsumexp(x, lse="int")
        m = np.longdouble(x.max())
        expected = m + np.log(np.exp(x.astype(np.longdouble) - m).sum())
        assert abs(found - expected) <= bound(n, dtype) + rounding(found, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_truncated_terms(dtype):
    """Terms whose integer weights are truncated to a few bits, and to nothing, in great number."""
    for d in (-30.0, -34.0, -36.0, -36.7, -40.0):
        for n in (1000, 1 << 20):
            x = np.full(n, d, dtype)
            x[0] = 0
            found = pfkit.logsumexp(x, lse="int")
            expected = np.log1p((n - 1) * np.exp(np.longdouble(x[-1])))
            assert abs(found - expected) <= bound(n, dtype) + rounding(found, dtype)


def test_bound_at_the_largest_size():
    """Stated: at most 2.1e-5 nats up to 2**26 terms."""
    assert bound(2**26, "float32") <= 2.1e-5 and bound(2**26, "float64") <= 2.1e-5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_to_the_26_terms(dtype):
    rng = np.random.default_rng(5)
    x = (rng.standard_normal(2**26, dtype=np.float32) * 4).astype(dtype)
    found = pfkit.logsumexp(x, lse="int")
    m = np.longdouble(x.max())
    total = sum(np.exp(x[k : k + 2**20].astype(np.longdouble) - m).sum() for k in range(0, x.size, 2**20))
    assert abs(found - (m + np.log(total))) <= 2.1e-5 + rounding(found, dtype)
