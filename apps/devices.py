"""The torch device of an application's --device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def chosen_device(name: str | None, fail: Callable[[str], Any]) -> str:
    """`name`, or cuda if there is a GPU and cpu otherwise; `fail` is called with why a name cannot be had."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        fail(f"--device must be cpu, cuda or cuda:NUMBER, got {name!r}")
        raise
    if device.type not in ("cpu", "cuda"):
        fail(f"--device must be cpu, cuda or cuda:NUMBER, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        fail(f"no GPU is there for --device {name}")
    return name
