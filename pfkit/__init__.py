"""pfkit: particle filters and probabilistic inference on a fast, well-behaved log-sum-exp.

    import pfkit
    pfkit.logsumexp(log_w, lse="int")         # order-free integer arithmetic, within 2.1e-5 nats
    pfkit.log_normalize(log_w)                # weights, log_norm and effective sample size in one pass

``python -m pfkit`` shows the kernels and what is missing on this machine. Importing pfkit needs NumPy and
SciPy alone.
"""

from . import plots
from .filters import (
    CollapseWarning,
    FilterBank,
    FilterCollapse,
    FilterResult,
    InvalidWeight,
    ParticleFilter,
    StepResult,
    resample,
)
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
from .models import (
    BearingsOnly,
    CompiledModel,
    LinearGaussian,
    LocalLevel,
    RangeRobot,
    RangeRobotNoise,
    StateSpaceModel,
    StochasticVolatility,
    ThetaLogistic,
    from_functions,
)
from .timing import Timers

__version__ = "0.1.0"

__all__ = [
    "BearingsOnly",
    "CollapseWarning",
    "CompiledModel",
    "FilterBank",
    "FilterCollapse",
    "FilterResult",
    "InvalidWeight",
    "Kernel",
    "LSEState",
    "LinearGaussian",
    "LocalLevel",
    "LogNormalized",
    "ParticleFilter",
    "RangeRobot",
    "RangeRobotNoise",
    "StateSpaceModel",
    "StepResult",
    "StochasticVolatility",
    "ThetaLogistic",
    "Timers",
    "explain",
    "from_functions",
    "kernels",
    "log_normalize",
    "logcumsumexp",
    "logsumexp",
    "plots",
    "resample",
]

# not in __all__: "from pfkit import *" must work without torch, and not import it where it is there
_NEEDS_TORCH = {
    "Circuit": "pfkit.circuits",
    "chow_liu": "pfkit.circuits",
    "chow_liu_tree": "pfkit.circuits",
    "hclt": "pfkit.circuits",
    "linear_cross_entropy": "pfkit.logprobs.linear",
    "linear_log_probs": "pfkit.logprobs.linear",
    "override_torch": "pfkit.lse.torch_op",
    "token_log_probs": "pfkit.logprobs.token",
}


def __getattr__(name: str) -> object:
    """Names that import torch load on first use."""
    if name in _NEEDS_TORCH:
        import importlib

        found = globals()[name] = getattr(importlib.import_module(_NEEDS_TORCH[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_NEEDS_TORCH})
