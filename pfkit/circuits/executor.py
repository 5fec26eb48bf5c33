"""The fast exact forward of a circuit on CUDA: ``Circuit.log_prob`` runs it where it applies.

One launch walks the whole circuit on tensor cores, as good as float32 (see ``executor_plan``). Covered are
circuits with discrete inputs, float32 parameters, at most 512 units a region and one root product; others run
layer by layer.

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
    plan: ForwardPlan
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
        and len(circuit.graph.root) == 1
        and circuit.inputs.probs.is_contiguous()
        and circuit.root_weight.is_contiguous()
        and len(_weight_strides(circuit)) <= 1
    )


def _weight_strides(circuit: Circuit) -> set[tuple[int, ...]]:
    """Strides of W along results and terms, of all levels."""
    return {tuple(layer.weight.stride()[1:]) for _, _, layer in circuit.layers()}


def layout_of(circuit: Circuit, table: Tensor | None = None) -> Layout:
    """The circuit's parameters where they lie; `table` in the place of a Bernoulli circuit's."""
    k, graph = circuit.n_units, circuit.graph
    probs = circuit.inputs.probs.detach() if table is None else table
    n_inputs, _, size = probs.shape
    weights = [layer.weight for _, _, layer in circuit.layers()]
    addresses = [w.data_ptr() + 4 * r * w.stride(0) for w in weights for r in range(w.shape[0])]
    row, column = next(iter(_weight_strides(circuit)), (k, 1))
    return Layout(
        units=k,
        n_variables=circuit.n_variables,
        input_variables=graph.input_variables,
        input_addresses=[probs.data_ptr() + 4 * k * size * i for i in range(n_inputs)],
        input_sizes=[size] * n_inputs,
        input_strides=(size, 1),
        children=[children for level in graph.levels for children in level],
        root=graph.root[0],
        weight_addresses=[*addresses, circuit.root_weight.data_ptr()],
        weight_strides=(row, column),
        keep=(probs,),
    )


def _plan(circuit: Circuit, batch: int) -> ForwardPlan | None:
    """The circuit's plan, its parameters up to date; None if it is not covered."""
    version = circuit.version()
    kept = _kept.get(circuit)
    if kept is not None and kept.version == version:
        return kept.plan
    if not covers(circuit):
        return None
    addresses = tuple(address for address, _ in version)
    if kept is None or kept.addresses != addresses:
        bernoulli = circuit.inputs.family == "bernoulli"
        table = torch.empty((*circuit.inputs.shape, 2), device=circuit.device) if bernoulli else None
        plan = ForwardPlan(layout_of(circuit, table), batch, circuit.root_weight.get_device())
        kept = _kept[circuit] = _Kept(plan, table, None, addresses)
    if kept.table is not None:
        p = circuit.inputs.probs.detach()
        torch.stack((1 - p, p), 2, out=kept.table)
    kept.plan.refresh()
    kept.version = version
    return kept.plan


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
    plan = _plan(circuit, max(1, min(part, x.shape[0])))
    if plan is None:
        return None
    out = torch.empty(x.shape[0], device=x.device)
    for start in range(0, x.shape[0], part):
        plan.run(x[start : start + part], out[start : start + part])
    return out


def values(circuit: Circuit, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Log values of all regions, (n_regions, K, B), and of the root, (B,); None as for :func:`log_prob`."""
    x = x.contiguous()
    plan = _plan(circuit, max(1, x.shape[0]))
    if plan is None:
        return None
    k, n = circuit.n_units, circuit.n_regions
    out = torch.empty((n, k, x.shape[0]), device=x.device)
    root = plan.run(x, keep_all=True)
    plan.set_export(range(0, n * k, k))
    plan.export(out.view(n * k, x.shape[0]))
    return out, root
