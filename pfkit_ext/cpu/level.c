/* Compiled once a SIMD level, with that level's flags and PF_LEVEL_* defined. */
#include "level.h"

#include "intlse.c"
#include "weights.c"
#include "fuselse.c"
#include "pairwise.c"
#include "resample.c"
#include "moments.c"
#include "random.c"
#include "models.c"
#include "step.c"

#if defined(PF_LEVEL_AVX512)
#define PF_SYMBOL pf_level_avx512
#define PF_NAME "avx512"
#elif defined(PF_LEVEL_AVX2)
#define PF_SYMBOL pf_level_avx2
#define PF_NAME "avx2"
#elif defined(PF_LEVEL_NEON)
#define PF_SYMBOL pf_level_neon
#define PF_NAME "neon"
#else
#define PF_SYMBOL pf_level_portable
#define PF_NAME "portable"
#endif

extern const pf_level PF_SYMBOL;
const pf_level PF_SYMBOL = {
    PF_NAME,
    PF_INTLSE_TABLE,
    PF_WEIGHTS_TABLE,
    PF_FUSELSE_TABLE,
    PF_PAIRWISE_TABLE,
    PF_RESAMPLE_TABLE,
    PF_MOMENTS_TABLE,
    PF_RANDOM_TABLE,
    PF_MODELS_TABLE,
    PF_STEP_TABLE,
};
