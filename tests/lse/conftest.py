"""What the log-sum-exp tests share: the oracle of the integer kernel, and the compiled kernels' names."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference():
    """The integer kernel in plain NumPy and Python integers: tests/accuracy/integer_lse_reference.py."""
    path = Path(__file__).parents[1] / "accuracy" / "integer_lse_reference.py"
    spec = importlib.util.spec_from_file_location("integer_lse_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
