"""Reductions over any axes of an array of any strides by kernels that read contiguous rows.

The reduced axes are moved last without copying. What is then a contiguous block of rows goes to the kernel
as it is; anything else is copied, and converted to the kernel's dtype, one block of bounded size at a time,
so that reducing the middle axis of a large array never makes a transposed copy of it. A row longer than a
block is cut: the pieces' states are added, exactly for ``"int"``, whose integers have no order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pfkit_ext import _cpu

from .u128 import add, log_totals

#: Elements of a block: 1 MiB of float64, about the size of a second-level cache.
BLOCK = 1 << 17
#: Rows read together when neighbouring rows, not neighbouring terms, lie side by side in memory (whole cache
#: lines).
SLAB = 32

Index = tuple[slice, ...]


def blocks(shape: tuple[int, ...], limit: int) -> Iterator[Index]:
    """Slices that cut an array of `shape` into blocks of at most `limit` (>= 1) elements, in C order."""
    size = math.prod(shape)
    if size <= limit:
        yield (slice(None),) * len(shape)
        return
    axis = next(k for k, length in enumerate(shape) if length > 1)
    rest = shape[axis + 1 :]
    step = max(1, limit // math.prod(rest))
    for start in range(0, shape[axis], step):
        head = (slice(None),) * axis + (slice(start, start + step),)
        for tail in blocks(rest, limit) if step == 1 else [(slice(None),) * len(rest)]:
            yield head + tail


class Layout(NamedTuple):
    """How to see an array with its reduced axes last: directions, a permutation; and a result's way back."""

    turn: tuple[slice, ...]
    order: tuple[int, ...]
    back: tuple[int, ...]

    def view(self, x: np.ndarray) -> np.ndarray:
        return x[self.turn].transpose(self.order)


def memory_order(a: np.ndarray, axes: tuple[int, ...]) -> Layout:
    """The layout that puts both the kept and the reduced axes of `a` in memory order.

    A sum does not care in which direction or order its terms come, so reduced axes are sorted by stride and
    those with negative strides are turned round: a reversed or Fortran-ordered array is read where it lies.
    """

    def by_stride(group: list[int]) -> list[int]:
        return sorted(group, key=lambda k: -abs(a.strides[k]))

    kept = [k for k in range(a.ndim) if k not in axes]
    kept_order = by_stride(kept)
    turn = tuple(slice(None, None, -1 if k in axes and a.strides[k] < 0 else 1) for k in range(a.ndim))
    return Layout(turn, (*kept_order, *by_stride(list(axes))), tuple(kept_order.index(k) for k in kept))


def is_plain(a: np.ndarray, dtype: np.dtype) -> bool:
    """Whether a compiled kernel can read `a` where it lies."""
    return a.dtype == dtype and a.dtype.isnative and a.flags.c_contiguous and a.flags.aligned


class Scratch:
    """One reusable buffer that blocks are copied into, converted to `dtype`."""

    def __init__(self, dtype: np.dtype) -> None:
        self.buffer = np.empty(0, dtype)

    def rows(self, block: np.ndarray, n_rows: int) -> np.ndarray:
        """`block` as a contiguous (n_rows, terms) array: itself, or a copy valid until the next call."""
        if not is_plain(block, self.buffer.dtype):
            if self.buffer.size < block.size:
                self.buffer = np.empty(block.size, self.buffer.dtype)
            copy = self.buffer[: block.size].reshape(block.shape)
            with np.errstate(over="ignore"):  # a long double beyond float64 becomes inf
                np.copyto(copy, block, casting="unsafe")
            block = copy
        return block.reshape(n_rows, block.size // n_rows)


def logsumexp_blocks(a: np.ndarray, axes: tuple[int, ...], kind: str, dtype: np.dtype) -> np.ndarray:
    """LSE of `a` over `axes` by the compiled kernel `kind`, in `dtype` (float32 or float64)."""
    layout = memory_order(a, axes)
    view, back = layout.view(a), layout.back
    n_kept = a.ndim - len(axes)
    kept, reduced = view.shape[:n_kept], view.shape[n_kept:]
    n_rows, n = math.prod(kept), math.prod(reduced)
    if n_rows == 0 or n == 0:
        return np.full(kept, -np.inf, dtype).transpose(back)
    if is_plain(view, dtype):
        return _cpu.lse_rows(view.reshape(n_rows, n), kind).reshape(kept).transpose(back)
    out = np.empty(kept, dtype)
    scratch = Scratch(dtype)
    rows = rows_at_once(view, n_kept)
    # the pairwise result belongs to one order of the whole row: never cut
    cut = None if rows * n <= BLOCK or kind == "int-pairwise" else max(1, BLOCK // rows)
    for index in blocks(kept, rows):
        target = out[index]
        block = view[index]
        if cut is None:
            value = _cpu.lse_rows(scratch.rows(block, target.size), kind)
        elif kind == "int":
            value = _int_pieces(block, n_kept, target.size, cut, scratch)
        else:
            value = _fuse_pieces(block, n_kept, target.size, cut, scratch)
        out[index] = value.reshape(target.shape)
    return out.transpose(back)


def rows_at_once(view: np.ndarray, n_kept: int) -> int:
    """How many rows of `view` (kept axes first) to read together: what fits in a block, and at least a few
    cache lines' worth where neighbouring rows, not neighbouring terms, lie side by side."""
    n_rows, n = math.prod(view.shape[:n_kept]), math.prod(view.shape[n_kept:])
    strides = [abs(s) if length > 1 else math.inf for s, length in zip(view.strides, view.shape, strict=True)]
    neighbours_are_rows = min(strides[:n_kept], default=math.inf) < min(strides[n_kept:], default=math.inf)
    return max(BLOCK // n, min(SLAB, n_rows) if neighbours_are_rows else 1)


def pieces(block: np.ndarray, n_kept: int, cut: int) -> Iterator[np.ndarray]:
    """`block` (kept axes first) in pieces of at most `cut` terms a row, all rows in each."""
    lead = (slice(None),) * n_kept
    for index in blocks(block.shape[n_kept:], cut):
        yield block[lead + index]


def _int_pieces(block: np.ndarray, n_kept: int, n_rows: int, cut: int, scratch: Scratch) -> np.ndarray:
    """Two reads: the maximum of each row, then the integer sums at that reference, which add exactly."""
    dtype = scratch.buffer.dtype
    reference = np.full(n_rows, -np.inf, dtype)
    for piece in pieces(block, n_kept, cut):
        reference = np.maximum(reference, _cpu.row_max(scratch.rows(piece, n_rows)))  # NaN wins
    finite = np.isfinite(reference)
    safe = np.where(finite, reference, dtype.type(0))
    hi, lo = np.zeros(n_rows, np.uint64), np.zeros(n_rows, np.uint64)
    if finite.any():
        for piece in pieces(block, n_kept, cut):
            rows = scratch.rows(piece, n_rows)
            if not finite.all():  # rows already decided by an infinity or a NaN
                rows = np.where(finite[:, None], rows, dtype.type(-np.inf))
            hi, lo = add((hi, lo), _cpu.int_state_rows(rows, safe))
    return np.where(finite, log_totals((hi, lo), safe, dtype), reference)


def _fuse_pieces(block: np.ndarray, n_kept: int, n_rows: int, cut: int, scratch: Scratch) -> np.ndarray:
    """LSE of the pieces' LSEs, kept in float64 so that cutting a float32 row does not cost it precision."""
    values = []
    for piece in pieces(block, n_kept, cut):
        rows = scratch.rows(piece, n_rows)
        if rows.dtype == np.float64:
            values.append(_cpu.lse_rows(rows, "fuse"))
        else:
            maximum, total = _cpu.fuse_state_rows(rows)
            with np.errstate(divide="ignore", invalid="ignore"):
                values.append(np.where(np.isfinite(maximum), maximum + np.log(total), maximum))
    return _cpu.lse_rows(np.stack(values, axis=1).astype(np.float64, order="C"), "fuse").astype(
        scratch.buffer.dtype
    )
