"""A fresh circuit: clusters around rows of the data, never a zero, the marginals roughly the data's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import hclt  # noqa: E402
from pfkit.circuits.start import OWN_ROW, SAME_STATE  # noqa: E402


def test_every_state_is_a_row_and_nothing_is_zero():
    x = np.random.default_rng(0).integers(0, 4, (200, 7))
    circuit = hclt(x, 5, rng=1, dtype=torch.float64)
    probs = circuit.inputs.probs.detach()
    assert float(probs.min()) > 0
    rows = probs.argmax(2).T  # state k: its most probable value of each variable
    assert all((x == row.numpy()).all(1).any() for row in rows)
    assert bool((probs.amax(2) >= OWN_ROW).all())
    for _, _, layer in circuit.layers():
        diagonal = torch.diagonal(layer.weight.detach(), dim1=1, dim2=2)
        assert bool((diagonal >= SAME_STATE).all()) and float(layer.weight.detach().min()) > 0


def test_learning_from_rows_beats_learning_from_noise():
    """Clustered data, five epochs, the same circuit and steps: higher held-out likelihood."""
    random = np.random.default_rng(0)
    centres = random.integers(0, 2, (6, 30))
    x = np.where(
        random.random((1200, 30)) < 0.1,
        random.integers(0, 2, (1200, 30)),
        centres[random.integers(0, 6, 1200)],
    )
    scores = {}
    for start in ("rows", "noise"):
        circuit = hclt(x[:1000], 6, rng=0, n_categories=2)
        if start == "noise":
            with torch.no_grad():
                for p in (circuit.inputs.probs, *(layer.weight for _, _, layer in circuit.layers())):
                    p.copy_(torch.rand(p.shape, generator=torch.Generator().manual_seed(0)) + 0.1)
                    p.div_(p.sum(-1, keepdim=True))
        circuit.fit(x[:1000], epochs=5, batch=100, rng=0)
        scores[start] = float(circuit.log_prob(x[1000:]).detach().mean())
    assert scores["rows"] > scores["noise"] + 0.1


def test_gaussian_states_stand_near_rows():
    x = np.random.default_rng(0).standard_normal((50, 4)) * 3 + 7
    circuit = hclt(x, 6, family="gaussian", rng=0)
    mean = circuit.inputs.mean.detach().T.numpy()  # (K, V)
    nearest = np.abs(mean[:, None] - x[None]).max(2).min(1)
    assert (nearest < 3).all()
    np.testing.assert_allclose(circuit.inputs.sd.detach()[:, 0], x.std(0), rtol=1e-5)
