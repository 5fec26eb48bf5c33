"""Matrix products on the GPU with sums in float32, through cuBLAS."""

from __future__ import annotations

import torch

_Tensor = torch.Tensor


def multiply(out: _Tensor, a: _Tensor, b: _Tensor) -> None:
    """out = a @ b; `out` may be float32 where a and b are 16-bit."""
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)


def accumulate(out: _Tensor, a: _Tensor, b: _Tensor, first: bool) -> None:
    """out += a @ b in float32, or out = a @ b the first time."""
    if first:
        multiply(out, a, b)
    elif a.dtype == torch.float32:
        torch.addmm(out, a, b, out=out)
    else:
        torch.addmm(out, a, b, out_dtype=torch.float32, out=out)
