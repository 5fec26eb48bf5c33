"""The hidden Chow-Liu tree of the circuit benchmark as a PyJuice model, and back as a pfkit circuit.

Needs PyJuice 2.6 and networkx. Both models then hold the same numbers, so their log-likelihoods can be
compared with one float64 reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def build(edges: Any, root: int, units: int, x: Any, seed: int = 0) -> Any:
    """A compiled PyJuice model on the GPU.

    Sums get random weights, the inputs of a pixel its histogram in x, each entry times e^N(0, 1): likelihoods
    are those of a model that has seen the data, and nothing has to be learned first.

    Parameters
    ----------
    edges, root
        The tree.
    units : int
        Latent states.
    x : Tensor, (rows, variables) uint8
    """
    import pyjuice
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)

    def simplex(p: Any) -> Any:
        p = p * torch.randn(p.shape, device="cuda", generator=generator).exp_()
        return (p / p.sum(-1, keepdim=True)).cpu()

    counts = torch.zeros(x.shape[1], 256, device="cuda")
    counts.scatter_add_(1, x.T.long().cuda(), torch.ones(x.T.shape, device="cuda"))
    top = regions(edges, root, units)
    for nodes in top:
        if nodes.is_sum():
            size = nodes.edge_ids.size(1), nodes.block_size, nodes.ch_block_size
            nodes._params = simplex(torch.ones(size, device="cuda"))
        elif nodes.is_input():
            (variable,) = nodes.scope.to_list()
            histogram = (counts[variable] + 0.05).expand(nodes.num_nodes, -1)
            nodes._params = simplex(histogram).reshape(-1)
            nodes._param_initialized = True
    model = pyjuice.compile(top, verbose=False)
    model.to("cuda")
    return model


def regions(edges: Any, root: int, units: int) -> Any:
    """The tree as PyJuice's nodes, without parameters."""
    import networkx as nx
    from pyjuice.nodes.distributions import Categorical
    from pyjuice.structures.compilation import BayesianTreeToHiddenRegionGraph

    graph = nx.Graph()
    graph.add_edges_from([(int(a), int(b)) for a, b in edges])
    return BayesianTreeToHiddenRegionGraph(graph, root, units, Categorical, {"num_cats": 256})


def as_circuit(model: Any) -> Any:
    """A :class:`pfkit.circuits.Circuit` with the structure and the parameters of a compiled model."""
    import torch

    from pfkit.circuits import Circuit, InputLayer, RegionGraph
    from pfkit.circuits.pyjuice_tables import read_tables

    tables = read_tables(model)
    place = {i: i for i in range(len(tables.inputs))}
    levels, weights = [], []
    position = len(place)
    root = tables.root
    for level in tables.levels:
        # a level stands in order of falling fan-in
        order = sorted(range(len(level)), key=lambda r: -len(level[r].children))
        kept = [level[r] for r in order if level[r] is not root]
        children = [tuple(place[c] for c in region.children) for region in kept]
        for r in order:
            if level[r] is not root:
                place[position + r] = len(place)
        position += len(level)
        if kept:
            levels.append(tuple(children))
            index = np.stack([region.weight_index() for region in kept])
            w = model.params.data[torch.as_tensor(index, device=model.params.device)]
            weights.append(w.transpose(1, 2).contiguous())
    probs = torch.stack(
        [
            model.input_layer_group.layers[leaf.layer]
            .params.data[leaf.parameters :][: leaf.size * leaf.categories]
            .view(leaf.size, leaf.categories)
            for leaf in tables.inputs
        ]
    )
    mix = model.params.data[torch.as_tensor(root.weight_index(), device=model.params.device)]
    variables = tuple(leaf.variable for leaf in tables.inputs)
    graph = RegionGraph(
        tables.num_variables, variables, tuple(levels), (tuple(place[c] for c in root.children),)
    )
    circuit = Circuit(
        graph,
        InputLayer(list(variables), "categorical", probs=probs.cpu()),
        [w.cpu() for w in weights],
        mix.T.cpu(),
    )
    return circuit.cuda()
