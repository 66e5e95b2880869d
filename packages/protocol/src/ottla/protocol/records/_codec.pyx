# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""The native part of ottla.protocol.records; the façade documents it, `_codec.pyi` types it."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
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


cdef inline uint32_t _checksum(uint32_t value, const unsigned char* p, Py_ssize_t size) noexcept:
    if size < RELEASE_ABOVE:
        return ottla_crc32c(value, p, size)
    with nogil:
        value = ottla_crc32c(value, p, size)
    return value


cdef uint32_t _exported_checksum(uint32_t value, const unsigned char* p, Py_ssize_t size) noexcept:
    return _checksum(value, p, size)


# For other compiled modules: uint32_t (uint32_t value, const unsigned char *data, Py_ssize_t size).
crc32c_function = PyCapsule_New(<void*>_exported_checksum, "ottla.crc32c", NULL)


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


include "_builder.pxi"
include "_reader.pxi"
