"""Derivatives with respect to what makes up units of value zero.

:mod:`propagate` passes down derivatives with respect to logarithms, d log p / d log v. Those are 0 where a
value v is 0, though d log p / d v, and with it the derivative with respect to the probabilities that v is
made of, may not be: raise one from 0, and rows become likelier. Here the logarithm of d log p / d v goes
down the circuit instead, for the rows that have such units, and gives the derivatives that are missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .log_matmul import _scaled, log_matmul

if TYPE_CHECKING:
    from .circuit import Circuit
    from .layers import ProductLayer

Tensor = torch.Tensor


@dataclass
class ZeroUnits:
    """What :func:`derivatives` found.

    ``rows`` are those with units of value zero. ``sums`` are derivatives with respect to the weights of such
    units, summed over rows, shaped like the weights. ``inputs`` (I, K, rows) is d log p / d v of input units
    of value zero, 0 elsewhere, times the derivative at the root.
    """

    rows: Tensor
    sums: list[Tensor]
    inputs: Tensor


def derivatives(circuit: Circuit, values: Tensor, root: Tensor, grad: Tensor) -> ZeroUnits | None:
    """The derivatives that pass through units of value zero; None if no row has any.

    Parameters
    ----------
    values, root : Tensor, (n_regions, K, B) and (B,)
        From :func:`~pfkit.circuits.propagate.upward`.
    grad : Tensor, (B,)
        Derivative at the root. Rows of probability zero carry none.

    Notes
    -----
    A derivative above e^68 (float32; e^689 in float64) counts as that.
    """
    with torch.no_grad():
        found = (values == -math.inf).any(1).any(0) & (root > -math.inf) & (grad != 0)
        rows = torch.nonzero(found).flatten()
        if not rows.numel():
            return None
        values, grad = values[:, :, rows], grad[rows]
        limit = math.log(torch.finfo(values.dtype).max) - 20

        def linear(log_derivative: Tensor, at: Tensor) -> Tensor:
            return torch.where(at == -math.inf, log_derivative.clamp(max=limit).exp() * grad, 0.0)

        slope = torch.full_like(values, -math.inf)  # log of d log p / d v
        _share(circuit.root_product, values, torch.log(circuit.root_weight).unsqueeze(2) - root[rows], slope)
        sums: list[Tensor] = []
        for start, product, layer in reversed(circuit.layers()):
            weight = layer.weight
            here = slice(start, start + weight.shape[0])
            s, m = _scaled(product(values))
            sums.append(torch.matmul(linear(slope[here] + m, values[here]), s.transpose(1, 2)))
            _share(product, values, log_matmul(weight.transpose(1, 2), slope[here]), slope)
        sums.reverse()
        first = slice(circuit.inputs.shape[0])
        return ZeroUnits(rows, sums, linear(slope[first], values[first]))


def _share(product: ProductLayer, values: Tensor, incoming: Tensor, slope: Tensor) -> None:
    """Add to the slopes of factors: the slope of a factor is the product's times all other factors."""
    rest = torch.zeros_like(incoming)  # the product of the factors that are not zero
    zeros = torch.zeros_like(incoming)
    for f, n in enumerate(product.prefix):
        v = values[product.children_table[:n, f]]
        rest[:n] += torch.where(v == -math.inf, 0.0, v)
        zeros[:n] += v == -math.inf
    for f, n in enumerate(product.prefix):
        children = product.children_table[:n, f]
        v = values[children]
        is_zero = v == -math.inf
        others = torch.where(is_zero, rest[:n], rest[:n] - v)
        added = torch.where(zeros[:n] == is_zero, incoming[:n] + others, -math.inf)
        number = children.tolist()
        if len(set(number)) == n:
            slope[children] = torch.logaddexp(slope[children], added)
        else:  # a region with several parents here
            for r, c in enumerate(number):
                slope[c] = torch.logaddexp(slope[c], added[r])
