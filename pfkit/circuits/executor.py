"""The fast exact forward of a circuit on CUDA: ``Circuit.log_prob`` runs it where it applies.

One launch walks the whole circuit on tensor cores, as good as float32 (see ``executor_plan``). Covered are
circuits with discrete inputs, float32 parameters and at most 512 units a region; others run layer by layer.
What is below a product of the root is a tree, because products have disjoint scopes; a mixture of several
products has a plan for each.

Plans are kept with the circuit they belong to, and lay out its parameters anew when ``circuit.version()``
says they changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from .circuit import Circuit
from .executor_plan import UNITS, ForwardPlan, Layout

Tensor = torch.Tensor

MAX_VALUES = 1 << 29  # values of a run, 2 GB; a larger batch is cut into parts
SMALLEST_PART = 512


@dataclass
class _Kept:
    plans: list[ForwardPlan]  # one for each product of the root
    table: Tensor | None  # Bernoulli: both probabilities of each unit, (I, K, 2)
    version: Any
    addresses: Any


_kept: WeakKeyDictionary[Circuit, _Kept] = WeakKeyDictionary()


def covers(circuit: Circuit) -> bool:
    """Whether this forward can run the circuit where it is."""
    return (
        circuit.device.type == "cuda"
        and circuit.dtype == torch.float32
        and circuit.inputs.family != "gaussian"
        and circuit.n_units <= UNITS[-1]
        and circuit.inputs.probs.is_contiguous()
        and circuit.root_weight.is_contiguous()
        and len(_weight_strides(circuit)) <= 1
    )


def _weight_strides(circuit: Circuit) -> set[tuple[int, ...]]:
    """Strides of W along results and terms, of all levels."""
    return {tuple(layer.weight.stride()[1:]) for _, _, layer in circuit.layers()}


def regions_below(circuit: Circuit, product: int) -> list[int]:
    """The regions that a product of the root is made of, in the circuit's order."""
    graph, n_inputs = circuit.graph, len(circuit.graph.input_variables)
    children = [children for level in graph.levels for children in level]
    waiting = list(graph.root[product])
    for r in waiting:
        if r >= n_inputs:
            waiting += children[r - n_inputs]
    return sorted(waiting)


def layout_of(circuit: Circuit, table: Tensor | None = None, product: int = 0) -> Layout:
    """Parameters where they lie, of what is below a product of the root, whose weights go with it; `table` in
    the place of a Bernoulli circuit's."""
    k, graph = circuit.n_units, circuit.graph
    probs = circuit.inputs.probs.detach() if table is None else table
    n_inputs, _, size = probs.shape
    weights = [layer.weight for _, _, layer in circuit.layers()]
    addresses = [w.data_ptr() + 4 * r * w.stride(0) for w in weights for r in range(w.shape[0])]
    row, column = next(iter(_weight_strides(circuit)), (k, 1))
    children = [children for level in graph.levels for children in level]
    kept = regions_below(circuit, product)
    number = {r: i for i, r in enumerate(kept)}
    inputs = [r for r in kept if r < n_inputs]
    sums = [r - n_inputs for r in kept[len(inputs) :]]
    return Layout(
        units=k,
        n_variables=circuit.n_variables,
        input_variables=[graph.input_variables[i] for i in inputs],
        input_addresses=[probs.data_ptr() + 4 * k * size * i for i in inputs],
        input_sizes=[size] * len(inputs),
        input_strides=(size, 1),
        children=[[number[c] for c in children[r]] for r in sums],
        root=[number[c] for c in graph.root[product]],
        weight_addresses=[*(addresses[r] for r in sums), circuit.root_weight.data_ptr() + 4 * k * product],
        weight_strides=(row, column),
        keep=(probs,),
    )


def _plans(circuit: Circuit, batch: int) -> list[ForwardPlan] | None:
    """The circuit's plans, their parameters up to date; None if it is not covered."""
    version = circuit.version()
    kept = _kept.get(circuit)
    if kept is not None and kept.version == version:
        return kept.plans
    if not covers(circuit):
        return None
    addresses = tuple(address for address, _ in version)
    if kept is None or kept.addresses != addresses:
        bernoulli = circuit.inputs.family == "bernoulli"
        table = None
        if bernoulli:
            table = torch.empty((*circuit.inputs.shape, 2), dtype=torch.float32, device=circuit.device)
        device = circuit.root_weight.get_device()
        products = range(len(circuit.graph.root))
        plans = [ForwardPlan(layout_of(circuit, table, p), batch, device) for p in products]
        kept = _kept[circuit] = _Kept(plans, table, None, addresses)
    if kept.table is not None:
        p = circuit.inputs.probs.detach()
        torch.stack((1 - p, p), 2, out=kept.table)
    for plan in kept.plans:
        plan.refresh()
    kept.version = version
    return kept.plans


def log_prob(circuit: Circuit, x: Tensor) -> Tensor | None:
    """log p(x), or None if this forward does not cover the circuit.

    Parameters
    ----------
    circuit : Circuit
    x : Tensor, (B, V), int64
        Categories, -1 for missing, on the circuit's device.

    Returns
    -------
    Tensor, (B,), float32
        Nats; -inf for probability zero; NaN for a category that no input has. The error is a few float32
        roundings a region, not more where log p is large: the maxima are added up in float64.
    """
    x = x.contiguous()
    part = max(SMALLEST_PART, MAX_VALUES // (circuit.n_regions * circuit.n_units))
    plans = _plans(circuit, max(1, min(part, x.shape[0])))
    if plans is None:
        return None
    out = torch.empty((len(plans), x.shape[0]), dtype=torch.float32, device=x.device)
    for start in range(0, x.shape[0], part):
        for plan, ll in zip(plans, out, strict=True):
            plan.run(x[start : start + part], ll[start : start + part])
    return out[0] if len(plans) == 1 else torch.logsumexp(out, 0)


def values(circuit: Circuit, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Log values of all regions, (n_regions, K, B), and of the root, (B,); None as for :func:`log_prob`.
    NaN for regions that no product of the root is made of."""
    x = x.contiguous()
    plans = _plans(circuit, max(1, x.shape[0]))
    if plans is None:
        return None
    k, n = circuit.n_units, circuit.n_regions
    out = torch.full((n, k, x.shape[0]), torch.nan, dtype=torch.float32, device=x.device)
    roots = []
    for product, plan in enumerate(plans):
        roots.append(plan.run(x, keep_all=True))
        plan.set_export([k * r for r in regions_below(circuit, product)])
        plan.export(out.view(n * k, x.shape[0]))
    return out, torch.logsumexp(torch.stack(roots), 0) if len(roots) > 1 else roots[0]
