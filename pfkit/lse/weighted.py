"""Log-sum-exp with coefficients, ``log |sum_j b_j exp(a_j)|`` and its sign.

Two ways, as everywhere: floats that keep the precision of the tail and of cancelling terms, and integers
whose sums have no order. Both read twice (the largest term, then the sums) in blocks of bounded size. A
coefficient of zero removes its term, whatever the term is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pfkit_ext import _cpu

from .blocks import BLOCK, blocks, memory_order, pieces, rows_at_once
from .u128 import add, difference, log_totals

ValueAndSign = tuple[np.ndarray, np.ndarray]
HUGE = 1e100  # coefficients beyond it, or below its inverse, are scaled


class _Method(Protocol):
    """One way to sum the rows of (R, n) pieces."""

    dtype: np.dtype

    def prepare(self, a: np.ndarray, b: np.ndarray | None) -> Any:
        """Whatever both reads need of one piece."""

    def maximum(self, piece: Any) -> np.ndarray:
        """Largest term of each row, (R,)."""

    def sums(self, piece: Any, m: np.ndarray) -> Any:
        """Sums of one piece at the reference m."""

    def add(self, x: Any, y: Any) -> Any: ...

    def finish(self, m: np.ndarray, sums: Any) -> ValueAndSign: ...


class FloatSums:
    """Sums in float64, or in long double.

    With m the largest a_j whose coefficient is not zero, the coefficients at m are summed apart from the
    rest, ``head = sum_{a_j = m} b_j`` and ``tail = sum_{a_j < m} b_j exp(a_j - m)``, and a small tail enters
    through log1p: ``m + log |head| + log1p(tail / head)`` [1]_. A tail comparable with the head is added to
    it first, which is exact when the two nearly cancel.

    Infinite coefficients and terms follow the arithmetic of the plain expression: ``inf - inf`` and ``inf *
    exp(-inf)`` are NaN.

    .. [1] P. Blanchard, D. J. Higham, N. J. Higham, "Accurately computing the log-sum-exp and softmax
    functions",
       IMA J. Numer. Anal. 41 (2021), for the shift and the log1p form.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = np.dtype(np.longdouble) if dtype == np.longdouble else np.dtype(np.float64)

    def prepare(self, a: np.ndarray, b: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if b is None:
            return a.astype(self.dtype), np.ones((), self.dtype)
        b = b.astype(self.dtype)
        a = np.where(b == 0, -np.inf, a.astype(self.dtype))
        size = np.abs(b[(b != 0) & np.isfinite(b)])
        if size.size and (size.max() > HUGE or size.min() < 1 / HUGE):
            # exp(a - m) could underflow before b makes the term large again: exponents of b go into a
            b, exponent = np.frexp(b)
            a = a + exponent * np.log(self.dtype.type(2))
        return a, b

    def maximum(self, piece: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return piece[0].max(axis=1)

    def sums(self, piece: tuple[np.ndarray, np.ndarray], m: np.ndarray) -> np.ndarray:
        x, b = piece
        with np.errstate(all="ignore"):
            terms = b * np.exp(x - np.where(np.isfinite(m), m, 0)[:, None])
            if not np.isfinite(b).all():  # infinite: wins over an exponential that underflows to 0
                terms = np.where(np.isinf(b) & (x > -np.inf), b, terms)
            at_max = (x == m[:, None]) & (x > -np.inf)
            head = np.add.reduce(terms, axis=1, where=at_max)
            terms[at_max] = 0
            return np.stack([head, np.add.reduce(terms, axis=1)])

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    def finish(self, m: np.ndarray, sums: np.ndarray) -> ValueAndSign:
        head, tail = sums
        with np.errstate(all="ignore"):
            total = head + tail
            near = np.log(np.abs(head)) + np.log1p(tail / head)
            small = (np.abs(tail) <= 0.5 * np.abs(head)) & (head != 0)
            value = np.where(small, near, np.log(np.abs(total)))
            value = np.where(np.isinf(total), np.inf, value) + np.where(np.isfinite(m), m, 0)
        return value, np.sign(total)


class IntSums:
    """Integer sums in float32's or float64's log-weights: one for the positive, one for the negative
    coefficients.

    Each term is ``t_j = a_j + log |b_j|``; the integer weights of both signs are taken at one reference, the
    largest t_j, so their difference is an exact integer and equal sums cancel to nothing. The bound of the
    unweighted kernel holds for each of the two sums; for their difference it grows by ``sum |b_j| exp(a_j) /
    |sum b_j exp(a_j)|``, and the rounding of t_j is added to it.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype

    def prepare(self, a: np.ndarray, b: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        assert b is not None
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            b = b.astype(self.dtype)
            t = np.where(b == 0, self.dtype.type(-np.inf), a.astype(self.dtype) + np.log(np.abs(b)))
        return t, b

    def maximum(self, piece: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return piece[0].max(axis=1)

    def sums(self, piece: tuple[np.ndarray, np.ndarray], m: np.ndarray) -> list[Any]:
        t, b = piece
        finite = np.isfinite(m)
        reference = np.where(finite, m, self.dtype.type(0))
        found: list[Any] = []
        for side in (b > 0, b < 0):
            kept = np.where(side & finite[:, None], t, self.dtype.type(-np.inf))
            found.append(
                (
                    _cpu.int_state_rows(np.ascontiguousarray(kept), reference),
                    ((t == np.inf) & side).any(axis=1),
                )
            )
        return found

    def add(self, x: list[Any], y: list[Any]) -> list[Any]:
        return [(add(p, q), i | j) for (p, i), (q, j) in zip(x, y, strict=True)]

    def finish(self, m: np.ndarray, sums: list[Any]) -> ValueAndSign:
        number = self.dtype.type
        (up, up_inf), (down, down_inf) = sums
        finite = np.isfinite(m)
        total, sign = difference(up, down)
        value = log_totals(total, np.where(finite, m, number(0)), self.dtype)
        value = np.where(finite, np.where(sign == 0, number(-np.inf), value), m)
        signs = np.where(finite, sign, up_inf.astype(np.int8) - down_inf).astype(self.dtype)
        undecided = np.isnan(m) | (up_inf & down_inf)
        return (np.where(undecided, number(np.nan), z) for z in (value, signs))  # type: ignore[return-value]


def weighted_blocks(
    a: np.ndarray, b: np.ndarray | None, axes: tuple[int, ...], method: _Method
) -> ValueAndSign:
    """Value and sign over `axes` of `a` and `b` (one shape; None: all ones), in ``method.dtype``."""
    layout = memory_order(a, axes)
    n_kept = a.ndim - len(axes)
    views = [None if x is None else layout.view(x) for x in (a, b)]
    assert views[0] is not None
    kept, n = views[0].shape[:n_kept], math.prod(views[0].shape[n_kept:])
    value, sign = np.full(kept, -np.inf, method.dtype), np.zeros(kept, method.dtype)
    if value.size and n:
        for index in blocks(kept, rows_at_once(views[0], n_kept)):
            target = value[index]
            parts = [_cut(x if x is None else x[index], n_kept, target.size) for x in views]
            v, s = _two_reads(parts, method)
            value[index], sign[index] = v.reshape(target.shape), s.reshape(target.shape)
    return value.transpose(layout.back), sign.transpose(layout.back)


def _cut(block: np.ndarray | None, n_kept: int, n_rows: int) -> Callable[[], Any]:
    """A function that walks over `block`'s pieces as (n_rows, terms) arrays, each time anew."""
    if block is None:
        return lambda: None
    return lambda: (p.reshape(n_rows, -1) for p in pieces(block, n_kept, max(1, BLOCK // n_rows)))


def _two_reads(parts: list[Callable[[], Any]], method: _Method) -> ValueAndSign:
    def walk() -> Any:
        a, b = (part() for part in parts)
        for x in a:
            yield method.prepare(x, None if b is None else next(b))

    with np.errstate(invalid="ignore"):
        prepared = walk()
        first = next(prepared)
        m, single = method.maximum(first), True
        for piece in prepared:
            m, single = np.maximum(m, method.maximum(piece)), False
        if single:
            return method.finish(m, method.sums(first, m))
        sums = None
        for piece in walk():
            more = method.sums(piece, m)
            sums = more if sums is None else method.add(sums, more)
    return method.finish(m, sums)


def split_signs(
    a: np.ndarray, b: np.ndarray, lse: Callable[[np.ndarray], np.ndarray], dtype: np.dtype
) -> ValueAndSign:
    """Value and sign for a kernel that knows no coefficients: the LSEs of the two signs, then the log of
    their difference.

    `a` and `b` have one shape; `lse` reduces an array of that shape.
    """
    with np.errstate(all="ignore"):
        t = np.where(b == 0, -np.inf, a.astype(dtype) + np.log(np.abs(b.astype(dtype)))).astype(dtype)
        up = np.asarray(lse(np.where((b > 0) | np.isnan(t), t, dtype.type(-np.inf))))
        down = np.asarray(lse(np.where(b < 0, t, dtype.type(-np.inf))))
        high, low = np.maximum(up, down), np.minimum(up, down)
        value = np.where(low == -np.inf, high, high + np.log1p(-np.exp(low - high)))
        sign = np.where(np.isnan(value), np.nan, np.sign(np.where(up == down, 0, up - down)))
    return value.astype(dtype), sign.astype(dtype)
