// The gradient of the loss in a chunk of logits, in place or beside it:
//
//   g = G ((1 + 2 z lse) p - (1 - e) [column is the target] - e / V) dx/dy,   p = exp(x - m) / s
//
// with G the gradient of the row's loss, e the label smoothing, z the weight of lse^2 and x the logit made of
// the product y. One warp a row; a
// batch of columns is read whole before any of it is written, so the result may lie over the logits: column j
// of the result never reaches past column j of the logits.
#include "linear.cuh"
#include "linear_row.cuh"

struct GradientArgs {
  const Element* logits;  // (rows, ld)
  void* gradient;         // (rows, gradient_ld) of type RESULT, may start where the logits do
  const float* maximum;
  const float* total;
  const i64* targets;     // columns of the whole vocabulary
  const float* bias;      // of the first column of the chunk, or null
  const float* outer;     // G, a row
  i64 first;
  i64 rows;
  i64 columns;
  i64 ld;
  i64 gradient_ld;
  i64 vocabulary;
  i64 ignored;            // the target of a row of zeros
  double cap;
  double scale;
  double smoothing;       // e
  double share;           // e / V
  double z;
};

// Stores the E results of vector `index` of a row.
template <int RESULT>
__device__ __forceinline__ void store(void* row, int index, const float (&g)[E]) {
  if constexpr (RESULT == 0) {
    static_assert(RESULT != 0 || E == 4, "float32 results come from float32 logits");
    *((float4*)row + index) = make_float4(g[0], g[1], g[2], g[3]);
  } else if constexpr (E == 4) {
    *((uint2*)row + index) = make_uint2(pack_as<RESULT>(g[0], g[1]), pack_as<RESULT>(g[2], g[3]));
  } else {
    *((uint4*)row + index) = make_uint4(pack_as<RESULT>(g[0], g[1]), pack_as<RESULT>(g[2], g[3]),
                                        pack_as<RESULT>(g[4], g[5]), pack_as<RESULT>(g[6], g[7]));
  }
}

struct Row : RowTerms {
  float hit, share;  // of the target; of label smoothing

  __device__ __forceinline__ Row(const GradientArgs& a, i64 row) : RowTerms(a, row) {
    hit = outer * (float)(1.0 - a.smoothing);
    share = outer * (float)a.share;
    target = live ? target - a.first : -1;  // within the chunk's columns, or outside them
  }

  // The gradient in the product y of a column, whose logit is f.
  template <bool SHAPED>
  __device__ __forceinline__ float gradient(float y, i64 column, i64 within, const Shape& shape, float inverse) const {
    float f = SHAPED ? logit_of(y, within, shape) : y;
    float g = live ? weight * expo(f - m) - share : 0.0f;
    if (column == target) g -= hit;
    if (SHAPED && shape.cap > 0) g *= live && f != -INFINITE ? 1.0f - (f * inverse) * (f * inverse) : 0.0f;
    return SHAPED ? g * shape.scale : g;
  }
};

template <bool SHAPED>
__device__ __forceinline__ float inverse_of(const Shape& shape) {
  return SHAPED && shape.cap > 0 ? 1.0f / (shape.cap * shape.scale) : 0.0f;
}

template <int V, bool SHAPED, int RESULT>
__device__ __forceinline__ void gradient(const GradientArgs& a) {
  int lane = threadIdx.x % 32;
  i64 at_row = (i64)blockIdx.x * (PFKIT_THREADS / 32) + threadIdx.x / 32;
  if (at_row >= a.rows) return;
  const Element* x = a.logits + at_row * a.ld;
  void* out = (char*)a.gradient + at_row * a.gradient_ld * (RESULT == 0 ? 4 : 2);
  Row row(a, at_row);
  int vectors = (int)((a.columns + E - 1) / E);
  Shape shape{a.bias, (float)a.cap, (float)a.scale};
  float inverse = inverse_of<SHAPED>(shape);
  for (int at = lane; at - lane < vectors; at += 32 * V) {
    uint4 v[V];
#pragma unroll
    for (int k = 0; k < V; ++k)
      if (at + k * 32 < vectors) v[k] = *((const uint4*)x + at + k * 32);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < V; ++k) {
      int index = at + k * 32;
      if (index >= vectors) continue;
      float g[E];
#pragma unroll
      for (int j = 0; j < E; ++j) {
        i64 column = (i64)index * E + j;
        g[j] = row.gradient<SHAPED>(element(v[k], j), column, column < a.columns ? column : 0, shape, inverse);
      }
      store<RESULT>(out, index, g);  // the columns past the end too: they are the buffer's own padding
    }
    __syncwarp();
  }
}

// Sums over rows of the same gradient, unrounded: the gradient of the bias. Blocks of 32 vectors of columns
// and ROWS rows; partial sums [block row][column] in `gradient`, float32, to be added in their order.
template <int ROWS, bool SHAPED>
__device__ __forceinline__ void column_sums(const GradientArgs& a) {
  constexpr int LINES = PFKIT_THREADS / 32;
  __shared__ float parts[LINES][32 * E];
  int lane = threadIdx.x % 32, line = threadIdx.x / 32;
  i64 vector = (i64)blockIdx.x * 32 + lane, column = vector * E;
  i64 end = (i64)(blockIdx.y + 1) * ROWS;
  if (end > a.rows) end = a.rows;
  Shape shape{a.bias, (float)a.cap, (float)a.scale};
  float inverse = inverse_of<SHAPED>(shape), sums[E] = {};
  if (column < a.columns) {
    for (i64 r = (i64)blockIdx.y * ROWS + line; r < end; r += LINES) {
      Row row(a, r);
      uint4 v = *((const uint4*)(a.logits + r * a.ld) + vector);
#pragma unroll
      for (int j = 0; j < E; ++j)
        sums[j] += row.gradient<SHAPED>(element(v, j), column + j, column + j < a.columns ? column + j : 0, shape,
                                        inverse);
    }
  }
#pragma unroll
  for (int j = 0; j < E; ++j) parts[line][lane * E + j] = sums[j];
  __syncthreads();
  for (int c = threadIdx.x; c < 32 * E; c += PFKIT_THREADS) {
    float s = 0;
    for (int k = 0; k < LINES; ++k) s += parts[k][c];
    i64 to = (i64)blockIdx.x * 32 * E + c;
    if (to < a.columns) ((float*)a.gradient)[(i64)blockIdx.y * a.gradient_ld + to] = s;
  }
}

PFKIT_DEFINE_ENTRY_OF(GradientArgs)
