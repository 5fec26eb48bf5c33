// FuseLSE: log-sum-exp in one read of memory, exact to rounding.
//
// Each thread keeps the state of walk.cuh. A batch of 16-byte loads is in flight before the first is used; the
// sum is rescaled only when a batch raises the maximum by some nats. exp is one multiply and one ex2 on the
// special-function unit (float64: libdevice). Pairs meet in a fixed tree, so a result depends on the shape and
// the launch plan only, never on timing.
//
// State written for LSEState and for gradients: the maximum (type C) and the sum (float64) of a row.
#include "online.cuh"
#include "columns.cuh"
#include "gradient.cuh"
#include "short_rows.cuh"
#include "walk.cuh"

__device__ __forceinline__ void emit(const Args& a, i64 row, State r, C lost = 0) {
  if (a.out) store_value(a, row, value_of(r, lost));
  if (a.maximum) {
    const C infinity = INFINITE;
    ((C*)a.maximum)[row] = r.s == 0 ? -infinity : r.s == infinity ? infinity : r.s != r.s ? r.s : r.m;
    ((double*)a.total)[row] = (double)r.s;
  }
}

// ---- short rows: LANES threads a row, R rows at a time, everything in registers ---------------------------
// What additions round away shows in short rows of float32.
__device__ __forceinline__ void add_term(C& s, C& lost, C x) {
#if PFKIT_DTYPE == 0
  add_exactly(s, lost, x);
#else
  s += x;
#endif
}

template <int LANES, int V, int R>
__device__ __forceinline__ void short_rows(const Args& a) {
  let_next_kernel_start();
  int lane = threadIdx.x % LANES;
  i64 first = ((i64)blockIdx.x * (SHORT_THREADS / LANES) + threadIdx.x / LANES) * R;
  uint4 v[R][V];
  load_rows<LANES>(v, a, first, [&](i64 row) { return a.in + row_offset(a, row); });
#pragma unroll
  for (int r = 0; r < R; ++r) {
    bool live = first + r < a.rows;
    mask_batch<LANES>(v[r], window(a.in + row_offset(a, live ? first + r : 0), a.n), lane);
    C m = largest_lane<LANES, false>(fmax(largest_of(v[r]), -LARGEST));
    State state = nothing();
    state.m = fmin(m, LARGEST);
    C lost = 0;
#pragma unroll
    for (int i = 0; i < V * E; ++i) add_term(state.s, lost, expo_exact(element(v[r][i / E], i % E) - state.m));
#pragma unroll
    for (int d = LANES / 2; d; d /= 2) {
      C other = __shfl_xor_sync(0xffffffffu, lost, d);
      lost += other;
      add_term(state.s, lost, __shfl_xor_sync(0xffffffffu, state.s, d));
    }
    if (live && lane == r % LANES) emit(a, first + r, state, lost);
  }
}

// ---- long rows: one block or one cluster a row, or a slice of it ------------------------------------------
template <int THREADS, int V>
__device__ __forceinline__ State stream(const Window& w, Range slice) {
  Walk walk = start_of_walk();
  for (i64 at = slice.begin + threadIdx.x; at < slice.end; at += THREADS * V) {
    uint4 v[V];
    load_batch<THREADS>(v, w, at, slice.end);
    absorb_vectors(walk, v);
  }
  return end_of_walk(walk);
}

template <int THREADS, int V>
__device__ __forceinline__ void long_rows(const Args& a) {
  i64 row = blockIdx.x, part = blockIdx.y;
  Window w = window(a.in + row_offset(a, row), a.n);
  State state = stream<THREADS, V>(w, range_of(w.vectors, part, a.splits));
  let_next_kernel_start();
  state = reduce_block<THREADS>(state);
  if (threadIdx.x) return;
  if (a.splits > 1) ((State*)a.workspace)[row * a.splits + part] = state;
  else emit(a, row, state);
}

#if __CUDA_ARCH__ >= 900
template <int THREADS, int V, int BLOCKS>
__device__ __forceinline__ void cluster_rows(const Args& a) {
  __shared__ State parts[BLOCKS];
  cluster_arrive();
  i64 row = blockIdx.x / BLOCKS;
  u32 part = cluster_rank();
  Window w = window(a.in + row_offset(a, row), a.n);
  State state = stream<THREADS, V>(w, range_of(w.vectors, part, BLOCKS));
  let_next_kernel_start();
  state = reduce_block<THREADS>(state);
  cluster_wait();
  if (threadIdx.x == 0) {
    if (sizeof(C) == 4) {
      u64 m = __float_as_uint((float)state.m), s = __float_as_uint((float)state.s);
      store_remote(&parts[part], 0, s << 32 | m);
    } else {
      store_remote(&parts[part].m, 0, (u64)__double_as_longlong((double)state.m));
      store_remote(&parts[part].s, 0, (u64)__double_as_longlong((double)state.s));
    }
  }
  cluster_barrier();
  if (part || threadIdx.x >= 32) return;
  state = reduce_lanes<32>(threadIdx.x < BLOCKS ? parts[threadIdx.x] : nothing());
  if (threadIdx.x == 0) emit(a, row, state);
}
#endif

// ---- any strides: COLUMNS results beside each other a block, the terms over the other threads -------------
template <int COLUMNS>
__device__ __forceinline__ void strided(const Args& a) {
  constexpr int LINES = COLUMN_THREADS / COLUMNS, UNROLL = 8;
  Column c = column_of<COLUMNS>(a, blockIdx.y, a.splits);
  Walk walk = start_of_walk();
  for (i64 at = c.begin + c.line; at < c.end; at += LINES * UNROLL) {
    C x[UNROLL];
    load_terms<LINES>(x, a, c, at);
    C m = x[0];
#pragma unroll
    for (int k = 1; k < UNROLL; ++k) m = fmax(m, x[k]);
    absorb<UNROLL>(walk, m, [&](int i) { return x[i]; });
  }
  State state = end_of_walk(walk);
  if (COLUMNS == 1) {
    state = reduce_block<COLUMN_THREADS>(state);
  } else {
    state = join_lines<COLUMNS>(c, state, [](State p, State q) {
      C m = fmax(p.m, q.m);
      return State{m, p.s * expo(p.m - m) + q.s * expo(q.m - m)};
    })[threadIdx.x];
  }
  if (c.line || !c.live) return;
  if (a.splits > 1) ((State*)a.workspace)[c.row * a.splits + blockIdx.y] = state;
  else emit(a, c.row, state);
}

// ---- the partial states of a row, in their order ----------------------------------------------------------
__device__ __forceinline__ void combine(const Args& a) {
  let_next_kernel_start();
  i64 row = blockIdx.x;
  const State* parts = (const State*)a.workspace + row * a.splits;
  State state = nothing();
  for (i64 at = threadIdx.x; at < a.splits; at += 128) state.m = fmax(state.m, parts[at].m);
  for (i64 at = threadIdx.x; at < a.splits; at += 128) state.s += parts[at].s * expo(parts[at].m - state.m);
  state = reduce_block<128>(state);
  if (threadIdx.x == 0) emit(a, row, state);
}

// ---- gradient: grad * exp(x - maximum) / total ------------------------------------------------------------
struct Weight {
  C reference, scale;
  __device__ __forceinline__ Weight(C reference, double total, double grad)
      : reference(reference), scale((C)(grad / total)) {}
  __device__ __forceinline__ C operator()(C x) const { return scale * expo(x - reference); }
};

template <int THREADS, int V>
__device__ __forceinline__ void backward(const Args& a) { gradient_rows<THREADS, V, Weight>(a); }

PFKIT_DEFINE_ENTRY
