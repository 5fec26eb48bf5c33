"""The examples in docstrings and in docs/log-sum-exp.md give what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

OPTIONS = doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", ["pfkit.lse.api", "pfkit.lse.kernels"])
def test_docstrings(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert found.attempted >= 3 and found.failed == 0


def test_page():
    page = Path(__file__).parents[2] / "docs" / "log-sum-exp.md"
    found = doctest.testfile(str(page), module_relative=False, optionflags=OPTIONS)
    assert found.attempted >= 10 and found.failed == 0
