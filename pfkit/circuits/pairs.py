"""sum_ab p_ab log p_ab of every pair of discrete variables, from counts plus a pseudocount.

Two ways with the same result: all cells, counted in matrix products, or only those that occur.
"""

from __future__ import annotations

import numpy as np
import torch

Tensor = torch.Tensor
BLOCK = 1 << 25  # cells worked on at a time
MOST_MARKS = 1 << 31  # of rows and categories: 8 GiB


def suits_dense(n: int, n_variables: int, c: int) -> bool:
    """Whether the cells of one variable with all others, and the data as 0 and 1, are of reasonable size."""
    return n_variables * c * c <= 2 * BLOCK and n * n_variables * c <= MOST_MARKS


def joint_dense(t: Tensor, c: int, pseudocount: float) -> np.ndarray:
    """(V, V) float64 of t (N, V) int64, categories below c; C * C cells a pair."""
    n, n_variables = t.shape
    total = n + pseudocount * c * c
    onehot = torch.zeros((n, n_variables * c), dtype=torch.float32, device=t.device)
    onehot.scatter_(1, t + c * torch.arange(n_variables, device=t.device), 1.0)
    out = np.zeros((n_variables, n_variables))
    step = max(1, BLOCK // (n_variables * c * c))
    for v in range(0, n_variables, step):
        # 0/1 products: exact in float32 up to 2^24 rows
        counts = (onehot[:, v * c : (v + step) * c].T @ onehot).double()
        p = ((counts + pseudocount) / total).reshape(-1, c, n_variables, c)
        out[v : v + step] = torch.special.xlogy(p, p).sum((1, 3)).cpu().numpy()
    return out


def joint_sparse(t: Tensor, c: int, pseudocount: float) -> np.ndarray:
    """The same from the cells that occur, at most N a pair; the diagonal stays 0."""
    n, n_variables = t.shape
    total = n + pseudocount * c * c
    empty = pseudocount / total
    empty_cell = empty * np.log(empty) if empty > 0 else 0.0
    out = np.zeros((n_variables, n_variables))
    for a in range(n_variables):
        for b in range(a):
            counts = torch.unique(t[:, a] * c + t[:, b], return_counts=True)[1].double()
            p = (counts + pseudocount) / total
            here = float(torch.special.xlogy(p, p).sum()) + (c * c - len(p)) * empty_cell
            out[a, b] = out[b, a] = here
    return out
