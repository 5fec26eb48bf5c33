"""Linear cross-entropy by torch's own operations and pfkit's log-sum-exp states, chunk by chunk: the path of
CPU tensors and of float64, and what the CUDA path is tested against.
"""

from __future__ import annotations

from typing import Any

import torch

from ..lse.tensor_state import TensorLSEState
from .linear_plan import Plan, padded
from .linear_terms import Terms

_Tensor = torch.Tensor


def _product(hidden: _Tensor, weight: _Tensor, logits_dtype: torch.dtype | None) -> _Tensor:
    """hidden @ weight.T in the logits' type, from sums in at least float32."""
    if logits_dtype is not None and logits_dtype != hidden.dtype:
        return hidden.to(logits_dtype) @ weight.to(logits_dtype).t()
    return hidden @ weight.t()


def _shape(product: _Tensor, bias: _Tensor | None, first: int, terms: Terms) -> _Tensor:
    part = None if bias is None else bias[first : first + product.shape[1]]
    x = product if part is None else product + part
    if terms.cap > 0:
        capped = terms.cap * torch.tanh(x / terms.cap)
        x = capped if part is None else torch.where(part == -torch.inf, x, capped)  # closed columns stay so
    return x * terms.scale if terms.scale != 1 else x


def _check(targets: _Tensor, terms: Terms) -> None:
    live = targets != terms.ignore_index
    bad = targets[live & ((targets < 0) | (targets >= terms.vocabulary))]
    if bad.numel():
        raise ValueError(
            f"target {int(bad[0])} is out of range for a vocabulary of {terms.vocabulary} "
            f"(ignore_index is {terms.ignore_index})"
        )


def forward_composite(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, terms: Terms, plan: Plan,
    out: Any,
) -> None:  # fmt: skip
    """Fill `out` (a Loss)."""
    if not hidden.is_cuda:
        _check(targets, terms)
    rows, compute = hidden.shape[0], out.loss.dtype
    state = TensorLSEState.empty((rows,), "fuse", dtype=compute, device=hidden.device)
    picked = torch.full((rows,), torch.nan, dtype=compute, device=hidden.device)
    mean = torch.zeros(rows, dtype=compute, device=hidden.device)
    at = 0
    for k, (first, n) in enumerate(plan.chunks()):
        product = _product(hidden, weight[first : first + n], out.kept.dtype)
        if k < plan.kept and out.kept.numel():
            room = out.kept[at : at + rows * padded(n)].view(rows, padded(n))
            room[:, :n], room[:, n:] = product, 0
            at += rows * padded(n)
        x = _shape(product.to(compute), bias, first, terms)
        state.update(x, 1)
        here = (targets >= first) & (targets < first + n)
        chosen = x.gather(1, (targets - first).clamp(0, n - 1)[:, None])[:, 0]
        picked = torch.where(here, chosen, picked)
        if terms.smoothing:
            mean += x.sum(1) / terms.vocabulary
    out.maximum.copy_(state.maximum)
    out.total.copy_(state.total)
    out.loss.copy_(finish(out.maximum, out.total, picked, mean, targets, terms))


def finish(
    maximum: _Tensor, total: _Tensor, picked: _Tensor, mean: _Tensor, targets: _Tensor, terms: Terms
) -> _Tensor:
    """The loss of every row. The maximum leaves first: a common offset of the logits changes nothing."""
    log_total = torch.log(total)
    loss = (maximum - picked) + log_total
    if terms.smoothing:
        e = terms.smoothing
        loss = (1 - e) * loss + e * ((maximum - mean) + log_total)
    if terms.z:
        loss = loss + terms.z * (maximum + log_total) ** 2
    return torch.where(targets == terms.ignore_index, 0, loss)


def _finite_where_ignored(hidden: _Tensor, live: _Tensor) -> _Tensor:
    """Ignored rows that hold NaN or inf made zero, in a copy if there are any: the gradient of their logits
    is 0, and 0 times NaN would be NaN in every row of the weight's gradient.
    """
    dirty = ~live & ~torch.isfinite(hidden.sum(1))
    return torch.where(dirty[:, None], 0, hidden) if dirty.any() else hidden


def backward_composite(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, bias: _Tensor | None, terms: Terms, plan: Plan,
    state: Any, needs: list[bool], grads: tuple[_Tensor, _Tensor, _Tensor],
    logits_dtype: torch.dtype | None,
) -> None:  # fmt: skip
    """Fill `grads`; state.loss holds the gradient of every row's loss."""
    rows, compute = hidden.shape[0], state.maximum.dtype
    sums = torch.zeros(hidden.shape, dtype=compute, device=hidden.device) if needs[0] else None
    live = targets != terms.ignore_index
    if needs[1] and not hidden.is_cuda:
        hidden = _finite_where_ignored(hidden, live)
    outer = torch.where(live, state.loss.to(compute), 0)
    weight_of_lse = outer
    if terms.z:
        weight_of_lse = outer * (1 + 2 * terms.z * (state.maximum + torch.log(state.total)))
    at = 0
    for k, (first, n) in enumerate(plan.chunks()):
        part = weight[first : first + n]
        if k < plan.kept and state.kept.numel():
            product = state.kept[at : at + rows * padded(n)].view(rows, padded(n))[:, :n]
            at += rows * padded(n)
        else:
            product = _product(hidden, part, logits_dtype)
        x = _shape(product.to(compute), bias, first, terms)
        p = torch.exp(x - state.maximum[:, None]) / state.total[:, None]
        g = torch.where(live[:, None], weight_of_lse[:, None] * p, 0)
        if terms.smoothing:
            g = g - outer[:, None] * (terms.smoothing / terms.vocabulary)
        here = (targets >= first) & (targets < first + n) & live
        column = (targets - first).clamp(0, n - 1)[:, None]
        g = g.scatter_add(1, column, torch.where(here, -(1 - terms.smoothing) * outer, 0)[:, None])
        if terms.cap > 0:
            slope = 1 - (x / (terms.cap * terms.scale)) ** 2
            g = torch.where(live[:, None] & (x != -torch.inf), g * slope, 0)
        if terms.scale != 1:
            g = g * terms.scale
        if needs[2]:
            grads[2][first : first + n] = g.sum(0)
        g = g.to(hidden.dtype)
        if needs[1]:
            grads[1][first : first + n] = g.t() @ hidden
        if sums is not None:
            sums += _product(g, part.t(), compute if compute != hidden.dtype else None)
    if sums is not None:
        grads[0].copy_(sums)
