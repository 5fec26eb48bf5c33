/* Included by level.c once a SIMD level. */
#include "elementary.h"
#include "fuselse.h"

PF_INLINE f64x16 fuse_widen_f32(f32x16 a) { return f32_to_f64(a); }
PF_INLINE f64x16 fuse_widen_f64(f64x16 a) { return a; }

/* The sum of the lanes of a block. In float64 a plain tree would lose up to four half ulps beside a term that towers
 * over the rest (e^0 = 1): so each lane is cut into a multiple of 2^-40, whose sums are exact (4096 terms of at most 1,
 * scaled by 2^64), and what is left of it, and the two sums are rounded together, once. float32 has bits to spare. */
PF_INLINE double fuse_fold_f32(f64x16 a) { return f64_fold_add(a); }
PF_INLINE double fuse_fold_f64(f64x16 a)
{
    const f64x16 cut = f64_set1(0x1.8p76);
    f64x16 high = f64_sub(f64_add(a, cut), cut);
    return f64_fold_add(high) + f64_fold_add(f64_sub(a, high));
}

/* One body for both dtypes. F: f32 or f64; T: float or double. */
#define FUSE_DEFINE(F, T, BITS, UNSCALE, FAINT)                                                                        \
    /* NaN elements make the result meaningless: the sum finds them */                                                 \
    PF_INLINE T fuse_max_##F(const T *x, size_t n)                                                                     \
    {                                                                                                                  \
        F##x16 a = F##_set1(-(T)INFINITY), b = a;                                                                      \
        size_t j = 0;                                                                                                  \
        for (; j + 32 <= n; j += 32) {                                                                                 \
            a = F##_max(a, F##_load(x + j));                                                                           \
            b = F##_max(b, F##_load(x + j + 16));                                                                      \
        }                                                                                                              \
        a = F##_max(a, b);                                                                                             \
        if (j + 16 <= n) {                                                                                             \
            a = F##_max(a, F##_load(x + j));                                                                           \
            j += 16;                                                                                                   \
        }                                                                                                              \
        if (j < n) a = F##_max(a, F##_load_tail(x + j, n - j, -(T)INFINITY));                                          \
        return F##_fold_max(a);                                                                                        \
    }                                                                                                                  \
                                                                                                                       \
    static int fuse_has_nan_##F(const T *x, size_t n)                                                                  \
    {                                                                                                                  \
        int found = 0;                                                                                                 \
        for (size_t j = 0; j < n; j++) found |= x[j] != x[j];                                                          \
        return found;                                                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    PF_INLINE f64x16 fuse_add_##F(f64x16 sum, F##x16 v, F##x16 m)                                                      \
    {                                                                                                                  \
        exp_parts##BITS t = exp_parts_##F(F##_sub(m, v));                                                              \
        return f64_add(sum, fuse_widen_##F(F##_mul(t.s, t.p)));                                                        \
    }                                                                                                                  \
                                                                                                                       \
    /* sum exp(x - m) of one block, m finite and >= every element; NaN if an element is NaN. Sixteen vectors are       \
     * summed in the dtype, then join the float64 total of their lane. `ahead`: the block is a whole one and so is the next,  \
     * whose maximum (as fuse_max) is found on the way, while it comes in from memory. */                              \
    PF_INLINE double fuse_sum_##F(const T *x, size_t n, T m, int ahead, T *next)                                       \
    {                                                                                                                  \
        const F##x16 mv = F##_set1(m);                                                                                 \
        f64x16 sum = f64_set1(0.0);                                                                                    \
        F##x16 high = F##_set1(-(T)INFINITY);                                                                          \
        size_t j = 0, vectors = n / 16;                                                                                \
        while (vectors) {                                                                                              \
            F##x16 t = F##_set1((T)0);                                                                                 \
            size_t count = vectors < 16 ? vectors : 16, end = j + 16 * count;                                          \
            vectors -= count;                                                                                          \
            for (; j + 32 <= end; j += 32) {                                                                           \
                exp_parts##BITS a = exp_parts_##F(F##_sub(mv, F##_load(x + j)));                                       \
                t = F##_fma(a.s, a.p, t);                                                                              \
                exp_parts##BITS b = exp_parts_##F(F##_sub(mv, F##_load(x + j + 16)));                                  \
                t = F##_fma(b.s, b.p, t);                                                                              \
                if (ahead) {                                                                                           \
                    high = F##_max(high, F##_load(x + n + j));                                                         \
                    high = F##_max(high, F##_load(x + n + j + 16));                                                    \
                }                                                                                                      \
            }                                                                                                          \
            if (j < end) {                                                                                             \
                exp_parts##BITS a = exp_parts_##F(F##_sub(mv, F##_load(x + j)));                                       \
                t = F##_fma(a.s, a.p, t);                                                                              \
                j += 16;                                                                                               \
            }                                                                                                          \
            sum = f64_add(sum, fuse_widen_##F(t));                                                                     \
        }                                                                                                              \
        if (j < n) sum = fuse_add_##F(sum, F##_load_tail(x + j, n - j, -(T)INFINITY), mv);                             \
        if (ahead) *next = F##_fold_max(high);                                                                         \
        return fuse_fold_##F(sum) * UNSCALE;                                                                           \
    }                                                                                                                  \
                                                                                                                       \
    static pf_fuse_state fuse_state_##F(const T *x, size_t n)                                                          \
    {                                                                                                                  \
        pf_fuse_state s = {-INFINITY, 0.0};                                                                            \
        int above = 0, known = 0;                                                                                      \
        T m = (T)0;                                                                                                    \
        for (size_t start = 0; start < n; start += PF_FUSE_BLOCK) {                                                    \
            size_t count = n - start < PF_FUSE_BLOCK ? n - start : PF_FUSE_BLOCK;                                      \
            if (!known) m = fuse_max_##F(x + start, count);                                                            \
            known = 0;                                                                                                 \
            if (!isfinite(m) || above) {                                                                               \
                if (fuse_has_nan_##F(x + start, count)) return (pf_fuse_state){NAN, NAN};                              \
                above |= m > 0 && !isfinite(m);                                                                        \
                continue;                                                                                              \
            }                                                                                                          \
            double total, maximum = (double)m;                                                                         \
            if (n - start >= 2 * PF_FUSE_BLOCK) {                                                                      \
                total = fuse_sum_##F(x + start, PF_FUSE_BLOCK, m, 1, &m);                                              \
                known = 1;                                                                                             \
            } else {                                                                                                   \
                total = fuse_sum_##F(x + start, count, m, 0, NULL);                                                    \
            }                                                                                                          \
            if (total != total) return (pf_fuse_state){NAN, NAN};                                                      \
            if (maximum > s.maximum) {                                                                                 \
                s.total = s.total * pf_exp(s.maximum - maximum) + total;                                               \
                s.maximum = maximum;                                                                                   \
            } else {                                                                                                   \
                s.total = s.total + total * pf_exp(maximum - s.maximum);                                               \
            }                                                                                                          \
        }                                                                                                              \
        return above ? (pf_fuse_state){INFINITY, 1.0} : s;                                                             \
    }                                                                                                                  \
                                                                                                                       \
    /* sum exp(x - m) over the elements below m */                                                                     \
    static double fuse_rest_##F(const T *x, size_t n, T m)                                                             \
    {                                                                                                                  \
        const F##x16 mv = F##_set1(m);                                                                                 \
        double rest = 0.0;                                                                                             \
        for (size_t start = 0; start < n; start += PF_FUSE_BLOCK) {                                                    \
            size_t end = n - start < PF_FUSE_BLOCK ? n : start + PF_FUSE_BLOCK;                                        \
            f64x16 sum = f64_set1(0.0);                                                                                \
            for (size_t j = start; j < end; j += 16) {                                                                 \
                T t[16];                                                                                               \
                size_t count = end - j < 16 ? end - j : 16;                                                            \
                for (size_t k = 0; k < 16; k++) t[k] = k < count && x[j + k] != m ? x[j + k] : -(T)INFINITY;           \
                sum = fuse_add_##F(sum, F##_load(t), mv);                                                              \
            }                                                                                                          \
            rest += fuse_fold_##F(sum) * UNSCALE;                                                                      \
        }                                                                                                              \
        return rest;                                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    PF_INLINE double fuse_value_##F(const T *x, size_t n, pf_fuse_state s)                                             \
    {                                                                                                                  \
        if (!isfinite(s.maximum)) return s.maximum;                                                                    \
        double value = pf_add_log(s.maximum, s.total);                                                                 \
        /* one element towers over the rest, and its own value does not hide them: their sum, not 1 + it */            \
        if (s.total < 1.03125 && fabs(s.maximum) < 0.03125)                                                            \
            value = s.maximum + pf_log1p(fuse_rest_##F(x, n, (T)s.maximum));                                           \
        return value;                                                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    static void fuse_rows_##F(const T *x, size_t rows, size_t n, size_t step, T *out)                                  \
    {                                                                                                                  \
        for (size_t r = 0; r < rows; r++, x += step) out[r] = (T)fuse_value_##F(x, n, fuse_state_##F(x, n));           \
    }                                                                                                                  \
                                                                                                                       \
    /* As fuse_sum; W gets exp(x - m) / UNSCALE, *squares the sum of the squares. */                                   \
    PF_INLINE double fuse_weights_##F(const T *x, size_t n, T m, T *W, double *squares, int ahead, T *next)            \
    {                                                                                                                  \
        const F##x16 mv = F##_set1(m);                                                                                 \
        f64x16 sum = f64_set1(0.0), square = sum;                                                                      \
        F##x16 high = F##_set1(-(T)INFINITY);                                                                          \
        for (size_t j = 0; j < n;) {                                                                                   \
            F##x16 t = F##_set1((T)0), u = t;                                                                          \
            size_t end = n - j < 256 ? n : j + 256;                                                                    \
            for (; j + 16 <= end; j += 16) {                                                                           \
                exp_parts##BITS a = exp_parts_##F(F##_sub(mv, F##_load(x + j)));                                       \
                F##x16 w = F##_mul(a.s, a.p);                                                                          \
                F##_store(W + j, w);                                                                                   \
                t = F##_add(t, w);                                                                                     \
                u = F##_fma(w, w, u);                                                                                  \
                if (ahead) high = F##_max(high, F##_load(x + n + j));                                                  \
            }                                                                                                          \
            if (j < end) {                                                                                             \
                exp_parts##BITS a = exp_parts_##F(F##_sub(mv, F##_load_tail(x + j, end - j, -(T)INFINITY)));           \
                F##x16 w = F##_mul(a.s, a.p);                                                                          \
                F##_store_tail(W + j, w, end - j);                                                                     \
                t = F##_add(t, w);                                                                                     \
                u = F##_fma(w, w, u);                                                                                  \
                j = end;                                                                                               \
            }                                                                                                          \
            sum = f64_add(sum, fuse_widen_##F(t));                                                                     \
            square = f64_add(square, fuse_widen_##F(u));                                                               \
        }                                                                                                              \
        if (ahead) *next = F##_fold_max(high);                                                                         \
        *squares = f64_fold_add(square) * UNSCALE * UNSCALE;                                                           \
        return fuse_fold_##F(sum) * UNSCALE;                                                                           \
    }                                                                                                                  \
                                                                                                                       \
    static void fuse_normalize_##F(const T *x, size_t n, T *W, T *block_max, pf_fuse_norm *out)                        \
    {                                                                                                                  \
        double maximum = -INFINITY, S = 0.0, Q = 0.0;                                                                  \
        int above = 0, known = 0;                                                                                      \
        T m = (T)0;                                                                                                    \
        for (size_t start = 0; start < n; start += PF_FUSE_BLOCK) {                                                    \
            size_t count = n - start < PF_FUSE_BLOCK ? n - start : PF_FUSE_BLOCK;                                      \
            if (!known) m = fuse_max_##F(x + start, count);                                                            \
            known = 0;                                                                                                 \
            block_max[start / PF_FUSE_BLOCK] = m;                                                                      \
            if (!isfinite(m) || above) {                                                                               \
                if (fuse_has_nan_##F(x + start, count)) goto nan;                                                      \
                above |= m > 0 && !isfinite(m);                                                                        \
                for (size_t j = 0; j < count; j++) W[start + j] = (T)0;                                                \
                continue;                                                                                              \
            }                                                                                                          \
            double s, q, block = (double)m;                                                                            \
            if (n - start >= 2 * PF_FUSE_BLOCK) {                                                                      \
                s = fuse_weights_##F(x + start, PF_FUSE_BLOCK, m, W + start, &q, 1, &m);                               \
                known = 1;                                                                                             \
            } else {                                                                                                   \
                s = fuse_weights_##F(x + start, count, m, W + start, &q, 0, NULL);                                     \
            }                                                                                                          \
            if (s != s) goto nan;                                                                                      \
            if (block > maximum) {                                                                                     \
                double factor = pf_exp(maximum - block);                                                               \
                S = S * factor + s;                                                                                    \
                Q = Q * factor * factor + q;                                                                           \
                maximum = block;                                                                                       \
            } else {                                                                                                   \
                double factor = pf_exp(block - maximum);                                                               \
                S = S + s * factor;                                                                                    \
                Q = Q + q * factor * factor;                                                                           \
            }                                                                                                          \
        }                                                                                                              \
        if (above || !isfinite(maximum)) {                                                                             \
            for (size_t j = 0; j < n; j++) W[j] = above ? (T)NAN : (T)0;                                               \
            out->log_norm = above ? INFINITY : -INFINITY;                                                              \
            out->ess = above ? NAN : 0.0;                                                                              \
            return;                                                                                                    \
        }                                                                                                              \
        out->log_norm = fuse_value_##F(x, n, (pf_fuse_state){maximum, S});                                             \
        double ess = S * S / Q;                                                                                        \
        out->ess = ess < 1.0 ? 1.0 : ess > (double)n ? (double)n : ess;                                                \
        for (size_t start = 0; start < n; start += PF_FUSE_BLOCK) {                                                    \
            size_t end = n - start < PF_FUSE_BLOCK ? n : start + PF_FUSE_BLOCK, j = start;                             \
            double scale = pf_exp((double)block_max[start / PF_FUSE_BLOCK] - maximum) / S * UNSCALE;                   \
            if (scale > FAINT) {                                                                                       \
                const F##x16 sv = F##_set1((T)scale);                                                                  \
                for (; j + 16 <= end; j += 16) F##_store(W + j, F##_mul(F##_load(W + j), sv));                         \
                for (; j < end; j++) W[j] = W[j] * (T)scale;                                                           \
            } else {      /* in the dtype it would be subnormal, and lose what W times it keeps */                     \
                for (; j < end; j++) W[j] = (T)((double)W[j] * scale);                                                 \
            }                                                                                                          \
        }                                                                                                              \
        return;                                                                                                        \
    nan:                                                                                                               \
        for (size_t j = 0; j < n; j++) W[j] = (T)NAN;                                                                  \
        out->log_norm = out->ess = NAN;                                                                                \
    }                                                                                                                  \
                                                                                                                       \
    static void fuse_running_##F(const T *x, size_t n, T *out)                                                         \
    {                                                                                                                  \
        double maximum = -INFINITY, total = 0.0;                                                                       \
        for (size_t j = 0; j < n; j++) {                                                                               \
            double v = (double)x[j];                                                                                   \
            if (v != v || maximum != maximum) {                                                                        \
                maximum = NAN;                                                                                         \
            } else if (v > maximum) {                                                                                  \
                total = isfinite(v) && total > 0.0 ? total * pf_exp(maximum - v) + 1.0 : 1.0;                          \
                maximum = v;                                                                                           \
            } else if (isfinite(maximum)) {                                                                            \
                total += pf_exp(v - maximum);                                                                          \
            }                                                                                                          \
            out[j] = isfinite(maximum) ? (T)pf_add_log(maximum, total) : (T)maximum;                                   \
        }                                                                                                              \
    }

FUSE_DEFINE(f32, float, 32, 0x1p-32, 0x1p-100)
FUSE_DEFINE(f64, double, 64, 0x1p-64, 0x1p-1000)

#define PF_FUSELSE_TABLE                                                                                               \
    { fuse_state_f32, fuse_state_f64, fuse_rows_f32, fuse_rows_f64, fuse_normalize_f32, fuse_normalize_f64,            \
      fuse_running_f32, fuse_running_f64 }
