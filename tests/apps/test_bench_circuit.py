"""The circuit benchmark: its table, its ratios, and what it says where it cannot run."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from apps import bench_circuit  # noqa: E402
from pfkit.lse import cuda  # noqa: E402

ROW = {"max_error": 1e-4, "mean_error": 1e-5}


def table(times):
    return {
        "log_likelihood": -700.25,
        "sum_regions": 5,
        "levels": 3,
        "contenders": {name: {"ms": ms, **ROW} for name, ms in times.items()},
    }


def test_the_table_shows_time_beside_error_and_the_ratios(capsys):
    times = {"PyJuice": 4.0, "PyJuice, graph": 1.2, "torch": 30.0, "fuse": 3.0, "matmul": 0.5}
    bench_circuit.show(64, table(times | {"matmul, graph": 0.4}))
    out = capsys.readouterr().out
    assert "K = 64: 5 sum regions in 3 levels, mean log-likelihood -700.2 nats" in out
    assert "PyJuice, graph                1.200     1.0e-04     1.0e-05" in out
    assert "matmul, graph over PyJuice, graph: 3.00 times as fast" in out
    assert "matmul over PyJuice: 8.00 times as fast" in out
    assert "fuse over torch: 10.00 times as fast" in out


def test_ratios_name_the_contender_that_ran(capsys):
    bench_circuit.show(64, table({"PyJuice, graph, CUTLASS": 2.0, "matmul, graph": 0.5}))
    assert "matmul, graph over PyJuice, graph, CUTLASS: 4.00 times as fast" in capsys.readouterr().out


def test_ratios_of_what_did_not_run_are_left_out(capsys):
    bench_circuit.show(64, table({"matmul": 0.5, "matmul, graph": 0.4}))
    assert "times as fast" not in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(cuda, "missing", lambda: "no NVIDIA driver on this machine")
    assert bench_circuit.main(["--units", "32"]) == 1
    assert "no NVIDIA driver on this machine" in capsys.readouterr().err


def test_without_the_images_it_names_the_file(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cuda, "missing", lambda: "")
    monkeypatch.setattr(bench_circuit, "DATA", tmp_path / "absent.npz")
    assert bench_circuit.main([]) == 1
    assert "absent.npz" in capsys.readouterr().err
