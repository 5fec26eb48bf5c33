"""An accelerated PyJuice model against a recursion over PyJuice's own node graph.

Without a GPU PyJuice compiles only if the two calls that demand one are switched off, and its own forward
cannot run; the accelerated forward can. What needs PyJuice's kernels (its backward, EM, the calls passed
on) is marked ``gpu``.
"""

import contextlib
import copy
import os
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
# where there is an nvcc, PyJuice would first build its optional kernels, for minutes
os.environ.setdefault("PYJUICE_DISABLE_CUDA_KERNELS", "1")
pyjuice = pytest.importorskip("pyjuice", reason="PyJuice is not installed")

import networkx as nx  # noqa: E402

from pfkit.circuits.pyjuice import accelerate, explain, restore  # noqa: E402
from pfkit.circuits.pyjuice_tables import Unsupported, read_tables  # noqa: E402


def hidden_tree(n_variables, num_latents, num_cats=5, step=3, **options):
    """A hidden Chow-Liu tree in which variable i hangs from i - step, or from the root 0."""
    from pyjuice.nodes.distributions import Categorical
    from pyjuice.structures.compilation import BayesianTreeToHiddenRegionGraph

    tree = nx.Graph()
    tree.add_edges_from((i, max(0, i - step)) for i in range(1, n_variables))
    nodes = BayesianTreeToHiddenRegionGraph(
        tree, 0, num_latents, Categorical, {"num_cats": num_cats}, **options
    )
    nodes.init_parameters()
    return nodes


@pytest.fixture
def compile_on_cpu(monkeypatch):
    def compiled(nodes):
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            patch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
            patch.setattr(torch.Tensor, "cuda", lambda self, *args, **kwargs: self)
            device = torch.device("cuda:0")
            return pyjuice.compile(nodes, device=device, disable_gpu_compilation=True, verbose=False)

    return compiled


def log_values(root, x):
    """Float64 log values of every node, (nodes, B) each; x < 0 is missing."""
    values = {}
    for ns in root:
        if ns.is_input():
            owner = ns.get_source_ns() if ns.is_tied() else ns
            table = owner._params.double().view(ns.num_nodes, -1).log()
            category = x[:, ns.scope.to_list()[0]].long()
            values[ns] = table[:, category.clamp(min=0)].masked_fill(category < 0, 0.0)
        elif ns.is_prod():
            values[ns] = sum(values[child] for child in ns.chs)
        else:
            children = torch.cat([values[child] for child in ns.chs])
            values[ns] = torch.logsumexp(dense_weights(ns).log()[:, :, None] + children[None], dim=1)
    return values


def dense_weights(ns):
    """The weights of a sum as one matrix (nodes, children), zero where there is no edge."""
    rows, columns = ns.block_size, ns.chs[0].block_size
    weights = torch.zeros(ns.num_nodes, sum(c.num_nodes for c in ns.chs), dtype=torch.float64)
    for (i, j), block in zip(ns.edge_ids.T.tolist(), ns._params, strict=True):
        weights[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns] = block.double()
    return weights


SHAPES = [(12, 4, 3), (7, 24, 3), (9, 8, 1), (10, 16, 9)]  # variables, latents, step


@pytest.mark.parametrize("n_variables, num_latents, step", SHAPES)
def test_every_node_value(compile_on_cpu, n_variables, num_latents, step):
    torch.manual_seed(3)
    root = hidden_tree(n_variables, num_latents, step=step)
    pc = accelerate(compile_on_cpu(root))
    x = torch.randint(0, 5, (33, n_variables), dtype=torch.uint8)
    with torch.no_grad():
        lls = pc(x)
    expected = log_values(root, x)
    assert lls.shape == (33, 1)
    assert torch.allclose(lls.double().T, expected[root], rtol=0, atol=2e-5)
    for ns, value in expected.items():
        if not ns.is_prod():
            low, high = ns._output_ind_range
            assert torch.allclose(pc.node_mars[low:high].double(), value, rtol=0, atol=2e-5)


def test_tied_inputs_and_small_blocks(compile_on_cpu):
    torch.manual_seed(9)
    root = hidden_tree(9, 16, tie_input_params=True, block_size=4)
    pc = accelerate(compile_on_cpu(root))
    x = torch.randint(0, 5, (20, 9))
    assert torch.allclose(pc(x).double().T, log_values(root, x)[root], rtol=0, atol=2e-5)
    assert explain(pc).startswith('lse="matmul": 1 forward')


def test_missing_variables(compile_on_cpu):
    torch.manual_seed(4)
    root = hidden_tree(9, 8)
    pc = accelerate(compile_on_cpu(root))
    x = torch.randint(0, 5, (20, 9))
    mask = torch.rand(20, 9) < 0.5
    for missing in (mask, mask[0]):
        expected = log_values(root, x.masked_fill(missing, -1))[root]
        assert torch.allclose(pc(x, missing_mask=missing).double().T, expected, rtol=0, atol=2e-5)
    everything = torch.ones(9, dtype=torch.bool)
    assert torch.allclose(pc(x, missing_mask=everything), torch.zeros(20, 1), rtol=0, atol=2e-6)


def test_parameters_changed_in_place_count_at_once(compile_on_cpu):
    torch.manual_seed(5)
    root = hidden_tree(9, 8)
    pc = accelerate(compile_on_cpu(root))
    x = torch.randint(0, 5, (20, 9))
    before = pc(x)
    with torch.no_grad():
        pc.params.data.pow_(2)
        pc._normalize_parameters(pc.params.data)
        pc.input_layer_group.layers[0].params.data.fill_(0.2)
    assert torch.allclose(pc(x), torch.full((20, 1), 9 * torch.tensor(0.2).log().item()), rtol=0, atol=1e-5)
    assert not torch.equal(before, pc(x))


def test_the_largest_category_of_a_byte(compile_on_cpu):
    root = hidden_tree(6, 4, num_cats=256)
    pc = accelerate(compile_on_cpu(root))
    pc.input_layer_group.layers[0].params.data.fill_(1 / 256)
    x = torch.full((3, 6), 255, dtype=torch.uint8)
    assert torch.allclose(pc(x), torch.full((3, 1), -48.0).mul(torch.tensor(2.0).log()), rtol=1e-6)


def test_node_values_are_owed_until_asked_for(compile_on_cpu):
    torch.manual_seed(6)
    pc = accelerate(compile_on_cpu(hidden_tree(9, 8)))
    x = torch.randint(0, 5, (20, 9))
    with torch.no_grad():
        lls = pc(x)
    assert "1 forward calls here, 0 with node values" in explain(pc)
    assert torch.equal(pc.node_mars[-1], lls[:, 0])
    assert "1 forward calls here, 1 with node values" in explain(pc)
    pc(x)
    pc.params.data.zero_()  # the values stay those of the forward
    assert torch.equal(pc.get_node_mars(pc.root_ns)[0], lls[:, 0])


def test_another_batch_size_and_back(compile_on_cpu):
    torch.manual_seed(7)
    pc = accelerate(compile_on_cpu(hidden_tree(9, 8)))
    x = torch.randint(0, 5, (20, 9))
    with torch.inference_mode():
        pc(x)
        assert not pc.node_mars.is_inference()
    first = pc(x)
    assert torch.allclose(pc(x[:7]), first[:7], rtol=0, atol=1e-5) and pc.node_mars.shape[1] == 7
    assert torch.equal(pc(x), first) and pc.node_mars.shape[1] == 20


def test_restore_gives_the_class_back(compile_on_cpu):
    torch.manual_seed(8)
    pc = compile_on_cpu(hidden_tree(9, 8))
    own = type(pc)
    assert accelerate(accelerate(pc)) is pc
    assert isinstance(pc, pyjuice.TensorCircuit) and type(pc) is not own
    with torch.no_grad():
        lls = pc(torch.randint(0, 5, (20, 9)))
    assert restore(restore(pc)) is pc and type(pc) is own
    assert torch.equal(pc.node_mars[-1], lls[:, 0])
    assert explain(pc).startswith("not accelerated")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pc: pickle.loads(pickle.dumps(pc))])
def test_copies_are_pyjuices_own(compile_on_cpu, copied):
    torch.manual_seed(10)
    pc = compile_on_cpu(hidden_tree(9, 8))
    own = type(pc)
    accelerate(pc)
    x = torch.randint(0, 5, (20, 9))
    lls = pc(x)
    other = copied(pc)
    assert type(other) is own and "_pfkit" not in other.__dict__
    assert torch.equal(other.node_mars[-1], lls[:, 0])
    assert torch.equal(accelerate(other)(x), lls) and torch.equal(pc(x), lls)


def test_what_is_passed_on_is_said(compile_on_cpu):
    pc = accelerate(compile_on_cpu(hidden_tree(9, 8)))
    x = torch.randint(0, 5, (20, 9))
    session = pc.__dict__["_pfkit"]
    for arguments in (
        {"propagation_alg": "MPE"},
        {"pflow_temperature": 0.5},
        {"cache": {}},
        {"return_cache": True},
        {"input_layer_fn": lambda *a: None},
        {"sum_external_params": {}},
    ):
        (name,) = arguments
        assert name in session.why_not(pc, x, arguments)
    assert "integer" in session.why_not(pc, x.float(), {})
    same = {"propagation_alg": "LL", "force_use_fp32": True, "record_cudagraph": True}
    assert session.why_not(pc, x, same) is None
    query = pyjuice.queries.conditional.__globals__["_conditional_fw_input_fn"]
    assert (
        session.why_not(pc, x, {"input_layer_fn": query, "missing_mask": x == 0, "target_vars": [0]}) is None
    )
    pc.set_propagation_alg("MPE")
    assert "MPE" in session.why_not(pc, x, {})
    # the warning comes before PyJuice's own forward, which has no kernels for a CPU
    with pytest.warns(UserWarning, match="MPE"), pytest.raises((NotImplementedError, RuntimeError)):
        pc(x)
    assert "1 passed on to PyJuice: the propagation algorithm is MPE" in explain(pc)


def test_a_model_that_is_not_covered_stays_pyjuices(compile_on_cpu):
    from pyjuice.nodes.distributions import Gaussian
    from pyjuice.structures.compilation import BayesianTreeToHiddenRegionGraph

    tree = nx.Graph()
    tree.add_edges_from([(0, 1), (1, 2)])
    root = BayesianTreeToHiddenRegionGraph(tree, 1, 4, Gaussian, {"mu": 0.0, "sigma": 1.0})
    root.init_parameters()
    pc = compile_on_cpu(root)
    with pytest.raises(Unsupported, match="Gaussian"):
        read_tables(pc)
    with pytest.warns(UserWarning, match="Gaussian"):
        accelerate(pc)
    assert "every forward is PyJuice's" in explain(pc)


@pytest.mark.parametrize("call", [accelerate, restore, explain])
def test_what_is_no_model_is_refused(call):
    for other in (torch.nn.Linear(2, 2), 3, None):
        with pytest.raises(TypeError, match=f"TensorCircuit.*not {type(other).__name__}"):
            call(other)


def test_wrong_mode():
    with pytest.raises(ValueError, match="'fast'"):
        accelerate(torch.nn.Linear(2, 2), lse="fast")


# ---- on a GPU: with PyJuice's own forward, backward and EM ----------------------------------------------

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")


@pytest.fixture(scope="module")
def on_gpu():
    """Compiled models of 30 variables by number of latents; tests leave them restored."""
    models = {}

    def model(num_latents):
        if num_latents not in models:
            torch.manual_seed(11)
            root = hidden_tree(30, num_latents, num_cats=16)
            models[num_latents] = root, pyjuice.compile(root, verbose=False).to("cuda")
        root, pc = models[num_latents]
        return root, restore(pc)

    return model


def some_data(n=128, seed=1):
    """Four patterns, one entry in ten of each row replaced by noise."""
    torch.manual_seed(0)
    patterns = torch.randint(0, 16, (4, 30), device="cuda")
    torch.manual_seed(seed)
    noise = torch.randint(0, 16, (n, 30), device="cuda")
    rows = patterns[torch.randint(0, 4, (n,), device="cuda")]
    return torch.where(torch.rand(n, 30, device="cuda") < 0.1, noise, rows)


def fresh_flows(pc):
    pc.param_flows = None
    for layer in pc.input_layer_group.layers:
        layer.param_flows = None


@cuda
@pytest.mark.gpu
@pytest.mark.parametrize("num_latents", [32, 64, 128, 256])
def test_gpu_node_values(on_gpu, num_latents):
    root, pc = on_gpu(num_latents)
    x = some_data()
    lls = accelerate(pc)(x)
    expected = log_values(root, x.cpu())
    assert torch.allclose(lls.cpu().double().T, expected[root], rtol=0, atol=1e-4)
    for ns, value in expected.items():
        if not ns.is_prod():
            low, high = ns._output_ind_range
            assert torch.allclose(pc.node_mars[low:high].cpu().double(), value, rtol=0, atol=1e-4)


@cuda
@pytest.mark.gpu
@pytest.mark.parametrize("gradient", [True, False])
def test_gpu_flows_of_a_backward_after_it(on_gpu, gradient):
    """Flows within PyJuice's own rounding (fp16 and bf16 products) of its flows after its own forward."""
    _, pc = on_gpu(64)
    x = some_data()
    found = []
    for own in (True, False):
        (restore if own else accelerate)(pc)
        fresh_flows(pc)
        with torch.set_grad_enabled(gradient):
            pc(x)
        pc.backward(x, logspace_flows=False)
        found.append((pc.node_flows.clone(), pc.param_flows.clone()))
    (nodes, params), (nodes_here, params_here) = found
    assert torch.allclose(nodes_here, nodes, rtol=0, atol=1e-2)
    assert torch.allclose(params_here, params, rtol=0, atol=1e-2 * params.max().item())


@cuda
@pytest.mark.gpu
def test_gpu_batches_types_and_modes(on_gpu):
    """Every call of a mixed sequence: direct launches, graphs, other batch sizes, types, inference mode."""
    root, pc = on_gpu(64)
    accelerate(pc)
    x = some_data(200)
    expected = log_values(root, x.cpu())[root][0].cuda()

    def right(part, size):
        return torch.allclose(pc(part)[:, 0].double(), expected[:size], rtol=0, atol=1e-4)

    with torch.inference_mode():
        assert right(x, 200) and right(x, 200)
    for dtype in (torch.int64, torch.uint8, torch.int32, torch.int16, torch.int8):
        assert all(right(x[:size].to(dtype), size) for size in (200, 7, 7, 200, 7, 130))
        assert torch.allclose(pc.node_mars[-1].double(), expected[:130], rtol=0, atol=1e-4)
    assert right(x.t().contiguous().t(), 200)
    assert pc(torch.cat([x, x])).shape == (400, 1) and right(x, 200)


@cuda
@pytest.mark.gpu
def test_gpu_the_gradient_hook(on_gpu):
    _, pc = on_gpu(64)
    x = some_data()
    accelerate(pc)
    fresh_flows(pc)
    pc(x).mean().backward()
    flows = pc.param_flows.clone()
    assert flows.sum() > 0
    fresh_flows(pc)
    pc.backward(x)
    assert torch.allclose(pc.param_flows, flows, rtol=1e-3, atol=1e-3)


@cuda
@pytest.mark.gpu
def test_gpu_learning_goes_the_same_way(on_gpu):
    """Mini-batch EM: each step's likelihood is PyJuice's, and a forward sees the step before it."""
    _, pc = on_gpu(64)
    start = [pc.params.data.clone(), *(layer.params.data.clone() for layer in pc.input_layer_group.layers)]
    paths = []
    for own in (True, False):
        (restore if own else accelerate)(pc)
        for live, saved in zip(
            [pc.params, *(i.params for i in pc.input_layer_group.layers)], start, strict=True
        ):
            live.data.copy_(saved)
        fresh_flows(pc)
        path = []
        for step in range(4):
            x = some_data(seed=step)
            pc.init_param_flows(flows_memory=0.0)
            path.append(pc(x).mean().item())
            pc.backward(x)
            pc.mini_batch_em(step_size=0.3, pseudocount=0.1)
        paths.append(path)
    assert paths[1] == pytest.approx(paths[0], abs=0.05)
    assert paths[1][1] > paths[1][0] + 5
    # the live parameters, not those of an earlier step
    with torch.no_grad():
        here, own = pc(x), restore(pc)(x)
    assert torch.allclose(here, own, rtol=0, atol=0.1)


@cuda
@pytest.mark.gpu
@pytest.mark.parametrize(
    "arguments", [{"propagation_alg": "MPE"}, {"propagation_alg": "GeneralLL", "alpha": 2.0}]
)
def test_gpu_what_is_passed_on_is_pyjuices(on_gpu, arguments):
    _, pc = on_gpu(64)
    x = some_data()
    own = pc(x, **arguments)
    with pytest.warns(UserWarning, match="propagation_alg|alpha"):
        here = accelerate(pc)(x, **arguments)
    assert torch.equal(here, own)


@cuda
@pytest.mark.gpu
def test_gpu_queries(on_gpu):
    """Marginals and conditional distributions of PyJuice's own query functions."""
    _, pc = on_gpu(64)
    x = some_data()
    mask = torch.rand(*x.shape, device="cuda") < 0.4
    mask[:, 0] = True
    found = []
    for own in (True, False):
        (restore if own else accelerate)(pc)
        marginal = pyjuice.queries.marginal(pc, x, missing_mask=mask)
        found.append((marginal, pyjuice.queries.conditional(pc, x, missing_mask=mask, target_vars=[0])))
    assert "2 forward calls here, 1 with node values" in explain(pc)
    assert torch.allclose(found[1][0], found[0][0], rtol=0, atol=0.1)
    assert torch.allclose(found[1][1], found[0][1], rtol=0, atol=1e-2)
