"""The layers of a circuit, as torch modules over log values of shape (regions, units, batch).

Batch is the last and fastest axis: a sum layer is then a stack of plain matrix products. Parameters are
probabilities, not logarithms: zero stays exactly zero, and expectation maximisation writes them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from .arguments import as_tensor
from .kernel_sum import kernel_sum
from .log_matmul import LogMatmul

Tensor = torch.Tensor
FAMILIES = ("categorical", "bernoulli", "gaussian")


def _checked(name: str, value: Any, ndim: int) -> Tensor:
    """`value` as a floating tensor of `ndim` dimensions, neither empty nor with NaN."""
    t = as_tensor(value, name, missing=False)
    if not t.is_floating_point() or not isinstance(value, np.ndarray | Tensor):
        t = t.to(torch.get_default_dtype())
    if t.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float32 or float64, got {t.dtype}")
    if t.dim() != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, got shape {tuple(t.shape)}")
    if not t.numel():
        raise ValueError(f"{name} must not be empty, got shape {tuple(t.shape)}")
    if not bool(torch.isfinite(t).all()):
        raise ValueError(f"{name} must be finite")
    return t.detach().clone()


def _expect(name: str, x: Any, what: str, fits: Callable[[Tensor], bool]) -> None:
    """Raise unless `x` is a tensor that `fits`."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if not fits(x):
        raise ValueError(f"{name} must be {what}, got {tuple(x.shape)} {x.dtype}")


def check_simplex(name: str, value: Tensor, dims: int | tuple[int, ...]) -> None:
    """Raise ValueError unless `value` is non-negative and sums to 1 over `dims`, to 1e-4 (float32 sums)."""
    value = value.detach()
    if bool((value < 0).any()):
        raise ValueError(f"{name} must not be negative, got {float(value.min())}")
    error = float((value.double().sum(dims) - 1).abs().max())
    if not error <= 1e-4:
        raise ValueError(f"{name} must sum to 1, it is off by {error:.3g}")


class InputLayer(nn.Module):
    """The input regions: K distributions each over one variable.

    Parameters
    ----------
    variables : sequence of int, length I
        Variable of each region.
    family : "categorical", "bernoulli" or "gaussian"
    probs : array, (I, K, C) or (I, K)
        Categorical: probability of each category. Bernoulli: probability of 1.
    mean, sd : array, (I, K)
        Gaussian: mean and standard deviation (> 0).

    Raises
    ------
    ValueError, TypeError
        For an unknown family, wrong shapes, or parameters outside their range.
    """

    variables: Tensor

    def __init__(
        self,
        variables: Any,
        family: str,
        *,
        probs: Any = None,
        mean: Any = None,
        sd: Any = None,
    ) -> None:
        super().__init__()
        if family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
        numbers = np.asarray(variables)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise TypeError(f"variables must be integers, got dtype {numbers.dtype}")
        index = torch.as_tensor(numbers.astype(np.int64))
        if index.dim() != 1 or not index.numel() or int(index.min()) < 0:
            raise ValueError("variables must be a non-empty list of numbers >= 0")
        self.family = family
        self.register_buffer("variables", index, persistent=False)
        self._last = int(index.max())
        if family == "gaussian":
            if mean is None or sd is None or probs is not None:
                raise ValueError("a gaussian input layer takes mean and sd")
            self.mean = nn.Parameter(_checked("mean", mean, 2))
            self.sd = nn.Parameter(_checked("sd", sd, 2).to(self.mean.dtype))
            if self.sd.shape != self.mean.shape or bool((self.sd <= 0).any()):
                raise ValueError("sd must be positive and shaped like mean")
        else:
            if probs is None or mean is not None or sd is not None:
                raise ValueError(f"a {family} input layer takes probs")
            self.probs = nn.Parameter(_checked("probs", probs, 3 if family == "categorical" else 2))
            if family == "categorical":
                check_simplex("probs", self.probs, 2)
            elif bool(((self.probs < 0) | (self.probs > 1)).any()):
                raise ValueError("probs must lie in [0, 1]")
        if self.shape[0] != index.numel():
            raise ValueError(f"parameters of {self.shape[0]} regions for {index.numel()} variables")

    @property
    def shape(self) -> tuple[int, int]:
        """(I, K): regions and units."""
        p = self.mean if self.family == "gaussian" else self.probs
        return p.shape[0], p.shape[1]

    @property
    def n_categories(self) -> int | None:
        """C; None for Gaussian inputs."""
        if self.family == "gaussian":
            return None
        return int(self.probs.shape[2]) if self.family == "categorical" else 2

    def log_table(self) -> Tensor:
        """(I, K, C) log-probability of each category; Bernoulli as two categories.

        Raises
        ------
        TypeError
            For Gaussian inputs, which have none.
        """
        if self.family == "gaussian":
            raise TypeError("gaussian inputs have no table of log-probabilities")
        p = self.probs if self.family == "categorical" else torch.stack((1 - self.probs, self.probs), 2)
        return torch.log(p)

    def forward(self, x: Tensor) -> Tensor:
        """Log values (I, K, B) of x (B, V): int64 with -1 for missing, or float with NaN (Gaussian).

        Categories are not checked: :meth:`Circuit.data` does that.
        """
        discrete = self.family != "gaussian"
        _expect(
            "x",
            x,
            f"(rows, {self._last + 1} variables or more){', int64' if discrete else ''}",
            lambda t: t.dim() == 2 and t.shape[1] > self._last and not (discrete and t.dtype != torch.int64),
        )
        if not discrete:
            value = x.index_select(1, self.variables).T.unsqueeze(1)  # (I, 1, B)
            missing = torch.isnan(value)
            mean, sd = self.mean.unsqueeze(2), self.sd.unsqueeze(2)
            z = (torch.where(missing, torch.zeros_like(value), value) - mean) / sd
            log_p = -0.5 * z * z - torch.log(sd) - 0.5 * math.log(2 * math.pi)
            return torch.where(missing, torch.zeros_like(log_p), log_p)
        # a last column of zeros is the category "missing": log 1
        table = nn.functional.pad(self.log_table(), (0, 1))
        category = x.index_select(1, self.variables).T.unsqueeze(1)
        category = torch.where(category < 0, table.shape[2] - 1, category)
        return torch.gather(table, 2, category.expand(-1, table.shape[1], -1))


class ProductLayer(nn.Module):
    """Products of regions, unit by unit: sums of their log values.

    Parameters
    ----------
    children : integer array, (R, F)
        Region numbers of each product's factors, rows filled up with -1, in order of falling number of
        factors.
    """

    children_table: Tensor
    fan_in: Tensor

    def __init__(self, children: Any) -> None:
        super().__init__()
        table = as_tensor(children, "children", missing=False)
        if table.dim() != 2 or table.is_floating_point() or not table.numel():
            raise ValueError(f"children must be a non-empty integer table, got shape {tuple(table.shape)}")
        if bool((table < -1).any()):
            raise ValueError(f"children are region numbers, or -1 to fill up, got {int(table.min())}")
        fan_in = (table >= 0).sum(1)
        if int(fan_in.min()) < 1 or bool((fan_in[1:] > fan_in[:-1]).any()):
            raise ValueError("every product needs a child, and products stand in order of falling fan-in")
        if bool(((table >= 0) != (torch.arange(table.shape[1]) < fan_in[:, None])).any()):
            raise ValueError("rows of children are filled up with -1 at their end")
        self.register_buffer("children_table", table.to(torch.int64), persistent=False)
        self.register_buffer("fan_in", fan_in, persistent=False)
        #: regions that have an f-th child, for each f: a prefix of the layer
        self.prefix = [int((fan_in > f).sum()) for f in range(table.shape[1])]
        self._last = int(table.max())

    def forward(self, values: Tensor) -> Tensor:
        """values (n, K, B) of all regions computed so far; the products (R, K, B)."""
        what = f"({self._last + 1} regions or more, units, rows)"
        _expect("values", values, what, lambda t: t.dim() == 3 and t.shape[0] > self._last)
        table = self.children_table
        out = values.index_select(0, table[:, 0])
        for f, n in enumerate(self.prefix[1:], 1):
            out[:n] += values.index_select(0, table[:n, f])
        return out


class SumLayer(nn.Module):
    """Mixtures: unit i of region r is sum_j weight[r, i, j] exp(x[r, j]), in the log domain.

    Parameters
    ----------
    weight : array, (R, I, J)
        Non-negative, summing to 1 over j.
    """

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(_checked("weight", weight, 3))
        check_simplex("weight", self.weight, 2)

    def forward(self, x: Tensor, lse: str = "matmul") -> Tensor:
        """x (R, J, B) log values; the result (R, I, B).

        "matmul" is exact and differentiable. A kernel's name (see ``pfkit.kernels``) runs that kernel over
        ``log weight + x``; that form has no gradient.
        """
        w = self.weight
        _expect(
            "x",
            x,
            f"({w.shape[0]}, {w.shape[2]}, rows) {w.dtype}",
            lambda t: t.dim() == 3 and t.shape[:2] == (w.shape[0], w.shape[2]) and t.dtype == w.dtype,
        )
        if lse == "matmul":
            return LogMatmul.apply(self.weight, x)  # type: ignore[no-any-return]
        with torch.no_grad():
            return kernel_sum(self.weight, x, lse)
