/* Weighted mean and variance of particles, coordinate by coordinate, in float64. */
#ifndef PF_MOMENTS_H
#define PF_MOMENTS_H

#include <stddef.h>

typedef struct {
    /* sum of w; sum of w x; sum of w (x - centre)^2; over n particles */
    double (*total_f32)(const float *w, size_t n);
    double (*total_f64)(const double *w, size_t n);
    double (*first_f32)(const float *x, const float *w, size_t n);
    double (*first_f64)(const double *x, const double *w, size_t n);
    double (*second_f32)(const float *x, const float *w, size_t n, double centre);
    double (*second_f64)(const double *x, const double *w, size_t n, double centre);
} pf_moments_table;

#endif
