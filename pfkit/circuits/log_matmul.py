"""log(W exp(x)) for a stack of matrices, and its derivative: the arithmetic of a sum layer.

    y[r, i, b] = log sum_j W[r, i, j] exp(x[r, j, b])

is computed as ``log(W s) + m`` with ``m[r, b] = max_j x[r, j, b]`` and ``s = exp(x - m)``: one maximum, one
exponential an input, one matrix product, one logarithm an output.

A unit whose every term lies far below ``m`` would underflow there (87 nats in float32): such units are
computed again from ``log W + x`` in the log domain, so that only what has probability zero is -inf.
"""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """s = exp(x - m) and m (R, 1, B); an all -inf column has m = 0 and s = 0, so that no inf - inf arises."""
    m = x.amax(dim=1, keepdim=True)
    m = torch.where(m == -math.inf, torch.zeros_like(m), m)
    return torch.exp(x - m), m


def _underflown(
    total: Tensor, weight: Tensor, x: Tensor, flag: Tensor | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Indices (r, i, b) of the units that are too small to be right, though not zero."""
    info = torch.finfo(total.dtype)
    small = total < weight.shape[2] * info.tiny / info.eps
    if flag is not None:
        flag.logical_or_(small.any())
        return None
    if not bool(small.any()):
        return None
    terms = torch.matmul((weight > 0).to(x.dtype), (x > -math.inf).to(x.dtype))  # how many are not zero
    where = torch.nonzero(small & (terms > 0), as_tuple=True)
    return where if where[0].numel() else None  # type: ignore[return-value]


def log_matmul(weight: Tensor, x: Tensor, *, flag: Tensor | None = None) -> Tensor:
    """Forward only. weight (R, I, J) non-negative, x (R, J, B) log values; the result (R, I, B).

    With `flag`, a bool tensor of one element, small units are not computed again: the flag is set where any
    unit is small or zero, and nothing waits for the device.
    """
    s, m = _scaled(x)
    total = torch.matmul(weight, s)
    y = torch.log(total) + m
    if (where := _underflown(total, weight, x, flag)) is not None:
        r, i, b = where
        y[r, i, b] = torch.logsumexp(torch.log(weight[r, i]) + x[r, :, b], dim=1)
    return y


def log_matmul_backward(
    weight: Tensor, x: Tensor, grad: Tensor, *, flow: bool = False, flag: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Derivatives of :func:`log_matmul`.

    Parameters
    ----------
    weight, x : Tensor
        As in the forward.
    grad : Tensor, (R, I, B)
        Derivative with respect to y.
    flow : bool
        Return ``weight * derivative`` in the place of the weight's derivative: with `grad` a flow, the
        expected counts of expectation maximisation. It does not overflow where the derivative would.
    flag : Tensor, optional
        As in the forward.

    Returns
    -------
    Tensor, (R, J, B)
        Derivative with respect to x; 0 where x is -inf.
    Tensor, (R, I, J)
        Derivative with respect to weight, summed over the batch (or the flow).
    """
    s, _ = _scaled(x)
    total = torch.matmul(weight, s)
    where = _underflown(total, weight, x, flag)
    ratio = torch.where(total > 0, grad / total, torch.zeros_like(grad))
    if where is not None:
        ratio[where] = 0.0
    grad_x = s * torch.matmul(weight.transpose(1, 2), ratio)
    grad_w = torch.matmul(ratio, s.transpose(1, 2))
    if flow:
        grad_w = grad_w * weight
    if where is not None:
        r, i, b = where
        w, inside = weight[r, i], x[r, :, b]  # (n, J)
        terms = torch.log(w) + inside
        y = torch.logsumexp(terms, dim=1, keepdim=True)
        share = torch.exp(terms - y) * grad[where][:, None]
        grad_x = grad_x.transpose(1, 2).index_put((r, b), share, accumulate=True).transpose(1, 2)
        part = share if flow else torch.exp(inside - y) * grad[where][:, None]
        grad_w = grad_w.index_put((r, i), part, accumulate=True)
    return grad_x, grad_w


class LogMatmul(torch.autograd.Function):
    """:func:`log_matmul` for autograd, first derivatives."""

    @staticmethod
    def forward(ctx, weight: Tensor, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        ctx.save_for_backward(weight, x)
        return log_matmul(weight, x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def, override]
        weight, x = ctx.saved_tensors
        grad_x, grad_w = log_matmul_backward(weight, x, grad)
        return grad_w, grad_x
