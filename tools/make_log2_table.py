"""Writes pfkit_ext/cpu/log2_table.h, for the fast path of pf_log2_fixed. Needs mpmath."""

from pathlib import Path

import mpmath

mpmath.mp.prec = 200
rows = []
for j in range(128):
    r = round(512 / (1 + (j + 0.5) / 128))
    rows.append(f"    {{{r}, 0x{int(mpmath.nint(-mpmath.log(mpmath.mpf(r) / 512, 2) * 2**63)):016x}ull}},")
coefficients = ", ".join(f"{int(mpmath.nint(mpmath.mpf(2) ** 62 / k))}ll" for k in range(1, 8))
log2e = int(mpmath.nint(2**62 / mpmath.log(2)))
text = (
    f"""\
/* Written by tools/make_log2_table.py. r / 512 is near 1 / (1 + (j + 1/2) / 128); the second number is
 * -log2(r / 512) in Q0.63. */
#ifndef PF_LOG2_TABLE_H
#define PF_LOG2_TABLE_H

#include <stdint.h>

#define PF_LOG2E_Q62 {log2e}ll
static const int64_t pf_log_series[7] = {{{coefficients}}};      /* 1 / k in Q1.62 */
static const struct {{ uint64_t r, log2; }} pf_log2_table[128] = {{
"""
    + "\n".join(rows)
    + "\n};\n\n#endif\n"
)
Path(__file__).parents[1].joinpath("pfkit_ext/cpu/log2_table.h").write_text(text)
