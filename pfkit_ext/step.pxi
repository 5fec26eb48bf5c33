# Compiled models and whole steps with them.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.math cimport log as _log
from libc.stdlib cimport calloc, free
from libc.string cimport memset


def model_names():
    """Names of the ready compiled models."""
    return tuple((<bytes>_level.models[k].name).decode() for k in range(PF_MODELS))


def model_block():
    """Largest number of particles a model's functions are called with."""
    return PF_MODEL_BLOCK


def model_max_dim():
    """Largest state and observation dimension of the compiled LinearGaussian."""
    return PF_MODEL_MAX_DIM


def callable_signature(callback):
    """(signature, address) of a scipy.LowLevelCallable."""
    cdef object capsule = <object>PyTuple_GET_ITEM(callback, 0)
    cdef const char *name = PyCapsule_GetName(capsule)
    cdef void *pointer = PyCapsule_GetPointer(capsule, name)
    return (<bytes>name).decode() if name != NULL else "", <uintptr_t>pointer


cdef char *_aligned(char *p) noexcept nogil:
    return <char *>((<uintptr_t>p + 63) & ~<uintptr_t>63)


SCHEMES = ("systematic", "stratified", "multinomial", "residual")


cdef class Stepper:
    """Filters of one compiled model: B of them, stepped together or one by one; buffers and scratch are made here.

    functions: name of a ready model, or the addresses (transition, log_likelihood) for float64 and for float32, 0 where
    missing. params (B, k), keys (B, 2) uint64.
    """
    cdef pf_filter *f
    cdef size_t filters, scratch_size, n
    cdef int threads, d, single
    cdef object params, keys, room, dtype
    cdef char *scratch

    def __cinit__(self, functions, params, keys, size_t n, int d, int noise_dim, int y_dim, int u_dim, dtype, str kind,
                  str scheme, double resample_below, int threads):
        cdef const double[:, ::1] p
        cdef const uint64_t[:, ::1] k
        cdef size_t b
        cdef pf_filter *f
        cdef pf_model model
        self.single = np.dtype(dtype) == np.float32
        self.dtype = np.dtype(np.float32 if self.single else np.float64)
        self.params = np.ascontiguousarray(params, np.float64)
        self.keys = np.ascontiguousarray(keys, np.uint64)
        if self.params.shape[1] == 0:
            self.params = np.zeros((self.params.shape[0], 1))
        p, k = self.params, self.keys
        self.filters, self.n, self.threads, self.d = p.shape[0], n, threads, d
        if k.shape[0] != p.shape[0] or k.shape[1] != 2 or self.filters == 0 or n == 0:
            raise ValueError(f"params {self.params.shape} and keys {self.keys.shape} must have one row a filter")
        if isinstance(functions, str):
            model = _level.models[model_names().index(functions)]
        else:
            model.transition_f64 = <pf_transition_f64><uintptr_t>functions[0]
            model.likelihood_f64 = <pf_likelihood_f64><uintptr_t>functions[1]
            model.transition_f32 = <pf_transition_f32><uintptr_t>functions[2]
            model.likelihood_f32 = <pf_likelihood_f32><uintptr_t>functions[3]
        if (model.transition_f32 == NULL or model.likelihood_f32 == NULL) if self.single else (
                model.transition_f64 == NULL or model.likelihood_f64 == NULL):
            raise ValueError(f"the compiled model has no {np.dtype(dtype)} functions")
        self.scratch_size = (_level.step.scratch(d, noise_dim, self.single, n,
                                                SCHEMES.index(scheme) if scheme in SCHEMES else 0) + 4095) & ~<size_t>4095
        self.room = np.zeros(self.scratch_size * threads + 64, np.uint8)
        cdef uint8_t[::1] room = self.room
        self.scratch = _aligned(<char *>&room[0])
        self.f = <pf_filter *>calloc(self.filters, sizeof(pf_filter))
        if self.f == NULL:
            raise MemoryError()
        for b in range(self.filters):
            f = self.f + b
            f.transition_f64, f.transition_f32 = model.transition_f64, model.transition_f32
            f.likelihood_f64, f.likelihood_f32 = model.likelihood_f64, model.likelihood_f32
            f.params = &p[b, 0]
            f.d, f.noise_dim, f.y_dim, f.u_dim = d, noise_dim, y_dim, u_dim
            f.single = self.single
            f.kind = ("fuse", "int").index(kind) if kind in ("fuse", "int") else 0
            f.scheme = SCHEMES.index(scheme) if scheme in SCHEMES else 0
            f.n, f.resample_below = n, resample_below
            f.key, f.stream = k[b, 0], k[b, 1] >> 1

    def __dealloc__(self):
        free(self.f)

    def set_key(self, keys):
        """Keys of the random streams, (B, 2) uint64."""
        cdef const uint64_t[:, ::1] k = np.ascontiguousarray(keys, np.uint64)
        cdef size_t b
        for b in range(self.filters):
            self.f[b].key, self.f[b].stream = k[b, 0], k[b, 1] >> 1

    cdef int check(self, a, tuple shape, bint writes) except -1:
        flags = a.flags
        if a.shape != shape or (a.dtype is not self.dtype and a.dtype != self.dtype) or not flags.c_contiguous:
            raise ValueError(f"an array of {a.dtype}{a.shape} where {shape} was expected")
        if writes and not flags.writeable:
            raise ValueError("an array to be written is read-only")
        return 0

    def move(self, size_t b, x, x_next, int64_t time, u=None):
        """x_next = transition of filter b's particles x, both (d, n), to the time `time`; u (u_dim,) float64."""
        cdef pf_filter *f = self.f + b
        cdef const double[::1] uv
        cdef const double *up = NULL
        self.check(x, (self.d, self.n), False)
        self.check(x_next, (self.d, self.n), True)
        if f.u_dim:
            uv = u
            if uv.shape[0] != f.u_dim:
                raise ValueError(f"u must have {f.u_dim} elements, not {uv.shape[0]}")
            up = &uv[0]
        f.x, f.x_next = _data(x), _data(x_next)
        f.time, f.resampled = time, 0
        with nogil:
            _level.step.move(f, up, self.scratch)

    def weigh(self, size_t b, x, log_g, int64_t time, y):
        """log_g (n,) = log-likelihood of y (y_dim,) float64 given filter b's particles x (d, n)."""
        cdef pf_filter *f = self.f + b
        cdef const double[::1] yv = y
        cdef void *out
        self.check(x, (self.d, self.n), False)
        self.check(log_g, (self.n,), True)
        if yv.shape[0] != f.y_dim:
            raise ValueError(f"y must have {f.y_dim} elements, not {yv.shape[0]}")
        f.x, f.time = _data(x), time
        out = _data(log_g)
        with nogil:
            _level.step.weigh(f, &yv[0], out, self.scratch)

    def run(self, x, x_next, log_w, joint, w, w_next, ancestors, ints, int64_t time, uint8_t[::1] resample_next,
            uint8_t[::1] have_ints, uint8_t[::1] from_equal, uint8_t[::1] x_side, uint8_t[::1] w_side, double[::1] ess,
            const double[:, :, ::1] y, const double[:, :, ::1] u, double[:, ::1] increment, double[:, ::1] ess_out,
            uint8_t[:, ::1] resampled, int64_t[:, ::1] unique, mean=None, variance=None, size_t begin=0, size_t end=0,
            size_t first=0, size_t last=0, const uint8_t[::1] timed=None):
        """Steps `begin` .. `end` - 1 of the results, for the filters `first` .. `last` - 1 (all if last is 0) at once.

        Arrays lead with B. y and u have a leading axis of B or 1 (shared); results are (B, T) and (B, T, d). x_side of a
        filter is 0 if its particles are in x, 1 if in x_next; likewise w_side. The steps change them. Returns (done,
        failed) of these filters.
        """
        cdef size_t b, B = self.filters, steps = end - begin, size = 4 if self.single else 8
        cdef pf_filter *f
        cdef double[:, :, ::1] m, v
        cdef int64_t[:, ::1] a = ancestors
        cdef uint32_t[:, ::1] q
        cdef uint64_t[:, ::1] q64
        cdef bint wide = self.n > PF_WEIGHTS32_MAX
        cdef char *px
        cdef char *pxn
        cdef char *plw
        cdef char *pj
        cdef char *pw
        cdef char *pwn
        for array in (x, x_next):
            self.check(array, (B, self.d, self.n), True)
        for array in (log_w, joint, w, w_next):
            self.check(array, (B, self.n), True)
        if a.shape[0] != <Py_ssize_t>B or a.shape[1] != <Py_ssize_t>self.n or ints.shape != (B, self.n) \
                or end > <size_t>increment.shape[1] or begin >= end:
            raise ValueError("ancestors, ints or results have the wrong shape")
        if wide:
            q64 = ints
        else:
            q = ints
        if mean is not None:
            m = mean
        if variance is not None:
            v = variance
        px, pxn, plw, pj = <char *>_data(x), <char *>_data(x_next), <char *>_data(log_w), <char *>_data(joint)
        pw, pwn = <char *>_data(w), <char *>_data(w_next)
        last = last or B
        if first >= last or last > B or <size_t>x_side.shape[0] < B or <size_t>w_side.shape[0] < B:
            raise ValueError(f"filters {first} .. {last} of {B}")
        for b in range(first, last):
            f = self.f + b
            f.log_n = _log(<double>self.n)
            f.x, f.x_next = px + b * self.d * self.n * size, pxn + b * self.d * self.n * size
            if x_side[b]:
                f.x, f.x_next = f.x_next, f.x
            f.log_w, f.joint = plw + b * self.n * size, pj + b * self.n * size
            f.w, f.w_next = pw + b * self.n * size, pwn + b * self.n * size
            if w_side[b]:
                f.w, f.w_next = f.w_next, f.w
            f.ancestors = &a[b, 0]
            if wide:
                f.wide = &q64[b, 0]
            else:
                f.ints = &q[b, 0]
            f.time, f.resample_next, f.have_ints = time, resample_next[b], have_ints[b]
            f.from_equal, f.equal, f.total, f.ess = from_equal[b], 0, 0, ess[b]
            f.timed = NULL
            if timed is not None:
                if <size_t>timed.shape[0] < steps:
                    raise ValueError(f"timed must have an element for each of {steps} steps")
                f.timed = &timed[0]
                memset(f.nanoseconds, 0, sizeof(f.nanoseconds))
            f.increment, f.ess_out = &increment[b, begin], &ess_out[b, begin]
            f.resampled_out, f.unique_out = &resampled[b, begin], &unique[b, begin]
            f.mean = &m[b, begin, 0] if mean is not None else NULL
            f.variance = &v[b, begin, 0] if variance is not None else NULL
            f.y = &y[b if y.shape[0] > 1 else 0, begin, 0]
            f.u = &u[b if u.shape[0] > 1 else 0, begin, 0] if u is not None else NULL
        with nogil:
            _level.step.run(self.f + first, last - first, steps, self.threads, self.scratch, self.scratch_size)
        for b in range(first, last):
            if self.f[b].status == PF_STEP_NO_WEIGHTS:
                raise ValueError(f"filter {b}: no ancestors can be drawn: the weights are negative, not finite, or all 0")
            if self.f[b].status == PF_STEP_NO_MEMORY:
                raise MemoryError(f"resampling of {self.n} particles")
        done, failed = np.empty(last - first, np.int64), np.empty(last - first, np.bool_)
        cdef int64_t[::1] made = done
        cdef uint8_t[::1] stopped = failed.view(np.uint8)
        for b in range(first, last):
            f = self.f + b
            made[b - first], stopped[b - first] = f.done, f.status == PF_STEP_FAILED
            x_side[b] = <char *>f.x != px + b * self.d * self.n * size
            w_side[b] = <char *>f.w != pw + b * self.n * size
            resample_next[b], have_ints[b], from_equal[b] = f.resample_next, f.have_ints, f.from_equal
            ess[b] = f.ess
        return done, failed

    def nanoseconds(self, size_t b):
        """What the timed steps of filter b's latest run took: propagate, likelihood, lse, weights, resample, gather."""
        return tuple(int(v) for v in self.f[b].nanoseconds)

    def last(self, size_t b):
        """(resampled, n_unique) of filter b's latest step."""
        return bool(self.f[b].resampled), int(self.f[b].n_unique)


cdef void *_data(a) except NULL:
    """Where the elements of a contiguous array are."""
    cdef Py_buffer view
    PyObject_GetBuffer(a, &view, PyBUF_SIMPLE)
    PyBuffer_Release(&view)
    return view.buf


def running_sum(double start, const double[:] values):
    """start + values[0] + values[1] + ..., in this order."""
    cdef size_t k
    for k in range(<size_t>values.shape[0]):
        start += values[k]
    return start

