"""Circuits on a GPU: the eager layers in every mode, learning by a captured graph, queries."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import EM, hclt  # noqa: E402
from pfkit.circuits.propagate import upward  # noqa: E402
from pfkit.lse import cuda  # noqa: E402

if cuda.missing():
    pytest.skip(cuda.missing(), allow_module_level=True)

pytestmark = pytest.mark.gpu


def data(n=600, n_variables=30, n_categories=4, seed=0):
    random = np.random.default_rng(seed)
    x = random.integers(0, n_categories, (n, n_variables))
    for v in range(1, n_variables):
        keep = random.random(n) < 0.7
        x[keep, v] = x[keep, (v - 1) // 2]
    return x


def learned(k=16, **keywords):
    x = torch.as_tensor(data(**keywords), device="cuda")
    circuit = hclt(x, k, rng=0)
    circuit.fit(x, epochs=3, batch=100, rng=0)
    return circuit, x


#: Largest error against float64 of a circuit of this size: the kernel's own error, once a sum region.
MOST = {"matmul": 1e-4, "fuse": 1e-4, "torch": 1e-4, "int": 5e-4, "int-pairwise": 0.1, "fuse16": 0.05}


@pytest.mark.parametrize("lse", [*MOST, "int16"])
def test_every_mode_against_float64(lse):
    circuit, x = learned()
    exact = hclt(x.cpu(), 16, rng=0, dtype=torch.float64)
    exact.load_state_dict({k: v.cpu() for k, v in circuit.state_dict().items()})
    missing = torch.where(torch.rand(x.shape, device="cuda") < 0.2, -1, x)
    with torch.no_grad():
        want = exact.log_prob(missing.cpu())
        got = upward(circuit, circuit.data(missing), lse)[1]
        again = circuit.log_prob(missing, lse=lse)
    assert got.device.type == "cuda" and got.dtype == torch.float32
    for value in (got, again):
        assert (value.cpu().double() - want).abs().max() <= MOST.get(lse, 0.5)


@pytest.mark.parametrize("zeros", [0.0, 0.2])
def test_gradients_against_float64(zeros):
    circuit, x = learned()
    with torch.no_grad():
        for p in circuit.parameters():
            p *= torch.rand_like(p) >= zeros
        possible = circuit.log_prob(x) > -torch.inf
    x = x[possible]
    assert len(x) >= 200
    exact = hclt(x.cpu(), 16, rng=0, dtype=torch.float64)
    exact.load_state_dict({k: v.cpu() for k, v in circuit.state_dict().items()})
    circuit.log_prob(x[:200]).sum().backward()
    exact.log_prob(x[:200].cpu()).sum().backward()
    for p, q in zip(circuit.parameters(), exact.parameters(), strict=True):
        assert (p.grad.cpu().double() - q.grad).norm() <= 1e-4 * q.grad.norm()


def test_a_graph_counts_what_the_passes_count():
    x = torch.as_tensor(data(), device="cuda")
    plain, graphed = hclt(x, 16, rng=0), hclt(x, 16, rng=0)
    a, b = EM(plain, pseudocount=0.1, n_rows=600), EM(graphed, pseudocount=0.1, n_rows=600, graph=True)
    for at in range(0, 600, 128):  # the last batch is smaller: counted by the passes
        for em in (a, b):
            em.accumulate(x[at : at + 128])
            em.step(0.3)
    assert b._graph is not None and b._may_graph
    for p, q in zip(plain.parameters(), graphed.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_batches_are_summed_across_graph_replays():
    x = torch.as_tensor(data(), device="cuda")
    one, many = hclt(x, 8, rng=0), hclt(x, 8, rng=0)
    whole, parts = EM(one), EM(many, graph=True)
    first = whole.accumulate(x)
    second = torch.cat([parts.accumulate(x[at : at + 100]) for at in range(0, 600, 100)])
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-4)
    whole.step(), parts.step()
    for p, q in zip(one.parameters(), many.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-6)


def test_a_circuit_with_zeros_is_counted_by_the_passes():
    x = torch.as_tensor(data(n_categories=3), device="cuda")
    circuit = hclt(x, 8, rng=0)
    with (
        torch.no_grad()
    ):  # unit 0 emits no 0, and latent state 0 always stays 0: it is impossible where 0 is seen
        circuit.inputs.probs[:, 0] = torch.tensor([0.0, 0.5, 0.5], device="cuda")
        for _, _, layer in circuit.layers():
            layer.weight[:, 0] = torch.eye(8, device="cuda")[0]
    em = EM(circuit, graph=True)
    for _ in range(4):
        log_p = em.accumulate(x[:300])
        em.step()
    assert not em._may_graph and torch.isfinite(log_p).all()
    assert all(torch.isfinite(p).all() for p in circuit.parameters())


def test_a_moved_circuit_is_not_counted_by_an_old_graph():
    circuit, x = learned()
    em = EM(circuit, graph=True)
    em.accumulate(x[:100])
    em.step()
    for p in circuit.parameters():
        p.data = p.data.clone()
    assert not em._graph.fits(x[:100])
    em.accumulate(x[:100])
    em.step()


def test_queries_stay_on_the_device():
    circuit, x = learned()
    evidence = x[:50].clone()
    evidence[:, 10:] = -1
    for out in (circuit.sample(50, evidence, rng=0), circuit.mpe(evidence)):
        assert out.device == x.device and torch.equal(out[:, :10], x[:50, :10])
        assert torch.isfinite(circuit.log_prob(out)).all()
    p = circuit.conditionals(evidence)
    assert p.device == x.device
    torch.testing.assert_close(p.sum(2), torch.ones_like(p[:, :, 0]))
    cpu = circuit.cpu().conditionals(evidence.cpu())
    torch.testing.assert_close(p.cpu(), cpu, rtol=1e-4, atol=1e-5)
