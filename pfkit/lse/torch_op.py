"""log-sum-exp of torch tensors: an operator of torch with gradients, on the CPU and the GPU.

``pfkit.logsumexp(tensor)`` comes here. Two operators are registered with ``torch.library``:

* ``pfkit::logsumexp`` gives the value and the state behind it, (maximum, total), where
  ``value = maximum + log(total)``;
* ``pfkit::logsumexp_backward`` gives ``grad * w`` with the weights ``w = exp(a - maximum) / total``, or, for
  "int", that kernel's own integer weights over their sum. It is differentiable itself, so second derivatives
  (and third) work.

Gradients are those of a softmax that knows its edges: 0 for -inf, also in a row that holds nothing else;
under +inf the gradient is shared evenly by the +inf terms; large equal terms share evenly too, because the
maximum is kept apart from the logarithm of the sum.

Eager calls that need no gradient skip torch's dispatcher: nothing between the argument checks and the launch.
:func:`override_torch` serves ``torch.logsumexp`` itself.

On CPU tensors the compiled CPU kernels work in place on the tensor's memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.autograd import forward_ad

from . import cuda, cuda_plan
from .kernels import BASELINES, COMPILED, CUDA_ONLY, check_name

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_NUMBER = {dtype: k for k, dtype in enumerate(_FLOATS)}
_NAMES = COMPILED + CUDA_ONLY + BASELINES
_Tensor: TypeAlias = torch.Tensor


def _compute(dtype: torch.dtype) -> torch.dtype:
    """What the kernels compute in: float64 for float64, float32 for the rest."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _has_state(lse: str) -> str:
    """The kernel whose state and weights serve `lse`: its own, or those of "fuse"."""
    return "int" if lse == "int" else "fuse"


def reduced_dims(dim: Any, ndim: int) -> tuple[int, ...]:
    """`dim` as sorted non-negative numbers; None and () are all dimensions. A 0-d tensor has one dimension,
    0.

    Raises
    ------
    TypeError, ValueError, IndexError
        For something that is no integer, a dimension named twice, one out of range.
    """
    if dim is None:
        return tuple(range(max(1, ndim)))
    dims = tuple(dim) if isinstance(dim, tuple | list) else (dim,)
    if not dims:
        return tuple(range(max(1, ndim)))
    limit = max(1, ndim)
    found = []
    for d in dims:
        if not isinstance(d, int | np.integer | torch.SymInt):
            raise TypeError(f"dim must be None, an integer or a tuple of integers, got {dim!r}")
        if not -limit <= d < limit:
            raise IndexError(f"dim {d} is out of range for a tensor of {ndim} dimensions")
        found.append(int(d) % limit)
    if len(set(found)) != len(found):
        raise ValueError(f"dim {dim!r} names a dimension twice")
    return tuple(sorted(found))


# --- the state behind a value ---


def _rows_of(a: _Tensor, dims: Sequence[int]) -> tuple[_Tensor, tuple[int, ...]]:
    """`a` as (rows, n), the reduced dimensions last, copied only if its strides ask for it; and the kept-dim
    shape."""
    kept = [d for d in range(a.dim()) if d not in dims]
    shape = tuple(1 if d in dims else a.shape[d] for d in range(a.dim()))
    n = math.prod(a.shape[d] for d in dims)
    return a.permute(*kept, *dims).reshape(math.prod(a.shape[d] for d in kept), n), shape


def _cpu_parts(a: _Tensor, dims: Sequence[int], lse: str) -> tuple[_Tensor, _Tensor, _Tensor]:
    """Value, maximum and total of CPU rows, each of shape (rows,), value in the compute dtype."""
    from pfkit_ext import _cpu

    rows = _rows_of(a.to(_compute(a.dtype)), dims)[0].contiguous().numpy()
    if lse == "int":
        maximum = _cpu.row_max(rows)
        finite = np.isfinite(maximum)
        safe = np.where(finite, maximum, maximum.dtype.type(0))
        hi, lo = _cpu.int_state_rows(
            np.where(finite[:, None], rows, -np.inf) if not finite.all() else rows, safe
        )
        total = np.array(
            [float((int(h) << 64) | int(low)) * 2.0**-52 for h, low in zip(hi, lo, strict=True)]
        )  # Python rounds the integer once
        total = np.where(finite, total, np.where(maximum < 0, 0.0, maximum))
    else:
        maximum, total = _cpu.fuse_state_rows(rows)
    value = _cpu.lse_rows(rows, lse)
    return tuple(
        torch.from_numpy(np.ascontiguousarray(x)) for x in (value, maximum, total.astype(np.float64))
    )  # type: ignore[return-value]


def _op_cpu(
    a: _Tensor, dim: Sequence[int], lse: str, dtype: torch.dtype | None = None
) -> tuple[_Tensor, ...]:
    if lse in CUDA_ONLY:
        raise ValueError(f"lse={lse!r} runs on CUDA tensors only")
    value, maximum, total = _empty_parts(a, dim, dtype)
    if value.numel():
        if all(a.shape[d] for d in dim):
            parts = _cpu_parts(a, dim, lse)
            for target, part in zip((value, maximum, total), parts, strict=True):
                target.copy_(
                    part.to(_compute(a.dtype)).reshape(target.shape)
                    if target is value
                    else part.reshape(target.shape)
                )
        else:
            _fill_empty(value, maximum, total)
    return value, maximum, total


def _empty_parts(
    a: _Tensor, dim: Sequence[int], dtype: torch.dtype | None
) -> tuple[_Tensor, _Tensor, _Tensor]:
    shape = [1 if d in dim else size for d, size in enumerate(a.shape)]
    return (
        torch.empty(shape, dtype=dtype or a.dtype, device=a.device),
        torch.empty(shape, dtype=_compute(a.dtype), device=a.device),
        torch.empty(shape, dtype=torch.float64, device=a.device),
    )


def _fill_empty(value: _Tensor, maximum: _Tensor, total: _Tensor) -> None:
    value.fill_(-math.inf)
    maximum.fill_(-math.inf)
    total.zero_()


def _op_cuda(
    a: _Tensor, dim: Sequence[int], lse: str, dtype: torch.dtype | None = None
) -> tuple[_Tensor, ...]:
    parts = _empty_parts(a, dim, dtype)
    if not parts[0].numel():
        return parts
    if not all(a.shape[d] for d in dim):
        _fill_empty(*parts)
        return parts
    if lse == "fuse16":
        if a.dtype not in (torch.float16, torch.bfloat16):
            raise TypeError(f"lse='fuse16' takes float16 and bfloat16 tensors, got {a.dtype}; use 'fuse'")
        lse = "fuse"
    if _has_state(lse) == lse:
        _run(_plan(a, tuple(dim), lse, parts[0].dtype), a, *parts)
    else:  # a kernel that gives only a value: the state is that of "fuse"
        _run(_plan(a, tuple(dim), lse, parts[0].dtype), a, parts[0], None, None)
        _run(_plan(a, tuple(dim), "fuse", parts[0].dtype), a, None, *parts[1:])
    return parts


# --- launching ---


class _Launches:
    """A plan on one device, ready to be called."""

    __slots__ = ("device", "steps", "workspace", "index", "source")

    def __init__(self, plan: cuda_plan.Plan, index: int) -> None:
        self.index = index
        self.device = cuda.device(index)
        self.steps = []
        for step in plan.steps:
            most = self.device.resident_blocks(step.kernel) if step.resident else step.grid[0]
            grid = min(step.grid[0], most), step.grid[1]
            self.steps.append(self.device.launch(step.kernel, grid, plan.arguments))
        self.workspace = plan.workspace

    def __call__(self, *pointers: int) -> None:
        """source, out, maximum, total, workspace, reference, grad, grad_in; on the current stream."""
        stream = _raw_stream(self.index)
        for step in self.steps:
            code = step(stream, *pointers)
            if code:
                if code != 201:  # 201: this thread has no context yet
                    raise cuda.CudaError(
                        f"launching a kernel on CUDA device {self.index}: {cuda.describe(code)}"
                    )
                self.device.make_current()
                code = step(stream, *pointers)
                if code:
                    raise cuda.CudaError(
                        f"launching a kernel on CUDA device {self.index}: {cuda.describe(code)}"
                    )


_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_plans: dict[Any, _Launches] = {}


def _plan(
    a: _Tensor, dims: tuple[int, ...], lse: str, out_dtype: torch.dtype, exact_total: bool = False
) -> _Launches:
    shape, strides, index = a.shape, a.stride(), a.get_device()
    key = (shape, strides, dims, lse, a.dtype, out_dtype, index, a.data_ptr() & 15, exact_total)
    found = _plans.get(key)
    if found is None:
        device = cuda.device(index)
        plan = cuda_plan.reduction(
            lse, cuda_plan.layout(tuple(shape), strides, dims), _NUMBER[a.dtype], aligned=not key[7],
            multiprocessors=device.multiprocessors, clusters=device.capability >= (9, 0),
            out_dtype=_NUMBER[out_dtype], exact_total=exact_total, shared_memory=device.shared_memory,
        )  # fmt: skip
        if len(_plans) > 4096:  # callers with ever-changing shapes
            _plans.clear()
        found = _plans[key] = _Launches(plan, index)
    return found


def _run(
    launches: _Launches, a: _Tensor, value: _Tensor | None, maximum: _Tensor | None, total: _Tensor | None,
    reference: _Tensor | None = None,
) -> None:  # fmt: skip
    index = launches.index
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            return _run(launches, a, value, maximum, total, reference)
    space = (
        torch.empty(launches.workspace, dtype=torch.uint8, device=a.device) if launches.workspace else None
    )
    launches(
        a.data_ptr(), *(0 if x is None else x.data_ptr() for x in (value, maximum, total, space, reference))
    )


def _fits(a: _Tensor, dims: tuple[int, ...]) -> _Tensor:
    """`a`, or a contiguous copy where its strides have more dimensions than a kernel's argument block."""
    if a.dim() <= cuda_plan.DIMS or cuda_plan.layout(tuple(a.shape), a.stride(), dims).fits:
        return a
    kept = [d for d in range(a.dim()) if d not in dims]
    order = (*kept, *dims)
    back = [order.index(d) for d in range(a.dim())]
    return a.permute(order).contiguous().permute(back)


def int_totals(a: _Tensor, dims: tuple[int, ...], reference: _Tensor) -> tuple[_Tensor, _Tensor]:
    """128-bit totals of "int" at `reference` (shaped like the result, >= every element): two int64 tensors.

    0 where the reference is not finite. `a` is float32 or float64 and not empty.
    """
    shape = reference.shape
    if a.is_cuda:
        a = _fits(a, dims)
        both = torch.empty(*shape, 2, dtype=torch.int64, device=a.device)
        _run(_plan(a, dims, "int", a.dtype, exact_total=True), a, None, None, both, reference.contiguous())
        finite = torch.isfinite(reference)
        return torch.where(finite, both[..., 0], 0), torch.where(finite, both[..., 1], 0)
    from pfkit_ext import _cpu

    rows, points = _rows_of(a, dims)[0].numpy(), reference.reshape(-1).numpy()
    finite = np.isfinite(points)
    rows = np.where(finite[:, None], rows, -np.inf).astype(rows.dtype)
    pair = _cpu.int_state_rows(np.ascontiguousarray(rows), np.where(finite, points, 0).astype(points.dtype))
    hi, lo = (torch.from_numpy(x.view(np.int64)).reshape(shape) for x in pair)
    return hi, lo


# --- backward ---


def _int_weights(a: _Tensor, maximum: _Tensor) -> _Tensor:
    """The integer weights of "int" at `maximum`, int64 at scale 2**52, by the operations INTEGER arithmetic
    is defined by."""
    x = a.to(maximum.dtype)
    scaled = (x - maximum) * (-65536 * 1.4426950408889634)  # torch rounds the factor to x's dtype first
    index = torch.round(torch.clamp_max(scaled, 64.0 * 65536)).to(torch.int64)
    f, s = index & 0xFFFF, index >> 16
    p = (f * (65536 - f)) >> 16
    d = f + ((p * (12650 - ((f * (3030 - ((f * 439) >> 16))) >> 16)) + 0x4000) >> 15)
    return torch.where(s > 62, 0, (((1 << 20) - 8 * d) << 32) >> s.clamp_max(62))


def _weights(a: _Tensor, maximum: _Tensor, total: _Tensor, dims: Sequence[int], lse: str) -> _Tensor:
    """The weights of a's elements in the compute dtype, with the edge rules of the module's docstring."""
    x = a.to(maximum.dtype)
    finite = torch.isfinite(maximum)
    safe = torch.where(finite, maximum, 0)
    ok = torch.where(finite, total, 1)
    if lse == "int":
        share = 1 / ok * 2.0**-52  # in float64, and one rounding of the product: as the CUDA kernel
        w = (_int_weights(torch.where(finite, x, 0), safe).to(torch.float64) * share).to(x.dtype)
    else:
        w = torch.exp(x - safe) / ok.to(x.dtype)
    top = (x == math.inf).to(x.dtype)
    w = torch.where(maximum == math.inf, top / top.sum(tuple(dims), keepdim=True).clamp_min(1), w)
    w = torch.where(maximum == -math.inf, 0, w)
    return torch.where(torch.isnan(maximum), maximum, w)


def _backward_composite(
    grad: _Tensor, a: _Tensor, maximum: _Tensor, total: _Tensor, dim: Sequence[int], lse: str
) -> _Tensor:
    return (grad.to(maximum.dtype) * _weights(a, maximum, total, dim, lse)).to(a.dtype).contiguous()


def _backward_cuda(
    grad: _Tensor, a: _Tensor, maximum: _Tensor, total: _Tensor, dim: Sequence[int], lse: str
) -> _Tensor:
    last = tuple(range(a.dim() - len(dim), a.dim()))
    if tuple(dim) == last and a.numel():
        shape = cuda_plan.layout(tuple(a.shape), a.stride(), last)
        if shape.contiguous and shape.fits:
            out = torch.empty(a.shape, dtype=a.dtype, device=a.device)
            maximum, total, grad = (
                maximum.contiguous(),
                total.contiguous(),
                grad.to(torch.float64).contiguous(),
            )
            index = a.get_device()
            key = (a.shape, a.stride(), "gradient", len(dim), a.dtype, index, lse)
            launches = _plans.get(key)
            if launches is None:
                launches = _plans[key] = _Launches(cuda_plan.gradient(lse, shape, _NUMBER[a.dtype]), index)
            with torch.cuda.device(index):
                launches(
                    a.data_ptr(),
                    0,
                    maximum.data_ptr(),
                    total.data_ptr(),
                    0,
                    0,
                    grad.data_ptr(),
                    out.data_ptr(),
                )
            return out
    return _backward_composite(grad, a, maximum, total, dim, lse)


# --- registration ---

_LIBRARY = torch.library.Library("pfkit", "DEF")
_LIBRARY.define(
    "logsumexp(Tensor a, int[] dim, str lse, ScalarType? dtype=None)"
    " -> (Tensor value, Tensor maximum, Tensor total)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "logsumexp_backward(Tensor grad, Tensor a, Tensor maximum, Tensor total, int[] dim, str lse) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.impl("logsumexp", _op_cpu, "CPU")
_LIBRARY.impl("logsumexp", _op_cuda, "CUDA")
_LIBRARY.impl("logsumexp_backward", _backward_composite, "CPU")
_LIBRARY.impl("logsumexp_backward", _backward_cuda, "CUDA")
_op = torch.ops.pfkit.logsumexp.default
_op_backward = torch.ops.pfkit.logsumexp_backward.default


@torch.library.register_fake("pfkit::logsumexp", lib=_LIBRARY)
def _(a: _Tensor, dim: Sequence[int], lse: str, dtype: torch.dtype | None = None) -> tuple[_Tensor, ...]:
    return _empty_parts(a, dim, dtype)


@torch.library.register_fake("pfkit::logsumexp_backward", lib=_LIBRARY)
def _(grad: _Tensor, a: _Tensor, maximum: _Tensor, total: _Tensor, dim: Sequence[int], lse: str) -> _Tensor:
    return torch.empty(a.shape, dtype=a.dtype, device=a.device)


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[_Tensor, ...]) -> None:
    a, dim, lse, _ = inputs
    value, maximum, total = output
    ctx.value_dtype = value.dtype
    ctx.mark_non_differentiable(maximum, total)
    ctx.save_for_backward(a, maximum, total)
    if hasattr(ctx, "save_for_forward"):
        ctx.save_for_forward(a, maximum, total)
    ctx.dim, ctx.lse = dim, lse
    ctx.set_materialize_grads(False)


def _forward_gradient(ctx: Any, grad: _Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return None, None, None, None
    a, maximum, total = ctx.saved_tensors
    return _op_backward(grad, a, maximum, total, ctx.dim, _has_state(ctx.lse)), None, None, None


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: _Tensor) -> None:
    grad, a, maximum, total, dim, lse = inputs
    ctx.save_for_backward(grad, a, maximum, total)
    if hasattr(ctx, "save_for_forward"):
        ctx.save_for_forward(grad, a, maximum, total)
    ctx.dim, ctx.lse = dim, lse


def _backward_gradient(ctx: Any, outer: _Tensor, backward: Any = _op_backward) -> tuple[Any, ...]:
    """With g the incoming gradient, w the weights and h the outer one: d/dg = sum h w; d/da = g w (h - sum h
    w).

    The second line is the whole derivative: maximum and total move with a, and get no gradient of their own.
    """
    grad, a, maximum, total = ctx.saved_tensors
    w = backward(torch.ones_like(grad), a, maximum, total, ctx.dim, ctx.lse)
    mean = (outer * w).sum(tuple(ctx.dim), keepdim=True)
    return mean.to(grad.dtype), grad.to(w.dtype) * w * (outer - mean), None, None, None, None


torch.library.register_autograd(
    "pfkit::logsumexp", _forward_gradient, setup_context=_save_forward, lib=_LIBRARY
)
torch.library.register_autograd(
    "pfkit::logsumexp_backward", _backward_gradient, setup_context=_save_backward, lib=_LIBRARY
)


def _batched(size: int, in_dims: Any, tensors: Any) -> list[_Tensor]:
    """All tensors with the batch as their first dimension."""
    return [
        x.expand(size, *x.shape) if at is None else x.movedim(at, 0)
        for x, at in zip(tensors, in_dims[: len(tensors)], strict=True)
    ]


@torch.library.register_vmap("pfkit::logsumexp", lib=_LIBRARY)
def _(
    info: Any, in_dims: Any, a: _Tensor, dim: Sequence[int], lse: str, dtype: Any = None
) -> tuple[Any, Any]:
    return _op(a.movedim(in_dims[0], 0), [d + 1 for d in dim], lse, dtype), (0, 0, 0)


@torch.library.register_vmap("pfkit::logsumexp_backward", lib=_LIBRARY)
def _(
    info: Any,
    in_dims: Any,
    grad: _Tensor,
    a: _Tensor,
    maximum: _Tensor,
    total: _Tensor,
    dim: Sequence[int],
    lse: str,
) -> tuple[Any, Any]:
    given = _batched(info.batch_size, in_dims, (grad, a, maximum, total))
    return _op_backward(*given, [d + 1 for d in dim], lse), 0


class _Forward(torch.autograd.Function):
    """pfkit::logsumexp under torch.func, which the registered operator's autograd does not know."""

    @staticmethod
    def forward(a: _Tensor, dim: Sequence[int], lse: str, dtype: torch.dtype | None) -> Any:
        return _op(a, dim, lse, dtype)

    setup_context = staticmethod(_save_forward)

    @staticmethod
    def backward(ctx: Any, grad: _Tensor | None, *_: Any) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None, None
        a, maximum, total = ctx.saved_tensors
        return _Backward.apply(grad, a, maximum, total, ctx.dim, _has_state(ctx.lse)), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: _Tensor, *_: Any) -> tuple[Any, ...]:
        a, maximum, total = ctx.saved_tensors
        ones = torch.ones_like(maximum, dtype=a.dtype)
        w = _Backward.apply(ones, a, maximum, total, ctx.dim, _has_state(ctx.lse))
        return (w * tangent).sum(tuple(ctx.dim), keepdim=True).to(ctx.value_dtype), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, a: _Tensor, dim: Sequence[int], lse: str, dtype: Any
    ) -> tuple[Any, Any]:
        return _Forward.apply(a.movedim(in_dims[0], 0), [d + 1 for d in dim], lse, dtype), (0, 0, 0)


class _Backward(torch.autograd.Function):
    """pfkit::logsumexp_backward under torch.func's transforms."""

    @staticmethod
    def forward(
        grad: _Tensor, a: _Tensor, maximum: _Tensor, total: _Tensor, dim: Sequence[int], lse: str
    ) -> _Tensor:
        return _op_backward(grad, a, maximum, total, dim, lse)

    setup_context = staticmethod(_save_backward)

    @staticmethod
    def backward(ctx: Any, outer: _Tensor) -> tuple[Any, ...]:
        return _backward_gradient(ctx, outer, _Backward.apply)

    @staticmethod
    def jvp(ctx: Any, grad_tangent: _Tensor | None, tangent: _Tensor | None, *_: Any) -> _Tensor:
        grad, a, maximum, total = ctx.saved_tensors
        w = _Backward.apply(torch.ones_like(grad), a, maximum, total, ctx.dim, ctx.lse)
        change = torch.zeros_like(w) if grad_tangent is None else grad_tangent.to(w.dtype) * w
        if tangent is not None:
            mean = (w * tangent).sum(tuple(ctx.dim), keepdim=True)
            change = change + grad.to(w.dtype) * w * (tangent - mean)
        return change

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        *tensors, dim, lse = arguments
        given = _batched(info.batch_size, in_dims, tensors)
        return _Backward.apply(*given, [d + 1 for d in dim], lse), 0


# --- the function ---


def _composite(a: _Tensor, dims: tuple[int, ...], keepdim: bool) -> _Tensor:
    """log-sum-exp from torch's own operations: for complex tensors, and the baseline."""
    if a.dim() == 0:
        a = a.reshape(1)
        return _composite(a, (0,), False)
    if not a.numel():
        shape = [1 if d in dims else size for d, size in enumerate(a.shape) if keepdim or d not in dims]
        return torch.full(shape, -math.inf, dtype=a.dtype, device=a.device)
    real = a.real if a.is_complex() else a
    m = real.detach().amax(dims, keepdim=True)
    m = torch.where(torch.isfinite(m), m, 0)
    total = torch.exp(a - m).sum(dims, keepdim=True)
    some = total != 0  # a row without mass has gradient 0
    value = torch.where(some, torch.log(torch.where(some, total, 1)) + m, -math.inf)
    return value if keepdim else value.squeeze(dims)


def _transformed() -> bool:
    """Whether a torch.func transform or forward-mode differentiation is under way in this thread."""
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def logsumexp_tensor(
    a: _Tensor,
    dim: Any = None,
    keepdim: bool = False,
    lse: str = "fuse",
    out: _Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> _Tensor:
    """log-sum-exp of a tensor over `dim`, nats; :func:`pfkit.logsumexp` for tensors.

    Parameters
    ----------
    a : torch.Tensor
        Any shape and strides, on the CPU or a CUDA device. Integers and booleans become the default dtype.
    dim : None, int or tuple of ints
        Dimensions to reduce; None and () reduce all.
    keepdim : bool
    lse : str
        Kernel; :func:`pfkit.explain` says what it runs.
    out : torch.Tensor, optional
        Where to put the value; needs no gradient and has the result's shape. Returned.
    dtype : torch.dtype, optional
        Dtype of the value; default `a`'s. ``torch.float32`` keeps the full precision for 16-bit input.

    Returns
    -------
    torch.Tensor
        Twice differentiable. -inf where there is nothing to sum.

    Raises
    ------
    CudaUnavailable
        For a CUDA tensor, where kernels cannot be compiled; the message says what is missing.
    ValueError, TypeError, IndexError
        For an unknown kernel, a dimension that does not fit, an `out` of another shape.

    Notes
    -----
    Error bound: that of the kernel, plus one rounding (16-bit results: float32, then once more).
    """
    if torch.compiler.is_compiling():
        return _general(a, dim, keepdim, lse, out, dtype)
    if (
        type(a) is _Tensor
        and a.is_cuda
        and out is None
        and not (a.requires_grad and _grad_enabled())
        and not (_dispatch_modes() or _function_modes() or _autocast())
        and _transform() is None
        and forward_ad._current_level < 0
    ):
        index, source = a.get_device(), a.data_ptr()
        key = (a.shape, a.stride(), dim, keepdim, lse, a.dtype, dtype, index, source & 15)
        try:
            ready = _fast.get(key)
        except TypeError:  # a list of dimensions
            ready = None
        if ready is None:
            ready = _prepare(key, a, dim, keepdim, lse, dtype)
        if ready is not None and index == _current_device():
            launches, new = ready
            value = new()
            if launches.workspace:
                space = torch.empty(launches.workspace, dtype=torch.uint8, device=value.device)
                launches(source, value.data_ptr(), 0, 0, space.data_ptr())
            elif launches.steps[0](_raw_stream(index), source, value.data_ptr()):
                launches(source, value.data_ptr())  # again: make a context current, or name the error
            return value
    return _general(a, dim, keepdim, lse, out, dtype)


# Whether a call may go straight to a launch: no gradient, mode, transform or autocast sees it. Looked up once
_grad_enabled = torch.is_grad_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transform = torch._C._functorch.peek_interpreter_stack
_autocast: Any = torch.is_autocast_enabled  # without an argument: on CUDA
_fast: dict[Any, Any] = {}
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
# The shortest way to a tensor of torch's allocator, which compiled code of torch takes too
_empty_on_current: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


def _prepare(key: Any, a: _Tensor, dim: Any, keepdim: bool, lse: str, dtype: torch.dtype | None) -> Any:
    """What the direct path needs for calls like this one, or None if they take the general path."""
    check_name(lse, _NAMES)
    if a.dtype not in _NUMBER or lse in BASELINES or not a.numel() or a.dim() == 0:
        return None
    dims = reduced_dims(dim, a.dim())
    layout = cuda_plan.layout(tuple(a.shape), a.stride(), dims)
    if not layout.fits:
        return None
    if lse == "fuse16" and a.element_size() != 2:
        return None
    shape = tuple(1 if d in dims else size for d, size in enumerate(a.shape) if keepdim or d not in dims)
    value_dtype = dtype or a.dtype
    like = torch.empty(shape, dtype=value_dtype, device=a.device)
    if _empty_on_current is None:
        new = partial(torch.empty_like, like)
    else:
        new = partial(_empty_on_current, tuple(shape), like.stride(), value_dtype)
    ready = (_plan(a, dims, lse, value_dtype), new)
    if len(_fast) > 4096:
        _fast.clear()
    with contextlib.suppress(TypeError):
        _fast[key] = ready
    return ready


def _general(
    a: _Tensor, dim: Any, keepdim: bool, lse: str, out: _Tensor | None, dtype: torch.dtype | None
) -> _Tensor:
    check_name(lse, _NAMES)
    dims = reduced_dims(dim, a.dim())
    if dtype is None and a.is_floating_point() and torch.is_autocast_enabled(a.device.type):
        dtype = _compute(a.dtype)
    if out is not None:
        return _into(out, _general(a, dim, keepdim, lse, None, dtype))
    if not a.is_floating_point() and not a.is_complex():
        a = a.to(torch.get_default_dtype())
    if (
        a.is_complex()
        or lse == "torch"
        or (forward_ad._current_level >= 0 and forward_ad.unpack_dual(a).tangent is not None)
    ):
        value = _composite(a, dims, keepdim)
        return value if dtype is None else value.to(dtype)
    if lse in BASELINES:
        return _numpy_baseline(a, dims, keepdim, lse, dtype)
    scalar = a.dim() == 0
    if scalar:
        a = a.reshape(1)
    if a.is_cuda:
        a = _fits(a, dims)
    transforms = not torch.compiler.is_compiling() and _transformed()
    value = (_Forward.apply(a, dims, lse, dtype) if transforms else _op(a, dims, lse, dtype))[0]
    if scalar:
        return value.reshape(())
    return value if keepdim else value.squeeze(dims)


def _numpy_baseline(
    a: _Tensor, dims: tuple[int, ...], keepdim: bool, lse: str, dtype: torch.dtype | None
) -> _Tensor:
    from .api import logsumexp

    if a.device.type != "cpu" or (a.requires_grad and torch.is_grad_enabled()):
        raise ValueError(
            f"lse={lse!r} takes CPU tensors without gradient; accepted here: {', '.join(COMPILED)}, torch"
        )
    x = a.detach().to(_compute(a.dtype))
    value = torch.as_tensor(
        np.asarray(logsumexp(x.reshape(x.shape or (1,)).numpy(), axis=dims, keepdims=keepdim, lse=lse))
    )
    return value.to(dtype or a.dtype).reshape(() if a.dim() == 0 else value.shape)


def _into(out: _Tensor, value: _Tensor) -> _Tensor:
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out must be a tensor for tensor input, got {type(out).__name__}")
    if torch.is_grad_enabled() and (value.requires_grad or out.requires_grad):
        raise ValueError(
            "out= cannot take part in a gradient; leave it out, or wrap the call in torch.no_grad()"
        )
    if out.shape != value.shape:
        raise ValueError(f"out has shape {tuple(out.shape)}, the result has {tuple(value.shape)}")
    return out.copy_(value)


# --- serving torch.logsumexp ---


@contextlib.contextmanager
def override_torch(*, lse: str = "fuse", devices: Sequence[str] = ("cpu", "cuda")) -> Iterator[None]:
    """Within this context, ``torch.logsumexp`` (and ``Tensor.logsumexp``) runs pfkit's kernels, gradient
    included.

    Parameters
    ----------
    lse : str
        Kernel.
    devices : sequence of {"cpu", "cuda"}
        Whose tensors to serve.

    Raises
    ------
    ValueError
        For an unknown kernel or device.

    Notes
    -----
    The registration is global to the process, all threads included; leaving the context takes it back. Code
    that ``torch.compile`` traced keeps what it traced. What pfkit does not compute (complex tensors) goes
    through torch's own operations.

    Examples
    --------
    >>> import torch, pfkit
    >>> x = torch.full((2,), -torch.inf, requires_grad=True)
    >>> with pfkit.override_torch():
    ...     torch.logsumexp(x, 0).backward()
    >>> x.grad                                  # torch's own formula gives NaN
    tensor([0., 0.])
    """
    check_name(lse, COMPILED)
    keys = {"cpu": ("CPU", "AutogradCPU"), "cuda": ("CUDA", "AutogradCUDA")}
    if unknown := [d for d in devices if d not in keys]:
        raise ValueError(f"unknown devices {unknown}; accepted: cpu, cuda")

    def served(a: _Tensor, dim: Sequence[int], keepdim: bool = False) -> _Tensor:
        if _transformed():  # below the transform's own level, where only torch's operations are known
            return _composite(a, reduced_dims(dim, a.dim()), keepdim)
        return _general(a, tuple(dim), keepdim, lse, None, None)

    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    try:
        for device in devices:
            for key in keys[device]:
                library.impl("logsumexp", served, key, allow_override=True)
        yield
    finally:
        library._destroy()
