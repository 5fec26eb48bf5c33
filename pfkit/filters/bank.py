"""Many filters in one call: one model per parameter set, or one series each, or replicates.

    bank = FilterBank([LocalLevel(s, 1.0) for s in sigmas], 1000, rng=1)
    bank.run(y).log_likelihood                     # (B,)
    FilterBank(model, 1000, n_filters=50, rng=1).run(y)             # replicates
    FilterBank(model, 1000, n_filters=len(panel)).run(panel, each=True)      # a series each

Filter b of a bank is a ``ParticleFilter`` with its own random streams; those of filter 0 are the streams a
single filter with the same ``rng`` has, so a bank of one has that filter's bits. With compiled models all
filters run in one C call, spread over ``n_threads`` threads; which thread runs which filter cannot matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np

import pfkit_ext._cpu as _cpu

from ..models.base import FunctionModel
from .arguments import angle_dims, count, input_dim
from .errors import FilterCollapse, InvalidWeight
from .particle_filter import IN_USE, ParticleFilter
from .random import INITIAL, PhiloxGenerator, Streams, seed_key
from .result import FilterResult, Recorder, StepArrays, StepResult, running_sum, running_sums
from .stepping import CHUNK, MAX_NARROW, MAX_THREADS, Engine, engine_for, inputs_finite, table

__all__ = ["BankResult", "FilterBank"]

_KEYS = 5  # purpose of the stream that the keys of filters 1, 2, ... come from


class BankResult:
    """The record of one ``FilterBank.run``: what ``FilterResult`` has, with a leading axis of filters.

    Attributes
    ----------
    increment, ess : (B, T) float64;  resampled : (B, T) bool;  n_unique : (B, T) int64
    log_likelihood : (B,) float64
    mean, variance : (B, T) or (B, T, d) float64, if stored; and whatever else was
    """

    def __init__(self, steps: StepArrays, result: Callable[[int], FilterResult]):
        self.increment, self.ess, self.resampled, self.n_unique = steps
        self.log_likelihood = running_sums(np.zeros(len(self.increment)), self.increment)
        self._result = result
        self._made: dict[int, FilterResult] = {}

    @classmethod
    def of(cls, results: Sequence[FilterResult]) -> BankResult:
        """Of results there are."""
        names = ("increment", "ess", "resampled", "n_unique")
        steps = StepArrays(*(np.array([getattr(r, name) for r in results]) for name in names))
        return cls(steps, results.__getitem__)

    def __reduce__(self):
        return BankResult.of, (self.results,)

    @property
    def results(self) -> list[FilterResult]:
        """The ``FilterResult`` of every filter."""
        return [self[b] for b in range(len(self))]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return np.array([getattr(r, name) for r in self.results])

    def __getitem__(self, b: int) -> FilterResult:
        """The ``FilterResult`` of filter b."""
        b = range(len(self))[b]
        if b not in self._made:
            self._made[b] = self._result(b)
        return self._made[b]

    def __len__(self) -> int:
        return len(self.increment)

    def __repr__(self) -> str:
        best = self.log_likelihood.max()
        steps = self.increment.shape[1]
        return f"<BankResult: {len(self)} filters, {steps} steps, best log_likelihood {best:.6f}>"


class FilterBank:
    """B particle filters.

    Parameters
    ----------
    models : a model, or a sequence of B models
        One model serves all of ``n_filters`` filters.
    n_particles : int
        Of each filter.
    n_filters : int, optional
        B; may be left out with a sequence of models, and must equal its length otherwise. Default 1 for one
        model.
    **keywords
        Those of ``ParticleFilter``: lse, resampling, ess_threshold, rng, dtype, n_threads, on_collapse.

    Raises
    ------
    TypeError, ValueError
        As ``ParticleFilter``; no models, or not ``n_filters`` of them; models of different ``state_dim`` or
        ``input_dim``.
    """

    def __init__(
        self, models: Any, n_particles: int = 1000, *, n_filters: int | None = None, **keywords: Any
    ):
        if isinstance(models, (list, tuple)):
            if n_filters is not None and n_filters != len(models):
                raise ValueError(f"{len(models)} models for n_filters={n_filters}")
            if not models:
                raise ValueError("a bank needs at least one model; the sequence is empty")
            models = list(models)
        else:
            models = [models] * count("n_filters", 1 if n_filters is None else n_filters)
        _check_dimensions(models)
        key = seed_key(keywords.pop("rng", None))
        keys = PhiloxGenerator(key, 0, _KEYS).bits(2 * len(models)).reshape(-1, 2)
        keys[0] = key
        first = ParticleFilter(models[0], n_particles, rng=0, **keywords)
        self.n_particles, self.n_threads, self.dtype = first.n_particles, first.n_threads, first.dtype
        self._make_room(len(models))
        self.filters = [self._member(first, b, model, keys[b]) for b, model in enumerate(models)]

    def _make_room(self, n_filters: int) -> None:
        """The arrays of all filters; particles follow when their dimension is known."""
        size = (n_filters, self.n_particles)
        self._log_w, self._w, self._w_next = (np.empty(size, self.dtype) for _ in range(3))
        self._ancestors = np.empty(size, np.int64)
        self._joint = (
            np.empty(size, self.dtype) if self.dtype == np.float32 else self._ancestors.view(self.dtype)
        )
        self._x: Any = None
        self._x_next: Any = None
        self._ints: Any = None
        self._rows: list[Any] = []  # of each filter: x, x_next, w, w_next, ints
        self._sides = np.zeros((2, n_filters), np.uint8)  # which of the two x, and w, are the present ones
        self._stepper: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are those of the filters."""
        return {name: getattr(self, name) for name in ("n_particles", "n_threads", "dtype", "filters")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_room(len(state["filters"]))
        self.filters = [self._house(pf._twin(), b) for b, pf in enumerate(state["filters"])]
        for pf in self.filters:
            # an engine and open streams have room of their own, which a shallow copy must not share
            pf._engine, pf._streams = copy(pf._engine), Streams(pf._streams.key)
            if pf._x is not None:
                pf._x, pf._x_next = pf._x.copy(), np.empty_like(pf._x)
            pf._ints = None if pf._ints is None else pf._ints.copy()

    def _house(self, pf: ParticleFilter, b: int) -> ParticleFilter:
        """The filter with its weights in row b of the bank's arrays."""
        self._log_w[b], self._w[b] = pf._log_w, pf._w
        pf._log_w, pf._w, pf._w_next = self._log_w[b], self._w[b], self._w_next[b]
        pf._ancestors, pf._joint = self._ancestors[b], self._joint[b]
        return pf

    def _member(self, first: ParticleFilter, b: int, model: Any, key: np.ndarray) -> ParticleFilter:
        pf = first
        if type(model) is not type(first.model):  # checks the model
            pf = ParticleFilter(
                model,
                first.n_particles,
                lse=first.lse,
                resampling=first.resampling,
                ess_threshold=first.ess_threshold,
                rng=0,
                dtype=first.dtype,
                n_threads=first.n_threads,
                on_collapse=first.on_collapse,
                timers=first.timers,
            )
        if pf is first:
            pf = first._twin()
        pf.model, pf._streams = model, Streams(key)
        pf._input_dim = input_dim(model)
        pf._angle_dims = angle_dims(model)
        # the compiled form of one model serves all its filters
        again = first._engine if model is first.model else None
        pf._engine = engine_for(pf) if again is None else Engine(pf, again.compiled)
        return self._house(pf, b)

    def __len__(self) -> int:
        return len(self.filters)

    def __repr__(self) -> str:
        first = self.filters[0].model
        return f"<FilterBank: {len(self)} filters of {self.n_particles} particles, model {first!r}>"

    # ---- what it holds -------------------------------------------------------------------------------------

    def _all(self, name: str) -> np.ndarray:
        return np.array([getattr(pf, name) for pf in self.filters])

    @property
    def particles(self) -> np.ndarray:
        """(B, N) or (B, N, d), a copy."""
        return self._all("particles")

    @property
    def weights(self) -> np.ndarray:
        """(B, N), a copy; each row sums to 1."""
        return self._all("weights")

    @property
    def log_weights(self) -> np.ndarray:
        """(B, N), a copy; each row normalised."""
        return self._all("log_weights")

    @property
    def log_likelihood(self) -> np.ndarray:
        """(B,), nats, since the bank was made."""
        return self._all("log_likelihood")

    @property
    def ess(self) -> np.ndarray:
        """(B,)"""
        return self._all("ess")

    # ---- one step ------------------------------------------------------------------------------------------

    def predict(self, u: Any = None, *, each: bool = False) -> None:
        """``ParticleFilter.predict`` of every filter; with ``each``, u[b] is the input of filter b."""
        for pf, v in zip(self.filters, self._each(u, each), strict=True):
            pf.predict(v)

    def update(self, y: Any, *, each: bool = False) -> StepResult:
        """``ParticleFilter.update`` of every filter: a StepResult of arrays (B,)."""
        results = []
        for b, (pf, v) in enumerate(zip(self.filters, self._each(y, each), strict=True)):
            results.append(_named(b, pf.update, v))
        return StepResult(*(np.array(column) for column in zip(*results, strict=True)))  # type: ignore[arg-type]

    def step(self, y: Any, u: Any = None, *, each: bool = False) -> StepResult:
        """``predict(u)``, then ``update(y)``."""
        self.predict(u, each=each)
        return self.update(y, each=each)

    def _each(self, value: Any, each: bool) -> Sequence[Any]:
        if not each or value is None:
            return [value] * len(self)
        if not hasattr(value, "__len__"):
            raise TypeError(f"with each=True there is a sequence, one element a filter, not {value!r}")
        if len(value) != len(self):
            raise ValueError(
                f"{len(value)} given for {len(self)} filters; with each=True there is one a filter"
            )
        return value

    # ---- a series ------------------------------------------------------------------------------------------

    def run(
        self, observations: Any, inputs: Any = None, *, each: bool = False, store: Any = ("mean", "variance")
    ) -> BankResult:
        """Filter one series with all filters, or one series each.

        Parameters
        ----------
        observations, inputs : as for ``ParticleFilter.run``
            With ``each`` a sequence of B such series; shorter series may be filled up with NaN.
        store : as for ``ParticleFilter.run``

        Raises
        ------
        FilterCollapse, InvalidWeight
            As ``ParticleFilter.run``; the exception's ``filter`` is the index of the filter.
        """
        series, moves = self._each(observations, each), self._each(inputs, each)
        for s in series if each else ():
            if not hasattr(s, "__len__"):
                raise TypeError(f"with each=True there is a series of known length a filter, not {s!r}")
        if each and len({len(s) for s in series}) > 1:
            lengths = ", ".join(str(n) for n in sorted({len(s) for s in series}))
            raise ValueError(f"series of different lengths ({lengths}): fill the shorter ones up with NaN")
        whole = self._run_compiled(observations, inputs, each, store)
        if whole is not None:
            return whole
        if not each and not hasattr(observations, "__len__"):
            series = [list(observations)] * len(self)
        return BankResult.of(
            [
                _named(b, pf.run, y, u, store=store)
                for b, (pf, y, u) in enumerate(zip(self.filters, series, moves, strict=True))
            ]
        )

    def _run_compiled(self, observations, inputs, each, store) -> BankResult | None:
        """All filters in one call; None, nothing done, if they cannot."""
        engines: list[Any] = [pf._engine for pf in self.filters]
        if not all(e is not None and e.whole for e in engines):
            return None
        lead = engines[0].compiled
        kinds = {(e.compiled.functions, e.compiled.params.size, e.compiled.observation_dim) for e in engines}
        recorder = Recorder(store, None)
        names = set(recorder.names)
        if len(kinds) > 1 or recorder.functions or names - {"mean", "variance"}:
            return None
        if any(pf.timers is not None or pf._unique_next or (names and pf._angle_dims) for pf in self.filters):
            return None
        if len({pf._time for pf in self.filters}) > 1:
            return None
        series = observations if each else [observations]
        tables: list[Any] = [table(s, lead.observation_dim) for s in series]
        shifts: Any = None
        if lead.input_dim:
            if inputs is None:
                return None
            shifts = [table(s, lead.input_dim) for s in (inputs if each else [inputs])]
        for part in (tables, shifts):
            if part is not None and (any(t is None for t in part) or len({len(t) for t in part}) > 1):
                return None
        if len(tables[0]) == 0 or (shifts is not None and len(shifts[0]) != len(tables[0])):
            return None
        new = self.filters[0]._x is None
        if shifts is not None and not all(inputs_finite(u, new) for u in shifts):
            return None
        if not all(e._knows(self.filters[0]._time + len(tables[0])) for e in engines):
            return None
        held = []
        try:
            for pf in self.filters:
                if not pf._lock.acquire(False):
                    raise RuntimeError(IN_USE)
                held.append(pf)
            return self._loop(np.array(tables), None if shifts is None else np.array(shifts), names)
        finally:
            for pf in held:
                pf._lock.release()

    def _loop(self, y, u, names) -> BankResult:
        self._settle()
        B, length, d = len(self), y.shape[1], self._x.shape[1]
        out = StepArrays(
            np.zeros((B, length)),
            np.zeros((B, length)),
            np.zeros((B, length), np.bool_),
            np.zeros((B, length), np.int64),
        )
        moments = {name: np.empty((B, length, d)) if name in names else None for name in ("mean", "variance")}
        from_equal = [pf._from_equal for pf in self.filters]
        # In a call, all steps of as many filters as there is time for between two looks at pending signals:
        # each is in the caches for all of its steps.
        steps = max(1, CHUNK * 4 // (self.n_particles * d))  # of one filter
        group = min(B, max(self.n_threads, steps // length))
        steps = max(1, steps // group)
        for first in range(0, B, group):
            last = min(B, first + group)
            for begin in range(0, length, steps):
                end = min(length, begin + steps)
                done, failed = self._advance(y, u, out, moments, begin, end, first, last)
                for k in np.flatnonzero(failed).tolist():
                    self._finish(first + k, begin + int(done[k]), end, y, u, out, moments)
                    self._settle(first + k)

        def result(b: int) -> FilterResult:
            pf, recorder = self.filters[b], Recorder(tuple(sorted(names)), None)
            for name, rows in moments.items():
                if rows is not None:
                    recorder.values[name] = rows[b, :, 0] if pf._scalar else rows[b]
            return pf._result(StepArrays(*(column[b] for column in out)), recorder, None, from_equal[b])

        return BankResult(out, result)

    def _settle(self, only: int | None = None) -> None:
        """Particles, weights and integer weights of every filter (or one) in the arrays of the bank; new
        particles are drawn.
        """
        if self._x is None:
            first = self.filters[0]
            if first._x is None:
                first._draw_initial(None)
            shape = (len(self), *first._x.shape)
            self._x, self._x_next = np.empty(shape, self.dtype), np.empty(shape, self.dtype)
            self._ints = np.empty((shape[0], shape[2]), np.uint32 if shape[2] <= MAX_NARROW else np.uint64)
            columns = (self._x, self._x_next, self._w, self._w_next, self._ints)
            self._rows = list(zip(*columns, strict=True))
        rng: Any = None
        for b in range(len(self)) if only is None else (only,):
            pf, (x, x_next, w, w_next, ints) = self.filters[b], self._rows[b]
            if pf._x is None:
                if rng is None:  # one serves all: a Generator costs more than the numbers of a small filter
                    rng = PhiloxGenerator(pf._streams.key, 0, INITIAL)
                    start = rng.bit_generator.state
                rng.change_key(pf._streams.key, start)
                pf._draw_initial(None, rng, (x, x_next))
            if pf._x is not x_next and pf._x is not x:
                x[:] = pf._x
                pf._x = x
            if pf._w is not w_next and pf._w is not w:
                w[:] = pf._w
                pf._w = w
            self._sides[:, b] = pf._x is x_next, pf._w is w_next
            pf._x_next, pf._w_next = x if pf._x is x_next else x_next, w if pf._w is w_next else w_next
            if pf._ints is not None and pf._ints is not ints:
                ints[:] = pf._ints
                pf._ints = ints

    def _advance(self, y, u, out, moments, begin, end, first, last):
        """Steps begin .. end - 1 of filters first .. last - 1: (steps done, whether the next was predicted
        but not weighed).
        """
        filters = self.filters
        if self._stepper is None:
            engines: list[Any] = [pf._engine for pf in filters]
            c = engines[0].compiled
            self._stepper = _cpu.Stepper(
                c.functions,
                np.array([engine.compiled.params for engine in engines]),
                np.array([pf._streams.key for pf in filters]),
                self.n_particles,
                c.state_dim or 1,
                c.noise_dim,
                c.observation_dim,
                c.input_dim,
                self.dtype,
                filters[0].lse,
                filters[0].resampling if isinstance(filters[0].resampling, str) else "",
                filters[0]._resample_below,
                min(self.n_threads, MAX_THREADS),
            )
        resample_next = np.array([pf._resample_next for pf in filters], np.uint8)
        have_ints = np.array([pf._ints is not None for pf in filters], np.uint8)
        from_equal = np.array([pf._from_equal for pf in filters], np.uint8)
        ess = np.array([pf._ess for pf in filters])
        done, failed = self._stepper.run(
            self._x,
            self._x_next,
            self._log_w,
            self._joint,
            self._w,
            self._w_next,
            self._ancestors,
            self._ints,
            filters[first]._time,
            resample_next,
            have_ints,
            from_equal,
            *self._sides,
            ess,
            y,
            u,
            out.increment,
            out.ess,
            out.resampled.view(np.uint8),
            out.n_unique,
            *moments.values(),
            begin,
            end,
            first,
            last,
        )
        whole = not failed.any()
        if whole:
            sums = running_sums(
                [pf._log_likelihood for pf in filters[first:last]], out.increment[first:last, begin:end]
            )
        sides, flags = self._sides.tolist(), (resample_next.tolist(), from_equal.tolist(), have_ints.tolist())
        steps, stops, sizes = done.tolist(), failed.tolist(), ess.tolist()
        for b in range(first, last):
            pf, (x, x_next, w, w_next, ints), made = filters[b], self._rows[b], steps[b - first]
            pf._x, pf._x_next = (x_next, x) if sides[0][b] else (x, x_next)
            pf._w, pf._w_next = (w_next, w) if sides[1][b] else (w, w_next)
            pf._time += made + stops[b - first]
            pf._resample_next, pf._from_equal = bool(flags[0][b]), bool(flags[1][b])
            pf._ints = ints if flags[2][b] else None
            pf._ess = sizes[b]
            pf._resampled, pf._n_unique = self._stepper.last(b)
            pf._collapsed = False
            if whole:
                pf._log_likelihood = float(sums[b - first])
            else:
                increments = out.increment[b, begin : begin + made]
                pf._log_likelihood = running_sum(pf._log_likelihood, increments)
        return done, failed

    def _finish(self, b, k, end, y, u, out, moments) -> None:
        """Filter b, which stopped at step k with nothing but impossible weights, up to step `end`."""
        pf = self.filters[b]
        rows, shifts = y[b if len(y) > 1 else 0], None if u is None else u[b if len(u) > 1 else 0]
        store = tuple(name for name, values in moments.items() if values is not None)
        result = _named(b, pf._update, rows[k] if rows.shape[1] > 1 else float(rows[k, 0]), None)
        for column, value in zip(out, result, strict=True):
            column[b, k] = value
        summary = Recorder(store, 1)
        if store:
            summary.record(pf.particles, pf.weights, pf._log_w, pf._angle_dims, 0)
        for name in store:
            moments[name][b, k] = summary.values[name][0]
        if k + 1 < end:
            rest = _named(
                b, pf.run, rows[k + 1 : end], None if shifts is None else shifts[k + 1 : end], store=store
            )
            for name, column in zip(("increment", "ess", "resampled", "n_unique"), out, strict=True):
                column[b, k + 1 : end] = getattr(rest, name)
            for name in store:
                moments[name][b, k + 1 : end] = getattr(rest, name).reshape(end - k - 1, -1)


def _check_dimensions(models: list[Any]) -> None:
    """The particles of a bank are one array: ValueError unless all models have the same dimensions.

    Those of ``from_functions`` learn theirs from their first particles.
    """
    for name in ("state_dim", "input_dim"):
        known = {
            b: getattr(model, name, None)
            for b, model in enumerate(models)
            if not (name == "state_dim" and isinstance(model, FunctionModel))
        }
        lead = next(iter(known), 0)
        for b, dim in known.items():
            if (
                (dim or 0) != (known[lead] or 0)
                or (dim is None) != (known[lead] is None)
                and name == "state_dim"
            ):
                raise ValueError(
                    f"the models of a bank must have the same {name}: model {lead} has {known[lead]}, "
                    f"model {b} has {dim}"
                )


def _named(b: int, call: Any, *arguments: Any, **keywords: Any) -> Any:
    """The call; a failure in it learns which filter it is of."""
    try:
        return call(*arguments, **keywords)
    except (FilterCollapse, InvalidWeight) as error:
        error.filter = b
        raise
