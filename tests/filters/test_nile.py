"""The Nile: bootstrap filters against the exact likelihood, and "int" against "fuse"."""

import io
import math
from pathlib import Path

import numpy as np
import pytest

import pfkit
from pfkit import LocalLevel, ParticleFilter

NILE = np.loadtxt(Path(__file__).parents[2] / "data" / "timeseries" / "nile.csv", delimiter=",", skiprows=1)[
    :, 1
]
GAPS = NILE.copy()
GAPS[20:40] = GAPS[60:80] = np.nan
MODEL = LocalLevel(math.sqrt(1469.1), math.sqrt(15099.0), prior_mean=1000.0, prior_sd=1000.0)
EXACT = -640.380541
EXACT_GAPS = -388.421940


def int_bound(n, dtype="float64"):
    return next(k for k in pfkit.kernels() if k.name == "int" and k.device == "cpu").error_bound(n, dtype)


def log_mean_exp(runs):
    """The estimate of log L from independent unbiased estimates of L, and its delta-method standard error."""
    runs = np.asarray(runs)
    relative = np.exp(runs - runs.max())
    error = relative.std(ddof=1) / relative.mean() / math.sqrt(runs.size)
    return runs.max() + math.log(relative.mean()), error


@pytest.mark.parametrize("lse", ["fuse", "int"])
@pytest.mark.parametrize(("y", "exact"), [(NILE, EXACT), (GAPS, EXACT_GAPS)], ids=["all", "gaps"])
def test_log_likelihood_of_fifty_runs(y, exact, lse):
    runs = [ParticleFilter(MODEL, 2000, lse=lse, rng=s).run(y, store=()).log_likelihood for s in range(50)]
    estimate, error = log_mean_exp(runs)
    assert error < 0.1
    assert abs(estimate - exact) < 4 * error


@pytest.mark.parametrize("scheme", ["stratified", "multinomial", "residual"])
@pytest.mark.parametrize("threshold", [0.25, 1.0])
def test_other_schemes_and_thresholds(scheme, threshold):
    options = dict(lse="int", resampling=scheme, ess_threshold=threshold)
    filters = [ParticleFilter(MODEL, 500, rng=s, **options) for s in range(50)]
    estimate, error = log_mean_exp([pf.run(GAPS, store=()).log_likelihood for pf in filters])
    assert abs(estimate - EXACT_GAPS) < 4 * error


def test_gaps_add_exactly_nothing():
    result = ParticleFilter(MODEL, 500, rng=1).run(GAPS)
    assert np.all(result.increment[np.isnan(GAPS)] == 0)
    assert result.variance[39] > 2 * result.variance[19]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_along_one_path_increments_differ_by_no_more_than_the_bound(dtype):
    """At every step a copy with its kernel exchanged weighs the same particles and log-weights."""
    n = 2000
    pf = ParticleFilter(MODEL, n, lse="fuse", rng=3, dtype=dtype)
    bound, worst = int_bound(n, dtype), 0.0
    for y in NILE if dtype == "float64" else NILE[:30]:
        pf.predict()
        other = with_kernel(pf, "int")
        assert np.array_equal(other.log_weights, pf.log_weights) and np.array_equal(
            other.particles, pf.particles
        )
        a, b = pf.update(y).increment, other.update(y).increment
        rounding = float(np.spacing(np.dtype(dtype).type(abs(a)))) / 2
        # the increment is the difference of two log-sum-exps; each may be off by the bound under "int", and
        # the result of each kernel is rounded (fuse's own error, 1 ulp, belongs to its rounding)
        assert abs(a - b) <= 2 * bound + 4 * rounding
        worst = max(worst, abs(a - b))
    assert worst > 0


def with_kernel(pf, lse):
    """The filter as it is, save that its log-sum-exp is another's: through its own saved file."""
    file = io.BytesIO()
    pf.save(file)
    file.seek(0)
    with np.load(file) as saved:
        fields = {name: saved[name] for name in saved.files}
    fields["lse"] = lse
    fields.pop("ints", None)
    out = io.BytesIO()
    np.savez(out, **fields)
    out.seek(0)
    return ParticleFilter.load(out, pf.model)


def test_the_sum_of_increments_along_one_path_keeps_the_stated_bound():
    """Without resampling particles do not depend on the kernel, and the path's log-likelihood is one sum."""
    y, n = NILE[:12], 500
    for lse in ("int", "fuse"):
        for dtype in ("float64", "float32"):
            pf = ParticleFilter(MODEL, n, lse=lse, rng=1, dtype=dtype, ess_threshold=0)
            result = pf.run(y, store=("particles",))
            total = np.zeros(n)
            for t, (x, v) in enumerate(zip(result.particles, y, strict=True)):
                total += MODEL.log_likelihood(v, x, t).astype(np.float64)
            exact = float(pfkit.logsumexp(total)) - math.log(n)
            assert abs(result.log_likelihood - exact) <= result.lse_error_bound + 1e-12


def test_free_running_filters_agree_on_average():
    """Sooner or later an ancestor differs and paths part; what is left is Monte Carlo error of mean zero."""
    seeds = range(100)
    a, b = (
        np.array(
            [ParticleFilter(MODEL, 500, lse=lse, rng=s).run(NILE, store=()).log_likelihood for s in seeds]
        )
        for lse in ("fuse", "int")
    )
    difference = b - a
    assert abs(difference.mean()) <= 3 * difference.std(ddof=1) / math.sqrt(len(seeds))


def test_filtered_moments_against_the_kalman_filter():
    mean, var = 1000.0, 1e6
    exact = []
    for v in GAPS:
        if exact:
            var += 1469.1
        if not math.isnan(v):
            gain = var / (var + 15099.0)
            mean, var = mean + gain * (v - mean), var * (1 - gain)
        exact.append((mean, var))
    means, variances = np.array(exact).T
    assert means[-1] == pytest.approx(798.315115, abs=1e-6)
    results = [ParticleFilter(MODEL, 2000, rng=s, lse="int").run(GAPS) for s in range(30)]
    for name, values in (("mean", means), ("variance", variances)):
        runs = np.array([getattr(r, name) for r in results])
        z = (runs.mean(axis=0) - values) / (runs.std(axis=0, ddof=1) / math.sqrt(len(results)))
        # self-normalised estimates have a bias of order 1/N, small beside their error here
        assert np.abs(z).max() < 4.5
