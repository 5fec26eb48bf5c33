"""Resampling: which particles go on, and how often.

Given weights w_1..w_N, draw n ancestors so that particle j is expected n w_j / sum(w) times. Every scheme here works on
integer weights and their exact cumulative sum: index N cannot occur, no particle is lost to rounding, and equal
weights give each particle once in order (systematic, stratified and residual).

    systematic   one uniform; n w_j copies rounded up or down; the least noise, the default
    stratified   one uniform a stratum; within one of n w_j below and above, almost always
    multinomial  n independent draws; for theory and for comparison
    residual     floor(n w_j) copies for certain, the rest multinomial (Liu and Chen 1998)

The exact definitions are floor((n C_j + r) / S) with C_j the cumulative sum, S the total and r an integer offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pfkit_ext import _cpu

from .random import RESAMPLE, seed_key, stream

__all__ = ["SCHEMES", "check_scheme", "resample", "resampling_scheme"]

Scheme = Callable[..., np.ndarray]
SCHEMES: dict[str, Scheme] = {}


def resampling_scheme(name: str) -> Callable[[Scheme], Scheme]:
    """Register ``function(ints, n, rng, u=None) -> ancestors`` under ``name``.

    ``ints`` are the integer weights, uint32 or uint64; ``u`` the caller's uniforms, None to draw from ``rng``.
    """

    def register(function: Scheme) -> Scheme:
        SCHEMES[name] = function
        return function

    return register


def check_scheme(scheme: Any) -> Scheme | Callable:
    """The registered function of a name, or the callable itself; ValueError or TypeError otherwise."""
    if isinstance(scheme, str):
        try:
            return SCHEMES[scheme]
        except KeyError:
            accepted = ", ".join(map(repr, SCHEMES))
            raise ValueError(
                f"unknown resampling scheme {scheme!r}; accepted: {accepted}, or a callable(weights, n, rng)"
            ) from None
    if callable(scheme):
        return scheme
    raise TypeError(f"resampling must be the name of a scheme or a callable(weights, n, rng), not {scheme!r}")


def random_bits(rng: np.random.Generator, n: int) -> np.ndarray:
    """n words of 64 random bits."""
    return rng.integers(0, 2**64 - 1, size=n, dtype=np.uint64, endpoint=True)


def offset(total: int, u: float) -> int:
    """The integer offset r of a caller's uniform: ancestor k is the first j with C_j / S > (k + u) / n."""
    return total - 1 - min(int(float(u) * float(total)), total - 1)


def _uniforms(u: Any, n: int, scheme: str, scalar: bool) -> np.ndarray:
    """``u`` as a float64 array (n,) (or a scalar, where the scheme takes one), checked to lie in [0, 1)."""
    u = np.asarray(u, np.float64)
    if u.ndim == 0 and scalar:
        u = np.broadcast_to(u, n)
    if u.shape != (n,):
        one = "a number or " if scalar else ""
        raise ValueError(f"u for scheme {scheme!r} must be {one}an array of shape ({n},), not of shape {u.shape}")
    if not np.all((u >= 0) & (u < 1)):
        raise ValueError(f"u must lie in [0, 1); got {u[~((u >= 0) & (u < 1))][0]!r}")
    return u


def _bits_of(u: np.ndarray) -> np.ndarray:
    """floor(u 2^64) as uint64, exact: u is a float64 below 1."""
    return np.ldexp(u, 64).astype(np.uint64)


@resampling_scheme("systematic")
def systematic(ints: np.ndarray, n: int, rng: np.random.Generator | None, u: Any = None) -> np.ndarray:
    """floor or ceil of n w_j / S copies of each j, in order; one random offset (Carpenter et al. 1999)."""
    total = _cpu.int_sum(ints)
    if u is None:
        return _cpu.systematic(ints, n, (int(random_bits(rng, 1)[0]) * total) >> 64)  # type: ignore[arg-type]
    u = np.asarray(u, np.float64)
    if u.ndim:
        raise ValueError(f"u for scheme 'systematic' is one number, not an array of shape {u.shape}")
    if not 0 <= u < 1:
        raise ValueError(f"u must lie in [0, 1); got {float(u)!r}")
    return _cpu.systematic(ints, n, offset(total, float(u)))


@resampling_scheme("stratified")
def stratified(ints: np.ndarray, n: int, rng: np.random.Generator | None, u: Any = None) -> np.ndarray:
    """One draw in each of n equal strata of the cumulative weight, in order (Kitagawa 1996)."""
    if u is None:
        return _cpu.stratified(ints, n, random_bits(rng, n))  # type: ignore[arg-type]
    total = _cpu.int_sum(ints)
    offsets = [offset(total, v) for v in _uniforms(u, n, "stratified", scalar=True)]
    pairs = np.array([(r >> 64, r & (2**64 - 1)) for r in offsets], np.uint64).reshape(n, 2)
    return _cpu.stratified(ints, n, pairs)


@resampling_scheme("multinomial")
def multinomial(ints: np.ndarray, n: int, rng: np.random.Generator | None, u: Any = None) -> np.ndarray:
    """n independent draws, in the order drawn (Gordon, Salmond and Smith 1993)."""
    draws = random_bits(rng, n) if u is None else _bits_of(_uniforms(u, n, "multinomial", scalar=False))  # type: ignore[arg-type]
    return _cpu.multinomial(ints, draws)


@resampling_scheme("residual")
def residual(ints: np.ndarray, n: int, rng: np.random.Generator | None, u: Any = None) -> np.ndarray:
    """floor(n w_j / S) copies of each j in order, then the rest multinomial on n w_j mod S."""
    draws = random_bits(rng, n) if u is None else _bits_of(_uniforms(u, n, "residual", scalar=False))  # type: ignore[arg-type]
    return _cpu.residual(ints, n, draws)


def check_weights(weights: Any) -> np.ndarray:
    """Weights as a 1-D float64 array: finite, >= 0, not all zero; ValueError or TypeError naming the first fault."""
    w = np.asarray(weights)
    if w.dtype.kind not in "fiub":
        raise TypeError(f"weights must be real numbers, not an array of dtype {w.dtype}")
    if w.ndim != 1 or w.size == 0:
        raise ValueError(f"weights must be a non-empty 1-D array, not an array of shape {w.shape}")
    w = np.ascontiguousarray(w, np.float64)
    if not (w.min() >= 0 and w.max() < np.inf):
        bad = int(np.flatnonzero(~((w >= 0) & (w < np.inf)))[0])
        raise ValueError(f"weights must be finite and >= 0; weights[{bad}] is {w[bad]}")
    if not w.max() > 0:
        raise ValueError(f"at least one of the {w.size} weights must be > 0; all are 0")
    return w


def check_ancestors(ancestors: Any, n: int, n_particles: int) -> np.ndarray:
    """What a caller's scheme returned, as int64 (n,), every index checked."""
    a = np.asarray(ancestors)
    if a.dtype.kind not in "iu" or a.shape != (n,):
        raise ValueError(
            f"the resampling callable must return {n} integer indices; it returned dtype {a.dtype}, shape {a.shape}"
        )
    if n and (a.min() < 0 or a.max() >= n_particles):
        bad = a[(a < 0) | (a >= n_particles)][0]
        raise ValueError(f"the resampling callable returned index {bad}, outside 0..{n_particles - 1}")
    return np.ascontiguousarray(a, np.int64)


def resample(
    weights: Any, n: int | None = None, *, scheme: Any = "systematic", rng: Any = None, u: Any = None
) -> np.ndarray:
    """Ancestor indices drawn in proportion to weights.

    Parameters
    ----------
    weights : array_like, shape (N,)
        Finite, >= 0, not all zero; need not sum to 1. Any scale, subnormal to huge.
    n : int, optional
        Number of ancestors; N by default.
    scheme : str or callable(weights, n, rng)
        "systematic", "stratified", "multinomial", "residual", or your own.
    rng : None, int, numpy.random.SeedSequence or numpy.random.Generator
        Source of the uniforms. A Generator is drawn from directly.
    u : float or array_like, optional
        The uniforms themselves, in [0, 1): one number (systematic), or n of them (stratified also takes one for
        all strata). Ancestor k of systematic and stratified is the first j with C_j / S > (k + u_k) / n.

    Returns
    -------
    numpy.ndarray
        Ancestors, int64, shape (n,), each in 0..N - 1. Non-decreasing for systematic and stratified.

    Raises
    ------
    ValueError
        Negative, NaN, infinite or all-zero weights; an unknown scheme; n < 0; u outside [0, 1).
    TypeError
        Weights that are not real numbers; n not an integer; a scheme that is neither a name nor callable.

    Notes
    -----
    Weights are rounded to integers, 2^31 - 1 at the largest (2^52 beyond 2^20 particles): a weight moves by at most
    2^-32 (2^-53) of the largest, and below that becomes 0. From there on all arithmetic is exact.
    """
    function = check_scheme(scheme)
    w = check_weights(weights)
    if n is None:
        n = w.size
    elif isinstance(n, (bool, np.bool_)) or not isinstance(n, (int, np.integer)):
        raise TypeError(f"n must be an int, not {n!r}")
    elif n < 0:
        raise ValueError(f"n must be >= 0, not {n}")
    generator = None
    if u is None or not isinstance(scheme, str):
        generator = rng if isinstance(rng, np.random.Generator) else stream(seed_key(rng), 0, RESAMPLE)
    if not isinstance(scheme, str):
        if u is not None:
            raise TypeError("u is for the named schemes; a callable scheme draws from its rng")
        return check_ancestors(function(w / w.sum(), int(n), generator), int(n), w.size)
    return function(_cpu.quantize(w), int(n), generator, u)
