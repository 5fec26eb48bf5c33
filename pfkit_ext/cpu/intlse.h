/* The order-free integer log-sum-exp: definition in docs/integer-lse.md, bound 2.1e-5 nats to n = 2^26.
 *
 * Every element becomes a 64-bit integer weight 2^52 2^(-i / 65536), i the Q16.16 distance from the maximum in units of
 * log 2; integer sums have no order, so the result cannot depend on lanes, blocks, threads or machines.
 */
#ifndef PF_INTLSE_H
#define PF_INTLSE_H

#include <stddef.h>
#include <stdint.h>

#include "log2_table.h"
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

/* The fraction of log2(y / 2^63) in 48 bits, by 48 truncated squarings: what defines the result. */
static inline uint64_t pf_log2_squarings(uint64_t y)
{
    uint64_t fraction = 0;
    for (int k = 0; k < 48; k++) {
        pf_u128 square = u128_mul64(y, y);
        uint64_t hi = u128_hi(square), carry = hi >> 63;
        fraction = (fraction << 1) | carry;
        y = carry ? hi : (hi << 1) | (u128_lo(square) >> 63);
    }
    return fraction;
}

static inline int64_t pf_mulhi_signed(int64_t a, int64_t b)
{
    uint64_t hi = u128_hi(u128_mul64((uint64_t)a, (uint64_t)b));
    return (int64_t)(hi - (a < 0 ? (uint64_t)b : 0) - (b < 0 ? (uint64_t)a : 0));
}

/* log2 of T > 0 in Q7.48. The fast path (a table of 128 reciprocals and seven terms of the logarithm, error below 2^-61)
 * is taken unless its fraction lies within 2^-57 of a multiple of 2^-48: there the truncations of the squarings, at most
 * 2^-60 in all, could decide the last bit, and the squarings themselves are done (one call in 250). */
static inline int64_t pf_log2_fixed(pf_u128 T)
{
    int e = u128_bits(T) - 1;
    uint64_t y = e <= 63 ? u128_lo(T) << (63 - e) : u128_lo(u128_shr(T, e - 63));
    int64_t whole = (int64_t)e << 48;
    if (y == (uint64_t)1 << 63) return whole;
    unsigned j = (unsigned)(y >> 56) & 127u;
    /* z = y r / 2^72 - 1 in Q70: 2^70 vanishes modulo 2^64 and |z| < 2^-7 fits what is left */
    int64_t z = (int64_t)u128_lo(u128_shr(u128_mul64(y, pf_log2_table[j].r), 2));
    int64_t q = pf_log_series[6];
    for (int k = 5; k >= 0; k--) q = pf_log_series[k] - (pf_mulhi_signed(z, q) >> 6);
    int64_t tail = pf_mulhi_signed(pf_mulhi_signed(z, q), PF_LOG2E_Q62);             /* Q66 */
    uint64_t fraction = pf_log2_table[j].log2 + (uint64_t)(tail >> 3), low = fraction & 0x7fff;
    if (low < 64 || low > 0x7fff - 64 || fraction >> 63) return whole | (int64_t)pf_log2_squarings(y);
    return whole | (int64_t)(fraction >> 15);
}

/* m + ln(T / 2^52); the caller rounds once more to its dtype. */
static inline double pf_log_total(pf_u128 T, double m)
{
    double log2_value = (double)(pf_log2_fixed(T) - ((int64_t)52 << 48));
    return m + log2_value * 0x1p-48 * 0.6931471805599453;
}

#endif
