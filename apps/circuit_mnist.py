"""Learn the distribution of handwritten digits, score unseen ones, draw new ones, complete hidden halves.

    python -m apps.circuit_mnist                        # a GPU: K = 128 latent states; a CPU: K = 16
    python -m apps.circuit_mnist --binary               # black and white; scores the Chow-Liu tree too
    python -m apps.circuit_mnist --latents 256 --epochs 30 --device cuda --save mnist.npz

5000 real MNIST images (data/pc): the tree and a hidden Chow-Liu tree over 784 pixels are learned from 4500,
the other 500 are only scored, in bits per pixel. The picture, out/circuit_mnist.png, shows samples above,
and below them unseen digits whose lower half was hidden: what was there, one completion drawn from the
circuit given the upper half, and the mean of all completions.
"""

from __future__ import annotations

import argparse
import math
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from .devices import chosen_device

DATA = Path(__file__).resolve().parent.parent / "data" / "pc" / "mnist_t10k_even5000.npz"
SIDE = 28
#: chosen by the likelihood of rows 4000 to 4499 of the training images, learned from the first 4000
PSEUDOCOUNT = {"grey": (1.0, 10.0), "binary": (1.0, 0.1)}  # of mixtures, of inputs
BATCH = 250


@dataclass
class Learned:
    """A circuit and what it scored, in bits per pixel."""

    circuit: object
    train: list[float]  # an epoch, while learning
    held_out: float
    independent: float
    chow_liu: float | None
    seconds: float


def load(path: Path = DATA) -> np.ndarray:
    """(5000, 784) uint8 grey values."""
    with np.load(path, allow_pickle=False) as z:
        return z["images"].reshape(-1, SIDE * SIDE)


def bits(log_likelihood: float) -> float:
    """Mean log-likelihood of an image, in nats, as bits per pixel."""
    return -log_likelihood / (SIDE * SIDE * math.log(2))


def independent_bits(train, test, n_categories: int) -> float:
    """Bits per pixel of pixels on their own, with one pseudocount a category."""
    import torch

    counts = torch.stack([(train == c).sum(0) for c in range(n_categories)], 1).double() + 1
    log_p = torch.log(counts / counts.sum(1, keepdim=True))
    return bits(float(log_p.gather(1, test.T.long()).sum()) / len(test))


def learn(images, *, latents=16, epochs=10, binary=False, device="cpu", seed=0, say=print) -> Learned:
    """Tree, circuit, expectation maximisation, scores.

    Parameters
    ----------
    images : array, (N, 784) uint8
        The last tenth is held out.
    """
    import torch

    from pfkit.circuits import chow_liu, hclt, mean_log_likelihood

    x = torch.as_tensor(images.astype(np.int64), device=device)
    if binary:
        x = (x > 127).long()
    n_categories = 2 if binary else 256
    train, test = x[: len(x) * 9 // 10], x[len(x) * 9 // 10 :]
    start = perf_counter()
    circuit = hclt(train, latents, n_categories=n_categories, rng=seed)
    widest = max((len(level) for level in circuit.graph.levels), default=0)
    say(
        f"tree and circuit: {perf_counter() - start:.1f} s; {circuit.n_regions} regions of {latents} units, "
        f"{len(circuit.graph.levels)} levels, the widest of {widest}, "
        f"{sum(p.numel() for p in circuit.parameters()) / 1e6:.1f} M parameters"
    )

    def progress(epoch: int, log_likelihood: float, _: float | None) -> None:
        say(
            f"epoch {epoch + 1:3d}  {bits(log_likelihood):.4f} bits per pixel while learning  "
            f"{perf_counter() - start:.1f} s"
        )

    of_mixtures, of_inputs = PSEUDOCOUNT["binary" if binary else "grey"]
    result = circuit.fit(
        train,
        epochs=epochs,
        batch=BATCH,
        pseudocount=of_mixtures,
        input_pseudocount=of_inputs,
        rng=seed,
        progress=progress,
    )
    seconds = perf_counter() - start
    tree = None
    if binary:
        tree = bits(mean_log_likelihood(chow_liu(train, pseudocount=0.1), test))
    return Learned(
        circuit,
        [bits(v) for v in result.train],
        bits(mean_log_likelihood(circuit, test)),
        independent_bits(train, test, n_categories),
        tree,
        seconds,
    )


def picture(circuit, images, *, seed=0, columns=12) -> np.ndarray:
    """Two rows of samples; then unseen digits, a drawn completion of the upper half, and the mean; uint8."""
    grey = 255 if circuit.inputs.n_categories == 2 else 1
    shown = np.asarray(images[-columns:], np.int64)
    if grey == 255:
        shown = (shown > 127).astype(np.int64)
    evidence = shown.copy()
    evidence[:, SIDE * SIDE // 2 :] = -1
    rows = [
        *circuit.sample(2 * columns, rng=seed).cpu().numpy().reshape(2, columns, -1),
        shown,
        circuit.sample(columns, evidence, rng=seed + 1).cpu().numpy(),
        circuit.expectation(evidence).cpu().numpy(),
    ]
    sheet = np.full((len(rows) * (SIDE + 2), columns * (SIDE + 2)), 90, np.uint8)
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            tile = np.clip(np.rint(image * grey), 0, 255).astype(np.uint8).reshape(SIDE, SIDE)
            sheet[r * (SIDE + 2) + 1 :, c * (SIDE + 2) + 1 :][:SIDE, :SIDE] = tile
    return np.kron(sheet, np.ones((2, 2), np.uint8))


def write_png(path: Path, image: np.ndarray) -> None:
    """An 8-bit grey image (height, width) as PNG; needs nothing but zlib."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width = image.shape
    lines = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(image))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latents", type=int, help="states of each latent (128 on a GPU, 16 on a CPU)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--binary", action="store_true", help="pixels above 127 are 1")
    parser.add_argument("--device", help="cuda if there is one, else cpu")
    parser.add_argument("--images", type=int, help="use only so many of the 5000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/circuit_mnist.png"))
    parser.add_argument("--save", type=Path, help="write the circuit to this npz file")
    options = parser.parse_args(arguments)
    try:
        import torch  # noqa: F401
    except ImportError:
        print("this needs torch: pip install 'pfkit[torch]'", file=sys.stderr)
        return 1
    device = chosen_device(options.device, parser.error)
    latents = options.latents
    if latents is None:
        latents = 16 if device == "cpu" else 128
    if latents < 1:
        parser.error(f"--latents must be >= 1, got {latents}")
    images = load()
    if options.images is not None:
        if not 20 <= options.images <= len(images):
            parser.error(f"--images must lie in [20, {len(images)}], got {options.images}")
        images = images[-options.images :]
    done = learn(
        images,
        latents=latents,
        epochs=options.epochs,
        binary=options.binary,
        device=device,
        seed=options.seed,
    )
    print(f"\nbits per pixel on {len(images) - len(images) * 9 // 10} unseen images")
    print(
        f"  hidden Chow-Liu tree, K = {latents:<4d} {done.held_out:.4f}   ({done.seconds:.0f} s on {device})"
    )
    if done.chow_liu is not None:
        print(f"  Chow-Liu tree                {done.chow_liu:.4f}")
    print(f"  pixels on their own          {done.independent:.4f}")
    write_png(options.out, picture(done.circuit, images, seed=options.seed))
    print(f"samples and completed halves: {options.out}")
    if options.save:
        done.circuit.save(options.save)
        print(f"circuit: {options.save}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
