"""What the log-probability tests share: inputs, and a float64 reference from torch's operations."""

import math

import pytest


@pytest.fixture(scope="session")
def exact():
    """(log-probabilities, entropy, log-sum-exp) in float64 by log_softmax; differentiable."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def reference(logits, tokens, temperature=1.0, ignore_index=-100):
        z = logits.double() / temperature
        ids = tokens.long() if tokens.dim() == logits.dim() else tokens.long()[..., None]
        counts = ids != ignore_index
        scored = counts.any(-1) if ids.shape[-1] else torch.ones_like(counts.any(-1))
        log_p = torch.log_softmax(z, -1)
        picked = log_p.gather(-1, torch.where(counts, ids, 0))
        log_probs = torch.where(counts, picked, 0).reshape(tokens.shape)
        entropy = -(log_p.exp() * log_p.clamp_min(-1e300)).sum(-1)
        value = torch.logsumexp(z, -1)
        return log_probs, torch.where(scored, entropy, 0), torch.where(scored, value, 0)

    return reference


@pytest.fixture(scope="session")
def normal():
    """Seeded normal logits on any device: normal(shape, dtype, device, seed, scale)."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def make(shape, dtype=None, device="cpu", seed=0, scale=4.0):
        generator = torch.Generator(device=device).manual_seed(seed)
        x = torch.randn(shape, generator=generator, device=device) * scale
        return x.to(dtype or torch.float32)

    return make


@pytest.fixture(scope="session")
def ids():
    """Seeded token ids, every tenth the ignored one if asked for: ids(shape, vocabulary, device)."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def make(shape, vocabulary, device="cpu", seed=1, ignored=False):
        generator = torch.Generator(device=device).manual_seed(seed)
        tokens = torch.randint(0, vocabulary, shape, generator=generator, device=device)
        if ignored:
            tokens.view(-1)[:: 10 if math.prod(shape) >= 10 else 3] = -100
        return tokens

    return make
