/* NEON on aarch64: sixteen floats in four registers, sixteen doubles in eight. Included by simd.h. */
#include <arm_neon.h>

typedef struct { float32x4_t v[4]; } f32x16;
typedef struct { float64x2_t v[8]; } f64x16;
typedef struct { uint32x4_t v[4]; } u32x16;
typedef uint32x4_t pf_nan32;
typedef uint64x2_t pf_nan64;
typedef struct { uint64x2_t v[4]; } pf_acc64;

#define PF_REPF PF_REP_4
#define PF_REPD PF_REP_8
#define PF_STEPF 4
#define PF_STEPD 2
#define PFF_LOAD vld1q_f32
#define PFF_STORE vst1q_f32
#define PFF_SET1 vdupq_n_f32
#define PFF_ADD vaddq_f32
#define PFF_SUB vsubq_f32
#define PFF_MUL vmulq_f32
#define PFF_MIN vminq_f32
#define PFF_MAX vmaxq_f32
#define PFF_FMA(a, b, c) vfmaq_f32(c, a, b)
#define PFD_LOAD vld1q_f64
#define PFD_STORE vst1q_f64
#define PFD_SET1 vdupq_n_f64
#define PFD_ADD vaddq_f64
#define PFD_SUB vsubq_f64
#define PFD_MUL vmulq_f64
#define PFD_MIN vminq_f64
#define PFD_MAX vmaxq_f64
#define PFD_FMA(a, b, c) vfmaq_f64(c, a, b)
#define PFI_LOAD vld1q_u32
#define PFI_STORE vst1q_u32
#define PFI_ADD vaddq_u32
#define PFI_SUB vsubq_u32

PF_INLINE pf_nan32 f32_nan_none(void) { return vdupq_n_u32(0xffffffffu); }      /* and of "ordered" */
PF_INLINE pf_nan64 f64_nan_none(void) { return vdupq_n_u64(~0ull); }
PF_INLINE pf_nan32 f32_nan_note(pf_nan32 acc, f32x16 a)
{
    for (int k = 0; k < 4; k++) acc = vandq_u32(acc, vceqq_f32(a.v[k], a.v[k]));
    return acc;
}
PF_INLINE pf_nan64 f64_nan_note(pf_nan64 acc, f64x16 a)
{
    for (int k = 0; k < 8; k++) acc = vandq_u64(acc, vceqq_f64(a.v[k], a.v[k]));
    return acc;
}
PF_INLINE int f32_nan_any(pf_nan32 acc) { return vminvq_u32(acc) == 0; }
PF_INLINE int f64_nan_any(pf_nan64 acc) { return (vgetq_lane_u64(acc, 0) & vgetq_lane_u64(acc, 1)) != ~0ull; }

PF_INLINE f64x16 f64_pow2_from_low_bits(f64x16 a)
{
    f64x16 r;
    for (int k = 0; k < 8; k++) r.v[k] = vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(a.v[k]), 52));
    return r;
}
PF_INLINE f64x16 f32_to_f64(f32x16 a)
{
    f64x16 r;
    for (int k = 0; k < 4; k++) {
        r.v[2 * k] = vcvt_f64_f32(vget_low_f32(a.v[k]));
        r.v[2 * k + 1] = vcvt_high_f64_f32(a.v[k]);
    }
    return r;
}
PF_INLINE f32x16 f64_to_f32(f64x16 a)
{
    f32x16 r;
    for (int k = 0; k < 4; k++) r.v[k] = vcvt_high_f32_f64(vcvt_f32_f64(a.v[2 * k]), a.v[2 * k + 1]);
    return r;
}
PF_INLINE u32x16 f32_to_u32(f32x16 a)
{
    u32x16 r;
    for (int k = 0; k < 4; k++) r.v[k] = vcvtnq_u32_f32(a.v[k]);
    return r;
}
PF_INLINE u32x16 f64_to_u32(f64x16 a)
{
    u32x16 r;
    for (int k = 0; k < 4; k++)
        r.v[k] = vcombine_u32(vmovn_u64(vcvtnq_u64_f64(a.v[2 * k])), vmovn_u64(vcvtnq_u64_f64(a.v[2 * k + 1])));
    return r;
}
PF_INLINE f64x16 u32_to_f64(u32x16 a)
{
    f64x16 r;
    for (int k = 0; k < 4; k++) {
        r.v[2 * k] = vcvtq_f64_u64(vmovl_u32(vget_low_u32(a.v[k])));
        r.v[2 * k + 1] = vcvtq_f64_u64(vmovl_u32(vget_high_u32(a.v[k])));
    }
    return r;
}

/* out = float32(float64(w) * scale), w below 2^31 */
PF_INLINE void u32_scale_store_f32(float *out, const uint32_t *w, f64x16 scale)
{
    u32x16 loaded;
    for (int k = 0; k < 4; k++) loaded.v[k] = vld1q_u32(w + 4 * k);
    f64x16 d = u32_to_f64(loaded);
    for (int k = 0; k < 8; k++) d.v[k] = vmulq_f64(d.v[k], scale.v[k]);
    f32x16 r = f64_to_f32(d);
    for (int k = 0; k < 4; k++) vst1q_f32(out + 4 * k, r.v[k]);
}

/* rint(v) of a distance v >= 0, clamped: shifts by a register use its low byte only */
PF_INLINE u32x16 f32_to_index(f32x16 v)
{
    for (int k = 0; k < 4; k++) v.v[k] = vminq_f32(v.v[k], vdupq_n_f32(4194304.0f));
    return f32_to_u32(v);
}
PF_INLINE u32x16 f64_to_index(f64x16 v)
{
    for (int k = 0; k < 8; k++) v.v[k] = vminq_f64(v.v[k], vdupq_n_f64(4194304.0));
    return f64_to_u32(v);
}

PF_INLINE uint16x8_t neon_mulhi_u16(uint16x8_t a, uint16x8_t b)
{
    uint32x4_t low = vmull_u16(vget_low_u16(a), vget_low_u16(b)), high = vmull_high_u16(a, b);
    return vshrn_high_n_u32(vshrn_n_u32(low, 16), high, 16);
}
PF_INLINE uint16x8_t neon_deficit(uint16x8_t F)
{
    uint16x8_t p = neon_mulhi_u16(F, vsubq_u16(vdupq_n_u16(0), F));
    uint16x8_t d = neon_mulhi_u16(F, vsubq_u16(vdupq_n_u16(3030), neon_mulhi_u16(F, vdupq_n_u16(439))));
    int16x8_t c = vreinterpretq_s16_u16(vsubq_u16(vdupq_n_u16(12650), d));
    return vaddq_u16(F, vreinterpretq_u16_s16(vqrdmulhq_s16(vreinterpretq_s16_u16(p), c)));   /* (p c + 2^14) >> 15 */
}
typedef u32x16 pf_deficit;
PF_INLINE u32x16 deficit_unpack(pf_deficit D) { return D; }
PF_INLINE pf_deficit u32_deficit(u32x16 i)
{
    u32x16 r;
    for (int k = 0; k < 2; k++) {
        uint16x8_t D = neon_deficit(vcombine_u16(vmovn_u32(i.v[2 * k]), vmovn_u32(i.v[2 * k + 1])));
        r.v[2 * k] = vmovl_u16(vget_low_u16(D));
        r.v[2 * k + 1] = vmovl_high_u16(D);
    }
    return r;
}
PF_INLINE u32x16 u32_shifts(u32x16 i)
{
    u32x16 r;
    for (int k = 0; k < 4; k++) r.v[k] = vshrq_n_u32(i.v[k], 16);
    return r;
}
PF_INLINE u32x16 u32_weights32(u32x16 s, pf_deficit D)
{
    u32x16 r;
    for (int k = 0; k < 4; k++) {
        uint32x4_t M = vsubq_u32(vdupq_n_u32(0xFFFFFFFEu), vshlq_n_u32(D.v[k], 15));
        int32x4_t right = vnegq_s32(vreinterpretq_s32_u32(s.v[k]));                    /* 32 and beyond give 0 */
        r.v[k] = vshrq_n_u32(vaddq_u32(vshlq_u32(M, right), vdupq_n_u32(1)), 1);
    }
    return r;
}
PF_INLINE pf_acc64 acc64_zero(void)
{
    pf_acc64 r;
    for (int k = 0; k < 4; k++) r.v[k] = vdupq_n_u64(0);
    return r;
}
PF_INLINE pf_acc64 acc64_weights(pf_acc64 acc, u32x16 s, pf_deficit D)
{
    for (int k = 0; k < 4; k++) {
        uint32x4_t M = vsubq_u32(vdupq_n_u32(1u << 20), vshlq_n_u32(D.v[k], 3));
        int32x4_t right = vnegq_s32(vreinterpretq_s32_u32(s.v[k]));
        uint64x2_t low = vshll_n_u32(vget_low_u32(M), 31), high = vshll_high_n_u32(M, 31);
        low = vshlq_u64(vaddq_u64(low, low), vmovl_s32(vget_low_s32(right)));
        high = vshlq_u64(vaddq_u64(high, high), vmovl_high_s32(right));
        acc.v[k] = vaddq_u64(acc.v[k], vaddq_u64(low, high));
    }
    return acc;
}
PF_INLINE pf_acc64 acc64_add_u32(pf_acc64 acc, u32x16 w)
{
    for (int k = 0; k < 4; k++) acc.v[k] = vpadalq_u32(acc.v[k], w.v[k]);
    return acc;
}
PF_INLINE void acc64_add_squares(pf_acc64 *low, pf_acc64 *high, u32x16 w)
{
    for (int k = 0; k < 4; k++) {
        uint64x2_t a = vmull_u32(vget_low_u32(w.v[k]), vget_low_u32(w.v[k])), b = vmull_high_u32(w.v[k], w.v[k]);
        uint64x2_t two = vaddq_u64(a, b);
        low->v[k] = vaddq_u64(low->v[k], two);
        high->v[k] = vsraq_n_u64(high->v[k], two, 32);
    }
}
PF_INLINE int acc64_store(uint64_t *out, pf_acc64 acc)
{
    for (int k = 0; k < 4; k++) vst1q_u64(out + 2 * k, acc.v[k]);
    return 8;
}
