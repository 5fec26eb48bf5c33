/* exp and log without the C library: the same bits at every SIMD level, platform and compiler.
 *
 * exp, of a distance e >= 0: e^-e as the product of two parts, so that a sum of many takes one fma a term.
 * float64: e^-e = 2^n 2^f, n the nearest integer to -e log2(e), found by adding a large constant whose low bits also
 * carry the exponent bias; s = 2^n from those bits by one shift, p = 2^f a polynomial of degree 11, p(0) = 1 exactly.
 * float32: steps of 1/8 octave, e^-e = 2^(v/8) 2^(f/8): a table of 2^((v mod 8)/8), held in a register, has
 * (v mod 8) << 20 subtracted from each entry, so that adding v << 20 gives exponent and mantissa of s at once; p has
 * degree 3.
 * Polynomials: least squares on Chebyshev nodes of |f| <= 1/2, reweighted (Lawson) towards minimax relative error, in
 * 50-digit arithmetic; each coefficient was rounded to its format before the later ones were refitted. Their own error:
 * 2.6e-8 in float32, 4.2e-18 in float64.
 * s is scaled by 2^32 (float32) or 2^64 (float64), so that values below the normal range keep their precision until the
 * caller scales them back; from e = 110.3 (753.4) on, and at +inf, it is exactly 0. NaN gives NaN.
 * Relative error of s p for exact e: float32 1.3e-7 + 1.4e-8 e, float64 2.3e-16 + 1.5e-17 e; the second term is the
 * rounding of log2(e).
 *
 * log. x = 2^e (1 + f), s = f / (2 + f), log(1 + f) = f - (h - s (h + R(s^2))) with h = f^2 / 2, a classical form; R
 * was fitted as above (degree 7, absolute error 2.5e-18). Its parts stay apart so that m + log(x) is rounded only once.
 */
#ifndef PF_ELEMENTARY_H
#define PF_ELEMENTARY_H

#include "simd.h"

/* Where a vector is a C array, a copy of the polynomials in every loop would only make the compiler slow. */
#if defined(PF_LEVEL_AVX512) || defined(PF_LEVEL_AVX2) || defined(PF_LEVEL_NEON)
#define PF_SHARED PF_INLINE
#elif defined(_MSC_VER)
#define PF_SHARED static __declspec(noinline)
#else
#define PF_SHARED static __attribute__((noinline, unused))
#endif

#define EXP_BIAS_F32 0x1p-32f                  /* multiply by these to undo the scale */
#define EXP_BIAS_F64 0x1p-64

/* ---- the table of 2^(j/8), twice over for registers of sixteen ------------------------------------------------ */

static const uint32_t exp_table_f32[16] = {
    0x0u, 0xfffb95c2u, 0xfff837f0u, 0xfff5fed7u, 0xfff504f3u, 0xfff5672au, 0xfff744fdu, 0xfffac0c7u,
    0x0u, 0xfffb95c2u, 0xfff837f0u, 0xfff5fed7u, 0xfff504f3u, 0xfff5672au, 0xfff744fdu, 0xfffac0c7u};

/* v is in the low bits of k: the number whose exponent and mantissa bits are (v << 20) + table[v mod 8]. */
#if defined(PF_LEVEL_AVX512)
PF_INLINE f32x16 exp_step_f32(f32x16 k)
{
    __m512i b = _mm512_castps_si512(k.v[0]), t = _mm512_permutexvar_epi32(b, _mm512_loadu_si512(exp_table_f32));
    f32x16 r;
    r.v[0] = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(b, 20), t));
    return r;
}
#elif defined(PF_LEVEL_AVX2)
PF_INLINE f32x16 exp_step_f32(f32x16 k)
{
    const __m256i table = _mm256_loadu_si256((const __m256i *)exp_table_f32);
    f32x16 r;
    for (int i = 0; i < 2; i++) {
        __m256i b = _mm256_castps_si256(k.v[i]);
        r.v[i] = _mm256_castsi256_ps(
            _mm256_add_epi32(_mm256_slli_epi32(b, 20), _mm256_permutevar8x32_epi32(table, b)));
    }
    return r;
}
#elif defined(PF_LEVEL_NEON)
PF_INLINE f32x16 exp_step_f32(f32x16 k)
{
    const uint8x16x2_t table = {{vreinterpretq_u8_u32(vld1q_u32(exp_table_f32)),
                                 vreinterpretq_u8_u32(vld1q_u32(exp_table_f32 + 4))}};
    f32x16 r;
    for (int i = 0; i < 4; i++) {
        uint32x4_t b = vreinterpretq_u32_f32(k.v[i]), j = vandq_u32(b, vdupq_n_u32(7));
        uint32x4_t bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100u), j, 0x04040404u);
        uint32x4_t t = vreinterpretq_u32_u8(vqtbl2q_u8(table, vreinterpretq_u8_u32(bytes)));
        r.v[i] = vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32(b, 20), t));
    }
    return r;
}
#else
PF_INLINE f32x16 exp_step_f32(f32x16 a)
{
    uint32_t b[16];
    memcpy(b, a.v, sizeof b);
    PF_EACH b[k] = (b[k] << 20) + exp_table_f32[b[k] & 7u];
    memcpy(a.v, b, sizeof b);
    return a;
}
#endif

/* ---- exp ---------------------------------------------------------------------------------------------------- */

#define EXP_RATE_F32 -0x1.715476p+3f           /* -8 log2(e) */
#define EXP_MAGIC_F32 12584184.0f              /* 1.5 2^23 + 8 (127 + 32) */
#define EXP_FAR_F32 0x1.b8d6p+6f               /* 159 log 2, where v becomes 0 */
#define EXP_RATE_F64 -0x1.71547652b82fep+0     /* -log2(e) */
#define EXP_MAGIC_F64 6755399441056831.0       /* 1.5 2^52 + 1023 + 64 */
#define EXP_FAR_F64 0x1.78bb2b2ff2p+9          /* 1087 log 2 */

#define EXP_C1_F32 0x1.62e432p-4f
#define EXP_C2_F32 0x1.ec0c24p-9f
#define EXP_C3_F32 0x1.c68efap-14f

#define EXP_C1_F64 0x1.62e42fefa39efp-1
#define EXP_C2_F64 0x1.ebfbdff82c59cp-3
#define EXP_C3_F64 0x1.c6b08d704a0d3p-5
#define EXP_C4_F64 0x1.3b2ab6fba1209p-7
#define EXP_C5_F64 0x1.5d87fe78b40e3p-10
#define EXP_C6_F64 0x1.4309130bfb7a3p-13
#define EXP_C7_F64 0x1.ffcbfbf6d11d2p-17
#define EXP_C8_F64 0x1.62bfcdee787aep-20
#define EXP_C9_F64 0x1.b526122ebab13p-24
#define EXP_C10_F64 0x1.e6118359271bep-28
#define EXP_C11_F64 0x1.e80794714554ep-32

typedef struct { f32x16 s, p; } exp_parts32;
typedef struct { f64x16 s, p; } exp_parts64;

/* 2^32 e^-e = s p */
PF_SHARED exp_parts32 exp_parts_f32(f32x16 e)
{
    const f32x16 rate = f32_set1(EXP_RATE_F32), magic = f32_set1(EXP_MAGIC_F32);
    exp_parts32 r;
    e = f32_min(f32_set1(EXP_FAR_F32), e);                /* this order of operands lets NaN through */
    f32x16 k = f32_fma(e, rate, magic), f = f32_fma(e, rate, f32_sub(magic, k));
    f32x16 p = f32_fma(f32_set1(EXP_C3_F32), f, f32_set1(EXP_C2_F32));
    p = f32_fma(p, f, f32_set1(EXP_C1_F32));
    r.p = f32_fma(p, f, f32_set1(1.0f));
    r.s = exp_step_f32(k);
    return r;
}
/* 2^64 e^-e = s p */
PF_SHARED exp_parts64 exp_parts_f64(f64x16 e)
{
    const f64x16 rate = f64_set1(EXP_RATE_F64), magic = f64_set1(EXP_MAGIC_F64);
    exp_parts64 r;
    e = f64_min(f64_set1(EXP_FAR_F64), e);
    f64x16 k = f64_fma(e, rate, magic), f = f64_fma(e, rate, f64_sub(magic, k));
    f64x16 p = f64_fma(f64_set1(EXP_C11_F64), f, f64_set1(EXP_C10_F64));
    p = f64_fma(p, f, f64_set1(EXP_C9_F64));
    p = f64_fma(p, f, f64_set1(EXP_C8_F64));
    p = f64_fma(p, f, f64_set1(EXP_C7_F64));
    p = f64_fma(p, f, f64_set1(EXP_C6_F64));
    p = f64_fma(p, f, f64_set1(EXP_C5_F64));
    p = f64_fma(p, f, f64_set1(EXP_C4_F64));
    p = f64_fma(p, f, f64_set1(EXP_C3_F64));
    p = f64_fma(p, f, f64_set1(EXP_C2_F64));
    p = f64_fma(p, f, f64_set1(EXP_C1_F64));
    r.p = f64_fma(p, f, f64_set1(1.0));
    r.s = f64_pow2_from_low_bits(k);
    return r;
}

/* e^d for d <= 600, the arithmetic of one lane of exp_parts_f64; below -745.2 it is 0. NaN gives NaN. */
PF_INLINE double pf_exp(double d)
{
    if (d != d) return d;
    if (d < -EXP_FAR_F64) return 0.0;
    double k = fma(d, -EXP_RATE_F64, EXP_MAGIC_F64), f = fma(d, -EXP_RATE_F64, EXP_MAGIC_F64 - k), s;
    uint64_t bits;
    memcpy(&bits, &k, sizeof bits);
    bits <<= 52;
    memcpy(&s, &bits, sizeof s);
    double p = fma(EXP_C11_F64, f, EXP_C10_F64);
    p = fma(p, f, EXP_C9_F64);
    p = fma(p, f, EXP_C8_F64);
    p = fma(p, f, EXP_C7_F64);
    p = fma(p, f, EXP_C6_F64);
    p = fma(p, f, EXP_C5_F64);
    p = fma(p, f, EXP_C4_F64);
    p = fma(p, f, EXP_C3_F64);
    p = fma(p, f, EXP_C2_F64);
    p = fma(p, f, EXP_C1_F64);
    p = fma(p, f, 1.0);
    return s * p * EXP_BIAS_F64;
}

/* ---- log ---------------------------------------------------------------------------------------------------- */

#define LOG_HALF_ROOT 0x3fe6a09e667f3bcdull    /* bits of sqrt(1/2), where the mantissa interval starts */
#define LOG_LN2_HIGH 0x1.62e42ffp-1            /* 32 bits: e LOG_LN2_HIGH is exact */
#define LOG_LN2_LOW -0x1.718432a1b0e26p-35
#define LOG_R1 0x1.5555555555592p-1
#define LOG_R2 0x1.999999997ff70p-2
#define LOG_R3 0x1.24924941da259p-2
#define LOG_R4 0x1.c71c521b3c91bp-3
#define LOG_R5 0x1.74663b6044520p-3
#define LOG_R6 0x1.39a212e46e237p-3
#define LOG_R7 0x1.2f02051957fccp-3

/* log(1 + f) - f, |f| within [sqrt(1/2) - 1, sqrt(2) - 1] */
PF_INLINE double pf_log1p_rest(double f)
{
    double s = f / (2.0 + f), h = 0.5 * f * f, z = s * s, R = LOG_R7;
    R = fma(R, z, LOG_R6);
    R = fma(R, z, LOG_R5);
    R = fma(R, z, LOG_R4);
    R = fma(R, z, LOG_R3);
    R = fma(R, z, LOG_R2);
    R = fma(R, z, LOG_R1);
    return -(h - s * fma(R, z, h));
}

/* m + log(x + rest), rounded once, for positive, normal and finite x and |rest| below an ulp of x; the error of the
 * parts is below 2^-56 |log x| + 2^-57. No branch and no integer conversion: loops over it vectorise. */
PF_INLINE double pf_add_log_pair(double m, double x, double rest)
{
    const uint64_t bias = 1023ull << 52;
    uint64_t bits, e_bits;
    memcpy(&bits, &x, sizeof bits);
    e_bits = ((bits - LOG_HALF_ROOT + bias) >> 52) | 0x4330000000000000ull;      /* 2^52 + 1023 + e, read as a double */
    bits -= (e_bits << 52) - bias;
    double e, y;
    memcpy(&e, &e_bits, sizeof e);
    memcpy(&y, &bits, sizeof y);
    e -= 4503599627371519.0;
    double f = y - 1.0, high = e * LOG_LN2_HIGH, low = fma(e, LOG_LN2_LOW, pf_log1p_rest(f)) + rest / x;
    double a = high + f, b = a - high, ea = (high - (a - b)) + (f - b);          /* a + ea = high + f exactly */
    double r = m + a, t = r - m, er = (m - (r - t)) + (a - t);                    /* r + er = m + a exactly */
    return r + (er + (ea + low));
}
PF_INLINE double pf_add_log(double m, double x) { return pf_add_log_pair(m, x, 0.0); }

/* log(1 + x) for 0 <= x <= sqrt(2) - 1, to full relative precision */
PF_INLINE double pf_log1p(double x) { return x + pf_log1p_rest(x); }

#endif
