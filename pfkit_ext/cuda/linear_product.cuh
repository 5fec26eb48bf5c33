// hidden @ weight.T on Hopper's tensor cores, tile by tile, handed to an epilogue while it is still in
// registers: no logit is ever written.
//
// A tile is 128 rows of hidden states by 256 rows of the weight. A block has one warp that fetches (bulk tensor
// copies into a ring of four stages of 64 columns, 128-byte swizzle) and two warpgroups that multiply, 64 rows
// each, with 128 float32 sums a thread. Two blocks form a cluster: they work on neighbouring rows and the same
// rows of the weight, each fetches half of those and sends it to both. Blocks are persistent: the ring goes on
// filling with the next tile while the last one is in its epilogue.
//
// Clusters take tiles in turn, GROUP pairs of row tiles beside each other before the next rows of the weight,
// so that the hidden states of a group stay in the second-level cache while the weight passes by once.
#include "common.cuh"
#include "barrier.cuh"

#if __CUDA_ARCH__ >= 900
constexpr int ROWS = 128, COLUMNS = 256, DEPTH = 64, STAGES = 4, GROUP = 8, CLUSTER = 2;
constexpr u32 A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2;
constexpr u32 SHARED_BYTES = STAGES * (A_BYTES + B_BYTES);

struct alignas(64) TensorMap { u64 words[16]; };

// ---- barriers ---------------------------------------------------------------------------------------------
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 rank) {  // at this barrier of another block
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n"
      :: "r"(barrier), "r"(rank) : "memory");
}

// ---- copies -----------------------------------------------------------------------------------------------
__device__ __forceinline__ void fetch(u32 to, const TensorMap* map, int column, int row, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      :: "r"(to), "l"((u64)map), "r"(barrier), "r"(column), "r"(row) : "memory");
}

__device__ __forceinline__ void fetch_for_both(u32 to, const TensorMap* map, int column, int row, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4}], [%2], %5;"
      :: "r"(to), "l"((u64)map), "r"(barrier), "r"(column), "r"(row), "h"((u16)3) : "memory");
}

// ---- products ---------------------------------------------------------------------------------------------
// What a warpgroup reads: rows of 128 bytes, swizzled, eight of them 1024 bytes.
__device__ __forceinline__ u64 descriptor(u32 address) {
  return (u64)((address & 0x3ffffu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define PFKIT_ACCUMULATORS \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PFKIT_OPERANDS \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
template <int KIND>
__device__ __forceinline__ void multiply_add(float (&d)[128], u64 a, u64 b, int keep) {
#define PFKIT_WGMMA(TYPE)                                                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                            \
               "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" PFKIT_ACCUMULATORS      \
               "}, %128, %129, p, 1, 1, 0, 0;\n}\n"                                                      \
               : PFKIT_OPERANDS                                                                         \
               : "l"(a), "l"(b), "r"(keep))
  if constexpr (KIND == 2) PFKIT_WGMMA("f16");
  else PFKIT_WGMMA("bf16");
#undef PFKIT_WGMMA
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int LEFT>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}

// ---- which tile -------------------------------------------------------------------------------------------
struct Tiles {
  int pairs, across;  // pairs of row tiles; tiles of the vocabulary
  int pair, tile;     // the current one
  int group;          // GROUP pairs of rows
  int at, step, all;

  __device__ __forceinline__ Tiles(i64 rows, i64 vocabulary, int cluster, int clusters) {
    pairs = (int)((rows + 2 * ROWS - 1) / (2 * ROWS));
    across = (int)((vocabulary + COLUMNS - 1) / COLUMNS);
    at = cluster;
    step = clusters;
    all = pairs * across;
    place();
  }
  __device__ __forceinline__ bool more() const { return at < all; }
  __device__ __forceinline__ void next() {
    at += step;
    place();
  }
  __device__ __forceinline__ void place() {
    if (at >= all) return;
    group = at / (GROUP * across);
    int rest = at - group * GROUP * across, size = pairs - group * GROUP;
    if (size > GROUP) size = GROUP;
    tile = rest / size;
    pair = group * GROUP + rest - tile * size;
  }
};

// ---- writing a tile ---------------------------------------------------------------------------------------
// A lane holds pairs of neighbouring columns of two rows; memory wants 16 bytes of one row. Each warp turns its
// sixteen rows in shared memory, 64 columns at a time. The vectors of a row are permuted by the row's number,
// so that neither side meets a bank twice.
struct Staging { uint4 vectors[8][128]; };  // of the eight multiplying warps

// pair(h, b): two elements of row lane / 4 + 8 h, columns 8 b + 2 (lane % 4) and the next. `to` is the first
// element of the warp's rows in the tile; whole vectors are written up to the one that holds column left - 1.
template <class Pair>
__device__ __forceinline__ void write_tile(Staging& staging, Element* to, i64 ld, i64 rows_left, i64 left, Pair pair) {
  uint4* mine = staging.vectors[threadIdx.x / 32 - 4];
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int part = 0; part < COLUMNS / 64; ++part) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int row = lane / 4 + 8 * h;
#pragma unroll
      for (int b = 0; b < 8; ++b) ((u32*)(mine + row * 8 + (b ^ row % 8)))[lane % 4] = pair(h, part * 8 + b);
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      int row = k * 4 + lane / 8, vector = lane % 8;
      uint4 v = mine[row * 8 + (vector ^ row % 8)];
      int column = part * 64 + vector * 8;
      if (row < rows_left && column < left) *(uint4*)(to + row * ld + column) = v;
    }
    __syncwarp();
  }
}

// Calls epilogue(sums, first row of the thread's warp, first column, tiles) for every tile of this block, in
// both multiplying warpgroups. `shared` is 1024-byte aligned and holds SHARED_BYTES.
template <class Epilogue>
__device__ __forceinline__ void all_products(
    const TensorMap& hidden, const TensorMap& weight, i64 rows, i64 vocabulary, i64 depth, u32 shared,
    u64* barriers, Epilogue& epilogue) {
  u32 full = shared_address(barriers), empty = full + 8 * STAGES;
  u32 rank = cluster_rank();
  int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER, group = threadIdx.x / 128;
  int steps = (int)((depth + DEPTH - 1) / DEPTH);
  if (threadIdx.x == 0) {
    for (int k = 0; k < STAGES; ++k) {
      barrier_init(full + 8 * k, 1);
      barrier_init(empty + 8 * k, 2 * CLUSTER);  // both multiplying warpgroups of both blocks
    }
    show_barriers();
  }
  __syncthreads();
  cluster_barrier();
  Tiles tiles(rows, vocabulary, cluster, clusters);
  int stage = 0;
  u32 phase = 0;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      for (; tiles.more(); tiles.next()) {
        int row = (2 * tiles.pair + (int)rank) * ROWS, column = tiles.tile * COLUMNS + (int)rank * (COLUMNS / 2);
        for (int k = 0; k < steps; ++k) {
          barrier_wait(empty + 8 * stage, phase ^ 1);
          u32 ready = full + 8 * stage;
          barrier_expect(ready, A_BYTES + B_BYTES);
          fetch(shared + stage * A_BYTES, &hidden, k * DEPTH, row, ready);
          fetch_for_both(shared + STAGES * A_BYTES + stage * B_BYTES + rank * (B_BYTES / 2), &weight, k * DEPTH,
                         column, ready);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float sums[128];
    int half = group - 1;
    bool signals = threadIdx.x % 128 < CLUSTER;  // one thread a block of the cluster tells it a stage is free
    u32 to = threadIdx.x % 128;
    for (; tiles.more(); tiles.next()) {
      int before = 0;
      for (int k = 0; k < steps; ++k) {
        barrier_wait(full + 8 * stage, phase);
        u64 a = descriptor(shared + stage * A_BYTES + half * (A_BYTES / 2));
        u64 b = descriptor(shared + STAGES * A_BYTES + stage * B_BYTES);
        products_begin();
#pragma unroll
        for (int j = 0; j < DEPTH / 16; ++j) multiply_add<PFKIT_DTYPE>(sums, a + 2 * j, b + 2 * j, k | j);
        products_commit();
        if (k) {
          products_wait<1>();
          if (signals) barrier_arrive(empty + 8 * before, to);
        }
        before = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      products_wait<0>();
      if (signals) barrier_arrive(empty + 8 * before, to);
      int row = (2 * tiles.pair + (int)rank) * ROWS + half * 64 + threadIdx.x % 128 / 32 * 16;
      epilogue(sums, row, tiles.tile * COLUMNS, tiles);
    }
    epilogue.end();
  }
  cluster_barrier();  // no block leaves while another may still arrive at its barriers
}
#endif
