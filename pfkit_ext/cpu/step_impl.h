/* Included by step.c for each dtype: T the type, F(name) the function name, GROUP its numbers a random group.
 *
 * A "share" is the work of one thread in one round: the blocks [begin, end) of PF_FUSE_BLOCK particles. */

/* What particles first .. first + count - 1 move from, as (d, count); `index`: their ancestors, or NULL. */
static const T *F(step_gather)(const pf_filter *f, size_t first, size_t count, const uint32_t *index, T *rows)
{
    const size_t d = (size_t)f->d, n = f->n;
    const T *from = (const T *)f->x;
    if (index) {
        size_t i = 0;
#if defined(PF_NATIVE_TAKE)
        for (; i < d; i++) F(take_u32)(from + i * n, n, index, count, rows + i * count);
#endif
        for (; i + 2 <= d; i += 2) {      /* two coordinates for one reading of the index */
            const T *a = from + i * n, *b = a + n;
            T *to_a = rows + i * count, *to_b = to_a + count;
            for (size_t k = 0; k < count; k++) {
                const size_t j = index[k];
                to_a[k] = a[j];
                to_b[k] = b[j];
            }
        }
        for (; i < d; i++)
            for (size_t k = 0; k < count; k++) rows[i * count + k] = from[i * n + index[k]];
    } else if (f->resampled) {
        for (size_t i = 0; i < d; i++) F(gather)(from + i * n, n, f->ancestors + first, count, rows + i * count);
    } else if (d == 1 || count == n) {
        return from + first;
    } else {
        for (size_t i = 0; i < d; i++) memcpy(rows + i * count, from + i * n + first, count * sizeof(T));
    }
    return rows;
}

static T *F(step_noise_rows)(const pf_filter *f, T *rows)
{
    return rows + (size_t)f->d * PF_MODEL_BLOCK + STEP_APART;
}

/* The noise by which particles first .. first + count - 1 move to the time f->time, as (noise_dim, count) in its place. */
static void F(step_noise)(const pf_filter *f, size_t first, size_t count, T *rows)
{
    T *noise = F(step_noise_rows)(f, rows);
    const pf_random_stream s = step_stream(f, f->time, STREAM_NOISE);
    const uint64_t group = (uint64_t)(first / PF_MODEL_BLOCK) << 27;
    for (size_t i = 0; i < (size_t)f->noise_dim; i++)
        F(random_normal)(s, group + i * (PF_MODEL_BLOCK / GROUP), count, noise + i * count);
}

/* They move, from `in` and by their noise. */
static const T *F(step_move)(const pf_filter *f, const T *in, size_t first, size_t count, const double *u, T *rows)
{
    const size_t d = (size_t)f->d, n = f->n;
    T *noise = F(step_noise_rows)(f, rows), *out = noise + (size_t)f->noise_dim * PF_MODEL_BLOCK + STEP_APART;
    T *to = (T *)f->x_next;
    const int there = d == 1 || count == n;      /* rows of x_next are rows of this block */
    if (there) out = to + first;
    F(f->transition)(in, noise, u, f->time, (int64_t)count, f->params, out);
    if (!there)
        for (size_t i = 0; i < d; i++) memcpy(to + i * n + first, out + i * count, count * sizeof(T));
    return out;
}

/* The same particles where they stand, as (d, count). */
static const T *F(step_still)(const pf_filter *f, size_t first, size_t count, T *rows)
{
    const T *x = (const T *)f->x;
    if (f->d == 1 || count == f->n) return x + first;
    for (size_t i = 0; i < (size_t)f->d; i++) memcpy(rows + i * count, x + i * f->n + first, count * sizeof(T));
    return rows;
}

/* joint = log-weights before the observation + log-likelihood, of particles that stand at x (d, count) */
static void F(step_weigh)(const pf_filter *f, const T *x, size_t first, size_t count, const double *y, T *joint)
{
    const T equal = (T)(-f->log_n);
    F(f->likelihood)(x, y, f->time, (int64_t)count, f->params, joint);
    if (f->equal) {
        for (size_t j = 0; j < count; j++) joint[j] = equal + joint[j];
    } else {
        const T *log_w = (const T *)f->log_w + first;
        for (size_t j = 0; j < count; j++) joint[j] = log_w[j] + joint[j];
    }
}

/* ---- shares ---------------------------------------------------------------------------------------------------------- */

/* Move, weigh, and what of the normalisation needs no other block. */
static void F(step_share_move)(step_team *team, size_t begin, size_t end, char *scratch)
{
    const pf_filter *f = team->f;
    T *rows = (T *)scratch, *own = rows + (size_t)(2 * f->d + f->noise_dim) * PF_MODEL_BLOCK + 3 * STEP_APART;
    uint32_t *index = (uint32_t *)(own + PF_FUSE_BLOCK);
    uint64_t since = team->timed ? pf_nanoseconds() : 0;
    size_t from = team->positions ? positions_find(f->ints, f->n, (uint32_t)(begin * PF_FUSE_BLOCK)) : 0;
    for (size_t b = begin; b < end; b++) {
        const size_t start = b * PF_FUSE_BLOCK, whole = step_count(f->n, b);
        T *joint = team->keep ? (T *)f->joint + start : own;
        step_block *block = team->blocks + b;
        block->unique = 0;
        for (size_t at = 0; at < whole; at += PF_MODEL_BLOCK) {
            const size_t first = start + at, count = whole - at < PF_MODEL_BLOCK ? whole - at : PF_MODEL_BLOCK;
            const T *x;
            if (team->moves && !team->drawn) F(step_noise)(f, first, count, rows);
            STEP_LAP(team->timed, since, block->nanoseconds, PF_PROPAGATE)
            if (team->positions)
                block->unique += positions_expand(f->ints, f->n, &from, (uint32_t)first, (uint32_t)count, index);
            if (team->moves) {
                x = F(step_gather)(f, first, count, team->positions ? index : NULL, rows);
                if (f->resampled) STEP_LAP(team->timed, since, block->nanoseconds, PF_GATHER)
                x = F(step_move)(f, x, first, count, team->u, rows);
                STEP_LAP(team->timed, since, block->nanoseconds, PF_PROPAGATE)
            } else {
                x = F(step_still)(f, first, count, rows);
            }
            if (team->y) F(step_weigh)(f, x, first, count, team->y, joint + at);
            STEP_LAP(team->timed, since, block->nanoseconds, PF_LIKELIHOOD)
        }
        if (!team->y) continue;
        if (f->kind == PF_STEP_FUSE) block->good = F(fuse_part)(joint, whole, (T *)team->W + start, &block->fuse);
        else block->fuse.maximum = (double)F(int_max)(joint, whole);
        STEP_LAP(team->timed, since, block->nanoseconds, PF_LSE)
    }
}

/* Joint log-weights of every particle again, where they were not kept. */
static void F(step_share_joint)(step_team *team, size_t begin, size_t end, char *scratch)
{
    const pf_filter *f = team->f;
    for (size_t first = begin * PF_FUSE_BLOCK; first < f->n && first < end * PF_FUSE_BLOCK; first += PF_MODEL_BLOCK) {
        const size_t count = f->n - first < PF_MODEL_BLOCK ? f->n - first : PF_MODEL_BLOCK;
        F(step_weigh)(f, F(step_still)(f, first, count, (T *)scratch), first, count, team->y, (T *)f->joint + first);
    }
}

static void F(step_share_ints)(step_team *team, size_t begin, size_t end, char *scratch)
{
    const pf_filter *f = team->f;
    (void)scratch;
    for (size_t b = begin; b < end; b++)
        F(weights_part)((const T *)f->joint + b * PF_FUSE_BLOCK, step_count(f->n, b), (T)team->all.maximum,
                        f->ints + b * PF_FUSE_BLOCK, &team->blocks[b].ints);
}

static void F(step_share_scale)(step_team *team, size_t begin, size_t end, char *scratch)
{
    const pf_filter *f = team->f;
    (void)scratch;
    for (size_t b = begin; b < end; b++) {
        T *W = (T *)f->w + b * PF_FUSE_BLOCK;
        if (f->kind == PF_STEP_FUSE) F(fuse_scale)(W, step_count(f->n, b), team->blocks[b].scale);
        else if (f->wide) F(weights_scale64)(f->wide + b * PF_FUSE_BLOCK, step_count(f->n, b), team->int_scale, W);
        else F(weights_scale32)(f->ints + b * PF_FUSE_BLOCK, step_count(f->n, b), team->int_scale, W);
    }
}

static void F(step_share_quantize)(step_team *team, size_t begin, size_t end, char *scratch)
{
    const pf_filter *f = team->f;
    (void)scratch;
    for (size_t b = begin; b < end; b++)
        team->blocks[b].ints.sum = F(quantize_scaled)((const T *)f->w + b * PF_FUSE_BLOCK, step_count(f->n, b),
                                                      team->raw ? team->blocks[b].scale : 1.0, team->largest,
                                                      f->ints + b * PF_FUSE_BLOCK);
}

static void F(step_share_log)(step_team *team, size_t begin, size_t end, char *scratch)
{
    const pf_filter *f = team->f;
    const T *joint = (const T *)f->joint, shift = (T)team->increment;
    T *log_w = (T *)f->log_w;
    const size_t stop = end * PF_FUSE_BLOCK < f->n ? end * PF_FUSE_BLOCK : f->n;
    (void)scratch;
    for (size_t j = begin * PF_FUSE_BLOCK; j < stop; j++) log_w[j] = joint[j] - shift;
}

/* ---- one filter ------------------------------------------------------------------------------------------------------ */

static void F(step_fill_equal)(pf_filter *f)
{
    T *log_w = (T *)f->log_w, *w = (T *)f->w;
    const T lw = (T)(-f->log_n), share = (T)(1.0 / (double)f->n);
    for (size_t j = 0; j < f->n; j++) {
        log_w[j] = lw;
        w[j] = share;
    }
    f->equal = 0;
}

/* The weights in f->w as numbers that sum to 1. */
static void F(step_finish_weights)(step_team *team)
{
    if (team->raw) step_round(team, F(step_share_scale));
    team->raw = 0;
}

/* Weights and sums of the joint log-weights; 0 if they are not finite numbers. */
static int F(step_normalize)(pf_filter *f, step_team *team, double *increment, double *ess)
{
    const size_t blocks = step_blocks(f->n);
    fuse_sums all = FUSE_NOTHING;
    if (f->kind == PF_STEP_FUSE) {
        for (size_t b = 0; b < blocks; b++) {
            if (!team->blocks[b].good) return 0;
            if (team->blocks[b].fuse.maximum > -INFINITY) fuse_join(&all, team->blocks[b].fuse);
        }
        if (!isfinite(all.maximum)) return 0;
        const pf_fuse_state state = {all.maximum, all.sum};
        if (!team->keep && fuse_towers(state)) step_round(team, F(step_share_joint));
        *increment = (double)(T)F(fuse_value)((const T *)f->joint, f->n, state);
        if (!isfinite(*increment)) return 0;
        *ess = fuse_ess(&all, f->n);
        team->largest = 0.0;
        for (size_t b = 0; b < blocks; b++) {
            const double scale = fuse_share(team->blocks[b].fuse.maximum, &all, F(FUSE_UNSCALE));
            const double top = scale > F(FUSE_FAINT) ? (double)((T)(1.0 / F(FUSE_UNSCALE)) * (T)scale) : 0.0;
            team->blocks[b].scale = scale;
            if (top > team->largest) team->largest = top;
        }
        return 1;
    }
    pf_norm norm;
    pf_weights_part sums = {u128_from64(0), u128_from64(0), 0};
    for (size_t b = 0; b < blocks; b++) {
        const double m = team->blocks[b].fuse.maximum;
        if (m != m) return 0;
        if (m > all.maximum) all.maximum = m;
    }
    if (!isfinite(all.maximum)) return 0;
    team->all = all;
    if (f->wide) {
        F(weights_int64)((const T *)f->joint, f->n, (T)all.maximum, f->wide, &norm);
        f->have_ints = 1;
        team->int_scale = norm.scale;
        *increment = (double)(T)norm.log_norm;
        *ess = norm.ess;
        return isfinite(*increment);
    }
    step_round(team, F(step_share_ints));
    for (size_t b = 0; b < blocks; b++) {
        const pf_weights_part *part = &team->blocks[b].ints;
        sums.total = u128_add(sums.total, part->total);
        sums.squares = u128_add(sums.squares, part->squares);
        sums.sum += part->sum;
    }
    weights_whole(&sums, all.maximum, &norm);
    f->have_ints = 1;
    f->total = sums.sum;
    team->int_scale = norm.scale;
    *increment = (double)(T)norm.log_norm;
    *ess = norm.ess;
    return isfinite(*increment);
}

/* Integer weights from f->w, unless they are there; 0 if there is nothing to resample by. */
static int F(step_quantize)(pf_filter *f, step_team *team)
{
    const size_t blocks = step_blocks(f->n);
    if (!f->have_ints) {
        if (team->largest > 0.0) {
            step_round(team, F(step_share_quantize));
        } else {
            if (F(quantize32)((const T *)f->w, f->n, f->ints) >= 0) return 0;
            step_round(team, step_share_sum);
        }
    } else if (!f->total) {
        step_round(team, step_share_sum);
    }
    f->total = 0;
    for (size_t b = 0; b < blocks; b++) f->total += team->blocks[b].ints.sum;
    return f->total != 0;
}

static void F(step_moments)(const pf_filter *f, double *mean, double *variance)
{
    const T *w = (const T *)f->w;
    double total = F(moments_total)(w, f->n);
    for (int i = 0; i < f->d; i++) {
        const T *x = (const T *)f->x + (size_t)i * f->n;
        double centre = F(moments_first)(x, w, f->n) / total;
        if (mean) mean[i] = centre;
        if (variance) variance[i] = F(moments_second)(x, w, f->n, centre) / total;
    }
}

/* ---- single steps ------------------------------------------------------------------------------------------------------ */

static void F(step_all_move)(pf_filter *f, const double *u, char *scratch)
{
    for (size_t first = 0; first < f->n; first += PF_MODEL_BLOCK) {
        const size_t count = f->n - first < PF_MODEL_BLOCK ? f->n - first : PF_MODEL_BLOCK;
        F(step_noise)(f, first, count, (T *)scratch);
        F(step_move)(f, F(step_gather)(f, first, count, NULL, (T *)scratch), first, count, u, (T *)scratch);
    }
}

static void F(step_all_weigh)(pf_filter *f, const double *y, void *log_g, char *scratch)
{
    for (size_t first = 0; first < f->n; first += PF_MODEL_BLOCK) {
        size_t count = f->n - first < PF_MODEL_BLOCK ? f->n - first : PF_MODEL_BLOCK;
        F(f->likelihood)(F(step_still)(f, first, count, (T *)scratch), y, f->time, (int64_t)count, f->params,
                         (T *)log_g + first);
    }
}
