"""The digits demo: scores against the known baselines, the picture, the command."""

import struct
import zlib

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from apps import circuit_mnist  # noqa: E402


@pytest.fixture(scope="module")
def images():
    return circuit_mnist.load()


@pytest.fixture(scope="module")
def learned(images):
    return circuit_mnist.learn(images[-1500:], latents=8, epochs=2, binary=True, say=lambda text: None)


def test_the_chow_liu_tree_scores_what_it_must(images):
    """All 4500 images, black and white, pseudocount 0.1: -126.1753204515391 nats on the last 500."""
    from pfkit.circuits import chow_liu, mean_log_likelihood

    x = torch.as_tensor(images > 127).long()
    tree = chow_liu(x[:4500], pseudocount=0.1)
    value = mean_log_likelihood(tree, x[4500:])
    assert value == pytest.approx(-126.1753204515391, abs=1e-8)
    assert circuit_mnist.bits(value) == pytest.approx(0.23218432282909562, abs=1e-11)


def test_few_images_already_beat_pixels_on_their_own(learned):
    assert learned.held_out < 0.25 < 0.3 < learned.independent
    assert learned.train[1] < learned.train[0]
    assert learned.circuit.n_variables == 784 and learned.circuit.n_units == 8


def test_grey_values(images):
    done = circuit_mnist.learn(images[-200:], latents=4, epochs=1, say=lambda text: None)
    assert done.circuit.inputs.n_categories == 256 and done.chow_liu is None
    assert 0 < done.held_out < done.independent < 8


def test_the_picture_keeps_what_was_given(learned, images):
    sheet = circuit_mnist.picture(learned.circuit, images, columns=3)
    assert sheet.shape == (5 * 30 * 2, 3 * 30 * 2) and sheet.dtype == np.uint8
    tiles = sheet[::2, ::2].reshape(5, 30, 3, 30).transpose(0, 2, 1, 3)[:, :, 1:29, 1:29]
    real = np.where(images[-3:].reshape(3, 28, 28) > 127, 255, 0)
    assert (tiles[2] == real).all()
    assert (tiles[3:, :, :14] == real[:, :14]).all()  # the upper half was the evidence
    assert set(np.unique(tiles[:4]).tolist()) == {0, 255}


def test_png_is_read_back(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (7, 5)).astype(np.uint8)
    path = tmp_path / "deep" / "image.png"
    circuit_mnist.write_png(path, image)
    raw = path.read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, bodies = 8, {}
    while at < len(raw):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        kind, body = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack(">I", raw[at + 8 + length : at + 12 + length])
        assert checksum == zlib.crc32(kind + body)
        bodies[kind] = body
        at += 12 + length
    assert struct.unpack(">II", bodies[b"IHDR"][:8]) == (5, 7)
    lines = np.frombuffer(zlib.decompress(bodies[b"IDAT"]), np.uint8).reshape(7, 6)
    assert (lines[:, 0] == 0).all() and (lines[:, 1:] == image).all()


def test_the_command(tmp_path, capsys):
    out, saved = tmp_path / "digits.png", tmp_path / "digits.npz"
    arguments = "--binary --latents 2 --epochs 1 --images 100 --device cpu".split()
    assert circuit_mnist.main([*arguments, "--out", str(out), "--save", str(saved)]) == 0
    said = capsys.readouterr().out
    assert "hidden Chow-Liu tree, K = 2" in said and "on 10 unseen images" in said
    assert out.exists() and saved.exists()
    with pytest.raises(SystemExit):
        circuit_mnist.main(["--images", "3"])
