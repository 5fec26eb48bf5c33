# Weighted mean and variance of particles stored (d, n).


def moments(x, w, mean=None, variance=False):
    """(mean, variance) of each row of x (d, n) under weights w (n,), not all 0: float64 (d,), variance None unless asked.

    x and w are C-contiguous, both float32 or both float64. The variance is taken about `mean` if that is given.
    """
    cdef const float[:, ::1] x32
    cdef const double[:, ::1] x64
    cdef const float[::1] w32
    cdef const double[::1] w64
    cdef size_t d = x.shape[0], n = x.shape[1], i
    cdef double total
    cdef bint given = mean is not None, second = variance
    centre = np.array(mean, np.float64) if given else np.empty(d)
    spread = np.empty(d) if second else None
    cdef double[::1] m = centre
    cdef double[::1] v
    if w.shape != (n,) or w.dtype != x.dtype or m.shape[0] != <Py_ssize_t>d or n == 0:
        raise ValueError(f"moments of x {x.dtype} {x.shape} under weights {w.dtype} {w.shape}")
    if second:
        v = spread
    if x.dtype == np.float32:
        x32, w32 = x, w
        with nogil:
            total = _level.moments.total_f32(&w32[0], n)
            for i in range(d):
                if not given:
                    m[i] = _level.moments.first_f32(&x32[i, 0], &w32[0], n) / total
                if second:
                    v[i] = _level.moments.second_f32(&x32[i, 0], &w32[0], n, m[i]) / total
    else:
        x64, w64 = x, w
        with nogil:
            total = _level.moments.total_f64(&w64[0], n)
            for i in range(d):
                if not given:
                    m[i] = _level.moments.first_f64(&x64[i, 0], &w64[0], n) / total
                if second:
                    v[i] = _level.moments.second_f64(&x64[i, 0], &w64[0], n, m[i]) / total
    return centre, spread
