/* Included by level.c: the ready models, once for each dtype. */
#include "models.h"
#include "vmath.h"

/* log of a positive normal number, one lane of the vector function: no libm. */
static double model_log(double x)
{
    double t[VD_LANES];
    vd_store(t, vd_log(vd_set1(x)));
    return t[0];
}

/* Angles beyond these lose whole turns by fmod first, which is exact: what float64's 2 pi leaves of them, as in
 * pfkit.models.angles.wrap. NaN and infinities become NaN. */
#define WRAP_NEAR_F64 1e8
#define WRAP_NEAR_F32 1e5f
static vd vd_turned(vd a)
{
    double t[VD_LANES];
    vd_store(t, a);
    for (int k = 0; k < VD_LANES; k++)
        if (!(fabs(t[k]) <= WRAP_NEAR_F64)) t[k] = fmod(t[k], 0x1.921fb54442d18p+2);
    return vd_load(t);
}
static vf vf_turned(vf a)
{
    float t[VF_LANES];
    vf_store(t, a);
    for (int k = 0; k < VF_LANES; k++)
        if (!(fabsf(t[k]) <= WRAP_NEAR_F32)) t[k] = (float)fmod((double)t[k], 0x1.921fb54442d18p+2);
    return vf_load(t);
}

/* Angle moved by whole turns into [-pi, pi]. */
PF_INLINE vd vd_wrapped(vd a)
{
    if (PF_RARE(vd_any_sign(vd_bits(vd_sub(VD_C(WRAP_NEAR_F64), vd_abs(a)))))) a = vd_turned(a);
    vd k = vd_sub(vd_fma(a, VD_C(0x1.45f306dc9c883p-3), VD_C(0x1.8p52)), VD_C(0x1.8p52));
    a = vd_fma(k, VD_C(-0x1.921fb54442d18p+2), a);
    return vd_fma(k, VD_C(-0x1.1a62633145c07p-52), a);
}
PF_INLINE vf vf_wrapped(vf a)
{
    if (PF_RARE(vf_any_sign(vf_bits(vf_sub(VF_C(WRAP_NEAR_F32), vf_abs(a)))))) a = vf_turned(a);
    vf k = vf_sub(vf_fma(a, VF_C(0x1.45f306p-3f), VF_C(0x1.8p23f)), VF_C(0x1.8p23f));
    a = vf_fma(k, VF_C(-0x1.921fb6p+2f), a);
    return vf_fma(k, VF_C(0x1.777a5cp-23f), a);
}

/* Whether a number is negative or NaN: the sign of its bits, or of their sum with what takes NaN over the top. */
PF_INLINE vq vd_not_above(vd a) { return vq_or(vd_bits(a), vq_add(vd_bits(a), vq_set1(0x000fffffffffffffull))); }
PF_INLINE vi vf_not_above(vf a) { return vi_or(vf_bits(a), vi_add(vf_bits(a), vi_set1(0x007fffffu))); }
PF_INLINE int vd_any_not_above(vd a) { return vd_any_sign(vd_not_above(a)); }
PF_INLINE int vf_any_not_above(vf a) { return vf_any_sign(vf_not_above(a)); }
PF_INLINE vd vd_select_not_above(vd s, vd a, vd b) { return vd_select_sign(vd_not_above(s), a, b); }
PF_INLINE vf vf_select_not_above(vf s, vf a, vf b) { return vf_select_sign(vf_not_above(s), a, b); }

#define T double
#define V vd
#define M(name) vd_##name
#define F(name) name##_f64
#define LANES VD_LANES
#include "models_impl.h"

#define T float
#define V vf
#define M(name) vf_##name
#define F(name) name##_f32
#define LANES VF_LANES
#include "models_impl.h"

#define PF_MODEL_ROW(name)                                                                                             \
    { #name, name##_transition_f64, name##_likelihood_f64, name##_transition_f32, name##_likelihood_f32 }
#define PF_MODELS_TABLE                                                                                                \
    {                                                                                                                  \
        PF_MODEL_ROW(local_level), PF_MODEL_ROW(volatility), PF_MODEL_ROW(theta), PF_MODEL_ROW(linear),                \
            PF_MODEL_ROW(bearings), PF_MODEL_ROW(robot)                                                                \
    }
