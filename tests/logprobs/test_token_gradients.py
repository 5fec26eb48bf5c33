"""Gradients of token log-probabilities, entropies and log-sum-exps, on the CPU and CUDA."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit import token_log_probs  # noqa: E402
from pfkit.logprobs import token_op  # noqa: E402

INF = math.inf
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ULP = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 2.0**-52}


def loss(parts, seed=5):
    """A weighted sum of everything, so that each part has its own incoming gradient."""
    generator = torch.Generator().manual_seed(seed)
    total = 0
    for part in parts:
        weight = torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part.device)
        total = total + (part.double() * weight).sum()
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", ["log_probs", "entropy", "lse", "all"])
def test_against_float64(device, exact, normal, ids, dtype, parts):
    for shape, k in (
        ((5, 3), None),
        ((6, 700), 3),
        ((3, 4097), None),
        ((2, 2, 33000), 2),
        ((40, 64), 5),
        ((2, 9001), 300),
    ):
        for temperature in (1.0, 0.7):
            x = normal(shape, dtype, device).requires_grad_()
            tokens = ids(shape[:-1] if k is None else (*shape[:-1], k), shape[-1], device, ignored=True)
            if k:
                tokens[..., 1] = tokens[..., 0]  # the same token twice
            y = x.detach().double().requires_grad_()
            pick = {"log_probs": [0], "entropy": [1], "lse": [2], "all": [0, 1, 2]}[parts]
            got = token_log_probs(x, tokens, temperature=temperature, return_entropy=True, return_lse=True)
            want = exact(y, tokens, temperature)
            loss([got[i] for i in pick]).backward()
            loss([want[i] for i in pick]).backward()
            assert x.grad.dtype == dtype and x.grad.shape == x.shape
            scale = 1 + y.grad.abs()
            error = (x.grad.double() - y.grad).abs()
            slack = 1e-12 if dtype == torch.float64 else 4e-6
            assert (error <= (slack + ULP[dtype]) * scale).all(), (shape, float((error / scale).max()))


def test_equal_calls_give_equal_bits(device, normal, ids):
    for shape, k in (((30, 5000), 1), ((30, 5000), 9), ((100, 70), 4)):
        x, tokens = normal(shape, torch.bfloat16, device), ids((shape[0], k), shape[1], device)
        grads = []
        for _ in range(3):
            y = x.clone().requires_grad_()
            loss(token_log_probs(y, tokens, return_entropy=True)).backward()
            grads.append(y.grad)
        assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])


@pytest.mark.parametrize("n", [1000, 50257])
def test_no_worse_than_torch_in_float32(device, exact, normal, ids, n):
    x, tokens = normal((16, n), device=device), ids((16,), n, device)
    y = x.double().requires_grad_()
    exact(y, tokens)[0].mean().backward()
    errors = []
    for f in (token_log_probs, lambda x, t: -torch.nn.functional.cross_entropy(x, t, reduction="none")):
        z = x.clone().requires_grad_()
        f(z, tokens).mean().backward()
        errors.append(float((z.grad.double() - y.grad).abs().max()))
    ours, theirs = errors
    assert ours <= theirs * 1.5 + 1e-9


@pytest.mark.parametrize("k", [None, 3])
def test_numerically(device, k):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, 9, generator=generator, dtype=torch.float64).to(device).requires_grad_()
    tokens = torch.randint(0, 9, (2, 3) if k is None else (2, 3, k), generator=generator).to(device)
    tokens[0, 1] = -100

    def f(x):
        return token_log_probs(x, tokens, temperature=1.3, return_entropy=True, return_lse=True)

    assert torch.autograd.gradcheck(f, (x,))
    assert torch.autograd.gradgradcheck(f, (x,))


@pytest.mark.parametrize("n", [6, 700, 40000])
def test_gradient_beside_minus_infinity(device, n):
    """https://github.com/pytorch/pytorch/issues/31829 https://github.com/pytorch/pytorch/issues/49724"""
    x = torch.zeros(4, n, device=device)
    x[0, : n // 2] = -INF
    x[1] = -INF
    x[2, 1:] = -INF
    x.requires_grad_()
    tokens = torch.tensor([n - 1, 0, 0, 2], device=device)
    parts = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
    sum(part[[0, 2, 3]].sum() for part in parts).backward(retain_graph=True)
    grad = x.grad.clone()
    assert torch.isfinite(grad).all()
    assert (grad[0, : n // 2] == 0).all() and (grad[1] == 0).all() and (grad[2, 1:] == 0).all()
    assert (
        abs(float(grad[2, 0]) - 1) <= 1e-6
    )  # 0 from the log-probability, 0 from the entropy, 1 from the lse
    assert abs(float(grad[3].sum()) - 1) <= 1e-3 and abs(float(grad[3, 2]) - 1) <= 1e-5
    x.grad = None
    parts[0].sum().backward()  # the row without mass has log-probability -inf and gradient 0
    assert (x.grad[1] == 0).all() and torch.isfinite(x.grad).all()


@pytest.mark.parametrize("n", [7, 40000])
def test_ignored_rows_have_no_gradient_whatever_they_hold(device, n):
    x = torch.zeros(3, n, device=device)
    x[0] = math.nan
    x[1, 0] = INF
    x.requires_grad_()
    tokens = torch.tensor([-100, -100, 1], device=device)
    parts = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
    sum(part.sum() for part in parts).backward()
    assert (x.grad[:2] == 0).all() and torch.isfinite(x.grad).all() and x.grad[2, 1] != 0


def test_a_bad_id_reaches_the_gradient_only_if_it_counts(device):
    if device == "cpu":
        pytest.skip("on the CPU a bad id raises")
    x = torch.zeros(2, 50, device=device, requires_grad=True)
    log_probs = token_log_probs(x, torch.tensor([3, 50], device=device))
    assert log_probs[1].isnan() and not log_probs[0].isnan()
    log_probs.sum().backward(retain_graph=True)
    assert x.grad[1].isnan().all() and torch.isfinite(x.grad[0]).all()
    x.grad = None
    torch.where(torch.tensor([True, False], device=device), log_probs, 0).sum().backward()
    assert torch.isfinite(x.grad).all() and (x.grad[1] == 0).all()


def test_two_losses_on_one_tensor_of_logits(device, exact, normal, ids):
    """https://github.com/linkedin/Liger-Kernel/issues/272: gradients written over the logits."""
    base = normal((4, 500), device=device)
    a, b = ids((4,), 500, device, seed=1), ids((4,), 500, device, seed=2)
    grads = []
    for f in (token_log_probs, lambda x, t: exact(x, t)[0].float()):
        x = base.clone().requires_grad_()
        y = torch.softmax(x, -1) * 3  # the softmax saves its output
        (f(y, a).sum() + f(y, b).pow(2).sum()).backward(retain_graph=True)
        f(y, a).sum().backward()
        grads.append(x.grad)
    assert (grads[0] - grads[1]).abs().max() <= 1e-5


@pytest.mark.parametrize("view", [lambda x: x[:, :-1], lambda x: x.transpose(0, 1), lambda x: x[..., 1:]])
def test_through_views(device, exact, normal, ids, view):
    for n in (60, 5001):
        base = normal((3, 4, n), device=device)
        x, y = base.clone().requires_grad_(), base.double().requires_grad_()
        tokens = ids(view(base).shape[:-1], n - 1, device)
        loss([token_log_probs(view(x), tokens)]).backward()
        loss([exact(view(y), tokens)[0]]).backward()
        assert (x.grad.double() - y.grad).abs().max() <= 1e-5


def test_label_smoothing_and_z_loss_from_the_parts(device, normal, ids):
    """Cross-entropy with smoothing 0.1 and a z-loss, as flash-attention's tests have them."""
    for n in (50257, 128256):
        base, tokens = normal((3, n), device=device), ids((3,), n, device, ignored=True)
        x = base.clone().requires_grad_()
        log_probs, value = token_log_probs(x, tokens, return_lse=True)
        counts = tokens != -100
        smooth = torch.where(counts, value - x.mean(-1), 0)
        ours = (-0.9 * log_probs + 0.1 * smooth + 1e-4 * value**2).sum()
        ours.backward()
        y = base.double().requires_grad_()
        theirs = torch.nn.functional.cross_entropy(y, tokens, label_smoothing=0.1, reduction="sum")
        theirs = theirs + 1e-4 * torch.where(counts, torch.logsumexp(y, -1) ** 2, 0).sum()
        theirs.backward()
        assert abs((ours - theirs).item()) <= 2e-5 and (x.grad.double() - y.grad).abs().max() <= 1e-5


def test_transforms_of_torch_func(device, exact, ids):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64).to(device) + 50
    x[1, 2] = -INF
    tangent = torch.randn(4, 6, generator=generator, dtype=torch.float64).to(device)
    tokens = torch.tensor([0, 5, -100, 3], device=device)

    def ours(x, tokens):
        return token_log_probs(x, tokens, temperature=0.8, return_entropy=True, return_lse=True)

    def theirs(x, tokens):
        return exact(x, tokens, 0.8)

    for weights in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        found = []
        for f in (ours, theirs):

            def scalar(x, tokens, f=f, weights=weights):
                return sum(w * part.sum() for w, part in zip(weights, f(x, tokens), strict=True) if w)

            finite = x[[0, 2, 3]]
            each = torch.func.grad(scalar)
            found.append(
                (
                    each(finite, tokens[[0, 2, 3]]),
                    torch.vmap(each)(finite, tokens[[0, 2, 3]]),
                    torch.func.jvp(lambda x, s=scalar: s(x, tokens[:1]), (x[:1],), (tangent[:1],))[1],
                    torch.func.hessian(lambda x, s=scalar: s(x, tokens[:1]))(x[:1]),
                )
            )
        for a, b in zip(*found, strict=True):
            assert (a - b).abs().max() <= 1e-12
    plain = ours(x, tokens)
    for a, b in zip(torch.vmap(ours)(x, tokens), plain, strict=True):
        assert (a - b).abs().max() <= 1e-12
    assert torch.isfinite(torch.func.grad(lambda x: ours(x, tokens)[1].sum())(x)).all()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_without_graph_breaks(device, normal, ids, backend):
    x, tokens = normal((4, 700), device=device), ids((4,), 700, device, ignored=True)

    def f(x):
        log_probs, entropy = token_log_probs(x, tokens, temperature=0.9, return_entropy=True)
        return (log_probs - 0.01 * entropy).sum()

    grads = []
    for g in (f, torch.compile(f, fullgraph=True, backend=backend)):
        y = x.clone().requires_grad_()
        value = g(y)
        value.backward()
        grads.append((value.detach(), y.grad))
    assert torch.allclose(grads[0][0], grads[1][0]) and torch.equal(grads[0][1], grads[1][1])


def test_compiled_once_for_many_temperatures(normal, ids):
    x, tokens = normal((4, 30)), ids((4,), 30)
    compiled = torch.compile(
        lambda t: token_log_probs(x, tokens, temperature=t), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for temperature in (1.0, 0.5, 2.25):
        assert torch.equal(compiled(temperature), token_log_probs(x, tokens, temperature=temperature))


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("shape", [(4, 30), (2, 0, 30), (3, 2, 700)])
def test_the_operators_are_registered_properly(device, normal, ids, shape, entropy):
    for dtype in (torch.float32, torch.bfloat16):
        x = normal(shape, dtype, device)
        tokens = ids((*shape[:-1], 2), shape[-1], device)
        for logits in (x.clone().requires_grad_(), x.transpose(0, -2)):
            these = tokens if logits.shape == x.shape else tokens.transpose(0, -2)
            arguments = (logits, these, 0.8, entropy, True, -100, "fuse")
            torch.library.opcheck(token_op.op, arguments)
        state = token_op.op(x, tokens, 0.8, entropy, True, -100, "fuse")[3]
        given = torch.ones(tokens.shape, dtype=state.dtype, device=device)
        h = torch.ones(shape[:-1], dtype=state.dtype, device=device) if entropy else None
        backward = torch.ops.pfkit.token_log_probs_backward.default
        torch.library.opcheck(backward, (given, h, None, x, tokens, state, 0.8, -100))
