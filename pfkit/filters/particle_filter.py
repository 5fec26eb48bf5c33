"""The particle filter: predict, update, and the loop over a series.

    pf = ParticleFilter(model, 1000, lse="int", rng=7)
    result = pf.run(observations)

or, as observations arrive,

    pf.predict(); step = pf.update(y)

Notation: particles x^j with log-weights lw_j, normalised after every update (LSE(lw) = 0). With g_j = log p(y | x^j),

    increment = LSE(lw + g) - LSE(lw) = LSE(lw + g),      lw <- lw + g - increment,      ESS = 1 / sum exp(lw)^2.

If ESS < ess_threshold N, the next predict first draws ancestors in proportion to the weights and sets every
log-weight to -log N. This increment is the right one whether or not the last step resampled.

The log-weights are the state; integers (``lse="int"``) live inside one normalisation only. A particle 60 nats down
can come back.
"""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

import numpy as np

from pfkit_ext import _cpu

from .. import timing
from . import checkpoint
from .errors import CollapseWarning, FilterCollapse, InvalidWeight
from .moments import weighted_mean, weighted_quantile, weighted_variance
from .random import INITIAL, RESAMPLE, TRANSITION, Streams, seed_key
from .resampling import check_ancestors, check_scheme
from .result import FilterResult, Recorder, StepResult
from .weighing import weigher

__all__ = ["ParticleFilter"]

ON_COLLAPSE = ("raise", "warn", "keep")


class ParticleFilter:
    """Bootstrap particle filter of a state-space model.

    Parameters
    ----------
    model : StateSpaceModel
        Or any object with its three methods ``initial``, ``transition``, ``log_likelihood``.
    n_particles : int
        N >= 1.
    lse : str
        Log-sum-exp kernel of the weighting: "fuse" (float, exact to rounding), "int" (integer arithmetic, the same
        bits in any order, at most 2.1e-5 nats off), "int-pairwise", or a baseline "numpy", "scipy", "torch".
    resampling : str or callable(weights, n, rng) -> ancestors
        "systematic", "stratified", "multinomial", "residual", or your own: it gets the normalised weights (read-only),
        and returns n integer indices.
    ess_threshold : float
        Resample when ESS < ess_threshold * N; >= 1: after every observation; 0: never.
    rng : None, int, numpy.random.SeedSequence or numpy.random.Generator
        Source of the 128-bit key of the filter's random streams; see ``pfkit.filters.random``.
    dtype : "float64" or "float32"
        Of particles and log-weights. Whatever the model returns is converted, integers included.
    n_threads : int
        Threads of the compiled path. Results do not depend on it.
    on_collapse : "raise", "warn" or "keep"
        When no particle can explain an observation: raise ``FilterCollapse``; or record an increment of -inf and an
        ESS of 0 and go on with the predicted particles and their weights, with or without a warning.
    timers : Timers, optional
        Accumulates where time goes; by default the one whose ``with`` block is active, if any.

    Notes
    -----
    Missing observations: ``y`` None, NaN, or all NaN (or empty, or wholly masked) is predicted through; the increment
    is exactly 0 and the weights stay. What partly NaN means is up to the model.

    After ``InvalidWeight``, or a collapse, the filter holds the predicted particles and the weights from before the
    observation, and may go on. An exception out of the model leaves the step to be repeated, with the same random
    numbers.

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
        for method in ("initial", "transition", "log_likelihood"):
            if not callable(getattr(model, method, None)):
                raise TypeError(
                    f"model must have methods initial, transition and log_likelihood; {model!r} has no {method}"
                )
        self.model = model
        self.n_particles = _count("n_particles", n_particles)
        self.n_threads = _count("n_threads", n_threads)
        self._weigh = weigher(lse)
        self.lse = lse
        self._scheme = check_scheme(resampling)
        self.resampling = resampling
        try:
            self.ess_threshold = float(ess_threshold)
        except (TypeError, ValueError):
            raise TypeError(f"ess_threshold must be a number >= 0, not {ess_threshold!r}") from None
        if not self.ess_threshold >= 0:
            raise ValueError(f"ess_threshold must be >= 0, not {ess_threshold!r}")
        if on_collapse not in ON_COLLAPSE:
            raise ValueError(f"on_collapse must be one of {', '.join(map(repr, ON_COLLAPSE))}, not {on_collapse!r}")
        self.on_collapse = on_collapse
        self.dtype = _float_dtype(dtype)
        if timers is not None and not isinstance(timers, timing.Timers):
            raise TypeError(f"timers must be a pfkit.Timers or None, not {timers!r}")
        self.timers = timers
        self._input_dim = int(getattr(model, "input_dim", 0) or 0)
        self._angle_dims = tuple(getattr(model, "angle_dims", ()) or ())

        n = self.n_particles
        self._streams = Streams(seed_key(rng))
        self._threshold = math.inf if self.ess_threshold >= 1 else self.ess_threshold * n
        self._log_w = np.full(n, -math.log(n), self.dtype)
        self._w = np.full(n, 1 / n, self.dtype)
        self._w_next = np.empty(n, self.dtype)
        # ancestors and the unnormalised log-weights are never alive together: one buffer
        self._ancestors = np.empty(n, np.int64)
        self._log_w_next = self._ancestors.view(self.dtype)[:n]
        self._ints: np.ndarray | None = None
        self._x: np.ndarray | None = None  # (d, N), each coordinate contiguous
        self._x_next: np.ndarray | None = None
        self._scalar = True
        self._time = -1
        self._ess = float(n)
        self._collapsed = False
        self._resample_next = False
        self._resampled, self._n_unique = False, n
        self._log_likelihood = 0.0

    # ---- what it holds -----------------------------------------------------------------------------------------------

    @property
    def time(self) -> int:
        """Index of the current step, the number of predictions less one; -1 before the first."""
        return self._time

    @property
    def state_dim(self) -> int | None:
        """d for (N, d) particles, None for scalar ones (and before the first predict of an undeclared model)."""
        if self._x is None:
            return getattr(self.model, "state_dim", None)
        return None if self._scalar else self._x.shape[0]

    @property
    def particles(self) -> np.ndarray:
        """(N,) or (N, d): a read-only view, valid until the next predict; copy it to keep it."""
        if self._x is None:
            raise RuntimeError("no particles yet: call predict() or run() first")
        view = self._shown(self._x)
        view.flags.writeable = False
        return view

    @property
    def log_weights(self) -> np.ndarray:
        """(N,), normalised: log-sum-exp 0 to within the kernel's error. A read-only view, valid until the next step."""
        return _read_only(self._log_w)

    @property
    def weights(self) -> np.ndarray:
        """(N,), summing to 1. A read-only view, valid until the next step."""
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
    def mean(self) -> np.ndarray:
        """Weighted mean of the particles, (d,), or 0-d for scalar states; angles (the model's angle_dims) circular."""
        return weighted_mean(self.particles, self._w, self._angle_dims)

    @property
    def variance(self) -> np.ndarray:
        """Weighted variance of each coordinate, as ``mean``."""
        return weighted_variance(self.particles, self._w, None, self._angle_dims)

    def quantile(self, q: Any) -> np.ndarray:
        """Weighted quantiles of each coordinate: shape of q (+ (d,))."""
        return weighted_quantile(self.particles, self._w, q)

    def __repr__(self) -> str:
        return (
            f"<ParticleFilter of {self.model!r}: N={self.n_particles}, lse={self.lse!r}, time {self._time}, "
            f"log_likelihood {self._log_likelihood:.6f}, ESS {self.ess:.1f}>"
        )

    # ---- one step ----------------------------------------------------------------------------------------------------

    def predict(self, u: Any = None) -> None:
        """Move to the next time: resample if the last weights call for it, then the model's transition.

        The first call only draws from ``initial``; an input given with it is not used.

        Parameters
        ----------
        u : array_like, optional
            Input of this transition, (input_dim,) (or a number if input_dim is 1), for models that take one.
        """
        self._predict(u, self.timers or timing.active())

    def update(self, y: Any) -> StepResult:
        """Weigh the particles by an observation of the current time.

        May be called more than once at one time, for observations independent given the state.

        Raises
        ------
        FilterCollapse
            All particles have likelihood 0, under ``on_collapse="raise"``.
        InvalidWeight
            The model's log-likelihood is NaN or +inf for a particle.
        """
        increment, ess = self._update(y, self.timers or timing.active())
        return StepResult(increment, ess, self._resampled, self._n_unique)

    def step(self, y: Any, u: Any = None) -> StepResult:
        """``predict(u)``, then ``update(y)``."""
        timers = self.timers or timing.active()
        self._predict(u, timers)
        increment, ess = self._update(y, timers)
        return StepResult(increment, ess, self._resampled, self._n_unique)

    def _predict(self, u: Any, timers: timing.Timers | None) -> None:
        t = self._time + 1
        if self._x is None:
            self._draw_initial(timers)
        else:
            if self._input_dim:
                u = self._check_input(u, t)
            elif u is not None:
                raise ValueError(f"an input was given, but the model takes none (its input_dim is 0): {u!r}")
            if self._resample_next:
                self._resample(t, timers)
            start = perf_counter_ns() if timers is not None else 0
            x = self._shown(self._x)
            rng = self._streams.at(t, TRANSITION)
            moved = self.model.transition(x, t, rng, u) if self._input_dim else self.model.transition(x, t, rng)
            if moved is not x:
                self._copy_in(x, moved, "transition")
            if timers is not None:
                timers.add("propagate", perf_counter_ns() - start, self.n_particles)
        # committed only now: an exception above leaves this step to be repeated, resampling already done
        self._time = t
        self._resampled, self._n_unique = self._n_unique_pending is not None, self._n_unique_pending or self.n_particles
        self._n_unique_pending = None
        self._collapsed = False

    _n_unique_pending: int | None = None

    def _draw_initial(self, timers: timing.Timers | None) -> None:
        start = perf_counter_ns() if timers is not None else 0
        n = self.n_particles
        x = np.asarray(self.model.initial(n, self._streams.at(0, INITIAL)))
        declared = getattr(self.model, "state_dim", None)
        expected = (n,) if declared is None else (n, declared)
        if x.shape != expected:
            raise ValueError(
                f"initial(n={n}) returned an array of shape {x.shape}; expected {expected}, state_dim being {declared}"
            )
        if x.dtype.kind not in "fiub":
            raise TypeError(f"initial returned dtype {x.dtype}; expected real numbers")
        particles = np.empty((x.shape[1] if x.ndim == 2 else 1, n), self.dtype)
        self._scalar = x.ndim == 1
        np.copyto(self._shown(particles), x, casting="same_kind")
        self._x, self._x_next = particles, np.empty_like(particles)
        if timers is not None:
            timers.add("propagate", perf_counter_ns() - start, n)

    def _shown(self, x: np.ndarray) -> np.ndarray:
        return x[0] if self._scalar else x.T

    def _copy_in(self, x: np.ndarray, moved: Any, method: str) -> None:
        moved = np.asarray(moved)
        if moved.shape != x.shape:
            raise ValueError(f"{method} returned an array of shape {moved.shape}; expected {x.shape}, as it was given")
        if moved.dtype.kind not in "fiub":
            raise TypeError(f"{method} returned dtype {moved.dtype}; expected real numbers")
        np.copyto(x, moved, casting="same_kind")

    def _check_input(self, u: Any, t: int) -> Any:
        if u is None:
            raise ValueError(f"step {t}: the model takes an input (its input_dim is {self._input_dim}); none was given")
        shape = np.shape(u)
        if shape != (self._input_dim,) and not (shape == () and self._input_dim == 1):
            raise ValueError(f"step {t}: the input must have shape ({self._input_dim},), not {shape}: {u!r}")
        return u

    def _resample(self, t: int, timers: timing.Timers | None) -> None:
        n = self.n_particles
        start = perf_counter_ns() if timers is not None else 0
        rng = self._streams.at(t, RESAMPLE)
        if isinstance(self.resampling, str):
            ints = self._ints if self._ints is not None else _cpu.quantize(self._w.astype(np.float64, copy=False))
            ancestors = self._scheme(ints, n, rng)
        else:
            ancestors = check_ancestors(self._scheme(_read_only(self._w), n, rng), n, n)
        self._ancestors[:] = ancestors
        middle = perf_counter_ns() if timers is not None else 0
        n_unique = _cpu.gather(self._x, self._ancestors, self._x_next)
        self._x, self._x_next = self._x_next, self._x
        if timers is not None:
            timers.add("resample", middle - start, n)
            timers.add("gather", perf_counter_ns() - middle, n)
        self._log_w.fill(-math.log(n))
        self._w.fill(1 / n)
        self._ints = None
        self._ess = float(n)
        self._resample_next = False
        self._n_unique_pending = n_unique

    def _update(self, y: Any, timers: timing.Timers | None) -> tuple[float, float]:
        if self._x is None:
            raise RuntimeError("update before the first predict(): there are no particles yet")
        if is_missing(y):
            return 0.0, self._ess
        start = perf_counter_ns() if timers is not None else 0
        x = self._shown(self._x)
        x.flags.writeable = False
        g = self.model.log_likelihood(y, x, self._time)
        if type(g) is not np.ndarray:
            g = np.asarray(g)
        if g.shape != self._log_w.shape or g.dtype.kind not in "fiub":
            raise (ValueError if g.dtype.kind in "fiub" else TypeError)(
                f"log_likelihood returned an array of shape {g.shape}, dtype {g.dtype}; "
                f"expected real numbers of shape {self._log_w.shape}"
            )
        middle = perf_counter_ns() if timers is not None else 0
        joint = np.add(self._log_w, g, out=self._log_w_next, casting="same_kind")
        if timers is not None:
            timers.add("likelihood", middle - start, self.n_particles)
            after = perf_counter_ns()
        _, increment, ess, ints = self._weigh(joint, self._w_next, timers)
        if not math.isfinite(increment):
            return self._failed(y, g, increment)
        last = perf_counter_ns() if timers is not None else 0
        np.subtract(joint, increment, out=self._log_w)
        if timers is not None:
            timers.add("weights", after - middle + perf_counter_ns() - last, self.n_particles)
        self._w, self._w_next = self._w_next, self._w
        self._ints, self._ess, self._collapsed = ints, ess, False
        self._resample_next = ess < self._threshold
        self._log_likelihood += increment
        return increment, ess

    def _failed(self, y: Any, g: np.ndarray, increment: float) -> tuple[float, float]:
        """All log-weights -inf, or one of them NaN or +inf. The state before the observation stands."""
        invalid = np.flatnonzero(np.isnan(g) | (g == np.inf))
        if invalid.size:
            j = int(invalid[0])
            state = self.particles[j]
            raise InvalidWeight(self._time, y, j, float(g[j]), float(state) if self._scalar else state.copy())
        error = FilterCollapse(self._time, y, self.n_particles)
        if self.on_collapse == "raise":
            raise error
        if self.on_collapse == "warn":
            warnings.warn(CollapseWarning(str(error)), stacklevel=4)
        self._collapsed = True
        self._log_likelihood = -math.inf
        return -math.inf, 0.0

    # ---- a series ----------------------------------------------------------------------------------------------------

    def run(
        self,
        observations: Iterable,
        inputs: Iterable | None = None,
        *,
        store: Any = ("mean", "variance"),
        progress: bool | Callable[[int, int | None], None] = False,
    ) -> FilterResult:
        """Filter a series: ``predict`` and ``update`` for each observation, continuing from where the filter is.

        Parameters
        ----------
        observations : iterable
            One observation a step; an array is taken along its first axis. None or NaN: missing.
        inputs : iterable, optional
            One input a step, for models that take one: ``inputs[t]`` moves the state from t - 1 to t. That of the
            first step of a new filter is not used.
        store : str, callable, or a sequence of them
            What to keep of every step: "mean", "variance", "particles", "log_weights", "ancestors", and functions of
            (particles, weights). Nothing else grows with the series.
        progress : bool or callable(done, total)
            True: a line on standard error.

        Returns
        -------
        FilterResult

        Raises
        ------
        FilterCollapse, InvalidWeight
            As ``update``; the exception's ``result`` holds the steps before it.
        """
        length = operator.length_hint(observations, -1) if hasattr(observations, "__len__") else -1
        total = length if length >= 0 else None
        if isinstance(observations, np.ndarray):
            if observations.ndim == 0:
                raise ValueError("observations must have a time axis; got one number (for one step, use step(y))")
            observations = observations.view()
            observations.flags.writeable = False
        if self._input_dim and inputs is None:
            raise ValueError(f"the model takes an input (its input_dim is {self._input_dim}): give inputs=")
        if inputs is not None:
            if not self._input_dim:
                raise ValueError("inputs were given, but the model takes none (its input_dim is 0)")
            if total is not None and hasattr(inputs, "__len__") and len(inputs) != total:
                raise ValueError(f"{len(inputs)} inputs for {total} observations; one a step is expected")
            inputs = iter(inputs)
        recorder = Recorder(store, total)
        report = _progress_line if progress is True else progress
        timers = self.timers or timing.active()
        steps: list[StepResult] = []
        try:
            for k, y in enumerate(observations):
                u = None
                if inputs is not None:
                    try:
                        u = next(inputs)
                    except StopIteration:
                        raise ValueError(f"inputs ended at step {k}, before the observations") from None
                    if self._x is None:
                        u = None
                self._predict(u, timers)
                if "ancestors" in recorder:
                    recorder.put("ancestors", self._ancestors if self._resampled else np.arange(self.n_particles), k)
                increment, ess = self._update(y, timers)
                steps.append(StepResult(increment, ess, self._resampled, self._n_unique))
                self._record(recorder, k)
                if report:
                    report(k + 1, total)
        except (FilterCollapse, InvalidWeight) as error:
            error.result = self._result(steps, recorder, timers)  # type: ignore[union-attr]
            raise
        return self._result(steps, recorder, timers)

    def _record(self, recorder: Recorder, k: int) -> None:
        if not (recorder.names or recorder.functions):
            return
        x, w = self.particles, self._w
        mean = None
        if "mean" in recorder or "variance" in recorder:
            mean = weighted_mean(x, w, self._angle_dims)
        if "mean" in recorder:
            recorder.put("mean", mean, k)
        if "variance" in recorder:
            recorder.put("variance", weighted_variance(x, w, mean, self._angle_dims), k)
        if "particles" in recorder:
            recorder.put("particles", x, k)
        if "log_weights" in recorder:
            recorder.put("log_weights", self._log_w, k)
        for name, function in recorder.functions.items():
            recorder.put(name, function(x, self.weights), k)

    def _result(self, steps: list[StepResult], recorder: Recorder, timers: timing.Timers | None) -> FilterResult:
        return FilterResult(steps, recorder.arrays(len(steps)), self.n_particles, math.nan, timers)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, path: Any) -> None:
        """Write the filter to ``path`` (NumPy's npz format, no pickle), to be resumed bit for bit by ``load``.

        The model is not written, nor a callable resampling scheme. The file appears whole or not at all.
        """
        checkpoint.save(self, path)

    @classmethod
    def load(cls, path: Any, model: Any, *, resampling: Any = None, timers: Any = None) -> ParticleFilter:
        """A filter as it was when saved, with ``model``; random streams included.

        ``resampling`` must be given again if it was a callable, and may not be otherwise.
        """
        return checkpoint.load(cls, path, model, resampling, timers)


def is_missing(y: Any) -> bool:
    """None, NaN, all NaN, wholly masked, or empty."""
    if y is None:
        return True
    if isinstance(y, float):  # np.float64 included
        return y != y
    if isinstance(y, np.ma.MaskedArray):
        return bool(np.all(np.ma.getmaskarray(y) | np.isnan(y.filled(0)) if y.dtype.kind == "f" else y.mask))
    if isinstance(y, (list, tuple)):
        try:
            y = np.asarray(y)
        except ValueError:  # ragged: the model's own structure
            return False
    if isinstance(y, (np.ndarray, np.generic)):
        if y.size == 0:
            return True
        if y.dtype.kind not in "fc" or y.flat[0] == y.flat[0]:
            return False
        return bool(np.isnan(y).all())
    return False


def _count(name: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int >= 1, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, not {value}")
    return int(value)


def _float_dtype(dtype: Any) -> np.dtype:
    try:
        result = np.dtype(dtype)
    except TypeError:
        result = None
    if result not in (np.float32, np.float64):
        raise ValueError(f"dtype must be 'float32' or 'float64', not {dtype!r}")
    return result


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _progress_line(done: int, total: int | None) -> None:
    end = "\n" if done == total else ""
    print(f"\rstep {done}" + (f" of {total}" if total is not None else ""), end=end, file=sys.stderr, flush=True)
