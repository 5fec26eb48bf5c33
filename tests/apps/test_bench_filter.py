"""The filter benchmark: its hand-written loops are right, and it runs end to end."""

import json
import math

import numpy as np
import pytest

from apps import bench_filter, filter_loops


@pytest.mark.parametrize("model", bench_filter.MODELS)
def test_the_loops_estimate_the_same_likelihood(model):
    """Mean likelihoods of 60 runs agree within 4.5 standard errors."""
    runs = {}
    for name, call in bench_filter.contenders(model, 500, 0.5, "float64", 12).items():
        if name != "numba":  # compiling it takes longer than all the rest; the benchmark itself checks it
            runs[name] = np.array([call() for _ in range(60)])
    top = max(values.max() for values in runs.values())
    z = {name: np.exp(values - top) for name, values in runs.items()}
    for name, values in z.items():
        se = math.hypot(values.std(ddof=1), z["fuse"].std(ddof=1)) / math.sqrt(60)
        assert abs(values.mean() - z["fuse"].mean()) < 4.5 * se, name


def test_numpy_loop_is_unbiased():
    """Mean likelihood of y = (1.5,): N(0, 2) at 1.5."""
    model, rng = filter_loops.numpy_models()["local level"], np.random.default_rng(1)
    exact = -0.5 * 1.5**2 / 2 - 0.5 * math.log(4 * math.pi)
    z = np.exp([filter_loops.numpy_loop(model, [1.5], 50, 0.5, rng) - exact for _ in range(400)])
    assert abs(z.mean() - 1) < 4.5 * z.std(ddof=1) / 20


def test_numpy_loop_against_the_exact_filter():
    from pfkit.filters import kalman_filter
    from pfkit.models import LinearGaussian

    y = filter_loops.observations("local level", 15)
    exact = kalman_filter(LinearGaussian(1.0, 1.0, 1.0, 1.0, 0.0, 1.0), y).log_likelihood
    model, rng = filter_loops.numpy_models()["local level"], np.random.default_rng(1)
    for threshold in (1.0, 0.5):
        z = np.exp([filter_loops.numpy_loop(model, y, 400, threshold, rng) - exact for _ in range(200)])
        assert abs(z.mean() - 1) < 4.5 * z.std(ddof=1) / math.sqrt(200)


def test_it_writes_its_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_filter, "check", lambda *a: None)
    monkeypatch.setattr(bench_filter, "primitives", lambda clock: [])
    monkeypatch.setattr(filter_loops, "numba_loops", lambda: (_ for _ in ()).throw(ImportError))
    bench_filter.main(
        [
            "--sizes",
            "50",
            "--models",
            "local level",
            "--dtypes",
            "float64",
            "--every",
            "--seconds",
            "0",
            "--out",
            str(tmp_path),
        ]
    )
    rows = json.loads((tmp_path / "bench_filter.json").read_text())["filters"]
    assert {r["contender"] for r in rows} == {"fuse", "int", "python", "numpy"}
    assert all(r["ns_per_particle"] > 0 for r in rows) and (tmp_path / "bench_filter.png").exists()
    bench_filter.main(["--lse-sweep", "--sizes", "50", "--seconds", "0", "--out", str(tmp_path)])
    sweep = json.loads((tmp_path / "bench_filter_lse.json").read_text())["lse_sweep"]
    assert {r["lse"] for r in sweep} == set(bench_filter.KERNELS)
    assert "fuse" in capsys.readouterr().out


def test_bad_arguments():
    with pytest.raises(SystemExit):
        bench_filter.main(["--sizes", "0"])
    with pytest.raises(SystemExit):
        bench_filter.main(["--models", "chess"])
