// Shared by the kernels of linear cross-entropy: rows of a chunk of logits, and what a product becomes before
// it is a logit.
//
// A chunk holds columns [first, first + columns) of the logits, row-major; every row starts on a 16-byte
// boundary (ld is a multiple of a vector) and may end anywhere. One warp works on one row.
#include "common.cuh"

// tanh to about 3e-7 in absolute terms, from one exponential and one division.
__device__ __forceinline__ float tanh_of(float x) {
  float e = expo(-2.0f * fabsf(x)), t = __fdividef(1.0f - e, 1.0f + e);
  return copysignf(t, x);
}

// What turns a product into a logit: + bias, then scale cap tanh(. / cap), or scale times it. A bias of -inf
// closes its column: no cap lifts it.
struct Shape {
  const float* bias;  // of the chunk's first column, or null
  float cap;          // 0: none
  float scale;
};

__device__ __forceinline__ float logit_of(float x, i64 column, const Shape& s) {
  if (s.bias) {
    x += s.bias[column];
    if (s.bias[column] == -INFINITE) return x;
  }
  return s.scale * (s.cap > 0 ? s.cap * tanh_of(x / s.cap) : x);
}

__device__ __forceinline__ float warp_sum(float s) {
#pragma unroll
  for (int d = 16; d; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
  return s;
}
