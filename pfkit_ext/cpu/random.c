/* Included by level.c. */
#include "random.h"
#include "vmath.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_TAIL ((uint64_t)1 << 63)          /* marks the second counter of a float32 tail */

/* What all counters of a stream share: round keys, and what the constant counter words make of the first two rounds. */
typedef struct {
    rq key0[PF_PHILOX_ROUNDS], key1[PF_PHILOX_ROUNDS];
    rq x2, x3, y0, y2;
} philox_plan;

static void philox_begin(philox_plan *p, uint64_t key, uint32_t c1, uint64_t stream)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint64_t p1 = (uint64_t)c2 * PHILOX_M1;
    uint32_t x0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, x1 = (uint32_t)p1;
    uint64_t p0 = (uint64_t)x0 * PHILOX_M0;
    p->x2 = rq_set1(c3 ^ k1);
    for (int round = 0; round < PF_PHILOX_ROUNDS; round++) {
        p->key0[round] = rq_set1(k0);
        p->key1[round] = rq_set1(k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    k0 = (uint32_t)key + 0x9E3779B9u;
    k1 = (uint32_t)(key >> 32) + 0xBB67AE85u;
    p->y0 = rq_set1(x1 ^ k0);
    p->y2 = rq_set1((uint32_t)(p0 >> 32) ^ k1);
    p->x3 = rq_set1((uint32_t)p0);
}

/* All rounds on VD_LANES counters. Only the low 32 bits of each word of the result mean anything. */
PF_INLINE void philox_rounds(const philox_plan *p, vq c0, vq *w)
{
    const rq m0 = rq_set1(PHILOX_M0), m1 = rq_set1(PHILOX_M1);
    vq a, b, x0, x1, x2, x3;
    PF_EACH_REG a.r[g] = rq_mul32(c0.r[g], m0);
    PF_EACH_REG b.r[g] = rq_mul32(rq_xor(rq_shr(a.r[g], 32), p->x2), m1);
    PF_EACH_REG {
        x0.r[g] = rq_xor(rq_shr(b.r[g], 32), p->y0);
        x1.r[g] = b.r[g];
        x2.r[g] = rq_xor(a.r[g], p->y2);
        x3.r[g] = p->x3;
    }
    for (int round = 2; round < PF_PHILOX_ROUNDS; round++) {
        PF_EACH_REG a.r[g] = rq_mul32(x0.r[g], m0);
        PF_EACH_REG b.r[g] = rq_mul32(x2.r[g], m1);
        PF_EACH_REG x0.r[g] = rq_xor(rq_xor(rq_shr(b.r[g], 32), x1.r[g]), p->key0[round]);
        PF_EACH_REG x2.r[g] = rq_xor(rq_xor(rq_shr(a.r[g], 32), x3.r[g]), p->key1[round]);
        x1 = b;
        x3 = a;
    }
    w[0] = x0;
    w[1] = x1;
    w[2] = x2;
    w[3] = x3;
}

/* Lane numbers within sixteen counters, in order and as vi_pack wants them. */
static const uint64_t philox_order[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
static const uint64_t philox_pack_order[16] = PF_PACK_ORDER;

PF_INLINE vq philox_lanes(const uint64_t *order, uint32_t base, int first)
{
    vq c;
    PF_EACH_REG {
        int lane = first + g * RD_LANES;
        c.r[g] = rq_add(rq_set1(base + (uint32_t)(lane & ~15)), rq_load(order + (lane & 15)));
    }
    return c;
}

/* The k-th VD_LANES counters of a group. */
PF_INLINE void philox_words_f64(const philox_plan *p, uint32_t base, int k, vq *w)
{
    philox_rounds(p, philox_lanes(philox_order, base, k * VD_LANES), w);
}
/* The k-th VF_LANES counters of a group, as 32-bit words. */
PF_INLINE void philox_words_f32(const philox_plan *p, uint32_t base, int k, vi *w)
{
    vq part[4][VI_PARTS], one[4];
    for (int h = 0; h < VI_PARTS; h++) {
        philox_rounds(p, philox_lanes(philox_pack_order, base, k * VF_LANES + h * VD_LANES), one);
        for (int j = 0; j < 4; j++) part[j][h] = one[j];
    }
    for (int j = 0; j < 4; j++) w[j] = vi_pack(part[j]);
}

/* ---- float64 ----------------------------------------------------------------------------------------------------- */

/* -log of a uniform: ((2^32 high + low) | 1) 2^-64, rounded to a double first */
PF_INLINE vd unit_exponential_f64(vq high, vq low)
{
    vd h = vq_float(vq_or(vq_and(high, vq_set1(0xffffffffu)), vq_set1(0x4530000000000000ull)));
    vd l = vq_float(vq_or(vq_and(low, vq_set1(0xfffffffeu)), vq_set1(0x4330000000000001ull)));
    vd u = vd_add(vd_sub(h, VD_C(0x1p84 + 0x1p52)), l);
    return vd_sub(VD_C(0.0), vd_log_scaled(u, -64.0));
}
PF_INLINE vd unit_uniform_f64(vq high, vq low)
{
    vd h = vq_float(vq_or(vq_and(high, vq_set1(0xffffffffu)), vq_set1(0x4330000000000000ull)));
    vd l = vq_float(vq_or(vq_shr(vq_and(low, vq_set1(0xffffffffu)), 11), vq_set1(0x4330000000000000ull)));
    return vd_fma(vd_sub(h, VD_C(0x1p52)), VD_C(0x1p-32), vd_mul(vd_sub(l, VD_C(0x1p52)), VD_C(0x1p-53)));
}
/* VD_LANES pairs from the words w, which the words of the counters from `next` on replace, if there are more. Those are
 * made while the division is under way: a chain of operations as long as this one would leave the processor waiting. */
PF_INLINE void turn_normal_f64(const philox_plan *p, vq *w, int more, uint32_t next, double *out)
{
    const uint64_t root_half = 0x3fe6a09e667f3bcdull;      /* as in vd_log_scaled */
    vq w2 = w[2], w3 = w[3];
    vd u = vq_to_vd(vq_or(vq_join(w[0], w[1]), vq_set1(1)));
    vq t = vq_add(vd_bits(u), vq_set1(0x3ff0000000000000ull - root_half - (64ull << 52)));
    vd m = vq_float(vq_add(vq_and(t, vq_set1(0x000fffffffffffffull)), vq_set1(root_half)));
    vd f = vd_sub(m, VD_C(1.0)), s = vd_div(f, vd_add(m, VD_C(1.0)));
    if (more) philox_words_f64(p, next, 0, w);
    /* -2 log u: the steps of vd_log_scaled, each times -2 */
    vd z = vd_mul(s, s), k = vq_exponent(t);
    vd e = vd_fma(f, VD_C(2.0), vd_mul(z, vd_log_series(z, -2.0)));
    e = vd_fma(s, e, vd_fma(m, VD_C(-2.0), VD_C(2.0)));
    vd r = vd_sqrt(vd_fma(k, VD_C(-0x1.62e42fefa38p+0), vd_fma(k, VD_C(-0x1.ef35793c7673p-44), e)));
    /* angle: 52 bits place it in one quarter turn about 0, two more give the quarter */
    vd angle = vd_sub(vq_float(vq_or(vq_shr(vq_join(w2, w3), 12), vq_set1(0x3ff0000000000000ull))), VD_C(1.5)), si, co;
    vd_sincos_quarter(angle, &si, &co);
    co = vq_float(vq_xor(vd_bits(co), vq_shl(w3, 63)));
    vd_store(out, vd_mul(r, vd_select_bit1(w3, si, co)));
    vd_store(out + PF_RANDOM_COUNTERS, vd_mul(r, vd_select_bit1(w3, co, si)));
}
PF_INLINE void group_uniform_f64(const philox_plan *p, uint32_t base, double *out)
{
    for (int k = 0; k < PF_RANDOM_COUNTERS / VD_LANES; k++) {
        vq w[4];
        philox_words_f64(p, base, k, w);
        vd_store(out + k * VD_LANES, unit_uniform_f64(w[0], w[1]));
        vd_store(out + PF_RANDOM_COUNTERS + k * VD_LANES, unit_uniform_f64(w[2], w[3]));
    }
}
PF_INLINE void group_bits(const philox_plan *p, uint32_t base, uint64_t *out)
{
    const vq low = vq_set1(0xffffffffu);
    for (int k = 0; k < PF_RANDOM_COUNTERS / VD_LANES; k++) {
        vq w[4];
        philox_words_f64(p, base, k, w);
        vq_store(out + k * VD_LANES, vq_or(vq_shl(w[0], 32), vq_and(w[1], low)));
        vq_store(out + PF_RANDOM_COUNTERS + k * VD_LANES, vq_or(vq_shl(w[2], 32), vq_and(w[3], low)));
    }
}
PF_INLINE void group_exponential_f64(const philox_plan *p, uint32_t base, double *out)
{
    for (int k = 0; k < PF_RANDOM_COUNTERS / VD_LANES; k++) {
        vq w[4];
        philox_words_f64(p, base, k, w);
        vd_store(out + k * VD_LANES, unit_exponential_f64(w[0], w[1]));
        vd_store(out + PF_RANDOM_COUNTERS + k * VD_LANES, unit_exponential_f64(w[2], w[3]));
    }
}

/* ---- float32 ----------------------------------------------------------------------------------------------------- */

/* v = (2 a + 1) + ... in units of 2^-31 for lanes with v < 2^20: a's 30 bits are followed by 32 of a second counter */
static vf f32_tail(vf v, vi odd, uint64_t key, uint64_t counter, uint64_t stream, int word)
{
    float values[VF_LANES];
    uint32_t ints[VF_LANES], more[4];
    vf_store(values, v);
    vi_store(ints, odd);
    for (int k = 0; k < VF_LANES; k++) {
        if (ints[k] >= 1u << 20) continue;
        pf_philox(PF_PHILOX_ROUNDS, key, counter + (uint64_t)k, stream | PHILOX_TAIL, more);
        values[k] = (float)((double)(ints[k] - 1u) + ((double)more[word] + 0.5) * 0x1p-31);
    }
    return vf_load(values);
}
/* -log u, u = v 2^-31; near 1 from the exact distance to 1 */
PF_INLINE vf unit_exponential_f32(vi w, uint64_t key, uint64_t counter, uint64_t stream, int word)
{
    vi odd = vi_or(vi_shr(w, 1), vi_set1(1));
    vf v = vi_to_vf(odd);
    vi small = vi_sub(odd, vi_set1(1u << 20));
    if (vf_any_sign(small)) v = f32_tail(v, odd, key, counter, stream, word);
    const uint32_t root_half = 0x3f3504f3u;
    vi t = vi_add(vf_bits(v), vi_set1(0x3f800000u - root_half));
    vf k = vf_sub(vi_float(vi_or(vi_shr(t, 23), vi_set1(0x4b000000u))), VF_C(0x1p23f + 127.0f + 31.0f));
    vf m = vi_float(vi_add(vi_and(t, vi_set1(0x007fffffu)), vi_set1(root_half)));
    vf exact = vf_mul(vi_to_vf(vi_sub(odd, vi_set1(0x80000000u))), VF_C(0x1p-31f));
    vf f = vf_select_sign(vi_sub(odd, vi_set1(0x60000000u)), vf_sub(m, VF_C(1.0f)), exact);
    f = vf_log1p_reduced(f);
    return vf_sub(VF_C(0.0f), vf_fma(k, VF_C(0x1.62e4p-1f), vf_fma(k, VF_C(0x1.7f7d1cp-20f), f)));
}
PF_INLINE vf unit_uniform_f32(vi w) { return vf_mul(vi_to_vf(vi_shr(w, 8)), VF_C(0x1p-24f)); }
PF_INLINE void unit_normal_f32(vi w0, vi w1, uint64_t key, uint64_t counter, uint64_t stream, int word, vf *c, vf *s)
{
    vf e = unit_exponential_f32(w0, key, counter, stream, word);
    vf r = vf_sqrt(vf_add(e, e));
    vf f = vf_mul(vi_to_vf(vi_or(vi_and(w1, vi_set1(~3u)), vi_set1(2))), VF_C(0x1p-32f));
    vf si, co;
    vf_sincos_quarter(f, &si, &co);
    co = vi_float(vi_xor(vf_bits(co), vi_shl(w1, 31)));
    vi swap = vi_shl(w1, 30);
    *c = vf_mul(r, vf_select_sign(swap, si, co));
    *s = vf_mul(r, vf_select_sign(swap, co, si));
}
#define GROUP_F32_ARGUMENTS const philox_plan *p, uint32_t base, float *out, uint64_t key, uint64_t counter, uint64_t stream
/* As turn_normal_f64, two pairs a lane; `at`: the counter of the first lane. */
PF_INLINE void turn_normal_f32(const philox_plan *p, vi *w, int more, uint32_t next, float *out, pf_random_stream s, uint64_t at)
{
    vi w2 = w[2], w3 = w[3];
    vf c, v;
    unit_normal_f32(w[0], w[1], s.key, at, s.stream, 0, &c, &v);
    vf_store(out, c);
    vf_store(out + PF_RANDOM_COUNTERS, v);
    if (more) philox_words_f32(p, next, 0, w);
    unit_normal_f32(w2, w3, s.key, at, s.stream, 2, &c, &v);
    vf_store(out + 2 * PF_RANDOM_COUNTERS, c);
    vf_store(out + 3 * PF_RANDOM_COUNTERS, v);
}
PF_INLINE void group_uniform_f32(GROUP_F32_ARGUMENTS)
{
    (void)key, (void)counter, (void)stream;
    for (int k = 0; k < PF_RANDOM_COUNTERS / VF_LANES; k++) {
        vi w[4];
        philox_words_f32(p, base, k, w);
        for (int j = 0; j < 4; j++) vf_store(out + PF_RANDOM_COUNTERS * j + k * VF_LANES, unit_uniform_f32(w[j]));
    }
}
PF_INLINE void group_exponential_f32(GROUP_F32_ARGUMENTS)
{
    for (int k = 0; k < PF_RANDOM_COUNTERS / VF_LANES; k++) {
        vi w[4];
        uint64_t at = counter + (uint64_t)(k * VF_LANES);
        philox_words_f32(p, base, k, w);
        for (int j = 0; j < 4; j++)
            vf_store(out + PF_RANDOM_COUNTERS * j + k * VF_LANES, unit_exponential_f32(w[j], key, at, stream, j));
    }
}

/* ---- n of them --------------------------------------------------------------------------------------------------- */

#define RANDOM_DEFINE(name, T, SIZE, EXTRA)                                                                            \
    static void random_##name(pf_random_stream s, uint64_t group, size_t n, T *out)                                    \
    {                                                                                                                  \
        philox_plan p;                                                                                                 \
        uint64_t counter = group * PF_RANDOM_COUNTERS;                                                                                \
        philox_begin(&p, s.key, (uint32_t)(counter >> 32), s.stream);                                                  \
        while (n) {                                                                                                    \
            if (n >= SIZE) {                                                                                           \
                group_##name(&p, (uint32_t)counter, out EXTRA);                                                        \
                out += SIZE;                                                                                           \
                n -= SIZE;                                                                                             \
            } else {                                                                                                   \
                T last[SIZE];                                                                                          \
                T *whole = out;                                                                                        \
                out = last;                                                                                            \
                group_##name(&p, (uint32_t)counter, out EXTRA);                                                        \
                memcpy(whole, last, n * sizeof(T));                                                                    \
                n = 0;                                                                                                 \
            }                                                                                                          \
            counter += PF_RANDOM_COUNTERS;                                                                                             \
            if (!(uint32_t)counter) philox_begin(&p, s.key, (uint32_t)(counter >> 32), s.stream);                      \
        }                                                                                                              \
    }
#define RANDOM_NO_EXTRA
#define RANDOM_F32_EXTRA , s.key, counter, s.stream

RANDOM_DEFINE(uniform_f64, double, PF_RANDOM_GROUP_F64, RANDOM_NO_EXTRA)
RANDOM_DEFINE(exponential_f64, double, PF_RANDOM_GROUP_F64, RANDOM_NO_EXTRA)
RANDOM_DEFINE(bits, uint64_t, PF_RANDOM_GROUP_F64, RANDOM_NO_EXTRA)
RANDOM_DEFINE(uniform_f32, float, PF_RANDOM_GROUP_F32, RANDOM_F32_EXTRA)
RANDOM_DEFINE(exponential_f32, float, PF_RANDOM_GROUP_F32, RANDOM_F32_EXTRA)

/* The first n of the numbers of a group. */
#define RANDOM_COPY(F, v, T, LANES)                                                                                    \
    PF_INLINE void random_copy_##F(T *out, const T *from, size_t n)                                                    \
    {                                                                                                                  \
        if (n < LANES) {                                                                                               \
            memcpy(out, from, n * sizeof(T));                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (size_t k = 0; k + LANES <= n; k += LANES) v##_store(out + k, v##_load(from + k));                         \
        v##_store(out + n - LANES, v##_load(from + n - LANES));                                                        \
    }
RANDOM_COPY(f64, vd, double, VD_LANES)
RANDOM_COPY(f32, vf, float, VF_LANES)

/* Normals: a turn takes LANES counters. */
#define NORMAL_DEFINE(F, T, W, SIZE, LANES, EXTRA)                                                                     \
    static void random_normal_##F(pf_random_stream s, uint64_t group, size_t n, T *out)                                \
    {                                                                                                                  \
        philox_plan p;                                                                                                 \
        W w[4];                                                                                                        \
        T last[SIZE];                                                                                                  \
        uint64_t at = group * PF_RANDOM_COUNTERS;                                                                      \
        if (!n) return;                                                                                                \
        philox_begin(&p, s.key, (uint32_t)(at >> 32), s.stream);                                                       \
        philox_words_##F(&p, (uint32_t)at, 0, w);                                                                      \
        for (;; n -= SIZE, out += SIZE) {                                                                              \
            T *to = n < SIZE ? last : out;                                                                             \
            for (int k = 0; k < PF_RANDOM_COUNTERS; k += LANES) {                                                      \
                const int more = n > SIZE || k + LANES < PF_RANDOM_COUNTERS;                                           \
                const uint64_t next = at + LANES;                                                                      \
                if (!(uint32_t)next) philox_begin(&p, s.key, (uint32_t)(next >> 32), s.stream);                        \
                turn_normal_##F(&p, w, more, (uint32_t)next, to + k EXTRA);                                            \
                at = next;                                                                                             \
            }                                                                                                          \
            if (n <= SIZE) break;                                                                                      \
        }                                                                                                              \
        if (n < SIZE) random_copy_##F(out, last, n);                                                                   \
    }
#define NORMAL_F32_EXTRA , s, at
NORMAL_DEFINE(f64, double, vq, PF_RANDOM_GROUP_F64, VD_LANES, RANDOM_NO_EXTRA)
NORMAL_DEFINE(f32, float, vi, PF_RANDOM_GROUP_F32, VF_LANES, NORMAL_F32_EXTRA)

/* Functions of vmath.h over arrays, for the tests that compare them with mpmath. */
#define VMATH_APPLY(F, T, v, LANES)                                                                                    \
    static void vmath_##F(int which, const T *x, const T *y, size_t n, T *out)                                         \
    {                                                                                                                  \
        for (size_t j = 0; j < n; j += LANES) {                                                                        \
            T a[LANES], b[LANES];                                                                                      \
            size_t count = n - j < LANES ? n - j : LANES;                                                              \
            for (size_t k = 0; k < LANES; k++) {                                                                       \
                a[k] = k < count ? x[j + k] : (T)1;                                                                    \
                b[k] = k < count ? y[j + k] : (T)1;                                                                    \
            }                                                                                                          \
            v va = v##_load(a), vb = v##_load(b), r, other;                                                            \
            if (which == 0) r = v##_exp(va);                                                                           \
            else if (which == 1) r = v##_log(va);                                                                      \
            else if (which == 2) v##_sincos(va, &r, &other);                                                           \
            else if (which == 3) v##_sincos(va, &other, &r);                                                           \
            else r = v##_atan2(va, vb);                                                                                \
            v##_store(a, r);                                                                                           \
            memcpy(out + j, a, count * sizeof(T));                                                                     \
        }                                                                                                              \
    }
VMATH_APPLY(f64, double, vd, VD_LANES)
VMATH_APPLY(f32, float, vf, VF_LANES)

#define PF_RANDOM_TABLE                                                                                                \
    { random_normal_f64, random_normal_f32, random_uniform_f64, random_uniform_f32,                                    \
      random_exponential_f64, random_exponential_f32, random_bits, vmath_f64, vmath_f32 }
