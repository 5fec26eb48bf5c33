"""Moments of Gaussian inputs between steps of expectation maximisation.

A pass gives moments about the means of its time. They are kept as (count, mean, sum of squares about that
mean), which does not depend on where the means were, and merged as two samples are (Chan, Golub and LeVeque
1983).
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def moments_of(raw: Tensor, mean: Tensor) -> Tensor:
    """(I, K, 3) count, mean, squares about it, of count, sum, sum of squares about `mean` (I, K)."""
    count, first, second = raw.unbind(2)
    shift = torch.where(count > 0, first / count, torch.zeros_like(first))
    return torch.stack((count, mean + shift, (second - first * shift).clamp_min(0)), 2)


def merged(old: Tensor, new: Tensor, size: float) -> Tensor:
    """Moments of (1 - size) of the rows of `old` and `size` of those of `new`."""
    (a, mean_a, squares_a), (b, mean_b, squares_b) = old.unbind(2), new.unbind(2)
    a, b = (1 - size) * a, size * b
    count = a + b
    share = torch.where(count > 0, b / count, torch.zeros_like(count))
    apart = mean_b - mean_a
    squares = (1 - size) * squares_a + size * squares_b + a * share * apart**2
    return torch.stack((count, mean_a + share * apart, squares), 2)


def renewed(moments: Tensor, mean: Tensor, sd: Tensor, pseudo: float, min_sd: float) -> tuple[Tensor, Tensor]:
    """New mean and sd (I, K); `pseudo` rows draw towards the present ones, an unreached unit keeps them.

    Raises
    ------
    ValueError
        If one of them overflows.
    """
    count, centre, squares = moments.unbind(2)
    weight = count + pseudo
    reached = weight > 0
    share = torch.where(reached, count / weight, torch.zeros_like(count))
    apart = centre - mean
    variance = (squares + pseudo * (sd**2 + share * apart**2)) / weight
    mean = torch.where(reached, mean + share * apart, mean)
    sd = torch.where(reached, variance.clamp_min(min_sd**2).sqrt(), sd)
    if not bool((torch.isfinite(mean) & torch.isfinite(sd)).all()):
        kind = str(sd.dtype).removeprefix("torch.")
        raise ValueError(f"the variance of a Gaussian input overflows {kind}: change the units of the data")
    return mean, sd
