// The forward pass of a probabilistic circuit: one launch walks all of its sum regions.
//
// A region r has K units; its values for a column (an instance of the batch) b are
//     v[j] = sum over children c of y_c[j] + sum over inputs i of table_i[x_i][j]   (a product of units)
//     y[k] = log2 sum_j W[k, j] 2^(v[j] - m),   m = max_j v[j]                      (a weighted sum)
// Logarithms have base 2. y is relative: the maxima of a region and of everything below it are kept apart, as
// one float64 a column, so y stays small and keeps its digits however long the circuit is.
//
// The circuit is a tree, and columns do not depend on each other. A task is a tile of columns and a region.
// Blocks take tasks from one counter. There is no barrier between the levels of the circuit.
// In order (PFKIT_ORDERED, the default): children come first and all columns pass a region together, so that
// W is read from memory once. A block waits for the regions below its own, which running blocks hold; its
// tables and its first tiles of W are on their way before the wait.
// Walking: tasks are regions that have inputs only, those farthest from the root first. A block walks upward,
// to the parent of its region as long as it is the last to arrive there of all regions below it. Nobody waits,
// and on a chain values may stay in shared memory (PFKIT_NEAR), but every column reads W at a time of its own.
//
// A region of many inputs gets some of them from parts: regions without W, whose y is v.
//
// The matrix product runs on tensor cores in float16 and is as good as float32: W scaled by 2^14 and
// 2^(v - m) by 2^15 are hi + 2^-11 lo, both float16, and W p = hi hi + 2^-11 (hi lo + lo hi) in float32. What
// is lost is below 2^-22 of a term or 2^-50 of the largest possible. Results so small that the second could
// matter (and any that weights above 4 made overflow) are computed again in the log domain, in float32.
//
// Each lane of a warp brings its own 32 bytes of a 16 x 16 tile of W through shared memory, some tiles ahead of
// their use: of W as it lies, in float32, or, with many units (PFKIT_PACKED), split and laid out beforehand,
// which saves instructions and reads whole lines.
//
// Order of units: tensor cores hold pairs of terms, and a lane reads four in a row, so within 16 units values
// are stored at `place_of`; tables, values and W all follow it, and nothing is ever shuffled.
//
// Macros: PFKIT_K units (a power of two from 32 to 512); PFKIT_COLUMNS columns a tile; PFKIT_AHEAD tiles of W a
// warp holds (a power of two); PFKIT_WGMMA 1 for Hopper's warpgroup products; PFKIT_PACKED 1 for W made by
// `pack`; PFKIT_ORDERED, PFKIT_NEAR as above; PFKIT_TERMS_FIRST 1 if W lies with its rows along the fast
// dimension; PFKIT_XTYPE 0 int64, 1 int32, 2 uint8 categories.

#include "ptx.cuh"

constexpr int K = PFKIT_K;
constexpr int N = PFKIT_COLUMNS;                 // columns of a task
constexpr int WARPS = PFKIT_THREADS / 32;
constexpr int MK = K < 64 && PFKIT_WGMMA ? 64 : K;  // rows of W with padding to the tile of the instruction
constexpr int PASSES = MK / 16 / WARPS > 0 ? MK / 16 / WARPS : 1;  // 16-row tiles of a warp
constexpr int STEPS = K / 16;                    // steps of 16 along the sum
constexpr int ALL = PASSES * STEPS;
constexpr int NT = N / 8;                        // 8-column tiles
constexpr int CPW = N / WARPS > 0 ? N / WARPS : 1;  // columns of a warp while loading
constexpr int Q = 32 / CPW;                      // lanes that share a column
constexpr int CHUNKS = K / 8 / Q > 0 ? K / 8 / Q : 1;  // runs of 8 units of a lane
constexpr int CHUNK_BYTES = N * 16;              // shared memory of 8 units of all columns
constexpr int GROUP = STEPS < 4 ? STEPS : 4;     // steps that tensor cores add up by themselves
constexpr int AHEAD = PFKIT_AHEAD;
constexpr bool NEAR = PFKIT_NEAR;
constexpr bool ORDERED = PFKIT_ORDERED;
constexpr bool HOLD = CHUNKS <= 4;               // products stay in registers, for what is computed again
constexpr bool EARLY = !ORDERED && CHUNKS <= 2;  // the parent's first two table rows come during the product
constexpr int KEPT = EARLY ? CHUNKS : 1;
constexpr int BUNCH = CHUNKS <= 2 ? 4 : CHUNKS <= 4 ? 2 : 1;  // table rows loaded at once
constexpr int LINE = K + 4;                      // floats of a column in shared memory
constexpr int TILE_BYTES = K * N * 2;
constexpr int NEAR_BYTES = NEAR ? N * LINE * 4 : 0;
constexpr int RING_BYTES = WARPS * AHEAD * 1024;
// Results below K 2^-30 of the largest possible are done again.
constexpr float FLOOR = (float)K / 1073741824.0f;

struct Args {
  const void* x;           // prepare: categories, (batch, variables) row-major. forward: unused
  float* out;              // (batch) natural logarithms; export: (rows, batch)
  int* rows;               // (variables, columns) row of the table, made by `prepare`
  float* values;           // (regions, columns, K)
  double* offsets;         // (regions, columns)
  u32* flags;              // (regions, tiles) children done, then the task counter
  float* scratch;          // forward: (blocks, N, K). tables, pack: the digests
  float* padded;           // pad: (regions, K, K) W filled up with zeros.
                           // pack: W split, (regions, MK / 16, STEPS, 2, 32, 4)
  const float* tables;     // (inputs, table_rows, K) log2
  const int4* regions_of;  // (regions) struct Region, the root last
  const int* links;        // children; pairs (input, variable); the tasks' regions
  const i64* export_rows;  // export: first row of an input or region in `out`, below zero to leave it out
  const i64* weights;      // pad: (regions) address of W
  const i64* input_weights;    // tables: (inputs) address of the probabilities
  const i64* input_sizes;      // tables: categories of an input
  const i64* input_variables;
  i64 stride_row, stride_column;  // of W: along k (results), along j (terms)
  i64 source_row, source_column;  // pad: of W as it is given
  i64 input_stride_unit, input_stride_category;
  i64 regions, inputs, variables, batch, columns, table_rows, units, starts, first_start, keep_all;
};

struct Region {
  int child_begin, child_end, input_begin, input_end;       // of links; inputs count in pairs
  int parent, parent_children;            // how many regions are below the parent
  int first_input, first_variable;        // -1 without an input
  const float* weights;                                      // null: a part of the inputs of its parent
  int second_input, second_variable;
};

__device__ __forceinline__ Region region_at(const Args& a, int r) {
  Region h;
  const int4* p = a.regions_of + 3 * (i64)r;
  int4 x = p[0], y = p[1], z = p[2];
  h.child_begin = x.x; h.child_end = x.y; h.input_begin = x.z; h.input_end = x.w;
  h.parent = y.x; h.parent_children = y.y; h.first_input = y.z; h.first_variable = y.w;
  h.weights = (const float*)((u64)(u32)z.x | (u64)(u32)z.y << 32);
  h.second_input = z.z; h.second_variable = z.w;
  return h;
}

// ---- PTX ---------------------------------------------------------------------------------------------------
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

__device__ __forceinline__ float max_of(float a, float b) { return a > b ? a : b; }

__device__ __forceinline__ u32 add_ordered(u32* p, u32 v) {  // what is written before is seen by who adds after
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}

__device__ __forceinline__ void add_release(u32* p, u32 v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ float4 load_l2(const float* p) {  // written by other blocks of this launch
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

__device__ __forceinline__ double load_l2_double(const double* p) {
  double v;
  asm volatile("ld.global.cg.f64 %0, [%1];" : "=d"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ float4 load_table(const float* p) {
  float4 v;
  asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

// hi + 2^-11 lo of two numbers of magnitude up to 2^15.
__device__ __forceinline__ void split(float a, float b, u32& hi, u32& lo) {
  hi = pack_halves(a, b);
  lo = pack_halves((a - half_to_float((u16)hi)) * 2048.0f, (b - half_to_float((u16)(hi >> 16))) * 2048.0f);
}

__device__ __forceinline__ void store_shared(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Within 16 units, 4 a + b lies at 2 a + b for b = 0, 1 and at 8 + 2 a + b - 2 for b = 2, 3.
__device__ __forceinline__ int place_of(int unit) {
  return (unit & ~15) | (unit & 2) << 2 | (unit & 12) >> 1 | (unit & 1);
}

__device__ __forceinline__ int unit_at(int place) {
  return (place & ~15) | (place & 6) << 1 | (place & 8) >> 2 | (place & 1);
}

// ---- W on its way ------------------------------------------------------------------------------------------
// A 16 x 16 tile of W: rows 2g and 2g + 1 and terms 4t .. 4t + 3 for lane 4g + t, where it wants them itself.
__device__ __forceinline__ void send_tile(const float* w, int row, int term, u32 to) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#if PFKIT_PACKED
  const float* from = w + ((i64)(row / 16) * STEPS + term / 16) * 256 + lane * 4;
#pragma unroll
  for (int e = 0; e < 2; ++e)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + e * 512 + lane * 16),
                 "l"(from + e * 128)
                 : "memory");
#elif PFKIT_TERMS_FIRST
  const float* from = w + (i64)(term + 4 * t) * K + row + 2 * g;
#pragma unroll
  for (int e = 0; e < 4; ++e)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + e * 256 + lane * 8), "l"(from + e * K)
                 : "memory");
#else
  const float* from = w + (i64)(row + 2 * g) * K + term + 4 * t;
#pragma unroll
  for (int e = 0; e < 2; ++e)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + e * 512 + lane * 16), "l"(from + e * K)
                 : "memory");
#endif
}

__device__ __forceinline__ void sent() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int left>
__device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory"); }

__device__ __forceinline__ float4 load_shared(u32 at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

__device__ __forceinline__ float2 load_shared_pair(u32 at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
  return v;
}

// The tile as it lies, in registers; and as the tensor cores take it: hi in a[0..3], lo in a[4..7].
__device__ __forceinline__ void fetch_tile(u32 from, float4 (&raw)[2]) {
  const int lane = threadIdx.x % 32;
#if PFKIT_TERMS_FIRST && !PFKIT_PACKED
  const float2 f = load_shared_pair(from + lane * 8), g = load_shared_pair(from + 256 + lane * 8);
  const float2 h = load_shared_pair(from + 512 + lane * 8), i = load_shared_pair(from + 768 + lane * 8);
  raw[0] = make_float4(f.x, g.x, h.x, i.x);
  raw[1] = make_float4(f.y, g.y, h.y, i.y);
#else
  raw[0] = load_shared(from + lane * 16);
  raw[1] = load_shared(from + 512 + lane * 16);
#endif
}

__device__ __forceinline__ void split_tile(const float4 (&raw)[2], u32* a) {
#if PFKIT_PACKED
  a[0] = __float_as_uint(raw[0].x);
  a[1] = __float_as_uint(raw[0].y);
  a[2] = __float_as_uint(raw[0].z);
  a[3] = __float_as_uint(raw[0].w);
  a[4] = __float_as_uint(raw[1].x);
  a[5] = __float_as_uint(raw[1].y);
  a[6] = __float_as_uint(raw[1].z);
  a[7] = __float_as_uint(raw[1].w);
#else
  constexpr float scale = 16384.0f;
  split(raw[0].x * scale, raw[0].y * scale, a[0], a[4]);
  split(raw[1].x * scale, raw[1].y * scale, a[1], a[5]);
  split(raw[0].z * scale, raw[0].w * scale, a[2], a[6]);
  split(raw[1].z * scale, raw[1].w * scale, a[3], a[7]);
#endif
}

// ---- tensor cores ------------------------------------------------------------------------------------------
#if PFKIT_WGMMA
// No swizzle; 8 x 16-byte blocks, the next along units, along columns.
__device__ __forceinline__ u64 descriptor(u32 address) {
  return (u64)(address >> 4) | (u64)(CHUNK_BYTES >> 4) << 16 | (u64)(128 >> 4) << 32;
}

#define ACC8(c, i)                                                                                  \
  "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]), "+f"(c[i + 1][0]), "+f"(c[i + 1][1]), \
      "+f"(c[i + 1][2]), "+f"(c[i + 1][3])

__device__ __forceinline__ void product(float (&c)[NT][4], const u32* a, u64 b) {
#if PFKIT_COLUMNS == 64
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
      "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
      : ACC8(c, 0), ACC8(c, 2), ACC8(c, 4), ACC8(c, 6)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#elif PFKIT_COLUMNS == 32
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
      "%15}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
      : ACC8(c, 0), ACC8(c, 2)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
      : ACC8(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int left>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
#else
__device__ __forceinline__ void product(float (&c)[4], const u32* a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_matrices(u32 (&b)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(address) : "memory");
}
#endif

// Tensor cores round sums toward zero: over a whole row, and hundreds of regions, that is a bias. So they add
// up short runs only.
__device__ __forceinline__ void collect(float (&total)[NT][4], float (&part)[NT][4]) {
#pragma unroll
  for (int i = 0; i < NT; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#if PFKIT_WGMMA
      asm volatile("" : "+f"(part[i][e])::"memory");              // not read before the wait
#endif
      total[i][e] += part[i][e];
      part[i][e] = 0.0f;
    }
}

// ---- forward -----------------------------------------------------------------------------------------------
struct Shared {
  float maximum[N];
  u32 again[(K * N + 31) / 32];  // results to compute again, one bit each
  int any_again, is_last;
  u32 next;
};

// log2 sum_j W[k, j] 2^v[j] in the log domain: nothing is lost whatever the range. All lanes of a warp.
__device__ __noinline__ float log_domain(const float* w, i64 stride, int units, const float* v) {
  const int lane = threadIdx.x % 32;
  float t[K / 32], most = -infinity();
  for (int i = 0; i < K / 32; ++i) {
    const int j = lane + 32 * i;
    const float p = unit_at(j) < units ? w[unit_at(j) * stride] : 0.0f;
    t[i] = p > 0.0f ? log2_fast(p) + v[j] : -infinity();
    most = max_of(most, t[i]);
  }
  for (int s = 16; s; s /= 2) most = max_of(most, __shfl_xor_sync(~0u, most, s));
  if (most == -infinity()) return most;
  float sum = 0.0f;
  for (int i = 0; i < K / 32; ++i) sum += exp2_fast(t[i] - most);
  for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
  return most + log2_fast(sum);
}

__device__ __forceinline__ const float* tiles_of(const Args& a, const Region& h, int region) {
  return PFKIT_PACKED ? a.padded + (i64)region * MK * K : h.weights;
}

__device__ __forceinline__ void add_to(float (&v)[8], float4 f, float4 g) {
  v[0] += f.x; v[1] += f.y; v[2] += f.z; v[3] += f.w;
  v[4] += g.x; v[5] += g.y; v[6] += g.z; v[7] += g.w;
}

__device__ __forceinline__ void load_rows(float (&v)[KEPT][8], const float* table) {
#pragma unroll
  for (int c = 0; c < KEPT; ++c) {
    const float4 f = load_table(table + 8 * Q * c), g = load_table(table + 8 * Q * c + 4);
    v[c][0] = f.x; v[c][1] = f.y; v[c][2] = f.z; v[c][3] = f.w;
    v[c][4] = g.x; v[c][5] = g.y; v[c][6] = g.z; v[c][7] = g.w;
  }
}

__device__ __forceinline__ void forward(const Args& a, unsigned char* memory) {
  const u32 tile = shared_address(memory);                      // 2^(v - m): hi, then lo
  float* const near = (float*)(memory + 2 * TILE_BYTES);        // y of the region below, if NEAR
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 ring = tile + 2 * TILE_BYTES + NEAR_BYTES + warp * AHEAD * 1024;
  Shared& shared = *(Shared*)(memory + 2 * TILE_BYTES + NEAR_BYTES + RING_BYTES);
  const int tiles = (int)(a.columns / N), root = (int)(a.regions - 1);
  const u32 tasks = (u32)a.starts * tiles;
  u32* const counter = a.flags + a.regions * tiles;
  float* const scratch = a.scratch + (i64)blockIdx.x * N * K;

  for (int i = threadIdx.x; i < (K * N + 31) / 32; i += PFKIT_THREADS) shared.again[i] = 0;
  if (threadIdx.x == 0) {
    shared.any_again = 0;
    shared.next = atomicAdd(counter, 1u);
  }
  __syncthreads();

  const int n = warp * CPW + lane % CPW, q = lane / CPW;        // my column and my place in it while loading
  const bool loads = n < N;
  const bool has_rows = warp * 16 < MK;
  for (;;) {
    const u32 task = shared.next;
    if (task >= tasks) break;
    u32 following = 0;
    if (threadIdx.x == 0) following = atomicAdd(counter, 1u);
    const int column_tile = task % tiles;
    const i64 column = (i64)column_tile * N + n;
    int region = a.links[a.first_start + task / tiles], below = -1;
    Region here = region_at(a, region), above = region_at(a, here.parent);
    double offset = 0.0;                                         // of my column, in the lanes with q = 0
    bool on_its_way = false;                                     // the first tiles of W
    float early[2][KEPT][8];                                     // the first table rows of this region
    for (;;) {
      const bool is_root = region == root;
      const bool is_part = here.weights == nullptr;
      const float* const tiles_here = tiles_of(a, here, region);
      const Region beyond = region_at(a, above.parent);          // for the next step
      if (!is_root && !is_part && has_rows && !on_its_way) {
        arrived<0>();
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
          if (PFKIT_PACKED || MK == K || warp * 16 < K)
            send_tile(tiles_here, warp * 16, 16 * s, ring + s * 1024);
          sent();
        }
      }

      // v
      const bool has_early = EARLY && below >= 0;
      float v[CHUNKS][8];
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          v[c][e] = has_early && here.first_input >= 0 ? early[0][EARLY ? c : 0][e] : 0.0f;
          if (has_early && here.second_input >= 0) v[c][e] += early[1][EARLY ? c : 0][e];
        }
      int row1 = 0, row2 = 0;
      if (loads) {
        if (EARLY && above.first_input >= 0) row1 = a.rows[(i64)above.first_variable * a.columns + column];
        if (EARLY && above.second_input >= 0) row2 = a.rows[(i64)above.second_variable * a.columns + column];
        for (int i = here.input_begin + (has_early ? 2 : 0); i < here.input_end; i += BUNCH) {
          const float* table[BUNCH];
#pragma unroll
          for (int u = 0; u < BUNCH; ++u) {
            const int2 pair = *(const int2*)(a.links + 2 * (i + u < here.input_end ? i + u : i));
            const int row = a.rows[(i64)pair.y * a.columns + column];
            table[u] = a.tables + ((i64)pair.x * a.table_rows + row) * K + 8 * q;
          }
          float4 f[BUNCH][CHUNKS], g[BUNCH][CHUNKS];
#pragma unroll
          for (int u = 0; u < BUNCH; ++u)
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
              f[u][c] = load_table(table[u] + 8 * Q * c);
              g[u][c] = load_table(table[u] + 8 * Q * c + 4);
            }
#pragma unroll
          for (int u = 0; u < BUNCH; ++u)
            if (i + u < here.input_end) {
#pragma unroll
              for (int c = 0; c < CHUNKS; ++c) add_to(v[c], f[u][c], g[u][c]);
            }
        }
      }
      const int children = here.child_end - here.child_begin;
      int first_child = 0, second_child = 0;                      // known before they are ready
      if (children > 0) first_child = a.links[here.child_begin];
      if (children > 1) second_child = a.links[here.child_begin + 1];
      if (ORDERED) {
        if (children && lane == 0)
          while (load_acquire(a.flags + (i64)region * tiles + column_tile) < (u32)children) {}
        __syncwarp();
      }
      if (loads) {
#pragma unroll 1
        for (int i = NEAR && below >= 0 && children == 1 ? 1 : 0; i < children; ++i) {
          const int child = i == 0 ? first_child : i == 1 ? second_child : a.links[here.child_begin + i];
          if (NEAR && child == below) continue;
          const i64 at = (i64)child * a.columns + column;
          const float* from = a.values + at * K + 8 * q;
          if (q == 0 && child != below) offset += load_l2_double(a.offsets + at);
#pragma unroll
          for (int c = 0; c < CHUNKS; ++c)
            add_to(v[c], load_l2(from + 8 * Q * c), load_l2(from + 8 * Q * c + 4));
        }
        if (NEAR && below >= 0) {
          const float* from = near + n * LINE + 8 * q;
#pragma unroll
          for (int c = 0; c < CHUNKS; ++c)
            add_to(v[c], *(const float4*)(from + 8 * Q * c), *(const float4*)(from + 8 * Q * c + 4));
        }
      }

      if (is_root) {  // one row of W
        float most = -infinity(), sum = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const int j = unit_at(8 * (Q * c + q) + e);
            const float p = j < a.units ? here.weights[j] : 0.0f;
            v[c][e] = p > 0.0f ? v[c][e] + log2_fast(p) : -infinity();
            most = max_of(most, v[c][e]);
          }
#pragma unroll
        for (int s = CPW; s < 32; s *= 2) most = max_of(most, __shfl_xor_sync(~0u, most, s));
        const float reference = most == -infinity() ? 0.0f : most;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
          for (int e = 0; e < 8; ++e) sum += exp2_fast(v[c][e] - reference);
#pragma unroll
        for (int s = CPW; s < 32; s *= 2) sum += __shfl_xor_sync(~0u, sum, s);
        if (loads && q == 0 && column < a.batch)
          a.out[column] =
              (float)((offset + (double)reference + (double)log2_fast(sum)) * 0.69314718055994530942);
        break;
      }

      const bool only = !ORDERED && here.parent_children == 1;   // nobody else below the parent
      const bool store = !NEAR || !only || a.keep_all;
      if (is_part) {
        if (loads) {
#pragma unroll
          for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const float4 y = make_float4(v[c][4 * h], v[c][4 * h + 1], v[c][4 * h + 2], v[c][4 * h + 3]);
              const int place = 8 * (Q * c + q) + 4 * h;
              if (NEAR) *(float4*)(near + n * LINE + place) = y;
              if (store) *(float4*)(a.values + ((i64)region * a.columns + column) * K + place) = y;
            }
          if (q == 0 && store) a.offsets[(i64)region * a.columns + column] = offset;
        }
      } else {
        float most = -infinity();
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
          for (int e = 0; e < 8; ++e) most = max_of(most, v[c][e]);
#pragma unroll
        for (int s = CPW; s < 32; s *= 2) most = max_of(most, __shfl_xor_sync(~0u, most, s));
        const float reference = most == -infinity() ? 0.0f : most;
        offset += (double)reference;
        if (loads) {
          if (q == 0) {
            shared.maximum[n] = most;
            if (store) a.offsets[(i64)region * a.columns + column] = offset;
          }
#pragma unroll
          for (int c = 0; c < CHUNKS; ++c) {
            u32 hi[4], lo[4];
#pragma unroll
            for (int e = 0; e < 4; ++e)
              split(exp2_fast(v[c][2 * e] - reference) * 32768.0f,
                    exp2_fast(v[c][2 * e + 1] - reference) * 32768.0f, hi[e], lo[e]);
            const u32 at = tile + (c * Q + q) * CHUNK_BYTES + n * 16;
            store_shared(at, hi[0], hi[1], hi[2], hi[3]);
            store_shared(at + TILE_BYTES, lo[0], lo[1], lo[2], lo[3]);
            if (!HOLD) {
              float* to = scratch + n * K + 8 * (Q * c + q);
              *(float4*)to = make_float4(v[c][0], v[c][1], v[c][2], v[c][3]);
              *(float4*)(to + 4) = make_float4(v[c][4], v[c][5], v[c][6], v[c][7]);
            }
          }
        }
      }
#if PFKIT_WGMMA
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
      __syncthreads();

      if (EARLY && loads) {
        if (above.first_input >= 0)
          load_rows(early[0], a.tables + ((i64)above.first_input * a.table_rows + row1) * K + 8 * q);
        if (above.second_input >= 0)
          load_rows(early[1], a.tables + ((i64)above.second_input * a.table_rows + row2) * K + 8 * q);
      }

      const bool follow = only && here.parent != root;           // the parent's W may be sent for already
      if (has_rows && !is_part) {
        const bool zero_rows = !PFKIT_PACKED && MK != K && warp * 16 >= K;
        float4 raw[2];
        arrived<AHEAD - 1>();
        fetch_tile(ring, raw);
#pragma unroll 1
        for (int pass = 0; pass < PASSES; ++pass) {
          const int first = (pass * WARPS + warp) * 16;          // first of my 16 rows
          float total[NT][4], main[NT][4], rest[NT][4];
#pragma unroll
          for (int i = 0; i < NT; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) total[i][e] = main[i][e] = rest[i][e] = 0.0f;
#pragma unroll 1
          for (int run = 0; run < STEPS / GROUP; ++run) {
            u32 w[2][8];
#pragma unroll
            for (int u = 0; u < GROUP; ++u) {
              const int step = run * GROUP + u, it = pass * STEPS + step;
              u32* const wu = w[u % 2];
#if PFKIT_WGMMA
              if (u >= 2) wait_products<1>();
#endif
              split_tile(raw, wu);
              if (zero_rows) {
#pragma unroll
                for (int e = 0; e < 8; ++e) wu[e] = 0;
              } else {
                const int later = it + AHEAD, turn = later - ALL;
                if (later < ALL)
                  send_tile(tiles_here, (later / STEPS * WARPS + warp) * 16, later % STEPS * 16,
                            ring + later % AHEAD * 1024);
                else if (follow)
                  send_tile(tiles_of(a, above, here.parent), (turn / STEPS * WARPS + warp) * 16,
                            turn % STEPS * 16, ring + later % AHEAD * 1024);
              }
              sent();
              if (it + 1 < ALL) {
                arrived<AHEAD - 1>();
                fetch_tile(ring + (it + 1) % AHEAD * 1024, raw);
              }
#if PFKIT_WGMMA
              const u64 hi = descriptor(tile + step * 2 * CHUNK_BYTES),
                        lo = descriptor(tile + TILE_BYTES + step * 2 * CHUNK_BYTES);
              begin_products();
              product(main, wu, hi);
              product(rest, wu, lo);
              product(rest, wu + 4, hi);
              commit_products();
#else
              const u32 at =
                  tile + (2 * step + (lane / 8) % 2) * CHUNK_BYTES + (lane / 16) * 128 + (lane % 8) * 16;
              u32 hi[2][4], lo[2][4];
              load_matrices(hi[0], at);
              load_matrices(lo[0], at + TILE_BYTES);
#pragma unroll
              for (int i = 0; i < NT; i += 2) {
                const int now = i / 2 % 2;
                if (i + 2 < NT) {
                  load_matrices(hi[1 - now], at + (i + 2) * 128);
                  load_matrices(lo[1 - now], at + TILE_BYTES + (i + 2) * 128);
                }
                product(main[i], wu, hi[now][0], hi[now][1]);
                product(rest[i], wu, lo[now][0], lo[now][1]);
                product(main[i + 1], wu, hi[now][2], hi[now][3]);
                product(rest[i + 1], wu, lo[now][2], lo[now][3]);
                product(rest[i], wu + 4, hi[now][0], hi[now][1]);
                product(rest[i + 1], wu + 4, hi[now][2], hi[now][3]);
              }
#endif
            }
#if PFKIT_WGMMA
            wait_products<0>();
#endif
            collect(total, main);
          }
#if PFKIT_WGMMA
#pragma unroll
          for (int i = 0; i < NT; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(rest[i][e])::"memory");
#endif
          const int place = first + lane / 4 % 2 * 8 + lane / 8 * 2;  // of my two rows, one after the other
          const bool real0 = first + lane / 4 * 2 < a.units, real1 = first + lane / 4 * 2 + 1 < a.units;
          if (MK == K || first < K) {
#pragma unroll
            for (int i = 0; i < NT; ++i)
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                const int m = 8 * i + 2 * (lane % 4) + h;
                const float sum0 = (total[i][h] + rest[i][h] * (1.0f / 2048.0f)) * (1.0f / 536870912.0f);
                const float sum1 =
                    (total[i][h + 2] + rest[i][h + 2] * (1.0f / 2048.0f)) * (1.0f / 536870912.0f);
                const float2 y = make_float2(log2_fast(sum0), log2_fast(sum1));
                if (NEAR) *(float2*)(near + m * LINE + place) = y;
                if (store)
                  *(float2*)(a.values + ((i64)region * a.columns + (i64)column_tile * N + m) * K + place) = y;
                const bool again0 = real0 && !(sum0 >= FLOOR && sum0 < 1e30f),
                           again1 = real1 && !(sum1 >= FLOOR && sum1 < 1e30f);
                if ((again0 || again1) && shared.maximum[m] > -infinity()) {
                  if (again0) atomicOr(&shared.again[(place * N + m) / 32], 1u << (place * N + m) % 32);
                  if (again1)
                    atomicOr(&shared.again[((place + 1) * N + m) / 32], 1u << ((place + 1) * N + m) % 32);
                  shared.any_again = 1;
                }
              }
          }
        }
      }
      __syncthreads();
      if (shared.any_again) {
        if (HOLD && loads) {
#pragma unroll
          for (int c = 0; c < CHUNKS; ++c) {
            float* to = scratch + n * K + 8 * (Q * c + q);
            *(float4*)to = make_float4(v[c][0], v[c][1], v[c][2], v[c][3]);
            *(float4*)(to + 4) = make_float4(v[c][4], v[c][5], v[c][6], v[c][7]);
          }
        }
        __syncthreads();
        for (int word = warp; word < K * N / 32; word += WARPS) {
          for (u32 bits = shared.again[word]; bits; bits &= bits - 1) {
            const int bit = word * 32 + __ffs(bits) - 1, place = bit / N, m = bit % N;
            const float y = log_domain(here.weights + unit_at(place) * a.stride_row, a.stride_column,
                                       (int)a.units, scratch + m * K) -
                            shared.maximum[m];
            if (lane == 0) {
              if (NEAR) near[m * LINE + place] = y;
              if (store) a.values[((i64)region * a.columns + (i64)column_tile * N + m) * K + place] = y;
            }
          }
          __syncwarp();
          if (lane == 0) shared.again[word] = 0;
        }
        __syncthreads();
        if (threadIdx.x == 0) shared.any_again = 0;
      }
      if (ORDERED) {
        if (threadIdx.x == 0) add_release(a.flags + (i64)here.parent * tiles + column_tile, 1u);
        break;
      }
      if (!only) {
        if (threadIdx.x == 0)
          shared.is_last = add_ordered(a.flags + (i64)here.parent * tiles + column_tile, 1u) + 1 ==
                           (u32)here.parent_children;
        __syncthreads();
        if (!shared.is_last) break;
      }
      below = region;
      region = here.parent;
      here = above;
      above = beyond;
      on_its_way = follow && !is_part;
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.next = following;
    __syncthreads();
  }
  arrived<0>();
}

// ---- what comes before and after ---------------------------------------------------------------------------
__device__ __forceinline__ i64 category(const void* x, i64 at) {
#if PFKIT_XTYPE == 0
  return ((const i64*)x)[at];
#elif PFKIT_XTYPE == 1
  return ((const int*)x)[at];
#else
  return ((const u8*)x)[at];
#endif
}

// Categories, transposed, as rows of the tables: the row before the last stands for missing (below zero, and
// the columns that fill the last tile), the last, NaN, for a category that no table has. Clears the flags.
__device__ __forceinline__ void prepare(const Args& a, unsigned char* memory) {
  int (*tile)[33] = (int(*)[33])memory;
  const i64 b0 = 32 * (i64)blockIdx.x, v0 = 32 * (i64)blockIdx.y;
  for (int i = threadIdx.x / 32; i < 32; i += WARPS) {
    const i64 b = b0 + i, v = v0 + threadIdx.x % 32;
    i64 c = b < a.batch && v < a.variables ? category(a.x, b * a.variables + v) : -1;
    tile[i][threadIdx.x % 32] = (int)(c < 0 ? a.table_rows - 2 : c < a.table_rows - 2 ? c : a.table_rows - 1);
  }
  __syncthreads();
  for (int i = threadIdx.x / 32; i < 32; i += WARPS) {
    const i64 b = b0 + threadIdx.x % 32, v = v0 + i;
    if (v < a.variables && b < a.columns) a.rows[v * a.columns + b] = tile[threadIdx.x % 32][i];
  }
  const i64 flags = a.regions * (a.columns / N) + 1;
  const i64 stride = (i64)gridDim.x * gridDim.y * PFKIT_THREADS;
  for (i64 i = (blockIdx.y * (i64)gridDim.x + blockIdx.x) * PFKIT_THREADS + threadIdx.x; i < flags; i += stride)
    a.flags[i] = 0;
}

// W of a region, filled up with zeros to K units, rows of terms; 32 rows a block.
__device__ __forceinline__ void pad(const Args& a, unsigned char* memory) {
  float (*tile)[33] = (float(*)[33])memory;
  const i64 region = blockIdx.x, blocks = K / 32, r0 = 32 * ((i64)blockIdx.y / blocks),
            j0 = 32 * (blockIdx.y % blocks);
  const float* w = (const float*)a.weights[region];
  const bool along = a.source_row == 1;                      // read along the dimension that is contiguous
  for (int i = threadIdx.x / 32; i < 32; i += WARPS) {
    const int dr = along ? threadIdx.x % 32 : i, dj = along ? i : threadIdx.x % 32;
    const i64 r = r0 + dr, j = j0 + dj;
    tile[dr][dj] = r < a.units && j < a.units ? w[r * a.source_row + j * a.source_column] : 0.0f;
  }
  __syncthreads();
  for (int i = threadIdx.x / 32; i < 32; i += WARPS)
    a.padded[(region * K + r0 + i) * K + j0 + threadIdx.x % 32] = tile[i][threadIdx.x % 32];
}

// A digest of what a block reads: two 32-bit numbers a thread, then of all of them.
struct Digest {
  u32 one = 0x9e3779b9u * threadIdx.x + 1u, two = 0x85ebca6bu * threadIdx.x + 7u;

  __device__ __forceinline__ void add(float p) {
    one = one * 0x01000193u + __float_as_uint(p);
    two = (two ^ __float_as_uint(p)) * 0x5bd1e995u;
    two ^= two >> 15;
  }

  // n vectors, at places that `at` knows; four of a thread are on their way at once.
  template <class At>
  __device__ __forceinline__ void add_all(int n, At at) {
    for (int first = threadIdx.x; first < n; first += 4 * PFKIT_THREADS) {
      float4 p[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int i = first + u * PFKIT_THREADS;
        p[u] = i < n ? load_table(at(i)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        add(p[u].x);
        add(p[u].y);
        add(p[u].z);
        add(p[u].w);
      }
    }
  }

  // Whether it is another one than last time, for the whole block; it is kept.
  __device__ __forceinline__ bool differs(uint2* kept) {
    __shared__ u32 parts[2 * WARPS];
    const uint2 last = *kept;
    one = (one ^ one >> 16) * 0x7feb352du;
    two = (two ^ two >> 13) * 0x846ca68bu;
    for (int s = 16; s; s /= 2) {
      one += __shfl_xor_sync(~0u, one, s);
      two += __shfl_xor_sync(~0u, two, s);
    }
    if (threadIdx.x % 32 == 0) {
      parts[threadIdx.x / 16] = one;
      parts[threadIdx.x / 16 + 1] = two;
    }
    __syncthreads();                                          // and everyone has read `last`
    one = two = 0;
    for (int i = 0; i < WARPS; ++i) {
      one += parts[2 * i] * (2u * i + 1u);
      two += parts[2 * i + 1] * (2u * i + 1u);
    }
    if (threadIdx.x == 0) *kept = make_uint2(one, two);
    return last.x != one || last.y != two;
  }
};

__device__ __forceinline__ bool in_vectors(const float* p, i64 stride) {
  return (((u64)p | 4 * (u64)stride) & 15) == 0;
}

// W of a region, 16 rows a block, split and in the order in which the lanes of a warp take it. Read only, if
// its digest is that of the last time.
__device__ __forceinline__ void pack(const Args& a, unsigned char* memory) {
  float (*rows)[K + 1] = (float(*)[K + 1])memory;
  const i64 region = blockIdx.x, first = 16 * (i64)blockIdx.y;
  const i64 row_step = a.source_row, column_step = a.source_column;
  const float* w = (const float*)a.weights[region] + first * row_step;
  const int units = (int)a.units, real = first + 16 <= units ? 16 : first < units ? units - (int)first : 0;
  Digest digest;
  if (real == 16 && units == K && column_step == 1 && in_vectors(w, row_step)) {
    digest.add_all(4 * K, [&](int i) { return w + i / (K / 4) * row_step + i % (K / 4) * 4; });
  } else if (real == 16 && units == K && row_step == 1 && in_vectors(w, column_step)) {
    digest.add_all(4 * K, [&](int i) { return w + i / 4 * column_step + i % 4 * 4; });
  } else {
    for (int i = threadIdx.x; i < real * units; i += PFKIT_THREADS)
      digest.add(w[i / units * row_step + i % units * column_step]);
  }
  if (!digest.differs((uint2*)a.scratch + (region * gridDim.y + blockIdx.y))) return;

  const bool along = row_step == 1;                           // read along the dimension that is contiguous
#pragma unroll 4
  for (int i = threadIdx.x; i < 16 * K; i += PFKIT_THREADS) {
    const int r = along ? i % 16 : i / K, j = along ? i / 16 : i % K;
    rows[r][j] = r < real && j < units ? w[r * row_step + j * column_step] : 0.0f;
  }
  __syncthreads();
  uint4* out = (uint4*)a.padded + (region * (MK / 16) + blockIdx.y) * (STEPS * 64);
  for (int i = threadIdx.x; i < STEPS * 32; i += PFKIT_THREADS) {
    const int lane = i % 32, step = i / 32, g = lane / 4 * 2, t = 16 * step + lane % 4 * 4;
    u32 hi[4], lo[4];
    constexpr float scale = 16384.0f;
    split(rows[g][t] * scale, rows[g][t + 1] * scale, hi[0], lo[0]);
    split(rows[g + 1][t] * scale, rows[g + 1][t + 1] * scale, hi[1], lo[1]);
    split(rows[g][t + 2] * scale, rows[g][t + 3] * scale, hi[2], lo[2]);
    split(rows[g + 1][t + 2] * scale, rows[g + 1][t + 3] * scale, hi[3], lo[3]);
    out[step * 64 + lane] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    out[step * 64 + 32 + lane] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
  }
}

// log2 of the input probabilities, units fastest, in their places; then the row of a missing value and the row
// of no category. A block has 32 units of an input. It reads them, and if their digest is that of the last
// time it is done: parameters that stay as they are cost one read.
__device__ __forceinline__ void tables(const Args& a, unsigned char* memory) {
  float (*tile)[33] = (float(*)[33])memory;                   // [category][unit]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 input = blockIdx.x, k0 = 32 * (i64)blockIdx.y, size = a.input_sizes[input];
  const i64 unit_step = a.input_stride_unit, category_step = a.input_stride_category;
  const float* w = (const float*)a.input_weights[input] + k0 * unit_step;
  const i64 units = a.units - k0 >= 32 ? 32 : a.units > k0 ? a.units - k0 : 0;
  const bool along = category_step == 1;
  Digest digest;
  if (along && unit_step == size && units * size % 4 == 0 && units * size < 1 << 30 && in_vectors(w, 0)) {
    digest.add_all((int)(units * size / 4), [&](int i) { return w + 4 * (i64)i; });
  } else {
    for (i64 i = threadIdx.x; i < units * size; i += PFKIT_THREADS)
      digest.add(w[i / size * unit_step + i % size * category_step]);
  }
  if (!digest.differs((uint2*)a.scratch + (input * gridDim.y + blockIdx.y))) return;

  for (i64 c0 = 0; c0 < a.table_rows; c0 += 32) {
    for (int i = warp; i < 32; i += WARPS) {
      const i64 k = along ? i : lane, c = c0 + (along ? lane : i);
      tile[along ? lane : i][k] = k < units && c < size ? w[k * unit_step + c * category_step] : 0.0f;
    }
    __syncthreads();
    for (int i = warp; i < 32; i += WARPS) {
      const i64 c = c0 + i;
      if (c >= a.table_rows) break;
      float y = __int_as_float(0x7fc00000);
      if (c == a.table_rows - 2) y = lane < units ? 0.0f : -infinity();
      else if (c < size) y = lane < units ? log2_fast(tile[i][lane]) : -infinity();
      const_cast<float*>(a.tables)[(input * a.table_rows + c) * K + place_of((int)k0 + lane)] = y;
    }
    __syncthreads();
  }
}

// Natural logarithms of all values, batch fastest: 32 columns x 32 units a block; inputs first, then the
// regions.
__device__ __forceinline__ void export_values(const Args& a, unsigned char* memory) {
  float (*tile)[33] = (float(*)[33])memory;
  const i64 node = blockIdx.x, blocks = (K + 31) / 32, b0 = 32 * ((i64)blockIdx.y / blocks),
            k0 = 32 * (blockIdx.y % blocks);
  const i64 target = a.export_rows[node];
  if (target < 0) return;
  const bool is_input = node < a.inputs;
  const i64 region = node - a.inputs;
  for (int i = threadIdx.x / 32; i < 32; i += WARPS) {
    const i64 b = b0 + i, k = k0 + threadIdx.x % 32;
    float y = 0.0f;
    if (b < a.batch && k < a.units) {
      if (is_input) {
        const i64 variable = a.input_variables[node];
        y = a.tables[(node * a.table_rows + a.rows[variable * a.columns + b]) * K + place_of((int)k)] *
            0.69314718055994530942f;
      } else {
        y = (float)(((double)a.values[(region * a.columns + b) * K + place_of((int)k)] +
                     a.offsets[region * a.columns + b]) *
                    0.69314718055994530942);
      }
    }
    tile[i][threadIdx.x % 32] = y;
  }
  __syncthreads();
  for (int i = threadIdx.x / 32; i < 32; i += WARPS) {
    const i64 b = b0 + threadIdx.x % 32, k = k0 + i;
    if (b < a.batch && k < a.units) a.out[(target + k) * a.batch + b] = tile[threadIdx.x % 32][i];
  }
}

extern "C" __global__ void __launch_bounds__(PFKIT_THREADS, PFKIT_BLOCKS)
    entry(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) unsigned char memory[];
  PFKIT_ENTRY(a, memory);
}
