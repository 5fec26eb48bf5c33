"""Filters on disk: a plain npz file, nothing pickled.

Everything that decides later steps is written as it is in memory, weights and integer weights included
(recomputing them would change last bits), and the 128-bit key from which all random streams follow. So a
resumed filter gives the bits of the uninterrupted one.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from .. import npz
from ..models.base import FunctionModel
from .resampling import SCHEMES
from .stepping import MAX_NARROW
from .weighing import FUSED, LSE_ONLY

FORMAT = 1

#: Kinds of dtype of the single values.
SCALARS = {
    "n_particles": "iu", "lse": "U", "resampling": "U", "ess_threshold": "f", "dtype": "U", "n_threads": "iu",
    "on_collapse": "U", "time": "iu", "scalar": "b", "ess": "f", "collapsed": "b", "resample_next": "b",
    "resampled": "b", "n_unique": "iu", "unique_next": "iu", "from_equal": "b", "log_likelihood": "f",
}  # fmt: skip
NAMES: dict[str, tuple[str, ...]] = {
    "lse": FUSED + LSE_ONLY,
    "resampling": ("", *SCHEMES),  # "": a callable
    "dtype": ("float32", "float64"),
    "on_collapse": ("raise", "warn", "keep"),
}
#: More than any file of a real filter: times and counts stay clear of the ends of int64.
MOST = 1 << 47


def save(pf: Any, path: Any) -> None:
    """Write ``pf`` to a path or a binary file."""
    arrays = {
        "format": FORMAT,
        "n_particles": pf.n_particles,
        "lse": pf.lse,
        "resampling": pf.resampling if isinstance(pf.resampling, str) else "",
        "ess_threshold": pf.ess_threshold,
        "dtype": pf.dtype.name,
        "n_threads": pf.n_threads,
        "on_collapse": pf.on_collapse,
        "key": pf._streams.key,
        "time": pf._time,
        "scalar": pf._scalar,
        "ess": pf._ess,
        "collapsed": pf._collapsed,
        "resample_next": pf._resample_next,
        "resampled": pf._resampled,
        "n_unique": pf._n_unique,
        "unique_next": pf._unique_next,
        "from_equal": pf._from_equal,
        "log_likelihood": pf._log_likelihood,
        "log_weights": pf._log_w,
        "weights": pf._w,
    }
    if pf._x is not None:
        arrays["particles"] = pf._x
    if pf._ints is not None:
        arrays["ints"] = pf._ints
    npz.write(path, arrays)


def _broken(what: str) -> ValueError:
    return ValueError(f"not a file written by ParticleFilter.save: {what}")


def _read(path: Any) -> dict[str, np.ndarray]:
    """Everything in the file; ValueError if it is not an npz file of plain arrays in this format."""
    name = repr(path)
    saved = npz.read(path, _broken)
    for key in ("format", "key"):
        if not isinstance(saved.get(key), np.ndarray):
            raise _broken(f"{name} has no {key!r}")
    found = saved["format"]
    if found.shape != () or found.dtype.kind not in "iu":
        raise _broken(f"'format' must be an integer, not {found!r}")
    if int(found) != FORMAT:
        raise ValueError(f"{name} has format {int(found)}; this version reads format {FORMAT}")
    return saved


def _check(saved: dict[str, np.ndarray]) -> None:
    """Presence, shape, dtype and range of all a filter is made of: the loops in C rely on them."""
    for name, kinds in SCALARS.items():
        value = saved.get(name)
        if not isinstance(value, np.ndarray):
            raise _broken(f"there is no {name!r}")
        if value.shape != () or value.dtype.kind not in kinds:
            raise _broken(f"{name!r} has dtype {value.dtype} and shape {value.shape}")
    n, time, ess = int(saved["n_particles"]), int(saved["time"]), float(saved["ess"])
    for name, accepted in NAMES.items():
        if str(saved[name]) not in accepted:
            raise _broken(f"{name!r} is {str(saved[name])!r}; expected one of {accepted}")
    started = "particles" in saved
    for name, number, least, most in (
        ("n_particles", n, 1, MOST),
        ("n_threads", int(saved["n_threads"]), 1, MOST),
        ("time", time, 0 if started else -1, MOST if started else -1),
        ("n_unique", int(saved["n_unique"]), 1, n),
        ("unique_next", int(saved["unique_next"]), 0, n if started else 0),
        ("ess", ess, 0.0, n * (1 + 1e-3) + 1e-3),
        ("ess_threshold", float(saved["ess_threshold"]), 0.0, math.inf),
        ("log_likelihood", float(saved["log_likelihood"]), -math.inf, sys.float_info.max),
    ):
        if not least <= number <= most:
            raise _broken(f"{name!r} is {number}, outside {least} .. {most}")
    _array(saved, "key", (2,), np.uint64)
    dtype = np.dtype(str(saved["dtype"]))
    _array(saved, "weights", (n,), dtype)
    weights, log_weights = saved["weights"], _array(saved, "log_weights", (n,), dtype)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise _broken("'weights' must be finite and >= 0")
    if not weights.any():
        raise _broken("'weights' are all 0")
    if not (log_weights < np.inf).all():
        raise _broken("'log_weights' holds NaN or +inf")
    if not (log_weights > -np.inf).any():
        raise _broken("'log_weights' are all -inf")
    if "ints" in saved:
        if not _array(saved, "ints", (n,), np.uint32 if n <= MAX_NARROW else np.uint64).any():
            raise _broken("'ints' are all 0")
    if started:
        particles = saved["particles"]
        if particles.ndim != 2 or not 1 <= len(particles) or (saved["scalar"] and len(particles) != 1):
            expected = f"({1 if saved['scalar'] else 'd'}, {n})"
            raise _broken(f"'particles' has shape {particles.shape}; expected {expected}")
        _array(saved, "particles", (len(particles), n), dtype)


def _array(saved: dict[str, np.ndarray], name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    value = saved.get(name)
    if not isinstance(value, np.ndarray):
        raise _broken(f"there is no {name!r}")
    if value.shape != shape or value.dtype != dtype:
        raise _broken(
            f"{name!r} has dtype {value.dtype}, shape {value.shape}; expected {np.dtype(dtype)}, {shape}"
        )
    return value


def load(cls: type, path: Any, model: Any, resampling: Any, timers: Any) -> Any:
    """The filter written by ``save``, with ``model``."""
    saved = _read(path)
    _check(saved)
    scheme = str(saved["resampling"])
    if not scheme and resampling is None:
        raise ValueError("the saved filter resampled by a callable: give it again, load(..., resampling=)")
    if scheme and resampling is not None:
        raise ValueError(
            f"the saved filter resamples by {scheme!r}; resampling= is for filters saved with a callable"
        )
    pf = cls(
        model,
        int(saved["n_particles"]),
        lse=str(saved["lse"]),
        resampling=scheme or resampling,
        ess_threshold=float(saved["ess_threshold"]),
        rng=0,
        dtype=str(saved["dtype"]),
        n_threads=int(saved["n_threads"]),
        on_collapse=str(saved["on_collapse"]),
        timers=timers,
    )
    pf._streams = type(pf._streams)(saved["key"])
    pf._time = int(saved["time"])
    pf._scalar = bool(saved["scalar"])
    pf._ess = float(saved["ess"])
    pf._collapsed = bool(saved["collapsed"])
    pf._resample_next = bool(saved["resample_next"])
    pf._resampled = bool(saved["resampled"])
    pf._n_unique = int(saved["n_unique"])
    pf._unique_next = int(saved["unique_next"])
    pf._from_equal = bool(saved["from_equal"])
    pf._log_likelihood = float(saved["log_likelihood"])
    pf._log_w[:] = saved["log_weights"]
    pf._w[:] = saved["weights"]
    ints = saved.get("ints")
    pf._ints = None if ints is None else np.ascontiguousarray(ints)
    particles = saved.get("particles")
    if particles is not None:
        dim = None if pf._scalar else particles.shape[0]
        if isinstance(model, FunctionModel):
            model.state_dim = dim
        declared = getattr(model, "state_dim", None)
        if declared != dim:
            raise ValueError(f"the saved particles have state_dim {dim}, the model {declared}")
        pf._x = np.ascontiguousarray(particles)
        pf._x_next = np.empty_like(pf._x)
    return pf
