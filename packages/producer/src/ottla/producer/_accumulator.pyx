# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The native part of the producer: records into batches. `accumulator.py` exports it, `_accumulator.pyi` types it.

`_batch.pxi` holds one batch, `_acknowledgements.pxi` the acknowledgements of its records, `_accumulator.pxi` the
batches of all partitions, `_rows.pxi` the rows of Arrow columns, `_appender.pxi` the calls that append records to
batches. Nothing in here waits, knows a socket, or keeps a task.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_CheckExact
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t
from libc.string cimport memcpy

import asyncio
import logging
import weakref
from collections import deque

from ottla.client.environment import chance as _system_chance
from ottla.producer.errors import BufferFull, ProducerClosed, RecordTooLarge
from ottla.producer.record import RecordMetadata
from ottla.protocol.records import Codec, _codec
from ottla.protocol.records import compress as _compress
from ottla.protocol.records import decode_records as _decode_records
from ottla.protocol.topics import TopicPartition

cdef extern from "wire.h" nogil:
    void put64(unsigned char*, int64_t)
    void put32(unsigned char*, int32_t)
    void put16(unsigned char*, int16_t)
    int varint_size(int64_t)
    unsigned char* put_varint(unsigned char*, int64_t)

cdef extern from "wall_clock.h" nogil:
    int64_t ottla_wall_ms()

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1

ctypedef uint32_t (*Checksum)(uint32_t, const unsigned char*, Py_ssize_t) noexcept

cdef Checksum checksum = <Checksum> PyCapsule_GetPointer(_codec.crc32c_function, "ottla.crc32c")

cdef enum:
    HEADER_SIZE = 61
    TRANSACTIONAL = 16
    MAX_BATCH = 2147483647
    RECORD_OVERHEAD = 40         # beside key, value and headers, at most: varints, attributes, counts
    LEAST_CAPACITY = 1024
    PAUSE_EVERY = 524288         # bytes that `send` takes without a pause: a millisecond's worth or two

log = logging.getLogger("ottla.producer")


cdef inline int32_t murmur2(const unsigned char* data, Py_ssize_t length) noexcept nogil:
    """Java's hash of keys."""
    cdef uint32_t m = <uint32_t>0x5bd1e995u
    cdef uint32_t h = <uint32_t>0x9747b28cu ^ <uint32_t>length
    cdef uint32_t k
    cdef Py_ssize_t i, words = length >> 2
    for i in range(words):
        k = (
            <uint32_t>data[4 * i] | <uint32_t>data[4 * i + 1] << 8
            | <uint32_t>data[4 * i + 2] << 16 | <uint32_t>data[4 * i + 3] << 24
        )
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
    data += 4 * words
    if length & 3 == 3:
        h ^= <uint32_t>data[2] << 16
    if length & 3 >= 2:
        h ^= <uint32_t>data[1] << 8
    if length & 3 >= 1:
        h ^= <uint32_t>data[0]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return <int32_t>h


include "_batch.pxi"
include "_acknowledgements.pxi"
include "_accumulator.pxi"
include "_rows.pxi"
include "_appender.pxi"
