"""The operators behind :func:`pfkit.token_log_probs`: ``pfkit::token_log_probs`` and its gradient.

``pfkit::token_log_probs`` gives log-probabilities (..., K), entropy and log-sum-exp (...), the last two of
size 0 unless asked for, and the state (..., 3) the gradient recomputes the probabilities from. The gradient
of all three goes into one tensor, written once. Second derivatives come from torch's own operations.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch

from pfkit.lse import cuda, cuda_plan, torch_op

from . import token_cpu, token_plan
from .token_terms import Terms

_Tensor = torch.Tensor
_plans: dict[Any, Any] = {}
_INTEGER = ("int", "int-pairwise", "int16")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the results are in: float64 for float64 logits, float32 for the rest."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def empty_parts(logits: _Tensor, tokens: _Tensor, terms: Terms) -> tuple[_Tensor, ...]:
    """The four results, not filled in."""
    lead, dtype, device = logits.shape[:-1], compute_dtype(logits.dtype), logits.device

    def empty(*shape: int) -> _Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return (
        empty(*tokens.shape),
        empty(*(lead if terms.entropy else (0,))),
        empty(*(lead if terms.lse else (0,))),
        empty(*lead, 3),
    )


# --- forward ---


def _forward_cpu(logits: _Tensor, tokens: _Tensor, terms: Terms) -> tuple[_Tensor, ...]:
    lead, dtype = logits.shape[:-1], compute_dtype(logits.dtype)
    if not math.prod(lead):
        return empty_parts(logits, tokens, terms)
    found = token_cpu.forward(logits, tokens, terms)
    shapes = (tokens.shape, lead if terms.entropy else None, lead if terms.lse else None, (*lead, 3))
    return tuple(
        torch.empty(0, dtype=dtype) if shape is None else torch.from_numpy(x).to(dtype).reshape(shape)
        for x, shape in zip(found, shapes, strict=True)
    )


def _layout(logits: _Tensor) -> cuda_plan.Layout:
    return cuda_plan.layout(tuple(logits.shape), logits.stride(), (logits.dim() - 1,))


def _rows(logits: _Tensor) -> _Tensor:
    """`logits` with the vocabulary contiguous and strides a kernel can follow: copied only if need be."""
    if logits.stride(-1) == 1 and logits.dim() <= cuda_plan.DIMS + 1:
        return logits
    shape = _layout(logits)
    return logits if shape.contiguous and shape.fits else logits.contiguous()


def _launches(key: Any, logits: _Tensor, make: Any) -> Any:
    """The plan that `make` makes of the layout and the device, ready to be launched, once for each key."""
    found = _plans.get(key)
    if found is None:
        if len(_plans) > 4096:  # callers with ever-changing shapes
            _plans.clear()
        index = logits.get_device()
        found = _plans[key] = torch_op._Launches(make(_layout(logits), cuda.device(index)), index)
    return found


def _on(index: int) -> Any:
    """A context in which CUDA device `index` is current."""
    return contextlib.nullcontext() if index == torch_op._current_device() else torch.cuda.device(index)


def _pointer(x: _Tensor | None) -> int:
    return 0 if x is None or not x.numel() else x.data_ptr()


def _forward_cuda(logits: _Tensor, tokens: _Tensor, terms: Terms) -> tuple[_Tensor, ...]:
    if terms.kernel in _INTEGER:
        return _forward_integer(logits, tokens, terms)
    parts = empty_parts(logits, tokens, terms)
    if parts[3].numel():
        logits, tokens = _rows(logits), tokens.contiguous()
        launches = _forward_plan(logits, tokens.shape[-1], terms)
        with _on(launches.index):
            _launch(launches, logits, tokens, parts)
    return parts


def _forward_plan(logits: _Tensor, k: int, terms: Terms) -> Any:
    temperature, entropy, _, ignore, _ = terms
    number, aligned = torch_op._NUMBER[logits.dtype], not logits.data_ptr() & 15
    index = logits.get_device()
    return _launches(
        (logits.shape, logits.stride(), number, index, aligned, k, temperature, ignore, entropy),
        logits,
        lambda shape, device: token_plan.forward(
            shape, number, tokens=k, temperature=temperature, ignore=ignore, entropy=entropy, aligned=aligned,
            multiprocessors=device.multiprocessors, clusters=device.capability >= (9, 0),
        ),
    )  # fmt: skip


def _launch(launches: Any, logits: _Tensor, tokens: _Tensor, parts: Sequence[_Tensor | None]) -> None:
    space = None
    if launches.workspace:
        space = torch.empty(launches.workspace, dtype=torch.uint8, device=logits.device)
    launches(logits.data_ptr(), *map(_pointer, parts), _pointer(space), _pointer(tokens))


def _forward_integer(logits: _Tensor, tokens: _Tensor, terms: Terms) -> tuple[_Tensor, ...]:
    """The integer kernels give the log-sum-exp; the tokens' logits are gathered, and the entropy, if asked
    for, comes from the float kernel."""
    temperature, entropy, _, ignore, kernel = terms
    parts = empty_parts(logits, tokens, terms)
    if not parts[3].numel():
        return parts
    n, count, last = logits.shape[-1], math.prod(logits.shape[:-1]), logits.dim() - 1
    x = logits
    offset = None
    if temperature != 1:  # a scaled copy: the kernels know no temperature
        offset = logits.amax(-1, keepdim=True).to(parts[3].dtype)
        x = (logits - torch.where(torch.isfinite(offset), offset, 0)) / temperature
    value, m, s = torch_op._op_cuda(torch_op._fits(x, (last,)), (last,), kernel, torch.float64)
    value, m, s = value.reshape(count), m.reshape(count).double(), s.reshape(count)
    finite = torch.isfinite(m)
    m = torch.where(finite, m, 0)
    log_s = torch.where(finite, torch.log(s) if kernel == "int" else value - m, 0)
    state = torch.zeros(count, 3, dtype=torch.float64, device=logits.device)
    state[:, 1] = torch.where(finite, torch.exp(log_s), s)
    state[:, 0] = m if offset is None else torch.where(finite, offset.reshape(count).double(), 0)
    ids = tokens.reshape(count, tokens.shape[-1])
    if entropy:  # e / s is what the entropy needs, whatever s is
        exact = (
            _forward_cuda(logits, tokens, terms._replace(entropy=True, lse=False, kernel="fuse"))[3]
            .reshape(count, 3)
            .double()
        )
        unit = 1.0 if logits.dtype == torch.float64 else math.log(2.0)
        state[:, 2] = exact[:, 2] / torch.where(exact[:, 1] == 0, 1, exact[:, 1]) * state[:, 1] * unit
    picked = logits.gather(-1, tokens.clamp(0, n - 1)).reshape(ids.shape).double()
    found = token_cpu.finish(torch, picked, ids, state, log_s, n, terms)
    state[:, 2] /= 1.0 if logits.dtype == torch.float64 else math.log(2.0)  # octaves, as the kernels have it
    for part, value in zip(parts, (*found, state), strict=True):
        if part.numel():
            part.copy_(value.reshape(part.shape))
    return parts


# --- backward ---


def _backward_cpu(
    log_probs: _Tensor | None, entropy: _Tensor | None, lse: _Tensor | None, logits: _Tensor, tokens: _Tensor,
    state: _Tensor, temperature: float, ignore: int | None,
) -> _Tensor:  # fmt: skip
    if not logits.numel():
        return torch.empty(logits.shape, dtype=logits.dtype)
    return token_cpu.backward((log_probs, entropy, lse), logits, tokens, state, temperature, ignore)


def _backward_cuda(
    log_probs: _Tensor | None, entropy: _Tensor | None, lse: _Tensor | None, logits: _Tensor, tokens: _Tensor,
    state: _Tensor, temperature: float, ignore: int | None,
) -> _Tensor:  # fmt: skip
    out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if not out.numel():
        return out
    logits, tokens, state = _rows(logits), tokens.contiguous(), state.contiguous()
    number, k, moment = torch_op._NUMBER[logits.dtype], tokens.shape[-1], entropy is not None
    index, aligned = logits.get_device(), not logits.data_ptr() & 15
    launches = _launches(
        ("gradient", logits.shape, logits.stride(), number, index, aligned, k, temperature, ignore, moment),
        logits,
        lambda shape, device: token_plan.backward(
            shape, number, tokens=k, temperature=temperature, ignore=ignore, entropy=moment, aligned=aligned
        ),
    )  # fmt: skip
    with _on(launches.index):
        given = [None if g is None else g.to(state.dtype).contiguous() for g in (log_probs, entropy, lse)]
        launches(
            logits.data_ptr(), *map(_pointer, given), state.data_ptr(), 0, _pointer(tokens), out.data_ptr()
        )
    return out


def _backward_composite(
    log_probs: _Tensor | None, entropy: _Tensor | None, lse: _Tensor | None, logits: _Tensor, tokens: _Tensor,
    temperature: float, ignore: int | None,
) -> _Tensor:  # fmt: skip
    """The gradient from operations torch can differentiate; for second derivatives."""
    n = logits.shape[-1]
    z = logits.to(compute_dtype(logits.dtype)) / temperature
    log_p = torch.log_softmax(z, -1)
    p = torch.exp(log_p)
    counts = torch.ones(tokens.shape, dtype=torch.bool, device=tokens.device)
    if ignore is not None:
        counts = tokens != ignore
    scored = (
        counts.any(-1, keepdim=True) if tokens.shape[-1] else torch.ones_like(z[..., :1], dtype=torch.bool)
    )
    shared = torch.zeros_like(z[..., :1])
    own = torch.zeros_like(z)
    if log_probs is not None:
        g = torch.where(counts, log_probs, 0)
        shared = shared - g.sum(-1, keepdim=True)
        own = own.scatter_add(-1, tokens.clamp(0, n - 1), g)
    if lse is not None:
        shared = shared + lse[..., None]
    dz = p * shared + own
    if entropy is not None:
        log_p = torch.where(p > 0, log_p, 0)
        dz = dz - entropy[..., None] * p * (log_p - (p * log_p).sum(-1, keepdim=True))
    return torch.where(scored, dz / temperature, 0).to(logits.dtype)


def _composite(logits: _Tensor, tokens: _Tensor, terms: Terms) -> tuple[_Tensor, ...]:
    """The results, no state, from operations that every transform of torch knows. Ids are not checked."""
    n, temperature, ignore = logits.shape[-1], terms.temperature, terms.ignore
    x = logits.to(compute_dtype(logits.dtype))
    top = x.detach().amax(-1, keepdim=True)
    mass = top != -math.inf
    top = torch.where(mass, top, 0)
    z = torch.where(mass, (x - top) / temperature, 0)
    log_p = torch.log_softmax(z, -1)
    log_probs = torch.where(mass, log_p.gather(-1, tokens.clamp(0, n - 1)), -math.inf)
    log_probs = torch.where((tokens >= 0) & (tokens < n), log_probs, math.nan)
    some = torch.where(log_p == -math.inf, 0, log_p)
    h = torch.where(mass[..., 0], -(torch.exp(log_p) * some).sum(-1), 0)
    value = torch.where(mass[..., 0], top[..., 0] / temperature + torch.logsumexp(z, -1), -math.inf)
    if ignore is not None and tokens.shape[-1]:
        passed = tokens == ignore
        log_probs = torch.where(passed, 0, log_probs)
        nothing = passed.all(-1)
        h, value = torch.where(nothing, 0, h), torch.where(nothing, 0, value)
    return log_probs, h, value, z


# --- registration ---

_LIBRARY = torch.library.Library("pfkit", "FRAGMENT")
_LIBRARY.define(
    "token_log_probs(Tensor logits, Tensor tokens, float temperature, bool entropy, bool lse, int? ignore,"
    " str kernel) -> (Tensor log_probs, Tensor entropy, Tensor lse, Tensor state)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "token_log_probs_backward(Tensor? log_probs, Tensor? entropy, Tensor? lse, Tensor logits, Tensor tokens,"
    " Tensor state, float temperature, int? ignore) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.impl(
    "token_log_probs", lambda logits, tokens, *rest: _forward_cpu(logits, tokens, Terms(*rest)), "CPU"
)
_LIBRARY.impl(
    "token_log_probs", lambda logits, tokens, *rest: _forward_cuda(logits, tokens, Terms(*rest)), "CUDA"
)
_LIBRARY.impl("token_log_probs_backward", _backward_cpu, "CPU")
_LIBRARY.impl("token_log_probs_backward", _backward_cuda, "CUDA")
op = torch.ops.pfkit.token_log_probs.default
_op_backward = torch.ops.pfkit.token_log_probs_backward.default


@torch.library.register_fake("pfkit::token_log_probs", lib=_LIBRARY)
def _(logits: _Tensor, tokens: _Tensor, *rest: Any) -> tuple[_Tensor, ...]:
    return empty_parts(logits, tokens, Terms(*rest))


@torch.library.register_fake("pfkit::token_log_probs_backward", lib=_LIBRARY)
def _(
    log_probs: _Tensor | None, entropy: _Tensor | None, lse: _Tensor | None, logits: _Tensor, tokens: _Tensor,
    state: _Tensor, temperature: float, ignore: int | None,
) -> _Tensor:  # fmt: skip
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[_Tensor, ...]) -> None:
    logits, tokens, *rest = inputs
    ctx.terms = Terms(*rest)
    ctx.mark_non_differentiable(output[3])
    ctx.save_for_backward(logits, tokens, output[3])
    ctx.set_materialize_grads(False)


def _forward_gradient(
    ctx: Any,
    log_probs: _Tensor | None,
    entropy: _Tensor | None,
    lse: _Tensor | None,
    _: Any,
) -> tuple[Any, ...]:
    logits, tokens, state = ctx.saved_tensors
    terms: Terms = ctx.terms
    entropy, lse = entropy if terms.entropy else None, lse if terms.lse else None
    if log_probs is None and entropy is None and lse is None:
        return (None,) * 7
    grad = _op_backward(log_probs, entropy, lse, logits, tokens, state, terms.temperature, terms.ignore)
    return grad, *[None] * 6


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: _Tensor) -> None:
    log_probs, entropy, lse, logits, tokens, _, ctx.temperature, ctx.ignore = inputs
    ctx.save_for_backward(log_probs, entropy, lse, logits, tokens)


def _backward_gradient(ctx: Any, outer: _Tensor) -> tuple[Any, ...]:
    *given, tokens = ctx.saved_tensors
    with torch.enable_grad():
        parts: list[Any] = [None if x is None else x.detach().requires_grad_() for x in given]
        log_probs, entropy, lse, logits = parts
        grad = _backward_composite(log_probs, entropy, lse, logits, tokens, ctx.temperature, ctx.ignore)
        known = [x for x in parts if x is not None]
        found = iter(torch.autograd.grad(grad, known, outer, allow_unused=True))
    return *[None if x is None else next(found) for x in parts], None, None, None, None


torch.library.register_autograd(
    "pfkit::token_log_probs", _forward_gradient, setup_context=_save_forward, lib=_LIBRARY
)
torch.library.register_autograd(
    "pfkit::token_log_probs_backward", _backward_gradient, setup_context=_save_backward, lib=_LIBRARY
)


# --- without the dispatcher ---


class _Scores(torch.autograd.Function):
    """The operator for eager tensors that need a gradient: the same functions, called at once."""

    @staticmethod
    def forward(ctx: Any, logits: _Tensor, tokens: _Tensor, terms: Terms) -> tuple[_Tensor | None, ...]:
        output = (_forward_cuda if logits.is_cuda else _forward_cpu)(logits, tokens, terms)
        ctx.save_for_backward(logits, tokens, output[3])
        ctx.terms = terms
        ctx.set_materialize_grads(False)
        return output[0], output[1] if terms.entropy else None, output[2] if terms.lse else None, None

    @staticmethod
    def backward(ctx: Any, *grads: _Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # create_graph: the gradient has one itself
            return _forward_gradient(ctx, *grads)[:3]
        logits, tokens, state = ctx.saved_tensors
        log_probs, entropy, lse = grads[:3]
        backward = _backward_cuda if logits.is_cuda else _backward_cpu
        terms: Terms = ctx.terms
        grad = backward(log_probs, entropy, lse, logits, tokens, state, terms.temperature, terms.ignore)
        return grad, None, None


def direct(logits: _Tensor, tokens: _Tensor, terms: Terms) -> Sequence[_Tensor]:
    """The operator; without torch's dispatcher where nothing needs it, from torch's own operations under
    torch.func's transforms and in forward mode."""
    if torch.compiler.is_compiling():
        return op(logits, tokens, *terms)  # type: ignore[no-any-return]
    if torch_op._transformed():
        return _composite(logits, tokens, terms)
    if (
        type(logits) in (_Tensor, torch.nn.Parameter)
        and type(tokens) is _Tensor
        and (logits.is_cuda or logits.is_cpu)
        and not (torch_op._dispatch_modes() or torch_op._function_modes())
    ):
        if logits.requires_grad and torch.is_grad_enabled():
            return _Scores.apply(logits, tokens, terms)  # type: ignore[no-any-return]
        return (_forward_cuda if logits.is_cuda else _forward_cpu)(logits, tokens, terms)
    return op(logits, tokens, *terms)  # type: ignore[no-any-return]


class Ready:
    """A call like one before it: CUDA tensors of the same shapes, strides and options, no gradient. What is
    left to do is to allocate the results and launch."""

    __slots__ = ("launches", "index", "shapes", "kind")

    def __init__(self, launches: Any, shapes: Sequence[Any], kind: dict[str, Any]) -> None:
        self.launches, self.index, self.shapes, self.kind = launches, launches.index, shapes, kind

    def __call__(self, logits: _Tensor, tokens: _Tensor) -> _Tensor | tuple[_Tensor, ...]:
        parts = [None if shape is None else torch.empty(shape, **self.kind) for shape in self.shapes]
        _launch(self.launches, logits, tokens, (*parts, None))
        found = tuple(x for x in parts if x is not None)
        return found if len(found) > 1 else found[0]


_ready: dict[Any, Ready] = {}


def plain(logits: _Tensor, tokens: _Tensor) -> bool:
    """Whether a call with these may go straight to a launch: no gradient, mode, transform or subclass."""
    return (
        type(logits) is _Tensor
        and type(tokens) is _Tensor
        and logits.is_cuda
        and not (logits.requires_grad and torch.is_grad_enabled())
        and not (torch_op._dispatch_modes() or torch_op._function_modes())
        and not torch_op._transformed()
    )


def call_key(logits: _Tensor, tokens: _Tensor, *options: Any) -> Any:
    """What two calls must share for the second to be ready once the first was made."""
    return (
        logits.shape, logits.stride(), logits.dtype, logits.get_device(), logits.data_ptr() & 15,
        tokens.shape, tokens.stride(), tokens.dtype, tokens.get_device(), *options,
    )  # fmt: skip


def find_ready(key: Any) -> Ready | None:
    """The call made ready under `key`, if it can be made now."""
    try:
        found = _ready.get(key)
    except TypeError:  # options that cannot be a key: the checks will name them
        return None
    return found if found is not None and found.index == torch_op._current_device() else None


def make_ready(key: Any, logits: _Tensor, tokens: _Tensor, terms: Terms) -> None:
    """Remember a call whose arguments have been checked, if it can be repeated without a copy."""
    if (
        _rows(logits) is not logits
        or not logits.numel()
        or tokens.dtype != torch.int64
        or not tokens.is_contiguous()
    ):
        return
    k = tokens.shape[-1] if tokens.dim() == logits.dim() else 1
    launches = _forward_plan(logits, k, terms)
    lead, kind = logits.shape[:-1], {"dtype": compute_dtype(logits.dtype), "device": logits.device}
    if len(_ready) > 4096:
        _ready.clear()
    _ready[key] = Ready(
        launches, (tokens.shape, lead if terms.entropy else None, lead if terms.lse else None), kind
    )
