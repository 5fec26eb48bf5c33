// A sum layer with the log-sum-exp kernel inside: y[r, i, b] = LSE_j (log W[r, i, j] + x[r, j, b]), no term
// ever in memory.
//
// A block computes ROWS outputs of one region for COLUMNS columns. It finds the largest x of each column and
// the largest weight of each of its rows first, so all terms are relative to both and none is above 0; a
// thread then walks j for EACH outputs of one column. PFKIT_MODE says how terms are added:
//   0 "fuse"          2^t in float32, one exponential a term
//   1 "int"           the integer weights and sums of integer.cuh, relative to the largest term itself
//   2 "int-pairwise"  distances in Q16.16 octaves, pairs, eight terms a tree, trees one after the other
//   3 "fuse16"        float16 terms, two exponentials at once, float16 sums of eight, float32 beyond
//   4 "int16"         trees of Q10.6 distances, joined in Q16.16
// The maxima stay float32 in every mode.
#define PFKIT_DTYPE 0
#include "common.cuh"
#include "integer.cuh"
#include "pairs.cuh"

constexpr int ROWS = 32, COLUMNS = 64, STEP = 32, EACH = 8;
constexpr int THREADS = PFKIT_THREADS;
static_assert(THREADS == ROWS / EACH * COLUMNS, "a thread an output column");
constexpr float LN2 = 0.693147180559945309f;
constexpr float LEAST = -1e30f;  // stands for -inf where a difference is taken

struct LayerArgs {
  const float* weight;  // (regions, outputs, terms)
  const float* x;       // (regions, terms, batch)
  float* y;             // (regions, outputs, batch)
  void* unused[5];
  i64 regions, outputs, terms, batch;
};

struct Tile {
  float x[STEP][COLUMNS];     // log2, below the column's maximum; two float16 a word under "fuse16"
  float w[STEP][ROWS];        // log2, below the row's maximum
  float column[COLUMNS];      // maximum of x, nats
  float row[ROWS];            // log2 of the largest weight
  float part[THREADS / COLUMNS][COLUMNS];
};

__device__ __forceinline__ u32 add_halves(u32 a, u32 b) {
  u32 v;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}

__device__ __forceinline__ u32 exp2_halves(u32 a) {
  u32 v;
  asm("ex2.approx.f16x2 %0, %1;" : "=r"(v) : "r"(a));
  return v;
}

// The terms of a chunk, as one thread sees them.
__device__ __forceinline__ void fill(Tile& tile, const LayerArgs& a, const float* weight, const float* x,
                                     i64 first, i64 i0, i64 b0) {
  __syncthreads();
  for (int at = threadIdx.x; at < STEP * COLUMNS; at += THREADS) {
    const int j = at / COLUMNS, b = at % COLUMNS;
    float v = -INFINITE;
    if (first + j < a.terms && b0 + b < a.batch)
      v = (x[(first + j) * a.batch + b0 + b] - tile.column[b]) * (float)LOG2E;
    tile.x[j][b] = v;
  }
  for (int at = threadIdx.x; at < STEP * ROWS; at += THREADS) {
    const int i = at / STEP, j = at % STEP;
    float v = -INFINITE;
    if (first + j < a.terms && i0 + i < a.outputs)
      v = log2_fast(weight[(i0 + i) * a.terms + first + j]) - tile.row[i];
    tile.w[j][i] = v;
  }
  __syncthreads();
#if PFKIT_MODE == 3
  // two terms a word, in place: rows 2j and 2j + 1 into row j
  u32 packed_x[STEP / 2 * COLUMNS / THREADS], packed_w[STEP / 2 * ROWS / THREADS];
#pragma unroll
  for (int k = 0; k < STEP / 2 * COLUMNS / THREADS; ++k) {
    const int at = threadIdx.x + k * THREADS, j = at / COLUMNS, b = at % COLUMNS;
    packed_x[k] = pack_halves(tile.x[2 * j][b], tile.x[2 * j + 1][b]);
  }
#pragma unroll
  for (int k = 0; k < STEP / 2 * ROWS / THREADS; ++k) {
    const int at = threadIdx.x + k * THREADS, j = at / ROWS, i = at % ROWS;
    packed_w[k] = pack_halves(tile.w[2 * j][i], tile.w[2 * j + 1][i]);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < STEP / 2 * COLUMNS / THREADS; ++k) {
    const int at = threadIdx.x + k * THREADS;
    tile.x[at / COLUMNS][at % COLUMNS] = __uint_as_float(packed_x[k]);
  }
#pragma unroll
  for (int k = 0; k < STEP / 2 * ROWS / THREADS; ++k) {
    const int at = threadIdx.x + k * THREADS;
    tile.w[at / ROWS][at % ROWS] = __uint_as_float(packed_w[k]);
  }
  __syncthreads();
#endif
}

// log2 of an output below its two maxima, in two passes over memory: for sums too small to be right.
__device__ __noinline__ float exactly(const LayerArgs& a, const float* weight, const float* x, float column,
                                      float row) {
  float most = -INFINITE, sum = 0.0f;
  for (i64 j = 0; j < a.terms; ++j)
    most = maximum_or_nan(most, log2_fast(weight[j]) - row + (x[j * a.batch] - column) * (float)LOG2E);
  if (most == -INFINITE) return most;
  for (i64 j = 0; j < a.terms; ++j)
    sum += exp2_fast(log2_fast(weight[j]) - row + (x[j * a.batch] - column) * (float)LOG2E - most);
  return most + log2_fast(sum);
}

__device__ __forceinline__ void layer(const LayerArgs& a) {
  __shared__ Tile tile;
  const i64 strips = (a.outputs + ROWS - 1) / ROWS;
  const i64 region = blockIdx.x / strips, i0 = blockIdx.x % strips * ROWS, b0 = (i64)blockIdx.y * COLUMNS;
  const float* weight = a.weight + region * a.outputs * a.terms;
  const float* x = a.x + region * a.terms * a.batch;
  const int b = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS, i = group * EACH;

#if PFKIT_MODE == 1
  for (int k = threadIdx.x; k < 128; k += THREADS) log2_table[k] = LOG2_TABLE[k];
#elif PFKIT_MODE == 2 || PFKIT_MODE == 4
  fill_pairs<THREADS>();
#endif

  float most = -INFINITE;
  if (b0 + b < a.batch)
    for (i64 j = group; j < a.terms; j += THREADS / COLUMNS) most = maximum_or_nan(most, x[j * a.batch + b0 + b]);
  tile.part[group][b] = most;
  for (int r = threadIdx.x / 32; r < ROWS; r += THREADS / 32) {
    float w = 0.0f;
    if (i0 + r < a.outputs)
      for (i64 j = threadIdx.x % 32; j < a.terms; j += 32) w = maximum_or_nan(w, weight[(i0 + r) * a.terms + j]);
    for (int s = 16; s; s /= 2) w = maximum_or_nan(w, __shfl_xor_sync(~0u, w, s));
    if (threadIdx.x % 32 == 0) tile.row[r] = w > 0.0f ? log2_fast(w) : 0.0f;
  }
  __syncthreads();
  if (threadIdx.x < COLUMNS) {
    float m = tile.part[0][threadIdx.x];
    for (int g = 1; g < THREADS / COLUMNS; ++g) m = maximum_or_nan(m, tile.part[g][threadIdx.x]);
    tile.column[threadIdx.x] = m == -INFINITE ? 0.0f : m;
  }

  float result[EACH];  // log2, below the maxima
#if PFKIT_MODE == 0 || PFKIT_MODE == 3
  float sum[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) sum[e] = 0.0f;
  for (i64 first = 0; first < a.terms; first += STEP) {
    fill(tile, a, weight, x, first, i0, b0);
#if PFKIT_MODE == 0
#pragma unroll 4
    for (int j = 0; j < STEP; ++j) {
      const float v = tile.x[j][b];
#pragma unroll
      for (int e = 0; e < EACH; ++e) sum[e] += exp2_fast(v + tile.w[j][i + e]);
    }
#else
#pragma unroll
    for (int j = 0; j < STEP / 2; j += 4) {
      u32 part[EACH];
#pragma unroll
      for (int e = 0; e < EACH; ++e) part[e] = 0;
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        const u32 v = __float_as_uint(tile.x[j + d][b]);
#pragma unroll
        for (int e = 0; e < EACH; ++e)
          part[e] = add_halves(part[e], exp2_halves(add_halves(v, __float_as_uint(tile.w[j + d][i + e]))));
      }
#pragma unroll
      for (int e = 0; e < EACH; ++e)
        sum[e] += half_to_float((u16)part[e]) + half_to_float((u16)(part[e] >> 16));
    }
#endif
  }
  constexpr float small = PFKIT_MODE == 0 ? 0x1p-80f : 0x1p-12f;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    result[e] = log2_fast(sum[e]);
    if (sum[e] < small && b0 + b < a.batch && i0 + i + e < a.outputs)
      result[e] = exactly(a, weight + (i0 + i + e) * a.terms, x + b0 + b, tile.column[b], tile.row[i + e]);
  }
#else
  float top[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) top[e] = -INFINITE;
  for (i64 first = 0; first < a.terms; first += STEP) {
    fill(tile, a, weight, x, first, i0, b0);
#pragma unroll 4
    for (int j = 0; j < STEP; ++j) {
      const float v = tile.x[j][b];
#pragma unroll
      for (int e = 0; e < EACH; ++e) top[e] = maximum_or_nan(top[e], v + tile.w[j][i + e]);
    }
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) top[e] = top[e] == -INFINITE ? LEAST : top[e];
#if PFKIT_MODE == 1
  Total total[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) total[e] = Total{0, 0};
#else
  int below[EACH];  // log-sum below `top`, Q16.16 octaves
#pragma unroll
  for (int e = 0; e < EACH; ++e) below[e] = (int)(65536 * OCTAVES);
#endif
  for (i64 first = 0; first < a.terms; first += STEP) {
    fill(tile, a, weight, x, first, i0, b0);
#if PFKIT_MODE == 1
#pragma unroll 2
    for (int j = 0; j < STEP; ++j) {
      const float v = tile.x[j][b];
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        const float t = v + tile.w[j][i + e];
        if (t > -INFINITE) add(total[e], weight_at(t * LN2, top[e] * LN2));
      }
    }
#else
#pragma unroll 1
    for (int j = 0; j < STEP; j += 8) {
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        below[e] = pair(below[e], tree_of<8, PFKIT_MODE == 4>([&](int d) {
          return distance<PFKIT_MODE == 4>(top[e] - (tile.x[j + d][b] + tile.w[j + d][i + e]), 1.0f / OCTAVES);
        }));
      }
    }
#endif
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
#if PFKIT_MODE == 1
    result[e] = top[e] == LEAST    ? -INFINITE
                : top[e] != top[e] ? top[e]
                                   : (float)(value_of(total[e], 0.0) * LOG2E) + top[e];
#else
    result[e] = top[e] == LEAST ? -INFINITE : top[e] - (float)below[e] * (1.0f / 65536.0f);
#endif
  }
#endif
  if (b0 + b >= a.batch) return;
#pragma unroll
  for (int e = 0; e < EACH; ++e)
    if (i0 + i + e < a.outputs)
      a.y[(region * a.outputs + i0 + i + e) * a.batch + b0 + b] =
          tile.column[b] + (tile.row[i + e] + result[e]) * LN2;
}

extern "C" __global__ void __launch_bounds__(PFKIT_THREADS, PFKIT_BLOCKS)
    entry(const __grid_constant__ LayerArgs a) {
  PFKIT_ENTRY(a);
}
