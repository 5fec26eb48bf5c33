"""Samples, completions and posteriors, each against enumeration."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import chow_liu, hclt  # noqa: E402


def frequencies(draws, everything):
    """How often each state of `everything` (all states, in counting order of three categories) was drawn."""
    number = (draws.numpy() * 3 ** np.arange(5, -1, -1)).sum(1)
    assert (everything * 3 ** np.arange(5, -1, -1)).sum(1).tolist() == list(range(729))
    return np.bincount(number, minlength=729)


@pytest.mark.parametrize("trees", [1, 2])
def test_sample_frequencies_are_probabilities(trees, small, states):
    """Each of 729 states within 5 standard errors, sqrt(n p (1 - p)); chi-square within 4 of its own."""
    circuit, everything, n = small(trees=trees), states(6, 3), 40_000
    p = circuit.log_prob(everything).detach().exp().numpy()
    seen = frequencies(circuit.sample(n, rng=7), everything)
    assert (np.abs(seen - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1).all()
    chi_square = ((seen - n * p) ** 2 / (n * p)).sum()
    assert abs(chi_square - 728) <= 4 * math.sqrt(2 * 728)


@pytest.mark.parametrize("trees", [1, 2])
def test_conditional_samples_have_the_conditional_distribution(trees, small, states):
    circuit, everything, n = small(trees=trees), states(6, 3), 30_000
    given = np.array([-1, 2, -1, -1, 0, 1])
    draws = circuit.sample(n, given, rng=3)
    assert (draws[:, [1, 4, 5]] == torch.tensor([2, 0, 1])).all()
    match = (everything[:, [1, 4, 5]] == [2, 0, 1]).all(1)
    p = circuit.log_prob(everything).detach().exp().numpy() * match
    p /= p.sum()
    seen = frequencies(draws, everything)
    assert (seen[p == 0] == 0).all()
    assert (np.abs(seen - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9).all()


def test_each_row_of_evidence_has_its_own_draw(small, rows):
    circuit, x = small("bernoulli"), rows("bernoulli", n=50)
    draws = circuit.sample(50, x, rng=0)
    known = ~np.isnan(x)
    assert (draws.numpy()[known] == x[known]).all()
    assert set(np.unique(draws.numpy())) == {0, 1}


def test_gaussian_samples_have_the_circuits_moments(small):
    """Mean and variance of one variable given two others, against numerical integration; 5 SE."""
    circuit, n = small("gaussian", trees=2), 40_000
    given = np.full(6, np.nan)
    given[[1, 3]] = 0.4, -0.7
    draws = circuit.sample(n, given, rng=5).numpy()
    assert (draws[:, 1] == 0.4).all() and (draws[:, 3] == -0.7).all()
    grid = np.linspace(-15, 15, 3001)
    table = np.tile(given, (len(grid), 1))
    table[:, 4] = grid
    density = circuit.log_prob(table).detach().exp().numpy()
    density /= density.sum()
    mean = (density * grid).sum()
    variance = (density * (grid - mean) ** 2).sum()
    fourth = (density * (grid - mean) ** 4).sum()
    assert draws[:, 4].mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / n))
    assert draws[:, 4].var() == pytest.approx(variance, abs=5 * math.sqrt((fourth - variance**2) / n))
    assert circuit.expectation(given[None])[0, 4].item() == pytest.approx(mean, abs=1e-6)


def test_the_seed_decides_samples(small):
    a, b, c = (small().sample(20, rng=seed) for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert small().sample(0).shape == (0, 6)
    state = torch.random.get_rng_state()
    small().sample(5)
    assert torch.equal(torch.random.get_rng_state(), state)  # torch's own stream is left alone


def test_more_rows_than_a_piece(small):
    circuit = small()
    draws = circuit.sample(2500, rng=0)
    assert draws.shape == (2500, 6)
    assert torch.equal(circuit.mpe(draws), draws)


@pytest.mark.parametrize("trees", [1, 2])
def test_mpe_is_the_largest_of_latents_and_variables_together(trees, small, states, reference):
    circuit, everything = small(trees=trees), states(6, 3)
    x = np.array([[-1] * 6, [0, -1, 2, -1, -1, 1], [-1, 2, -1, 0, 1, -1], [1, 1, 0, 2, 0, 1]])
    got = circuit.mpe(x).numpy()
    assert (got[x >= 0] == x[x >= 0]).all()
    reached = reference(circuit, got, maximum=True)
    for row, value in zip(x, reached, strict=True):
        known = row >= 0
        candidates = everything[(everything[:, known] == row[known]).all(1)]
        best = reference(circuit, candidates, maximum=True).max()
        assert float(value) == pytest.approx(float(best), abs=1e-12)


def test_mpe_of_a_chow_liu_tree_is_the_most_probable_completion(states):
    x = np.random.default_rng(0).integers(0, 3, (30, 6))
    circuit, everything = chow_liu(x, pseudocount=0.1, n_categories=3), states(6, 3)
    evidence = np.where(np.random.default_rng(1).random((8, 6)) < 0.5, -1, x[:8])
    got = circuit.log_prob(circuit.mpe(evidence)).detach()
    for row, value in zip(evidence, got, strict=True):
        known = row >= 0
        candidates = everything[(everything[:, known] == row[known]).all(1)]
        assert float(value) == pytest.approx(float(circuit.log_prob(candidates).detach().max()), abs=1e-12)


def test_mpe_of_a_gaussian_is_at_a_mean(small):
    circuit = small("gaussian")
    x = np.full((1, 6), np.nan)
    x[0, 2] = 0.3
    got = circuit.mpe(x)[0]
    assert got[2] == 0.3
    for v in (0, 1, 3, 4, 5):
        assert float((circuit.inputs.mean[v].detach() - got[v]).abs().min()) == 0.0


@pytest.mark.parametrize("family, trees", [("categorical", 1), ("categorical", 2), ("bernoulli", 2)])
def test_conditionals_are_ratios_of_probabilities(family, trees, small, rows):
    circuit, x = small(family, trees=trees), rows(family)
    got = circuit.conditionals(x).numpy()
    n = circuit.inputs.n_categories
    base = circuit.log_prob(x).detach().numpy()
    for v in range(6):
        for c in range(n):
            y = x.copy()
            y[:, v] = np.where(np.isnan(x[:, v]), c, x[:, v])
            want = np.exp(circuit.log_prob(y).detach().numpy() - base)
            want = np.where(np.isnan(x[:, v]), want, x[:, v] == c)
            np.testing.assert_allclose(got[:, v, c], want, atol=1e-12)
    mean = (got * np.arange(n)).sum(2)
    np.testing.assert_allclose(circuit.expectation(x).numpy(), mean, atol=1e-12)


def test_impossible_evidence_is_named():
    x = np.random.default_rng(0).integers(0, 2, (9, 4))
    circuit = chow_liu(x, pseudocount=0.0, n_categories=3)
    evidence = np.array([[-1, -1, -1, -1], [0, -1, 2, -1]])
    for call in (circuit.mpe, circuit.conditionals, circuit.expectation, lambda e: circuit.sample(2, e)):
        with pytest.raises(ValueError, match="row 1 of the evidence has probability zero"):
            call(evidence)


def test_what_is_impossible_is_never_drawn():
    x = np.random.default_rng(0).integers(0, 3, (5, 6))
    circuit = chow_liu(x, pseudocount=0.0)
    draws = circuit.sample(5000, rng=0)
    assert torch.isfinite(circuit.log_prob(draws)).all()


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda c: c.sample(-1), ValueError, "n must be >= 0"),
        (lambda c: c.sample(2.0), TypeError, "n must be an integer"),
        (lambda c: c.sample(True), TypeError, "n must be an integer"),
        (lambda c: c.sample(2, np.zeros(5)), ValueError, "given must be"),
        (lambda c: c.sample(2, np.zeros(5)), ValueError, "6 entries, got 5"),
        (lambda c: c.sample(2, np.zeros((3, 6))), ValueError, "n = 2 rows, got 3"),
        (lambda c: c.sample(1, np.full(6, 9)), ValueError, r"given\[0, 0\] is 9"),
        (lambda c: c.sample(1, rng="seed"), TypeError, "rng"),
        (lambda c: c.sample(1, rng=-3), ValueError, "rng must be >= 0"),
        (lambda c: c.mpe(np.zeros(6)), ValueError, "x must be"),
        (lambda c: c.conditionals(np.full((1, 6), 3)), ValueError, "x"),
    ],
)
def test_bad_arguments(call, error, message, small):
    with pytest.raises(error, match=message):
        call(small())


def test_gaussian_circuits_have_no_tables(small):
    with pytest.raises(TypeError, match="expectation"):
        small("gaussian").conditionals(np.zeros((1, 6)))


def test_samples_of_a_float32_circuit_learned_from_data():
    x = np.random.default_rng(0).integers(0, 2, (500, 8))
    x[:, 4:] = x[:, :4]  # the second half repeats the first
    circuit = hclt(x, 8, rng=0)
    circuit.fit(x, epochs=30, batch=50, rng=0, pseudocount=0.01)
    draws = circuit.sample(2000, rng=1)
    assert float((draws[:, :4] == draws[:, 4:]).float().mean()) > 0.98


@pytest.mark.parametrize("ask", [lambda c: c.sample(2), lambda c: c.mpe(np.full((1, 6), -1))])
def test_parameters_that_are_not_numbers_draw_nothing(ask, small):
    circuit = small()
    with torch.no_grad():
        circuit.root_weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="row 0 is NaN"):
        ask(circuit)
