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
// What a row brings to the gradient of its logits in a tile.
struct Row {
  float m, weight, outer;  // weight: of exp(x - m)
  int hit;                 // the target, if it is among the tile's columns
  bool live;

  __device__ __forceinline__ Row(const FusedGradientArgs& a, i64 row, int column) {
    bool there = row < a.rows;
    if (!there) row = 0;
    m = a.maximum[row];
    float s = a.total[row];
    i64 target = a.targets[row];
    live = there && target != a.ignored;
    bool known = target >= 0 && target < a.vocabulary;
    outer = !live ? 0.0f : known ? a.outer[row] : __int_as_float(0x7fc00000);
    weight = live ? outer / s : 0.0f;
    if (a.z != 0 && live) weight *= 1.0f + 2.0f * (float)a.z * (m + logf(s));
    i64 at = target - a.first - column;
    hit = live && at >= 0 && at < COLUMNS ? (int)at : -1;
  }

  __device__ __forceinline__ float gradient(float x, int column) const {
    float g = live ? weight * exponential((x - m) * (float)LOG2E) : 0.0f;
    return column == hit ? g - outer : g;
  }
};

struct Gradient {
  const FusedGradientArgs& a;
  Staging& staging;

  // Lane l holds, of row l / 4 + 8 h of its warp's sixteen, columns 8 b + 2 (l % 4) and the next, for all b.
  __device__ __forceinline__ void operator()(float (&x)[128], int row, int column, const Tiles& tiles) {
    int lane = threadIdx.x % 32;
    Row rows[2] = {Row(a, row + lane / 4, column), Row(a, row + lane / 4 + 8, column)};
    write_tile(staging, a.gradient + row * a.ld + column, a.ld, a.rows - row, a.columns - column, [&](int h, int b) {
      int at = 8 * b + 2 * (lane % 4);
      return pack(rows[h].gradient(x[4 * b + 2 * h], at), rows[h].gradient(x[4 * b + 2 * h + 1], at + 1));
    });
  }

  __device__ __forceinline__ void end() {}
};

__device__ __forceinline__ void fused_gradient(const FusedGradientArgs& a) {
  extern __shared__ char memory[];
  __shared__ u64 barriers[2 * STAGES];
  __shared__ Staging staging;
  u32 shared = (shared_address(memory) + 1023u) & ~1023u;
  Gradient gradient{a, staging};
  all_products(a.hidden, a.weight, a.rows, a.columns, a.depth, shared, barriers, gradient);
}
#endif

PFKIT_DEFINE_ENTRY_OF(FusedGradientArgs)
