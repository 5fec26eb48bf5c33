"""The shape of a circuit: which regions there are, what each multiplies, in which order they are computed.

A *region* is a vector of K units over one set of variables (its scope). Regions are numbered:

* ``0 .. I - 1`` are input regions, each over one variable;
* the rest are sum regions, numbered level by level: region ``r`` of a level multiplies its children, unit by
  unit, and mixes the K products by a dense K x K matrix.

The root mixes the K units of each of its T products into one number. A hidden Chow-Liu tree has T = 1; T > 1
is a mixture of trees.

Within a level, regions stand in order of falling number of children, so that "the f-th child" exists for a
prefix of the level.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from .arguments import check_count, check_edges


@dataclass(frozen=True)
class RegionGraph:
    """A smooth and decomposable circuit structure.

    Parameters
    ----------
    n_variables : int
        Number of variables V.
    input_variables : tuple of int
        Variable of each input region; a variable may have several.
    levels : tuple of tuples of tuples of int
        ``levels[l][r]`` are the children (region numbers) of region r of level l, all from earlier levels.
    root : tuple of tuples of int
        Children of each of the T products that the root mixes.

    Raises
    ------
    ValueError
        If a product's children share a variable, if a region is used before it is computed, or if a root
        product misses a variable.
    TypeError
        If a number is no integer. Other sequences than tuples become tuples.
    """

    n_variables: int
    input_variables: tuple[int, ...]
    levels: tuple[tuple[tuple[int, ...], ...], ...]
    root: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        try:
            parts = {
                "n_variables": operator.index(self.n_variables),
                "input_variables": _numbers(self.input_variables),
                "levels": tuple(tuple(map(_numbers, level)) for level in self.levels),
                "root": tuple(map(_numbers, self.root)),
            }
        except TypeError as error:
            raise TypeError(f"a region graph is made of integers and sequences of them: {error}") from None
        for name, part in parts.items():
            object.__setattr__(self, name, part)
        scopes: list[frozenset[int]] = []
        for v in self.input_variables:
            if not 0 <= v < self.n_variables:
                raise ValueError(f"an input region names variable {v}; there are {self.n_variables}")
            scopes.append(frozenset((v,)))
        for depth, level in enumerate(self.levels):
            if not level:
                raise ValueError(f"level {depth} is empty")
            if any(len(a) < len(b) for a, b in zip(level, level[1:], strict=False)):
                raise ValueError(f"level {depth} is not in order of falling number of children")
            scopes += [self._joint_scope(children, scopes) for children in level]
        if not self.root:
            raise ValueError("the root has no product")
        if any(len(a) < len(b) for a, b in zip(self.root, self.root[1:], strict=False)):
            raise ValueError("root products are not in order of falling number of children")
        for children in self.root:
            if len(scope := self._joint_scope(children, scopes)) != self.n_variables:
                # the first ones only: a damaged file may name any number of variables
                missing = list(islice((v for v in range(self.n_variables) if v not in scope), 10))
                raise ValueError(f"root product {children} misses the variables {missing}")

    @staticmethod
    def _joint_scope(children: tuple[int, ...], scopes: list[frozenset[int]]) -> frozenset[int]:
        if not children:
            raise ValueError("a product without children")
        scope: frozenset[int] = frozenset()
        for c in children:
            if not 0 <= c < len(scopes):
                raise ValueError(f"product {children}: region {c} is not computed yet")
            if shared := scope & scopes[c]:
                raise ValueError(f"product {children}: children share the variables {sorted(shared)[:10]}")
            scope |= scopes[c]
        return scope

    @property
    def n_regions(self) -> int:
        return len(self.input_variables) + sum(len(level) for level in self.levels)


def _numbers(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(map(operator.index, values))


def padded(products: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Children as an int64 array (R, F), rows filled up with -1."""
    table = np.full((len(products), max(len(p) for p in products)), -1, np.int64)
    for r, p in enumerate(products):
        table[r, : len(p)] = p
    return table


def tree_regions(
    n_variables: int, trees: Iterable[tuple[Sequence[tuple[int, int]], int]]
) -> tuple[RegionGraph, list[dict[int, int]]]:
    """The regions of one hidden Chow-Liu tree, or of a mixture of them.

    Every variable v has its own input region. A variable with children in the tree has a latent of its own:
    its product is input_v times the regions of its children, and its sum region, seen from its parent,
    mixes the latent's K states. A leaf of the tree needs none: its input region hangs on its parent's
    latent.

    Parameters
    ----------
    n_variables : int
    trees : iterable of (edges, root)
        Undirected edges of a spanning tree and the variable to hang it from.

    Returns
    -------
    RegionGraph
        Inputs tree by tree; in levels and at the root, trees in order of falling number of children first.
    list of dict
        For each tree: variable -> the number of its sum region (variables with a latent, the root excepted).

    Raises
    ------
    ValueError, TypeError
        If there is no tree, or one that does not span the variables, or whose root is none of them.
    """
    inputs: list[int] = []
    placed: list[list[tuple[int, int, tuple[tuple[str, int], ...]]]] = []  # level: (tree, variable, children)
    roots = []
    check_count("n_variables", n_variables)
    for t, tree in enumerate(trees):
        try:
            edges, root = tree
        except (TypeError, ValueError):
            raise TypeError(f"trees must be pairs (edges, root), got {tree!r}") from None
        edges = check_edges(edges)
        parent, order = rooted(n_variables, edges, root)
        children: list[list[int]] = [[] for _ in range(n_variables)]
        for v in order[1:]:
            children[parent[v]].append(v)
        height = [0] * n_variables
        for v in reversed(order):
            height[v] = 1 + max((height[c] for c in children[v]), default=-1)
            product = (("input", v), *(("sum" if children[c] else "input", c) for c in children[v]))
            if v == root:
                roots.append((t, product))
            elif children[v]:
                while len(placed) < height[v]:
                    placed.append([])
                placed[height[v] - 1].append((t, v, product))
        inputs += range(n_variables)
    n_trees = len(roots)
    roots.sort(key=lambda entry: -len(entry[1]))
    number: dict[tuple[int, str, int], int] = {
        (t, "input", v): t * n_variables + v for t in range(n_trees) for v in range(n_variables)
    }
    levels = []
    for level in placed:
        level.sort(key=lambda entry: (-len(entry[2]), entry[0], entry[1]))
        for t, v, _ in level:
            number[t, "sum", v] = len(number)
        levels.append(tuple(tuple(number[t, kind, c] for kind, c in p) for t, _, p in level))
    graph = RegionGraph(
        n_variables,
        tuple(inputs),
        tuple(levels),
        tuple(tuple(number[t, kind, c] for kind, c in product) for t, product in roots),
    )
    sums: list[dict[int, int]] = [{} for _ in range(n_trees)]
    for (t, kind, v), r in number.items():
        if kind == "sum":
            sums[t][v] = r
    return graph, sums


def rooted(n_variables: int, edges: Sequence[tuple[int, int]], root: int) -> tuple[list[int], list[int]]:
    """Parent of each variable (-1 at the root) and the variables in breadth-first order.

    Raises
    ------
    ValueError
        If `edges` is no spanning tree of the variables, or `root` is no variable.
    """
    if isinstance(root, bool) or not hasattr(root, "__index__"):
        raise TypeError(f"root must be a variable's number, got {root!r}")
    if not 0 <= root < n_variables:
        raise ValueError(f"root must be a variable in [0, {n_variables}), got {root}")
    near: list[list[int]] = [[] for _ in range(n_variables)]
    for a, b in edges:
        if not (0 <= a < n_variables and 0 <= b < n_variables) or a == b:
            raise ValueError(f"({a}, {b}) is no edge between two of {n_variables} variables")
        near[a].append(int(b))
        near[b].append(int(a))
    parent, order, seen = [-1] * n_variables, [root], {root}
    for v in order:
        for c in near[v]:
            if c not in seen:
                seen.add(c)
                parent[c] = v
                order.append(c)
    if len(order) != n_variables or len(edges) != n_variables - 1:
        raise ValueError(
            f"{len(edges)} edges that reach {len(order)} of {n_variables} variables are no spanning tree"
        )
    return parent, order


def tree_centre(n_variables: int, edges: Sequence[tuple[int, int]]) -> int:
    """The variable whose farthest one is nearest: hanging the tree from it gives the fewest levels."""
    _, order = rooted(n_variables, edges, 0)
    parent, order = rooted(n_variables, edges, order[-1])  # from one end of a longest path to the other
    path = [order[-1]]
    while parent[path[-1]] >= 0:
        path.append(parent[path[-1]])
    return path[len(path) // 2]
