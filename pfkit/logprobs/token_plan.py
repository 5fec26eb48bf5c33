"""Which kernels score tokens under logits of a given shape, with what grid. Plain Python: no GPU, no torch.

* rows of up to 256 vectors of 16 bytes: several threads a row, all of it in registers;
* longer rows: one block a row; where rows are few, a cluster of 2, 4 or 8 blocks a row, or, for very long
  rows, slices whose partial states a second kernel combines in a fixed order.

A plan depends on shapes, strides, dtype and the device, never on data: equal calls give equal bits.
"""

from __future__ import annotations

import math
import struct

from pfkit.lse.cuda import DeviceKernel
from pfkit.lse.cuda_plan import BYTES, DIMS, SHORT_THREADS, Layout, Plan, Step, _ceil, _power_of_two

SOURCE = "crossentropy.cu"
SHORT = 256  # vectors of a row that one warp holds in registers
MANY = 1 << 12  # short rows, of which a warp then takes several at once


def _arguments(
    shape: Layout, dtype: int, tokens: int, temperature: float, ignore: int | None, splits: int = 1
) -> bytes:
    """``struct TokenArgs`` of crossentropy.cu with null pointers."""
    kept = [*shape.kept, *[(1, 0)] * (DIMS - len(shape.kept))]
    inverse = 1.0 / temperature
    return struct.pack(
        f"8Q6q2d{1 + 2 * DIMS}q",
        *[0] * 8, shape.n, shape.rows, tokens, splits, ignore or 0, int(ignore is not None),
        inverse if dtype == 1 else inverse / math.log(2.0), inverse,
        len(shape.kept), *[size for size, _ in kept], *[stride for _, stride in kept],
    )  # fmt: skip


def forward(
    shape: Layout,
    dtype: int,
    *,
    tokens: int,
    temperature: float,
    ignore: int | None,
    entropy: bool,
    aligned: bool,
    multiprocessors: int,
    clusters: bool,
) -> Plan:
    """The plan for rows of contiguous logits, at least one row of at least one.

    Parameters
    ----------
    shape : Layout
        The reduction over the vocabulary.
    dtype : int
        Of the logits, numbered as in the sources.
    tokens : int
        A row.
    temperature : float
    ignore : int or None
        The id that is passed over.
    entropy : bool
        Whether to carry the moment that gives it.
    aligned : bool
        Whether the first logit lies on a 16-byte boundary.
    multiprocessors : int
        Of the device.
    clusters : bool
        Whether the device has thread-block clusters (compute capability 9.0 and up).
    """
    vectors = shape.vectors(16 // BYTES[dtype], aligned)
    moment = "true" if entropy else "false"

    def kernel(entry: str, threads: int, blocks: int, cluster: int = 1) -> DeviceKernel:
        return DeviceKernel(SOURCE, entry, dtype, threads, blocks, cluster, early=True)

    def plan(*steps: Step, splits: int = 1) -> Plan:
        arguments = _arguments(shape, dtype, tokens, temperature, ignore, splits)
        part_bytes = 24 if dtype == 1 else 12
        return Plan(steps, arguments, part_bytes * shape.rows * splits if splits > 1 else 0)

    if vectors <= SHORT:
        lanes, v = min(32, _power_of_two(vectors)), _power_of_two(_ceil(vectors, 32))
        at_once = min(4 if v == 1 else 2, lanes) if shape.rows >= MANY and tokens <= 4 else 1
        blocks = _ceil(shape.rows, SHORT_THREADS // lanes * at_once)
        entry = f"short_rows<{lanes},{v},{at_once},{moment}>"
        return plan(Step(kernel(entry, SHORT_THREADS, 4), (blocks, 1)))

    if clusters and shape.rows < 2 * multiprocessors and vectors <= 8 * 16384:
        few = 8 * shape.rows <= multiprocessors
        size = _cluster_size(shape.rows, vectors, multiprocessors, few)
        if size > 1:
            threads, blocks = (512, 2) if few else (256, 4)
            entry = f"cluster_rows<{threads},4,{size},{moment}>"
            return plan(Step(kernel(entry, threads, blocks, size), (size * shape.rows, 1)))
    parts = 1
    if shape.rows < 2 * multiprocessors:
        parts = max(1, min(_ceil(2 * multiprocessors, shape.rows), vectors // 2048))
    if parts == 1:
        threads, v, blocks = 128, 4 if entropy or dtype == 1 or vectors <= 512 else 8, 8
        entry = f"long_rows<{threads},{v},{moment}>"
        return plan(Step(kernel(entry, threads, blocks), (shape.rows, 1)))
    return plan(
        Step(kernel(f"long_rows<512,4,{moment}>", 512, 2), (shape.rows, parts)),
        Step(kernel(f"combine<128,{moment}>", 128, 4), (shape.rows, 1)),
        splits=parts,
    )


def _cluster_size(rows: int, vectors: int, multiprocessors: int, few: bool) -> int:
    """Blocks a row: the most that the device holds at once and that leaves each a slice worth its start.

    The slices were found by measuring on an H200: 2000 vectors where there are but a few rows, or two blocks
    a row; else 4000.
    """
    for size in (8, 4, 2):
        if few and vectors >= 2000 * size:
            return size
        if rows * size <= 4 * multiprocessors and vectors >= (1900 if size == 2 else 3500) * size:
            return size
    return 1


def backward(
    shape: Layout,
    dtype: int,
    *,
    tokens: int,
    temperature: float,
    ignore: int | None,
    entropy: bool,
    aligned: bool,
) -> Plan:
    """The plan of the gradient, written as contiguous rows."""
    vectors = shape.vectors(16 // BYTES[dtype], aligned)
    moment, splits, blocks = "true" if entropy else "false", 1, 4
    if vectors <= SHORT:
        lanes, v = min(32, _power_of_two(vectors)), _power_of_two(_ceil(vectors, 32))
        threads, grid = SHORT_THREADS, _ceil(shape.rows, SHORT_THREADS // lanes)
    else:
        lanes, v, rounds = 512 if vectors >= 8192 else 128, 4, 4
        blocks, splits = 1024 // lanes, _ceil(vectors, lanes * v * rounds)
        threads, grid = lanes, shape.rows * splits
    name = "short_gradient" if lanes <= 32 else "gradient"
    kernel = DeviceKernel(SOURCE, f"{name}<{lanes},{v},{moment}>", dtype, threads, blocks, early=True)
    return Plan((Step(kernel, (grid, 1)),), _arguments(shape, dtype, tokens, temperature, ignore, splits))
