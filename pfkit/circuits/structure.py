"""Structures learned from data: Chow-Liu trees and hidden Chow-Liu trees.

A Chow-Liu tree (Chow and Liu 1968) is the spanning tree of variables with the largest sum of mutual
information: the best tree-shaped distribution. A hidden Chow-Liu tree (Liu and Van den Broeck 2021) has
that tree over latent variables of K states, one an internal variable, which emit the observed ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree

from .arguments import as_tensor, categories
from .circuit import Circuit
from .layers import InputLayer
from .regions import tree_centre, tree_regions

Tensor = torch.Tensor


def _complete(x: Any, n_categories: int | None) -> tuple[Tensor, int]:
    """Data as int64 (N, V) without missing entries, and the number of categories."""
    t = as_tensor(x, "x")
    if t.dim() != 2 or not t.shape[0] or not t.shape[1]:
        raise ValueError(f"x must be (rows, variables), both > 0, got shape {tuple(t.shape)}")
    if n_categories is not None and n_categories < 1:
        raise ValueError(f"n_categories must be >= 1, got {n_categories}")
    t = categories(t, n_categories or 1 << 16, "x", True)
    if bool((t < 0).any()):
        raise ValueError("x must have no missing entries to learn a structure from")
    return t, n_categories or int(t.max()) + 1


def mutual_information(x: Any, *, n_categories: int | None = None, pseudocount: float = 0.01) -> np.ndarray:
    """Mutual information of every pair of variables, in nats, float64 (V, V); the diagonal is 0.

    Parameters
    ----------
    x : array or Tensor, (N, V)
        Categories 0 .. C-1, none missing. A CUDA tensor is worked on where it is.
    n_categories : int, optional
        C; the largest category + 1 if not given.
    pseudocount : float
        Added to the count of each of the C * C cells of a pair.
    """
    t, n_categories = _complete(x, n_categories)
    if not pseudocount >= 0:
        raise ValueError(f"pseudocount must be >= 0, got {pseudocount}")
    n, n_variables = t.shape
    c = n_categories
    total = n + pseudocount * c * c
    onehot = torch.nn.functional.one_hot(t, c).to(torch.float32).reshape(n, n_variables * c)
    single = (onehot.sum(0, dtype=torch.float64) + pseudocount * c) / total
    entropy = -torch.special.xlogy(single, single).reshape(n_variables, c).sum(1)
    out = np.zeros((n_variables, n_variables))
    step = max(1, (1 << 25) // (n_variables * c * c))
    for v in range(0, n_variables, step):
        # 0/1 products: exact in float32 up to 2^24 rows
        counts = (onehot[:, v * c : (v + step) * c].T @ onehot).double()
        p = ((counts + pseudocount) / total).reshape(-1, c, n_variables, c)
        joint = torch.special.xlogy(p, p).sum((1, 3))
        here = joint + entropy[v : v + step, None] + entropy[None, :]
        out[v : v + step] = here.cpu().numpy()
    np.fill_diagonal(out, 0.0)
    return np.maximum((out + out.T) / 2, 0.0)


def chow_liu_tree(
    x: Any, *, n_categories: int | None = None, pseudocount: float = 0.01
) -> list[tuple[int, int]]:
    """Edges of the tree of largest mutual information.

    Parameters
    ----------
    x, n_categories, pseudocount
        As for :func:`mutual_information`.

    Returns
    -------
    list of (int, int)
        V - 1 edges, the smaller variable first, sorted.
    """
    information = mutual_information(x, n_categories=n_categories, pseudocount=pseudocount)
    # scipy's trees take 0 for "no edge": shifted so that every pair has a positive length
    length = information.max(initial=0.0) + 1.0 - information
    np.fill_diagonal(length, 0.0)
    tree = minimum_spanning_tree(length).tocoo()
    return sorted((int(min(a, b)), int(max(a, b))) for a, b in zip(tree.row, tree.col, strict=True))


def hclt(
    x: Any,
    num_latents: int,
    *,
    root: int | None = None,
    rng: Any = None,
    n_categories: int | None = None,
    edges: Any = None,
    dtype: torch.dtype = torch.float32,
) -> Circuit:
    """A hidden Chow-Liu tree with random parameters. (first version)"""
    t, n_categories = _complete(x, n_categories)
    n_variables = t.shape[1]
    if edges is None:
        edges = chow_liu_tree(t, n_categories=n_categories)
    if root is None:
        root = tree_centre(n_variables, edges)
    graph, _ = tree_regions(n_variables, [(edges, root)])
    random = np.random.default_rng(rng)

    def simplex(*shape: int) -> Tensor:
        draws = random.uniform(0.1, 1.0, shape)
        return torch.as_tensor(draws / draws.sum(-1, keepdims=True), dtype=dtype)

    probs = simplex(n_variables, num_latents, n_categories)
    inputs = InputLayer(graph.input_variables, "categorical", probs=probs)
    weights = [simplex(len(level), num_latents, num_latents) for level in graph.levels]
    return Circuit(graph, inputs, weights, simplex(1, num_latents)).to(t.device)
