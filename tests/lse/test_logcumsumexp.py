"""logcumsumexp: the running form."""

import mpmath
import numpy as np
import pytest

import pfkit
from pfkit.lse import blocks


@pytest.mark.parametrize("lse", ["fuse", "numpy"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 17, 1000])
def test_prefixes(lse, dtype, n):
    a = (np.random.default_rng(n).normal(size=n) * 10).astype(dtype)
    with mpmath.workdps(40):
        total, expected = mpmath.mpf(0), []
        for x in a.tolist():
            total += mpmath.exp(x)
            expected.append(float(mpmath.log(total)))
    found = pfkit.logcumsumexp(a, lse=lse)
    assert found.dtype == dtype and found.shape == a.shape
    scale = np.maximum(1, np.maximum(np.abs(expected), np.maximum.accumulate(np.abs(a))))
    ulps = np.abs(found.astype("float64") - expected) / (scale * np.finfo(dtype).eps)
    # NumPy rounds once a step; "fuse" must stay within 2 ulp however long the prefix
    assert ulps.max() <= (2 if lse == "fuse" else 2 + 0.5 * n)


@pytest.mark.parametrize("lse", ["fuse", "numpy"])
def test_special_values(lse):
    inf, nan = np.inf, np.nan
    a = [-inf, -inf, 0.0, -inf, 0.0]
    np.testing.assert_allclose(pfkit.logcumsumexp(a, lse=lse), [-inf, -inf, 0, 0, np.log(2)], rtol=1e-15)
    np.testing.assert_array_equal(pfkit.logcumsumexp([0.0, inf, 1.0, -inf], lse=lse), [0, inf, inf, inf])
    np.testing.assert_array_equal(pfkit.logcumsumexp([0.0, nan, inf, 1.0], lse=lse), [0, nan, nan, nan])
    assert pfkit.logcumsumexp(np.empty((0,)), lse=lse).shape == (0,)
    assert pfkit.logcumsumexp(np.empty((0, 4)), lse=lse).shape == (0, 4)
    assert pfkit.logcumsumexp(np.empty((4, 0)), lse=lse).shape == (4, 0)


@pytest.mark.parametrize("block", [1 << 17, 8])
def test_axes_and_layouts(block, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", block)
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    for a in (
        x,
        np.asfortranarray(x),
        x[:, ::-1],
        x.astype(np.float32),
        x.astype(np.float16),
        (x * 3).astype(int),
    ):
        kept = a.copy()
        for axis in (0, 1, 2, -1, -2):
            found = pfkit.logcumsumexp(a, axis=axis)
            expected = np.logaddexp.accumulate(a.astype(np.float64), axis=axis)
            tolerance = 1e-3 if a.dtype == np.float16 else 1e-6 if a.dtype == np.float32 else 1e-14
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
            assert found.dtype == (np.float64 if a.dtype.kind == "i" else a.dtype)
        assert np.array_equal(a, kept)


def test_last_element_is_the_log_sum_exp():
    a = np.random.default_rng(1).normal(size=10_000) * 5
    assert pfkit.logcumsumexp(a)[-1] == pytest.approx(pfkit.logsumexp(a), rel=4e-16)
    found = pfkit.logcumsumexp(a)
    assert (np.diff(found) >= 0).all()
