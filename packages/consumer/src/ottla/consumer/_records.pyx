# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The native part of ottla.consumer: records, reading them out of fetched bytes, and iterating.

`record.py` and `decoding.py` are its façades, `_records.pyi` types it.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

from asyncio import sleep as _sleep

from ottla.consumer.errors import RecordDeserializationFailed
from ottla.protocol.errors import UnsupportedCompressionType
from ottla.protocol.records import CorruptRecords, DecompressedTooLarge, TimestampType
from ottla.protocol.records import _codec
from ottla.protocol.records import decompress as _decompress
from ottla.protocol.records.legacy import read_entry as _read_legacy_entry
from ottla.protocol.records.legacy import records_of as _legacy_records_of
from ottla.protocol.topics import TopicPartition

cdef extern from "wire.h" nogil:
    int64_t get64(const unsigned char*)
    int32_t get32(const unsigned char*)
    int16_t get16(const unsigned char*)
    const unsigned char* get_varint(const unsigned char*, const unsigned char*, int32_t*)
    const unsigned char* get_varlong(const unsigned char*, const unsigned char*, int64_t*)

cdef extern from "clock.h" nogil:
    int64_t coarse_ms()

cdef enum:
    ENTRY_OVERHEAD = 12          # base offset and length, in front of every entry of any magic
    MAGIC_AT = 16
    CRC_AT = 17
    CRC_FROM = 21
    HEADER_SIZE = 61
    MIN_LEGACY_ENTRY = 26        # magic 0 with a null key and a null value
    CODEC_MASK = 7
    MAX_CODEC = 4
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32
    MOST_SHOWN = 60              # of a key or a value, where a record is printed
    BREATH_MS = 10               # how long records may be given out without a turn of the event loop

ctypedef uint32_t (*Checksum)(uint32_t, const unsigned char*, Py_ssize_t) noexcept
cdef Checksum _checksum = <Checksum>PyCapsule_GetPointer(_codec.crc32c_function, "ottla.crc32c")

cdef tuple _UNREADABLE = (
    CorruptRecords, DecompressedTooLarge, UnsupportedCompressionType, RecordDeserializationFailed,
)
cdef tuple _TIMESTAMP_TYPES = tuple(TimestampType)
cdef tuple _NO_HEADERS = ()

include "_record.pxi"
include "_cursor.pxi"
include "_source.pxi"
