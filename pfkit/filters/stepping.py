"""Filters with compiled models: single steps, and the whole loop over a series, in C without the GIL.

The loop is used when the model is compiled for the filter's dtype, the scheme is one of pfkit's, the kernel
"fuse" or "int", and observations and inputs are plain numbers. Otherwise,
and for ``predict`` and ``update``, the filter goes step by step and only the model's two functions are
compiled. Both ways draw the same random numbers and call the same primitives: every result has the same bits.
"""

from __future__ import annotations

import numbers
from decimal import Decimal
from typing import Any

import numpy as np

import pfkit_ext._cpu as _cpu
from pfkit.models.compiled import CompiledModel

from .arguments import input_dim
from .errors import FilterCollapse, InvalidWeight
from .moments import mean_and_variance
from .result import Recorder, StepArrays, running_sum

__all__ = ["Engine", "compiled_model", "engine_for", "table"]

#: Particles up to which integer weights have 32 bits.
MAX_NARROW = 1 << 20
MAX_THREADS = 256  # as in step.c, which starts at most one a block; each takes scratch memory
#: Coordinates of particles that are moved between looks at pending signals, a tenth of a second.
CHUNK = 1 << 24


def compiled_model(model: Any, dtype: np.dtype) -> CompiledModel | None:
    """``model.compiled()``; None if there is none for ``dtype``, or a subclass overrides what it is for."""
    method = getattr(model, "compiled", None)
    if method is None:
        return None
    if _overridden(model):
        return None
    found = method()
    if found is None:
        return None
    if not isinstance(found, CompiledModel):
        raise TypeError(f"{model!r}.compiled() must return a CompiledModel or None, not {found!r}")
    dims = (getattr(model, "state_dim", None), input_dim(model))
    if (found.state_dim, found.input_dim) != dims:
        wanted = dict(zip(("state_dim", "input_dim"), dims, strict=True))
        change = ", ".join(f"{name}={dim}" for name, dim in wanted.items() if getattr(found, name) != dim)
        raise ValueError(
            f"{type(model).__name__}.compiled() returned state_dim {found.state_dim}, "
            f"input_dim {found.input_dim}; the model has "
            f"{', '.join(f'{name} {dim}' for name, dim in wanted.items())}: "
            f"pass CompiledModel(..., {change})"
        )
    return found if found.supports(dtype) else None


def _overridden(model: Any) -> bool:
    """Whether ``transition`` or ``log_likelihood`` is defined before ``compiled``: on the instance, in its
    class, in the next of the MRO.
    """
    for place in (model, *type(model).__mro__):
        names = getattr(place, "__dict__", ())
        if "compiled" in names:
            return False
        if "transition" in names or "log_likelihood" in names:
            return True
    return False


def engine_for(pf: Any) -> Engine | None:
    """The engine of a new filter, None if its model is not compiled."""
    compiled = compiled_model(pf.model, pf.dtype)
    return None if compiled is None else Engine(pf, compiled)


def vector(value: Any, dim: int) -> np.ndarray | None:
    """``value`` as float64 (dim,), None if it is anything but that many plain numbers.

    TypeError for an array of another dtype: complex numbers, text, dates.
    """
    if type(value) is not float:
        try:
            value = np.asarray(_unmasked(value))
        except (TypeError, ValueError):
            return None
        if value.dtype.kind not in "fiub":
            if value.dtype != object:
                raise TypeError(f"a compiled model takes real numbers, not dtype {value.dtype}: {value!r}")
            if not _numbers(value):
                return None
    row = np.asarray(value, np.float64)
    if row.shape != (dim,) and not (row.shape == () and dim == 1):
        return None
    return np.ascontiguousarray(row).reshape(dim)


def _numbers(array: np.ndarray) -> bool:
    """Whether an array of objects holds real numbers and None only."""
    kinds = (numbers.Real, Decimal, np.bool_)
    return all(v is None or isinstance(v, kinds) and not isinstance(v, np.timedelta64) for v in array.flat)


def _unmasked(value: Any) -> Any:
    """Masked numbers as NaN."""
    if isinstance(value, np.ma.MaskedArray) and value.dtype.kind in "fiub":
        return np.ma.filled(value.astype(np.float64), np.nan)
    return value


def table(series: Any, dim: int) -> np.ndarray | None:
    """A series as float64 (T, dim), None in it as NaN; None if it is not plain numbers of that shape."""
    if not isinstance(series, (np.ndarray, list, tuple)):
        return None
    if not isinstance(series, np.ndarray):
        blank = np.full(dim, np.nan) if dim > 1 else np.nan
        rows = [blank if y is None else _unmasked(y) for y in series]
        try:
            series = np.array(rows)
            if series.dtype == object and _numbers(series):
                series = series.astype(np.float64)
        except (TypeError, ValueError):
            return None
    if series.dtype.kind not in "fiub":
        return None
    series = _unmasked(series)
    if series.shape != (len(series), dim) and not (series.ndim == 1 and dim == 1):
        return None
    return np.ascontiguousarray(series, np.float64).reshape(len(series), dim)


def inputs_finite(u: np.ndarray, new: bool) -> bool:
    """Whether all inputs that are used are finite; ``new``: the first, of a new filter, is not used."""
    return bool(np.isfinite(u[1:] if new else u).all())


class Engine:
    """The compiled side of one filter."""

    def __init__(self, pf: Any, compiled: CompiledModel):
        self.compiled = compiled
        self.whole = pf.lse in ("fuse", "int") and pf.resampling in _cpu.SCHEMES
        self._stepper: Any = None
        self._ints: Any = None
        self._joint: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave behind what can be made again."""
        return {**self.__dict__, "_stepper": None, "_ints": None, "_joint": None}

    def stepper(self, pf: Any) -> Any:
        """Made at first use: a loaded filter gets its key after it is built."""
        if self._stepper is None:
            c = self.compiled
            self._stepper = _cpu.Stepper(
                c.functions,
                c.params[None],
                pf._streams.key[None],
                pf.n_particles,
                c.state_dim or 1,
                c.noise_dim,
                c.observation_dim,
                c.input_dim,
                pf.dtype,
                pf.lse,
                pf.resampling if isinstance(pf.resampling, str) else "",
                pf._resample_below,
                min(pf.n_threads, MAX_THREADS),
            )
        return self._stepper

    def _knows(self, t: int) -> bool:
        return self.compiled.steps is None or t < self.compiled.steps

    def move(self, pf: Any, t: int, u: Any) -> bool:
        """Move the particles to time t; False if the Python model has to."""
        if not self._knows(t):
            return False
        row = None
        if self.compiled.input_dim:
            row = vector(u, self.compiled.input_dim)
            if row is None:
                return False
        self.stepper(pf).move(0, pf._x, pf._x_next, t, row)
        pf._x, pf._x_next = pf._x_next, pf._x
        return True

    def weigh(self, pf: Any, y: Any) -> np.ndarray | None:
        """Log-likelihood of y for each particle; None if the Python model has to say."""
        row = vector(y, self.compiled.observation_dim) if self._knows(pf._time) else None
        if row is None:
            return None
        g = np.empty(pf.n_particles, pf.dtype)
        self.stepper(pf).weigh(0, pf._x, g, pf._time, row)
        return g

    def run(
        self,
        pf: Any,
        observations: Any,
        inputs: Any,
        recorder: Recorder,
        report: Any,
        steps: list,
        timers: Any = None,
    ) -> StepArrays | None:
        """The whole series in C; None, nothing done, if that cannot be. Failing, it leaves ``steps``."""
        store = set(recorder.names)
        if not self.whole or recorder.functions or store - {"mean", "variance"} or pf._unique_next:
            return None
        if store and pf._angle_dims:
            return None
        y = table(observations, self.compiled.observation_dim)
        u = table(inputs, self.compiled.input_dim) if self.compiled.input_dim else None
        if y is None or len(y) == 0 or (self.compiled.input_dim and u is None):
            return None
        if u is not None and (len(u) != len(y) or not inputs_finite(u, pf._x is None)):
            return None
        if not self._knows(pf._time + len(y)):
            return None
        return self._loop(pf, observations, y, u, recorder, report, steps, timers)

    def _loop(self, pf, observations, y, u, recorder, report, steps, timers):
        length, d = len(y), self.compiled.state_dim or 1
        out = StepArrays(
            np.zeros(length), np.zeros(length), np.zeros(length, np.bool_), np.zeros(length, np.int64)
        )
        moments = {
            name: np.empty((length, d)) if name in recorder.names else None for name in ("mean", "variance")
        }
        chunk = 1 if report else max(1, CHUNK // (pf.n_particles * d))
        k = 0
        while k < length:
            if pf._x is None:
                pf._draw_initial(timers if timers is not None and timers.steps + 1 >= timers.due else None)
            end = min(length, k + chunk)
            done, failed = self._advance(pf, y, u, out, moments, k, end, timers)
            pf._log_likelihood = running_sum(pf._log_likelihood, out.increment[k : k + done])
            k += done
            if failed:  # one step from Python, to answer a collapse
                try:
                    result = pf._update(observations[k], None)
                except (FilterCollapse, InvalidWeight):
                    _keep(recorder, moments, k, pf._scalar)
                    steps[:] = [_row(out, j) for j in range(k)]
                    raise
                for column, value in zip(out, result, strict=True):
                    column[k] = value
                if recorder.names:
                    for name, value in zip(moments, mean_and_variance(pf.particles, pf._w), strict=True):
                        if moments[name] is not None:
                            moments[name][k] = value
                k += 1
            if report:
                report(k, length)
        _keep(recorder, moments, length, pf._scalar)
        return out

    def _advance(self, pf, y, u, out, moments, begin, end, timers=None):
        """Steps begin .. end - 1: (steps done, whether the next was predicted but not weighed)."""
        timed = None if timers is None else timers.turns(1, end - begin)
        if self._ints is None:
            self._ints = np.empty(pf.n_particles, np.uint32 if pf.n_particles <= MAX_NARROW else np.uint64)
            # in float32 a block of joint log-weights lies over ancestors that another thread still reads
            shared = pf.n_threads == 1 or pf.dtype == np.float64
            self._joint = pf._joint if shared else np.empty(pf.n_particles, pf.dtype)
        if pf._ints is not None and pf._ints is not self._ints:
            self._ints[:] = pf._ints
        flags = np.array((pf._resample_next, pf._ints is not None, pf._from_equal, 0, 0), np.uint8)
        ess = np.array([pf._ess])
        stepper = self.stepper(pf)
        done, failed = stepper.run(
            pf._x[None],
            pf._x_next[None],
            pf._log_w[None],
            self._joint[None],
            pf._w[None],
            pf._w_next[None],
            pf._ancestors[None],
            self._ints[None],
            pf._time,
            *flags[:, None],
            ess,
            y[None],
            None if u is None else u[None],
            out.increment[None],
            out.ess[None],
            out.resampled[None].view(np.uint8),
            out.n_unique[None],
            *(None if m is None else m[None] for m in moments.values()),
            begin,
            end,
            timed=timed,
        )
        if timed is not None:
            made = int(done[0]) + bool(failed[0])
            self._account(pf, timers, timed, y[begin : begin + made], out.resampled[begin : begin + made])
        pf._resample_next, has_ints, pf._from_equal, x_swapped, w_swapped = map(bool, flags.tolist())
        if x_swapped:
            pf._x, pf._x_next = pf._x_next, pf._x
        if w_swapped:
            pf._w, pf._w_next = pf._w_next, pf._w
        pf._time += int(done[0]) + bool(failed[0])
        pf._ints = self._ints if has_ints else None
        pf._ess = float(ess[0])
        pf._resampled, pf._n_unique = stepper.last(0)
        pf._collapsed = False
        return int(done[0]), bool(failed[0])

    def _account(self, pf, timers, timed, y, resampled) -> None:
        """The phases of the timed ones of the steps that were made; `timed` may hold more."""
        steps = len(y)
        late = int(timed[steps:].sum())
        timers.steps -= len(timed) - steps
        timers.steps_timed -= late
        if late:
            timers.due = timers.steps + 1
        of = timed[:steps] != 0
        moved = int(of.sum()) - (pf._time < 0 and bool(of[0]))  # a new filter's first step only draws
        seen, drawn = int((of & ~np.isnan(y).all(axis=1)).sum()), int((of & resampled).sum())
        counts = {"propagate": moved, "likelihood": seen, "lse": seen, "weights": seen}
        counts |= {"resample": drawn, "gather": drawn}
        for (name, calls), nanoseconds in zip(counts.items(), self.stepper(pf).nanoseconds(0), strict=True):
            if calls:
                timers.add(name, nanoseconds, calls * pf.n_particles, calls)


def _row(out: StepArrays, k: int) -> Any:
    from .result import StepResult

    return StepResult(float(out[0][k]), float(out[1][k]), bool(out[2][k]), int(out[3][k]))


def _keep(recorder: Recorder, moments: dict[str, Any], length: int, scalar: bool) -> None:
    for name, rows in moments.items():
        if rows is not None:
            recorder.values[name] = rows[:length, 0] if scalar else rows[:length]
