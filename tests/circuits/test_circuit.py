"""A whole circuit: log-probabilities, marginals, kernels inside the layers, gradients, total mass."""

import itertools
import math
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import Circuit, InputLayer, RegionGraph, hclt  # noqa: E402
from pfkit.circuits.propagate import downward, upward  # noqa: E402

FAMILIES = ("categorical", "bernoulli", "gaussian")


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


TREES = (1, 2)


@pytest.mark.parametrize("trees", TREES)
@pytest.mark.parametrize("family", FAMILIES)
def test_log_prob_is_the_plain_recursions(family, trees, small, rows, reference):
    circuit, x = small(family, trees=trees), rows(family)
    got = circuit.log_prob(x).detach()
    torch.testing.assert_close(got, reference(circuit, x), rtol=1e-12, atol=1e-12)
    assert got[-1] == pytest.approx(0.0, abs=1e-12)  # nothing observed
    single = small(family, trees=trees, dtype=torch.float32).log_prob(x).detach()
    torch.testing.assert_close(single.double(), got, rtol=2e-6, atol=2e-6)


def test_the_forms_of_data_agree(small, rows):
    circuit, x = small("categorical"), rows("categorical")
    want = circuit.log_prob(x).detach()
    whole = np.where(np.isnan(x), -1, x)
    forms = [whole.astype(t) for t in (np.int8, np.int16, np.int32, np.int64, np.float32)]
    forms += [torch.from_numpy(whole), torch.from_numpy(x).half(), x.tolist(), np.asfortranarray(x)]
    for form in forms:
        assert torch.equal(circuit.log_prob(form).detach(), want)
    full = np.abs(whole)
    unsigned = [full.astype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64)]
    for form in unsigned:
        assert torch.equal(circuit.log_prob(form), circuit.log_prob(full))
    bits = small("bernoulli")
    assert torch.equal(bits.log_prob(full % 2 == 1), bits.log_prob(full % 2))
    assert circuit.log_prob(full[::-1, ::-1]).shape == (12,)  # negative strides
    assert circuit.log_prob(np.empty((0, 6))).shape == (0,)
    assert torch.equal(circuit.log_prob(whole.astype(">f8")), want)
    assert torch.equal(circuit.log_prob(np.ma.array(full, mask=np.isnan(x))), want)
    assert torch.equal(circuit.log_prob(list(np.ma.array(full, mask=np.isnan(x)))), want)
    whole.flags.writeable = False
    assert torch.equal(circuit.log_prob(whole), want)  # without a warning


@pytest.mark.parametrize("trees", TREES)
def test_marginals_are_sums_over_completions(trees, small, states):
    circuit = small("categorical", trees=trees)
    everything = states(6, 3)
    log_p = circuit.log_prob(everything).detach()
    assert float(log_p.exp().sum()) == pytest.approx(1.0, abs=1e-12)
    for missing in ((0,), (3,), (1, 4), (0, 2, 3, 5)):
        x = everything[:: 729 // 20].copy()
        x[:, missing] = -1
        kept = [v for v in range(6) if v not in missing]
        got = circuit.log_prob(x).detach()
        for row, value in zip(x, got, strict=True):
            same = (everything[:, kept] == row[kept]).all(1)
            assert float(value) == pytest.approx(float(torch.logsumexp(log_p[same], 0)), abs=1e-12)


def test_total_mass_of_two_to_the_sixteen_states(states):
    """By enumeration in float64: 1 to 1e-9; and a marginal of 8 of the 16 variables."""
    x = np.random.default_rng(0).integers(0, 2, (200, 16))
    circuit = hclt(x, 4, rng=0, dtype=torch.float64)
    everything = states(16)
    log_p = circuit.log_prob(everything.astype(np.int8)).detach()
    assert abs(float(log_p.exp().sum()) - 1) < 1e-9
    assert abs(float(torch.logsumexp(log_p, 0))) < 1e-9
    partial = everything[12345].copy()
    partial[::2] = -1
    same = (everything[:, 1::2] == partial[1::2]).all(1)
    assert float(circuit.log_prob(partial[None])[0].detach()) == pytest.approx(
        float(torch.logsumexp(log_p[same], 0)), abs=1e-9
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lse", ["fuse", "int", "int-pairwise", "torch"])
def test_kernels_inside_the_layers(lse, dtype, family, small, rows, reference):
    import pfkit

    circuit, x = small(family, dtype=dtype), rows(family)
    with torch.no_grad():
        got = circuit.log_prob(x, lse=lse)
    want = reference(circuit, x)
    n_sums = len(circuit.graph.levels) + 1
    rounding = n_sums * 2 * 20 * torch.finfo(dtype).eps
    stated = 0.0
    if lse in ("int", "int-pairwise"):
        kernel = next(k for k in pfkit.kernels() if k.name == lse and k.device == "cpu")
        stated = n_sums * kernel.error_bound(circuit.n_units, str(dtype)[6:])
    assert got.dtype == dtype
    assert (got.double() - want).abs().max() <= stated + rounding


def test_chunks_do_not_change_a_kernels_result(small, rows):
    from pfkit.circuits.kernel_sum import kernel_sum

    g = torch.Generator().manual_seed(0)
    w, x = torch.rand(5, 4, 3, generator=g), torch.randn(5, 3, 11, generator=g)
    whole = kernel_sum(w, x, "fuse")
    for most in (1, 3, 20, 100, 300):
        assert torch.equal(kernel_sum(w, x, "fuse", max_terms=most), whole)


@pytest.mark.parametrize("trees", TREES)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_autograds_through_the_plain_recursion(family, trees, small, rows, reference):
    circuit, x = small(family, trees=trees), rows(family)
    up = torch.randn(len(x), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    leaves = {n: p.detach().clone().requires_grad_() for n, p in circuit.named_parameters()}
    want = torch.autograd.grad((reference(circuit, x, parameters=leaves) * up).sum(), list(leaves.values()))
    (circuit.log_prob(x) * up).sum().backward()
    for p, w in zip(circuit.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, w, rtol=1e-10, atol=1e-11)


def test_gradients_of_a_float32_circuit_with_a_kernel_are_the_exact_circuits(small, rows):
    x = rows()
    exact, circuit = small(), small(dtype=torch.float32)
    exact.log_prob(x).sum().backward()
    circuit.log_prob(x, lse="int").sum().backward()
    for p, q in zip(circuit.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(p.grad.double(), q.grad, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_a_value_that_came_without_those_of_its_regions(family, small, rows, monkeypatch):
    """As from the compiled forward: the backward finds them."""
    circuit, same, x = small(family), small(family), rows(family)
    same.log_prob(x).sum().backward()
    monkeypatch.setattr(Circuit, "_executed", lambda self, data, lse: upward(self, data)[1])
    value = circuit.log_prob(x)
    value.sum().backward()
    for p, q in zip(circuit.parameters(), same.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    value = circuit.log_prob(x)
    with torch.no_grad():
        circuit.root_weight *= 0.5
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


def test_gradient_with_respect_to_gaussian_data(small, rows):
    circuit = small("gaussian", trees=2)
    x = torch.from_numpy(np.nan_to_num(rows("gaussian"))).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: circuit.log_prob(t), (x,))
    y = torch.from_numpy(rows("gaussian")).requires_grad_()
    circuit.log_prob(y).sum().backward()
    assert torch.equal(y.grad[torch.isnan(y)], torch.zeros(int(torch.isnan(y).sum()), dtype=torch.float64))


@pytest.mark.parametrize("trees", TREES)
@pytest.mark.parametrize("family", FAMILIES)
def test_flows_are_weights_times_autograds_derivative(family, trees, small, rows, reference):
    circuit, x = small(family, trees=trees), rows(family)
    leaves = {n: p.detach().clone().requires_grad_() for n, p in circuit.named_parameters()}
    names = ["root_weight", *(f"sums.{n}.weight" for n in range(len(circuit.sums)))]
    want = torch.autograd.grad(reference(circuit, x, parameters=leaves).sum(), [leaves[n] for n in names])
    values, root = upward(circuit, circuit.data(x))
    flows = downward(circuit, values, torch.ones_like(root))
    for name, got, w in zip(names, [flows.root, *flows.sums], want, strict=True):
        torch.testing.assert_close(got, leaves[name].detach() * w, rtol=1e-10, atol=1e-11)
    assert float(flows.root.sum()) == pytest.approx(len(x))  # a row's flow is 1
    torch.testing.assert_close(  # in a tree all of it reaches every input region
        flows.region_flow.sum(1).reshape(trees, 6, -1).sum(0), torch.ones(6, len(x), dtype=torch.float64)
    )


def zeros(n_rows=None):
    """A circuit with zeros among its weights and tables, by way of a Chow-Liu tree without pseudocount."""
    from pfkit.circuits import chow_liu

    x = np.random.default_rng(0).integers(0, 2, (9, 6)) * np.random.default_rng(1).integers(1, 3, (9, 6))
    return chow_liu(x, pseudocount=0.0, n_categories=4), x


@pytest.mark.parametrize("lse", ["matmul", "fuse", "int", "int-pairwise", "torch"])
def test_probability_zero_is_minus_infinity(lse, states, reference):
    circuit, x = zeros()
    everything = states(6, 4)[::13]
    with torch.no_grad():
        got = circuit.log_prob(everything, lse=lse)
    want = reference(circuit, everything)
    assert torch.equal(torch.isinf(got), torch.isinf(want)) and bool(torch.isinf(want).any())
    assert not torch.isnan(got).any()
    assert torch.isfinite(circuit.log_prob(x)).all()


def test_rows_of_probability_zero_pass_no_nan_down():
    circuit, x = zeros()
    impossible = x.copy()
    impossible[:, 0] = 3  # never seen
    both = np.vstack([x, impossible])
    log_p = circuit.log_prob(both)
    assert torch.equal(torch.isinf(log_p), torch.arange(18) >= 9)
    log_p.sum().backward()
    grads = [p.grad.clone() for p in circuit.parameters()]
    circuit.zero_grad()
    circuit.log_prob(x).sum().backward()
    for p, g in zip(circuit.parameters(), grads, strict=True):
        assert torch.isfinite(g).all()
        torch.testing.assert_close(g, p.grad)  # impossible rows add nothing


def test_deep_float32_circuit_is_close_to_float64():
    """A chain of 300 variables: log-likelihoods of hundreds of nats, whose roundings do not pile up."""
    random = np.random.default_rng(0)
    x = random.integers(0, 4, (50, 300))
    circuit = hclt(x, 8, edges=[(v, v + 1) for v in range(299)], rng=0)
    exact = hclt(x, 8, edges=[(v, v + 1) for v in range(299)], rng=0, dtype=torch.float64)
    exact.load_state_dict(circuit.state_dict())
    error = (circuit.log_prob(x).double() - exact.log_prob(x)).abs().max()
    assert (
        float(error.detach()) <= 150 * 2.0**-23 * 420 / 8
    )  # 150 levels, random roundings of values up to 420


def test_missing_is_nan_only_for_gaussian_inputs(small):
    circuit = small("gaussian")
    value = circuit.log_prob(np.full((1, 6), -1.0)).detach()
    assert float(value) < -1.0  # -1 is a value like any other


def test_state_dict_and_dtype_round_trip(small, rows):
    a, b = small(seed=0), small(seed=5)
    b.load_state_dict(a.state_dict())
    assert torch.equal(a.log_prob(rows()), b.log_prob(rows()))
    version = b.version()
    b.float()
    assert b.dtype == torch.float32 and b.version() != version
    version = b.version()
    with torch.no_grad():
        b.root_weight.mul_(1.0)
    assert b.version() != version


@pytest.mark.parametrize("family", ["categorical", "bernoulli", "gaussian"])
def test_tensors_are_the_parameters(family, small):
    circuit = small(family)

    def same():
        return [id(p) for p in circuit.tensors()] == [id(p) for p in circuit.parameters()]

    assert same()
    version = circuit.version()
    circuit.sums[0].weight = torch.nn.Parameter(circuit.sums[0].weight.detach().clone())
    assert same() and circuit.version() != version
    version = circuit.version()
    circuit.sums[0] = small(family, seed=3).sums[0]
    circuit.root_weight = small(family, seed=3).root_weight
    assert same() and circuit.version() != version
    circuit.inputs = small(family, seed=3).inputs
    assert same()


def test_inference_mode(small, rows):
    want = small().log_prob(rows()).detach()
    with torch.inference_mode():
        circuit = small()
        assert circuit.version() != circuit.version()  # no version is counted there: nothing may be kept
        assert torch.equal(circuit.log_prob(rows()), want)
        circuit.fit(rows(), epochs=1)


def test_module_call_and_repr(small, rows):
    circuit = small()
    assert torch.equal(circuit(rows()), circuit.log_prob(rows()))
    assert "Circuit" in repr(circuit)


def test_deep_copies_and_pickles_of_torch_are_apart(small, rows):
    import copy

    circuit = small()
    twin = copy.deepcopy(circuit)
    with torch.no_grad():
        twin.root_weight.fill_(1 / 3)
    assert not torch.equal(circuit.root_weight, twin.root_weight)
    assert torch.equal(copy.deepcopy(circuit).log_prob(rows()), circuit.log_prob(rows()))


X = np.zeros((2, 6), np.int64)


@pytest.mark.parametrize(
    "x, error, message",
    [
        (np.zeros(6), ValueError, r"\(rows, 6 variables\)"),
        (np.zeros((2, 5)), ValueError, r"got shape \(2, 5\)"),
        (np.zeros((2, 6, 1)), ValueError, "shape"),
        (X + 3, ValueError, r"x\[0, 0\] is 3"),
        (X - 2, ValueError, "-2"),
        (X + 0.5, ValueError, "0.5"),
        (np.full((2, 6), math.inf), ValueError, "inf"),
        (np.full((2, 6), -math.inf), ValueError, "inf"),
        (np.full((2, 6), 2**63 + 5, np.uint64), ValueError, "x"),
        (X + 1j, TypeError, "complex"),
        (torch.zeros(2, 6, dtype=torch.complex64), TypeError, "complex"),
        (np.array([["a"] * 6]), TypeError, "numbers"),
        (None, TypeError, "numbers"),
        ("abc", TypeError, "numbers"),
        (torch.zeros(2, 6).to_sparse(), TypeError, "dense"),
        (torch.zeros(2, 6, device="meta"), TypeError, "meta"),
        (np.array([[None] * 6]), TypeError, "numbers, and NaN where an entry is missing"),
        (np.full((1, 6), 2**63, dtype=np.uint64), ValueError, "below 2.63, got 9223372036854775808"),
        (torch.full((1, 6), 9.0).to(torch.float8_e4m3fn), ValueError, r"x\[0, 0\] is 9.0"),
    ],
)
def test_bad_data(x, error, message, small):
    with pytest.raises(error, match=message):
        small().log_prob(x)


def test_bad_gaussian_data(small):
    for value in (math.inf, -math.inf):
        x = np.zeros((2, 6))
        x[1, 2] = value
        with pytest.raises(ValueError, match="finite"):
            small("gaussian").log_prob(x)


def test_no_rows_are_no_error(small):
    circuit = small()
    none = np.empty((0, 6))
    for lse in ("matmul", "fuse", "int"):
        assert circuit.log_prob(none, lse=lse).shape == (0,)
    assert circuit.mpe(none).shape == circuit.sample(0).shape == circuit.expectation(none).shape == (0, 6)
    assert circuit.conditionals(none).shape == (0, 6, 3)


def test_half_precision_circuits_are_refused(small):
    with pytest.raises(TypeError, match="float16"):
        small().half().log_prob(X)


def test_bad_kernel_names(small):
    for lse in ("numpy", "fast", "", None, 3):
        with pytest.raises(ValueError, match="lse must be one of"):
            small().log_prob(X, lse=lse)
    for lse in ("fuse16", "int16"):
        with pytest.raises(ValueError, match="CUDA only"):
            small().log_prob(X, lse=lse)


def parts():
    graph = RegionGraph(2, (0, 1), (((0, 1),),), ((2,),))
    inputs = InputLayer([0, 1], "bernoulli", probs=np.full((2, 2), 0.5))
    return [graph, inputs, [np.full((1, 2, 2), 0.5)], np.full((1, 2), 0.5)]


@pytest.mark.parametrize(
    "number, value, message",
    [
        (1, InputLayer([1, 0], "bernoulli", probs=np.full((2, 2), 0.5)), "not those of the graph"),
        (1, InputLayer([0], "bernoulli", probs=np.full((1, 2), 0.5)), "not those of the graph"),
        (2, [], "0 sum layers for 1 levels"),
        (2, [np.full((2, 2, 2), 0.5)], r"\(1, 2, 2\)"),
        (3, np.full((1, 3), 1 / 3), r"\(1, 2\)"),
        (3, np.full((1, 2), 0.6), "sum to 1"),
        (3, np.full((1, 2), math.nan), "finite"),
    ],
)
def test_bad_parts(number, value, message):
    assert float(Circuit(*parts()).log_prob([[0, 1]]).detach()) == pytest.approx(math.log(0.25))
    wrong = parts()
    wrong[number] = value
    with pytest.raises(ValueError, match=message):
        Circuit(*wrong)


@pytest.mark.parametrize(
    "number, value, message",
    [
        (0, 3, "RegionGraph, got 3"),
        (1, None, "InputLayer, got None"),
        (2, None, "sum_weights must be a sequence"),
        (3, None, "root_weight must hold numbers"),
    ],
)
def test_what_are_no_parts(number, value, message):
    wrong = parts()
    wrong[number] = value
    with pytest.raises(TypeError, match=message):
        Circuit(*wrong)


def test_parts_of_two_dtypes():
    mixed = parts()
    mixed[3] = torch.full((1, 2), 0.5, dtype=torch.float32)
    mixed[2] = [torch.full((1, 2, 2), 0.5, dtype=torch.float64)]
    with pytest.raises(TypeError, match="one dtype"):
        Circuit(*mixed)


def test_all_pairs_of_two_trees_give_the_average(states):
    """A mixture of two trees at equal weight is the mean of the two distributions."""
    from pfkit.circuits import tree_regions

    trees = [([(0, 1), (1, 2)], 1), ([(0, 2), (2, 1)], 0)]
    random = np.random.default_rng(0)

    def simplex(*shape):
        w = random.uniform(0.1, 1, shape)
        return w / w.sum(-1, keepdims=True)

    single, probs, roots, sums = [], [], [], []
    for tree in trees:
        graph, _ = tree_regions(3, [tree])
        p, w, r = simplex(3, 2, 2), [simplex(len(level), 2, 2) for level in graph.levels], simplex(1, 2)
        single.append(Circuit(graph, InputLayer(range(3), "categorical", probs=p), w, r))
        probs.append(p), roots.append(r), sums.append(w)
    graph, _ = tree_regions(3, trees)
    levels = [np.concatenate([w[n] for w in sums if len(w) > n]) for n in range(len(graph.levels))]
    both = Circuit(
        graph,
        InputLayer(graph.input_variables, "categorical", probs=np.concatenate(probs)),
        levels,
        np.concatenate(roots) / 2,
    )
    x = states(3)
    want = sum(c.log_prob(x).exp() for c in single) / 2
    torch.testing.assert_close(both.log_prob(x).exp(), want)
    assert [len(level) for level in graph.levels] == [1]
    assert list(itertools.chain(*graph.root)) != []


@pytest.mark.parametrize("family", ["categorical", "gaussian"])
def test_second_derivatives_are_refused(family, small, rows):
    """The first one has no graph: as a part of something else it would count as constant."""
    circuit = small(family)
    value = circuit.log_prob(rows(family)).sum()
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad(value, circuit.root_weight, create_graph=True)
    value = circuit.log_prob(rows(family)).sum()
    assert torch.isfinite(torch.autograd.grad(value, circuit.root_weight)[0]).all()
