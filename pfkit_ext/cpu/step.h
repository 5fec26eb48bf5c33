/* Whole steps of bootstrap filters with compiled models, many steps in one call.
 *
 * One step, for blocks of particles while they are in the first cache: gather the ancestors (if the last weights called
 * for resampling), draw noise, move, weigh, and exponentiate relative to the block's maximum. What joins the blocks is a
 * few numbers each. Weights stay relative to their block until somebody reads them; systematic resampling turns them
 * into integers, and these, in place, into where each particle's copies end, from which a block finds its ancestors.
 * The results have the bits of the primitives of the other files, one after the other, over all particles: a filter
 * stepped from Python, observation by observation, ends in the same state.
 */
#ifndef PF_STEP_H
#define PF_STEP_H

#include <stddef.h>
#include <stdint.h>

#include "models.h"

enum { PF_STEP_FUSE = 0, PF_STEP_INT = 1 };
enum { PF_SCHEME_SYSTEMATIC = 0, PF_SCHEME_STRATIFIED = 1, PF_SCHEME_MULTINOMIAL = 2, PF_SCHEME_RESIDUAL = 3 };
enum { PF_STEP_OK = 0, PF_STEP_FAILED = 1, PF_STEP_NO_WEIGHTS = 2, PF_STEP_NO_MEMORY = 3 };

/* propagate: noise and transition; likelihood; lse: weights and their sums; weights: log-weights, and numbers that sum to
 * 1; resample: integer weights, positions; gather: ancestors and their states */
enum { PF_PROPAGATE, PF_LIKELIHOOD, PF_LSE, PF_WEIGHTS, PF_RESAMPLE, PF_GATHER, PF_PHASES };

typedef struct {
    /* the model */
    pf_transition_f64 transition_f64;
    pf_transition_f32 transition_f32;
    pf_likelihood_f64 likelihood_f64;
    pf_likelihood_f32 likelihood_f32;
    const double *params;
    int d, noise_dim, y_dim, u_dim;
    /* the filter */
    int single;                      /* float32 */
    int kind, scheme;
    size_t n;
    double log_n;
    double resample_below;           /* ESS under which the next step resamples; infinity: always */
    uint64_t key, stream;            /* of its random numbers; the step and purpose are xored into `stream` */
    /* its state */
    void *x, *x_next;                /* (d, n) */
    void *log_w, *joint, *w, *w_next;
    int64_t *ancestors;
    uint32_t *ints;                  /* n of them up to PF_WEIGHTS32_MAX particles, else NULL */
    uint64_t *wide;                  /* the integer weights beyond, else NULL */
    int64_t time;
    int resample_next, have_ints, resampled;
    int from_equal;                  /* no observation since the weights were equal */
    int equal;                       /* weights are equal, log_w and w not yet written */
    uint64_t total;                  /* sum of ints, 0 if not known */
    size_t n_unique;
    double ess;
    /* per step results, from index 0 of this call */
    double *increment, *ess_out;
    uint8_t *resampled_out;
    int64_t *unique_out;
    double *mean, *variance;         /* (steps, d), or NULL */
    /* steps to be timed (or NULL), and where their nanoseconds go, a phase each; those of threads add up */
    const uint8_t *timed;
    uint64_t nanoseconds[PF_PHASES];
    /* observations and inputs of this call: (steps, y_dim), (steps, u_dim) or NULL */
    const double *y, *u;
    size_t done;                     /* steps finished */
    int status;                      /* FAILED: step `done` is predicted but not weighed; NO_WEIGHTS: not begun, the weights
                                        it resamples by are negative, not finite or all 0; NO_MEMORY: not begun */
} pf_filter;

typedef struct {
    /* scratch bytes a thread needs */
    size_t (*scratch)(int d, int noise_dim, int single, size_t n, int scheme);
    /* up to `steps` steps of `filters` filters on `threads` threads; scratch: threads pieces, each 64-byte aligned */
    void (*run)(pf_filter *f, size_t filters, size_t steps, int threads, char *scratch, size_t scratch_size);
    /* one transition (from the noise of step `time`) or likelihood over all n particles, as a step would make it */
    void (*move)(pf_filter *f, const double *u, char *scratch);
    void (*weigh)(pf_filter *f, const double *y, void *log_g, char *scratch);
} pf_step_table;

#endif
