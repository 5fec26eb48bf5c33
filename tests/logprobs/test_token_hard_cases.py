"""Inputs that broke other implementations of token log-probabilities, with the public reports behind them."""

import json
import math
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="torch is not installed")

import pfkit  # noqa: E402
from pfkit import token_log_probs  # noqa: E402

INF = math.inf
MODEL = Path(__file__).parents[2] / "data" / "logprob"


def tensor(values, device, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype, device=device)


def test_padding_labels(device):
    """https://github.com/huggingface/trl/issues/1995 https://github.com/allenai/open-instruct/pull/1817"""
    logits = torch.zeros(3, 128, dtype=torch.float64, device=device)
    logits[0, 2], logits[1, 28], logits[2, 0] = 1.5, 9.0, -2.0
    log_probs = token_log_probs(logits, torch.tensor([2, -100, 0], device=device))
    assert log_probs[1] == 0
    assert torch.allclose(
        log_probs, tensor([-3.378867595308711, 0.0, -6.8452521512271645], device), rtol=1e-13
    )


def test_masked_sequences_sum_to_what_is_left(device):
    """0/0 and -inf * 0 in the masked mean: https://github.com/allenai/open-instruct/pull/1685
    https://github.com/huggingface/trl/pull/5343 https://github.com/unslothai/unsloth-zoo/pull/1286"""
    p = math.exp(-2.0)
    logits = tensor([[[0.0, -INF], [-2.0, math.log(1 - p)]]] * 2, device)
    tokens = torch.tensor([[-100, -100], [-100, 0]], device=device)
    log_probs = token_log_probs(logits, tokens)
    counts = (tokens != -100).sum(1)
    assert torch.allclose(log_probs.sum(1), tensor([0.0, -2.0], device), rtol=1e-13)
    assert torch.allclose(log_probs.sum(1) / counts.clamp_min(1), tensor([0.0, -2.0], device), rtol=1e-13)
    hidden = token_log_probs(logits, torch.tensor([[1, -100], [-100, -100]], device=device))
    assert hidden[0, 0] == -INF and (hidden[1] == 0).all()


def test_temperature_divides_the_logits(device):
    """https://github.com/huggingface/trl/issues/4159 https://github.com/OpenRLHF/OpenRLHF/pull/853"""
    logits, token = tensor([2.0, 1.0, 0.1, -1.0], device), torch.tensor(1, device=device)
    for temperature, want in ((1.0, -1.4493130023803544), (0.6, -1.879967855122461)):
        assert float(token_log_probs(logits, token, temperature=temperature)) == pytest.approx(
            want, rel=1e-13
        )
    with pytest.raises(ValueError, match="temperature.*0"):
        token_log_probs(logits, token, temperature=0.0)


def test_logits_padded_beyond_the_vocabulary(device):
    """https://github.com/Blaizzy/mlx-vlm/issues/1917 https://github.com/facebookresearch/metaseq/issues/469"""
    logits = tensor([1.0, 2.0, 0.5, -1.0, 0.0, 1.5, -0.5, 0.25, 5.0, 5.0], device)[:8]
    value = token_log_probs(logits, torch.tensor(1, device=device))
    assert float(value) == pytest.approx(-0.9702187431352486, rel=1e-13)
    with pytest.raises(ValueError, match="token id 9 .*8"):
        token_log_probs(logits, torch.tensor(9, device=device), validate=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_language_models_logits(device, dtype):
    """SmolLM2-135M, 49152 tokens: https://github.com/nod-ai/amd-shark-ai/pull/1588
    https://github.com/huggingface/trl/issues/454"""
    with np.load(MODEL / "smollm2_logits_f16.npz") as z:
        logits, targets = torch.from_numpy(z["logits"]), torch.from_numpy(z["targets"].astype(np.int64))
    rows = json.loads((MODEL / "smollm2_reference.json").read_text())["rows"]
    logits, targets = logits.to(device, dtype), targets.to(device)
    parts = token_log_probs(logits, targets, return_entropy=True, return_lse=True)
    limit = 1e-12 if dtype == torch.float64 else 2e-6
    for part, name in zip(parts, ("logprob", "entropy", "lse"), strict=True):
        want = tensor([row[name] for row in rows], device)
        assert (part.double() - want).abs().max() <= limit + 2.0**-24 * want.abs().max() * (limit > 1e-6)
    cold = token_log_probs(logits, targets, temperature=0.7)
    want = tensor([row["logprob_T0.7"] for row in rows], device)
    assert (cold.double() - want).abs().max() <= limit + 2.0**-24 * want.abs().max() * (limit > 1e-6)


def test_logits_whose_positions_are_outermost(device):
    """https://github.com/NVIDIA/TransformerEngine/issues/2734 https://github.com/pytorch/audio/issues/4215"""
    x = (torch.arange(4 * 2 * 8) % 7 * 0.5).double().reshape(4, 2, 8).to(device)
    tokens = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]], device=device)
    want = [
        [-3.922087768393493, -2.4555433270182365, -1.0412045681417101, -3.2426397905259945],
        [-1.434850473336958, -3.488751949681082, -2.122093849849067, -3.922087768393493],
    ]
    for dtype in (torch.float64, torch.float32):
        got = token_log_probs(x.to(dtype).transpose(0, 1), tokens).double()
        assert torch.allclose(got, tensor(want, device), rtol=1e-13 if dtype == torch.float64 else 3e-7)


@pytest.mark.slow
def test_offsets_beyond_two_to_the_31(device):
    """https://github.com/PaddlePaddle/Paddle/pull/71935: 4 x 4096 x 133120 logits, a broadcast row."""
    row = torch.zeros(133120, dtype=torch.bfloat16, device=device)
    row[-1] = 3.0
    logits = row.expand(4, 4096, -1)
    tokens = torch.full((4, 4096), -100, device=device)
    tokens[-1, -3:] = torch.tensor([0, 5, 133119])
    log_probs = token_log_probs(logits, tokens)
    total = math.log(133119 + math.exp(3.0))
    want = torch.tensor([-total, -total, 3.0 - total], device=device)
    assert (log_probs[-1, -3:] - want).abs().max() <= 2e-6 and (log_probs[:-1] == 0).all()


def test_half_precision_sums_do_not_saturate(device):
    """https://github.com/google-research/last/pull/43 https://github.com/pytorch/executorch/pull/20090"""
    for dtype, n in ((torch.float16, 65536), (torch.float16, 70000), (torch.bfloat16, 512)):
        x = torch.zeros(1, n, dtype=dtype, device=device, requires_grad=True)
        value = token_log_probs(x, torch.zeros(1, dtype=torch.int64, device=device), return_lse=True)[1]
        assert value.dtype == torch.float32 and abs(float(value.detach()) - math.log(n)) <= 1e-6
        value.sum().backward()
        assert (x.grad.double() * n - 1).abs().max() <= (2.0**-8 if dtype == torch.bfloat16 else 2.0**-7)


def test_the_maximum_is_subtracted_before_the_exponential(device):
    """https://github.com/apple/coremltools/issues/2690"""
    x = torch.full((1, 32), 7.64, dtype=torch.float16, device=device)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    log_probs, value = token_log_probs(x, zero, return_lse=True)
    assert abs(float(log_probs) + math.log(32)) <= 1e-6
    assert abs(float(value) - (float(x[0, 0]) + math.log(32))) <= 2e-6


def test_vocabulary_shards_join(device, normal, ids, exact):
    """Vocabulary-parallel: each shard gives its log-sum-exp, and its tokens' logits relative to it.
    https://github.com/volcengine/verl/issues/7945"""
    n, cuts = 5000, (0, 1234, 1235, 5000)
    x, tokens = normal((6, n), device=device), ids((6,), n, device)
    shares, values = [], []
    for begin, end in zip(cuts, cuts[1:], strict=False):
        inside = (tokens >= begin) & (tokens < end)
        local = torch.where(inside, tokens - begin, 0)
        log_probs, value = token_log_probs(x[:, begin:end], local, return_lse=True)
        shares.append(torch.where(inside, log_probs + value, 0))
        values.append(value)
    total = pfkit.logsumexp(torch.stack(values), 0)
    assert (sum(shares) - total - exact(x, tokens)[0]).abs().max() <= 5e-6
