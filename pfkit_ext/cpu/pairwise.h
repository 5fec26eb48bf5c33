/* The pairwise integer log-sum-exp: Q16.16 numbers in base 2, shifts and adds, one small table.
 *
 * One pair, a >= b, M = a, and the difference b - a = I + F with I its floor and 0 <= F < 1:
 *     log2(2^a + 2^b) = a + log2(1 + 2^(b - a)) ~ M + f + c(f),    f = (1 + F) 2^I,
 * in integers f = ((1 << 16) + F) >> -I. Without c the error reaches 0.0850 (log2 units); c is piecewise linear on
 * eight equal segments of f, fitted by linear programming over every difference: 0.00557 at most, checked
 * exhaustively. c(0) = 0 and c is proportional to f near 0, so that many tiny terms add no constant; f = 1 (equal
 * operands) wraps to segment 0 at its origin, where the correction is exactly 0, as it should be. Shifts of 32 and
 * beyond give f = 0.
 *
 * Numbers are distances below the row's maximum m: p = (m - x) 65536 log2(e), rounded to nearest, at most PAIR_FLOOR
 * (64 octaves), where everything further down goes, -inf included: against the maximum it has f = 0, and 2^40 such
 * elements together still have. So no spread of x saturates, and the result m - p log(2) / 65536 is at home wherever m
 * is. A row of -inf alone is -inf, NaN gives NaN, +inf gives +inf, all before any conversion to integers.
 *
 * Order: element j is in lane j mod 16; the vectors of a row are combined as a full binary tree (a pair as soon as both
 * halves exist), then lanes k and k + 8, + 4, + 2, + 1. The error grows with the depth of the tree, not with n: each
 * pair is a function that never magnifies an error of its operands (its slopes are the two shares, which sum to 1), so
 *     |error| <= depth(n) PAIR_ERROR + 2^-17 octaves,   depth(n) = ceil(log2 ceil(n / 16)) + ceil(log2 min(n, 16)).
 */
#ifndef PF_PAIRWISE_H
#define PF_PAIRWISE_H

#include <stddef.h>
#include <stdint.h>

#define PAIR_FLOOR 4194304                     /* 64 * 65536 */
#define PAIR_ERROR 0.0056                      /* octaves, one pair with the table */
#define PAIR_ERROR_BARE 0.0850                 /* without it */

typedef struct {
    /* rows of n elements, `step` elements apart */
    void (*rows_f32)(const float *x, size_t rows, size_t n, size_t step, float *out);
    void (*rows_f64)(const double *x, size_t rows, size_t n, size_t step, double *out);
    /* out = a "plus" b for Q16.16 distances below a common reference (for tests of the single pair) */
    void (*pairs)(const int32_t *a, const int32_t *b, size_t n, int table, int32_t *out);
} pf_pairwise_table;

#endif
