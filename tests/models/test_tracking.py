"""RangeRobot: motion, geometry, the outlier-robust range density, calibration."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import pfkit
from pfkit.models.tracking import RangeRobot, RangeRobotNoise

ANCHORS = [[0.0, 0.0, 2.0], [6.0, 0.0, 1.0], [6.0, 4.0, 1.5]]
STILL = dict(
    translation_sd=0.0,
    translation_sd_per_m=0.0,
    heading_sd=0.0,
    heading_sd_per_m=0.0,
    heading_sd_per_rad=0.0,
)


def robot(**noise):
    return RangeRobot(ANCHORS, tag_offset=(0.2, 0.0, 1.1), noise=RangeRobotNoise(**noise))


# ---- motion


def test_odometry_is_in_the_robots_frame():
    model = robot(**STILL)
    north = np.array([[1.0, 2.0, np.pi / 2]])
    moved = model.transition(north, 1, np.random.default_rng(0), np.array([0.5, 0.1, 0.0]))
    assert moved == pytest.approx(np.array([[0.9, 2.5, np.pi / 2]]), abs=1e-15)


def test_heading_wraps():
    model = robot(**STILL)
    moved = model.transition(np.array([[0.0, 0.0, 3.1]]), 1, np.random.default_rng(0), np.array([0, 0, 0.2]))
    assert moved[0, 2] == pytest.approx(3.3 - 2.0 * np.pi)


def test_without_noise_the_particles_follow_dead_reckoning():
    model, rng = robot(**STILL), np.random.default_rng(3)
    inputs = rng.normal(0.0, 0.3, (50, 3))
    x = np.array([[1.0, 1.0, 0.5]])
    track = model.dead_reckoning(inputs, x[0])
    for t in range(1, 50):
        x = model.transition(x, t, rng, inputs[t])
    assert x[0] == pytest.approx(track[-1], abs=1e-12)


def test_noise_grows_with_the_motion():
    noise = RangeRobotNoise(
        translation_sd=0.03,
        translation_sd_per_m=0.1,
        heading_sd=0.02,
        heading_sd_per_m=0.05,
        heading_sd_per_rad=0.2,
    )
    model = RangeRobot(ANCHORS, noise=noise)
    u = np.array([0.3, 0.4, -0.5])
    translation_sd, heading_sd = noise.motion_sd(u)
    assert translation_sd == pytest.approx(math.hypot(0.03, 0.1 * 0.5))
    assert heading_sd == pytest.approx(math.sqrt(0.02**2 + (0.05 * 0.5) ** 2 + (0.2 * 0.5) ** 2))
    n = 40_000
    moved = model.transition(np.zeros((n, 3)), 1, np.random.default_rng(1), u)
    sd = moved.std(axis=0)
    assert sd == pytest.approx([translation_sd, translation_sd, heading_sd], rel=5.0 / math.sqrt(2 * n))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transition_keeps_the_dtype(dtype):
    x = np.zeros((5, 3), dtype=dtype)
    assert robot().transition(x, 1, np.random.default_rng(0), np.array([0.1, 0.0, 0.1])).dtype == dtype


def test_log_transition_is_the_density_of_the_motion():
    model = robot(translation_sd=0.1, heading_sd=0.05, translation_sd_per_m=0.0, heading_sd_per_rad=0.0)
    before, u = np.array([[1.0, 2.0, 3.1]]), np.array([0.4, -0.1, 0.2])
    ahead, left, turn = 0.45, -0.3, 0.15  # the motion that happened, in the robot's frame
    cos, sin = np.cos(3.1), np.sin(3.1)
    after = np.array(
        [[1.0 + cos * ahead - sin * left, 2.0 + sin * ahead + cos * left, 3.1 + turn - 2 * np.pi]]
    )
    expected = norm.logpdf([ahead, left], u[:2], 0.1).sum() + norm.logpdf(turn, u[2], 0.05)
    assert model.log_transition(after, before, 1, u) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="needs noise"):
        robot(**STILL).log_transition(after, before, 1, u)


# ---- start


def test_start_is_gaussian_about_the_given_pose_and_wrapped():
    model = RangeRobot(ANCHORS, start=(2.0, 4.0, 3.0), start_sd=(0.5, 0.1, 0.3))
    x = model.initial(20_000, np.random.default_rng(2))
    assert x.shape == (20_000, 3)
    assert np.abs(x[:, 2]).max() <= np.pi
    turned = (x[:, 2] - 3.0 + np.pi) % (2 * np.pi) - np.pi
    sample = np.column_stack([x[:, 0] - 2.0, x[:, 1] - 4.0, turned])
    assert sample.std(axis=0) == pytest.approx([0.5, 0.1, 0.3], rel=0.03)
    assert np.abs(sample.mean(axis=0) / [0.5, 0.1, 0.3]).max() < 5.0 / math.sqrt(20_000)


def test_area_covers_the_rectangle_and_every_heading():
    x = RangeRobot(ANCHORS, area=((-1.0, 7.0), (0.0, 5.0))).initial(5_000, np.random.default_rng(2))
    low, high = np.array([-1.0, 0.0, -np.pi]), np.array([7.0, 5.0, np.pi])
    assert (x >= low).all() and (x <= high).all()
    assert ((x.min(axis=0) - low) / (high - low)).max() < 0.01
    assert ((high - x.max(axis=0)) / (high - low)).max() < 0.01


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_the_filters_heading_is_a_circular_mean(lse):
    model = RangeRobot(ANCHORS, start=(1.0, 2.0, np.pi), start_sd=(0.1, 0.1, 0.2))
    pf = pfkit.ParticleFilter(model, 4000, lse=lse, rng=5)
    result = pf.run(np.full((2, 3), np.nan), np.zeros((2, 3)))
    headings = pf.particles[:, 2]
    assert headings.min() < -3.0 and headings.max() > 3.0  # their plain average is near 0
    for mean, variance in zip(result.mean, result.variance, strict=True):
        assert np.pi - abs(mean[2]) < 5 * 0.2 / math.sqrt(4000)
        assert variance[2] == pytest.approx(0.2**2, rel=0.15)
    assert np.pi - abs(pf.mean[2]) < 5 * 0.2 / math.sqrt(4000)


# ---- ranges


def test_distance_in_space_from_the_turned_tag():
    model = RangeRobot([[0.0, 0.0, 2.0]], tag_offset=(1.0, 0.0, 1.0))
    facing_north = np.array([[0.0, 0.0, np.pi / 2], [3.0, -1.0, np.pi / 2]])
    assert model.expected_ranges(facing_north) == pytest.approx(np.sqrt([[0 + 1 + 1], [9 + 0 + 1]]))


def test_flat_anchors():
    model = RangeRobot([[3.0, 4.0]])
    assert model.expected_ranges(np.zeros((1, 3))) == pytest.approx(np.array([[5.0]]))


@pytest.mark.parametrize("p", [0.0, 0.05, 0.4])
def test_range_density_integrates_to_one(p):
    noise = RangeRobotNoise(range_sd=0.3, range_bias=0.1, outlier_probability=p, max_range=20.0)
    model = RangeRobot([[3.0, 4.0]], noise=noise)
    x = np.zeros((1, 3))

    def density(r):
        return math.exp(model.log_likelihood([r], x, 0)[0])

    pieces = [(-5.0, 0.0), (0.0, 4.0), (4.0, 6.5), (6.5, 20.0), (20.0, 25.0)]
    assert sum(quad(density, a, b, epsabs=1e-11)[0] for a, b in pieces) == pytest.approx(1.0, abs=1e-8)


def test_density_against_scipy():
    noise = RangeRobotNoise(range_sd=(0.1, 0.2, 0.3), range_bias=(0.0, 0.05, -0.1), outlier_probability=0.1)
    model = RangeRobot(ANCHORS, noise=noise)
    rng = np.random.default_rng(8)
    x = rng.normal(0.0, 1.0, (40, 3))
    y = np.array([2.0, 6.5, 7.0])
    gaussian = norm.pdf(y, model.expected_ranges(x) + [0.0, 0.05, -0.1], [0.1, 0.2, 0.3])
    expected = np.log(0.9 * gaussian + 0.1 / 20.0).sum(axis=1)
    assert model.log_likelihood(y, x, 0) == pytest.approx(expected, rel=1e-12)


def test_a_missing_range_says_nothing():
    model, x = robot(), np.random.default_rng(4).normal(0.0, 1.0, (30, 3))
    y = np.array([2.0, 5.5, 7.0])
    alone = [model.log_likelihood(np.where(np.arange(3) == j, y, np.nan), x, 0) for j in range(3)]
    assert model.log_likelihood(y, x, 0) == pytest.approx(sum(alone), rel=1e-12)
    assert np.array_equal(model.log_likelihood(np.full(3, np.nan), x, 0), np.zeros(30))


def test_an_absurd_reading_costs_every_particle_the_same():
    model, x = robot(), np.random.default_rng(4).normal(0.0, 1.0, (30, 3))
    absurd = model.log_likelihood(np.array([19.0, np.nan, np.nan]), x, 0)
    assert absurd == pytest.approx(np.full(30, math.log(0.05 / 20.0)), rel=1e-12)
    gaussian = robot(outlier_probability=0.0).log_likelihood(np.array([19.0, np.nan, np.nan]), x, 0)
    assert np.isfinite(gaussian).all() and np.ptp(gaussian) > 100.0


def test_log_likelihood_leaves_its_arguments_alone():
    x, y = np.zeros((4, 3)), np.array([2.0, np.nan, 7.0])
    x.flags.writeable = y.flags.writeable = False
    assert robot().log_likelihood(y, x, 0).shape == (4,)


# ---- calibration


def simulated_run(noise, steps, seed):
    model, rng = RangeRobot(ANCHORS, tag_offset=(0.2, 0.0, 1.1), noise=noise), np.random.default_rng(seed)
    inputs = np.column_stack(
        [rng.uniform(0.0, 0.6, steps), np.zeros(steps), np.where(rng.random(steps) < 0.5, 0.0, 0.4)]
    )
    poses = np.zeros((steps, 3))
    for t in range(1, steps):
        poses[t] = model.transition(poses[t - 1 : t], t, rng, inputs[t])[0]
    ranges = model.expected_ranges(poses)
    ranges += np.asarray(noise.range_bias) + np.asarray(noise.range_sd) * rng.standard_normal(ranges.shape)
    wrong = rng.random(ranges.shape) < np.asarray(noise.outlier_probability)
    ranges[wrong] = rng.uniform(0.0, noise.max_range, wrong.sum())
    ranges[rng.random(ranges.shape) < 0.05] = np.nan
    return model, poses, ranges, inputs


def test_calibration_recovers_the_noise_it_was_given():
    truth = RangeRobotNoise(
        translation_sd=0.02,
        translation_sd_per_m=0.1,
        heading_sd=0.01,
        heading_sd_per_rad=0.1,
        range_sd=0.15,
        outlier_probability=0.1,
        max_range=100.0,
    )
    model, poses, ranges, inputs = simulated_run(truth, 3000, seed=11)
    poses[17] = np.nan
    before = poses.copy(), ranges.copy(), inputs.copy()
    fitted = model.calibrated(poses, ranges, inputs).noise
    assert fitted.translation_sd == pytest.approx(0.02, rel=0.15)
    assert fitted.translation_sd_per_m == pytest.approx(0.1, rel=0.1)
    assert fitted.heading_sd == pytest.approx(0.01, rel=0.1)
    assert fitted.heading_sd_per_rad == pytest.approx(0.1, rel=0.1)
    assert fitted.range_sd == pytest.approx(0.15, rel=0.05)
    assert fitted.outlier_probability == pytest.approx(0.1, rel=0.1)
    assert fitted.range_bias == 0.0 and fitted.max_range == 100.0
    for kept, given in zip(before, (poses, ranges, inputs), strict=True):
        assert np.array_equal(kept, given, equal_nan=True)


def test_calibration_per_anchor():
    truth = RangeRobotNoise(
        range_sd=(0.05, 0.1, 0.2),
        range_bias=(0.1, 0.0, -0.1),
        outlier_probability=(0.3, 0.1, 0.1),
        max_range=100.0,
    )
    model, poses, ranges, inputs = simulated_run(truth, 3000, seed=12)
    fitted = model.calibrated(poses, ranges, inputs, per_anchor=True).noise
    assert fitted.range_sd == pytest.approx((0.05, 0.1, 0.2), rel=0.06)
    assert fitted.range_bias == pytest.approx((0.1, 0.0, -0.1), abs=0.02)
    assert fitted.outlier_probability == pytest.approx((0.3, 0.1, 0.1), rel=0.15)


def test_calibration_keeps_the_start():
    model, poses, ranges, inputs = simulated_run(RangeRobotNoise(), 100, seed=13)
    known = RangeRobot(ANCHORS, start=(1.0, 2.0, 0.5), start_sd=(0.1, 0.2, 0.3))
    kept = known.calibrated(poses, ranges, inputs)
    assert np.array_equal(kept.start, known.start) and np.array_equal(kept.start_sd, known.start_sd)
    somewhere = RangeRobot(ANCHORS, area=((0.0, 1.0), (0.0, 1.0))).calibrated(poses, ranges, inputs)
    assert np.array_equal(somewhere.area, [[0.0, 1.0], [0.0, 1.0]])


def test_too_short_a_stretch_is_refused():
    model, poses, ranges, inputs = simulated_run(RangeRobotNoise(), 8, seed=14)
    with pytest.raises(ValueError, match="too few steps"):
        model.calibrated(poses, ranges, inputs)
    with pytest.raises(ValueError, match="too few readings"):
        model.calibrated(poses, np.full_like(ranges, np.nan), inputs)
    with pytest.raises(ValueError, match=r"poses and inputs must be \(T, 3\)"):
        model.calibrated(poses[:, :2], ranges, inputs)


# ---- bad arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(anchors=[1.0, 2.0]), "anchors must have shape"),
        (dict(anchors=[[1.0, 2.0, 3.0, 4.0]]), "anchors must have shape"),
        (dict(anchors=[[1.0, np.nan]]), "anchors must be finite"),
        (dict(anchors=ANCHORS, tag_offset=(0.0, 0.0)), "tag_offset must be 3 finite numbers"),
        (dict(anchors=ANCHORS, start=(0.0, 0.0)), "start must be 3 finite numbers"),
        (dict(anchors=ANCHORS, start_sd=(0.0, 0.0, -1.0)), "start_sd must be >= 0"),
        (dict(anchors=ANCHORS, area=((0.0, 1.0), (0.0, 1.0)), start=(0.0, 0.0, 0.0)), "not both"),
        (dict(anchors=ANCHORS, area=((1.0, 0.0), (0.0, 1.0))), "area must be"),
        (
            dict(anchors=ANCHORS, noise=RangeRobotNoise(range_sd=(0.1, 0.1))),
            "range_sd must be one number or 3",
        ),
    ],
)
def test_bad_model_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RangeRobot(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(range_sd=0.0), "range_sd must be > 0"),
        (dict(max_range=-1.0), "max_range must be > 0"),
        (dict(translation_sd=-0.1), "translation_sd must be >= 0"),
        (dict(heading_sd=np.nan), "heading_sd must be finite"),
        (dict(outlier_probability=1.0), "outlier_probability must be < 1"),
        (dict(range_sd=[[0.1]]), "too many dimensions"),
        (dict(heading_sd=[0.1]), "too many dimensions"),
    ],
)
def test_bad_noise_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RangeRobotNoise(**arguments)


def test_an_observation_of_the_wrong_length():
    with pytest.raises(ValueError, match="y must be 3 ranges"):
        robot().log_likelihood(np.zeros(2), np.zeros((4, 3)), 0)
