"""Theta-logistic population growth: a log-abundance that grows slower the more there are.

    x_0 ~ N(prior_mean, prior_sd^2)
    x_t = x_{t-1} + tau0 - tau1 exp(tau2 x_{t-1}) + sigma_x e_t
    y_t ~ N(x_t, sigma_y^2)

The theta-Ricker model of Polansky, De Valpine, Lloyd-Smith and Getz (2009) with noise on both sides, in the
parameters of Peters, Hosack and Hayes (2010).
"""

from __future__ import annotations

import math

import numpy as np

from ._arguments import finite, non_negative, positive, scalar_state_dim
from ._coordinates import log_normal
from ._scalar import ScalarState, scalar_observation
from .base import StateSpaceModel
from .compiled import CompiledModel


class ThetaLogistic(ScalarState, StateSpaceModel):
    """Theta-logistic growth of a log-abundance x, observed with Gaussian noise.

    Parameters
    ----------
    tau0 : growth rate at low abundance, nats per step
    tau1, tau2 : density dependence: growth is tau0 - tau1 exp(tau2 x) nats per step
    sigma_x : standard deviation of the process noise, nats, >= 0
    sigma_y : standard deviation of the observation noise, in the unit of y (nats), > 0
    prior_mean, prior_sd : of x_0, nats; prior_sd >= 0
    state_dim : None for particles (n,), 1 for particles (n, 1)

    Given x_{t-1} the model is linear and Gaussian in (x_t, y_t), so `proposal` and `log_predictive` are
    exact. `log_transition` needs sigma_x > 0.

    Raises
    ------
    ValueError, TypeError
        A parameter is not finite or out of its range.
    """

    def __init__(
        self,
        tau0: float = 0.15,
        tau1: float = 0.12,
        tau2: float = 0.1,
        sigma_x: float = 0.47,
        sigma_y: float = 0.39,
        prior_mean: float = 0.0,
        prior_sd: float = 1.0,
        *,
        state_dim: int | None = None,
    ):
        self.tau0 = finite("tau0", tau0)
        self.tau1 = finite("tau1", tau1)
        self.tau2 = finite("tau2", tau2)
        self.sigma_x = non_negative("sigma_x", sigma_x)
        self.sigma_y = positive("sigma_y", sigma_y)
        self.prior_mean = finite("prior_mean", prior_mean)
        self.prior_sd = non_negative("prior_sd", prior_sd)
        self.state_dim = scalar_state_dim(state_dim)

    def initial(self, n, rng):
        return self.prior_mean + self.prior_sd * rng.standard_normal(self._shape(n))

    def transition(self, x, t, rng):
        return self._mean(x) + self.sigma_x * rng.standard_normal(x.shape)

    def log_likelihood(self, y, x, t):
        return log_normal(scalar_observation(y) - self._vector(x), self.sigma_y)

    def compiled(self):
        log_scale = -math.log(self.sigma_y) - 0.5 * math.log(2.0 * math.pi)
        params = (self.tau0, self.tau1, self.tau2, self.sigma_x, 1.0 / self.sigma_y, log_scale)
        return CompiledModel.ready("theta", params, state_dim=self.state_dim)

    def log_transition(self, x, x_prev, t):
        """(n,) float64, nats: log p(x_t = x | x_{t-1} = x_prev). ValueError if sigma_x is 0."""
        if self.sigma_x == 0.0:
            raise ValueError("log_transition needs sigma_x > 0: without it there is no density")
        return log_normal(self._vector(x) - self._mean(self._vector(x_prev)), self.sigma_x)

    def log_predictive(self, y, x_prev, t):
        """(n,) float64, nats: log p(y_t = y | x_{t-1} = x_prev), exact."""
        sd = math.hypot(self.sigma_x, self.sigma_y)
        return log_normal(scalar_observation(y) - self._mean(self._vector(x_prev)), sd)

    def proposal(self, y, x_prev, t, rng):
        """Draws from p(x_t | x_{t-1} = x_prev, y_t = y), shaped like x_prev, and the log of p(x_t | x_{t-1})
        over the density drawn from, (n,), nats."""
        y = scalar_observation(y)
        mean = self._mean(x_prev)
        total = self.sigma_x**2 + self.sigma_y**2
        sd = self.sigma_x * self.sigma_y / math.sqrt(total)
        x = mean + self.sigma_x**2 / total * (y - mean) + sd * rng.standard_normal(x_prev.shape)
        # f / q = p(y | x_prev) / p(y | x), whatever sigma_x is
        log_ratio = log_normal(y - mean, math.sqrt(total)) - log_normal(y - x, self.sigma_y)
        return x, self._vector(log_ratio)

    def _mean(self, x):
        x = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore"):  # a state that runs away becomes -inf or inf, of likelihood 0
            return x + self.tau0 - self.tau1 * np.exp(self.tau2 * x)
