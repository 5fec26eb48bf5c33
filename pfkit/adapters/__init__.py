"""Models and resamplers of other packages on pfkit, unchanged; a package is imported only when it is used."""

from .particles import from_particles
from .stonesoup import resample_indices, stonesoup_resampler

__all__ = ["from_particles", "resample_indices", "stonesoup_resampler"]
