"""The rules of the table of faults, and pfkit's own column of it, without any peer installed."""

import importlib.util
import json
import sys

import pytest

from apps.peers_faults import CASES, WORKERS, ask, judge, main, shorten


@pytest.fixture(scope="module")
def worker():
    """apps/peers/pfkit_worker.py as a module; it finds its harness beside itself, as it does as a script."""
    sys.path.insert(0, str(WORKERS))
    try:
        spec = importlib.util.spec_from_file_location("pfkit_worker", WORKERS / "pfkit_worker.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(WORKERS))
        sys.modules.pop("harness", None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pfkit_is_right(case, worker):
    try:
        answer = {"value": worker.H.plain(worker.CASES[case.name]())}
    except Exception as error:
        answer = {"error": type(error).__name__}
    assert judge(case, answer) == "right", answer


BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(
    "name, answer, verdict",
    [
        ("far_tail", {"value": [0.6652409557748219, 0.24472847105479764, 0.09003057317038046]}, "right"),
        ("far_tail", {"value": [1.0, 0.0, 0.0]}, "wrong"),
        ("far_tail", {"value": [float("nan")] * 3}, "NaN"),
        ("far_tail", {"error": "IndexError"}, "crash"),
        ("far_tail", {"error": "ValueError"}, "crash"),
        ("far_tail", {"absent": "no such feature"}, "-"),
        ("collapse", {"error": "FilterCollapse"}, "right"),
        ("collapse", {"error": "ZeroDivisionError"}, "crash"),
        ("collapse", {"value": {"log_likelihood": float("-inf"), "weights": [0.25] * 4}}, "right"),
        ("collapse", {"value": {"weights": [0.25] * 4}}, "wrong"),
        ("residual_offspring", {"value": [2.62, 2.61, 2.63, 2.14] + [0.0] * 6}, "wrong"),
        ("bad_weights", {"value": {"nan": "accepted", "empty": "ValueError"}}, "wrong"),
        ("bad_weights", {"value": {"nan": "ValueError", "empty": "IndexError"}}, "crash"),
        ("u_zero", {"value": [0, 1, 1, 2]}, "wrong"),
        ("last_u", {"value": [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]}, "wrong"),
    ],
)
def test_verdicts(name, answer, verdict):
    assert judge(BY_NAME[name], answer) == verdict


def test_a_worker_that_dies_is_a_crash(tmp_path):
    dies = tmp_path / "python"
    dies.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dies.chmod(0o755)
    answer = ask(str(dies), "particles", "far_tail", 10.0)
    assert answer["error"] == "ProcessDied" and judge(BY_NAME["far_tail"], answer) == "crash"


def test_the_command_line_names_what_it_does_not_know(capsys):
    with pytest.raises(SystemExit):
        main(["--python", "nobody=/usr/bin/python3"])
    assert "nobody" in capsys.readouterr().err


def test_the_record_is_plain_json():
    record = shorten({"a": [float("nan"), float("-inf"), 1.5], "b": list(range(20))})
    assert json.loads(json.dumps(record, allow_nan=False)) == {
        "a": ["nan", "-inf", 1.5],
        "b": [0, 1, 2, 3, 4, 5, "... 20 in all"],
    }
