"""The filters of other packages, where they are installed, filter the benchmark's models."""

import importlib
import math

import numpy as np
import pytest

from apps import bench_filter, filter_loops, filter_peers


@pytest.mark.parametrize("model", bench_filter.MODELS)
@pytest.mark.parametrize("package", filter_peers.PACKAGES)
def test_a_peer_estimates_the_same_likelihood(package, model):
    """Mean likelihoods of 60 runs agree within 4.5 standard errors; a peer that reports none runs."""
    pytest.importorskip(package)
    y = filter_loops.observations(model, 8)
    call = filter_peers.peer(package, model, 400, 1.0, y)
    if call is None:
        assert (package, model) == ("stonesoup", "stochastic volatility")
        return
    if math.isnan(call()):
        assert package in ("pfilter", "stonesoup")
        return
    ours = bench_filter.contenders(model, 400, 1.0, "float64", 8)["fuse"]
    runs = [np.array([f() for _ in range(60)]) for f in (call, ours)]
    top = max(values.max() for values in runs)
    a, b = (np.exp(values - top) for values in runs)
    assert abs(a.mean() - b.mean()) < 4.5 * math.hypot(a.std(ddof=1), b.std(ddof=1)) / math.sqrt(60)


def test_a_package_that_is_not_there_is_left_out(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "filterpy" else found(name))
    assert "filterpy" not in filter_peers.installed()
    names = set(bench_filter.contenders("local level", 50, 1.0, "float64", 5, peers=True))
    assert names >= {"fuse", "int", "python", "numpy"} and "filterpy" not in names
