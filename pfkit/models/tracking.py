"""Tracking: a robot that ranges to fixed anchors, a target of which only the bearing is seen.

State of `RangeRobot`: the planar pose (x, y, heading). Between two observations the robot reports by its
odometry how far it moved in its own frame; at each observation it may read its distance to each of several
anchors of known position, by radio, sound or light:

    pose_t  = pose_{t-1} moved by u_t + noise                       u_t = (dx, dy, dphi) in the robot's frame
    range_j ~ (1 - p) N(distance_j + bias, range_sd^2)  +  p U(0, max_range)

Real ranges go wrong in a way no Gaussian covers: a blocked direct path gives a reading that is metres off,
for many steps on end. The uniform part keeps such a reading from overruling the rest: it costs every particle
the same. Without it (p = 0) one such reading can make all but one particle negligible, and the filter is
lost.

    model = RangeRobot(anchors, start=(2.0, 4.0, 0.0), start_sd=(0.5, 0.5, 0.2))
    pf = ParticleFilter(model, 2000, lse="int")
    result = pf.run(ranges, inputs=odometry)      # ranges (T, n_anchors), NaN = no reading; odometry (T, 3)

Row t of `inputs` is the motion from t - 1 to t; row 0 is not used, as the first observation belongs to the
start.

`BearingsOnly` is the classic test problem: a target at nearly constant velocity and a sensor that measures
its direction alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import covariance, factor, matrix, non_negative, positive
from ._coordinates import NormalDensity, apply_matrix, draw_normal, log_normal
from ._scalar import scalar_observation
from .angles import wrap
from .base import StateSpaceModel
from .compiled import CompiledModel

__all__ = ["BearingsOnly", "RangeRobot", "RangeRobotNoise"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class RangeRobotNoise:
    """How far odometry and ranges may be trusted; each standard deviation is of one step or one reading.

    Attributes
    ----------
    translation_sd : float, m
        Of dx and of dy, at rest.
    translation_sd_per_m : float, m per m
        Added in quadrature, times the distance moved in the step.
    heading_sd : float, rad
        Of dphi, at rest.
    heading_sd_per_m : float, rad per m
        Added in quadrature, times the distance moved in the step.
    heading_sd_per_rad : float, rad per rad
        Added in quadrature, times the turn made in the step.
    range_sd : float or (n_anchors,), m
        Of a reading on a free path; > 0.
    range_bias : float or (n_anchors,), m
        Mean of reading - distance on a free path.
    outlier_probability : float or (n_anchors,), in [0, 1)
        Probability that a reading says nothing: uniform on [0, max_range].
    max_range : float, m
        The longest reading the sensor gives; > 0. A reading outside [0, max_range] cannot be an outlier of
        the uniform kind, and only the Gaussian part judges it.
    """

    translation_sd: float = 0.02
    translation_sd_per_m: float = 0.05
    heading_sd: float = 0.01
    heading_sd_per_m: float = 0.0
    heading_sd_per_rad: float = 0.05
    range_sd: float | Sequence[float] = 0.1
    range_bias: float | Sequence[float] = 0.0
    outlier_probability: float | Sequence[float] = 0.05
    max_range: float = 20.0

    def __post_init__(self):
        for field in fields(self):
            name, value = field.name, np.asarray(getattr(self, field.name), dtype=np.float64)
            if value.ndim > (1 if name in ("range_sd", "range_bias", "outlier_probability") else 0):
                raise ValueError(f"{name} has too many dimensions: got shape {value.shape}")
            if not np.isfinite(value).all():
                raise ValueError(f"{name} must be finite, got {value}")
            if name in ("range_sd", "max_range") and (value <= 0.0).any():
                raise ValueError(f"{name} must be > 0, got {value}")
            if name != "range_bias" and (value < 0.0).any():
                raise ValueError(f"{name} must be >= 0, got {value}")
        if (np.asarray(self.outlier_probability) >= 1.0).any():
            raise ValueError(f"outlier_probability must be < 1, got {self.outlier_probability}")

    def motion_sd(self, u) -> tuple[float, float]:
        """Standard deviations of a step's translation (m, each axis) and turn (rad) under input u (3,)."""
        distance, turn = math.hypot(u[0], u[1]), abs(float(u[2]))
        return (
            math.hypot(self.translation_sd, self.translation_sd_per_m * distance),
            math.hypot(self.heading_sd, self.heading_sd_per_m * distance, self.heading_sd_per_rad * turn),
        )


class RangeRobot(StateSpaceModel):
    """A robot in the plane: odometry in, ranges to anchors out.

    Parameters
    ----------
    anchors : (n_anchors, 2) or (n_anchors, 3) array, m
        Their positions. With three columns the height difference to the tag counts in the distance.
    tag_offset : (2,) or (3,) array, m, optional
        The ranging tag on the robot, in the robot's frame (x ahead, y to the left, z up from the floor); as
        many numbers as an anchor has. Default: the robot's own origin.
    start : (3,) array, optional
        Mean of the initial pose: x (m), y (m), heading (rad). Default (0, 0, 0).
    start_sd : (3,) array, optional
        Its standard deviations, m, m, rad. Default (1, 1, 0.5).
    area : ((x_min, x_max), (y_min, y_max)), m, optional
        Instead of `start`: the robot may be anywhere in this rectangle, with any heading, at the beginning.
    noise : RangeRobotNoise, optional
        Defaults fit a slow indoor robot with ultra-wideband ranges; `calibrated` fits them to a known track.

    Input u (3,): dx (m), dy (m), dphi (rad) from t - 1 to t in the robot's frame at t - 1.
    Observation y (n_anchors,): ranges in m, NaN where there is no reading.
    Heading: rad, always in [-pi, pi]; its estimate is a circular mean (`angle_dims`).

    Raises
    ------
    ValueError
        A shape that does not fit, a value that is not finite, a negative standard deviation, `area` with
        `start`.
    """

    state_dim = 3
    input_dim = 3
    angle_dims = (2,)

    def __init__(
        self,
        anchors: ArrayLike,
        *,
        tag_offset: ArrayLike | None = None,
        start: ArrayLike | None = None,
        start_sd: ArrayLike | None = None,
        area: ArrayLike | None = None,
        noise: RangeRobotNoise | None = None,
    ):
        self.anchors = np.array(anchors, dtype=np.float64)
        if self.anchors.ndim != 2 or self.anchors.shape[0] < 1 or self.anchors.shape[1] not in (2, 3):
            raise ValueError(f"anchors must have shape (n, 2) or (n, 3), got {self.anchors.shape}")
        n_anchors, dim = self.anchors.shape
        self.tag_offset = _vector("tag_offset", np.zeros(dim) if tag_offset is None else tag_offset, dim)
        if area is not None and (start is not None or start_sd is not None):
            raise ValueError("give either area (start unknown) or start and start_sd, not both")
        self.area = None if area is None else _area(area)
        self.start = _vector("start", (0.0, 0.0, 0.0) if start is None else start, 3)
        self.start_sd = _vector("start_sd", (1.0, 1.0, 0.5) if start_sd is None else start_sd, 3)
        if (self.start_sd < 0.0).any():
            raise ValueError(f"start_sd must be >= 0, got {self.start_sd}")
        if not np.isfinite(self.anchors).all():
            raise ValueError(f"anchors must be finite, got {self.anchors.tolist()}")
        self.noise = RangeRobotNoise() if noise is None else noise
        self._range_sd = _per_anchor("range_sd", self.noise.range_sd, n_anchors)
        self._range_bias = _per_anchor("range_bias", self.noise.range_bias, n_anchors)
        self._outlier = _per_anchor("outlier_probability", self.noise.outlier_probability, n_anchors)

    # ---- the state space model
    def initial(self, n, rng):
        """(n, 3): poses about `start`, or anywhere in `area`."""
        pose = np.empty((3, n))
        if self.area is None:
            pose[:] = self.start[:, None] + self.start_sd[:, None] * rng.standard_normal((3, n))
        else:
            low = np.append(self.area[:, 0], -np.pi)
            high = np.append(self.area[:, 1], np.pi)
            pose[:] = low[:, None] + (high - low)[:, None] * rng.random((3, n))
        pose[2] = wrap(pose[2])
        return pose.T

    def transition(self, x, t, rng, u):
        """(n, 3): each pose moved by the odometry u plus its own noise, in the robot's frame."""
        translation_sd, heading_sd = self.noise.motion_sd(u)
        noise = rng.standard_normal((3, len(x)))
        ahead, left = u[0] + translation_sd * noise[0], u[1] + translation_sd * noise[1]
        cos, sin = np.cos(x[:, 2]), np.sin(x[:, 2])
        pose = np.empty((3, len(x)), dtype=x.dtype)
        pose[0] = x[:, 0] + cos * ahead - sin * left
        pose[1] = x[:, 1] + sin * ahead + cos * left
        pose[2] = wrap(x[:, 2] + u[2] + heading_sd * noise[2])
        return pose.T

    def log_likelihood(self, y, x, t):
        """(n,) float64, nats: sum of the log-densities of the ranges that were read."""
        y = np.asarray(y, dtype=np.float64)
        if y.shape != (len(self.anchors),):
            raise ValueError(f"y must be {len(self.anchors)} ranges, one an anchor; got shape {y.shape}")
        total = np.zeros(len(x))
        tag = self._tag(x)
        for j in np.flatnonzero(~np.isnan(y)):
            total += self._log_range_density(y[j] - self._distance(tag, j), y[j], j)
        return total

    def compiled(self):
        noise, tag = self.noise, self.tag_offset
        params = [
            noise.translation_sd,
            noise.translation_sd_per_m,
            noise.heading_sd,
            noise.heading_sd_per_m,
            noise.heading_sd_per_rad,
            *tag[:2],
            len(self.anchors),
        ]
        for j, anchor in enumerate(self.anchors):
            sd, p = self._range_sd[j], self._outlier[j]
            height = tag[2] - anchor[2] if len(anchor) == 3 else 0.0
            peak = math.log1p(-p) - math.log(sd) - _HALF_LOG_2PI
            floor = math.inf if p == 0.0 else math.log(p / noise.max_range)
            params += [*anchor[:2], height**2, self._range_bias[j], 1.0 / sd, peak, floor, noise.max_range]
        return CompiledModel.ready(
            "robot", params, state_dim=3, noise_dim=3, observation_dim=len(self.anchors), input_dim=3
        )

    def log_transition(self, x, x_prev, t, u):
        """(n,) float64, nats: log-density of moving from x_prev to x under the odometry u.

        The turn is judged by its wrapped difference: exact up to exp(-pi^2 / (2 heading_sd^2)). Raises
        ValueError if the motion has no noise, and so no density.
        """
        translation_sd, heading_sd = self.noise.motion_sd(u)
        if translation_sd == 0.0 or heading_sd == 0.0:
            raise ValueError("log_transition needs noise in translation and heading, got none")
        cos, sin = np.cos(x_prev[..., 2]), np.sin(x_prev[..., 2])
        east, north = x[..., 0] - x_prev[..., 0], x[..., 1] - x_prev[..., 1]
        ahead = (cos * east + sin * north - u[0]) / translation_sd
        left = (cos * north - sin * east - u[1]) / translation_sd
        turn = wrap(x[..., 2] - x_prev[..., 2] - u[2]) / heading_sd
        constant = 3.0 * _HALF_LOG_2PI + 2.0 * math.log(translation_sd) + math.log(heading_sd)
        return -0.5 * (ahead * ahead + left * left + turn * turn) - constant

    # ---- geometry
    def expected_ranges(self, x):
        """(n, n_anchors) m: distance from the tag to every anchor for poses x (n, 3)."""
        tag = self._tag(np.asarray(x, dtype=np.float64))
        return np.stack([self._distance(tag, j) for j in range(len(self.anchors))], axis=-1)

    def dead_reckoning(self, inputs, start):
        """(T, 3): the pose `start` carried along by the odometry alone; row 0 of `inputs` is not used."""
        track = np.empty((len(inputs), 3))
        track[0] = start
        for t in range(1, len(inputs)):
            x, y, heading = track[t - 1]
            dx, dy, turn = inputs[t]
            cos, sin = math.cos(heading), math.sin(heading)
            track[t] = x + cos * dx - sin * dy, y + sin * dx + cos * dy, wrap(heading + turn)
        return track

    def _tag(self, x):
        cos, sin = np.cos(x[..., 2]), np.sin(x[..., 2])
        ahead, left = self.tag_offset[:2]
        return x[..., 0] + cos * ahead - sin * left, x[..., 1] + sin * ahead + cos * left

    def _distance(self, tag, j):
        east, north = tag[0] - self.anchors[j, 0], tag[1] - self.anchors[j, 1]
        height = self.tag_offset[2] - self.anchors[j, 2] if self.anchors.shape[1] == 3 else 0.0
        return np.sqrt(east * east + north * north + height * height)

    def _log_range_density(self, error, reading, j):
        sd, p = self._range_sd[j], self._outlier[j]
        z = (error - self._range_bias[j]) / sd
        peak = math.log1p(-p) - math.log(sd) - _HALF_LOG_2PI
        if p == 0.0 or not 0.0 <= reading <= self.noise.max_range:
            return peak - 0.5 * z * z
        floor = math.log(p / self.noise.max_range)
        if peak - floor > 600.0:  # exp would overflow
            return np.logaddexp(peak - 0.5 * z * z, floor)
        # much faster than logaddexp, and off by 2 ulp of max(1, |result|) at most, as log's argument is >= 1
        return floor + np.log(1.0 + np.exp((peak - floor) - 0.5 * z * z))

    # ---- calibration
    def calibrated(self, poses, observations, inputs, *, per_anchor=False) -> RangeRobot:
        """This model with its noise fitted by maximum likelihood to a stretch of known track.

        Parameters
        ----------
        poses : (T, 3) array
            Reference poses; a row with NaN is left out, as is every step that touches it.
        observations : (T, n_anchors) array, m
            NaN = no reading.
        inputs : (T, 3) array
            Row t: the odometry from t - 1 to t.
        per_anchor : bool
            False: one standard deviation and outlier probability for all anchors and no bias, which carries
            best to a later stretch of the run. True: these and the bias for each anchor.

        Returns
        -------
        RangeRobot; `max_range` and everything but the noise are kept.

        Raises ValueError if the stretch has fewer than 10 usable steps, or an anchor fewer than 10 readings.
        """
        from ._range_robot_fit import fit_noise

        noise = fit_noise(self, poses, observations, inputs, per_anchor)
        if self.area is not None:
            return RangeRobot(self.anchors, tag_offset=self.tag_offset, area=self.area, noise=noise)
        return RangeRobot(
            self.anchors, tag_offset=self.tag_offset, start=self.start, start_sd=self.start_sd, noise=noise
        )


class BearingsOnly(StateSpaceModel):
    """A target at nearly constant velocity, seen only as a bearing from a sensor at a known place.

        x = (east, north, east velocity, north velocity)
        x_t = F x_{t-1} + N(0, Q)         white-noise acceleration over dt, independent in east and north
        y_t = atan2(north - sensor north, east - sensor east) + N(0, bearing_sd^2), wrapped to (-pi, pi]

    The classic test of particle filters (Gordon, Salmond and Smith 1993), with the white-noise-acceleration
    covariance of Bar-Shalom, Li and Kirubarajan (2001, section 6.2.2), which has full rank:
    Q = acceleration_psd [[dt^3/3, dt^2/2], [dt^2/2, dt]] per axis.

    Parameters
    ----------
    sensor : (2,) a fixed place, or (T, 2) its path, one row a time step, in metres. Range can only be
        observed from a sensor that moves, and turns more than the target does.
    prior_mean : (4,) metres and metres per second
    prior_cov : (4, 4), symmetric positive semi-definite
    acceleration_psd : power spectral density of the acceleration, m^2/s^3, >= 0
    bearing_sd : radians, > 0; small against pi, since the tails are cut at half a turn
    dt : seconds, > 0

    Observations are bearings in radians, anticlockwise from east, any multiple of a turn added.

    Raises
    ------
    ValueError, TypeError
        A parameter is not finite or has the wrong shape, or a time step lies beyond the sensor's path.
    """

    state_dim = 4

    def __init__(
        self,
        sensor: ArrayLike,
        prior_mean: ArrayLike,
        prior_cov: ArrayLike,
        acceleration_psd: float,
        bearing_sd: float,
        dt: float = 1.0,
    ):
        self.sensor = matrix("sensor", np.atleast_2d(sensor), (None, 2))
        self._moving = np.ndim(sensor) == 2
        self.prior_mean = matrix("prior_mean", np.atleast_2d(prior_mean), (1, 4))[0]
        self.prior_cov = covariance("prior_cov", prior_cov, 4)
        self.acceleration_psd = non_negative("acceleration_psd", acceleration_psd)
        self.bearing_sd = positive("bearing_sd", bearing_sd)
        self.dt = dt = positive("dt", dt)
        self.transition_matrix = np.eye(4) + dt * np.eye(4, k=2)
        axis = np.array([[dt**3 / 3.0, dt**2 / 2.0], [dt**2 / 2.0, dt]])
        self.transition_cov = self.acceleration_psd * np.kron(axis, np.eye(2))
        self._transition_factor = factor(self.transition_cov)
        self._prior_factor = factor(self.prior_cov)

    def initial(self, n, rng):
        x = draw_normal(self._prior_factor, n, rng)
        x += self.prior_mean
        return x

    def transition(self, x, t, rng):
        return apply_matrix(self.transition_matrix, x) + draw_normal(self._transition_factor, len(x), rng)

    def log_likelihood(self, y, x, t):
        east, north = self._sensor_at(t)
        bearing = np.arctan2(x[..., 1] - north, x[..., 0] - east)
        return log_normal(wrap(scalar_observation(y) - bearing), self.bearing_sd)

    def compiled(self):
        q, dt = self.acceleration_psd, self.dt
        place = math.sqrt(q * dt**3 / 3.0)
        both = q * dt**2 / 2.0 / place if place > 0.0 else 0.0
        speed = math.sqrt(max(q * dt - both**2, 0.0))
        log_scale = -math.log(self.bearing_sd) - _HALF_LOG_2PI
        steps = len(self.sensor) if self._moving else None
        params = [dt, place, both, speed, 1.0 / self.bearing_sd, log_scale, steps or 0, *self.sensor.ravel()]
        return CompiledModel.ready("bearings", params, state_dim=4, noise_dim=4, steps=steps)

    def log_transition(self, x, x_prev, t):
        """(n,) float64, nats: log p(x_t = x | x_{t-1} = x_prev). ValueError if acceleration_psd is 0."""
        if self.acceleration_psd == 0.0:
            raise ValueError("log_transition needs acceleration_psd > 0: without it there is no density")
        return NormalDensity(self.transition_cov).log_pdf(x - apply_matrix(self.transition_matrix, x_prev))

    def _sensor_at(self, t: int) -> tuple[float, float]:
        if not self._moving:
            return float(self.sensor[0, 0]), float(self.sensor[0, 1])
        if not 0 <= t < len(self.sensor):
            raise ValueError(f"no sensor position for step {t}: the path has {len(self.sensor)} rows")
        return float(self.sensor[t, 0]), float(self.sensor[t, 1])


def _vector(name, value, length):
    v = np.array(value, dtype=np.float64)
    if v.shape != (length,) or not np.isfinite(v).all():
        raise ValueError(f"{name} must be {length} finite numbers, got {value!r}")
    return v


def _area(value):
    a = np.array(value, dtype=np.float64)
    if a.shape != (2, 2) or not np.isfinite(a).all() or (a[:, 0] > a[:, 1]).any():
        raise ValueError(f"area must be ((x_min, x_max), (y_min, y_max)), got {value!r}")
    return a


def _per_anchor(name, value, n_anchors):
    v = np.asarray(value, dtype=np.float64)
    if v.ndim == 1 and v.shape != (n_anchors,):
        raise ValueError(f"{name} must be one number or {n_anchors}, one an anchor; got {len(v)}")
    return np.broadcast_to(v, (n_anchors,))
