"""What models with a scalar state share: particles as (n,) or as (n, 1), observations as () or (1,)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]


class ScalarState:
    """Mixin: `state_dim` None means particles (n,), 1 means particles (n, 1); same numbers, same draws."""

    state_dim: int | None

    def _shape(self, n: int) -> tuple[int, ...]:
        """Shape of n particles."""
        return (n,) if self.state_dim is None else (n, 1)

    def _vector(self, x: ArrayLike) -> Array:
        """Particles as float64 without the state axis."""
        a = np.asarray(x, dtype=np.float64)
        return a if self.state_dim is None else a[..., 0]


def scalar_observation(y: ArrayLike) -> float:
    """The one number of an observation of shape () or (1,)."""
    a = np.asarray(y, dtype=np.float64)
    if a.size != 1:
        raise ValueError(f"observation must be one number, got shape {a.shape}")
    return float(a.reshape(()))
