"""Stochastic volatility: returns whose log-variance is a hidden autoregression.

    x_0 ~ N(mu, sigma^2 / (1 - rho^2))              (the stationary law)
    x_t = mu + rho (x_{t-1} - mu) + sigma e_t
    y_t ~ N(0, exp(x_t))

Taylor (1982) in the form of Kim, Shephard and Chib (1998). Written with y ~ N(0, beta^2 exp(h)) and h around
zero, it is the same model with mu = 2 log beta.
"""

from __future__ import annotations

import math

import numpy as np

from ._arguments import finite, positive, scalar_state_dim
from ._coordinates import log_normal
from ._scalar import ScalarState, scalar_observation
from .base import StateSpaceModel
from .compiled import CompiledModel

_LOG_2PI = math.log(2.0 * math.pi)


class StochasticVolatility(ScalarState, StateSpaceModel):
    """Stochastic volatility with a stationary AR(1) log-variance.

    Parameters
    ----------
    mu : mean of the log-variance x, in nats (y in a unit u has variance exp(x) u^2)
    rho : autoregression, -1 < rho < 1
    sigma : standard deviation of the innovations of x, > 0
    state_dim : None for particles (n,), 1 for particles (n, 1)

    `proposal` draws from the first-order expansion of Pitt and Shephard (1999, section 3.3): log g(y | x) is
    concave in x, so its tangent at the predicted mean bounds it from above and the proposal weights are
    bounded. `log_predictive` is the integral of that tangent: an approximation, which an auxiliary filter
    corrects for.

    Raises
    ------
    ValueError, TypeError
        A parameter is not finite or out of its range.
    """

    def __init__(self, mu: float, rho: float, sigma: float, *, state_dim: int | None = None):
        self.mu = finite("mu", mu)
        self.rho = finite("rho", rho)
        if not abs(self.rho) < 1.0:
            raise ValueError(f"rho must lie in (-1, 1) for the start to be stationary, got {rho!r}")
        self.sigma = positive("sigma", sigma)
        self.state_dim = scalar_state_dim(state_dim)

    @property
    def stationary_sd(self) -> float:
        """Standard deviation of x_0."""
        return self.sigma / math.sqrt((1.0 - self.rho) * (1.0 + self.rho))

    def initial(self, n, rng):
        return self.mu + self.stationary_sd * rng.standard_normal(self._shape(n))

    def transition(self, x, t, rng):
        return self._mean(x) + self.sigma * rng.standard_normal(x.shape)

    def log_likelihood(self, y, x, t):
        return _log_g(scalar_observation(y), self._vector(x))

    def compiled(self):
        params = (self.mu * (1.0 - self.rho), self.rho, self.sigma, -0.5 * _LOG_2PI)
        return CompiledModel.ready("volatility", params, state_dim=self.state_dim)

    def log_transition(self, x, x_prev, t):
        """(n,) float64, nats: log p(x_t = x | x_{t-1} = x_prev)."""
        return log_normal(self._vector(x) - self._mean(self._vector(x_prev)), self.sigma)

    def log_predictive(self, y, x_prev, t):
        """(n,) float64, nats: log p(y_t = y | x_{t-1} = x_prev) to first order, at or above the exact one."""
        y = scalar_observation(y)
        m = self._mean(self._vector(x_prev))
        # log of the integral of N(x; m, sigma^2) g(m) exp(slope (x - m))
        return _log_g(y, m) + 0.5 * (self.sigma * _slope(y, m)) ** 2

    def proposal(self, y, x_prev, t, rng):
        """Draws of x_t, shaped like x_prev, from its transition moved toward y, and the log of
        p(x_t | x_{t-1}) over the density drawn from, (n,), nats."""
        mean = self._mean(x_prev)
        shift = self.sigma**2 * _slope(scalar_observation(y), mean)
        step = shift + self.sigma * rng.standard_normal(x_prev.shape)
        # log N(step; 0, sigma^2) - log N(step; shift, sigma^2)
        log_ratio = shift * (0.5 * shift - step) / self.sigma**2
        return mean + step, self._vector(log_ratio)

    def _mean(self, x):
        return self.mu + self.rho * (np.asarray(x, dtype=np.float64) - self.mu)


def _scaled_square(y: float, x):
    """y^2 exp(-x) by one exponential: inf only where the density is 0, and 0 (never 0 * inf) where y is 0."""
    if y == 0.0:
        return np.zeros(np.shape(x))
    with np.errstate(over="ignore"):
        return np.exp(2.0 * math.log(abs(y)) - x)


def _log_g(y: float, x):
    """log N(y; 0, exp(x))."""
    return -0.5 * (_LOG_2PI + x + _scaled_square(y, x))


def _slope(y: float, x):
    """Derivative of log N(y; 0, exp(x)) in x."""
    return 0.5 * (_scaled_square(y, x) - 1.0)
