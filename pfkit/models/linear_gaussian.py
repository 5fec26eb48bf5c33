"""Linear Gaussian models: the ones with an exact answer to check a particle filter against."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

import pfkit_ext._cpu as _cpu

from ._arguments import covariance, factor, finite, is_singular, matrix, non_negative, positive
from ._coordinates import NormalDensity, apply_matrix, draw_normal
from .base import StateSpaceModel
from .compiled import CompiledModel

__all__ = ["LinearGaussian", "LocalLevel"]

Array = NDArray[np.float64]


class LocalLevel(StateSpaceModel):
    """A random walk seen through noise (Durbin and Koopman 2012, chapter 2).

        x_0 ~ N(prior_mean, prior_sd^2),  x_t = x_{t-1} + N(0, sigma_level^2),  y_t = x_t + N(0, sigma_obs^2)

    Scalar states, arrays (n,). All four parameters are in the units of the observation; they are standard
    deviations, not variances. ``sigma_level`` and ``prior_sd`` may be 0.
    """

    def __init__(self, sigma_level: float, sigma_obs: float, prior_mean: float = 0.0, prior_sd: float = 1.0):
        self.sigma_level = non_negative("sigma_level", sigma_level)
        self.sigma_obs = positive("sigma_obs", sigma_obs)
        self.prior_mean = finite("prior_mean", prior_mean)
        self.prior_sd = non_negative("prior_sd", prior_sd)
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
        if np.ndim(y) and np.size(y) != 1:  # (n,) would pass for one observation a particle
            raise ValueError(f"observation must be one number, got shape {np.shape(y)}")
        # scaled before squaring, a residual of any size gives its finite square or -inf, never NaN
        with np.errstate(over="ignore"):
            z = np.subtract(y, x, dtype=x.dtype)
            z /= self.sigma_obs
            z *= z
        z *= -0.5
        z += self._log_scale
        return z

    def compiled(self):
        params = (self.sigma_level, 1.0 / self.sigma_obs, self._log_scale)
        return CompiledModel.ready("local_level", params, state_dim=None)

    def __repr__(self):
        return (
            f"LocalLevel(sigma_level={self.sigma_level}, sigma_obs={self.sigma_obs}, "
            f"prior_mean={self.prior_mean}, prior_sd={self.prior_sd})"
        )


class LinearGaussian(StateSpaceModel):
    """Linear-Gaussian model of any dimension: `pfkit.filters.kalman` has its exact answers.

        x_0 ~ N(prior_mean, prior_cov)
        x_t = F x_{t-1} + N(0, transition_cov)
        y_t = H x_t + N(0, observation_cov)

    Parameters
    ----------
    transition_matrix : F, (d, d); or a number: scalar states, particles of shape (n,)
    transition_cov : (d, d), symmetric positive semi-definite; all zero is a static or deterministic state
    observation_matrix : H, (p, d) for observations of shape (p,); or (d,), or a number, for scalar
    observations
    observation_cov : (p, p), symmetric positive definite; a number for scalar observations
    prior_mean : (d,); a number for scalar states
    prior_cov : (d, d), symmetric positive semi-definite

    A 1 x 1 `transition_matrix` gives particles of shape (n, 1). NaN components of an observation are missing:
    the others are used with their own rows of H and block of `observation_cov`.

    Proposal and predictive are the exact conditionals p(x_t | x_{t-1}, y_t) and p(y_t | x_{t-1}) (Doucet,
    Godsill and Andrieu 2000, section II.D). `log_transition` needs a positive definite `transition_cov`.

    Raises
    ------
    ValueError, TypeError
        A parameter is not finite, has the wrong shape, or is not a covariance.
    """

    def __init__(
        self,
        transition_matrix: ArrayLike,
        transition_cov: ArrayLike,
        observation_matrix: ArrayLike,
        observation_cov: ArrayLike,
        prior_mean: ArrayLike,
        prior_cov: ArrayLike,
    ):
        scalar_state = np.ndim(transition_matrix) == 0
        self.scalar_observation = np.ndim(observation_matrix) < 2
        if scalar_state and not self.scalar_observation:
            raise ValueError("a scalar transition_matrix needs a scalar observation_matrix (or use 1 x 1)")
        square = np.atleast_2d if scalar_state else np.asarray
        self.transition_matrix = matrix("transition_matrix", square(transition_matrix), (None, None))
        d = self.transition_matrix.shape[1]
        self.transition_matrix = matrix("transition_matrix", self.transition_matrix, (d, d))
        self.transition_cov = covariance("transition_cov", square(transition_cov), d)
        self.prior_mean = matrix("prior_mean", np.atleast_2d(np.asarray(prior_mean)), (1, d))[0]
        self.prior_cov = covariance("prior_cov", square(prior_cov), d)
        rows = np.atleast_2d if self.scalar_observation else np.asarray
        self.observation_matrix = matrix("observation_matrix", rows(observation_matrix), (None, d))
        p = self.observation_matrix.shape[0]
        self.observation_cov = covariance("observation_cov", rows(observation_cov), p, definite=True)
        self.state_dim = None if scalar_state else d
        self._transition_factor = factor(self.transition_cov)
        self._prior_factor = factor(self.prior_cov)
        self._transition_density: NormalDensity | None = None
        self._complete = _ObservedPart(self, np.ones(p, dtype=bool))
        self._observed: dict[tuple[bool, ...], _ObservedPart] = {}

    def initial(self, n, rng):
        return self._lower(draw_normal(self._prior_factor, n, rng) + self.prior_mean)

    def transition(self, x, t, rng):
        x = self._lift(x)
        mean = apply_matrix(self.transition_matrix, x)
        return self._lower(mean + draw_normal(self._transition_factor, len(x), rng))

    def log_likelihood(self, y, x, t):
        y, part = self._observation(y)
        return part.density.log_pdf(y - apply_matrix(part.matrix, self._lift(x)))

    def compiled(self):
        p, d = self.observation_matrix.shape
        if max(p, d) > _cpu.model_max_dim():
            return None
        moves = (self.transition_matrix, self._transition_factor)
        sees = (self.observation_matrix, self.observation_cov)
        params = np.concatenate([[d, p], *(part.ravel() for part in moves + sees)])
        return CompiledModel.ready("linear", params, state_dim=self.state_dim, noise_dim=d, observation_dim=p)

    def log_transition(self, x, x_prev, t):
        """(n,) float64, nats: log p(x_t = x | x_{t-1} = x_prev). ValueError if transition_cov is singular."""
        if self._transition_density is None:
            if is_singular(self.transition_cov):
                raise ValueError("log_transition needs a positive definite transition_cov; it is singular")
            self._transition_density = NormalDensity(self.transition_cov)
        return self._transition_density.log_pdf(
            self._lift(x) - apply_matrix(self.transition_matrix, self._lift(x_prev))
        )

    def log_predictive(self, y, x_prev, t):
        """(n,) float64, nats: log p(y_t = y | x_{t-1} = x_prev), exact."""
        y, part = self._observation(y)
        mean = apply_matrix(self.transition_matrix, self._lift(x_prev))
        return part.predictive.log_pdf(y - apply_matrix(part.matrix, mean))

    def proposal(self, y, x_prev, t, rng):
        """Draws from p(x_t | x_{t-1} = x_prev, y_t = y), shaped like x_prev, and the log of p(x_t | x_{t-1})
        over the density drawn from, (n,), nats."""
        y, part = self._observation(y)
        mean = apply_matrix(self.transition_matrix, self._lift(x_prev))
        residual = y - apply_matrix(part.matrix, mean)
        x = mean + apply_matrix(part.gain, residual) + draw_normal(part.proposal_factor, len(mean), rng)
        # p(x | x_prev) / q(x | x_prev, y) = p(y | x_prev) / p(y | x): no density of x, so a singular
        # transition_cov is fine
        log_ratio = part.predictive.log_pdf(residual) - part.density.log_pdf(y - apply_matrix(part.matrix, x))
        return self._lower(x), log_ratio

    def _lift(self, x: Array) -> Array:
        return np.asarray(x)[..., None] if self.state_dim is None else np.asarray(x)

    def _lower(self, x: Array) -> Array:
        return x[..., 0] if self.state_dim is None else x

    def _observation(self, y: ArrayLike) -> tuple[Array, _ObservedPart]:
        """The present components of y, and what depends only on which ones are present."""
        y = np.asarray(y, dtype=np.float64)
        p = len(self.observation_cov)
        if y.shape != (p,) and not (y.shape == () and p == 1):
            raise ValueError(f"observation must have shape {(p,)}, got {y.shape}")
        y = y.reshape(p)
        missing = np.isnan(y)
        if not missing.any():
            return y, self._complete
        seen = ~missing
        key = tuple(bool(s) for s in seen)
        part = self._observed.get(key)
        if part is None:
            part = self._observed[key] = _ObservedPart(self, seen)
        return y[seen], part


class _ObservedPart:
    """Matrices of a LinearGaussian restricted to the observation components that are present."""

    def __init__(self, model: LinearGaussian, seen: NDArray[np.bool_]):
        h, q = model.observation_matrix[seen], model.transition_cov
        r = model.observation_cov[np.ix_(seen, seen)]
        s = h @ q @ h.T + r
        self.matrix = h
        self.gain = np.linalg.solve(s, h @ q).T
        self.density = NormalDensity(r)
        self.predictive = NormalDensity(s)
        # Joseph form: stays positive semi-definite
        keep = np.eye(len(q)) - self.gain @ h
        self.proposal_factor = factor(keep @ q @ keep.T + self.gain @ r @ self.gain.T)
