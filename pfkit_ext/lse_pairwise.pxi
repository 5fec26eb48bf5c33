# The single pair of the pairwise integer log-sum-exp, for tests of its error.


def pairwise_add(a, b, bint table=True):
    """log2(2**-a + 2**-b), negated, for int32 arrays of Q16.16 distances; without the correction if table is false."""
    cdef const int32_t[::1] va = a, vb = b
    if va.shape[0] != vb.shape[0]:
        raise ValueError(f"pairwise_add takes arrays of one length, not {va.shape[0]} and {vb.shape[0]}")
    out = np.empty(va.shape[0], np.int32)
    cdef int32_t[::1] vout = out
    if va.shape[0]:
        with nogil:
            _level.pairwise.pairs(&va[0], &vb[0], va.shape[0], table, &vout[0])
    return out
