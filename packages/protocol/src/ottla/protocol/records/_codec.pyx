# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False,
# freethreading_compatible=True
"""The native part of ottla.protocol.records; the façade documents it, `_codec.pyi` types it."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t
from libc.string cimport memcpy

from ottla.protocol.errors import UnsupportedCompressionType
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES as _DEFAULT_MAX
from ottla.protocol.records.compression import compress as _compress
from ottla.protocol.records.compression import decompress as _decompress
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.types import Codec, TimestampType

cdef extern from "crc32c.h" nogil:
    ctypedef uint32_t (*ottla_crc_function)(uint32_t, const unsigned char*, size_t) noexcept nogil
    void ottla_crc_choose()
    uint32_t ottla_crc32c(uint32_t, const unsigned char*, size_t)
    int ottla_crc_count
    const char** ottla_crc_names
    ottla_crc_function* ottla_crc_functions

cdef extern from "wire.h" nogil:
    int64_t get64(const unsigned char*)
    int32_t get32(const unsigned char*)
    int16_t get16(const unsigned char*)
    void put64(unsigned char*, int64_t)
    void put32(unsigned char*, int32_t)
    void put16(unsigned char*, int16_t)
    int varint_size(int64_t)
    unsigned char* put_varint(unsigned char*, int64_t)
    const unsigned char* get_varint(const unsigned char*, const unsigned char*, int32_t*)
    const unsigned char* get_varlong(const unsigned char*, const unsigned char*, int64_t*)

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1
    object PyMemoryView_FromMemory(char*, Py_ssize_t, int)
    int PyBUF_READ

ottla_crc_choose()

cdef enum:
    ENTRY_OVERHEAD = 12          # base offset and length, in front of every entry of any magic
    MAGIC_AT = 16
    CRC_AT = 17
    CRC_FROM = 21
    HEADER_SIZE = 61
    MIN_RECORD_SIZE = 7
    MIN_LEGACY_ENTRY = 26        # magic 0 with a null key and a null value
    CODEC_MASK = 7
    MAX_CODEC = 4
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32
    DELETE_HORIZON = 64
    RELEASE_ABOVE = 16384        # below this, giving the GIL away costs more than the work
    MAX_BATCH_SIZE = 2147483647

cdef tuple _CODECS = tuple(Codec)
cdef tuple _TIMESTAMP_TYPES = tuple(TimestampType)
cdef tuple _NO_HEADERS = ()


# -------------------------------------------------------------------------------------------------- checksums
cdef inline uint32_t _checksum(uint32_t value, const unsigned char* p, Py_ssize_t size) noexcept:
    if size < RELEASE_ABOVE:
        return ottla_crc32c(value, p, size)
    with nogil:
        value = ottla_crc32c(value, p, size)
    return value


def crc32c(data, value=0):
    cdef Py_buffer view
    cdef uint32_t crc = value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    crc = _checksum(crc, <const unsigned char*>view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


def crc32c_implementations():
    """Names of the routines this processor can run, slowest first; the last one is in use."""
    return [ottla_crc_names[i].decode() for i in range(ottla_crc_count)]


def crc32c_with(str implementation, data, value=0):
    """`crc32c` by one named routine: for tests and benchmarks."""
    cdef Py_buffer view
    cdef uint32_t crc = value
    cdef int which = crc32c_implementations().index(implementation)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    crc = ~ottla_crc_functions[which](~crc, <const unsigned char*>view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


# ---------------------------------------------------------------------------------------------------- murmur2
cdef inline int32_t _murmur2(const unsigned char* data, Py_ssize_t length) noexcept nogil:
    cdef uint32_t m = <uint32_t>0x5bd1e995u
    cdef uint32_t h = <uint32_t>0x9747b28cu ^ <uint32_t>length
    cdef uint32_t k
    cdef Py_ssize_t i, words = length >> 2
    for i in range(words):
        k = (<uint32_t>data[4 * i] | <uint32_t>data[4 * i + 1] << 8
             | <uint32_t>data[4 * i + 2] << 16 | <uint32_t>data[4 * i + 3] << 24)
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
    data += 4 * words
    i = length & 3
    if i == 3:
        h ^= <uint32_t>data[2] << 16
    if i >= 2:
        h ^= <uint32_t>data[1] << 8
    if i >= 1:
        h ^= <uint32_t>data[0]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return <int32_t>h


def murmur2(data):
    cdef Py_buffer view
    cdef int32_t value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    value = _murmur2(<const unsigned char*>view.buf, view.len)
    PyBuffer_Release(&view)
    return value


# ---------------------------------------------------------------------------------------------------- headers
@cython.final
@cython.freelist(64)
@cython.no_gc
cdef class BatchHeader:
    cdef readonly Py_ssize_t position
    cdef readonly int64_t base_offset, base_timestamp, max_timestamp, producer_id
    cdef readonly uint32_t crc
    cdef readonly int32_t batch_length, partition_leader_epoch, last_offset_delta, base_sequence, record_count
    cdef readonly int16_t attributes, producer_epoch
    cdef readonly signed char magic

    @property
    def size_in_bytes(self):
        return <Py_ssize_t>self.batch_length + ENTRY_OVERHEAD

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self):
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self):
        return _codec_of(self.attributes)

    @property
    def timestamp_type(self):
        return _TIMESTAMP_TYPES[(self.attributes & LOG_APPEND_TIME) >> 3]

    @property
    def is_transactional(self):
        return (self.attributes & TRANSACTIONAL) != 0

    @property
    def is_control(self):
        return (self.attributes & CONTROL) != 0

    @property
    def has_delete_horizon(self):
        return (self.attributes & DELETE_HORIZON) != 0

    @property
    def has_producer_id(self):
        return self.producer_id > -1

    @property
    def last_sequence(self):
        if self.base_sequence < 0:
            return -1
        # sequences wrap from Int.MAX to 0, as Kafka's
        return <int64_t>(<uint32_t>self.base_sequence + <uint32_t>self.last_offset_delta) & 0x7fffffff

    def __repr__(self):
        return (
            f"BatchHeader(base_offset={self.base_offset}, last_offset={self.last_offset}, "
            f"size_in_bytes={self.size_in_bytes}, record_count={self.record_count}, "
            f"partition_leader_epoch={self.partition_leader_epoch}, attributes={self.attributes:#x}, "
            f"base_timestamp={self.base_timestamp}, max_timestamp={self.max_timestamp}, "
            f"producer_id={self.producer_id}, producer_epoch={self.producer_epoch}, "
            f"base_sequence={self.base_sequence})"
        )


cdef object _codec_of(int attributes):
    cdef int codec = attributes & CODEC_MASK
    if codec > MAX_CODEC:
        raise UnsupportedCompressionType(f"compression type {codec} does not exist")
    return _CODECS[codec]


cdef BatchHeader _header_at(const unsigned char* p, Py_ssize_t position):
    cdef BatchHeader h = BatchHeader.__new__(BatchHeader)
    h.position = position
    h.base_offset = get64(p)
    h.batch_length = get32(p + 8)
    h.partition_leader_epoch = get32(p + 12)
    h.magic = <signed char>p[MAGIC_AT]
    h.crc = <uint32_t>get32(p + CRC_AT)
    h.attributes = get16(p + 21)
    h.last_offset_delta = get32(p + 23)
    h.base_timestamp = get64(p + 27)
    h.max_timestamp = get64(p + 35)
    h.producer_id = get64(p + 43)
    h.producer_epoch = get16(p + 51)
    h.base_sequence = get32(p + 53)
    h.record_count = get32(p + 57)
    return h


cdef enum:
    WHOLE = 0
    TORN = 1                     # more bytes are needed to tell, or the entry goes on behind the buffer's end
    TOO_SHORT = 2                # a length no entry can have
    UNKNOWN_MAGIC = 3


cdef inline int _entry_at(const unsigned char* p, Py_ssize_t available, Py_ssize_t* size) noexcept nogil:
    """Look at one entry of any magic; `size` is set unless the length itself is missing."""
    cdef int32_t length
    size[0] = 0
    if available < ENTRY_OVERHEAD:
        return TORN
    length = get32(p + 8)
    size[0] = <Py_ssize_t>length + ENTRY_OVERHEAD
    if length < MIN_LEGACY_ENTRY - ENTRY_OVERHEAD:
        return TOO_SHORT
    if available <= MAGIC_AT:
        return TORN
    if p[MAGIC_AT] > 2:
        return UNKNOWN_MAGIC
    if p[MAGIC_AT] == 2 and size[0] < HEADER_SIZE:
        return TOO_SHORT
    if size[0] > available:
        return TORN
    return WHOLE


cdef _refuse(int state, const unsigned char* p, Py_ssize_t available, Py_ssize_t size, Py_ssize_t position):
    if state == TOO_SHORT:
        raise CorruptRecords(f"the entry at byte {position} says it is {size} bytes long, too few for its format")
    if state == UNKNOWN_MAGIC:
        raise CorruptRecords(f"the entry at byte {position} has magic {p[MAGIC_AT]}, which does not exist")
    if size:
        raise CorruptRecords(f"the entry at byte {position} says it is {size} bytes long, {available} are there")
    raise CorruptRecords(f"{available} bytes at byte {position} are too few for an entry")


cdef _refuse_legacy(const unsigned char* p, Py_ssize_t position):
    raise CorruptRecords(f"the entry at byte {position} has magic {p[MAGIC_AT]}, a batch of magic 2 is needed here")


cdef Py_ssize_t _batch_at(const unsigned char* p, Py_ssize_t available, Py_ssize_t position) except -1:
    """The size of the whole v2 batch at `p`, or CorruptRecords."""
    cdef Py_ssize_t size
    cdef int state = _entry_at(p, available, &size)
    if state != WHOLE:
        _refuse(state, p, available, size, position)
    if p[MAGIC_AT] != 2:
        _refuse_legacy(p, position)
    return size


def read_header(buffer, Py_ssize_t position=0):
    cdef Py_buffer view
    cdef const unsigned char* p
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or position > view.len or view.len - position < HEADER_SIZE:
            raise CorruptRecords(f"{view.len} bytes are too few for a batch header at byte {position}")
        p = <const unsigned char*>view.buf + position
        if p[MAGIC_AT] != 2:
            if p[MAGIC_AT] > 2:
                _refuse(UNKNOWN_MAGIC, p, 0, 0, position)
            _refuse_legacy(p, position)
        if get32(p + 8) < HEADER_SIZE - ENTRY_OVERHEAD:
            _refuse(TOO_SHORT, p, 0, <Py_ssize_t>get32(p + 8) + ENTRY_OVERHEAD, position)
        return _header_at(p, position)
    finally:
        PyBuffer_Release(&view)


def read_headers(buffer, *, bint torn_tail=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t position = 0, size
    cdef int state
    cdef list headers = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <const unsigned char*>view.buf + position
            state = _entry_at(p, view.len - position, &size)
            if state != WHOLE:
                if state == TORN and torn_tail:
                    break
                _refuse(state, p, view.len - position, size, position)
            if p[MAGIC_AT] != 2:
                _refuse_legacy(p, position)
            headers.append(_header_at(p, position))
            position += size
        return headers
    finally:
        PyBuffer_Release(&view)


def magic_at(buffer, Py_ssize_t position=0):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or view.len - position <= MAGIC_AT:
            raise CorruptRecords(f"{view.len} bytes are too few for an entry at byte {position}")
        return (<const unsigned char*>view.buf)[position + MAGIC_AT]
    finally:
        PyBuffer_Release(&view)


def all_magic_2(buffer):
    """Whether every entry is a v2 batch, so that nothing needs conversion."""
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t position = 0, size
    cdef int state
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <const unsigned char*>view.buf + position
            state = _entry_at(p, view.len - position, &size)
            if state != WHOLE:
                _refuse(state, p, view.len - position, size, position)
            if p[MAGIC_AT] != 2:
                return False
            position += size
        return True
    finally:
        PyBuffer_Release(&view)


def split_batches(buffer, *, bint torn_tail=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t position = 0, size
    cdef int state
    whole = memoryview(buffer)
    PyObject_GetBuffer(whole, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <const unsigned char*>view.buf + position
            state = _entry_at(p, view.len - position, &size)
            if state != WHOLE:
                if state == TORN and torn_tail:
                    return
                _refuse(state, p, view.len - position, size, position)
            yield whole[position:position + size]
            position += size
    finally:
        PyBuffer_Release(&view)


# ------------------------------------------------------------------------------------------------ record walk
cdef struct RawRecord:
    int64_t offset_delta
    int64_t timestamp_delta
    const unsigned char* key
    const unsigned char* value
    const unsigned char* headers
    int32_t key_size
    int32_t value_size
    int32_t header_count


cdef inline const unsigned char* _skip_headers(const unsigned char* p, const unsigned char* end, int32_t count) noexcept nogil:
    cdef int32_t size, i
    # every header takes at least two bytes: a hostile count costs no walk
    if count < 0 or count > (end - p) // 2:
        return NULL
    for i in range(count):
        p = get_varint(p, end, &size)
        if p is NULL or size < 0 or size > end - p:
            return NULL
        p = get_varint(p + size, end, &size)
        if p is NULL or size > end - p:
            return NULL
        if size > 0:
            p += size
    return p


cdef inline const unsigned char* _parse(const unsigned char* p, const unsigned char* end, RawRecord* r) noexcept nogil:
    """Read one record wholly inside [p, end); return where the next begins, or NULL when it is malformed."""
    cdef int32_t size
    cdef const unsigned char* record_end
    p = get_varint(p, end, &size)
    if p is NULL or size < 1 or size > end - p:
        return NULL
    record_end = p + size
    p = get_varlong(p + 1, record_end, &r.timestamp_delta)
    if p is NULL:
        return NULL
    p = get_varint(p, record_end, &size)
    if p is NULL:
        return NULL
    r.offset_delta = size
    p = get_varint(p, record_end, &r.key_size)
    if p is NULL or r.key_size > record_end - p:
        return NULL
    r.key = p
    if r.key_size > 0:
        p += r.key_size
    p = get_varint(p, record_end, &r.value_size)
    if p is NULL or r.value_size > record_end - p:
        return NULL
    r.value = p
    if r.value_size > 0:
        p += r.value_size
    p = get_varint(p, record_end, &r.header_count)
    if p is NULL:
        return NULL
    r.headers = p
    if r.header_count:
        p = _skip_headers(p, record_end, r.header_count)
    # a record that does not fill its length is as wrong as one that runs over
    if p is not record_end:
        return NULL
    return record_end


cdef struct Walk:
    int32_t parsed               # records before the first bad one
    int32_t keyless
    int32_t last_offset_delta
    int64_t min_timestamp_delta
    int64_t max_timestamp_delta
    bint whole                   # every byte belongs to a good record
    bint dense                   # offset deltas are 0, 1, 2, ...
    bint rising                  # offset deltas rise


cdef Walk _walk(const unsigned char* p, const unsigned char* end, int32_t count) noexcept nogil:
    cdef Walk walk
    cdef RawRecord r
    walk.parsed = 0
    walk.keyless = 0
    walk.last_offset_delta = -1
    walk.min_timestamp_delta = 0
    walk.max_timestamp_delta = 0
    walk.whole = False
    walk.dense = True
    walk.rising = True
    while walk.parsed < count:
        p = _parse(p, end, &r)
        if p is NULL:
            return walk
        if r.key_size < 0:
            walk.keyless += 1
        if r.offset_delta != walk.parsed:
            walk.dense = False
        if r.offset_delta <= walk.last_offset_delta:
            walk.rising = False
        walk.last_offset_delta = <int32_t>r.offset_delta
        if walk.parsed == 0 or r.timestamp_delta < walk.min_timestamp_delta:
            walk.min_timestamp_delta = r.timestamp_delta
        if walk.parsed == 0 or r.timestamp_delta > walk.max_timestamp_delta:
            walk.max_timestamp_delta = r.timestamp_delta
        walk.parsed += 1
    walk.whole = p is end
    return walk


# ------------------------------------------------------------------------------------------------- validation
cdef int _check_counts(const unsigned char* p, Py_ssize_t size, bint dense) except -1:
    cdef int32_t count = get32(p + 57)
    cdef int32_t delta = get32(p + 23)
    if count < 0 or delta < 0 or <int64_t>count > <int64_t>delta + 1:
        raise CorruptRecords(f"a batch of {count} records cannot have the last offset delta {delta}")
    if dense and (count == 0 or <int64_t>count != <int64_t>delta + 1):
        raise CorruptRecords(f"a produced batch of {count} records must have the last offset delta {count - 1}, not {delta}")
    _codec_of(get16(p + 21))
    if get16(p + 21) & CODEC_MASK == 0 and <int64_t>count * MIN_RECORD_SIZE > size - HEADER_SIZE:
        raise CorruptRecords(f"{size - HEADER_SIZE} bytes cannot hold {count} records")
    return 0


cdef int _check_crc(const unsigned char* p, Py_ssize_t size) except -1:
    cdef uint32_t expected = <uint32_t>get32(p + CRC_AT)
    cdef uint32_t actual = _checksum(0, p + CRC_FROM, size - CRC_FROM)
    if expected != actual:
        raise CorruptRecords(f"the batch at offset {get64(p)} has checksum {actual:08x}, its header says {expected:08x}")
    return 0


cdef int _check_walk(Walk walk, int32_t count, int32_t last_delta, bint dense) except -1:
    if walk.parsed < count:
        raise CorruptRecords(f"record {walk.parsed} of {count} is malformed")
    if not walk.whole:
        raise CorruptRecords(f"bytes follow the last of {count} records")
    if not walk.rising or walk.last_offset_delta > last_delta or (dense and not walk.dense):
        raise CorruptRecords(f"the offset deltas of {count} records do not run up to {last_delta}")
    return 0


cdef Walk _walk_body(const unsigned char* p, Py_ssize_t size, Py_ssize_t limit) except *:
    """Walk the records of a checked batch, decompressed when need be."""
    cdef Walk walk
    cdef int32_t count = get32(p + 57)
    cdef int attributes = get16(p + 21)
    cdef const unsigned char* body = p + HEADER_SIZE
    cdef Py_ssize_t body_size = size - HEADER_SIZE
    cdef bytearray plain
    if attributes & CODEC_MASK:
        plain = _plain_body(body, body_size, attributes, limit)
        body = <const unsigned char*>PyByteArray_AS_STRING(plain)
        body_size = PyByteArray_GET_SIZE(plain)
    if body_size < RELEASE_ABOVE:
        walk = _walk(body, body + body_size, count)
    else:
        with nogil:
            walk = _walk(body, body + body_size, count)
    return walk


cdef bytearray _plain_body(const unsigned char* body, Py_ssize_t size, int attributes, Py_ssize_t limit):
    codec = _codec_of(attributes)
    packed = PyMemoryView_FromMemory(<char*>body, size, PyBUF_READ)
    return _decompress(codec, packed, max_bytes=limit)


def validate_batch(batch, *, bint dense=False, bint check_records=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t size
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        p = <const unsigned char*>view.buf
        size = _batch_at(p, view.len, 0)
        if size != view.len:
            raise CorruptRecords(f"{view.len - size} bytes follow the batch")
        _validate(p, size, dense, check_records)
        return _header_at(p, 0)
    finally:
        PyBuffer_Release(&view)


def validate_batches(buffer, *, bint dense=False, bint check_records=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t position = 0, size
    cdef list headers = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <const unsigned char*>view.buf + position
            size = _batch_at(p, view.len - position, position)
            _validate(p, size, dense, check_records)
            headers.append(_header_at(p, position))
            position += size
        return headers
    finally:
        PyBuffer_Release(&view)


cdef int _validate(const unsigned char* p, Py_ssize_t size, bint dense, bint check_records) except -1:
    _check_crc(p, size)
    _check_counts(p, size, dense)
    # compressed records are left alone here: opening them belongs on a thread, see scan_records
    if check_records and get16(p + 21) & CODEC_MASK == 0:
        _check_walk(_walk_body(p, size, 0), get32(p + 57), get32(p + 23), dense)
    return 0


@cython.final
cdef class RecordScan:
    cdef readonly int32_t record_count, keyless_count
    cdef readonly int64_t min_timestamp, max_timestamp


def scan_records(batch, *, max_decompressed_bytes=_DEFAULT_MAX, bint dense=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t size
    cdef Walk walk
    cdef RecordScan scan
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        p = <const unsigned char*>view.buf
        size = _batch_at(p, view.len, 0)
        _check_counts(p, size, dense)
        walk = _walk_body(p, size, max_decompressed_bytes)
        _check_walk(walk, get32(p + 57), get32(p + 23), dense)
        scan = RecordScan.__new__(RecordScan)
        scan.record_count = walk.parsed
        scan.keyless_count = walk.keyless
        scan.min_timestamp = get64(p + 27) + walk.min_timestamp_delta
        scan.max_timestamp = get64(p + 27) + walk.max_timestamp_delta
        return scan
    finally:
        PyBuffer_Release(&view)


# ------------------------------------------------------------------------------------------- changes in place
def assign_offsets(batches, int64_t base_offset, int32_t leader_epoch):
    cdef Py_buffer view
    cdef unsigned char* p
    cdef Py_ssize_t position = 0, size
    PyObject_GetBuffer(batches, &view, PyBUF_WRITABLE)
    try:
        while position < view.len:
            p = <unsigned char*>view.buf + position
            size = _batch_at(p, view.len - position, position)
            put64(p, base_offset)
            put32(p + 12, leader_epoch)
            base_offset += <int64_t>get32(p + 23) + 1
            position += size
        return base_offset
    finally:
        PyBuffer_Release(&view)


cdef inline void _seal(unsigned char* p, Py_ssize_t size) noexcept:
    put32(p + CRC_AT, <int32_t>_checksum(0, p + CRC_FROM, size - CRC_FROM))


def set_log_append_time(batches, int64_t timestamp_ms):
    cdef Py_buffer view
    cdef unsigned char* p
    cdef Py_ssize_t position = 0, size
    PyObject_GetBuffer(batches, &view, PyBUF_WRITABLE)
    try:
        while position < view.len:
            p = <unsigned char*>view.buf + position
            size = _batch_at(p, view.len - position, position)
            put16(p + 21, get16(p + 21) | LOG_APPEND_TIME)
            put64(p + 35, timestamp_ms)
            _seal(p, size)
            position += size
    finally:
        PyBuffer_Release(&view)


def set_producer_state(batch, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence):
    cdef Py_buffer view
    cdef unsigned char* p
    cdef Py_ssize_t size
    PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE)
    try:
        p = <unsigned char*>view.buf
        size = _batch_at(p, view.len, 0)
        put64(p + 43, producer_id)
        put16(p + 51, producer_epoch)
        put32(p + 53, base_sequence)
        _seal(p, size)
    finally:
        PyBuffer_Release(&view)


# ---------------------------------------------------------------------------------------------------- builder
cdef struct Span:
    const unsigned char* data
    int64_t size                 # -1: null


cdef inline Py_ssize_t _span_size(Span* span) noexcept nogil:
    return varint_size(span.size) + (span.size if span.size > 0 else 0)


cdef inline unsigned char* _put_span(unsigned char* p, Span* span) noexcept nogil:
    p = put_varint(p, span.size)
    if span.size > 0:
        memcpy(p, span.data, span.size)
        p += span.size
    return p


cdef bytes _packed_headers(object headers):
    """The headers of one record as they stand in it, the count first."""
    cdef list parts = []
    cdef Py_ssize_t total, size
    cdef unsigned char* p
    cdef bytes out, part
    cdef int64_t signed_size
    for key, value in headers:
        parts.append(_header_key(key))
        parts.append(None if value is None else bytes(value))
    total = varint_size(len(parts) // 2)
    for part in parts:
        size = 0 if part is None else PyBytes_GET_SIZE(part)
        total += varint_size(-1 if part is None else size) + size
    out = PyBytes_FromStringAndSize(NULL, total)
    p = put_varint(<unsigned char*>PyBytes_AS_STRING(out), len(parts) // 2)
    for part in parts:
        if part is None:
            p = put_varint(p, -1)
            continue
        size = PyBytes_GET_SIZE(part)
        p = put_varint(p, size)
        memcpy(p, PyBytes_AS_STRING(part), size)
        p += size
    return out


cdef bytes _header_key(key):
    if not isinstance(key, str):
        raise TypeError(f"a header's key is a str, not {type(key).__name__}")
    return (<str>key).encode("utf-8", "surrogateescape")


@cython.final
@cython.no_gc
cdef class BatchBuilder:
    cdef bytes _owner            # the bytes object being filled, None once built
    cdef unsigned char* _buffer
    cdef Py_ssize_t _position, _capacity
    cdef readonly Py_ssize_t max_bytes
    cdef readonly int32_t record_count
    cdef readonly int64_t base_timestamp, max_timestamp
    cdef int64_t _last_offset_delta
    cdef readonly object codec
    cdef object _level

    def __init__(self, Py_ssize_t max_bytes=16384, *, codec=Codec.NONE, level=None):
        self.max_bytes = max_bytes
        self.codec = Codec(codec)
        self._level = level
        self._capacity = min(max(max_bytes, 256), 1 << 17)
        self._owner = PyBytes_FromStringAndSize(NULL, self._capacity)
        self._buffer = <unsigned char*>PyBytes_AS_STRING(self._owner)
        self._position = HEADER_SIZE
        self._last_offset_delta = -1
        self.base_timestamp = -1
        self.max_timestamp = -1

    @property
    def size_in_bytes(self):
        return self._position

    def __len__(self):
        return self.record_count

    def append(self, key, value, int64_t timestamp_ms, headers=None, *, offset_delta=None):
        cdef Py_buffer key_view, value_view
        cdef bint key_held = False, value_held = False
        cdef Span k, v, h
        cdef bytes packed
        cdef int64_t delta = self._last_offset_delta + 1
        if offset_delta is not None:
            if offset_delta < delta:
                raise ValueError(f"offset delta {offset_delta} does not follow {delta - 1}")
            delta = offset_delta
        h.size = 0
        if headers:
            packed = _packed_headers(headers)
            h.data = <const unsigned char*>PyBytes_AS_STRING(packed)
            h.size = PyBytes_GET_SIZE(packed)
        k.size = -1
        v.size = -1
        try:
            if key is not None:
                if PyBytes_CheckExact(key):
                    k.data = <const unsigned char*>PyBytes_AS_STRING(key)
                    k.size = PyBytes_GET_SIZE(key)
                else:
                    PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
                    key_held = True
                    k.data = <const unsigned char*>key_view.buf
                    k.size = key_view.len
            if value is not None:
                if PyBytes_CheckExact(value):
                    v.data = <const unsigned char*>PyBytes_AS_STRING(value)
                    v.size = PyBytes_GET_SIZE(value)
                else:
                    PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
                    value_held = True
                    v.data = <const unsigned char*>value_view.buf
                    v.size = value_view.len
            return self._put(&k, &v, &h, timestamp_ms, delta)
        finally:
            if key_held:
                PyBuffer_Release(&key_view)
            if value_held:
                PyBuffer_Release(&value_view)

    def append_many(self, list values, int64_t timestamp_ms):
        cdef Py_ssize_t i
        cdef object value
        cdef Span k, v, h
        k.size = -1
        h.size = 0
        for i in range(len(values)):
            value = values[i]
            if not PyBytes_CheckExact(value):
                raise TypeError(f"append_many takes bytes, not {type(value).__name__}")
            v.data = <const unsigned char*>PyBytes_AS_STRING(value)
            v.size = PyBytes_GET_SIZE(value)
            if self._put(&k, &v, &h, timestamp_ms, self._last_offset_delta + 1) < 0:
                return i
        return len(values)

    cdef inline int64_t _put(self, Span* key, Span* value, Span* headers, int64_t timestamp, int64_t delta) except -2:
        """The record's offset delta, -1 when it does not fit any more."""
        cdef Py_ssize_t body, needed
        cdef int64_t timestamp_delta
        cdef unsigned char* p
        if self._owner is None:
            raise ValueError("the batch is built, it takes no more records")
        # only the record after which the limit is reached may be larger than it: an oversized record still
        # travels
        timestamp_delta = timestamp - self.base_timestamp if self.record_count else 0
        body = (
            1 + varint_size(timestamp_delta) + varint_size(delta) + _span_size(key) + _span_size(value)
            + (headers.size if headers.size else 1)
        )
        needed = self._position + varint_size(body) + body
        if needed > self.max_bytes and self.record_count:
            return -1
        if needed > self._capacity:
            self._grow(needed)
        if delta > MAX_BATCH_SIZE:
            raise ValueError(f"offset delta {delta} does not fit in 32 bits")
        if self.record_count == 0:
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        p = put_varint(self._buffer + self._position, body)
        p[0] = 0
        p = put_varint(p + 1, timestamp_delta)
        p = put_varint(p, delta)
        p = _put_span(p, key)
        p = _put_span(p, value)
        if headers.size:
            memcpy(p, headers.data, headers.size)
        else:
            p[0] = 0
        self._position = needed
        self.record_count += 1
        self._last_offset_delta = delta
        return delta

    cdef int _grow(self, Py_ssize_t needed) except -1:
        cdef bytes larger
        if needed > MAX_BATCH_SIZE:
            raise ValueError(f"a batch of {needed} bytes does not fit Kafka's 32-bit length")
        self._capacity = max(needed, min(2 * self._capacity, max(self.max_bytes, needed)))
        larger = PyBytes_FromStringAndSize(NULL, self._capacity)
        memcpy(PyBytes_AS_STRING(larger), self._buffer, self._position)
        self._owner = larger
        self._buffer = <unsigned char*>PyBytes_AS_STRING(larger)
        return 0

    def build(
        self, *, int64_t base_offset=0, int32_t partition_leader_epoch=-1, int64_t producer_id=-1,
        int16_t producer_epoch=-1, int32_t base_sequence=-1, bint transactional=False, bint control=False,
        log_append_time_ms=None, last_offset_delta=None,
    ):
        cdef unsigned char* p
        cdef int attributes = (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
        cdef int64_t last = self._last_offset_delta
        cdef int64_t max_timestamp = self.max_timestamp
        cdef bytes out
        if self._owner is None:
            raise ValueError("the batch is built already")
        if last_offset_delta is not None:
            if last_offset_delta < last:
                raise ValueError(f"the last offset delta {last_offset_delta} is below that of a record, {last}")
            last = last_offset_delta
        if last < 0:
            raise ValueError("a batch without records needs a last offset delta")
        if log_append_time_ms is not None:
            attributes |= LOG_APPEND_TIME
            max_timestamp = log_append_time_ms
        if self.codec != 0 and self.record_count:
            attributes |= <int>self.codec
            out = self._compressed()
        else:
            out = self._plain()
        p = <unsigned char*>PyBytes_AS_STRING(out)
        put64(p, base_offset)
        put32(p + 8, <int32_t>(PyBytes_GET_SIZE(out) - ENTRY_OVERHEAD))
        put32(p + 12, partition_leader_epoch)
        p[MAGIC_AT] = 2
        put16(p + 21, <int16_t>attributes)
        put32(p + 23, <int32_t>last)
        put64(p + 27, self.base_timestamp)
        put64(p + 35, max_timestamp)
        put64(p + 43, producer_id)
        put16(p + 51, producer_epoch)
        put32(p + 53, base_sequence)
        put32(p + 57, self.record_count)
        _seal(p, PyBytes_GET_SIZE(out))
        return out

    cdef bytes _plain(self):
        """The buffer itself, cut to size: no copy unless the allocator moves it."""
        cdef PyObject* owner
        cdef bytes out
        Py_INCREF(self._owner)
        owner = <PyObject*>self._owner
        self._owner = None
        self._buffer = NULL
        _PyBytes_Resize(&owner, self._position)
        out = <bytes>owner
        Py_XDECREF(owner)
        return out

    cdef bytes _compressed(self):
        cdef bytes out
        packed = _compress(self.codec, memoryview(self._owner)[HEADER_SIZE:self._position], level=self._level)
        cdef Py_buffer view
        PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
        out = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + view.len)
        memcpy(PyBytes_AS_STRING(out) + HEADER_SIZE, view.buf, view.len)
        PyBuffer_Release(&view)
        self._owner = None
        self._buffer = NULL
        return out


# ---------------------------------------------------------------------------------------------------- readers
cdef class RecordIterator


@cython.final
@cython.freelist(1024)
@cython.no_gc
cdef class Record:
    cdef readonly int64_t offset, timestamp_ms
    cdef const unsigned char* _key_data
    cdef const unsigned char* _value_data
    cdef const unsigned char* _header_data
    cdef int32_t _key_size, _value_size, _header_count
    cdef RecordIterator _owner   # keeps the bytes alive that the pointers point into; None when nothing is lazy
    cdef object _key, _value, _headers

    def __init__(self, int64_t offset, int64_t timestamp_ms, bytes key=None, bytes value=None, headers=()):
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self._key_size = -1
        self._value_size = -1
        self._key = key
        self._value = value
        self._headers = tuple(headers)

    @property
    def key(self):
        if self._key is None and self._key_size >= 0:
            self._key = PyBytes_FromStringAndSize(<const char*>self._key_data, self._key_size)
        return self._key

    @property
    def value(self):
        if self._value is None and self._value_size >= 0:
            self._value = PyBytes_FromStringAndSize(<const char*>self._value_data, self._value_size)
        return self._value

    @property
    def headers(self):
        if self._headers is None:
            self._headers = _NO_HEADERS if self._header_count == 0 else _unpack_headers(self._header_data, self._owner._end, self._header_count)
        return self._headers

    cdef void _detach(self):
        """Make everything now, so that the batch's bytes can go."""
        self.key
        self.value
        self.headers
        self._owner = None

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return _fields(self) == _fields(other)

    def __hash__(self):
        return hash((self.offset, self.timestamp_ms))

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp_ms={self.timestamp_ms}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self):
        return Record, (self.offset, self.timestamp_ms, self.key, self.value, self.headers)


cdef tuple _fields(Record record):
    return record.offset, record.timestamp_ms, record.key, record.value, record.headers


cdef tuple _unpack_headers(const unsigned char* p, const unsigned char* end, int32_t count):
    """The headers of a record that `_parse` accepted: every length is known to fit."""
    cdef int32_t size = 0, i
    cdef list out = PyList_New(count)
    cdef object key, value
    for i in range(count):
        p = get_varint(p, end, &size)
        key = PyUnicode_DecodeUTF8(<char*>p, size, "surrogateescape")
        p = get_varint(p + size, end, &size)
        value = None
        if size >= 0:
            value = PyBytes_FromStringAndSize(<const char*>p, size)
            p += size
        item = (key, value)
        Py_INCREF(item)
        PyList_SET_ITEM(out, i, item)
    return tuple(out)


@cython.final
@cython.no_gc
cdef class RecordIterator:
    """The records of one v2 batch, in order."""

    cdef Py_buffer _view
    cdef bint _held
    cdef const unsigned char* _next
    cdef const unsigned char* _end
    cdef int64_t _base_offset, _base_timestamp, _log_append_time
    cdef bint _appended
    cdef int32_t _remaining
    cdef readonly BatchHeader header

    def __cinit__(self, batch, *, max_decompressed_bytes=_DEFAULT_MAX):
        cdef const unsigned char* p
        cdef Py_ssize_t size
        PyObject_GetBuffer(batch, &self._view, PyBUF_SIMPLE)
        self._held = True
        p = <const unsigned char*>self._view.buf
        size = _batch_at(p, self._view.len, 0)
        _check_counts(p, size, False)
        self.header = _header_at(p, 0)
        self._base_offset = self.header.base_offset
        self._base_timestamp = self.header.base_timestamp
        self._log_append_time = self.header.max_timestamp
        self._appended = (self.header.attributes & LOG_APPEND_TIME) != 0
        self._remaining = self.header.record_count
        self._next = p + HEADER_SIZE
        self._end = p + size
        if self.header.attributes & CODEC_MASK and self._remaining:
            self._open(_plain_body(self._next, size - HEADER_SIZE, self.header.attributes, max_decompressed_bytes))

    cdef int _open(self, bytearray plain) except -1:
        """Read from decompressed bytes instead of the batch."""
        PyBuffer_Release(&self._view)
        self._held = False
        PyObject_GetBuffer(plain, &self._view, PyBUF_SIMPLE)
        self._held = True
        self._next = <const unsigned char*>self._view.buf
        self._end = self._next + self._view.len
        if <int64_t>self._remaining * MIN_RECORD_SIZE > self._view.len:
            raise CorruptRecords(f"{self._view.len} bytes cannot hold {self._remaining} records")
        return 0

    def __dealloc__(self):
        if self._held:
            PyBuffer_Release(&self._view)

    def __iter__(self):
        return self

    def __length_hint__(self):
        return self._remaining

    def __next__(self):
        if self._remaining == 0:
            self._finish()
            raise StopIteration
        return self._read()

    cdef int _finish(self) except -1:
        if self._next is not self._end and self.header.record_count:
            raise CorruptRecords(f"bytes follow the last of {self.header.record_count} records")
        return 0

    cdef inline Record _read(self):
        cdef RawRecord r
        cdef Record record
        cdef const unsigned char* following = _parse(self._next, self._end, &r)
        if following is NULL:
            raise CorruptRecords(
                f"record {self.header.record_count - self._remaining} of {self.header.record_count} is malformed"
            )
        self._next = following
        self._remaining -= 1
        record = Record.__new__(Record, 0, 0)
        record.offset = self._base_offset + r.offset_delta
        record.timestamp_ms = self._log_append_time if self._appended else self._base_timestamp + r.timestamp_delta
        record._key_data = r.key
        record._key_size = r.key_size
        record._value_data = r.value
        record._value_size = r.value_size
        record._header_data = r.headers
        record._header_count = r.header_count
        record._owner = self
        return record

    def read_all(self, *, bint detach=True):
        cdef Py_ssize_t i
        cdef Record record
        cdef list records = []
        while self._remaining:
            record = self._read()
            if detach:
                record._detach()
            records.append(record)
        self._finish()
        return records
