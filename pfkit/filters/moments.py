"""Weighted summaries of a set of particles: mean, variance, quantiles.

Particles are (N,) or (N, d), weights (N,), non-negative and not all 0; they need not sum to 1. Sums are
float64 whatever the dtype of the particles, in an order that depends neither on threads nor on SIMD width.
Coordinates named in ``angle_dims`` are angles in rad: their mean is the direction of the mean unit vector,
their variance that of the wrapped distance to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import pfkit_ext._cpu as _cpu
from pfkit.models.angles import circular_mean, circular_variance

__all__ = ["mean_and_variance", "weighted_mean", "weighted_quantile", "weighted_variance"]


def mean_and_variance(
    particles: ArrayLike, weights: ArrayLike, angle_dims: Sequence[int] = (), *, variance: bool = True
) -> tuple[Any, Any]:
    """Mean and variance of each coordinate, (d,) float64 arrays, or floats for scalar particles.

    The variance is sum w (x - mean)^2 / sum w, None if not asked for.
    """
    x, rows, w = _rows(particles, weights)
    mean, spread = _cpu.moments(rows, w, None, variance)
    if not np.isfinite(mean).all() and w.any():
        # 0 times an infinite state is NaN, but a particle of weight 0 has no part in a mean
        alive = w > 0
        rows, w = np.ascontiguousarray(rows[:, alive]), w[alive]
        mean, spread = _cpu.moments(rows, w, None, variance)
    for k in angle_dims:
        mean[k] = circular_mean(rows[k], w)
        if variance:
            spread[k] = circular_variance(rows[k], w, mean[k])
    if x.ndim == 1:
        return float(mean[0]), float(spread[0]) if variance else None
    return mean, spread


def weighted_mean(particles: ArrayLike, weights: ArrayLike, angle_dims: Sequence[int] = ()) -> Any:
    """Weighted mean of each coordinate.

    Parameters
    ----------
    particles : (N,) or (N, d)
    weights : (N,)
        Finite, >= 0, not all 0.
    angle_dims : sequence of int
        Coordinates that are angles, in rad.

    Returns
    -------
    float, or (d,) float64
        Sum w x / sum w; of an angle the direction of the mean unit vector, in [-pi, pi].

    Raises
    ------
    ValueError
        For shapes that do not fit, or weights that are none.
    """
    return mean_and_variance(particles, _checked(weights), angle_dims, variance=False)[0]


def weighted_variance(particles: ArrayLike, weights: ArrayLike, angle_dims: Sequence[int] = ()) -> Any:
    """Variance sum w (x - mean)^2 / sum w of each coordinate; everything else as in ``weighted_mean``.

    Of an angle, the variance of its distance to the mean, wrapped to [-pi, pi], in rad^2.
    """
    return mean_and_variance(particles, _checked(weights), angle_dims)[1]


def weighted_quantile(particles: ArrayLike, weights: ArrayLike, q: ArrayLike) -> np.ndarray:
    """Smallest particle whose cumulative weight reaches q, coordinate by coordinate.

    Parameters
    ----------
    particles : (N,) or (N, d)
    weights : (N,)
    q : float or array_like
        Probabilities in [0, 1].

    Returns
    -------
    numpy.ndarray
        The shape of ``q``, followed by (d,) for (N, d) particles. A particle of weight 0 is never returned.

    Raises
    ------
    ValueError
        For a q outside [0, 1], shapes that do not fit, or weights that are negative, not finite or all 0.
    """
    q = np.asarray(q, np.float64)
    if not np.all((q >= 0) & (q <= 1)):
        raise ValueError(f"q must lie in [0, 1], not {q!r}")
    x, w = np.asarray(particles), _checked(weights).astype(np.float64)
    if x.ndim not in (1, 2) or w.shape != x.shape[:1] or w.size == 0:
        raise ValueError(f"particles (N,) or (N, d) and weights (N,), N >= 1, not {x.shape} and {w.shape}")
    alive = np.flatnonzero(w)
    columns, w = (x[:, None] if x.ndim == 1 else x)[alive], w[alive]
    out = np.empty((*q.shape, columns.shape[1]), columns.dtype)
    for k in range(columns.shape[1]):
        order = np.argsort(columns[:, k], kind="stable")
        cumulative = np.cumsum(w[order])
        # q <= 1 and the last sum is the total itself: the index stays below the number of particles
        index = np.searchsorted(cumulative, q * cumulative[-1], side="left")
        out[..., k] = columns[order[index], k]
    return out[..., 0] if x.ndim == 1 else out


def _checked(weights: ArrayLike) -> np.ndarray:
    """``weights`` as an array, if they are weights."""
    w = np.asarray(weights)
    bad = np.flatnonzero(~((w >= 0) & (w < np.inf)))
    if bad.size:
        raise ValueError(f"weights must be finite and >= 0; weights[{bad[0]}] is {w.flat[bad[0]]}")
    if w.size and not w.any():
        raise ValueError("at least one weight must be > 0")
    return w


def _rows(particles: ArrayLike, weights: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """particles as an array, as contiguous rows (d, N), and the weights, the last two of one float dtype."""
    x, w = np.asarray(particles), np.asarray(weights)
    if x.ndim not in (1, 2) or w.shape != x.shape[:1] or w.size == 0:
        raise ValueError(f"particles (N,) or (N, d) and weights (N,), N >= 1, not {x.shape} and {w.shape}")
    dtype = np.float32 if x.dtype == np.float32 and w.dtype == np.float32 else np.float64
    return x, np.ascontiguousarray(np.atleast_2d(x.T), dtype), np.ascontiguousarray(w, dtype)
