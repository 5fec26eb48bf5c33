"""``python -m pfkit``: version, SIMD level, the kernel table, and what is missing here and why."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform

from pfkit_ext import _cpu

from . import __version__, kernels
from .lse.kernels import Kernel

#: Optional packages and what they add.
OPTIONAL = {
    "torch": "torch tensors, lse='torch', circuits and log-probs: pip install 'pfkit[torch]'",
    "matplotlib": "pictures: pip install 'pfkit[plot]'",
}


def version_of(package: str) -> str:
    """The installed version, found without importing the package; "not installed" if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def bound_text(kernel: Kernel, dtype: str) -> str:
    bound = kernel.error_bound(100_000, dtype) if dtype in kernel.dtypes else None
    return "-" if bound is None else f"{bound:.1e}"


def report() -> str:
    """The whole report as text."""
    lines = [
        f"pfkit {__version__}  (Python {platform.python_version()}, NumPy {version_of('numpy')}, "
        f"SciPy {version_of('scipy')}, {platform.machine()})",
        f"SIMD level: {_cpu.simd_level()}  (usable here: {', '.join(_cpu.levels())}; PFKIT_SIMD sets it)",
        "",
        "Kernels (lse=name); bound: proven error in nats at n = 100000, float32 / float64",
    ]
    rows = [("name", "device", "order-free", "bound", "")]
    for kernel in kernels():
        bounds = " / ".join(bound_text(kernel, dtype) for dtype in ("float32", "float64"))
        about = kernel.doc if kernel.available else f"not available: {kernel.reason}"
        rows.append((kernel.name, kernel.device, "yes" if kernel.order_free else "no", bounds, about))
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    lines += [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)) + "  " + row[4]
        for row in rows
    ]
    missing = [
        f"  {name}: {adds}" for name, adds in OPTIONAL.items() if importlib.util.find_spec(name) is None
    ]
    lines += ["", "Missing here:" if missing else "Nothing is missing.", *missing]
    return "\n".join(line.rstrip() for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pfkit", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    parser.parse_args()
    print(report())


if __name__ == "__main__":
    main()
