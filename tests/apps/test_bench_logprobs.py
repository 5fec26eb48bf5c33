"""The benchmark of log-probabilities where there is no GPU: it says so, and knows its own parts."""

import pytest

from apps import bench_logprobs
from pfkit.lse import cuda


def test_without_a_gpu_it_says_what_is_missing(capsys):
    if not cuda.missing():
        pytest.skip("CUDA kernels run here")
    assert bench_logprobs.main(["token"]) == 1
    assert cuda.missing() in capsys.readouterr().err


def test_unknown_parts_are_named(capsys):
    with pytest.raises(SystemExit):
        bench_logprobs.main(["tokens"])
    assert "tokens" in capsys.readouterr().err


def test_a_helion_kernel_needs_its_file(monkeypatch):
    monkeypatch.delenv("PFKIT_HELION_KERNEL", raising=False)
    with pytest.raises(RuntimeError, match="PFKIT_HELION_KERNEL"):
        bench_logprobs.helion_kernel("bfloat16")


def test_a_helion_kernel_is_loaded_from_its_file(monkeypatch, tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text("def fused_linear_cross_entropy(x, w, t):\n    return 7\n")
    monkeypatch.setenv("PFKIT_HELION_KERNEL", str(path))
    monkeypatch.delenv("PFKIT_HELION_CONFIGS", raising=False)
    assert bench_logprobs.helion_kernel("bfloat16")(0, 0, 0) == 7
