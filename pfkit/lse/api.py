"""log-sum-exp and what follows from it: :func:`logsumexp`, :func:`logcumsumexp`, :func:`log_normalize`.

    log sum_j exp(a_j)  =  m + log sum_j exp(a_j - m),    m = max_j a_j

One function each, whatever the kernel: ``lse="fuse"`` (the default) is exact to rounding, ``lse="int"``
gives the same bits in any order, on any machine, within a stated bound. :func:`pfkit.kernels` lists them
all.

Edge values, for every kernel: nothing to sum, or -inf alone, gives -inf; a +inf gives +inf; a NaN gives NaN.
No input is ever written to, and no warning is raised for an infinity.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pfkit_ext import _cpu

from . import baselines
from .arguments import as_array, check_out, is_tensor, numeric_pair, reduced_axes, result_dtype, without_mask
from .blocks import Scratch, blocks, is_plain, logsumexp_blocks
from .kernels import COMPILED, check_name, compute_dtype
from .weighted import FloatSums, IntSums, split_signs, weighted_blocks

_ndarray = np.ndarray
_lse_1d = _cpu.lse_1d
_tensor: Any = object  # torch.Tensor, and the function for it, once a tensor has come
_logsumexp_tensor: Any = None
_lse_rows = _cpu.lse_rows


def logsumexp(
    a: Any,
    axis: Any = None,
    b: Any = None,
    keepdims: bool = False,
    return_sign: bool = False,
    *,
    lse: str = "fuse",
    out: np.ndarray | None = None,
) -> Any:
    """Logarithm of the sum of exponentials, ``log(sum(b * exp(a)))``, in nats.

    The contract is that of :func:`scipy.special.logsumexp`, with the choice of kernel added.

    Parameters
    ----------
    a : array_like or torch.Tensor
        Any shape, any strides; real, integer, boolean or complex (complex goes to SciPy, whatever the
        kernel). float16 and bfloat16 are computed in float32 and rounded once more; masked elements of a
        masked array add nothing.
    axis : None, int or tuple of ints
        Axes to reduce; None is all of them. 0-d input counts as one dimension.
    b : array_like, optional
        Coefficients, broadcast against `a`; may be negative. A zero removes its term, even an infinite one.
    keepdims : bool
        Keep reduced axes with length 1.
    return_sign : bool
        Also return the sign (+1, 0, -1, NaN) of the sum; without it a negative sum gives NaN.
    lse : str
        Kernel: "fuse", "int", "int-pairwise", or a baseline "numpy", "scipy", "torch".
    out : ndarray, optional
        Where to put the value; must have the result's shape. Returned.

    Returns
    -------
    value : scalar or ndarray
        In the dtype NumPy promotes `a` and `b` to (integers to float64).
    sign : scalar or ndarray
        Only with ``return_sign=True``.

    Raises
    ------
    TypeError
        For object, string or date arrays, for an axis that is no integer.
    numpy.exceptions.AxisError, ValueError
        For an axis out of bounds or given twice, shapes that do not broadcast, an unknown kernel.

    Notes
    -----
    Error bound: ``Kernel.error_bound`` of :func:`pfkit.kernels`, plus one rounding. "fuse" keeps the tail
    when the maximum is near 0 (``logsumexp([0, -45])`` is 2.86e-20, not 0); "int" is exact to 2.1e-5 nats.

    With `b`, "fuse" sums in float64 (log1p form), "int" takes ``a + log|b|`` in floats and one integer sum
    for each sign at one reference, so that equal positive and negative sums cancel exactly.

    Where SciPy 1.17 differs: an infinite term with coefficient 0 is left out there only if the result stays
    finite; nothing to sum has sign -1 there and 0 here; a cancelling largest term gives NaN there and the
    rest here, as far as the rest lies within 745 nats of it.

    Examples
    --------
    >>> import pfkit
    >>> float(pfkit.logsumexp([1000.0, 1000.0]))
    1000.6931471805599
    >>> value, sign = pfkit.logsumexp([1.0, 2.0], b=[1, -1], return_sign=True)
    >>> round(float(value), 12), float(sign)
    (1.541324854613, -1.0)
    """
    if type(a) is _ndarray and b is None and out is None and not (keepdims or return_sign):
        try:
            if axis is None:
                return _lse_1d(a, lse)
            if axis == -1 and a.ndim == 2 and a.flags.c_contiguous:
                return _lse_rows(a, lse)
        except (TypeError, ValueError):
            pass  # not contiguous rows of a native float, or not a compiled kernel
    if type(a) is _tensor and b is None and not return_sign:
        return _logsumexp_tensor(a, axis, keepdims, lse, out)
    if is_tensor(a) or is_tensor(b):
        return _of_tensors(a, axis, b, keepdims, return_sign, lse, out)
    check_name(lse)
    a, b = without_mask(a, b)
    array, coefficients, dtype = numeric_pair(a, b)
    axes = reduced_axes(axis, array.ndim)
    shape = tuple(
        1 if k in axes else length for k, length in enumerate(array.shape) if keepdims or k not in axes
    )
    value_dtype = np.empty(0, dtype).real.dtype if return_sign else dtype  # complex: modulus and phase
    if out is not None:
        check_out(out, shape, value_dtype)
    value, sign = _reduce(array, coefficients, axes, lse, dtype, bool(return_sign))
    result = _shaped(value, shape, value_dtype)
    if out is not None:
        out[...] = result
        result = out
    return (result, _shaped(sign, shape, dtype)) if return_sign else result


def _shaped(x: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    x = np.asarray(x)
    if x.dtype != dtype:
        with np.errstate(over="ignore"):
            x = x.astype(dtype)
    return x.reshape(shape)[()]


def _reduce(
    a: np.ndarray, b: np.ndarray | None, axes: tuple[int, ...], lse: str, dtype: np.dtype, return_sign: bool
) -> tuple[Any, Any]:
    """Value and sign (None unless asked for) over `axes`, in whatever precision the kernel has."""
    if dtype.kind == "c" or (lse == "scipy" and a.size):
        return baselines.scipy_logsumexp(a, axes, b, return_sign)
    work = compute_dtype(dtype)
    long = dtype == np.longdouble and dtype != np.float64
    if b is None:
        if long and lse in ("fuse", "numpy"):
            value, _ = weighted_blocks(a, None, axes, FloatSums(dtype))
        else:
            value = _unweighted(a, axes, lse, work)
        sign = np.where(np.isnan(value), value, value > -np.inf) if return_sign else None
        return value, sign
    if lse == "int":
        value, sign = weighted_blocks(a, b, axes, IntSums(work))
    elif lse in ("fuse", "numpy", "scipy"):
        value, sign = weighted_blocks(a, b, axes, FloatSums(dtype if long else work))
    else:
        value, sign = split_signs(a, b, lambda t: _unweighted(t, axes, lse, work), work)
    return value if return_sign else np.where(sign < 0, np.nan, value), sign


def _unweighted(a: np.ndarray, axes: tuple[int, ...], lse: str, work: np.dtype) -> np.ndarray:
    if lse in COMPILED:
        return logsumexp_blocks(a, axes, lse, work)
    with np.errstate(over="ignore"):
        a = a.astype(work, copy=False)
    return baselines.torch_logsumexp(a, axes) if lse == "torch" else baselines.numpy_logsumexp(a, axes)


def _of_tensors(a: Any, axis: Any, b: Any, keepdims: bool, return_sign: bool, lse: str, out: Any) -> Any:
    """Hand torch tensors to the differentiable operator, which takes over devices, dtypes and ``out=``."""
    global _tensor, _logsumexp_tensor
    if _logsumexp_tensor is None:
        from .torch_op import _Tensor as _tensor  # imports torch
        from .torch_op import logsumexp_tensor as _logsumexp_tensor

    if b is not None or return_sign:
        raise TypeError(
            "coefficients b and return_sign are for NumPy arrays; fold b into a tensor as a + b.log()"
        )
    return _logsumexp_tensor(a, axis, keepdims, lse, out)


def logcumsumexp(a: Any, axis: int = -1, *, lse: str = "fuse") -> np.ndarray:
    """Running log-sum-exp: element j is the LSE of elements 0 to j along `axis`, in nats.

    Parameters
    ----------
    a : array_like
        Real, at least 1-d. Integers become float64; float16 and bfloat16 are computed in float32.
    axis : int
        The axis to run along.
    lse : {"fuse", "numpy"}
        A float kernel: a running sum has an order, so "int" has nothing to add.

    Returns
    -------
    ndarray
        `a`'s shape. A prefix of -inf stays -inf; from the first NaN on everything is NaN.

    Raises
    ------
    TypeError
        For non-numeric or complex dtypes.
    ValueError
        For a kernel without a running form, or 0-d input.
    numpy.exceptions.AxisError
        For an axis out of bounds.
    """
    check_name(lse, ("fuse", "numpy"))
    a, _ = without_mask(a, None)
    array = as_array(a, "a")
    dtype = result_dtype(array)
    work = compute_dtype(dtype)
    if array.ndim == 0:
        raise ValueError(
            f"logcumsumexp runs along an axis and needs at least one dimension, got a 0-d {array.dtype}"
        )
    if isinstance(axis, tuple) or axis is None:
        raise TypeError(f"axis must be one integer, got {axis!r}")
    (k,) = reduced_axes(axis, array.ndim)
    view = np.moveaxis(array, k, -1)
    if lse == "numpy" or (dtype == np.longdouble and dtype != np.float64):
        exact = dtype if work == np.float64 and dtype.kind == "f" else work
        with np.errstate(invalid="ignore"):
            result = view.astype(exact)
            result = np.logaddexp.accumulate(result, axis=-1) if array.size else result
        return np.moveaxis(result.astype(dtype), -1, k)
    out = np.empty(view.shape, work)
    n = view.shape[-1]
    if array.size:
        if is_plain(view, work):
            _cpu.logcumsumexp_rows(view.reshape(-1, n), out.reshape(-1, n))
        else:
            scratch = Scratch(work)
            for index in blocks(view.shape[:-1], max(1, (1 << 17) // n)):
                target = out[index]
                rows = scratch.rows(view[index], math.prod(target.shape[:-1]))
                out[index] = _cpu.logcumsumexp_rows(rows).reshape(target.shape)
    return np.moveaxis(out.astype(dtype, copy=False), -1, k)


class LogNormalized(NamedTuple):
    """What :func:`log_normalize` returns.

    Attributes
    ----------
    weights : ndarray
        ``exp(log_w - log_norm)``, summing to 1 along the last axis.
    log_norm : float or ndarray
        Log-sum-exp of the log-weights, nats.
    ess : float or ndarray
        Effective sample size ``(sum w)**2 / sum w**2``, between 1 and n; 0 if every weight is 0.
    """

    weights: np.ndarray
    log_norm: Any
    ess: Any


def log_normalize(log_w: Any, *, lse: str = "fuse", out: np.ndarray | None = None) -> LogNormalized:
    """Normalised weights, their log-sum-exp and effective sample size, each weight exponentiated once.

    Parameters
    ----------
    log_w : array_like
        Log-weights, nats, real, ``(..., n)``; each row along the last axis is normalised by itself.
    lse : str
        Kernel. "int": weights, log_norm and ess are the same bits for any order of the particles. Kernels
        that give only an LSE take the weights ``exp(log_w - LSE)`` over their sum.
    out : ndarray, optional
        Where to put the weights: `log_w`'s shape and the weights' dtype, C-contiguous. May be `log_w` itself.

    Returns
    -------
    LogNormalized
        ``(weights, log_norm, ess)``. Weights have `log_w`'s dtype, float32 for 16-bit floats, float64 for
        integers; for one row log_norm and ess are Python floats, otherwise arrays of shape ``(...)``.

        All -inf (or no particles): weights 0, log_norm -inf, ess 0. A NaN: all NaN. A +inf: weights and ess
        NaN, log_norm +inf.

    Raises
    ------
    TypeError
        For complex or non-numeric log-weights, or an `out` that does not fit.
    ValueError
        For 0-d input, an `out` of another shape, an unknown kernel.

    Notes
    -----
    Error bound of log_norm: that of the kernel. Under "int" a weight has a relative error below 2e-5 and, for
    n <= 2**20, an absolute one of at most 2**-32 of the largest weight.
    """
    if type(log_w) is _ndarray and log_w.ndim == 1 and out is None and lse in ("fuse", "int"):
        try:
            return LogNormalized(*_cpu.normalize(log_w, lse, None, False)[:3])
        except (TypeError, ValueError):
            pass  # another dtype or layout
    check_name(lse)
    log_w, _ = without_mask(log_w, None)
    array = as_array(log_w, "log_w")
    dtype = compute_dtype(result_dtype(array))
    if array.ndim == 0:
        raise ValueError(f"log_w must have at least one dimension, got a 0-d {array.dtype}")
    if out is None:
        weights = np.empty(array.shape, dtype)
    else:
        check_out(out, array.shape, dtype)
        if out.dtype != dtype or not out.flags.c_contiguous:
            raise TypeError(
                f"out must be a C-contiguous array of dtype {dtype}, got {out.dtype}, strides {out.strides}"
            )
        weights = out
        if np.may_share_memory(out, array):  # the kernels read log-weights after they have written weights
            array = array.copy()
    lead = array.shape[:-1]
    log_norm, ess = np.empty(lead), np.empty(lead)
    scratch = Scratch(dtype)
    for index in np.ndindex(lead):
        row = scratch.rows(array[index], 1)[0] if array.shape[-1] else np.empty(0, dtype)
        _, log_norm[index], ess[index] = _normalize_row(row, lse, weights[index])
    if not lead:
        return LogNormalized(weights, float(log_norm), float(ess))
    return LogNormalized(weights, log_norm, ess)


def _normalize_row(row: np.ndarray, lse: str, weights: np.ndarray) -> tuple[np.ndarray, float, float]:
    if lse in ("fuse", "int"):
        return _cpu.normalize(row, lse, weights, False)[:3]
    log_norm = float(_reduce(row, None, (0,), lse, row.dtype, False)[0])
    if not math.isfinite(log_norm):
        weights[...] = 0.0 if log_norm == -math.inf else math.nan
        return weights, log_norm, 0.0 if log_norm == -math.inf else math.nan
    w = np.exp(row.astype(np.float64) - log_norm)
    total = w.sum()
    np.divide(w, total, out=weights, casting="same_kind")
    # the quotient may round past either of its bounds, 1 and n
    return weights, log_norm, min(max(float(total * total / (w @ w)), 1.0), float(row.size))
