# Resampling on integer weights, uint32 or uint64, C-contiguous and 1-D. Every function is exact.

cdef class _Ints:
    """Integer weights with their total, checked."""
    cdef const uint32_t[::1] w32
    cdef const uint64_t[::1] w64
    cdef bint wide
    cdef size_t n
    cdef pf_u128 total

    def __cinit__(self, ints):
        if getattr(ints, "ndim", 0) != 1 or ints.dtype not in (np.uint32, np.uint64):
            raise TypeError(f"integer weights are a 1-D uint32 or uint64 array, not {ints!r}")
        self.n = ints.shape[0]
        if self.n >= 1 << 32:
            raise ValueError(f"{self.n} weights: at most 2**32 - 1 are supported")
        self.wide = ints.dtype == np.uint64
        self.total = u128_from64(0)
        if self.n == 0:
            return
        if self.wide:
            self.w64 = ints
            with nogil:
                self.total = _level.resample.sum64(&self.w64[0], self.n)
        else:
            self.w32 = ints
            with nogil:
                self.total = u128_from64(_level.resample.sum32(&self.w32[0], self.n))

    cdef int check(self, object n_out) except -1:
        """A total above 0, and room for n_out times it in 128 bits."""
        if n_out < 0:
            raise ValueError(f"the number of ancestors must be >= 0, not {n_out}")
        if u128_bits(self.total) == 0:
            raise ValueError(f"at least one of the {self.n} integer weights must be > 0")
        if n_out >= 1 << 62 or u128_bits(self.total) + u128_bits(u128_from64(n_out)) > 126:
            raise ValueError(f"{n_out} ancestors from integer weights summing to {_as_int(self.total)} pass 128 bits")
        return 0


cdef object _ancestors(object out, size_t n):
    if out is None:
        return np.empty(n, np.int64)
    if out.dtype != np.int64 or out.ndim != 1 or out.shape[0] != n:
        raise ValueError(f"out must be an int64 array of shape ({n},)")
    return out


def int_sum(ints):
    """Sum of integer weights, a Python int."""
    cdef _Ints w = _Ints(ints)
    return _as_int(w.total)


def quantize(weights, out=None):
    """Integer weights of the float ones `weights` (n,), float32 or float64: uint32, 2**31 - 1 at the largest, to 2**20
    weights; uint64, 2**52 at the largest, beyond. ValueError if one is negative, NaN or infinite, or all are 0."""
    cdef const float[::1] f32
    cdef const double[::1] f64
    cdef uint32_t[::1] q32
    cdef uint64_t[::1] q64
    cdef size_t n
    cdef ptrdiff_t bad = -1
    if weights.ndim != 1 or weights.dtype not in (np.float32, np.float64):
        raise TypeError(f"quantize takes a 1-D float32 or float64 array, not {weights.ndim}-D {weights.dtype}")
    n = weights.shape[0]
    if n == 0:
        raise ValueError("there are no weights")
    cdef bint wide = n > PF_WEIGHTS32_MAX
    if out is None:
        out = np.empty(n, np.uint64 if wide else np.uint32)
    if wide:
        q64 = out
    else:
        q32 = out
    if out.shape[0] != n:
        raise ValueError(f"out must have shape ({n},)")
    if weights.dtype == np.float32:
        f32 = weights
        with nogil:
            bad = (_level.resample.quantize64_f32(&f32[0], n, &q64[0]) if wide
                   else _level.resample.quantize32_f32(&f32[0], n, &q32[0]))
    else:
        f64 = weights
        with nogil:
            bad = (_level.resample.quantize64_f64(&f64[0], n, &q64[0]) if wide
                   else _level.resample.quantize32_f64(&f64[0], n, &q32[0]))
    if bad == <ptrdiff_t>n:
        raise ValueError(f"at least one of the {n} weights must be > 0; all are 0")
    if bad >= 0:
        raise ValueError(f"weights must be finite and >= 0; weights[{bad}] is {weights[bad]}")
    return out


def systematic(ints, n_out, r, out=None):
    """Ancestors, int64 (n_out,): j fills places floor((n_out C_{j-1} + r) / S) .. floor((n_out C_j + r) / S) - 1."""
    cdef _Ints w = _Ints(ints)
    w.check(n_out)
    if not 0 <= r < _as_int(w.total):
        raise ValueError(f"the offset must lie in 0 .. {_as_int(w.total) - 1}, not {r}")
    cdef uint64_t N = n_out
    cdef pf_u128 offset = u128_make(<uint64_t>(int(r) >> 64), <uint64_t>(int(r) & 0xFFFFFFFFFFFFFFFF))
    out = _ancestors(out, N)
    cdef int64_t[::1] a = out
    if N:
        with nogil:
            if w.wide:
                _level.resample.systematic64(&w.w64[0], w.n, w.total, N, offset, &a[0])
            else:
                _level.resample.systematic32(&w.w32[0], w.n, u128_lo(w.total), N, u128_lo(offset), &a[0])
    return out


def systematic_draw(ints, n_out, uint64_t bits, out=None):
    """systematic with the offset (bits S) >> 64: one call for a random word."""
    cdef _Ints w = _Ints(ints)
    w.check(n_out)
    cdef uint64_t N = n_out
    cdef pf_u128 offset = u128_add64(u128_mul64(u128_hi(w.total), bits), u128_hi(u128_mul64(u128_lo(w.total), bits)))
    out = _ancestors(out, N)
    cdef int64_t[::1] a = out
    if N:
        with nogil:
            if w.wide:
                _level.resample.systematic64(&w.w64[0], w.n, w.total, N, offset, &a[0])
            else:
                _level.resample.systematic32(&w.w32[0], w.n, u128_lo(w.total), N, u128_lo(offset), &a[0])
    return out


def systematic_move(ints, x, uint64_t bits, ancestors, moved):
    """systematic_draw into `ancestors` and gather of x into `moved`, in one pass. Returns the number of distinct ancestors.

    ints (n,), x (d, n), ancestors (N,) int64, moved (d, N)."""
    cdef _Ints w = _Ints(ints)
    cdef int64_t[::1] a = ancestors
    cdef const float[:, ::1] x32
    cdef const double[:, ::1] x64
    cdef float[:, ::1] m32
    cdef double[:, ::1] m64
    cdef size_t d, N = a.shape[0], distinct = 0
    w.check(N)
    if x.ndim != 2 or x.dtype not in (np.float32, np.float64) or <size_t>x.shape[1] != w.n:
        raise ValueError(f"x must be float32 or float64 of shape (d, {w.n}), not {x.dtype}, {x.shape}")
    if moved.shape != (x.shape[0], N) or moved.dtype != x.dtype:
        raise ValueError(f"moved must be {x.dtype} of shape ({x.shape[0]}, {N}), not {moved.dtype}, {moved.shape}")
    if np.may_share_memory(x, moved):
        raise ValueError("x and moved must not overlap")
    if w.wide or N == 0 or x.shape[0] == 0:
        systematic_draw(ints, N, bits, ancestors)
        return gather(x, ancestors, moved)
    d = x.shape[0]
    cdef uint64_t S = u128_lo(w.total), r = u128_hi(u128_mul64(S, bits))
    if x.dtype == np.float32:
        x32, m32 = x, moved
        with nogil:
            distinct = _level.resample.systematic_move32_f32(&w.w32[0], w.n, S, N, r, &a[0], &x32[0, 0], d, &m32[0, 0])
    else:
        x64, m64 = x, moved
        with nogil:
            distinct = _level.resample.systematic_move32_f64(&w.w32[0], w.n, S, N, r, &a[0], &x64[0, 0], d, &m64[0, 0])
    return distinct


def stratified(ints, n_out, draws, out=None):
    """As systematic, the offset of stratum k being (draws[k] S) >> 64; or, for draws of shape (n_out, 2), the 128-bit
    number of words (high, low) draws[k], below S."""
    cdef _Ints w = _Ints(ints)
    w.check(n_out)
    if draws.dtype != np.uint64 or draws.shape not in ((n_out,), (n_out, 2)):
        raise ValueError(f"draws must be uint64 of shape ({n_out},) or ({n_out}, 2), not {draws.dtype}, {draws.shape}")
    cdef uint64_t N = n_out
    cdef int stride = draws.ndim
    cdef uint64_t k
    out = _ancestors(out, N)
    cdef const uint64_t[::1] u = np.ascontiguousarray(draws).reshape(-1)
    cdef int64_t[::1] a = out
    if stride == 2:
        for k in range(N):
            if not u128_lt(u128_make(u[2 * k], u[2 * k + 1]), w.total):
                raise ValueError(f"the offset of stratum {k} is not below the sum of the weights")
    if N:
        with nogil:
            if w.wide:
                _level.resample.stratified64(&w.w64[0], w.n, w.total, N, &u[0], stride, &a[0])
            else:
                _level.resample.stratified32(&w.w32[0], w.n, u128_lo(w.total), N, &u[0], stride, &a[0])
    return out


def multinomial(ints, draws, out=None):
    """Ancestor of each of the 64-bit draws: the first j with C_j > (draw S) >> 64."""
    cdef _Ints w = _Ints(ints)
    cdef const uint64_t[::1] u = draws
    cdef size_t N = u.shape[0]
    cdef int status = 0
    w.check(N)
    out = _ancestors(out, N)
    cdef int64_t[::1] a = out
    if N:
        with nogil:
            if w.wide:
                status = _level.resample.multinomial64(&w.w64[0], w.n, w.total, N, &u[0], &a[0])
            else:
                status = _level.resample.multinomial32(&w.w32[0], w.n, u128_lo(w.total), N, &u[0], &a[0])
    if status:
        raise MemoryError(f"multinomial resampling of {w.n} particles")
    return out


cdef uint64_t _residual_left(_Ints w, uint64_t N) noexcept nogil:
    if w.wide:
        return _level.resample.residual_left64(&w.w64[0], w.n, w.total, N)
    return _level.resample.residual_left32(&w.w32[0], w.n, u128_lo(w.total), N)


def residual_left(ints, n_out):
    """n_out - sum_j floor(n_out w_j / S): how many draws residual resampling takes; less than n_out and than n."""
    cdef _Ints w = _Ints(ints)
    w.check(n_out)
    return _residual_left(w, n_out)


def residual(ints, n_out, draws, out=None):
    """floor(n_out w_j / S) copies of each j in order, then multinomial draws on n_out w_j mod S; draws holds at least
    residual_left(ints, n_out) words."""
    cdef _Ints w = _Ints(ints)
    w.check(n_out)
    cdef const uint64_t[::1] u = draws
    cdef uint64_t N = n_out
    cdef int status = 0
    cdef uint64_t none = 0
    if <uint64_t>u.shape[0] < min(N, <uint64_t>w.n - 1) and <uint64_t>u.shape[0] < _residual_left(w, N):
        raise ValueError(f"residual resampling needs {_residual_left(w, N)} draws; {u.shape[0]} were given")
    out = _ancestors(out, N)
    cdef int64_t[::1] a = out
    cdef const uint64_t *first = &u[0] if u.shape[0] else &none
    if N:
        with nogil:
            if w.wide:
                status = _level.resample.residual64(&w.w64[0], w.n, w.total, N, first, &a[0])
            else:
                status = _level.resample.residual32(&w.w32[0], w.n, u128_lo(w.total), N, first, &a[0])
    if status:
        raise MemoryError(f"residual resampling of {w.n} particles")
    return out


def gather(x, ancestors, out):
    """out[i, k] = x[i, ancestors[k]]; x (d, n) and out (d, N) of one dtype, float32 or float64. Returns the number of
    distinct ancestors. IndexError, with out untouched, if one lies outside 0 .. n - 1."""
    cdef const int64_t[::1] a = ancestors
    cdef const float[:, ::1] x32
    cdef const double[:, ::1] x64
    cdef float[:, ::1] o32
    cdef double[:, ::1] o64
    cdef size_t i, d, N = a.shape[0]
    cdef int64_t distinct = 0
    cdef uint64_t n
    if x.ndim != 2 or x.dtype not in (np.float32, np.float64):
        raise ValueError(f"x must be float32 or float64 of shape (d, n), not {x.dtype}, {x.shape}")
    d, n = x.shape[0], x.shape[1]
    if out.shape != (d, N) or out.dtype != x.dtype:
        raise ValueError(f"out must be {x.dtype} of shape ({d}, {N}), not {out.dtype}, {out.shape}")
    if N:
        with nogil:
            distinct = _level.resample.distinct(&a[0], N, n)
    if distinct == -1:
        raise IndexError(f"ancestors must lie in 0 .. {n - 1}")
    if N and x.dtype == np.float32:
        x32, o32 = x, out
        with nogil:
            for i in range(d):
                _level.resample.gather_f32(&x32[i, 0], n, &a[0], N, &o32[i, 0])
    elif N:
        x64, o64 = x, out
        with nogil:
            for i in range(d):
                _level.resample.gather_f64(&x64[i, 0], n, &a[0], N, &o64[i, 0])
    if distinct == -2:
        seen = np.zeros(n, np.bool_)
        seen[ancestors] = True
        distinct = np.count_nonzero(seen)
    return distinct
