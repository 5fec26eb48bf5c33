"""Filters on disk: a plain npz file, nothing pickled.

Everything that decides later steps is written as it is in memory, weights and integer weights included
(recomputing them would change last bits), and the 128-bit key from which all random streams follow. So a
resumed filter gives the bits of the uninterrupted one.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np

from ..models.base import FunctionModel

FORMAT = 1


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
    if hasattr(path, "write"):
        np.savez(path, **arrays)
        return
    path = os.fspath(path)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".pfkit-")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(cls: type, path: Any, model: Any, resampling: Any, timers: Any) -> Any:
    """The filter written by ``save``, with ``model``."""
    with np.load(path, allow_pickle=False) as file:
        if "format" not in file or "key" not in file:
            raise ValueError(f"{path!r} is not a file written by ParticleFilter.save")
        if int(file["format"]) != FORMAT:
            raise ValueError(f"{path!r} has format {int(file['format'])}; this version reads format {FORMAT}")
        saved = {name: file[name] for name in file.files}
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
    pf._ints = saved.get("ints")
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
