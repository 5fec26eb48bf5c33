/* Resampling on integer weights w_1..w_n (32- or 64-bit), exactly; definition in docs/integer-lse.md, sections 6 and 7.
 *
 * C_j is the cumulative sum, S = C_n > 0 the total, N the number of ancestors to draw. All arithmetic is on integers, so
 * ancestors do not depend on SIMD level, and index n cannot occur. Every function writes exactly N ancestors.
 */
#ifndef PF_RESAMPLE_H
#define PF_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "u128.h"

typedef struct {
    /* sums of the weights */
    uint64_t (*sum32)(const uint32_t *w, size_t n);
    pf_u128 (*sum64)(const uint64_t *w, size_t n);
    /* Integer weights of float ones, 2^31 - 1 or 2^52 at the largest. Returns the index of the first weight that is
     * negative, NaN or infinite; n if all weights are 0; -1 when all is well. */
    ptrdiff_t (*quantize32_f64)(const double *w, size_t n, uint32_t *q);
    ptrdiff_t (*quantize64_f64)(const double *w, size_t n, uint64_t *q);
    ptrdiff_t (*quantize32_f32)(const float *w, size_t n, uint32_t *q);
    ptrdiff_t (*quantize64_f32)(const float *w, size_t n, uint64_t *q);
    /* E_j = floor((N C_j + r) / S), 0 <= r < S; ancestor j fills places E_{j-1} .. E_j - 1. Returns how many j do. */
    size_t (*systematic32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, uint64_t r, int64_t *out);
    size_t (*systematic64)(const uint64_t *w, size_t n, pf_u128 S, uint64_t N, pf_u128 r, int64_t *out);
    /* The same with r = r_k, k = floor(N C_j / S). stride 1: u holds N draws U_k and r_k = (U_k S) >> 64;
     * stride 2: u holds N pairs (high, low) of 64-bit words of r_k itself, each below S. */
    size_t (*stratified32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, const uint64_t *u, int stride, int64_t *out);
    size_t (*stratified64)(const uint64_t *w, size_t n, pf_u128 S, uint64_t N, const uint64_t *u, int stride, int64_t *out);
    /* Ancestor of draw U_k: the first j with C_j > (U_k S) >> 64. n < 2^32. Returns -1 when out of memory, else 0. */
    int (*multinomial32)(const uint32_t *w, size_t n, uint64_t S, size_t N, const uint64_t *u, int64_t *out);
    int (*multinomial64)(const uint64_t *w, size_t n, pf_u128 S, size_t N, const uint64_t *u, int64_t *out);
    /* floor(N w_j / S) copies of each j, then multinomial draws on N w_j mod S; u holds as many draws as are left, which
     * residual_left counts (less than N and than n). n < 2^32. Returns -1 when out of memory, else 0. */
    uint64_t (*residual_left32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N);
    uint64_t (*residual_left64)(const uint64_t *w, size_t n, pf_u128 S, uint64_t N);
    int (*residual32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, const uint64_t *u, int64_t *out);
    int (*residual64)(const uint64_t *w, size_t n, pf_u128 S, uint64_t N, const uint64_t *u, int64_t *out);
    /* How many distinct values the N ancestors have if they are in order, else -2; -1 if one is outside 0 .. n - 1. */
    int64_t (*distinct)(const int64_t *ancestors, size_t N, uint64_t n);
    /* out[k] = x[ancestors[k]], of n elements of x */
    void (*gather_f32)(const float *x, size_t n, const int64_t *ancestors, size_t N, float *out);
    void (*gather_f64)(const double *x, size_t n, const int64_t *ancestors, size_t N, double *out);
    /* systematic32, and moved[i N + k] = x[i n + ancestor k] for i < d in the same pass */
    size_t (*systematic_move32_f32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, uint64_t r, int64_t *out,
                                    const float *x, size_t d, float *moved);
    size_t (*systematic_move32_f64)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, uint64_t r, int64_t *out,
                                    const double *x, size_t d, double *moved);
} pf_resample_table;

#endif
