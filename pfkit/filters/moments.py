"""Weighted summaries of a set of particles: mean, variance, quantiles.

Particles are (N,) or (N, d), weights (N,) and non-negative; they need not sum to 1. Sums are float64 whatever the
dtype of the particles. Coordinates named in ``angle_dims`` are angles in rad: their mean is the direction of the mean
unit vector, their variance that of the wrapped distance to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from pfkit.models.angles import circular_mean, circular_variance

__all__ = ["weighted_mean", "weighted_quantile", "weighted_variance"]


def weighted_mean(particles: np.ndarray, weights: np.ndarray, angle_dims: Sequence[int] = ()) -> np.ndarray:
    """Mean of each coordinate: (d,), or a 0-d array for scalar particles; float64."""
    # einsum, not a BLAS product: its order of summation does not depend on the number of BLAS threads
    total = weights.sum(dtype=np.float64)
    mean = np.einsum("n...,n->...", particles, weights, dtype=np.float64) / total
    for k in angle_dims:
        angles = particles if particles.ndim == 1 else particles[:, k]
        mean[() if particles.ndim == 1 else k] = circular_mean(angles, weights)
    return mean


def weighted_variance(
    particles: np.ndarray,
    weights: np.ndarray,
    mean: np.ndarray | None = None,
    angle_dims: Sequence[int] = (),
) -> np.ndarray:
    """Variance sum w (x - mean)^2 / sum w of each coordinate, about ``mean`` (computed if not given); float64."""
    if mean is None:
        mean = weighted_mean(particles, weights, angle_dims)
    away = particles - mean
    away *= away
    variance = np.einsum("n...,n->...", away, weights, dtype=np.float64) / weights.sum(dtype=np.float64)
    for k in angle_dims:
        scalar = particles.ndim == 1
        angles, centre = (particles, mean) if scalar else (particles[:, k], mean[k])
        variance[() if scalar else k] = circular_variance(angles, weights, centre)
    return variance


def weighted_quantile(particles: np.ndarray, weights: np.ndarray, q: ArrayLike) -> np.ndarray:
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
        The shape of ``q`` followed by (d,) for (N, d) particles. A particle of weight 0 is never returned.
    """
    q = np.asarray(q, np.float64)
    if not np.all((q >= 0) & (q <= 1)):
        raise ValueError(f"q must lie in [0, 1], not {q!r}")
    x = np.asarray(particles)
    columns = x[:, None] if x.ndim == 1 else x
    alive = np.flatnonzero(np.asarray(weights) > 0)
    if alive.size == 0:
        raise ValueError("all weights are 0")
    columns, w = columns[alive], np.asarray(weights, np.float64)[alive]
    out = np.empty((*q.shape, columns.shape[1]), columns.dtype)
    for k in range(columns.shape[1]):
        order = np.argsort(columns[:, k], kind="stable")
        cumulative = np.cumsum(w[order])
        # the last cumulative weight is the total by construction, so the index stays below N
        index = np.searchsorted(cumulative, q * cumulative[-1], side="left")
        out[..., k] = columns[order[np.minimum(index, alive.size - 1)], k]
    return out[..., 0] if x.ndim == 1 else out
