"""log_normalize: weights, log-sum-exp and effective sample size."""

import warnings
from importlib.util import find_spec

import numpy as np
import pytest

import pfkit

INF, NAN = np.inf, np.nan
NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
KERNELS = ["fuse", "int", "int-pairwise", "numpy", "scipy", pytest.param("torch", marks=NEEDS_TORCH)]


def tolerance(lse, dtype):
    return {"int": 2.1e-5, "int-pairwise": 1e-5}.get(lse, 0.0) + 8 * float(np.finfo(dtype).eps)


#: log-weights; log-sum-exp; ESS; weights: computed with mpmath at 50 digits.
ANCHORS = [
    (
        [0, -1, -2, -3],
        0.44018969856119533,
        2.0861107728432765,
        [0.64391425988797231, 0.23688281808991013, 0.087144318742032567, 0.032058603280084988],
    ),
    (
        [-1000, -1001, -1002],
        -999.59239403555562,
        1.9586986534143888,
        [0.66524095577482189, 0.24472847105479765, 0.090030573170380458],
    ),
    ([-1e5, -1e5 + 0.5], -99999.02592301582, 1.8868188839700739, [0.37754066879814544, 0.62245933120185456]),
    (
        [-INF, 0, -INF, 1],
        1.3132616875182228,
        1.6480542736638854,
        [0, 0.26894142136999512, 0, 0.73105857863000488],
    ),
    (np.log(np.arange(1, 11) / 55), 0.0, 3025 / 385, np.arange(1, 11) / 55),
]


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize("log_w, log_norm, ess, weights", ANCHORS)
def test_anchors(lse, log_w, log_norm, ess, weights):
    found = pfkit.log_normalize(np.array(log_w, float), lse=lse)
    bound = next(k for k in pfkit.kernels() if k.name == lse).error_bound(len(log_w)) or 0.0
    assert found.log_norm == pytest.approx(log_norm, rel=1e-14, abs=bound + 1e-14)
    assert found.ess == pytest.approx(ess, rel=tolerance(lse, "float64") * 4 + 1e-14)
    # a kernel that gives only an LSE exponentiates differences from its rounded value: at 1e5 nats 1e-11
    np.testing.assert_allclose(found.weights, weights, rtol=tolerance(lse, "float64") + 1e-10)
    assert isinstance(found.log_norm, float) and isinstance(found.ess, float)


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 17, 1000, 4097])
def test_against_numpy(lse, dtype, n):
    rng = np.random.default_rng(n)
    log_w = (rng.normal(size=n) * 4 - 700).astype(dtype)
    exact = np.exp(log_w.astype("longdouble") - log_w.max())
    weights, log_norm, ess = pfkit.log_normalize(log_w, lse=lse)
    assert weights.dtype == dtype
    np.testing.assert_allclose(weights, exact / exact.sum(), rtol=2 * tolerance(lse, dtype), atol=2.0**-32)
    assert ess == pytest.approx(
        float(exact.sum() ** 2 / (exact * exact).sum()), rel=5 * tolerance(lse, dtype)
    )
    alone = pfkit.logsumexp(log_w, lse=lse)  # "fuse" adds in another order when it also keeps the weights
    assert log_norm == alone or (lse == "fuse" and abs(log_norm - alone) <= 2 * np.spacing(np.abs(alone)))
    assert weights.sum(dtype="float64") == pytest.approx(1.0, abs=4 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize(
    "log_w, log_norm, ess, weight",
    [
        ([-INF] * 5, -INF, 0.0, 0.0),
        ([], -INF, 0.0, 0.0),
        ([0.0, NAN, 1.0], NAN, NAN, NAN),
        ([0.0, INF, 1.0], INF, NAN, NAN),
        ([NAN, INF, -INF], NAN, NAN, NAN),
    ],
)
def test_degenerate(lse, log_w, log_norm, ess, weight):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pfkit.log_normalize(np.array(log_w, float), lse=lse)
    np.testing.assert_array_equal([found.log_norm, found.ess], [log_norm, ess])
    np.testing.assert_array_equal(found.weights, np.full(len(log_w), weight))


@pytest.mark.parametrize("lse", ["int", "fuse"])
@pytest.mark.parametrize("n", [1, 3, 1000, 12345])
def test_equal_weights_have_ess_n(lse, n):
    ess = pfkit.log_normalize(np.full(n, -3.25), lse=lse).ess
    assert ess == n if lse == "int" else ess == pytest.approx(n, rel=1e-13)


@pytest.mark.parametrize("lse", KERNELS)
def test_rows(lse):
    rng = np.random.default_rng(0)
    log_w = rng.normal(size=(3, 2, 50)) * 5
    for layout in (log_w, np.asfortranarray(log_w), log_w[::-1, :, ::-1]):
        weights, log_norm, ess = pfkit.log_normalize(layout, lse=lse)
        assert weights.shape == (3, 2, 50) and log_norm.shape == ess.shape == (3, 2)
        for index in np.ndindex(3, 2):
            row = pfkit.log_normalize(np.ascontiguousarray(layout[index]), lse=lse)
            assert np.array_equal(weights[index], row.weights)
            assert (log_norm[index], ess[index]) == (row.log_norm, row.ess)


@pytest.mark.parametrize("lse", KERNELS)
def test_out_and_read_only(lse):
    log_w = np.random.default_rng(1).normal(size=40)
    log_w.flags.writeable = False
    kept, out = log_w.copy(), np.zeros(40)
    expected = pfkit.log_normalize(log_w, lse=lse)
    found = pfkit.log_normalize(log_w, lse=lse, out=out)
    assert found.weights is out and np.array_equal(out, expected.weights)
    assert np.array_equal(log_w, kept)
    in_place = log_w.copy()
    assert pfkit.log_normalize(in_place, lse=lse, out=in_place).log_norm == expected.log_norm
    assert np.array_equal(in_place, expected.weights)


@pytest.mark.parametrize("lse", KERNELS)
def test_other_dtypes_and_masks(lse):
    assert pfkit.log_normalize([0, 1, 2], lse=lse).weights.dtype == np.float64
    assert pfkit.log_normalize(np.zeros(3, np.float16), lse=lse).weights.dtype == np.float32
    masked = pfkit.log_normalize(np.ma.array([0.0, 1.0, 2.0], mask=[0, 0, 1]), lse=lse)
    plain = pfkit.log_normalize(np.array([0.0, 1.0]), lse=lse)
    assert masked.weights[2] == 0 and np.array_equal(masked.weights[:2], plain.weights)
    assert masked.log_norm == plain.log_norm


def test_wide_integer_weights_beyond_two_to_the_20():
    """64-bit weights: mass 2**-52 of the largest is kept where 32 bits would lose 1e-4 nats of it."""
    n = (1 << 20) + 5
    log_w = np.full(n, -18.0)
    log_w[7] = 0.0
    weights, log_norm, ess = pfkit.log_normalize(log_w, lse="int")
    total = 1 + (n - 1) * np.exp(-18.0)
    assert log_norm == pytest.approx(np.log(total), abs=2.1e-5)
    assert weights[7] == pytest.approx(1 / total, rel=4.2e-5)
    assert weights[0] == pytest.approx(np.exp(-18.0) / total, rel=4.2e-5)
    assert ess == pytest.approx(total**2 / (1 + (n - 1) * np.exp(-36.0)), rel=1e-4)
