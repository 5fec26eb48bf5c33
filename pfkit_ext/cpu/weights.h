/* The integer normalisation of log-weights: weights, their sum, log_norm and ess from one exponential a particle. */
#ifndef PF_WEIGHTS_H
#define PF_WEIGHTS_H

#include "intlse.h"

#define PF_WEIGHTS32_MAX ((size_t)1 << 20)     /* up to here weights have 32 bits, beyond it 64 */

typedef struct {
    pf_u128 sum;          /* S, of the integer weights */
    double maximum;
    double log_norm;      /* before the rounding to the dtype */
    double ess;           /* S S / Q, rounded once; 0 if there is no finite weight */
    double scale;         /* 1 / float64(S) */
} pf_norm;

/* The 32-bit weights of some of the particles, at a common maximum: integers, so parts add up in any order. */
typedef struct {
    pf_u128 total;        /* of the 64-bit weights, for log_norm */
    pf_u128 squares;      /* of the 32-bit weights */
    uint64_t sum;
} pf_weights_part;

typedef struct {
    /* integer weights of log_w into w (n <= 2^20: uint32, else uint64); m = their finite maximum */
    void (*int32_f32)(const float *x, size_t n, float m, uint32_t *w, pf_norm *out);
    void (*int32_f64)(const double *x, size_t n, double m, uint32_t *w, pf_norm *out);
    void (*int64_f32)(const float *x, size_t n, float m, uint64_t *w, pf_norm *out);
    void (*int64_f64)(const double *x, size_t n, double m, uint64_t *w, pf_norm *out);
    /* W = float64(w) * scale, rounded to the dtype */
    void (*scale32_f32)(const uint32_t *w, size_t n, double scale, float *W);
    void (*scale32_f64)(const uint32_t *w, size_t n, double scale, double *W);
    void (*scale64_f32)(const uint64_t *w, size_t n, double scale, float *W);
    void (*scale64_f64)(const uint64_t *w, size_t n, double scale, double *W);
} pf_weights_table;

/* S S / Q rounded once to float64, S < 2^52 and Q < 2^82 (32-bit weights). */
static inline double pf_ess32(uint64_t S, pf_u128 Q)
{
    pf_u128 rem, q0 = u128_div(u128_mul64(S, S), Q, &rem);
    if (u128_is_zero(rem)) return u128_to_double(q0);
    pf_u128 q1 = u128_div(u128_shl(rem, 46), Q, &rem);
    pf_u128 q2 = u128_div(u128_shl(rem, 46), Q, &rem);
    pf_u128 v = u128_add(u128_add(u128_shl(q0, 92), u128_shl(q1, 46)), q2);
    if (!u128_is_zero(rem) && !(u128_lo(v) & 1u)) v = u128_add64(v, 1);       /* sticky bit, far below the last kept */
    return ldexp(u128_to_double(v), -92);
}

/* The same for any S < 2^98 and 192-bit Q: restoring division of S S 2^60, 256 bits in 32-bit limbs. */
static inline double pf_ess_wide(pf_u128 S, pf_u192 Q)
{
    uint32_t s[4], num[8] = {0}, den[7], rem[7] = {0};
    uint64_t q_hi = 0, q_lo = 0;
    int sticky = 0;
    for (int k = 0; k < 4; k++) s[k] = (uint32_t)u128_lo(u128_shr(S, 32 * k));
    for (int k = 0; k < 4; k++) den[k] = (uint32_t)u128_lo(u128_shr(Q.low, 32 * k));
    den[4] = (uint32_t)Q.top;
    den[5] = (uint32_t)(Q.top >> 32);
    den[6] = 0;
    for (int a = 0; a < 4; a++) {
        uint64_t carry = 0;
        for (int b = 0; b < 4; b++) {
            uint64_t t = (uint64_t)s[a] * s[b] + num[a + b] + carry;
            num[a + b] = (uint32_t)t;
            carry = t >> 32;
        }
        num[a + 4] = (uint32_t)carry;
    }
    for (int bit = 255 + 60; bit >= 0; bit--) {
        uint32_t in = bit >= 60 ? (num[(bit - 60) / 32] >> ((bit - 60) % 32)) & 1u : 0u;
        for (int k = 6; k > 0; k--) rem[k] = (rem[k] << 1) | (rem[k - 1] >> 31);
        rem[0] = (rem[0] << 1) | in;
        int k = 6;
        while (k > 0 && rem[k] == den[k]) k--;
        int ge = rem[k] >= den[k];
        if (ge) {
            uint64_t borrow = 0;
            for (int j = 0; j < 7; j++) {
                uint64_t t = (uint64_t)rem[j] - den[j] - borrow;
                rem[j] = (uint32_t)t;
                borrow = (t >> 32) & 1u;
            }
        }
        q_hi = (q_hi << 1) | (q_lo >> 63);
        q_lo = (q_lo << 1) | (uint64_t)ge;
    }
    for (int k = 0; k < 7; k++) sticky |= rem[k] != 0;
    return ldexp(u128_to_double(u128_make(q_hi, q_lo | (uint64_t)sticky)), -60);
}

#endif
