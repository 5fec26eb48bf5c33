"""Inputs that broke other circuit libraries, each with the public reports it comes from.

Expected values were computed with 60 digits.
"""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import EM, Circuit, InputLayer, RegionGraph, hclt  # noqa: E402
from pfkit.circuits.learning import normalized_counts  # noqa: E402

NAN = math.nan
LSE = ["matmul", "fuse", "torch"]


def leaf_mixture(weights, probs):
    """One variable, a mixture of two categorical leaves."""
    inputs = InputLayer([0], "categorical", probs=np.array([probs]))
    return Circuit(RegionGraph(1, (0,), (), ((0,),)), inputs, [], np.array([weights]))


@pytest.mark.parametrize("lse", LSE)
def test_a_categorical_leaf_of_probability_zero(lse):
    """https://github.com/april-tools/cirkit/issues/311"""
    circuit = leaf_mixture([0.4, 0.6], [[0.0, 1.0], [0.5, 0.5]])
    with torch.no_grad():
        value = circuit.log_prob([[0], [1]], lse=lse)
    assert value.tolist() == pytest.approx([-1.2039728043259361, -0.35667494393873234], rel=1e-14)
    circuit.log_prob([[0], [1]]).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in circuit.parameters())


@pytest.mark.parametrize("lse", LSE)
def test_nan_marks_a_missing_variable(lse):
    """https://github.com/trappmartin/SumProductNetworks.jl/issues/11
    https://github.com/SPFlow/SPFlow/pull/86 https://github.com/Tractables/ProbabilisticCircuits.jl/issues/69"""
    inputs = InputLayer(
        [0, 1], "gaussian", mean=np.array([[-1.0, 1.0]] * 2), sd=np.array([[1.0, 1.0], [10.0, 10.0]])
    )
    circuit = Circuit(RegionGraph(2, (0, 1), (), ((0, 1),)), inputs, [], np.array([[0.5, 0.5]]))
    queries = np.array([[0.5, NAN], [NAN, NAN], [0.5, 0.0]])
    with torch.no_grad():
        value = circuit.log_prob(queries, lse=lse)
    expected = [-1.4238240262463953, 0.0, -4.650347652445114]
    assert value.tolist() == pytest.approx(expected, rel=1e-13, abs=1e-15)


@pytest.mark.parametrize(
    "flows, pseudocount, old, expected",
    [
        ([0.0, 0.0], 0.0, [0.3, 0.7], [0.3, 0.7]),
        ([0.0, 0.0], 0.1, [0.3, 0.7], [0.5, 0.5]),
        ([3.0, 0.0], 0.1, [0.3, 0.7], [0.9838709677419355, 0.016129032258064516]),
        ([1e-320, 3e-320], 0.0, [0.3, 0.7], [0.25, 0.75]),
    ],
)
def test_a_sum_node_without_flow(flows, pseudocount, old, expected):
    """https://github.com/SPFlow/SPFlow/pull/207 https://github.com/ldeecke/gmm-torch/issues/13"""
    counts, old = torch.tensor(flows, dtype=torch.float64), torch.tensor(old, dtype=torch.float64)
    assert normalized_counts(counts, pseudocount, old).tolist() == pytest.approx(expected, rel=1e-3)


def test_a_leaf_without_flow_through_a_whole_step():
    """The same, reached by data: unit 0 cannot emit what is there."""
    circuit = leaf_mixture([0.3, 0.7], [[0.25, 0.75, 0.0], [0.1, 0.1, 0.8]])
    em = EM(circuit)
    em.accumulate([[2], [2]])
    em.step()
    assert circuit.root_weight.tolist() == [[0.0, 1.0]]
    assert circuit.inputs.probs[0].tolist() == [[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]
    em.accumulate([[2], [2]])
    em.step()
    assert float(circuit.log_prob([[2]]).detach()) == 0.0


@pytest.mark.parametrize("lse", LSE)
def test_a_uniform_model_of_256_categories_at_pixel_255(lse):
    """https://github.com/april-tools/cirkit/issues/279"""
    edges = [(v, v + 1) for v in range(783)]
    circuit = hclt(np.full((2, 784), 255, np.uint8), 2, edges=edges, rng=0, dtype=torch.float64)
    assert circuit.inputs.n_categories == 256
    with torch.no_grad():
        circuit.inputs.probs.fill_(1 / 256)
        value = circuit.log_prob(np.full((3, 784), 255, np.uint8), lse=lse)
    assert value.tolist() == pytest.approx([-4347.419116471977] * 3, rel=1e-13)
    assert -float(value[0]) / 784 / math.log(2) == pytest.approx(8.0, rel=1e-13)
