# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The native part of ottla.consumer: records, reading them out of fetched bytes, and iterating.

`record.py` and `decoding.py` are its façades, `_records.pyi` types it.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t

from ottla.protocol.records._batch cimport (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL,
    ENTRY_OVERHEAD,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LOG_APPEND_TIME,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    MIN_LEGACY_ENTRY,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TRANSACTIONAL,
    codec_at,
    entry_size,
    get16,
    get32,
    get64,
    get_varint,
)
from ottla.protocol.records._codec cimport is_sound
from ottla.protocol.records._record cimport RawRecord, parse_record

from asyncio import sleep as _sleep

from ottla.consumer.errors import RecordDeserializationFailed
from ottla.protocol.errors import UnsupportedCompressionType
from ottla.protocol.records import CorruptRecords, DecompressedTooLarge, TimestampType
from ottla.protocol.records import decompress as _decompress
from ottla.protocol.records.legacy import read_entry as _read_legacy_entry
from ottla.protocol.records.legacy import records_of as _legacy_records_of
from ottla.protocol.topics import TopicPartition

cdef extern from "clock.h" nogil:
    int64_t coarse_ms()

cdef enum:
    MOST_SHOWN = 60              # of a key or a value, where a record is printed
    BREATH_MS = 10               # how long records may be given out without a turn of the event loop

cdef tuple _UNREADABLE = (
    CorruptRecords, DecompressedTooLarge, UnsupportedCompressionType, RecordDeserializationFailed,
)
cdef tuple _TIMESTAMP_TYPES = tuple(TimestampType)
cdef tuple _NO_HEADERS = ()

include "_record.pxi"
include "_cursor.pxi"
include "_source.pxi"
