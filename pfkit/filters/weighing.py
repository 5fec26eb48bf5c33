"""From unnormalised log-weights to weights, their log-sum-exp and the effective sample size.

The kernels "fuse" and "int" give all three, each weight exponentiated once. The others give a log-sum-exp
only; their weights are exp(lw - LSE) divided by their sum, so that they sum to 1 whatever the error of the
LSE.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

import pfkit_ext._cpu as _cpu
from pfkit.lse.api import logsumexp
from pfkit.lse.kernels import kernels

__all__ = ["error_bound", "weigher"]

FUSED = ("fuse", "int")
LSE_ONLY = ("int-pairwise", "numpy", "scipy", "torch")

Weigher = Callable[..., tuple[np.ndarray, float, float, Any]]


def weigher(lse: Any) -> Weigher:
    """``weigh(log_w, weights, timers=None) -> (weights, log_norm, ess, ints)`` for the kernel named ``lse``.

    ``log_w`` is float32 or float64, (N,); ``weights``, of the same shape and dtype, is overwritten. ``ints``
    are the integer weights of "int", None for the others. All -inf: weights 0, log_norm -inf, ess 0. NaN or
    +inf among ``log_w``: log_norm NaN or +inf, weights undefined.
    """
    if not isinstance(lse, str):
        raise TypeError(f"lse must be the name of a kernel, not {lse!r}")
    if lse in FUSED:
        return partial(_fused, lse)
    if lse in LSE_ONLY:
        logsumexp(np.zeros(1), lse=lse)  # a kernel that cannot run here says so now, not at the first step
        return partial(_lse_only, lse)
    accepted = ", ".join(map(repr, FUSED + LSE_ONLY))
    raise ValueError(f"unknown kernel lse={lse!r}; a filter accepts {accepted}")


def _fused(lse, log_w, weights, timers=None):
    if timers is None:
        return _cpu.normalize(log_w, lse, weights)
    start = perf_counter_ns()
    result = _cpu.normalize(log_w, lse, weights)
    timers.add("lse", perf_counter_ns() - start, log_w.size)
    return result


def _lse_only(lse, log_w, weights, timers=None):
    start = perf_counter_ns() if timers is not None else 0
    log_norm = float(logsumexp(log_w, lse=lse))
    middle = perf_counter_ns() if timers is not None else 0
    ess = math.nan
    if math.isfinite(log_norm):
        np.subtract(log_w, log_norm, out=weights)
        np.exp(weights, out=weights)
        total = weights.sum(dtype=np.float64)
        squares = np.einsum("i,i->", weights, weights, dtype=np.float64)
        ess = min(max(float(total * total / squares), 1.0), float(log_w.size))
        weights /= weights.dtype.type(total)
    elif log_norm == -math.inf:
        weights.fill(0)
        ess = 0.0
    if timers is not None:
        timers.add("lse", middle - start, log_w.size)
        timers.add("weights", perf_counter_ns() - middle, log_w.size)
    return weights, log_norm, ess, None


def error_bound(lse: str, n: int, dtype: np.dtype, increments: np.ndarray, segments: int) -> float:
    """Bound, in nats, on the error that evaluating log-sum-exps leaves in a sum of increments.

    A segment is a stretch of steps that starts from equal weights. Within one, log-weights carry the error of
    each log-sum-exp on to the next, where it is taken back: the sum of increments is off by no more than the
    kernel's bound, once, whatever the number of steps. What adds up are roundings to dtype, of unit u: of the
    increment, and of adding and subtracting along log-weights whose mean distance from their log-sum-exp is
    an entropy, at most log n.

        error <= segments (bound + u log n) + sum_t u (2 |increment_t| + 2 log n)

    NaN for a kernel without a proven bound.
    """
    row = next(k for k in kernels() if k.name == lse and k.device == "cpu")
    bound = row.error_bound(n, dtype)
    if bound is None:
        return math.nan
    u = float(np.finfo(dtype).eps) / 2
    finite = np.abs(increments[np.isfinite(increments) & (increments != 0)])
    log_n = math.log(n)
    return segments * (bound + u * log_n) + float(np.sum(2 * u * (finite + log_n)))
