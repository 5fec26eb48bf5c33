"""What must not change a filter's answer: threads, order, a detour through a file, the container of the data.

Every model of the package, d = 1 as (n,) and (n, 1) and d = 4, every kernel.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from pfkit import ParticleFilter
from pfkit.models import (
    BearingsOnly,
    LinearGaussian,
    LocalLevel,
    RangeRobot,
    StochasticVolatility,
    ThetaLogistic,
    from_functions,
)

SCHEMES = ("systematic", "stratified", "multinomial", "residual")
KERNELS = ("fuse", "int", "int-pairwise", "numpy", "scipy")


def models():
    """name -> (model, observations, inputs); 12 steps, one missing, one partly missing where y has parts."""
    g = np.random.default_rng(11)
    y = np.cumsum(g.normal(size=12))
    y[4] = np.nan
    pair = np.stack([y, g.normal(size=12)], axis=1)
    pair[4] = pair[7, 1] = np.nan
    f4 = np.eye(4) + 0.3 * np.eye(4, k=2)
    ranges = 3.0 + 0.1 * g.normal(size=(12, 3))
    ranges[5] = np.nan
    ranges[6, 2] = np.nan
    odometry = np.tile([0.1, 0.0, 0.05], (12, 1))
    anchors = [[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0]]
    return {
        "level": (LocalLevel(0.8, 1.0), y, None),
        "linear": (LinearGaussian(0.9, 1.0, 1.0, 0.5, 0.0, 2.0), y, None),
        "linear column": (
            LinearGaussian([[0.9]], [[1.0]], [[1.0]], [[0.5]], [0.0], [[2.0]]),
            y[:, None],
            None,
        ),
        "linear 4": (
            LinearGaussian(f4, 0.1 * np.eye(4), np.eye(2, 4), np.eye(2), np.zeros(4), np.eye(4)),
            pair,
            None,
        ),
        "volatility": (StochasticVolatility(-0.5, 0.9, 0.3), y, None),
        "volatility column": (StochasticVolatility(-0.5, 0.9, 0.3, state_dim=1), y, None),
        "theta": (ThetaLogistic(), y, None),
        "theta column": (ThetaLogistic(state_dim=1), y[:, None], None),
        "bearings": (BearingsOnly((-5.0, -5.0), np.zeros(4), np.eye(4), 0.1, 0.2), 0.8 + 0.1 * y, None),
        "robot": (RangeRobot(anchors), ranges, odometry),
    }


MODELS = models()
every_model = pytest.mark.parametrize("name", MODELS)
every_kernel = pytest.mark.parametrize("lse", KERNELS)


def run(name, **options):
    model, y, inputs = MODELS[name]
    pf = ParticleFilter(model, 64, rng=5, **options)
    return pf, pf.run(y, inputs, store=("mean", "variance", "ancestors", "log_weights", "particles"))


def assert_same(a, b):
    assert a.log_likelihood == b.log_likelihood
    for name in (
        "increment",
        "ess",
        "resampled",
        "n_unique",
        "mean",
        "variance",
        "ancestors",
        "log_weights",
        "particles",
    ):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@every_model
@every_kernel
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_result_is_consistent(name, lse, dtype, scheme):
    """The increments add up, missing steps add nothing, what is stored belongs together."""
    pf, result = run(name, lse=lse, dtype=dtype, resampling=scheme)
    model, y, _ = MODELS[name]
    assert result.log_likelihood == pytest.approx(result.increment.sum(), rel=1e-12)
    assert result.log_likelihood == pf.log_likelihood
    gone = np.isnan(y).reshape(12, -1).all(axis=1)
    assert gone.sum() == 1 and not result.increment[gone].any() and result.increment[~gone].all()
    assert ((result.ess >= 1) & (result.ess <= 64)).all()
    state = () if model.state_dim is None else (model.state_dim,)
    assert result.mean.shape == result.variance.shape == (12, *state)
    assert result.particles.shape == (12, 64, *state) and result.particles.dtype == dtype
    for t in range(1, 12):
        assert result.n_unique[t] == len(np.unique(result.ancestors[t]))
        assert result.resampled[t] or (result.ancestors[t] == np.arange(64)).all()
    w = np.exp(result.log_weights.astype(float))
    w /= w.sum(axis=1, keepdims=True)
    if name != "robot":  # its heading is averaged on the circle
        mean = np.einsum("tn,tn...->t...", w, result.particles)
        np.testing.assert_allclose(result.mean, mean, rtol=0, atol=2e-2 if lse == "int-pairwise" else 2e-4)


@every_model
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_are_those_of_the_models_own_densities(name, dtype):
    """Compiled or not: log-weights are the sums of what the Python `log_likelihood` gives, normalised."""
    model, y, inputs = MODELS[name]
    pf = ParticleFilter(model, 64, rng=5, dtype=dtype, ess_threshold=0)
    result = pf.run(y, inputs, store=("particles", "log_weights"))
    total = np.zeros(64)
    for t in range(12):
        if not np.isnan(y[t]).all():
            total = total + model.log_likelihood(y[t], result.particles[t], t)
        expected = total - np.logaddexp.reduce(total)
        tolerance = 1e-10 if dtype == "float64" else 1e-4
        np.testing.assert_allclose(result.log_weights[t], expected, rtol=tolerance, atol=tolerance)


@every_model
@every_kernel
def test_thread_count_changes_nothing(name, lse):
    base = run(name, lse=lse)[1]
    for n_threads in (2, 8):
        assert_same(run(name, lse=lse, n_threads=n_threads)[1], base)


@every_model
def test_the_container_of_the_observations_changes_nothing(name):
    model, y, inputs = MODELS[name]
    base = run(name)[1]
    for container in (
        list,
        tuple,
        iter,
        lambda a: np.asfortranarray(np.repeat(a, 2, axis=0))[::2],
        np.ma.array,
    ):
        result = ParticleFilter(model, 64, rng=5).run(container(y), inputs)
        np.testing.assert_array_equal(result.increment, base.increment)


@every_model
def test_nothing_of_the_callers_is_written_to(name):
    model, y, inputs = MODELS[name]
    kept = y.copy()
    for array in (y, inputs):
        if array is not None:
            array.flags.writeable = False
    parameters = {k: np.array(v) for k, v in vars(model).items() if isinstance(v, (float, np.ndarray))}
    for lse in KERNELS:
        run(name, lse=lse)
    np.testing.assert_array_equal(y, kept)
    for key, value in parameters.items():
        np.testing.assert_array_equal(getattr(model, key), value)


@every_model
@every_kernel
def test_a_detour_through_a_file_changes_nothing(name, lse, tmp_path):
    model, y, inputs = MODELS[name]
    base = run(name, lse=lse)[1]
    pf = ParticleFilter(model, 64, rng=5, lse=lse)
    increments = []
    for t in range(12):
        increments.append(pf.step(y[t], None if inputs is None or t == 0 else inputs[t]).increment)
        pf.save(tmp_path / "filter.npz")
        pf = ParticleFilter.load(tmp_path / "filter.npz", model)
    np.testing.assert_array_equal(increments, base.increment)
    np.testing.assert_array_equal(pf.particles, base.particles[-1])
    assert pf.log_likelihood == base.log_likelihood


RESUME = """
    import sys
    import numpy as np
    sys.path.insert(0, {here!r})
    from test_invariants import MODELS, KERNELS
    from pfkit import ParticleFilter

    for k, (name, (model, y, inputs)) in enumerate(MODELS.items()):
        for lse in KERNELS:
            pf = ParticleFilter.load({folder!r} + f"/{{k}}-{{lse}}.npz", model)
            for t in range(6, 12):
                pf.step(y[t], None if inputs is None else inputs[t])
            done = {folder!r} + f"/{{k}}-{{lse}}-done.npz"
            np.savez(done, x=pf.particles, w=pf.log_weights, ll=pf.log_likelihood)
"""


def test_resumed_in_a_new_process(tmp_path):
    """Half of each run here, the other half in a fresh interpreter: the bits of the uninterrupted run."""
    for k, (model, y, inputs) in enumerate(MODELS.values()):
        for lse in KERNELS:
            pf = ParticleFilter(model, 64, rng=5, lse=lse)
            for t in range(6):
                pf.step(y[t], None if inputs is None or t == 0 else inputs[t])
            pf.save(tmp_path / f"{k}-{lse}.npz")
    code = textwrap.dedent(RESUME).format(here=str(Path(__file__).parent), folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], check=True)
    for k, name in enumerate(MODELS):
        for lse in KERNELS:
            pf, result = run(name, lse=lse)
            with np.load(tmp_path / f"{k}-{lse}-done.npz") as done:
                np.testing.assert_array_equal(done["x"], result.particles[-1])
                np.testing.assert_array_equal(done["w"], result.log_weights[-1])
                assert float(done["ll"]) == result.log_likelihood


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("lse", KERNELS)
def test_order_of_the_particles(lse, dtype):
    """Particles in another order, no resampling: with "int" every answer is the same in bits."""
    g = np.random.default_rng(3)
    start, order = g.normal(size=500).astype(dtype), g.permutation(500)

    def answer(x):
        model = from_functions(
            lambda n, rng: x, lambda x, t, rng: 0.5 * x, lambda y, x, t: -8.0 * (y - x) ** 2 - 0.1 * np.abs(x)
        )
        pf = ParticleFilter(model, 500, lse=lse, dtype=dtype, ess_threshold=0)
        return pf.run([0.3, -0.2, 0.1]), pf.weights.copy()

    (a, wa), (b, wb) = answer(start), answer(start[order])
    if lse == "int":
        np.testing.assert_array_equal(a.increment, b.increment)
        np.testing.assert_array_equal(a.ess, b.ess)
        np.testing.assert_array_equal(wa[order], wb)
    else:
        slack = 0.03 if lse == "int-pairwise" else 1e-12 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(a.increment, b.increment, rtol=0, atol=slack)
        np.testing.assert_allclose(wa[order], wb, rtol=3 * slack)


@every_model
def test_seeds_decide(name):
    assert_same(run(name)[1], run(name)[1])
    model, y, inputs = MODELS[name]
    other = ParticleFilter(model, 64, rng=6).run(y, inputs)
    assert other.log_likelihood != run(name)[1].log_likelihood
