"""The pairwise integer recurrence: one pair at every difference, its order, its bound."""

import math

import numpy as np
import pytest

from pfkit.lse.kernels import pairwise_bound
from pfkit_ext import _cpu

UNIT = 65536  # Q16.16
DISTANCES = np.arange(40 * UNIT, dtype=np.int32)  # far beyond where a term is worth nothing


def pair_error(table):
    """Signed error of one pair in octaves, at every difference."""
    zero = np.zeros_like(DISTANCES)
    got = _cpu.pairwise_add(zero, DISTANCES, table)
    np.testing.assert_array_equal(got, _cpu.pairwise_add(DISTANCES, zero, table))
    return -got / UNIT - np.log2(1 + np.exp2(-DISTANCES / UNIT))


def test_one_pair_without_the_table():
    assert np.abs(pair_error(False)).max() == pytest.approx(0.0850, abs=5e-5)


def test_one_pair_with_the_table():
    error = np.abs(pair_error(True))
    assert error.max() <= 0.0056 < 0.0068
    assert error.max() > 0.005  # what the stated figure is made of


def test_equal_operands_double_exactly():
    a = np.array([0, -70000, 123456, 4194304], np.int32)
    np.testing.assert_array_equal(_cpu.pairwise_add(a, a), a - UNIT)


def test_far_terms_add_nothing():
    """The correction is proportional to the term: no constant is added at pair after pair."""
    zero = np.zeros_like(DISTANCES)
    got = -_cpu.pairwise_add(zero, DISTANCES) / UNIT
    far = DISTANCES > 17 * UNIT
    assert (got[far] == 0).all()
    true = np.log2(1 + np.exp2(-DISTANCES / UNIT))
    assert (np.abs(got - true) <= 0.12 * true + 2 / UNIT).all()


def test_shifts_beyond_the_word_are_zero():
    far = np.array([31 * UNIT, 32 * UNIT, 33 * UNIT, 64 * UNIT, 2**30], np.int32)
    np.testing.assert_array_equal(_cpu.pairwise_add(np.zeros_like(far), far), 0)
    np.testing.assert_array_equal(_cpu.pairwise_add(np.full_like(far, -5 * UNIT), far), -5 * UNIT)


def exact_lse(x):
    x = x.astype(np.longdouble)
    m = x.max()
    return float(m + np.log(np.exp(x - m).sum()))


def model(x):
    """The documented order: vectors of 16 lanes in a binary tree, then the fold of the lanes."""
    m = float(x.max())
    p = np.rint(np.minimum((m - x.astype(float)) * (UNIT / math.log(2)), 64 * UNIT)).astype(np.int32)
    p = np.concatenate([p, np.full(-len(p) % 16, 64 * UNIT, np.int32)]).reshape(-1, 16)
    tree = [(1, v) for v in p]
    stack = []
    for size, v in tree:
        while stack and stack[-1][0] == size:
            v = _cpu.pairwise_add(stack.pop()[1], v)
            size *= 2
        stack.append((size, v))
    v = stack.pop()[1]
    while stack:
        v = _cpu.pairwise_add(stack.pop()[1], v)
    while len(v) > 1:
        half = len(v) // 2
        v = _cpu.pairwise_add(v[:half].copy(), v[half:].copy())
    return m - int(v[0]) * (math.log(2) / UNIT)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 64, 65, 100, 128, 200, 1000, 1024, 5000])
def test_the_order_is_the_stated_tree(n):
    x = np.random.default_rng(n).normal(size=n) * 6
    assert _cpu.lse_1d(x, "int-pairwise") == pytest.approx(model(x), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bound_over_many_inputs(dtype):
    rng = np.random.default_rng(4)
    for n in (1, 2, 3, 16, 33, 100, 1000, 4097, 100_000):
        for spread in (0.0, 0.1, 1.0, 5.0, 50.0, 1e4):
            x = (rng.normal(size=n) * spread - 3).astype(dtype)
            error = abs(float(_cpu.lse_1d(x, "int-pairwise")) - exact_lse(x))
            rounding = 0.5 * float(np.spacing(dtype(max(abs(x.max()), np.log(n) + 3))))
            assert error <= pairwise_bound(n, np.dtype(dtype)) + rounding


def worst_row(levels, sign):
    """A row of 2**levels terms for which every pair of the tree errs with `sign` as far as it can.

    The two operands of every pair are at distance d, the worst difference of one pair: a node's value splits
    into the shares 1 / (1 + 2^-d) and the rest, whichever bit of the index tells the two apart.
    """
    error = sign * pair_error(True)
    d = DISTANCES[np.argmax(error)] / UNIT
    heavy, light = -np.log2(1 + 2**-d), -d - np.log2(1 + 2**-d)
    row = np.zeros(1)
    for _ in range(levels):
        row = np.concatenate([row + heavy, row + light])
    return row * math.log(2)


@pytest.mark.parametrize("sign", [1, -1])
def test_bound_is_nearly_reached_by_an_adversary(sign):
    """Eight levels that err together: a bound with one level fewer would be broken."""
    levels = 8
    row = worst_row(levels, sign)
    error = sign * (float(_cpu.lse_1d(row, "int-pairwise")) - exact_lse(row))
    bound = pairwise_bound(row.size, np.dtype(np.float64))
    assert error <= bound
    assert error > pairwise_bound(row.size // 2, np.dtype(np.float64))


def test_error_does_not_grow_with_the_number_of_tiny_terms():
    """A million terms 12 octaves down, or nothing at all below one maximum."""
    x = np.full(1_000_000, -1e3)
    x[77] = 0.0
    assert _cpu.lse_1d(x, "int-pairwise") == 0.0
    x[:] = -np.inf
    x[77] = 0.0
    assert _cpu.lse_1d(x, "int-pairwise") == 0.0
    x[:] = -12 * math.log(2)
    x[77] = 0.0
    assert abs(_cpu.lse_1d(x, "int-pairwise") - exact_lse(x)) <= pairwise_bound(x.size, np.dtype(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(dtype):
    inf, nan = np.inf, np.nan
    big = np.finfo(dtype).max
    for x, expected in (
        ([-inf] * 20, -inf),
        ([inf, 0.0], inf),
        ([inf, -inf], inf),
        ([nan, inf], nan),
        ([nan, -inf], nan),
        ([-inf, 2.5], 2.5),
        ([-big, big], big),
        ([-big, -inf], -big),
    ):
        np.testing.assert_equal(_cpu.lse_1d(np.array(x, dtype), "int-pairwise"), dtype(expected))
    assert _cpu.lse_1d(np.empty(0, dtype), "int-pairwise") == -inf


DIGEST = """
import hashlib
import numpy as np
from pfkit_ext import _cpu
h = hashlib.sha256()
d = np.arange(0, 40 * 65536, 7, dtype=np.int32)
h.update(_cpu.pairwise_add(np.zeros_like(d), d).tobytes() + _cpu.pairwise_add(-d, d, False).tobytes())
rng = np.random.default_rng(0)
for dtype in (np.float32, np.float64):
    for n in (1, 5, 16, 31, 100, 1000, 4097):
        for spread in (1e-3, 1.0, 30.0, 1e3):
            x = (rng.normal(size=(3, n)) * spread).astype(dtype)
            h.update(_cpu.lse_rows(x, "int-pairwise").tobytes())
print(h.hexdigest())
"""


def test_every_simd_level_gives_the_same_bits(at_every_level):
    found = at_every_level(DIGEST)
    assert len(set(found.values())) == 1, found


def test_pairs_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="one length, not 2 and 3"):
        _cpu.pairwise_add(np.zeros(2, np.int32), np.zeros(3, np.int32))
