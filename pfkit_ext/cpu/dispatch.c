/* Which compiled levels this processor and its operating system can run. */
#include "level.h"

extern const pf_level pf_level_portable;

#if defined(PF_X86)
extern const pf_level pf_level_avx2, pf_level_avx512;
#if defined(_MSC_VER)
#include <immintrin.h>
#include <intrin.h>
static void features(int *avx2, int *avx512)
{
    int r[4];
    __cpuidex(r, 1, 0);
    int fma = (r[2] >> 12) & 1, osxsave = (r[2] >> 27) & 1;
    unsigned long long state = osxsave ? _xgetbv(0) : 0;
    __cpuidex(r, 7, 0);
    unsigned ebx = (unsigned)r[1];
    const unsigned f_dq_bw_vl = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);
    *avx2 = fma && (state & 6) == 6 && ((ebx >> 5) & 1) && ((ebx >> 8) & 1);
    *avx512 = *avx2 && (state & 0xe6) == 0xe6 && (ebx & f_dq_bw_vl) == f_dq_bw_vl;
}
#else
static void features(int *avx2, int *avx512)
{
    __builtin_cpu_init();
    *avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    *avx512 = *avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif
#elif defined(PF_ARM64)
extern const pf_level pf_level_neon;
#endif

const pf_level **pf_levels(int *count)
{
    static const pf_level *found[4];
    int n = 0;
#if defined(PF_X86)
    int avx2, avx512;
    features(&avx2, &avx512);
    if (avx512) found[n++] = &pf_level_avx512;
    if (avx2) found[n++] = &pf_level_avx2;
#elif defined(PF_ARM64)
    found[n++] = &pf_level_neon;
#endif
    found[n++] = &pf_level_portable;
    *count = n;
    return found;
}
