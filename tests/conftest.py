"""What tests of several folders share."""

import os
import subprocess
import sys

import pytest

from pfkit_ext import _cpu


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Each test runs on the CPU and, where there is one, on the GPU."""
    if request.param == "cuda":
        from pfkit.lse import cuda

        if cuda.missing():
            pytest.skip(cuda.missing())
    return request.param


@pytest.fixture(scope="session")
def at_every_level():
    """at_every_level(code, *arguments): what the program prints, by the SIMD level it ran at."""

    def run(code, *arguments):
        said = {}
        for level in _cpu.levels():
            checked = f"from pfkit_ext import _cpu; assert _cpu.simd_level() == {level!r}\n{code}"
            done = subprocess.run(
                [sys.executable, "-c", checked, *map(str, arguments)],
                env={**os.environ, "PFKIT_SIMD": level},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            said[level] = done.stdout
        assert "portable" in said and all(said.values())
        return said

    return run
