"""Reading the arguments: arrays, masks, axes, ``out=``, with errors that name what was given."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .kernels import FLOAT64, is_bfloat16

ACCEPTED = "accepted are real floating dtypes (bfloat16 included), integers, booleans and complex dtypes"


def is_tensor(x: Any) -> bool:
    """Whether `x` is a torch tensor, without importing torch to find out."""
    if type(x) is np.ndarray or x is None:
        return False
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(x).__mro__)


def as_array(x: Any, name: str) -> np.ndarray:
    """`x` as an ndarray of a numeric dtype, never copied unless it has to be made.

    Raises
    ------
    TypeError
        For object, string, date and structured dtypes.
    ValueError
        For nested sequences of unequal lengths.
    """
    array = x if type(x) is np.ndarray else np.asarray(x)
    if array.dtype.kind in "fiubc" or is_bfloat16(array.dtype):
        return array
    raise TypeError(f"{name} has dtype {array.dtype} (from {type(x).__name__}); {ACCEPTED}")


def result_dtype(a: Any, b: Any = None) -> np.dtype:
    """Dtype of the result: NumPy's promotion (Python scalars weak), integers and booleans as float64."""
    arguments = [
        x if isinstance(x, int | float | complex) else np.asarray(x) for x in (a, b) if x is not None
    ]
    dtype = np.result_type(*arguments)
    if dtype.kind in "iub":
        return FLOAT64
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def numeric_pair(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray | None, np.dtype]:
    """`a`, at least 1-d, and `b` (or None) broadcast to one shape, and the dtype of their result.

    Raises
    ------
    TypeError
        If one is not numeric.
    ValueError
        If the shapes do not broadcast.
    """
    array = np.atleast_1d(as_array(a, "a"))
    if b is None:
        return array, None, result_dtype(array)
    coefficients = as_array(b, "b")
    weak = (x if isinstance(x, int | float | complex) else y for x, y in ((a, array), (b, coefficients)))
    dtype = result_dtype(*weak)
    if coefficients.shape != array.shape:
        try:
            array, coefficients = np.broadcast_arrays(array, coefficients)
        except ValueError:
            raise ValueError(
                f"b has shape {coefficients.shape}, which does not broadcast with a's {array.shape}"
            ) from None
    return array, coefficients, dtype


def without_mask(a: Any, b: Any) -> tuple[Any, Any]:
    """Masked elements add nothing to the sum: they become -inf in `a`, or weight 0 where `b` is given."""
    if isinstance(b, np.ma.MaskedArray):
        b = b.filled(0)
    if not isinstance(a, np.ma.MaskedArray):
        return a, b
    data, mask = as_array(np.ma.getdata(a), "a"), np.ma.getmask(a)
    if mask is np.ma.nomask:
        return data, b
    if b is not None:
        return data, np.where(mask, np.zeros((), np.asarray(b).dtype), b)
    return np.where(mask, np.array(-np.inf, dtype=result_dtype(data)), data), None


def reduced_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """`axis` as a tuple of distinct axes in ``0 .. ndim - 1``; None means all of them.

    Raises
    ------
    numpy.exceptions.AxisError
        If an axis is out of bounds (a ValueError and an IndexError).
    ValueError
        If an axis is given twice.
    TypeError
        If `axis` is neither None nor an integer nor a tuple of integers.
    """
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int and -ndim <= axis < ndim:
        return (axis % ndim,)
    axes = []
    for one in axis if isinstance(axis, tuple) else (axis,):
        if isinstance(one, bool | np.bool_):
            raise TypeError(f"axis must be None, an integer or a tuple of integers; got {axis!r}")
        try:
            index = operator.index(one)
        except TypeError:
            raise TypeError(f"axis must be None, an integer or a tuple of integers; got {axis!r}") from None
        if not -ndim <= index < ndim:
            raise np.exceptions.AxisError(index, ndim)
        axes.append(index % ndim)
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis names an axis twice: {axis!r} of an array of dimension {ndim}")
    return tuple(axes)


def check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """That `out` can take a result of `shape` and `dtype`; called before anything is computed.

    Raises
    ------
    TypeError
        If it is not an ndarray, or the dtypes differ by more than precision.
    ValueError
        If its shape differs or it is read-only.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an ndarray of shape {shape}, got {type(out).__name__}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, the result has shape {shape}")
    if not np.can_cast(dtype, out.dtype, casting="same_kind"):
        raise TypeError(f"out has dtype {out.dtype}, which cannot take a result of dtype {dtype}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
