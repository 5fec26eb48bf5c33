"""Probabilistic circuits: hidden Chow-Liu trees and their kin, learned, queried and sampled.

    from pfkit.circuits import hclt
    pc = hclt(x, 16)                       # structure from data
    pc.fit(x, epochs=20, batch=256)        # expectation maximisation
    pc.log_prob(x); pc.sample(10); pc.log_prob(x, lse="int")

Needs torch.
"""

from .circuit import Circuit
from .layers import InputLayer, ProductLayer, SumLayer
from .learning import EM, FitResult, mean_log_likelihood
from .pyjuice import accelerate, restore
from .regions import RegionGraph, tree_regions
from .structure import chow_liu, chow_liu_tree, hclt, mutual_information

__all__ = [
    "EM",
    "Circuit",
    "FitResult",
    "InputLayer",
    "ProductLayer",
    "RegionGraph",
    "SumLayer",
    "accelerate",
    "chow_liu",
    "chow_liu_tree",
    "hclt",
    "mean_log_likelihood",
    "mutual_information",
    "restore",
    "tree_regions",
]
