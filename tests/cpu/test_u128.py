"""128-bit arithmetic: the struct twin of compilers without __int128 gives what the native type does."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "pfkit_ext" / "cpu"
MASK = (1 << 128) - 1
CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_and_run(tmp_path, name, *flags):
    program = tmp_path / name
    source = str(HERE / "u128_check.c")
    command = [CC, "-std=c11", "-O1", *flags, f"-I{INCLUDE}", source, "-o", str(program), "-lm"]
    subprocess.run(command, check=True)
    return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(CC is None, reason="no C compiler on PATH to build the comparison program")
def test_the_portable_twin_equals_the_native_type(tmp_path):
    native = build_and_run(tmp_path, "native")
    twin = build_and_run(tmp_path, "twin", "-DPF_U128_PORTABLE")
    assert len(native.splitlines()) > 30000
    assert native == twin


def operands():
    """The stream of u128_check.c, in Python integers."""
    state, full = 0x9E3779B97F4A7C15, (1 << 64) - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & full
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & full
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & full
        z ^= z >> 31
        if (z >> 6) % 8 == 0:
            yield full if z & 1 else 0
        else:
            yield z >> (z & 63)


@pytest.mark.skipif(CC is None, reason="no C compiler on PATH to build the comparison program")
def test_every_operation_against_python_integers(tmp_path):
    lines = iter(build_and_run(tmp_path, "check", "-DPF_U128_PORTABLE").splitlines())
    draw = operands()
    for _ in range(4000):
        w = [next(draw) for _ in range(6)]
        a, b, c, k = (w[0] << 64) | w[1], (w[2] << 64) | w[3], w[4], w[5] % 130
        want = [
            (a + b) & MASK,
            (a - b) & MASK,
            (a + c) & MASK,
            (a & ((1 << 64) - 1)) * c,
            (a * c) & MASK,
            (a << k) & MASK,
            a >> k,
        ]
        assert [int(next(lines), 16) for _ in want] == want
        less, bits, zero, rounded = next(lines).split()
        assert (int(less), int(bits), int(zero)) == (a < b, a.bit_length(), a == 0)
        assert float.fromhex(rounded) == float(a)
        if b:
            assert (int(next(lines), 16), int(next(lines), 16)) == divmod(a, b)
        top, low = next(lines).split()
        assert (int(top, 16) << 128) | int(low, 16) == ((c << 128) + a + b) & ((1 << 192) - 1)
    assert next(lines, None) is None
