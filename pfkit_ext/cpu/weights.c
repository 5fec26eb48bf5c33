/* Included by level.c after intlse.c. No fma, no float sums: all reductions are integers. */
#include "weights.h"

static pf_u128 exact_squares(pf_acc64 low, pf_acc64 high)
{
    uint64_t a[16], b[16];
    int count = acc64_store(a, low);
    acc64_store(b, high);
    pf_u128 total = u128_from64(0);
    for (int k = 0; k < count; k++) {
        /* sum = b 2^32 + e with e < count 2^32, and sum = a mod 2^64: e is their difference mod 2^64 */
        total = u128_add(total, u128_shl(u128_from64(b[k]), 32));
        total = u128_add64(total, a[k] - (b[k] << 32));
    }
    return total;
}

static void weights_whole(const pf_weights_part *all, double m, pf_norm *out)
{
    out->sum = u128_from64(all->sum);
    out->maximum = m;
    out->log_norm = pf_log_total(all->total, m);
    out->ess = pf_ess32(all->sum, all->squares);
    out->scale = 1.0 / (double)all->sum;
}

#define WEIGHTS_STEP(store)                                                                                            \
    {                                                                                                                  \
        u32x16 s = u32_shifts(i), q = u32_weights32(s, D);                                                             \
        logs = acc64_weights(logs, s, D);                                                                              \
        sum = acc64_add_u32(sum, q);                                                                                   \
        acc64_add_squares(&low, &high, q);                                                                             \
        store;                                                                                                         \
    }

#define WEIGHTS_DEFINE(F, T)                                                                                           \
    static void weights_part_##F(const T *PF_RESTRICT x, size_t n, T m, uint32_t *PF_RESTRICT w, pf_weights_part *out)  \
    {                                                                                                                  \
        pf_u128 total = u128_from64(0);                                                                                \
        pf_acc64 sum = acc64_zero(), low = sum, high = sum;                                                            \
        const F##x16 mv = F##_set1(m);                                                                                 \
        for (size_t start = 0, end = int_head(x, n, sizeof(T)); start < n; start = end) {                              \
            if (end == start) end = n - start < PF_BLOCK ? n : start + PF_BLOCK;                                       \
            pf_acc64 logs = acc64_zero();                                                                              \
            INT_PIPELINE(F, T, x, start, end, WEIGHTS_STEP(u32_store(w + j, q)),                                       \
                         WEIGHTS_STEP(u32_store_tail(w + j, q, rest)))                                                 \
            total = int_flush(total, logs);                                                                            \
        }                                                                                                              \
        out->total = total;                                                                                            \
        out->sum = u128_lo(int_flush(u128_from64(0), sum));                                                            \
        out->squares = exact_squares(low, high);                                                                       \
    }                                                                                                                  \
                                                                                                                       \
    static void weights_int32_##F(const T *x, size_t n, T m, uint32_t *w, pf_norm *out)                                \
    {                                                                                                                  \
        pf_weights_part part;                                                                                          \
        weights_part_##F(x, n, m, w, &part);                                                                           \
        weights_whole(&part, (double)m, out);                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    static void weights_int64_##F(const T *x, size_t n, T m, uint64_t *w, pf_norm *out)                                \
    {                                                                                                                  \
        pf_u128 S = u128_from64(0);                                                                                    \
        pf_u192 Q = {0, u128_from64(0)};                                                                               \
        const F##x16 mv = F##_set1(m);                                                                                 \
        for (size_t j = 0; j < n; j += 16) {                                                                           \
            size_t count = n - j < 16 ? n - j : 16;                                                                    \
            u32x16 i = int_index_##F(count < 16 ? F##_load_tail(x + j, count, -(T)INFINITY) : F##_load(x + j), mv);    \
            uint32_t index[16], deficit[16];                                                                           \
            u32_store(index, i);                                                                                       \
            u32_store(deficit, deficit_unpack(u32_deficit(i)));                                                                        \
            for (size_t k = 0; k < count; k++) {                                                                       \
                uint32_t s = index[k] >> 16;                                                                           \
                uint64_t M = (uint64_t)((1u << 20) - (deficit[k] << 3)) << 32;                                         \
                uint64_t q = s > 63u ? 0u : M >> s;                                                                    \
                w[j + k] = q;                                                                                          \
                S = u128_add64(S, q);                                                                                  \
                u192_add(&Q, u128_mul64(q, q));                                                                        \
            }                                                                                                          \
        }                                                                                                              \
        out->sum = S;                                                                                                  \
        out->maximum = (double)m;                                                                                      \
        out->log_norm = pf_log_total(S, (double)m);                                                                    \
        out->ess = pf_ess_wide(S, Q);                                                                                  \
        out->scale = 1.0 / u128_to_double(S);                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    static void weights_scale64_##F(const uint64_t *w, size_t n, double scale, T *W)                                   \
    {                                                                                                                  \
        for (size_t j = 0; j < n; j++) W[j] = (T)((double)(int64_t)w[j] * scale);                                      \
    }

WEIGHTS_DEFINE(f32, float)
WEIGHTS_DEFINE(f64, double)

static void weights_scale32_f32(const uint32_t *w, size_t n, double scale, float *W)
{
    const f64x16 s = f64_set1(scale);
    size_t j = 0;
    for (const size_t head = int_head(W, n, sizeof *W); j < head; j++) W[j] = (float)((double)w[j] * scale);
    for (; j + 16 <= n; j += 16) u32_scale_store_f32(W + j, w + j, s);
    for (; j < n; j++) W[j] = (float)((double)w[j] * scale);
}
static void weights_scale32_f64(const uint32_t *w, size_t n, double scale, double *W)
{
    const f64x16 s = f64_set1(scale);
    size_t j = 0;
    for (const size_t head = int_head(W, n, sizeof *W); j < head; j++) W[j] = (double)((double)w[j] * scale);
    for (; j + 16 <= n; j += 16) f64_store(W + j, f64_mul(u32_to_f64(u32_load(w + j)), s));
    for (; j < n; j++) W[j] = (double)w[j] * scale;
}

#define PF_WEIGHTS_TABLE                                                                                               \
    { weights_int32_f32, weights_int32_f64, weights_int64_f32, weights_int64_f64,                                      \
      weights_scale32_f32, weights_scale32_f64, weights_scale64_f32, weights_scale64_f64 }
