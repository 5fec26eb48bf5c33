"""The bits of the integer kernel "int", as plain NumPy. Slow, exact, the arbiter for every other
implementation.

logsumexp_int(x)            value, nats
normalize_int(x)            integer weights, their sum S, log_norm, ess, float weights
offset(S, u=, U=)           the integer offset 0 <= r < S from a caller's uniform or from 64 random bits
ancestors_int(w, n_out, r)  systematic (one r) and stratified (n_out of them) ancestors
multinomial_int, residual_int   from 64-bit draws
quantize(weights)           integer weights of resample() from float ones
"""

import numpy as np

SCALE_F32 = np.float32(-94548.4609375)  # -65536 * log2(e), rounded to float32
SCALE_F64 = -94548.4621996991
LN2 = 0.6931471805599453


def exponent_index(x, m):
    """Q16.16 index i >= 0 of -(x - m) * log2(e): two IEEE operations in x's dtype, no FMA, half to even."""
    scale = SCALE_F32 if x.dtype == np.float32 else SCALE_F64
    with np.errstate(invalid="ignore", over="ignore"):
        v = (x - m) * scale
    return np.rint(np.minimum(v, x.dtype.type(64 * 65536))).astype(np.uint32)


def deficit(F):
    """About 2**17 * (1 - 2**-f) for f = F / 65536, by four 16-bit multiplications; exact at F = 0."""
    F = F.astype(np.uint64)
    p = (F * ((65536 - F) & 0xFFFF)) >> np.uint64(16)
    d = (F * (3030 - ((F * 439) >> np.uint64(16)))) >> np.uint64(16)
    return F + ((p * (12650 - d) + 0x4000) >> np.uint64(15))


def weights32(i):
    """Rounded weights for resampling and ESS: 2**31 - 1 at i = 0."""
    s, D = (i >> np.uint32(16)).astype(np.uint64), deficit(i & np.uint32(0xFFFF))
    r = np.where(
        s > 31, np.uint64(0), (np.uint64(0xFFFFFFFE) - (D << np.uint64(15))) >> np.minimum(s, np.uint64(31))
    )
    return ((r + np.uint64(1)) >> np.uint64(1)).astype(np.uint32)


def weights64(i):
    """Weights for the log-sum: 2**52 at i = 0, truncated."""
    s, D = (i >> np.uint32(16)).astype(np.uint64), deficit(i & np.uint32(0xFFFF))
    M = (np.uint64(1 << 20) - (D << np.uint64(3))) << np.uint64(32)
    return np.where(s > 63, np.uint64(0), M >> np.minimum(s, np.uint64(63)))


def log2_fixed(T):
    """log2 of a positive integer below 2**128 in Q7.48, by 48 truncated squarings of the leading 64 bits."""
    e = T.bit_length() - 1
    y = (T << 63) >> e if e <= 63 else T >> (e - 63)
    out = e << 48
    for k in range(47, -1, -1):
        y = (y * y) >> 63
        if y >> 64:
            y >>= 1
            out |= 1 << k
    return out


def log_total(T, m, dtype):
    """m + ln(T / 2**52): the fixed-point log2 as float64, times LN2, plus m, then one rounding to dtype."""
    return np.dtype(dtype).type(float(m) + (log2_fixed(T) - (52 << 48)) * 2.0**-48 * LN2)


def _maximum(x):
    x = np.asarray(x).reshape(-1)
    x = x.astype(
        np.float32 if x.dtype.kind == "f" and x.dtype.itemsize <= 4 else np.float64, copy=False
    )  # float16: exact
    if np.isnan(x).any():
        return x, x.dtype.type("nan")
    return x, (x.max() if x.size else x.dtype.type("-inf"))


def logsumexp_int(x):
    x, m = _maximum(x)
    if not np.isfinite(m):
        return m
    return log_total(sum(int(w) for w in weights64(exponent_index(x, m))), m, x.dtype)


def normalize_int(x):
    """w (uint32; uint64 past 2**20 elements of the whole normalisation), S, log_norm, ess, W in x's dtype."""
    x, m = _maximum(x)
    i = exponent_index(x, m)
    w = weights32(i) if x.size <= 1 << 20 else weights64(i)
    S, Q = sum(map(int, w)), sum(int(v) ** 2 for v in w)  # Q passes 2**128 beyond n = 2**24: 192 bits
    return w, S, logsumexp_int(x), S * S / Q, (w.astype(np.float64) * (1.0 / S)).astype(x.dtype)


def offset(S, u=None, U=None):
    """r from a caller's u in [0, 1) (ancestor k = first j with C_j / S > (k + u) / N), or from 64 bits U."""
    return S - 1 - min(int(float(u) * float(S)), S - 1) if U is None else (U * S) >> 64


def ancestors_int(w, n_out, r):
    """Systematic: r an integer in [0, S). Stratified: r a sequence of n_out such integers, one a stratum."""
    C, ends = 0, []
    S = sum(map(int, w))
    for v in w:
        C += int(v)
        k = n_out * C // S  # the stratum C falls in; k = n_out at the end: no draw is read
        ends.append((n_out * C + (r if np.isscalar(r) else (r[k] if k < n_out else 0))) // S)
    return np.repeat(np.arange(len(w)), np.diff(ends, prepend=0))


def quantize(weights):
    """Integer weights of resample(): float64, divided first so that subnormal or huge weights are safe."""
    a = np.asarray(weights, np.float64) / np.max(weights)
    return np.rint(a * (2**31 - 1 if a.size <= 1 << 20 else 2**52)).astype(np.uint64)


def multinomial_int(w, draws):
    """Ancestor of each 64-bit draw U: the first j with C_j > (U * S) >> 64."""
    C = np.cumsum(np.array([int(v) for v in w], dtype=object))
    targets = [(int(U) * int(C[-1])) >> 64 for U in draws]
    return np.array([next(j for j, c in enumerate(C) if c > t) for t in targets], dtype=np.int64)


def residual_int(w, n_out, draws):
    """floor(N w_j / S) copies of each j, then multinomial draws on N w_j mod S; ancestors in that order."""
    S = sum(map(int, w))
    copies = [n_out * int(v) // S for v in w]
    sure = np.repeat(np.arange(len(w)), copies)
    rest = n_out - len(sure)
    return (
        sure
        if rest == 0
        else np.concatenate([sure, multinomial_int([n_out * int(v) % S for v in w], draws[:rest])])
    )
