"""Inputs that broke particle filters in public, one test a report, for every kernel, dtype and scheme they
bear on.

Each test names the reports it answers. Expected values were computed with mpmath from the inputs as listed.
The float64 tolerance of the float kernels is relative 1e-12; the others get what they state (`tolerance`).
"""

import math
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from pfkit import kernels, log_normalize, logsumexp
from pfkit.filters import CollapseWarning, FilterCollapse, ParticleFilter, kalman_filter, resample
from pfkit.models import BearingsOnly, LinearGaussian, LocalLevel, RangeRobot, RangeRobotNoise, from_functions
from pfkit.models.angles import circular_mean, wrap

DATA = Path(__file__).resolve().parents[2] / "data"
KERNELS = tuple(k.name for k in kernels() if k.device == "cpu" and k.available)
DTYPES = ("float64", "float32")
SCHEMES = ("systematic", "stratified", "multinomial", "residual")
INF = float("inf")

every_kernel = pytest.mark.parametrize("lse", KERNELS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def tolerance(lse, dtype, n, calls=1, size=1.0):
    """Nats: the kernel's stated bound for each of `calls` log-sum-exps, and rounding at magnitude `size`."""
    (row,) = [k for k in kernels() if k.name == lse and k.device == "cpu"]
    bound = (row.error_bound(n, dtype) or 0.0) if lse.startswith("int") else 0.0
    rounding = 1e-12 if dtype == "float64" else 4 * calls * float(np.finfo(dtype).eps)
    return calls * bound + rounding * max(1.0, size)


def normal(y, x, sd):
    return -0.5 * ((y - x) / sd) ** 2 - math.log(sd) - 0.5 * math.log(2 * math.pi)


def fixed(particles, log_likelihood, move=lambda x: x):
    """A model whose particles are given and whose transition draws nothing."""
    start = np.asarray(particles)
    return from_functions(lambda n, rng: start, lambda x, t, rng: move(x), log_likelihood)


def uniform(y, x, t):
    """y | x ~ U(x - 1, x + 1)."""
    with np.errstate(divide="ignore"):
        return np.log(np.where(np.abs(y - x) <= 1.0, 0.5, 0.0))


# log-sum-exp as the filter uses it


@every_kernel
@every_dtype
def test_gradient_is_the_weights(lse, dtype):
    """LSE-20: the gradient of a log-sum-exp is the normalised weights; all -inf, one masked, huge and equal.

    https://github.com/jax-ml/jax/issues/6811
    https://github.com/pytorch/pytorch/issues/31829
    https://github.com/jax-ml/jax/issues/23842
    https://github.com/stan-dev/math/pull/1772
    """
    for a, expected in (
        ([-INF, -INF], [0.0, 0.0]),
        ([0.0, -INF], [1.0, 0.0]),  # the masked 100.0
        ([1e20, 1e20], [0.5, 0.5]),
        ([-INF, 0.0, 0.0], [0.0, 0.5, 0.5]),
    ):
        got = log_normalize(np.array(a, dtype), lse=lse).weights
        np.testing.assert_allclose(got, expected, rtol=1e-12 if dtype == "float64" else 2e-7, atol=0)
    # and they are the derivative: central differences of a float64 log-sum-exp
    a = np.array([0.3, -1.2, 2.0, -INF, 0.7])
    weights = log_normalize(a.astype(dtype), lse=lse).weights
    for j in np.flatnonzero(np.isfinite(a)):
        step = np.zeros(5)
        step[j] = 1e-5
        slope = (logsumexp(a + step) - logsumexp(a - step)) / 2e-5
        assert weights[j] == pytest.approx(slope, rel=math.expm1(2 * tolerance(lse, dtype, 5)) + 1e-6)


# weights and likelihood


@every_kernel
@every_dtype
@every_scheme
@pytest.mark.parametrize("policy", ["raise", "warn", "keep"])
def test_observation_impossible_under_every_particle(policy, scheme, dtype, lse):
    """PF-01: -inf or a named error; never NaN; and the filter goes on.

    https://github.com/AtsushiSakai/PythonRobotics/issues/200
    https://github.com/probcomp/Gen.jl/issues/117
    https://github.com/mrc-ide/mcstate/issues/75
    https://github.com/ztangent/Plinf.jl/issues/11
    """
    particles = [0.0, 1.0, 2.0, 3.0]
    pf = ParticleFilter(
        fixed(particles, uniform),
        4,
        lse=lse,
        dtype=dtype,
        resampling=scheme,
        on_collapse=policy,
        ess_threshold=1.0,
    )
    pf.predict()
    if policy == "raise":
        with pytest.raises(FilterCollapse) as caught:
            pf.update(10.5)
        assert (caught.value.step, caught.value.observation, caught.value.n_dead) == (0, 10.5, 4)
        assert pf.log_likelihood == 0.0
    else:
        if policy == "warn":
            with pytest.warns(CollapseWarning, match="step 0"):
                step = pf.update(10.5)
        else:
            step = pf.update(10.5)
        assert step.increment == -INF and step.ess == 0.0 and pf.log_likelihood == -INF
    np.testing.assert_array_equal(pf.particles, particles)
    np.testing.assert_array_equal(pf.weights, 0.25)
    assert pf.mean == 1.5 and pf.variance == 1.25
    # the next observation weighs the particles as if the impossible one had not been there, without a
    # resampling
    pf.predict()
    step = pf.update(0.5)
    assert step.increment == pytest.approx(math.log(0.25), abs=tolerance(lse, dtype, 4, 2))
    assert not step.resampled
    np.testing.assert_allclose(pf.weights, [0.5, 0.5, 0.0, 0.0], rtol=1e-6)


@every_kernel
@every_dtype
def test_likelihood_when_nothing_was_resampled_in_between(lse, dtype):
    """PF-03: increments carry the weights.

    https://github.com/baggepinnen/LowLevelParticleFilters.jl/issues/134
    https://github.com/FriedmanJP/MacroEconometricModels.jl/issues/128
    https://github.com/nimble-dev/nimble/pull/765
    https://github.com/tbrown122387/pf/issues/18
    """
    g = np.array([[-1.0, -2.0, -3.0], [-2.0, -1.0, -0.5]])
    pf = ParticleFilter(fixed(np.zeros(3), lambda y, x, t: g[t]), 3, lse=lse, dtype=dtype, ess_threshold=0)
    result = pf.run([0, 1])
    assert result.increment[1] == pytest.approx(-1.4495858764973466, abs=tolerance(lse, dtype, 3, 2))
    assert result.log_likelihood == pytest.approx(-3.140592200721076, abs=tolerance(lse, dtype, 3, 4))
    assert result.log_likelihood == pytest.approx(result.increment.sum(), rel=1e-12)


@every_kernel
@every_dtype
@every_scheme
def test_weights_after_resampling(scheme, dtype, lse):
    """PF-04: equal weights, and the particles of the ancestors in the same order.

    https://github.com/rlabbe/Kalman-and-Bayesian-Filters-in-Python/issues/146
    https://github.com/johnhw/pfilter/issues/8
    """
    particles, w = np.array([10.0, 11.0, 12.0, 13.0]), np.log([0.7, 0.1, 0.1, 0.1])
    for seed in range(5):
        model = fixed(particles, lambda y, x, t: w if t == 0 else np.zeros(4))
        pf = ParticleFilter(model, 4, lse=lse, dtype=dtype, resampling=scheme, ess_threshold=1.0, rng=seed)
        result = pf.run([0, 0], store=("particles", "ancestors", "log_weights"))
        np.testing.assert_array_equal(result.particles[1], particles[result.ancestors[1]])
        np.testing.assert_array_equal(pf.weights, 0.25)
        assert result.increment[1] == pytest.approx(0.0, abs=tolerance(lse, dtype, 4, 1))
        assert result.n_unique[1] == len(set(result.ancestors[1]))
    # the very indices of the report, by a scheme of the caller's
    pf = ParticleFilter(
        fixed(particles, lambda y, x, t: w),
        4,
        lse=lse,
        dtype=dtype,
        resampling=lambda weights, n, rng: np.array([0, 0, 0, 1]),
    )
    pf.predict()
    pf.update(0)
    pf.predict()
    np.testing.assert_array_equal(pf.weights, 0.25)
    np.testing.assert_array_equal(pf.log_weights, np.log(0.25).astype(dtype))
    np.testing.assert_array_equal(pf.particles, [10.0, 10.0, 10.0, 11.0])


# resampling


@every_dtype
@every_scheme
def test_cumulative_sum_that_ends_below_one(scheme, dtype):
    """PF-06: ten weights of 0.1 and u = 1 - 2^-53.

    https://github.com/rlabbe/Kalman-and-Bayesian-Filters-in-Python/issues/481
    https://github.com/JuliaPOMDP/ParticleFilters.jl/pull/51
    https://github.com/baggepinnen/LowLevelParticleFilters.jl/pull/131
    """
    last = 0.9999999999999999
    indices = resample(
        np.full(10, 0.1, dtype), scheme=scheme, u=last if scheme == "systematic" else np.full(10, last)
    )
    assert indices.min() >= 0 and indices.max() <= 9 and (np.diff(indices) >= 0).all()
    if scheme != "multinomial":
        np.testing.assert_array_equal(indices, np.arange(10))


@every_dtype
@every_scheme
def test_zero_weight_particle_at_u_zero(scheme, dtype):
    """PF-07: a particle of weight zero is never selected.

    https://github.com/at-wat/mcl_3dl/issues/232
    """
    weights = np.array([0.0, 0.5, 0.5, 0.0], dtype)
    indices = resample(weights, scheme=scheme, u=0.0 if scheme == "systematic" else np.zeros(4))
    if scheme == "multinomial":
        np.testing.assert_array_equal(indices, 1)
    else:
        np.testing.assert_array_equal(indices, [1, 1, 2, 2])


@every_scheme
def test_invalid_weights_handed_to_a_resampler(scheme):
    """PF-19.

    https://github.com/probcomp/Gen.jl/issues/117
    https://github.com/numpy/numpy/pull/12545
    https://github.com/genlm/llamppl/pull/39
    """
    for weights in ([0.5, -0.1, 0.6], [0.5, np.nan, 0.5], [0.0, 0.0, 0.0], [np.inf, 1.0, 1.0], []):
        for dtype in DTYPES:
            with pytest.raises(ValueError, match="weights"):
                resample(np.array(weights, dtype), scheme=scheme, rng=0)
    counts = sum(
        np.bincount(resample([3.0, 1.0], scheme=scheme, rng=seed), minlength=2) for seed in range(400)
    )
    assert abs(counts[0] - 600) < 4.5 * math.sqrt(800 * 0.75 * 0.25)


# effective sample size

ESS_CASES = [
    (np.log([2.0, 2.0, 2.0, 2.0]), 4.0),
    (np.log([1e-200] * 5), 5.0),
    (np.log([1e200] * 2), 2.0),
    (np.array([-800.0, -800.6931471805599]), 1.8),
    (np.array([0.0] + [-INF] * 7), 1.0),
    (np.array([10000.0] * 3), 3.0),
]


@every_kernel
@every_dtype
@pytest.mark.parametrize("log_w, expected", ESS_CASES)
def test_effective_sample_size(log_w, expected, dtype, lse):
    """PF-09: unnormalised, tiny, huge and log weights; 1 <= ESS <= N after rounding too.

    https://github.com/TuringLang/Turing.jl/pull/355
    https://github.com/branch-predict/accord-net-extensions/issues/2
    https://github.com/rlabbe/Kalman-and-Bayesian-Filters-in-Python/issues/336
    """
    log_w = log_w.astype(dtype)
    n = len(log_w)
    relative = math.expm1(4 * tolerance(lse, dtype, n)) if expected == 1.8 else 1e-12
    if dtype == "float32" and expected == 1.8:
        relative += 1e-4  # -800.693 is known to 3e-5 in float32
    got = log_normalize(log_w, lse=lse)
    assert got.ess == pytest.approx(expected, rel=relative) and 1.0 <= got.ess <= n
    pf = ParticleFilter(fixed(np.zeros(n), lambda y, x, t: log_w), n, lse=lse, dtype=dtype)
    step = pf.step(0.0)
    assert step.ess == pytest.approx(expected, rel=relative + (2e-3 if dtype == "float32" else 1e-11))
    assert 1.0 <= step.ess <= n


@every_kernel
@every_dtype
def test_effective_sample_size_stays_within_its_bounds(lse, dtype):
    """PF-09, bounds: many sizes, nearly equal weights and nearly one-hot ones."""
    g = np.random.default_rng(0)
    for n in [*range(1, 40), 1000, 4097, 99_999]:
        for spread in (0.0, 1e-9, 1e-7):
            ess = log_normalize((-3.3 + spread * g.normal(size=n)).astype(dtype), lse=lse).ess
            assert 1.0 <= ess <= n
        lonely = np.full(n, -90.0, dtype)
        lonely[0] = 0.0
        assert 1.0 <= log_normalize(lonely, lse=lse).ess <= n


# observations


@every_kernel
@every_dtype
def test_missing_observations(lse, dtype):
    """PF-10: all of y missing changes nothing but the particles; part of it is the model's to read.

    https://github.com/nchopin/particles/issues/79
    https://github.com/nchopin/particles/issues/42
    https://github.com/NAU-CCL/Epymorph/issues/237
    https://github.com/probml/dynamax/pull/406
    """
    model = fixed(np.array([0.0, 1.0]), lambda y, x, t: normal(y, x, 1.0), lambda x: x + 0.5)
    for missing in (None, np.nan, np.array(np.nan), [np.nan]):
        pf = ParticleFilter(model, 2, lse=lse, dtype=dtype, ess_threshold=0)
        pf.step(0.3)
        weights, log_weights, so_far = pf.weights.copy(), pf.log_weights.copy(), pf.log_likelihood
        step = pf.step(missing)
        assert step.increment == 0.0 and pf.log_likelihood == so_far
        np.testing.assert_array_equal(pf.weights, weights)
        np.testing.assert_array_equal(pf.log_weights, log_weights)
        np.testing.assert_array_equal(pf.particles, [0.5, 1.5])

    particles = np.array([[1.0, 5.0], [2.0, 6.0]])
    independent = LinearGaussian(
        np.eye(2), np.zeros((2, 2)), np.eye(2), np.diag([0.5**2, 0.7**2]), np.zeros(2), np.eye(2)
    )
    pf = ParticleFilter(fixed(particles, independent.log_likelihood), 2, lse=lse, dtype=dtype)
    step = pf.step(np.array([1.2, np.nan]))
    assert step.increment == pytest.approx(-0.7356560658666416, abs=tolerance(lse, dtype, 2, 2))
    relative = math.expm1(2 * tolerance(lse, dtype, 2)) + (1e-12 if dtype == "float64" else 1e-6)
    np.testing.assert_allclose(pf.weights, [0.7685247834990176, 0.23147521650098232], rtol=relative)


def nile():
    y = np.loadtxt(DATA / "timeseries" / "nile.csv", delimiter=",", skiprows=1)[:, 1]
    return LocalLevel(math.sqrt(1469.1), math.sqrt(15099.0), 1000.0, 1000.0), y


@pytest.mark.parametrize("lse", ["fuse", "int"])
@every_dtype
def test_nile_with_gaps(lse, dtype):
    """PF-10 on real data: years 21-40 and 61-80 missing."""
    model, y = nile()
    y[20:40] = y[60:80] = np.nan
    result = ParticleFilter(model, 10_000, lse=lse, dtype=dtype, rng=0).run(y)
    assert abs(result.log_likelihood + 388.4219399199177) < 0.3
    assert not result.increment[20:40].any() and not result.increment[60:80].any()
    assert np.isfinite(result.mean).all() and not result.resampled[21:41].any()


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_constants_and_one_over_n(lse):
    """PF-17: dropping -log(2 pi)/2 shifts by 91.9, forgetting 1/N by 100 log N.

    https://github.com/helske/bssm/issues/10
    https://github.com/baggepinnen/LowLevelParticleFilters.jl/pull/135
    """
    model, y = nile()
    for n, limit in ((1000, 1.5), (100_000, 0.15)):
        got = ParticleFilter(model, n, lse=lse, rng=1).run(y, store=()).log_likelihood
        assert abs(got + 640.3805408207314) < limit


@every_kernel
@every_dtype
def test_zero_process_noise(lse, dtype):
    """PF-12: a static state, scale exactly 0.

    https://github.com/baggepinnen/LowLevelParticleFilters.jl/issues/224
    https://github.com/BasisResearch/dynestyx/issues/185
    """
    particles = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    expected = [
        0.00012250529240258773,
        0.03661283834507115,
        0.5447892122607957,
        0.4035897748736374,
        0.014885669228093135,
    ]
    level = LocalLevel(0.0, 0.5)
    static = LinearGaussian(1.0, 0.0, 1.0, 0.25, 0.0, 1.0)
    for model in (level, static):
        g = model.log_likelihood
        moved = from_functions(lambda n, rng: particles, model.transition, g)
        pf = ParticleFilter(moved, 5, lse=lse, dtype=dtype, ess_threshold=0)
        result = pf.run([0.3, 0.1, 0.2])
        np.testing.assert_array_equal(pf.particles, particles)
        assert result.log_likelihood == pytest.approx(
            -1.9594556447419855, abs=tolerance(lse, dtype, 5, 6, 3.0)
        )
        relative = math.expm1(6 * tolerance(lse, dtype, 5)) + (1e-12 if dtype == "float64" else 5e-6)
        np.testing.assert_allclose(pf.weights, expected, rtol=relative, atol=2.0**-31 if lse == "int" else 0)


@every_kernel
@every_dtype
@pytest.mark.parametrize("kind", ["int64", "int32", "uint8", "bool"])
def test_integer_particles_and_observations(kind, dtype, lse):
    """PF-15: nothing is truncated.

    https://github.com/nasa/prog_algs/pull/229
    https://github.com/dstl/Stone-Soup/issues/195
    https://github.com/ChristopherMayes/openPMD-beamphysics/pull/147
    """
    start = np.array([0, 1, 2]) if kind != "bool" else np.array([0, 1, 1])
    model = fixed(
        start.astype(kind), lambda y, x, t: normal(y, x, 0.5) * t, lambda x: x + np.array([0.4, 0.4, 0.4])
    )
    pf = ParticleFilter(model, 3, lse=lse, dtype=dtype, ess_threshold=0)
    result = pf.run(np.array([1, 1]))
    assert pf.particles.dtype == dtype
    np.testing.assert_array_equal(pf.particles, (start + 0.4).astype(dtype))
    if kind != "bool":
        assert result.increment[1] == pytest.approx(-1.1151623702022737, abs=tolerance(lse, dtype, 3, 2, 3.0))
    in_place = fixed(start.astype(kind), lambda y, x, t: normal(y, x, 0.5), lambda x: np.add(x, 0.4, out=x))
    pf = ParticleFilter(in_place, 3, lse=lse, dtype=dtype, ess_threshold=0)
    pf.run(np.array([1, 1]))
    np.testing.assert_array_equal(pf.particles, start.astype(dtype) + np.asarray(0.4, dtype))


def test_likelihood_uses_the_prediction():
    """PF-18: prior N(0, 4), y = 3, unit noise: log N(3; 0, 5).

    https://github.com/rlabbe/filterpy/issues/260
    """
    exact = -2.623657489421723
    model = LinearGaussian(1.0, 0.0, 1.0, 1.0, 0.0, 4.0)
    assert kalman_filter(model, [3.0]).log_likelihood == pytest.approx(exact, rel=1e-14)
    for lse in KERNELS:
        for dtype in DTYPES:
            runs = [
                ParticleFilter(model, 20_000, lse=lse, dtype=dtype, rng=s).step(3.0).increment
                for s in range(8)
            ]
            likelihoods = np.exp(np.array(runs) - exact)
            assert abs(likelihoods.mean() - 1) < 4.5 * likelihoods.std(ddof=1) / math.sqrt(8) + 1e-4


# angles


@every_kernel
@every_dtype
def test_angles_near_pi(lse, dtype):
    """PF-13: circular mean of headings, wrapped bearing residual.

    https://github.com/waymo-research/waymo-open-dataset/issues/899
    https://github.com/ApolloAuto/apollo/issues/5304
    https://github.com/manankharwar/fusioncore/issues/92
    https://github.com/usdot-fhwa-stol/multiple_object_tracking/issues/143
    """
    headings = np.array([3.1, -3.1, 3.0, -3.05])
    assert circular_mean(headings, np.full(4, 0.25)) == pytest.approx(3.1291298251347266, rel=1e-12)
    model = fixed(headings, lambda y, x, t: np.zeros(4))
    model.angle_dims = (0,)
    pf = ParticleFilter(model, 4, lse=lse, dtype=dtype)
    result = pf.run([0.0])
    assert result.mean[0] == pytest.approx(3.1291298251347266, rel=1e-12 if dtype == "float64" else 3e-7)
    assert result.variance[0] < 0.02

    assert wrap(3.1 - -3.1) == pytest.approx(-0.0831853071795863, rel=1e-12)
    bearings = BearingsOnly((0.0, 0.0), np.zeros(4), np.eye(4), 0.1, bearing_sd=0.1)
    behind = np.array([[math.cos(-3.1), math.sin(-3.1), 0.0, 0.0]])
    assert bearings.log_likelihood(3.1, behind, 0)[0] == pytest.approx(1.0376567932612664, rel=1e-12)


# randomness


@every_kernel
@every_scheme
def test_same_seed_same_answer(scheme, lse):
    """PF-16: bitwise, and the global generator is left alone.

    https://github.com/nchopin/particles/issues/87
    https://github.com/misko/spf/pull/20
    https://github.com/sisl/GaussianFilters.jl/pull/56
    """
    model, y = nile()

    def run(rng):
        pf = ParticleFilter(model, 200, lse=lse, resampling=scheme, rng=rng)
        result = pf.run(y[:20], store=("mean", "ancestors"))
        return result.increment.tobytes(), result.mean.tobytes(), result.ancestors.tobytes()

    answers = []
    for state in (0, 1):
        np.random.seed(state)
        before = np.random.get_state()
        answers.append(run(7))
        after = np.random.get_state()
        assert before[2:] == after[2:] and (before[1] == after[1]).all()
    assert answers[0] == answers[1]
    assert run(8)[0] != answers[0][0]
    assert run(np.random.default_rng(3)) == run(np.random.default_rng(3))


# real data and size


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_gross_outliers_under_a_gaussian_likelihood(lse):
    """PF-21: real ranges, metres off for many steps, and no outlier floor: no NaN; with the floor, on track.

    https://github.com/AtsushiSakai/PythonRobotics/issues/200
    """
    z = np.load(DATA / "tracking" / "uwb_indoor_mrpt.npz")
    truth, inputs = z["gt_xyphi"], np.vstack([np.zeros(3), z["odom"][:-1]])
    offset = z["tag_offset"]
    start = dict(start=truth[1], start_sd=(1.0, 1.0, 0.3), tag_offset=offset)

    def run(probability):
        noise = RangeRobotNoise(range_sd=0.17, outlier_probability=probability, max_range=20.0)
        model = RangeRobot(z["anchors"], noise=noise, **start)
        pf = ParticleFilter(model, 2000, lse=lse, rng=0, on_collapse="keep")
        result = pf.run(z["ranges"], inputs)
        assert np.isfinite(result.mean).all() and np.isfinite(result.variance).all()
        assert not np.isnan(result.log_likelihood) and result.log_likelihood < np.inf
        return result

    assert run(0.0).log_likelihood < -10_000
    mean = run(0.05).mean[1:, :2]
    assert math.sqrt(((mean - truth[1:, :2]) ** 2).sum(axis=1).mean()) <= 0.20


MEMORY = """
    import resource
    from pfkit import LocalLevel, ParticleFilter

    ParticleFilter(LocalLevel(1.0, 1.0), 10, rng=0).run([0.0, 1.0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pf = ParticleFilter(LocalLevel(1.0, 1.0), {n}, rng=0, lse="{lse}")
    result = pf.run([0.0] * {steps}, store={store})
    assert len(result) == {steps}
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def peak_growth(n, steps, lse, store='("mean", "variance")'):
    """Bytes by which the peak resident size of a fresh process grew while filtering."""
    code = textwrap.dedent(MEMORY).format(n=n, steps=steps, lse=lse, store=store)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_memory_does_not_grow_with_the_series(lse):
    """PF-22 at N = 1e6, 20 steps: no history by default.

    https://github.com/BayesianLogic/blog/pull/321
    https://github.com/mrc-ide/sircovid/pull/38
    https://github.com/SeawardScience/echoflow/issues/12
    """
    n = 1_000_000
    assert peak_growth(n, 20, lse) < 80e6


@pytest.mark.slow
@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_memory_of_a_million_particles_over_a_thousand_steps(lse):
    """PF-22 at full size."""
    assert peak_growth(1_000_000, 1000, lse) < 80e6
