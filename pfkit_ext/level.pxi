import os

import numpy as np

from libc.stddef cimport ptrdiff_t, size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.math cimport isfinite, isnan, INFINITY, NAN


cdef extern from "u128.h" nogil:
    ctypedef struct pf_u128:
        pass
    pf_u128 u128_make(uint64_t hi, uint64_t lo)
    uint64_t u128_hi(pf_u128 a)
    uint64_t u128_lo(pf_u128 a)
    pf_u128 u128_from64(uint64_t a)
    int u128_bits(pf_u128 a)
    pf_u128 u128_add64(pf_u128 a, uint64_t b)
    pf_u128 u128_mul64(uint64_t a, uint64_t b)
    int u128_lt(pf_u128 a, pf_u128 b)

cdef extern from "intlse.h" nogil:
    ctypedef struct pf_intlse_table:
        float (*max_f32)(const float *x, size_t n) noexcept nogil
        double (*max_f64)(const double *x, size_t n) noexcept nogil
        pf_u128 (*total_f32)(const float *x, size_t n, float m) noexcept nogil
        pf_u128 (*total_f64)(const double *x, size_t n, double m) noexcept nogil
        void (*rows_f32)(const float *x, size_t rows, size_t n, size_t step, float *out) noexcept nogil
        void (*rows_f64)(const double *x, size_t rows, size_t n, size_t step, double *out) noexcept nogil
    double pf_log_total(pf_u128 T, double m)

cdef extern from "weights.h" nogil:
    size_t PF_WEIGHTS32_MAX
    ctypedef struct pf_norm:
        pf_u128 sum
        double maximum
        double log_norm
        double ess
        double scale
    ctypedef struct pf_weights_table:
        void (*int32_f32)(const float *x, size_t n, float m, uint32_t *w, pf_norm *out) noexcept nogil
        void (*int32_f64)(const double *x, size_t n, double m, uint32_t *w, pf_norm *out) noexcept nogil
        void (*int64_f32)(const float *x, size_t n, float m, uint64_t *w, pf_norm *out) noexcept nogil
        void (*int64_f64)(const double *x, size_t n, double m, uint64_t *w, pf_norm *out) noexcept nogil
        void (*scale32_f32)(const uint32_t *w, size_t n, double scale, float *W) noexcept nogil
        void (*scale32_f64)(const uint32_t *w, size_t n, double scale, double *W) noexcept nogil
        void (*scale64_f32)(const uint64_t *w, size_t n, double scale, float *W) noexcept nogil
        void (*scale64_f64)(const uint64_t *w, size_t n, double scale, double *W) noexcept nogil

cdef extern from "resample.h" nogil:
    ctypedef struct pf_resample_table:
        uint64_t (*sum32)(const uint32_t *w, size_t n) noexcept nogil
        pf_u128 (*sum64)(const uint64_t *w, size_t n) noexcept nogil
        ptrdiff_t (*quantize32_f64)(const double *w, size_t n, uint32_t *q) noexcept nogil
        ptrdiff_t (*quantize64_f64)(const double *w, size_t n, uint64_t *q) noexcept nogil
        ptrdiff_t (*quantize32_f32)(const float *w, size_t n, uint32_t *q) noexcept nogil
        ptrdiff_t (*quantize64_f32)(const float *w, size_t n, uint64_t *q) noexcept nogil
        size_t (*systematic32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, uint64_t r, int64_t *out) noexcept nogil
        size_t (*systematic64)(const uint64_t *w, size_t n, pf_u128 S, uint64_t N, pf_u128 r, int64_t *out) noexcept nogil
        size_t (*stratified32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, const uint64_t *u, int stride,
                               int64_t *out) noexcept nogil
        size_t (*stratified64)(const uint64_t *w, size_t n, pf_u128 S, uint64_t N, const uint64_t *u, int stride,
                               int64_t *out) noexcept nogil
        int (*multinomial32)(const uint32_t *w, size_t n, uint64_t S, size_t N, const uint64_t *u, int64_t *out) noexcept nogil
        int (*multinomial64)(const uint64_t *w, size_t n, pf_u128 S, size_t N, const uint64_t *u, int64_t *out) noexcept nogil
        uint64_t (*residual_left32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N) noexcept nogil
        uint64_t (*residual_left64)(const uint64_t *w, size_t n, pf_u128 S, uint64_t N) noexcept nogil
        int (*residual32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, const uint64_t *u, int64_t *out) noexcept nogil
        int (*residual64)(const uint64_t *w, size_t n, pf_u128 S, uint64_t N, const uint64_t *u, int64_t *out) noexcept nogil
        int64_t (*distinct)(const int64_t *ancestors, size_t N, uint64_t n) noexcept nogil
        void (*gather_f32)(const float *x, size_t n, const int64_t *ancestors, size_t N, float *out) noexcept nogil
        void (*gather_f64)(const double *x, size_t n, const int64_t *ancestors, size_t N, double *out) noexcept nogil
        size_t (*systematic_move32_f32)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, uint64_t r, int64_t *out,
                                        const float *x, size_t d, float *moved) noexcept nogil
        size_t (*systematic_move32_f64)(const uint32_t *w, size_t n, uint64_t S, uint64_t N, uint64_t r, int64_t *out,
                                        const double *x, size_t d, double *moved) noexcept nogil

cdef extern from "fuselse.h" nogil:
    size_t PF_FUSE_BLOCK
    ctypedef struct pf_fuse_state:
        double maximum
        double total
    ctypedef struct pf_fuse_norm:
        double log_norm
        double ess
    ctypedef struct pf_fuselse_table:
        pf_fuse_state (*state_f32)(const float *x, size_t n) noexcept nogil
        pf_fuse_state (*state_f64)(const double *x, size_t n) noexcept nogil
        void (*rows_f32)(const float *x, size_t rows, size_t n, size_t step, float *out) noexcept nogil
        void (*rows_f64)(const double *x, size_t rows, size_t n, size_t step, double *out) noexcept nogil
        void (*normalize_f32)(const float *x, size_t n, float *W, float *block_max, pf_fuse_norm *out) noexcept nogil
        void (*normalize_f64)(const double *x, size_t n, double *W, double *block_max, pf_fuse_norm *out) noexcept nogil
        void (*running_f32)(const float *x, size_t n, float *out) noexcept nogil
        void (*running_f64)(const double *x, size_t n, double *out) noexcept nogil

cdef extern from "moments.h" nogil:
    ctypedef struct pf_moments_table:
        double (*total_f32)(const float *w, size_t n) noexcept nogil
        double (*total_f64)(const double *w, size_t n) noexcept nogil
        double (*first_f32)(const float *x, const float *w, size_t n) noexcept nogil
        double (*first_f64)(const double *x, const double *w, size_t n) noexcept nogil
        double (*second_f32)(const float *x, const float *w, size_t n, double centre) noexcept nogil
        double (*second_f64)(const double *x, const double *w, size_t n, double centre) noexcept nogil

cdef extern from "pairwise.h" nogil:
    ctypedef struct pf_pairwise_table:
        void (*rows_f32)(const float *x, size_t rows, size_t n, size_t step, float *out) noexcept nogil
        void (*rows_f64)(const double *x, size_t rows, size_t n, size_t step, double *out) noexcept nogil
        void (*pairs)(const int32_t *a, const int32_t *b, size_t n, int table, int32_t *out) noexcept nogil

cdef extern from "random.h" nogil:
    int PF_PHILOX_ROUNDS
    size_t PF_RANDOM_GROUP_F64
    size_t PF_RANDOM_GROUP_F32
    ctypedef struct pf_random_stream:
        uint64_t key
        uint64_t stream
    void pf_philox(int rounds, uint64_t key, uint64_t counter_low, uint64_t counter_high, uint32_t *out)
    ctypedef struct pf_random_table:
        void (*normal_f64)(pf_random_stream s, uint64_t group, size_t n, double *out) noexcept nogil
        void (*normal_f32)(pf_random_stream s, uint64_t group, size_t n, float *out) noexcept nogil
        void (*uniform_f64)(pf_random_stream s, uint64_t group, size_t n, double *out) noexcept nogil
        void (*uniform_f32)(pf_random_stream s, uint64_t group, size_t n, float *out) noexcept nogil
        void (*exponential_f64)(pf_random_stream s, uint64_t group, size_t n, double *out) noexcept nogil
        void (*exponential_f32)(pf_random_stream s, uint64_t group, size_t n, float *out) noexcept nogil
        void (*bits)(pf_random_stream s, uint64_t group, size_t n, uint64_t *out) noexcept nogil
        void (*vmath_f64)(int which, const double *x, const double *y, size_t n, double *out) noexcept nogil
        void (*vmath_f32)(int which, const float *x, const float *y, size_t n, float *out) noexcept nogil

cdef extern from "models.h" nogil:
    size_t PF_MODEL_BLOCK
    int PF_MODELS
    int PF_MODEL_MAX_DIM
    ctypedef void (*pf_transition_f64)(const double *x, const double *noise, const double *u, int64_t t, int64_t n,
                                       const double *params, double *x_new) noexcept nogil
    ctypedef void (*pf_transition_f32)(const float *x, const float *noise, const double *u, int64_t t, int64_t n,
                                       const double *params, float *x_new) noexcept nogil
    ctypedef void (*pf_likelihood_f64)(const double *x, const double *y, int64_t t, int64_t n, const double *params,
                                       double *log_g) noexcept nogil
    ctypedef void (*pf_likelihood_f32)(const float *x, const double *y, int64_t t, int64_t n, const double *params,
                                       float *log_g) noexcept nogil
    ctypedef struct pf_model:
        const char *name
        pf_transition_f64 transition_f64
        pf_likelihood_f64 likelihood_f64
        pf_transition_f32 transition_f32
        pf_likelihood_f32 likelihood_f32

cdef extern from "step.h" nogil:
    int PF_STEP_FAILED
    int PF_STEP_NO_WEIGHTS
    int PF_STEP_NO_MEMORY
    ctypedef struct pf_filter:
        pf_transition_f64 transition_f64
        pf_transition_f32 transition_f32
        pf_likelihood_f64 likelihood_f64
        pf_likelihood_f32 likelihood_f32
        const double *params
        int d, noise_dim, y_dim, u_dim, single, kind, scheme
        size_t n
        double log_n, resample_below
        uint64_t key, stream
        void *x
        void *x_next
        void *log_w
        void *joint
        void *w
        void *w_next
        int64_t *ancestors
        uint32_t *ints
        uint64_t *wide
        int64_t time
        int resample_next, have_ints, resampled, from_equal, equal
        uint64_t total
        size_t n_unique
        double ess
        double *increment
        double *ess_out
        uint8_t *resampled_out
        int64_t *unique_out
        double *mean
        double *variance
        const uint8_t *timed
        uint64_t nanoseconds[6]
        const double *y
        const double *u
        size_t done
        int status
    ctypedef struct pf_step_table:
        size_t (*scratch)(int d, int noise_dim, int single, size_t n, int scheme) noexcept nogil
        void (*run)(pf_filter *f, size_t filters, size_t steps, int threads, char *scratch, size_t scratch_size) noexcept nogil
        void (*move)(pf_filter *f, const double *u, char *scratch) noexcept nogil
        void (*weigh)(pf_filter *f, const double *y, void *log_g, char *scratch) noexcept nogil

cdef extern from "level.h" nogil:
    ctypedef struct pf_level:
        const char *name
        pf_intlse_table intlse
        pf_weights_table weights
        pf_fuselse_table fuselse
        pf_pairwise_table pairwise
        pf_resample_table resample
        pf_moments_table moments
        pf_random_table random
        pf_model *models
        pf_step_table step
    const pf_level **pf_levels(int *count)


cdef const pf_level *_level = NULL


def levels():
    """Names of the SIMD levels this processor can run, best first."""
    cdef int count = 0
    cdef const pf_level **found = pf_levels(&count)
    return tuple((<bytes>found[k].name).decode() for k in range(count))


def simd_level():
    """Name of the SIMD level in use, chosen at import (PFKIT_SIMD overrides the choice)."""
    return (<bytes>_level.name).decode()


def _choose():
    global _level
    cdef int count = 0
    cdef const pf_level **found = pf_levels(&count)
    names = levels()
    want = os.environ.get("PFKIT_SIMD", "").strip().lower() or names[0]
    if want not in names:
        raise ImportError(f"PFKIT_SIMD={want!r}: this processor and build can run {', '.join(names)}")
    _level = found[names.index(want)]


_choose()


cdef inline object _as_int(pf_u128 a):
    return (int(u128_hi(a)) << 64) | int(u128_lo(a))
