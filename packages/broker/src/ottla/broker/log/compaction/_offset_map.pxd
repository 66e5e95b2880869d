# cython: language_level=3
"""The map of `_offset_map`, and the walk over plain batches, for other compiled modules."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from ottla.protocol.records._batch cimport (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_FROM,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    MAGIC_AT,
    MIN_RECORD_SIZE,
    RECORD_COUNT_AT,
    TRANSACTIONAL,
    entry_size,
    get16,
    get32,
    get64,
)
from ottla.protocol.records._codec cimport checksum_without_gil
from ottla.protocol.records._record cimport RawRecord


cdef struct Slot:
    uint64_t low
    uint64_t high
    int64_t above               # the offset plus one; 0: the slot is free


cdef struct Body:
    const unsigned char *start
    const unsigned char *end
    int32_t count
    int32_t last_delta
    int64_t base_offset
    int64_t base_timestamp
    int attributes


cdef class OffsetMap:
    cdef Slot *_slots
    cdef uint64_t _k0, _k1
    cdef readonly int64_t slots, most, count
    cdef public int64_t latest_offset

    cdef int check(self) except -1
    cdef Slot *_slot(self, const unsigned char *key, int32_t size) noexcept nogil
    cdef bint _put(self, const unsigned char *key, int32_t size, int64_t offset) noexcept nogil
    cdef int _add(self, Body *body, int64_t from_offset) noexcept nogil
    cdef Py_ssize_t _add_plain(self, const unsigned char *p, Py_ssize_t size, int64_t from_offset) noexcept nogil
    cdef bint is_kept(self, RawRecord *r, int64_t offset, bint keeps_tombstones) noexcept nogil


cdef inline Py_ssize_t plain_at(const unsigned char *p, Py_ssize_t available, Body *body) noexcept nogil:
    """The size of the sound batch here, 0 unless nothing but its keys decides what is kept of it.

    It is neither compressed nor of a transaction, and has records.
    """
    cdef Py_ssize_t size
    if available < HEADER_SIZE or p[MAGIC_AT] != 2:
        return 0
    size = entry_size(p)
    body.attributes = get16(p + ATTRIBUTES_AT)
    if size < HEADER_SIZE or size > available or body.attributes & (CODEC_MASK | TRANSACTIONAL | CONTROL):
        return 0
    body.count = get32(p + RECORD_COUNT_AT)
    body.last_delta = get32(p + LAST_OFFSET_DELTA_AT)
    if body.count <= 0 or body.last_delta < 0 or <int64_t> body.count > <int64_t> body.last_delta + 1:
        return 0
    if <int64_t> body.count * MIN_RECORD_SIZE > size - HEADER_SIZE:
        return 0
    if <uint32_t> get32(p + CRC_AT) != checksum_without_gil(0, p + CRC_FROM, size - CRC_FROM):
        return 0
    body.base_offset = get64(p)
    body.base_timestamp = get64(p + BASE_TIMESTAMP_AT)
    body.start = p + HEADER_SIZE
    body.end = p + size
    return size
