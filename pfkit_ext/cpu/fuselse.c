/* Included by level.c once a SIMD level. */
#include "elementary.h"
#include "fuselse.h"

PF_INLINE f64x16 fuse_widen_f32(f32x16 a) { return f32_to_f64(a); }
PF_INLINE f64x16 fuse_widen_f64(f64x16 a) { return a; }

/* The sum of the lanes as if rounded once: what each addition of the tree loses is kept and added at the end. Beside a
 * term that towers over the rest (e^0 = 1) the plain tree could lose four times half an ulp of it. */
PF_INLINE double fuse_fold(f64x16 a)
{
    double t[16], lost = 0.0;
    f64_store(t, a);
    for (int half = 8; half; half >>= 1)
        for (int k = 0; k < half; k++) {
            double s = t[k] + t[k + half], b = s - t[k];
            lost += (t[k] - (s - b)) + (t[k + half] - b);
            t[k] = s;
        }
    return t[0] + lost;
}

/* One body for both dtypes. F: f32 or f64; T: float or double. */
#define FUSE_DEFINE(F, T, UNSCALE)                                                                                     \
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
    PF_INLINE F##x16 fuse_exp_##F(F##x16 v, F##x16 m) { return exp_scaled_##F(F##_sub(v, m)); }                        \
                                                                                                                       \
    /* sum exp(x - m) of one block, m finite and >= every element; NaN if an element is NaN */                         \
    PF_INLINE double fuse_sum_##F(const T *x, size_t n, T m)                                                           \
    {                                                                                                                  \
        const F##x16 mv = F##_set1(m);                                                                                 \
        f64x16 sum = f64_set1(0.0);                                                                                    \
        size_t j = 0;                                                                                                  \
        for (; j + 64 <= n; j += 64) {                                                                                 \
            F##x16 e0 = fuse_exp_##F(F##_load(x + j), mv), e1 = fuse_exp_##F(F##_load(x + j + 16), mv);                \
            F##x16 e2 = fuse_exp_##F(F##_load(x + j + 32), mv), e3 = fuse_exp_##F(F##_load(x + j + 48), mv);           \
            sum = f64_add(sum, fuse_widen_##F(F##_add(F##_add(e0, e1), F##_add(e2, e3))));                             \
        }                                                                                                              \
        for (; j + 16 <= n; j += 16) sum = f64_add(sum, fuse_widen_##F(fuse_exp_##F(F##_load(x + j), mv)));            \
        if (j < n)                                                                                                     \
            sum = f64_add(sum, fuse_widen_##F(fuse_exp_##F(F##_load_tail(x + j, n - j, -(T)INFINITY), mv)));           \
        return fuse_fold(sum) * UNSCALE;                                                                               \
    }                                                                                                                  \
                                                                                                                       \
    static pf_fuse_state fuse_state_##F(const T *x, size_t n)                                                          \
    {                                                                                                                  \
        pf_fuse_state s = {-INFINITY, 0.0};                                                                            \
        int above = 0;                                                                                                 \
        for (size_t start = 0; start < n; start += PF_FUSE_BLOCK) {                                                    \
            size_t count = n - start < PF_FUSE_BLOCK ? n - start : PF_FUSE_BLOCK;                                      \
            T m = fuse_max_##F(x + start, count);                                                                      \
            if (!isfinite(m) || above) {                                                                               \
                if (fuse_has_nan_##F(x + start, count)) return (pf_fuse_state){NAN, NAN};                              \
                above |= m > 0 && !isfinite(m);                                                                        \
                continue;                                                                                              \
            }                                                                                                          \
            double total = fuse_sum_##F(x + start, count, m), maximum = (double)m;                                     \
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
        f64x16 sum = f64_set1(0.0);                                                                                    \
        for (size_t j = 0; j < n; j += 16) {                                                                           \
            T t[16];                                                                                                   \
            size_t count = n - j < 16 ? n - j : 16;                                                                    \
            for (size_t k = 0; k < 16; k++) t[k] = k < count && x[j + k] != m ? x[j + k] : -(T)INFINITY;               \
            sum = f64_add(sum, fuse_widen_##F(fuse_exp_##F(F##_load(t), mv)));                                         \
        }                                                                                                              \
        return fuse_fold(sum) * UNSCALE;                                                                               \
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
    static void fuse_normalize_##F(const T *x, size_t n, T *W, T *block_max, pf_fuse_norm *out)                        \
    {                                                                                                                  \
        double maximum = -INFINITY, S = 0.0, Q = 0.0;                                                                  \
        int above = 0;                                                                                                 \
        for (size_t start = 0; start < n; start += PF_FUSE_BLOCK) {                                                    \
            size_t count = n - start < PF_FUSE_BLOCK ? n - start : PF_FUSE_BLOCK, j = 0;                               \
            T m = fuse_max_##F(x + start, count);                                                                      \
            block_max[start / PF_FUSE_BLOCK] = m;                                                                      \
            if (!isfinite(m) || above) {                                                                               \
                if (fuse_has_nan_##F(x + start, count)) goto nan;                                                      \
                above |= m > 0 && !isfinite(m);                                                                        \
                for (; j < count; j++) W[start + j] = (T)0;                                                            \
                continue;                                                                                              \
            }                                                                                                          \
            const F##x16 mv = F##_set1(m);                                                                             \
            f64x16 sum = f64_set1(0.0), squares = sum;                                                                 \
            for (; j + 16 <= count; j += 16) {                                                                         \
                F##x16 e = fuse_exp_##F(F##_load(x + start + j), mv);                                                  \
                f64x16 d = fuse_widen_##F(e);                                                                          \
                F##_store(W + start + j, e);                                                                           \
                sum = f64_add(sum, d);                                                                                 \
                squares = f64_fma(d, d, squares);                                                                      \
            }                                                                                                          \
            if (j < count) {                                                                                           \
                F##x16 e = fuse_exp_##F(F##_load_tail(x + start + j, count - j, -(T)INFINITY), mv);                    \
                f64x16 d = fuse_widen_##F(e);                                                                          \
                F##_store_tail(W + start + j, e, count - j);                                                           \
                sum = f64_add(sum, d);                                                                                 \
                squares = f64_fma(d, d, squares);                                                                      \
            }                                                                                                          \
            double s = fuse_fold(sum) * UNSCALE, q = f64_fold_add(squares) * UNSCALE * UNSCALE;                        \
            if (s != s) goto nan;                                                                                      \
            if ((double)m > maximum) {                                                                                 \
                double factor = pf_exp(maximum - (double)m);                                                           \
                S = S * factor + s;                                                                                    \
                Q = Q * factor * factor + q;                                                                           \
                maximum = (double)m;                                                                                   \
            } else {                                                                                                   \
                double factor = pf_exp((double)m - maximum);                                                           \
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
        for (size_t start = 0; start < n; start += PF_FUSE_BLOCK) {                                                    \
            size_t end = n - start < PF_FUSE_BLOCK ? n : start + PF_FUSE_BLOCK, j = start;                             \
            double scale = pf_exp((double)block_max[start / PF_FUSE_BLOCK] - maximum) / S * UNSCALE;                   \
            const f64x16 sv = f64_set1(scale);                                                                         \
            for (; j + 16 <= end; j += 16) F##_store(W + j, fuse_scale_##F(F##_load(W + j), sv));                      \
            for (; j < end; j++) W[j] = (T)((double)W[j] * scale);                                                     \
        }                                                                                                              \
        out->log_norm = fuse_value_##F(x, n, (pf_fuse_state){maximum, S});                                             \
        double ess = S * S / Q;                                                                                        \
        out->ess = ess < 1.0 ? 1.0 : ess > (double)n ? (double)n : ess;                                                \
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

PF_INLINE f32x16 fuse_scale_f32(f32x16 w, f64x16 s) { return f64_to_f32(f64_mul(f32_to_f64(w), s)); }
PF_INLINE f64x16 fuse_scale_f64(f64x16 w, f64x16 s) { return f64_mul(w, s); }

FUSE_DEFINE(f32, float, 0x1p-32)
FUSE_DEFINE(f64, double, 0x1p-64)

#define PF_FUSELSE_TABLE                                                                                               \
    { fuse_state_f32, fuse_state_f64, fuse_rows_f32, fuse_rows_f64, fuse_normalize_f32, fuse_normalize_f64,            \
      fuse_running_f32, fuse_running_f64 }
