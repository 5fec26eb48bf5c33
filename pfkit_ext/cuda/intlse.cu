// IntLSE, order-free: the sum is an integer, so its bits do not depend on the launch and equal the CPU
// kernel's.
//
// The true maximum comes first. A row therefore stays on chip between the maximum and the sum (in registers or
// shared memory of one block, or of a cluster of blocks for long rows: one read of memory), or is read twice.
// NaN and infinities are settled on the maximum, before any conversion. The arithmetic and its bound are in
// integer.cuh.
#include "common.cuh"
#include "bulk.cuh"
#include "columns.cuh"
#include "integer.cuh"
#include "short_rows.cuh"
#include "gradient.cuh"

template <int V>
__device__ __forceinline__ u64 weights_of(const uint4 (&v)[V], C m) {  // at most 64 terms: below 2^59
  u64 sum = 0;
#pragma unroll
  for (int i = 0; i < V * E; ++i) sum += weight_at(element(v[i / E], i % E), m);
  return sum;
}

__device__ __forceinline__ bool finite(C m) { return m - m == 0; }

// Every kernel brings the table of the final logarithm on chip while it waits for its first loads.
template <int THREADS>
__device__ __forceinline__ void stage_table() {
  if (THREADS >= 128) {
    if (THREADS == 128 || threadIdx.x < 128)
      ((uint4*)log2_table)[threadIdx.x] = ((const uint4*)LOG2_TABLE)[threadIdx.x];
  } else {
#pragma unroll
    for (int i = 0; i < 128; i += THREADS)
      ((uint4*)log2_table)[i + threadIdx.x] = ((const uint4*)LOG2_TABLE)[i + threadIdx.x];
  }
}

// ---- trees ------------------------------------------------------------------------------------------------
template <int LANES>
__device__ __forceinline__ u64 sum_lanes(u64 s) {
#pragma unroll
  for (int d = LANES / 2; d; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
  return s;
}

template <int THREADS>
__device__ __forceinline__ C maximum_block(C m) {  // right in every thread
  __shared__ C warps[32];
  m = largest_lane<32, true>(m);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = m;
  __syncthreads();
  m = warps[threadIdx.x % (THREADS / 32)];
  return largest_lane<32, true>(m);
}

template <int THREADS>
__device__ __forceinline__ Total total_block(Total t) {  // right in warp 0
  __shared__ Total warps[THREADS / 32];
  t = Total{sum_lanes<32>(t.hi), sum_lanes<32>(t.lo)};
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = t;
  __syncthreads();
  if (threadIdx.x < 32) {
    t = threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : Total{0, 0};
    t = Total{sum_lanes<32>(t.hi), sum_lanes<32>(t.lo)};
  }
  return t;
}

__device__ __forceinline__ C reference_or(const Args& a, i64 row, C m) {
  return a.reference && m == m && m != INFINITE ? ((const C*)a.reference)[row] : m;
}

__device__ __forceinline__ void emit(const Args& a, i64 row, C m, Total t) {
  bool regular = finite(m);
  if (a.out) {
    u64 hi, lo;
    to_128(t, hi, lo);
    store_value(a, row, !regular ? (double)m : hi | lo ? value_of(t, (double)m) : -(double)INFINITE);
  }
  if (a.maximum) ((C*)a.maximum)[row] = m;
  if (!a.total) return;
  if (a.exact_total) {
    u64 hi, lo;
    to_128(regular ? t : Total{0, 0}, hi, lo);
    ((u64*)a.total)[2 * row] = hi;
    ((u64*)a.total)[2 * row + 1] = lo;
  } else {
    double total = regular ? total_as_double(t) * 0x1p-52 : m < 0 ? 0 : (double)m;
    ((double*)a.total)[row] = total;
  }
}

// ---- short rows -------------------------------------------------------------------------------------------
template <int LANES, int V>
__device__ __forceinline__ void short_rows(const Args& a) {
  short_rows_in_registers<LANES, V>(
      a, [] { stage_table<SHORT_THREADS>(); },
      [&](i64 row, bool live, int lane, const uint4 (&v)[V], C m) {
        m = live ? reference_or(a, row, m) : 0;
        Total t{0, 0};
        add(t, sum_lanes<LANES>(finite(m) ? weights_of(v, m) : 0));  // at most 2^11 terms: below 2^64
        if (live && lane == 0) emit(a, row, m, t);
      });
}

// ---- rows on chip: registers of one block or of a cluster -------------------------------------------------
template <int THREADS, int V, int BLOCKS>
__device__ __forceinline__ void held_rows(const Args& a) {
#if __CUDA_ARCH__ >= 900
  if (BLOCKS > 1) cluster_arrive();
#endif
  i64 row = blockIdx.x / BLOCKS;
#if __CUDA_ARCH__ >= 900
  u32 part = BLOCKS > 1 ? cluster_rank() : 0;
#else
  u32 part = 0;
#endif
  Window w = window(a.in + row_offset(a, row), a.n);
  Range slice = range_of(w.vectors, part, BLOCKS);
  uint4 v[V];
  load_batch<THREADS>(v, w, slice.begin + threadIdx.x, slice.end);
  stage_table<THREADS>();
  C m = maximum_block<THREADS>(maximum_of(v));
#if __CUDA_ARCH__ >= 900
  __shared__ u64 maxima[BLOCKS];
  __shared__ Total totals[BLOCKS];
  if (BLOCKS > 1) {
    cluster_wait();
    if (threadIdx.x < BLOCKS) store_remote(&maxima[part], threadIdx.x, (u64)__double_as_longlong((double)m));
    cluster_barrier();
    m = largest_lane<32, true>((C)__longlong_as_double((i64)maxima[threadIdx.x % BLOCKS]));
  }
#endif
  m = reference_or(a, row, m);
  Total t{0, 0};
  if (finite(m)) add(t, weights_of(v, m));
  let_next_kernel_start();
  t = total_block<THREADS>(t);
#if __CUDA_ARCH__ >= 900
  if (BLOCKS > 1) {
    if (threadIdx.x == 0) {
      store_remote(&totals[part].hi, 0, t.hi);
      store_remote(&totals[part].lo, 0, t.lo);
    }
    cluster_barrier();
    if (part) return;
    t = Total{0, 0};
    for (int i = 0; i < BLOCKS; ++i) t = plus(t, totals[i]);
  }
#endif
  if (threadIdx.x == 0) emit(a, row, m, t);
}

// ---- long rows: read twice, the second time backwards (the end of the row may still be in the cache) ------
struct Slice {
  Window w;
  Range range;
};

__device__ __forceinline__ Slice slice_of(const Args& a, i64 row, i64 part, i64 parts) {
  Window w = window(a.in + row_offset(a, row), a.n);
  return Slice{w, range_of(w.vectors, part, parts)};
}

template <int THREADS, int V>
__device__ __forceinline__ C slice_maximum(const Slice& s) {
  C m = -INFINITE;
  for (i64 at = s.range.begin + threadIdx.x; at < s.range.end; at += THREADS * V) {
    uint4 v[V];
    load_batch<THREADS>(v, s.w, at, s.range.end);
    m = maximum_or_nan(m, maximum_of(v));
  }
  return maximum_block<THREADS>(m);
}

template <int THREADS, int V>
__device__ __forceinline__ Total slice_total(const Slice& s, C m) {
  Total t{0, 0};
  if (finite(m)) {
    i64 batches = (s.range.end - s.range.begin + THREADS * V - 1) / (THREADS * V);
    for (i64 b = batches - 1; b >= 0; --b) {
      uint4 v[V];
      load_batch<THREADS>(v, s.w, s.range.begin + threadIdx.x + b * THREADS * V, s.range.end);
      add(t, weights_of(v, m));
    }
  }
  return total_block<THREADS>(t);
}

template <int THREADS, int V>
__device__ __forceinline__ void long_rows(const Args& a) {
  i64 row = blockIdx.x;
  Slice s = slice_of(a, row, 0, 1);
  stage_table<THREADS>();
  C m = reference_or(a, row, slice_maximum<THREADS, V>(s));
  Total t = slice_total<THREADS, V>(s, m);
  if (threadIdx.x == 0) emit(a, row, m, t);
}

#if __CUDA_ARCH__ >= 900
// The same by the blocks of a cluster, slice by slice: so few rows are under way at once that the second
// reading finds them in the cache.
template <int THREADS, int V, int BLOCKS>
__device__ __forceinline__ void cluster_rows(const Args& a) {
  cluster_arrive();
  __shared__ u64 maxima[BLOCKS];
  __shared__ Total totals[BLOCKS];
  i64 row = blockIdx.x / BLOCKS;
  u32 part = cluster_rank();
  Slice s = slice_of(a, row, part, BLOCKS);
  stage_table<THREADS>();
  C m = slice_maximum<THREADS, V>(s);
  cluster_wait();
  if (threadIdx.x < BLOCKS) store_remote(&maxima[part], threadIdx.x, (u64)__double_as_longlong((double)m));
  cluster_barrier();
  m = largest_lane<32, true>((C)__longlong_as_double((i64)maxima[threadIdx.x % BLOCKS]));
  m = reference_or(a, row, m);
  Total t = slice_total<THREADS, V>(s, m);
  if (threadIdx.x == 0) {
    store_remote(&totals[part].hi, 0, t.hi);
    store_remote(&totals[part].lo, 0, t.lo);
  }
  cluster_barrier();
  if (part || threadIdx.x) return;
  t = Total{0, 0};
  for (int i = 0; i < BLOCKS; ++i) t = plus(t, totals[i]);
  emit(a, row, m, t);
}
#endif

#if __CUDA_ARCH__ >= 900
// ---- rows on chip: shared memory, the next row arriving while this one is summed --------------------------
// A cluster takes rows in turn. Every warp owns a ring of STAGES chunks of V * 32 vectors and the bulk loads
// that fill it; a row takes up to STAGES of them, and a chunk goes back to the ring as soon as its weights
// are summed. Blocks of a cluster meet once a row: the maximum of this row and the total of the one before.
template <int THREADS, int V, int STAGES, int BLOCKS>
__device__ __forceinline__ void resident_rows(const Args& a) {
  constexpr int CHUNK = V * 32, WARPS = THREADS / 32;
  extern __shared__ __align__(128) uint4 ring[];
  __shared__ u64 arrived[WARPS * STAGES];
  __shared__ u64 maxima[2][BLOCKS];
  __shared__ Total totals[2][BLOCKS];
  __shared__ Total sums[32];  // finished rows: a warp emits them side by side
  __shared__ C tops[32];
  if (BLOCKS > 1) cluster_arrive();
  const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 * STAGES;  // first stage of this warp
  if (lane < STAGES) {
    barrier_init(shared_address(arrived + mine + lane), 1);  // one arrival: of the lane that asks
    show_barriers();
  }
  __syncwarp();
  const u32 part = BLOCKS > 1 ? cluster_rank() : 0;
  const int clusters = gridDim.x / BLOCKS, first = blockIdx.x / BLOCKS;
  // Chunk k of a warp begins at vector start + k * WARPS * CHUNK of the row and ends with the slice. Their
  // number is one for all rows, whatever their alignment.
  const int slice = (int)((a.n + 2 * E - 2) / E + BLOCKS - 1) / BLOCKS;
  const int start = (int)part * slice + threadIdx.x / 32 * CHUNK;
  const int chunks = (slice + WARPS * CHUNK - 1) / (WARPS * CHUNK);

  int ask_row = first, ask_k = 0;  // the next chunk to ask for
  auto ask = [&](int stage) {
    if (ask_row >= a.rows) return;
    Window w = window(a.in + row_offset(a, ask_row), a.n);
    int at = start + ask_k * (WARPS * CHUNK), end = min((int)w.vectors, (int)(part + 1) * slice);
    int count = max(0, min(end - at, CHUNK));
    bulk_load(ring + (mine + stage) * CHUNK, w.base + at, (u32)count * 16,
              shared_address(arrived + mine + stage));
    if (++ask_k == chunks) ask_k = 0, ask_row += clusters;
  };
  if (lane == 0) {
    for (int s = 0; s < STAGES; ++s) ask(s);
  }
  stage_table<THREADS>();

  int stage = 0;  // of the first chunk of this row
  u32 parity = 0, turn = 0;
  int kept = 0;   // rows in sums
  C before = 0;   // maximum of the row before
  Total t{0, 0};
  auto flush = [&](int next) {  // by warp 0 of the first block; `next`: the row after those kept
    __syncwarp();
    int at = threadIdx.x;
    if (at < kept) emit(a, next - (i64)(kept - at) * clusters, tops[at], sums[at]);
    __syncwarp();
  };
  for (int row = first;; row += clusters) {
    const bool live = row < a.rows;
    if (!live && BLOCKS == 1) {
      if (threadIdx.x < 32) flush(row);
      return;
    }
    const Window w = window(a.in + row_offset(a, live ? row : 0), a.n);
    const int end = min((int)w.vectors, (int)(part + 1) * slice);
    auto chunk = [&](uint4 (&v)[V], int from, int k) {
      const int at = start + k * (WARPS * CHUNK) + lane;
#pragma unroll
      for (int j = 0; j < V; ++j)
        v[j] = at + j * 32 < end ? ring[(mine + from) * CHUNK + j * 32 + lane] : vector_of_minus_infinity();
      if (w.skip || w.last < E) {
#pragma unroll
        for (int j = 0; j < V; ++j) mask_edges(v[j], at + j * 32, w);
      }
    };
    C m = -INFINITE;
    if (live) {
      int from = stage;
      u32 phase = parity;
      for (int k = 0; k < chunks; ++k) {
        barrier_wait(shared_address(arrived + mine + from), phase);
        uint4 v[V];
        chunk(v, from, k);
        m = maximum_or_nan(m, maximum_of(v));
        if (++from == STAGES) from = 0, phase ^= 1;
      }
      m = maximum_block<THREADS>(m);
    }
    if (BLOCKS > 1) {
      if (row == first) cluster_wait();  // everyone has started
      if (threadIdx.x < BLOCKS)
        store_remote(&maxima[turn][part], threadIdx.x, (u64)__double_as_longlong((double)m));
      if (threadIdx.x == 0) {
        store_remote(&totals[turn][part].hi, 0, t.hi);
        store_remote(&totals[turn][part].lo, 0, t.lo);
      }
      cluster_barrier();
      if (row != first && part == 0 && threadIdx.x < 32) {
        t = Total{0, 0};
        for (int i = 0; i < BLOCKS; ++i) t = plus(t, totals[turn][i]);
        if (threadIdx.x == 0) sums[kept] = t, tops[kept] = before;
        if (++kept == 32 || !live) flush(row), kept = 0;
      }
      if (!live) return;
      m = largest_lane<32, true>((C)__longlong_as_double((i64)maxima[turn][threadIdx.x % BLOCKS]));
      turn ^= 1;
    }
    m = reference_or(a, row, m);
    t = Total{0, 0};
    for (int k = 0; k < chunks; ++k) {
      uint4 v[V];
      chunk(v, stage, k);
      __syncwarp();
      if (lane == 0) ask(stage);
      if (finite(m)) add(t, weights_of(v, m));
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    t = total_block<THREADS>(t);
    if (BLOCKS == 1 && threadIdx.x < 32) {
      if (threadIdx.x == 0) sums[kept] = t, tops[kept] = m;
      if (++kept == 32) flush(row + clusters), kept = 0;
    }
    before = m;
  }
}
#endif

// Few very long rows: three launches over slices. Workspace of a row: splits totals, then splits maxima.
__device__ __forceinline__ C* maxima_of(const Args& a, i64 row) {
  return (C*)((Total*)a.workspace + a.rows * a.splits) + row * a.splits;
}

template <int THREADS, int V>
__device__ __forceinline__ void split_maximum(const Args& a) {
  C m = slice_maximum<THREADS, V>(slice_of(a, blockIdx.x, blockIdx.y, a.splits));
  if (threadIdx.x == 0) maxima_of(a, blockIdx.x)[blockIdx.y] = m;
}

template <int THREADS>
__device__ __forceinline__ C maximum_of_parts(const Args& a, i64 row) {
  C m = -INFINITE;
  for (i64 i = threadIdx.x; i < a.splits; i += THREADS) m = maximum_or_nan(m, maxima_of(a, row)[i]);
  return reference_or(a, row, maximum_block<THREADS>(m));
}

template <int THREADS, int V>
__device__ __forceinline__ void split_total(const Args& a) {
  i64 row = blockIdx.x;
  C m = maximum_of_parts<THREADS>(a, row);
  __syncthreads();
  Total t = slice_total<THREADS, V>(slice_of(a, row, blockIdx.y, a.splits), m);
  if (threadIdx.x == 0) ((Total*)a.workspace)[row * a.splits + blockIdx.y] = t;
}

template <int THREADS>
__device__ __forceinline__ void split_emit(const Args& a) {
  i64 row = blockIdx.x;
  stage_table<THREADS>();
  C m = maximum_of_parts<THREADS>(a, row);
  Total t{0, 0};
  const Total* parts = (const Total*)a.workspace + row * a.splits;
  for (i64 i = threadIdx.x; i < a.splits; i += THREADS) t = plus(t, parts[i]);
  t = total_block<THREADS>(t);
  if (threadIdx.x == 0) emit(a, row, m, t);
}

// ---- any strides: two walks over the terms; COLUMNS results beside each other a block ---------------------
template <int COLUMNS>
__device__ __forceinline__ C largest_line(const Column& c, C m) {  // right in every thread
  return join_lines<COLUMNS>(c, m, [](C a, C b) { return maximum_or_nan(a, b); })[threadIdx.x % COLUMNS];
}

template <int COLUMNS>
__device__ __forceinline__ C column_maximum(const Args& a, const Column& c) {  // right in every thread
  C m = -INFINITE;
#pragma unroll 4
  for (i64 at = c.begin + c.line; at < c.end; at += COLUMN_THREADS / COLUMNS)
    m = maximum_or_nan(m, to_compute(c.in[term_offset(a, at)]));
  return largest_line<COLUMNS>(c, m);
}

template <int COLUMNS>
__device__ __forceinline__ Total column_total(const Args& a, const Column& c, C m) {  // right on line 0
  Total t{0, 0};
  if (c.live && finite(m)) {
#pragma unroll 4
    for (i64 at = c.begin + c.line; at < c.end; at += COLUMN_THREADS / COLUMNS)
      add(t, weight_at(to_compute(c.in[term_offset(a, at)]), m));
  }
  return join_lines<COLUMNS>(c, t, [](Total a, Total b) { return plus(a, b); })[threadIdx.x];
}

template <int COLUMNS>
__device__ __forceinline__ void strided(const Args& a) {
  Column c = column_of<COLUMNS>(a, 0, 1);
  stage_table<COLUMN_THREADS>();
  C m = column_maximum<COLUMNS>(a, c);
  if (c.live) m = reference_or(a, c.row, m);
  Total t = column_total<COLUMNS>(a, c, m);
  if (c.live && c.line == 0) emit(a, c.row, m, t);
}

// Few results of many terms: slices of the walk, as for long rows; split_emit ends both.
template <int COLUMNS>
__device__ __forceinline__ void strided_maximum(const Args& a) {
  Column c = column_of<COLUMNS>(a, blockIdx.y, a.splits);
  C m = column_maximum<COLUMNS>(a, c);
  if (c.live && c.line == 0) maxima_of(a, c.row)[blockIdx.y] = m;
}

template <int COLUMNS>
__device__ __forceinline__ void strided_total(const Args& a) {
  Column c = column_of<COLUMNS>(a, blockIdx.y, a.splits);
  C m = -INFINITE;
  for (i64 i = c.line; c.live && i < a.splits; i += COLUMN_THREADS / COLUMNS)
    m = maximum_or_nan(m, maxima_of(a, c.row)[i]);
  m = largest_line<COLUMNS>(c, m);
  if (c.live) m = reference_or(a, c.row, m);
  Total t = column_total<COLUMNS>(a, c, m);
  if (c.live && c.line == 0) ((Total*)a.workspace)[c.row * a.splits + blockIdx.y] = t;
}

// ---- gradient: grad times the integer weight over the integer total ---------------------------------------
// The weight times 1 / total is rounded once to type C, in the order of torch_op's own formula: equal bits.
struct Weight {
  C reference, grad;
  double share;
  __device__ __forceinline__ Weight(C reference, double total, double grad)
      : reference(reference), grad((C)grad), share(1.0 / total * 0x1p-52) {}
  __device__ __forceinline__ C operator()(C x) const {
    return grad * (C)((double)weight_at(x, reference) * share);
  }
};

template <int THREADS, int V>
__device__ __forceinline__ void backward(const Args& a) { gradient_rows<THREADS, V, Weight>(a); }

PFKIT_DEFINE_ENTRY
