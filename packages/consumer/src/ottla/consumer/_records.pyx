# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The native part of ottla.consumer: records, decoding them from fetched bytes, and iterating over them.

`record.py` exports the record, `fetch/decoding.py` makes cursors, `fetch/record_delivery.py` extends the
iterator. `_records.pyi` has the types and the contracts.
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
from ottla.protocol.records._record cimport RawRecord, parse_record, read_record

from asyncio import sleep as _sleep
from types import GenericAlias as _GenericAlias

from ottla.client.serialization import PreparationNeeded
from ottla.consumer.errors import (
    RecordDeserializationFailed,
    RecordUnprepared,
    UnreadableBatch,
    unreadable_batch,
)
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import CorruptRecords, TimestampType
from ottla.protocol.records.compression import decompress_as_readers_do as _decompress
from ottla.protocol.records.legacy import read_entry as _read_legacy_entry
from ottla.protocol.records.legacy import records_of as _legacy_records_of
from ottla.protocol.topics import TopicPartition

cdef extern from "monotonic_clock.h" nogil:
    int64_t coarse_ms()

cdef enum:
    REPR_LIMIT = 60              # bytes or characters of a key or value in the repr of a record
    YIELD_INTERVAL_MS = 10       # how long records are returned before the event loop runs again

cdef tuple _DECODING_ERRORS = (UnreadableBatch, RecordDeserializationFailed)
cdef tuple _TIMESTAMP_TYPES = tuple(TimestampType)
cdef tuple _NO_HEADERS = ()

include "_record.pxi"
include "_record_cursor.pxi"
include "_record_iterator.pxi"



def _record_table(caption, records):
    from ottla.client.displays import record_table  # in notebooks only

    return record_table(caption, records)


def end_of(data, int64_t position):
    """Return the offset after the last whole batch in `data`, or `position`; its epoch; the record count.

    Only the headers of batches are read.
    """
    cdef PinnedBuffer buffer = PinnedBuffer(data)
    cdef const unsigned char* p = <const unsigned char*>buffer.view.buf
    cdef Py_ssize_t left = buffer.view.len, size
    cdef int64_t offset_after_entry, count = 0
    cdef int32_t epoch = -1
    while left > MAGIC_AT:
        size = entry_size(p)
        if size < MIN_LEGACY_ENTRY or size > left or p[MAGIC_AT] > 2:
            break
        offset_after_entry = get64(p) + 1
        if p[MAGIC_AT] == 2:
            if size < HEADER_SIZE:
                break
            offset_after_entry += get32(p + LAST_OFFSET_DELTA_AT)
            epoch = get32(p + LEADER_EPOCH_AT)
            count += get32(p + RECORD_COUNT_AT) - 1
        count += 1
        if offset_after_entry > position:
            position = offset_after_entry
        p += size
        left -= size
    return position, epoch, count
