"""Cross-entropy and log-probabilities of a language model's last layer without its logits.

A model of 128256 tokens needs 2 GiB for the bf16 logits of 8192 positions, and as much again for their
gradient. Here they are made a chunk of the vocabulary at a time: the product of the hidden states with some
rows of the weight is folded into a running log-sum-exp of every position while it still lies in the cache,
and overwritten by the next one. Backward makes each chunk again, turns it into its gradient, and lets it act
on the hidden states and the weight.

    loss = pfkit.linear_cross_entropy(hidden, lm_head.weight, targets)      # hidden: (..., H), targets: (...)
    loss.backward()
    log_p = pfkit.linear_log_probs(hidden, lm_head.weight, tokens)          # log p(token), float32

Nothing is approximated: no gradient is filtered, sums over positions and over the vocabulary are made in
float32, and equal calls on one device give equal bits (no atomics).

**Scratch.** `memory` is a budget in bytes for all that is neither an input nor a returned gradient. None
takes what full speed needs without whole logits: chunks of 32 MiB, in backward of 56 MiB or 3584 columns, the
float32 sum of the gradient of 16-bit `hidden`, and the logits themselves if they are no more than 256 MiB.
Less makes smaller chunks; more keeps logits from forward to backward, and each kept chunk saves its product:
``len(targets) * len(weight) * itemsize + 300e6`` bytes keep them all, which float32 training gains most by.
The library of matrix products has its own workspace, which torch counts once a process.

**Precision.** A chunk is rounded to the inputs' dtype unless ``logits_dtype=torch.float32``; a 16-bit logit
of magnitude 16 then errs by up to 2**-4 (bfloat16) or 2**-7 (float16), as in torch's own layers. On Hopper
GPUs, 16-bit inputs take a kernel that stores no logits and rounds none but those it keeps for backward. From
the logits on all is float32 (float64 for float64 inputs): a row's loss is within 2e-6 of a float64 evaluation
of the same logits, plus one rounding; the maximum is subtracted before anything else, so a common offset of
the logits changes nothing. The products' own float32 sums, on tensor cores, are good to about 1e-6 of the
largest partial sum. float32 inputs multiply in TF32 where torch is set to
(``torch.backends.cuda.matmul.allow_tf32``), else in float32.

**Traps.** The gradient in a chunk has the inputs' dtype: with float16 scale the loss as usual. Targets out of
range raise on the CPU and make that row NaN on the GPU, where looking at them would stop the stream. Second
derivatives raise. Vocabulary columns that must not count get a bias of -inf (label smoothing gives them a
share: the loss is then inf, as torch's is).
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import torch

from . import linear_ready
from .arguments import FLOATS, INTEGERS, check_ignore_index, check_number, check_temperature
from .linear_op import refuse_transforms, rows_of_loss

LEAST_CAP, LARGEST_CAP = 1e-4, 1e4


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    logits_dtype: torch.dtype | None = None,
    memory: int | None = None,
) -> torch.Tensor:
    """Cross-entropy of ``hidden @ weight.T`` against `targets`, in nats, without holding the logits.

    Parameters
    ----------
    hidden : Tensor of shape (..., H)
        float32, float64, float16 or bfloat16.
    weight : Tensor of shape (V, H)
        The last layer's weight, of hidden's dtype; any strides.
    targets : integer Tensor of shape (...)
        Columns of the vocabulary, or `ignore_index`.
    bias : Tensor of shape (V,), optional
        Added to the products in float32.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of targets that are not ignored (0 if there are none).
    ignore_index : int
        Rows with this target have loss 0 and no gradient. On the GPU their hidden states must be finite all
        the same: NaN or inf there makes the whole gradient of `weight` NaN. On the CPU they may hold anything
        (if not finite, backward takes a copy of `hidden` beyond the budget).
    label_smoothing : float in [0, 1]
        e: the target's share is 1 - e + e / V, every other column's e / V.
    softcap : float, optional
        Logits become ``softcap * tanh(logits / softcap)``, but -inf where the bias is. From 1e-4 to 1e4; on
        the GPU a capped logit errs by up to 3e-7 of the cap.
    z_loss : float
        Adds ``z_loss * logsumexp(logits)**2`` to the loss of every row.
    logits_dtype : torch.float32, optional
        Keep a chunk of logits in float32 where the inputs are 16-bit. Twice the scratch.
    memory : int, optional
        Scratch budget in bytes; see the module's docstring.

    Returns
    -------
    Tensor
        float32 (float64 for float64 inputs): a scalar, or targets' shape for "none".

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong kind, shape or range, a budget below the least and, on the CPU, a target
        out of range; the message names the value.
    NotImplementedError
        When a second derivative is asked for, or one by torch.func's transforms or in forward mode.

    Notes
    -----
    Forward is the online softmax of Milakov & Gimelshein (2018) over chunks of columns; the derivative of a
    row's loss in its logits is ``softmax - onehot``, which backward makes from the row's maximum and sum.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    options = (
        type(ignore_index), ignore_index, label_smoothing, softcap, 1.0, z_loss, logits_dtype, memory
    )  # fmt: skip
    key = options if bias is None else None
    loss = linear_ready.rows_of_loss(key, hidden, weight, targets, reduction == "none")
    if loss is not None:
        return _reduced(loss.view(targets.shape), targets, reduction, ignore_index)
    check_number("label_smoothing", label_smoothing)
    check_number("z_loss", z_loss)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must lie in [0, 1], got {label_smoothing!r}")
    if not -math.inf < z_loss < math.inf:  # not math.isfinite: torch.compile may know it as a symbol
        raise ValueError(f"z_loss must be finite, got {z_loss!r}")
    loss, flat = _rows(
        hidden, weight, targets, bias, ignore_index, label_smoothing, softcap, 1.0, z_loss, logits_dtype,
        memory, key,
    )  # fmt: skip
    return _reduced(loss.reshape(targets.shape), flat, reduction, ignore_index)


def linear_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    ignore_index: int = -100,
    softcap: float | None = None,
    logits_dtype: torch.dtype | None = None,
    memory: int | None = None,
) -> torch.Tensor:
    """log p(target) under ``softmax(hidden @ weight.T / temperature)``, in nats, without holding the logits.

    Parameters
    ----------
    temperature : float
        Divides the logits, after `softcap`; from 1e-30 to 1e30. The logits over the temperature must be
        finite in float32.
    hidden, weight, targets, bias, ignore_index, softcap, logits_dtype, memory
        As in :func:`linear_cross_entropy`. Ignored targets give 0. In order: the logits are the products plus
        `bias`, capped, divided by the temperature.

    Returns
    -------
    Tensor
        float32 (float64 for float64 inputs), of targets' shape; differentiable in hidden, weight and bias.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As :func:`linear_cross_entropy`; ValueError for a temperature out of range.
    """
    options = (type(ignore_index), ignore_index, 0.0, softcap, temperature, 0.0, logits_dtype, memory)
    key = options if bias is None else None
    loss = linear_ready.rows_of_loss(key, hidden, weight, targets, False)
    if loss is not None:
        return (0 - loss).reshape(targets.shape)
    check_temperature(temperature)
    loss, _ = _rows(
        hidden, weight, targets, bias, ignore_index, 0.0, softcap, 1 / temperature, 0.0, logits_dtype, memory,
        key,
    )  # fmt: skip
    return (0 - loss).reshape(targets.shape)  # 0 where ignored, not -0


def _rows(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, bias: torch.Tensor | None,
    ignore_index: int, smoothing: float, softcap: float | None, scale: float, z_loss: float,
    logits_dtype: torch.dtype | None, memory: int | None, key: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The loss of every row, and the targets as a vector. The next call with `key` is made ready."""
    _check_tensors(hidden, weight, targets, bias)
    check_ignore_index(ignore_index, optional=False)
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        # The inputs as a linear layer's; what follows chooses its own types.
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return _rows(
                hidden.to(dtype), weight.to(dtype), targets, bias, ignore_index, smoothing, softcap, scale,
                z_loss, logits_dtype, memory,
            )  # fmt: skip
    if softcap is not None:
        check_number("softcap", softcap)
        if not LEAST_CAP <= softcap <= LARGEST_CAP:
            raise ValueError(
                f"softcap must be from {LEAST_CAP:g} to {LARGEST_CAP:g}, or None, got {softcap!r}"
            )
    if logits_dtype is not None and logits_dtype not in (hidden.dtype, torch.float32):
        raise ValueError(f"logits_dtype must be None, torch.float32 or {hidden.dtype}, got {logits_dtype}")
    if logits_dtype == hidden.dtype or hidden.dtype == torch.float64:
        logits_dtype = None
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, Integral) or memory < 0):
        raise ValueError(f"memory must be None or a number of bytes, got {memory!r}")
    if key is not None:
        given = float(softcap or 0.0), float(scale), float(smoothing), float(z_loss)
        linear_ready.remember(key, hidden, weight, targets, *given, int(ignore_index), logits_dtype, memory)
    rows = hidden.reshape(-1, hidden.shape[-1])
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    if 1 not in weight.stride():
        weight = weight.contiguous()
    flat = targets.reshape(-1).to(torch.int64).contiguous()
    if bias is not None:
        bias = bias.to(torch.float64 if hidden.dtype == torch.float64 else torch.float32).contiguous()
    mode = 0
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (rows, weight, bias)):
        mode = 2 if rows.requires_grad else 1
    refuse_transforms((rows, weight, bias), mode > 0)
    loss = rows_of_loss(
        rows, weight, flat, bias, int(ignore_index), float(smoothing), float(softcap or 0.0), float(scale),
        float(z_loss), logits_dtype, -1 if memory is None else int(memory), mode,
    )  # fmt: skip
    return loss, flat


def _reduced(loss: torch.Tensor, targets: torch.Tensor, reduction: str, ignore_index: int) -> torch.Tensor:
    """`loss` itself, its sum, or the mean over the targets that count."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    return loss.sum() / (targets != ignore_index).sum().clamp_min(1)


def _check_tensors(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, bias: torch.Tensor | None
) -> None:
    named: dict[str, Any] = {"hidden": hidden, "weight": weight, "targets": targets}
    if bias is not None:
        named["bias"] = bias
    for name, x in named.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
        if x.device != hidden.device:
            raise ValueError(f"{name} lies on {x.device}, hidden on {hidden.device}")
        if x.layout != torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}")
    if hidden.device.type not in ("cpu", "cuda"):
        raise ValueError(f"hidden must be on the CPU or a CUDA device, got {hidden.device}")
    if hidden.dtype not in FLOATS:
        raise TypeError(f"hidden must be float32, float64, float16 or bfloat16, got {hidden.dtype}")
    if weight.dtype != hidden.dtype:
        raise TypeError(f"weight must have hidden's dtype {hidden.dtype}, got {weight.dtype}")
    if targets.dtype not in INTEGERS:
        raise TypeError(f"targets must be signed integers or uint8, got {targets.dtype}")
    if bias is not None and not bias.dtype.is_floating_point:
        raise TypeError(f"bias must be floating-point, got {bias.dtype}")
    if hidden.dim() < 1 or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden (..., H) and weight (V, H) do not fit: {tuple(hidden.shape)}, {tuple(weight.shape)}"
        )
    if not weight.shape[0] or not weight.shape[1]:
        raise ValueError(f"weight must have rows and columns, got shape {tuple(weight.shape)}")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"targets must have hidden's leading shape {tuple(hidden.shape[:-1])}, got {tuple(targets.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({weight.shape[0]},), got {tuple(bias.shape)}")
