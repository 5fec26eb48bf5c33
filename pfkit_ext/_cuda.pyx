# cython: freethreading_compatible=True
"""cuLaunchKernel without the cost of ctypes: a launch is a filled-in argument block and one call of the driver.

No CUDA header and no CUDA library is needed to build this: the address of the driver's function is handed over at run
time by pfkit.lse.cuda.
"""

from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcpy

ctypedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                         void **, void **) noexcept nogil

cdef enum:
    MOST = 512                                  # bytes of arguments a launch may carry: 64 words
    POINTERS = 8                                # the leading fields that change from call to call

cdef launch_t _cu_launch_kernel = NULL


def bind(uintptr_t address):
    """Use the cuLaunchKernel at `address` from now on."""
    global _cu_launch_kernel
    _cu_launch_kernel = <launch_t> address


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
    """
    cdef void *_function
    cdef unsigned _x, _y, _threads, _shared
    cdef size_t _size
    cdef char _arguments[MOST]

    def __init__(self, uintptr_t function, grid, unsigned threads, unsigned shared, bytes arguments):
        if len(arguments) > MOST or len(arguments) < 8 * POINTERS:
            raise ValueError(f"arguments must have {8 * POINTERS} to {MOST} bytes, got {len(arguments)}")
        self._function = <void *> function
        self._x, self._y = grid
        self._threads = threads
        self._shared = shared
        self._size = len(arguments)
        memcpy(self._arguments, <const char *> arguments, self._size)

    def __call__(self, uint64_t stream, uint64_t source, uint64_t out=0, uint64_t maximum=0, uint64_t total=0,
                 uint64_t workspace=0, uint64_t reference=0, uint64_t grad=0, uint64_t grad_in=0):
        """Launch on `stream` with these device addresses; the driver's return code, 0 for success."""
        cdef uint64_t block[64]
        cdef void *parameters[1]
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
        with nogil:
            code = _cu_launch_kernel(self._function, self._x, self._y, 1, self._threads, 1, 1, self._shared, <void *> stream,
                                     parameters, NULL)
        return code
