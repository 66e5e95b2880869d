# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The newest offset of each key, and the walk over records that asks for it, natively.

`_offset_map.pyi` documents it, `offset_map.py` is the way in.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from ottla.protocol.records._batch cimport (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    DELETE_HORIZON,
    ENTRY_OVERHEAD,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP_AT,
    MIN_RECORD_SIZE,
    RECORD_COUNT_AT,
    entry_size,
    get16,
    get32,
    get64,
    get_varint,
    get_varlong,
    put16,
    put32,
    put64,
    put_varint,
    varint_size,
)
from ottla.protocol.records._codec cimport seal
from ottla.protocol.records._record cimport RawRecord, parse_record

from ottla.protocol.records import Codec, UnreadableRecords, compress
from ottla.protocol.records.compression import decompress_as_readers_do

cdef extern from "sip_hash.h" nogil:
    ctypedef struct ottla_hash128:
        uint64_t low
        uint64_t high
    ottla_hash128 ottla_sip_hash(const unsigned char *data, size_t size, uint64_t k0, uint64_t k1)

cdef extern from "Python.h":
    int PyBUF_READ

cdef enum:
    RELEASE_ABOVE = 4096        # below this, giving the GIL away costs more than the work
    MOST_GROWTH = 16            # bytes that a record may grow by when its time is rewritten
    WHOLE = 0
    MAP_FULL = 1
    MALFORMED = 2


cdef struct Choice:
    int32_t kept
    bint has_tombstone
    int64_t newest
    int state


cdef class OffsetMap:
    def __cinit__(self, int64_t slots, double load_factor, bytes hash_key not None):
        if slots < 2 or len(hash_key) != 16:
            raise ValueError("an offset map has at least 2 slots and a hash key of 16 bytes")
        self.slots = slots
        self.most = max(1, min(<int64_t> (slots * load_factor), slots - 1))
        self.latest_offset = -1
        self._k0 = int.from_bytes(hash_key[:8], "little")
        self._k1 = int.from_bytes(hash_key[8:], "little")
        self._slots = <Slot *> calloc(slots, sizeof(Slot))
        if self._slots is NULL:
            raise MemoryError(f"no memory for an offset map of {slots} slots")

    def __dealloc__(self):
        free(self._slots)

    def release(self):
        cdef Slot *slots = self._slots
        self._slots = NULL
        self.most = 0
        with nogil:
            free(slots)

    cdef int check(self) except -1:
        if self._slots is NULL:
            raise ValueError("the offset map was released")
        return 0

    def __len__(self):
        return self.count

    cdef Slot *_slot(self, const unsigned char *key, int32_t size) noexcept nogil:
        """The slot of a key, or the free one where it would be."""
        cdef ottla_hash128 hash = ottla_sip_hash(key, size, self._k0, self._k1)
        cdef int64_t at = <int64_t> (hash.low % <uint64_t> self.slots)
        cdef Slot *slot
        while True:
            slot = self._slots + at
            if slot.above == 0:
                slot.low, slot.high = hash.low, hash.high
                return slot
            if slot.low == hash.low and slot.high == hash.high:
                return slot
            at += 1
            if at == self.slots:
                at = 0

    cdef bint _put(self, const unsigned char *key, int32_t size, int64_t offset) noexcept nogil:
        cdef Slot *slot
        if self.count >= self.most:
            return False
        slot = self._slot(key, size)
        if slot.above == 0:
            self.count += 1
        slot.above = offset + 1
        return True

    def put(self, bytes key not None, int64_t offset):
        return self._put(<const unsigned char *> <char *> key, <int32_t> len(key), offset)

    def get(self, bytes key not None):
        self.check()
        return self._slot(<const unsigned char *> <char *> key, <int32_t> len(key)).above - 1

    def add(self, batch, int64_t from_offset, *, max_decompressed_bytes):
        cdef Py_buffer view
        cdef Body body
        cdef object plain
        cdef int state
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            plain = _open(<const unsigned char *> view.buf, view.len, &body, max_decompressed_bytes)
            if body.end - body.start < RELEASE_ABOVE:
                state = self._add(&body, from_offset)
            else:
                with nogil:
                    state = self._add(&body, from_offset)
        finally:
            PyBuffer_Release(&view)
        if state == MALFORMED:
            raise _unreadable(&body)
        return state == WHOLE

    cdef int _add(self, Body *body, int64_t from_offset) noexcept nogil:
        """Put the keys of a batch; none of a malformed one: records without a reader supersede nothing."""
        cdef const unsigned char *p = body.start
        cdef int32_t i
        cdef RawRecord r
        if not _is_whole(body):
            return MALFORMED
        for i in range(body.count):
            p = parse_record(p, body.end, &r)
            if r.key_size < 0 or body.base_offset + r.offset_delta < from_offset:
                continue
            if not self._put(r.key, r.key_size, body.base_offset + r.offset_delta):
                return MAP_FULL
        return WHOLE

    def add_plain(self, batches, int64_t from_offset):
        cdef Py_buffer view
        cdef Py_ssize_t taken
        PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                taken = self._add_plain(<const unsigned char *> view.buf, view.len, from_offset)
            return taken
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t _add_plain(self, const unsigned char *p, Py_ssize_t size, int64_t from_offset) noexcept nogil:
        cdef Body body
        cdef Py_ssize_t at = 0, one
        cdef int64_t last
        while True:
            one = plain_at(p + at, size - at, &body)
            if not one or self._add(&body, from_offset) != WHOLE:
                return at
            last = body.base_offset + get32(p + at + LAST_OFFSET_DELTA_AT)
            if last >= from_offset:
                self.latest_offset = last
            at += one

    cdef bint is_kept(self, RawRecord *r, int64_t offset, bint keeps_tombstones) noexcept nogil:
        if offset > self.latest_offset:
            return True
        if r.key_size < 0 or offset < self._slot(r.key, r.key_size).above - 1:
            return False
        return r.value_size >= 0 or keeps_tombstones


cdef bint _is_whole(Body *body) noexcept nogil:
    """Whether the records can be read, fill the batch and have rising offsets in it."""
    cdef const unsigned char *p = body.start
    cdef int32_t i, delta = -1
    cdef RawRecord r
    for i in range(body.count):
        p = parse_record(p, body.end, &r)
        if p is NULL or r.offset_delta <= delta:
            return False
        delta = r.offset_delta
    return p is body.end and delta <= body.last_delta


cdef object _unreadable(Body *body):
    return UnreadableRecords(f"the batch at offset {body.base_offset} has records that cannot be read")


cdef object _open(const unsigned char *p, Py_ssize_t size, Body *body, Py_ssize_t limit):
    """Find the records of a batch; returns what keeps their bytes alive."""
    cdef object plain = None
    body.attributes = get16(p + ATTRIBUTES_AT)
    body.count = get32(p + RECORD_COUNT_AT)
    body.last_delta = get32(p + LAST_OFFSET_DELTA_AT)
    body.base_offset = get64(p)
    body.base_timestamp = get64(p + BASE_TIMESTAMP_AT)
    body.start = p + HEADER_SIZE
    body.end = p + size
    if body.attributes & CODEC_MASK and body.count:
        packed = PyMemoryView_FromMemory(<char *> body.start, size - HEADER_SIZE, PyBUF_READ)
        plain = decompress_as_readers_do(body.attributes & CODEC_MASK, packed, max_bytes=limit)
        body.start = <const unsigned char *> PyByteArray_AS_STRING(plain)
        body.end = body.start + PyByteArray_GET_SIZE(plain)
    if body.count < 0 or <int64_t> body.count * MIN_RECORD_SIZE > body.end - body.start:
        raise UnreadableRecords(f"{body.end - body.start} bytes cannot hold {body.count} records")
    return plain


cdef void _choose(
    Body *body, OffsetMap keys, bint all_of_them, bint keeps_tombstones, unsigned char *kept, Choice *choice
) noexcept nogil:
    """Mark the records that are kept."""
    cdef const unsigned char *p = body.start
    cdef int32_t i
    cdef RawRecord r
    choice.kept = 0
    choice.has_tombstone = False
    choice.newest = -1
    choice.state = MALFORMED
    if not _is_whole(body):
        return
    for i in range(body.count):
        p = parse_record(p, body.end, &r)
        kept[i] = all_of_them or keys.is_kept(&r, body.base_offset + r.offset_delta, keeps_tombstones)
        if kept[i]:
            choice.kept += 1
            if r.value_size < 0:
                choice.has_tombstone = True
            if body.base_timestamp + r.timestamp_delta > choice.newest:
                choice.newest = body.base_timestamp + r.timestamp_delta
    choice.state = WHOLE


cdef Py_ssize_t _copy(Body *body, const unsigned char *kept, int64_t shift, unsigned char *out) noexcept nogil:
    """Write the kept records; `shift` is added to what their times are after the base timestamp."""
    cdef const unsigned char *p = body.start
    cdef const unsigned char *record
    cdef const unsigned char *rest
    cdef unsigned char *to = out
    cdef int32_t i, size
    cdef int64_t delta
    for i in range(body.count):
        record = p
        rest = get_varint(p, body.end, &size)
        p = rest + size
        if not kept[i]:
            continue
        if shift == 0:
            memcpy(to, record, p - record)
            to += p - record
            continue
        rest = get_varlong(rest + 1, p, &delta)
        delta += shift
        to = put_varint(to, 1 + varint_size(delta) + (p - rest))
        to[0] = 0
        to = put_varint(to + 1, delta)
        memcpy(to, rest, p - rest)
        to += p - rest
    return to - out


def retained(batch, OffsetMap keys, int64_t now_ms, int64_t horizon_ms, *, bint marked, max_decompressed_bytes):
    cdef Py_buffer view
    cdef Body body
    cdef Choice choice
    cdef unsigned char *kept = NULL
    cdef bint keeps_tombstones, has_horizon, sets_horizon
    cdef object plain
    keys.check()
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        plain = _open(<const unsigned char *> view.buf, view.len, &body, max_decompressed_bytes)
        has_horizon = body.attributes & DELETE_HORIZON
        keeps_tombstones = not has_horizon or now_ms < body.base_timestamp
        kept = <unsigned char *> malloc(body.count + 1)
        if kept is NULL:
            raise MemoryError(f"no memory for a batch of {body.count} records")
        if body.end - body.start < RELEASE_ABOVE:
            _choose(&body, keys, marked, keeps_tombstones, kept, &choice)
        else:
            with nogil:
                _choose(&body, keys, marked, keeps_tombstones, kept, &choice)
        if choice.state == MALFORMED:
            raise _unreadable(&body)
        sets_horizon = (choice.has_tombstone or marked) and not has_horizon
        if choice.kept == 0:
            return None
        if choice.kept == body.count and not sets_horizon:
            return batch
        return _written(<const unsigned char *> view.buf, &body, kept, &choice, sets_horizon, horizon_ms)
    finally:
        free(kept)
        PyBuffer_Release(&view)


cdef object _written(
    const unsigned char *batch, Body *body, const unsigned char *kept, Choice *choice, bint sets_horizon,
    int64_t horizon_ms,
):
    """The batch rebuilt with the kept records."""
    cdef int64_t shift = body.base_timestamp - horizon_ms if sets_horizon else 0
    cdef bytearray out = bytearray(HEADER_SIZE + (body.end - body.start) + MOST_GROWTH * <int64_t> choice.kept)
    cdef unsigned char *p = <unsigned char *> PyByteArray_AS_STRING(out)
    cdef Py_ssize_t size
    memcpy(p, batch, HEADER_SIZE)
    with nogil:
        size = HEADER_SIZE + _copy(body, kept, shift, p + HEADER_SIZE)
    del out[size:]
    if body.attributes & CODEC_MASK:
        packed = compress(Codec(body.attributes & CODEC_MASK), memoryview(out)[HEADER_SIZE:])
        out = bytearray(memoryview(out)[:HEADER_SIZE])
        out += packed
    size = PyByteArray_GET_SIZE(out)
    p = <unsigned char *> PyByteArray_AS_STRING(out)
    put32(p + LENGTH_AT, <int32_t> (size - ENTRY_OVERHEAD))
    put32(p + RECORD_COUNT_AT, choice.kept)
    if not body.attributes & LOG_APPEND_TIME:
        put64(p + MAX_TIMESTAMP_AT, choice.newest)
    if sets_horizon:
        put16(p + ATTRIBUTES_AT, <int16_t> (body.attributes | DELETE_HORIZON))
        put64(p + BASE_TIMESTAMP_AT, horizon_ms)
    seal(p, size)
    return out
