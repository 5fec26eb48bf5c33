"""The layers as modules: input distributions, products, mixtures, and what they refuse."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import InputLayer, ProductLayer, SumLayer  # noqa: E402

INF, NAN = math.inf, math.nan


def test_categorical_inputs():
    layer = InputLayer([1, 0], "categorical", probs=[[[0.2, 0.8]], [[1.0, 0.0]]])
    out = layer(torch.tensor([[0, 1], [1, 0], [-1, -1]]))
    assert out.shape == (2, 1, 3)
    assert out[0, 0].tolist() == pytest.approx([math.log(0.8), math.log(0.2), 0.0])
    assert out[1, 0].tolist() == [0.0, -INF, 0.0]
    assert layer.shape == (2, 1) and layer.n_categories == 2


def test_bernoulli_inputs_are_two_categories():
    p = torch.tensor([[0.3, 1.0], [0.0, 0.5]], dtype=torch.float64)
    layer = InputLayer([0, 1], "bernoulli", probs=p)
    same = InputLayer([0, 1], "categorical", probs=torch.stack((1 - p, p), 2))
    x = torch.tensor([[0, 0], [1, 1], [0, -1], [-1, 1]])
    assert torch.equal(layer(x), same(x))
    assert layer.n_categories == 2 and layer.log_table().shape == (2, 2, 2)


def test_gaussian_inputs():
    layer = InputLayer([0], "gaussian", mean=[[1.0, -2.0]], sd=[[0.5, 3.0]])
    out = layer(torch.tensor([[2.0], [NAN], [-1.0]]))
    for k, (mean, sd) in enumerate([(1.0, 0.5), (-2.0, 3.0)]):
        normal = torch.distributions.Normal(mean, sd)
        want = [float(normal.log_prob(torch.tensor(v))) for v in (2.0, -1.0)]
        assert out[0, k, [0, 2]].tolist() == pytest.approx(want, rel=1e-6)
        assert out[0, k, 1] == 0.0
    with pytest.raises(TypeError, match="table"):
        layer.log_table()


def test_products_add_logs_of_ragged_children():
    layer = ProductLayer([[0, 1, 2], [3, 0, -1], [2, -1, -1]])
    values = torch.arange(8.0).reshape(4, 2, 1)
    out = layer(values)
    assert out[:, 0, 0].tolist() == [0 + 2 + 4, 6 + 0, 4]
    assert layer.prefix == [3, 2, 1]


def test_sums_mix():
    w = np.array([[[0.25, 0.75], [1.0, 0.0]]])
    layer = SumLayer(torch.as_tensor(w))
    x = torch.tensor([[[math.log(0.2), -INF], [math.log(0.6), 0.0]]], dtype=torch.float64)
    want = torch.tensor([[[math.log(0.5), math.log(0.75)], [math.log(0.2), -INF]]], dtype=torch.float64)
    torch.testing.assert_close(layer(x), want)
    for lse, most in (("fuse", 1e-14), ("torch", 1e-14), ("int", 2.2e-5), ("int-pairwise", 6.1e-3)):
        y = layer(x, lse=lse)
        assert torch.equal(torch.isinf(y), torch.isinf(want))
        finite = torch.isfinite(want)
        assert (y - want)[finite].abs().max() <= most


def test_layers_are_differentiable_modules():
    inputs = InputLayer([0, 1], "categorical", probs=np.full((2, 2, 2), 0.5))
    product, mixture = ProductLayer([[0, 1]]), SumLayer(np.full((1, 1, 2), 0.5))
    y = mixture(product(inputs(torch.tensor([[0, 1]]))))
    y.sum().backward()
    assert float(y.detach()) == pytest.approx(math.log(0.25))
    assert inputs.probs.grad[0].tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert mixture.weight.grad.tolist() == [[[1.0, 1.0]]]


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: InputLayer([0], "poisson", probs=[[1.0]]), ValueError, "poisson"),
        (lambda: InputLayer([], "bernoulli", probs=np.zeros((0, 1))), ValueError, "non-empty"),
        (lambda: InputLayer([-1], "bernoulli", probs=[[0.5]]), ValueError, ">= 0"),
        (lambda: InputLayer([0, 1], "bernoulli", probs=[[0.5]]), ValueError, "1 regions for 2"),
        (lambda: InputLayer([0], "bernoulli", probs=[[1.5]]), ValueError, r"\[0, 1\]"),
        (lambda: InputLayer([0], "bernoulli", probs=[[NAN]]), ValueError, "finite"),
        (lambda: InputLayer([0], "bernoulli"), ValueError, "takes probs"),
        (lambda: InputLayer([0], "categorical", probs=[[[0.5, 0.4]]]), ValueError, "sum to 1"),
        (lambda: InputLayer([0], "categorical", probs=[[[1.5, -0.5]]]), ValueError, "negative"),
        (lambda: InputLayer([0], "categorical", probs=[[0.5, 0.5]]), ValueError, "3 dimensions"),
        (lambda: InputLayer([0], "gaussian", mean=[[0.0]]), ValueError, "mean and sd"),
        (lambda: InputLayer([0], "gaussian", mean=[[0.0]], sd=[[0.0]]), ValueError, "positive"),
        (lambda: InputLayer([0], "gaussian", mean=[[0.0]], sd=[[1.0, 1.0]]), ValueError, "shaped like"),
        (lambda: InputLayer([0], "bernoulli", probs=torch.tensor([[0.5]]).half()), TypeError, "float16"),
        (lambda: InputLayer([0], "bernoulli", probs=[[None]]), TypeError, "probs must hold numbers, got"),
        (lambda: InputLayer([0], "bernoulli", probs=[[0.5j]]), TypeError, "probs must hold numbers"),
        (lambda: InputLayer([0], "categorical", probs=np.zeros((1, 0, 2))), ValueError, "empty"),
        (lambda: InputLayer([0], "gaussian", mean=np.zeros((1, 0)), sd=np.ones((1, 0))), ValueError, "empty"),
        (lambda: InputLayer([0.5], "bernoulli", probs=[[0.5]]), TypeError, "variables must be integers"),
        (lambda: ProductLayer([[0.0]]), ValueError, "integer"),
        (lambda: ProductLayer([[-1]]), ValueError, "needs a child"),
        (lambda: ProductLayer([[0, -1], [0, 1]]), ValueError, "falling"),
        (lambda: ProductLayer([[-1, 0]]), ValueError, "filled up"),
        (lambda: ProductLayer([[0, -2]]), ValueError, "got -2"),
        (lambda: ProductLayer([["a"]]), TypeError, "children must hold numbers"),
        (
            lambda: ProductLayer([[0, 3]])(torch.zeros(3, 2, 1)),
            ValueError,
            r"\(4 regions or more, .*\(3, 2, 1\)",
        ),
        (lambda: ProductLayer([[0, 1]])(torch.zeros(3, 2)), ValueError, "regions or more"),
        (lambda: ProductLayer([[0, 1]])(np.zeros((3, 2, 1))), TypeError, "must be a tensor, got ndarray"),
        (lambda: SumLayer([[0.5, 0.5]]), ValueError, "3 dimensions"),
        (lambda: SumLayer([[[0.5, 0.6]]]), ValueError, "sum to 1"),
        (lambda: SumLayer([[[math.inf, 0.0]]]), ValueError, "finite"),
        (lambda: SumLayer(np.zeros((0, 2, 2))), ValueError, r"empty, got shape \(0, 2, 2\)"),
        (lambda: SumLayer([[[1.0]]])(torch.zeros(1, 2, 1)), ValueError, r"\(1, 1, rows\).*\(1, 2, 1\)"),
        (lambda: SumLayer([[[1.0]]])(torch.zeros(1, 1, 1).double()), ValueError, r"float32, got .*float64"),
        (lambda: SumLayer([[[1.0]]])(torch.zeros(1, 1, 1), lse="quick"), ValueError, "quick"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "x, error, message",
    [
        (torch.zeros(4, 2, dtype=torch.int64), ValueError, "3 variables or more"),
        (torch.zeros(3, dtype=torch.int64), ValueError, "rows"),
        (torch.zeros(4, 3), ValueError, "int64, got .*float32"),
        (np.zeros((4, 3), np.int64), TypeError, "ndarray"),
    ],
)
def test_inputs_refuse_what_is_no_data(x, error, message):
    layer = InputLayer([0, 2], "bernoulli", probs=[[0.5], [0.5]])
    with pytest.raises(error, match=message):
        layer(x)


def test_parameters_keep_their_precision():
    half = [[0.5, 0.5]]
    for given, dtype in (
        (half, torch.float32),
        (np.array(half), torch.float64),
        (np.array(half, np.float32), torch.float32),
        (np.array(half, ">f8"), torch.float64),
        (torch.tensor(half).double(), torch.float64),
        ([[0, 1]], torch.float32),
    ):
        assert InputLayer([0], "bernoulli", probs=given).probs.dtype == dtype
