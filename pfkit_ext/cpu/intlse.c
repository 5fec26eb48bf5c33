/* Included by level.c once a SIMD level. No fma and no float sum anywhere in this file: only the two IEEE operations of
 * the exponent index touch floats. */
#include "intlse.h"
#include "simd.h"

#define INT_SCALE_F32 (-94548.4609375f)       /* -65536 log2(e), rounded to float32 */
#define INT_SCALE_F64 (-94548.4621996991)

PF_INLINE u32x16 int_index_f32(f32x16 x, f32x16 m)
{
    f32x16 v = f32_mul(f32_sub(x, m), f32_set1(INT_SCALE_F32));
    return f32_to_index(v);
}
PF_INLINE u32x16 int_index_f64(f64x16 x, f64x16 m)
{
    f64x16 v = f64_mul(f64_sub(x, m), f64_set1(INT_SCALE_F64));
    return f64_to_index(v);
}

/* Elements before the first 64-byte boundary. Sums and maxima here have no order, so they may start with a part of a
 * group: NumPy's large arrays sit 16 bytes past a boundary, where every other vector would straddle two cache lines. */
static size_t int_head(const void *x, size_t n, size_t size)
{
    size_t head = (64 - ((uintptr_t)x & 63)) % 64 / size;
    return n < 256 || (uintptr_t)x % size ? 0 : head;
}

static pf_u128 int_flush(pf_u128 total, pf_acc64 acc)
{
    uint64_t lanes[16];
    int count = acc64_store(lanes, acc);
    for (int k = 0; k < count; k++) total = u128_add64(total, lanes[k]);
    return total;
}

/* Runs `full` for each whole group j of sixteen elements of x[start, end) and `part` for the rest (`rest` elements, the
 * others -inf), with i the exponent indices and D the deficits of the group. The chain from load to weight is some 35
 * cycles and a scheduler holds little more than one group's operations, so the index of group k + 2 and the deficit of
 * group k + 1 are written beside the weights of group k (15 % faster on Zen 3). The look-ahead reloads the last group at
 * the end rather than reading past it. */
#define INT_PIPELINE(F, T, x, start, end, full, part)                                                                  \
    {                                                                                                                  \
        size_t j = (start), whole = j + (((end) - j) & ~(size_t)15);                                                   \
        if (j < whole) {                                                                                               \
            const size_t last = whole - 16;                                                                            \
            u32x16 i = int_index_##F(F##_load((x) + j), mv);                                                           \
            u32x16 i1 = int_index_##F(F##_load((x) + (j + 16 < last ? j + 16 : last)), mv);                            \
            pf_deficit D = u32_deficit(i);                                                                             \
            for (; j < whole; j += 16) {                                                                               \
                u32x16 i2 = int_index_##F(F##_load((x) + (j + 32 < last ? j + 32 : last)), mv);                        \
                pf_deficit D1 = u32_deficit(i1);                                                                       \
                full;                                                                                                  \
                D = D1;                                                                                                \
                i = i1;                                                                                                \
                i1 = i2;                                                                                               \
            }                                                                                                          \
        }                                                                                                              \
        if (j < (end)) {                                                                                               \
            const size_t rest = (end) - j;                                                                             \
            u32x16 i = int_index_##F(F##_load_tail((x) + j, rest, -(T)INFINITY), mv);                                  \
            pf_deficit D = u32_deficit(i);                                                                             \
            part;                                                                                                      \
            (void)rest;                                                                                                \
        }                                                                                                              \
    }

#define INT_ADD acc = acc64_weights(acc, u32_shifts(i), D)

/* One body for both dtypes. F: f32 or f64; T: float or double. */
#define INT_DEFINE(F, T)                                                                                               \
    static T int_max_##F(const T *x, size_t n)                                                                         \
    {                                                                                                                  \
        F##x16 a = F##_set1(-(T)INFINITY), b = a;                                                                      \
        pf_nan_##F nan_a = F##_nan_none(), nan_b = nan_a;                                                              \
        size_t j = int_head(x, n, sizeof(T));                                                                          \
        if (j) {                                                                                                       \
            F##x16 x0 = F##_load_tail(x, j, -(T)INFINITY);                                                             \
            nan_a = F##_nan_note(nan_a, x0);                                                                           \
            a = F##_max(a, x0);                                                                                        \
        }                                                                                                              \
        for (; j + 32 <= n; j += 32) {                                                                                 \
            F##x16 x0 = F##_load(x + j), x1 = F##_load(x + j + 16);                                                    \
            nan_a = F##_nan_note(nan_a, x0);                                                                           \
            nan_b = F##_nan_note(nan_b, x1);                                                                           \
            a = F##_max(a, x0);                                                                                        \
            b = F##_max(b, x1);                                                                                        \
        }                                                                                                              \
        for (; j < n; j += 16) {                                                                                       \
            F##x16 x0 = n - j < 16 ? F##_load_tail(x + j, n - j, -(T)INFINITY) : F##_load(x + j);                      \
            nan_a = F##_nan_note(nan_a, x0);                                                                           \
            a = F##_max(a, x0);                                                                                        \
        }                                                                                                              \
        if (F##_nan_any(nan_a) || F##_nan_any(nan_b)) return (T)NAN;                                                   \
        return F##_fold_max(F##_max(a, b));                                                                            \
    }                                                                                                                  \
                                                                                                                       \
    static pf_u128 int_total_##F(const T *x, size_t n, T m)                                                            \
    {                                                                                                                  \
        pf_u128 total = u128_from64(0);                                                                                \
        const F##x16 mv = F##_set1(m);                                                                                 \
        for (size_t start = 0, end = int_head(x, n, sizeof(T)); start < n; start = end) {                              \
            if (end == start) end = n - start < PF_BLOCK ? n : start + PF_BLOCK;                                       \
            pf_acc64 acc = acc64_zero();                                                                               \
            INT_PIPELINE(F, T, x, start, end, INT_ADD, INT_ADD)          \
            total = int_flush(total, acc);                                                                             \
        }                                                                                                              \
        return total;                                                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    static void int_rows_##F(const T *x, size_t rows, size_t n, size_t step, T *out)                                   \
    {                                                                                                                  \
        for (size_t r = 0; r < rows; r++, x += step) {                                                                 \
            T m = int_max_##F(x, n);                                                                                   \
            out[r] = isfinite(m) ? (T)pf_log_total(int_total_##F(x, n, m), (double)m) : m;                             \
        }                                                                                                              \
    }

#define pf_nan_f32 pf_nan32
#define pf_nan_f64 pf_nan64
INT_DEFINE(f32, float)
INT_DEFINE(f64, double)

#define PF_INTLSE_TABLE \
    { int_max_f32, int_max_f64, int_total_f32, int_total_f64, int_rows_f32, int_rows_f64 }
