/* Prints, for each SIMD level of this processor, a digest of random numbers and of whole compiled filters on three
 * threads: one line a level, all digests equal, on any machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "level.h"

static uint64_t digest;

static void eat(const void *data, size_t bytes)
{
    const unsigned char *b = (const unsigned char *)data;
    for (size_t k = 0; k < bytes; k++) digest = (digest ^ b[k]) * 1099511628211ull;
}

static void numbers(const pf_level *level)
{
    static double d[3000];
    static float f[3000];
    static uint64_t q[3000];
    const pf_random_stream s = {99, 3};
    for (size_t n = 1; n < 3000; n += 997) {
        level->random.normal_f64(s, 7, n, d);
        eat(d, n * 8);
        level->random.uniform_f64(s, 7, n, d);
        eat(d, n * 8);
        level->random.exponential_f64(s, 7, n, d);
        eat(d, n * 8);
        level->random.normal_f32(s, 7, n, f);
        eat(f, n * 4);
        level->random.uniform_f32(s, 7, n, f);
        eat(f, n * 4);
        level->random.exponential_f32(s, 7, n, f);
        eat(f, n * 4);
        level->random.bits(s, 7, n, q);
        eat(q, n * 8);
    }
}

enum { STEPS = 12, N = 1100 };

static void filter(const pf_level *level, int volatility, int single, int kind)
{
    double params[4] = {volatility ? -0.05 : 1.0, volatility ? 0.95 : 1.25, volatility ? 0.3 : -0.7,
                        -0.9189385332046727};
    double y[STEPS], increment[STEPS], ess[STEPS];
    uint8_t resampled[STEPS];
    int64_t unique[STEPS];
    pf_filter f;
    memset(&f, 0, sizeof f);
    for (int k = 0; k < STEPS; k++) y[k] = k == 5 ? NAN : 0.3 * k - 1;
    f.transition_f64 = level->models[volatility].transition_f64;
    f.transition_f32 = level->models[volatility].transition_f32;
    f.likelihood_f64 = level->models[volatility].likelihood_f64;
    f.likelihood_f32 = level->models[volatility].likelihood_f32;
    f.params = params;
    f.d = f.noise_dim = f.y_dim = 1;
    f.single = single;
    f.kind = kind;
    f.n = N;
    f.log_n = 7.003065458786462;
    f.resample_below = N / 2.0;
    f.key = 5;
    f.stream = 77;
    f.x = calloc(N, 8);
    f.x_next = calloc(N, 8);
    f.log_w = calloc(N, 8);
    f.joint = calloc(N, 8);
    f.w = calloc(N, 8);
    f.w_next = calloc(N, 8);
    f.ancestors = calloc(N, 8);
    f.ints = calloc(N, 4);
    f.equal = f.from_equal = 1;
    f.ess = N;
    f.increment = increment;
    f.ess_out = ess;
    f.resampled_out = resampled;
    f.unique_out = unique;
    f.y = y;
    size_t room = (level->step.scratch(1, 1, single, N, 0) + 4095) / 4096 * 4096;
    char *scratch = (char *)aligned_alloc(64, 3 * room);
    level->step.run(&f, 1, STEPS, 3, scratch, room);
    eat(increment, sizeof increment);
    eat(ess, sizeof ess);
    eat(unique, sizeof unique);
    eat(f.x, N * (single ? 4u : 8u));
    eat(f.w, N * (single ? 4u : 8u));
}

int main(void)
{
    int count;
    const pf_level **levels = pf_levels(&count);
    for (int l = 0; l < count; l++) {
        digest = 1469598103934665603ull;
        numbers(levels[l]);
        for (int k = 0; k < 8; k++) filter(levels[l], k >> 2, (k >> 1) & 1, k & 1);
        printf("%s %016llx\n", levels[l]->name, (unsigned long long)digest);
    }
    return 0;
}
