"""Forward passes like one before them: tensors of the same shapes, strides and types on the same GPU, the
same options, no gradient, and the fused kernel takes all rows at once.

What a call needs has then been checked and chosen, and the GPU waits for nothing but its first launch: one
allocation stands before it, everything else comes while the kernel runs.
"""

from __future__ import annotations

from typing import Any

import torch

from ..lse import torch_op
from . import linear_fused as fused
from .linear_kernels import _run
from .linear_op import make_plan
from .linear_terms import Terms, terms_of

_Tensor = torch.Tensor
_MOST = 1024  # calls remembered
_PLACES = 64  # operands remembered for each: a launch knows where its matrices lie


class Ready:
    """A call of known shape. It gives the loss of every row, a vector."""

    __slots__ = ("index", "rows", "clusters", "device", "terms", "width", "pairs")

    def __init__(self, hidden: _Tensor, terms: Terms, width: int) -> None:
        self.index, self.rows, self.device = hidden.get_device(), hidden.shape[0], hidden.device
        self.clusters, self.terms, self.width = fused.clusters(self.index), terms, width
        self.pairs: dict[tuple[int, int], tuple[Any, Any]] = {}

    def __call__(self, hidden: _Tensor, weight: _Tensor, targets: _Tensor, alone: bool) -> _Tensor | None:
        """`alone`: the result has storage of its own. None where the matrices lie askew."""
        place = hidden.data_ptr(), weight.data_ptr()
        pair = self.pairs.get(place) or self._pair(place, hidden, weight)
        if pair is None:
            return None
        rows, slots = self.rows, 2 * self.clusters * self.rows
        room = torch.empty(slots + 3 * rows, dtype=torch.float32, device=self.device)
        loss = torch.empty(rows, dtype=torch.float32, device=self.device) if alone else None
        start = room.data_ptr()
        state = start + 4 * slots  # maximum, total and loss of every row
        result = state + 8 * rows if loss is None else loss.data_ptr()
        stream = torch_op._raw_stream(self.index)
        for launch in pair:
            _run(
                self.index, launch, stream, start, result, targets.data_ptr(), result, state,
                state + 4 * rows, 0, 0,
            )  # fmt: skip
        return room[slots + 2 * rows :] if loss is None else loss

    def _pair(self, place: tuple[int, int], hidden: _Tensor, weight: _Tensor) -> tuple[Any, Any] | None:
        if (place[0] | place[1]) & 15:
            return None
        if len(self.pairs) >= _PLACES:
            self.pairs.clear()
        rows = hidden.reshape(-1, hidden.shape[-1])
        found = self.pairs[place] = fused.launches(rows, weight, self.terms, 0, self.width)
        return found


_calls: dict[Any, Ready] = {}


def call_key(hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, *options: Any) -> Any:
    """What two calls must share for the second to be ready once the first was made; None if this one can be
    neither. A flag among the options is no key: True equals 1.
    """
    if (
        torch.compiler.is_compiling()
        or type(hidden) not in (_Tensor, torch.nn.Parameter)
        or type(weight) not in (_Tensor, torch.nn.Parameter)
        or type(targets) is not _Tensor
        or bias is not None
        or not hidden.is_cuda
        or (torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad))
        or torch_op._dispatch_modes()
        or torch_op._function_modes()
        or torch_op._autocast()
        or torch_op._transformed()
        or bool in map(type, options)
    ):
        return None
    return (
        hidden.shape, hidden.stride(), hidden.dtype, hidden.get_device(), weight.shape, weight.stride(),
        weight.dtype, weight.get_device(), targets.shape, targets.stride(), targets.dtype,
        targets.get_device(), *options,
    )  # fmt: skip


def rows_of_loss(key: Any, hidden: _Tensor, weight: _Tensor, targets: _Tensor, alone: bool) -> _Tensor | None:
    """The loss of every row, if a call with this key was made before and can be made now."""
    if key is None:
        return None
    try:
        ready = _calls.get(key)
    except TypeError:  # options that cannot be a key: the checks will name them
        return None
    if ready is None or ready.index != torch_op._current_device() or not fused.ENABLED:
        return None
    return ready(hidden, weight, targets, alone)


def remember(
    key: Any, hidden: _Tensor, weight: _Tensor, targets: _Tensor, cap: float, scale: float, smoothing: float,
    z: float, ignore_index: int, logits_dtype: torch.dtype | None, memory: int | None,
) -> None:  # fmt: skip
    """Make the next call with this key ready, if the fused kernel takes it whole and nothing is copied.

    The tensors are the call's own, its arguments have been checked.
    """
    if targets.dtype != torch.int64 or not targets.is_contiguous() or not hidden.numel():
        return
    if hidden.dim() != 2 and not hidden.is_contiguous():
        return
    rows = hidden.reshape(-1, hidden.shape[-1])
    terms = terms_of(cap, scale, smoothing, z, weight.shape[0], ignore_index, False)
    plan = make_plan(rows, weight, logits_dtype, -1 if memory is None else int(memory), False)
    if fused.rows_at_once(rows, weight, terms, plan.memory) < len(rows):
        return
    if len(_calls) >= _MOST:  # callers with ever-changing shapes
        _calls.clear()
    _calls[key] = Ready(rows, terms, plan.width)
