"""Resampling: which particles go on, and how often.

Given weights w_1..w_N, draw n ancestors so that particle j is expected n w_j / sum(w) times. Every scheme
here works on integer weights and their exact cumulative sum C_j, total S: index N cannot occur, no particle
is lost to rounding, and equal weights give each particle once, in order (systematic, stratified and
residual).

    systematic   one uniform; n w_j / S copies rounded up or down; the least noise, the default
    stratified   one uniform a stratum
    multinomial  n independent draws; for theory and for comparison
    residual     floor(n w_j / S) copies for certain, the rest multinomial
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pfkit_ext._cpu as _cpu

from .arguments import count
from .random import RESAMPLE, random_bits, seed_key, stream

__all__ = ["SCHEMES", "Scheme", "check_ancestors", "check_scheme", "resample", "resampling_scheme"]

Scheme = Callable[..., np.ndarray]
SCHEMES: dict[str, Scheme] = {}


def resampling_scheme(name: str) -> Callable[[Scheme], Scheme]:
    """Register ``function(ints, n, rng, u=None, out=None) -> ancestors`` under ``name``.

    ``ints`` are integer weights, uint32 or uint64, not all 0; ``rng`` a Generator, not used where the
    caller's uniforms ``u`` are given; the ancestors are int64, (n,), in ``out`` if that is given.
    """

    def register(function: Scheme) -> Scheme:
        SCHEMES[name] = function
        return function

    return register


def check_scheme(scheme: Any) -> Scheme:
    """The registered function of a name, or the callable itself; ValueError or TypeError otherwise."""
    if isinstance(scheme, str):
        if scheme not in SCHEMES:
            raise ValueError(
                f"unknown resampling scheme {scheme!r}; accepted: {', '.join(map(repr, SCHEMES))}, "
                "or a callable(weights, n, rng)"
            )
        return SCHEMES[scheme]
    if callable(scheme):
        return scheme
    raise TypeError(
        f"a resampling scheme is one of {', '.join(map(repr, SCHEMES))} or a callable(weights, n, rng), "
        f"not {scheme!r}"
    )


@resampling_scheme("systematic")
def systematic(ints, n, rng, u=None, out=None):
    """floor or ceil of n w_j / S copies of each j, in order; one random offset (Carpenter et al. 1999)."""
    if u is None:
        return _cpu.systematic_draw(ints, n, random_bits(rng, 1)[0], out)
    if np.ndim(u):
        raise ValueError(f"u for scheme 'systematic' is one number, not an array of shape {np.shape(u)}")
    return _cpu.systematic(ints, n, _offset(_cpu.int_sum(ints), _uniforms(u, (), "systematic")), out)


@resampling_scheme("stratified")
def stratified(ints, n, rng, u=None, out=None):
    """One draw in each of n equal strata of the cumulative weight, in order (Kitagawa 1996)."""
    if u is None:
        return _cpu.stratified(ints, n, random_bits(rng, n), out)
    total = _cpu.int_sum(ints)
    u = np.broadcast_to(u, n) if np.ndim(u) == 0 else u
    offsets = [_offset(total, v) for v in _uniforms(u, (n,), "stratified")]
    pairs = np.array([(r >> 64, r & (2**64 - 1)) for r in offsets], np.uint64).reshape(n, 2)
    return _cpu.stratified(ints, n, pairs, out)


@resampling_scheme("multinomial")
def multinomial(ints, n, rng, u=None, out=None):
    """n independent draws, in the order drawn (Gordon, Salmond and Smith 1993)."""
    draws = random_bits(rng, n) if u is None else _bits_of(_uniforms(u, (n,), "multinomial"))
    return _cpu.multinomial(ints, draws, out)


@resampling_scheme("residual")
def residual(ints, n, rng, u=None, out=None):
    """floor(n w_j / S) copies of each j in order, the rest multinomial on n w_j mod S (Liu and Chen 1998)."""
    if u is None:
        draws = random_bits(rng, _cpu.residual_left(ints, n))
    else:
        draws = _bits_of(_uniforms(u, (n,), "residual"))
    return _cpu.residual(ints, n, draws, out)


def _offset(total: int, u: float) -> int:
    """The integer offset of a uniform: ancestor k is the first j with C_j / S > (k + u) / n."""
    return total - 1 - min(int(float(u) * float(total)), total - 1)


def _uniforms(u: Any, shape: tuple[int, ...], scheme: str) -> np.ndarray:
    u = np.asarray(u, np.float64)
    if u.shape != shape:
        raise ValueError(f"u for scheme {scheme!r} must have shape {shape}, not {u.shape}")
    inside = (u >= 0) & (u < 1)
    if not inside.all():
        raise ValueError(f"u must lie in [0, 1), not {float(u[~inside][0])!r}")
    return u


def _bits_of(u: np.ndarray) -> np.ndarray:
    """floor(u 2^64); exact, u being a float64 below 1."""
    return np.ldexp(u, 64).astype(np.uint64)


def check_ancestors(ancestors: Any, n: int, n_particles: int) -> np.ndarray:
    """What a caller's scheme returned, as int64 (n,), every index checked; ValueError otherwise."""
    a = np.asarray(ancestors)
    if a.dtype.kind not in "iu" or a.shape != (n,):
        raise ValueError(
            f"the resampling callable must return {n} integer indices, shape ({n},); "
            f"it returned dtype {a.dtype}, shape {a.shape}"
        )
    outside = (a < 0) | (a >= n_particles)
    if outside.any():
        raise ValueError(
            f"the resampling callable returned index {a[outside][0]}, outside 0..{n_particles - 1}"
        )
    return np.ascontiguousarray(a, np.int64)


def resample(
    weights: Any, n: int | None = None, *, scheme: Any = "systematic", rng: Any = None, u: Any = None
) -> np.ndarray:
    """Ancestor indices drawn in proportion to weights.

    Parameters
    ----------
    weights : array_like, shape (N,)
        Finite, >= 0, not all zero, none masked; need not sum to 1. Any scale, subnormal to huge.
    n : int, optional
        Number of ancestors; N by default.
    scheme : str or callable(weights, n, rng)
        "systematic", "stratified", "multinomial", "residual", or your own; yours gets normalised weights.
    rng : None, int, numpy.random.SeedSequence or numpy.random.Generator
        Source of the uniforms. A Generator is drawn from directly.
    u : float or array_like, optional
        The uniforms themselves, in [0, 1), instead of ``rng``: one number for systematic, n of them for the
        other schemes (stratified also takes one for all strata; residual uses as many as it has draws left).
        Ancestor k of systematic and stratified is the first j with C_j / S > (k + u_k) / n; that of
        multinomial the first with C_j / S > u_k.

    Returns
    -------
    numpy.ndarray
        Ancestors, int64, shape (n,), each in 0..N - 1; in increasing order for systematic and stratified.

    Raises
    ------
    ValueError
        Negative, NaN, infinite, masked or all-zero weights; no weights; an unknown scheme; n < 0; u outside
        [0, 1).
    TypeError
        Weights that are not real numbers; n not an int; a scheme neither named nor callable; u with a
        callable.

    Notes
    -----
    Weights become integers, 2^31 - 1 at the largest (2^52 beyond 2^20 of them): each moves by at most 2^-32
    (2^-53) of the largest. All arithmetic after that is exact.
    """
    function = check_scheme(scheme)
    hidden = np.ma.getmask(weights)
    if np.any(hidden):
        raise ValueError(
            f"weights must not be masked, and {np.count_nonzero(hidden)} are; where a masked particle has no "
            "weight, pass weights.filled(0)"
        )
    w = np.asarray(weights)
    if w.dtype.kind not in "fiub":
        raise TypeError(f"weights must be real numbers, not an array of dtype {w.dtype}")
    if w.ndim != 1 or w.size == 0:
        raise ValueError(f"weights must be a 1-D array with at least one element, not of shape {w.shape}")
    w = np.ascontiguousarray(w, np.float32 if w.dtype == np.float32 else np.float64)
    n = w.size if n is None else count("n", n, least=0)
    ints = _cpu.quantize(w)  # ValueError for weights that are no weights
    generator = None
    if u is None:
        generator = rng if isinstance(rng, np.random.Generator) else stream(seed_key(rng), 0, RESAMPLE)
    if isinstance(scheme, str):
        return function(ints, n, generator, u)
    if u is not None:
        raise TypeError("u= is for the named schemes; a callable scheme draws from its rng")
    w = w / w.max()
    w /= w.sum()
    return check_ancestors(function(w, n, generator), n, w.size)
