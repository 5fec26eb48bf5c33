/* One table of functions a SIMD level, chosen once at import. */
#ifndef PF_LEVEL_H
#define PF_LEVEL_H

#include "fuselse.h"
#include "intlse.h"
#include "models.h"
#include "moments.h"

#include "pairwise.h"
#include "resample.h"
#include "random.h"
#include "step.h"
#include "weights.h"

typedef struct {
    const char *name;
    pf_intlse_table intlse;
    pf_weights_table weights;
    pf_fuselse_table fuselse;
    pf_pairwise_table pairwise;
    pf_resample_table resample;
    pf_moments_table moments;
    pf_random_table random;
    pf_model models[PF_MODELS];
    pf_step_table step;
} pf_level;

/* The levels this CPU can run, best first; the last is the portable one. */
const pf_level **pf_levels(int *count);

#endif
