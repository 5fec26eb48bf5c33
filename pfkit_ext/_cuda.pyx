# cython: freethreading_compatible=True
"""cuLaunchKernel without the cost of ctypes: a launch is a filled-in argument block and one call of the driver.

No CUDA header and no CUDA library is needed to build this: the addresses of the driver's functions are handed over at
run time by pfkit.lse.cuda, and the two structures of cuLaunchKernelEx are declared here.
"""

from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcpy, memset

ctypedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                         void **, void **) noexcept nogil

cdef struct Attribute:                          # CUlaunchAttribute: an id, and a union of 64 bytes
    int id
    int padding
    int value
    char rest[60]

cdef struct Config:                             # CUlaunchConfig
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared
    void *stream
    Attribute *attributes
    unsigned count

ctypedef int (*launch_ex_t)(const Config *, void *, void **, void **) noexcept nogil

cdef enum:
    MOST = 512                                  # bytes of arguments a launch may carry: 64 words
    POINTERS = 8                                # the leading fields that change from call to call
    PROGRAMMATIC_STREAM_SERIALIZATION = 6       # CUlaunchAttributeID

cdef launch_t _cu_launch_kernel = NULL
cdef launch_ex_t _cu_launch_kernel_ex = NULL


def bind(uintptr_t address, uintptr_t address_ex=0):
    """Use the cuLaunchKernel at `address` and, for kernels that may start early, the cuLaunchKernelEx at `address_ex`
    from now on."""
    global _cu_launch_kernel, _cu_launch_kernel_ex
    _cu_launch_kernel = <launch_t> address
    _cu_launch_kernel_ex = <launch_ex_t> address_ex


cdef class Launch:
    """One kernel, its grid and its arguments except the pointers.

    Parameters
    ----------
    function : int
        CUfunction, valid in the context current at the call.
    grid : (int, int)
        Blocks in x and y.
    threads : int
        Threads a block.
    shared : int
        Bytes of dynamic shared memory.
    arguments : bytes
        The argument block as the kernel declares it; its first eight 8-byte fields are pointers, filled in by the call.
    early : bool
        Whether blocks may start before the kernels ahead of it in the stream have finished. The kernel itself waits for
        them (griddepcontrol.wait) before it touches memory.
    """
    cdef void *_function
    cdef unsigned _x, _y, _threads, _shared
    cdef bint _early
    cdef size_t _size
    cdef char _arguments[MOST]

    def __init__(self, uintptr_t function, grid, unsigned threads, unsigned shared, bytes arguments,
                 bint early=False):
        if len(arguments) > MOST or len(arguments) < 8 * POINTERS:
            raise ValueError(f"arguments must have {8 * POINTERS} to {MOST} bytes, got {len(arguments)}")
        self._function = <void *> function
        self._x, self._y = grid
        self._threads = threads
        self._shared = shared
        self._early = early and _cu_launch_kernel_ex != NULL
        self._size = len(arguments)
        memcpy(self._arguments, <const char *> arguments, self._size)

    def __call__(self, uint64_t stream, uint64_t source, uint64_t out=0, uint64_t maximum=0, uint64_t total=0,
                 uint64_t workspace=0, uint64_t reference=0, uint64_t grad=0, uint64_t grad_in=0):
        """Launch on `stream` with these device addresses; the driver's return code, 0 for success."""
        cdef uint64_t block[64]
        cdef void *parameters[1]
        cdef Config config
        cdef Attribute attribute
        cdef int code
        if _cu_launch_kernel == NULL:
            raise RuntimeError("no CUDA driver is bound: pfkit.lse.cuda does that")
        memcpy(block, self._arguments, self._size)
        block[0] = source
        block[1] = out
        block[2] = maximum
        block[3] = total
        block[4] = workspace
        block[5] = reference
        block[6] = grad
        block[7] = grad_in
        parameters[0] = block
        if self._early:
            memset(&attribute, 0, sizeof(attribute))
            attribute.id, attribute.value = PROGRAMMATIC_STREAM_SERIALIZATION, 1
            config.grid_x, config.grid_y, config.grid_z = self._x, self._y, 1
            config.block_x, config.block_y, config.block_z = self._threads, 1, 1
            config.shared, config.stream = self._shared, <void *> stream
            config.attributes, config.count = &attribute, 1
            with nogil:
                code = _cu_launch_kernel_ex(&config, self._function, parameters, NULL)
            return code
        with nogil:
            code = _cu_launch_kernel(self._function, self._x, self._y, 1, self._threads, 1, 1, self._shared, <void *> stream,
                                     parameters, NULL)
        return code
