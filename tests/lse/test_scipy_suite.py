"""SciPy's own tests of logsumexp, run against pfkit.logsumexp: their file, the name replaced after import.

The suite runs in a subprocess with SciPy's conftest, whatever the version; the replacement touches only the
test module's global, so it needs nothing private of SciPy.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).with_name("scipy_suite_plugin.py")
SUITE = "scipy.special.tests.test_logsumexp"


def run_suite(lse: str, tmp_path: Path) -> subprocess.CompletedProcess:
    package = Path(__import__("pfkit").__file__).parents[1]
    env = dict(
        os.environ, PFKIT_SUITE_LSE=lse, PYTHONPATH=os.pathsep.join([str(package), str(PLUGIN.parent)])
    )
    env.pop("SCIPY_ARRAY_API", None)  # the NumPy cases
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        PLUGIN.stem,
        "-p",
        "no:cacheprovider",
        "--pyargs",
        SUITE,
    ]
    return subprocess.run(
        [*command, "-k", "LogSumExp", "-c", os.devnull, f"--rootdir={tmp_path}"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )


def has_suite() -> bool:
    try:
        return importlib.util.find_spec(SUITE) is not None
    except ModuleNotFoundError:  # not even the package of the tests
        return False


def test_scipys_own_suite_passes(tmp_path):
    if not has_suite():
        pytest.skip("this SciPy is installed without its tests")
    result = run_suite("fuse", tmp_path)
    said = result.stdout + result.stderr
    passed = re.search(r"(\d+) passed", said)
    replaced = re.search(r"pfkit\.logsumexp called (\d+) times", said)
    assert result.returncode == 0, said[-4000:]
    assert passed and int(passed[1]) >= 15, said[-2000:]  # SciPy 1.13 has 16 such tests, 1.17 more than 400
    assert replaced and int(replaced[1]) >= int(passed[1]), said[-2000:]
    assert "failed" not in said
