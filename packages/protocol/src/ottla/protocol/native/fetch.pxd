# cython: language_level=3
"""Plain Fetch requests: see `fetch.pyi`."""

from libc.stdint cimport int32_t, int64_t


cdef class PlainFetch:
    cdef readonly object target
    cdef readonly bytes key
    cdef readonly int version
    cdef readonly int32_t correlation_id
    cdef readonly int32_t max_wait_ms
    cdef readonly int32_t min_bytes
    cdef readonly int32_t max_bytes
    cdef readonly bint committed_only
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t offset
    cdef readonly int32_t partition_max_bytes
    cdef readonly bytes rack
    cdef readonly Py_ssize_t size_in_bytes
    cdef Py_ssize_t start        # in the memory it was found in
    cdef Py_ssize_t end

    cpdef bytes head(
        self, int64_t high_watermark, int64_t last_stable_offset, int64_t log_start_offset, Py_ssize_t size
    )
    cdef unsigned char *write_sizes(self, unsigned char *p, Py_ssize_t size) noexcept


cdef PlainFetch take_fetch(
    bytearray source, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_frame_bytes, dict index
)
