"""Random streams keyed by (seed, step, purpose), and the fast Generator that models draw from.

A filter owns a 128-bit key, made once from ``rng=``. Every time it needs random numbers it opens the stream
of that key, step and purpose. A stream is a range of counters of Philox4x32-7 (Salmon, Moraes, Dror and Shaw
2011), which turns a counter into random bits without any state. So streams never overlap and need nothing
kept between steps: a saved and resumed filter, or two filters in two threads, draw exactly the numbers of an
uninterrupted one. The global NumPy state is neither read nor written.

``PhiloxGenerator`` is a ``numpy.random.Generator``. Its ``random``, ``uniform``, ``standard_normal``,
``normal``, ``standard_exponential`` and ``exponential`` are compiled (SIMD, the same bits at every level);
all other methods are NumPy's own, on a NumPy Philox4x64 bit generator of the same key, so integers,
permutations and gamma variates are as reproducible, at NumPy's speed.

Tails are those of the distribution: normals in float32 and float64 follow it to 9.4 standard deviations,
where the probability is below 2^-63, and exponentials to 44. ``pfkit_ext/cpu/random.h`` says which number
comes from which counter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pfkit_ext import _cpu

__all__ = [
    "INITIAL",
    "NOISE",
    "PROPOSAL",
    "RESAMPLE",
    "TRANSITION",
    "PhiloxGenerator",
    "Streams",
    "random_bits",
    "seed_key",
    "stream",
    "stream_number",
]

INITIAL, TRANSITION, RESAMPLE, PROPOSAL, NOISE = range(5)

_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))  # quicker to compare with than the types
_GROUP = 64  # numbers a group, float64

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


def stream(key: np.ndarray, step: int, purpose: int) -> PhiloxGenerator:
    """A new Generator at the start of the stream (key, step, purpose)."""
    return PhiloxGenerator(key, step, purpose)


def stream_number(key: np.ndarray, step: int, purpose: int) -> int:
    """The upper 63 bits of the counters of a stream; the lower half of ``key`` is the key of its block
    function.
    """
    if not 0 <= step < 2**48 or not 0 <= purpose < 2**15:
        raise ValueError(f"step must be in [0, 2**48) and purpose in [0, 2**15), not {step} and {purpose}")
    return (int(key[1]) >> 1) ^ (purpose << 48 | step)


def random_bits(rng: np.random.Generator, n: int) -> np.ndarray:
    """n words of 64 random bits, uint64."""
    if isinstance(rng, PhiloxGenerator):
        return rng.bits(n)
    bits = rng.bit_generator
    if isinstance(bits, _RAW64):
        return bits.random_raw(n)
    return rng.integers(0, 2**64 - 1, size=n, dtype=np.uint64, endpoint=True)


class _Key(np.random.bit_generator.ISeedSequence):
    """A key as NumPy's bit generators take one; given a bare key they ask the system for entropy all the
    same, which costs more than the rest.
    """

    def __init__(self, key: np.ndarray):
        self.key = key

    def generate_state(self, n_words, dtype=np.uint32):
        return self.key


class PhiloxGenerator(np.random.Generator):
    """The stream (key, step, purpose) as a ``numpy.random.Generator``, from its start.

    Parameters
    ----------
    key : (2,) uint64
    step : int, 0 <= step < 2**48
    purpose : int

    Notes
    -----
    Every call takes whole groups of 64 (float64) or 128 (float32) numbers and drops what it does not need, so
    many calls for one number each cost more than one call for many, and a block of numbers does not equal the
    same numbers asked for in pieces.

    Raises ValueError, TypeError as NumPy does: a dtype other than float32 and float64, a negative scale.
    """

    def __init__(self, key: np.ndarray, step: int = 0, purpose: int = 0):
        self._key = np.array(key, np.uint64)
        counter = np.array([0, 0, step, purpose], np.uint64)
        super().__init__(np.random.Philox(_Key(self._key), counter=counter))  # type: ignore[arg-type]
        self._word = int(self._key[0])
        self.rewind(step, purpose)

    def rewind(self, step: int, purpose: int) -> None:
        """Go to the start of the stream (step, purpose) of the same key; the NumPy bit generator stays where
        it is.
        """
        self._step, self._purpose = step, purpose
        self._stream = stream_number(self._key, step, purpose)
        self._group = 0

    def change_key(self, key: np.ndarray, start: dict[str, Any]) -> None:
        """Go to the start of the stream of another key at the same step and purpose; ``start`` is the state
        of the NumPy bit generator before its first number.
        """
        self._key = np.array(key, np.uint64)
        self._word = int(self._key[0])
        start["state"]["key"][:] = self._key
        self.bit_generator.state = start
        self.rewind(self._step, self._purpose)

    def bits(self, n: int) -> np.ndarray:
        """n words of 64 random bits, uint64."""
        words = _cpu.random_bits(n, self._word, self._stream, self._group)
        self._group += -(-n // _GROUP)
        return words

    def _fill(self, kind: str, size: Any, dtype: Any, out: Any) -> Any:
        dtype = np.dtype(dtype)
        if dtype not in _FLOATS:
            raise TypeError(f"dtype must be float64 or float32, not {dtype}")
        if out is None:
            array = np.empty(1 if size is None else size, dtype)
        else:
            array = out
            if not isinstance(out, np.ndarray) or out.dtype != dtype:
                raise TypeError(f"out must be an array of dtype {dtype}, not {out!r}")
            if not (out.flags.c_contiguous and out.flags.writeable):
                raise ValueError("out must be C-contiguous and writeable")
            if size is not None and np.broadcast_shapes(np.empty(size, "V0").shape) != out.shape:
                raise ValueError(f"size {size!r} does not match out of shape {out.shape}")
        self._group += _cpu.random_fill(array, kind, self._word, self._stream, self._group)
        return array[0].item() if size is None and out is None else array

    def random(self, size=None, dtype=np.float64, out=None):
        """Uniform on [0, 1), multiples of 2**-53 (float64) or 2**-24 (float32)."""
        return self._fill("uniform", size, dtype, out)

    def standard_normal(self, size=None, dtype=np.float64, out=None):
        """N(0, 1)."""
        return self._fill("normal", size, dtype, out)

    def standard_exponential(self, size=None, dtype=np.float64, method="zig", out=None):
        """Exponential of mean 1. ``method`` is checked and otherwise ignored: minus the log of a 64-bit
        uniform.
        """
        if method not in ("zig", "inv"):
            raise ValueError(f"method must be 'zig' or 'inv', not {method!r}")
        return self._fill("exponential", size, dtype, out)

    def normal(self, loc=0.0, scale=1.0, size=None):
        """N(loc, scale**2), float64; scale >= 0."""
        return self._located("normal", loc, scale, size)

    def exponential(self, scale=1.0, size=None):
        """Exponential of mean ``scale`` >= 0, float64."""
        return self._located("exponential", 0.0, scale, size)

    def uniform(self, low=0.0, high=1.0, size=None):
        """Uniform on [low, high), float64."""
        width = np.subtract(high, low, dtype=np.float64)
        if not np.all(np.isfinite(width)):
            raise OverflowError("high - low range exceeds valid bounds")
        return self._located("uniform", low, width, size)

    def _located(self, kind: str, loc: Any, scale: Any, size: Any) -> Any:
        if kind != "uniform" and np.any(np.signbit(scale)):
            raise ValueError("scale < 0")
        shape = np.broadcast_shapes(np.shape(loc), np.shape(scale))
        if size is not None:
            size = (int(size),) if np.ndim(size) == 0 else tuple(size)
            if np.broadcast_shapes(shape, size) != size:
                raise ValueError(
                    f"Output size {size} is not compatible with broadcast dimensions of inputs {shape}"
                )
        elif shape:
            size = shape
        draws = self._fill(kind, size, np.float64, None)
        if size is None:
            return float(loc) + float(scale) * draws
        draws *= scale
        draws += loc
        return draws

    def __reduce__(self):
        state = (self._step, self._purpose, self._group, self.bit_generator.state)
        return _restored, (self._key, state)

    def __repr__(self) -> str:
        return f"PhiloxGenerator(step={self._step}, purpose={self._purpose})"

    __str__ = __repr__


def _restored(key: np.ndarray, state: tuple) -> PhiloxGenerator:
    rng = PhiloxGenerator(key)
    rng._step, rng._purpose, rng._group, rng.bit_generator.state = state
    rng._stream = stream_number(rng._key, rng._step, rng._purpose)
    return rng


class Streams:
    """The streams of one key: ``at(step, purpose)`` is ``stream(key, step, purpose)``, ten times cheaper.

    From the second call on one Generator a purpose is kept and rewound to the start of the stream asked for:
    a Generator handed out is valid until the next call with the same purpose.
    """

    def __init__(self, key: np.ndarray):
        self.key = np.array(key, np.uint64)
        if self.key.shape != (2,):
            raise ValueError(f"a key is two uint64, not an array of shape {self.key.shape}")
        self._open: dict[int, Any] = {}

    def at(self, step: int, purpose: int) -> np.random.Generator:
        """The Generator of ``purpose``, at the start of the stream of ``step``."""
        entry = self._open.get(purpose)
        if not entry:
            generator = stream(self.key, step, purpose)
            if entry is None:  # what is asked for once needs no state to go back to, which is dear to read
                self._open[purpose] = ()
                return generator
            start = generator.bit_generator.state
            self._open[purpose] = (generator, generator.bit_generator, start, start["state"]["counter"])
            return generator
        generator, bits, start, counter = entry
        counter[2] = step
        bits.state = start
        generator.rewind(step, purpose)
        return generator
