"""Which kernels reduce a tensor of a given shape and strides, and with what grid. Plain Python: no GPU, no
torch.

A reduction is (kept dimensions, reduced dimensions) of (size, stride) pairs. Pairs that are one run of memory
are merged first, so that most tensors become rows (the reduced elements of a result are contiguous) or
columns (neighbouring results are contiguous). Nothing is ever transposed or copied.

* rows of up to 256 vectors of 16 bytes: several threads a row, all of it in registers;
* longer rows: one block a row, or a cluster of 2, 4 or 8 blocks where rows are few, or, for few and very long
  rows, slices whose partial results a second kernel combines in a fixed order;
* any other strides: a block walks 32 (8, 1) neighbouring results and splits their terms over its threads.

The order-free integer kernel needs the maximum first: rows of up to 4096 vectors stay in registers, many rows
of up to 98000 in the shared memory of a block or cluster; others are read twice.

A plan depends on shapes, strides, dtype and the device, never on data: equal calls give equal bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .cuda import DeviceKernel, pack_arguments

Pairs = list[tuple[int, int]]

DIMS = 6
BYTES = (4, 8, 2, 2)  # float32, float64, float16, bfloat16
SHORT_THREADS = 128
PAIRWISE = ("int-pairwise", "int16")

#: Source file and macro of each kernel; "fuse16" is "fuse" on 16-bit input.
SOURCES = {
    "fuse": ("fuselse.cu", ""),
    "int": ("intlse.cu", ""),
    "int-pairwise": ("pairwise.cu", ""),
    "int16": ("pairwise.cu", "PFKIT_TENTH"),
}


@dataclass(frozen=True)
class Layout:
    """Merged dimensions of a reduction; `rows` results of `n` terms each."""

    kept: tuple[tuple[int, int], ...]
    reduced: tuple[tuple[int, int], ...]
    rows: int
    n: int

    @property
    def contiguous(self) -> bool:
        """Whether the terms of a result are contiguous."""
        return self.n == 1 or (len(self.reduced) == 1 and self.reduced[0][1] == 1)

    @property
    def fits(self) -> bool:
        """Whether the kernels' argument block can describe it."""
        return len(self.kept) <= DIMS and len(self.reduced) <= DIMS

    def aligned(self, per_vector: int) -> bool:
        """Whether every row starts on a 16-byte boundary if the first does."""
        return all(stride % per_vector == 0 for size, stride in self.kept)

    def vectors(self, per_vector: int, aligned: bool) -> int:
        """Aligned vectors of 16 bytes that a row can touch; `aligned`: the first one starts on a boundary."""
        skip = 0 if aligned and self.aligned(per_vector) else per_vector - 1
        return _ceil(self.n + skip, per_vector)


def merge(pairs: Pairs) -> Pairs:
    """Neighbouring (size, stride) pairs that are one run become one; sizes of 1 vanish. Outermost first."""
    merged: Pairs = []
    for size, stride in pairs:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def layout(shape: tuple[int, ...], strides: tuple[int, ...], dims: tuple[int, ...]) -> Layout:
    """The reduction of a strided array over `dims` (no negative numbers, none twice)."""
    kept = [(shape[d], strides[d]) for d in range(len(shape)) if d not in dims]
    reduced = sorted(((shape[d], strides[d]) for d in dims), key=lambda pair: -pair[1])  # a sum has no order
    return Layout(
        tuple(merge(kept)) or ((1, 0),), tuple(merge(reduced)) or ((1, 1),),
        math.prod(size for size, _ in kept), math.prod(size for size, _ in reduced),
    )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One launch of a plan. `resident`: blocks take rows in turn, no more of them than the device holds."""

    kernel: DeviceKernel
    grid: tuple[int, int]
    resident: bool = False


@dataclass(frozen=True)
class Plan:
    """Launches in order, all with one argument block, and the bytes of scratch memory they share."""

    steps: tuple[Step, ...]
    arguments: bytes
    workspace: int = 0


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def reduction(
    lse: str,
    shape: Layout,
    dtype: int,
    *,
    aligned: bool,
    multiprocessors: int,
    clusters: bool,
    out_dtype: int,
    exact_total: bool = False,
    shared_memory: int = 227 << 10,
) -> Plan:
    """The plan of kernel `lse` for a layout with at least one row and one term.

    Parameters
    ----------
    shape : Layout
    dtype, out_dtype : int
        Element and result type, numbered as in the sources.
    aligned : bool
        Whether the first element lies on a 16-byte boundary.
    multiprocessors : int
        Of the device.
    clusters : bool
        Whether the device has thread-block clusters (compute capability 9.0 and up).
    exact_total : bool
        "int": write 128-bit totals.
    shared_memory : int
        Bytes a block of the device may have; the default is compute capability 9.0's.
    """
    lse = "fuse" if lse == "fuse16" else lse
    source, define = SOURCES[lse]
    vectors = shape.vectors(16 // BYTES[dtype], aligned)

    def kernel(entry: str, threads: int, blocks: int = 1, cluster: int = 1, shared: int = 0) -> DeviceKernel:
        return DeviceKernel(source, entry, dtype, threads, blocks, cluster, shared, define, early=True)

    def plan(*steps: Step, splits: int = 1, part_bytes: int = 0) -> Plan:
        arguments = pack_arguments(
            shape.n, shape.rows, list(shape.kept), list(shape.reduced),
            splits=splits, out_dtype=out_dtype, exact_total=exact_total,
        )  # fmt: skip
        return Plan(steps, arguments, part_bytes * shape.rows * splits if splits > 1 else 0)

    state_bytes = 16 if dtype == 1 else 8
    if not shape.contiguous:
        columns = 32 if shape.kept[-1][1] == 1 and shape.kept[-1][0] >= 16 or shape.n < 256 else 1
        if shape.kept[-1][1] == 1 and 4 <= shape.kept[-1][0] < 16:
            columns = 8
        blocks, lines = _ceil(shape.rows, columns), 256 // columns
        splits = 1
        if blocks < 2 * multiprocessors:
            most = 1024 if lse == "fuse" else 256
            splits = max(1, min(_ceil(4 * multiprocessors, blocks), shape.n // (lines * 16), most))
        grid = (blocks, splits)
        if splits == 1:
            return plan(Step(kernel(f"strided<{columns}>", 256, 4), grid))
        if lse == "int":
            return plan(
                Step(kernel(f"strided_maximum<{columns}>", 256, 4), grid),
                Step(kernel(f"strided_total<{columns}>", 256, 4), grid),
                Step(kernel("split_emit<128>", 128, 4), (shape.rows, 1)),
                splits=splits, part_bytes=24,
            )  # fmt: skip
        return plan(
            Step(kernel(f"strided<{columns}>", 256, 4), grid),
            Step(kernel("combine", 128, 4), (shape.rows, 1)),
            splits=splits, part_bytes=state_bytes,
        )  # fmt: skip

    if vectors <= 256:
        lanes, v = min(32, _power_of_two(vectors)), _power_of_two(_ceil(vectors, 32))
        at_once = 1
        if lse == "fuse" and shape.rows >= 1 << 16:
            at_once = 4 if v == 1 and lanes >= 8 else 2 if v == 2 else 1
        entry = f"short_rows<{lanes},{v},{at_once}>" if lse == "fuse" else f"short_rows<{lanes},{v}>"
        blocks = _ceil(shape.rows, SHORT_THREADS // lanes * at_once)
        return plan(Step(kernel(entry, SHORT_THREADS, 4), (blocks, 1)))

    if lse in PAIRWISE:
        v = 8 if dtype < 2 and vectors > 4096 else 4
        parts = max(1, min(_ceil(2 * multiprocessors, shape.rows), vectors // 4096, 256))
        first = Step(kernel(f"long_rows<256,{v},4>", 256, 4), (shape.rows, parts))
        if parts == 1 or shape.rows >= 2 * multiprocessors:
            return plan(Step(first.kernel, (shape.rows, 1)))
        return plan(
            first, Step(kernel("combine", 128, 4), (shape.rows, 1)), splits=parts, part_bytes=state_bytes
        )
    if lse == "int":
        return _int_rows(shape, vectors, multiprocessors, shared_memory if clusters else 0, kernel, plan)

    parts = 1
    if shape.rows < 2 * multiprocessors:
        parts = max(1, min(_ceil(2 * multiprocessors, shape.rows), vectors // 2048))
    if parts == 1:
        threads, v, blocks = (128, 4, 8) if vectors <= 512 else (256, 4, 4)
        if dtype == 1:  # its exponentials take registers
            v = 2
        elif vectors > 4096:
            threads, v = (256, 8) if dtype == 0 else (512, 2)
        return plan(Step(kernel(f"long_rows<{threads},{v}>", threads, blocks), (shape.rows, 1)))
    if clusters and vectors <= 8 * 16384:
        size = min(8, _power_of_two(parts))
        return plan(Step(kernel(f"cluster_rows<512,8,{size}>", 512, 2, size), (size * shape.rows, 1)))
    return plan(
        Step(kernel("long_rows<512,4>", 512, 2), (shape.rows, parts)),
        Step(kernel("combine", 128, 4), (shape.rows, 1)),
        splits=parts, part_bytes=state_bytes,
    )  # fmt: skip


def _int_rows(shape: Layout, vectors: int, multiprocessors: int, shared_memory: int, kernel, plan) -> Plan:  # type: ignore[no-untyped-def]
    """Long rows of the integer kernel: on chip while they fit, read twice beyond, the second time from the
    cache.
    """

    def rows(entry: str, threads: int, blocks: int, cluster: int = 1) -> Plan:
        return plan(Step(kernel(entry, threads, blocks, cluster), (cluster * shape.rows, 1)))

    if vectors <= 4096:
        threads = 128 if vectors <= 1024 else 256 if vectors <= 2048 else 512
        return rows(f"held_rows<{threads},8,1>", threads, 1024 // threads)
    clusters = shared_memory > 0
    for threads, blocks, cluster in ((256, 2, 1), (512, 1, 1), (512, 1, 2), (256, 2, 8), (512, 1, 8)):
        chip = 3 * 8 * threads * cluster  # vectors; a slice begins and ends within one
        shared = 3 * 8 * threads * 16
        fits = vectors + cluster <= chip and blocks * (shared + 6144) <= shared_memory  # 6144: all else there
        if fits and cluster * shape.rows >= blocks * multiprocessors:
            resident = kernel(f"resident_rows<{threads},8,3,{cluster}>", threads, blocks, cluster, shared)
            return plan(Step(resident, (cluster * shape.rows, 1), resident=True))
    if clusters and vectors <= 8192:
        return rows("held_rows<256,8,4>", 256, 4, 4)
    if clusters and (8 * shape.rows >= multiprocessors or vectors <= 131072):
        return rows("cluster_rows<256,4,8>", 256, 5, 8)
    if shape.rows >= multiprocessors or vectors < 16384:
        return rows("long_rows<512,4>", 512, 2)
    splits = min(_ceil(2 * multiprocessors, shape.rows), vectors // 4096)
    grid = (shape.rows, splits)
    return plan(
        Step(kernel("split_maximum<512,4>", 512, 2), grid),
        Step(kernel("split_total<512,4>", 512, 2), grid),
        Step(kernel("split_emit<128>", 128, 4), (shape.rows, 1)),
        splits=splits, part_bytes=24,
    )  # fmt: skip


def gradient(lse: str, shape: Layout, dtype: int) -> Plan:
    """The plan of the gradient of "fuse" or "int" for contiguous rows, written as contiguous rows."""
    per_vector = 16 // BYTES[dtype]
    blocks = _ceil(shape.n + per_vector, 256 * 4 * per_vector)
    kernel = DeviceKernel(SOURCES[lse][0], "backward<256,4>", dtype, 256, 4, early=True)
    return Plan(
        (Step(kernel, (shape.rows * blocks, 1)),),
        pack_arguments(shape.n, shape.rows, list(shape.kept), list(shape.reduced)),
    )
