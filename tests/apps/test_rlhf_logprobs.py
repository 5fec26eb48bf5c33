"""The demo of log-probabilities in reinforcement learning: agreement, divergences, report, picture."""

import importlib.util
import json
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from apps import rlhf_logprobs, smollm2  # noqa: E402

SMALL = ["--length", "24", "--hidden", "64", "--layers", "1", "--repeats", "1"]


def test_stored_logits_agree_with_their_exact_values():
    text = rlhf_logprobs.stored_logits("cpu")
    errors = [float(e) for e in re.findall(r"largest error (\S+) nats", text)]
    assert len(errors) == 3 and max(errors) <= 2e-6


def test_exact_divergence_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    logits = np.random.default_rng(0).normal(size=(3, 40)) * 3
    got = rlhf_logprobs.exact_divergence(logits, 0.7)
    p, q = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (logits / 0.7, logits))
    assert np.allclose(got, stats.entropy(p, q, axis=1), rtol=1e-10)


def test_divergence_has_the_mean_of_the_kl_and_is_never_negative():
    g = torch.Generator().manual_seed(0)
    p, q = (torch.log_softmax(torch.randn(20, generator=g, dtype=torch.float64), 0) for _ in range(2))
    drawn = torch.multinomial(p.exp(), 200_000, replacement=True, generator=g)
    kept = torch.zeros(1, len(drawn), dtype=torch.int64)
    estimate = rlhf_logprobs.divergence(p[drawn][None], q[drawn][None], kept)
    exact = (p.exp() * (p - q)).sum()
    r = q - p
    spread = float((p.exp() * (torch.expm1(r) - r - exact) ** 2).sum()) ** 0.5
    assert abs(float(estimate[0] - exact)) < 4 * spread / len(drawn) ** 0.5
    assert bool((torch.expm1(r) - r >= 0).all())


def test_a_completion_without_tokens_has_no_divergence():
    nothing = torch.full((2, 5), rlhf_logprobs.PAD)
    nothing[1, 2] = 0
    p = torch.full((2, 5), -1.0)
    found = rlhf_logprobs.divergence(p, p - 1, nothing)
    assert found[0] == 0 and found[1] > 0


@pytest.mark.parametrize("kind", ["built-in", "transformers"])
def test_the_whole_app(tmp_path, capsys, kind):
    if kind == "transformers" and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    out, numbers = tmp_path / "picture.png", tmp_path / "numbers.json"
    files = ["--out", str(out), "--json", str(numbers)]
    assert rlhf_logprobs.main([*SMALL, "--vocabulary", "500", "32000", "--backbone", kind, *files]) == 0
    if importlib.util.find_spec("matplotlib"):
        assert out.stat().st_size > 5000
    rows = json.loads(numbers.read_text())
    assert [row["vocabulary"] for row in rows] == [500, 32000]
    for row in rows:
        divergences = [row[m]["kl"] for m in rlhf_logprobs.METHODS]
        assert 0 < min(divergences) and max(divergences) - min(divergences) < 1e-6
        assert all(row[m]["difference"] < 5e-6 and 0 < row[m]["share"] < 1 for m in rlhf_logprobs.METHODS)
    printed = capsys.readouterr().out
    assert "SmolLM2" in printed and printed.count("linear") == 2


def test_only_completion_tokens_have_targets():
    options = rlhf_logprobs.argparse.Namespace(seed=0, batch=16, length=40, device="cpu")
    ids, targets = rlhf_logprobs.completions(1000, options)
    live = targets != rlhf_logprobs.PAD
    assert torch.equal(targets[live], ids[:, 1:][live])
    assert bool(live.any(1).all()) and not bool(live.all(1).any())


@pytest.mark.parametrize("name", ["batch", "hidden", "layers", "repeats", "vocabulary"])
def test_sizes_of_zero_are_refused(capsys, name):
    with pytest.raises(SystemExit):
        rlhf_logprobs.main([f"--{name}", "0"])
    assert f"--{name} must be at least 1, got 0" in capsys.readouterr().err


def test_a_gpu_that_is_not_there(capsys):
    if torch.cuda.is_available():
        pytest.skip("a GPU is there")
    assert rlhf_logprobs.main(["--device", "cuda"]) == 1
    assert "no GPU" in capsys.readouterr().err


def test_the_real_model_if_it_is_installed():
    if reason := smollm2.missing():
        assert reason in smollm2.report()
        pytest.skip(reason)
    off = float(re.search(r"largest difference (\S+) nats", smollm2.report())[1])
    assert off < 1e-4
