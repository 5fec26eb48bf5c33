"""Learn a density of binary data, settings chosen on its validation split, and score its test split once.

    PFKIT_DATA=/path/to/data python -m apps.circuit_debd nltcs
    PFKIT_DATA=/path/to/data python -m apps.circuit_debd plants --latents 32,64 --epochs 10

The sets of the discrete density estimation benchmark (Lowd and Davis 2010; Van Haaren and Davis 2012) carry
no licence, so they are not part of pfkit: the environment variable PFKIT_DATA names a folder that has them as
pc/debd_NAME.npz, with bit-packed splits train, valid and test.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import perf_counter

import numpy as np

from .devices import chosen_device


@dataclass
class Choice:
    """The setting with the best mean log-likelihood (nats) of the validation split, and its test score."""

    latents: int
    pseudocount: float
    epochs: int
    train: float
    valid: float
    test: float
    circuit: object


def find(name: str) -> Path | None:
    """The file of a data set, or None if PFKIT_DATA does not lead to it."""
    folder = os.environ.get("PFKIT_DATA")
    path = Path(folder) / "pc" / f"debd_{name}.npz" if folder else None
    return path if path is not None and path.exists() else None


def load(path: Path) -> dict[str, np.ndarray]:
    """Splits train, valid and test, (N, V) uint8 of zeros and ones."""
    with np.load(path, allow_pickle=False) as z:
        n = int(z["n_vars"])
        return {split: np.unpackbits(z[split], axis=1, count=n) for split in ("train", "valid", "test")}


def search(
    splits, latents=(16, 32), pseudocounts=(1.0,), *, epochs=12, batch=256, device="cpu", seed=0, say=print
) -> Choice:
    """Learn with every setting, keep the best on the validation split, score that one on the test split."""
    import torch

    from pfkit.circuits import chow_liu_tree, hclt, mean_log_likelihood

    data = {split: torch.as_tensor(x, device=device) for split, x in splits.items()}
    edges = chow_liu_tree(data["train"], n_categories=2)
    best: Choice | None = None
    for k, pseudocount in product(latents, pseudocounts):
        start = perf_counter()
        circuit = hclt(data["train"], k, n_categories=2, edges=edges, rng=seed)
        result = circuit.fit(
            data["train"],
            valid=data["valid"],
            epochs=epochs,
            batch=batch,
            pseudocount=pseudocount,
            patience=4,
            rng=seed,
        )
        at = result.best_epoch
        say(
            f"K = {k:<4d} pseudocount {pseudocount:<5g} train {result.train[at]:9.4f}  "
            f"valid {result.valid[at]:9.4f}  epoch {at + 1}  {perf_counter() - start:.1f} s"
        )
        if best is None or result.valid[at] > best.valid:
            best = Choice(k, pseudocount, at + 1, result.train[at], result.valid[at], 0.0, circuit)
    assert best is not None
    best.test = mean_log_likelihood(best.circuit, data["test"])
    return best


def numbers(kind):
    """Parse a comma-separated list."""

    def parse(text: str) -> list:
        try:
            found = [kind(part) for part in text.split(",")]
        except ValueError:
            found = []
        if not found or min(found) < 0:
            raise argparse.ArgumentTypeError(f"{text!r} is no comma-separated list of numbers >= 0")
        return found

    return parse


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="nltcs, plants, ...")
    parser.add_argument("--latents", type=numbers(int), default=[16, 32], help="values of K to try, as 16,32")
    parser.add_argument("--pseudocounts", type=numbers(float), default=[1.0], help="values to try, as 0.1,1")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", help="cuda if there is one, else cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="write the chosen circuit to this npz file")
    options = parser.parse_args(arguments)
    path = find(options.name)
    if path is None:
        print(f"skipped: PFKIT_DATA names no folder with pc/debd_{options.name}.npz", file=sys.stderr)
        return 0
    try:
        import torch  # noqa: F401
    except ImportError:
        print("this needs torch: pip install 'pfkit[torch]'", file=sys.stderr)
        return 1
    from pfkit.circuits import chow_liu, mean_log_likelihood

    device = chosen_device(options.device, parser.error)
    splits = load(path)
    print(f"{options.name}: " + ", ".join(f"{s} {len(x)} x {x.shape[1]}" for s, x in splits.items()))
    best = search(
        splits,
        options.latents,
        options.pseudocounts,
        epochs=options.epochs,
        batch=options.batch,
        device=device,
        seed=options.seed,
    )
    tree = mean_log_likelihood(chow_liu(splits["train"], pseudocount=0.01), splits["test"])
    print("\nmean log-likelihood of the test split, nats a row")
    print(f"  hidden Chow-Liu tree, K = {best.latents:<4d} {best.test:9.4f}   (valid {best.valid:.4f})")
    print(f"  Chow-Liu tree                {tree:9.4f}")
    if options.save:
        best.circuit.save(options.save)
        print(f"circuit: {options.save}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
