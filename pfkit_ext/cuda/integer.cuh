// The arithmetic of the integer kernel "int", bit for bit as the CPU kernel and the NumPy reference define it.
//
// Weights have scale 2^52 (the maximum weighs 2^52); a sum of them is exact, so it has no order. This file
// holds pure functions only and compiles as C++ too: a test runs them on the CPU against the reference.
//
// Every float operation here is one IEEE operation, never contracted to an FMA.

#ifdef __CUDACC__
#define PFKIT_TABLE __device__ const
#else
#define PFKIT_TABLE static const
#endif
#include "log2_table.cuh"
#ifdef __CUDACC__
__shared__ Log2Entry log2_table[128];  // a copy on chip
#else
#define log2_table LOG2_TABLE
#endif

#ifndef __CUDACC__
__device__ __forceinline__ float saturating_product(float a, float b) {  // as in ptx.cuh
  float c = a * b;
  return c > 0 ? (c < 1 ? c : 1.0f) : 0.0f;
}
#endif

// ---- x -> Q16.16 index i >= 0 of -(x - m) log2 e, half to even --------------------------------------------
// Adding 2^23 (2^52) leaves the rounded integer in the low bits of the sum: no conversion unit is needed.
__device__ __forceinline__ u32 exponent_index(float x, float m) {
  float v = fminf(__fmul_rn(__fsub_rn(x, m), -94548.4609375f), 4194304.0f);
  return __float_as_uint(__fadd_rn(v, 8388608.0f)) - 0x4b000000u;
}

__device__ __forceinline__ u32 exponent_index(double x, double m) {
  double v = fmin(__dmul_rn(__dsub_rn(x, m), -94548.4621996991), 4194304.0);
  return (u32)(u64)__double_as_longlong(__dadd_rn(v, 4503599627370496.0));
}

// 2^20 - 8 D(F), about 2^20 * 2^-f for f = F / 65536: the mantissa of a weight, exact at F = 0. The two
// subtractions of floors are folded into the constants: 3030 - floor(439 F / 2^16), negated, is an arithmetic
// shift of one product.
__device__ __forceinline__ u32 mantissa(u32 i) {
  u32 f = i & 0xffffu;
  u32 p = (f * (65536u - f)) >> 16;
  int e = (int)(f * 439u - (3030u << 16)) >> 16;                       // floor(439 F / 2^16) - 3030, negative
  u32 h = (u32)((int)((12650u << 16) + 0xffffu) + (int)f * e) >> 16;   // 12650 - floor(F (3030 - ..) / 2^16)
  u32 d = f + ((p * h + 0x4000u) >> 15);
  return (1u << 20) - 8u * d;
}

__device__ __forceinline__ u64 weight64(u32 i) {  // 0 <= i <= 64 * 65536
  u64 w = (u64)mantissa(i) << 32;
#ifdef __CUDA_ARCH__
  asm("shr.u64 %0, %0, %1;" : "+l"(w) : "r"(i >> 16));  // a shift by 64 gives 0
  return w;
#else
  return i >> 16 > 63 ? 0 : w >> (i >> 16);
#endif
}

// The same weights with fewer instructions, for float32 differences. The index is scaled by 2^-22, so that a
// saturating multiplication is the clamp at 64, and an addition of 2 leaves it in the low bits: b = 2^30 + i.
// A weight 2^(52 - s) (1 - D / 2^17) is then the float whose bits are 0x59800000 - 128 (b + D - F), its
// exponent counting s down by itself; one conversion to an integer truncates it as the shift does. Signs are
// arranged so that every floor of a product is one multiply-add and one shift.
__device__ __forceinline__ u64 weight_of_bits(u32 b) {
  u32 f = b & 0xffffu;
  int p = (int)(f * f + (0xffffu - (b << 16))) >> 16;                  // -floor(F (65536 - F) / 2^16)
  u32 e = (((3030u << 16) + 0xffffu) - f * 439u) >> 16;                // 3030 - floor(439 F / 2^16)
  int h = (int)(f * e - (12650u << 16)) >> 16;                         // floor(F e / 2^16) - 12650
  u32 t = b + ((u32)(p * h + 0x4000) >> 15);                           // b + D - F
  return __float2ull_rz(__uint_as_float(0x59800000u - 128u * t));
}

__device__ __forceinline__ u64 weight_at(float x, float m) {
  float v = saturating_product(__fsub_rn(x, m), -0x1.715476p-6f);       // -65536 log2 e / 2^22
  return weight_of_bits(__float_as_uint(__fadd_rn(v, 2.0f)));
}

__device__ __forceinline__ u64 weight_at(double x, double m) {
  return weight_of_bits(0x40000000u + exponent_index(x, m));
}

// ---- a sum of weights: low and high 32-bit halves added apart, no carry to pass on ------------------------
struct Total { u64 hi, lo; };  // hi * 2^32 + lo

__device__ __forceinline__ void add(Total& t, u64 weights) {
  t.hi += weights >> 32;
  t.lo += weights & 0xffffffffull;
}

__device__ __forceinline__ Total plus(Total a, Total b) { return Total{a.hi + b.hi, a.lo + b.lo}; }

__device__ __forceinline__ void to_128(Total t, u64& hi, u64& lo) {
  u64 low = t.hi << 32;
  lo = low + t.lo;
  hi = (t.hi >> 32) + (lo < low);
}

__device__ __forceinline__ double total_as_double(Total t) {  // rounded once
  u64 hi, lo;
  to_128(t, hi, lo);
  if (!hi) return (double)lo;
  int shift = 64 - __clzll(hi);                                  // keep 64 bits and a sticky one
  u64 top = shift == 64 ? hi : (hi << (64 - shift)) | (lo >> shift);
  u64 rest = shift == 64 ? lo : lo << (64 - shift);
  return ldexp((double)(top | (rest != 0)), shift);
}

// ---- log2 of a total in Q7.48 -----------------------------------------------------------------------------
__device__ __noinline__ u64 log2_by_squaring(u64 y) {  // y: leading 64 bits; the 48 fraction bits of log2
  u64 out = 0;
#pragma unroll 1
  for (int k = 47; k >= 0; --k) {
    u64 hi = __umul64hi(y, y), lo = y * y;
    u64 top = hi >> 63;                      // y * y >> 127: did the square pass 2?
    y = top ? hi : (hi << 1) | (lo >> 63);
    out |= top << k;
  }
  return out;
}

// The same bits, faster: y = (1 + r) / c with c from a table, the series of log2(1 + r) to r^9, in Q64. That is
// at most 2.4 units below the logarithm and 1.3 above; the squarings, which truncate, end up to 2.9 units below
// it. So they decide only from 3 units below a step to 7 above: for one total in 6500.
__device__ __forceinline__ u64 log2_fraction(u64 y) {
  int j = (int)(y >> 56) & 127;
  Log2Entry entry = log2_table[j];
  u64 c = entry.reciprocal;                  // Q9, about 512 / (1 + (j + 1/2) / 128)
  u64 hi = __umul64hi(y, c), lo = y * c;     // y c in Q72
  i64 r = (i64)((hi - 256u) << 62 | lo >> 2);  // Q70, |r| < 2^-7
  // -2^64 x^2 (1/2 - x/3 + x^2/4 - .. - x^7/9) / ln 2 for x = r 2^-70, with the powers of 2 in the constants;
  // any rounding will do: it is below 2^-66
  double x = (double)r, x2 = x * x;
  double s01 = x * 0x1.ec709dc3a03fdp-148 - 0x1.71547652b82fep-77;
  double s23 = x * 0x1.2776c50ef9bfep-288 - 0x1.71547652b82fep-218;
  double s45 = x * 0x1.a61762a7aded9p-429 - 0x1.ec709dc3a03fdp-359;
  double s67 = x * 0x1.484b13d7c02a9p-569 - 0x1.71547652b82fep-499;
  double s = (s67 * x2 + s45) * (x2 * x2) + (s23 * x2 + s01);
  i64 rest = (i64)rint(x2 * s);
  u64 f = entry.log2 + (u64)(__mul64hi(r, 0x5c551d94ae0bf85ell) >> 4) + (u64)rest;
  if ((y << 1) == 0) return 0;               // a power of 2: every row of one term
  return (((u32)f + 3u) & 65535u) < 10u ? log2_by_squaring(y) : f >> 16;
}

// log2 of hi * 2^64 + lo > 0, minus 52, times 2^48: the exponent of the sum at scale 2^52.
__device__ __noinline__ i64 log2_of_128_bits(u64 hi, u64 lo) {
  int e = hi ? 127 - __clzll((i64)hi) : 63 - __clzll((i64)lo);
  u64 y = e <= 63 ? lo << (63 - e) : e == 127 ? hi : (hi << (127 - e)) | (lo >> (e - 63));
  return ((i64)(e - 52) << 48) + (i64)log2_fraction(y);
}

__device__ __forceinline__ i64 log2_total(u64 hi, u64 lo) {
  if (hi || !(lo >> 32)) return log2_of_128_bits(hi, lo);
  int zeros = __clz((int)(lo >> 32));  // most totals: short code, which a short row waits for
  return ((i64)(11 - zeros) << 48) + (i64)log2_fraction(lo << zeros);
}

__device__ __forceinline__ double value_of(Total t, double m) {  // m + ln(T / 2^52), nats; T > 0
  u64 hi, lo;
  to_128(t, hi, lo);
  return __dadd_rn(m, __dmul_rn((double)log2_total(hi, lo), 0x1.62e42fefa39efp-49));  // ln 2 / 2^48
}
