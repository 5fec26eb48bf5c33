"""A slow and plain reference of a circuit, in float64, and small circuits to compare with it."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import Circuit, InputLayer, hclt, tree_regions  # noqa: E402

FAMILIES = ("categorical", "bernoulli", "gaussian")


def _lse(terms):
    return torch.logsumexp(terms, 0)


def _largest(terms):
    return terms.amax(0)


def reference(circuit, x, *, maximum=False, parameters=None):
    """log p(x) row by row, region by region, unit by unit, out of torch's own differentiable operations.

    `maximum` takes the largest term in the place of every sum. `parameters`: float64 tensors by name, to
    differentiate with respect to; those of the circuit if not given.
    """
    p = parameters or {name: q.detach().double() for name, q in circuit.named_parameters()}
    reduce = _largest if maximum else _lse
    rows = []
    for row in np.asarray(x, float):
        regions = []
        for i, v in enumerate(circuit.graph.input_variables):
            if np.isnan(row[v]) or (row[v] < 0 and circuit.inputs.family != "gaussian"):
                regions.append(torch.zeros(circuit.n_units, dtype=torch.float64))
            elif circuit.inputs.family == "gaussian":
                normal = torch.distributions.Normal(p["inputs.mean"][i], p["inputs.sd"][i])
                regions.append(normal.log_prob(torch.tensor(row[v], dtype=torch.float64)))
            elif circuit.inputs.family == "bernoulli":
                one = p["inputs.probs"][i]
                regions.append(torch.log(one if row[v] == 1 else 1 - one))
            else:
                regions.append(torch.log(p["inputs.probs"][i, :, int(row[v])]))
        for number, level in enumerate(circuit.graph.levels):
            weight = p[f"sums.{number}.weight"]
            for r, children in enumerate(level):
                product = sum(regions[c] for c in children)
                regions.append(
                    torch.stack([reduce(torch.log(weight[r, i]) + product) for i in range(len(product))])
                )
        roots = torch.stack([sum(regions[c] for c in children) for children in circuit.graph.root])
        rows.append(reduce((torch.log(p["root_weight"]) + roots).reshape(-1)))
    return torch.stack(rows)


@pytest.fixture(name="reference")
def _reference():
    return reference


def states(n_variables, n_categories=2):
    """Every state of the variables, (C^V, V)."""
    return np.array(list(itertools.product(range(n_categories), repeat=n_variables)), np.int64)


@pytest.fixture(name="states")
def _states():
    return states


EDGES = [(0, 1), (1, 2), (1, 3), (3, 4), (3, 5)]  # from its centre: two levels, fan-in 1 to 3


def small(family="categorical", *, seed=0, n_units=3, n_categories=3, dtype=torch.float64, trees=1):
    """Six variables; one tree, or a mixture of two different ones over the same variables."""
    random = np.random.default_rng(seed)
    if trees == 1:
        n = 40
        if family == "gaussian":
            x = random.standard_normal((n, 6))
        else:
            x = random.integers(0, 2 if family == "bernoulli" else n_categories, (n, 6))
            x[0] = 1 if family == "bernoulli" else n_categories - 1
        return hclt(x, n_units, edges=EDGES, root=3, family=family, rng=seed, dtype=dtype)
    graph, _ = tree_regions(6, [(EDGES, 3), ([(v, v + 1) for v in range(5)], 0)])

    def simplex(*shape):
        w = random.uniform(0.1, 1, shape)
        return torch.as_tensor(w / w.sum(-1, keepdims=True), dtype=dtype)

    i, k = len(graph.input_variables), n_units
    if family == "gaussian":
        numbers = {"mean": random.standard_normal((i, k)), "sd": random.uniform(0.5, 2, (i, k))}
    elif family == "bernoulli":
        numbers = {"probs": random.uniform(0.05, 0.95, (i, k))}
    else:
        numbers = {"probs": simplex(i, k, n_categories)}
    inputs = InputLayer(
        graph.input_variables, family, **{n: torch.as_tensor(a, dtype=dtype) for n, a in numbers.items()}
    )
    weights = [simplex(len(level), k, k) for level in graph.levels]
    return Circuit(graph, inputs, weights, simplex(1, 2 * k).reshape(2, k))


@pytest.fixture(name="small")
def _small():
    return small


@pytest.fixture(name="rows")
def _rows():
    """Data for a small circuit, a third of it missing; the last row wholly missing."""

    def make(family="categorical", n=12, seed=1, n_categories=3):
        random = np.random.default_rng(seed)
        if family == "gaussian":
            x = random.standard_normal((n, 6))
        else:
            x = random.integers(0, 2 if family == "bernoulli" else n_categories, (n, 6)).astype(float)
        x[random.random((n, 6)) < 0.3] = np.nan
        x[-1] = np.nan
        return x

    return make
