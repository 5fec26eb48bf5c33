"""Arithmetic on angles: differences, means and variances that do not break at +-pi.

A heading of 3.1 rad and one of -3.1 rad are 0.083 rad apart, not 6.2, and their mean is pi, not 0. Everything
that subtracts or averages a heading or a bearing therefore goes through these functions. A model names its
angular state coordinates in `angle_dims`, and the filter's moments of those coordinates are circular.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["circular_mean", "circular_variance", "wrap"]

_TURN = 2.0 * np.pi


def wrap(angle: ArrayLike) -> np.ndarray:
    """`angle` (rad, any shape) moved by whole turns into [-pi, pi], dtype kept.

    Error: that of one floating remainder, at most 2 ulp of |angle| + pi. NaN and infinities give NaN.
    """
    a = np.asarray(angle)
    if a.dtype.kind != "f":
        a = a.astype(np.float64)
    pi, turn = a.dtype.type(np.pi), a.dtype.type(_TURN)
    with np.errstate(invalid="ignore"):
        return np.remainder(a + pi, turn) - pi


def circular_mean(angle: ArrayLike, weights: ArrayLike) -> np.ndarray:
    """Direction of the weighted mean of the unit vectors (cos, sin), in rad, over the last axis.

    Parameters
    ----------
    angle : (..., n) array, rad
    weights : (n,) or (..., n) array, non-negative; they need not sum to 1

    Returns
    -------
    (...) float64 array in [-pi, pi]; 0 where the vectors cancel exactly (an even spread has no direction).
    """
    a, w = np.asarray(angle, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    return np.arctan2(np.sum(w * np.sin(a), axis=-1), np.sum(w * np.cos(a), axis=-1))


def circular_variance(angle: ArrayLike, weights: ArrayLike, mean: ArrayLike | None = None) -> np.ndarray:
    """Weighted mean of the squared wrapped distance to the circular mean, in rad^2, over the last axis.

    For a narrow spread this is the ordinary variance; it never exceeds pi^2. `mean` (...) saves computing the
    circular mean again. Weights need not sum to 1.
    """
    a, w = np.asarray(angle, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    centre = circular_mean(a, w) if mean is None else np.asarray(mean, dtype=np.float64)
    away = wrap(a - centre[..., None])
    return np.sum(w * away * away, axis=-1) / np.sum(np.broadcast_to(w, a.shape), axis=-1)
