"""What a model is: where particles start, how they move, how well an observation fits each of them.

    x_0 ~ initial,  y_0 | x_0,  x_t ~ transition(x_{t-1}),  y_t | x_t ~ exp(log_likelihood)

The first observation belongs to the initial draw: nothing moves before it. Every method works on a whole
block of particles. A scalar state is an array (n,), a state of d coordinates an array (n, d); (n, 1) is a
state of one coordinate and stays two-dimensional throughout. A model may be a subclass of
``StateSpaceModel``, three plain functions given to ``from_functions``, or any object with these three
methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["FunctionModel", "StateSpaceModel", "from_functions"]


class StateSpaceModel:
    """Base class of models; override the three methods.

    Attributes
    ----------
    state_dim : int or None
        d for states of shape (n, d); None for scalar states of shape (n,).
    input_dim : int
        Greater than 0 if ``transition`` takes an input ``u`` last (odometry, controls, a time step).
    angle_dims : tuple of int
        Coordinates that are angles in rad: means and variances of these are circular.

    Notes
    -----
    ``rng`` is a ``numpy.random.Generator`` positioned for this step: draw only from it, and results are the
    same from run to run, and after a save and a load. Do not keep it: it is rewound for a later step.
    ``transition`` may work in place on ``x`` and return it; ``log_likelihood`` gets a read-only ``x``. What
    is returned is copied by the filter.
    """

    state_dim: int | None = None
    input_dim: int = 0
    angle_dims: tuple[int, ...] = ()

    def initial(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n draws of x_0: (n,) or (n, state_dim)."""
        raise NotImplementedError(f"{type(self).__name__} must define initial(n, rng)")

    def transition(self, x: np.ndarray, t: int, rng: np.random.Generator, *u: Any) -> np.ndarray:
        """Draws of x_t given x at t - 1, the shape of ``x``; ``u`` comes last if ``input_dim`` > 0."""
        raise NotImplementedError(f"{type(self).__name__} must define transition(x, t, rng[, u])")

    def log_likelihood(self, y: Any, x: np.ndarray, t: int) -> np.ndarray:
        """log p(y_t = y | x_t) of each particle, (n,), in nats: finite or -inf, constants included."""
        raise NotImplementedError(f"{type(self).__name__} must define log_likelihood(y, x, t)")

    def compiled(self) -> Any:
        """The same model as C functions, a ``CompiledModel``, or None (the default): Python only."""
        return None


class FunctionModel(StateSpaceModel):
    """A model made of three functions; see ``from_functions``."""

    def __init__(self, initial: Callable, transition: Callable, log_likelihood: Callable, input_dim: int):
        self._initial = initial
        self.transition = transition  # type: ignore[method-assign]
        self.log_likelihood = log_likelihood  # type: ignore[method-assign]
        self.input_dim = input_dim

    def initial(self, n: int, rng: np.random.Generator) -> np.ndarray:
        x = np.asarray(self._initial(n, rng))
        self.state_dim = x.shape[1] if x.ndim == 2 else None
        return x

    def __repr__(self) -> str:
        return f"from_functions({self._initial!r}, {self.transition!r}, {self.log_likelihood!r})"


def from_functions(
    initial: Callable, transition: Callable, log_likelihood: Callable, *, input_dim: int = 0
) -> FunctionModel:
    """A model from three plain functions.

    Parameters
    ----------
    initial : callable(n, rng) -> (n,) or (n, d)
        Its first result decides whether the state is scalar and what ``state_dim`` is (None until then).
    transition : callable(x, t, rng) -> like x, or callable(x, t, rng, u) if ``input_dim`` > 0
    log_likelihood : callable(y, x, t) -> (n,)
        Nats.
    input_dim : int
        Length of the input ``u`` of a step; 0: no input.

    Raises
    ------
    TypeError, ValueError
        What is not callable; an ``input_dim`` that is no int >= 0.

    Examples
    --------
    >>> model = from_functions(
    ...     lambda n, rng: rng.normal(size=n),
    ...     lambda x, t, rng: 0.9 * x + rng.normal(size=x.shape),
    ...     lambda y, x, t: -0.5 * (y - x) ** 2 - 0.9189385332046727)
    """
    for name, function in (
        ("initial", initial),
        ("transition", transition),
        ("log_likelihood", log_likelihood),
    ):
        if not callable(function):
            raise TypeError(f"{name} must be callable, not {function!r}")
    if isinstance(input_dim, bool) or not isinstance(input_dim, (int, np.integer)):
        raise TypeError(f"input_dim must be an int, not {input_dim!r}")
    if input_dim < 0:
        raise ValueError(f"input_dim must be >= 0, not {input_dim}")
    return FunctionModel(initial, transition, log_likelihood, int(input_dim))
