/* Included by level.c after the primitives. */
#include "step.h"
#include "threads.h"

enum { STREAM_RESAMPLE = 2, STREAM_NOISE = 4 };      /* as numbered in pfkit/filters/random.py */
#define STEP_MAX_THREADS 256

static pf_random_stream step_stream(const pf_filter *f, int64_t time, uint64_t purpose)
{
    pf_random_stream s = {f->key, f->stream ^ (purpose << 48 | (uint64_t)time)};
    return s;
}

/* Rows of a block start on a cache line. */
static size_t step_row(int single) { return PF_MODEL_BLOCK * (single ? sizeof(float) : sizeof(double)); }
static size_t step_rows(int d, int noise_dim, int single)
{
    return step_row(single) * (size_t)(2 * d + noise_dim + 2) + 256;
}
/* Then one number for every 64 particles: the block maxima of a normalisation. */
static size_t step_scratch(int d, int noise_dim, int single, size_t n)
{
    return step_rows(d, noise_dim, single) + (n / 64 + 2) * sizeof(double);
}

#define STEP_DEFINE(F, T, GROUP)                                                                                       \
    /* particles first .. first + count - 1 move to the time f->time */                                                \
    static const T *step_move_##F(const pf_filter *f, size_t first, size_t count, const double *u, char *scratch)      \
    {                                                                                                                  \
        const size_t d = (size_t)f->d, n = f->n, rows = (size_t)f->noise_dim;                                          \
        T *in = (T *)scratch, *noise = in + d * PF_MODEL_BLOCK, *out = noise + rows * PF_MODEL_BLOCK;                  \
        const T *from = (const T *)f->x;                                                                               \
        T *to = (T *)f->x_next;                                                                                        \
        const pf_random_stream s = step_stream(f, f->time, STREAM_NOISE);                                              \
        const uint64_t group = (uint64_t)(first / PF_MODEL_BLOCK) << 27;                                               \
        for (size_t i = 0; i < rows; i++)                                                                              \
            random_normal_##F(s, group + i * (PF_MODEL_BLOCK / GROUP), count, noise + i * count);                      \
        if (f->resampled) {                                                                                            \
            const int64_t *a = f->ancestors + first;                                                                   \
            for (size_t i = 0; i < d; i++) gather_##F(from + i * n, a, count, in + i * count);                         \
        } else if (d == 1) {                                                                                           \
            in = (T *)from + first;                                                                                    \
        } else {                                                                                                       \
            for (size_t i = 0; i < d; i++) memcpy(in + i * count, from + i * n + first, count * sizeof(T));            \
        }                                                                                                              \
        if (d == 1) out = to + first;                                                                                  \
        f->transition_##F(in, noise, u, f->time, (int64_t)count, f->params, out);                                      \
        if (d > 1)                                                                                                     \
            for (size_t i = 0; i < d; i++) memcpy(to + i * n + first, out + i * count, count * sizeof(T));             \
        return out;                                                                                                    \
    }                                                                                                                  \
                                                                                                                       \
    /* log_g of particles first .. first + count - 1, which stand at x (d, count) */                                   \
    PF_INLINE void step_weigh_##F(const pf_filter *f, const T *x, size_t count, const double *y, T *log_g)             \
    {                                                                                                                  \
        f->likelihood_##F(x, y, f->time, (int64_t)count, f->params, log_g);                                            \
    }                                                                                                                  \
                                                                                                                       \
    static const T *step_block_##F(const pf_filter *f, const T *x, size_t first, size_t count, char *scratch)          \
    {                                                                                                                  \
        T *in = (T *)scratch;                                                                                          \
        if (f->d == 1) return x + first;                                                                               \
        for (size_t i = 0; i < (size_t)f->d; i++)                                                                      \
            memcpy(in + i * count, x + i * f->n + first, count * sizeof(T));                                           \
        return in;                                                                                                     \
    }                                                                                                                  \
                                                                                                                       \
    /* blocks first_block .. last_block - 1 of one step; y NULL: missing */                                            \
    static void step_blocks_##F(const pf_filter *f, size_t first_block, size_t last_block, int moves,                  \
                                const double *y, const double *u, char *scratch)                                       \
    {                                                                                                                  \
        const T equal = (T)(-f->log_n);                                                                                \
        for (size_t b = first_block; b < last_block; b++) {                                                            \
            size_t first = b * PF_MODEL_BLOCK, count = f->n - first < PF_MODEL_BLOCK ? f->n - first : PF_MODEL_BLOCK;  \
            const T *x = moves ? step_move_##F(f, first, count, u, scratch)                                            \
                               : step_block_##F(f, (const T *)f->x, first, count, scratch);                            \
            if (!y) continue;                                                                                          \
            T *joint = (T *)f->joint + first;                                                                          \
            step_weigh_##F(f, x, count, y, joint);                                                                     \
            if (f->equal) {                                                                                            \
                for (size_t j = 0; j < count; j++) joint[j] = equal + joint[j];                                        \
            } else {                                                                                                   \
                const T *log_w = (const T *)f->log_w + first;                                                          \
                for (size_t j = 0; j < count; j++) joint[j] = log_w[j] + joint[j];                                     \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static void step_fill_equal_##F(pf_filter *f)                                                                      \
    {                                                                                                                  \
        T *log_w = (T *)f->log_w, *w = (T *)f->w;                                                                      \
        const T lw = (T)(-f->log_n), share = (T)(1.0 / (double)f->n);                                                  \
        for (size_t j = 0; j < f->n; j++) {                                                                            \
            log_w[j] = lw;                                                                                             \
            w[j] = share;                                                                                              \
        }                                                                                                              \
        f->equal = 0;                                                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    /* weights of f->joint into W (and f->ints); 0 if the sum is not a finite number */                                \
    static int step_normalize_##F(pf_filter *f, T *W, int weights, double *increment, double *ess)                     \
    {                                                                                                                  \
        const T *joint = (const T *)f->joint;                                                                          \
        if (f->kind == PF_STEP_FUSE) {                                                                                 \
            pf_fuse_norm norm;                                                                                         \
            fuse_normalize_##F(joint, f->n, W, (T *)f->block_max, &norm);                                              \
            *increment = (double)(T)norm.log_norm;                                                                     \
            *ess = norm.ess;                                                                                           \
            return isfinite(*increment);                                                                               \
        }                                                                                                              \
        pf_norm norm;                                                                                                  \
        T m = int_max_##F(joint, f->n);                                                                                \
        if (!isfinite(m)) return 0;                                                                                    \
        weights_int32_##F(joint, f->n, m, f->ints, &norm);                                                             \
        if (weights) weights_scale32_##F(f->ints, f->n, norm.scale, W);                                                \
        f->have_ints = 1;                                                                                              \
        f->total = u128_lo(norm.sum);                                                                                  \
        *increment = (double)(T)norm.log_norm;                                                                         \
        *ess = norm.ess;                                                                                               \
        return isfinite(*increment);                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    /* 0 if there is nothing to resample by */                                                                         \
    static int step_resample_##F(pf_filter *f)                                                                         \
    {                                                                                                                  \
        uint64_t bits;                                                                                                 \
        uint32_t words[4];                                                                                             \
        const pf_random_stream s = step_stream(f, f->time, STREAM_RESAMPLE);                                           \
        if (!f->have_ints) {                                                                                           \
            if (quantize32_##F((const T *)f->w, f->n, f->ints) >= 0) return 0;                                         \
            f->total = 0;                                                                                              \
        }                                                                                                              \
        if (!f->total) f->total = resample_sum32(f->ints, f->n);                                                       \
        if (!f->total) return 0;                                                                                       \
        pf_philox(PF_PHILOX_ROUNDS, s.key, 0, s.stream, words);                                                        \
        bits = (uint64_t)words[0] << 32 | words[1];                                                                    \
        f->n_unique = systematic32(f->ints, f->n, f->total, f->n, u128_hi(u128_mul64(f->total, bits)), f->ancestors);  \
        f->have_ints = 0;                                                                                              \
        f->total = 0;                                                                                                  \
        return 1;                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    static void step_moments_##F(const pf_filter *f, double *mean, double *variance)                                   \
    {                                                                                                                  \
        const T *w = (const T *)f->w;                                                                                  \
        double total = moments_total_##F(w, f->n);                                                                     \
        for (int i = 0; i < f->d; i++) {                                                                               \
            const T *x = (const T *)f->x + (size_t)i * f->n;                                                           \
            double centre = moments_first_##F(x, w, f->n) / total;                                                     \
            if (mean) mean[i] = centre;                                                                                \
            if (variance) variance[i] = moments_second_##F(x, w, f->n, centre) / total;                                \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static void step_keep_log_weights_##F(pf_filter *f, double increment)                                              \
    {                                                                                                                  \
        const T *joint = (const T *)f->joint;                                                                          \
        T *log_w = (T *)f->log_w;                                                                                      \
        const T shift = (T)increment;                                                                                  \
        for (size_t j = 0; j < f->n; j++) log_w[j] = joint[j] - shift;                                                 \
    }                                                                                                                  \
                                                                                                                       \
    static void step_all_move_##F(pf_filter *f, const double *u, char *scratch)                                        \
    {                                                                                                                  \
        for (size_t first = 0; first < f->n; first += PF_MODEL_BLOCK)                                                  \
            step_move_##F(f, first, f->n - first < PF_MODEL_BLOCK ? f->n - first : PF_MODEL_BLOCK, u, scratch);        \
    }                                                                                                                  \
                                                                                                                       \
    static void step_all_weigh_##F(pf_filter *f, const double *y, void *log_g, char *scratch)                          \
    {                                                                                                                  \
        for (size_t first = 0; first < f->n; first += PF_MODEL_BLOCK) {                                                \
            size_t count = f->n - first < PF_MODEL_BLOCK ? f->n - first : PF_MODEL_BLOCK;                              \
            step_weigh_##F(f, step_block_##F(f, (const T *)f->x, first, count, scratch), count, y, (T *)log_g + first); \
        }                                                                                                              \
    }

STEP_DEFINE(f64, double, PF_RANDOM_GROUP_F64)
STEP_DEFINE(f32, float, PF_RANDOM_GROUP_F32)

#define STEP_CALL(f, name, ...) ((f)->single ? name##_f32(__VA_ARGS__) : name##_f64(__VA_ARGS__))

static void step_move(pf_filter *f, const double *u, char *scratch) { STEP_CALL(f, step_all_move, f, u, scratch); }
static void step_weigh(pf_filter *f, const double *y, void *log_g, char *scratch)
{
    STEP_CALL(f, step_all_weigh, f, y, log_g, scratch);
}

/* ---- threads over the blocks of one filter ------------------------------------------------------------------------- */

/* Workers wait for the next round, do their share of its blocks, and report. Which thread does which block cannot matter:
 * blocks share nothing, and their random numbers are keyed by the block. */
typedef struct {
    const pf_filter *f;
    int moves, threads, stop;
    const double *y, *u;
    char *scratch;
    size_t scratch_size;
    pf_atomic round, finished;
} step_team;

typedef struct {
    step_team *team;
    int index;
} step_worker;

static void step_share(const step_team *team, int index)
{
    const pf_filter *f = team->f;
    size_t blocks = (f->n + PF_MODEL_BLOCK - 1) / PF_MODEL_BLOCK, k = (size_t)index, of = (size_t)team->threads;
    STEP_CALL(f, step_blocks, f, blocks * k / of, blocks * (k + 1) / of, team->moves, team->y, team->u,
              team->scratch + k * team->scratch_size);
}

static PF_THREAD_RESULT step_work(void *argument)
{
    step_worker *me = (step_worker *)argument;
    step_team *team = me->team;
    for (long round = 1;; round++) {
        pf_wait_for(&team->round, round);
        if (team->stop) break;
        step_share(team, me->index);
        pf_atomic_add(&team->finished, 1);
    }
    PF_THREAD_RETURN;
}

static void step_round(step_team *team, long *rounds)
{
    if (team->threads == 1) {
        step_share(team, 0);
        return;
    }
    ++*rounds;
    pf_atomic_add(&team->round, 1);
    step_share(team, 0);
    pf_wait_for(&team->finished, *rounds * (team->threads - 1));
}

static int step_missing(const double *y, int y_dim)
{
    for (int i = 0; i < y_dim; i++)
        if (y[i] == y[i]) return 0;
    return 1;
}

static void step_filter(pf_filter *f, size_t steps, step_team *team, long *rounds)
{
    f->status = PF_STEP_OK;
    f->block_max = team->scratch + step_rows(f->d, f->noise_dim, f->single);
    for (size_t k = 0; k < steps; k++) {
        const double *y = f->y + k * (size_t)f->y_dim, *u = f->u ? f->u + k * (size_t)f->u_dim : NULL;
        const int missing = step_missing(y, f->y_dim), moves = f->time >= 0;
        double increment = 0.0, ess = f->ess;
        f->time++;
        f->resampled = moves && f->resample_next;
        f->n_unique = f->n;
        if (f->resampled) {
            if (!STEP_CALL(f, step_resample, f)) {
                f->time--;
                f->resampled = 0;
                f->status = PF_STEP_NO_WEIGHTS;
                f->done = k;
                return;
            }
            f->resample_next = 0;
            f->equal = f->from_equal = 1;
            ess = f->ess = (double)f->n;
        }
        team->f = f;
        team->moves = moves;
        team->y = missing ? NULL : y;
        team->u = u;
        step_round(team, rounds);
        if (moves) {
            void *x = f->x;
            f->x = f->x_next;
            f->x_next = x;
        }
        if (!missing) {
            const int last = k + 1 == steps, wanted = last || f->mean || f->variance;
            /* equal weights can be written again after a failure; others must survive it */
            void *W = f->equal ? f->w : f->w_next;
            if (!STEP_CALL(f, step_normalize, f, W, wanted, &increment, &ess)) {
                if (f->equal) STEP_CALL(f, step_fill_equal, f);
                f->status = PF_STEP_FAILED;
                f->done = k;
                return;
            }
            if (!f->equal) {
                f->w_next = f->w;
                f->w = W;
            }
            f->ess = ess;
            f->equal = f->from_equal = 0;
            f->resample_next = ess < f->resample_below;
            if (last || !f->resample_next) STEP_CALL(f, step_keep_log_weights, f, increment);
        } else if (f->equal) {
            STEP_CALL(f, step_fill_equal, f);
        }
        f->increment[k] = increment;
        f->ess_out[k] = ess;
        f->resampled_out[k] = (uint8_t)f->resampled;
        f->unique_out[k] = (int64_t)f->n_unique;
        if (f->mean || f->variance)
            STEP_CALL(f, step_moments, f, f->mean ? f->mean + k * (size_t)f->d : NULL,
                      f->variance ? f->variance + k * (size_t)f->d : NULL);
        f->done = k + 1;
    }
}

/* ---- threads over filters ------------------------------------------------------------------------------------------ */

typedef struct {
    pf_filter *f;
    size_t filters, steps, scratch_size;
    char *scratch;
    pf_atomic next;
} step_bank;

typedef struct {
    step_bank *bank;
    int index;
} step_bank_worker;

static PF_THREAD_RESULT step_bank_work(void *argument)
{
    step_bank_worker *me = (step_bank_worker *)argument;
    step_bank *bank = me->bank;
    step_team alone = {0};
    long rounds = 0;
    alone.threads = 1;
    alone.scratch = bank->scratch + (size_t)me->index * bank->scratch_size;
    alone.scratch_size = bank->scratch_size;
    for (;;) {
        size_t k = (size_t)pf_atomic_add(&bank->next, 1) - 1;
        if (k >= bank->filters) break;
        step_filter(bank->f + k, bank->steps, &alone, &rounds);
    }
    PF_THREAD_RETURN;
}

static void step_run(pf_filter *f, size_t filters, size_t steps, int threads, char *scratch, size_t scratch_size)
{
    pf_thread handles[STEP_MAX_THREADS];
    int started = 0;
    if (threads > STEP_MAX_THREADS) threads = STEP_MAX_THREADS;
    if (filters > 1) {
        step_bank bank = {f, filters, steps, scratch_size, scratch, 0};
        step_bank_worker workers[STEP_MAX_THREADS];
        if ((size_t)threads > filters) threads = (int)filters;
        for (int k = 0; k < threads; k++) workers[k] = (step_bank_worker){&bank, k};
        for (int k = 1; k < threads; k++)
            if (pf_thread_start(&handles[started], step_bank_work, &workers[k]) == 0) started++;
        step_bank_work(&workers[0]);
        for (int k = 0; k < started; k++) pf_thread_join(handles[k]);
        return;
    }
    step_team team = {0};
    step_worker workers[STEP_MAX_THREADS];
    long rounds = 0;
    size_t blocks = (f->n + PF_MODEL_BLOCK - 1) / PF_MODEL_BLOCK;
    if ((size_t)threads > blocks) threads = (int)blocks;
    team.scratch = scratch;
    team.scratch_size = scratch_size;
    for (int k = 1; k < threads; k++) {
        workers[k] = (step_worker){&team, started + 1};
        if (pf_thread_start(&handles[started], step_work, &workers[k]) == 0) started++;
    }
    team.threads = started + 1;
    step_filter(f, steps, &team, &rounds);
    team.stop = 1;
    pf_atomic_add(&team.round, 1);
    for (int k = 0; k < started; k++) pf_thread_join(handles[k]);
}

#define PF_STEP_TABLE { step_scratch, step_run, step_move, step_weigh }
