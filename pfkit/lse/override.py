"""SciPy's log-sum-exp replaced by pfkit's for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from .api import logsumexp
from .kernels import kernels

__all__ = ["override_scipy"]


@contextlib.contextmanager
def override_scipy(lse: str = "fuse") -> Iterator[None]:
    """Context manager: inside it ``scipy.special.logsumexp`` is ``pfkit.logsumexp`` with the kernel ``lse``.

    Code that looks the function up when it calls it, ``scipy.special.logsumexp(a)``, is redirected, and so
    are the callers inside SciPy that do. A name imported beforehand (``from scipy.special import logsumexp``)
    stays SciPy's. The replacement holds for all threads until the block is left; blocks may be nested.

    Raises
    ------
    ValueError
        ``lse`` is not a kernel for NumPy arrays on the CPU, or is SciPy itself.
    """
    names = [k.name for k in kernels() if k.device == "cpu" and k.name != "scipy"]
    if lse not in names:
        raise ValueError(f"lse must be one of {', '.join(map(repr, names))}, not {lse!r}")
    import scipy.special as special

    before = special.logsumexp
    special.logsumexp = partial(logsumexp, lse=lse)
    try:
        yield
    finally:
        special.logsumexp = before
