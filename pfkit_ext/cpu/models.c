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

/* Angle moved by whole turns into [-pi, pi]; |angle| below 1e5. */
PF_INLINE vd vd_wrapped(vd a)
{
    vd k = vd_sub(vd_fma(a, VD_C(0x1.45f306dc9c883p-3), VD_C(0x1.8p52)), VD_C(0x1.8p52));
    a = vd_fma(k, VD_C(-0x1.921fb54442d18p+2), a);
    return vd_fma(k, VD_C(-0x1.1a62633145c07p-52), a);
}
PF_INLINE vf vf_wrapped(vf a)
{
    vf k = vf_sub(vf_fma(a, VF_C(0x1.45f306p-3f), VF_C(0x1.8p23f)), VF_C(0x1.8p23f));
    a = vf_fma(k, VF_C(-0x1.921fb6p+2f), a);
    return vf_fma(k, VF_C(0x1.777a5cp-23f), a);
}

#define T double
#define V vd
#define M(name) vd_##name
#define F(name) name##_f64
#define LANES VD_LANES
#define TRANSITION_ARGUMENTS                                                                                           \
    const double *x, const double *noise, const double *u, int64_t t, int64_t n, const double *params, double *x_new
#define LIKELIHOOD_ARGUMENTS                                                                                           \
    const double *x, const double *y, int64_t t, int64_t n, const double *params, double *log_g
#include "models_impl.h"
#undef T
#undef V
#undef M
#undef F
#undef LANES
#undef TRANSITION_ARGUMENTS
#undef LIKELIHOOD_ARGUMENTS

#define T float
#define V vf
#define M(name) vf_##name
#define F(name) name##_f32
#define LANES VF_LANES
#define TRANSITION_ARGUMENTS                                                                                           \
    const float *x, const float *noise, const double *u, int64_t t, int64_t n, const double *params, float *x_new
#define LIKELIHOOD_ARGUMENTS                                                                                           \
    const float *x, const double *y, int64_t t, int64_t n, const double *params, float *log_g
#include "models_impl.h"
#undef T
#undef V
#undef M
#undef F
#undef LANES
#undef TRANSITION_ARGUMENTS
#undef LIKELIHOOD_ARGUMENTS

#define PF_MODEL_ROW(name)                                                                                             \
    { #name, name##_transition_f64, name##_likelihood_f64, name##_transition_f32, name##_likelihood_f32 }
#define PF_MODELS_TABLE                                                                                                \
    {                                                                                                                  \
        PF_MODEL_ROW(local_level), PF_MODEL_ROW(volatility), PF_MODEL_ROW(theta), PF_MODEL_ROW(linear),                \
            PF_MODEL_ROW(bearings), PF_MODEL_ROW(robot)                                                                \
    }
