"""pfkit's resampling inside Stone-Soup, and in the form of filterpy's functions.

    updater = ParticleUpdater(measurement_model, resampler=stonesoup_resampler("systematic"))
    indexes = resample_indices(weights)              # instead of filterpy.monte_carlo.systematic_resample

Ancestors come from pfkit's integer CDF: index N cannot occur, and weights need not sum to 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pfkit.filters.resampling import check_scheme, resample

__all__ = ["resample_indices", "stonesoup_resampler"]


def resample_indices(weights: ArrayLike, scheme: str = "systematic", rng: Any = None) -> np.ndarray:
    """Indices of the particles to keep, (N,) int64, as filterpy's ``systematic_resample(weights)`` does.

    Unlike there, weights need not sum to 1, index N cannot occur, and ``rng`` (None, int, SeedSequence,
    Generator) replaces the global state. ValueError for weights that are negative, NaN, infinite or all 0.
    """
    return resample(weights, scheme=scheme, rng=rng)


def stonesoup_resampler(scheme: str = "systematic", rng: Any = None) -> Any:
    """A ``stonesoup.resampler.Resampler`` that draws ancestors with pfkit.

    Parameters
    ----------
    scheme : "systematic", "stratified", "multinomial" or "residual"
    rng : None, int, SeedSequence or Generator
        The source of randomness from one call to the next.

    Raises
    ------
    ImportError
        Stone-Soup is not installed.
    """
    check_scheme(scheme)
    try:
        from stonesoup.resampler.base import Resampler
    except ImportError as error:
        raise ImportError("stonesoup_resampler needs Stone-Soup: pip install stonesoup") from error
    generator = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)

    class PfkitResampler(Resampler):  # type: ignore[misc, valid-type]
        """Ancestors by pfkit's exact integer CDF, weights taken from their logarithms about the largest."""

        def resample(self, particles: Any, nparts: int | None = None) -> Any:
            if not hasattr(particles, "log_weight"):
                from stonesoup.types.state import ParticleState

                particles = ParticleState(None, particle_list=particles)
            n = len(particles) if nparts is None else int(nparts)
            log_w = np.asarray(particles.log_weight, np.float64)
            with np.errstate(invalid="ignore"):
                weights = np.exp(log_w - np.max(log_w))
            chosen = particles[resample(weights, n, scheme=scheme, rng=generator)]
            chosen.log_weight = np.full(n, -np.log(n))
            return chosen

    return PfkitResampler()
