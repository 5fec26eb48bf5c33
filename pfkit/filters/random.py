"""Random streams keyed by (seed, step, purpose).

A filter owns a 128-bit key, made once from ``rng=``. Every time it needs random numbers it opens the stream
of that key, step and purpose: a counter-based generator (Philox 4x64-10, Salmon et al. 2011) whose counter
starts at (0, 0, step, purpose). Streams never overlap and need no state between steps, so a saved and resumed
filter, or two filters in two threads, draw exactly the numbers of an uninterrupted one. The global NumPy
state is neither read nor written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["INITIAL", "PROPOSAL", "RESAMPLE", "TRANSITION", "Streams", "random_bits", "seed_key", "stream"]

INITIAL, TRANSITION, RESAMPLE, PROPOSAL = range(4)

#: Bit generators whose raw output is 64 random bits.
_RAW64 = (np.random.Philox, np.random.PCG64, np.random.PCG64DXSM, np.random.SFC64)


def seed_key(rng: Any) -> np.ndarray:
    """The 128-bit key of ``rng``, as two uint64.

    Parameters
    ----------
    rng : None, int, numpy.random.SeedSequence or numpy.random.Generator
        None: fresh entropy from the operating system. int >= 0: the seed. SeedSequence: used as it is, never
        spawned from. Generator: two draws are taken from it, so that filters built one after the other from
        one Generator differ.

    Raises
    ------
    TypeError, ValueError
        Anything else; a negative int.
    """
    if isinstance(rng, np.random.Generator):
        return random_bits(rng, 2)
    if rng is None:
        return np.random.SeedSequence().generate_state(2, np.uint64)
    if isinstance(rng, np.random.SeedSequence):
        return rng.generate_state(2, np.uint64)
    if isinstance(rng, (int, np.integer)) and not isinstance(rng, (bool, np.bool_)):
        if rng < 0:
            raise ValueError(f"rng={rng!r}: an integer seed must be >= 0")
        return np.random.SeedSequence(int(rng)).generate_state(2, np.uint64)
    raise TypeError(
        f"rng must be None, an int, a numpy.random.SeedSequence or a numpy.random.Generator, not {rng!r}"
    )


def stream(key: np.ndarray, step: int, purpose: int) -> np.random.Generator:
    """A new Generator at the start of the stream (key, step, purpose)."""
    counter = np.array([0, 0, step, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def random_bits(rng: np.random.Generator, n: int) -> np.ndarray:
    """n words of 64 random bits, uint64."""
    bits = rng.bit_generator
    if isinstance(bits, _RAW64):
        return bits.random_raw(n)
    return rng.integers(0, 2**64 - 1, size=n, dtype=np.uint64, endpoint=True)


class Streams:
    """The streams of one key: ``at(step, purpose)`` is ``stream(key, step, purpose)``, ten times cheaper.

    One Generator a purpose is kept and rewound to the start of the stream asked for, so a Generator handed
    out is valid until the next call with the same purpose.
    """

    def __init__(self, key: np.ndarray):
        self.key = np.array(key, np.uint64)
        if self.key.shape != (2,):
            raise ValueError(f"a key is two uint64, not an array of shape {self.key.shape}")
        self._open: dict[int, Any] = {}

    def at(self, step: int, purpose: int) -> np.random.Generator:
        """The Generator of ``purpose``, at the start of the stream of ``step``."""
        entry = self._open.get(purpose)
        if entry is None:
            generator = stream(self.key, step, purpose)
            start = generator.bit_generator.state
            self._open[purpose] = (generator, generator.bit_generator, start, start["state"]["counter"])
            return generator
        generator, bits, start, counter = entry
        counter[2] = step
        bits.state = start
        return generator
