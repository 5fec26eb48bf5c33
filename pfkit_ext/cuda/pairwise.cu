// IntLSE, pairwise: shifts and adds in base 2, in one read of memory.
//
// One pair a <= b of distances below a reference (Q16.16 octaves), the difference a - b = I + F, I its floor:
//     -log2(2^-a + 2^-b) ~ a - f - c(f),    f = (1 + F) 2^I,
// in integers f = ((1 << 16) + F) >> -I, and c the table of the CPU kernel: eight segments, 0.0056 octaves at
// most (pairs.cuh). Under PFKIT_TENTH the terms of a batch are Q10.6 instead, and log2(1 + 2^-d) is a table of
// the difference d itself, rounded to 1/64 octave.
//
// Order: the V * E terms of a batch as a binary tree; batches one after the other; then the threads, and the
// slices of a long row, as a tree. The tree matters for Q10.6: one after the other, a sum of equal terms would
// stop growing after some 128 of them, where one more is worth less than half a unit. Only the tree of a batch
// is Q10.6; batches and threads are joined in Q16.16.
//
// A thread's reference is the largest term it has seen; distances are integers from their first use, 64
// octaves at most (-inf). A NaN wins the maximum, and with +inf it settles the result before any conversion.
#include "common.cuh"
#include "columns.cuh"
#include "pairs.cuh"
#include "short_rows.cuh"

#ifdef PFKIT_TENTH
constexpr bool TENTH = true;
#else
constexpr bool TENTH = false;
#endif
constexpr double UNIT = 1.0576586617430806e-05;  // ln 2 / 65536

template <int THREADS>
__device__ __forceinline__ void fill_tables() {
  fill_pairs<THREADS, TENTH>();
  __syncthreads();
}

__device__ __forceinline__ int leaf(C x, C m) {
  return distance<TENTH>((float)(m - x), (float)(LOG2E / OCTAVES));
}

struct State { C m; int p; };  // the log-sum is m - p ln 2 / 65536; p can be negative

__device__ __forceinline__ int steps_down(C from, C to) {  // from >= to, in Q16.16
  float d = fminf((float)(from - to) * (float)(65536 * LOG2E), 65536 * OCTAVES);
  return __float2int_rn(d);
}

__device__ __forceinline__ State lowered(State a, C m) {  // the same number below a higher reference
  if (a.m == m) return a;
  return State{m, min(a.p + steps_down(m, a.m), (int)(65536 * OCTAVES))};
}

__device__ __forceinline__ State joined(State a, State b) {
  C m = maximum_or_nan(a.m, b.m);
  return State{m, pair(lowered(a, m).p, lowered(b, m).p)};
}

__device__ __forceinline__ State nothing() { return State{-INFINITE, (int)(65536 * OCTAVES)}; }

template <int V>
__device__ __forceinline__ int tree(const uint4 (&v)[V], C m) {
  return tree_of<V * E, TENTH>([&](int i) { return leaf(element(v[i / E], i % E), m); });
}

template <int V>
__device__ __forceinline__ void absorb(State& a, const uint4 (&v)[V]) {
  C m = maximum_or_nan(a.m, maximum_of(v));
  a = lowered(a, m);
  a.p = pair(a.p, tree(v, m));
}

template <int LANES>
__device__ __forceinline__ State reduce_lanes(State a) {
  a = lowered(a, largest_lane<LANES, true>(a.m));
#pragma unroll
  for (int d = LANES / 2; d; d /= 2) a.p = pair(a.p, __shfl_xor_sync(0xffffffffu, a.p, d));
  return a;
}

__device__ __forceinline__ void emit(const Args& a, i64 row, State r) {
  bool finite = r.m - r.m == 0;
  store_value(a, row, finite ? __dsub_rn((double)r.m, __dmul_rn((double)r.p, UNIT)) : (double)r.m);
}

template <int LANES, int V>
__device__ __forceinline__ void short_rows(const Args& a) {
  short_rows_in_registers<LANES, V>(
      a, [] { fill_tables<SHORT_THREADS>(); },
      [&](i64 row, bool live, int lane, const uint4 (&v)[V], C m) {
        State state{m, tree(v, m)};
#pragma unroll
        for (int d = LANES / 2; d; d /= 2) state.p = pair(state.p, __shfl_xor_sync(0xffffffffu, state.p, d));
        if (live && lane == 0) emit(a, row, state);
      });
}

template <int THREADS>
__device__ __forceinline__ State reduce_block(State state) {
  return join_block<THREADS>(state, [](State x, auto lanes) { return reduce_lanes<lanes.count>(x); });
}

// One block a row, or a slice of it.
template <int THREADS, int V, int FEW>
__device__ __forceinline__ void long_rows(const Args& a) {
  fill_tables<THREADS>();
  i64 row = blockIdx.x;
  Window w = window(a.in + row_offset(a, row), a.n);
  Range slice = range_of(w.vectors, blockIdx.y, a.splits);
  State state = nothing();
  bool edges = w.skip || w.last < E;
  uint4 v[V / FEW][FEW];
  i64 at = slice.begin + threadIdx.x;
#pragma unroll
  for (int k = 0; k < V; ++k) v[k / FEW][k % FEW] = load_or_nothing(w, at + k * THREADS, slice.end);
  for (; at < slice.end; at += THREADS * V) {
#pragma unroll
    for (int k = 0; k < V; k += FEW) {
      uint4(&few)[FEW] = v[k / FEW];
      if (edges) {
#pragma unroll
        for (int j = 0; j < FEW; ++j) mask_edges(few[j], at + (k + j) * THREADS, w);
      }
      absorb(state, few);
#pragma unroll
      for (int j = 0; j < FEW; ++j) few[j] = load_or_nothing(w, at + (V + k + j) * THREADS, slice.end);
    }
  }
  let_next_kernel_start();
  state = reduce_block<THREADS>(state);
  if (threadIdx.x) return;
  if (a.splits > 1) ((State*)a.workspace)[row * a.splits + blockIdx.y] = state;
  else emit(a, row, state);
}

// ---- any strides: COLUMNS results beside each other a block, the terms over the other threads -------------
// The batches of a thread are the leaves of a binary tree too, kept as a counter in base 2: place k holds the
// log-sum of 2^k batches. So an error passes some log2 n pairs, however long the walk.
template <int COLUMNS>
__device__ __forceinline__ void strided(const Args& a) {
  constexpr int LINES = COLUMN_THREADS / COLUMNS, UNROLL = 8;
  fill_tables<COLUMN_THREADS>();
  Column c = column_of<COLUMNS>(a, blockIdx.y, a.splits);
  State place[48];
  u64 count = 0;
  for (i64 at = c.begin + c.line; at < c.end; at += LINES * UNROLL) {
    C x[UNROLL], m = -INFINITE;
    load_terms<LINES>(x, a, c, at);
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) m = maximum_or_nan(m, x[k]);
    State state{m, tree_of<UNROLL, TENTH>([&](int i) { return leaf(x[i], m); })};
    int k = 0;
#pragma unroll 1
    for (; count >> k & 1; ++k) state = joined(place[k], state);
    place[k] = state;
    ++count;
  }
  State state = nothing();
#pragma unroll 1
  for (int k = 0; count >> k; ++k) if (count >> k & 1) state = joined(place[k], state);
  const State* states = join_lines<COLUMNS>(c, state, [](State p, State q) { return joined(p, q); });
  if (c.line || !c.live) return;
  if (a.splits > 1) ((State*)a.workspace)[c.row * a.splits + blockIdx.y] = states[threadIdx.x];
  else emit(a, c.row, states[threadIdx.x]);
}

// ---- the partial states of a row, at most 256, as a tree --------------------------------------------------
__device__ __forceinline__ void combine(const Args& a) {
  fill_tables<128>();
  i64 row = blockIdx.x;
  const State* parts = (const State*)a.workspace + row * a.splits;
  i64 other = threadIdx.x + 128;
  State state = threadIdx.x < a.splits ? parts[threadIdx.x] : nothing();
  if (other < a.splits) state = joined(state, parts[other]);
  state = reduce_block<128>(state);
  if (threadIdx.x == 0) emit(a, row, state);
}

PFKIT_DEFINE_ENTRY
