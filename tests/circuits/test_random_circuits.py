"""Circuits of random shape: trees of any depth and fan-in, mixtures of them, zeros among the parameters."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import Circuit, InputLayer, tree_regions  # noqa: E402
from pfkit.circuits.propagate import downward, upward  # noqa: E402


def random_circuit(seed):
    """Two to six variables of two or three categories, one to three trees, K of 1 to 5, a fifth of zeros."""
    random = np.random.default_rng(seed)
    v, c, k, t = (int(random.integers(*r)) for r in ((2, 7), (2, 4), (1, 6), (1, 4)))

    def simplex(*shape):
        w = random.uniform(0.05, 1, shape) * (random.random(shape) < 0.8)
        w[..., 0] += 1e-3  # no distribution is empty
        return w / w.sum(-1, keepdims=True)

    trees = [
        ([(child, int(random.integers(child))) for child in range(1, v)], int(random.integers(v)))
        for _ in range(t)
    ]
    graph, _ = tree_regions(v, trees)
    inputs = InputLayer(graph.input_variables, "categorical", probs=simplex(t * v, k, c))
    weights = [simplex(len(level), k, k) for level in graph.levels]
    return Circuit(graph, inputs, weights, simplex(1, t * k).reshape(t, k)), c


@pytest.mark.parametrize("seed", range(20))
def test_total_mass_marginals_values_and_flows(seed, reference):
    circuit, c = random_circuit(seed)
    v = circuit.n_variables
    everything = np.array(list(itertools.product(range(c), repeat=v)))
    log_p = circuit.log_prob(everything).detach()
    assert abs(float(log_p.exp().sum()) - 1) < 1e-12
    picked = everything[:: max(1, len(everything) // 12)]
    want = reference(circuit, picked)
    got = log_p[:: max(1, len(everything) // 12)]
    assert torch.equal(torch.isinf(got), torch.isinf(want))
    finite = torch.isfinite(want)
    torch.testing.assert_close(got[finite], want[finite], rtol=1e-12, atol=1e-12)
    hidden = np.random.default_rng(seed).random(picked.shape) < 0.4
    partial = np.where(hidden, -1, picked)
    for row, value in zip(partial, circuit.log_prob(partial).detach().exp(), strict=True):
        known = row >= 0
        same = (everything[:, known] == row[known]).all(1)
        assert float(value) == pytest.approx(float(log_p[same].exp().sum()), abs=1e-13)
    values, root = upward(circuit, circuit.data(picked))
    flows = downward(circuit, values, torch.ones_like(root))
    possible = float(torch.isfinite(root).sum())
    assert float(flows.root.sum()) == pytest.approx(possible)
    for part in (flows.region_flow, *flows.sums):
        assert torch.isfinite(part).all() and bool((part >= 0).all())


@pytest.mark.parametrize("seed", range(20, 26))
def test_samples_and_completions_are_possible(seed):
    circuit, _ = random_circuit(seed)
    draws = circuit.sample(200, rng=seed)
    assert torch.isfinite(circuit.log_prob(draws)).all()
    hidden = torch.rand(draws.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    evidence = torch.where(hidden, -1, draws)
    for done in (circuit.sample(200, evidence, rng=seed), circuit.mpe(evidence)):
        assert torch.equal(done[~hidden], draws[~hidden])
        assert torch.isfinite(circuit.log_prob(done)).all()
    p = circuit.conditionals(evidence)
    torch.testing.assert_close(p.sum(2), torch.ones_like(p[:, :, 0]))
