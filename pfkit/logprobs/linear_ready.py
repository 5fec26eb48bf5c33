"""Forward passes like one before them: tensors of the same shapes, strides and types on the same GPU, the
same options, no gradient, and the fused kernel takes all rows at once.

What a call needs has then been checked and chosen, and the GPU waits for nothing but its first launch: one
comparison and one allocation stand before it, everything else comes while the kernel runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from ..lse import torch_op
from . import linear_fused as fused
from .linear_kernels import _run
from .linear_op import make_plan
from .linear_terms import Terms, terms_of

_Tensor = torch.Tensor
_MOST = 256  # options remembered
_SHAPES = 8  # calls remembered for each, the last ones
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


class _Call(NamedTuple):
    """A call that was made and can be made again."""

    same: Any  # whether three tensors have the shapes, strides, types and places of that call's
    needs: bool  # whether one of its tensors wants a gradient
    ready: Ready


_calls: dict[Any, tuple[_Call, ...]] = {}  # by options, the last ones first


def rows_of_loss(
    options: Any, hidden: _Tensor, weight: _Tensor, targets: _Tensor, alone: bool
) -> _Tensor | None:
    """The loss of every row, if a call like this was made before and can be made now."""
    if torch.compiler.is_compiling():
        return None
    try:
        known = _calls.get(options, ())
    except TypeError:  # options that cannot be a key: the checks will name them
        return None
    for call in known:
        if call.same(hidden, weight, targets):
            if (
                (call.needs and torch.is_grad_enabled())
                or torch_op._function_modes()
                or forward_ad._current_level >= 0
                or call.ready.index != torch_op._current_device()
                or not fused.ENABLED
            ):
                return None
            return call.ready(hidden, weight, targets, alone)
    return None


def guard(*tensors: _Tensor) -> Any:
    """What says whether other tensors are like these: types, shapes, strides, devices, whether they want a
    gradient, and all that torch's dispatcher goes by (subclasses, modes, transforms, autocast). One call into
    torch in place of a dozen, none of which a processor that has waited for the GPU has at hand. None where
    this torch has no such thing.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        sizes: Any = [list(x.shape) for x in tensors]
        strides: Any = [list(x.stride()) for x in tensors]
        found = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        return found.check if found.check(*tensors) else None
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError):
        return None


def _on_current_gpu(x: _Tensor) -> bool:
    return x.is_cuda and x.get_device() == torch_op._current_device()


def remember(
    options: Any, hidden: _Tensor, weight: _Tensor, targets: _Tensor, cap: float, scale: float,
    smoothing: float, z: float, ignore_index: int, logits_dtype: torch.dtype | None, memory: int | None,
) -> None:  # fmt: skip
    """Make the next call with these options and such tensors ready, if the fused kernel takes it whole and
    nothing is copied. The tensors are the call's own, its arguments have been checked.
    """
    if torch.compiler.is_compiling() or not _on_current_gpu(hidden) or torch_op._transformed():
        return
    needs = hidden.requires_grad or weight.requires_grad
    if (needs and torch.is_grad_enabled()) or torch_op._dispatch_modes() or torch_op._function_modes():
        return
    plain = (_Tensor, torch.nn.Parameter)
    if not all(type(x) in plain for x in (hidden, weight, targets)):
        return
    if targets.dtype != torch.int64 or not targets.is_contiguous() or not hidden.numel():
        return
    if hidden.dim() != 2 and not hidden.is_contiguous():
        return
    rows = hidden.reshape(-1, hidden.shape[-1])
    terms = terms_of(cap, scale, smoothing, z, weight.shape[0], ignore_index, False)
    plan = make_plan(rows, weight, logits_dtype, -1 if memory is None else int(memory), False)
    if fused.rows_at_once(rows, weight, terms, plan.memory) < len(rows):
        return
    same = guard(hidden, weight, targets)
    if same is None:
        return
    if len(_calls) >= _MOST:  # callers with ever-changing options
        _calls.clear()
    known = _calls.get(options, ())
    _calls[options] = (_Call(same, needs, Ready(rows, terms, plan.width)), *known[: _SHAPES - 1])
