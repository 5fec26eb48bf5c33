"""The bits of lse="int": those of its definition, for every order, chunking and SIMD level."""

import json
from pathlib import Path

import numpy as np
import pytest

import pfkit
from pfkit_ext import _cpu

VECTORS = json.loads((Path(__file__).parent / "data" / "integer_lse_vectors.json").read_text())


def values(vector):
    """The input of a vector: C99 hex floats, or a one-line NumPy generator."""
    if "x" in vector:
        return np.array([float.fromhex(x) for x in vector["x"]]).astype(vector["dtype"])
    names = {name: getattr(np, name) for name in ("arange", "zeros", "float32", "float64")}
    return eval(vector["generator"], {"__builtins__": {}}, names)


@pytest.mark.parametrize("k", range(len(VECTORS)))
def test_vectors(k):
    vector = VECTORS[k]
    x = values(vector)
    weights, log_norm, ess = pfkit.log_normalize(x, lse="int")
    assert float(log_norm).hex() == float.fromhex(vector["log_norm"]).hex()
    assert float(ess).hex() == float.fromhex(vector["ess"]).hex()
    expected = np.array(float.fromhex(vector["log_norm"])).astype(x.dtype)  # 16-bit input: one more rounding
    assert pfkit.logsumexp(x, lse="int") == expected
    if "W" in vector:
        assert [float(w).hex() for w in weights] == [float.fromhex(w).hex() for w in vector["W"]]
    if x.dtype != np.float16:
        ints = _cpu.normalize(x, "int")[3]
        assert sum(map(int, ints)) == int(vector["sum"])
        if "weights" in vector:
            assert ints.tolist() == vector["weights"]


def test_there_are_vectors_of_each_dtype():
    assert {v["dtype"] for v in VECTORS} == {"float16", "float32", "float64"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 63, 64, 65, 1000, 4097])
def test_random_inputs_against_the_definition(reference, dtype, n):
    rng = np.random.default_rng(n)
    for spread in (0.01, 1.0, 20.0, 300.0):
        x = (rng.normal(size=n) * spread + rng.normal() * 1000).astype(dtype)
        x[rng.random(n) < 0.1] = -np.inf
        assert pfkit.logsumexp(x, lse="int") == reference.logsumexp_int(x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_fraction_of_the_exponent(reference, dtype):
    """All 65536 fractions beside a maximum of 0: single ones overflow careless 16-bit arithmetic."""
    fractions = (-np.arange(65536) * np.log(2.0) / 65536).astype(dtype)
    pairs = np.stack([np.zeros_like(fractions), fractions], axis=1)
    computed = pfkit.logsumexp(pairs, axis=1, lse="int")
    index = reference.exponent_index(fractions, fractions.dtype.type(0))
    assert len(np.unique(index)) > 65500
    weights = reference.weights64(index).tolist()
    expected = [reference.log_total((1 << 52) + w, 0.0, dtype) for w in weights]
    assert computed.tolist() == [float(e) for e in expected]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_permutations_and_strides(dtype):
    rng = np.random.default_rng(1)
    x = (rng.normal(size=5003) * 30).astype(dtype)
    once, normal = pfkit.logsumexp(x, lse="int"), pfkit.log_normalize(x, lse="int")
    for _ in range(20):
        order = rng.permutation(x.size)
        assert pfkit.logsumexp(x[order], lse="int") == once
        shuffled = pfkit.log_normalize(x[order], lse="int")
        assert (shuffled.log_norm, shuffled.ess) == (normal.log_norm, normal.ess)
        assert (shuffled.weights == normal.weights[order]).all()
    wide = np.zeros((x.size, 3), dtype)
    wide[:, 1] = x
    assert pfkit.logsumexp(wide[:, 1], lse="int") == once
    assert pfkit.logsumexp(x[::-1], lse="int") == once


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_sums_do_depend_on_the_order(dtype):
    """Why "int" exists: the same permutations change the last bits of a float sum."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=5003) * 3).astype(dtype)
    m = x.max()
    totals = {float(np.exp(x[rng.permutation(x.size)] - m).cumsum()[-1]) for _ in range(50)}
    assert len(totals) > 1
    assert len({float(pfkit.logsumexp(x[rng.permutation(x.size)], lse="int")) for _ in range(50)}) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [5, 64, 1000, 4096])
def test_chunk_sizes(dtype, size):
    rng = np.random.default_rng(2)
    x = (rng.normal(size=5000) * 10).astype(dtype)
    once = pfkit.logsumexp(x, lse="int")
    chunks = [x[k : k + size] for k in range(0, x.size, size)]
    for _ in range(3):
        state = pfkit.LSEState.empty((), "int", dtype=dtype, reference=x.max())
        for k in rng.permutation(len(chunks)):
            state.update(chunks[k])
        assert state.value() == once


def test_sums_beyond_64_bits():
    """4096 equal terms fill 64 bits: 2**52 each."""
    for n in (4095, 4096, 4097, 10_000, 1 << 17):
        expected = np.log(np.longdouble(n))
        value = pfkit.logsumexp(np.zeros(n), lse="int")
        assert abs(float(value - expected)) <= 4e-15
    assert pfkit.logsumexp(np.full(1 << 14, 3.0), lse="int") == 3.0 + 14 * 0.6931471805599453


PROGRAM = """
import hashlib, numpy as np, pfkit
from pfkit_ext import _cpu
rng = np.random.default_rng(3)
seen = hashlib.sha256()
for dtype in ("float32", "float64"):
    for n in [*range(1, 70), 1000, 4096, 4099, 100_003]:
        for spread in (0.1, 5.0, 200.0):
            x = (rng.normal(size=n) * spread).astype(dtype)
            x[rng.random(n) < 0.05] = -np.inf
            w, log_norm, ess, ints = _cpu.normalize(x, "int")
            for part in (pfkit.logsumexp(x, lse="int"), w, np.float64(log_norm), np.float64(ess), ints):
                seen.update(part.tobytes())
print(seen.hexdigest())
"""


def test_simd_levels_give_the_same_bits(at_every_level):
    digests = at_every_level(PROGRAM)
    assert len(set(digests.values())) == 1, digests
