"""The two passes over a circuit: values upward, flows downward.

Upward: the log value of every region for every row. Downward: the derivative of the rows' log-likelihoods
with respect to every region's log value. With a gradient of 1 at the root that derivative is the *flow*:
the posterior probability of a unit given the row, and ``weight * derivative`` is the expected count of an
edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import zero_units
from .kernel_sum import kernel_sum
from .log_matmul import log_matmul, log_matmul_backward

if TYPE_CHECKING:
    from .circuit import Circuit
    from .layers import ProductLayer

Tensor = torch.Tensor


def upward(
    circuit: Circuit, x: Tensor, lse: str = "matmul", *, flag: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Values (n_regions, K, B) and the root's (B,), no gradients; x as ``InputLayer.forward`` takes it.

    `flag`: see :func:`~pfkit.circuits.log_matmul.log_matmul`.
    """
    with torch.no_grad():
        first = circuit.inputs(x)
        values = first.new_empty((circuit.n_regions, circuit.n_units, x.shape[0]))
        values[: first.shape[0]] = first
        del first
        for start, product, layer in circuit.layers():
            terms = product(values)
            weight = layer.weight
            y = log_matmul(weight, terms, flag=flag) if lse == "matmul" else kernel_sum(weight, terms, lse)
            values[start : start + y.shape[0]] = y
        root, mix = _at_root(circuit, values), circuit.root_weight.reshape(1, 1, -1)
        y = log_matmul(mix, root, flag=flag) if lse == "matmul" else kernel_sum(mix, root, lse)
        return values, y[0, 0]


def _at_root(circuit: Circuit, values: Tensor) -> Tensor:
    """Products at the root as one region of T * K units: (1, T * K, B)."""
    product: Tensor = circuit.root_product(values)
    return product.flatten(0, 1).unsqueeze(0)


@dataclass
class Flows:
    """What :func:`downward` found, summed over rows; fields shaped like the parameters they belong to.

    ``sums``, ``root`` and (categorical, Bernoulli) ``inputs`` are expected counts; ``region_flow`` (I, K,
    B) is the flow of every input unit, per row.
    """

    sums: list[Tensor]
    root: Tensor
    region_flow: Tensor


def downward(
    circuit: Circuit, values: Tensor, grad: Tensor, *, flow: bool = True, flag: Tensor | None = None
) -> Flows:
    """Flows of a circuit.

    Parameters
    ----------
    values : Tensor, (n_regions, K, B)
        From :func:`upward`.
    grad : Tensor, (B,)
        Derivative at the root: ones for flows. Rows of probability zero carry none.
    flow : bool
        Expected counts ``weight * derivative``; False: plain derivatives with respect to the weights.
    flag : Tensor, optional
        See :func:`~pfkit.circuits.log_matmul.log_matmul`.
    """
    with torch.no_grad():
        passed = torch.zeros_like(values)
        weight = circuit.root_weight.reshape(1, 1, -1)
        grad_x, grad_root = log_matmul_backward(
            weight, _at_root(circuit, values), grad.reshape(1, 1, -1), flow=flow, flag=flag
        )
        trees = circuit.root_weight.shape[0]  # no -1 in a shape: a batch may be empty
        _share(circuit.root_product, passed, grad_x.reshape(trees, *values.shape[1:]))
        sums: list[Tensor] = []
        for start, product, layer in reversed(circuit.layers()):
            weight = layer.weight
            incoming = passed[start : start + weight.shape[0]]
            grad_x, grad_w = log_matmul_backward(weight, product(values), incoming, flow=flow, flag=flag)
            _share(product, passed, grad_x)
            sums.append(grad_w)
        sums.reverse()
        return Flows(sums, grad_root.reshape(circuit.root_weight.shape), passed[: circuit.inputs.shape[0]])


def _share(product: ProductLayer, passed: Tensor, grad: Tensor) -> None:
    """Every factor of a product gets the product's derivative."""
    for f, n in enumerate(product.prefix):
        passed.index_add_(0, product.children_table[:n, f], grad[:n])


def input_counts(circuit: Circuit, x: Tensor, region_flow: Tensor) -> Tensor:
    """Expected counts (I, K, C) of categories: the flow of each unit, added up by observed category."""
    n_categories = circuit.inputs.n_categories
    assert n_categories is not None
    category = x.index_select(1, circuit.inputs.variables).T  # (I, B)
    if n_categories <= 8:
        parts = [
            torch.matmul(region_flow, (category == c).to(region_flow.dtype).unsqueeze(2)).squeeze(2)
            for c in range(n_categories)
        ]
        return torch.stack(parts, 2)
    n_inputs, n_units, _ = region_flow.shape
    counts = region_flow.new_zeros((n_inputs, n_units, n_categories + 1))  # the last one: missing
    category = torch.where(category < 0, n_categories, category)
    counts.scatter_add_(2, category.unsqueeze(1).expand(-1, n_units, -1), region_flow)
    return counts[:, :, :n_categories]


def gaussian_moments(circuit: Circuit, x: Tensor, region_flow: Tensor) -> Tensor:
    """Expected counts, sums and sums of squares about the means: (I, K, 3). Missing counts nothing."""
    value = x.index_select(1, circuit.inputs.variables).T.unsqueeze(1)  # (I, 1, B)
    missing = torch.isnan(value)
    flow = torch.where(missing, torch.zeros_like(region_flow), region_flow)
    centred = torch.where(missing, torch.zeros_like(value), value) - circuit.inputs.mean.unsqueeze(2)
    return torch.stack((flow.sum(2), (flow * centred).sum(2), (flow * centred * centred).sum(2)), 2)


class LogProb(torch.autograd.Function):
    """log p(x) for autograd: the derivative with respect to every parameter, and to Gaussian data.

    The derivative is that of the exact circuit, whatever kernel gave the value; at a probability of exactly 0
    it is the one-sided one. Rows of probability zero pass no gradient down, and none is NaN.
    """

    @staticmethod
    def forward(ctx, circuit, x, lse, *parameters):  # type: ignore[no-untyped-def, override]
        values, root = None, circuit._executed(x, lse)  # values are found when a gradient is asked for
        if root is None:
            values, root = upward(circuit, x, lse)
        ctx.circuit = circuit
        ctx.save_for_backward(x, values, root, *parameters)
        return root

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        if torch.is_grad_enabled():  # a gradient that is silently constant would be wrong
            raise NotImplementedError("a circuit's log_prob has no second derivatives (create_graph=True)")
        x, values, root, *_ = ctx.saved_tensors
        circuit = ctx.circuit
        if values is None:
            values, root = upward(circuit, x)
        flows = downward(circuit, values, grad, flow=False)
        zeros = zero_units.derivatives(circuit, values, root, grad)
        sums = flows.sums if zeros is None else [g + h for g, h in zip(flows.sums, zeros.sums, strict=True)]
        found = {id(layer.weight): g for layer, g in zip(circuit.sums, sums, strict=True)}
        found[id(circuit.root_weight)] = flows.root
        grad_x = None
        inputs = circuit.inputs
        if inputs.family == "gaussian":
            moments = gaussian_moments(circuit, x, flows.region_flow)
            sd = inputs.sd
            found[id(inputs.mean)] = moments[:, :, 1] / sd**2
            found[id(inputs.sd)] = moments[:, :, 2] / sd**3 - moments[:, :, 0] / sd
            if ctx.needs_input_grad[1]:
                grad_x = _gaussian_grad_x(circuit, x, flows.region_flow)
        else:
            counts = input_counts(circuit, x, flows.region_flow)
            p = inputs.probs
            table = p if inputs.family == "categorical" else torch.stack((1 - p, p), 2)
            at_zero = torch.zeros_like(counts)
            if zeros is not None:
                at_zero = input_counts(circuit, x[zeros.rows], zeros.inputs)
            each = torch.where(table > 0, counts / table, at_zero)
            found[id(p)] = each if inputs.family == "categorical" else each[:, :, 1] - each[:, :, 0]
        return None, grad_x, None, *(found[id(p)] for p in circuit.tensors())


def _gaussian_grad_x(circuit: Circuit, x: Tensor, region_flow: Tensor) -> Tensor:
    variables = circuit.inputs.variables
    value = x.index_select(1, variables).T.unsqueeze(1)
    slope = (circuit.inputs.mean.unsqueeze(2) - value) / circuit.inputs.sd.unsqueeze(2) ** 2
    part = torch.where(torch.isnan(value), torch.zeros_like(region_flow), slope * region_flow)
    return torch.zeros_like(x).index_add_(1, variables, part.sum(1).T)
