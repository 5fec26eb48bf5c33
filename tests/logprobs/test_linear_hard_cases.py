"""Inputs that broke other cross-entropies, through a last layer whose products are the given logits."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.logprobs.linear import linear_cross_entropy, linear_log_probs  # noqa: E402

F = torch.nn.functional
DATA = Path(__file__).parents[2] / "data" / "logprob"


def layer(logits, device="cpu"):
    """hidden and weight with hidden @ weight.T equal to the logits in every bit."""
    return torch.eye(len(logits), dtype=logits.dtype, device=device), logits.t().contiguous().to(device)


def test_padding_label(device):
    """https://github.com/huggingface/trl/issues/1995 https://github.com/allenai/open-instruct/pull/1817"""
    logits = torch.zeros(3, 128)
    logits[0, 2], logits[1, 28], logits[2, 0] = 1.5, 9.0, -2.0
    targets = torch.tensor([2, -100, 0], device=device)
    got = linear_log_probs(*layer(logits, device), targets)
    assert got.tolist() == pytest.approx([-3.378867595308711, 0.0, -6.8452521512271645], rel=3e-7)


def test_masked_sequences(device):
    """https://github.com/allenai/open-instruct/pull/1685 https://github.com/huggingface/trl/pull/5343"""
    hidden, weight = layer(torch.tensor([[0.0, -math.inf], [1.0, 2.0]]).nan_to_num(neginf=-1e30), device)
    nothing = torch.full((2,), -100, device=device)
    assert linear_cross_entropy(hidden, weight, nothing).item() == 0
    one = torch.tensor([-100, 1], device=device)
    got = linear_log_probs(hidden, weight, one)
    assert got[0] == 0 and got[1].item() == pytest.approx(-math.log1p(math.exp(-1)), rel=1e-6)


def test_temperature(device):
    """https://github.com/huggingface/trl/issues/4159 https://github.com/OpenRLHF/OpenRLHF/pull/853"""
    hidden, weight = layer(torch.tensor([[2.0, 1.0, 0.1, -1.0]]), device)
    token = torch.tensor([1], device=device)
    for temperature, want in ((1.0, -1.4493130023803544), (0.6, -1.879967855122461)):
        got = linear_log_probs(hidden, weight, token, temperature=temperature)
        assert got.item() == pytest.approx(want, rel=4e-7)
    with pytest.raises(ValueError, match="temperature"):
        linear_log_probs(hidden, weight, token, temperature=0.0)


def test_padded_vocabulary(device):
    """https://github.com/Blaizzy/mlx-vlm/issues/1917 https://github.com/dottxt-ai/outlines/pull/236"""
    hidden, weight = layer(torch.tensor([[1.0, 2.0, 0.5, -1.0, 0.0, 1.5, -0.5, 0.25, 5.0, 5.0]]), device)
    token, bad = torch.tensor([1], device=device), torch.tensor([9], device=device)
    assert linear_log_probs(hidden, weight[:8], token).item() == pytest.approx(-0.9702187431352486, rel=4e-7)
    closed = torch.zeros(10, device=device)
    closed[8:] = -math.inf
    got = linear_log_probs(hidden, weight, token, bias=closed)
    assert got.item() == pytest.approx(-0.9702187431352486, rel=4e-7)
    if device == "cpu":
        with pytest.raises(ValueError, match="9"):
            linear_log_probs(hidden, weight[:8], bad)
    else:
        assert linear_log_probs(hidden, weight[:8], bad).isnan().all()


def test_real_logits(device):
    """https://github.com/nod-ai/amd-shark-ai/pull/1588 https://github.com/huggingface/trl/issues/454"""
    with np.load(DATA / "smollm2_logits_f16.npz") as z:
        logits, targets = torch.from_numpy(z["logits"]), torch.from_numpy(z["targets"]).to(device)
    rows = json.loads((DATA / "smollm2_reference.json").read_text(encoding="utf-8"))["rows"]
    for name, temperature in (("logprob", 1.0), ("logprob_T0.7", 0.7)):
        for memory in (None, 24 * 6 + 6 * 2 * 1024):
            got = linear_log_probs(*layer(logits, device), targets, temperature=temperature, memory=memory)
            want = torch.tensor([row[name] for row in rows], dtype=torch.float64)
            assert float((got.cpu().double() - want).abs().max()) <= 2e-6


def test_transposed_hidden_states(device):
    """https://github.com/NVIDIA/TransformerEngine/issues/2734 https://github.com/pytorch/audio/issues/4215"""
    x = (torch.arange(64.0).reshape(4, 2, 8) % 7 * 0.5).transpose(0, 1).to(device)
    tokens = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]], device=device)
    got = linear_log_probs(x, torch.eye(8, device=device), tokens)
    want = [[-3.922087768393493, -2.4555433270182365, -1.0412045681417101, -3.2426397905259945],
            [-1.434850473336958, -3.488751949681082, -2.122093849849067, -3.922087768393493]]  # fmt: skip
    assert torch.allclose(got.cpu(), torch.tensor(want), rtol=4e-7, atol=0)


def test_a_product_of_infinity_is_not_hidden(device):
    """A row whose logits are not numbers says so instead of giving a plausible loss."""
    hidden, weight = torch.ones(2, 4, device=device), torch.ones(9, 4, device=device)
    hidden[0, 1] = math.inf
    targets = torch.zeros(2, dtype=torch.int64, device=device)
    got = linear_cross_entropy(hidden, weight, targets, reduction="none")
    assert got[0].isnan() and got[1].item() == pytest.approx(math.log(9), rel=1e-6)


@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocabulary", [128, 512, 50257, 128256])
def test_vocabularies_smoothing_and_z_loss(device, vocabulary, label_smoothing, z_loss):
    """The grid of public cross-entropy tests: vocabularies, smoothing, z-loss, a tenth of rows ignored."""
    g = torch.Generator().manual_seed(vocabulary)
    x, w = torch.randn(20, 8, generator=g), torch.randn(vocabulary, 8, generator=g)
    t = torch.randint(vocabulary, (20,), generator=g)
    t[::10] = -100
    x, w, t = (a.to(device) for a in (x, w, t))
    x.requires_grad_()
    w.requires_grad_()
    got = linear_cross_entropy(
        x, w, t, label_smoothing=label_smoothing, z_loss=z_loss, reduction="none", memory=3 * 10**6
    )

    def whole(z):
        rows = F.cross_entropy(z, t, reduction="none", label_smoothing=label_smoothing)
        return rows + torch.where(t == -100, 0, z_loss * torch.logsumexp(z, 1) ** 2)

    want, theirs = whole(x.double() @ w.double().t()), whole(x @ w.t())
    assert float((got.detach().double() - want).abs().max()) < 2e-5
    outer = torch.randn(20, generator=g).to(device)
    grads = (torch.autograd.grad(rows, (x, w), outer.to(rows.dtype)) for rows in (got, want, theirs))
    for a, e, other in zip(*grads, strict=True):
        errors = [float((b.double() - e.double()).norm() / e.double().norm()) for b in (a, other)]
        assert errors[0] <= max(1.1 * errors[1], 1e-6)
