"""What the functions on token log-probabilities accept, said once."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COLDEST, HOTTEST = 1e-30, 1e30


def check_number(name: str, value: Any) -> None:
    """TypeError for what is no real number; a tensor of one is none."""
    if isinstance(value, torch.Tensor) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")


def check_temperature(value: Any) -> None:
    """TypeError or ValueError unless logits can be divided by ``value``."""
    check_number("temperature", value)
    if not COLDEST <= value <= HOTTEST:
        raise ValueError(f"temperature must be from {COLDEST:g} to {HOTTEST:g}, got {value!r}")


def check_ignore_index(value: Any, *, optional: bool) -> None:
    """TypeError or ValueError unless ``value`` is an integer of 64 bits, or None if that is allowed."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"ignore_index must be an integer{' or None' if optional else ''}, got {value!r}")
    if not -(2**63) <= int(value) < 2**63:
        raise ValueError(f"ignore_index must fit 64 bits, got {value!r}")
