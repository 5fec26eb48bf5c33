// The gradient of the loss in a chunk of logits, made where the logits are made: hidden @ weight.T tile by
// tile in registers, and from there (softmax - onehot) times the gradient of the row's loss, rounded once.
#include "linear_product.cuh"

struct FusedGradientArgs {
  Element* gradient;     // (rows, ld)
  const float* maximum;  // of every row's logits, and the sum of exp(x - maximum)
  const float* total;
  const i64* targets;
  const float* outer;    // gradient of every row's loss
  i64 first;             // column of the vocabulary the chunk begins with
  void* unused[2];
  TensorMap hidden;      // at byte 64 of the block
  TensorMap weight;      // of the chunk
  i64 rows;
  i64 columns;           // of the chunk
  i64 depth;
  i64 ld;
  i64 vocabulary;
  i64 ignored;           // the target of a row of zeros
  double z;
};

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ float exponential(float t) {  // 2^t
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));
  return y;
}

__device__ __forceinline__ u32 pack(float a, float b) {
  u32 w;
#if PFKIT_DTYPE == 2
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
#endif
  return w;
}

struct Gradient {
  const FusedGradientArgs& a;

  // Lane l holds, of row l / 4 + 8 h of its warp's sixteen, columns 8 b + 2 (l % 4) and the next, for all b.
  __device__ __forceinline__ void operator()(float (&x)[128], int row, int column, const Tiles& tiles) {
    int lane = threadIdx.x % 32, quarter = lane % 4;
    i64 left = a.columns - column;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      i64 at = row + lane / 4 + 8 * h;
      if (at >= a.rows) continue;
      float m = a.maximum[at], s = a.total[at];
      i64 target = a.targets[at];
      bool live = target != a.ignored, known = target >= 0 && target < a.vocabulary;
      float outer = !live ? 0.0f : known ? a.outer[at] : __int_as_float(0x7fc00000);
      float weight = live ? outer / s : 0.0f;
      if (a.z != 0 && live) weight *= 1.0f + 2.0f * (float)a.z * (m + logf(s));
      int hit = live ? (int)(target - a.first - column) : -1;  // which of this tile's columns
      if (target - a.first - column < 0 || target - a.first - column >= COLUMNS) hit = -1;
      Element* out = a.gradient + at * a.ld + column + 2 * quarter;
#pragma unroll
      for (int b = 0; b < 32; ++b) {
        float g0 = live ? weight * exponential((x[4 * b + 2 * h] - m) * (float)LOG2E) : 0.0f;
        float g1 = live ? weight * exponential((x[4 * b + 2 * h + 1] - m) * (float)LOG2E) : 0.0f;
        if (hit == 8 * b + 2 * quarter) g0 -= outer;
        if (hit == 8 * b + 2 * quarter + 1) g1 -= outer;
        if (8 * b + 2 * quarter < left) *(u32*)(out + 8 * b) = pack(g0, g1);  // an odd end falls in the padding
      }
    }
  }

  __device__ __forceinline__ void end() {}
};

__device__ __forceinline__ void fused_gradient(const FusedGradientArgs& a) {
  extern __shared__ char memory[];
  __shared__ u64 barriers[2 * STAGES];
  u32 shared = (shared_address(memory) + 1023u) & ~1023u;
  Gradient gradient{a};
  all_products(a.hidden, a.weight, a.rows, a.columns, a.depth, shared, barriers, gradient);
}
#endif

PFKIT_DEFINE_ENTRY_OF(FusedGradientArgs)
