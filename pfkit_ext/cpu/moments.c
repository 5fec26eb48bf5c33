/* Included by level.c once a SIMD level. Sums run over sixteen lanes, are folded once a block of 4096 by the fixed tree, and
 * blocks are added in order: the same bits at every level. No fma: the portable level would have to call it. */
#include "moments.h"
#include "simd.h"

PF_INLINE f64x16 f64_as_f64(f64x16 a) { return a; }

/* TERM: the f64x16 to add up, of lanes starting at element j; `count` of them, or all sixteen. */
#define MOMENTS_SUM(TERM, n)                                                                                           \
    double sum = 0;                                                                                                    \
    for (size_t start = 0; start < n; start += 4096) {                                                                 \
        size_t end = n - start < 4096 ? n : start + 4096, j = start;                                                   \
        f64x16 acc = f64_set1(0);                                                                                      \
        for (; j + 16 <= end; j += 16) acc = f64_add(acc, TERM(MOMENTS_FULL));                                         \
        if (j < end) acc = f64_add(acc, TERM(MOMENTS_TAIL));                                                           \
        sum += f64_fold_add(acc);                                                                                      \
    }                                                                                                                  \
    return sum;

#define MOMENTS_FULL(F, p) F##_load(p + j)
#define MOMENTS_TAIL(F, p) F##_load_tail(p + j, end - j, 0)

#define MOMENTS_DEFINE(F, T, wide)                                                                                     \
    static double moments_total_##F(const T *w, size_t n)                                                              \
    {                                                                                                                  \
        MOMENTS_SUM(MOMENTS_TOTAL_##F, n)                                                                              \
    }                                                                                                                  \
    static double moments_first_##F(const T *x, const T *w, size_t n)                                                  \
    {                                                                                                                  \
        MOMENTS_SUM(MOMENTS_FIRST_##F, n)                                                                              \
    }                                                                                                                  \
    PF_INLINE f64x16 moments_term_##F(F##x16 x, F##x16 w, f64x16 centre)                                               \
    {                                                                                                                  \
        f64x16 away = f64_sub(wide(x), centre);                                                                        \
        return f64_mul(wide(w), f64_mul(away, away));                                                                  \
    }                                                                                                                  \
    static double moments_second_##F(const T *x, const T *w, size_t n, double about)                                   \
    {                                                                                                                  \
        const f64x16 centre = f64_set1(about);                                                                         \
        MOMENTS_SUM(MOMENTS_SECOND_##F, n)                                                                             \
    }

#define MOMENTS_TOTAL_f32(load) f32_to_f64(load(f32, w))
#define MOMENTS_TOTAL_f64(load) load(f64, w)
#define MOMENTS_FIRST_f32(load) f64_mul(f32_to_f64(load(f32, x)), f32_to_f64(load(f32, w)))
#define MOMENTS_FIRST_f64(load) f64_mul(load(f64, x), load(f64, w))
#define MOMENTS_SECOND_f32(load) moments_term_f32(load(f32, x), load(f32, w), centre)
#define MOMENTS_SECOND_f64(load) moments_term_f64(load(f64, x), load(f64, w), centre)

MOMENTS_DEFINE(f32, float, f32_to_f64)
MOMENTS_DEFINE(f64, double, f64_as_f64)

#define PF_MOMENTS_TABLE                                                                                               \
    { moments_total_f32, moments_total_f64, moments_first_f32, moments_first_f64, moments_second_f32,                  \
      moments_second_f64 }
