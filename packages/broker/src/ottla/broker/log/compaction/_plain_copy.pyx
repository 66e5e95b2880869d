# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Copying what compaction keeps of many batches, natively. `_plain_copy.pyi` documents it."""

from array import array

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ottla.broker.log.compaction._offset_map cimport Body, OffsetMap, plain_at
from ottla.protocol.records._batch cimport (
    ATTRIBUTES_AT,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    ENTRY_OVERHEAD,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    get16,
    get32,
    get64,
    put32,
    put64,
)
from ottla.protocol.records._codec cimport checksum_without_gil
from ottla.protocol.records._record cimport RawRecord, parse_record


cdef struct IndexPoint:
    int64_t position
    int64_t last_offset
    int64_t largest
    int64_t largest_at


cdef class PlainCopy:
    cdef OffsetMap _keys
    cdef int64_t _now_ms
    cdef bytes _last_offsets_kept
    cdef const int64_t *_last_offsets
    cdef Py_ssize_t _last_count
    cdef unsigned char *_to
    cdef Py_ssize_t _size
    cdef IndexPoint *_points
    cdef Py_ssize_t _most_points, _point_count
    cdef public bint is_changed
    cdef public int64_t interval, position, indexed, first, largest, largest_at

    def __cinit__(self, OffsetMap keys not None, int64_t now_ms, last_offsets):
        self._keys = keys
        self._now_ms = now_ms
        self._last_offsets_kept = array("q", sorted(last_offsets)).tobytes()
        self._last_offsets = <const int64_t *> <char *> self._last_offsets_kept
        self._last_count = len(self._last_offsets_kept) // sizeof(int64_t)

    def __dealloc__(self):
        free(self._points)

    def copy(self, batches, bytearray to not None, *, bint spares_last):
        cdef Py_buffer view
        cdef Py_ssize_t taken
        self._keys.check()
        PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
        try:
            if PyByteArray_GET_SIZE(to) < view.len:
                raise ValueError(f"{PyByteArray_GET_SIZE(to)} bytes of room for {view.len}")
            self._make_room(view.len)
            self._to = <unsigned char *> PyByteArray_AS_STRING(to)
            with nogil:
                taken = self._copy(<const unsigned char *> view.buf, view.len, spares_last)
            return taken, self._size, self._told()
        finally:
            PyBuffer_Release(&view)

    cdef int _make_room(self, Py_ssize_t size) except -1:
        """Have room for the points of so many bytes; the batches of one chunk rarely need as many."""
        cdef Py_ssize_t most = size // (self.interval + 1 if self.interval > HEADER_SIZE else HEADER_SIZE) + 2
        self._size = self._point_count = 0
        if most > self._most_points:
            free(self._points)
            self._points = <IndexPoint *> malloc(most * sizeof(IndexPoint))
            self._most_points = most if self._points is not NULL else 0
            if self._points is NULL:
                raise MemoryError("no memory for the entries of an index")
        return 0

    cdef list _told(self):
        cdef Py_ssize_t i
        return [
            (one.position, one.last_offset, one.largest, one.largest_at)
            for one in self._points[:self._point_count]
        ]

    cdef Py_ssize_t _copy(self, const unsigned char *p, Py_ssize_t size, bint spares_last) noexcept nogil:
        cdef Body body
        cdef Py_ssize_t at = 0, one
        while True:
            one = plain_at(p + at, size - at, &body)
            if not one or (spares_last and at + one == size) or not self._copy_batch(p + at, one, &body):
                return at
            at += one

    cdef bint _copy_batch(self, const unsigned char *batch, Py_ssize_t size, Body *body) noexcept nogil:
        """Copy what is kept of a batch; false, and nothing is done, where more than its keys decides."""
        cdef unsigned char *head = self._to + self._size
        cdef unsigned char *to = head + HEADER_SIZE
        cdef const unsigned char *p = body.start
        cdef const unsigned char *record
        cdef bint has_horizon = body.attributes & DELETE_HORIZON
        cdef bint keeps_tombstones = not has_horizon or self._now_ms < body.base_timestamp
        cdef int64_t newest = -1
        cdef int32_t i, kept = 0, delta = -1
        cdef RawRecord r
        for i in range(body.count):
            record = p
            p = parse_record(p, body.end, &r)
            if p is NULL or r.offset_delta <= delta:
                return False
            delta = r.offset_delta
            if not self._keys.is_kept(&r, body.base_offset + r.offset_delta, keeps_tombstones):
                continue
            if r.value_size < 0 and not has_horizon:
                return False
            memcpy(to, record, p - record)
            to += p - record
            kept += 1
            if body.base_timestamp + r.timestamp_delta > newest:
                newest = body.base_timestamp + r.timestamp_delta
        if p is not body.end or delta > body.last_delta:
            return False
        if not kept and get64(batch + PRODUCER_ID_AT) >= 0 and self._is_last(batch):
            return False
        if kept != body.count:
            self.is_changed = True
        if kept:
            memcpy(head, batch, HEADER_SIZE)
            if kept != body.count:
                self._write_head(head, to - head, kept, newest)
            self._place(head, to - head)
        return True

    cdef bint _is_last(self, const unsigned char *batch) noexcept nogil:
        """Whether a batch is the last one of a producer."""
        cdef int64_t offset = get64(batch) + get32(batch + LAST_OFFSET_DELTA_AT)
        cdef Py_ssize_t low = 0, high = self._last_count, middle
        while low < high:
            middle = (low + high) // 2
            if self._last_offsets[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low < self._last_count and self._last_offsets[low] == offset

    cdef void _write_head(self, unsigned char *head, Py_ssize_t size, int32_t kept, int64_t newest) noexcept nogil:
        put32(head + LENGTH_AT, <int32_t> (size - ENTRY_OVERHEAD))
        put32(head + RECORD_COUNT_AT, kept)
        if not get16(head + ATTRIBUTES_AT) & LOG_APPEND_TIME:
            put64(head + MAX_TIMESTAMP_AT, newest)
        put32(head + CRC_AT, <int32_t> checksum_without_gil(0, head + CRC_FROM, size - CRC_FROM))

    cdef void _place(self, const unsigned char *head, Py_ssize_t size) noexcept nogil:
        """Count a batch that was copied, and note what the indexes have to know of it."""
        cdef int64_t last_offset = get64(head) + get32(head + LAST_OFFSET_DELTA_AT)
        cdef int64_t newest = get64(head + MAX_TIMESTAMP_AT)
        if not self.position:
            self.first = newest
        if newest > self.largest:
            self.largest, self.largest_at = newest, last_offset
        if self.position - self.indexed > self.interval:
            self._points[self._point_count] = IndexPoint(
                self.position, last_offset, self.largest, self.largest_at
            )
            self._point_count += 1
            self.indexed = self.position
        self.position += size
        self._size += size
