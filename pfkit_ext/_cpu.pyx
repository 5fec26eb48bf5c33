# cython: freethreading_compatible=True
"""Thin wrappers over the C core: check arguments, release the GIL, call the functions of the chosen SIMD level."""

include "level.pxi"
include "lse_int.pxi"
include "lse_fuse.pxi"
include "lse_pairwise.pxi"
include "normalize.pxi"
include "resample.pxi"
include "moments.pxi"
include "random.pxi"
include "step.pxi"

cdef extern from *:
    """
    #if !defined(PF_SOURCES)
    #define PF_SOURCES ""
    #endif
    """
    const char *PF_SOURCES

#: What sources.digest said of the Cython sources when this was built.
SOURCES = (<bytes>PF_SOURCES).decode()
