"""Log-probabilities of given tokens under a language model's logits, in one read of the logits.

What reinforcement learning from feedback, preference optimisation and evaluation ask of a model: log p(token)
at every position, over vocabularies of 32 to 256 thousand. With z = logits / temperature,

    log p(t) = z_t - log sum_j exp z_j,        entropy = -sum_j p_j log p_j,

without a tensor of the logits' size: neither a copy, nor a softmax, nor a gradient before it is asked for.
"""

from __future__ import annotations

import torch

from . import token_cpu, token_op
from .arguments import FLOATS, INTEGERS, check_ignore_index, check_temperature
from .token_terms import Terms

_Tensor = torch.Tensor
KERNELS = ("fuse", "int", "int-pairwise", "fuse16", "int16")
CUDA_ONLY = ("fuse16", "int16")


def token_log_probs(
    logits: _Tensor,
    tokens: _Tensor,
    *,
    temperature: float = 1.0,
    return_entropy: bool = False,
    return_lse: bool = False,
    ignore_index: int | None = -100,
    lse: str = "fuse",
    validate: bool = False,
) -> _Tensor | tuple[_Tensor, ...]:
    """Log-probabilities of `tokens` under the softmax of `logits` over their last dimension, in nats.

    Parameters
    ----------
    logits : torch.Tensor, shape (..., V)
        float32, bfloat16, float16 or float64, on the CPU or a CUDA device. Never written to. The leading
        dimensions may have any strides: slices such as ``logits[:, :-1]`` or ``logits[..., :vocabulary]`` are
        read where they are. A vocabulary that is not contiguous is copied first.
    tokens : torch.Tensor, shape (...) or (..., K)
        Integer ids in [0, V): one a row of logits, or K a row. On the logits' device.
    temperature : float
        Divides the logits, before the softmax. From 1e-30 to 1e30.
    return_entropy, return_lse : bool
        Whether to return the entropy of each row's distribution, and the log-sum-exp of ``logits /
        temperature`` (for a z-loss, label smoothing, or to join vocabularies).
    ignore_index : int or None
        Tokens with this id get log-probability 0 and gradient 0. A row all of whose tokens have it also gets
        entropy 0, log-sum-exp 0 and gradient 0, whatever its logits are; long rows are then not read at all.
        None: no id is passed over.
    lse : {"fuse", "fuse16", "int", "int-pairwise", "int16"}
        Kernel; see Notes.
    validate : bool
        CUDA: check the ids first and raise for a bad one. This waits for the device, so it cannot be captured
        in a CUDA graph.

    Returns
    -------
    log_probs : torch.Tensor
        Shaped like `tokens`; float32, or float64 for float64 logits.
    entropy : torch.Tensor, shape (...)
        If `return_entropy`. The same dtype, not negative.
    lse : torch.Tensor, shape (...)
        If `return_lse`. The same dtype.

    Raises
    ------
    TypeError
        For arguments that are no tensors, logits that are not floating-point, tokens that are not integers,
        "fuse16" with logits that are not 16 bits wide.
    ValueError
        For shapes or devices that do not fit, an empty vocabulary, a temperature out of range, an unknown
        kernel, or an id that is neither in [0, V) nor `ignore_index` (on CUDA only with `validate`; otherwise
        such a token's log-probability is NaN, and so is its row's gradient, unless the token's own is 0).

    Notes
    -----
    **Arithmetic.** ``(x - max) / T - log(sum exp((x - max) / T))``, in float32 (float64) with the last step
    in float64: an offset common to a row changes nothing, whatever its size; 16-bit logits give what their
    float32 copy gives. Error against the exact value of the same logits: for ``"fuse"`` that of the
    log-sum-exp (``pfkit.kernels()``; below 1e-6 in practice) and one rounding of the result.

    **Edges.** Logits of -inf have probability 0 and add 0 to the entropy. A row of nothing but -inf has
    log-probabilities -inf, entropy 0, log-sum-exp -inf and gradient 0. A row with NaN or +inf has
    log-probabilities, entropy and gradient NaN.

    **Gradient.** One kernel recomputes the probabilities from two numbers a row and writes the gradient
    once, that of the entropy and the log-sum-exp included. Long rows whose incoming gradient is 0 are not
    read. Twice differentiable; second derivatives go through torch's own operations.

    **Kernels.** On CUDA ``"fuse"`` is one launch that reads the logits once (few very long rows: a second,
    tiny one), and ``"fuse16"`` is the same, for 16-bit logits only. ``"int"``, ``"int-pairwise"`` and
    ``"int16"`` take the log-sum-exp from the integer kernels and gather the tokens' logits in further small
    launches; a temperature other than 1 makes a scaled copy, an entropy another read by the float kernel.
    Their results are off by at most the kernel's bound. On the CPU ``"fuse"``, ``"int"`` and
    ``"int-pairwise"`` run.

    Equal calls give equal bits. Works under ``torch.compile(fullgraph=True)`` and in CUDA graphs. Under
    ``torch.func``'s transforms and in forward mode torch's own operations run instead, with the edges above;
    they hold tensors of the logits' size and do not check ids. The online softmax normaliser: Milakov &
    Gimelshein 2018, arXiv:1805.02867.

    Examples
    --------
    >>> import torch, pfkit
    >>> logits = torch.tensor([[2.0, 1.0, 0.1, -1.0], [0.0, 0.0, -torch.inf, 0.0]])
    >>> pfkit.token_log_probs(logits, torch.tensor([1, 3]))
    tensor([-1.4493, -1.0986])
    >>> two = torch.tensor([[0, 1], [3, -100]])
    >>> logp, entropy = pfkit.token_log_probs(logits, two, return_entropy=True)
    >>> logp
    tensor([[-0.4493, -1.4493],
            [-1.0986,  0.0000]])
    """
    key = None
    if not torch.compiler.is_compiling() and not validate and token_op.plain(logits, tokens):
        key = token_op.call_key(logits, tokens, temperature, return_entropy, return_lse, ignore_index, lse)
        ready = token_op.find_ready(key)
        if ready is not None:
            return ready(logits, tokens)
    one, temperature, ignore = _check(logits, tokens, temperature, ignore_index, lse)
    terms = Terms(temperature, bool(return_entropy), bool(return_lse), ignore, lse)
    ids = tokens.unsqueeze(-1) if one else tokens
    if ids.dtype != torch.int64:
        ids = ids.to(torch.int64)
    if validate and logits.is_cuda:
        token_cpu.check_ids(ids, logits.shape[-1], ignore)
    if key is not None and lse in ("fuse", "fuse16"):
        token_op.make_ready(key, logits, tokens, terms)
    log_probs, entropy, value, _ = token_op.direct(logits, ids, terms)
    if one:
        log_probs = log_probs.squeeze(-1)
    extra = ((entropy,) if return_entropy else ()) + ((value,) if return_lse else ())
    return (log_probs, *extra) if extra else log_probs


def _check(
    logits: _Tensor, tokens: _Tensor, temperature: float, ignore_index: int | None, lse: str
) -> tuple[bool, float, int | None]:
    """Whether there is one token a row without a dimension of its own; temperature and ignored id as plain
    numbers."""
    for name, x in (("logits", logits), ("tokens", tokens)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
        if x.layout != torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}")
    if logits.dtype not in FLOATS:
        raise TypeError(f"logits must be float32, float64, float16 or bfloat16, got {logits.dtype}")
    if tokens.dtype not in INTEGERS:
        raise TypeError(f"tokens must be integer ids, got {tokens.dtype}")
    if logits.dim() == 0:
        raise ValueError("logits must have a last dimension, the vocabulary; got a scalar")
    one = tokens.dim() == logits.dim() - 1
    if tokens.shape[: logits.dim() - 1] != logits.shape[:-1] or not (one or tokens.dim() == logits.dim()):
        raise ValueError(
            f"tokens of shape {tuple(tokens.shape)} do not fit logits of shape {tuple(logits.shape)}: "
            f"expected {tuple(logits.shape[:-1])}, or that and one more dimension for several tokens a row"
        )
    if tokens.device != logits.device:
        raise ValueError(f"tokens are on {tokens.device}, logits on {logits.device}")
    if logits.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"logits must be on the CPU or a CUDA device, got {logits.device}")
    if logits.shape[-1] == 0:
        raise ValueError(f"the vocabulary is empty: logits have shape {tuple(logits.shape)}")
    check_temperature(temperature)
    check_ignore_index(ignore_index, optional=True)
    if lse not in KERNELS:
        raise ValueError(f"unknown lse {lse!r}; accepted: {', '.join(KERNELS)}")
    if lse in CUDA_ONLY and logits.device.type == "cpu":
        raise ValueError(f"lse={lse!r} runs on CUDA tensors only")
    if lse == "fuse16" and logits.dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(f"lse='fuse16' takes float16 and bfloat16 logits, got {logits.dtype}; use 'fuse'")
    return one, float(temperature), None if ignore_index is None else int(ignore_index)
