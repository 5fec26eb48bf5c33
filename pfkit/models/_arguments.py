"""Checks of model parameters: each failure names the parameter, what was given and what is accepted."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def finite(name: str, value: float) -> float:
    """`value` as a finite Python float."""
    return _number(name, value, lambda v: True, "a finite number")


def positive(name: str, value: float) -> float:
    """`value` as a finite Python float > 0."""
    return _number(name, value, lambda v: v > 0, "a finite number > 0")


def non_negative(name: str, value: float) -> float:
    """`value` as a finite Python float >= 0."""
    return _number(name, value, lambda v: v >= 0, "a finite number >= 0")


def _number(name, value, accept, expected) -> float:
    try:
        if isinstance(value, (str, bytes)):  # float() would read them
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be {expected}, got {value!r}") from None
    if not math.isfinite(number) or not accept(number):
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return number


def scalar_state_dim(state_dim: int | None) -> int | None:
    """`state_dim` of a model with a scalar state: None (particles (n,)) or 1 (particles (n, 1))."""
    if state_dim is not None and state_dim != 1:
        raise ValueError(f"state_dim must be None, for particles (n,), or 1, for (n, 1); got {state_dim!r}")
    return state_dim


def matrix(name: str, value: ArrayLike, shape: tuple[int | None, int | None]) -> Array:
    """`value` as a finite 2-D float64 array of the given shape; None in `shape` accepts any length."""
    a = np.array(value, dtype=np.float64)
    wanted = "(" + ", ".join("any" if s is None else str(s) for s in shape) + ")"
    if a.ndim != 2 or 0 in a.shape or any(s not in (None, n) for s, n in zip(shape, a.shape, strict=True)):
        raise ValueError(f"{name} must have shape {wanted}, got {a.shape}")
    if not np.isfinite(a).all():
        raise ValueError(f"{name} must be finite, got {a.tolist()}")
    return a


def covariance(name: str, value: ArrayLike, d: int, *, definite: bool = False) -> Array:
    """`value` as a symmetric (d, d) float64 array, positive definite or at least semi-definite."""
    a = matrix(name, value, (d, d))
    scale = np.sqrt(np.abs(np.diag(a)))
    if (np.abs(a - a.T) > 1e-12 * (np.outer(scale, scale) + np.abs(a))).any():
        raise ValueError(f"{name} must be symmetric, got {a.tolist()}")
    a = 0.5 * (a + a.T)
    smallest = _smallest_eigenvalue(a)
    if smallest < -_RANK_TOLERANCE * d or (definite and smallest <= _RANK_TOLERANCE * d):
        kind = "positive definite" if definite else "positive semi-definite"
        raise ValueError(f"{name} must be {kind}, got {a.tolist()}")
    return a


def is_singular(cov: Array) -> bool:
    """True if a semi-definite `cov` has no density: an eigenvalue of its correlations is of rounding size."""
    return _smallest_eigenvalue(cov) <= _RANK_TOLERANCE * len(cov)


def factor(cov: Array) -> Array:
    """Square L with L L^T = cov: Cholesky, or eigenvectors, of the same rank, where cov is singular."""
    if not is_singular(cov):
        return np.asarray(np.linalg.cholesky(cov), dtype=np.float64)
    scale = np.sqrt(np.diag(cov))
    values, vectors = np.linalg.eigh(_correlation(cov))
    values = np.where(values > _RANK_TOLERANCE * len(cov), values, 0.0)
    return scale[:, None] * vectors * np.sqrt(values)


# eigvalsh of a correlation matrix is right to a few ulp of its largest eigenvalue, which is at most d
_RANK_TOLERANCE = 1e-14


def _correlation(cov: Array) -> Array:
    """cov with its diagonal scaled to 1, so units cannot make it look singular. Zero rows stay zero."""
    scale = np.sqrt(np.abs(np.diag(cov)))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    return cov * np.outer(inverse, inverse)


def _smallest_eigenvalue(cov: Array) -> float:
    diagonal = np.diag(cov)
    if (diagonal < 0).any() or cov[diagonal == 0].any():
        return -1.0
    return float(np.linalg.eigvalsh(_correlation(cov)).min())
