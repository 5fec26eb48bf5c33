/* AVX-512 (F, BW, DQ, VL): sixteen floats in one register, sixteen doubles in two. Included by simd.h. */
#include <immintrin.h>

typedef struct { __m512 v[1]; } f32x16;
typedef struct { __m512d v[2]; } f64x16;
typedef struct { __m512i v[1]; } u32x16;
typedef __mmask16 pf_nan32;
typedef __mmask8 pf_nan64;
typedef struct { __m512i v[2]; } pf_acc64;

#define PF_REPF PF_REP_1
#define PF_REPD PF_REP_2
#define PF_STEPF 16
#define PF_STEPD 8
#define PFF_LOAD _mm512_loadu_ps
#define PFF_STORE _mm512_storeu_ps
#define PFF_SET1 _mm512_set1_ps
#define PFF_ADD _mm512_add_ps
#define PFF_SUB _mm512_sub_ps
#define PFF_MUL _mm512_mul_ps
#define PFF_MIN _mm512_min_ps
#define PFF_MAX _mm512_max_ps
#define PFF_FMA _mm512_fmadd_ps
#define PFD_LOAD _mm512_loadu_pd
#define PFD_STORE _mm512_storeu_pd
#define PFD_SET1 _mm512_set1_pd
#define PFD_ADD _mm512_add_pd
#define PFD_SUB _mm512_sub_pd
#define PFD_MUL _mm512_mul_pd
#define PFD_MIN _mm512_min_pd
#define PFD_MAX _mm512_max_pd
#define PFD_FMA _mm512_fmadd_pd
#define PFI_LOAD(p) _mm512_loadu_si512((const void *)(p))
#define PFI_STORE(p, a) _mm512_storeu_si512((void *)(p), a)
#define PFI_ADD _mm512_add_epi32
#define PFI_SUB _mm512_sub_epi32

PF_INLINE pf_nan32 f32_nan_none(void) { return 0; }
PF_INLINE pf_nan64 f64_nan_none(void) { return 0; }
PF_INLINE pf_nan32 f32_nan_note(pf_nan32 acc, f32x16 a)
{
    return (pf_nan32)(acc | _mm512_cmp_ps_mask(a.v[0], a.v[0], _CMP_UNORD_Q));
}
PF_INLINE pf_nan64 f64_nan_note(pf_nan64 acc, f64x16 a)
{
    return (pf_nan64)(acc | _mm512_cmp_pd_mask(a.v[0], a.v[1], _CMP_UNORD_Q));
}
PF_INLINE int f32_nan_any(pf_nan32 acc) { return acc != 0; }
PF_INLINE int f64_nan_any(pf_nan64 acc) { return acc != 0; }

PF_INLINE f64x16 f64_pow2_from_low_bits(f64x16 a)
{
    f64x16 r;
    for (int k = 0; k < 2; k++) r.v[k] = _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(a.v[k]), 52));
    return r;
}
PF_INLINE f64x16 f32_to_f64(f32x16 a)
{
    f64x16 r;
    r.v[0] = _mm512_cvtps_pd(_mm512_castps512_ps256(a.v[0]));
    r.v[1] = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v[0], 1));
    return r;
}
PF_INLINE f32x16 f64_to_f32(f64x16 a)
{
    f32x16 r;
    r.v[0] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a.v[0])), _mm512_cvtpd_ps(a.v[1]), 1);
    return r;
}
PF_INLINE u32x16 f32_to_u32(f32x16 a)
{
    u32x16 r;
    r.v[0] = _mm512_cvtps_epi32(a.v[0]);
    return r;
}
PF_INLINE u32x16 f64_to_u32(f64x16 a)
{
    u32x16 r;
    r.v[0] = _mm512_inserti32x8(_mm512_castsi256_si512(_mm512_cvtpd_epi32(a.v[0])), _mm512_cvtpd_epi32(a.v[1]), 1);
    return r;
}
PF_INLINE f64x16 u32_to_f64(u32x16 a)
{
    f64x16 r;
    r.v[0] = _mm512_cvtepi32_pd(_mm512_castsi512_si256(a.v[0]));
    r.v[1] = _mm512_cvtepi32_pd(_mm512_extracti32x8_epi32(a.v[0], 1));
    return r;
}

/* out = float32(float64(w) * scale), w below 2^31 */
PF_INLINE void u32_scale_store_f32(float *out, const uint32_t *w, f64x16 scale)
{
    u32x16 loaded;
    loaded.v[0] = _mm512_loadu_si512((const void *)w);
    f64x16 d = u32_to_f64(loaded);
    for (int k = 0; k < 2; k++) d.v[k] = _mm512_mul_pd(d.v[k], scale.v[k]);
    _mm512_storeu_ps(out, f64_to_f32(d).v[0]);
}

/* rint(v) of a distance v >= 0; beyond the range of integers 0x80000000, whose shift is past 64: no clamp is needed */
PF_INLINE u32x16 f32_to_index(f32x16 v) { return f32_to_u32(v); }
PF_INLINE u32x16 f64_to_index(f64x16 v) { return f64_to_u32(v); }

/* D(F) with the sixteen fractions in one 256-bit vector of 16-bit lanes. */
typedef u32x16 pf_deficit;
PF_INLINE u32x16 deficit_unpack(pf_deficit D) { return D; }
PF_INLINE pf_deficit u32_deficit(u32x16 i)
{
    __m256i F = _mm512_cvtepi32_epi16(i.v[0]);
    __m256i p = _mm256_mulhi_epu16(F, _mm256_sub_epi16(_mm256_setzero_si256(), F));
    __m256i q = _mm256_sub_epi16(_mm256_set1_epi16(3030), _mm256_mulhi_epu16(F, _mm256_set1_epi16(439)));
    __m256i d = _mm256_mulhi_epu16(F, q);
    __m256i D = _mm256_add_epi16(F, _mm256_mulhrs_epi16(p, _mm256_sub_epi16(_mm256_set1_epi16(12650), d)));
    u32x16 r;
    r.v[0] = _mm512_cvtepu16_epi32(D);
    return r;
}
PF_INLINE u32x16 u32_shifts(u32x16 i)
{
    u32x16 r;
    r.v[0] = _mm512_srli_epi32(i.v[0], 16);
    return r;
}
PF_INLINE u32x16 u32_weights32(u32x16 s, pf_deficit D)
{
    u32x16 r;
    __m512i M = _mm512_sub_epi32(_mm512_set1_epi32((int)0xFFFFFFFEu), _mm512_slli_epi32(D.v[0], 15));
    M = _mm512_srlv_epi32(M, s.v[0]);
    r.v[0] = _mm512_srli_epi32(_mm512_add_epi32(M, _mm512_set1_epi32(1)), 1);
    return r;
}
PF_INLINE pf_acc64 acc64_zero(void)
{
    pf_acc64 r;
    r.v[0] = r.v[1] = _mm512_setzero_si512();
    return r;
}
PF_INLINE pf_acc64 acc64_weights(pf_acc64 acc, u32x16 s, pf_deficit D)
{
    const __m512i high = _mm512_set1_epi64((long long)0xffffffff00000000ull);
    __m512i M = _mm512_sub_epi32(_mm512_set1_epi32(1 << 20), _mm512_slli_epi32(D.v[0], 3));
    __m512i even = _mm512_srlv_epi64(_mm512_slli_epi64(M, 32), _mm512_and_si512(s.v[0], _mm512_set1_epi64(0xffff)));
    __m512i odd = _mm512_srlv_epi64(_mm512_and_si512(M, high), _mm512_srli_epi64(s.v[0], 32));
    acc.v[0] = _mm512_add_epi64(acc.v[0], even);
    acc.v[1] = _mm512_add_epi64(acc.v[1], odd);
    return acc;
}
PF_INLINE pf_acc64 acc64_add_u32(pf_acc64 acc, u32x16 w)
{
    acc.v[0] = _mm512_add_epi64(acc.v[0], _mm512_and_si512(w.v[0], _mm512_set1_epi64(0xffffffffll)));
    acc.v[1] = _mm512_add_epi64(acc.v[1], _mm512_srli_epi64(w.v[0], 32));
    return acc;
}
PF_INLINE void acc64_add_squares(pf_acc64 *low, pf_acc64 *high, u32x16 w)
{
    __m512i odd = _mm512_srli_epi64(w.v[0], 32);
    __m512i two = _mm512_add_epi64(_mm512_mul_epu32(w.v[0], w.v[0]), _mm512_mul_epu32(odd, odd));
    low->v[0] = _mm512_add_epi64(low->v[0], two);
    high->v[0] = _mm512_add_epi64(high->v[0], _mm512_srli_epi64(two, 32));
}
PF_INLINE int acc64_store(uint64_t *out, pf_acc64 acc)
{
    _mm512_storeu_si512((void *)out, acc.v[0]);
    _mm512_storeu_si512((void *)(out + 8), acc.v[1]);
    return 16;
}

#define PF_NATIVE_RUNNING 1
PF_INLINE uint64_t running_sums(const uint32_t *w, size_t n, size_t *k, uint64_t C, uint64_t *sums)
{
    const __m512i none = _mm512_setzero_si512(), last = _mm512_set1_epi64(7);
    __m512i before = _mm512_set1_epi64((long long)C);
    size_t j = *k;
    for (; j + 8 <= n; j += 8) {
        __m512i v = _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)(const void *)(w + j)));
        v = _mm512_add_epi64(v, _mm512_alignr_epi64(v, none, 7));
        v = _mm512_add_epi64(v, _mm512_alignr_epi64(v, none, 6));
        v = _mm512_add_epi64(v, _mm512_alignr_epi64(v, none, 4));
        _mm512_storeu_si512((void *)(sums + j), _mm512_add_epi64(v, before));
        before = _mm512_add_epi64(before, _mm512_permutexvar_epi64(last, v));
    }
    *k = j;
    return (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(before));
}

/* out[k] = x[index[k]] of x[0 .. n - 1]: where a vector's elements lie in two neighbouring vectors, as those of ancestors
 * in order mostly do, by one permutation of these. */
#define PF_NATIVE_TAKE 1
#define PF_TAKE(name, T, I, lanes, positions, far, permuted)                                                           \
    PF_INLINE void name(const T *x, size_t n, const I *index, size_t count, T *out)                                    \
    {                                                                                                                  \
        size_t k = 0;                                                                                                  \
        for (; k + lanes <= count; k += lanes) {                                                                       \
            const size_t first = (size_t)index[k];                                                                     \
            positions                                                                                                  \
            if (first + 2 * lanes <= n && far == 0) {                                                                  \
                permuted                                                                                               \
            } else {                                                                                                   \
                for (int i = 0; i < lanes; i++) out[k + i] = x[index[k + i]];                                          \
            }                                                                                                          \
        }                                                                                                              \
        for (; k < count; k++) out[k] = x[index[k]];                                                                   \
    }
#define PF_TAKE_PD                                                                                                     \
    _mm512_storeu_pd(out + k, _mm512_permutex2var_pd(_mm512_loadu_pd(x + first), at, _mm512_loadu_pd(x + first + 8)));
PF_TAKE(take_u32_f64, double, uint32_t, 8,
        const __m512i at = _mm512_cvtepu32_epi64(_mm256_sub_epi32(
            _mm256_loadu_si256((const __m256i *)(const void *)(index + k)), _mm256_set1_epi32((int)index[k])));,
        _mm512_cmp_epu64_mask(at, _mm512_set1_epi64(16), _MM_CMPINT_NLT), PF_TAKE_PD)
PF_TAKE(take_i64_f64, double, int64_t, 8,
        const __m512i at = _mm512_sub_epi64(_mm512_loadu_si512((const void *)(index + k)), _mm512_set1_epi64(index[k]));,
        _mm512_cmp_epu64_mask(at, _mm512_set1_epi64(16), _MM_CMPINT_NLT), PF_TAKE_PD)
PF_TAKE(take_u32_f32, float, uint32_t, 16,
        const __m512i at = _mm512_sub_epi32(_mm512_loadu_si512((const void *)(index + k)),
                                            _mm512_set1_epi32((int)index[k]));,
        _mm512_cmp_epu32_mask(at, _mm512_set1_epi32(32), _MM_CMPINT_NLT),
        _mm512_storeu_ps(out + k, _mm512_permutex2var_ps(_mm512_loadu_ps(x + first), at, _mm512_loadu_ps(x + first + 16)));)
PF_TAKE(take_i64_f32, float, int64_t, 8,
        const __m512i away = _mm512_sub_epi64(_mm512_loadu_si512((const void *)(index + k)), _mm512_set1_epi64(index[k]));
        const __m256i at = _mm512_cvtepi64_epi32(away);,
        _mm512_cmp_epu64_mask(away, _mm512_set1_epi64(16), _MM_CMPINT_NLT),
        _mm256_storeu_ps(out + k, _mm256_permutex2var_ps(_mm256_loadu_ps(x + first), at, _mm256_loadu_ps(x + first + 8)));)
