"""Particle filters."""

from .bank import BankResult, FilterBank
from .errors import CollapseWarning, FilterCollapse, InvalidWeight
from .kalman import KalmanResult, kalman_filter, kalman_smoother
from .moments import weighted_mean, weighted_quantile, weighted_variance
from .particle_filter import ParticleFilter
from .resampling import resample
from .result import FilterResult, StepResult

__all__ = [
    "BankResult",
    "CollapseWarning",
    "FilterBank",
    "FilterCollapse",
    "FilterResult",
    "KalmanResult",
    "InvalidWeight",
    "ParticleFilter",
    "StepResult",
    "kalman_filter",
    "kalman_smoother",
    "resample",
    "weighted_mean",
    "weighted_quantile",
    "weighted_variance",
]
