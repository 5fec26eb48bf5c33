"""What the benchmarks share: timing several contenders interleaved in one run, and a description of the
machine.

Absolute times move with the load of a machine; ratios taken in one run move far less. So contenders take
turns, a batch each, for the whole measurement, and medians over the rounds are reported.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

BATCH_SECONDS = 4e-4  # long against the clock's resolution, short against a change of the machine's load


class Timing(NamedTuple):
    """Seconds a call: the median over the rounds and its quartiles."""

    median: float
    low: float
    high: float
    rounds: int


def interleaved(
    contenders: dict[str, Callable[[], Any]], seconds: float = 0.5, least_rounds: int = 9
) -> dict[str, Timing]:
    """Time each contender a call, taking turns, for about `seconds` in all.

    Each round runs a batch of every contender, starting with another one each time; the number of calls in a
    batch is fixed beforehand so that it lasts about `BATCH_SECONDS`.
    """
    names = list(contenders)
    calls = {name: _calls_a_batch(contenders[name]) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    start, rounds = perf_counter(), 0
    while rounds < least_rounds or perf_counter() - start < seconds:
        shift = rounds % len(names)
        for name in names[shift:] + names[:shift]:
            call, count = contenders[name], range(calls[name])
            before = perf_counter()
            for _ in count:
                call()
            taken[name].append((perf_counter() - before) / len(count))
        rounds += 1
    return {name: _summary(times) for name, times in taken.items()}


def _calls_a_batch(call: Callable[[], Any]) -> int:
    call()  # first-use costs
    best = min(_once(call) for _ in range(3))
    return max(1, round(BATCH_SECONDS / max(best, 1e-7)))


def _once(call: Callable[[], Any]) -> float:
    before = perf_counter()
    call()
    return perf_counter() - before


def _summary(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high, len(times))


def machine() -> dict[str, Any]:
    """Processor, system and the versions of everything that is timed."""
    from pfkit_ext import _cpu

    found = {"processor": processor(), "cores": os.cpu_count(), "system": platform.platform(terse=True)}
    found["python"] = platform.python_version()
    for package in ("pfkit", "numpy", "scipy", "torch"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    if found["pfkit"] is None:
        import pfkit

        found["pfkit"] = pfkit.__version__
    found["simd_level"] = _cpu.simd_level()
    found["load_average"] = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return found


def processor() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns of text: the first two to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if k < 2 else cell.rjust(w)
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in [header, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)
