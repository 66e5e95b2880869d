# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""The native part of ottla.protocol.records; the façade documents it, `_codec.pyi` types it."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ottla.protocol.records._batch cimport (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    ENTRY_OVERHEAD,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAGIC_AT,
    MAX_BATCH_SIZE,
    LZ4,
    MAX_CODEC,
    MAX_TIMESTAMP_AT,
    MIN_LEGACY_ENTRY,
    MIN_RECORD_SIZE,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TRANSACTIONAL,
    codec_at,
    entry_size,
    get16,
    get32,
    get64,
    get_varint,
    put16,
    put32,
    put64,
    put_varint,
    varint_size,
)
from ottla.protocol.records._murmur2 cimport murmur2_of
from ottla.protocol.records._record cimport RawRecord, parse_record

from ottla.protocol.errors import UnsupportedCompressionType
from ottla.protocol.records.compressed_frames import check_lz4_frame as _check_lz4_frame
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES as _DEFAULT_MAX
from ottla.protocol.records.compression import compress as _compress
from ottla.protocol.records.compression import decompress as _decompress
from ottla.protocol.records.errors import CorruptRecords, UnreadableRecords
from ottla.protocol.records.types import Codec, TimestampType

cdef extern from "ottla/protocol/records/crc32c.h" nogil:
    ctypedef uint32_t (*ottla_crc_function)(uint32_t, const unsigned char*, size_t) noexcept nogil
    void ottla_crc_choose()
    uint32_t ottla_crc32c(uint32_t, const unsigned char*, size_t)
    int ottla_crc_leaves_dirty(ottla_crc_function, const unsigned char*, size_t)
    int ottla_crc_count
    const char** ottla_crc_names
    ottla_crc_function* ottla_crc_functions

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1
    object PyMemoryView_FromMemory(char*, Py_ssize_t, int)
    int PyBUF_READ

ottla_crc_choose()

cdef enum:
    RELEASE_ABOVE = 16384        # below this, giving the GIL away costs more than the work

cdef tuple _CODECS = tuple(Codec)
cdef tuple _TIMESTAMP_TYPES = tuple(TimestampType)
cdef tuple _NO_HEADERS = ()


cdef uint32_t checksum(uint32_t value, const unsigned char* p, Py_ssize_t size) noexcept:
    if size < RELEASE_ABOVE:
        return ottla_crc32c(value, p, size)
    with nogil:
        value = ottla_crc32c(value, p, size)
    return value


cdef uint32_t checksum_without_gil(uint32_t value, const unsigned char* p, Py_ssize_t size) noexcept nogil:
    return ottla_crc32c(value, p, size)


def crc32c(data, value=0):
    cdef Py_buffer view
    cdef uint32_t crc = value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    crc = checksum(crc, <const unsigned char*>view.buf, view.len)
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


def crc32c_leaves_dirty(str implementation, bytes data not None):
    """Whether a routine leaves upper halves of vector registers dirty; None where the processor cannot tell."""
    cdef int which = crc32c_implementations().index(implementation)
    cdef int dirty = ottla_crc_leaves_dirty(ottla_crc_functions[which], data, len(data))
    return None if dirty < 0 else bool(dirty)


def murmur2(data):
    cdef Py_buffer view
    cdef int32_t value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    value = murmur2_of(<const unsigned char*>view.buf, view.len)
    PyBuffer_Release(&view)
    return value


include "_headers.pxi"
include "_validation.pxi"


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
            put32(p + LEADER_EPOCH_AT, leader_epoch)
            base_offset += <int64_t>get32(p + LAST_OFFSET_DELTA_AT) + 1
            position += size
        return base_offset
    finally:
        PyBuffer_Release(&view)


def set_log_append_time(batches, int64_t timestamp_ms):
    cdef Py_buffer view
    cdef unsigned char* p
    cdef Py_ssize_t position = 0, size
    PyObject_GetBuffer(batches, &view, PyBUF_WRITABLE)
    try:
        while position < view.len:
            p = <unsigned char*>view.buf + position
            size = _batch_at(p, view.len - position, position)
            put16(p + ATTRIBUTES_AT, get16(p + ATTRIBUTES_AT) | LOG_APPEND_TIME)
            put64(p + MAX_TIMESTAMP_AT, timestamp_ms)
            seal(p, size)
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
        put64(p + PRODUCER_ID_AT, producer_id)
        put16(p + PRODUCER_EPOCH_AT, producer_epoch)
        put32(p + BASE_SEQUENCE_AT, base_sequence)
        seal(p, size)
    finally:
        PyBuffer_Release(&view)


include "_builder.pxi"
include "_reader.pxi"
