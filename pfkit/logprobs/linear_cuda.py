"""Linear cross-entropy on the GPU: cuBLAS for the products, kernels of our own between them.

Everything runs on the caller's stream, so a CUDA graph can capture it. (A second stream for the kernels that
read a chunk gains nothing: a product fills every multiprocessor, and what runs beside it slows it down by as
much.) Nothing is added by atomic operations, and every sum has one fixed order: equal calls give equal bits.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from . import linear_fused as fused
from . import linear_kernels as kernels
from .linear_plan import Plan, padded, spans
from .linear_products import accumulate, multiply
from .linear_terms import Terms

_Tensor = torch.Tensor


_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _on(index: int) -> Any:
    """The device made current, unless it is."""
    return nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index)


def _chunk(room: _Tensor, start: int, rows: int, columns: int) -> _Tensor:
    """A chunk of logits in `room` from element `start` on; its rows start on 16-byte boundaries."""
    wide = padded(columns)
    return room[start : start + rows * wide].view(rows, wide)[:, :columns]


def _fused_rows(hidden: _Tensor, weight: _Tensor, terms: Terms, plan: Plan, kept: _Tensor) -> int:
    """Rows the fused forward kernel takes at a time; 0 if logits are made in chunks.

    Backward asks again: logits in chunks are rounded, the fused kernels' are not, and a gradient must be made
    of the logits its log-sum-exp was made of, or its columns do not add up to zero.
    """
    at_once = fused.rows_at_once(hidden, weight, terms, plan.memory - kept.nbytes)
    if kept.numel():
        split = plan.width < plan.vocabulary and plan.width % fused.TILE  # a tile would lie in two chunks
        if split or at_once < hidden.shape[0] or kept.dtype != hidden.dtype:
            return 0
    return at_once


def forward_cuda(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, terms: Terms, plan: Plan,
    out: Any,
) -> None:  # fmt: skip
    """Fill `out` (a Loss)."""
    rows, device, index = hidden.shape[0], hidden.device, hidden.get_device()
    with _on(index):
        stream = _raw_stream(index)
        kept = plan.kept if out.kept.numel() else 0
        columns = min(kept * plan.width, plan.vocabulary)
        at_once = _fused_rows(hidden, weight, terms, plan, out.kept)
        if at_once:
            slots = torch.empty(2 * fused.clusters(index) * at_once, dtype=torch.float32, device=device)
            if at_once == rows:
                fused.forward(
                    hidden, weight, targets, terms, out.loss, out.maximum, out.total, slots, out.kept,
                    columns, plan.width, stream,
                )  # fmt: skip
                return
            for part in (slice(top, top + at_once) for top in range(0, rows, at_once)):
                fused.forward(
                    hidden[part], weight, targets[part], terms, out.loss[part], out.maximum[part],
                    out.total[part], slots, out.kept, columns, plan.width, stream,
                )  # fmt: skip
            return
        sums = torch.empty_like(out.loss) if terms.smoothing else None
        state = kernels.State(out.maximum, out.total, out.loss, sums)  # the target's logit waits in loss
        room = out.kept
        if columns < plan.vocabulary:
            room = torch.empty(plan.height * padded(plan.width), dtype=out.kept.dtype, device=device)
        at = 0
        for top, height in spans(rows, plan.height):
            part = slice(top, top + height)
            for k, (first, n) in enumerate(plan.chunks()):
                chunk = _chunk(out.kept, at, rows, n) if k < kept else _chunk(room, 0, height, n)
                at += rows * padded(n)
                multiply(chunk, hidden[part], weight[first : first + n].t())
                kernels.fold(chunk, first, targets[part], bias, state.rows(top, height), terms, stream)
        kernels.finish(out.loss, targets, state, terms, stream)


class _Problem(NamedTuple):
    """What backward works on: all rows, or some of them."""

    hidden: _Tensor
    weight: _Tensor
    targets: _Tensor
    bias: _Tensor | None
    terms: Terms
    maximum: _Tensor
    total: _Tensor
    outer: _Tensor  # gradient of every row's loss, float32
    kept: _Tensor
    dtype: torch.dtype  # of a chunk of logits
    fused: bool  # whether forward rounded no logits but those it kept

    def rows(self, part: slice) -> _Problem:
        """The same for some rows, nothing kept."""
        return self._replace(
            hidden=self.hidden[part], targets=self.targets[part], maximum=self.maximum[part],
            total=self.total[part], outer=self.outer[part], kept=self.kept[:0],
        )  # fmt: skip


def backward_cuda(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, terms: Terms, plan: Plan,
    state: Any, needs: list[bool], grads: tuple[_Tensor, _Tensor, _Tensor],
    logits_dtype: torch.dtype | None,
) -> None:  # fmt: skip
    """Fill `grads`; state.loss holds the gradient of every row's loss.

    The gradient of the weight is written once, chunk by chunk, each from all rows. That of the hidden states
    is summed over the chunks in float32: in place for float32 inputs, beside the result for 16-bit ones, and
    where the budget has no room for that, in a second sweep over blocks of rows.
    """
    dtype = hidden.dtype if logits_dtype is None else logits_dtype
    problem = _Problem(
        hidden, weight, targets, bias, terms, state.maximum, state.total, state.loss.float().contiguous(),
        state.kept, dtype, _fused_rows(hidden, weight, terms, plan, state.kept) > 0,
    )  # fmt: skip
    to_hidden, to_weight, to_bias = (g if n else None for g, n in zip(grads, needs, strict=True))
    with _on(hidden.get_device()):
        if not plan.block:
            _sweep(problem, plan.width, plan.kept, to_hidden, to_weight, to_bias)
            return
        if to_weight is not None or to_bias is not None:
            _sweep(problem, plan.width, 0, None, to_weight, to_bias)
        if to_hidden is not None:
            for top, height in spans(hidden.shape[0], plan.block):
                part = slice(top, top + height)
                _sweep(problem.rows(part), plan.block_width, 0, to_hidden[part], None, None)


def _sweep(
    problem: _Problem, width: int, kept: int, to_hidden: _Tensor | None, to_weight: _Tensor | None,
    to_bias: _Tensor | None,
) -> None:  # fmt: skip
    """All chunks once. Kept logits are read and left as they are: backward may run again over them."""
    hidden, weight, dtype = problem.hidden, problem.weight, problem.dtype
    use_fused = (problem.fused or dtype != hidden.dtype) and fused.applies(hidden, weight, problem.terms)
    if problem.fused and not use_fused and dtype != torch.float32:  # too few rows: unrounded another way
        dtype, width = torch.float32, max(8, width // 16 * 8)
    stream = _raw_stream(hidden.get_device())
    rows, vocabulary, at = hidden.shape[0], weight.shape[0], 0
    room = torch.empty(rows * padded(min(width, vocabulary)), dtype=dtype, device=hidden.device)
    sums = to_hidden
    if sums is not None and sums.dtype != torch.float32:
        sums = torch.empty(sums.shape, dtype=torch.float32, device=sums.device)
    for k, (first, n) in enumerate(spans(vocabulary, width)):
        part, chunk = weight[first : first + n], _chunk(room, 0, rows, n)
        logits = _chunk(problem.kept, at, rows, n) if k < kept else chunk
        at += rows * padded(n)
        g = chunk
        if dtype != hidden.dtype:  # a 16-bit gradient over the first half of float32 logits
            g = chunk.view(hidden.dtype)[:, :n]
        if k >= kept and use_fused:
            fused.gradient(
                hidden, part, g, first, problem.targets, problem.maximum, problem.total, problem.outer,
                problem.terms, stream,
            )  # fmt: skip
        else:
            if k >= kept:
                multiply(logits, hidden, part.t())
            rest = (first, problem.targets, problem.bias, problem.maximum, problem.total, problem.outer,
                    problem.terms, stream)  # fmt: skip
            if to_bias is not None:
                kernels.column_sums(logits, to_bias[first : first + n], *rest)
            kernels.gradient(logits, g, *rest)
        if to_weight is not None:
            multiply(to_weight[first : first + n], g.t(), hidden)
        if sums is not None:
            accumulate(sums, g, part, first == 0)
    if to_hidden is not None and sums is not None and sums is not to_hidden:
        to_hidden.copy_(sums)
