"""Linear cross-entropy on the GPU: cuBLAS for the products, kernels of our own between them.

The products stay on the caller's stream. The kernels that read a chunk run on a second stream beside the next
product, where the plan has room for two chunks; events keep both in order, and the second stream has joined
the first before a call returns, so the caller sees one stream and a CUDA graph captures both.

Nothing is added by atomic operations, and every sum has one fixed order: equal calls give equal bits.
"""

from __future__ import annotations

from typing import Any

import torch

from . import linear_kernels as kernels
from .linear_plan import Plan, padded, spans
from .linear_products import accumulate, multiply
from .linear_terms import Terms

_Tensor = torch.Tensor
_second: dict[int, torch.cuda.Stream] = {}


class Lanes:
    """The caller's stream for products and another one for what reads them."""

    def __init__(self, index: int, two: bool) -> None:
        self.main = torch.cuda.current_stream(index)
        self.other = self.main
        if two:
            if index not in _second:
                _second[index] = torch.cuda.Stream(index, priority=-1)  # ahead of a product's waiting blocks
            self.other = _second[index]
            self.other.wait_stream(self.main)

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *error: object) -> None:
        if self.other is not self.main:
            self.main.wait_stream(self.other)

    def handed(self) -> None:
        """What the main stream has done is there for the other one."""
        if self.other is not self.main:
            self.other.wait_event(self.main.record_event())

    def done(self) -> torch.cuda.Event | None:
        """A mark of what the other stream has been given so far."""
        return None if self.other is self.main else self.other.record_event()

    def wait(self, mark: torch.cuda.Event | None) -> None:
        """The main stream goes on after `mark`."""
        if mark is not None:
            self.main.wait_event(mark)


class Buffers:
    """One or two chunks of scratch that take turns."""

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device, two: bool) -> None:
        self.parts = [torch.empty(elements, dtype=dtype, device=device) for _ in range(2 if two else 1)]
        self.marks: list[torch.cuda.Event | None] = [None] * len(self.parts)
        self.turn = -1

    def next(self, rows: int, columns: int) -> _Tensor:
        """Room for a chunk, whose rows start on 16-byte boundaries."""
        self.turn = (self.turn + 1) % len(self.parts)
        wide = padded(columns)
        return self.parts[self.turn][: rows * wide].view(rows, wide)[:, :columns]


def forward_cuda(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, terms: Terms, plan: Plan,
    out: Any,
) -> None:  # fmt: skip
    """Fill `out` (a Loss)."""
    rows, device = hidden.shape[0], hidden.device
    state = kernels.State(
        out.maximum, out.total, out.loss, torch.empty_like(out.loss) if terms.smoothing else None
    )  # the target's logit waits where the loss will stand
    keep = out.kept.numel() > 0
    with torch.cuda.device(device), Lanes(hidden.get_device(), plan.two) as lanes:
        buffers = Buffers(plan.height * padded(plan.width), out.kept.dtype, device, plan.two)
        for top, height in spans(rows, plan.height):
            part, at = slice(top, top + height), 0
            for k, (first, n) in enumerate(plan.chunks()):
                if keep and k < plan.kept:
                    chunk = out.kept[at : at + rows * padded(n)].view(rows, padded(n))[:, :n]
                    at += rows * padded(n)
                    turn = None
                else:
                    chunk = buffers.next(height, n)
                    turn = buffers.turn
                    lanes.wait(buffers.marks[turn])
                multiply(chunk, hidden[part], weight[first : first + n].t())
                lanes.handed()
                kernels.fold(
                    chunk, first, targets[part], bias, state.rows(top, height), terms, lanes.other.cuda_stream
                )
                if turn is not None:
                    buffers.marks[turn] = lanes.done()
        kernels.finish(out.loss, targets, state, terms, lanes.other.cuda_stream)


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
    index, device = hidden.get_device(), hidden.device
    outer = state.loss.float().contiguous()
    whole = needs[0] and not plan.block
    with torch.cuda.device(device):
        if whole or needs[1] or needs[2]:
            sums = None
            if whole:
                sums = grads[0]
                if hidden.dtype != torch.float32:
                    sums = torch.empty(hidden.shape, dtype=torch.float32, device=device)
            with Lanes(index, plan.two) as lanes:
                sweep = _Sweep(
                    hidden, weight, targets, bias, terms, state, outer, logits_dtype, lanes, plan.two
                )
                for first, n, g in sweep.chunks(plan.width, plan.kept):
                    if needs[1]:
                        multiply(grads[1][first : first + n], g.t(), hidden)
                    if needs[2]:
                        grads[2][first : first + n] = g.sum(0, dtype=torch.float32)
                    if sums is not None:
                        accumulate(sums, g, weight[first : first + n], first == 0)
            if sums is not None and sums is not grads[0]:
                grads[0].copy_(sums)
        if needs[0] and plan.block:
            sums = torch.empty(plan.block, hidden.shape[1], dtype=torch.float32, device=device)
            for top, height in spans(hidden.shape[0], plan.block):
                part = slice(top, top + height)
                few = type(state)(state.loss, state.maximum[part], state.total[part], state.kept[:0])
                with Lanes(index, False) as lanes:
                    sweep = _Sweep(
                        hidden[part], weight, targets[part], bias, terms, few, outer[part], logits_dtype,
                        lanes, False,
                    )  # fmt: skip
                    for first, n, g in sweep.chunks(plan.block_width, 0):
                        accumulate(sums[:height], g, weight[first : first + n], first == 0)
                grads[0][part] = sums[:height]


class _Sweep:
    """The gradients in the products of all chunks, one after another."""

    def __init__(
        self, hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, terms: Terms,
        state: Any, outer: _Tensor, logits_dtype: torch.dtype | None, lanes: Lanes, two: bool,
    ) -> None:  # fmt: skip
        self.hidden, self.weight, self.targets, self.bias, self.terms = hidden, weight, targets, bias, terms
        self.state, self.outer, self.lanes, self.two = state, outer, lanes, two
        self.dtype = hidden.dtype if logits_dtype is None else logits_dtype

    def chunks(self, width: int, kept: int) -> Any:
        """(first column, columns, gradient) of every chunk; the next one is made while this one is used."""
        rows, lanes, at = self.hidden.shape[0], self.lanes, 0
        cut = spans(self.weight.shape[0], width)
        wide = padded(min(width, self.weight.shape[0]))
        buffers = Buffers(rows * wide, self.dtype, self.hidden.device, self.two)
        ready: list[tuple[_Tensor, torch.cuda.Event | None]] = []

        def start(k: int) -> None:
            nonlocal at
            first, n = cut[k]
            room = buffers.next(rows, n)
            if k < kept:  # read the kept logits, leave them as they are: backward may run again
                source = self.state.kept[at : at + rows * padded(n)].view(rows, padded(n))[:, :n]
                at += rows * padded(n)
            else:
                source = room
                multiply(room, self.hidden, self.weight[first : first + n].t())
            result = room
            if self.dtype != self.hidden.dtype:  # a 16-bit gradient over the first half of float32 logits
                result = room.view(self.hidden.dtype)[:, :n]
            lanes.handed()
            kernels.gradient(
                source, result, first, self.targets, self.bias, self.state.maximum, self.state.total,
                self.outer, self.terms, lanes.other.cuda_stream,
            )  # fmt: skip
            ready.append((result, lanes.done()))

        start(0)
        for k, (first, n) in enumerate(cut):
            g, mark = ready.pop(0)
            if self.two and k + 1 < len(cut):
                start(k + 1)
            lanes.wait(mark)
            yield first, n, g
            if not self.two and k + 1 < len(cut):
                start(k + 1)
