/* Sixteen-lane vectors, the same at every SIMD level.
 *
 * A kernel is written once with f32x16, f64x16 and u32x16 and compiled once a level; PF_LEVEL_* picks the instructions.
 * Sixteen lanes everywhere (one AVX-512 register of floats, two AVX2, four NEON, a C array in the portable build) is
 * what makes float reductions the same bits at every width: lane k always sees elements k, k + 16, k + 32, ... and the
 * fold at the end is one fixed tree (k with k + 8, then + 4, + 2, + 1).
 *
 * min, max: the operands must not be NaN (levels disagree on it); f32_nan_note finds NaN beforehand.
 * fma is one rounding at every level (C99 fma in the portable build). Nothing else contracts: -ffp-contract=off.
 */
#ifndef PF_SIMD_H
#define PF_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(PF_SANITIZE)                /* instrumented code inlined without limit takes minutes to compile */
#define PF_INLINE static inline __attribute__((unused))
#define PF_RESTRICT restrict
#elif defined(_MSC_VER)
#define PF_INLINE static __forceinline
#define PF_RESTRICT __restrict
#else
#define PF_INLINE static inline __attribute__((always_inline, unused))
#define PF_RESTRICT restrict
#endif

#define PF_LANES 16

#define PF_REP_1(S, op) S(0, op)
#define PF_REP_2(S, op) S(0, op) S(1, op)
#define PF_REP_4(S, op) PF_REP_2(S, op) S(2, op) S(3, op)
#define PF_REP_8(S, op) PF_REP_4(S, op) S(4, op) S(5, op) S(6, op) S(7, op)
#define PF_REP_16(S, op) for (int k = 0; k < 16; k++) { S(k, op) }

#define PF_S2(k, op) r.v[k] = op(a.v[k], b.v[k]);
#define PF_S3(k, op) r.v[k] = op(a.v[k], b.v[k], c.v[k]);
#define PF_DEF2(name, T, REP, op) PF_INLINE T name(T a, T b) { T r; REP(PF_S2, op) return r; }
#define PF_DEF3(name, T, REP, op) PF_INLINE T name(T a, T b, T c) { T r; REP(PF_S3, op) return r; }

/* Each level's header below defines the types, the native operations (PFF_* float, PFD_* double, PFI_* uint32) and the
 * few functions whose shape differs from level to level. */
#if defined(PF_LEVEL_AVX512)
#include "simd_avx512.h"
#elif defined(PF_LEVEL_AVX2)
#include "simd_avx2.h"
#elif defined(PF_LEVEL_NEON)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

PF_DEF2(f32_add, f32x16, PF_REPF, PFF_ADD)
PF_DEF2(f32_sub, f32x16, PF_REPF, PFF_SUB)
PF_DEF2(f32_mul, f32x16, PF_REPF, PFF_MUL)
PF_DEF2(f32_min, f32x16, PF_REPF, PFF_MIN)
PF_DEF2(f32_max, f32x16, PF_REPF, PFF_MAX)
PF_DEF3(f32_fma, f32x16, PF_REPF, PFF_FMA)
PF_DEF2(f64_add, f64x16, PF_REPD, PFD_ADD)
PF_DEF2(f64_sub, f64x16, PF_REPD, PFD_SUB)
PF_DEF2(f64_mul, f64x16, PF_REPD, PFD_MUL)
PF_DEF2(f64_min, f64x16, PF_REPD, PFD_MIN)
PF_DEF2(f64_max, f64x16, PF_REPD, PFD_MAX)
PF_DEF3(f64_fma, f64x16, PF_REPD, PFD_FMA)
PF_DEF2(u32_add, u32x16, PF_REPF, PFI_ADD)
PF_DEF2(u32_sub, u32x16, PF_REPF, PFI_SUB)

#define PF_SLOADF(k, op) r.v[k] = PFF_LOAD(p + (k) * PF_STEPF);
#define PF_SLOADD(k, op) r.v[k] = PFD_LOAD(p + (k) * PF_STEPD);
#define PF_SLOADI(k, op) r.v[k] = PFI_LOAD(p + (k) * PF_STEPF);
#define PF_SSTOREF(k, op) PFF_STORE(p + (k) * PF_STEPF, a.v[k]);
#define PF_SSTORED(k, op) PFD_STORE(p + (k) * PF_STEPD, a.v[k]);
#define PF_SSTOREI(k, op) PFI_STORE(p + (k) * PF_STEPF, a.v[k]);
#define PF_SSETF(k, op) r.v[k] = PFF_SET1(s);
#define PF_SSETD(k, op) r.v[k] = PFD_SET1(s);

PF_INLINE f32x16 f32_load(const float *p) { f32x16 r; PF_REPF(PF_SLOADF, 0) return r; }
PF_INLINE f64x16 f64_load(const double *p) { f64x16 r; PF_REPD(PF_SLOADD, 0) return r; }
PF_INLINE u32x16 u32_load(const uint32_t *p) { u32x16 r; PF_REPF(PF_SLOADI, 0) return r; }
PF_INLINE void f32_store(float *p, f32x16 a) { PF_REPF(PF_SSTOREF, 0) }
PF_INLINE void f64_store(double *p, f64x16 a) { PF_REPD(PF_SSTORED, 0) }
PF_INLINE void u32_store(uint32_t *p, u32x16 a) { PF_REPF(PF_SSTOREI, 0) }
PF_INLINE f32x16 f32_set1(float s) { f32x16 r; PF_REPF(PF_SSETF, 0) return r; }
PF_INLINE f64x16 f64_set1(double s) { f64x16 r; PF_REPD(PF_SSETD, 0) return r; }

/* count < 16 elements, the rest filled: with -inf the padding adds nothing to a log-sum, at any level. */
#if !defined(PF_NATIVE_TAIL)
PF_INLINE f32x16 f32_load_tail(const float *p, size_t count, float fill)
{
    float t[16];
    for (size_t k = 0; k < 16; k++) t[k] = k < count ? p[k] : fill;
    return f32_load(t);
}
PF_INLINE f64x16 f64_load_tail(const double *p, size_t count, double fill)
{
    double t[16];
    for (size_t k = 0; k < 16; k++) t[k] = k < count ? p[k] : fill;
    return f64_load(t);
}
#endif
PF_INLINE void f32_store_tail(float *p, f32x16 a, size_t count)
{
    float t[16];
    f32_store(t, a);
    memcpy(p, t, count * sizeof *p);
}
PF_INLINE void f64_store_tail(double *p, f64x16 a, size_t count)
{
    double t[16];
    f64_store(t, a);
    memcpy(p, t, count * sizeof *p);
}
PF_INLINE void u32_store_tail(uint32_t *p, u32x16 a, size_t count)
{
    uint32_t t[16];
    u32_store(t, a);
    memcpy(p, t, count * sizeof *p);
}

/* Running sums, as exact integers: sums[j] = C + w[*k] + .. + w[j] of as many of the elements *k .. n - 1 as fill whole
 * vectors. *k becomes the first that is left; returns the last sum. */
#if !defined(PF_NATIVE_RUNNING)
PF_INLINE uint64_t running_sums(const uint32_t *w, size_t n, size_t *k, uint64_t C, uint64_t *sums)
{
    size_t j = *k;
    for (; j + 4 <= n; j += 4) {
        uint64_t a = w[j], b = a + w[j + 1], c = b + w[j + 2], d = c + w[j + 3];
        sums[j] = C + a;
        sums[j + 1] = C + b;
        sums[j + 2] = C + c;
        sums[j + 3] = C += d;
    }
    *k = j;
    return C;
}
#endif

/* out[k] = x[index[k]] of x[0 .. n - 1]. Compilers make gather instructions of such loops, which on many processors take
 * twice the time of plain loads. */
#if !defined(PF_NATIVE_TAKE)
#if defined(__GNUC__) && !defined(__clang__)
#define PF_SCALAR __attribute__((optimize("no-tree-vectorize")))
#else
#define PF_SCALAR
#endif
#define PF_TAKE(name, T, I)                                                                                            \
    PF_SCALAR static void name(const T *x, size_t n, const I *index, size_t count, T *out)                             \
    {                                                                                                                  \
        (void)n;                                                                                                       \
        for (size_t k = 0; k < count; k++) out[k] = x[index[k]];                                                       \
    }
PF_TAKE(take_i64_f32, float, int64_t)
PF_TAKE(take_i64_f64, double, int64_t)
#endif

/* The fixed fold tree: lanes k and k + 8, then + 4, + 2, + 1. */
#if !defined(PF_NATIVE_FOLD)
#define PF_FOLD_HALF(half, op) for (int k = 0; k < half; k++) t[k] = op(t[k], t[k + half]);
#define PF_FOLD(name, F, T, op)                                                                                        \
    PF_INLINE T name(F##x16 a)                                                                                         \
    {                                                                                                                  \
        T t[16];                                                                                                       \
        F##_store(t, a);                                                                                               \
        PF_FOLD_HALF(8, op) PF_FOLD_HALF(4, op) PF_FOLD_HALF(2, op)                                                    \
        return op(t[0], t[1]);                                                                                         \
    }
#define PF_FOLD_ADD(a, b) ((a) + (b))
#define PF_FOLD_MAX(a, b) ((a) > (b) ? (a) : (b))
PF_FOLD(f32_fold_add, f32, float, PF_FOLD_ADD)
PF_FOLD(f64_fold_add, f64, double, PF_FOLD_ADD)
PF_FOLD(f32_fold_max, f32, float, PF_FOLD_MAX)
PF_FOLD(f64_fold_max, f64, double, PF_FOLD_MAX)
#endif

#endif
