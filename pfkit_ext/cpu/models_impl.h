/* Included by models.c for each dtype: T the type, V its vectors, M(name) their operations, F(name) the function name.
 * Elementwise, explicit fma: the same bits at every SIMD level and for any cut into blocks. */

#define TRANSITION_ARGUMENTS                                                                                           \
    const T *x, const T *noise, const double *u, int64_t t, int64_t n, const double *params, T *x_new
#define LIKELIHOOD_ARGUMENTS                                                                                           \
    const T *x, const double *y, int64_t t, int64_t n, const double *params, T *log_g

PF_INLINE V M(part)(const T *p, int64_t count)
{
    T t[LANES];
    if (count >= LANES) return M(load)(p);
    for (int k = 0; k < LANES; k++) t[k] = k < count ? p[k] : (T)0;
    return M(load)(t);
}
PF_INLINE void M(put)(T *p, V a, int64_t count)
{
    T t[LANES];
    if (count >= LANES) {
        M(store)(p, a);
        return;
    }
    M(store)(t, a);
    for (int k = 0; k < LANES && k < count; k++) p[k] = t[k];
}
#define C(v) M(set1)((T)(v))
/* The last vector overlaps the one before it, rather than be cut: x_new and log_g are not among the inputs. So all are
 * whole, unless n is below LANES and there is but one. */
#define EACH_VECTOR for (int64_t j = 0, count = n < LANES ? n : LANES; j < n; j = AFTER(j))
#define AFTER(j) ((j) + LANES >= n ? n : (j) + LANES < n - LANES ? (j) + LANES : n - LANES)

/* z -> -z^2 / 2 + constant */
PF_INLINE V M(gaussian)(V z, T constant) { return M(fma)(M(mul)(z, C(-0.5)), z, C(constant)); }

/* ---- LocalLevel: sigma_level, 1 / sigma_obs, log scale --------------------------------------------------------------- */

static void F(local_level_transition)(TRANSITION_ARGUMENTS)
{
    const V sigma = C(params[0]);
    (void)u, (void)t;
    EACH_VECTOR M(put)(x_new + j, M(fma)(sigma, M(part)(noise + j, count), M(part)(x + j, count)), count);
}
static void F(local_level_likelihood)(LIKELIHOOD_ARGUMENTS)
{
    const V inverse = C(params[1]), at = C(y[0]);
    (void)t;
    EACH_VECTOR M(put)(log_g + j, M(gaussian)(M(mul)(M(sub)(at, M(part)(x + j, count)), inverse), (T)params[2]), count);
}

/* ---- StochasticVolatility: mu (1 - rho), rho, sigma, -log(2 pi) / 2 --------------------------------------------------- */

static void F(volatility_transition)(TRANSITION_ARGUMENTS)
{
    const V base = C(params[0]), rho = C(params[1]), sigma = C(params[2]);
    (void)u, (void)t;
    EACH_VECTOR
    {
        V mean = M(fma)(rho, M(part)(x + j, count), base);
        M(put)(x_new + j, M(fma)(sigma, M(part)(noise + j, count), mean), count);
    }
}
static void F(volatility_likelihood)(LIKELIHOOD_ARGUMENTS)
{
    /* y^2 exp(-x) = exp(log y^2 - x): neither factor alone need be in range */
    const V constant = C(params[3]);
    (void)t;
    if (y[0] == 0.0) {
        EACH_VECTOR M(put)(log_g + j, M(fma)(M(part)(x + j, count), C(-0.5), constant), count);
        return;
    }
    const V log_square = C(2.0 * model_log(y[0] < 0 ? -y[0] : y[0]));
    EACH_VECTOR
    {
        V v = M(part)(x + j, count);
        V sum = M(add)(v, M(exp)(M(sub)(log_square, v)));
        M(put)(log_g + j, M(fma)(sum, C(-0.5), constant), count);
    }
}

/* ---- ThetaLogistic: tau0, tau1, tau2, sigma_x, 1 / sigma_y, log scale ------------------------------------------------ */

static void F(theta_transition)(TRANSITION_ARGUMENTS)
{
    const V tau0 = C(params[0]), tau1 = C(-params[1]), tau2 = C(params[2]), sigma = C(params[3]);
    (void)u, (void)t;
    EACH_VECTOR
    {
        V v = M(part)(x + j, count), mean = M(fma)(tau1, M(exp)(M(mul)(tau2, v)), M(add)(v, tau0));
        M(put)(x_new + j, M(fma)(sigma, M(part)(noise + j, count), mean), count);
    }
}
static void F(theta_likelihood)(LIKELIHOOD_ARGUMENTS)
{
    const V inverse = C(params[4]), at = C(y[0]);
    (void)t;
    EACH_VECTOR M(put)(log_g + j, M(gaussian)(M(mul)(M(sub)(at, M(part)(x + j, count)), inverse), (T)params[5]), count);
}

/* ---- LinearGaussian: d, p, F (d, d), factor of Q (d, d), H (p, d), R (p, p) ------------------------------------------ */

static void F(linear_transition)(TRANSITION_ARGUMENTS)
{
    const int d = (int)params[0];
    const double *A = params + 2, *L = A + d * d;
    (void)u, (void)t;
    EACH_VECTOR
    {
        V in[PF_MODEL_MAX_DIM], z[PF_MODEL_MAX_DIM];
        for (int i = 0; i < d; i++) {
            in[i] = M(part)(x + i * n + j, count);
            z[i] = M(part)(noise + i * n + j, count);
        }
        for (int i = 0; i < d; i++) {
            V sum = C(0);
            for (int k = 0; k < d; k++)
                if (A[i * d + k] != 0.0) sum = M(fma)(C(A[i * d + k]), in[k], sum);
            for (int k = 0; k < d; k++)
                if (L[i * d + k] != 0.0) sum = M(fma)(C(L[i * d + k]), z[k], sum);
            M(put)(x_new + i * n + j, sum, count);
        }
    }
}
static void F(linear_likelihood)(LIKELIHOOD_ARGUMENTS)
{
    const int d = (int)params[0], p = (int)params[1];
    const double *H = params + 2 + 2 * d * d, *R = H + p * d;
    double chol[PF_MODEL_MAX_DIM * PF_MODEL_MAX_DIM], inverse[PF_MODEL_MAX_DIM], constant = 0.0;
    int seen[PF_MODEL_MAX_DIM], m = 0;
    (void)t;
    for (int i = 0; i < p; i++)
        if (y[i] == y[i]) seen[m++] = i;
    for (int i = 0; i < m; i++) {        /* Cholesky of R restricted to the components seen */
        for (int k = 0; k <= i; k++) {
            double sum = R[seen[i] * p + seen[k]];
            for (int l = 0; l < k; l++) sum = fma(-chol[i * p + l], chol[k * p + l], sum);
            chol[i * p + k] = i == k ? sqrt(sum) : sum * inverse[k];
            if (i == k) inverse[i] = 1.0 / chol[i * p + i];
        }
        constant = constant - model_log(chol[i * p + i]) - 0.91893853320467274178;
    }
    EACH_VECTOR
    {
        V z[PF_MODEL_MAX_DIM], square = C(0);
        for (int i = 0; i < m; i++) {
            V r = C(y[seen[i]]);
            for (int k = 0; k < d; k++)
                if (H[seen[i] * d + k] != 0.0) r = M(fma)(C(-H[seen[i] * d + k]), M(part)(x + k * n + j, count), r);
            for (int l = 0; l < i; l++)
                if (chol[i * p + l] != 0.0) r = M(fma)(C(-chol[i * p + l]), z[l], r);
            z[i] = M(mul)(r, C(inverse[i]));
            square = M(fma)(z[i], z[i], square);
        }
        M(put)(log_g + j, M(fma)(square, C(-0.5), C(constant)), count);
    }
}

/* ---- BearingsOnly: dt, factor of the covariance of (place, speed) on one axis (3), 1 / bearing_sd, log scale,
 *      length of the sensor's path or 0, path (length, 2) or place (2) -------------------------------------------------- */

static void F(bearings_transition)(TRANSITION_ARGUMENTS)
{
    const V dt = C(params[0]), a = C(params[1]), b = C(params[2]), c = C(params[3]);
    (void)u, (void)t;
    for (int axis = 0; axis < 2; axis++) {
        const T *place = x + axis * n, *speed = x + (axis + 2) * n, *z0 = noise + axis * n, *z1 = noise + (axis + 2) * n;
        T *new_place = x_new + axis * n, *new_speed = x_new + (axis + 2) * n;
        EACH_VECTOR
        {
            V v = M(part)(speed + j, count), z = M(part)(z0 + j, count);
            V moved = M(fma)(dt, v, M(part)(place + j, count));
            M(put)(new_place + j, M(fma)(a, z, moved), count);
            M(put)(new_speed + j, M(fma)(c, M(part)(z1 + j, count), M(fma)(b, z, v)), count);
        }
    }
}
/* What the observation missed each bearing by. Within a few turns of 0 the observed direction becomes the axis, seen from
 * which a particle's bearing is that, wrapped; where all particles of a vector lie within pi / 8 of it, its arctangent is
 * one quotient and the series. */
static void F(bearings_likelihood)(LIKELIHOOD_ARGUMENTS)
{
    const double *path = params + 7 + (params[6] > 0 ? 2 * t : 0);
    const V east = C(path[0]), north = C(path[1]), inverse = C(params[4]), at = C(y[0]), all_outside = C(-1);
    const V least = C(sizeof(T) == 4 ? -0x1p-126 : -0x1p-1022);
    const int turned = fabs(y[0]) <= 32.0;
    V sine = C(0), cosine = sine;
    if (turned) M(sincos)(at, &sine, &cosine);
    EACH_VECTOR
    {
        V dn = M(sub)(M(part)(x + n + j, count), north), de = M(sub)(M(part)(x + j, count), east), inside = all_outside;
        V away = inside;
        if (turned) {
            V along = M(fma)(cosine, de, M(mul)(sine, dn)), across = M(sub)(M(mul)(cosine, dn), M(mul)(sine, de));
            V low = M(abs)(across);
            /* strictly: on the sensor itself there is no quotient */
            inside = M(sub)(M(fma)(along, C(0x1.a827999fcef32p-2), least), low);
            away = M(atan_reduced)(M(div)(low, along));
        }
        if (PF_RARE(M(any_not_above)(inside))) {
            V bearing = M(wrapped)(M(sub)(at, M(atan2)(dn, de)));
            away = M(select_not_above)(inside, bearing, away);
        }
        M(put)(log_g + j, M(gaussian)(M(mul)(away, inverse), (T)params[5]), count);
    }
}

/* ---- RangeRobot: translation_sd, its share per m, heading_sd, per m, per rad, tag ahead and left, number of anchors,
 *      then for each: east, north, height squared, bias, 1 / sd, peak, floor (infinite: none), max range ------ */

static void F(robot_transition)(TRANSITION_ARGUMENTS)
{
    double distance = sqrt(u[0] * u[0] + u[1] * u[1]), turn = u[2], per_m = params[1] * distance;
    double h0 = params[2], h1 = params[3] * distance, h2 = params[4] * turn;
    const V shift_sd = C(sqrt(params[0] * params[0] + per_m * per_m)), turn_sd = C(sqrt(h0 * h0 + h1 * h1 + h2 * h2));
    const V dx = C(u[0]), dy = C(u[1]), dphi = C(turn);
    (void)t;
    EACH_VECTOR
    {
        V ahead = M(fma)(shift_sd, M(part)(noise + j, count), dx);
        V left = M(fma)(shift_sd, M(part)(noise + n + j, count), dy);
        V phi = M(part)(x + 2 * n + j, count), s, c;
        M(sincos)(phi, &s, &c);
        M(put)(x_new + j, M(sub)(M(fma)(c, ahead, M(part)(x + j, count)), M(mul)(s, left)), count);
        M(put)(x_new + n + j, M(fma)(c, left, M(fma)(s, ahead, M(part)(x + n + j, count))), count);
        phi = M(fma)(turn_sd, M(part)(noise + 2 * n + j, count), M(add)(phi, dphi));
        M(put)(x_new + 2 * n + j, M(wrapped)(phi), count);
    }
}
static void F(robot_likelihood)(LIKELIHOOD_ARGUMENTS)
{
    const V tag_ahead = C(params[5]), tag_left = C(params[6]);
    const int anchors = (int)params[7];
    (void)t;
    EACH_VECTOR
    {
        V s, c, total = C(0);
        M(sincos)(M(part)(x + 2 * n + j, count), &s, &c);
        V east = M(sub)(M(fma)(c, tag_ahead, M(part)(x + j, count)), M(mul)(s, tag_left));
        V north = M(fma)(c, tag_left, M(fma)(s, tag_ahead, M(part)(x + n + j, count)));
        for (int a = 0; a < anchors; a++) {
            const double *p = params + 8 + 8 * a;
            if (y[a] != y[a]) continue;
            V de = M(sub)(east, C(p[0])), dn = M(sub)(north, C(p[1]));
            V range = M(sqrt)(M(fma)(de, de, M(fma)(dn, dn, C(p[2]))));
            V z = M(mul)(M(sub)(M(sub)(C(y[a]), range), C(p[3])), C(p[4]));
            V near = M(gaussian)(z, (T)p[5]);
            if (p[6] > 1e300 || y[a] < 0.0 || y[a] > p[7]) {
                total = M(add)(total, near);
            } else {        /* log(exp(near) + exp(floor)) about the larger */
                V floor = C(p[6]), high = M(max)(near, floor), low = M(min)(near, floor);
                V ratio = M(exp)(M(sub)(low, high));
                total = M(add)(total, M(add)(M(log)(M(add)(ratio, C(1.0))), high));
            }
        }
        M(put)(log_g + j, total, count);
    }
    /* max and min above lose NaN: a particle that stands nowhere must not get the floor */
    for (int64_t j = 0; j < n; j++) {
        T east = x[j], north = x[n + j], phi = x[2 * n + j];
        int nowhere = (east != east) | (north != north) | !(phi - phi == (T)0);
        log_g[j] = nowhere ? (T)NAN : log_g[j];
    }
}

#undef C
#undef EACH_VECTOR
#undef AFTER
#undef TRANSITION_ARGUMENTS
#undef LIKELIHOOD_ARGUMENTS
#undef T
#undef V
#undef M
#undef F
#undef LANES
