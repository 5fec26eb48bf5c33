"""Launches of the CUDA kernels of linear cross-entropy: folding a chunk of logits into the state of its rows,
making losses of states, and turning a chunk into its gradient.

Chunks are (rows, columns) views whose rows start on 16-byte boundaries. Everything runs on the stream given.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ..lse import cuda
from .linear_terms import Terms

NUMBER = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 3}
WARPS = 8  # rows a block: one warp each
SUMMED = 256  # rows a block in sums over rows


class State(NamedTuple):
    """What is known of every row: float32 tensors of shape (rows,)."""

    maximum: torch.Tensor
    total: torch.Tensor
    picked: torch.Tensor  # logit of the target
    sum: torch.Tensor | None  # of the logits; label smoothing needs it

    def rows(self, first: int, count: int) -> State:
        """The states of some rows."""
        return State(*(None if x is None else x[first : first + count] for x in self))  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _fold(index: int, dtype: int, rows: int, columns: int, ld: int, terms: Terms) -> Any:
    wide = columns * (4 if dtype == 0 else 2) > 2048
    entry = "fold<4,true>" if terms.shaped else "fold<8,false>" if wide else "fold<4,false>"
    kernel = cuda.DeviceKernel("linear_fold.cu", entry, dtype, 32 * WARPS, 4, early=True)
    arguments = struct.pack("8Q3q2d", *[0] * 8, rows, columns, ld, terms.cap, terms.scale)
    return cuda.device(index).launch(kernel, (-(-rows // WARPS), 1), arguments)


@lru_cache(maxsize=256)
def _finish(index: int, rows: int, terms: Terms) -> Any:
    kernel = cuda.DeviceKernel("linear_fold.cu", "finish", 0, 128, define="PFKIT_FINISH", early=True)
    arguments = struct.pack(
        "8Q3q2d", *[0] * 8, rows, terms.vocabulary, terms.ignore_index, terms.smoothing, terms.z
    )
    return cuda.device(index).launch(kernel, (-(-rows // 128), 1), arguments)


def _gradient_arguments(rows: int, columns: int, ld: int, result_ld: int, terms: Terms) -> bytes:
    return struct.pack(
        "8Q6q5d", *[0] * 8, rows, columns, ld, result_ld, terms.vocabulary, terms.ignore_index,
        terms.cap, terms.scale, terms.smoothing, terms.smoothing / terms.vocabulary, terms.z,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _gradient(
    index: int, dtype: int, result: int, rows: int, columns: int, ld: int, result_ld: int, terms: Terms
) -> Any:
    entry = f"gradient<4,{str(terms.shaped).lower()},{result}>"
    kernel = cuda.DeviceKernel("linear_gradient.cu", entry, dtype, 32 * WARPS, 4, early=True)
    arguments = _gradient_arguments(rows, columns, ld, result_ld, terms)
    return cuda.device(index).launch(kernel, (-(-rows // WARPS), 1), arguments)


@lru_cache(maxsize=256)
def _column_sums(index: int, dtype: int, rows: int, columns: int, ld: int, terms: Terms) -> Any:
    entry = f"column_sums<{SUMMED},{str(terms.shaped).lower()}>"
    kernel = cuda.DeviceKernel("linear_gradient.cu", entry, dtype, 32 * WARPS, 4, early=True)
    grid = (-(-columns // (32 * (4 if dtype == 0 else 8))), -(-rows // SUMMED))
    arguments = _gradient_arguments(rows, columns, ld, columns, terms)
    return cuda.device(index).launch(kernel, grid, arguments)


def _run(index: int, launch: Any, *arguments: int) -> None:
    code = launch(*arguments)
    if code == 201:  # this thread has no context yet
        cuda.device(index).make_current()
        code = launch(*arguments)
    if code:
        raise cuda.CudaError(f"launching a kernel on CUDA device {index}: {cuda.describe(code)}")


def _pointer(x: torch.Tensor | None, offset: int = 0) -> int:
    return 0 if x is None else x.data_ptr() + offset * x.element_size()


def fold(
    chunk: torch.Tensor, first: int, targets: torch.Tensor, bias: torch.Tensor | None, state: State,
    terms: Terms, stream: int,
) -> None:  # fmt: skip
    """Add the logits of columns [first, first + columns) to `state`; first == 0 starts it."""
    index, (rows, columns) = chunk.get_device(), chunk.shape
    launch = _fold(index, NUMBER[chunk.dtype], rows, columns, chunk.stride(0), terms)
    _run(
        index, launch, stream, chunk.data_ptr(), state.maximum.data_ptr(), state.total.data_ptr(),
        state.picked.data_ptr(), targets.data_ptr(), _pointer(bias, first), _pointer(state.sum), first,
    )  # fmt: skip


def finish(loss: torch.Tensor, targets: torch.Tensor, state: State, terms: Terms, stream: int) -> None:
    """The losses of rows whose logits have all been folded."""
    index = loss.get_device()
    _run(
        index, _finish(index, loss.shape[0], terms), stream, loss.data_ptr(), state.maximum.data_ptr(),
        state.total.data_ptr(), state.picked.data_ptr(), _pointer(state.sum), targets.data_ptr(), 0, 0,
    )  # fmt: skip


def gradient(
    chunk: torch.Tensor, result: torch.Tensor, first: int, targets: torch.Tensor, bias: torch.Tensor | None,
    maximum: torch.Tensor, total: torch.Tensor, outer: torch.Tensor, terms: Terms, stream: int,
) -> None:  # fmt: skip
    """Write the gradient in the chunk's products to `result`, which may start where the chunk does."""
    index, (rows, columns) = chunk.get_device(), chunk.shape
    launch = _gradient(
        index, NUMBER[chunk.dtype], NUMBER[result.dtype], rows, columns, chunk.stride(0), result.stride(0),
        terms,
    )  # fmt: skip
    _run(
        index, launch, stream, chunk.data_ptr(), result.data_ptr(), maximum.data_ptr(), total.data_ptr(),
        targets.data_ptr(), _pointer(bias, first), outer.data_ptr(), first,
    )  # fmt: skip


def column_sums(
    chunk: torch.Tensor, result: torch.Tensor, first: int, targets: torch.Tensor, bias: torch.Tensor | None,
    maximum: torch.Tensor, total: torch.Tensor, outer: torch.Tensor, terms: Terms, stream: int,
) -> None:  # fmt: skip
    """Write the sums over rows of that gradient, in float32, to `result` (columns,): the bias's gradient."""
    index, (rows, columns) = chunk.get_device(), chunk.shape
    parts = torch.empty(-(-rows // SUMMED), columns, dtype=torch.float32, device=chunk.device)
    launch = _column_sums(index, NUMBER[chunk.dtype], rows, columns, chunk.stride(0), terms)
    _run(
        index, launch, stream, chunk.data_ptr(), parts.data_ptr(), maximum.data_ptr(), total.data_ptr(),
        targets.data_ptr(), _pointer(bias, first), outer.data_ptr(), first,
    )  # fmt: skip
    torch.sum(parts, 0, out=result)
