"""The examples of token_log_probs and of docs/log-probs.md give what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

OPTIONS = doctest.NORMALIZE_WHITESPACE


def test_docstring():
    found = doctest.testmod(importlib.import_module("pfkit.logprobs.token"), optionflags=OPTIONS)
    assert found.attempted >= 5 and found.failed == 0


def test_page():
    page = Path(__file__).parents[2] / "docs" / "log-probs.md"
    found = doctest.testfile(str(page), module_relative=False, optionflags=OPTIONS)
    assert found.attempted >= 8 and found.failed == 0
