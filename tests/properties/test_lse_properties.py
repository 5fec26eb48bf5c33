"""What every log-sum-exp must satisfy, on inputs that hypothesis makes up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pfkit

COMPILED = ["fuse", "int", "int-pairwise"]
term = st.one_of(st.floats(-1e4, 1e4, width=32), st.just(-np.inf))
rows = hnp.arrays(st.sampled_from([np.float32, np.float64]), st.integers(1, 200), elements=term)


def bound(lse, n, dtype):
    return next(k for k in pfkit.kernels() if k.name == lse and k.device == "cpu").error_bound(n, dtype)


def slack(lse, x, value):
    """The stated bound and a rounding of the result."""
    finite = np.array(value if np.isfinite(value) else 0, x.dtype)
    return bound(lse, x.size, x.dtype) + float(np.spacing(np.abs(finite)))


@pytest.mark.parametrize("lse", COMPILED)
@settings(max_examples=150, deadline=None)
@given(x=rows)
def test_between_the_maximum_and_the_maximum_plus_log_n(lse, x):
    value, m = float(pfkit.logsumexp(x, lse=lse)), float(x.max())
    if m == -np.inf:
        assert value == -np.inf
    else:
        assert m - slack(lse, x, value) <= value <= m + np.log(x.size) + slack(lse, x, value)


@pytest.mark.parametrize("lse", COMPILED)
@settings(max_examples=100, deadline=None)
@given(x=rows, data=st.data())
def test_order_does_not_matter(lse, x, data):
    order = list(data.draw(st.permutations(range(x.size))))
    value, shuffled = float(pfkit.logsumexp(x, lse=lse)), float(pfkit.logsumexp(x[order], lse=lse))
    assert value == shuffled or (lse != "int" and abs(value - shuffled) <= 2 * slack(lse, x, value))


@pytest.mark.parametrize("lse", COMPILED)
@settings(max_examples=100, deadline=None)
@given(x=rows, at=st.integers(0, 199))
def test_a_larger_term_never_lowers_the_result(lse, x, at):
    """Up to the kernel's bound."""
    larger, k = x.copy(), at % x.size
    larger[k] = 1e4 if x[k] == -np.inf else x[k] + abs(x[k])
    value, raised = float(pfkit.logsumexp(x, lse=lse)), float(pfkit.logsumexp(larger, lse=lse))
    assert value == -np.inf or raised >= value - 2 * slack(lse, x, value)


@pytest.mark.parametrize("lse", ["fuse", "int"])
@settings(max_examples=100, deadline=None)
@given(x=rows, cuts=st.lists(st.integers(0, 200), max_size=5))
def test_states_of_pieces_join_to_the_whole(lse, x, cuts):
    options = {"reference": x.max()} if lse == "int" else {}
    total = pfkit.LSEState.empty((), lse, dtype=x.dtype, **options)
    for piece in np.split(x, sorted(c % (x.size + 1) for c in cuts)):
        total = total.combine(pfkit.LSEState.empty((), lse, dtype=x.dtype, **options).update(piece))
    joined, whole = float(total.value()), float(pfkit.logsumexp(x, lse=lse))
    # the float state keeps no tail beside a maximum of 0: one rounding of 1
    assert joined == whole or (lse == "fuse" and abs(joined - whole) <= 2 * slack(lse, x, whole) + 2**-52)


@pytest.mark.parametrize("lse", COMPILED)
@settings(max_examples=100, deadline=None)
@given(x=rows)
def test_weights_are_a_distribution(lse, x):
    weights, log_norm, ess = pfkit.log_normalize(x, lse=lse)
    if x.max() == -np.inf:
        assert (weights == 0).all() and ess == 0 and log_norm == -np.inf
        return
    assert (weights >= 0).all()
    assert abs(weights.sum(dtype=np.float64) - 1) <= x.size * np.finfo(x.dtype).eps
    assert 1 - 1e-6 <= ess <= x.size * (1 + 1e-6)
    assert x[weights.argmax()] >= x.max() - 4e-5  # "int" gives neighbours within its resolution one weight
    assert log_norm == pytest.approx(
        pfkit.logsumexp(x, lse=lse), abs=slack(lse, x, log_norm) * (lse == "fuse"), rel=0
    )


@settings(max_examples=100, deadline=None)
@given(x=rows, data=st.data())
def test_integer_weights_follow_their_particles(x, data):
    order = list(data.draw(st.permutations(range(x.size))))
    plain, shuffled = pfkit.log_normalize(x, lse="int"), pfkit.log_normalize(x[order], lse="int")
    assert np.array_equal(plain.weights[order], shuffled.weights)
    assert (plain.log_norm, plain.ess) == (shuffled.log_norm, shuffled.ess)


@pytest.mark.parametrize("lse", COMPILED)
@settings(max_examples=60, deadline=None)
@given(
    a=hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5), elements=term),
    data=st.data(),
)
def test_any_axes_are_those_axes_flattened(lse, a, data):
    axes = tuple(data.draw(st.sets(st.integers(0, a.ndim - 1), min_size=1)))
    together = pfkit.logsumexp(a, axis=axes, lse=lse)
    rest = [k for k in range(a.ndim) if k not in axes]
    flat = a.transpose([*rest, *axes]).reshape([a.shape[k] for k in rest] + [-1])
    expected = pfkit.logsumexp(flat, axis=-1, lse=lse)
    assert np.shape(together) == np.shape(expected)
    for value, other in zip(np.ravel(together).tolist(), np.ravel(expected).tolist(), strict=True):
        limit = 0.0 if lse == "int" else 2 * bound(lse, flat.shape[-1], "float64") + np.spacing(abs(other))
        assert value == other or abs(value - other) <= limit
