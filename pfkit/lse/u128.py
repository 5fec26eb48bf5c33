"""Unsigned 128-bit integers as pairs ``(hi, lo)`` of uint64 arrays: the totals of the integer kernel in
Python.

A total of 2**52-scaled weights passes 64 bits beyond 4096 equal terms. NumPy has no 128-bit integer, and
Python's own would need one object a row.
"""

from __future__ import annotations

import numpy as np

from pfkit_ext import _cpu

Pair = tuple[np.ndarray, np.ndarray]


def add(x: Pair, y: Pair) -> Pair:
    """``x + y`` modulo 2**128."""
    with np.errstate(over="ignore"):  # NumPy warns when a 0-d uint64 wraps
        lo = np.asarray(x[1] + y[1])
        return np.asarray(x[0] + y[0] + (lo < x[1]).astype(np.uint64)), lo


def difference(x: Pair, y: Pair) -> tuple[Pair, np.ndarray]:
    """``|x - y|`` and the sign of ``x - y`` as int8."""
    above = (x[0] > y[0]) | ((x[0] == y[0]) & (x[1] > y[1]))
    equal = (x[0] == y[0]) & (x[1] == y[1])
    big_hi, big_lo = np.where(above, x[0], y[0]), np.where(above, x[1], y[1])
    low_hi, low_lo = np.where(above, y[0], x[0]), np.where(above, y[1], x[1])
    borrow = (big_lo < low_lo).astype(np.uint64)
    sign = np.where(equal, 0, np.where(above, 1, -1)).astype(np.int8)
    with np.errstate(over="ignore"):
        return (np.asarray(big_hi - low_hi - borrow), np.asarray(big_lo - low_lo)), sign


def to_ints(x: Pair) -> list[int]:
    """Each 128-bit value as a Python integer, in C order."""
    return [(int(hi) << 64) | int(lo) for hi, lo in zip(x[0].reshape(-1), x[1].reshape(-1), strict=True)]


def from_ints(values: list[int], shape: tuple[int, ...]) -> Pair:
    """The inverse of :func:`to_ints`; values beyond 128 bits raise OverflowError."""
    hi = np.array([v >> 64 for v in values], dtype=np.uint64).reshape(shape)
    lo = np.array([v & 0xFFFFFFFFFFFFFFFF for v in values], dtype=np.uint64).reshape(shape)
    return hi, lo


def log_totals(total: Pair, reference: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``reference + ln(total / 2**52)`` by element, rounded once to `dtype`; -inf where the total is 0."""
    out = np.empty(reference.shape, dtype)
    flat, points = out.reshape(-1), reference.reshape(-1).tolist()
    for k, (hi, lo, m) in enumerate(
        zip(total[0].reshape(-1).tolist(), total[1].reshape(-1).tolist(), points, strict=True)
    ):
        flat[k] = _cpu.int_log_total(hi, lo, m, dtype)
    return out
