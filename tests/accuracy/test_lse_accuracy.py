"""How far each kernel is from the exact log-sum-exp, computed with mpmath at 50 digits.

Errors are counted in units in the last place (ulp) of max(|max|, |log sum|, 1): what one rounding of the
result, or of a sum of order 1 before its logarithm, can cost.
"""

import mpmath
import numpy as np
import pytest
from scipy.special import logsumexp as scipy_logsumexp

import pfkit


def exact(x):
    """log sum exp(x) as an mpmath number."""
    with mpmath.workdps(50):
        values = [mpmath.mpf(v) for v in x.tolist() if v > -np.inf]
        m = max(values)
        return m + mpmath.log(mpmath.fsum(mpmath.exp(v - m) for v in values))


def inputs(dtype, count, sizes, seed):
    """Sizes, spreads, offsets and shapes of what filters and circuits meet, and of some they do not."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        n = int(rng.choice(sizes))
        spread = float(10 ** rng.uniform(-3, 3))
        offset = float(rng.choice([0.0, 0.0, -1.0, 10.0, -700.0, 1e4, 1e-3]))
        kind = k % 4
        if kind == 0:
            x = rng.normal(size=n) * spread
        elif kind == 1:
            x = -rng.exponential(size=n) * spread
        elif kind == 2:
            x = np.concatenate([[0.0], rng.uniform(-60, -1, size=n - 1)])  # one element towers over the rest
        else:
            x = np.where(rng.random(n) < 0.3, -np.inf, rng.normal(size=n) * spread)
            x[0] = 0.0
        yield rng.permutation(x + offset).astype(dtype)


def errors(dtype, kernel, cases):
    """Error of each case in ulp, as defined above."""
    found = []
    for x, truth in cases:
        scale = max(abs(float(x.max())), abs(float(truth)), 1.0)
        error = abs(mpmath.mpf(float(kernel(x))) - truth)
        found.append(float(error / mpmath.mpf(float(np.spacing(np.array(scale, dtype))))))
    return np.array(found)


@pytest.fixture(scope="module", params=["float32", "float64"])
def cases(request):
    """400 inputs of one dtype with their exact values, shared by the tests below."""
    found = [(x, exact(x)) for x in inputs(request.param, 400, [1, 2, 3, 5, 16, 31, 100, 300], 1)]
    found += [(x, exact(x)) for x in inputs(request.param, 8, [5000], 2)]
    return request.param, found


def test_fuse_is_no_worse_than_scipy_or_one_ulp(cases):
    dtype, found = cases
    ours = errors(dtype, pfkit.logsumexp, found)
    theirs = errors(dtype, scipy_logsumexp, found)
    assert np.quantile(ours, 0.95) <= max(np.quantile(theirs, 0.95), 1.0)
    assert ours.max() <= max(theirs.max(), 1.0)


@pytest.mark.parametrize("lse", ["fuse", "int", "int-pairwise"])
def test_stated_bound_holds(cases, lse):
    """The bound, plus the one rounding of the result."""
    dtype, found = cases
    kernel = next(k for k in pfkit.kernels() if k.name == lse and k.device == "cpu")
    for x, truth in found:
        value = float(pfkit.logsumexp(x, lse=lse))
        rounding = 0.5 * float(np.spacing(np.array(max(abs(value), abs(float(truth))), dtype)))
        assert abs(mpmath.mpf(value) - truth) <= kernel.error_bound(x.size, dtype) + rounding, (
            x.size,
            x.max(),
        )


def test_fuse_normalised_weights(cases):
    """Each weight relative to the exact one: an exponential, a division and the distance from the maximum."""
    dtype, found = cases
    eps = float(np.finfo(dtype).eps)
    for x, truth in found[::8]:
        weights, log_norm, ess = pfkit.log_normalize(x)
        scale = max(1.0, abs(float(truth)), abs(float(x.max())))
        assert abs(mpmath.mpf(float(log_norm)) - truth) <= 1.5 * float(np.spacing(np.array(scale, dtype)))
        with mpmath.workdps(50):
            exact_weights = [
                mpmath.exp(mpmath.mpf(v) - truth) if v > -np.inf else mpmath.mpf(0) for v in x.tolist()
            ]
            expected_ess = float(1 / mpmath.fsum(w * w for w in exact_weights))
        distance = np.where(np.isfinite(x), x.max() - x, 0).astype(float)
        expected = np.array([float(w) for w in exact_weights])
        normal = expected > np.finfo(dtype).tiny
        error = np.abs(weights[normal].astype(float) - expected[normal])
        assert (error <= expected[normal] * eps * (3 + 0.75 * distance[normal] + np.log(x.size))).all()
        assert ess == pytest.approx(expected_ess, rel=eps * (6 + 2 * np.log(x.size)))


def test_coefficients_are_no_worse_than_scipys(cases):
    dtype, found = cases
    rng = np.random.default_rng(3)
    ours, theirs = [], []
    for x, _ in found[::4]:
        b = rng.uniform(0.1, 2.0, size=x.size).astype(dtype)
        with mpmath.workdps(50):
            m = mpmath.mpf(float(x.max()))
            terms = zip(b.tolist(), x.tolist(), strict=True)
            total = mpmath.fsum(
                mpmath.mpf(c) * mpmath.exp(mpmath.mpf(v) - m) for c, v in terms if v > -np.inf
            )
            truth = m + mpmath.log(total)
        ours += errors(dtype, lambda a, b=b: pfkit.logsumexp(a, b=b), [(x, truth)]).tolist()
        theirs += errors(dtype, lambda a, b=b: scipy_logsumexp(a, b=b), [(x, truth)]).tolist()
    assert np.quantile(ours, 0.95) <= max(np.quantile(theirs, 0.95), 1.0)
    assert max(ours) <= max(max(theirs), 1.0)
