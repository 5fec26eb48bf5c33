"""The layout that the CUDA forward reads, walked on the CPU; what the executor leaves to the layers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import Circuit, InputLayer, RegionGraph, executor, hclt, tree_regions  # noqa: E402
from pfkit.circuits.executor_plan import UNITS, Layout, Shape, default_shape  # noqa: E402

PARENTS = [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 7, 10, 11, 12, 13, 0, 1, 2, 15, 15]  # a tree with chains and forks
EDGES = [(p, v) for v, p in enumerate(PARENTS) if p >= 0]


def circuit_of(units=4, categories=3, seed=0, family="categorical"):
    random = np.random.default_rng(seed)
    x = random.integers(0, categories, (30, len(PARENTS)))
    x[0] = categories - 1
    return hclt(x, units, edges=EDGES, root=0, family=family, n_categories=categories, rng=seed)


def walk(circuit, x, ordered=False, most_inputs=8, product=0):
    """log p by the kernel's own route: from every start upward, or one region after the other."""
    layout = executor.layout_of(circuit, product=product)
    rows, links, tasks = layout.tasks(ordered, most_inputs)
    n_inputs = len(circuit.graph.input_variables)
    kept = executor.regions_below(circuit, product)
    weights = [w.double() for _, _, layer in circuit.layers() for w in layer.weight.detach()]
    weights = [weights[r - n_inputs] for r in kept if r >= n_inputs]
    table = circuit.inputs.probs.detach().double()[[r for r in kept if r < n_inputs]]
    values, arrived, out = {}, [0] * len(rows), None
    for region in tasks:
        while True:
            child_begin, child_end, input_begin, input_end, parent, siblings, *first = rows[region]
            assert arrived[region] == child_end - child_begin
            pairs = [(links[2 * i], links[2 * i + 1]) for i in range(input_begin, input_end)]
            assert first == [number for pair in (pairs + [(-1, -1)] * 2)[:2] for number in pair]
            assert len(pairs) <= most_inputs
            v = torch.zeros(circuit.n_units, len(x), dtype=torch.float64)
            for i, variable in pairs:
                known = torch.log(table[i][:, x[:, variable].clamp(min=0)])
                v += torch.where(x[:, variable] < 0, torch.zeros(1, dtype=torch.float64), known)
            for link in range(child_begin, child_end):
                v += values.pop(links[link])  # computed before, and used once
            if region == len(rows) - 1:
                assert out is None
                mix = circuit.root_weight.detach().double()[product]
                out = torch.logsumexp(v + torch.log(mix)[:, None], 0)
                break
            values[region] = torch.log(weights[region] @ torch.exp(v)) if region < len(weights) else v
            arrived[parent] += 1
            if ordered or arrived[parent] < siblings:
                break
            region = parent
    assert not values
    return out


@pytest.mark.parametrize("most_inputs", [1, 2, 8])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_tasks_compute_every_region_once(ordered, most_inputs, reference):
    circuit = circuit_of()
    x = torch.as_tensor(np.random.default_rng(1).integers(-1, 3, (9, len(PARENTS))))
    expected = reference(circuit, np.where(x < 0, np.nan, x.numpy()))
    torch.testing.assert_close(walk(circuit, x, ordered, most_inputs), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("most_inputs", [1, 8])
def test_a_circuit_without_sum_regions_is_its_root(reference, most_inputs):
    x = np.array([[0, 1, 2], [2, 2, 0], [1, 0, 1]])
    circuit = hclt(x, 3, edges=[(0, 1), (0, 2)], root=0, rng=0)
    got = walk(circuit, torch.as_tensor(x), most_inputs=most_inputs)
    torch.testing.assert_close(got, reference(circuit, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("ordered", [False, True])
def test_tasks_farthest_from_the_root_come_first(ordered):
    rows, _, tasks = executor.layout_of(circuit_of()).tasks(ordered)

    def distance(r):
        return 0 if r == len(rows) - 1 else 1 + distance(rows[r][4])

    distances = [distance(r) for r in tasks]
    assert distances == sorted(distances, reverse=True)
    assert len(set(tasks)) == len(tasks)
    assert len(tasks) == (len(rows) if ordered else sum(row[0] == row[1] for row in rows))


def layout_with(children, root):
    return Layout(
        units=2, n_variables=4, input_variables=range(4), input_addresses=[0] * 4, input_sizes=[2] * 4,
        input_strides=(2, 1), children=children, root=root, weight_addresses=[0] * (len(children) + 1),
        weight_strides=(2, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("children", "root", "message"),
    [
        ([[0, 5], [1]], [4, 2, 3], "region 5 is a child of region 4, which comes first"),
        ([[0, 4]], [1, 2, 3], "region 4 is a child of region 4, which comes first"),
        ([[0], [1, 4], [2, 4]], [5, 6, 3], "region 4 is a child of several regions"),
        ([[0], [1]], [4, 2, 3], "region 5 is no child of any region"),
    ],
)
def test_what_is_no_tree_is_refused(children, root, message):
    with pytest.raises(ValueError, match=message):
        layout_with(children, root).parents()


def mixture(units=3, categories=3, trees=3, seed=0):
    """Trees that differ, mixed unevenly; on one root product hangs nothing but inputs."""
    random = np.random.default_rng(seed)
    shapes = [(EDGES, t) for t in range(trees - 1)] + [([(0, v) for v in range(1, len(PARENTS))], 0)]
    graph, _ = tree_regions(len(PARENTS), shapes)

    def simplex(*shape):
        w = random.uniform(0.1, 1.0, shape)
        return w / w.sum(-1, keepdims=True)

    inputs = InputLayer(
        graph.input_variables, "categorical", probs=simplex(trees * len(PARENTS), units, categories)
    )
    weights = [simplex(len(level), units, units) for level in graph.levels]
    return Circuit(graph, inputs, weights, simplex(1, trees * units).reshape(trees, units))


@pytest.mark.parametrize("ordered", [False, True])
def test_a_mixture_of_trees_is_one_walk_a_tree(ordered, reference):
    circuit = mixture()
    x = np.random.default_rng(1).integers(0, 3, (9, len(PARENTS)))
    parts = [walk(circuit, torch.as_tensor(x), ordered, product=p) for p in range(3)]
    torch.testing.assert_close(
        torch.logsumexp(torch.stack(parts), 0), reference(circuit, x), rtol=0, atol=1e-10
    )


def test_regions_that_nothing_is_made_of_are_left_out(reference):
    graph = RegionGraph(3, (0, 1, 2, 1), (((1,), (3,)), ((3, 2), (5,))), ((0, 6),))
    w = np.random.default_rng(0).uniform(0.1, 1.0, (4, 2, 2))
    w /= w.sum(-1, keepdims=True)
    inputs = InputLayer(graph.input_variables, "categorical", probs=w[:, :, [0, 1]])
    circuit = Circuit(graph, inputs, [w[:2], w[2:]], np.array([[0.25, 0.75]]))
    assert executor.regions_below(circuit, 0) == [0, 2, 3, 6]
    x = np.array([[0, 1, 0], [1, 1, 1], [0, 0, 1]])
    got = walk(circuit, torch.as_tensor(x))
    torch.testing.assert_close(got, reference(circuit, x), rtol=0, atol=1e-10)


def test_a_circuit_on_the_cpu_is_left_to_the_layers():
    circuit = circuit_of()
    x = torch.zeros((2, len(PARENTS)), dtype=torch.int64)
    assert not executor.covers(circuit)
    assert executor.log_prob(circuit, x) is None
    assert executor.values(circuit, x) is None


@pytest.mark.parametrize("units", UNITS)
def test_the_default_cuts_fit_the_hardware(units):
    shape = default_shape(units, (9, 0))
    assert isinstance(shape, Shape)
    assert shape.blocks * (shape.shared(units) + 1024) <= 228 * 1024  # shared memory of a multiprocessor
    assert shape.blocks * shape.threads <= 2048
    tiles = units // 16
    warps = min(tiles, shape.threads // 32)
    assert tiles % warps == 0
    assert tiles // warps * tiles % shape.ahead == 0  # the ring starts over with every region
    assert 32 * shape.columns % shape.threads == 0
    assert not (shape.near and shape.ordered)


def test_products_of_warpgroups_need_whole_ones():
    with pytest.raises(ValueError, match="threads must be a multiple of 128, got 64"):
        Shape(16, 64, 8, 2, warpgroups=True)
