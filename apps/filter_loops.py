"""Bootstrap filters as one writes them by hand: the peers that `bench_filter` times pfkit against.

    numpy_loop    NumPy, log-sum-exp written out, np.searchsorted resampling
    numba_loops   one function a model, compiled by numba (@njit, no fastmath): draws from a NumPy
                  Generator, weights, systematic resampling by merging with the gather in it

Both resample systematically whenever ESS < threshold * N, and return the log-likelihood. Each of the three
models is written for each of them as one writes it, not called through pfkit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

LOG_2PI = math.log(2 * math.pi)

# --- NumPy ---


def numpy_models() -> dict[str, tuple[Callable, Callable, Callable]]:
    """(initial, transition, log_likelihood) of each model, on arrays (n,) or (n, 4)."""

    def level_initial(n, rng, dtype):
        return rng.standard_normal(n, dtype=dtype)

    def level_move(x, rng):
        return x + rng.standard_normal(x.shape, dtype=x.dtype)

    def level_weigh(y, x):
        return -0.5 * (y - x) ** 2 - x.dtype.type(0.5 * LOG_2PI)

    def volatility_initial(n, rng, dtype):
        return rng.standard_normal(n, dtype=dtype) * dtype(0.1726 / math.sqrt(1 - 0.9731**2)) - dtype(0.9)

    def volatility_move(x, rng):
        f = x.dtype.type
        return f(-0.9) + f(0.9731) * (x + f(0.9)) + f(0.1726) * rng.standard_normal(x.shape, dtype=x.dtype)

    def volatility_weigh(y, x):
        f = x.dtype.type
        return f(-0.5) * (f(LOG_2PI) + x + f(y * y) * np.exp(-x))

    spread = np.array([1.0, 1.0, 0.1, 0.1])
    centre = np.array([5.0, 5.0, -0.1, 0.1])

    def bearings_initial(n, rng, dtype):
        return centre.astype(dtype) + spread.astype(dtype) * rng.standard_normal((n, 4), dtype=dtype)

    a = math.sqrt(0.001 / 3)
    b = 0.001 / 2 / a
    c = math.sqrt(0.001 - b * b)

    def bearings_move(x, rng):
        f = x.dtype.type
        z = rng.standard_normal(x.shape, dtype=x.dtype)
        out = np.empty_like(x)
        out[:, 0] = x[:, 0] + x[:, 2] + f(a) * z[:, 0]
        out[:, 1] = x[:, 1] + x[:, 3] + f(a) * z[:, 1]
        out[:, 2] = x[:, 2] + f(b) * z[:, 0] + f(c) * z[:, 2]
        out[:, 3] = x[:, 3] + f(b) * z[:, 1] + f(c) * z[:, 3]
        return out

    def bearings_weigh(y, x):
        f = x.dtype.type
        d = f(y) - np.arctan2(x[:, 1], x[:, 0])
        d -= f(2 * math.pi) * np.rint(d * f(0.5 / math.pi))
        return f(-0.5 / 0.05**2) * d * d - f(math.log(0.05) + 0.5 * LOG_2PI)

    return {
        "local level": (level_initial, level_move, level_weigh),
        "stochastic volatility": (volatility_initial, volatility_move, volatility_weigh),
        "bearings-only": (bearings_initial, bearings_move, bearings_weigh),
    }


def numpy_loop(model, y, n, threshold, rng, dtype=np.float64) -> float:
    """Log-likelihood by a NumPy bootstrap filter."""
    initial, move, weigh = model
    x = initial(n, rng, dtype)
    log_w = np.full(n, -math.log(n), dtype)
    weights = None
    total = 0.0
    for t in range(len(y)):
        if t:
            if weights is not None:
                places = (np.arange(n) + rng.random()) / n
                x = x[np.minimum(np.searchsorted(np.cumsum(weights), places), n - 1)]
                log_w = np.full(n, -math.log(n), dtype)
            x = move(x, rng)
        log_w = log_w + weigh(y[t], x)
        m = log_w.max()
        w = np.exp(log_w - m)
        s = w.sum()
        total += float(m) + math.log(s)
        log_w -= m + math.log(s)
        w /= s
        weights = w if 1.0 / float(w @ w) < threshold * n or threshold >= 1 else None
    return total


# --- numba ---


def numba_loops() -> dict[str, Callable[..., float]]:
    """Compiled filters loop(rng, y, n, threshold, zero) by model; `zero` is 0 of the dtype to compute in.

    Raises ImportError without numba.
    """
    from numba import njit

    def build(initial, move, weigh, d):
        initial, move, weigh = njit(initial), njit(move), njit(weigh)

        @njit
        def loop(rng, y, n, threshold, zero):
            x = np.empty((d, n), zero.dtype)
            x_next = np.empty_like(x)
            log_w = np.empty(n, zero.dtype)
            w = np.empty(n, zero.dtype)
            initial(rng, x, zero)
            log_w[:] = -math.log(n)
            resample = False
            total = 0.0
            for t in range(len(y)):
                if t:
                    if resample:
                        u = rng.random() / n
                        cumulative = w[0] + 0.0
                        j = 0
                        for k in range(n):
                            while cumulative < u and j < n - 1:
                                j += 1
                                cumulative += w[j]
                            for i in range(d):
                                x_next[i, k] = x[i, j]
                            u += 1.0 / n
                        x, x_next = x_next, x
                        log_w[:] = -math.log(n)
                    move(rng, x, zero)
                m = -np.inf
                weigh(y[t], x, log_w, zero)
                for j in range(n):
                    if log_w[j] > m:
                        m = log_w[j]
                s = 0.0
                q = 0.0
                for j in range(n):
                    e = np.exp(log_w[j] - zero.dtype.type(m))
                    w[j] = e
                    s += e
                    q += e * e
                increment = m + math.log(s)
                total += increment
                resample = threshold >= 1 or s * s / q < threshold * n
                inverse = 1.0 / s
                for j in range(n):
                    w[j] *= inverse
                if not resample:
                    for j in range(n):
                        log_w[j] -= increment
            return total

        return loop

    def level_initial(rng, x, zero):
        for j in range(x.shape[1]):
            x[0, j] = rng.standard_normal()

    def level_move(rng, x, zero):
        for j in range(x.shape[1]):
            x[0, j] += zero.dtype.type(rng.standard_normal())

    def level_weigh(y, x, log_w, zero):
        f = zero.dtype.type
        for j in range(x.shape[1]):
            r = f(y) - x[0, j]
            log_w[j] += f(-0.5) * r * r - f(0.5 * LOG_2PI)

    def volatility_initial(rng, x, zero):
        for j in range(x.shape[1]):
            x[0, j] = -0.9 + 0.1726 / math.sqrt(1 - 0.9731**2) * rng.standard_normal()

    def volatility_move(rng, x, zero):
        f = zero.dtype.type
        for j in range(x.shape[1]):
            x[0, j] = f(-0.9) + f(0.9731) * (x[0, j] + f(0.9)) + f(0.1726) * f(rng.standard_normal())

    def volatility_weigh(y, x, log_w, zero):
        f = zero.dtype.type
        square = f(y * y)
        for j in range(x.shape[1]):
            log_w[j] += f(-0.5) * (f(LOG_2PI) + x[0, j] + square * np.exp(-x[0, j]))

    def bearings_initial(rng, x, zero):
        for j in range(x.shape[1]):
            x[0, j] = 5.0 + rng.standard_normal()
            x[1, j] = 5.0 + rng.standard_normal()
            x[2, j] = -0.1 + 0.1 * rng.standard_normal()
            x[3, j] = 0.1 + 0.1 * rng.standard_normal()

    a = math.sqrt(0.001 / 3)
    b = 0.001 / 2 / a
    c = math.sqrt(0.001 - b * b)

    def bearings_move(rng, x, zero):
        f = zero.dtype.type
        for axis in range(2):
            for j in range(x.shape[1]):
                z = f(rng.standard_normal())
                v = x[axis + 2, j]
                x[axis, j] += v + f(a) * z
                x[axis + 2, j] = v + f(b) * z + f(c) * f(rng.standard_normal())

    def bearings_weigh(y, x, log_w, zero):
        f = zero.dtype.type
        for j in range(x.shape[1]):
            r = f(y) - math.atan2(x[1, j], x[0, j])
            r -= f(2 * math.pi) * np.rint(r * f(0.5 / math.pi))
            log_w[j] += f(-0.5 / 0.05**2) * r * r - f(math.log(0.05) + 0.5 * LOG_2PI)

    return {
        "local level": build(level_initial, level_move, level_weigh, 1),
        "stochastic volatility": build(volatility_initial, volatility_move, volatility_weigh, 1),
        "bearings-only": build(bearings_initial, bearings_move, bearings_weigh, 4),
    }


def pfkit_models() -> dict[str, Any]:
    """The same models, ready made."""
    import pfkit

    return {
        "local level": pfkit.LocalLevel(1.0, 1.0),
        "stochastic volatility": pfkit.StochasticVolatility(-0.9, 0.9731, 0.1726),
        "bearings-only": pfkit.BearingsOnly(
            (0.0, 0.0), (5.0, 5.0, -0.1, 0.1), np.diag([1.0, 1.0, 0.01, 0.01]), 0.001, 0.05
        ),
    }


def observations(name: str, length: int) -> np.ndarray:
    """A series the model explains well."""
    rng = np.random.default_rng(7)
    if name == "local level":
        return np.cumsum(rng.standard_normal(length)) + rng.standard_normal(length)
    if name == "stochastic volatility":
        h, y = -0.9, np.empty(length)
        for t in range(length):
            h = -0.9 + 0.9731 * (h + 0.9) + 0.1726 * rng.standard_normal()
            y[t] = math.exp(h / 2) * rng.standard_normal()
        return y
    t = np.arange(length)
    return np.arctan2(5 + 0.1 * t, 5 - 0.1 * t) + 0.05 * rng.standard_normal(length)
