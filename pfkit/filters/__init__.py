"""Particle filters."""

from .errors import CollapseWarning, FilterCollapse, InvalidWeight
from .moments import weighted_mean, weighted_quantile, weighted_variance
from .particle_filter import ParticleFilter
from .resampling import resample
from .result import FilterResult, StepResult

__all__ = [
    "CollapseWarning",
    "FilterCollapse",
    "FilterResult",
    "InvalidWeight",
    "ParticleFilter",
    "StepResult",
    "resample",
    "weighted_mean",
    "weighted_quantile",
    "weighted_variance",
]
