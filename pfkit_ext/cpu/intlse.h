/* The order-free integer log-sum-exp: definition in docs/integer-lse.md, bound 2.1e-5 nats to n = 2^26.
 *
 * Every element becomes a 64-bit integer weight 2^52 2^(-i / 65536), i the Q16.16 distance from the maximum in units of
 * log 2; integer sums have no order, so the result cannot depend on lanes, blocks, threads or machines.
 */
#ifndef PF_INTLSE_H
#define PF_INTLSE_H

#include <stddef.h>
#include <stdint.h>

#include "u128.h"

#define PF_BLOCK 4096

typedef struct {
    /* maximum; -inf when empty; NaN if any element is NaN */
    float (*max_f32)(const float *x, size_t n);
    double (*max_f64)(const double *x, size_t n);
    /* sum of the 64-bit weights at reference m, which is finite and >= every element; scale 2^52 */
    pf_u128 (*total_f32)(const float *x, size_t n, float m);
    pf_u128 (*total_f64)(const double *x, size_t n, double m);
    /* rows of n elements, `step` elements apart */
    void (*rows_f32)(const float *x, size_t rows, size_t n, size_t step, float *out);
    void (*rows_f64)(const double *x, size_t rows, size_t n, size_t step, double *out);
} pf_intlse_table;

/* log2 of T > 0 in Q7.48 by 48 truncated squarings of its leading 64 bits. */
static inline int64_t pf_log2_fixed(pf_u128 T)
{
    int e = u128_bits(T) - 1;
    uint64_t y = e <= 63 ? u128_lo(T) << (63 - e) : u128_lo(u128_shr(T, e - 63));
    uint64_t fraction = 0;
    for (int k = 0; k < 48; k++) {
        pf_u128 square = u128_mul64(y, y);
        uint64_t hi = u128_hi(square), carry = hi >> 63;
        fraction = (fraction << 1) | carry;
        y = carry ? hi : (hi << 1) | (u128_lo(square) >> 63);
    }
    return ((int64_t)e << 48) | (int64_t)fraction;
}

/* m + ln(T / 2^52); the caller rounds once more to its dtype. */
static inline double pf_log_total(pf_u128 T, double m)
{
    double log2_value = (double)(pf_log2_fixed(T) - ((int64_t)52 << 48));
    return m + log2_value * 0x1p-48 * 0.6931471805599453;
}

#endif
