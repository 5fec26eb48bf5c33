"""Checks of what users hand to a circuit."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from .circuit import Circuit

LAYER_KERNELS = ("matmul", "fuse", "int", "int-pairwise", "torch", "fuse16", "int16")


def check_lse(circuit: Circuit, lse: str) -> None:
    if lse not in LAYER_KERNELS:
        raise ValueError(f"lse must be one of {', '.join(LAYER_KERNELS)}, got {lse!r}")
    if lse in ("fuse16", "int16") and circuit.device.type != "cuda":
        raise ValueError(f"lse={lse!r} runs on CUDA only; this circuit is on {circuit.device}")


def as_tensor(x: Any, name: str, *, missing: bool = True) -> torch.Tensor:
    """`x` as a tensor of numbers; `missing`: whether entries may be, which is said to who left some out."""
    if isinstance(x, torch.Tensor):
        t = x
        if t.is_nested or t.is_quantized or t.layout != torch.strided:
            kind = "nested" if t.is_nested else t.dtype if t.is_quantized else t.layout
            raise TypeError(f"{name} must be a dense tensor, got one that is {kind}")
        if t.is_meta:
            raise TypeError(f"{name} has no values: it is on the meta device")
    else:
        if isinstance(x, (list, tuple)) and any(isinstance(row, np.ma.MaskedArray) for row in x):
            x = np.ma.stack(x)  # asarray would read what lies under the masks
        if isinstance(x, np.ma.MaskedArray) and x.dtype.kind in "biuf":
            x = np.ma.filled(x.astype(np.float64), np.nan)  # what is masked is missing
        a = np.asarray(x)
        if a.dtype.kind not in "biuf":
            hint = ", and NaN where an entry is missing" if missing and a.dtype.kind == "O" else ""
            raise TypeError(f"{name} must hold numbers{hint}, got dtype {a.dtype}")
        if a.dtype == np.uint64 and a.size and int(a.max()) > np.iinfo(np.int64).max:
            raise ValueError(f"{name} must hold numbers below 2^63, got {int(a.max())}")
        if a.dtype.kind == "u" and a.dtype.itemsize > 1:
            a = a.astype(np.int64)
        if a.dtype.kind == "f" and a.dtype.itemsize > 8:
            a = a.astype(np.float64)  # torch has nothing longer
        a = np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("="))
        t = torch.from_numpy(a if a.flags.writeable else a.copy())
    if t.is_complex():
        raise TypeError(f"{name} must hold real numbers, got {t.dtype}")
    if t.is_floating_point() and t.dtype.itemsize == 1:
        t = t.float()  # torch has next to no operations for 8-bit floats
    return t


def prepared(circuit: Circuit, x: Any, name: str, validate: bool) -> torch.Tensor:
    """See ``Circuit.data``."""
    t = as_tensor(x, name)
    if t.dim() != 2 or t.shape[1] != circuit.n_variables:
        raise ValueError(
            f"{name} must be (rows, {circuit.n_variables} variables), got shape {tuple(t.shape)}"
        )
    t = t.to(circuit.device)
    if circuit.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"a circuit computes in float32 or float64, this one is {circuit.dtype}")
    n_categories = circuit.inputs.n_categories
    if n_categories is None:
        t = t.to(circuit.dtype)
        if validate and bool(torch.isinf(t).any()):
            raise ValueError(f"{name} must be finite, or NaN for missing; it holds an infinite value")
        return t
    return categories(t, n_categories, name, validate)


def categories(t: torch.Tensor, n_categories: int, name: str, validate: bool) -> torch.Tensor:
    """Category numbers as int64, missing as -1.

    Raises
    ------
    ValueError
        For a number that is no integer in [-1, n_categories).
    """
    whole = torch.where(torch.isnan(t), -1.0, t).to(torch.int64) if t.is_floating_point() else t.long()
    if validate and t.numel():
        wrong = (whole < -1) | (whole >= n_categories)
        if t.is_floating_point():
            wrong |= ~torch.isnan(t) & (t != whole)
        if bool(wrong.any()):
            row, column = (int(i) for i in torch.nonzero(wrong)[0])
            raise ValueError(
                f"{name}[{row}, {column}] is {t[row, column].item()!r}; a category must be an integer in "
                f"[0, {n_categories}), or -1 or NaN for missing"
            )
    return whole


def numpy_generator(rng: Any) -> np.random.Generator:
    """``np.random.default_rng(rng)``, with a TypeError that names `rng`."""
    try:
        return np.random.default_rng(rng)
    except TypeError:
        raise TypeError(f"rng must be None, an int, a SeedSequence or a Generator, got {rng!r}") from None


def check_circuit(circuit: Any) -> None:
    """TypeError for anything but a Circuit."""
    from .circuit import Circuit

    if not isinstance(circuit, Circuit):
        raise TypeError(f"circuit must be a pfkit.Circuit, got {circuit!r}")


def check_positive(name: str, value: Any, *, zero: bool = False) -> None:
    """Raise unless `value` is a finite number > 0 (or >= 0)."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be {'>= 0' if zero else '> 0'} and finite, got {value!r}")


def check_count(name: str, value: Any) -> None:
    """Raise unless `value` is an integer >= 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value!r}")


def check_dtype(dtype: Any) -> None:
    """TypeError for anything but the dtypes that circuits compute in."""
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}")


def check_pair(name: str, value: Any) -> tuple[float, float]:
    """`value` as two numbers; TypeError if it is anything else."""
    try:
        first, last = (float(part) for part in value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be two numbers, got {value!r}") from None
    return first, last


def check_edges(edges: Any) -> list[tuple[int, int]]:
    """Pairs of integers; TypeError if they are anything else."""
    try:
        return [(operator.index(a), operator.index(b)) for a, b in edges]
    except (TypeError, ValueError):
        raise TypeError(f"edges must be pairs of variables, as [(0, 1), (1, 2)], got {edges!r}") from None
