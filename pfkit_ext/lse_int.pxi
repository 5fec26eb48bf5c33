# The parts of the state of the order-free integer log-sum-exp.


def int_state_rows(a, reference):
    """(hi, lo): the 128-bit sums, one a row of `a`, of the 64-bit weights at `reference` (finite, >= every element)."""
    a = np.ascontiguousarray(a)
    if a.ndim != 2 or a.dtype not in (np.float32, np.float64):
        raise TypeError(f"int_state_rows takes a 2-D float32 or float64 array, not {a.ndim}-D {a.dtype}")
    reference = np.ascontiguousarray(np.broadcast_to(reference, a.shape[:1]), dtype=a.dtype)
    hi, lo = np.zeros(a.shape[0], np.uint64), np.zeros(a.shape[0], np.uint64)
    cdef uint64_t[::1] vhi = hi, vlo = lo
    cdef const float[:, ::1] a32
    cdef const double[:, ::1] a64
    cdef const float[::1] m32
    cdef const double[::1] m64
    cdef size_t r, rows = a.shape[0], n = a.shape[1]
    cdef pf_u128 T
    if rows == 0 or n == 0:
        return hi, lo
    if a.dtype == np.float32:
        a32, m32 = a, reference
        for r in range(rows):
            with nogil:
                T = _level.intlse.total_f32(&a32[r, 0], n, m32[r])
            vhi[r], vlo[r] = u128_hi(T), u128_lo(T)
    else:
        a64, m64 = a, reference
        for r in range(rows):
            with nogil:
                T = _level.intlse.total_f64(&a64[r, 0], n, m64[r])
            vhi[r], vlo[r] = u128_hi(T), u128_lo(T)
    return hi, lo


def int_log_total(uint64_t hi, uint64_t lo, double reference, dtype=np.float64):
    """reference + ln(total / 2**52) for the 128-bit total (hi, lo); -inf when it is zero. Nats, rounded to dtype."""
    if hi == 0 and lo == 0:
        return np.dtype(dtype).type(-np.inf)
    return np.dtype(dtype).type(pf_log_total(u128_make(hi, lo), reference))


def row_max(a):
    """Maximum of each row (NaN if the row holds one, -inf if it is empty); a (rows, n) C-contiguous float32/float64."""
    out = np.full(a.shape[0], -np.inf, a.dtype)
    cdef const float[:, ::1] a32
    cdef const double[:, ::1] a64
    cdef float[::1] out32
    cdef double[::1] out64
    cdef size_t r, n = a.shape[1], rows = a.shape[0]
    if n == 0 or rows == 0:
        return out
    if a.dtype == np.float32:
        a32, out32 = a, out
        with nogil:
            for r in range(rows):
                out32[r] = _level.intlse.max_f32(&a32[r, 0], n)
    elif a.dtype == np.float64:
        a64, out64 = a, out
        with nogil:
            for r in range(rows):
                out64[r] = _level.intlse.max_f64(&a64[r, 0], n)
    else:
        raise TypeError(f"row_max takes float32 or float64, not {a.dtype}")
    return out
