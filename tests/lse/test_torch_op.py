"""log-sum-exp of torch tensors, most of it on the CPU: values, gradients of every order, transforms, and
serving torch itself.
"""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pfkit  # noqa: E402
from pfkit.lse import torch_op  # noqa: E402

INF, NAN = math.inf, math.nan
KERNELS = ("fuse", "int")
BOUND = {"fuse": 1e-12, "int": 2.2e-5}


def random(*shape, dtype=torch.float64, seed=0):
    return (
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .mul(3)
        .to(dtype)
    )


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1, (0, 2), (0, 1, 2), (-3, -1)])
def test_value_over_any_dimensions(lse, dim, keepdim):
    x = random(3, 4, 5)
    y = pfkit.logsumexp(x, dim, keepdims=keepdim, lse=lse)
    want = torch.logsumexp(x, dim, keepdim)
    assert y.shape == want.shape and y.dtype == want.dtype
    assert (y - want).abs().max() <= BOUND[lse]


@pytest.mark.parametrize("dim", [None, ()])
def test_none_and_empty_tuple_reduce_all(dim):
    x = random(3, 4)
    assert torch.allclose(pfkit.logsumexp(x, dim), torch.logsumexp(x, (0, 1)), rtol=1e-14)
    assert pfkit.logsumexp(x, dim, keepdims=True).shape == (1, 1)


def test_int_has_the_bits_of_the_numpy_function():
    x = random(7, 1000, dtype=torch.float32)
    want = pfkit.logsumexp(x.numpy(), axis=1, lse="int")
    assert np.array_equal(pfkit.logsumexp(x, 1, lse="int").numpy(), want)


def test_strides_are_read_in_place():
    x = random(6, 40, 5)
    for view in (x.transpose(0, 2), x[:, ::3], x[..., None].expand(6, 40, 5, 3), x.permute(1, 2, 0)):
        assert torch.allclose(pfkit.logsumexp(view, 1), torch.logsumexp(view, 1), rtol=1e-13)


@pytest.mark.parametrize("lse", KERNELS)
def test_scalar_empty_and_nothing_to_sum(lse):
    assert pfkit.logsumexp(torch.tensor(3.5), 0, lse=lse).item() == 3.5
    assert pfkit.logsumexp(torch.tensor(3.5), None, lse=lse).shape == ()
    assert pfkit.logsumexp(torch.zeros(2, 0), 1, lse=lse).tolist() == [-INF, -INF]
    assert pfkit.logsumexp(torch.zeros(0, 3), 1, lse=lse).shape == (0,)
    assert pfkit.logsumexp(torch.zeros(0), None, lse=lse).item() == -INF


@pytest.mark.parametrize("lse", KERNELS)
@pytest.mark.parametrize(
    ("row", "value", "gradient"),
    [
        ([-INF, -INF], -INF, [0, 0]),
        ([-INF, -INF, 2.0], 2.0, [0, 0, 1]),
        ([INF, 1.0], INF, [1, 0]),
        ([INF, INF], INF, [0.5, 0.5]),
        ([1e20, 1e20], 1e20, [0.5, 0.5]),
        ([-6e4] * 4, -6e4 + math.log(4), [0.25] * 4),
        ([3e4, 3e4 - 1], 3e4 + math.log1p(math.exp(-1)), [0.7310585786, 0.2689414214]),
        ([0.0, NAN], NAN, [NAN, NAN]),
    ],
)
def test_edges_of_value_and_gradient(lse, row, value, gradient):
    x = torch.tensor(row, dtype=torch.float32, requires_grad=True)
    y = pfkit.logsumexp(x, 0, lse=lse)
    (grad,) = torch.autograd.grad(y, x)
    assert y.item() == pytest.approx(value, rel=1e-6, nan_ok=True)
    assert grad.tolist() == pytest.approx(gradient, abs=2e-5, nan_ok=True)


@pytest.mark.parametrize(
    ("x", "exact", "in_half"),
    [
        (torch.zeros(65536, dtype=torch.float16), 11.090354888959125, 11.09375),
        (torch.zeros(512, dtype=torch.bfloat16), 6.2383246250395075, 6.25),
        (torch.full((32,), 7.64, dtype=torch.float16), 7.640625 + math.log(32), 11.109375),
        (torch.full((4,), 11.5, dtype=torch.float16), 11.5 + math.log(4), 12.8828125),
    ],
)
def test_half_precision_neither_overflows_nor_saturates(x, exact, in_half):
    assert pfkit.logsumexp(x, 0).item() == in_half
    full = torch_op.logsumexp_tensor(x, 0, dtype=torch.float32)
    assert full.dtype == torch.float32 and full.item() == pytest.approx(exact, rel=2e-7)
    y = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(pfkit.logsumexp(y, 0), y)
    assert torch.equal(grad, torch.full_like(x, 1 / len(x)))


@pytest.mark.parametrize("at", [0, 1, 1023, 1024, 4095, 4096, 32767, 32768, 50000, 99999])
def test_a_single_finite_entry_anywhere(at):
    x = torch.full((100000,), -INF)
    x[at] = 10.0
    x.requires_grad_()
    y = pfkit.logsumexp(x, 0)
    (grad,) = torch.autograd.grad(y, x)
    assert y.item() == 10.0
    assert grad[at] == 1 and grad.sum() == 1


def test_a_large_common_offset_leaves_the_gradient_alone():
    x = random(4, 50, dtype=torch.float32)
    x = (x * 8).round() / 8  # exact under the offset
    gradients = []
    for shift in (0.0, 3e4):
        z = (x + shift).requires_grad_()
        gradients.append(torch.autograd.grad(pfkit.logsumexp(z, 1).sum(), z)[0])
    assert torch.allclose(*gradients, atol=1e-7, rtol=1e-6)


def test_inputs_are_not_written_and_losses_share_logits():
    x = random(5, 6).requires_grad_()
    before = x.detach().clone()
    y, z = pfkit.logsumexp(x, 1), pfkit.logsumexp(x, 0)
    y.sum().backward(retain_graph=True)
    (y.sum() + z.sum()).backward()
    want = 2 * torch.softmax(before, 1) + torch.softmax(before, 0)
    assert torch.equal(x.detach(), before)
    assert torch.allclose(x.grad, want, rtol=1e-12)


@pytest.mark.parametrize("dim", [0, (0, 2), None])
def test_first_and_second_derivatives(dim):
    x = random(3, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: pfkit.logsumexp(t, dim), (x,))
    assert torch.autograd.gradgradcheck(lambda t: pfkit.logsumexp(t, dim), (x,))


def test_third_derivative():
    x = random(4).requires_grad_()

    def second(t):
        (g,) = torch.autograd.grad(pfkit.logsumexp(t, 0), t, create_graph=True)
        (h,) = torch.autograd.grad(g[0], t, create_graph=True)
        return h

    assert torch.autograd.gradcheck(second, (x,))


def test_second_derivative_of_a_far_pair_is_zero_not_nan():
    x = torch.tensor([-800.0, 0.0], dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(pfkit.logsumexp(x, 0), x, create_graph=True)
    (h,) = torch.autograd.grad(g[0], x)
    assert h.tolist() == [0.0, 0.0]


def test_gradient_of_int_is_its_own_weights_and_sums_to_one():
    x = random(3, 500, dtype=torch.float32).requires_grad_()
    (grad,) = torch.autograd.grad(pfkit.logsumexp(x, 1, lse="int").sum(), x)
    own = np.stack([pfkit.log_normalize(row, lse="int").weights for row in x.detach().numpy()])
    assert np.allclose(grad.numpy(), own, rtol=1e-6, atol=2.0**-31)
    assert (grad.double().sum(1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("lse", KERNELS)
def test_operators_keep_their_contract(lse, dtype, device):
    for x, dims in (
        (random(3, 4, dtype=dtype).to(device), [1]),
        (random(0, 3, dtype=dtype).to(device), [1]),
        (random(4, 6, dtype=dtype).to(device).t()[::2], [0]),
    ):
        torch.library.opcheck(torch.ops.pfkit.logsumexp.default, (x.requires_grad_(), dims, lse, None))
        x = x.detach()
        value, maximum, total = torch.ops.pfkit.logsumexp.default(x, dims, lse, None)
        arguments = (torch.ones_like(value).requires_grad_(), x.requires_grad_(), maximum, total, dims, lse)
        torch.library.opcheck(torch.ops.pfkit.logsumexp_backward.default, arguments)


@pytest.mark.filterwarnings("ignore")
def test_torchs_own_samples(device):
    invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    (info,) = [op for op in invocations.op_db if op.name == "logsumexp"]
    seen = 0
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.complex64,
    ):
        tolerance = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-5)
        for sample in info.sample_inputs(device, dtype, requires_grad=False):
            want = torch.logsumexp(sample.input, *sample.args, **sample.kwargs)
            with pfkit.override_torch():
                got = torch.logsumexp(sample.input, *sample.args, **sample.kwargs)
            assert got.dtype == want.dtype and got.shape == want.shape
            assert torch.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True), (dtype, sample)
            seen += 1
    assert seen > 20


def test_torch_compile_makes_one_graph():
    def f(x):
        return pfkit.logsumexp(x * 2, 1).sum() + pfkit.logsumexp(x, (0, 1))

    x = random(4, 6).requires_grad_()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), f(x))
    a, b = (torch.autograd.grad(g(x), x)[0] for g in (compiled, f))
    assert torch.allclose(a, b)


def test_vmap_and_function_transforms():
    x = random(3, 4, 5)
    one = lambda t: pfkit.logsumexp(t, 0)  # noqa: E731
    ref = lambda t: torch.logsumexp(t, 0)  # noqa: E731
    for at in (0, 1, 2):
        assert torch.allclose(torch.vmap(one, in_dims=at)(x), torch.vmap(ref, in_dims=at)(x))
    v = random(3, 4)
    func = torch.func
    for transform in (func.grad, func.hessian, func.jacfwd, func.jacrev):
        assert torch.allclose(func.vmap(transform(one))(v), func.vmap(transform(ref))(v), atol=1e-14)
    got, want = (func.jvp(f, (v,), (torch.ones_like(v),)) for f in (one, ref))
    assert all(torch.allclose(p, q) for p, q in zip(got, want, strict=True))


def test_forward_mode():
    from torch.autograd import forward_ad

    x, t = random(3, 4), random(3, 4, seed=1)
    with forward_ad.dual_level():
        got, want = (
            forward_ad.unpack_dual(f(forward_ad.make_dual(x, t), 1))
            for f in (pfkit.logsumexp, torch.logsumexp)
        )
    assert torch.allclose(got.primal, want.primal) and torch.allclose(got.tangent, want.tangent)


def test_out_and_integers_and_autocast():
    x = random(3, 4)
    out = torch.empty(2, 3).double().t()[:, 0]
    assert pfkit.logsumexp(x, 1, out=out) is out
    assert torch.allclose(out, torch.logsumexp(x, 1))
    assert torch.equal(pfkit.logsumexp(torch.arange(5), 0), torch.logsumexp(torch.arange(5).float(), 0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pfkit.logsumexp(x.bfloat16(), 1).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: pfkit.logsumexp(x, 2), IndexError, "out of range"),
        (lambda x: pfkit.logsumexp(x, (0, 0)), ValueError, "twice"),
        (lambda x: pfkit.logsumexp(x, 1.5), TypeError, "dim"),
        (lambda x: pfkit.logsumexp(x, 1, lse="exact"), ValueError, "unknown lse"),
        (lambda x: pfkit.logsumexp(x, 1, lse="fuse16"), ValueError, "CUDA"),
        (lambda x: pfkit.logsumexp(x, 1, out=torch.empty(5).double()), ValueError, "shape"),
        (
            lambda x: pfkit.logsumexp(x.clone().requires_grad_(), 1, out=torch.empty(3).double()),
            ValueError,
            "gradient",
        ),
        (lambda x: pfkit.logsumexp(x, 1, b=2.0), TypeError, "b"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(random(3, 4))


class TestOverride:
    def test_torch_is_served_and_then_itself_again(self):
        x = torch.full((2,), -INF, requires_grad=True)
        with pfkit.override_torch():
            y = torch.logsumexp(x, 0)
            y.backward()
            assert y.item() == -INF and x.grad.tolist() == [0.0, 0.0]
            assert torch.logsumexp(torch.zeros(65536, dtype=torch.float16), 0).item() == 11.09375
            assert x.detach().logsumexp(0, keepdim=True).shape == (1,)
        x.grad = None
        torch.logsumexp(x, 0).backward()
        assert x.grad.isnan().all()

    def test_kernel_can_be_chosen(self):
        x = random(4, 100, dtype=torch.float32)
        with pfkit.override_torch(lse="int"):
            assert torch.equal(torch.logsumexp(x, 1), pfkit.logsumexp(x, 1, lse="int"))

    def test_it_is_taken_back_after_an_error_too(self):
        x = torch.full((2,), -INF, requires_grad=True)
        with pytest.raises(KeyError), pfkit.override_torch():
            raise KeyError
        torch.logsumexp(x, 0).backward()
        assert x.grad.isnan().all()

    def test_complex_transforms_and_double_backward(self):
        z = torch.complex(random(3, 4), random(3, 4, seed=1))
        want = torch.logsumexp(z, 1)
        v = random(3, 4)
        hessian = torch.func.hessian(lambda t: torch.logsumexp(t, 0))
        want_h = hessian(v[0])
        with pfkit.override_torch():
            assert torch.allclose(torch.logsumexp(z, 1), want)
            assert torch.allclose(hessian(v[0]), want_h)
            assert torch.autograd.gradgradcheck(lambda t: torch.logsumexp(t, 1), (v.requires_grad_(),))

    def test_unknown_names(self):
        with pytest.raises(ValueError, match="devices"), pfkit.override_torch(devices=("tpu",)):
            pass
        with pytest.raises(ValueError, match="unknown lse"), pfkit.override_torch(lse="exact"):
            pass
