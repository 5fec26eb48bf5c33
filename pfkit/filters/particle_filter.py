"""The particle filter: predict, update, and the loop over a series.

    pf = ParticleFilter(model, 1000, lse="int", rng=7)
    result = pf.run(observations)

or, as observations arrive,

    pf.predict(); step = pf.update(y)

Particles x^j have log-weights lw_j, normalised after every update: LSE(lw) = 0. With g_j = log p(y | x^j),

    increment = LSE(lw + g) - LSE(lw) = LSE(lw + g),   lw <- lw + g - increment,   ESS = 1 / sum exp(lw)^2

If ESS < ess_threshold N, the next predict first draws ancestors in proportion to the weights and sets every
log-weight to -log N. This increment is the right one whether or not the last step resampled.

The log-weights are the state; integers (``lse="int"``) live inside one normalisation only. A particle 60 nats
down can come back.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from numbers import Real
from time import perf_counter_ns
from typing import Any

import numpy as np

import pfkit_ext._cpu as _cpu

from .. import timing
from . import checkpoint
from .arguments import (
    all_finite,
    angle_dims,
    check_model,
    count,
    float_dtype,
    input_dim,
    is_missing,
    real_array,
    unmasked,
)
from .errors import FilterCollapse, InvalidWeight, warn_collapse
from .moments import mean_and_variance, weighted_quantile
from .precision import standard_error
from .random import INITIAL, RESAMPLE, TRANSITION, Streams, random_bits, seed_key
from .resampling import check_ancestors, check_scheme, systematic
from .result import FilterResult, Recorder, StepArrays, StepResult
from .stepping import engine_for
from .weighing import error_bound, weigher

__all__ = ["ParticleFilter"]

ON_COLLAPSE = ("raise", "warn", "keep")
IN_USE = "this filter is in use by another thread"


class ParticleFilter:
    """Bootstrap particle filter of a state-space model.

    Parameters
    ----------
    model : StateSpaceModel
        Or any object with its three methods ``initial``, ``transition``, ``log_likelihood``.
    n_particles : int
        N >= 1.
    lse : str
        Log-sum-exp kernel of the weighting: "fuse" (float, exact to rounding), "int" (integer arithmetic, the
        same bits in any order, at most 2.1e-5 nats off), "int-pairwise", or a baseline "numpy", "scipy",
        "torch".
    resampling : str or callable(weights, n, rng) -> ancestors
        "systematic", "stratified", "multinomial", "residual", or your own: it gets the normalised weights
        (read-only), and returns n integer indices.
    ess_threshold : float
        Resample when ESS < ess_threshold * N; >= 1: after every observation; 0: never.
    rng : None, int, numpy.random.SeedSequence or numpy.random.Generator
        Source of the 128-bit key of the filter's random streams; see ``pfkit.filters.random``.
    dtype : "float64" or "float32"
        Of particles and log-weights. Whatever the model returns is converted, integers included.
    n_threads : int
        Threads of compiled models. Results do not depend on it.
    on_collapse : "raise", "warn" or "keep"
        When no particle can explain an observation: raise ``FilterCollapse``; or record an increment of -inf
        and an ESS of 0 and go on with the predicted particles and their weights, with or without a warning.
    timers : Timers, optional
        Accumulates where time goes; by default the one whose ``with`` block is active, if any.

    Notes
    -----
    Missing observations: ``y`` None, NaN, or all NaN (or empty, or wholly masked) is predicted through; the
    increment is exactly 0 and the weights stay. What partly NaN means is up to the
    model, to which a partly masked array comes with NaN where it is masked.

    After ``InvalidWeight``, or a collapse, the filter holds the predicted particles and the weights from
    before the observation, and may go on. An exception out of the model leaves the step to be repeated, with
    the same random numbers.

    Examples
    --------
    >>> from pfkit.models import LocalLevel
    >>> pf = ParticleFilter(LocalLevel(0.5, 1.0), 500, rng=1)
    >>> pf.run([0.1, None, -0.4, 0.3]).increment[1]
    np.float64(0.0)
    """

    def __init__(
        self,
        model: Any,
        n_particles: int = 1000,
        *,
        lse: str = "fuse",
        resampling: str | Callable = "systematic",
        ess_threshold: float = 0.5,
        rng: Any = None,
        dtype: Any = "float64",
        n_threads: int = 1,
        on_collapse: str = "raise",
        timers: timing.Timers | None = None,
    ):
        check_model(model)
        if timers is not None and not isinstance(timers, timing.Timers):
            raise TypeError(f"timers must be a Timers or None, not {timers!r}")
        if on_collapse not in ON_COLLAPSE:
            accepted = ", ".join(map(repr, ON_COLLAPSE))
            raise ValueError(f"on_collapse must be one of {accepted}, not {on_collapse!r}")
        self.model = model
        self.n_particles = n = count("n_particles", n_particles)
        self.lse = lse
        self.resampling = resampling
        self.ess_threshold = _threshold(ess_threshold)
        self.dtype = float_dtype(dtype)
        self.n_threads = count("n_threads", n_threads)
        self.on_collapse = on_collapse
        self.timers = timers
        self._weigh = weigher(lse)
        self._scheme = check_scheme(resampling)
        self._streams = Streams(seed_key(rng))
        self._input_dim = input_dim(model)
        self._angle_dims = angle_dims(model)
        self._resample_below = math.inf if self.ess_threshold >= 1 else self.ess_threshold * n

        # The state. Particles are (d, N), each coordinate contiguous, allocated by the first predict.
        self._x: Any = None
        self._scalar = True
        self._log_w = np.empty(n, self.dtype)
        self._log_w.fill(-math.log(n))
        self._w = np.empty(n, self.dtype)
        self._w.fill(1 / n)
        self._ints: np.ndarray | None = None
        self._ess = float(n)
        self._log_likelihood = 0.0
        self._time = -1
        self._resample_next = False
        self._unique_next = 0
        self._n_unique = n
        self._resampled = False
        self._collapsed = False
        self._from_equal = True

        # Room to work in. Ancestors and the joint log-weights are never alive together: one buffer.
        self._x_next: Any = None
        self._w_next = np.empty(n, self.dtype)
        self._ancestors = np.empty(n, np.int64)
        self._joint = self._ancestors.view(self.dtype)[:n]
        self._engine = engine_for(self)
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are in use by nobody."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def _twin(self) -> ParticleFilter:
        """A shallow copy: it shares its arrays with this filter until they are replaced."""
        pf = object.__new__(type(self))
        pf.__dict__.update(self.__dict__)
        pf._lock = threading.RLock()
        return pf

    # ---- what it holds -------------------------------------------------------------------------------------

    @property
    def time(self) -> int:
        """Index of the current step, the number of predictions less one; -1 before the first."""
        return self._time

    @property
    def state_dim(self) -> int | None:
        """d for (N, d) particles, None for scalar ones."""
        if self._x is None:
            return getattr(self.model, "state_dim", None)
        return None if self._scalar else self._x.shape[0]

    @property
    def particles(self) -> np.ndarray:
        """(N,) or (N, d): a read-only view, valid until the next predict; copy it to keep it."""
        if self._x is None:
            raise RuntimeError("no particles yet: call predict() or run() first")
        view = self._x[0] if self._scalar else self._x.T
        view.flags.writeable = False
        return view

    @property
    def log_weights(self) -> np.ndarray:
        """(N,), normalised: log-sum-exp 0 within the kernel's error. Read-only, valid until the next step."""
        return _read_only(self._log_w)

    @property
    def weights(self) -> np.ndarray:
        """(N,), summing to 1. Read-only, valid until the next step."""
        return _read_only(self._w)

    @property
    def ess(self) -> float:
        """Effective sample size of the weights, 1..N; 0 right after a collapse."""
        return 0.0 if self._collapsed else self._ess

    @property
    def log_likelihood(self) -> float:
        """Sum of the increments since the filter was made, nats."""
        return self._log_likelihood

    @property
    def mean(self) -> Any:
        """Weighted mean of each coordinate: (d,), or a float for scalar states; circular for angles."""
        return mean_and_variance(self.particles, self._w, self._angle_dims, variance=False)[0]

    @property
    def variance(self) -> Any:
        """Weighted variance of each coordinate: (d,), or a float for scalar states."""
        return mean_and_variance(self.particles, self._w, self._angle_dims)[1]

    def quantile(self, q: Any) -> np.ndarray:
        """Weighted quantiles of each coordinate: the shape of q, followed by (d,) for (N, d) particles."""
        return weighted_quantile(self.particles, self._w, q)

    def __repr__(self) -> str:
        return (
            f"<ParticleFilter of {self.model!r}: N={self.n_particles}, lse={self.lse!r}, time {self._time}, "
            f"log_likelihood {self._log_likelihood:.6f}, ESS {self.ess:.1f}>"
        )

    # ---- one step ------------------------------------------------------------------------------------------

    def predict(self, u: Any = None) -> None:
        """Move to the next time: resample if the last weights call for it, then the model's transition.

        The first call only draws from ``initial``; an input given with it is not used.

        Parameters
        ----------
        u : array_like, optional
            Input of this transition, (input_dim,) (or a number if input_dim is 1), for models that take one.
        """
        if not self._lock.acquire(False):
            raise RuntimeError(IN_USE)
        try:
            self._predict(u, self._timers())
        finally:
            self._lock.release()

    def update(self, y: Any) -> StepResult:
        """Weigh the particles by an observation of the current time.

        May be called more than once at one time, for observations independent given the state.

        Parameters
        ----------
        y : object
            As the model's log_likelihood takes it. None, NaN or all NaN: nothing was observed, the weights
            stay and the increment is exactly 0.

        Returns
        -------
        StepResult
            increment of log p(y_0..t), nats; ESS; whether the step began by resampling, and how many
            different particles that left.

        Raises
        ------
        FilterCollapse
            All particles have likelihood 0, under ``on_collapse="raise"``.
        InvalidWeight
            The model's log-likelihood is NaN or +inf for a particle.
        """
        if not self._lock.acquire(False):
            raise RuntimeError(IN_USE)
        try:
            return self._update(y, self._timers(new_step=False))
        finally:
            self._lock.release()

    def step(self, y: Any, u: Any = None) -> StepResult:
        """``predict(u)``, then ``update(y)``."""
        if not self._lock.acquire(False):
            raise RuntimeError(IN_USE)
        try:
            timers = self._timers()
            self._predict(u, timers)
            return self._update(y, timers)
        finally:
            self._lock.release()

    def _timers(self, new_step: bool = True) -> timing.Timers | None:
        """The timers in force, on the steps they time."""
        timers = self.timers or timing.active()
        return None if timers is None else timers.turn(self.n_particles) if new_step else timers.again()

    def _predict(self, u: Any, timers: timing.Timers | None) -> None:
        t = self._time + 1
        if self._x is None:
            self._draw_initial(timers)
        else:
            if self._input_dim or u is not None:
                self._check_input(u, t)
            if self._resample_next:
                self._resample(t, timers)
            start = perf_counter_ns() if timers is not None else 0
            if self._engine is None or not self._engine.move(self, t, u):
                self._move(t, u)
            if timers is not None:
                timers.add("propagate", perf_counter_ns() - start, self.n_particles)
        # Committed only now: after an exception above the step can be repeated, resampling already done.
        self._time = t
        self._resampled = self._unique_next > 0
        self._n_unique = self._unique_next or self.n_particles
        self._unique_next = 0
        self._collapsed = False

    def _move(self, t: int, u: Any) -> None:
        """The Python model's transition to time t."""
        # It may work in place, and fail half way: it gets a copy.
        np.copyto(self._x_next, self._x)
        x = self._x_next[0] if self._scalar else self._x_next.T
        rng = self._streams.at(t, TRANSITION)
        if self._input_dim:
            moved = self.model.transition(x, t, rng, u)
        else:
            moved = self.model.transition(x, t, rng)
        if moved is not x:
            moved = real_array(moved, x.shape, "transition")
            np.copyto(x, moved, "same_kind")
        self._x, self._x_next = self._x_next, self._x

    def _draw_initial(self, timers: timing.Timers | None, rng: Any = None, room: Any = None) -> None:
        """The first particles; ``rng``: their stream, if open already; ``room``: arrays (d, N) for them and
        for the next ones.
        """
        start = perf_counter_ns() if timers is not None else 0
        n = self.n_particles
        x = np.asarray(self.model.initial(n, self._streams.at(0, INITIAL) if rng is None else rng))
        dim = getattr(self.model, "state_dim", None)
        try:
            x = real_array(x, (n,) if dim is None else (n, dim), f"initial, of a model with state_dim {dim},")
        except ValueError as error:
            if dim is not None or x.ndim != 2:
                raise
            raise ValueError(f"{error}; set `state_dim = {x.shape[1]}` in the model class") from None
        self._scalar = dim is None
        if room is None:
            shape = (1 if dim is None else dim, n)
            room = np.empty(shape, self.dtype), np.empty(shape, self.dtype)
        if self._angle_dims and max(self._angle_dims) >= len(room[0]):
            raise ValueError(f"angle_dims {self._angle_dims} of a state of {len(room[0])} coordinates")
        np.copyto(room[0][0] if self._scalar else room[0].T, x, "same_kind")
        self._x, self._x_next = room
        if timers is not None:
            timers.add("propagate", perf_counter_ns() - start, n)

    def _check_input(self, u: Any, t: int) -> None:
        if not self._input_dim:
            raise ValueError(f"step {t}: an input was given, but the model takes none (input_dim 0): {u!r}")
        if u is None:
            raise ValueError(
                f"step {t}: the model takes an input (input_dim {self._input_dim}); none was given"
            )
        shape = np.shape(u)
        if shape != (self._input_dim,) and not (shape == () and self._input_dim == 1):
            raise ValueError(f"step {t}: the input must have shape ({self._input_dim},), not {shape}: {u!r}")
        if not all_finite(u):
            raise ValueError(f"step {t}: the input must be finite, not {u!r}")

    def _resample(self, t: int, timers: timing.Timers | None) -> None:
        n = self.n_particles
        start = perf_counter_ns() if timers is not None else 0
        rng = self._streams.at(t, RESAMPLE)
        ints = None
        if isinstance(self.resampling, str):
            ints = _cpu.quantize(self._w) if self._ints is None else self._ints
        fused = self._scheme is systematic and timers is None  # timers tell the two parts apart
        if fused:
            bits = random_bits(rng, 1)[0]
            self._unique_next = _cpu.systematic_move(ints, self._x, bits, self._ancestors, self._x_next)
        elif ints is not None:
            self._scheme(ints, n, rng, None, self._ancestors)
        else:
            self._ancestors[:] = check_ancestors(self._scheme(_read_only(self._w), n, rng), n, n)
        middle = perf_counter_ns() if timers is not None else 0
        if not fused:
            self._unique_next = _cpu.gather(self._x, self._ancestors, self._x_next)
        self._x, self._x_next = self._x_next, self._x
        if timers is not None:
            timers.add("resample", middle - start, n)
            timers.add("gather", perf_counter_ns() - middle, n)
        self._log_w.fill(-math.log(n))
        self._w.fill(1 / n)
        self._ints = None
        self._ess = float(n)
        self._resample_next = False
        self._from_equal = True

    def _update(self, y: Any, timers: timing.Timers | None) -> StepResult:
        if self._x is None:
            raise RuntimeError("update() before the first predict(): there are no particles yet")
        if is_missing(y):
            return StepResult(0.0, self.ess, self._resampled, self._n_unique)
        if isinstance(y, np.ma.MaskedArray):
            y = unmasked(y)
        n = self.n_particles
        start = perf_counter_ns() if timers is not None else 0
        g = None if self._engine is None else self._engine.weigh(self, y)
        if g is None:
            x = self._x[0] if self._scalar else self._x.T
            x.flags.writeable = False
            g = real_array(self.model.log_likelihood(y, x, self._time), (n,), "log_likelihood")
        if timers is not None:
            added = perf_counter_ns()
            timers.add("likelihood", added - start, n)
        # -inf + inf and overflow are answered below; they are no business of the caller's error state
        with np.errstate(all="ignore"):
            joint = np.add(self._log_w, g, self._joint, casting="same_kind")
            if timers is not None:
                added = perf_counter_ns() - added
            _, increment, ess, ints = self._weigh(joint, self._w_next, timers)
            if not math.isfinite(increment):
                return self._failed(y, g)
            start = perf_counter_ns() if timers is not None else 0
            np.subtract(joint, increment, self._log_w)
        if timers is not None:
            timers.add("weights", added + perf_counter_ns() - start, n)
        self._w, self._w_next = self._w_next, self._w
        self._ints = ints
        self._ess = ess
        self._collapsed = self._from_equal = False
        self._resample_next = ess < self._resample_below
        self._log_likelihood += increment
        return StepResult(increment, ess, self._resampled, self._n_unique)

    def _failed(self, y: Any, g: np.ndarray) -> StepResult:
        """Log-weights all -inf, or one of them NaN or +inf. What held before the observation stands."""
        with np.errstate(over="ignore"):  # a finite float64 may be infinite in the filter's float32
            invalid = np.flatnonzero(~(g.astype(self.dtype) < np.inf))
        if invalid.size:
            j = int(invalid[0])
            state = float(self._x[0, j]) if self._scalar else self._x[:, j].copy()
            raise InvalidWeight(self._time, y, j, float(g[j]), state)
        error = FilterCollapse(self._time, y, self.n_particles)
        if self.on_collapse == "raise":
            raise error
        if self.on_collapse == "warn":
            warn_collapse(error)
        self._collapsed = True
        self._log_likelihood = -math.inf
        return StepResult(-math.inf, 0.0, self._resampled, self._n_unique)

    # ---- a series ------------------------------------------------------------------------------------------

    def run(
        self,
        observations: Iterable,
        inputs: Iterable | None = None,
        *,
        store: Any = ("mean", "variance"),
        progress: bool | Callable[[int, int | None], None] = False,
    ) -> FilterResult:
        """Filter a series: ``predict`` and ``update`` for each observation, from where the filter is.

        Parameters
        ----------
        observations : iterable
            One observation a step; an array is taken along its first axis. None or NaN: missing.
        inputs : iterable, optional
            One input a step, for models that take one: ``inputs[t]`` moves the state from t - 1 to t. That of
            the first step of a new filter is not used.
        store : str, callable, or a sequence of them
            What to keep of every step: "mean", "variance", "particles", "log_weights", "ancestors", and
            functions of (particles, weights). Nothing else grows with the series.
        progress : bool or callable(done, total)
            True: a line on standard error.

        Returns
        -------
        FilterResult

        Raises
        ------
        FilterCollapse, InvalidWeight
            As ``update``; the exception's ``result`` holds the steps before it.
        RuntimeError
            Another thread is using this filter.
        """
        if not self._lock.acquire(False):
            raise RuntimeError(IN_USE)
        try:
            return self._run(observations, inputs, store, progress)
        finally:
            self._lock.release()

    def _run(self, observations: Any, inputs: Any, store: Any, progress: Any) -> FilterResult:
        observations, inputs = _series("observations", observations), _series("inputs", inputs)
        total = _length(observations)
        if (inputs is None) != (self._input_dim == 0):
            given = "none were" if inputs is None else "inputs were"
            raise ValueError(f"the model has input_dim {self._input_dim}, but {given} given")
        n_inputs = _length(inputs)
        if total is not None and n_inputs is not None and n_inputs != total:
            raise ValueError(f"{n_inputs} inputs for {total} observations; one a step is expected")
        recorder = Recorder(store, total)
        report = _progress_line if progress is True else progress
        timers = self.timers or timing.active()
        steps: Any = []
        from_equal = self._from_equal
        repeat = standard_error(self, observations, inputs)
        u_of = None if inputs is None else iter(inputs)
        try:
            if self._engine is not None:
                whole = self._engine.run(self, observations, inputs, recorder, report, steps, timers)
                if whole is not None:
                    steps = whole
                    observations = ()
            for k, y in enumerate(observations):
                u = None
                if u_of is not None:
                    try:
                        u = next(u_of)
                    except StopIteration:
                        raise ValueError(f"inputs ended at step {k}, before the observations") from None
                timed = None
                if timers is not None:
                    timers.steps += 1
                    if timers.steps >= timers.due:
                        timed = timers.turn(self.n_particles, counted=True)
                self._predict(u, timed)
                if recorder.ancestors:
                    identity = not self._resampled
                    recorder.put("ancestors", np.arange(self.n_particles) if identity else self._ancestors, k)
                steps.append(self._update(y, timed))
                if recorder.anything:
                    recorder.record(self.particles, self.weights, self._log_w, self._angle_dims, k)
                if report:
                    report(k + 1, total)
        except (FilterCollapse, InvalidWeight) as error:
            error.result = self._result(steps, recorder, timers, from_equal)
            raise
        return self._result(steps, recorder, timers, from_equal, repeat)

    def _result(self, steps, recorder, timers, from_equal, repeat=None) -> FilterResult:
        if isinstance(steps, StepArrays):
            resampled, increments = int(np.count_nonzero(steps.resampled)), steps.increment
            length = len(increments)
        else:
            resampled, length = sum(step.resampled for step in steps), len(steps)
            increments = np.array([step.increment for step in steps])
        segments = resampled + (1 if from_equal else 2)
        bound = partial(error_bound, self.lse, self.n_particles, self.dtype, increments, segments)
        return FilterResult(steps, recorder.arrays(length), self.n_particles, timers, bound, repeat)

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def save(self, path: Any) -> None:
        """Write the filter to ``path`` (npz format, no pickle), to be resumed bit for bit by ``load``.

        The model is not written, nor a callable resampling scheme. The file appears whole or not at all.
        """
        checkpoint.save(self, path)

    @classmethod
    def load(cls, path: Any, model: Any, *, resampling: Any = None, timers: Any = None) -> ParticleFilter:
        """A filter as it was when saved, with ``model``; random streams included.

        Parameters
        ----------
        path : str or path-like
            A file of :meth:`save`.
        model : model
            The one that was saved is not in the file.
        resampling : callable, optional
            Must be given again if it was a callable, and may not be otherwise.
        timers : Timers, optional

        Raises
        ------
        ValueError
            For a file that :meth:`save` did not write or that is damaged, and a model whose dimensions are
            others; OSError where it cannot be read.
        """
        return checkpoint.load(cls, path, model, resampling, timers)


def _threshold(value: Any) -> float:
    if type(value) is not float and not isinstance(value, (Real, np.bool_)):
        raise TypeError(f"ess_threshold must be a number >= 0, not {value!r}")
    threshold = float(value)
    if not threshold >= 0:
        raise ValueError(f"ess_threshold must be >= 0, not {value!r}")
    return threshold


def _series(name: str, series: Any) -> Any:
    """A pandas table as its array, an array as a read-only view, other iterables as they are."""
    if hasattr(series, "to_numpy"):
        series = series.to_numpy()
    if isinstance(series, np.ndarray):
        if series.ndim == 0:
            raise ValueError(f"{name} need a time axis; for a single step call step(y, u)")
        return _read_only(series)
    if series is None and name == "inputs":
        return None
    if isinstance(series, (str, bytes, dict)) or not isinstance(series, Iterable):
        raise TypeError(f"{name} must be an array, a list or an iterator, one element a step, not {series!r}")
    return series


def _length(series: Any) -> int | None:
    return len(series) if hasattr(series, "__len__") else None


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _progress_line(done: int, total: int | None) -> None:
    of = "" if total is None else f" of {total}"
    print(f"\rstep {done}{of}", end="\n" if done == total else "", file=sys.stderr, flush=True)
