"""The CUDA forward of a circuit on plain arrays: what is laid out once, and what runs for every batch.

A :class:`ForwardPlan` owns the buffers and launches of one circuit:

* ``refresh()`` turns input probabilities into tables of logarithms, and lays out W where the kernel does not
  read it as it lies (many units, K not one of :data:`UNITS`, W not contiguous). Run it whenever parameters
  may have changed: what has not is read, not written.
* ``run(x)`` is the forward: one launch turns categories into rows of tables, one walks the whole circuit.
* ``export(out)`` writes the values of all inputs and regions of the last ``run``, in nats.

All three may be captured in a CUDA graph. The kernels and their arithmetic: ``pfkit_ext/cuda/circuits.cu``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pfkit.lse.cuda import CudaError, DeviceKernel, describe, device

Tensor = torch.Tensor

UNITS = (32, 64, 128, 256, 512)  # what kernels exist for; other sizes are filled up with zeros
_XTYPES = {torch.int64: 0, torch.int32: 1, torch.uint8: 2}


@dataclass(frozen=True)
class Shape:
    """How the forward is cut.

    Parameters
    ----------
    columns : int
        Rows of x that a block works on: 16, 32 or 64.
    threads : int
        Of a block.
    blocks : int
        On a multiprocessor at once.
    ahead : int
        16 x 16 tiles of W that a warp has on their way; a power of two.
    warpgroups : bool
        Use the warpgroup products of compute capability 9.0; `threads` is then a multiple of 128.
    near : bool
        Keep values in shared memory from a region to its parent.
    ordered : bool
        A task is one region, in an order in which all columns pass a region at about the same time; otherwise
        a block walks upward from a region as far as it can. `near` goes with walking only.
    packed : bool
        Read a copy of W that ``refresh`` has split and laid out, in the place of W itself.
    """

    columns: int
    threads: int
    blocks: int
    ahead: int
    warpgroups: bool = False
    near: bool = True
    ordered: bool = False
    packed: bool = False

    def __post_init__(self) -> None:
        # part of a warpgroup that issues its products is an illegal instruction, which ends the CUDA context
        if self.warpgroups and self.threads % 128:
            raise ValueError(f"with warpgroups, threads must be a multiple of 128, got {self.threads}")

    def shared(self, units: int) -> int:
        """Bytes of shared memory of a block."""
        near = 4 * self.columns * (units + 4) if self.near else 0
        ring = self.threads // 32 * self.ahead * 1024
        return 4 * units * self.columns + near + ring + 4 * self.columns + units * self.columns // 8 + 16


def default_shape(units: int, capability: tuple[int, int]) -> Shape:
    """The fastest known cut for circuits of `units` (one of :data:`UNITS`)."""
    hopper = capability == (9, 0)
    return {
        32: Shape(16, 64, 8, 2, near=False, ordered=True),
        64: Shape(16, 128, 5, 4, near=False, ordered=True),
        128: Shape(32, 256, 2, 8, near=False, ordered=True, packed=True),
        256: Shape(32, 256, 2, 4, hopper, near=False, ordered=True, packed=True),
        512: Shape(32, 512, 1, 8, hopper, near=False, ordered=True, packed=True),
    }[units]


@dataclass(frozen=True)
class Layout:
    """A circuit as plain numbers. Regions 0 .. I-1 are inputs, then sum regions, children first.

    Parameters
    ----------
    units : int
        K, of every region; at most 512.
    n_variables : int
    input_variables : sequence of int, (I,)
    input_addresses : sequence of int, (I,)
        Address on the device of each input's probabilities, float32.
    input_sizes : sequence of int, (I,)
        Number of categories.
    input_strides : (int, int)
        Elements from one unit to the next, from one category to the next.
    children : sequence of sequences of int, (R,)
        Children of each sum region.
    root : sequence of int
        Children of the root's product.
    weight_addresses : sequence of int, (R + 1,)
        Address of W of each sum region, float32 (K, K); last, of the root's K weights, contiguous.
    weight_strides : (int, int)
        Elements from one result to the next, from one term to the next.
    keep : tuple
        Whatever owns that memory.
    """

    units: int
    n_variables: int
    input_variables: Sequence[int]
    input_addresses: Sequence[int]
    input_sizes: Sequence[int]
    input_strides: tuple[int, int]
    children: Sequence[Sequence[int]]
    root: Sequence[int]
    weight_addresses: Sequence[int]
    weight_strides: tuple[int, int]
    keep: tuple[Any, ...] = ()

    def parents(self) -> list[int]:
        """The sum region that each sum region is a child of, counted from 0; the root is the last.

        Raises
        ------
        ValueError
            If a region comes before one of its children, or has not exactly one parent.
        """
        inputs, root = len(self.input_variables), len(self.children)
        parents = [-1] * root
        for r, children in enumerate([*self.children, self.root]):
            for c in children:
                if c < inputs:
                    continue
                if c - inputs >= r:
                    raise ValueError(f"region {c} is a child of region {r + inputs}, which comes first")
                if parents[c - inputs] >= 0:
                    raise ValueError(f"region {c} is a child of several regions")
                parents[c - inputs] = r
        if -1 in parents:
            raise ValueError(f"region {parents.index(-1) + inputs} is no child of any region")
        return parents

    def tasks(self, ordered: bool, most_inputs: int = 8) -> tuple[list[list[int]], list[int], list[int]]:
        """The circuit as the kernel reads it.

        Parameters
        ----------
        ordered : bool
            Every region is a task; otherwise those that have inputs only.
        most_inputs : int
            Inputs of a region beyond that number become parts, regions without weights.

        Returns
        -------
        list of lists of 10 int
            For each sum region, each part, and the root: where in the links the regions below it begin and
            end, and its inputs (in pairs); the parent, and how many regions that has below it; its first two
            inputs, each followed by its variable.
        list of int
            The links: regions below, then pairs (input, variable).
        list of int
            The tasks, those farthest from the root first.
        """
        inputs, parents = len(self.input_variables), self.parents()
        sums = len(parents)
        every = [*self.children, self.root]
        below = [[c - inputs for c in children if c >= inputs] for children in every]
        above = [[c for c in children if c < inputs] for children in every]
        parts = [
            (r, leaves[i : i + most_inputs])
            for r, leaves in enumerate(above)
            for i in range(most_inputs, len(leaves), most_inputs)
        ]
        for number, (r, _) in enumerate(parts, sums):
            below[r].append(number)
        root = sums + len(parts)
        # sum regions, parts, the root
        below = [*below[:sums], *([] for _ in parts), below[sums]]
        above = [leaves[:most_inputs] for leaves in above]
        above = [*above[:sums], *(leaves for _, leaves in parts), above[sums]]
        parents = [root if r == sums else r for r in (*parents, *(r for r, _ in parts))] + [root]

        depth = [0] * (root + 1)
        waiting = [root]
        for r in waiting:  # from the root downward
            for c in below[r]:
                depth[c] = depth[r] + 1
                waiting.append(c)
        tasks = [r for r in range(root + 1) if ordered or not below[r]]
        tasks.sort(key=lambda r: -depth[r])

        links = [c for children in below for c in children]
        links += [0] * (len(links) % 2)
        first, pairs = 0, len(links) // 2
        rows = []
        for r in range(root + 1):
            pair = [(i, self.input_variables[i]) for i in above[r][:2]] + [(-1, -1)] * 2
            ends = first + len(below[r]), pairs + len(above[r])
            rows.append(
                [first, ends[0], pairs, ends[1], parents[r], len(below[parents[r]]), *pair[0], *pair[1]]
            )
            first, pairs = ends
        for leaves in above:
            links += [number for i in leaves for number in (i, self.input_variables[i])]
        return rows, links, tasks


class ForwardPlan:
    """Buffers and launches of one circuit.

    Parameters
    ----------
    layout : Layout
    batch : int
        Rows of x to allocate buffers for; a larger x makes them grow.
    index : int
        CUDA device.
    shape : Shape, optional

    Raises
    ------
    ValueError
        If the circuit has more units than there are kernels for.
    pfkit.lse.cuda.CudaUnavailable
        If CUDA kernels cannot run here.
    """

    def __init__(self, layout: Layout, batch: int, index: int, shape: Shape | None = None) -> None:
        fitting = [k for k in UNITS if k >= layout.units]
        if not fitting or layout.units < 1:
            raise ValueError(f"units must be 1 to {UNITS[-1]}, got {layout.units}")
        self.layout, self.index, self.units = layout, index, fitting[0]
        self._device = device(index)
        self.shape = shape or default_shape(self.units, self._device.capability)
        self.table_rows = max(layout.input_sizes) + 2
        self._inputs, self._sums = len(layout.input_variables), len(layout.children)
        self._launches: dict[Any, Any] = {}
        self._capacity = 0
        self._describe_circuit()
        self.reserve(batch)

    def _empty(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(size, dtype=dtype, device=torch.device("cuda", self.index))

    def _numbers(self, values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(list(values), dtype=dtype, device=torch.device("cuda", self.index))

    def _describe_circuit(self) -> None:
        layout, k = self.layout, self.units
        addresses = list(layout.weight_addresses)
        self._weights = self._numbers(addresses)
        # read where it lies, if rows or terms are contiguous and start at whole vectors
        plain = layout.units == k and layout.weight_strides in ((k, 1), (1, k))
        self._direct = plain and not any(address % 16 for address in addresses[:-1])
        packed, self._rows_of_w = self.shape.packed, 64 if k < 64 and self.shape.warpgroups else k
        self._padded = self._empty(0 if self._direct and not packed else self._sums, self._rows_of_w, k)
        strides = layout.weight_strides
        if not self._direct and not packed:
            strides = k, 1
            addresses[:-1] = [self._padded.data_ptr() + 4 * k * k * r for r in range(self._sums)]
        self._strides, self._terms_first = strides, strides == (1, k)
        rows, links, tasks = layout.tasks(self.shape.ordered)
        self._parts = len(rows) - self._sums - 1
        addresses = [*addresses[:-1], *[0] * self._parts, addresses[-1]]
        heads = [
            [*row[:8], *struct.unpack("2i", struct.pack("Q", address)), *row[8:]]
            for row, address in zip(rows, addresses, strict=True)
        ]
        self._regions = torch.tensor(heads, dtype=torch.int32, device=self._weights.device)
        self._links = self._numbers(links + tasks, torch.int32)
        self._tasks = len(tasks)
        self._tables = self._empty(self._inputs, self.table_rows, k)
        digests = {
            "tables": self._inputs * k // 32,
            "pack": self._sums * self._rows_of_w // 16,
        }
        self._work = {entry: self._empty(n, dtype=torch.int64) for entry, n in digests.items()}
        self.forget()
        self._probabilities = self._numbers(layout.input_addresses)
        self._sizes = self._numbers(layout.input_sizes)
        self._variables = self._numbers(layout.input_variables)
        self._export_rows = self._numbers([-1] * (self._inputs + self._sums))
        most = self.shape.blocks * self._device.multiprocessors
        self._scratch = self._empty(most, self.shape.columns, k)

    def _columns(self, batch: int) -> int:
        """`batch`, rounded up to whole tiles."""
        return -(-batch // self.shape.columns) * self.shape.columns

    def reserve(self, batch: int) -> None:
        """Make the buffers large enough for `batch` rows of x."""
        if batch < 1:
            raise ValueError(f"batch must be >= 1, got {batch}")
        if batch <= self._capacity:
            return
        columns, sums = self._columns(batch), self._sums + self._parts
        self._rows = self._empty(self.layout.n_variables, columns, dtype=torch.int32)
        #: (sum regions and parts, columns, units): log2 of a value, less the region's offset
        self._values = self._empty(sums, columns, self.units)
        self._offsets = self._empty(sums + 1, columns, dtype=torch.float64)
        self._flags = self._empty((sums + 1) * columns // self.shape.columns + 1, dtype=torch.int32)
        self._capacity = columns

    def _arguments(self, batch: int, keep_all: bool) -> bytes:
        layout = self.layout
        fixed = (
            self._tables, self._regions, self._links, self._export_rows, self._weights, self._probabilities,
            self._sizes, self._variables,
        )  # fmt: skip
        return struct.pack(
            "8Q8Q16q",
            *[0] * 8, *(t.data_ptr() for t in fixed),
            *self._strides, *layout.weight_strides, *layout.input_strides,
            self._sums + self._parts + 1, self._inputs, layout.n_variables, batch, self._columns(batch),
            self.table_rows, layout.units, self._tasks, self._links.numel() - self._tasks, keep_all,
        )  # fmt: skip

    def _launch(
        self, entry: str, batch: int, x: int = 0, out: int = 0, xtype: int = 0, keep_all: bool = False
    ) -> None:
        key = entry, batch, xtype, keep_all
        launch = self._launches.get(key)
        if launch is None:
            if len(self._launches) > 256:
                self._launches.clear()
            launch = self._launches[key] = self._make(*key)
        code = launch(
            torch.cuda.current_stream(self.index).cuda_stream, x, out, self._rows.data_ptr(),
            self._values.data_ptr(), self._offsets.data_ptr(), self._flags.data_ptr(),
            self._work.get(entry, self._scratch).data_ptr(), self._padded.data_ptr(),
        )  # fmt: skip
        if code:
            raise CudaError(f"launching {entry} of circuits.cu: {describe(code)}")

    def _make(self, entry: str, batch: int, xtype: int, keep_all: bool) -> Any:
        shape, k = self.shape, self.units
        columns, strips = self._columns(batch), -(-k // 32)
        blocks, shared = 1, 32 * 33 * 4
        if entry == "forward":
            blocks, shared = shape.blocks, shape.shared(k)
            tasks = self._tasks * columns // shape.columns
            grid = (min(tasks, blocks * self._device.multiprocessors), 1)
        elif entry == "prepare":
            grid = (-(-columns // 32), -(-self.layout.n_variables // 32))
        elif entry == "pad":
            grid = (self._sums, strips * strips)
        elif entry == "pack":
            grid, shared = (self._sums, self._rows_of_w // 16), 16 * (k + 1) * 4
        elif entry == "tables":
            grid = (self._inputs, strips)
        else:
            grid = (self._inputs + self._sums, -(-batch // 32) * strips)
        macros = (
            f"PFKIT_K={k} PFKIT_COLUMNS={shape.columns} PFKIT_AHEAD={shape.ahead} "
            f"PFKIT_WGMMA={int(shape.warpgroups)} PFKIT_NEAR={int(shape.near)} "
            f"PFKIT_ORDERED={int(shape.ordered)} PFKIT_TERMS_FIRST={int(self._terms_first)} "
            f"PFKIT_PACKED={int(shape.packed)} PFKIT_XTYPE={xtype}"
        )
        kernel = DeviceKernel(
            "circuits.cu", entry, 0, shape.threads, blocks,
            shared=shared, define=macros, specific=shape.warpgroups,
        )  # fmt: skip
        return self._device.launch(kernel, grid, self._arguments(batch, keep_all))

    def forget(self) -> None:
        """Have the next :meth:`refresh` write everything, whatever the digests say."""
        for digests in self._work.values():
            digests.fill_(-1)

    def refresh(self) -> None:
        """Lay out the parameters as they are now, on the current stream.

        Parameters are read; what is made of them is written where a 64-bit digest, of 32 units of an input or
        16 rows of W, is not that of the last time.
        """
        if self.shape.packed and self._sums:
            self._launch("pack", 1)
        elif not self._direct and self._sums:
            self._launch("pad", 1)
        self._launch("tables", 1)

    def run(self, x: Tensor, out: Tensor | None = None, *, keep_all: bool = False) -> Tensor:
        """log p of each row of x, in nats, on the current stream.

        Parameters
        ----------
        x : Tensor, (batch, n_variables)
            int64, int32 or uint8, contiguous, on the plan's device. Below zero: missing, summed out. A
            category that no input has gives NaN.
        out : Tensor, (batch,), float32, optional
        keep_all : bool
            Keep the values of all regions, for :meth:`export`.

        Raises
        ------
        ValueError
            For another shape, dtype, device or layout.
        """
        variables = self.layout.n_variables
        if x.dim() != 2 or x.shape[1] != variables or x.dtype not in _XTYPES or not x.is_contiguous():
            raise ValueError(
                f"x must be a contiguous (batch, {variables}) tensor of int64, int32 or uint8, "
                f"got {tuple(x.shape)} {x.dtype} with strides {x.stride()}"
            )
        batch = x.shape[0]
        for name, t in (("x", x), ("out", out)):
            if t is not None and (t.device.type != "cuda" or t.device.index != self.index):
                raise ValueError(f"{name} must be on cuda:{self.index}, got {t.device}")
        if out is None:
            out = torch.empty(batch, dtype=torch.float32, device=x.device)
        elif out.shape != (batch,) or out.dtype != torch.float32 or not out.is_contiguous():
            raise ValueError(f"out must be contiguous float32 ({batch},), got {tuple(out.shape)} {out.dtype}")
        if batch:
            self.reserve(batch)
            self._launch("prepare", batch, x.data_ptr(), 0, _XTYPES[x.dtype])
            self._launch("forward", batch, 0, out.data_ptr(), keep_all=keep_all)
        return out

    def set_export(self, rows: Sequence[int]) -> None:
        """Row of the export at which the units of each input, then of each sum region, begin; -1 leaves it
        out."""
        if len(rows) != self._inputs + self._sums:
            raise ValueError(f"rows must have {self._inputs + self._sums} entries, got {len(rows)}")
        self._export_rows.copy_(torch.tensor(list(rows), dtype=torch.int64))

    def export(self, out: Tensor) -> Tensor:
        """Write the values of the last run, which must have kept them all, in nats into `out` (rows, batch),
        float32, contiguous, in the rows of :meth:`set_export`. Other rows are left as they are."""
        if out.dim() != 2 or out.dtype != torch.float32 or not out.is_contiguous():
            raise ValueError(f"out must be contiguous float32 (rows, batch), got {out.shape} {out.dtype}")
        if out.shape[1]:
            self._launch("export_values", out.shape[1], 0, out.data_ptr())
        return out
