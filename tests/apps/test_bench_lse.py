"""The log-sum-exp benchmark: it runs, checks before it times, and says what it measured."""

import json
import subprocess
import sys

import numpy as np
import pytest

from apps import bench_lse, benchmarking

SMALL = ["--sizes", "10", "200", "--seconds", "0", "--inputs", "3", "--spreads", "ordinary", "underflowing"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """One small run: its JSON and the folder."""
    out = tmp_path_factory.mktemp("bench")
    run = subprocess.run(
        [sys.executable, "-m", "apps.bench_lse", *SMALL, "--out", str(out)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return json.loads((out / "bench_lse.json").read_text()), out, run.stdout


def test_json_holds_every_cell(result):
    found, out, _ = result
    cells = {(r["dtype"], r["spread"], r["n"], r["kernel"]) for r in found["speed"]}
    kernels = {"fuse", "int", "int-pairwise", "numpy", "scipy", "np.max"}
    for dtype in ("float32", "float64"):
        for spread in ("ordinary", "underflowing"):
            for n in (10, 200):
                assert {k for d, s, m, k in cells if (d, s, m) == (dtype, spread, n)} >= kernels
    assert all(r["ns_per_element"] > 0 and r["rounds"] >= 9 for r in found["speed"])
    assert {r["input"] for r in found["robust"]} == {
        "plain",
        "a tenth -inf",
        "first half -inf",
        "spread 1000",
        "all -inf",
    }
    assert {r["kernel"] for r in found["normalize"]} == {"fuse", "int", "numpy"}
    for key in ("processor", "python", "numpy", "scipy", "pfkit", "simd_level"):
        assert found["machine"][key]


def test_errors_are_those_of_the_kernels(result):
    found, _, _ = result
    for row in found["speed"]:
        if row["kernel"] == "np.max":
            assert "max_error" not in row
            continue
        assert 0 <= row["p95_error"] <= row["max_error"]
        if row["spread"] == "ordinary":
            limit = {"int": 3e-5, "int-pairwise": 0.1}.get(
                row["kernel"], 1e-5 if row["dtype"] == "float32" else 1e-13
            )
            assert row["max_error"] <= limit
    assert (
        max(r["max_error"] for r in found["speed"] if r["kernel"] == "int" and r["dtype"] == "float64") > 1e-8
    )


def test_tables_and_picture(result):
    _, out, said = result
    for part in (
        "ns an element",
        "max error",
        "times as fast as",
        "robust path",
        "log_normalize",
        "microseconds a call",
    ):
        assert part in said
    pytest.importorskip("matplotlib")
    assert (out / "bench_lse.png").read_bytes()[:4] == b"\x89PNG"


def test_markdown_from_a_run(result):
    found, _, _ = result
    text = bench_lse.markdown(found)
    rows = [line for line in text.splitlines() if line.startswith("| float")]
    assert len(rows) == 4
    assert all(line.count("**") == 2 for line in rows)  # the fastest of each row
    assert "`int-pairwise`" in text and found["machine"]["processor"] in text


def test_a_wrong_result_stops_the_run():
    x = bench_lse.sample(100, "float64", 5.0, 0)
    bench_lse.check("fuse", bench_lse.contenders()["fuse"], x)
    with pytest.raises(SystemExit, match="fuse is off by 1.00e-06 nats.*nothing is timed"):
        bench_lse.check("fuse", lambda x: bench_lse.exact(x) + 1e-6, x)
    with pytest.raises(SystemExit, match="numpy is off by nan"):
        bench_lse.check("numpy", lambda x: np.nan, x)


def test_exact_value():
    for dtype in ("float32", "float64"):
        x = np.full(1000, 0.25, dtype)
        assert float(bench_lse.exact(x)) == pytest.approx(0.25 + np.log(1000.0), rel=1e-16)


def test_contenders_take_turns():
    seen = []
    calls = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    times = benchmarking.interleaved(calls, seconds=0.0, least_rounds=4)
    assert set(times) == set("abc") and all(
        t.rounds == 4 and t.low <= t.median <= t.high for t in times.values()
    )
    turns = [name for k, name in enumerate(seen) if k == 0 or seen[k - 1] != name]
    assert (
        len(turns) >= 3 + 4 * 3 - 4
    )  # calibration, then four rounds of three batches, each starting elsewhere


@pytest.mark.parametrize(
    "wrong", [["--sizes", "0"], ["--dtypes", "float16"], ["--spreads", "none"], ["--sizes", "x"]]
)
def test_bad_arguments(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench_lse.arguments(wrong)
    assert stopped.value.code == 2
    assert wrong[1] in capsys.readouterr().err
