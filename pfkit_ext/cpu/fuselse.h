/* The float log-sum-exp: one read of memory, exact to rounding, the same bits at every SIMD level.
 *
 * A block of 4096 elements is read twice, the second time from cache: its maximum, then sum exp(x - maximum) in sixteen
 * lanes folded by one fixed tree; blocks are combined in order as (maximum, total), total in float64.
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
    /* W = exp(x - log_norm), sum 1; block_max: scratch, one a started block of 4096. All -inf: W 0, ess 0.
     * NaN or +inf: W and ess NaN. */
    void (*normalize_f32)(const float *x, size_t n, float *W, float *block_max, pf_fuse_norm *out);
    void (*normalize_f64)(const double *x, size_t n, double *W, double *block_max, pf_fuse_norm *out);
    /* out[j] = log sum of exp(x[0..j]) */
    void (*running_f32)(const float *x, size_t n, float *out);
    void (*running_f64)(const double *x, size_t n, double *out);
} pf_fuselse_table;

#endif
