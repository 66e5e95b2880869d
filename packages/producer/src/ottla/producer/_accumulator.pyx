# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The native part of the producer: records into batches. `accumulator.py` exports it, `_accumulator.pyi` types it.

`_batch.pxi` holds one batch, `_record_acknowledgements.pxi` the acknowledgements of its records, `_partitions.pxi` the
queues of a topic's partitions, `_accumulator.pxi` the batches of all partitions, `_arrow_rows.pxi` the rows of Arrow
columns, `_appender.pxi` the calls that append records to batches. This module does not wait, use sockets or start tasks.
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
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint32_t
from libc.string cimport memcpy

from ottla.protocol.records._arrow_c cimport ArrowArray, ArrowArrayStream, ArrowSchema
from ottla.protocol.records._batch cimport (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    ENTRY_OVERHEAD,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    MAGIC_AT,
    MAX_BATCH_SIZE,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TRANSACTIONAL,
    put16,
    put32,
    put64,
    put_varint,
    varint_size,
)
from ottla.protocol.records._codec cimport seal
from ottla.protocol.records._murmur2 cimport murmur2_of

import asyncio
import logging
import weakref
from collections import deque
from types import GenericAlias as _GenericAlias

from ottla.client.environment import chance as _system_chance
from ottla.producer.errors import NoSuchPartition, RecordRefused, RecordTooLarge
from ottla.producer.record import RecordMetadata
from ottla.producer.transactions.state import TransactionAborted
from ottla.protocol.records import Codec
from ottla.protocol.records import compress as _compress
from ottla.protocol.records import decode_records as _decode_records
from ottla.protocol.topics import TopicPartition

cdef extern from "wall_clock.h" nogil:
    int64_t ottla_wall_ms()

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1

cdef enum:
    RECORD_OVERHEAD = 40         # upper bound of a record's bytes beside key, value and headers
    MIN_CAPACITY = 1024
    BYTES_PER_PAUSE = 524288     # that `send` appends before it yields to the event loop: one or two milliseconds

log = logging.getLogger("ottla.producer")


include "_batch.pxi"
include "_record_acknowledgements.pxi"
include "_partitions.pxi"
include "_accumulator.pxi"
include "_arrow_rows.pxi"
include "_appender.pxi"
