"""Maximum-likelihood noise of a `RangeRobot` from a stretch of known track.

Ranges: the residual reading - distance follows (1 - p) N(bias, sd^2) + p U(0, max_range); fitted by
expectation and maximisation (Dempster, Laird and Rubin 1977), which raises the likelihood at every turn.
Odometry: the residual in the robot's frame is Gaussian with a variance that is a sum of squares of the step's
length and turn; its few parameters are found by a simplex search on their logarithms. The reference's own
error is inside these residuals, so the fitted odometry noise is an upper estimate, which is the safe side for
a filter.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.optimize import minimize

from .angles import wrap

_SMALLEST_SD = 1e-6  # m or rad: keeps the density of noiseless data finite
_FEWEST = 10


def fit_noise(model, poses, observations, inputs, per_anchor):
    """The `RangeRobotNoise` of greatest likelihood; see `RangeRobot.calibrated`."""
    poses, observations, inputs = (np.asarray(a, dtype=np.float64) for a in (poses, observations, inputs))
    n_anchors = len(model.anchors)
    if not (poses.shape == inputs.shape == (len(poses), 3) and observations.shape == (len(poses), n_anchors)):
        raise ValueError(
            f"poses and inputs must be (T, 3) and observations (T, {n_anchors}), "
            f"got {poses.shape}, {inputs.shape} and {observations.shape}"
        )
    errors = observations - model.expected_ranges(poses)
    if per_anchor:
        fits = [range_mixture(errors[:, j], model.noise.max_range, biased=True) for j in range(n_anchors)]
        sd, bias, outlier = (tuple(float(f[i]) for f in fits) for i in range(3))
    else:
        sd, bias, outlier = range_mixture(errors.ravel(), model.noise.max_range, biased=False)
    translation, heading = odometry_noise(poses, inputs)
    return dataclasses.replace(
        model.noise,
        translation_sd=translation[0],
        translation_sd_per_m=translation[1],
        heading_sd=heading[0],
        heading_sd_per_m=heading[1],
        heading_sd_per_rad=heading[2],
        range_sd=sd,
        range_bias=bias,
        outlier_probability=outlier,
    )


def range_mixture(errors, max_range, *, biased):
    """(sd, bias, outlier probability) of range residuals (m, any length, NaN left out)."""
    e = errors[~np.isnan(errors)]
    if len(e) < _FEWEST:
        raise ValueError(f"too few readings to fit a range noise: got {len(e)}, need {_FEWEST}")
    bias = float(np.median(e)) if biased else 0.0
    sd = max(1.4826 * float(np.median(np.abs(e - bias))), _SMALLEST_SD)
    outlier = 0.1
    for _ in range(1000):
        before = (sd, bias, outlier)
        density = np.exp(-0.5 * ((e - bias) / sd) ** 2) / (sd * np.sqrt(2.0 * np.pi))
        good = (1.0 - outlier) * density / ((1.0 - outlier) * density + outlier / max_range + 1e-300)
        outlier = float(1.0 - good.mean())
        if biased:
            bias = float(good @ e / good.sum())
        sd = max(float(np.sqrt(good @ (e - bias) ** 2 / good.sum())), _SMALLEST_SD)
        if np.allclose(before, (sd, bias, outlier), rtol=1e-9, atol=1e-12):
            break
    return sd, bias, min(outlier, 0.99)


def odometry_noise(poses, inputs):
    """((sd, sd per m), (sd, sd per m, sd per rad)): of the translation and of the heading."""
    u, before, after = inputs[1:], poses[:-1], poses[1:]
    usable = np.isfinite(np.hstack([u, before, after])).all(axis=1)
    u, before, after = u[usable], before[usable], after[usable]
    if len(u) < _FEWEST:
        raise ValueError(f"too few steps between known poses: got {len(u)}, need {_FEWEST}")
    cos, sin = np.cos(before[:, 2]), np.sin(before[:, 2])
    east, north = (after - before)[:, 0], (after - before)[:, 1]
    translation = np.stack([cos * east + sin * north - u[:, 0], cos * north - sin * east - u[:, 1]])
    heading = wrap(after[:, 2] - before[:, 2] - u[:, 2])[None]
    distance, turn, rest = np.hypot(u[:, 0], u[:, 1]), np.abs(u[:, 2]), np.ones(len(u))
    return (
        _scaled_gaussian(translation, np.stack([rest, distance])),
        _scaled_gaussian(heading, np.stack([rest, distance, turn])),
    )


def _scaled_gaussian(residuals, scales):
    """The sd a_i >= 0 of greatest likelihood for residuals (k, T) ~ N(0, sum_i (a_i scales_i)^2)."""

    def loss(log_sd):
        variance = (np.exp(2.0 * log_sd)[:, None] * scales**2).sum(axis=0) + _SMALLEST_SD**2
        return 0.5 * (len(residuals) * np.log(variance).sum() + (residuals**2 / variance).sum())

    level = max(float(np.sqrt(np.mean(residuals**2))), _SMALLEST_SD)
    start = np.log(np.full(len(scales), level / np.sqrt(len(scales))))
    options = {"maxiter": 4000, "maxfev": 8000, "xatol": 1e-6, "fatol": 1e-9}
    sd = np.exp(minimize(loss, start, method="Nelder-Mead", options=options).x)
    return tuple(float(a) if a > _SMALLEST_SD else 0.0 for a in sd)
