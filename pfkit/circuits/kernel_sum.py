"""A sum layer that runs a log-sum-exp kernel: gather weights and children, reduce.

    y[r, i, b] = LSE_j (log W[r, i, j] + x[r, j, b])

On CUDA in float32 one launch does it (``executor_layer``). Otherwise the terms are written out, a chunk of
regions, outputs and columns at a time so that memory stays bounded, and reduced by ``pfkit.logsumexp``. The
16-bit kernels get terms relative to the column maximum ``max_j x[r, j, b]``, which is added back in float32.
"""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor
MAX_TERMS = 1 << 24  # of a chunk: 64 MB in float32
SIXTEEN_BIT = ("fuse16", "int16")


def kernel_sum(weight: Tensor, x: Tensor, lse: str, *, max_terms: int = MAX_TERMS) -> Tensor:
    """weight (R, I, J) non-negative, x (R, J, B) log values; the result (R, I, B), by the kernel `lse`.

    `lse` "max" takes the largest term in the place of the sum.
    """
    if x.is_cuda and x.dtype == torch.float32 and lse not in ("torch", "max"):
        from .executor_layer import layer_sum

        return layer_sum(weight, x, lse)
    regions, outputs, width = weight.shape
    batch = x.shape[2]
    log_weight = torch.log(weight)
    y = torch.empty((regions, outputs, batch), dtype=x.dtype, device=x.device)
    step_b = max(1, min(batch, max_terms // width))
    step_i = max(1, min(outputs, max_terms // (width * step_b)))
    step_r = max(1, min(regions, max_terms // (width * step_b * step_i)))
    for r in range(0, regions, step_r):
        for i in range(0, outputs, step_i):
            for b in range(0, batch, step_b):
                at = (slice(r, r + step_r), slice(i, i + step_i), slice(b, b + step_b))
                y[at] = _reduce(log_weight[at[0], at[1]], x[at[0], :, at[2]], lse)
    return y


def _reduce(log_weight: Tensor, x: Tensor, lse: str) -> Tensor:
    from ..lse import logsumexp

    if lse == "max":
        return (log_weight.unsqueeze(3) + x.unsqueeze(1)).amax(2)
    if lse in SIXTEEN_BIT:
        m = x.amax(dim=1, keepdim=True)
        m = torch.where(m == -math.inf, torch.zeros_like(m), m)
        terms = (log_weight.transpose(1, 2).unsqueeze(3) + (x - m).unsqueeze(2)).half()  # (r, J, i, b)
        return logsumexp(terms, 1, lse=lse).to(x.dtype) + m
    if x.device.type == "cpu":  # the CPU kernels read rows: the summed index last
        terms = log_weight.unsqueeze(2) + x.transpose(1, 2).unsqueeze(1)  # (r, i, b, J)
        return logsumexp(terms, 3, lse=lse)  # type: ignore[return-value]
    terms = log_weight.transpose(1, 2).unsqueeze(3) + x.unsqueeze(2)
    return logsumexp(terms, 1, lse=lse)  # type: ignore[return-value]
