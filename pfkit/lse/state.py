"""The state of a log-sum-exp under way: what a row, a chunk, a rank or a checkpoint carries.

A log-sum-exp is a reduction, so it can be stopped, shipped and joined. The state of ``"fuse"`` is
``(maximum, total)``, ``total = sum exp(x - maximum)`` in float64; that of ``"int"`` is ``(reference,
total)``, where total is the 128-bit integer sum of the terms' integer weights at the reference, in units of
2**-52::

    state = LSEState.empty((), lse="int", reference=x.max())
    for chunk in chunks:
        state.update(chunk)
    state.value()                       # the bits of logsumexp(x, lse="int"), in whatever order the chunks
    came

**Reference points.** Integer totals at one reference add exactly: every grouping and order gives the same
bits, and with the overall maximum as reference those of the one-shot result. So agree on the maximum first
(a maximum has no order either) and hand it to :meth:`LSEState.empty`. Without a reference the state follows
the running maximum; a total that has to move to a higher reference is multiplied by the integer weight of
the step and truncated, which costs up to 1.84e-5 nats each time and makes the last bits depend on the order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pfkit_ext import _cpu

from .arguments import as_array, reduced_axes
from .blocks import Scratch, memory_order
from .kernels import check_name, compute_dtype
from .u128 import Pair, add, from_ints, log_totals, to_ints

STATEFUL = ("fuse", "int")


class LSEState:
    """An array of log-sum-exp states, shaped like the reduced array.

    Build one with :meth:`empty`. It pickles, and its arrays can be read, sent and put back.

    Attributes
    ----------
    lse : {"fuse", "int"}
    maximum : ndarray, for "fuse"
        Largest value seen, -inf for none, in the state's dtype.
    total : ndarray of float64, for "fuse"
        ``sum exp(x - maximum)``; 0 where the maximum is not finite.
    reference : ndarray, for "int"
        The point the integer weights refer to, at least the largest value seen; -inf for none.
    hi, lo : ndarrays of uint64, for "int"
        The halves of the 128-bit total in units of 2**-52; 0 where the reference is not finite.

    Error bound of ``value()``: that of the kernel (:func:`pfkit.kernels`), for "int" plus the steps between
    reference points described above. A tail below half a unit in the last place of `total` is lost
    (:func:`pfkit.logsumexp` keeps it through log1p).
    """

    __slots__ = ("lse", "maximum", "total", "reference", "hi", "lo")

    lse: str
    maximum: np.ndarray
    total: np.ndarray
    reference: np.ndarray
    hi: np.ndarray
    lo: np.ndarray

    @classmethod
    def empty(
        cls,
        shape: int | tuple[int, ...] = (),
        lse: str = "fuse",
        *,
        dtype: Any = "float64",
        reference: Any = None,
        device: Any = None,
    ) -> Any:
        """States of nothing: the identity of :meth:`combine`; ``value()`` is -inf.

        Parameters
        ----------
        shape : int or tuple of ints
            Shape of the reduced array.
        lse : {"fuse", "int"}
        dtype : dtype
            Dtype of the values to come and of the result: float32 or float64.
        reference : array_like, optional
            For "int": the point all weights refer to, broadcast to `shape`; best the maximum of the values
            to come. A reference r nats above it costs r / 0.69 of the 52 bits; a value above it moves the
            reference.
        device : torch.device or str, optional
            Keep the state in torch tensors there, and take tensors: a ``TensorLSEState``.

        Raises
        ------
        ValueError
            For another kernel, a reference that is NaN or +inf, or one given to "fuse".
        TypeError
            For another dtype.
        """
        if device is not None:
            from .tensor_state import TensorLSEState  # imports torch

            return TensorLSEState.empty(shape, lse, dtype=dtype, reference=reference, device=device)
        state = cls()
        state.lse = check_name(lse, STATEFUL)
        dtype = np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            raise TypeError(f"LSEState computes in float32 or float64, got dtype {dtype}")
        if lse == "fuse":
            if reference is not None:
                raise ValueError(
                    "a reference point belongs to lse='int'; the state of 'fuse' keeps its own maximum"
                )
            state.maximum = np.full(shape, -np.inf, dtype)
            state.total = np.zeros(shape, np.float64)
        else:
            start = -np.inf if reference is None else np.asarray(reference)
            if np.isnan(start).any():
                raise ValueError(f"reference must not be NaN, got {reference!r}")
            with np.errstate(over="ignore"):
                unusable = np.isposinf(np.asarray(start).astype(dtype))
            if unusable.any():
                raise ValueError(f"reference must be finite in {dtype}, or -inf, not {reference!r}")
            state.reference = np.array(np.broadcast_to(np.asarray(start, dtype), shape))
            state.hi, state.lo = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
        return state

    @property
    def shape(self) -> tuple[int, ...]:
        return self._point.shape

    @property
    def dtype(self) -> np.dtype:
        return self._point.dtype

    @property
    def _point(self) -> np.ndarray:
        return self.maximum if self.lse == "fuse" else self.reference

    def update(self, values: Any, axis: Any = -1) -> LSEState:
        """Add `values`, reduced over `axis`, to the state, in place.

        Parameters
        ----------
        values : array_like
            Real; converted to the state's dtype. NaN and +inf stay in the state.
        axis : None, int or tuple of ints
            The rest of the axes must have the state's shape.

        Returns
        -------
        LSEState
            The state itself.

        Raises
        ------
        ValueError
            If the shapes do not fit.
        """
        values = np.atleast_1d(as_array(values, "values"))
        compute_dtype(values.dtype)
        axes = reduced_axes(axis, values.ndim)
        kept = tuple(length for k, length in enumerate(values.shape) if k not in axes)
        if kept != self.shape:
            raise ValueError(
                f"values {values.shape} over axis {axis} reduce to {kept}, the state has {self.shape}"
            )
        if values.size == 0:
            return self
        layout = memory_order(values, axes)
        n_rows = max(1, self._point.size)
        rows = Scratch(self.dtype).rows(layout.view(values), n_rows)
        shape = tuple(values.shape[k] for k in layout.order[: len(kept)])

        def back(x: np.ndarray) -> np.ndarray:
            return x.reshape(shape).transpose(layout.back)

        if self.lse == "fuse":
            maximum, total = _cpu.fuse_state_rows(rows)
            self._set(*_join_fuse((self.maximum, self.total), (back(maximum), back(total))))
            return self
        maximum = back(_cpu.row_max(rows))
        reference = np.maximum(self.reference, maximum)
        finite = np.isfinite(reference)
        safe = np.where(finite, reference, self.dtype.type(0))
        flat = np.ascontiguousarray(_forth(safe, layout)).reshape(n_rows)
        if not finite.all():
            keep = np.ascontiguousarray(_forth(finite, layout)).reshape(n_rows)
            rows = np.where(keep[:, None], rows, self.dtype.type(-np.inf))
        hi, lo = _cpu.int_state_rows(rows, flat)
        zero = np.uint64(0)
        new = (np.where(finite, back(hi), zero), np.where(finite, back(lo), zero))
        moved = _move((self.hi, self.lo), self.reference, reference)
        self._set(reference, *add(moved, new))
        return self

    def combine(self, other: LSEState) -> LSEState:
        """A new state of both states' values; neither is changed.

        Associative and commutative: in bits for "int" at one reference point, to rounding for "fuse".

        Raises
        ------
        TypeError
            If `other` is not an LSEState.
        ValueError
            If kernel, dtype or shape differ.
        """
        if not isinstance(other, LSEState):
            raise TypeError(f"an LSEState combines with an LSEState, got {type(other).__name__}")
        mine, theirs = ((s.lse, s.dtype, s.shape) for s in (self, other))
        if mine != theirs:
            raise ValueError(f"states of (kernel, dtype, shape) {mine} and {theirs} do not combine")
        joined = LSEState()
        joined.lse = self.lse
        if self.lse == "fuse":
            joined._set(*_join_fuse((self.maximum, self.total), (other.maximum, other.total)))
        else:
            reference = np.maximum(self.reference, other.reference)
            parts = [_move((s.hi, s.lo), s.reference, reference) for s in (self, other)]
            joined._set(reference, *add(*parts))
        return joined

    def value(self) -> Any:
        """The log-sum-exp of everything seen, in the state's dtype and shape; a scalar for shape ()."""
        point = self._point
        finite = np.isfinite(point)
        if self.lse == "fuse":
            with np.errstate(divide="ignore", invalid="ignore"):
                result = np.where(finite, point + np.log(self.total), point).astype(self.dtype)
        else:
            safe = np.where(finite, point, self.dtype.type(0))
            result = np.where(finite, log_totals((self.hi, self.lo), safe, self.dtype), point)
        return result[()]

    def _set(self, *arrays: np.ndarray) -> None:
        names = ("maximum", "total") if self.lse == "fuse" else ("reference", "hi", "lo")
        for name, array in zip(names, arrays, strict=True):
            setattr(self, name, np.asarray(array))

    def __repr__(self) -> str:
        return f"LSEState(lse={self.lse!r}, shape={self.shape}, dtype={self.dtype}, value={self.value()!r})"


def _forth(x: np.ndarray, layout: Any) -> np.ndarray:
    """A result over the kept axes in the layout's order: the inverse of ``transpose(layout.back)``."""
    return x.transpose(tuple(np.argsort(layout.back)))


def _join_fuse(
    x: tuple[np.ndarray, np.ndarray], y: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    maximum = np.maximum(x[0], y[0])  # NaN wins
    with np.errstate(invalid="ignore", under="ignore"):
        total = sum(t * np.exp(m.astype(np.float64) - maximum) for m, t in (x, y))
    return maximum, np.where(np.isfinite(maximum), total, 0.0)


def _move(total: Pair, old: np.ndarray, new: np.ndarray) -> Pair:
    """Integer totals at `old` expressed at `new` >= old: times the weight of old at new, truncated."""
    if np.array_equal(old, new):
        return total
    hi, lo = (x.copy() for x in np.broadcast_arrays(*total))
    moving = (old != new) & ((hi != 0) | (lo != 0)) & np.isfinite(new)
    lost = ~np.isfinite(new)
    hi[lost] = lo[lost] = 0
    if moving.any():
        step = _cpu.int_state_rows(
            np.ascontiguousarray(old[moving]).reshape(-1, 1), np.ascontiguousarray(new[moving])
        )
        values = [
            (t * w) >> 52 for t, w in zip(to_ints((hi[moving], lo[moving])), to_ints(step), strict=True)
        ]
        hi[moving], lo[moving] = from_ints(values, (len(values),))
    return hi, lo
