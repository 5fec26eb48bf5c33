"""LSEState: updating, joining, and what survives of the bits."""

import pickle

import numpy as np
import pytest
from scipy.special import logsumexp as scipy_logsumexp

import pfkit
from pfkit.lse import u128

INF = np.inf


@pytest.mark.parametrize("lse", ["fuse", "int"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_empty_is_the_identity(lse, dtype):
    empty = pfkit.LSEState.empty((2, 3), lse, dtype=dtype)
    assert empty.shape == (2, 3) and empty.dtype == dtype and (empty.value() == -INF).all()
    x = np.random.default_rng(0).normal(size=(2, 50, 3)).astype(dtype)
    state = pfkit.LSEState.empty((2, 3), lse, dtype=dtype).update(x, axis=1)
    for joined in (state.combine(empty), empty.combine(state)):
        assert np.array_equal(joined.value(), state.value())
    assert np.array_equal(state.update(np.empty((2, 0, 3)), axis=1).value(), joined.value())
    assert pfkit.LSEState.empty(4, lse).shape == (4,)


@pytest.mark.parametrize("lse, tolerance", [("fuse", 0.0), ("int", 2.1e-5)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2), None])
def test_value_after_updates(lse, tolerance, dtype, axis):
    x = (np.random.default_rng(1).normal(size=(4, 6, 5)) * 10).astype(dtype)
    for a in (x, np.asfortranarray(x), x[::-1]):
        expected = scipy_logsumexp(a.astype("float64"), axis=axis)
        state = pfkit.LSEState.empty(expected.shape, lse, dtype=dtype).update(a, axis=axis)
        np.testing.assert_allclose(state.value(), expected, rtol=0, atol=tolerance + 64 * np.finfo(dtype).eps)
        assert state.value().dtype == dtype


def test_one_reference_gives_the_one_shot_bits_in_any_grouping():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, 999)) * 20
    reference = x.max(axis=1)
    once = pfkit.logsumexp(x, axis=1, lse="int")
    parts = [
        pfkit.LSEState.empty((3,), "int", reference=reference).update(chunk)
        for chunk in np.array_split(x, 9, axis=1)
    ]
    for _ in range(20):
        states = [parts[k] for k in rng.permutation(9)]
        while len(states) > 1:  # a random tree
            k = rng.integers(len(states) - 1)
            states[k : k + 2] = [states[k].combine(states[k + 1])]
        assert np.array_equal(states[0].value(), once)
        assert np.array_equal(states[0].hi, sum(p.hi for p in parts)) or states[0].hi.any() == 0
        assert np.array_equal(states[0].reference, reference)


def test_a_moving_reference_costs_what_is_stated():
    """Ten steps up: each multiplies the total by a weight that is off by at most 1.84e-5."""
    x = np.arange(0.0, 10.0, 0.01)
    state = pfkit.LSEState.empty((), "int")
    for chunk in np.array_split(x, 10):
        state.update(chunk)
    assert abs(state.value() - scipy_logsumexp(x)) <= 11 * 1.84e-5


def test_fuse_is_associative_to_rounding():
    rng = np.random.default_rng(3)
    parts = [pfkit.LSEState.empty(()).update(rng.normal(size=50) * 100) for _ in range(3)]
    left = parts[0].combine(parts[1]).combine(parts[2]).value()
    right = parts[0].combine(parts[1].combine(parts[2])).value()
    assert left == pytest.approx(right, rel=4e-16)


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_infinities_and_nan_stay(lse):
    rows = np.array([[0.0, INF], [INF, -INF], [np.nan, 0.0], [np.nan, INF], [-INF, -INF], [-INF, 2.0]])
    expected = np.array([INF, INF, np.nan, np.nan, -INF, 2.0])
    whole = pfkit.LSEState.empty(6, lse).update(rows)
    halves = [pfkit.LSEState.empty(6, lse).update(rows[:, k : k + 1]) for k in (0, 1)]
    later = pfkit.LSEState.empty(6, lse).update(rows).update(np.full((6, 3), -INF))
    for state in (whole, later, halves[0].combine(halves[1]), halves[1].combine(halves[0])):
        np.testing.assert_array_equal(state.value(), expected)


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_combine_changes_neither_and_pickle_keeps_the_bits(lse):
    x = np.random.default_rng(4).normal(size=(2, 30))
    states = [pfkit.LSEState.empty((), lse).update(row) for row in x]
    before = [state.value() for state in states]
    joined = states[0].combine(states[1])
    joined.update(np.ones(5))
    assert [state.value() for state in states] == before
    copy = pickle.loads(pickle.dumps(joined))
    assert copy.value() == joined.value() and copy.lse == lse
    assert "LSEState" in repr(copy) and lse in repr(copy)


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_values_are_not_written_to(lse):
    x = np.random.default_rng(5).normal(size=100)
    x.flags.writeable = False
    kept = x.copy()
    pfkit.LSEState.empty((), lse).update(x).update(x[::-1]).update(x.astype(np.float32))
    assert np.array_equal(x, kept)


def test_128_bit_pairs_against_python_integers():
    rng = np.random.default_rng(6)
    edge = [0, 1, 2**52, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**127, 2**128 - 1]
    draws = [int(rng.integers(0, 2**63)) << int(rng.integers(0, 65)) for _ in range(60)]
    xs = [x for x in edge + draws for _ in edge + draws]
    ys = (edge + draws) * len(edge + draws)
    x, y = (u128.from_ints(v, (len(v),)) for v in (xs, ys))
    assert u128.to_ints(x) == xs
    assert u128.to_ints(u128.add(x, y)) == [(p + q) % 2**128 for p, q in zip(xs, ys, strict=True)]
    magnitude, sign = u128.difference(x, y)
    assert u128.to_ints(magnitude) == [abs(p - q) for p, q in zip(xs, ys, strict=True)]
    assert sign.tolist() == [(p > q) - (p < q) for p, q in zip(xs, ys, strict=True)]
    with pytest.raises(OverflowError):
        u128.from_ints([2**128], (1,))


@pytest.mark.parametrize("reference", [np.inf, [0.0, np.inf]])
def test_a_reference_at_plus_infinity_is_refused(reference):
    with pytest.raises(ValueError, match="must be finite in float64, or -inf"):
        pfkit.LSEState.empty((2,), "int", reference=reference)
    with pytest.raises(ValueError, match="must be finite in float32"), np.errstate(over="ignore"):
        pfkit.LSEState.empty((2,), "int", reference=1e300, dtype="float32")
    assert pfkit.LSEState.empty((2,), "int", reference=-np.inf).value()[0] == -np.inf
