/* Compiled models: two functions over a block of particles, and the ready models written so.
 *
 * Both see arrays of structure (dim, n) contiguous: coordinate i of particle j at [i * n + j]. n is at most
 * PF_MODEL_BLOCK. Observation y, input u and parameters are float64 whatever the dtype of the particles.
 *
 *   transition       x_new (d, n) from x (d, n) at t - 1 and `noise` (noise_dim, n), independent standard normals
 *   log_likelihood   log_g (n,), nats, of y given x (d, n) at t
 *
 * The functions must not write elsewhere nor keep state; they are called from several threads at once.
 */
#ifndef PF_MODELS_H
#define PF_MODELS_H

#include <stdint.h>

#define PF_MODEL_BLOCK 512
#define PF_MODEL_MAX_DIM 16          /* of state and observation in LinearGaussian */

typedef void (*pf_transition_f64)(const double *x, const double *noise, const double *u, int64_t t, int64_t n,
                                  const double *params, double *x_new);
typedef void (*pf_transition_f32)(const float *x, const float *noise, const double *u, int64_t t, int64_t n,
                                  const double *params, float *x_new);
typedef void (*pf_likelihood_f64)(const double *x, const double *y, int64_t t, int64_t n, const double *params,
                                  double *log_g);
typedef void (*pf_likelihood_f32)(const float *x, const double *y, int64_t t, int64_t n, const double *params,
                                  float *log_g);

typedef struct {
    const char *name;
    pf_transition_f64 transition_f64;
    pf_likelihood_f64 likelihood_f64;
    pf_transition_f32 transition_f32;
    pf_likelihood_f32 likelihood_f32;
} pf_model;

#define PF_MODELS 6

#endif
