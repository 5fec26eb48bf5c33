"""The record of a run."""

import builtins
import copy
import pickle

import numpy as np
import pytest

from pfkit import LocalLevel, ParticleFilter, from_functions
from pfkit.filters import weighted_quantile
from pfkit.filters.result import running_sum

Y = np.random.default_rng(0).normal(size=25)
MODEL = LocalLevel(0.5, 1.0)


def run(store=("mean", "variance"), n=100, y=Y, **options):
    return ParticleFilter(MODEL, n, rng=1, **options).run(y, store=store)


def test_shapes_and_sums():
    result = run()
    assert len(result) == 25
    for name, kind in (
        ("increment", "f"),
        ("ess", "f"),
        ("resampled", "b"),
        ("n_unique", "i"),
        ("mean", "f"),
    ):
        assert getattr(result, name).shape == (25,) and getattr(result, name).dtype.kind == kind
    assert result.log_likelihood == pytest.approx(result.increment.sum(), rel=1e-12)
    assert "25 steps, 100 particles" in repr(result)


def test_stored_histories_are_copies_and_belong_together():
    result = run(store=("particles", "log_weights", "ancestors", "mean", "variance"))
    w = np.exp(result.log_weights)
    np.testing.assert_allclose(np.sum(w * result.particles, axis=1), result.mean, rtol=1e-12)
    away = result.particles - result.mean[:, None]
    np.testing.assert_allclose(np.sum(w * away**2, axis=1), result.variance, rtol=1e-11)
    assert np.ptp(result.particles, axis=0).min() > 0
    identity = np.arange(100)
    for t in range(25):
        assert np.array_equal(result.ancestors[t], identity) != bool(result.resampled[t])
        assert np.unique(result.ancestors[t]).size == result.n_unique[t]


def test_ancestors_point_to_parents():
    still = from_functions(lambda n, rng: rng.normal(size=n), lambda x, t, rng: x, MODEL.log_likelihood)
    for scheme in ("systematic", "stratified", "multinomial", "residual"):
        pf = ParticleFilter(still, 50, rng=0, resampling=scheme, ess_threshold=0.7)
        r = pf.run(Y, store=("particles", "ancestors"))
        assert r.resampled.any()
        for t in range(1, 25):
            assert np.array_equal(r.particles[t], r.particles[t - 1][r.ancestors[t]])


def test_what_was_not_stored_says_so():
    result = run(store=())
    for name in ("mean", "variance", "particles", "log_weights", "ancestors"):
        with pytest.raises(AttributeError, match=f"{name} was not stored"):
            getattr(result, name)
    with pytest.raises(AttributeError, match="no attribute 'median'"):
        result.median  # noqa: B018
    with pytest.raises(ValueError, match="store=.'particles', 'log_weights'"):
        run(store="particles").quantile(0.5)


def test_functions_of_particles_and_weights():
    def spread(x, w):
        assert not x.flags.writeable and not w.flags.writeable
        return np.ptp(x)

    def pair(x, w):
        return {"low": x.min()}["low"], x.max()

    result = run(store=[spread, pair, "mean", lambda x, w: w.max(), lambda x, w: w.min()])
    assert set(result.stored) == {"spread", "pair", "<lambda>", "<lambda>_3"}
    assert result.stored["spread"].shape == (25,) and result.stored["pair"].shape == (25, 2)
    np.testing.assert_allclose(result.stored["spread"], np.diff(result.stored["pair"])[:, 0])
    assert np.all(result.stored["<lambda>"] >= result.stored["<lambda>_3"])
    assert run(store=spread).stored["spread"].tolist() == result.stored["spread"].tolist()
    assert run(store=None).stored == {}


def test_a_function_whose_shape_changes_is_named():
    with pytest.raises(ValueError, match="grow"):

        def grow(x, w, seen=[]):  # noqa: B006
            seen.append(0)
            return np.zeros(len(seen))

        run(store=grow)


def test_of_an_iterator_as_of_an_array():
    store = ("mean", "particles", "ancestors", lambda x, w: x[0])
    a, b = run(store=store), run(store=store, y=iter(Y))
    assert np.array_equal(a.mean, b.mean) and np.array_equal(a.particles, b.particles)
    assert np.array_equal(a.ancestors, b.ancestors)
    assert np.array_equal(a.stored["<lambda>"], b.stored["<lambda>"])


def test_quantiles():
    result = run(store=("particles", "log_weights"), n=2000)
    q = result.quantile([0.05, 0.5, 0.95])
    assert q.shape == (25, 3) and np.all(np.diff(q, axis=1) > 0)
    assert result.quantile(0.5).shape == (25,)
    assert np.array_equal(result.quantile(0.5), q[:, 1])
    for t in (0, 10, 24):
        w, x = np.exp(result.log_weights[t]), result.particles[t]
        for k, p in enumerate((0.05, 0.5, 0.95)):
            assert w[x < q[t, k]].sum() < p + 1e-9 and w[x <= q[t, k]].sum() >= p - 1e-9


def test_data_frame_or_a_clear_word_without_pandas(monkeypatch):
    result = run()
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = result.to_dataframe()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 25
    assert list(frame.columns) == ["increment", "ess", "resampled", "n_unique", "mean", "variance"]
    assert frame["increment"].sum() == pytest.approx(result.log_likelihood)


def test_data_frame_without_pandas(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **keywords):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install pandas"):
        run().to_dataframe()


def test_plot():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    assert run().plot() is not None


def test_results_can_be_pickled_and_copied():
    result = run(store=("mean", "particles"))
    for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert (
            np.array_equal(other.particles, result.particles)
            and other.log_likelihood == result.log_likelihood
        )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_error_bound_adds_up_over_segments_not_steps(dtype):
    still = run(lse="int", ess_threshold=0, dtype=dtype).lse_error_bound
    often = run(lse="int", ess_threshold=1, dtype=dtype).lse_error_bound
    assert 1.8e-5 < still < (2.2e-5 if dtype == "float64" else 3e-4)
    assert often > 20 * 1.8e-5 and often > still
    assert np.isnan(run(lse="numpy").lse_error_bound)


def test_quantile_of_few_particles():
    x, w = np.array([3.0, 1.0, 2.0, 9.0]), np.array([0.2, 0.5, 0.3, 0.0])
    assert weighted_quantile(x, w, [0, 0.4, 0.5, 0.51, 0.8, 0.81, 1]).tolist() == [1, 1, 1, 2, 2, 3, 3]
    assert weighted_quantile(np.stack([x, -x], 1), w, 0.5).tolist() == [1, -2]
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        weighted_quantile(x, w, 1.5)
    with pytest.raises(ValueError, match="must be > 0"):
        weighted_quantile(x, w * 0, 0.5)
    with pytest.raises(ValueError, match="weights"):
        weighted_quantile(x, w[:2], 0.5)


def test_the_log_likelihood_is_added_up_in_order():
    """Python 3.12's sum would give 2 here."""
    assert running_sum(0.0, np.array([1.0, 1e100, 1.0, -1e100])) == 0.0
    assert running_sum(3.0, np.array([])) == 3.0
    assert running_sum(0.0, np.array([1.0, -np.inf, 2.0])) == -np.inf
