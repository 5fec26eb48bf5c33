"""pfkit: particle filters and probabilistic inference on a fast, well-behaved log-sum-exp.

    import pfkit
    pfkit.logsumexp(log_w, lse="int")         # order-free integer arithmetic, within 2.1e-5 nats
    pfkit.log_normalize(log_w)                # weights, log_norm and effective sample size in one pass

``python -m pfkit`` shows the kernels and what is missing on this machine. Importing pfkit needs NumPy and
SciPy alone.
"""

from .lse import (
    Kernel,
    LogNormalized,
    LSEState,
    explain,
    kernels,
    log_normalize,
    logcumsumexp,
    logsumexp,
)

__version__ = "0.1.0"

__all__ = [
    "Kernel",
    "LSEState",
    "LogNormalized",
    "explain",
    "kernels",
    "log_normalize",
    "logcumsumexp",
    "logsumexp",
]
