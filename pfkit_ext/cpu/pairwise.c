/* Included by level.c after intlse.c. Integers throughout, so every level gives the same bits. */
#include "elementary.h"
#include "pairwise.h"

/* Segment f >> 13 of the correction: its value at the segment's start (high half, 1/65536 octave) and its slope
 * (low half, 1/16384, signed). Twice over for registers of sixteen. */
#define PAIR_ENTRY(base, slope) (((uint32_t)(base) << 16) | ((uint32_t)(slope) & 0xffffu))
#define PAIR_ENTRIES                                                                                                   \
    PAIR_ENTRY(0, 5591), PAIR_ENTRY(2580, 3541), PAIR_ENTRY(4588, -1333), PAIR_ENTRY(3899, 3044),                      \
    PAIR_ENTRY(5528, -4819), PAIR_ENTRY(3116, -3492), PAIR_ENTRY(1369, -2116), PAIR_ENTRY(310, -709)
static const uint32_t pair_table[16] = {PAIR_ENTRIES, PAIR_ENTRIES};
static const uint32_t pair_no_table[16] = {0};

/* log2(2^-a + 2^-b) = -(min - f - c(f)) for distances a, b as signed 32-bit integers */
#if defined(PF_LEVEL_AVX512)
PF_INLINE u32x16 pair_add(u32x16 a, u32x16 b, const uint32_t *table)
{
    u32x16 r;
    __m512i low = _mm512_min_epi32(a.v[0], b.v[0]), d = _mm512_sub_epi32(_mm512_max_epi32(a.v[0], b.v[0]), low);
    __m512i F = _mm512_and_si512(_mm512_sub_epi32(_mm512_setzero_si512(), d), _mm512_set1_epi32(0xffff));
    __m512i shift = _mm512_srli_epi32(_mm512_add_epi32(d, _mm512_set1_epi32(0xffff)), 16);
    __m512i f = _mm512_srlv_epi32(_mm512_or_si512(F, _mm512_set1_epi32(0x10000)), shift);
    __m512i entry = _mm512_permutexvar_epi32(_mm512_srli_epi32(f, 13), _mm512_loadu_si512(table));
    __m512i x = _mm512_or_si512(_mm512_and_si512(f, _mm512_set1_epi32(0x1fff)), _mm512_set1_epi32(0x40000000));
    __m512i c = _mm512_srai_epi32(_mm512_madd_epi16(entry, x), 14);
    r.v[0] = _mm512_sub_epi32(_mm512_sub_epi32(low, f), c);
    return r;
}
#elif defined(PF_LEVEL_AVX2)
PF_INLINE u32x16 pair_add(u32x16 a, u32x16 b, const uint32_t *table)
{
    const __m256i entries = _mm256_loadu_si256((const __m256i *)table);
    u32x16 r;
    for (int k = 0; k < 2; k++) {
        __m256i low = _mm256_min_epi32(a.v[k], b.v[k]), high = _mm256_max_epi32(a.v[k], b.v[k]);
        __m256i minus = _mm256_sub_epi32(low, high);
        __m256i shift = _mm256_srli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(0xffff), minus), 16);
        __m256i f = _mm256_srlv_epi32(_mm256_blend_epi16(minus, _mm256_set1_epi32(0x10000), 0xAA), shift);
        __m256i entry = _mm256_permutevar8x32_epi32(entries, _mm256_srli_epi32(f, 13));
        __m256i x = _mm256_or_si256(_mm256_and_si256(f, _mm256_set1_epi32(0x1fff)), _mm256_set1_epi32(0x40000000));
        __m256i c = _mm256_srai_epi32(_mm256_madd_epi16(entry, x), 14);
        r.v[k] = _mm256_sub_epi32(_mm256_sub_epi32(low, f), c);
    }
    return r;
}
#elif defined(PF_LEVEL_NEON)
PF_INLINE u32x16 pair_add(u32x16 a, u32x16 b, const uint32_t *table)
{
    const uint8x16x2_t entries = {{vreinterpretq_u8_u32(vld1q_u32(table)), vreinterpretq_u8_u32(vld1q_u32(table + 4))}};
    u32x16 r;
    for (int k = 0; k < 4; k++) {
        int32x4_t p = vreinterpretq_s32_u32(a.v[k]), q = vreinterpretq_s32_u32(b.v[k]);
        int32x4_t low = vminq_s32(p, q);
        uint32x4_t d = vreinterpretq_u32_s32(vsubq_s32(vmaxq_s32(p, q), low));
        uint32x4_t F = vandq_u32(vsubq_u32(vdupq_n_u32(0), d), vdupq_n_u32(0xffff));
        int32x4_t shift = vnegq_s32(vreinterpretq_s32_u32(vshrq_n_u32(vaddq_u32(d, vdupq_n_u32(0xffff)), 16)));
        uint32x4_t f = vshlq_u32(vorrq_u32(F, vdupq_n_u32(0x10000)), shift);
        uint32x4_t j = vandq_u32(vshrq_n_u32(f, 13), vdupq_n_u32(7));
        uint32x4_t bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100u), j, 0x04040404u);
        int32x4_t entry = vreinterpretq_s32_u8(vqtbl2q_u8(entries, vreinterpretq_u8_u32(bytes)));
        int32x4_t slope = vshrq_n_s32(vshlq_n_s32(entry, 16), 16), base = vshlq_n_s32(vshrq_n_s32(entry, 16), 14);
        int32x4_t c = vmlaq_s32(base, slope, vreinterpretq_s32_u32(vandq_u32(f, vdupq_n_u32(0x1fff))));
        uint32x4_t fc = vaddq_u32(f, vreinterpretq_u32_s32(vshrq_n_s32(c, 14)));
        r.v[k] = vsubq_u32(vreinterpretq_u32_s32(low), fc);
    }
    return r;
}
#else
PF_SHARED u32x16 pair_add(u32x16 a, u32x16 b, const uint32_t *table)
{
    u32x16 r;
    PF_EACH {
        int a_first = (int32_t)a.v[k] < (int32_t)b.v[k];
        uint32_t low = a_first ? a.v[k] : b.v[k], d = (a_first ? b.v[k] : a.v[k]) - low;
        uint32_t shift = (d + 0xffffu) >> 16, one = 0x10000u | ((0u - d) & 0xffffu);
        uint32_t f = shift > 31u ? 0u : one >> (shift & 31u), entry = table[(f >> 13) & 7u];
        uint32_t slope = (entry & 0xffffu) - ((entry & 0x8000u) << 1);
        uint32_t c = (entry >> 16 << 14) + slope * (f & 0x1fffu);          /* signed, above -2^28 */
        r.v[k] = low - f - (((c + (1u << 28)) >> 14) - (1u << 14));
    }
    return r;
}
#endif

/* The fold of the lanes: k with k + 8, + 4, + 2, + 1. */
static int32_t pair_fold(u32x16 a)
{
    uint32_t t[32] = {0};
    for (int half = 8; half; half >>= 1) {
        u32_store(t, a);
        a = pair_add(a, u32_load(t + half), pair_table);
    }
    u32_store(t, a);
    return (int32_t)t[0];
}

/* stack[0 .. depth): finished subtrees, the largest first; `i` vectors are in it before v joins. */
#define PAIR_PUSH(v, i)                                                                                                \
    {                                                                                                                  \
        u32x16 joined = v;                                                                                             \
        for (size_t bits = (i); bits & 1u; bits >>= 1) joined = pair_add(stack[--depth], joined, pair_table);          \
        stack[depth++] = joined;                                                                                       \
    }

#define PAIR_UNIT 0x1.62e42fefa39efp-17        /* log(2) / 65536 */

#define PAIR_DEFINE(F, T)                                                                                              \
    PF_INLINE u32x16 pair_leaf_##F(F##x16 x, F##x16 m)                                                                 \
    {                                                                                                                  \
        F##x16 p = F##_mul(F##_sub(m, x), F##_set1((T)94548.46219969910));                                             \
        return F##_to_u32(F##_min(p, F##_set1((T)PAIR_FLOOR)));                                                        \
    }                                                                                                                  \
    PF_INLINE u32x16 pair_two_##F(const T *x, F##x16 m)                                                                \
    {                                                                                                                  \
        return pair_add(pair_leaf_##F(F##_load(x), m), pair_leaf_##F(F##_load(x + 16), m), pair_table);                \
    }                                                                                                                  \
    /* distance of the log-sum from m, which is finite and the maximum */                                              \
    static int32_t pair_row_##F(const T *x, size_t n, T m)                                                             \
    {                                                                                                                  \
        u32x16 stack[64];                                                                                              \
        int depth = 0;                                                                                                 \
        const F##x16 mv = F##_set1(m);                                                                                 \
        size_t j = 0, tail = n % 16;                                                                                   \
        for (; j + 64 <= n; j += 64) {                                                                                 \
            u32x16 four = pair_add(pair_two_##F(x + j, mv), pair_two_##F(x + j + 32, mv), pair_table);                 \
            PAIR_PUSH(four, j / 64)                                                                                    \
        }                                                                                                              \
        size_t whole = j;                                                                                              \
        for (; j + 16 <= n; j += 16) PAIR_PUSH(pair_leaf_##F(F##_load(x + j), mv), (j - whole) / 16)                   \
        if (tail) PAIR_PUSH(pair_leaf_##F(F##_load_tail(x + j, tail, -(T)INFINITY), mv), (j - whole) / 16)             \
        u32x16 sum = stack[--depth];                                                                                   \
        while (depth) sum = pair_add(stack[--depth], sum, pair_table);                                                 \
        return pair_fold(sum);                                                                                         \
    }                                                                                                                  \
    static void pair_rows_##F(const T *x, size_t rows, size_t n, size_t step, T *out)                                  \
    {                                                                                                                  \
        for (size_t r = 0; r < rows; r++, x += step) {                                                                 \
            T m = int_max_##F(x, n);                                                                                   \
            out[r] = isfinite(m) ? (T)((double)m - pair_row_##F(x, n, m) * PAIR_UNIT) : m;                             \
        }                                                                                                              \
    }

PAIR_DEFINE(f32, float)
PAIR_DEFINE(f64, double)

static void pair_pairs(const int32_t *a, const int32_t *b, size_t n, int with_table, int32_t *out)
{
    const uint32_t *table = with_table ? pair_table : pair_no_table;
    for (size_t j = 0; j < n; j += 16) {
        uint32_t t[32] = {0};
        size_t count = n - j < 16 ? n - j : 16;
        memcpy(t, a + j, count * sizeof *t);
        memcpy(t + 16, b + j, count * sizeof *t);
        u32_store(t, pair_add(u32_load(t), u32_load(t + 16), table));
        memcpy(out + j, t, count * sizeof *t);
    }
}

#define PF_PAIRWISE_TABLE { pair_rows_f32, pair_rows_f64, pair_pairs }
