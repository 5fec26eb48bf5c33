# Random numbers: fills of whole arrays, and the block function for its known-answer tests.

_RANDOM_KINDS = ("normal", "uniform", "exponential")


def random_fill(out, kind, uint64_t key, uint64_t stream, uint64_t group):
    """Fill `out`, contiguous float32 or float64, from the start of `group` of the stream; returns the groups used.

    kind: "normal", "uniform" ([0, 1)) or "exponential", all standard. `stream` must be below 2**63.
    """
    cdef double[::1] o64
    cdef float[::1] o32
    cdef size_t n
    cdef pf_random_stream s
    if stream >> 63:
        raise ValueError(f"stream must be below 2**63, not {stream}")
    s.key, s.stream = key, stream
    cdef int which = _RANDOM_KINDS.index(kind)
    flat = out.reshape(-1)
    if out.size and not np.may_share_memory(flat, out):
        raise ValueError("out must be contiguous")
    if out.dtype == np.float64:
        o64 = flat
        n = o64.shape[0]
        if n:
            with nogil:
                if which == 0:
                    _level.random.normal_f64(s, group, n, &o64[0])
                elif which == 1:
                    _level.random.uniform_f64(s, group, n, &o64[0])
                else:
                    _level.random.exponential_f64(s, group, n, &o64[0])
        return (n + PF_RANDOM_GROUP_F64 - 1) // PF_RANDOM_GROUP_F64
    if out.dtype == np.float32:
        o32 = flat
        n = o32.shape[0]
        if n:
            with nogil:
                if which == 0:
                    _level.random.normal_f32(s, group, n, &o32[0])
                elif which == 1:
                    _level.random.uniform_f32(s, group, n, &o32[0])
                else:
                    _level.random.exponential_f32(s, group, n, &o32[0])
        return (n + PF_RANDOM_GROUP_F32 - 1) // PF_RANDOM_GROUP_F32
    raise TypeError(f"random numbers are float32 or float64, not {out.dtype}")


def random_bits(size_t n, uint64_t key, uint64_t stream, uint64_t group):
    """n words of 64 random bits from the start of `group` of the stream, uint64."""
    out = np.empty(n, np.uint64)
    cdef uint64_t[::1] o = out
    cdef pf_random_stream s
    if stream >> 63:
        raise ValueError(f"stream must be below 2**63, not {stream}")
    s.key, s.stream = key, stream
    if n:
        with nogil:
            _level.random.bits(s, group, n, &o[0])
    return out


def philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high, int rounds=7):
    """The four 32-bit words of Philox4x32 for one key and counter."""
    cdef uint32_t w[4]
    pf_philox(rounds, key, counter_low, counter_high, w)
    return tuple(int(w[k]) for k in range(4))


def vmath(name, x, y=None):
    """exp, log, sin, cos of x, or atan2(x, y), by the functions the compiled models use; 1-D float32 or float64."""
    cdef int which = ("exp", "log", "sin", "cos", "atan2").index(name)
    cdef const double[::1] x64, y64
    cdef const float[::1] x32, y32
    cdef double[::1] o64
    cdef float[::1] o32
    x = np.ascontiguousarray(x)
    y = x if y is None else np.ascontiguousarray(y, dtype=x.dtype)
    out = np.empty_like(x)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"x and y must be 1-D and of one length, not {x.shape} and {y.shape}")
    if x.size == 0:
        return out
    if x.dtype == np.float64:
        x64, y64, o64 = x, y, out
        _level.random.vmath_f64(which, &x64[0], &y64[0], x64.shape[0], &o64[0])
    elif x.dtype == np.float32:
        x32, y32, o32 = x, y, out
        _level.random.vmath_f32(which, &x32[0], &y32[0], x32.shape[0], &o32[0])
    else:
        raise TypeError(f"vmath takes float32 or float64, not {x.dtype}")
    return out
