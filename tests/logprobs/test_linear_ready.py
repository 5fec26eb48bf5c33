"""Linear cross-entropy called again with tensors of the same kind: the shortcut gives the bits of the first
call, and is not taken where it must not be.
"""

import ctypes
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pfkit.logprobs import linear_fused, linear_ready  # noqa: E402
from pfkit.logprobs.linear import linear_cross_entropy, linear_log_probs  # noqa: E402
from pfkit.logprobs.linear_terms import Terms  # noqa: E402
from pfkit.lse import cuda, torch_op  # noqa: E402

F = torch.nn.functional
ROWS, HIDDEN, VOCABULARY = 300, 64, 1501


def problem(device, dtype=torch.bfloat16, seed=0, rows=ROWS):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, HIDDEN, generator=g).to(dtype)
    w = (torch.randn(VOCABULARY, HIDDEN, generator=g) / 3).to(dtype)
    t = torch.randint(VOCABULARY, (rows,), generator=g)
    t[::9] = -100
    return x.to(device), w.to(device), t.to(device)


# --- on the CPU: the launches played ---


def write(address, values):
    data = values.to(torch.float32).contiguous()
    ctypes.memmove(address, data.data_ptr(), 4 * data.numel())


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16, torch.float64])
def test_a_ready_call_gives_what_its_launches_wrote(monkeypatch, default, alone):
    x, w, t = problem("cpu")
    made, wanted = [], torch.arange(ROWS, dtype=torch.float32)

    def run(index, launch, stream, slots, picked, targets, loss, maximum, total, kept, unused):
        assert targets == t.data_ptr()
        if launch == "fused":
            write(slots, torch.zeros(2 * 4 * ROWS))  # all of them, before anything else is there
            write(picked, torch.full((ROWS,), -1.0))
        else:
            write(maximum, torch.full((ROWS,), -2.0))
            write(total, torch.full((ROWS,), -3.0))
            write(loss, wanted)
            write(slots, torch.full((2 * 4 * ROWS,), -4.0))

    def launches(*given):
        made.append(given)
        return "fused", "combine"

    monkeypatch.setattr(linear_ready, "_run", run)
    monkeypatch.setattr(torch_op, "_raw_stream", lambda index: 0)
    monkeypatch.setattr(linear_fused, "clusters", lambda index: 4)
    monkeypatch.setattr(linear_fused, "launches", launches)
    ready = linear_ready.Ready(x, Terms(vocabulary=VOCABULARY), VOCABULARY)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        first, again = ready(x, w, t, alone), ready(x, w, t, alone)
    finally:
        torch.set_default_dtype(before)
    assert len(made) == 1
    for loss in (first, again):
        assert loss.dtype == torch.float32
        assert torch.equal(loss, wanted)
        assert (loss.untyped_storage().nbytes() == 4 * ROWS) == alone
    moved = x.clone()
    ready(moved, w, t, alone)
    assert len(made) == 2
    assert made[1][0].data_ptr() == moved.data_ptr()


def test_matrices_that_lie_askew_are_not_launched(monkeypatch):
    x, w, t = problem("cpu")
    monkeypatch.setattr(linear_fused, "clusters", lambda index: 4)
    askew = torch.empty(ROWS * HIDDEN + 1, dtype=torch.bfloat16)[1:].view(ROWS, HIDDEN)
    ready = linear_ready.Ready(x, Terms(vocabulary=VOCABULARY), VOCABULARY)
    assert ready(askew, w, t, False) is None


def test_calls_on_the_cpu_are_not_remembered():
    x, w, t = problem("cpu", torch.float32)
    linear_ready._calls.clear()
    linear_cross_entropy(x, w, t)
    assert not linear_ready._calls


def test_options_that_cannot_be_compared_are_no_call():
    assert linear_ready.rows_of_loss(("a", []), *problem("cpu"), False) is None


class Pass(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Sub(torch.Tensor):
    pass


def test_a_guard_knows_its_tensors():
    x, w, t = problem("cpu")
    same = linear_ready.guard(x, w, t)
    assert same(x, w, t) and same(x.clone(), w + 1, t.flip(0))
    others = [
        x[1:], x[:, :8], x.t().contiguous().t(), x.float(), x.half(), x.clone().requires_grad_(),
        torch.nn.Parameter(x), x.clone().as_subclass(Sub), x.to("meta"), x.to_sparse(), x[None], None, 1.0,
    ]  # fmt: skip
    assert not any(same(other, w, t) for other in others)
    assert not same(x, w[1:], t) and not same(x, w.t(), t) and not same(x, w.float(), t)
    assert not same(x, w, t[1:]) and not same(x, w, t.int()) and not same(x, w, t.repeat(2)[::2])
    with torch.no_grad():
        assert same(x, w, t)
        needing = linear_ready.guard(x.clone().requires_grad_(), w, t)
        assert needing(x.clone().requires_grad_(), w, t) and not needing(x, w, t)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not same(x, w, t)
    with Pass():
        assert not same(x, w, t)
    inside = []
    torch.func.grad(lambda z: inside.append(same(x, w, t)) or z.sum())(torch.ones(3))
    torch.func.vmap(lambda z: inside.append(same(x, w, t)) or z)(torch.ones(3))
    assert inside == [False, False]


@pytest.fixture
def played(monkeypatch):
    """The CPU as the current GPU; what was launched, the losses made by torch."""
    launched, operands = [], {}

    def launches(hidden, weight, terms, kept_columns, width):
        operands["now"] = hidden, weight, terms
        return operands["now"], "combine"

    def run(index, launch, stream, slots, picked, targets, loss, *rest):
        if launch != "combine":
            launched.append(launch)
            return
        hidden, weight, terms = launched[-1]
        ids = torch.frombuffer((ctypes.c_int64 * len(hidden)).from_address(targets), dtype=torch.int64)
        z = hidden.detach().float() @ weight.detach().float().t()
        rows = F.cross_entropy(z, ids, reduction="none", ignore_index=terms.ignore_index)
        write(loss, rows)

    device = SimpleNamespace(capability=(9, 0), multiprocessors=8)
    monkeypatch.setattr(linear_fused.cuda, "device", lambda index: device)
    monkeypatch.setattr(linear_fused, "launches", launches)
    monkeypatch.setattr(linear_ready, "_run", run)
    monkeypatch.setattr(linear_ready, "_on_current_gpu", lambda x: True)
    monkeypatch.setattr(torch_op, "_raw_stream", lambda index: 0)
    monkeypatch.setattr(torch_op, "_current_device", lambda: -1)
    monkeypatch.setattr(linear_ready, "_calls", {})
    return launched


def test_which_calls_are_ready(played):
    x, w, t = problem("cpu")
    exact = F.cross_entropy(x.double() @ w.double().t(), t)

    def call(*given, ready, want=exact, **options):
        before = len(played)
        loss = linear_cross_entropy(*given, **options)
        assert len(played) - before == ready
        assert abs(float(loss.detach()) - float(want)) < 5e-3  # logits rounded to 16 bits, or not
        return loss

    call(x, w, t, ready=False)
    call(x, w, t, ready=True)
    call(x.clone(), w.clone(), t.clone(), ready=True)
    call(x.view(3, 100, HIDDEN), w, t.view(3, 100), ready=False)
    call(x.view(3, 100, HIDDEN), w, t.view(3, 100), ready=True)
    assert linear_cross_entropy(x, w, t, reduction="none").shape == t.shape
    assert linear_log_probs(x.view(3, 100, HIDDEN), w, t.view(3, 100)).shape == (3, 100)
    assert len(played) == 5

    wide_x, wide_w = (torch.repeat_interleave(a, 2, 1) for a in (x, w))
    for a, b in ((wide_x[:, ::2], w), (x, wide_w[:, ::2]), (x, w.t().contiguous().t())):
        call(a, b, t, ready=False)
        call(a, b, t, ready=False)
    call(x, w, t.int(), ready=False)
    call(x, w, t.int(), ready=False)
    call(x, w, t.repeat_interleave(2)[::2], ready=False)
    call(x, w, t.repeat_interleave(2)[::2], ready=False)

    needing = x.clone().requires_grad_()
    assert call(needing, w, t, ready=False).requires_grad
    with torch.no_grad():
        call(needing, w, t, ready=False)
        call(needing, w, t, ready=True)
    assert call(needing, w, t, ready=False).requires_grad

    bias = torch.linspace(0, 3, VOCABULARY)
    want = F.cross_entropy(x.double() @ w.double().t() + bias, t)
    call(x, w, t, bias=bias, want=want, ready=False)
    call(x, w, t, bias=bias, want=want, ready=False)
    call(x.float(), w.float(), t, ready=False)
    call(x.float(), w.float(), t, ready=False)
    call(x, w, t, softcap=1e4, ready=False)
    call(x, w, t, softcap=1e4, ready=False)
    with Pass():
        call(x, w, t, ready=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call(x, w, t, ready=False)
    call(x, w, t, ready=True)
    for wrong, error in (({"ignore_index": True}, TypeError), ({"memory": 10}, ValueError)):
        with pytest.raises(error):
            linear_cross_entropy(x, w, t, **wrong)
    with pytest.raises(ValueError, match="targets"):
        linear_cross_entropy(x, w, t[1:])


# --- on a GPU ---


@pytest.fixture
def calls():
    if cuda.missing():
        pytest.skip(cuda.missing())
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the fused kernel runs on Hopper")
    linear_ready._calls.clear()
    return linear_ready._calls


def count(calls):
    return sum(map(len, calls.values()))


@pytest.mark.gpu
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_again_the_same_bits(calls, reduction):
    x, w, t = problem("cuda")
    first = linear_cross_entropy(x, w, t, reduction=reduction)
    assert count(calls) == 1
    others = problem("cuda", seed=1)
    for given in ((x, w, t), (x.clone(), w.clone(), t.clone()), others):
        again = linear_cross_entropy(*given, reduction=reduction)
        assert count(calls) == 1
        if given is not others:
            assert torch.equal(again, first)
        saved = dict(calls)
        calls.clear()
        assert torch.equal(again, linear_cross_entropy(*given, reduction=reduction))
        calls.update(saved)


@pytest.mark.gpu
def test_leading_dimensions_and_log_probs(calls):
    x, w, t = problem("cuda")
    x, t = x.view(3, 100, HIDDEN), t.view(3, 100)
    first = linear_log_probs(x, w, t)
    assert count(calls) == 1
    assert torch.equal(linear_log_probs(x, w, t), first)
    rows = linear_cross_entropy(x, w, t, reduction="none")
    assert count(calls) == 1  # the same launches
    assert rows.shape == t.shape
    assert torch.equal(0 - rows, first)
    exact = torch.log_softmax(x.double() @ w.double().t(), -1)
    exact = torch.where(t == -100, 0, exact.gather(-1, t.clamp_min(0)[..., None])[..., 0])
    assert (first - exact).abs().max() < 1e-5


@pytest.mark.gpu
def test_what_needs_more_is_not_ready(calls):
    x, w, t = problem("cuda")
    wanted = linear_cross_entropy(x, w, t)
    needing = x.clone().requires_grad_()
    loss = linear_cross_entropy(needing, w, t)
    assert loss.requires_grad
    assert abs(float(loss.detach() - wanted)) < 5e-3  # its logits are kept, and rounded for that
    with torch.no_grad():
        assert all(torch.equal(linear_cross_entropy(needing, w, t), wanted) for _ in range(2))
    assert count(calls) == 2
    assert linear_cross_entropy(needing, w, t).requires_grad  # though a call without has been made ready
    with pytest.raises(TypeError, match="ignore_index"):
        linear_cross_entropy(x, w, t, ignore_index=True)
    with pytest.raises(ValueError, match="memory"):
        linear_cross_entropy(x, w, t, memory=10)
    with pytest.raises(ValueError, match="targets"):
        linear_cross_entropy(x, w, t[1:])
    bias = torch.linspace(0, 3, VOCABULARY, device="cuda")
    exact = torch.nn.functional.cross_entropy(x.double() @ w.double().t() + bias, t)
    assert abs(float(exact - wanted)) > 0.05
    assert abs(float(linear_cross_entropy(x, w, t, bias=bias) - exact)) < 5e-3  # logits rounded to 16 bits
    assert bool(torch.isnan(linear_cross_entropy(x, w, t, ignore_index=int(t[1]))))  # -100 is out of range
    askew = torch.empty(ROWS * HIDDEN + 1, dtype=x.dtype, device="cuda")[1:].view(ROWS, HIDDEN)
    askew.copy_(x)
    assert abs(float(linear_cross_entropy(askew, w, t) - wanted)) < 5e-3


@pytest.mark.gpu
def test_matrices_that_must_be_copied_are_not_ready(calls):
    x, w, t = problem("cuda")
    wanted = float(linear_cross_entropy(x, w, t))
    calls.clear()
    wide_x, wide_w = (torch.repeat_interleave(a, 2, 1) for a in (x, w))
    some = (
        (wide_x[:, ::2], wide_w[:, ::2]),
        (x, wide_w[:, ::2]),
        (wide_x[:, ::2], w),
        (x, w.t().contiguous().t()),
    )
    for a, b in some:
        for _ in range(2):
            assert abs(float(linear_cross_entropy(a, b, t)) - wanted) < 5e-3
    assert not calls
    for _ in range(2):  # rows apart, each whole
        wide_w[:, :HIDDEN], wide_w[:, HIDDEN:] = w, 0
        assert float(linear_cross_entropy(x, wide_w[:, :HIDDEN], t)) == wanted
    assert count(calls) == 1
    assert torch.equal(linear_cross_entropy(x, w, t.int()), linear_cross_entropy(x, w, t))
    assert count(calls) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_whatever_torchs_default_dtype_is(calls, default):
    x, w, t = problem("cuda", rows=2051)
    bias = torch.zeros(VOCABULARY, device="cuda", requires_grad=True)
    wanted = linear_cross_entropy(x, w, t)
    (slope,) = torch.autograd.grad(linear_cross_entropy(x, w, t, bias=bias), bias)
    calls.clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for _ in range(2):
            found = linear_cross_entropy(x, w, t)
            assert found.dtype == torch.float32
            assert torch.equal(found, wanted)
        (again,) = torch.autograd.grad(linear_cross_entropy(x, w, t, bias=bias), bias)
        assert torch.equal(again, slope)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.gpu
def test_in_a_cuda_graph(calls):
    x, w, t = problem("cuda")
    wanted = linear_cross_entropy(x, w, t)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        linear_cross_entropy(x, w, t)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = linear_cross_entropy(x, w, t)
    graph.replay()
    assert torch.equal(found, wanted)
    x.copy_(problem("cuda", seed=2)[0])
    graph.replay()
    assert torch.equal(found, linear_cross_entropy(x, w, t))
