/* Compares every SIMD level this processor can run with the portable one, bit for bit, without Python: for
 * cross-compiled targets (`make aarch64` runs it under an emulator). Prints the levels compared and a digest of the
 * results, which is the same on every machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "level.h"

#define MOST 20000

static uint64_t state = 1;
static double uniform(void)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(state >> 11) * 0x1p-53;
}
static int failures = 0;
static uint64_t digest = 0xcbf29ce484222325ull;      /* FNV-1a of every result: equal across machines, too */
static void same(const void *a, const void *b, size_t bytes, const char *what, size_t n)
{
    const unsigned char *c = b;
    for (size_t k = 0; k < bytes; k++) digest = (digest ^ c[k]) * 0x100000001b3ull;
    if (memcmp(a, b, bytes)) {
        failures++;
        printf("differs: %s at n = %zu\n", what, n);
    }
}

static void compare(const pf_level *p, const pf_level *q, const double *x, size_t n)
{
    static float f[MOST];
    static float F1[MOST], F2[MOST];
    static double D1[MOST], D2[MOST];
    static uint32_t w1[MOST], w2[MOST];
    static uint64_t v1[MOST], v2[MOST];
    pf_norm a, b;
    for (size_t k = 0; k < n; k++) f[k] = (float)x[k];
    float mf = p->intlse.max_f32(f, n), mf2 = q->intlse.max_f32(f, n);
    double m = p->intlse.max_f64(x, n), m2 = q->intlse.max_f64(x, n);
    same(&mf, &mf2, sizeof mf, "max_f32", n);
    same(&m, &m2, sizeof m, "max_f64", n);
    p->intlse.rows_f32(f, 1, n, n, F1);
    q->intlse.rows_f32(f, 1, n, n, F2);
    same(F1, F2, sizeof *F1, "int rows_f32", n);
    p->intlse.rows_f64(x, 1, n, n, D1);
    q->intlse.rows_f64(x, 1, n, n, D2);
    same(D1, D2, sizeof *D1, "int rows_f64", n);
    p->fuselse.rows_f32(f, 1, n, n, F1);
    q->fuselse.rows_f32(f, 1, n, n, F2);
    same(F1, F2, sizeof *F1, "fuse rows_f32", n);
    p->fuselse.rows_f64(x, 1, n, n, D1);
    q->fuselse.rows_f64(x, 1, n, n, D2);
    same(D1, D2, sizeof *D1, "fuse rows_f64", n);
    if (n >= 64) {      /* as short rows that overlap */
        p->fuselse.rows_f32(f, n / 3, 9, 2, F1);
        q->fuselse.rows_f32(f, n / 3, 9, 2, F2);
        same(F1, F2, n / 3 * sizeof *F1, "fuse short rows_f32", n);
        p->fuselse.rows_f64(x, n / 3, 17, 2, D1);
        q->fuselse.rows_f64(x, n / 3, 17, 2, D2);
        same(D1, D2, n / 3 * sizeof *D1, "fuse short rows_f64", n);
    }
    pf_fuse_state s1 = p->fuselse.state_f64(x, n), s2 = q->fuselse.state_f64(x, n);
    same(&s1, &s2, sizeof s1, "fuse state_f64", n);
    pf_fuse_norm g, h;
    float block32[(MOST + PF_FUSE_BLOCK - 1) / PF_FUSE_BLOCK];
    double block64[(MOST + PF_FUSE_BLOCK - 1) / PF_FUSE_BLOCK];
    p->fuselse.normalize_f32(f, n, F1, block32, &g);
    q->fuselse.normalize_f32(f, n, F2, block32, &h);
    same(F1, F2, n * sizeof *F1, "fuse normalize_f32", n);
    same(&g, &h, sizeof g, "fuse normalize_f32 sums", n);
    p->fuselse.normalize_f64(x, n, D1, block64, &g);
    q->fuselse.normalize_f64(x, n, D2, block64, &h);
    same(D1, D2, n * sizeof *D1, "fuse normalize_f64", n);
    same(&g, &h, sizeof g, "fuse normalize_f64 sums", n);
    p->fuselse.running_f32(f, n, F1);
    q->fuselse.running_f32(f, n, F2);
    same(F1, F2, n * sizeof *F1, "fuse running_f32", n);
    p->fuselse.running_f64(x, n, D1);
    q->fuselse.running_f64(x, n, D2);
    same(D1, D2, n * sizeof *D1, "fuse running_f64", n);
    p->pairwise.rows_f32(f, 1, n, n, F1);
    q->pairwise.rows_f32(f, 1, n, n, F2);
    same(F1, F2, sizeof *F1, "pairwise rows_f32", n);
    p->pairwise.rows_f64(x, 1, n, n, D1);
    q->pairwise.rows_f64(x, 1, n, n, D2);
    same(D1, D2, sizeof *D1, "pairwise rows_f64", n);
    if (!isfinite(m)) return;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    p->weights.int32_f32(f, n, mf, w1, &a);
    q->weights.int32_f32(f, n, mf, w2, &b);
    same(w1, w2, n * sizeof *w1, "int32_f32", n);
    same(&a, &b, sizeof a, "int32_f32 sums", n);
    p->weights.scale32_f32(w1, n, a.scale, F1);
    q->weights.scale32_f32(w1, n, a.scale, F2);
    same(F1, F2, n * sizeof *F1, "scale32_f32", n);
    p->weights.int32_f64(x, n, m, w1, &a);
    q->weights.int32_f64(x, n, m, w2, &b);
    same(w1, w2, n * sizeof *w1, "int32_f64", n);
    same(&a, &b, sizeof a, "int32_f64 sums", n);
    p->weights.scale32_f64(w1, n, a.scale, D1);
    q->weights.scale32_f64(w1, n, a.scale, D2);
    same(D1, D2, n * sizeof *D1, "scale32_f64", n);
    p->weights.int64_f32(f, n, mf, v1, &a);
    q->weights.int64_f32(f, n, mf, v2, &b);
    same(v1, v2, n * sizeof *v1, "int64_f32", n);
    same(&a, &b, sizeof a, "int64_f32 sums", n);
    p->weights.int64_f64(x, n, m, v1, &a);
    q->weights.int64_f64(x, n, m, v2, &b);
    same(v1, v2, n * sizeof *v1, "int64_f64", n);
    same(&a, &b, sizeof a, "int64_f64 sums", n);
}

int main(void)
{
    static double x[MOST];
    static const size_t sizes[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 48, 100, 1000, 4095, 4096, 4097, 12345, MOST};
    static const double spreads[] = {0.0, 1e-3, 1.0, 25.0, 300.0, 1e5};
    int count;
    const pf_level **levels = pf_levels(&count);
    for (int l = 0; l < count; l++) printf("%s%s", l ? ", " : "levels: ", levels[l]->name);
    puts("");
    for (int l = 0; l < count; l++) {
        state = 1;
        digest = 0xcbf29ce484222325ull;
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t t = 0; t < sizeof spreads / sizeof *spreads; t++)
                for (int special = 0; special < 4; special++) {
                    size_t n = sizes[s];
                    for (size_t k = 0; k < n; k++) x[k] = spreads[t] * (uniform() + uniform() - 1.0) - 3.0;
                    size_t at = (size_t)(uniform() * (double)n);
                    if (special == 1) x[at] = -INFINITY;
                    if (special == 2) x[at] = NAN;
                    if (special == 3) x[at] = INFINITY;
                    compare(levels[l], levels[count - 1], x, n);
                }
    }
    printf("digest %016llx\n%d differences\n", (unsigned long long)digest, failures);
    return failures != 0;
}
