"""Linear cross-entropy on the GPU: cuBLAS for the products, kernels of our own between them.

Everything runs on the caller's stream, so a CUDA graph can capture it. (A second stream for the kernels that
read a chunk gains nothing: a product fills every multiprocessor, and what runs beside it slows it down by as
much.) Nothing is added by atomic operations, and every sum has one fixed order: equal calls give equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from . import linear_kernels as kernels
from .linear_plan import Plan, padded, spans
from .linear_products import accumulate, multiply
from .linear_terms import Terms

_Tensor = torch.Tensor


def _chunk(room: _Tensor, start: int, rows: int, columns: int) -> _Tensor:
    """A chunk of logits in `room` from element `start` on; its rows start on 16-byte boundaries."""
    wide = padded(columns)
    return room[start : start + rows * wide].view(rows, wide)[:, :columns]


def forward_cuda(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, terms: Terms, plan: Plan,
    out: Any,
) -> None:  # fmt: skip
    """Fill `out` (a Loss)."""
    rows, device = hidden.shape[0], hidden.device
    state = kernels.State(
        out.maximum, out.total, out.loss, torch.empty_like(out.loss) if terms.smoothing else None
    )  # the target's logit waits where the loss will stand
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream().cuda_stream
        kept = plan.kept if out.kept.numel() else 0
        scratch = plan.height * padded(plan.width) if kept * plan.width < plan.vocabulary else 0
        room, at = torch.empty(scratch, dtype=out.kept.dtype, device=device), 0
        for top, height in spans(rows, plan.height):
            part = slice(top, top + height)
            for k, (first, n) in enumerate(plan.chunks()):
                chunk = _chunk(out.kept, at, rows, n) if k < kept else _chunk(room, 0, height, n)
                at += rows * padded(n)
                multiply(chunk, hidden[part], weight[first : first + n].t())
                kernels.fold(chunk, first, targets[part], bias, state.rows(top, height), terms, stream)
        kernels.finish(out.loss, targets, state, terms, stream)


def _gradients(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, terms: Terms, state: Any,
    outer: _Tensor, dtype: torch.dtype, width: int, kept: int,
) -> Iterator[tuple[int, int, _Tensor]]:  # fmt: skip
    """(first column, columns, gradient in the products) of every chunk, valid until the next one.

    Kept logits are read and left as they are: backward may run again over them.
    """
    rows, stream, at = hidden.shape[0], torch.cuda.current_stream().cuda_stream, 0
    vocabulary = weight.shape[0]
    room = torch.empty(rows * padded(min(width, vocabulary)), dtype=dtype, device=hidden.device)
    for k, (first, n) in enumerate(spans(vocabulary, width)):
        chunk = _chunk(room, 0, rows, n)
        logits = _chunk(state.kept, at, rows, n) if k < kept else chunk
        at += rows * padded(n)
        if k >= kept:
            multiply(logits, hidden, weight[first : first + n].t())
        g = chunk
        if dtype != hidden.dtype:  # a 16-bit gradient over the first half of float32 logits
            g = chunk.view(hidden.dtype)[:, :n]
        kernels.gradient(
            logits, g, first, targets, bias, state.maximum, state.total, outer, terms, stream
        )
        yield first, n, g


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
    outer = state.loss.float().contiguous()
    whole = needs[0] and not plan.block
    with torch.cuda.device(hidden.device):
        if whole or needs[1] or needs[2]:
            sums = _sums(grads[0], hidden.shape[0]) if whole else None
            for first, n, g in _gradients(
                hidden, weight, targets, bias, terms, state, outer, dtype, plan.width, plan.kept
            ):
                if needs[1]:
                    multiply(grads[1][first : first + n], g.t(), hidden)
                if needs[2]:
                    grads[2][first : first + n] = g.sum(0, dtype=torch.float32)
                if sums is not None:
                    accumulate(sums, g, weight[first : first + n], first == 0)
            if sums is not None and sums is not grads[0]:
                grads[0].copy_(sums)
        if needs[0] and plan.block:
            sums = _sums(grads[0], plan.block)
            for top, height in spans(hidden.shape[0], plan.block):
                part = slice(top, top + height)
                few = state._replace(maximum=state.maximum[part], total=state.total[part])
                for first, n, g in _gradients(
                    hidden[part], weight, targets[part], bias, terms, few, outer[part], dtype,
                    plan.block_width, 0,
                ):  # fmt: skip
                    accumulate(sums[:height], g, weight[first : first + n], first == 0)
                grads[0][part] = sums[:height]


def _sums(result: _Tensor, rows: int) -> _Tensor:
    """Where the gradient of `rows` hidden states is summed, in float32: the result itself if it can be."""
    if result.dtype == torch.float32 and rows == result.shape[0]:
        return result
    return torch.empty(rows, result.shape[1], dtype=torch.float32, device=result.device)
