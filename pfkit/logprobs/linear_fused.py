"""Products that never leave the registers, for 16-bit inputs on Hopper: the whole forward pass in one kernel
(``pfkit_ext/cuda/linear_fused.cu``), and the gradient of a chunk of logits in another
(``linear_fused_gradient.cu``).

No logit is written, so none is rounded: both work on the float32 sums the logits were made as.
``PFKIT_FUSED=0`` in the environment turns them off.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ..lse import cuda
from .linear_kernels import NUMBER, _run
from .linear_terms import Terms

_Tensor = torch.Tensor

SHARED = 4 * (128 + 256) * 64 * 2 + 1024  # four stages of both operands, and room to align them
ENABLED = os.environ.get("PFKIT_FUSED", "1") != "0"
TILE = 256  # columns
GROUP_ROWS = 8 * 256  # rows whose states a block holds at once
STATE_BYTES = 12  # of a row, beside its slots
_MAP_TYPES = {torch.float16: 6, torch.bfloat16: 9}
_launches: OrderedDict[Any, Any] = OrderedDict()


def clusters(index: int) -> int:
    """Pairs of blocks a device runs at once."""
    return cuda.device(index).multiprocessors // 2


def rows_at_once(hidden: _Tensor, weight: _Tensor, terms: Terms, memory: int) -> int:
    """How many rows forward may take at a time within `memory` bytes of scratch; 0 if it does not apply."""
    if not applies(hidden, weight, terms):
        return 0
    rows = hidden.shape[0]
    fit = max(0, memory - STATE_BYTES * rows) // (8 * clusters(hidden.get_device()))
    return rows if fit >= rows else fit // GROUP_ROWS * GROUP_ROWS


def applies(hidden: _Tensor, weight: _Tensor, terms: Terms) -> bool:
    """Whether the kernel can do this: 16-bit, whole 16-byte rows, nothing added to the products."""
    return (
        ENABLED
        and hidden.dtype in _MAP_TYPES
        and not terms.shaped
        and hidden.shape[0] >= 256
        and cuda.device(hidden.get_device()).capability == (9, 0)
        and _whole_vectors(hidden)
        and _whole_vectors(weight)
    )


def _whole_vectors(x: _Tensor) -> bool:
    step, unit = x.stride()
    return unit == 1 and step % 8 == 0 and x.shape[1] % 8 == 0 and x.data_ptr() % 16 == 0


def tensor_map(x: _Tensor) -> bytes:
    """How the copy engine sees a matrix: boxes of 128 rows and 64 columns, swizzled in 128 bytes."""
    driver = cuda._driver()
    assert driver is not None
    room = ctypes.create_string_buffer(192)
    place = -(-ctypes.addressof(room) // 64) * 64
    rows, columns = x.shape
    code = driver.cuTensorMapEncodeTiled(
        ctypes.c_void_p(place), _MAP_TYPES[x.dtype], ctypes.c_uint32(2), ctypes.c_void_p(x.data_ptr()),
        (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(2 * x.stride(0)),
        (ctypes.c_uint32 * 2)(64, 128), (ctypes.c_uint32 * 2)(1, 1), 0, 3, 2, 0,
    )  # fmt: skip
    if code:
        raise cuda.CudaError(f"cuTensorMapEncodeTiled for {tuple(x.shape)}: {cuda.describe(code)}")
    return ctypes.string_at(place, 128)


def _matrices(hidden: _Tensor, weight: _Tensor) -> tuple[Any, ...]:
    """What a launch knows of its operands."""
    return (
        hidden.data_ptr(), hidden.shape, hidden.stride(0), weight.data_ptr(), weight.shape, weight.stride(0)
    )  # fmt: skip


def _cached(key: Any, make: Callable[[], Any]) -> Any:
    found = _launches.get(key)
    if found is None:
        found = _launches[key] = make()
        if len(_launches) > 512:
            _launches.popitem(last=False)
    else:
        _launches.move_to_end(key)
    return found


def launches(
    hidden: _Tensor, weight: _Tensor, terms: Terms, kept_columns: int, width: int
) -> tuple[Any, Any]:
    """The two launches of a forward pass: the products folded, then the slots of every row combined."""
    index, dtype = hidden.get_device(), NUMBER[hidden.dtype]

    def make() -> Any:
        device, rows = cuda.device(index), hidden.shape[0]
        arguments = (
            bytes(64) + tensor_map(hidden) + tensor_map(weight)
            + struct.pack("7qd", rows, weight.shape[0], hidden.shape[1], terms.ignore_index,
                          clusters(index), kept_columns, width, terms.z)
        )  # fmt: skip
        fused = cuda.DeviceKernel("linear_fused.cu", "fused", dtype, 384, 1, 2, SHARED, specific=True)
        combine = cuda.DeviceKernel(
            "linear_fused.cu", "combine", dtype, 128, define="PFKIT_COMBINE", early=True
        )
        return (
            device.launch(fused, (2 * clusters(index), 1), arguments),
            device.launch(combine, (-(-rows // 128), 1), arguments),
        )

    key = (index, dtype, terms, kept_columns, width, *_matrices(hidden, weight))
    return _cached(key, make)  # type: ignore[no-any-return]


def forward(
    hidden: _Tensor, weight: _Tensor, targets: _Tensor, terms: Terms, loss: _Tensor, maximum: _Tensor,
    total: _Tensor, slots: _Tensor, kept: _Tensor, kept_columns: int, width: int, stream: int,
) -> None:  # fmt: skip
    """Loss, maximum and total of every row; `slots` has room for 2 float32 a row and cluster.

    The first `kept_columns` logits of every row go to `kept`, in chunks of `width` columns.
    """
    for launch in launches(hidden, weight, terms, kept_columns, width):
        _run(
            hidden.get_device(), launch, stream, slots.data_ptr(), loss.data_ptr(), targets.data_ptr(),
            loss.data_ptr(), maximum.data_ptr(), total.data_ptr(), kept.data_ptr() if kept_columns else 0, 0,
        )  # fmt: skip


def gradient(
    hidden: _Tensor, weight: _Tensor, result: _Tensor, first: int, targets: _Tensor, maximum: _Tensor,
    total: _Tensor, outer: _Tensor, terms: Terms, stream: int,
) -> None:  # fmt: skip
    """Write the gradient in the logits hidden @ weight.T, columns from `first` on, to `result` (rows, n)."""
    index, dtype = hidden.get_device(), NUMBER[hidden.dtype]

    def make() -> Any:
        arguments = (
            bytes(64) + tensor_map(hidden) + tensor_map(weight)
            + struct.pack("6qdq", hidden.shape[0], weight.shape[0], hidden.shape[1], result.stride(0),
                          terms.vocabulary, terms.ignore_index, terms.z, 0)
        )  # fmt: skip
        kernel = cuda.DeviceKernel(
            "linear_fused_gradient.cu", "fused_gradient", dtype, 384, 1, 2, SHARED, specific=True
        )
        return cuda.device(index).launch(kernel, (2 * clusters(index), 1), arguments)

    key = (index, dtype, terms, *_matrices(hidden, weight), result.stride(0))
    _run(
        index, _cached(key, make), stream, result.data_ptr(), maximum.data_ptr(), total.data_ptr(),
        targets.data_ptr(), outer.data_ptr(), first, 0, 0,
    )  # fmt: skip
