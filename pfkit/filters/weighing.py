"""From unnormalised log-weights to weights, their log-sum-exp and the effective sample size.

The kernels "fuse" and "int" give all three, each weight exponentiated once. The others give a log-sum-exp only; their weights are
exp(lw - LSE) divided by their sum, so that they sum to 1 whatever the error of the LSE.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from pfkit_ext import _cpu

__all__ = ["weigher"]

FUSED = ("fuse", "int")
LSE_ONLY = ("int-pairwise", "numpy", "scipy", "torch")

Weigher = Callable[..., tuple[np.ndarray, float, float, np.ndarray | None]]


def weigher(lse: Any) -> Weigher:
    """``weigh(log_w, weights, timers=None) -> (weights, log_norm, ess, ints)`` for the kernel named ``lse``.

    ``log_w`` is float32 or float64, (N,); ``weights``, of the same shape and dtype, is overwritten. ``ints`` are the
    integer weights of "int", None for the others. All -inf: weights 0, log_norm -inf, ess 0. NaN or +inf among
    ``log_w``: log_norm NaN or +inf, weights undefined.
    """
    if not isinstance(lse, str):
        raise TypeError(f"lse must be the name of a kernel, not {lse!r}")
    if lse in FUSED:
        return lambda log_w, weights, timers=None: _fused(lse, log_w, weights, timers)
    if lse in LSE_ONLY:
        from pfkit.lse.api import logsumexp

        if lse == "torch":
            logsumexp(np.zeros(1), lse=lse)  # a missing torch is reported here, not at the first step
        return lambda log_w, weights, timers=None: _lse_only(logsumexp, lse, log_w, weights, timers)
    raise ValueError(f"unknown kernel lse={lse!r}; a filter accepts {', '.join(map(repr, FUSED + LSE_ONLY))}")


def _fused(lse, log_w, weights, timers):
    if timers is None:
        return _cpu.normalize(log_w, lse, weights)
    start = perf_counter_ns()
    result = _cpu.normalize(log_w, lse, weights)
    timers.add("lse", perf_counter_ns() - start, log_w.size)
    return result


def _lse_only(logsumexp, lse, log_w, weights, timers):
    start = perf_counter_ns()
    log_norm = float(logsumexp(log_w, lse=lse))
    middle = perf_counter_ns()
    if log_norm == -np.inf:
        weights.fill(0)
        ess = 0.0
    elif np.isfinite(log_norm):
        np.subtract(log_w, log_norm, out=weights)
        np.exp(weights, out=weights)
        total = weights.sum(dtype=np.float64)
        # in this order both bounds 1 <= ESS <= N survive rounding better than with normalised weights
        ess = float(total * total / np.einsum("i,i->", weights, weights, dtype=np.float64))
        weights /= weights.dtype.type(total)
        ess = min(max(ess, 1.0), float(log_w.size))
    else:
        ess = float("nan")
    if timers is not None:
        timers.add("lse", middle - start, log_w.size)
        timers.add("weights", perf_counter_ns() - middle, log_w.size)
    return weights, log_norm, ess, None
