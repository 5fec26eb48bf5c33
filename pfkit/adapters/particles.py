"""Run an unchanged ``StateSpaceModel`` of the package `particles` with pfkit's filters.

    from particles import state_space_models as ssm
    pf = pfkit.ParticleFilter(from_particles(ssm.StochVol(mu=-1.0, rho=0.9, sigma=0.3)), 10_000, lse="int")
    pf.run(data)

The model's own methods are called, on whole blocks of particles; all the rest of the step is compiled.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pfkit.models.base import StateSpaceModel

__all__ = ["from_particles"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class _Adapted(StateSpaceModel):
    """x_0 ~ PX0(), x_t ~ PX(t, xp), y_t ~ PY(t, xp, x); PY is given xp = None."""

    def __init__(self, model: Any):
        self.model = model
        dim = getattr(model.PX0(), "dim", 1)
        self.state_dim = None if dim == 1 else int(dim)

    def initial(self, n, rng):
        return _draw(self.model.PX0(), n, rng)

    def transition(self, x, t, rng):
        return _draw(self.model.PX(t, x), len(x), rng)

    def log_likelihood(self, y, x, t):
        return _log_density(self.model.PY(t, None, x), y)

    def __repr__(self) -> str:
        return f"from_particles({self.model!r})"


def _draw(law: Any, n: int, rng: np.random.Generator) -> np.ndarray:
    """n draws: of normal laws from ``rng`` directly; of others from NumPy's global generator, which
    `particles` uses, seeded from ``rng`` for the moment and put back as it was.
    """
    if _is_normal(law):
        x = rng.standard_normal(n)
        x *= law.scale
        x += law.loc
        return x
    state = np.random.get_state()
    try:
        np.random.seed(rng.integers(0, 2**32, size=8))
        return np.asarray(law.rvs(size=n))
    finally:
        np.random.set_state(state)


def _log_density(law: Any, y: Any) -> np.ndarray:
    """law.logpdf(y); that of a normal law without the checks that take most of its time."""
    if not _is_normal(law):
        return law.logpdf(y)
    # in place: fresh arrays of this size cost more than the arithmetic
    z = np.empty(np.broadcast_shapes(np.shape(y), np.shape(law.loc), np.shape(law.scale)))
    np.subtract(y, law.loc, out=z)
    z /= law.scale
    z *= z
    z *= -0.5
    z -= np.log(law.scale)
    z -= _HALF_LOG_2PI
    return z


def _is_normal(law: Any) -> bool:
    return type(law).__module__ == "particles.distributions" and type(law).__name__ == "Normal"


def from_particles(model: Any) -> StateSpaceModel:
    """A `particles` model as a pfkit model.

    Parameters
    ----------
    model : particles.state_space_models.StateSpaceModel
        Or any object with its methods PX0(), PX(t, xp) and PY(t, xp, x). PY must not need xp, the state
        before: pfkit's likelihood sees only the present one, and hands over None.

    Raises
    ------
    TypeError
        A method is missing.
    """
    for method in ("PX0", "PX", "PY"):
        if not callable(getattr(model, method, None)):
            raise TypeError(f"a model of `particles` has methods PX0, PX and PY; {model!r} has no {method}")
    return _Adapted(model)
