"""What must hold for any log-weights: shift, order, concatenation, padding, monotonicity.

The order-free kernel holds them in bits, the float kernel to rounding.
"""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pfkit import log_normalize, resample
from pfkit.filters import ParticleFilter
from pfkit.models import from_functions

INF = float("inf")
KERNELS = ("fuse", "int")
INT_BOUND = 2.1e-5
SCHEMES = ("systematic", "stratified", "multinomial", "residual")

# multiples of 1/16 up to 1000: shifting by integers is exact in both dtypes, so bits may be compared
sixteenths = st.integers(-16_000, 16_000).map(lambda k: k / 16.0)
log_weights = st.lists(st.one_of(sixteenths, st.just(-INF)), min_size=1, max_size=60).filter(
    lambda a: max(a) > -INF
)
dtypes = st.sampled_from(["float64", "float32"])
kernel = pytest.mark.parametrize("lse", KERNELS)


def same(a, b, lse, relative=1e-12):
    if lse == "int":
        np.testing.assert_array_equal(a, b)
    else:
        np.testing.assert_allclose(a, b, rtol=relative, atol=0)


@kernel
@given(a=log_weights, shift=st.integers(-2000, 2000), dtype=dtypes)
def test_shift(lse, a, shift, dtype):
    a = np.array(a, dtype)
    base, moved = log_normalize(a, lse=lse), log_normalize(a + np.asarray(shift, dtype), lse=lse)
    np.testing.assert_array_equal(moved.weights, base.weights)
    assert moved.ess == base.ess
    assert moved.log_norm == pytest.approx(base.log_norm + shift, abs=1e-11 if dtype == "float64" else 4e-4)


@kernel
@given(a=log_weights, dtype=dtypes, data=st.data())
def test_permutation(lse, a, dtype, data):
    a = np.array(a, dtype)
    order = np.array(data.draw(st.permutations(range(len(a)))))
    base, moved = log_normalize(a, lse=lse), log_normalize(a[order], lse=lse)
    relative = 1e-13 if dtype == "float64" else 1e-6
    same(moved.weights, base.weights[order], lse, relative)
    same(moved.ess, base.ess, lse, relative)
    if lse == "int":
        assert moved.log_norm == base.log_norm
    else:
        assert moved.log_norm == pytest.approx(
            base.log_norm, rel=1e-13 if dtype == "float64" else 3e-7, abs=1e-13
        )


@kernel
@given(a=log_weights, dtype=dtypes, before=st.integers(0, 40), after=st.integers(0, 40))
def test_padding_with_impossible_particles(lse, a, dtype, before, after):
    a = np.array(a, dtype)
    padded = np.concatenate([np.full(before, -INF, dtype), a, np.full(after, -INF, dtype)])
    base, got = log_normalize(a, lse=lse), log_normalize(padded, lse=lse)
    inside = got.weights[before : before + len(a)]
    relative = 1e-13 if dtype == "float64" else 1e-6
    same(inside, base.weights, lse, relative)
    same(got.ess, base.ess, lse, relative)
    assert not got.weights[:before].any() and not got.weights[before + len(a) :].any()
    if lse == "int":
        assert got.log_norm == base.log_norm
    else:
        assert got.log_norm == pytest.approx(
            base.log_norm, rel=1e-13 if dtype == "float64" else 3e-7, abs=1e-13
        )


@kernel
@given(a=log_weights, b=log_weights)
def test_concatenation(lse, a, b):
    a, b = np.array(a), np.array(b)
    whole = log_normalize(np.concatenate([a, b]), lse=lse)
    parts = [log_normalize(a, lse=lse).log_norm, log_normalize(b, lse=lse).log_norm]
    bound = 2 * INT_BOUND if lse == "int" else 0.0
    assert whole.log_norm == pytest.approx(np.logaddexp(*parts), rel=1e-13, abs=bound + 1e-13)
    # the parts' share of the weight is what their own norms say
    share = whole.weights[: len(a)].sum()
    assert share == pytest.approx(math.exp(parts[0] - whole.log_norm), abs=math.expm1(2 * bound) + 1e-11)


@kernel
@given(a=log_weights, j=st.integers(0, 59), up=st.integers(1, 64))
def test_monotone(lse, a, j, up):
    """Raising one log-weight raises the norm and that weight, and lowers every other weight."""
    a = np.array(a)
    j %= len(a)
    assume(a[j] > -INF)
    higher = a.copy()
    higher[j] += up / 16.0
    low, high = log_normalize(a, lse=lse), log_normalize(higher, lse=lse)
    # the fuse kernel may round either way in the last bit
    slack = 0.0 if lse == "int" else 4e-16 * max(1.0, abs(low.log_norm))
    assert high.log_norm >= low.log_norm - slack
    assert high.weights[j] >= low.weights[j] * (1 - 4e-16)
    others = np.arange(len(a)) != j
    ceiling = low.weights[others] * (1 + 4e-16) if lse == "fuse" else low.weights[others] * (1 + 1e-15)
    if lse == "int":
        ceiling = ceiling * math.exp(2 * INT_BOUND) + 2.0**-31
    assert (high.weights[others] <= ceiling).all()
    # and order is kept: a larger log-weight never has the smaller weight
    order = np.argsort(a, kind="stable")
    assert (np.diff(low.weights[order]) >= 0).all()


@kernel
@given(a=arrays(np.float64, st.integers(1, 50), elements=st.floats(-1e3, 1e3)), dtype=dtypes)
def test_weights_are_a_distribution(lse, a, dtype):
    a = a.astype(dtype)
    kept = a.copy()
    got = log_normalize(a, lse=lse)
    np.testing.assert_array_equal(a, kept)
    assert (got.weights >= 0).all()
    assert got.weights.sum(dtype=np.float64) == pytest.approx(1.0, abs=1e-12 if dtype == "float64" else 1e-5)
    assert 1.0 <= got.ess <= len(a)
    assert got.log_norm >= a.max() - (INT_BOUND + 1e-7 * abs(float(a.max())) if lse == "int" else 1e-7)
    assert got.log_norm <= a.max() + math.log(len(a)) + INT_BOUND + 1e-6 * (1 + abs(float(a.max())))


@given(
    a=log_weights,
    scheme=st.sampled_from(SCHEMES),
    n=st.integers(0, 100),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1.0, 1e-300, 1e300]),
)
def test_resampling_any_weights(a, scheme, n, seed, scale):
    w = log_normalize(np.array(a)).weights * scale
    assume(w.max() > 0)
    indices = resample(w, n, scheme=scheme, rng=seed)
    assert indices.shape == (n,) and indices.dtype == np.int64
    if n:
        assert indices.min() >= 0 and indices.max() < len(w) and (w[indices] > 0).all()
    if scheme in ("systematic", "stratified"):
        assert (np.diff(indices) >= 0).all()
    np.testing.assert_array_equal(indices, resample(w, n, scheme=scheme, rng=seed))


@given(a=log_weights, seed=st.integers(0, 2**32), zeros=st.integers(1, 30))
def test_resampling_ignores_particles_of_weight_zero(a, seed, zeros):
    """Zeros in front shift the indices and change nothing else, for every scheme."""
    w = log_normalize(np.array(a)).weights
    for scheme in SCHEMES:
        base = resample(w, 37, scheme=scheme, rng=seed)
        np.testing.assert_array_equal(
            resample(np.concatenate([np.zeros(zeros), w]), 37, scheme=scheme, rng=seed) - zeros, base
        )
        np.testing.assert_array_equal(
            resample(np.concatenate([w, np.zeros(zeros)]), 37, scheme=scheme, rng=seed), base
        )


@kernel
@settings(max_examples=25)
@given(constants=st.lists(st.integers(-500, 500), min_size=1, max_size=12), seed=st.integers(0, 2**32))
def test_a_constant_in_the_likelihood_only_moves_the_likelihood(lse, constants, seed):
    """log g + c: the log-likelihood gains sum c; particles, weights and ancestors stay."""

    def model(offsets):
        return from_functions(
            lambda n, rng: rng.normal(size=n),
            lambda x, t, rng: 0.9 * x + rng.normal(size=x.shape),
            # rounded to 1/64, so that adding an integer loses nothing
            lambda y, x, t: np.round(-32.0 * (y - x) ** 2) / 64 + offsets[t],
        )

    y = np.linspace(-1, 1, len(constants))
    runs = [
        ParticleFilter(model(c), 30, lse=lse, rng=seed).run(y, store=("particles", "log_weights"))
        for c in (np.zeros(len(constants)), np.array(constants, float))
    ]
    assert runs[1].log_likelihood == pytest.approx(runs[0].log_likelihood + sum(constants), abs=1e-9)
    if np.array_equal(runs[0].particles, runs[1].particles):
        np.testing.assert_allclose(
            np.exp(runs[1].log_weights), np.exp(runs[0].log_weights), rtol=1e-3, atol=1e-7
        )
    else:  # weights that differ in the last bit may flip an ancestor; then only the law is the same
        first = int(np.flatnonzero((runs[0].particles != runs[1].particles).any(axis=1))[0])
        changed = (runs[0].particles[first] != runs[1].particles[first]).sum()
        assert changed <= 2
