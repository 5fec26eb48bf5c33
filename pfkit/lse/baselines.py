"""Other people's log-sum-exp behind the names ``"numpy"``, ``"scipy"`` and ``"torch"``, to compare with.

They are run as they are: whole-array temporaries, the library's own accuracy. SciPy and torch are imported
on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def numpy_logsumexp(a: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """``m = a.max(); m + log(exp(a - m).sum())``, guarded where m is infinite."""
    m = a.max(axis=axes, keepdims=True, initial=-np.inf)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        total = np.exp(a - np.where(np.isfinite(m), m, np.zeros((), m.dtype))).sum(axis=axes)
        return np.asarray(np.where(np.isfinite(m), m, np.zeros((), m.dtype)).sum(axis=axes) + np.log(total))


def scipy_logsumexp(
    a: np.ndarray, axes: tuple[int, ...], b: np.ndarray | None, return_sign: bool
) -> tuple[Any, Any]:
    """``scipy.special.logsumexp``: value and sign (None unless asked for)."""
    from scipy.special import logsumexp

    plain = [x if x is None or x.dtype.kind != "V" else x.astype(np.float32) for x in (a, b)]  # bfloat16
    found = logsumexp(plain[0], axis=axes, b=plain[1], return_sign=return_sign)
    return found if return_sign else (found, None)


def torch_logsumexp(a: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """``torch.logsumexp`` on the CPU.

    Raises
    ------
    ImportError
        If torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("lse='torch' needs torch: pip install 'pfkit[torch]'") from error

    if not axes:
        return a.copy()
    if not (
        a.flags.c_contiguous and a.flags.writeable
    ):  # torch warns about read-only arrays, refuses negative strides
        a = a.copy()
    return np.asarray(torch.logsumexp(torch.from_numpy(a), dim=axes).numpy())
