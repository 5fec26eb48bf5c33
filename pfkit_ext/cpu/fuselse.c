/* Included by level.c once a SIMD level. */
#include "elementary.h"
#include "fuselse.h"

PF_INLINE f64x16 fuse_widen_f32(f32x16 a) { return f32_to_f64(a); }
PF_INLINE f64x16 fuse_widen_f64(f64x16 a) { return a; }

/* The sum of the lanes of a block. In float64 a plain tree would lose up to four half ulps beside a term that towers
 * over the rest (e^0 = 1): so each lane is cut into a multiple of 2^-40, whose sums are exact (4096 terms of at most 1,
 * scaled by 2^64), and what is left of it, and the two sums are rounded together, once. float32 has bits to spare. */
PF_INLINE double fuse_fold_f32(f64x16 a) { return f64_fold_add(a); }
PF_SHARED double fuse_fold_f64(f64x16 a)
{
    const f64x16 cut = f64_set1(0x1.8p76);
    f64x16 high = f64_sub(f64_add(a, cut), cut);
    return f64_fold_add(high) + f64_fold_add(f64_sub(a, high));
}

/* The state of a running sum: exp(reference) (sum + rest), rest being what the additions lost. The reference is the
 * largest element so far, or at most 1 below it. */
typedef struct {
    double reference, sum, rest;
} fuse_running;

PF_INLINE void running_add(fuse_running *r, double w)
{
    double s = r->sum + w, b = s - r->sum;
    r->rest += (r->sum - (s - b)) + (w - b);
    r->sum = s;
}
static void running_move(fuse_running *r, double reference)
{
    double factor = pf_exp(r->reference - reference), s = r->sum * factor;
    r->rest = fma(r->sum, factor, -s) + r->rest * factor;
    r->sum = s;
    r->reference = reference;
}
/* A loop of its own, so that compilers vectorise it. */
static void add_log_16(const double *PF_RESTRICT m, const double *PF_RESTRICT sum, const double *PF_RESTRICT rest,
                       double *PF_RESTRICT out)
{
    for (int k = 0; k < 16; k++) out[k] = pf_add_log_pair(m[k], sum[k], rest[k]);
}
/* Element by element: any values. */
static void running_slow(fuse_running *r, const double *x, size_t n, double *out)
{
    for (size_t k = 0; k < n; k++) {
        double v = x[k];
        if (v != v || r->reference != r->reference) {
            r->reference = NAN;
        } else if (v > r->reference) {
            if (isfinite(v) && isfinite(r->reference)) running_move(r, v);
            else r->reference = v;
            running_add(r, 1.0);
        } else if (isfinite(r->reference)) {
            running_add(r, pf_exp(v - r->reference));
        }
        out[k] = isfinite(r->reference) ? pf_add_log_pair(r->reference, r->sum, r->rest) : r->reference;
    }
}
/* Sixteen at once, unless a prefix would underflow against the largest of them or something is not finite. */
static void running_vector(fuse_running *r, f64x16 v, double *out)
{
    double x[16], w[16], sum[16], rest[16], m[16];
    f64_store(x, v);
    double top = f64_nan_any(f64_nan_note(f64_nan_none(), v)) ? NAN : f64_fold_max(v);
    double low = r->reference == -INFINITY ? x[0] : r->reference;
    if (!(top < INFINITY && low >= top - 600.0) || !isfinite(low)) {
        running_slow(r, x, 16, out);
        return;
    }
    if (r->reference == -INFINITY) r->reference = top;
    else if (top > r->reference + 1.0) running_move(r, top);
    exp_parts64 a = exp_parts_f64(f64_sub(f64_set1(r->reference), v));
    f64_store(w, f64_mul(f64_mul(a.s, a.p), f64_set1(EXP_BIAS_F64)));
    fuse_running s = *r;
    for (int k = 0; k < 16; k++) {
        running_add(&s, w[k]);
        m[k] = s.reference;
        sum[k] = s.sum;
        rest[k] = s.rest;
    }
    *r = s;
    add_log_16(m, sum, rest, out);
}

static int fuse_towers(pf_fuse_state s) { return s.total < 1.03125 && fabs(s.maximum) < 0.03125; }

/* Sums of exp(x - maximum) and of their squares. */
typedef struct { double maximum, sum, squares; } fuse_sums;
#define FUSE_NOTHING ((fuse_sums){-INFINITY, 0.0, 0.0})

/* The sums of blocks join in the order of the blocks. */
static void fuse_join(fuse_sums *all, fuse_sums block)
{
    if (block.maximum > all->maximum) {
        double factor = pf_exp(all->maximum - block.maximum);
        all->sum = all->sum * factor + block.sum;
        all->squares = all->squares * factor * factor + block.squares;
        all->maximum = block.maximum;
    } else {
        double factor = pf_exp(block.maximum - all->maximum);
        all->sum = all->sum + block.sum * factor;
        all->squares = all->squares + block.squares * factor * factor;
    }
}
static double fuse_ess(const fuse_sums *all, size_t n)
{
    double ess = all->sum * all->sum / all->squares;
    return ess < 1.0 ? 1.0 : ess > (double)n ? (double)n : ess;
}
/* What the weights of a block are to be multiplied by. */
static double fuse_share(double block_maximum, const fuse_sums *all, double unscale)
{
    return pf_exp(block_maximum - all->maximum) / all->sum * unscale;
}

/* One body for both dtypes. F: f32 or f64; T: float or double. */
#define FUSE_DEFINE(F, T, BITS, UNSCALE, FAINT)                                                                        \
    /* NaN elements make the result meaningless: the sum finds them */                                                 \
    PF_SHARED T fuse_max_##F(const T *x, size_t n)                                                                     \
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
    PF_SHARED f64x16 fuse_add_##F(f64x16 sum, F##x16 v, F##x16 m)                                                      \
    {                                                                                                                  \
        exp_parts##BITS t = exp_parts_##F(F##_sub(m, v));                                                              \
        return f64_add(sum, fuse_widen_##F(F##_mul(t.s, t.p)));                                                        \
    }                                                                                                                  \
                                                                                                                       \
    /* sum exp(x - m) of one block, m finite and >= every element; NaN if an element is NaN. Sixteen vectors are       \
     * summed in the dtype, then join the float64 total of their lane. `ahead`: the block is a whole one and so is the \
     * next, whose maximum (as fuse_max) is found on the way, while it comes in from memory. */                        \
    PF_SHARED double fuse_sum_##F(const T *x, size_t n, T m, int ahead, T *next)                                       \
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
    /* value = maximum + log(total) of finite s, unless one element towers over the rest, and its own value does not   \
     * hide them: then their sum, not 1 + it */                                                                        \
    PF_INLINE double fuse_refine_##F(const T *x, size_t n, pf_fuse_state s, double value)                              \
    {                                                                                                                  \
        if (fuse_towers(s))                                                                                            \
            return s.maximum + pf_log1p(fuse_rest_##F(x, n, (T)s.maximum));                                            \
        return value;                                                                                                  \
    }                                                                                                                  \
    PF_INLINE double fuse_value_##F(const T *x, size_t n, pf_fuse_state s)                                             \
    {                                                                                                                  \
        return isfinite(s.maximum) ? fuse_refine_##F(x, n, s, pf_add_log(s.maximum, s.total)) : s.maximum;             \
    }                                                                                                                  \
                                                                                                                       \
    /* The logarithms of sixteen rows are taken at once. */                                                            \
    static void fuse_rows_##F(const T *x, size_t rows, size_t n, size_t step, T *out)                                  \
    {                                                                                                                  \
        static const double nothing[16] = {0};                                                                         \
        for (; rows >= 16 && n <= PF_FUSE_BLOCK; rows -= 16, out += 16) {                                              \
            double m[16], total[16], value[16];                                                                        \
            for (int k = 0; k < 16; k++) {                                                                             \
                pf_fuse_state s = fuse_state_##F(x + (size_t)k * step, n);                                             \
                m[k] = s.maximum;                                                                                      \
                total[k] = isfinite(s.maximum) ? s.total : 1.0;                                                        \
            }                                                                                                          \
            add_log_16(m, total, nothing, value);                                                                      \
            for (int k = 0; k < 16; k++, x += step)                                                                    \
                out[k] = (T)(isfinite(m[k]) ? fuse_refine_##F(x, n, (pf_fuse_state){m[k], total[k]}, value[k]) : m[k]); \
        }                                                                                                              \
        for (; rows; rows--, x += step) *out++ = (T)fuse_value_##F(x, n, fuse_state_##F(x, n));                        \
    }                                                                                                                  \
                                                                                                                       \
    /* As fuse_sum; W gets exp(x - m) / UNSCALE, *squares the sum of the squares. */                                   \
    PF_SHARED double fuse_weights_##F(const T *x, size_t n, T m, T *W, double *squares, int ahead, T *next)            \
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
    /* W exp(x - its maximum) times `scale`: of one block */                                                           \
    static void fuse_scale_##F(T *W, size_t n, double scale)                                                           \
    {                                                                                                                  \
        size_t j = 0;                                                                                                  \
        if (scale > FAINT) {                                                                                           \
            const F##x16 sv = F##_set1((T)scale);                                                                      \
            for (; j + 16 <= n; j += 16) F##_store(W + j, F##_mul(F##_load(W + j), sv));                               \
            for (; j < n; j++) W[j] = W[j] * (T)scale;                                                                 \
        } else {      /* in the dtype it would be subnormal, and lose what W times it keeps */                         \
            for (; j < n; j++) W[j] = (T)((double)W[j] * scale);                                                       \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    /* One block: weights relative to its maximum, not yet scaled, and their sums. 0 if it holds NaN or +inf; a block  \
     * of -inf has a maximum of -inf and counts nothing. */                                                            \
    static int fuse_part_##F(const T *x, size_t n, T *W, fuse_sums *out)                                               \
    {                                                                                                                  \
        T m = fuse_max_##F(x, n);                                                                                      \
        *out = FUSE_NOTHING;                                                                                           \
        if (!isfinite(m)) {                                                                                            \
            for (size_t j = 0; j < n; j++) W[j] = (T)0;                                                                \
            return m < 0 && !fuse_has_nan_##F(x, n);                                                                   \
        }                                                                                                              \
        out->maximum = (double)m;                                                                                      \
        out->sum = fuse_weights_##F(x, n, m, W, &out->squares, 0, NULL);                                               \
        return out->sum == out->sum;                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    static void fuse_normalize_##F(const T *x, size_t n, T *W, T *block_max, pf_fuse_norm *out)                        \
    {                                                                                                                  \
        fuse_sums all = FUSE_NOTHING;                                                                                  \
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
            fuse_join(&all, (fuse_sums){block, s, q});                                                                 \
        }                                                                                                              \
        const double maximum = all.maximum, S = all.sum;                                                               \
        if (above || !isfinite(maximum)) {                                                                             \
            for (size_t j = 0; j < n; j++) W[j] = above ? (T)NAN : (T)0;                                               \
            out->log_norm = above ? INFINITY : -INFINITY;                                                              \
            out->ess = above ? NAN : 0.0;                                                                              \
            return;                                                                                                    \
        }                                                                                                              \
        out->log_norm = fuse_value_##F(x, n, (pf_fuse_state){maximum, S});                                             \
        out->ess = fuse_ess(&all, n);                                                                                  \
        for (size_t start = 0; start < n; start += PF_FUSE_BLOCK)                                                      \
            fuse_scale_##F(W + start, n - start < PF_FUSE_BLOCK ? n - start : PF_FUSE_BLOCK,                           \
                           fuse_share((double)block_max[start / PF_FUSE_BLOCK], &all, UNSCALE));                       \
        return;                                                                                                        \
    nan:                                                                                                               \
        for (size_t j = 0; j < n; j++) W[j] = (T)NAN;                                                                  \
        out->log_norm = out->ess = NAN;                                                                                \
    }                                                                                                                  \
                                                                                                                       \
    static void fuse_running_##F(const T *x, size_t n, T *out)                                                         \
    {                                                                                                                  \
        fuse_running r = {-INFINITY, 0.0, 0.0};                                                                        \
        double y[16];                                                                                                  \
        size_t j = 0;                                                                                                  \
        for (; j + 16 <= n; j += 16) {                                                                                 \
            running_vector(&r, fuse_widen_##F(F##_load(x + j)), y);                                                    \
            for (int k = 0; k < 16; k++) out[j + k] = (T)y[k];                                                         \
        }                                                                                                              \
        if (j < n) {                                                                                                   \
            running_vector(&r, fuse_widen_##F(F##_load_tail(x + j, n - j, -(T)INFINITY)), y);                          \
            for (int k = 0; j < n; k++, j++) out[j] = (T)y[k];                                                         \
        }                                                                                                              \
    }

#define FUSE_UNSCALE_f32 0x1p-32
#define FUSE_UNSCALE_f64 0x1p-64
#define FUSE_FAINT_f32 0x1p-100
#define FUSE_FAINT_f64 0x1p-1000
FUSE_DEFINE(f32, float, 32, FUSE_UNSCALE_f32, FUSE_FAINT_f32)
FUSE_DEFINE(f64, double, 64, FUSE_UNSCALE_f64, FUSE_FAINT_f64)

#define PF_FUSELSE_TABLE                                                                                               \
    { fuse_state_f32, fuse_state_f64, fuse_rows_f32, fuse_rows_f64, fuse_normalize_f32, fuse_normalize_f64,            \
      fuse_running_f32, fuse_running_f64 }
