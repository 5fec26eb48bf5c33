"""Circuits on disk: bit for bit, no pickle, and damaged files refused."""

import io
import os
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import Circuit  # noqa: E402


@pytest.mark.parametrize("trees", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", ["categorical", "bernoulli", "gaussian"])
def test_round_trip_is_bit_for_bit(family, dtype, trees, small, rows, tmp_path):
    circuit, x = small(family, dtype=dtype, trees=trees), rows(family)
    circuit.fit(x, epochs=1, batch=4, rng=0)
    path = tmp_path / "circuit.npz"
    circuit.save(path)
    back = Circuit.load(path)
    assert back.graph == circuit.graph and back.inputs.family == family and back.dtype == dtype
    for (name, p), (other, q) in zip(circuit.named_parameters(), back.named_parameters(), strict=True):
        assert name == other and torch.equal(p, q)
    assert torch.equal(circuit.log_prob(x), back.log_prob(x))
    assert list(tmp_path.iterdir()) == [path]
    stream = io.BytesIO()
    circuit.save(stream)
    stream.seek(0)
    assert torch.equal(Circuit.load(stream).root_weight, circuit.root_weight)
    with np.load(path, allow_pickle=False) as z:
        assert all(z[k].dtype.kind != "O" for k in z.files)


@pytest.fixture
def saved(small, tmp_path):
    path = tmp_path / "circuit.npz"
    small().save(path)
    with np.load(path) as z:
        return path, dict(z)


CHANGES = [
    ({"format": np.int64(99)}, "format 99"),
    ({"format": np.float64(1)}, "format"),
    ({"family": np.array("poisson")}, "poisson"),
    ({"n_levels": np.int64(-1)}, "levels"),
    ({"n_levels": np.int64(10**9)}, "levels"),
    ({"n_levels": np.int64(2)}, "level.1"),
    ({"n_variables": np.int64(7)}, "misses the variables"),
    ({"n_variables": np.int64(2**62)}, "misses the variables"),
    ({"n_variables": np.int64(3)}, "variable"),
    ({"root": np.array([[3, 99]])}, "not computed yet"),
    ({"root": np.array([[3.0, 1.0]])}, "root"),
    ({"root_weight": np.array([[0.9, 0.9, 0.9]])}, "sum to 1"),
    ({"root_weight": np.array([[np.nan, 0.5, 0.5]])}, "finite"),
    ({"weight.0": np.full((1, 3, 4), 0.25)}, "3, 3"),
    ({"weight.0": np.zeros((0, 3, 3))}, "empty"),
    ({"inputs.probs": np.zeros((6, 0, 3))}, "empty"),
    ({"inputs.probs": np.full((6, 3), 0.5)}, "inputs.probs"),
    ({"inputs.probs": np.full((6, 3, 3), -0.5)}, "negative"),
    ({"input_variables": np.array([0, 1, 2, 3, 4, -5])}, "variable"),
]


@pytest.mark.parametrize("change, message", CHANGES)
def test_changed_files_are_refused(change, message, saved):
    path, arrays = saved
    np.savez(path, **(arrays | change))
    with pytest.raises(ValueError, match=message):
        Circuit.load(path)


@pytest.mark.parametrize(
    "name", ["format", "family", "n_levels", "n_variables", "input_variables", "root", "root_weight",
    "level.0", "weight.0", "inputs.probs"]
)  # fmt: skip
def test_every_entry_is_needed(name, saved):
    path, arrays = saved
    del arrays[name]
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="not a file written by Circuit.save"):
        Circuit.load(path)


def test_other_files_are_refused(saved, tmp_path):
    path, _ = saved
    whole = path.read_bytes()
    for content in (b"", b"no zip", whole[: len(whole) // 2], pickle.dumps({"format": 1})):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a file written by Circuit.save"):
            Circuit.load(path)
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 0xFF
    path.write_bytes(bytes(damaged))
    try:
        Circuit.load(path)  # a flipped byte may fall into padding that nothing reads
    except ValueError as error:
        assert "not a file written by Circuit.save" in str(error)
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ValueError, match="single array"):
        Circuit.load(tmp_path / "array.npy")
    with pytest.raises(FileNotFoundError):
        Circuit.load(tmp_path / "none.npz")
    np.savez(path, format=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="not a file"):
        Circuit.load(path)


def test_a_failed_save_leaves_the_old_file(saved, small, monkeypatch):
    path, _ = saved
    before = path.read_bytes()

    def full_disk(*args, **keywords):
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space"):
        small(seed=9).save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_not_saved(dtype, small, tmp_path):
    path = tmp_path / "circuit.npz"
    with pytest.raises(TypeError, match=f"float32 or float64, this one is {dtype}"):
        small().to(dtype).save(path)
    assert not list(tmp_path.iterdir())


def test_what_load_would_refuse_is_not_saved(small, tmp_path):
    circuit = small("gaussian")
    with torch.no_grad():
        circuit.inputs.sd[0, 0] = torch.inf
    with pytest.raises(ValueError, match="inputs.sd is not finite"):
        circuit.save(tmp_path / "circuit.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="file modes and links of POSIX")
def test_a_saved_file_has_the_mode_of_any_other_and_a_link_stays(small, tmp_path):
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    before = os.umask(0o027)
    try:
        small(seed=9).save(tmp_path / "link.npz")
    finally:
        os.umask(before)
    assert (tmp_path / "link.npz").is_symlink()
    assert (tmp_path / "real.npz").stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.npz", "real.npz"]
