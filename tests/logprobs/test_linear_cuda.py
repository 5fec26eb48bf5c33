"""Linear cross-entropy on a GPU: every chunking against float64, bits, scratch, graphs, compile."""

import math

import pytest

from pfkit.lse import cuda

if cuda.missing():
    pytest.skip(cuda.missing(), allow_module_level=True)

import torch  # noqa: E402

from pfkit.logprobs.linear import linear_cross_entropy, linear_log_probs  # noqa: E402

pytestmark = pytest.mark.gpu
F = torch.nn.functional
ROWS, HIDDEN, VOCABULARY = 517, 128, 5003
DTYPES = [(torch.bfloat16, None), (torch.bfloat16, torch.float32), (torch.float16, None),
          (torch.float16, torch.float32), (torch.float32, None)]  # fmt: skip
BUDGETS = {"default": None, "narrow": 400_000, "blocks": 150_000, "kept": 8 << 20, "all kept": 64 << 20}


@pytest.fixture(autouse=True)
def no_tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def parts(dtype, rows=ROWS, hidden=HIDDEN, vocabulary=VOCABULARY, seed=0, scale=0.3):
    g = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(rows, hidden, device="cuda", generator=g).to(dtype).requires_grad_()
    w = torch.randn(vocabulary, hidden, device="cuda", generator=g).mul(scale).to(dtype).requires_grad_()
    b = torch.randn(vocabulary, device="cuda", generator=g).requires_grad_()
    t = torch.randint(vocabulary, (rows,), device="cuda", generator=g)
    t[rows // 3 :: 11] = -100
    return x, w, b, t


def rows_of(z, t, label_smoothing=0.0, softcap=None, z_loss=0.0):
    if softcap:
        z = softcap * torch.tanh(z / softcap)
    rows = F.cross_entropy(z, t, reduction="none", label_smoothing=label_smoothing)
    return rows + torch.where(t == -100, 0, z_loss * torch.logsumexp(z, 1) ** 2)


def distance(a, b):
    return float((a.double() - b).norm() / b.norm())


OPTIONS = [{}, {"biased": True}, {"biased": True, "label_smoothing": 0.1}, {"softcap": 8.0}, {"z_loss": 1e-3},
           {"biased": True, "label_smoothing": 0.2, "softcap": 20.0, "z_loss": 1e-2}]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(("dtype", "logits_dtype"), DTYPES)
def test_loss_and_gradients(dtype, budget, logits_dtype, options):
    x, w, b, t = parts(dtype)
    options = dict(options)
    wanted = (x, w, b) if options.pop("biased", False) else (x, w)
    bias, added = (b, b) if len(wanted) == 3 else (None, 0)
    memory = BUDGETS[budget]
    if memory is not None and (logits_dtype or dtype) == torch.float32:
        memory *= 2
    ours = linear_cross_entropy(x, w, t, bias=bias, memory=memory, logits_dtype=logits_dtype, **options)
    exact_rows = rows_of(x.double() @ w.double().t() + added, t, **options)
    live = (t != -100).sum()
    exact = torch.autograd.grad(exact_rows.sum() / live, wanted)
    theirs_rows = rows_of((x @ w.t()).float() + added, t, **options)
    theirs = torch.autograd.grad(theirs_rows.sum() / live, wanted)
    got = torch.autograd.grad(ours, wanted)
    want = exact_rows.sum() / live
    own = abs((theirs_rows.sum() / live - want).item())
    assert abs((ours - want).item()) <= max(2 * own, 3e-6)
    for a, e, other in zip(got, exact, theirs, strict=True):
        assert a.dtype == other.dtype
        assert distance(a, e.double()) <= 1.1 * distance(other, e.double()) + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_against_the_same_logits(dtype):
    x, _, _, t = parts(dtype, 300, 512, 512)
    eye = torch.eye(512, device="cuda", dtype=dtype)
    for memory in (None, 400_000):
        got = linear_log_probs(x, eye, t, memory=memory)
        want = -F.cross_entropy(x.double(), t, reduction="none")
        assert float((got.double() - want).abs().max()) < 2e-6
    low, high = (linear_cross_entropy(a.bfloat16().to(d), eye.to(d), t) for a, d in
                 ((x, torch.bfloat16), (x, torch.float32)))  # fmt: skip
    assert abs(float(low - high)) <= 1e-6


@pytest.mark.parametrize("budget", BUDGETS)
def test_equal_calls_give_equal_bits(budget):
    x, w, b, t = parts(torch.bfloat16)
    runs = []
    for _ in range(3):
        plain = linear_cross_entropy(x, w, t, memory=BUDGETS[budget])
        biased = linear_cross_entropy(x, w, t, bias=b, memory=BUDGETS[budget])
        grads = torch.autograd.grad(plain, (x, w)), torch.autograd.grad(biased, (x, w, b))
        runs.append((plain, biased, *grads[0], *grads[1]))
    for other in runs[1:]:
        assert all(torch.equal(a, c) for a, c in zip(runs[0], other, strict=True))


def test_backward_twice_over_kept_logits():
    x, w, _, t = parts(torch.bfloat16)
    loss = linear_cross_entropy(x, w, t, memory=64 << 20)
    first = torch.autograd.grad(loss, (x, w), retain_graph=True)
    again = torch.autograd.grad(loss, (x, w))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("vocabulary", [1, 7, 64, 1000, 2049, 50257, 128256])
def test_vocabularies(vocabulary):
    x, w, _, t = parts(torch.bfloat16, 40, 64, vocabulary)
    got = linear_cross_entropy(x, w, t, reduction="none")
    want = F.cross_entropy((x @ w.t()).double(), t, reduction="none")
    assert float((got.double() - want).abs().max()) < 0.02  # the products may round a logit differently
    (dx,) = torch.autograd.grad(got.sum(), x)
    (ref,) = torch.autograd.grad(F.cross_entropy(x.double() @ w.double().t(), t, reduction="sum"), x)
    assert vocabulary == 1 or distance(dx, ref.double()) < 0.02


def test_scratch_stays_within_the_budget():
    x, w, _, t = parts(torch.bfloat16, 2048, 512, 32000)

    def peak(memory, gradients):
        def call():
            loss = linear_cross_entropy(x, w, t, memory=memory)
            return torch.autograd.grad(loss, (x, w)) if gradients else loss.detach()

        call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = call()
        torch.cuda.synchronize()
        returned = sum(g.numel() * g.element_size() for g in kept) if gradients else 0
        return torch.cuda.max_memory_allocated() - before - returned

    unsplit = 1 << 20  # the allocator may hand out a free block this much larger than was asked for
    for memory in (4 << 20, 20 << 20):
        with torch.no_grad():
            assert peak(memory, False) <= memory + unsplit
    for memory in (4 << 20, 8 << 20, 40 << 20, 200 << 20):
        assert peak(memory, True) <= memory + unsplit


def test_targets_out_of_range_make_their_rows_nan():
    x, w, _, t = parts(torch.bfloat16)
    t[5], t[9] = VOCABULARY, -7
    rows = linear_cross_entropy(x, w, t, reduction="none")
    assert rows[5].isnan() and rows[9].isnan() and int(rows.isnan().sum()) == 2
    assert (rows[t == -100] == 0).all()


def test_a_common_offset_changes_nothing():
    g = torch.Generator(device="cuda").manual_seed(3)
    logits = (torch.randn(64, 256, device="cuda", generator=g) * 8).round() / 8
    t = torch.randint(256, (64,), device="cuda", generator=g)
    eye = torch.eye(256, device="cuda")
    plain, shifted = (
        linear_log_probs(logits, eye, t, bias=torch.full((256,), c, device="cuda")) for c in (0.0, 3e4)
    )
    assert float((plain - shifted).abs().max()) <= 1e-6


def test_columns_closed_by_a_bias_of_minus_infinity():
    x, w, b, t = parts(torch.bfloat16)
    t = torch.where(t >= 0, t % 4000, t)
    closed = b.detach().clone()
    closed[4000:] = -math.inf
    ours = linear_cross_entropy(x, w, t, bias=closed)
    want = linear_cross_entropy(x, w[:4000], t, bias=b[:4000])
    assert abs(float(ours - want)) < 1e-4
    assert not torch.autograd.grad(ours, w)[0][4000:].any()


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_softcap_does_not_open_a_closed_column(dtype, budget):
    x, w, b, t = parts(dtype)
    t = torch.where(t >= 0, t % 4000, t)
    closed = b.detach().clone()
    closed[4000:] = -math.inf
    closed.requires_grad_()
    memory = BUDGETS[budget] and BUDGETS[budget] * (2 if dtype == torch.float32 else 1)
    ours = linear_cross_entropy(x, w, t, bias=closed, softcap=8.0, memory=memory)
    want = linear_cross_entropy(x, w[:4000], t, bias=b[:4000], softcap=8.0)
    assert abs(float(ours - want)) < 1e-4
    ours, want = torch.autograd.grad(ours, (x, w, closed)), torch.autograd.grad(want, (x, w, b))
    assert not ours[1][4000:].any() and not ours[2][4000:].any()
    assert all(distance(a, e.double()) < 1e-2 for a, e in zip(ours, want, strict=True))


def test_a_closed_target_has_probability_zero_under_a_softcap():
    x, w, b, t = parts(torch.bfloat16)
    closed = b.detach().clone()
    closed[4001] = -math.inf
    t = torch.where(t == 4001, 0, t)
    t[3] = 4001
    rows = linear_log_probs(x, w, t, bias=closed, softcap=8.0)
    assert rows[3] == -math.inf and int(torch.isfinite(rows).sum()) == ROWS - 1
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(rows.sum(), (x, w)))


def test_an_ignored_row_of_nan_has_no_gradient_under_a_softcap():
    x, w, _, t = parts(torch.bfloat16)
    dirty = x.detach().clone()
    dirty[t == -100] = math.nan
    dirty.requires_grad_()
    (got,) = torch.autograd.grad(linear_cross_entropy(dirty, w.detach(), t, softcap=8.0), dirty)
    assert not got[t == -100].any() and torch.isfinite(got).all()


def test_in_a_graph_and_on_another_stream():
    x, w, _, t = parts(torch.bfloat16)
    want = linear_cross_entropy(x, w, t)
    wanted = torch.autograd.grad(want, (x, w))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x, w = (a.detach().requires_grad_() for a in (x, w))
        loss = linear_cross_entropy(x, w, t)
        torch.autograd.grad(loss, (x, w))
    stream.synchronize()
    assert torch.equal(loss, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = linear_cross_entropy(x, w, t)
        grads = torch.autograd.grad(loss, (x, w))
    for _ in range(2):
        loss.detach().zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(loss, want)
        assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


def test_torch_compile():
    x, w, _, t = parts(torch.bfloat16)

    def f(x, w, t):
        return linear_cross_entropy(x * 2, w, t)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    a, b = compiled(x, w, t), f(x, w, t)
    assert abs(float(a - b)) < 1e-5
    for p, q in zip(*(torch.autograd.grad(v, (x, w)) for v in (a, b)), strict=True):
        assert distance(p, q.double()) < 1e-2
