/* Prints the results of every operation of u128.h over a fixed stream of operands; built with and without __int128. */
#include <inttypes.h>
#include <stdio.h>

#include "u128.h"

static uint64_t state = 0x9E3779B97F4A7C15ull;
static uint64_t next(void)
{
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    int cut = (int)(z & 63u);                           /* all widths, and the extremes */
    if ((z >> 6) % 8 == 0) return (z & 1u) ? ~0ull : 0;
    return z >> cut;
}
static void show(pf_u128 a) { printf("%016" PRIx64 "%016" PRIx64 "\n", u128_hi(a), u128_lo(a)); }

int main(void)
{
    for (int t = 0; t < 4000; t++) {
        uint64_t w[6];
        for (int j = 0; j < 6; j++) w[j] = next();
        pf_u128 a = u128_make(w[0], w[1]), b = u128_make(w[2], w[3]), rem;
        uint64_t c = w[4];
        int k = (int)(w[5] % 130);
        show(u128_add(a, b));
        show(u128_sub(a, b));
        show(u128_add64(a, c));
        show(u128_mul64(u128_lo(a), c));
        show(u128_mul_u64(a, c));
        show(u128_shl(a, k));
        show(u128_shr(a, k));
        printf("%d %d %d %a\n", u128_lt(a, b), u128_bits(a), u128_is_zero(a), u128_to_double(a));
        if (!u128_is_zero(b)) {
            show(u128_div(a, b, &rem));
            show(rem);
        }
        pf_u192 wide = {c, a};
        u192_add(&wide, b);
        printf("%016" PRIx64 " ", wide.top);
        show(wide.low);
    }
    return 0;
}
