"""pytest plugin: in SciPy's test module, the name logsumexp means pfkit's. Loaded by test_scipy_suite."""

import functools
import os

import pytest

import pfkit

calls = 0


@functools.wraps(pfkit.logsumexp)
def replacement(*args, **kwargs):
    global calls
    calls += 1
    return pfkit.logsumexp(*args, **kwargs, lse=os.environ["PFKIT_SUITE_LSE"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        assert hasattr(module, "logsumexp"), module
        module.logsumexp = replacement


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"pfkit.logsumexp called {calls} times")
