"""Questions to a circuit beyond log p(x): samples, most probable completions, posteriors of what is missing.

Samples and completions walk down from the root: at every region the unit chosen above picks one term of its
mixture, at random in proportion to ``weight * value`` (the value holds the evidence below), or the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .arguments import as_tensor
from .kernel_sum import kernel_sum
from .propagate import downward, upward

if TYPE_CHECKING:
    from .circuit import Circuit

Tensor = torch.Tensor
ROWS = 1024  # a piece of a batch: bounds memory


def torch_generator(rng: Any, device: torch.device) -> torch.Generator:
    """A torch generator on `device`, seeded from None, an int, a SeedSequence or a NumPy Generator."""
    if isinstance(rng, bool) or not (
        rng is None or isinstance(rng, int | np.integer | np.random.SeedSequence | np.random.Generator)
    ):
        raise TypeError(f"rng must be None, an int, a SeedSequence or a numpy Generator, got {rng!r}")
    if isinstance(rng, int | np.integer) and rng < 0:
        raise ValueError(f"rng must be >= 0, got {rng}")
    generator = torch.Generator(device)
    generator.manual_seed(int(np.random.default_rng(rng).integers(1 << 62)))
    return generator


def sample(circuit: Circuit, n: int, given: Any, rng: Any) -> Tensor:
    """See ``Circuit.sample``."""
    evidence = _evidence(circuit, n, given)
    generator = torch_generator(rng, circuit.device)

    def choose(scores: Tensor) -> Tensor:
        # the largest of log p + Gumbel noise is a draw from p; -inf never wins
        noise = torch.empty_like(scores).exponential_(generator=generator)
        noise = noise.clamp_min_(torch.finfo(scores.dtype).tiny).log_()
        return (scores - noise).argmax(-1)

    parts = []
    for at in range(0, n, ROWS):
        piece = evidence[at : at + ROWS]
        values, root = upward(circuit, piece)
        _possible(root, at)
        units = _descend(circuit, values, choose)
        parts.append(_complete(circuit, piece, units, choose, generator))
    return torch.cat(parts) if parts else evidence


def _evidence(circuit: Circuit, n: int, given: Any) -> Tensor:
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(f"n must be an integer, got {n!r}")
    if n < 0:
        raise ValueError(f"n must be >= 0, got {n}")
    if given is None:
        gaussian = circuit.inputs.family == "gaussian"
        missing, dtype = (math.nan, circuit.dtype) if gaussian else (-1, torch.int64)
        return circuit.data(torch.full((n, circuit.n_variables), missing, dtype=dtype, device=circuit.device))
    t = as_tensor(given, "given")
    if t.dim() == 1:
        if t.shape[0] != circuit.n_variables:
            raise ValueError(f"given must be rows of {circuit.n_variables} entries, got {t.shape[0]}")
        t = t.unsqueeze(0).expand(n, -1)
    t = circuit.data(t, name="given")
    if t.shape[0] != n:
        raise ValueError(f"given must be one row or n = {n} rows, got {t.shape[0]}")
    return t


def _possible(root: Tensor, at: int) -> None:
    """Raise ValueError if a row of evidence has probability zero, or NaN."""
    broken = torch.nonzero(torch.isnan(root))
    if broken.numel():
        raise ValueError(
            f"the log-likelihood of row {at + int(broken[0])} is NaN: are all parameters finite?"
        )
    zero = torch.nonzero(root == -math.inf)
    if zero.numel():
        raise ValueError(f"row {at + int(zero[0])} of the evidence has probability zero")


def _descend(circuit: Circuit, values: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
    """The unit chosen in each region, (n_regions, B); -1 where the region is not part of the chosen tree."""
    n_regions, n_units, batch = values.shape
    units = torch.full((n_regions, batch), -1, dtype=torch.int64, device=values.device)
    terms = circuit.root_product(values) + torch.log(circuit.root_weight).unsqueeze(2)  # (T, K, B)
    picked = choose(terms.reshape(-1, batch).T)
    tree, unit = picked // n_units, picked % n_units
    for t, children in enumerate(circuit.graph.root):
        for c in children:
            units[c] = torch.where(tree == t, unit, units[c])
    for (start, _, layer), level in zip(
        reversed(circuit.layers()), reversed(circuit.graph.levels), strict=True
    ):
        above = units[start : start + len(level)]  # (R, B)
        log_weight = torch.log(layer.weight)
        for r, children in enumerate(level):
            one = product_of(values, children)  # (K, B)
            chosen = choose(log_weight[r][above[r].clamp_min(0)] + one.T)
            chosen = torch.where(above[r] < 0, -1, chosen)
            for c in children:
                units[c] = torch.where(chosen >= 0, chosen, units[c])
    return units


def product_of(values: Tensor, children: tuple[int, ...]) -> Tensor:
    """One product's log values, (K, B)."""
    out = values[children[0]]
    for c in children[1:]:
        out = out + values[c]
    return out


def _complete(
    circuit: Circuit,
    data: Tensor,
    units: Tensor,
    choose: Callable[[Tensor], Tensor],
    generator: torch.Generator | None,
) -> Tensor:
    """`data` with missing entries drawn from the chosen units; without a generator, set to their modes."""
    inputs = circuit.inputs
    out = data.clone()
    batch = torch.arange(data.shape[0], device=data.device)
    table = None if inputs.family == "gaussian" else inputs.log_table()
    for i, v in enumerate(circuit.graph.input_variables):
        unit = units[i]
        if table is None:
            missing = torch.isnan(data[:, v])
            new = inputs.mean[i][unit.clamp_min(0)]
            if generator is not None:
                noise = torch.randn(new.shape, generator=generator, device=new.device, dtype=new.dtype)
                new = new + inputs.sd[i][unit.clamp_min(0)] * noise
        else:
            missing = data[:, v] < 0
            new = choose(table[i][unit.clamp_min(0)])
        out[batch, v] = torch.where(missing & (unit >= 0), new, out[:, v])
    return out


def mpe(circuit: Circuit, x: Any) -> Tensor:
    """See ``Circuit.mpe``."""
    data = circuit.data(x)
    parts = []
    for at in range(0, data.shape[0], ROWS):
        piece = data[at : at + ROWS]
        values = _max_values(circuit, piece)
        root = circuit.root_product(values) + torch.log(circuit.root_weight).unsqueeze(2)
        _possible(root.amax((0, 1)), at)
        units = _descend(circuit, values, lambda scores: scores.argmax(-1))
        parts.append(_complete(circuit, piece, units, lambda scores: scores.argmax(-1), None))
    return torch.cat(parts) if parts else data


def _max_values(circuit: Circuit, data: Tensor) -> Tensor:
    """Upward with maxima in the place of sums; a missing input counts with its most probable value."""
    inputs = circuit.inputs
    values = data.new_empty((circuit.n_regions, circuit.n_units, data.shape[0]), dtype=circuit.dtype)
    first = inputs(data)
    observed = data.index_select(1, inputs.variables).T.unsqueeze(1)
    if inputs.family == "gaussian":
        missing, peak = torch.isnan(observed), -torch.log(inputs.sd) - 0.5 * math.log(2 * math.pi)
    else:
        missing, peak = observed < 0, inputs.log_table().amax(2)
    values[: first.shape[0]] = torch.where(missing, peak.unsqueeze(2), first)
    for start, product, layer in circuit.layers():
        y = kernel_sum(layer.weight, product(values), "max")
        values[start : start + y.shape[0]] = y
    return values


def _posterior_flows(circuit: Circuit, data: Tensor, at: int) -> Tensor:
    """Flow of every input unit, (I, K, B)."""
    values, root = upward(circuit, data)
    _possible(root, at)
    return downward(circuit, values, torch.ones_like(root)).region_flow


def conditionals(circuit: Circuit, x: Any) -> Tensor:
    """See ``Circuit.conditionals``."""
    n_categories = circuit.inputs.n_categories
    if n_categories is None:
        raise TypeError("conditionals are tables of categories; gaussian inputs have expectation()")
    data = circuit.data(x)
    table = circuit.inputs.log_table().exp()
    out = table.new_zeros((data.shape[0], circuit.n_variables, n_categories))
    for at in range(0, data.shape[0], ROWS):
        piece = data[at : at + ROWS]
        flow = _posterior_flows(circuit, piece, at)
        part = torch.matmul(flow.transpose(1, 2), table)  # (I, B, C)
        here = out[at : at + ROWS]
        here.index_add_(1, circuit.inputs.variables, part.transpose(0, 1))
        here /= here.sum(2, keepdim=True)
        known = torch.nn.functional.one_hot(piece.clamp_min(0), n_categories).to(here.dtype)
        here.copy_(torch.where((piece >= 0).unsqueeze(2), known, here))
    return out


def expectation(circuit: Circuit, x: Any) -> Tensor:
    """See ``Circuit.expectation``."""
    data = circuit.data(x)
    inputs = circuit.inputs
    if inputs.family == "gaussian":
        mean = inputs.mean.detach()
    else:
        table = inputs.log_table().exp()
        mean = table @ torch.arange(table.shape[2], dtype=table.dtype, device=table.device)
    out = data.to(circuit.dtype).clone()
    for at in range(0, data.shape[0], ROWS):
        piece = data[at : at + ROWS]
        flow = _posterior_flows(circuit, piece, at)
        total = flow.new_zeros((piece.shape[0], circuit.n_variables))
        found = total.clone().index_add_(1, inputs.variables, (flow * mean.unsqueeze(2)).sum(1).T)
        total.index_add_(1, inputs.variables, flow.sum(1).T)
        missing = torch.isnan(piece) if inputs.family == "gaussian" else piece < 0
        out[at : at + ROWS] = torch.where(missing, found / total, out[at : at + ROWS])
    return out
