"""Chow-Liu trees: against definitions, and against the published likelihoods of two real data sets."""

import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import chow_liu, chow_liu_tree, hclt, mean_log_likelihood, mutual_information  # noqa: E402
from pfkit.circuits.structure import spanning_tree  # noqa: E402


def chain(n, n_variables, seed=0, n_categories=3):
    """Rows of a Markov chain of variables: its Chow-Liu tree is the chain."""
    random = np.random.default_rng(seed)
    x = np.empty((n, n_variables), np.int64)
    x[:, 0] = random.integers(0, n_categories, n)
    for v in range(1, n_variables):
        x[:, v] = np.where(random.random(n) < 0.6, x[:, v - 1], random.integers(0, n_categories, n))
    return x


def test_mutual_information_is_its_definition():
    x = chain(500, 4)
    got = mutual_information(x, pseudocount=0.5)
    for a, b in itertools.combinations(range(4), 2):
        pair = np.full((3, 3), 0.5)
        np.add.at(pair, (x[:, a], x[:, b]), 1)
        pair /= pair.sum()
        want = (pair * np.log(pair / pair.sum(1, keepdims=True) / pair.sum(0))).sum()
        assert got[a, b] == got[b, a] == pytest.approx(want, rel=1e-10)
    assert (np.diag(got) == 0).all()


def test_without_pseudocount_empty_cells_count_nothing():
    x = np.array([[0, 0], [1, 1], [0, 0], [1, 1]])
    assert mutual_information(x, pseudocount=0.0)[0, 1] == pytest.approx(math.log(2), rel=1e-12)


def test_the_tree_of_a_chain_is_the_chain():
    assert chow_liu_tree(chain(4000, 7)) == [(v, v + 1) for v in range(6)]


def test_the_tree_is_the_best_of_all_trees():
    random = np.random.default_rng(3)
    information = random.random((5, 5))
    information = information + information.T
    pairs = list(itertools.combinations(range(5), 2))

    def spans(edges):
        group = list(range(5))
        for a, b in edges:
            if group[a] == group[b]:
                return False
            group = [group[a] if g == group[b] else g for g in group]
        return True

    best = max(
        (e for e in itertools.combinations(pairs, 4) if spans(e)),
        key=lambda e: sum(information[p] for p in e),
    )
    assert spanning_tree(information) == sorted(best)


def test_independent_and_constant_variables_still_give_a_tree():
    x = np.zeros((10, 4), np.int64)
    assert len(chow_liu_tree(x, n_categories=2, pseudocount=0.0)) == 3
    assert chow_liu_tree(np.zeros((3, 1), np.int64)) == []


def test_chow_liu_circuit_is_the_product_of_conditionals():
    x = chain(300, 5)
    circuit = chow_liu(x, pseudocount=0.2)
    edges = chow_liu_tree(x, pseudocount=0.2)
    want = 0.0
    joint = {}
    for a, b in edges:
        pair = np.full((3, 3), 0.2)
        np.add.at(pair, (x[:, a], x[:, b]), 1)
        joint[a, b] = pair / pair.sum()
    for (a, b), p in joint.items():
        want = want + np.log(p[x[:, a], x[:, b]])
    degree = np.bincount(np.array(edges).ravel(), minlength=5)
    for v in range(5):
        single = (np.bincount(x[:, v], minlength=3) + 0.6) / (300 + 1.8)
        want = want - (degree[v] - 1) * np.log(single[x[:, v]])
    np.testing.assert_allclose(circuit.log_prob(x).detach().numpy(), want, rtol=1e-12)


def test_chow_liu_does_not_depend_on_its_root():
    x = chain(200, 6)
    values = [chow_liu(x, root=r).log_prob(x).detach() for r in range(6)]
    for v in values[1:]:
        torch.testing.assert_close(v, values[0], rtol=1e-12, atol=1e-12)


def test_without_pseudocount_unseen_pairs_have_probability_zero():
    x = np.array([[0, 0], [1, 1], [2, 2]])
    circuit = chow_liu(x, pseudocount=0.0)
    log_p = circuit.log_prob([[0, 0], [0, 1], [-1, 1]]).detach()
    assert log_p.tolist() == pytest.approx([math.log(1 / 3), -math.inf, math.log(1 / 3)])


@pytest.mark.parametrize("name, exact", [("nltcs", -6.7590743429784395), ("plants", -16.524061325999146)])
def test_real_data_sets(name, exact):
    """Mean test log-likelihood of the Chow-Liu tree with pseudocount 0.01; published: -6.759 and -16.524."""
    folder = os.environ.get("PFKIT_DATA")
    if not folder or not (path := Path(folder) / "pc" / f"debd_{name}.npz").exists():
        pytest.skip("PFKIT_DATA names no folder with the DEBD sets, which have no licence to be copied")
    with np.load(path) as z:
        n = int(z["n_vars"])
        train, test = (np.unpackbits(z[part], axis=1, count=n) for part in ("train", "test"))
    circuit = chow_liu(train, pseudocount=0.01)
    assert mean_log_likelihood(circuit, test) == pytest.approx(exact, abs=1e-9)


def test_hclt_shapes_and_seed():
    x = chain(50, 6)
    a, b, c = hclt(x, 4, rng=3), hclt(x, 4, rng=3), hclt(x, 4, rng=4)
    assert a.n_units == 4 and a.n_variables == 6 and a.dtype == torch.float32
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.root_weight, c.root_weight)
    assert hclt(x, 4, rng=0, dtype=torch.float64).dtype == torch.float64


def test_hclt_learns_its_tree_from_ranges_of_many_categories():
    x = chain(4000, 5) * 80 + np.random.default_rng(0).integers(0, 30, (4000, 5))  # up to 189
    circuit = hclt(x, 2, root=0, n_categories=240)
    assert circuit.inputs.n_categories == 240
    coarse = hclt(chain(4000, 5), 2, root=0)
    assert circuit.graph == coarse.graph


def test_gaussian_tree_follows_correlation():
    random = np.random.default_rng(0)
    x = np.cumsum(random.standard_normal((3000, 5)), 1)  # a random walk: a chain
    circuit = hclt(x, 2, family="gaussian", root=0)
    assert circuit.graph == hclt(x, 2, family="gaussian", root=0, edges=[(v, v + 1) for v in range(4)]).graph


@pytest.mark.parametrize("family", ["categorical", "bernoulli", "gaussian"])
@pytest.mark.parametrize("shape, k", [((20, 1), 3), ((20, 2), 3), ((1, 4), 2), ((3, 4), 30), ((20, 4), 1)])
def test_small_extremes_learn(family, shape, k):
    """One variable, one row, more states than rows, one state."""
    x = np.random.default_rng(0).integers(0, 2, shape)
    circuit = hclt(x, k, family=family, rng=0, n_categories=2)
    circuit.fit(x, epochs=2, rng=0)
    assert torch.isfinite(circuit.log_prob(x)).all()
    assert all(torch.isfinite(p).all() for p in circuit.parameters())


GOOD = np.zeros((4, 3), np.int64)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: chow_liu_tree(np.zeros(3, int)), ValueError, "rows, variables"),
        (lambda: chow_liu_tree(np.zeros((0, 3), int)), ValueError, "rows, variables"),
        (lambda: chow_liu_tree([[0, -1]]), ValueError, "missing"),
        (lambda: chow_liu_tree([[0.0, math.nan]]), ValueError, "missing"),
        (lambda: chow_liu_tree([[0.5, 1.0]]), ValueError, "0.5"),
        (lambda: chow_liu_tree([[0, 3]], n_categories=2), ValueError, "3"),
        (lambda: chow_liu_tree(GOOD, pseudocount=-1), ValueError, "pseudocount"),
        (lambda: chow_liu_tree([["a", "b"]]), TypeError, "numbers"),
        (lambda: chow_liu_tree(GOOD, n_categories=0), ValueError, "n_categories"),
        (lambda: hclt(GOOD, 0), ValueError, "num_latents"),
        (lambda: hclt(GOOD, 2.0), TypeError, "num_latents"),
        (lambda: hclt(GOOD, 2, root=3), ValueError, "root"),
        (lambda: hclt(GOOD, 2, edges=[(0, 1)]), ValueError, "spanning tree"),
        (lambda: hclt(GOOD, 2, family="poisson"), ValueError, "poisson"),
        (lambda: hclt(GOOD, 2, dtype=torch.float16), TypeError, "float16"),
        (lambda: hclt(GOOD + 2, 2, family="bernoulli"), ValueError, "2"),
        (lambda: hclt([[0.0, math.inf]], 2, family="gaussian"), ValueError, "finite"),
        (lambda: hclt(GOOD, 2, rng=-1), ValueError, "non-negative"),
        (lambda: chow_liu(GOOD, root=7), ValueError, "root"),
        (lambda: chow_liu(GOOD, dtype=None), TypeError, "dtype must be torch.float32 or .* got None"),
        (lambda: hclt(torch.zeros(3, 2, device="meta"), 2), TypeError, "meta"),
        (lambda: hclt(GOOD, 2, root="a"), TypeError, "root"),
        (lambda: hclt(GOOD, 2, root=1.5), TypeError, "1.5"),
        (lambda: hclt(GOOD, 2, root=-1), ValueError, "-1"),
        (lambda: hclt(GOOD, 2, edges=5), TypeError, "edges"),
        (lambda: hclt(GOOD, 2, edges=[(0, 1, 2)]), TypeError, "edges"),
        (lambda: hclt(GOOD, 2, edges=["ab", "cd"]), TypeError, "edges"),
        (lambda: hclt(GOOD, 2, bins=0), ValueError, "bins"),
        (lambda: hclt(GOOD, True), TypeError, "num_latents"),
        (lambda: chow_liu_tree(GOOD, n_categories=3.0), TypeError, "n_categories"),
        (lambda: chow_liu_tree(GOOD, n_categories=2**40), ValueError, "at most 65536"),
        (lambda: chow_liu_tree(GOOD, pseudocount="a"), TypeError, "pseudocount"),
        (lambda: chow_liu_tree(GOOD, pseudocount=math.inf), ValueError, "pseudocount"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
