// The log-sum-exp of every row of hidden @ weight.T and the target's logit, without the logits.
//
// Every tile of logits is folded, in registers, into a state (c, s) of each of its rows: s is the sum of
// 2^(x log2(e) - c), c the largest x log2(e) met. A block keeps the states of a group of rows in shared memory
// while the vocabulary passes by and leaves them in its own slot; `combine` adds the slots up in their order.
// The order of all sums is that of the tiles a block takes, fixed by the sizes and the number of
// multiprocessors. The online softmax normaliser: Milakov & Gimelshein 2018, arXiv:1805.02867.
#include "linear_product.cuh"

struct FusedArgs {
  float2* slots;        // [cluster][row]
  float* picked;        // logit of the target
  const i64* targets;
  float* loss;          // combine: loss, maximum and total of every row
  float* maximum;
  float* total;
  Element* kept;        // logits that stay, chunk after chunk, each (rows, columns to a multiple of 8), or null
  void* unused;
  TensorMap hidden;     // at byte 64 of the block
  TensorMap weight;
  i64 rows;
  i64 vocabulary;
  i64 depth;
  i64 ignored;
  i64 slots_count;
  i64 kept_columns;     // how many of the logits of a row stay
  i64 width;            // columns of a chunk of them, a multiple of a tile's, or all
  double z;
};

#ifndef PFKIT_COMBINE
#if __CUDA_ARCH__ >= 900
struct Fold {
  const FusedArgs& a;
  float2* states;  // [pair of the group][row of the tile], this block's rows
  Staging& staging;
  int group;       // whose states these are
  u32 rank;

  __device__ __forceinline__ int own_row(int row_in_tile, int pair) const {
    return (2 * pair + (int)rank) * ROWS + row_in_tile;
  }

  // Rows lane / 4 and lane / 4 + 8 of each warp's sixteen; the four lanes of a row share its state.
  __device__ __forceinline__ int first_row() const {
    return (threadIdx.x / 128 - 1) * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  }

  __device__ __forceinline__ void clear() {
    if (threadIdx.x % 4 == 0)
      for (int p = 0; p < GROUP; ++p)
        for (int h = 0; h < 2; ++h) states[p * ROWS + first_row() + 8 * h] = make_float2(-LARGEST, 0.0f);
    __syncwarp();
  }

  __device__ __forceinline__ void flush() {
    if (group < 0) return;
    float2* slot = a.slots + (i64)(blockIdx.x / CLUSTER) * a.rows;
    if (threadIdx.x % 4 == 0)
      for (int p = 0; p < GROUP; ++p)
        for (int h = 0; h < 2; ++h) {
          int within = first_row() + 8 * h;
          i64 row = own_row(within, group * GROUP + p);
          if (row < a.rows) slot[row] = states[p * ROWS + within];
        }
    __syncwarp();
  }

  __device__ __forceinline__ void skip_to(int next) {  // groups without a tile of this block have empty slots
    while (group < next) {
      flush();
      clear();
      ++group;
    }
  }

  // Write the tile's logits, rounded, and go on with what was written: backward will see nothing else.
  __device__ __forceinline__ void keep(float (&x)[128], int row, int column, i64 left) {
    i64 chunk = column / a.width, first = chunk * a.width, n = a.vocabulary - first;
    if (n > a.width) n = a.width;
    i64 ld = (n + 7) / 8 * 8;
    Element* to = a.kept + chunk * a.rows * a.width + row * ld + (column - first);
    write_tile(staging, to, ld, a.rows - row, left, [&](int h, int b) {
      u32 both = pack_as<PFKIT_DTYPE>(x[4 * b + 2 * h], x[4 * b + 2 * h + 1]);
      x[4 * b + 2 * h] = to_compute((Element)(both & 0xffffu));
      x[4 * b + 2 * h + 1] = to_compute((Element)(both >> 16));
      return both;
    });
  }

  __device__ __forceinline__ void operator()(float (&x)[128], int row, int column, const Tiles& tiles) {
    skip_to(tiles.group);
    int lane = threadIdx.x % 32, quarter = lane % 4;
    i64 left = a.vocabulary - column;
    if (a.kept && column < a.kept_columns) keep(x, row, column, left);
    if (left < COLUMNS) {
#pragma unroll
      for (int i = 0; i < 128; ++i)
        if (i / 4 * 8 + 2 * quarter + i % 2 >= left) x[i] = -INFINITE;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = x[2 * h];
#pragma unroll
      for (int b = 0; b < 32; ++b) m = fmaxf(m, fmaxf(x[4 * b + 2 * h], x[4 * b + 2 * h + 1]));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      float2* state = states + (tiles.pair - tiles.group * GROUP) * ROWS + first_row() + 8 * h;
      float2 old = *state;
      float c = fminf(fmaxf(old.x, m * (float)LOG2E), LARGEST), s[4] = {0, 0, 0, 0};
#pragma unroll
      for (int b = 0; b < 32; ++b) {
        s[b % 2 * 2] += exp2_fast(fmaf(x[4 * b + 2 * h], (float)LOG2E, -c));
        s[b % 2 * 2 + 1] += exp2_fast(fmaf(x[4 * b + 2 * h + 1], (float)LOG2E, -c));
      }
      s[0] = (s[0] + s[1]) + (s[2] + s[3]);
      s[0] += __shfl_xor_sync(0xffffffffu, s[0], 1);
      s[0] += __shfl_xor_sync(0xffffffffu, s[0], 2);
      if (quarter == 0) *state = make_float2(c, old.y * exp2_fast(old.x - c) + s[0]);
      i64 at = row + lane / 4 + 8 * h;
      i64 target = at < a.rows ? a.targets[at] - column : -1;
      if (target >= 0 && target < COLUMNS && target < left && (target & 7) / 2 == quarter) {
        float found = 0;
#pragma unroll
        for (int b = 0; b < 32; ++b)
          if (b == target / 8) found = target & 1 ? x[4 * b + 2 * h + 1] : x[4 * b + 2 * h];
        a.picked[at] = found;
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void end() {
    int groups = (int)((a.rows + 2 * ROWS * GROUP - 1) / (2 * ROWS * GROUP));
    skip_to(groups);
  }
};

__device__ __forceinline__ void fused(const FusedArgs& a) {
  extern __shared__ char memory[];
  __shared__ u64 barriers[2 * STAGES];
  __shared__ float2 states[GROUP * ROWS];
  __shared__ Staging staging;
  u32 shared = (shared_address(memory) + 1023u) & ~1023u;
  Fold fold{a, states, staging, -1, cluster_rank()};
  all_products(a.hidden, a.weight, a.rows, a.vocabulary, a.depth, shared, barriers, fold);
}
#endif
#endif

// One thread a row: the slots' states in their order, in float64; the loss as in linear_fold.cu. Unrolled, so
// that many loads are under way: a row waits for little else.
__device__ __forceinline__ void combine(const FusedArgs& a) {
  i64 row = (i64)blockIdx.x * PFKIT_THREADS + threadIdx.x;
  if (row >= a.rows) return;
  const double factor = (float)LOG2E;  // what the tiles multiplied with
  float c = -LARGEST;
#pragma unroll 16
  for (i64 k = 0; k < a.slots_count; ++k) c = fmaxf(c, a.slots[k * a.rows + row].x);
  float maximum = (float)(c / factor);
  double s = 0;
#pragma unroll 16
  for (i64 k = 0; k < a.slots_count; ++k) {
    float2 part = a.slots[k * a.rows + row];
    s += part.y * (double)exp2_fast(part.x - c);
  }
  s *= exp2((double)c - maximum * factor);
  a.maximum[row] = maximum;
  a.total[row] = (float)s;
  i64 target = a.targets[row];
  double log_total = log(s), loss = __longlong_as_double(0x7ff8000000000000ll);
  if (target >= 0 && target < a.vocabulary) {
    loss = ((double)maximum - a.picked[row]) + log_total;
    loss += a.z * (maximum + log_total) * (maximum + log_total);
  }
  a.loss[row] = target == a.ignored ? 0.0f : (float)loss;
}

PFKIT_DEFINE_ENTRY_OF(FusedArgs)
