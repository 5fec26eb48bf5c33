// Folds a chunk of logits into the state of its rows: the largest logit so far, the sum of exp(x - largest),
// the logit of the target, and, for label smoothing, the sum of all logits. `finish` makes losses of states.
//
// One warp a row. A batch of 16-byte loads is in flight before the first is used; its maximum is one
// reduction of the warp, so every lane rescales together and a row's result depends on shapes alone, never
// on timing. The online softmax normaliser: Milakov & Gimelshein 2018, arXiv:1805.02867.
#include "linear.cuh"

struct FoldArgs {
  const Element* logits;  // (rows, ld)
  float* maximum;
  float* total;
  float* picked;        // logit of the target
  const i64* targets;   // columns of the whole vocabulary
  const float* bias;    // of the first column of the chunk, or null
  float* sum;           // of the logits, or null
  i64 first;            // first column of the chunk; 0 starts new states
  i64 rows;
  i64 columns;
  i64 ld;
  double cap;
  double scale;
};

template <int V>
__device__ __forceinline__ float largest_of(const uint4 (&v)[V]) {
#if PFKIT_DTYPE >= 2 && __CUDA_ARCH__ >= 800
  u32 w = v[0].x;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    u32 words[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
#if PFKIT_DTYPE == 2
      asm("max.f16x2 %0, %0, %1;" : "+r"(w) : "r"(words[q]));
#else
      asm("max.bf16x2 %0, %0, %1;" : "+r"(w) : "r"(words[q]));
#endif
    }
  }
  uint4 both = make_uint4(w, w, w, w);
  return fmaxf(element(both, 0), element(both, 1));
#else
  float m = element(v[0], 0);
#pragma unroll
  for (int i = 1; i < V * E; ++i) m = fmaxf(m, element(v[i / E], i % E));
  return m;
#endif
}

// s becomes the sum of exp(x - m) of this lane's terms with the new m, `largest` being the warp's maximum.
template <int COUNT, class Term>
__device__ __forceinline__ void absorb(float& m, float& s, float largest, Term term) {
  largest = largest_lane<32, false>(fmaxf(largest, -LARGEST));
  if (largest > m) {
    float raised = fminf(largest, LARGEST);
    s *= expo(m - raised);
    m = raised;
  }
  float t[4] = {0, 0, 0, 0};  // independent chains of additions
#pragma unroll
  for (int i = 0; i < COUNT; ++i) t[i % 4] += expo(term(i) - m);
  s += (t[0] + t[1]) + (t[2] + t[3]);
}

template <int V, bool SHAPED>
__device__ __forceinline__ void fold(const FoldArgs& a) {
  int lane = threadIdx.x % 32;
  i64 row = (i64)blockIdx.x * (PFKIT_THREADS / 32) + threadIdx.x / 32;
  if (row >= a.rows) return;
  const Element* x = a.logits + row * a.ld;
  float m = -LARGEST, s = 0, sum = 0;
  if (a.first) {
    m = a.maximum[row];
    s = lane ? 0 : a.total[row];
  }
  i64 target = a.targets[row] - a.first;
  bool here = target >= 0 && target < a.columns;
  Element picked = here ? x[target] : MINUS_INFINITY;
  int vectors = (int)((a.columns + E - 1) / E), rest = (int)(a.columns % E);
  Shape shape{a.bias, (float)a.cap, (float)a.scale};
  for (int at = lane; at - lane < vectors; at += 32 * V) {
    uint4 v[V];
#pragma unroll
    for (int k = 0; k < V; ++k)
      v[k] = at + k * 32 < vectors ? *((const uint4*)x + at + k * 32) : vector_of_minus_infinity();
    if (SHAPED) {
      float f[V * E], largest = -INFINITE;
#pragma unroll
      for (int i = 0; i < V * E; ++i) {
        i64 column = (i64)(at + i / E * 32) * E + i % E;
        bool live = column < a.columns;
        f[i] = live ? logit_of(element(v[i / E], i % E), column, shape) : -INFINITE;
        sum += live ? f[i] : 0.0f;
        largest = fmaxf(largest, f[i]);
      }
      absorb<V * E>(m, s, largest, [&](int i) { return f[i]; });
    } else {
      if (rest) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          if (at + k * 32 == vectors - 1) {
#pragma unroll
            for (int j = 0; j < E; ++j)
              if (j >= rest) set_element(v[k], j, MINUS_INFINITY);
          }
        }
      }
      absorb<V * E>(m, s, largest_of(v), [&](int i) { return element(v[i / E], i % E); });
    }
  }
  s = warp_sum(s);
  if (SHAPED && a.sum) sum = warp_sum(sum);
  if (lane) return;
  a.maximum[row] = m;
  a.total[row] = s;
  if (SHAPED && a.sum) a.sum[row] = (a.first ? a.sum[row] : 0.0f) + sum;
  if (here) a.picked[row] = SHAPED ? logit_of(to_compute(picked), target, shape) : to_compute(picked);
}

// The losses of rows, one thread each; 0 where the target is ignored, NaN where it is no column.
struct FinishArgs {
  float* loss;
  const float* maximum;
  const float* total;
  const float* picked;
  const float* sum;
  const i64* targets;
  void* unused[2];
  i64 rows;
  i64 vocabulary;
  i64 ignored;
  double smoothing;
  double z;
};

__device__ __forceinline__ void finish(const FinishArgs& a) {
  i64 row = (i64)blockIdx.x * PFKIT_THREADS + threadIdx.x;
  if (row >= a.rows) return;
  i64 target = a.targets[row];
  float m = a.maximum[row], log_total = logf(a.total[row]), loss = __int_as_float(0x7fc00000);
  if (target >= 0 && target < a.vocabulary) {  // the maximum leaves first: a common offset changes nothing
    loss = (m - a.picked[row]) + log_total;
    if (a.sum) {
      float rest = (m - a.sum[row] / (float)a.vocabulary) + log_total;
      loss = (float)(1.0 - a.smoothing) * loss + (float)a.smoothing * rest;
    }
    if (a.z != 0) loss += (float)a.z * (m + log_total) * (m + log_total);
  }
  a.loss[row] = target == a.ignored ? 0.0f : loss;
}

#ifdef PFKIT_FINISH
typedef FinishArgs EntryArgs;
#else
typedef FoldArgs EntryArgs;
#endif
PFKIT_DEFINE_ENTRY_OF(EntryArgs)
