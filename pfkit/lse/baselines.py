"""Other people's log-sum-exp behind the names ``"numpy"``, ``"scipy"`` and ``"torch"``, to compare with.

They are run as they are: whole-array temporaries, the library's own accuracy. SciPy and torch are imported on first use.
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


def scipy_logsumexp(a: Any, axes: tuple[int, ...], b: Any = None, return_sign: bool = False) -> Any:
    """``scipy.special.logsumexp``."""
    from scipy.special import logsumexp

    return logsumexp(a, axis=axes, b=b, return_sign=return_sign)


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
    if not (a.flags.c_contiguous and a.flags.writeable):  # torch warns about read-only arrays, refuses negative strides
        a = a.copy()
    return np.asarray(torch.logsumexp(torch.from_numpy(a), dim=axes).numpy())
