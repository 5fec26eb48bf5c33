"""Expected counts of a batch: one pass up, one pass down; on CUDA replayed as one graph.

A pass launches some forty small kernels a level. For batches of one size they are captured once and
replayed, so that the host no longer bounds learning. The graph cannot compute underflown units again; it
flags them, and such a batch (rare, unless weights are exactly zero) is counted by the ordinary passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .propagate import downward, gaussian_moments, input_counts, upward

if TYPE_CHECKING:
    from .circuit import Circuit

Tensor = torch.Tensor


def expected_counts(circuit: Circuit, x: Tensor, flag: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """Log-likelihoods (B,) and, summed over rows, the expected counts of root, sum layers and inputs."""
    with torch.no_grad():
        values, root = upward(circuit, x, flag=flag)
        flows = downward(circuit, values, torch.ones_like(root), flag=flag)
        count = gaussian_moments if circuit.inputs.family == "gaussian" else input_counts
        return root, [flows.root, *flows.sums, count(circuit, x, flows.region_flow)]


class GraphedCounts:
    """:func:`expected_counts` for one batch size, captured at once."""

    def __init__(self, circuit: Circuit, x: Tensor) -> None:
        self.circuit = circuit
        self.shape = x.shape
        self.parameters = self._pointers()
        self.x = x.clone()
        self.flag = torch.zeros((), dtype=torch.bool, device=x.device)
        with torch.cuda.device(x.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries allocate their workspaces outside the capture
                expected_counts(circuit, self.x, self.flag)
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.flag.zero_()
                self.root, self.found = expected_counts(circuit, self.x, self.flag)

    def _pointers(self) -> tuple[int, ...]:
        return tuple(p.data_ptr() for p in self.circuit.tensors())

    def fits(self, x: Tensor) -> bool:
        """Whether the capture is of this batch size and of the parameters' present places."""
        return x.shape == self.shape and self._pointers() == self.parameters

    def __call__(self, x: Tensor) -> tuple[Tensor, list[Tensor]] | None:
        """As :func:`expected_counts`, the counts valid until the next call; None if a unit was too small."""
        self.x.copy_(x)
        self.graph.replay()
        if bool(self.flag):
            return None
        return self.root.clone(), self.found
