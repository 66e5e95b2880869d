# cython: language_level=3
"""The end of a log, for other compiled modules of the broker."""

from libc.stdint cimport int16_t, int32_t, int64_t

from ottla.broker.log.segments._offset_lookup cimport Slice


cdef struct Batches:
    int64_t next_offset
    int64_t largest
    int64_t largest_at
    int64_t producer_id
    int32_t first_sequence
    int32_t last_sequence
    int16_t producer_epoch
    int count


cdef class LogEnd:
    cdef readonly object segment
    cdef readonly object offsets
    cdef readonly object times
    cdef readonly object file
    cdef object _write_with
    cdef int descriptor         # of a file of the operating system, else -1
    cdef readonly int64_t position
    cdef readonly int64_t next_offset
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t max_timestamp_offset
    cdef readonly int64_t bytes_since_index
    cdef readonly int64_t created_ms
    cdef public int32_t leader_epoch
    cdef readonly int64_t base_offset
    cdef readonly int64_t max_next_offset
    cdef readonly bint index_full
    cdef readonly dict hints
    cdef readonly int64_t max_bytes
    cdef readonly int64_t index_interval_bytes
    cdef readonly int64_t segment_ms
    cdef readonly int64_t roll_above_timestamp
    cdef readonly int64_t roll_after_ms
    cdef public int64_t max_plain_bytes
    cdef readonly bint checks_records

    cpdef bint fits(self, int64_t size, int64_t next_offset, int64_t largest, int64_t now_ms)
    cpdef int64_t append_plain(self, batches, int32_t leader_epoch, int64_t now_ms, log) except? -2
    cdef int64_t _append_plain(self, unsigned char *data, Py_ssize_t size, int64_t now_ms, log) except? -2
    cdef object _next_of(self, producers, Batches *found)
    cdef int _set_age(self) except -1
    cdef int _assign_offsets(self, unsigned char *p, Py_ssize_t size) except -1
    cdef int _write(self, unsigned char *data, Py_ssize_t size) except -1
    cdef int _placed(self, int64_t size, int64_t next_offset, int64_t largest, int64_t largest_at) except -1
    cpdef Slice read_now(self, int64_t offset, int64_t max_bytes, int64_t up_to)
    cdef int64_t _position_of(self, int64_t offset) except -2
    cdef int _remember(self, int64_t offset, int64_t position) except -1
