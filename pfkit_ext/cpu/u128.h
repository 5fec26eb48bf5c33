/* 128-bit unsigned arithmetic, the only place that knows whether the compiler has __int128.
 *
 * With __int128 each function is one or two instructions; without it (MSVC, 32-bit targets, or PF_U128_PORTABLE
 * defined by the tests) a struct of two 64-bit words gives the same results. pf_u192 holds the sum of squares of
 * 64-bit weights, which passes 2^128 beyond 2^24 terms.
 */
#ifndef PF_U128_H
#define PF_U128_H

#include <math.h>
#include <stdint.h>

#if defined(__SIZEOF_INT128__) && !defined(PF_U128_PORTABLE)
#define PF_HAVE_INT128 1
__extension__ typedef unsigned __int128 pf_u128;
#else
#define PF_HAVE_INT128 0
typedef struct { uint64_t hi, lo; } pf_u128;
#endif

static inline int u64_bits(uint64_t a)
{
#if defined(__GNUC__)
    return a ? 64 - __builtin_clzll(a) : 0;
#else
    int n = 0;
    for (int step = 32; step; step >>= 1)
        if (a >> step) { n += step; a >>= step; }
    return n + (int)a;
#endif
}

#if PF_HAVE_INT128

static inline pf_u128 u128_make(uint64_t hi, uint64_t lo) { return ((pf_u128)hi << 64) | lo; }
static inline uint64_t u128_hi(pf_u128 a) { return (uint64_t)(a >> 64); }
static inline uint64_t u128_lo(pf_u128 a) { return (uint64_t)a; }
static inline pf_u128 u128_add(pf_u128 a, pf_u128 b) { return a + b; }
static inline pf_u128 u128_sub(pf_u128 a, pf_u128 b) { return a - b; }
static inline pf_u128 u128_mul64(uint64_t a, uint64_t b) { return (pf_u128)a * b; }
static inline pf_u128 u128_shl(pf_u128 a, int k) { return k > 127 ? 0 : a << k; }
static inline pf_u128 u128_shr(pf_u128 a, int k) { return k > 127 ? 0 : a >> k; }
static inline int u128_lt(pf_u128 a, pf_u128 b) { return a < b; }
static inline pf_u128 u128_div(pf_u128 a, pf_u128 b, pf_u128 *rem)
{
    pf_u128 q = a / b;
    *rem = a - q * b;
    return q;
}

#else

static inline pf_u128 u128_make(uint64_t hi, uint64_t lo)
{
    pf_u128 r;
    r.hi = hi;
    r.lo = lo;
    return r;
}
static inline uint64_t u128_hi(pf_u128 a) { return a.hi; }
static inline uint64_t u128_lo(pf_u128 a) { return a.lo; }
static inline pf_u128 u128_add(pf_u128 a, pf_u128 b)
{
    uint64_t lo = a.lo + b.lo;
    return u128_make(a.hi + b.hi + (lo < a.lo), lo);
}
static inline pf_u128 u128_sub(pf_u128 a, pf_u128 b)
{
    return u128_make(a.hi - b.hi - (a.lo < b.lo), a.lo - b.lo);
}
static inline pf_u128 u128_mul64(uint64_t a, uint64_t b)
{
    uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    uint64_t p00 = a0 * b0, p01 = a0 * b1, p10 = a1 * b0, p11 = a1 * b1;
    uint64_t mid = (p00 >> 32) + (p01 & 0xffffffffu) + (p10 & 0xffffffffu);
    return u128_make(p11 + (p01 >> 32) + (p10 >> 32) + (mid >> 32), (mid << 32) | (p00 & 0xffffffffu));
}
static inline pf_u128 u128_shl(pf_u128 a, int k)
{
    if (k > 127) return u128_make(0, 0);
    if (k > 63) return u128_make(a.lo << (k - 64), 0);
    return k ? u128_make((a.hi << k) | (a.lo >> (64 - k)), a.lo << k) : a;
}
static inline pf_u128 u128_shr(pf_u128 a, int k)
{
    if (k > 127) return u128_make(0, 0);
    if (k > 63) return u128_make(0, a.hi >> (k - 64));
    return k ? u128_make(a.hi >> k, (a.lo >> k) | (a.hi << (64 - k))) : a;
}
static inline int u128_lt(pf_u128 a, pf_u128 b) { return a.hi < b.hi || (a.hi == b.hi && a.lo < b.lo); }
static inline pf_u128 u128_div(pf_u128 a, pf_u128 b, pf_u128 *rem)
{
    pf_u128 q = u128_make(0, 0), r = u128_make(0, 0);
    if (a.hi == 0 && b.hi == 0) {
        *rem = u128_make(0, a.lo % b.lo);
        return u128_make(0, a.lo / b.lo);
    }
    for (int k = 127; k >= 0; k--) {
        int carry = (int)(r.hi >> 63);              /* r < b may still need a 129th bit when doubled */
        r = u128_shl(r, 1);
        r.lo |= u128_shr(a, k).lo & 1u;
        q = u128_shl(q, 1);
        if (carry || !u128_lt(r, b)) {
            r = u128_sub(r, b);
            q.lo |= 1u;
        }
    }
    *rem = r;
    return q;
}

#endif

static inline pf_u128 u128_from64(uint64_t a) { return u128_make(0, a); }
static inline pf_u128 u128_add64(pf_u128 a, uint64_t b) { return u128_add(a, u128_make(0, b)); }
static inline int u128_is_zero(pf_u128 a) { return (u128_hi(a) | u128_lo(a)) == 0; }
static inline int u128_bits(pf_u128 a) { return u128_hi(a) ? 64 + u64_bits(u128_hi(a)) : u64_bits(u128_lo(a)); }

/* a * b, low 128 bits. */
static inline pf_u128 u128_mul_u64(pf_u128 a, uint64_t b)
{
    pf_u128 low = u128_mul64(u128_lo(a), b);
    return u128_make(u128_hi(low) + u128_hi(a) * b, u128_lo(low));
}

/* a rounded once, half to even, to float64. */
static inline double u128_to_double(pf_u128 a)
{
    int bits = u128_bits(a), drop = bits - 53;
    if (drop <= 0) return (double)u128_lo(a);
    pf_u128 kept = u128_shr(a, drop), back = u128_shl(kept, drop), rest = u128_sub(a, back);
    pf_u128 half = u128_shl(u128_from64(1), drop - 1);
    uint64_t m = u128_lo(kept);
    if (u128_lt(half, rest) || (!u128_lt(rest, half) && (m & 1u))) m++;
    return ldexp((double)m, drop);
}

/* 192 bits: sums of 128-bit squares. */
typedef struct { uint64_t top; pf_u128 low; } pf_u192;

static inline void u192_add(pf_u192 *a, pf_u128 b)
{
    pf_u128 s = u128_add(a->low, b);
    a->top += (uint64_t)u128_lt(s, b);
    a->low = s;
}

#endif
