"""The random number generator: its published test vectors, its distributions, its tails, its streams."""

import hashlib
import math
import pickle

import mpmath
import numpy as np
import pytest
from scipy import stats

from pfkit.filters.random import PhiloxGenerator, random_bits, stream
from pfkit_ext import _cpu

KEY = np.array([0x0123456789ABCDEF, 0xFEDCBA9876543210], np.uint64)
KINDS = ("normal", "uniform", "exponential")
DTYPES = (np.float64, np.float32)
P_LIMIT = 1e-5  # per check; seeds are fixed, so a failure is the code's, not chance's


def fill(kind, n, dtype, stream_number=5, group=0, key=123):
    out = np.empty(n, dtype)
    _cpu.random_fill(out, kind, key, stream_number, group)
    return out


# ---- the block function ------------------------------------------------------------------------------------

PI = (0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E)
ONES = (2**64 - 1,) * 3
VECTORS = [  # the published known-answer vectors of Philox4x32 (Random123)
    (7, (0, 0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    (7, ONES, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (7, PI, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
    (10, (0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (10, ONES, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (10, PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize("rounds, arguments, words", VECTORS)
def test_published_vectors(rounds, arguments, words):
    assert _cpu.philox4x32(*arguments, rounds) == words


def counters(n, group=0, stream_number=5, key=123):
    """Words of n counters by the scalar block function, (n, 4)."""
    return np.array([_cpu.philox4x32(key, 32 * group + c, stream_number) for c in range(n)], np.uint64)


@pytest.mark.parametrize("group", [0, 3, 2**27 - 1, 2**40])  # 2**27 - 1: the low word wraps next
def test_vector_code_uses_the_counters_documented(group):
    w = counters(64, group)
    pairs = np.concatenate([h for half in (w[:32], w[32:]) for h in (half[:, :2], half[:, 2:])])
    words = pairs[:, 0] << np.uint64(32) | pairs[:, 1]
    assert np.array_equal(_cpu.random_bits(128, 123, 5, group), words)
    assert np.array_equal(fill("uniform", 128, np.float64, group=group), (words >> np.uint64(11)) * 2.0**-53)
    order = np.concatenate([half[:, k] for half in (w[:32], w[32:]) for k in range(4)])
    assert np.array_equal(
        fill("uniform", 256, np.float32, group=group), (order >> np.uint64(8)) * np.float32(2.0**-24)
    )


def ulps(got, exact):
    spacing = [abs(float(np.spacing(type(g)(float(e))))) for g, e in zip(got, exact, strict=True)]
    return max(float(abs(mpmath.mpf(float(g)) - e) / s) for g, e, s in zip(got, exact, spacing, strict=True))


def minus_log(high, low):  # the uniform is rounded to a double first
    return -mpmath.log(mpmath.mpf(float((high << 32 | low) | 1)) / 2**64)


def test_float64_normals_and_exponentials_are_the_formula():
    w = [[int(v) for v in row] for row in counters(320)]
    with mpmath.workdps(40):
        normals, exponentials = [], []
        for block in range(0, 320, 32):
            rows = w[block : block + 32]
            e = [minus_log(a, b) for a, b, _, _ in rows]
            exponentials += e + [minus_log(c, d) for _, _, c, d in rows]
            cosines, sines = [], []
            for radius, (_, _, c, d) in zip(e, rows, strict=True):
                angle = (mpmath.mpf(c << 20 | d >> 12) / 2**52 - mpmath.mpf(1) / 2) * mpmath.pi / 2
                co, si = mpmath.cos(angle) * (-1) ** (d & 1), mpmath.sin(angle)
                if d & 2:
                    co, si = si, co
                cosines.append(mpmath.sqrt(2 * radius) * co)
                sines.append(mpmath.sqrt(2 * radius) * si)
            normals += cosines + sines
        assert ulps(fill("normal", 640, np.float64), normals) < 6
        assert ulps(fill("exponential", 640, np.float64), exponentials) < 3


def test_float32_tail_draws_more_bits():
    """Counters whose 30-bit uniform is below 2^-11 take 32 bits more; every one of 2^17 is checked."""
    n = 2**17
    got = fill("exponential", n, np.float32)
    pairs = _cpu.random_bits(n // 2, 123, 5, 0).reshape(-1, 2, 32)
    words = (
        np.stack([pairs >> np.uint64(32), pairs & np.uint64(0xFFFFFFFF)], axis=2).reshape(-1, 4, 32).ravel()
    )
    odd = (words >> np.uint64(1)) | np.uint64(1)
    u = odd.astype(np.float64) / 2**31
    tail = np.flatnonzero(odd < 2**20)
    assert 20 < tail.size < 120  # 64 expected
    for j in tail:
        group, word, lane = j // 128, j % 128 // 32, j % 32
        more = _cpu.philox4x32(123, 32 * int(group) + int(lane), 5 | 1 << 63)[word]
        u[j] = (float(odd[j]) - 1 + (more + 0.5) / 2**31) / 2**31
    np.testing.assert_allclose(got, -np.log(u), rtol=3e-7, atol=0)


def test_smallest_uniforms_reach_the_tail_uncut():
    """In 2^26 draws the smallest uniform of a radius gives the normal it should, beyond five sigma."""
    largest = 0.0
    for group in range(0, 2**20, 2**17):
        words = _cpu.random_bits(2**23, 123, 5, group).reshape(-1, 2, 32)
        normals = fill("normal", 2**23, np.float64, group=group).reshape(-1, 2, 32)
        u = ((words[:, 0] | np.uint64(1)).astype(np.float64)) / 2.0**64
        g, lane = np.unravel_index(u.argmin(), u.shape)
        radius = np.hypot(normals[g, 0, lane], normals[g, 1, lane])
        assert radius == pytest.approx(math.sqrt(-2 * math.log(u[g, lane])), rel=1e-14)
        largest = max(largest, radius)
    assert largest > 5.5


# ---- the same bits everywhere ------------------------------------------------------------------------------

DIGEST = """
import hashlib, numpy as np
from pfkit_ext import _cpu
h = hashlib.sha256()
for kind in ("normal", "uniform", "exponential"):
    for dtype in (np.float64, np.float32):
        for n, group in ((1, 0), (63, 1), (100_000, 7)):
            out = np.empty(n, dtype)
            _cpu.random_fill(out, kind, 99, 3, group)
            h.update(out.tobytes())
x = np.random.default_rng(0).normal(size=1000) * 20
for name in ("exp", "sin", "cos", "atan2"):
    for dtype in (np.float64, np.float32):
        h.update(_cpu.vmath(name, x.astype(dtype), x[::-1].astype(dtype)).tobytes())
for dtype in (np.float64, np.float32):
    h.update(_cpu.vmath("log", np.abs(x).astype(dtype)).tobytes())
print(h.hexdigest())
"""


def test_bits_are_the_same_at_every_simd_level(at_every_level):
    digests = at_every_level(DIGEST)
    assert len(set(digests.values())) == 1, digests


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_is_a_prefix(kind, dtype):
    whole = fill(kind, 1000, dtype)
    for n in (0, 1, 31, 64, 65, 127, 128, 129, 999):
        assert np.array_equal(fill(kind, n, dtype), whole[:n])
    size = 64 if dtype == np.float64 else 128
    assert np.array_equal(fill(kind, 1000 - size, dtype, group=1), whole[size:])


# ---- distributions -----------------------------------------------------------------------------------------

N = 4_000_000
LAW = {"normal": stats.norm(), "uniform": stats.uniform(), "exponential": stats.expon()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_moments(kind, dtype):
    x = fill(kind, N, dtype).astype(np.float64)
    for power in (1, 2, 3, 4):
        expected, square = LAW[kind].moment(power), LAW[kind].moment(2 * power)
        z = ((x**power).mean() - expected) / math.sqrt((square - expected**2) / N)
        assert abs(z) < 4.5, (power, z)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_chi_square_on_1000_equiprobable_cells(kind, dtype):
    edges = LAW[kind].ppf(np.linspace(0, 1, 1001)[1:-1])
    counts = np.bincount(np.searchsorted(edges, fill(kind, N, dtype).astype(np.float64)), minlength=1000)
    assert P_LIMIT < stats.chisquare(counts).pvalue < 1 - P_LIMIT


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_kolmogorov_smirnov(kind, dtype):
    x = fill(kind, 500_000, dtype, stream_number=77).astype(np.float64)
    assert stats.kstest(x, LAW[kind].cdf).pvalue > P_LIMIT


@pytest.mark.parametrize("dtype", DTYPES)
def test_normal_tail_counts(dtype):
    """Counts beyond 3, 4, 5 and 5.9 sigma in 1.3e8 draws are Poisson of the right mean, on both sides."""
    limits = (3.0, 4.0, 5.0, 5.9)
    counts = np.zeros((2, len(limits)))
    draws, chunk = 2**27, 2**22
    for k in range(draws // chunk):
        x = fill("normal", chunk, dtype, stream_number=9, group=k * 2**17)
        tail = x[np.abs(x) > 3].astype(np.float64)
        counts += [[(side * tail > limit).sum() for limit in limits] for side in (-1, 1)]
    for side in counts:
        for count, limit in zip(side, limits, strict=True):
            mean = draws * stats.norm.sf(limit)
            p = stats.poisson.cdf(count, mean), stats.poisson.sf(count - 1, mean)
            assert min(p) > P_LIMIT, (limit, count, mean)
    assert counts[:, 2].sum() > 40  # 77 expected beyond 5 sigma


# ---- independence ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_serial_correlation(dtype):
    x = fill("normal", 1_000_000, dtype).astype(np.float64)
    for lag in (*range(1, 9), 16, 31, 32, 33, 63, 64, 65, 96, 128, 256, 4096):
        for f in (lambda v: v, lambda v: (v * v - 1) / math.sqrt(2)):
            z = (f(x[:-lag]) * f(x[lag:])).sum() / math.sqrt(len(x) - lag)
            assert abs(z) < 4.8, lag


def test_streams_are_independent_of_their_neighbours():
    base = stream(KEY, 4, 1)
    x = base.standard_normal(500_000)
    neighbours = [stream(KEY, 5, 1), stream(KEY, 4, 2), stream(KEY, 4 + 2**20, 1)]
    for bit in (0, 1, 31, 32, 63):
        for half in (0, 1) if bit else (0,):  # bit 0 of the second word is not used
            key = KEY.copy()
            key[half] ^= np.uint64(1 << bit)
            neighbours.append(stream(key, 4, 1))
    for other in neighbours:
        y = other.standard_normal(500_000)
        assert not np.array_equal(x, y)
        assert abs((x * y).sum()) / math.sqrt(len(x)) < 4.8, other
        assert abs(((x * x - 1) * (y * y - 1)).sum()) / math.sqrt(4 * len(x)) < 4.8, other


def test_every_bit_of_the_words_is_fair_and_flips_with_any_input_bit():
    words = _cpu.random_bits(2**18, 123, 5, 0)
    ones = np.array([((words >> np.uint64(b)) & np.uint64(1)).sum() for b in range(64)], float)
    assert np.abs((ones - 2**17) / math.sqrt(2**16)).max() < 4.8
    for other in (
        _cpu.random_bits(2**18, 122, 5, 0),
        _cpu.random_bits(2**18, 123, 4, 0),
        words[np.arange(2**18) ^ 1],
    ):
        flips = np.bitwise_count(words ^ other).astype(float)
        assert abs(flips.mean() - 32) / (4 / 2**9) < 4.8
        assert flips.var() == pytest.approx(16, rel=0.02)


def test_collisions_of_32_bit_words():
    """Birthday test: repeats among 2^22 words of 32 bits are Poisson of mean n (n - 1) / 2^33 = 2048."""
    words = _cpu.random_bits(2**21, 1, 2, 3).view(np.uint32)
    words = np.sort(words)
    repeats = int((words[1:] == words[:-1]).sum())
    mean = len(words) * (len(words) - 1) / 2**33
    assert abs(repeats - mean) / math.sqrt(mean) < 4.5


# ---- the Generator -----------------------------------------------------------------------------------------


def test_generator_is_a_numpy_generator():
    rng = stream(KEY, 3, 1)
    assert isinstance(rng, np.random.Generator)
    assert isinstance(rng.standard_normal(), float) and isinstance(rng.random(), float)
    assert (
        rng.standard_normal(5).shape == (5,) and rng.standard_normal((2, 3), dtype="f4").dtype == np.float32
    )
    out = np.empty((3, 4), np.float32)
    assert rng.standard_normal(out=out, dtype=np.float32) is out
    assert rng.standard_exponential(7).min() > 0 and rng.random((2, 0)).shape == (2, 0)
    assert rng.integers(0, 10, 100).max() < 10 and sorted(rng.permutation(5)) == [0, 1, 2, 3, 4]


def test_generator_located_forms():
    n = 400_000
    rng = PhiloxGenerator(KEY)
    x = rng.normal(3.0, 2.0, n)
    assert abs(x.mean() - 3) < 4.5 * 2 / math.sqrt(n) and x.std() == pytest.approx(2, rel=0.01)
    loc = np.array([0.0, 100.0])
    y = rng.normal(loc, [[1.0], [0.0]])
    assert y.shape == (2, 2) and np.array_equal(y[1], loc)
    assert rng.normal(loc, 1.0, (5, 2)).shape == (5, 2)
    z = rng.uniform(-2, 6, n)
    assert -2 <= z.min() and z.max() < 6 and z.mean() == pytest.approx(2, abs=4.5 * 8 / math.sqrt(12 * n))
    assert rng.exponential(5.0, n).mean() == pytest.approx(5, abs=4.5 * 5 / math.sqrt(n))
    assert isinstance(rng.normal(1, 2), float) and isinstance(rng.uniform(), float)


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda r: r.standard_normal(3, dtype=np.float16), TypeError),
        (lambda r: r.standard_normal(3, dtype=int), TypeError),
        (lambda r: r.standard_normal(out=np.empty(3, np.float32)), TypeError),
        (lambda r: r.standard_normal(out=np.empty((4, 4)).T[:2]), ValueError),
        (lambda r: r.standard_normal((2, 2), out=np.empty(4)), ValueError),
        (lambda r: r.normal(0, -1), ValueError),
        (lambda r: r.exponential(-1.0), ValueError),
        (lambda r: r.normal(np.zeros(3), 1, 2), ValueError),
        (lambda r: r.uniform(0, np.inf), OverflowError),
        (lambda r: r.standard_exponential(3, method="box"), ValueError),
        (lambda r: r.rewind(-1, 0), ValueError),
    ],
)
def test_generator_errors(call, error):
    with pytest.raises(error):
        call(PhiloxGenerator(KEY))


def test_generator_streams_repeat_and_move_on():
    a, b = stream(KEY, 3, 1), stream(KEY, 3, 1)
    first = a.standard_normal(10)
    assert np.array_equal(first, b.standard_normal(10))
    assert not np.array_equal(first, a.standard_normal(10))
    a.rewind(3, 1)
    assert np.array_equal(first, a.standard_normal(10))
    assert np.array_equal(random_bits(stream(KEY, 1, 2), 5), random_bits(stream(KEY, 1, 2), 5))


def test_generator_pickles():
    rng = stream(KEY, 3, 1)
    rng.random(5), rng.integers(10)
    twin = pickle.loads(pickle.dumps(rng))
    assert np.array_equal(rng.standard_normal(9), twin.standard_normal(9)) and rng.integers(
        1 << 60
    ) == twin.integers(1 << 60)


def test_global_numpy_state_is_untouched():
    def digest():
        return hashlib.sha256(np.random.get_state()[1].tobytes()).hexdigest(), np.random.get_state()[2]

    before = digest()
    stream(KEY, 0, 0).normal(0, 1, 100)
    assert digest() == before


# ---- the functions under them ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["exp", "log", "sin", "cos", "atan2"])
def test_functions_against_mpmath(name, dtype):
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.normal(size=1500) * 10, rng.normal(size=500) * 1e-3]).astype(dtype)
    if name == "log":
        x = np.abs(x) + np.finfo(dtype).tiny
    y = rng.permutation(x)
    got = _cpu.vmath(name, x, y)
    with mpmath.workdps(40):
        exact = [
            getattr(mpmath, name)(mpmath.mpf(float(a)), *([mpmath.mpf(float(b))] if name == "atan2" else []))
            for a, b in zip(x, y, strict=True)
        ]
        if name in ("sin", "cos"):  # absolute near the zeros
            error = max(float(abs(mpmath.mpf(float(g)) - e)) for g, e in zip(got, exact, strict=True))
            assert error < 2 * float(np.finfo(dtype).eps)
        else:
            assert ulps(got, exact) < 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_at_its_ends(dtype):
    x = np.array([-np.inf, -1e30, -750, 0, 750, 1e30, np.inf], dtype)
    assert np.array_equal(_cpu.vmath("exp", x), np.array([0, 0, 0, 1, np.inf, np.inf, np.inf], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_atan2_on_the_axes(dtype):
    y = np.array([0.0, 0.0, -0.0, -0.0, 1, -1, 0.0, 5, -5], dtype)
    x = np.array([1.0, -1.0, 1.0, -1.0, 0, 0, 0.0, -5, 5], dtype)
    np.testing.assert_allclose(_cpu.vmath("atan2", y, x), np.arctan2(y, x), rtol=4 * np.finfo(dtype).eps)
    assert np.array_equal(np.signbit(_cpu.vmath("atan2", y, x)), np.signbit(np.arctan2(y, x)))
