# cython: language_level=3
"""The native half of a hosted partition: see `_append.pyi`."""

from libc.stdint cimport int64_t

from ottla.broker.log.segments._offset_lookup cimport Slice


cdef class PartitionAppends:
    cdef readonly object topic_partition
    cdef readonly object log
    cdef readonly object core
    cdef readonly dict watchers
    cdef readonly int64_t _first_new_offset
    cdef readonly list _waiting  # (offset, number of the wait, future), a heap

    cpdef int set_log(self, log) except -1
    cpdef int check_append(self, int required_acks) except -1
    cpdef int64_t append_plain(self, batches, int required_acks, now_ms) except? -2
    cpdef int grown(self, now_ms) except -1
    cpdef int wake(self) except -1
    cpdef int release(self, int64_t high_watermark) except -1
    cpdef bint is_cold(self, int64_t offset, Slice records) except -1
