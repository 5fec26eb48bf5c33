// The online softmax normaliser, shared by the float kernels: the state (m, s) of a set of terms, fixed trees
// over lanes and threads, and the value m + log s.
//
// m is the largest term seen, held within the finite range (-FLT_MAX for nothing seen or -inf alone, FLT_MAX
// under +inf), s the sum of exp(x - m). No -inf - -inf can form: an empty set sums to 0, +inf gives s = inf, NaN
// makes s NaN. Milakov & Gimelshein 2018, arXiv:1805.02867.
#include "common.cuh"

#if PFKIT_DTYPE == 0
// exp to 0.8 ulp without the special-function unit, for short rows, where one term's error shows: 2^k 2^f,
// |f| <= 1/2, 2^f by a minimax polynomial (relative error 1.6e-8). x <= 0, or +inf or NaN.
__device__ __forceinline__ C expo_exact(C x) {
  float t = fmax(x, -100.0f);
  float whole = fmaf(t, (float)LOG2E, 12582912.0f), k = whole - 12582912.0f;  // the low bits hold k
  float f = fmaf(t, (float)LOG2E, -k);
  f = fmaf(t, 0x1.4ae0cp-26f, f);  // log2 e - (float) log2 e
  float p = 0x1.41fbbcp-13f;
  p = fmaf(p, f, 0x1.5f3e54p-10f);
  p = fmaf(p, f, 0x1.3b2d4cp-7f);
  p = fmaf(p, f, 0x1.c6aee8p-5f);
  p = fmaf(p, f, 0x1.ebfbdcp-3f);
  p = fmaf(p, f, 0x1.62e43p-1f);
  p = fmaf(p, f, 1.0f);
  float scaled = __int_as_float(__float_as_int(p) + (__float_as_int(whole) << 23));
  return x > -87.0f && x <= 0 ? scaled : x <= -87.0f ? 0.0f : x;  // NaN and +inf stay
}
#else
__device__ __forceinline__ C expo_exact(C t) { return expo(t); }
#endif

struct State { C m, s; };

__device__ __forceinline__ State nothing() { return State{-LARGEST, 0}; }

#if PFKIT_DTYPE >= 2 && __CUDA_ARCH__ >= 800
__device__ __forceinline__ u32 larger_pair(u32 a, u32 b) {
  u32 c;
#if PFKIT_DTYPE == 2
  asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
#else
  asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
#endif
  return c;
}
#endif

template <int V>
__device__ __forceinline__ C largest_of(const uint4 (&v)[V]) {
#if PFKIT_DTYPE >= 2 && __CUDA_ARCH__ >= 800
  u32 w = larger_pair(larger_pair(v[0].x, v[0].y), larger_pair(v[0].z, v[0].w));
#pragma unroll
  for (int k = 1; k < V; ++k)
    w = larger_pair(w, larger_pair(larger_pair(v[k].x, v[k].y), larger_pair(v[k].z, v[k].w)));
  uint4 both = make_uint4(w, w, w, w);
  return fmax(element(both, 0), element(both, 1));
#else
  C m[V];
#pragma unroll
  for (int k = 0; k < V; ++k) {
    m[k] = element(v[k], 0);
#pragma unroll
    for (int j = 1; j < E; ++j) m[k] = fmax(m[k], element(v[k], j));
  }
#pragma unroll
  for (int k = 1; k < V; ++k) m[0] = fmax(m[0], m[k]);
  return m[0];
#endif
}

// ---- trees ------------------------------------------------------------------------------------------------
template <int LANES>
__device__ __forceinline__ State reduce_lanes(State a) {
  C m = largest_lane<LANES, false>(a.m);
  a.s *= expo(a.m - m);
  a.m = m;
#pragma unroll
  for (int d = LANES / 2; d; d /= 2) a.s += __shfl_xor_sync(0xffffffffu, a.s, d);
  return a;
}

template <int THREADS>
__device__ __forceinline__ State reduce_block(State a) {
  return join_block<THREADS>(a, [](State x, auto lanes) { return reduce_lanes<lanes.count>(x); });
}

// s + x, and in `lost` what the roundings of such additions have cost (two-sum, Knuth 1969).
__device__ __forceinline__ void add_exactly(C& s, C& lost, C x) {
  C sum = s + x, part = sum - s;
  lost += (s - (sum - part)) + (x - part);
  s = sum;
}

#if PFKIT_DTYPE == 1
__device__ __forceinline__ C value_of(State r, C lost) { return r.m + log(r.s); }
#else
// ln s = k ln 2 + f + the returned rest, for 0 < s < inf: s = 2^k (1 + f), |f| <= 1/3; ln(1 + f) = f + f^2 q(f),
// a minimax q (error 1.3e-9).
__device__ __forceinline__ float log_parts(float s, float& k, float& f) {
  u32 bits = __float_as_uint(s), scale = (bits - 0x3f2aaaabu) & 0xff800000u;
  f = __uint_as_float(bits - scale) - 1.0f;
  k = (float)((int)scale >> 23);
  float q = -0x1.151e34p-3f;
  q = q * f + 0x1.23059cp-3f;
  q = q * f - 0x1.ec1a90p-4f;
  q = q * f + 0x1.1dc898p-3f;
  q = q * f - 0x1.55eedep-3f;
  q = q * f + 0x1.99e36cp-3f;
  q = q * f - 0x1.fffc12p-3f;
  q = q * f + 0x1.5554d2p-2f;
  q = q * f - 0x1.000002p-1f;
  return f * f * q;
}

// m + ln s in float32, one rounding and 0.1 ulp: the leading part of k ln 2 is exact and joins m by an error-free
// addition.
__device__ __forceinline__ C value_of(State r, C lost) {  // s + lost is the sum
  if (!(r.s > 0 && r.s < INFINITE)) return r.s == 0 ? -INFINITE : r.s;
  float k, f, end = log_parts(r.s, k, f);
  float rest = (k * 0x1.7f7d1cp-20f + end) + (f + __fdividef(lost, r.s));  // ln 2 - 0x1.62e4p-1
  float whole = k * 0x1.62e4p-1f, sum = r.m + whole, back = sum - r.m;
  return sum + (((r.m - (sum - back)) + (whole - back)) + rest);
}
#endif
