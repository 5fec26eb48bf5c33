"""logsumexp's contract: SciPy's, for every kernel, axis, dtype and memory layout."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
from scipy.special import logsumexp as scipy_logsumexp

import pfkit
from pfkit.lse import blocks, weighted

NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
KERNELS = ["fuse", "int", "int-pairwise", "numpy", "scipy", pytest.param("torch", marks=NEEDS_TORCH)]
AXES = [None, 0, 1, 2, -1, (0, 2), (2, 0), (-1, -2), (0, 1, 2), ()]
LAYOUTS = {
    "C": lambda a: a,
    "Fortran": np.asfortranarray,
    "transposed": lambda a: a.transpose(2, 0, 1),
    "reversed": lambda a: a[::-1, :, ::-1],
    "every second": lambda a: np.repeat(a, 2, axis=2)[:, :, ::2],
    "broadcast": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


def tolerance(lse, dtype, n=1000):
    """One call's error: the stated bound and a few roundings of values below 64."""
    if lse == "int-pairwise":
        kernel = next(k for k in pfkit.kernels() if k.name == lse)
        return (kernel.error_bound(n, dtype) or 0.05) + 64 * np.finfo(dtype).eps
    return (2.1e-5 if lse == "int" else 0.0) + 64 * np.finfo(dtype).eps


@pytest.fixture(params=[None, 7, 16], ids=["whole", "blocks of 7", "blocks of 16"])
def block(request, monkeypatch):
    """Small blocks, so that small arrays take every path of large ones."""
    if request.param:
        monkeypatch.setattr(blocks, "BLOCK", request.param)
        monkeypatch.setattr(weighted, "BLOCK", request.param)
        monkeypatch.setattr(blocks, "SLAB", 2)


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_axes_and_layouts(lse, layout, dtype, block):
    a = LAYOUTS[layout]((np.random.default_rng(0).normal(size=(4, 5, 6)) * 5).astype(dtype))
    before = a.copy()
    for axis, keepdims in itertools.product(AXES, (False, True)):
        value = pfkit.logsumexp(a, axis=axis, keepdims=keepdims, lse=lse)
        expected = scipy_logsumexp(a.astype("float64"), axis=axis, keepdims=keepdims)
        assert value.shape == expected.shape and value.dtype == np.dtype(dtype)
        np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance(lse, dtype))
        if lse == "int":  # where it lies in memory cannot matter
            packed = pfkit.logsumexp(np.array(a, dtype, order="C"), axis=axis, keepdims=keepdims, lse=lse)
            assert np.array_equal(value, packed)
    assert np.array_equal(a, before)


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_coefficients(lse, dtype, block):
    rng = np.random.default_rng(1)
    a = (rng.normal(size=(4, 5, 6)) * 3).astype(dtype)
    for b in (
        rng.random((4, 5, 6)),
        rng.random((5, 1)),
        rng.random(6),
        np.asfortranarray(rng.random((4, 5, 6))),
    ):
        b = b.astype(dtype)
        for axis in AXES:
            value = pfkit.logsumexp(a, axis=axis, b=b, lse=lse)
            expected = scipy_logsumexp(a.astype("float64"), axis=axis, b=b.astype("float64"))
            assert value.shape == expected.shape and value.dtype == np.dtype(dtype)
            np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance(lse, dtype))


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_signs(lse, dtype, block):
    rng = np.random.default_rng(2)
    a = rng.normal(size=(40, 30)).astype(dtype)
    b = rng.normal(size=(40, 30)).astype(dtype)
    value, sign = pfkit.logsumexp(a, axis=1, b=b, return_sign=True, lse=lse)
    terms = b.astype("float64") * np.exp(a.astype("float64"))
    total = terms.sum(axis=1)
    # a relative error e of both signs' sums moves the log of their difference by e * sum|terms| / |sum terms|
    magnified = tolerance(lse, dtype) * np.abs(terms).sum(axis=1) / np.abs(total)
    clear = magnified < 0.1
    assert clear.sum() >= (10 if lse == "int-pairwise" else 30)
    assert np.array_equal(sign[clear], np.sign(total)[clear])
    assert sign.dtype == value.dtype == np.dtype(dtype)
    assert (np.abs(value - np.log(np.abs(total)))[clear] <= 1.1 * magnified[clear]).all()
    unsigned = pfkit.logsumexp(a, axis=1, b=b, lse=lse)
    assert np.array_equal(np.isnan(unsigned), sign < 0)


@pytest.mark.parametrize("lse", KERNELS)
def test_signs_without_coefficients(lse):
    a = np.array([[0.0, 1.0], [-np.inf, -np.inf], [np.inf, 0.0], [np.nan, 0.0]])
    value, sign = pfkit.logsumexp(a, axis=1, return_sign=True, lse=lse)
    np.testing.assert_array_equal(sign, [1, 0, 1, np.nan])
    np.testing.assert_array_equal(np.isnan(value), [False, False, False, True])


@pytest.mark.parametrize("lse", ["fuse", "int", "int-pairwise", "numpy"])
@pytest.mark.parametrize(
    "a, b, value, sign",
    [
        ([1, 1, 1], [1, -1, -1], 1.0, -1.0),
        ([3.0, 3.0], [1, -1], -np.inf, 0.0),
        ([1000.0, 1000.0, 999.0], [1, -1, 1], 999.0, 1.0),  # SciPy 1.17: NaN
        ([np.inf, np.inf], [1, -1], np.nan, np.nan),
        ([np.inf, 0.0], [-1, 1], np.inf, -1.0),
        ([0.0, -np.inf], [1, -1], 0.0, 1.0),
        ([np.nan, 0.0], [1, 1], np.nan, np.nan),
        ([0.0, 0.0], [np.nan, 1], np.nan, np.nan),
        ([np.inf, np.nan], [0, 0], -np.inf, 0.0),
        ([0.0, -800.0], [1, np.inf], np.inf, 1.0),
    ],
)
def test_signed_edges(lse, a, b, value, sign):
    found = pfkit.logsumexp(a, b=b, return_sign=True, lse=lse)
    if lse == "int-pairwise" and value == 999.0:
        return  # no exact cancellation under a truncating recurrence: see its bound
    bound = {"int": 2.1e-5, "int-pairwise": 0.01}.get(lse, 0.0)
    np.testing.assert_allclose([float(x) for x in found], [value, sign], rtol=1e-12, atol=bound)


def test_cancellation_keeps_the_tail():
    """log(exp(0) - exp(0) + exp(-45)) and log(1 + 1e-20 - 0.5e-20): beside a cancelled or a unit head."""
    assert pfkit.logsumexp([0.0, 0.0, -45.0], b=[1, -1, 1]) == pytest.approx(-45.0, rel=1e-15)
    assert pfkit.logsumexp([0.0, -46.0], b=[1, 0.5]) == pytest.approx(0.5 * np.exp(-46.0), rel=1e-14, abs=0)


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize(
    "dtype, result", [("int32", "float64"), ("uint8", "float64"), ("bool", "float64"), ("float16", "float16")]
)
def test_other_dtypes(lse, dtype, result):
    a = np.array([[0, 1, 3], [1, 1, 0]]).astype(dtype)
    for layout in (a, a[:, ::-1], np.asfortranarray(a)):
        value = pfkit.logsumexp(layout, axis=1, lse=lse)
        assert value.dtype == result
        expected = scipy_logsumexp(layout.astype("float64"), axis=1)
        np.testing.assert_allclose(
            value, expected, rtol=1e-3 if result == "float16" else 0, atol=tolerance(lse, result)
        )


@pytest.mark.parametrize("lse", KERNELS)
def test_bfloat16(lse):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    a = np.array([[0.5, 1.25], [3.0, -2.0]], ml_dtypes.bfloat16)
    value = pfkit.logsumexp(a, axis=0, lse=lse)
    assert value.dtype == ml_dtypes.bfloat16
    expected = scipy_logsumexp(a.astype("float64"), axis=0)
    np.testing.assert_allclose(value.astype("float64"), expected, rtol=2**-8)
    both = pfkit.logsumexp(a, axis=0, b=np.ones((2, 2), ml_dtypes.bfloat16), lse=lse)
    assert np.array_equal(both, value)


def test_long_double_keeps_its_precision():
    if np.finfo(np.longdouble).eps == np.finfo(np.float64).eps:
        pytest.skip("long double is float64 on this platform")
    a = np.array([1, 2, 3], np.longdouble)
    value = pfkit.logsumexp(a)
    m = a.max()
    assert value.dtype == np.longdouble
    assert abs(value - (m + np.log(np.exp(a - m).sum()))) <= 4 * np.finfo(np.longdouble).eps
    assert value != np.float64(value)
    huge = np.array([np.longdouble("1e4000"), 0])
    assert pfkit.logsumexp(huge) == huge[0]
    assert pfkit.logsumexp(a, lse="int").dtype == np.longdouble
    assert float(pfkit.logsumexp(a, lse="int")) == float(pfkit.logsumexp(a.astype(np.float64), lse="int"))


def test_promotion_follows_numpy():
    a = np.array([1, 2], np.float32)
    assert pfkit.logsumexp(a, b=2.0).dtype == np.float32
    assert pfkit.logsumexp(a, b=[2.0, 1.0]).dtype == np.float64
    assert pfkit.logsumexp(a, b=np.array([2, 1], np.int8)).dtype == np.float32
    assert pfkit.logsumexp([1, 2]).dtype == np.float64
    assert pfkit.logsumexp(a, b=1j).dtype == np.complex64


@pytest.mark.parametrize("lse", KERNELS)
def test_masks(lse):
    rng = np.random.default_rng(3)
    data, mask = rng.normal(size=(5, 8)), rng.random((5, 8)) < 0.4
    mask[2] = True
    value = pfkit.logsumexp(np.ma.array(data, mask=mask), axis=1, lse=lse)
    for row, hidden, found in zip(data, mask, value, strict=True):
        expected = scipy_logsumexp(row[~hidden]) if not hidden.all() else -np.inf
        assert found == expected or abs(found - expected) <= tolerance(lse, "float64")
    assert not isinstance(value, np.ma.MaskedArray)
    integers = np.ma.array([1, 2, 100], mask=[False, False, True])
    expected = pfkit.logsumexp([1.0, 2.0], lse=lse)
    assert pfkit.logsumexp(integers, lse=lse) == pytest.approx(expected, abs=1e-12)
    weighted_value = pfkit.logsumexp(integers, b=[1.0, 2.0, np.nan], lse=lse)
    expected = pfkit.logsumexp([1.0, 2.0], b=[1.0, 2.0], lse=lse)
    assert weighted_value == pytest.approx(expected, abs=1e-12)
    hidden_weight = np.ma.array([1.0, 2.0, 3.0], mask=[False, False, True])
    assert pfkit.logsumexp([1.0, 2.0, np.inf], b=hidden_weight, lse=lse) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("lse", KERNELS)
def test_out(lse):
    a = np.random.default_rng(4).normal(size=(3, 4, 5))
    for axis, keepdims in ((1, False), ((0, 2), True), (None, False)):
        expected = pfkit.logsumexp(a, axis=axis, keepdims=keepdims, lse=lse)
        out = np.zeros_like(expected)[...]
        out = np.array(out)
        assert pfkit.logsumexp(a, axis=axis, keepdims=keepdims, lse=lse, out=out) is out
        assert np.array_equal(out, expected)
    strided = np.zeros((3, 10))[:, ::2]
    pfkit.logsumexp(a, axis=1, lse=lse, out=strided)
    assert np.array_equal(strided, pfkit.logsumexp(a, axis=1, lse=lse))
    single = np.zeros((3, 5), np.float32)
    pfkit.logsumexp(a, axis=1, lse=lse, out=single)
    assert np.array_equal(single, pfkit.logsumexp(a, axis=1, lse=lse).astype(np.float32))


@pytest.mark.parametrize("lse", KERNELS)
def test_read_only_input_and_nothing_written(lse):
    a = np.random.default_rng(5).normal(size=(6, 7))
    b = np.random.default_rng(6).random((6, 7))
    for x in (a, b):
        x.flags.writeable = False
    kept = a.copy(), b.copy()
    for axis in (None, 0, 1):
        pfkit.logsumexp(a, axis=axis, lse=lse)
        pfkit.logsumexp(a, axis=axis, b=b, lse=lse)
    pfkit.logsumexp(a[0], lse=lse)
    assert np.array_equal(a, kept[0]) and np.array_equal(b, kept[1])


def test_complex_goes_to_scipy():
    a = np.array([[1 + 1j, 2 - 1j], [0j, 3j]])
    for lse in ("fuse", "int"):
        assert np.array_equal(pfkit.logsumexp(a, axis=0, lse=lse), scipy_logsumexp(a, axis=0))
        value, sign = pfkit.logsumexp(a, axis=0, return_sign=True, lse=lse)
        expected = scipy_logsumexp(a, axis=0, return_sign=True)
        assert np.array_equal(value, expected[0]) and np.array_equal(sign, expected[1])
        assert value.dtype == np.float64


def test_scalars_come_back_as_numpy_scalars():
    assert isinstance(pfkit.logsumexp([1.0, 2.0]), np.float64)
    assert isinstance(pfkit.logsumexp(np.ones(3, np.float32)), np.float32)
    assert isinstance(pfkit.logsumexp(np.ones((3, 3), np.float32), lse="int"), np.float32)
    assert pfkit.logsumexp(2.0, keepdims=True).shape == (1,)


def test_large_middle_axis_needs_no_transposed_copy(monkeypatch):
    """https://github.com/pytorch/pytorch/issues/16475: what is copied at one time stays within a block."""
    a = np.random.default_rng(7).normal(size=(6, 40_000, 6)).astype(np.float32)
    copied = []
    rows = blocks.Scratch.rows

    def watched(self, block, n_rows):
        copied.append(block.size)
        return rows(self, block, n_rows)

    monkeypatch.setattr(blocks.Scratch, "rows", watched)
    value = pfkit.logsumexp(a, axis=1)
    assert sum(copied) == a.size and max(copied) <= blocks.BLOCK
    np.testing.assert_allclose(value, scipy_logsumexp(a.astype(np.float64), axis=1), rtol=2e-7)
    assert np.array_equal(
        pfkit.logsumexp(a, axis=1, lse="int"), pfkit.logsumexp(a.swapaxes(1, 2).copy(), lse="int", axis=2)
    )


@pytest.mark.parametrize("lse", ["fuse", "int", "int-pairwise"])
def test_threads_at_once_give_the_serial_results(lse):
    """The kernels run without the interpreter's lock and share nothing."""
    rng = np.random.default_rng(8)
    arrays = [rng.normal(size=20_000) * 10 for _ in range(16)]
    serial = [pfkit.logsumexp(a, lse=lse) for a in arrays]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert list(pool.map(lambda a: pfkit.logsumexp(a, lse=lse), arrays)) == serial


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_a_long_strided_row_is_cut_and_joined(lse):
    """Longer than a block: as the packed row, for "int" to the bit; infinities and NaN found in any piece."""
    n = 3 * blocks.BLOCK + 17
    for dtype in ("float32", "float64", "float16"):
        wide = (np.random.default_rng(9).normal(size=(n, 2)) * 5).astype(dtype)
        row, packed = wide[:, 0], np.ascontiguousarray(wide[:, 0])
        value, expected = pfkit.logsumexp(row, lse=lse), pfkit.logsumexp(packed, lse=lse)
        assert value == expected or (lse == "fuse" and abs(value - expected) <= 2 * np.spacing(expected))
        for at in (0, n // 2, n - 1):
            for special in (np.inf, np.nan):
                spoilt = wide.copy()
                spoilt[at, 0] = special
                np.testing.assert_equal(float(pfkit.logsumexp(spoilt[:, 0], lse=lse)), special)
        assert pfkit.logsumexp(np.full((n, 2), -np.inf, dtype)[:, 0], lse=lse) == -np.inf


@pytest.mark.parametrize("lse", ["fuse", "numpy", "int", "int-pairwise"])
@pytest.mark.parametrize(
    "a, b, value",
    [
        ([0.0, 800.0], [1e300, 1e-300], 300 * math.log(10)),
        ([0.0, -800.0], [1e-300, 1e300], -800 + 300 * math.log(10)),
        ([0.0, -760.0], [1e-320, 1e308], -760 + 308 * math.log(10)),
        ([0.0, 0.0], [1e308, 1e308], 308 * math.log(10) + math.log(2)),
        ([-800.0, -800.0], [1e308, 1e308], -800 + 308 * math.log(10) + math.log(2)),
    ],
)
def test_coefficients_of_very_unequal_size(a, b, value, lse):
    tolerance = {"fuse": 1e-12, "numpy": 1e-12, "int": 2.2e-5, "int-pairwise": 0.01}[lse]
    assert abs(float(pfkit.logsumexp(np.array(a), b=np.array(b), lse=lse)) - value) < tolerance
