"""Where a filter's time goes, measured inside the user's own run.

    with Timers() as t:
        pf.run(y)
    print(t.table())

Six phases: ``propagate`` (the model's transition, its result copied in), ``likelihood`` (the model's
log-likelihood), ``lse`` (the log-sum-exp; for the kernels "fuse" and "int" the one fused pass that gives
weights and ESS too), ``weights`` (what is left of the weighting: adding the log-likelihood, subtracting the
increment, and for kernels that give only a log-sum-exp the exponentials and the ESS), ``resample``
(ancestors), ``gather`` (moving the particles).

Timers that are off cost one look-up a step. On, they stay under 1 % of the run from 10^4 particles on:
filters of 160 000 particles and more are timed at every step, smaller ones at one step in 160 000 / N, in 16
at most, spread so that no rhythm of the filter falls in step with them; series of compiled filters, timed in
C, at one step in 16. Shares and times per particle are those of the steps timed. With ``n_threads``, the
times of all threads add up.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, NamedTuple

__all__ = ["PHASES", "Timers", "TimerRow", "active"]

#: Particles from which on every step is timed; and the longest mean distance of timed steps below.
FULL = 160_000
SPARSEST = 16

PHASES = ("propagate", "likelihood", "lse", "weights", "resample", "gather")

_active: ContextVar[Timers | None] = ContextVar("pfkit_timers", default=None)


class TimerRow(NamedTuple):
    """One phase: how often timed, mean nanoseconds per particle, share of the timed total (0 to 1)."""

    phase: str
    calls: int
    ns_per_particle: float
    share: float


def active() -> Timers | None:
    """The innermost Timers whose ``with`` block this thread is in, or None."""
    return _active.get()


class Timers:
    """Accumulates nanoseconds, calls and particles by phase.

    Use as a context manager (every filter run inside the block is timed), or hand it to
    ``ParticleFilter(..., timers=t)``. Blocks nest; the innermost is used. Times add up over runs until
    ``reset()``.

    Parameters
    ----------
    every : int, optional
        Time one step in so many; 1: each one. By default, as few as keep the cost under 1 %.
    """

    def __init__(self, every: int | None = None) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"every must be an int >= 1 or None, not {every!r}")
        self.every = every
        self.due: int = 1
        self._tokens: list[Token] = []
        self.reset()

    def turn(self, n_particles: int, counted: bool = False) -> Timers | None:
        """These timers if a filter of this size is to time the step it begins, else None.

        A caller in a hurry adds 1 to ``steps`` itself and asks, with ``counted``, only when ``due`` is
        reached.
        """
        if not counted:
            self.steps += 1
        self._on = self.steps >= self.due
        if self._on:
            self.steps_timed += 1
            every = self.every or min(-(-FULL // n_particles), SPARSEST)
            # The mean distance is `every`; multiples of the golden ratio modulo 1 spread it evenly, in step
            # with no period.
            jitter = (self.steps_timed * 0.6180339887498949) % 1.0
            self.due = self.steps + 1 + int(2 * (every - 1) * jitter + 0.5)
        return self if self._on else None

    def again(self) -> Timers | None:
        """The answer of the last ``turn``, for the second half of its step."""
        return self if self._on else None

    def reset(self) -> None:
        """Forget everything measured."""
        self._total: dict[str, list[int]] = {}
        self.steps = self.steps_timed = 0
        self._on = False
        self.due = 1

    def turns(self, n_particles: int, steps: int) -> Any:
        """Which of the next ``steps`` steps to time, as ``turn`` says for each of them: uint8, (steps,)."""
        import numpy as np

        chosen, begin = np.zeros(steps, np.uint8), self.steps
        while (k := self.due - begin - 1) < steps:
            k = max(k, self.steps - begin)
            chosen[k] = 1
            self.steps = begin + k
            self.turn(n_particles)
        self.steps = begin + steps
        return chosen

    def add(self, phase: str, nanoseconds: int, particles: int, calls: int = 1) -> None:
        """Account ``calls`` calls of ``phase`` over ``particles`` particles in all."""
        entry = self._total.get(phase)
        if entry is None:
            entry = self._total[phase] = [0, 0, 0]
        entry[0] += calls
        entry[1] += nanoseconds
        entry[2] += particles

    def __enter__(self) -> Timers:
        self._tokens.append(_active.set(self))
        return self

    def __exit__(self, *exc: object) -> None:
        _active.reset(self._tokens.pop())

    @property
    def total_seconds(self) -> float:
        """Sum over the phases."""
        return sum(entry[1] for entry in self._total.values()) * 1e-9

    def rows(self) -> list[TimerRow]:
        """The phases that ran, the six above first, in that order."""
        order = [p for p in PHASES if p in self._total] + [p for p in self._total if p not in PHASES]
        total = sum(entry[1] for entry in self._total.values())
        return [
            TimerRow(p, calls, ns / particles if particles else 0.0, ns / total if total else 0.0)
            for p in order
            for calls, ns, particles in [self._total[p]]
        ]

    def table(self) -> str:
        """The rows as text, one phase a line, with a last line for the total."""
        lines = [f"{'phase':<12}{'calls':>9}{'ns/particle':>14}{'share':>9}"]
        lines += [
            f"{row.phase:<12}{row.calls:>9}{row.ns_per_particle:>14.2f}{100 * row.share:>8.1f}%"
            for row in self.rows()
        ]
        steps = f"{self.steps_timed} of {self.steps} steps timed"
        lines.append(f"{'total':<12}{self.total_seconds:>21.3g} s, {steps}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Timers: {self.total_seconds:.3g} s in {len(self._total)} phases>"
