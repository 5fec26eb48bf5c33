# Rows, scalars and the normalisation of log-weights: the entry points every kernel shares.

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer


ctypedef void (*_rows_f32)(const float *x, size_t rows, size_t n, size_t step, float *out) noexcept nogil
ctypedef void (*_rows_f64)(const double *x, size_t rows, size_t n, size_t step, double *out) noexcept nogil

cdef struct _kernel:
    _rows_f32 f32
    _rows_f64 f64


cdef int _find_kernel(object kind, _kernel *found) except -1:
    if kind == "fuse":
        found.f32, found.f64 = _level.fuselse.rows_f32, _level.fuselse.rows_f64
    elif kind == "int":
        found.f32, found.f64 = _level.intlse.rows_f32, _level.intlse.rows_f64
    elif kind == "int-pairwise":
        found.f32, found.f64 = _level.pairwise.rows_f32, _level.pairwise.rows_f64
    else:
        raise ValueError(f"no compiled kernel {kind!r}")
    return 0


def lse_rows(a, kind, out=None):
    """Log-sum-exp of each row of `a` (rows, n), C-contiguous float32 or float64; `kind` names a compiled kernel."""
    if a.ndim != 2 or a.dtype not in (np.float32, np.float64):
        raise TypeError(f"lse_rows takes a 2-D float32 or float64 array, not {a.ndim}-D {a.dtype}")
    if out is None:
        out = np.empty(a.shape[0], a.dtype)
    cdef _kernel kernel
    cdef const float[:, ::1] a32
    cdef const double[:, ::1] a64
    cdef float[::1] out32
    cdef double[::1] out64
    cdef size_t rows = a.shape[0], n = a.shape[1]
    _find_kernel(kind, &kernel)
    if n == 0:
        out[...] = -np.inf
    elif rows == 0:
        pass
    elif a.dtype == np.float32:
        a32, out32 = a, out
        with nogil:
            kernel.f32(&a32[0, 0], rows, n, n, &out32[0])
    else:
        a64, out64 = a, out
        with nogil:
            kernel.f64(&a64[0, 0], rows, n, n, &out64[0])
    return out


cdef object _float32 = np.float32, _float64 = np.float64

cdef enum:
    PF_SHORT = 4096  # below this, giving the GIL up and taking it back costs more than it frees


def lse_1d(a, kind):
    """Log-sum-exp of a 1-D contiguous float32 or float64 array as a NumPy scalar: the shortest path from Python.

    One buffer request instead of dtype comparisons and memoryviews: what a call at 100 terms costs is mostly those.
    """
    cdef _kernel kernel
    cdef Py_buffer view
    cdef bint single
    cdef float value32 = -INFINITY
    cdef double value64 = -INFINITY
    cdef size_t n
    _find_kernel(kind, &kernel)
    PyObject_GetBuffer(a, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    try:
        single = view.format[0] == c"f"
        if view.ndim != 1 or not (single or view.format[0] == c"d") or view.format[1] != 0:
            raise TypeError("lse_1d takes a 1-D native float32 or float64 array")
        n = view.shape[0]
        if n == 0:
            pass
        elif n < PF_SHORT:
            _one_row(kernel, view.buf, n, single, &value32, &value64)
        else:
            with nogil:
                _one_row(kernel, view.buf, n, single, &value32, &value64)
    finally:
        PyBuffer_Release(&view)
    return _float32(value32) if single else _float64(value64)


cdef inline void _one_row(_kernel kernel, const void *x, size_t n, bint single, float *value32, double *value64) noexcept nogil:
    if single:
        kernel.f32(<const float *>x, 1, n, n, value32)
    else:
        kernel.f64(<const double *>x, 1, n, n, value64)


def normalize(log_w, kind, weights=None, bint want_ints=True):
    """(weights, log_norm, ess, ints) of the 1-D log-weights `log_w`; each is exponentiated once.

    ints: the integer weights of kind "int" (uint32 to 2**20 particles, uint64 beyond), None for "fuse" or if not wanted.
    All -inf: weights 0, log_norm -inf, ess 0. NaN: log_norm NaN. +inf: log_norm +inf. In both the weights are NaN.
    """
    if log_w.ndim != 1 or log_w.dtype not in (np.float32, np.float64):
        raise TypeError(f"normalize takes a 1-D float32 or float64 array, not {log_w.ndim}-D {log_w.dtype}")
    if weights is None:
        weights = np.empty_like(log_w)
    elif weights.dtype != log_w.dtype or weights.shape != log_w.shape:
        raise ValueError(f"weights {weights.dtype}{weights.shape} must match log_w {log_w.dtype}{log_w.shape}")
    if kind == "fuse":
        return _fuse_normalize(log_w, weights)
    if kind != "int":
        raise ValueError(f"no compiled normalisation {kind!r}")
    return _int_normalize(log_w, weights, want_ints)


cdef object _int_normalize(object log_w, object weights, bint want_ints):
    cdef size_t n = log_w.shape[0]
    cdef bint wide = n > PF_WEIGHTS32_MAX
    cdef const float[::1] x32
    cdef const double[::1] x64
    cdef float[::1] W32
    cdef double[::1] W64
    cdef uint32_t[::1] w32
    cdef uint64_t[::1] w64
    cdef uint32_t *p32 = NULL
    cdef uint64_t *p64 = NULL
    cdef pf_norm norm
    cdef double m = -INFINITY
    cdef bint single = log_w.dtype == np.float32
    if single:
        x32, W32 = log_w, weights
    else:
        x64, W64 = log_w, weights
    ints = None
    if n:
        if want_ints or (wide and single):
            ints = np.empty(n, np.uint64 if wide else np.uint32)
            if wide:
                w64 = ints
                p64 = &w64[0]
            else:
                w32 = ints
                p32 = &w32[0]
        elif single:      # the integers fit where the weights go, and are scaled in place
            p32 = <uint32_t *>&W32[0]
        elif wide:
            p64 = <uint64_t *>&W64[0]
        else:             # upper half: the scaling, left to right, never overtakes what it still has to read
            p32 = <uint32_t *>&W64[0] + n
        with nogil:
            if single:
                m = _level.intlse.max_f32(&x32[0], n)
                if isfinite(m):
                    if wide:
                        _level.weights.int64_f32(&x32[0], n, <float>m, p64, &norm)
                        _level.weights.scale64_f32(p64, n, norm.scale, &W32[0])
                    else:
                        _level.weights.int32_f32(&x32[0], n, <float>m, p32, &norm)
                        _level.weights.scale32_f32(p32, n, norm.scale, &W32[0])
            else:
                m = _level.intlse.max_f64(&x64[0], n)
                if isfinite(m):
                    if wide:
                        _level.weights.int64_f64(&x64[0], n, m, p64, &norm)
                        _level.weights.scale64_f64(p64, n, norm.scale, &W64[0])
                    else:
                        _level.weights.int32_f64(&x64[0], n, m, p32, &norm)
                        _level.weights.scale32_f64(p32, n, norm.scale, &W64[0])
    if not want_ints:
        ints = None
    elif n == 0:
        ints = np.empty(0, np.uint32)
    if not isfinite(m):
        if ints is not None:
            ints[...] = 0
        weights[...] = 0.0 if m == -INFINITY else np.nan
        return weights, m, 0.0 if m == -INFINITY else np.nan, ints
    return weights, float(<float>norm.log_norm) if single else norm.log_norm, norm.ess, ints
