"""The table of log-sum-exp kernels: what each name runs, on which device, how wrong it can be, and whether
it can run here.

Every function that takes ``lse=`` takes a name of this table::

    >>> import pfkit
    >>> [k.name for k in pfkit.kernels() if k.order_free and k.device == "cpu"]
    ['int']
    >>> f"{pfkit.kernels()[1].error_bound(100_000, 'float64'):.2e}"  # nats
    '1.84e-05'

An error bound is a promise about one call: with n terms, ``|computed - exact|`` is at most the bound plus
one rounding of the result to its dtype. The baselines (``"numpy"``, ``"scipy"``, ``"torch"``) are there to
be compared with and carry no promise of ours.

The CUDA rows come from :mod:`pfkit.lse.cuda`, which does not import torch to make them.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

#: Compiled kernels for NumPy arrays, in the order of the table.
COMPILED = ("fuse", "int", "int-pairwise")
#: Other people's log-sum-exp behind the same name.
BASELINES = ("numpy", "scipy", "torch")
#: Names that run on CUDA tensors only.
CUDA_ONLY = ("fuse16", "int16")

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
ErrorBound = Callable[[int, np.dtype], "float | None"]


@dataclass(frozen=True)
class Kernel:
    """One row of :func:`kernels`.

    Attributes
    ----------
    name : str
        What ``lse=`` accepts.
    device : str
        ``"cpu"`` or ``"cuda"``.
    dtypes : tuple of str
        Dtypes computed natively. Others are converted first (float16 and bfloat16 to float32, integers to
        float64).
    order_free : bool
        Whether the result is the same bits for every order, chunking, thread count and SIMD level.
    doc : str
        One sentence.
    available : bool
        Whether it can run in this process.
    reason : str
        Why not, and what would help; empty when available.
    """

    name: str
    device: str
    dtypes: tuple[str, ...]
    order_free: bool
    doc: str
    available: bool = True
    reason: str = ""
    bound: ErrorBound | None = field(default=None, repr=False, compare=False)

    def error_bound(self, n: int, dtype: str | np.dtype = "float64") -> float | None:
        """Proven bound, in nats, on the error of the LSE of `n` terms before its one rounding to `dtype`.

        Parameters
        ----------
        n : int
            Number of terms, at least 1.
        dtype : str or dtype
            Dtype of the input; float16 and bfloat16 are computed as float32, integers as float64.

        Returns
        -------
        float or None
            None where nothing is proven (the baselines).

        Raises
        ------
        ValueError
            If `n` is less than 1.
        TypeError
            If `dtype` is not a real floating or integer dtype.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        return None if self.bound is None else self.bound(int(n), compute_dtype(np.dtype(dtype)))


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype a compiled kernel works in for input of `dtype`: float32 for 16-bit floats, float64 for the
    rest.

    Raises
    ------
    TypeError
        For complex, object, string, date and structured dtypes.
    """
    if dtype.kind in "fiub":
        return FLOAT32 if dtype in (np.float32, np.float16) else FLOAT64
    if is_bfloat16(dtype):
        return FLOAT32
    raise TypeError(
        f"no kernel computes in dtype {dtype}; accepted are real floating dtypes (bfloat16 included), "
        "integers and booleans, and for logsumexp also complex dtypes"
    )


def is_bfloat16(dtype: np.dtype) -> bool:
    """Whether `dtype` is the bfloat16 that ml_dtypes adds to NumPy (its kind is "V")."""
    return dtype.kind == "V" and dtype.name == "bfloat16"  # a name is slow to make


# --- proven bounds ---


def int_bound(n: int, dtype: np.dtype) -> float:
    """Bound of ``"int"``, from its definition.

    Each weight has a relative error of at most 1.3092e-5 (the 16-bit mantissa polynomial, exhaustive over
    its 65536 inputs) plus 5.289e-6 (the exponent rounded to 1/65536 of an octave); for float32 input also
    1.33e-7 times the distance |t| from the maximum (one subtraction and one multiplication), whose mean
    under the weights is at most ln n. Truncating a weight to 2**-52 of the largest costs 2**-52 for each of
    the other n - 1 terms.
    """
    argument = 1.33e-7 * math.log(n) if dtype == np.float32 else 0.0
    return 1.839e-5 + argument + (n - 1) * 2.0**-52


def fuse_bound(n: int, dtype: np.dtype) -> float:
    """Bound of ``"fuse"``, from the order of its operations (pfkit_ext/cpu/fuselse.h).

    A term at distance |t| below the maximum has a relative error of at most 2.4e-16 (the exponential) plus
    1.3e-16 |t| (the subtraction, and the rounding of log2 e), in float32 1.3e-7 + 7.4e-8 |t|; the mean of |t|
    under the weights is at most ln n. Sixteen terms of a lane are added in the input's dtype, at most sixteen
    such sums in float64, then the lanes; joining a further block of 4096 elements costs one exponential, one
    product and one sum. The logarithm adds less than two roundings of it.
    """
    u, depth = 2.0**-53, math.log(n)
    terms, sums = min(math.ceil(n / 16), 16), min(math.ceil(n / 256), 16)
    joins = math.ceil(n / 4096) - 1
    double = (
        2.4e-16 + 1.3e-16 * depth + u * (terms + sums + 3) + joins * (2.4e-16 + 2 * u) + 2 * u * (1 + depth)
    )
    return double + (1.3e-7 + 7.4e-8 * depth + 2.0**-24 * terms if dtype == np.float32 else 0.0)


def pairwise_bound(n: int, dtype: np.dtype) -> float:
    """Bound of ``"int-pairwise"``, from the depth of its tree.

    One pair errs by at most 0.0056 octaves (all differences checked), and a pair never magnifies the errors
    of its operands, because its slopes are the two shares and sum to 1: so the errors of the levels add.
    Sixteen lanes of ceil(n / 16) elements each are joined as binary trees, then with each other. Rounding
    the distances to Q16.16 costs 2**-17 octaves; in float32 the scaled distance |t| <= 64 octaves carries up
    to 64 * 2**-23 more.
    """
    depth = math.ceil(math.log2(math.ceil(n / 16))) + math.ceil(math.log2(min(n, 16)))
    scaled = 64 * 3 * 2.0**-24 if dtype == np.float32 else 0.0
    return math.log(2.0) * (depth * 0.0056 + 2.0**-17 + scaled)


# --- the table ---


@cache
def _torch_missing() -> str:
    """Empty when torch can be imported; otherwise what to do. Looks for the package without importing it."""
    return "" if importlib.util.find_spec("torch") else "torch is not installed: pip install 'pfkit[torch]'"


def _cpu_rows() -> list[Kernel]:
    both, torch_missing = ("float32", "float64"), _torch_missing()
    return [
        Kernel(
            "fuse",
            "cpu",
            both,
            False,
            "single-pass SIMD exponentials, exact to rounding; the default",
            bound=fuse_bound,
        ),
        Kernel(
            "int",
            "cpu",
            both,
            True,
            "integer weights and sums: the same bits in any order, everywhere",
            bound=int_bound,
        ),
        Kernel(
            "int-pairwise",
            "cpu",
            both,
            False,
            "pairwise Q16.16 recurrence in base 2 with a correction table",
            bound=pairwise_bound,
        ),
        Kernel("numpy", "cpu", (*both, "longdouble"), False, "m = x.max(); m + log(exp(x - m).sum())"),
        Kernel("scipy", "cpu", (*both, "float16", "longdouble"), False, "scipy.special.logsumexp"),
        Kernel("torch", "cpu", both, False, "torch.logsumexp", not torch_missing, torch_missing),
    ]


def _cuda() -> Any:
    return importlib.import_module("pfkit.lse.cuda")


def _cuda_rows() -> list[Kernel]:
    return list(_cuda().kernel_rows())


def kernels() -> list[Kernel]:
    """All kernels this version knows, those that cannot run here included, with the reason.

    Returns
    -------
    list of Kernel
        CPU rows first, in the order of preference.
    """
    return _cpu_rows() + _cuda_rows()


def check_name(lse: object, accepted: tuple[str, ...] = COMPILED + BASELINES) -> str:
    """`lse` itself if it is one of `accepted`.

    Raises
    ------
    TypeError
        If `lse` is not a string.
    ValueError
        If it names no kernel, or one that does not fit.
    """
    if not isinstance(lse, str):
        raise TypeError(f"lse must be the name of a kernel, one of {', '.join(accepted)}; got {lse!r}")
    if lse in accepted:
        return lse
    if lse in CUDA_ONLY:
        raise ValueError(f"lse={lse!r} runs on CUDA tensors only; accepted here: {', '.join(accepted)}")
    if lse in COMPILED + BASELINES:
        raise ValueError(f"lse={lse!r} is not available here; accepted: {', '.join(accepted)}")
    raise ValueError(f"unknown lse={lse!r}; accepted: {', '.join(accepted)}")


def explain(lse: str = "fuse", device: str | None = None) -> str:
    """What ``lse=lse`` would run on `device`, and why, in words.

    Parameters
    ----------
    lse : str
        A kernel's name.
    device : {None, "cpu", "cuda"}
        None: every device that knows the name.

    Returns
    -------
    str
        One paragraph a device.

    Raises
    ------
    ValueError
        For an unknown name or device, naming those accepted.
    """
    from pfkit_ext import _cpu

    table = kernels()
    check_name(lse, tuple(dict.fromkeys(row.name for row in table)))
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}; accepted: None, 'cpu', 'cuda'")
    rows = [row for row in table if row.name == lse and device in (None, row.device)]
    if not rows:
        known = ", ".join(row.device for row in table if row.name == lse)
        return f"{lse} has no kernel on {device}; it runs on: {known}."
    said = []
    for row in rows:
        text = f"{row.name} on {row.device}: {row.doc}. "
        if not row.available:
            said.append(text + f"Not available here: {row.reason}.")
            continue
        if row.name in COMPILED and row.device == "cpu":
            text += (
                f"Compiled C at SIMD level {_cpu.simd_level()} (usable here: {', '.join(_cpu.levels())}). "
            )
        text += f"Computes in {', '.join(row.dtypes)}; other real dtypes are converted first. "
        text += "Order-free: the same bits for any order, chunking or SIMD level. " if row.order_free else ""
        bounds = [(dtype, row.error_bound(100_000, dtype)) for dtype in ("float32", "float64")]
        if all(bound is not None for _, bound in bounds):
            values = ", ".join(f"{bound:.3g} nats in {dtype}" for dtype, bound in bounds)
            text += f"Error at most {values} at n = 100000, plus one rounding of the result."
        else:
            text += "No bound of ours: a baseline to compare with."
        said.append(text.strip())
    if any(row.device == "cuda" for row in rows):
        said.append("Rules for tensors, the first that fits:\n" + _cuda().fallback_rules())
    return "\n".join(said)
