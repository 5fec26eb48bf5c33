// The gradient of the loss in a chunk of logits, made where the logits are made: hidden @ weight.T tile by
// tile in registers, and from there (softmax - onehot) times the gradient of the row's loss, rounded once.
#include "linear_product.cuh"
#include "linear_row.cuh"

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
struct Row : RowTerms {
  int hit;  // the target, if it is among the tile's columns

  __device__ __forceinline__ Row(const FusedGradientArgs& a, i64 row, int column)
      : RowTerms(a, row < a.rows ? row : 0, row < a.rows) {
    i64 at = target - a.first - column;
    hit = live && at >= 0 && at < COLUMNS ? (int)at : -1;
  }

  __device__ __forceinline__ float gradient(float x, int column) const {
    float g = live ? weight * exp2_fast((x - m) * (float)LOG2E) : 0.0f;
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
      return pack_as<PFKIT_DTYPE>(rows[h].gradient(x[4 * b + 2 * h], at), rows[h].gradient(x[4 * b + 2 * h + 1], at + 1));
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
