"""The table of kernels, explain() and python -m pfkit."""

import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import pfkit


def row(name, device="cpu"):
    return next(k for k in pfkit.kernels() if k.name == name and k.device == device)


def test_rows():
    cpu = [k for k in pfkit.kernels() if k.device == "cpu"]
    assert [k.name for k in cpu] == ["fuse", "int", "int-pairwise", "numpy", "scipy", "torch"]
    assert [k.name for k in cpu if k.order_free] == ["int"]
    for kernel in pfkit.kernels():
        assert kernel.doc and kernel.dtypes
        assert kernel.available == (not kernel.reason)
    assert all(k.available for k in cpu if k.name != "torch")


def test_every_available_kernel_runs():
    x = np.array([0.5, 1.5, -3.0])
    for kernel in pfkit.kernels():
        if kernel.available and kernel.device == "cpu":
            assert float(pfkit.logsumexp(x, lse=kernel.name)) == pytest.approx(1.8212, abs=1e-2)


def test_bounds():
    assert row("int").error_bound(1, "float64") == pytest.approx(1.839e-5)
    assert row("int").error_bound(2**26, "float32") <= 2.1e-5
    assert row("int").error_bound(1000, "float32") > row("int").error_bound(1000, "float64")
    assert row("int").error_bound(1000, "float16") == row("int").error_bound(1000, "float32")
    for name in ("fuse", "int", "int-pairwise"):
        for dtype in ("float32", "float64"):
            bounds = [row(name).error_bound(n, dtype) for n in (1, 10, 1000, 10**6)]
            assert all(math.isfinite(b) and b >= 0 for b in bounds) and bounds == sorted(bounds)
    for name in ("numpy", "scipy", "torch"):
        assert row(name).error_bound(10) is None


def test_explain():
    said = pfkit.explain("int", "cpu")
    for part in ("int on cpu", "SIMD level", "Order-free", "nats"):
        assert part in said
    assert "baseline" in pfkit.explain("numpy")
    assert pfkit.explain().startswith("fuse on cpu")
    assert "runs on: cpu" in pfkit.explain("numpy", "cuda")


def test_command_prints_version_level_and_table():
    run = subprocess.run([sys.executable, "-m", "pfkit"], capture_output=True, text=True, check=True)
    assert f"pfkit {pfkit.__version__}" in run.stdout
    assert "SIMD level: " in run.stdout
    for kernel in pfkit.kernels():
        assert kernel.name in run.stdout
    version = subprocess.run(
        [sys.executable, "-m", "pfkit", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.strip() == pfkit.__version__


def test_unknown_simd_level_is_refused_or_named():
    run = subprocess.run(
        [sys.executable, "-c", "import pfkit"],
        env=dict(os.environ, PFKIT_SIMD="sse9"),
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0 and "sse9" in run.stderr


def test_version_is_the_projects():
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["version"] == pfkit.__version__


def test_import_needs_neither_torch_nor_matplotlib():
    program = (
        "import sys, pfkit; pfkit.kernels(); print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_public_names():
    needs_torch = pfkit._NEEDS_TORCH
    for name in pfkit.__all__:
        assert getattr(pfkit, name) is not None
    assert {*pfkit.__all__, *needs_torch} <= set(dir(pfkit))
    # "from pfkit import *" neither needs torch nor loads it
    assert not set(needs_torch) & set(pfkit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pfkit.nothing
