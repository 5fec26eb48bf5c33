"""The host side of linear cross-entropy on CUDA, kernels and products played by torch on the CPU: which
chunk goes where, what is kept, what is summed, in every plan.
"""

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.logprobs import linear_cuda, linear_fused, linear_kernels, linear_op, linear_plan  # noqa: E402
from pfkit.logprobs.linear_plan import padded  # noqa: E402
from pfkit.logprobs.linear_terms import Terms  # noqa: E402

ROWS, HIDDEN, VOCABULARY = 300, 64, 1501


class Played:
    """Stands in for the device; counts what was asked of it."""

    def __init__(self):
        self.folds = self.fused = self.gradients = self.fused_gradients = self.products = 0
        self.gradient_dtypes = set()

    def multiply(self, out, a, b):
        self.products += 1
        out.copy_((a.double() @ b.double()).to(out.dtype))

    def accumulate(self, out, a, b, first):
        product = a.float() @ b.float()
        out.copy_(product if first else out + product)

    def fold(self, chunk, first, targets, bias, state, terms, stream):
        self.folds += 1
        z = self.logits(chunk, first, bias, terms)
        m = z.max(1).values
        old_m, old_s = (state.maximum, state.total) if first else (torch.full_like(m, -3e38), 0 * m)
        top = torch.maximum(m, old_m)
        state.total.copy_(old_s * torch.exp(old_m - top) + torch.exp(z - top[:, None]).sum(1))
        state.maximum.copy_(top)
        here = (targets >= first) & (targets < first + chunk.shape[1])
        picked = z.gather(1, (targets - first).clamp(0, chunk.shape[1] - 1)[:, None])[:, 0]
        state.picked.copy_(torch.where(here, picked, state.picked if first else torch.zeros_like(picked)))
        if state.sum is not None:
            state.sum.copy_(z.sum(1) + (state.sum if first else 0))

    def logits(self, chunk, first, bias, terms):
        z = chunk.float() if bias is None else chunk.float() + bias[first : first + chunk.shape[1]]
        return terms.cap * torch.tanh(z / terms.cap) if terms.cap else z

    def finish(self, loss, targets, state, terms, stream):
        lse = torch.log(state.total)
        rows = (state.maximum - state.picked) + lse
        if terms.smoothing:
            mean = state.sum / terms.vocabulary
            rows = (1 - terms.smoothing) * rows + terms.smoothing * ((state.maximum - mean) + lse)
        loss.copy_(torch.where(targets == terms.ignore_index, 0, rows))

    def by_row(self, chunk, first, targets, bias, maximum, total, outer, terms):
        z = self.logits(chunk, first, bias, terms)
        live = (targets != terms.ignore_index)[:, None]
        hot = torch.arange(first, first + chunk.shape[1])[None] == targets[:, None]
        p = torch.exp(z - maximum[:, None]) / total[:, None]
        g = p - (1 - terms.smoothing) * hot - terms.smoothing / terms.vocabulary
        g = torch.where(live, g * outer[:, None], 0)
        return g * (1 - (z / terms.cap) ** 2) if terms.cap else g

    def gradient(self, chunk, result, first, targets, bias, maximum, total, outer, terms, stream):
        self.gradients += 1
        self.gradient_dtypes.add(chunk.dtype)
        result.copy_(self.by_row(chunk, first, targets, bias, maximum, total, outer, terms).to(result.dtype))

    def column_sums(self, chunk, result, first, *rest):
        result.copy_(self.by_row(chunk, first, *rest[:-1]).sum(0))

    def fused_forward(self, hidden, weight, targets, terms, loss, maximum, total, slots, kept, columns, width,
                      stream):  # fmt: skip
        self.fused += 1
        assert slots.numel() >= 2 * hidden.shape[0]
        z = hidden.float() @ weight.float().t()
        at = 0
        for first in range(0, columns, width):
            n = min(width, weight.shape[0] - first)
            room = kept[at : at + len(z) * padded(n)].view(len(z), padded(n))
            room[:, :n] = z[:, first : first + n].to(kept.dtype)
            z[:, first : first + n] = room[:, :n].float()
            at += room.numel()
        maximum.copy_(z.max(1).values)
        total.copy_(torch.exp(z - maximum[:, None]).sum(1))
        picked = z.gather(1, targets.clamp_min(0)[:, None])[:, 0]
        loss.copy_(torch.where(targets == terms.ignore_index, 0, maximum - picked + torch.log(total)))

    def fused_gradient(self, hidden, weight, result, first, targets, maximum, total, outer, terms, stream):
        self.fused_gradients += 1
        z = hidden.float() @ weight.float().t()
        result.copy_(self.by_row(z, first, targets, None, maximum, total, outer, terms).to(result.dtype))


@pytest.fixture
def played(monkeypatch):
    p = Played()
    monkeypatch.setattr(linear_cuda, "_on", lambda index: nullcontext())
    monkeypatch.setattr(linear_cuda, "_raw_stream", lambda index: 0)
    for name in ("multiply", "accumulate"):
        monkeypatch.setattr(linear_cuda, name, getattr(p, name))
    for name in ("fold", "finish", "gradient", "column_sums"):
        monkeypatch.setattr(linear_kernels, name, getattr(p, name))
    monkeypatch.setattr(linear_fused, "forward", p.fused_forward)
    monkeypatch.setattr(linear_fused, "gradient", p.fused_gradient)
    monkeypatch.setattr(linear_fused, "clusters", lambda index: 4)
    return p


def run(dtype, memory, logits_dtype, terms, bias, seed=0):
    """Loss rows and gradients through forward_cuda and backward_cuda, and the exact ones."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, HIDDEN, generator=g).to(dtype)
    w = (torch.randn(VOCABULARY, HIDDEN, generator=g) / 3).to(dtype)
    t = torch.randint(VOCABULARY, (ROWS,), generator=g)
    t[::9] = -100
    b = torch.randn(VOCABULARY, generator=g) if bias else None
    memory = -1 if memory is None else memory
    plan = linear_op.make_plan(x, w, logits_dtype, memory, True)
    out = linear_op._outputs(x, w, logits_dtype, memory, 2)
    linear_cuda.forward_cuda(x, w, t, b, terms, plan, out)
    outer = torch.rand(ROWS, generator=g)
    needs = [True, True, bias]
    grads = linear_op._gradients(x, w, b, needs)
    state = linear_op.Loss(outer, out.maximum, out.total, out.kept)
    linear_cuda.backward_cuda(x, w, t, b, terms, plan, state, needs, grads, logits_dtype)

    given = [a.double().requires_grad_() for a in (x, w)] + ([b.double().requires_grad_()] if bias else [])
    z = given[0] @ given[1].t() + (given[2] if bias else 0)
    z = terms.cap * torch.tanh(z / terms.cap) if terms.cap else z
    want = torch.nn.functional.cross_entropy(z, t, reduction="none", label_smoothing=terms.smoothing)
    exact = torch.autograd.grad(want, given, outer.double())
    return plan, out.loss, want.detach(), grads[: len(given)], exact


BUDGETS = [None, 150_000, 60_000, 1_700_000, 8_000_000]


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("logits_dtype", [None, torch.float32])
@pytest.mark.parametrize("memory", BUDGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fused", [False, True])
def test_every_plan_gives_the_same_loss_and_gradients(
    played, monkeypatch, fused, dtype, memory, logits_dtype, shaped
):
    fused = fused and dtype == torch.bfloat16 and not shaped
    monkeypatch.setattr(linear_fused, "applies", lambda *a: fused)
    terms = Terms(cap=9.0 if shaped else 0.0, smoothing=0.1 if shaped else 0.0, vocabulary=VOCABULARY,
                  biased=shaped)  # fmt: skip
    logits_dtype = None if logits_dtype == dtype else logits_dtype
    if memory is not None and (logits_dtype or dtype) == torch.float32:
        memory *= 2
    plan, loss, want, grads, exact = run(dtype, memory, logits_dtype, terms, shaped)
    rounded = dtype == torch.bfloat16
    assert float((loss - want).abs().max()) < (0.1 if rounded else 2e-5)
    for a, e in zip(grads, exact, strict=True):
        assert float((a.double() - e).norm() / e.norm()) < (2e-2 if rounded else 2e-6)
    assert bool(played.fused) <= fused and bool(played.fused_gradients) <= fused
    if plan.kept == len(plan.chunks()):  # everything kept: no logit is made twice
        assert not played.fused_gradients


@pytest.mark.parametrize("at_once", [64, 128, ROWS])
def test_forward_in_blocks_of_rows(played, monkeypatch, at_once):
    monkeypatch.setattr(linear_fused, "rows_at_once", lambda *a: at_once)
    monkeypatch.setattr(linear_fused, "applies", lambda *a: True)
    _, loss, want, _, _ = run(torch.bfloat16, 150_000, None, Terms(vocabulary=VOCABULARY), False)
    assert played.fused == -(-ROWS // at_once) and played.folds == 0
    assert float((loss - want).abs().max()) < 1e-4


def test_kept_logits_go_through_the_fused_kernel_in_chunks_of_whole_tiles(played, monkeypatch):
    monkeypatch.setattr(linear_fused, "applies", lambda *a: True)
    monkeypatch.setattr(linear_plan, "WIDEST_BYTES", 200_000)
    monkeypatch.setattr(linear_plan, "BACKWARD_COLUMNS", 256)
    linear_plan.remembered.cache_clear()
    plan, loss, want, grads, exact = run(torch.bfloat16, 700_000, None, Terms(vocabulary=VOCABULARY), False)
    linear_plan.remembered.cache_clear()
    assert 0 < plan.kept < len(plan.chunks()) and plan.width % linear_fused.TILE == 0
    assert played.fused == 1 and played.folds == 0
    assert played.gradients == plan.kept and played.fused_gradients == len(plan.chunks()) - plan.kept
    assert float((loss - want).abs().max()) < 0.1
    assert all(float((a.double() - e).norm() / e.norm()) < 2e-2 for a, e in zip(grads, exact, strict=True))


def test_blocks_of_rows_are_swept_after_the_weight(played, monkeypatch):
    monkeypatch.setattr(linear_fused, "applies", lambda *a: False)
    plan, *_ = run(torch.bfloat16, 60_000, None, Terms(vocabulary=VOCABULARY), False)
    assert 0 < plan.block < ROWS
    sweeps = len(plan.chunks()) + -(-ROWS // plan.block) * -(-VOCABULARY // plan.block_width)
    assert played.gradients == sweeps


def test_a_gradient_is_made_of_the_logits_its_log_sum_exp_was_made_of(played, monkeypatch):
    """Chunks are rounded, the fused kernels' logits are not: backward does as forward did."""
    terms = Terms(vocabulary=VOCABULARY)
    monkeypatch.setattr(linear_fused, "applies", lambda *a: True)
    monkeypatch.setattr(linear_fused, "rows_at_once", lambda *a: 0)
    run(torch.bfloat16, 150_000, None, terms, False)
    assert played.folds and not played.fused and not played.fused_gradients
    assert played.gradient_dtypes == {torch.bfloat16}

    played.__init__()
    monkeypatch.setattr(linear_fused, "rows_at_once", lambda *a: ROWS)
    monkeypatch.setattr(linear_fused, "applies", lambda hidden, *a: hidden.shape[0] >= 256)
    plan, _, _, grads, exact = run(torch.bfloat16, 60_000, None, terms, False)
    assert 0 < plan.block < 256 and played.fused == 1 and played.fused_gradients == len(plan.chunks())
    assert played.gradient_dtypes == {torch.float32}
    assert all(float((a.double() - e).norm() / e.norm()) < 1e-2 for a, e in zip(grads, exact, strict=True))
