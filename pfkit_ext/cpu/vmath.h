/* Logarithm, exponential, sine, cosine and arctangent of one vector, the same bits at every SIMD level: explicit fma, no
 * library function. Polynomials are minimax in the relative error of the function (Remez exchange in 60 digits).
 *
 * Largest errors, tested against mpmath: 2 ulp of the result, for the ranges given at each function; sin and cos of
 * angles near a multiple of pi: 2 ulp of 1.
 */
#ifndef PF_VMATH_H
#define PF_VMATH_H

#include "native.h"

#define VD_C(x) vd_set1(x)
#define VF_C(x) vf_set1(x)

/* P(z) with 2 atanh(s) = 2 s + s z P(z), z = s^2, for s = f / (2 + f), sqrt(1/2) <= 1 + f < sqrt(2); times `scale`, a
 * power of two or its negative: the same bits otherwise. */
PF_INLINE vd vd_log_series(vd z, double scale)
{
    vd p = vd_fma(VD_C(scale * 0x1.2f0588106e4a9p-3), z, VD_C(scale * 0x1.39a1b6a429b50p-3));
    p = vd_fma(p, z, VD_C(scale * 0x1.74663f168fb3bp-3));
    p = vd_fma(p, z, VD_C(scale * 0x1.c71c5208572d4p-3));
    p = vd_fma(p, z, VD_C(scale * 0x1.24924941f2a77p-2));
    p = vd_fma(p, z, VD_C(scale * 0x1.999999997fd95p-2));
    return vd_fma(p, z, VD_C(scale * 0x1.5555555555592p-1));
}
PF_INLINE vd vd_log1p_reduced(vd f)
{
    vd s = vd_div(f, vd_add(VD_C(2.0), f)), z = vd_mul(s, s);
    /* log(1 + f) = f - s (f - z P): the larger part exact */
    return vd_fma(s, vd_sub(vd_mul(z, vd_log_series(z, 1.0)), f), f);
}
/* log of positive normal x, plus `shift` log 2 */
PF_INLINE vd vd_log_scaled(vd x, double shift)
{
    const uint64_t root_half = 0x3fe6a09e667f3bcdull;
    vq t = vq_add(vd_bits(x), vq_set1(0x3ff0000000000000ull - root_half));
    vd k = vd_sub(vq_float(vq_or(vq_shr(t, 52), vq_set1(0x4330000000000000ull))), VD_C(0x1p52 + 1023.0 - shift));
    vd m = vq_float(vq_add(vq_and(t, vq_set1(0x000fffffffffffffull)), vq_set1(root_half)));
    vd f = vd_log1p_reduced(vd_sub(m, VD_C(1.0)));
    /* log 2 = 0x1.62e42fefa38p-1 + 0x1.ef35793c7673p-45: k times the first is exact */
    return vd_fma(k, VD_C(0x1.62e42fefa38p-1), vd_fma(k, VD_C(0x1.ef35793c7673p-45), f));
}
PF_INLINE vd vd_log(vd x) { return vd_log_scaled(x, 0.0); }

PF_INLINE vf vf_log1p_reduced(vf f)
{
    vf s = vf_div(f, vf_add(VF_C(2.0f), f)), z = vf_mul(s, s);
    vf p = vf_fma(VF_C(0x1.e2f668p-3f), z, VF_C(0x1.2438d8p-2f));
    p = vf_fma(p, z, VF_C(0x1.999a7ap-2f));
    p = vf_fma(p, z, VF_C(0x1.555554p-1f));
    return vf_fma(s, vf_sub(vf_mul(z, p), f), f);
}
PF_INLINE vf vf_log_scaled(vf x, float shift)
{
    const uint32_t root_half = 0x3f3504f3u;
    vi t = vi_add(vf_bits(x), vi_set1(0x3f800000u - root_half));
    vf k = vf_sub(vi_float(vi_or(vi_shr(t, 23), vi_set1(0x4b000000u))), VF_C(0x1p23f + 127.0f - shift));
    vf m = vi_float(vi_add(vi_and(t, vi_set1(0x007fffffu)), vi_set1(root_half)));
    vf f = vf_log1p_reduced(vf_sub(m, VF_C(1.0f)));
    return vf_fma(k, VF_C(0x1.62e4p-1f), vf_fma(k, VF_C(0x1.7f7d1cp-20f), f));
}
PF_INLINE vf vf_log(vf x) { return vf_log_scaled(x, 0.0f); }

/* exp of any x that is not NaN: 0 below -708 (-87), infinity above 709.78 (88.72). Results are normal or 0. */
PF_INLINE vd vd_exp(vd x)
{
    vd clamped = vd_min(vd_max(x, VD_C(-708.0)), VD_C(709.782712893384));
    vd n = vd_fma(clamped, VD_C(0x1.71547652b82fep+0), VD_C(0x1.8p52));
    vq bits = vd_bits(n);
    n = vd_sub(n, VD_C(0x1.8p52));
    vd r = vd_fma(n, VD_C(-0x1.62e42fefa38p-1), clamped);
    r = vd_fma(n, VD_C(-0x1.ef35793c7673p-45), r);
    vd p = vd_fma(VD_C(0x1.ad7f49638f4fap-26), r, VD_C(0x1.28ad639c99e13p-22));
    p = vd_fma(p, r, VD_C(0x1.71df254e64deap-19));
    p = vd_fma(p, r, VD_C(0x1.a0199a1c60456p-16));
    p = vd_fma(p, r, VD_C(0x1.a01a012a664f6p-13));
    p = vd_fma(p, r, VD_C(0x1.6c16c184246b5p-10));
    p = vd_fma(p, r, VD_C(0x1.1111111127b94p-7));
    p = vd_fma(p, r, VD_C(0x1.5555555550895p-5));
    p = vd_fma(p, r, VD_C(0x1.55555555554fap-3));
    p = vd_fma(p, r, VD_C(0x1.000000000000ap-1));
    p = vd_fma(vd_mul(r, r), p, r);
    /* (1 + p) 2^n in two steps, for n reaches 1024 */
    vd one = vq_float(vq_add(vq_shl(vq_sub(bits, vq_set1(1)), 52), vq_set1(0x3ff0000000000000ull)));
    vd y = vd_mul(vd_fma(one, p, one), VD_C(2.0));
    y = vd_select_sign(vd_bits(vd_sub(x, VD_C(-708.0))), VD_C(0.0), y);
    return vd_select_sign(vd_bits(vd_sub(VD_C(709.782712893384), x)), VD_C(INFINITY), y);
}
PF_INLINE vf vf_exp(vf x)
{
    vf clamped = vf_min(vf_max(x, VF_C(-87.0f)), VF_C(88.72283f));
    vf n = vf_fma(clamped, VF_C(0x1.715476p+0f), VF_C(0x1.8p23f));
    vi bits = vf_bits(n);
    n = vf_sub(n, VF_C(0x1.8p23f));
    vf r = vf_fma(n, VF_C(-0x1.62e4p-1f), clamped);
    r = vf_fma(n, VF_C(-0x1.7f7d1cp-20f), r);
    vf p = vf_fma(VF_C(0x1.6a248p-10f), r, VF_C(0x1.1239d4p-7f));
    p = vf_fma(p, r, VF_C(0x1.5558f0p-5f));
    p = vf_fma(p, r, VF_C(0x1.555492p-3f));
    p = vf_fma(p, r, VF_C(0x1.fffffcp-2f));
    p = vf_fma(vf_mul(r, r), p, r);
    vf one = vi_float(vi_add(vi_shl(vi_sub(bits, vi_set1(1)), 23), vi_set1(0x3f800000u)));
    vf y = vf_mul(vf_fma(one, p, one), VF_C(2.0f));
    y = vf_select_sign(vf_bits(vf_sub(x, VF_C(-87.0f))), VF_C(0.0f), y);
    return vf_select_sign(vf_bits(vf_sub(VF_C(88.72283f), x)), VF_C(INFINITY), y);
}

/* sin and cos of (pi / 2) f, |f| <= 1/2 */
PF_INLINE void vd_sincos_quarter(vd f, vd *s, vd *c)
{
    vd y = vd_mul(f, f);
    vd p = vd_fma(VD_C(0x1.e3eeda94bbfa0p-25), y, VD_C(-0x1.e30063addeb6ap-19));
    vd q = vd_fma(VD_C(-0x1.b263c486d0851p-28), y, VD_C(0x1.f9cc40b0d0f4cp-22));
    p = vd_fma(p, y, VD_C(0x1.50782fca474dap-13));
    q = vd_fma(q, y, VD_C(-0x1.a6d1ec7e1106ep-16));
    p = vd_fma(p, y, VD_C(-0x1.32d2cce2d5442p-8));
    q = vd_fma(q, y, VD_C(0x1.e1f5068367b95p-11));
    p = vd_fma(p, y, VD_C(0x1.466bc67758700p-4));
    q = vd_fma(q, y, VD_C(-0x1.55d3c7e3c9280p-6));
    p = vd_fma(p, y, VD_C(-0x1.4abbce625be41p-1));
    q = vd_fma(q, y, VD_C(0x1.03c1f081b5aaep-2));
    p = vd_fma(p, y, VD_C(0x1.921fb54442d18p+0));
    q = vd_fma(q, y, VD_C(-0x1.3bd3cc9be45dep+0));
    *s = vd_mul(f, p);
    *c = vd_fma(q, y, VD_C(1.0));
}
PF_INLINE void vf_sincos_quarter(vf f, vf *s, vf *c)
{
    vf y = vf_mul(f, f);
    vf p = vf_fma(VF_C(-0x1.2d9302p-8f), y, VF_C(0x1.465e92p-4f));
    vf q = vf_fma(VF_C(0x1.d9d580p-11f), y, VF_C(-0x1.55c5e0p-6f));
    p = vf_fma(p, y, VF_C(-0x1.4abbbap-1f));
    q = vf_fma(q, y, VF_C(0x1.03c1dep-2f));
    p = vf_fma(p, y, VF_C(0x1.921fb6p+0f));
    q = vf_fma(q, y, VF_C(-0x1.3bd3ccp+0f));
    *s = vf_mul(f, p);
    *c = vf_fma(q, y, VF_C(1.0f));
}
/* sin and cos of x radians, |x| <= 1e5 */
PF_INLINE void vd_sincos(vd x, vd *s, vd *c)
{
    vd n = vd_fma(x, VD_C(0x1.45f306dc9c883p-1), VD_C(0x1.8p52));
    vq turn = vd_bits(n);
    n = vd_sub(n, VD_C(0x1.8p52));
    /* x - n pi/2 in three parts, then in units of pi/2 */
    vd r = vd_fma(n, VD_C(-0x1.921fb544p+0), x);
    r = vd_fma(n, VD_C(-0x1.0b4611a6p-34), r);
    r = vd_fma(n, VD_C(-0x1.3198a2e037073p-69), r);
    vd si, co;
    vd_sincos_quarter(vd_mul(r, VD_C(0x1.45f306dc9c883p-1)), &si, &co);
    vq odd = vq_shl(turn, 63), half = vq_shl(vq_shr(turn, 1), 63);
    vd a = vd_select_sign(odd, co, si), b = vd_select_sign(odd, si, co);
    *s = vq_float(vq_xor(vd_bits(a), half));
    *c = vq_float(vq_xor(vd_bits(b), vq_xor(half, odd)));
}
PF_INLINE void vf_sincos(vf x, vf *s, vf *c)
{
    vf n = vf_fma(x, VF_C(0x1.45f306p-1f), VF_C(0x1.8p23f));
    vi turn = vf_bits(n);
    n = vf_sub(n, VF_C(0x1.8p23f));
    vf r = vf_fma(n, VF_C(-0x1.92p+0f), x);
    r = vf_fma(n, VF_C(-0x1.fb4p-12f), r);
    r = vf_fma(n, VF_C(-0x1.4442d2p-24f), r);
    vf si, co;
    vf_sincos_quarter(vf_mul(r, VF_C(0x1.45f306p-1f)), &si, &co);
    vi odd = vi_shl(turn, 31), half = vi_shl(vi_shr(turn, 1), 31);
    vf a = vf_select_sign(odd, co, si), b = vf_select_sign(odd, si, co);
    *s = vi_float(vi_xor(vf_bits(a), half));
    *c = vi_float(vi_xor(vf_bits(b), vi_xor(half, odd)));
}

/* atan t, |t| <= tan(pi / 8) */
PF_INLINE vd vd_atan_reduced(vd t)
{
    vd z = vd_mul(t, t);
    vd p = vd_fma(VD_C(-0x1.25a389d11074ep-6), z, VD_C(0x1.37f00c40ab6f4p-5));
    p = vd_fma(p, z, VD_C(-0x1.9cdd3a6a3882ap-5));
    p = vd_fma(p, z, VD_C(0x1.df11a328866ecp-5));
    p = vd_fma(p, z, VD_C(-0x1.10ebe19ba1098p-4));
    p = vd_fma(p, z, VD_C(0x1.3b111cbbb9047p-4));
    p = vd_fma(p, z, VD_C(-0x1.745cf90fd8fa0p-4));
    p = vd_fma(p, z, VD_C(0x1.c71c70e7cb149p-4));
    p = vd_fma(p, z, VD_C(-0x1.24924922b1858p-3));
    p = vd_fma(p, z, VD_C(0x1.99999999958fbp-3));
    p = vd_fma(p, z, VD_C(-0x1.555555555553dp-2));
    return vd_fma(vd_mul(t, z), p, t);
}
PF_INLINE vf vf_atan_reduced(vf t)
{
    vf z = vf_mul(t, t);
    vf p = vf_fma(VF_C(-0x1.f25b5cp-5f), z, VF_C(0x1.b20326p-4f));
    p = vf_fma(p, z, VF_C(-0x1.23b6cap-3f));
    p = vf_fma(p, z, VF_C(0x1.9991aep-3f));
    p = vf_fma(p, z, VF_C(-0x1.55554ap-2f));
    return vf_fma(vf_mul(t, z), p, t);
}

/* atan2(y, x), finite arguments; atan2(0, 0) is 0 (pi for x = -0) with the sign of y, as in C */
PF_INLINE vd vd_atan2(vd y, vd x)
{
    vd ay = vd_abs(y), ax = vd_abs(x);
    vd low = vd_min(ay, ax), high = vd_max(ax, ay);      /* in this order NaN of either stays */
    vq steep = vd_bits(vd_sub(ax, ay));
    /* low / high in [0, 1]: above tan(pi/8), atan = pi/4 + atan((low - high) / (low + high)) */
    vq upper = vd_bits(vd_sub(vd_mul(high, VD_C(0x1.a827999fcef32p-2)), low));
    vd num = vd_select_sign(upper, vd_sub(low, high), low), den = vd_select_sign(upper, vd_add(low, high), high);
    vq empty = vd_bits(vd_sub(den, VD_C(0x1p-1022)));
    vd t = vd_div(num, vd_select_sign(empty, VD_C(1.0), den));
    vd a = vd_atan_reduced(t);
    a = vd_add(a, vd_select_sign(upper, VD_C(0x1.921fb54442d18p-1), VD_C(0.0)));
    a = vd_select_sign(steep, vd_add(vd_sub(VD_C(0x1.921fb54442d18p+0), a), VD_C(0x1.1a62633145c07p-54)), a);
    a = vd_select_sign(vd_bits(x), vd_add(vd_sub(VD_C(0x1.921fb54442d18p+1), a), VD_C(0x1.1a62633145c07p-53)), a);
    return vq_float(vq_or(vd_bits(a), vq_and(vd_bits(y), vq_set1(0x8000000000000000ull))));
}
PF_INLINE vf vf_atan2(vf y, vf x)
{
    vf ay = vf_abs(y), ax = vf_abs(x);
    vf low = vf_min(ay, ax), high = vf_max(ax, ay);
    vi steep = vf_bits(vf_sub(ax, ay));
    vi upper = vf_bits(vf_sub(vf_mul(high, VF_C(0x1.a8279ap-2f)), low));
    vf num = vf_select_sign(upper, vf_sub(low, high), low), den = vf_select_sign(upper, vf_add(low, high), high);
    vi empty = vf_bits(vf_sub(den, VF_C(0x1p-126f)));
    vf t = vf_div(num, vf_select_sign(empty, VF_C(1.0f), den));
    vf a = vf_atan_reduced(t);
    a = vf_add(a, vf_select_sign(upper, VF_C(0x1.921fb6p-1f), VF_C(0.0f)));
    a = vf_select_sign(steep, vf_sub(VF_C(0x1.921fb6p+0f), a), a);
    a = vf_select_sign(vf_bits(x), vf_sub(VF_C(0x1.921fb6p+1f), a), a);
    return vi_float(vi_or(vf_bits(a), vi_and(vf_bits(y), vi_set1(0x80000000u))));
}

#endif
