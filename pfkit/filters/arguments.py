"""Checks of what users hand in; every message names what was given and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = [
    "all_finite", "angle_dims", "check_model", "count", "float_dtype", "input_dim", "is_missing",
    "real_array", "unmasked",
]  # fmt: skip


def count(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int >= ``least``; TypeError or ValueError otherwise."""
    if type(value) is int and value >= least:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int >= {least}, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, not {value}")
    return int(value)


def check_model(model: Any) -> None:
    """TypeError unless ``model`` has the methods of one and is an instance, not the class."""
    if isinstance(model, type):
        raise TypeError(f"a model is an instance, {model.__name__}(...); got the class itself")
    for method in ("initial", "transition", "log_likelihood"):
        if not callable(getattr(model, method, None)):
            raise TypeError(
                f"a model has methods initial, transition and log_likelihood; {model!r} has no {method}"
            )


def input_dim(model: Any) -> int:
    """Length of the input of a model's step; 0: it takes none."""
    value = getattr(model, "input_dim", None)
    return 0 if value is None else count("a model's input_dim", value, 0)


def angle_dims(model: Any) -> tuple[int, ...]:
    """Coordinates of a model's state that are angles."""
    value = getattr(model, "angle_dims", None)
    if value is None or type(value) is tuple and not value:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"a model's angle_dims must be a sequence of ints, not {value!r}")
    return tuple(count("each of a model's angle_dims", k, 0) for k in value)


_DTYPES: dict[str, np.dtype] = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}


def float_dtype(dtype: Any) -> np.dtype:
    """float32 or float64 as a dtype; ValueError otherwise."""
    if type(dtype) is str and dtype in _DTYPES:
        return _DTYPES[dtype]
    try:
        result = None if dtype is None else np.dtype(dtype)
    except TypeError:
        result = None
    if result is None or result not in (np.float32, np.float64):
        raise ValueError(f"dtype must be 'float32' or 'float64', not {dtype!r}")
    return result


def real_array(value: Any, shape: tuple[int, ...], source: str) -> np.ndarray:
    """``value`` as an array of real numbers, of just this shape; ValueError or TypeError otherwise."""
    if type(value) is not np.ndarray:
        value = np.asarray(value)
    if value.dtype.kind not in "fiub":
        raise TypeError(f"{source} returned dtype {value.dtype}; expected real numbers, shape {shape}")
    if value.shape != shape:
        raise ValueError(f"{source} returned an array of shape {value.shape}; expected {shape}")
    return value


def all_finite(u: Any) -> bool:
    """Whether an input, a number or a sequence of numbers, has no NaN, infinity or masked element."""
    if isinstance(u, np.ma.MaskedArray) and np.ma.getmaskarray(u).any():
        return False
    try:
        return all(map(math.isfinite, u)) if np.ndim(u) else math.isfinite(u)
    except TypeError:
        raise TypeError(f"an input must be real numbers, not {u!r}") from None


def is_missing(y: Any) -> bool:
    """Whether an observation carries nothing: None, NaN, all NaN, wholly masked, or empty."""
    if y is None:
        return True
    if isinstance(y, float):  # np.float64 included
        return y != y
    if isinstance(y, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(y)
        if y.dtype.kind in "fc":
            hidden = hidden | np.isnan(y.data)
        return bool(hidden.all())
    if isinstance(y, (list, tuple)):
        try:
            y = np.asarray(y)
        except ValueError:  # ragged: a structure of the model's own
            return False
    if isinstance(y, (np.ndarray, np.generic)):
        if y.size == 0:
            return True
        if y.dtype.kind not in "fc" or y.flat[0] == y.flat[0]:
            return False
        return bool(np.isnan(y).all())
    return False


def unmasked(y: np.ma.MaskedArray) -> np.ndarray:
    """A masked array as a plain one with NaN where it is masked: what models understand as missing."""
    return np.ma.filled(y.astype(np.result_type(y.dtype, np.float32)), np.nan)
