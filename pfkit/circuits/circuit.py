"""A probabilistic circuit over V variables, in layers.

Layout, which everything that evaluates a circuit relies on (K units a region, B rows of data):

========================  ============================================================================
``circuit.graph``         :class:`~pfkit.circuits.regions.RegionGraph`: the numbering of regions
``circuit.inputs``        :class:`InputLayer`: regions 0 .. I-1; ``inputs.variables`` (I,) int64 says which
                          variable; ``inputs.log_table()`` (I, K, C) log-probabilities of categories
``circuit.products[l]``   :class:`ProductLayer` of level l; ``.children_table`` (R_l, F_l) int64 region
                          numbers, -1 fills up, rows in order of falling fan-in; ``.fan_in`` (R_l,)
``circuit.sums[l]``       :class:`SumLayer` of level l; ``.weight`` (R_l, K, K) = [region, out unit i,
                          in unit j], probabilities, sum over j is 1
``circuit.starts[l]``     number of the level's first region, of starts[l] .. starts[l] + R_l - 1
``circuit.root_product``  :class:`ProductLayer` with T rows (T = 1 for one tree)
``circuit.root_weight``   (T, K) probabilities, sum over both is 1:
                          log p(x) = LSE_tk (log root_weight[t, k] + product[t, k])
value buffer              (n_regions, K, B) log values of every region, batch last; the root's (B,) apart
========================  ============================================================================

Levels are evaluated in order: a level's children are inputs or regions of any earlier level. In a circuit
made of trees each region has one parent.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from . import learning, queries
from .arguments import check_lse, prepared
from .layers import InputLayer, ProductLayer, SumLayer, _checked, check_simplex
from .propagate import LogProb, upward
from .regions import RegionGraph, padded

Tensor = torch.Tensor
_UNCOUNTED = itertools.count(1)


class Circuit(nn.Module):
    """See the module's page. Built by :func:`pfkit.circuits.hclt`, or from its parts.

    Parameters
    ----------
    graph : RegionGraph
    inputs : InputLayer
        I regions of K units.
    sum_weights : sequence of arrays, (R_l, K, K)
        One a level.
    root_weight : array, (T, K)
    """

    def __init__(self, graph: RegionGraph, inputs: InputLayer, sum_weights: Any, root_weight: Any) -> None:
        super().__init__()
        for name, part, kind in (("graph", graph, RegionGraph), ("inputs", inputs, InputLayer)):
            if not isinstance(part, kind):
                raise TypeError(f"{name} must be a pfkit.circuits.{kind.__name__}, got {part!r}")
        if not hasattr(sum_weights, "__len__"):
            raise TypeError(f"sum_weights must be a sequence of arrays, one a level, got {sum_weights!r}")
        n_inputs, n_units = inputs.shape
        if n_inputs != len(graph.input_variables) or inputs.variables.tolist() != list(graph.input_variables):
            raise ValueError("the input layer's variables are not those of the graph")
        if len(sum_weights) != len(graph.levels):
            raise ValueError(f"{len(sum_weights)} sum layers for {len(graph.levels)} levels")
        self.graph = graph
        self.inputs = inputs
        self.products = nn.ModuleList(ProductLayer(padded(level)) for level in graph.levels)
        self.sums = nn.ModuleList(SumLayer(w) for w in sum_weights)
        self.starts: list[int] = []
        start = n_inputs
        for level, w in zip(graph.levels, (layer.weight for layer in self._sums), strict=True):
            if w.shape != (len(level), n_units, n_units):
                raise ValueError(
                    f"a sum layer's weight must be {(len(level), n_units, n_units)}, got {tuple(w.shape)}"
                )
            self.starts.append(start)
            start += len(level)
        self.root_product = ProductLayer(padded(graph.root))
        self.root_weight = nn.Parameter(_checked("root_weight", root_weight, 2))
        if self.root_weight.shape != (len(graph.root), n_units):
            raise ValueError(
                f"root_weight must be {(len(graph.root), n_units)}, got {tuple(self.root_weight.shape)}"
            )
        check_simplex("root_weight", self.root_weight, (0, 1))
        if len({p.dtype for p in self.parameters()}) != 1:
            raise TypeError("parameters must share one dtype")
        #: whether log_prob may use the compiled CUDA forward
        self.executor = True

    @property
    def _sums(self) -> list[SumLayer]:
        return list(self.sums)  # type: ignore[arg-type]

    def layers(self) -> list[tuple[int, ProductLayer, SumLayer]]:
        """(first region, product layer, sum layer) of each level, in order of evaluation."""
        return list(zip(self.starts, self.products, self._sums, strict=True))  # type: ignore[arg-type]

    @property
    def n_variables(self) -> int:
        """V."""
        return self.graph.n_variables

    @property
    def n_units(self) -> int:
        """K: units of every region."""
        return self.inputs.shape[1]

    @property
    def n_regions(self) -> int:
        """Input and sum regions; the root is not counted."""
        return self.graph.n_regions

    @property
    def dtype(self) -> torch.dtype:
        return self.root_weight.dtype

    @property
    def device(self) -> torch.device:
        return self.root_weight.device

    def tensors(self) -> list[nn.Parameter]:
        """All parameters, as ``parameters()`` has them; that walk takes longer than a forward on a GPU."""
        sums = [layer._parameters["weight"] for layer in self._sums]
        return [self.root_weight, *self.inputs._parameters.values(), *sums]  # type: ignore[list-item]

    def version(self) -> tuple[tuple[int, int], ...]:
        """Changes when a parameter does, in place or by replacement: a key for what is derived from them.

        Writing through ``parameter.data`` escapes it, and autograd too: write under ``torch.no_grad()``.
        """
        # inference tensors count no versions: theirs never repeats, so nothing derived from them is kept
        return tuple(
            (p.data_ptr(), -next(_UNCOUNTED) if p.is_inference() else p._version) for p in self.tensors()
        )

    def data(self, x: Any, *, name: str = "x", validate: bool = True) -> Tensor:
        """`x` as the layers read it: (B, V) on the circuit's device, int64 with -1 for missing, or, for
        Gaussian inputs, the parameters' dtype with NaN for missing.

        Raises
        ------
        TypeError, ValueError
            For another shape or dtype, a category that is no integer in [-1, C), an infinite value; the
            values only if `validate`.
        """
        return prepared(self, x, name, validate)

    def log_prob(self, x: Any, *, lse: str = "matmul", validate: bool = True) -> Tensor:
        """log p(x) of each row, in nats.

        Parameters
        ----------
        x : array or Tensor, (B, V)
            Any integer, bool or float dtype. NaN marks a variable as missing, and so does -1 unless inputs
            are Gaussian; missing variables are summed out exactly.
        lse : str
            "matmul": log(W exp(x - max)) + max, exact to rounding, on tensor cores where there are any.
            "fuse", "int", "int-pairwise", "torch", on CUDA "fuse16" and "int16": that kernel inside every
            sum layer; its error bound (``pfkit.kernels()``) applies once for every sum region.
        validate : bool
            Check the values of x. Without it a category out of range gives an undefined result, and a CUDA
            circuit is spared one synchronisation.

        Returns
        -------
        Tensor, (B,)
            In the dtype and on the device of the parameters; -inf where the probability is zero.
            Differentiable once with respect to all parameters (as free, unnormalised probabilities) and
            Gaussian data; the gradient is the exact circuit's for every `lse`, one-sided at probabilities of
            exactly 0. Rows of probability zero add nothing. A second derivative raises NotImplementedError.
        """
        check_lse(self, lse)
        data = prepared(self, x, "x", validate)
        if torch.is_grad_enabled() and any(t.requires_grad for t in (data, *self.tensors())):
            return LogProb.apply(self, data, lse, *self.tensors())  # type: ignore[no-any-return]
        out = self._executed(data, lse)
        return upward(self, data, lse)[1] if out is None else out

    def _executed(self, data: Tensor, lse: str) -> Tensor | None:
        """log p by the compiled CUDA forward, where that applies."""
        if lse != "matmul" or not self.executor or not data.is_cuda:
            return None
        from . import executor  # which imports this module

        return executor.log_prob(self, data)

    def forward(self, x: Any, **keywords: Any) -> Tensor:
        """:meth:`log_prob`."""
        return self.log_prob(x, **keywords)

    @torch.no_grad()
    def sample(self, n: int, given: Any = None, *, rng: Any = None) -> Tensor:
        """Draw rows from the circuit, or complete evidence by draws from its conditional distribution.

        Parameters
        ----------
        n : int
        given : array or Tensor, (V,) or (n, V), optional
            Evidence; missing entries (-1 or NaN, see :meth:`log_prob`) are drawn, the rest is kept.
        rng : None, int, SeedSequence or numpy Generator
            The same seed gives the same rows on the same device.

        Returns
        -------
        Tensor, (n, V)
            int64 categories; Gaussian: the parameters' dtype.

        Raises
        ------
        ValueError
            If the evidence of a row has probability zero.
        """
        return queries.sample(self, n, given, rng)

    @torch.no_grad()
    def mpe(self, x: Any) -> Tensor:
        """Complete each row by the most probable explanation.

        The missing variables *and the latent ones* are chosen jointly, exactly. In a circuit with latent
        variables that is the usual stand-in for the most probable completion, whose search is NP-hard; where
        units do not overlap (a Chow-Liu tree: :func:`pfkit.circuits.chow_liu`) the two are the same.

        Parameters
        ----------
        x : array or Tensor, (B, V)
            As for :meth:`log_prob`.

        Returns
        -------
        Tensor, (B, V)
            `x` with missing entries filled in.

        Raises
        ------
        ValueError
            If the evidence of a row has probability zero.
        """
        return queries.mpe(self, x)

    @torch.no_grad()
    def conditionals(self, x: Any) -> Tensor:
        """p(x_v = c | the observed entries of the row), for every variable and category.

        Parameters
        ----------
        x : array or Tensor, (B, V)
            As for :meth:`log_prob`; observed variables get probability 1 at what was observed.

        Returns
        -------
        Tensor, (B, V, C)

        Raises
        ------
        TypeError
            For Gaussian inputs.
        ValueError
            If the evidence of a row has probability zero.
        """
        return queries.conditionals(self, x)

    @torch.no_grad()
    def expectation(self, x: Any) -> Tensor:
        """Posterior mean of the missing entries given the observed ones, (B, V); categories as numbers."""
        return queries.expectation(self, x)

    def fit(self, x: Any, **keywords: Any) -> learning.FitResult:
        """Learn the parameters from rows x by expectation maximisation: see
        :func:`pfkit.circuits.learning.fit`.
        """
        return learning.fit(self, x, **keywords)

    def save(self, path: Any) -> None:
        """Write structure and parameters to an npz file (a path or a binary file); nothing is pickled.

        Raises
        ------
        TypeError
            For parameters other than float32 and float64.
        ValueError
            If one is not finite, which :meth:`load` would refuse.
        """
        from .storage import save

        save(self, path)

    @staticmethod
    def load(path: Any) -> Circuit:
        """A circuit from a file that :meth:`save` wrote, on the CPU, bit for bit.

        Raises
        ------
        ValueError
            For any other file, or a damaged one.
        """
        from .storage import load

        return load(path)
