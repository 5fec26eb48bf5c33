/* Included by level.c after the primitives. */
#include "step.h"
#include "threads.h"

enum { STREAM_RESAMPLE = 2, STREAM_NOISE = 4 };      /* as numbered in pfkit/filters/random.py */
#define STEP_MAX_THREADS 256

/* What a block of PF_FUSE_BLOCK particles contributes. */
typedef struct {
    fuse_sums fuse;           /* "int": only its maximum */
    pf_weights_part ints;
    double scale;             /* of the weights of this block in f->w, while team->raw */
    size_t unique;            /* ancestors that begin in it */
    int good;
    uint64_t nanoseconds[PF_PHASES];
} step_block;

/* In a timed step: the time since `since` goes to a phase, and the next begins. */
#define STEP_LAP(timed, since, sums, phase)                                                                            \
    if (timed) {                                                                                                       \
        const uint64_t step_now = pf_nanoseconds();                                                                    \
        (sums)[phase] += step_now - (since);                                                                           \
        (since) = step_now;                                                                                            \
    }

/* One filter at work: what a step's rounds share. Workers wait for the next round, do their share of its blocks, and
 * report. Which thread does which block cannot matter: blocks share nothing, their random numbers are keyed by block,
 * and sums of blocks are joined in order, or are integers. */
typedef struct step_team {
    const pf_filter *f;
    step_block *blocks;
    void (*share)(struct step_team *team, size_t begin, size_t end, char *scratch);
    int moves, timed;
    int drawn;                /* the noise of the only model block is there */
    int keep;                 /* joint log-weights go to f->joint */
    int positions;            /* f->ints hold the positions E_j of a systematic resampling */
    int raw;                  /* f->w (of "int": f->ints) is still to be scaled */
    double largest;           /* weight of all, once scaled; 0: not known */
    double int_scale, increment;
    fuse_sums all;
    pf_positions plan;
    void *W;
    const double *y, *u;
    int threads, stop;
    char *scratch;
    size_t scratch_size;
    long rounds;
    pf_atomic round, finished;
} step_team;

static pf_random_stream step_stream(const pf_filter *f, int64_t time, uint64_t purpose)
{
    pf_random_stream s = {f->key, f->stream ^ (purpose << 48 | (uint64_t)time)};
    return s;
}

static size_t step_blocks(size_t n) { return (n + PF_FUSE_BLOCK - 1) / PF_FUSE_BLOCK; }
static size_t step_count(size_t n, size_t b)
{
    return n - b * PF_FUSE_BLOCK < PF_FUSE_BLOCK ? n - b * PF_FUSE_BLOCK : PF_FUSE_BLOCK;
}

/* Rows of a model block: states, noise, moved states; then come the joint log-weights of a block, and ancestors. A row of
 * float64 is 4096 bytes, and processors take a load for dependent on a recent store at the same place of another page:
 * so arrays of rows start a little apart. */
#define STEP_APART 144
static size_t step_rows(int d, int noise_dim, int single)
{
    const size_t size = single ? sizeof(float) : sizeof(double);
    const size_t index = (PF_MODEL_BLOCK + 16) * sizeof(uint32_t);
    return size * (PF_MODEL_BLOCK * (size_t)(2 * d + noise_dim) + 4 * STEP_APART + PF_FUSE_BLOCK) + index;
}
/* Then a record a block, and random words for the schemes that take one a particle. */
static size_t step_scratch(int d, int noise_dim, int single, size_t n, int scheme)
{
    const size_t draws = scheme == PF_SCHEME_SYSTEMATIC ? 0 : n * sizeof(uint64_t);
    return step_rows(d, noise_dim, single) + step_blocks(n) * sizeof(step_block) + draws + 64;
}

/* ---- threads over the blocks of one filter ------------------------------------------------------------------------- */

static void step_do_share(step_team *team, int index)
{
    const size_t blocks = step_blocks(team->f->n), k = (size_t)index, of = (size_t)team->threads;
    team->share(team, blocks * k / of, blocks * (k + 1) / of, team->scratch + k * team->scratch_size);
}

static void step_round(step_team *team, void (*share)(step_team *, size_t, size_t, char *))
{
    team->share = share;
    if (team->threads == 1) {
        share(team, 0, step_blocks(team->f->n), team->scratch);
        return;
    }
    team->rounds++;
    pf_atomic_add(&team->round, 1);
    step_do_share(team, 0);
    pf_wait_for(&team->finished, team->rounds * (team->threads - 1));
}

static void step_share_sum(step_team *team, size_t begin, size_t end, char *scratch)
{
    const pf_filter *f = team->f;
    (void)scratch;
    for (size_t b = begin; b < end; b++)
        team->blocks[b].ints.sum = resample_sum32(f->ints + b * PF_FUSE_BLOCK, step_count(f->n, b));
}

static void step_share_positions(step_team *team, size_t begin, size_t end, char *scratch)
{
    const pf_filter *f = team->f;
    uint64_t C = 0;
    (void)scratch;
    for (size_t b = 0; b < begin; b++) C += team->blocks[b].ints.sum;
    for (size_t b = begin; b < end; b++)
        C = positions32(&team->plan, f->ints + b * PF_FUSE_BLOCK, step_count(f->n, b), C);
}

#define T double
#define F(name) name##_f64
#define GROUP PF_RANDOM_GROUP_F64
#include "step_impl.h"
#undef T
#undef F
#undef GROUP
#define T float
#define F(name) name##_f32
#define GROUP PF_RANDOM_GROUP_F32
#include "step_impl.h"
#undef T
#undef F
#undef GROUP

#define STEP_CALL(f, name, ...) ((f)->single ? name##_f32(__VA_ARGS__) : name##_f64(__VA_ARGS__))
#define STEP_SHARE(f, name) ((f)->single ? name##_f32 : name##_f64)

static void step_move(pf_filter *f, const double *u, char *scratch) { STEP_CALL(f, step_all_move, f, u, scratch); }
static void step_weigh(pf_filter *f, const double *y, void *log_g, char *scratch)
{
    STEP_CALL(f, step_all_weigh, f, y, log_g, scratch);
}

/* The first word of the stream that resamples at f->time. */
static uint64_t step_word(const pf_filter *f)
{
    const pf_random_stream s = step_stream(f, f->time, STREAM_RESAMPLE);
    uint32_t words[4];
    pf_philox(PF_PHILOX_ROUNDS, s.key, 0, s.stream, words);
    return (uint64_t)words[0] << 32 | words[1];
}

/* ---- resampling -------------------------------------------------------------------------------------------------------- */

/* Number of distinct ancestors; `seen`: n bytes to work in. */
static size_t step_distinct(const int64_t *a, size_t n, uint8_t *seen)
{
    int64_t found = resample_distinct(a, n, n);
    if (found > 0) return (size_t)found;
    memset(seen, 0, n);
    for (size_t k = 0; k < n; k++) seen[a[k]] = 1;
    found = 0;
    for (size_t j = 0; j < n; j++) found += seen[j];
    return (size_t)found;
}

/* f->ancestors by the filter's scheme, S being the sum of its integer weights; u: room for n words. A status. */
static int step_draw(pf_filter *f, pf_u128 S, uint64_t *u)
{
    const pf_random_stream s = step_stream(f, f->time, STREAM_RESAMPLE);
    const size_t n = f->n;
    uint64_t draws = n;
    int failed = 0;
    if (f->scheme == PF_SCHEME_SYSTEMATIC) {
        const uint64_t bits = step_word(f);
        if (f->wide) systematic64(f->wide, n, S, n, scaled_draw(bits, S), f->ancestors);
        else systematic32(f->ints, n, u128_lo(S), n, u128_hi(u128_mul64(u128_lo(S), bits)), f->ancestors);
        return PF_STEP_OK;
    }
    if (f->scheme == PF_SCHEME_RESIDUAL)
        draws = f->wide ? residual_left64(f->wide, n, S, n) : residual_left32(f->ints, n, u128_lo(S), n);
    random_bits(s, 0, draws, u);
    switch (f->scheme) {
    case PF_SCHEME_STRATIFIED:
        if (f->wide) stratified64(f->wide, n, S, n, u, 1, f->ancestors);
        else stratified32(f->ints, n, u128_lo(S), n, u, 1, f->ancestors);
        break;
    case PF_SCHEME_MULTINOMIAL:
        failed = f->wide ? multinomial64(f->wide, n, S, n, u, f->ancestors)
                         : multinomial32(f->ints, n, u128_lo(S), n, u, f->ancestors);
        break;
    default:
        failed = f->wide ? residual64(f->wide, n, S, n, u, f->ancestors)
                         : residual32(f->ints, n, u128_lo(S), n, u, f->ancestors);
    }
    return failed ? PF_STEP_NO_MEMORY : PF_STEP_OK;
}

/* Ancestors of all particles, or for systematic resampling where they end: a status. */
static int step_resample(pf_filter *f, step_team *team)
{
    pf_u128 S;
    if (f->wide) {
        if (!f->have_ints) {
            STEP_CALL(f, step_finish_weights, team);
            ptrdiff_t bad = f->single ? quantize64_f32((const float *)f->w, f->n, f->wide)
                                      : quantize64_f64((const double *)f->w, f->n, f->wide);
            if (bad >= 0) return PF_STEP_NO_WEIGHTS;
        }
        S = resample_sum64(f->wide, f->n);
        if (u128_is_zero(S)) return PF_STEP_NO_WEIGHTS;
    } else {
        if (!STEP_CALL(f, step_quantize, f, team)) return PF_STEP_NO_WEIGHTS;
        S = u128_from64(f->total);
    }
    team->positions = f->scheme == PF_SCHEME_SYSTEMATIC && !f->wide && f->total > f->n && f->total >> 52 == 0;
    if (team->positions) {
        team->plan = positions_make(f->n, f->total, u128_hi(u128_mul64(f->total, step_word(f))));
        step_round(team, step_share_positions);
    } else {
        int status = step_draw(f, S, (uint64_t *)(team->blocks + step_blocks(f->n)));
        if (status != PF_STEP_OK) return status;
        f->n_unique = step_distinct(f->ancestors, f->n, (uint8_t *)f->w_next);
    }
    f->have_ints = 0;
    f->total = 0;
    team->raw = 0;
    return PF_STEP_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------- */

static int step_missing(const double *y, int y_dim)
{
    for (int i = 0; i < y_dim; i++)
        if (y[i] == y[i]) return 0;
    return 1;
}

static void step_equal(pf_filter *f, step_team *team)
{
    STEP_CALL(f, step_fill_equal, f);
    team->raw = 0;
    team->largest = f->single ? (double)(float)(1.0 / (double)f->n) : 1.0 / (double)f->n;
}

/* One step; a status. */
static int step_once(pf_filter *f, step_team *team, size_t k, int last)
{
    const double *y = f->y + k * (size_t)f->y_dim;
    const int missing = step_missing(y, f->y_dim), moments = f->mean || f->variance;
    const size_t blocks = step_blocks(f->n);
    uint64_t since = 0;
    double increment = 0.0, ess = f->ess;
    team->moves = f->time >= 0;
    f->time++;
    f->resampled = team->moves && f->resample_next;
    f->n_unique = f->n;
    team->positions = 0;
    team->timed = f->timed && f->timed[k];
    if (team->timed) {
        since = pf_nanoseconds();
        for (size_t b = 0; b < blocks; b++) memset(team->blocks[b].nanoseconds, 0, sizeof team->blocks[b].nanoseconds);
    }
    /* Few particles wait for chains of scalar operations, of the last step's sums and of the resampling. Noise depends on
     * neither, and fills the time. */
    team->drawn = team->moves && f->n <= PF_MODEL_BLOCK;
    if (team->drawn) {
        STEP_CALL(f, step_noise, f, 0, f->n, (void *)team->scratch);
        STEP_LAP(team->timed, since, f->nanoseconds, PF_PROPAGATE)
    }
    if (f->resampled) {
        int status = step_resample(f, team);
        if (status != PF_STEP_OK) {
            f->time--;
            f->resampled = 0;
            return status;
        }
        f->resample_next = 0;
        f->equal = f->from_equal = 1;
        ess = f->ess = (double)f->n;
        STEP_LAP(team->timed, since, f->nanoseconds, PF_RESAMPLE)
    }
    team->y = missing ? NULL : y;
    team->u = f->u ? f->u + k * (size_t)f->u_dim : NULL;
    team->keep = last || f->kind == PF_STEP_INT || !isinf(f->resample_below);
    /* equal weights can be written again after a failure; others must survive it */
    team->W = f->equal ? f->w : f->w_next;
    step_round(team, STEP_SHARE(f, step_share_move));
    if (team->positions) {
        f->n_unique = 0;
        for (size_t b = 0; b < blocks; b++) f->n_unique += team->blocks[b].unique;
    }
    if (team->timed) {
        for (size_t b = 0; b < blocks; b++)
            for (int phase = 0; phase < PF_PHASES; phase++) f->nanoseconds[phase] += team->blocks[b].nanoseconds[phase];
        since = pf_nanoseconds();
    }
    if (team->moves) {
        void *x = f->x;
        f->x = f->x_next;
        f->x_next = x;
    }
    if (!missing) {
        if (!STEP_CALL(f, step_normalize, f, team, &increment, &ess)) {
            if (f->equal) step_equal(f, team);
            return PF_STEP_FAILED;
        }
        STEP_LAP(team->timed, since, f->nanoseconds, PF_LSE)
        if (f->kind == PF_STEP_FUSE && !f->equal) {
            f->w_next = f->w;
            f->w = team->W;
        }
        team->raw = 1;
        f->ess = ess;
        f->equal = f->from_equal = 0;
        f->resample_next = ess < f->resample_below;
        team->increment = increment;
        if (last || !f->resample_next) step_round(team, STEP_SHARE(f, step_share_log));
        STEP_LAP(team->timed, since, f->nanoseconds, PF_WEIGHTS)
    } else if (f->equal) {
        step_equal(f, team);
    }
    f->increment[k] = increment;
    f->ess_out[k] = ess;
    f->resampled_out[k] = (uint8_t)f->resampled;
    f->unique_out[k] = (int64_t)f->n_unique;
    if (moments) {
        STEP_CALL(f, step_finish_weights, team);
        STEP_CALL(f, step_moments, f, f->mean ? f->mean + k * (size_t)f->d : NULL,
                  f->variance ? f->variance + k * (size_t)f->d : NULL);
    }
    return PF_STEP_OK;
}

static void step_filter(pf_filter *f, size_t steps, step_team *team)
{
    team->f = f;
    team->blocks = (step_block *)(team->scratch + step_rows(f->d, f->noise_dim, f->single));
    team->raw = 0;
    team->largest = 0.0;
    f->status = PF_STEP_OK;
    for (f->done = 0; f->done < steps; f->done++) {
        f->status = step_once(f, team, f->done, f->done + 1 == steps);
        if (f->status != PF_STEP_OK) break;
    }
    STEP_CALL(f, step_finish_weights, team);
}

/* ---- threads ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    step_team *team;
    int index;
} step_worker;

static PF_THREAD_RESULT step_work(void *argument)
{
    step_worker *me = (step_worker *)argument;
    step_team *team = me->team;
    for (long round = 1;; round++) {
        pf_wait_for(&team->round, round);
        if (team->stop) break;
        step_do_share(team, me->index);
        pf_atomic_add(&team->finished, 1);
    }
    PF_THREAD_RETURN;
}

/* Threads over filters. */
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
    alone.threads = 1;
    alone.scratch = bank->scratch + (size_t)me->index * bank->scratch_size;
    alone.scratch_size = bank->scratch_size;
    for (;;) {
        size_t k = (size_t)pf_atomic_add(&bank->next, 1) - 1;
        if (k >= bank->filters) break;
        step_filter(bank->f + k, bank->steps, &alone);
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
    const size_t blocks = step_blocks(f->n);
    if ((size_t)threads > blocks) threads = (int)blocks;
    team.scratch = scratch;
    team.scratch_size = scratch_size;
    for (int k = 1; k < threads; k++) {
        workers[k] = (step_worker){&team, started + 1};
        if (pf_thread_start(&handles[started], step_work, &workers[k]) == 0) started++;
    }
    team.threads = started + 1;
    step_filter(f, steps, &team);
    team.stop = 1;
    pf_atomic_add(&team.round, 1);
    for (int k = 0; k < started; k++) pf_thread_join(handles[k]);
}

#define PF_STEP_TABLE { step_scratch, step_run, step_move, step_weigh }
