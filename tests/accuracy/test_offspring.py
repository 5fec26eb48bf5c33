"""How many copies each particle gets: expectations, exact bounds, identities, extremes."""

from fractions import Fraction

import numpy as np
import pytest

from pfkit.filters import resample

SCHEMES = ("systematic", "stratified", "multinomial", "residual")
IDENTITY_SCHEMES = ("systematic", "stratified", "residual")
LARGEST = 2**31 - 1  # the integer weight of the largest particle, so these weights are used exactly


def integer_weights(g, n, zeros=0.3):
    """Integers in 0..LARGEST, at least one equal to it."""
    w = np.floor(LARGEST * g.random(n) ** g.integers(1, 6)) * (g.random(n) > zeros)
    w[g.integers(n)] = LARGEST
    return w


def offspring(indices, n):
    assert indices.dtype == np.int64
    assert indices.size == 0 or (indices.min() >= 0 and indices.max() < n)
    return np.bincount(indices, minlength=n)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [1, 2, 5, 10, 31])
def test_expected_offspring_is_n_w(scheme, n):
    g = np.random.default_rng(n)
    repeats = 5000
    for w in (
        g.random(n),
        g.exponential(size=n) ** 4,
        np.where(g.random(n) < 0.4, 0.0, 1.0) + (np.arange(n) == 0),
    ):
        w = w / w.sum()
        counts = np.zeros(n)
        for _ in range(repeats):
            counts += offspring(resample(w, scheme=scheme, rng=g), n)
        # a particle's offspring varies at most as much as under independent draws
        standard_error = np.sqrt(n * w * (1 - w) / repeats)
        assert (np.abs(counts / repeats - n * w) <= 4.5 * standard_error + n * 2.0**-31).all(), (
            w,
            counts / repeats,
        )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_expected_offspring_with_another_number_of_draws(scheme):
    g, w, repeats = np.random.default_rng(0), np.array([0.1, 0.5, 0.15, 0.25]), 5000
    for m in (1, 3, 9):
        counts = sum(offspring(resample(w, m, scheme=scheme, rng=g), 4) for _ in range(repeats))
        assert counts.sum() == m * repeats
        assert (np.abs(counts / repeats - m * w) <= 4.5 * np.sqrt(m * w * (1 - w) / repeats)).all()


def test_multinomial_chi_square():
    """50 probabilities, 10000 draws: the statistic has mean 49 and standard deviation 9.9."""
    g = np.random.default_rng(1)
    w = g.random(50)
    w /= w.sum()
    counts = offspring(resample(w, 10_000, scheme="multinomial", rng=g), 50)
    statistic = ((counts - 10_000 * w) ** 2 / (10_000 * w)).sum()
    assert 49 - 4.5 * 9.9 < statistic < 49 + 4.5 * 9.9


def test_systematic_gives_floor_or_ceil_exactly():
    g = np.random.default_rng(2)
    for n in (1, 2, 3, 10, 100, 1000):
        for _ in range(60):
            w, m = integer_weights(g, n), int(g.integers(1, 2 * n + 1))
            counts = offspring(resample(w, m, rng=g), n)
            total = int(w.sum())
            for c, v in zip(counts, w, strict=True):
                assert m * int(v) // total <= c <= -(-m * int(v) // total)
            assert counts.sum() == m


def test_residual_gives_at_least_the_floor():
    g = np.random.default_rng(3)
    for n in (1, 2, 3, 10, 100, 1000):
        for _ in range(60):
            w, m = integer_weights(g, n), int(g.integers(1, 2 * n + 1))
            counts = offspring(resample(w, m, scheme="residual", rng=g), n)
            floors = np.array([m * int(v) // int(w.sum()) for v in w])
            assert (counts >= floors).all() and counts.sum() == m


def test_stratified_draws_one_point_in_every_stratum():
    g = np.random.default_rng(4)
    for n in (2, 10, 200):
        for _ in range(40):
            w = integer_weights(g, n)
            total, edges = int(w.sum()), [0, *(int(c) for c in np.cumsum(w))]
            for k, j in enumerate(resample(w, scheme="stratified", rng=g)):
                # particle j's interval of the cumulative weight meets stratum k
                assert Fraction(edges[j], total) < Fraction(k + 1, n)
                assert Fraction(edges[j + 1], total) > Fraction(k, n)


@pytest.mark.parametrize("scheme", IDENTITY_SCHEMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 99_991, 2**20 - 1, 2**20, 2**20 + 1])
def test_equal_weights_give_the_identity(scheme, dtype, n):
    check_identity(scheme, dtype, n)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", IDENTITY_SCHEMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ten_million_equal_weights_give_the_identity(scheme, dtype):
    check_identity(scheme, dtype, 10_000_000)


def check_identity(scheme, dtype, n):
    w = np.full(n, 1.0 / n, dtype)
    for seed in range(3 if n < 2**21 else 1):
        np.testing.assert_array_equal(resample(w, scheme=scheme, rng=seed), np.arange(n))


@pytest.mark.parametrize("u", [0.0, 1e-300, 0.5, 1.0 - 1e-8, float(np.nextafter(1.0, 0.0))])
@pytest.mark.parametrize("n", [1, 3, 10, 12345])
def test_equal_weights_give_the_identity_at_extreme_uniforms(u, n):
    for scheme in ("systematic", "stratified"):
        np.testing.assert_array_equal(resample(np.full(n, 0.1), scheme=scheme, u=u), np.arange(n))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("hot", [0, 3, 9])
def test_one_hot(scheme, hot):
    w = np.zeros(10)
    w[hot] = 5e-324
    for seed in range(20):
        np.testing.assert_array_equal(resample(w, scheme=scheme, rng=seed), hot)


def test_a_heavy_second_particle_takes_the_middle_strata():
    """w = .1 .5 .1 .15 .15: points in [.2, .4) and [.4, .6) both fall in [.1, .6)."""
    for seed in range(200):
        indices = resample([0.1, 0.5, 0.1, 0.15, 0.15], scheme="stratified", rng=seed)
        assert indices[1] == 1 and indices[2] == 1


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("u", [0.0, float(np.nextafter(1.0, 0.0))])
@pytest.mark.parametrize(
    "w", [[0.0, 0.0, 1.0, 2.0], [1.0, 2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.25] * 4, [1e-30, 1.0]]
)
def test_extremal_points_never_pick_a_weight_of_zero(scheme, u, w):
    n = len(w)
    indices = resample(w, scheme=scheme, u=u if scheme == "systematic" else np.full(n, u))
    offspring(indices, n)
    assert (np.array(w)[indices] > 0).all()


def fuzz(calls):
    """Random sizes, schemes, dynamic ranges and uniforms; every index in range, every count right."""
    g = np.random.default_rng(6)
    pool = []
    for _ in range(500):
        n = int(g.integers(1, 40))
        w = np.exp(g.normal(0, g.choice([0.1, 1.0, 30.0, 300.0]), n).clip(-740, 700))
        w[g.random(n) < g.choice([0.0, 0.5])] = 0.0
        w[g.integers(n)] += g.choice([1e-320, 1e-8, 1.0, 1e300])
        pool.append(w.astype(np.float32).astype(float) if g.random() < 0.3 and w.max() < 1e38 else w)
    pool = [w for w in pool if w.max() > 0]
    bad = 0
    for k in range(calls):
        w, scheme = pool[k % len(pool)], SCHEMES[k % 4]
        m = None if k % 3 else 1 + k % 50
        indices = resample(w, m, scheme=scheme, rng=g)
        size = len(w) if m is None else m
        bad += indices.size != size or indices.min() < 0 or indices.max() >= len(w) or not w[indices].all()
    assert bad == 0


def test_no_index_out_of_range_in_twenty_thousand_calls():
    fuzz(20_000)


@pytest.mark.slow
def test_no_index_out_of_range_in_a_million_calls():
    fuzz(1_000_000)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [200_000, 1_100_000])
def test_no_index_out_of_range_for_many_particles(dtype, n):
    """A float32 cumulative sum of this length ends short of 1, or long."""
    g = np.random.default_rng(7)
    for scheme in SCHEMES:
        w = g.exponential(size=n).astype(dtype)
        offspring(resample(w / w.sum(), scheme=scheme, rng=g), n)
