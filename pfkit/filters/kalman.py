"""The exact answer for linear-Gaussian models: Kalman filter and fixed-interval smoother.

    predict   m = F m,  P = F P F^T + Q
    update    S = H P H^T + R,  K = P H^T S^-1,  m = m + K (y - H m)
    increment log N(y; H m, S)
    smooth    J_t = P_t F^T P_{t+1|t}^-1,  m_t|T = m_t + J_t (m_{t+1|T} - m_{t+1|t})

Kalman (1960); Rauch, Tung and Striebel (1965). Covariances are updated in Joseph form on both passes, a sum
of positive semi-definite terms, so they stay symmetric and semi-definite and nothing cancels under a vague
prior.

    model = LocalLevel(sigma_level=38.3, sigma_obs=122.9, prior_mean=1000.0, prior_sd=1000.0)
    kalman_filter(model, y).log_likelihood           # what a particle filter estimates
    kalman_smoother(model, y).mean                   # E[x_t | all of y]

Time convention: x_0 ~ prior, then y_0 is observed. A vague but proper prior is a prior like any other:
packages with an exact diffuse start leave out, or scale, the first term of the likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfkit.filters.arguments import unmasked
from pfkit.models.linear_gaussian import LinearGaussian, LocalLevel

Array = NDArray[np.float64]


@dataclass(frozen=True)
class KalmanResult:
    """Moments over time; (T,) throughout where states are scalar, else (T, d) and (T, d, d).

    `mean` and `covariance` are filtered in the result of `kalman_filter`, smoothed in that of
    `kalman_smoother`; `predicted_mean` and `predicted_covariance` are given the observations before t, in
    both. `increment` (T,) is log p(y_t | y_0 ... y_{t-1}) in nats, exactly 0 where y_t is missing;
    `log_likelihood` is its sum.
    """

    log_likelihood: float
    increment: Array
    mean: Array
    covariance: Array
    predicted_mean: Array
    predicted_covariance: Array

    @property
    def variance(self) -> Array:
        """Diagonal of `covariance`, shaped like `mean`."""
        if self.covariance.ndim == 1:
            return self.covariance
        return np.diagonal(self.covariance, axis1=1, axis2=2).copy()


def kalman_filter(model: LinearGaussian | LocalLevel, observations: ArrayLike | Sequence) -> KalmanResult:
    """Exact filtering moments and log-likelihood of a linear-Gaussian model.

    Parameters
    ----------
    model : LinearGaussian or LocalLevel
    observations : length T, each of shape (p,), or () for scalar observations; None or NaN where all of y_t
        is missing, NaN components where a part is

    Returns
    -------
    KalmanResult
        Filtered means and covariances. Error: rounding, amplified by at most the condition number of S.

    Raises
    ------
    TypeError
        `model` is not linear-Gaussian.
    ValueError
        An observation has the wrong shape or is infinite.
    """
    return _lower(model, _filter(_LinearModel.of(model), observations))


def kalman_smoother(model: LinearGaussian | LocalLevel, observations: ArrayLike | Sequence) -> KalmanResult:
    """Exact moments of x_t given all observations: `kalman_filter`, then one backward pass.

    Parameters
    ----------
    model, observations
        As for `kalman_filter`.

    Returns
    -------
    KalmanResult
        Of which `mean` and `covariance` are the smoothed ones, everything else is the filter's.

    Raises
    ------
    TypeError, ValueError
        As `kalman_filter`.

    Notes
    -----
    The backward pass of Rauch, Tung and Striebel (1965), covariances as sums of squares. A singular
    prediction covariance (zero process noise) is inverted on its own range.
    """
    linear = _LinearModel.of(model)
    forward = _filter(linear, observations)
    mean, cov = forward.mean.copy(), forward.covariance.copy()
    identity = np.eye(mean.shape[1])
    for t in range(len(mean) - 2, -1, -1):
        gain = _solve_spd(forward.predicted_covariance[t + 1], linear.f @ forward.covariance[t]).T
        mean[t] += gain @ (mean[t + 1] - forward.predicted_mean[t + 1])
        rest = identity - gain @ linear.f
        cov[t] = _symmetric(rest @ forward.covariance[t] @ rest.T + gain @ (cov[t + 1] + linear.q) @ gain.T)
    smoothed = KalmanResult(
        forward.log_likelihood,
        forward.increment,
        mean,
        cov,
        forward.predicted_mean,
        forward.predicted_covariance,
    )
    return _lower(model, smoothed)


@dataclass(frozen=True)
class _LinearModel:
    """The matrices of the module's formulas."""

    f: Array
    q: Array
    h: Array
    r: Array
    m0: Array
    p0: Array

    @classmethod
    def of(cls, model: LinearGaussian | LocalLevel) -> _LinearModel:
        if isinstance(model, LinearGaussian):
            return cls(
                model.transition_matrix,
                model.transition_cov,
                model.observation_matrix,
                model.observation_cov,
                model.prior_mean,
                model.prior_cov,
            )
        if isinstance(model, LocalLevel):
            one = np.eye(1)
            return cls(
                one,
                one * model.sigma_level**2,
                one,
                one * model.sigma_obs**2,
                np.array([model.prior_mean], dtype=np.float64),
                one * model.prior_sd**2,
            )
        raise TypeError(f"model must be a LinearGaussian or a LocalLevel, got {type(model).__name__}")


def _filter(model: _LinearModel, observations: ArrayLike | Sequence) -> KalmanResult:
    if isinstance(observations, np.ma.MaskedArray):
        observations = unmasked(observations)
    ys = list(observations)  # type: ignore[arg-type]
    steps, d = len(ys), len(model.m0)
    increment = np.zeros(steps)
    mean, cov = np.empty((steps, d)), np.empty((steps, d, d))
    predicted_mean, predicted_cov = np.empty((steps, d)), np.empty((steps, d, d))
    m, p = model.m0, model.p0
    for t in range(steps):
        if t > 0:
            m, p = model.f @ m, _symmetric(model.f @ p @ model.f.T + model.q)
        predicted_mean[t], predicted_cov[t] = m, p
        y = _observation(ys[t], t, len(model.r))
        seen = ~np.isnan(y)
        if seen.any():
            increment[t], m, p = _update(m, p, y[seen], model.h[seen], model.r[np.ix_(seen, seen)])
        mean[t], cov[t] = m, p
    return KalmanResult(math.fsum(increment), increment, mean, cov, predicted_mean, predicted_cov)


def _update(m: Array, p: Array, y: Array, h: Array, r: Array) -> tuple[float, Array, Array]:
    """log N(y; H m, S) and the posterior mean and covariance."""
    residual = y - h @ m
    chol = np.linalg.cholesky(_symmetric(h @ p @ h.T + r))
    white = np.linalg.solve(chol, residual)
    log_density = -0.5 * (white @ white + len(y) * math.log(2.0 * math.pi)) - np.log(np.diag(chol)).sum()
    gain = np.linalg.solve(chol.T, np.linalg.solve(chol, h @ p)).T
    rest = np.eye(len(m)) - gain @ h
    return float(log_density), m + gain @ residual, _symmetric(rest @ p @ rest.T + gain @ r @ gain.T)


def _observation(y, t: int, p: int) -> Array:
    if y is None or y is np.ma.masked:
        return np.full(p, np.nan)
    if isinstance(y, np.ma.MaskedArray):
        y = unmasked(y)
    a = np.asarray(y, dtype=np.float64)
    if a.shape != (p,) and not (a.shape == () and p == 1):
        raise ValueError(f"observation {t} must have shape {(p,)}, got {a.shape}")
    if np.isinf(a).any():
        raise ValueError(f"observation {t} must be finite or NaN, got {a.tolist()}")
    return a.reshape(p)


def _symmetric(a: Array) -> Array:
    return 0.5 * (a + a.T)


def _solve_spd(a: Array, b: Array) -> Array:
    """a^-1 b for a symmetric positive semi-definite a; on the range of a where it is singular."""
    try:
        chol = np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(a, hermitian=True) @ b
    return np.linalg.solve(chol.T, np.linalg.solve(chol, b))


def _lower(model: LinearGaussian | LocalLevel, result: KalmanResult) -> KalmanResult:
    """Drop the state axes of a model with scalar states."""
    if model.state_dim is not None:
        return result
    return KalmanResult(
        result.log_likelihood,
        result.increment,
        result.mean[:, 0],
        result.covariance[:, 0, 0],
        result.predicted_mean[:, 0],
        result.predicted_covariance[:, 0, 0],
    )
