"""Expectation maximisation: one step against its definition, monotone, exact where it should be, and its
edges."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import EM, Circuit, InputLayer, RegionGraph, chow_liu, hclt, mean_log_likelihood  # noqa: E402
from pfkit.circuits.learning import fit, normalized_counts  # noqa: E402

FAMILIES = ("categorical", "bernoulli", "gaussian")


def total(circuit, x):
    with torch.no_grad():
        return float(circuit.log_prob(x).sum())


@pytest.mark.parametrize("trees", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_full_batch_steps_never_lower_the_likelihood(family, trees, small, rows):
    circuit, x = small(family, trees=trees), rows(family, n=60)
    em = EM(circuit)
    last = -math.inf
    for _ in range(25):
        log_p = em.accumulate(x)
        em.step()
        assert float(log_p.sum()) >= last - 1e-9
        last = float(log_p.sum())
    assert last > total(small(family, trees=trees), x) + 1


def test_one_step_is_its_definition(small, rows, reference):
    """New weight = weight * derivative, normalised; the derivative is autograd's, of the plain recursion."""
    circuit, x, alpha = small(trees=2), rows(n=20), 0.7
    leaves = {n: p.detach().clone().requires_grad_() for n, p in circuit.named_parameters()}
    grads = torch.autograd.grad(reference(circuit, x, parameters=leaves).sum(), list(leaves.values()))
    want = {}
    for (name, p), g in zip(leaves.items(), grads, strict=True):
        dims = (0, 1) if name == "root_weight" else -1
        counts = p.detach() * g
        counts = counts + alpha / (counts.numel() if name == "root_weight" else counts.shape[-1])
        want[name] = counts / counts.sum(dims, keepdim=True)
    em = EM(circuit, pseudocount=alpha)
    em.accumulate(x[:7]), em.accumulate(x[7:])  # in pieces
    em.step()
    for name, p in circuit.named_parameters():
        torch.testing.assert_close(p.detach(), want[name], rtol=1e-10, atol=1e-12)


def test_one_step_of_a_gaussian_mixture_is_the_textbooks():
    x = np.random.default_rng(0).standard_normal((50, 1)) * 2
    mean, sd, mix = np.array([-1.0, 0.5]), np.array([1.0, 2.0]), np.array([0.3, 0.7])
    inputs = InputLayer([0], "gaussian", mean=torch.as_tensor(mean[None]), sd=torch.as_tensor(sd[None]))
    circuit = Circuit(RegionGraph(1, (0,), (), ((0,),)), inputs, [], torch.as_tensor(mix[None]))
    density = mix * np.exp(-0.5 * ((x - mean) / sd) ** 2) / sd
    share = density / density.sum(1, keepdims=True)
    count = share.sum(0)
    new_mean = (share * x).sum(0) / count
    new_sd = np.sqrt((share * (x - new_mean) ** 2).sum(0) / count)
    em = EM(circuit)
    em.accumulate(x)
    em.step()
    np.testing.assert_allclose(circuit.root_weight[0].detach().numpy(), count / 50, rtol=1e-12)
    np.testing.assert_allclose(inputs.mean[0].detach().numpy(), new_mean, rtol=1e-12)
    np.testing.assert_allclose(inputs.sd[0].detach().numpy(), new_sd, rtol=1e-12)


def test_one_step_recovers_the_chow_liu_tree():
    """Units that do not overlap leave nothing hidden: from any start, one step is the maximum likelihood."""
    x = np.random.default_rng(0).integers(0, 3, (80, 6))
    best = chow_liu(x, pseudocount=0.0)
    start = chow_liu(x, pseudocount=0.0)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in start.parameters():  # zeros stay: they keep the units apart
            p.mul_(torch.rand(p.shape, generator=random, dtype=p.dtype) + 0.1)
            p.div_(p.sum(-1, keepdim=True))
    assert total(start, x) < total(best, x) - 10
    em = EM(start)
    em.accumulate(x)
    em.step()
    assert total(start, x) == pytest.approx(total(best, x), rel=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_without_any_observation_teach_nothing(family, small):
    circuit, same = small(family), small(family)
    em = EM(circuit)
    em.accumulate(np.full((5, 6), np.nan))
    em.step()
    for p, q in zip(circuit.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mini_batch_of_everything_is_the_full_batch(family, small, rows):
    a, b, x = small(family), small(family), rows(family, n=30)
    fit(a, x, epochs=3, batch=None, pseudocount=0.1, rng=0)
    fit(b, x, epochs=3, batch=30, step=(1.0, 1.0), pseudocount=0.1, rng=0)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_mini_batches_average_expected_counts(small, rows):
    """Steps 1, s over two batches: counts (1 - s) f_1 + s f_2, each taken at the parameters of its time."""
    x, circuit = rows(n=16), small()
    em = EM(circuit, n_rows=16)
    parts = []
    for batch, size in ((x[:8], 0.9), (x[8:], 0.25)):
        single = EM(circuit)
        single.accumulate(batch)
        parts.append(single._sum[0] / 8)
        em.accumulate(batch)
        em.step(size)
    want = 0.75 * parts[0] + 0.25 * parts[1]  # the first step has no average to keep
    torch.testing.assert_close(circuit.root_weight.detach(), want / want.sum())


def test_zero_weights_stay_zero():
    x = np.random.default_rng(0).integers(0, 2, (40, 5))
    circuit = chow_liu(np.eye(5, dtype=int), pseudocount=0.0)
    before = [p.detach() == 0 for p in circuit.parameters()]
    result = fit(circuit, np.vstack([x, np.eye(5, dtype=int)]), epochs=2, batch=None, pseudocount=0.0)
    assert result.train[0] == -math.inf  # impossible rows are there, and counted as such
    for p, zero in zip(circuit.parameters(), before, strict=True):
        assert torch.isfinite(p).all() and bool((p[zero] == 0).all())


def test_learning_finds_structure_that_is_there():
    """Data from a known circuit: after fitting, held-out likelihood is within 0.02 nats of the truth's."""
    truth = hclt(np.random.default_rng(0).integers(0, 3, (99, 6)), 2, rng=5, dtype=torch.float64)
    sharp = truth.inputs.probs.detach() ** 4
    with torch.no_grad():
        truth.inputs.probs.copy_(sharp / sharp.sum(2, keepdim=True))
        for _, _, layer in truth.layers():
            layer.weight.copy_(layer.weight**3 / (layer.weight**3).sum(2, keepdim=True))
    x, held_out = truth.sample(4000, rng=1), truth.sample(4000, rng=2)
    learner = hclt(x, 4, rng=0)
    before = mean_log_likelihood(learner, held_out)
    result = fit(learner, x, epochs=15, batch=200, rng=0, valid=held_out[:1000], pseudocount=1.0)
    best = mean_log_likelihood(truth, held_out)
    assert before < best - 0.2
    assert mean_log_likelihood(learner, held_out) > best - 0.02
    assert len(result.train) == len(result.valid) == 15


def test_validation_keeps_the_best_epoch_and_patience_stops(small, rows):
    circuit, x = small(), rows(n=30)
    seen = []
    result = fit(
        circuit, x[:10], epochs=200, batch=5, pseudocount=0.01, valid=x[10:], patience=3, rng=0,
        progress=lambda *said: seen.append(said),
    )  # fmt: skip
    assert result.best_epoch == int(np.argmax(result.valid)) < len(result.valid) - 1 < 199
    assert len(result.valid) == result.best_epoch + 4
    assert mean_log_likelihood(circuit, x[10:]) == pytest.approx(max(result.valid), abs=1e-12)
    assert seen == [(e, t, v) for e, (t, v) in enumerate(zip(result.train, result.valid, strict=True))]


def test_a_short_last_batch_weighs_what_its_rows_weigh():
    """257 rows in batches of 256: one row must not take half a step."""
    x = np.stack([np.arange(257) % 2, np.random.default_rng(0).integers(0, 2, 257)], 1)
    for seed in range(4):
        circuit = hclt(x, 1, rng=seed)
        circuit.fit(x, pseudocount=0, rng=seed)
        got = circuit.inputs.probs[:, 0, 1].detach().numpy()
        np.testing.assert_allclose(got, x.mean(0), atol=2 / 256)  # two rows of 257
    circuit = hclt(x, 1, rng=0)
    circuit.fit(x[:6], batch=4, epochs=1, step=(1.0, 1.0), pseudocount=0.0, rng=0)
    order = np.random.default_rng(0).permutation(6)
    want = (x[order[:4]].mean(0) + x[order[4:]].mean(0)) / 2  # a full step, then half a one
    np.testing.assert_allclose(circuit.inputs.probs[:, 0, 1].detach().numpy(), want, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_batch_adds_nothing(family, small, rows):
    circuit, same, x = small(family), small(family), rows(family)
    em, other = EM(circuit), EM(same)
    assert em.accumulate(x[:0]).shape == (0,)
    with pytest.raises(ValueError, match="nothing was accumulated"):
        em.step()
    em.accumulate(x)
    other.accumulate(x)
    em.step()
    other.step()
    for p, q in zip(circuit.parameters(), same.parameters(), strict=True):
        assert torch.equal(p, q)
    circuit.log_prob(x[:0]).sum().backward()
    assert all(float(p.grad.abs().max()) == 0 for p in circuit.parameters())


def test_expectation_maximisation_of_something_else():
    with pytest.raises(TypeError, match="must be a pfkit.Circuit, got 3"):
        EM(3)


def test_validation_of_probability_zero_chooses_no_epoch():
    x = np.array([[0, 0], [1, 1], [0, 0], [1, 0]] * 5)
    valid = np.array([[0, 0], [2, 1]])  # category 2 is in no row of x
    circuits = [hclt(x, 2, n_categories=3, rng=0) for _ in range(2)]
    with torch.no_grad():
        for circuit in circuits:
            circuit.inputs.probs[:, :, 2] = 0
            circuit.inputs.probs /= circuit.inputs.probs.sum(2, keepdim=True)
    plain = circuits[0].fit(x, epochs=6, pseudocount=0.0, rng=0)
    with pytest.warns(UserWarning, match="valid has rows of probability zero"):
        result = circuits[1].fit(x, epochs=6, pseudocount=0.0, rng=0, valid=valid, patience=2)
    assert result.valid == [-math.inf] * 6 and result.best_epoch == plain.best_epoch == 5
    for p, q in zip(*(c.parameters() for c in circuits), strict=True):
        assert torch.equal(p, q)


def test_the_seed_decides_the_order(small, rows):
    x = rows(n=30)
    runs = []
    for seed in (0, 0, 1):
        circuit = small()
        circuit.fit(x, epochs=2, batch=4, rng=seed)
        runs.append(circuit.root_weight.detach().clone())
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_bernoulli_learns_what_two_categories_learn(small, rows):
    x = rows("bernoulli", n=40)
    circuit = small("bernoulli")
    table = torch.stack((1 - circuit.inputs.probs, circuit.inputs.probs), 2)
    twin = Circuit(
        circuit.graph,
        InputLayer(range(6), "categorical", probs=table),
        [layer.weight for _, _, layer in circuit.layers()],
        circuit.root_weight,
    )
    for c in (circuit, twin):
        c.fit(x, epochs=3, batch=None, pseudocount=0.3)
    torch.testing.assert_close(circuit.inputs.probs, twin.inputs.probs[:, :, 1])
    torch.testing.assert_close(circuit.root_weight, twin.root_weight)


def test_a_gaussian_that_sees_one_value_keeps_its_least_sd(small):
    circuit = small("gaussian")
    circuit.fit(np.zeros((5, 6)), epochs=5, batch=None, pseudocount=0.0, min_sd=0.05)
    assert float(circuit.inputs.sd.detach().min()) == pytest.approx(0.05)
    assert torch.isfinite(circuit.inputs.mean).all()


def test_many_categories_are_counted_as_few(small):
    """The two ways to add flows up by category: one product a category, or a scatter."""
    from pfkit.circuits.propagate import input_counts

    x = np.random.default_rng(0).integers(-1, 20, (30, 6))
    circuit = hclt(np.abs(x), 3, n_categories=20, dtype=torch.float64)
    flow = torch.rand(6, 3, 30, dtype=torch.float64)
    got = input_counts(circuit, torch.from_numpy(x), flow)
    want = torch.zeros(6, 3, 20, dtype=torch.float64)
    for b in range(30):
        for v in range(6):
            if x[b, v] >= 0:
                want[v, :, x[b, v]] += flow[v, :, b]
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "keywords, error, message",
    [
        (dict(epochs=0), ValueError, "epochs"),
        (dict(epochs=1.5), TypeError, "epochs"),
        (dict(epochs=True), TypeError, "epochs"),
        (dict(batch=0), ValueError, "batch"),
        (dict(batch="all"), TypeError, "batch"),
        (dict(step=(0.1, 0.5)), ValueError, "step"),
        (dict(step=0.1), TypeError, "two numbers"),
        (dict(step="ab"), TypeError, "two numbers"),
        (dict(step=None), TypeError, "two numbers"),
        (dict(progress=3), TypeError, "callable"),
        (dict(step=(2.0, 0.5)), ValueError, "step"),
        (dict(step=(0.5, 0.0)), ValueError, "step"),
        (dict(step=(math.nan, 0.1)), ValueError, "step"),
        (dict(pseudocount=-0.1), ValueError, "pseudocount"),
        (dict(pseudocount=math.nan), ValueError, "pseudocount"),
        (dict(pseudocount=None), TypeError, "pseudocount"),
        (dict(input_pseudocount=-1), ValueError, "input_pseudocount"),
        (dict(min_sd=0.0), ValueError, "min_sd"),
        (dict(pseudocount=1e31), ValueError, "at most 1e"),
        (dict(input_pseudocount=1e300), ValueError, "at most 1e"),
        (dict(patience=3), ValueError, "patience needs"),
        (dict(valid=np.zeros((0, 6))), ValueError, "valid has no rows"),
        (dict(valid=np.zeros((2, 5))), ValueError, "valid must be"),
        (dict(valid=np.full((2, 6), 7)), ValueError, r"valid\[0, 0\] is 7"),
        (dict(rng=-1), ValueError, "non-negative"),
        (dict(rng="a"), TypeError, "rng must be .* got 'a'"),
    ],
)
def test_bad_keywords(keywords, error, message, small, rows):
    with pytest.raises(error, match=message):
        small().fit(rows(), **keywords)


def test_mean_log_likelihood(small, rows):
    circuit, x = small(), rows()
    want = float(circuit.log_prob(x).detach().mean())
    for form in (x, x.tolist(), torch.from_numpy(x)):
        for pieces in (1, 5, 4096):
            assert mean_log_likelihood(circuit, form, rows=pieces) == pytest.approx(want, rel=1e-12)
    with pytest.raises(ValueError, match="no rows"):
        mean_log_likelihood(circuit, x[:0])
    with pytest.raises(ValueError, match="rows must be >= 1"):
        mean_log_likelihood(circuit, x, rows=0)
    with pytest.raises(TypeError, match="must be a pfkit.Circuit, got 3"):
        mean_log_likelihood(3, x)


def test_no_rows_and_no_accumulation(small):
    with pytest.raises(ValueError, match="no rows"):
        small().fit(np.zeros((0, 6)))
    em = EM(small())
    with pytest.raises(ValueError, match="nothing was accumulated"):
        em.step()
    em.accumulate(np.zeros((2, 6)))
    for size in (0.0, 1.5, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"size.*{size}"):
            em.step(size)
    for size in (True, "a", None):
        with pytest.raises(TypeError, match=f"size must be a number, got {size!r}"):
            em.step(size)
    for n_rows in (0, -5, math.inf):
        with pytest.raises(ValueError, match="n_rows"):
            EM(small(), n_rows=n_rows)


def test_counts_without_flow_and_subnormal_counts():
    old = torch.tensor([0.3, 0.7], dtype=torch.float64)
    zero = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(normalized_counts(zero, 0.0, old), old)
    tiny = torch.tensor([1e-320, 3e-320], dtype=torch.float64)
    assert normalized_counts(tiny, 0.0, old).tolist() == pytest.approx([0.25, 0.75], rel=1e-3)
