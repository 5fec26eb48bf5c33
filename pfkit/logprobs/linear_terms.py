"""What a product hidden @ weight.T becomes: a logit, and a loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Terms:
    """With y a product plus bias, x its logit, lse the log-sum-exp of a row's logits, t its target:

    x = scale * cap * tanh(y / cap), or scale * y for cap 0 and where the bias is -inf;
    loss = (1 - smoothing) (lse - x_t) + smoothing (lse - mean of x) + z lse^2.
    """

    cap: float = 0.0
    scale: float = 1.0
    smoothing: float = 0.0
    z: float = 0.0
    vocabulary: int = 0
    ignore_index: int = -100
    biased: bool = False

    @property
    def shaped(self) -> bool:
        """Whether a logit is more than its product, or all logits are to be summed."""
        return self.cap > 0 or self.biased or self.smoothing > 0 or self.scale != 1


@lru_cache(maxsize=1024)
def terms_of(
    cap: float, scale: float, smoothing: float, z: float, vocabulary: int, ignore_index: int, biased: bool
) -> Terms:
    """The same `Terms` for the same numbers."""
    return Terms(cap, scale, smoothing, z, vocabulary, ignore_index, biased)
