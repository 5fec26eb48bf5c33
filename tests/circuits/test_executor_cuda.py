"""The CUDA forward of circuits against the same circuit in float64."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import Circuit, InputLayer, RegionGraph, executor, hclt, tree_regions  # noqa: E402
from pfkit.circuits.executor_plan import ForwardPlan, Layout, Shape  # noqa: E402
from pfkit.circuits.propagate import upward  # noqa: E402

PARENTS = [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 7, 10, 11, 12, 13, 0, 1, 2, 15, 15]
EDGES = [(p, v) for v, p in enumerate(PARENTS) if p >= 0]
V = len(PARENTS)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def circuit_of(units, *, peak=1.0, family="categorical", categories=5, seed=0, zeros=0.0):
    """A circuit with weights proportional to exp(peak * normal), a share `zeros` of them zero."""
    random = np.random.default_rng(seed)

    def simplex(*shape):
        w = np.exp(peak * random.standard_normal(shape)) * (random.random(shape) >= zeros)
        w[..., 0] += 1e-30
        return torch.as_tensor(w / w.sum(-1, keepdims=True), dtype=torch.float32)

    graph, _ = tree_regions(V, [(EDGES, 0)])
    probs = simplex(V, units, categories) if family == "categorical" else simplex(V, units, 2)[..., 0]
    inputs = InputLayer(range(V), family, probs=probs)
    weights = [simplex(len(level), units, units) for level in graph.levels]
    return Circuit(graph, inputs, weights, simplex(1, units)).cuda()


def data(rows, categories=5, seed=1):
    x = np.random.default_rng(seed).integers(-1, categories, (rows, V))
    x[0] = -1
    return torch.as_tensor(x).cuda()


def exact(circuit, x):
    return upward(copy.deepcopy(circuit).double(), x)


def compare(circuit, x, atol):
    with torch.no_grad():
        got = executor.log_prob(circuit, x)
        expected = exact(circuit, x)[1]
    assert got is not None
    assert got.dtype == torch.float32
    assert torch.equal(got == -torch.inf, expected == -torch.inf)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("units", [1, 20, 32, 64, 100, 128, 256, 512])
def test_every_size(units):
    compare(circuit_of(units), data(130), 2e-5)


@pytest.mark.parametrize("rows", [1, 31, 33, 700])
def test_every_batch(rows):
    compare(circuit_of(64), data(rows), 2e-5)


@pytest.mark.parametrize("units", [32, 128, 256])
@pytest.mark.parametrize("peak", [8.0, 15.0])
def test_weights_over_many_orders_of_magnitude(units, peak):
    # one log-likelihood is a sum of some hundred nats here: errors are roundings of terms of that size
    compare(circuit_of(units, peak=peak), data(200), 1e-4)


@pytest.mark.parametrize("units", [32, 128, 256])
def test_zero_probabilities(units):
    circuit = circuit_of(units, zeros=0.6)
    x = data(200)
    compare(circuit, x, 2e-5)
    with torch.no_grad():
        circuit.inputs.probs[3, :, 2] = 0
    assert bool((exact(circuit, x)[1] == -torch.inf).any())
    compare(circuit, x, 2e-5)


def test_a_term_far_below_the_largest_of_its_column_is_not_lost():
    circuit = circuit_of(32)
    with torch.no_grad():
        # unit 0 of every input is likely, yet no weight leads to it
        circuit.inputs.probs[:, 0] = 0.2
        circuit.inputs.probs[:, 1:] = 1e-9
        for _, _, layer in circuit.layers():
            layer.weight[:, :, 0] = 0
            layer.weight /= layer.weight.sum(2, keepdim=True)
    compare(circuit, data(40), 1e-4)


def test_bernoulli():
    compare(circuit_of(48, family="bernoulli"), data(100, categories=2), 2e-5)


def test_a_category_that_no_input_has_gives_nan_in_its_row_only():
    circuit, x = circuit_of(32), data(40)
    x[7, 3] = 5
    x[9, 4] = 1 << 40
    with torch.no_grad():
        got = executor.log_prob(circuit, x)
    wrong = torch.isnan(got)
    assert wrong.nonzero().flatten().tolist() == [7, 9]


def test_parameters_that_change_in_place_are_seen():
    circuit, x = circuit_of(64), data(50)
    compare(circuit, x, 2e-5)
    with torch.no_grad():
        circuit.sums[0].weight.mul_(0.5)
        circuit.inputs.probs.mul_(0.25)
    compare(circuit, x, 2e-5)
    circuit.load_state_dict(circuit_of(64, seed=5).state_dict())
    compare(circuit, x, 2e-5)


@pytest.mark.parametrize("units", [20, 64, 100, 128, 512])
def test_one_parameter_that_changes_is_seen(units):
    circuit, x = circuit_of(units), data(50)
    compare(circuit, x, 2e-5)
    for parameter in (circuit.inputs.probs, *(layer.weight for layer in circuit.sums)):
        for place in ((0, 0, 0), (-1, -1, -1), (0, units // 2, 3)):
            with torch.no_grad():
                before = circuit.log_prob(x)
                parameter[place] *= 1e5
                assert not torch.equal(circuit.log_prob(x), before)
            compare(circuit, x, 5e-5)
            with torch.no_grad():
                parameter[place] /= 1e5


def test_weights_above_what_float16_holds():
    circuit, x = circuit_of(64), data(50)
    with torch.no_grad():
        circuit.sums[1].weight.mul_(1e6)
    compare(circuit, x, 2e-5)


def test_log_prob_uses_it(monkeypatch):
    circuit, x = circuit_of(32), data(20)
    asked = []
    original = executor.log_prob
    monkeypatch.setattr(executor, "log_prob", lambda *a: asked.append(1) or original(*a))
    with torch.no_grad():
        value = circuit.log_prob(x)
        circuit.log_prob(x, lse="fuse")
    assert len(asked) == 1
    assert torch.equal(circuit.log_prob(x), value)  # with a gradient to come
    assert len(asked) == 2


@pytest.mark.parametrize("units", [20, 64, 128])
def test_values_of_all_regions(units):
    circuit, x = circuit_of(units), data(77)
    with torch.no_grad():
        values, root = executor.values(circuit, x)
        expected, expected_root = exact(circuit, x)
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=3e-5)
    torch.testing.assert_close(root.double(), expected_root, rtol=0, atol=3e-5)


@pytest.mark.parametrize("units", [1, 20, 64, 128, 512])
def test_a_mixture_of_trees(units):
    random = np.random.default_rng(3)

    def simplex(*shape):
        w = np.exp(random.standard_normal(shape))
        return torch.as_tensor(w / w.sum(-1, keepdims=True), dtype=torch.float32)

    graph, _ = tree_regions(V, [(EDGES, 0), ([(0, v) for v in range(1, V)], 3), (EDGES, 14)])
    inputs = InputLayer(graph.input_variables, "categorical", probs=simplex(3 * V, units, 5))
    weights = [simplex(len(level), units, units) for level in graph.levels]
    circuit = Circuit(graph, inputs, weights, simplex(1, 3 * units).reshape(3, units)).cuda()
    x = data(130)
    compare(circuit, x, 2e-5)
    with torch.no_grad():
        values, root = executor.values(circuit, x)
        expected, expected_root = exact(circuit, x)
        circuit.root_weight[1] = 0  # a tree of no weight adds nothing
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=3e-5)
    torch.testing.assert_close(root.double(), expected_root, rtol=0, atol=3e-5)
    compare(circuit, x, 2e-5)
    with torch.no_grad():
        circuit.inputs.probs[:, :, 2] = 0
    assert bool((exact(circuit, x)[1] == -torch.inf).any())
    compare(circuit, x, 2e-5)


def test_regions_that_nothing_is_made_of():
    graph = RegionGraph(3, (0, 1, 2, 1), (((1,), (3,)), ((3, 2), (5,))), ((0, 6),))
    w = torch.full((4, 32, 32), 1 / 32)
    inputs = InputLayer(graph.input_variables, "categorical", probs=torch.full((4, 32, 5), 0.2))
    circuit = Circuit(graph, inputs, [w[:2], w[2:]], torch.full((1, 32), 1 / 32)).cuda()
    x = torch.tensor([[0, 1, 4], [3, 3, 2]]).cuda()
    compare(circuit, x, 5e-6)
    with torch.no_grad():
        values, _ = executor.values(circuit, x)
    outside = torch.isnan(values).flatten(1).all(1).cpu()
    assert outside.nonzero().flatten().tolist() == [1, 4, 5, 7]


def test_what_is_not_covered_is_left_to_the_layers():
    gaussian = hclt(np.random.default_rng(0).standard_normal((20, 3)), 4, family="gaussian", rng=0).cuda()
    assert not executor.covers(gaussian)
    assert not executor.covers(circuit_of(16).double())
    assert not executor.covers(circuit_of(600))


def test_the_same_bits_every_time():
    circuit, x = circuit_of(128), data(512)
    with torch.no_grad():
        first = executor.log_prob(circuit, x)
        assert all(torch.equal(executor.log_prob(circuit, x), first) for _ in range(20))


def test_capture_in_a_cuda_graph_and_replay_with_other_data():
    circuit, x = circuit_of(64), data(64)
    with torch.no_grad():
        executor.log_prob(circuit, x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = executor.log_prob(circuit, x)
        x.copy_(data(64, seed=9))
        graph.replay()
        torch.testing.assert_close(out.double(), exact(circuit, x)[1], rtol=0, atol=2e-5)


def plan_of(circuit, strides, offset=0):
    """A plan on copies of the weights, stored with other strides."""
    k = circuit.n_units
    w = torch.cat([layer.weight.detach() for _, _, layer in circuit.layers()])
    if strides == (1, k):
        w = w.transpose(1, 2)
    flat = torch.zeros(w.numel() + offset, device="cuda")
    flat[offset:] = w.reshape(-1)
    kept = executor.layout_of(circuit)
    addresses = [flat.data_ptr() + 4 * (offset + k * k * r) for r in range(w.shape[0])]
    fields = {name: getattr(kept, name) for name in Layout.__dataclass_fields__}
    fields |= {"weight_addresses": [*addresses, kept.weight_addresses[-1]], "weight_strides": strides}
    return ForwardPlan(Layout(**(fields | {"keep": (kept.keep, flat)})), 40, 0)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("transposed", [False, True])
def test_weights_in_either_order_and_at_any_address(transposed, offset):
    circuit, x = circuit_of(64), data(40)
    plan = plan_of(circuit, (1, 64) if transposed else (64, 1), offset)
    plan.refresh()
    torch.testing.assert_close(plan.run(x).double(), exact(circuit, x)[1], rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_categories_of_every_dtype(dtype):
    circuit, x = circuit_of(32), data(40).clamp(min=0)
    plan = ForwardPlan(executor.layout_of(circuit), 40, 0)
    plan.refresh()
    torch.testing.assert_close(plan.run(x.to(dtype)).double(), exact(circuit, x)[1], rtol=0, atol=2e-5)


def test_arguments_are_checked():
    circuit = circuit_of(32)
    plan = ForwardPlan(executor.layout_of(circuit), 4, 0)
    plan.refresh()
    for x in (data(4)[:, :5], data(4).float(), data(8)[::2], data(4).cpu()):
        with pytest.raises(ValueError, match="x must be"):
            plan.run(x)
    with pytest.raises(ValueError, match="out must be"):
        plan.run(data(4), torch.empty(5, device="cuda"))
    with pytest.raises(ValueError, match="rows must have"):
        plan.set_export([0])
    with pytest.raises(ValueError, match="units must be 1 to 512, got 513"):
        ForwardPlan(executor.layout_of(circuit_of(513)), 4, 0)


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="not a Hopper GPU"
)
@pytest.mark.parametrize(
    ("units", "shape"),
    [
        (32, Shape(32, 128, 4, 2, True, near=False, ordered=True)),
        (256, Shape(32, 256, 2, 8, True, near=False, ordered=True, packed=True)),
    ],
)
def test_warpgroup_products_agree(units, shape):
    circuit, x = circuit_of(units), data(70)
    plan = ForwardPlan(executor.layout_of(circuit), 70, 0, shape)
    plan.refresh()
    torch.testing.assert_close(plan.run(x).double(), exact(circuit, x)[1], rtol=0, atol=2e-5)


@pytest.mark.parametrize("lse", ["fuse", "int", "int-pairwise", "fuse16", "int16"])
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (2, 33, 100, 130)])
def test_a_sum_layer_with_the_kernel_inside(lse, shape):
    """Bounds: float32 sums are exact to rounding of y, about 600 nats here; pairs err by 0.0039 nats each, of
    which a smaller operand gives its share; 16-bit terms are rounded to 2**-10 of their octaves below the
    largest."""
    from pfkit.circuits.executor_layer import layer_sum

    regions, outputs, terms, batch = shape
    random = torch.Generator("cuda").manual_seed(0)
    weight = torch.randn(regions, outputs, terms, device="cuda", generator=random).exp()
    weight /= weight.sum(2, keepdim=True)
    weight[0, 1, 2:] = 0
    weight[0, 2] = 0
    x = torch.randn(regions, terms, batch, device="cuda", generator=random) * 4 - 600
    x[0, :, 3] = -torch.inf
    exactly = torch.logsumexp(weight.double().log().unsqueeze(3) + x.double().unsqueeze(1), 2)
    got = layer_sum(weight, x, lse)
    assert torch.equal(got == -torch.inf, exactly == -torch.inf)
    bound = {"fuse": 1e-4, "int": 1e-4, "int-pairwise": 0.03, "fuse16": 0.02, "int16": 0.05}[lse]
    finite = exactly > -torch.inf
    torch.testing.assert_close(got[finite].double(), exactly[finite], rtol=0, atol=bound)


def test_a_sum_layer_refuses_what_it_cannot_run():
    from pfkit.circuits.executor_layer import layer_sum

    weight, x = torch.rand(1, 2, 3, device="cuda"), torch.rand(1, 3, 4, device="cuda")
    with pytest.raises(ValueError, match="lse must be one of"):
        layer_sum(weight, x, "matmul")
    with pytest.raises(ValueError, match="weight must be a 3-d float32 CUDA tensor"):
        layer_sum(weight.double(), x, "fuse")
    with pytest.raises(ValueError, match=r"x must be \(1, 3, batch\)"):
        layer_sum(weight, x[:, :2], "fuse")
    assert layer_sum(weight, x[:, :, :0], "fuse").shape == (1, 2, 0)


@pytest.mark.parametrize(("units", "columns", "threads"), [(32, 32, 128), (64, 16, 128)])
def test_walking_upward_agrees(units, columns, threads):
    circuit, x = circuit_of(units), data(70)
    shape = Shape(columns, threads, 4, units // 16)
    plan = ForwardPlan(executor.layout_of(circuit), 70, 0, shape)
    plan.refresh()
    torch.testing.assert_close(plan.run(x).double(), exact(circuit, x)[1], rtol=0, atol=2e-5)
    plan.set_export(range(0, circuit.n_regions * units, units))
    plan.run(x, keep_all=True)
    values = plan.export(torch.empty(circuit.n_regions * units, 70, device="cuda"))
    expected = exact(circuit, x)[0].flatten(0, 1)
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=3e-5)
