"""LSEState on torch tensors: the same algebra on the device where the values are.

``LSEState.empty(shape, lse, device="cuda")`` makes one. Tensors replace the arrays: ``maximum`` and ``total``
for "fuse"; ``reference``, ``hi`` and ``lo`` for "int", the halves of the 128-bit total held as int64 bit
patterns. A state made on the GPU from the same values at the same reference has the bits of one made on the
CPU.

Nothing waits for the device, except an "int" state whose reference has to move: agree on the reference first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from . import torch_op
from .kernels import check_name
from .state import STATEFUL, LSEState, _move

_Tensor = torch.Tensor
_SIGN = -(1 << 63)


class TensorLSEState:
    """An array of log-sum-exp states as tensors; see :class:`pfkit.LSEState` for the algebra and its bounds.

    Attributes
    ----------
    lse : {"fuse", "int"}
    maximum, total : Tensor, for "fuse"
        Largest value seen and, in float64, ``sum exp(x - maximum)``.
    reference, hi, lo : Tensor, for "int"
        The point the integer weights refer to; the halves of the total, int64.
    """

    __slots__ = ("lse", "maximum", "total", "reference", "hi", "lo")

    lse: str
    maximum: _Tensor
    total: _Tensor
    reference: _Tensor
    hi: _Tensor
    lo: _Tensor

    @classmethod
    def empty(
        cls,
        shape: int | tuple[int, ...] = (),
        lse: str = "fuse",
        *,
        dtype: Any = None,
        reference: Any = None,
        device: Any = None,
    ) -> TensorLSEState:
        """States of nothing on `device`; `dtype` is torch.float32 or torch.float64 (the default)."""
        state = cls()
        state.lse = check_name(lse, STATEFUL)
        dtype = torch.float64 if dtype is None else getattr(torch, dtype) if isinstance(dtype, str) else dtype
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"LSEState computes in float32 or float64, got dtype {dtype}")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if lse == "fuse":
            if reference is not None:
                raise ValueError(
                    "a reference point belongs to lse='int'; the state of 'fuse' keeps its own maximum"
                )
            state.maximum = torch.full(shape, -math.inf, dtype=dtype, device=device)
            state.total = torch.zeros(shape, dtype=torch.float64, device=device)
        else:
            start = torch.as_tensor(-math.inf if reference is None else reference, dtype=dtype, device=device)
            state.reference = start.expand(shape).clone()
            state.hi = torch.zeros(shape, dtype=torch.int64, device=device)
            state.lo = torch.zeros(shape, dtype=torch.int64, device=device)
        return state

    @property
    def _point(self) -> _Tensor:
        return self.maximum if self.lse == "fuse" else self.reference

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._point.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self._point.dtype

    def update(self, values: _Tensor, axis: Any = -1) -> TensorLSEState:
        """Add `values`, reduced over `axis`, in place.

        Raises
        ------
        ValueError
            If the shapes or devices do not fit.
        """
        point = self._point
        if values.device != point.device:
            raise ValueError(f"values are on {values.device}, the state on {point.device}")
        dims = torch_op.reduced_dims(axis, values.dim())
        values = values.detach().to(point.dtype).reshape(values.shape or (1,))
        kept = tuple(size for d, size in enumerate(values.shape) if d not in dims)
        if kept != self.shape:
            raise ValueError(
                f"values of shape {tuple(values.shape)} over {axis} give {kept}, the state has {self.shape}"
            )
        if not values.numel():
            return self
        if self.lse == "fuse":
            _, maximum, total = torch_op._op(values, dims, "fuse", None)
            total = torch.where(torch.isfinite(maximum), total, 0)
            self.maximum, self.total = _join_fuse(
                (self.maximum, self.total), (maximum.reshape(kept), total.reshape(kept))
            )
            return self
        reference = torch.maximum(self.reference, values.amax(dims))
        hi, lo = torch_op.int_totals(values, dims, reference)
        self._move_to(reference)
        self.hi, self.lo = _add((self.hi, self.lo), (hi, lo))
        return self

    def combine(self, other: TensorLSEState) -> TensorLSEState:
        """A new state of both states' values; for "int" at one reference, the same bits in any order."""
        if not isinstance(other, TensorLSEState):
            raise TypeError(f"a state on tensors combines with its like, got {type(other).__name__}")
        mine, theirs = ((s.lse, s.dtype, s.shape) for s in (self, other))
        if mine != theirs:
            raise ValueError(f"states of (kernel, dtype, shape) {mine} and {theirs} do not combine")
        joined = TensorLSEState()
        joined.lse = self.lse
        if self.lse == "fuse":
            joined.maximum, joined.total = _join_fuse(
                (self.maximum, self.total), (other.maximum, other.total)
            )
            return joined
        reference = torch.maximum(self.reference, other.reference)
        parts = []
        for state in (self, other):
            copy = TensorLSEState()
            copy.lse, copy.reference, copy.hi, copy.lo = "int", state.reference, state.hi, state.lo
            copy._move_to(reference)
            parts.append((copy.hi, copy.lo))
        joined.reference = reference
        joined.hi, joined.lo = _add(*parts)
        return joined

    def value(self) -> _Tensor:
        """The log-sum-exp of everything seen, in the state's dtype and shape."""
        if self.lse == "fuse":
            finite = torch.isfinite(self.maximum)
            inside = torch.where(finite, self.total, 1).log() + self.maximum
            return torch.where(finite, inside, self.maximum.to(torch.float64)).to(self.dtype)
        return torch.as_tensor(np.asarray(self.to_numpy().value()), device=self.reference.device)

    def to_numpy(self) -> LSEState:
        """The same state as a :class:`pfkit.LSEState` of NumPy arrays (waits for the device)."""
        state = LSEState()
        state.lse = self.lse
        names = ("maximum", "total") if self.lse == "fuse" else ("reference", "hi", "lo")
        for name in names:
            array = getattr(self, name).cpu().numpy()
            setattr(state, name, array.view(np.uint64) if name in ("hi", "lo") else array)
        return state

    def _move_to(self, reference: _Tensor) -> None:
        old, self.reference = self.reference, reference
        used = (self.hi != 0) | (self.lo != 0)
        if bool(((old != reference) & used).any()):
            device = reference.device
            pair = tuple(x.cpu().numpy().view(np.uint64) for x in (self.hi, self.lo))
            moved = _move(pair, old.cpu().numpy(), reference.cpu().numpy())  # type: ignore[arg-type]
            self.hi, self.lo = (
                torch.from_numpy(np.ascontiguousarray(x).view(np.int64)).to(device) for x in moved
            )

    def __repr__(self) -> str:
        kind = f"lse={self.lse!r}, shape={self.shape}, dtype={self.dtype}, device={self._point.device}"
        return f"TensorLSEState({kind})"


def _add(x: tuple[_Tensor, _Tensor], y: tuple[_Tensor, _Tensor]) -> tuple[_Tensor, _Tensor]:
    """128-bit sums of (high, low) int64 bit patterns; int64 addition wraps."""
    low = x[1] + y[1]
    carry = ((low ^ _SIGN) < (x[1] ^ _SIGN)).to(torch.int64)  # unsigned comparison
    return x[0] + y[0] + carry, low


def _join_fuse(x: tuple[_Tensor, _Tensor], y: tuple[_Tensor, _Tensor]) -> tuple[_Tensor, _Tensor]:
    maximum = torch.maximum(x[0], y[0])  # NaN wins
    finite = torch.isfinite(maximum)
    safe = torch.where(finite, maximum, 0).to(torch.float64)
    total = sum(t * torch.exp(m.to(torch.float64) - safe) for m, t in (x, y))
    return maximum, torch.where(finite, total, 0.0)  # type: ignore[arg-type]
