"""The tables of a compiled model executed in plain torch: the reference for the fast execution, and the one
on a CPU.

Follows the definition region by region, ``log(W exp(v - max)) + max`` with v the sum of the children's log
values, in the precision asked for. A region all of whose terms are zero is -inf. Where every term lies so
far below the largest that its weight of zero leaves nothing (float32 underflow), the sum is taken again in
the log domain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .pyjuice_tables import CircuitTables, SumRegion

__all__ = ["PlainEngine"]


class PlainEngine:
    """Evaluate a circuit from its tables.

    Parameters
    ----------
    tables : CircuitTables
        The regions.
    params : torch.Tensor, shape (n,)
        Sum weights, linear domain; read anew in every call.
    input_params : sequence of torch.Tensor
        Category probabilities of each input layer; read anew in every call.
    dtype : torch.dtype, optional
        Precision of the evaluation; None for that of ``params``.
    """

    name = "plain torch"

    def __init__(
        self,
        tables: CircuitTables,
        params: torch.Tensor,
        input_params: Sequence[torch.Tensor],
        dtype: torch.dtype | None = None,
    ) -> None:
        self.tables, self.params, self.input_params = tables, params, list(input_params)
        self.dtype = params.dtype if dtype is None else dtype
        self._last: torch.Tensor | None = None
        self._index = [torch.as_tensor(region.weight_index(), device=params.device) for region in tables.sums]

    @torch.no_grad()
    def values(self, x: torch.Tensor) -> torch.Tensor:
        """Log values of all nodes, in PyJuice's order.

        Parameters
        ----------
        x : torch.Tensor, shape (B, V), integer
            Categories; negative ones are marginalised.

        Returns
        -------
        torch.Tensor, shape (num_nodes, B)
            Rows that belong to no region are 0.
        """
        x = x.long()
        out = torch.zeros(self.tables.num_nodes, x.shape[0], dtype=self.dtype, device=x.device)
        for leaf in self.tables.inputs:
            category = x[:, leaf.variable]
            probs = self.input_params[leaf.layer][leaf.parameters :][: leaf.size * leaf.categories]
            log_probs = probs.view(leaf.size, -1).to(self.dtype)[:, category.clamp(min=0)].log()
            out[leaf.row : leaf.row + leaf.size] = log_probs.masked_fill(category < 0, 0.0)
        for region, index in zip(self.tables.sums, self._index, strict=True):
            weights = self.params[index].to(self.dtype)
            out[region.row : region.row + region.size] = self._sum(region, weights, out)
        return out

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        """Log-likelihoods: root values, (roots, B), a view of memory kept. Arguments as in ``values``."""
        root, self._last = self.tables.root, self.values(x)
        return self._last[root.row : root.row + root.size]

    def export(self, out: torch.Tensor) -> None:
        """Node values of the last ``log_prob`` into ``out``, (num_nodes, B)."""
        if self._last is None:
            raise RuntimeError("no log_prob has run yet")
        out.copy_(self._last)

    def _sum(self, region: SumRegion, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Values of one region; ``weights`` is (child_size, size)."""
        product = None
        for child in region.children:
            row = self.tables.regions[child].row
            value = values[row : row + region.child_size]
            product = value if product is None else product + value
        assert product is not None
        maximum = product.amax(0)
        maximum = maximum.masked_fill(maximum == -torch.inf, 0.0)
        total = weights.T @ (product - maximum).exp()
        result = total.log() + maximum
        small = total < torch.finfo(self.dtype).tiny / torch.finfo(self.dtype).eps
        if bool(small.any()):
            node, column = small.nonzero(as_tuple=True)
            exact = torch.logsumexp(weights.T[node].log() + product.T[column], dim=1)
            result[node, column] = exact
        return result
