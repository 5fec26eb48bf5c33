"""What a run leaves behind: arrays over time, and ways to look at them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

import pfkit_ext._cpu as _cpu

from .moments import mean_and_variance, weighted_quantile

__all__ = ["FilterResult", "Recorder", "StepArrays", "StepResult"]

STORABLE = ("mean", "variance", "particles", "log_weights", "ancestors")


class StepResult(NamedTuple):
    """One step of a filter.

    increment : log p(y_t | y_0..y_{t-1}) as estimated, nats; exactly 0 for a missing observation, -inf on
    collapse.
    ess : effective sample size after weighting, 1..N; 0 on collapse.
    resampled : whether particles were resampled before they moved to this step.
    n_unique : number of distinct ancestors of that resampling; N without one.
    """

    increment: float
    ess: float
    resampled: bool
    n_unique: int


class StepArrays(NamedTuple):
    """Steps as one array a field: what a list of ``StepResult`` is, for runs of many cheap steps."""

    increment: np.ndarray
    ess: np.ndarray
    resampled: np.ndarray
    n_unique: np.ndarray


def running_sum(start: float, values: np.ndarray) -> float:
    """start + values[0] + values[1] + ..., in this order: as a filter that steps adds them, to the last bit.

    The built-in sum compensates for roundings in some versions of Python.
    """
    return _cpu.running_sum(start, values)


def running_sums(start: ArrayLike, rows: np.ndarray) -> np.ndarray:
    """The same of each row, from its own start."""
    column = np.reshape(np.asarray(start, np.float64), (-1, 1))
    return np.add.accumulate(np.concatenate((column, rows), axis=1), axis=1)[:, -1]


class FilterResult:
    """The record of one ``ParticleFilter.run``; T observations.

    Attributes
    ----------
    increment : (T,) float64
        Log-likelihood increments, nats.
    ess : (T,) float64
        Effective sample sizes after weighting; 0 on collapse.
    resampled : (T,) bool
        Whether particles were resampled on their way to step t.
    n_unique : (T,) int64
        Distinct ancestors at that resampling; N without one.
    log_likelihood : float
        Sum of ``increment``: that of this run's observations, given those of earlier runs of the same filter.
    lse_error_bound : float
        Nats. Bounds what the rounding of the log-sum-exp evaluations contributes to ``log_likelihood``, along
        the path that was simulated: it says nothing of the Monte Carlo error. NaN for kernels without a
        proven bound.
    mean, variance : (T,) or (T, d) float64
        Of the filtering distribution, weighted. Present if stored, as are the next three.
    particles : (T, N) or (T, N, d);  log_weights : (T, N)
    ancestors : (T, N) int64
        ``ancestors[t, j]`` is the index at t - 1 of the parent of particle j at t; the identity where nothing
        was resampled.
    stored : dict
        The results of functions given to ``store``, by their ``__name__``: arrays with leading T.
    timings : Timers or None
    """

    def __init__(
        self,
        steps: Sequence[StepResult] | StepArrays,
        stored: dict[str, Any],
        n_particles: int,
        timings: Any,
        error_bound: Callable[[], float],
        standard_error: Callable[[], float] | None = None,
    ):
        if not isinstance(steps, StepArrays):
            steps = StepArrays(
                np.array([s.increment for s in steps], np.float64),
                np.array([s.ess for s in steps], np.float64),
                np.array([s.resampled for s in steps], np.bool_),
                np.array([s.n_unique for s in steps], np.int64),
            )
        self.increment, self.ess, self.resampled, self.n_unique = steps
        self.log_likelihood = running_sum(0.0, self.increment)
        self.n_particles = n_particles
        self.timings = timings
        self._error_bound = error_bound
        self._standard_error = standard_error
        self._se: float | None = None
        self.stored = {k: v for k, v in stored.items() if k not in STORABLE}
        for name in STORABLE:
            if name in stored:
                setattr(self, name, stored[name])

    def __getattr__(self, name: str) -> Any:
        if name in STORABLE:
            raise AttributeError(f"{name} was not stored; run(..., store=({name!r}, ...)) keeps it")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def lse_error_bound(self) -> float:
        """Bound on the error of the log-sum-exps in ``log_likelihood``, nats; see ``weighing``."""
        return self._error_bound()

    @property
    def log_likelihood_se(self) -> float:
        """Standard error of ``log_likelihood`` over random seeds, nats; see ``pfkit.filters.precision``.

        Computed when first read: under multinomial resampling from the run's own genealogy, at the cost of
        one more run; else, and where that finds more than 0.32 nats, from replicates, 20 more runs. NaN if a
        replicate collapses, if the genealogy degenerates, or if the run cannot be repeated: it went on from
        an earlier one, or its observations could be read only once.
        """
        if self._se is None:
            self._se = math.nan if self._standard_error is None else self._standard_error()
        return self._se

    def __len__(self) -> int:
        return len(self.increment)

    def __repr__(self) -> str:
        mean_ess = f"{self.ess.mean():.6g}" if len(self) else "nan"
        return (
            f"<FilterResult: {len(self)} steps, {self.n_particles} particles, log_likelihood "
            f"{self.log_likelihood:.6f}, mean ESS {mean_ess}, resampled {int(self.resampled.sum())} times>"
        )

    def quantile(self, q: ArrayLike) -> np.ndarray:
        """Weighted quantiles of the stored particles: (T,) + shape of q (+ (d,)).

        Needs ``store=("particles", "log_weights")``. To keep quantiles without keeping particles, store a
        function: ``store=["mean", lambda x, w: weighted_quantile(x, w, [0.05, 0.95])]``.
        """
        missing = [name for name in ("particles", "log_weights") if name not in self.__dict__]
        if missing:
            raise ValueError(
                f"quantile needs store=('particles', 'log_weights', ...); not stored: {', '.join(missing)}"
            )
        return np.array(
            [
                weighted_quantile(x, np.exp(w), q)
                for x, w in zip(self.particles, self.log_weights, strict=True)
            ]
        )

    def to_dataframe(self) -> Any:
        """A pandas DataFrame, one row a step: increment, ess, resampled, n_unique; mean, variance if stored.

        Raises ImportError, saying so, without pandas.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_dataframe needs pandas: pip install pandas") from error
        columns: dict[str, np.ndarray] = {
            name: getattr(self, name) for name in ("increment", "ess", "resampled", "n_unique")
        }
        for name in ("mean", "variance"):
            values = self.__dict__.get(name)
            if values is not None and values.ndim == 1:
                columns[name] = values
            elif values is not None:
                columns.update({f"{name}_{k}": values[:, k] for k in range(values.shape[1])})
        return pandas.DataFrame(columns, index=pandas.RangeIndex(len(self), name="t"))

    def plot(self, **keywords: Any) -> Any:
        """Draw the record with matplotlib; see ``pfkit.plots``."""
        import pfkit.plots as plots

        return plots.plot_result(self, **keywords)


class Recorder:
    """Collects what ``store`` names, step by step."""

    def __init__(self, store: Any, length: int | None):
        if isinstance(store, str) or callable(store) or not isinstance(store, Iterable):
            store = () if store is None else (store,)
        self.names: list[str] = []
        self.functions: dict[str, Callable] = {}
        for item in store:
            if isinstance(item, str) and item in STORABLE:
                self.names.append(item)
            elif isinstance(item, str) or not callable(item):
                kind = ValueError if isinstance(item, str) else TypeError
                raise kind(
                    f"store accepts {', '.join(map(repr, STORABLE))} and functions of (particles, weights), "
                    f"not {item!r}"
                )
            else:
                name = unique = getattr(item, "__name__", type(item).__name__)
                while unique in self.functions or unique in STORABLE:
                    unique = f"{name}_{len(self.functions)}"
                self.functions[unique] = item
        self.length = length
        self.values: dict[str, Any] = {}
        self.ancestors = "ancestors" in self.names
        self.anything = bool(self.functions) or any(name != "ancestors" for name in self.names)

    def record(
        self, x: np.ndarray, w: np.ndarray, log_w: np.ndarray, angle_dims: Sequence[int], k: int
    ) -> None:
        """Keep what was asked for of step k: particles x, their weights w and log-weights log_w."""
        if "mean" in self.names or "variance" in self.names:
            second = "variance" in self.names
            mean, variance = mean_and_variance(x, w, angle_dims, variance=second)
            if "mean" in self.names:
                self.put("mean", mean, k)
            if second:
                self.put("variance", variance, k)
        if "particles" in self.names:
            self.put("particles", x, k)
        if "log_weights" in self.names:
            self.put("log_weights", log_w, k)
        for name, function in self.functions.items():
            self.put(name, function(x, w), k)

    def put(self, name: str, value: Any, step: int) -> None:
        """Keep a copy of ``value`` as that of ``step`` (0-based within this run)."""
        value = np.asarray(value)
        if self.length is None:
            self.values.setdefault(name, []).append(value.copy())
            return
        rows = self.values.get(name)
        if rows is None:
            rows = self.values[name] = np.empty((self.length, *value.shape), value.dtype)
        if value.shape != rows.shape[1:]:
            raise ValueError(f"{name} has shape {value.shape} at step {step}, but {rows.shape[1:]} before")
        rows[step] = value

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        """What was kept of the first ``steps`` steps, as arrays with leading axis time."""
        names = [*self.names, *self.functions]
        empty = np.empty((0,))
        return {name: np.asarray(self.values.get(name, empty))[:steps] for name in names}
