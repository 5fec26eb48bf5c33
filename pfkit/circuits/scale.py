"""Whether numbers fit a circuit's floating point: what Gaussian inputs are learned from.

Data are rounded to the parameters' dtype before anything is learned. Where a variable's spread is lost in
that rounding, or squares leave the range of the dtype, learning would go on and the likelihoods mean nothing.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor

#: Steps of the floating point numbers that a standard deviation must have: rounding then adds 1 / (12 * 16^2)
#: of the variance.
STEPS = 16


def spread(t: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation and largest magnitude of each column of t (N, V), float64; NaN is missing.

    A column that is constant up to rounding of float64 has standard deviation 0.
    """
    value = t.double()
    seen = ~torch.isnan(value)
    n = seen.sum(0).clamp_min(1)
    value = torch.where(seen, value, torch.zeros_like(value))
    top = value.abs().amax(0)
    unit = torch.where(top > 0, top, torch.ones_like(top))  # no square of a large number overflows
    value = value / unit
    centred = torch.where(seen, value - value.sum(0) / n, torch.zeros_like(value))
    sd = (centred.square().sum(0) / n).sqrt()
    noise = STEPS * torch.finfo(torch.float64).eps
    return torch.where(sd > noise, sd, torch.zeros_like(sd)) * unit, top


def check_scale(t: Tensor, dtype: torch.dtype, *, min_sd: float = 0.0, name: str = "x") -> None:
    """Raise unless Gaussian inputs of `dtype` can learn from the columns of t (N, V), NaN for missing.

    Raises
    ------
    ValueError
        If the magnitude of a column leaves no room for sums of squares, or if a column that is not constant
        has a standard deviation below STEPS roundings to `dtype` at its magnitude, or below `min_sd`.
    """
    if not t.numel():
        return
    sd, top = spread(t)
    limits = torch.finfo(dtype)
    kind = str(dtype).removeprefix("torch.")
    remedy = "change its units" if dtype == torch.float64 else "change its units, or learn with float64"
    most, least = limits.max**0.5 / 1e4, limits.tiny**0.5 * 1e3
    # what the data's own dtype has rounded already, no other dtype brings back
    own = torch.finfo(t.dtype).eps if t.is_floating_point() else 0.0
    varies = sd > STEPS * own * top

    def refuse(wrong: Tensor, why: str) -> None:
        if bool(wrong.any()):
            v = int(torch.nonzero(wrong)[0])
            found = f"standard deviation {float(sd[v]):.3g}, magnitudes up to {float(top[v]):.3g}"
            raise ValueError(f"{name}[:, {v}] {why} ({found})")

    refuse(top > most, f"is too large for squares in {kind}, {most:.1g} at most: {remedy}")
    refuse(varies & (sd < least), f"is too small for squares in {kind}, {least:.1g} at least: {remedy}")
    rounded = f"would lose its differences when rounded to {kind}: subtract an offset, or learn with float64"
    refuse(varies & (sd < STEPS * limits.eps * top), rounded)
    refuse(varies & (sd < min_sd), f"varies by less than min_sd={min_sd:g}: change its units, or min_sd")
