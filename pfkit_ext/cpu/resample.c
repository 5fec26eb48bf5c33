/* Included by level.c once a SIMD level, after intlse.c. All results are exact integers; floats only
 * propose them: in quantize, where that is the definition, and in positions32, where an error bound says when they
 * cannot be trusted.
 *
 * Positions. E = floor((N C + r) / S) is wanted for every particle, and a 128-bit division each would cost more than all
 * the rest. With M = floor(2^64 N / S) and R = floor(2^64 r / S) the high word of C M + R is E or E - 1, because C M + R
 * falls short of 2^64 (N C + r) / S by less than C + 1 <= S + 1. It can be E - 1 only when the low word is within S + 1
 * of wrapping, which almost never happens; then the remainder N C + r - E S, which lies in [0, 2S) and so is right modulo
 * 2^64, decides exactly. Without that check equal weights would lose the identity.
 *
 * Stores. Each ancestor is written four times at its place and the place advances by its count: no branch on the count
 * unless it passes four. Near the end of the output, where four would not fit, it is written count times.
 */
#include <stdlib.h>

#include "resample.h"

#if defined(__GNUC__)
#define PF_RARE(x) __builtin_expect(!!(x), 0)
#else
#define PF_RARE(x) (x)
#endif

/* ---- sums ---------------------------------------------------------------------------------------------------------- */

static uint64_t resample_sum32(const uint32_t *w, size_t n)
{
    uint64_t S = 0;
    for (size_t j = 0; j < n; j++) S += w[j];
    return S;
}

static pf_u128 resample_sum64(const uint64_t *w, size_t n)
{
    pf_u128 S = u128_from64(0);
    for (size_t j = 0; j < n; j++) S = u128_add64(S, w[j]);
    return S;
}

/* ---- integer weights of float ones --------------------------------------------------------------------------------- */

/* Adding 2^52 to 0 <= v <= 2^52 rounds to the nearest integer, ties to even, and leaves it in the low 52 bits, above
 * which stands 0x433 (at 2^52 itself 0x434). */
PF_INLINE uint64_t rounded_bits(double v)
{
    double t = v + 0x1p52;
    uint64_t bits;
    memcpy(&bits, &t, sizeof bits);
    return bits;
}
PF_INLINE uint64_t round_to_u64(double v) { return rounded_bits(v) - 0x4330000000000000u; }

/* q_j = round(v_j / m 2147483647), each operation rounded, for 0 <= v_j <= m; `value`: v_j. Divisions would cost more than
 * all the rest. v_j (2147483647 / m) differs from this by less than a part in 2^50, so where products a part in 2^49
 * smaller and larger round to the same integer, that is it; else the batch is divided. */
#define QUANTIZE_BATCH 256
#define QUANTIZE(value, m, q)                                                                                          \
    {                                                                                                                  \
        const double ratio = 2147483647.0 / m, smaller = ratio * (1 - 0x1p-49), larger = ratio * (1 + 0x1p-49);        \
        for (size_t start = 0, stop; start < n; start = stop) {                                                        \
            uint64_t differ = !(m > 0x1p-980);                                                                         \
            stop = n - start < QUANTIZE_BATCH ? n : start + QUANTIZE_BATCH;                                            \
            for (size_t j = start; j < stop; j++) {                                                                    \
                const double v = (double)(value);                                                                      \
                const uint64_t low = rounded_bits(v * smaller), high = rounded_bits(v * larger);                       \
                differ |= low ^ high;                                                                                  \
                q[j] = (uint32_t)high;                                                                                 \
            }                                                                                                          \
            for (size_t j = start; PF_RARE(differ) && j < stop; j++)                                                   \
                q[j] = (uint32_t)rounded_bits((double)(value) / m * 2147483647.0);                                     \
        }                                                                                                              \
    }

#define QUANTIZE_DEFINE(F, T, NAN)                                                                                        \
    static ptrdiff_t quantize_check_##F(const T *w, size_t n, double *largest)                                         \
    {                                                                                                                  \
        F##x16 low = F##_set1(0), high = low;                                                                          \
        NAN nan = F##_nan_none();                                                                                      \
        size_t j = 0;                                                                                                  \
        for (; j < n; j += 16) {                                                                                       \
            const F##x16 v = j + 16 <= n ? F##_load(w + j) : F##_load_tail(w + j, n - j, 0);                           \
            nan = F##_nan_note(nan, v);                                                                                \
            low = F##_min(low, v);                                                                                     \
            high = F##_max(high, v);                                                                                   \
        }                                                                                                              \
        T lows[16];                                                                                                    \
        int negative = 0;                                                                                              \
        F##_store(lows, low);                                                                                          \
        for (int k = 0; k < 16; k++) negative |= lows[k] < 0;                                                          \
        *largest = (double)F##_fold_max(high);                                                                         \
        if (!F##_nan_any(nan) && !negative && !isinf(*largest)) return *largest > 0 ? -1 : (ptrdiff_t)n;               \
        for (j = 0; j < n; j++)                                                                                        \
            if (!(w[j] >= 0) || isinf(w[j])) break;                                                                    \
        return (ptrdiff_t)j;                                                                                           \
    }                                                                                                                  \
    static ptrdiff_t quantize32_##F(const T *w, size_t n, uint32_t *q)                                                 \
    {                                                                                                                  \
        double m = 1;                                                                                                  \
        ptrdiff_t bad = quantize_check_##F(w, n, &m);                                                                  \
        if (bad >= 0) return bad;                                                                                      \
        QUANTIZE(w[j], m, q)                                                                                           \
        return -1;                                                                                                     \
    }                                                                                                                  \
    static ptrdiff_t quantize64_##F(const T *w, size_t n, uint64_t *q)                                                 \
    {                                                                                                                  \
        double m = 1;                                                                                                  \
        ptrdiff_t bad = quantize_check_##F(w, n, &m);                                                                  \
        if (bad >= 0) return bad;                                                                                      \
        for (size_t j = 0; j < n; j++) q[j] = round_to_u64((double)w[j] / m * 0x1p52);                                 \
        return -1;                                                                                                     \
    }

QUANTIZE_DEFINE(f32, float, pf_nan32)
QUANTIZE_DEFINE(f64, double, pf_nan64)

/* What quantize32 gives for the weights w times `scale`, rounded to T, of which m > 0 is the largest. Returns the sum. */
#define QUANTIZE_SCALED(F, T)                                                                                          \
    static uint64_t quantize_scaled_##F(const T *w, size_t n, double scale, double m, uint32_t *q)                     \
    {                                                                                                                  \
        const T factor = (T)scale;                                                                                     \
        uint64_t sum = 0;                                                                                              \
        if (scale > FUSE_FAINT_##F) QUANTIZE(w[j] * factor, m, q)                                                      \
        else QUANTIZE((T)((double)w[j] * scale), m, q)                                                                 \
        for (size_t j = 0; j < n; j++) sum += q[j];                                                                    \
        return sum;                                                                                                    \
    }

QUANTIZE_SCALED(f32, float)
QUANTIZE_SCALED(f64, double)

/* ---- writing ancestors ---------------------------------------------------------------------------------------------- */

/* `fast` is how far a place may start for four stores to fit: N - 4, or negative if N < 4. */
PF_INLINE void emit(int64_t *out, uint64_t place, uint64_t end, int64_t fast, int64_t j)
{
    if (PF_RARE((int64_t)place > fast)) {
        for (; place < end; place++) out[place] = j;
        return;
    }
    for (int k = 0; k < 4; k++) out[place + (uint64_t)k] = j;
    if (PF_RARE(end - place > 4))
        for (place += 4; place < end; place++) out[place] = j;
}

/* ---- positions: 32-bit weights, S < 2^62 ----------------------------------------------------------------------------- */

typedef struct { uint64_t N, S, M, limit; } pf_ratio;

/* floor(2^64 a / b) for a < b. */
static uint64_t shifted_quotient(uint64_t a, uint64_t b)
{
    pf_u128 rem;
    return u128_lo(u128_div(u128_make(a, 0), u128_from64(b), &rem));
}

static pf_ratio ratio_make(uint64_t N, uint64_t S)
{
    pf_ratio p = {N, S, shifted_quotient(N, S), 0};
    p.limit = 0 - (S + 2);
    return p;
}

/* floor((N C + r) / S) with R = floor(2^64 r / S). */
PF_INLINE uint64_t ratio_position(pf_ratio p, uint64_t C, uint64_t r, uint64_t R)
{
    pf_u128 A = u128_add64(u128_mul64(C, p.M), R);
    uint64_t E = u128_hi(A);
    if (PF_RARE(u128_lo(A) >= p.limit)) E += (p.N * C + r) - E * p.S >= p.S;
    return E;
}

/* floor(N C / S), and the remainder. */
PF_INLINE uint64_t ratio_divide(pf_ratio p, uint64_t C, uint64_t *rem)
{
    uint64_t E = u128_hi(u128_mul64(C, p.M)), d = p.N * C - E * p.S, over = d >= p.S;
    *rem = d - (over ? p.S : 0);
    return E + over;
}

/* N >= S happens for hand-made weights only (a float weight becomes 2^31 - 1 at least): divide. */
static uint64_t slow_position(uint64_t N, pf_u128 S, pf_u128 C, pf_u128 r, pf_u128 *rem)
{
    return u128_lo(u128_div(u128_add(u128_mul_u64(C, N), r), S, rem));
}

static size_t stratified32(const uint32_t *w, size_t n, uint64_t S, uint64_t N, const uint64_t *u, int stride, int64_t *out)
{
    uint64_t C = 0, place = 0;
    size_t distinct = 0;
    const int64_t fast = (int64_t)N - 4;
    const int direct = N < S;
    pf_ratio p = {0, 0, 0, 0};
    if (direct) p = ratio_make(N, S);
    for (size_t j = 0; j < n && N; j++) {
        uint64_t rem, k;
        C += w[j];
        if (direct) {
            k = ratio_divide(p, C, &rem);
        } else {
            pf_u128 wide;
            k = slow_position(N, u128_from64(S), u128_from64(C), u128_from64(0), &wide);
            rem = u128_lo(wide);
        }
        /* at k = N the remainder is 0 and no draw can matter: the last one is read in its place */
        uint64_t at = k < N ? k : N - 1;
        uint64_t r = stride == 1 ? u128_hi(u128_mul64(u[at], S)) : u[2 * at + 1];
        uint64_t end = k + (rem + r >= S);
        distinct += end > place;
        emit(out, place, end, fast, (int64_t)j);
        place = end;
    }
    return distinct;
}

/* Positions for N up to 2^21 places, S < 2^52, many at once. v = C (N / S) + r / S in float64 is off by less than 2^-30:
 * its floor is right unless v is that close to an integer, which sends its batch to the exact arithmetic above. Sums
 * below 2^53 are exact in float64. */
#define POSITIONS_MAX ((uint64_t)1 << 21)
#define POSITIONS_BATCH 256
#define POSITIONS_ROUND 32

typedef struct {
    uint64_t N, S, r;
    double slope, offset;
} pf_positions;

#define POSITIONS_DOUBT 0x1p-30

static pf_positions positions_make(uint64_t N, uint64_t S, uint64_t r)
{
    pf_positions p = {N, S, r, (double)N / (double)S, (double)r / (double)S};
    return p;
}

/* Loops over a batch are plain, for compilers to vectorise: floor(v) as the nearest integer to v - 1/2, once a little
 * less and once a little more. Returns whether one differs. */
static int positions_propose(const pf_positions *p, const uint64_t *sums, size_t n, uint32_t *E)
{
    const double slope = p->slope, less = p->offset - 0.5 - POSITIONS_DOUBT, more = p->offset - 0.5 + POSITIONS_DOUBT;
    uint64_t differ = 0;
    for (size_t k = 0; k < n; k++) {
        uint64_t bits = sums[k] | 0x4330000000000000u, low_bits, high_bits;      /* read as a double: 2^52 + C */
        double C;
        memcpy(&C, &bits, sizeof C);
        double v = (C - 0x1p52) * slope, low = (v + less) + 0x1.8p52, high = (v + more) + 0x1.8p52;
        memcpy(&low_bits, &low, sizeof low);
        memcpy(&high_bits, &high, sizeof high);
        differ |= low_bits ^ high_bits;
        E[k] = (uint32_t)high_bits;
    }
    return differ != 0;
}

/* Sums of n consecutive particles' weights from the first weight of all, C being the sum before them; returns the last. */
static uint64_t positions_sums(const uint32_t *w, size_t n, uint64_t C, uint64_t *sums)
{
    size_t k = 0;
    C = running_sums(w, n, &k, C, sums);
    for (; k < n; k++) sums[k] = C += w[k];
    return C;
}

/* E_j of n consecutive particles with weights w, into E, which may be w; C: the sum of all weights before them. Returns
 * the sum after them. */
static uint64_t positions_ends(const pf_positions *p, const uint32_t *w, size_t n, uint64_t C, uint32_t *E)
{
    for (size_t start = 0; start < n; start += POSITIONS_BATCH) {
        uint64_t sums[POSITIONS_BATCH];
        const size_t count = n - start < POSITIONS_BATCH ? n - start : POSITIONS_BATCH;
        C = positions_sums(w + start, count, C, sums);
        if (PF_RARE(positions_propose(p, sums, count, E + start))) {
            const pf_ratio ratio = ratio_make(p->N, p->S);
            const uint64_t R = shifted_quotient(p->r, p->S);
            for (size_t k = 0; k < count; k++) E[start + k] = (uint32_t)ratio_position(ratio, sums[k], p->r, R);
        }
    }
    return C;
}

static uint64_t positions32(const pf_positions *p, uint32_t *w, size_t n, uint64_t C)
{
    return positions_ends(p, w, n, C, w);
}

/* The first j with E_j > place. */
static size_t positions_find(const uint32_t *E, size_t n, uint32_t place)
{
    size_t low = 0;
    while (n) {
        size_t half = n / 2;
        if (E[low + half] > place) {
            n = half;
        } else {
            low += half + 1;
            n -= half + 1;
        }
    }
    return low;
}

/* Ancestors of the places first .. first + count - 1, E being of n particles; `index` has room for 8 more. *from: the
 * first particle with E_j > first, and of the next place after the call. Returns how many ancestors begin here: their sum
 * over all places is the number of distinct ones. */
static size_t positions_expand(const uint32_t *PF_RESTRICT E, size_t n, size_t *from, uint32_t first, uint32_t count,
                               uint32_t *PF_RESTRICT index)
{
    size_t j = *from, begins = (j ? E[j - 1] : 0) == first;
    uint32_t place = 0, more = 0;
    while (j + POSITIONS_ROUND <= n && E[j + POSITIONS_ROUND - 1] - first < count) {
        const uint32_t *ends = E + j;
        uint32_t most = ends[0] - first - place;
        for (size_t k = 1; k < POSITIONS_ROUND; k++) most = ends[k] - ends[k - 1] > most ? ends[k] - ends[k - 1] : most;
        if (PF_RARE(most > 8)) break;
        for (size_t k = 0; k < POSITIONS_ROUND; k++) {
            uint32_t *to = index + place;               /* a pointer: sums of uint32_t might wrap, and spoil wide stores */
            for (int i = 0; i < 8; i++) to[i] = (uint32_t)(j + k);
            place = ends[k] - first;
        }
        j += POSITIONS_ROUND;
    }
    for (uint32_t end;; place = end, j++) {
        end = E[j] - first;
        uint32_t *to = index + place;
        for (int k = 0; k < 8; k++) to[k] = (uint32_t)j;
        if (PF_RARE(end - place > 8))
            for (uint32_t at = place + 8, stop = end < count ? end : count; at < stop; at += 8)
                for (int k = 0; k < 8; k++) index[at + (uint32_t)k] = (uint32_t)j;
        if (end >= count) {
            *from = j + (end == count);
            break;
        }
    }
    for (uint32_t k = 1; k < count; k++) more += index[k] != index[k - 1];
    return begins + more;
}

/* Ancestors of all places where the batches below cannot find them. */
static size_t systematic_one_by_one(const uint32_t *w, size_t n, uint64_t S, uint64_t N, uint64_t r, int64_t *out)
{
    uint64_t C = 0, place = 0, R = 0;
    size_t distinct = 0;
    const int64_t fast = (int64_t)N - 4;
    const int direct = N < S;
    pf_ratio p = {0, 0, 0, 0};
    if (direct) {
        p = ratio_make(N, S);
        R = shifted_quotient(r, S);
    }
    for (size_t j = 0; j < n; j++) {
        pf_u128 rem;
        C += w[j];
        uint64_t end = direct ? ratio_position(p, C, r, R)
                              : slow_position(N, u128_from64(S), u128_from64(C), u128_from64(r), &rem);
        distinct += end > place;
        emit(out, place, end, fast, (int64_t)j);
        place = end;
    }
    return distinct;
}

/* Of a batch of particles whose copies begin at `place` and end at E: how many have copies, and the most that one has. */
static size_t copies_count(const uint32_t *E, size_t n, uint32_t place, uint32_t *most)
{
    uint32_t some = E[0] != place, top = E[0] - place;
    for (size_t k = 1; k < n; k++) {
        const uint32_t copies = E[k] - E[k - 1];
        some += copies != 0;
        top = copies > top ? copies : top;
    }
    *most = top;
    return some;
}

/* The particles first, first + 1, .. of a batch, each at its places. `few`: none has more than four copies, and four
 * stores fit everywhere. */
static void copies_write(const uint32_t *PF_RESTRICT E, size_t n, int few, uint64_t place, uint64_t N, int64_t first,
                         int64_t *PF_RESTRICT out)
{
    const int64_t fast = (int64_t)N - 4;
    if (few) {
        for (size_t k = 0; k < n; k++) {
            int64_t *to = out + place;
            for (int i = 0; i < 4; i++) to[i] = first + (int64_t)k;
            place = E[k];
        }
        return;
    }
    for (size_t k = 0; k < n; k++) {
        emit(out, place, E[k], fast, first + (int64_t)k);
        place = E[k];
    }
}

/* Ancestors, and with d > 0 their states x (d, n) in moved (d, N), a batch of particles at a time. */
#define SYSTEMATIC_DEFINE(F, T)                                                                                        \
    static size_t systematic_move32_##F(const uint32_t *w, size_t n, uint64_t S, uint64_t N, uint64_t r, int64_t *out, \
                                        const T *x, size_t d, T *moved)                                                \
    {                                                                                                                  \
        uint64_t C = 0;                                                                                                \
        uint32_t place = 0;                                                                                            \
        size_t distinct = 0;                                                                                           \
        if (N >= S || N > POSITIONS_MAX || S >> 52) {                                                                  \
            distinct = systematic_one_by_one(w, n, S, N, r, out);                                                      \
            for (size_t i = 0; i < d; i++) take_i64_##F(x + i * n, n, out, N, moved + i * N);                          \
            return distinct;                                                                                           \
        }                                                                                                              \
        const pf_positions p = positions_make(N, S, r);                                                                \
        for (size_t start = 0; start < n; start += POSITIONS_BATCH) {                                                  \
            uint32_t E[POSITIONS_BATCH], most;                                                                         \
            const size_t count = n - start < POSITIONS_BATCH ? n - start : POSITIONS_BATCH;                            \
            C = positions_ends(&p, w + start, count, C, E);                                                            \
            distinct += copies_count(E, count, place, &most);                                                          \
            const int few = most <= 4 && (uint64_t)E[count - 1] + 4 <= N;                                              \
            copies_write(E, count, few, place, N, (int64_t)start, out);                                                \
            for (size_t i = 0; i < d; i++)                                                                             \
                take_i64_##F(x + i * n, n, out + place, E[count - 1] - place, moved + i * N + place);                  \
            place = E[count - 1];                                                                                      \
        }                                                                                                              \
        return distinct;                                                                                               \
    }

SYSTEMATIC_DEFINE(f32, float)
SYSTEMATIC_DEFINE(f64, double)

static size_t systematic32(const uint32_t *w, size_t n, uint64_t S, uint64_t N, uint64_t r, int64_t *out)
{
    return systematic_move32_f64(w, n, S, N, r, out, NULL, 0, NULL);
}

/* ---- positions: 64-bit weights ---------------------------------------------------------------------------------------- */

/* C and S lose their k lowest bits so that 52 of S remain, and S is rounded up: with s = S / 2^k >= 2^51 the high word of
 * (C >> k) M + R falls short of the exact position by less than 2^64 (2N + 2) / s + 2^52 + 1 < 2^54 + N 2^14 + 2^15. */
typedef struct { pf_u128 S; uint64_t N, M, limit; int k, direct; } pf_wide_ratio;

static pf_wide_ratio wide_make(uint64_t N, pf_u128 S)
{
    pf_wide_ratio p = {S, N, 0, 0, 0, 0};
    int bits = u128_bits(S);
    if (bits >= 52 && N < (uint64_t)1 << 40) {
        p.direct = 1;
        p.k = bits - 52;
        p.M = shifted_quotient(N, u128_lo(u128_shr(S, p.k)) + 1);
        p.limit = 0 - (((uint64_t)1 << 55) + (N << 15));
    }
    return p;
}

PF_INLINE uint64_t wide_estimate(const pf_wide_ratio *p, pf_u128 C, uint64_t R, uint64_t *low)
{
    pf_u128 A = u128_add64(u128_mul64(u128_lo(u128_shr(C, p->k)), p->M), R);
    *low = u128_lo(A);
    return u128_hi(A);
}

/* floor((N C + r) / S) with R <= 2^64 r / S to within the bound above. */
PF_INLINE uint64_t wide_position(const pf_wide_ratio *p, pf_u128 C, pf_u128 r, uint64_t R)
{
    uint64_t low, E;
    if (PF_RARE(!p->direct)) {
        pf_u128 rem;
        return slow_position(p->N, p->S, C, r, &rem);
    }
    E = wide_estimate(p, C, R, &low);
    if (PF_RARE(low >= p->limit)) {
        pf_u128 d = u128_sub(u128_add(u128_mul_u64(C, p->N), r), u128_mul_u64(p->S, E));
        E += !u128_lt(d, p->S);
    }
    return E;
}

/* floor(N C / S), and the remainder. */
PF_INLINE uint64_t wide_divide(const pf_wide_ratio *p, pf_u128 C, pf_u128 *rem)
{
    uint64_t low, E;
    if (PF_RARE(!p->direct)) return slow_position(p->N, p->S, C, u128_from64(0), rem);
    E = wide_estimate(p, C, 0, &low);
    *rem = u128_sub(u128_mul_u64(C, p->N), u128_mul_u64(p->S, E));
    if (!u128_lt(*rem, p->S)) {
        *rem = u128_sub(*rem, p->S);
        E++;
    }
    return E;
}

static size_t systematic64(const uint64_t *w, size_t n, pf_u128 S, uint64_t N, pf_u128 r, int64_t *out)
{
    const pf_wide_ratio p = wide_make(N, S);
    const uint64_t R = p.direct ? shifted_quotient(u128_lo(u128_shr(r, p.k)), u128_lo(u128_shr(S, p.k)) + 1) : 0;
    const int64_t fast = (int64_t)N - 4;
    pf_u128 C = u128_from64(0);
    uint64_t place = 0;
    size_t distinct = 0;
    for (size_t j = 0; j < n; j++) {
        C = u128_add64(C, w[j]);
        uint64_t end = wide_position(&p, C, r, R);
        distinct += end > place;
        emit(out, place, end, fast, (int64_t)j);
        place = end;
    }
    return distinct;
}

/* (U S) >> 64 for a 128-bit S. */
PF_INLINE pf_u128 scaled_draw(uint64_t U, pf_u128 S)
{
    return u128_add64(u128_mul64(u128_hi(S), U), u128_hi(u128_mul64(u128_lo(S), U)));
}

static size_t stratified64(const uint64_t *w, size_t n, pf_u128 S, uint64_t N, const uint64_t *u, int stride, int64_t *out)
{
    const pf_wide_ratio p = wide_make(N, S);
    const int64_t fast = (int64_t)N - 4;
    pf_u128 C = u128_from64(0);
    uint64_t place = 0;
    size_t distinct = 0;
    for (size_t j = 0; j < n && N; j++) {
        pf_u128 rem;
        C = u128_add64(C, w[j]);
        uint64_t k = wide_divide(&p, C, &rem), at = k < N ? k : N - 1;
        pf_u128 r = stride == 1 ? scaled_draw(u[at], S) : u128_make(u[2 * at], u[2 * at + 1]);
        uint64_t end = k + !u128_lt(u128_add(rem, r), S);
        distinct += end > place;
        emit(out, place, end, fast, (int64_t)j);
        place = end;
    }
    return distinct;
}

/* ---- independent draws: a guide table into the cumulative sums ------------------------------------------------------- */

/* first[b] = first j whose C_j falls in bucket b or above; buckets are n equal parts of [0, S), so a draw scans one
 * C_j on average (Chen and Asau 1974). Any monotone bucket function gives the exact answer. */

static int multinomial32(const uint32_t *w, size_t n, uint64_t S, size_t N, const uint64_t *u, int64_t *out)
{
    const uint64_t buckets = n < S ? n : S - 1, M = shifted_quotient(buckets, S);
    uint64_t *C = malloc(n * sizeof *C), sum = 0, b = 0;
    uint32_t *first = malloc((size_t)(buckets + 1) * sizeof *first);
    if (!C || !first) {
        free(C);
        free(first);
        return -1;
    }
    for (size_t j = 0; j < n; j++) {
        C[j] = sum += w[j];
        for (uint64_t last = u128_hi(u128_mul64(sum, M)); b <= last; b++) first[b] = (uint32_t)j;
    }
    for (size_t k = 0; k < N; k++) {
        uint64_t t = u128_hi(u128_mul64(u[k], S));
        size_t j = first[u128_hi(u128_mul64(t, M))];
        while (C[j] <= t) j++;
        out[k] = (int64_t)j;
    }
    free(C);
    free(first);
    return 0;
}

/* Draws from 128-bit cumulative sums C, the last of which is S > 0. */
static int draw_wide(const pf_u128 *C, size_t n, size_t N, const uint64_t *u, int64_t *out)
{
    const pf_u128 S = C[n - 1];
    const int k = u128_bits(S) > 52 ? u128_bits(S) - 52 : 0;
    const uint64_t top = u128_lo(u128_shr(S, k)) + 1, buckets = n < top ? n : top - 1;
    const uint64_t M = shifted_quotient(buckets, top);
    uint64_t b = 0;
    uint32_t *first = malloc((size_t)(buckets + 1) * sizeof *first);
    if (!first) return -1;
    for (size_t j = 0; j < n; j++)
        for (uint64_t last = u128_hi(u128_mul64(u128_lo(u128_shr(C[j], k)), M)); b <= last; b++) first[b] = (uint32_t)j;
    for (size_t i = 0; i < N; i++) {
        pf_u128 t = scaled_draw(u[i], S);
        size_t j = first[u128_hi(u128_mul64(u128_lo(u128_shr(t, k)), M))];
        while (!u128_lt(t, C[j])) j++;
        out[i] = (int64_t)j;
    }
    free(first);
    return 0;
}

static int multinomial64(const uint64_t *w, size_t n, pf_u128 S, size_t N, const uint64_t *u, int64_t *out)
{
    pf_u128 *C = malloc(n * sizeof *C), sum = u128_from64(0);
    (void)S;
    if (!C) return -1;
    for (size_t j = 0; j < n; j++) C[j] = sum = u128_add64(sum, w[j]);
    int status = draw_wide(C, n, N, u, out);
    free(C);
    return status;
}

static uint64_t residual_left32(const uint32_t *w, size_t n, uint64_t S, uint64_t N)
{
    uint64_t sure = 0, low;
    pf_u128 rem;
    if (N < S) {
        const pf_ratio p = ratio_make(N, S);
        for (size_t j = 0; j < n; j++) sure += ratio_divide(p, w[j], &low);
    } else {
        for (size_t j = 0; j < n; j++)
            sure += slow_position(N, u128_from64(S), u128_from64(w[j]), u128_from64(0), &rem);
    }
    return N - sure;
}

static uint64_t residual_left64(const uint64_t *w, size_t n, pf_u128 S, uint64_t N)
{
    const pf_wide_ratio p = wide_make(N, S);
    uint64_t sure = 0;
    pf_u128 rem;
    for (size_t j = 0; j < n; j++) sure += wide_divide(&p, u128_from64(w[j]), &rem);
    return N - sure;
}

/* The remainders sum to (draws left) S, beyond 64 bits: their cumulative sums take 128. */
#define RESIDUAL_BODY(divide)                                                                                          \
    pf_u128 *C = malloc(n * sizeof *C), sum = u128_from64(0);                                                          \
    uint64_t place = 0;                                                                                                \
    int status = 0;                                                                                                    \
    const int64_t fast = (int64_t)N - 4;                                                                               \
    if (!C) return -1;                                                                                                 \
    for (size_t j = 0; j < n; j++) {                                                                                   \
        pf_u128 rem;                                                                                                   \
        uint64_t end;                                                                                                  \
        divide;                                                                                                        \
        emit(out, place, end, fast, (int64_t)j);                                                                       \
        place = end;                                                                                                   \
        C[j] = sum = u128_add(sum, rem);                                                                               \
    }                                                                                                                  \
    if (place < N) status = draw_wide(C, n, (size_t)(N - place), u, out + place);                                      \
    free(C);                                                                                                           \
    return status;

static int residual32(const uint32_t *w, size_t n, uint64_t S, uint64_t N, const uint64_t *u, int64_t *out)
{
    if (N < S) {
        const pf_ratio p = ratio_make(N, S);
        RESIDUAL_BODY({
            uint64_t low;
            end = place + ratio_divide(p, w[j], &low);
            rem = u128_from64(low);
        })
    }
    RESIDUAL_BODY(end = place + slow_position(N, u128_from64(S), u128_from64(w[j]), u128_from64(0), &rem))
}

static int residual64(const uint64_t *w, size_t n, pf_u128 S, uint64_t N, const uint64_t *u, int64_t *out)
{
    const pf_wide_ratio p = wide_make(N, S);
    RESIDUAL_BODY(end = place + wide_divide(&p, u128_from64(w[j]), &rem))
}

/* ---- moving particles ------------------------------------------------------------------------------------------------- */

static int64_t resample_distinct(const int64_t *a, size_t N, uint64_t n)
{
    if (N == 0) return 0;
    /* negative indices are the largest of all when unsigned: one comparison finds both kinds of fault */
    uint64_t outside = (uint64_t)a[0] >= n, back = 0, moves = 0;
    for (size_t k = 1; k < N; k++) {
        outside |= (uint64_t)a[k] >= n;
        back |= a[k] < a[k - 1];
        moves += a[k] != a[k - 1];
    }
    return outside ? -1 : back ? -2 : (int64_t)moves + 1;
}

static void gather_f32(const float *x, size_t n, const int64_t *ancestors, size_t N, float *out)
{
    take_i64_f32(x, n, ancestors, N, out);
}
static void gather_f64(const double *x, size_t n, const int64_t *ancestors, size_t N, double *out)
{
    take_i64_f64(x, n, ancestors, N, out);
}

#define PF_RESAMPLE_TABLE                                                                                              \
    { resample_sum32, resample_sum64, quantize32_f64, quantize64_f64, quantize32_f32, quantize64_f32,                  \
      systematic32, systematic64, stratified32, stratified64, multinomial32, multinomial64, residual_left32,           \
      residual_left64, residual32, residual64, resample_distinct, gather_f32, gather_f64,                              \
      systematic_move32_f32, systematic_move32_f64 }
