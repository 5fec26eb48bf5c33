/* A few machine registers of each kind, for code whose result does not depend on how many lanes go together.
 *
 * simd.h's sixteen-lane types are for reductions, where the lane count shows in the bits. Elementwise work (random
 * numbers, transcendental functions, models) is the same at any width; it wants PF_REGS registers in lockstep: one
 * alone waits for its own latencies, more than two or four spill.
 *
 *   vd, vf      doubles, floats            VD_LANES, VF_LANES of them
 *   vq, vi      64-bit and 32-bit words    as many as vd and vf
 *   rd, rf, rq, ri                         one register of each: this file only
 *
 * select_sign(s, a, b): a where the top bit of s is set, else b: the only branch-free choice that costs one instruction
 * everywhere. Comparisons are subtractions whose sign is read.
 */
#ifndef PF_NATIVE_H
#define PF_NATIVE_H

#include "simd.h"

#define PF_BITS_Q(x) ((long long)(x))

#if defined(PF_LEVEL_AVX512)

typedef __m512d rd;
typedef __m512 rf;
typedef __m512i rq;
typedef __m512i ri;
#define RD_LANES 8
#define RF_LANES 16
#define PF_PACK 2                                /* rq registers whose low words fill one ri */
PF_INLINE rd rd_load(const double *p) { return _mm512_loadu_pd(p); }
PF_INLINE void rd_store(double *p, rd a) { _mm512_storeu_pd(p, a); }
PF_INLINE rd rd_set1(double s) { return _mm512_set1_pd(s); }
PF_INLINE rd rd_add(rd a, rd b) { return _mm512_add_pd(a, b); }
PF_INLINE rd rd_sub(rd a, rd b) { return _mm512_sub_pd(a, b); }
PF_INLINE rd rd_mul(rd a, rd b) { return _mm512_mul_pd(a, b); }
PF_INLINE rd rd_div(rd a, rd b) { return _mm512_div_pd(a, b); }
PF_INLINE rd rd_fma(rd a, rd b, rd c) { return _mm512_fmadd_pd(a, b, c); }
PF_INLINE rd rd_sqrt(rd a) { return _mm512_sqrt_pd(a); }
PF_INLINE rd rd_min(rd a, rd b) { return _mm512_min_pd(a, b); }
PF_INLINE rd rd_max(rd a, rd b) { return _mm512_max_pd(a, b); }
PF_INLINE rq rd_bits(rd a) { return _mm512_castpd_si512(a); }
PF_INLINE rd rq_float(rq a) { return _mm512_castsi512_pd(a); }
PF_INLINE rd rd_select_sign(rq s, rd a, rd b) { return _mm512_mask_blend_pd(_mm512_movepi64_mask(s), b, a); }
PF_INLINE int rd_any_sign(rq s) { return _mm512_movepi64_mask(s) != 0; }
PF_INLINE rq rq_load(const uint64_t *p) { return _mm512_loadu_si512(p); }
PF_INLINE void rq_store(uint64_t *p, rq a) { _mm512_storeu_si512(p, a); }
PF_INLINE rq rq_set1(uint64_t s) { return _mm512_set1_epi64(PF_BITS_Q(s)); }
PF_INLINE rq rq_add(rq a, rq b) { return _mm512_add_epi64(a, b); }
PF_INLINE rq rq_sub(rq a, rq b) { return _mm512_sub_epi64(a, b); }
PF_INLINE rq rq_and(rq a, rq b) { return _mm512_and_si512(a, b); }
PF_INLINE rq rq_or(rq a, rq b) { return _mm512_or_si512(a, b); }
PF_INLINE rq rq_xor(rq a, rq b) { return _mm512_xor_si512(a, b); }
#define rq_shr(a, n) _mm512_srli_epi64(a, n)
#define rq_shl(a, n) _mm512_slli_epi64(a, n)
PF_INLINE rq rq_mul32(rq a, rq b) { return _mm512_mul_epu32(a, b); }
PF_INLINE rf rf_load(const float *p) { return _mm512_loadu_ps(p); }
PF_INLINE void rf_store(float *p, rf a) { _mm512_storeu_ps(p, a); }
PF_INLINE rf rf_set1(float s) { return _mm512_set1_ps(s); }
PF_INLINE rf rf_add(rf a, rf b) { return _mm512_add_ps(a, b); }
PF_INLINE rf rf_sub(rf a, rf b) { return _mm512_sub_ps(a, b); }
PF_INLINE rf rf_mul(rf a, rf b) { return _mm512_mul_ps(a, b); }
PF_INLINE rf rf_div(rf a, rf b) { return _mm512_div_ps(a, b); }
PF_INLINE rf rf_fma(rf a, rf b, rf c) { return _mm512_fmadd_ps(a, b, c); }
PF_INLINE rf rf_sqrt(rf a) { return _mm512_sqrt_ps(a); }
PF_INLINE rf rf_min(rf a, rf b) { return _mm512_min_ps(a, b); }
PF_INLINE rf rf_max(rf a, rf b) { return _mm512_max_ps(a, b); }
PF_INLINE ri rf_bits(rf a) { return _mm512_castps_si512(a); }
PF_INLINE rf ri_float(ri a) { return _mm512_castsi512_ps(a); }
PF_INLINE rf rf_select_sign(ri s, rf a, rf b) { return _mm512_mask_blend_ps(_mm512_movepi32_mask(s), b, a); }
PF_INLINE int rf_any_sign(ri s) { return _mm512_movepi32_mask(s) != 0; }
PF_INLINE ri ri_set1(uint32_t s) { return _mm512_set1_epi32((int)s); }
PF_INLINE void ri_store(uint32_t *p, ri a) { _mm512_storeu_si512(p, a); }
PF_INLINE ri ri_add(ri a, ri b) { return _mm512_add_epi32(a, b); }
PF_INLINE ri ri_sub(ri a, ri b) { return _mm512_sub_epi32(a, b); }
PF_INLINE ri ri_and(ri a, ri b) { return _mm512_and_si512(a, b); }
PF_INLINE ri ri_or(ri a, ri b) { return _mm512_or_si512(a, b); }
PF_INLINE ri ri_xor(ri a, ri b) { return _mm512_xor_si512(a, b); }
#define ri_shr(a, n) _mm512_srli_epi32(a, n)
#define ri_shl(a, n) _mm512_slli_epi32(a, n)
PF_INLINE rf ri_to_rf(ri a) { return _mm512_cvtepi32_ps(a); }             /* signed */
PF_INLINE ri ri_pack(rq a, rq b)
{
    const ri pick = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi32(a, pick, b);
}
#define PF_PACK_ORDER { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }

#elif defined(PF_LEVEL_AVX2)

typedef __m256d rd;
typedef __m256 rf;
typedef __m256i rq;
typedef __m256i ri;
#define RD_LANES 4
#define RF_LANES 8
#define PF_PACK 2
PF_INLINE rd rd_load(const double *p) { return _mm256_loadu_pd(p); }
PF_INLINE void rd_store(double *p, rd a) { _mm256_storeu_pd(p, a); }
PF_INLINE rd rd_set1(double s) { return _mm256_set1_pd(s); }
PF_INLINE rd rd_add(rd a, rd b) { return _mm256_add_pd(a, b); }
PF_INLINE rd rd_sub(rd a, rd b) { return _mm256_sub_pd(a, b); }
PF_INLINE rd rd_mul(rd a, rd b) { return _mm256_mul_pd(a, b); }
PF_INLINE rd rd_div(rd a, rd b) { return _mm256_div_pd(a, b); }
PF_INLINE rd rd_fma(rd a, rd b, rd c) { return _mm256_fmadd_pd(a, b, c); }
PF_INLINE rd rd_sqrt(rd a) { return _mm256_sqrt_pd(a); }
PF_INLINE rd rd_min(rd a, rd b) { return _mm256_min_pd(a, b); }
PF_INLINE rd rd_max(rd a, rd b) { return _mm256_max_pd(a, b); }
PF_INLINE rq rd_bits(rd a) { return _mm256_castpd_si256(a); }
PF_INLINE rd rq_float(rq a) { return _mm256_castsi256_pd(a); }
PF_INLINE rd rd_select_sign(rq s, rd a, rd b) { return _mm256_blendv_pd(b, a, _mm256_castsi256_pd(s)); }
PF_INLINE int rd_any_sign(rq s) { return _mm256_movemask_pd(_mm256_castsi256_pd(s)) != 0; }
PF_INLINE rq rq_load(const uint64_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
PF_INLINE void rq_store(uint64_t *p, rq a) { _mm256_storeu_si256((__m256i *)p, a); }
PF_INLINE rq rq_set1(uint64_t s) { return _mm256_set1_epi64x(PF_BITS_Q(s)); }
PF_INLINE rq rq_add(rq a, rq b) { return _mm256_add_epi64(a, b); }
PF_INLINE rq rq_sub(rq a, rq b) { return _mm256_sub_epi64(a, b); }
PF_INLINE rq rq_and(rq a, rq b) { return _mm256_and_si256(a, b); }
PF_INLINE rq rq_or(rq a, rq b) { return _mm256_or_si256(a, b); }
PF_INLINE rq rq_xor(rq a, rq b) { return _mm256_xor_si256(a, b); }
#define rq_shr(a, n) _mm256_srli_epi64(a, n)
#define rq_shl(a, n) _mm256_slli_epi64(a, n)
PF_INLINE rq rq_mul32(rq a, rq b) { return _mm256_mul_epu32(a, b); }
PF_INLINE rf rf_load(const float *p) { return _mm256_loadu_ps(p); }
PF_INLINE void rf_store(float *p, rf a) { _mm256_storeu_ps(p, a); }
PF_INLINE rf rf_set1(float s) { return _mm256_set1_ps(s); }
PF_INLINE rf rf_add(rf a, rf b) { return _mm256_add_ps(a, b); }
PF_INLINE rf rf_sub(rf a, rf b) { return _mm256_sub_ps(a, b); }
PF_INLINE rf rf_mul(rf a, rf b) { return _mm256_mul_ps(a, b); }
PF_INLINE rf rf_div(rf a, rf b) { return _mm256_div_ps(a, b); }
PF_INLINE rf rf_fma(rf a, rf b, rf c) { return _mm256_fmadd_ps(a, b, c); }
PF_INLINE rf rf_sqrt(rf a) { return _mm256_sqrt_ps(a); }
PF_INLINE rf rf_min(rf a, rf b) { return _mm256_min_ps(a, b); }
PF_INLINE rf rf_max(rf a, rf b) { return _mm256_max_ps(a, b); }
PF_INLINE ri rf_bits(rf a) { return _mm256_castps_si256(a); }
PF_INLINE rf ri_float(ri a) { return _mm256_castsi256_ps(a); }
PF_INLINE rf rf_select_sign(ri s, rf a, rf b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(s)); }
PF_INLINE int rf_any_sign(ri s) { return _mm256_movemask_ps(_mm256_castsi256_ps(s)) != 0; }
PF_INLINE ri ri_set1(uint32_t s) { return _mm256_set1_epi32((int)s); }
PF_INLINE void ri_store(uint32_t *p, ri a) { _mm256_storeu_si256((__m256i *)p, a); }
PF_INLINE ri ri_add(ri a, ri b) { return _mm256_add_epi32(a, b); }
PF_INLINE ri ri_sub(ri a, ri b) { return _mm256_sub_epi32(a, b); }
PF_INLINE ri ri_and(ri a, ri b) { return _mm256_and_si256(a, b); }
PF_INLINE ri ri_or(ri a, ri b) { return _mm256_or_si256(a, b); }
PF_INLINE ri ri_xor(ri a, ri b) { return _mm256_xor_si256(a, b); }
#define ri_shr(a, n) _mm256_srli_epi32(a, n)
#define ri_shl(a, n) _mm256_slli_epi32(a, n)
PF_INLINE rf ri_to_rf(ri a) { return _mm256_cvtepi32_ps(a); }
PF_INLINE ri ri_pack(rq a, rq b)                 /* undone by PF_PACK_ORDER: shuffles stay inside 128 bits */
{
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
}
#define PF_PACK_ORDER { 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15 }

#elif defined(PF_LEVEL_NEON)

typedef float64x2_t rd;
typedef float32x4_t rf;
typedef uint64x2_t rq;
typedef uint32x4_t ri;
#define RD_LANES 2
#define RF_LANES 4
#define PF_PACK 2
PF_INLINE rd rd_load(const double *p) { return vld1q_f64(p); }
PF_INLINE void rd_store(double *p, rd a) { vst1q_f64(p, a); }
PF_INLINE rd rd_set1(double s) { return vdupq_n_f64(s); }
PF_INLINE rd rd_add(rd a, rd b) { return vaddq_f64(a, b); }
PF_INLINE rd rd_sub(rd a, rd b) { return vsubq_f64(a, b); }
PF_INLINE rd rd_mul(rd a, rd b) { return vmulq_f64(a, b); }
PF_INLINE rd rd_div(rd a, rd b) { return vdivq_f64(a, b); }
PF_INLINE rd rd_fma(rd a, rd b, rd c) { return vfmaq_f64(c, a, b); }
PF_INLINE rd rd_sqrt(rd a) { return vsqrtq_f64(a); }
PF_INLINE rd rd_min(rd a, rd b) { return vminq_f64(a, b); }
PF_INLINE rd rd_max(rd a, rd b) { return vmaxq_f64(a, b); }
PF_INLINE rq rd_bits(rd a) { return vreinterpretq_u64_f64(a); }
PF_INLINE rd rq_float(rq a) { return vreinterpretq_f64_u64(a); }
PF_INLINE rq rq_sign_mask(rq s) { return vreinterpretq_u64_s64(vshrq_n_s64(vreinterpretq_s64_u64(s), 63)); }
PF_INLINE rd rd_select_sign(rq s, rd a, rd b) { return vbslq_f64(rq_sign_mask(s), a, b); }
PF_INLINE int rd_any_sign(rq s) { return (int)((vgetq_lane_u64(s, 0) | vgetq_lane_u64(s, 1)) >> 63); }
PF_INLINE rq rq_load(const uint64_t *p) { return vld1q_u64(p); }
PF_INLINE void rq_store(uint64_t *p, rq a) { vst1q_u64(p, a); }
PF_INLINE rq rq_set1(uint64_t s) { return vdupq_n_u64(s); }
PF_INLINE rq rq_add(rq a, rq b) { return vaddq_u64(a, b); }
PF_INLINE rq rq_sub(rq a, rq b) { return vsubq_u64(a, b); }
PF_INLINE rq rq_and(rq a, rq b) { return vandq_u64(a, b); }
PF_INLINE rq rq_or(rq a, rq b) { return vorrq_u64(a, b); }
PF_INLINE rq rq_xor(rq a, rq b) { return veorq_u64(a, b); }
#define rq_shr(a, n) vshrq_n_u64(a, n)
#define rq_shl(a, n) vshlq_n_u64(a, n)
PF_INLINE rq rq_mul32(rq a, rq b) { return vmull_u32(vmovn_u64(a), vmovn_u64(b)); }
PF_INLINE rf rf_load(const float *p) { return vld1q_f32(p); }
PF_INLINE void rf_store(float *p, rf a) { vst1q_f32(p, a); }
PF_INLINE rf rf_set1(float s) { return vdupq_n_f32(s); }
PF_INLINE rf rf_add(rf a, rf b) { return vaddq_f32(a, b); }
PF_INLINE rf rf_sub(rf a, rf b) { return vsubq_f32(a, b); }
PF_INLINE rf rf_mul(rf a, rf b) { return vmulq_f32(a, b); }
PF_INLINE rf rf_div(rf a, rf b) { return vdivq_f32(a, b); }
PF_INLINE rf rf_fma(rf a, rf b, rf c) { return vfmaq_f32(c, a, b); }
PF_INLINE rf rf_sqrt(rf a) { return vsqrtq_f32(a); }
PF_INLINE rf rf_min(rf a, rf b) { return vminq_f32(a, b); }
PF_INLINE rf rf_max(rf a, rf b) { return vmaxq_f32(a, b); }
PF_INLINE ri rf_bits(rf a) { return vreinterpretq_u32_f32(a); }
PF_INLINE rf ri_float(ri a) { return vreinterpretq_f32_u32(a); }
PF_INLINE ri ri_sign_mask(ri s) { return vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(s), 31)); }
PF_INLINE rf rf_select_sign(ri s, rf a, rf b) { return vbslq_f32(ri_sign_mask(s), a, b); }
PF_INLINE int rf_any_sign(ri s) { return (int)(vmaxvq_u32(s) >> 31); }
PF_INLINE ri ri_set1(uint32_t s) { return vdupq_n_u32(s); }
PF_INLINE void ri_store(uint32_t *p, ri a) { vst1q_u32(p, a); }
PF_INLINE ri ri_add(ri a, ri b) { return vaddq_u32(a, b); }
PF_INLINE ri ri_sub(ri a, ri b) { return vsubq_u32(a, b); }
PF_INLINE ri ri_and(ri a, ri b) { return vandq_u32(a, b); }
PF_INLINE ri ri_or(ri a, ri b) { return vorrq_u32(a, b); }
PF_INLINE ri ri_xor(ri a, ri b) { return veorq_u32(a, b); }
#define ri_shr(a, n) vshrq_n_u32(a, n)
#define ri_shl(a, n) vshlq_n_u32(a, n)
PF_INLINE rf ri_to_rf(ri a) { return vcvtq_f32_s32(vreinterpretq_s32_u32(a)); }
PF_INLINE ri ri_pack(rq a, rq b) { return vuzp1q_u32(vreinterpretq_u32_u64(a), vreinterpretq_u32_u64(b)); }
#define PF_PACK_ORDER { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }

#else

typedef double rd;
typedef float rf;
typedef uint64_t rq;
typedef uint32_t ri;
#define RD_LANES 1
#define RF_LANES 1
#define PF_PACK 1
PF_INLINE rd rd_load(const double *p) { return *p; }
PF_INLINE void rd_store(double *p, rd a) { *p = a; }
PF_INLINE rd rd_set1(double s) { return s; }
PF_INLINE rd rd_add(rd a, rd b) { return a + b; }
PF_INLINE rd rd_sub(rd a, rd b) { return a - b; }
PF_INLINE rd rd_mul(rd a, rd b) { return a * b; }
PF_INLINE rd rd_div(rd a, rd b) { return a / b; }
PF_INLINE rd rd_fma(rd a, rd b, rd c) { return fma(a, b, c); }
PF_INLINE rd rd_sqrt(rd a) { return sqrt(a); }                            /* IEEE: correctly rounded, unlike exp or log */
PF_INLINE rd rd_min(rd a, rd b) { return a < b ? a : b; }
PF_INLINE rd rd_max(rd a, rd b) { return a > b ? a : b; }
PF_INLINE rq rd_bits(rd a) { rq r; memcpy(&r, &a, sizeof r); return r; }
PF_INLINE rd rq_float(rq a) { rd r; memcpy(&r, &a, sizeof r); return r; }
PF_INLINE rd rd_select_sign(rq s, rd a, rd b) { return s >> 63 ? a : b; }
PF_INLINE int rd_any_sign(rq s) { return (int)(s >> 63); }
PF_INLINE rq rq_load(const uint64_t *p) { return *p; }
PF_INLINE void rq_store(uint64_t *p, rq a) { *p = a; }
PF_INLINE rq rq_set1(uint64_t s) { return s; }
PF_INLINE rq rq_add(rq a, rq b) { return a + b; }
PF_INLINE rq rq_sub(rq a, rq b) { return a - b; }
PF_INLINE rq rq_and(rq a, rq b) { return a & b; }
PF_INLINE rq rq_or(rq a, rq b) { return a | b; }
PF_INLINE rq rq_xor(rq a, rq b) { return a ^ b; }
#define rq_shr(a, n) ((a) >> (n))
#define rq_shl(a, n) ((a) << (n))
PF_INLINE rq rq_mul32(rq a, rq b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
PF_INLINE rf rf_load(const float *p) { return *p; }
PF_INLINE void rf_store(float *p, rf a) { *p = a; }
PF_INLINE rf rf_set1(float s) { return s; }
PF_INLINE rf rf_add(rf a, rf b) { return a + b; }
PF_INLINE rf rf_sub(rf a, rf b) { return a - b; }
PF_INLINE rf rf_mul(rf a, rf b) { return a * b; }
PF_INLINE rf rf_div(rf a, rf b) { return a / b; }
PF_INLINE rf rf_fma(rf a, rf b, rf c) { return fmaf(a, b, c); }
PF_INLINE rf rf_sqrt(rf a) { return sqrtf(a); }
PF_INLINE rf rf_min(rf a, rf b) { return a < b ? a : b; }
PF_INLINE rf rf_max(rf a, rf b) { return a > b ? a : b; }
PF_INLINE ri rf_bits(rf a) { ri r; memcpy(&r, &a, sizeof r); return r; }
PF_INLINE rf ri_float(ri a) { rf r; memcpy(&r, &a, sizeof r); return r; }
PF_INLINE rf rf_select_sign(ri s, rf a, rf b) { return s >> 31 ? a : b; }
PF_INLINE int rf_any_sign(ri s) { return (int)(s >> 31); }
PF_INLINE ri ri_set1(uint32_t s) { return s; }
PF_INLINE void ri_store(uint32_t *p, ri a) { *p = a; }
PF_INLINE ri ri_add(ri a, ri b) { return a + b; }
PF_INLINE ri ri_sub(ri a, ri b) { return a - b; }
PF_INLINE ri ri_and(ri a, ri b) { return a & b; }
PF_INLINE ri ri_or(ri a, ri b) { return a | b; }
PF_INLINE ri ri_xor(ri a, ri b) { return a ^ b; }
#define ri_shr(a, n) ((a) >> (n))
#define ri_shl(a, n) ((a) << (n))
PF_INLINE rf ri_to_rf(ri a) { return (float)(int32_t)a; }
PF_INLINE ri ri_pack(rq a, rq b) { (void)b; return (ri)a; }
#define PF_PACK_ORDER { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }

#endif

/* rq_join: the low words of two registers as one 64-bit word. rq_to_rd: a 64-bit integer, rounded once.
 * rq_exponent: that of a positive normal number. rd_select_bit1: a where bit 1 of s is set, else b. */
#if defined(PF_LEVEL_AVX512)
PF_INLINE rq rq_join(rq high, rq low) { return _mm512_mask_shuffle_epi32(low, 0xaaaa, high, _MM_PERM_CCAA); }
PF_INLINE rd rq_to_rd(rq a) { return _mm512_cvtepu64_pd(a); }
PF_INLINE rd rq_exponent(rq a) { return _mm512_getexp_pd(_mm512_castsi512_pd(a)); }
PF_INLINE rd rd_select_bit1(rq s, rd a, rd b)
{
    return _mm512_mask_blend_pd(_mm512_test_epi64_mask(s, _mm512_set1_epi64(2)), b, a);
}
#else
#if defined(PF_LEVEL_AVX2)
PF_INLINE rq rq_join(rq high, rq low) { return _mm256_blend_epi32(low, rq_shl(high, 32), 0xaa); }
PF_INLINE rq rq_low_with(rq a, uint64_t top) { return _mm256_blend_epi32(a, rq_set1(top), 0xaa); }
#elif defined(PF_LEVEL_NEON)
PF_INLINE rq rq_join(rq high, rq low) { return vsliq_n_u64(low, high, 32); }
PF_INLINE rq rq_low_with(rq a, uint64_t top) { return vsliq_n_u64(a, rq_set1(top >> 32), 32); }
#else
PF_INLINE rq rq_join(rq high, rq low) { return high << 32 | (low & 0xffffffffu); }
PF_INLINE rq rq_low_with(rq a, uint64_t top) { return (a & 0xffffffffu) | top; }
#endif
PF_INLINE rd rq_to_rd(rq a)
{
    rd high = rq_float(rq_or(rq_shr(a, 32), rq_set1(0x4530000000000000ull)));
    rd low = rq_float(rq_low_with(a, 0x4330000000000000ull));
    return rd_add(rd_sub(high, rd_set1(0x1p84 + 0x1p52)), low);
}
PF_INLINE rd rq_exponent(rq a)
{
    return rd_sub(rq_float(rq_or(rq_shr(a, 52), rq_set1(0x4330000000000000ull))), rd_set1(0x1p52 + 1023.0));
}
PF_INLINE rd rd_select_bit1(rq s, rd a, rd b) { return rd_select_sign(rq_shl(s, 62), a, b); }
#endif

#if !defined(PF_LEVEL_AVX512) && !defined(PF_LEVEL_AVX2) && !defined(PF_LEVEL_NEON)
#define PF_REGS 1
#elif defined(PF_LEVEL_NEON)
#define PF_REGS 4
#else                      /* AVX2 has sixteen registers in all, and the long chains of AVX-512 fill a window with two */
#define PF_REGS 2
#endif
#define VD_LANES (RD_LANES * PF_REGS)
#define VF_LANES (RF_LANES * PF_REGS)
#define VI_PARTS PF_PACK

typedef struct { rd r[PF_REGS]; } vd;
typedef struct { rf r[PF_REGS]; } vf;
typedef struct { rq r[PF_REGS]; } vq;
typedef struct { ri r[PF_REGS]; } vi;

#define PF_EACH_REG for (int g = 0; g < PF_REGS; g++)
#define PF_WRAP1(R, name, A, op) PF_INLINE R name(A a) { R o; PF_EACH_REG o.r[g] = op(a.r[g]); return o; }
#define PF_WRAP2(R, name, op) PF_INLINE R name(R a, R b) { R o; PF_EACH_REG o.r[g] = op(a.r[g], b.r[g]); return o; }
#define PF_WRAP3(R, name, op)                                                                                          \
    PF_INLINE R name(R a, R b, R c) { R o; PF_EACH_REG o.r[g] = op(a.r[g], b.r[g], c.r[g]); return o; }

PF_INLINE vd vd_load(const double *p) { vd o; PF_EACH_REG o.r[g] = rd_load(p + g * RD_LANES); return o; }
PF_INLINE void vd_store(double *p, vd a) { PF_EACH_REG rd_store(p + g * RD_LANES, a.r[g]); }
PF_INLINE vd vd_set1(double s) { vd o; PF_EACH_REG o.r[g] = rd_set1(s); return o; }
PF_WRAP2(vd, vd_add, rd_add)
PF_WRAP2(vd, vd_sub, rd_sub)
PF_WRAP2(vd, vd_mul, rd_mul)
PF_WRAP2(vd, vd_div, rd_div)
PF_WRAP2(vd, vd_min, rd_min)
PF_WRAP2(vd, vd_max, rd_max)
PF_WRAP3(vd, vd_fma, rd_fma)
PF_WRAP1(vd, vd_sqrt, vd, rd_sqrt)
PF_WRAP1(vq, vd_bits, vd, rd_bits)
PF_WRAP1(vd, vq_float, vq, rq_float)
PF_INLINE vd vd_select_sign(vq s, vd a, vd b)
{
    vd o;
    PF_EACH_REG o.r[g] = rd_select_sign(s.r[g], a.r[g], b.r[g]);
    return o;
}
PF_INLINE int vd_any_sign(vq s)
{
    rq all = s.r[0];
    for (int g = 1; g < PF_REGS; g++) all = rq_or(all, s.r[g]);
    return rd_any_sign(all);
}
PF_INLINE void vq_store(uint64_t *p, vq a) { PF_EACH_REG rq_store(p + g * RD_LANES, a.r[g]); }
PF_INLINE vq vq_set1(uint64_t s) { vq o; PF_EACH_REG o.r[g] = rq_set1(s); return o; }
PF_WRAP2(vq, vq_add, rq_add)
PF_WRAP2(vq, vq_sub, rq_sub)
PF_WRAP2(vq, vq_and, rq_and)
PF_WRAP2(vq, vq_or, rq_or)
PF_WRAP2(vq, vq_xor, rq_xor)
PF_WRAP2(vq, vq_mul32, rq_mul32)
PF_WRAP2(vq, vq_join, rq_join)
PF_WRAP1(vd, vq_to_vd, vq, rq_to_rd)
PF_WRAP1(vd, vq_exponent, vq, rq_exponent)
PF_INLINE vd vd_select_bit1(vq s, vd a, vd b)
{
    vd o;
    PF_EACH_REG o.r[g] = rd_select_bit1(s.r[g], a.r[g], b.r[g]);
    return o;
}
#define PF_SHIFT(V, name, op) PF_INLINE V name(V a, const int n) { V o; PF_EACH_REG o.r[g] = op(a.r[g], n); return o; }
PF_SHIFT(vq, vq_shr, rq_shr)
PF_SHIFT(vq, vq_shl, rq_shl)

PF_INLINE vf vf_load(const float *p) { vf o; PF_EACH_REG o.r[g] = rf_load(p + g * RF_LANES); return o; }
PF_INLINE void vf_store(float *p, vf a) { PF_EACH_REG rf_store(p + g * RF_LANES, a.r[g]); }
PF_INLINE vf vf_set1(float s) { vf o; PF_EACH_REG o.r[g] = rf_set1(s); return o; }
PF_WRAP2(vf, vf_add, rf_add)
PF_WRAP2(vf, vf_sub, rf_sub)
PF_WRAP2(vf, vf_mul, rf_mul)
PF_WRAP2(vf, vf_div, rf_div)
PF_WRAP2(vf, vf_min, rf_min)
PF_WRAP2(vf, vf_max, rf_max)
PF_WRAP3(vf, vf_fma, rf_fma)
PF_WRAP1(vf, vf_sqrt, vf, rf_sqrt)
PF_WRAP1(vi, vf_bits, vf, rf_bits)
PF_WRAP1(vf, vi_float, vi, ri_float)
PF_WRAP1(vf, vi_to_vf, vi, ri_to_rf)                                       /* signed */
PF_INLINE vf vf_select_sign(vi s, vf a, vf b)
{
    vf o;
    PF_EACH_REG o.r[g] = rf_select_sign(s.r[g], a.r[g], b.r[g]);
    return o;
}
PF_INLINE int vf_any_sign(vi s)
{
    ri all = s.r[0];
    for (int g = 1; g < PF_REGS; g++) all = ri_or(all, s.r[g]);
    return rf_any_sign(all);
}
PF_INLINE vi vi_set1(uint32_t s) { vi o; PF_EACH_REG o.r[g] = ri_set1(s); return o; }
PF_INLINE void vi_store(uint32_t *p, vi a) { PF_EACH_REG ri_store(p + g * RF_LANES, a.r[g]); }
PF_WRAP2(vi, vi_add, ri_add)
PF_WRAP2(vi, vi_sub, ri_sub)
PF_WRAP2(vi, vi_and, ri_and)
PF_WRAP2(vi, vi_or, ri_or)
PF_WRAP2(vi, vi_xor, ri_xor)
PF_SHIFT(vi, vi_shr, ri_shr)
PF_SHIFT(vi, vi_shl, ri_shl)
/* the low words of VI_PARTS vectors, whose lanes were filled in PF_PACK_ORDER */
PF_INLINE vi vi_pack(const vq *a)
{
    vi o;
    rq flat[PF_PACK * PF_REGS];
    for (int g = 0; g < PF_PACK * PF_REGS; g++) flat[g] = a[g / PF_REGS].r[g % PF_REGS];
    PF_EACH_REG o.r[g] = ri_pack(flat[PF_PACK * g], flat[PF_PACK * g + PF_PACK - 1]);
    return o;
}

PF_INLINE vd vd_abs(vd a) { return vq_float(vq_and(vd_bits(a), vq_set1(0x7fffffffffffffffull))); }
PF_INLINE vf vf_abs(vf a) { return vi_float(vi_and(vf_bits(a), vi_set1(0x7fffffffu))); }

#endif
