"""What a compiled PyJuice model computes, read from its own index tables.

A compiled model keeps node values in one matrix ``node_mars`` (rows: nodes, columns: the batch) and sum
weights, in the linear domain, in one vector ``params``. Its layers hold only indices into those two. Read
back as regions (a block of nodes over the same variables), a hidden Chow-Liu tree is a short list::

    input region    rows r .. r+K of one variable; K categorical tables
    sum region      value[m] = log sum_e W[m, e] exp(sum over children c of value_c[e])

``read_tables(pc)`` gives that list, in an order in which children come first, or raises ``Unsupported``
with the reason. Nothing is copied but indices: weights stay where they are, so a table never goes stale
when they are learned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["CircuitTables", "InputRegion", "SumRegion", "Unsupported", "read_tables"]


class Unsupported(ValueError):
    """The model has a part that is not executed here; the text says which."""


@dataclass(frozen=True)
class InputRegion:
    """``size`` categorical nodes of one variable: node k has its ``categories`` probabilities at
    ``parameters + k * categories`` of the parameters of input layer ``layer``."""

    row: int
    size: int
    variable: int
    layer: int
    parameters: int
    categories: int


@dataclass(frozen=True, eq=False)
class SumRegion:
    """``size`` sum nodes over one product of the regions ``children`` (positions in the list of regions).

    ``weight_rows[j, e]`` is where in ``params`` the weights of edge ``e`` begin for the nodes of block j;
    those of one block are neighbours: the weight of node m is
    ``params[weight_rows[m // block, e] + m % block]``.
    """

    row: int
    size: int
    children: tuple[int, ...]
    weight_rows: np.ndarray  # (blocks, child_size) int64
    block: int

    @property
    def child_size(self) -> int:
        """Nodes in each child: the length of the sum."""
        return int(self.weight_rows.shape[1])

    @property
    def weights(self) -> int | None:
        """Where a plain (child, node) matrix of weights starts in ``params``; None if it is cut into
        blocks."""
        rows = self.weight_rows
        if rows.shape[0] != 1 or not np.array_equal(
            rows[0], rows[0, 0] + self.block * np.arange(rows.shape[1])
        ):
            return None
        return int(rows[0, 0])

    def weight_index(self) -> np.ndarray:
        """Positions in ``params`` of the weights, (child_size, size) int64."""
        index = self.weight_rows[:, :, None] + np.arange(self.block)  # (blocks, child_size, block)
        return index.transpose(1, 0, 2).reshape(self.child_size, self.size)


@dataclass(frozen=True)
class CircuitTables:
    """The regions of a circuit: inputs first, then sums, level by level; the last one is the root.

    ``levels`` cuts the sums: regions of one level depend only on inputs and earlier levels.
    """

    num_nodes: int
    num_variables: int
    inputs: tuple[InputRegion, ...]
    levels: tuple[tuple[SumRegion, ...], ...]
    regions: tuple[InputRegion | SumRegion, ...] = field(repr=False)

    @property
    def sums(self) -> tuple[SumRegion, ...]:
        """All sum regions, in order."""
        return tuple(region for level in self.levels for region in level)

    @property
    def root(self) -> SumRegion:
        """The region whose values are the log-likelihoods."""
        return self.levels[-1][-1]


def read_tables(pc: Any) -> CircuitTables:
    """Read the regions of a compiled PyJuice model.

    Parameters
    ----------
    pc : pyjuice.TensorCircuit
        A compiled model, on any device.

    Returns
    -------
    CircuitTables

    Raises
    ------
    Unsupported
        An input layer is not categorical over single variables, a sum has external parameters, several
        products or missing edges, or a product joins nodes in another order than their own.
    """
    inputs = _read_inputs(pc)
    regions: list[InputRegion | SumRegion] = list(inputs)
    at_row = {region.row: i for i, region in enumerate(regions)}
    levels = []
    groups = list(pc.inner_layer_groups)
    for products, sums in zip(groups[0::2], groups[1::2], strict=True):
        if not (products.is_prod() and sums.is_sum()):
            raise Unsupported("layers do not alternate between products and sums")
        children_of = _read_products(products)
        level = []
        for layer in sums.layers:
            level += _read_sums(layer, children_of, at_row, regions)
        for region in level:
            at_row[region.row] = len(regions)
            regions.append(region)
        levels.append(tuple(level))
    low, high = pc._root_node_range
    root = levels[-1][-1]
    if (root.row, root.row + root.size) != (low, high):
        raise Unsupported("the root is not one sum region")
    return CircuitTables(int(pc.num_nodes), int(pc.num_vars), tuple(inputs), tuple(levels), tuple(regions))


def _array(table: Any) -> np.ndarray:
    """A table of indices on the host."""
    return table.detach().cpu().numpy()


def _read_inputs(pc: Any) -> list[InputRegion]:
    """Every group of input nodes as a region."""
    regions = []
    for number, layer in enumerate(pc.input_layer_group.layers):
        if layer.dist_signature != "Categorical":
            raise Unsupported(f"input nodes are {layer.dist_signature}, not Categorical")
        if layer.num_vars_per_node != 1:
            raise Unsupported("an input node covers several variables")
        variables = _array(layer.vids)[:, 0]
        starts = _array(layer.s_pids)
        categories = _array(layer.metadata)[_array(layer.s_mids)].astype(np.int64)
        first = layer._output_ind_range[0]
        for nodes in layer.nodes:
            low, high = nodes._output_ind_range
            own = slice(low - first, high - first)
            n, start, variable = int(categories[own][0]), int(starts[own][0]), int(variables[own][0])
            if not np.array_equal(starts[own], start + n * np.arange(high - low)):
                raise Unsupported("the categories of an input region are not stored together")
            if (variables[own] != variable).any() or (categories[own] != n).any():
                raise Unsupported("an input region covers several variables")
            regions.append(InputRegion(low, high - low, variable, number, start, n))
    return regions


def _read_products(group: Any) -> dict[int, tuple[tuple[int, ...], int]]:
    """First element of each block of products -> (first nodes of its children, block length)."""
    found = {}
    for layer in group.layers:
        for nids, cids in zip(layer.partitioned_nids, layer.partitioned_cids, strict=True):
            # node 0 is a dummy that fills rows up to a power of two
            for first, children in zip(_array(nids).tolist(), _array(cids).tolist(), strict=True):
                found[first] = (tuple(c for c in children if c), int(layer.block_size))
    return found


def _read_sums(
    layer: Any,
    children_of: dict[int, tuple[tuple[int, ...], int]],
    at_row: dict[int, int],
    regions: list[InputRegion | SumRegion],
) -> list[SumRegion]:
    """The sum regions of one layer."""
    if "External" in type(layer).__name__:
        raise Unsupported("a sum layer takes external parameters")
    blocks = {}
    for nids, cids, pids in zip(
        layer.partitioned_nids, layer.partitioned_cids, layer.partitioned_pids, strict=True
    ):
        for first, elements, parameters in zip(
            _array(nids).tolist(), _array(cids), _array(pids), strict=True
        ):
            used = elements != 0
            blocks[first] = (elements[used], parameters[used])
    found = []
    for nodes in layer.nodes:
        low, high = nodes._output_ind_range
        own = [blocks[first] for first in range(low, high, layer.block_size)]
        elements = own[0][0]
        if any(not np.array_equal(elements, other) for other, _ in own):
            raise Unsupported("the nodes of a sum region have different children (sparse edges)")
        children = _children(elements, children_of, at_row)
        if any(regions[c].size != elements.size for c in children):
            raise Unsupported("a sum covers several products, or part of one")
        weight_rows = np.stack([parameters for _, parameters in own]).astype(np.int64)
        found.append(SumRegion(low, high - low, children, weight_rows, int(layer.block_size)))
    return found


def _children(
    elements: np.ndarray, children_of: dict[int, tuple[tuple[int, ...], int]], at_row: dict[int, int]
) -> tuple[int, ...]:
    """The regions that the product nodes ``elements`` multiply, one node of each, in order."""
    position = 0
    starts: tuple[int, ...] = ()
    while position < elements.size:
        first = int(elements[position])
        nodes, block = children_of.get(first, ((), 0))
        if not np.array_equal(elements[position : position + block], first + np.arange(block)) or block == 0:
            raise Unsupported("a sum has part of a block of products as children (sparse edges)")
        if position == 0:
            starts = nodes
        elif nodes != tuple(start + position for start in starts):
            raise Unsupported(
                "a sum covers several products, or a product joins nodes in another order than their own"
            )
        position += block
    if any(start not in at_row for start in starts):
        raise Unsupported("a product starts within a region")
    return tuple(at_row[start] for start in starts)
