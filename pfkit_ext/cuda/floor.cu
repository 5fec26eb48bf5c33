// The floors a benchmark divides by: reading everything once, and the arithmetic of a kernel without the
// memory.
#include "common.cuh"
#include "integer.cuh"

// Reads `n` elements of every row and keeps them from being optimised away. Writes nothing for real data.
template <int THREADS, int V>
__device__ __forceinline__ void read_rows(const Args& a) {
  Window w = window(a.in + row_offset(a, blockIdx.x), a.n);
  Range slice = range_of(w.vectors, blockIdx.y, a.splits);
  u32 seen = 0;
  for (i64 at = slice.begin + threadIdx.x; at < slice.end; at += THREADS * V) {
    uint4 v[V];
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = load_or_nothing(w, at + k * THREADS, slice.end);
#pragma unroll
    for (int k = 0; k < V; ++k) seen |= v[k].x & v[k].y & v[k].z & v[k].w;
  }
  let_next_kernel_start();
  if (seen == 0x5eed5eedu && a.out) ((u32*)a.out)[0] = seen;
}

// The integer weights of as many terms as the rows hold, from registers.
template <int THREADS>
__device__ __forceinline__ void weigh_rows(const Args& a) {
  i64 count = a.n / THREADS;
  C x = to_compute(a.in[threadIdx.x]);
  u64 sum = 0;
  for (i64 i = 0; i < count; ++i) {
    sum += weight_at(x, (C)64);
    x -= (C)0x1p-6;
  }
  let_next_kernel_start();
  if (sum == 1 && a.out) ((u64*)a.out)[0] = sum;
}

PFKIT_DEFINE_ENTRY
