"""Sum layers on CUDA with the log-sum-exp kernel inside: gather weights and children, reduce, in one launch.

    y[r, i, b] = LSE_j (log W[r, i, j] + x[r, j, b])

No term is written to memory. Every term is taken relative to the largest x of its column and the largest
weight of its row, both kept in float32, so 16-bit terms lose nothing to a common offset.

==============  ==================================================================  =======================
lse             how terms are added                                                 error of y - max, nats
==============  ==================================================================  =======================
"fuse"          2^t in float32                                                      6e-7 + 2**-24 J
"int"           integer weights of pfkit's integer kernel, 64-bit sums              that kernel's
"int-pairwise"  distances in Q16.16 octaves, pairwise, a table of eight segments    0.0039 (3 + J / 8)
"fuse16"        float16 terms and exponentials, float32 sums                        about 2**-10 times the
                                                                                    octaves below the max
"int16"         trees of eight Q10.6 distances, joined in Q16.16                    0.0054 * 6 + 0.0039 J/8
==============  ==================================================================  =======================

For pairs the bound is a worst case that data do not reach: a smaller operand's error counts by its share.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import torch

from pfkit.lse.cuda import CudaError, DeviceKernel, describe, device

Tensor = torch.Tensor

MODES = {"fuse": 0, "int": 1, "int-pairwise": 2, "fuse16": 3, "int16": 4}
_ROWS, _COLUMNS, _THREADS = 32, 64, 256  # of a block, as circuits_sum.cu has them


def layer_sum(weight: Tensor, x: Tensor, lse: str) -> Tensor:
    """log(W exp x) of a stack of matrices, by the kernel `lse`.

    Parameters
    ----------
    weight : Tensor, (R, I, J), float32, CUDA
        Non-negative.
    x : Tensor, (R, J, B), float32, CUDA
        Log values; -inf for zero.
    lse : str
        One of :data:`MODES`.

    Returns
    -------
    Tensor, (R, I, B), float32
        Nats; -inf where every term is.
    """
    if lse not in MODES:
        raise ValueError(f"lse must be one of {', '.join(MODES)}, got {lse!r}")
    for name, t in (("weight", weight), ("x", x)):
        if t.dtype != torch.float32 or not t.is_cuda or t.dim() != 3:
            found = f"{tuple(t.shape)} {t.dtype} on {t.device}"
            raise ValueError(f"{name} must be a 3-d float32 CUDA tensor, got {found}")
    regions, outputs, terms = weight.shape
    if x.shape[:2] != (regions, terms) or x.device != weight.device:
        found = f"{tuple(x.shape)} on {x.device}"
        raise ValueError(f"x must be ({regions}, {terms}, batch) on {weight.device}, got {found}")
    batch = x.shape[2]
    y = torch.empty((regions, outputs, batch), dtype=torch.float32, device=x.device)
    if not y.numel():
        return y
    weight, x = weight.detach().contiguous(), x.contiguous()
    launch = _launch(x.get_device(), lse, regions, outputs, terms, batch)
    stream = torch.cuda.current_stream(x.device).cuda_stream
    code = launch(stream, weight.data_ptr(), x.data_ptr(), y.data_ptr())
    if code:
        raise CudaError(f"launching a sum layer ({lse}): {describe(code)}")
    return y


@lru_cache(maxsize=1024)
def _launch(index: int, lse: str, regions: int, outputs: int, terms: int, batch: int):  # type: ignore[no-untyped-def]
    kernel = DeviceKernel("circuits_sum.cu", "layer", 0, _THREADS, 2, define=f"PFKIT_MODE={MODES[lse]}")
    grid = (regions * -(-outputs // _ROWS), -(-batch // _COLUMNS))
    return device(index).launch(kernel, grid, struct.pack("8Q4q", *[0] * 8, regions, outputs, terms, batch))
