"""The compiled code of pfkit: `_cpu` and `_cuda`."""

from pathlib import Path

from . import _cpu, sources

sources.check(_cpu, Path(__file__).parent)
