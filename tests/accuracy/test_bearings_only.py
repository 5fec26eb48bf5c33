"""BearingsOnly has no exact likelihood: N = 1e4 and N = 1e5 must agree within 4.5 joint standard errors.

A target at nearly constant velocity, passed by a sensor that turns once, as range needs it.
"""

import numpy as np
import pytest

from pfkit.filters import ParticleFilter
from pfkit.models import BearingsOnly

from .estimates import log_mean_exp, pooled_moments

STEPS = 20


def problem():
    """The model, the bearings and the true track (T, 4)."""
    legs = np.vstack([np.tile([0.0, 0.6], (STEPS // 2, 1)), np.tile([0.6, 0.0], (STEPS // 2, 1))])
    sensor = np.cumsum(legs, axis=0)
    model = BearingsOnly(
        sensor,
        prior_mean=[6.0, 6.0, -0.2, 0.1],
        prior_cov=np.diag([2.0, 2.0, 0.02, 0.02]),
        acceleration_psd=1e-3,
        bearing_sd=0.05,
    )
    g = np.random.default_rng(77)
    x, track = model.initial(1, g), []
    for t in range(STEPS):
        if t:
            x = model.transition(x, t, g)
        track.append(x[0])
    track = np.array(track)
    away = track[:, :2] - sensor
    return model, np.arctan2(away[:, 1], away[:, 0]) + 0.05 * g.normal(size=STEPS), track


MODEL, BEARINGS, TRACK = problem()


def estimates(n, seeds, lse):
    results = [ParticleFilter(MODEL, n, lse=lse, rng=seed).run(BEARINGS) for seed in seeds]
    log_likelihoods = np.array([r.log_likelihood for r in results])
    assert log_likelihoods.std(ddof=1) < 0.5
    moments = pooled_moments(
        log_likelihoods, [r.mean[-1] for r in results], [r.variance[-1] for r in results]
    )
    return log_mean_exp(log_likelihoods), *moments


def check(lse, few, many):
    small, large = estimates(10_000, few, lse), estimates(100_000, many, lse)
    for a, b in zip(small, large, strict=True):
        joint = np.hypot(a.se, b.se)
        assert (np.abs(a.value - b.value) < 4.5 * joint).all(), (a, b)
    # and the track is found: the truth is inside the posterior it was drawn from
    mean, variance = large[1].value, large[2].value
    assert (np.abs(mean - TRACK[-1]) < 4.5 * np.sqrt(variance)).all()
    return small, large


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_ten_and_a_hundred_thousand_particles_agree(lse):
    check(lse, range(24), range(100, 106))


@pytest.mark.slow
@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_ten_and_a_hundred_thousand_particles_agree_over_fifty_runs(lse):
    small, large = check(lse, range(50), range(100, 150))
    print(f"\n{lse}: N = 1e4 {small[0]}, N = 1e5 {large[0]}")
