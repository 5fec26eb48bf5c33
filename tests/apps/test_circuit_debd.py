"""The density estimation demo: likelihoods on real sets, where they are to be had, and its own arguments."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from apps import circuit_debd  # noqa: E402


def splits_of(name):
    path = circuit_debd.find(name)
    if path is None:
        pytest.skip("PFKIT_DATA names no folder with the DEBD sets, which have no licence to be copied")
    return circuit_debd.load(path)


@pytest.mark.parametrize(
    "name, latents, epochs, shape, least", [("nltcs", 16, 6, 16, -6.03), ("plants", 16, 3, 69, -13.7)]
)
def test_test_likelihood(name, latents, epochs, shape, least):
    """Better than -6.03 and -13.7 nats; the Chow-Liu tree has -6.76 and -16.52."""
    splits = splits_of(name)
    assert all(x.shape[1] == shape for x in splits.values())
    best = circuit_debd.search(splits, (latents,), (1.0,), epochs=epochs, say=lambda text: None)
    assert best.test >= least
    assert best.valid >= least


@pytest.mark.slow
@pytest.mark.parametrize("name, shape, least", [("nltcs", 16, -6.005), ("plants", 69, -12.75)])
def test_test_likelihood_of_the_commands_own_settings(name, shape, least):
    """Within 0.02 and 0.12 nats of what docs/circuits.md says, for other machines' rounding."""
    best = circuit_debd.search(splits_of(name), (32,), (1.0,), epochs=12 if shape == 16 else 8)
    assert best.test >= least


def synthetic(n=400, seed=0):
    random = np.random.default_rng(seed)
    x = random.integers(0, 2, (n, 6), dtype=np.uint8)
    x[:, 3:] = x[:, :3]
    return x


def test_the_validation_split_decides():
    splits = {s: synthetic(seed=k) for k, s in enumerate(("train", "valid", "test"))}
    said = []
    best = circuit_debd.search(splits, (2, 8), (1.0, 50.0), epochs=6, batch=50, say=said.append)
    assert len(said) == 4
    valid = [float(line.split("valid")[1].split()[0]) for line in said]
    assert best.valid == pytest.approx(max(valid), abs=1e-4)
    assert (best.latents, best.pseudocount) == (8, 1.0)
    with torch.no_grad():
        assert best.test == pytest.approx(float(best.circuit.log_prob(splits["test"]).mean()), abs=1e-5)


def test_the_command(monkeypatch, capsys, tmp_path):
    (tmp_path / "pc").mkdir()
    packed = {s: np.packbits(synthetic(seed=k), axis=1) for k, s in enumerate(("train", "valid", "test"))}
    np.savez(tmp_path / "pc" / "debd_toy.npz", n_vars=6, **packed)
    monkeypatch.setenv("PFKIT_DATA", str(tmp_path))
    target = tmp_path / "toy.npz"
    arguments = ["toy", "--latents", "4", "--epochs", "3", "--device", "cpu", "--save", str(target)]
    assert circuit_debd.main(arguments) == 0
    said = capsys.readouterr().out
    assert "hidden Chow-Liu tree, K = 4" in said and "train 400 x 6" in said
    from pfkit.circuits import Circuit

    assert Circuit.load(target).n_units == 4


def test_without_data_it_says_so(monkeypatch, capsys):
    monkeypatch.delenv("PFKIT_DATA", raising=False)
    assert circuit_debd.main(["nltcs"]) == 0
    assert "skipped" in capsys.readouterr().err
    for bad in (["nltcs", "--latents", "x"], ["nltcs", "--pseudocounts", "-1"], ["nltcs", "--latents", ""]):
        with pytest.raises(SystemExit):
            circuit_debd.main(bad)
