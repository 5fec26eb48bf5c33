"""Gradients at probabilities of exactly 0, from differences: p(x) is affine in every single parameter."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import Circuit, InputLayer, RegionGraph, chow_liu  # noqa: E402
from pfkit.circuits.zero_units import derivatives  # noqa: E402


def with_zeros(circuit, share, seed=0):
    """The circuit with that share of its probabilities set to 0, the others as they were."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for p in circuit.parameters():
            p *= torch.as_tensor(random.random(p.shape) >= share)
    return circuit


def by_differences(circuit, x, up):
    """d sum(up * log p(x)) / d parameter, rows of probability zero left out."""
    with torch.no_grad():
        p = circuit.log_prob(x).exp()
        possible = p > 0
        out = {}
        for name, parameter in circuit.named_parameters():
            out[name] = torch.zeros_like(parameter)
            for place in np.ndindex(*parameter.shape):
                kept = float(parameter[place])
                other = 0.0 if kept > 0.5 else 1.0
                parameter[place] = other
                slope = (circuit.log_prob(x).exp() - p) / (other - kept)
                parameter[place] = kept
                out[name][place] = (up * slope / p)[possible].sum()
    return out


def check(circuit, x, rtol=1e-9):
    up = torch.linspace(-1.0, 2.0, len(x), dtype=torch.float64)
    want = by_differences(circuit, x, up)
    log_p = circuit.log_prob(x)
    possible = log_p > -torch.inf
    assert bool(possible.any())
    (log_p * up)[possible].sum().backward()
    for name, parameter in circuit.named_parameters():
        torch.testing.assert_close(parameter.grad, want[name], rtol=rtol, atol=1e-11)
    return want


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
@pytest.mark.parametrize("trees", [1, 2])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_every_parameter(family, trees, share, small, rows):
    circuit = with_zeros(small(family, trees=trees), share)
    want = check(circuit, rows(family, n=8))
    hidden = torch.cat([g[p == 0] for g, p in zip(want.values(), circuit.parameters(), strict=True)])
    assert bool((hidden != 0).any())


def test_units_that_do_not_overlap():
    x = np.random.default_rng(3).integers(0, 3, (20, 5))
    check(chow_liu(x, pseudocount=0.1), x)


def test_a_region_with_several_parents():
    # region 4 is a factor of two regions of one level
    graph = RegionGraph(2, (0, 1, 0, 1), (((0,),), ((4,), (4,))), ((5, 1), (6, 3)))
    random = np.random.default_rng(0)

    def simplex(*shape):
        w = random.uniform(0.1, 1.0, shape)
        return w / w.sum(-1, keepdims=True)

    inputs = InputLayer(graph.input_variables, "categorical", probs=simplex(4, 2, 2))
    circuit = Circuit(graph, inputs, [simplex(1, 2, 2), simplex(2, 2, 2)], simplex(1, 4).reshape(2, 2))
    with torch.no_grad():
        circuit.inputs.probs[0, 0, 1] = 0
        circuit.sums[0].weight[0, 0] = torch.tensor([1.0, 0.0])
    want = check(circuit, np.array([[1, 0], [1, 1], [0, 1]]))
    assert float(want["inputs.probs"][0, 0, 1]) != 0


def test_float32_and_its_largest_derivatives():
    """Two inputs of a product are zero in one state and tiny in the other."""
    graph = RegionGraph(2, (0, 1), (), ((0, 1),))
    for tiny in (1e-14, 1e-25):
        probs = torch.tensor([[[0.0, 1.0], [tiny, 1.0]]] * 2)
        inputs = InputLayer([0, 1], "categorical", probs=torch.full((2, 2, 2), 0.5))
        circuit = Circuit(graph, inputs, [], [[0.5, 0.5]])
        with torch.no_grad():
            circuit.inputs.probs.copy_(probs)
            circuit.inputs.probs[1, 0, 0] = 1.0
        circuit.log_prob([[0, 0]]).sum().backward()
        # log(0.5 a + 0.5 tiny^2) has the derivative 1 / tiny^2 at a = 0
        got = float(circuit.inputs.probs.grad[0, 0, 0])
        if tiny == 1e-14:
            assert got == pytest.approx(1e28, rel=1e-4)
        else:  # beyond float32
            assert np.exp(68.0) < got < np.exp(69.0)


def test_rows_that_count(small, rows):
    circuit = with_zeros(small(), 0.5)
    x = circuit.data(rows())
    from pfkit.circuits.propagate import upward

    values, root = upward(circuit, x)
    found = derivatives(circuit, values, root, torch.ones_like(root))
    zero = (values == -torch.inf).flatten(0, 1).any(0)
    assert found.rows.tolist() == torch.nonzero(zero & (root > -torch.inf)).flatten().tolist() != []
    assert derivatives(circuit, values, root, torch.zeros_like(root)) is None
    assert derivatives(small(), *upward(small(), x), torch.ones_like(root)) is None
