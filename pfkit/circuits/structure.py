"""Structures learned from data: Chow-Liu trees and hidden Chow-Liu trees.

A Chow-Liu tree (Chow and Liu 1968) is the spanning tree of variables with the largest sum of mutual
information: the best tree-shaped distribution. A hidden Chow-Liu tree (Liu and Van den Broeck 2021) has
that tree over latent variables of K states, one an internal variable, which emit the observed ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree

from .arguments import (
    as_tensor,
    categories,
    check_count,
    check_dtype,
    check_edges,
    check_positive,
    numpy_generator,
)
from .circuit import Circuit
from .layers import FAMILIES, InputLayer
from .learning import normalized_counts
from .pairs import joint_dense, joint_sparse, suits_dense
from .regions import rooted, tree_centre, tree_regions
from .scale import check_scale
from .start import cluster_start

Tensor = torch.Tensor
MAX_CATEGORIES = 1 << 16
MAX_NUMBERS = 1 << 30  # of chow_liu's tables: 8 GiB in float64


def _complete(x: Any, n_categories: int | None) -> tuple[Tensor, int]:
    """Data as int64 (N, V) without missing entries, and the number of categories."""
    t = as_tensor(x, "x")
    if t.dim() != 2 or not t.shape[0] or not t.shape[1]:
        raise ValueError(f"x must be (rows, variables), both > 0, got shape {tuple(t.shape)}")
    if n_categories is not None:
        check_count("n_categories", n_categories)
        if n_categories > MAX_CATEGORIES:
            raise ValueError(f"n_categories must be at most {MAX_CATEGORIES}, got {n_categories}")
    t = categories(t, n_categories or MAX_CATEGORIES, "x", True)
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

    Raises
    ------
    ValueError, TypeError
        For data with missing or invalid entries, or a pseudocount out of its range.

    Notes
    -----
    Pairs are counted in matrix products while the C * C tables of one variable and all others are of
    reasonable size, otherwise pair by pair, with memory for N observed cells.
    """
    t, n_categories = _complete(x, n_categories)
    check_positive("pseudocount", pseudocount, zero=True)
    n, n_variables = t.shape
    c = n_categories
    total = n + pseudocount * c * c
    if not math.isfinite(total):
        raise ValueError(f"pseudocount is too large for {c} * {c} cells, got {pseudocount!r}")
    cell = t + c * torch.arange(n_variables, device=t.device)
    count = torch.bincount(cell.flatten(), minlength=n_variables * c).double()
    single = (count + pseudocount * c) / total
    entropy = -torch.special.xlogy(single, single).reshape(n_variables, c).sum(1).cpu().numpy()
    joint = joint_dense if suits_dense(n, n_variables, c) else joint_sparse
    out = joint(t, c, pseudocount) + entropy[:, None] + entropy
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

    Raises
    ------
    ValueError, TypeError
        As :func:`mutual_information`.
    """
    information = mutual_information(x, n_categories=n_categories, pseudocount=pseudocount)
    return spanning_tree(information)


def _gaussian_information(t: Tensor, dtype: torch.dtype) -> np.ndarray:
    """Mutual information of jointly Gaussian variables: -log(1 - correlation^2) / 2."""
    if not t.is_floating_point():
        t = t.double()
    if not bool(torch.isfinite(t).all()):
        raise ValueError("x must be finite and have no missing entries to learn a structure from")
    check_scale(t, dtype)
    centred = t.double() - t.double().mean(0)
    norm = centred.norm(dim=0)
    norm = torch.where(norm > 0, norm, 1.0)
    correlation = (centred.T @ centred) / norm / norm[:, None]
    information = -0.5 * torch.log1p(-(correlation**2).clamp_max(1 - 1e-15)).cpu().numpy()
    np.fill_diagonal(information, 0.0)
    return information


def spanning_tree(information: np.ndarray) -> list[tuple[int, int]]:
    """Edges (smaller variable first, sorted) of the spanning tree with the largest sum of `information`."""
    if not np.isfinite(information).all():
        raise ValueError("mutual information is not finite: the data or a pseudocount are too large")
    # scipy's trees take 0 for "no edge": shifted so that every pair has a positive length
    length = information.max(initial=0.0) + 1.0 - information
    np.fill_diagonal(length, 0.0)
    tree = minimum_spanning_tree(length).tocoo()
    return sorted((int(min(a, b)), int(max(a, b))) for a, b in zip(tree.row, tree.col, strict=True))


def chow_liu(
    x: Any,
    *,
    n_categories: int | None = None,
    pseudocount: float = 0.01,
    root: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Circuit:
    """The Chow-Liu tree itself as a circuit, maximum likelihood with a pseudocount.

    Units are categories: K = C, and a variable's input unit k is 1 where the variable is k, 0 elsewhere. So
    units do not overlap, and :meth:`Circuit.mpe` is exact.

    Parameters
    ----------
    x : array or Tensor, (N, V)
        Categories 0 .. C-1, none missing.
    n_categories : int, optional
        C; the largest category + 1 if not given.
    pseudocount : float
        Added to each of the C * C cells of a pair of variables.
    root : int, optional
        Where the tree hangs from; its centre if not given. The distribution does not depend on it.
    dtype : torch.dtype
        Of the parameters.

    Raises
    ------
    ValueError, TypeError
        For data with missing or invalid entries, a root that is no variable, or so many categories that the
        tables, 2 V C * C numbers, would exceed 8 GiB.
    """
    check_dtype(dtype)
    t, c = _complete(x, n_categories)
    if (numbers_needed := 2 * t.shape[1] * c * c) > MAX_NUMBERS:
        raise ValueError(
            f"a table of {c} * {c} categories for each of {t.shape[1]} variables would take "
            f"{numbers_needed / (1 << 27):.0f} GiB, at most {MAX_NUMBERS >> 27} are allowed: merge categories"
        )
    edges = chow_liu_tree(t, n_categories=c, pseudocount=pseudocount)
    n, n_variables = t.shape
    root = tree_centre(n_variables, edges) if root is None else root
    graph, numbers = tree_regions(n_variables, [(edges, root)])
    parent, order = rooted(n_variables, edges, root)
    inputs = torch.eye(c, dtype=torch.float64).repeat(n_variables, 1, 1)
    start = n_variables
    weights = []
    for level in graph.levels:
        weights.append(torch.empty((len(level), c, c), dtype=torch.float64))
    place = {}  # region number -> (level, row)
    for depth, level in enumerate(graph.levels):
        for r in range(len(level)):
            place[start] = (depth, r)
            start += 1
    for v in order[1:]:
        pair = torch.bincount(t[:, parent[v]] * c + t[:, v], minlength=c * c).reshape(c, c).double().cpu()
        # a parent's category that never occurred, without pseudocount: any distribution will do
        table = normalized_counts(pair, pseudocount * c, torch.full((c, c), 1.0 / c, dtype=torch.float64))
        if v in numbers[0]:
            depth, r = place[numbers[0][v]]
            weights[depth][r] = table
        else:
            inputs[v] = table
    single = torch.bincount(t[:, root], minlength=c).double().cpu() + pseudocount * c
    layer = InputLayer(graph.input_variables, "categorical", probs=inputs.to(dtype))
    return Circuit(graph, layer, [w.to(dtype) for w in weights], (single / single.sum())[None].to(dtype)).to(
        t.device
    )


def hclt(
    x: Any,
    num_latents: int,
    *,
    root: int | None = None,
    rng: Any = None,
    family: str = "categorical",
    n_categories: int | None = None,
    edges: Any = None,
    bins: int = 8,
    pseudocount: float = 0.01,
    dtype: torch.dtype = torch.float32,
) -> Circuit:
    """A hidden Chow-Liu tree over data x, with parameters to start :meth:`Circuit.fit` from.

    Every variable with children in the tree has a latent of `num_latents` states; a leaf hangs on its
    parent's latent (a mixture of categoricals is one, so a latent of its own would add nothing).

    Parameters
    ----------
    x : array or Tensor, (N, V)
        Categories 0 .. C-1, or real numbers for Gaussian inputs; none missing. A CUDA tensor gives a CUDA
        circuit.
    num_latents : int
        K, states of each latent.
    root : int, optional
        Variable to hang the tree from; its centre if not given, which gives the fewest levels.
    rng : None, int, SeedSequence or numpy Generator
        For the first parameters: K clusters around K random rows of x.
    family : "categorical", "bernoulli" or "gaussian"
        Of the inputs.
    n_categories : int, optional
        C; the largest category + 1 if not given.
    edges : sequence of (int, int), optional
        The tree, if not to be learned from x.
    bins : int
        With more categories than that, the tree is learned from `bins` ranges of equal width, as of grey
        values.
    pseudocount : float
        Of :func:`chow_liu_tree`.
    dtype : torch.dtype
        Of the parameters: float32 or float64.

    Raises
    ------
    ValueError, TypeError
        For data with missing or invalid entries, a tree that does not span the variables, a root that is
        none; for Gaussian inputs, a variable whose spread is lost in rounding to `dtype` (not a constant
        one), or whose squares leave its range.
    """
    check_count("num_latents", num_latents)
    check_count("bins", bins)
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
    check_dtype(dtype)
    random = numpy_generator(rng)
    if family == "gaussian":
        t = as_tensor(x, "x")
        if t.dim() != 2 or not t.shape[0] or not t.shape[1]:
            raise ValueError(f"x must be (rows, variables), both > 0, got shape {tuple(t.shape)}")
        information, c = _gaussian_information(t, dtype), 0
    else:
        t, c = _complete(x, 2 if family == "bernoulli" else n_categories)
    n_variables = t.shape[1]
    if edges is not None:
        edges = check_edges(edges)
    elif family == "gaussian":
        edges = spanning_tree(information)
    elif c > bins:
        edges = chow_liu_tree(t * bins // c, n_categories=bins, pseudocount=pseudocount)
    else:
        edges = chow_liu_tree(t, n_categories=c, pseudocount=pseudocount)
    graph, _ = tree_regions(n_variables, [(edges, tree_centre(n_variables, edges) if root is None else root)])

    inputs, weights, mix = cluster_start(graph, t, num_latents, family, c, random, dtype)
    return Circuit(graph, inputs, weights, mix).to(t.device)
