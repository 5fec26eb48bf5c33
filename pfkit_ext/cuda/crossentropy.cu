// Log-probabilities of tokens, with the entropy and the log-sum-exp of their rows, in one read of the logits;
// and the gradient of all three in one read and one write.
//
// With z = x / T over a row of n logits: log p(j) = z_j - log sum exp z, entropy = -sum p log p. A thread keeps
// (m, s, e): the largest logit it has seen, the sum of w = exp((x - m) / T), and the sum of w t with t the
// exponent (in octaves, as ex2 takes it; float64: nats). Then log p(j) = (x_j - m) / T - log s, which no common
// offset of the logits can change, and entropy = log s - e / s. Pairs meet in a fixed tree; nothing depends on
// timing.
//
// t is held at FLOOR, where its weight is 0 already, so a logit of -inf adds 0 and not 0 * -inf. A row without
// mass has log-probabilities -inf, entropy 0 and gradient 0; +inf or NaN among the logits makes the row NaN. A
// row all of whose tokens are the ignored id gives zeros, and a long one is not read.
#include "online.cuh"
#include "short_rows.cuh"

struct TokenArgs {
  const Element* in;   // logits, the n of a row contiguous
  C* log_prob;         // [row][k]; backward: its gradient, or null
  C* entropy;          // [row], or null; backward: its gradient, or null
  C* lse;              // the same
  C* state;            // [row][3]: m, s, e; forward: or null
  C* workspace;        // partial states, [row][split][3]
  const i64* tokens;   // [row][k]
  Element* grad_in;    // backward: gradient of the logits, [row][n]
  i64 n;
  i64 rows;
  i64 k;               // tokens of a row
  i64 splits;          // parts a row is cut into, forward and backward
  i64 ignore;          // the id that is passed over ...
  i64 ignores;         // ... if this is 1
  double scale;        // log2(e) / T; float64: 1 / T
  double inverse;      // 1 / T
  i64 kept_dims;
  i64 kept_size[DIMS];
  i64 kept_stride[DIMS];
};

#if PFKIT_DTYPE == 1
__device__ __forceinline__ C power(C t) { return exp(t); }
constexpr double UNIT = 1;
#else
__device__ __forceinline__ C power(C t) { return exp2_fast(t); }
constexpr double UNIT = 0.69314718055994531;  // nats an octave
#endif
constexpr C FLOOR = -1000;

struct Sums { C m, s, e; };

__device__ __forceinline__ Sums no_sums() { return Sums{-LARGEST, 0, 0}; }

// The same terms seen from a larger m.
template <bool MOMENT>
__device__ __forceinline__ void lower(Sums& a, C m, C scale) {
  C t = fmax((a.m - m) * scale, FLOOR), w = power(t);
  if (MOMENT) a.e = w * (a.e + a.s * t);
  a.s *= w;
  a.m = m;
}

template <int COUNT, bool MOMENT, class Term>
__device__ __forceinline__ void add_terms(Sums& a, C scale, Term term) {
  constexpr int LANES = COUNT < 4 ? COUNT : 4;  // independent chains of additions
  C s[LANES], e[LANES];
#pragma unroll
  for (int i = 0; i < LANES; ++i) s[i] = e[i] = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    C t = (term(i) - a.m) * scale;
    if (MOMENT) t = maximum_or_nan(t, FLOOR);
    C w = power(t);
    s[i % LANES] += w;
    if (MOMENT) e[i % LANES] += w * t;
  }
#pragma unroll
  for (int i = 1; i < LANES; ++i) s[0] += s[i], e[0] += e[i];
  a.s += s[0];
  if (MOMENT) a.e += e[0];
}

template <int V, bool MOMENT>
__device__ __forceinline__ void add_vectors(Sums& a, C scale, const uint4 (&v)[V]) {
  C largest = largest_of(v);
  if (largest > a.m) lower<MOMENT>(a, fmin(largest, LARGEST), scale);
  add_terms<V * E, MOMENT>(a, scale, [&](int i) { return element(v[i / E], i % E); });
}

template <int LANES, bool MOMENT>
__device__ __forceinline__ Sums reduce_sums(Sums a, C scale) {
  lower<MOMENT>(a, largest_lane<LANES, false>(a.m), scale);
#pragma unroll
  for (int d = LANES / 2; d; d /= 2) {
    a.s += __shfl_xor_sync(0xffffffffu, a.s, d);
    if (MOMENT) a.e += __shfl_xor_sync(0xffffffffu, a.e, d);
  }
  return a;
}

template <int THREADS, bool MOMENT>
__device__ __forceinline__ Sums reduce_block_sums(Sums a, C scale) {
  return join_block<THREADS>(
      a, [scale](Sums x, auto lanes) { return reduce_sums<lanes.count, MOMENT>(x, scale); });
}

// ---- results ----------------------------------------------------------------------------------------------
__device__ __forceinline__ bool ignored(const TokenArgs& a, i64 token) {
  return a.ignores && token == a.ignore;
}

__device__ __forceinline__ const Element* logits_of(const TokenArgs& a, i64 row) {
  return a.in + offset_of(row, a.kept_dims, a.kept_size, a.kept_stride);
}

// The logit of a token; NaN for an id outside the vocabulary.
__device__ __forceinline__ C logit_of(const TokenArgs& a, const Element* in, i64 token) {
  return (u64)token < (u64)a.n ? to_compute(in[token]) : INFINITE - INFINITE;
}

// The lane's first token and its logit, loaded before the sums of the row are joined.
struct Pick {
  i64 token;
  C x;
};

__device__ __forceinline__ Pick pick(const TokenArgs& a, i64 row, const Element* in, i64 k) {
  if (k >= a.k) return Pick{0, 0};
  i64 token = a.tokens[row * a.k + k];
  return Pick{token, logit_of(a, in, token)};
}

// ln of a finite positive sum; float32: 1e-8, far less than the rounding of the result.
__device__ __forceinline__ double log_of(C s) {
#if PFKIT_DTYPE == 1
  return log(s);
#else
  float k, f, end = log_parts(s, k, f);
  return (double)k * UNIT + (double)(f + end);
#endif
}

// Of a whole row, or of the share lane, lane + lanes, ... of its tokens.
__device__ __forceinline__ void emit_row(const TokenArgs& a, i64 row, const Element* in, Sums r, int lane,
                                         int lanes, Pick picked) {
  const double infinity = INFINITE, nan = infinity - infinity;
  bool mass = r.s > 0 && r.s < INFINITE;
  double log_s = mass ? log_of(r.s) : 0;
  for (i64 k = lane; k < a.k; k += lanes) {
    if (k != lane) picked = pick(a, row, in, k);
    double value = ((double)picked.x - (double)r.m) * a.inverse - log_s;
    if (!mass) value = r.s == 0 && (u64)picked.token < (u64)a.n ? -infinity : nan;
    a.log_prob[row * a.k + k] = ignored(a, picked.token) ? 0 : (C)value;
  }
  if (lane) return;
  if (a.lse) a.lse[row] = (C)(mass ? r.m * a.inverse + log_s : r.s == 0 ? -infinity : (double)r.s);
  if (a.entropy) {
    C whole = r.e / r.s;  // and what the division rounded away
    double ratio = (double)whole + (double)(fma(-whole, r.s, r.e) / r.s);
    a.entropy[row] = (C)(mass ? fmax(log_s - UNIT * ratio, 0.0) : r.s == 0 ? 0 : nan);
  }
  if (!a.state) return;
  a.state[3 * row] = r.m;
  a.state[3 * row + 1] = r.s;
  a.state[3 * row + 2] = r.e;
}

__device__ __forceinline__ void emit_nothing(const TokenArgs& a, i64 row, int lane, int lanes) {
  for (i64 k = lane; k < a.k; k += lanes) a.log_prob[row * a.k + k] = 0;
  if (lane) return;
  if (a.lse) a.lse[row] = 0;
  if (a.entropy) a.entropy[row] = 0;
  if (a.state) a.state[3 * row] = a.state[3 * row + 1] = a.state[3 * row + 2] = 0;
}

// Whether a block's row has tokens, and all of them are ignored.
__device__ __forceinline__ bool skips(const TokenArgs& a, i64 row) {
  if (!a.ignores || a.k == 0) return false;
  if (a.k == 1) return a.tokens[row] == a.ignore;
  int some = 0;
  for (i64 k = threadIdx.x; k < a.k; k += blockDim.x) some |= a.tokens[row * a.k + k] != a.ignore;
  return !__syncthreads_or(some);
}

// ---- short rows: LANES threads a row, R rows at a time, everything in registers ---------------------------
// R > 1: the loads of R rows are in flight together, and lane r gives the results of row r.
template <int LANES, int V, int R, bool MOMENT>
__device__ __forceinline__ void short_rows(const TokenArgs& a) {
  C scale = (C)a.scale;
  int lane = threadIdx.x % LANES;
  i64 first = ((i64)blockIdx.x * (SHORT_THREADS / LANES) + threadIdx.x / LANES) * R;
  uint4 v[R][V];
  load_rows<LANES>(v, a, first, [&](i64 row) { return logits_of(a, row); });
  i64 row = first + (R > 1 ? lane : 0);
  bool live = row < a.rows && (R == 1 || lane < R), some = a.k == 0 || !a.ignores;
  const Element* in = logits_of(a, live ? row : 0);
  int from = R > 1 ? 0 : lane, step = R > 1 ? 1 : LANES;
  Pick picked = pick(a, row, in, live ? from : a.k);
  if (live && !some)
    for (i64 k = from; k < a.k; k += step) some |= a.tokens[row * a.k + k] != a.ignore;
  if (R == 1) {
    u32 group = (LANES == 32 ? 0xffffffffu : (1u << LANES % 32) - 1) << (threadIdx.x % 32 / LANES * LANES);
    some = __ballot_sync(0xffffffffu, some) & group;
  }
  Sums mine = no_sums();
#pragma unroll
  for (int r = 0; r < R; ++r) {
    mask_batch<LANES>(v[r], window(logits_of(a, first + r < a.rows ? first + r : 0), a.n), lane);
    Sums sums = no_sums();
    sums.m = fmin(largest_lane<LANES, false>(fmax(largest_of(v[r]), -LARGEST)), LARGEST);
    add_terms<V * E, MOMENT>(sums, scale, [&](int i) { return element(v[r][i / E], i % E); });
#pragma unroll
    for (int d = LANES / 2; d; d /= 2) {
      sums.s += __shfl_xor_sync(0xffffffffu, sums.s, d);
      if (MOMENT) sums.e += __shfl_xor_sync(0xffffffffu, sums.e, d);
    }
    if (R == 1 || lane == r) mine = sums;
  }
  if (!live) return;
  if (some) emit_row(a, row, in, mine, from, step, picked);
  else emit_nothing(a, row, from, step);
}

// ---- long rows: one block or one cluster a row, or a slice of it ------------------------------------------
template <int THREADS, int V, bool MOMENT>
__device__ __forceinline__ Sums stream(const Window& w, Range slice, C scale) {
  Sums sums = no_sums();
  bool edges = w.skip || w.last < E;
  i64 at = slice.begin + threadIdx.x, end = slice.end;
  i64 whole = end - (V - 1) * THREADS - (THREADS - 1) + threadIdx.x;
  uint4 v[V];
  for (; at < whole; at += THREADS * V) {  // the same number of rounds for every thread
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = load_once(w.base + at + k * THREADS);
    if (edges) {
#pragma unroll
      for (int k = 0; k < V; ++k) mask_edges(v[k], at + k * THREADS, w);
    }
    add_vectors<V, MOMENT>(sums, scale, v);
  }
  // What is left is less than a round: the loads are still issued together, but no power is spent on padding.
#pragma unroll
  for (int k = 0; k < V; ++k) v[k] = load_or_nothing(w, at + k * THREADS, end);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if (at + k * THREADS >= end) break;
    if (edges) mask_edges(v[k], at + k * THREADS, w);
    uint4 one[1] = {v[k]};
    add_vectors<1, MOMENT>(sums, scale, one);
  }
  return sums;
}

template <int THREADS, int V, bool MOMENT>
__device__ __forceinline__ void long_rows(const TokenArgs& a) {
  C scale = (C)a.scale;
  i64 row = blockIdx.x, part = blockIdx.y;
  if (skips(a, row)) {
    if (a.splits == 1) emit_nothing(a, row, threadIdx.x, THREADS);
    return;
  }
  const Element* in = logits_of(a, row);
  Window w = window(in, a.n);
  Range slice = range_of(w.vectors, part, a.splits);
  Sums sums = stream<THREADS, V, MOMENT>(w, slice, scale);
  Pick picked = pick(a, row, in, a.splits == 1 ? threadIdx.x : a.k);
  sums = reduce_block_sums<THREADS, MOMENT>(sums, scale);
  if (a.splits == 1) emit_row(a, row, in, sums, threadIdx.x, THREADS, picked);
  else if (threadIdx.x == 0) ((Sums*)a.workspace)[row * a.splits + part] = sums;
}

// The partial states of a row, in their order.
template <int THREADS, bool MOMENT>
__device__ __forceinline__ void combine(const TokenArgs& a) {
  C scale = (C)a.scale;
  i64 row = blockIdx.x;
  if (skips(a, row)) return emit_nothing(a, row, threadIdx.x, THREADS);
  const Sums* parts = (const Sums*)a.workspace + row * a.splits;
  const Element* in = logits_of(a, row);
  Pick picked = pick(a, row, in, threadIdx.x);
  Sums sums = no_sums();
  for (i64 at = threadIdx.x; at < a.splits; at += THREADS) {
    Sums p = parts[at];
    C m = fmax(sums.m, p.m);
    lower<MOMENT>(sums, m, scale);
    lower<MOMENT>(p, m, scale);
    sums.s += p.s;
    sums.e += p.e;
  }
  emit_row(a, row, in, reduce_block_sums<THREADS, MOMENT>(sums, scale), threadIdx.x, THREADS, picked);
}

#if __CUDA_ARCH__ >= 900
template <int THREADS, int V, int BLOCKS, bool MOMENT>
__device__ __forceinline__ void cluster_rows(const TokenArgs& a) {
  __shared__ u64 parts[BLOCKS][3];
  C scale = (C)a.scale;
  i64 row = blockIdx.x / BLOCKS;
  u32 part = cluster_rank();
  if (skips(a, row)) {
    if (part == 0) emit_nothing(a, row, threadIdx.x, THREADS);
    return;
  }
  cluster_arrive();
  const Element* in = logits_of(a, row);
  Window w = window(in, a.n);
  Range slice = range_of(w.vectors, part, BLOCKS);
  Sums sums = stream<THREADS, V, MOMENT>(w, slice, scale);
  Pick picked = pick(a, row, in, part == 0 && threadIdx.x < 32 ? threadIdx.x : a.k);
  sums = reduce_block_sums<THREADS, MOMENT>(sums, scale);
  cluster_wait();
  if (threadIdx.x < 3) {
    C x = threadIdx.x == 0 ? sums.m : threadIdx.x == 1 ? sums.s : sums.e;
    store_remote(&parts[part][threadIdx.x], 0, (u64)__double_as_longlong((double)x));
  }
  cluster_barrier();
  if (part || threadIdx.x >= 32) return;
  sums = no_sums();
  if (threadIdx.x < BLOCKS) {
    const u64* p = parts[threadIdx.x];
    sums = Sums{(C)__longlong_as_double((i64)p[0]), (C)__longlong_as_double((i64)p[1]),
                (C)__longlong_as_double((i64)p[2])};
  }
  emit_row(a, row, in, reduce_sums<32, MOMENT>(sums, scale), threadIdx.x, 32, picked);
}
#endif

// ---- gradient ---------------------------------------------------------------------------------------------
// E results as a vector of elements.
__device__ __forceinline__ uint4 pack(const C (&x)[E]) {
  uint4 v;
#if PFKIT_DTYPE >= 2
  v.x = pack_as<PFKIT_DTYPE>(x[0], x[1]);
  v.y = pack_as<PFKIT_DTYPE>(x[2], x[3]);
  v.z = pack_as<PFKIT_DTYPE>(x[4], x[5]);
  v.w = pack_as<PFKIT_DTYPE>(x[6], x[7]);
#else
  v = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int j = 0; j < E; ++j) set_element(v, j, from_compute(x[j]));
#endif
  return v;
}

// With incoming g_k, h (entropy) and l (log-sum-exp), and G = sum g_k:
// dx_j = (p_j (l - G - h (log p_j + entropy)) + sum over k with token_k = j of g_k) / T,
// and the first part is w_j (base - slope t_j).
template <bool MOMENT>
struct Slope {
  C m, scale, base, slope;
  bool zero;  // nothing but the tokens' own terms

  __device__ __forceinline__ C operator()(C x) const {
    C t = (x - m) * scale;
    if (MOMENT) t = fmax(t, FLOOR);
    return MOMENT ? power(t) * (base - slope * t) : power(t) * base;
  }
};

// `sum`: of the tokens' incoming gradients; `some`: whether there is a token that counts.
template <bool MOMENT>
__device__ __forceinline__ Slope<MOMENT> slope_of(const TokenArgs& a, i64 row, double sum, bool some) {
  C m = a.state[3 * row], s = a.state[3 * row + 1], h = MOMENT && a.entropy ? a.entropy[row] : 0;
  C base = (C)((a.lse ? (double)a.lse[row] : 0) - sum), slope = 0;
  if (MOMENT && h != 0) base += h * (C)UNIT * (a.state[3 * row + 2] / s);
  bool zero = !some || (base == 0 && h == 0) || s == 0;
  if (!zero) {
    C each = s < INFINITE ? (C)a.inverse / s : INFINITE - INFINITE;
    base *= each;
    slope = h * (C)UNIT * each;
  }
  return Slope<MOMENT>{m, (C)a.scale, base, slope, zero};
}

// What token k adds to the sum of incoming gradients: NaN for an id outside the vocabulary whose own is not 0.
__device__ __forceinline__ double own_of(const TokenArgs& a, i64 row, i64 k, bool& some) {
  i64 token = a.tokens[row * a.k + k];
  if (ignored(a, token)) return 0;
  some = true;
  C g = a.log_prob ? a.log_prob[row * a.k + k] : 0;
  return (u64)token < (u64)a.n || g == 0 ? g : INFINITE - INFINITE;
}

// Where a vector of the gradient goes: whole if it may, else by element.
struct Target {
  Element* out;
  uint4* base;
  bool whole;

  __device__ __forceinline__ Target(const TokenArgs& a, i64 row, const Element* in)
      : out(a.grad_in + row * a.n), base((uint4*)((u64)out & ~15ull)),
        whole(((u64)out & 15u) == ((u64)in & 15u)) {}

  __device__ __forceinline__ void store(const TokenArgs& a, const Window& w, i64 index, const C (&x)[E]) const {
    if (whole && (index > 0 || w.skip == 0) && (index < w.vectors - 1 || w.last == E)) {
      base[index] = pack(x);
      return;
    }
#pragma unroll
    for (int j = 0; j < E; ++j) {
      i64 term = index * E + j - w.skip;
      if (term >= 0 && term < a.n) out[term] = from_compute(x[j]);
    }
  }
};

// The tokens' own terms, after the stores of vectors begin to end: the first of equal tokens adds all of theirs,
// in order, and the element is rounded once.
template <bool MOMENT>
__device__ __forceinline__ void add_own(const TokenArgs& a, i64 row, const Slope<MOMENT>& f, const Element* in,
                                        const Window& w, const Target& target, i64 begin, i64 end, int lane,
                                        int lanes) {
  const i64* tokens = a.tokens + row * a.k;
  for (i64 k = lane; k < a.k; k += lanes) {
    i64 token = tokens[k], index = (token + w.skip) / E;
    if (ignored(a, token) || (u64)token >= (u64)a.n || index < begin || index >= end) continue;
    double own = 0;
    bool earlier = false;
    for (i64 other = 0; other < a.k; ++other) {
      if (tokens[other] != token) continue;
      earlier |= other < k;
      own += (double)a.log_prob[row * a.k + other];
    }
    C rest = f.zero ? 0 : f(to_compute(in[token]));
    if (!earlier) target.out[token] = from_compute(rest + (C)own * (C)a.inverse);
  }
}

// LANES threads a row, all of it in registers.
template <int LANES, int V, bool MOMENT>
__device__ __forceinline__ void short_gradient(const TokenArgs& a) {
  i64 row = (i64)blockIdx.x * (SHORT_THREADS / LANES) + threadIdx.x / LANES;
  int lane = threadIdx.x % LANES;
  bool live = row < a.rows;
  if (!live) row = 0;
  const Element* in = logits_of(a, row);
  Window w = window(in, a.n);
  i64 end = live ? w.vectors : 0;
  uint4 v[V];
#pragma unroll
  for (int k = 0; k < V; ++k) v[k] = load_or_nothing(w, lane + k * LANES, end);
  double sum = 0;
  bool some = a.k == 0;
  int own_at = -1;
  if (a.k == 1) {
    sum = own_of(a, row, 0, some);
    i64 token = a.tokens[row];
    if (some && (u64)token < (u64)a.n) own_at = (int)token + w.skip;
  } else if (a.k > 1) {
    for (i64 k = lane; k < a.k; k += LANES) sum += own_of(a, row, k, some);
#pragma unroll
    for (int d = LANES / 2; d; d /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, d);
      some |= __shfl_xor_sync(0xffffffffu, (int)some, d);
    }
  }
  Slope<MOMENT> f = slope_of<MOMENT>(a, row, sum, some);
  bool mass = a.state[3 * row + 1] != 0;
  C own = mass ? (C)sum * (C)a.inverse : 0;
  Target target(a, row, in);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    int index = lane + k * LANES;
    if (index >= end) break;
    C x[E];
#pragma unroll
    for (int j = 0; j < E; ++j) {
      x[j] = f.zero ? 0 : f(element(v[k], j));
      if (index * E + j == own_at) x[j] += own;
    }
    target.store(a, w, index, x);
  }
  __syncwarp();
  if (live && a.k > 1 && a.log_prob && some && mass) add_own(a, row, f, in, w, target, 0, end, lane, LANES);
}

// A block a row or a part of it, V vectors a thread at a time.
template <int THREADS, int V, bool MOMENT>
__device__ __forceinline__ void gradient(const TokenArgs& a) {
  i64 row = blockIdx.x / (u32)a.splits, part = blockIdx.x % (u32)a.splits;
  double sum = 0;
  bool some = a.k == 0;
  if (a.k == 1) {
    sum = own_of(a, row, 0, some);
  } else if (a.k > 1) {  // every warp for itself, in one order
    for (i64 k = threadIdx.x % 32; k < a.k; k += 32) sum += own_of(a, row, k, some);
#pragma unroll
    for (int d = 16; d; d /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, d);
      some |= __shfl_xor_sync(0xffffffffu, (int)some, d);
    }
  }
  Slope<MOMENT> f = slope_of<MOMENT>(a, row, sum, some);
  const Element* in = logits_of(a, row);
  Window w = window(in, a.n);
  Target target(a, row, in);
  Range slice = range_of(w.vectors, part, a.splits);
  for (i64 at = slice.begin + threadIdx.x; at < slice.end; at += THREADS * V) {
    uint4 v[V];
#pragma unroll
    for (int k = 0; k < V; ++k)
      v[k] = load_or_nothing(w, at + k * THREADS, f.zero ? 0 : slice.end);  // 0: not read
#pragma unroll
    for (int k = 0; k < V; ++k) {
      i64 index = at + k * THREADS;
      if (index >= slice.end) break;
      C x[E];
#pragma unroll
      for (int j = 0; j < E; ++j) x[j] = f.zero ? 0 : f(element(v[k], j));
      target.store(a, w, index, x);
    }
  }
  if (!a.log_prob || !some || a.state[3 * row + 1] == 0) return;
  __syncthreads();
  add_own(a, row, f, in, w, target, slice.begin, slice.end, threadIdx.x, THREADS);
}

PFKIT_DEFINE_ENTRY_OF(TokenArgs)
