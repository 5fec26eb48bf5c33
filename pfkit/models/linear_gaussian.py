"""Linear Gaussian models: the ones with an exact answer to check a particle filter against."""

from __future__ import annotations

import math

import numpy as np

from .base import StateSpaceModel

__all__ = ["LocalLevel"]


class LocalLevel(StateSpaceModel):
    """A random walk seen through noise (Durbin and Koopman 2012, chapter 2).

        x_0 ~ N(prior_mean, prior_sd^2),  x_t = x_{t-1} + N(0, sigma_level^2),  y_t = x_t + N(0, sigma_obs^2)

    Scalar states, arrays (n,). All four parameters are in the units of the observation; they are standard
    deviations, not variances. ``sigma_level`` and ``prior_sd`` may be 0.
    """

    def __init__(self, sigma_level: float, sigma_obs: float, prior_mean: float = 0.0, prior_sd: float = 1.0):
        for name, value, least in (
            ("sigma_level", sigma_level, "0"),
            ("sigma_obs", sigma_obs, "positive"),
            ("prior_sd", prior_sd, "0"),
        ):
            if not math.isfinite(value) or value < 0 or (least == "positive" and value == 0):
                raise ValueError(f"{name} must be finite and {'> 0' if least == 'positive' else '>= 0'}, not {value!r}")
        if not math.isfinite(prior_mean):
            raise ValueError(f"prior_mean must be finite, not {prior_mean!r}")
        self.sigma_level, self.sigma_obs = float(sigma_level), float(sigma_obs)
        self.prior_mean, self.prior_sd = float(prior_mean), float(prior_sd)
        self._log_scale = -math.log(self.sigma_obs) - 0.5 * math.log(2 * math.pi)

    def initial(self, n, rng):
        x = rng.standard_normal(n)
        x *= self.prior_sd
        x += self.prior_mean
        return x

    def transition(self, x, t, rng):
        noise = rng.standard_normal(x.shape, dtype=x.dtype)
        noise *= self.sigma_level
        noise += x
        return noise

    def log_likelihood(self, y, x, t):
        # scaled before squaring: a residual of any size gives its finite square or -inf, never NaN
        z = np.subtract(y, x, dtype=x.dtype)
        z /= self.sigma_obs
        z *= z
        z *= -0.5
        z += self._log_scale
        return z

    def __repr__(self):
        return (
            f"LocalLevel(sigma_level={self.sigma_level}, sigma_obs={self.sigma_obs}, "
            f"prior_mean={self.prior_mean}, prior_sd={self.prior_sd})"
        )
