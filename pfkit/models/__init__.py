"""State-space models: the base class, models from plain functions, and ready ones."""

from .base import FunctionModel, StateSpaceModel, from_functions
from .linear_gaussian import LocalLevel

__all__ = ["FunctionModel", "LocalLevel", "StateSpaceModel", "from_functions"]
