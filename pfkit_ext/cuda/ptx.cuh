// What CUDA's headers would bring and these sources do without: number types, and the instructions of PTX that
// several kernels use, under names of their own.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef unsigned long long u64;
typedef long long i64;

// On the special-function unit: 2^x to 2^-22 of itself, results below the normal range 0; log2 x to about 2^-22.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// a b, rounded once, held to 0 .. 1.
__device__ __forceinline__ float saturating_product(float a, float b) {
  float c;
  asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// ---- 16-bit floats ----------------------------------------------------------------------------------------
__device__ __forceinline__ float half_to_float(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}

__device__ __forceinline__ u16 float_to_half(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

__device__ __forceinline__ u16 float_to_bfloat(float f) {  // round half to even; a NaN stays one
  u32 b = __float_as_uint(f);
  if (f != f) return 0x7fff;
  return (u16)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

// Two of them in a register; `low` lies first in memory.
__device__ __forceinline__ u32 pack_halves(float low, float high) {
#if __CUDA_ARCH__ >= 800
  u32 v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
#else
  return (u32)float_to_half(low) | (u32)float_to_half(high) << 16;
#endif
}

__device__ __forceinline__ u32 pack_bfloats(float low, float high) {
#if __CUDA_ARCH__ >= 800
  u32 v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
#else
  return (u32)float_to_bfloat(low) | (u32)float_to_bfloat(high) << 16;
#endif
}

// ---- shared memory ----------------------------------------------------------------------------------------
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
