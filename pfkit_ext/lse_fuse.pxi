# The float log-sum-exp: its state, its running form, the fused normalisation.


def fuse_state_rows(a):
    """(maximum, total): of each row of `a` (rows, n) the maximum, in a's dtype, and sum exp(a - maximum), float64.

    Empty and all -inf rows: (-inf, 0); rows with a NaN: (NaN, NaN); else rows with +inf: (+inf, 1).
    """
    if a.ndim != 2 or a.dtype not in (np.float32, np.float64):
        raise TypeError(f"fuse_state_rows takes a 2-D float32 or float64 array, not {a.ndim}-D {a.dtype}")
    cdef size_t r, rows = a.shape[0], n = a.shape[1]
    maximum, total = np.full(rows, -np.inf, a.dtype), np.zeros(rows)
    cdef const float[:, ::1] a32
    cdef const double[:, ::1] a64
    cdef float[::1] m32
    cdef double[::1] m64, t64 = total
    cdef pf_fuse_state s
    if rows == 0 or n == 0:
        return maximum, total
    if a.dtype == np.float32:
        a32, m32 = a, maximum
        with nogil:
            for r in range(rows):
                s = _level.fuselse.state_f32(&a32[r, 0], n)
                m32[r] = <float>s.maximum
                t64[r] = s.total
    else:
        a64, m64 = a, maximum
        with nogil:
            for r in range(rows):
                s = _level.fuselse.state_f64(&a64[r, 0], n)
                m64[r] = s.maximum
                t64[r] = s.total
    return maximum, total


def logcumsumexp_rows(a, out=None):
    """Running log-sum-exp along each row of `a` (rows, n), C-contiguous float32 or float64; -inf prefixes stay -inf."""
    if a.ndim != 2 or a.dtype not in (np.float32, np.float64):
        raise TypeError(f"logcumsumexp_rows takes a 2-D float32 or float64 array, not {a.ndim}-D {a.dtype}")
    if out is None:
        out = np.empty_like(a)
    cdef size_t r, rows = a.shape[0], n = a.shape[1]
    cdef const float[:, ::1] a32
    cdef const double[:, ::1] a64
    cdef float[:, ::1] out32
    cdef double[:, ::1] out64
    if rows == 0 or n == 0:
        return out
    if a.dtype == np.float32:
        a32, out32 = a, out
        with nogil:
            for r in range(rows):
                _level.fuselse.running_f32(&a32[r, 0], n, &out32[r, 0])
    else:
        a64, out64 = a, out
        with nogil:
            for r in range(rows):
                _level.fuselse.running_f64(&a64[r, 0], n, &out64[r, 0])
    return out


cdef object _fuse_normalize(object log_w, object weights):
    """log_w and weights (n,), C-contiguous, of one dtype and without overlap."""
    cdef size_t n = log_w.shape[0]
    cdef pf_fuse_norm norm
    cdef const float[::1] x32
    cdef const double[::1] x64
    cdef float[::1] W32
    cdef double[::1] W64
    cdef float small32[64]
    cdef double small64[64]
    cdef float *m32 = small32
    cdef double *m64 = small64
    cdef float[::1] many32
    cdef double[::1] many64
    cdef size_t blocks = (n + PF_FUSE_BLOCK - 1) // PF_FUSE_BLOCK
    if n == 0:
        return weights, -np.inf, 0.0, None
    if log_w.dtype == np.float32:
        x32, W32 = log_w, weights
        if blocks > 64:
            many32 = np.empty(blocks, np.float32)
            m32 = &many32[0]
        with nogil:
            _level.fuselse.normalize_f32(&x32[0], n, &W32[0], m32, &norm)
        return weights, float(<float>norm.log_norm), norm.ess, None
    x64, W64 = log_w, weights
    if blocks > 64:
        many64 = np.empty(blocks)
        m64 = &many64[0]
    with nogil:
        _level.fuselse.normalize_f64(&x64[0], n, &W64[0], m64, &norm)
    return weights, norm.log_norm, norm.ess, None
