"""Resampling against exact big-integer arithmetic, and the promises of each scheme."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import pfkit
from pfkit.filters.resampling import SCHEMES, check_ancestors, resampling_scheme
from pfkit_ext import _cpu

VECTORS = Path(__file__).parents[1] / "lse" / "data" / "integer_lse_vectors.json"
WORD = 2**64


# ---- the definition, in Python integers ----------------------------------------------------------------


def places(w, n, offsets):
    """Ancestors by E_j = floor((n C_j + r) / S); r = offsets[k] in stratum k = floor(n C_j / S)."""
    total, cumulative, filled, out = sum(w), 0, 0, []
    for j, v in enumerate(w):
        cumulative += v
        k = n * cumulative // total
        end = (n * cumulative + (offsets[k] if k < n else 0)) // total
        out += [j] * (end - filled)
        filled = end
    return out


def drawn(w, draws):
    total, out = sum(w), []
    for u in draws:
        target, j, cumulative = (u * total) >> 64, 0, w[0]
        while cumulative <= target:
            j += 1
            cumulative += w[j]
        out.append(j)
    return out


def residual(w, n, draws):
    total = sum(w)
    sure = [j for j, v in enumerate(w) for _ in range(n * v // total)]
    rest = n - len(sure)
    return sure + (drawn([n * v % total for v in w], draws[:rest]) if rest else [])


def weights_of(style, n, dtype, rng):
    top = 2**31 if dtype == np.uint32 else 2**52
    if style == "flat":
        return np.full(n, rng.integers(1, top), dtype)
    if style == "sparse":
        w = np.where(rng.random(n) < 0.8, 0, rng.integers(1, 9, n))
    elif style == "one":
        w = np.zeros(n, np.int64)
    elif style == "steep":
        w = (top * rng.random(n) ** 30).astype(np.int64)
    else:
        w = rng.integers(0, top, n, endpoint=True)
    w[rng.integers(n)] = top - 1
    return w.astype(dtype)


STYLES = ("even", "steep", "flat", "sparse", "one")


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("style", STYLES)
def test_every_scheme_gives_the_bits_of_exact_arithmetic(dtype, style):
    rng = np.random.default_rng([STYLES.index(style), np.dtype(dtype).itemsize])
    for n in [1, 2, 3, 7, 8, 9, 40, 97]:
        for n_out in [n, 0, 1, 7, 8, 9, 200]:
            w = weights_of(style, n, dtype, rng)
            exact = [int(v) for v in w]
            total = sum(exact)
            assert _cpu.int_sum(w) == total
            bits = rng.integers(0, WORD - 1, max(n, n_out), np.uint64, endpoint=True)
            if bits.size > 2:
                bits[:2] = [0, WORD - 1]
            draws = [int(u) for u in bits[:n_out]]
            for r in [0, total - 1, int(bits[-1]) * total >> 64]:
                assert _cpu.systematic(w, n_out, r).tolist() == places(exact, n_out, [r] * n_out)
            one = _cpu.systematic_draw(w, n_out, bits[-1])
            assert one.tolist() == places(exact, n_out, [int(bits[-1]) * total >> 64] * n_out)
            strata = [u * total >> 64 for u in draws]
            expected = places(exact, n_out, strata)
            assert _cpu.stratified(w, n_out, bits[:n_out]).tolist() == expected
            pairs = np.array([(r >> 64, r % WORD) for r in strata], np.uint64).reshape(n_out, 2)
            assert _cpu.stratified(w, n_out, pairs).tolist() == expected
            assert _cpu.multinomial(w, bits[:n_out]).tolist() == drawn(exact, draws)
            left = n_out - sum(n_out * v // total for v in exact)
            assert _cpu.residual_left(w, n_out) == left
            assert np.array_equal(_cpu.residual(w, n_out, bits[:left]), _cpu.residual(w, n_out, bits))
            assert _cpu.residual(w, n_out, bits).tolist() == residual(exact, n_out, [int(u) for u in bits])


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_small_hand_made_weights_with_more_places_than_total(dtype):
    rng = np.random.default_rng(5)
    for _ in range(300):
        w = rng.integers(0, 3, rng.integers(1, 6)).astype(dtype)
        w[0] += 1
        exact, n = [int(v) for v in w], int(rng.integers(1, 60))
        total = sum(exact)
        r = int(rng.integers(total))
        bits = rng.integers(0, WORD - 1, max(n, w.size), np.uint64, endpoint=True)
        draws = [int(u) for u in bits]
        assert _cpu.systematic(w, n, r).tolist() == places(exact, n, [r] * n)
        strata = [u * total >> 64 for u in draws]
        assert _cpu.stratified(w, n, bits[:n]).tolist() == places(exact, n, strata)
        assert _cpu.multinomial(w, bits[:n]).tolist() == drawn(exact, draws[:n])
        assert _cpu.residual(w, n, bits).tolist() == residual(exact, n, draws)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quantize_is_the_rounded_ratio_to_the_largest(dtype):
    rng = np.random.default_rng(1)
    tiny = float(np.finfo(dtype).smallest_subnormal)
    for scale in [1.0, 1e-30, 1e30, tiny * 1000]:
        w = (rng.random(1000) ** 8 * scale).astype(dtype)
        wide = w.astype(np.float64)
        expected = np.rint(wide / wide.max() * (2**31 - 1)).astype(np.uint32)
        np.testing.assert_array_equal(_cpu.quantize(w), expected)
    wide = rng.random(2**20 + 3).astype(dtype)
    expected = np.rint(wide.astype(np.float64) / float(wide.max()) * 2.0**52).astype(np.uint64)
    got = _cpu.quantize(wide)
    assert got.dtype == np.uint64
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("largest", [1.0, 3.0, 1e-300, 7e-308, 1.7e308, 2.0**-980])
def test_quantize_rounds_ties_and_their_neighbours_as_the_definition_does(largest):
    rng = np.random.default_rng(9)
    halves = (rng.integers(0, 2**31 - 1, 5000) + 0.5) / (2**31 - 1) * largest
    w = np.concatenate([[largest], halves, np.nextafter(halves, 0), np.nextafter(halves, largest)])
    expected = np.rint(w / largest * (2**31 - 1)).astype(np.uint32)
    np.testing.assert_array_equal(_cpu.quantize(w), expected)


def test_published_vectors():
    if not VECTORS.exists():
        pytest.skip("the vectors of the integer kernel are not in this checkout")
    seen = 0
    for case in json.loads(VECTORS.read_text()):
        if "weights" not in case:
            continue
        w = np.array(case["weights"], np.uint32)
        draws = np.array([(k * 0x9E3779B97F4A7C15 + 0x1234567) % WORD for k in range(4 * w.size)], np.uint64)
        for name, expected in case.items():
            n = len(expected) if isinstance(expected, list) else 0
            if name.startswith("systematic"):
                u = float.fromhex(name.partition("u=")[2])
                got = SCHEMES["systematic"](w, n, None, u)
            elif name.startswith("stratified"):
                got = _cpu.stratified(w, n, draws[:n])
            elif name.startswith("multinomial"):
                got = _cpu.multinomial(w, draws[:n])
            elif name.startswith("residual"):
                got = _cpu.residual(w, n, draws)
            else:
                continue
            assert got.tolist() == expected, (name, case["x"])
            seen += 1
    assert seen > 150


# ---- what each scheme promises -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", ["systematic", "stratified", "residual"])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 99_999, 2**20, 2**20 + 1])
def test_equal_weights_resample_to_the_identity(scheme, n, dtype):
    for value in (1.0, 1e-30, 1 / 3):
        w = np.full(n, value, dtype)
        assert np.array_equal(pfkit.resample(w, scheme=scheme, rng=3), np.arange(n))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", ["systematic", "stratified", "residual"])
def test_ten_million_equal_weights_resample_to_the_identity(scheme, dtype):
    w = np.full(10**7, 0.1, dtype)
    assert np.array_equal(pfkit.resample(w, scheme=scheme, rng=3), np.arange(w.size))


def test_offspring_are_floor_or_ceil_for_systematic_and_at_least_floor_for_residual():
    rng = np.random.default_rng(0)
    for k in range(200):
        w = rng.integers(0, 1000, 30).astype(float)
        w[0] = (
            1023.0  # 2^31 - 1 over 1023 is no integer: rounding to integer weights is part of what is tested
        )
        ints = [int(v) for v in _cpu.quantize(w)]
        share = [17 * v / sum(ints) for v in ints]
        counts = np.bincount(pfkit.resample(w, 17, rng=k), minlength=30)
        assert np.all((counts == np.floor(share)) | (counts == np.ceil(share)))
        counts = np.bincount(pfkit.resample(w, 17, scheme="residual", rng=k), minlength=30)
        assert np.all(counts >= np.floor(share))


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_expected_offspring(scheme):
    w = np.array([0.1, 0.5, 0.0, 0.15, 0.24, 0.01])
    runs, n = 4000, 9
    generator = np.random.default_rng(11)
    counts = np.array(
        [np.bincount(pfkit.resample(w, n, scheme=scheme, rng=generator), minlength=6) for _ in range(runs)]
    )
    error = counts.std(axis=0, ddof=1) / np.sqrt(runs)
    assert np.all(np.abs(counts.mean(axis=0) - n * w) <= 4.5 * error + 1e-6)
    assert counts[:, 2].max() == 0


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_index_out_of_range_and_never_a_dead_particle(scheme, dtype):
    rng = np.random.default_rng(7)
    for _ in range(500):
        n, n_out = rng.integers(1, 40, 2)
        w = (rng.random(n) * 10.0 ** rng.integers(-30, 30)).astype(dtype)
        w[rng.random(n) < 0.3] = 0
        w[rng.integers(n)] = w.max() if w.max() > 0 else 1
        a = pfkit.resample(w, int(n_out), scheme=scheme, rng=rng)
        assert a.dtype == np.int64 and a.shape == (n_out,)
        assert a.min() >= 0 and a.max() < n and np.all(w[a] > 0)
        if scheme in ("systematic", "stratified"):
            assert np.all(np.diff(a) >= 0)


@pytest.mark.parametrize("u", [0.0, 1e-300, 0.5, 1 - 1e-8, np.nextafter(1, 0)])
def test_extreme_uniforms(u):
    tenth = np.full(10, 0.1)
    assert np.array_equal(pfkit.resample(tenth, u=u), np.arange(10))
    assert np.array_equal(pfkit.resample(tenth, scheme="stratified", u=u), np.arange(10))
    inner = pfkit.resample([0.0, 0.5, 0.5, 0.0], u=u)
    assert inner.tolist() == [1, 1, 2, 2]
    one_hot = np.eye(1, 50, 13)[0]
    for scheme in SCHEMES:
        uniforms = u if scheme in ("systematic", "stratified") else np.full(50, u)
        assert np.all(pfkit.resample(one_hot, scheme=scheme, u=uniforms) == 13)


def test_caller_uniforms_follow_the_stated_convention():
    w = np.array([1.0, 2.0, 5.0])
    edges = np.array([1 / 8, 3 / 8, 1.0])
    rng = np.random.default_rng(2)
    for _ in range(50):
        u = rng.random()
        expected = [int(np.argmax(edges > (k + u) / 4)) for k in range(4)]
        assert pfkit.resample(w, 4, u=u).tolist() == expected
        us = rng.random(4)
        expected = [int(np.argmax(edges > (k + v) / 4)) for k, v in enumerate(us)]
        assert pfkit.resample(w, 4, scheme="stratified", u=us).tolist() == expected
        expected = [int(np.argmax(edges > v)) for v in us]
        assert pfkit.resample(w, 4, scheme="multinomial", u=us).tolist() == expected
    # 4 w / 8 = 0.5, 1, 2.5: one copy of 1, two of 2, one draw between 0 and 2
    assert pfkit.resample(w, 4, scheme="residual", u=[0.49, 0, 0, 0]).tolist() == [1, 2, 2, 0]
    assert pfkit.resample(w, 4, scheme="residual", u=[0.51, 0, 0, 0]).tolist() == [1, 2, 2, 2]


def test_stratified_draws_the_particle_that_covers_whole_strata():
    for seed in range(50):
        a = pfkit.resample([0.1, 0.5, 0.1, 0.15, 0.15], scheme="stratified", rng=seed)
        assert a[1] == a[2] == 1


def test_multinomial_counts_pass_a_chi_square_test():
    w = np.arange(1.0, 51.0)
    a = pfkit.resample(w, 100_000, scheme="multinomial", rng=4)
    expected = 100_000 * w / w.sum()
    chi2 = np.sum((np.bincount(a, minlength=50) - expected) ** 2 / expected)
    assert 15 < chi2 < 100  # 49 degrees of freedom: both tails below 1e-5


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_seeds(scheme):
    w = np.random.default_rng(0).random(1000)
    before = np.random.get_state()[1].copy()
    a, b, c = (pfkit.resample(w, scheme=scheme, rng=s) for s in (1, 1, 2))
    assert np.array_equal(a, b) and not np.array_equal(a, c)
    assert np.array_equal(before, np.random.get_state()[1])
    for bits in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64):
        rng = np.random.Generator(bits(3))
        first, second = pfkit.resample(w, scheme=scheme, rng=rng), pfkit.resample(w, scheme=scheme, rng=rng)
        assert not np.array_equal(first, second)
        assert np.array_equal(first, pfkit.resample(w, scheme=scheme, rng=np.random.Generator(bits(3))))


@pytest.mark.parametrize("n", [1, 20, 2**20 + 8])
def test_length_other_than_the_number_of_weights(n):
    w = np.random.default_rng(0).random(n)
    for m in (0, 1, 2 * n + 1):
        for scheme in SCHEMES:
            a = pfkit.resample(w, m, scheme=scheme, rng=0)
            assert a.shape == (m,) and (m == 0 or a.max() < n)


# ---- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [*sorted(SCHEMES), lambda w, n, rng: np.zeros(n, int)])
@pytest.mark.parametrize(
    ("weights", "word"),
    [
        ([0.5, -0.1, 0.6], r"weights\[1\] is -0.1"),
        ([0.5, float("nan"), 0.5], r"weights\[1\] is nan"),
        ([0.0, 0.0, 0.0], "all are 0"),
        ([float("inf"), 1.0, 1.0], r"weights\[0\] is inf"),
        ([1.0, -float("inf")], r"weights\[1\] is -inf"),
        ([], "at least one element"),
        ([[0.5, 0.5]], "1-D"),
        (3.0, "1-D"),
    ],
)
def test_invalid_weights(weights, word, scheme):
    with pytest.raises(ValueError, match=word):
        pfkit.resample(weights, scheme=scheme)


def test_other_invalid_arguments():
    w = [0.5, 0.5]
    with pytest.raises(TypeError, match="real numbers"):
        pfkit.resample([1j, 2])
    with pytest.raises(TypeError, match="real numbers"):
        pfkit.resample(["a", "b"])
    with pytest.raises(TypeError, match="real numbers"):
        pfkit.resample(np.array([None, 1.0]))
    with pytest.raises(ValueError, match="'systematic', 'stratified', 'multinomial', 'residual'"):
        pfkit.resample(w, scheme="sistematic")
    with pytest.raises(TypeError, match="callable"):
        pfkit.resample(w, scheme=3)
    with pytest.raises(ValueError, match="n must be >= 0"):
        pfkit.resample(w, -1)
    with pytest.raises(TypeError, match="n must be an int"):
        pfkit.resample(w, 2.0)
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        pfkit.resample(w, u=1.0)
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        pfkit.resample(w, u=float("nan"))
    with pytest.raises(ValueError, match="one number"):
        pfkit.resample(w, u=[0.1, 0.2])
    with pytest.raises(ValueError, match=r"\(2,\)"):
        pfkit.resample(w, scheme="multinomial", u=0.5)
    with pytest.raises(TypeError, match="callable"):
        pfkit.resample(w, scheme=lambda w, n, rng: [0, 0], u=0.5)
    with pytest.raises(TypeError, match="rng"):
        pfkit.resample(w, rng="seed")


def test_unnormalised_integer_and_boolean_weights():
    assert Counter(pfkit.resample([3.0, 1.0], 4000, rng=0).tolist()) == {0: 3000, 1: 1000}
    assert Counter(pfkit.resample([3, 1], 4000, rng=0).tolist()) == {0: 3000, 1: 1000}
    assert set(pfkit.resample([True, False, True], 10, rng=0).tolist()) == {0, 2}
    w = np.random.default_rng(0).random(100)
    w.flags.writeable = False
    assert np.array_equal(pfkit.resample(w, rng=1), pfkit.resample(w * 2.0**300, rng=1))
    assert np.array_equal(pfkit.resample(w, rng=1), pfkit.resample(np.repeat(w, 3)[::3], rng=1))


def test_a_callable_scheme_gets_normalised_weights_and_its_output_is_checked():
    def last(w, n, rng):
        assert abs(w.sum() - 1) < 1e-12 and isinstance(rng, np.random.Generator)
        return np.full(n, w.size - 1, np.int32)

    assert pfkit.resample([1e300, 1e300, 1e300], 5, scheme=last).tolist() == [2] * 5
    for bad, word in [([0, 2], "index 2"), ([-1, 0], "index -1"), ([0], "shape"), ([0.0, 1.0], "float64")]:
        with pytest.raises(ValueError, match=word):
            check_ancestors(bad, 2, 2)


def test_a_scheme_may_be_registered_by_name():
    @resampling_scheme("reversed")
    def backwards(ints, n, rng, u=None, out=None):
        return SCHEMES["systematic"](ints, n, rng, u, out)[::-1]

    try:
        assert pfkit.resample(np.ones(4), scheme="reversed", rng=0).tolist() == [3, 2, 1, 0]
    finally:
        del SCHEMES["reversed"]


# ---- the compiled layer --------------------------------------------------------------------------------


def test_compiled_functions_check_their_arguments():
    w = np.array([1, 2, 3], np.uint32)
    with pytest.raises(TypeError, match="uint32 or uint64"):
        _cpu.systematic(w.astype(np.int64), 3, 0)
    with pytest.raises(ValueError, match="must be > 0"):
        _cpu.systematic(w * 0, 3, 0)
    with pytest.raises(ValueError, match="0 .. 5"):
        _cpu.systematic(w, 3, 6)
    with pytest.raises(ValueError, match=">= 0"):
        _cpu.systematic(w, -1, 0)
    with pytest.raises(ValueError, match="draws"):
        _cpu.stratified(w, 3, np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match="stratum 1"):
        _cpu.stratified(w, 2, np.array([[0, 5], [0, 6]], np.uint64))
    with pytest.raises(ValueError, match="draws"):
        _cpu.residual(w, 3, np.zeros(0, np.uint64))
    with pytest.raises(ValueError, match="128 bits"):
        _cpu.systematic(np.full(4, 2**64 - 1, np.uint64), 2**62 - 1, 0)
    with pytest.raises(ValueError, match="out"):
        _cpu.systematic(w, 3, 0, np.zeros(2, np.int64))


def test_gather_moves_rows_counts_ancestors_and_refuses_bad_indices():
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        x = rng.normal(size=(3, 50)).astype(dtype)
        for a in (np.sort(rng.integers(0, 50, 50)), rng.integers(0, 50, 50)):
            out = np.zeros_like(x)
            assert _cpu.gather(x, a, out) == np.unique(a).size
            assert np.array_equal(out, x[:, a])
        for bad in (-1, 50, 2**40, -(2**40)):
            a[7] = bad
            out.fill(7)
            with pytest.raises(IndexError):
                _cpu.gather(x, a, out)
            assert np.all(out == 7)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("style", STYLES)
def test_draw_and_gather_in_one_pass_are_those_of_exact_arithmetic(dtype, style):
    rng = np.random.default_rng([3, STYLES.index(style), np.dtype(dtype).itemsize])
    for n in [1, 4, 5, 31, 32, 33, 255, 256, 257, 700]:
        for n_out in [n, 0, 1, 3, n // 3, 5 * n]:
            w = weights_of(style, n, dtype, rng)
            bits = rng.integers(0, WORD - 1, dtype=np.uint64, endpoint=True)
            total = sum(int(v) for v in w)
            expected = np.array(places([int(v) for v in w], n_out, [int(bits) * total >> 64] * n_out), int)
            for d, kind in ((1, np.float32), (3, np.float64), (2, np.float32)):
                x = rng.normal(size=(d, n)).astype(kind)
                a, moved = np.full(n_out, -1), np.full((d, n_out), 7, kind)
                assert _cpu.systematic_move(w, x, bits, a, moved) == np.unique(expected).size
                np.testing.assert_array_equal(a, expected)
                np.testing.assert_array_equal(moved, x[:, expected])


def test_draw_and_gather_refuses_arrays_that_do_not_fit():
    w, a, x = np.arange(1, 5, dtype=np.uint32), np.zeros(4, np.int64), np.zeros((2, 4))
    for bad in (np.zeros((2, 5)), np.zeros(4), np.zeros((2, 4), np.int64)):
        with pytest.raises(ValueError, match="x must be"):
            _cpu.systematic_move(w, bad, 1, a, np.zeros((2, 4)))
    for bad in (np.zeros((1, 4)), np.zeros((2, 3)), np.zeros((2, 4), np.float32)):
        with pytest.raises(ValueError, match="moved must be"):
            _cpu.systematic_move(w, x, 1, a, bad)
    with pytest.raises(ValueError, match="overlap"):
        _cpu.systematic_move(w, x, 1, a, x)
    with pytest.raises(ValueError, match="at least one"):
        _cpu.systematic_move(w * 0, x, 1, a, np.zeros((2, 4)))
    assert not a.any()


DIGEST = """
import hashlib, numpy as np
from pfkit_ext import _cpu
rng = np.random.default_rng(0)
h = hashlib.sha256()
for n in (1, 5, 16, 33, 1000, 4097, 2**20 + 5):
    f = rng.random(n) ** 5
    for w in (f, f.astype(np.float32)):
        q = _cpu.quantize(w)
        bits = rng.integers(0, 2**64 - 1, n, np.uint64, endpoint=True)
        x = np.ascontiguousarray(np.stack([f, 1 - f]).astype(w.dtype))
        a = _cpu.systematic(q, n, _cpu.int_sum(q) // 3)
        out = np.empty_like(x)
        _cpu.gather(x, a, out)
        moments = _cpu.moments(x, w, None, True)
        drawn = _cpu.stratified(q, n, bits), _cpu.multinomial(q, bits), _cpu.residual(q, n, bits)
        b, moved = np.empty_like(a), np.empty_like(x)
        _cpu.systematic_move(q, x, int(bits[0]), b, moved)
        for part in (q, a, *drawn, out, *moments, b, moved):
            h.update(part.tobytes())
print(h.hexdigest())
"""


def test_every_simd_level_gives_the_same_bits(at_every_level):
    seen = at_every_level(DIGEST)
    assert len(set(seen.values())) == 1, seen


def test_gather_refuses_other_shapes_and_dtypes():
    a = np.zeros(4, np.int64)
    for x in (np.zeros(4), np.zeros((1, 2, 4)), np.zeros((1, 4), np.int64), np.zeros((1, 4), np.float16)):
        with pytest.raises(ValueError):
            _cpu.gather(x, a, np.zeros((1, 4), x.dtype))
    with pytest.raises(ValueError):
        _cpu.gather(np.zeros((1, 4)), a.astype(np.int32), np.zeros((1, 4)))
    with pytest.raises(ValueError):
        _cpu.gather(np.zeros((1, 4)), a, np.zeros((1, 5)))


def test_masked_weights_are_refused():
    w = np.ma.masked_array([0.2, 0.3, 0.5], mask=[False, True, False])
    for scheme in ("systematic", "multinomial", lambda w, n, rng: np.zeros(n, int)):
        with pytest.raises(ValueError, match="must not be masked, and 1 are"):
            pfkit.resample(w, scheme=scheme, rng=1)
    np.testing.assert_array_equal(pfkit.resample(w.filled(0), u=0.0), [0, 2, 2])
    whole = np.ma.masked_array([0.2, 0.3, 0.5])
    np.testing.assert_array_equal(pfkit.resample(whole, rng=1), pfkit.resample(whole.data, rng=1))
