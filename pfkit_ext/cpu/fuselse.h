/* The float log-sum-exp: one read of memory, exact to rounding, the same bits at every SIMD level.
 *
 * A block of 4096 elements needs its maximum before its sum exp(x - maximum): the maximum of the next block is found
 * while this one is summed, so that memory is read once and ahead of need. Lane k of sixteen takes elements k, k + 16,
 * ...; sixteen terms are summed in the dtype by fma, these sums in float64, the lanes by one fixed tree, the blocks in
 * order as (maximum, total).
 * Where one element towers over the rest and is itself near 0, log(total) would drown the rest in rounding: a second
 * pass sums the rest alone, for maximum + log1p(rest), to full relative precision.
 *
 * Error bound (nats, on the result minus the maximum, before its one rounding to the dtype), n elements, u = 2^-53:
 *   float64: 2.4e-16 (exponential) + 1.3e-16 ln n (subtraction and log2(e), weighted by the shares: their mean distance
 *            from the maximum is at most ln n) + u (min(ceil(n/16), 16) + min(ceil(n/256), 16) + 3) (sums) +
 *            (ceil(n/4096) - 1) (2.4e-16 + 2 u) (joining blocks) + 2 u (1 + ln n) (log)
 *   float32: 1.3e-7 + 7.4e-8 ln n + 2^-24 min(ceil(n/16), 16), plus the float64 bound.
 * Typical errors are far smaller: roundings of sums average out, worst cases do not occur together.
 */
#ifndef PF_FUSELSE_H
#define PF_FUSELSE_H

#include <stddef.h>
#include <stdint.h>

#define PF_FUSE_BLOCK 4096

/* sum exp(x - maximum), relative to the true maximum. Empty or all -inf: (-inf, 0). Any NaN: (NaN, NaN).
 * +inf without NaN: (+inf, 1). */
typedef struct {
    double maximum;
    double total;
} pf_fuse_state;

typedef struct {
    double log_norm;      /* before the rounding to the dtype */
    double ess;
} pf_fuse_norm;

typedef struct {
    pf_fuse_state (*state_f32)(const float *x, size_t n);
    pf_fuse_state (*state_f64)(const double *x, size_t n);
    /* rows of n elements, `step` elements apart */
    void (*rows_f32)(const float *x, size_t rows, size_t n, size_t step, float *out);
    void (*rows_f64)(const double *x, size_t rows, size_t n, size_t step, double *out);
    /* W = exp(x - log_norm), sum 1, no overlap with x; block_max: scratch, one a started block. Each element is
     * exponentiated once. All -inf: W 0, ess 0. NaN or +inf: W and ess NaN. */
    void (*normalize_f32)(const float *x, size_t n, float *W, float *block_max, pf_fuse_norm *out);
    void (*normalize_f64)(const double *x, size_t n, double *W, double *block_max, pf_fuse_norm *out);
    /* out[j] = log sum of exp(x[0..j]) */
    void (*running_f32)(const float *x, size_t n, float *out);
    void (*running_f64)(const double *x, size_t n, double *out);
} pf_fuselse_table;

#endif
