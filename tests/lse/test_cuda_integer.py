"""The integer arithmetic of the CUDA kernels, compiled for the CPU and compared with the CPU kernel bit for
bit.

``integer.cuh`` holds pure functions; the few CUDA intrinsics it uses are given here as plain C++.
"""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

import pfkit
from pfkit.lse.cuda import SOURCES
from pfkit_ext import _cpu

SHIM = r"""
#include <cmath>
#include <cstring>
#include <cstdint>
#define __device__
#define __forceinline__ inline
#define __noinline__
typedef unsigned int u32; typedef unsigned short u16; typedef unsigned long long u64; typedef long long i64;
template <class T, class F> static T bits(F f) {
  T t;
  memcpy(&t, &f, sizeof t);
  return t;
}
static float __fsub_rn(float a, float b) { return a - b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static double __dsub_rn(double a, double b) { return a - b; }
static double __dmul_rn(double a, double b) { return a * b; }
static double __dadd_rn(double a, double b) { return a + b; }
static u32 __float_as_uint(float f) { return bits<u32>(f); }
static float __uint_as_float(u32 u) { return bits<float>(u); }
static i64 __double_as_longlong(double d) { return bits<i64>(d); }
static u64 __float2ull_rz(float f) { return (u64)f; }
static u64 __umul64hi(u64 a, u64 b) { return (unsigned __int128)a * b >> 64; }
static i64 __mul64hi(i64 a, i64 b) { return (__int128)a * b >> 64; }
static int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static int __clzll(i64 x) { return x ? __builtin_clzll(x) : 64; }
using namespace std;
#include "integer.cuh"
extern "C" {
void all_weights(u64 *by_shift, u64 *by_float) {
  for (u32 i = 0; i <= 64 * 65536; ++i) {
    by_shift[i] = weight64(i);
    by_float[i] = weight_of_bits(0x40000000u + i);
  }
}
void sum32(const float *x, long n, float m, u64 *out) {
  Total t{0, 0}; for (long i = 0; i < n; ++i) add(t, weight_at(x[i], m)); to_128(t, out[0], out[1]);
}
void sum64(const double *x, long n, double m, u64 *out) {
  Total t{0, 0}; for (long i = 0; i < n; ++i) add(t, weight_at(x[i], m)); to_128(t, out[0], out[1]);
}
double value(u64 hi, u64 lo, double m) { return value_of(Total{hi << 32 | lo >> 32, lo & 0xffffffffull}, m); }
double as_double(u64 hi, u64 lo) { return total_as_double(Total{hi << 32 | lo >> 32, lo & 0xffffffffull}); }
long differing_logs(u64 seed, long n) {
  long bad = 0;
  for (long k = 0; k < n; ++k) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    u64 y = (seed ^ seed >> 29) | 1ull << 63;
    bad += log2_fraction(y) != log2_by_squaring(y);
  }
  return bad;
}
long differing_near(const u64 *y, long n) {
  long bad = 0;
  for (long k = 0; k < n; ++k) bad += log2_fraction(y[k]) != log2_by_squaring(y[k]);
  return bad;
}
u64 table(int j, int which) { return which ? LOG2_TABLE[j].log2 : LOG2_TABLE[j].reciprocal; }
}
"""
u64 = ctypes.c_uint64


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler to run the device code on the CPU")
    folder = tmp_path_factory.mktemp("integer")
    (folder / "shim.cpp").write_text(SHIM)
    library = folder / "shim.so"
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{SOURCES}"]
    subprocess.run([compiler, *flags, str(folder / "shim.cpp"), "-o", str(library)], check=True)
    lib = ctypes.CDLL(str(library))
    lib.sum32.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_void_p]
    lib.sum64.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_double, ctypes.c_void_p]
    lib.value.argtypes, lib.value.restype = [u64, u64, ctypes.c_double], ctypes.c_double
    lib.as_double.argtypes, lib.as_double.restype = [u64, u64], ctypes.c_double
    lib.differing_logs.argtypes, lib.differing_logs.restype = [u64, ctypes.c_long], ctypes.c_long
    lib.differing_near.argtypes, lib.differing_near.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_long
    lib.table.restype = u64
    return lib


def test_both_forms_of_a_weight_agree_at_every_exponent(device):
    shifts, floats = np.zeros(64 * 65536 + 1, np.uint64), np.zeros(64 * 65536 + 1, np.uint64)
    device.all_weights(shifts.ctypes.data_as(ctypes.c_void_p), floats.ctypes.data_as(ctypes.c_void_p))
    assert shifts[0] == 1 << 52 and shifts[-1] == 0
    assert np.array_equal(shifts, floats)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 30.0, 1e4, 1e30])
def test_totals_have_the_bits_of_the_cpu_kernel(device, dtype, spread):
    rng = np.random.default_rng(3)
    x = (rng.normal(size=5000) * spread).astype(dtype)
    x[::97] = -np.inf
    m = x.max()
    got = np.zeros(2, np.uint64)
    (device.sum32 if dtype == np.float32 else device.sum64)(x.ctypes.data, x.size, m, got.ctypes.data)
    hi, lo = _cpu.int_state_rows(x[None], m[None])
    assert (got[0], got[1]) == (hi[0], lo[0])
    value = device.value(int(got[0]), int(got[1]), float(m))
    assert dtype(value) == pfkit.logsumexp(x, lse="int")


def totals():
    rng = np.random.default_rng(5)
    for e in range(95):  # 2^43 terms
        yield from (t for t in ((1 << e) - 1, 1 << e, (1 << e) + 1) if t > 0)
        yield int.from_bytes(rng.bytes(16), "little") >> (127 - e)


def test_logarithms_of_totals_have_the_bits_of_the_cpu_kernel(device):
    for total in filter(None, totals()):
        hi, lo = total >> 64, total & (2**64 - 1)
        assert device.value(hi, lo, -3.25) == _cpu.int_log_total(hi, lo, -3.25, np.float64), total
        assert device.as_double(hi, lo) == float(total)


def test_the_fast_logarithm_never_differs_from_the_squarings(device):
    assert device.differing_logs(12345, 300_000) == 0


def test_nor_right_at_the_steps_of_the_result(device):
    """The leading 64 bits nearest 2^(k / 2^48), where the logarithm passes a step, and their neighbours."""
    mp = pytest.importorskip("mpmath").mp
    rng = np.random.default_rng(8)
    near = []
    with mp.workprec(140):
        for k in (0, 1, 2, 2**48 - 1, *rng.integers(0, 2**48, 1500).tolist()):
            y = int(mp.nint(mp.mpf(2) ** (mp.mpf(k) / 2**48 + 63)))
            near += [y + d for d in range(-6, 7) if 2**63 <= y + d < 2**64]
    values = np.array(near, np.uint64)
    assert device.differing_near(values.ctypes.data, len(values)) == 0


def test_the_table_of_the_logarithm(device):
    mp = pytest.importorskip("mpmath").mp
    with mp.workprec(200):
        for j in range(128):
            c = int(mp.nint(mp.mpf(512) / (1 + (j + mp.mpf(1) / 2) / 128)))
            assert device.table(j, 0) == c
            assert device.table(j, 1) == int(mp.nint(-mp.log(mp.mpf(c) / 512, 2) * 2**64))
