# cython: language_level=3
"""Plain Produce requests: see `produce.pyi`."""

from libc.stdint cimport int32_t, int64_t


cdef struct PlacedRequest:
    int32_t correlation_id
    int32_t record_count
    const unsigned char *batch
    Py_ssize_t batch_size


cdef struct PlainProduce:
    int version
    int acks
    int32_t timeout_ms
    int32_t correlation_id
    const unsigned char *topic
    Py_ssize_t topic_size
    int32_t partition
    const unsigned char *batch
    Py_ssize_t batch_size
    int32_t record_count


cdef class ProduceRun:
    cdef readonly bytes key
    cdef readonly object target
    cdef readonly int version
    cdef readonly int acks
    cdef readonly int32_t timeout_ms
    cdef readonly Py_ssize_t count
    cdef readonly int64_t records
    cdef readonly Py_ssize_t size_in_bytes
    cdef readonly object batches
    cdef public int32_t throttle_time_ms
    cdef Py_ssize_t start        # in the memory it was found in
    cdef Py_ssize_t end
    cdef PlacedRequest few[32]
    cdef PlacedRequest *requests
    cdef Py_ssize_t capacity

    cdef Py_ssize_t request_bytes(self) noexcept
    cdef int add(self, const PlainProduce *one) except -1
    cdef int finish(self, bytearray source, view) except -1
    cpdef bytes answers(self, int64_t base_offset, int64_t log_append_time_ms, int64_t log_start_offset)
    cpdef bytes repeated(self, bytes body)


cdef ProduceRun take_run(
    bytearray source, view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_frame_bytes, dict index
)
