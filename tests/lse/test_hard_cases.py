"""Inputs that broke other log-sum-exps, each with the public reports it comes from."""

import math
import warnings
from importlib.util import find_spec

import numpy as np
import pytest

import pfkit

INF, NAN = math.inf, math.nan
COMPILED = ["fuse", "int", "int-pairwise"]
NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
KERNELS = [*COMPILED, "numpy", "scipy", pytest.param("torch", marks=NEEDS_TORCH)]
FLOATS = ["float32", "float64"]


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def bound(lse, n, dtype):
    """The kernel's stated bound in nats, plus nothing: rounding is added by the caller."""
    stated = next(k for k in pfkit.kernels() if k.name == lse and k.device == "cpu").error_bound(n, dtype)
    return 0.0 if stated is None else stated


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lse", KERNELS)
def test_all_minus_infinity(lse, dtype):
    """https://github.com/rmcgibbo/logsumexp/issues/2 https://github.com/microsoft/onnxruntime/issues/28461
    https://github.com/tensorflow/tensorflow/issues/11692"""
    for n in (1, 5, 16, 1000):
        assert pfkit.logsumexp(np.full(n, -INF, dtype), lse=lse) == -INF
    assert (pfkit.logsumexp(np.full((3, 40), -INF, dtype), axis=1, lse=lse) == -INF).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize(
    "pair, expected",
    [
        ((INF, 0.0), INF),
        ((INF, INF), INF),
        ((INF, -INF), INF),
        ((NAN, 1.0), NAN),
        ((NAN, INF), NAN),
        ((NAN, -INF), NAN),
    ],
)
def test_infinities_and_nan(lse, dtype, pair, expected):
    """https://github.com/sims1253/bayesfam/issues/33 https://github.com/probcomp/metaprob/issues/156"""
    for a in (pair, pair[::-1]):
        np.testing.assert_equal(float(pfkit.logsumexp(np.array(a, dtype), lse=lse)), expected)
    for n in (17, 100, 1001):  # wherever it stands in a vector register, in the tail, in a strided row
        for at in (0, n // 2, n - 1):
            row = np.zeros((n, 2), dtype)
            row[at, 0] = pair[0]
            row[(at + 1) % n, 0] = pair[1]
            np.testing.assert_equal(
                float(pfkit.logsumexp(np.ascontiguousarray(row[:, 0]), lse=lse)), expected
            )
            np.testing.assert_equal(float(pfkit.logsumexp(row[:, 0], lse=lse)), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize(
    "shape, axis, keepdims, expected_shape",
    [((0,), None, False, ()), ((0, 3), 0, False, (3,)), ((0, 3), 1, False, (0,)), ((2, 0), -1, True, (2, 1))],
)
def test_empty(lse, dtype, shape, axis, keepdims, expected_shape):
    """https://github.com/scipy/scipy/issues/20399 https://github.com/jax-ml/jax/issues/7643
    https://github.com/stan-dev/math/issues/1416"""
    value = pfkit.logsumexp(np.empty(shape, dtype), axis=axis, keepdims=keepdims, lse=lse)
    assert value.shape == expected_shape and value.dtype == dtype
    assert np.all(value == -INF)


@pytest.mark.parametrize("lse", COMPILED)
def test_the_tail_beside_a_maximum_of_zero(lse):
    """https://github.com/scipy/scipy/issues/18295 https://github.com/scipy/scipy/pull/21597"""
    expected = 2.8818060790290327e-20
    for a in ([0.0, -45.0, -50.0], [-50.0, -45.0, 0.0], [-45.0, 0.0, -50.0]):
        value = float(pfkit.logsumexp(np.array(a), lse=lse))
        if lse == "fuse":
            assert value == pytest.approx(expected, rel=1e-13, abs=0.0)
        else:
            assert abs(value - expected) <= 1e-6
        assert abs(float(pfkit.logsumexp(np.array(a, np.float32), lse=lse)) - expected) <= 1e-6


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_many_terms_below_epsilon(lse, dtype, where):
    """https://github.com/scipy/scipy/issues/18295 (a million terms of 2e-9 beside a 1)"""
    a = np.full(1_000_001, -20.0, dtype)
    a[{"first": 0, "middle": 500_000, "last": 1_000_000}[where]] = 0.0
    expected = 0.002059032359643132
    value = float(pfkit.logsumexp(a, lse=lse))
    if lse == "fuse" and dtype == "float64":
        assert value == pytest.approx(expected, rel=1e-10, abs=0.0)
    else:
        assert abs(value - expected) <= 1e-5


SHIFTED = [
    ([1e4, 10001.0, 10002.0], 10002.407605964445, "float64"),
    ([-1e4, -9999.0, -9998.0], -9997.592394035555, "float64"),
    ([1e15, 1e15 + 1, 1e15 + 2], 1000000000000002.4, "float64"),
    ([-1e300, -1e300], -1e300, "float64"),
    ([1e30, 1e30], 1e30, "float64"),
    ([-1e30, 0.0], 0.0, "float64"),
    ([88.75, 89.0, 90.0], 90.50342887798462, "float32"),
    ([-104.0, -104.5], -103.5259230158199, "float32"),
    ([-745.25, -745.25], -744.5568528194401, "float64"),
    ([-1e308, 1e308], 1e308, "float64"),
]


@pytest.mark.parametrize("a, expected, dtype", SHIFTED)
@pytest.mark.parametrize("lse", ["fuse", "int", "numpy"])
def test_offsets_that_overflow_a_naive_exp(lse, a, expected, dtype):
    """https://github.com/tenstorrent/tt-metal/pull/56413 https://github.com/stan-dev/math/pull/1772"""
    relative = 4e-16 if dtype == "float64" else 2e-7
    value = float(pfkit.logsumexp(np.array(a, dtype), lse=lse))
    assert abs(value - expected) <= relative * abs(expected) + bound(lse, len(a), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize(
    "a, b, expected",
    [
        ([-1000.0, 0.0], [1.0, 0.0], -1000.0),
        ([-INF, 0.0], [1.0, 0.0], -INF),
        ([INF, -1.0], [0.0, 1.0], -1.0),
        ([5.0, 7.0], [0.0, 0.0], -INF),
        ([NAN, 2.0], [0.0, 1.0], 2.0),
    ],
)
def test_zero_coefficients_remove_terms(lse, dtype, a, b, expected):
    """https://github.com/scipy/scipy/issues/4702 https://github.com/scipy/scipy/pull/6160"""
    value = float(pfkit.logsumexp(np.array(a, dtype), b=np.array(b, dtype), lse=lse))
    assert value == expected or abs(value - expected) <= 1e-15 * abs(expected)


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_complex_takes_the_principal_branch(lse):
    """https://github.com/scipy/scipy/issues/21610 https://github.com/scipy/scipy/issues/21709"""
    if tuple(map(int, __import__("scipy").__version__.split(".")[:2])) < (1, 15):
        pytest.skip("complex input goes to SciPy, which is right from 1.15 on")
    value = pfkit.logsumexp(np.array([1 + 10j, 1.5 + 20j]), lse=lse)
    assert value == pytest.approx(0.9751378282428527 + 1.7420758615439338j, rel=1e-13)
    value = pfkit.logsumexp(np.array([0j, 3e-17j]), lse=lse)
    assert value.imag == pytest.approx(1.5e-17, rel=1e-13, abs=0.0)


@pytest.mark.parametrize("lse", ["fuse", "int", "numpy"])
def test_half_precision_sums_do_not_saturate(lse):
    """https://github.com/google-research/last/pull/43 https://github.com/pytorch/executorch/pull/20090
    https://github.com/apple/coremltools/issues/2690"""
    value = pfkit.logsumexp(np.zeros(65536, np.float16), lse=lse)
    assert value.dtype == np.float16 and value == np.float16(11.090354888959125)
    value = pfkit.logsumexp(np.full(4, 11.5, np.float16), lse=lse)
    assert value == np.float16(12.88629436111989)
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    value = pfkit.logsumexp(np.zeros(512, ml_dtypes.bfloat16), lse=lse)
    assert value.dtype == ml_dtypes.bfloat16 and float(value) == float(ml_dtypes.bfloat16(6.238324625039508))


@pytest.mark.parametrize("lse", ["fuse", "int", "numpy", "scipy"])
def test_masked_elements_are_left_out(lse):
    """https://github.com/scipy/scipy/issues/3034"""
    a = np.ma.array([0.0, 1.0, 2.0], mask=[True, False, False])
    assert float(pfkit.logsumexp(a, lse=lse)) == pytest.approx(
        2.313261687518223, rel=1e-14, abs=bound(lse, 2, "float64")
    )


AXES = [
    (None, False, (), 3.9652214038205),
    ((0, 2), False, (3,), [2.284951733178765, 2.784951733178765, 3.284951733178765]),
    (-1, True, (2, 3, 1), None),
    ((0, 2), True, (1, 3, 1), None),
]


@pytest.mark.parametrize("lse", ["fuse", "int", "numpy", "scipy"])
@pytest.mark.parametrize("axis, keepdims, shape, expected", AXES)
def test_axes(lse, axis, keepdims, shape, expected):
    """https://github.com/ml-explore/mlx/issues/4029 https://github.com/pytorch/pytorch/issues/8762
    https://github.com/scipy/scipy/pull/3518"""
    a = np.arange(24).reshape(2, 3, 4) * 0.125 - 1
    value = pfkit.logsumexp(a, axis=axis, keepdims=keepdims, lse=lse)
    assert value.shape == shape
    tolerance = bound(lse, 24, "float64")
    if expected is not None:
        np.testing.assert_allclose(value, expected, rtol=1e-14, atol=tolerance)
    elif axis == -1:
        assert value.ravel()[0] == pytest.approx(0.5835384551960127, abs=1e-14 + tolerance)
    flat = pfkit.logsumexp(a.reshape(1, 24), axis=None, lse=lse)
    assert flat.shape == () and flat == pytest.approx(3.9652214038205, rel=1e-14, abs=tolerance)


@pytest.mark.parametrize("lse", KERNELS)
def test_zero_dimensions_and_scalars(lse):
    """https://github.com/tensorflow/tensorflow/issues/11692 https://github.com/scipy/scipy/issues/17586"""
    for a, expected in ((3.25, 3.25), (np.array(-INF), -INF), (np.array(7, np.int32), 7.0)):
        value = pfkit.logsumexp(a, lse=lse)
        assert value.shape == () and value == expected


@pytest.mark.slow
@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_more_than_two_to_the_31_elements(lse):
    """https://github.com/pytorch/pytorch/issues/84144 https://github.com/microsoft/onnxruntime/issues/32299
    https://github.com/PaddlePaddle/Paddle/pull/71935 (a broadcast array, read in blocks: no memory needed)"""
    a = np.broadcast_to(np.float32(0), (2**31 + 8,))
    assert float(pfkit.logsumexp(a, lse=lse)) == pytest.approx(21.487562601083596, rel=1e-6)
