"""The log-sum-exp layer: one function behind several kernels, and a state to be cut, shipped and joined."""

from .api import LogNormalized, log_normalize, logcumsumexp, logsumexp
from .kernels import Kernel, explain, kernels
from .override import override_scipy
from .state import LSEState

__all__ = [
    "Kernel",
    "LSEState",
    "LogNormalized",
    "explain",
    "kernels",
    "log_normalize",
    "logcumsumexp",
    "logsumexp",
    "override_scipy",
]
