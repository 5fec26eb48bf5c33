"""State-space models: the base class, models from plain functions, and ready ones."""

from .base import FunctionModel, StateSpaceModel, from_functions
from .compiled import CompiledModel
from .linear_gaussian import LinearGaussian, LocalLevel
from .population import ThetaLogistic
from .tracking import BearingsOnly, RangeRobot, RangeRobotNoise
from .volatility import StochasticVolatility

__all__ = [
    "BearingsOnly",
    "CompiledModel",
    "FunctionModel",
    "LinearGaussian",
    "LocalLevel",
    "RangeRobot",
    "RangeRobotNoise",
    "StateSpaceModel",
    "StochasticVolatility",
    "ThetaLogistic",
    "from_functions",
]
