"""Where an application runs: its --device, and whether there is a GPU for those that need one."""

from __future__ import annotations

import sys
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


def no_cuda() -> bool:
    """Whether pfkit's CUDA kernels cannot run here; says why on stderr."""
    from pfkit.lse import cuda

    reason = cuda.missing()
    if reason:
        print(f"CUDA kernels cannot run here: {reason}", file=sys.stderr)
    return bool(reason)
