"""The tables of a compiled model executed by the CUDA forward of circuits, on PyJuice's own memory.

The kernels take the addresses and strides of weights and probabilities, so nothing of PyJuice's is copied or
moved: its parameters are laid out for the tensor cores anew in every call, from where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .executor_plan import UNITS, ForwardPlan, Layout
from .pyjuice_tables import CircuitTables, Unsupported

__all__ = ["CudaEngine"]

_RECORDINGS = 8  # sizes of batches whose graphs are kept


@dataclass
class _Recording:
    """The buffers of one size of batch, and the graph that works on them."""

    x: torch.Tensor
    out: torch.Tensor
    graph: torch.cuda.CUDAGraph | None = None
    calls: int = 0


class CudaEngine:
    """Evaluate a circuit on a GPU from its tables. Arguments as of ``PlainEngine``; float32.

    Raises
    ------
    Unsupported
        Regions differ in size or are larger than the kernels', inputs differ in their number of categories, a
        region is a child of several products, or the root has several nodes.
    pfkit.lse.cuda.CudaUnavailable
        CUDA kernels cannot run here.
    """

    name = "CUDA kernels"

    def __init__(
        self, tables: CircuitTables, params: torch.Tensor, input_params: Sequence[torch.Tensor]
    ) -> None:
        self.tables, self.params = tables, params
        # where weights are cut into blocks: their positions, and the copy in which they are not
        self._gathered: tuple[torch.Tensor, torch.Tensor] | None = None
        self._layout = self._lay_out(list(input_params))
        self._plan: ForwardPlan | None = None
        self._reserved = 0
        self._recordings: dict[tuple[int, torch.dtype], _Recording] = {}
        self._last: torch.Tensor | None = None

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        """Log-likelihoods, (1, B), of integer categories x, (B, V); negative ones are marginalised. The next
        call may overwrite them."""
        if x.dtype not in (torch.uint8, torch.int32, torch.int64):
            x = x.to(torch.int32)
        with torch.cuda.device(x.device):
            key = x.shape[0], x.dtype
            recording = self._recordings.get(key)
            if recording is None:
                with torch.inference_mode(False):  # the buffers outlive it
                    recording = self._make_room(key)
            if recording.graph is None and recording.calls and not torch.cuda.is_current_stream_capturing():
                self._record(recording)
            recording.calls += 1
            if recording.graph is None:
                self._launch(x.contiguous(), recording.out)
            else:
                recording.x.copy_(x)
                recording.graph.replay()
        self._last = recording.out
        return recording.out[None]

    def _launch(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Everything that a call does on the device."""
        assert self._plan is not None
        if self._gathered is not None:
            index, blocks = self._gathered
            torch.index_select(self.params, 0, index, out=blocks)
        self._plan.refresh()
        self._plan.run(x, out, keep_all=True)

    def _make_room(self, key: tuple[int, torch.dtype]) -> _Recording:
        """Buffers for a size of batch that has not been seen, or not lately."""
        batch, dtype = key
        device = self.params.device
        if self._plan is None:
            self._plan = ForwardPlan(self._layout, batch, device.index)
            self._plan.set_export([region.row for region in self.tables.regions[:-1]])
        if batch > self._reserved:  # buffers move, and with them what graphs point at
            self._plan.reserve(batch)
            self._recordings.clear()
            self._reserved = batch
        while len(self._recordings) >= _RECORDINGS:
            self._recordings.pop(next(iter(self._recordings)))
        x = torch.empty(batch, self.tables.num_variables, dtype=dtype, device=device)
        recording = self._recordings[key] = _Recording(
            x, torch.empty(batch, dtype=torch.float32, device=device)
        )
        return recording

    def _record(self, recording: _Recording) -> None:
        """Capture a call as a graph, which starts in a fraction of the time of its kernels one by one."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            self._launch(recording.x, recording.out)
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        recording.graph = graph

    def export(self, out: torch.Tensor) -> None:
        """Node values of the last ``log_prob`` into ``out``, (num_nodes, B) float32, in PyJuice's order."""
        if self._plan is None or self._last is None:
            raise RuntimeError("no log_prob has run yet")
        self._plan.export(out)
        out[self.tables.root.row] = self._last

    def _lay_out(self, input_params: list[torch.Tensor]) -> Layout:
        tables = self.tables
        *sums, root = tables.sums
        units = root.child_size
        if root.size != 1:
            raise Unsupported(f"there are {root.size} roots")
        if units > UNITS[-1]:
            raise Unsupported(
                f"regions of {units} nodes are larger than the {UNITS[-1]} there are kernels for"
            )
        if any(region.size != units for region in tables.regions[:-1]):
            raise Unsupported("regions differ in size")
        categories = {leaf.categories for leaf in tables.inputs}
        if len(categories) != 1:
            raise Unsupported("inputs differ in their number of categories")
        used = [child for region in tables.sums for child in region.children]
        if len(set(used)) != len(used):
            raise Unsupported("a region is a child of several products")
        starts = [region.weights for region in sums]
        source, strides = self.params, (1, units)  # stored child by child
        if None in starts:
            index = torch.cat([torch.as_tensor(region.weight_index()).flatten() for region in sums])
            source = torch.empty(index.numel(), dtype=torch.float32, device=self.params.device)
            self._gathered = index.to(self.params.device), source
            starts = [i * units * units for i in range(len(sums))]
        weights = [source.data_ptr() + 4 * int(start or 0) for start in starts]
        if root.weights is None:
            raise Unsupported("the weights of the root are not stored together")
        return Layout(
            units=units,
            n_variables=tables.num_variables,
            input_variables=[leaf.variable for leaf in tables.inputs],
            input_addresses=[
                input_params[leaf.layer].data_ptr() + 4 * leaf.parameters for leaf in tables.inputs
            ],
            input_sizes=[leaf.categories for leaf in tables.inputs],
            input_strides=(categories.pop(), 1),
            children=[region.children for region in sums],
            root=root.children,
            weight_addresses=[*weights, self.params.data_ptr() + 4 * root.weights],
            weight_strides=strides,
            keep=(self.params, source, *input_params),
        )
