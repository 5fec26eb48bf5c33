"""Every SIMD level of this processor gives the bits of the portable one, in C, without Python in between."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
DIGEST = "digest 72e195748d0226f3"


@pytest.mark.skipif(CC is None or os.name == "nt", reason="needs a C compiler and a POSIX shell")
def test_levels_agree_bit_for_bit(tmp_path):
    program = tmp_path / "levels_check"
    subprocess.run(["sh", str(ROOT / "tools" / "build_levels_check.sh"), CC, str(program)], check=True)
    run = subprocess.run([str(program)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert "0 differences" in run.stdout
    assert DIGEST in run.stdout, "the bits of the kernels changed: " + run.stdout
