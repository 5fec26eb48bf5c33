"""Reading a compiled model's tables: a hidden tree over three variables with two latents, written out by
hand."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from pfkit.circuits.pyjuice_plain import PlainEngine  # noqa: E402
from pfkit.circuits.pyjuice_tables import Unsupported, read_tables  # noqa: E402


def tensors(*rows):
    return [torch.tensor(row) for row in rows]


def nodes(*ranges):
    return [SimpleNamespace(_output_ind_range=r) for r in ranges]


class Group:
    """A layer group of one layer."""

    def __init__(self, kind, **layer):
        self.kind, self.layers = kind, [SimpleNamespace(**layer)]

    def is_prod(self):
        return self.kind == "prod"

    def is_sum(self):
        return self.kind == "sum"


@pytest.fixture
def pc():
    """Inputs: variables 2, 1, 0 at rows 2, 4, 6; row 8: sum over x1 x2; row 10: root over (row 8) x0. Three
    categories."""
    inputs = SimpleNamespace(
        dist_signature="Categorical",
        num_vars_per_node=1,
        vids=torch.tensor([[2], [2], [1], [1], [0], [0]]),
        s_pids=torch.tensor([0, 3, 6, 9, 12, 15]),
        s_mids=torch.tensor([0, 0, 1, 1, 2, 2]),
        metadata=torch.tensor([3.0, 3.0, 3.0]),
        _output_ind_range=(2, 8),
        nodes=nodes((2, 4), (4, 6), (6, 8)),
        params=torch.tensor(
            [0.1, 0.2, 0.7, 0.3, 0.3, 0.4, 0.5, 0.25, 0.25, 0.0, 0.5, 0.5, 0.6, 0.2, 0.2, 0.1, 0.1, 0.8]
        ),
    )
    groups = [
        Group("prod", block_size=2, partitioned_nids=tensors([2]), partitioned_cids=tensors([[2, 4]])),
        Group(
            "sum",
            block_size=2,
            nodes=nodes((8, 10)),
            partitioned_nids=tensors([8]),
            partitioned_cids=tensors([[2, 3]]),
            partitioned_pids=tensors([[2, 4]]),
        ),
        Group("prod", block_size=2, partitioned_nids=tensors([2]), partitioned_cids=tensors([[8, 6, 0, 0]])),
        Group(
            "sum",
            block_size=1,
            nodes=nodes((10, 11)),
            partitioned_nids=tensors([10]),
            partitioned_cids=tensors([[2, 3, 0, 0]]),
            partitioned_pids=tensors([[6, 7, 0, 0]]),
        ),
    ]
    return SimpleNamespace(
        num_nodes=11,
        num_vars=3,
        _root_node_range=(10, 11),
        input_layer_group=SimpleNamespace(layers=[inputs]),
        inner_layer_groups=groups,
        params=torch.tensor(
            [0.0, 0.0, 0.9, 0.4, 0.1, 0.6, 0.25, 0.75]
        ),  # W = [[.9, .1], [.4, .6]], root (.25, .75)
    )


def test_regions(pc):
    tables = read_tables(pc)
    assert [(r.row, r.variable, r.parameters, r.categories) for r in tables.inputs] == [
        (2, 2, 0, 3),
        (4, 1, 6, 3),
        (6, 0, 12, 3),
    ]
    assert [(r.row, r.size, r.children, r.weights) for r in tables.sums] == [
        (8, 2, (0, 1), 2),
        (10, 1, (3, 2), 6),
    ]
    assert tables.root.row == 10 and len(tables.levels) == 2
    assert np.array_equal(tables.sums[0].weight_index(), [[2, 3], [4, 5]])  # (child, node)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_the_sums_written_out(pc, dtype):
    engine = PlainEngine(read_tables(pc), pc.params, [pc.input_layer_group.layers[0].params], dtype)
    x = torch.tensor([[0, 1, 2], [2, 0, 0], [1, -1, 2], [-1, -1, -1]])
    p0 = torch.tensor([[0.6, 0.1], [0.2, 0.8], [0.2, 0.1], [1, 1]])
    p1 = torch.tensor([[0.25, 0.5], [0.5, 0.0], [1, 1], [1, 1]])
    p2 = torch.tensor([[0.7, 0.4], [0.1, 0.3], [0.7, 0.4], [1, 1]])
    inner = (p1 * p2).double() @ torch.tensor([[0.9, 0.4], [0.1, 0.6]]).double()
    expected = ((p0 * inner) @ torch.tensor([0.25, 0.75]).double()).log()
    assert torch.allclose(engine.log_prob(x)[0].double(), expected, rtol=0, atol=1e-6)
    assert torch.allclose(engine.values(x)[8:10].double(), inner.T.log(), rtol=0, atol=1e-6)


def test_parameters_are_read_live(pc):
    engine = PlainEngine(read_tables(pc), pc.params, [pc.input_layer_group.layers[0].params])
    x = torch.tensor([[0, 1, 2]])
    before = engine.log_prob(x)
    pc.params[6:] = torch.tensor([1.0, 0.0])
    after = engine.log_prob(x)
    assert after.item() == pytest.approx(np.log(0.6 * (0.25 * 0.7 * 0.9 + 0.5 * 0.4 * 0.1)), abs=1e-6)
    assert before.item() != after.item()


def test_impossible_is_minus_infinity_and_a_distant_unit_survives(pc):
    inputs = pc.input_layer_group.layers[0].params
    inputs[:] = torch.tensor([0.0, 0.5, 0.5] * 6)
    engine = PlainEngine(read_tables(pc), pc.params, [inputs])
    x = torch.zeros(1, 3, dtype=torch.int64)
    assert torch.equal(engine.log_prob(x), torch.tensor([[-torch.inf]]))
    # child 0 is far above child 1, and unit 1 mixes child 1 alone: its value lies 160 nats under the maximum
    inputs[:] = torch.tensor([1.0, 0.0, 0.0] * 6)
    inputs[[3, 9]] = 1e-35
    pc.params[2:6] = torch.tensor([1.0, 0.0, 0.0, 1.0])
    value = engine.values(x)[8:10, 0]
    assert torch.allclose(
        value.double(), torch.tensor([0.0, 2 * np.log(1e-35)], dtype=torch.float64), rtol=1e-6
    )


def broken(pc, change):
    change(pc)
    with pytest.raises(Unsupported) as error:
        read_tables(pc)
    return str(error.value)


def test_what_is_not_covered_is_named(pc):
    def gaussian(pc):
        pc.input_layer_group.layers[0].dist_signature = "Gaussian"

    assert "Gaussian" in broken(pc, gaussian)


def test_a_product_that_crosses_units_is_not_covered(pc):
    def crossed(pc):
        layer = pc.inner_layer_groups[0].layers[0]
        layer.block_size = 1
        layer.partitioned_nids, layer.partitioned_cids = tensors([2, 3]), tensors([[2, 5], [3, 4]])

    assert "another order" in broken(pc, crossed)


def test_a_missing_edge_is_not_covered(pc):
    def cut(pc):
        pc.inner_layer_groups[1].layers[0].partitioned_cids = tensors([[2, 0]])

    assert "sparse" in broken(pc, cut)


def test_a_root_of_two_regions_is_not_covered(pc):
    def two(pc):
        pc._root_node_range = (9, 11)

    assert "root" in broken(pc, two)


def test_the_cuda_layout_points_at_the_weights(pc):
    """Addresses and strides, followed by hand in the memory of the host."""
    import ctypes

    from pfkit.circuits.pyjuice_cuda import CudaEngine

    inputs = pc.input_layer_group.layers[0].params
    layout = CudaEngine(read_tables(pc), pc.params, [inputs])._layout

    def at(address, *steps):
        offset = sum(i * stride for i, stride in steps)
        return ctypes.c_float.from_address(address + 4 * offset).value

    result, term = layout.weight_strides
    w = [[at(layout.weight_addresses[0], (m, result), (e, term)) for e in range(2)] for m in range(2)]
    assert np.allclose(w, [[0.9, 0.1], [0.4, 0.6]])
    assert np.allclose([at(layout.weight_addresses[1], (e, 1)) for e in range(2)], [0.25, 0.75])
    unit, category = layout.input_strides
    p = [[at(layout.input_addresses[1], (k, unit), (c, category)) for c in range(3)] for k in range(2)]
    assert np.allclose(p, [[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]])
    assert layout.input_variables == [2, 1, 0] and list(layout.children) == [(0, 1)] and layout.root == (3, 2)
    assert layout.units == 2 and list(layout.input_sizes) == [3, 3, 3]
