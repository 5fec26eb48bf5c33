"""The operators behind linear cross-entropy, registered with torch: pfkit::linear_cross_entropy, which gives
the loss of every row and what backward needs, and pfkit::linear_cross_entropy_backward.

They work for torch.compile (one opaque call each) and inside CUDA graphs. Second derivatives are refused with
an error that says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from ..lse import torch_op
from . import linear_plan
from .linear_reference import backward_composite, forward_composite
from .linear_terms import terms_of

_Tensor = torch.Tensor


class Loss(NamedTuple):
    """What forward returns, every row float32 (float64 for float64 inputs)."""

    loss: _Tensor  # (rows,); 0 where ignored, NaN where the target is out of range
    maximum: _Tensor  # (rows,) largest logit
    total: _Tensor  # (rows,) sum of exp(logit - maximum)
    kept: _Tensor  # logits kept for backward, chunk after chunk


def logit_type(dtype: torch.dtype, logits_dtype: torch.dtype | None) -> torch.dtype:
    """What a chunk of logits is stored as."""
    return dtype if logits_dtype is None else logits_dtype


def make_plan(
    hidden: _Tensor, weight: _Tensor, logits_dtype: torch.dtype | None, memory: int, gradient: bool,
    hidden_needs: bool = True,
) -> linear_plan.Plan:  # fmt: skip
    """The plan both directions follow."""
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    known = type(rows) is int and type(vocabulary) is int  # under torch.compile sizes may be symbols
    make = linear_plan.remembered if known else linear_plan.make
    return make(
        rows, hidden.shape[1], vocabulary,
        logit_type(hidden.dtype, logits_dtype).itemsize, None if memory < 0 else memory,
        gradient=gradient, sums=gradient and hidden_needs and hidden.dtype.itemsize == 2,
    )  # fmt: skip


def _outputs(hidden: _Tensor, weight: _Tensor, logits_dtype: Any, memory: int, keep: int) -> Loss:
    rows = hidden.shape[0]
    compute = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    kept = 0
    if keep:
        plan = make_plan(hidden, weight, logits_dtype, memory, True, keep == 2)
        kept = sum(rows * linear_plan.padded(n) for _, n in plan.chunks()[: plan.kept])
    loss, maximum, total = (torch.empty(rows, dtype=compute, device=hidden.device) for _ in range(3))
    room = torch.empty(kept, dtype=logit_type(hidden.dtype, logits_dtype), device=hidden.device)
    return Loss(loss, maximum, total, room)


def _forward(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, ignore_index: int,
    smoothing: float, cap: float, scale: float, z: float, logits_dtype: torch.dtype | None, memory: int,
    keep: int,
) -> tuple[_Tensor, ...]:  # fmt: skip
    terms = terms_of(cap, scale, smoothing, z, weight.shape[0], ignore_index, bias is not None)
    out = _outputs(hidden, weight, logits_dtype, memory, keep)
    plan = make_plan(hidden, weight, logits_dtype, memory, keep > 0, keep == 2)
    if hidden.shape[0]:
        if hidden.is_cuda and hidden.dtype != torch.float64:
            from .linear_cuda import forward_cuda

            forward_cuda(hidden, weight, targets, bias, terms, plan, out)
        else:
            forward_composite(hidden, weight, targets, bias, terms, plan, out)
    return tuple(out)


def _backward(
    grad: _Tensor, hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None,
    maximum: _Tensor, total: _Tensor, kept: _Tensor, ignore_index: int, smoothing: float, cap: float,
    scale: float, z: float, logits_dtype: torch.dtype | None, memory: int, keep: int, needs: list[bool],
) -> tuple[_Tensor, _Tensor, _Tensor]:  # fmt: skip
    terms = terms_of(cap, scale, smoothing, z, weight.shape[0], ignore_index, bias is not None)
    grads = _gradients(hidden, weight, bias, needs)
    if not hidden.shape[0]:
        for g in grads:
            g.zero_()
        return grads
    plan = make_plan(hidden, weight, logits_dtype, memory, True, keep == 2)
    state = Loss(grad, maximum, total, kept)
    if hidden.is_cuda and hidden.dtype != torch.float64:
        from .linear_cuda import backward_cuda

        backward_cuda(hidden, weight, targets, bias, terms, plan, state, needs, grads, logits_dtype)
    else:
        backward_composite(hidden, weight, targets, bias, terms, plan, state, needs, grads, logits_dtype)
    return grads


def _gradients(
    hidden: _Tensor, weight: _Tensor, bias: _Tensor | None, needs: list[bool]
) -> tuple[_Tensor, _Tensor, _Tensor]:
    """Room for the gradients that are needed; nothing in place of the others."""

    def room(x: _Tensor | None, needed: bool) -> _Tensor:
        if x is None or not needed:
            return torch.empty(0, dtype=hidden.dtype, device=hidden.device)
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    return room(hidden, needs[0]), room(weight, needs[1]), room(bias, needs[2])


_LIBRARY = torch.library.Library("pfkit", "FRAGMENT")
_OPTIONS = (
    "int ignore_index, float smoothing, float cap, float scale, float z, ScalarType? logits_dtype,"
    " int memory, int keep"
)
_LIBRARY.define(
    f"linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, Tensor? bias, {_OPTIONS})"
    " -> (Tensor loss, Tensor maximum, Tensor total, Tensor kept)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "linear_cross_entropy_backward(Tensor grad, Tensor hidden, Tensor weight, Tensor targets, Tensor? bias,"
    f" Tensor maximum, Tensor total, Tensor kept, {_OPTIONS}, bool[] needs) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("linear_cross_entropy", _forward, _key)
    _LIBRARY.impl("linear_cross_entropy_backward", _backward, _key)
_forward_op = torch.ops.pfkit.linear_cross_entropy.default
_backward_op = torch.ops.pfkit.linear_cross_entropy_backward.default


@torch.library.register_fake("pfkit::linear_cross_entropy", lib=_LIBRARY)
def _(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, ignore_index: int,
    smoothing: float, cap: float, scale: float, z: float, logits_dtype: torch.dtype | None, memory: int,
    keep: int,
) -> tuple[_Tensor, ...]:  # fmt: skip
    return tuple(_outputs(hidden, weight, logits_dtype, memory, keep))


@torch.library.register_fake("pfkit::linear_cross_entropy_backward", lib=_LIBRARY)
def _(
    grad: _Tensor, hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None,
    maximum: _Tensor, total: _Tensor, kept: _Tensor, ignore_index: int, smoothing: float, cap: float,
    scale: float, z: float, logits_dtype: torch.dtype | None, memory: int, keep: int, needs: list[bool],
) -> tuple[_Tensor, _Tensor, _Tensor]:  # fmt: skip
    return _gradients(hidden, weight, bias, needs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[_Tensor, ...]) -> None:
    hidden, weight, targets, bias, *options = inputs
    _, maximum, total, kept = output
    ctx.mark_non_differentiable(maximum, total, kept)
    ctx.save_for_backward(hidden, weight, targets, bias, maximum, total, kept)
    ctx.options = options
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, grad: _Tensor | None, *_: Any) -> tuple[Any, ...]:
    return *_gradients_by(_backward_op, ctx, grad), *[None] * len(ctx.options)


def _gradients_by(backward: Any, ctx: Any, grad: _Tensor | None) -> tuple[_Tensor | None, ...]:
    """The gradients of hidden, weight, targets and bias."""
    if grad is None:
        return (None,) * 4
    hidden, weight, targets, bias, maximum, total, kept = ctx.saved_tensors
    needs = [*ctx.needs_input_grad[:2], bias is not None and ctx.needs_input_grad[3]]
    found = backward(
        grad.contiguous(), hidden, weight, targets, bias, maximum, total, kept, *ctx.options, needs
    )
    dh, dw, db = (g if needed else None for g, needed in zip(found, needs, strict=True))
    return dh, dw, None, db


def _refuse(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    raise NotImplementedError(
        "linear cross-entropy has no second derivatives: its gradient was made chunk by chunk and nothing of "
        "it is kept; use torch.nn.functional.cross_entropy(hidden @ weight.T, targets) where they are needed"
    )


torch.library.register_autograd("pfkit::linear_cross_entropy", _gradient, setup_context=_save, lib=_LIBRARY)
torch.library.register_autograd("pfkit::linear_cross_entropy_backward", _refuse, lib=_LIBRARY)


def refuse_transforms(given: tuple[_Tensor | None, ...], gradient: bool) -> None:
    """Raise where a derivative is wanted that the operator does not have; forward mode would find no tangent,
    which reads as zero.
    """
    if torch.compiler.is_compiling() or not torch_op._transformed():
        return
    functorch: Any = torch._C._functorch
    kinds = [level.key() for level in functorch.get_interpreter_stack() or []]
    tensors = [x for x in given if x is not None]
    wrapped = any(functorch.is_functorch_wrapped_tensor(x) for x in tensors)
    if (
        (gradient and functorch.TransformType.Grad in kinds)
        or (wrapped and functorch.TransformType.Jvp in kinds)
        or any(_has_tangent(x) for x in tensors)
    ):
        raise NotImplementedError(
            "linear cross-entropy has derivatives by backward() and torch.autograd.grad only, not by "
            "torch.func's transforms or in forward mode; use torch.nn.functional.cross_entropy(hidden @ "
            "weight.T, targets)"
        )


def _has_tangent(x: _Tensor) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


class _Rows(torch.autograd.Function):
    """The operator for eager tensors that need a gradient: the same functions, called at once."""

    @staticmethod
    def forward(
        ctx: Any, hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None,
        options: tuple[Any, ...],
    ) -> _Tensor:  # fmt: skip
        out = _forward(hidden, weight, targets, bias, *options)
        ctx.save_for_backward(hidden, weight, targets, bias, *out[1:])
        ctx.options = options
        ctx.set_materialize_grads(False)
        return out[0]

    @staticmethod
    def backward(ctx: Any, grad: _Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        # create_graph: the operator, whose own derivative is refused
        return *_gradients_by(_backward_op if torch.is_grad_enabled() else _backward, ctx, grad), None


def rows_of_loss(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, *options: Any
) -> _Tensor:
    """The first result of the operator; without torch's dispatcher where nothing needs it."""
    plain = (_Tensor, torch.nn.Parameter)
    if (
        not torch.compiler.is_compiling()
        and type(hidden) in plain
        and type(weight) in plain
        and (bias is None or type(bias) in plain)
        and not (torch_op._transformed() or torch_op._dispatch_modes() or torch_op._function_modes())
    ):
        if options[-1]:
            return _Rows.apply(hidden, weight, targets, bias, options)  # type: ignore[no-any-return]
        return _forward(hidden, weight, targets, bias, *options)[0]
    return _forward_op(hidden, weight, targets, bias, *options)[0]  # type: ignore[no-any-return]
