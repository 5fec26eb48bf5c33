"""Token log-probabilities of CPU tensors: rows in blocks, each through a compiled log-sum-exp kernel.

A block holds some 2**18 logits in the compute dtype, so that it stays in the cache and nothing of the logits'
size is allocated; rows whose tokens are all ignored are not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pfkit_ext import _cpu

from .token_terms import Terms

_Tensor = torch.Tensor
BLOCK = 1 << 18
_FLOOR = -1000.0  # exp of it is 0, and 0 times it is 0: no 0 * -inf


def check_ids(tokens: _Tensor, n: int, ignore: int | None) -> None:
    """Raise ValueError with the first id of `tokens` (..., K) that is neither in [0, n) nor `ignore`."""
    bad = (tokens < 0) | (tokens >= n)
    if ignore is not None:
        bad &= tokens != ignore
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"token id {int(tokens[where])} at {where} is outside the vocabulary of {n}"
            + ("" if ignore is None else f" (and is not ignore_index = {ignore})")
        )


def _scored(passed: Any) -> Any:
    """Numbers of the rows that have a token which counts; None for all of them."""
    if passed is None or not passed.shape[1] or not passed.any():
        return None
    some = ~passed.all(1)
    return None if some.all() else np.flatnonzero(some)


def _blocks(logits: _Tensor, rows: Any) -> Iterator[tuple[Any, _Tensor]]:
    """(Where, contiguous logits (r, n) in the compute dtype) of the given rows, some BLOCK logits each."""
    n = logits.shape[-1]
    step = max(1, BLOCK // n)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    count = math.prod(logits.shape[:-1])
    flat = None
    if rows is None:
        try:
            flat = logits.view(count, n)
        except RuntimeError:  # strides that are no rows
            rows = np.arange(count)
    if flat is not None:
        for at in range(0, count, step):
            where = slice(at, at + step)
            yield where, flat[where].to(dtype).contiguous()
        return
    source = logits if logits.dim() > 1 else logits[None]
    for at in range(0, len(rows), step):
        which = rows[at : at + step]
        index = tuple(torch.from_numpy(i) for i in np.unravel_index(which, source.shape[:-1]))
        yield which, source[index].to(dtype).contiguous()


def _shifted(x: _Tensor, m: Any, temperature: float, out: _Tensor | None = None) -> _Tensor:
    """(x - m) / temperature of rows; an infinite m leaves x where it is."""
    safe = torch.from_numpy(np.where(np.isfinite(m), m, 0)).to(x.dtype)
    d = torch.sub(x, safe[:, None], out=out)
    return d if temperature == 1 else d.div_(temperature)


def forward(logits: _Tensor, tokens: _Tensor, terms: Terms) -> tuple[Any, Any, Any, Any]:
    """Log-probabilities (rows, K), entropy and log-sum-exp (rows,), and state (rows, 3): float64 arrays.

    The state is (m, s, e): the largest logit, s = sum exp t and e = sum t exp t with t = (x - m) /
    temperature; 0 throughout for rows that are passed over. s = 0: no mass; s infinite or NaN: a logit is.
    """
    temperature, entropy, _, ignore, lse = terms
    n, count = logits.shape[-1], math.prod(logits.shape[:-1])
    ids = tokens.reshape(count, tokens.shape[-1]).numpy()
    passed = None if ignore is None else ids == ignore
    bad = (ids < 0) | (ids >= n)
    if bad.any() and (passed is None or (bad & ~passed).any()):
        check_ids(tokens, n, ignore)
    state, log_s, picked = np.zeros((count, 3)), np.zeros(count), np.zeros(ids.shape)
    with np.errstate(all="ignore"):
        for where, x in _blocks(logits, _scored(passed)):
            block = x.numpy()
            if lse == "fuse" and temperature == 1:
                m, s = _cpu.fuse_state_rows(block)
                log, d = np.log(s), None
            else:
                m = _cpu.row_max(block)
                d = _shifted(x, m, temperature)
                if lse == "fuse":
                    s = _cpu.fuse_state_rows(d.numpy())[1]
                    log = np.log(s)
                else:
                    log = _cpu.lse_rows(d.numpy(), lse).astype(np.float64)
                    s = np.exp(log)
            finite = np.isfinite(m)
            state[where, 0] = np.where(finite, m, 0)
            state[where, 1] = np.where(finite, s, np.where(m == -np.inf, 0, m))  # NaN and +inf stay
            log_s[where] = np.where(finite, log, 0)
            if entropy:
                t = (_shifted(x, m, temperature) if d is None else d).clamp_min_(_FLOOR)
                moment = t.exp().mul_(t).sum(-1).numpy()
                state[where, 2] = np.where(finite, moment, 0)
            chosen = ids[where]
            if chosen.shape[1]:
                picked[where] = np.take_along_axis(block, np.clip(chosen, 0, n - 1), 1)
        log_probs, h, value = finish(np, picked, ids, state, log_s, n, terms)
    return log_probs, h, value, state


def finish(
    xp: Any, picked: Any, ids: Any, state: Any, log_s: Any, n: int, terms: Terms
) -> tuple[Any, Any, Any]:
    """Log-probabilities, entropy and log-sum-exp of rows from their tokens' logits and their state, float64.

    `xp` is numpy or torch.
    """
    m, s, e = state[:, 0], state[:, 1], state[:, 2]
    temperature, ignore = terms.temperature, terms.ignore
    mass, none = (s > 0) & (s < math.inf), s == 0
    log_probs = (picked - m[:, None]) / temperature - log_s[:, None]
    log_probs = xp.where(mass[:, None], log_probs, xp.where(none, -math.inf, math.nan)[:, None])
    log_probs = xp.where((ids >= 0) & (ids < n), log_probs, math.nan)
    h = log_s - e / s
    h = xp.where(mass, xp.where(h < 0, 0.0, h), xp.where(none, 0.0, math.nan))
    value = xp.where(mass, m / temperature + log_s, xp.where(none, -math.inf, s))
    if ignore is not None and ids.shape[1]:
        passed = ids == ignore
        log_probs = xp.where(passed, 0.0, log_probs)
        nothing = passed.all(1)
        h, value = xp.where(nothing, 0.0, h), xp.where(nothing, 0.0, value)
    return log_probs, h, value


def backward(
    grads: Sequence[_Tensor | None], logits: _Tensor, tokens: _Tensor, state: _Tensor, temperature: float,
    ignore: int | None,
) -> _Tensor:  # fmt: skip
    """Gradient of the logits from those of the log-probabilities, the entropy and the log-sum-exp."""
    n, count = logits.shape[-1], math.prod(logits.shape[:-1])
    ids = tokens.reshape(count, tokens.shape[-1]).numpy()
    m, s, e = state.reshape(count, 3).double().numpy().T
    own, h, value = (
        np.zeros(shape) if g is None else g.double().numpy().reshape(shape)
        for g, shape in zip(grads, (ids.shape, (count,), (count,)), strict=True)
    )
    passed = None if ignore is None else ids == ignore
    rows = _scored(passed)
    out = (torch.empty if rows is None else torch.zeros)(logits.shape, dtype=logits.dtype)
    flat = out.view(count, n)
    with np.errstate(all="ignore"):
        if passed is not None:
            own = np.where(passed, 0, own)
        shared = value - own.sum(1) + np.where(h == 0, 0, h * e / s)
        # dx = exp(t) (base - slope t) + own; without mass nothing, NaN for broken rows
        each = np.where(s == 0, 0, np.where(s < np.inf, 1 / (s * temperature), np.nan))
        base, slope = np.where(s == 0, 0, shared * each), np.where(s == 0, 0, h * each)
        own = np.where((s == 0)[:, None], 0, own / temperature)
    for where, x in _blocks(logits, rows):

        def column(a: Any, where: Any = where, dtype: torch.dtype = x.dtype) -> _Tensor:
            return torch.from_numpy(np.asarray(a[where])).to(dtype).reshape(-1, 1)

        t = _shifted(x, m[where], temperature).clamp_min_(_FLOOR)
        if slope[where].any():
            dx = torch.addcmul(column(base), t, column(-slope)).mul_(t.exp_())
        else:
            dx = t.exp_().mul_(column(base))
        if ids.shape[1]:
            chosen = torch.from_numpy(np.clip(ids[where], 0, n - 1))
            dx.scatter_add_(1, chosen, torch.from_numpy(own[where]).to(dx.dtype))
        flat[where] = dx.to(logits.dtype)
    return out
