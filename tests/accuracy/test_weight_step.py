"""One weighting step against mpmath at 40 digits: log-sum-exp, weights, effective sample size.

Tolerances: relative 1e-12 for the float kernels; for an integer kernel its own stated bound e, and what
follows from it: the weights are ratios of two terms within a factor exp(+-e), the ESS a ratio of two such
squares.
"""

import numpy as np
import pytest
from mpmath import exp, log, mp, mpf

from pfkit.lse import kernels, log_normalize

INF = float("inf")
CASES = {
    "steps of one": [0.0, -1.0, -2.0, -3.0],
    "far down": [-1000.0, -1001.0, -1002.0],
    "very far down": [-1e5, -1e5 + 0.5],
    "with impossible ones": [-INF, 0.0, -INF, 1.0],
    "tenths of 55": [float(np.log((i + 1) / 55)) for i in range(10)],
    "one": [3.25],
    "equal": [-7.5] * 1000,
    "one alive": [-INF] * 7 + [-2.0],
    "sixty nats apart": [0.0, -60.0, -30.0],
    "underflowing": [0.0, -800.0, -745.0],
}
CPU_KERNELS = [k.name for k in kernels() if k.device == "cpu" and k.available]
FLOAT_KERNELS = tuple(name for name in CPU_KERNELS if not name.startswith("int"))
INT_KERNELS = tuple(name for name in CPU_KERNELS if name.startswith("int"))


def bound(lse, n, dtype):
    """Stated error of the kernel before rounding, nats."""
    if lse in FLOAT_KERNELS:
        return 0.0
    (row,) = [k for k in kernels() if k.name == lse and k.device == "cpu"]
    value = row.error_bound(n, dtype)
    assert value is not None and value < 0.05  # a bound that is no bound would pass everything
    return value


def reference(log_w):
    """LSE, weights and ESS in mpmath."""
    with mp.workdps(40):
        top = max(log_w)
        terms = [mpf(0) if x == -INF else exp(mpf(x) - mpf(top)) for x in log_w]
        total = mp.fsum(terms)
        ess = total**2 / mp.fsum(t * t for t in terms)
        return mpf(top) + log(total), [t / total for t in terms], ess


@pytest.mark.parametrize("lse", FLOAT_KERNELS + INT_KERNELS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_lse_weights_and_ess(name, dtype, lse):
    log_w = np.array(CASES[name], dtype)
    exact_lse, exact_w, exact_ess = reference([float(x) for x in log_w])
    got = log_normalize(log_w, lse=lse)
    e = bound(lse, log_w.size, dtype)
    ulp = 1e-12 if dtype == "float64" else 2.5e-7
    largest = max(1.0, float(abs(exact_lse)), float(log_w.max()))
    assert abs(float(mpf(float(got.log_norm)) - exact_lse)) <= e + ulp * largest
    assert float(got.ess) == pytest.approx(float(exact_ess), rel=np.expm1(4 * e) + 4 * ulp)
    assert 1.0 <= got.ess <= log_w.size
    assert got.weights.dtype == dtype
    assert float(got.weights.sum(dtype=np.float64)) == pytest.approx(1.0, abs=log_w.size * ulp)
    for x, w, exact in zip(log_w, got.weights, exact_w, strict=True):
        # a log-weight of -800 is itself only known to 800 ulp; weights below 2^-31 of the largest may become
        # 0
        depth = 0.0 if x == -INF else float(log_w.max() - x)
        relative = np.expm1(2 * e) + ulp * (4 + depth)
        absolute = 0.0 if lse in FLOAT_KERNELS else 2.0**-31
        assert abs(float(w) - float(exact)) <= relative * float(exact) + absolute + 1e-300


def test_printed_digits():
    for log_w, lse, ess, weights in (
        (
            [0.0, -1.0, -2.0, -3.0],
            0.440189698561195,
            2.08611077284328,
            [0.64391426, 0.23688282, 0.08714432, 0.0320586],
        ),
        (
            [-1000.0, -1001.0, -1002.0],
            -999.592394035556,
            1.95869865341439,
            [0.66524096, 0.24472847, 0.09003057],
        ),
        ([-1e5, -1e5 + 0.5], -99999.0259230158, 1.88681888397007, [0.37754067, 0.62245933]),
        ([-INF, 0.0, -INF, 1.0], 1.31326168751822, 1.64805427366389, [0.0, 0.26894142, 0.0, 0.73105858]),
    ):
        got = log_normalize(np.array(log_w))
        assert float(got.log_norm) == pytest.approx(lse, rel=1e-14)
        assert got.ess == pytest.approx(ess, rel=1e-14, abs=0)
        np.testing.assert_allclose(got.weights, weights, atol=0.6e-8)
    got = log_normalize(np.log(np.arange(1, 11) / 55))
    assert float(got.log_norm) == pytest.approx(0.0, abs=1e-15)
    assert got.ess == pytest.approx(3025 / 385, rel=1e-14)


@pytest.mark.parametrize("lse", FLOAT_KERNELS + INT_KERNELS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_without_any_possible_particle(lse, dtype):
    got = log_normalize(np.full(5, -INF, dtype), lse=lse)
    assert got.log_norm == -INF and got.ess == 0
    assert not got.weights.any() and not np.isnan(got.weights).any()


@pytest.mark.parametrize("lse", FLOAT_KERNELS + INT_KERNELS)
@pytest.mark.parametrize("shift", [0.0, 1000.0, -745.0, 1e5])
def test_shift_permutation_and_the_callers_array(lse, shift):
    log_w = np.array([0.5, -3.0, -INF, 2.25, -40.0, 2.0])
    kept = log_w.copy()
    base, moved = log_normalize(log_w, lse=lse), log_normalize(log_w + shift, lse=lse)
    np.testing.assert_array_equal(log_w, kept)
    # the inputs are multiples of 1/4 and the shift an integer: both calls see the same differences exactly
    tolerance = 0.0 if lse == "int" else 1e-12 + 2 * bound(lse, 6, "float64")
    np.testing.assert_allclose(moved.weights, base.weights, rtol=tolerance, atol=0)
    assert float(moved.log_norm) - shift == pytest.approx(float(base.log_norm), abs=tolerance + 2e-11)
    order = np.array([3, 0, 5, 2, 4, 1])
    permuted = log_normalize(log_w[order], lse=lse)
    np.testing.assert_allclose(permuted.weights, base.weights[order], rtol=tolerance, atol=0)
    if lse == "int":
        assert permuted.log_norm == base.log_norm and permuted.ess == base.ess
