"""log(W exp(x)): values and derivatives against float64, the range of float32, and zeros."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits.log_matmul import LogMatmul, log_matmul, log_matmul_backward  # noqa: E402


def operands(dtype=torch.float64, *, shape=(3, 4, 5, 7), scale=3.0, seed=0):
    r, i, j, b = shape
    g = torch.Generator().manual_seed(seed)
    w = torch.rand(r, i, j, generator=g, dtype=torch.float64) + 0.01
    x = scale * torch.randn(r, j, b, generator=g, dtype=torch.float64)
    return (w / w.sum(2, keepdim=True)).to(dtype), x.to(dtype)


def plain(w, x):
    """The definition, in float64."""
    return torch.logsumexp(torch.log(w.double()).unsqueeze(3) + x.double().unsqueeze(1), 2)


@pytest.mark.parametrize("dtype, most", [(torch.float64, 2e-15), (torch.float32, 2e-6)])
def test_value(dtype, most):
    w, x = operands(dtype)
    y = log_matmul(w, x)
    assert y.dtype == dtype and y.shape == (3, 4, 7)
    assert (y.double() - plain(w, x)).abs().max() <= most


def test_value_of_large_logs_is_right_to_rounding():
    w, x = operands(torch.float32)
    y = log_matmul(w, x - 1000)
    assert (y.double() - plain(w, x - 1000)).abs().max() <= 1000 * 2.0**-23


def test_derivatives_are_autograds():
    w, x = operands()
    w.requires_grad_(), x.requires_grad_()
    up = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    want = torch.autograd.grad((plain(w, x) * up).sum(), (w, x))
    got = torch.autograd.grad((LogMatmul.apply(w, x) * up).sum(), (w, x))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    assert torch.autograd.gradcheck(LogMatmul.apply, (w, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_units_far_below_the_maximum_do_not_underflow(dtype):
    """Unit 1 takes its mass from an input 1000 nats below the largest: exp() of that is 0 in both dtypes."""
    w = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]], dtype=dtype)
    x = torch.tensor([[[0.0], [-1000.0]]], dtype=dtype)
    y = log_matmul(w, x)
    assert y[0, :, 0].tolist() == pytest.approx([0.0, -1000.0, math.log(0.5)], rel=1e-7)
    grad = torch.ones_like(y)
    grad_x, flow = log_matmul_backward(w, x, grad, flow=True)
    assert grad_x[0, :, 0].tolist() == pytest.approx([2.0, 1.0])
    assert flow[0].tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    assert log_matmul_backward(w, x, grad)[1][0, 1, 1] == 1.0


def test_float32_over_its_whole_range_against_float64():
    """Inputs spread over 600 nats, weights down to 1e-38: value, derivative and flow."""
    g = torch.Generator().manual_seed(3)
    x = (-600 * torch.rand(2, 6, 40, generator=g, dtype=torch.float64)).float()
    w = torch.exp(-87 * torch.rand(2, 6, 6, generator=g, dtype=torch.float64)).float()
    w = w / w.sum(2, keepdim=True)
    y = log_matmul(w, x)
    assert (y.double() - plain(w, x)).abs().max() <= 1e-4  # one rounding of 700 is 6e-5
    up = torch.rand(2, 6, 40, generator=g, dtype=torch.float64)
    got = log_matmul_backward(w, x, up.float(), flow=True)
    want = log_matmul_backward(w.double(), x.double(), up, flow=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-4)


def test_zero_is_minus_infinity_and_never_nan():
    w = torch.tensor([[[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]], dtype=torch.float64)
    x = torch.tensor([[[0.0, -math.inf, -math.inf], [-math.inf, -math.inf, 3.0]]], dtype=torch.float64)
    y = log_matmul(w, x)
    inf = math.inf
    assert y[0].tolist() == [
        [-inf, -inf, 3.0],
        [pytest.approx(math.log(0.5)), -inf, pytest.approx(3 + math.log(0.5))],
        [0.0, -inf, -inf],
    ]
    for flow in (False, True):
        for part in log_matmul_backward(w, x, torch.ones_like(y), flow=flow):
            assert torch.isfinite(part).all()
    grad_x, _ = log_matmul_backward(w, x, torch.ones_like(y))
    assert grad_x[0].tolist() == [[2.0, 0.0, 0.0], [0.0, 0.0, 2.0]]


def test_gradient_reaches_a_weight_of_zero():
    """d log(w_0 e^0 + w_1 e^0) / d w_0 is 1 / total, at w_0 = 0 as well."""
    w = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    LogMatmul.apply(w, torch.zeros(1, 2, 1, dtype=torch.float64)).sum().backward()
    assert w.grad.tolist() == [[[1.0, 1.0]]]
