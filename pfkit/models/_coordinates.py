"""Arithmetic on particles coordinate by coordinate.

Particles are stored (d, n) contiguous and shown as an (n, d) view, so `x[..., i]` is one contiguous vector. A
matrix product written as sums over those vectors gives each particle the same bits wherever it stands in the
array: BLAS does not promise that, and the bits of a filter must not depend on how the particles are cut into
blocks.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def apply_matrix(a: Array, x: Array) -> Array:
    """x -> a x for every particle: `a` (m, d), `x` (..., d); returns (..., m), stored coordinate-major."""
    m, d = a.shape
    if m == d == 1:
        return float(a[0, 0]) * x
    out = np.empty((m, *x.shape[:-1]))
    for i in range(m):
        row = out[i, ...]  # an array also where x is one state
        terms = [j for j in range(d) if a[i, j] != 0.0]
        if not terms:
            row[...] = 0.0
        for j in terms:
            coefficient = float(a[i, j])
            if j == terms[0]:
                np.multiply(x[..., j], coefficient, out=row)
            elif coefficient == 1.0:
                row += x[..., j]
            else:
                row += coefficient * x[..., j]
    return np.moveaxis(out, 0, -1)


def draw_normal(factor: Array, n: int, rng: np.random.Generator) -> Array:
    """n draws of N(0, factor factor^T) as (n, d), stored coordinate-major; none drawn if factor is zero."""
    d = factor.shape[0]
    if not factor.any():
        return np.zeros((d, n)).T
    if d == 1:
        return (float(factor[0, 0]) * rng.standard_normal(n))[:, None]
    z = rng.standard_normal((d, n))
    scale = factor.diagonal()
    if np.count_nonzero(factor) == np.count_nonzero(scale):
        z *= scale[:, None]
        return z.T
    return apply_matrix(factor, z.T)


class NormalDensity:
    """log N(v; 0, cov) for many v at once, by the Cholesky factor of cov (positive definite).

    Error: that of the forward substitution, about d ulp of the squared Mahalanobis length.
    """

    def __init__(self, cov: Array):
        self.chol = np.linalg.cholesky(cov)
        d = len(cov)
        self.constant = -0.5 * d * math.log(2.0 * math.pi) - float(np.log(np.diag(self.chol)).sum())

    def log_pdf(self, v: Array) -> Array:
        """(..., d) -> (...,), float64."""
        if len(self.chol) == 1:
            scaled = np.asarray(v[..., 0], dtype=np.float64) / float(self.chol[0, 0])
            return self.constant - 0.5 * (scaled * scaled)
        z: list[Array] = []
        square = np.zeros(v.shape[:-1])
        for i in range(len(self.chol)):
            residual = np.asarray(v[..., i], dtype=np.float64)
            for j in range(i):
                if self.chol[i, j] != 0.0:
                    residual = residual - float(self.chol[i, j]) * z[j]
            z.append(residual / float(self.chol[i, i]))
            square += z[i] * z[i]
        return self.constant - 0.5 * square


def log_normal(v: Array | float, sd: Array | float) -> Array:
    """log N(v; 0, sd^2), elementwise, float64."""
    z = np.asarray(v, dtype=np.float64) / sd
    return -0.5 * z * z - np.log(sd) - 0.5 * math.log(2.0 * math.pi)
