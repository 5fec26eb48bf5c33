/* Random numbers from Philox4x32-7 (Salmon, Moraes, Dror and Shaw, SC'11): a counter in, 128 random bits out, no state.
 * Seven rounds are the fewest that passed all of BigCrush there, counters and keys in every order.
 *
 * A stream is a 64-bit key and the upper 64 bits of the counter; within it numbers come in groups of 32 counters,
 * group g using the counters 32 g .. 32 g + 31 in the lower 64 bits. What a group gives, in this order:
 *
 *   float64  64 numbers: of uniforms and exponentials one a word pair, (w0, w1) of the 32 counters, then (w2, w3);
 *            of normals 32 pairs by Box and Muller, radius from (w0, w1), angle from (w2, w3): 32 r cos, 32 r sin
 *   float32  128 numbers: of uniforms and exponentials w0 of the 32 counters, then w1, w2, w3; of normals 32 r cos
 *            and 32 r sin with radius from w0 and angle from w1, then the same from w2 and w3
 *
 * Tails: the radius and the exponential come from a 64-bit uniform (normals reach 9.4, exponentials 44; the chance of
 * more is below 2^-63). In float32 a 30-bit uniform below 2^-11 gets 32 more bits from a second counter.
 *
 * Bits: the same at every SIMD level.
 */
#ifndef PF_RANDOM_H
#define PF_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#define PF_PHILOX_ROUNDS 7
#define PF_RANDOM_COUNTERS 32              /* of one group */
#define PF_RANDOM_GROUP_F64 64
#define PF_RANDOM_GROUP_F32 128

typedef struct {
    uint64_t key;
    uint64_t stream;      /* upper half of the counter; its top bit is kept for the second counter of float32 tails */
} pf_random_stream;

typedef struct {
    /* n numbers from the start of group `group` on; a call takes ceil(n / group size) groups */
    void (*normal_f64)(pf_random_stream s, uint64_t group, size_t n, double *out);
    void (*normal_f32)(pf_random_stream s, uint64_t group, size_t n, float *out);
    void (*uniform_f64)(pf_random_stream s, uint64_t group, size_t n, double *out);      /* [0, 1), multiples of 2^-53 */
    void (*uniform_f32)(pf_random_stream s, uint64_t group, size_t n, float *out);       /* [0, 1), multiples of 2^-24 */
    void (*exponential_f64)(pf_random_stream s, uint64_t group, size_t n, double *out);
    void (*exponential_f32)(pf_random_stream s, uint64_t group, size_t n, float *out);
    /* 64-bit words (w0 << 32 | w1), then (w2 << 32 | w3), in the order of float64 uniforms */
    void (*bits)(pf_random_stream s, uint64_t group, size_t n, uint64_t *out);
    /* vmath.h over arrays: 0 exp(x), 1 log(x), 2 sin(x), 3 cos(x), 4 atan2(x, y) */
    void (*vmath_f64)(int which, const double *x, const double *y, size_t n, double *out);
    void (*vmath_f32)(int which, const float *x, const float *y, size_t n, float *out);
} pf_random_table;

/* The block function itself, one counter. */
static inline void pf_philox(int rounds, uint64_t key, uint64_t counter_low, uint64_t counter_high, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t x0 = (uint32_t)counter_low, x1 = (uint32_t)(counter_low >> 32);
    uint32_t x2 = (uint32_t)counter_high, x3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < rounds; round++) {
        uint64_t p0 = (uint64_t)x0 * 0xD2511F53u, p1 = (uint64_t)x2 * 0xCD9E8D57u;
        uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0, y2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)p1;
        x3 = (uint32_t)p0;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

#endif
