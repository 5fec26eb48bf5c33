// Sums of powers of two by shifts and adds, for kernels whose terms lie in registers.
//
// A number is its distance below a reference in octaves: Q16.16, or Q10.6 in a tree of eight. One pair a <= b
// with b - a = I + F, I the integer part rounded up, becomes a - f - c(f), f = (1 + F) 2^-I as in pairwise.cu:
// f + c(f) is one multiply-add and one shift in eight segments, off by 0.0056 octaves at most. In Q10.6,
// log2(1 + 2^-d) is a table.

constexpr float OCTAVES = 64;  // everything farther below counts as this far

__constant__ int2 PAIR_SEGMENTS[9] = {  // f + c(f) = (x + y f) >> 14 for segment f >> 13
    {0, 16384 + 5591},
    {(2580 << 14) - 3541 * (1 << 13), 16384 + 3541},
    {(4588 << 14) + 1333 * (2 << 13), 16384 - 1333},
    {(3899 << 14) - 3044 * (3 << 13), 16384 + 3044},
    {(5528 << 14) + 4819 * (4 << 13), 16384 - 4819},
    {(3116 << 14) + 3492 * (5 << 13), 16384 - 3492},
    {(1369 << 14) + 2116 * (6 << 13), 16384 - 2116},
    {(310 << 14) + 709 * (7 << 13), 16384 - 709},
    {0, 16384}};

__shared__ int2 pair_segments[9];
__shared__ unsigned char pair_steps[512];  // 64 log2(1 + 2^(-d / 64))

template <int THREADS, bool TENTH = true>
__device__ __forceinline__ void fill_pairs() {
  if (threadIdx.x < 9) pair_segments[threadIdx.x] = PAIR_SEGMENTS[threadIdx.x];
  if (!TENTH) return;
  for (int d = threadIdx.x; d < 512; d += THREADS)
    pair_steps[d] = (unsigned char)(int)rintf(64.0f * log2f(1.0f + exp2f((float)d * -0x1p-6f)));
}

__device__ __forceinline__ int pair(int a, int b) {  // Q16.16
  const int low = min(a, b), minus = low - max(a, b);
  const u32 f = __float2uint_rz(__uint_as_float(0x47800000u + 128u * (u32)minus));  // 2^16 (1 + F) 2^-I
  const int2 s = pair_segments[f >> 13];
  return low - ((s.x + s.y * (int)f) >> 14);
}

__device__ __forceinline__ int pair_tenth(int a, int b) {  // Q10.6
  const int low = min(a, b), d = max(a, b) - low;
  return low - pair_steps[min(d, 511)];
}

// A distance below the reference, as an integer plus a constant that pairs leave alone; `unit` makes OCTAVES octaves
// of it 1. Saturation clamps, adding converts.
template <bool TENTH>
__device__ __forceinline__ int distance(float below, float unit) {
  return __float_as_int(saturating_product(below, unit) + (TENTH ? 2048.0f : 2.0f));
}

// The log-sum of COUNT distances (a power of two) in Q16.16, as a binary tree; leaf(i) with a constant i.
template <int COUNT, bool TENTH, class Leaf>
__device__ __forceinline__ int tree_of(Leaf leaf) {
  int level[8], p;  // level[k]: a finished subtree of 2^k distances
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    p = leaf(i);
    int k = 0;
#pragma unroll
    for (; (i >> k) & 1; ++k) p = TENTH ? pair_tenth(level[k], p) : pair(level[k], p);
    level[k] = p;
  }
  return TENTH ? (p - 0x45000000) << 10 : p - 0x40000000;  // the bits of distance 0
}
