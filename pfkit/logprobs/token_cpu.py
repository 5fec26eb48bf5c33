"""Token log-probabilities of CPU tensors: rows in blocks, each through a compiled log-sum-exp kernel.

A block holds about a million logits in the compute dtype, so nothing of the logits' size is allocated; rows
whose tokens are all ignored are not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pfkit_ext import _cpu

_Tensor = torch.Tensor
BLOCK = 1 << 20
_FLOOR = -1000.0  # exp of it is 0, and 0 times it is 0: no 0 * -inf


def check_ids(tokens: _Tensor, n: int, ignore: int | None) -> None:
    """Raise ValueError with the first id of `tokens` that is neither in [0, n) nor `ignore`."""
    bad = (tokens < 0) | (tokens >= n)
    if ignore is not None:
        bad &= tokens != ignore
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"token id {int(tokens[where])} at {where} is outside the vocabulary of {n}"
            + ("" if ignore is None else f" (and is not ignore_index = {ignore})")
        )


def scored_rows(tokens: _Tensor, ignore: int | None) -> _Tensor | None:
    """Numbers of the rows of `tokens` (..., K) that have one that counts; None for all of them."""
    if ignore is None or tokens.shape[-1] == 0:
        return None
    some = (tokens != ignore).any(-1).reshape(-1)
    return None if bool(some.all()) else some.nonzero()[:, 0]


def _blocks(logits: _Tensor, rows: _Tensor | None) -> Iterator[tuple[Any, _Tensor]]:
    """(Where, logits (r, n) in the compute dtype) of the given rows, about BLOCK logits at a time."""
    n = logits.shape[-1]
    step = max(1, BLOCK // n)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    try:
        flat = logits.view(-1, n) if rows is None else None
    except RuntimeError:  # strides that are no rows
        flat = None
    if flat is not None:
        for at in range(0, flat.shape[0], step):
            where = slice(at, at + step)
            yield where, flat[where].to(dtype)
        return
    if rows is None:
        rows = torch.arange(math.prod(logits.shape[:-1]))
    lead = logits.shape[:-1] or (1,)
    source = logits if logits.dim() > 1 else logits[None]
    for which in rows.split(step):
        yield which, source[torch.unravel_index(which, lead)].to(dtype)


def _shifted(x: _Tensor, m: _Tensor, temperature: float) -> _Tensor:
    """(x - m) / temperature of rows; an infinite m leaves x where it is."""
    d = x - torch.where(torch.isfinite(m), m, 0)[:, None]
    return d if temperature == 1 else d / temperature


def forward(
    logits: _Tensor, tokens: _Tensor, temperature: float, entropy: bool, ignore: int | None, lse: str
) -> tuple[_Tensor, _Tensor, _Tensor, _Tensor]:
    """Log-probabilities (rows, K), entropy (rows,), log-sum-exp (rows,) and state (rows, 3), in float64.

    The state is (m, s, e): the largest logit, s = sum exp t and e = sum t exp t with t = (x - m) /
    temperature; 0 throughout for rows that are passed over. s = 0: no mass; s infinite or NaN: a logit is.
    """
    n, count = logits.shape[-1], math.prod(logits.shape[:-1])
    check_ids(tokens, n, ignore)
    ids = tokens.reshape(count, tokens.shape[-1])
    state = torch.zeros(count, 3, dtype=torch.float64)
    log_s = torch.zeros(count, dtype=torch.float64)
    picked = torch.zeros(ids.shape, dtype=torch.float64)
    rows = scored_rows(tokens, ignore)
    for where, x in _blocks(logits, rows):
        block = np.ascontiguousarray(x.numpy())
        m = torch.from_numpy(_cpu.row_max(block))
        if lse == "fuse" and temperature == 1:
            s = torch.from_numpy(_cpu.fuse_state_rows(block)[1])
            log = torch.log(s)
            d = _shifted(x, m, temperature) if entropy else x
        else:
            d = _shifted(x, m, temperature).contiguous()
            if lse == "fuse":
                s = torch.from_numpy(_cpu.fuse_state_rows(d.numpy())[1])
                log = torch.log(s)
            else:
                log = torch.from_numpy(_cpu.lse_rows(d.numpy(), lse)).double()
                s = torch.exp(log)
        m = m.double()
        finite = torch.isfinite(m)
        s = torch.where(finite, s, torch.where(m == -math.inf, 0.0, torch.where(m == math.inf, m, math.nan)))
        state[where, 0] = torch.where(finite, m, 0)
        state[where, 1] = s
        log_s[where] = torch.where(finite, log, 0)
        if entropy:
            t = d.clamp_min(_FLOOR)
            state[where, 2] = torch.where(finite, (torch.exp(t) * t).sum(-1, dtype=torch.float64), 0)
        picked[where] = x.gather(1, ids[where].clamp(0, n - 1)).double()
    log_probs, h, value = finish(picked, ids, state, log_s, temperature, n, ignore)
    return log_probs, h, value, state


def finish(
    picked: _Tensor,
    ids: _Tensor,
    state: _Tensor,
    log_s: _Tensor,
    temperature: float,
    n: int,
    ignore: int | None,
) -> tuple[_Tensor, _Tensor, _Tensor]:
    """Log-probabilities, entropy and log-sum-exp of rows from their tokens' logits and their state."""
    m, s, e = state.unbind(-1)
    mass = (s > 0) & (s < math.inf)
    log_probs = (picked - m[:, None]) / temperature - log_s[:, None]
    log_probs = torch.where(mass[:, None], log_probs, torch.where(s == 0, -math.inf, math.nan)[:, None])
    log_probs = torch.where((ids >= 0) & (ids < n), log_probs, math.nan)
    h = torch.where(mass, (log_s - e / s).clamp_min(0), torch.where(s == 0, 0.0, math.nan))
    value = torch.where(mass, m / temperature + log_s, torch.where(s == 0, -math.inf, s))
    if ignore is not None and ids.shape[-1]:
        passed = ids == ignore
        log_probs = torch.where(passed, 0.0, log_probs)
        nothing = passed.all(-1)
        h, value = torch.where(nothing, 0.0, h), torch.where(nothing, 0.0, value)
    return log_probs, h, value


def backward(
    grads: Sequence[_Tensor | None], logits: _Tensor, tokens: _Tensor, state: _Tensor, temperature: float,
    ignore: int | None,
) -> _Tensor:  # fmt: skip
    """Gradient of the logits from those of the log-probabilities, the entropy and the log-sum-exp."""
    n, count = logits.shape[-1], math.prod(logits.shape[:-1])
    out = torch.zeros(logits.shape, dtype=logits.dtype)
    flat, ids = out.view(count, n), tokens.reshape(count, tokens.shape[-1])
    state = state.reshape(count, 3).double()
    given, h, value = (None if g is None else g.double() for g in grads)
    own = torch.zeros(ids.shape, dtype=torch.float64) if given is None else given.reshape(ids.shape)
    if ignore is not None:
        own = torch.where(ids == ignore, 0, own)
    h = torch.zeros(count, dtype=torch.float64) if h is None else h.reshape(count)
    value = torch.zeros(count, dtype=torch.float64) if value is None else value.reshape(count)
    m, s, e = state.unbind(-1)
    shared = value - own.sum(-1) + torch.where(h == 0, 0, h * e / s)
    for where, x in _blocks(logits, scored_rows(tokens, ignore)):
        t = _shifted(x, m[where].to(x.dtype), temperature).clamp_min(_FLOOR)
        w = torch.exp(t) / s[where, None].to(x.dtype)
        dx = w * shared[where, None].to(x.dtype)
        if bool((h[where] != 0).any()):
            dx -= w * t * h[where, None].to(x.dtype)
        dx.scatter_add_(1, ids[where].clamp(0, n - 1), own[where].to(x.dtype))
        mass = s[where, None]
        dx = torch.where(mass == 0, 0, torch.where(mass < math.inf, dx, math.nan))
        flat[where] = (dx if temperature == 1 else dx / temperature).to(logits.dtype)
    return out
