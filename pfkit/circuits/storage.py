"""Circuits on disk: a plain npz file, nothing pickled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .. import npz
from .circuit import Circuit
from .layers import FAMILIES, InputLayer
from .regions import RegionGraph, padded

FORMAT = 1


def save(circuit: Circuit, path: Any) -> None:
    """See ``Circuit.save``."""
    if circuit.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"a circuit is saved in float32 or float64, this one is {circuit.dtype}: take circuit.float()"
        )
    for name, p in circuit.named_parameters():
        if not bool(torch.isfinite(p).all()):
            raise ValueError(f"{name} is not finite: no circuit could be loaded from the file")
    graph = circuit.graph
    arrays: dict[str, Any] = {
        "format": FORMAT,
        "n_variables": graph.n_variables,
        "input_variables": np.asarray(graph.input_variables, np.int64),
        "family": circuit.inputs.family,
        "n_levels": len(graph.levels),
        "root": padded(graph.root),
        "root_weight": circuit.root_weight,
    }
    arrays |= {f"inputs.{name}": p for name, p in circuit.inputs.named_parameters()}
    for number, (level, layer) in enumerate(zip(graph.levels, circuit.layers(), strict=True)):
        arrays[f"level.{number}"] = padded(level)
        arrays[f"weight.{number}"] = layer[2].weight
    arrays = {
        name: a.detach().cpu().numpy() if isinstance(a, torch.Tensor) else a for name, a in arrays.items()
    }
    npz.write(path, arrays)


def _broken(what: str) -> ValueError:
    return ValueError(f"not a file written by Circuit.save: {what}")


def load(path: Any) -> Circuit:
    """See ``Circuit.load``."""
    saved = npz.read(path, _broken)

    def number(name: str) -> int:
        a = saved.get(name)
        if a is None or a.shape != () or a.dtype.kind not in "iu":
            raise _broken(f"{name!r} must be an integer, found {a!r}")
        return int(a)

    def array(name: str, kinds: str, ndim: int) -> np.ndarray:
        a = saved.get(name)
        if a is None or a.dtype.kind not in kinds or a.ndim != ndim:
            raise _broken(f"{name!r} is missing or of another kind")
        return a

    if (found := number("format")) != FORMAT:
        raise ValueError(f"{path!r} has format {found}; this version reads format {FORMAT}")
    family = str(array("family", "U", 0))
    if family not in FAMILIES:
        raise _broken(f"unknown family {family!r}")
    n_levels = number("n_levels")
    if not 0 <= n_levels <= len(saved):
        raise _broken(f"{n_levels} levels")

    def products(name: str) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(c) for c in row if c >= 0) for row in array(name, "iu", 2))

    try:
        graph = RegionGraph(
            number("n_variables"),
            tuple(int(v) for v in array("input_variables", "iu", 1)),
            tuple(products(f"level.{n}") for n in range(n_levels)),
            products("root"),
        )
        names = ("mean", "sd") if family == "gaussian" else ("probs",)
        ndim = 3 if family == "categorical" else 2
        inputs = InputLayer(
            graph.input_variables, family, **{name: array(f"inputs.{name}", "f", ndim) for name in names}
        )
        weights = [array(f"weight.{n}", "f", 3) for n in range(n_levels)]
        return Circuit(graph, inputs, weights, array("root_weight", "f", 2))
    except (ValueError, TypeError) as error:
        raise error if "not a file" in str(error) else _broken(str(error)) from error
