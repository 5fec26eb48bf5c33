"""The two ways a weighting step can fail, as exceptions that say where.

``FilterCollapse``  every particle is impossible under the observation (all log-weights -inf).
``InvalidWeight``   the model returned NaN or +inf for some particle.

Both derive from ``ArithmeticError``. A collapse obeys the filter's ``on_collapse``; an invalid weight is a
fault of the model and is always raised. After either, the filter still holds the predicted particles with the
weights they had before the observation, so a caller may go on with another observation.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

__all__ = ["CollapseWarning", "FilterCollapse", "InvalidWeight"]


class FilterCollapse(ArithmeticError):
    """All particles have zero likelihood under one observation.

    Attributes
    ----------
    step : int
        Index of the observation, counted from 0.
    observation : object
        The observation, as handed to the filter.
    n_dead : int
        Number of particles with log-weight -inf: all of them.
    result : FilterResult or None
        Set by ``run``: the record of the steps before this one.
    filter : int or None
        Set by a bank: which of its filters failed.
    """

    result: Any = None
    filter: int | None = None

    def __init__(self, step: int, observation: Any, n_dead: int):
        self.step, self.observation, self.n_dead = step, observation, n_dead
        super().__init__(
            f"step {step}: all {n_dead} particles have zero likelihood under the observation "
            f"{observation!r}; widen the observation model (a small outlier term), raise n_particles, or set "
            "on_collapse='warn' or 'keep' to record an increment of -inf and go on"
        )

    def __reduce__(self):
        return type(self), (self.step, self.observation, self.n_dead), self.__dict__


class InvalidWeight(ArithmeticError):
    """The model's log-likelihood is NaN or +inf for a particle.

    Attributes
    ----------
    step : int
        Index of the observation, counted from 0.
    observation : object
        The observation, as handed to the filter.
    particle : int
        Index of the first offending particle.
    value : float
        The offending value.
    state : float or numpy.ndarray
        That particle's state, shape (d,), or a float for scalar states.
    result : FilterResult or None
        Set by ``run``: the record of the steps before this one.
    filter : int or None
        Set by a bank: which of its filters failed.
    """

    result: Any = None
    filter: int | None = None

    def __init__(self, step: int, observation: Any, particle: int, value: float, state: Any):
        self.step, self.observation, self.particle = step, observation, particle
        self.value, self.state = value, state
        super().__init__(
            f"step {step}: the model's log-likelihood of particle {particle} is {value} (expected a finite "
            f"number or -inf); its state is {state!r}, the observation is {observation!r}"
        )

    def __reduce__(self):
        arguments = self.step, self.observation, self.particle, self.value, self.state
        return type(self), arguments, self.__dict__


class CollapseWarning(RuntimeWarning):
    """Issued instead of ``FilterCollapse`` under ``on_collapse="warn"``."""


def warn_collapse(error: FilterCollapse) -> None:
    """Issue ``error`` as a warning, at the line outside pfkit that led to it."""
    level = 1
    frame = sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pfkit."):
        frame, level = frame.f_back, level + 1
    warnings.warn(str(error), CollapseWarning, stacklevel=level)
