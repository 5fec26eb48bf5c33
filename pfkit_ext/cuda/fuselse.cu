// FuseLSE: log-sum-exp in one read of memory, exact to rounding.
//
// Each thread keeps (m, s): the largest term it has seen and the sum of exp(x - m). A batch of 16-byte loads
// is in flight before the first is used; the sum is rescaled only when a batch raises the maximum. exp is one
// multiply and one ex2 on the special-function unit (float64: libdevice). Pairs meet in a fixed tree, so a
// result depends on the shape and the launch plan only, never on timing. The online softmax normaliser:
// Milakov & Gimelshein 2018, arXiv:1805.02867.
//
// m is held within the finite range: -FLT_MAX for nothing seen or -inf alone, FLT_MAX under +inf. No -inf -
// -inf can form: an empty row sums to 0 (log: -inf), +inf gives s = inf, NaN makes s NaN.
//
// State written for LSEState and for gradients: the maximum (type C) and the sum (float64) of a row.
#include "common.cuh"

#if PFKIT_DTYPE == 1
__device__ __forceinline__ C expo(C t) { return exp(t); }
#else
__device__ __forceinline__ C expo(C t) {
  C y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t * (C)LOG2E));
  return y;
}
#endif

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

// Adds `count` terms given one by one by term(i).
template <int COUNT, class Term>
__device__ __forceinline__ void absorb(State& a, C largest, Term term) {
  if (largest > a.m) {
    C m = fmin(largest, LARGEST);
    a.s *= expo(a.m - m);
    a.m = m;
  }
  constexpr int LANES = COUNT < 4 ? COUNT : 4;  // independent chains of additions
  C s[LANES];
#pragma unroll
  for (int i = 0; i < LANES; ++i) s[i] = expo(term(i) - a.m);
#pragma unroll
  for (int i = LANES; i < COUNT; ++i) s[i % LANES] += expo(term(i) - a.m);
#pragma unroll
  for (int i = 1; i < LANES; ++i) s[0] += s[i];
  a.s += s[0];
}

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

template <int V>
__device__ __forceinline__ void absorb_vectors(State& a, const uint4 (&v)[V]) {
  absorb<V * E>(a, largest_of(v), [&](int i) { return element(v[i / E], i % E); });
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
  __shared__ State warps[THREADS / 32];
  a = reduce_lanes<32>(a);
  if (THREADS == 32) return a;
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = a;
  __syncthreads();
  return reduce_lanes<THREADS / 32>(warps[threadIdx.x % (THREADS / 32)]);
}

// s + x as a float and the rounding it cost (two-sum, Knuth 1969); only float32 needs it.
__device__ __forceinline__ void add_exactly(C& s, C& lost, C x) {
#if PFKIT_DTYPE == 0
  C sum = s + x, part = sum - s;
  lost += (s - (sum - part)) + (x - part);
  s = sum;
#else
  s += x;
#endif
}

#if PFKIT_DTYPE == 1
__device__ __forceinline__ C value_of(State r, C lost) { return r.m + log(r.s); }
#else
// m + ln s in float32, one rounding and 0.1 ulp. s = 2^k (1 + f), |f| <= 1/3; ln(1 + f) = f + f^2 q(f), a
// minimax
// q (error 1.3e-9); the leading part of k ln 2 is exact and joins m by an error-free addition.
__device__ __forceinline__ C value_of(State r, C lost) {  // s + lost is the sum
  if (!(r.s > 0 && r.s < INFINITE)) return r.s == 0 ? -INFINITE : r.s;
  u32 bits = __float_as_uint(r.s), scale = (bits - 0x3f2aaaabu) & 0xff800000u;
  float f = __uint_as_float(bits - scale) - 1.0f, k = (float)((int)scale >> 23);
  float q = -0x1.151e34p-3f;
  q = q * f + 0x1.23059cp-3f;
  q = q * f - 0x1.ec1a90p-4f;
  q = q * f + 0x1.1dc898p-3f;
  q = q * f - 0x1.55eedep-3f;
  q = q * f + 0x1.99e36cp-3f;
  q = q * f - 0x1.fffc12p-3f;
  q = q * f + 0x1.5554d2p-2f;
  q = q * f - 0x1.000002p-1f;
  float rest = (k * 0x1.7f7d1cp-20f + f * f * q) + (f + __fdividef(lost, r.s));  // ln 2 - 0x1.62e4p-1
  float whole = k * 0x1.62e4p-1f, sum = r.m + whole, back = sum - r.m;
  return sum + (((r.m - (sum - back)) + (whole - back)) + rest);
}
#endif

__device__ __forceinline__ void emit(const Args& a, i64 row, State r, C lost = 0) {
  if (a.out) store_value(a, row, value_of(r, lost));
  if (a.maximum) {
    const C infinity = INFINITE;
    ((C*)a.maximum)[row] = r.s == 0 ? -infinity : r.s == infinity ? infinity : r.s != r.s ? r.s : r.m;
    ((double*)a.total)[row] = (double)r.s;
  }
}

// ---- short rows: LANES threads a row, R rows at a time, everything in registers ---------------------------
constexpr int SHORT_THREADS = 128;

template <int LANES, int V, int R>
__device__ __forceinline__ void short_rows(const Args& a) {
  int lane = threadIdx.x % LANES;
  i64 first = ((i64)blockIdx.x * (SHORT_THREADS / LANES) + threadIdx.x / LANES) * R;
  uint4 v[R][V];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    bool live = first + r < a.rows;
    Window w = window(a.in + row_offset(a, live ? first + r : 0), a.n);
#pragma unroll
    for (int k = 0; k < V; ++k) v[r][k] = load_or_nothing(w, lane + k * LANES, live ? w.vectors : 0);
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    bool live = first + r < a.rows;
    Window w = window(a.in + row_offset(a, live ? first + r : 0), a.n);
    if (w.skip || w.last < E) {
#pragma unroll
      for (int k = 0; k < V; ++k) mask_edges(v[r][k], lane + k * LANES, w);
    }
    C m = largest_lane<LANES, false>(fmax(largest_of(v[r]), -LARGEST));
    State state = nothing();
    state.m = fmin(m, LARGEST);
    C lost = 0;  // what the additions rounded away: in a short row it shows
#pragma unroll
    for (int i = 0; i < V * E; ++i)
      add_exactly(state.s, lost, expo_exact(element(v[r][i / E], i % E) - state.m));
#pragma unroll
    for (int d = LANES / 2; d; d /= 2) {
      C other = __shfl_xor_sync(0xffffffffu, lost, d);
      lost += other;
      add_exactly(state.s, lost, __shfl_xor_sync(0xffffffffu, state.s, d));
    }
    if (live && lane == r % LANES) emit(a, first + r, state, lost);
  }
}

// ---- long rows: one block or one cluster a row, or a slice of it ------------------------------------------
template <int THREADS, int V>
__device__ __forceinline__ State stream(const Window& w, i64 begin, i64 end) {
  State state = nothing();
  for (i64 at = begin + threadIdx.x; at < end; at += THREADS * V) {
    uint4 v[V];
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = load_or_nothing(w, at + k * THREADS, end);
    if (w.skip || w.last < E) {
#pragma unroll
      for (int k = 0; k < V; ++k) mask_edges(v[k], at + k * THREADS, w);
    }
    absorb_vectors(state, v);
  }
  return state;
}

template <int THREADS, int V>
__device__ __forceinline__ void long_rows(const Args& a) {
  i64 row = blockIdx.x, part = blockIdx.y;
  Window w = window(a.in + row_offset(a, row), a.n);
  i64 slice = (w.vectors + a.splits - 1) / a.splits;
  i64 begin = part * slice, end = begin + slice < w.vectors ? begin + slice : w.vectors;
  State state = reduce_block<THREADS>(stream<THREADS, V>(w, begin, end));
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
  i64 slice = (w.vectors + BLOCKS - 1) / BLOCKS;
  i64 begin = part * slice, end = begin + slice < w.vectors ? begin + slice : w.vectors;
  State state = reduce_block<THREADS>(stream<THREADS, V>(w, begin, end));
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
  constexpr int THREADS = 256, LINES = THREADS / COLUMNS, UNROLL = 8;
  __shared__ State states[THREADS];
  int column = threadIdx.x % COLUMNS, line = threadIdx.x / COLUMNS;
  i64 row = (i64)blockIdx.x * COLUMNS + column;
  bool live = row < a.rows;
  const Element* in = a.in + row_offset(a, live ? row : 0);
  i64 slice = (a.n + a.splits - 1) / a.splits;
  i64 begin = blockIdx.y * slice, end = live ? (begin + slice < a.n ? begin + slice : a.n) : 0;
  State state = nothing();
  for (i64 at = begin + line; at < end; at += LINES * UNROLL) {
    C x[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k)
      x[k] = to_compute(at + k * LINES < end ? in[term_offset(a, at + k * LINES)] : MINUS_INFINITY);
    C m = x[0];
#pragma unroll
    for (int k = 1; k < UNROLL; ++k) m = fmax(m, x[k]);
    absorb<UNROLL>(state, m, [&](int i) { return x[i]; });
  }
  if (COLUMNS == 1) {
    state = reduce_block<THREADS>(state);
  } else {
    states[threadIdx.x] = state;
    __syncthreads();
    for (int d = LINES / 2; d; d /= 2) {
      if (line < d) {
        State p = states[threadIdx.x], q = states[threadIdx.x + d * COLUMNS];
        C m = fmax(p.m, q.m);
        states[threadIdx.x] = State{m, p.s * expo(p.m - m) + q.s * expo(q.m - m)};
      }
      __syncthreads();
    }
    state = states[threadIdx.x];
  }
  if (line || !live) return;
  if (a.splits > 1) ((State*)a.workspace)[row * a.splits + blockIdx.y] = state;
  else emit(a, row, state);
}

// ---- the partial states of a row, in their order ----------------------------------------------------------
__device__ __forceinline__ void combine(const Args& a) {
  i64 row = blockIdx.x;
  const State* parts = (const State*)a.workspace + row * a.splits;
  State state = nothing();
  for (i64 at = threadIdx.x; at < a.splits; at += 128) {
    State p = parts[at];
    C m = fmax(state.m, p.m);
    state = State{m, state.s * expo(state.m - m) + p.s * expo(p.m - m)};
  }
  state = reduce_block<128>(state);
  if (threadIdx.x == 0) emit(a, row, state);
}

// ---- gradient: grad * exp(x - maximum) / total, rows contiguous in and out --------------------------------
// A row without mass (maximum -inf) has gradient 0. Under +inf the gradient is shared evenly by the +inf
// terms.
template <int THREADS, int V>
__device__ __forceinline__ void backward(const Args& a) {
  __shared__ u32 infinite[THREADS / 32];
  i64 blocks = (a.n + E + THREADS * V * E - 1) / (THREADS * V * E);
  i64 row = blockIdx.x / blocks, part = blockIdx.x % blocks;
  const Element* in = a.in + row_offset(a, row);
  C m = ((const C*)a.maximum)[row];
  double total = ((const double*)a.total)[row], grad = ((const double*)a.grad)[row];
  const C infinity = INFINITE;
  bool top = m == infinity;
  if (top) {  // rare: count the +inf terms of the whole row
    u32 count = 0;
    for (i64 at = threadIdx.x; at < a.n; at += THREADS) count += to_compute(in[at]) == infinity;
#pragma unroll
    for (int d = 16; d; d /= 2) count += __shfl_xor_sync(0xffffffffu, count, d);
    if (threadIdx.x % 32 == 0) infinite[threadIdx.x / 32] = count;
    __syncthreads();
    total = 0;
    for (int i = 0; i < THREADS / 32; ++i) total += infinite[i];
  }
  C scale = (C)(m == -infinity ? 0 : grad / total);
  C reference = fmin(fmax(m, -LARGEST), LARGEST);
  if (m != m) scale = m;
  Window w = window(in, a.n);
  Element* out = a.grad_in + row * a.n;
  bool aligned = ((u64)out & 15u) == 0 && w.skip == 0;
  i64 at = part * THREADS * V + threadIdx.x;
  uint4 v[V];
#pragma unroll
  for (int k = 0; k < V; ++k) v[k] = load_or_nothing(w, at + k * THREADS, w.vectors);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    i64 index = at + k * THREADS;
    if (index >= w.vectors) continue;
    uint4 g;
#pragma unroll
    for (int j = 0; j < E; ++j) {
      C x = element(v[k], j);
      C weight = top ? (C)(x == infinity) : expo(x - reference);
      set_element(g, j, from_compute(scale * weight));
    }
    if (aligned && (index < w.vectors - 1 || w.last == E)) {
      ((uint4*)out)[index] = g;
    } else {
#pragma unroll
      for (int j = 0; j < E; ++j) {
        i64 term = index * E + j - w.skip;
        C x = element(v[k], j);
        if (term >= 0 && term < a.n)
          out[term] = from_compute(scale * (top ? (C)(x == infinity) : expo(x - reference)));
      }
    }
  }
}

PFKIT_DEFINE_ENTRY
