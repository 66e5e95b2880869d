# cython: language_level=3
"""Responses of one connection that were not sent, as compiled modules of the network see them."""

from libc.stdint cimport int64_t


cdef class UnsentParts:
    cdef public object parts            # a deque of bytes and file regions, in the order of the responses
    cdef public bint has_regions
    cdef public bint waiting            # until the socket takes more of a region
    cdef public bint transport_paused   # until the transport has written its bytes
    cdef public int64_t queued_bytes    # since everything was last written; at least those not written
    cdef public int64_t max_queued_bytes    # above it they are written before the next request begins

    cdef inline bint is_blocked(self) noexcept:
        return self.waiting or self.transport_paused
