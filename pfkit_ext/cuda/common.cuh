// Shared by every kernel: element types, the argument block, 16-byte loads that need no aligned rows.
//
// Compiled by NVRTC with no CUDA header. PFKIT_DTYPE picks the element type: 0 float32, 1 float64, 2 float16,
// 3 bfloat16. Arithmetic is float32, or float64 for float64.
#include "ptx.cuh"

#if PFKIT_DTYPE == 0
typedef u32 Element;
typedef float C;
#elif PFKIT_DTYPE == 1
typedef u64 Element;
typedef double C;
#else
typedef u16 Element;
typedef float C;
#endif

constexpr int E = 16 / sizeof(Element);  // elements a 16-byte vector
constexpr int DIMS = 6;
constexpr double LOG2E = 1.4426950408889634;

// One block of arguments for all kernels. Strides count elements. The kept dimensions enumerate the results
// in C order; the reduced ones enumerate the terms of one result.
struct Args {
  const Element* in;
  void* out;           // value, or null
  void* maximum;       // state: maximum of the row (type C), or null
  void* total;         // state: see the kernel that writes it, or null
  void* workspace;     // partial results, [row][split]
  const void* reference;  // the integer kernel: use this (type C) for the maximum of a row, or null
  const void* grad;    // backward: gradient of the value, one float64 a row
  Element* grad_in;    // backward: gradient of the input, rows contiguous
  i64 n;               // terms of a row
  i64 rows;
  i64 splits;          // parts a row is cut into
  i64 out_dtype;       // type of `out`, numbered as PFKIT_DTYPE
  i64 exact_total;     // the integer kernel: `total` is two u64 (high, low), not a float64
  i64 kept_dims;
  i64 kept_size[DIMS];
  i64 kept_stride[DIMS];
  i64 reduced_dims;
  i64 reduced_size[DIMS];
  i64 reduced_stride[DIMS];
};

// Kept out of line: 64-bit divisions are long, and rows with one stride never need them.
__device__ __noinline__ i64 offset_of_many(i64 index, int dims, const i64* size, const i64* stride) {
  i64 offset = 0;
  for (int d = dims - 1; d > 0; --d) {
    i64 quotient = ((u64)index | (u64)size[d]) >> 32 ? index / size[d] : (i64)((u32)index / (u32)size[d]);
    offset += (index - quotient * size[d]) * stride[d];
    index = quotient;
  }
  return dims ? offset + index * stride[0] : 0;
}

__device__ __forceinline__ i64 offset_of(i64 index, i64 dims, const i64* size, const i64* stride) {
  return dims == 1 ? index * stride[0] : offset_of_many(index, (int)dims, size, stride);
}

__device__ __forceinline__ i64 row_offset(const Args& a, i64 row) {
  return offset_of(row, a.kept_dims, a.kept_size, a.kept_stride);
}

__device__ __forceinline__ i64 term_offset(const Args& a, i64 term) {
  return offset_of(term, a.reduced_dims, a.reduced_size, a.reduced_stride);
}

// Part `part` of `parts` of n things in a row.
struct Range { i64 begin, end; };

__device__ __forceinline__ Range range_of(i64 n, i64 part, i64 parts) {
  i64 each = (n + parts - 1) / parts, begin = part * each;
  return Range{begin, begin + each < n ? begin + each : n};
}

// ---- elements ---------------------------------------------------------------------------------------------
__device__ __forceinline__ C to_compute(Element e) {
#if PFKIT_DTYPE == 0
  return __uint_as_float(e);
#elif PFKIT_DTYPE == 1
  return __longlong_as_double((i64)e);
#elif PFKIT_DTYPE == 2
  return half_to_float(e);
#else
  return __uint_as_float((u32)e << 16);
#endif
}

__device__ __forceinline__ Element from_compute(C c) {
#if PFKIT_DTYPE == 0
  return __float_as_uint(c);
#elif PFKIT_DTYPE == 1
  return (u64)__double_as_longlong(c);
#elif PFKIT_DTYPE == 2
  return float_to_half(c);
#else
  return float_to_bfloat(c);
#endif
}

// Two elements of a 16-bit type in a register; TYPE is numbered as PFKIT_DTYPE.
template <int TYPE>
__device__ __forceinline__ u32 pack_as(float low, float high) {
  return TYPE == 2 ? pack_halves(low, high) : pack_bfloats(low, high);
}

// Element j of a 16-byte vector; j is a constant wherever this is called.
__device__ __forceinline__ C element(const uint4& v, int j) {
#if PFKIT_DTYPE == 0
  return __uint_as_float(j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w);
#elif PFKIT_DTYPE == 1
  return j == 0 ? __hiloint2double((int)v.y, (int)v.x) : __hiloint2double((int)v.w, (int)v.z);
#else
  u32 w = j < 2 ? v.x : j < 4 ? v.y : j < 6 ? v.z : v.w;
#if PFKIT_DTYPE == 2
  return half_to_float((u16)(j & 1 ? w >> 16 : w & 0xffffu));
#else
  return __uint_as_float(j & 1 ? w & 0xffff0000u : w << 16);
#endif
#endif
}

__device__ __forceinline__ void set_element(uint4& v, int j, Element e) {
#if PFKIT_DTYPE == 0
  if (j == 0) v.x = e; else if (j == 1) v.y = e; else if (j == 2) v.z = e; else v.w = e;
#elif PFKIT_DTYPE == 1
  if (j == 0) { v.x = (u32)e; v.y = (u32)(e >> 32); } else { v.z = (u32)e; v.w = (u32)(e >> 32); }
#else
  u32& w = j < 2 ? v.x : j < 4 ? v.y : j < 6 ? v.z : v.w;
  w = j & 1 ? (w & 0xffffu) | ((u32)e << 16) : (w & 0xffff0000u) | e;
#endif
}

#if PFKIT_DTYPE == 0
constexpr Element MINUS_INFINITY = 0xff800000u;
#elif PFKIT_DTYPE == 1
constexpr Element MINUS_INFINITY = 0xfff0000000000000ull;
#elif PFKIT_DTYPE == 2
constexpr Element MINUS_INFINITY = 0xfc00;
#else
constexpr Element MINUS_INFINITY = 0xff80;
#endif

__device__ __forceinline__ uint4 vector_of_minus_infinity() {
  constexpr u64 r = sizeof(Element) == 8 ? (u64)MINUS_INFINITY
                    : sizeof(Element) == 4 ? (u64)MINUS_INFINITY * 0x100000001ull
                                           : (u64)MINUS_INFINITY * 0x0001000100010001ull;
  return make_uint4((u32)r, (u32)(r >> 32), (u32)r, (u32)(r >> 32));
}

// ---- a contiguous row as aligned vectors ------------------------------------------------------------------
// A row may start anywhere: the window begins at the 16-byte boundary at or below it, and the elements of the
// first and last vector that belong to others become -inf. An aligned vector never leaves the 16 bytes that
// hold a byte of the row, so nothing outside the allocation's own granule is touched.
struct Window {
  const uint4* base;
  int skip;      // elements of the first vector before the row
  i64 vectors;
  int last;      // elements of the last vector that belong to the row
};

__device__ __forceinline__ Window window(const Element* row, i64 n) {
  Window w;
  w.skip = (int)(((u64)row & 15u) / sizeof(Element));
  w.base = (const uint4*)((u64)row & ~15ull);
  w.vectors = (w.skip + n + E - 1) / E;
  w.last = (int)(w.skip + n - (w.vectors - 1) * E);
  return w;
}

__device__ __forceinline__ uint4 load_once(const uint4* p) {  // read once: do not keep it in L1
  uint4 v;
#ifndef PFKIT_LOAD
#define PFKIT_LOAD "ld.global.nc.L1::no_allocate.v4.u32"
#endif
  asm volatile(PFKIT_LOAD " {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

__device__ __forceinline__ void mask_edges(uint4& v, i64 index, const Window& w) {
  if (index == 0 && w.skip) {
#pragma unroll
    for (int j = 0; j < E; ++j) if (j < w.skip) set_element(v, j, MINUS_INFINITY);
  }
  if (index == w.vectors - 1 && w.last < E) {
#pragma unroll
    for (int j = 0; j < E; ++j) if (j >= w.last) set_element(v, j, MINUS_INFINITY);
  }
}

__device__ __forceinline__ uint4 load_or_nothing(const Window& w, i64 index, i64 end) {
  return index < end ? load_once(w.base + index) : vector_of_minus_infinity();
}

// A batch of a thread: the vectors at, at + STRIDE, ...; -inf for what is not the row's.
template <int STRIDE, int V>
__device__ __forceinline__ void mask_batch(uint4 (&v)[V], const Window& w, i64 at) {
  if (w.skip || w.last < E) {
#pragma unroll
    for (int k = 0; k < V; ++k) mask_edges(v[k], at + k * STRIDE, w);
  }
}

template <int STRIDE, int V>
__device__ __forceinline__ void load_batch(uint4 (&v)[V], const Window& w, i64 at, i64 end) {
#pragma unroll
  for (int k = 0; k < V; ++k) v[k] = load_or_nothing(w, at + k * STRIDE, end);
  mask_batch<STRIDE>(v, w, at);
}

#if PFKIT_DTYPE == 1
constexpr C LARGEST = 1.7976931348623157e308;
#define INFINITE __longlong_as_double(0x7ff0000000000000ll)
#else
constexpr C LARGEST = 3.402823466e38f;
#define INFINITE __int_as_float(0x7f800000)
#endif

// e^t; in float32 to 2^-22 and half an ulp of t log2 e, which is rounded.
__device__ __forceinline__ C expo(C t) {
#if PFKIT_DTYPE == 1
  return exp(t);
#else
  return exp2_fast(t * (C)LOG2E);
#endif
}

// The larger of two; a NaN wins. (fmax drops it.)
__device__ __forceinline__ C maximum_or_nan(C a, C b) {
#if PFKIT_DTYPE != 1 && __CUDA_ARCH__ >= 800
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return a > b || a != a ? a : b;
#endif
}

// The largest over LANES neighbouring lanes; whether a NaN wins is the caller's choice.
template <int LANES, bool NAN_WINS>
__device__ __forceinline__ C largest_lane(C m) {
#if PFKIT_DTYPE != 1 && __CUDA_ARCH__ >= 800
  if constexpr (LANES == 32) {  // one reduction of integers in the order of floats, a NaN above +inf
    int b = __float_as_int(NAN_WINS && m != m ? __int_as_float(0x7fffffff) : m);
    b ^= (b >> 31) & 0x7fffffff;
    asm("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(b) : "r"(b));
    return __int_as_float(b ^ ((b >> 31) & 0x7fffffff));
  }
#endif
#pragma unroll
  for (int d = LANES / 2; d; d /= 2) {
    C other = __shfl_xor_sync(0xffffffffu, m, d);
    m = NAN_WINS ? maximum_or_nan(m, other) : fmax(m, other);
  }
  return m;
}

// The values of all threads of a block joined, in a fixed tree. join(x, Lanes<L>()) joins those of L
// neighbouring lanes and gives each of them the result.
template <int L>
struct Lanes { static constexpr int count = L; };

template <int THREADS, class T, class Join>
__device__ __forceinline__ T join_block(T x, Join join) {
  __shared__ T warps[THREADS / 32];
  x = join(x, Lanes<32>());
  if (THREADS == 32) return x;
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  return join(warps[threadIdx.x % (THREADS / 32)], Lanes<THREADS / 32>());
}

// ---- results ----------------------------------------------------------------------------------------------
__device__ __noinline__ void store_other(const Args& a, i64 row, double value) {  // rarely: kept out of the way
  switch ((int)a.out_dtype) {
    case 1: ((double*)a.out)[row] = value; break;
    case 2: ((u16*)a.out)[row] = float_to_half((float)value); break;
    default: ((u16*)a.out)[row] = float_to_bfloat((float)value);
  }
}

template <class T>
__device__ __forceinline__ void store_value(const Args& a, i64 row, T value) {
  if (a.out_dtype == 0) ((float*)a.out)[row] = (float)value;
  else store_other(a, row, (double)value);
}

// ---- thread-block clusters (compute capability 9.0) -------------------------------------------------------
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 cluster_rank() {
  u32 r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

// A block may be written to once it has started: kernels of clusters arrive first thing and wait before their
// first remote store.
// Store 64 bits into the same shared variable of another block of the cluster.
__device__ __forceinline__ void store_remote(void* local, u32 rank, u64 value) {
  u32 here = shared_address(local), there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("st.shared::cluster.u64 [%0], %1;" :: "r"(there), "l"(value) : "memory");
}
#endif

// ---- starting before the kernels ahead have finished (programmatic dependent launch, 9.0) ------------------
// Every thread waits here before it touches memory until everything ahead in the stream is complete and
// visible, so a stream keeps its order; only the cost of starting is hidden. Nothing in a launch that did not
// ask for it.
__device__ __forceinline__ void wait_for_kernels_ahead() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel's blocks may be placed once every block of this one has been here (or has ended). Too early,
// and they crowd the multiprocessors that happen to have room: kernels of one long wave call it late.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- the entry point --------------------------------------------------------------------------------------
// One kernel a compilation: PFKIT_ENTRY names the function, PFKIT_THREADS, PFKIT_BLOCKS and PFKIT_CLUSTER its
// launch. Any argument block will do that starts with eight pointers.
#define PFKIT_DEFINE_ENTRY_OF(ARGUMENTS)                                                              \
  extern "C" __global__ void __launch_bounds__(PFKIT_THREADS, PFKIT_BLOCKS) PFKIT_CLUSTER_ATTRIBUTE   \
      entry(const __grid_constant__ ARGUMENTS a) { wait_for_kernels_ahead(); PFKIT_ENTRY(a); }
#define PFKIT_DEFINE_ENTRY PFKIT_DEFINE_ENTRY_OF(Args)
#if PFKIT_CLUSTER > 1
#define PFKIT_CLUSTER_ATTRIBUTE __cluster_dims__(PFKIT_CLUSTER, 1, 1)
#else
#define PFKIT_CLUSTER_ATTRIBUTE
#endif
