/* AVX2 + FMA: sixteen floats in two registers, sixteen doubles in four. Included by simd.h. */
#include <immintrin.h>

typedef struct { __m256 v[2]; } f32x16;
typedef struct { __m256d v[4]; } f64x16;
typedef struct { __m256i v[2]; } u32x16;
typedef __m256 pf_nan32;
typedef __m256d pf_nan64;
typedef struct { __m256i v[2]; } pf_acc64;      /* 64-bit partial sums; which lane holds what is a level's own affair */

#define PF_REPF PF_REP_2
#define PF_REPD PF_REP_4
#define PF_STEPF 8
#define PF_STEPD 4
#define PFF_LOAD _mm256_loadu_ps
#define PFF_STORE _mm256_storeu_ps
#define PFF_SET1 _mm256_set1_ps
#define PFF_ADD _mm256_add_ps
#define PFF_SUB _mm256_sub_ps
#define PFF_MUL _mm256_mul_ps
#define PFF_MIN _mm256_min_ps
#define PFF_MAX _mm256_max_ps
#define PFF_FMA _mm256_fmadd_ps
#define PFD_LOAD _mm256_loadu_pd
#define PFD_STORE _mm256_storeu_pd
#define PFD_SET1 _mm256_set1_pd
#define PFD_ADD _mm256_add_pd
#define PFD_SUB _mm256_sub_pd
#define PFD_MUL _mm256_mul_pd
#define PFD_MIN _mm256_min_pd
#define PFD_MAX _mm256_max_pd
#define PFD_FMA _mm256_fmadd_pd
#define PFI_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define PFI_STORE(p, a) _mm256_storeu_si256((__m256i *)(p), a)
#define PFI_ADD _mm256_add_epi32
#define PFI_SUB _mm256_sub_epi32

PF_INLINE pf_nan32 f32_nan_none(void) { return _mm256_setzero_ps(); }
PF_INLINE pf_nan64 f64_nan_none(void) { return _mm256_setzero_pd(); }
PF_INLINE pf_nan32 f32_nan_note(pf_nan32 acc, f32x16 a)      /* unordered(x, y) is true if either is NaN */
{
    return _mm256_or_ps(acc, _mm256_cmp_ps(a.v[0], a.v[1], _CMP_UNORD_Q));
}
PF_INLINE pf_nan64 f64_nan_note(pf_nan64 acc, f64x16 a)
{
    return _mm256_or_pd(acc, _mm256_or_pd(_mm256_cmp_pd(a.v[0], a.v[1], _CMP_UNORD_Q),
                                          _mm256_cmp_pd(a.v[2], a.v[3], _CMP_UNORD_Q)));
}
PF_INLINE int f32_nan_any(pf_nan32 acc) { return _mm256_movemask_ps(acc) != 0; }
PF_INLINE int f64_nan_any(pf_nan64 acc) { return _mm256_movemask_pd(acc) != 0; }

/* bits of a shifted left by 52, read as a double: 2^n when the low bits of a hold n + 1023 */
PF_INLINE f64x16 f64_pow2_from_low_bits(f64x16 a)
{
    f64x16 r;
    for (int k = 0; k < 4; k++) r.v[k] = _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(a.v[k]), 52));
    return r;
}

PF_INLINE f64x16 f32_to_f64(f32x16 a)
{
    f64x16 r;
    r.v[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(a.v[0]));
    r.v[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(a.v[0], 1));
    r.v[2] = _mm256_cvtps_pd(_mm256_castps256_ps128(a.v[1]));
    r.v[3] = _mm256_cvtps_pd(_mm256_extractf128_ps(a.v[1], 1));
    return r;
}
PF_INLINE f32x16 f64_to_f32(f64x16 a)
{
    f32x16 r;
    r.v[0] = _mm256_set_m128(_mm256_cvtpd_ps(a.v[1]), _mm256_cvtpd_ps(a.v[0]));
    r.v[1] = _mm256_set_m128(_mm256_cvtpd_ps(a.v[3]), _mm256_cvtpd_ps(a.v[2]));
    return r;
}
/* nearest integer, ties to even; the value is known to fit 31 bits */
PF_INLINE u32x16 f32_to_u32(f32x16 a)
{
    u32x16 r;
    for (int k = 0; k < 2; k++) r.v[k] = _mm256_cvtps_epi32(a.v[k]);
    return r;
}
PF_INLINE u32x16 f64_to_u32(f64x16 a)
{
    u32x16 r;
    r.v[0] = _mm256_set_m128i(_mm256_cvtpd_epi32(a.v[1]), _mm256_cvtpd_epi32(a.v[0]));
    r.v[1] = _mm256_set_m128i(_mm256_cvtpd_epi32(a.v[3]), _mm256_cvtpd_epi32(a.v[2]));
    return r;
}
PF_INLINE f64x16 u32_to_f64(u32x16 a)             /* below 2^31 */
{
    f64x16 r;
    r.v[0] = _mm256_cvtepi32_pd(_mm256_castsi256_si128(a.v[0]));
    r.v[1] = _mm256_cvtepi32_pd(_mm256_extracti128_si256(a.v[0], 1));
    r.v[2] = _mm256_cvtepi32_pd(_mm256_castsi256_si128(a.v[1]));
    r.v[3] = _mm256_cvtepi32_pd(_mm256_extracti128_si256(a.v[1], 1));
    return r;
}

/* out = float32(float64(w) * scale), w below 2^31; four at a time, for the conversions are the bottleneck and this form
 * needs no shuffles around them */
PF_INLINE void u32_scale_store_f32(float *out, const uint32_t *w, f64x16 scale)
{
    for (int k = 0; k < 16; k += 4) {
        __m256d d = _mm256_cvtepi32_pd(_mm_loadu_si128((const __m128i *)(w + k)));
        _mm_storeu_ps(out + k, _mm256_cvtpd_ps(_mm256_mul_pd(d, scale.v[0])));
    }
}

/* Partial loads by mask and folds in registers: the generic ones go through memory, which a short row would notice. */
#define PF_NATIVE_TAIL
#define PF_NATIVE_FOLD
static const int32_t avx2_tail_mask[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
PF_INLINE f32x16 f32_load_tail(const float *p, size_t count, float fill)
{
    const int32_t *mask = avx2_tail_mask + 16 - count;
    f32x16 r;
    for (int k = 0; k < 2; k++) {
        __m256i m = _mm256_loadu_si256((const __m256i *)(mask + 8 * k));
        r.v[k] = _mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p + 8 * k, m), _mm256_castsi256_ps(m));
    }
    return r;
}
PF_INLINE f64x16 f64_load_tail(const double *p, size_t count, double fill)
{
    const int32_t *mask = avx2_tail_mask + 16 - count;
    f64x16 r;
    for (int k = 0; k < 4; k++) {
        __m256i m = _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i *)(mask + 4 * k)));
        r.v[k] = _mm256_blendv_pd(_mm256_set1_pd(fill), _mm256_maskload_pd(p + 4 * k, m), _mm256_castsi256_pd(m));
    }
    return r;
}
#define AVX2_FOLD(name, op)                                                                                            \
    PF_INLINE float f32_fold_##name(f32x16 a)                                                                          \
    {                                                                                                                  \
        __m256 e = _mm256_##op##_ps(a.v[0], a.v[1]);                                                                   \
        __m128 q = _mm_##op##_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));                              \
        q = _mm_##op##_ps(q, _mm_movehl_ps(q, q));                                                                     \
        return _mm_cvtss_f32(_mm_##op##_ss(q, _mm_movehdup_ps(q)));                                                    \
    }                                                                                                                  \
    PF_INLINE double f64_fold_##name(f64x16 a)                                                                         \
    {                                                                                                                  \
        __m256d e = _mm256_##op##_pd(_mm256_##op##_pd(a.v[0], a.v[2]), _mm256_##op##_pd(a.v[1], a.v[3]));              \
        __m128d q = _mm_##op##_pd(_mm256_castpd256_pd128(e), _mm256_extractf128_pd(e, 1));                             \
        return _mm_cvtsd_f64(_mm_##op##_sd(q, _mm_unpackhi_pd(q, q)));                                                 \
    }
AVX2_FOLD(add, add)
AVX2_FOLD(max, max)

/* ---- the integer exponential: i is a Q16.16 exponent index ------------------------------------------------- */

/* The index of a distance v >= 0: rint(v), and any index whose shift is 64 or more where v is larger than an integer can
 * hold. The conversion gives 0x80000000 there, which is such an index, so no clamp is needed. */
PF_INLINE u32x16 f32_to_index(f32x16 v) { return f32_to_u32(v); }
PF_INLINE u32x16 f64_to_index(f64x16 v) { return f64_to_u32(v); }

/* D(F) in 16-bit lanes: the fractions of both registers share one vector, low halves v[0], high halves v[1]. The type
 * keeps them packed and less 2^15, as the signed multiply-adds that unpack them want. */
typedef __m256i pf_deficit;

PF_INLINE pf_deficit u32_deficit(u32x16 i)
{
    __m256i F = _mm256_blend_epi16(i.v[0], _mm256_slli_epi32(i.v[1], 16), 0xAA);
    __m256i p = _mm256_mulhi_epu16(F, _mm256_sub_epi16(_mm256_setzero_si256(), F));
    __m256i q = _mm256_sub_epi16(_mm256_set1_epi16(3030), _mm256_mulhi_epu16(F, _mm256_set1_epi16(439)));
    __m256i d = _mm256_mulhi_epu16(F, q);
    __m256i e = _mm256_mulhrs_epi16(p, _mm256_sub_epi16(_mm256_set1_epi16(12650), d));
    return _mm256_add_epi16(_mm256_add_epi16(F, _mm256_set1_epi16(-32768)), e);
}
PF_INLINE u32x16 deficit_unpack(pf_deficit D)
{
    u32x16 r;
    D = _mm256_xor_si256(D, _mm256_set1_epi16(-32768));
    r.v[0] = _mm256_and_si256(D, _mm256_set1_epi32(0xffff));
    r.v[1] = _mm256_srli_epi32(D, 16);
    return r;
}

/* the whole shifts s = i >> 16 */
PF_INLINE u32x16 u32_shifts(u32x16 i)
{
    u32x16 r;
    for (int k = 0; k < 2; k++) r.v[k] = _mm256_srli_epi32(i.v[k], 16);
    return r;
}

PF_INLINE u32x16 u32_weights32(u32x16 s, pf_deficit D)
{
    /* 0xFFFFFFFE - (D << 15): D << 15 = (D' + 2^15) << 15 with D' signed, by one multiply-add of 16-bit halves */
    const __m256i k0 = _mm256_set1_epi32(0x00008000), k1 = _mm256_set1_epi32((int)0x80000000u);
    const __m256i top = _mm256_set1_epi32((int)(0xFFFFFFFEu - 0x40000000u));
    u32x16 r;
    for (int k = 0; k < 2; k++) {
        __m256i M = _mm256_add_epi32(top, _mm256_madd_epi16(D, k ? k1 : k0));          /* -2^15 D' */
        M = _mm256_srlv_epi32(M, s.v[k]);
        r.v[k] = _mm256_srli_epi32(_mm256_add_epi32(M, _mm256_set1_epi32(1)), 1);
    }
    return r;
}

PF_INLINE pf_acc64 acc64_zero(void)
{
    pf_acc64 r;
    for (int k = 0; k < 2; k++) r.v[k] = _mm256_setzero_si256();
    return r;
}
/* acc += the sixteen 64-bit weights ((2^20 - 8 D) << 32) >> s, two a lane and call: modular, flush within 2^10 calls.
 * Two accumulators only: more would be spilled to memory. */
PF_INLINE pf_acc64 acc64_weights(pf_acc64 acc, u32x16 s, pf_deficit D)
{
    const __m256i high = _mm256_set1_epi64x((long long)0xffffffff00000000ull);
    const __m256i k0 = _mm256_set1_epi32(0x0000fff8), k1 = _mm256_set1_epi32((int)0xfff80000u);    /* -8 */
    const __m256i top = _mm256_set1_epi32((1 << 20) - (1 << 18));
    for (int k = 0; k < 2; k++) {
        __m256i M = _mm256_add_epi32(top, _mm256_madd_epi16(D, k ? k1 : k0));
        __m256i even = _mm256_and_si256(s.v[k], _mm256_set1_epi64x(0xffff)), odd = _mm256_srli_epi64(s.v[k], 32);
        acc.v[0] = _mm256_add_epi64(acc.v[0], _mm256_srlv_epi64(_mm256_slli_epi64(M, 32), even));
        acc.v[1] = _mm256_add_epi64(acc.v[1], _mm256_srlv_epi64(_mm256_and_si256(M, high), odd));
    }
    return acc;
}
/* acc += the sixteen 31-bit weights; two of them still fit 32 bits */
PF_INLINE pf_acc64 acc64_add_u32(pf_acc64 acc, u32x16 w)
{
    __m256i pair = _mm256_add_epi32(w.v[0], w.v[1]);
    acc.v[0] = _mm256_add_epi64(acc.v[0], _mm256_and_si256(pair, _mm256_set1_epi64x(0xffffffffll)));
    acc.v[1] = _mm256_add_epi64(acc.v[1], _mm256_srli_epi64(pair, 32));
    return acc;
}
/* Exact squares of 31-bit weights: four of them fit 64 bits, and with `low` their modular sum and `high` the sum of the
 * upper halves of those fours, the exact total is known (weights.c). */
PF_INLINE void acc64_add_squares(pf_acc64 *low, pf_acc64 *high, u32x16 w)
{
    __m256i odd0 = _mm256_srli_epi64(w.v[0], 32), odd1 = _mm256_srli_epi64(w.v[1], 32);
    __m256i a = _mm256_add_epi64(_mm256_mul_epu32(w.v[0], w.v[0]), _mm256_mul_epu32(odd0, odd0));
    __m256i b = _mm256_add_epi64(_mm256_mul_epu32(w.v[1], w.v[1]), _mm256_mul_epu32(odd1, odd1));
    __m256i four = _mm256_add_epi64(a, b);
    low->v[0] = _mm256_add_epi64(low->v[0], four);
    high->v[0] = _mm256_add_epi64(high->v[0], _mm256_srli_epi64(four, 32));
}
PF_INLINE int acc64_store(uint64_t *out, pf_acc64 acc)        /* number of 64-bit words written, at most 16 */
{
    for (int k = 0; k < 2; k++) _mm256_storeu_si256((__m256i *)(out + 4 * k), acc.v[k]);
    return 8;
}

#define PF_NATIVE_RUNNING 1
PF_INLINE uint64_t running_sums(const uint32_t *w, size_t n, size_t *k, uint64_t C, uint64_t *sums)
{
    __m256i before = _mm256_set1_epi64x((long long)C);
    size_t j = *k;
    for (; j + 4 <= n; j += 4) {
        __m256i v = _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)(const void *)(w + j)));
        v = _mm256_add_epi64(v, _mm256_slli_si256(v, 8));                               /* a, a b, c, c d */
        const __m256i pairs = _mm256_unpackhi_epi64(v, v);
        v = _mm256_add_epi64(v, _mm256_permute2x128_si256(pairs, pairs, 0x08));         /* 0, 0, a b, a b */
        _mm256_storeu_si256((__m256i *)(void *)(sums + j), _mm256_add_epi64(v, before));
        before = _mm256_add_epi64(before, _mm256_permute4x64_epi64(v, 0xff));
    }
    *k = j;
    return (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(before));
}
