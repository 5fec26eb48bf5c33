/* Plain C11: sixteen-element arrays, which compilers vectorise as far as the target allows. Included by simd.h. */

typedef struct { float v[16]; } f32x16;
typedef struct { double v[16]; } f64x16;
typedef struct { uint32_t v[16]; } u32x16;
typedef int pf_nan32;
typedef int pf_nan64;
typedef struct { uint64_t v[16]; } pf_acc64;

#define PF_REPF PF_REP_16
#define PF_REPD PF_REP_16
#define PF_STEPF 1
#define PF_STEPD 1
#define PFF_LOAD(p) (*(p))
#define PFF_STORE(p, a) (*(p) = (a))
#define PFF_SET1(s) (s)
#define PFF_ADD(a, b) ((a) + (b))
#define PFF_SUB(a, b) ((a) - (b))
#define PFF_MUL(a, b) ((a) * (b))
#define PFF_MIN(a, b) ((a) < (b) ? (a) : (b))
#define PFF_MAX(a, b) ((a) > (b) ? (a) : (b))
#define PFF_FMA(a, b, c) fmaf(a, b, c)
#define PFD_LOAD(p) (*(p))
#define PFD_STORE(p, a) (*(p) = (a))
#define PFD_SET1(s) (s)
#define PFD_ADD(a, b) ((a) + (b))
#define PFD_SUB(a, b) ((a) - (b))
#define PFD_MUL(a, b) ((a) * (b))
#define PFD_MIN(a, b) ((a) < (b) ? (a) : (b))
#define PFD_MAX(a, b) ((a) > (b) ? (a) : (b))
#define PFD_FMA(a, b, c) fma(a, b, c)
#define PFI_LOAD(p) (*(p))
#define PFI_STORE(p, a) (*(p) = (a))
#define PFI_ADD(a, b) ((a) + (b))
#define PFI_SUB(a, b) ((a) - (b))
#define PF_EACH for (int k = 0; k < 16; k++)

PF_INLINE pf_nan32 f32_nan_none(void) { return 0; }
PF_INLINE pf_nan64 f64_nan_none(void) { return 0; }
PF_INLINE pf_nan32 f32_nan_note(pf_nan32 acc, f32x16 a) { PF_EACH acc |= a.v[k] != a.v[k]; return acc; }
PF_INLINE pf_nan64 f64_nan_note(pf_nan64 acc, f64x16 a) { PF_EACH acc |= a.v[k] != a.v[k]; return acc; }
PF_INLINE int f32_nan_any(pf_nan32 acc) { return acc; }
PF_INLINE int f64_nan_any(pf_nan64 acc) { return acc; }

PF_INLINE f64x16 f64_pow2_from_low_bits(f64x16 a)
{
    uint64_t bits[16];
    memcpy(bits, a.v, sizeof bits);
    PF_EACH bits[k] <<= 52;
    memcpy(a.v, bits, sizeof bits);
    return a;
}
PF_INLINE f64x16 f32_to_f64(f32x16 a) { f64x16 r; PF_EACH r.v[k] = (double)a.v[k]; return r; }
PF_INLINE f32x16 f64_to_f32(f64x16 a) { f32x16 r; PF_EACH r.v[k] = (float)a.v[k]; return r; }

/* Adding 1.5 * 2^23 (2^52) leaves the nearest integer, ties to even, in the low bits: no library call, no branch. */
PF_INLINE u32x16 f32_to_u32(f32x16 a)
{
    u32x16 r;
    PF_EACH {
        float t = a.v[k] + 12582912.0f;
        uint32_t bits;
        memcpy(&bits, &t, sizeof bits);
        r.v[k] = bits - 0x4b400000u;
    }
    return r;
}
PF_INLINE u32x16 f64_to_u32(f64x16 a)
{
    u32x16 r;
    PF_EACH {
        double t = a.v[k] + 6755399441055744.0;
        uint64_t bits;
        memcpy(&bits, &t, sizeof bits);
        r.v[k] = (uint32_t)bits;
    }
    return r;
}
PF_INLINE f64x16 u32_to_f64(u32x16 a) { f64x16 r; PF_EACH r.v[k] = (double)(int32_t)a.v[k]; return r; }

/* rint(v) of a distance v >= 0, clamped to 64 * 65536, where every weight is 0 */
PF_INLINE u32x16 f32_to_index(f32x16 v)
{
    PF_EACH v.v[k] = v.v[k] < 4194304.0f ? v.v[k] : 4194304.0f;
    return f32_to_u32(v);
}
PF_INLINE u32x16 f64_to_index(f64x16 v)
{
    PF_EACH v.v[k] = v.v[k] < 4194304.0 ? v.v[k] : 4194304.0;
    return f64_to_u32(v);
}

/* out = float32(float64(w) * scale), w below 2^31 */
PF_INLINE void u32_scale_store_f32(float *out, const uint32_t *w, f64x16 scale)
{
    u32x16 loaded;
    PF_EACH loaded.v[k] = w[k];
    f64x16 d = u32_to_f64(loaded);
    PF_EACH d.v[k] *= scale.v[k];
    PF_EACH out[k] = (float)d.v[k];
}

typedef u32x16 pf_deficit;
PF_INLINE u32x16 deficit_unpack(pf_deficit D) { return D; }
PF_INLINE pf_deficit u32_deficit(u32x16 i)
{
    u32x16 r;
    PF_EACH {
        uint32_t F = i.v[k] & 0xffffu, p = (F * ((65536u - F) & 0xffffu)) >> 16;
        uint32_t d = (F * (3030u - ((F * 439u) >> 16))) >> 16;
        r.v[k] = F + ((p * (12650u - d) + 0x4000u) >> 15);
    }
    return r;
}
PF_INLINE u32x16 u32_shifts(u32x16 i) { PF_EACH i.v[k] >>= 16; return i; }
PF_INLINE u32x16 u32_weights32(u32x16 s, pf_deficit D)
{
    u32x16 r;
    PF_EACH {
        uint32_t M = (0xFFFFFFFEu - (D.v[k] << 15)) >> (s.v[k] & 31u);
        r.v[k] = ((s.v[k] > 31u ? 0u : M) + 1u) >> 1;
    }
    return r;
}
PF_INLINE pf_acc64 acc64_zero(void) { pf_acc64 r; PF_EACH r.v[k] = 0; return r; }
PF_INLINE pf_acc64 acc64_weights(pf_acc64 acc, u32x16 s, pf_deficit D)
{
    PF_EACH {
        uint64_t M = (uint64_t)((1u << 20) - (D.v[k] << 3)) << 32;
        acc.v[k] += s.v[k] > 63u ? 0u : M >> (s.v[k] & 63u);
    }
    return acc;
}
PF_INLINE pf_acc64 acc64_add_u32(pf_acc64 acc, u32x16 w) { PF_EACH acc.v[k] += w.v[k]; return acc; }
PF_INLINE void acc64_add_squares(pf_acc64 *low, pf_acc64 *high, u32x16 w)
{
    PF_EACH {
        uint64_t square = (uint64_t)w.v[k] * w.v[k];
        low->v[k] += square;
        high->v[k] += square >> 32;
    }
}
PF_INLINE int acc64_store(uint64_t *out, pf_acc64 acc)
{
    memcpy(out, acc.v, sizeof acc.v);
    return 16;
}
